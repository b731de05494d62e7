// Tiles of convolutions on Hopper (sm_90a) whose channels are reduced: these are their columns, and pixels their rows.
//
// Text outside `//@ name` sections only serves a compilation of this file alone.
#pragma once
#include "kernels/conv/cuda/conv.cuh"
#include "kernels/tensor_core/cuda/tile_sm90.cuh"
namespace fusewright {

//@ channel_reduction_source: needs conv_fixup
// Where channels are reduced they are the columns of a tile, and pixels its rows. Sums have been scaled by then.
template <class Source> struct channel_reduction_source {
  const Source& from;
};
template <class Source> FN float plain_sum(const channel_reduction_source<Source>& reduced, int batch, int pixel, int row) {
  return plain_sum(reduced.from, batch, row, pixel);
}
template <int FIRST_WARP, class Source> struct channel_reduction_operands {
  static constexpr bool split = false, packed = false, marked = Source::marked, scaled = false;
  static constexpr int first_warp = FIRST_WARP, each = 2;
  channel_reduction_source<Source> left, right;
  bool needs_fixup;
};

//@ channel_reduction_body: needs finish, prefetch
// A body that reduces channels: its rows are pixels, whose channels lie far apart in memory. So a warp takes many neighbouring
// pixels at once: 8 of up to 128 channels, whose elements in one channel are a sector. Their order is one in which no two
// rows that a quarter of the warp reads share banks. Teams behind the end do the last pixel once more.
template <class Body> struct channel_reduction_body {
  const Body& body;
};
template <int SEGMENT, class Body> FN void prefetch(const channel_reduction_body<Body>&, long, int, int) {}
template <bool ACROSS, int COLUMNS, int SEGMENT, int VECTOR, class Body>
FN void finish(const channel_reduction_body<Body>& to, const float* smem_tile, int begin, int end, smem_tile_corner at,
    int columns) {
  constexpr int THREADS = COLUMNS > 128 ? 8 : SEGMENT / VECTOR > 2 ? 4 : 2, TEAMS = 32 / THREADS;
  const int team = lane_here() / THREADS, segments = columns / SEGMENT, first = at.column / SEGMENT;
  const int behind = min(segments - first, COLUMNS / SEGMENT);
  __builtin_assume(at.row >= 0 && segments > 0);
#pragma unroll 1
  for (int next = begin; next < end; next += TEAMS) {
    const int row = min(next + (team & ~3 | team << 1 & 2 | team >> 1 & 1), end - 1);
#pragma unroll 1
    for (int s = 0; s < behind; ++s)
      to.body((at.row + row) * segments + first + s, lanes_team<THREADS, VECTOR>(),
              accumulator_row{smem_tile + row * COLUMNS, s * SEGMENT, twist_of<ACROSS>(row)});
  }
}

//@
}  // namespace fusewright
