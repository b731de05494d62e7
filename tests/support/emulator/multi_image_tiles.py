"""Tiles that go on from image to image -> a library: threads of this CPU hand them out.

Sums are multiplied by the powers of two that packing took out, and leave from registers or boxes.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fusewright.codegen.device_library import sections_for
from tests.support import conv_subjects as subjects
from tests.support.cuda_compilers import SPOKEN
from tests.support.emulator.threads import BEFORE, TWINS, built
from tests.support.emulator.tiles import MORE_TWINS, WARP

SHUFFLED = """
inline float __shfl_xor_sync(unsigned all, float mine, int distance) {
  return bits_as<float>(__shfl_xor_sync(all, bits_as<unsigned>(mine), distance));
}
inline float __shfl_sync(unsigned all, float mine, int from) {
  return bits_as<float>(__shfl_sync(all, bits_as<int>(mine), from));
}
inline unsigned __shfl_sync(unsigned all, unsigned mine, int from) {
  return unsigned(__shfl_sync(all, int(mine), from));
}
"""
MULTIPLIED = (r'asm volatile\("mul\.f32[^;]*;[^;]*;', "x *= y;")
HANDED = """
// The same tile twice, where four warps share a box: by then it has what all of them bring.
template <int WIDTH, bool SWAPPED, int VECTOR, class Body>
void run_epilogue(const Body& body, const float* image, const float* weight, const float* sums,
              packed_image packed, multi_image_shape shape, tiles::place tile, int warp) {
  constexpr int SIDES[2] = {SWAPPED ? WIDTH : TILE_ROWS, SWAPPED ? TILE_ROWS : WIDTH};
  static float boxes[8 * SMEM_TILE];
  const multi_image_source<float, 1> source{image, weight, shape};
  const int pixels = shape.out_pixels(), lane = threadIdx.x % 32;
  const int first[2] = {(SWAPPED ? tile.column : tile.row) * SIDES[0],
                        (SWAPPED ? tile.row : tile.column) * SIDES[1]};
  const gemm_shape product{shape.images * shape.groups, shape.rows(), pixels, 0};
  float held[quarters<WIDTH>][32];
  for (int i = 0; i < WIDTH / 2; ++i) {
    const int tall = warp * 16 + lane / 4 + i / 2 % 2 * 8, wide = i / 4 * 8 + lane % 4 * 2 + i % 2;
    const int channel = first[0] + (SWAPPED ? wide : tall);
    const int pixel = first[1] + (SWAPPED ? tall : wide);
    const bool inside = channel < shape.rows() && pixel < pixels * shape.images;
    const long batch = long(pixel / pixels) * shape.groups + tile.batch;
    const long row = batch * shape.rows() + channel;
    held[i / 32][i % 32] = inside ? sums[row * pixels + pixel % pixels] : 0;
  }
  const int channel = tile.batch * shape.rows() + first[0];
  auto undo = undo_of_tile<WIDTH, SWAPPED>(source, packed, tile, channel, first[1], warp);
  using factors = conv_operands<0, multi_image_source<float, 1>>;
  const consumer<Body, factors> me{body, {source, source, undo.run(held)}, product, boxes};
  if constexpr (SWAPPED)
    me.template columns_out<WIDTH, 0, VECTOR>(held, tile, nullptr);
  else
    me.template rows_out<WIDTH, 0, VECTOR>(held, tile, undo.by);
}
"""
ENTRY = """
extern "C" void tile_{number}(const float* image, const float* weight, const float* sums,
                              int* image_exponents, int* weight_exponents, const float* in0,
                              float* out0, const int* sizes) {{
  conv_shape all{{sizes[0], sizes[1], sizes[2], sizes[3]}};
  int* const every[] = {{all.in_size, all.out_size, all.kernel, all.stride, all.pad, all.dilation}};
  for (int i = 0; i < 18; ++i) every[i / 3][i % 3] = sizes[4 + i];
  const multi_image_shape shape{{all}};
  const {body} body{{in0, out0, all.out_pixels(), all.out_channels}};
  const packed_image packed{{nullptr, nullptr, image_exponents, weight_exponents}};
  const int high = {swapped} ? {width} : TILE_ROWS, wide = {swapped} ? TILE_ROWS : {width};
  launch(dim3(1), 32, [=] {{  // the same threads are one warp after the other
    for (int group = 0; group < all.groups; ++group)
      for (int c = 0; c * high < all.rows(); ++c)
        for (int p = 0; p * wide < all.images * all.out_pixels(); ++p)
          for (int warp = 0; warp < 8 * (1 + {swapped}); ++warp) {{
            threadIdx.x += warp % 8 * 32;
            run_epilogue<{width}, {swapped}, {vector}>(body, image, weight, sums, packed, shape,
                {{group, {swapped} ? p : c, {swapped} ? c : p}}, warp % 8);
            threadIdx.x -= warp % 8 * 32;
            __syncthreads();
          }}
  }});
}}
"""


@dataclass(frozen=True)
class Handed:
    """A body in tiles of one kind; where channels are columns, a tile is one box wide."""

    body: str
    width: int
    swapped: bool
    vector: int


def library(some: Sequence[Handed], folder: Path) -> ctypes.CDLL:
    """tile_0, tile_1, …"""
    text = sections_for("sm90", {"multi_image_shape", "conv_consume", *subjects.WORDS, *SPOKEN})
    for pattern, twin in (*TWINS, MULTIPLIED, *MORE_TWINS):
        text = re.sub(pattern, twin, text)
    entries = "".join(
        ENTRY.format(
            number=k, body=s.body, width=s.width, swapped=str(s.swapped).lower(), vector=s.vector
        )
        for k, s in enumerate(some)
    )
    head = f"{BEFORE}{WARP}{SHUFFLED}#define __CUDACC_RTC__\n"
    return built(f"{head}{text}{subjects.BODIES}{HANDED}{entries}}}\n", folder / "joined.cpp")
