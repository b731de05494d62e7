// Scalar functions for generated CUDA kernels: torch's names and torch's meaning.
//
// The surprising fact: CUDA's fmaxf and fminf drop a NaN, while torch.maximum, relu and the reductions must keep
// it. `max.NaN.f32` does that in one instruction, so `maximum` is not `fmax`.
// Do not compile with -use_fast_math: its exp, log, tanh and division are further from float64 than PyTorch's.
// Compile with -fmad=false: a value that a model computes once has one value here, wherever it is computed again, so only
// what says `fma` rounds once.
//
// Text outside `//@ name` sections only serves a compilation of this file alone.
#pragma once

//@ begin
// The kernels are the structs at the end; a function behind each starts it. Their bodies ask a `team` for loops, reductions and
// vectors. What a team and its operands are, and how kernels are started, comes before.
#pragma nv_diag_suppress 177  // not every launch asks a kernel for its size
#define FN __device__ __forceinline__
namespace fusewright {

//@ fma
// a * b + c, rounded once.
FN float fma(float a, float b, float c) { return ::fmaf(a, b, c); }
FN double fma(double a, double b, double c) { return ::fma(a, b, c); }

//@ where
template <class T> FN T where(bool c, T a, T b) { return c ? a : b; }

//@ masked_fma: needs fma
template <class T> FN T masked_fma(bool exists, T sum, T weight, T x) { return exists ? fma(weight, x, sum) : sum; }

//@ infinity
template <class T> FN T infinity() { return T(__longlong_as_double(0x7ff0000000000000LL)); }

//@ not_a_number
template <class T> FN T not_a_number() { return T(__longlong_as_double(0x7ff8000000000000LL)); }

//@ isnan
template <class T> FN bool isnan(T x) { return x != x; }

//@ isfinite
// The difference is 0, or NaN for infinities and NaN.
template <class T> FN bool isfinite(T x) { return x - x == T(0); }

//@ isinf: needs isnan, isfinite
template <class T> FN bool isinf(T x) { return !isfinite(x) && !isnan(x); }

//@ neg
template <class T> FN T neg(T x) { return T(-x); }

//@ abs
FN float abs(float x) { return ::fabsf(x); }
FN double abs(double x) { return ::fabs(x); }
template <class T> FN T abs(T x) { return x < T(0) ? T(-x) : x; }

//@ sign
template <class T> FN T sign(T x) { return T((x > T(0)) - (x < T(0))); }

//@ square
template <class T> FN T square(T x) { return T(x * x); }

//@ reciprocal
template <class T> FN T reciprocal(T x) { return T(1) / x; }

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
#ifdef __CUDA_ARCH__
// One instruction for two; -0 becomes 0, as in PyTorch's on a GPU.
FN float relu(float x) {
  asm("max.NaN.f32 %0, %0, 0f00000000;" : "+f"(x));
  return x;
}
FN double relu(double x) { return x > 0. || x != x ? x : 0.; }
#endif

//@ maximum
// A NaN wins, as in torch.maximum.
FN float maximum(float a, float b) {
  float c;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(c) : "f"(a), "f"(b));
  return c;
}
// Of both zeros the positive one, as the instruction for float has it.
FN double maximum(double a, double b) { return a != a || b != b ? a + b : ::fmax(a, b); }
template <class T> FN T maximum(T a, T b) { return a > b || a != a ? a : b; }

//@ minimum
FN float minimum(float a, float b) {
  float c;
  asm("min.NaN.f32 %0, %1, %2;" : "=f"(c) : "f"(a), "f"(b));
  return c;
}
// Of both zeros the negative one.
FN double minimum(double a, double b) { return a != a || b != b ? a + b : ::fmin(a, b); }
template <class T> FN T minimum(T a, T b) { return a < b || a != a ? a : b; }

//@ fmax
// A number wins over a NaN, and of both zeros the positive one.
FN float fmax(float a, float b) { return ::fmaxf(a, b); }
FN double fmax(double a, double b) { return ::fmax(a, b); }
template <class T> FN T fmax(T a, T b) { return a > b || b != b ? a : b; }

//@ fmin
FN float fmin(float a, float b) { return ::fminf(a, b); }
FN double fmin(double a, double b) { return ::fmin(a, b); }
template <class T> FN T fmin(T a, T b) { return a < b || b != b ? a : b; }

//@ floor
FN float floor(float x) { return ::floorf(x); }
FN double floor(double x) { return ::floor(x); }

//@ ceil
FN float ceil(float x) { return ::ceilf(x); }
FN double ceil(double x) { return ::ceil(x); }

//@ trunc
FN float trunc(float x) { return ::truncf(x); }
FN double trunc(double x) { return ::trunc(x); }

//@ round
// Half to even.
FN float round(float x) { return ::rintf(x); }
FN double round(double x) { return ::rint(x); }

//@ sqrt
FN float sqrt(float x) { return ::sqrtf(x); }
FN double sqrt(double x) { return ::sqrt(x); }

//@ rsqrt
// The machine's is off by up to two units, which all elements that a norm scales would share. One step of Newton's, with what
// x * y * y lacks of 1 kept to the bit, leaves little more than a rounding; of 0, infinities and NaN it changes nothing.
FN float rsqrt(float x) {
  const float y = ::rsqrtf(x), z = x * y, lost = ::fmaf(x, y, -z);
  const float lacks = ::fmaf(-lost, y, ::fmaf(-z, y, 1.f));
  return ::fabsf(lacks) < 1.f ? ::fmaf(0.5f * y, lacks, y) : y;
}
FN double rsqrt(double x) { return ::rsqrt(x); }

//@ exp
FN float exp(float x) { return ::expf(x); }
FN double exp(double x) { return ::exp(x); }

//@ exp2
FN float exp2(float x) { return ::exp2f(x); }
FN double exp2(double x) { return ::exp2(x); }

//@ expm1
FN float expm1(float x) { return ::expm1f(x); }
FN double expm1(double x) { return ::expm1(x); }

//@ short_reciprocal
// The exact one takes a dozen instructions and a branch; this one is off by one ulp at most. What would be subnormal is 0.
FN float short_reciprocal(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

//@ reciprocal_of_sum: needs short_reciprocal
// The reciprocal of a number from 2^-126 on, with one step of Newton's: what all elements of a narrow range share of the short
// one's error would add up in sums. Of infinity it is 0, to which no step leads.
FN float reciprocal_of_sum(float x) {
  const float y = short_reciprocal(x);
  return y > 0.f ? fmaf(fmaf(-x, y, 1.f), y, y) : y;
}

//@ short_power
// 2^x, off by two ulps at most. What would be subnormal is 0.
FN float short_power(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

//@ sigmoid: needs exp, short_power, reciprocal_of_sum
// A quarter of 1 + e^-x, so that no result is subnormal too early. The power of two that expf multiplies with at its end is
// an operand of the addition instead: e^-x = 2^rest * 2^n, and 2^(n - 2) is put together from the bits of n.
FN float sigmoid(float x) {
  const float place = __fmaf_rd(__saturatef(fmaf(x, -1.44269504f / 252, 124.f / 252)), 252.f, 12582913.f);
  const float n = place - (12582913.f + 124.f), quarter = __uint_as_float(__float_as_uint(place) << 23);
  const float rest = fmaf(x, -1.925963033e-8f, fmaf(x, -1.44269502f, -n));
  return reciprocal_of_sum(fmaf(short_power(rest), quarter, 0.25f)) * 0.25f;
}
FN double sigmoid(double x) { return 1.0 / (1.0 + exp(-x)); }

//@ silu: needs sigmoid
FN float silu(float x) { return x * sigmoid(x); }
FN double silu(double x) { return x / (1.0 + exp(-x)); }

//@ short_sigmoid: needs short_power, short_reciprocal
// For results of 16 bits: e^-x without what rounding -x / ln 2 leaves, off by |x| ulps at most. A quarter as above.
FN float short_sigmoid(float x) {
  return short_reciprocal(short_power(fmaf(x, -1.44269504f, -2.f)) + 0.25f) * 0.25f;
}

//@ tanh_softplus: needs exp, maximum, minimum, short_power, reciprocal_of_sum
// tanh(log(1 + e^x)) with one exponential: of (1 + e^x)^2 as an unknown, both are fractions. Beyond 20 it is 1. Where h is
// x / ln 2 as rounded, e^x is 2^h * e^rest, and the rest so small that e^rest is 1 + rest. Above 1/2, what is left to 1 is the
// smaller part, with the smaller error.
FN float tanh_softplus(float x) {
  const float near = maximum(minimum(x, 20.f), -104.f), h = near * 1.44269504f;
  const float rest = fmaf(h, 1.90465421e-9f, fmaf(h, -0.693147182f, near));
  const float power = short_power(h), e = fmaf(power, rest, power), n = fmaf(e, e, e + e);
  const float share = reciprocal_of_sum(n + 2.f);
  return n > 2.f ? fmaf(-2.f, share, 1.f) : n * share;
}
FN double tanh_softplus(double x) {
  const double e = exp(x > 20. ? 20. : x), n = e * (e + 2.);
  return n / (n + 2.);
}

//@ tanh
// Below 0.55 CUDA's tanhf has a term less: it is up to two units off there, and too small on average, which a sum shows.
// The coefficients have the least largest relative error (Lawson's iteration).
FN float tanh(float x) {
  const float a = fabsf(x), s = a * a;
  float p = -0.00627423776f;
  p = fmaf(p, s, 0.021071678f);
  p = fmaf(p, s, -0.0538523085f);
  p = fmaf(p, s, 0.13332586f);
  p = fmaf(p, s, -0.333333164f);
  return a < 0.55f ? copysignf(fmaf(p * s, a, a), x) : ::tanhf(x);
}
FN double tanh(double x) { return ::tanh(x); }

//@ erf
FN float erf(float x) { return ::erff(x); }
FN double erf(double x) { return ::erf(x); }

//@ erfc
FN float erfc(float x) { return ::erfcf(x); }
FN double erfc(double x) { return ::erfc(x); }

//@ log
FN float log(float x) { return ::logf(x); }
FN double log(double x) { return ::log(x); }

//@ log2
FN float log2(float x) { return ::log2f(x); }
FN double log2(double x) { return ::log2(x); }

//@ log10
FN float log10(float x) { return ::log10f(x); }
FN double log10(double x) { return ::log10(x); }

//@ log1p
FN float log1p(float x) { return ::log1pf(x); }
FN double log1p(double x) { return ::log1p(x); }

//@ sin
FN float sin(float x) { return ::sinf(x); }
FN double sin(double x) { return ::sin(x); }

//@ cos
FN float cos(float x) { return ::cosf(x); }
FN double cos(double x) { return ::cos(x); }

//@ tan
FN float tan(float x) { return ::tanf(x); }
FN double tan(double x) { return ::tan(x); }

//@ asin
FN float asin(float x) { return ::asinf(x); }
FN double asin(double x) { return ::asin(x); }

//@ acos
FN float acos(float x) { return ::acosf(x); }
FN double acos(double x) { return ::acos(x); }

//@ atan
FN float atan(float x) { return ::atanf(x); }
FN double atan(double x) { return ::atan(x); }

//@ sinh
FN float sinh(float x) { return ::sinhf(x); }
FN double sinh(double x) { return ::sinh(x); }

//@ cosh
FN float cosh(float x) { return ::coshf(x); }
FN double cosh(double x) { return ::cosh(x); }

//@ asinh
FN float asinh(float x) { return ::asinhf(x); }
FN double asinh(double x) { return ::asinh(x); }

//@ acosh
FN float acosh(float x) { return ::acoshf(x); }
FN double acosh(double x) { return ::acosh(x); }

//@ atanh
FN float atanh(float x) { return ::atanhf(x); }
FN double atanh(double x) { return ::atanh(x); }

//@ pow
FN float pow(float x, float y) { return ::powf(x, y); }
FN double pow(double x, double y) { return ::pow(x, y); }
// Integer powers wrap; a negative exponent gives 0 except for 1 and -1, as in torch.
template <class T> FN T pow(T x, T n) {
  if (n < T(0)) return x == T(1) ? T(1) : x == T(-1) ? (n % T(2) ? T(-1) : T(1)) : T(0);
  T y = T(1);
  for (; n; n = T(n >> 1), x = T(x * x)) y = n & 1 ? T(y * x) : y;
  return y;
}

//@ atan2
FN float atan2(float y, float x) { return ::atan2f(y, x); }
FN double atan2(double y, double x) { return ::atan2(y, x); }

//@ hypot
FN float hypot(float x, float y) { return ::hypotf(x, y); }
FN double hypot(double x, double y) { return ::hypot(x, y); }

//@ copysign
FN float copysign(float x, float y) { return ::copysignf(x, y); }
FN double copysign(double x, double y) { return ::copysign(x, y); }

//@ fmod
FN float fmod(float x, float y) { return ::fmodf(x, y); }
FN double fmod(double x, double y) { return ::fmod(x, y); }
template <class T> FN T fmod(T x, T y) { return T(x % y); }

//@ remainder: needs fmod
// Python's: the result has the sign of the divisor.
template <class T> FN T remainder(T x, T y) {
  const T r = fmod(x, y);
  return r != T(0) && (r < T(0)) != (y < T(0)) ? T(r + y) : r;
}

//@
}  // namespace fusewright
