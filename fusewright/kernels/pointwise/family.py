"""Maps of elements, each computed alone: what may stand beside windows that share loads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import get_args

from fusewright.fusion.axes import Incompatible
from fusewright.ir.graph import Node
from fusewright.kernels.interface import KernelFamily
from fusewright.kernels.pointwise.launch import launch
from fusewright.kernels.pointwise.strategy import PointwiseStrategy, default, neighbours
from fusewright.targets.target import Target


class PointwiseFamily(KernelFamily):
    name = "pointwise"
    strategies = get_args(PointwiseStrategy)
    default = staticmethod(default)
    neighbours = staticmethod(neighbours)
    launch = staticmethod(launch)

    def owns(self, members: Sequence[Node]) -> bool:
        return True

    def check(self, members: Sequence[Node], target: Target) -> None:
        """What goes down the columns of windows shares loads; a team that reduces a row does
        not."""
        reduced = any(m.row.kind in ("reduction", "scan") for m in members)
        if reduced and any(m.has("taps") for m in members):
            raise Incompatible("a reduction would read each window alone")
