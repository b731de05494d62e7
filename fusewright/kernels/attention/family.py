"""Attention: one pass over keys and values."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from fusewright.codegen.launch import BodyPolicy, Launch
from fusewright.codegen.value_names import ValueNames
from fusewright.fusion.planner import Kernel
from fusewright.ir.graph import Graph, Node
from fusewright.kernels.attention.launch import launch
from fusewright.kernels.attention.match import attention, width
from fusewright.kernels.attention.prologue import prologue
from fusewright.kernels.attention.tile import AttentionTile
from fusewright.kernels.attention.variants import ATTENTION
from fusewright.kernels.interface import (
    Condition,
    Description,
    FullFloat32,
    MatchContext,
    StrategyContext,
)
from fusewright.kernels.tensor_core.anchor import access, anchor_of
from fusewright.kernels.tensor_core.description import describe
from fusewright.kernels.tensor_core.family import TensorCoreFamily
from fusewright.kernels.tensor_core.variant import Variant
from fusewright.loopnest.nest import Nest


class AttentionFamily(TensorCoreFamily):
    name = "attention"
    stage = "attention"
    anchors = frozenset({"attention"})
    strategies = (AttentionTile,)

    def match(self, graph: Graph, context: MatchContext) -> Graph:
        return attention(graph, context.target, context.rules)

    def variant(self, anchor: Node, /) -> Variant:
        return ATTENTION

    def default(self, nest: Nest, context: StrategyContext, /) -> AttentionTile:
        """Its sizes have one tile; who matched it knows that it fits."""
        return AttentionTile(width(anchor_of(nest.kernel)), access(ATTENTION, nest))

    def neighbours(
        self, default: AttentionTile, nest: Nest, context: StrategyContext, /
    ) -> Sequence[AttentionTile]:
        return ()

    def launch(self, nest: Nest, tile: AttentionTile, /) -> tuple[BodyPolicy, Launch]:
        return launch(nest, tile)

    def launch_with(
        self, nest: Nest, tile: AttentionTile, names: ValueNames, /
    ) -> tuple[BodyPolicy, Launch]:
        return launch(nest, tile, names)

    def describe(
        self, kernel: Kernel, tile: AttentionTile, context: StrategyContext, /
    ) -> Description:
        return describe(ATTENTION, kernel, prologue(anchor_of(kernel)), context)

    def conditions(self, kernel: Kernel) -> tuple[Condition, ...]:
        n = kernel.anchor
        return (FullFloat32(),) if n is not None and n.dtype is torch.float32 else ()
