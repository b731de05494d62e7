// What attention reads again and again: keys and values, split for the tensor cores and packed at every call; and how a
// stage of them comes into shared memory.
//
// Unlike a product's operand, each row has a scale for every 64 k: a warp meets them 64 at a time anyway, and nothing has
// to be known of a whole row. So packing reads once, and takes any number of rows at the same time.
//
// Text outside `//@ name` sections only serves a compilation of this file alone.
#pragma once
#include "devicelib/cuda/instructions_sm80.cuh"
namespace fusewright {

//@ planes: needs gemm_operand, k_blocks, grid
// An operand packed for attention: split k blocks, [batch][k block][row][128 bytes], with rows filled up to a multiple of 64 by
// zeros. Behind all k blocks, an inverse scale for each row and 64 k, [batch][scale block][row], negative where one of a key
// outweighs. Low halves are 2^11 times as large as they are, so that both end 2^51 below the largest of a scale block.
constexpr int PLANE_SCALE_BLOCK = 64, PLANE_ROWS = 64, PLANE_THREADS = 256, ROWS_AT_ONCE = 32, LIFT = 2048;
struct planes {
  unsigned char* data;
  float* scales;
  long batches;
  int rows, k_blocks, scale_blocks;  // rows: filled up
  FN unsigned char* k_block(long batch, int number, int row) const {
    return data + (((batches > 1 ? batch * k_blocks : 0) + number) * rows + row) * K_BLOCK_BYTES;
  }
  FN float* scale(long batch, int scale_block, int row) const {
    return scales + ((batches > 1 ? batch * scale_blocks : 0) + scale_block) * rows + row;
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
    pack_planes(const gemm_operand from, int rows, int depth, const planes to, bool vectors, bool masked) {
  __shared__ float tile[PLANE_SCALE_BLOCK][ROWS_AT_ONCE + 1];
  const int groups = to.rows / ROWS_AT_ONCE, thread = threadIdx.x, row = thread / 8, chunk = thread % 8;
  const long batch = block_index() / (long(groups) * to.scale_blocks);
  if (batch >= to.batches) return;
  const int rest = int(block_index() % (long(groups) * to.scale_blocks)), scale_block = rest / groups;
  const int first = rest % groups * ROWS_AT_ONCE, first_k = scale_block * PLANE_SCALE_BLOCK, k = first_k + chunk * 8;
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
  if (!masked && outweighs(most, sum, depth - first_k < PLANE_SCALE_BLOCK ? depth - first_k : PLANE_SCALE_BLOCK)) inverse =
      -inverse;
#pragma unroll
  for (int j = 0; j < 8; ++j) x[j] *= scale;
  const int k_block = k / K_BLOCK;
  if (k_block < to.k_blocks) pack_chunk<LIFT>(x, to.k_block(batch, k_block, first + row), first + row, k % K_BLOCK / 8);
  if (chunk == 0) *to.scale(batch, scale_block, first + row) = inverse;
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
// 128 rows of queries, 64 keys, or 32 where registers are short. A stage: k blocks of keys, k blocks of values, inverse scales of
// keys (of each 64 k) and of values. Behind both stages, the low halves of queries, where registers are short, and what each
// warp has `seen`: the largest inverse scale of each column, whether it met faint weights (1), and whether one number
// outweighs the others in a query (-1).
template <int WIDTH> struct attention_tile {
  static constexpr int warps = 8, rows = warps * 16, threads = warps * 32, scale_blocks = WIDTH / PLANE_SCALE_BLOCK;
  static constexpr int keys = WIDTH > 64 ? 32 : 64, pairs = keys / 16, k_blocks = keys / K_BLOCK;
  static constexpr int key_k_block = keys * K_BLOCK_BYTES, value_k_block = WIDTH * K_BLOCK_BYTES, values =
      WIDTH / K_BLOCK * key_k_block;
  static constexpr int key_scales = values + k_blocks * value_k_block, value_scales = key_scales + scale_blocks * keys * 4;
  static constexpr int stage_bytes = value_scales + WIDTH * 4, lows = 2 * stage_bytes;
  static constexpr bool spills = WIDTH > 64;
  static constexpr int seen = lows + (spills ? WIDTH / K_BLOCK * 3 * threads * 16 : 0), seen_floats = WIDTH + 4;
  static constexpr int shared_bytes = seen + warps * seen_floats * 4;
  static_assert(rows * WIDTH * 4 <= 2 * stage_bytes, "the result takes the place of the stages");
};
// What does not exist is met by zeros, or makes columns that do not exist: so anything will do, and the last k block is read.
template <int WIDTH>
FN void copy_stage(const planes& keys, const planes& values, long batch, int number, unsigned stage) {
  using tile = attention_tile<WIDTH>;
  constexpr int AT_ONCE = tile::threads * 16;
  const int thread = thread_here();
  const auto copy_k_block = [&](unsigned to, const unsigned char* from, int bytes) {
#pragma unroll
    for (int i = 0; i < bytes / AT_ONCE; ++i)
      copy_later(to + i * AT_ONCE + thread * 16, from + i * AT_ONCE + thread * 16, nullptr, true);
  };
#pragma unroll
  for (int k_block = 0; k_block < WIDTH / K_BLOCK; ++k_block)
    copy_k_block(stage + k_block * tile::key_k_block,
              keys.k_block(batch, k_block < keys.k_blocks ? k_block : keys.k_blocks - 1, number * tile::keys), tile::key_k_block);
#pragma unroll
  for (int i = 0; i < tile::k_blocks * tile::scale_blocks; ++i) {
    const int k_block = number * tile::k_blocks + i / tile::scale_blocks, row = i % tile::scale_blocks * PLANE_ROWS;
    copy_k_block(stage + tile::values + i * PLANE_ROWS * K_BLOCK_BYTES,
              values.k_block(batch, k_block < values.k_blocks ? k_block : values.k_blocks - 1, row < values.rows ? row : 0),
              PLANE_ROWS * K_BLOCK_BYTES);
  }
  constexpr int KEY_SCALES = tile::scale_blocks * tile::keys / 4, OF_STEP = tile::keys / 4;
  if (thread < KEY_SCALES + WIDTH / 4) {  // four scales each
    const int scale_block = thread / OF_STEP, column = (thread - KEY_SCALES) * 4;
    const float* const key = keys.scale(batch, scale_block < keys.scale_blocks ? scale_block : 0,
        number * tile::keys + thread % OF_STEP * 4);
    const float* const value = values.scale(batch, number * tile::keys / PLANE_SCALE_BLOCK, column < values.rows ? column : 0);
    copy_later(stage + tile::key_scales + thread * 16, thread < KEY_SCALES ? key : value, nullptr, true);
  }
}

//@
}  // namespace fusewright
