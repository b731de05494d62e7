"""Graph -> Graph: running sums and products become nodes, where kernels of the target take them.

They are library calls before, since which rows these are depends on the target. A call that stays
one says why, in its `call`. Turned there and back, a scan is one from the end:

    flip(cumsum(flip(x)))  ->  cumsum_back(x)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from fusewright.common.dtypes import OF_KERNELS
from fusewright.frontend.library_calls import because
from fusewright.frontend.lowering import with_memory_order
from fusewright.frontend.lowering.call import LEAST_BESIDE, abreast, beside
from fusewright.ir import decompositions
from fusewright.ir.builder import TensorExpr, cast, rounded
from fusewright.ir.graph import Graph, Node, Size, node, numel, rebuild
from fusewright.ir.library_call import Scalar
from fusewright.ir.operators import OPS
from fusewright.kernels.rowwise.simd_rows import LONGEST_ABREAST
from fusewright.rewrite.simplify import apart, traced
from fusewright.targets.target import Target

CALLS = MappingProxyType({f"aten.{op.name}": op.name for op in OPS.values() if op.reversed_as})
# A row stays in the registers of a thread block, or in a core's share of the last cache. On a GPU,
# other rows are taken in chunks.
LONGEST: Mapping[str, int] = MappingProxyType({"cuda": 1 << 14, "cpp": 1 << 20})


def scan(graph: Graph, target: Target) -> Graph:
    """Write cumsum and cumprod with our operators, where the target's kernels take their rows."""

    def change(n: Node) -> Node:
        if n.called == "aten.flip":
            return _turned(n)
        return _written(n, cpu=target.language == "cpp") if n.called in CALLS else n

    return apart(graph, rebuild(traced(graph), change))


def has_chunks(members: Sequence[Node]) -> bool:
    """Whether a GPU scans the rows of a kernel chunk by chunk."""
    return any(m.row.kind == "scan" and in_chunks(m) for m in members)


def in_chunks(n: Node) -> bool:
    """Whether a scan on a GPU goes along rows that a team cannot keep in its registers."""
    dims = n["dims"]
    assert isinstance(dims, tuple)
    (dim,) = dims
    assert isinstance(dim, int)
    return _outgrown(n.shape[dim], LONGEST["cuda"]) or _across(n, dim)


def _written(n: Node, *, cpu: bool) -> Node:
    dim = _dim(n)
    why = _complaint(n, dim, cpu=cpu)
    if not why:
        return _scanned(n, CALLS[n.call.name], TensorExpr(n.args[0]), dim)
    return because(n, why)


def _dim(n: Node) -> int:
    """The dimension of a call. Its third argument, a type, is the result's."""
    dim = n.call.argument(1, "dim")
    assert isinstance(dim, Scalar), "the dimension of a scan is known"
    assert isinstance(dim.plain, int), "the dimension of a scan is a number"
    return dim.plain % max(len(n.shape), 1)


def _complaint(n: Node, dim: int, *, cpu: bool) -> str:
    """Why our kernels do not compute a scan, or ""."""
    if not {n.dtype, n.args[0].dtype} <= OF_KERNELS or not n.shape or numel(n.shape) == 0:
        return "numbers that no kernel computes, one number, or none"
    return (_cpu_complaint if cpu else _gpu_complaint)(n, dim)


def _cpu_complaint(n: Node, dim: int) -> str:
    size, longest = n.shape[dim], LONGEST["cpp"]
    if not isinstance(size, int):
        return "its rows are as long as the batch"
    if _across(n, dim):
        fits = abreast(TensorExpr(n), [dim]) and 1 < size <= LONGEST_ABREAST
        return "" if fits else "its rows lie across memory"
    return f"rows of {size} outgrow a team, which takes {longest}" if size > longest else ""


def _gpu_complaint(n: Node, dim: int) -> str:
    if _across(n, dim):
        wide = n.shape[dim] != 1 and beside(TensorExpr(n), [dim]) >= LEAST_BESIDE
        return "" if wide else "its rows lie across memory"
    rest = numel(s for d, s in enumerate(n.shape) if d != dim)
    alone = rest == 1 and _outgrown(n.shape[dim], LONGEST["cuda"])
    return "one row alone outgrows a team" if alone else ""


def _across(n: Node, dim: int) -> bool:
    """Whether neighbours in memory are of different rows."""
    order = n.order or tuple(range(len(n.shape)))
    return n.shape[dim] == 1 or [d for d in order if n.shape[d] != 1][-1] != dim


def _outgrown(size: Size, longest: int) -> bool:
    return not isinstance(size, int) or size > longest


def _scanned(n: Node, op: str, x: TensorExpr, dim: int) -> Node:
    """The nodes that take the place of `n`: half types are scanned in float32."""
    x = x if n.dtype is x.dtype else rounded(x)
    wide = decompositions.wide(cast(x, n.dtype, rounds=True))
    made = node(op, [wide.node], shape=n.shape, dtype=wide.dtype, order=n.order, dims=(dim,))
    return with_memory_order(cast(TensorExpr(made), n.dtype), n.order).node


def _turned(n: Node) -> Node:
    """The flip of a scan of a flip is a scan from the end; any other stays what it is."""
    scanned = _below_cast(n.args[0])
    if not scanned.row.reversed_as:
        return n
    source = _below_cast(scanned.args[0])
    if source.called != "aten.flip":
        return n
    # Between the flips, half types are widened and rounded once, and others do not change.
    plain = n.dtype in (scanned.dtype, source.dtype) and n.args[0].order == n.order
    if not plain or any(_flipped(f) != scanned["dims"] for f in (n, source)):
        return n
    dim = _flipped(n)[0]
    return _scanned(n, scanned.row.reversed_as, TensorExpr(source.args[0]), dim)


def _flipped(n: Node) -> tuple[int, ...]:
    """The dimensions of a flip."""
    found = n.call.bind(n.args)
    assert found is not None, "a flip takes a list of numbers"
    return tuple(d % len(n.shape) for d in found.args[1])


def _below_cast(n: Node) -> Node:
    return n.args[0] if n.op == "cast" else n
