// Elementary functions without branches or calls, for loops that the compiler vectorizes; float32 and float64.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

namespace kullback {
namespace KULLBACK_ISA {

#define KULLBACK_INLINE static inline __attribute__((always_inline))

template <class Real>
constexpr Real kInf = std::numeric_limits<Real>::infinity();

template <class To, class From>
KULLBACK_INLINE To bits_of(From x) {
  static_assert(sizeof(To) == sizeof(From));
  To result;
  std::memcpy(&result, &x, sizeof result);
  return result;
}

template <class Real>
constexpr bool kIsWide = sizeof(Real) == sizeof(double);

// The sum of (-x)^(n - from) / n! over n = from ... to.
template <int from, int to, class Real>
KULLBACK_INLINE Real alternating_exp_series(Real x) {
  constexpr Real coefficient = [] {
    double factorial = 1;
    for (int i = 2; i <= from; ++i) factorial *= i;
    return static_cast<Real>(1 / factorial);
  }();
  if constexpr (from == to) {
    return coefficient;
  } else {
    return coefficient - x * alternating_exp_series<from + 1, to>(x);
  }
}

// 1/from + z/(from + 2) + z^2/(from + 4) + ... + z^k/to.
template <int from, int to, class Real>
KULLBACK_INLINE Real odd_reciprocals(Real z) {
  if constexpr (from == to) {
    return Real(1) / from;
  } else {
    return Real(1) / from + z * odd_reciprocals<from + 2, to>(z);
  }
}

// e^x for x <= 0, to about one unit in the last place; 0 below the smallest normal number.
KULLBACK_INLINE float exp_of_negative(float x) {
  const float clamped = x < -87.0f ? -87.0f : x;
  const float shifted = clamped * 1.44269504f + 12582912.0f;  // 1.5 * 2^23 rounds to the nearest integer
  const float n = shifted - 12582912.0f;
  const float r = (clamped - n * 0.693359375f) + n * 2.12194440e-4f;
  float s = 1.9875691e-4f;
  s = s * r + 1.3981999e-3f;
  s = s * r + 8.3334519e-3f;
  s = s * r + 4.1665796e-2f;
  s = s * r + 1.6666665e-1f;
  s = s * r + 5.0000000e-1f;
  s = (s * r) * r + r + 1.0f;
  const int32_t exponent = bits_of<int32_t>(shifted) << 23;  // the low bits of `shifted` are n: times 2^n
  return x < -87.0f ? 0.0f : bits_of<float>(bits_of<int32_t>(s) + exponent);
}

KULLBACK_INLINE double exp_of_negative(double x) {
  const double clamped = x < -708.0 ? -708.0 : x;
  const double shifted = clamped * 1.4426950408889634 + 6755399441055744.0;  // 1.5 * 2^52
  const double n = shifted - 6755399441055744.0;
  const double r = (clamped - n * 6.93147180369123816490e-01) - n * 1.90821492927058770002e-10;
  const double s = (alternating_exp_series<2, 14>(-r) * r) * r + r + 1.0;
  const uint64_t exponent = bits_of<uint64_t>(shifted) << 52;
  return x < -708.0 ? 0.0 : bits_of<double>(bits_of<uint64_t>(s) + exponent);
}

// log x for normal x > 0, to about one unit in the last place.
KULLBACK_INLINE float log_of(float x) {
  int32_t bits = bits_of<int32_t>(x);
  const int32_t exponent = (bits - 0x3f3504f3) >> 23;  // so that the mantissa lies in [sqrt(1/2), sqrt(2))
  bits -= exponent << 23;
  const float f = bits_of<float>(bits) - 1.0f;
  float s = 7.0376836e-2f;
  s = s * f - 1.1514610e-1f;
  s = s * f + 1.1676998e-1f;
  s = s * f - 1.2420141e-1f;
  s = s * f + 1.4249323e-1f;
  s = s * f - 1.6668057e-1f;
  s = s * f + 2.0000714e-1f;
  s = s * f - 2.4999994e-1f;
  s = s * f + 3.3333331e-1f;
  const float z = f * f;
  const float e = static_cast<float>(exponent);
  return (f + (s * f * z - 0.5f * z - 2.12194440e-4f * e)) + 0.693359375f * e;
}

// log(1 + y) for |y| < 0.42, by log((1 + s) / (1 - s)) with s = y / (2 + y).
template <class Real>
KULLBACK_INLINE Real log1p_near(Real y) {
  const Real s = y / (2 + y);
  const Real z = s * s;
  return 2 * s + 2 * s * z * odd_reciprocals<3, kIsWide<Real> ? 29 : 11>(z);
}

KULLBACK_INLINE double log_of(double x) {
  // The exponent, plus 1023: AVX2 neither shifts 64-bit integers with their sign nor converts them.
  const uint64_t biased = (bits_of<uint64_t>(x) + 0x00095f619980c433u) >> 52;
  const double e = bits_of<double>(biased | 0x4330000000000000u) - (4503599627370496.0 + 1023.0);
  const double mantissa = bits_of<double>(bits_of<uint64_t>(x) - ((biased - 1023u) << 52));
  return e * 6.93147180369123816490e-01 + (log1p_near(mantissa - 1.0) + e * 1.90821492927058770002e-10);
}

// e^-x - 1 for |x| < 0.3.
template <class Real>
KULLBACK_INLINE Real expm1_of_minus(Real x) {
  return alternating_exp_series<2, kIsWide<Real> ? 14 : 7>(x) * x * x - x;
}

// e^-x - 1 + x for |x| < 0.7.
template <class Real>
KULLBACK_INLINE Real bracket(Real x) {
  return alternating_exp_series<2, kIsWide<Real> ? 18 : 10>(x) * x * x;
}

// log(1 + a) for 0 <= a <= 1. Chebyshev fit of log(1 + a) / a.
KULLBACK_INLINE float log1p_of_fraction(float a) {
  float s = -0.00317605701f;
  s = s * a + 0.0195425265f;
  s = s * a - 0.0563736111f;
  s = s * a + 0.105436236f;
  s = s * a - 0.152696669f;
  s = s * a + 0.196632743f;
  s = s * a - 0.249516159f;
  s = s * a + 0.333297104f;
  s = s * a - 0.499998927f;
  return s * a * a + a;
}

// tanh(x / 2) for 0 <= x <= 1. Chebyshev fit of tanh(x / 2) / x in x^2.
KULLBACK_INLINE float tanh_of_half(float x) {
  const float z = x * x;
  float s = 3.33017306e-05f;
  s = s * z - 0.000413659232f;
  s = s * z + 0.0041638324f;
  s = s * z - 0.0416663103f;
  return x * z * s + 0.5f * x;
}

// ((1 + a) log(1 + a) + (1 - a) log(1 - a)) / 2 for |a| < 0.47, of z = a^2. Chebyshev fit of its quotient by z.
KULLBACK_INLINE float binary_information(float z) {
  float s = 0.0128303207f;
  s = s * z + 0.00964485575f;
  s = s * z + 0.018035451f;
  s = s * z + 0.0333237574f;
  s = s * z + 0.0833335221f;
  return (s * z + 0.5f) * z;
}

}  // namespace KULLBACK_ISA
}  // namespace kullback
