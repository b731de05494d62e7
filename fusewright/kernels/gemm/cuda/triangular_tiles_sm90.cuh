// The tiles of a product that a mask leaves something of, numbered for persistent blocks (sm_90a).
//
// Text outside `//@ name` sections only serves a compilation of this file alone.
#pragma once
#include "kernels/gemm/cuda/triangular_tiles.cuh"
#include "kernels/tensor_core/cuda/tile_sm90.cuh"
namespace fusewright {

//@ triangular_tiles: needs tiles_of, diagonal_band, blank_out
constexpr int MOST_GROUPS = 64;
template <class Body> struct tiles_of<Body, decltype(void(Body::least))> {
  static constexpr bool blanks = true;
  tiles whole;
  diagonal_band band;
  int count, each, group;       // wanted tiles; those of a batch; rows of tiles that are taken together
  int before[MOST_GROUPS + 1];  // wanted tiles of a batch that come before a group
  // As in `tiles`, column by column of a group of rows.
  FN tiles::place at(int number) const {
    int rest = number % each, g = 0;
    while (before[g + 1] <= rest) ++g;
    rest -= before[g];
    const int top = g * group, stop = top + group < whole.down ? top + group : whole.down;
    const int full = band.first(stop - 1, whole.across), behind = band.end(top, whole.across);
    for (int column = band.first(top, whole.across); column < whole.across; ++column) {
      if (column == full && full < behind) {  // from here on, all rows of the group are wanted
        const int high = stop - top, all = (behind - full) * high;
        if (rest < all) return {number / each, top + rest % high, full + rest / high};
        rest -= all;
        if ((column = behind) == whole.across) break;
      }
      const int row = band.first_row(column, top, stop), rows = band.end_row(column, top, stop) - row;
      if (rest < rows) return {number / each, row + rest, column};
      rest -= rows > 0 ? rows : 0;
    }
    return {0, 0, 0};  // behind the last one
  }
  // All other tiles, `warps` warps to each.
  template <bool SWAPPED, int VECTOR>
  FN void blanks_out(const Body& body, const gemm_shape& shape, int block, int blocks, int warp, int warps) const {
    for (int number = block; number < whole.count; number += blocks) {
      const tiles::place at = whole.at(number);
      if (at.column >= band.first(at.row, whole.across) && at.column < band.end(at.row, whole.across)) continue;
      blank_out<VECTOR>(body, shape, blank_at<SWAPPED>(at, band.high, band.wide), warp, warps);
    }
  }
#ifndef __CUDACC_RTC__
  // How many of `blocks` have something to do.
  int used(int pieces, int blocks) const {
    const int most = pieces < whole.count ? whole.count : pieces;
    return most < blocks ? most : blocks;
  }
  static tiles_of of(tiles whole, int high, int wide, bool swapped) {
    tiles_of made{whole, diagonal_band_of<Body>(high, wide, swapped), 0, 0, 8, {}};
    while (whole.down > made.group * MOST_GROUPS) made.group *= 2;
    for (int g = 0; g <= MOST_GROUPS; ++g) {
      const bool last = g * made.group >= whole.down;
      made.before[g] = last && g > 0 && (g - 1) * made.group >= whole.down ? 0x7fffffff : made.each;
      for (int row = g * made.group; row < (g + 1) * made.group && row < whole.down; ++row)
        made.each += made.band.end(row, whole.across) - made.band.first(row, whole.across);
    }
    made.count = made.each * (whole.count / (whole.down * whole.across));
    if (made.each == 0) made.each = 1;
    return made;
  }
#endif
};

//@
}  // namespace fusewright
