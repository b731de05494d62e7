"""Nest with a contraction + its tile -> how it is printed and started.

That is: what it reads as a whole, its launcher with its arguments, its scratch memory.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from fusewright.codegen.kernel_text import TYPES
from fusewright.codegen.launch import BodyPolicy, Call, Launch, WholeTensor
from fusewright.fusion.epilogue import Segment
from fusewright.fusion.planner import Kernel
from fusewright.ir.graph import BATCH_SLOT, Node, size_text, times
from fusewright.kernels.attention import launch as attention
from fusewright.kernels.conv.geometry import BOX_COLUMNS, CONVOLUTIONS, geometry
from fusewright.kernels.gemm.match import Operand, operands
from fusewright.kernels.gemm.triangular_tiles import ALL, band
from fusewright.kernels.tensor_core.strategy import TensorCoreTile
from fusewright.kernels.tensor_core.tile import WIDTHS, Tile
from fusewright.kernels.tensor_core.variant import (
    ATTENTION,
    CELLS,
    CONVOLUTION,
    HALF,
    INLINE,
    LAST,
    SPLIT,
    SPLIT_ROWS,
    TRANSPOSED,
    TRANSPOSED_LAST,
    WINDOWED,
    variant_of,
)
from fusewright.loopnest.nest import Nest
from fusewright.loopnest.reduction_passes import KeepPolicy
from fusewright.loopnest.vector_width import vector_tensors

# What is read again is still in shared memory or in L1, but values that cost something are kept.
KEEP_COMPUTED = KeepPolicy(keep=True, min_cost=1, shared_row=False)


def launch(nest: Nest, strategy: TensorCoreTile) -> tuple[BodyPolicy, Launch]:
    """How what follows a contraction is printed, and how both are started."""
    product = nest.kernel.anchor
    assert product is not None, "a tile is a contraction's"
    name, tile, vector = nest.kernel.name, strategy.tile, strategy.vector
    some = band(nest.kernel)
    masked = some != ALL  # column - row of what is not thrown away
    constants = {"least": some.least, "most": some.most} if masked else {}
    return BodyPolicy(KEEP_COMPUTED, struct_constants=constants), Launch(
        _call(nest, product, tile, vector),
        vector,
        _call(nest, product, tile, 1),
        vector_tensors=vector_tensors(nest),
        workspace=workspace(product, tile),
        whole_tensors=tuple(whole(product, tile)),
        structs=tuple(structs(product, name)),
        statements=tuple(prepared(product, name)),
        needs=frozenset({"band"} if masked else ()),
    )


def whole(product: Node, tile: Tile) -> list[WholeTensor]:
    """What the kernel reads otherwise than element by element."""
    if product.op == "attention":
        return attention.whole(product)
    kind, stored = variant_of(product, inline=tile.inline), TYPES[product.dtype][0]
    both = zip(kind.whole(product), ("left", "right"), strict=True)
    boxed = kind.boxed[tile.swapped]
    return [WholeTensor(n, f"const {stored}* {p}", k in boxed) for k, (n, p) in enumerate(both)]


def structs(product: Node, name: str) -> list[str]:
    """What the kernel called `name` takes beside its body, as C++ text."""
    return [attention.function(product, name)] if product.op == "attention" else []


def prepared(product: Node, name: str) -> list[str]:
    """The statements of the entry of the kernel called `name` before its launches."""
    if product.op == "attention":
        return [attention.prepared(product, name)]
    return _convolution_shape(product) if product.op in CONVOLUTIONS else []


def launcher(product: Node, tile: Tile) -> str:
    """The skeleton's function that starts the kernel."""
    special = SUMS if tile.summed else JOINED if tile.joined else ""
    return special or variant_of(product, inline=tile.inline).launcher


def _call(nest: Nest, product: Node, tile: Tile, vector: int) -> Call:
    """The call that starts the kernel with accesses of `vector` elements."""
    name = launcher(product, tile)
    chosen: list[str | int] = [tile.width, _flag(tile.swapped), segment(nest.kernel), vector]
    if product.op == "attention":  # it folds nothing, and has one side
        chosen = [tile.width, vector]
    if product.op in CONVOLUTIONS:
        chosen += _convolution_choice(product, tile)
    else:
        chosen += [tile.parts] if tile.parts else [0, "true"] if tile.own else []
    scratch = "workspace" if workspace(product, tile) else "nullptr"
    extra = [scratch] if name in SCRATCH and not tile.summed else []
    return Call(name, tuple(chosen), (*ARGUMENTS[name](product), *extra, "device", "stream"))


def _flag(value: bool) -> str:
    return str(value).lower()


def segment(kernel: Kernel) -> int:
    """How many neighbouring columns the kernel's folds take of a tile, 0 without."""
    return kernel.reduction.columns if isinstance(kernel.reduction, Segment) else 0


def workspace(product: Node, tile: Tile) -> str:
    """Bytes of scratch memory behind the kernel's tensors, as Python text with a slot for the batch
    size, or ""."""
    name = launcher(product, tile)
    return SCRATCH[name](product, tile) if name in SCRATCH else ""


# ---- what the families take ----------------------------------------------------------------------


def _split(product: Node) -> list[str]:
    both = zip(("left", "right"), operands(product), strict=True)
    given = [f"{{{name}, {', '.join(map(size_text, f.strides))}}}" for name, f in both]
    return [*given, *_sizes(product)]


def _half(product: Node) -> list[str]:
    left, right = operands(product)
    return [_half_factor(left, "left"), _half_factor(right, "right"), *_sizes(product)]


def _half_factor(f: Operand, name: str) -> str:
    kind = TYPES[f.tensor.dtype][0] + ", true" * f.turned
    return f"half_factor<{kind}>{{{name}, {size_text(f.batch_stride)}, {size_text(f.line_stride)}}}"


def _sizes(product: Node) -> list[str]:
    m = variant_of(product).matrix(product)
    return [size_text(size) for size in (m.batches, m.rows, m.columns, m.depth)]


def _convolution_shape(product: Node) -> list[str]:
    g = geometry(product)
    triples = (g.in_size, g.out_size, g.kernel, g.stride, g.pad, g.dilation)
    numbers = ", ".join(size_text(n) for n in (g.images, g.groups, g.in_channels, g.out_channels))
    sizes = ", ".join(f"{{{', '.join(map(str, triple))}}}" for triple in triples)
    return [f"const convolution_shape shape{{{numbers}, {sizes}}};"]


def _convolution_choice(product: Node, tile: Tile) -> list[str | int]:
    """How many channels come together, and how many narrow tiles share a processor; how many phases
    are stacked along the width, the pixels of a window along each dimension, or whether weights
    lie channels last, too; the parts of a number; and whether channels that lie last have groups.
    """
    g = geometry(product)
    blocks = 2 if tile.own or (tile.width == WIDTHS[0] and g.parts == 1) else 1
    parts: list[str | int] = [g.parts] * (g.parts > 1)
    if max(g.windows) > 1:
        return [g.chunk, blocks, *g.windows, *parts]
    if g.last:
        more = [g.parts, "true"] if g.groups > 1 and not g.phases else parts
        return [g.chunk, blocks, _flag(g.last_weights), *more]
    if g.phases:
        return [g.chunk, blocks, g.phases.stacked[2] * (max(g.stride) > 1), *parts]
    return [g.chunk, *[blocks] * (blocks > 1 or g.parts > 1), *parts]


def _stacked(product: Node) -> str:
    found = geometry(product).phases
    assert found is not None, "a transposed convolution has phases"
    return f"{{{{{', '.join(map(str, found.stacked))}}}, {found.shift}}}"


def _cell_sizes(product: Node) -> str:
    found = geometry(product).cells
    assert found is not None, "the pixels of its cells are known"
    return f"{{{{{', '.join(map(str, found))}}}}}"


def _packed(product: Node, tile: Tile) -> str:
    left, right = operands(product)
    packed, sums = (left if tile.swapped else right).packed_bytes, _sums(product, tile)
    return f"{packed} + {sums}" if sums else packed


def _sums(product: Node, tile: Tile) -> str:
    """Room for the sums of the parts of tiles, and a count for 64 rows each: as in `add_parts`."""
    rows = variant_of(product).high.get(tile.width, SPLIT_ROWS)
    return str(tile.parts * (rows * tile.width * 4 + rows // 16)) if tile.parts else ""


def _box_parts(product: Node) -> str:
    """Where the parts of folds over all pixels begin, behind what is packed."""
    packed = geometry(product).packed_bytes.format(batch="batch")
    return f"static_cast<char*>(workspace) + {packed}"


def _with_parts(product: Node, _: Tile) -> str:
    g = geometry(product)
    parts = times(g.images, g.out_channels * -(-g.pixels // BOX_COLUMNS) * 4)
    return f"{g.packed_bytes} + {size_text(parts, BATCH_SLOT)}"


SUMS, JOINED = "run_convolution_sums", "run_convolution_joined"
(WINDOWS,) = {kind.launcher for kind in WINDOWED.values()}
SHAPED = (CONVOLUTION.launcher, JOINED, LAST.launcher, TRANSPOSED_LAST.launcher, WINDOWS)
ARGUMENTS: Mapping[str, Callable[[Node], list[str]]] = {
    SPLIT.launcher: _split,
    INLINE.launcher: _split,
    HALF.launcher: _half,
    **{name: lambda _: ["left", "right", "shape"] for name in SHAPED},
    CELLS.launcher: lambda n: ["left", "right", "shape", _cell_sizes(n)],
    SUMS: lambda n: ["left", "right", "shape", "workspace", _box_parts(n)],
    TRANSPOSED.launcher: lambda n: ["left", "right", "shape", _stacked(n)],
    ATTENTION.launcher: attention.arguments,
}
SCRATCH: Mapping[str, Callable[[Node, Tile], str]] = {
    SPLIT.launcher: _packed,
    HALF.launcher: _sums,
    **{
        name: lambda n, _: geometry(n).packed_bytes
        for name in (*SHAPED, CELLS.launcher, TRANSPOSED.launcher)
    },
    SUMS: _with_parts,
    ATTENTION.launcher: lambda n, _: attention.packed_bytes(n),
}
