// Very long rows of fixed size that are read once: the registers of many thread blocks keep them.
//
// The surprising fact: blocks meet without a counter and without a fence. A word of a part travels with the number of
// the exchange in 8 bytes that are written at once, so whoever reads this number has the word, too.
//
// Text outside `//@ name` sections only serves a compilation of this file alone.
#pragma once
#include "kernels/rowwise/cuda/split_rows.cuh"
namespace fusewright {

//@ grid_resident_team: needs team, fixed
// The same number, of which the compiler knows nothing: what follows from it, addresses above all, is then not worked
// out before the first row and kept in registers through all of them.
FN int fresh(int number) {
  asm volatile("" : "+r"(number));
  return number;
}
// The exchanges of the blocks of rows, in global memory that is zero at first: for each row in flight
// [2][MOST_WORDS][BLOCKS]. Two rooms in turn are enough. A block writes part n + 2 once it has read all parts n + 1, and
// these are written behind a barrier that comes after all reading of parts n, which lay in the same room.
constexpr int MOST_WORDS = 8;
template <int BLOCKS> struct grid_exchange {
  static constexpr long words = MOST_WORDS * BLOCKS;  // of a room
  unsigned long* rooms;
  unsigned number = 0;  // of the last exchange, from 1 on; so nobody has to reset what the last row has left
  FN static void tell(unsigned long* place, unsigned long word) {
    asm volatile("st.relaxed.gpu.global.b64 [%0], %1;" ::"l"(place), "l"(word) : "memory");
  }
  FN static unsigned long told(const unsigned long* place) {
    unsigned long word;
    asm volatile("ld.relaxed.gpu.global.b64 %0, [%1];" : "=l"(word) : "l"(place) : "memory");
    return word;
  }
  // A part in words; its first one has this place in a room.
  template <class T> struct part {
    static constexpr int WORDS = (sizeof(T) + 3) / 4;
    static_assert(WORDS <= MOST_WORDS, "a part of a fold fits a room");
    unsigned bits[WORDS] = {};
    FN explicit part(const T& mine) { memcpy(bits, &mine, sizeof(T)); }
    FN void hand_in(unsigned long* place, unsigned number) const {
#pragma unroll
      for (int w = 0; w < WORDS; ++w) tell(place + w * BLOCKS, (unsigned long)number << 32 | bits[w]);
    }
    // Waits for what another block hands in.
    FN T collect(const unsigned long* place, unsigned number) {
      bool all;
      do {
        all = true;
#pragma unroll
        for (int w = 0; w < WORDS; ++w) {
          const unsigned long word = told(place + w * BLOCKS);
          bits[w] = unsigned(word), all &= unsigned(word >> 32) == number;
        }
      } while (!all);
      T found;
      memcpy(&found, bits, sizeof(T));
      return found;
    }
  };
  // Every thread that calls it says the same of its block; each gets the part of one block, or none.
  template <class Reducer, class T> FN T swap_partials(T mine) {
    const int block = fresh(blockIdx.x);
    unsigned long* const room = rooms + (block / BLOCKS * 2 + (++number & 1)) * words;
    part<T> bits(mine);
    if (threadIdx.x == 0) bits.hand_in(room + block % BLOCKS, number);
    return threadIdx.x < BLOCKS ? bits.collect(room + threadIdx.x, number) : Reducer::none();
  }
};
// So many bytes, whatever they contain, for one launch alone.
constexpr int GRID_RESIDENT_BLOCKS = 2048, GRID_RESIDENT_BYTES = int(grid_exchange<GRID_RESIDENT_BLOCKS>::words) * 16;
static_assert(GRID_RESIDENT_BYTES <= 278528, "the number that whoever allocates the workspace writes");
// Parts are joined in the order of blocks, so all members get the same bits.
template <int BLOCKS, int THREADS, int VECTOR> struct grid_resident : words<grid_resident<BLOCKS, THREADS, VECTOR>> {
  static_assert(THREADS >= 64 && THREADS >= BLOCKS, "a block has barriers, and a thread for each part");
  static constexpr int threads = BLOCKS * THREADS, vector = VECTOR;
  static constexpr bool spread = false;
  team<THREADS, VECTOR>& block;
  grid_exchange<BLOCKS>& exchange;
  int number;
  FN grid_resident(team<THREADS, VECTOR>& block, grid_exchange<BLOCKS>& exchange)
      : block(block), exchange(exchange), number(fresh(blockIdx.x % BLOCKS * THREADS + threadIdx.x)) {}
  FN int member() const { return number; }
  FN int members() const { return threads; }
  FN bool leads() const { return member() == 0; }
  template <class Reducer, class T> FN T join(T mine) {
    mine = block.template join<Reducer>(mine);
    return block.template join<Reducer>(exchange.template swap_partials<Reducer>(mine));
  }
};

//@ run_rows_grid_resident: needs grid_resident_team, resident
// Some rows at a time, BLOCKS blocks for each. Threads have 64 registers, so that two blocks of 512 share a processor:
// one loads while the other waits. `workspace` is device memory of GRID_RESIDENT_BYTES, any contents, for this launch alone.
template <int THREADS> constexpr int grid_resident_share = 1024 / THREADS;
template <int BLOCKS, int THREADS, int VECTOR, class Body>
__global__ void __launch_bounds__(THREADS, grid_resident_share<THREADS>)
    grid_resident_kernel(const Body body, int rows, int shares, unsigned long* rooms) {
  using shared_row = grid_resident<BLOCKS, THREADS, VECTOR>;
  grid_exchange<BLOCKS> exchange{rooms};
  team<THREADS, VECTOR> block;
  __shared__ int row;  // no register is free for it
  if (threadIdx.x == 0) row = blockIdx.x / BLOCKS;
  __syncthreads();
#pragma unroll 1
  while (row < rows) {
    body(row, shared_row(block, exchange));
    __syncthreads();
    if (threadIdx.x == 0) row += shares;
    __syncthreads();
  }
}
#ifdef __CUDACC_RTC__
template <int BLOCKS, int THREADS> FN bool fits_grid(int) { return true; }
template <int BLOCKS, int THREADS, int VECTOR, class Body>
FN int run_rows_grid_resident(const Body&, long, void*, int, void*) {
  return &grid_resident_kernel<BLOCKS, THREADS, VECTOR, Body> == nullptr;
}
#else
// Whether the device holds all blocks of a row at once, whatever the body.
template <int BLOCKS, int THREADS> bool fits_grid(int device) {
  int processors = 0;
  const int error = cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device);
  return !error && BLOCKS <= processors * grid_resident_share<THREADS>;
}
template <int BLOCKS, int THREADS, int VECTOR, class Body>
int run_rows_grid_resident(const Body& body, long rows, void* workspace, int device, void* stream) {
  if (rows <= 0) return 0;
  if (rows > 1L << 30) return cudaErrorInvalidValue;  // no memory has so many long ones
  const device_scope scope(device);
  constexpr auto kernel = grid_resident_kernel<BLOCKS, THREADS, VECTOR, Body>;
  int blocks = 0;
  int error = resident_blocks<kernel>(THREADS, GRID_RESIDENT_BLOCKS, device, blocks);
  if (error) return error;
  int count = int(rows);
  const int most = blocks / BLOCKS;
  int shares = count < most ? count : most;
  if (shares == 0) return cudaErrorCooperativeLaunchTooLarge;
  const auto on = static_cast<cudaStream_t>(stream);
  error = cudaMemsetAsync(workspace, 0, shares * grid_exchange<BLOCKS>::words * 16, on);
  if (error) return error;
  Body copy = body;
  void* arguments[] = {&copy, &count, &shares, &workspace};
  const auto entry = reinterpret_cast<const void*>(kernel);
  cudaLaunchCooperativeKernel(entry, dim3(shares * BLOCKS), dim3(THREADS), arguments, 0, on);
  return cudaGetLastError();
}
#endif

//@
}  // namespace fusewright
