// Rows that lie side by side across memory, many at a time: a lane of a vector is a row.
//
// The surprising fact: the body does not change. It calls a number of a row `real`, which is a float
// to a Solo team and one of each of 16 or 64 rows here. So loads are whole cache lines, four where
// they can be, since lines that are far apart come one by one; and reductions need no shuffles. Short rows
// along memory are transposed until they lie so.
//
// Text outside `//@ name` sections only serves a compilation of this file alone.
#pragma once
#include "devicelib/cpp/launch.h"
#include "devicelib/cpp/scan.h"
namespace fusewright {

//@ rows_of: needs lanes, numbers, sum
// A T for each of SIMD_LANES * N rows, in N vectors; truth values are masks.
constexpr long SIMD_LANES = LANES<float>;
template <class T, long N> struct rows_of;
template <class T> struct lane_of {
  using type = T;
  FN static T from(T x) { return x; }
};
template <> struct lane_of<bool> {
  using type = int;
  FN static int from(bool x) { return -int(x); }
};
template <class T, long N> struct rows_base {
  using lane = typename lane_of<T>::type;
  using vector = typename vector_of<lane, SIMD_LANES * sizeof(lane)>::type;
  using rows = rows_of<T, N>;
  vector v[N];
  FN lane operator[](long row) const { return v[row / SIMD_LANES][row % SIMD_LANES]; }
  // What f makes of each part: the loop is unrolled before vectors are given registers.
  template <class F> FN static rows made(F f) {
    rows made;
    if constexpr (N == 1) made.v[0] = f(0);
    else made.v[0] = f(0), made.v[1] = f(1), made.v[2] = f(2), made.v[3] = f(3);
    return made;
  }
};
#define FUSEWRIGHT_ROWS(sign, result, name) \
  FN friend result name(rows_of a, rows_of b) { return result::made([&](int k) { return a.v[k] sign b.v[k]; }); }
#define FUSEWRIGHT_MASK(sign, name)                                                            \
  FN friend truth name(rows_of a, rows_of b) {                                                 \
    return truth::made([&](int k) { return __builtin_convertvector(a.v[k] sign b.v[k], mask); }); \
  }
template <long N> struct rows_of<bool, N> : rows_base<bool, N> {
  using typename rows_base<bool, N>::vector;
  using real = rows_of<float, N>;
  rows_of() = default;
  FN rows_of(bool x) { *this = this->made([&](int) { return -int(x) - vector{}; }); }
  FN friend rows_of operator!(rows_of a) { return rows_of::made([&](int k) { return ~a.v[k]; }); }
  FUSEWRIGHT_ROWS(&, rows_of, operator&)
  FUSEWRIGHT_ROWS(|, rows_of, operator|)
  FUSEWRIGHT_ROWS(^, rows_of, operator^)
  template <class T> FN static rows_of<T, N> chosen(rows_of c, rows_of<T, N> a, rows_of<T, N> b) {
    return b.made([&](int k) { return __builtin_convertvector(c.v[k], decltype(a.v[k] < b.v[k])) ? a.v[k] : b.v[k]; });
  }
  FN friend real where(rows_of c, real a, real b) { return chosen(c, a, b); }
};
template <class T, long N> struct rows_of : rows_base<T, N> {
  using typename rows_base<T, N>::vector;
  using truth = rows_of<bool, N>;
  using mask = typename truth::vector;
  rows_of() = default;
  FN rows_of(T x) { *this = this->made([&](int) { return x - vector{}; }); }
  FN explicit rows_of(truth x) { *this = this->made([&](int k) { return __builtin_convertvector(-x.v[k], vector); }); }
  template <class U> FN explicit rows_of(rows_of<U, N> x) {
    *this = this->made([&](int k) { return __builtin_convertvector(x.v[k], vector); });
  }
  FN friend rows_of operator-(rows_of a) { return rows_of::made([&](int k) { return -a.v[k]; }); }
  FUSEWRIGHT_ROWS(+, rows_of, operator+)
  FUSEWRIGHT_ROWS(-, rows_of, operator-)
  FUSEWRIGHT_ROWS(*, rows_of, operator*)
  FUSEWRIGHT_ROWS(/, rows_of, operator/)
  FUSEWRIGHT_MASK(==, operator==)
  FUSEWRIGHT_MASK(!=, operator!=)
  FUSEWRIGHT_MASK(<, operator<)
  FUSEWRIGHT_MASK(<=, operator<=)
  FUSEWRIGHT_MASK(>, operator>)
  FUSEWRIGHT_MASK(>=, operator>=)
  FN friend rows_of plus_square(rows_of sum, rows_of x) {
    return rows_of::made([&](int k) { return plus_square(sum.v[k], x.v[k]); });
  }
  // One answer for all rows: a place in the row is within the tensor, or in its padding.
  FN friend rows_of where(bool c, rows_of a, rows_of b) { return c ? a : b; }
  FN rows_of& operator+=(rows_of b) { return *this = *this + b; }
  FN rows_of& operator*=(rows_of b) { return *this = *this * b; }
};
template <long N> struct number<rows_of<float, N>> : number<float> {};
template <long N> struct wider<rows_of<float, N>> {
  using type = rows_of<double, N>;
};
template <class T, long N> FN rows_of<T, N> where(rows_of<bool, N> c, rows_of<T, N> a, rows_of<T, N> b) {
  return c.chosen(c, a, b);
}

//@ lift: needs rows_of
// A function of one, two or three numbers, for each row.
template <class F, long N, class... Rest> FN auto lifted(F f, rows_of<float, N> x, Rest... rest) {
  using result = decltype(f(0.0f, rest[0]...));
  return rows_of<result, N>::made([&](int k) {
    typename rows_of<result, N>::vector part;
    for (long lane = 0; lane < SIMD_LANES; ++lane)
      part[lane] = lane_of<result>::from(f(x.v[k][lane], rest.v[k][lane]...));
    return part;
  });
}
template <long N, class B, class C> rows_of<float, N> rows_among(rows_of<float, N>, B, C);
template <long N, class C> rows_of<float, N> rows_among(float, rows_of<float, N>, C);
template <long N> rows_of<float, N> rows_among(float, float, rows_of<float, N>);
#define FUSEWRIGHT_LIFT1(name)                                           \
  template <long N> FN auto name(rows_of<float, N> x) {                  \
    return lifted([](float a) { return name(a); }, x);                   \
  }
#define FUSEWRIGHT_LIFT2(name)                                                      \
  template <long N> FN auto name(rows_of<float, N> x, rows_of<float, N> y) {        \
    return lifted([](float a, float b) { return name(a, b); }, x, y);               \
  }                                                                                 \
  template <long N> FN auto name(rows_of<float, N> x, float y) { return name(x, rows_of<float, N>(y)); } \
  template <long N> FN auto name(float x, rows_of<float, N> y) { return name(rows_of<float, N>(x), y); }
#define FUSEWRIGHT_LIFT3(name)                                                                         \
  template <class A, class B, class C, class Rows = decltype(rows_among(A{}, B{}, C{}))>               \
  FN auto name(A x, B y, C z) {                                                                        \
    return lifted([](float a, float b, float c) { return name(a, b, c); }, Rows(x), Rows(y), Rows(z)); \
  }

//@ across_rows: needs rows_of, values
template <long N, class T> FN rows_of<computed<T>, N> across_rows(const T* p, long step = 1) {
  using one = lane_of<computed<T>>;
  return rows_of<computed<T>, N>::made([&](int k) {
    typename rows_of<computed<T>, N>::vector part;
    for (long lane = 0; lane < SIMD_LANES; ++lane) part[lane] = one::from(widen(p[(k * SIMD_LANES + lane) * step]));
    return part;
  });
}
template <class T, class U, long N> FN void write(T* p, long offset, rows_of<U, N> x, long step = 1) {
  for (long k = 0; k < SIMD_LANES * N; ++k) narrow(computed<T>(x[k]), p[offset + k * step]);
}
template <class T, long N> FN rows_of<float, N> round_to(rows_of<float, N> x) {
  T places[SIMD_LANES * N];
  write(places, 0, x);
  return across_rows<N>(places);
}

//@ spaced: needs values
// An operand whose rows do not follow each other: 0 if they share their elements.
template <class Operand> struct spaced_operand {
  Operand inside;
  long step;
  FN auto line(long o, long inner) const { return inside.line(o, inner); }
};
template <class Operand> FN spaced_operand<Operand> spaced(Operand inside, long step) { return {inside, step}; }

//@ transposed_rows: needs across_rows, spaced, load, staging, values
// Rows that lie one behind the other: SIMD_LANES elements of each are loaded as they lie, and transposed in registers.
#ifdef __clang__
#define FUSEWRIGHT_SHUFFLED(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#define FUSEWRIGHT_SHUFFLED(a, b, ...) __builtin_shuffle(a, b, lanes<int>{__VA_ARGS__})
#endif
// Elements of two vectors by turns, in every 16 bytes; then 16 bytes of each.
template <class V> FN void mix_near(V a, V b, V& low, V& high) {
  low = FUSEWRIGHT_SHUFFLED(a, b, 0, 16, 1, 17, 4, 20, 5, 21, 8, 24, 9, 25, 12, 28, 13, 29);
  high = FUSEWRIGHT_SHUFFLED(a, b, 2, 18, 3, 19, 6, 22, 7, 23, 10, 26, 11, 27, 14, 30, 15, 31);
}
template <class V> FN void mix_far(V a, V b, V& low, V& high) {
  low = FUSEWRIGHT_SHUFFLED(a, b, 0, 1, 2, 3, 8, 9, 10, 11, 16, 17, 18, 19, 24, 25, 26, 27);
  high = FUSEWRIGHT_SHUFFLED(a, b, 4, 5, 6, 7, 12, 13, 14, 15, 20, 21, 22, 23, 28, 29, 30, 31);
}
// Where a row has to stand so that all come out in order, and where its elements are then.
FN long transposed_place(long k) { return k % 2 * 8 | k / 2 % 2 * 4 | k / 8 * 2 | k / 4 % 2; }
template <class T> struct transposed_operand {
  using rows = rows_of<float, 1>;
  const T* p;
  long outer, step, at = 0;
  rows block[SIMD_LANES];
  FN transposed_operand(const spaced_operand<load_operand<T>>& s) : p(s.inside.p), outer(s.inside.outer), step(s.step) {}
  // The elements from i on, or the last ones.
  FN void transpose(long o, long i, long end) {
    at = i + SIMD_LANES <= end ? i : end - SIMD_LANES;
    const T* first = p + one_by_one(o * outer + (at < 0 ? at = 0 : at));
    for (long k = 0; k < SIMD_LANES && k < end && end < SIMD_LANES; ++k) block[k] = across_rows<1>(first + k, step);
    if (end < SIMD_LANES) return;
    typename rows::vector v[SIMD_LANES], w[SIMD_LANES];
    for (long k = 0; k < SIMD_LANES; ++k) __builtin_prefetch(first + (SIMD_LANES + k) * step);
#pragma GCC unroll 16
    for (long k = 0; k < SIMD_LANES; ++k) v[k] = across_rows<1>(first + transposed_place(k) * step).v[0];
    for (long k = 0; k < SIMD_LANES / 2; ++k) mix_near(v[k], v[k + SIMD_LANES / 2], w[2 * k], w[2 * k + 1]);
    for (long k = 0; k < SIMD_LANES / 2; ++k) mix_near(w[k], w[k + SIMD_LANES / 2], v[2 * k], v[2 * k + 1]);
    for (long k = 0; k < SIMD_LANES / 2; ++k) mix_far(v[k], v[k + SIMD_LANES / 2], w[2 * k], w[2 * k + 1]);
    for (long k = 0; k < SIMD_LANES / 2; ++k) mix_far(w[k], w[k + SIMD_LANES / 2], v[2 * k], v[2 * k + 1]);
#pragma GCC unroll 16
    for (long k = 0; k < SIMD_LANES; ++k) block[transposed_place(k)].v[0] = v[k];
  }
};
template <long N, class Operand> FN const Operand& transposable(const Operand& s) { return s; }
template <long N, class Operand> struct transposes {
  static constexpr bool yes = false;
};
template <class T> struct transposes<1, spaced_operand<load_operand<T>>> {
  static constexpr bool yes = same<computed<T>, float>::yes;
};
template <long N, class T> FN auto transposable(const spaced_operand<load_operand<T>>& s) {
  if constexpr (transposes<N, spaced_operand<load_operand<T>>>::yes) return transposed_operand<T>(s);
  else return s;
}
template <class Operand> FN void transpose(const Operand&, long, long, long) {}
template <class T> FN void transpose(transposed_operand<T>& s, long o, long i, long end) { s.transpose(o, i, end); }

//@ simd_rows: needs across_rows, spaced, words, reduce, kept, strided, gather, strided_store, within, transposed_rows
// Where an operand has the element of the first row.
template <class T> FN const T* spot(const load_operand<T>& s, long o, long i) { return s.p + o * s.outer + i; }
template <class T> FN const T* spot(const strided_operand<T>& s, long o, long i) {
  return s.p + o * s.outer + i * s.step;
}
template <class T, class F> FN const T* spot(const gather_operand<T, F>& s, long o, long i) {
  return s.p + s.offset(o, i);
}
template <class T> FN T* spot(const store_operand<T>& s, long o, long i) { return s.p + o * s.outer + i; }
template <class T, class F> FN T* spot(const gather_store_operand<T, F>& s, long o, long i) {
  return s.p + s.offset(o, i);
}
template <class T, long N> struct spread {
  using rows = rows_of<computed<T>, N>;
  T* p;
  long step;
  rows value;
  FN operator rows&() { return value; }
  FN ~spread() { write(p, 0, value, step); }
};
// What a lambda gets for an operand. The lines of the rows that come next are fetched: they are far from these.
template <long N, class T> FN rows_of<computed<T>, N> taken_at(const T* p, long step) {
  if (step == 0) return widen(*p);
  if (step == 1)
    for (long line = 0; line < N; ++line) __builtin_prefetch(p + (N + line) * 64 / long(sizeof(T)));
  return across_rows<N>(p, step);
}
template <long N, class T> FN spread<T, N> taken_at(T* p, long step) { return {p, step, {}}; }
template <long N, class Operand> FN auto taken(const Operand& s, long o, long i, long) {
  return taken_at<N>(spot(s, o, i), 1);
}
template <long N, class Operand> FN auto taken(const spaced_operand<Operand>& s, long o, long i, long) {
  return taken_at<N>(spot(s.inside, o, i), s.step);
}
template <long N, class T> FN rows_of<float, 1> taken(const transposed_operand<T>& s, long, long i, long) {
  return s.block[i - s.at];
}
template <long N, class T> FN T taken(const everywhere_operand<T>& s, long, long, long) { return s.value; }
template <long N, class Operand, class T, class Where>
FN rows_of<T, N> taken(const within_operand<Operand, T, Where>& s, long o, long i, long inner) {
  const extent live = s.where(o);
  if (i < live.first || i >= live.last) return s.fill;
  return taken<N>(s.inside, o, i, inner);
}
template <long N, class T> FN T taken(const kept_load<T>& s, long o, long i, long inner) { return s.p[o * inner + i]; }
template <long N, class T> FN T& taken(const kept_store<T>& s, long o, long i, long inner) {
  return s.p[o * inner + i];
}

// What the reducers ask of a buffer.
template <class T, long N, class Join>
FN rows_of<T, N> join_buffer(rows_of<T, N>* p, long n, rows_of<T, N> empty, Join join) {
  rows_of<T, N> part[4] = {empty, empty, empty, empty};
  long i = 0;
  for (; i + 4 <= n; i += 4)
    for (int k = 0; k < 4; ++k) part[k] = join(part[k], p[i + k]);
  for (; i < n; ++i) part[0] = join(part[0], p[i]);
  return join(join(part[0], part[1]), join(part[2], part[3]));
}
template <class T, long N> FN typename wider<rows_of<T, N>>::type sum_buffer(rows_of<T, N>* p, long n) {
  using wide = typename wider<rows_of<T, N>>::type;
  wide even = 0, odd = 0;
  for (long i = 0; i + 1 < n; i += 2) even += wide(p[i]), odd += wide(p[i + 1]);
  if (n % 2) even += wide(p[n - 1]);
  return even + odd;
}
template <class Better, class T, long N> FN rows_of<T, N> extreme(rows_of<T, N>* p, long n, rows_of<T, N> empty) {
  using rows = rows_of<T, N>;
  const rows best = join_buffer(p, n, empty, [](rows a, rows b) {
    return rows::made([&](int k) { return Better::plain(a.v[k], b.v[k]); });
  });
  rows even = T(0), odd = T(0);  // sums of squares: as for one row, NaN only if an element is
  for (long i = 0; i + 1 < n; i += 2) even = plus_square(even, p[i]), odd = plus_square(odd, p[i + 1]);
  if (n % 2) even = plus_square(even, p[n - 1]);
  const rows sum = even + odd;
  return where(sum == sum, best, sum);
}
template <class T, long N>
FN void deviations(rows_of<T, N>* p, long n, rows_of<T, N> center, rows_of<double, N>& squares,
                   rows_of<double, N>& left) {
  squares = left = 0.0;
  const rows_of<double, N> wide(center);
  for (long i = 0; i < n; ++i) {
    const rows_of<double, N> d = rows_of<double, N>(p[i]) - wide;
    left += d, squares = plus_square(squares, d);
  }
}
template <class T, class Better, class Limit> struct first_of;
template <class T, long N, class Better, class Limit> struct first_of<rows_of<T, N>, Better, Limit> {
  using element = rows_of<T, N>;
  element best = Limit::template value<T>();
  rows_of<long, N> position = 0L;
  FN void take(const element* p, long n, long base) {
    rows_of<int, N> at = -1;
    for (int i = 0; i < n; ++i) {
      const auto better = !Better::covers(best, p[i]) & (best == best);
      best = where(better, p[i], best), at = where(better, rows_of<int, N>(i), at);
    }
    position = where(at >= rows_of<int, N>(0), rows_of<long, N>(at) + rows_of<long, N>(base), position);
  }
  FN rows_of<long, N> result() const { return position; }
};

template <long N> struct simd_rows : words<simd_rows<N>> {
  static constexpr long MOST = 64;  // positions in a buffer
  template <class T> using one = rows_of<T, N>;
  template <class T> FN auto beside(const T* p, long offset) const { return across_rows<N>(p + offset); }
  template <class Span, class F, class... Ops> FN void each(Span s, F f, Ops... ops) const {
    for (long o = s.first; o < s.last; ++o)
      for (long i = s.begin; i < s.end; ++i) f(taken<N>(ops, o, i, s.inner)...);
  }
  template <class Reducer, class Span, class F, class... Ops> FN auto reduce(Span s, F f, Ops... ops) const {
    using element = typename Reducer::element;
    Reducer reducer;
    if constexpr ((transposes<N, Ops>::yes || ...)) {
      reduce_transposed(reducer, s, f, transposable<N>(ops)...);
      return reducer.result();
    }
    element buffer[MOST];
    long n = 0;
    for (long o = s.first; o < s.last; ++o)
      for (long i = s.begin; i < s.end;) {
        const long stop = i + MOST - n < s.end ? i + MOST - n : s.end;
        for (; i < stop; ++i) buffer[n++] = element(f(taken<N>(ops, o, i, s.inner)...));
        if (n < MOST && (o + 1 < s.last || i < s.end)) continue;
        reducer.take(buffer, n, o * s.inner + i - n);
        n = 0;
      }
    return reducer.result();
  }
  // What was transposed together is reduced together: its loops have a known length.
  template <class Reducer, class Span, class F, class... Ops>
  FN void reduce_transposed(Reducer& reducer, Span s, F& f, Ops... ops) const {
    using element = typename Reducer::element;
    element buffer[SIMD_LANES];
    for (long o = s.first; o < s.last; ++o) {
      long i = s.begin;
      for (; i + SIMD_LANES <= s.end; i += SIMD_LANES) {
        (transpose(ops, o, i, s.end), ...);
        for (long k = 0; k < SIMD_LANES; ++k) buffer[k] = element(f(taken<N>(ops, o, i + k, s.inner)...));
        reducer.take(buffer, SIMD_LANES, o * s.inner + i);
      }
      if (i == s.end) continue;
      (transpose(ops, o, i, s.end), ...);
      for (long k = 0; k < s.end - i; ++k) buffer[k] = element(f(taken<N>(ops, o, i + k, s.inner)...));
      reducer.take(buffer, s.end - i, o * s.inner + i);
    }
  }
};

//@ scan_simd_rows: needs simd_rows, scan
// Every row goes its own way, one element after the other, in doubles; see narrowed() for what is small.
template <class Scan, class Span, class T, long R, long N, bool Small, class F, class... Ops>
FN void scan(Scan, Span s, kept<rows_of<T, R>, N, Small>& row, F f, Ops... ops) {
  using wide = typename wider<rows_of<T, R>>::type;
  const wide least = 0x1p-150;
  wide carry = Scan::template none<wide>();
  const long width = s.end - s.begin, count = (s.last - s.first) * width;
  for (long k = 0; k < count; ++k) {
    const long place = Scan::back ? count - 1 - k : k, o = s.first + place / width, i = s.begin + place % width;
    carry = Scan::join(carry, wide(f(taken<R>(ops, o, i, s.inner)...)));
    const auto small = (carry <= least) & (carry >= -least);
    row.data()[o * s.inner + i] = rows_of<T, R>(where(small, carry * wide(0), carry));
  }
}

//@ run_simd_rows: needs scan_simd_rows, lift, solo, run_rows
// `beside`: how many neighbouring rows lie side by side.
template <long N, class Body>
__attribute__((noinline, flatten)) void simd_row_groups(const Body& body, long row, long end) {
  for (; row < end; row += N * SIMD_LANES) body(row, simd_rows<N>());
}
template <long Most, class Body> void groups_of_rows(const Body& body, long row, long end) {
  while (row < end) {
    const long left = body.beside() - row % body.beside(), stop = row + left < end ? row + left : end;
    const long many = row + (stop - row) / (Most * SIMD_LANES) * (Most * SIMD_LANES), some =
        many + (stop - many) / SIMD_LANES * SIMD_LANES;
    simd_row_groups<Most>(body, row, many);
    simd_row_groups<1>(body, many, some);
    if (some < stop) solo_rows(body, some, stop);
    row = stop;
  }
}
template <long Most = 4, class Body> void run_simd_rows(const Body& body, long threads) {
  const long rows = body.rows(), groups = (rows + SIMD_LANES - 1) / SIMD_LANES, n = team_size(threads, groups);
  if (n <= 1) return groups_of_rows<Most>(body, 0, rows);
#pragma omp parallel num_threads(n)
  {
    const long k = omp_get_thread_num(), all = omp_get_num_threads(), stop = groups * (k + 1) / all * SIMD_LANES;
    groups_of_rows<Most>(body, groups * k / all * SIMD_LANES, stop < rows ? stop : rows);
  }
}

//@ run_simd_rows_transposed: needs run_simd_rows
// Only such vectors can be transposed fast; SIMD_LANES rows fill them, and more would come from memory in bursts.
template <class Body> void run_simd_rows_transposed(const Body& body, long threads) {
#ifdef __AVX512F__
  run_simd_rows<1>(body, threads);
#else
  run_rows(body, threads);
#endif
}

//@
}  // namespace fusewright
