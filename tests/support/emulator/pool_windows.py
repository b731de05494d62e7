"""Bodies that take windows -> a library: threads of this CPU hand them tiles, as tiles.py does.

It begins with what the copy engine is asked for. Its stand-in walks through the pixels as it does,
and notes which pixel of the convolution each place of a tile gets.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Sequence
from pathlib import Path

from fusewright.codegen.device_library import sections_for
from fusewright.codegen.kernel_text import KernelText, words
from tests.support.cuda_compilers import SPOKEN
from tests.support.emulator.threads import BEFORE, TWINS, built
from tests.support.emulator.tiles import MORE_TWINS, WARP

Sizes = tuple[int, ...]
SECTIONS = ("pooled_out", "pixel_reduction_teams", "conv_consume")
# `noted`: the place of every pixel in the image, at the tap (0, 0, 0); `at_work`: the walk's sizes.
ENGINE = """
struct noted_pixel { int at[3], image; };
inline noted_pixel noted[256];
inline int sizes_at_work[3], steps_at_work[3], pads_at_work[3], pixels_at_work;
inline void load_pixels(unsigned to, const tensor_map&, unsigned, int, const pixel_place& p,
                        const int (&tap)[3], bool) {
  pixel_place next = p;
  for (int n = 0; n < pixels_at_work; ++n) {
    noted_pixel& place = noted[to / 128 + n];
    for (int i = 0; i < 3; ++i) place.at[i] = next.at[i] + tap[i];
    place.image = next.image;
    bool carry = true;
    for (int i = 0; i < 3 && carry; ++i) {
      next.at[i] += steps_at_work[i];
      carry = next.at[i] > (sizes_at_work[i] - 1) * steps_at_work[i] - pads_at_work[i];
      if (carry) next.at[i] = -pads_at_work[i];
    }
    next.image += carry;
  }
}
"""
HANDED = """
template <int WIDTH, bool SWAPPED, int VECTOR, int DEEP, int HIGH, int WIDE, class Body>
void run_epilogue(const Body& given_body, const float* image, const float* weight,
                  const float* sums, conv_shape all, int warp) {
  using Shape = pooled_shape<DEEP, HIGH, WIDE>;
  constexpr int PIXELS = SWAPPED ? 128 : WIDTH, CHANNELS = SWAPPED ? WIDTH : 128;
  constexpr int WINDOW = DEEP * HIGH * WIDE, RUN = RUN_OF<PIXELS, SWAPPED, Shape>;
  Shape shape{all, {all.stride[0], all.stride[1], all.stride[2]}};
  const int size[3] = {DEEP, HIGH, WIDE};
  for (int d = 0; d < 3; ++d) shape.out_size[d] /= size[d], shape.stride[d] *= size[d];
  static float boxes[16 * SMEM_TILE];
  const auto body = epilogue_of<1, 0>(given_body, shape);
  const conv_source<Shape, float, 1> source{image, weight, shape};
  using factors = conv_operands<0, conv_source<Shape, float, 1>>;
  const int columns = (shape.out_pixels() * WINDOW + 63) / 64 * 64;
  const gemm_shape product{all.images, all.out_channels, columns, 0};
  const consumer<pooled_body<WINDOW, Body>, factors> me{
      body, {source, source, true}, product, boxes};
  const int lane = threadIdx.x % 32;
  const float scales[2] = {1, 1};
  const auto sum_at = [&](int image, int channel, int place) {
    int pixel = 0;
    bool inside = channel < all.out_channels && noted[place].image < all.images;
    for (int d = 0; d < 3; ++d) {
      const int from = noted[place].at[2 - d] + all.pad[d];
      inside = inside && from % all.stride[d] == 0 && from / all.stride[d] < all.out_size[d];
      pixel = pixel * all.out_size[d] + from / all.stride[d];
    }
    const long row = long(noted[place].image) * all.out_channels + channel;
    return inside ? sums[row * all.out_pixels() + pixel] : 0;
  };
  for (int image = 0; image < all.images; ++image)
    for (int c = 0; c * CHANNELS < all.out_channels; ++c)
      for (int p = 0; p * PIXELS < columns; ++p) {
        __syncthreads();
        if (lane == 0) {
          for (int i = 0; i < 3; ++i) {
            sizes_at_work[i] = shape.out_size[2 - i], steps_at_work[i] = shape.stride[2 - i];
            pads_at_work[i] = shape.pad[2 - i];
          }
          pixels_at_work = RUN;
          const tile_patches<PIXELS, RUN, 64, Shape> patches(shape, image, p * PIXELS);
          patches.load(0, tensor_map(), 0, 0, {0, 0, 0}, false);
        }
        __syncthreads();
        if constexpr (!SWAPPED) {
          float held[WIDTH / 64][32];
          for (int i = 0; i < WIDTH / 2; ++i) {
            const int channel = c * 128 + warp * 16 + lane / 4 + i / 2 % 2 * 8;
            held[i / 32][i % 32] = sum_at(image, channel, i / 4 * 8 + lane % 4 * 2 + i % 2);
          }
          const consumer<pooled_body<WINDOW, Body>, factors> sure{
              body, {source, source, image % 2 == 0}, product, boxes};
          if (!pooled_out<WIDTH, VECTOR>(sure, held, {image, c, p}, scales))
            sure.template rows_out<WIDTH, 0, VECTOR>(held, {image, c, p}, scales);
        } else {
          for (int group = 0; group < 2; ++group)
            for (int number = 0; number < WIDTH / 64; ++number) {
              const int top = c * WIDTH + number * 64;
              const int first = top + warp % 4 * 16, column = p * 128 + group * 64;
              const int begin = warp % 4 * 16, behind = all.out_channels - first;
              const int end = begin + (behind < 0 ? 0 : behind < 16 ? behind : 16);
              if (warp >= 4 || column >= columns || top >= all.out_channels) continue;
              for (int row = begin; row < begin + 16; ++row)
                for (int j = lane; j < 64; j += 32)
                  boxes[smem_tile_place<true, 64>(row, j)] =
                      sum_at(image, top + row, group * 64 + j);
              __syncthreads();
              const smem_tile_corner at{long(image) * all.out_channels + top, image, top, column};
              fixup<true, 64>(boxes, begin, end, at, source, source, product);
              finish<true, 64, 0, VECTOR>(body, boxes, begin, end, at, columns);
            }
        }
      }
}
"""
# Reductions over all pixels: tiles of fragments, or boxes filled column by column; then the parts.
SUMMED = """
template <int WIDTH, int VECTOR, class Body>
void sum_tiles(const Body& given_body, const float* sums, float* parts, conv_shape all,
               int warp) {
  const pixel_reduction_shape shape{all, parts};
  const auto body = epilogue_of<1, 0>(given_body, shape);
  static float boxes[8 * SMEM_TILE];
  const conv_source<pixel_reduction_shape, float, 1> source{nullptr, nullptr, shape};
  using factors = conv_operands<0, conv_source<pixel_reduction_shape, float, 1>>;
  const int lane = threadIdx.x % 32, columns = all.out_pixels(), channels = all.out_channels;
  const gemm_shape product{all.images, channels, columns, 0};
  const float scales[2] = {1, 1};
  for (int image = 0; image < all.images; ++image)
    for (int c = 0; c * 128 < channels; ++c)
      for (int p = 0; p * WIDTH < columns; ++p) {
        float held[WIDTH / 64][32];
        for (int i = 0; i < WIDTH / 2; ++i) {
          const int channel = c * 128 + warp * 16 + lane / 4 + i / 2 % 2 * 8;
          const int pixel = p * WIDTH + i / 4 * 8 + lane % 4 * 2 + i % 2;
          const long place = (long(image) * channels + channel) * columns + pixel;
          held[i / 32][i % 32] = channel < channels && pixel < columns ? sums[place] : 1e9f;
        }
        const consumer<pixel_reduction_body<Body>, factors> me{
            body, {source, source, image == 1}, product, boxes};
        me.template rows_out<WIDTH, 0, VECTOR>(held, {image, c, p}, scales);
      }
}
template <int WIDTH, int VECTOR, class Body>
void sum_boxes(const Body& given_body, const float* sums, float* parts, conv_shape all) {
  const pixel_reduction_shape shape{all, parts};
  const auto body = epilogue_of<1, 0>(given_body, shape);
  static float box[64 * 64];
  const int lane = threadIdx.x, columns = all.out_pixels(), channels = all.out_channels;
  for (int image = 0; image < all.images; ++image)
    for (int top = 0; top < channels; top += 16)
      for (int column = 0; column < columns; column += 64) {
        const int end = channels - top < 16 ? channels - top : 16;
        const smem_tile_corner at{long(image) * channels + top, image, top, column};
        __syncthreads();
        for (int row = 0; row < end; ++row)
          for (int j = lane; j < 64; j += 32) {
            const long place = (at.row + row) * columns + column + j;
            box[smem_tile_place<true, 64>(row, j)] = column + j < columns ? sums[place] : NAN;
          }
        __syncthreads();
        finish<true, 64, 0, VECTOR>(body, box, 0, end, at, columns);
      }
}
template <class Body>
void join_all(const Body& body, const float* parts, long rows, int boxes) {
  for (long row = threadIdx.x / 8; row < (rows + 3) / 4 * 4; row += 4) {
    const long known = row < rows ? row : rows - 1;
    const joining_team team(parts + known * boxes, boxes, row >= rows);
    body(known, team, accumulator_row{nullptr, 0, 0});
  }
}
"""
ENTRY = """
extern "C" void tile_{number}(const float* image, const float* weight, const float* sums,
                              {pointers}, const int* sizes) {{
  conv_shape all{{sizes[0], sizes[1], sizes[2], sizes[3]}};
  int* const every[] = {{all.in_size, all.out_size, all.kernel, all.stride, all.pad, all.dilation}};
  for (int i = 0; i < 18; ++i) every[i / 3][i % 3] = sizes[4 + i];
  const {name} body{{{fields}, all.images}};
  for (int warp = 0; warp < 8; ++warp)
    launch(dim3(1), 32, [=] {{
      threadIdx.x += warp * 32;
      run_epilogue<{chosen}>(body, image, weight, sums, all, warp);
      threadIdx.x -= warp * 32;
    }});
}}
"""
SUM_ENTRY = """
extern "C" void tile_{number}(const float* sums, float* parts, {pointers}, const int* sizes) {{
  conv_shape all{{sizes[0], sizes[1], sizes[2], sizes[3]}};
  for (int i = 0; i < 3; ++i) all.out_size[i] = sizes[7 + i];
  const {name} body{{{fields}, all.images}};
  for (int warp = 0; warp < 8 && {tiles}; ++warp)
    launch(dim3(1), 32, [=] {{
      threadIdx.x += warp * 32;
      sum_tiles<{chosen}>(body, sums, parts, all, warp);
      threadIdx.x -= warp * 32;
    }});
  if (!{tiles}) launch(dim3(1), 32, [=] {{ sum_boxes<{chosen}>(body, sums, parts, all); }});
  const int boxes = (all.out_pixels() + 63) / 64;
  launch(dim3(1), 32, [=] {{ join_all(body, parts, all.images * all.out_channels, boxes); }});
}}
"""


def library(bodies: Sequence[tuple[KernelText, str]], folder: Path) -> ctypes.CDLL:
    """tile_0, tile_1, … of bodies, each with its width, side, vectors and window, or, where all
    pixels are reduced, with its width, 0 for boxes, and vectors."""
    names = {*SECTIONS, *SPOKEN, *(word for body, _ in bodies for word in words(body.text))}
    text = re.sub(
        r"FN void load_pixels\(.*?\n}\n", ENGINE, sections_for("sm90", names), flags=re.DOTALL
    )
    for pattern, twin in (*TWINS, *MORE_TWINS):
        text = re.sub(pattern, twin, text)
    text += (
        HANDED
        + SUMMED
        + "".join(_entry(k, body, chosen) for k, (body, chosen) in enumerate(bodies))
    )
    whole = f"{BEFORE}{WARP}#define __CUDACC_RTC__\n{text}}}\n"
    return built(whole, folder / "windows.cpp")


def _entry(number: int, body: KernelText, chosen: str) -> str:
    fields = ", ".join(p.name for p in body.pointers)
    pointers = ", ".join(p.declaration for p in body.pointers)
    tiles = str(not chosen.startswith("0")).lower()
    entry = (ENTRY if body.is_map else SUM_ENTRY).format(
        number=number,
        name=body.name,
        fields=fields,
        pointers=pointers,
        chosen=chosen.replace("0,", "64,"),
        tiles=tiles,
    )
    return f"namespace n{number} {{\n{body.text}\n{entry}}}\n"
