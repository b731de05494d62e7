"""Convolution node -> ConvGeometry: its sizes, what its kernels pack, and what they read."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod
from typing import Any

from fusewright.common.dtypes import HALF
from fusewright.ir.graph import Node, Size, slots_text, times
from fusewright.ir.specs import ConvSpec, spec_of
from fusewright.kernels.conv.channels_last import lies_last, shown
from fusewright.kernels.conv.subpixel_phases import SubpixelPhases, Triple, phases

TRANSPOSED = "conv_transpose"
CONVOLUTIONS = ("conv", TRANSPOSED)
CHUNKS, BOX_COLUMNS = (16, 32, 64), 64
# Bytes beside the packed elements, kernels/conv/cuda/pack_image.cuh: an exponent and sizes of each
# image; exponents behind the last row; five parts, each at a multiple of 256.
PER_IMAGE, BESIDE = 20, 256 * 4 + 5 * 256


@dataclass(frozen=True)
class ConvGeometry:
    """One convolution, its spatial sizes as (depth, height, width); missing ones are 1.

    pad: at the low side of each dimension; the high side follows from the size of the result.
    phases: of a transposed one.  parts: float16 numbers that an operand is packed as.  last: images
    and results lie channels last, and so do weights or not.  halves: of 16 bits.  windows: pixels
    along each dimension that are computed together; a rest that is no window is left out.  cells:
    how many pixels are packed as channels of one, where some are.
    """

    images: Size
    groups: int
    in_channels: int
    out_channels: int
    in_size: Triple
    out_size: Triple
    kernel: Triple
    stride: Triple
    pad: Triple
    dilation: Triple
    phases: SubpixelPhases | None = None
    parts: int = 1
    last: bool = False
    last_weights: bool = False
    halves: bool = False
    windows: Triple = (1, 1, 1)
    cells: Triple | None = None

    @property
    def walk(self) -> ConvGeometry:
        """The convolution that kernels see: of cells, or the same."""
        if self.cells is None:
            return self
        every = zip(self.cells, self.kernel, self.in_size, self.out_size, strict=True)
        sizes = [(-(-k // c), o + -(-k // c) - 1) if c > 1 else (k, i) for c, k, i, o in every]
        kernel, in_size = (_triple(size) for size in zip(*sizes, strict=True))

        def where_cells(there: int, others: Triple) -> Triple:
            both = zip(self.cells or (), others, strict=True)
            return _triple([there if c > 1 else other for c, other in both])

        return replace(
            self,
            in_channels=self.in_channels * prod(self.cells),
            in_size=in_size,
            kernel=kernel,
            stride=where_cells(1, self.stride),
            pad=where_cells(0, self.pad),
            dilation=where_cells(1, self.dilation),
            cells=None,
        )

    @property
    def joined(self) -> bool:
        """Whether tiles go on from one image to the next."""
        return self.last and self.halves and not self.phases

    @property
    def packs(self) -> tuple[bool, bool]:
        """Whether the image and the weights are packed, and not read where they lie."""
        lies = self.last and self.halves and self.in_channels // self.groups % self.chunk == 0
        return not lies, not lies or not self.last_weights or self.phases is not None

    @property
    def pixels(self) -> int:
        """Of one result image, or the places of one of its phases."""
        if (together := prod(self.windows)) > 1:  # a box of 64 columns has whole windows
            return -(-prod(self.out_windows) * together // BOX_COLUMNS) * BOX_COLUMNS
        return prod(self.phases.places if self.phases else self.out_size)

    @property
    def out_windows(self) -> Triple:
        """The windows along each dimension of the result."""
        depth, height, width = (o // w for o, w in zip(self.out_size, self.windows, strict=True))
        return depth, height, width

    @property
    def products(self) -> int:
        """Of one image: one for each group and each phase that is not stacked."""
        return self.groups * (prod(self.phases.loose) if self.phases else 1)

    @property
    def rows(self) -> int:
        """Of one product: channels, or channels in each stacked phase."""
        return self.out_channels // self.groups * (prod(self.phases.stacked) if self.phases else 1)

    @property
    def taps(self) -> int:
        """Of one product, at most."""
        return prod(self.phases.taps if self.phases else self.kernel)

    @property
    def reach(self) -> int:
        """From the first tap to the last one, along the dimension where that is furthest."""
        if self.phases:
            return max(self.phases.reach)
        taps = zip(self.kernel, self.dilation, self.windows, self.stride, strict=True)
        return max((k - 1) * d + (w - 1) * s for k, d, w, s in taps)

    @property
    def chunk(self) -> int:
        """How many channels of one tap come into shared memory together."""
        each = self.walk.in_channels // self.groups
        return min(CHUNKS, key=lambda c: (-(-each // c) * c, -c))

    @property
    def channels(self) -> int:
        """Input channels of a group as they are packed, filled up by zeros."""
        return -(-self.walk.in_channels // self.groups // self.chunk) * self.chunk

    @property
    def packed_bytes(self) -> str:
        """The size of its packed images and weights, as text with slots for free sizes;
        `packed_image_in` of the device text needs it. "" if it packs neither."""
        if not any(self.packs):
            return ""
        each = self.channels * 2 * self.parts
        image = self.packs[0] * prod(self.walk.in_size) * self.groups * each + PER_IMAGE
        weights = self.products * self.rows * (self.walk.taps * each + 4)
        return slots_text(times(self.images, image)) + f" + {weights + BESIDE}"

    @property
    def corners(self) -> tuple[tuple[int, int], ...]:
        """Of each spatial dimension: where the first and the last pixel's patch begin, from the
        image's own first and last pixel."""
        if self.phases:
            every = zip(self.in_size, self.phases.places, self.phases.lowest, strict=True)
            return tuple((low, low + places - i) for i, places, low in every)
        places = zip(self.in_size, self.out_windows, self.step, self.pad, strict=True)
        return tuple((-p, (o - 1) * s - p - (i - 1)) for i, o, s, p in places)

    @property
    def step(self) -> Triple:
        """From one pixel to the next in the image, or from window to window."""
        depth, height, width = (s * w for s, w in zip(self.stride, self.windows, strict=True))
        return depth, height, width


def geometry(n: Node) -> ConvGeometry:
    """The sizes of a convolution node."""
    image, weight = n.args
    spec = spec_of(n, ConvSpec)
    channels, results = known((image.shape[1], n.shape[1]))
    out_size = _triple(spec.full_pixels or n.shape[2:])
    kernel = _triple(weight.shape[2:])
    stride, dilation = _triple(spec.stride), _triple(spec.dilation)
    pad = _triple(tuple(low for low, _ in spec.pads), 0)
    each = 0 if n.order else results // spec.groups
    phased = n.op == TRANSPOSED
    return ConvGeometry(
        n.shape[0],
        spec.groups,
        channels,
        results,
        _triple(image.shape[2:]),
        out_size,
        kernel,
        stride,
        pad,
        dilation,
        phases(kernel, stride, pad, dilation, out_size, each) if phased else None,
        parts(n),
        bool(n.order),
        lies_last(weight),
        n.dtype in HALF,
        _triple(spec.pool_window or (1,)),
        spec.cell,
    )


def is_stacked(n: Node) -> bool:
    """Whether neighbours along the width are rows of one product."""
    found = geometry(n).phases if n.op == TRANSPOSED else None
    return found is not None and found.stacked[2] > 1


def parts(n: Node) -> int:
    """How many float16 numbers a number of a convolution node is packed as: 2 for full float32."""
    return 2 if spec_of(n, ConvSpec).numerics == "float32" else 1


def sources(n: Node) -> tuple[Node, ...]:
    """The tensors that a convolution node reads."""
    return tuple(shown(a) if n.order else a for a in n.args)


def known(values: Any) -> Any:
    """The same; all of them are known at this point."""
    assert all(isinstance(v, int) for v in values), "only the number of images is free"
    return values


def _triple(values: Any, fill: int = 1) -> Triple:
    depth, height, width = (fill,) * (3 - len(values)) + tuple(known(values))
    return depth, height, width
