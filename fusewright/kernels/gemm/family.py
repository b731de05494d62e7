"""Matrix products."""

from __future__ import annotations

from fusewright.ir.graph import Graph
from fusewright.kernels.gemm.launch import launch
from fusewright.kernels.gemm.match import product
from fusewright.kernels.interface import MatchContext
from fusewright.kernels.tensor_core.family import TensorCoreFamily


class GemmFamily(TensorCoreFamily):
    name = "gemm"
    stage = "product"
    anchors = frozenset({"product"})
    launch = staticmethod(launch)

    def match(self, graph: Graph, context: MatchContext) -> Graph:
        return product(graph, context.target, context.rules)
