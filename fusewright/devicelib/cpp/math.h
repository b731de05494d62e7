// Scalar functions for generated CPU kernels: torch's meaning, written without branches.
//
// The surprising fact: nothing here is a vector function. A team runs its lambda under `omp simd`,
// and gcc turns these scalars into vector code, as long as no path branches and none calls the C
// library. So both sides of a choice are always computed, and what is out of range is clamped
// before it is used as an exponent, or its result thrown away. Polynomials are weighted minimax
// fits with float coefficients; errors are in tests/compile/test_device_library_cpp.py. Do not
// compile with -ffast-math: NaN, infinities and the rounding trick below would be lost. Compile
// with -ffp-contract=off: a value that a model computes once has one value here, wherever it is
// computed again, so only what says `fma` rounds once.
//
// Text outside `//@ name` sections only serves a compilation of this file alone.
#pragma once

//@ begin
// The kernels are the structs at the end; a function behind each starts it. Their bodies ask a
// `team` for loops and reductions. What a team and its operands are, and how kernels are started, comes
// before.
#include <omp.h>
#include <stdlib.h>
#include <sys/mman.h>
#define FN inline __attribute__((always_inline))
namespace fusewright {

//@ numbers
// What float and double need to be treated alike, and the bits of a float.
template <class T> struct number {
  static constexpr bool floating = false;
};
template <> struct number<float> {
  static constexpr bool floating = true;
};
template <> struct number<double> {
  static constexpr bool floating = true;
};
template <class T, bool = number<T>::floating> struct if_floating {};
template <class T> struct if_floating<T, true> {
  using type = T;
};
template <class T> using floating = typename if_floating<T>::type;

FN int bits_of(float x) {
  int b;
  __builtin_memcpy(&b, &x, 4);
  return b;
}
FN float float_of(int b) {
  float x;
  __builtin_memcpy(&x, &b, 4);
  return x;
}
// Adding and subtracting 1.5 * 2^23 rounds to an integer, whose low bits are then those of the sum.
constexpr float ROUNDER = 12582912.0f;
constexpr float INFINITE = __builtin_inff();

//@ libm: needs numbers
// Both precisions of a function that the C library computes. It stops vectorisation of the whole
// lambda.
#define FUSEWRIGHT_LIBM(name)                               \
  FN float name(float x) { return __builtin_##name##f(x); } \
  FN double name(double x) { return __builtin_##name(x); }
#define FUSEWRIGHT_LIBM2(name)                                          \
  FN float name(float x, float y) { return __builtin_##name##f(x, y); } \
  FN double name(double x, double y) { return __builtin_##name(x, y); }

//@ fma
// a * b + c, rounded once where the machine has an instruction for that.
#if defined(__FP_FAST_FMAF) || defined(__FMA__) || defined(__aarch64__)
FN float fma(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
FN double fma(double a, double b, double c) { return __builtin_fma(a, b, c); }
#else
FN float fma(float a, float b, float c) { return a * b + c; }
FN double fma(double a, double b, double c) { return a * b + c; }
#endif

//@ where
template <class T> FN T where(bool c, T a, T b) { return c ? a : b; }

//@ masked_fma: needs fma
template <class T> FN T masked_fma(bool exists, T sum, T weight, T x) { return exists ? fma(weight, x, sum) : sum; }

//@ isnan: needs numbers
template <class T> FN bool isnan(T x) { return x != x; }

//@ isinf: needs numbers
FN bool isinf(float x) { return __builtin_fabsf(x) == INFINITE; }
FN bool isinf(double x) { return __builtin_fabs(x) == __builtin_inf(); }

//@ isfinite: needs numbers
FN bool isfinite(float x) { return __builtin_fabsf(x) < INFINITE; }
FN bool isfinite(double x) { return __builtin_fabs(x) < __builtin_inf(); }

//@ infinity
template <class T> FN T infinity() { return T(__builtin_inf()); }

//@ not_a_number
template <class T> FN T not_a_number() { return T(__builtin_nan("")); }

//@ neg
template <class T> FN T neg(T x) { return T(-x); }

//@ abs
FN float abs(float x) { return __builtin_fabsf(x); }
FN double abs(double x) { return __builtin_fabs(x); }
template <class T> FN T abs(T x) { return x < T(0) ? T(-x) : x; }

//@ sign
template <class T> FN T sign(T x) { return T((x > T(0)) - (x < T(0))); }

//@ square
template <class T> FN T square(T x) { return T(x * x); }

//@ reciprocal: needs numbers
template <class T> FN floating<T> reciprocal(T x) { return T(1) / x; }

//@ left_shift
// By less than nothing, or by all of its bits and more, nothing is left, as in PyTorch.
template <class T> FN T left_shift(T x, T by) {
  const bool fits = by >= T(0) && by < T(8 * sizeof(T));
  return fits ? T((unsigned long long)x << (fits ? by : T(0))) : T(0);
}

//@ right_shift
// The same, and what is left is the sign.
template <class T> FN T right_shift(T x, T by) {
  const bool fits = by >= T(0) && by < T(8 * sizeof(T));
  return T(x >> (fits ? by : T(8 * sizeof(T) - 1)) >> T(!fits));
}

//@ relu
template <class T> FN T relu(T x) { return x < T(0) ? T(0) : x; }

//@ maximum
// A NaN wins, as in torch.maximum. Choices between two values, one after the other: a condition of
// two comparisons may become a branch.
template <class T> FN T maximum(T a, T b) {
  const T larger = a > b ? a : b;
  return a != a ? a : larger;
}

//@ minimum
template <class T> FN T minimum(T a, T b) {
  const T smaller = a < b ? a : b;
  return a != a ? a : smaller;
}

//@ fmax
template <class T> FN T fmax(T a, T b) {
  const T larger = a > b ? a : b;
  return b != b ? a : larger;
}

//@ fmin
template <class T> FN T fmin(T a, T b) {
  const T smaller = a < b ? a : b;
  return b != b ? a : smaller;
}

//@ floor: needs libm
FUSEWRIGHT_LIBM(floor)

//@ ceil: needs libm
FUSEWRIGHT_LIBM(ceil)

//@ trunc: needs libm
FUSEWRIGHT_LIBM(trunc)

//@ round: needs numbers
// Half to even, which is the rounding mode every thread starts in.
FN float round(float x) { return __builtin_nearbyintf(x); }
FN double round(double x) { return __builtin_nearbyint(x); }

//@ sqrt: needs libm
FUSEWRIGHT_LIBM(sqrt)

//@ rsqrt: needs numbers
FN float rsqrt(float x) { return 1.0f / __builtin_sqrtf(x); }
FN double rsqrt(double x) { return 1.0 / __builtin_sqrt(x); }

//@ at_most: needs numbers
// The smaller one of a number and a positive limit, by their bits: a minimum of integers is one
// vector instruction, where gcc makes a comparison and a blend of a choice between floats. A NaN
// may become the limit, so who calls this lets it through elsewhere.
FN float at_most(float x, float most) {
  const int b = bits_of(x), limit = bits_of(most);
  return float_of(b < limit ? b : limit);
}

//@ exp_parts: needs at_most, fma
// exp(x) = (1 + tail) * 2^power with |tail| < 0.42; `shifted` is power * 2^23, ready for an
// exponent field.
struct exp_parts {
  float tail;
  int shifted;
};
FN exp_parts parts_of_exp(float x, float sum) {
  const float n = sum - ROUNDER;
  const float r = fma(n, -1.42860677e-6f, fma(n, -0.693145752f, x));
  float p = 1.39415357e-3f;
  p = fma(p, r, 8.36883206e-3f);
  p = fma(p, r, 4.16663922e-2f);
  p = fma(p, r, 0.166665196f);
  p = fma(p, r, 0.5f);
  return {fma(p, r * r, r), bits_of(sum) << 23};
}
FN exp_parts split_exp(float x) { return parts_of_exp(x, fma(x, 1.44269504f, ROUNDER)); }
// The power is at most `most`; what is beyond stays in the tail, up to infinity, and so does a NaN.
FN exp_parts split_large_exp(float x, float most) {
  return parts_of_exp(x, at_most(fma(x, 1.44269504f, ROUNDER), ROUNDER + most));
}
// exp(x) for -105 <= x < 40. 2^power is applied in two steps, since 2^-149 is no normal float.
FN float exp_inside(float x) {
  const exp_parts e = split_exp(x);
  return (e.tail + 1.0f) * float_of(e.shifted + ((127 + 64) << 23)) * 0x1p-64f;
}

//@ exp: needs exp_parts
FN float exp(float x) {
  const exp_parts e = split_large_exp(x, 129.0f);
  // 2^power is applied in two steps, since 2^128 and 2^-149 are no normal floats.
  const int rest = (191 << 23) ^ (bits_of(x) >> 1 & 1 << 30);  // 2^64 or, for x < 0, 2^-64
  const float power = (e.tail + 1.0f) * float_of(e.shifted + (254 << 23) - rest) * float_of(rest);
  // Chosen last, this is a mask of the product; chosen before, it would be one more instruction.
  return x < -105.0f ? 0.0f : power;
}
FN double exp(double x) { return __builtin_exp(x); }

//@ exp2: needs at_most, fma
FN float exp2(float x) {
  const float sum = at_most(x + ROUNDER, ROUNDER + 129.0f);
  const float r = x - (sum - ROUNDER);
  float p = 1.46742578e-5f;
  p = fma(p, r, 1.54518493e-4f);
  p = fma(p, r, 1.33366592e-3f);
  p = fma(p, r, 9.61808767e-3f);
  p = fma(p, r, 5.55040613e-2f);
  p = fma(p, r, 0.240226507f);
  p = fma(p, r, 0.693147182f);
  const int rest = (191 << 23) ^ (bits_of(x) >> 1 & 1 << 30);  // as in `exp`
  const float scale = float_of((bits_of(sum) << 23) + (254 << 23) - rest);
  const float power = fma(p, r, 1.0f) * scale * float_of(rest);
  return x < -151.0f ? 0.0f : power;
}
FN double exp2(double x) { return __builtin_exp2(x); }

//@ expm1: needs exp_parts, fma
FN float expm1(float x) {
  const float c = x < -30.0f ? -30.0f : x;
  const exp_parts e = split_large_exp(c, 128.0f);
  // Half of 2^power is a normal float for every power that is left; doubling may then reach
  // infinity.
  const float scale = float_of(e.shifted + (126 << 23));
  const float y = fma(e.tail, scale, scale - 0.5f) * 2.0f;
  return x == 0.0f ? x : y;
}
FN double expm1(double x) { return __builtin_expm1(x); }

//@ sigmoid: needs exp_parts
FN float sigmoid(float x) {
  const float power = exp_inside(-at_most(__builtin_fabsf(x), 105.0f));
  const float y = (x < 0.0f ? power : 1.0f) / (1.0f + power);
  return x == x ? y : x;
}
FN double sigmoid(double x) { return 1.0 / (1.0 + __builtin_exp(-x)); }

//@ silu: needs exp_parts
// x sigmoid(x) with one division, as PyTorch's; a product is rounded only below 0. Below -87, where
// PyTorch's is 0, the power is subnormal.
FN float silu(float x) {
  const float power = exp_inside(-at_most(__builtin_fabsf(x), 105.0f));
  return (x < 0.0f ? x * power : x) / (1.0f + power);
}
FN double silu(double x) { return x / (1.0 + __builtin_exp(-x)); }

//@ short_sigmoid: needs sigmoid
FN float short_sigmoid(float x) { return sigmoid(x); }

//@ tanh_softplus: needs exp_parts
// tanh(log(1 + e^x)) with one exponential: of (1 + e^x)^2 as an unknown, both are fractions. Beyond
// 20 it is 1.
FN float tanh_softplus(float x) {
  const float inside = exp_inside(x > 20.0f ? 20.0f : x);
  const float e = x < -105.0f ? 0.0f : inside, n = e * (e + 2.0f);
  return n / (n + 2.0f);
}
FN double tanh_softplus(double x) {
  const double e = __builtin_exp(x > 20.0 ? 20.0 : x), n = e * (e + 2.0);
  return n / (n + 2.0);
}

//@ tanh: needs exp_parts, fma
FN float tanh(float x) {
  const float a = __builtin_fabsf(x), s = a * a;
  float p = 2.15763575e-3f;
  p = fma(p, s, -8.19508638e-3f);
  p = fma(p, s, 2.17087492e-2f);
  p = fma(p, s, -5.39484620e-2f);
  p = fma(p, s, 0.133332223f);
  p = fma(p, s, -0.333333313f);
  const float small = fma(p, s * a, a);
  const float c = at_most(a, 10.0f);
  const exp_parts e = split_exp(c + c);
  const float large = 1.0f - 2.0f / fma(e.tail + 1.0f, float_of(e.shifted + (127 << 23)), 1.0f);
  // Asked this way, a NaN takes the polynomial; the other side has clamped it.
  return __builtin_copysignf(a >= 0.625f ? large : small, x);
}
FN double tanh(double x) { return __builtin_tanh(x); }

//@ erf: needs exp_parts, fma
// Below 1, and for a NaN, a polynomial in x^2; above it 1 - exp(g(|x|)), where g is log(erfc) as a
// polynomial.
FN float erf(float x) {
  const float a = __builtin_fabsf(x);
  const float s = a * a;
  float p = 7.96966342e-5f;
  p = fma(p, s, -8.04383948e-4f);
  p = fma(p, s, 5.19194780e-3f);
  p = fma(p, s, -2.68555880e-2f);
  p = fma(p, s, 0.112836242f);
  p = fma(p, s, -0.376126289f);
  p = fma(p, s, 0.128379166f);
  const float small = fma(p, a, a);
  const float c = at_most(a, 4.0f);
  float g = 2.08234142e-5f;
  g = fma(g, c, -4.31344088e-4f);
  g = fma(g, c, 4.15606378e-3f);
  g = fma(g, c, -2.50802320e-2f);
  g = fma(g, c, 0.108219959f);
  g = fma(g, c, 0.633401096f);
  g = fma(g, c, 1.12948835f);
  g = fma(g, c, -1.69205130e-4f);
  const exp_parts e = split_exp(-g);
  const float large = fma(-(e.tail + 1.0f), float_of(e.shifted + (127 << 23)), 1.0f);
  return __builtin_copysignf(a >= 0.93f ? large : small, x);
}
FN double erf(double x) { return __builtin_erf(x); }

//@ log_parts: needs numbers, fma
// x = 2^power * (1 + f) with 1 + f between sqrt(1/2) and sqrt(2), and log(1 + f) = f + bend.
struct log_parts {
  float power;
  float f;
};
FN log_parts split_log(float x) {
  const bool tiny = x < 0x1p-126f;
  const int b = bits_of(tiny ? x * 0x1p23f : x) - 0x3f3504f3;
  const float power = float(b >> 23) - (tiny ? 23.0f : 0.0f);
  return {power, float_of((b & 0x7fffff) + 0x3f3504f3) - 1.0f};
}
FN float log_bend(float f) {
  const float s = f * f;
  float p = 6.91620559e-2f;
  p = fma(p, f, -0.117904089f);
  p = fma(p, f, 0.118729241f);
  p = fma(p, f, -0.123842850f);
  p = fma(p, f, 0.142186701f);
  p = fma(p, f, -0.166692525f);
  p = fma(p, f, 0.200022250f);
  p = fma(p, f, -0.249999866f);
  p = fma(p, f, 0.333333105f);
  return fma(p, s * f, -0.5f * s);
}
// What a logarithm gives outside of (0, inf), with y inside.
FN float log_ends(float x, float y) {
  y = x < INFINITE ? y : x;
  y = x == 0.0f ? -INFINITE : y;
  return x < 0.0f ? __builtin_nanf("") : y;
}

//@ log: needs log_parts, fma
FN float log(float x) {
  const log_parts l = split_log(x);
  const float y = fma(l.power, 0.693145752f, l.f + fma(l.power, 1.42860677e-6f, log_bend(l.f)));
  return log_ends(x, y);
}
FN double log(double x) { return __builtin_log(x); }

//@ log2: needs log_parts, fma
FN float log2(float x) {
  const log_parts l = split_log(x);
  const float rest = fma(log_bend(l.f), 1.44269502f, l.f * 1.92596303e-8f);
  return log_ends(x, l.power + fma(l.f, 1.44269502f, rest));
}
FN double log2(double x) { return __builtin_log2(x); }

//@ log10: needs log_parts, fma
FN float log10(float x) {
  const log_parts l = split_log(x);
  const float rest =
      fma(log_bend(l.f), 0.434294492f, fma(l.power, 4.60503854e-6f, l.f * -1.01030500e-8f));
  return log_ends(x, fma(l.power, 0.301025391f, fma(l.f, 0.434294492f, rest)));
}
FN double log10(double x) { return __builtin_log10(x); }

//@ log1p: needs log_parts, fma
FN float log1p(float x) {
  const float u = 1.0f + x;
  const float back = u - 1.0f;
  const float lost = (1.0f - (u - back)) + (x - back);
  const int b = bits_of(u) - 0x3f3504f3;
  const float power = float(b >> 23);
  // What the sum 1 + x lost is scaled like the rest; beyond 2^100 it does not matter any more.
  const int shifted = b - (b & 0x7fffff);
  const float scale = float_of((127 << 23) - (shifted > 100 << 23 ? 100 << 23 : shifted));
  const float f = fma(lost, scale, float_of((b & 0x7fffff) + 0x3f3504f3) - 1.0f);
  const float y = fma(power, 0.693145752f, f + fma(power, 1.42860677e-6f, log_bend(f)));
  return x == 0.0f ? x : log_ends(u, y);
}
FN double log1p(double x) { return __builtin_log1p(x); }

//@ quarters: needs numbers, fma
// a = quarter * pi/2 + r + rest with |r| <= pi/4, for every float: a times the bits of 2/pi that
// matter, in integers. The rest is what r has lost, so that results are rounded once.
struct quarters {
  float r, rest;
  unsigned quarter;
};
FN quarters split_quarters(float a) {
  const int b = bits_of(a);
  const unsigned mantissa = (b & 0x7fffff) | 0x800000;
  // The window of 2/pi starts where a bit times `a` is 2; earlier ones give whole turns.
  const int start = (b >> 23) - 120, at = start >> 5, shift = start & 31;
  const unsigned two_over_pi[8] = {0u,          0xa2f9836eu, 0x4e441529u, 0xfc2757d1u,
                                   0xf534ddc0u, 0xdb629599u, 0x3c439041u, 0xfe5163abu};
  unsigned word[4];
  for (int k = 0; k < 4; ++k) {
    unsigned w = two_over_pi[k];
    w = at > 0 ? two_over_pi[k + 1] : w;
    w = at > 1 ? two_over_pi[k + 2] : w;
    w = at > 2 ? two_over_pi[k + 3] : w;
    word[k] = at > 3 ? two_over_pi[k + 4] : w;
  }
  const unsigned w0 = word[0] << shift | word[1] >> 1 >> (31 - shift);
  const unsigned w1 = word[1] << shift | word[2] >> 1 >> (31 - shift);
  const unsigned w2 = word[2] << shift | word[3] >> 1 >> (31 - shift);
  const unsigned long low = (unsigned long)mantissa * w1 + ((unsigned long)mantissa * w2 >> 32);
  const unsigned high = mantissa * w0 + unsigned(low >> 32);
  const unsigned quarter = (high + 0x20000000u) >> 30;
  const double part =
      double(int(high - (quarter << 30))) + double(int(unsigned(low) >> 1)) * 0x1p-31;
  const double wide = part * (1.57079632679489662 / 0x1p30);
  const float r = float(wide), rest = float(wide - double(r));
  const bool inside = a < 0.785398185f;
  return {inside ? a : r, inside ? 0.0f : rest, inside ? 0u : quarter};
}
FN float sin_inside(float r, float rest) {
  const float s = r * r;
  float p = 2.83739519e-6f;
  p = fma(p, s, -1.98535054e-4f);
  p = fma(p, s, 8.33338033e-3f);
  p = fma(p, s, -0.166666672f);
  return r + fma(p, s * r, rest);
}
FN float cos_inside(float r, float rest) {
  const float s = r * r;
  float p = -2.89759100e-7f;
  p = fma(p, s, 2.48229771e-5f);
  p = fma(p, s, -1.38889824e-3f);
  p = fma(p, s, 4.16666679e-2f);
  return 1.0f + fma(p, s * s, -fma(r, rest, 0.5f * s));
}

//@ sin: needs quarters
FN float sin(float x) {
  const quarters q = split_quarters(__builtin_fabsf(x));
  const float y = q.quarter & 1 ? cos_inside(q.r, q.rest) : sin_inside(q.r, q.rest);
  const float turned =
      float_of(bits_of(y) ^ int(q.quarter & 2) << 30 ^ (bits_of(x) & int(0x80000000)));
  return __builtin_fabsf(x) < INFINITE ? turned : __builtin_nanf("");
}
FN double sin(double x) { return __builtin_sin(x); }

//@ cos: needs quarters
FN float cos(float x) {
  const quarters q = split_quarters(__builtin_fabsf(x));
  const float y = q.quarter & 1 ? sin_inside(q.r, q.rest) : cos_inside(q.r, q.rest);
  const float turned = float_of(bits_of(y) ^ int((q.quarter + 1) & 2) << 30);
  return __builtin_fabsf(x) < INFINITE ? turned : __builtin_nanf("");
}
FN double cos(double x) { return __builtin_cos(x); }

//@ tan: needs libm
FUSEWRIGHT_LIBM(tan)

//@ asin: needs libm
FUSEWRIGHT_LIBM(asin)

//@ acos: needs libm
FUSEWRIGHT_LIBM(acos)

//@ atan: needs numbers, fma
// atan(c) = c + bend * c^3 for |c| <= 1, of s = c^2.
FN float atan_bend(float s) {
  float p = -1.82473927e-3f;
  p = fma(p, s, 1.10531384e-2f);
  p = fma(p, s, -3.14341411e-2f);
  p = fma(p, s, 5.82123250e-2f);
  p = fma(p, s, -8.41812119e-2f);
  p = fma(p, s, 0.109571025f);
  p = fma(p, s, -0.142651513f);
  p = fma(p, s, 0.199986294f);
  return fma(p, s, -0.333333015f);
}
FN float atan(float x) {
  const float a = __builtin_fabsf(x);
  const float c = a > 1.0f ? 1.0f / a : a;
  const float s = c * c;
  const float y = fma(atan_bend(s), s * c, c);
  return __builtin_copysignf(a > 1.0f ? 1.57079637f - (y + 4.37113883e-8f) : y, x);
}
FN double atan(double x) { return __builtin_atan(x); }

//@ half_exp: needs exp_parts
// A quarter of exp(a) for a > -80, so that half of it is still finite where sinh and cosh are.
FN float quarter_exp(float a) {
  const exp_parts e = split_large_exp(a, 130.0f);
  return (e.tail + 1.0f) * float_of(e.shifted + (125 << 23));
}

//@ sinh: needs half_exp, fma
FN float sinh(float x) {
  const float a = __builtin_fabsf(x), s = a * a, h = quarter_exp(a);
  float p = 9.57708579e-8f;
  p = fma(p, s, 2.58377963e-6f);
  p = fma(p, s, 1.98557274e-4f);
  p = fma(p, s, 8.33328534e-3f);
  p = fma(p, s, 0.166666672f);
  return __builtin_copysignf(a < 1.0f ? fma(p, s * a, a) : (h - 0.0625f / h) * 2.0f, x);
}
FN double sinh(double x) { return __builtin_sinh(x); }

//@ cosh: needs half_exp
FN float cosh(float x) {
  const float h = quarter_exp(__builtin_fabsf(x));
  return (h + 0.0625f / h) * 2.0f;
}
FN double cosh(double x) { return __builtin_cosh(x); }

//@ asinh: needs log1p
FN float asinh(float x) {
  const float a = __builtin_fabsf(x), s = a * a;
  const bool huge = a > 1e18f;
  const float y = log1p(huge ? a : a + s / (1.0f + __builtin_sqrtf(1.0f + s)));
  return __builtin_copysignf(huge ? y + 0.693147182f : y, x);
}
FN double asinh(double x) { return __builtin_asinh(x); }

//@ acosh: needs log1p, fma
FN float acosh(float x) {
  const float t = x - 1.0f;
  const bool huge = x > 1e18f;
  const float y = log1p(huge ? x : t + __builtin_sqrtf(fma(t, t, t + t)));
  return x < 1.0f ? __builtin_nanf("") : huge ? y + 0.693147182f : y;
}
FN double acosh(double x) { return __builtin_acosh(x); }

//@ atanh: needs log1p
FN float atanh(float x) {
  const float a = __builtin_fabsf(x);
  return __builtin_copysignf(0.5f * log1p((a + a) / (1.0f - a)), x);
}
FN double atanh(double x) { return __builtin_atanh(x); }

//@ erfc: needs libm
FUSEWRIGHT_LIBM(erfc)

//@ pow: needs log_parts, fma
// exp2(y * log2(|x|)) in double, which leaves nothing to round but the result; then the signs and
// the ends.
FN double log2_wide(float a) {
  const log_parts l = split_log(a);
  const double s = double(l.f) / (double(l.f) + 2.0), q = s * s;
  double p = 0.34074757943952505;
  p = fma(p, q, 0.4116717419358437);
  p = fma(p, q, 0.5770836019927816);
  p = fma(p, q, 0.961796673247115);
  p = fma(p, q, 2.885390081790171);
  return fma(p, s, double(l.power));
}
FN float exp2_wide(double t) {
  t = t < -200.0 ? -200.0 : t;
  t = t > 200.0 ? 200.0 : t;
  const double sum = t + 6755399441055744.0;
  const double r = t - (sum - 6755399441055744.0);
  double p = 0.0001547801219810843;
  p = fma(p, r, 0.0013400431673475735);
  p = fma(p, r, 0.009617994551980853);
  p = fma(p, r, 0.05550327215746792);
  p = fma(p, r, 0.24022651504700476);
  p = fma(p, r, 0.6931472067096591);
  p = fma(p, r, 0.9999999999191177);
  long bits;
  __builtin_memcpy(&bits, &sum, 8);
  bits = (bits << 52) + (1023L << 52);
  double scale;
  __builtin_memcpy(&scale, &bits, 8);
  return float(p * scale);
}
FN float pow(float x, float y) {
  const float a = __builtin_fabsf(x), half = y * 0.5f;
  const bool whole = __builtin_truncf(y) == y, odd = whole & (__builtin_truncf(half) != half);
  double l = log2_wide(a);
  l = a < INFINITE ? l : double(a);
  l = a == 0.0f ? double(-INFINITE) : l;
  float v = exp2_wide(l * double(y));
  v = (a == 1.0f) & (y == y) ? 1.0f : v;
  v = (x < 0.0f) & (a < INFINITE) & !whole ? __builtin_nanf("") : v;
  v = odd ? __builtin_copysignf(v, x) : v;
  return (y == 0.0f) | (x == 1.0f) ? 1.0f : v;
}
FN double pow(double x, double y) { return __builtin_pow(x, y); }
// Integer powers wrap; a negative exponent gives 0 except for 1 and -1, as in torch.
template <class T> FN T pow(T x, T n) {
  if (n < T(0)) return x == T(1) ? T(1) : x == T(-1) ? (n % T(2) ? T(-1) : T(1)) : T(0);
  T y = T(1);
  for (; n; n = T(n >> 1), x = T(x * x)) y = n & 1 ? T(y * x) : y;
  return y;
}

//@ atan2: needs atan
// The angle within an eighth of a turn, of a quotient with what rounding it has lost, and then the
// eighth. 0 / 0 counts as 0, and inf / inf as 1.
FN float atan2(float y, float x) {
  const float a = __builtin_fabsf(y), b = __builtin_fabsf(x);
  const bool steep = a > b, back = bits_of(x) < 0;
  const float n = steep ? b : a, d = steep ? a : b;
  float c = n / d;
  c = d == 0.0f ? 0.0f : c;
  c = n == INFINITE ? 1.0f : c;
  float lost = fma(-c, d, n) / d;
  lost = __builtin_fabsf(lost) < 1.0f ? lost : 0.0f;
  const float s = c * c;
  // A lost part moves the angle by its share 1 / (1 + s), for which 1 - s / 2 is near enough.
  const float t = c + fma(atan_bend(s), s * c, fma(-0.5f * s, lost, lost));
  const float more = back ? t - 4.37113883e-8f : -(t + 4.37113883e-8f), upright = 1.57079637f + more;
  const float lying = back ? 3.14159274f - (t + 8.74227766e-8f) : t;
  const float angle = __builtin_copysignf(steep ? upright : lying, y);
  return (x != x) | (y != y) ? __builtin_nanf("") : angle;
}
FN double atan2(double y, double x) { return __builtin_atan2(y, x); }

//@ hypot: needs libm
FUSEWRIGHT_LIBM2(hypot)

//@ copysign: needs libm
FUSEWRIGHT_LIBM2(copysign)

//@ fmod: needs libm
FUSEWRIGHT_LIBM2(fmod)
// An integer division by 0 would kill the process and the smallest number by -1 too; both give 0.
template <class T> FN T fmod(T x, T y) { return (y == T(0)) | (y == T(-1)) ? T(0) : T(x % y); }

//@ remainder: needs fmod
// Python's: the result has the sign of the divisor.
template <class T> FN T remainder(T x, T y) {
  const T r = fmod(x, y);
  return (r != T(0)) & ((r < T(0)) != (y < T(0))) ? T(r + y) : r;
}

//@
}  // namespace fusewright
