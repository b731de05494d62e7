"""Nest + Target -> Schedule: how one kernel runs on one machine; all that a tuner may change.

The defaults come from sizes alone: the same model gives the same file on every machine of a kind.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import gcd

from fusewright.frontend.lowering.call import LANES
from fusewright.ir.graph import BatchSize, Graph, Size
from fusewright.kernels.gemm.triangular_tiles import band
from fusewright.kernels.rowwise.memory_bound import is_memory_bound, is_read_only_stream
from fusewright.kernels.rowwise.row_cooperation import (
    LEAST_ACROSS,
    MAX_THREADS,
    PAIRED_THREADS,
    REGISTERS,
    STRIPE_THREADS,
    RowShape,
    clusters,
    deferred,
    gathered,
    is_pipelinable,
    more_threads,
    row_in_place,
    row_threads,
)
from fusewright.kernels.rowwise.simd_rows import runs_abreast
from fusewright.kernels.scan.chunks import (
    ScanChunks,
    chunk_moves,
    elements_per_thread,
    row_chunks,
    stripe_chunks,
)
from fusewright.kernels.scan.match import has_chunks
from fusewright.kernels.tensor_core.tile import Tile
from fusewright.kernels.tensor_core.tile_cost import access, ending, rank_tiles
from fusewright.loopnest.nest import AffineAccess, Nest
from fusewright.loopnest.reduction_passes import plan_row
from fusewright.loopnest.sliding_window import results
from fusewright.loopnest.staged_transpose import is_column_major, staged_vector
from fusewright.targets.target import Target

KEEP_COST = 6  # float operations above which a value is kept rather than computed again
KEEP_CPU_BYTES = 64 * 1024  # half of a core's L2, facts.md: keep
KEEP_COMPUTED = 1  # behind a product: what is read again is still in shared memory or L1
SPLIT_COLUMNS = 1 << 16  # a row that outgrows the registers of one thread block
# Elements that a cluster has folded before all blocks of a GPU have met, and its most blocks.
SOON, MOST_BLOCKS = 1 << 18, 8
FEW_ROWS = 96  # with more rows, a block for each row is faster; facts.md: batch norm
# Rows that lie across memory: threads of a row, what they can keep, and how many loads each should
# have.
MOST_DOWN, MOST_KEPT, STRIPE_LOADS = 32, 64 * REGISTERS, 16
MOST_LOADS = 16  # of a thread, in a row that nothing keeps
LEAST_KEPT = 4096  # elements of a row as long as the batch that a cluster keeps, and not one block
TILE_ROWS = 32  # of a map that reads across what it writes; devicelib/cuda/launch.cuh
# What only a tuner may try: values kept beyond a core's L2, shorter rows shared by blocks.
MOST_KEPT_CPU_BYTES, LEAST_SPLIT, LEAST_THREADS = 256 * 1024, 1 << 13, 4


@dataclass(frozen=True)
class Schedule:
    """One way to run a kernel.

    keep: values needed twice are kept near by when computing them costs more than `keep_cost`.
    threads: threads per row (CUDA).  vector: elements per memory access (CUDA).
    split: every row is shared by many thread blocks, which meet in memory (CUDA, long rows).
    blocks: thread blocks whose registers keep a row, a cluster if not `split`; they have `threads`
    together. If `split` and not `keep`, they are `deferred`: shared memory has the row meanwhile.
    once: what is read goes past L1, since nobody reads it again (CUDA).
    batch: the one batch size at which a row that is as long as the batch is kept; 0: any.
    across: rows side by side in a thread block (CUDA, where rows lie across memory), with `threads`
    for each if they are folded.
    staged: tensors that lie across a map pass through shared memory (CUDA) at batch sizes that are
    multiples of this; 0: they do not.
    down: results of a thread that lie one below the other (CUDA, windows that overlap); 0: no.
    lanes: rows side by side in a vector (CPU, where rows lie across memory).
    each: elements of a row that a thread has at a time (CUDA, scans of rows in chunks); 0: all.
    tile: what one thread block computes of a product (CUDA).
    """

    keep: bool
    keep_cost: int
    threads: int
    vector: int
    split: bool = False
    across: int = 1
    lanes: int = 1
    each: int = 0
    tile: Tile | None = None
    blocks: int = 1
    batch: int = 0
    once: bool = False
    staged: int = 0
    down: int = 0

    @property
    def team(self) -> bool:
        """Whether threads share a row: exponentials then cost them less than reading it again."""
        return self.threads > 1

    @property
    def inverts(self) -> bool:
        """Whether what a row is divided by is inverted once: on a GPU, not behind products."""
        return not self.tile and (self.team or self.vector > 1 or self.down > 0)

    @property
    def deferred(self) -> bool:
        """Whether the blocks of a row take the next one before they have met."""
        return self.split and self.blocks > 1 and not self.keep


SHARED_STRIPES = Schedule(False, 0, STRIPE_THREADS // 32, 1, split=True, across=32)


@dataclass(frozen=True)
class TuneChoice:
    """What is done otherwise than by default. schedules: by kernel.  library: stages of the
    pipeline that are left out, so that the calls they would write stay PyTorch's."""

    schedules: Mapping[str, Schedule] = field(default_factory=dict)
    library: tuple[str, ...] = ()


def schedule(
    nest: Nest, target: Target, graph: Graph, rules: frozenset[str] = frozenset()
) -> Schedule:
    """The default schedule of a kernel on a machine.

    rules: of `optimize --rules`; scratch memory that they forbid is used where nothing else works.
    """
    fixed = not isinstance(nest.columns, BatchSize) and not isinstance(nest.outer, BatchSize)
    inner = graph.hint(nest.columns) * graph.hint(nest.outer)
    if target.language == "cpp":
        lanes = LANES if runs_abreast(nest, graph) else 1
        keeps = fixed and inner * 4 * lanes <= KEEP_CPU_BYTES
        return Schedule(keeps, KEEP_COST, 1, 1, lanes=lanes)
    if nest.kernel.product:
        some = band(nest.kernel)
        product, end = nest.kernel.product, ending(nest)
        ranked = rank_tiles(product, nest.kernel.reduction, target, graph, rules, some, ending=end)
        chosen, vector = ranked[0], access(nest, ranked[0], _vector(nest))
        return Schedule(True, KEEP_COMPUTED, 1, vector, tile=chosen)
    if has_chunks(nest.kernel.members):
        return _chunks(nest, target, graph, rules)
    if nest.down:
        high, wide, rows = map(graph.hint, (nest.outer, nest.columns, nest.rows))
        busy = target.machine.busy_threads // 2
        below, vector = results(nest.down, high, wide, rows, _vector(nest), busy)
        return Schedule(False, 0, 1, vector, down=below)
    vector = _vector(nest)
    wide, multiples = staged_vector(nest, graph)
    if wide:
        return Schedule(False, 0, 1, wide, across=TILE_ROWS, staged=multiples)
    if not nest.kernel.scans and is_column_major(nest, graph):
        if not nest.kernel.folds:
            return Schedule(False, 0, 1, vector, across=TILE_ROWS)
        return _stripes(nest, target, graph, inner, fixed, _may_meet(nest, graph, rules))
    threads = row_threads(inner, vector)
    if nest.kernel.scans and threads <= 32 and threads * vector * 3 < inner:
        threads *= 2  # two vectors each: facts.md, scans of short rows
    if nest.kernel.loops.short:  # each has several rows, and adds up what fewer threads have
        threads = max(threads // 2, 1)
    light = is_memory_bound(nest, plan_row(nest, Schedule(True, 0, 1, 1)), graph)
    if light and inner >= 2 * PAIRED_THREADS * vector:
        threads = max(threads, PAIRED_THREADS)
    keeps, busy = fixed and inner <= threads * REGISTERS, target.machine.busy_threads
    if keeps and nest.kernel.folds and not nest.kernel.scans and not is_read_only_stream(nest):
        threads = more_threads(threads, inner // vector, graph.hint(nest.rows), busy)
    if not fixed and not nest.kernel.scans:
        threads = _fewer(threads, inner // vector, graph.hint(nest.rows), busy)
        if inner <= LEAST_KEPT and (alone := _alone(nest, graph, threads, vector)):
            return alone
    if not keeps and (shared := _shared(nest, target, graph, rules)):
        return shared[0]
    few = graph.hint(nest.rows) < FEW_ROWS
    long = bool(nest.kernel.folds) and inner >= SPLIT_COLUMNS and few and not nest.kernel.scans
    soon = long and inner * graph.hint(nest.rows) <= SOON and not row_in_place(nest, graph)
    if soon and target.arch.cluster >= MOST_BLOCKS:
        return Schedule(False, 0, MOST_BLOCKS * MAX_THREADS, vector, blocks=MOST_BLOCKS)
    split = long and _may_meet(nest, graph, rules)
    single = len(plan_row(nest, Schedule(False, 0, 2, 1)).passes) == 1
    once = (
        light and (single or not split) and threads >= PAIRED_THREADS and is_read_only_stream(nest)
    )
    return Schedule(keeps, 0, threads, vector, split, once=once)


def _fewer(threads: int, vectors: int, rows: int, busy: int) -> int:
    """Threads for a row that nothing keeps: up to 16 vectors each, while all rows keep a GPU busy,
    which as many threads as `busy` do.

    They wait for memory and for each other, so more rows at a time are faster: facts.md.
    """
    least = busy // 8
    while threads > 32 and threads // 2 * MOST_LOADS >= vectors and threads // 2 * rows >= least:
        threads //= 2
    return threads


def _alone(nest: Nest, graph: Graph, threads: int, vector: int) -> Schedule | None:
    """One block that keeps a short row at the example's batch size, if the row is read again."""
    needed = graph.hint(nest.columns) * graph.hint(nest.outer)
    needed *= plan_row(nest, Schedule(True, 0, 1, 1)).registers
    while threads * REGISTERS < needed:
        threads *= 2
    again = needed > 0 and len(plan_row(nest, Schedule(False, 0, 2, 1)).passes) > 1
    few = threads <= MAX_THREADS
    return Schedule(True, 0, threads, vector, batch=graph.batch) if again and few else None


def fallback(chosen: Schedule, nest: Nest) -> Schedule | None:
    """What is done at other batch sizes, where so many blocks do not run at once, and without
    vectors, if single elements of a sheet, each with an address, would not fit registers."""
    if chosen.batch and chosen.blocks == 1:
        return replace(chosen, keep=False, batch=0)
    singles = chosen.vector > 1 and nest.outer != 1
    if chosen.blocks == 1 or chosen.each or not (chosen.batch or chosen.split or singles):
        return None
    split = chosen.split and (isinstance(nest.rows, BatchSize) or nest.rows < FEW_ROWS)
    return Schedule(False, 0, MAX_THREADS, chosen.vector, split)


def neighbours(
    default: Schedule, nest: Nest, target: Target, graph: Graph, rules: frozenset[str] = frozenset()
) -> tuple[Schedule, ...]:
    """What else a kernel may do, the most promising first. Some may come to the same text."""
    fixed = not isinstance(nest.columns, BatchSize) and not isinstance(nest.outer, BatchSize)
    inner = graph.hint(nest.columns) * graph.hint(nest.outer)
    if target.language == "cpp":
        found = [replace(default, keep=not default.keep), replace(default, keep=True, keep_cost=0)]
        found += [replace(default, lanes=1)] * (default.lanes > 1)
        most = MOST_KEPT_CPU_BYTES // (inner * 4)
        return tuple(s for s in found if not s.keep or (fixed and s.lanes <= most))
    if nest.kernel.product and default.tile:
        some = band(nest.kernel)
        product, end = nest.kernel.product, ending(nest)
        others = rank_tiles(
            product, nest.kernel.reduction, target, graph, rules, some, both=True, ending=end
        )
        tiles = [replace(default.tile, parts=0), *others]
        more = ((t, access(nest, t, _vector(nest))) for t in tiles if t != default.tile)
        return tuple(replace(default, tile=t, vector=v) for t, v in more)
    if default.each:
        shape = (default.threads, default.each, default.across, default.split, default.blocks)
        moves = [
            _in_chunks(c, default.vector) for c in chunk_moves(ScanChunks(*shape), default.vector)
        ]
        return tuple(s for s in moves if s != default)
    if default.across > 1 and nest.kernel.folds:
        found = _stripe_moves(default)
    else:
        found = _team_moves(default, nest, inner)
        few = graph.hint(nest.rows) < FEW_ROWS or default.blocks > 1
        shared = _shared(nest, target, graph, rules) if inner >= LEAST_SPLIT else []
        found = [*shared[: 3 * few], *found, *shared[3 * few :]]
    scans = nest.kernel.scans  # their results stay in the registers of a team
    if nest.kernel.folds and not scans and inner >= LEAST_SPLIT and _may_meet(nest, graph, rules):
        threads = min(default.threads, MAX_THREADS)
        meeting = replace(default, keep=False, threads=threads, split=True, blocks=1, batch=0)
        found.append(SHARED_STRIPES if default.across > 1 else meeting)
    held = [s for s in found if (fixed or s.batch) and inner <= 2 * s.threads * REGISTERS]
    found = held if scans else [s for s in found if not s.keep or s in held]
    return tuple(s for s in found if s != default)


def _team_moves(default: Schedule, nest: Nest, inner: int) -> list[Schedule]:
    """One step from a schedule with a team of threads for each row."""
    threads, vector = default.threads, default.vector
    if default.down:
        found = [replace(default, down=n) for n in (default.down // 2, default.down * 2) if n]
        return found + [replace(default, vector=1)] * (vector > 1)
    if default.blocks > 1:
        return [Schedule(False, 0, row_threads(inner, vector), vector)]
    if default.staged:
        return [Schedule(False, 0, 1, _vector(nest), across=n) for n in (TILE_ROWS, 1)]
    if not nest.kernel.folds:
        narrower = [replace(default, vector=v) for v in (vector // 2, vector // 4) if v]
        return [replace(default, across=1), *narrower]
    found = [replace(default, split=False)]
    found += [replace(default, threads=t) for t in (threads * 2, threads // 2)]
    found += [replace(default, keep=not default.keep and not default.split)]
    found += [replace(default, once=False)] * default.once
    found += [replace(default, threads=t) for t in (threads * 4, threads // 4)]
    found += [replace(default, vector=vector // 2)] * (vector > 1)
    return [s for s in found if LEAST_THREADS <= s.threads <= MAX_THREADS]


def _may_meet(nest: Nest, graph: Graph, rules: frozenset[str]) -> bool:
    """Whether blocks that share a row may meet in scratch memory."""
    return "no-workspace" not in rules and not row_in_place(nest, graph)


def _shared(nest: Nest, target: Target, graph: Graph, rules: frozenset[str]) -> list[Schedule]:
    """Blocks whose registers keep a row together, the most promising first.

    They read it once, so they are taken to be faster than whatever reads it again, also where few
    rows leave processors idle: then a row has more blocks. Rows that are as long as the batch are
    kept at the example's, if of two tensors only where no single block could keep one.
    """
    free = isinstance(nest.columns, BatchSize) or isinstance(nest.outer, BatchSize)
    inner = graph.hint(nest.columns) * graph.hint(nest.outer)
    if not nest.kernel.folds or nest.kernel.scans or row_in_place(nest, graph):
        return []
    registers = plan_row(nest, Schedule(True, 0, 1, 1)).registers
    passes = plan_row(nest, Schedule(False, 0, 2, 1)).passes  # where nothing is kept
    least = LEAST_KEPT if registers == 1 else MAX_THREADS * REGISTERS
    if registers == 0 or (free and (len(passes) == 1 or inner <= least)):
        return []
    vector, batch = _vector(nest), graph.batch * free
    row = RowShape(inner, graph.hint(nest.rows), registers, vector)
    meets = row.rows < FEW_ROWS and len(passes) > 1 and "no-workspace" not in rules
    shapes = clusters(row, target)
    shapes += deferred(row, target) if meets and is_pipelinable(nest, passes, vector) else []
    shapes += gathered(row, target) if meets else []
    return [
        Schedule(s.keep, 0, s.blocks * s.threads, vector, s.split, blocks=s.blocks, batch=batch)
        for s in shapes
    ]


def _stripe_moves(default: Schedule) -> list[Schedule]:
    """One step from a schedule with rows side by side."""
    down, across = default.threads, default.across
    if default.split:
        return [Schedule(False, 0, MOST_DOWN, 1, across=STRIPE_THREADS // MOST_DOWN)]
    shapes = [(down * 2, across // 2), (down // 2, across * 2), (down, across // 2)]
    shapes += [(down, across * 2), (down * 2, across)]
    found = [replace(default, keep=not default.keep)]
    found += [replace(default, threads=d, across=a) for d, a in shapes if d and a >= LEAST_ACROSS]
    return [s for s in found if s.threads <= MOST_DOWN and s.threads * s.across <= STRIPE_THREADS]


def _chunks(nest: Nest, target: Target, graph: Graph, rules: frozenset[str]) -> Schedule:
    """How the rows of a scan are taken in chunks."""
    rows, inner = graph.hint(nest.rows), graph.hint(nest.columns) * graph.hint(nest.outer)
    moved = [a.leaf for a in nest.reads.values() if a.varies and a.leaf.op != "constant"]
    each = elements_per_thread(sum(max(n.dtype.itemsize, 4) for n in (*nest.kernel.folds, *moved)))
    # Chunks have whole vectors only, also where every element is moved alone.
    vector = gcd(_vector(nest), _power_in([nest.columns]))
    meets = _may_meet(nest, graph, rules)
    if is_column_major(nest, graph):
        vector, found = 1, stripe_chunks(rows, inner, each, target.machine, meets)
    else:
        single = plan_row(nest, Schedule(True, 0, 1, 1)).registers == 1
        found = row_chunks(rows, inner, max(each, vector), single, target.machine, meets)
    return _in_chunks(found, vector)


def _in_chunks(found: ScanChunks, vector: int) -> Schedule:
    made = Schedule(True, 0, found.threads, vector, found.split, found.across)
    return replace(made, each=found.each, blocks=found.blocks)


def _stripes(
    nest: Nest, target: Target, graph: Graph, inner: int, fixed: bool, scratch: bool
) -> Schedule:
    """As many threads for a row as can keep it, or as make the GPU busy."""
    rows, busy = graph.hint(nest.rows), target.machine.busy_threads
    stores = any(nest.writes[id(n)].varies for n in nest.kernel.outputs)
    again = stores or len(nest.kernel.folds) > 1
    keeps = again and fixed and inner <= MOST_KEPT
    down = MOST_DOWN if again and not keeps else 1
    while keeps and down * REGISTERS < inner:
        down *= 2
    while down < MOST_DOWN and down * rows < busy and down * STRIPE_LOADS < inner:
        down *= 2
    few = down * rows < busy // 2 and inner > MOST_KEPT
    if scratch and few and not keeps:
        return SHARED_STRIPES
    across = 128 // down if down < 4 else min(32, STRIPE_THREADS // down)
    moved = (*nest.reads.values(), *nest.writes.values())
    along = any(a.varies and a.columns == 1 and a.beside != 0 for a in moved)
    return Schedule(keeps, 0, down, _vector(nest) if along else 1, across=across)


def _vector(nest: Nest) -> int:
    """The widest access of at most 16 bytes that every tensor allows at every row."""
    width = 16
    reads = list(nest.reads.values())
    if nest.down:  # windows have a place for their vectors, numbers need none
        alone = nest.reads.keys() - nest.down.places.keys()
        reads = [a for key in alone if (a := nest.reads[key]).leaf.op != "constant"]
    moving = [a for a in (*reads, *nest.writes.values()) if a.varies]
    for head in nest.heads:
        aligned = known_factor(whole_place(head, nest), nest) if head[0].columns == 1 else 1
        width = gcd(width, aligned, 16 // head[0].leaf.dtype.itemsize)
    if nest.down and isinstance(nest.columns, int):
        width = gcd(width, nest.columns)
    for each in moving:
        width = min(width, 16 // each.leaf.dtype.itemsize)
        if (each.columns == 1 and not each.wrap) or each.limits:
            width = gcd(width, known_factor(each, nest))
    return max(width, 1)


def whole_place(head: Sequence[AffineAccess], nest: Nest) -> AffineAccess:
    """Where along the columns windows begin that vectors read."""
    return max(head, key=lambda a: known_factor(a, nest))


def known_factor(access: AffineAccess, nest: Nest) -> int:
    """A power of two that divides every stride of the rows' and outer offsets; and the columns, but
    those of a map: its last vector of a row may be a part of one."""
    sizes: list[Size] = [nest.columns, access.outer] if nest.kernel.folds else [access.outer]
    return gcd(_power_in(sizes), access.alignment)


def _power_in(sizes: Sequence[Size]) -> int:
    """A power of two, at most 16, that divides every size."""
    factor = 16
    for size in sizes:
        number = size.multiple if isinstance(size, BatchSize) else size
        factor = gcd(factor, number) if number else factor
    return factor
