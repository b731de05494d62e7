"""Matmul node + its tile -> how it is printed and started."""

from __future__ import annotations

from dataclasses import replace

from fusewright.codegen.kernel_text import TYPES
from fusewright.codegen.launch import BodyPolicy, Launch
from fusewright.ir.graph import Node, size_text
from fusewright.kernels.gemm.diagonal_band import ALL, DiagonalBand
from fusewright.kernels.gemm.match import Operand, matrix, operands
from fusewright.kernels.gemm.prologue import prologue
from fusewright.kernels.gemm.split_cost import STREAM_K
from fusewright.kernels.gemm.tile import GemmTile, NoSplit, Packing, SplitK, StreamK
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
from fusewright.kernels.tensor_core.variant import SPLIT_ROWS
from fusewright.loopnest.nest import Nest

LAUNCHERS: dict[Packing, str] = {
    "packed": "run_gemm",
    "unpacked": "run_gemm_unpacked",
    "half": "run_gemm_half",
}
PACKED_ROWS = {64: 192, 96: 192}  # of a packed tile, by its width, where they are not 128


def launch(nest: Nest, tile: GemmTile, some: DiagonalBand) -> tuple[BodyPolicy, Launch]:
    """some: the elements of the product that are not thrown away."""
    n = anchor_of(nest.kernel)
    fed = prologue(n, tile.packing, swap_operands=tile.swap_operands)
    workspace = " + ".join(text for text in (fed.packed_bytes, _bytes_of_parts(tile)) if text)
    call = TileCall(
        LAUNCHERS[tile.packing],
        (tile.width, flag(tile.swap_operands), segment(nest.kernel)),
        _sharing(tile),
        _arguments(n, tile, scratch(workspace)),
        left_and_right(n),
        workspace,
    )
    started = launch_tile(nest, tile.vector, fed, call)
    if some == ALL:
        return KEEP_COMPUTED, started
    constants = {"least": some.least, "most": some.most}
    policy = replace(KEEP_COMPUTED, struct_constants=constants)
    return policy, replace(started, needs=frozenset({"triangular_tiles"}))


def _sharing(tile: GemmTile) -> tuple[str | int, ...]:
    """For how many parts of tiles there is room, whether a group of warps has a tile alone, and
    what adding up the parts of stream-K takes."""
    if isinstance(tile.reduce, StreamK):
        return (tile.reduce.parts, flag(tile.is_pingpong), *STREAM_K)
    if isinstance(tile.reduce, SplitK):
        return (tile.reduce.parts,)
    return (0, flag(True)) if tile.is_pingpong else ()


def _arguments(n: Node, tile: GemmTile, workspace: str) -> tuple[str, ...]:
    m, factors = matrix(n), zip(operands(n), ("left", "right"), strict=True)
    given = _half_factor if tile.packing == "half" else _split_factor
    sizes = [size_text(size) for size in (m.batches, m.rows, m.columns, m.depth)]
    more = () if tile.packing == "unpacked" else (workspace,)
    return (*(given(f, name) for f, name in factors), *sizes, *more)


def _split_factor(f: Operand, name: str) -> str:
    return f"{{{name}, {', '.join(map(size_text, f.strides))}}}"


def _half_factor(f: Operand, name: str) -> str:
    kind = TYPES[f.tensor.dtype][0] + ", true" * f.turned
    strides = f"{size_text(f.batch_stride)}, {size_text(f.line_stride)}"
    return f"half_gemm_operand<{kind}>{{{name}, {strides}}}"


def _bytes_of_parts(tile: GemmTile) -> str | None:
    """Room for the sums of a tile's split-K parts, and a count for 64 rows each."""
    if isinstance(tile.reduce, NoSplit):
        return None
    rows = PACKED_ROWS.get(tile.width, SPLIT_ROWS) if tile.packing == "packed" else SPLIT_ROWS
    return str(tile.reduce.parts * (rows * tile.width * 4 + rows // 16))
