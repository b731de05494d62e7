// Rows that need more than a block of neighbouring threads: few long ones, and those that lie across memory.
//
// A `column_panel` takes ACROSS rows that are neighbours in memory: a warp then reads neighbouring elements, one of
// each row, however far apart the elements of a row are. A `split` gives a row, or a column panel, to several blocks
// that meet in global memory. The surprising fact: threads without a row leave at once. All members of a row do,
// so nobody needs their parts, and a barrier only waits for those who stay.
//
// Text outside `//@ name` sections only serves a compilation of this file alone.
#pragma once
#include "kernels/pointwise/cuda/map.cuh"
#include "kernels/rowwise/cuda/rows.cuh"
namespace fusewright {

//@ column_panel: needs words
// Member m of row r is thread m * ACROSS + r. Parts meet in shared memory in two steps, groups first.
constexpr int PART_BYTES = 32;
// One room for the parts of all reductions of a kernel, whatever their types.
template <int STEP, int BYTES> FN char* shared_room() {
  __shared__ __align__(16) char room[BYTES];
  return room;
}
template <int DOWN, int ACROSS, int VECTOR = 1> struct column_panel : words<column_panel<DOWN, ACROSS, VECTOR>> {
  static constexpr int threads = DOWN, vector = VECTOR, across = ACROSS;
  static constexpr int group = DOWN >= 64 ? 8 : DOWN >= 16 ? 4 : DOWN >= 4 ? 2 : 1, groups = DOWN / group;
  static constexpr bool spread = false;
  FN int lane() const { return threadIdx.x % ACROSS; }
  FN int member() const { return threadIdx.x / ACROSS; }
  FN int members() const { return DOWN; }
  FN bool leads() const { return member() == 0; }
  template <class Reducer, class T> FN T join(T mine) {
    static_assert(sizeof(T) <= PART_BYTES, "a part of a fold fits its room");
    if constexpr (DOWN == 1) {
      return mine;
    } else {
      T* const rooms = reinterpret_cast<T*>(shared_room<1, DOWN * ACROSS * PART_BYTES>()) + lane();
      T* const group_rooms = reinterpret_cast<T*>(shared_room<2, groups * ACROSS * PART_BYTES>()) + lane();
      rooms[member() * ACROSS] = mine;
      __syncthreads();
      if (member() < groups) group_rooms[member() * ACROSS] = joined<Reducer, group>(rooms + member() * group * ACROSS);
      __syncthreads();
      return joined<Reducer, groups>(group_rooms);
    }
  }
  template <class Reducer, int COUNT, class T> static FN T joined(const T* parts) {
    T all = parts[0];
#pragma unroll
    for (int k = 1; k < COUNT; ++k) all = Reducer::join(all, parts[k * ACROSS]);
    return all;
  }
};

//@ run_column_panels: needs column_panel, grid, device_scope
template <int DOWN, int ACROSS, int VECTOR, class Body>
__global__ void __launch_bounds__(DOWN * ACROSS) column_panel_kernel(const Body body, long rows) {
  column_panel<DOWN, ACROSS, VECTOR> team;
  const long row = block_index() * ACROSS + team.lane();
  if (row < rows) body(row, team);
}
#ifdef __CUDACC_RTC__
template <int DOWN, int ACROSS, int VECTOR = 1, class Body> FN int run_column_panels(const Body&, long, int, void*) {
  return &column_panel_kernel<DOWN, ACROSS, VECTOR, Body> == nullptr;
}
#else
template <int DOWN, int ACROSS, int VECTOR = 1, class Body>
int run_column_panels(const Body& body, long rows, int device, void* stream) {
  if (rows <= 0) return 0;
  const device_scope scope(device);
  const dim3 grid = grid_of((rows + ACROSS - 1) / ACROSS);
  column_panel_kernel<DOWN, ACROSS, VECTOR><<<grid, DOWN * ACROSS, 0, static_cast<cudaStream_t>(stream)>>>(body, rows);
  return cudaGetLastError();
}
#endif

//@ from_exchange
// What another block has left. Past L1, which may still hold what was there two reductions ago.
constexpr int EXCHANGE_BYTES = 32;
template <class T> FN T from_exchange(const T* place) {
  unsigned bits[(sizeof(T) + 3) / 4];
#pragma unroll
  for (unsigned k = 0; k < (sizeof(T) + 3) / 4; ++k) bits[k] = __ldcg(reinterpret_cast<const unsigned*>(place) + k);
  T value;
  memcpy(&value, bits, sizeof(T));
  return value;
}

//@ split: needs team, fixed, span, from_exchange
// `parts` blocks on one row, or on a column panel of them. They meet in global memory, so all of them must be resident
// (the launcher sees to it). Nothing can be kept: how much of a row a thread has is known at run time only.
struct block_exchange {
  unsigned* arrived;  // counts up for the whole launch, so nobody has to reset it between two reductions
  char* rooms;        // [2][parts][rows of a block], EXCHANGE_BYTES each
  int part, parts;
  unsigned due = 0;
  int room = 0;
  // One thread per block: what the block wrote before is visible to the others' blocks after.
  FN void wait() {
    due += parts;
    __threadfence();
    atomicAdd(arrived, 1);
    while (int(*static_cast<volatile unsigned*>(arrived) - due) < 0) __nanosleep(32);
    __threadfence();
  }
};
template <class Block, int VECTOR, int BURST = 8> struct split : words<split<Block, VECTOR, BURST>> {
  static constexpr int vector = VECTOR, threads = Block::threads, across = Block::across, burst = BURST;
  static constexpr bool spread = true;
  Block& block;
  block_exchange& exchange;
  FN split(Block& block, block_exchange& exchange) : block(block), exchange(exchange) {}
  FN long member() const { return long(exchange.part) * threads + block.member(); }
  FN long members() const { return long(exchange.parts) * threads; }
  FN bool leads() const { return member() == 0; }
  template <class Reducer, class T> FN T join(T mine) {
    return join_parts<Reducer>(block.template join<Reducer>(mine));
  }
  template <class Reducer, class T> FN T join_parts(T mine) {
    return block.template join<Reducer>(swap_partials<Reducer>(mine));
  }
  // Every block hands in what its leader has; each member joins some of all these parts.
  template <class Reducer, class T> FN T swap_partials(T mine) {
    static_assert(sizeof(T) <= EXCHANGE_BYTES, "a part of a fold fits a place of the meeting");
    char* const room = exchange.rooms + (long(exchange.room) * exchange.parts * across + block.lane()) * EXCHANGE_BYTES;
    if (block.leads()) *reinterpret_cast<T*>(room + long(exchange.part) * across * EXCHANGE_BYTES) = mine;
    if (across > 1) __syncthreads();
    if (threadIdx.x == 0) exchange.wait();
    __syncthreads();
    exchange.room ^= 1;
    T all = Reducer::none();
#pragma unroll 1
    for (int part = block.member(); part < exchange.parts; part += threads)
      all = Reducer::join(all, from_exchange(reinterpret_cast<const T*>(room + long(part) * across * EXCHANGE_BYTES)));
    return all;
  }
};
template <class Block, int VECTOR, int BURST, long I, class Sink, class F, class... Ops>
FN void walk(split<Block, VECTOR, BURST>& team, fixed_span<I>, Sink& sink, const F& f, Ops... operand) {
  walk(team, line_span{I}, sink, f, operand...);
}
template <class Block, int VECTOR, int BURST, long O, long I, class Sink, class F, class... Ops>
FN void walk(split<Block, VECTOR, BURST>& team, fixed_span<O, I>, Sink& sink, const F& f, Ops... operand) {
  split<Block, I % VECTOR == 0 ? VECTOR : 1, BURST> narrowed(team.block, team.exchange);
  walk(narrowed, sheet_span{O, I}, sink, f, operand...);
}

//@ resident: needs device_scope
#ifndef __CUDACC_RTC__
// How many blocks of the kernel the current device holds at once, but `most`. Asked once per kernel and device.
template <auto KERNEL> int resident_blocks(int threads, int most, int device, int& blocks) {
  static int known[64];
  const bool listed = device >= 0 && device < 64;
  blocks = listed ? known[device] : 0;
  if (blocks > 0) return 0;
  int per_processor = 0, processors = 0;
  int error = cudaOccupancyMaxActiveBlocksPerMultiprocessor(&per_processor, KERNEL, threads, 0);
  if (!error) error = cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device);
  const int all = per_processor * processors;
  blocks = all < most ? all : most;
  if (listed && !error) known[device] = blocks;
  return error;
}
#endif

//@ exchange_place: needs split
// `workspace` is device memory of SPLIT_BYTES, any contents, for one launch alone.
constexpr int SPLIT_ROWS = 128, COUNTER_BYTES = 128;
template <class Block> constexpr int SPLIT_BLOCKS = Block::across > 1 ? 1024 : 4096;
template <class Block>
constexpr long SPLIT_BYTES = SPLIT_ROWS * COUNTER_BYTES + 2L * SPLIT_BLOCKS<Block> * Block::across * EXCHANGE_BYTES;

//@ run_split: needs split, resident, exchange_place
// Some rows, or column panels of rows, at a time, each on an equal share of all blocks that fit the device. While
// the rows in flight fit L2, a second pass over a row does not come from memory. The launch is cooperative, which
// is the promise that all blocks are resident.
template <class Block, int SIZE, int VECTOR, int BURST, class Body>
__global__ void __launch_bounds__(SIZE) split_kernel(const Body body, long rows, int parts, char* workspace) {
  const int share = blockIdx.x / parts, shares = gridDim.x / parts;
  block_exchange exchange{reinterpret_cast<unsigned*>(workspace + share * COUNTER_BYTES),
               workspace + SPLIT_ROWS * COUNTER_BYTES + 2L * share * parts * Block::across * EXCHANGE_BYTES,
               int(blockIdx.x % parts), parts};
  Block block;
  const long stride = long(shares) * Block::across;
  for (long row = long(share) * Block::across + block.lane(); row < rows; row += stride)
    body(row, split<Block, VECTOR, BURST>(block, exchange));
}
#ifdef __CUDACC_RTC__
template <class Block, int SIZE, int VECTOR, int BURST, int IN_FLIGHT, class Body>
FN int run_split(const Body&, long, void*, int, void*) {
  return &split_kernel<Block, SIZE, VECTOR, BURST, Body> == nullptr;
}
#else
template <class Block, int SIZE, int VECTOR, int BURST, int IN_FLIGHT, class Body>
int run_split(const Body& body, long rows, void* workspace, int device, void* stream) {
  static_assert(IN_FLIGHT <= SPLIT_ROWS, "one counter for each row in flight");
  if (rows <= 0) return 0;
  const device_scope scope(device);
  constexpr auto kernel = split_kernel<Block, SIZE, VECTOR, BURST, Body>;
  int blocks = 0;
  int error = resident_blocks<kernel>(SIZE, SPLIT_BLOCKS<Block>, device, blocks);
  if (error) return error;
  const long column_panels = (rows + Block::across - 1) / Block::across, wanted =
      column_panels < IN_FLIGHT ? column_panels : IN_FLIGHT;
  const int shares = wanted < blocks ? int(wanted) : blocks;
  int parts = blocks / shares;
  const auto on = static_cast<cudaStream_t>(stream);
  error = cudaMemsetAsync(workspace, 0, SPLIT_ROWS * COUNTER_BYTES, on);
  if (error) return error;
  Body copy = body;
  void* arguments[] = {&copy, &rows, &parts, &workspace};
  const auto entry = reinterpret_cast<const void*>(kernel);
  cudaLaunchCooperativeKernel(entry, dim3(shares * parts), dim3(SIZE), arguments, 0, on);
  return cudaGetLastError();
}
#endif

//@ run_rows_split: needs run_split
static_assert(SPLIT_BYTES<team<1, 1>> == 278528, "the number that whoever allocates the workspace writes");
template <int THREADS, int VECTOR, int IN_FLIGHT = 4, class Body>
int run_rows_split(const Body& body, long rows, void* workspace, int device, void* stream) {
  return run_split<team<THREADS, 1>, THREADS, VECTOR, 8, IN_FLIGHT>(body, rows, workspace, device, stream);
}

//@ run_column_panels_split: needs run_split, column_panel
static_assert(SPLIT_BYTES<column_panel<1, 32>> == 2113536, "the number that whoever allocates the workspace writes");
template <int DOWN, int ACROSS, int BURST, class Body>
int run_column_panels_split(const Body& body, long rows, void* workspace, int device, void* stream) {
  return run_split<column_panel<DOWN, ACROSS>, DOWN * ACROSS, 1, BURST, SPLIT_ROWS>(body, rows, workspace, device, stream);
}

//@
}  // namespace fusewright
