// What the lambda of a generated CUDA kernel is called on: spans, operands, and the walk over vectors.
//
// The surprising fact: nvcc does not merge the scalar loads of a lambda into 16-byte ones. So an operand is a
// cursor that fetches W neighbouring elements with one access, for several vectors before the first is used,
// and only then is the scalar lambda called, once per element. All of it ends in registers, because every
// index into a packet is a constant after unrolling.
//
// Whoever picks W (the team's `vector`) promises: base and outer stride of each `load` and `store` are multiples
// of W, and pointers are `aligned<W>` (launch.cuh). The rest is decided here: a fixed span whose size is no
// multiple of W, and the tail of a run-time span(I), are walked by single elements; where I of fixed<O, I> is no
// multiple of W, operands with outer stride I still use vectors. A run-time span(O, I) needs I to be a multiple
// of W. `strided` and `gather` promise nothing and move single elements.
//
// Text outside `//@ name` sections only serves a compilation of this file alone.
#pragma once
#include "devicelib/cuda/math.cuh"
namespace fusewright {

//@ half_t
// float16: stored in 16 bits, computed in float, rounded to nearest even.
struct half_t { unsigned short bits; };
FN float widen(half_t h) {
  float x;
  asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"(h.bits));
  return x;
}
FN void narrow(float x, half_t& h) { asm("cvt.rn.f16.f32 %0, %1;" : "=h"(h.bits) : "f"(x)); }

//@ bfloat_t
struct bfloat_t { unsigned short bits; };
FN float widen(bfloat_t h) { return __uint_as_float(unsigned(h.bits) << 16); }
// One instruction, whichever half of a word it is in: alone, the upper half takes two.
template <int W> FN float widen_at(const bfloat_t (&held)[W], int j) {
  if constexpr (W % 2 == 0) {
    unsigned both;
    memcpy(&both, &held[j / 2 * 2], sizeof(both));
    return __uint_as_float(j % 2 ? both & 0xffff0000u : both << 16);
  } else {
    return widen(held[j]);
  }
}
FN void narrow(float x, bfloat_t& h) { asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(h.bits) : "f"(x)); }

//@ values
// Every other type is computed as it is stored.
template <class T> FN T widen(T x) { return x; }
template <class T> FN void narrow(T x, T& place) { place = x; }
template <class T> using computed = decltype(widen(T()));
template <int W, class T> FN computed<T> widen_at(const T (&held)[W], int j) { return widen(held[j]); }

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
  memcpy(&found, &place, sizeof(To));
  return widen(found);
}

//@ vectors: needs values
// W neighbouring elements, in pieces of at most 16 bytes. Constant memory takes the non-coherent path.
// Stores are spelt out, since the compiler takes a plain store of collected values apart again.
template <int BYTES> struct word;
template <> struct word<1> { using type = unsigned char; };
template <> struct word<2> { using type = unsigned short; };
template <> struct word<4> { using type = unsigned; };
template <> struct word<8> { using type = uint2; };
template <> struct word<16> { using type = uint4; };
template <class T, int W> struct pieces {
  static constexpr int bytes = W * sizeof(T) < 16 ? W * sizeof(T) : 16, count = W * sizeof(T) / bytes, step = W / count;
  using type = typename word<bytes>::type;
};
template <bool CONSTANT, int W, class T> FN void fetch_vector(const T* from, T* to) {
  using piece = pieces<T, W>;
#pragma unroll
  for (int k = 0; k < piece::count; ++k) {
    const auto* source = reinterpret_cast<const typename piece::type*>(from) + k;
    const auto bits = CONSTANT ? __ldg(source) : *source;
    memcpy(to + k * piece::step, &bits, piece::bytes);
  }
}
template <bool CONSTANT, class T> FN computed<T> fetch_element(const T* from) {
  T element;
  fetch_vector<CONSTANT, 1>(from, &element);
  return widen(element);
}
FN void put(uint4* to, uint4 v) {
  asm volatile("st.global.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(to), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w) : "memory");
}
FN void put(uint2* to, uint2 v) {
  asm volatile("st.global.v2.b32 [%0], {%1, %2};" ::"l"(to), "r"(v.x), "r"(v.y) : "memory");
}
template <class T> FN void put(T* to, T v) { *to = v; }
template <int W, class T> FN void write_vector(const T* from, T* to) {
  using piece = pieces<T, W>;
#pragma unroll
  for (int k = 0; k < piece::count; ++k) {
    typename piece::type bits;
    memcpy(&bits, from + k * piece::step, piece::bytes);
    put(reinterpret_cast<typename piece::type*>(to) + k, bits);
  }
}

//@ read: needs vectors
// What no thread of the kernel writes may be asked for before a store: rows whose stores follow each other wait once.
template <class T> FN computed<T> read(T* p, long offset) { return widen(p[offset]); }
template <class T> FN computed<T> read(const T* p, long offset) { return fetch_element<true>(p + offset); }

//@ write: needs values
template <class T> FN void write(T* p, long offset, computed<T> value) { narrow(value, p[offset]); }

//@ visit
// An address of its own: what is added to it later stays apart, as a constant in the instruction.
template <class T> FN T apart(T p) {
  asm("" : "+l"(p));
  return p;
}
template <class Sink> constexpr bool takes_bursts = false;
template <class Place> constexpr bool reads_all = false;
template <class F> constexpr bool may_be_inexact = false;  // a lambda that stores, and may have to be called again before
// U vectors of every operand: all fetches, then all calls, then all stores, so that the fetches overlap.
// With GUARDED, only those that are `live` exist; where the others may be read, stores alone are guarded. The sink takes what
// the lambda returns, a vector or all U at a time.
template <bool GUARDED, int W, int U, class Place, class Sink, class F, class... Packets>
FN void visit(const Place (&at)[U], const bool (&live)[U], Sink& sink, const F& f, Packets... packet) {
  constexpr bool CHECKED = GUARDED && !reads_all<Place>;
#pragma unroll
  for (int u = 0; u < U; ++u)
    if (!CHECKED || live[u]) (packet.fetch(u, at[u]), ...);
  const auto call = [&](int u, int j) { return f(packet.element(u, j, at[u])...); };
  if constexpr (may_be_inexact<F>) {
    constexpr int SOME = 16;
#pragma unroll
    for (int from = 0; from < U * W; from += SOME)
      f.settle([&] {
#pragma unroll
        for (int n = from; n < U * W && n < from + SOME; ++n)
          if (!CHECKED || live[n / W]) call(n / W, n % W);
      });
  } else if constexpr (takes_bursts<Sink>) {
    sink.template take<GUARDED, W, U>(live, call);
  } else {
#pragma unroll
    for (int u = 0; u < U; ++u)
      if (!CHECKED || live[u]) sink.template take<W>(at[u], [&](int j) { return call(u, j); });
  }
#pragma unroll
  for (int u = 0; u < U; ++u)
    if (!GUARDED || live[u]) (packet.flush(u, at[u]), ...);
}
// Vectors in flight per thread: about 64 bytes of loads, but no more vectors than there are, nor than MOST.
template <long BYTES, long VECTORS, long MOST = 8> struct in_flight {
  static constexpr long wanted = BYTES == 0 ? 4 : BYTES >= 64 ? 1 : BYTES * MOST <= 64 ? MOST : 64 / BYTES;
  static constexpr int count = int(wanted < VECTORS ? wanted : VECTORS < 1 ? 1 : VECTORS);
};
template <int W, class... Ops> constexpr long vector_bytes = (0 + ... + (long(Ops::bytes) * W));

//@ denominator: needs visit
// A number that elements x are divided by. With its inverse rounded once, one product and one correction give x / s to the
// bit; tests prove it for every s. Where the correction may lose bits (x or the quotient is tiny, or something is not finite)
// the quotient may be inexact, and `visit` calls for some elements again, `exactly`.
struct denominator {
  float by, inverse, least;
  bool always, inexact, exactly = false;
  FN explicit denominator(float s)
      : by(s), inverse(1.f / s), least(::fmaxf(0x1p-125f, 0x1p-100f * inverse)),
        always(!(s >= 0x1p-126f && s <= 0x1p126f)), inexact(always) {}
};
FN float divided(float x, denominator& d) {
  if (d.exactly) return x / d.by;
  const float close = x * d.inverse, q = ::fmaf(-::fmaf(close, d.by, -x), d.inverse, close);
  d.inexact |= !(::fabsf(q) >= d.least) & (x != 0.f);
  return q;
}
// The same of an element that is reduced: it is asked for once, so it settles that itself.
__device__ __noinline__ float divided_exactly(float x, float by) { return x / by; }
FN float divided_alone(float x, const denominator& d) {
  const float close = x * d.inverse, q = ::fmaf(-::fmaf(close, d.by, -x), d.inverse, close);
  return ::fabsf(q) >= d.least && !d.always ? q : divided_exactly(x, d.by);
}
template <class F> struct dividing {
  denominator& d;
  F f;
  template <class... X> FN void operator()(X&&... x) const { f(static_cast<X&&>(x)...); }
  template <class All> FN void settle(const All& all) const {
    all();
    if (!d.inexact) return;
    d.exactly = true;
    all();
    d.exactly = false, d.inexact = d.always;
  }
};
template <class F> constexpr bool may_be_inexact<dividing<F>> = true;
template <class F> FN dividing<F> divides(denominator& d, const F& f) { return {d, f}; }

//@ fixed: needs visit
// A place is where one vector of W elements starts; its element j has an outer and an inner index.
// `whole` says that the vector is contiguous in memory for an operand with this outer stride.
template <bool SMALL> struct flat_index { using type = long; };
template <> struct flat_index<true> { using type = int; };
template <long O, long I, int W> struct fixed_place {
  using type = typename flat_index<(O * I < 1L << 30)>::type;
  static constexpr bool inside = O == 1 || I % W == 0;  // no vector crosses into the next inner row
  static constexpr type width = I ? I : 1;
  type flat, first, further;  // the last two make the first, and let all vectors of a thread share an address
  int slot;
  FN type outer(int j) const { return O == 1 ? 0 : (inside ? flat : flat + j) / width; }
  FN type inner(int j) const { return O == 1 ? flat + j : inside ? flat % width + j : (flat + j) % width; }
  FN bool whole(long outer_stride) const { return inside || outer_stride == I; }
  FN long start(long outer_stride) const {
    return O == 1 || outer_stride == I ? flat : outer(0) * outer_stride + inner(0);
  }
  template <class T> FN T* of(T* p, long outer_stride) const {
    return O == 1 || outer_stride == I ? apart(p + first) + further : p + start(outer_stride);
  }
};
template <long... N> struct fixed_span;
template <long O, long I> struct fixed_span<O, I> {
  static constexpr long outer = O, inner = I, total = O * I;
  template <int W> using place = fixed_place<O, I, W>;
};
template <long I> struct fixed_span<I> : fixed_span<1, I> {};
template <long... N> inline constexpr fixed_span<N...> fixed{};
// Compile-time size. A kept row (of an operand or of the sink) needs constant slots, so all is unrolled.
template <class Team, long TOTAL> struct layout {
  static constexpr int W = TOTAL % Team::vector == 0 ? Team::vector : 1;
  static constexpr long stride = long(Team::threads) * W;
  static constexpr int slots = int((TOTAL + stride - 1) / stride);
};
// Slots s to s + U - 1; GUARDED unless it is known that the row has them all.
template <bool GUARDED, int W, int U, class Team, long... N, class Sink, class F, class... Ops>
FN void visit_fixed(Team& team, int s, fixed_span<N...> span, Sink& sink, const F& f, Ops... operand) {
  constexpr long stride = layout<Team, span.total>::stride;
  typename fixed_span<N...>::template place<W> at[U];
  bool live[U];
#pragma unroll
  for (int u = 0; u < U; ++u) {
    at[u].first = team.member() * W, at[u].further = (s + u) * stride;
    at[u].flat = at[u].first + at[u].further, at[u].slot = s + u;
    live[u] = (s + u + 1) * stride <= span.total || at[u].flat < span.total;
  }
  visit<GUARDED, W, U>(at, live, sink, f, typename Ops::template packet<W, U>(operand)...);
}
template <class Team, long... N, class Sink, class F, class... Ops>
FN void walk(Team& team, fixed_span<N...> span, Sink& sink, const F& f, Ops... operand) {
  using lay = layout<Team, span.total>;
  constexpr int W = lay::W, U = in_flight<vector_bytes<W, Ops...>, lay::slots, Team::burst>::count;
  constexpr int full = int(span.total / (lay::stride * U)) * U, rest = lay::slots - full;
  constexpr bool CONSTANT_SLOTS = (Sink::kept || ... || Ops::kept);
#pragma unroll(CONSTANT_SLOTS ? full + 1 : 1)
  for (int s = 0; s < full; s += U) visit_fixed<false, W, U>(team, s, span, sink, f, operand...);
  if constexpr (rest > 0) visit_fixed<true, W, rest>(team, full, span, sink, f, operand...);
}

//@ line: needs visit
struct line_span { long inner; };
struct line_place {
  static constexpr int slot = 0;
  long flat;
  FN long outer(int) const { return 0; }
  FN long inner(int j) const { return flat + j; }
  FN bool whole(long) const { return true; }
  template <class T> FN T* of(T* p, long) const { return p + flat; }
};
// Vectors p, p + stride, ... before `end` of one line; no guards while U of them exist.
template <bool GUARDED, int W, int U, class Sink, class F, class... Ops>
FN void visit_line(long p, long end, long stride, Sink& sink, const F& f, Ops... operand) {
  line_place at[U];
  bool live[U];
#pragma unroll
  for (int u = 0; u < U; ++u) {
    at[u] = {(p + u * stride) * W};
    live[u] = p + u * stride < end;
  }
  visit<GUARDED, W, U>(at, live, sink, f, typename Ops::template packet<W, U>(operand)...);
}
template <class Team, class Sink, class F, class... Ops>
FN void walk(Team& team, line_span span, Sink& sink, const F& f, Ops... operand) {
  constexpr int W = Team::vector, U = in_flight<vector_bytes<W, Ops...>, Team::burst, Team::burst>::count;
  const long end = span.inner / W, stride = team.members();
  long p = team.member();
#pragma unroll 1
  for (; p + (U - 1) * stride < end; p += U * stride) visit_line<false, W, U>(p, end, stride, sink, f, operand...);
  if (p < end) visit_line<true, W, U>(p, end, stride, sink, f, operand...);
  if (W > 1)
    for (long i = end * W + team.member(); i < span.inner; i += stride)
      visit_line<false, 1, 1>(i, span.inner, 1, sink, f, operand...);
}

//@ sheet: needs visit
// Both indices of a run-time sheet are below 2^31; no vector crosses from one inner row to the next.
struct sheet_span { long outer, inner; };
struct sheet_place {
  static constexpr int slot = 0;
  int o, i;
  long flat;
  FN long outer(int) const { return o; }
  FN long inner(int j) const { return i + j; }
  FN bool whole(long) const { return true; }
  template <class T> FN T* of(T* p, long outer_stride) const { return p + (o * outer_stride + i); }
};
// A member steps through the sheet by adding to both indices: dividing each position would cost more.
template <class Team, class Sink, class F, class... Ops>
FN void walk(Team& team, sheet_span span, Sink& sink, const F& f, Ops... operand) {
  constexpr int W = Team::vector, U = in_flight<vector_bytes<W, Ops...>, Team::burst, Team::burst>::count;
  const int width = int(span.inner), end = width > 0 ? int(span.outer) : 0;
  const unsigned vectors = width > W ? width / W : 1, first = team.member(), step = team.members();
  const int step_o = step / vectors, step_i = step % vectors * W;
  int o = first / vectors, i = first % vectors * W;
#pragma unroll 1
  while (o < end) {
    sheet_place at[U];
    bool live[U];
#pragma unroll
    for (int u = 0; u < U; ++u) {
      at[u] = {o, i, long(o) * width + i};
      live[u] = o < end;
      o += step_o, i += step_i;
      if (i >= width) i -= width, ++o;
    }
    if (live[U - 1])
      visit<false, W, U>(at, live, sink, f, typename Ops::template packet<W, U>(operand)...);
    else
      visit<true, W, U>(at, live, sink, f, typename Ops::template packet<W, U>(operand)...);
  }
}

//@ span: needs line, sheet
FN line_span span(long inner) { return {inner}; }
FN sheet_span span(long outer, long inner) { return {outer, inner}; }

//@ base
// A base that is an int is a number in the text: it stays apart from the address, which what loads from one row
// then has in common.
FN long row_part(long base) { return base; }
FN long row_part(int) { return 0; }
FN long text_part(long) { return 0; }
FN long text_part(int base) { return base; }

//@ load: needs vectors, base
// An operand becomes a packet, which holds U vectors of W elements for one call of `visit`.
template <class T, bool CONSTANT> struct load_operand {
  using value = computed<T>;
  static constexpr int bytes = sizeof(T);
  static constexpr bool kept = false;
  const T* p;
  long base, outer_stride;
  template <int W, int U> struct packet {
    const T* p;
    long base, outer_stride;
    T held[U][W];
    FN explicit packet(const load_operand& o) : p(o.p), base(o.base), outer_stride(o.outer_stride) {}
    template <class Place> FN const T* spot(const Place& at) const { return at.of(p, outer_stride); }
    FN value from(const T* spot) const { return fetch_element<CONSTANT>(spot + base); }
    template <class Place> FN void fetch(int u, const Place& at) {
      if (at.whole(outer_stride)) return fetch_vector<CONSTANT, W>(at.of(p, outer_stride) + base, held[u]);
#pragma unroll
      for (int j = 0; j < W; ++j)
        fetch_vector<CONSTANT, 1>(p + (base + at.outer(j) * outer_stride + at.inner(j)), &held[u][j]);
    }
    template <class Place> FN value element(int u, int j, const Place&) { return widen_at(held[u], j); }
    template <class Place> FN void flush(int, const Place&) {}
  };
};
template <class T, class Base> FN load_operand<T, true> load(const T* p, Base base, long outer_stride = 0) {
  return {p + row_part(base), text_part(base), outer_stride};
}
// Without const the kernel writes there too: each element is read by the thread that writes it.
template <class T, class Base> FN load_operand<T, false> load(T* p, Base base, long outer_stride = 0) {
  return {p + row_part(base), text_part(base), outer_stride};
}

//@ load_once: needs load
// What nobody reads again goes past L1. The surprising fact: that helps only where no rows are stored.
FN void fetch_once(const uint4* from, uint4& to) {
  asm("ld.global.nc.L1::no_allocate.v4.b32 {%0, %1, %2, %3}, [%4];"
      : "=r"(to.x), "=r"(to.y), "=r"(to.z), "=r"(to.w) : "l"(from));
}
template <class T> struct once_operand : load_operand<T, true> {
  template <int W, int U> struct packet : load_operand<T, true>::template packet<W, U> {
    using plain = typename load_operand<T, true>::template packet<W, U>;
    FN explicit packet(const once_operand& o) : plain(o) {}
    template <class Place> FN void fetch(int u, const Place& at) {
      if (W * sizeof(T) % 16 || !at.whole(this->outer_stride)) return plain::fetch(u, at);
      const auto* const from = reinterpret_cast<const uint4*>(at.of(this->p, this->outer_stride) + this->base);
#pragma unroll
      for (int k = 0; k < int(W * sizeof(T) / 16); ++k) {
        uint4 bits;
        fetch_once(from + k, bits);
        memcpy(this->held[u] + k * (16 / sizeof(T)), &bits, 16);
      }
    }
  };
};
template <class T, class Base> FN once_operand<T> load_once(const T* p, Base base, long outer_stride = 0) {
  return {load(p, base, outer_stride)};
}

//@ store: needs vectors
template <class T> struct store_operand {
  using value = computed<T>&;
  static constexpr int bytes = 0;
  static constexpr bool kept = false;
  T* p;
  long outer_stride;
  template <int W, int U> struct packet {
    T* p;
    long outer_stride;
    computed<T> held[U][W];
    FN explicit packet(const store_operand& o) : p(o.p), outer_stride(o.outer_stride) {}
    template <class Place> FN void fetch(int, const Place&) {}
    template <class Place> FN value element(int u, int j, const Place&) { return held[u][j]; }
    template <class Place> FN void flush(int u, const Place& at) {
      T stored[W];
#pragma unroll
      for (int j = 0; j < W; ++j) narrow(held[u][j], stored[j]);
      if (at.whole(outer_stride)) return write_vector<W>(stored, at.of(p, outer_stride));
#pragma unroll
      for (int j = 0; j < W; ++j) p[at.outer(j) * outer_stride + at.inner(j)] = stored[j];
    }
  };
};
template <class T> FN store_operand<T> store(T* p, long base, long outer_stride = 0) {
  return {p + base, outer_stride};
}

//@ gather: needs vectors
template <class T, bool CONSTANT, class F> struct gather_operand {
  using value = computed<T>;
  static constexpr int bytes = sizeof(T);
  static constexpr bool kept = false;
  const T* p;
  F offset;
  template <int W, int U> struct packet {
    const T* p;
    F offset;
    T held[U][W];
    FN explicit packet(const gather_operand& o) : p(o.p), offset(o.offset) {}
    template <class Place> FN const T* spot(const Place& at) const {
      return p + (offset(at.outer(0), at.inner(0)) - offset.base);
    }
    FN value from(const T* spot) const { return fetch_element<CONSTANT>(spot + offset.base); }
    template <class Place> FN void fetch(int u, const Place& at) {
#pragma unroll
      for (int j = 0; j < W; ++j)
        fetch_vector<CONSTANT, 1>(p + offset(at.outer(j), at.inner(j)), &held[u][j]);
    }
    template <class Place> FN value element(int u, int j, const Place&) { return widen_at(held[u], j); }
    template <class Place> FN void flush(int, const Place&) {}
  };
};
template <class T, class F> FN gather_operand<T, true, F> gather(const T* p, F offset) { return {p, offset}; }
template <class T, class F> FN gather_operand<T, false, F> gather(T* p, F offset) { return {p, offset}; }

//@ strides
struct strides {
  long base, outer, inner;
  FN long operator()(long o, long i) const { return base + o * outer + i * inner; }
};

//@ strided: needs gather, strides, base
template <class T, class Base> FN auto strided(T* p, Base base, long outer, long inner) {
  return gather(p + row_part(base), strides{text_part(base), outer, inner});
}
template <class T, class Base> FN auto strided(T* p, Base base, long inner) { return strided(p, base, 0, inner); }

//@ staged: needs gather, strides, base
// An operand that lies across the rows of a map, number SLOT of those: `run_map_staged` brings it through shared
// memory, and elsewhere it is `strided`. The kernel does not write there.
template <int SLOT, class T> struct staged_operand : gather_operand<T, true, strides> {};
template <int SLOT, class T, class Base> FN staged_operand<SLOT, T> staged(const T* p, Base base, long inner) {
  return {{p + row_part(base), {text_part(base), 0, inner}}};
}

//@ gather_store: needs values
template <class T, class F> struct gather_store_operand {
  using value = computed<T>&;
  static constexpr int bytes = 0;
  static constexpr bool kept = false;
  T* p;
  F offset;
  template <int W, int U> struct packet {
    T* p;
    F offset;
    computed<T> held[U][W];
    FN explicit packet(const gather_store_operand& o) : p(o.p), offset(o.offset) {}
    template <class Place> FN void fetch(int, const Place&) {}
    template <class Place> FN value element(int u, int j, const Place&) { return held[u][j]; }
    template <class Place> FN void flush(int u, const Place& at) {
#pragma unroll
      for (int j = 0; j < W; ++j) narrow(held[u][j], p[offset(at.outer(j), at.inner(j))]);
    }
  };
};
template <class T, class F> FN gather_store_operand<T, F> gather_store(T* p, F offset) { return {p, offset}; }

//@ strided_store: needs gather_store, strides
template <class T> FN auto strided_store(T* p, long base, long inner) {
  return gather_store(p + base, strides{0, 0, inner});
}
template <class T> FN auto strided_store(T* p, long base, long outer, long inner) {
  return gather_store(p + base, strides{0, outer, inner});
}

//@ index
struct index_operand {
  using value = long;
  static constexpr int bytes = 0;
  static constexpr bool kept = false;
  template <int W, int U> struct packet {
    FN explicit packet(const index_operand&) {}
    template <class Place> FN void fetch(int, const Place&) {}
    template <class Place> FN long element(int, int j, const Place& at) { return at.flat + j; }
    template <class Place> FN void flush(int, const Place&) {}
  };
};
FN index_operand index() { return {}; }

//@ extent_of
// Which inner indices of a row have elements: those where offset + step * i lies in [0, size). They are counted
// in the type of the index: half of what a guard does is done in it.
template <class Index> struct extent {
  Index first, last;
};
FN long floor_quotient(long a, long b) { return (a >= 0 ? a : a - b + 1) / b; }
template <class Index> FN Index cut(long i) {
  constexpr long MOST = sizeof(Index) == 4 ? 1L << 29 : 1L << 61;
  return Index(i < -MOST ? -MOST : i > MOST ? MOST : i);
}
struct limit {
  long offset, step, size;
  template <class Index> FN extent<Index> in() const {
    const bool all = (unsigned long)offset < (unsigned long)size;
    if (step == 0) return {all ? cut<Index>(-1L << 61) : 0, all ? cut<Index>(1L << 61) : 0};
    if (step > 0) return {cut<Index>(-floor_quotient(offset, step)), cut<Index>(-floor_quotient(offset - size, step))};
    return {cut<Index>(floor_quotient(offset - size, -step) + 1), cut<Index>(floor_quotient(offset, -step) + 1)};
  }
  // The same of one index: what neighbours have in common is computed once, and the rest in 32 bits.
  FN bool has(long i) const { return (unsigned long)(offset + step * i) < (unsigned long)size; }
  FN bool has(int i) const {
    const bool small = step * step == 1 && offset == cut<int>(offset) && size == cut<int>(size);
    return small ? unsigned(int(offset) + int(step) * i) < unsigned(size) : has(long(i));
  }
};
template <class A> struct limits {
  A a;
  limit b;
  template <class Index> FN extent<Index> in() const {
    const extent<Index> x = a.template in<Index>(), y = b.in<Index>();
    return {x.first > y.first ? x.first : y.first, x.last < y.last ? x.last : y.last};
  }
  template <class Index> FN bool has(Index i) const { return a.has(i) & b.has(i); }
};
FN limit extent_of(long offset, long step, long size) { return {offset, step, size}; }
FN limits<limit> operator&(limit a, limit b) { return {a, b}; }
template <class A> FN limits<limits<A>> operator&(limits<A> a, limit b) { return {a, b}; }
template <class A> FN bool holds(const A& a) {
  const auto all = a.template in<long>();
  return all.first < all.last;
}

//@ wrap
// How much further an element stands where a dimension goes round: not at all before its end.
FN long wrap(long place, long size, long by) { return (unsigned long)place < (unsigned long)size ? 0 : by; }

//@ wrapped: needs load, extent_of
// A row that goes round: the elements outside the extent stand `by` further on. Its ends, and all that is added to
// addresses, are multiples of WHOLE. Index is wide enough for every inner index.
template <class Index, int WHOLE, class T, bool CONSTANT, class Where> struct wrapped_operand {
  using value = computed<T>;
  static constexpr int bytes = sizeof(T);
  static constexpr bool kept = false;
  load_operand<T, CONSTANT> row;
  long by;
  Where where;
  template <int W, int U> struct packet {
    static constexpr int step = WHOLE % W == 0 ? W : 1;
    load_operand<T, CONSTANT> row;
    long by;
    Where where;
    T held[U][W];
    FN explicit packet(const wrapped_operand& o) : row(o.row), by(o.by), where(o.where) {}
    template <class Place> FN void fetch(int u, const Place& at) {
#pragma unroll
      for (int j = 0; j < W; j += step) {
        const long o = at.outer(j), i = at.inner(j), further = where(o).has(Index(i)) ? 0 : by;
        fetch_vector<CONSTANT, step>(row.p + (row.base + o * row.outer_stride + i + further), &held[u][j]);
      }
    }
    template <class Place> FN value element(int u, int j, const Place&) { return widen_at(held[u], j); }
    template <class Place> FN void flush(int, const Place&) {}
  };
};
template <class Index, int WHOLE, class T, bool CONSTANT, class Where>
FN wrapped_operand<Index, WHOLE, T, CONSTANT, Where> wrapped(load_operand<T, CONSTANT> row, long by, Where where) {
  return {row, by, where};
}

//@ everywhere
// One value everywhere.
template <class T> struct everywhere_operand {
  using value = T;
  static constexpr int bytes = 0;
  static constexpr bool kept = false;
  T held;
  template <int W, int U> struct packet {
    T held;
    FN explicit packet(const everywhere_operand& o) : held(o.held) {}
    template <class Place> FN void fetch(int, const Place&) {}
    template <class Place> FN T element(int, int, const Place&) { return held; }
    template <class Place> FN void flush(int, const Place&) {}
  };
};
template <class T> FN everywhere_operand<T> everywhere(T value) { return {value}; }

//@ within: needs extent_of
// An operand of which only the elements inside the extent exist; the others are the fill. A vector is fetched
// if any of its elements exists: whoever picked W knows that then all of it may be read. Index is wide enough
// for every inner index.
template <class T, bool CONSTANT> struct load_operand;
template <class T, bool CONSTANT, class F> struct gather_operand;
struct strides;
template <class Operand> constexpr bool has_spot = false;
template <class T, bool CONSTANT> constexpr bool has_spot<load_operand<T, CONSTANT>> = true;
template <class T, bool CONSTANT> constexpr bool has_spot<gather_operand<T, CONSTANT, strides>> = true;
FN bool inside(extent<long> all, long i) { return i >= all.first && i < all.last; }
FN bool inside(extent<int> all, int i) {  // one comparison; the rest is the same for a whole row
  return unsigned(i - all.first) < unsigned(all.last > all.first ? all.last - all.first : 0);
}
template <class Index, class Operand, class Where> struct within_operand {
  using value = typename Operand::value;
  static constexpr int bytes = (Operand::bytes + 1) / 2;  // most pieces are not there
  static constexpr bool kept = false;
  Operand operand;
  value fill;
  Where where;
  template <int W, int U> struct packet {
    static constexpr bool single = W == 1 && has_spot<Operand>;
    typename Operand::template packet<W, U> bare;
    value fill, only[single ? U : 1];
    Where where;
    FN explicit packet(const within_operand& o) : bare(o.operand), fill(o.fill), where(o.where) {}
    FN extent<Index> live(long o) const { return where(o).template in<Index>(); }
    FN bool has(long o, Index i) const { return W == 1 || !Operand::bytes ? where(o).has(i) : inside(live(o), i); }
    template <class Place> FN void fetch(int u, const Place& at) {
      const Index i = Index(at.inner(0));
      if constexpr (single) {
        const auto* const spot = apart(bare.spot(at));
        only[u] = fill;
        if (has(at.outer(0), i)) only[u] = bare.from(spot);
      } else {
        const extent<Index> all = live(at.outer(0));
        if (i < all.last && i + W > all.first) bare.fetch(u, at);
      }
    }
    template <class Place> FN value element(int u, int j, const Place& at) {
      if constexpr (single) return only[u];
      return has(at.outer(j), Index(at.inner(j))) ? bare.element(u, j, at) : fill;
    }
    template <class Place> FN void flush(int, const Place&) {}
  };
};
template <class Index, class Operand, class Where>
FN within_operand<Index, Operand, Where> within(Operand inside, typename Operand::value fill, Where where) {
  return {inside, fill, where};
}

//@ keep: needs fixed
// A row kept in registers: each thread holds the elements of its own places.
template <class T, int SLOTS, int W> struct kept_row {
  T held[SLOTS][W];
  FN kept_row() {}
};
template <class T, class Value, int SLOTS, int ROW_W> struct kept_operand {
  using value = Value;
  static constexpr int bytes = 0;
  static constexpr bool kept = true;
  kept_row<T, SLOTS, ROW_W>* row;
  template <int W, int U> struct packet {
    static_assert(W == ROW_W, "a kept row is used with spans of its own size");
    kept_row<T, SLOTS, ROW_W>* row;
    FN explicit packet(const kept_operand& o) : row(o.row) {}
    template <class Place> FN void fetch(int, const Place&) {}
    template <class Place> FN value element(int, int j, const Place& at) { return row->held[at.slot][j]; }
    template <class Place> FN void flush(int, const Place&) {}
  };
};
template <class T, int S, int W> FN kept_operand<T, T, S, W> load(kept_row<T, S, W>& k) { return {&k}; }
template <class T, int S, int W> FN kept_operand<T, T&, S, W> store(kept_row<T, S, W>& k) { return {&k}; }

//@
}  // namespace fusewright
