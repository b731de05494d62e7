"""Where a node's memory is, if that is not for the planner to choose."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from fusewright.ir.record import Record


@dataclass(frozen=True)
class Inside(Record):
    """In the memory of a larger tensor of `size` along `dim`, from its place `start` on."""

    dim: int
    start: int
    size: int


@dataclass(frozen=True)
class OwnCopy(Record):
    """Memory that nobody else shows or reads through, so that it is no needless copy.

    what: for whom it is: an output or an update of the model, or an operand as kernels read it.
    number: keeps two copies for the same apart.
    """

    what: Literal["output", "update", "operand"]
    number: int


@dataclass(frozen=True)
class Placement(Record):
    """The attribute `placement` of any node."""

    inside: Inside | None = None
    own_copy: OwnCopy | None = None
