"""Attention: one pass over keys and values."""

from __future__ import annotations

from fusewright.ir.graph import Graph
from fusewright.kernels.attention.match import attention
from fusewright.kernels.gemm.launch import launch
from fusewright.kernels.interface import MatchContext
from fusewright.kernels.tensor_core.family import TensorCoreFamily


class AttentionFamily(TensorCoreFamily):
    name = "attention"
    stage = "attention"
    anchors = frozenset({"attention"})
    launch = staticmethod(launch)

    def match(self, graph: Graph, context: MatchContext) -> Graph:
        return attention(graph, context.target, context.rules)
