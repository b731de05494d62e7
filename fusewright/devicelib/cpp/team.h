// What a generated kernel body may ask of its team on the CPU: a loop, a reduction, a kept row.
//
// A Solo team is one thread, and its members are the vector lanes. The surprising fact: reductions are
// not written as reductions inside the loop. The loop over the lambda only fills a small buffer,
// which vectorises whatever the lambda does, and a reducer then takes the buffer with explicit
// vectors. So a reduction is never one long chain of additions, a mean is known before its deviations
// are summed, and NaN rules cost nothing elsewhere.
//
// Text outside `//@ name` sections only serves a compilation of this file alone.
#pragma once
#include "devicelib/cpp/math.h"
namespace fusewright {

//@ half_t: needs numbers
// float16: stored in 16 bits, computed in float, rounded to nearest even. Integer code, since it
// vectorises.
struct half_t {
  unsigned short bits;
};
FN float widen(half_t h) {
  const int magnitude = (h.bits & 0x7fff) << 13;
  const float scaled = float_of(magnitude) * 0x1p112f;
  const float x = magnitude >= 0x7c00 << 13 ? float_of(magnitude | 0x7f800000) : scaled;
  return float_of(bits_of(x) | (h.bits & 0x8000) << 16);
}
FN void narrow(float x, half_t& h) {
  const int b = bits_of(x) & 0x7fffffff;
  // Adding 0.5 shifts a result below 2^-14 to the end of the mantissa and rounds it on the way.
  const int small = bits_of(float_of(b) + 0.5f) - bits_of(0.5f);
  const int normal = (b - (112 << 23) + 0xfff + (b >> 13 & 1)) >> 13;
  const int finite = b < 113 << 23 ? small : normal;
  const int huge = b > 0x7f800000 ? 0x7e00 : 0x7c00;
  h.bits = (unsigned short)((b >= 0x477ff000 ? huge : finite) | (bits_of(x) >> 16 & 0x8000));
}

//@ bfloat_t: needs numbers
struct bfloat_t {
  unsigned short bits;
};
FN float widen(bfloat_t h) { return float_of(int(h.bits) << 16); }
FN void narrow(float x, bfloat_t& h) {
  const int b = bits_of(x);
  const int rounded = (b + 0x7fff + (b >> 16 & 1)) >> 16;
  h.bits = (unsigned short)(x != x ? 0x7fc0 : rounded);
}

//@ values
// Every other type is computed as it is stored.
template <class T> FN T widen(T x) { return x; }
template <class T> FN void narrow(T x, T& place) { place = x; }
template <class T> using computed = decltype(widen(T()));
template <class A, class B> struct same {
  static constexpr bool yes = false;
};
template <class A> struct same<A, A> {
  static constexpr bool yes = true;
};

//@ round_to: needs values
// What a value becomes when it is stored as a T and read again.
template <class T> FN computed<T> round_to(computed<T> x) {
  T place;
  narrow(x, place);
  return widen(place);
}

//@ bits_as: needs values
// The bits of what is stored as an Of, read as a To of the same width.
template <class To, class Of> FN computed<To> bits_as(computed<Of> x) {
  Of place;
  To found;
  narrow(x, place);
  __builtin_memcpy(&found, &place, sizeof(To));
  return widen(found);
}

//@ read: needs values
template <class T> FN computed<T> read(const T* p, long offset) { return widen(p[offset]); }

//@ write: needs values
template <class T> FN void write(T* p, long offset, computed<T> value) { narrow(value, p[offset]); }

//@ fixed
// A span is a box of positions: outer indices [first, last), inner ones [begin, end) out of
// `inner`.
template <long... N> struct fixed_span;
template <long O, long I> struct fixed_span<O, I> {
  static constexpr long first = 0, last = O, begin = 0, end = I, inner = I;
};
template <long I> struct fixed_span<I> : fixed_span<1, I> {};
template <long... N> inline constexpr fixed_span<N...> fixed{};

//@ box
struct box {
  long first, last, begin, end, inner;
};
FN long size(box s) { return (s.last - s.first) * (s.end - s.begin); }

//@ span: needs box
FN box span(long inner) { return {0, 1, 0, inner, inner}; }
FN box span(long outer, long inner) { return {0, outer, 0, inner, inner}; }

//@ load: needs values
// An operand gives, for an outer index and the inner extent, a line: what the inner index is
// applied to.
template <class T> struct load_line {
  const T* p;
  FN computed<T> operator[](long i) const { return widen(p[i]); }
};
// A bool is read as the byte that it is stored in: loops over bools do not become vector code.
template <> struct load_line<bool> {
  const bool* p;
  FN bool operator[](long i) const { return reinterpret_cast<const unsigned char*>(p)[i] != 0; }
};
template <class T> struct load_operand {
  const T* p;
  long outer;
  FN load_line<T> line(long o, long) const { return {p + o * outer}; }
};
template <class T> FN load_operand<T> load(const T* p, long base, long outer = 0) {
  return {p + base, outer};
}

//@ store: needs values
// The lambda writes through a reference; a type that is computed wider is rounded when the call is
// over.
template <class T, bool Direct = same<T, computed<T>>::yes> struct store_line {
  T* p;
  FN T& operator[](long i) const { return p[i]; }
};
template <class T> struct rounded {
  T* place;
  computed<T> value;
  FN operator computed<T>&() { return value; }
  FN ~rounded() { narrow(value, *place); }
};
template <class T> struct store_line<T, false> {
  T* p;
  FN rounded<T> operator[](long i) const { return {p + i, computed<T>(0)}; }
};
struct flag {
  unsigned char* place;
  bool value;
  FN operator bool&() { return value; }
  FN ~flag() { *place = value; }
};
template <> struct store_line<bool, true> {
  bool* p;
  FN flag operator[](long i) const { return {reinterpret_cast<unsigned char*>(p) + i, false}; }
};
template <class T> struct store_operand {
  T* p;
  long outer;
  FN store_line<T> line(long o, long) const { return {p + o * outer}; }
};
template <class T> FN store_operand<T> store(T* p, long base, long outer = 0) {
  return {p + base, outer};
}

//@ extent_of
// Which inner indices of a row have elements: those where offset + step * i lies in [0, size).
struct extent {
  long first, last;
};
constexpr long ANYWHERE = 1L << 62;
FN long floor_quotient(long a, long b) { return (a >= 0 ? a : a - b + 1) / b; }
FN extent extent_of(long offset, long step, long size) {
  if (step == 0)
    return offset >= 0 && offset < size ? extent{-ANYWHERE, ANYWHERE} : extent{0, 0};
  if (step > 0) return {-floor_quotient(offset, step), -floor_quotient(offset - size, step)};
  return {floor_quotient(offset - size, -step) + 1, floor_quotient(offset, -step) + 1};
}
FN extent operator&(extent a, extent b) {
  return {a.first > b.first ? a.first : b.first, a.last < b.last ? a.last : b.last};
}
FN bool holds(extent a) { return a.first < a.last; }

//@ staging: needs extent_of
// Addresses that jump would stop a lambda from being vectorised, or make gcc use gather
// instructions, which are slower than scalar loads. Such lines fetch STAGE values before the loop
// over the lambda, or scatter them after it. Whether a line does so is known once everything is
// inlined, so the other case costs nothing.
constexpr long STAGE = 256;
template <class Line> FN bool jumps(const Line&) { return false; }
template <class Line> FN void fetch(Line&, long, long) {}
template <class Line> FN void scatter(Line&, long, long) {}
// Where a line has elements, and the same line for where every element exists.
template <class Line> struct guarded {
  static constexpr bool yes = false;
  FN static extent live(const Line&) { return {-ANYWHERE, ANYWHERE}; }
  FN static Line bare(const Line& line) { return line; }
};
// An offset that the compiler must have in a register, and so computes one by one.
FN long one_by_one(long offset) {
  asm volatile("" : "+r"(offset));
  return offset;
}

//@ strided: needs values, staging
template <class T> struct strided_line {
  const T* p;
  long step, start = 0;
  computed<T> values[STAGE];
  FN strided_line(const T* p, long step) : p(p), step(step) {}
  FN computed<T> operator[](long i) const {
    return step == 0 || step == 1 ? widen(p[i * step]) : values[i - start];
  }
};
template <class T> struct strided_operand {
  const T* p;
  long outer, step;
  FN strided_line<T> line(long o, long) const { return {p + o * outer, step}; }
};
template <class T> FN bool jumps(const strided_line<T>& s) { return s.step != 0 && s.step != 1; }
template <class T> FN void fetch(strided_line<T>& s, long begin, long end) {
  s.start = begin;
  for (long i = begin; i < end; ++i) s.values[i - begin] = widen(s.p[one_by_one(i * s.step)]);
}
template <class T> FN strided_operand<T> strided(const T* p, long base, long step) {
  return {p + base, 0, step};
}
template <class T> FN strided_operand<T> strided(const T* p, long base, long outer, long step) {
  return {p + base, outer, step};
}

//@ gather: needs values, staging
template <class T, class F> struct gather_line {
  const T* p;
  F offset;
  long o, start = 0;
  computed<T> values[STAGE];
  FN gather_line(const T* p, F offset, long o) : p(p), offset(offset), o(o) {}
  FN computed<T> operator[](long i) const { return values[i - start]; }
};
template <class T, class F> struct gather_operand {
  const T* p;
  F offset;
  FN gather_line<T, F> line(long o, long) const { return {p, offset, o}; }
};
template <class T, class F> FN bool jumps(const gather_line<T, F>&) { return true; }
template <class T, class F> FN void fetch(gather_line<T, F>& g, long begin, long end) {
  g.start = begin;
  for (long i = begin; i < end; ++i) g.values[i - begin] = widen(g.p[one_by_one(g.offset(g.o, i))]);
}
template <class T, class F> FN gather_operand<T, F> gather(const T* p, F offset) {
  return {p, offset};
}

//@ gather_store: needs values, staging
template <class T, class F> struct gather_store_line {
  T* p;
  F offset;
  long o, start = 0;
  computed<T> values[STAGE];
  FN gather_store_line(T* p, F offset, long o) : p(p), offset(offset), o(o) {}
  FN computed<T>& operator[](long i) { return values[i - start]; }
};
template <class T, class F> struct gather_store_operand {
  T* p;
  F offset;
  FN gather_store_line<T, F> line(long o, long) const { return {p, offset, o}; }
};
template <class T, class F> FN bool jumps(const gather_store_line<T, F>&) { return true; }
template <class T, class F> FN void fetch(gather_store_line<T, F>& g, long begin, long) {
  g.start = begin;
}
template <class T, class F> FN void scatter(gather_store_line<T, F>& g, long begin, long end) {
  for (long i = begin; i < end; ++i) narrow(g.values[i - begin], g.p[one_by_one(g.offset(g.o, i))]);
}
template <class T, class F> FN gather_store_operand<T, F> gather_store(T* p, F offset) {
  return {p, offset};
}

//@ strided_store: needs gather_store
struct strided_offset {
  long outer, step;
  FN long operator()(long o, long i) const { return o * outer + i * step; }
};
template <class T>
FN gather_store_operand<T, strided_offset> strided_store(T* p, long base, long outer, long step) {
  return {p + base, {outer, step}};
}
template <class T>
FN gather_store_operand<T, strided_offset> strided_store(T* p, long base, long step) {
  return strided_store(p, base, 0, step);
}

//@ everywhere
// One value everywhere.
template <class T> struct everywhere_line {
  T value;
  FN T operator[](long) const { return value; }
};
template <class T> struct everywhere_operand {
  T value;
  FN everywhere_line<T> line(long, long) const { return {value}; }
};
template <class T> FN everywhere_operand<T> everywhere(T value) { return {value}; }

//@ within: needs extent_of, everywhere, staging
// An operand of which only the elements inside the extent exist; the others are the fill. What
// comes from memory is staged, since no loop over it may touch what does not exist.
template <class Line, class T> struct within_line {
  Line line;
  T fill;
  extent live;
  long start = 0;
  T values[STAGE];
  FN within_line(Line line, T fill, extent live) : line(line), fill(fill), live(live) {}
  FN T operator[](long i) const { return values[i - start]; }
};
template <class T> struct within_line<everywhere_line<T>, T> {
  everywhere_line<T> line;
  T fill;
  extent live;
  FN T operator[](long i) const { return (i >= live.first) & (i < live.last) ? line.value : fill; }
};
template <class Line, class T> struct guarded<within_line<Line, T>> {
  static constexpr bool yes = true;
  FN static extent live(const within_line<Line, T>& w) { return w.live; }
  FN static Line bare(const within_line<Line, T>& w) { return w.line; }
};
template <class Operand, class T, class Where> struct within_operand {
  Operand inside;
  T fill;
  Where where;
  FN auto line(long o, long inner) const {
    return within_line<decltype(inside.line(o, inner)), T>{inside.line(o, inner), fill, where(o)};
  }
};
template <class T> FN bool jumps(const within_line<everywhere_line<T>, T>&) { return false; }
template <class T> FN void fetch(within_line<everywhere_line<T>, T>&, long, long) {}
template <class Line, class T> FN bool jumps(const within_line<Line, T>&) { return true; }
template <class Line, class T> FN void fetch(within_line<Line, T>& w, long begin, long end) {
  const auto cut = [&](long i) { return i < begin ? begin : i < end ? i : end; };
  const long first = cut(w.live.first), last = cut(w.live.last), stop = last < first ? first : last;
  w.start = begin;
  for (long i = begin; i < first; ++i) w.values[i - begin] = w.fill;
  if (first < last) fetch(w.line, first, last);
  for (long i = first; i < last; ++i) w.values[i - begin] = w.line[i];
  for (long i = stop; i < end; ++i) w.values[i - begin] = w.fill;
}
// A GPU's guards are cheaper in a narrow Index.
template <class Index, class Operand, class T, class Where>
FN within_operand<Operand, T, Where> within(Operand inside, T fill, Where where) {
  return {inside, fill, where};
}

//@ wrap
// How much further an element stands where a dimension goes round: not at all before its end.
FN long wrap(long place, long size, long by) { return place >= 0 && place < size ? 0 : by; }

//@ wrapped: needs load, staging
// A row that goes round: the elements outside the extent stand `by` further on, and are staged.
template <class T> struct wrapped_line {
  load_line<T> line, further;
  extent live;
  long start = 0;
  computed<T> values[STAGE];
  FN wrapped_line(load_line<T> line, load_line<T> further, extent live)
      : line(line), further(further), live(live) {}
  FN computed<T> operator[](long i) const { return values[i - start]; }
};
template <class T> struct guarded<wrapped_line<T>> {
  static constexpr bool yes = true;
  FN static extent live(const wrapped_line<T>& w) { return w.live; }
  FN static load_line<T> bare(const wrapped_line<T>& w) { return w.line; }
};
template <class T, class Where> struct wrapped_operand {
  load_operand<T> row;
  long by;
  Where where;
  FN wrapped_line<T> line(long o, long inner) const {
    const load_line<T> line = row.line(o, inner);
    return {line, {line.p + by}, where(o)};
  }
};
template <class T> FN bool jumps(const wrapped_line<T>&) { return true; }
template <class T> FN void fetch(wrapped_line<T>& w, long begin, long end) {
  const auto cut = [&](long i) { return i < begin ? begin : i < end ? i : end; };
  const long first = cut(w.live.first), last = cut(w.live.last);
  w.start = begin;
  for (long i = begin; i < first; ++i) w.values[i - begin] = w.further[i];
  for (long i = first; i < last; ++i) w.values[i - begin] = w.line[i];
  for (long i = last; i < end; ++i) w.values[i - begin] = w.further[i];
}
template <class Index, int Whole, class T, class Where>
FN wrapped_operand<T, Where> wrapped(load_operand<T> row, long by, Where where) {
  return {row, by, where};
}

//@ index
struct index_line {
  long start;
  FN long operator[](long i) const { return start + i; }
};
struct index_operand {
  FN index_line line(long o, long inner) const { return {o * inner}; }
};
FN index_operand index() { return {}; }

//@ kept: needs load, store
// A row of N values. It lives on the stack while it is small and fits beside others; malloc reuses
// a large one.
template <class T, long N, bool Small = N * sizeof(T) <= 65536> struct kept {
  alignas(64) T values[N ? N : 1];
  FN T* data() { return values; }
};
template <class T, long N> struct kept<T, N, false> {
  T* const values = static_cast<T*>(aligned_alloc(64, (N * sizeof(T) + 63) / 64 * 64));
  kept() = default;
  kept(const kept&) = delete;
  ~kept() { free(values); }
  FN T* data() { return values; }
};
template <class T> struct kept_load {
  const T* p;
  FN load_line<T> line(long o, long inner) const { return {p + o * inner}; }
};
template <class T> struct kept_store {
  T* p;
  FN store_line<T> line(long o, long inner) const { return {p + o * inner}; }
};
template <class T, long N, bool S> FN kept_load<T> load(kept<T, N, S>& k) { return {k.data()}; }
template <class T, long N, bool S> FN kept_store<T> store(kept<T, N, S>& k) { return {k.data()}; }

//@ loop: needs staging
// The one loop over a lambda: `step(i, lines...)` for begin <= i < end.
template <class Step, class... Lines>
FN void loop(long begin, long end, Step step, Lines... lines) {
  if ((jumps(lines) || ...)) {
    for (long b = begin; b < end; b += STAGE) {
      const long stop = b + STAGE < end ? b + STAGE : end;
      (fetch(lines, b, stop), ...);
#pragma omp simd
      for (long i = b; i < stop; ++i) step(i, lines...);
      (scatter(lines, b, stop), ...);
    }
  } else {
#pragma omp simd
    for (long i = begin; i < end; ++i) step(i, lines...);
  }
}
// The same, where elements may be missing: only what lies before and behind those that every line
// has is looked at one by one.
constexpr long WORTH_APART = 16;
template <class Step, class... Lines>
FN void loop_within(long begin, long end, Step step, Lines... lines) {
  if constexpr ((guarded<Lines>::yes || ...)) {
    const extent all = (extent{begin, end} & ... & guarded<Lines>::live(lines));
    if (all.last - all.first >= WORTH_APART) {
      loop(begin, all.first, step, lines...);
      loop(all.first, all.last, step, guarded<Lines>::bare(lines)...);
      return loop(all.last, end, step, lines...);
    }
  }
  loop(begin, end, step, lines...);
}

//@ lanes: needs fma
// Vectors of 64 bytes: one register with AVX-512, two with AVX2, four with NEON.
template <class T, int Bytes = 64> struct vector_of {
  typedef T type __attribute__((vector_size(Bytes)));
};
template <class T> using lanes = typename vector_of<T>::type;
template <class T> constexpr long LANES = 64 / sizeof(T);
// sum + x * x in every lane, rounded once.
template <class V> FN V plus_square(V sum, V x) {
  for (unsigned long k = 0; k < sizeof(V) / sizeof(x[0]); ++k) sum[k] = fma(x[k], x[k], sum[k]);
  return sum;
}
template <class T> FN lanes<T> lanes_at(const T* p) {
  lanes<T> v;
  __builtin_memcpy(&v, p, 64);
  return v;
}
// Joins neighbouring halves until one value is left.
template <class T, int Bytes, class Join>
FN T across(typename vector_of<T, Bytes>::type v, Join join) {
  if constexpr (Bytes == 2 * sizeof(T)) {
    return join(v[0], v[1]);
  } else {
    typename vector_of<T, Bytes / 2>::type half[2];
    __builtin_memcpy(half, &v, Bytes);
    return across<T, Bytes / 2>(join(half[0], half[1]), join);
  }
}
// One value from a buffer that may be written up to the next multiple of LANES; `empty` changes
// nothing.
template <class T, class Join> FN T join_buffer(T* p, long n, T empty, Join join) {
  constexpr long L = LANES<T>;
  const long padded = (n + L - 1) / L * L;
  for (long i = n; i < padded; ++i) p[i] = empty;
  lanes<T> part[4];
  for (int k = 0; k < 4; ++k) part[k] = empty - lanes<T>{};
  long i = 0;
  for (; i + 4 * L <= padded; i += 4 * L)
    for (int k = 0; k < 4; ++k) part[k] = join(part[k], lanes_at(p + i + k * L));
  for (; i < padded; i += L) part[0] = join(part[0], lanes_at(p + i));
  return across<T, 64>(join(join(part[0], part[1]), join(part[2], part[3])), join);
}

//@ reduce: needs fixed, lanes, loop, load
// Positions that a buffer holds: so few that the next loads from memory begin while they are joined;
// and how many buffers ahead those are asked for.
constexpr long BUFFER_ELEMENTS = 256, PREFETCH_BUFFERS = 4;
template <class Reducer> constexpr long buffer_elements = BUFFER_ELEMENTS;
template <class T, class F, class... Lines>
FN void fill(T* out, long begin, long n, F& f, Lines... lines) {
  out -= begin;
  loop_within(begin, begin + n, [&](long i, auto&... l) { out[i] = T(f(l[i]...)); }, lines...);
}
// A short row of known length is one buffer, and its loops have known lengths too.
template <class Span, long Most = BUFFER_ELEMENTS> struct one_buffer {
  static constexpr bool yes = false;
};
template <long I, long Most> struct one_buffer<fixed_span<I>, Most> {
  static constexpr bool yes = I <= Most;
};
template <class Line> FN void prefetch(const Line&, long, long) {}
template <class T> FN void prefetch(const load_line<T>& l, long begin, long n) {
  for (long i = 0; i < n; i += LANES<T>) __builtin_prefetch(l.p + begin + i);
}
// Runs the lambda over the span, a buffer at a time. Positions in one buffer follow each other.
template <class Reducer, class Span, class F, class... Ops>
FN void reduce_into(Reducer& reducer, Span s, F& f, Ops... ops) {
  constexpr long most = buffer_elements<Reducer>;
  alignas(64) typename Reducer::element buffer[most];
  const long width = s.end - s.begin;
  if constexpr (one_buffer<Span>::yes) {
    fill(buffer, 0, width, f, ops.line(0, s.inner)...);
    reducer.take(buffer, width, 0);
  } else if (width == s.inner && 2 * width <= most) {
    const long step = most / (width ? width : 1);
    for (long o = s.first; o < s.last; o += step) {
      const long stop = o + step < s.last ? o + step : s.last;
      for (long q = o; q < stop; ++q)
        fill(buffer + (q - o) * width, 0, width, f, ops.line(q, s.inner)...);
      reducer.take(buffer, (stop - o) * width, o * s.inner);
    }
  } else {
    for (long o = s.first; o < s.last; ++o)
      for (long b = s.begin; b < s.end; b += most) {
        const long n = b + most < s.end ? most : s.end - b;
        (prefetch(ops.line(o, s.inner), b + PREFETCH_BUFFERS * most, n), ...);
        fill(buffer, b, n, f, ops.line(o, s.inner)...);
        reducer.take(buffer, n, o * s.inner + b);
      }
  }
}

//@ limits: needs numbers
template <class T> FN T lowest() {
  if constexpr (number<T>::floating)
    return T(-INFINITE);
  else
    return T(-1) < T(0) ? T(1UL << (8 * sizeof(T) - 1)) : T(0);
}
template <class T> FN T highest() {
  if constexpr (number<T>::floating)
    return T(INFINITE);
  else
    return T(~lowest<T>());
}

//@ sum: needs reduce, numbers
// Vector lanes inside a buffer, double between buffers: more accurate than a float tree, and no
// slower.
template <class T> struct wider {
  using type = T;
};
template <> struct wider<float> {
  using type = double;
};
template <class T> FN typename wider<T>::type sum_buffer(T* p, long n) {
  return join_buffer(p, n, T(0), [](auto a, auto b) { return a + b; });
}
template <class T> struct sum_of {
  using element = T;
  typename wider<T>::type total = 0;
  FN void take(T* p, long n, long) { total += sum_buffer(p, n); }
  FN void merge(const sum_of& o) { total += o.total; }
  FN T result() const { return T(total); }
};
// So little is done for each element that it shows how often a buffer is begun.
template <class T> constexpr long buffer_elements<sum_of<T>> = 2 * BUFFER_ELEMENTS;

//@ prod: needs reduce, sum
template <class T> struct prod_of {
  using element = typename wider<T>::type;
  element total = 1;
  FN void take(element* p, long n, long) {
    total *= join_buffer(p, n, element(1), [](auto a, auto b) { return a * b; });
  }
  FN void merge(const prod_of& o) { total *= o.total; }
  FN T result() const { return T(total); }
};

//@ extreme: needs reduce, numbers
// The extreme of a buffer; a NaN wins. Elements are joined by one comparison, which may lose a NaN,
// so squares are added up beside: the sum is NaN only if an element is.
template <class Better, class T> FN T extreme(T* p, long n, T empty) {
  const auto plain = [](auto a, auto b) { return Better::plain(a, b); };
  const T best = join_buffer(p, n, empty, plain);
  if constexpr (number<T>::floating) {
    constexpr long L = LANES<T>;
    lanes<T> even = T(1) - lanes<T>{}, odd = even;
    long i = 0;
    for (; i + L < n; i += 2 * L) {
      even = plus_square(even, lanes_at(p + i));
      odd = plus_square(odd, lanes_at(p + i + L));
    }
    if (i < n) even = plus_square(even, lanes_at(p + i));
    const T sum = across<T, 64>(even + odd, [](auto a, auto b) { return a + b; });
    return sum == sum ? best : sum;
  }
  return best;
}

//@ max: needs extreme, limits, where
// A NaN wins, whichever side it is on.
struct greater {
  template <class V> FN V operator()(V a, V b) const { return where(covers(a, b) | (a != a), a, b); }
  template <class V> FN static auto covers(V a, V b) { return a >= b; }
  template <class V> FN static V plain(V a, V b) { return a > b ? a : b; }
};
template <class T> struct max_of {
  using element = T;
  T best = lowest<T>();
  FN void take(T* p, long n, long) { best = greater()(best, extreme<greater>(p, n, lowest<T>())); }
  FN void merge(const max_of& o) { best = greater()(best, o.best); }
  FN T result() const { return best; }
};

//@ min: needs extreme, limits, where
struct smaller {
  template <class V> FN V operator()(V a, V b) const { return where(covers(a, b) | (a != a), a, b); }
  template <class V> FN static auto covers(V a, V b) { return a <= b; }
  template <class V> FN static V plain(V a, V b) { return a < b ? a : b; }
};
template <class T> struct min_of {
  using element = T;
  T best = highest<T>();
  FN void take(T* p, long n, long) { best = smaller()(best, extreme<smaller>(p, n, highest<T>())); }
  FN void merge(const min_of& o) { best = smaller()(best, o.best); }
  FN T result() const { return best; }
};

//@ any: needs reduce
FN unsigned char* bytes(bool* p) { return reinterpret_cast<unsigned char*>(p); }
template <class T> struct any_of {
  using element = bool;
  unsigned char found = 0;
  FN void take(bool* p, long n, long) {
    found |= join_buffer(bytes(p), n, (unsigned char)0, [](auto a, auto b) { return a | b; });
  }
  FN void merge(const any_of& o) { found |= o.found; }
  FN bool result() const { return found; }
};

//@ all: needs any
template <class T> struct all_of {
  using element = bool;
  unsigned char holds = 1;
  FN void take(bool* p, long n, long) {
    holds &= join_buffer(bytes(p), n, (unsigned char)1, [](auto a, auto b) { return a & b; });
  }
  FN void merge(const all_of& o) { holds &= o.holds; }
  FN bool result() const { return holds; }
};

//@ moments: needs reduce, sum, where
// Two passes over each buffer, then Chan's rule, so nothing cancels when the mean is large.
// Float32 is added up in float64, and its moments are given as they are then.
template <class T> struct moments_result {
  typename wider<T>::type mean, m2;
};
// The sums of what is left of elements without their center, and of its squares; the buffer may be
// written up to the next multiple of LANES.
template <class T> FN void deviations(T* p, long n, T center, double& squares, double& left) {
  constexpr long L = LANES<T>;
  const long padded = (n + L - 1) / L * L;
  for (long i = n; i < padded; ++i) p[i] = center;
  lanes<T> off{}, square{}, off2{}, square2{};
  long i = 0;
  for (; i + 2 * L <= padded; i += 2 * L) {
    const lanes<T> d = lanes_at(p + i) - center, d2 = lanes_at(p + i + L) - center;
    off += d, square = plus_square(square, d);
    off2 += d2, square2 = plus_square(square2, d2);
  }
  if (i < padded) {
    const lanes<T> d = lanes_at(p + i) - center;
    off += d, square = plus_square(square, d);
  }
  const auto add = [](auto a, auto b) { return a + b; };
  squares = across<T, 64>(square + square2, add), left = across<T, 64>(off + off2, add);
}
template <class T> struct moments_of {
  using element = T;
  using wide = typename wider<T>::type;
  long count = 0;
  wide mean = 0, m2 = 0;
  FN void take(T* p, long n, long) {
    const T center = join_buffer(p, n, T(0), [](auto a, auto b) { return a + b; }) / T(n);
    wide squares, left;
    deviations(p, n, center, squares, left);
    // What rounding left in the center is taken out again; an infinite mean stays what it is.
    const wide rest = where(left - left == wide(0), left, wide(0));
    merge(n, wide(center) + rest / wide(n), squares - rest * rest / wide(n));
  }
  FN void merge(long n, wide other_mean, wide other_m2) {
    const double share = double(n) / double(count + n);
    const wide delta = other_mean - mean;
    m2 = count ? m2 + other_m2 + delta * delta * wide(share * double(count)) : other_m2;
    // Equal means stay what they are, so equal elements are their mean.
    const wide between = mean * wide(1.0 - share) + other_mean * wide(share);
    mean = count ? where(delta == wide(0), mean, between) : other_mean;
    count += n;
  }
  FN void merge(const moments_of& o) {
    if (o.count) merge(o.count, o.mean, o.m2);
  }
  FN moments_result<T> result() const { return {mean, m2}; }
};

//@ first_of: needs extreme
// The first position of the extreme value; the first NaN, if there is one.
template <class T, class Better, class Limit> struct first_of {
  using element = T;
  T best{};
  long position = -1;
  FN static bool equal(T a, T b) { return a == b || (a != a && b != b); }
  FN bool improves(T x) const {
    return position < 0 || (!equal(x, best) && equal(Better()(best, x), x));
  }
  FN void take(T* p, long n, long base) {
    const T x = extreme<Better>(p, n, Limit::template value<T>());
    if (n == 0 || !improves(x)) return;
    long i = 0;
    while (!equal(p[i], x)) ++i;
    best = x;
    position = base + i;
  }
  FN void merge(const first_of& o) {
    if (o.position >= 0 && (improves(o.best) || (equal(o.best, best) && o.position < position)))
      *this = o;
  }
  FN long result() const { return position < 0 ? 0 : position; }
};

//@ argmax: needs first_of, max
struct from_lowest {
  template <class T> FN static T value() { return lowest<T>(); }
};
template <class T> struct argmax_of : first_of<T, greater, from_lowest> {};

//@ argmin: needs first_of, min
struct from_highest {
  template <class T> FN static T value() { return highest<T>(); }
};
template <class T> struct argmin_of : first_of<T, smaller, from_highest> {};

//@ words: needs fixed, kept, loop
template <class T> struct sum_of;
template <class T> struct prod_of;
template <class T> struct max_of;
template <class T> struct min_of;
template <class T> struct moments_of;
template <class T> struct argmax_of;
template <class T> struct argmin_of;
template <class T> struct any_of;
template <class T> struct all_of;
template <class T> struct cumsum_of;
template <class T> struct cumprod_of;
template <class T> struct cumsum_back_of;
template <class T> struct cumprod_back_of;
// Truth values are counted in longs and compared as bytes.
template <class T> struct reduction_types {
  using counted = T;
  using ordered = T;
};
template <> struct reduction_types<bool> {
  using counted = long;
  using ordered = unsigned char;
};
#define FUSEWRIGHT_REDUCTION(name, kind)                                                          \
  template <class Span, class F, class... Ops> FN auto name(Span s, F f, Ops... ops) const { \
    using result = reduction_types<decltype(f(ops.line(0, 0)[0]...))>;                                \
    return static_cast<const Team*>(this)->template reduce<name##_of<typename result::kind>>(  \
        s, f, ops...);                                                                       \
  }
#define FUSEWRIGHT_SCAN(name)                                                                \
  template <class Span, class T, long N, bool Small, class F, class... Ops>                  \
  FN void name(Span s, kept<T, N, Small>& row, F f, Ops... ops) const {                      \
    scan(name##_of<T>(), s, row, f, ops...);                                                 \
  }
// The interface, said once: a team brings each() and reduce<Reducer>(), and the reducers come as they
// are needed.
template <class Team> struct words {
  template <class T> using one = T;  // how a team holds one number of a row
  template <class T> FN computed<T> beside(const T* p, long offset) const { return widen(p[offset]); }
  FUSEWRIGHT_REDUCTION(sum, counted)
  FUSEWRIGHT_REDUCTION(prod, counted)
  FUSEWRIGHT_REDUCTION(max, ordered)
  FUSEWRIGHT_REDUCTION(min, ordered)
  FUSEWRIGHT_REDUCTION(moments, counted)
  FUSEWRIGHT_REDUCTION(argmax, ordered)
  FUSEWRIGHT_REDUCTION(argmin, ordered)
  FUSEWRIGHT_REDUCTION(any, ordered)
  FUSEWRIGHT_REDUCTION(all, ordered)
  FUSEWRIGHT_SCAN(cumsum)
  FUSEWRIGHT_SCAN(cumprod)
  FUSEWRIGHT_SCAN(cumsum_back)
  FUSEWRIGHT_SCAN(cumprod_back)
  template <class T, long N> FN kept<T, N> keep() const { return {}; }
  template <class F> FN void once(F f) const { f(); }
};

//@ solo: needs words
struct solo : words<solo> {
  template <class Span, class F, class... Ops> FN void each(Span s, F f, Ops... ops) const {
    const auto step = [&](long i, auto&... lines) { f(lines[i]...); };
    for (long o = s.first; o < s.last; ++o)
      loop_within(s.begin, s.end, step, ops.line(o, s.inner)...);
  }
  template <class Reducer, class Span, class F, class... Ops>
  FN auto reduce(Span s, F f, Ops... ops) const {
    Reducer reducer;
    reduce_into(reducer, s, f, ops...);
    return reducer.result();
  }
};

//@ crew: needs solo, box
// All threads on one row: each takes a part of the span, and what they found is joined in their
// order.
constexpr int CREW_LIMIT = 64;
constexpr long CREW_WORTH = 16384;
FN box part(box s, long member, long members) {
  const long outer = s.last - s.first, width = s.end - s.begin;
  if (outer >= 4 * members)
    return {s.first + outer * member / members, s.first + outer * (member + 1) / members, s.begin,
            s.end, s.inner};
  const auto cut = [&](long m) {
    return m == members ? s.end : s.begin + (width * m / members & ~63L);
  };
  return {s.first, s.last, cut(member), cut(member + 1), s.inner};
}
template <class F, class... Ops>
__attribute__((noinline, flatten)) void each_partition(box s, F f, Ops... ops) {
  solo().each(s, f, ops...);
}
template <class Reducer, class F, class... Ops>
__attribute__((noinline, flatten)) void reduce_partition(Reducer& reducer, box s, F f, Ops... ops) {
  Reducer local;
  reduce_into(local, s, f, ops...);
  reducer = local;
}
struct crew : words<crew> {
  int members;
  FN int needed(box s) const {
    return size(s) < CREW_WORTH ? 1 : members < CREW_LIMIT ? members : CREW_LIMIT;
  }
  template <class Span, class F, class... Ops> void each(Span span, F f, Ops... ops) const {
    const box s{span.first, span.last, span.begin, span.end, span.inner};
    const int n = needed(s);
#pragma omp parallel num_threads(n)
    each_partition(part(s, omp_get_thread_num(), omp_get_num_threads()), f, ops...);
  }
  template <class Reducer, class Span, class F, class... Ops>
  auto reduce(Span span, F f, Ops... ops) const {
    const box s{span.first, span.last, span.begin, span.end, span.inner};
    const int n = needed(s);
    Reducer found[CREW_LIMIT];
#pragma omp parallel num_threads(n)
    reduce_partition(found[omp_get_thread_num()], part(s, omp_get_thread_num(), omp_get_num_threads()), f,
              ops...);
    for (int k = 1; k < n; ++k) found[0].merge(found[k]);
    return found[0].result();
  }
};

//@
}  // namespace fusewright
