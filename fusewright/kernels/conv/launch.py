"""Convolution node + its tile -> how it is printed and started."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from fusewright.codegen.launch import BodyPolicy, Launch
from fusewright.ir.graph import Node, names_in, size_text, slots_text, times
from fusewright.kernels.conv.geometry import BOX_COLUMNS, geometry
from fusewright.kernels.conv.prologue import prologue
from fusewright.kernels.conv.tile import ConvTile
from fusewright.kernels.tensor_core.anchor import anchor_of
from fusewright.kernels.tensor_core.launch import (
    KEEP_COMPUTED,
    TileCall,
    flag,
    left_and_right,
    scratch,
    segment,
)
from fusewright.kernels.tensor_core.launch import launch as launch_tile
from fusewright.loopnest.nest import Nest


def launch(nest: Nest, tile: ConvTile, launcher: ConvLauncher) -> tuple[BodyPolicy, Launch]:
    """launcher: of the variant's kernels that have the tile."""
    n = anchor_of(nest.kernel)
    fed = prologue(n)
    workspace = launcher.workspace(n, fed.packed_bytes)
    call = TileCall(
        launcher.function,
        (tile.width, flag(tile.swap_operands), segment(nest.kernel)),
        tuple(launcher.template_args(n, tile)),
        tuple(launcher.arguments(n, scratch(workspace))),
        left_and_right(n),
        workspace,
        statements=(shape_statement(n),),
    )
    return KEEP_COMPUTED, launch_tile(nest, tile.vector, fed, call)


def shape_statement(n: Node) -> str:
    """The statement of the entry that says the sizes of a convolution."""
    g = geometry(n)
    triples = (g.in_size, g.out_size, g.kernel, g.stride, g.pad, g.dilation)
    numbers = ", ".join(size_text(n) for n in (g.images, g.groups, g.in_channels, g.out_channels))
    sizes = ", ".join(f"{{{', '.join(map(str, triple))}}}" for triple in triples)
    return f"const conv_shape shape{{{numbers}, {sizes}}};"


# ---- template arguments --------------------------------------------------------------------------

# Of all, behind the elements of an access: how many channels come together, what shares a
# processor, and the float16 numbers that a number is packed as.


def _sharing(tile: ConvTile) -> int:
    """How many blocks share a processor, or groups of warps that have a tile alone: both are 2."""
    return 2 if tile.is_pingpong else tile.blocks_per_sm


def _parts(n: Node) -> list[str | int]:
    parts = geometry(n).parts
    return [parts] * (parts > 1)


def _chosen(n: Node, tile: ConvTile) -> list[str | int]:
    g, sharing = geometry(n), _sharing(tile)
    more: list[str | int] = [sharing] * (sharing > 1 or g.parts > 1)
    return [g.chunk, *more, *_parts(n)]


def _chosen_pooled(n: Node, tile: ConvTile) -> list[str | int]:
    """With the pixels of a window along each dimension."""
    g = geometry(n)
    return [g.chunk, _sharing(tile), *g.windows, *_parts(n)]


def _chosen_last(n: Node, tile: ConvTile) -> list[str | int]:
    """With whether weights lie channels last, too, and whether there are groups."""
    g = geometry(n)
    more = [g.parts, "true"] if g.groups > 1 and not g.phases else _parts(n)
    return [g.chunk, _sharing(tile), flag(g.last_weights), *more]


def _chosen_transposed(n: Node, tile: ConvTile) -> list[str | int]:
    """With how many phases are stacked along the width."""
    g = geometry(n)
    assert g.phases is not None, "a transposed convolution has phases"
    stacked = g.phases.stacked[2] * (max(g.stride) > 1)
    return [g.chunk, _sharing(tile), stacked, *_parts(n)]


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
    """Where the parts of reductions over all pixels begin, behind what is packed."""
    g = geometry(n)
    packed = g.packed_bytes.format(**{name: name for name in names_in([g.images])})
    return ["left", "right", "shape", scratch, f"static_cast<char*>({scratch}) + {packed}"]


def _packed_bytes(_: Node, packed_bytes: str | None) -> str:
    return packed_bytes or ""


def _bytes_with_parts(n: Node, packed_bytes: str | None) -> str:
    g = geometry(n)
    parts = times(g.images, g.out_channels * -(-g.pixels // BOX_COLUMNS) * 4)
    return f"{packed_bytes or 0} + {slots_text(parts)}"


# ---- launchers -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class ConvLauncher:
    """One of the device library's functions that start a convolution, and how it is called.

    template_args: behind those of every tile.  arguments: behind the body, by how scratch memory
    is given.  workspace: its bytes, by those of what is packed.
    """

    function: str
    template_args: Callable[[Node, ConvTile], Sequence[str | int]] = _chosen
    arguments: Callable[[Node, str], Sequence[str]] = _shaped
    workspace: Callable[[Node, str | None], str] = _packed_bytes


CONV = ConvLauncher("run_conv")
MULTI_IMAGE = replace(CONV, function="run_conv_multi_image")
PIXEL_SUMS = replace(
    CONV,
    function="run_conv_pixel_reduction",
    arguments=_with_parts,
    workspace=_bytes_with_parts,
)
POOLED = replace(CONV, function="run_conv_pooled", template_args=_chosen_pooled)
SPACE_TO_DEPTH = replace(CONV, function="run_conv_space_to_depth", arguments=_with_cells)
CHANNELS_LAST = replace(CONV, function="run_conv_channels_last", template_args=_chosen_last)
TRANSPOSED = replace(
    CONV, function="run_conv_transpose", template_args=_chosen_transposed, arguments=_with_phases
)
TRANSPOSED_CHANNELS_LAST = replace(CHANNELS_LAST, function="run_conv_transpose_channels_last")
