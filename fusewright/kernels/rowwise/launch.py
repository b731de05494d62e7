"""Nest of reduced rows + its strategy -> how it is printed, and the launcher that starts it."""

from __future__ import annotations

from dataclasses import replace

from fusewright.codegen.launch import BodyPolicy, Call, Fallback, Launch
from fusewright.ir.graph import size_text, times
from fusewright.kernels.rowwise.row_cooperation import pipelined_reads
from fusewright.kernels.rowwise.strategy import (
    ClusterRow,
    ColumnPanel,
    CpuRows,
    CpuRowStrategy,
    CpuSimdRows,
    GpuRowStrategy,
    GridResidentRow,
    PanelStrategy,
    PartialColumnPanel,
    PartialReduction,
    PipelinedRow,
    ResidentRow,
    RowPerTeam,
    RowwiseStrategy,
    SplitColumnPanel,
    SplitRow,
    fallback,
)
from fusewright.loopnest.nest import Nest, with_fixed
from fusewright.loopnest.reduction_passes import KEEP_NOTHING, KeepPolicy
from fusewright.loopnest.vector_width import ACCESS_BYTES, vector_tensors

# kernels/rowwise/cuda/split_rows.cuh asserts the same numbers
SPLIT_BYTES, PANEL_BYTES = 278528, 2113536


def launch(nest: Nest, strategy: RowwiseStrategy) -> tuple[BodyPolicy, Launch]:
    """How rows are printed and started."""
    if isinstance(strategy, CpuRowStrategy):
        return cpu_launch(strategy)
    vector = 1 if isinstance(strategy, SplitColumnPanel | PartialColumnPanel) else strategy.vector
    wide, single = (_call(nest, strategy, v) for v in (vector, 1))
    return _policy(nest, strategy), Launch(
        wide,
        vector,
        single,
        vector_tensors=vector_tensors(nest),
        workspace=_workspace(strategy),
        fallback=_fallback(nest, strategy),
    )


def cpu_launch(strategy: CpuRowStrategy) -> tuple[BodyPolicy, Launch]:
    """The same on a CPU."""
    keep = KeepPolicy(strategy.keep, strategy.min_cost, shared_row=False)
    match strategy:
        case CpuRows():
            return BodyPolicy(keep), Launch(Call("run_rows"))
        case CpuSimdRows():
            function = "run_simd_rows_transposed" if strategy.transposed else "run_simd_rows"
            return BodyPolicy(keep, simd_rows=True), Launch(Call(function))


def _policy(nest: Nest, strategy: GpuRowStrategy) -> BodyPolicy:
    """What a body is for threads that share a row, and for those that have one each."""
    policy = BodyPolicy(KEEP_NOTHING, inverts_divisors=True)
    match strategy:
        case RowPerTeam(threads, vector, keep, load_once, fixed_sizes):
            keeps, load = KeepPolicy(keep, 0, threads > 1), "load_once" if load_once else "load"
            return BodyPolicy(keeps, load, threads > 1 or vector > 1, fixed_sizes=fixed_sizes)
        case ColumnPanel(threads, _, vector, keep):
            return BodyPolicy(
                KeepPolicy(keep, 0, threads > 1), inverts_divisors=threads * vector > 1
            )
        case ClusterRow(_, _, _, keep, fixed_sizes):
            return replace(policy, keep=KeepPolicy(keep, 0, True), fixed_sizes=fixed_sizes)
        case GridResidentRow():
            keeps = KeepPolicy(True, 0, True)
            return replace(policy, keep=keeps, fixed_sizes=strategy.fixed_sizes)
        case PipelinedRow():
            vectors = strategy.part_bytes // (ACCESS_BYTES * strategy.threads)
            placed = pipelined_reads(with_fixed(nest, strategy.fixed_sizes), vectors)
            return replace(policy, fixed_sizes=strategy.fixed_sizes, placed_reads=placed)
        case PartialReduction(load_once=True):
            return replace(policy, load="load_once")
        case PartialReduction() | SplitRow() | SplitColumnPanel() | PartialColumnPanel():
            return policy


def _call(nest: Nest, strategy: GpuRowStrategy, vector: int) -> Call:
    """The call that starts the rows with accesses of `vector` elements."""
    args = _template_args(nest, strategy, vector)
    scratch = ["workspace"] if _workspace(strategy) else []
    sizes = [size_text(nest.rows)]
    if isinstance(strategy, PartialReduction | PartialColumnPanel):
        sizes.append(size_text(times(nest.outer, nest.columns)))
    return Call(FUNCTIONS[type(strategy)], args, (*sizes, *scratch, "device", "stream"))


def _template_args(nest: Nest, strategy: GpuRowStrategy, vector: int) -> tuple[str | int, ...]:
    match strategy:
        case RowPerTeam(threads):
            return threads, vector
        case SplitRow(threads, _, loads):
            return threads, vector, loads
        case PartialReduction(threads, _, in_flight, part, state_bytes):
            accesses = (max(2, n // vector) for n in (in_flight, part))
            apart = ("true",) * (nest.outer != 1)  # parts of all rows are read at the same time
            return threads, vector, *accesses, state_bytes, *apart
        case ClusterRow(blocks, threads) | GridResidentRow(blocks, threads):
            return blocks, threads, vector
        case PipelinedRow(blocks, threads, _, part_bytes, resident):
            return blocks, threads, vector, part_bytes, *(resident,) * (resident > 0)
        case ColumnPanel() | SplitColumnPanel() | PartialColumnPanel():
            return _panel_args(strategy, vector)


def _panel_args(strategy: PanelStrategy, vector: int) -> tuple[int, ...]:
    match strategy:
        case ColumnPanel(threads, columns):
            return threads, columns, *(vector,) * (vector > 1)
        case SplitColumnPanel(threads, columns, loads):
            return threads, columns, loads
        case PartialColumnPanel(threads, columns, loads, part, state_bytes):
            return threads, columns, loads, part, state_bytes


FUNCTIONS = {
    RowPerTeam: "run_rows",
    SplitRow: "run_rows_split",
    PartialReduction: "run_rows_partial_reduction",
    ClusterRow: "run_rows_cluster",
    GridResidentRow: "run_rows_grid_resident",
    PipelinedRow: "run_rows_pipelined",
    ColumnPanel: "run_column_panels",
    SplitColumnPanel: "run_column_panels_split",
    PartialColumnPanel: "run_column_panels_partial_reduction",
}
# Bytes of scratch memory in which blocks meet.
WORKSPACE = {
    **dict.fromkeys((SplitRow, PartialReduction, GridResidentRow, PipelinedRow), SPLIT_BYTES),
    **dict.fromkeys((SplitColumnPanel, PartialColumnPanel), PANEL_BYTES),
}


def _workspace(strategy: GpuRowStrategy) -> str:
    size = WORKSPACE.get(type(strategy))
    return str(size) if size else ""


def _fallback(nest: Nest, strategy: GpuRowStrategy) -> Fallback | None:
    if not isinstance(strategy, RowPerTeam | ResidentRow):
        return None
    if not (other := fallback(strategy, nest)):
        return None
    policy, way = launch(nest, other)
    match strategy:
        case GridResidentRow(blocks, threads):
            resident = f"fits_grid<{blocks}, {threads}>(device)"
            return Fallback(policy, way, strategy.fixed_sizes, resident)
        case PipelinedRow(blocks):
            return Fallback(policy, way, strategy.fixed_sizes, f"fits_pipeline<{blocks}>(device)")
        case RowPerTeam() | ClusterRow():
            return Fallback(policy, way, strategy.fixed_sizes)
