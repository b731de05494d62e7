// Matrix products on Ampere (sm_80) that write nothing but their result: one launch, both factors split on the fly.
//
// Tiles, warps and the order of additions are those of product_sm80.cuh, but both factors come as float32, and every warp
// splits what it multiplies: 32 rows of one factor, then sixteen rows of the other at a time. Each row of 32 k has a power
// of two of its own, on both sides; so no range of numbers is too wide.
//
// The surprising fact: `ldmatrix` serves both sides. It hands a lane one float32 of eight rows at a time, which is one half
// of what mma.sync wants of either factor, in the same order of k. So shared memory holds plain float32, and splitting the
// same rows in four warps costs less than telling the others that they are split.
//
// Text outside `//@ name` sections only serves a compilation of this file alone.
#pragma once
#include "tile_sm80.cuh"
namespace fusewright {

//@ both_copier: needs tile_order, factor, anew, copies
// What one thread copies of each unit: chunk threadIdx.x % 8 of rows threadIdx.x / 8, + 32, ... of both factors. Which rows
// exist is kept in bits: those of the `wide` factor, WIDTH to a tile, from bit 8 on. What does not exist becomes zeros.
template <int WIDTH> struct both_copier {
  const factor &split, &wide;
  const int& depth;
  const float *split_from, *wide_from;
  unsigned exists;
  FN both_copier(const factor& split, int split_rows, const factor& wide, int wide_rows, const int& depth, tiles::place at)
      : split(split), wide(wide), depth(depth) {
    const int row = threadIdx.x / 8, chunk = threadIdx.x % 8;
    const int first = at.row * tile<WIDTH>::split_rows + row, first_wide = at.column * WIDTH + row;
    split_from = split.data + at.batch * split.batch_stride + first * split.row_stride + chunk * 4;
    wide_from = wide.data + at.batch * wide.batch_stride + first_wide * wide.row_stride + chunk * 4;
    exists = 0;
#pragma unroll
    for (int i = 0; i < 8; ++i)
      exists |= unsigned(first + i * 32 < split_rows) << i | unsigned(first_wide + i * 32 < wide_rows) << (i + 8);
  }
  FN void copy(int unit, unsigned stage) const {
    const int thread = thread_anew(), row = thread / 8, chunk = thread % 8;
    const unsigned there = unit * UNIT + chunk * 4 < depth ? exists : 0;
    const unsigned to = stage + row * UNIT_BYTES + ((chunk ^ (row & 7)) << 4);
#pragma unroll
    for (int i = 0; i < tile<WIDTH>::split_rows / 32; ++i)
      copy_later(to + i * 32 * UNIT_BYTES, split_from + unit * UNIT + i * 32 * split.row_stride, split.data,
                 there >> i & 1);
#pragma unroll
    for (int i = 0; i < WIDTH / 32; ++i)
      copy_later(to + tile<WIDTH>::split_bytes + i * 32 * UNIT_BYTES, wide_from + unit * UNIT + i * 32 * wide.row_stride,
                 wide.data, there >> (i + 8) & 1);
  }
};

//@ multiply_both: needs part_of_tile, fragments
// Eight rows and 32 k of the wide factor, as mma.sync wants them: hi and lo of two groups of 16 k.
struct wide_fragments {
  unsigned hi[2][2], lo[2][2];
  float undo[2];  // the inverse scales of rows lane % 4 * 2 and the next: the columns of this lane's sums
};
// Both scales cannot be undone at once: their product may be out of range where the result is not. One is undone before the
// other, and 2^10 of it after: so even the sums of subnormal rows keep their bits in between. The sums of rows beyond 2^96
// may overflow there; what is not finite is computed again by `repair`.
constexpr float LESS = 1024.f, MORE = 1.f / 1024;
// Row lane % 8, and the first of the four chunks that a matrix each is made of.
FN unsigned wide_place(int lane) { return lane % 8 * UNIT_BYTES + ((lane / 8 ^ lane % 8) << 4); }
FN void split_wide_rows(wide_fragments& f, unsigned address) {
  unsigned x[2][4];
#pragma unroll
  for (int j = 0; j < 2; ++j) load_matrices(x[j], address ^ (j * 64));
  float most = fmaxf(fmaxf(larger_size(x[0][0], x[0][1]), larger_size(x[0][2], x[0][3])),
                     fmaxf(larger_size(x[1][0], x[1][1]), larger_size(x[1][2], x[1][3])));
  most = fmaxf(most, __shfl_xor_sync(~0u, most, 1));
  most = fmaxf(most, __shfl_xor_sync(~0u, most, 2));
  float scale, inverse;
  power_of_two(most, scale, inverse);
#pragma unroll
  for (int j = 0; j < 2; ++j)
#pragma unroll
    for (int i = 0; i < 2; ++i) split_pair(x[j][i * 2], x[j][i * 2 + 1], scale, f.hi[j][i], f.lo[j][i]);
  inverse *= MORE;
  const int lane = threadIdx.x % 4 * 8;  // it holds row lane / 4
  f.undo[0] = __shfl_sync(~0u, inverse, lane);
  f.undo[1] = __shfl_sync(~0u, inverse, lane + 4);
}
// 32 rows x 16 columns x 32 k. The four sums take turns, since each waits for its own last step.
FN void multiply_both_pair(float (&master)[2][2][4], const fragments (&rows)[2], unsigned address) {
  wide_fragments wide[2];
  split_wide_rows(wide[0], address);
  split_wide_rows(wide[1], address + 8 * UNIT_BYTES);
  float acc[2][2][4] = {};
#pragma unroll
  for (int step = 0; step < 6; ++step) {
    const int term = step / 2, j = step % 2;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const fragments& f = rows[i / 2];
      const unsigned (&other)[2] = term == 1 ? wide[i % 2].lo[j] : wide[i % 2].hi[j];
      multiply(acc[i / 2][i % 2], term == 0 ? f.lo[j] : f.hi[j], other[0], other[1]);
    }
  }
#pragma unroll
  for (int i = 0; i < 16; ++i) {
    float& sum = master[i / 8][i / 4 % 2][i % 4];
    sum = fmaf(acc[i / 8][i / 4 % 2][i % 4] * rows[i / 8].undo[i / 2 % 2], wide[i / 4 % 2].undo[i % 2], sum);
  }
}
template <int WIDTH> FN void multiply_both(part_of_tile<WIDTH>& master, unsigned split, unsigned wide) {
  fragments rows[2];
#pragma unroll
  for (int slab = 0; slab < 2; ++slab) {
    split_rows(rows[slab], split + slab * 16 * UNIT_BYTES);
    rows[slab].undo[0] *= LESS;
    rows[slab].undo[1] *= LESS;
  }
#pragma unroll
  for (int p = 0; p < tile<WIDTH>::pairs; ++p) {
    __syncwarp();  // nobody waits here; it keeps the compiler from loading all pairs at once, into registers it lacks
    multiply_both_pair(master[p], rows, wide + p * 16 * UNIT_BYTES);
  }
}

//@ run_product_inline: needs both_copier, multiply_both, stream_units, tile_out, device_scope, grid, allow_shared
template <int WIDTH, bool SWAPPED, int SEGMENT, int VECTOR, class Body>
__global__ void __launch_bounds__(PRODUCT_THREADS, 1)
    product_kernel_inline(const __grid_constant__ Body body, const __grid_constant__ factor left,
                          const __grid_constant__ factor right, const __grid_constant__ product_shape shape,
                          const tiles all) {
  using tile = tile<WIDTH>;
  extern __shared__ __align__(128) unsigned char shared[];
  if (block_index() >= all.count) return;
  part_of_tile<WIDTH> total, master;
  clear<WIDTH>(total);
  clear<WIDTH>(master);
  {
    const factor &split = SWAPPED ? right : left, &wide = SWAPPED ? left : right;
    const int split_rows = SWAPPED ? shape.columns : shape.rows, wide_rows = SWAPPED ? shape.rows : shape.columns;
    const both_copier<WIDTH> copies(split, split_rows, wide, wide_rows, shape.depth, all.at(block_index()));
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int row = warp / tile::warps_across * WARP_ROWS, column = warp % tile::warps_across * tile::warp_columns;
    const unsigned from = row * UNIT_BYTES + split_place(lane);
    const unsigned from_wide = tile::split_bytes + column * UNIT_BYTES + wide_place(lane);
    const int units = (shape.depth + UNIT - 1) / UNIT;
    stream_units<tile>(copies, units, shared_address(shared), [&](int unit, unsigned stage) {
      multiply_both<WIDTH>(master, stage + from, stage + from_wide);
      if (unit % SUM_UNITS == SUM_UNITS - 1) empty_into<WIDTH>(total, master);
    });
    empty_into<WIDTH>(total, master);
  }
  const auto unscaled = [](int) { return make_float2(1, 1); };
  const tiles::place at = all.at(block_anew());
  tile_out<WIDTH, SWAPPED, SEGMENT, VECTOR>(body, total, unscaled, WIDTH, at, left, right, shape, shared);
}
#ifdef __CUDACC_RTC__
template <int WIDTH, bool SWAPPED, int SEGMENT, int VECTOR, class Body>
FN int run_product_inline(const Body&, factor, factor, long, long, long, long, int, void*) {
  return &product_kernel_inline<WIDTH, SWAPPED, SEGMENT, VECTOR, Body> == nullptr;
}
#else
template <int WIDTH, bool SWAPPED, int SEGMENT, int VECTOR, class Body>
int run_product_inline(const Body& body, factor left, factor right, long batches, long rows, long columns, long depth,
                       int device, void* stream) {
  if (batches <= 0 || rows <= 0 || columns <= 0) return 0;
  const device_scope scope(device);
  constexpr auto kernel = product_kernel_inline<WIDTH, SWAPPED, SEGMENT, VECTOR, Body>;
  constexpr int bytes = tile<WIDTH>::shared_bytes, split_rows = tile<WIDTH>::split_rows;
  if (int error = allow_shared<kernel>(bytes, device)) return error;
  const int down = int(((SWAPPED ? columns : rows) + split_rows - 1) / split_rows);
  const int across = int(((SWAPPED ? rows : columns) + WIDTH - 1) / WIDTH);
  const tiles all{down, across, batches * down * across};
  const product_shape shape{batches, int(rows), int(columns), int(depth)};
  kernel<<<grid_of(all.count), PRODUCT_THREADS, bytes, static_cast<cudaStream_t>(stream)>>>(body, left, right, shape, all);
  return cudaGetLastError();
}
#endif

//@
}  // namespace fusewright
