"""Matrix products."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from fusewright.fusion.planner import Kernel
from fusewright.ir.graph import Graph
from fusewright.ir.specs import GemmSpec, spec_of
from fusewright.kernels.gemm.launch import launch
from fusewright.kernels.gemm.match import product
from fusewright.kernels.gemm.triangle_masks import masked
from fusewright.kernels.gemm.triangular_tiles import ALL, band
from fusewright.kernels.interface import (
    Condition,
    Description,
    FullFloat32,
    MatchContext,
    StrategyContext,
)
from fusewright.kernels.tensor_core.description import describe
from fusewright.kernels.tensor_core.family import TensorCoreFamily
from fusewright.targets.target import Target


class GemmFamily(TensorCoreFamily):
    name = "gemm"
    stage = "product"
    anchors = frozenset({"product"})
    launch = staticmethod(launch)

    def match(self, graph: Graph, context: MatchContext) -> Graph:
        return product(graph, context.target, context.rules)

    def refine(self, graph: Graph, target: Target) -> Graph:
        return masked(graph, target)

    def describe(self, kernel: Kernel, strategy: Any, context: StrategyContext, /) -> Description:
        """Of a triangle's tiles only some are multiplied."""
        n, some = kernel.anchor, band(kernel)
        if n is None or some == ALL:
            return describe(kernel, strategy, context)
        share = some.share(*map(context.graph.hint, n.shape[-2:]))
        found = describe(kernel, strategy, context, share)
        skipped = "tiles of which a mask leaves nothing are not multiplied"
        return replace(found, why=(*found.why, skipped))

    def conditions(self, kernel: Kernel) -> tuple[Condition, ...]:
        """Eager's own products round where flags let them; what was a convolution is no product."""
        n = kernel.anchor
        if n is None or n.dtype is not torch.float32 or spec_of(n, GemmSpec).origin == "conv1x1":
            return ()
        return (FullFloat32(),)
