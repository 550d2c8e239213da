// Elementary functions without branches or calls, for loops that the compiler vectorizes. They are accurate to about
// one unit in the last place in float32 and float64. Compiled once for every instruction set.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>

#include "variants.h"

namespace kullback {
namespace KULLBACK_ISA {

template <class Real>
constexpr Real kInf = std::numeric_limits<Real>::infinity();

template <class Real>
constexpr bool kIsDouble = std::is_same_v<Real, double>;

template <class To, class From>
KULLBACK_INLINE To bits_as(From x) {
  static_assert(sizeof(To) == sizeof(From));
  To result;
  std::memcpy(&result, &x, sizeof result);
  return result;
}

// Horner's rule, with coefficients in the order of increasing powers.
template <class Real, int n>
KULLBACK_INLINE Real polynomial(const Real (&coefficients)[n], Real x) {
  Real total = coefficients[n - 1];
#pragma GCC unroll 32
  for (int i = n - 2; i >= 0; --i) total = total * x + coefficients[i];
  return total;
}

// Like `polynomial`, for an odd number of coefficients. Taking them in pairs halves the number of dependent operations.
template <class Real, int n>
KULLBACK_INLINE Real polynomial_in_pairs(const Real (&coefficients)[n], Real x) {
  static_assert(n % 2 == 1);
  const Real square = x * x;
  Real total = coefficients[n - 1];
#pragma GCC unroll 16
  for (int i = n - 3; i >= 0; i -= 2) total = total * square + (coefficients[i] + coefficients[i + 1] * x);
  return total;
}

// Constants of a format. log 2 = log2_high + log2_low, where log2_high has so few digits that its multiples are exact.
template <class Real>
struct Format;

template <>
struct Format<float> {
  using Bits = uint32_t;
  static constexpr int digits = 23, bias = 127;
  static constexpr float rounder = 12582912.0f;  // 1.5 * 2^23: adding it rounds a number to an integer
  static constexpr float log2_high = 0.693359375f, log2_low = -2.12194440e-4f;
  static constexpr float least_exp = -87.0f;  // below this, e^x is subnormal
};

template <>
struct Format<double> {
  using Bits = uint64_t;
  static constexpr int digits = 52, bias = 1023;
  static constexpr double rounder = 6755399441055744.0;  // 1.5 * 2^52
  static constexpr double log2_high = 6.93147180369123816490e-01, log2_low = 1.90821492927058770002e-10;
  static constexpr double least_exp = -708.0;
};

// e^x - 1 - x for |x| < 0.7, as x^2 times a Chebyshev fit of the series 1 / 2 + x / 6 + x^2 / 24 + ...
KULLBACK_INLINE float expm1_minus_x(float x) {
  constexpr float series[] = {0.500000000575f,   0.166666701773f,    0.0416666489116f, 0.0083327553582f,
                              0.00138894721227f, 0.000200780475315f, 2.48799707078e-5f};
  return polynomial_in_pairs(series, x) * (x * x);
}

KULLBACK_INLINE double expm1_minus_x(double x) {
  constexpr double series[] = {0.5,
                               0.16666666666666663368,
                               0.041666666666666714719,
                               0.008333333333335231019,
                               0.0013888888888878108995,
                               0.00019841269838155937419,
                               0.000024801587310083004972,
                               2.7557321410967474481e-6,
                               2.7557316473985170921e-7,
                               2.5051362524524332483e-8,
                               2.0877038729736493164e-9,
                               1.6180995946545754434e-10,
                               1.1496019419747299621e-11};
  return polynomial_in_pairs(series, x) * (x * x);
}

// Like `expm1_minus_x`, for |x| < 0.35 and with fewer terms.
KULLBACK_INLINE float small_expm1_minus_x(float x) {
  constexpr float series[] = {0.500000006566f, 0.166665380717f, 0.0416662667544f, 0.00836723928958f, 0.0013947582254f};
  return polynomial_in_pairs(series, x) * (x * x);
}

KULLBACK_INLINE double small_expm1_minus_x(double x) {
  constexpr double series[] = {0.5,
                               0.1666666666666667104,
                               0.04166666666666666979,
                               0.0083333333333260697564,
                               0.0013888888888883701623,
                               0.00019841269875048905233,
                               0.000024801587325710758321,
                               2.7557255110978889315e-6,
                               2.755727343657048581e-7,
                               2.5105337244665210221e-8,
                               2.091477283224808965e-9};
  return polynomial_in_pairs(series, x) * (x * x);
}

// e^x = 2^n e^r with |r| < 0.347. The low bits of `rounded` are n.
template <class Real>
struct ReducedExponent {
  Real n, r, rounded;
};

template <class Real>
KULLBACK_INLINE ReducedExponent<Real> reduce_exponent(Real x) {
  using F = Format<Real>;
  const Real rounded = x * static_cast<Real>(1.4426950408889634) + F::rounder, n = rounded - F::rounder;
  return {n, (x - n * F::log2_high) - n * F::log2_low, rounded};
}

// e^x for x <= 0. For x below least_exp the result is 0, because intermediate results may be NaN there.
template <class Real>
KULLBACK_INLINE Real exp_of_negative(Real x) {
  using Bits = typename Format<Real>::Bits;
  const bool is_tiny = x < Format<Real>::least_exp;
  const ReducedExponent<Real> e = reduce_exponent(x);
  const Real mantissa = small_expm1_minus_x(e.r) + e.r + Real(1);
  const Bits power = bits_as<Bits>(e.rounded) << Format<Real>::digits;
  return is_tiny ? Real(0) : bits_as<Real>(bits_as<Bits>(mantissa) + power);
}

// mantissa * 2^n, in two factors, because the result may be subnormal and 2^n may overflow.
template <class Real>
KULLBACK_INLINE Real scale_by_power(Real mantissa, const ReducedExponent<Real>& e) {
  using F = Format<Real>;
  using Bits = typename F::Bits;
  constexpr Bits even = 4 * (F::bias + 1);  // an offset that keeps n positive, so that it can be halved
  const Bits n = bits_as<Bits>(e.rounded) - bits_as<Bits>(F::rounder) + even, half = n >> 1;
  return mantissa * bits_as<Real>((half - even / 2 + F::bias) << F::digits) *
         bits_as<Real>((n - half - even / 2 + F::bias) << F::digits);
}

// e^x for any x.
template <class Real>
KULLBACK_INLINE Real exp_of(Real x) {
  constexpr Real least = kIsDouble<Real> ? Real(-746) : Real(-104), most = kIsDouble<Real> ? Real(710) : Real(89);
  Real clamped = x < least ? least : x;
  clamped = clamped > most ? most : clamped;
  const ReducedExponent<Real> e = reduce_exponent(clamped);
  return scale_by_power(small_expm1_minus_x(e.r) + e.r + Real(1), e);
}

// The numbers e^x, e^x - 1 and e^x - 1 - x for |x| < 700, each to full precision.
struct Exponential {
  double value, expm1, expm1_minus_x;
};

KULLBACK_INLINE Exponential exponential_of(double x) {
  const ReducedExponent<double> e = reduce_exponent(x);
  const double near = small_expm1_minus_x(e.r);
  const uint64_t power = (bits_as<uint64_t>(e.rounded) - bits_as<uint64_t>(Format<double>::rounder) + 1023) << 52;
  const double value = (near + e.r + 1.0) * bits_as<double>(power);
  const double expm1 = e.n == 0 ? near + e.r : value - 1.0;
  return {value, expm1, e.n == 0 ? near : expm1 - x};
}

// log(a / b) = k log 2 + 2 s + rest, where 2 s + rest = log(a / (2^k b)), a / (2^k b) = (1 + s) / (1 - s), |s| < 0.21.
struct LogQuotient {
  double powers, s, rest;

  double value() const {
    return (rest + powers * Format<double>::log2_low) + 2.0 * s + powers * Format<double>::log2_high;
  }

  // Returns z - log(1 + z) >= 0, if this object is the logarithm of 1 + z. For small z, 2 s = z - z s.
  double x_minus_log1p(double z) const {
    const double far = (z - 2.0 * s) - powers * Format<double>::log2_high;
    return (powers == 0 ? z * s : far) - (rest + powers * Format<double>::log2_low);
  }
};

// b times the power of two 2^powers that brings it close to a.
struct Scaled {
  double powers, value;
};

KULLBACK_INLINE Scaled scale_to(double a, double b) {
  // The bits of a number are nearly linear in its logarithm. Adding half a unit of the exponent rounds to nearest.
  const uint64_t bits = bits_as<uint64_t>(a) - bits_as<uint64_t>(b) + 0x3ff8000000000000u;
  const double powers = bits_as<double>((bits >> 52) | 0x4330000000000000u) - (4503599627370496.0 + 1023.0);
  return {powers, b * bits_as<double>(bits & 0x7ff0000000000000u)};
}

KULLBACK_INLINE LogQuotient log_quotient(double powers, double s) {
  const double z = s * s;
  // 2 / 3 + 2 z / 5 + 2 z^2 / 7 + ..., economized.
  constexpr double series[] = {0.66666666666666664208, 0.40000000000007856502, 0.28571428567313979073,
                               0.22222223042012851077, 0.18181738124060123135, 0.15388847910642214483,
                               0.13210099752658398458, 0.13606021764231465324};
  return {powers, s, s * z * polynomial(series, z)};
}

// log(a / b) for normal a, b > 0 with a normal quotient. `difference` is a - b, known more accurately than from a and
// b.
KULLBACK_INLINE LogQuotient log_quotient(double a, double b, double difference) {
  const Scaled c = scale_to(a, b);
  return log_quotient(c.powers, (c.powers == 0 ? difference : a - c.value) / (a + c.value));
}

// log(a / b) for normal a, b > 0 with a normal quotient.
KULLBACK_INLINE double log_of_quotient(double a, double b) {
  const Scaled c = scale_to(a, b);
  return log_quotient(c.powers, (a - c.value) / (a + c.value)).value();
}

// log(1 + z) for z > -1.
KULLBACK_INLINE LogQuotient log1p_of(double z) { return log_quotient(1.0 + z, 1.0, z); }

// log(1 + z) for |z| < 0.42, in float64 and in float32.
KULLBACK_INLINE double small_log1p(double z) { return log1p_of(z).value(); }

KULLBACK_INLINE float small_log1p(float z) {  // by log((1 + s) / (1 - s)) with s = z / (2 + z)
  const float s = z / (2 + z), square = s * s;
  constexpr float series[] = {1.0f / 3, 1.0f / 5, 1.0f / 7, 1.0f / 9, 1.0f / 11};
  return 2 * s + 2 * s * square * polynomial(series, square);
}

// log x for normal x > 0.
KULLBACK_INLINE double log_of(double x) { return log_of_quotient(x, 1.0); }

KULLBACK_INLINE float log_of(float x) {
  int32_t bits = bits_as<int32_t>(x);
  const int32_t exponent = (bits - 0x3f3504f3) >> 23;  // so that the mantissa is in [sqrt(1/2), sqrt(2))
  bits -= exponent << 23;
  const float f = bits_as<float>(bits) - 1.0f, z = f * f, e = static_cast<float>(exponent);
  constexpr float series[] = {3.3333331e-1f,  -2.4999994e-1f, 2.0000714e-1f,  -1.6668057e-1f, 1.4249323e-1f,
                              -1.2420141e-1f, 1.1676998e-1f,  -1.1514610e-1f, 7.0376836e-2f};
  return (f + (polynomial(series, f) * f * z - 0.5f * z + Format<float>::log2_low * e)) + Format<float>::log2_high * e;
}

KULLBACK_INLINE float log_of_quotient(float a, float b) { return log_of(a / b); }

}  // namespace KULLBACK_ISA
}  // namespace kullback
