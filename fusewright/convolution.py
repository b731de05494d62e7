"""Graph -> Graph: convolutions that a kernel of ours computes become `convolution` nodes.

    conv2d(x, w, b)             ->  convolution(x, w) + b as [out, 1, 1]
    conv_transpose2d(x, w, b)   ->  transposed_convolution(x, w) + b as [out, 1, 1]
    conv2d of 1 x 1             ->  product(w, pixels of x) + b, read where they lie: of 16 bits,
                                    and in full float32

A `convolution` is a product that is never stored, like `product`: for each image (and group), the
weights as [out, taps x in] times the image's patches as [taps x in, pixels]. Its result lies as
PyTorch lays it, pixels innermost, so what follows is computed on tiles of channels x pixels. The
patches exist in shared memory only. A transposed one is several of these: `phases.py`.

Of float32 there are two classes: operands rounded as TF32 rounds them, where PyTorch does so, too;
and full float32, from two float16 `parts` of each operand, everywhere else.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from math import prod
from typing import Any

import torch

from fusewright.form import spread
from fusewright.formula import Value, permute, reshape
from fusewright.ir import Attribute, Graph, Node, Size, node, numel, rebuild, size_text, times
from fusewright.library import stays
from fusewright.phases import Phases, Triple, phases
from fusewright.product import HALVES, UNIT, arguments, factor_of
from fusewright.target import Target

PACKING_RULES = frozenset({"no-prepack", "no-workspace"})
NAMES = tuple(f"aten.conv{kind}{rank}d" for kind in ("", "_transpose") for rank in (1, 2, 3))
TRANSPOSED = "transposed_convolution"
CONVOLUTIONS = ("convolution", TRANSPOSED)
# A prediction for float32: below, four launches take longer than PyTorch's kernels. For 16 bits the
# least that was measured: there, three launches took 0.58 of eager's time. For Ampere both are
# predictions: nobody has timed these kernels on an A100.
LEAST_FLOPS = {torch.float32: 1 << 31, **dict.fromkeys(HALVES, 230_000_000)}
LEAST_CHANNELS, TF32_CHANNELS = 8, 32
# What the image-to-column mode of a tensor map can hold: CUDA driver API, cuTensorMapEncodeIm2col.
# A transposed convolution has as many phases along a dimension at most.
MOST_STRIDE = 8
CORNERS = {2: (-128, 127, 255), 3: (-16, 15, 31)}  # first, last, and the last tap's distance
CHUNKS = (16, 32, 64)
# Weights that a tile of a product has, and how many may be missing in the last one: a prediction.
TILE_ROWS, MOST_EMPTY_ROWS = 128, 32
# Bytes beside the packed elements, skeletons/cuda/pack_image.cuh: an exponent and sizes of each
# image; exponents behind the last row; five parts, each at a multiple of 256.
PER_IMAGE, BESIDE = 20, 256 * 4 + 5 * 256


@dataclass(frozen=True)
class Geometry:
    """One convolution, its spatial sizes as (depth, height, width); missing ones are 1.

    pad: at the low side of each dimension; the high side follows from the size of the result.
    phases: of a transposed one.  parts: float16 numbers that an operand is packed as.
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
    phases: Phases | None = None
    parts: int = 1

    @property
    def pixels(self) -> int:
        """Of one result image, or the places of one of its phases."""
        return prod(self.phases.places if self.phases else self.out_size)

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
        taps = zip(self.kernel, self.dilation, strict=True)
        return max(self.phases.reach if self.phases else ((k - 1) * d for k, d in taps))

    @property
    def chunk(self) -> int:
        """How many channels of one tap come into shared memory together."""
        each = self.in_channels // self.groups
        return min(CHUNKS, key=lambda c: (-(-each // c) * c, -c))

    @property
    def channels(self) -> int:
        """Input channels of a group as they are packed, filled up by zeros."""
        return -(-self.in_channels // self.groups // self.chunk) * self.chunk

    @property
    def packed_bytes(self) -> str:
        """The size of its packed images and weights, as Python text; `packed_image_in` of the
        skeleton needs it."""
        each = self.channels * 2 * self.parts
        image = prod(self.in_size) * self.groups * each + PER_IMAGE
        weights = self.products * self.rows * (self.taps * each + 4)
        return size_text(times(self.images, image)) + f" + {weights + BESIDE}"

    @property
    def corners(self) -> tuple[tuple[int, int], ...]:
        """Of each spatial dimension: where the first and the last pixel's patch begin, from the
        image's own first and last pixel."""
        if self.phases:
            every = zip(self.in_size, self.phases.places, self.phases.lowest, strict=True)
            return tuple((low, low + places - i) for i, places, low in every)
        return tuple(
            (-p, (o - 1) * s - p - (i - 1))
            for i, o, s, p in zip(self.in_size, self.out_size, self.stride, self.pad, strict=True)
        )


def geometry(n: Node) -> Geometry:
    """The sizes of a convolution node."""
    image, weight = n.args
    transposed = n.op == TRANSPOSED
    low = n["padding"] if transposed else tuple(reversed(_numbers(n["pads"])[::2]))
    groups, channels, results = _numbers((n["groups"], image.shape[1], n.shape[1]))
    out_size, kernel = _triple(n.shape[2:]), _triple(weight.shape[2:])
    stride, pad, dilation = _triple(n["stride"]), _triple(low, 0), _triple(n["dilation"])
    return Geometry(
        n.shape[0],
        groups,
        channels,
        results,
        _triple(image.shape[2:]),
        out_size,
        kernel,
        stride,
        pad,
        dilation,
        phases(kernel, stride, pad, dilation, out_size) if transposed else None,
        parts(n),
    )


def parts(n: Node) -> int:
    """How many float16 numbers a number of a convolution node is packed as: 2 for full float32."""
    return 2 if n.has("parts") else 1


def convolution(
    graph: Graph,
    target: Target,
    precision: str = "eager",
    rules: frozenset[str] = frozenset(),
    rounds: Rounds | None = None,
) -> Graph:
    """Rewrite the library convolutions for which `target` has a kernel.

    precision: "eager" lets one of float32 round its operands as TF32 does, if PyTorch's own does;
    "ieee" does not.  rules: some forbid the packing that kernels begin with.
    rounds: whether PyTorch's own convolution does round, which differs from size to size; by
    default, whether most of its kind do on an H200.
    """
    numbers = count()

    def change(n: Node) -> Node:
        if n.op != "library" or n["name"] not in NAMES:
            return n
        call = _call(n)
        why = _complaint(call, n, graph, target) if call else "its arguments are not plain"
        why = "our kernels pack what they read" if rules & PACKING_RULES else why
        if call is not None and not why:
            number = next(numbers)
            made = _made(call, n, number)
            half = n.dtype in HALVES
            full = not half and (precision != "eager" or not (rounds or mostly_rounds)(made))
            why = _imprecise(made) if full else ""
            exact = full or (half and target.half_products)
            if exact and not why and (direct := _pointwise(call, n, number)):
                return _with_bias(direct, call.bias)
            if full and "full" not in target.convolutions:
                why = why or "our kernels for this GPU round as TF32 does"
            if not why:
                more = {"parts": 2} if full else {"folded": "folded" in target.convolutions}
                return _with_bias(_made(call, n, number, **more), call.bias)
        return stays(n, why)

    return rebuild(graph, change) if target.convolutions else graph


# ---- how precise PyTorch's own convolution is ----------------------------------------------------

Rounds = Callable[[Node], bool]


def mostly_rounds(n: Node) -> bool:
    """Whether most convolutions of this kind are TF32 on an H200 under cuDNN 9: facts.md. None is
    where PyTorch's flags forbid it."""
    if not _allows_tf32():
        return False
    g = geometry(n)
    skips = prod(g.kernel) == 1 and max(g.stride) > 1
    if g.phases:
        skips = any(k < s for k, s in zip(g.kernel, g.stride, strict=True))
    return g.groups == 1 and g.in_channels >= TF32_CHANNELS and not skips


def _allows_tf32() -> bool:
    if hasattr(torch._C, "_get_fp32_precision_getter"):  # PyTorch 2.9 and newer
        return bool(torch._C._get_fp32_precision_getter("cuda", "conv") == "tf32")
    return bool(torch._C._get_cudnn_allow_tf32())


# ---- what a call computes ------------------------------------------------------------------------


@dataclass(frozen=True)
class _Call:
    """The arguments of conv1d, conv2d or conv3d. pads: of each dimension, low and high.

    behind: of a transposed one, how much larger its result is at the high sides.
    """

    image: Node
    weight: Node
    bias: Node | None
    stride: tuple[int, ...]
    pads: tuple[tuple[int, int], ...]
    dilation: tuple[int, ...]
    groups: int
    behind: tuple[int, ...] | None = None

    @property
    def depth(self) -> Size:
        """Input channels of one group."""
        if self.behind is None:
            return self.weight.shape[1]
        return int(_numbers((self.weight.shape[0],))[0]) // self.groups


ORDINARY = ("image", "weight", "bias", "stride", "padding", "dilation", "groups")
BACKWARDS = (*ORDINARY[:5], "output_padding", "groups", "dilation")


def _call(n: Node) -> _Call | None:
    found = arguments(n)
    if found is None:
        return None
    transposed = "transpose" in str(n["name"])
    names = BACKWARDS if transposed else ORDINARY
    given = {**dict(zip(names, found[0], strict=False)), **found[1]}
    weight = given["weight"]
    rank = len(weight.shape) - 2
    stride, dilation = (each(given.get(name, 1), rank) for name in ("stride", "dilation"))
    reach = tuple(d * (k - 1) for d, k in zip(dilation, weight.shape[2:], strict=True))
    pads = _pads(given.get("padding", 0), reach)
    bias, groups = given.get("bias"), given.get("groups", 1)
    behind = each(given.get("output_padding", 0), rank) if transposed else None
    return _Call(given["image"], weight, bias, stride, pads, dilation, groups, behind)


def each(value: Any, rank: int) -> tuple[int, ...]:
    """One number for all dimensions, or one for each."""
    values = (value,) if isinstance(value, int) else tuple(value)
    return values * rank if len(values) == 1 else values


def _pads(padding: Any, reach: tuple[int, ...]) -> tuple[tuple[int, int], ...]:
    if padding == "same":  # of an odd number, the larger half is at the high side
        return tuple((r // 2, r - r // 2) for r in reach)
    return tuple((p, p) for p in each(0 if padding == "valid" else padding, len(reach)))


def _made(call: _Call, n: Node, number: int, **more: Attribute) -> Node:
    """The convolution without its bias; the number keeps two of them apart."""
    asymmetric = any(low != high for low, high in call.pads)
    settings: dict[str, Attribute] = {
        "number": number,
        "rank": len(call.stride),
        "stride": call.stride,
        "padding": "same" if asymmetric else tuple(low for low, _ in call.pads),
        "dilation": call.dilation,
        "groups": call.groups,
    }
    if call.behind is not None:
        op, settings["output_padding"] = TRANSPOSED, call.behind
    else:  # as functional.pad wants it
        op, settings["pads"] = "convolution", tuple(p for both in reversed(call.pads) for p in both)
    args = [call.image, call.weight]
    return node(op, args, shape=n.shape, dtype=n.dtype, order=(), **settings, **more)


def _pointwise(call: _Call, n: Node, number: int) -> Node | None:
    """Of single pixels, the product that it is, if both factors can be read where they lie. Of 16
    bits, nothing is packed then; in float32, the image is, and weights are split."""
    steps = {*_numbers(call.weight.shape[2:]), *call.stride, call.groups}
    moved = call.behind is not None or any(map(any, call.pads))
    if steps != {1} or moved:
        return None
    images, results = n.shape[:2]
    lines = (images, call.depth, prod(_numbers(n.shape[2:])))
    image = permute(reshape(Value(call.image), lines), (0, 2, 1)).node
    weight = spread(reshape(Value(call.weight), (results, call.depth)).node, (images,))
    left, right = (factor_of(factor, flat=False) for factor in (weight, image))
    fits = left.streams and right.streams
    if n.dtype not in HALVES:
        fits = left.splits and -int(_numbers((results,))[0]) % TILE_ROWS <= MOST_EMPTY_ROWS
    if not (fits and right.turned):
        return None
    shape = (images, results, lines[2])  # numbers of products count up from 0
    made = node("product", [weight, image], shape=shape, dtype=n.dtype, number=-1 - number)
    return reshape(Value(made), n.shape).node


def was_convolution(n: Node) -> bool:
    """Whether a node of a product's kind was a convolution; `_pointwise` counts down from -1."""
    number = n["number"]
    return n.op in CONVOLUTIONS or (isinstance(number, int) and number < 0)


def rounds_as_tf32(n: Node) -> bool:
    """Whether a kernel for a node of float32 rounds operands to 11 bits."""
    return n.op in CONVOLUTIONS and parts(n) == 1


def _with_bias(made: Node, bias: Node | None) -> Node:
    if bias is None:
        return node("copy", [made], shape=made.shape, dtype=made.dtype)
    channels = (made.shape[1], *(1 for _ in made.shape[2:]))
    return (Value(made) + reshape(Value(bias), channels)).node


# ---- whether it is worth a kernel ----------------------------------------------------------------


def _complaint(call: _Call, n: Node, graph: Graph, target: Target) -> str:
    """Why the convolution stays a library call; "" if it does not."""
    if n.dtype not in LEAST_FLOPS:
        return f"our kernels take no {str(n.dtype).removeprefix('torch.')}"
    if len(call.image.shape) != len(call.weight.shape):
        return "it has no batch"
    if n.order or call.image.order or call.weight.order:
        return "its image, weight or result does not lie channel by channel"
    if not all(isinstance(size, int) for size in (*call.image.shape[1:], *n.shape[1:])):
        return "a size of its image depends on the batch size"
    if not isinstance(call.depth, int) or call.depth < LEAST_CHANNELS:
        return f"{call.depth} input channels fill too little of what a kernel multiplies at a time"
    pixels = n if call.behind is None else call.image
    flops = 2 * graph.hint(numel(pixels.shape)) * graph.hint(numel(call.weight.shape[1:]))
    if flops < LEAST_FLOPS[n.dtype]:
        return f"{flops / 1e6:.3g} MFLOP are too few for a kernel of ours"
    return MISFITS[target.product](geometry(_made(call, n, 0)))


def _phases_misfit(g: Geometry) -> str:
    """What no kernel has room for; "" if nothing."""
    many = g.phases and max(g.stride) > MOST_STRIDE
    return f"a stride above {MOST_STRIDE} has too many phases" if many else ""


def _imprecise(made: Node) -> str:
    """Why full float32 would be less precise than a plain sum; "" if it is not. Two parts lose some
    2^-24 of each product, and a plain sum as much with about each 16th."""
    g = geometry(made)
    depth = g.in_channels // g.groups * g.taps
    return "" if depth >= UNIT else f"its sums of {depth} are more precise in PyTorch"


def _map_misfit(g: Geometry) -> str:
    """What a tensor map cannot hold; "" if nothing."""
    if max(g.stride) > MOST_STRIDE:
        return f"a stride above {MOST_STRIDE} does not fit a tensor map"
    deep = max(g.in_size[0], g.out_size[0], g.kernel[0]) > 1 or g.pad[0] > 0
    least, most, furthest = CORNERS[3 if deep else 2]
    corners = [corner for both in g.corners for corner in both]
    if min(corners) < least or max(corners) > most or g.reach > furthest:
        return "its padding or its reach does not fit a tensor map"
    return ""


MISFITS = {"sm80": _phases_misfit, "sm90": _map_misfit}  # of `Target.product`


def _numbers(values: Any) -> Any:
    """The same; all of them are known at this point."""
    assert all(isinstance(v, int) for v in values), "only the number of images is free"
    return values


def _triple(values: Any, fill: int = 1) -> Triple:
    depth, height, width = (fill,) * (3 - len(values)) + tuple(_numbers(values))
    return depth, height, width
