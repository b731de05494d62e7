// What attention computes without tensor cores: scores that splitting would make less accurate than plain sums, and rows of
// the result that are not finite.
//
// Text outside `//@ name` sections only serves a compilation of this file alone.
#pragma once
#include "planes.cuh"
namespace fusewright {

//@ score_exactly: needs factor, attention_tile
// Scores of 16 rows: pairs of 8 keys; rows g and g + 8, keys t and t + 4 of each 8.
template <int PAIRS> using some_scores = float[PAIRS][2][4];
FN float minus_infinity() { return __uint_as_float(0xff800000u); }
// Scores of this lane by sums in float64. What does not exist is asked for as the last row or key.
template <int PAIRS>
FN void score_exactly(some_scores<PAIRS>& x, const factor& queries, const factor& keys, const attention_shape& shape,
                      long batch, int row, int column) {
  const auto at = [&](const factor& from, int number, int count) {
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

//@ repair_attention: needs score_exactly, finish, exp
// One row by plain sums, a key to each lane. In order and with fused steps, as in `repair` of a product; float64 knows
// better where nothing overflows.
template <int WIDTH, class Scores>
FN void repair_attention(float* box, int place, const Scores& scores, const factor& queries, const factor& keys,
                         const factor& values, const attention_shape& shape, long batch, int row) {
  const int lane = lane_here();
  const float* const query = queries.data + batch * queries.batch_stride + row * queries.row_stride;
  const auto score = [&](int key) {
    const float* const other = keys.data + batch * keys.batch_stride + key * keys.row_stride;
    float sum = 0;
    double exact = 0;
    for (int d = 0; d < shape.depth; ++d) {
      const float a = query[d * queries.depth_stride], b = other[d * keys.depth_stride];
      sum = fmaf(a, b, sum);
      exact = fma(double(a), double(b), exact);
    }
    return scores(batch, row, key, is_finite(sum) ? float(exact) : sum);
  };
  const auto larger = [](float a, float b) { return b > a || b != b ? b : a; };  // a NaN wins
  float most = minus_infinity();
  for (int key = lane; key < shape.length; key += 32) most = larger(most, score(key));
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) most = larger(most, __shfl_xor_sync(~0u, most, distance));
  double all = 0;
  for (int key = lane; is_finite(most) && key < shape.length; key += 32) all += double(exp(score(key) - most));
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) all += __shfl_xor_sync(~0u, all, distance);
  float sums[WIDTH / 32] = {};
  double exact[WIDTH / 32] = {};
  for (int first = 0; is_finite(most) && first < shape.length; first += 32) {
    const float mine = first + lane < shape.length ? exp(score(first + lane) - most) / float(all) : 0.f;
    for (int i = 0; i < 32 && first + i < shape.length; ++i) {
      const float weight = __shfl_sync(~0u, mine, i);
      const float* const value = values.data + batch * values.batch_stride + (first + i) * values.depth_stride;
#pragma unroll
      for (int c = 0; c < WIDTH / 32; ++c) {
        const float v = lane + c * 32 < shape.columns ? value[(lane + c * 32) * values.row_stride] : 0.f;
        sums[c] = fmaf(weight, v, sums[c]);
        exact[c] = fma(double(weight), double(v), exact[c]);
      }
    }
  }
#pragma unroll
  for (int c = 0; c < WIDTH / 32; ++c) {
    const float sum = is_finite(sums[c]) ? float(exact[c]) : sums[c];
    // Without a finite maximum, all is NaN: infinity - infinity.
    box[box_place<false, WIDTH>(place, lane + c * 32)] = is_finite(most) ? sum : __uint_as_float(0x7fc00000u);
  }
}

//@
}  // namespace fusewright
