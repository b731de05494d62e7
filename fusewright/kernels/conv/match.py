"""Graph -> Graph: convolutions that a kernel of ours computes become `convolution` nodes.

    conv2d(x, w, b)             ->  convolution(x, w) + b as [out, 1, 1]
    conv_transpose2d(x, w, b)   ->  transposed_convolution(x, w) + b as [out, 1, 1]
    conv2d of 1 x 1             ->  matmul(w, pixels of x) + b, read where they lie: of 16 bits
                                    (or in full float32, where no kernel of convolutions takes it)
                                    matmul(pixels of x, w) + b, if x lies channels last: of 16 bits

A `conv` is a matrix product that is never stored, like `matmul`: for each image (and group), the
weights as [out, taps x in] times the image's patches as [taps x in, pixels]. Its result lies as
PyTorch lays it, pixels innermost, so what follows is computed on tiles of channels x pixels. The
patches exist in shared memory only. A transposed one is several of these: `subpixel_phases.py`.
Where the image lies channels last, so does the result: the node's `order` says so, its tiles are
pixels x channels, and images and weights of 16 bits are read where they lie if whole chunks do. Of
few channels, or of far strides, pixels of a cell become channels (`space_to_depth.py`).

Of float32 there are two classes: operands rounded as TF32 rounds them, where PyTorch does so, too;
and full float32, from two float16 terms of each operand, everywhere else.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from math import prod
from types import MappingProxyType
from typing import Any, Literal

import torch

from fusewright.common.dtypes import HALF
from fusewright.frontend.float32_precision import allows_tf32
from fusewright.frontend.library_calls import CONVOLUTION_CALLS, because, without_bias
from fusewright.frontend.lowering import with_memory_order
from fusewright.frontend.lowering.call import per_dimension
from fusewright.ir.builder import TensorExpr, reshape
from fusewright.ir.graph import Graph, Node, Size, node, numel, rebuild, rebuild_from, times
from fusewright.ir.specs import ConvSpec, GemmSpec, spec_of
from fusewright.kernels.conv.channels_last import inner, laid, last_order, lies_last, tails
from fusewright.kernels.conv.depthwise import TapWindow, depthwise
from fusewright.kernels.conv.geometry import (
    CONVOLUTIONS,
    TRANSPOSED,
    ConvGeometry,
    geometry,
    known,
)
from fusewright.kernels.conv.pointwise_as_gemm import as_gemm
from fusewright.kernels.conv.profitability import (
    TF32_CHANNELS,
    THIN_RESULTS,
    ConvThreshold,
    is_deep_transposed,
    is_shrinking_1x1,
    max_padding_overhead,
    padding_overhead,
)
from fusewright.kernels.conv.space_to_depth import cells
from fusewright.kernels.conv.subpixel_phases import Triple
from fusewright.kernels.gemm.match import K_BLOCK
from fusewright.kernels.interface import Tf32Probe
from fusewright.kernels.tensor_core.support import supports, why_unsupported
from fusewright.targets.arch import Arch, KernelName
from fusewright.targets.target import Target

PACKING_RULES = frozenset({"no-prepack", "no-workspace"})
# The least that was measured, 3 x 3 of 64 channels with ReLU: 0.0165 ms and eager 0.0233 where
# float32 rounds as TF32, 0.020 and 0.032 in full float32, 0.0145 and 0.0249 in 16 bits (H200)
# [m: conv-0001, conv-0006, conv-0007]; of groups, 3.2 MFLOP [m: conv-0010]. Of float32, PyTorch's
# are as fast up to the larger sizes where results lie channels last and are
# thin, or where single pixels become fewer (`is_shrinking_1x1`). With mma.sync all are predictions:
# nobody has timed these kernels on an A100.
LEAST_FLOPS: Mapping[ConvThreshold, int] = {
    ConvThreshold.FLOAT32: 230_000_000,
    ConvThreshold.FLOAT16: 230_000_000,
    ConvThreshold.BFLOAT16: 230_000_000,
    ConvThreshold.GROUPED: 1 << 22,
    ConvThreshold.THIN_RESULTS: 1 << 31,
    ConvThreshold.SHRINKING_1X1: 1 << 32,
    ConvThreshold.DEEP_TRANSPOSED: 1 << 30,
    ConvThreshold.EMPTY_TILES: 1 << 60,
}
OF_DTYPE: Mapping[torch.dtype, ConvThreshold] = MappingProxyType(
    {
        torch.float32: ConvThreshold.FLOAT32,
        torch.float16: ConvThreshold.FLOAT16,
        torch.bfloat16: ConvThreshold.BFLOAT16,
    }
)
LEAST_GROUP = 32  # results of a group of 16 bits that lies channels last [m: conv-0012, conv-0014]
LEAST_CHANNELS = 8
# What the image-to-column mode of a tensor map can hold: CUDA driver API, cuTensorMapEncodeIm2col.
# A transposed convolution has as many phases along a dimension at most.
MOST_STRIDE = 8
MOST_ELEMENTS = 0x7FFFFF00  # of an image whose cells are packed: cuda/space_to_depth.cuh
CORNERS = {2: (-128, 127, 255), 3: (-16, 15, 31)}  # first, last, and the last tap's distance


def convolution(
    graph: Graph,
    target: Target,
    precision: str = "eager",
    rules: frozenset[str] = frozenset(),
    probe: Tf32Probe | None = None,
) -> Graph:
    """Rewrite the library convolutions for which `target` has a kernel.

    precision: "eager" lets one of float32 round its operands as TF32 does, if PyTorch's own does;
    "ieee" does not.  rules: some forbid the packing that kernels begin with.
    probe: whether PyTorch's own convolution does round, which differs from size to size; by
    default, whether most of its kind do on an H200.
    """
    arch = target.arch
    if absent := why_unsupported(arch, "conv") if target.language == "cpp" else "":
        return rebuild(graph, lambda n: because(n, absent) if n.called in CONVOLUTION_CALLS else n)
    instances = count()
    joined = tails(graph)
    last = list[Node]()
    reduces = supports(arch, "conv.channel_reduction")
    within, cut = inner(graph), dict[int, Callable[[Node], Node | None]]()

    def change(old: Node, n: Node) -> Node:
        bare, part = id(old) not in joined, id(old) in within
        left = partial(_left, alone=bare and not part)
        if part and n.op == "narrow" and (whole := cut.get(id(n.args[0]))):
            return whole(n) or n
        if n.called not in CONVOLUTION_CALLS:
            return n
        call = _call(n)
        if call and supports(arch, "conv.depthwise") and (mapped := _mapped(call, n)):
            cut[id(mapped)] = partial(_mapped, call)
            return mapped
        why = _complaint(call, n, graph, target) if call else "its arguments are not plain"
        why = "our kernels pack what they read" if rules & PACKING_RULES else why
        if call and call.bias is None and bare and n.order and n.dtype in HALF:
            why = why or "channels last and without a tail, PyTorch's own is as fast"
        if call is None or why:
            return left(call, n, why)
        half, cell = n.dtype in HALF, _cell(call, n, target)
        rounds = _spec(call, next(instances), "half" if half else "tf32", cell)
        rounds = replace(rounds, reduces_channels=reduces and not n.order)
        rounded = _made(call, n, rounds)
        full = not half and (precision != "eager" or not (probe or usually_tf32)(rounded))
        lossless = full and supports(arch, "conv.float32")
        flops = graph.hint(_flops(call, n))
        if why := _inexact(rounded) * full or _idle(rounded, flops, full=full, bare=bare):
            return left(call, n, why)
        # In full float32, packing is faster than the product: 0.222 and 0.250 ms, 0.132 and
        # 0.170 [m: conv-0015, conv-0016].
        as_matmul: KernelName = "gemm.half" if half else "gemm.packed"
        reads = (half or full != lossless) and supports(arch, as_matmul)
        direct = _pointwise(call, n, rounds.instance) if reads else None
        if full and not lossless and not direct:
            return left(call, n, "our kernels for this GPU round as TF32 does")
        last.extend([n] * bool(n.order))
        made = direct or (_made(call, n, _in_full(rounds)) if full else rounded)
        return _with_bias(made, call.bias, n.order)

    made = rebuild_from(graph, change)
    return laid(made) if last else made


# ---- how precise PyTorch's own convolution is ----------------------------------------------------


def usually_tf32(n: Node) -> bool:
    """Whether most of this kind are TF32 on an H200 under cuDNN 9, if flags allow it
    [m: conv-0018, conv-0019, conv-0020, conv-0021, conv-0022]."""
    if not allows_tf32():
        return False
    g = geometry(n)
    skips = prod(g.kernel) == 1 and max(g.stride) > 1
    if g.phases:
        skips = any(k < s for k, s in zip(g.kernel, g.stride, strict=True))
    return g.groups == 1 and g.in_channels >= TF32_CHANNELS and not skips


# ---- what a call computes ------------------------------------------------------------------------


@dataclass(frozen=True)
class _ConvCall:
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
        return int(known((self.weight.shape[0],))[0]) // self.groups


ORDINARY = ("image", "weight", "bias", "stride", "padding", "dilation", "groups")
BACKWARDS = (*ORDINARY[:5], "output_padding", "groups", "dilation")


def _call(n: Node) -> _ConvCall | None:
    found = n.call.bind(n.args)
    if found is None:
        return None
    transposed = "transpose" in n.call.operator
    names = BACKWARDS if transposed else ORDINARY
    given = {**dict(zip(names, found.args, strict=False)), **found.kwargs}
    weight = given["weight"]
    rank = len(weight.shape) - 2
    stride, dilation = (per_dimension(given.get(name, 1), rank) for name in ("stride", "dilation"))
    reach = tuple(d * (k - 1) for d, k in zip(dilation, weight.shape[2:], strict=True))
    pads = _pads(given.get("padding", 0), reach)
    bias, groups = given.get("bias"), given.get("groups", 1)
    behind = per_dimension(given.get("output_padding", 0), rank) if transposed else None
    return _ConvCall(given["image"], weight, bias, stride, pads, dilation, groups, behind)


def _pads(padding: Any, reach: tuple[int, ...]) -> tuple[tuple[int, int], ...]:
    if padding == "same":  # of an odd number, the larger half is at the high side
        return tuple((r // 2, r - r // 2) for r in reach)
    return tuple((p, p) for p in per_dimension(0 if padding == "valid" else padding, len(reach)))


def _mapped(call: _ConvCall, n: Node) -> Node | None:
    """A depthwise convolution as a map, or a piece of one, as a causal one ends with."""
    spatial = [t.shape[2:] for t in (call.image, n, call.weight)]
    plain = call.behind is None and len(call.image.shape) == len(call.weight.shape)
    if not plain or not all(isinstance(size, int) for sizes in spatial for size in sizes):
        return None
    lows, stride = [low for low, _ in call.pads], list(call.stride)
    if n.op == "narrow":
        dim, start, step = known((n["dim"], n["start"], n["step"]))
        if dim < 2:
            return None
        lows[dim - 2] -= start * stride[dim - 2]
        stride[dim - 2] *= step
    each = zip(*map(known, spatial), stride, call.dilation, lows, strict=True)
    return depthwise(call.image, call.weight, call.bias, [TapWindow(*sizes) for sizes in each], n)


def _made(call: _ConvCall, n: Node, spec: ConvSpec) -> Node:
    """The convolution without its bias."""
    op = "conv" if call.behind is None else TRANSPOSED
    args = [call.image, call.weight]
    order = last_order(len(n.shape)) if n.order else ()
    return node(op, args, shape=n.shape, dtype=n.dtype, order=order, spec=spec)


def _spec(
    call: _ConvCall, instance: int, numerics: Literal["tf32", "half"], cell: Triple | None
) -> ConvSpec:
    return ConvSpec(
        len(call.stride),
        call.stride,
        call.pads,
        call.dilation,
        call.groups,
        instance,
        numerics,
        call.behind,
        cell=cell,
    )


def _in_full(rounds: ConvSpec) -> ConvSpec:
    """The same in full float32, whose tiles have no registers for reductions over channels."""
    return replace(rounds, numerics="float32", reduces_channels=False)


def _sizes(call: _ConvCall, n: Node, cell: Triple | None = None) -> ConvGeometry:
    """The sizes of a call, whatever it is that computes it."""
    return geometry(_made(call, n, _spec(call, 0, "tf32", cell)))


def _cell(call: _ConvCall, n: Node, target: Target) -> Triple | None:
    """Of few channels or far strides, the pixels that become channels."""
    if not supports(target.arch, "conv.space_to_depth"):
        return None
    if call.behind is not None or n.order or call.groups > 1:
        return None
    g = _sizes(call, n)
    few = g.in_channels < LEAST_CHANNELS or max(g.stride) > MOST_STRIDE
    found = cells(g) if few and g.in_channels * prod(g.in_size) < MOST_ELEMENTS else (1, 1, 1)
    return found if prod(found) > 1 else None


def _pointwise(call: _ConvCall, n: Node, instance: int) -> Node | None:
    """Of single pixels, the product that it is, if both factors can be read where they lie."""
    steps = {*known(call.weight.shape[2:]), *call.stride, call.groups}
    if steps != {1} or call.behind is not None or any(map(any, call.pads)):
        return None
    return as_gemm(call.image, call.weight, n, instance)


def came_from_conv(n: Node) -> bool:
    """Whether a contraction was a convolution."""
    return n.op in CONVOLUTIONS or (n.op == "matmul" and spec_of(n, GemmSpec).origin == "conv1x1")


def rounds_as_tf32(n: Node) -> bool:
    """Whether a kernel for a node of float32 rounds operands to 11 bits."""
    return n.op in CONVOLUTIONS and spec_of(n, ConvSpec).numerics == "tf32"


def _left(call: _ConvCall | None, n: Node, why: str, *, alone: bool) -> Node:
    """PyTorch's own. But for depthwise ones, it adds a bias in a kernel of its own: a tail does."""
    beside = call and call.bias is n.args[-1] and call.depth != 1 and n.dtype in OF_DTYPE
    if call is None or not beside or alone or len(n.shape) != len(call.weight.shape):
        return because(n, why)
    return _with_bias(without_bias(n, why), call.bias, n.order)


def _with_bias(made: Node, bias: Node | None, order: tuple[int, ...]) -> Node:
    if bias is None:
        return node("copy", [made], shape=made.shape, dtype=made.dtype, order=order)
    channels = (made.shape[1], *(1 for _ in made.shape[2:]))
    return with_memory_order(TensorExpr(made) + reshape(TensorExpr(bias), channels), order).node


# ---- whether it is worth a kernel ----------------------------------------------------------------


def _complaint(call: _ConvCall, n: Node, graph: Graph, target: Target) -> str:
    """Why the convolution stays a library call; "" if it does not."""
    if absent := why_unsupported(target.arch, "conv"):
        return absent
    if n.dtype not in OF_DTYPE:
        return f"our kernels take no {str(n.dtype).removeprefix('torch.')}"
    if len(call.image.shape) != len(call.weight.shape):
        return "it has no batch"
    if why := _misplaced(call, n, target):
        return why
    if not all(isinstance(size, int) for size in (*call.image.shape[1:], *n.shape[1:])):
        return "a size of its image depends on the batch size"
    made = _sizes(call, n, _cell(call, n, target))
    if made.walk.in_channels // call.groups < LEAST_CHANNELS:
        return f"{call.depth} input channels fill too little of what a kernel multiplies at a time"
    flops = graph.hint(_flops(call, n))
    thin = made.last and made.out_channels // made.groups < THIN_RESULTS
    threshold = OF_DTYPE[n.dtype]
    if call.groups > 1 and not made.last:
        threshold = ConvThreshold.GROUPED
    elif thin and n.dtype not in HALF:
        threshold = ConvThreshold.THIN_RESULTS
    if flops < LEAST_FLOPS[threshold]:
        return f"{flops / 1e6:.3g} MFLOP are too few for a kernel of ours"
    return misfit(made.walk, target.arch)


def _flops(call: _ConvCall, n: Node) -> Size:
    pixels = n if call.behind is None else call.image
    return times(2, numel((*pixels.shape, *call.weight.shape[1:])))


def _idle(n: Node, flops: int, *, full: bool, bare: bool) -> str:
    """Why PyTorch's own of float32 is as fast; "" if it is not."""
    if n.dtype in HALF:
        return ""
    g = geometry(n)
    shrinks = is_shrinking_1x1(g, full=full, bare=bare)
    if shrinks and flops < LEAST_FLOPS[ConvThreshold.SHRINKING_1X1]:
        return "its single pixels have few results, and they are few"
    if is_deep_transposed(g) and flops < LEAST_FLOPS[ConvThreshold.DEEP_TRANSPOSED]:
        return "its few results are deep sums, which PyTorch shares among more processors"
    times = padding_overhead(g) * (3 if full else 1)
    enough = flops >= LEAST_FLOPS[ConvThreshold.EMPTY_TILES]
    if enough or times <= max_padding_overhead(g, full=full, bare=bare):
        return ""
    return f"tiles would be {times:.1f} times its work"


def _misplaced(call: _ConvCall, n: Node, target: Target) -> str:
    """What about its tensors' places in memory keeps it from a kernel; "" if nothing."""
    if not n.order and not call.image.order and not call.weight.order:
        return ""
    if not supports(target.arch, "conv.channels_last"):
        return "its image, weight or result does not lie channel by channel"
    if not n.order or not all(map(lies_last, (call.image, n))):
        return "its image and its result lie neither channel by channel nor channels last"
    if call.weight.order and not lies_last(call.weight):
        return "its weights lie neither channel by channel nor channels last"
    every = zip(known(call.weight.shape[2:]), call.stride, call.dilation, strict=True)
    unseen = any(len({t * d % s for t in range(k)}) < s for k, s, d in every)
    if call.behind is not None and n.dtype in HALF and unseen:
        return "some of its results see no pixel"
    each = known((n.shape[1],))[0] // call.groups
    if call.groups > 1 and n.dtype in HALF and each < LEAST_GROUP:
        return f"groups of {each} results fill too little of a tile"
    return ""


def _phases_misfit(g: ConvGeometry) -> str:
    """What no kernel has room for; "" if nothing."""
    many = g.phases and max(g.stride) > MOST_STRIDE
    return f"a stride above {MOST_STRIDE} has too many phases" if many else ""


def _inexact(made: Node) -> str:
    """Why it is not computed in full float32; "" if it is. Two parts lose some 2^-24 of each
    product, and a plain sum as much with about each 16th."""
    g = geometry(made)
    depth = g.in_channels // g.groups * g.taps
    return "" if depth >= K_BLOCK else f"its sums of {depth} are more precise in PyTorch"


def _map_misfit(g: ConvGeometry) -> str:
    """What a tensor map cannot hold; "" if nothing."""
    if max(g.step) > MOST_STRIDE:
        return f"a stride above {MOST_STRIDE} does not fit a tensor map"
    deep = max(g.in_size[0], g.out_size[0], g.kernel[0]) > 1 or g.pad[0] > 0
    least, most, furthest = CORNERS[3 if deep else 2]
    corners = [corner for both in g.corners for corner in both]
    if min(corners) < least or max(corners) > most or g.reach > furthest:
        return "its padding or its reach does not fit a tensor map"
    return ""


def misfit(g: ConvGeometry, arch: Arch) -> str:
    """What the kernels of an architecture cannot read of an image; "" if nothing."""
    return _map_misfit(g) if arch.async_copy == "tensor map" else _phases_misfit(g)
