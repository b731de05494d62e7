// What every matrix product has in common, whatever the GPU: splitting float32 for the tensor cores, packing one
// operand, and handing the result to the generated body.
//
// A product  result[l][m][n] = sum over k of left[l][m][k] * right[l][n][k]  runs on float16 tensor cores and is still
// float32: each operand is scaled by powers of two and split, x = hi + lo, both float16; lo*hi + hi*lo + hi*hi misses
// less than one rounding of float32. One operand is split by a pass of its own, `pack`, at every call; the other in
// registers on its way to the tensor cores.
//
// The surprising fact: tensor cores drop the bits below their accumulator instead of rounding, which ruins long sums. So a
// sum stays there for 64 k only, and is then added to float32 registers by ordinary instructions.
//
// Text outside `//@ name` sections only serves a compilation of this file alone.
#pragma once
#include "kernels/tensor_core/cuda/split_float32.cuh"
namespace fusewright {

//@ accumulator_row: needs vectors
// The product as an operand: one row of a smem tile (see `finish`). Column i of the body stands at i + shift, and its 16-byte
// chunk is moved by `twist`.
struct accumulator_row {
  using value = float;
  static constexpr int bytes = 0;
  static constexpr bool kept = false;
  const float* row;
  int shift, twist;
  template <int W, int U> struct packet {
    const float* row;
    int shift, twist;
    float held[U][W];
    FN explicit packet(const accumulator_row& o) : row(o.row), shift(o.shift), twist(o.twist) {}
    template <class Place> FN void fetch(int u, const Place& at) {
      const int column = int(at.start(0)) + shift;
#pragma unroll
      for (int j = 0; j < W; j += W % 4 ? 1 : 4) {
        const float* place = row + ((((column + j) >> 2) ^ twist) << 2 | ((column + j) & 3));
        if constexpr (W % 4 == 0)
          fetch_vector<false, 4>(place, &held[u][j]);
        else
          held[u][j] = *place;
      }
    }
    template <class Place> FN float element(int u, int j, const Place&) { return held[u][j]; }
    template <class Place> FN void flush(int, const Place&) {}
  };
};

//@ columns_lane: needs words, line
// One thread and its columns of a row of a smem tile: VECTORS vectors, `step` apart, as far as they lie before `end`.
struct column_place {
  int flat, first, further, slot;  // as in fixed_place
  FN int outer(int) const { return 0; }
  FN int inner(int j) const { return flat + j; }
  FN bool whole(long) const { return true; }
  FN int start(long) const { return flat; }
  template <class T> FN T* of(T* p, long) const { return apart(p + first) + further; }
};
template <bool WHOLE> struct columns_range {
  int first, step, end;
};
// The same of a whole tile, a piece at a time: 64 columns, or 32. The last vector of the last piece is `back` columns before
// its place.
template <int WIDTH> constexpr int PIECE = WIDTH % 64 ? 32 : 64;
template <int WIDTH> struct tile_range {
  int first, back;
  int& piece;  // that the walk is at
};
template <int VECTOR, int VECTORS> struct columns_lane : words<columns_lane<VECTOR, VECTORS>> {
  static constexpr int vector = VECTOR;
};
template <int VECTOR, int VECTORS, bool WHOLE, class Sink, class F, class... Ops>
FN void walk(columns_lane<VECTOR, VECTORS>&, columns_range<WHOLE> r, Sink& sink, const F& f, Ops... operand) {
  column_place at[VECTORS];
  bool live[VECTORS];
#pragma unroll
  for (int u = 0; u < VECTORS; ++u) {
    at[u] = {r.first + u * r.step, r.first, u * r.step, u};
    live[u] = WHOLE || unsigned(at[u].flat) < unsigned(r.end);  // nor before the first
  }
  visit<!WHOLE, VECTOR, VECTORS>(at, live, sink, f, typename Ops::template packet<VECTOR, VECTORS>(operand)...);
}
template <int VECTOR, int VECTORS, int WIDTH, class Sink, class F, class... Ops>
FN void walk(columns_lane<VECTOR, VECTORS>&, tile_range<WIDTH> r, Sink& sink, const F& f, Ops... operand) {
#pragma unroll 1
  for (r.piece = 0; r.piece < WIDTH / PIECE<WIDTH>; ++r.piece) {
    column_place at[VECTORS];
    bool live[VECTORS];
    const int first = r.first + r.piece * PIECE<WIDTH>, last = first - (r.piece + 1 < WIDTH / PIECE<WIDTH> ? 0 : r.back);
#pragma unroll
    for (int u = 0; u < VECTORS; ++u) {
      const int from = u + 1 < VECTORS ? first : last, further = u * (PIECE<WIDTH> / VECTORS);
      at[u] = {from + further, from, further, u};
    }
    visit<false, VECTOR, VECTORS>(at, live, sink, f, typename Ops::template packet<VECTOR, VECTORS>(operand)...);
  }
}

//@ prefetch: needs words, fixed, load, accumulator_row
// A body that runs without values: each of its loads from memory becomes a request to have that line in L2.
constexpr int PREFETCH_COLUMNS = 32;  // for which one lane asks
struct absent_range {};
struct absent_team : words<absent_team> {
  static constexpr int threads = 1, vector = 1;
  static constexpr bool spread = false;
  int column;
  FN explicit absent_team(int column) : column(column) {}
  FN int member() const { return 0; }
  FN int members() const { return 1; }
  FN bool leads() const { return false; }
  template <class Reducer, class T> FN T join(T mine) { return mine; }
};
// A plain prefetch brings one sector of 32 bytes; newer GPUs have one for any number of them.
template <class Operand> FN void prefetch_operand(const Operand&, int) {}
template <class T> FN void prefetch_operand(const load_operand<T, true>& operand, int column) {
  const T* const from = operand.p + column;
#if __CUDA_ARCH__ >= 900
  if ((reinterpret_cast<unsigned long>(from) & 15) == 0)
    asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(from), "n"(PREFETCH_COLUMNS * sizeof(T)) : "memory");
#else
#pragma unroll
  for (int sector = 0; sector < int(PREFETCH_COLUMNS * sizeof(T) / 32); ++sector)
    asm volatile("prefetch.global.L2 [%0];" ::"l"(from + sector * (32 / sizeof(T))));
#endif
}
template <class Sink, class F, class... Ops>
FN void walk(absent_team& team, absent_range, Sink&, const F&, Ops... operand) {
  (prefetch_operand(operand, team.column), ...);
}
template <long... N, class Sink, class F, class... Ops>
FN void walk(absent_team& team, fixed_span<N...>, Sink&, const F&, Ops... operand) {
  (prefetch_operand(operand, team.column), ...);
}
template <int SEGMENT, class Body> FN void prefetch(const Body& body, long row, int column, int columns) {
  const accumulator_row none{nullptr, 0, 0};
  if constexpr (SEGMENT == 0)
    body(row, absent_range(), absent_team(column), none);
  else
    body(row * (columns / SEGMENT) + column / SEGMENT, absent_team(column % SEGMENT), none);
}

//@ here
// Who I am, in a way that keeps the compiler from working out addresses before the product's loop: no register is free there.
FN int thread_here() {
  int thread = threadIdx.x;
  asm volatile("" : "+r"(thread));
  return thread;
}
FN int lane_here() { return thread_here() % 32; }
FN int warp_here() { return __shfl_sync(~0u, thread_here() / 32, 0); }

//@ lanes_team: needs words, shuffle, fixed, here
// THREADS neighbouring lanes; the others of the warp do the same with another row.
template <int THREADS, int VECTOR> struct lanes_team : words<lanes_team<THREADS, VECTOR>> {
  static constexpr int threads = THREADS, vector = VECTOR;
  static constexpr bool spread = false;
  const int lane = thread_here() % THREADS;  // once, or no two addresses would have a common part
  FN int member() const { return lane; }
  FN int members() const { return THREADS; }
  FN bool leads() const { return member() == 0; }
  template <class Reducer, class T> FN T join(T mine) {
    return butterfly<Reducer, THREADS>(mine);
  }
};

//@ finish: needs gemm_operand, accumulator_row, columns_lane, lanes_team, here
// A smem tile is a piece of the result, in shared memory: rows of COLUMNS floats, COLUMNS at least 64, whose 16-byte chunks are
// permuted so that neither the tensor core's fragments nor whole rows meet in a bank. A smem tile is stored row by row (ACROSS
// false) or column by column (true), which is what the permutation has to suit.
template <bool ACROSS> FN int twist_of(int row) { return ACROSS ? row & 14 : row * 2 & 14; }
template <bool ACROSS, int COLUMNS> FN int smem_tile_place(int row, int column) {
  return row * COLUMNS + (((column >> 2) ^ twist_of<ACROSS>(row)) << 2 | (column & 3));
}
FN bool is_finite(float x) { return (__float_as_uint(x) & 0x7f800000u) != 0x7f800000u; }
// Where a smem tile lies: its first row among all batches' rows, its batch, its first row in the batch, its first column.
struct smem_tile_corner {
  long row;
  long batch;
  int batch_row, column;
};
// An infinity or a NaN of a smem tile is computed again as a plain sum, one by each lane of a warp: split operands make NaN of
// infinity * finite, and a large power of two can overflow where the result does not. The sum runs through k in order and
// with fused steps, as eager's does: after an overflow the order decides between an infinity and NaN. Without one, float64
// knows better.
template <bool ACROSS, int COLUMNS>
FN void fixup(float* smem_tile, int begin, int end, smem_tile_corner at, gemm_operand left, gemm_operand right,
    gemm_shape shape) {
  const int lane = lane_here();
#pragma unroll 1
  for (int item = begin * (COLUMNS / 32); item < end * (COLUMNS / 32); ++item) {
    const int row = item / (COLUMNS / 32), column = item % (COLUMNS / 32) * 32 + lane;
    float& result = smem_tile[smem_tile_place<ACROSS, COLUMNS>(row, column)];
    if (at.column + column >= shape.columns || is_finite(result)) continue;
    const float* a = left.data + at.batch * left.batch_stride + (at.batch_row + row) * left.row_stride;
    const float* b = right.data + at.batch * right.batch_stride + (at.column + column) * right.row_stride;
    float sum = 0;
    double exact = 0;
#pragma unroll 4
    for (int k = 0; k < shape.depth; ++k, a += left.depth_stride, b += right.depth_stride) {
      sum = fmaf(*a, *b, sum);
      exact = fma(double(*a), double(*b), exact);
    }
    result = is_finite(sum) ? float(exact) : sum;
  }
  __syncwarp();
}
// A warp gives rows begin .. end - 1 of a smem tile to the body. Without reductions, eight lanes take a row. Two rows of a
// whole smem tile are in work at once: with two warps to each scheduler, nothing else hides the latency of an instruction. At
// the result's edges a warp takes one row, element by element. A smem tile may begin before the first column.
template <bool ACROSS, int COLUMNS, int VECTOR, class Body>
FN void finish_columns(const Body& body, const float* smem_tile, int begin, int end, smem_tile_corner at, int columns) {
  const auto accumulator = [&](int row) { return accumulator_row{smem_tile + row * COLUMNS, -at.column, twist_of<ACROSS>(row)}; };
  const int lane = lane_here();
  // There are at most 16 rows: all of them, or half.
  if (__all_sync(~0u, at.column >= 0 && at.column + COLUMNS <= columns && (end - begin & 7) == 0)) {
    constexpr int LANES = VECTOR == 1 ? 32 : 8, STEP = 32 / LANES;
    const columns_range<true> mine{at.column + lane % LANES * VECTOR, LANES * VECTOR, columns};
#pragma unroll 1
    for (int first = begin; first < end; first += 2 * STEP)
#pragma unroll
      for (int k = 0; k < 2; ++k) {
        const int row = first + k * STEP + lane / LANES;
        body(at.row + row, mine, columns_lane<VECTOR, COLUMNS / (LANES * VECTOR)>(), accumulator(row));
      }
  } else {
    const columns_range<false> mine{at.column + lane, 32, columns};
#pragma unroll 1
    for (int row = begin; row < end; ++row) body(at.row + row, mine, columns_lane<1, COLUMNS / 32>(), accumulator(row));
  }
}
// With reductions, the segments of a row, SEGMENT columns each, one by one. All lanes stay together, since teams shuffle: a
// team behind the end does the last segment once more. RARE: whole smem tiles are no case of their own.
template <bool ACROSS, int COLUMNS, int SEGMENT, int VECTOR, bool RARE = false, class Body>
FN void finish_segments(const Body& body, const float* smem_tile, int begin, int end, smem_tile_corner at, int columns) {
  constexpr int VECTORS = SEGMENT / VECTOR, SHARE = VECTORS / 4, ALL = COLUMNS / SEGMENT;
  constexpr int THREADS = SHARE < 2 ? 2 : SHARE > 32 ? 32 : SHARE, TEAMS = 32 / THREADS;
  const int lane = lane_here(), segments = columns / SEGMENT, behind = segments - at.column / SEGMENT;
  const auto segment_of = [&](int row, int segment) {
    const accumulator_row accumulator{smem_tile + row * COLUMNS, segment * SEGMENT, twist_of<ACROSS>(row)};
    __builtin_assume(at.row >= 0 && segments > 0);
    body((at.row + row) * segments + at.column / SEGMENT + segment, lanes_team<THREADS, VECTOR>(), accumulator);
  };
  if (!RARE && __all_sync(~0u, behind >= ALL && (end - begin) * ALL % (2 * TEAMS) == 0)) {
#pragma unroll 1
    for (int first = 0; first < (end - begin) * ALL; first += 2 * TEAMS)
#pragma unroll
      for (int k = 0; k < 2; ++k) {
        const int item = first + k * TEAMS + lane / THREADS;
        segment_of(begin + item / ALL, item % ALL);
      }
  } else {
    const int across = behind < ALL ? behind : ALL, items = (end - begin) * across;
#pragma unroll 1
    for (int first = 0; first < items; first += TEAMS) {
      const int mine = first + lane / THREADS, item = mine < items ? mine : items - 1;
      segment_of(begin + item / across, item % across);
    }
  }
}
template <bool ACROSS, int COLUMNS, int SEGMENT, int VECTOR, class Body>
FN void finish(const Body& body, const float* smem_tile, int begin, int end, smem_tile_corner at, int columns) {
  if constexpr (SEGMENT == 0)
    finish_columns<ACROSS, COLUMNS, VECTOR>(body, smem_tile, begin, end, at, columns);
  else
    finish_segments<ACROSS, COLUMNS, SEGMENT, VECTOR>(body, smem_tile, begin, end, at, columns);
}

//@
}  // namespace fusewright
