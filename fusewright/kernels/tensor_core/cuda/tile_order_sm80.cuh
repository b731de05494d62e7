// Where the tiles of a product lie, and in which order blocks take them (sm_80).
//
// Text outside `//@ name` sections only serves a compilation of this file alone.
#pragma once
#include "devicelib/cuda/instructions_sm80.cuh"
namespace fusewright {

//@ anew
// Block and thread, in a way that keeps the compiler from remembering all through the loop what depends on them.
FN long block_anew() {
  unsigned x, y;
  asm volatile("mov.u32 %0, %%ctaid.x;" : "=r"(x));
  asm volatile("mov.u32 %0, %%ctaid.y;" : "=r"(y));
  return long(y) * gridDim.x + x;
}
FN int thread_anew() {
  int thread;
  asm volatile("mov.u32 %0, %%tid.x;" : "=r"(thread));
  return thread;
}

//@ tile_order: needs k_blocks
constexpr int GEMM_THREADS = 256, GEMM_WARPS = 8, WARP_ROWS = 32, SUM_K_BLOCKS = 16;
template <int WIDTH> struct tile {
  static constexpr int width = WIDTH, warp_rows = WARP_ROWS;
  static constexpr int split_rows = WIDTH > 128 ? 64 : 128, warps_across = GEMM_WARPS * WARP_ROWS / split_rows;
  static constexpr int warp_columns = WIDTH / warps_across, pairs = warp_columns / 16;
  static constexpr int split_bytes = split_rows * K_BLOCK * 4, stage_bytes = split_bytes + WIDTH * K_BLOCK_BYTES;
  static constexpr int fitting = 163840 / stage_bytes, stages = fitting < 6 ? fitting : 6;
  static constexpr int shared_bytes = stages * stage_bytes;
};
// The order of tiles: eight rows of tiles at a time, so that the blocks at work share what they read.
struct tiles {
  int down, across;
  long count;
  struct place {
    long batch;
    int row, column;
  };
  FN place at(long number) const {
    const long all = long(down) * across, within = number % all, group = within / (8L * across);
    const int first = int(group) * 8, height = down - first < 8 ? down - first : 8;
    const int rest = int(within - group * 8 * across);
    return {number / all, first + rest % height, rest / height};
  }
};

//@ tiles_of: needs tile_order
// Whether a tile is multiplied for a body: always, unless that says that a mask throws some away.
template <class Body, class = void> struct tiles_of : tiles {
  template <bool SWAPPED, int VECTOR> FN bool blanks(const Body&, const gemm_shape&) const { return false; }
#ifndef __CUDACC_RTC__
  static tiles_of of(tiles whole, int, int, bool) { return {whole}; }
#endif
};

//@
}  // namespace fusewright
