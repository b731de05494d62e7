"""The families of kernels, and who of them computes which kernel.

Only the compiler, reports and the tuner import it: the stages between get what they ask for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fusewright.errors import InternalError
from fusewright.fusion.axes import LoopAxes
from fusewright.fusion.epilogue import Epilogue
from fusewright.fusion.planner import Kernel
from fusewright.ir.graph import Node
from fusewright.kernels.attention.family import AttentionFamily
from fusewright.kernels.conv.family import ConvFamily
from fusewright.kernels.gemm.family import GemmFamily
from fusewright.kernels.interface import KernelFamily
from fusewright.kernels.pointwise.family import PointwiseFamily
from fusewright.kernels.rowwise.family import RowwiseFamily
from fusewright.kernels.scan.family import ScanFamily
from fusewright.targets.target import Target

# Those with anchors first, since a kernel is its anchor's; then a kernel that scans is a scan,
# also if it folds, too. Calls are matched in this order: attention holds products.
FAMILIES: tuple[KernelFamily, ...] = (
    AttentionFamily(),
    GemmFamily(),
    ConvFamily(),
    ScanFamily(),
    RowwiseFamily(),
    PointwiseFamily(),
)


@dataclass(frozen=True)
class RegisteredAnchors:
    """What the planner asks, answered by the first family that owns a kernel's members."""

    families: tuple[KernelFamily, ...] = FAMILIES

    def family(self, members: Sequence[Node]) -> str:
        return self._owner(members).name

    def check(self, members: Sequence[Node], target: Target) -> None:
        for family in self.families:
            family.check(members, target)

    def epilogue(
        self, members: Sequence[Node], axes: LoopAxes, outputs: Sequence[Node], target: Target
    ) -> Epilogue | None:
        return self._owner(members).epilogue(members, axes, outputs, target)

    def _owner(self, members: Sequence[Node]) -> KernelFamily:
        found = next((f for f in self.families if f.owns(members)), None)
        if found is None:
            raise InternalError(f"No family has kernels of {', '.join(m.op for m in members)}.")
        return found


ANCHORS = RegisteredAnchors()


def family_of(kernel: Kernel) -> KernelFamily:
    """The family that the planner was told for a kernel."""
    return next(f for f in FAMILIES if f.name == kernel.family)
