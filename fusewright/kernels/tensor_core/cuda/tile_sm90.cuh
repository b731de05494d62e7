// A tile of a product on Hopper (sm_90a), whatever its operands are: where it lies, and how the tensor core's fragments of
// it reach the generated body, one smem tile at a time.
//
// The surprising fact: a smem tile that is written and read through shared memory beats storing fragments straight away by a
// fifth where there are few k, since a fragment's store touches eight lines.
//
// Text outside `//@ name` sections only serves a compilation of this file alone.
#pragma once
#include "kernels/tensor_core/cuda/register_epilogue_sm90.cuh"
namespace fusewright {

//@ tile_order
constexpr int TILE_ROWS = 128, GEMM_THREADS = 384, SMEM_TILE = 1024;
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
// The tiles that are multiplied for a body: all of them, unless it says that a mask throws some away (triangular_tiles_sm90.cuh).
template <class Body, class = void> struct tiles_of : tiles {
  static constexpr bool blanks = false;
#ifndef __CUDACC_RTC__
  static tiles_of of(tiles whole, int, int, bool) { return {whole}; }
  int used(int pieces, int blocks) const { return pieces < blocks ? pieces : blocks; }
#endif
};

//@ fill_smem_tile: needs finish, tile_order, lane_columns
// A warp's fragments of the result -> its smem tile. Lane g * 4 + t holds rows g and g + 8, columns 8 j + 2 t and the next.
// If one operand was split, each row of the packed one still wants its inverse scale; if any was, what is not finite may be
// wrong: true then. Marked operands say themselves whether that can be. Scaled ones want a power of two for each row.
// `first_warp`: of the consumers. `each`: how many neighbouring columns a lane has. `most`: columns that are worked on at once.
template <int ROWS = TILE_ROWS> struct split_operands {
  static constexpr bool split = true, packed = true, marked = false, scaled = false;
  static constexpr int first_warp = 4, each = 4;
  const gemm_operand &left, &right;
};
struct both_split_operands {
  static constexpr bool split = true, packed = false, marked = false, scaled = false;
  static constexpr int first_warp = 4, each = 2;
  const gemm_operand &left, &right;
};
template <int EACH, int MOST = 256> struct whole_operands {
  static constexpr bool split = false, packed = false, marked = false, scaled = false;
  static constexpr int first_warp = 4, each = EACH, most = MOST;
};
template <class Operands> constexpr int tile_rows = TILE_ROWS;
template <int ROWS> constexpr int tile_rows<split_operands<ROWS>> = ROWS;
template <class Operands, int COLUMNS, int WIDTH>
FN bool fill_rows(float* smem_tile, const float (&promoted)[quarters<WIDTH>][32], int first_column, int first_row) {
  constexpr int ROWS = SMEM_TILE / COLUMNS;
  const int lane = lane_here(), g = lane / 4, t = lane % 4;
  if constexpr (Operands::packed) {
#pragma unroll
    for (int i = 0; i < COLUMNS / 32; ++i) {
      const int c = i / 2 * 64, half = i % 2, row = lane_here() / 4 + half * 8 - (ROWS == 16 ? 0 : first_row);
      if (ROWS < 16 && (row < 0 || row >= ROWS)) continue;
      float lane_columns[4][4];
      take_lane_columns<Operands>(lane_columns, promoted[(first_column + c) / 64], half, nullptr);
      put_lane_columns<COLUMNS>(smem_tile, lane_columns, row, c);
    }
    return false;
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
      const float* const from = &promoted[(first_column + c) / 64][i * 2];
      const float2 pair = scaled_pair<Operands>(from, float2(), poison);
      const int place = ROWS == 16 ? (base ^ i / 2 * 8) + i % 2 * 8 * COLUMNS : smem_tile_place<false, COLUMNS>(row, column);
      *reinterpret_cast<float2*>(smem_tile + place) = pair;
    }
  }
  return poison != poison;
}
// The same, transposed: the fragment's columns are the smem tile's rows, and four warps share a smem tile of 64 x 64.
template <class Operands>
FN bool fill_columns(float* smem_tile, const float (&promoted)[32], int warp, const float* scales) {
  const int lane = lane_here(), g = lane / 4, t = lane % 4;
  float poison = 0;
  float2 scale[8];
#pragma unroll
  for (int i = 0; i < 8 && Operands::packed; ++i) scale[i] = *reinterpret_cast<const float2*>(scales + i * 8 + t * 2);
  // Two neighbouring rows are twisted alike; 8 more rows, or 8 more columns, differ in one bit that nothing else touches.
  const int base = smem_tile_place<true, 64>(t * 2, warp * 16 + g);
#pragma unroll
  for (int i = 0; i < 16; ++i) {
    const float2 pair = scaled_pair<Operands>(promoted + i * 2, scale[i / 2], poison);
    float* const to = smem_tile + ((base ^ (i / 2 % 2 * 32 | i % 2 * 8)) + i / 2 * 8 * 64);
    to[0] = pair.x, to[64] = pair.y;
  }
  return poison != poison;
}

//@ register_epilogue: needs finish, finish_rows, tile_order
// One row of a whole tile, pairs of columns from the registers that they are in, times `scale`. ROTATED: a lane that is `rotated`
// has the next 8 columns' pair in the place of each, and the tile's first as its last.
template <int WIDTH, bool ROTATED> struct tile_row {
  using value = float;
  static constexpr int bytes = 0;
  static constexpr bool kept = true;
  static constexpr int PAIRS = PIECE<WIDTH> / 8;
  const float (&promoted)[quarters<WIDTH>][32];
  int half;
  float scale;
  bool rotated;
  const int& piece;
  // Registers have no index at run time.
  template <int I = 0> FN void choose(float (&pairs)[PAIRS][2], float by) const {
    if constexpr (I + 1 < WIDTH / PIECE<WIDTH> * 2)
      if (piece * 2 + half != I) return choose<I + 1>(pairs, by);
    constexpr int FIRST = I / 2 * PAIRS, BEHIND = (FIRST + PAIRS) % (WIDTH / 8);
    const auto held = [&](int pair, int i) { return times_here(promoted[pair / 8][pair % 8 * 4 + I % 2 * 2 + i], by); };
#pragma unroll
    for (int i = 0; i < PAIRS * 2; ++i) pairs[i / 2][i % 2] = held(FIRST + i / 2, i % 2);
    if constexpr (ROTATED) {
      const float next[2] = {held(BEHIND, 0), held(BEHIND, 1)};
#pragma unroll
      for (int i = 0; i < PAIRS * 2; ++i)
        pairs[i / 2][i % 2] = !rotated ? pairs[i / 2][i % 2] : i < PAIRS * 2 - 2 ? pairs[i / 2 + 1][i % 2] : next[i % 2];
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
template <int WIDTH, bool ROTATED, class Body>
FN void finish_tile(const Body& body, const float (&promoted)[quarters<WIDTH>][32], smem_tile_corner at, int columns,
    const float* scales) {
  const int lane = lane_here();
  int piece = 0;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const long row = at.row + lane / 4 + half * 8;
    const int column = at.column + lane % 4 * 2, before = ROTATED ? (unsigned(row) * columns + at.column) % 8 : 0;
    const bool rotated = before > 0 && before + lane % 4 * 2 < 8;
    const tile_range<WIDTH> mine{column + (rotated ? 8 : 0), rotated ? WIDTH : 0, piece};
    body(row, mine, columns_lane<2, PIECE<WIDTH> / 8>(), tile_row<WIDTH, ROTATED>{promoted, half, scales[half], rotated, piece});
  }
}
// Whether a body takes columns from registers; its own `finish` may want smem tiles.
template <class Body> constexpr bool has_register_epilogue = true;

//@ tile_out: needs tile_order, barriers, fill_smem_tile, prefetch, register_epilogue
// A smem tile holds whole segments. Those that are no power of two are all in one tile, and its columns in one smem tile.
template <int SEGMENT, int WIDTH>
constexpr int smem_tile_columns = (SEGMENT & (SEGMENT - 1)) == 0 ? (SEGMENT > 64 ? SEGMENT : 64) : WIDTH > 128 ? 256 : WIDTH;
// Where a smem tile of a tile lies; and whether more of it lies elsewhere, where `at` goes on (multi_image_tiles_sm90.cuh).
template <class Operands>
FN smem_tile_corner corner_of(const Operands&, const gemm_shape& shape, tiles::place tile, int top, int column) {
  return {long(tile.batch) * shape.rows + top, tile.batch, top, column};
}
template <int COLUMNS, class Operands> FN bool goes_on(const Operands&, const gemm_shape&, smem_tile_corner&) { return false; }
// Everything that a consumer group needs to know when its tile is finished.
template <class Body, class Operands> struct consumer {
  const Body& body;
  const Operands operands;
  const gemm_shape& shape;
  float* smem_tiles;
  const int slab = warp_here() - Operands::first_warp;  // which 16 rows, or columns, of the tile this warp hands out
  static constexpr bool split = Operands::split;

  // Long before a tile is finished: whatever else the body will read for it shall be in L2 by then. A lane asks for one
  // line of 128 bytes of one row at a time.
  template <int WIDTH, bool SWAPPED, int SEGMENT> FN void prefetch_quarter(tiles::place tile, int q) const {
    const int lane = lane_here(), along = tile.row * TILE_ROWS + slab * 16, across = tile.column * WIDTH + q;
    const int row = (SWAPPED ? across + slab % 4 * 16 : along) + lane / 2;
    const int column = (SWAPPED ? along - slab % 4 * 16 : across) + lane % 2 * PREFETCH_COLUMNS;
    const smem_tile_corner at = corner_of(operands, shape, tile, row, column);
    if (row < shape.rows && at.column + PREFETCH_COLUMNS <= shape.columns) prefetch<SEGMENT>(body, at.row, at.column,
        shape.columns);
  }
  // Where columns end that the tile's smem tile `number` has: only the last one may have 32.
  template <int WIDTH> FN int end_of(int number, smem_tile_corner at) const {
    return WIDTH % 64 && number == WIDTH / 64 ? min(shape.columns, max(at.column + 32, 0)) : shape.columns;
  }
  // The finished tile of 64 rows (of the split operand) x WIDTH goes to the body, 64 columns of a warp's rows at a time:
  // through no smem tile, but at edges and where something is not finite.
  template <int WIDTH, int SEGMENT, int VECTOR>
  FN void registers_out(const float (&promoted)[quarters<WIDTH>][32], tiles::place tile, const float* scales, bool wrong) const {
    constexpr int EACH = Operands::each;
    const int warp = warp_here() - Operands::first_warp, lane = lane_here(), top = tile.row * tile_rows<Operands> + slab * 16;
    const smem_tile_corner corner = corner_of(operands, shape, tile, top, tile.column * WIDTH);
    if constexpr (Operands::marked) wrong = operands.needs_fixup;
    int done = 0;  // columns
    if constexpr (SEGMENT == 0 && VECTOR % EACH == 0 && EACH != 4 && has_register_epilogue<Body>)
      if (__all_sync(~0u, !wrong && top + 16 <= shape.rows && (EACH == 8 || corner.column + WIDTH <= shape.columns))) {
        if constexpr (EACH == 8) {
          done = finish_whole<EACH, WIDTH, Operands::most>(body, promoted, corner, shape.columns);
          if (done == WIDTH) return;
        } else if (shape.columns % 8 == 0)
          return finish_tile<WIDTH, false>(body, promoted, corner, shape.columns, scales);
        else
          return finish_tile<WIDTH, true>(body, promoted, corner, shape.columns, scales);
      }
#pragma unroll(SEGMENT > 0 && EACH > 2 ? quarters<WIDTH> : 1)
    for (int number = done / 64; number < quarters<WIDTH>; ++number) {
      const int behind = shape.rows - top, rows = behind < 0 ? 0 : behind < 16 ? behind : 16;
      smem_tile_corner at = corner_of(operands, shape, tile, top, tile.column * WIDTH + number * 64);
      if (at.column >= shape.columns || rows == 0) continue;
      float lane_columns[2][16 / EACH][EACH];
      choose_lane_columns<Operands>(number, lane_columns, promoted, scales);
      if constexpr ((SEGMENT > 0 || EACH < 8) && VECTOR % EACH == 0 && has_register_epilogue<Body>)
        if (__all_sync(~0u, !wrong && (rows & 16) && at.column + 64 <= end_of<WIDTH>(number, at))) {
          register_epilogue<SEGMENT>(body, lane_columns, at, shape.columns, lane);
          continue;
        }
      float* const smem_tile = smem_tiles + warp * SMEM_TILE;
      __syncwarp();
      put_lane_columns<64>(smem_tile, lane_columns[0], lane / 4, 0);
      put_lane_columns<64>(smem_tile, lane_columns[1], lane / 4 + 8, 0);
      __syncwarp();
      do {
        if constexpr (split || Operands::marked)
          if (wrong) fixup<false, 64>(smem_tile, 0, rows, at, operands.left, operands.right, shape);
        if constexpr (SEGMENT > 0)
          finish_segments<false, 64, SEGMENT, VECTOR, true>(body, smem_tile, 0, rows, at, shape.columns);
        else
          finish<false, 64, SEGMENT, VECTOR>(body, smem_tile, 0, rows, at, end_of<WIDTH>(number, at));
      } while (goes_on<64>(operands, shape, at));
    }
  }
  // The same one smem tile at a time.
  template <int WIDTH, int SEGMENT, int VECTOR>
  FN void rows_out(float (&promoted)[quarters<WIDTH>][32], tiles::place tile, const float* scales) const {
    bool wrong = false;
    if constexpr (Operands::packed) wrong = undo_scales<Operands>(promoted, scales);
    constexpr int EACH = Operands::each;  // vectors of which are what a lane has, and whole segments what four have
    if constexpr (Operands::scaled || (EACH > 2 && EACH == VECTOR && SEGMENT <= 64 && SEGMENT % (4 * EACH) == 0))
      return registers_out<WIDTH, SEGMENT, VECTOR>(promoted, tile, scales, wrong);
    constexpr int COLUMNS = smem_tile_columns<SEGMENT, WIDTH>, ROWS = SMEM_TILE / COLUMNS, ALL = (WIDTH + COLUMNS - 1) / COLUMNS;
    const int warp = warp_here() - Operands::first_warp;
    float* const smem_tile = smem_tiles + warp * SMEM_TILE;
    const int top = tile.row * tile_rows<Operands> + slab * 16;
#pragma unroll 1
    for (int number = 0; number < ALL * (16 / ROWS); ++number) {
      const int r = number % (16 / ROWS) * ROWS;
      const int behind = shape.rows - (top + r), rows = behind < 0 ? 0 : behind < ROWS ? behind : ROWS;
      smem_tile_corner at = corner_of(operands, shape, tile, top + r, tile.column * WIDTH + number / (16 / ROWS) * COLUMNS);
      if (at.column >= shape.columns || rows == 0) continue;
      __syncwarp();
#pragma unroll
      for (int c = 0; c < ALL; ++c)  // registers have no index at run time
        if (number / (16 / ROWS) == c)
          wrong |= fill_rows<Operands, COLUMNS, WIDTH>(smem_tile, promoted, c * COLUMNS, r);
      __syncwarp();
      if constexpr (split) wrong = __any_sync(~0u, wrong);
      if constexpr (Operands::marked) wrong = operands.needs_fixup;
      do {
        if constexpr (split || Operands::marked)
          if (wrong) fixup<false, COLUMNS>(smem_tile, 0, rows, at, operands.left, operands.right, shape);
        finish<false, COLUMNS, SEGMENT, VECTOR>(body, smem_tile, 0, rows, at, end_of<WIDTH>(number, at));
      } while (goes_on<COLUMNS>(operands, shape, at));
    }
  }
  // The same where the split operand is `right`: a tile is 64 columns x WIDTH rows of the result.
  template <int WIDTH, int SEGMENT, int VECTOR>
  FN void columns_out(const float (&promoted)[quarters<WIDTH>][32], tiles::place tile, const float* scales) const {
    const int group = (warp_here() - Operands::first_warp) / 4, warp = warp_here() % 4;
    float* const smem_tile = smem_tiles + group * 4 * SMEM_TILE;
#pragma unroll 1
    for (int number = 0; number < quarters<WIDTH>; ++number) {
      const int top = tile.column * WIDTH + number * 64, left = min(shape.rows, (tile.column + 1) * WIDTH) - top;
      if (left <= 0) break;
      bool wrong = false;
      group_sync(1 + group, 128);
#pragma unroll
      for (int q = 0; q < quarters<WIDTH>; ++q)  // registers have no index at run time
        if (number == q) wrong = fill_columns<Operands>(smem_tile, promoted[q], warp, scales + q * 64);
      wrong = __any_sync(~0u, group_any(1 + group, 128, wrong));
      // Half of the rows are shared out, too, but where a channel's phases are more than 8.
      const int share = left > 32 || !has_register_epilogue<Body> ? 16 : 8, begin = warp * share, behind = left - begin;
      const int end = begin + (behind < 0 ? 0 : behind < share ? behind : share);
      smem_tile_corner at = corner_of(operands, shape, tile, top, tile.row * tile_rows<Operands> + slab / 4 * 64);
      if (at.column >= shape.columns) continue;
      if constexpr (Operands::marked) wrong = operands.needs_fixup;
      do {
        if constexpr (split || Operands::marked)
          if (wrong) fixup<true, 64>(smem_tile, begin, end, at, operands.left, operands.right, shape);
        finish<true, 64, SEGMENT, VECTOR>(body, smem_tile, begin, end, at, shape.columns);
      } while (goes_on<64>(operands, shape, at));
    }
  }
};

//@
}  // namespace fusewright
