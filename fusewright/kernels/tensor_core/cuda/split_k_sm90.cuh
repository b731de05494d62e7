// Tiles of a product in waves, one to each processor, and the last wave's tiles in parts (sm_90a).
//
// Where tiles do not fill the last wave, several blocks share the k of each of its tiles. Each leaves its sums in memory; the
// one that arrives last adds them up in the order of parts, whoever that is.
//
// Text outside `//@ name` sections only serves a compilation of this file alone.
#pragma once
#include "kernels/tensor_core/cuda/tile_sm90.cuh"
namespace fusewright {

//@ add_partials: needs tile_order, barriers, here
// One thing that a block has to do: some k tiles of a tile. `shared`: its number among all parts, or negative.
struct piece {
  int tile, first, k_tiles, shared;
};
// Where the sums of a tile's parts lie, `count` of them from `first` on, and those of this part; `arrived`: by group.
struct tile_partials {
  float* sums;
  unsigned* arrived;
  int first, count, mine;
};
// A group's share of a part's sums goes to memory, four numbers of a lane side by side. True for the group that is the
// last of its tile: it has the sums of all parts then.
template <int WIDTH, int GROUPS = 2> FN bool add_partials(float (&promoted)[quarters<WIDTH>][32], const tile_partials& partials) {
  constexpr int QUADS = WIDTH / 8, THREADS = GROUPS * 128;
  const int thread = thread_here() - 128, group = thread / 128;
  float4* const mine = reinterpret_cast<float4*>(partials.sums) + long(partials.mine) * QUADS * THREADS + thread;
#pragma unroll
  for (int i = 0; i < QUADS; ++i) {
    const float* const from = &promoted[i / 8][i % 8 * 4];
    __stcg(mine + i * THREADS, make_float4(from[0], from[1], from[2], from[3]));
  }
  __threadfence();
  group_sync(1 + group, 128);
  bool last = false;
  if (thread % 128 == 0) last = atomicAdd(partials.arrived + group, 1) == unsigned(partials.count - 1);
  if (!__any_sync(~0u, group_any(1 + group, 128, last))) return false;
  __threadfence();
  const float4* const first = reinterpret_cast<float4*>(partials.sums) + long(partials.first) * QUADS * THREADS + thread;
#pragma unroll
  for (int i = 0; i < QUADS; ++i) {
    float* const to = &promoted[i / 8][i % 8 * 4];
    to[0] = to[1] = to[2] = to[3] = 0;
  }
#pragma unroll 1
  for (int part = 0; part < partials.count; ++part)
#pragma unroll
    for (int i = 0; i < QUADS; ++i) {
      const float4 more = __ldcg(first + (part * QUADS + i) * THREADS);
      float* const to = &promoted[i / 8][i % 8 * 4];
      to[0] += more.x, to[1] += more.y, to[2] += more.z, to[3] += more.w;
    }
  return true;
}

//@ split_k: needs add_partials
// The first `whole` tiles have a block each. The others have `count` parts of `k_tiles` k tiles of 64 k. `pieces`: of both.
struct split_k_plan {
  int whole, count, k_tiles, pieces;
  float* sums;
  unsigned* arrived;  // by tile with parts and consumer group, zeroed while packing
};
// A part has at least LEAST k tiles, whatever there are: all stages, so that nobody can be two pieces ahead.
template <bool SPLIT_K, int LEAST> FN piece piece_at(int number, int depth_k_tiles, const split_k_plan& split_k) {
  const int shared = number - split_k.whole;
  if (!SPLIT_K || shared < 0) return {number, 0, depth_k_tiles < LEAST ? LEAST : depth_k_tiles, -1};
  const int first = shared % split_k.count * split_k.k_tiles, rest = depth_k_tiles - first;
  const int k_tiles = rest < split_k.k_tiles ? rest : split_k.k_tiles;
  return {split_k.whole + shared / split_k.count, first, k_tiles < LEAST ? LEAST : k_tiles, shared};
}
template <int GROUPS> FN tile_partials partials_of(const split_k_plan& split_k, int shared) {
  const int tile = shared / split_k.count;
  return {split_k.sums, split_k.arrived + tile * GROUPS, tile * split_k.count, split_k.count, shared};
}

//@ plan_split_k: needs split_k
#ifndef __CUDACC_RTC__
// How the k of the last wave's tiles is shared, by what the pieces and the adding cost, in tenths of a k tile. There is room
// for the sums of ROOM parts, and behind them for a count of each and each group.
constexpr int LEAST_K_TILES = 4, ADDING = 30, ADDING_PARTIAL = 6;
template <int ROWS, int WIDTH, int ROOM> split_k_plan plan_split_k(int tiles, int depth_k_tiles, int blocks, float* sums) {
  const int rest = tiles % blocks;
  split_k_plan best{tiles, 1, depth_k_tiles, tiles, sums, reinterpret_cast<unsigned*>(sums + long(ROOM) * ROWS * WIDTH)};
  long least = 10l * depth_k_tiles;
  for (int count = 2; rest * count <= ROOM && count * LEAST_K_TILES <= depth_k_tiles && rest > 0; ++count) {
    const int k_tiles = (depth_k_tiles + count - 1) / count, parts = (depth_k_tiles + k_tiles - 1) / k_tiles;
    const long rounds = (rest * parts + blocks - 1) / blocks, cost = rounds * (10 * k_tiles + ADDING + ADDING_PARTIAL * parts);
    if (cost < least) least = cost, best.whole = tiles - rest, best.count = parts, best.k_tiles = k_tiles;
  }
  best.pieces = best.whole + (tiles - best.whole) * best.count;
  return best;
}
#endif

//@ stream_k: needs add_partials, cluster, next_kernel
// The same for clusters, whose tiles come in pairs. All k tiles of the last wave's pairs in a row are cut into ranges of
// equal length, one for each cluster, wherever a pair ends: a range may be the end of one and the beginning of the next.
struct stream_k_plan {
  int whole, rest, depth_k_tiles, pieces;   // pairs with a cluster each, and others; k tiles of each
  int length, count, again, slots;  // of a range; ranges; clusters at work; room for the parts of a block's tiles
  float* sums;
  unsigned* arrived;
};
// Its second pair, if it has one, is a piece that comes `again` numbers later. No k tiles: nothing to do.
template <bool STREAM_K> FN piece piece_at(int number, const stream_k_plan& r) {
  int range = number - r.whole;
  if (!STREAM_K || range < 0) return {number, 0, r.depth_k_tiles, -1};
  const bool second = range >= r.again;
  if (second) range -= r.again;
  const int begin = range * r.length, tile = begin / r.depth_k_tiles + second, first =
      second ? 0 : begin - tile * r.depth_k_tiles;
  const int end = begin + r.length - tile * r.depth_k_tiles, last = end < r.depth_k_tiles ? end : r.depth_k_tiles;
  const bool none = range >= r.count || tile >= r.rest;
  return {r.whole + tile, first, none ? 0 : last - first, range + tile};
}
FN tile_partials partials_of(const stream_k_plan& r, const piece& mine, int rank) {
  const int tile = mine.tile - r.whole, begin = tile * r.depth_k_tiles, room = rank * r.slots, first = begin / r.length;
  const int count = (begin + r.depth_k_tiles - 1) / r.length - first + 1;
  return {r.sums, r.arrived + (tile * CLUSTER + rank) * 2, room + first + tile, count, room + mine.shared};
}
__global__ void zero_counts(unsigned* arrived, int count) {
  let_next_kernel_start();
  for (int i = threadIdx.x; i < count; i += blockDim.x) arrived[i] = 0;
}

//@ plan_stream_k: needs stream_k
#ifndef __CUDACC_RTC__
// How long the ranges are, by what they and the adding cost, in tenths of a k tile: ADDING, with a kernel for the counts, and
// ADDING_PARTIAL for each part of a tile. There is room for the sums of ROOM parts, and behind them for two counts of each.
constexpr int LEAST_RANGE = 4;
template <int WIDTH, int ROOM, int ADDING, int ADDING_PARTIAL>
stream_k_plan plan_stream_k(int cluster_tiles, int depth_k_tiles, int clusters, float* sums) {
  const int rest = cluster_tiles % clusters;
  stream_k_plan best{cluster_tiles, 0, depth_k_tiles, cluster_tiles, depth_k_tiles, 0, clusters, 0, sums, nullptr};
  best.arrived = reinterpret_cast<unsigned*>(sums + long(ROOM) * TILE_ROWS * WIDTH);
  long least = 10l * depth_k_tiles;
  const int even = (rest * depth_k_tiles + clusters - 1) / clusters;
  for (int length = even < LEAST_RANGE ? LEAST_RANGE : even; ROOM > 0 && rest > 0 && 10 * length < least; ++length) {
    const int count = (rest * depth_k_tiles + length - 1) / length, slots = count + rest;
    const int parts = depth_k_tiles % length ? (depth_k_tiles - 2) / length + 2 : depth_k_tiles / length;
    const long cost = 10l * length + ADDING + ADDING_PARTIAL * parts;
    if (slots * CLUSTER > ROOM || cost >= least) continue;
    least = cost, best.whole = cluster_tiles - rest, best.rest = rest;
    best.length = length, best.count = count, best.slots = slots;
  }
  if (best.rest == 0) return best;
  if (best.whole == 0) best.again = best.count;
  best.pieces = best.whole + best.again + best.count;
  return best;
}
#endif

//@
}  // namespace fusewright
