"""Nest + Target -> Schedule: how one kernel runs on one machine; all that a tuner may change.

The defaults come from sizes alone: the same model gives the same file on every machine of a kind.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, gcd

from fusewright.ir import Batch, Graph, Node, Size, times
from fusewright.nest import Access, Nest
from fusewright.product import Factor, batches, factors
from fusewright.target import Target
from fusewright.tile import SPLIT_ROWS, Tile, tiles

KEEP_COST = 6  # float operations above which a value is kept rather than computed again
KEEP_CPU_BYTES = 64 * 1024  # half of a core's L2, facts.md: keep
REGISTERS = 32  # kept values per thread
KEEP_COMPUTED = 1  # behind a product: what is read again is still in shared memory or L1
MAX_THREADS = 1024
SPLIT_COLUMNS = 1 << 16  # a row that outgrows the registers of one thread block
FEW_ROWS = 96  # with more rows, a block for each row is faster; facts.md: batch norm
# Width of a tile -> TFLOP/s on an H200, 192 between its neighbours; only the ratios matter.
TILE_RATE = {64: 159, 128: 207, 192: 235, 256: 250}


@dataclass(frozen=True)
class Schedule:
    """One way to run a kernel.

    keep: values needed twice are kept near by when computing them costs more than `keep_cost`.
    threads: threads per row (CUDA).  vector: elements per memory access (CUDA).
    split: every row is shared by many thread blocks (CUDA, few long rows).
    tile: what one thread block computes of a product (CUDA).
    """

    keep: bool
    keep_cost: int
    threads: int
    vector: int
    split: bool = False
    tile: Tile | None = None


def schedule(nest: Nest, target: Target, graph: Graph) -> Schedule:
    """The default schedule of a kernel on a machine."""
    fixed = not isinstance(nest.columns, Batch) and not isinstance(nest.outer, Batch)
    inner = graph.hint(nest.columns) * graph.hint(nest.outer)
    if target.language == "cpp":
        return Schedule(fixed and inner * 4 <= KEEP_CPU_BYTES, KEEP_COST, 1, 1)
    if nest.kernel.product:
        columns = nest.columns.multiple if isinstance(nest.columns, Batch) else nest.columns
        vector = 4 if columns % 4 == 0 and _vector(nest) >= 4 else 1
        chosen = _tile(nest.kernel.product, nest.segment, target, graph)
        return Schedule(True, KEEP_COMPUTED, 1, vector, tile=chosen)
    vector = _vector(nest)
    threads = _threads(inner, vector)
    keeps = fixed and inner <= threads * REGISTERS
    few = graph.hint(nest.rows) < FEW_ROWS
    split = bool(nest.kernel.folds) and inner >= SPLIT_COLUMNS and few
    return Schedule(keeps, 0, threads, vector, split)


def _tile(product: Node, segment: int, target: Target, graph: Graph) -> Tile:
    """The smaller factor is packed, if it may be; the width ends soonest in waves of tiles."""
    left, right = factors(product)
    size = {True: _elements(left, graph), False: _elements(right, graph)}
    options = tiles(product, segment)
    swapped = min({tile.swapped for tile in options}, key=lambda s: (size[s], s))
    split, packed = (right, left) if swapped else (left, right)

    def seconds(tile: Tile) -> tuple[float, int]:
        across = ceil(graph.hint(packed.rows) / tile.width)
        along = ceil(graph.hint(split.rows) / SPLIT_ROWS)
        count = graph.hint(batches(product)) * across * along
        return ceil(count / target.processors) * tile.width / TILE_RATE[tile.width], -tile.width

    return min((tile for tile in options if tile.swapped == swapped), key=seconds)


def _elements(factor: Factor, graph: Graph) -> int:
    return graph.hint(factor.batches) * graph.hint(times(factor.rows, factor.depth))


def _threads(inner: int, vector: int) -> int:
    """Threads per row: four vectors each where the row is long enough, a power of two."""
    threads = 4
    while threads < MAX_THREADS and threads * vector * 4 < inner:
        threads *= 2
    return threads


def _vector(nest: Nest) -> int:
    """The widest access of at most 16 bytes that every tensor allows at every row."""
    width = 16
    accesses = [*nest.reads.values(), *nest.writes.values()]
    moving = [a for a in accesses if a.varies]
    for access in moving:
        width = min(width, 16 // access.leaf.dtype.itemsize)
        if access.columns == 1:
            width = gcd(width, _known_factor(access, nest))
    return max(width, 1)


def _known_factor(access: Access, nest: Nest) -> int:
    """A power of two that divides the columns and every stride of the rows' and outer offsets."""
    sizes: list[Size] = [nest.columns, access.outer]
    factor = 16
    for size in sizes:
        number = size.multiple if isinstance(size, Batch) else size
        factor = gcd(factor, number) if number else factor
    return gcd(factor, access.alignment)
