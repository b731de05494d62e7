// Maps of windows that overlap: a thread takes R results one below the other, and a warp neighbours.
//
// The surprising fact: nvcc merges no loads that are guarded alike, nor any that take the non-coherent path. So what
// the windows of a thread have in common is said: a `column` is loaded once, and `below<k>` is place k of each window.
//
// Text outside `//@ name` sections only serves a compilation of this file alone.
#pragma once
#include "launch.cuh"
namespace fusewright {

//@ column: needs read, extent_of, visit
template <class T, int PLACES, int R, class Where> struct column_of {
  const T *p, *spot;
  int base;
  long step;
  computed<T> fill, held[R + PLACES - 1];
  Where where;
  FN void fetch(int k, long first) {
    held[k] = fill;
    if (where(0).has(int(first) + k)) held[k] = read(spot + k * step, base);
  }
};
template <int PLACES, class Team, class T, class Where>
FN column_of<T, PLACES, Team::down, Where> column(const Team&, const T* p, int base, long step, computed<T> fill, Where where) {
  return {p, p, base, step, fill, {}, where};
}
template <int PLACE, class T, int PLACES, int R, class Where> struct below_operand {
  using value = computed<T>;
  static constexpr int bytes = 0;
  static constexpr bool kept = false;
  column_of<T, PLACES, R, Where>* column;
  template <int W, int U> struct packet {
    column_of<T, PLACES, R, Where>* column;
    FN explicit packet(const below_operand& o) : column(o.column) {}
    template <class Place> FN void fetch(int u, const Place& at) {
      if (PLACE > 0 || u > 0) return;
      column->spot = apart(column->p + at.first * column->step);
#pragma unroll
      for (int k = 0; k < U + PLACES - 1; ++k) column->fetch(k, at.first);
    }
    template <class Place> FN value element(int u, int, const Place&) { return column->held[u + PLACE]; }
    template <class Place> FN void flush(int, const Place&) {}
  };
};
template <int PLACE, class T, int PLACES, int R, class Where>
FN below_operand<PLACE, T, PLACES, R, Where> below(column_of<T, PLACES, R, Where>& column) {
  return {&column};
}

//@ run_map_down: needs words, visit, map_block, grid, divisor, device_scope
struct down_range {
  long first, columns;
};
struct down_place {
  static constexpr int slot = 0;
  long first, flat;
  FN long outer(int) const { return 0; }
  FN long inner(int j) const { return flat + j; }
  FN bool whole(long) const { return true; }
  template <class T> FN T* of(T* p, long) const { return p + flat; }
};
template <int R> struct down_lane : words<down_lane<R>> {
  static constexpr int vector = 1, down = R;
};
template <int R, class Sink, class F, class... Ops> FN void visit_down(long first, Sink& sink, const F& f, Ops... operand) {
  down_place at[R];
  bool live[R];
#pragma unroll
  for (int u = 0; u < R; ++u) at[u] = {first, first + u}, live[u] = true;
  visit<false, 1, R>(at, live, sink, f, typename Ops::template packet<1, R>(operand)...);
}
template <int R, class Sink, class F, class... Ops>
FN void walk(down_lane<R>&, down_range r, Sink& sink, const F& f, Ops... operand) {
  if (r.columns % R == 0 || r.first + R <= r.columns) return visit_down<R>(r.first, sink, f, operand...);
#pragma unroll 1
  for (long i = r.first; i < r.columns; ++i) visit_down<1>(i, sink, f, operand...);
}
template <int R, class Index, class Divisor, class Body>
__global__ void __launch_bounds__(MAP_BLOCK) map_down_kernel(const Body body, Index threads, Divisor wide, Divisor high) {
  const Index mine = Index(block_index()) * MAP_BLOCK + threadIdx.x;
  if (mine >= threads) return;
  const Index above = wide.under(mine), plane = high.under(above);
  const Index row = plane * wide.by + (mine - above * wide.by), down = above - plane * high.by;
  body(long(row), down_range{long(down) * R, body.columns()}, down_lane<R>());
}
// `beside` rows lie side by side.
#ifdef __CUDACC_RTC__
template <int R, class Body> FN int run_map_down(const Body&, long, long, long, int, void*) {
  return &map_down_kernel<R, unsigned, divisor, Body> == nullptr;
}
#else
template <int R, class Body>
int run_map_down(const Body& body, long rows, long columns, long beside, int device, void* stream) {
  if (rows <= 0 || columns <= 0) return 0;
  const device_scope scope(device);
  const long high = (columns + R - 1) / R, threads = rows * high;
  const dim3 grid = grid_of((threads + MAP_BLOCK - 1) / MAP_BLOCK);
  const auto on = static_cast<cudaStream_t>(stream);
  if (threads <= 1L << 30)
    map_down_kernel<R, unsigned><<<grid, MAP_BLOCK, 0, on>>>(body, unsigned(threads), divisor(unsigned(beside)), divisor(unsigned(high)));
  else
    map_down_kernel<R, long><<<grid, MAP_BLOCK, 0, on>>>(body, threads, long_divisor{beside}, long_divisor{high});
  return cudaGetLastError();
}
#endif

//@
}  // namespace fusewright
