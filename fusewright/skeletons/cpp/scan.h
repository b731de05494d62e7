// Running sums and products along a row, on the CPU: every element becomes what it is joined with so far.
//
// The surprising fact: one chain of additions waits four cycles for each of its elements. So a part of a row is
// cut into CHAINS pieces; their totals come first, and then all chains run side by side, each from where the one
// before it ends. Chains are wider than floats, as eager's are.
//
// Text outside `//@ name` sections only serves a compilation of this file alone.
#pragma once
#include "team.h"
namespace fusewright {

//@ scan: needs fold, sum, kept, box
constexpr long CHAINS = 8, WORTH_CHAINS = 2 * CHAINS;
struct added {
  template <class T> FN static T none() { return T(0); }
  template <class T> FN static T join(T a, T b) { return a + b; }
};
struct multiplied {
  template <class T> FN static T none() { return T(1); }
  template <class T> FN static T join(T a, T b) { return a * b; }
};
template <class Join, bool Back> struct scan_by : Join {
  static constexpr bool back = Back;
};
// n neighbours, the first of which follows `carry`; what the last one becomes is the next carry.
template <class Scan, class Wide, class T> FN void prefix(T* p, long n, Wide& carry) {
  const auto at = [&](long i) -> T& { return p[Scan::back ? n - 1 - i : i]; };
  long done = 0;
  if (n >= WORTH_CHAINS && !same<T, double>::yes) {  // doubles are joined one by one, exactly as eager does
    const long piece = n / CHAINS;
    Wide chain[CHAINS], total[CHAINS];
    for (long c = 0; c < CHAINS; ++c) total[c] = Scan::template none<Wide>();
    for (long i = 0; i < piece; ++i)
      for (long c = 0; c < CHAINS; ++c) total[c] = Scan::join(total[c], Wide(at(c * piece + i)));
    for (long c = 0; c < CHAINS; ++c) chain[c] = carry, carry = Scan::join(carry, total[c]);
    for (long i = 0; i < piece; ++i)
      for (long c = 0; c < CHAINS; ++c) {
        chain[c] = Scan::join(chain[c], Wide(at(c * piece + i)));
        at(c * piece + i) = T(chain[c]);
      }
    carry = chain[CHAINS - 1];
    done = piece * CHAINS;
  }
  for (; done < n; ++done) {
    carry = Scan::join(carry, Wide(at(done)));
    at(done) = T(carry);
  }
}
template <class Scan, class T, class F, class... Ops>
__attribute__((noinline, flatten)) void scan_long(box s, T* row, F f, Ops... ops) {
  typename wider<T>::type carry = Scan::template none<typename wider<T>::type>();
  const long outer = s.last - s.first, chunks = (s.end - s.begin + CHUNK - 1) / CHUNK;
  for (long k = 0; k < outer; ++k)
    for (long c = 0; c < chunks; ++c) {
      const long o = Scan::back ? s.last - 1 - k : s.first + k;
      const long b = s.begin + (Scan::back ? chunks - 1 - c : c) * CHUNK;
      const long n = b + CHUNK < s.end ? CHUNK : s.end - b;
      T* const here = row + o * s.inner + b;
      fill(here, b, n, f, ops.line(o, s.inner)...);
      prefix<Scan>(here, n, carry);
    }
}
// One thread does a row, also where a crew is at hand: each element needs the one before it.
template <class Scan, class Span, class T, long N, bool Small, class F, class... Ops>
FN void scan(Scan, Span s, kept<T, N, Small>& row, F f, Ops... ops) {
  if constexpr (one_buffer<Span>::yes) {
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
