"""Rows that are reduced, each by a team of threads: what a target's kernels take."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, get_args

from fusewright.fusion.axes import Incompatible, LoopAxes
from fusewright.fusion.epilogue import Epilogue
from fusewright.fusion.planner import Kernel
from fusewright.ir.graph import Node
from fusewright.kernels.interface import Description, KernelFamily, StrategyContext
from fusewright.kernels.rowwise.launch import launch
from fusewright.kernels.rowwise.strategy import (
    ClusterRow,
    ColumnPanel,
    CpuRows,
    CpuSimdRows,
    GridResidentRow,
    PartialColumnPanel,
    PartialReduction,
    PipelinedRow,
    RowPerTeam,
    RowwiseStrategy,
    SplitColumnPanel,
    SplitRow,
    default,
    neighbours,
)
from fusewright.targets.target import Target

# Strategy -> who takes a row, behind "of each row by"; with the fields of the strategy.
CPU_TEXTS: Mapping[type, str] = {
    CpuRows: "one thread, row after row",
    CpuSimdRows: "a SIMD lane, neighbouring rows at a time",
}
GPU_TEXTS: Mapping[type, str] = {
    RowPerTeam: "a thread team of {threads}",
    SplitRow: "many blocks",
    PartialReduction: "many blocks",
    ClusterRow: "a cluster of {blocks} blocks",
    GridResidentRow: "{blocks} grid-resident blocks",
    PipelinedRow: "{blocks} grid-resident blocks",
    ColumnPanel: "a block that has a column panel of {columns}",
    SplitColumnPanel: "many blocks that have a column panel of {columns}",
    PartialColumnPanel: "many blocks that have a column panel of {columns}",
}
# What else is said of a strategy; of others, whether they keep what later passes read, if there
# are any.
JOINED, MEETING = "a second kernel joins their partial reductions", "they meet in memory"
MORE_TEXTS: Mapping[type, str] = {
    SplitRow: MEETING,
    PartialReduction: JOINED,
    GridResidentRow: f"{MEETING}; registers keep what later passes read",
    PipelinedRow: f"{MEETING} while the next row is loaded into shared memory",
    SplitColumnPanel: MEETING,
    PartialColumnPanel: JOINED,
}
READ_AGAIN = "later passes read the row again"
CPU_KEPT = "what later passes need is kept where computing it is costly"
GPU_KEPT = "registers keep what later passes read"


class RowFamily(KernelFamily):
    """What families of whole rows have in common. texts: of strategies, as in `GPU_TEXTS`."""

    texts: Mapping[type, str]

    def epilogue(
        self, members: Sequence[Node], axes: LoopAxes, outputs: Sequence[Node], target: Target
    ) -> Epilogue | None:
        """None; raises Incompatible where no team of the target stores less of a row than it
        reductions."""
        if axes.stored_length and target.language != "cuda":
            raise Incompatible("rows and what is stored of them have different lengths")
        return None

    def describe(self, kernel: Kernel, strategy: Any, context: StrategyContext, /) -> Description:
        reductions = ", ".join(dict.fromkeys(f.op for f in kernel.reductions))
        how = self.texts[type(strategy)].format_map(vars(strategy))
        kept = CPU_KEPT if type(strategy) in CPU_TEXTS else GPU_KEPT
        if not getattr(strategy, "keep", True):
            kept = READ_AGAIN
        more = MORE_TEXTS.get(type(strategy), kept)
        return Description((f"{reductions} of each row by {how}", more))


class RowwiseFamily(RowFamily):
    name = "rowwise"
    texts = MappingProxyType({**CPU_TEXTS, **GPU_TEXTS})
    strategies = get_args(RowwiseStrategy)
    default = staticmethod(default)
    neighbours = staticmethod(neighbours)
    launch = staticmethod(launch)

    def owns(self, members: Sequence[Node]) -> bool:
        return any(m.row.kind == "reduction" for m in members)
