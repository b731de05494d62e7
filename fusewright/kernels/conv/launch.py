"""Convolution node + its tile -> the arguments of its launchers, as C++ text."""

from __future__ import annotations

from dataclasses import replace

from fusewright.ir.graph import BATCH_SLOT, Node, size_text, times
from fusewright.kernels.conv.geometry import BOX_COLUMNS, geometry
from fusewright.kernels.tensor_core.launch import flag
from fusewright.kernels.tensor_core.tile import Tile
from fusewright.kernels.tensor_core.variant import WIDTHS, TileLauncher


def _shape(n: Node, _: str) -> list[str]:
    """The statement of the entry that says the sizes of a convolution."""
    g = geometry(n)
    triples = (g.in_size, g.out_size, g.kernel, g.stride, g.pad, g.dilation)
    numbers = ", ".join(size_text(n) for n in (g.images, g.groups, g.in_channels, g.out_channels))
    sizes = ", ".join(f"{{{', '.join(map(str, triple))}}}" for triple in triples)
    return [f"const convolution_shape shape{{{numbers}, {sizes}}};"]


# ---- template arguments --------------------------------------------------------------------------

# Of all: the tile, how many channels come together, how many narrow tiles share a processor, and
# the float16 numbers that a number is packed as.


def _tile(tile: Tile, segment: int, vector: int) -> list[str | int]:
    return [tile.width, flag(tile.swapped), segment, vector]


def _blocks(n: Node, tile: Tile) -> int:
    return 2 if tile.own or (tile.width == WIDTHS[0] and geometry(n).parts == 1) else 1


def _parts(n: Node) -> list[str | int]:
    parts = geometry(n).parts
    return [parts] * (parts > 1)


def _chosen(n: Node, tile: Tile, segment: int, vector: int) -> list[str | int]:
    g, blocks = geometry(n), _blocks(n, tile)
    more: list[str | int] = [blocks] * (blocks > 1 or g.parts > 1)
    return [*_tile(tile, segment, vector), g.chunk, *more, *_parts(n)]


def _chosen_pooled(n: Node, tile: Tile, segment: int, vector: int) -> list[str | int]:
    """With the pixels of a window along each dimension."""
    g = geometry(n)
    some = [*_tile(tile, segment, vector), g.chunk, _blocks(n, tile)]
    return [*some, *g.windows, *_parts(n)]


def _chosen_last(n: Node, tile: Tile, segment: int, vector: int) -> list[str | int]:
    """With whether weights lie channels last, too, and whether there are groups."""
    g = geometry(n)
    more = [g.parts, "true"] if g.groups > 1 and not g.phases else _parts(n)
    return [
        *_tile(tile, segment, vector), g.chunk, _blocks(n, tile), flag(g.last_weights), *more
    ]  # fmt: skip


def _chosen_transposed(n: Node, tile: Tile, segment: int, vector: int) -> list[str | int]:
    """With how many phases are stacked along the width."""
    g = geometry(n)
    assert g.phases is not None, "a transposed convolution has phases"
    stacked = g.phases.stacked[2] * (max(g.stride) > 1)
    return [*_tile(tile, segment, vector), g.chunk, _blocks(n, tile), stacked, *_parts(n)]


# ---- arguments and scratch memory ----------------------------------------------------------------


def _shaped(_: Node, scratch: str) -> list[str]:
    return ["left", "right", "shape", scratch]


def _with_phases(n: Node, scratch: str) -> list[str]:
    found = geometry(n).phases
    assert found is not None, "a transposed convolution has phases"
    stacked = ", ".join(map(str, found.stacked))
    return ["left", "right", "shape", f"{{{{{stacked}}}, {found.shift}}}", scratch]


def _with_cells(n: Node, scratch: str) -> list[str]:
    found = geometry(n).cells
    assert found is not None, "the pixels of its cells are known"
    return ["left", "right", "shape", f"{{{{{', '.join(map(str, found))}}}}}", scratch]


def _with_parts(n: Node, scratch: str) -> list[str]:
    """Where the parts of folds over all pixels begin, behind what is packed."""
    packed = geometry(n).packed_bytes.format(batch="batch")
    return ["left", "right", "shape", scratch, f"static_cast<char*>({scratch}) + {packed}"]


def _packed_bytes(n: Node, _: Tile) -> str:
    return geometry(n).packed_bytes


def _bytes_with_parts(n: Node, _: Tile) -> str:
    g = geometry(n)
    parts = times(g.images, g.out_channels * -(-g.pixels // BOX_COLUMNS) * 4)
    return f"{g.packed_bytes} + {size_text(parts, BATCH_SLOT)}"


CONV = TileLauncher("run_convolution", _chosen, _shaped, _packed_bytes, statements=_shape)
MULTI_IMAGE = replace(CONV, function="run_convolution_joined")
PIXEL_SUMS = replace(
    CONV,
    function="run_convolution_sums",
    arguments=_with_parts,
    workspace=_bytes_with_parts,
)
POOLED = replace(CONV, function="run_convolution_windows", template_args=_chosen_pooled)
SPACE_TO_DEPTH = replace(CONV, function="run_convolution_cells", arguments=_with_cells)
CHANNELS_LAST = replace(CONV, function="run_convolution_last", template_args=_chosen_last)
TRANSPOSED = replace(
    CONV, function="run_transposed", template_args=_chosen_transposed, arguments=_with_phases
)
TRANSPOSED_CHANNELS_LAST = replace(CHANNELS_LAST, function="run_transposed_last")
