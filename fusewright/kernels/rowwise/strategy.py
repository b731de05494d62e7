"""Nest of a kernel that reduces rows -> its threads and blocks, and what is kept of a row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import torch

from fusewright.frontend.lowering.call import LANES
from fusewright.ir.graph import BatchSize, FixedSizes, Graph, names_in
from fusewright.kernels.interface import StrategyContext
from fusewright.kernels.rowwise.memory_bound import is_memory_bound, is_read_only_stream
from fusewright.kernels.rowwise.row_cooperation import (
    LEAST_ACROSS,
    MAX_THREADS,
    PAIRED_THREADS,
    REGISTERS,
    STRIPE_THREADS,
    RowBlocks,
    RowShape,
    clusters,
    grid_resident_blocks,
    is_pipelinable,
    more_threads,
    part_vectors,
    pipelined_blocks,
    resident_reads,
    row_in_place,
    row_threads,
)
from fusewright.kernels.rowwise.simd_rows import turns, uses_simd_rows
from fusewright.loopnest.nest import Nest, with_fixed
from fusewright.loopnest.reduction_passes import KEEP_ALL, KEEP_NOTHING, plan_row
from fusewright.loopnest.staged_transpose import is_column_major
from fusewright.loopnest.vector_width import ACCESS_BYTES, vector_width

KEEP_COST = 6  # float operations above which a value is kept rather than computed again
KEEP_CPU_BYTES = 64 * 1024  # half of a core's L2
# A row that outgrows the registers of one thread block [m: rowwise-0001].
SPLIT_COLUMNS = 1 << 16
# Elements that a cluster has reduced before all blocks of a GPU have met, and its most blocks.
SOON, MOST_BLOCKS = 1 << 18, 8
FEW_ROWS = 96  # with more rows, a block for each row is faster [m: rowwise-0002]
# Rows that lie across memory: threads of a row, what they can keep, and how many loads each should
# have.
MOST_DOWN, MOST_KEPT, STRIPE_LOADS = 32, 64 * REGISTERS, 16
MOST_LOADS = 16  # of a thread, in a row that nothing keeps
LEAST_KEPT = 4096  # elements of a row as long as the batch that a cluster keeps, and not one block
# What only a tuner may try: values kept beyond a core's L2, shorter rows shared by blocks.
MOST_KEPT_CPU_BYTES, LEAST_SPLIT, LEAST_THREADS = 256 * 1024, 1 << 13, 4
# A row that blocks share: threads of each, and its loads in flight where several passes read it,
# which then fits L2; of a column panel, and loads of its threads, where they are few or where many
# are wanted.
SPLIT_THREADS, SPLIT_LOADS = 512, 4
PANEL_DOWN, PANEL_COLUMNS, PANEL_LOADS = STRIPE_THREADS // 32, 32, (8, 16)
# Threads, elements of a thread in flight and in a part of a row; and in that of a row that lies
# across memory: of most reductions, and of those that are dear [m: rowwise-0029, rowwise-0034,
# rowwise-0036].
ROW_PARTS, PANEL_PARTS = ((512, 8, 8), (256, 16, 32)), (64, 0)


@dataclass(frozen=True)
class CpuRows:
    """A row for a thread of a CPU at a time. keep, min_cost: as in KeepPolicy."""

    keep: bool
    min_cost: int


@dataclass(frozen=True)
class CpuSimdRows:
    """So many rows side by side in the lanes of a vector; transposed: these lie along memory, and
    are turned in registers."""

    keep: bool
    min_cost: int
    lanes: int
    transposed: bool


@dataclass(frozen=True)
class RowTeam:
    """Threads of one block for each row. vector: elements of an access.  keep: registers keep the
    row, and not only what must be."""

    threads: int
    vector: int
    keep: bool


@dataclass(frozen=True)
class RowPerTeam(RowTeam):
    """A row that is reduced. load_once: what is read goes past L1, since nobody reads it again.
    fixed_sizes: the free sizes that a row is as long as, at the only values at which it is kept."""

    load_once: bool = False
    fixed_sizes: FixedSizes = ()


@dataclass(frozen=True)
class SplitRow:
    """Blocks that share a row and meet between its passes. loads: of a thread in flight."""

    threads: int
    vector: int
    loads: int


@dataclass(frozen=True)
class PartialReduction:
    """One pass: blocks leave what parts of a row come to, and a second kernel joins these.
    in_flight, part: elements of a thread that are loaded at a time, and those of a part of the row.
    state_bytes: what a part comes to."""

    threads: int
    vector: int
    in_flight: int
    part: int
    state_bytes: int
    load_once: bool = False


@dataclass(frozen=True)
class ClusterRow:
    """A cluster of blocks with `threads` each takes a row; keep: their registers keep it."""

    blocks: int
    threads: int
    vector: int
    keep: bool = True
    fixed_sizes: FixedSizes = ()


@dataclass(frozen=True)
class GridResidentRow:
    """Blocks that are all resident keep a row in registers and meet in scratch memory."""

    blocks: int
    threads: int
    vector: int
    fixed_sizes: FixedSizes = ()


@dataclass(frozen=True)
class PipelinedRow:
    """The same, but shared memory has the row meanwhile, and its blocks take the next one before
    they have met. part_bytes: of a row that each block has.  resident_tensors: of how many tensors
    that are alike in every row registers keep as much."""

    blocks: int
    threads: int
    vector: int
    part_bytes: int
    resident_tensors: int
    fixed_sizes: FixedSizes = ()


@dataclass(frozen=True)
class ColumnPanel:
    """Rows that lie across memory: `columns` of them side by side in a block, with `threads`
    each."""

    threads: int
    columns: int
    vector: int
    keep: bool


@dataclass(frozen=True)
class SplitColumnPanel:
    """The same with many blocks for a panel, which meet between passes."""

    threads: int
    columns: int
    loads: int


@dataclass(frozen=True)
class PartialColumnPanel:
    """One pass over a panel: blocks leave what parts come to, and a second kernel joins these."""

    threads: int
    columns: int
    loads: int
    loads_of_part: int
    state_bytes: int


CpuRowStrategy = CpuRows | CpuSimdRows
Team = TypeVar("Team", bound=RowTeam)
ResidentRow = ClusterRow | GridResidentRow | PipelinedRow
PanelStrategy = ColumnPanel | SplitColumnPanel | PartialColumnPanel
GpuRowStrategy = RowPerTeam | SplitRow | PartialReduction | ResidentRow | PanelStrategy
RowwiseStrategy = CpuRowStrategy | GpuRowStrategy


@dataclass(frozen=True)
class RowSizes:
    """What is known of a kernel's rows. fixed: they are not as long as a free size."""

    rows: int
    inner: int
    fixed: bool


def row_sizes(nest: Nest, graph: Graph) -> RowSizes:
    """As they are in the example, where they depend on free sizes."""
    inner = graph.hint(nest.columns) * graph.hint(nest.outer)
    return RowSizes(graph.hint(nest.rows), inner, not _fixed_sizes(nest, graph))


def _fixed_sizes(nest: Nest, graph: Graph) -> FixedSizes:
    """The free sizes that a row is as long as, as they are in the example."""
    return tuple((name, graph.example[name]) for name in names_in((nest.outer, nest.columns)))


def default(nest: Nest, context: StrategyContext) -> RowwiseStrategy:
    """How rows are reduced, as far as sizes tell."""
    if context.target.language == "cpp":
        return cpu_rows(nest, context.graph)
    if is_column_major(nest, context.graph):
        return _panel(nest, context)
    return _row(nest, context)


def neighbours(
    default: RowwiseStrategy, nest: Nest, context: StrategyContext
) -> Sequence[RowwiseStrategy]:
    """What else a kernel may do, the most promising first."""
    if isinstance(default, CpuRowStrategy):
        return cpu_neighbours(default, nest, context.graph)
    of, found = row_sizes(nest, context.graph), list[RowwiseStrategy]()
    if isinstance(default, PanelStrategy):
        found += _panel_moves(default)
    else:
        found += _team_moves(default, nest, context)
        shared = _resident_rows(nest, context) if of.inner >= LEAST_SPLIT else []
        few = of.rows < FEW_ROWS or isinstance(default, ResidentRow)
        found = [*shared[: 3 * few], *found, *shared[3 * few :]]
    if of.inner >= LEAST_SPLIT and may_meet(nest, context):
        if isinstance(default, PanelStrategy):
            found.append(_split_panel(nest))
        else:
            once = isinstance(default, RowPerTeam | PartialReduction) and default.load_once
            found.append(_split_row(nest, default.vector, load_once=once))
    return [s for s in found if s != default and _may_keep(s, of)]


def fallback(chosen: RowPerTeam | ResidentRow, nest: Nest) -> GpuRowStrategy | None:
    """What is done at other sizes, where so many blocks do not run at once, and without
    vectors, if single elements of a sheet, each with an address, would not fit registers."""
    match chosen:
        case RowPerTeam() if chosen.fixed_sizes:
            return replace(chosen, keep=False, fixed_sizes=())
        case ClusterRow():
            singles = chosen.vector > 1 and nest.outer != 1
            other = RowPerTeam(MAX_THREADS, chosen.vector, keep=False)
            return other if chosen.fixed_sizes or singles else None
        case GridResidentRow() | PipelinedRow():
            if isinstance(nest.rows, BatchSize) or nest.rows < FEW_ROWS:
                return _split_row(nest, chosen.vector)
            return RowPerTeam(MAX_THREADS, chosen.vector, keep=False)
    return None


def may_meet(nest: Nest, context: StrategyContext) -> bool:
    """Whether blocks that share a row may meet in scratch memory."""
    return "no-workspace" not in context.rules and not row_in_place(nest, context.graph)


def _may_keep(strategy: RowwiseStrategy, of: RowSizes) -> bool:
    """Whether the threads of a row have registers for it, if they are to keep it."""
    if not isinstance(strategy, RowPerTeam | ColumnPanel) or not strategy.keep:
        return True
    free = isinstance(strategy, ColumnPanel) or not strategy.fixed_sizes
    return (of.fixed or not free) and of.inner <= 2 * strategy.threads * REGISTERS


# ---- on a CPU ------------------------------------------------------------------------------------


def cpu_rows(nest: Nest, graph: Graph) -> CpuRowStrategy:
    """A row after the other, or side by side."""
    of, beside = row_sizes(nest, graph), uses_simd_rows(nest, graph)
    keeps = of.fixed and of.inner * 4 * (LANES if beside else 1) <= KEEP_CPU_BYTES
    return (
        CpuSimdRows(keeps, KEEP_COST, LANES, turns(nest)) if beside else CpuRows(keeps, KEEP_COST)
    )


def cpu_neighbours(default: CpuRowStrategy, nest: Nest, graph: Graph) -> Sequence[CpuRowStrategy]:
    """One step from it."""
    of = row_sizes(nest, graph)
    found: list[CpuRowStrategy] = [
        replace(default, keep=not default.keep),
        replace(default, keep=True, min_cost=0),
    ]
    if isinstance(default, CpuSimdRows):
        found.append(CpuRows(default.keep, default.min_cost))
    most = MOST_KEPT_CPU_BYTES // (of.inner * 4)
    lanes = (s.lanes if isinstance(s, CpuSimdRows) else 1 for s in found)
    return [s for s, n in zip(found, lanes, strict=True) if not s.keep or (of.fixed and n <= most)]


# ---- rows along memory ---------------------------------------------------------------------------


def _row(nest: Nest, context: StrategyContext) -> RowwiseStrategy:
    graph, of, vector = context.graph, row_sizes(nest, context.graph), vector_width(nest)
    threads, keeps = row_team(nest, context)
    if not of.fixed and of.inner <= LEAST_KEPT and (alone := _alone(nest, graph, threads)):
        return alone
    if not keeps and (shared := _resident_rows(nest, context)):
        return shared[0]
    long = of.inner >= SPLIT_COLUMNS and of.rows < FEW_ROWS
    soon = long and of.inner * of.rows <= SOON and not row_in_place(nest, graph)
    if soon and context.target.arch.cluster >= MOST_BLOCKS:
        return ClusterRow(MOST_BLOCKS, MAX_THREADS, vector, keep=False)
    once = _loads_once(nest, graph, threads)
    if long and may_meet(nest, context):
        return _split_row(nest, vector, load_once=once)
    return RowPerTeam(threads, vector, keeps, once)


def row_team(nest: Nest, context: StrategyContext) -> tuple[int, bool]:
    """The threads of a row that has one block, and whether they keep it."""
    graph, busy = context.graph, context.target.machine.busy_threads
    of, vector = row_sizes(nest, graph), vector_width(nest)
    threads = row_threads(of.inner, vector)
    if nest.kernel.scans and threads <= 32 and threads * vector * 3 < of.inner:
        threads *= 2  # two vectors each [m: scan-0004, scan-0007]
    # A team then has several rows, and adds up what fewer threads have.
    if nest.kernel.loops.stored_length:
        threads = max(threads // 2, 1)
    if _is_light(nest, graph) and of.inner >= 2 * PAIRED_THREADS * vector:
        threads = max(threads, PAIRED_THREADS)
    keeps = of.fixed and of.inner <= threads * REGISTERS
    if keeps and not nest.kernel.scans and not is_read_only_stream(nest):
        threads = more_threads(threads, of.inner // vector, of.rows, busy)
    if not of.fixed and not nest.kernel.scans:
        threads = _fewer(threads, of.inner // vector, of.rows, busy)
    return threads, keeps


def _is_light(nest: Nest, graph: Graph) -> bool:
    return is_memory_bound(nest, plan_row(nest, KEEP_ALL), graph)


def _loads_once(nest: Nest, graph: Graph, threads: int) -> bool:
    """Whether what is read goes past L1; such a row has one pass."""
    light = threads >= PAIRED_THREADS and _is_light(nest, graph)
    return light and is_read_only_stream(nest)


def _fewer(threads: int, vectors: int, rows: int, busy: int) -> int:
    """Threads for a row that nothing keeps: up to 16 vectors each, while all rows keep a GPU busy,
    which as many threads as `busy` do.

    They wait for memory and for each other, so more rows at a time are faster
    [m: rowwise-0024, rowwise-0025].
    """
    least = busy // 8
    while threads > 32 and threads // 2 * MOST_LOADS >= vectors and threads // 2 * rows >= least:
        threads //= 2
    return threads


def _alone(nest: Nest, graph: Graph, threads: int) -> RowPerTeam | None:
    """One block that keeps a short row at the example's sizes, if the row is read again."""
    needed = row_sizes(nest, graph).inner * plan_row(nest, KEEP_ALL).registers
    while threads * REGISTERS < needed:
        threads *= 2
    again = needed > 0 and len(plan_row(nest, KEEP_NOTHING).passes) > 1
    if not again or threads > MAX_THREADS:
        return None
    sizes = _fixed_sizes(nest, graph)
    return RowPerTeam(threads, vector_width(nest), keep=True, fixed_sizes=sizes)


def _resident_rows(nest: Nest, context: StrategyContext) -> list[ResidentRow]:
    """Blocks that keep a row together, the most promising first.

    They read it once, so they are taken to be faster than whatever reads it again, also where few
    rows leave processors idle: then a row has more blocks. Rows that are as long as a free size
    are kept at the example's, if of two tensors only where no single block could keep one.
    """
    target, graph = context.target, context.graph
    of, vector = row_sizes(nest, graph), vector_width(nest)
    if row_in_place(nest, graph):
        return []
    registers = plan_row(nest, KEEP_ALL).registers
    passes = plan_row(nest, KEEP_NOTHING).passes
    least = LEAST_KEPT if registers == 1 else MAX_THREADS * REGISTERS
    if registers == 0 or (not of.fixed and (len(passes) == 1 or of.inner <= least)):
        return []
    sizes = _fixed_sizes(nest, graph)
    row = RowShape(of.inner, of.rows, registers, vector)
    found: list[ResidentRow] = [
        ClusterRow(s.blocks, s.threads, vector, fixed_sizes=sizes) for s in clusters(row, target)
    ]
    if of.rows >= FEW_ROWS or len(passes) == 1 or "no-workspace" in context.rules:
        return found
    if is_pipelinable(nest, passes, vector):
        found += [_pipelined(nest, s, vector, sizes) for s in pipelined_blocks(row, target)]
    return found + [
        GridResidentRow(s.blocks, s.threads, vector, sizes)
        for s in grid_resident_blocks(row, target)
    ]


def _pipelined(nest: Nest, shape: RowBlocks, vector: int, sizes: FixedSizes) -> PipelinedRow:
    fixed = with_fixed(nest, sizes)
    vectors = part_vectors(fixed, shape.blocks * shape.threads * vector)
    resident = len(resident_reads(fixed, vectors))
    size = vectors * ACCESS_BYTES * shape.threads
    return PipelinedRow(shape.blocks, shape.threads, vector, size, resident, sizes)


def _split_row(nest: Nest, vector: int, *, load_once: bool = False) -> SplitRow | PartialReduction:
    """A row that many blocks share: where it has one pass, nobody waits behind that."""
    if len(plan_row(nest, KEEP_NOTHING).passes) > 1:
        return SplitRow(SPLIT_THREADS, vector, SPLIT_LOADS)
    dear, state = _state(nest)
    threads, in_flight, part = ROW_PARTS[dear]
    return PartialReduction(threads, vector, in_flight, part, state, load_once)


def _state(nest: Nest) -> tuple[bool, int]:
    """Whether the only pass is dear, and the bytes of what a part of it comes to."""
    states, size = {f.op: f.row.state_words for f in nest.kernel.reductions}, 4
    for f in nest.kernel.reductions:
        kind = f.args[0].dtype
        wide = kind.itemsize == 8 or (kind == torch.bool and f.row.counts_truths)
        size = 8 if wide else size
    words = max(states.values())
    dear = words > 1 or bool(plan_row(nest, KEEP_NOTHING).exponentials)
    return dear, size * (words if words > 1 else len(states))


def _team_moves(
    default: RowPerTeam | SplitRow | PartialReduction | ResidentRow,
    nest: Nest,
    context: StrategyContext,
) -> list[RowwiseStrategy]:
    """One step from a row with a team of threads, or with several blocks."""
    vector = default.vector
    if isinstance(default, ResidentRow):
        inner = row_sizes(nest, context.graph).inner
        return [RowPerTeam(row_threads(inner, vector), vector, keep=False)]
    if isinstance(default, RowPerTeam):
        cached = [replace(default, load_once=False)] * default.load_once
        return [*other_teams(default, cached)]
    threads, _ = row_team(nest, context)
    once = isinstance(default, PartialReduction) and default.load_once
    found: list[RowwiseStrategy] = [RowPerTeam(threads, vector, False, once)]
    if isinstance(default, PartialReduction) and once:
        found.append(replace(default, load_once=False))
    return found + [replace(default, vector=vector // 2)] * (vector > 1)


def other_teams(default: Team, reads_otherwise: Sequence[Team] = ()) -> list[Team]:
    """One step from a team of threads, the most promising first."""
    threads = default.threads
    found = [replace(default, threads=t) for t in (threads * 2, threads // 2)]
    found += [replace(default, keep=not default.keep), *reads_otherwise]
    found += [replace(default, threads=t) for t in (threads * 4, threads // 4)]
    found += [replace(default, vector=default.vector // 2)] * (default.vector > 1)
    return [s for s in found if LEAST_THREADS <= s.threads <= MAX_THREADS]


# ---- rows across memory --------------------------------------------------------------------------


def _panel(nest: Nest, context: StrategyContext) -> PanelStrategy:
    """As many threads for a row as can keep it, or as make the GPU busy."""
    of, busy = row_sizes(nest, context.graph), context.target.machine.busy_threads
    stores = any(nest.writes[id(n)].varies for n in nest.kernel.outputs)
    again = stores or len(nest.kernel.reductions) > 1
    keeps = again and of.fixed and of.inner <= MOST_KEPT
    down = MOST_DOWN if again and not keeps else 1
    while keeps and down * REGISTERS < of.inner:
        down *= 2
    while down < MOST_DOWN and down * of.rows < busy and down * STRIPE_LOADS < of.inner:
        down *= 2
    few = down * of.rows < busy // 2 and of.inner > MOST_KEPT
    if may_meet(nest, context) and few and not keeps:
        return _split_panel(nest)
    across = 128 // down if down < 4 else min(32, STRIPE_THREADS // down)
    moved = (*nest.reads.values(), *nest.writes.values())
    along = any(a.varies and a.columns == 1 and a.beside != 0 for a in moved)
    return ColumnPanel(down, across, vector_width(nest) if along else 1, keeps)


def _split_panel(nest: Nest) -> SplitColumnPanel | PartialColumnPanel:
    if len(plan_row(nest, KEEP_NOTHING).passes) > 1:  # few threads, so more loads in flight
        return SplitColumnPanel(PANEL_DOWN, PANEL_COLUMNS, PANEL_LOADS[True])
    loads = PANEL_LOADS[any(f.row.deep_loads for f in nest.kernel.reductions)]
    dear, state = _state(nest)
    return PartialColumnPanel(PANEL_DOWN, PANEL_COLUMNS, loads, PANEL_PARTS[dear], state)


def _panel_moves(default: PanelStrategy) -> list[PanelStrategy]:
    """One step from rows side by side."""
    if not isinstance(default, ColumnPanel):
        return [ColumnPanel(MOST_DOWN, STRIPE_THREADS // MOST_DOWN, 1, keep=False)]
    down, across = default.threads, default.columns
    shapes = [(down * 2, across // 2), (down // 2, across * 2), (down, across // 2)]
    shapes += [(down, across * 2), (down * 2, across)]
    found = [replace(default, keep=not default.keep)]
    found += [replace(default, threads=d, columns=a) for d, a in shapes if d and a >= LEAST_ACROSS]
    return [s for s in found if s.threads <= MOST_DOWN and s.threads * s.columns <= STRIPE_THREADS]
