"""Matrix products."""

from __future__ import annotations

import torch

from fusewright.fusion.planner import Kernel
from fusewright.ir.graph import Graph, Node
from fusewright.ir.specs import GemmSpec, spec_of
from fusewright.kernels.gemm.match import product
from fusewright.kernels.gemm.triangle_masks import masked
from fusewright.kernels.gemm.triangular_tiles import band
from fusewright.kernels.gemm.variants import variant_of
from fusewright.kernels.interface import (
    Condition,
    FullFloat32,
    MatchContext,
)
from fusewright.kernels.tensor_core.diagonal_band import DiagonalBand
from fusewright.kernels.tensor_core.family import TensorCoreFamily
from fusewright.kernels.tensor_core.variant import Variant
from fusewright.targets.target import Target


class GemmFamily(TensorCoreFamily):
    name = "gemm"
    stage = "gemm"
    anchors = frozenset({"matmul"})

    def match(self, graph: Graph, context: MatchContext) -> Graph:
        return product(graph, context.target, context.rules)

    def refine(self, graph: Graph, target: Target) -> Graph:
        return masked(graph, target)

    def variant(self, anchor: Node, /) -> Variant:
        return variant_of(anchor)

    def wanted(self, kernel: Kernel, /) -> DiagonalBand:
        return band(kernel)

    def conditions(self, kernel: Kernel) -> tuple[Condition, ...]:
        """Eager's own products round where flags let them; what was a convolution is no product."""
        n = kernel.anchor
        if n is None or n.dtype is not torch.float32 or spec_of(n, GemmSpec).origin == "conv1x1":
            return ()
        return (FullFloat32(),)
