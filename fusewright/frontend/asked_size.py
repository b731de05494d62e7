"""Arguments and their dimensions, as a caller names them -> the sizes that are to stay free.

{"x": (1,)}              --dynamic x:1      the second size of the argument x
{"x": (0,), "y": (0,)}                      the leading size of both: one, if that is the same
{"x": (0, 1)}            --dynamic x:0,1    two sizes
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
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
    """places: positions of tensors among all that are given, and dimensions of these.  name: what
    it is called in emitted text.  text: as the caller would write it; "": nobody has."""

    places: frozenset[tuple[int, int]]
    name: str = BATCH
    text: str = ""

    def of(self, tensors: Sequence[torch.Tensor]) -> int:
        """The size in the example; 0 where there is none."""
        return next((int(tensors[k].shape[d]) for k, d in sorted(self.places)), 0)


def word_of(places: Iterable[tuple[int, int]]) -> str:
    """What a size at these places is called: the leading one is the batch."""
    return BATCH if all(dim == 0 for _, dim in places) else LENGTH


def common_leading(tensors: Sequence[torch.Tensor]) -> AskedSize:
    """The leading size of the first tensor that has one, and of all others with the same."""
    size = next((v.shape[0] for v in tensors if v.dim()), None)
    return AskedSize(
        frozenset((k, 0) for k, v in enumerate(tensors) if v.dim() and v.shape[0] == size)
    )


def asked_sizes(
    module: nn.Module, inputs: Sequence[object], wanted: Wanted
) -> tuple[AskedSize, ...] | None:
    """The sizes that `wanted` names, if it names any; raises BadUsage where it names none that
    there is.

    Sizes of different tensors that are equal in the example are one size. Those of one tensor are
    taken to be several first, so that of tensors of 8 by 8 the first sizes are one and the second
    ones another; `equal_ones` has them as one.
    """
    if not wanted:
        return None
    text = text_of(wanted)
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
    places: dict[tuple[int, int], str] = {}
    for name, dims in wanted.items():
        if name not in given:
            raise BadUsage(f"{text}: forward is given no {name}; choose among {', '.join(given)}.")
        slots = [k for tree in _trees(given[name]) for k in _numbers(tree)]
        if not slots:
            raise BadUsage(f"{text}: {name} is given no tensor.")
        for dim, k in product(dims, slots):
            rank = tensors[k].dim()
            if not -rank <= dim < rank:
                raise BadUsage(f"{text}: {name} has {rank} dimensions.")
            places[k, dim % rank] = f"{name}:{dim}"
    return tuple(_sizes(tensors, places))


def equal_ones(
    asked: Sequence[AskedSize], tensors: Sequence[torch.Tensor]
) -> tuple[AskedSize, ...]:
    """The sizes that are asked for, those that are equal in the example as one, as of a mask that
    has as many rows as columns."""
    found: dict[int, AskedSize] = {}
    for size in asked:
        known = found.setdefault(size.of(tensors), size)
        if known is not size:
            text = f"{known.text}, {size.text}"
            found[size.of(tensors)] = replace(known, places=known.places | size.places, text=text)
    return tuple(found.values())


def text_of(wanted: Wanted) -> str:
    """As it would be written behind `--dynamic`."""
    return ", ".join(f"{name}:{','.join(map(str, dims))}" for name, dims in wanted.items())


def _sizes(
    tensors: Sequence[torch.Tensor], places: Mapping[tuple[int, int], str]
) -> Iterator[AskedSize]:
    """Places by size, in the order in which they are named; each size has a name of its own."""
    found: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for k, d in places:
        size = int(tensors[k].shape[d])
        before = (e for j, e in places if j == k and e < d and tensors[k].shape[e] == size)
        found.setdefault((size, sum(1 for _ in before)), []).append((k, d))
    names = Counter[str]()
    for some in found.values():
        word = word_of(some)
        names[word] += 1
        name = word if names[word] == 1 else f"{word}_{names[word]}"
        yield AskedSize(
            frozenset(some), name, ", ".join(dict.fromkeys(places[place] for place in some))
        )


def _trees(value: object) -> Iterable[Tree]:
    """What one parameter gets: several for `*these` and `**those`."""
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, tuple) else (value,)


def _numbers(tree: Tree) -> list[int]:
    return [leaf.number for leaf in leaves(tree) if isinstance(leaf, Slot)]
