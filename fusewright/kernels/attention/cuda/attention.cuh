// Attention in one kernel, in float32, and no score is ever written:
// result[l][m][n] = sum over j of softmax over j (scores(queries[l][m] . keys[l][j])) * values[l][n][j].
//
// As in a product, keys and values are split into two float16 numbers by a pass of their own (`pack_planes`), queries and
// probabilities in registers; three of the four products are made, and sums leave the tensor core after 32 k. A warp takes
// 16 rows through all keys, 64 or 32 at a time, and keeps what rows need in registers: the fragments of its queries, what the
// exponentials refer to, their sum, and the sums of values. What is not finite in the end is computed again, row by row; and
// scores of keys or queries that consist of one number, for the most part, at once.
//
// The surprising fact: probabilities need not move. What a lane has of 16 x 16 scores is what it must have of an operand,
// up to the order of keys; and packed values have them in an order of their own, so the rows of packed keys are read in it.
//
// Text outside `//@ name` sections only serves a compilation of this file alone.
#pragma once
#include "kernels/attention/cuda/attention_fixup.cuh"
namespace fusewright {

//@ slab: needs planes, halves, mma_sync
// 16 rows and 32 k, as mma.sync wants them: hi and lo of two groups of 16 k. In each group a lane g * 4 + t has k = t, t + 4,
// t + 8 and t + 12 of rows g and g + 8; `undo`: the inverse scales of these.
struct slab {
  unsigned hi[2][4], lo[2][4];
  float undo[2];
};
FN float largest_in_row(float x) {
  x = fmaxf(x, __shfl_xor_sync(~0u, x, 1));
  return fmaxf(x, __shfl_xor_sync(~0u, x, 2));
}
FN float sum_of_row(float x) {
  x += __shfl_xor_sync(~0u, x, 1);
  return x + __shfl_xor_sync(~0u, x, 2);
}
// 32 k from `k` of 16 rows from `row`. Whether one number outweighs the others in a row of this lane.
FN bool load_slab(slab& to, const gemm_operand& from, long batch, int row, int rows, int k, int depth) {
  const int lane = threadIdx.x % 32;
  bool lone = false;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int mine = row + lane / 4 + half * 8;
    const float* const source = from.data + batch * from.batch_stride + mine * from.row_stride;
    float x[8], most = 0, sum = 0, scale;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const int at = k + i * 4 + lane % 4;
      x[i] = mine < rows && at < depth ? source[at * from.depth_stride] : 0.f;
      most = fmaxf(most, fabsf(x[i])), sum += fabsf(x[i]);
    }
    most = largest_in_row(most);
    lone |= outweighs(most, sum_of_row(sum), depth - k < K_BLOCK ? depth - k : K_BLOCK);
    power_of_two(most, scale, to.undo[half]);
#pragma unroll
    for (int i = 0; i < 4; ++i)
      split_in_two<LIFT>(x[i * 2] * scale, x[i * 2 + 1] * scale, to.hi[i / 2][half + i % 2 * 2], to.lo[i / 2][half + i % 2 * 2]);
  }
  return lone;
}
// sums += 16 rows x 16 columns x 32 k: of a slab and a packed operand. Tensor cores drop bits instead of rounding; so no sum
// stays there for long, and small products come first; a low half is lifted.
FN void multiply_slab(float (&sums)[2][4], const slab& rows, unsigned address, const float2 (&scale)[2]) {
  __syncwarp();  // nobody waits here; it keeps the compiler from loading all pairs at once, into registers it lacks
  unsigned hi[2][4], lo[2][4];
#pragma unroll
  for (int j = 0; j < 2; ++j) {
    load_matrices(hi[j], address ^ (j * 32));
    load_matrices(lo[j], address ^ (j * 32 + 64));
  }
  float acc[2][4] = {};
#pragma unroll
  for (int step = 0; step < 6; ++step) {
    const int term = step / 2, j = step % 2;
    const unsigned (&other)[4] = term == 1 ? lo[j] : hi[j];
#pragma unroll
    for (int i = 0; i < 8 && step == 4; ++i) acc[i / 4][i % 4] *= 1.f / LIFT;
#pragma unroll
    for (int i = 0; i < 2; ++i) multiply(acc[i], term == 0 ? rows.lo[j] : rows.hi[j], other[i * 2], other[i * 2 + 1]);
  }
#pragma unroll
  for (int i = 0; i < 8; ++i)
    sums[i / 4][i % 4] = fmaf(acc[i / 4][i % 4] * rows.undo[i / 2 % 2], i % 2 ? scale[i / 4].y : scale[i / 4].x,
                              sums[i / 4][i % 4]);
}

//@ weigh: needs slab, exp, score_exactly, fixup_limit
// What exponentials of rows g and g + 8 refer to, and a lane's part of their sum. It becomes NaN with the first score that
// is not finite before the model's own function has seen it: splitting may have made it so.
struct softmax_rows {
  float top[2], sum[2];
};
// Of a lane's two rows and a stage: whether `top` grew, a key has any weight, and a weight is too faint to keep its bits.
struct stage_facts {
  bool grows, live, faint;
};
// `row` and `column`: of this lane's first score. A row that does not exist is asked for as the last one.
template <bool WHOLE, int PAIRS, class ScoreMod>
FN void score_all(some_scores<PAIRS>& x, softmax_rows& state, const ScoreMod& score_mod, long batch, int row, int rows,
                  int column, int length) {
  const int row_of[2] = {row < rows ? row : rows - 1, row + 8 < rows ? row + 8 : rows - 1};
#pragma unroll
  for (int i = 0; i < PAIRS * 8; ++i) {
    float& score = x[i / 8][i / 4 % 2][i % 4];
    const int half = i / 2 % 2, key = column + i / 4 * 8 + i % 2 * 4;
    state.sum[half] = fmaf(score, 0.f, state.sum[half]);
    score = WHOLE || key < length ? score_mod(batch, row_of[half], key, score) : minus_infinity();
  }
}
// Scores become exponentials, split with a scale of each row. `top` follows the maximum in steps of more than 1, so that a
// row which rises slowly is not rounded again and again; what was summed until then shrinks by `shrink`.
template <int PAIRS>
FN stage_facts weigh(slab (&weights)[PAIRS / 2], some_scores<PAIRS>& x, softmax_rows& state, float (&shrink)[2]) {
  float scale[2], top[2];
  stage_facts facts{};
  unsigned least = ~0u;  // the smallest scaled weight's bits, less one: a weight of zero is not small
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    float most = minus_infinity();
#pragma unroll
    for (int i = 0; i < PAIRS * 4; ++i) most = fmaxf(most, x[i / 4][i / 2 % 2][half * 2 + i % 2]);
    most = largest_in_row(most);
    const bool higher = most > state.top[half] + 1.f;
    shrink[half] = higher ? exp(state.top[half] - most) : 1.f;
    state.top[half] = higher ? most : state.top[half];
    state.sum[half] *= shrink[half];
    facts.grows |= higher;
    top[half] = state.top[half] == minus_infinity() ? 0.f : state.top[half];
    const float heaviest = exp(most - top[half]);
    facts.live |= heaviest > 0;
    power_of_two(heaviest, scale[half], weights[0].undo[half]);
    weights[PAIRS / 2 - 1].undo[half] = weights[0].undo[half];
  }
#pragma unroll
  for (int pair = 0; pair < PAIRS; ++pair) {
    __syncwarp();  // as in multiply_slab
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int half = i % 2;
      const float* const two = &x[pair][i / 2][half * 2];
      const float first = exp(two[0] - top[half]), second = exp(two[1] - top[half]);
      slab& to = weights[pair / 2];
      state.sum[half] += first + second;
      least = umin(least, __float_as_uint(first * scale[half]) - 1);
      least = umin(least, __float_as_uint(second * scale[half]) - 1);
      split_in_two<LIFT>(first * scale[half], second * scale[half], to.hi[pair % 2][i], to.lo[pair % 2][i]);
    }
  }
  facts.faint = least < __float_as_uint(FAINT) - 1;
  return facts;
}

//@ attend: needs attention_tile, weigh
// A lane's part of ldmatrix, in a packed operand's k block: 16 rows, a group of 16 k. Keys come in the order in which packed
// values have them: 0 4 1 5 2 6 3 7.
FN unsigned value_place(int lane) {
  return (lane % 8 + lane / 16 * 8) * K_BLOCK_BYTES + ((lane / 8 % 2 ^ lane % 8) << 4);
}
FN unsigned key_place(int lane) {
  const int row = lane % 8 / 2 + lane % 2 * 4;
  return (row + lane / 16 * 8) * K_BLOCK_BYTES + ((lane / 8 % 2 ^ row) << 4);
}
// All of a slab but its high halves, in shared memory: three words of 16 bytes for each thread.
template <int THREADS> FN void keep_low(const slab& rows, uint4* to) {
#pragma unroll
  for (int j = 0; j < 2; ++j) to[j * THREADS] = make_uint4(rows.lo[j][0], rows.lo[j][1], rows.lo[j][2], rows.lo[j][3]);
  *reinterpret_cast<float2*>(to + 2 * THREADS) = make_float2(rows.undo[0], rows.undo[1]);
}
template <int THREADS> FN void recall_low(slab& rows, const uint4* from) {
#pragma unroll
  for (int j = 0; j < 2; ++j) {
    const uint4 low = from[j * THREADS];
    rows.lo[j][0] = low.x, rows.lo[j][1] = low.y, rows.lo[j][2] = low.z, rows.lo[j][3] = low.w;
  }
  const float2 undo = *reinterpret_cast<const float2*>(from + 2 * THREADS);
  rows.undo[0] = undo.x, rows.undo[1] = undo.y;
}
// One stage of keys. `lows`: of all threads. `total`: sixteen columns of the result at a time.
template <int WIDTH, class ScoreMod>
FN void attend(float (&total)[WIDTH / 16][2][4], softmax_rows& state, const slab (&queries)[WIDTH / K_BLOCK],
               const gemm_operand& query_rows, const gemm_operand& key_rows, const ScoreMod& score_mod,
                   const attention_shape& shape,
               const attention_place& place, int number, const unsigned char* stage, uint4* lows) {
  using tile = attention_tile<WIDTH>;
  const int thread = thread_here(), lane = thread % 32, column = number * tile::keys + lane % 4;
  const unsigned keys = shared_address(stage) + key_place(lane);
  const unsigned values = shared_address(stage + tile::values) + value_place(lane);
  const float* const key_scales = reinterpret_cast<const float*>(stage + tile::key_scales) + lane % 4;
  const float* const value_scales = reinterpret_cast<const float*>(stage + tile::value_scales) + lane % 4 * 2;
  some_scores<tile::pairs> x = {};
  int signs = __float_as_int(seen_by_warp<WIDTH>(lows)[WIDTH + 1]);
#pragma unroll
  for (int k_block = 0; k_block < WIDTH / K_BLOCK; ++k_block) {
    slab rows = queries[k_block];
    if constexpr (tile::spills) recall_low<tile::threads>(rows, lows + k_block * 3 * tile::threads + thread);
#pragma unroll
    for (int pair = 0; pair < tile::pairs; ++pair) {
      const float* const from = key_scales + k_block * K_BLOCK / PLANE_SCALE_BLOCK * tile::keys + pair * 16;
      const float2 scale[2] = {make_float2(from[0], from[4]), make_float2(from[8], from[12])};
#pragma unroll
      for (int i = 0; i < 2; ++i) signs |= __float_as_int(scale[i].x) | __float_as_int(scale[i].y);
      multiply_slab(x[pair], rows, keys + k_block * tile::key_k_block + pair * 16 * K_BLOCK_BYTES, scale);
    }
  }
  const int row = place.top + thread / 32 * 16 + lane / 4;
  if (__any_sync(~0u, signs < 0)) score_exactly<tile::pairs>(x, query_rows, key_rows, shape, place.batch, row, column);
  if ((number + 1) * tile::keys <= shape.length)
    score_all<true, tile::pairs>(x, state, score_mod, place.batch, row, shape.rows, column, shape.length);
  else
    score_all<false, tile::pairs>(x, state, score_mod, place.batch, row, shape.rows, column, shape.length);
  slab weights[tile::k_blocks];
  float shrink[2];
  const stage_facts facts = weigh<tile::pairs>(weights, x, state, shrink);
  note_stage<WIDTH>(seen_by_warp<WIDTH>(lows), reinterpret_cast<const float*>(stage + tile::value_scales), __any_sync(~0u,
                    facts.live), __any_sync(~0u, facts.faint));
  if (__any_sync(~0u, facts.grows)) {
#pragma unroll
    for (int i = 0; i < WIDTH / 2; ++i) total[i / 8][i / 4 % 2][i % 4] *= shrink[i / 2 % 2];
  }
#pragma unroll
  for (int pair = 0; pair < WIDTH / 16; ++pair) {
    const float2* const from = reinterpret_cast<const float2*>(value_scales + pair * 16);
    const float2 scale[2] = {from[0], from[4]};
#pragma unroll
    for (int k_block = 0; k_block < tile::k_blocks; ++k_block)
      multiply_slab(total[pair], weights[k_block], values + k_block * tile::value_k_block + pair * 16 * K_BLOCK_BYTES, scale);
  }
}

//@ run_attention: needs attend, fixup_attention, aligned, device_scope, allow_shared
// A warp's rows go to a smem tile; returned is the sum of exponentials of a lane's two rows.
template <int WIDTH>
FN float2 rows_to_smem_tile(float* smem_tile, const float (&total)[WIDTH / 16][2][4], const softmax_rows& state) {
  const float sum[2] = {sum_of_row(state.sum[0]), sum_of_row(state.sum[1])};
  const int lane = thread_here() % 32, begin = thread_here() / 32 * 16;
#pragma unroll
  for (int i = 0; i < WIDTH / 4; ++i) {
    const float* const pair = &total[i / 4][i / 2 % 2][i % 2 * 2];
    const int row = begin + lane / 4 + i % 2 * 8, column = i / 2 * 8 + lane % 4 * 2;
    *reinterpret_cast<float2*>(smem_tile + smem_tile_place<false, WIDTH>(row, column)) =
        make_float2(pair[0] / sum[i % 2], pair[1] / sum[i % 2]);
  }
  __syncwarp();
  return make_float2(sum[0], sum[1]);
}
// Rows that need a fixup are computed again by the whole block, then rows go to the body.
template <int WIDTH, int VECTOR, class ScoreMod, class Body>
FN void attention_out(const Body& body, const ScoreMod& score_mod, float2 sum, const gemm_operand& queries,
                      const gemm_operand& keys, const gemm_operand& values, const attention_shape& shape,
                          const attention_place& place, float* smem_tile, uint4* lows) {
  using tile = attention_tile<WIDTH>;
  __shared__ unsigned marks[tile::rows / 8];  // of each row, four bits of lanes for which it needs a fixup
  const int lane = lane_here(), begin = warp_here() * 16, rest = shape.rows - place.top;
  const int end = begin + 16 < rest ? begin + 16 : rest;
  const float* const seen = seen_by_warp<WIDTH>(lows);
  const float limit = fixup_limit(seen[WIDTH] != 0);
  bool wrong[2] = {};
#pragma unroll 4
  for (int i = 0; i < WIDTH / 4; ++i) {
    const int half = i % 2, column = i / 2 * 8 + lane % 4 * 2;
    const float* const pair = smem_tile + smem_tile_place<false, WIDTH>(begin + lane / 4 + half * 8, column);
    wrong[half] |= pair_needs_fixup(pair, seen + column, limit / (half ? sum.y : sum.x), seen[WIDTH] != 0,
        shape.columns - column);
  }
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const unsigned mark = __ballot_sync(~0u, wrong[half]);
    if (lane == 0) marks[begin / 8 + half] = mark;
  }
  if (__syncthreads_or(wrong[0] || wrong[1])) {
#pragma unroll 1
    for (int row = 0; row < tile::rows && row < rest; ++row)
      if (marks[row / 8] >> row % 8 * 4 & 15)
        fixup_attention<WIDTH>(smem_tile, row, score_mod, queries, keys, values, shape, place.batch, place.top + row);
  }
  if (begin < end)
    finish_columns<false, WIDTH, VECTOR>(
        body, smem_tile, begin, end, {place.batch * shape.rows + place.top, place.batch, place.top, 0}, shape.columns);
}
template <int WIDTH, int VECTOR, class ScoreMod, class Body>
__global__ void __launch_bounds__(attention_tile<WIDTH>::threads, 1)
    attention_kernel(const __grid_constant__ Body body, const __grid_constant__ ScoreMod score_mod,
                     const __grid_constant__ gemm_operand queries, const __grid_constant__ gemm_operand keys,
                     const __grid_constant__ gemm_operand values, const __grid_constant__ attention_shape shape,
                     const __grid_constant__ planes packed_keys, const __grid_constant__ planes packed_values) {
  using tile = attention_tile<WIDTH>;
  extern __shared__ __align__(128) unsigned char stages[];
  const int down = (shape.rows + tile::rows - 1) / tile::rows, tiles = (shape.length + tile::keys - 1) / tile::keys;
  const long batch = block_index() / down;
  if (batch >= shape.batches) return;
  const int top = int(block_index() % down) * tile::rows;
  __shared__ attention_place place;
  if (threadIdx.x == 0) place = {batch, top};
  copy_stage<WIDTH>(packed_keys, packed_values, batch, 0, shared_address(stages));
  close_copies();
  uint4* const lows = reinterpret_cast<uint4*>(stages + tile::lows);
  slab mine[WIDTH / K_BLOCK];
  bool lone = false;
#pragma unroll
  for (int k_block = 0; k_block < WIDTH / K_BLOCK; ++k_block) {
    lone |= load_slab(mine[k_block], queries, batch, top + threadIdx.x / 32 * 16, shape.rows, k_block * K_BLOCK, shape.depth);
    if constexpr (tile::spills) keep_low<tile::threads>(mine[k_block], lows + k_block * 3 * tile::threads + threadIdx.x);
  }
  begin_notes<WIDTH>(seen_by_warp<WIDTH>(lows), __any_sync(~0u, lone));
  float total[WIDTH / 16][2][4] = {};
  softmax_rows state{{minus_infinity(), minus_infinity()}, {0, 0}};
#pragma unroll 1
  for (int number = 0; number < tiles; ++number) {
    wait_copies<0>();
    __syncthreads();  // everybody's copies are there, and nobody still reads the other stage
    if (number + 1 < tiles)
      copy_stage<WIDTH>(packed_keys, packed_values, place.batch, number + 1,
                        shared_address(stages) + (number + 1) % 2 * tile::stage_bytes);
    close_copies();
    attend<WIDTH>(total, state, mine, queries, keys, score_mod, shape, place, number,
                  stages + number % 2 * tile::stage_bytes, lows);
  }
  __syncthreads();  // the stages are no longer read
  float* const smem_tile = reinterpret_cast<float*>(stages);
  const float2 sum = rows_to_smem_tile<WIDTH>(smem_tile, total, state);
  attention_out<WIDTH, VECTOR>(body, score_mod, sum, queries, keys, values, shape, place, smem_tile, lows);
}
#ifdef __CUDACC_RTC__
template <int WIDTH, int VECTOR, class ScoreMod, class Body>
FN int run_attention(const Body&, const ScoreMod&, gemm_operand, gemm_operand, gemm_operand, long, long, long, long, long,
    void*, int, void*) {
  return &attention_kernel<WIDTH, VECTOR, ScoreMod, Body> == nullptr || &pack_planes == nullptr;
}
#else
inline long aligned_bytes(long bytes) { return (bytes + 255) / 256 * 256; }
// Units, scales, and four bytes for each row that nobody needs here, but that `packed_in` counts.
inline long planes_bytes(const planes& p) {
  return p.batches * p.rows * (long(p.k_blocks) * K_BLOCK_BYTES + p.scale_blocks * 4 + 4);
}
inline int pack_in(void* workspace, const gemm_operand& from, long batches, long rows, long depth, bool masked, planes& to,
                   cudaStream_t stream) {
  to = {static_cast<unsigned char*>(workspace), nullptr, from.batch_stride == 0 ? 1 : batches,
        int((rows + PLANE_ROWS - 1) / PLANE_ROWS * PLANE_ROWS), int((depth + K_BLOCK - 1) / K_BLOCK),
        int((depth + PLANE_SCALE_BLOCK - 1) / PLANE_SCALE_BLOCK)};
  to.scales = reinterpret_cast<float*>(to.data + to.batches * to.k_blocks * to.rows * K_BLOCK_BYTES);
  const bool vectors = from.row_stride % 4 == 0 && from.batch_stride % 4 == 0 && aligned<4>(from.data);
  const long blocks = to.batches * to.scale_blocks * (to.rows / ROWS_AT_ONCE);
  pack_planes<<<grid_of(blocks), PLANE_THREADS, 0, stream>>>(from, int(rows), int(depth), to, vectors, masked);
  return cudaGetLastError();
}
template <int WIDTH, int VECTOR, class ScoreMod, class Body>
int run_attention(const Body& body, const ScoreMod& score_mod, gemm_operand queries, gemm_operand keys, gemm_operand values,
                  long batches, long rows, long columns, long length, long depth, void* workspace, int device, void* stream) {
  if (batches <= 0 || rows <= 0 || columns <= 0) return 0;
  using tile = attention_tile<WIDTH>;
  const device_scope scope(device);
  const auto on = static_cast<cudaStream_t>(stream);
  constexpr auto kernel = attention_kernel<WIDTH, VECTOR, ScoreMod, Body>;
  if (int error = allow_shared<kernel>(tile::shared_bytes, device)) return error;
  planes packed_keys, packed_values;
  if (int error = pack_in(workspace, keys, batches, length, depth, false, packed_keys, on)) return error;
  void* const behind = packed_keys.data + aligned_bytes(planes_bytes(packed_keys));
  if (int error = pack_in(behind, values, batches, columns, length, true, packed_values, on)) return error;
  const attention_shape shape{batches, int(rows), int(columns), int(length), int(depth)};
  const dim3 grid = grid_of(batches * ((rows + tile::rows - 1) / tile::rows));
  kernel<<<grid, tile::threads, tile::shared_bytes, on>>>(body, score_mod, queries, keys, values, shape, packed_keys,
                                                          packed_values);
  return cudaGetLastError();
}
#endif

//@
}  // namespace fusewright
