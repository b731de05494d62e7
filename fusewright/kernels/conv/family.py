"""Convolutions, transposed ones among them."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from fusewright.codegen.launch import BodyPolicy, Launch
from fusewright.fusion.planner import Kernel
from fusewright.ir.graph import Graph, Node, slots_text
from fusewright.kernels.conv import strategy
from fusewright.kernels.conv.geometry import CONVOLUTIONS
from fusewright.kernels.conv.launch import launch
from fusewright.kernels.conv.match import convolution, rounds_as_tf32
from fusewright.kernels.conv.pool_fusion import pooled
from fusewright.kernels.conv.prologue import prologue
from fusewright.kernels.conv.tf32_probe import probe_arguments, probe_this_gpu
from fusewright.kernels.conv.tile import ConvTile
from fusewright.kernels.conv.variants import ConvVariant, variant_of
from fusewright.kernels.interface import (
    Condition,
    Description,
    MatchContext,
    RoundsAsTf32,
    StrategyContext,
)
from fusewright.kernels.tensor_core.anchor import anchor_of
from fusewright.kernels.tensor_core.description import describe
from fusewright.kernels.tensor_core.family import TensorCoreFamily
from fusewright.loopnest.nest import Nest
from fusewright.targets.target import Target


class ConvFamily(TensorCoreFamily):
    name = "conv"
    stage = "conv"
    anchors = frozenset(CONVOLUTIONS)
    strategies = (ConvTile,)

    def match(self, graph: Graph, context: MatchContext) -> Graph:
        probe = probe_this_gpu(graph.example) if context.is_here else None
        return convolution(graph, context.target, context.precision, context.rules, probe)

    def refine(self, graph: Graph, target: Target) -> Graph:
        return pooled(graph, target)

    def variant(self, anchor: Node, /) -> ConvVariant:
        return variant_of(anchor)

    def default(self, nest: Nest, context: StrategyContext, /) -> ConvTile:
        return strategy.default(nest, context)

    def neighbours(
        self, default: ConvTile, nest: Nest, context: StrategyContext, /
    ) -> Sequence[ConvTile]:
        return strategy.neighbours(default, nest, context)

    def launch(self, nest: Nest, tile: ConvTile, /) -> tuple[BodyPolicy, Launch]:
        return launch(nest, tile, variant_of(anchor_of(nest.kernel)).launcher_for(tile))

    def describe(self, kernel: Kernel, tile: ConvTile, context: StrategyContext, /) -> Description:
        n = anchor_of(kernel)
        return describe(variant_of(n), kernel, prologue(n), context)

    def conditions(self, kernel: Kernel) -> tuple[Condition, ...]:
        """A kernel that rounds stands in for a convolution that does."""
        n = kernel.anchor
        if n is None or n.dtype is not torch.float32 or not rounds_as_tf32(n):
            return ()
        return (RoundsAsTf32(tuple(probe_arguments(n, slots_text))),)
