"""Graph -> Graph: library calls that kernels of the target compute as fast become our nodes.

They stay calls until the target is known, since what is faster differs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import MappingProxyType

from fusewright.common.dtypes import OF_KERNELS
from fusewright.frontend.lowering import as_stored, lower, reductions, with_memory_order
from fusewright.frontend.lowering.call import (
    LANES,
    LEAST_BESIDE,
    AtenCall,
    AtenResult,
    abreast,
    beside,
)
from fusewright.frontend.lowering.data_movement import MOVES, MOVES_OF_ROWS
from fusewright.frontend.lowering.losses import LOSSES
from fusewright.frontend.lowering.pooling import POOLS
from fusewright.ir.builder import TensorExpr, copy
from fusewright.ir.graph import Graph, Node, base, numel, on_other_memory, rebuild, toposort
from fusewright.ir.strided_view import strided_view
from fusewright.rewrite.simplify import apart, traced
from fusewright.targets.target import Target

# ATen name -> our nodes, from the call's arguments
Table = Mapping[str, Callable[..., TensorExpr | None]]
WRITTEN: Table = MappingProxyType({**MOVES, **POOLS, **LOSSES})
TABLES: Mapping[str, Table] = MappingProxyType(
    {"cpp": WRITTEN, "cuda": {**WRITTEN, **MOVES_OF_ROWS}}
)
NONE: Table = MappingProxyType({})
REDUCTIONS = frozenset(
    [*reductions.LOWER, "aten.layer_norm", "aten.rms_norm", "aten.instance_norm"]
)


# What PyTorch reduces at the speed of memory on a CPU: our kernels only win where they fuse, or
# where many rows lie side by side [m: cpu-0002, cpu-0004, cpu-0007].
FAST_ON_CPU = frozenset(f"aten.{name}" for name in ("sum", "mean", "amax", "amin"))
MANY_BESIDE = 2048


def _many_beside(_name: str, x: TensorExpr, dims: Sequence[int]) -> bool:
    return beside(x, dims) >= LEAST_BESIDE


def _in_lanes(name: str, x: TensorExpr, dims: Sequence[int]) -> bool:
    """Whether as many rows of floats lie side by side as a CPU takes together, and it pays."""
    fused = base(x.node).row.kind == "pointwise"
    least = MANY_BESIDE if name in FAST_ON_CPU and not fused else LANES
    return abreast(x, dims, least)


# Which reductions across memory a language's kernels compute as fast as PyTorch: by name, of which
# tensors, over which dimensions.
Across = Callable[[str, TensorExpr, Sequence[int]], bool]
ACROSS: Mapping[str, Across] = MappingProxyType({"cuda": _many_beside, "cpp": _in_lanes})


def lower_for_target(graph: Graph, target: Target) -> Graph:
    """Write the library calls of the tables above with our operators, where these are faster."""
    return written(graph, ACROSS[target.language], TABLES[target.language])


def written(graph: Graph, across: Across = _many_beside, calls: Table = TABLES["cuda"]) -> Graph:
    """The same on any target; across, calls: as on a GPU, or others of `ACROSS` and `TABLES`."""
    items = [n for n in toposort(graph.roots) if n.op == "getitem"]
    several = {id(n.args[0]) for n in items if n["index"] != 0}

    def change(n: Node) -> Node:
        if n.row.strided_only:
            return _through_copy(n)
        call = n.args[0] if n.op == "getitem" else n
        place = n["index"] if n.op == "getitem" else 0
        assert isinstance(place, int)
        table = calls if id(call) not in several else NONE
        made = _made(call, n, place, table, across)
        if made is None or (made.shape, made.dtype) != (n.shape, n.dtype):
            return n
        fresh = base(made.node).row.kind in ("pointwise", "reduction")
        ours = with_memory_order(made if fresh else copy(made), n.order).node
        return ours if ours.order == n.order else n

    # Once more, for the pieces that the first time has made.
    return apart(graph, rebuild(rebuild(traced(graph), change), change))


def _through_copy(n: Node) -> Node:
    """A piece of a copy of a piece is a piece of what was copied, if it lies somewhere at all."""
    (x,) = n.args
    if x.op != "copy" or x.placement.own_copy or not x.args[0].row.strided_only:
        return n
    deeper = on_other_memory(n, x, x.args[0])
    return n if strided_view(deeper) is None else deeper


def _made(source: Node, n: Node, place: int, table: Table, across: Across) -> TensorExpr | None:
    """Result number `place` of the call `source`. table: the formulas of calls with one result in
    use."""
    if source.op != "library" or source.call.effect is not None or _odd(n, source):
        return None
    name = source.call.name
    known = name in table or name in REDUCTIONS
    given = source.call.bind([TensorExpr(a) for a in source.args]) if known else None
    made = None
    if given and name in table:
        args, kwargs = as_stored((given.args, dict(given.kwargs)), [n.dtype])
        made = table[name](*args, **kwargs)
    if given and made is None and name in REDUCTIONS:
        results = (AtenResult(n.shape, n.dtype, n.order),)
        fast = partial(across, name)
        found = lower(AtenCall(name, source.call.overload, *given, results, across=fast))
        made = found[place] if isinstance(found, tuple) else found
    return made


def _odd(n: Node, call: Node) -> bool:
    """A call on numbers that no kernel computes, or on none."""
    return any(t.dtype not in OF_KERNELS or numel(t.shape) == 0 for t in (n, *call.args))
