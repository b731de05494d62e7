"""Graph -> Graph: where a kernel reads a tensor's bits as another type, it reads the tensor itself.

`x.view(torch.int32)` shares the memory of x, so it is a library call at first, which is right for
outputs and for other calls. A kernel that reads it needs no memory: it takes the element of x, and
the operator `bitcast` gives its bits. Other widths change the shape, and stay calls.
"""

from __future__ import annotations

import torch

from fusewright.dtypes import HALF, OF_KERNELS
from fusewright.formula import Value, bitcast
from fusewright.ir import Graph, Node, base, replaced, toposort, with_args

VIEW_AS_TYPE = "aten.view.dtype"


def bits(graph: Graph) -> Graph:
    """Let kernels read bits where they lie."""
    memory: dict[int, Node] = {}  # a node -> the same, whose kernels read bits
    below: dict[int, Node] = {}  # a node -> what a kernel reads in its place
    for n in toposort((*graph.inputs, *graph.roots)):
        seen = below if n.row.computed else memory
        args = tuple(seen[id(a)] for a in n.args)
        memory[id(n)] = n if all(map(_same, args, n.args)) else with_args(n, args)
        below[id(n)] = _read(n, memory[id(n)], below)

    return replaced(graph, memory)


def _same(a: Node, b: Node) -> bool:
    return a is b


def _read(n: Node, stored: Node, below: dict[int, Node]) -> Node:
    """What a kernel reads for n, which is `stored` otherwise."""
    if n.row.kind == "view":
        inner = below[id(n.args[0])]
        return stored if inner is stored.args[0] else with_args(n, (inner,))
    if n.op == "library" and n["name"] == VIEW_AS_TYPE and casts(n.args[0], n):
        return bitcast(Value(below[id(n.args[0])]), n.dtype).node
    return stored


def casts(x: Node, n: Node) -> bool:
    """Whether `bitcast` gives every bit of x as the type of n.

    A bool has one bit. A half type is computed in float32, where NaN loses what else is in it: so
    what lies in memory already is left there.
    """
    kinds = {x.dtype, n.dtype}
    known = kinds <= OF_KERNELS - {torch.bool} and x.dtype.itemsize == n.dtype.itemsize
    return known and (x.dtype not in HALF or base(x).row.computed)
