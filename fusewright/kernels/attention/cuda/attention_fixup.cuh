// What attention computes without tensor cores: scores that splitting would make less accurate than plain sums, and rows of
// the result that are not finite.
//
// Text outside `//@ name` sections only serves a compilation of this file alone.
#pragma once
#include "kernels/attention/cuda/packed_keys_values.cuh"
namespace fusewright {

//@ score_exactly: needs gemm_operand, attention_tile
// Scores of 16 rows: pairs of 8 keys; rows g and g + 8, keys t and t + 4 of each 8.
template <int PAIRS> using some_scores = float[PAIRS][2][4];
FN float minus_infinity() { return __uint_as_float(0xff800000u); }
// Scores of this lane by sums in float64. What does not exist is asked for as the last row or key.
template <int PAIRS>
FN void score_exactly(some_scores<PAIRS>& x, const gemm_operand& queries, const gemm_operand& keys, const attention_shape& shape,
                      long batch, int row, int column) {
  const auto at = [&](const gemm_operand& from, int number, int count) {
    return from.data + batch * from.batch_stride + (number < count ? number : count - 1) * from.row_stride;
  };
  const float* const query[2] = {at(queries, row, shape.rows), at(queries, row + 8, shape.rows)};
#pragma unroll
  for (int pair = 0; pair < PAIRS; ++pair) {
    const float* key[4];
    double sums[8] = {};
#pragma unroll
    for (int i = 0; i < 4; ++i) key[i] = at(keys, column + pair * 16 + i * 4, shape.length);
#pragma unroll 4
    for (int d = 0; d < shape.depth; ++d) {
      const double q[2] = {query[0][d * queries.depth_stride], query[1][d * queries.depth_stride]};
#pragma unroll
      for (int i = 0; i < 8; ++i) sums[i] = fma(q[i / 2 % 2], double(key[i / 4 * 2 + i % 2][d * keys.depth_stride]), sums[i]);
    }
#pragma unroll
    for (int i = 0; i < 8; ++i) x[pair][i / 4][i % 4] = float(sums[i]);
  }
}

//@ fixup_limit: needs attention_tile, finish
// Where one key of a stage has most of a row's weight but a value of zero, what remains of a column are weights that their
// halves hold with few bits, or not at all: those below FAINT, once scaled. Behind a mask, one small value may be all, too.
// So a result far below the largest value times the largest weight needs a fixup; one of zero only if there were faint weights.
// Of 2^23 random elements, 1 in 50 draws needs a fixup, 1 in 5 with faint weights.
constexpr float FAINT = 0x1p-14f;
FN float fixup_limit(bool faint) { return 0x1p14f * (faint ? 0x1p-26f : 0x1p-28f); }
// `seen`: the largest inverse scale of the column, at least 2^-126 where all is zero; what is that small has no bits to lose.
FN bool needs_fixup(float x, float limit, float seen, bool faint) {
  return !is_finite(x) | ((fabsf(x) < (seen - 0x1p-126f) * limit) & (faint | (x != 0)));
}
// Of two neighbours, if `columns` are left.
FN bool pair_needs_fixup(const float* x, const float* seen, float limit, bool faint, int columns) {
  const float2 both = *reinterpret_cast<const float2*>(x), most = *reinterpret_cast<const float2*>(seen);
  return ((columns > 0) & needs_fixup(both.x, limit, most.x, faint)) | ((columns > 1) & needs_fixup(both.y, limit, most.y,
      faint));
}
// Asked for again and again, since no register is free.
template <int WIDTH> FN float* seen_by_warp(uint4* lows) {
  using tile = attention_tile<WIDTH>;
  return reinterpret_cast<float*>(lows) + (tile::seen - tile::lows) / 4 + thread_here() / 32 * tile::seen_floats;
}
template <int WIDTH> FN void begin_notes(float* seen, bool lone) {
  const int lane = thread_here() % 32;
#pragma unroll
  for (int c = 0; c < WIDTH; c += 32) seen[c + lane] = 0;
  if (lane == 0) seen[WIDTH] = 0, seen[WIDTH + 1] = lone ? -1.f : 0.f;
  __syncwarp();
}
// What a warp remembers of a stage. Stages without any weight for its rows do not count.
template <int WIDTH> FN void note_stage(float* seen, const float* value_scales, bool live, bool faint) {
  const int lane = thread_here() % 32;
#pragma unroll
  for (int c = 0; c < WIDTH; c += 32)
    if (live) seen[c + lane] = fmaxf(seen[c + lane], value_scales[c + lane]);
  if (faint && lane == 0) seen[WIDTH] = 1;
}

//@ fixup_attention: needs score_exactly, finish, exp
// One row of the result by plain sums in float64, by a whole block: eight lanes to a key, then a lane to a column. Behind the
// smem tile is room for the scores of KEPT keys; of longer rows they are computed three times.
template <int WIDTH> struct fixup_room {
  static constexpr int threads = attention_tile<WIDTH>::threads, KEPT = 6144;
  float kept[KEPT];
  double parts[threads];
  static_assert(attention_tile<WIDTH>::rows * WIDTH * 4 + KEPT * 4 + threads * 8 <= attention_tile<WIDTH>::seen, "no room");
};
// Threads join what they have in a fixed order.
template <int WIDTH, class Join> FN double join_block(double mine, double* parts, Join join) {
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) mine = join(mine, __shfl_xor_sync(~0u, mine, distance));
  if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = mine;
  __syncthreads();
  mine = parts[0];
  for (int warp = 1; warp < attention_tile<WIDTH>::warps; ++warp) mine = join(mine, parts[warp]);
  __syncthreads();
  return mine;
}
// Scores of `count` keys from `first`, several keys in flight. Where a sum could overflow in float32, it is made in order and
// with fused steps, as in `fixup` of a product: then the order decides between an infinity and NaN.
template <int WIDTH, class ScoreMod>
FN void keep_scores(float* kept, const ScoreMod& score_mod, const gemm_operand& queries, const gemm_operand& keys,
                    const attention_shape& shape, long batch, int row, int first, int count) {
  constexpr int LANES = 8, GROUPS = attention_tile<WIDTH>::threads / LANES, FLIGHT = 256 / WIDTH;
  const int member = threadIdx.x % LANES, group = threadIdx.x / LANES;
  const float* const query = queries.data + batch * queries.batch_stride + row * queries.row_stride;
#pragma unroll 1
  for (int start = 0; start < count; start += GROUPS * FLIGHT) {
    double exact[FLIGHT] = {};
    float size[FLIGHT] = {};
#pragma unroll
    for (int j = 0; j < FLIGHT; ++j) {
      const int i = start + j * GROUPS + group, key = first + (i < count ? i : count - 1);
      const float* const other = keys.data + batch * keys.batch_stride + key * keys.row_stride;
#pragma unroll
      for (int d = member; d < WIDTH; d += LANES) {
        const bool here = d < shape.depth;
        const float a = here ? query[d * queries.depth_stride] : 0.f, b = here ? other[d * keys.depth_stride] : 0.f;
        exact[j] = fma(double(a), double(b), exact[j]), size[j] = fmaf(fabsf(a), fabsf(b), size[j]);
      }
    }
#pragma unroll
    for (int j = 0; j < FLIGHT; ++j) {
#pragma unroll
      for (int distance = LANES / 2; distance > 0; distance /= 2) {
        exact[j] += __shfl_xor_sync(~0u, exact[j], distance);
        size[j] += __shfl_xor_sync(~0u, size[j], distance);
      }
      const int i = start + j * GROUPS + group;
      if (i >= count || member > 0) continue;
      const float* const other = keys.data + batch * keys.batch_stride + (first + i) * keys.row_stride;
      float sum = 0;
      for (int d = 0; !is_finite(size[j]) && d < shape.depth; ++d)
        sum = fmaf(query[d * queries.depth_stride], other[d * keys.depth_stride], sum);
      kept[i] = score_mod(batch, row, first + i, is_finite(sum) ? float(exact[j]) : sum);
    }
  }
  __syncthreads();
}
template <int WIDTH, class ScoreMod>
FN void fixup_attention(float* smem_tile, int place, const ScoreMod& score_mod, const gemm_operand& queries,
                         const gemm_operand& keys, const gemm_operand& values, const attention_shape& shape, long batch,
                             int row) {
  using memory = fixup_room<WIDTH>;
  memory& room = *reinterpret_cast<memory*>(smem_tile + attention_tile<WIDTH>::rows * WIDTH);
  const int thread = threadIdx.x, column = thread % WIDTH;
  const auto larger = [](double a, double b) { return b > a || b != b ? b : a; };  // a NaN wins
  double all = 0, exact = 0, top = minus_infinity();
#pragma unroll 1
  for (int pass = 0; pass < 3; ++pass) {  // the maximum, the sum of exponentials, the sum of values
#pragma unroll 1
    for (int first = 0; first < shape.length; first += memory::KEPT) {
      const int count = shape.length - first < memory::KEPT ? shape.length - first : memory::KEPT;
      if (pass == 0 || shape.length > memory::KEPT)
        keep_scores<WIDTH>(room.kept, score_mod, queries, keys, shape, batch, row, first, count);
      for (int i = thread; i < count; i += memory::threads) {
        float& score = room.kept[i];
        if (pass == 0) top = larger(top, score);
        if (pass == 1) all += double(exp(score - float(top)));
        if (pass == 2) score = exp(score - float(top)) / float(all);
      }
      __syncthreads();
      const float* const value = values.data + batch * values.batch_stride + column * values.row_stride;
      if (pass == 2 && column < shape.columns) {
#pragma unroll 16
        for (int i = thread / WIDTH; i < count; i += memory::threads / WIDTH)
          exact = fma(double(room.kept[i]), double(value[(first + i) * values.depth_stride]), exact);
      }
      if (pass == 2) __syncthreads();  // before scores take the place of weights
    }
    if (pass == 0) top = join_block<WIDTH>(top, room.parts, larger);
    if (pass == 1) all = join_block<WIDTH>(all, room.parts, [](double a, double b) { return a + b; });
    if (!is_finite(float(top))) break;
  }
  room.parts[thread] = exact;
  __syncthreads();
  if (thread < WIDTH) {
    for (int other = thread + WIDTH; other < memory::threads; other += WIDTH) exact += room.parts[other];
    // Without a finite maximum, all is NaN: infinity - infinity.
    smem_tile[smem_tile_place<false, WIDTH>(place, thread)] = is_finite(float(top)) ? float(exact) : __uint_as_float(0x7fc00000u);
  }
  __syncthreads();
}

//@
}  // namespace fusewright
