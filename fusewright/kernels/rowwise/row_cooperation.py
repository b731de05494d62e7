"""A row + Target -> the thread blocks of a GPU that can keep it together, in registers or beside.

A cluster of 2, 4 or 8 reaches each other's shared memory (`ClusterRow`); any number of blocks that
all run can meet in scratch memory (`GridResidentRow`). Where they meet once for a row, they need
not wait: shared memory keeps their parts of it while the next row is at work (`PipelinedRow`).
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from math import ceil

from fusewright.fusion.axes import Load, elementwise_args
from fusewright.ir.graph import NOTHING_FREE, Graph, Node, size_at, times
from fusewright.loopnest.nest import AffineAccess, Nest
from fusewright.loopnest.reduction_passes import RowPass, read_key
from fusewright.targets.target import Target

REGISTERS = 32  # kept values per thread
MAX_THREADS = 1024
STRIPE_THREADS, LEAST_ACROSS = 512, 8  # of a block whose rows lie across memory, and its rows
FEW_THREADS = 128  # of a kept row of which there are few
# Two such blocks that keep their rows fit a processor, with 64 registers for each thread: one loads
# while the other waits.
PAIRED_THREADS = 512
# Of a cluster's blocks [m: rowwise-0021, rowwise-0022, rowwise-0023].
BLOCK_THREADS = (128, 256, PAIRED_THREADS)
# Deferred rows: vectors of a thread in its part of one, of which shared memory has three; the least
# run of neighbours, since one thread asks for each of them; the least rows for each block; the most
# vectors of a thread that are alike in every row and stay in its registers, for each byte of an
# element: halves are widened beside them
# [m: rowwise-0007, rowwise-0008, rowwise-0009, rowwise-0010, rowwise-0011, rowwise-0012].
PART_VECTORS, LEAST_RUN_BYTES, LEAST_WAVES, STILL_VECTORS = 9, 4096, 4, 4


@dataclass(frozen=True)
class RowShape:
    """elements: of a row.  rows: how many there are.  registers: what an element takes while most
    is kept of it.  vector: elements of an access."""

    elements: int
    rows: int
    registers: int
    vector: int


@dataclass(frozen=True)
class RowBlocks:
    """Thread blocks of a row, with `threads` each; split: they meet in scratch memory.  keep: in
    registers."""

    blocks: int
    threads: int
    split: bool = False
    keep: bool = True


def row_threads(elements: int, vector: int) -> int:
    """Threads per row: four vectors each where the row is long enough, a power of two."""
    most = PAIRED_THREADS if elements <= PAIRED_THREADS * REGISTERS else MAX_THREADS
    threads = 4
    while threads < most and threads * vector * 4 < elements:
        threads *= 2
    return threads


def more_threads(threads: int, vectors: int, rows: int, busy: int) -> int:
    """The same for a row that is kept, where rows are too few to keep a GPU busy, which as many
    threads as `busy` do: up to a vector each [m: rowwise-0016, rowwise-0019]."""
    while 32 <= threads < FEW_THREADS and threads < vectors and 2 * threads * rows <= busy // 2:
        threads *= 2
    return threads


def clusters(row: RowShape, target: Target) -> list[RowBlocks]:
    """Clusters that keep the row, the most promising first: blocks as small as two of them allow,
    or eight if less than 512 threads do and so many for a row make all processors busy. With more
    rows than processors no block has a processor to itself: then reading twice is faster
    [m: rowwise-0020]."""
    blocks = [n for n in (2, 4, 8) if n <= target.arch.cluster]
    every = [(n, size) for n in blocks for size in BLOCK_THREADS]
    every += [(n, MAX_THREADS) for n in blocks if row.rows <= target.machine.processors]
    some = [(n, size) for n, size in every if n * size * row.vector <= row.elements]
    needed = row.elements * row.registers
    keeping = [(n, size) for n, size in some if needed <= n * size * REGISTERS]
    two = [size for size in BLOCK_THREADS if needed <= 2 * size * REGISTERS]
    wanted = min(two, default=PAIRED_THREADS)
    least = min((size for n, size in keeping if n == 8), default=wanted)
    processors = target.machine.processors
    if wanted == PAIRED_THREADS and row.rows * 8 * least >= processors * PAIRED_THREADS:
        wanted = least

    def cost(shape: tuple[int, int]) -> tuple[bool, int, int, int]:
        n, size = shape
        return size != wanted, -min(row.rows * n, target.machine.processors), n, size

    return [RowBlocks(n, size) for n, size in sorted(keeping, key=cost)]


def grid_resident_blocks(row: RowShape, target: Target) -> list[RowBlocks]:
    """Blocks that keep the row and meet in scratch memory, the most promising first."""
    found = []
    for size in (PAIRED_THREADS, MAX_THREADS):
        resident = min(target.machine.processors * MAX_THREADS // size, PAIRED_THREADS)
        vectors = REGISTERS // (row.registers * row.vector)  # that a thread can keep
        blocks, _ = _in_flight(row, resident, size, vectors)
        found.append(RowBlocks(blocks, size, split=True))
    return [shape for shape in found if shape.blocks > 1]


def pipelined_blocks(row: RowShape, target: Target) -> list[RowBlocks]:
    """Blocks that meet while the next row is at work, if there are some rows for each of them."""
    if target.arch.async_copy != "tensor map":  # no copy engine
        return []
    blocks, waves = _in_flight(row, target.machine.processors, PAIRED_THREADS, PART_VECTORS)
    some = blocks > 1 and waves >= LEAST_WAVES
    return [RowBlocks(blocks, PAIRED_THREADS, split=True, keep=False)] * some


def _in_flight(row: RowShape, resident: int, size: int, vectors: int) -> tuple[int, int]:
    """How many of all resident blocks share a row whose threads have room for so many vectors, so
    that the rows in flight fill the GPU, and how many rows each block then has; 0 for none do."""
    least = ceil(row.elements / (size * row.vector * vectors)) if vectors else resident + 1
    if least > resident:
        return 0, 0
    waves = ceil(row.rows / (resident // least))
    room = resident // ceil(row.rows / waves) * size * row.vector
    each = ceil(row.elements / room) * size * row.vector
    return ceil(row.elements / each), waves


def is_pipelinable(nest: Nest, passes: Sequence[RowPass], vector: int) -> bool:
    """Whether the blocks of a row meet once, and their parts can come and go as whole vectors of 16
    bytes. passes: over a row that is not kept."""
    near = streamed_read(nest)
    moving = [w for w in nest.writes.values() if w.varies]
    if near is None or len(passes) != 2 or len(moving) != 1 or not passes[1].outputs:
        return False
    kind, columns = near.leaf.dtype, nest.columns
    size = kind.itemsize if kind.is_floating_point and kind.itemsize < 8 else 0
    runs = nest.outer == 1 or (isinstance(columns, int) and columns * size >= LEAST_RUN_BYTES)
    whole = all(
        a.leaf.dtype.itemsize == size and a.columns == 1 and not (a.gather or a.limits or a.wrap)
        for a in (near, *moving)
    )
    reduced = _reduction_reads(nest, passes[0].reductions[0], near)
    return whole and runs and reduced and size * vector == 16


def streamed_read(nest: Nest) -> AffineAccess | None:
    """The one read that is another for each row and each of its elements, if there is just one."""
    moving = [a for a in nest.reads.values() if a.varies and a.base != "0"]
    found = {read_key(a): a for a in moving if a.leaf.op != "constant"}
    return next(iter(found.values())) if len(found) == 1 else None


def part_vectors(nest: Nest, each: int) -> int:
    """How many vectors a thread has of a pipelined row of known length, whose threads take `each`
    elements."""
    return ceil(size_at(times(nest.outer, nest.columns), NOTHING_FREE) / each)


def resident_reads(nest: Nest, vectors: int) -> list[Hashable]:
    """What a pipelined row reads that is alike in every row, as a row plan names it, as far as the
    registers of a thread hold so many vectors of each."""
    near = streamed_read(nest)
    assert near, "a pipelined row"
    found = [
        read_key(a)
        for a in nest.reads.values()
        if a.varies and a.base == "0" and a.columns == 1 and not (a.gather or a.limits or a.wrap)
        if a.leaf.op != "constant" and a.leaf.dtype.itemsize == near.leaf.dtype.itemsize
        if nest.outer == 1 or a.outer == nest.columns
    ]
    most = STILL_VECTORS * near.leaf.dtype.itemsize
    return list(dict.fromkeys(found))[: most // vectors]


def pipelined_reads(nest: Nest, vectors: int) -> Mapping[Hashable, str]:
    """How the text of a pipelined row names what it reads: in shared memory, or in registers."""
    near = streamed_read(nest)
    resident = resident_reads(nest, vectors)
    still = {key: f"register_resident<{k}>({{}})" for k, key in enumerate(resident)}
    return {**still, near and read_key(near): "staged_row({})"}


def _reduction_reads(nest: Nest, m: Node, near: AffineAccess) -> bool:
    """Whether `m` or what it is computed from reads it."""
    edges = [(k, nest.kernel.loops.edges[id(m), k]) for k in elementwise_args(m)]
    return any(
        read_key(nest.reads[id(m), k]) == read_key(near)
        if isinstance(edge, Load)
        else _reduction_reads(nest, edge, near)
        for k, edge in edges
    )


def row_in_place(nest: Nest, graph: Graph) -> bool:
    """Whether a number of a row may be written where all blocks read it: one of them writes it,
    and that it knows their parts does not say that their own reads are done."""
    numbers = [n for n in nest.kernel.outputs if not nest.writes[id(n)].varies]
    needed = [*nest.kernel.reductions, *(n for n in nest.kernel.outputs if n not in numbers)]
    read: list[Node] = []
    seen = {id(n) for n in needed}
    for m in needed:  # which grows
        for k in elementwise_args(m):
            edge = nest.kernel.loops.edges[id(m), k]
            if isinstance(edge, Load):
                read += [edge.leaf] * (not nest.reads[id(m), k].varies)
            elif id(edge) not in seen:
                seen.add(id(edge))
                needed.append(edge)
    targets = {id(u.value): u.target for u in graph.updates}

    def over(n: Node, leaf: Node) -> bool:  # as loopnest/buffer_reuse.py has it
        free = leaf is targets[id(n)] if id(n) in targets else leaf.op == "library"
        return free and (n.shape, n.dtype) == (leaf.shape, leaf.dtype)

    return any(over(n, leaf) for n in numbers for leaf in read)
