"""What one call leaves to the next: attributes that `forward` replaces, a hidden state for example.

    self.h = torch.tanh(self.w(x) + self.u(self.h))

Such an attribute is one more argument of the graph, its value before the call, and one more result,
its value behind it. It is a plain attribute or a buffer, and holds a tensor, or a container of
tensors and plain values. A model that begins with another kind of value (None, until there was a
first call) is captured in the state that it settles in: the guard sends calls from any other state
to the original `forward`, which leaves that one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from fusewright.common.containers import (
    Container,
    Slot,
    Tree,
    Unknown,
    flatten,
    leaves,
    rebuilt,
    taken,
)
from fusewright.errors import CaptureFailed
from fusewright.frontend.refusals import running_line

CALLS = 3  # after so many, a state must have settled
ABSENT = object()


class Unsettled(CaptureFailed):
    """A state that no call leaves as it found it."""


@dataclass(frozen=True, order=True)
class Place:
    """An attribute of a submodule; the root's path is ""."""

    path: str
    name: str

    def __str__(self) -> str:
        return f"{self.path}.{self.name}".removeprefix(".")


Values = Mapping[Place, object]


@dataclass(frozen=True)
class Carried:
    """What replaced attributes hold: one tree for each place, numbering the tensors of all.

    absent: places of attributes that are yet to be.
    """

    places: tuple[Place, ...] = ()
    trees: tuple[Tree, ...] = ()
    tensors: tuple[torch.Tensor, ...] = ()
    absent: tuple[Place, ...] = ()

    def values(self, tensors: Sequence[object]) -> Values:
        """The attributes with other tensors."""
        return dict(zip(self.places, rebuilt(self.trees, tensors), strict=True))


NOTHING = Carried()


def carried(values: Values, absent: Sequence[Place] = ()) -> Carried:
    """What holds at these places; raises CaptureFailed for what cannot be an argument."""
    for place, value in values.items():
        try:
            flatten(value)
        except Unknown as error:
            raise CaptureFailed(
                f"forward keeps {error} in the attribute {place}{error.path}. Keep tensors, "
                "numbers or text there, or containers of them."
            ) from error
    trees, tensors = taken([*values.values()])
    return Carried(tuple(values), trees, tensors, tuple(absent))


def held(module: nn.Module, places: Sequence[Place]) -> Values:
    """What the attributes are now; without those that do not exist."""
    found = {}
    for place in places:
        value = _registry(module, place).get(place.name, ABSENT)
        if value is not ABSENT:
            found[place] = value
    return found


def put(module: nn.Module, places: Sequence[Place], values: Values) -> None:
    """Give the attributes these values; those without one do not exist afterwards."""
    for place in places:
        registry = _registry(module, place)
        if place in values:
            registry[place.name] = values[place]
        else:
            registry.pop(place.name, None)


@contextmanager
def bound(
    module: nn.Module, given: Carried, tensors: Sequence[object]
) -> Iterator[Callable[[], Carried]]:
    """Within the block, the attributes hold other tensors; what is yielded says what they hold
    then. Behind it they are as before. Buffers are plain attributes meanwhile: torch.export would
    take a new one for a write to the old one."""
    every = (*given.places, *given.absent)
    owners = {place: module.get_submodule(place.path) for place in every}
    buffers = {id(owner): (owner, dict(owner._buffers)) for owner in owners.values()}
    for place, owner in owners.items():
        owner._buffers.pop(place.name, None)
    plain = held(module, every)
    put(module, every, given.values(tensors))
    try:
        yield lambda: _left(module, every)
    finally:
        put(module, every, plain)
        for owner, registered in buffers.values():  # in the order that they had
            owner._buffers.clear()
            owner._buffers.update(registered)


@contextmanager
def noted(module: nn.Module) -> Iterator[dict[Place, str]]:
    """Within the block, attributes that are set on the module or its children are noted, with the
    line that does it. Those that hold tensors, before or afterwards, stay in the note, and are put
    back."""
    before: dict[tuple[str, str], object] = {
        (path, name): value
        for path, child in module.named_modules()
        for name, value in (*vars(child).items(), *child._buffers.items())
    }
    paths = {id(child): path for path, child in module.named_modules()}
    original = nn.Module.__setattr__
    after: dict[Place, object] = {}
    found: dict[Place, str] = {}
    lines: dict[Place, str] = {}

    def watch(self: nn.Module, name: str, value: Any) -> None:
        old = self._buffers.get(name, vars(self).get(name, ABSENT))
        original(self, name, value)
        line = running_line("__setattr__")
        if not line or id(self) not in paths or name in {**self._parameters, **self._modules}:
            return
        if value is old and Place(paths[id(self)], name) not in after:
            return  # `self.count += 1` of a tensor
        place = Place(paths[id(self)], name)
        after[place], lines[place] = _registry(module, place).get(name, ABSENT), line

    nn.Module.__setattr__ = watch  # type: ignore[method-assign]
    try:
        yield found
    finally:
        nn.Module.__setattr__ = original  # type: ignore[method-assign]
        for place, new in after.items():
            old = before.get((place.path, place.name), ABSENT)
            if new is not old and (holds_tensors(old) or holds_tensors(new)):
                found[place] = lines[place]
                put(module, [place], {} if old is ABSENT else {place: old})


def holds_tensors(value: object) -> bool:
    """Whether it is a tensor or a container with one."""
    try:
        return value is not ABSENT and bool(flatten(value)[1])
    except Unknown:
        return False


def settled(
    module: nn.Module, places: Mapping[Place, str], step: Callable[[Carried], Carried]
) -> Carried:
    """The first state that a call leaves as it found it, in all but its numbers.

    places: and the lines that replace them.  step: what a call leaves, given what it finds. Raises
    Unsettled where kinds or sizes go on changing.
    """
    every, other = sorted(places), list[Place]()
    here = held(module, every)
    state = carried(here, [place for place in every if place not in here])
    for _ in range(CALLS):
        after = step(state)
        other = [p for p in every if _kind(after, p) != _kind(state, p)]
        if not other:
            return state
        state = _with_memory(after)
    raise Unsettled(
        f"{places[other[0]]}: {type(module).__name__}.forward replaces {other[0]} by a value of "
        "another size or kind at each call. Keep a tensor of a fixed size, and write to its places."
    )


def _registry(module: nn.Module, place: Place) -> dict[str, Any]:
    """Where the module keeps the attribute."""
    child = module.get_submodule(place.path)
    found: dict[str, Any] = child._buffers if place.name in child._buffers else vars(child)
    return found


def _left(module: nn.Module, places: Sequence[Place]) -> Carried:
    values = held(module, places)
    gone = [str(place) for place in places if place not in values]
    if gone:
        raise CaptureFailed(
            f"{type(module).__name__}.forward deletes the attribute {gone[0]}. Set it to None."
        )
    return carried(values)


def _kind(state: Carried, place: Place) -> object:
    """Everything about an attribute but the numbers in its tensors; None if there is none."""
    if place not in state.places:
        return None
    tree = state.trees[state.places.index(place)]
    found = (state.tensors[n.number] if isinstance(n, Slot) else n.value for n in leaves(tree))
    laid = [
        (tuple(v.shape), v.dtype, v.device) if isinstance(v, torch.Tensor) else repr(v)
        for v in found
    ]
    return _outline(tree), laid


def _outline(tree: Tree) -> object:
    if not isinstance(tree, Container):
        return None
    return tree.type, tree.keys, tree.extra, tuple(map(_outline, tree.inside))


def _with_memory(state: Carried) -> Carried:
    """The same with zeros for tensors that a run has only sketched."""
    made = tuple(
        torch.empty_strided(t.shape, t.stride(), dtype=t.dtype, device=t.device).zero_()
        for t in state.tensors
    )
    return Carried(state.places, state.trees, made)
