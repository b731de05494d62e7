"""Rows that are folded, each by a team of threads: what a target's kernels take."""

from __future__ import annotations

from collections.abc import Sequence

from fusewright.fusion.axes import Incompatible, LoopAxes
from fusewright.fusion.epilogue import Epilogue
from fusewright.ir.graph import Node
from fusewright.kernels.interface import KernelFamily
from fusewright.kernels.rowwise.launch import launch
from fusewright.kernels.rowwise.strategy import default, neighbours
from fusewright.targets.target import Target


class RowwiseFamily(KernelFamily):
    name = "rowwise"
    default = staticmethod(default)
    neighbours = staticmethod(neighbours)
    launch = staticmethod(launch)

    def owns(self, members: Sequence[Node]) -> bool:
        return any(m.row.kind == "fold" for m in members)

    def epilogue(
        self, members: Sequence[Node], axes: LoopAxes, outputs: Sequence[Node], target: Target
    ) -> Epilogue | None:
        check_lengths(axes, target)
        return None


def check_lengths(axes: LoopAxes, target: Target) -> None:
    """Raise Incompatible where no team of the target stores less of a row than it folds."""
    if axes.stored_length and target.language != "cuda":
        raise Incompatible("rows and what is stored of them have different lengths")
