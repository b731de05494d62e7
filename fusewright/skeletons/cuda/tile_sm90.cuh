// A tile of a product on Hopper (sm_90a), whatever its factors are: where it lies, and how the tensor core's fragments of
// it reach the generated body, box by box.
//
// The surprising fact: a box that is written and read through shared memory beats storing fragments straight away by a
// fifth where there are few k, since a fragment's store touches eight lines.
//
// Text outside `//@ name` sections only serves a compilation of this file alone.
#pragma once
#include "hopper.cuh"
namespace fusewright {

//@ tile_order
constexpr int TILE_ROWS = 128, PRODUCT_THREADS = 384, BOX = 1024;
// How many times 64 columns a tile has, the last ones of which may be 32.
template <int WIDTH> constexpr int quarters = (WIDTH + 63) / 64;
// The order of tiles: eight rows of tiles at a time, so that the blocks at work share what they read.
struct tiles {
  int down, across, count;
  struct place {
    int batch, row, column;
  };
  FN place at(int number) const {
    const int all = down * across, within = number % all, group = within / (8 * across), first = group * 8;
    const int height = down - first < 8 ? down - first : 8, rest = within - first * across;
    return {number / all, first + rest % height, rest / height};
  }
};

//@ tiles_of: needs tile_order
// The tiles that are multiplied for a body: all of them, unless it says that a mask throws some away (band_sm90.cuh).
template <class Body, class = void> struct tiles_of : tiles {
  static constexpr bool blanks = false;
#ifndef __CUDACC_RTC__
  static tiles_of of(tiles whole, int, int, bool) { return {whole}; }
  int used(int pieces, int blocks) const { return pieces < blocks ? pieces : blocks; }
#endif
};

//@ fill_box: needs finish, tile_order
// A warp's fragments of the result -> its box. Lane g * 4 + t holds rows g and g + 8, columns 8 j + 2 t and the next.
// If one factor was split, each row of the packed one still wants its inverse scale; if any was, what is not finite may be
// wrong: true then. Marked factors say themselves whether that can be. Scaled ones want a power of two for each row.
// `first_warp`: of the consumers.
struct split_factors {
  static constexpr bool split = true, packed = true, marked = false, scaled = false;
  static constexpr int first_warp = 4;
  const factor &left, &right;
};
struct both_split_factors {
  static constexpr bool split = true, packed = false, marked = false, scaled = false;
  static constexpr int first_warp = 4;
  const factor &left, &right;
};
struct whole_factors {
  static constexpr bool split = false, packed = false, marked = false, scaled = false;
  static constexpr int first_warp = 4;
};
template <class Factors> FN float2 scaled_pair(const float* from, float2 scale, float& poison) {
  float2 pair = make_float2(from[0], from[1]);
  if constexpr (!Factors::split) return pair;
  if constexpr (Factors::packed) pair = make_float2(pair.x * fabsf(scale.x), pair.y * fabsf(scale.y));
  poison = fmaf(pair.x, 0.f, fmaf(pair.y, 0.f, poison));
  return pair;
}
// A multiplication that stays where it is: before a loop its results would need registers, behind branches its factors.
FN float times_here(float x, float y) {
  asm volatile("mul.f32 %0, %0, %1;" : "+f"(x) : "f"(y));
  return x;
}
// A lane has pairs of neighbouring columns, and fours where packed rows stand in fours (`quads` of pack.cuh): runs of EACH.
// 64 columns of the master -> the lane's runs of row g, or g + 8; and those -> row `row` of its box. `scales`: of the columns,
// or, scaled, of the two rows.
template <class Factors, int EACH>
FN bool take_runs(float (&runs)[16 / EACH][EACH], const float (&master)[32], int half, const float* scales) {
  const int t = lane_here() % 4;
  float poison = 0;
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const float* const from = &master[i * 4 + half * 2];
    float2 pair;
    if constexpr (Factors::scaled)
      pair = make_float2(times_here(from[0], scales[half]), times_here(from[1], scales[half]));
    else
      pair = scaled_pair<Factors>(from, *reinterpret_cast<const float2*>(scales + i * 8 + t * 2), poison);
    runs[i * 2 / EACH][i * 2 % EACH] = pair.x, runs[i * 2 / EACH][i * 2 % EACH + 1] = pair.y;
  }
  return poison != poison;
}
// The same of both rows and one of the master's quarters. Registers have no index at run time, and one choice has to be the
// last, or what is not chosen is kept alive from before the loop over k.
template <class Factors, int I = 0, int QUARTERS, int EACH>
FN bool choose_runs(int number, float (&runs)[2][16 / EACH][EACH], const float (&master)[QUARTERS][32], const float* scales) {
  if constexpr (I + 1 < QUARTERS)
    if (number != I) return choose_runs<Factors, I + 1>(number, runs, master, scales);
  const float* const mine = scales + (Factors::packed ? I * 64 : 0);
  const bool wrong = take_runs<Factors>(runs[0], master[I], 0, mine);
  return take_runs<Factors>(runs[1], master[I], 1, mine) || wrong;
}
template <int COLUMNS, int EACH> FN void put_runs(float* box, const float (&runs)[16 / EACH][EACH], int row, int first_column) {
#pragma unroll
  for (int i = 0; i < 16 / EACH; ++i) {
    float* const to = box + box_place<false, COLUMNS>(row, first_column + (i * 4 + lane_here() % 4) * EACH);
    if constexpr (EACH == 4)
      *reinterpret_cast<float4*>(to) = make_float4(runs[i][0], runs[i][1], runs[i][2], runs[i][3]);
    else
      *reinterpret_cast<float2*>(to) = make_float2(runs[i][0], runs[i][1]);
  }
}
template <class Factors, int COLUMNS, int WIDTH>
FN bool fill_rows(float* box, const float (&master)[quarters<WIDTH>][32], int first_column, int first_row,
                  const float* scales) {
  constexpr int ROWS = BOX / COLUMNS;
  const int lane = lane_here(), g = lane / 4, t = lane % 4;
  if constexpr (Factors::packed) {
    bool wrong = false;
#pragma unroll
    for (int i = 0; i < COLUMNS / 32; ++i) {
      const int c = i / 2 * 64, half = i % 2, row = lane_here() / 4 + half * 8 - (ROWS == 16 ? 0 : first_row);
      if (ROWS < 16 && (row < 0 || row >= ROWS)) continue;
      float runs[4][4];
      wrong |= take_runs<Factors>(runs, master[(first_column + c) / 64], half, scales + c);
      put_runs<COLUMNS>(box, runs, row, c);
    }
    return wrong;
  }
  float poison = 0;  // becomes NaN with the first infinity or NaN
  // Rows g and g + 8 are twisted alike, and 8 more columns differ in bits that nothing else touches.
  const int base = (ROWS == 16 ? g : 0) * COLUMNS + (twist_of<false>(g) * 4 | t * 2);
#pragma unroll
  for (int c = 0; c < COLUMNS; c += 64) {
    if (first_column + c >= WIDTH) continue;
#pragma unroll
    for (int i = 0; i < 16; ++i) {
      const int row = g + i % 2 * 8 - (ROWS == 16 ? 0 : first_row), column = c + i / 2 * 8 + t * 2;
      if (ROWS < 16 && (row < 0 || row >= ROWS)) continue;
      const float* const from = &master[(first_column + c) / 64][i * 2];
      const float2 pair = scaled_pair<Factors>(from, float2(), poison);
      const int place = ROWS == 16 ? (base ^ i / 2 * 8) + i % 2 * 8 * COLUMNS : box_place<false, COLUMNS>(row, column);
      *reinterpret_cast<float2*>(box + place) = pair;
    }
  }
  return poison != poison;
}
// The same, turned: the fragment's columns are the box's rows, and four warps share a box of 64 x 64.
template <class Factors>
FN bool fill_columns(float* box, const float (&master)[32], int warp, const float* scales) {
  const int lane = lane_here(), g = lane / 4, t = lane % 4;
  float poison = 0;
  float2 scale[8];
#pragma unroll
  for (int i = 0; i < 8 && Factors::packed; ++i) scale[i] = *reinterpret_cast<const float2*>(scales + i * 8 + t * 2);
  // Two neighbouring rows are twisted alike; 8 more rows, or 8 more columns, differ in one bit that nothing else touches.
  const int base = box_place<true, 64>(t * 2, warp * 16 + g);
#pragma unroll
  for (int i = 0; i < 16; ++i) {
    const float2 pair = scaled_pair<Factors>(master + i * 2, scale[i / 2], poison);
    float* const to = box + ((base ^ (i / 2 % 2 * 32 | i % 2 * 8)) + i / 2 * 8 * 64);
    to[0] = pair.x, to[64] = pair.y;
  }
  return poison != poison;
}

//@ finish_runs: needs finish, tile_order
// Columns, or segments of them, that are finite and whole go to the body from the registers that they are in: four lanes have a row.
template <int EACH> struct runs_row {
  using value = float;
  static constexpr int bytes = 0;
  static constexpr bool kept = true;
  const float (*runs)[EACH];
  template <int W, int U> struct packet {
    static_assert(W == EACH, "neighbours in a lane");
    const float (*runs)[EACH];
    FN explicit packet(const runs_row& o) : runs(o.runs) {}
    template <class Place> FN void fetch(int, const Place&) {}
    template <class Place> FN float element(int, int j, const Place& at) { return runs[at.slot][j]; }
    template <class Place> FN void flush(int, const Place&) {}
  };
};
template <int SEGMENT, int EACH, class Body>
FN void finish_runs(const Body& body, const float (&runs)[2][16 / EACH][EACH], box_corner at, int columns, int lane) {
  if constexpr (SEGMENT == 0) {
    const columns_range<true> mine{at.column + lane % 4 * EACH, 4 * EACH, columns};
#pragma unroll
    for (int half = 0; half < 2; ++half)
      body(at.row + lane / 4 + half * 8, mine, columns_lane<EACH, 16 / EACH>(), runs_row<EACH>{runs[half]});
  } else {
    const int segments = columns / SEGMENT;
    __builtin_assume(at.row >= 0 && segments > 0);
    lanes_team<4, EACH> team;  // one, or no two addresses would have a common part
    const long first = (at.row + lane / 4) * segments + at.column / SEGMENT;
#pragma unroll
    for (int half = 0; half < 2; ++half)
#pragma unroll
      for (int s = 0; s < 64 / SEGMENT; ++s)
        body(first + half * 8 * segments + s, team, runs_row<EACH>{&runs[half][s * (SEGMENT / 4 / EACH)]});
  }
}
// One row of a whole tile, pairs of columns from the registers that they are in, times `scale`. TURNED: a lane that is `ahead`
// has the next 8 columns' pair in the place of each, and the tile's first as its last.
template <int WIDTH, bool TURNED> struct tile_row {
  using value = float;
  static constexpr int bytes = 0;
  static constexpr bool kept = true;
  static constexpr int PAIRS = PIECE<WIDTH> / 8;
  const float (&master)[quarters<WIDTH>][32];
  int half;
  float scale;
  bool ahead;
  const int& piece;
  // Registers have no index at run time.
  template <int I = 0> FN void choose(float (&pairs)[PAIRS][2], float by) const {
    if constexpr (I + 1 < WIDTH / PIECE<WIDTH> * 2)
      if (piece * 2 + half != I) return choose<I + 1>(pairs, by);
    constexpr int FIRST = I / 2 * PAIRS, BEHIND = (FIRST + PAIRS) % (WIDTH / 8);
    const auto held = [&](int pair, int i) { return times_here(master[pair / 8][pair % 8 * 4 + I % 2 * 2 + i], by); };
#pragma unroll
    for (int i = 0; i < PAIRS * 2; ++i) pairs[i / 2][i % 2] = held(FIRST + i / 2, i % 2);
    if constexpr (TURNED) {
      const float next[2] = {held(BEHIND, 0), held(BEHIND, 1)};
#pragma unroll
      for (int i = 0; i < PAIRS * 2; ++i)
        pairs[i / 2][i % 2] = !ahead ? pairs[i / 2][i % 2] : i < PAIRS * 2 - 2 ? pairs[i / 2 + 1][i % 2] : next[i % 2];
    }
  }
  template <int W, int U> struct packet {
    static_assert(W == 2 && U == PAIRS, "a piece");
    float pairs[PAIRS][2];
    // The shuffle changes nothing, but products of what it gives are not worked out before the loop.
    FN explicit packet(const tile_row& o) { o.choose(pairs, __shfl_xor_sync(~0u, o.scale, 0)); }
    template <class Place> FN void fetch(int, const Place&) {}
    template <class Place> FN float element(int u, int j, const Place&) { return pairs[u][j]; }
    template <class Place> FN void flush(int, const Place&) {}
  };
};
// A tile that is finite and whole: the body reads what a row needs once for all its columns. Where rows do not begin with a
// sector of 32 bytes, lanes are turned so that four of them still store a whole one: halves take up to twice as long.
template <int WIDTH, bool TURNED, class Body>
FN void finish_tile(const Body& body, const float (&master)[quarters<WIDTH>][32], box_corner at, int columns, const float* scales) {
  const int lane = lane_here();
  int piece = 0;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const long row = at.row + lane / 4 + half * 8;
    const int column = at.column + lane % 4 * 2, before = TURNED ? (unsigned(row) * columns + at.column) % 8 : 0;
    const bool ahead = before > 0 && before + lane % 4 * 2 < 8;
    const tile_range<WIDTH> mine{column + (ahead ? 8 : 0), ahead ? WIDTH : 0, piece};
    body(row, mine, columns_lane<2, PIECE<WIDTH> / 8>(), tile_row<WIDTH, TURNED>{master, half, scales[half], ahead, piece});
  }
}
// Whether a body takes runs; its own `finish` may want boxes.
template <class Body> constexpr bool takes_runs = true;

//@ tile_out: needs tile_order, barriers, fill_box, ahead, finish_runs
// A box holds whole segments. Those that are no power of two are all in one tile, and its columns in one box.
template <int SEGMENT, int WIDTH>
constexpr int box_columns = (SEGMENT & (SEGMENT - 1)) == 0 ? (SEGMENT > 64 ? SEGMENT : 64) : WIDTH > 128 ? 256 : WIDTH;
// Where a box of a tile lies; and whether more of it lies elsewhere, where `at` goes on (convolution_joined_sm90.cuh).
template <class Factors>
FN box_corner corner_of(const Factors&, const product_shape& shape, tiles::place tile, int top, int column) {
  return {long(tile.batch) * shape.rows + top, tile.batch, top, column};
}
template <int COLUMNS, class Factors> FN bool goes_on(const Factors&, const product_shape&, box_corner&) { return false; }
// Everything that a consumer group needs to know when its tile is finished.
template <class Body, class Factors> struct consumer {
  const Body& body;
  const Factors factors;
  const product_shape& shape;
  float* boxes;
  static constexpr bool split = Factors::split;

  // Long before a tile is finished: whatever else the body will read for it shall be in L2 by then. A lane asks for one
  // line of 128 bytes of one row at a time.
  template <int WIDTH, bool SWAPPED, int SEGMENT> FN void ask_ahead(tiles::place tile) const {
#pragma unroll 1
    for (int q = 0; q < WIDTH; q += 64) ask_quarter<WIDTH, SWAPPED, SEGMENT>(tile, q);
  }
  template <int WIDTH, bool SWAPPED, int SEGMENT> FN void ask_quarter(tiles::place tile, int q) const {
    const int lane = lane_here(), warp = warp_here() - Factors::first_warp;
    const int along = tile.row * TILE_ROWS + warp * 16, across = tile.column * WIDTH + q;
    const int row = (SWAPPED ? across + warp % 4 * 16 : along) + lane / 2;
    const int column = (SWAPPED ? along - warp % 4 * 16 : across) + lane % 2 * AHEAD_COLUMNS;
    const box_corner at = corner_of(factors, shape, tile, row, column);
    if (row < shape.rows && at.column + AHEAD_COLUMNS <= shape.columns) ahead<SEGMENT>(body, at.row, at.column, shape.columns);
  }
  // Where columns end that the tile's box `number` has: only the last one may have 32.
  template <int WIDTH> FN int end_of(int number, box_corner at) const {
    return WIDTH % 64 && number == WIDTH / 64 ? min(shape.columns, max(at.column + 32, 0)) : shape.columns;
  }
  // The finished tile of 64 rows (of the split factor) x WIDTH goes to the body, 64 columns of a warp's rows at a time:
  // through no box, but at edges and where something is not finite.
  template <int WIDTH, int SEGMENT, int VECTOR>
  FN void runs_out(const float (&master)[quarters<WIDTH>][32], tiles::place tile, const float* scales) const {
    constexpr int EACH = Factors::packed ? 4 : 2;
    const int warp = warp_here() - Factors::first_warp, lane = lane_here();
    if constexpr (Factors::scaled && SEGMENT == 0 && VECTOR % 2 == 0 && takes_runs<Body>) {
      const int top = tile.row * TILE_ROWS + warp * 16;
      const box_corner at = corner_of(factors, shape, tile, top, tile.column * WIDTH);
      if (__all_sync(~0u, !factors.suspect && top + 16 <= shape.rows && at.column + WIDTH <= shape.columns)) {
        if (shape.columns % 8 == 0) return finish_tile<WIDTH, false>(body, master, at, shape.columns, scales);
        return finish_tile<WIDTH, true>(body, master, at, shape.columns, scales);
      }
    }
#pragma unroll 1
    for (int number = 0; number < quarters<WIDTH>; ++number) {
      const int top = tile.row * TILE_ROWS + warp * 16;
      const int behind = shape.rows - top, rows = behind < 0 ? 0 : behind < 16 ? behind : 16;
      box_corner at = corner_of(factors, shape, tile, top, tile.column * WIDTH + number * 64);
      if (at.column >= shape.columns || rows == 0) continue;
      float runs[2][16 / EACH][EACH];
      bool wrong = __any_sync(~0u, choose_runs<Factors>(number, runs, master, scales));
      if constexpr (Factors::marked) wrong = factors.suspect;
      if constexpr (VECTOR % EACH == 0 && takes_runs<Body>)
        if (__all_sync(~0u, !wrong && (rows & 16) && at.column + 64 <= end_of<WIDTH>(number, at))) {
          finish_runs<SEGMENT>(body, runs, at, shape.columns, lane);
          continue;
        }
      float* const box = boxes + warp * BOX;
      __syncwarp();
      put_runs<64>(box, runs[0], lane_here() / 4, 0);
      put_runs<64>(box, runs[1], lane_here() / 4 + 8, 0);
      __syncwarp();
      do {
        if (wrong) repair<false, 64>(box, 0, rows, at, factors.left, factors.right, shape);
        if constexpr (SEGMENT > 0)
          finish_segments<false, 64, SEGMENT, VECTOR, true>(body, box, 0, rows, at, shape.columns);
        else
          finish<false, 64, SEGMENT, VECTOR>(body, box, 0, rows, at, end_of<WIDTH>(number, at));
      } while (goes_on<64>(factors, shape, at));
    }
  }
  // The same box by box.
  template <int WIDTH, int SEGMENT, int VECTOR>
  FN void rows_out(const float (&master)[quarters<WIDTH>][32], tiles::place tile, const float* scales) const {
    if constexpr (Factors::scaled || (Factors::packed && SEGMENT <= 64 && SEGMENT % 16 == 0 && VECTOR == 4))
      return runs_out<WIDTH, SEGMENT, VECTOR>(master, tile, scales);
    constexpr int COLUMNS = box_columns<SEGMENT, WIDTH>, ROWS = BOX / COLUMNS, ALL = (WIDTH + COLUMNS - 1) / COLUMNS;
    const int warp = warp_here() - Factors::first_warp;
    float* const box = boxes + warp * BOX;
    const int top = tile.row * TILE_ROWS + warp * 16;
#pragma unroll 1
    for (int number = 0; number < ALL * (16 / ROWS); ++number) {
      const int r = number % (16 / ROWS) * ROWS;
      const int behind = shape.rows - (top + r), rows = behind < 0 ? 0 : behind < ROWS ? behind : ROWS;
      box_corner at = corner_of(factors, shape, tile, top + r, tile.column * WIDTH + number / (16 / ROWS) * COLUMNS);
      if (at.column >= shape.columns || rows == 0) continue;
      bool wrong = false;
      __syncwarp();
#pragma unroll
      for (int c = 0; c < ALL; ++c)  // registers have no index at run time
        if (number / (16 / ROWS) == c)
          wrong = fill_rows<Factors, COLUMNS, WIDTH>(box, master, c * COLUMNS, r, scales + c * COLUMNS);
      __syncwarp();
      if constexpr (split) wrong = __any_sync(~0u, wrong);
      if constexpr (Factors::marked) wrong = factors.suspect;
      do {
        if constexpr (split || Factors::marked)
          if (wrong) repair<false, COLUMNS>(box, 0, rows, at, factors.left, factors.right, shape);
        finish<false, COLUMNS, SEGMENT, VECTOR>(body, box, 0, rows, at, end_of<WIDTH>(number, at));
      } while (goes_on<COLUMNS>(factors, shape, at));
    }
  }
  // The same where the split factor is `right`: a tile is 64 columns x WIDTH rows of the result.
  template <int WIDTH, int SEGMENT, int VECTOR>
  FN void columns_out(const float (&master)[quarters<WIDTH>][32], tiles::place tile, const float* scales) const {
    const int group = (warp_here() - Factors::first_warp) / 4, warp = warp_here() % 4;
    float* const box = boxes + group * 4 * BOX;
#pragma unroll 1
    for (int number = 0; number < quarters<WIDTH>; ++number) {
      const int top = tile.column * WIDTH + number * 64, left = min(shape.rows, (tile.column + 1) * WIDTH) - top;
      if (left <= 0) break;
      bool wrong = false;
      group_sync(1 + group, 128);
#pragma unroll
      for (int q = 0; q < quarters<WIDTH>; ++q)  // registers have no index at run time
        if (number == q) wrong = fill_columns<Factors>(box, master[q], warp, scales + q * 64);
      wrong = __any_sync(~0u, group_any(1 + group, 128, wrong));
      // Half of the rows are shared out, too, but where a channel's phases are more than 8.
      const int share = left > 32 || !takes_runs<Body> ? 16 : 8, begin = warp * share, behind = left - begin;
      const int end = begin + (behind < 0 ? 0 : behind < share ? behind : share);
      box_corner at = corner_of(factors, shape, tile, top, tile.row * TILE_ROWS + group * 64);
      if (at.column >= shape.columns) continue;
      if constexpr (Factors::marked) wrong = factors.suspect;
      do {
        if constexpr (split || Factors::marked)
          if (wrong) repair<true, 64>(box, begin, end, at, factors.left, factors.right, shape);
        finish<true, 64, SEGMENT, VECTOR>(body, box, begin, end, at, shape.columns);
      } while (goes_on<64>(factors, shape, at));
    }
  }
};

//@
}  // namespace fusewright
