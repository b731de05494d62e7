"""Calls of PyTorch's kernels -> an exception where they would read past memory or end CUDA.

The trusted worker tries arguments that get_inputs() never draws. What such a kernel cannot take is
no legal argument of the problem; and a worker without CUDA could judge nothing any more. On a GPU,
an index out of range is an assertion of the device, after which no call of the process works. So an
operator that reads whole numbers there is tried on the CPU first, which raises instead. A few
operators look nowhere; what they can take is written down here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from fusewright.common.dtypes import INTEGERS
from fusewright.judge.evidence.legal_inputs import is_short
from fusewright.judge.evidence.operator_observer import Observer
from fusewright.judge.evidence.pytree import tensors

VECTOR_BYTES = 16
ASSERTING_DEVICE = "cuda"  # where an index out of range ends all
Arguments = Mapping[str, Any]

# They assert on a GPU about values that are no whole numbers: probabilities, rates, masks.
_ASSERTING = {
    "_assert_async", "bernoulli", "binary_cross_entropy", "binomial", "masked_scatter",
    "multinomial", "poisson",
}  # fmt: skip
# They read no place that a number names, however they are called; trying them costs only time.
_HARMLESS = {
    "_local_scalar_dense", "_reshape_alias", "_unsafe_view", "all", "amax", "amin", "any", "argmax",
    "argmin", "cat", "constant_pad_nd", "copy", "cumsum", "fill", "flip", "masked_fill", "max",
    "min", "nonzero", "repeat", "roll", "sort", "stack", "sum", "topk", "tril", "triu", "zero",
}  # fmt: skip


class Watch(Observer):
    """Raises before a call that its arguments make fatal.

    While it learns, calls are those of the problem's own arguments, which are legal: what the CPU
    says against one of them only shows that it does not run this operator as a GPU does.
    """

    def __init__(self) -> None:
        super().__init__()
        self.learning = False
        self.needed = False  # has a call been seen that could be fatal?
        self._unlike: set[str] = set()

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        name = func.overloadpacket.__name__
        rule = RULES.get(name)
        if rule is not None:
            self.needed = True
            if (wrong := rule(_named(func, args, kwargs))) and not self.learning:
                raise RuntimeError(f"{func} {wrong}")
        if reads_places(func, args, kwargs):
            self.needed = True
            if name not in self._unlike:
                self._rehearse(name, func, args, kwargs)
        return func(*args, **kwargs)

    def _rehearse(self, name: str, func: Any, args: Any, kwargs: Any) -> None:
        values = name.rstrip("_") in _ASSERTING
        given, named = tree_map(lambda t: _stand_in(t, values=values), (args, kwargs))
        try:
            func(*given, **named)
        # Whatever the operator says.
        except Exception as error:
            if self.learning:
                self._unlike.add(name)
            elif not is_short(error):
                raise


def reads_places(func: Any, args: Any, kwargs: Mapping[str, Any]) -> bool:
    """Might this call, on a GPU, end CUDA for the process because of the values that it gets?"""
    name = func.overloadpacket.__name__.rstrip("_")
    if name in _HARMLESS or func.is_view or "device" in kwargs:
        return False
    given = [t for t in tensors([list(args), dict(kwargs)]) if t.device.type == ASSERTING_DEVICE]
    if name in _ASSERTING:
        return bool(given)
    return torch.Tag.pointwise not in func.tags and any(t.dtype in INTEGERS for t in given)


def _stand_in(value: object, *, values: bool) -> object:
    """On the CPU: whole numbers and masks as they are, others only if they are asked about."""
    if isinstance(value, torch.Generator):
        return None
    if not isinstance(value, Tensor):
        return value
    if values or value.dtype in INTEGERS or value.dtype is torch.bool:
        return value.detach().to("cpu", copy=True)
    return torch.empty_strided(value.size(), value.stride(), dtype=value.dtype, device="cpu")


# ---- what operators take that do not look --------------------------------------------------------


def _named(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Arguments:
    """The arguments by their names, defaults included."""
    schema = getattr(func, "_schema", None)
    names = [(a.name, a.default_value) for a in schema.arguments] if schema else []
    given = {name: default for name, default in names if default is not None}
    return {**given, **{n: v for (n, _), v in zip(names, args, strict=False)}, **kwargs}


def _between_vectors(given: Arguments) -> str:
    """Fused attention loads vectors from wherever a tensor begins."""
    held = [t for t in tensors(dict(given)) if t.device.type != "meta"]
    if any(t.data_ptr() % VECTOR_BYTES for t in held):
        return "cannot take a tensor that begins between two vectors"
    return ""


def _bags(given: Arguments) -> str:
    """A bag of embeddings ends where the next one begins."""
    offsets, count = given["offsets"], given["indices"].numel()
    if not offsets.numel():
        return ""
    ends = torch.cat([offsets.long(), offsets.new_full((1,), count).long()])
    if bool((ends < 0).any()) or bool((ends.diff() < 0).any()):
        return "cannot take offsets that do not rise from 0 to the number of indices"
    return ""


def _classes(given: Arguments) -> str:
    """The classes that targets name are looked up in each row of probabilities."""
    targets, classes = given["targets"], given["log_probs"].shape[-1]
    lengths = torch.as_tensor(given["target_lengths"], device=targets.device).reshape(-1)
    if bool((lengths < 0).any()) or not 0 <= int(given.get("blank", 0)) < classes:
        return "cannot take a negative length, or a blank that is no class"
    if targets.ndim > 1:  # what is behind a target's length is never read
        places = torch.arange(targets.shape[1], device=targets.device)
        used = targets[places < lengths[:, None]] if len(lengths) == len(targets) else targets
    else:
        used = targets[: int(lengths.sum())]
    if used.numel() and not 0 <= int(used.min()) <= int(used.max()) < classes:
        low, high = int(used.min()), int(used.max())
        return f"cannot take targets from {low} to {high} where there are {classes} classes"
    return ""


# By the operator's name: what is wrong with such arguments, or nothing.
RULES: Mapping[str, Callable[[Arguments], str]] = {
    **{
        f"_scaled_dot_product_{kind}_attention": _between_vectors
        for kind in ("efficient", "flash", "cudnn")
    },
    "_embedding_bag": _bags, "_embedding_bag_forward_only": _bags,
    "_ctc_loss": _classes, "_cudnn_ctc_loss": _classes,
}  # fmt: skip
