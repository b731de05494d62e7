// How tiles of stacked phases leave their registers on Hopper (sm_90a), where channels and phases are a tile's columns.
//
// The surprising fact: neighbours of the result, phases of one place, are neighbours in a lane already. So eight lanes
// store whole sectors, and nothing goes through shared memory.
//
// Text outside `//@ name` sections only serves a compilation of this file alone.
#pragma once
#include "transposed.cuh"
namespace fusewright {

//@ phases_out: needs transposed_tail, convolution_consume
// The product as an operand: pairs of neighbours of two places.
struct phase_pairs {
  using value = float;
  static constexpr int bytes = 0;
  static constexpr bool kept = true;
  const float (&held)[4];
  template <int W, int U> struct packet {
    static_assert(W == 2 && U == 2, "what a lane has of 8 columns");
    const float (&held)[4];
    FN explicit packet(const phase_pairs& o) : held(o.held) {}
    FN void fetch(int, const phase_column&) {}
    FN float element(int u, int j, const phase_column&) { return held[u * 2 + j]; }
    FN void flush(int, const phase_column&) {}
  };
};
// Registers have no index at run time: what a lane has of 32 columns, 8 by 8.
template <int I = 0, int QUARTERS>
FN void choose_columns(float (&held)[4][4], const float (&sums)[QUARTERS][32], int number) {
  if constexpr (I + 1 < QUARTERS * 2)
    if (number != I) return choose_columns<I + 1>(held, sums, number);
#pragma unroll
  for (int i = 0; i < 16; ++i) held[i / 4][i % 4] = sums[I / 2][I % 2 * 16 + i];
}
// False, and nothing done, unless every place of the tile has all phases, lines begin with sectors, and nothing is suspect.
template <int WIDTH, int TOGETHER, class Consumer>
FN bool pairs_out(const Consumer& me, const float (&sums)[WIDTH / 64][32], tiles::place tile) {
  const transposed_shape<TOGETHER>& s = me.body.shape;
  const int warp = warp_here() - decltype(me.factors)::first_warp, lane = lane_here(), phase = lane % 4 * 2;
  const int top = tile.column * WIDTH, column = tile.row * TILE_ROWS + warp * 16 + lane / 4;
  const int behind = me.shape.rows - top, rows = behind < WIDTH ? behind : WIDTH;
  const int image = s.per_image(tile.batch), high = (1 << s.height_bits) - 1, deep = (1 << s.line_bits) - 1 >> s.height_bits;
  const product_phases phases = s.phases_of(tile.batch - image * s.products());
  const int (&size)[3] = s.given.out_size;
  bool whole = s.even() && size[2] * sizeof(*me.factors.left.image) % 32 == 0 && rows % 32 == 0 && !me.factors.suspect;
  int base[2];
#pragma unroll
  for (int u = 0; u < 2; ++u) {
    const int place = column + u * 8;
    const phase_place p = place_of_phase(s, phases, place, phase % TOGETHER);
    whole = whole && place < me.shape.columns && p.z >= 0 && p.z + deep < size[0] && p.y >= 0 && p.y + high < size[1];
    base[u] = (p.z * size[1] + p.y) * size[2] + p.x;
  }
  if (__any_sync(~0u, group_any(1 + warp / 4, 128, !whole))) return false;
  const int first = image * s.given.out_channels + phases.group * (s.given.out_channels / s.given.groups);
#pragma unroll 1
  for (int number = 0; number < rows / 32; ++number) {
    float held[4][4];
    choose_columns(held, sums, number);
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const int line = (top + number * 32 + j * 8 + phase) / TOGETHER, across = line & (1 << s.line_bits) - 1;
      const int further = ((across >> s.height_bits) * size[1] + (across & high)) * size[2];
      const phase_range<2> here{{base[0] + further, base[1] + further}, {}};
      me.body.body(long(first + (line >> s.line_bits)), here, phase_lane<2, 2>(), phase_pairs{held[j]});
    }
  }
  return true;
}
template <int WIDTH, int VECTOR, class Sums, int TOGETHER, int MOST, class Body, class Factors>
FN bool phases_out(const consumer<transposed_body<TOGETHER, MOST, Body>, Factors>& me, const Sums& sums, tiles::place tile) {
  if constexpr (VECTOR % 2 == 0 && TOGETHER > 1)
    return pairs_out<WIDTH, TOGETHER>(me, sums, tile);
  else
    return false;
}

//@
}  // namespace fusewright
