"""The strategy of a convolution's kernel: its tile, and what that holds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from fusewright.kernels.tensor_core.tile import TileShape


@dataclass(frozen=True, kw_only=True)
class ConvTile(TileShape):
    """blocks_per_sm: how many thread blocks share a processor.  images: whether a tile may have
    pixels of one image, or goes on with those of the next.  output: each tile's pixels are stored,
    or it leaves a part of a reduction over all pixels, and a kernel behind it joins them.  vector:
    elements of an access behind the convolution."""

    blocks_per_sm: int
    images: Literal["single", "multi"] = "single"
    output: Literal["pixels", "pixel_reduction"] = "pixels"
    vector: int = 1
