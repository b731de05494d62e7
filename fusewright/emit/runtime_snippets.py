"""Functions of the emitted file that only some files need, by the names of their calls.

Whoever writes a call of one says so: `forward` and its guard collect the snippets that they call,
and the runtime block holds these.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType

from fusewright.emit.autograd_function import RECORDED
from fusewright.emit.dynamo_fast_path import GUARD_HIT
from fusewright.emit.guard_snapshot import LOOK
from fusewright.emit.replay_support import AGAIN, COPY_BYTES, LAUNCH_GRAPH, REPLAYED
from fusewright.emit.traced_support import TRACED
from fusewright.frontend.float32_precision import CONV_USES_TF32
from fusewright.rewrite.huge_pages import ON_HUGE_PAGES


class Snippet(StrEnum):
    """The name of its function, in the order of the file.

    Behind `GUARD_HIT` stands `_fusewright_cache_guard`, too; `EMPTY` is written for each language.
    """

    EMPTY = "_fusewright_empty"
    GUARD_HIT = "_fusewright_guard_hit"
    MODULE_MATCHES = "_fusewright_module_matches"
    STATE = "_fusewright_state"
    NO_SHARED_MEMORY = "_fusewright_no_shared_memory"
    INCREMENT_VERSION = "_fusewright_increment_version"
    WITH_MEMORY_ORDER = "_fusewright_with_memory_order"
    ALIGNED = "_fusewright_aligned"
    FULL_FLOAT32 = "_fusewright_full_float32"
    CONV_USES_TF32 = "_fusewright_conv_uses_tf32"
    IEEE = "_fusewright_ieee"
    ON_HUGE_PAGES = "_fusewright_on_huge_pages"
    COPY_BYTES = "_fusewright_copy_bytes"
    LAUNCH_GRAPH = "_fusewright_launch_graph"
    REPLAYED = "_fusewright_replayed"
    AGAIN = "_fusewright_again"
    TRACED = "_fusewright_in_graph"
    RECORDED = "_fusewright_apply"


_MODULE_MATCHES = '''
_FUSEWRIGHT_HOOKS = torch.nn.modules.module._global_forward_hooks
_FUSEWRIGHT_PRE_HOOKS = torch.nn.modules.module._global_forward_pre_hooks


def _fusewright_module_matches(module, kind):
    """Whether calling a submodule does what its class says and nothing else."""
    return (
        type(module) is kind
        and not (module._forward_hooks or module._forward_pre_hooks)
        and "forward" not in module.__dict__
    )
'''

_NO_SHARED_MEMORY = '''
# Kind of call -> where tensors of the model were that shared no memory, and what is written there.
_FUSEWRIGHT_APART = {}


def _fusewright_no_shared_memory(key, state, inputs, positions):
    """Whether no tensor that is written, by its position, shares memory with another one.

    Positions count the tensors of the model, then those among the arguments. Calls with the same
    key have tensors of the same sizes.
    """
    places = [tensor.data_ptr() for tensor in state]
    known, written = _FUSEWRIGHT_APART.get(key, ((), ()))
    if known != places:
        if not _fusewright_lie_apart(dict(enumerate((*state, *inputs))), positions):
            return False
        full = len(_FUSEWRIGHT_APART) >= 64 and key not in _FUSEWRIGHT_APART
        if not full and positions[-1] < len(state):  # no argument is written
            ends = [(places[k], places[k] + state[k].nbytes) for k in positions]
            _FUSEWRIGHT_APART[key] = places, ends
        return True
    for tensor in inputs:
        begin = tensor.data_ptr()
        end = begin + tensor.nbytes
        if any(start < end and begin < stop for start, stop in written):
            return False
    return True


def _fusewright_lie_apart(others, positions):
    written, read = [others.pop(k) for k in positions], others.values()
    targets = {tensor.untyped_storage().data_ptr() for tensor in written}
    kept = {tensor.untyped_storage().data_ptr() for tensor in read}
    if len(targets) == len(written) and targets.isdisjoint(kept):
        return True
    spans = [(t.data_ptr(), t.data_ptr() + t.numel() * t.element_size()) for t in written]
    every = [*spans, *((t.data_ptr(), t.data_ptr() + t.numel() * t.element_size()) for t in read)]
    return all(
        mine is other or mine[1] <= other[0] or other[1] <= mine[0]
        for mine in spans
        for other in every
    )
'''

_INCREMENT_VERSION = """
# Tells autograd that a kernel wrote to a tensor; PyTorch 2.0 has no word for it.
_fusewright_increment_version = getattr(torch.autograd.graph, "increment_version", id)
"""

_WITH_MEMORY_ORDER = '''
def _fusewright_with_memory_order(tensor, order):
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
    """Whether PyTorch's own float32 matmuls are in full precision, as the kernels' are."""
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


def _fusewright_ieee(call):
    \"\"\"Run one of PyTorch's contractions in full float32, whatever its precision flags say.\"\"\"
    with _FusewrightIeee():
        return call()
"""

# Those that are the same in every language.
SNIPPETS: Mapping[Snippet, str] = MappingProxyType(
    {
        Snippet.GUARD_HIT: GUARD_HIT,
        Snippet.MODULE_MATCHES: _MODULE_MATCHES,
        Snippet.STATE: LOOK,
        Snippet.NO_SHARED_MEMORY: _NO_SHARED_MEMORY,
        Snippet.INCREMENT_VERSION: _INCREMENT_VERSION,
        Snippet.WITH_MEMORY_ORDER: _WITH_MEMORY_ORDER,
        Snippet.ALIGNED: _ALIGNED,
        Snippet.FULL_FLOAT32: _FULL_FLOAT32,
        Snippet.CONV_USES_TF32: CONV_USES_TF32,
        Snippet.IEEE: _IEEE,
        Snippet.ON_HUGE_PAGES: ON_HUGE_PAGES,
        Snippet.COPY_BYTES: COPY_BYTES,
        Snippet.LAUNCH_GRAPH: LAUNCH_GRAPH,
        Snippet.REPLAYED: REPLAYED,
        Snippet.AGAIN: AGAIN,
        Snippet.TRACED: TRACED,
        Snippet.RECORDED: RECORDED,
    }
)
