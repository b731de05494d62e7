"""Nest -> whether a CPU takes neighbouring rows together, each in a lane of a vector.

Rows of a fold across memory lie side by side: one cache line has an element of sixteen of them.
Such a body is printed for numbers and for vectors alike, so it may only hold what both can do.
"""

from __future__ import annotations

import torch

from fusewright.ir import Graph, Node
from fusewright.lower.call import FLOAT, LANES
from fusewright.nest import Access, Nest
from fusewright.scan import LONGEST_ABREAST

NUMBERS = (torch.int32, torch.int64, torch.float64)
READ = (*FLOAT, *NUMBERS, torch.bool)
# What vectors do to other numbers, as positions and labels, and to truth values.
PLAIN = frozenset({"cast", "copy", "add", "sub", "mul"})
TRUTH = frozenset({"copy", "logical_not", "bitwise_and", "bitwise_or", "bitwise_xor"})
COMPARED = frozenset({"cast", "eq", "ne", "lt", "le", "gt", "ge"})


def runs_abreast(nest: Nest, graph: Graph) -> bool:
    """Whether as much of what a kernel moves lies across memory as along it."""
    kernel = nest.kernel
    if not kernel.folds or graph.hint(nest.beside) < LANES:
        return False
    if kernel.scans and graph.hint(nest.columns) * graph.hint(nest.outer) > LONGEST_ABREAST:
        return False
    accesses = [*nest.reads.values(), *nest.writes.values()]
    moved = [a for a in accesses if a.varies and a.leaf.op != "constant" and a.beside != 0]
    across = sum(a.beside in (1, -1) and a.columns != 1 for a in moved)
    along = sum(a.columns == 1 for a in moved)
    fits = across >= max(along, 1) and all(map(_fits, accesses))
    return fits and all(map(_computes, kernel.members))


def _fits(access: Access) -> bool:
    """What stands once in a row is a vector in memory or the same for all rows."""
    read = access.leaf.dtype in READ and (access.varies or access.beside in (0, 1))
    return not access.apart and (read or access.leaf.op == "constant")


def _computes(m: Node) -> bool:
    """Whether vectors have what the member does to its arguments."""
    floats = all(a.dtype in FLOAT for a in m.args)
    truths = any(a.dtype is torch.bool for a in m.args)
    if m.dtype in NUMBERS:
        return m.op in PLAIN or (floats and m.op in ("argmax", "argmin"))
    if m.dtype is torch.bool:
        found = m.op in COMPARED or (floats and m.row.kind == "map")
        return m.op in TRUTH or (found and not truths)
    return m.dtype in FLOAT and (floats or m.op in ("cast", "where"))
