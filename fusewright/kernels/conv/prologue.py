"""Convolution node -> Prologue: whether its image and its weights are packed."""

from __future__ import annotations

from fusewright.ir.graph import Node
from fusewright.kernels.conv.geometry import geometry, sources
from fusewright.kernels.tensor_core.prologue import OperandForm, OperandPlan, Prologue


def prologue(n: Node) -> Prologue:
    """How a convolution's kernel is fed; the same for all of its tiles."""
    g = geometry(n)
    last = g.last and g.cells is None
    form: OperandForm = "packed hi+lo" if g.parts > 1 else "packed half"
    both = zip(sources(n), g.packs, strict=True) if last else ((t, True) for t in n.args)
    aligned = last and g.halves  # tensor maps may read both where they lie
    plans = [OperandPlan(t, form if packs else "direct", aligned) for t, packs in both]
    return Prologue(tuple(plans), g.packed_bytes or None)
