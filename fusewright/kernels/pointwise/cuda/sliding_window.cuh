// Maps of windows that overlap: a thread takes R vectors of results below each other, and a warp neighbours.
//
// The surprising fact: nvcc merges no loads that are guarded alike, nor any that take the non-coherent path. So what
// the windows of a thread have in common is said: `sliding_windows` loads it once, and `window_tap<k, j>` is place (k, j) of each
// window. What is computed of it alike, nvcc does find: a sum over a line of places is taken once for all windows with it.
//
// Text outside `//@ name` sections only serves a compilation of this file alone.
#pragma once
#include "kernels/pointwise/cuda/map.cuh"
namespace fusewright {

//@ sliding_windows: needs read, extent_of, visit
// Of each line, vectors that begin at place WHOLE exist as a whole or not at all, and what stands at their sides is alone.
template <class T, int HIGH, int WIDE, int WHOLE, int R, int W, class Where> struct window_vectors {
  const T* p;
  int base;
  long outer, inner;
  computed<T> fill, held[R + HIGH - 1][W + WIDE - 1];
  Where where;
  template <int LINES, class Place> FN void fetch(const Place& at) {
    const T* const spot = apart(p + (at.o * outer + at.i * inner));
#pragma unroll
    for (int k = 0; k < LINES + HIGH - 1; ++k) {
      const auto lives = where(at.o + k);
#pragma unroll
      for (int j = 0; j < W + WIDE - 1; ++j) held[k][j] = fill;
      if (W > 1 && lives.has(at.i + WHOLE)) vector_at(held[k] + WHOLE, spot + k * outer);
#pragma unroll
      for (int j = 0; j < W + WIDE - 1; ++j)
        if (W == 1 || j < WHOLE || j >= WHOLE + W)
          if (lives.has(at.i + j)) held[k][j] = read(spot + k * outer + j * inner, base);
    }
  }
  FN void vector_at(computed<T>* to, const T* line) {
    T some[W];
    fetch_vector<true, W>(line + base + WHOLE, some);
#pragma unroll
    for (int j = 0; j < W; ++j) to[j] = widen(some[j]);
  }
};
template <int HIGH, int WIDE, int WHOLE, class Team, class T, class Where>
FN window_vectors<T, HIGH, WIDE, WHOLE, Team::results_per_thread, Team::vector, Where> sliding_windows(
    const Team&, const T* p, int base, long outer, long inner, computed<T> fill, Where where) {
  return {p, base, outer, inner, fill, {}, where};
}
template <int K, int J, class Windows> struct window_tap_operand {
  using value = decltype(Windows::fill);
  static constexpr int bytes = 0;
  static constexpr bool kept = false;
  Windows* sliding_windows;
  template <int W, int U> struct packet {
    Windows* sliding_windows;
    FN explicit packet(const window_tap_operand& o) : sliding_windows(o.sliding_windows) {}
    template <class Place> FN void fetch(int u, const Place& at) {
      if (K == 0 && J == 0 && u == 0) sliding_windows->template fetch<U>(at);
    }
    template <class Place> FN value element(int u, int j, const Place&) { return sliding_windows->held[u + K][j + J]; }
    template <class Place> FN void flush(int, const Place&) {}
  };
};
template <int K, int J, class Windows>
FN window_tap_operand<K, J, Windows> window_tap(Windows& sliding_windows) { return {&sliding_windows}; }

//@ run_map_sliding_window: needs words, visit, map_block, grid, divisor, device_scope
struct sliding_window_range {
  int line, column;  // the first of the results
  long lines, columns;
};
struct sliding_window_place {
  static constexpr int slot = 0;
  int o, i, further;  // the results of a thread share an address
  long flat;
  FN long outer(int) const { return o + further; }
  FN long inner(int j) const { return i + j; }
  FN bool whole(long) const { return true; }
  template <class T> FN T* of(T* p, long outer_stride) const { return p + apart(o * outer_stride + i) + further * outer_stride; }
};
template <int R, int VECTOR> struct sliding_window_lane : words<sliding_window_lane<R, VECTOR>> {
  static constexpr int vector = VECTOR, results_per_thread = R;
};
template <int U, int W, class Sink, class F, class... Ops>
FN void visit_sliding_window(const sliding_window_range& r, int line, Sink& sink, const F& f, Ops... operand) {
  sliding_window_place at[U];
  bool live[U];
#pragma unroll
  for (int u = 0; u < U; ++u) at[u] = {line, r.column, u, (line + u) * r.columns + r.column}, live[u] = true;
  visit<false, W, U>(at, live, sink, f, typename Ops::template packet<W, U>(operand)...);
}
template <int R, int W, class Sink, class F, class... Ops>
FN void walk(sliding_window_lane<R, W>&, const sliding_window_range& r, Sink& sink, const F& f, Ops... operand) {
  if (r.lines % R == 0 || r.line + R <= r.lines) return visit_sliding_window<R, W>(r, r.line, sink, f, operand...);
#pragma unroll 1
  for (int line = r.line; line < r.lines; ++line) visit_sliding_window<1, W>(r, line, sink, f, operand...);
}
template <int R, int W, class Index, class Divisor, class Body>
__global__ void __launch_bounds__(MAP_BLOCK) map_sliding_window_kernel(const Body body, Index threads, Divisor wide,
    Divisor high) {
  const Index mine = Index(block_index()) * MAP_BLOCK + threadIdx.x;
  if (mine >= threads) return;
  const Index above = wide.under(mine), row = high.under(above);
  const int column = int(mine - above * wide.by) * W, line = int(above - row * high.by) * R;
  body(long(row), sliding_window_range{line, column, body.lines(), body.columns()}, sliding_window_lane<R, W>());
}
#ifdef __CUDACC_RTC__
template <int R, int W, class Body> FN int run_map_sliding_window(const Body&, long, long, long, int, void*) {
  return &map_sliding_window_kernel<R, W, unsigned, divisor, Body> == nullptr;
}
#else
template <int R, int W, class Body>
int run_map_sliding_window(const Body& body, long rows, long lines, long columns, int device, void* stream) {
  if (rows <= 0) return 0;
  const device_scope scope(device);
  const long high = (lines + R - 1) / R, wide = columns / W, threads = rows * high * wide;
  const dim3 grid = grid_of((threads + MAP_BLOCK - 1) / MAP_BLOCK);
  const auto on = static_cast<cudaStream_t>(stream);
  if (threads <= 1L << 30)
    map_sliding_window_kernel<R, W, unsigned><<<grid, MAP_BLOCK, 0, on>>>(body, unsigned(threads), divisor(unsigned(wide)),
        divisor(unsigned(high)));
  else
    map_sliding_window_kernel<R, W, long><<<grid, MAP_BLOCK, 0, on>>>(body, threads, long_divisor{wide}, long_divisor{high});
  return cudaGetLastError();
}
#endif

//@
}  // namespace fusewright
