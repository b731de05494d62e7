"""Problem -> the arguments of `forward` to plan for, without drawing large ones.

Drawing 8 GB takes a CPU half a minute, and planning reads none of it. Where all that `get_inputs`
does can be read (`understood_functions.py`), it runs on fake tensors, which have sizes, strides,
types and memories, but no values; then tensors of untouched memory take their places. Whatever asks
for a value there, calls an operator whose layout is not certain, or makes something else than plain
tensors of the CPU, is called as it always was. So are problems whose tensors are drawn at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from fusewright.common.call_arguments import Inputs, like
from fusewright.common.containers import rebuilt, taken
from fusewright.common.problem_file import Problem
from fusewright.errors import UnusableProblem
from fusewright.frontend.understood_functions import is_understood
from fusewright.frontend.untouched_memory import LARGE, placed, untouched

ROWS = torch.contiguous_format

# Operators whose results lie the same with and without values: whatever they are given, ...
ALWAYS = (
    *("rand", "randn", "randint", "randperm", "empty", "empty_strided", "zeros", "ones", "full"),
    *("new_empty", "new_zeros", "new_ones", "new_full", "arange", "linspace", "eye", "lift_fresh"),
    *("scalar_tensor", "device", "detach", "alias", "unsqueeze", "squeeze", "transpose", "t"),
    *("permute", "expand", "select", "slice", "split", "split_with_sizes", "unbind", "diagonal"),
    *("narrow", "as_strided", "mm", "bmm"),
)
# ... if they write to their first argument, ...
IN_PLACE = (
    "normal_",
    "uniform_",
    "random_",
    "exponential_",
    "bernoulli_",
    "fill_",
    "zero_",
    "copy_",
)
# ... and if all that they are given lies row by row, as what PyTorch calls pointwise does. In
# other orders PyTorch's two ways of finding strides differ, and where sizes are 0 or 1.
OF_ROWS = (
    *("normal", "bernoulli", "rand_like", "randn_like", "randint_like", "empty_like", "zeros_like"),
    *("ones_like", "full_like", "_to_copy", "clone", "view", "_unsafe_view", "reshape", "cat"),
    *("stack", "tril", "triu", "_softmax", "_log_softmax", "cumsum", "sum", "mean", "amax", "amin"),
    *("repeat", "flip", "roll", "constant_pad_nd", "linalg_vector_norm"),
)


@dataclass(frozen=True)
class Example:
    """Arguments of `forward`. drawn: whether they have the values that get_inputs() gave them;
    if not, they only lie as such ones would."""

    inputs: Sequence[object]
    drawn: bool

    def values(self, problem: Problem) -> Sequence[object]:
        """The arguments as get_inputs() gives them."""
        return self.inputs if self.drawn else problem.make_inputs()


def example(problem: Problem) -> Example:
    """What to plan for; the caller sets the random state."""
    sketched = _sketch(problem)
    if sketched is None:
        return Example(problem.make_inputs(), drawn=True)
    return Example(sketched, drawn=False)


def _sketch(problem: Problem) -> Inputs | None:
    """Large inputs without their values; None where drawing them is cheap, or needed to know."""
    if not is_understood("get_inputs", problem.source, vars(problem.module)):
        return None
    try:
        with FakeTensorMode(allow_fallback_kernels=False), _OnlyKnown():
            inputs = problem.make_inputs()
    except (UnusableProblem, _Unsure):
        return None
    trees, fakes = taken(inputs)
    if not all(map(_is_plain, fakes)) or sum(_memories(fakes).values()) < LARGE:
        return None
    try:
        storages = {key: untouched(size) for key, size in _memories(fakes).items()}
    except OSError:
        return None
    made = {id(fake): _laid_like(fake, storages[_memory(fake)]) for fake in fakes}
    return like(inputs, rebuilt(trees, [made[id(fake)] for fake in fakes]))


class _Unsure(Exception):
    """An operator was called that may lay its result otherwise, or reads values."""


class _OnlyKnown(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Within the block, no other operators are called."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: Any = (), kwargs: Any = None
    ) -> Any:
        name = str(func.name()).rpartition("::")[2].partition(".")[0]
        pointwise = torch.Tag.pointwise in func.tags
        if name not in ALWAYS and not (name in IN_PLACE or (pointwise and name.endswith("_"))):
            given = [t for t in tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor)]
            rows = all(t.stride() == _strides_of_rows(t.shape) for t in given)
            again = name == "clone" and (kwargs or {}).get("memory_format") is ROWS
            if not (again or ((pointwise or name in OF_ROWS) and rows)):
                raise _Unsure(name)
        return func(*args, **(kwargs or {}))


def _strides_of_rows(shape: Sequence[int]) -> tuple[int, ...]:
    steps = [1]
    for size in reversed(shape[1:]):
        steps.append(steps[-1] * max(size, 1))
    return tuple(reversed(steps[: len(shape)]))


def _is_plain(tensor: torch.Tensor) -> bool:
    """Whether it is a tensor of the CPU of which sizes, strides, type and memory say all."""
    special = tensor.is_conj() or tensor.is_neg() or tensor.is_inference()
    special |= isinstance(tensor, torch.nn.Parameter) or tensor.grad_fn is not None
    strided = type(tensor) is FakeTensor and tensor.layout is torch.strided
    return strided and tensor.device.type == "cpu" and not special


def _memory(tensor: torch.Tensor) -> int:
    key: int = tensor.untyped_storage()._cdata
    return key


def _memories(tensors: Sequence[torch.Tensor]) -> dict[int, int]:
    """The bytes of each memory in which some of them lie."""
    return {_memory(t): t.untyped_storage().nbytes() for t in tensors}


def _laid_like(fake: torch.Tensor, storage: torch.UntypedStorage) -> torch.Tensor:
    shape, strides = tuple(fake.shape), fake.stride()
    made = placed(storage, int(fake.storage_offset()), shape, strides, fake.dtype)
    return made.requires_grad_(fake.requires_grad)
