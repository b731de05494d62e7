// How a generated CUDA kernel is started: rows over teams, or a map over lanes.
//
// The surprising fact: a block handles one piece of work and ends. The hardware's block scheduler balances the
// tail better than a loop over rows in the kernel, and no barrier is needed between rows.
//
// Launchers return a cudaError_t as int, and 0 for nothing to do. NVRTC has no host code: there, with
// -default-device, each launcher only names its kernel, which compiles it.
//
// Text outside `//@ name` sections only serves a compilation of this file alone.
#pragma once
#include "team.cuh"
namespace fusewright {

//@ grid
// A grid of any number of blocks: x holds 2^31 - 1 of them, y the rest.
FN long block_index() { return long(blockIdx.y) * gridDim.x + blockIdx.x; }
#ifndef __CUDACC_RTC__
inline dim3 grid_of(long blocks) {
  const long most = 1L << 30;
  return blocks <= most ? dim3(unsigned(blocks)) : dim3(unsigned(most), unsigned((blocks + most - 1) / most));
}
#endif

//@ device_scope
// The caller's device is current again at the end; most often it already is.
#ifndef __CUDACC_RTC__
struct device_scope {
  int before = -1;
  bool moved = false;
  explicit device_scope(int device) {
    moved = cudaGetDevice(&before) == cudaSuccess && before != device && cudaSetDevice(device) == cudaSuccess;
  }
  ~device_scope() {
    if (moved) cudaSetDevice(before);
  }
  device_scope(const device_scope&) = delete;
};
#endif

//@ aligned
// Whether vectors of W elements can be used on these pointers; a view may start anywhere.
template <int W, class... T> inline bool aligned(const T*... p) {
  return (true && ... && (reinterpret_cast<unsigned long>(p) % (W * sizeof(T) < 16 ? W * sizeof(T) : 16) == 0));
}

//@ run_rows: needs team, grid, device_scope
// Short rows share blocks of ROW_BLOCK threads; a team of more than 32 is a block of its own.
constexpr int ROW_BLOCK = 128;
template <int THREADS> constexpr int row_block = THREADS <= 32 ? ROW_BLOCK : THREADS;
template <int THREADS, int VECTOR, class Body>
__global__ void __launch_bounds__(row_block<THREADS>) row_kernel(const Body body, long rows) {
  const long row = block_index() * (row_block<THREADS> / THREADS) + threadIdx.x / THREADS;
  if (row >= rows) return;
  body(row, team<THREADS, VECTOR>());
}
#ifdef __CUDACC_RTC__
template <int THREADS, int VECTOR, class Body> FN int run_rows(const Body&, long, int, void*) {
  return &row_kernel<THREADS, VECTOR, Body> == nullptr;
}
#else
template <int THREADS, int VECTOR, class Body>
int run_rows(const Body& body, long rows, int device, void* stream) {
  if (rows <= 0) return 0;
  const device_scope scope(device);
  constexpr int per_block = row_block<THREADS> / THREADS;
  const dim3 grid = grid_of((rows + per_block - 1) / per_block);
  row_kernel<THREADS, VECTOR><<<grid, row_block<THREADS>, 0, static_cast<cudaStream_t>(stream)>>>(body, rows);
  return cudaGetLastError();
}
#endif

//@ run_map: needs lane, grid, device_scope
// A row is cut into tiles; a group of 8 to 256 neighbouring threads takes one, `each` vectors per thread.
constexpr int MAP_BLOCK = 256;
template <int VECTOR> constexpr int MAP_VECTORS = VECTOR > 1 ? 4 : 8;
// Tile counts beyond 32 bits are rare, and dividing them takes four times as long.
FN long divide(long a, long b) { return (a | b) >> 32 ? a / b : long(unsigned(a) / unsigned(b)); }
template <int VECTOR, class Body>
__global__ void __launch_bounds__(MAP_BLOCK) map_kernel(const Body body, long rows, long tiles, int shift, int each) {
  const int group = 1 << shift;
  const long columns = body.columns(), vectors = columns / VECTOR;
  const long piece = block_index() * (MAP_BLOCK >> shift) + (threadIdx.x >> shift);
  const long row = tiles == 1 ? piece : divide(piece, tiles), tile = piece - row * tiles;
  if (row >= rows) return;
  const long begin = tile * group * each, next = begin + group * each;
  const int member = threadIdx.x & (group - 1);
  const long tail = tile == tiles - 1 ? vectors * VECTOR + member : columns;
  const range mine{begin + member, next < vectors ? next : vectors, group, tail, columns};
  body(row, mine, lane<VECTOR>());
}
#ifdef __CUDACC_RTC__
template <int VECTOR, bool WINDOWS = false, class Body> FN int run_map(const Body&, long, long, int, void*) {
  return &map_kernel<VECTOR, Body> == nullptr;
}
#else
struct map_tile {
  int shift, each;  // the group is 1 << shift
};
// The first of these that leaves at most an eighth of its threads idle, or else the one that leaves fewest.
inline map_tile map_tile_of(long vectors, int usual) {
  map_tile best{3, usual};
  long least = -1;
  for (const int each : {usual, usual + 1, usual * 3 / 4, usual / 2, usual / 4})
    for (int shift = MAP_BLOCK == 256 ? 8 : 7; shift >= 3; --shift) {
      const long tile = long(each) << shift, idle = (vectors + tile - 1) / tile * tile - vectors;
      if (idle * 8 <= vectors) return {shift, each};
      if (least < 0 || idle < least) best = {shift, each}, least = idle;
    }
  return best;
}
// The same for windows, whose many loads count, and not how many are in flight: the widest group but for a
// sixteenth of the cost. That is what its threads do (once, as much as for three elements, and for each element)
// and the lines that they touch: narrower than a warp, a group needs as many of them as a warp.
inline map_tile window_tile_of(long vectors, int most) {
  map_tile best{};
  long least = 0;
  for (int shift = MAP_BLOCK == 256 ? 8 : 7; shift >= 3; --shift) {
    const long group = 1L << shift, tiles = (vectors + most * group - 1) / (most * group);
    const long each = (vectors + tiles * group - 1) / (tiles * group);
    const long cost = tiles * ((each + 3) * group + each * (group > 32 ? group : 32));
    if (!least || cost * 16 < least * 15) best = {shift, int(each)}, least = cost;
  }
  return best;
}
template <int VECTOR, bool WINDOWS = false, class Body>
int run_map(const Body& body, long rows, long columns, int device, void* stream) {
  if (rows <= 0 || columns <= 0) return 0;
  const device_scope scope(device);
  const long vectors = (columns + VECTOR - 1) / VECTOR;
  constexpr int usual = MAP_VECTORS<VECTOR>;
  const map_tile cut = WINDOWS ? window_tile_of(vectors, usual) : map_tile_of(vectors, usual);
  const long tile = long(cut.each) << cut.shift, tiles = (vectors + tile - 1) / tile;
  const int per_block = MAP_BLOCK >> cut.shift;
  const dim3 grid = grid_of((rows * tiles + per_block - 1) / per_block);
  const auto on = static_cast<cudaStream_t>(stream);
  map_kernel<VECTOR><<<grid, MAP_BLOCK, 0, on>>>(body, rows, tiles, cut.shift, cut.each);
  return cudaGetLastError();
}
#endif

//@
}  // namespace fusewright
