"""The shape of a tile: what one thread block computes of a contraction.

result = rows x columns of the product, computed tile by tile: 128 rows of the factor that is
split x `width` rows of the factor that is packed. Factors of 16 bits are neither: the same
words tell which one has 128 rows in a tile.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

EpilogueSchedule = Literal["cooperative", "pingpong"]  # CUTLASS's words


@dataclass(frozen=True)
class TileShape:
    """width: rows of the packed factor in one tile.  swap_operands: the left factor is the packed
    one.  epilogue_schedule: all warps of a block compute a tile and hand it out together, or one
    group of them has a tile alone and multiplies while the other group hands its own out."""

    width: int
    swap_operands: bool
    epilogue_schedule: EpilogueSchedule = "cooperative"

    @property
    def is_pingpong(self) -> bool:
        return self.epilogue_schedule == "pingpong"
