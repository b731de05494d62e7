// Convolutions on Hopper (sm_90a) whose images and results lie with their channels innermost (`channels_last`).
//
// The result is a product as it is stored: its rows are pixels, its columns channels. Which of them the tensor core has as
// its 128 rows stays free, since a smem tile may leave column by column. Each group has columns of its own.
//
// The surprising fact: of 16 bits, nothing is packed where channels fill whole channel tiles. The copy engine gathers patches
// from the image itself, and goes on from one image to the next, so that tiles end only behind the last one.
//
// Text outside `//@ name` sections only serves a compilation of this file alone.
#pragma once
#include "kernels/conv/cuda/conv_launch_sm90.cuh"
namespace fusewright {

//@ channels_last_shape: needs packed_image, image_kind
// WEIGHTS_TOO: weights lie as images do, [out][D][H][W][in]; if not, as elsewhere. GROUPED: there may be several groups.
template <int CHANNEL_TILE, bool WEIGHTS_TOO, class T, bool GROUPED = false> struct channels_last_shape : conv_shape {
  static constexpr bool channels_last = true, weights_channels_last = WEIGHTS_TOO, multi_image = !image_kind<T>::scaled;
  using walked = channels_last_shape;
  BOTH const walked& walk() const { return *this; }
  BOTH long side_by_side() const { return in_channels / groups; }
  BOTH bool packs_image() const { return !multi_image || side_by_side() % CHANNEL_TILE != 0; }
  BOTH bool packs_weights() const { return packs_image() || !WEIGHTS_TOO; }
};

//@ channels_last_places: needs channels_last_shape, image_map
// Where images are joined, pixels behind the last one of an image are those of the next.
template <int CHANNEL_TILE, bool WEIGHTS_TOO, class T, bool GROUPED>
FN pixel_place place_of(const channels_last_shape<CHANNEL_TILE, WEIGHTS_TOO, T, GROUPED>& s, int image, int pixel) {
  const int line = pixel / s.out_size[2], sheet = line / s.out_size[1];
  return {{pixel % s.out_size[2] * s.stride[2] - s.pad[2], line % s.out_size[1] * s.stride[1] - s.pad[1],
           sheet % s.out_size[0] * s.stride[0] - s.pad[0]}, image + sheet / s.out_size[0]};
}

//@ channels_last_packing: needs channels_last_shape, pack_image
// A thread has eight channels of a pixel, four times over, and those beside it the next ones: no smem tile is needed.
template <int CHANNEL_TILE> struct channels_last_place {
  long pixel;
  int channel;
  FN channels_last_place(const image_tile<CHANNEL_TILE>& tile, int round) {
    const int item = round * IMAGE_THREADS + threadIdx.x;
    pixel = tile.first_pixel + item / tile.pieces, channel = tile.first_channel + item % tile.pieces * 8;
  }
};
template <bool VECTORS, int CHANNEL_TILE, bool WEIGHTS_TOO, class T, bool GROUPED>
FN void read_tile(four_rounds<T>& x, const T* images, const channels_last_shape<CHANNEL_TILE, WEIGHTS_TOO, T, GROUPED>& shape,
                  const image_tile<CHANNEL_TILE>& tile) {
  const int channels = shape.in_channels / shape.groups;
  const long in_pixels = shape.in_pixels();
#pragma unroll
  for (int round = 0; round < 4; ++round) {
    const channels_last_place<CHANNEL_TILE> at(tile, round);
    const T* const from = images + (tile.image * in_pixels + at.pixel) * shape.in_channels + tile.group * channels + at.channel;
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      const int behind = at.pixel < in_pixels ? channels - at.channel - c * 4 : 0;
      T(&to)[4] = x[round][c];
      if (VECTORS && behind > 0) {
        fetch_vector<false, 4>(from + c * 4, to);
      } else {
#pragma unroll
        for (int j = 0; j < 4; ++j) to[j] = !VECTORS && j < behind ? from[c * 4 + j] : T();
      }
    }
  }
}
template <int TERM, class T> FN uint4 term_of_eight(const T (&x)[2][4], float scale) {
  return {term_of_two<TERM>(x[0][0], x[0][1], scale), term_of_two<TERM>(x[0][2], x[0][3], scale),
          term_of_two<TERM>(x[1][0], x[1][1], scale), term_of_two<TERM>(x[1][2], x[1][3], scale)};
}
template <int TERMS, int CHANNEL_TILE, bool WEIGHTS_TOO, class T, bool GROUPED>
FN void write_tile(const four_rounds<T>& x, float scale, uint4 (&)[1024],
                   const channels_last_shape<CHANNEL_TILE, WEIGHTS_TOO, T, GROUPED>& shape, const packed_image& to,
                   const image_tile<CHANNEL_TILE>& tile) {
  const long lost = long(shape.groups) * to.channels;  // where what rounding has lost begins
#pragma unroll
  for (int round = 0; round < 4; ++round) {
    const channels_last_place<CHANNEL_TILE> at(tile, round);
    if (at.pixel >= shape.in_pixels()) continue;
    const long pixel = tile.image * shape.in_pixels() + at.pixel;
    unsigned short* const place = to.pixels + pixel * (TERMS * lost) + tile.group * to.channels + at.channel;
    *reinterpret_cast<uint4*>(place) = term_of_eight<0>(x[round], scale);
    if constexpr (TERMS == 2) *reinterpret_cast<uint4*>(place + lost) = term_of_eight<1>(x[round], scale);
  }
}
// Neighbouring lanes have a pixel's other channels.
template <int CHANNEL_TILE, bool WEIGHTS_TOO, bool GROUPED>
FN unsigned smallest_pixel(const four_rounds<float>& x, const channels_last_shape<CHANNEL_TILE, WEIGHTS_TOO, float, GROUPED>&) {
  __shared__ uint2 parts[IMAGE_THREADS / 32];
  unsigned least = LARGEST_BITS;
#pragma unroll
  for (int round = 0; round < 4; ++round) {
    unsigned size = 0;
#pragma unroll
    for (int i = 0; i < 8; ++i) size = max(finite_size(x[round][i / 4][i % 4]), size);
#pragma unroll
    for (int lanes = 1; lanes < image_tile<CHANNEL_TILE>::pieces; lanes *= 2) size = max(__shfl_xor_sync(~0u, size, lanes), size);
    least = size > 0 ? min(size, least) : least;
  }
  return LARGEST_BITS - largest_of_block(LARGEST_BITS - least, 0, parts).x;
}

//@ undo_of_gemm: needs conv_scale
// Powers of two of a tile whose rows are pixels, and whose image has several products.
template <int WIDTH, bool SWAPPED, class Source>
FN auto undo_of_gemm(const Source& source, const packed_image& packed, tiles::place tile, int warp) {
  const int gemms = source.shape.gemms(), image = tile.batch / gemms, gemm = tile.batch - image * gemms;
  const int first = SWAPPED ? tile.column * WIDTH : tile.row * TILE_ROWS;
  return scale_undo<WIDTH, SWAPPED, Source>(packed, image, gemm * source.shape.rows() + first, warp);
}

//@ channels_last_groups: needs channels_last_shape, undo_of_gemm, conv_fixup, finish, prefetch, register_epilogue
template <int WIDTH, bool SWAPPED, int CHANNEL_TILE, bool WEIGHTS_TOO, class T, int TERMS>
FN auto undo_of_tile(const conv_source<channels_last_shape<CHANNEL_TILE, WEIGHTS_TOO, T, true>, T, TERMS>& source,
                     const packed_image& packed, tiles::place tile, int, int, int warp) {
  return undo_of_gemm<WIDTH, SWAPPED>(source, packed, tile, warp);
}
// A body whose columns are the channels of all groups.
template <class Body> struct grouped_body {
  const Body& body;
  const conv_shape& shape;
};
template <int BLOCKS, int SEGMENT, int CHANNEL_TILE, bool WEIGHTS_TOO, class T, class Body>
FN grouped_body<Body> epilogue_of(const Body& body, const channels_last_shape<CHANNEL_TILE, WEIGHTS_TOO, T, true>& shape) {
  return {body, shape};
}
template <class Body> constexpr bool has_register_epilogue<grouped_body<Body>> = false;
template <int SEGMENT, class Body> FN void prefetch(const grouped_body<Body>&, long, int, int) {}
template <bool ACROSS, int COLUMNS, int SEGMENT, int VECTOR, class Body>
FN void finish(const grouped_body<Body>& to, const float* smem_tile, int begin, int end, smem_tile_corner at, int columns) {
  const conv_shape& s = to.shape;
  const int batch = int(at.batch), image = batch / s.groups, before = (batch - image * s.groups) * (s.out_channels / s.groups);
  at.row = image * s.out_pixels() + at.batch_row, at.column += before;
  finish<ACROSS, COLUMNS, SEGMENT, VECTOR>(to.body, smem_tile, begin, end, at, before + columns);
}

//@ run_conv_channels_last: needs channels_last_places, channels_last_packing, channels_last_groups, conv_kernel
// SWAPPED: channels are the 128 rows of the tensor core's tile. An image, and weights that are not packed, have to start at
// multiples of 16 bytes; of several groups, vectors are within one.
template <int WIDTH, bool SWAPPED, int SEGMENT, int VECTOR, int CHANNEL_TILE = 64, int BLOCKS = 1, bool WEIGHTS_TOO = true,
          int TERMS = 1, bool GROUPED = false, class T, class Body>
int run_conv_channels_last(const Body& body, const T* image, const T* weight, conv_shape shape, void* workspace,
                         int device, void* stream) {
#ifndef __CUDACC_RTC__
  if (shape.groups != 1 && (!GROUPED || shape.out_channels / shape.groups % VECTOR)) return cudaErrorInvalidValue;
#endif
  const channels_last_shape<CHANNEL_TILE, WEIGHTS_TOO, T, GROUPED> given{shape};
  return launch_conv<WIDTH, !SWAPPED, SEGMENT, VECTOR, CHANNEL_TILE, BLOCKS, TERMS>(body, image, weight, given, workspace,
                                                                                   device, stream);
}

//@
}  // namespace fusewright
