// Matrix products on Ampere (sm_80) that write nothing but their result: one launch, both operands split on the fly.
//
// Tiles, warps and the order of additions are those of gemm_sm80.cuh, but both operands come as float32. While a k block is
// multiplied, the next one is split where it lies in shared memory, each row by one thread: 128 bytes of float32 become 64
// of hi and 64 of lo. Half of the warps split before they multiply, the others after it, so that somebody always feeds the
// tensor cores. If each warp split what it multiplies, three times as many rows would be split.
//
// The surprising fact: a row that always has the same thread can keep its power of two. It holds as long as the largest of
// 32 k stays within 2^12 .. 2^16, so the sums of many k blocks have one scale, and nothing is undone before they leave
// `promoted`. Where a row leaves that range, all warps empty `promoted` first; so no range of numbers is too wide, only slower.
//
// Text outside `//@ name` sections only serves a compilation of this file alone.
#pragma once
#include "kernels/tensor_core/cuda/tile_sm80.cuh"
namespace fusewright {

//@ both_copier: needs tile_order, gemm_operand, anew, copies
// What one thread copies of each k block, one after the other: chunk threadIdx.x % 8 of rows threadIdx.x / 8, + 32, ... of
// both operands. A row behind the last one is that row once more; a chunk behind the last k becomes zeros.
template <int WIDTH> struct both_copier {
  const gemm_operand &split, &wide;
  const float *split_from, *wide_from;
  int split_last, wide_last, left;  // the last row from here on; how many k there are
  FN both_copier(const gemm_operand& split, int split_rows, const gemm_operand& wide, int wide_rows, int depth, tiles::place at)
      : split(split), wide(wide) {
    const int row = threadIdx.x / 8, k = threadIdx.x % 8 * 4;
    const int first = at.row * tile<WIDTH>::split_rows + row, first_wide = at.column * WIDTH + row;
    const int start = min(first, split_rows - 1), start_wide = min(first_wide, wide_rows - 1);
    split_last = split_rows - 1 - start;
    wide_last = wide_rows - 1 - start_wide;
    left = depth - k;
    split_from = split.data + at.batch * split.batch_stride + start * split.row_stride + k;
    wide_from = wide.data + at.batch * wide.batch_stride + start_wide * wide.row_stride + k;
  }
  FN void copy_row(unsigned to, const float* from, const gemm_operand& f, unsigned rows) const {
    const float* const row = from + rows * static_cast<unsigned long>(f.row_stride);
    copy_later(to, row, row, left > 0);
  }
  FN void copy(unsigned stage) {
    asm volatile("" : "+r"(split_last), "+r"(wide_last));  // or the compiler keeps all rows' distances in registers
    const int thread = thread_anew(), row = thread / 8, chunk = thread % 8;
    const unsigned to = stage + row * K_BLOCK_BYTES + ((chunk ^ (row & 7)) << 4);
#pragma unroll
    for (int i = 0; i < tile<WIDTH>::split_rows; i += 32)
      copy_row(to + i * K_BLOCK_BYTES, split_from, split, min(i, split_last));
#pragma unroll
    for (int i = 0; i < WIDTH; i += 32)
      copy_row(to + tile<WIDTH>::split_bytes + i * K_BLOCK_BYTES, wide_from, wide, min(i, wide_last));
    split_from += K_BLOCK;
    wide_from += K_BLOCK;
    left -= K_BLOCK;
  }
};

//@ split_in_place: needs tile_order, k_blocks, anew
// The largest size of 32 k of a row, scaled, lies between these, or the row gets another scale.
constexpr float SMALLEST = 4096, LARGEST = 65504;
// Both scales cannot be undone at once: their product may be out of range where the result is not. One is undone before the
// other, and 2^10 of it after: so even the sums of subnormal rows keep their bits in between. The sums of rows beyond 2^90
// may overflow there; what is not finite is computed again by `fixup`.
constexpr float LESS = 1024, MORE = 1.f / 1024;
// True if the row of a k block needs another scale. A NaN shows up in the result whatever the scale.
FN bool split_row(unsigned char* at, int twist, float& kept) {
  float x[4][8], most = 0, scale = kept, inverse;
#pragma unroll
  for (int i = 0; i < 8; ++i)
    *reinterpret_cast<float4*>(&x[i / 2][i % 2 * 4]) = *reinterpret_cast<const float4*>(at + ((i ^ twist) << 4));
#pragma unroll
  for (int k = 0; k < 32; ++k) most = fmaxf(most, fabsf(x[k / 8][k % 8]));
  const float size = most * scale;
  bool changed = false;
  if (!(size <= LARGEST) || (size < SMALLEST && most > 0)) {
    power_of_two(most, scale, inverse);
    changed = scale != kept;
    kept = scale;
  }
#pragma unroll
  for (int chunk = 0; chunk < 4; ++chunk) {
#pragma unroll
    for (int k = 0; k < 8; ++k) x[chunk][k] *= scale;
    pack_chunk(x[chunk], at, twist, chunk);
  }
  return changed;
}
// All rows of a stage. Behind the stages stand the scale of each row, and what undoes the one that sums in `promoted` have.
template <int WIDTH> struct splitter {
  static constexpr int rows = tile<WIDTH>::split_rows + WIDTH, shared_bytes = tile<WIDTH>::shared_bytes + rows * 8;
  float *scales, *undo;
  FN explicit splitter(unsigned char* shared)
      : scales(reinterpret_cast<float*>(shared + tile<WIDTH>::shared_bytes)), undo(scales + rows) {
    mine([&](int row) { scales[row] = 1; });
  }
  template <class Work> static FN void mine(const Work& work) {
    const int thread = thread_anew();
#pragma unroll
    for (int first = 0; first < rows; first += GEMM_THREADS)
      if (thread + first < rows) work(thread + first);
  }
  FN bool split(unsigned char* stage) const {
    bool changed = false;
    mine([&](int row) { changed |= split_row(stage + row * K_BLOCK_BYTES, row & 7, scales[row]); });
    return changed;
  }
  // From now on `promoted` has the scales of now. The exponents of a power of two and of its inverse come to 254.
  FN void publish() const {
    mine([&](int row) {
      const float inverse = __uint_as_float((254u << 23) - __float_as_uint(scales[row]));
      undo[row] = inverse * (row < tile<WIDTH>::split_rows ? LESS : MORE);
    });
  }
};

//@ multiply_halves: needs part_of_tile, mma_sync, matrix_places, anew
// COUNT times 16 rows, both groups of 16 k; `address` of hi, and of lo four chunks further.
template <int COUNT> FN void load_halves(unsigned (&to)[COUNT][2][4], unsigned address) {
#pragma unroll
  for (int i = 0; i < COUNT * 2; ++i) load_matrices(to[i / 2][i % 2], (address ^ (i % 2 * 32)) + i / 2 * 16 * K_BLOCK_BYTES);
}
// One of the three products of a few pairs of 8 columns. The sums take turns, since each waits for its own last step.
template <int PAIRS>
FN void multiply_term(float (&acc)[PAIRS][2][2][4], const unsigned (&rows)[2][2][4], const unsigned (&wide)[PAIRS][2][4]) {
#pragma unroll
  for (int j = 0; j < 2; ++j)
#pragma unroll
    for (int i = 0; i < PAIRS * 4; ++i) {
      const unsigned (&other)[4] = wide[i / 4][j];
      multiply(acc[i / 4][i / 2 % 2][i % 2], rows[i / 2 % 2][j], other[i % 2 * 2], other[i % 2 * 2 + 1]);
    }
}
template <int WIDTH> FN void multiply_halves(part_of_tile<WIDTH>& promoted, unsigned split, unsigned wide) {
  constexpr int PAIRS = tile<WIDTH>::pairs, GROUP = PAIRS % 2 ? PAIRS : 2, LO = 64;
  unsigned lo[2][2][4], hi[2][2][4], wide_hi[GROUP][2][4], wide_lo[GROUP][2][4];
  load_halves(lo, split ^ LO);
  load_halves(wide_hi, wide);
  load_halves(hi, split);
#pragma unroll
  for (int p = 0; p < PAIRS; p += GROUP) {
    float acc[GROUP][2][2][4] = {};
    load_halves(wide_lo, (wide ^ LO) + p * 16 * K_BLOCK_BYTES);
    multiply_term<GROUP>(acc, lo, wide_hi);
    multiply_term<GROUP>(acc, hi, wide_lo);
    multiply_term<GROUP>(acc, hi, wide_hi);
    __syncwarp();  // nobody waits here; it keeps the compiler from loading all pairs at once, into registers it lacks
    if (p + GROUP < PAIRS) load_halves(wide_hi, wide + (p + GROUP) * 16 * K_BLOCK_BYTES);
#pragma unroll
    for (int i = 0; i < GROUP * 16; ++i)
      promoted[p + i / 16][i / 8 % 2][i / 4 % 2][i % 4] += acc[i / 16][i / 8 % 2][i / 4 % 2][i % 4];
  }
}
// What a warp has summed with the scales that `undo` undoes goes into `total`.
template <int WIDTH>
FN void empty_scaled(part_of_tile<WIDTH>& total, part_of_tile<WIDTH>& promoted, const float* undo) {
  const int thread = thread_anew(), lane = thread % 32, warp = thread / 32;
  const float* const rows = undo + warp / tile<WIDTH>::warps_across * WARP_ROWS + lane / 4;
  const float* const columns =
      undo + tile<WIDTH>::split_rows + warp % tile<WIDTH>::warps_across * tile<WIDTH>::warp_columns + lane % 4 * 2;
#pragma unroll
  for (int p = 0; p < tile<WIDTH>::pairs; ++p)
#pragma unroll
    for (int i = 0; i < 16; ++i) {
      const float sum = promoted[p][i / 8][i / 4 % 2][i % 4] * rows[i / 8 * 16 + i / 2 % 2 * 8];
      float& all = total[p][i / 8][i / 4 % 2][i % 4];
      all = fmaf(sum, columns[p * 16 + i / 4 % 2 * 8 + i % 2], all);
    }
  clear<WIDTH>(promoted);
}

//@ stream_both: needs both_copier, split_in_place, multiply_halves
// All k blocks of a tile: one is multiplied, the next one split, and the others are on their way.
template <int WIDTH>
FN void stream_both(part_of_tile<WIDTH>& total, both_copier<WIDTH>& copies, int k_blocks, unsigned char* shared) {
  using tile = tile<WIDTH>;
  constexpr int PREFETCHED = tile::stages - 1, END = tile::stages * tile::stage_bytes;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int row = warp / tile::warps_across * WARP_ROWS, column = warp % tile::warps_across * tile::warp_columns;
  const unsigned from = shared_address(shared) + row * K_BLOCK_BYTES + split_halves(lane);
  const unsigned from_wide = shared_address(shared) + tile::split_bytes + column * K_BLOCK_BYTES + wide_halves(lane);
  const splitter<WIDTH> rows(shared);
  part_of_tile<WIDTH> promoted;
  clear<WIDTH>(promoted);
#pragma unroll 1
  for (int k_block = 0; k_block < PREFETCHED; ++k_block) {
    copies.copy(shared_address(shared) + k_block * tile::stage_bytes);
    close_copies();
  }
  wait_copies<PREFETCHED - 1>();
  __syncthreads();
  rows.split(shared);
  rows.publish();
  bool changed = false;
  int stage = 0;
#pragma unroll 1
  for (int rest = k_blocks; rest > 0; --rest) {
    wait_copies<PREFETCHED - 2>();
    // Everybody's copies of the next k block are there, this one is split, and nobody still reads the one before.
    const bool any = __syncthreads_or(changed);
    if (any || rest % SUM_K_BLOCKS == 0) {
      empty_scaled<WIDTH>(total, promoted, rows.undo);
      if (any) {
        __syncthreads();
        rows.publish();
      }
    }
    const int next = stage + tile::stage_bytes < END ? stage + tile::stage_bytes : 0;
    const auto prepare = [&] {
      if (rest > 1) changed = rows.split(shared + next);
      copies.copy(shared_address(shared) + (stage ? stage : END) - tile::stage_bytes);
      close_copies();
    };
    const int turn = __shfl_sync(~0u, thread_anew() / (GEMM_THREADS / 2), 0);  // known to be the same for a warp
    if (turn == 0) prepare();
    multiply_halves<WIDTH>(promoted, from + stage, from_wide + stage);
    if (turn == 1) prepare();
    stage = next;
  }
  __syncthreads();  // the stages are no longer read
  empty_scaled<WIDTH>(total, promoted, rows.undo);
}

//@ run_gemm_unpacked: needs stream_both, tile_out, tiles_of, device_scope, grid, allow_shared
template <int WIDTH, bool SWAPPED, int SEGMENT, int VECTOR, class Body>
__global__ void __launch_bounds__(GEMM_THREADS, 1)
    gemm_unpacked_kernel(const __grid_constant__ Body body, const __grid_constant__ gemm_operand left,
                          const __grid_constant__ gemm_operand right, const __grid_constant__ gemm_shape shape,
                          const tiles_of<Body> all) {
  using tile = tile<WIDTH>;
  extern __shared__ __align__(128) unsigned char shared[];
  if (block_index() >= all.count || all.template blanks<SWAPPED, VECTOR>(body, shape)) return;
  part_of_tile<WIDTH> total;
  clear<WIDTH>(total);
  {
    const gemm_operand &split = SWAPPED ? right : left, &wide = SWAPPED ? left : right;
    const int split_rows = SWAPPED ? shape.columns : shape.rows, wide_rows = SWAPPED ? shape.rows : shape.columns;
    both_copier<WIDTH> copies(split, split_rows, wide, wide_rows, shape.depth, all.at(block_index()));
    stream_both<WIDTH>(total, copies, (shape.depth + K_BLOCK - 1) / K_BLOCK, shared);
  }
  const auto unscaled = [](int) { return make_float2(1, 1); };
  const tiles::place at = all.at(block_anew());
  tile_out<tile, SWAPPED, SEGMENT, VECTOR>(body, total, unscaled, WIDTH, at, left, right, shape, shared);
}
#ifdef __CUDACC_RTC__
template <int WIDTH, bool SWAPPED, int SEGMENT, int VECTOR, class Body>
FN int run_gemm_unpacked(const Body&, gemm_operand, gemm_operand, long, long, long, long, int, void*) {
  return &gemm_unpacked_kernel<WIDTH, SWAPPED, SEGMENT, VECTOR, Body> == nullptr;
}
#else
template <int WIDTH, bool SWAPPED, int SEGMENT, int VECTOR, class Body>
int run_gemm_unpacked(const Body& body, gemm_operand left, gemm_operand right, long batches, long rows, long columns, long depth,
                       int device, void* stream) {
  if (batches <= 0 || rows <= 0 || columns <= 0) return 0;
  const device_scope scope(device);
  constexpr auto kernel = gemm_unpacked_kernel<WIDTH, SWAPPED, SEGMENT, VECTOR, Body>;
  constexpr int bytes = splitter<WIDTH>::shared_bytes, split_rows = tile<WIDTH>::split_rows;
  if (int error = allow_shared<kernel>(bytes, device)) return error;
  const int down = int(((SWAPPED ? columns : rows) + split_rows - 1) / split_rows);
  const int across = int(((SWAPPED ? rows : columns) + WIDTH - 1) / WIDTH);
  const auto all = tiles_of<Body>::of({down, across, batches * down * across}, split_rows, WIDTH, SWAPPED);
  const gemm_shape shape{batches, int(rows), int(columns), int(depth)};
  kernel<<<grid_of(all.count), GEMM_THREADS, bytes, static_cast<cudaStream_t>(stream)>>>(body, left, right, shape, all);
  return cudaGetLastError();
}
#endif

//@
}  // namespace fusewright
