"""A row + its passes -> whether a thread of a GPU does little with it.

Then as many threads as leave a processor two blocks are faster than more work for each of them
[m: rowwise-0013, rowwise-0015].
"""

from __future__ import annotations

from fusewright.ir.graph import Graph, numel, times
from fusewright.loopnest.nest import Nest
from fusewright.loopnest.reduction_passes import RowPlan

MOST_COST = 10  # in float operations, of anything else


def is_memory_bound(nest: Nest, row: RowPlan, graph: Graph) -> bool:
    """Whether the row has one reduction, of one large tensor, and nothing dear around it."""
    reductions = [p.reductions[0] for p in row.passes if p.reductions]
    size = graph.hint(times(nest.rows, times(nest.outer, nest.columns)))
    leaves = {id(a.leaf): a.leaf for a in nest.reads.values() if a.varies}.values()
    large = [n for n in leaves if n.op != "constant" and graph.hint(numel(n.shape)) >= size]
    dear = any(m.row.cost > MOST_COST for m in nest.kernel.members)
    single = len(reductions) == len(large) == 1 and not reductions[0].row.heavy
    return single and not dear and not nest.kernel.scans


def is_read_only_stream(nest: Nest) -> bool:
    """Whether each element is read once, as it lies, and no row is stored."""
    moving = [a for a in nest.reads.values() if a.varies]
    plain = all(a.columns == 1 and not (a.gather or a.limits or a.wrap) for a in moving)
    once = len({(id(a.leaf), a.base) for a in moving}) == 1
    return plain and once and not any(a.varies for a in nest.writes.values())
