// What the lanes of a warp have of a finished tile on Hopper (sm_90a), on its way to the generated body from their registers.
//
// The surprising fact: a lane's neighbouring columns are a matter of the order in which the other operand's rows come into
// shared memory. So whole vectors are stored without a trip through a smem tile.
//
// Text outside `//@ name` sections only serves a compilation of this file alone.
#pragma once
#include "kernels/tensor_core/cuda/tensor_maps_sm90.cuh"
namespace fusewright {

//@ lane_columns: needs finish, here
template <class Operands> FN float2 scaled_pair(const float* from, float2 scale, float& poison) {
  float2 pair = make_float2(from[0], from[1]);
  if constexpr (!Operands::split) return pair;
  if constexpr (Operands::packed) pair = make_float2(pair.x * fabsf(scale.x), pair.y * fabsf(scale.y));
  poison = fmaf(pair.x, 0.f, fmaf(pair.y, 0.f, poison));
  return pair;
}
// A multiplication that stays where it is: before a loop its results would need registers, behind branches its operands.
FN float times_here(float x, float y) {
  asm volatile("mul.f32 %0, %0, %1;" : "+f"(x) : "f"(y));
  return x;
}
// The sums of a tile times the inverse scales of its packed rows, in place; whether any may be wrong.
template <class Operands, int QUARTERS> FN bool undo_scales(float (&promoted)[QUARTERS][32], const float* scales) {
  const int t = lane_here() % 4;
  float poison[QUARTERS] = {};
#pragma unroll
  for (int i = 0; i < QUARTERS * 8; ++i) {
    const float2 scale = *reinterpret_cast<const float2*>(scales + i * 8 + t * 2);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float* const sums = &promoted[i / 8][i % 8 * 4 + half * 2];
      const float2 pair = scaled_pair<Operands>(sums, scale, poison[i / 8]);
      sums[0] = pair.x, sums[1] = pair.y;
    }
  }
  bool wrong = false;
#pragma unroll
  for (int q = 0; q < QUARTERS; ++q) wrong |= poison[q] != poison[q];
  return __any_sync(~0u, wrong);
}
// A lane has pairs of neighbouring columns, or fours or eights where rows of the other operand stand in such an order: runs of
// EACH. 64 columns of the promoted accumulator -> the lane's runs of row g, or g + 8; and those -> row `row` of its smem tile.
// `scales`: scaled, of the two rows.
template <class Operands, int EACH>
FN void take_lane_columns(float (&lane_columns)[16 / EACH][EACH], const float (&promoted)[32], int half, const float* scales) {
#pragma unroll
  for (int i = 0; i < 16; ++i) {
    const float sum = promoted[i / 2 * 4 + half * 2 + i % 2];
    lane_columns[i / EACH][i % EACH] = Operands::scaled ? times_here(sum, scales[half]) : sum;
  }
}
// The same of both rows and one of the promoted accumulator's quarters. Registers have no index at run time, and one choice has
// to be the last, or what is not chosen is kept alive from before the loop over k.
template <class Operands, int I = 0, int QUARTERS, int EACH>
FN void choose_lane_columns(int number, float (&lane_columns)[2][16 / EACH][EACH], const float (&promoted)[QUARTERS][32],
    const float* scales) {
  if constexpr (I + 1 < QUARTERS)
    if (number != I) return choose_lane_columns<Operands, I + 1>(number, lane_columns, promoted, scales);
  take_lane_columns<Operands>(lane_columns[0], promoted[I], 0, scales);
  take_lane_columns<Operands>(lane_columns[1], promoted[I], 1, scales);
}
template <int COLUMNS, int EACH>
FN void put_lane_columns(float* smem_tile, const float (&lane_columns)[16 / EACH][EACH], int row, int first_column) {
#pragma unroll
  for (int i = 0; i < 16 / EACH; ++i)
#pragma unroll
    for (int j = 0; j < EACH; j += 4) {
      const float* const from = lane_columns[i] + j;
      float* const to = smem_tile + smem_tile_place<false, COLUMNS>(row, first_column + (i * 4 + lane_here() % 4) * EACH + j);
      if constexpr (EACH >= 4)
        *reinterpret_cast<float4*>(to) = make_float4(from[0], from[1], from[2], from[3]);
      else
        *reinterpret_cast<float2*>(to) = make_float2(from[0], from[1]);
    }
}

//@ finish_rows: needs lane_columns, columns_lane, lanes_team
// Columns, or segments of them, that are finite and whole go to the body from the registers that they are in: four lanes have a
// row.
template <int EACH> struct lane_columns_row {
  using value = float;
  static constexpr int bytes = 0;
  static constexpr bool kept = true;
  const float (*lane_columns)[EACH];
  template <int W, int U> struct packet {
    static_assert(W == EACH, "neighbours in a lane");
    const float (*lane_columns)[EACH];
    FN explicit packet(const lane_columns_row& o) : lane_columns(o.lane_columns) {}
    template <class Place> FN void fetch(int, const Place&) {}
    template <class Place> FN float element(int, int j, const Place& at) { return lane_columns[at.slot][j]; }
    template <class Place> FN void flush(int, const Place&) {}
  };
};
template <int SEGMENT, int EACH, class Body>
FN void register_epilogue(const Body& body, const float (&lane_columns)[2][16 / EACH][EACH], smem_tile_corner at, int columns,
    int lane) {
  if constexpr (SEGMENT == 0) {
    const columns_range<true> mine{at.column + lane % 4 * EACH, 4 * EACH, columns};
#pragma unroll
    for (int half = 0; half < 2; ++half)
      body(at.row + lane / 4 + half * 8, mine, columns_lane<EACH, 16 / EACH>(), lane_columns_row<EACH>{lane_columns[half]});
  } else {
    const int segments = columns / SEGMENT;
    __builtin_assume(at.row >= 0 && segments > 0);
    lanes_team<4, EACH> team;  // one, or no two addresses would have a common part
    const long first = (at.row + lane / 4) * segments + at.column / SEGMENT;
#pragma unroll
    for (int half = 0; half < 2; ++half)
#pragma unroll
      for (int s = 0; s < 64 / SEGMENT; ++s)
        body(first + half * 8 * segments + s, team, lane_columns_row<EACH>{&lane_columns[half][s * (SEGMENT / 4 / EACH)]});
  }
}
// COUNT columns of a row of a tile, four lanes to a row, EACH neighbours side by side. What the body reads for all of them is
// asked for before the first is worked on; with fewer neighbours there are not enough registers for that.
template <int WIDTH, int EACH, int FIRST, int COUNT> struct whole_row {
  using value = float;
  static constexpr int bytes = 0;
  static constexpr bool kept = true;
  const float (&promoted)[(WIDTH + 63) / 64][32];
  int half;
  template <int W, int U> struct packet {
    static_assert(W == EACH && U * W * 4 == COUNT, "neighbours in a lane");
    const float (&promoted)[(WIDTH + 63) / 64][32];
    int half;
    FN explicit packet(const whole_row& o) : promoted(o.promoted), half(o.half) {}
    template <class Place> FN void fetch(int, const Place&) {}
    template <class Place> FN float element(int u, int j, const Place&) {
      const int number = FIRST / 4 + u * W + j;
      return promoted[number / 16][number % 16 / 2 * 4 + half * 2 + j % 2];
    }
    template <class Place> FN void flush(int, const Place&) {}
  };
};
// Up to MOST columns at once, as far as they are whole: how many columns that were.
template <int EACH, int WIDTH, int MOST, int FIRST = 0, class Body>
FN int finish_whole(const Body& body, const float (&promoted)[(WIDTH + 63) / 64][32], smem_tile_corner at, int columns) {
  constexpr int COUNT = WIDTH - FIRST < MOST ? WIDTH - FIRST : MOST;
  if (at.column + FIRST + COUNT > columns) return FIRST;
  const int lane = lane_here();
  const columns_range<true> mine{at.column + FIRST + lane % 4 * EACH, 4 * EACH, columns};
#pragma unroll
  for (int half = 0; half < 2; ++half)
    body(at.row + lane / 4 + half * 8, mine, columns_lane<EACH, COUNT / (4 * EACH)>(),
         whole_row<WIDTH, EACH, FIRST, COUNT>{promoted, half});
  if constexpr (FIRST + COUNT < WIDTH)
    return finish_whole<EACH, WIDTH, MOST, FIRST + COUNT>(body, promoted, at, columns);
  else
    return WIDTH;
}

//@
}  // namespace fusewright
