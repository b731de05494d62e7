// How 64 k of both operands of a product at a time, its k tiles, come into shared memory and are handed back (sm_90a).
//
// The surprising fact: what bounds narrow tiles is how long a group takes to split its rows, not the tensor cores or memory.
// So they have three groups of consumers, and each fetches its own 64 rows as soon as it has read the last ones. Wide tiles
// would lose 2 % by that: both groups read the same stages there.
//
// Text outside `//@ name` sections only serves a compilation of this file alone.
#pragma once
#include "kernels/tensor_core/cuda/split_k_sm90.cuh"
namespace fusewright {

//@ gemm_tiles: needs split_k, gemm_operand, pack, tile_order
constexpr int K_TILE_BLOCKS = 2, SHARED_BYTES = 232448;
// Two groups of consumers: a k block of both operands is a stage.
template <int WIDTH> struct wide_stage {
  static constexpr int groups = 2, rows = 128, box_rows = 128, registers = 240;
  static constexpr int split_bytes = rows * K_BLOCK * 4, bytes = split_bytes + WIDTH * K_BLOCK_BYTES;
  static constexpr int split_stride = bytes, packed_stride = bytes;  // from one k block to the next
  static constexpr int count = 196608 / bytes / K_TILE_BLOCKS * K_TILE_BLOCKS, k_tiles = count / K_TILE_BLOCKS;
  static constexpr int smem_tiles = count * bytes, scales = smem_tiles + 8 * SMEM_TILE * 4, full =
      scales + 2 * quarters<WIDTH> * 256;
  static constexpr int empty = full + 8 * count, shared_bytes = empty + 8 * count;
};
// Three groups: each has a pipeline of its own rows, and one of packed rows is for all.
template <int WIDTH> struct narrow_stage {
  static constexpr int groups = 3, rows = 192, box_rows = 64, registers = 160;
  static constexpr int split_stride = box_rows * K_BLOCK * 4, packed_stride = WIDTH * K_BLOCK_BYTES;
  static constexpr int split_bytes = split_stride * K_TILE_BLOCKS, packed_bytes = packed_stride * K_TILE_BLOCKS;
  static constexpr int tail = groups * 4 * SMEM_TILE * 4 + 2 * quarters<WIDTH> * 256 + 256, room = SHARED_BYTES - tail;
  static constexpr int fitting = (room - 2 * packed_bytes) / (groups * split_bytes), own = fitting < 3 ? fitting : 3;
  static constexpr int packed = groups * own * split_bytes, k_tiles = (room - packed) / packed_bytes;
  static constexpr int smem_tiles = packed + k_tiles * packed_bytes, scales = smem_tiles + groups * 4 * SMEM_TILE * 4;
  static constexpr int own_full = scales + 2 * quarters<WIDTH> * 256, own_empty = own_full + 8 * groups * own;
  static constexpr int full = own_empty + 8 * groups * own, empty = full + 8 * k_tiles, shared_bytes = empty + 8 * k_tiles;
};
template <int WIDTH, bool NARROW = (WIDTH < 128)> struct stage : wide_stage<WIDTH> {};
template <int WIDTH> struct stage<WIDTH, true> : narrow_stage<WIDTH> {};
template <int WIDTH> constexpr int gemm_threads = 128 + stage<WIDTH>::groups * 128;

//@ init_stages: needs gemm_tiles, barriers
FN void init_pipeline(unsigned full, unsigned empty, int count, int readers) {
  for (int slot = 0; slot < count; ++slot) {
    barrier_init(full + 8 * slot, 1);
    barrier_init(empty + 8 * slot, readers);
  }
}
template <int WIDTH> FN void init_stages(unsigned shared) {
  using stage = stage<WIDTH>;
  if constexpr (stage::groups == 2) {
    init_pipeline(shared + stage::full, shared + stage::empty, stage::count, 8);
  } else {
    init_pipeline(shared + stage::own_full, shared + stage::own_empty, stage::groups * stage::own, 4);
    init_pipeline(shared + stage::full, shared + stage::empty, stage::k_tiles, 4 * stage::groups);
  }
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

//@ produce: needs gemm_tiles, tensor_map, barriers
// One thread: every k block of every tile of this block, as soon as its stage is free.
template <int WIDTH, bool SPLIT_K, class Tiles>
FN void produce(const tensor_map& map, const packed& other, const Tiles& all, const split_k_plan& split_k, bool batched,
                unsigned stages) {
  using stage = stage<WIDTH>;
  const unsigned full = stages + stage::full, empty = stages + stage::empty;
  // This kernel may have started before the packing one was done.
  asm volatile("griddepcontrol.wait;" ::: "memory");
  int slot = 0;
  unsigned phase = 1, scales = stages + stage::scales;
  for (int number = blockIdx.x; number < split_k.pieces; number += gridDim.x) {
    const piece mine = piece_at<SPLIT_K, stage::k_tiles>(number, other.depth_scale_blocks, split_k);
    const tiles::place tile = all.at(mine.tile);
    const int begin = mine.first * K_TILE_BLOCKS, k_blocks = mine.k_tiles * K_TILE_BLOCKS;
    const int end = mine.shared < 0 ? other.depth_k_blocks : begin + split_k.k_tiles * K_TILE_BLOCKS;
    const int row = tile.column * WIDTH, rows = other.rows - row < WIDTH ? other.rows - row : WIDTH;
    for (int i = 0; i < k_blocks; ++i) {
      const unsigned to = stages + slot * stage::bytes, ready = full + 8 * slot;
      barrier_wait(empty + 8 * slot, phase);
      barrier_expect(ready, stage::split_bytes + rows * (i == 0 ? K_BLOCK_BYTES + 4 : K_BLOCK_BYTES));
      if (i == 0) load_bytes(scales, other.inverse + other.first_inverse(tile.batch, row), rows * 4, ready);
      // Behind its last k the split operand reads as zero; its partner only has to be a number.
      const bool inside = begin + i < end && begin + i < other.depth_k_blocks;
      const int k_block = inside ? begin + i : other.depth_k_blocks;
      load_box(to, map, ready, k_block * K_BLOCK, tile.row * TILE_ROWS, batched ? tile.batch : 0);
      load_bytes(to + stage::split_bytes, other.k_block(tile.batch, inside ? k_block : k_block - 1, row),
          rows * K_BLOCK_BYTES, ready);
      if (++slot == stage::count) slot = 0, phase ^= 1;
    }
    scales ^= (stages + stage::scales) ^ (stages + stage::scales + quarters<WIDTH> * 256);
  }
}

//@ produce_pipelines: needs gemm_tiles, tensor_map, barriers
FN int blocks_here() {
  int blocks;
  asm volatile("mov.u32 %0, %%nctaid.x;" : "=r"(blocks));  // asked again: no register is free for it
  return blocks;
}
// The same by one thread for each pipeline of the split operand, and one for the other.
template <int WIDTH, bool SPLIT_K, bool SPLIT, class Tiles>
FN void produce_pipeline(const tensor_map& map, const packed& other, const Tiles& all, const split_k_plan& split_k, bool batched,
                     unsigned start) {
  using stage = stage<WIDTH>;
  constexpr int SLOTS = SPLIT ? stage::own : stage::k_tiles;
  const unsigned full = start + (SPLIT ? stage::own_full : stage::full);
  const unsigned empty = start + (SPLIT ? stage::own_empty : stage::empty);
  if constexpr (!SPLIT) asm volatile("griddepcontrol.wait;" ::: "memory");
  unsigned count = 0, scales = start + stage::scales;
  for (int number = blockIdx.x; number < split_k.pieces; number += blocks_here()) {
    const piece mine = piece_at<SPLIT_K, stage::k_tiles>(number, other.depth_scale_blocks, split_k);
    const tiles::place tile = all.at(mine.tile);
    const int row = tile.column * WIDTH, rows = other.rows - row < WIDTH ? other.rows - row : WIDTH;
    const int bytes = rows * K_BLOCK_BYTES;
    const unsigned char* from = other.k_block(tile.batch, mine.first * K_TILE_BLOCKS, row);
    int k_block = mine.first * K_TILE_BLOCKS;
    bool begins = true;
#pragma unroll 1
    for (int left = mine.k_tiles; left > 0; --left, ++count) {
      const unsigned slot = (SPLIT ? threadIdx.x * SLOTS : 0) + count % SLOTS, ready = full + 8 * slot;
      barrier_wait(empty + 8 * slot, (count / SLOTS & 1) ^ 1);
      if constexpr (SPLIT) {
        barrier_expect(ready, stage::split_bytes);
#pragma unroll
        for (int u = 0; u < K_TILE_BLOCKS; ++u, ++k_block)
          load_box(start + slot * stage::split_bytes + u * stage::split_stride, map, ready, k_block * K_BLOCK,
                   tile.row * stage::rows + int(threadIdx.x) * stage::box_rows, batched ? tile.batch : 0);
      } else {
        barrier_expect(ready, bytes * K_TILE_BLOCKS + (begins ? bytes / 32 : 0));
        if (begins) load_bytes(scales, other.inverse + other.first_inverse(tile.batch, row), bytes / 32, ready);
        begins = false;
#pragma unroll
        for (int u = 0; u < K_TILE_BLOCKS; ++u) {
          load_bytes(start + stage::packed + slot * stage::packed_bytes + u * stage::packed_stride, from, bytes, ready);
          from += ++k_block < other.depth_k_blocks ? other.rows * K_BLOCK_BYTES : 0;
        }
      }
    }
    scales ^= (start + stage::scales) ^ (start + stage::scales + quarters<WIDTH> * 256);
  }
}
template <int WIDTH, bool SPLIT_K, class Tiles>
FN void produce_pipelines(const tensor_map& map, const packed& other, const Tiles& all, const split_k_plan& split_k, bool batched,
                      unsigned start) {
  if (threadIdx.x < stage<WIDTH>::groups)
    produce_pipeline<WIDTH, SPLIT_K, true>(map, other, all, split_k, batched, start);
  else if (threadIdx.x == 32)
    produce_pipeline<WIDTH, SPLIT_K, false>(map, other, all, split_k, batched, start);
}

//@ k_tile_place: needs gemm_tiles, barriers
// Where a consumer group is among the k tiles. `begin` waits for the scales of a tile, too; the others for what they name.
template <int WIDTH, bool NARROW = (WIDTH < 128)> struct k_tile_place {
  using stage = stage<WIDTH>;
  int slot = 0;
  unsigned phase = 0;
  FN void begin(unsigned shared) const { barrier_wait(shared + stage::full + 8 * slot, phase); }
  FN unsigned split(unsigned shared, int) const {
#pragma unroll
    for (int u = 0; u < K_TILE_BLOCKS; ++u) barrier_wait(shared + stage::full + 8 * (slot + u), phase);
    return shared + slot * stage::bytes;
  }
  FN void split_read(unsigned, int) const {}
  FN unsigned packed(unsigned shared) const { return shared + slot * stage::bytes + stage::split_bytes; }
  FN void packed_read(unsigned shared) {
    if (threadIdx.x % 32 == 0)
#pragma unroll
      for (int u = 0; u < K_TILE_BLOCKS; ++u) barrier_arrive(shared + stage::empty + 8 * (slot + u));
    slot += K_TILE_BLOCKS;
    if (slot == stage::count) slot = 0, phase ^= 1;
  }
};
template <int WIDTH> struct k_tile_place<WIDTH, true> {
  using stage = stage<WIDTH>;
  unsigned count = 0;
  FN unsigned own(int group) const { return group * stage::own + count % stage::own; }
  FN void begin(unsigned shared) const {
    barrier_wait(shared + stage::full + 8 * (count % stage::k_tiles), count / stage::k_tiles & 1);
  }
  FN unsigned split(unsigned shared, int group) const {
    barrier_wait(shared + stage::own_full + 8 * own(group), count / stage::own & 1);
    return shared + own(group) * stage::split_bytes;
  }
  FN void split_read(unsigned shared, int group) const {
    __syncwarp();
    if (threadIdx.x % 32 == 0) barrier_arrive(shared + stage::own_empty + 8 * own(group));
  }
  FN unsigned packed(unsigned shared) const {
    begin(shared);
    return shared + stage::packed + count % stage::k_tiles * stage::packed_bytes;
  }
  FN void packed_read(unsigned shared) {
    if (threadIdx.x % 32 == 0) barrier_arrive(shared + stage::empty + 8 * (count % stage::k_tiles));
    ++count;
  }
};

//@
}  // namespace fusewright
