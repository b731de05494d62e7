// Matrix products on Hopper (sm_90a): TMA, mbarriers, warp-specialised wgmma, one persistent block per processor.
//
// A block has groups of four warps. Threads of the first keep k blocks of 32 k on their way into shared memory
// (tma_pipeline_sm90.cuh); the two others, or three for narrow tiles, own 64 rows each of a tile. A consumer splits its rows of
// float32 in registers (the `split` operand, the larger one) and multiplies them with the `packed` operand in shared memory,
// 64 k at a time: first the two products with a low half, then the product of the high halves, so that the truncation step
// of the tensor core is small for two thirds of the work. The finished sum is added to `promoted`, undoing the row's power of
// two on the way.
//
// The surprising fact: the consumers take turns. Splitting needs the arithmetic units and multiplying the tensor
// cores, and if all do the same at the same time the tensor cores idle for a sixth of it.
//
// Text outside `//@ name` sections only serves a compilation of this file alone.
#pragma once
#include "devicelib/cuda/instructions_sm80.cuh"
#include "kernels/gemm/cuda/tma_pipeline_sm90.cuh"
namespace fusewright {

//@ fragments: needs halves, load_matrices, full_rows
// A warp's 16 rows of 64 k of the split operand, as wgmma wants them: hi and lo of four groups of 16 k.
struct fragments {
  unsigned hi[4][4], lo[4][4];
  float undo[2];  // the inverse scale of rows lane / 4 and lane / 4 + 8
};
// The copy engine may overwrite what a warp is still reading, even where the values have been used already, unless this
// stands between the reads and the barrier that hands the memory back.
FN void reads_end() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
FN float larger_size(float most, unsigned bits) { return fmaxf(most, fabsf(__uint_as_float(bits))); }
FN void split_pair(unsigned first, unsigned second, float scale, unsigned& hi, unsigned& lo) {
  split_in_two(__uint_as_float(first) * scale, __uint_as_float(second) * scale, hi, lo);
}
// ldmatrix moves a float32 as two halves: the lane gets k = lane % 4 of a 16-byte chunk. The largest size of each row is
// found as a tree, then among the four lanes that hold the row. `address`: of the lane's row, chunk lane / 16; the others
// differ from it by one bit each.
FN unsigned first_chunk(int first_row, int lane) {
  const int row = first_row + lane % 16;
  return row * 128 + ((lane >> 4 ^ (row & 7)) << 4);
}
FN void load_rows(fragments& f, unsigned address, int k_block_bytes) {
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    const unsigned chunk = (address + (j >> 1) * k_block_bytes) ^ (j & 1) << 6;
    load_matrices(f.hi[j], chunk);
    load_matrices(f.lo[j], chunk ^ 32);
  }
}
FN float largest_of_row(const fragments& f, int half) {
  float most[4];
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    const float a = larger_size(fabsf(__uint_as_float(f.hi[j][half])), f.hi[j][half + 2]);
    most[j] = fmaxf(a, larger_size(fabsf(__uint_as_float(f.lo[j][half])), f.lo[j][half + 2]));
  }
  float all = fmaxf(fmaxf(most[0], most[1]), fmaxf(most[2], most[3]));
  all = fmaxf(all, __shfl_xor_sync(~0u, all, 1));
  return fmaxf(all, __shfl_xor_sync(~0u, all, 2));
}
FN void split_row(fragments& f, int half, float scale) {
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    const unsigned a = f.hi[j][half], b = f.hi[j][half + 2], c = f.lo[j][half], d = f.lo[j][half + 2];
    split_pair(a, b, scale, f.hi[j][half], f.lo[j][half]);
    split_pair(c, d, scale, f.hi[j][half + 2], f.lo[j][half + 2]);
  }
}
// Whether one of this lane's rows is full.
FN bool split_rows(fragments& f, unsigned address, int k_block_bytes) {
  unsigned bits = 0;
  load_rows(f, address, k_block_bytes);
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    float scale;
    const float most = largest_of_row(f, half);
    bits |= __float_as_uint(most);
    power_of_two(most, scale, f.undo[half]);
    split_row(f, half, scale);
  }
  return is_full(bits);
}

//@ multiply_quarter: needs wgmma, fragments
// The fragments' 64 rows x 64 packed rows x 64 k into acc; the second 32 k of the packed rows lie FURTHER bytes on.
template <int FURTHER, int SUMS>
FN void multiply_quarter(float (&acc)[SUMS], const fragments& f, unsigned long base) {
  const auto at = [&](int j, int lo) { return base + (unsigned long)(((j >> 1) * FURTHER + (j & 1) * 32 + lo * 64) >> 4); };
  pin(acc);
  multiply_fence();
#pragma unroll
  for (int j = 0; j < 4; ++j) multiply(acc, f.lo[j], at(j, 0), j > 0);
#pragma unroll
  for (int j = 0; j < 4; ++j) multiply(acc, f.hi[j], at(j, 1), true);
#pragma unroll
  for (int j = 0; j < 4; ++j) multiply(acc, f.hi[j], at(j, 0), true);
  multiply_commit();
}

//@ consume: needs k_tile_place, barriers, multiply_quarter, tile_out, tiles_of, full_rows
template <class Body, int ROWS> struct splitting_consumer : consumer<Body, split_operands<ROWS>> {
  const packed& other;
  const float* scales;  // of this tile's packed rows and of the next tile's
};
// Packed rows of a tile can be uneven, with a scale of their own for every 64 k. Those are put into the warp's own part of
// the boxes, which is free as long as sums grow. Rare, so it may take its time.
FN float* scale_blocks_room(float* smem_tiles) { return smem_tiles + (warp_here() - 4) * SMEM_TILE; }
// Behind the last row and step, any number will do. No lane may take a branch of its own here.
template <int WIDTH> FN void find_scale_blocks(float* smem_tiles, const packed& other, tiles::place tile, int scale_block) {
  float* const undo = scale_blocks_room(smem_tiles);
  scale_block = scale_block < other.depth_scale_blocks ? scale_block : other.depth_scale_blocks - 1;
  __syncwarp();
#pragma unroll 1
  for (int i = 0; i < WIDTH; i += 32) {
    const int place = i + lane_here(), row = tile.column * WIDTH + place;
    const int inside = row < other.rows ? row : other.rows - 1;
    const float* const whole = other.inverse + other.first_inverse(tile.batch, inside);
    const bool uneven = __ldg(whole) < 0;
    const float own = __ldg(uneven ? other.scale_block(tile.batch, inside, scale_block) : whole);
    undo[place] = uneven ? own : 1.f;
  }
  __syncwarp();
}
template <int SUMS> FN void undo_columns(float (&acc)[SUMS], const float* undo) {
  undo += (lane_here() & 3) * 2;
#pragma unroll
  for (int i = 0; i < SUMS; i += 4) {
    const float2 mine = *reinterpret_cast<const float2*>(undo + i * 2);
    acc[i] *= mine.x, acc[i + 1] *= mine.y, acc[i + 2] *= mine.x, acc[i + 3] *= mine.y;
  }
  pin(acc);
}
// 64 rows x WIDTH x 64 k into `promoted`. Quarters of 64 columns alternate between two accumulators: while the tensor core
// works on one, the other is added up.
template <int WIDTH>
FN void multiply_k_tile(float (&promoted)[quarters<WIDTH>][32], const fragments& f, unsigned packed_rows, int next_turn,
                       bool uneven, float* smem_tiles) {
  constexpr int QUARTERS = quarters<WIDTH>;
  float acc[2][32], half[16];
  const unsigned long base = descriptor(packed_rows);
  const auto add_up = [&](int q, auto& sums) {
    pin(sums);
    if (uneven) undo_columns(sums, scale_blocks_room(smem_tiles) + q * 64);
#pragma unroll
    for (int i = 0; i < int(sizeof(sums) / 4); ++i) promoted[q][i] = fmaf(sums[i], f.undo[i >> 1 & 1], promoted[q][i]);
  };
  const auto add = [&](int q) {
    if (WIDTH % 64 > 0 && q == QUARTERS - 1)
      add_up(q, half);
    else
      add_up(q, acc[q % 2]);
  };
#pragma unroll
  for (int q = 0; q < QUARTERS; ++q) {
    const unsigned long at = base + (q * 64 * 128 >> 4);
    if (WIDTH % 64 > 0 && q == QUARTERS - 1)
      multiply_quarter<stage<WIDTH>::packed_stride>(half, f, at);
    else
      multiply_quarter<stage<WIDTH>::packed_stride>(acc[q % 2], f, at);
    if (q == QUARTERS - 1) group_arrive(next_turn, 256);
    if (q > 0) multiply_wait<1>(), add(q - 1);
  }
  multiply_wait<0>();
  add(QUARTERS - 1);
}
// Whether a tile has packed rows that are uneven; the same answer for all lanes. Behind the last row, anything may stand.
template <int WIDTH> FN bool any_uneven(const float* scales, int rows) {
  bool mine = false;
#pragma unroll
  for (int i = 0; i < WIDTH / 32; ++i) mine |= scales[i * 32 + lane_here()] < 0 && i * 32 + lane_here() < rows;
  return __any_sync(~0u, mine);
}
// Inverse scales of full rows give back what the tensor core drops of sums. Where no row of the other operand is full, sums are
// whole, and there it is taken away from them again: to the bit, but where both round to other sides.
template <int WIDTH> FN void keep_whole(float (&promoted)[quarters<WIDTH>][32], const float* scales) {
  scales += lane_here() % 4 * 2;
#pragma unroll
  for (int i = 0; i < WIDTH / 2; ++i) {
    float& sum = promoted[i / 32][i % 32];
    sum = fmaf(sum, marks_full(scales[i / 4 * 8 + i % 2]) ? -0x1p-23f : 0x1p-60f, sum);
  }
}
template <int WIDTH, bool SWAPPED, int SEGMENT, int VECTOR, bool SPLIT_K, class Body>
FN void consume(const splitting_consumer<Body, stage<WIDTH>::rows>& me, const tiles_of<Body>& all, const split_k_plan& split_k,
                unsigned shared) {
  using stage = stage<WIDTH>;
  const int group = threadIdx.x / 128 - 1, next_turn = 4 + (group + 1) % stage::groups;
  const unsigned my_row = first_chunk((threadIdx.x / 32 - 4) % (stage::box_rows / 16) * 16, threadIdx.x % 32);
  if constexpr (tiles_of<Body>::blanks)
    all.template blanks_out<SWAPPED, VECTOR>(me.body, me.shape, blockIdx.x, gridDim.x, warp_here() - 4, stage::groups * 4);
  k_tile_place<WIDTH> place;
  unsigned turn = 0;
  if (group == stage::groups - 1) group_arrive(4, 256);  // the first turn is group 0's
  for (int number = blockIdx.x; number < split_k.pieces; number += gridDim.x) {
    // Asked again wherever it is needed, or all of it would be kept in registers from here on.
    const auto here = [&] {
      int again = number;
      asm volatile("" : "+r"(again));
      return piece_at<SPLIT_K, stage::k_tiles>(again, me.other.depth_scale_blocks, split_k);
    };
    const float* const scales = me.scales + turn * quarters<WIDTH> * 64;
    place.begin(shared);
    const bool uneven = any_uneven<WIDTH>(scales, me.other.rows - all.at(here().tile).column * WIDTH);
    float promoted[quarters<WIDTH>][32] = {};
    for (int left = here().k_tiles; left > 0; --left) {
      const unsigned rows = place.split(shared, group);
      fragments f;
      // Kept in the turn, since there is no register left.
      if (__any_sync(~0u, split_rows(f, rows + my_row, stage::split_stride))) turn |= 2;
      reads_end();
      place.split_read(shared, group);
      const unsigned packed_rows = place.packed(shared);
      group_sync(4 + group, 256);
      if (uneven) {
        const piece mine = here();
        find_scale_blocks<WIDTH>(me.smem_tiles, me.other, all.at(mine.tile), mine.first + mine.k_tiles - left);
      }
      multiply_k_tile<WIDTH>(promoted, f, packed_rows, next_turn, uneven, me.smem_tiles);
      place.packed_read(shared);
    }
    const bool full = turn & 2;
    turn = ~turn & 1;
    const piece mine = here();
    if constexpr (SPLIT_K)
      if (mine.shared >= 0 && !add_partials<WIDTH, stage::groups>(promoted, partials_of<stage::groups>(split_k,
          mine.shared))) continue;
    if (!full) keep_whole<WIDTH>(promoted, scales);
    const tiles::place tile = all.at(mine.tile);
    if constexpr (SWAPPED)
      me.template columns_out<WIDTH, SEGMENT, VECTOR>(promoted, tile, scales);
    else
      me.template rows_out<WIDTH, SEGMENT, VECTOR>(promoted, tile, scales);
  }
}

//@ run_gemm: needs init_stages, produce, produce_pipelines, consume, prepare_persistent, plan_split_k
template <int WIDTH, bool SWAPPED, int SEGMENT, int VECTOR, bool SPLIT_K, class Body>
__global__ void __launch_bounds__(gemm_threads<WIDTH>, 1)
    gemm_kernel(const __grid_constant__ tensor_map map, const __grid_constant__ Body body, const gemm_operand left,
                   const gemm_operand right, const gemm_shape shape, const packed other, const tiles_of<Body> all,
                   const split_k_plan split_k) {
  using stage = stage<WIDTH>;
  extern __shared__ __align__(1024) unsigned char shared[];  // the swizzle's pattern repeats after 1024 bytes
  const unsigned start = shared_address(shared);
  if (threadIdx.x == 0) init_stages<WIDTH>(start);
  // Half a quarter has no columns, but takes part in looking for what is not finite.
  if (WIDTH % 64 > 0 && threadIdx.x < 64)
    reinterpret_cast<float*>(shared + stage::scales)[threadIdx.x / 32 * quarters<WIDTH> * 64 + WIDTH + threadIdx.x % 32] = 0;
  __syncthreads();
  const int warp = __shfl_sync(~0u, threadIdx.x / 32, 0);
  if (warp < 4) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 24;");
    const bool batched = (SWAPPED ? right : left).batch_stride != 0;
    if constexpr (stage::groups == 3)
      produce_pipelines<WIDTH, SPLIT_K>(map, other, all, split_k, batched, start);
    else if (threadIdx.x == 0)
      produce<WIDTH, SPLIT_K>(map, other, all, split_k, batched, start);
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(stage::registers));
    float* const smem_tiles = reinterpret_cast<float*>(shared + stage::smem_tiles);
    const float* const scales = reinterpret_cast<float*>(shared + stage::scales);
    const splitting_consumer<Body, stage::rows> me{{body, {left, right}, shape, smem_tiles}, other, scales};
    consume<WIDTH, SWAPPED, SEGMENT, VECTOR, SPLIT_K>(me, all, split_k, start);
  }
}
#ifdef __CUDACC_RTC__
template <int WIDTH, bool SWAPPED, int SEGMENT, int VECTOR, int ROOM = 0, class Body>
FN int run_gemm(const Body&, gemm_operand, gemm_operand, long, long, long, long, void*, int, void*) {
  return &gemm_kernel<WIDTH, SWAPPED, SEGMENT, VECTOR, false, Body> == nullptr ||
         &gemm_kernel<WIDTH, SWAPPED, SEGMENT, VECTOR, (ROOM > 0), Body> == nullptr ||
         &pack_rows<true> == nullptr || &pack_rows<false> == nullptr || &pack_columns == nullptr;
}
#else
template <int WIDTH, bool SWAPPED, int SEGMENT, int VECTOR, bool SPLIT_K, class Body>
int launch_gemm(const Body& body, gemm_operand left, gemm_operand right, gemm_shape shape, packed other,
                   const tiles_of<Body>& all, const split_k_plan& split_k, int blocks, int device, cudaStream_t on) {
  constexpr auto kernel = &gemm_kernel<WIDTH, SWAPPED, SEGMENT, VECTOR, SPLIT_K, Body>;
  if (int error = prepare_persistent<kernel>(stage<WIDTH>::shared_bytes, device, blocks)) return error;
  tensor_map map;
  const gemm_operand &split = SWAPPED ? right : left, &small = SWAPPED ? left : right;
  const int split_rows = SWAPPED ? shape.columns : shape.rows;
  if (int error = map_operand(map, split, shape.batches, split_rows, shape.depth, stage<WIDTH>::box_rows)) return error;
  other.zeroed = split_k.arrived, other.zeroes = SPLIT_K ? stage<WIDTH>::groups * (all.count - split_k.whole) : 0;
  other.quads = !SWAPPED;
  if (int error = pack(small, SWAPPED ? shape.rows : shape.columns, shape.depth, other, on)) return error;
  cudaLaunchAttribute early[1];
  early[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  early[0].val.programmaticStreamSerializationAllowed = 1;
  const dim3 grid(unsigned(all.used(split_k.pieces, blocks)));
  const cudaLaunchConfig_t launch{grid, dim3(gemm_threads<WIDTH>), stage<WIDTH>::shared_bytes, on, early, 1};
  cudaLaunchKernelEx(&launch, kernel, map, body, left, right, shape, other, all, split_k);
  return cudaGetLastError();
}
template <int WIDTH, bool SWAPPED, int SEGMENT, int VECTOR, int ROOM = 0, class Body>
int run_gemm(const Body& body, gemm_operand left, gemm_operand right, long batches, long rows, long columns, long depth,
                void* workspace, int device, void* stream) {
  if (batches <= 0 || rows <= 0 || columns <= 0) return 0;
  const device_scope scope(device);
  constexpr int ROWS = stage<WIDTH>::rows;
  const int down = int(((SWAPPED ? columns : rows) + ROWS - 1) / ROWS);
  const int across = int(((SWAPPED ? rows : columns) + WIDTH - 1) / WIDTH);
  if (batches * down * across > 0x7fffffff) return cudaErrorInvalidValue;
  const auto all = tiles_of<Body>::of({down, across, int(batches * down * across)}, ROWS, WIDTH, SWAPPED);
  int blocks = 0;
  if (int error = cudaDeviceGetAttribute(&blocks, cudaDevAttrMultiProcessorCount, device)) return error;
  const gemm_shape shape{batches, int(rows), int(columns), int(depth)};
  const packed other = packed_in(workspace, SWAPPED ? left : right, batches, int(SWAPPED ? rows : columns), int(depth));
  float* const sums = other.scale_blocks + batches * other.rows * other.depth_scale_blocks;
  const split_k_plan split_k = plan_split_k<ROWS, WIDTH, ROOM>(all.count, other.depth_scale_blocks, blocks, sums);
  const auto on = static_cast<cudaStream_t>(stream);
  if constexpr (ROOM > 0)
    if (split_k.count > 1)
      return launch_gemm<WIDTH, SWAPPED, SEGMENT, VECTOR, true>(body, left, right, shape, other, all, split_k, blocks,
                                                                   device, on);
  return launch_gemm<WIDTH, SWAPPED, SEGMENT, VECTOR, false>(body, left, right, shape, other, all, split_k, blocks, device,
                                                                on);
}
#endif

//@
}  // namespace fusewright
