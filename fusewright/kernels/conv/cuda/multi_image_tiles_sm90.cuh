// Convolutions on Hopper (sm_90a) whose tiles go on from one image to the next, so that small images fill them.
//
// A tile's pixels are those of all images, in order; its results lie in two images where one ends within the tile.
//
// The surprising fact: only what stores has to know where an image ends. The copy engine goes on by itself, and a tile that
// is within an image leaves as any other; where two meet, their 64 columns go through a smem tile, from which each takes its part.
//
// Text outside `//@ name` sections only serves a compilation of this file alone.
#pragma once
#include "kernels/conv/cuda/conv_launch_sm90.cuh"
namespace fusewright {

//@ multi_image_shape: needs conv_stage, conv_scale, conv_fixup, image_map, tile_out
struct multi_image_shape : conv_shape {
  static constexpr bool multi_image = true, apart = true;
  using walked = multi_image_shape;
  BOTH const walked& walk() const { return *this; }
};
FN pixel_place place_of(const multi_image_shape& s, int image, int pixel) {
  const int line = pixel / s.out_size[2], sheet = line / s.out_size[1];
  return {{pixel % s.out_size[2] * s.stride[2] - s.pad[2], line % s.out_size[1] * s.stride[1] - s.pad[1],
           sheet % s.out_size[0] * s.stride[0] - s.pad[0]}, image + sheet / s.out_size[0]};
}
template <class T, int TERMS> using multi_image_source = conv_source<multi_image_shape, T, TERMS>;
template <int FIRST_WARP, class T, int TERMS>
FN smem_tile_corner corner_of(const conv_operands<FIRST_WARP, multi_image_source<T, TERMS>>& operands, const gemm_shape& shape,
                        tiles::place tile, int top, int column) {
  const multi_image_shape& all = operands.left.shape;
  const int image = column / shape.columns, batch = image * all.groups + tile.batch;
  const int behind = image < all.images ? column - image * shape.columns : shape.columns;
  return {long(batch) * shape.rows + top, batch, top, behind};
}
template <int COLUMNS, int FIRST_WARP, class T, int TERMS>
FN bool goes_on(const conv_operands<FIRST_WARP, multi_image_source<T, TERMS>>& operands, const gemm_shape& shape,
                smem_tile_corner& at) {
  const multi_image_shape& all = operands.left.shape;
  at.column -= shape.columns, at.batch += all.groups, at.row += long(all.groups) * shape.rows;
  return at.column + COLUMNS > 0 && at.batch < all.images * all.groups;
}
// A tile has pixels of two images at most. Those of the second one are brought to the scale of the first; where no power of
// two that leaves room for all sums does that, they become NaN, and are computed again.
constexpr int MOST_APART = 60;
FN int unmarked(int exponent) {
  const int alone = without_full(exponent);
  return alone >= NEEDS_FIXUP / 2 ? alone - NEEDS_FIXUP : alone;
}
template <int WIDTH, bool SWAPPED, class Source> struct multi_image_undo : scale_undo<WIDTH, SWAPPED, Source> {
  using of_one = scale_undo<WIDTH, SWAPPED, Source>;
  int next, before, warp;  // the second image's exponent; how many of the tile's pixels lie before it
  FN multi_image_undo(const packed_image& packed, int image, int next_image, int channel, int before, int warp)
      : of_one(packed, image, channel, warp), next(packed.image_exponents[next_image]), before(before), warp(warp) {}
  FN bool run(float (&sums)[quarters<WIDTH>][32]) {
    if (__all_sync(~0u, before >= (SWAPPED ? TILE_ROWS : WIDTH))) return of_one::run(sums);
    const int apart = unmarked(next) - unmarked(this->image);
    const bool far = apart > MOST_APART || apart < -MOST_APART;
    const int mine = before - (SWAPPED ? warp * 16 + lane_here() / 4 : lane_here() % 4 * 2);
    const float by = far ? __uint_as_float(0x7fffffffu) : power(apart);
#pragma unroll
    for (int i = 0; i < of_one::COUNT; ++i)
      of_one::each(sums, i, [&](float& x, int pixel) { x = pixel < mine ? x : x * by; });
    return of_one::run(sums) || far || next >= NEEDS_FIXUP / 2;
  }
};
template <int WIDTH, bool SWAPPED, class T, int TERMS>
FN auto undo_of_tile(const multi_image_source<T, TERMS>& source, const packed_image& packed, tiles::place tile, int channel,
                     int pixel, int warp) {
  if constexpr (image_kind<T>::scaled) {
    const int pixels = int(source.shape.out_pixels()), image = pixel / pixels;
    const int next = image + 1 < source.shape.images ? image + 1 : image;
    return multi_image_undo<WIDTH, SWAPPED, multi_image_source<T, TERMS>>(packed, image, next, channel,
        (image + 1) * pixels - pixel, warp);
  } else {
    return scale_undo<WIDTH, SWAPPED, multi_image_source<T, TERMS>>(packed, 0, channel, warp);
  }
}

//@ run_conv_multi_image: needs multi_image_shape, conv_kernel
template <int WIDTH, bool SWAPPED, int SEGMENT, int VECTOR, int CHANNEL_TILE = 64, int BLOCKS = 1, int TERMS = 1, class T,
          class Body>
int run_conv_multi_image(const Body& body, const T* image, const T* weight, conv_shape shape, void* workspace,
                           int device, void* stream) {
  static_assert(SEGMENT == 0 && !conv_stage<WIDTH, BLOCKS, TERMS>::pingpong, "tails are maps, and groups share tiles");
#ifndef __CUDACC_RTC__
  if (shape.out_pixels() < conv_stage<WIDTH, BLOCKS, TERMS>::pixels(SWAPPED)) return cudaErrorInvalidValue;
#endif
  const multi_image_shape given{shape};
  return launch_conv<WIDTH, SWAPPED, SEGMENT, VECTOR, CHANNEL_TILE, BLOCKS, TERMS>(body, image, weight, given, workspace,
                                                                                  device, stream);
}

//@
}  // namespace fusewright
