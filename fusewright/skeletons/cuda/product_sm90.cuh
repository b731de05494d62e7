// Matrix products on Hopper (sm_90a): TMA, mbarriers, warp-specialised wgmma, one persistent block per processor.
//
// A block has three groups of four warps. One thread of the first keeps STAGES units of 32 k on their way into shared
// memory; the two others own 64 rows each of a tile of 128 x WIDTH. A consumer splits its rows of float32 in registers (the
// `split` factor, the larger one) and multiplies them with the `packed` factor in shared memory, 64 k at a time: first the
// two products with a low half, then the product of the high halves, so that the truncation step of the tensor core is
// small for two thirds of the work. The finished sum is added to `master`, undoing the row's power of two on the way.
//
// The surprising fact: the two consumers take turns. Splitting needs the arithmetic units and multiplying the tensor
// cores, and if both do the same at the same time the tensor cores idle for a sixth of it.
//
// Text outside `//@ name` sections only serves a compilation of this file alone.
#pragma once
#include "tile_sm90.cuh"
namespace fusewright {

//@ product_tiles: needs tile_order, factor, pack
constexpr int CHUNK_UNITS = 2;
template <int WIDTH> struct stage {
  static constexpr int split_bytes = TILE_ROWS * UNIT * 4, bytes = split_bytes + WIDTH * UNIT_BYTES;
  static constexpr int count = 196608 / bytes / CHUNK_UNITS * CHUNK_UNITS;
  static constexpr int boxes = count * bytes, scales = boxes + 8 * BOX * 4, barriers = scales + 2 * WIDTH * 4;
  static constexpr int shared_bytes = barriers + 16 * count;
};
// At least two chunks, so that nobody can be two tiles ahead: there is room for the scales of two tiles.
FN int chunks_of(const packed& other) {
  const int chunks = (other.depth_units + CHUNK_UNITS - 1) / CHUNK_UNITS;
  return chunks < 2 ? 2 : chunks;
}

//@ produce: needs product_tiles, tensor_map, barriers
// One thread: every unit of every tile of this block, as soon as its stage is free.
template <int WIDTH>
FN void produce(const tensor_map& map, const packed& other, const tiles& all, bool batched, unsigned stages,
                unsigned full, unsigned empty) {
  using stage = stage<WIDTH>;
  const int units = chunks_of(other) * CHUNK_UNITS;
  // This kernel may have started before the packing one was done.
  asm volatile("griddepcontrol.wait;" ::: "memory");
  int slot = 0;
  unsigned phase = 1, scales = stages + stage::scales;
  for (int number = blockIdx.x; number < all.count; number += gridDim.x) {
    const tiles::place tile = all.at(number);
    const int row = tile.column * WIDTH, rows = other.rows - row < WIDTH ? other.rows - row : WIDTH;
    for (int unit = 0; unit < units; ++unit) {
      const unsigned to = stages + slot * stage::bytes, ready = full + 8 * slot;
      barrier_wait(empty + 8 * slot, phase);
      barrier_expect(ready, stage::split_bytes + rows * (unit == 0 ? UNIT_BYTES + 4 : UNIT_BYTES));
      if (unit == 0) load_bytes(scales, other.inverse + other.first_inverse(tile.batch, row), rows * 4, ready);
      load_box(to, map, ready, unit * UNIT, tile.row * TILE_ROWS, batched ? tile.batch : 0);
      // Behind the last k the split factor reads as zero; its partner only has to be a number.
      const int there = unit < other.depth_units ? unit : other.depth_units - 1;
      load_bytes(to + stage::split_bytes, other.unit(tile.batch, there, row), rows * UNIT_BYTES, ready);
      if (++slot == stage::count) slot = 0, phase ^= 1;
    }
    scales ^= (stages + stage::scales) ^ (stages + stage::scales + WIDTH * 4);
  }
}

//@ fragments: needs halves
// A warp's 16 rows of 64 k of the split factor, as wgmma wants them: hi and lo of four groups of 16 k.
struct fragments {
  unsigned hi[4][4], lo[4][4];
  float undo[2];  // the inverse scale of rows lane / 4 and lane / 4 + 8
};
FN void load_matrices(unsigned (&to)[4], unsigned address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared::cta.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3]) : "r"(address) : "memory");
}
FN float larger_size(float most, unsigned bits) { return fmaxf(most, fabsf(__uint_as_float(bits))); }
FN void split_pair(unsigned first, unsigned second, float scale, unsigned& hi, unsigned& lo) {
  split_in_two(__uint_as_float(first) * scale, __uint_as_float(second) * scale, hi, lo);
}
// ldmatrix moves a float32 as two halves: the lane gets k = lane % 4 of a 16-byte chunk. The largest size of each row is
// found as a tree, then among the four lanes that hold the row. `address`: of the lane's row, chunk lane / 16; the others
// differ from it by one bit each.
FN unsigned first_chunk(int first_row) {
  const int lane = threadIdx.x % 32, row = first_row + lane % 16;
  return row * 128 + ((lane >> 4 ^ (row & 7)) << 4);
}
FN void split_rows(fragments& f, unsigned address, int unit_bytes) {
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    const unsigned chunk = (address + (j >> 1) * unit_bytes) ^ (j & 1) << 6;
    load_matrices(f.hi[j], chunk);
    load_matrices(f.lo[j], chunk ^ 32);
  }
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    float most[4];
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const float a = larger_size(fabsf(__uint_as_float(f.hi[j][half])), f.hi[j][half + 2]);
      most[j] = fmaxf(a, larger_size(fabsf(__uint_as_float(f.lo[j][half])), f.lo[j][half + 2]));
    }
    float all = fmaxf(fmaxf(most[0], most[1]), fmaxf(most[2], most[3])), scale;
    all = fmaxf(all, __shfl_xor_sync(~0u, all, 1));
    all = fmaxf(all, __shfl_xor_sync(~0u, all, 2));
    power_of_two(all, scale, f.undo[half]);
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const unsigned a = f.hi[j][half], b = f.hi[j][half + 2], c = f.lo[j][half], d = f.lo[j][half + 2];
      split_pair(a, b, scale, f.hi[j][half], f.lo[j][half]);
      split_pair(c, d, scale, f.hi[j][half + 2], f.lo[j][half + 2]);
    }
  }
}

//@ consume: needs product_tiles, barriers, wgmma, fragments, tile_out
template <class Body> struct splitting_consumer : consumer<Body, factor> {
  const packed& other;
  const float* scales;  // of this tile's packed rows and of the next tile's
};
// 64 rows x 64 columns x 64 k of the split factor's fragments and quarter q of the packed rows at `base` into acc.
template <int WIDTH> FN void multiply_quarter(float (&acc)[32], const fragments& f, unsigned long base, int q) {
  const auto at = [&](int j, int lo) {
    return base + (unsigned long)(((j >> 1) * stage<WIDTH>::bytes + (j & 1) * 32 + lo * 64 + q * 64 * 128) >> 4);
  };
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
// 64 rows x WIDTH x 64 k into `master`. Quarters of 64 columns alternate between two accumulators: while the tensor core
// works on one, the other is added up.
template <int WIDTH>
FN void multiply_chunk(float (&master)[WIDTH / 64][32], const fragments& f, unsigned packed_rows, int next_turn) {
  constexpr int QUARTERS = WIDTH / 64;
  float acc[2][32];
  const unsigned long base = descriptor(packed_rows);
  const auto add = [&](int q) {
    pin(acc[q % 2]);
#pragma unroll
    for (int i = 0; i < 32; ++i) master[q][i] = fmaf(acc[q % 2][i], f.undo[i >> 1 & 1], master[q][i]);
  };
#pragma unroll
  for (int q = 0; q < QUARTERS; ++q) {
    multiply_quarter<WIDTH>(acc[q % 2], f, base, q);
    if (q == QUARTERS - 1) group_arrive(next_turn, 256);
    if (q > 0) multiply_wait<1>(), add(q - 1);
  }
  multiply_wait<0>();
  add(QUARTERS - 1);
}
// The same where packed rows have a scale of their own for these 64 k. Rare, so it may take its time.
template <int WIDTH>
FN void multiply_uneven_chunk(float (&master)[WIDTH / 64][32], const fragments& f, unsigned packed_rows, int next_turn,
                              const packed& other, tiles::place tile, int chunk) {
  const unsigned long base = descriptor(packed_rows);
  const int row = tile.column * WIDTH + lane_here() % 4 * 2;
  float acc[32];
#pragma unroll
  for (int q = 0; q < WIDTH / 64; ++q) {
    multiply_quarter<WIDTH>(acc, f, base, q);
    if (q == WIDTH / 64 - 1) group_arrive(next_turn, 256);
    multiply_wait<0>();
    pin(acc);
#pragma unroll
    for (int i = 0; i < 16; ++i) {
      const int here = row + q * 64 + i / 2 * 8 + i % 2;
      const float undo = here < other.rows ? other.undo_step(tile.batch, here, chunk) : 0.f;
      const int first = i / 2 * 4 + i % 2;
      master[q][first] = fmaf(acc[first] * undo, f.undo[0], master[q][first]);
      master[q][first + 2] = fmaf(acc[first + 2] * undo, f.undo[1], master[q][first + 2]);
    }
  }
}
// Whether a tile has packed rows that are uneven; the same answer for all lanes.
template <int WIDTH> FN bool any_uneven(const float* scales) {
  bool mine = false;
#pragma unroll
  for (int i = 0; i < WIDTH / 32; ++i) mine |= scales[i * 32 + lane_here()] < 0;
  return __any_sync(~0u, mine);
}
template <int WIDTH, bool SWAPPED, int SEGMENT, int VECTOR, class Body>
FN void consume(const splitting_consumer<Body>& me, const tiles& all, unsigned stages, unsigned full, unsigned empty) {
  using stage = stage<WIDTH>;
  const int chunks = chunks_of(me.other), group = threadIdx.x / 128 - 1;
  const unsigned mine = first_chunk((threadIdx.x / 32 - 4) * 16);
  int slot = 0;
  unsigned phase = 0, turn = 0;
  if (group == 1) group_arrive(4, 256);  // the first turn is group 0's
  for (int number = blockIdx.x; number < all.count; number += gridDim.x) {
    me.template ask_ahead<WIDTH, SWAPPED, SEGMENT>(all.at(number));
    const float* const scales = me.scales + turn * WIDTH;
    bool uneven = false;
    float master[WIDTH / 64][32] = {};
    for (int chunk = 0; chunk < chunks; ++chunk) {
      const unsigned here = stages + slot * stage::bytes;
#pragma unroll
      for (int u = 0; u < CHUNK_UNITS; ++u) barrier_wait(full + 8 * (slot + u), phase);
      if (chunk == 0) uneven = any_uneven<WIDTH>(scales);
      fragments f;
      split_rows(f, here + mine, stage::bytes);
      group_sync(4 + group, 256);
      if (uneven)
        multiply_uneven_chunk<WIDTH>(master, f, here + stage::split_bytes, 5 - group, me.other, all.at(number), chunk);
      else
        multiply_chunk<WIDTH>(master, f, here + stage::split_bytes, 5 - group);
      if (threadIdx.x % 32 == 0)
#pragma unroll
        for (int u = 0; u < CHUNK_UNITS; ++u) barrier_arrive(empty + 8 * (slot + u));
      slot += CHUNK_UNITS;
      if (slot == stage::count) slot = 0, phase ^= 1;
    }
    turn ^= 1;
    if constexpr (SWAPPED)
      me.template columns_out<WIDTH, SEGMENT, VECTOR>(master, all.at(number), scales);
    else
      me.template rows_out<WIDTH, SEGMENT, VECTOR>(master, all.at(number), scales);
  }
}

//@ run_product: needs produce, consume
template <int WIDTH, bool SWAPPED, int SEGMENT, int VECTOR, class Body>
__global__ void __launch_bounds__(PRODUCT_THREADS, 1)
    product_kernel(const __grid_constant__ tensor_map map, const __grid_constant__ Body body, const factor left,
                   const factor right, const product_shape shape, const packed other, const tiles all) {
  using stage = stage<WIDTH>;
  extern __shared__ __align__(1024) unsigned char shared[];  // the swizzle's pattern repeats after 1024 bytes
  const unsigned stages = shared_address(shared), full = stages + stage::barriers, empty = full + 8 * stage::count;
  if (threadIdx.x == 0) {
    for (int slot = 0; slot < stage::count; ++slot) {
      barrier_init(full + 8 * slot, 1);
      barrier_init(empty + 8 * slot, 8);
    }
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
  __syncthreads();
  const int warp = __shfl_sync(~0u, threadIdx.x / 32, 0);
  if (warp < 4) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 24;");
    const bool batched = (SWAPPED ? right : left).batch_stride != 0;
    if (threadIdx.x == 0) produce<WIDTH>(map, other, all, batched, stages, full, empty);
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 240;");
    float* const boxes = reinterpret_cast<float*>(shared + stage::boxes);
    const float* const scales = reinterpret_cast<float*>(shared + stage::scales);
    const splitting_consumer<Body> me{{body, left, right, shape, boxes}, other, scales};
    consume<WIDTH, SWAPPED, SEGMENT, VECTOR>(me, all, stages, full, empty);
  }
}
#ifdef __CUDACC_RTC__
template <int WIDTH, bool SWAPPED, int SEGMENT, int VECTOR, class Body>
FN int run_product(const Body&, factor, factor, long, long, long, long, void*, int, void*) {
  return &product_kernel<WIDTH, SWAPPED, SEGMENT, VECTOR, Body> == nullptr || &pack_rows<true> == nullptr ||
         &pack_rows<false> == nullptr || &pack_columns == nullptr;
}
#else
// How many blocks run at once: one per processor. Asked, like the shared memory, once per kernel and device.
template <int WIDTH, bool SWAPPED, int SEGMENT, int VECTOR, class Body> int prepare_product(int device, int& blocks) {
  static int known[64];
  const auto kernel = product_kernel<WIDTH, SWAPPED, SEGMENT, VECTOR, Body>;
  const int shared_bytes = stage<WIDTH>::shared_bytes;
  const bool listed = device >= 0 && device < 64;
  blocks = listed ? known[device] : 0;
  if (blocks > 0) return 0;
  int error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes);
  if (!error) error = cudaDeviceGetAttribute(&blocks, cudaDevAttrMultiProcessorCount, device);
  if (listed && !error) known[device] = blocks;
  return error;
}
template <int WIDTH, bool SWAPPED, int SEGMENT, int VECTOR, class Body>
int run_product(const Body& body, factor left, factor right, long batches, long rows, long columns, long depth,
                void* workspace, int device, void* stream) {
  if (batches <= 0 || rows <= 0 || columns <= 0) return 0;
  const device_scope scope(device);
  const auto kernel = product_kernel<WIDTH, SWAPPED, SEGMENT, VECTOR, Body>;
  const factor &split = SWAPPED ? right : left, &small = SWAPPED ? left : right;
  const int down = int(((SWAPPED ? columns : rows) + TILE_ROWS - 1) / TILE_ROWS);
  const int across = int(((SWAPPED ? rows : columns) + WIDTH - 1) / WIDTH);
  if (batches * down * across > 0x7fffffff) return cudaErrorInvalidValue;
  const tiles all{down, across, int(batches * down * across)};
  int blocks = 0;
  if (int error = prepare_product<WIDTH, SWAPPED, SEGMENT, VECTOR, Body>(device, blocks)) return error;
  tensor_map map;
  if (int error = map_factor(map, split, batches, SWAPPED ? columns : rows, depth)) return error;
  const auto on = static_cast<cudaStream_t>(stream);
  const packed other = packed_in(workspace, small, batches, int(SWAPPED ? rows : columns), int(depth));
  if (int error = pack(small, int(SWAPPED ? rows : columns), int(depth), other, on)) return error;
  const product_shape shape{batches, int(rows), int(columns), int(depth)};
  cudaLaunchAttribute early[1];
  early[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  early[0].val.programmaticStreamSerializationAllowed = 1;
  const dim3 grid(unsigned(all.count < blocks ? all.count : blocks));
  const cudaLaunchConfig_t launch{grid, dim3(PRODUCT_THREADS), stage<WIDTH>::shared_bytes, on, early, 1};
  cudaLaunchKernelEx(&launch, kernel, map, body, left, right, shape, other, all);
  return cudaGetLastError();
}
#endif

//@
}  // namespace fusewright
