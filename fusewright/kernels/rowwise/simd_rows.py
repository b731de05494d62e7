"""Nest -> whether a CPU takes neighbouring rows together, each in a lane of a vector.

Rows of a reduction across memory lie side by side: one cache line has an element of sixteen of
them. Short rows along memory are turned until they do, where nothing but what they come to is
stored. Such a body is printed for numbers and for vectors alike, so it may only hold what both can
do.
"""

from __future__ import annotations

import torch

from fusewright.common.dtypes import FLOAT
from fusewright.frontend.lowering.call import LANES
from fusewright.ir.graph import Graph, Node
from fusewright.loopnest.nest import AffineAccess, Nest

NUMBERS = (torch.int32, torch.int64, torch.float64)
READ = (*FLOAT, *NUMBERS, torch.bool)
# Of a row that is scanned: a CPU takes 64 of them in a core's L2 side by side.
LONGEST_ABREAST = 1 << 12
# Elements of a row, if it is whole cache lines [m: cpu-0016, cpu-0017].
MOST_TURNED = {True: 32, False: 128}


def uses_simd_rows(nest: Nest, graph: Graph) -> bool:
    """Whether as much of what a kernel moves lies across memory as along it, or rows are short."""
    kernel = nest.kernel
    if not kernel.reductions or graph.hint(nest.beside) < LANES:
        return False
    inner = graph.hint(nest.columns) * graph.hint(nest.outer)
    if kernel.scans and inner > LONGEST_ABREAST:
        return False
    accesses = [*nest.reads.values(), *nest.writes.values()]
    if not all(map(_fits, accesses)) or not all(map(_computes, kernel.members)):
        return False
    if turns(nest):
        whole = inner % LANES == 0  # one by one, sums of such rows come as fast as memory
        return inner <= MOST_TURNED[whole] and not (
            whole and all(f.row.additive for f in kernel.reductions)
        )
    moved = [a for a in accesses if a.varies and a.leaf.op != "constant" and a.beside != 0]
    across = sum(a.beside in (1, -1) and a.columns != 1 for a in moved)
    along = sum(a.columns == 1 for a in moved)
    return across >= max(along, 1)


def turns(nest: Nest) -> bool:
    """Whether rows lie along memory, all of them in floats, and none is stored or scanned."""
    reads = [a for a in nest.reads.values() if a.varies and a.leaf.op != "constant"]
    plain = all(a.columns == 1 and not a.gather and not a.limits for a in reads)
    floats = all(a.leaf.dtype in FLOAT for a in reads)
    stored = any(a.varies for a in nest.writes.values())
    return bool(reads) and plain and floats and not stored and not nest.kernel.scans


def _fits(access: AffineAccess) -> bool:
    """What stands once in a row is a vector in memory or the same for all rows."""
    read = access.leaf.dtype in READ and (access.varies or access.beside in (0, 1))
    return not access.apart and (read or access.leaf.op == "constant")


def _computes(m: Node) -> bool:
    """Whether vectors have what the member does to its arguments."""
    of = m.row.simd.split()
    floats = all(a.dtype in FLOAT for a in m.args)
    truths = any(a.dtype is torch.bool for a in m.args)
    if m.dtype in NUMBERS:
        divides = m.op == "div" and m.dtype is torch.float64
        return "number" in of or divides or (floats and "wide" in of)
    if m.dtype is torch.bool:
        found = "compare" in of or (floats and m.row.kind == "pointwise")
        return "truth" in of or (found and not truths)
    return m.dtype in FLOAT and (floats or "float" in of)
