"""The strategy of a product's kernel: its tile, what shares that, and how it is fed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from fusewright.kernels.tensor_core.tile import TileShape


@dataclass(frozen=True)
class NoSplit:
    """One block, or a cluster of them, multiplies the whole depth of a tile."""


@dataclass(frozen=True)
class SplitK:
    """Tiles that do not fill a wave are cut into equal parts of their depth, a block each.

    parts: for how many of them there is room, of all these tiles together.
    """

    parts: int


@dataclass(frozen=True)
class StreamK:
    """The steps of all tiles that do not fill a wave stand in a row, of which each cluster has a
    piece of the same length. parts: of tiles, for how many of which there is room."""

    parts: int


DepthSplit = NoSplit | SplitK | StreamK
NO_SPLIT = NoSplit()
# The factor that has `width` rows in a tile is written as float16 terms first; none is, both are
# split on their way to the tensor cores; or both have 16 bits.
Packing = Literal["packed", "unpacked", "half"]


@dataclass(frozen=True, kw_only=True)
class GemmTile(TileShape):
    """vector: elements of an access behind the product.  reduce: how thread blocks share the depth
    of tiles.  packing: of the factors."""

    packing: Packing
    reduce: DepthSplit = NO_SPLIT
    vector: int = 1
