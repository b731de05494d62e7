"""Running sums and products along rows: what may stand beside them in a kernel."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import get_args

from fusewright.fusion.axes import Incompatible
from fusewright.ir.graph import Graph, Node
from fusewright.kernels.interface import MatchContext
from fusewright.kernels.rowwise.family import CPU_TEXTS, RowFamily
from fusewright.kernels.scan.launch import launch
from fusewright.kernels.scan.match import in_chunks, scan
from fusewright.kernels.scan.strategy import (
    ChainedScan,
    ChunkedScan,
    InChunks,
    LookbackScan,
    ScanInRegisters,
    default,
    neighbours,
)
from fusewright.targets.target import Target

MAX_SCANS = 4  # of one kernel: a team keeps a row of each in its registers

GPU_TEXTS: Mapping[type, str] = {  # as those of rows that are reduced
    ScanInRegisters: "a thread team of {threads}",
    ChunkedScan: "a block, chunk by chunk",
    LookbackScan: "{blocks} blocks that take its chunks in turn",
    ChainedScan: "a block for each chunk, which waits for the chunk before",
}


class ScanFamily(RowFamily):
    name = "scan"
    stage = "scan"
    texts = MappingProxyType({**CPU_TEXTS, **GPU_TEXTS})
    strategies = (ScanInRegisters, *get_args(InChunks))
    default = staticmethod(default)
    neighbours = staticmethod(neighbours)
    launch = staticmethod(launch)

    def owns(self, members: Sequence[Node]) -> bool:
        return any(m.row.kind == "scan" for m in members)

    def match(self, graph: Graph, context: MatchContext) -> Graph:
        return scan(graph, context.target)

    def check(self, members: Sequence[Node], target: Target) -> None:
        scans = [m for m in members if m.row.kind == "scan"]
        if scans and any(m.row.kind == "contraction" for m in members):
            raise Incompatible("a scan goes along whole rows, not along tiles")
        if len(scans) > MAX_SCANS:
            raise Incompatible("too many scans for the registers of one kernel")
        chunks = target.language == "cuda" and any(map(in_chunks, scans))
        ways = {bool(m.row.reversed_as) for m in scans}
        if chunks and (len(ways) > 1 or any(m.row.kind == "reduction" for m in members)):
            raise Incompatible("rows in chunks are scanned in one direction, and not reduced")
