// Long rows, and rows that lie across memory, of which one reduction is made and only numbers are stored.
//
// The surprising fact: two kernels are faster than one [m: rowwise-0029, rowwise-0037].
// Many small blocks read as fast as memory can, and each leaves what
// its part comes to; the second kernel starts while the first ends, where a GPU can, and joins the parts of a row in their
// order. So nobody counts or waits, and nothing has to be zero before.
//
// Text outside `//@ name` sections only serves a compilation of this file alone.
#pragma once
#include "kernels/rowwise/cuda/split_rows.cuh"
namespace fusewright {

//@ partial_reduction: needs team, fixed, span, alone, from_exchange
// The first kernel (JOINS is false) reduces a part of a row and leaves what it comes to, in BYTES. The second one reduces nothing:
// it joins what was left, and stores what follows.
struct part_of_row {
  char* room;  // of all parts of the row, or of its column panel
  int part, parts;
};
// The vectors of a sheet that a part has: all parts apart, so that no part begins with a division of its own.
template <int THREADS, int VECTOR, int BURST> struct part_walker {
  static constexpr int threads = THREADS, vector = VECTOR, burst = BURST;
  long first, step;
  FN long member() const { return first; }
  FN long members() const { return step; }
};
template <class Block, class Reducing, int VECTOR, int BURST, int BYTES, bool JOINS>
struct partial_reduction : words<partial_reduction<Block, Reducing, VECTOR, BURST, BYTES, JOINS>> {
  static constexpr int vector = VECTOR, threads = Block::threads, across = Block::across, burst = BURST;
  static constexpr bool spread = true;
  Block& whole;
  Reducing& block;
  part_of_row at;
  FN partial_reduction(Block& whole, Reducing& block, part_of_row at) : whole(whole), block(block), at(at) {}
  FN bool leads() const { return JOINS && whole.leads(); }
  template <class Reducer, class T> FN T join(T mine) {
    return join_parts<Reducer>(block.template join<Reducer>(mine));
  }
  template <class Reducer, class T> FN T join_parts(T mine) {
    static_assert(sizeof(T) <= BYTES, "a part of a fold fits its room");
    T* const room = reinterpret_cast<T*>(at.room) + whole.lane();
    if constexpr (JOINS) {
      mine = Reducer::none();
#pragma unroll 4
      for (int part = whole.member(); part < at.parts; part += threads)
        mine = Reducer::join(mine, from_exchange(room + long(part) * across));
      return whole.template join<Reducer>(mine);
    } else {
      if (whole.leads()) room[long(at.part) * across] = mine;
      return mine;
    }
  }
  // A part of a line is a piece of it; single elements at its end are the last part's.
  template <class Sink, class F, class... Ops> FN void walk_part(line_span span, Sink& sink, const F& f, Ops... operand) {
    constexpr int U = in_flight<vector_bytes<VECTOR, Ops...>, BURST, BURST>::count;
    const long vectors = span.inner / VECTOR, each = (vectors + at.parts - 1) / at.parts;
    const long from = at.part * each, end = from + each < vectors ? from + each : vectors;
    long p = from + whole.member();
#pragma unroll 1
    for (; p + (U - 1) * threads < end; p += U * threads)
      visit_line<false, VECTOR, U>(p, end, threads, sink, f, operand...);
    if (p < end) visit_line<true, VECTOR, U>(p, end, threads, sink, f, operand...);
    if (VECTOR > 1 && at.part == at.parts - 1)
      for (long i = vectors * VECTOR + whole.member(); i < span.inner; i += threads)
        visit_line<false, 1, 1>(i, span.inner, 1, sink, f, operand...);
  }
  template <class Sink, class F, class... Ops> FN void walk_part(sheet_span span, Sink& sink, const F& f, Ops... operand) {
    part_walker<threads, VECTOR, BURST> walker{long(at.part) * threads + whole.member(), long(at.parts) * threads};
    walk(walker, span, sink, f, operand...);
  }
};
template <class B, class G, int V, int U, int N, bool J, class Sink, class F, class... Ops>
FN void walk(partial_reduction<B, G, V, U, N, J>& team, line_span span, Sink& sink, const F& f, Ops... operand) {
  if constexpr (!J) team.walk_part(span, sink, f, operand...);
}
template <class B, class G, int V, int U, int N, bool J, class Sink, class F, class... Ops>
FN void walk(partial_reduction<B, G, V, U, N, J>& team, sheet_span span, Sink& sink, const F& f, Ops... operand) {
  if constexpr (!J) team.walk_part(span, sink, f, operand...);
}
template <class B, class G, int V, int U, int N, bool J, long I, class Sink, class F, class... Ops>
FN void walk(partial_reduction<B, G, V, U, N, J>& team, fixed_span<I>, Sink& sink, const F& f, Ops... operand) {
  walk(team, line_span{I}, sink, f, operand...);
}
template <class B, class G, int V, int U, int N, bool J, long O, long I, class Sink, class F, class... Ops>
FN void walk(partial_reduction<B, G, V, U, N, J>& team, fixed_span<O, I>, Sink& sink, const F& f, Ops... operand) {
  partial_reduction<B, G, I % V == 0 ? V : 1, U, N, J> narrowed(team.whole, team.block, team.at);
  walk(narrowed, sheet_span{O, I}, sink, f, operand...);
}

//@ run_partial_reduction: needs partial_reduction, next_kernel, resident
// A thread takes LOADS vectors, BURST at a time, or more where scratch memory has no room for so many parts. 0: as many as make
// one wave of blocks, which is faster where the join of a block is dear. `workspace` is device memory of
// PARTIAL_REDUCTION_BYTES, any contents, for this launch alone. `length` is that of a row; only speed depends on it. Rows that lie
// BESIDE each other's parts, as column panels do, are read at the same time.
// as kernels/rowwise/launch.py has them
template <class Block> constexpr long PARTIAL_REDUCTION_BYTES = Block::across > 1 ? 2113536 : 278528;
template <class Block, int BYTES> FN part_of_row part_at(char* workspace, int share, int part, int parts) {
  return {workspace + long(share) * parts * Block::across * BYTES, part, parts};
}
template <class Block, int SIZE, bool BESIDE, int VECTOR, int BURST, int BYTES, class Body>
__global__ void __launch_bounds__(SIZE) partials_kernel(const Body body, long first, long rows, int parts, char* workspace) {
  let_next_kernel_start();
  const int shares = gridDim.x / parts, share = BESIDE ? blockIdx.x % shares : blockIdx.x / parts;
  const int part = BESIDE ? blockIdx.x / shares : blockIdx.x % parts;
  Block block;
  const long row = first + long(share) * Block::across + block.lane();
  const part_of_row at = part_at<Block, BYTES>(workspace, share, part, parts);
  if (row < rows) body(row, partial_reduction<Block, Block, VECTOR, BURST, BYTES, false>(block, block, at));
}
template <class Block, int SIZE, int VECTOR, int BURST, int BYTES, class Body>
__global__ void __launch_bounds__(SIZE) join_kernel(const Body body, long first, long rows, int parts, char* workspace) {
  wait_for_previous_kernel();
  Block block;
  alone nobody;
  const long row = first + long(blockIdx.x) * Block::across + block.lane();
  const part_of_row at = part_at<Block, BYTES>(workspace, blockIdx.x, 0, parts);
  if (row < rows) body(row, partial_reduction<Block, alone, VECTOR, BURST, BYTES, true>(block, nobody, at));
}
#ifdef __CUDACC_RTC__
template <class Block, int SIZE, bool BESIDE, int VECTOR, int BURST, int LOADS, int BYTES, class Body>
FN int run_partial_reduction(const Body&, long, long, void*, int, void*) {
  return &partials_kernel<Block, SIZE, BESIDE, VECTOR, BURST, BYTES, Body> == nullptr ||
         &join_kernel<Block, SIZE, VECTOR, BURST, BYTES, Body> == nullptr;
}
#else
// Whether every machine that this is compiled for knows the words with which the second kernel waits.
constexpr bool may_start_early() {
  bool all = true;
  for (const int arch : {__CUDA_ARCH_LIST__}) all = all && arch >= 900;
  return all;
}
template <class Block, int SIZE, bool BESIDE, int VECTOR, int BURST, int LOADS, int BYTES, class Body>
int run_partial_reduction(const Body& body, long rows, long length, void* workspace, int device, void* stream) {
  constexpr int across = Block::across, most = PARTIAL_REDUCTION_BYTES<Block> / (across * BYTES);
  const device_scope scope(device);
  constexpr auto leave = partials_kernel<Block, SIZE, BESIDE, VECTOR, BURST, BYTES, Body>;
  int wave = 0, error = LOADS ? 0 : resident_blocks<leave>(SIZE, most, device, wave);
  const auto on = static_cast<cudaStream_t>(stream);
  cudaLaunchAttribute early[1];
  early[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  early[0].val.programmaticStreamSerializationAllowed = 1;
  for (long first = 0; first < rows && !error; first += long(most) * across) {
    const long column_panels = (rows - first + across - 1) / across;
    const int shares = column_panels < most ? int(column_panels) : most;
    const long wanted = LOADS ? (length - 1) / (SIZE / across * VECTOR * (LOADS ? LOADS : 1)) + 1 : wave / shares;
    const int parts = wanted < 1 ? 1 : wanted < most / shares ? int(wanted) : most / shares;
    char* const room = static_cast<char*>(workspace);
    leave<<<shares * parts, SIZE, 0, on>>>(body, first, rows, parts, room);
    const cudaLaunchConfig_t launch{dim3(shares), dim3(SIZE), 0, on, early, may_start_early()};
    cudaLaunchKernelEx(&launch, join_kernel<Block, SIZE, VECTOR, BURST, BYTES, Body>, body, first, rows, parts, room);
    error = cudaGetLastError();
  }
  return error;
}
#endif

//@ run_rows_partial_reduction: needs run_partial_reduction
template <int THREADS, int VECTOR, int BURST, int LOADS, int BYTES, bool BESIDE = false, class Body>
int run_rows_partial_reduction(const Body& body, long rows, long length, void* workspace, int device, void* stream) {
  using block = team<THREADS, 1>;
  return run_partial_reduction<block, THREADS, BESIDE, VECTOR, BURST, LOADS, BYTES>(body, rows, length, workspace, device,
      stream);
}

//@ run_column_panels_partial_reduction: needs run_partial_reduction, column_panel
template <int DOWN, int ACROSS, int BURST, int LOADS, int BYTES, class Body>
int run_column_panels_partial_reduction(const Body& body, long rows, long length, void* workspace, int device, void* stream) {
  using block = column_panel<DOWN, ACROSS>;
  return run_partial_reduction<block, DOWN * ACROSS, true, 1, BURST, LOADS, BYTES>(body, rows, length, workspace, device, stream);
}

//@
}  // namespace fusewright
