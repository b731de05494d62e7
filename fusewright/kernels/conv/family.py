"""Convolutions on tensor cores: their anchors, and what may follow them."""

from __future__ import annotations

from collections.abc import Sequence

from fusewright.fusion.axes import LoopAxes
from fusewright.fusion.epilogue import Epilogue
from fusewright.ir.graph import Graph, Node
from fusewright.kernels.conv.geometry import CONVOLUTIONS
from fusewright.kernels.conv.match import convolution
from fusewright.kernels.gemm.launch import launch
from fusewright.kernels.interface import Context, KernelFamily
from fusewright.kernels.tensor_core.epilogue import epilogue
from fusewright.kernels.tensor_core.strategy import default, neighbours
from fusewright.targets.target import Target


class ConvFamily(KernelFamily):
    name = "conv"
    stage = "convolution"
    anchors = frozenset(CONVOLUTIONS)
    default = staticmethod(default)
    neighbours = staticmethod(neighbours)
    launch = staticmethod(launch)

    def match(self, graph: Graph, context: Context) -> Graph:
        return convolution(graph, context.target, context.precision, context.rules, context.probe)

    def epilogue(
        self, members: Sequence[Node], axes: LoopAxes, outputs: Sequence[Node], target: Target
    ) -> Epilogue | None:
        return epilogue(members, axes, outputs)
