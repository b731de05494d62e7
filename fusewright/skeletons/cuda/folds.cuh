// Folds whose part is more than a number: the position of an extreme value.
//
// The surprising fact: what one thread does decides their speed, and there the pair is avoided: positions are compared
// once for a vector.
//
// Text outside `//@ name` sections only serves a compilation of this file alone.
#pragma once
#include "team.cuh"
namespace fusewright {

//@ best_of: needs fold, limits, fixed
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
  T best = Better::none(T()), vector[VECTOR] = {};
  Index first = NOWHERE;
  template <int W, class Place, class Element> FN void take(const Place& at, const Element& element) {
    T x[W], found = best;
#pragma unroll
    for (int j = 0; j < W; ++j) x[j] = T(element(j)), found = Better::join(found, x[j]);
    const bool moved = found != best && best == best;
    best = found;
    first = moved ? Index(at.flat) : first;
#pragma unroll
    for (int j = 0; j < W; ++j) vector[j] = moved ? x[j] : vector[j];
  }
  FN candidate part() const {
    int place = VECTOR - 1;
#pragma unroll
    for (int j = VECTOR - 2; j >= 0; --j)
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
  return fold(best_of<T, Better, Team::vector, typename positions<Span>::type>(), team, span, f, operand...);
}

//@ argmax: needs best_of, max
template <class T> struct argmax_of {};
template <class T, class Team, class Span, class F, class... Ops>
FN long fold(argmax_of<T>, Team& team, Span span, const F& f, Ops... operand) {
  return first_best<T, larger>(team, span, f, operand...);
}

//@ argmin: needs best_of, min
template <class T> struct argmin_of {};
template <class T, class Team, class Span, class F, class... Ops>
FN long fold(argmin_of<T>, Team& team, Span span, const F& f, Ops... operand) {
  return first_best<T, smaller>(team, span, f, operand...);
}

//@
}  // namespace fusewright
