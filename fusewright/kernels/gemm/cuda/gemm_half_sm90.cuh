// Products of float16 or bfloat16 operands on Hopper (sm_90a): both go straight from TMA to the tensor cores.
//
// A block has three groups of four warps. One thread of the first keeps `count` stages of 64 k on their way into shared
// memory; the two others own 64 rows each of a tile of 128 x WIDTH, whose sums stay in the tensor cores' float32 from the
// first k to the last, as eager's do.
//
// Two blocks, a cluster, have neighbouring tiles, and each fetches half of what these share for both: what L2 delivers is the
// limit. Where tiles do not fill the last wave, clusters share their k (split_k_sm90.cuh).
//
// The surprising fact: while a group hands its tile to the body it leaves the tensor cores to the other one, which helps
// only if the two are not at the same place. So the second group starts later, and stays behind, but by no more than there
// are stages. Where k are few, or much is done at the end, a group has tiles of its own (PINGPONG): 128 rows of fewer columns.
//
// Text outside `//@ name` sections only serves a compilation of this file alone.
#pragma once
#include "kernels/tensor_core/cuda/half_operands_sm90.cuh"
namespace fusewright {

//@ half_tiles: needs tiles_of, cluster
// What the clusters have to do: pairs of neighbouring tiles in a column of tiles, which share `wide`, or, `beside`, in a
// row, which share `tall`. A tile behind the last one reads zeros and stores nothing.
template <class Tiles> struct cluster_tiles {
  Tiles all;
  bool beside;
  FN tiles::place at(int number, int rank) const {
    const tiles::place two = all.at(number);
    return {two.batch, beside ? two.row : two.row * CLUSTER + rank, beside ? two.column * CLUSTER + rank : two.column};
  }
};

//@ half_produce: needs half_k_tile, half_tiles, stream_k, tensor_map, barriers
template <int WIDTH> struct half_stage {
  static constexpr int tall_bytes = TILE_ROWS * HALF_LINE, bytes = tall_bytes + WIDTH * HALF_LINE;
  static constexpr int count = 196608 / bytes, smem_tiles = count * bytes, barriers = smem_tiles + 8 * SMEM_TILE * 4;
  static constexpr int shared_bytes = barriers + 16 * count;
};
// How many lines a box has, if the other block does not fetch half of them.
template <int ROWS, bool TRANSPOSED> constexpr int half_lines = TRANSPOSED ? HALF_DEPTH : ROWS;
template <int ROWS, bool TRANSPOSED>
FN void load_half(unsigned to, const tensor_map& map, unsigned ready, int k, int row, int batch, bool both, int rank) {
  const int first = both ? rank * half_lines<ROWS, TRANSPOSED> / CLUSTER : 0;  // of the lines that this block fetches
#pragma unroll
  for (int r = 0; r < (TRANSPOSED ? ROWS : 1); r += 64) {
    const unsigned there = to + (r + first) * HALF_LINE;
    const int along = TRANSPOSED ? row + r : k, line = (TRANSPOSED ? k : row) + first;
    if (both)
      load_box_twice(there, map, ready, along, line, batch);
    else
      load_box(there, map, ready, along, line, batch);
  }
}
template <int ROWS>
FN void load_half_ordered(unsigned to, const tensor_map& map, unsigned ready, int k, int row, int batch, bool both, int rank) {
  constexpr int BOXES = ROWS / ORDERED_ROWS, MOST = (BOXES + 1) / 2 * ORDERED_ROWS;  // of the first block
  const int first = both ? rank * MOST : 0, each = !both ? ROWS : rank ? ROWS - MOST : MOST;
#pragma unroll
  for (int r = 0; r < ROWS; r += ORDERED_ROWS)
    if (r < each) load_ordered(to + (first + r) * HALF_LINE, map, ready, k, row + first + r, batch, both);
}
// One thread: every 64 k of every tile of this block, as soon as its stage is free in both blocks. `tall`: the operand of
// which a tile has 128 rows; `wide`: the one of which it has WIDTH.
template <int WIDTH, bool TALL_TRANSPOSED, bool WIDE_TRANSPOSED, bool ORDERED, bool STREAM_K, class Tiles>
FN void half_produce(const tensor_map& tall, const tensor_map& wide, bool tall_batched, bool wide_batched,
                     const cluster_tiles<Tiles>& all, const stream_k_plan& stream_k, unsigned stages, unsigned full,
                         unsigned empty) {
  using stage = half_stage<WIDTH>;
  const int rank = cluster_rank();
  int slot = 0;
  unsigned phase = 1;
  const auto next = [&] {
    if (++slot == stage::count) slot = 0, phase ^= 1;
  };
  for (int number = blockIdx.x / CLUSTER; number < stream_k.pieces; number += gridDim.x / CLUSTER) {
    const piece mine = piece_at<STREAM_K>(number, stream_k);
    const tiles::place tile = all.at(mine.tile, rank);
    const int tall_batch = tall_batched ? tile.batch : 0, wide_batch = wide_batched ? tile.batch : 0;
    for (int k_tile = 0; k_tile < mine.k_tiles; ++k_tile, next()) {
      const unsigned to = stages + slot * stage::bytes, ready = full + 8 * slot;
      const int k = (mine.first + k_tile) * HALF_DEPTH;
      barrier_wait(empty + 8 * slot, phase);
      barrier_expect(ready, stage::bytes);
      load_half<TILE_ROWS, TALL_TRANSPOSED>(to, tall, ready, k, tile.row * TILE_ROWS, tall_batch, all.beside, rank);
      if constexpr (ORDERED)
        load_half_ordered<WIDTH>(to + stage::tall_bytes, wide, ready, k, tile.column * WIDTH, wide_batch, !all.beside, rank);
      else
        load_half<WIDTH, WIDE_TRANSPOSED>(to + stage::tall_bytes, wide, ready, k, tile.column * WIDTH, wide_batch, !all.beside,
                                      rank);
    }
  }
  // This block's barriers have to last until its partner has used them.
  for (int i = 0; i < stage::count; ++i, next()) barrier_wait(empty + 8 * slot, phase);
}

//@ half_consume: needs half_produce, tile_out
template <class T, int WIDTH, bool SWAPPED, int SEGMENT, int VECTOR, bool TALL_TRANSPOSED, bool WIDE_TRANSPOSED,
          bool STREAM_K, bool PINGPONG, class Consumer, class Tiles>
FN void half_consume(const Consumer& me, const cluster_tiles<Tiles>& all, const stream_k_plan& stream_k, unsigned stages,
                     unsigned full, unsigned empty) {
  static_assert(!PINGPONG || !STREAM_K, "parts are of tiles that both groups have");
  using stage = half_stage<WIDTH>;
  constexpr int SLABS = PINGPONG ? 2 : 1;
  const int group = warp_here() / 4 - 1, rank = cluster_rank(), lane = threadIdx.x % 32;
  int slot = 0;
  unsigned phase = 0;
  if constexpr (Tiles::blanks)
    all.all.template blanks_out<SWAPPED, VECTOR>(me.body, me.shape, blockIdx.x / CLUSTER, gridDim.x / CLUSTER,
                                                 warp_here() - 4 + rank * 8, 8 * CLUSTER);
  const bool late = !PINGPONG && group == 1 && (!Tiles::blanks || int(blockIdx.x / CLUSTER) < stream_k.pieces);
  if (late && piece_at<STREAM_K>(blockIdx.x / CLUSTER, stream_k).k_tiles > HEAD_START) barrier_wait(full + 8 * HEAD_START, 0);
  const auto pass = [&](int count) { for (slot += count; slot >= stage::count; slot -= stage::count) phase ^= 1; };
  // The other group's tile has all its stages before this one's begins: a barrier tells whether its last phase is over, not
  // which one that was.
  int other = 0;  // the group whose tile it is not
  if (PINGPONG && group == 1) group_arrive(4, 256);
  for (int number = blockIdx.x / CLUSTER; number < stream_k.pieces; number += gridDim.x / CLUSTER) {
    // Asked again wherever it is needed, or all of it would be kept in registers from here on.
    const auto here = [&] {
      int again = number;
      asm volatile("" : "+r"(again));
      return piece_at<STREAM_K>(again, stream_k);
    };
    const int k_tiles = here().k_tiles;
    if (STREAM_K && k_tiles <= 0) continue;
    if constexpr (PINGPONG) {
      other ^= 1;
      if (other == group) {
        pass(k_tiles);
        continue;
      }
      group_sync(4 + group, 256);
    }
    float sums[SLABS][quarters<WIDTH>][32];
#pragma unroll
    for (int s = 0; s < SLABS; ++s) pin_all<WIDTH>(sums[s]);
    unsigned before = 0;  // the barrier of the stage that the tensor core may still read
    for (int k_tile = 0; k_tile < k_tiles; ++k_tile) {
      const unsigned at = stages + slot * stage::bytes;
      barrier_wait(full + 8 * slot, phase);
      half_k_tile<T, WIDTH, TALL_TRANSPOSED, WIDE_TRANSPOSED>(sums, at + (PINGPONG ? 0 : group) * 64 * HALF_LINE,
                                                     at + stage::tall_bytes, k_tile > 0);
      if (PINGPONG && k_tile == k_tiles - 1) group_arrive(5 - group, 256);
      multiply_wait<1>();
      if (lane < CLUSTER && k_tile > 0) cluster_arrive(before, lane);
      before = empty + 8 * slot;
      pass(1);
    }
    multiply_wait<0>();
    if (lane < CLUSTER) cluster_arrive(before, lane);
#pragma unroll
    for (int s = 0; s < SLABS; ++s) pin_all<WIDTH>(sums[s]);
    const piece mine = here();
    if constexpr (STREAM_K)
      if (mine.shared >= 0) {
        wait_for_previous_kernel();  // it sets the counts to 0
        if (!add_partials<WIDTH>(sums[0], partials_of(stream_k, mine, rank))) continue;
      }
#pragma unroll
    for (int s = 0; s < SLABS; ++s) {
      const Consumer now{me.body, me.operands, me.shape, me.smem_tiles, PINGPONG ? warp_here() % 4 + s * 4 : warp_here() - 4};
      if constexpr (SWAPPED)
        now.template columns_out<WIDTH, SEGMENT, VECTOR>(sums[s], all.at(mine.tile, rank), nullptr);
      else
        now.template rows_out<WIDTH, SEGMENT, VECTOR>(sums[s], all.at(mine.tile, rank), nullptr);
    }
  }
}

//@ run_gemm_half: needs half_consume, prepare_persistent, plan_stream_k, launch_early, device_scope
template <int WIDTH, bool SWAPPED, int SEGMENT, int VECTOR, class T, bool LEFT_TRANSPOSED, bool RIGHT_TRANSPOSED,
          bool STREAM_K, bool PINGPONG, class Body>
__global__ void __launch_bounds__(GEMM_THREADS, 1)
    gemm_half_kernel(const __grid_constant__ tensor_map tall, const __grid_constant__ tensor_map wide,
                        const __grid_constant__ Body body, const half_gemm_operand<T, LEFT_TRANSPOSED> left,
                        const half_gemm_operand<T, RIGHT_TRANSPOSED> right, const gemm_shape shape,
                            const cluster_tiles<tiles_of<Body>> all,
                        const stream_k_plan stream_k) {
  using stage = half_stage<WIDTH>;
  constexpr bool TALL_TRANSPOSED = SWAPPED ? RIGHT_TRANSPOSED : LEFT_TRANSPOSED, WIDE_TRANSPOSED =
      SWAPPED ? LEFT_TRANSPOSED : RIGHT_TRANSPOSED;
  constexpr bool ORDERED = ordered<SWAPPED, SEGMENT, VECTOR, WIDE_TRANSPOSED>;
  extern __shared__ __align__(1024) unsigned char shared[];  // the swizzle's pattern repeats after 1024 bytes
  const unsigned stages = shared_address(shared), full = stages + stage::barriers, empty = full + 8 * stage::count;
  if (threadIdx.x == 0) {
    for (int slot = 0; slot < stage::count; ++slot) {
      barrier_init(full + 8 * slot, 1);
      barrier_init(empty + 8 * slot, (PINGPONG ? 4 : 8) * CLUSTER);
    }
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
  // This kernel may have started before the one that wrote its operands was done; not where counts are set in between.
  if (!STREAM_K || stream_k.rest == 0) wait_for_previous_kernel();
  cluster_sync();
  const int warp = __shfl_sync(~0u, threadIdx.x / 32, 0);
  if (warp < 4) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 24;");
    const bool left_batched = left.batch_stride != 0, right_batched = right.batch_stride != 0;
    if (threadIdx.x == 0)
      half_produce<WIDTH, TALL_TRANSPOSED, WIDE_TRANSPOSED, ORDERED, STREAM_K>(tall, wide, SWAPPED ? right_batched : left_batched,
                                                                    SWAPPED ? left_batched : right_batched, all, stream_k,
                                                                    stages, full, empty);
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 240;");
    constexpr int MOST = PINGPONG && WIDTH > 128 ? 64 : sizeof(Body) > 32 ? 128 : 256;  // registers for what many tensors have
    const consumer<Body, whole_operands<ORDERED ? EIGHT : 2, MOST>> me{body, {}, shape,
                                                                      reinterpret_cast<float*>(shared + stage::smem_tiles)};
    half_consume<T, WIDTH, SWAPPED, SEGMENT, VECTOR, TALL_TRANSPOSED, WIDE_TRANSPOSED, STREAM_K, PINGPONG>(me, all, stream_k,
        stages, full, empty);
  }
}
#ifdef __CUDACC_RTC__
template <int WIDTH, bool SWAPPED, int SEGMENT, int VECTOR, int ROOM = 0, bool PINGPONG = false, int ADDING = 0,
          int ADDING_PARTIAL = 0, class T, bool LEFT_TRANSPOSED, bool RIGHT_TRANSPOSED, class Body>
FN int run_gemm_half(const Body&, half_gemm_operand<T, LEFT_TRANSPOSED>, half_gemm_operand<T, RIGHT_TRANSPOSED>, long, long,
                        long, long, void*, int, void*) {
  return &zero_counts == nullptr ||
         &gemm_half_kernel<WIDTH, SWAPPED, SEGMENT, VECTOR, T, LEFT_TRANSPOSED, RIGHT_TRANSPOSED, (ROOM > 0), PINGPONG,
             Body> == nullptr;
}
#else
// `workspace`: for the sums of ROOM parts, each with two counts; ADDING, ADDING_PARTIAL: as in `plan_stream_k`.
template <int WIDTH, bool SWAPPED, int SEGMENT, int VECTOR, int ROOM = 0, bool PINGPONG = false, int ADDING = 0,
          int ADDING_PARTIAL = 0, class T, bool LEFT_TRANSPOSED, bool RIGHT_TRANSPOSED, class Body>
int run_gemm_half(const Body& body, half_gemm_operand<T, LEFT_TRANSPOSED> left, half_gemm_operand<T, RIGHT_TRANSPOSED> right,
                     long batches, long rows, long columns, long depth, void* workspace, int device, void* stream) {
  if (batches <= 0 || rows <= 0 || columns <= 0) return 0;
  const device_scope scope(device);
  constexpr auto kernel =
      &gemm_half_kernel<WIDTH, SWAPPED, SEGMENT, VECTOR, T, LEFT_TRANSPOSED, RIGHT_TRANSPOSED, (ROOM > 0), PINGPONG, Body>;
  constexpr int LEFT_ROWS = SWAPPED ? WIDTH : TILE_ROWS, RIGHT_ROWS = SWAPPED ? TILE_ROWS : WIDTH;
  int blocks = 0;
  if (int error = prepare_persistent<kernel>(half_stage<WIDTH>::shared_bytes, device, blocks)) return error;
  const long down = ((SWAPPED ? columns : rows) + TILE_ROWS - 1) / TILE_ROWS;
  const long across = ((SWAPPED ? rows : columns) + WIDTH - 1) / WIDTH;
  const bool beside = down % CLUSTER && across % CLUSTER == 0;
  const long high = beside ? down : (down + 1) / CLUSTER, broad = beside ? across / CLUSTER : across;
  if (batches * high * broad * CLUSTER > 0x3fffffff) return cudaErrorInvalidValue;
  const int tile_rows = TILE_ROWS * (beside ? 1 : CLUSTER), tile_columns = WIDTH * (beside ? CLUSTER : 1);
  const tiles whole{int(high), int(broad), int(batches * high * broad)};
  const cluster_tiles<tiles_of<Body>> all{tiles_of<Body>::of(whole, tile_rows, tile_columns, SWAPPED), beside};
  tensor_map tall, wide;
  tensor_map &first = SWAPPED ? wide : tall, &second = SWAPPED ? tall : wide;
  const int left_lines = half_lines<LEFT_ROWS, LEFT_TRANSPOSED> / (beside != SWAPPED ? CLUSTER : 1);
  const int right_lines = half_lines<RIGHT_ROWS, RIGHT_TRANSPOSED> / (beside == SWAPPED ? CLUSTER : 1);
  int error = map_half(first, left, left_lines, batches, rows, depth);
  if constexpr (ordered<SWAPPED, SEGMENT, VECTOR, RIGHT_TRANSPOSED>) {
    if (columns % EIGHT) return cudaErrorInvalidValue;
    if (!error) error = map_ordered(second, right, batches, columns, depth);
  } else {
    if (!error) error = map_half(second, right, right_lines, batches, columns, depth);
  }
  if (error) return error;
  const auto on = static_cast<cudaStream_t>(stream);
  const gemm_shape shape{batches, int(rows), int(columns), int(depth)};
  const int clusters = blocks / CLUSTER, k_tiles = int((depth + HALF_DEPTH - 1) / HALF_DEPTH);
  const stream_k_plan stream_k =
      plan_stream_k<WIDTH, ROOM, ADDING, ADDING_PARTIAL>(all.all.count, k_tiles, clusters, static_cast<float*>(workspace));
  if (stream_k.rest) zero_counts<<<1, 256, 0, on>>>(stream_k.arrived, stream_k.rest * CLUSTER * 2);
  const dim3 grid(unsigned(all.all.used(stream_k.pieces, clusters)) * CLUSTER);
  return launch_early(kernel, grid, GEMM_THREADS, half_stage<WIDTH>::shared_bytes, CLUSTER, on, tall, wide, body, left,
                      right, shape, all, stream_k);
}
#endif

//@
}  // namespace fusewright
