"""Attention: one pass over keys and values."""

from __future__ import annotations

import torch

from fusewright.fusion.planner import Kernel
from fusewright.ir.graph import Graph, Node
from fusewright.kernels.attention.match import attention
from fusewright.kernels.attention.variants import ATTENTION
from fusewright.kernels.interface import Condition, FullFloat32, MatchContext
from fusewright.kernels.tensor_core.family import TensorCoreFamily
from fusewright.kernels.tensor_core.variant import Variant


class AttentionFamily(TensorCoreFamily):
    name = "attention"
    stage = "attention"
    anchors = frozenset({"attention"})

    def match(self, graph: Graph, context: MatchContext) -> Graph:
        return attention(graph, context.target, context.rules)

    def variant(self, anchor: Node, /) -> Variant:
        return ATTENTION

    def conditions(self, kernel: Kernel) -> tuple[Condition, ...]:
        n = kernel.anchor
        return (FullFloat32(),) if n is not None and n.dtype is torch.float32 else ()
