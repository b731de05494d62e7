// Who runs a generated CUDA kernel body: a lane, a part of a warp, or a block; and their reductions.
//
// The surprising fact: a reduction needs no second barrier. Warps leave their parts in shared memory, and the next
// reduction uses the other of two rooms; its own barrier says that everybody has read the first one.
//
// Text outside `//@ name` sections only serves a compilation of this file alone.
#pragma once
#include "devicelib/cuda/operand.cuh"
namespace fusewright {

//@ words
template <class Team, long TOTAL> struct layout;
template <class T, int SLOTS, int W> struct kept_row;
template <class T> struct sum_of;
template <class T> struct prod_of;
template <class T> struct max_of;
template <class T> struct min_of;
template <class T> struct any_of;
template <class T> struct all_of;
template <class T> struct moments_of;
template <class T> struct online_softmax_of;
template <class T> struct argmax_of;
template <class T> struct argmin_of;
template <class T> struct cumsum_of;
template <class T> struct cumprod_of;
template <class T> struct cumsum_back_of;
template <class T> struct cumprod_back_of;
// Truth values are counted in longs and compared as bytes.
template <class T> struct reduction_types { using counted = T; using ordered = T; };
template <> struct reduction_types<bool> { using counted = long; using ordered = unsigned char; };
template <class T> T declared();
template <class F, class... Ops>
using results = reduction_types<decltype(declared<const F&>()(declared<typename Ops::value>()...))>;
#define FUSEWRIGHT_REDUCTION(name, kind)                                                  \
  template <class Span, class F, class... Ops> FN auto name(Span span, const F& f, Ops... operand) { \
    return reduce(name##_of<typename results<F, Ops...>::kind>(), self(), span, f, operand...);         \
  }
#define FUSEWRIGHT_SCAN(name)                                                                       \
  template <class Span, class T, int SLOTS, int W, class F, class... Ops>                           \
  FN void name(Span span, kept_row<T, SLOTS, W>& row, const F& f, Ops... operand) {                 \
    scan(name##_of<T>(), self(), span, row, f, operand...);                                         \
  }
struct nothing {
  static constexpr bool kept = false;
  template <int W, class Place, class Element> FN void take(const Place&, const Element& element) {
#pragma unroll
    for (int j = 0; j < W; ++j) element(j);
  }
};
// The interface, said once: a team brings member(), members(), leads() and join<Reducer>(); what the words
// themselves need comes with the section that has the word's name.
template <class Team> struct words {
  static constexpr int burst = 8;  // most vectors that a member has in flight
  FN Team& self() { return static_cast<Team&>(*this); }
  template <class Span, class F, class... Ops> FN void each(Span span, const F& f, Ops... operand) {
    nothing sink;
    walk(self(), span, sink, f, operand...);
  }
  FUSEWRIGHT_REDUCTION(sum, counted)
  FUSEWRIGHT_REDUCTION(prod, counted)
  FUSEWRIGHT_REDUCTION(max, ordered)
  FUSEWRIGHT_REDUCTION(min, ordered)
  FUSEWRIGHT_REDUCTION(any, ordered)
  FUSEWRIGHT_REDUCTION(all, ordered)
  FUSEWRIGHT_REDUCTION(moments, counted)
  FUSEWRIGHT_REDUCTION(online_softmax, counted)
  FUSEWRIGHT_REDUCTION(argmax, ordered)
  FUSEWRIGHT_REDUCTION(argmin, ordered)
  FUSEWRIGHT_SCAN(cumsum)
  FUSEWRIGHT_SCAN(cumprod)
  FUSEWRIGHT_SCAN(cumsum_back)
  FUSEWRIGHT_SCAN(cumprod_back)
  template <class T, long N> FN auto keep() {
    static_assert(!Team::spread, "a row that is split over blocks has no registers to be kept in");
    return kept_row<T, layout<Team, N>::slots, layout<Team, N>::W>();
  }
  template <class F> FN void once(const F& f) {
    if (self().leads()) f();
  }
};

//@ lane: needs words, line
// One thread and one vector of a row of a map, number `vector`; the last one may be short.
struct range {
  long vector, columns;
};
template <int VECTOR> struct lane : words<lane<VECTOR>> {
  static constexpr int vector = VECTOR;
};
template <int VECTOR, class Sink, class F, class... Ops>
FN void walk(lane<VECTOR>&, range r, Sink& sink, const F& f, Ops... operand) {
  if (r.columns % VECTOR == 0 || (r.vector + 1) * VECTOR <= r.columns) {
    visit_line<false, VECTOR, 1>(r.vector, r.vector + 1, 1, sink, f, operand...);
  } else {
#pragma unroll 1
    for (long i = r.vector * VECTOR; i < r.columns; ++i) visit_line<false, 1, 1>(i, i + 1, 1, sink, f, operand...);
  }
}

//@ shuffle
// Every member of a group of 2, 4, ... 32 neighbouring lanes gets the join of all.
// Lanes without a row have left the kernel, and a full mask does not wait for those.
template <class T> FN T from_lane(T mine, int distance) {
  constexpr int WORDS = (sizeof(T) + 3) / 4;
  unsigned bits[WORDS] = {};
  memcpy(bits, &mine, sizeof(T));
#pragma unroll
  for (int w = 0; w < WORDS; ++w) bits[w] = __shfl_xor_sync(0xffffffffu, bits[w], distance);
  memcpy(&mine, bits, sizeof(T));
  return mine;
}
// Joining in the order of lanes gives all of them the same bits, also where join(a, b) rounds unlike join(b, a).
template <class Reducer, int LANES, class T> FN T butterfly(T mine) {
#pragma unroll
  for (int distance = LANES / 2; distance > 0; distance /= 2) {
    const T other = from_lane(mine, distance);
    if (Reducer::symmetric)
      mine = Reducer::join(mine, other);
    else
      mine = threadIdx.x & distance ? Reducer::join(other, mine) : Reducer::join(mine, other);
  }
  return mine;
}

//@ team: needs words, shuffle
// THREADS neighbouring threads: a part of a warp, or a whole block of 64 to 1024.
template <int THREADS, int VECTOR> struct team : words<team<THREADS, VECTOR>> {
  static_assert(THREADS >= 1 && THREADS <= 1024 && (THREADS & (THREADS - 1)) == 0, "1, 2, 4, ... 1024 threads");
  static constexpr int threads = THREADS, vector = VECTOR, across = 1, lanes = THREADS < 32 ? THREADS : 32;
  static constexpr bool spread = false;
  int room = 0;
  FN int lane() const { return 0; }
  FN int member() const { return threadIdx.x % THREADS; }
  FN int members() const { return THREADS; }
  FN bool leads() const { return member() == 0; }
  template <class Reducer, class T> FN T join(T mine) {
    mine = butterfly<Reducer, lanes>(mine);
    if constexpr (THREADS > 32) {
      constexpr int WARPS = THREADS / 32;
      __shared__ T rooms[2][WARPS];
      if (threadIdx.x % 32 == 0) rooms[room][threadIdx.x / 32] = mine;
      __syncthreads();
      mine = butterfly<Reducer, WARPS>(rooms[room][threadIdx.x % WARPS]);
      room ^= 1;
    }
    return mine;
  }
};

//@ alone
// The block of a kernel, or of a turn, in which nothing is reduced.
struct alone {
  template <class Reducer, class T> FN T join(T mine) { return mine; }
};

//@ reduce
// A reducer takes vectors (take), hands in its part, joins parts, and turns the last one into the result.
template <class Reducer, class Team, class Span, class F, class... Ops>
FN auto reduce(Reducer reducer, Team& team, Span span, const F& f, Ops... operand) {
  walk(team, span, reducer, f, operand...);
  return Reducer::result(team.template join<Reducer>(reducer.part()));
}

//@ sum: needs reduce
// Pairwise inside a burst of short vectors; what the additions of bursts round away is summed apart (Knuth's two-sum).
template <class T> struct sum_of {
  static constexpr bool kept = false, symmetric = true;
  static constexpr int MOST = 16;  // elements at a time: rows that are kept have no registers for more
  T total = 0, lost = 0;
  template <bool GUARDED, int W, int U, class Element> FN void take(const bool (&live)[U], const Element& element) {
    constexpr int some = 2 * W < MOST ? MOST / W : 1, step = some < U ? some : U;
#pragma unroll
    for (int u = 0; u < U; u += step)
      if (!GUARDED || step > 1 || live[u])
        take<step * W>(0, [&](int k) {
          const int at = u + k / W;
          return at < U && (!GUARDED || live[at]) ? T(element(at, k % W)) : T(0);
        });
  }
  template <int COUNT, class Place, class Element> FN void take(const Place&, const Element& element) {
    T x[COUNT];
#pragma unroll
    for (int j = 0; j < COUNT; ++j) x[j] = element(j);
#pragma unroll
    for (int step = 1; step < COUNT; step *= 2)
#pragma unroll
      for (int j = 0; j + step < COUNT; j += 2 * step) x[j] += x[j + step];
    const T sum = total + x[0], added = sum - total;
    lost += (total - (sum - added)) + (x[0] - added);
    total = sum;
  }
  FN void scale(T factor) { total *= factor, lost *= factor; }
  // After an infinity `lost` is NaN or infinite, and the total alone is right.
  FN T part() const { return lost - lost == T(0) ? total + lost : total; }
  static FN T none() { return 0; }
  static FN T join(T a, T b) { return a + b; }
  static FN T result(T a) { return a; }
};
template <class T> constexpr bool takes_bursts<sum_of<T>> = true;

//@ reduce_by
// A reducer that is one operation: JOIN of elements, starting with what changes nothing.
template <class T, class Join> struct reduce_by {
  static constexpr bool kept = false, symmetric = true;
  T value = Join::none(T());
  template <int W, class Place, class Element> FN void take(const Place&, const Element& element) {
#pragma unroll
    for (int j = 0; j < W; ++j) value = Join::join(value, T(element(j)));
  }
  FN T part() const { return value; }
  static FN T none() { return Join::none(T()); }
  static FN T join(T a, T b) { return Join::join(a, b); }
  static FN auto result(T a) { return Join::result(a); }
};

//@ prod: needs reduce, reduce_by
struct multiply {
  template <class T> static FN T none(T) { return T(1); }
  template <class T> static FN T join(T a, T b) { return a * b; }
  template <class T> static FN T result(T a) { return a; }
};
template <class T> struct prod_of : reduce_by<T, multiply> {};

//@ limits
FN float lowest(float) { return __int_as_float(0xff800000); }
FN double lowest(double) { return __longlong_as_double(0xfff0000000000000); }
template <class T> FN T lowest(T) { return T(-1) < T(0) ? T(1UL << (8 * sizeof(T) - 1)) : T(0); }
FN float highest(float) { return __int_as_float(0x7f800000); }
FN double highest(double) { return __longlong_as_double(0x7ff0000000000000); }
template <class T> FN T highest(T x) { return T(~lowest(x)); }

//@ max: needs reduce, reduce_by, limits, maximum
struct larger {
  template <class T> static FN T none(T x) { return lowest(x); }
  template <class T> static FN T join(T a, T b) { return maximum(a, b); }
  template <class T> static FN T result(T a) { return a; }
};
template <class T> struct max_of : reduce_by<T, larger> {};

//@ min: needs reduce, reduce_by, limits, minimum
struct smaller {
  template <class T> static FN T none(T x) { return highest(x); }
  template <class T> static FN T join(T a, T b) { return minimum(a, b); }
  template <class T> static FN T result(T a) { return a; }
};
template <class T> struct min_of : reduce_by<T, smaller> {};

//@ any: needs reduce, reduce_by
struct either {
  static FN unsigned none(unsigned) { return 0; }
  static FN unsigned join(unsigned a, unsigned b) { return a | b; }
  static FN bool result(unsigned a) { return a != 0; }
};
template <class T> struct any_of : reduce_by<unsigned, either> {};

//@ all: needs reduce, reduce_by
struct both {
  static FN unsigned none(unsigned) { return 1; }
  static FN unsigned join(unsigned a, unsigned b) { return a & b; }
  static FN bool result(unsigned a) { return a != 0; }
};
template <class T> struct all_of : reduce_by<unsigned, both> {};

//@ quotient
// The share of a count needs no last bit, and an exact division would cost more than all else in a merge.
FN float quotient(float a, float b) { return __fdividef(a, b); }
template <class T> FN T quotient(T a, T b) { return a / b; }

//@ moments: needs reduce, sum, quotient, fixed, fma
// Mean and sum of squared deviations; nothing cancels when the mean is large. A row of at most HELD elements
// per thread stays in registers and is passed over twice. A longer one is read once: two passes inside each
// burst of vectors, and Chan's rule between bursts and between threads.
constexpr int HELD = 32;
template <class T> struct moments_result {
  T mean, m2;
};
template <class T> struct moments_of {
  static constexpr bool kept = false, symmetric = false;
  struct partial {
    T count, mean, m2;
  };
  partial all = none();
  // More elements at a time, or more doubles, would not fit the registers of a busy GPU.
  static constexpr int MOST = sizeof(T) == 8 ? 8 : 16;
  template <bool GUARDED, int W, int U, class Element> FN void take(const bool (&live)[U], const Element& element) {
    constexpr int wanted = MOST > W ? MOST / W : 1, step = wanted < U ? wanted : U;
#pragma unroll
    for (int u = 0; u < U; u += step)
      take_some<GUARDED, step * W>(
          [&](int k) { return u + k / W < U && (!GUARDED || live[u + k / W]); },
          [&](int k) { return T(element(u + k / W, k % W)); }, U - u < step ? (U - u) * W : step * W);
  }
  // What is not there is taken to be the first element, which is where all begin that are equal to it.
  template <bool GUARDED, int COUNT, class Here, class Element>
  FN void take_some(const Here& here, const Element& element, int full) {
    T x[COUNT], rest = 0, m2 = 0;
    int count = 0;
#pragma unroll
    for (int k = 0; k < COUNT; ++k) {
      x[k] = here(k) ? element(k) : k ? x[0] : T(0);
      rest += x[k] - x[0], count += here(k);
    }
    const T n = T(GUARDED ? count : full);
    T mean = x[0] + (GUARDED ? quotient(rest, n > T(1) ? n : T(1)) : rest / n);
    if (rest - rest != T(0)) mean = plain_mean<COUNT>(x, here, n);
#pragma unroll
    for (int k = 0; k < COUNT; ++k) m2 = here(k) ? fma(x[k] - mean, x[k] - mean, m2) : m2;
    all = join(all, {n, mean, m2});
  }
  // An infinite mean is one in eager, too: infinity - infinity must not come of it.
  template <int COUNT, class Here> FN static T plain_mean(const T (&x)[COUNT], const Here& here, T n) {
    T sum = 0;
#pragma unroll
    for (int k = 0; k < COUNT; ++k) sum += here(k) ? x[k] : T(0);
    return sum / n;
  }
  FN partial part() const { return all; }
  static FN partial none() { return {0, 0, 0}; }
  static FN partial join(partial a, partial b) {
    const T count = a.count + b.count, delta = b.mean - a.mean;
    const T share = quotient(b.count, count > T(1) ? count : T(1));
    const T mean = delta - delta == T(0) ? fma(delta, share, a.mean) : a.mean + b.mean;
    return {count, mean, fma(delta, delta * (a.count * share), a.m2 + b.m2)};
  }
  static FN moments_result<T> result(partial a) { return {a.mean, a.m2}; }
};
template <class T> constexpr bool takes_bursts<moments_of<T>> = true;
// Sums of deviations and of their squares; the first is what rounding left in the mean.
template <class T> struct deviations_of {
  static constexpr bool symmetric = true;
  struct sums { T plain, squares; };
  static FN sums none() { return {0, 0}; }
  static FN sums with(sums a, T deviation) { return {a.plain + deviation, fma(deviation, deviation, a.squares)}; }
  static FN sums join(sums a, sums b) { return {a.plain + b.plain, a.squares + b.squares}; }
};
template <class T, int SLOTS, int ROW_W> struct held_row {
  static constexpr bool kept = true;
  T x[SLOTS][ROW_W], sum = 0;
  template <int W, class Place, class Element> FN void take(const Place& at, const Element& element) {
#pragma unroll
    for (int j = 0; j < W; ++j) sum += x[at.slot][j] = element(j);
  }
};
// 2^n elements of a short row, as many in each lane. Their sum is a tree, so equal elements are exactly their mean, and what
// rounding left in it is no more than an element's: no second look at it, and the body takes up the same deviations again.
template <class Team, long TOTAL> constexpr bool even_row =
    TOTAL <= 256 && (TOTAL & (TOTAL - 1)) == 0 && layout<Team, TOTAL>::slots * layout<Team, TOTAL>::stride == TOTAL;
template <int FIRST, int COUNT, class T, int SLOTS, int W> FN T tree(const T (&x)[SLOTS][W]) {
  if constexpr (COUNT == 1)
    return x[FIRST / W][FIRST % W];
  else
    return tree<FIRST, COUNT / 2>(x) + tree<FIRST + COUNT / 2, COUNT / 2>(x);
}
template <class T, long TOTAL, class Team, int SLOTS, int W>
FN moments_result<T> even_moments(Team& team, const T (&x)[SLOTS][W]) {
  const T mean = team.template join<sum_of<T>>(tree<0, SLOTS * W>(x)) / T(TOTAL);
  T squares[1][W] = {};
#pragma unroll
  for (int s = 0; s < SLOTS; ++s)
#pragma unroll
    for (int j = 0; j < W; ++j) squares[0][j] = fma(x[s][j] - mean, x[s][j] - mean, squares[0][j]);
  return {mean, team.template join<sum_of<T>>(tree<0, W>(squares))};
}
template <class T, class Team, long... N, class F, class... Ops>
FN moments_result<T> reduce(moments_of<T> reducer, Team& team, fixed_span<N...> span, const F& f, Ops... operand) {
  using lay = layout<Team, span.total>;
  if constexpr (Team::spread || lay::slots * lay::W > HELD) {
    walk(team, span, reducer, f, operand...);
    return reducer.result(team.template join<moments_of<T>>(reducer.part()));
  } else {
    held_row<T, lay::slots, lay::W> row;
    walk(team, span, row, f, operand...);
    if constexpr (even_row<Team, span.total>) return even_moments<T, span.total>(team, row.x);
    const T mean = team.template join<sum_of<T>>(row.sum) / T(span.total);
    typename deviations_of<T>::sums mine = deviations_of<T>::none();
#pragma unroll
    for (int s = 0; s < lay::slots; ++s)
      if ((s + 1) * lay::stride <= span.total || s * lay::stride + team.member() * lay::W < span.total)
#pragma unroll
        for (int j = 0; j < lay::W; ++j)
          mine = deviations_of<T>::with(mine, row.x[s][j] - mean);
    const auto all = team.template join<deviations_of<T>>(mine);
    const T shift = all.plain / T(span.total);
    return {mean - mean == T(0) ? mean + shift : mean, fma(-all.plain, shift, all.squares)};  // infinity stays what it is
  }
}

//@
}  // namespace fusewright
