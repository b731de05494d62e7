// How a generated CUDA kernel is started: rows over teams, a map over lanes, or few rows over many blocks.
//
// The surprising fact: a block handles one piece of work and ends. The hardware's block scheduler balances the
// tail better than a loop over rows in the kernel, and no barrier is needed between rows. Only `split_kernel`
// loops, because its blocks must all be resident to wait for each other.
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
// A row is cut into tiles; a group of 8 to 256 neighbouring threads takes one, MAP_VECTORS vectors per thread.
constexpr int MAP_BLOCK = 256;
template <int VECTOR> constexpr int MAP_VECTORS = VECTOR > 1 ? 4 : 8;
// Tile counts beyond 32 bits are rare, and dividing them takes four times as long.
FN long divide(long a, long b) { return (a | b) >> 32 ? a / b : long(unsigned(a) / unsigned(b)); }
template <int VECTOR, class Body>
__global__ void __launch_bounds__(MAP_BLOCK) map_kernel(const Body body, long rows, long tiles, int group) {
  const long columns = body.columns(), vectors = columns / VECTOR;
  const long piece = block_index() * (MAP_BLOCK / group) + threadIdx.x / group;
  const long row = divide(piece, tiles), tile = piece - row * tiles;
  if (row >= rows) return;
  const long begin = tile * group * MAP_VECTORS<VECTOR>, next = begin + group * MAP_VECTORS<VECTOR>;
  const int member = threadIdx.x & (group - 1);
  const long tail = tile == tiles - 1 ? vectors * VECTOR + member : columns;
  const range mine{begin + member, next < vectors ? next : vectors, group, tail, columns};
  body(row, mine, lane<VECTOR>());
}
#ifdef __CUDACC_RTC__
template <int VECTOR, class Body> FN int run_map(const Body&, long, long, int, void*) {
  return &map_kernel<VECTOR, Body> == nullptr;
}
#else
// The largest group that leaves at most an eighth of its threads idle, or else the one that leaves fewest.
inline int map_group(long vectors, int per_thread) {
  int best = 8;
  long least = -1;
  for (int group = MAP_BLOCK; group >= 8; group /= 2) {
    const long tile = long(group) * per_thread, idle = (vectors + tile - 1) / tile * tile - vectors;
    if (idle * 8 <= vectors) return group;
    if (least < 0 || idle < least) best = group, least = idle;
  }
  return best;
}
template <int VECTOR, class Body>
int run_map(const Body& body, long rows, long columns, int device, void* stream) {
  if (rows <= 0 || columns <= 0) return 0;
  const device_scope scope(device);
  const long vectors = (columns + VECTOR - 1) / VECTOR;
  const int group = map_group(vectors, MAP_VECTORS<VECTOR>);
  const long tile = long(group) * MAP_VECTORS<VECTOR>, tiles = (vectors + tile - 1) / tile;
  const dim3 grid = grid_of((rows * tiles + MAP_BLOCK / group - 1) / (MAP_BLOCK / group));
  map_kernel<VECTOR><<<grid, MAP_BLOCK, 0, static_cast<cudaStream_t>(stream)>>>(body, rows, tiles, group);
  return cudaGetLastError();
}
#endif

//@ run_rows_split: needs split, device_scope
// Few long rows: IN_FLIGHT rows at a time, each on an equal share of all blocks that fit the device. While the
// rows in flight fit L2, a second pass over a row does not come from memory. The launch is cooperative, which
// is the promise that all blocks are resident. `workspace` is device memory of SPLIT_BYTES, any contents,
// for this launch alone.
constexpr int SPLIT_ROWS = 64, SPLIT_BLOCKS = 4096, COUNTER_BYTES = 128;
constexpr long SPLIT_BYTES = SPLIT_ROWS * COUNTER_BYTES + 2L * SPLIT_BLOCKS * MEETING_BYTES;
static_assert(SPLIT_BYTES == 270336, "the number that whoever allocates the workspace writes");
template <int THREADS, int VECTOR, class Body>
__global__ void __launch_bounds__(THREADS) split_kernel(const Body body, long rows, int parts, char* workspace) {
  const int share = blockIdx.x / parts, shares = gridDim.x / parts;
  meeting hall{reinterpret_cast<unsigned*>(workspace + share * COUNTER_BYTES),
               workspace + SPLIT_ROWS * COUNTER_BYTES + 2L * share * parts * MEETING_BYTES,
               int(blockIdx.x % parts), parts};
  team<THREADS, 1> block;
  for (long row = share; row < rows; row += shares) body(row, split<THREADS, VECTOR>(block, hall));
}
#ifdef __CUDACC_RTC__
template <int THREADS, int VECTOR, int IN_FLIGHT = 4, class Body>
FN int run_rows_split(const Body&, long, void*, int, void*) {
  return &split_kernel<THREADS, VECTOR, Body> == nullptr;
}
#else
// How many blocks of the kernel the current device holds at once. Asked once per kernel and device.
template <int THREADS, int VECTOR, class Body> int resident_blocks(int device, int& blocks) {
  static int known[64];
  const bool listed = device >= 0 && device < 64;
  blocks = listed ? known[device] : 0;
  if (blocks > 0) return 0;
  const auto kernel = split_kernel<THREADS, VECTOR, Body>;
  int per_processor = 0, processors = 0;
  int error = cudaOccupancyMaxActiveBlocksPerMultiprocessor(&per_processor, kernel, THREADS, 0);
  if (!error) error = cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device);
  blocks = per_processor * processors < SPLIT_BLOCKS ? per_processor * processors : SPLIT_BLOCKS;
  if (listed && !error) known[device] = blocks;
  return error;
}
template <int THREADS, int VECTOR, int IN_FLIGHT = 4, class Body>
int run_rows_split(const Body& body, long rows, void* workspace, int device, void* stream) {
  static_assert(IN_FLIGHT <= SPLIT_ROWS, "one counter for each row in flight");
  if (rows <= 0) return 0;
  const device_scope scope(device);
  int blocks = 0;
  int error = resident_blocks<THREADS, VECTOR, Body>(device, blocks);
  if (error) return error;
  const long wanted = rows < IN_FLIGHT ? rows : IN_FLIGHT;
  const int shares = wanted < blocks ? int(wanted) : blocks;
  int parts = blocks / shares;
  const auto on = static_cast<cudaStream_t>(stream);
  error = cudaMemsetAsync(workspace, 0, SPLIT_ROWS * COUNTER_BYTES, on);
  if (error) return error;
  Body copy = body;
  void* arguments[] = {&copy, &rows, &parts, &workspace};
  const auto entry = reinterpret_cast<const void*>(split_kernel<THREADS, VECTOR, Body>);
  cudaLaunchCooperativeKernel(entry, dim3(shares * parts), dim3(THREADS), arguments, 0, on);
  return cudaGetLastError();
}
#endif

//@
}  // namespace fusewright
