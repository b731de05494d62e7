// How one operand of a matrix product is split for the tensor cores and packed, at every call.
//
// The surprising fact: float16 is wide enough for float32. Two of them hold 22 bits, and powers of two, which cost nothing
// to undo, bring any row into their range.
//
// Text outside `//@ name` sections only serves a compilation of this file alone.
#pragma once
#include "kernels/pointwise/cuda/map.cuh"
#include "kernels/rowwise/cuda/rows.cuh"
namespace fusewright {

//@ gemm_operand
// One operand of a product in memory; strides in elements.
struct gemm_operand {
  const float* data;
  long batch_stride, row_stride, depth_stride;
};
struct gemm_shape {
  long batches;
  int rows, columns, depth;
};

//@ halves
// x = hi + lo to 22 bits or more; the first of two values in the low half of the word. An infinity has no rest.
FN float low_half(unsigned both) {
  float x;
  asm("{.reg .b16 low, high; mov.b32 {low, high}, %1; cvt.f32.f16 %0, low;}" : "=f"(x) : "r"(both));
  return x;
}
FN float high_half(unsigned both) {
  float x;
  asm("{.reg .b16 low, high; mov.b32 {low, high}, %1; cvt.f32.f16 %0, high;}" : "=f"(x) : "r"(both));
  return x;
}
FN unsigned two_halves(float x, float y) {
  unsigned both;
  asm("cvt.rn.f16x2.f32 %0, %2, %1;" : "=r"(both) : "f"(x), "f"(y));
  return both;
}
// LIFT: what lo is multiplied by, so that it keeps its bits where x is small.
template <int LIFT = 1> FN void split_in_two(float x, float y, unsigned& hi, unsigned& lo) {
  hi = two_halves(x, y);
  lo = two_halves((x - low_half(hi)) * LIFT, (y - high_half(hi)) * LIFT);
}
// The power of two that brings a maximum into [2^14, 2^15), and its inverse: float16 then neither overflows nor loses
// bits of the large elements. Both are normal numbers for every maximum.
FN void power_of_two(float maximum, float& scale, float& inverse) {
  const unsigned bits = __float_as_uint(maximum) >> 23;
  const unsigned exponent = bits < 15 ? 15 : bits > 254 ? 254 : bits;
  scale = __uint_as_float((268 - exponent) << 23);
  inverse = __uint_as_float((exponent - 14) << 23);
}

//@ with_dropped_bits
// A tensor core drops what does not fit into the 24 bits of a sum, towards zero, at each 16 k. A sum of 64 k or more comes out
// 9e-8 of itself too small on average, whatever its sign, and that would add up in sums of such sums. One unit in
// the last place more is 8.6e-8 on average. Infinities and NaN stay. Of a sum of few products, little is dropped.
constexpr int SHORT_DEPTH = 24;
FN float with_dropped_bits(float x) { return fmaf(x, 0x1p-24f, x); }

//@ full_rows: needs with_dropped_bits
// Sums lose such bits where both operands have more of them than one float16 holds. The largest element stands for all of a row:
// one of whole numbers, or of zeros and ones, has few bits. The inverse scale of a full row is 1.2e-7 of itself larger, which
// its last bit is: so sums get back what they lost, and a little more.
constexpr unsigned BEYOND_HALF = 0x1fff;
FN bool is_full(unsigned most) { return (most & BEYOND_HALF) != 0; }
FN float marked_scale(float inverse, float most, int depth) {
  const bool full = depth > SHORT_DEPTH && is_full(__float_as_uint(most));
  return __uint_as_float(__float_as_uint(inverse) | (full ? 1u : 0u));
}
FN bool marks_full(float scale) { return __float_as_uint(scale) & 1; }
FN float plain_scale(float scale) { return __uint_as_float(__float_as_uint(scale) & 0x7ffffffe); }

//@ k_blocks: needs halves
// A k block: 32 k of a row. In float32 it takes 128 bytes, and split just as many: 32 hi and 32 lo, in 16-byte chunks that are
// permuted as the tensor core's 128-byte swizzle wants them. Within 16 k the order is that in which `ldmatrix` hands out
// float32 rows: 0 4 1 5 2 6 3 7, then 8 12 9 13 10 14 11 15.
constexpr int K_BLOCK = 32, K_BLOCK_BYTES = 128;
// Eight neighbouring k of a row: one chunk of hi, one of lo.
template <int LIFT = 1> FN void pack_chunk(const float (&x)[8], unsigned char* row_of_k_block, int row, int chunk) {
  uint4 hi, lo;
  split_in_two<LIFT>(x[0], x[4], hi.x, lo.x);
  split_in_two<LIFT>(x[1], x[5], hi.y, lo.y);
  split_in_two<LIFT>(x[2], x[6], hi.z, lo.z);
  split_in_two<LIFT>(x[3], x[7], hi.w, lo.w);
  *reinterpret_cast<uint4*>(row_of_k_block + ((chunk ^ (row & 7)) << 4)) = hi;
  *reinterpret_cast<uint4*>(row_of_k_block + (((chunk + 4) ^ (row & 7)) << 4)) = lo;
}

//@ pack: needs gemm_operand, k_blocks, full_rows, next_kernel, device_scope, grid, aligned
// A packed operand: split k blocks, [batch][k block][row][128 bytes], with rows filled up to a multiple of 64 by zeros.
//
// Behind all k blocks stands one inverse scale per row, with a mark where the row is full. A row in which some 64 k are smaller
// than 2^-12 of its largest element is uneven: float16 has no room for both at one scale. It gets a scale for every 64 k,
// undone block by block; their inverses stand behind, [batch][row][scale block], and the row's own inverse scale is -1: nothing
// is left to undo, and the sign tells.
constexpr int K_SCALE_BLOCK = 64, PACK_THREADS = 256;
constexpr float UNEVEN = 1.f / 4096;
struct packed {
  unsigned char* k_blocks;
  float *inverse, *scale_blocks;
  long batches;
  int rows, depth_k_blocks, depth_scale_blocks;  // rows: filled up
  unsigned* zeroed;                    // `zeroes` numbers that packing sets to 0 on its way
  int zeroes;
  bool quads;  // of 16 rows, the order in which four that are neighbours meet in one lane of the tensor core's result
  FN int source(int row) const {
    return quads ? (row & ~15) | (row & 6) << 1 | (row & 8) >> 2 | (row & 1) : row;
  }
  FN long first_inverse(long batch, int row) const { return (batches > 1 ? batch * rows : 0) + row; }
  FN unsigned char* k_block(long batch, int number, int row) const {
    return k_blocks + ((batches > 1 ? batch * depth_k_blocks + number : number) * rows + row) * K_BLOCK_BYTES;
  }
  FN float* scale_block(long batch, int row, int number) const {
    return scale_blocks + first_inverse(batch, row) * depth_scale_blocks + number;
  }
  // What a sum over one scale block has to be multiplied by, before the row's inverse scale.
  FN float undo_scale_block(long batch, int row, int number) const {
    return __ldg(inverse + first_inverse(batch, row)) < 0 ? __ldg(scale_block(batch, row, number)) : 1.f;
  }
};
FN void set_zeros(const packed& to, int threads) {
  for (int i = threadIdx.x; block_index() == 0 && i < to.zeroes; i += threads) to.zeroed[i] = 0;
}
// The largest size in a row, and the largest size in its smallest scale block that is not all zeros.
struct row_sizes {
  float most = 0, least = 3.4e38f;
  FN void add_scale_block(float size) {
    most = fmaxf(most, size);
    least = size > 0 ? fminf(least, size) : least;
  }
  FN void add(row_sizes other) { most = fmaxf(most, other.most), least = fminf(least, other.least); }
  FN bool uneven() const { return least < most * UNEVEN; }
};
FN float largest_size(const float (&x)[8]) {
  float most = 0;
#pragma unroll
  for (int j = 0; j < 8; ++j) most = fmaxf(most, fabsf(x[j]));
  return most;
}
// One block, or a warp, packs one row whose k are neighbours, eight to a thread; the second reading comes from L1 or L2.
template <bool VECTORS>
__global__ void __launch_bounds__(PACK_THREADS) pack_rows(const gemm_operand from, int rows, int depth, packed to, int threads) {
  let_next_kernel_start();
  set_zeros(to, PACK_THREADS);
  const long number = block_index() * (PACK_THREADS / threads) + threadIdx.x / threads, batch = number / to.rows;
  const int row = int(number % to.rows), end = to.depth_k_blocks * K_BLOCK, member = threadIdx.x % threads;
  if (batch >= to.batches) return;
  const bool filled = to.source(row) >= rows;
  const float* const source = from.data + batch * from.batch_stride + to.source(row) * from.row_stride;
  const auto fetch = [&](int k, float (&x)[8]) {
    if (VECTORS && !filled && k + 8 <= depth) {
      memcpy(x, __builtin_assume_aligned(source + k, 16), sizeof(x));
    } else {
#pragma unroll
      for (int j = 0; j < 8; ++j) x[j] = !filled && k + j < depth ? source[(k + j) * from.depth_stride] : 0.f;
    }
  };
  const auto largest_of_scale_block = [&](const float (&x)[8]) {
    float most = largest_size(x);
#pragma unroll
    for (int distance = 4; distance > 0; distance /= 2) most = fmaxf(most, __shfl_xor_sync(~0u, most, distance));
    return most;
  };
  __shared__ row_sizes parts[PACK_THREADS / 32];
  row_sizes sizes;
  for (int first = 0; first < end; first += threads * 8) {
    float x[8];
    fetch(first + member * 8, x);
    sizes.add_scale_block(largest_of_scale_block(x));
  }
#pragma unroll
  for (int distance = 16; distance > 4; distance /= 2)
    sizes.add({__shfl_xor_sync(~0u, sizes.most, distance), __shfl_xor_sync(~0u, sizes.least, distance)});
  if (threads > 32) {
    if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = sizes;
    __syncthreads();
#pragma unroll
    for (int part = 0; part < PACK_THREADS / 32; ++part) sizes.add(parts[part]);
  }
  const bool uneven = sizes.uneven();
  float scale, inverse;
  power_of_two(sizes.most, scale, inverse);
  if (member == 0) to.inverse[to.first_inverse(batch, row)] = marked_scale(uneven ? -1.f : inverse, sizes.most, depth);
  for (int first = 0; first < end; first += threads * 8) {
    const int k = first + member * 8;
    float x[8];
    fetch(k, x);
    if (uneven) {
      power_of_two(largest_of_scale_block(x), scale, inverse);
      if (member % 8 == 0 && k < end) *to.scale_block(batch, row, k / K_SCALE_BLOCK) = inverse;
    }
#pragma unroll
    for (int j = 0; j < 8; ++j) x[j] *= scale;
    if (k < end) pack_chunk(x, to.k_block(batch, k / K_BLOCK, row), row, k % K_BLOCK / 8);
  }
}
// A block packs 32 neighbouring rows of an operand whose rows are neighbours in memory, a row for each lane. A warp takes
// K_SCALE_BLOCK k of them at a time, and has those it read last still in its registers when it begins to write. There are no
// more `warps` than that takes, so a processor has as many loads in flight where rows are short. A k block of all rows goes
// through shared memory, so that whole lines are stored.
constexpr int COLUMN_WARPS = 8, COLUMN_ROWS = 32;
__global__ void __launch_bounds__(COLUMN_WARPS * 32)
    pack_columns(const gemm_operand from, int rows, int depth, packed to, int warps) {
  let_next_kernel_start();
  set_zeros(to, warps * 32);
  __shared__ row_sizes parts[COLUMN_WARPS][COLUMN_ROWS];
  __shared__ uint4 lines[COLUMN_WARPS][COLUMN_ROWS * K_BLOCK_BYTES / 16];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, groups = to.rows / 32;
  const long batch = block_index() / groups;
  if (batch >= to.batches) return;
  const int row = int(block_index() % groups) * 32 + lane, own = to.source(row);
  const float* const source = from.data + batch * from.batch_stride + own * from.row_stride;
  float x[K_SCALE_BLOCK];
  const auto fetch = [&](int scale_block) {
    const int left = own < rows ? depth - scale_block * K_SCALE_BLOCK : 0;
#pragma unroll
    for (int j = 0; j < K_SCALE_BLOCK; ++j) x[j] = j < left ? source[(scale_block * K_SCALE_BLOCK + j) * from.depth_stride] : 0.f;
  };
  const auto largest = [&] {
    float most = 0;
#pragma unroll
    for (int j = 0; j < K_SCALE_BLOCK; ++j) most = fmaxf(most, fabsf(x[j]));
    return most;
  };
  row_sizes sizes;
  int scale_block = warp;
#pragma unroll 1
  for (; scale_block < to.depth_scale_blocks; scale_block += warps) {
    fetch(scale_block);
    sizes.add_scale_block(largest());
  }
  parts[warp][lane] = sizes;
  __syncthreads();
  for (int part = 0; part < warps; ++part) sizes.add(parts[part][lane]);
  const bool uneven = sizes.uneven();
  float scale, inverse;
  power_of_two(sizes.most, scale, inverse);
  if (warp == 0) to.inverse[to.first_inverse(batch, row)] = marked_scale(uneven ? -1.f : inverse, sizes.most, depth);
  const int last = scale_block - warps;
#pragma unroll 1
  for (scale_block = last; scale_block >= 0; scale_block -= warps) {
    if (scale_block != last) fetch(scale_block);
    if (uneven) {
      power_of_two(largest(), scale, inverse);
      *to.scale_block(batch, row, scale_block) = inverse;
    }
#pragma unroll
    for (int u = 0; u < K_SCALE_BLOCK / K_BLOCK; ++u) {
      const int k_block = scale_block * (K_SCALE_BLOCK / K_BLOCK) + u;
      if (k_block >= to.depth_k_blocks) break;
      __syncwarp();
#pragma unroll
      for (int chunk = 0; chunk < K_BLOCK / 8; ++chunk) {
        float eight[8];
#pragma unroll
        for (int j = 0; j < 8; ++j) eight[j] = x[u * K_BLOCK + chunk * 8 + j] * scale;
        pack_chunk(eight, reinterpret_cast<unsigned char*>(lines[warp]) + lane * K_BLOCK_BYTES, row, chunk);
      }
      __syncwarp();
      uint4* const there = reinterpret_cast<uint4*>(to.k_block(batch, k_block, row - lane));
#pragma unroll
      for (int i = lane; i < COLUMN_ROWS * K_BLOCK_BYTES / 16; i += 32) there[i] = lines[warp][i];
    }
  }
}
#ifndef __CUDACC_RTC__
constexpr int PACK_ROWS = 64, FEW_K = 256, MANY_ROWS = 4096;  // short rows have a warp each
// Where the packed form lies in `workspace`, with room for batches * (rows filled up) times
// depth_k_blocks * 128 + 4 + depth_scale_blocks * 4 bytes.
inline packed packed_in(void* workspace, const gemm_operand& from, long batches, int rows, int depth) {
  packed to{static_cast<unsigned char*>(workspace), nullptr, nullptr, from.batch_stride == 0 ? 1 : batches,
            (rows + PACK_ROWS - 1) / PACK_ROWS * PACK_ROWS, (depth + K_BLOCK - 1) / K_BLOCK,
                (depth + K_SCALE_BLOCK - 1) / K_SCALE_BLOCK, nullptr, 0};
  to.inverse = reinterpret_cast<float*>(to.k_blocks + to.batches * to.depth_k_blocks * to.rows * K_BLOCK_BYTES);
  to.scale_blocks = to.inverse + to.batches * to.rows;
  return to;
}
inline int pack(const gemm_operand& from, int rows, int depth, const packed& to, cudaStream_t stream) {
  if (from.depth_stride != 1) {
    const int warps = to.depth_scale_blocks < COLUMN_WARPS ? to.depth_scale_blocks : COLUMN_WARPS;
    pack_columns<<<grid_of(to.rows / 32 * to.batches), warps * 32, 0, stream>>>(from, rows, depth, to, warps);
    return cudaGetLastError();
  }
  const bool vectors = from.row_stride % 4 == 0 && from.batch_stride % 4 == 0 && aligned<4>(from.data);
  const long all = to.rows * to.batches;
  const int threads = depth <= FEW_K || (depth <= 4 * FEW_K && all > MANY_ROWS) ? 32 : PACK_THREADS;
  const dim3 grid = grid_of(all / (PACK_THREADS / threads));
  if (vectors)
    pack_rows<true><<<grid, PACK_THREADS, 0, stream>>>(from, rows, depth, to, threads);
  else
    pack_rows<false><<<grid, PACK_THREADS, 0, stream>>>(from, rows, depth, to, threads);
  return cudaGetLastError();
}
#endif

//@
}  // namespace fusewright
