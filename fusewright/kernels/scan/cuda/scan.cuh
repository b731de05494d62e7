// Running sums and products along a row, or a chunk of one, that a team keeps in registers.
//
// The surprising fact: a row is read once, and three barriers do whatever its length. A thread joins the elements
// of its vectors, lanes exchange what theirs come to, and so do warps, for all vectors of the row at the same time.
// What goes from thread to thread is a double where elements are floats, so only the last addition rounds much.
//
// Text outside `//@ name` sections only serves a compilation of this file alone.
#pragma once
#include "devicelib/cuda/team.cuh"
namespace fusewright {

//@ scan: needs team, keep
template <class T> struct wider { using type = T; };
template <> struct wider<float> { using type = double; };
struct added {
  template <class T> static FN T none() { return T(0); }
  template <class T> static FN T join(T a, T b) { return a + b; }
};
struct multiplied {
  template <class T> static FN T none() { return T(1); }
  template <class T> static FN T join(T a, T b) { return a * b; }
};
template <class Join, bool BACK> struct scan_by : Join {
  static constexpr bool back = BACK;
};
// What the lane has that comes `distance` before this one on the way through the row.
template <bool BACK, int LANES, class T> FN T from_before(T mine, int distance) {
  constexpr int WORDS = (sizeof(T) + 3) / 4;
  unsigned bits[WORDS] = {};
  memcpy(bits, &mine, sizeof(T));
#pragma unroll
  for (int w = 0; w < WORDS; ++w)
    bits[w] = BACK ? __shfl_down_sync(0xffffffffu, bits[w], distance, LANES)
                   : __shfl_up_sync(0xffffffffu, bits[w], distance, LANES);
  memcpy(&mine, bits, sizeof(T));
  return mine;
}
// What one lane of each group of LANES neighbours has.
template <int LANES, class T> FN T from_one(T mine, int lane) {
  constexpr int WORDS = (sizeof(T) + 3) / 4;
  unsigned bits[WORDS] = {};
  memcpy(bits, &mine, sizeof(T));
#pragma unroll
  for (int w = 0; w < WORDS; ++w) bits[w] = __shfl_sync(0xffffffffu, bits[w], lane, LANES);
  memcpy(&mine, bits, sizeof(T));
  return mine;
}
// A group of LANES neighbours: all before this one joined, and this one joined to them.
template <class T> struct place_in_row { T before, through; };
template <class Scan, int LANES, class T> FN place_in_row<T> along_lanes(T mine) {
  const int lane = threadIdx.x % LANES, place = Scan::back ? LANES - 1 - lane : lane;
#pragma unroll
  for (int distance = 1; distance < LANES; distance *= 2) {
    const T other = from_before<Scan::back, LANES>(mine, distance);
    if (place >= distance) mine = Scan::join(other, mine);
  }
  const T before = from_before<Scan::back, LANES>(mine, 1);
  return {place > 0 ? before : Scan::template none<T>(), mine};
}
// Takes the vectors of a thread: their elements, and what each vector comes to, which goes to the other threads unrounded.
template <class Scan, class T, int SLOTS, int ROW_W> struct own_vectors {
  static constexpr bool kept = true;
  using wide = typename wider<T>::type;
  kept_row<T, SLOTS, ROW_W>& row;
  wide through[SLOTS];
  FN explicit own_vectors(kept_row<T, SLOTS, ROW_W>& row) : row(row) {
#pragma unroll
    for (int s = 0; s < SLOTS; ++s) through[s] = Scan::template none<wide>();
  }
  template <int W, class Place, class Element> FN void take(const Place& at, const Element& element) {
    wide sum = Scan::template none<wide>();
#pragma unroll
    for (int k = 0; k < W; ++k) {
      const int j = Scan::back ? W - 1 - k : k;
      sum = Scan::join(sum, wide(row.held[at.slot][j] = element(j)));
    }
    through[at.slot] = sum;
  }
};
// What the warps have, as one table per kind of scan: `before` for each warp, and what a slot comes to.
template <class Scan, int SLOTS, int WARPS, class Wide> struct warp_table { Wide warp[SLOTS][WARPS], slot[SLOTS]; };
template <class Scan, int SLOTS, int WARPS, class Wide>
FN void join_warps(warp_table<Scan, SLOTS, WARPS, Wide>& table) {
  const int lane = threadIdx.x % 32;
  __syncthreads();
  for (int s = threadIdx.x / 32; s < SLOTS; s += WARPS) {
    const auto found = along_lanes<Scan, WARPS>(table.warp[s][lane % WARPS]);
    __syncwarp();
    if (lane < WARPS) table.warp[s][lane] = found.before;
    if (lane == (Scan::back ? 0 : WARPS - 1)) table.slot[s] = found.through;
  }
  __syncthreads();
}
// The same number, of which the compiler does not know that it has widened it before, and kept that in twice the registers:
// a thread's z is 0, which nobody has told it.
FN void narrow_again(float& x) { x = __int_as_float(__float_as_int(x) ^ threadIdx.z); }
template <class T> FN void narrow_again(T&) {}
// From what comes before a vector to what comes through each of its elements, which are rounded once. Widening them again
// costs less than what a vector came to at each of them, in twice the registers: a GPU converts 16 numbers a cycle.
template <class Scan, class T, int W, class Wide> FN void run_through(T (&vector)[W], Wide through) {
#pragma unroll
  for (int k = 0; k < W; ++k) {
    const int j = Scan::back ? W - 1 - k : k;
    narrow_again(vector[j]);
    vector[j] = T(through = Scan::join(through, Wide(vector[j])));
  }
}
// What comes before the row of a team; `total` is what the row comes to (chunked_scan.cuh).
template <class Scan, int THREADS, int VECTOR, class Wide> FN Wide hand_on(team<THREADS, VECTOR>&, Wide) {
  return Scan::template none<Wide>();
}
template <class Scan, class Team, class Span, class T, int SLOTS, int W, class F, class... Ops>
FN void scan(Scan, Team& team, Span span, kept_row<T, SLOTS, W>& row, const F& f, Ops... operand) {
  using wide = typename wider<T>::type;
  constexpr int THREADS = Team::threads, LANES = THREADS < 32 ? THREADS : 32, WARPS = THREADS / LANES;
  constexpr int LAST_LANE = Scan::back ? 0 : LANES - 1;
  own_vectors<Scan, T, SLOTS, W> own(row);
  walk(team, span, own, f, operand...);
  const int warp = team.member() / LANES, lane = team.member() % LANES;
  wide before[SLOTS], carry = Scan::template none<wide>();
  if constexpr (WARPS > 1) {
    __shared__ warp_table<Scan, SLOTS, WARPS, wide> table;
    __syncthreads();  // the scan before this one may still read
#pragma unroll
    for (int s = 0; s < SLOTS; ++s) {
      const auto found = along_lanes<Scan, LANES>(own.through[s]);
      if (lane == LAST_LANE) table.warp[s][warp] = found.through;
      before[s] = found.before;
    }
    join_warps(table);
#pragma unroll
    for (int k = 0; k < SLOTS; ++k) carry = Scan::join(carry, table.slot[Scan::back ? SLOTS - 1 - k : k]);
    carry = hand_on<Scan>(team, carry);
#pragma unroll
    for (int k = 0; k < SLOTS; ++k) {
      const int s = Scan::back ? SLOTS - 1 - k : k;
      run_through<Scan>(row.held[s], Scan::join(Scan::join(carry, table.warp[s][warp]), before[s]));
      carry = Scan::join(carry, table.slot[s]);
    }
  } else {
#pragma unroll
    for (int k = 0; k < SLOTS; ++k) {
      const int s = Scan::back ? SLOTS - 1 - k : k;
      const auto found = along_lanes<Scan, LANES>(own.through[s]);
      run_through<Scan>(row.held[s], Scan::join(carry, found.before));
      carry = Scan::join(carry, from_one<LANES>(found.through, LAST_LANE));
    }
  }
}

//@ cumsum: needs scan
template <class T> struct cumsum_of : scan_by<added, false> {};

//@ cumprod: needs scan
template <class T> struct cumprod_of : scan_by<multiplied, false> {};

//@ cumsum_back: needs scan
template <class T> struct cumsum_back_of : scan_by<added, true> {};

//@ cumprod_back: needs scan
template <class T> struct cumprod_back_of : scan_by<multiplied, true> {};

//@
}  // namespace fusewright
