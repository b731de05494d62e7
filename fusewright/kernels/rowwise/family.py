"""Rows that are folded, each by a team of threads: what a target's kernels take."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, get_args

from fusewright.fusion.axes import Incompatible, LoopAxes
from fusewright.fusion.epilogue import Epilogue
from fusewright.fusion.planner import Kernel
from fusewright.ir.graph import Node
from fusewright.kernels.interface import Description, KernelFamily, StrategyContext
from fusewright.kernels.rowwise.launch import launch
from fusewright.kernels.rowwise.strategy import RowwiseStrategy, default, neighbours
from fusewright.targets.target import Target


class RowFamily(KernelFamily):
    """What families of whole rows have in common."""

    def epilogue(
        self, members: Sequence[Node], axes: LoopAxes, outputs: Sequence[Node], target: Target
    ) -> Epilogue | None:
        """None; raises Incompatible where no team of the target stores less of a row than it
        folds."""
        if axes.stored_length and target.language != "cuda":
            raise Incompatible("rows and what is stored of them have different lengths")
        return None

    def describe(self, kernel: Kernel, strategy: Any, context: StrategyContext, /) -> Description:
        folds = ", ".join(dict.fromkeys(f.op for f in kernel.folds))
        how = f"one row at a time: {folds} of a row, then the row again while it is still near"
        return Description((how,))


class RowwiseFamily(RowFamily):
    name = "rowwise"
    strategies = get_args(RowwiseStrategy)
    default = staticmethod(default)
    neighbours = staticmethod(neighbours)
    launch = staticmethod(launch)

    def owns(self, members: Sequence[Node]) -> bool:
        return any(m.row.kind == "reduction" for m in members)
