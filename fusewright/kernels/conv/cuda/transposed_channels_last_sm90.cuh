// Transposed convolutions on Hopper (sm_90a) whose images and results lie with their channels innermost.
//
// Each phase has products of its own, whose rows are places and whose columns are channels: so neighbours of the result leave
// together, and nothing is stacked.
//
// The surprising fact: this costs no more than stacked phases do. All phases read the same pixels, but each of them other taps,
// and none multiplies zeros. So of 16 bits, the image need not be packed here, either.
//
// Text outside `//@ name` sections only serves a compilation of this file alone.
#pragma once
#include "kernels/conv/cuda/channels_last_sm90.cuh"
#include "kernels/conv/cuda/subpixel_store_sm90.cuh"
namespace fusewright {

//@ channels_last_phases: needs channels_last_shape, undo_of_gemm, transposed_places
// Of 16 bits, each phase has to see some tap: no row multiplies by zero.
template <int CHANNEL_TILE, bool WEIGHTS_TOO, class T> struct channels_last_phases : transposed_shape<1> {
  using walked = channels_last_shape<CHANNEL_TILE, false, T>;
  walked image;
  static constexpr bool holes = image_kind<T>::scaled, channels_last = true, weights_channels_last = WEIGHTS_TOO;
  BOTH const walked& walk() const { return image; }
  BOTH bool packs_image() const { return image.packs_image(); }
};
template <int CHANNEL_TILE, bool WEIGHTS_TOO, class T, int TERMS>
FN float plain_sum(const conv_source<channels_last_phases<CHANNEL_TILE, WEIGHTS_TOO, T>, T, TERMS>& from, int batch, int place,
                   int channel) {
  return sum_of_phase(from, from.shape, batch, channel, place);
}

template <int WIDTH, bool SWAPPED, int CHANNEL_TILE, bool WEIGHTS_TOO, class T, int TERMS>
FN auto undo_of_tile(const conv_source<channels_last_phases<CHANNEL_TILE, WEIGHTS_TOO, T>, T, TERMS>& source,
                     const packed_image& packed, tiles::place tile, int, int, int warp) {
  return undo_of_gemm<WIDTH, SWAPPED>(source, packed, tile, warp);
}

//@ channels_last_phases_epilogue: needs channels_last_phases, finish, prefetch, register_epilogue
// A body whose rows are the result's pixels, and whose columns are the channels of all groups.
template <class Body> struct channels_last_phases_body {
  const Body& body;
  const transposed_shape<1>& shape;
};
template <int BLOCKS, int SEGMENT, int CHANNEL_TILE, bool WEIGHTS_TOO, class T, class Body>
FN channels_last_phases_body<Body> epilogue_of(const Body& body, const channels_last_phases<CHANNEL_TILE, WEIGHTS_TOO,
    T>& shape) {
  return {body, shape};
}
template <class Body> constexpr bool has_register_epilogue<channels_last_phases_body<Body>> = false;
template <int SEGMENT, class Body> FN void prefetch(const channels_last_phases_body<Body>&, long, int, int) {}
// Eight lanes take a row, or, at the last channels, a warp. Places outside of the result have none.
template <bool ACROSS, int COLUMNS, int SEGMENT, int VECTOR, class Body>
FN void finish(const channels_last_phases_body<Body>& to, const float* smem_tile, int begin, int end, smem_tile_corner at,
    int columns) {
  const transposed_shape<1>& s = to.shape;
  const int (&size)[3] = s.given.out_size;
  const int lane = lane_here(), image = s.per_image(int(at.batch));
  const subpixel_phases phases = s.phases_of(int(at.batch) - image * s.gemms());
  const int before = phases.group * (s.given.out_channels / s.given.groups), column = before + at.column;
  const auto give = [&](int row, auto range, auto lanes) {
    const phase_place p = place_of_phase(s, phases, at.batch_row + row, 0);
    if (row >= end || unsigned(p.z) >= unsigned(size[0]) || unsigned(p.y) >= unsigned(size[1]) ||
        unsigned(p.x) >= unsigned(size[2]))
      return;
    const long pixel = (long(p.z) * size[1] + p.y) * size[2] + p.x;
    const accumulator_row accumulator{smem_tile + row * COLUMNS, -column, twist_of<ACROSS>(row)};
    to.body(image * s.given.out_pixels() + pixel, range, lanes, accumulator);
  };
  if (at.column + COLUMNS <= columns) {
    constexpr int LANES = VECTOR == 1 ? 32 : 8, STEP = 32 / LANES;
    const columns_range<true> mine{column + lane % LANES * VECTOR, LANES * VECTOR, before + columns};
#pragma unroll 1
    for (int row = begin + lane / LANES; row < end; row += STEP)
      give(row, mine, columns_lane<VECTOR, COLUMNS / (LANES * VECTOR)>());
  } else {
    const columns_range<false> mine{column + lane, 32, before + columns};
#pragma unroll 1
    for (int row = begin; row < end; ++row) give(row, mine, columns_lane<1, COLUMNS / 32>());
  }
}

//@ channels_last_phases_weights: needs channels_last_phases, transposed_weights
template <int CHANNEL_TILE, bool WEIGHTS_TOO, class T>
FN phase_row_of_weights<1, T, WEIGHTS_TOO> row_of_weights(const T* weight, const channels_last_phases<CHANNEL_TILE,
                                                          WEIGHTS_TOO, T>& shape, long row) {
  return {weight, shape, row};
}

//@ run_conv_transpose_channels_last: needs channels_last_places, channels_last_packing, channels_last_phases_weights, channels_last_phases_epilogue, describe_phases, conv_kernel
// What `run_conv_channels_last` says of sides, groups and beginnings holds; weights are packed.
template <int WIDTH, bool SWAPPED, int SEGMENT, int VECTOR, int CHANNEL_TILE = 64, int BLOCKS = 1, bool WEIGHTS_TOO = true,
          int TERMS = 1, class T, class Body>
int run_conv_transpose_channels_last(const Body& body, const T* image, const T* weight, conv_shape given, void* workspace,
                        int device, void* stream) {
  channels_last_phases<CHANNEL_TILE, WEIGHTS_TOO, T> shape;
#ifndef __CUDACC_RTC__
  if (given.groups <= 0 || given.out_channels / given.groups % VECTOR || given.stride[2] <= 0) return cudaErrorInvalidValue;
  if (int error = describe_phases(shape, given, {{1, 1, 1}, given.pad[2] % given.stride[2]})) return error;
  static_cast<conv_shape&>(shape.image) = shape.places;
#endif
  return launch_conv<WIDTH, !SWAPPED, SEGMENT, VECTOR, CHANNEL_TILE, BLOCKS, TERMS>(body, image, weight, shape, workspace,
                                                                                   device, stream);
}

//@
}  // namespace fusewright
