// Reductions whose part is more than a number: a position, a maximum with a sum of exponentials.
//
// The surprising fact: what one thread does decides their speed, and there the pair is avoided. Positions are compared
// once for a vector, and the sum of exponentials is multiplied once for a burst of vectors, if at all.
//
// Text outside `//@ name` sections only serves a compilation of this file alone.
#pragma once
#include "devicelib/cuda/team.cuh"
namespace fusewright {

//@ best_of: needs reduce, limits, fixed
// The first position of the extreme value; the first NaN, if there is one. A thread meets its elements in the order
// of their positions, so only what is really better moves it, and it asks at the end which element of a vector that
// was. A row in which nothing is better than the limit has it everywhere, first at 0.
template <int BYTES> struct unsigned_of { using type = unsigned; };
template <> struct unsigned_of<8> { using type = unsigned long; };
// Unsigned numbers in the order of the values; adding 0 makes +0 of -0.
FN unsigned ranked(float x) {
  const int bits = __float_as_int(x + 0.0f);
  return bits ^ (bits >> 31 | 1 << 31);
}
FN unsigned long ranked(double x) {
  const long bits = __double_as_longlong(x + 0.0);
  return bits ^ (bits >> 63 | 1L << 63);
}
template <class T> FN auto ranked(T x) {
  using type = typename unsigned_of<sizeof(T)>::type;
  return type(x) ^ type(T(-1) < T(0)) << (8 * sizeof(type) - 1);
}
template <class T, class Better, int VECTOR, class Index> struct best_of {
  static constexpr bool kept = false, symmetric = true;
  static constexpr Index NOWHERE = ~Index(0);
  struct candidate {
    typename unsigned_of<sizeof(T)>::type rank;
    Index position;
  };
  static constexpr int MOST = VECTOR < 4 ? VECTOR : 4;  // of a vector that are held, since registers are few
  T best = Better::none(T()), vector[MOST] = {};
  Index first = NOWHERE;
  template <int W, class Place, class Element> FN void take(const Place& at, const Element& element) {
    constexpr int COUNT = W < MOST ? W : MOST;
#pragma unroll
    for (int k = 0; k < W; k += COUNT) take_some<COUNT>(Index(at.flat) + k, [&](int j) { return T(element(k + j)); });
  }
  template <int COUNT, class Element> FN void take_some(Index place, const Element& element) {
    T x[COUNT], found = best;
#pragma unroll
    for (int j = 0; j < COUNT; ++j) x[j] = element(j), found = Better::join(found, x[j]);
    const bool moved = found != best && best == best;
    best = found;
    first = moved ? place : first;
#pragma unroll
    for (int j = 0; j < COUNT; ++j) vector[j] = moved ? x[j] : vector[j];
  }
  FN candidate part() const {
    int place = MOST - 1;
#pragma unroll
    for (int j = MOST - 2; j >= 0; --j)
      if (vector[j] == best || vector[j] != vector[j]) place = j;
    const auto rank = ranked(best), all = rank | ~rank;
    const bool rises = Better::none(T()) == lowest(T());
    return first == NOWHERE ? none() : candidate{best != best ? all : rises ? rank : ~rank, first + Index(place)};
  }
  static FN candidate none() { return {0, NOWHERE}; }
  static FN candidate join(candidate a, candidate b) {
    return b.rank > a.rank || (b.rank == a.rank && b.position < a.position) ? b : a;
  }
  static FN long result(candidate a) { return a.position == NOWHERE ? 0 : long(a.position); }
};
// Positions of a row of known length need no more than 32 bits.
template <class Span> struct positions { using type = unsigned long; };
template <long... N> struct positions<fixed_span<N...>> {
  using type = typename unsigned_of<(fixed_span<N...>::total < 1L << 31 ? 4 : 8)>::type;
};
template <class T, class Better, class Team, class Span, class F, class... Ops>
FN long first_best(Team& team, Span span, const F& f, Ops... operand) {
  return reduce(best_of<T, Better, Team::vector, typename positions<Span>::type>(), team, span, f, operand...);
}

//@ argmax: needs best_of, max
template <class T> struct argmax_of {};
template <class T, class Team, class Span, class F, class... Ops>
FN long reduce(argmax_of<T>, Team& team, Span span, const F& f, Ops... operand) {
  return first_best<T, larger>(team, span, f, operand...);
}

//@ argmin: needs best_of, min
template <class T> struct argmin_of {};
template <class T, class Team, class Span, class F, class... Ops>
FN long reduce(argmin_of<T>, Team& team, Span span, const F& f, Ops... operand) {
  return first_best<T, smaller>(team, span, f, operand...);
}

//@ online_softmax: needs reduce, sum, max, exp, fma
// A maximum and the sum of exp(x - shift) of one sweep, where a row is not kept. A thread sums exp(x - reference), and
// the reference moves to the maximum of a burst that is more than STEP above it: so rows that rise slowly do not
// multiply the sum, and round it, at every burst. Threads and blocks know the maximum of all before they join sums.
FN float largest(float) { return __int_as_float(0x7f7fffff); }
FN double largest(double) { return __longlong_as_double(0x7fefffffffffffff); }
template <class T> FN T at_least_finite(T x) { return maximum(x, -largest(x)); }
template <class T> struct online_softmax_result {
  T max, total;  // of exp(x - max), if that is finite
  FN T sum(T shift) const {
    const T factor = exp(max - shift);
    return max - max == T(0) ? total * factor : factor;
  }
};
template <class T> struct online_softmax_of {
  static constexpr bool kept = false;
  static constexpr T STEP = T(1);
  sum_of<T> sum;
  T max = lowest(T()), reference = at_least_finite(max);
  // More elements at a time, or more doubles, whose exp is long, would not fit the registers of a busy GPU.
  static constexpr int MOST = sizeof(T) == 8 ? 4 : 16;
  template <bool GUARDED, int W, int U, class Element> FN void take(const bool (&live)[U], const Element& element) {
    constexpr int wanted = MOST > W ? MOST / W : 1, step = wanted < U ? wanted : U;
#pragma unroll
    for (int u = 0; u < U; u += step)
      take_some<step * W>([&](int k) {
        const bool here = u + k / W < U && (!GUARDED || live[u + k / W]);
        return here ? T(element(u + k / W, k % W)) : lowest(T());
      });
  }
  template <int COUNT, class Element> FN void take_some(const Element& element) {
    T x[COUNT], top = lowest(T());
#pragma unroll
    for (int k = 0; k < COUNT; ++k) x[k] = element(k), top = maximum(top, x[k]);
    max = maximum(max, top);
    if (top > reference + STEP) {
      sum.scale(exp(reference - top));
      reference = top;
    }
    sum.template take<COUNT>(0, [&](int k) { return exp(x[k] - reference); });
  }
};
template <class T> constexpr bool takes_bursts<online_softmax_of<T>> = true;
// What blocks have found; the reference of one without finite elements is the lowest number.
template <class T> struct online_softmax_parts {
  using part = online_softmax_result<T>;
  static constexpr bool symmetric = false;
  static FN part none() { return {lowest(T()), T(0)}; }
  static FN part join(part a, part b) {
    const T max = maximum(a.max, b.max), reference = at_least_finite(max);
    const T left = exp(at_least_finite(a.max) - reference), right = exp(at_least_finite(b.max) - reference);
    return {max, fma(a.total, left, b.total * right)};
  }
};
// What members have found, of which each knows a maximum, a sum of exp(x - reference), and that reference.
template <class Team, class T> FN online_softmax_result<T> weighed(Team& team, T max, T reference, T sum) {
  const T all = team.template join<max_of<T>>(max);
  return {all, team.template join<sum_of<T>>(sum * exp(reference - at_least_finite(all)))};
}
template <class T, class Team, class Span, class F, class... Ops>
FN online_softmax_result<T> reduce(online_softmax_of<T> mine, Team& team, Span span, const F& f, Ops... operand) {
  walk(team, span, mine, f, operand...);
  if constexpr (Team::spread) {
    const auto part = weighed(team.block, mine.max, mine.reference, mine.sum.part());
    return team.template join_parts<online_softmax_parts<T>>(part);
  } else {
    return weighed(team, mine.max, mine.reference, mine.sum.part());
  }
}

//@
}  // namespace fusewright
