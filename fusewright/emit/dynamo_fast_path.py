"""What PyTorch's compiler has for itself, and an emitted file uses: short ways, as Python text.

New memory takes half the time of `torch.empty_strided`. One test says whether tensors are like some
seen before: their types, keys of dispatch (device, layout, bits; with the modes of the thread),
dtypes, gradients, sizes and strides (`TensorCheck` in torch/csrc/dynamo/guards.cpp, PyTorch 2.2 to
2.15). It ends the process at a tensor without strides, so those are asked for before.
"""

from __future__ import annotations

CPU_MEMORY = '''
def _fusewright_empty(shape, strides, dtype):
    """New memory for kernels to write to."""
    return torch.empty_strided(shape, strides, dtype=dtype, device="cpu")


# The same without a detour; PyTorch 2.1 does not have it.
_fusewright_empty = getattr(_fusewright_dynamo_guards, "_empty_strided_cpu", _fusewright_empty)
'''
CUDA_MEMORY = '''
_fusewright_empty_strided_cuda = getattr(_fusewright_dynamo_guards, "_empty_strided_cuda", None)


def _fusewright_empty(shape, strides, dtype, device):
    """New memory for kernels to write to; PyTorch's way without a detour, if it has one."""
    if _fusewright_empty_strided_cuda and torch._C._cuda_getDevice() == device:
        return _fusewright_empty_strided_cuda(shape, strides, dtype)
    return torch.empty_strided(shape, strides, dtype=dtype, device=device)
'''

_CACHE = '''
# Without gradients and with them: key of a call -> PyTorch's own test for tensors like its.
_FUSEWRIGHT_GUARD_CACHE = ({}, {})


def _fusewright_cache_guard(key, *tensors):
    """Lets `_fusewright_guard_hit` know them, if this PyTorch is known to have the test. True."""
    cache = _FUSEWRIGHT_GUARD_CACHE[torch.is_grad_enabled()]
    known = torch.__version__ >= "2.2" and torch.__version__ < "2.16.dev0"
    if known and key not in cache and len(cache) < 64:
        cache[key] = _fusewright_test_of(*tensors)
    return True


def _fusewright_test_of(*tensors):
    """PyTorch's test for tensors like these."""
    sizes, strides = [list(t.shape) for t in tensors], [list(t.stride()) for t in tensors]
    laid = {"dynamic_dims_sizes": sizes, "dynamic_dims_strides": strides}
    return _fusewright_dynamo_guards.TensorGuards(*tensors, **laid).check
'''
# Before the kernels are built.
GUARD_HIT = f'''{_CACHE}

def _fusewright_guard_hit(key, state, *tensors):
    """Whether all is as at a call for which the conditions held; C++ knows, once it is built.

    state: those tensors of which `_fusewright_state` knows that they have strides.
    """
    return False
'''
# For files that have no kernels.
GUARD_HIT_IN_PYTHON = f'''{_CACHE}

def _fusewright_guard_hit(key, state, *tensors):
    """Whether all is as at a call for which the conditions held.

    state: those tensors of which `_fusewright_state` knows that they have strides.
    """
    check = _FUSEWRIGHT_GUARD_CACHE[torch.is_grad_enabled()].get(key)
    if check is None or not _fusewright_eager():
        return False
    for tensor in tensors:  # the test itself ends a process at a tensor that has no strides
        known = type(tensor) in (torch.Tensor, torch.nn.Parameter)
        if not known or tensor.is_nested or tensor.layout is not torch.strided:
            return False
    return check(*tensors, *state)
'''
