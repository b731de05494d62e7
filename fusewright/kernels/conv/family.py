"""Convolutions, transposed ones among them."""

from __future__ import annotations

import torch

from fusewright.fusion.planner import Kernel
from fusewright.ir.graph import BATCH_SLOT, Graph, Node
from fusewright.kernels.conv.geometry import CONVOLUTIONS
from fusewright.kernels.conv.match import convolution, rounds_as_tf32
from fusewright.kernels.conv.pool_fusion import pooled
from fusewright.kernels.conv.tf32_probe import probe_arguments, probe_this_gpu
from fusewright.kernels.conv.variants import variant_of
from fusewright.kernels.interface import Condition, MatchContext, RoundsAsTf32
from fusewright.kernels.tensor_core.family import TensorCoreFamily
from fusewright.kernels.tensor_core.variant import Variant
from fusewright.targets.target import Target


class ConvFamily(TensorCoreFamily):
    name = "conv"
    stage = "conv"
    anchors = frozenset(CONVOLUTIONS)

    def match(self, graph: Graph, context: MatchContext) -> Graph:
        probe = probe_this_gpu(graph.batch) if context.is_here else None
        return convolution(graph, context.target, context.precision, context.rules, probe)

    def refine(self, graph: Graph, target: Target) -> Graph:
        return pooled(graph, target)

    def variant(self, anchor: Node, /) -> Variant:
        return variant_of(anchor)

    def conditions(self, kernel: Kernel) -> tuple[Condition, ...]:
        """A kernel that rounds stands in for a convolution that does."""
        n = kernel.anchor
        if n is None or n.dtype is not torch.float32 or not rounds_as_tf32(n):
            return ()
        return (RoundsAsTf32(tuple(probe_arguments(n, BATCH_SLOT))),)
