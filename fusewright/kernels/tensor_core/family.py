"""What families with anchors on tensor cores have in common: what may follow one, and its tiles."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fusewright.fusion.axes import LoopAxes
from fusewright.fusion.epilogue import Epilogue
from fusewright.fusion.planner import Kernel
from fusewright.ir.graph import Node
from fusewright.kernels.interface import Description, KernelFamily, StrategyContext
from fusewright.kernels.tensor_core.description import describe
from fusewright.kernels.tensor_core.epilogue import epilogue
from fusewright.kernels.tensor_core.strategy import TensorCoreTile, default, neighbours
from fusewright.kernels.tensor_core.support import supports
from fusewright.targets.target import TARGETS, Target

UNPACKED = " and ".join(t.name for t in TARGETS.values() if supports(t.arch, "gemm.unpacked"))


class TensorCoreFamily(KernelFamily):
    strategies = (TensorCoreTile,)
    workspace_advice = (
        f"Kernels that pack nothing exist for {UNPACKED}; there, both factors have to lie row by "
        "row along k, and a fold must not take 256 columns."
    )
    default = staticmethod(default)
    neighbours = staticmethod(neighbours)

    def epilogue(
        self, members: Sequence[Node], axes: LoopAxes, outputs: Sequence[Node], target: Target
    ) -> Epilogue | None:
        return epilogue(members, axes, outputs)

    def describe(self, kernel: Kernel, strategy: Any, context: StrategyContext, /) -> Description:
        return describe(kernel, strategy, context)
