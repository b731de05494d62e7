"""What PyTorch's compiler has for itself, and an emitted file uses: short ways, as Python text.

New memory takes half the time of `torch.empty_strided`. One test says whether tensors are like some
seen before: their types, keys of dispatch (device, layout, bits; with the modes of the thread),
dtypes, gradients, sizes and strides (`TensorCheck` in torch/csrc/dynamo/guards.cpp, PyTorch 2.2 to
2.13). It ends the process at a tensor without strides, so those are asked for before.
"""

from __future__ import annotations

CPU_MEMORY = '''
def _fusewright_empty_strided(shape, strides, dtype):
    """New memory for kernels to write to."""
    return torch.empty_strided(shape, strides, dtype=dtype, device="cpu")


# The same without a detour; PyTorch 2.1 does not have it.
_fusewright_empty = getattr(
    _fusewright_dynamo_guards, "_empty_strided_cpu", _fusewright_empty_strided
)
'''
CUDA_MEMORY = '''
_fusewright_empty_strided_cuda = getattr(_fusewright_dynamo_guards, "_empty_strided_cuda", None)
_fusewright_current_device = getattr(torch._C, "_cuda_getDevice", None)  # any with CUDA has it


def _fusewright_empty(shape, strides, dtype, device):
    """New memory for kernels to write to; PyTorch's way without a detour, if it has one."""
    if _fusewright_empty_strided_cuda and _fusewright_current_device() == device:
        return _fusewright_empty_strided_cuda(shape, strides, dtype)
    return torch.empty_strided(shape, strides, dtype=dtype, device=device)
'''

GUARD_HIT = '''
# Batch size, mode of gradients -> PyTorch's own test for tensors like those.
_FUSEWRIGHT_GUARD_CACHE = {}
_fusewright_tensor_guards = None  # what makes such a test, in versions that are known to have it
if torch.__version__ >= "2.2" and torch.__version__ < "2.14.dev0":
    _fusewright_tensor_guards = _fusewright_dynamo_guards.TensorGuards


def _fusewright_guard_hit(batch, *tensors):
    """Whether all is as at a call before for which the conditions in the second half held."""
    check = _FUSEWRIGHT_GUARD_CACHE.get((batch, torch.is_grad_enabled()))
    if check is None or not _fusewright_eager():
        return False
    for tensor in tensors:  # the test itself ends a process at a tensor that has no strides
        known = type(tensor) in _FUSEWRIGHT_TENSORS
        if not known or tensor.is_nested or tensor.layout is not torch.strided:
            return False
    return check(*tensors)


_FUSEWRIGHT_GUARD_STATE = (  # what the C++ that does the same needs to know
    *(_FUSEWRIGHT_GUARD_CACHE, torch.is_grad_enabled, torch.strided, *_FUSEWRIGHT_TENSORS),
    *(_fusewright_forward_ad, _fusewright_function_modes, _fusewright_other_modes),
    *(_fusewright_autocast, _fusewright_tracing),
    *(_fusewright_transform, _fusewright_dispatch_modes),
)


def _fusewright_cache_guard(batch, *tensors):
    """Lets `_fusewright_guard_hit` know them, if this PyTorch is known to have the test. True."""
    key = batch, torch.is_grad_enabled()
    if (
        _fusewright_tensor_guards
        and key not in _FUSEWRIGHT_GUARD_CACHE
        and len(_FUSEWRIGHT_GUARD_CACHE) < 64
    ):
        sizes = [list(tensor.shape) for tensor in tensors]
        strides = [list(tensor.stride()) for tensor in tensors]
        laid = {"dynamic_dims_sizes": sizes, "dynamic_dims_strides": strides}
        _FUSEWRIGHT_GUARD_CACHE[key] = _fusewright_tensor_guards(*tensors, **laid).check
    return True
'''
