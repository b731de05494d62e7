"""nn.Module + nested arguments -> for a while, the same module from a tuple of tensors to another.

What exports a program then meets tensors only; how arguments and results hold them is noted here.
Plain values are part of the program, as they are for `torch.export` itself.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from fusewright.common.call_arguments import call, like
from fusewright.common.containers import Tree, Unknown, changed, containers, flatten, rebuilt, taken
from fusewright.errors import CaptureFailed
from fusewright.frontend.carried_state import NOTHING, Carried, bound
from fusewright.frontend.data_positions import TensorPositions

HOOKS = ("_forward_hooks", "_forward_pre_hooks")


@dataclass
class Flat:
    """trees: how each argument holds its tensors.  tensors: of all arguments, in order, then of the
    attributes that forward replaces.  results: how the last run held its results, once there was
    one.  left: what it left in the attributes."""

    inputs: Sequence[object]
    trees: tuple[Tree, ...]
    tensors: tuple[torch.Tensor, ...]
    state: Carried
    results: Tree | None = None
    left: Carried = NOTHING

    def arguments(self, tensors: Sequence[object]) -> list[Any]:
        """The arguments with other tensors."""
        return like(self.inputs, rebuilt(self.trees, tensors))

    def run(self, module: nn.Module, forward: Any, tensors: Sequence[object]) -> list[torch.Tensor]:
        """The results of a call of `forward` with other tensors, and what it leaves."""
        behind = tensors[len(tensors) - len(self.state.tensors) :]
        with bound(module, self.state, behind) as left:
            self.results, results = run(module, forward, self.arguments(tensors))
            self.left = left()
        return [*results, *self.left.tensors]


def flat_arguments(module: nn.Module, inputs: Sequence[object], state: Carried = NOTHING) -> Flat:
    """The tensors among arguments; raises CaptureFailed for what is no container."""
    try:
        trees, tensors = taken(inputs)
    except Unknown as error:
        raise CaptureFailed(
            f"{type(module).__name__}.forward is given {error} at argument {error.path}. Give it "
            "tensors, numbers or text, or containers of them: lists, tuples, dicts, named tuples, "
            "dataclasses."
        ) from error
    return Flat(inputs, trees, (*tensors, *state.tensors), state)


@contextmanager
def flattened(
    module: nn.Module, inputs: Sequence[object], state: Carried = NOTHING
) -> Iterator[Flat]:
    """Within the block, `module(tensors)` takes and returns tuples of tensors.

    state: attributes that forward replaces, which are arguments and results like others.

    The module's own hooks stay out of it: whoever calls it runs them around `forward`.
    """
    found, kind = flat_arguments(module, inputs, state), type(module)
    kept = {name: vars(module)[name] for name in (*HOOKS, "forward") if name in vars(module)}

    def forward(tensors: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
        # As the class has it at the call: traces put another one in its place.
        original = kept.get("forward", kind.forward.__get__(module))
        return tuple(found.run(module, original, tensors))

    vars(module).update({name: OrderedDict() for name in HOOKS}, forward=forward)
    try:
        yield found
    finally:
        del vars(module)["forward"]
        vars(module).update(kept)


def run(
    module: nn.Module, forward: Any, given: Sequence[object]
) -> tuple[Tree, Sequence[torch.Tensor]]:
    """One run's results; raises CaptureFailed where it cannot be said again by a file."""
    kind = type(module).__name__
    before = [pair for value in given for pair in containers(value)]
    try:
        with TensorPositions():
            results = call(forward, given)
    except (Exception, KeyboardInterrupt):
        raise
    except BaseException as error:  # sys.exit() and the like shall not end whoever captures
        raise CaptureFailed(f"{kind}.forward raises {type(error).__name__}.") from error
    touched = changed(before)
    if touched is not None:
        raise CaptureFailed(
            f"{kind}.forward changes the {type(touched).__name__} that it is given: whoever calls "
            "it would miss that. Return what is new."
        )
    try:
        return flatten(results)
    except Unknown as error:
        where = f" at {error.path}" if error.path else ""
        raise CaptureFailed(
            f"{kind}.forward returns {error}{where}. Return tensors, numbers or text, or "
            "containers of them: tuples, lists, dicts, named tuples, dataclasses."
        ) from error
