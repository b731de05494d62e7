"""Graph -> Graph: where a kernel reads a tensor's bits as another type, it reads the tensor itself.

`x.view(torch.int32)` shares the memory of x, so it is a library call at first, which is right for
outputs and for other calls. A kernel that reads it needs no memory: it takes the element of x, and
the operator `bitcast` gives its bits. Other widths change the shape, and stay calls.

A kernel computes half types in float32, and a conversion may give a NaN other bits. So a half
tensor that is only moved (a copy, a choice) is moved as integers where a model reads its bits.
"""

from __future__ import annotations

import torch

from fusewright.common.dtypes import HALF, OF_KERNELS
from fusewright.ir.builder import TensorExpr, bitcast, constant
from fusewright.ir.graph import Graph, Node, base, node, replaced, toposort, with_args
from fusewright.ir.library_call import FUNCTIONS, DtypeRef, LibraryCall, TensorRef

VIEW_AS_TYPE = "aten.view.dtype"


def bits(graph: Graph) -> Graph:
    """Let kernels read bits where they lie."""
    return _read_where_they_lie(_moved_as_integers(graph))


def _moved_as_integers(graph: Graph) -> Graph:
    """Halves that are moved, and whose bits are read, are moved as integers of 16 bits."""
    every = toposort((*graph.inputs, *graph.roots))
    read = {id(base(n.args[0])) for n in every if _views_as_type(n)}

    def change(n: Node, asked: bool) -> Node:
        moves = asked and n.row.moves_bits and n.dtype in HALF
        moved = _as_integers(n) if moves else None
        return _viewed(moved, n.dtype) if moved else n

    new: dict[int, Node] = {}
    for n in every:
        args = tuple(new[id(a)] for a in n.args)
        same = all(map(_same, args, n.args))
        new[id(n)] = change(n if same else with_args(n, args), id(n) in read)
    return replaced(graph, new)


def _views_as_type(n: Node) -> bool:
    return n.called == VIEW_AS_TYPE


def _as_integers(n: Node) -> Node | None:
    """The bits of a half tensor as integers; None where something is computed for it."""
    if n.op == "constant":
        value = n["value"]
        assert isinstance(value, int | float)
        held = torch.tensor(value, dtype=n.dtype).view(torch.int16)
        return constant(held.item(), torch.int16).node
    if n.row.kind in ("leaf", "library"):
        return _viewed(n, torch.int16)
    if n.row.kind != "view" and not n.row.moves_bits:
        return None
    args = [a if a.dtype is not n.dtype else _as_integers(a) for a in n.args]
    known = [a for a in args if a is not None]
    if len(known) < len(args):
        return None
    return node(n.op, known, shape=n.shape, dtype=torch.int16, order=n.order, **dict(n.attributes))


def _viewed(x: Node, dtype: torch.dtype) -> Node:
    """The memory of x read as another type of the same width, which PyTorch does."""
    if _views_as_type(x) and x.args[0].dtype is dtype:
        return x.args[0]
    args = TensorRef(0), DtypeRef(dtype)
    call = LibraryCall("aten.view", "dtype", FUNCTIONS[VIEW_AS_TYPE], args)
    return node("library", [x], shape=x.shape, dtype=dtype, order=x.order, call=call)


def _read_where_they_lie(graph: Graph) -> Graph:
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
    if _views_as_type(n) and casts(n.args[0], n):
        return bitcast(TensorExpr(below[id(n.args[0])]), n.dtype).node
    return stored


def casts(x: Node, n: Node) -> bool:
    """Whether `bitcast` gives every bit of x as the type of n.

    A bool has one bit. A half type is computed in float32, where NaN loses what else is in it: so
    what lies in memory already is left there.
    """
    kinds = {x.dtype, n.dtype}
    known = kinds <= OF_KERNELS - {torch.bool} and x.dtype.itemsize == n.dtype.itemsize
    return known and (x.dtype not in HALF or base(x).row.computed)
