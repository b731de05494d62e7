"""A tile: what one thread block computes of a contraction.

result = rows x columns of the product, computed tile by tile: 128 rows of the factor that is
split x `width` rows of the factor that is packed. Factors of 16 bits are neither: the same
words tell which one has 128 rows in a tile.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Tile:
    """width: rows of the packed factor in one tile.  swapped: the left factor is the packed one.

    inline: no factor is packed in memory; both are split on their way to the tensor cores.
    parts: for how many parts of tiles there is room, where thread blocks share the depth of those
    tiles that do not fill a wave; 0 if they do not.  summed: each tile leaves a part of a fold over
    all columns, and a kernel behind it joins them.  joined: columns go on from image to image.
    own: half of a block's warps have it alone, and multiply while the others hand theirs out.
    """

    width: int
    swapped: bool
    inline: bool = False
    parts: int = 0
    summed: bool = False
    joined: bool = False
    own: bool = False
