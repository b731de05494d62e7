// What attention reads again and again: keys and values, split for the tensor cores and packed at every call; and how a
// stage of them comes into shared memory.
//
// Unlike a product's factor, each row has a scale for every 64 k: a warp meets them 64 at a time anyway, and nothing has
// to be known of a whole row. So packing reads once, and takes any number of rows at the same time.
//
// Text outside `//@ name` sections only serves a compilation of this file alone.
#pragma once
#include "devicelib/cuda/instructions_sm80.cuh"
namespace fusewright {

//@ planes: needs factor, units, grid
// A factor packed for attention: split units, [batch][unit][row][128 bytes], with rows filled up to a multiple of 64 by
// zeros. Behind all units, an inverse scale for each row and 64 k, [batch][step][row], negative where one of a key outweighs.
// Low halves are 2^11 times as large as they are, so that both end 2^51 below the largest of a step.
constexpr int PLANE_STEP = 64, PLANE_ROWS = 64, PLANE_THREADS = 256, ROWS_AT_ONCE = 32, LIFT = 2048;
struct planes {
  unsigned char* data;
  float* scales;
  long batches;
  int rows, units, steps;  // rows: filled up
  FN unsigned char* unit(long batch, int number, int row) const {
    return data + (((batches > 1 ? batch * units : 0) + number) * rows + row) * UNIT_BYTES;
  }
  FN float* scale(long batch, int step, int row) const {
    return scales + ((batches > 1 ? batch * steps : 0) + step) * rows + row;
  }
};
// Behind a mask, the largest of 64 values may weigh nothing, and must not cost the others their bits. Where two are smaller
// by more than 2^26, or one by 2^38, there is no scale: NaN says that whatever they touch is to be computed again, which
// takes so long that normal numbers must not happen to lie that far apart.
FN bool far_apart(const float (&x)[8], float most) {
  int small = 0;
#pragma unroll
  for (int j = 0; j < 8; ++j) {
    const float size = fabsf(x[j]);
    small += size > 0 ? (size < most * 0x1p-26f) + (size < most * 0x1p-38f) : 0;
  }
#pragma unroll
  for (int distance = 4; distance > 0; distance /= 2) small += __shfl_xor_sync(~0u, small, distance);
  return small > 1;
}
// One of `count` numbers outweighs the others together, as it does where it is some 20 times as large as each. Then it is what
// sums consist of, and the bits that splitting it has lost are more than float32 loses on the way.
FN bool outweighs(float most, float sum, int count) { return count >= 8 && sum < most * (1 + float(count) / 64); }
// One block packs 32 rows and 64 k, eight k to a thread. Rows that are neighbours in memory come through shared memory.
__global__ void __launch_bounds__(PLANE_THREADS)
    pack_planes(const factor from, int rows, int depth, const planes to, bool vectors, bool masked) {
  __shared__ float tile[PLANE_STEP][ROWS_AT_ONCE + 1];
  const int groups = to.rows / ROWS_AT_ONCE, thread = threadIdx.x, row = thread / 8, chunk = thread % 8;
  const long batch = block_index() / (long(groups) * to.steps);
  if (batch >= to.batches) return;
  const int rest = int(block_index() % (long(groups) * to.steps)), step = rest / groups;
  const int first = rest % groups * ROWS_AT_ONCE, first_k = step * PLANE_STEP, k = first_k + chunk * 8;
  const float* const source = from.data + batch * from.batch_stride;
  const auto element = [&](int r, int d) {
    return r < rows && d < depth ? source[r * from.row_stride + d * from.depth_stride] : 0.f;
  };
  float x[8], most = 0, sum = 0, scale, inverse;
  if (from.depth_stride != 1) {
#pragma unroll
    for (int j = 0; j < 8; ++j)
      tile[thread / 32 + j * 8][thread % 32] = element(first + thread % 32, first_k + thread / 32 + j * 8);
    __syncthreads();
#pragma unroll
    for (int j = 0; j < 8; ++j) x[j] = tile[chunk * 8 + j][row];
  } else if (vectors && first + row < rows && k + 8 <= depth) {
    memcpy(x, __builtin_assume_aligned(source + (first + row) * from.row_stride + k, 16), sizeof(x));
  } else {
#pragma unroll
    for (int j = 0; j < 8; ++j) x[j] = element(first + row, k + j);
  }
#pragma unroll
  for (int j = 0; j < 8; ++j) most = fmaxf(most, fabsf(x[j])), sum += fabsf(x[j]);
#pragma unroll
  for (int distance = 4; distance > 0; distance /= 2) {
    most = fmaxf(most, __shfl_xor_sync(~0u, most, distance));
    sum += __shfl_xor_sync(~0u, sum, distance);
  }
  power_of_two(most, scale, inverse);
  if (masked && far_apart(x, most)) inverse = __uint_as_float(0x7fc00000u);
  if (!masked && outweighs(most, sum, depth - first_k < PLANE_STEP ? depth - first_k : PLANE_STEP)) inverse = -inverse;
#pragma unroll
  for (int j = 0; j < 8; ++j) x[j] *= scale;
  const int unit = k / UNIT;
  if (unit < to.units) pack_chunk<LIFT>(x, to.unit(batch, unit, first + row), first + row, k % UNIT / 8);
  if (chunk == 0) *to.scale(batch, step, first + row) = inverse;
}

//@ attention_tile: needs planes, copies, here
struct attention_shape {
  long batches;
  int rows, columns, length, depth;
};
// Where a block is; it remembers that in shared memory, since no register is free.
struct attention_place {
  long batch;
  int top;
};
// 128 rows of queries, 64 keys, or 32 where registers are short. A stage: units of keys, units of values, inverse scales of
// keys (of each 64 k) and of values. Behind both stages, the low halves of queries, where registers are short, and what each
// warp has `seen`: the largest inverse scale of each column, whether it met faint weights (1), and whether one number
// outweighs the others in a query (-1).
template <int WIDTH> struct attention_tile {
  static constexpr int warps = 8, rows = warps * 16, threads = warps * 32, steps = WIDTH / PLANE_STEP;
  static constexpr int keys = WIDTH > 64 ? 32 : 64, pairs = keys / 16, units = keys / UNIT;
  static constexpr int key_unit = keys * UNIT_BYTES, value_unit = WIDTH * UNIT_BYTES, values = WIDTH / UNIT * key_unit;
  static constexpr int key_scales = values + units * value_unit, value_scales = key_scales + steps * keys * 4;
  static constexpr int stage_bytes = value_scales + WIDTH * 4, lows = 2 * stage_bytes;
  static constexpr bool spills = WIDTH > 64;
  static constexpr int seen = lows + (spills ? WIDTH / UNIT * 3 * threads * 16 : 0), seen_floats = WIDTH + 4;
  static constexpr int shared_bytes = seen + warps * seen_floats * 4;
  static_assert(rows * WIDTH * 4 <= 2 * stage_bytes, "the result takes the place of the stages");
};
// What does not exist is met by zeros, or makes columns that do not exist: so anything will do, and the last unit is read.
template <int WIDTH>
FN void copy_stage(const planes& keys, const planes& values, long batch, int number, unsigned stage) {
  using tile = attention_tile<WIDTH>;
  constexpr int AT_ONCE = tile::threads * 16;
  const int thread = thread_here();
  const auto copy_unit = [&](unsigned to, const unsigned char* from, int bytes) {
#pragma unroll
    for (int i = 0; i < bytes / AT_ONCE; ++i)
      copy_later(to + i * AT_ONCE + thread * 16, from + i * AT_ONCE + thread * 16, nullptr, true);
  };
#pragma unroll
  for (int unit = 0; unit < WIDTH / UNIT; ++unit)
    copy_unit(stage + unit * tile::key_unit,
              keys.unit(batch, unit < keys.units ? unit : keys.units - 1, number * tile::keys), tile::key_unit);
#pragma unroll
  for (int i = 0; i < tile::units * tile::steps; ++i) {
    const int unit = number * tile::units + i / tile::steps, row = i % tile::steps * PLANE_ROWS;
    copy_unit(stage + tile::values + i * PLANE_ROWS * UNIT_BYTES,
              values.unit(batch, unit < values.units ? unit : values.units - 1, row < values.rows ? row : 0),
              PLANE_ROWS * UNIT_BYTES);
  }
  constexpr int KEY_SCALES = tile::steps * tile::keys / 4, OF_STEP = tile::keys / 4;
  if (thread < KEY_SCALES + WIDTH / 4) {  // four scales each
    const int step = thread / OF_STEP, column = (thread - KEY_SCALES) * 4;
    const float* const key = keys.scale(batch, step < keys.steps ? step : 0, number * tile::keys + thread % OF_STEP * 4);
    const float* const value = values.scale(batch, number * tile::keys / PLANE_STEP, column < values.rows ? column : 0);
    copy_later(stage + tile::key_scales + thread * 16, thread < KEY_SCALES ? key : value, nullptr, true);
  }
}

//@
}  // namespace fusewright
