// Convolutions of few channels, or of far strides: several pixels of the image are packed as channels of one, a cell.
//
// Tensor cores take 16 channels of a tap at least, and three of them leave most of that empty. So along each dimension a cell
// is either one pixel, or as many as a stride, or as a kernel. Cells begin where the patches of results do. A cell as wide as
// a stride makes a convolution of stride 1 with fewer taps; one as wide as a kernel leaves a single tap. Patches that do not
// overlap are one cell each: a product.
//
// The surprising fact: nothing but packing knows of this. It reads the image and the weights as they lie, and all kernels
// behind it see another convolution. Where a kernel's last cell is wider than the taps that are left, weights are zero; so an
// image that is not finite marks its results, and these are computed again as plain sums of the convolution as it is given.
//
// Text outside `//@ name` sections only serves a compilation of this file alone.
#pragma once
#include "kernels/conv/cuda/conv_launch_sm90.cuh"
namespace fusewright {

//@ space_to_depth_shape: needs pack_weights, pack_image, divider
// A channel of a cell: which one of the image, and which pixel of the cell. Arrays run from D to W.
struct cell_channel {
  int channel, at[3];
};
// The convolution of cells that the kernels see. `cell`: pixels of one; `step`: from one to the next; `before`: how many pixels
// the first one begins before the image.
struct space_to_depth_walk : conv_shape {
  conv_shape given;
  int cell[3], step[3], before[3];
  divider per_cell[3], per_line, per_sheet;
  using walked = space_to_depth_walk;
  BOTH const walked& walk() const { return *this; }
  BOTH long side_by_side() const { return 1; }  // neighbours of a cell are channels
  FN cell_channel taken(int number) const {
    cell_channel found;
#pragma unroll
    for (int d = 2; d >= 0; --d) {
      const int rest = per_cell[d](number);
      found.at[d] = number - rest * cell[d], number = rest;
    }
    found.channel = number;
    return found;
  }
};
struct space_to_depth_shape : conv_shape {
  space_to_depth_walk cells;
  using walked = space_to_depth_walk;
  BOTH const walked& walk() const { return cells; }
  BOTH int most_taps() const { return cells.taps(); }
  FN int taps_of(int) const { return cells.taps(); }
  FN spans spans_of(int) const { return {cells}; }
  static constexpr bool holes = true;
};
FN unsigned sampled_size(const float* images, const space_to_depth_walk& shape, long image) {
  return sampled_size(images, shape.given, image);
}
// As of pixels; what is outside of the image is zero.
template <bool VECTORS, int CHANNEL_TILE, class T>
FN void read_tile(four_rounds<T>& x, const T* images, const space_to_depth_walk& shape, const image_tile<CHANNEL_TILE>& tile) {
  const conv_shape& s = shape.given;
  const int channels = shape.in_channels / shape.groups, each = s.in_channels / s.groups, cells = int(shape.in_pixels());
  const T* const from = images + (tile.image * s.in_channels + tile.group * each) * s.in_pixels();
#pragma unroll
  for (int round = 0; round < 4; ++round) {
    const int first = tile.first_channel + tile.piece_of(round) * 8 + threadIdx.x % 32 / 8 * 2;
    const cell_channel taken[2] = {shape.taken(first), shape.taken(first + 1)};
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const int cell = int(tile.first_pixel) + tile.pixel_of(round) + j, line = shape.per_line(cell);
      const int sheet = shape.per_sheet(line), places[3] = {sheet, line - sheet * shape.in_size[1],
          cell - line * shape.in_size[2]};
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        bool inside = cell < cells && first + c < channels;
        int place = taken[c].channel;
#pragma unroll
        for (int d = 0; d < 3; ++d) {
          const int at = places[d] * shape.step[d] - shape.before[d] + taken[c].at[d] * s.dilation[d];
          inside = inside && unsigned(at) < unsigned(s.in_size[d]), place = place * s.in_size[d] + at;
        }
        x[round][c][j] = inside ? from[place] : T();
      }
    }
  }
}
// One row of weights: by tap of cells and channel, and by number.
template <class T> struct cell_row_of_weights {
  const space_to_depth_shape& shape;
  const T* from;
  int channels, taps;
  FN cell_row_of_weights(const T* weight, const space_to_depth_shape& shape, long row)
      : shape(shape), from(weight + row * (shape.in_channels / shape.groups) * shape.taps()),
        channels(shape.cells.in_channels / shape.groups), taps(shape.cells.taps()) {}
  FN T at(int tap, int number) const {
    const space_to_depth_walk& cells = shape.cells;
    const cell_channel taken = cells.taken(number);
    const int line = tap / cells.kernel[2];
    const int along[3] = {line / cells.kernel[1], line % cells.kernel[1], tap - line * cells.kernel[2]};
    long place = taken.channel;
    bool there = true;
#pragma unroll
    for (int d = 0; d < 3; ++d) {
      const int t = along[d] * cells.cell[d] + taken.at[d];
      there = there && t < shape.kernel[d], place = place * shape.kernel[d] + t;
    }
    return there ? from[place] : T();
  }
  FN T operator[](int k) const { return at(k % taps, k / taps); }
};
template <class T> FN cell_row_of_weights<T> row_of_weights(const T* weight, const space_to_depth_shape& shape, long row) {
  return {weight, shape, row};
}

//@ run_conv_space_to_depth: needs space_to_depth_shape, conv_kernel
// Pixels of a cell along each dimension, from D to W.
struct cell_sizes {
  int along[3];
};
#ifndef __CUDACC_RTC__
// An error if cells are no pixels, no strides and no kernels.
inline int describe_cells(space_to_depth_shape& to, const conv_shape& given, const cell_sizes& sizes) {
  conv_shape& walk = to.cells;
  static_cast<conv_shape&>(to) = walk = to.cells.given = given;
  for (int d = 0; d < 3; ++d) {
    const int cell = sizes.along[d], stride = given.stride[d];
    const bool whole = cell == given.kernel[d], strides = cell == stride && given.dilation[d] == 1 && cell < given.kernel[d];
    if (cell < 1 || (cell > 1 && !whole && !strides)) return cudaErrorInvalidValue;
    to.cells.cell[d] = cell, to.cells.per_cell[d] = divider_by(cell), walk.in_channels *= cell;
    to.cells.step[d] = cell > 1 ? stride : 1, to.cells.before[d] = cell > 1 ? given.pad[d] : 0;
    if (cell == 1) continue;
    walk.kernel[d] = (given.kernel[d] + cell - 1) / cell, walk.in_size[d] = given.out_size[d] + walk.kernel[d] - 1;
    walk.stride[d] = walk.dilation[d] = 1, walk.pad[d] = 0;
  }
  const long most = 0x7fffff00;
  if (walk.in_pixels() > most || given.in_channels * given.in_pixels() > most) return cudaErrorInvalidValue;
  to.cells.per_line = divider_by(walk.in_size[2]), to.cells.per_sheet = divider_by(walk.in_size[1]);
  return 0;
}
#endif
// What `run_conv` says of workspace and limits holds for the walk.
template <int WIDTH, bool SWAPPED, int SEGMENT, int VECTOR, int CHANNEL_TILE = 64, int BLOCKS = 1, int TERMS = 1, class T,
          class Body>
int run_conv_space_to_depth(const Body& body, const T* image, const T* weight, conv_shape given, cell_sizes sizes,
                          void* workspace, int device, void* stream) {
  space_to_depth_shape shape;
#ifndef __CUDACC_RTC__
  if (int error = describe_cells(shape, given, sizes)) return error;
#endif
  return launch_conv<WIDTH, SWAPPED, SEGMENT, VECTOR, CHANNEL_TILE, BLOCKS, TERMS>(body, image, weight, shape, workspace,
                                                                                  device, stream);
}

//@
}  // namespace fusewright
