"""What follows an anchor inside its tiles, and all that the planner asks of kernel families.

An anchor is a node that a family of kernels computes tile by tile, such as a matrix product; what
reads it is computed while a tile is near. Which members a kernel may have beside its anchor is for
its family to say: the planner knows no family, and is given who does (`Anchors`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from fusewright.fusion.axes import LoopAxes
from fusewright.ir.graph import Node
from fusewright.targets.target import Target


@dataclass(frozen=True)
class NoReduction:
    """Nothing that follows the anchor is reduced."""


@dataclass(frozen=True)
class Segment:
    """Reductions take so many neighbouring columns, all of which one tile holds."""

    columns: int


@dataclass(frozen=True)
class AllColumns:
    """A reduction takes all columns: each tile leaves a part, and another kernel joins them."""


Reduction = NoReduction | Segment | AllColumns


@dataclass(frozen=True)
class Epilogue:
    """rows, columns: the kernel's axes in the order of the anchor's memory, if it had any.

    reduction: what is reduced of a tile's columns.
    """

    rows: tuple[int, ...]
    columns: tuple[int, ...]
    reduction: Reduction


class Anchors(Protocol):
    """All that the planner knows of kernel families."""

    def family(self, members: Sequence[Node]) -> str:
        """The name of the family whose kernel computes these members."""
        ...

    def check(self, members: Sequence[Node], target: Target) -> None:
        """Raise Incompatible, with the reason for the record, if no kernel has all of these."""
        ...

    def epilogue(
        self, members: Sequence[Node], axes: LoopAxes, outputs: Sequence[Node], target: Target
    ) -> Epilogue | None:
        """What follows the anchor, None without one; or raise Incompatible, with the reason.

        axes: the common loops of the members.  outputs: those of them that are stored.
        """
        ...
