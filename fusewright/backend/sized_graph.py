"""A graph of PyTorch's compiler -> a module of it that takes nothing but tensors.

With dynamic shapes a graph takes sizes of its tensors as arguments of their own. A size that is
found among the tensors is read from there instead, so that it stays free where the tensor's is. A
number of Python that may change comes as a tensor, of which the graph asks for the number; here it
is a number again, for which there are kernels of their own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.fx import GraphModule, Node

from fusewright.frontend.asked_size import AskedSize, word_of
from fusewright.frontend.program import is_fixed


class Graph(nn.Module):
    """A graph as a model like any other. graph: takes what `forward` gets, by position."""

    def __init__(self, graph: GraphModule) -> None:
        super().__init__()
        self.graph = graph

    def forward(self, *arguments: Any) -> Any:
        return self.graph(*arguments)


@dataclass(frozen=True)
class SizedGraph:
    """module: the graph, which takes what stands at these positions among its own arguments; of
    those at `numbers`, the number.

    changing: positions, among what the module takes, of what may have other sizes, or be another
    number, at the next call.  free: where, among the tensors that the module takes, the first size
    is that is free.
    """

    module: Graph
    kept: tuple[int, ...]
    numbers: frozenset[int]
    changing: tuple[int, ...]
    free: AskedSize

    def arguments(self, given: Sequence[Any]) -> list[Any]:
        """What the module takes, of the arguments of the graph."""
        return [given[k].item() if k in self.numbers else given[k] for k in self.kept]


def without_sizes(given: GraphModule) -> SizedGraph:
    """The graph without arguments that are sizes of others."""
    graph, copies = torch.fx.Graph(), dict[Node, Node]()
    places = [n for n in given.graph.nodes if n.op == "placeholder"]
    found = _sizes(places)
    kept = [k for k, place in enumerate(places) if place not in found]
    for k in kept:
        copies[places[k]] = graph.node_copy(places[k], copies.__getitem__)
    for place, (tensor, dim) in found.items():
        copies[place] = graph.call_function(torch.ops.aten.sym_size.int, (copies[tensor], dim))
    for n in given.graph.nodes:
        if n.op != "placeholder":
            copies[n] = graph.node_copy(n, copies.__getitem__)
    numbers = {k for k in kept if _is_number(places[k])}
    for n in (n for k in numbers for n in places[k].users):
        copies[n].replace_all_uses_with(copies[n.args[0]])
        graph.erase_node(copies[n])
    values = {k: None if k in numbers else _example(places[k]) for k in kept}
    changing = tuple(at for at, k in enumerate(kept) if k in numbers or not is_fixed(values[k]))
    module, free = Graph(GraphModule(given, graph)), _free_size([*values.values()])
    return SizedGraph(module, tuple(kept), frozenset(numbers), changing, free)


def _is_number(place: Node) -> bool:
    """Whether all that the graph wants of a tensor is its number."""
    items = [n for n in place.users if n.op == "call_method" and n.target == "item"]
    return bool(items) and len(items) == len(place.users)


def _free_size(values: Sequence[object]) -> AskedSize:
    """All places of the first size that is free."""
    tensors = [value for value in values if isinstance(value, torch.Tensor)]
    sizes: list[tuple[tuple[int, int], Any]] = [
        ((k, d), size) for k, t in enumerate(tensors) for d, size in enumerate(t.shape)
    ]
    free = [(at, s.node.expr) for at, s in sizes if isinstance(s, torch.SymInt)]
    places = frozenset(at for at, size in free if size == free[0][1])
    return AskedSize(places, word_of(places))


def _sizes(places: Sequence[Node]) -> Mapping[Node, tuple[Node, int]]:
    """Arguments that are a size of another one: which, and of what dimension."""
    dims: dict[Any, tuple[Node, int]] = {}
    for place in places:
        value = _example(place)
        for dim, size in enumerate(value.shape if isinstance(value, torch.Tensor) else ()):
            if isinstance(size, torch.SymInt):
                dims.setdefault(size.node.expr, (place, dim))
    found = {}
    for place in places:
        value = _example(place)
        if isinstance(value, torch.SymInt) and value.node.expr in dims:
            found[place] = dims[value.node.expr]
    return found


def _example(place: Node) -> Any:
    """What an argument is, as Dynamo or AOTAutograd has noted it."""
    return place.meta.get("example_value", place.meta.get("val"))
