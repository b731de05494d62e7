"""Matrix products on tensor cores: their anchor, and what may follow it."""

from __future__ import annotations

from collections.abc import Sequence

from fusewright.fusion.axes import LoopAxes
from fusewright.fusion.epilogue import Epilogue
from fusewright.ir.graph import Graph, Node
from fusewright.kernels.gemm.launch import launch
from fusewright.kernels.gemm.match import product
from fusewright.kernels.interface import Context, KernelFamily
from fusewright.kernels.tensor_core.epilogue import epilogue
from fusewright.kernels.tensor_core.strategy import default, neighbours
from fusewright.targets.target import Target


class GemmFamily(KernelFamily):
    name = "gemm"
    stage = "product"
    anchors = frozenset({"product"})
    default = staticmethod(default)
    neighbours = staticmethod(neighbours)
    launch = staticmethod(launch)

    def match(self, graph: Graph, context: Context) -> Graph:
        return product(graph, context.target, context.rules)

    def epilogue(
        self, members: Sequence[Node], axes: LoopAxes, outputs: Sequence[Node], target: Target
    ) -> Epilogue | None:
        return epilogue(members, axes, outputs)
