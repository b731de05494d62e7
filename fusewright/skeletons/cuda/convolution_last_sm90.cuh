// Convolutions on Hopper (sm_90a) whose images and results lie with their channels innermost (`channels_last`), of one group.
//
// The result is a product as it is stored: its rows are pixels, its columns channels. Which of them the tensor core has as
// its 128 rows stays free, since a box may leave column by column.
//
// The surprising fact: of 16 bits, nothing is packed where channels fill all chunks. The copy engine gathers patches
// from the image itself, and goes on from one image to the next, so that tiles end only behind the last one.
//
// Text outside `//@ name` sections only serves a compilation of this file alone.
#pragma once
#include "convolution_launch_sm90.cuh"
namespace fusewright {

//@ last_shape: needs packed_image, image_tile, image_map
// WEIGHTS_TOO: weights lie as images do, [out][D][H][W][in]; if not, as elsewhere.
template <int CHUNK, bool WEIGHTS_TOO, class T> struct last_shape : convolution_shape {
  static constexpr bool last = true, last_weights = WEIGHTS_TOO, joined = !image_kind<T>::scaled;
  using walked = last_shape;
  BOTH const walked& walk() const { return *this; }
  BOTH long side_by_side() const { return in_channels; }
  BOTH bool packs_image() const { return !joined || in_channels % CHUNK != 0; }
  BOTH bool packs_weights() const { return packs_image() || !WEIGHTS_TOO; }
};
// Where images are joined, pixels behind the last one of an image are those of the next.
template <int CHUNK, bool WEIGHTS_TOO, class T>
FN pixel_place place_of(const last_shape<CHUNK, WEIGHTS_TOO, T>& s, int image, int pixel) {
  const int line = pixel / s.out_size[2], sheet = line / s.out_size[1];
  return {{pixel % s.out_size[2] * s.stride[2] - s.pad[2], line % s.out_size[1] * s.stride[1] - s.pad[1],
           sheet % s.out_size[0] * s.stride[0] - s.pad[0]}, image + sheet / s.out_size[0]};
}
// A thread has eight channels of a pixel, four times over, and those beside it the next ones: no box is needed.
template <int CHUNK> struct last_place {
  long pixel;
  int channel;
  FN last_place(const image_tile<CHUNK>& tile, int round) {
    const int item = round * IMAGE_THREADS + threadIdx.x;
    pixel = tile.first_pixel + item / tile.pieces, channel = tile.first_channel + item % tile.pieces * 8;
  }
};
template <bool VECTORS, int CHUNK, bool WEIGHTS_TOO, class T>
FN void read_tile(four_rounds<T>& x, const T* images, const last_shape<CHUNK, WEIGHTS_TOO, T>& shape,
                  const image_tile<CHUNK>& tile) {
  const long in_pixels = shape.in_pixels();
#pragma unroll
  for (int round = 0; round < 4; ++round) {
    const last_place<CHUNK> at(tile, round);
    const T* const from = images + (tile.image * in_pixels + at.pixel) * shape.in_channels + at.channel;
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      const int behind = at.pixel < in_pixels ? shape.in_channels - at.channel - c * 4 : 0;
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
template <int PARTS, int CHUNK, bool WEIGHTS_TOO, class T>
FN void write_tile(const four_rounds<T>& x, float scale, uint4 (&)[1024], const last_shape<CHUNK, WEIGHTS_TOO, T>& shape,
                   const packed_image& to, const image_tile<CHUNK>& tile) {
  static_assert(PARTS == 1, "full float32 is PyTorch's");
#pragma unroll
  for (int round = 0; round < 4; ++round) {
    const last_place<CHUNK> at(tile, round);
    if (at.pixel >= shape.in_pixels()) continue;
    const T(&all)[2][4] = x[round];
    const uint4 packed{two_packed(all[0][0], all[0][1], scale), two_packed(all[0][2], all[0][3], scale),
                       two_packed(all[1][0], all[1][1], scale), two_packed(all[1][2], all[1][3], scale)};
    const long pixel = tile.image * shape.in_pixels() + at.pixel;
    *reinterpret_cast<uint4*>(to.pixels + pixel * to.channels + at.channel) = packed;
  }
}

//@ run_convolution_last: needs last_shape, convolution_kernel
// SWAPPED: channels are the 128 rows of the tensor core's tile. An image, and weights that are not packed, have to start at
// multiples of 16 bytes.
template <int WIDTH, bool SWAPPED, int SEGMENT, int VECTOR, int CHUNK = 64, int BLOCKS = 1, bool WEIGHTS_TOO = true, class T,
          class Body>
int run_convolution_last(const Body& body, const T* image, const T* weight, convolution_shape shape, void* workspace,
                         int device, void* stream) {
#ifndef __CUDACC_RTC__
  if (shape.groups != 1) return cudaErrorInvalidValue;
#endif
  const last_shape<CHUNK, WEIGHTS_TOO, T> given{shape};
  return launch_convolution<WIDTH, !SWAPPED, SEGMENT, VECTOR, CHUNK, BLOCKS, 1>(body, image, weight, given, workspace,
                                                                               device, stream);
}

//@
}  // namespace fusewright
