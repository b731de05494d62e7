"""Attributes of a model that its forward changes and reads again: a hidden state, a counter.

Where the answers of a model depend on them, they are arguments and results like others: each call
begins with values that the judge has chosen, and what it leaves is compared with what eager leaves.
A candidate has them under the names that the reference has.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from fusewright.common.call_arguments import Absent, places_of
from fusewright.judge.evidence.pytree import mapped
from fusewright.judge.isolation.tensor_transport import UnusableOutput, encode

_INTERNAL = frozenset(vars(nn.Module()))


def give(model: nn.Module, inputs: Sequence[object]) -> None:
    """Bind the values that stand behind the arguments."""
    places = places_of(inputs)
    for place, value in zip(places, inputs[len(inputs) - len(places) :], strict=True):
        registry, name = _registry(model, place)
        if value is Absent:
            registry.pop(name, None)
        else:
            registry[name] = value


def with_left(model: nn.Module, inputs: Sequence[object], outputs: object) -> object:
    """The outputs of a call, and, if it was given values of attributes, what these are now."""
    places = places_of(inputs)
    return (outputs, {place: _value(model, place) for place in places}) if places else outputs


@dataclass(frozen=True)
class Beginning:
    """A model's attributes as they were: values as copies, and what tells whether one changed."""

    values: Mapping[str, Any]
    marks: Mapping[str, Any]

    def changed(self, model: nn.Module) -> list[str]:
        """Attributes that can be handed over and are not what they were."""
        now = _marks(model)
        names = [*self.marks, *(name for name in now if name not in self.marks)]
        return [name for name in names if not _same(self.marks.get(name), now.get(name))]

    def copies(self, places: Sequence[str]) -> list[object]:
        """The values that they had."""
        return list(mapped([self.values.get(p, Absent) for p in places], Tensor.clone))


def beginning(model: nn.Module) -> Beginning:
    """What a model is before anybody calls it."""
    found = dict(_attributes(model))
    values = mapped([*found.values()], Tensor.clone)
    return Beginning(dict(zip(found, values, strict=True)), _marks(model))


def _marks(model: nn.Module) -> dict[str, Any]:
    """Picture, tensors and their versions."""
    marks = {}
    for name, value in _attributes(model):
        tensors: list[Tensor] = []
        picture = encode(value, tensors)
        marks[name] = picture, tensors, [t._version for t in tensors if not t.is_inference()]
    return marks


def _same(a: Any, b: Any) -> bool:
    if a is None or b is None:
        return a is b
    pairs = zip(a[1], b[1], strict=False)
    return (a[0], a[2], len(a[1])) == (b[0], b[2], len(b[1])) and all(x is y for x, y in pairs)


def _attributes(model: nn.Module) -> Iterator[tuple[str, object]]:
    """Plain attributes and buffers that can be handed over, but those that PyTorch keeps."""
    for path, child in model.named_modules():
        kinds = [c for c in type(child).__mro__ if c.__module__.startswith("torch.nn.modules.")]
        for name, value in (*vars(child).items(), *child._buffers.items()):
            own = name.startswith("_") and len(kinds) > 1
            if name not in _INTERNAL and not own and _can_go(value):
                yield f"{path}.{name}".removeprefix("."), value


def _can_go(value: object) -> bool:
    try:
        encode(value, [])
    except UnusableOutput:
        return False
    return True


def _value(model: nn.Module, place: str) -> object:
    registry, name = _registry(model, place)
    return registry.get(name, Absent)


def _registry(model: nn.Module, place: str) -> tuple[dict[str, Any], str]:
    """Where the attribute is kept, and its name there."""
    path, _, name = place.rpartition(".")
    owner: Any = model
    for part in path.split(".") if path else ():
        owner = owner._modules.get(part)
        if owner is None:
            raise LookupError(f"the model has no {path}, of which forward changes {name}")
    return (owner._buffers if name in owner._buffers else vars(owner)), name
