"""Arguments and their dimensions, as a caller names them -> the size that is to stay free.

{"x": (1,)}          --dynamic x:1        the second size of the argument x
{"x": (0,), "y": (0,)}                    the leading size of both, which is one size
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import torch
from torch import nn

from fusewright.common.call_arguments import bound, like, signature_of
from fusewright.common.containers import Slot, Tree, leaves
from fusewright.errors import BadUsage
from fusewright.frontend.flat_module import flat_arguments
from fusewright.ir.graph import BATCH, LENGTH

Wanted = Mapping[str, Collection[int]]
NOTHING_ASKED: Wanted = MappingProxyType({})


@dataclass(frozen=True)
class AskedSize:
    """places: positions of tensors among all that are given, and dimensions of these.  text: as the
    caller would write it; "": nobody has."""

    places: frozenset[tuple[int, int]]
    text: str = ""

    @property
    def name(self) -> str:
        """What it is called in emitted text."""
        return BATCH if all(dim == 0 for _, dim in self.places) else LENGTH

    def of(self, tensors: Sequence[torch.Tensor]) -> int:
        """The size in the example; 0 where there is none."""
        return next((int(tensors[k].shape[d]) for k, d in sorted(self.places)), 0)


def leading(positions: Iterable[int]) -> AskedSize:
    """The leading size of these tensors."""
    return AskedSize(frozenset((k, 0) for k in positions))


def common_leading(tensors: Sequence[torch.Tensor]) -> AskedSize:
    """The leading size of the first tensor that has one, and of all others with the same."""
    size = next((v.shape[0] for v in tensors if v.dim()), None)
    return leading(k for k, v in enumerate(tensors) if v.dim() and v.shape[0] == size)


def asked_size(module: nn.Module, inputs: Sequence[object], wanted: Wanted) -> AskedSize | None:
    """The size that `wanted` names, if it does; raises BadUsage where these are not dimensions of
    one size."""
    if not wanted:
        return None
    text = ", ".join(f"{name}:{','.join(map(str, dims))}" for name, dims in wanted.items())
    flat, signature = (
        flat_arguments(module, inputs),
        signature_of(type(module).forward, bound=False),
    )
    if signature is None:
        raise BadUsage(f"{text}: {type(module).__name__}.forward does not say its arguments.")
    tensors = flat.tensors
    try:
        given = bound(signature, like(inputs, flat.trees))
    except TypeError as error:
        raise BadUsage(f"{text}: forward cannot be called with these inputs: {error}.") from error
    places: dict[tuple[int, int], int] = {}
    for name, dims in wanted.items():
        if name not in given:
            raise BadUsage(f"{text}: forward is given no {name}; choose among {', '.join(given)}.")
        slots = [k for tree in _trees(given[name]) for k in _numbers(tree)]
        if not slots:
            raise BadUsage(f"{text}: {name} is given no tensor.")
        for k in slots:
            for dim in dims:
                rank = tensors[k].dim()
                if not -rank <= dim < rank:
                    raise BadUsage(f"{text}: {name} has {rank} dimensions.")
                places[k, dim % rank] = int(tensors[k].shape[dim])
    several = len({k for k, _ in places}) < len(places)
    if several or len(dict.fromkeys(places.values())) > 1:
        found = " and ".join(map(str, places.values()))
        raise BadUsage(f"{text}: one size can be free, and these are several: {found}.")
    return AskedSize(frozenset(places), text)


def _trees(value: object) -> Iterable[Tree]:
    """What one parameter gets: several for `*these` and `**those`."""
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, tuple) else (value,)


def _numbers(tree: Tree) -> list[int]:
    return [leaf.number for leaf in leaves(tree) if isinstance(leaf, Slot)]
