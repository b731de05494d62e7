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
// Where there are fewer tiles than processors, several blocks share the k of a tile: `count` parts of `chunks` chunks each.
// Each leaves its sums in `sums`; the one that arrives last adds them up in the order of parts, whoever that is.
constexpr int PART_BLOCKS = 132, PART_CHUNKS = 4;
struct depth_parts {
  int count, chunks;
  float* sums;
  unsigned* arrived;  // by tile and consumer group, zeroed while packing
};
// What the blocks have to do. With parts, every block does one thing and ends.
template <bool PARTS> FN int items(const tiles& all, const depth_parts& parts) {
  return PARTS ? all.count * parts.count : all.count;
}
// A part takes all stages at least once, so that nobody can be two tiles ahead: there is room for the scales of two.
template <int WIDTH> FN int chunks_of(const packed& other, const depth_parts& parts, int part) {
  constexpr int LEAST = stage<WIDTH>::count / CHUNK_UNITS;
  const int rest = other.depth_steps - part * parts.chunks, chunks = rest < parts.chunks ? rest : parts.chunks;
  return chunks < LEAST ? LEAST : chunks;
}

//@ produce: needs product_tiles, tensor_map, barriers
// One thread: every unit of every tile of this block, as soon as its stage is free.
template <int WIDTH, bool PARTS>
FN void produce(const tensor_map& map, const packed& other, const tiles& all, const depth_parts& parts, bool batched,
                unsigned stages, unsigned full, unsigned empty) {
  using stage = stage<WIDTH>;
  // This kernel may have started before the packing one was done.
  asm volatile("griddepcontrol.wait;" ::: "memory");
  int slot = 0;
  unsigned phase = 1, scales = stages + stage::scales;
  for (int number = blockIdx.x; number < items<PARTS>(all, parts); number += gridDim.x) {
    const tiles::place tile = all.at(PARTS ? number / parts.count : number);
    const int part = PARTS ? number % parts.count : 0, begin = part * parts.chunks * CHUNK_UNITS;
    const int units = chunks_of<WIDTH>(other, parts, part) * CHUNK_UNITS;
    const int row = tile.column * WIDTH, rows = other.rows - row < WIDTH ? other.rows - row : WIDTH;
    for (int i = 0; i < units; ++i) {
      const unsigned to = stages + slot * stage::bytes, ready = full + 8 * slot;
      barrier_wait(empty + 8 * slot, phase);
      barrier_expect(ready, stage::split_bytes + rows * (i == 0 ? UNIT_BYTES + 4 : UNIT_BYTES));
      if (i == 0) load_bytes(scales, other.inverse + other.first_inverse(tile.batch, row), rows * 4, ready);
      // Behind its last k the split factor reads as zero; its partner only has to be a number.
      const bool inside = i < parts.chunks * CHUNK_UNITS && begin + i < other.depth_units;
      const int unit = inside ? begin + i : other.depth_units;
      load_box(to, map, ready, unit * UNIT, tile.row * TILE_ROWS, batched ? tile.batch : 0);
      load_bytes(to + stage::split_bytes, other.unit(tile.batch, inside ? unit : unit - 1, row), rows * UNIT_BYTES, ready);
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
FN void load_rows(fragments& f, unsigned address, int unit_bytes) {
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    const unsigned chunk = (address + (j >> 1) * unit_bytes) ^ (j & 1) << 6;
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
FN void split_rows(fragments& f, unsigned address, int unit_bytes) {
  load_rows(f, address, unit_bytes);
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    float scale;
    power_of_two(largest_of_row(f, half), scale, f.undo[half]);
    split_row(f, half, scale);
  }
}

//@ multiply_quarter: needs wgmma, fragments
// The fragments' 64 rows x 64 packed rows x 64 k into acc; the second 32 k of the packed rows lie FURTHER bytes on.
template <int FURTHER> FN void multiply_quarter(float (&acc)[32], const fragments& f, unsigned long base) {
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

//@ consume: needs product_tiles, barriers, multiply_quarter, tile_out
template <class Body> struct splitting_consumer : consumer<Body, split_factors> {
  const packed& other;
  const float* scales;  // of this tile's packed rows and of the next tile's
};
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
    multiply_quarter<stage<WIDTH>::bytes>(acc[q % 2], f, base + (q * 64 * 128 >> 4));
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
  const int lane = lane_here(), row = tile.column * WIDTH + lane;
  const auto undo_of = [&](int row) {
    return row < other.rows && chunk < other.depth_steps ? other.undo_step(tile.batch, row, chunk) : 0.f;
  };
  float acc[32];
#pragma unroll
  for (int q = 0; q < WIDTH / 64; ++q) {
    multiply_quarter<stage<WIDTH>::bytes>(acc, f, base + (q * 64 * 128 >> 4));
    if (q == WIDTH / 64 - 1) group_arrive(next_turn, 256);
    multiply_wait<0>();
    pin(acc);
    const float undo[2] = {undo_of(row + q * 64), undo_of(row + q * 64 + 32)};
#pragma unroll
    for (int i = 0; i < 16; ++i) {
      const float mine = __shfl_sync(~0u, undo[i / 8], (i / 2 * 8 + lane % 4 * 2 + i % 2) % 32);
      const int first = i / 2 * 4 + i % 2;
      master[q][first] = fmaf(acc[first] * mine, f.undo[0], master[q][first]);
      master[q][first + 2] = fmaf(acc[first + 2] * mine, f.undo[1], master[q][first + 2]);
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
// A group's share of a part's sums goes to memory, four numbers of a lane side by side. True for the group that is the
// last of its tile: it has the sums of all parts then.
template <int WIDTH> FN bool add_parts(float (&master)[WIDTH / 64][32], const depth_parts& parts, int number) {
  constexpr int QUADS = WIDTH / 8;
  const int thread = thread_here() - 128, group = thread / 128, tile = number / parts.count;
  float4* const mine = reinterpret_cast<float4*>(parts.sums) + long(number) * QUADS * 256 + thread;
#pragma unroll
  for (int i = 0; i < QUADS; ++i) {
    const float* const from = &master[i / 8][i % 8 * 4];
    __stcg(mine + i * 256, make_float4(from[0], from[1], from[2], from[3]));
  }
  __threadfence();
  group_sync(1 + group, 128);
  bool last = false;
  if (thread % 128 == 0) last = atomicAdd(parts.arrived + tile * 2 + group, 1) == unsigned(parts.count - 1);
  if (!__any_sync(~0u, group_any(1 + group, 128, last))) return false;
  __threadfence();
  const float4* const first = reinterpret_cast<float4*>(parts.sums) + long(tile) * parts.count * QUADS * 256 + thread;
#pragma unroll
  for (int i = 0; i < QUADS; ++i) {
    float* const to = &master[i / 8][i % 8 * 4];
    to[0] = to[1] = to[2] = to[3] = 0;
  }
#pragma unroll 1
  for (int part = 0; part < parts.count; ++part)
#pragma unroll
    for (int i = 0; i < QUADS; ++i) {
      const float4 more = __ldcg(first + (part * QUADS + i) * 256);
      float* const to = &master[i / 8][i % 8 * 4];
      to[0] += more.x, to[1] += more.y, to[2] += more.z, to[3] += more.w;
    }
  return true;
}
template <int WIDTH, bool SWAPPED, int SEGMENT, int VECTOR, bool PARTS, class Body>
FN void consume(const splitting_consumer<Body>& me, const tiles& all, const depth_parts& parts, unsigned stages,
                unsigned full, unsigned empty) {
  using stage = stage<WIDTH>;
  const int group = threadIdx.x / 128 - 1;
  const unsigned mine = first_chunk((threadIdx.x / 32 - 4) * 16, threadIdx.x % 32);
  int slot = 0;
  unsigned phase = 0, turn = 0;
  if (group == 1) group_arrive(4, 256);  // the first turn is group 0's
  for (int number = blockIdx.x; number < items<PARTS>(all, parts); number += gridDim.x) {
    const int part = PARTS ? number % parts.count : 0, chunks = chunks_of<WIDTH>(me.other, parts, part);
    me.template ask_ahead<WIDTH, SWAPPED, SEGMENT>(all.at(PARTS ? number / parts.count : number));
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
      reads_end();
      group_sync(4 + group, 256);
      if (uneven) {
        int again = number;  // or the tile's place would be worked out before, and kept in registers
        asm volatile("" : "+r"(again));
        const tiles::place tile = all.at(PARTS ? again / parts.count : again);
        const int step = (PARTS ? again % parts.count * parts.chunks : 0) + chunk;
        multiply_uneven_chunk<WIDTH>(master, f, here + stage::split_bytes, 5 - group, me.other, tile, step);
      } else {
        multiply_chunk<WIDTH>(master, f, here + stage::split_bytes, 5 - group);
      }
      if (threadIdx.x % 32 == 0)
#pragma unroll
        for (int u = 0; u < CHUNK_UNITS; ++u) barrier_arrive(empty + 8 * (slot + u));
      slot += CHUNK_UNITS;
      if (slot == stage::count) slot = 0, phase ^= 1;
    }
    turn ^= 1;
    if constexpr (PARTS)
      if (!add_parts<WIDTH>(master, parts, number)) return;
    const tiles::place tile = all.at(PARTS ? number / parts.count : number);
    if constexpr (SWAPPED)
      me.template columns_out<WIDTH, SEGMENT, VECTOR>(master, tile, scales);
    else
      me.template rows_out<WIDTH, SEGMENT, VECTOR>(master, tile, scales);
    if constexpr (PARTS) return;
  }
}

//@ run_product: needs produce, consume, prepare_product
template <int WIDTH, bool SWAPPED, int SEGMENT, int VECTOR, bool PARTS, class Body>
__global__ void __launch_bounds__(PRODUCT_THREADS, 1)
    product_kernel(const __grid_constant__ tensor_map map, const __grid_constant__ Body body, const factor left,
                   const factor right, const product_shape shape, const packed other, const tiles all,
                   const depth_parts parts) {
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
    if (threadIdx.x == 0) produce<WIDTH, PARTS>(map, other, all, parts, batched, stages, full, empty);
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 240;");
    float* const boxes = reinterpret_cast<float*>(shared + stage::boxes);
    const float* const scales = reinterpret_cast<float*>(shared + stage::scales);
    const splitting_consumer<Body> me{{body, {left, right}, shape, boxes}, other, scales};
    consume<WIDTH, SWAPPED, SEGMENT, VECTOR, PARTS>(me, all, parts, stages, full, empty);
  }
}
#ifdef __CUDACC_RTC__
template <int WIDTH, bool SWAPPED, int SEGMENT, int VECTOR, int MOST_PARTS = 1, class Body>
FN int run_product(const Body&, factor, factor, long, long, long, long, void*, int, void*) {
  return &product_kernel<WIDTH, SWAPPED, SEGMENT, VECTOR, false, Body> == nullptr ||
         &product_kernel<WIDTH, SWAPPED, SEGMENT, VECTOR, (MOST_PARTS > 1), Body> == nullptr ||
         &pack_rows<true> == nullptr || &pack_rows<false> == nullptr || &pack_columns == nullptr;
}
#else
// How the k of a tile are shared. With MOST_PARTS above 1 there is room behind the packed factor for PART_BLOCKS tiles of
// sums and two counts for each.
template <int WIDTH, int MOST_PARTS> depth_parts parts_of(const packed& other, const tiles& all, int blocks) {
  const int steps = other.depth_steps, room = blocks < PART_BLOCKS ? blocks : PART_BLOCKS;
  int count = room / all.count;
  count = count < MOST_PARTS ? count : MOST_PARTS;
  count = count < steps / PART_CHUNKS ? count : steps / PART_CHUNKS;
  count = count < 1 ? 1 : count;
  const int chunks = (steps + count - 1) / count;
  float* const sums = other.steps + other.batches * other.rows * other.depth_steps;
  return {(steps + chunks - 1) / chunks, chunks, sums, reinterpret_cast<unsigned*>(sums + PART_BLOCKS * TILE_ROWS * WIDTH)};
}
template <int WIDTH, bool SWAPPED, int SEGMENT, int VECTOR, bool PARTS, class Body>
int launch_product(const Body& body, factor left, factor right, product_shape shape, packed other, const tiles& all,
                   const depth_parts& parts, int blocks, int device, cudaStream_t on) {
  constexpr auto kernel = &product_kernel<WIDTH, SWAPPED, SEGMENT, VECTOR, PARTS, Body>;
  if (int error = prepare_product<kernel>(stage<WIDTH>::shared_bytes, device, blocks)) return error;
  tensor_map map;
  const factor &split = SWAPPED ? right : left, &small = SWAPPED ? left : right;
  if (int error = map_factor(map, split, shape.batches, SWAPPED ? shape.columns : shape.rows, shape.depth)) return error;
  other.zeroed = parts.arrived, other.zeroes = PARTS ? 2 * PART_BLOCKS : 0;
  if (int error = pack(small, SWAPPED ? shape.rows : shape.columns, shape.depth, other, on)) return error;
  cudaLaunchAttribute early[1];
  early[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  early[0].val.programmaticStreamSerializationAllowed = 1;
  const int items = all.count * parts.count;
  const dim3 grid(unsigned(items < blocks ? items : blocks));
  const cudaLaunchConfig_t launch{grid, dim3(PRODUCT_THREADS), stage<WIDTH>::shared_bytes, on, early, 1};
  cudaLaunchKernelEx(&launch, kernel, map, body, left, right, shape, other, all, parts);
  return cudaGetLastError();
}
template <int WIDTH, bool SWAPPED, int SEGMENT, int VECTOR, int MOST_PARTS = 1, class Body>
int run_product(const Body& body, factor left, factor right, long batches, long rows, long columns, long depth,
                void* workspace, int device, void* stream) {
  if (batches <= 0 || rows <= 0 || columns <= 0) return 0;
  const device_scope scope(device);
  const int down = int(((SWAPPED ? columns : rows) + TILE_ROWS - 1) / TILE_ROWS);
  const int across = int(((SWAPPED ? rows : columns) + WIDTH - 1) / WIDTH);
  if (batches * down * across > 0x7fffffff) return cudaErrorInvalidValue;
  const tiles all{down, across, int(batches * down * across)};
  int blocks = 0;
  if (int error = cudaDeviceGetAttribute(&blocks, cudaDevAttrMultiProcessorCount, device)) return error;
  const product_shape shape{batches, int(rows), int(columns), int(depth)};
  const packed other = packed_in(workspace, SWAPPED ? left : right, batches, int(SWAPPED ? rows : columns), int(depth));
  const depth_parts parts = parts_of<WIDTH, MOST_PARTS>(other, all, blocks);
  const auto on = static_cast<cudaStream_t>(stream);
  if constexpr (MOST_PARTS > 1)
    if (parts.count > 1)
      return launch_product<WIDTH, SWAPPED, SEGMENT, VECTOR, true>(body, left, right, shape, other, all, parts, blocks,
                                                                   device, on);
  return launch_product<WIDTH, SWAPPED, SEGMENT, VECTOR, false>(body, left, right, shape, other, all, parts, blocks, device,
                                                                on);
}
#endif

//@
}  // namespace fusewright
