"""Convolution node -> Prologue: whether its image and its weights are packed."""

from __future__ import annotations

from fusewright.ir.graph import Node
from fusewright.kernels.conv.geometry import geometry, sources
from fusewright.kernels.tensor_core.prologue import OperandForm, OperandPlan, Prologue


def prologue(n: Node) -> Prologue:
    """How a convolution's kernel is fed; the same for all of its tiles."""
    g = geometry(n)
    last = g.last and g.cells is None
    whole = last and g.halves  # tensor maps read both where they lie
    form: OperandForm = "packed hi+lo" if g.parts > 1 else "packed half"
    tensors = sources(n) if last else n.args
    plans = [OperandPlan(t, "direct" if whole else form, aligned=whole) for t in tensors]
    return Prologue(tuple(plans), g.packed_bytes or None)
