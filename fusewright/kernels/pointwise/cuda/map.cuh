// Maps over lanes: as they lie, across what they write, or staged in shared memory.
//
// Text outside `//@ name` sections only serves a compilation of this file alone.
#pragma once
#include "devicelib/cuda/launch.cuh"
namespace fusewright {

//@ divisor
// n / by for n below 2^31, by one multiplication (Granlund and Montgomery, Division by Invariant Integers).
struct divisor {
  unsigned by, factor, shift;
#ifndef __CUDACC_RTC__
  explicit divisor(unsigned by) : by(by), shift(31) {
    while (1UL << (shift - 31) < by) ++shift;
    factor = unsigned(((1UL << shift) + by - 1) / by);
  }
#endif
  FN unsigned under(unsigned n) const { return unsigned((unsigned long)n * factor >> shift); }
};
// The same for what 31 bits do not hold.
struct long_divisor {
  long by;
  FN long under(long n) const { return n / by; }
};

//@ map_block
constexpr int MAP_BLOCK = 128;

//@ run_map: needs lane, map_block, grid, divisor, device_scope
// A thread takes EACH vectors of the whole tensor, a block apart. The surprising fact: one vector of 16 bytes is
// faster than several, in blocks of 128 as fast as a copy, if finding its row costs a multiplication and no more.
template <int VECTOR, int EACH, class Index, class Divisor, class Body>
__global__ void __launch_bounds__(MAP_BLOCK) map_kernel(const Body body, Index vectors, const Divisor per_row) {
  const Index first = Index(block_index()) * (MAP_BLOCK * EACH), mine = first + threadIdx.x;
  const auto visit_at = [&](Index n) {
    const Index row = per_row.under(n);
    body(long(row), range{long(n - row * per_row.by), body.columns()}, lane<VECTOR>());
  };
  if (first + MAP_BLOCK * EACH <= vectors) {
#pragma unroll
    for (int k = 0; k < EACH; ++k) visit_at(mine + k * MAP_BLOCK);
  } else {
#pragma unroll 1
    for (Index n = mine; n < vectors; n += MAP_BLOCK) visit_at(n);
  }
}
#ifdef __CUDACC_RTC__
template <int VECTOR, int EACH = 1, class Body> FN int run_map(const Body&, long, long, int, void*) {
  return &map_kernel<VECTOR, EACH, unsigned, divisor, Body> == nullptr;
}
#else
template <int VECTOR, int EACH = 1, class Body>
int run_map(const Body& body, long rows, long columns, int device, void* stream) {
  if (rows <= 0 || columns <= 0) return 0;
  const device_scope scope(device);
  const long per_row = (columns + VECTOR - 1) / VECTOR, vectors = rows * per_row, tile = MAP_BLOCK * EACH;
  const dim3 grid = grid_of((vectors + tile - 1) / tile);
  const auto on = static_cast<cudaStream_t>(stream);
  if (vectors <= 1L << 30)
    map_kernel<VECTOR, EACH><<<grid, MAP_BLOCK, 0, on>>>(body, unsigned(vectors), divisor(unsigned(per_row)));
  else
    map_kernel<VECTOR, EACH><<<grid, MAP_BLOCK, 0, on>>>(body, vectors, long_divisor{per_row});
  return cudaGetLastError();
}
#endif

//@ run_map_transposed: needs lane, divisor, device_scope
// A map that reads across what it writes, as a transposition does: a block takes 32 rows by 8 vectors, EACH times,
// and the next block the vectors beside them. A warp is as wide as a sector of what is written; what is left of
// the sectors that it reads waits in L1.
template <int VECTOR, int EACH, class Body>
__global__ void __launch_bounds__(256) map_transposed_kernel(const Body body, long rows, long vectors, divisor tiles) {
  constexpr int WIDE = VECTOR >= 4 ? 4 : 8, TALL = 32 / WIDE, DOWN = 32 / TALL;
  const unsigned lane_of = threadIdx.x % 32, warp = threadIdx.x / 32, down = tiles.under(blockIdx.x);
  const long row = down * 32L + warp % DOWN * TALL + lane_of % TALL;
  const long first = (blockIdx.x - down * tiles.by) * (8L * EACH) + warp / DOWN * WIDE + lane_of / TALL;
  if (row >= rows) return;
#pragma unroll
  for (int k = 0; k < EACH; ++k)
    if (first + k * 8 < vectors) body(row, range{first + k * 8, body.columns()}, lane<VECTOR>());
}
#ifdef __CUDACC_RTC__
template <int VECTOR, int EACH = 1, class Body> FN int run_map_transposed(const Body&, long, long, int, void*) {
  return &map_transposed_kernel<VECTOR, EACH, Body> == nullptr;
}
#else
template <int VECTOR, int EACH = 1, class Body>
int run_map_transposed(const Body& body, long rows, long columns, int device, void* stream) {
  if (rows <= 0 || columns <= 0) return 0;
  const device_scope scope(device);
  const long vectors = (columns + VECTOR - 1) / VECTOR, tiles = (vectors + 8 * EACH - 1) / (8 * EACH);
  const long blocks = tiles * ((rows + 31) / 32);
  if (blocks > 1L << 30) return cudaErrorInvalidValue;  // 2^38 elements: no memory has so many
  map_transposed_kernel<VECTOR, EACH><<<unsigned(blocks), 256, 0, static_cast<cudaStream_t>(stream)>>>(
      body, rows, vectors, divisor(unsigned(tiles)));
  return cudaGetLastError();
}
#endif

//@ run_map_staged: needs lane, staged, divisor, device_scope
// The same with 16 bytes on both sides. A block takes a tile of 64 rows that lie side by side in `staged` operands, and
// of 64 columns. It brings those operands with vectors along the rows, a word of shared memory for an element, and then
// runs the body with vectors along the columns, of several rows a thread on both sides. A warp is as wide as 32
// elements, so no two lanes meet in a bank. The next block has the columns beside them: what is written is better not
// left in pieces.
constexpr int STAGE = 64, STAGE_PITCH = STAGE + 1;
// A block takes so many rows at a time; long vectors leave no registers for more turns.
template <int VECTOR> constexpr int stage_apart = VECTOR > 4 ? 32 : 16;
template <int VECTOR> constexpr int stage_threads = STAGE * stage_apart<VECTOR> / VECTOR;
struct stage_place {
  unsigned* tile;
  int along, across;  // in the tile: the first element of my vector, and the first row or column that I take
};
struct stage_range {
  long column, end;
};
template <int VECTOR, bool WHOLE> struct stage_bringer : words<stage_bringer<VECTOR, WHOLE>> {
  static constexpr int vector = VECTOR;
  stage_place at;
  FN explicit stage_bringer(stage_place at) : at(at) {}
};
template <class Operand, class Team> FN void to_stage(const Operand&, stage_range, Team&) {}
template <int SLOT, class T, int VECTOR, bool WHOLE>
FN void to_stage(const staged_operand<SLOT, T>& from, stage_range r, stage_bringer<VECTOR, WHOLE>& team) {
  unsigned* const to = team.at.tile + (SLOT * STAGE + team.at.along) * STAGE_PITCH + team.at.across;
  constexpr int APART = stage_apart<VECTOR>, TURNS = STAGE / APART;
  T held[TURNS][VECTOR];
#pragma unroll
  for (int k = 0; k < TURNS; ++k)
    if (WHOLE || r.column + k * APART < r.end)
      fetch_vector<true, VECTOR>(from.p + from.offset(0, r.column + k * APART), held[k]);
#pragma unroll
  for (int k = 0; k < TURNS; ++k)
#pragma unroll
    for (int j = 0; j < VECTOR; ++j) memcpy(to + j * STAGE_PITCH + k * APART, &held[k][j], sizeof(T));
}
template <int VECTOR, bool WHOLE, class Sink, class F, class... Ops>
FN void walk(stage_bringer<VECTOR, WHOLE>& team, stage_range r, Sink&, const F&, Ops... operand) {
  (to_stage(operand, r, team), ...);
}
// What was brought: a row of the tile.
template <class T> struct stage_operand {
  using value = computed<T>;
  static constexpr int bytes = 0;
  static constexpr bool kept = false;
  const unsigned* row;
  template <int W, int U> struct packet {
    const unsigned* row;
    FN explicit packet(const stage_operand& o) : row(o.row) {}
    template <class Place> FN void fetch(int, const Place&) {}
    template <class Place> FN value element(int, int j, const Place&) {
      T held;
      memcpy(&held, row + j, sizeof(T));
      return widen(held);
    }
    template <class Place> FN void flush(int, const Place&) {}
  };
};
template <int VECTOR> struct stage_lane : words<stage_lane<VECTOR>> {
  static constexpr int vector = VECTOR;
  const unsigned* here;
  FN explicit stage_lane(const unsigned* here) : here(here) {}
};
template <class Operand> FN Operand from_stage(const Operand& operand, const unsigned*) { return operand; }
template <int SLOT, class T> FN stage_operand<T> from_stage(const staged_operand<SLOT, T>&, const unsigned* here) {
  return {here + SLOT * STAGE * STAGE_PITCH};
}
template <int VECTOR, class Sink, class F, class... Ops>
FN void walk(stage_lane<VECTOR>& team, range r, Sink& sink, const F& f, Ops... operand) {
  visit_line<false, VECTOR, 1>(r.vector, r.vector + 1, 1, sink, f, from_stage(operand, team.here)...);
}
// Tiles of a map: `wide` of them for the columns, `high` for `side` rows that are `step` apart.
struct stage_tiles {
  long columns, side;
  divisor wide, step, high;
};
// WHOLE: nothing of the tile lies outside, so the vectors of a thread have their addresses in common.
template <bool WHOLE, int VECTOR, class Body, class Row>
FN void stage_tile(const Body& body, unsigned* tile, long column, long columns, long down, long side, const Row& row) {
  constexpr int WIDE = 32 / VECTOR;
  const int lane_of = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int along = warp % 2 * 32 + lane_of % WIDE * VECTOR, across = warp / 2 * VECTOR + lane_of / WIDE;
  const long end = WHOLE ? column + STAGE : columns;
  if (WHOLE || down + along < side)
    body(row(down + along), stage_range{column + across, end}, stage_bringer<VECTOR, WHOLE>({tile, along, across}));
  __syncthreads();
#pragma unroll
  for (int k = 0; k < STAGE; k += stage_apart<VECTOR>)
    if (WHOLE || (column + along < columns && down + across + k < side))
      body(row(down + across + k), range{(column + along) / VECTOR, WHOLE ? 0 : columns},
           stage_lane<VECTOR>(tile + (across + k) * STAGE_PITCH + along));
}
template <int VECTOR, int SLOTS, class Body>
__global__ void __launch_bounds__(stage_threads<VECTOR>) map_staged_kernel(const Body body, const stage_tiles tiles) {
  __shared__ unsigned tile[SLOTS * STAGE * STAGE_PITCH];
  const unsigned above = tiles.wide.under(blockIdx.x), high = tiles.step.under(above), outer = tiles.high.under(high);
  const long column = (blockIdx.x - above * tiles.wide.by) * long(STAGE);
  const long down = (high - outer * tiles.high.by) * long(STAGE);
  const auto row = [&](long n) { return (outer * tiles.side + n) * tiles.step.by + (above - high * tiles.step.by); };
  if (column + STAGE <= tiles.columns && down + STAGE <= tiles.side)
    stage_tile<true, VECTOR>(body, tile, column, tiles.columns, down, tiles.side, row);
  else
    stage_tile<false, VECTOR>(body, tile, column, tiles.columns, down, tiles.side, row);
}
#ifdef __CUDACC_RTC__
template <int VECTOR, int SLOTS, class Body> FN int run_map_staged(const Body&, long, long, long, long, int, void*) {
  return &map_staged_kernel<VECTOR, SLOTS, Body> == nullptr;
}
#else
template <int VECTOR, int SLOTS, class Body>
int run_map_staged(const Body& body, long rows, long columns, long side, long step, int device, void* stream) {
  if (rows <= 0 || columns <= 0) return 0;
  const device_scope scope(device);
  const long wide = (columns + STAGE - 1) / STAGE, high = (side + STAGE - 1) / STAGE;
  const long blocks = wide * high * (rows / side);
  if (blocks > 1L << 30) return cudaErrorInvalidValue;  // 2^38 elements, unless sides are far shorter than a tile
  const stage_tiles tiles{columns, side, divisor(unsigned(wide)), divisor(unsigned(step)), divisor(unsigned(high))};
  map_staged_kernel<VECTOR, SLOTS>
      <<<unsigned(blocks), stage_threads<VECTOR>, 0, static_cast<cudaStream_t>(stream)>>>(body, tiles);
  return cudaGetLastError();
}
#endif

//@
}  // namespace fusewright
