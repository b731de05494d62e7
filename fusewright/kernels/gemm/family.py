"""Matrix products."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from fusewright.codegen.launch import BodyPolicy, Launch
from fusewright.fusion.planner import Kernel
from fusewright.ir.graph import Graph, Node
from fusewright.ir.specs import GemmSpec, spec_of
from fusewright.kernels.gemm import strategy
from fusewright.kernels.gemm.diagonal_band import ALL
from fusewright.kernels.gemm.launch import launch
from fusewright.kernels.gemm.match import product
from fusewright.kernels.gemm.prologue import prologue
from fusewright.kernels.gemm.tile import GemmTile
from fusewright.kernels.gemm.triangle_masks import masked
from fusewright.kernels.gemm.triangular_tiles import band
from fusewright.kernels.gemm.variants import BY_PACKING, GemmVariant, variant_of
from fusewright.kernels.interface import (
    Condition,
    Description,
    FullFloat32,
    MatchContext,
    StrategyContext,
)
from fusewright.kernels.tensor_core.anchor import anchor_of
from fusewright.kernels.tensor_core.description import describe
from fusewright.kernels.tensor_core.family import TensorCoreFamily
from fusewright.loopnest.nest import Nest
from fusewright.targets.target import Target

SKIPPED = "tiles of which a mask leaves nothing are not multiplied"


class GemmFamily(TensorCoreFamily):
    name = "gemm"
    stage = "gemm"
    anchors = frozenset({"matmul"})
    strategies = (GemmTile,)

    def match(self, graph: Graph, context: MatchContext) -> Graph:
        return product(graph, context.target, context.rules)

    def refine(self, graph: Graph, target: Target) -> Graph:
        return masked(graph, target)

    def variant(self, anchor: Node, /) -> GemmVariant:
        return variant_of(anchor)

    def default(self, nest: Nest, context: StrategyContext, /) -> GemmTile:
        return strategy.default(nest, context, band(nest.kernel))

    def neighbours(
        self, default: GemmTile, nest: Nest, context: StrategyContext, /
    ) -> Sequence[GemmTile]:
        return strategy.neighbours(default, nest, context, band(nest.kernel))

    def launch(self, nest: Nest, tile: GemmTile, /) -> tuple[BodyPolicy, Launch]:
        return launch(nest, tile, band(nest.kernel))

    def describe(self, kernel: Kernel, tile: GemmTile, context: StrategyContext, /) -> Description:
        n, some = anchor_of(kernel), band(kernel)
        fed = prologue(n, tile.packing, swap_operands=tile.swap_operands)
        share = some.share(*map(context.graph.hint, n.shape[-2:]))
        found = describe(BY_PACKING[tile.packing], kernel, fed, context, share)
        return found if some == ALL else replace(found, why=(*found.why, SKIPPED))

    def conditions(self, kernel: Kernel) -> tuple[Condition, ...]:
        """Eager's own matmuls round where flags let them; what was a convolution is none."""
        n = kernel.anchor
        if n is None or n.dtype is not torch.float32 or spec_of(n, GemmSpec).origin == "conv1x1":
            return ()
        return (FullFloat32(),)
