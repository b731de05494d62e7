"""Product node + its tile -> the arguments of its launcher, as C++ text."""

from __future__ import annotations

from fusewright.codegen.kernel_text import TYPES
from fusewright.ir.graph import Node, size_text
from fusewright.kernels.gemm.match import Operand, matrix, operands
from fusewright.kernels.tensor_core.launch import flag
from fusewright.kernels.tensor_core.tile import Tile
from fusewright.kernels.tensor_core.tile_cost import STREAM_K
from fusewright.kernels.tensor_core.variant import SPLIT_ROWS, TileLauncher

PACKED_ROWS = {64: 192, 96: 192}  # of a packed tile, by its width, where they are not 128


def _chosen(_: Node, tile: Tile, segment: int, vector: int) -> list[str | int]:
    more: list[str | int] = [tile.parts] if tile.parts else [0, "true"] if tile.own else []
    return [tile.width, flag(tile.swapped), segment, vector, *more]


def _half_chosen(n: Node, tile: Tile, segment: int, vector: int) -> list[str | int]:
    """Whoever shares tiles is told what adding their parts up takes."""
    chosen = _chosen(n, tile, segment, vector)
    return [*chosen, flag(tile.own), *STREAM_K] if tile.parts else chosen


def _split(n: Node) -> list[str]:
    both = zip(("left", "right"), operands(n), strict=True)
    given = [f"{{{name}, {', '.join(map(size_text, f.strides))}}}" for name, f in both]
    return [*given, *_sizes(n)]


def _half(n: Node) -> list[str]:
    left, right = operands(n)
    return [_half_factor(left, "left"), _half_factor(right, "right"), *_sizes(n)]


def _half_factor(f: Operand, name: str) -> str:
    kind = TYPES[f.tensor.dtype][0] + ", true" * f.turned
    return f"half_factor<{kind}>{{{name}, {size_text(f.batch_stride)}, {size_text(f.line_stride)}}}"


def _sizes(n: Node) -> list[str]:
    m = matrix(n)
    return [size_text(size) for size in (m.batches, m.rows, m.columns, m.depth)]


def _packed(n: Node, tile: Tile) -> str:
    left, right = operands(n)
    packed = (left if tile.swapped else right).packed_bytes
    sums = _sums(tile, PACKED_ROWS.get(tile.width, SPLIT_ROWS))
    return f"{packed} + {sums}" if sums else packed


def _sums(tile: Tile, rows: int = SPLIT_ROWS) -> str:
    """Room for the sums of the parts of tiles, and a count for 64 rows each: as in `add_parts`."""
    return str(tile.parts * (rows * tile.width * 4 + rows // 16)) if tile.parts else ""


PACKED = TileLauncher("run_product", _chosen, lambda n, scratch: [*_split(n), scratch], _packed)
UNPACKED = TileLauncher("run_product_inline", _chosen, lambda n, _: _split(n))
HALF = TileLauncher(
    "run_product_half",
    _half_chosen,
    lambda n, scratch: [*_half(n), scratch],
    lambda _, tile: _sums(tile),
)
