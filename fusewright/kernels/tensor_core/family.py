"""What families with anchors on tensor cores have in common: what may follow one, and its tiles."""

from __future__ import annotations

from collections.abc import Sequence

from fusewright.fusion.axes import LoopAxes
from fusewright.fusion.epilogue import Epilogue
from fusewright.ir.graph import Node
from fusewright.kernels.interface import KernelFamily
from fusewright.kernels.tensor_core.epilogue import epilogue
from fusewright.kernels.tensor_core.strategy import default, neighbours
from fusewright.targets.target import Target


class TensorCoreFamily(KernelFamily):
    default = staticmethod(default)
    neighbours = staticmethod(neighbours)

    def epilogue(
        self, members: Sequence[Node], axes: LoopAxes, outputs: Sequence[Node], target: Target
    ) -> Epilogue | None:
        return epilogue(members, axes, outputs)
