// Matrix products on Ampere (sm_80), and through its PTX on whatever came later: cp.async, ldmatrix, mma.sync.
//
// A block of eight warps makes one tile, some rows of the float32 `split` operand times WIDTH rows of the `packed` one:
// 128 x 64, 128 x 128, 64 x 192 or 64 x 256. Four to six k blocks of 32 k are on their way into shared memory. A warp has 32
// rows of the tile: for each k block it splits them in registers, then takes the packed rows sixteen at a time. First the
// two products with a low half, then the product of the high halves, so that the truncation step of the tensor core is
// small for two thirds of the work.
//
// The surprising fact: the order of additions matters more than the splitting. Ampere's tensor core truncates twice per
// 16 k, so a sum leaves it every 32 k, for `promoted`. At 16384 k that alone would be 512 additions in a row, whose
// roundings add up to more than the splitting loses; so `promoted` is emptied into `total` every SUM_K_BLOCKS k blocks.
//
// Text outside `//@ name` sections only serves a compilation of this file alone.
#pragma once
#include "kernels/tensor_core/cuda/tile_sm80.cuh"
namespace fusewright {

//@ copier: needs tile_order, gemm_operand, pack, anew, copies
// What one thread copies of each k block: chunk threadIdx.x % 8 of rows threadIdx.x / 8, + 32, ... of both operands. Rows of
// the split operand get the permutation that those of the packed one already have. No register is free in the loop, so
// most of this is worked out for every k block, and which rows exist is kept in bits: the packed operand's from bit 8 on.
template <int WIDTH> struct copier {
  const gemm_operand& from;
  const packed& other;
  const int& depth;
  const float* split;
  const unsigned char* k_blocks;
  unsigned exists;
  FN copier(const gemm_operand& from, int from_rows, const int& depth, const packed& other, tiles::place at)
      : from(from), other(other), depth(depth) {
    const int row = threadIdx.x / 8, chunk = threadIdx.x % 8;
    const int first = at.row * tile<WIDTH>::split_rows + row, first_packed = at.column * WIDTH + row;
    split = from.data + at.batch * from.batch_stride + first * from.row_stride + chunk * 4;
    k_blocks = other.k_block(at.batch, 0, first_packed) + chunk * 16;
    exists = 0;
#pragma unroll
    for (int i = 0; i < 8; ++i)
      exists |= unsigned(first + i * 32 < from_rows) << i | unsigned(first_packed + i * 32 < other.rows) << (i + 8);
  }
  FN void copy(int k_block, unsigned stage) const {
    const int thread = thread_anew(), row = thread / 8, chunk = thread % 8;
    const unsigned there = k_block * K_BLOCK + chunk * 4 < depth ? exists : exists & ~255u;
    const unsigned to = stage + row * K_BLOCK_BYTES + ((chunk ^ (row & 7)) << 4);
#pragma unroll
    for (int i = 0; i < tile<WIDTH>::split_rows / 32; ++i)
      copy_later(to + i * 32 * K_BLOCK_BYTES, split + k_block * K_BLOCK + i * 32 * from.row_stride, from.data,
                 there >> i & 1);
    const unsigned to_packed = stage + tile<WIDTH>::split_bytes + thread * 16;
    const unsigned char* const here = k_blocks + long(k_block) * other.rows * K_BLOCK_BYTES;
#pragma unroll
    for (int i = 0; i < WIDTH / 32; ++i)
      copy_later(to_packed + i * 32 * K_BLOCK_BYTES, here + i * 32 * K_BLOCK_BYTES, other.k_blocks,
                 there >> (i + 8) & 1);
  }
};

//@ multiply_k_block: needs part_of_tile, fragments, matrix_places, pack, anew
// 32 rows x 16 columns x 32 k. The four sums take turns, since each waits for its own last step. `address`: as in
// split_rows, of the pair's hi halves; lo lies four chunks behind.
FN void multiply_pair(float (&promoted)[2][2][4], const fragments (&rows)[2], unsigned address) {
  unsigned hi[2][4], lo[2][4];
#pragma unroll
  for (int j = 0; j < 2; ++j) {
    load_matrices(hi[j], address ^ (j * 32));
    load_matrices(lo[j], address ^ (j * 32 + 64));
  }
  float acc[2][2][4] = {};
#pragma unroll
  for (int step = 0; step < 6; ++step) {
    const int term = step / 2, j = step % 2;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const fragments& f = rows[i / 2];
      const unsigned (&other)[4] = term == 1 ? lo[j] : hi[j];
      multiply(acc[i / 2][i % 2], term == 0 ? f.lo[j] : f.hi[j], other[i % 2 * 2], other[i % 2 * 2 + 1]);
    }
  }
#pragma unroll
  for (int i = 0; i < 16; ++i) {
    float& sum = promoted[i / 8][i / 4 % 2][i % 4];
    sum = fmaf(acc[i / 8][i / 4 % 2][i % 4], rows[i / 8].undo[i / 2 % 2], sum);
  }
}
template <int WIDTH> FN void multiply_k_block(part_of_tile<WIDTH>& promoted, unsigned split, unsigned packed) {
  fragments rows[2];
  split_rows(rows[0], split);
  split_rows(rows[1], split + 16 * K_BLOCK_BYTES);
#pragma unroll
  for (int p = 0; p < tile<WIDTH>::pairs; ++p) {
    __syncwarp();  // nobody waits here; it keeps the compiler from loading all pairs at once, into registers it lacks
    multiply_pair(promoted[p], rows, packed + p * 16 * K_BLOCK_BYTES);
  }
}
// The same where packed rows have a scale of their own for every 64 k: the sums of a k block go into `total` one by one.
template <int WIDTH>
FN void multiply_uneven_k_block(part_of_tile<WIDTH>& total, unsigned split, unsigned packed, const struct packed& other,
                             const tiles& all, int k_block) {
  part_of_tile<WIDTH> sums;
  clear<WIDTH>(sums);
  multiply_k_block<WIDTH>(sums, split, packed);
  const tiles::place at = all.at(block_anew());
  const int thread = thread_anew(), lane = thread % 32, warp = thread / 32;
  const int first = at.column * WIDTH + warp % tile<WIDTH>::warps_across * tile<WIDTH>::warp_columns + lane % 4 * 2;
#pragma unroll
  for (int p = 0; p < tile<WIDTH>::pairs; ++p)
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int row = first + p * 16 + i / 2 * 8 + i % 2;
      const float undo = row < other.rows ? other.undo_scale_block(at.batch, row, k_block / 2) : 0.f;
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        float& sum = total[p][k / 2][i / 2][k % 2 * 2 + i % 2];
        sum = fmaf(sums[p][k / 2][i / 2][k % 2 * 2 + i % 2], undo, sum);
      }
    }
}

//@ multiply_tile: needs multiply_k_block, copier, stream_k_blocks
// All k of one tile; a warp's part of it ends in `total`.
template <int WIDTH, bool UNEVEN>
FN void multiply_tile(part_of_tile<WIDTH>& total, const copier<WIDTH>& copies, const struct packed& other,
                      const tiles& all, unsigned stages) {
  using tile = tile<WIDTH>;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int first_row = warp / tile::warps_across * WARP_ROWS, first_column = warp % tile::warps_across * tile::warp_columns;
  const unsigned split = first_row * K_BLOCK_BYTES + split_halves(lane);
  const unsigned packed = tile::split_bytes + first_column * K_BLOCK_BYTES + wide_halves(lane);
  part_of_tile<WIDTH> promoted;
  clear<WIDTH>(total);
  clear<WIDTH>(promoted);
  stream_k_blocks<tile>(copies, other.depth_k_blocks, stages, [&](int k_block, unsigned stage) {
    if constexpr (UNEVEN)
      multiply_uneven_k_block<WIDTH>(total, stage + split, stage + packed, other, all, k_block);
    else
      multiply_k_block<WIDTH>(promoted, stage + split, stage + packed);
    if (k_block % SUM_K_BLOCKS == SUM_K_BLOCKS - 1) empty_into<WIDTH>(total, promoted);
  });
  empty_into<WIDTH>(total, promoted);
}

//@ run_gemm: needs multiply_tile, tile_out, tiles_of, grid, allow_shared
template <int WIDTH, bool SWAPPED, int SEGMENT, int VECTOR, class Body>
__global__ void __launch_bounds__(GEMM_THREADS, 1)
    gemm_kernel(const __grid_constant__ Body body, const __grid_constant__ gemm_operand left,
                   const __grid_constant__ gemm_operand right, const __grid_constant__ gemm_shape shape,
                   const __grid_constant__ packed other, const tiles_of<Body> all) {
  extern __shared__ __align__(128) unsigned char shared[];
  if (block_index() >= all.count || all.template blanks<SWAPPED, VECTOR>(body, shape)) return;
  part_of_tile<WIDTH> total;
  {
    const unsigned stages = shared_address(shared);
    const int split_rows = SWAPPED ? shape.columns : shape.rows;
    const tiles::place at = all.at(block_index());
    const copier<WIDTH> copies(SWAPPED ? right : left, split_rows, shape.depth, other, at);
    const int row = at.column * WIDTH + threadIdx.x;
    const bool mine = threadIdx.x < WIDTH && row < other.rows && other.inverse[other.first_inverse(at.batch, row)] < 0;
    if (__syncthreads_or(mine))
      multiply_tile<WIDTH, true>(total, copies, other, all, stages);
    else
      multiply_tile<WIDTH, false>(total, copies, other, all, stages);
  }
  const tiles::place at = all.at(block_anew());
  const int packed_row = at.column * WIDTH;
  const float* const inverse = other.inverse + other.first_inverse(at.batch, packed_row);
  const auto scale_of = [&](int column) {
    const float2 given = __ldg(reinterpret_cast<const float2*>(inverse + column));
    return make_float2(plain_scale(given.x), plain_scale(given.y));  // negative: an uneven row's
  };
  tile_out<tile<WIDTH>, SWAPPED, SEGMENT, VECTOR>(body, total, scale_of, other.rows - packed_row, at, left, right, shape, shared);
}
#ifdef __CUDACC_RTC__
template <int WIDTH, bool SWAPPED, int SEGMENT, int VECTOR, class Body>
FN int run_gemm(const Body&, gemm_operand, gemm_operand, long, long, long, long, void*, int, void*) {
  return &gemm_kernel<WIDTH, SWAPPED, SEGMENT, VECTOR, Body> == nullptr || &pack_rows<true> == nullptr ||
         &pack_rows<false> == nullptr || &pack_columns == nullptr;
}
#else
template <int WIDTH, bool SWAPPED, int SEGMENT, int VECTOR, class Body>
int run_gemm(const Body& body, gemm_operand left, gemm_operand right, long batches, long rows, long columns, long depth,
                void* workspace, int device, void* stream) {
  if (batches <= 0 || rows <= 0 || columns <= 0) return 0;
  const device_scope scope(device);
  constexpr auto kernel = gemm_kernel<WIDTH, SWAPPED, SEGMENT, VECTOR, Body>;
  constexpr int bytes = tile<WIDTH>::shared_bytes;
  if (int error = allow_shared<kernel>(bytes, device)) return error;
  const gemm_operand& small = SWAPPED ? left : right;
  const int packed_rows = int(SWAPPED ? rows : columns), split_rows = int(SWAPPED ? columns : rows);
  const auto on = static_cast<cudaStream_t>(stream);
  const packed other = packed_in(workspace, small, batches, packed_rows, int(depth));
  if (int error = pack(small, packed_rows, int(depth), other, on)) return error;
  const int down = (split_rows + tile<WIDTH>::split_rows - 1) / tile<WIDTH>::split_rows;
  const int across = (packed_rows + WIDTH - 1) / WIDTH;
  const auto all = tiles_of<Body>::of({down, across, batches * down * across}, tile<WIDTH>::split_rows, WIDTH, SWAPPED);
  const gemm_shape shape{batches, int(rows), int(columns), int(depth)};
  kernel<<<grid_of(all.count), GEMM_THREADS, bytes, on>>>(body, left, right, shape, other, all);
  return cudaGetLastError();
}
#endif

//@
}  // namespace fusewright
