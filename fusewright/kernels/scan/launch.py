"""Nest of scanned rows + its strategy -> how it is printed, and the launcher that starts it."""

from __future__ import annotations

from fusewright.codegen.launch import BodyPolicy, Call, Launch
from fusewright.ir.graph import BatchSize, size_text, times
from fusewright.kernels.rowwise.launch import PANEL_BYTES, SPLIT_BYTES, cpu_launch
from fusewright.kernels.rowwise.strategy import CpuRowStrategy
from fusewright.kernels.scan.chunks import CHUNK_EACH
from fusewright.kernels.scan.strategy import (
    ChunkedScan,
    InChunks,
    LookbackScan,
    ScanInRegisters,
    ScanStrategy,
)
from fusewright.loopnest.nest import Nest
from fusewright.loopnest.reduction_passes import KeepPolicy
from fusewright.loopnest.vector_width import vector_tensors

END = ("device", "stream")


def launch(nest: Nest, strategy: ScanStrategy) -> tuple[BodyPolicy, Launch]:
    """How scanned rows are printed and started."""
    if isinstance(strategy, CpuRowStrategy):
        return cpu_launch(strategy)
    vector, tensors = strategy.vector, vector_tensors(nest)
    team = strategy.threads > 1 or isinstance(strategy, LookbackScan)
    keep = strategy.keep if isinstance(strategy, ScanInRegisters) else True
    policy = BodyPolicy(KeepPolicy(keep, 0, team), inverts_divisors=team or vector > 1)
    if isinstance(strategy, ScanInRegisters):
        rows = size_text(nest.rows)
        call, single = (Call("run_rows", (strategy.threads, v), (rows, *END)) for v in (vector, 1))
        return policy, Launch(call, vector, single, vector_tensors=tensors)
    call, single = (_chunks(nest, strategy, v) for v in (vector, 1))
    meets = not isinstance(strategy, ChunkedScan)
    size = PANEL_BYTES if _columns(strategy) > 1 else SPLIT_BYTES
    free = any(isinstance(s, BatchSize) for s in (nest.outer, nest.columns))
    return policy, Launch(
        call,
        vector,
        single,
        vector_tensors=tensors,
        workspace=str(size) if meets else "",
        needs=frozenset({"span_chunks"} if free else ()),
    )


def _columns(strategy: InChunks) -> int:
    return 1 if isinstance(strategy, LookbackScan) else strategy.columns


def _chunks(nest: Nest, strategy: InChunks, vector: int) -> Call:
    """How rows are scanned in chunks: from the first one on, or back from the last."""
    columns, each = _columns(strategy), strategy.elements
    if vector == 1 and columns == 1:
        each = min(each, CHUNK_EACH)
    blocks: tuple[int, ...] = ()
    match strategy:
        case LookbackScan():
            how, blocks = "lookback", (strategy.blocks,)
        case ChunkedScan():
            how = "chunked"
        case _:
            how = "chained"
    function = f"run_{'panel' if columns > 1 else 'row'}_scan_{how}"
    beside = columns if columns > 1 else vector
    back = ("true",) * any(not f.row.reversed_as for f in nest.kernel.reductions)
    scratch = () if isinstance(strategy, ChunkedScan) else ("workspace",)
    sizes = size_text(nest.rows), size_text(times(nest.outer, nest.columns))
    chosen: tuple[str | int, ...] = (*blocks, strategy.threads, beside, each, *back)
    return Call(function, chosen, (*sizes, *scratch, *END))
