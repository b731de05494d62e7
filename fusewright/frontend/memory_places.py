"""Where tensors lie in memory: one without its values, and which of a model's lie in the same.

The exported program has every input, parameter and buffer at a place of its own, so a change of one
would not be seen in another. Where they only are read, that makes no difference; where `forward`
changes one of them, the model is refused, as the guard of an emitted file would refuse it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind, OutputKind

from fusewright.common.call_arguments import bound, like, signature_of
from fusewright.common.containers import Slot, leaves
from fusewright.errors import CaptureFailed
from fusewright.frontend.flat_module import Flat
from fusewright.frontend.refusals import changed_in_common
from fusewright.frontend.untouched_memory import placed, untouched

CHANGES = (
    OutputKind.BUFFER_MUTATION,
    OutputKind.PARAMETER_MUTATION,
    OutputKind.USER_INPUT_MUTATION,
)


@dataclass(frozen=True)
class Laid:
    """A tensor argument without its values."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device

    @property
    def has_gaps(self) -> bool:
        """Whether its elements do not fill its memory, so that kernels would not take it."""
        wide = sorted((s, n) for s, n in zip(self.strides, self.shape, strict=True) if n != 1)
        expected = 1
        for step, size in wide:
            if step != expected:
                return 0 not in self.shape
            expected *= size
        return False

    @property
    def span(self) -> int:
        """How many elements its memory has, gaps among them."""
        last = sum((n - 1) * s for n, s in zip(self.shape, self.strides, strict=True))
        return 0 if 0 in self.shape else last + 1

    def tensor(self) -> torch.Tensor:
        """Zeros that lie like it."""
        if self.device.type == "cpu":
            storage = untouched(self.span * self.dtype.itemsize)
            return placed(storage, 0, self.shape, self.strides, self.dtype)
        memory = torch.zeros(self.span, dtype=self.dtype, device=self.device)
        return memory.as_strided(self.shape, self.strides)


def laid(tensor: torch.Tensor) -> Laid:
    """The tensor without its values."""
    return Laid(tuple(tensor.shape), tensor.stride(), tensor.dtype, tensor.device)


def apart(tensors: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
    """The same, but for zeros in place of each that has the memory of one before it."""
    met: set[int] = set()
    found = []
    for t in tensors:
        memory = t.untyped_storage().data_ptr() if _is_plain(t) else 0
        found.append(laid(t).tensor() if memory in met else t)
        met |= {memory} if memory else set()
    return tuple(found)


@contextmanager
def state_apart(module: nn.Module) -> Iterator[None]:
    """Within the block, each parameter, buffer and other tensor that the module and its children
    hold is another tensor, at a place of its own."""
    kept = [(held, name, t) for held, name, t in _held(module) if _is_plain(t)]
    for held, name, t in kept:
        other = laid(t).tensor()
        held[name] = nn.Parameter(other, t.requires_grad) if isinstance(t, nn.Parameter) else other
    try:
        yield
    finally:
        for held, name, t in kept:
            held[name] = t


def refused(program: ExportedProgram, module: nn.Module, flat: Flat) -> CaptureFailed | None:
    """The error for the first change of a tensor in whose memory another one lies that is read, if
    there is one. program: of the module with inputs apart, at least."""
    every = [*_leaves(program, module, flat)]
    (output,) = (n for n in program.graph.nodes if n.op == "output")
    for spec, value in zip(program.graph_signature.output_specs, output.args[0], strict=True):
        for own in (leaf for leaf in every if spec.kind in CHANGES and spec.target in leaf.keys):
            read = [leaf for leaf in every if leaf is not own and leaf.place.users]
            others = [leaf.name for leaf in read if _meet(own.tensor, leaf.tensor)]
            if others:
                return changed_in_common(value, type(module), own.name, others)
    return None


@dataclass(frozen=True)
class _Leaf:
    """A tensor that a program is given. keys: by which changes name it.  name: for people."""

    place: torch.fx.Node
    tensor: torch.Tensor
    keys: tuple[str, ...]
    name: str


def _leaves(program: ExportedProgram, module: nn.Module, flat: Flat) -> Iterator[_Leaf]:
    places = {n.name: n for n in program.graph.nodes if n.op == "placeholder"}
    given = zip(flat.tensors, _argument_names(module, flat), strict=True)
    for spec in program.graph_signature.input_specs:
        place = places.get(getattr(spec.arg, "name", ""))
        tensor: object
        if spec.kind is InputKind.USER_INPUT:
            tensor, name = next(given)
        else:
            tensor, name = _attribute(module, str(spec.target)), f"self.{spec.target}"
        if place is not None and isinstance(tensor, torch.Tensor):
            yield _Leaf(place, tensor, (place.name, str(spec.target)), name)


def _argument_names(module: nn.Module, flat: Flat) -> list[str]:
    """For each tensor, the parameter of `forward` or the attribute that it is, or is a part of."""
    names = [f"argument {k}" for k in range(len(flat.tensors))]
    signature = signature_of(type(module).forward, bound=False)
    try:
        found = dict(bound(signature, like(flat.inputs, flat.trees))) if signature else {}
    except TypeError:
        return names
    first = len(names) - len(flat.state.tensors)
    for name, value in found.items():
        _name(names, 0, name, value)
    for place, tree in zip(flat.state.places, flat.state.trees, strict=True):
        _name(names, first, f"self.{place}", tree)
    return names


def _name(names: list[str], first: int, name: str, value: Any) -> None:
    """Note the name of each tensor in a tree, or in those of `*these` and `**those`."""
    many = value.values() if isinstance(value, Mapping) else value
    for tree in many if isinstance(many, Iterable) else (value,):
        for leaf in leaves(tree):
            if isinstance(leaf, Slot):
                names[first + leaf.number] = name if leaf is value else f"a tensor in {name}"


def _attribute(module: nn.Module, path: str) -> object:
    here: object = module
    for part in path.split("."):
        here = getattr(here, part, None)
    return here


def _held(module: nn.Module) -> Iterator[tuple[dict[str, Any], str, torch.Tensor]]:
    """Each tensor that the module and its children hold by name: where, and the name."""
    for child in module.modules():
        for held in (child._parameters, child._buffers, vars(child)):
            for name, value in [*held.items()]:
                if isinstance(value, torch.Tensor):
                    yield held, name, value


def _is_plain(tensor: torch.Tensor) -> bool:
    """Whether its elements lie in memory of this process or of a GPU, and say where."""
    known = type(tensor) in (torch.Tensor, nn.Parameter) and tensor.layout is torch.strided
    return known and not (tensor.is_nested or tensor.is_meta or tensor.is_quantized)


def _meet(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether one lies within or between elements of the other, as the guard asks."""
    if not (_is_plain(a) and _is_plain(b)):
        return False
    (start, stop), (begin, end) = _span(a), _span(b)
    return start < end and begin < stop


def _span(tensor: torch.Tensor) -> tuple[int, int]:
    start = tensor.data_ptr()
    return start, start + laid(tensor).span * tensor.element_size()
