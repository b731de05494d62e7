"""A row + Target -> the thread blocks of a GPU whose registers can keep it together.

A cluster of 2, 4 or 8 reaches each other's shared memory (`skeletons/cuda/cluster_sm90.cuh`); any
number of blocks that all run can meet in scratch memory (`skeletons/cuda/gathered.cuh`).
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from fusewright.ir import Graph, Node
from fusewright.loops import Read, walked
from fusewright.nest import Nest
from fusewright.target import Target

REGISTERS = 32  # kept values per thread
MAX_THREADS = 1024
# Two such blocks that keep their rows fit a processor, with 64 registers for each thread: one loads
# while the other waits.
PAIRED_THREADS = 512


@dataclass(frozen=True)
class SharedRow:
    """elements: of a row.  rows: how many there are.  registers: what an element takes while most
    is kept of it.  vector: elements of an access."""

    elements: int
    rows: int
    registers: int
    vector: int


@dataclass(frozen=True)
class Blocks:
    """Thread blocks of a row, with `threads` each; split: they meet in scratch memory."""

    blocks: int
    threads: int
    split: bool = False


def clusters(row: SharedRow, target: Target) -> list[Blocks]:
    """Clusters that keep the row, the most promising first."""
    blocks = [n for n in (2, 4, 8) if n <= target.cluster]
    every = [
        (n, size) for n in blocks for size in (PAIRED_THREADS // 2, PAIRED_THREADS, MAX_THREADS)
    ]
    some = [(n, size) for n, size in every if n * size * row.vector <= row.elements]
    needed = row.elements * row.registers
    keeping = [(n, size) for n, size in some if needed <= n * size * REGISTERS]

    def cost(shape: tuple[int, int]) -> tuple[bool, int, int, int]:
        n, size = shape
        return size != PAIRED_THREADS, -min(row.rows * n, target.processors), n, size

    return [Blocks(n, size) for n, size in sorted(keeping, key=cost)]


def gathered(row: SharedRow, target: Target) -> list[Blocks]:
    """Blocks that keep the row and meet in scratch memory, the most promising first: so many that
    the rows in flight fill the GPU."""
    found = []
    for size in (PAIRED_THREADS, MAX_THREADS):
        resident = min(target.processors * MAX_THREADS // size, PAIRED_THREADS)
        vectors = REGISTERS // (row.registers * row.vector)  # that a thread can keep
        least = ceil(row.elements / (size * row.vector * vectors)) if vectors else resident + 1
        if least > resident:
            continue
        waves = ceil(row.rows / (resident // least))
        room = resident // ceil(row.rows / waves) * size * row.vector
        each = ceil(row.elements / room) * size * row.vector
        found.append(Blocks(ceil(row.elements / each), size, split=True))
    return [shape for shape in found if shape.blocks > 1]


def row_in_place(nest: Nest, graph: Graph) -> bool:
    """Whether a number of a row may be written where all blocks read it: one of them writes it,
    and that it knows their parts does not say that their own reads are done."""
    numbers = [n for n in nest.kernel.outputs if not nest.writes[id(n)].varies]
    needed = [*nest.kernel.folds, *(n for n in nest.kernel.outputs if n not in numbers)]
    read: list[Node] = []
    seen = {id(n) for n in needed}
    for m in needed:  # which grows
        for k in walked(m):
            edge = nest.kernel.loops.edges[id(m), k]
            if isinstance(edge, Read):
                read += [edge.leaf] * (not nest.reads[id(m), k].varies)
            elif id(edge) not in seen:
                seen.add(id(edge))
                needed.append(edge)
    targets = {id(u.value): u.target for u in graph.updates}

    def over(n: Node, leaf: Node) -> bool:  # as storage.py has it
        free = leaf is targets[id(n)] if id(n) in targets else leaf.op == "library"
        return free and (n.shape, n.dtype) == (leaf.shape, leaf.dtype)

    return any(over(n, leaf) for n in numbers for leaf in read)
