// Matrix products on Hopper (sm_90a) that write nothing but their result: one launch, both operands split on the fly.
//
// Both operands come as float32 by TMA, in blocks of 64 rows x 64 k. A tile is 128 rows of the `split` operand times WIDTH rows
// of the `wide` one. Of a block's four groups of four warps, the first brings the blocks; two are consumers, which own 64
// rows each, split them in registers and multiply; the last rewrites each block of the wide operand where it lies, as hi and
// lo. Every row of 64 k has a power of two of its own, on both sides; so no range of numbers is too wide.
//
// The surprising fact: the pipeline of blocks is what makes it fast. Were the wide operand handed on 64 k at a time, the consumer
// that is behind would hold back the next 64 k until there is no time left to load and to split them. A quarter of a tile
// is handed back while the other quarters are at work.
//
// Text outside `//@ name` sections only serves a compilation of this file alone.
#pragma once
#include "kernels/gemm/cuda/gemm_sm90.cuh"
namespace fusewright {

//@ block_pipeline: needs tile_order, k_blocks
constexpr int UNPACKED_THREADS = 512, BLOCK_ROWS = 64, BLOCK_DEPTH = 64, K_BLOCK_OF_ROWS = 8192, BLOCK_BYTES = 16384, BLOCKS = 12;
// Where everything lies in shared memory. For every 64 k there are a block for each consumer and the quarters of the wide
// operand, 64 columns of the tile each; `own` such steps are on their way.
template <int WIDTH> struct block_pipeline {
  static constexpr int quarters = WIDTH / BLOCK_ROWS, own = BLOCKS / (2 + quarters), wide = own * quarters;
  static constexpr int wide_blocks = 2 * own * BLOCK_BYTES, smem_tiles = wide_blocks + wide * BLOCK_BYTES;
  static constexpr int scales = smem_tiles + 8 * SMEM_TILE * 4;
  static constexpr int own_full = scales + wide * BLOCK_ROWS, own_empty = own_full + 16 * own;
  static constexpr int full = own_empty + 16 * own, ready = full + 8 * wide, empty = ready + 8 * wide;
  static constexpr int shared_bytes = empty + 8 * wide;
};
// A place in a pipeline of SLOTS, and how often it has been passed.
template <int SLOTS> struct pipeline_place {
  int slot = 0;
  unsigned phase = 0;
  FN void advance() {
    if (++slot == SLOTS) slot = 0, phase ^= 1;
  }
};

//@ bring: needs block_pipeline, tensor_map, barriers
// One thread: the blocks of one pipeline, EACH of them for each 64 k, as soon as their places are free.
template <int SLOTS, int EACH, class Tiles, class Row>
FN void bring(const tensor_map& map, const Tiles& all, int k_tiles, bool batched, unsigned blocks, unsigned full,
              unsigned empty, const Row& row_of) {
  pipeline_place<SLOTS> place;
  for (int number = blockIdx.x; number < all.count; number += gridDim.x) {
    const tiles::place tile = all.at(number);
    const int first = row_of(tile), batch = batched ? tile.batch : 0;
#pragma unroll 1
    for (int k_tile = 0; k_tile < k_tiles; ++k_tile)
#pragma unroll 1
      for (int row = first; row < first + EACH * BLOCK_ROWS; row += BLOCK_ROWS) {
        const unsigned to = blocks + place.slot * BLOCK_BYTES, there = full + 8 * place.slot;
        barrier_wait(empty + 8 * place.slot, place.phase ^ 1);
        barrier_expect(there, BLOCK_BYTES);
        load_box(to, map, there, k_tile * BLOCK_DEPTH, row, batch);
        load_box(to + K_BLOCK_OF_ROWS, map, there, k_tile * BLOCK_DEPTH + K_BLOCK, row, batch);
        place.advance();
      }
  }
}

//@ convert: needs block_pipeline, k_blocks, barriers, here
// A power of four that brings a maximum into [2^13, 2^15). Its inverse times 2^UNDONE_LATER is a float32 with nothing but
// zeros below the upper eight bits, which are returned. `raised`: the maximum was 2^raised times smaller before.
constexpr int UNDONE_LATER = 14, RAISED = 14;
constexpr float SMALL = 0x1p-112f;
FN unsigned char power_of_four(float maximum, int raised, float& scale) {
  const unsigned bits = __float_as_uint(maximum) >> 23;
  const unsigned exponent = bits < 15 ? 15 : bits > 254 ? 254 : bits, inverse = (exponent - 13) & ~1u;
  scale = __uint_as_float((254 - inverse) << 23);
  return (inverse + UNDONE_LATER - raised) / 2;
}
// A warp's 16 rows of a block, in place. Four lanes own a row of each eight; the two rows that eight neighbouring lanes own
// meet in no bank, neither as float32 nor split. The bytes that a lane of a consumer wants, of columns lane % 4 * 2 and the
// next of every eight, are 16 in a row.
FN void convert_rows(unsigned char* block, unsigned char* scales, int warp) {
  const unsigned lane = lane_here(), mine = lane % 4, row = lane / 8 ^ (lane & 4 ? 5 : 0);
  unsigned char* const first = block + warp * 16 * K_BLOCK_BYTES + row * K_BLOCK_BYTES;
  const auto place = [](int slab, int k_block) { return slab * 8 * K_BLOCK_BYTES + k_block * K_BLOCK_OF_ROWS; };
  float x[2][2][8];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const unsigned char* const from = first + place(i / 2, i % 2);
    memcpy(&x[i / 2][i % 2][0], __builtin_assume_aligned(from + ((mine * 2 ^ row) << 4), 16), 16);
    memcpy(&x[i / 2][i % 2][4], __builtin_assume_aligned(from + ((mine * 2 + 1 ^ row) << 4), 16), 16);
  }
  float most[2] = {}, scale[2];
#pragma unroll
  for (int i = 0; i < 32; ++i) most[i / 16] = fmaxf(most[i / 16], fabsf(x[i / 16][i / 8 % 2][i % 8]));
#pragma unroll
  for (int i = 0; i < 4; ++i) most[i % 2] = fmaxf(most[i % 2], __shfl_xor_sync(~0u, most[i % 2], 1 + i / 2));
  // No power of two lifts the smallest rows to where float16 has all its bits, so two do.
  int raised = 0;
  if (__any_sync(~0u, fminf(most[0], most[1]) < SMALL && fmaxf(most[0], most[1]) > 0)) {
#pragma unroll
    for (int i = 0; i < 32; ++i) x[i / 16][i / 8 % 2][i % 8] *= most[i / 16] < SMALL ? float(1 << RAISED) : 1.f;
    raised = (most[0] < SMALL ? 1 : 0) + (most[1] < SMALL ? 2 : 0);
    most[0] *= raised & 1 ? float(1 << RAISED) : 1.f, most[1] *= raised & 2 ? float(1 << RAISED) : 1.f;
  }
#pragma unroll
  for (int slab = 0; slab < 2; ++slab) {
    const unsigned char undo = power_of_four(most[slab], raised >> slab & 1 ? RAISED : 0, scale[slab]);
    if (mine == 0) scales[row / 2 * 16 + (warp * 2 + slab) * 2 + row % 2] = undo;
  }
  __syncwarp();  // all of a row has been read before any of it is written
#pragma unroll
  for (int i = 0; i < 4; ++i) {
#pragma unroll
    for (int j = 0; j < 8; ++j) x[i / 2][i % 2][j] *= scale[i / 2];
    pack_chunk(x[i / 2][i % 2], first + place(i / 2, i % 2), row, mine);
  }
}
template <int WIDTH, class Tiles> FN void convert(const Tiles& all, int k_tiles, unsigned char* shared) {
  using pipeline = block_pipeline<WIDTH>;
  const unsigned start = shared_address(shared);
  const int warp = __shfl_sync(~0u, threadIdx.x / 32 % 4, 0);
  pipeline_place<pipeline::wide> place;
  for (int number = blockIdx.x; number < all.count; number += gridDim.x)
    for (int block = 0; block < k_tiles * pipeline::quarters; ++block) {
      barrier_wait(start + pipeline::full + 8 * place.slot, place.phase);
      convert_rows(shared + pipeline::wide_blocks + place.slot * BLOCK_BYTES, shared + pipeline::scales + place.slot * BLOCK_ROWS,
                   warp);
      asm volatile("fence.proxy.async.shared::cta;" ::: "memory");  // wgmma shall see it
      __syncwarp();
      if (threadIdx.x % 32 == 0) barrier_arrive(start + pipeline::ready + 8 * place.slot);
      place.advance();
    }
}

//@ consume_unpacked: needs block_pipeline, barriers, multiply_quarter, fragments, tile_out, tiles_of
// A finished sum of 64 k goes into `promoted`. Both scales cannot be undone at once: their product may be out of range where
// the result is not. That of the wide row is undone first, but for 2^14: so even the sums of subnormal rows keep their bits in
// between. The sums of rows beyond 2^90 may overflow there; what is not finite is computed again by `fixup`.
FN void add_quarter(float (&promoted)[32], float (&acc)[32], const float (&undo)[2], uint4 scales) {
  const unsigned words[4] = {scales.x, scales.y, scales.z, scales.w};
  pin(acc);
#pragma unroll
  for (int i = 0; i < 16; ++i) {
    const float wide_undo = __uint_as_float(__byte_perm(words[i / 4], 0, i % 4 << 12 | 0x444));
    const int first = i / 2 * 4 + i % 2;
    promoted[first] = fmaf(acc[first] * wide_undo, undo[0], promoted[first]);
    promoted[first + 2] = fmaf(acc[first + 2] * wide_undo, undo[1], promoted[first + 2]);
  }
}
// The same number, in a way that keeps the compiler from remembering all through the loop what it works out of it.
FN int anew(int number) {
  asm volatile("" : "+r"(number));
  return __shfl_sync(~0u, number, 0);
}
template <int WIDTH, bool SWAPPED, int SEGMENT, int VECTOR, class Body>
FN void consume_unpacked(const consumer<Body, both_split_operands>& me, const tiles_of<Body>& all, int k_tiles,
    unsigned char* shared) {
  using pipeline = block_pipeline<WIDTH>;
  const unsigned start = shared_address(shared);
  const int warp = __shfl_sync(~0u, threadIdx.x / 32 - 4, 0), group = warp / 4;
  const unsigned own = start + group * pipeline::own * BLOCK_BYTES + warp % 4 * 16 * K_BLOCK_BYTES;
  const unsigned own_full = start + pipeline::own_full + group * pipeline::own * 8;
  const unsigned own_empty = start + pipeline::own_empty + group * pipeline::own * 8;
  const unsigned char* const scales = shared + pipeline::scales;
  if constexpr (tiles_of<Body>::blanks)
    all.template blanks_out<SWAPPED, VECTOR>(me.body, me.shape, blockIdx.x, gridDim.x, warp, 8);
  pipeline_place<pipeline::own> place;
  for (int number = blockIdx.x; number < all.count; number += gridDim.x) {
    float promoted[pipeline::quarters][32] = {};
    for (int k_tile = 0; k_tile < k_tiles; ++k_tile) {
      fragments f;
      barrier_wait(own_full + 8 * place.slot, place.phase);
      split_rows(f, own + place.slot * BLOCK_BYTES + first_chunk(0, lane_here()), K_BLOCK_OF_ROWS);
      reads_end();
      __syncwarp();
      if (threadIdx.x % 32 == 0) barrier_arrive(own_empty + 8 * place.slot);
      f.undo[0] *= 1.f / (1 << UNDONE_LATER);
      f.undo[1] *= 1.f / (1 << UNDONE_LATER);
#pragma unroll
      for (int q = 0; q < pipeline::quarters; ++q) {
        const int slot = place.slot * pipeline::quarters + q;
        float acc[32];
        if (q == 0) barrier_wait(start + pipeline::ready + 8 * slot, place.phase);
        multiply_quarter<K_BLOCK_OF_ROWS>(acc, f, descriptor(start + pipeline::wide_blocks + slot * BLOCK_BYTES));
        if (q + 1 < pipeline::quarters) barrier_wait(start + pipeline::ready + 8 * (slot + 1), place.phase);
        multiply_wait<0>();
        const uint4 wide_scales = *reinterpret_cast<const uint4*>(scales + slot * BLOCK_ROWS + lane_here() % 4 * 16);
        __syncwarp();
        if (threadIdx.x % 32 == 0) barrier_arrive(start + pipeline::empty + 8 * slot);
        add_quarter(promoted[q], acc, f.undo, wide_scales);
        // This warp alone: it keeps the compiler from finishing the sums later, with registers that are not there.
        if (q + 1 < pipeline::quarters) group_sync(8 + warp, 32);
      }
      place.advance();
    }
    const tiles::place tile = all.at(anew(number));
    if constexpr (SWAPPED)
      me.template columns_out<WIDTH, SEGMENT, VECTOR>(promoted, tile, nullptr);
    else
      me.template rows_out<WIDTH, SEGMENT, VECTOR>(promoted, tile, nullptr);
  }
}

//@ run_gemm_unpacked: needs bring, convert, consume_unpacked, prepare_persistent, device_scope
template <int WIDTH> FN void init_barriers(unsigned start) {
  using pipeline = block_pipeline<WIDTH>;
  for (int slot = 0; slot < 2 * pipeline::own; ++slot) {
    barrier_init(start + pipeline::own_full + 8 * slot, 1);
    barrier_init(start + pipeline::own_empty + 8 * slot, 4);
  }
  for (int slot = 0; slot < pipeline::wide; ++slot) {
    barrier_init(start + pipeline::full + 8 * slot, 1);
    barrier_init(start + pipeline::ready + 8 * slot, 4);
    barrier_init(start + pipeline::empty + 8 * slot, 8);
  }
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
template <int WIDTH, bool SWAPPED, int SEGMENT, int VECTOR, class Body>
__global__ void __launch_bounds__(UNPACKED_THREADS, 1)
    gemm_unpacked_kernel(const __grid_constant__ tensor_map split_map, const __grid_constant__ tensor_map wide_map,
                          const __grid_constant__ Body body, const gemm_operand left, const gemm_operand right,
                          const gemm_shape shape, const tiles_of<Body> all) {
  using pipeline = block_pipeline<WIDTH>;
  extern __shared__ __align__(1024) unsigned char shared[];  // the swizzle's pattern repeats after 1024 bytes
  const unsigned start = shared_address(shared);
  if (threadIdx.x == 0) init_barriers<WIDTH>(start);
  __syncthreads();
  const int warp = __shfl_sync(~0u, threadIdx.x / 32, 0), k_tiles = (shape.depth + BLOCK_DEPTH - 1) / BLOCK_DEPTH;
  if (warp < 4) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 24;");
    const bool leads = threadIdx.x % 32 == 0;
    if (warp == 0 && leads) {
      const auto row_of = [](tiles::place tile) { return tile.column * WIDTH; };
      bring<pipeline::wide, pipeline::quarters>(wide_map, all, k_tiles, (SWAPPED ? left : right).batch_stride != 0,
                                        start + pipeline::wide_blocks, start + pipeline::full, start + pipeline::empty, row_of);
    } else if (warp < 3 && leads) {
      const int group = warp - 1;
      const auto row_of = [&](tiles::place tile) { return tile.row * TILE_ROWS + group * BLOCK_ROWS; };
      bring<pipeline::own, 1>(split_map, all, k_tiles, (SWAPPED ? right : left).batch_stride != 0,
                          start + group * pipeline::own * BLOCK_BYTES, start + pipeline::own_full + group * pipeline::own * 8,
                          start + pipeline::own_empty + group * pipeline::own * 8, row_of);
    }
  } else if (warp < 12) {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 216;");
    const consumer<Body, both_split_operands> me{body, {left, right}, shape,
        reinterpret_cast<float*>(shared + pipeline::smem_tiles)};
    consume_unpacked<WIDTH, SWAPPED, SEGMENT, VECTOR>(me, all, k_tiles, shared);
  } else {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 56;");
    convert<WIDTH>(all, k_tiles, shared);
  }
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
  constexpr int bytes = block_pipeline<WIDTH>::shared_bytes;
  const long split_rows = SWAPPED ? columns : rows, wide_rows = SWAPPED ? rows : columns;
  const int down = int((split_rows + TILE_ROWS - 1) / TILE_ROWS), across = int((wide_rows + WIDTH - 1) / WIDTH);
  if (batches * down * across > 0x7fffffff) return cudaErrorInvalidValue;
  const auto all = tiles_of<Body>::of({down, across, int(batches * down * across)}, TILE_ROWS, WIDTH, SWAPPED);
  int blocks = 0;
  if (int error = prepare_persistent<kernel>(bytes, device, blocks)) return error;
  tensor_map split_map, wide_map;
  if (int error = map_operand(split_map, SWAPPED ? right : left, batches, split_rows, depth, BLOCK_ROWS)) return error;
  if (int error = map_operand(wide_map, SWAPPED ? left : right, batches, wide_rows, depth, BLOCK_ROWS)) return error;
  const gemm_shape shape{batches, int(rows), int(columns), int(depth)};
  const int grid = all.used(all.count, blocks);
  kernel<<<grid, UNPACKED_THREADS, bytes, static_cast<cudaStream_t>(stream)>>>(split_map, wide_map, body, left, right, shape,
                                                                             all);
  return cudaGetLastError();
}
#endif

//@
}  // namespace fusewright
