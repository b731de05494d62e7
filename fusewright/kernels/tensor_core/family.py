"""What families with anchors on tensor cores have in common: what may follow one, and its tiles."""

from __future__ import annotations

from collections.abc import Sequence

from fusewright.codegen.launch import BodyPolicy, Launch
from fusewright.errors import InternalError
from fusewright.fusion.axes import LoopAxes
from fusewright.fusion.epilogue import Epilogue
from fusewright.fusion.planner import Kernel
from fusewright.ir.graph import Node
from fusewright.kernels.interface import Description, KernelFamily, StrategyContext
from fusewright.kernels.tensor_core import launch, strategy
from fusewright.kernels.tensor_core.description import describe
from fusewright.kernels.tensor_core.diagonal_band import ALL, DiagonalBand
from fusewright.kernels.tensor_core.epilogue import epilogue
from fusewright.kernels.tensor_core.strategy import TensorCoreTile
from fusewright.kernels.tensor_core.support import supports
from fusewright.kernels.tensor_core.variant import Variant
from fusewright.loopnest.nest import Nest
from fusewright.targets.target import TARGETS, Target

UNPACKED = " and ".join(t.name for t in TARGETS.values() if supports(t.arch, "gemm.unpacked"))


class TensorCoreFamily(KernelFamily):
    strategies = (TensorCoreTile,)
    workspace_advice = (
        f"Kernels that pack nothing exist for {UNPACKED}; there, both factors have to lie row by "
        "row along k, and a fold must not take 256 columns."
    )

    def variant(self, anchor: Node, /) -> Variant:
        """The row of the family's variants whose kernels compute an anchor."""
        raise NotImplementedError

    def wanted(self, kernel: Kernel, /) -> DiagonalBand:
        """The elements of the anchor that are not thrown away."""
        return ALL

    def epilogue(
        self, members: Sequence[Node], axes: LoopAxes, outputs: Sequence[Node], target: Target
    ) -> Epilogue | None:
        (anchor,) = (m for m in members if m.row.kind == "contraction")
        return epilogue(self.variant(anchor), members, axes, outputs)

    def default(self, nest: Nest, context: StrategyContext, /) -> TensorCoreTile:
        return strategy.default(self._kind(nest.kernel), nest, context, self.wanted(nest.kernel))

    def neighbours(
        self, default: TensorCoreTile, nest: Nest, context: StrategyContext, /
    ) -> Sequence[TensorCoreTile]:
        kind, some = self._kind(nest.kernel), self.wanted(nest.kernel)
        return strategy.neighbours(kind, default, nest, context, some)

    def launch(self, nest: Nest, strategy: TensorCoreTile, /) -> tuple[BodyPolicy, Launch]:
        return launch.launch(self._kind(nest.kernel), nest, strategy, self.wanted(nest.kernel))

    def describe(
        self, kernel: Kernel, strategy: TensorCoreTile, context: StrategyContext, /
    ) -> Description:
        kind = self._kind(kernel).for_tile(strategy.tile)
        return describe(kind, kernel, strategy, context, self.wanted(kernel))

    def _kind(self, kernel: Kernel) -> Variant:
        if kernel.anchor is None:
            raise InternalError("A tile is a contraction's.")
        return self.variant(kernel.anchor)
