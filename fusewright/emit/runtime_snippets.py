"""Functions of the emitted file that only some files need, by the names of their calls.

Whoever writes a call of one says so: `forward` and its guard collect the snippets that they call,
and the runtime block holds these.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType

from fusewright.emit.dynamo_fast_path import SEEN
from fusewright.frontend.float32_precision import ROUNDS
from fusewright.rewrite.huge_pages import PAGED


class Snippet(StrEnum):
    """The name of its function, in the order of the file.

    Behind `SEEN` stands `_fusewright_remember`, too; `EMPTY` is written for each language.
    """

    EMPTY = "_fusewright_empty"
    SEEN = "_fusewright_seen"
    MODULE = "_fusewright_module"
    APART = "_fusewright_apart"
    CHANGED = "_fusewright_changed"
    DENSE = "_fusewright_dense"
    ALIGNED = "_fusewright_aligned"
    FULL_FLOAT32 = "_fusewright_full_float32"
    ROUNDS = "_fusewright_rounds"
    IEEE = "_fusewright_ieee"
    PAGED = "_fusewright_paged"


_MODULE = '''
_FUSEWRIGHT_HOOKS = torch.nn.modules.module._global_forward_hooks
_FUSEWRIGHT_PRE_HOOKS = torch.nn.modules.module._global_forward_pre_hooks


def _fusewright_module(module, kind):
    """Whether calling a submodule does what its class says and nothing else."""
    return (
        type(module) is kind
        and not (module._forward_hooks or module._forward_pre_hooks)
        and "forward" not in module.__dict__
    )
'''

_APART = '''
def _fusewright_apart(written, read):
    """Whether no tensor that is written shares memory with another one."""
    targets = {tensor.untyped_storage().data_ptr() for tensor in written}
    others = {tensor.untyped_storage().data_ptr() for tensor in read}
    if len(targets) == len(written) and targets.isdisjoint(others):
        return True
    spans = [(t.data_ptr(), t.data_ptr() + t.numel() * t.element_size()) for t in written]
    every = [*spans, *((t.data_ptr(), t.data_ptr() + t.numel() * t.element_size()) for t in read)]
    return all(
        mine is other or mine[1] <= other[0] or other[1] <= mine[0]
        for mine in spans
        for other in every
    )
'''

_CHANGED = """
# Tells autograd that a kernel wrote to a tensor; PyTorch 2.0 has no word for it.
_fusewright_changed = getattr(torch.autograd.graph, "increment_version", id)
"""

_DENSE = '''
def _fusewright_dense(tensor, order):
    """The tensor with its dimensions in this order in memory, copied only if they are not."""
    back = sorted(range(len(order)), key=order.__getitem__)
    return tensor.permute(order).contiguous().permute(back)
'''

_ALIGNED = '''
def _fusewright_aligned(tensor):
    """The tensor, or a copy of it if it does not start at a multiple of 16 bytes."""
    return tensor.clone() if tensor.data_ptr() % 16 else tensor
'''

_FULL_FLOAT32 = '''
def _fusewright_full_float32():
    """Whether PyTorch's own float32 products are in full precision, as the kernels' are."""
    if hasattr(torch._C, "_get_fp32_precision_getter"):  # PyTorch 2.9 and newer
        return torch._C._get_fp32_precision_getter("cuda", "matmul") != "tf32"
    return not torch._C._get_cublas_allow_tf32()
'''

_IEEE = """
class _FusewrightIeee:
    def __enter__(self):
        backends = torch.backends
        if hasattr(backends.cudnn, "conv"):  # PyTorch 2.9 and newer
            owners = [backends.cuda.matmul, backends.cudnn.conv]
            owners += [backends.mkldnn.matmul, backends.mkldnn.conv]
            self.flags = [(owner, "fp32_precision", "ieee") for owner in owners]
        else:
            owners = [backends.cuda.matmul, backends.cudnn]
            self.flags = [(owner, "allow_tf32", False) for owner in owners]
        self.before = [getattr(owner, name) for owner, name, _ in self.flags]
        for owner, name, value in self.flags:
            setattr(owner, name, value)

    def __exit__(self, *error):
        for (owner, name, _), value in zip(self.flags, self.before, strict=True):
            setattr(owner, name, value)


def _fusewright_ieee(product):
    \"\"\"Run one of PyTorch's products in full float32, whatever its precision flags say.\"\"\"
    with _FusewrightIeee():
        return product()
"""

# Those that are the same in every language.
SNIPPETS: Mapping[Snippet, str] = MappingProxyType(
    {
        Snippet.SEEN: SEEN,
        Snippet.MODULE: _MODULE,
        Snippet.APART: _APART,
        Snippet.CHANGED: _CHANGED,
        Snippet.DENSE: _DENSE,
        Snippet.ALIGNED: _ALIGNED,
        Snippet.FULL_FLOAT32: _FULL_FLOAT32,
        Snippet.ROUNDS: ROUNDS,
        Snippet.IEEE: _IEEE,
        Snippet.PAGED: PAGED,
    }
)
