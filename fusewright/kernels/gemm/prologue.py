"""Product node + its tile -> Prologue: which factor is packed, and which is split."""

from __future__ import annotations

from fusewright.ir.graph import Node
from fusewright.kernels.gemm.match import Operand, operands
from fusewright.kernels.gemm.tile import Packing
from fusewright.kernels.tensor_core.prologue import OperandForm, OperandPlan, Prologue

# By packing: the form of the factor that has 128 rows in a tile, and that of the other one.
FORMS: dict[Packing, tuple[OperandForm, OperandForm]] = {
    "packed": ("split on the fly", "packed hi+lo"),
    "unpacked": ("split on the fly", "split on the fly"),
    "half": ("direct", "direct"),
}


def prologue(n: Node, packing: Packing, *, swap_operands: bool) -> Prologue:
    """How a product's kernel is fed both factors; tensor maps read what is not packed."""
    both = fed(n, packing, swap_operands=swap_operands)
    plans = [OperandPlan(f.tensor, form, aligned=form != "packed hi+lo") for f, form in both]
    packed = [f.packed_bytes for f, form in both if form == "packed hi+lo"]
    return Prologue(tuple(plans), packed[0] if packed else None)


def fed(n: Node, packing: Packing, *, swap_operands: bool) -> list[tuple[Operand, OperandForm]]:
    """The left and the right factor, each with its form."""
    tall, wide = FORMS[packing]
    forms = (wide, tall) if swap_operands else (tall, wide)
    return list(zip(operands(n), forms, strict=True))
