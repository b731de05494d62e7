// Rows shared by a cluster (sm_90a): 2, 4 or 8 thread blocks that reach each other's shared memory.
//
// The surprising fact: a reduction needs no barrier of the cluster, and neither does the end. A block's part goes to every
// block with a count of its bytes, so a block that has all parts waits for nobody, and once it has those of the last
// reduction, nobody writes to it any more. A barrier of the cluster would wait for all memory that its threads have touched,
// and so would a wait of its scope.
//
// Text outside `//@ name` sections only serves a compilation of this file alone.
#pragma once
#include "devicelib/cuda/barriers_sm90.cuh"
namespace fusewright {

//@ cluster_team: needs team, fixed, arrivals
// A row has the registers of all these threads, so a row of fixed size can be kept. Parts are joined in the order of
// blocks, so all members get the same bits.
template <int BLOCKS, int THREADS, int VECTOR> struct cluster : words<cluster<BLOCKS, THREADS, VECTOR>> {
  static_assert(BLOCKS == 2 || BLOCKS == 4 || BLOCKS == 8, "what every device of sm_90 can start");
  static_assert(THREADS >= 64, "a block meets at a barrier of its own first");
  static constexpr int threads = BLOCKS * THREADS, vector = VECTOR;
  static constexpr bool spread = false;
  team<THREADS, VECTOR> block;
  int room = 0, phase = 0;
  bool met = false;
  FN static int rank() { return blockIdx.x % BLOCKS; }
  FN int member() const { return rank() * THREADS + threadIdx.x; }
  FN int members() const { return threads; }
  FN bool leads() const { return member() == 0; }
  // One for each of the two rooms: in turn they count what arrives, so that nobody can be two reductions ahead.
  FN static unsigned arrivals(int room) {
    __shared__ unsigned long counts[2];
    return shared_address(counts + room);
  }
  // Says that this block runs, and that parts may be sent to it.
  FN static void open() {
    if (threadIdx.x == 0) {
      barrier_init(arrivals(0), 1);
      barrier_init(arrivals(1), 1);
      asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    asm volatile("barrier.cluster.arrive.relaxed;" ::: "memory");
  }
  // Waits until all blocks run; the first pass over the row lies between.
  FN void meet() {
    if (!met) asm volatile("barrier.cluster.wait.acquire;" ::: "memory");
    met = true;
  }
  FN static void send(unsigned word, unsigned place, unsigned count, int to) {
    asm volatile(
        "{\n"
        ".reg .b32 there, told;\n"
        "mapa.shared::cluster.u32 there, %0, %2;\n"
        "mapa.shared::cluster.u32 told, %1, %2;\n"
        "st.async.shared::cluster.mbarrier::complete_tx::bytes.b32 [there], %3, [told];\n"
        "}" ::"r"(place), "r"(count), "r"(to), "r"(word) : "memory");
  }
  template <class Reducer, class T> FN T join(T mine) {
    constexpr int WORDS = (sizeof(T) + 3) / 4;
    __shared__ unsigned rooms[2][BLOCKS][WORDS];
    mine = block.template join<Reducer>(mine);
    meet();
    const unsigned count = arrivals(room);
    unsigned bits[WORDS] = {};
    memcpy(bits, &mine, sizeof(T));
    if (threadIdx.x == 0) barrier_expect(count, sizeof(rooms[room]));
    if (threadIdx.x < BLOCKS)
#pragma unroll
      for (int w = 0; w < WORDS; ++w) send(bits[w], shared_address(&rooms[room][rank()][w]), count, threadIdx.x);
    barrier_wait(count, phase);
#pragma unroll
    for (int w = 0; w < WORDS; ++w) bits[w] = rooms[room][threadIdx.x % BLOCKS][w];
    memcpy(&mine, bits, sizeof(T));
    phase ^= room, room ^= 1;
    return butterfly<Reducer, BLOCKS>(mine);
  }
};

//@ run_rows_cluster: needs cluster_team, grid, device_scope
template <int BLOCKS, int THREADS, int VECTOR, class Body>
__global__ void __launch_bounds__(THREADS) cluster_kernel(const Body body, long rows) {
  using shared_row = cluster<BLOCKS, THREADS, VECTOR>;
  shared_row::open();
  const long row = block_index() / BLOCKS;
  if (row < rows) body(row, shared_row());
}
#ifdef __CUDACC_RTC__
template <int BLOCKS, int THREADS, int VECTOR, class Body> FN int run_rows_cluster(const Body&, long, int, void*) {
  return &cluster_kernel<BLOCKS, THREADS, VECTOR, Body> == nullptr;
}
#else
template <int BLOCKS, int THREADS, int VECTOR, class Body>
int run_rows_cluster(const Body& body, long rows, int device, void* stream) {
  if (rows <= 0) return 0;
  const device_scope scope(device);
  cudaLaunchAttribute together[1];
  together[0].id = cudaLaunchAttributeClusterDimension;
  together[0].val.clusterDim.x = BLOCKS, together[0].val.clusterDim.y = together[0].val.clusterDim.z = 1;
  const auto on = static_cast<cudaStream_t>(stream);
  const cudaLaunchConfig_t launch{grid_of(rows * BLOCKS), dim3(THREADS), 0, on, together, 1};
  cudaLaunchKernelEx(&launch, cluster_kernel<BLOCKS, THREADS, VECTOR, Body>, body, rows);
  return cudaGetLastError();
}
#endif

//@
}  // namespace fusewright
