"""What families with anchors on tensor cores have in common: what may follow one."""

from __future__ import annotations

from collections.abc import Sequence

from fusewright.fusion.axes import LoopAxes
from fusewright.fusion.epilogue import Epilogue
from fusewright.ir.graph import Node
from fusewright.kernels.interface import KernelFamily
from fusewright.kernels.tensor_core.epilogue import epilogue
from fusewright.kernels.tensor_core.support import supports
from fusewright.kernels.tensor_core.variant import Variant
from fusewright.targets.target import TARGETS, Target

UNPACKED = " and ".join(t.name for t in TARGETS.values() if supports(t.arch, "gemm.unpacked"))


class TensorCoreFamily(KernelFamily):
    workspace_advice = (
        f"Kernels that pack nothing exist for {UNPACKED}; there, both operands have to lie row by "
        "row along k, and a reduction must not take 256 columns."
    )

    def variant(self, anchor: Node, /) -> Variant:
        """The row of the family's variants whose kernels compute an anchor."""
        raise NotImplementedError

    def epilogue(
        self, members: Sequence[Node], axes: LoopAxes, outputs: Sequence[Node], target: Target
    ) -> Epilogue | None:
        (anchor,) = (m for m in members if m.row.kind == "contraction")
        return epilogue(self.variant(anchor), members, axes, outputs)
