"""Convolutions, transposed ones among them."""

from __future__ import annotations

from fusewright.ir.graph import Graph
from fusewright.kernels.conv.geometry import CONVOLUTIONS
from fusewright.kernels.conv.match import convolution
from fusewright.kernels.gemm.launch import launch
from fusewright.kernels.interface import MatchContext
from fusewright.kernels.tensor_core.family import TensorCoreFamily


class ConvFamily(TensorCoreFamily):
    name = "conv"
    stage = "convolution"
    anchors = frozenset(CONVOLUTIONS)
    launch = staticmethod(launch)

    def match(self, graph: Graph, context: MatchContext) -> Graph:
        return convolution(graph, context.target, context.precision, context.rules, context.probe)
