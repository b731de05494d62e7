"""Attention: one pass over keys and values."""

from __future__ import annotations

import torch

from fusewright.fusion.planner import Kernel
from fusewright.ir.graph import Graph
from fusewright.kernels.attention.match import attention
from fusewright.kernels.gemm.launch import launch
from fusewright.kernels.interface import Condition, FullFloat32, MatchContext
from fusewright.kernels.tensor_core.family import TensorCoreFamily


class AttentionFamily(TensorCoreFamily):
    name = "attention"
    stage = "attention"
    anchors = frozenset({"attention"})
    launch = staticmethod(launch)

    def match(self, graph: Graph, context: MatchContext) -> Graph:
        return attention(graph, context.target, context.rules)

    def conditions(self, kernel: Kernel) -> tuple[Condition, ...]:
        n = kernel.anchor
        return (FullFloat32(),) if n is not None and n.dtype is torch.float32 else ()
