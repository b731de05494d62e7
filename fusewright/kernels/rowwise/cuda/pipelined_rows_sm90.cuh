// Few very long rows (sm_90a): the blocks of a row meet once, and while its parts travel the next row is at work.
//
// The surprising fact: the body runs three times for each row, and its text does not know. First what it reduces is asked
// for. Then that is reduced and handed in, and nothing else is done. A row later, when all parts have long met, its
// reductions only say what they came to, and its elements are stored. A pipeline of shared memory keeps parts of rows meanwhile;
// the copy engine brings them and takes the results away. What is alike in every row stays in registers.
//
// Text outside `//@ name` sections only serves a compilation of this file alone.
#pragma once
#include "kernels/rowwise/cuda/grid_resident_rows.cuh"
#include "kernels/tensor_core/cuda/tile_sm90.cuh"
namespace fusewright {

//@ staged_row: needs load, store
// The operand of a part of a row that lies in shared memory, where results take the place of what was read.
template <class Far> struct staged_row_operand;
template <class T, bool CONSTANT> struct staged_row_operand<load_operand<T, CONSTANT>> {
  using value = computed<T>;
  static constexpr int bytes = 0;
  static constexpr bool kept = false;
  load_operand<T, CONSTANT> far;
  char* part;
  FN const T* outside(long o, long i) const { return far.p + (far.base + o * far.outer_stride + i); }
  template <int W, int U> struct packet {
    const T* part;
    T held[U][W];
    FN explicit packet(const staged_row_operand& o) : part(reinterpret_cast<const T*>(o.part)) {}
    template <class Place> FN void fetch(int u, const Place& at) { fetch_vector<false, W>(part + at.here, held[u]); }
    template <class Place> FN value element(int u, int j, const Place&) { return widen(held[u][j]); }
    template <class Place> FN void flush(int, const Place&) {}
  };
};
template <class T> struct staged_row_operand<store_operand<T>> {
  using value = computed<T>&;
  static constexpr int bytes = 0;
  static constexpr bool kept = false;
  store_operand<T> far;
  char* part;
  FN T* outside(long o, long i) const { return far.p + (o * far.outer_stride + i); }
  template <int W, int U> struct packet {
    T* part;
    computed<T> held[U][W];
    FN explicit packet(const staged_row_operand& o) : part(reinterpret_cast<T*>(o.part)) {}
    template <class Place> FN void fetch(int, const Place&) {}
    template <class Place> FN value element(int u, int j, const Place&) { return held[u][j]; }
    template <class Place> FN void flush(int u, const Place& at) {
      static_assert(W * sizeof(T) == 16, "parts are walked by whole vectors");
      T stored[W];
#pragma unroll
      for (int j = 0; j < W; ++j) narrow(held[u][j], stored[j]);
      uint4 bits;
      memcpy(&bits, stored, 16);
      *reinterpret_cast<uint4*>(part + at.here) = bits;
    }
  };
};
template <class Far> FN staged_row_operand<Far> staged_row(Far far) { return {far, nullptr}; }

//@ register_resident: needs load
// What is the same for every row: a thread meets the same elements of it again in each, so its registers keep them, operand
// NUMBER of those, for the whole launch. They are 16 bytes for each vector.
template <int NUMBER, class T> struct register_resident_operand {
  using value = computed<T>;
  static constexpr int bytes = 0;
  static constexpr bool kept = true;
  load_operand<T, true> far;
  const uint4* held;
  FN const T* outside(long i) const { return far.p + (far.base + i); }
  template <int W, int U> struct packet {
    const uint4* held;
    FN explicit packet(const register_resident_operand& o) : held(o.held) {}
    template <class Place> FN void fetch(int, const Place&) {}
    template <class Place> FN value element(int, int j, const Place& at) {
      T all[W];
      memcpy(all, held + at.slot, 16);
      return widen(all[j]);
    }
    template <class Place> FN void flush(int, const Place&) {}
  };
};
template <int NUMBER, class T>
FN register_resident_operand<NUMBER, T> register_resident(load_operand<T, true> far) { return {far, nullptr}; }

//@ pipelined_team: needs grid_resident_team, alone, arrivals, load_bytes, staged_row, register_resident
FN void store_bytes(void* to, const void* from, unsigned bytes) {
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;"
               ::"l"(to), "r"(shared_address(from)), "r"(bytes) : "memory");
}
FN void store_commit() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
FN void store_wait_read() { asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory"); }
FN void store_wait() { asm volatile("cp.async.bulk.wait_group 0;" ::: "memory"); }

enum class row_pass { issue_loads, reduce, store, hold };
// Where a part of a row lies, the barrier that says so, the room where blocks meet for the row, and its number there;
// and the registers for what is the same in each row, which are filled once, in a turn of their own.
struct part_place {
  char* memory;
  unsigned barrier;
  unsigned long* room;
  unsigned number;
  uint4* held;
};
template <row_pass PASS, int BLOCKS, int THREADS, int VECTOR, int BYTES, class Block = alone>
struct pipelined : words<pipelined<PASS, BLOCKS, THREADS, VECTOR, BYTES, Block>> {
  static_assert(BYTES % (16 * THREADS) == 0, "a part has as many vectors for each thread");
  static constexpr int vector = VECTOR, threads = BLOCKS * THREADS, stride = THREADS * VECTOR;
  static constexpr long most = BYTES / 16 * VECTOR;  // elements of a part; the last one may have fewer
  static constexpr int slots = BYTES / (16 * THREADS);
  static constexpr bool spread = true;
  Block& block;
  part_place at;
  FN pipelined(Block& block, const part_place& at) : block(block), at(at) {}
  FN static int part() { return blockIdx.x % BLOCKS; }
  FN bool leads() const { return PASS == row_pass::store && part() == 0 && threadIdx.x == 0; }
  template <class Reducer, class T> FN T join(T mine) {
    return join_parts<Reducer>(block.template join<Reducer>(mine));
  }
  // A thread gets one part, or some, and all threads join what the warps of those have: so L2 is asked for each part once, and
  // all have the same bits. Nobody writes to `rooms` again before the barrier behind the row's last element.
  template <class Reducer, class T> FN T join_parts(T mine) {
    typename grid_exchange<BLOCKS>::template part<T> bits(mine);
    if (PASS == row_pass::reduce && threadIdx.x == 0) bits.hand_in(at.room + part(), at.number);
    if constexpr (PASS == row_pass::store) {
      constexpr int WARPS = BLOCKS > THREADS ? THREADS / 32 : (BLOCKS + 31) / 32;
      __shared__ T rooms[WARPS];
      if (threadIdx.x < WARPS * 32) {
        mine = Reducer::none();
        for (int other = threadIdx.x; other < BLOCKS; other += WARPS * 32)
          mine = Reducer::join(mine, bits.collect(at.room + other, at.number));
        mine = butterfly<Reducer, 32>(mine);
        if (threadIdx.x % 32 == 0) rooms[threadIdx.x / 32] = mine;
      }
      __syncthreads();
      mine = rooms[0];
#pragma unroll
      for (int w = 1; w < WARPS; ++w) mine = Reducer::join(mine, rooms[w]);
    }
    return mine;
  }
  template <class Far> FN staged_row_operand<Far> placed(staged_row_operand<Far> o) const { return {o.far, at.memory}; }
  template <int NUMBER, class T> FN register_resident_operand<NUMBER, T> placed(register_resident_operand<NUMBER, T> o) const {
    return {o.far, at.held + NUMBER * slots};
  }
  template <class Operand> FN Operand placed(Operand o) const { return o; }
  // Where this part begins, and its elements.
  FN static long start() { return part() * most; }
  template <class Span> FN static int size(Span) {
    static_assert(Span::total > (BLOCKS - 1) * most && Span::total <= BLOCKS * most, "every block has a part");
    return int(Span::total - start() < most ? Span::total - start() : most);
  }
  // The runs of neighbours in a part: where each begins in the part and in the row, and its elements.
  template <class Span, class Act> FN static void runs(Span span, const Act& act) {
    constexpr long I = Span::inner;
#pragma unroll 1
    for (long done = 0, left = size(span); left > 0;) {
      const long o = (start() + done) / I, i = (start() + done) % I, n = I - i < left ? I - i : left;
      act(done, o, i, n);
      done += n, left -= n;
    }
  }
  template <class Span, class Far> FN void bring(Span span, const staged_row_operand<Far>& from) const {
    constexpr int bytes = 16 / VECTOR;
    barrier_expect(at.barrier, size(span) * bytes);
    runs(span, [&](long done, long o, long i, long n) {
      load_bytes(shared_address(at.memory + done * bytes), from.outside(o, i), n * bytes, at.barrier);
    });
  }
  template <class Span, class T> FN void take(Span span, const staged_row_operand<store_operand<T>>& to) const {
    runs(span, [&](long done, long o, long i, long n) {
      store_bytes(to.outside(o, i), at.memory + done * sizeof(T), n * sizeof(T));
    });
    store_commit();
  }
  template <class Span, int NUMBER, class T> FN void hold(Span span, const register_resident_operand<NUMBER, T>& from) const {
#pragma unroll
    for (int s = 0; s < slots; ++s)
      if (const int here = s * stride + threadIdx.x * VECTOR; here < size(span))
        at.held[NUMBER * slots + s] = __ldg(reinterpret_cast<const uint4*>(from.outside(start() + here)));
  }
  template <class Span, class Operand> FN void hold(Span, const Operand&) const {}
  template <class Span, class Operand> FN void bring(Span, const Operand&) const {}
  template <class Span, class Operand> FN void take(Span, const Operand&) const {}
};
// A vector of a part, in its row and in shared memory.
template <class Place> struct staged_row_place : Place {
  int here;
};
template <bool GUARDED, int U, class Team, class Span, class Sink, class F, class... Ops>
FN void visit_part(Team& team, int from, Span span, Sink& sink, const F& f, Ops... operand) {
  constexpr int W = Team::vector;
  staged_row_place<typename Span::template place<W>> at[U];
  bool live[U];
#pragma unroll
  for (int u = 0; u < U; ++u) {
    at[u].first = team.start() + threadIdx.x * W, at[u].further = from + u * Team::stride;
    at[u].flat = at[u].first + at[u].further, at[u].slot = from / Team::stride + u;
    at[u].here = from + u * Team::stride + threadIdx.x * W;
    live[u] = at[u].here < team.size(span);
  }
  visit<GUARDED, W, U>(at, live, sink, f, typename Ops::template packet<W, U>(operand)...);
}
template <class Sink> constexpr bool joins = true;
template <> constexpr bool joins<nothing> = false;
// The same with constant slots, which registers need.
template <bool GUARDED, int U, class Team, class Span, class Sink, class F, class... Ops>
FN void walk_slots(Team& team, Span span, Sink& sink, const F& f, Ops... operand) {
  constexpr int full = Team::slots / U * U;
#pragma unroll
  for (int s = 0; s < full; s += U) visit_part<GUARDED, U>(team, s * Team::stride, span, sink, f, operand...);
  if constexpr (full < Team::slots)
    visit_part<GUARDED, Team::slots - full>(team, full * Team::stride, span, sink, f, operand...);
}
template <class Team, class Span, class Sink, class F, class... Ops>
FN void walk_part(Team& team, Span span, Sink& sink, const F& f, Ops... operand) {
  constexpr int slots = Team::slots, W = Team::vector;
  constexpr bool kept = (false || ... || Ops::kept);
  constexpr int some = (kept || vector_bytes<W, Ops...> > 16 ? 8 : 16) / W;  // what fits registers
  constexpr int U = slots < some ? slots : some, step = U * Team::stride;
  if constexpr (kept) {
    constexpr bool outside = joins<Sink> || vector_bytes<W, Ops...> > 0;  // shared memory has room for a whole part
    walk_slots<outside && Span::total % Team::most != 0, U>(team, span, sink, f, operand...);
  } else {
#pragma unroll 1
    for (int from = 0; from < team.size(span); from += step)
      if (from + step <= team.size(span))
        visit_part<false, U>(team, from, span, sink, f, operand...);
      else
        visit_part<true, U>(team, from, span, sink, f, operand...);
  }
}
template <row_pass PASS, int BLOCKS, int THREADS, int W, int BYTES, class Block, long... N, class Sink, class F,
          class... Ops>
FN void walk(pipelined<PASS, BLOCKS, THREADS, W, BYTES, Block>& team, fixed_span<N...> span, Sink& sink, const F& f,
             Ops... operand) {
  if constexpr (PASS == row_pass::issue_loads) (team.bring(span, operand), ...);
  if constexpr (PASS == row_pass::reduce) walk_part(team, span, sink, f, team.placed(operand)...);
}
// Elements are stored.
template <row_pass PASS, int BLOCKS, int THREADS, int W, int BYTES, class Block, long... N, class F, class... Ops>
FN void walk(pipelined<PASS, BLOCKS, THREADS, W, BYTES, Block>& team, fixed_span<N...> span, nothing& sink, const F& f,
             Ops... operand) {
  if constexpr (PASS == row_pass::hold) (team.hold(span, operand), ...);
  if constexpr (PASS == row_pass::store) {
    walk_part(team, span, sink, f, team.placed(operand)...);
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    __syncthreads();
    if (threadIdx.x == 0) (team.take(span, operand), ...);
  }
}

//@ run_rows_pipelined: needs pipelined_team, prepare_persistent
// Some rows at a time, BLOCKS blocks for each, one a processor, which has parts of BYTES each. `workspace` is device
// memory of GRID_RESIDENT_BYTES, any contents, for this launch alone. A block hands in part n + 4 once it has all parts
// n + 2, and whoever has handed in one of those has all parts n: so four rooms in turn are enough.
constexpr int PIPELINE_STAGES = 3, EXCHANGE_ROOMS = 4, PIPELINED_BLOCKS = 1024;
static_assert(grid_exchange<PIPELINED_BLOCKS>::words * EXCHANGE_ROOMS * 8 <= 278528,
    "what whoever allocates the workspace writes");
template <int BLOCKS, int THREADS, int VECTOR, int BYTES, int REGISTER_RESIDENT, class Body>
__global__ void __launch_bounds__(THREADS, 1)
    pipelined_kernel(const Body body, int rows, int shares, unsigned long* rooms) {
  extern __shared__ __align__(128) unsigned char stages[];
  __shared__ unsigned long full[PIPELINE_STAGES];
  const int share = blockIdx.x / BLOCKS, count = (rows - share + shares - 1) / shares;
  rooms += share * EXCHANGE_ROOMS * grid_exchange<BLOCKS>::words;
  team<THREADS, VECTOR> block;
  alone nobody;
  uint4 held[REGISTER_RESIDENT > 0 ? REGISTER_RESIDENT * BYTES / (16 * THREADS) : 1];
  const auto place = [&](int n) {
    return part_place{reinterpret_cast<char*>(stages) + n % PIPELINE_STAGES * BYTES, shared_address(full + n % PIPELINE_STAGES),
                      rooms + n % EXCHANGE_ROOMS * grid_exchange<BLOCKS>::words, n + 1u, held};
  };
  const auto issue_loads = [&](int n) {
    if (n < count) body(share + n * shares, pipelined<row_pass::issue_loads, BLOCKS, THREADS, VECTOR, BYTES>(nobody, place(n)));
  };
  if (threadIdx.x == 0) {
    for (int n = 0; n < PIPELINE_STAGES; ++n) barrier_init(shared_address(full + n), 1);
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
#pragma unroll 1
    for (int n = 0; n < PIPELINE_STAGES; ++n) issue_loads(n);
  }
  if (REGISTER_RESIDENT > 0) body(share, pipelined<row_pass::hold, BLOCKS, THREADS, VECTOR, BYTES>(nobody, place(0)));
  __syncthreads();
#pragma unroll 1
  for (int n = 0; n <= count; ++n) {
    if (n < count) {
      barrier_wait(shared_address(full + n % PIPELINE_STAGES), n / PIPELINE_STAGES & 1);
      body(share + n * shares, pipelined<row_pass::reduce, BLOCKS, THREADS, VECTOR, BYTES, decltype(block)>(block, place(n)));
    }
    if (n > 1 && threadIdx.x == 0) {  // what row n - 2 has left makes room
      store_wait_read();
      issue_loads(n - 2 + PIPELINE_STAGES);
    }
    if (n > 0)
      body(share + (n - 1) * shares, pipelined<row_pass::store, BLOCKS, THREADS, VECTOR, BYTES>(nobody, place(n - 1)));
  }
  if (threadIdx.x == 0) store_wait();
}
#ifdef __CUDACC_RTC__
template <int BLOCKS> FN bool fits_pipeline(int) { return true; }
template <int BLOCKS, int THREADS, int VECTOR, int BYTES, int REGISTER_RESIDENT = 0, class Body>
FN int run_rows_pipelined(const Body&, long, void*, int, void*) {
  return &pipelined_kernel<BLOCKS, THREADS, VECTOR, BYTES, REGISTER_RESIDENT, Body> == nullptr;
}
#else
// Whether the device holds all blocks of a row at once.
template <int BLOCKS> bool fits_pipeline(int device) {
  int processors = 0;
  return !cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device) && BLOCKS <= processors;
}
template <int BLOCKS, int THREADS, int VECTOR, int BYTES, int REGISTER_RESIDENT = 0, class Body>
int run_rows_pipelined(const Body& body, long rows, void* workspace, int device, void* stream) {
  if (rows <= 0) return 0;
  if (rows > 1L << 30) return cudaErrorInvalidValue;  // no memory has so many long ones
  const device_scope scope(device);
  constexpr auto kernel = pipelined_kernel<BLOCKS, THREADS, VECTOR, BYTES, REGISTER_RESIDENT, Body>;
  int processors = 0;
  int error = prepare_persistent<kernel>(PIPELINE_STAGES * BYTES, device, processors);
  if (error) return error;
  int count = int(rows);
  const int most = (processors < PIPELINED_BLOCKS ? processors : PIPELINED_BLOCKS) / BLOCKS;
  int shares = count < most ? count : most;
  if (shares == 0) return cudaErrorCooperativeLaunchTooLarge;
  const auto on = static_cast<cudaStream_t>(stream);
  error = cudaMemsetAsync(workspace, 0, shares * EXCHANGE_ROOMS * grid_exchange<BLOCKS>::words * 8, on);
  if (error) return error;
  Body copy = body;
  void* arguments[] = {&copy, &count, &shares, &workspace};
  const auto entry = reinterpret_cast<const void*>(kernel);
  cudaLaunchCooperativeKernel(entry, dim3(shares * BLOCKS), dim3(THREADS), arguments, PIPELINE_STAGES * BYTES, on);
  return cudaGetLastError();
}
#endif

//@
}  // namespace fusewright
