// Running sums and products along a row, on the CPU: every element becomes what it is joined with so far.
//
// The surprising fact: one chain of additions waits four cycles for each of its elements. So a part of a row is
// cut into CHAINS pieces; their totals come first, and then all chains run side by side, each from where the one
// before it ends. Chains are wider than floats, as eager's are.
//
// Text outside `//@ name` sections only serves a compilation of this file alone.
#pragma once
#include "devicelib/cpp/team.h"
namespace fusewright {

//@ scan: needs reduce, sum, kept, box
constexpr long CHAINS = 8, WORTH_CHAINS = 2 * CHAINS, CHAINED = 1024;
// `tame`: whether pieces that come to this may be joined in another order.
struct added {
  template <class T> FN static T none() { return T(0); }
  template <class T> FN static T join(T a, T b) { return a + b; }
  template <class T> FN static bool tame(T) { return true; }
};
// What has left a double's range stays 0, infinite or NaN, whatever it is multiplied by later; a product in another
// order may not have left it. Integers have no such edge.
struct multiplied {
  template <class T> FN static T none() { return T(1); }
  template <class T> FN static T join(T a, T b) { return a * b; }
  template <class T> FN static bool tame(T) { return true; }
  FN static bool tame(double x) { return (__builtin_fabs(x) >= 0x1p-400) & (__builtin_fabs(x) <= 0x1p400); }
};
// What is too small for the smallest float becomes 0 here: processors take a hundred cycles to find that out.
template <class T, class Wide> FN T narrowed(Wide x) { return T(x); }
template <> FN float narrowed<float, double>(double x) {
  return float(__builtin_fabs(x) <= 0x1p-150 ? __builtin_copysign(0.0, x) : x);
}
template <class Join, bool Back> struct scan_by : Join {
  static constexpr bool back = Back;
};
// CHAINS pieces side by side; false, and nothing done, if they may not be joined in another order.
template <class Scan, class T, class Wide, class At> FN bool side_by_side(const At& at, long piece, Wide& carry) {
  Wide chain[CHAINS], total[CHAINS];
  for (long c = 0; c < CHAINS; ++c) total[c] = Scan::template none<Wide>();
  long tame = 1;
  for (long i = 0; i < piece; ++i)
    for (long c = 0; c < CHAINS; ++c) {
      total[c] = Scan::join(total[c], Wide(at(c * piece + i)));
      tame &= Scan::tame(total[c]);
    }
  Wide next = carry;
  for (long c = 0; c < CHAINS; ++c) {
    tame &= Scan::tame(next);
    chain[c] = next, next = Scan::join(next, total[c]);
  }
  for (long i = 0; i < piece && tame; ++i)
    for (long c = 0; c < CHAINS; ++c) {
      T& here = at(c * piece + i);
      chain[c] = Scan::join(chain[c], Wide(here));
      here = narrowed<T>(chain[c]);
    }
  if (tame) carry = chain[CHAINS - 1];
  return tame;
}
// n neighbours, the first of which follows `carry`; what the last one becomes is the next carry. Doubles are joined one
// by one, exactly as eager does.
template <class Scan, class Wide, class T> FN void prefix(T* p, long n, Wide& carry) {
  long done = 0;
  const auto at = [&](long i) -> T& { return p[Scan::back ? n - 1 - done - i : done + i]; };
  while (n - done >= WORTH_CHAINS && !same<T, double>::yes && Scan::tame(carry)) {
    const long piece = (n - done < CHAINED ? n - done : CHAINED) / CHAINS;
    if (!side_by_side<Scan, T>(at, piece, carry)) break;
    done += piece * CHAINS;
  }
  for (; done < n; ++done) {
    carry = Scan::join(carry, Wide(at(0)));
    at(0) = narrowed<T>(carry);
  }
}
template <class Scan, class T, class F, class... Ops>
__attribute__((noinline, flatten)) void scan_long(box s, T* row, F f, Ops... ops) {
  typename wider<T>::type carry = Scan::template none<typename wider<T>::type>();
  const long outer = s.last - s.first, chunks = (s.end - s.begin + CHAINED - 1) / CHAINED;
  for (long k = 0; k < outer; ++k)
    for (long c = 0; c < chunks; ++c) {
      const long o = Scan::back ? s.last - 1 - k : s.first + k;
      const long b = s.begin + (Scan::back ? chunks - 1 - c : c) * CHAINED;
      const long n = b + CHAINED < s.end ? CHAINED : s.end - b;
      T* const here = row + o * s.inner + b;
      fill(here, b, n, f, ops.line(o, s.inner)...);
      prefix<Scan>(here, n, carry);
    }
}
// One thread does a row, also where a crew is at hand: each element needs the one before it.
template <class Scan, class Span, class T, long N, bool Small, class F, class... Ops>
FN void scan(Scan, Span s, kept<T, N, Small>& row, F f, Ops... ops) {
  if constexpr ((one_buffer<Span, CHAINED>::yes)) {
    typename wider<T>::type carry = Scan::template none<typename wider<T>::type>();
    fill(row.data(), 0, N, f, ops.line(0, N)...);
    prefix<Scan>(row.data(), N, carry);
  } else {
    scan_long<Scan>(box{s.first, s.last, s.begin, s.end, s.inner}, row.data(), f, ops...);
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
