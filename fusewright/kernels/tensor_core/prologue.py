"""How the kernel of a contraction is fed: each tensor that it reads as a whole, and in what form.

A family makes the record once for a node and a tile; launch, traffic, cost and scratch memory are
read from it. How a tensor lies is no part of it: that is the same whatever the tile.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from fusewright.ir.graph import Node

# Read where it lies; written as float16 numbers first, two for each element or one; or read where
# it lies and split into two float16 numbers on its way to the tensor cores.
OperandForm = Literal["direct", "packed hi+lo", "packed half", "split on the fly"]
PACKED_BYTES = {"packed hi+lo": 4, "packed half": 2}  # of an element


@dataclass(frozen=True)
class OperandPlan:
    """One tensor. aligned: it starts at a multiple of 16 bytes, as tensor maps want it."""

    tensor: Node
    form: OperandForm
    aligned: bool = False

    @property
    def is_packed(self) -> bool:
        return self.form in PACKED_BYTES

    @property
    def passes(self) -> int:
        """How often its bytes move: read, and what is packed is written and read, too."""
        return 1 + 2 * PACKED_BYTES.get(self.form, 0) // self.tensor.dtype.itemsize


@dataclass(frozen=True)
class Prologue:
    """operands: in the order of the kernel's arguments, those of the node first.  packed_bytes: of
    scratch memory for what is packed, as Python text with a slot for the batch size; None: nothing
    is packed."""

    operands: tuple[OperandPlan, ...]
    packed_bytes: str | None = None
