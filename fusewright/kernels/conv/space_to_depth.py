"""Convolution of few channels or far strides -> cells: pixels that are packed as channels of one.

Along each dimension, a cell is one pixel, as many as a stride, or as many as the kernel. Kernels
see the convolution of cells (`ConvGeometry.walk`): of 7 x 7, stride 2, on 3 channels, 4 x 4 of
stride 1 on 12; patches that do not overlap become one cell each. `cuda/space_to_depth.cuh` packs
them.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from math import prod

from fusewright.kernels.conv.geometry import ConvGeometry
from fusewright.kernels.conv.subpixel_phases import Triple

# What a packed element costs that is written, in elements that are gathered: a prediction.
WRITTEN = 2


def cells(g: ConvGeometry) -> Triple:
    """The cells for which the fewest elements are packed and gathered; (1, 1, 1): none is better
    than pixels."""
    every = zip(g.kernel, g.stride, g.dilation, strict=True)
    sizes = [{1, k} | ({s} if s < k and d == 1 else set()) for k, s, d in every]
    options = [(depth, height, width) for depth, height, width in product(*sizes)]
    return min(options, key=lambda cell: (_elements(g, cell), -prod(cell)))


def _elements(g: ConvGeometry, cell: Triple) -> int:
    walk = replace(g, cells=cell).walk
    gathered = prod(walk.out_size) * walk.taps
    return (gathered + WRITTEN * prod(walk.in_size)) * walk.channels
