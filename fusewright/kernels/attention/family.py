"""Attention, one pass over keys and values: its anchor, and what may follow it."""

from __future__ import annotations

from collections.abc import Sequence

from fusewright.fusion.axes import LoopAxes
from fusewright.fusion.epilogue import Epilogue
from fusewright.ir.graph import Graph, Node
from fusewright.kernels.attention.match import attention
from fusewright.kernels.gemm.launch import launch
from fusewright.kernels.interface import Context, KernelFamily
from fusewright.kernels.tensor_core.epilogue import epilogue
from fusewright.kernels.tensor_core.strategy import default, neighbours
from fusewright.targets.target import Target


class AttentionFamily(KernelFamily):
    name = "attention"
    stage = "attention"
    anchors = frozenset({"attention"})
    default = staticmethod(default)
    neighbours = staticmethod(neighbours)
    launch = staticmethod(launch)

    def match(self, graph: Graph, context: Context) -> Graph:
        return attention(graph, context.target, context.rules)

    def epilogue(
        self, members: Sequence[Node], axes: LoopAxes, outputs: Sequence[Node], target: Target
    ) -> Epilogue | None:
        return epilogue(members, axes, outputs)
