// exp and the logarithm of a quotient, as plain arithmetic that the compiler vectorizes; numbers of 16
// bits to and from float32. Included once for every instruction set, like row_kernel.h.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

namespace kullback {
namespace KULLBACK_ISA {

#define KULLBACK_TERM_INLINE static inline __attribute__((always_inline))

template <typename To, typename From>
KULLBACK_TERM_INLINE To bits_as(From x) {
  static_assert(sizeof(To) == sizeof(From));
  To result;
  std::memcpy(&result, &x, sizeof result);
  return result;
}

// e^x to about one unit in the last place. The power of two is multiplied in two halves, for results that are subnormal.
KULLBACK_TERM_INLINE float exp_of(float x) {
  float clamped = x < -104.0f ? -104.0f : x;
  clamped = clamped > 89.0f ? 89.0f : clamped;
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
  const uint32_t power = bits_as<uint32_t>(shifted) - 0x4b400000u + 1024;
  const uint32_t half = power >> 1;
  return s * bits_as<float>((half - 512 + 127) << 23) * bits_as<float>((power - half - 512 + 127) << 23);
}

KULLBACK_TERM_INLINE double exp_of(double x) {
  double clamped = x < -746.0 ? -746.0 : x;
  clamped = clamped > 710.0 ? 710.0 : clamped;
  const double shifted = clamped * 1.4426950408889634 + 6755399441055744.0;
  const double n = shifted - 6755399441055744.0;
  const double r = (clamped - n * 6.93147180369123816490e-01) - n * 1.90821492927058770002e-10;
  double s = 1.0 / 6227020800.0;
  s = s * r + 1.0 / 479001600.0;
  s = s * r + 1.0 / 39916800.0;
  s = s * r + 1.0 / 3628800.0;
  s = s * r + 1.0 / 362880.0;
  s = s * r + 1.0 / 40320.0;
  s = s * r + 1.0 / 5040.0;
  s = s * r + 1.0 / 720.0;
  s = s * r + 1.0 / 120.0;
  s = s * r + 1.0 / 24.0;
  s = s * r + 1.0 / 6.0;
  s = s * r + 0.5;
  s = (s * r) * r + r + 1.0;
  const uint64_t power = bits_as<uint64_t>(shifted) - 0x4338000000000000u + 4096;
  const uint64_t half = power >> 1;
  return s * bits_as<double>((half - 2048 + 1023) << 52) * bits_as<double>((power - half - 2048 + 1023) << 52);
}

// log(a / b) for normal a, b > 0 whose quotient is a normal number, to about one unit in the last place also where the
// two are close. With c = 2^k b near a, it is k log 2 + log((1 + s) / (1 - s)) for s = (a - c) / (a + c), |s| < 0.21.
KULLBACK_TERM_INLINE double log_quotient(double a, double b) {
  // The bits of a number are nearly linear in its logarithm; half a unit more in the exponent rounds k to nearest.
  const uint64_t bits = bits_as<uint64_t>(a) - bits_as<uint64_t>(b) + 0x3ff8000000000000u;
  const double k = bits_as<double>((bits >> 52) | 0x4330000000000000u) - (4503599627370496.0 + 1023.0);
  const double c = b * bits_as<double>(bits & 0x7ff0000000000000u);
  const double s = (a - c) / (a + c);
  const double z = s * s;
  double t = 2.0 / 23;
  t = t * z + 2.0 / 21;
  t = t * z + 2.0 / 19;
  t = t * z + 2.0 / 17;
  t = t * z + 2.0 / 15;
  t = t * z + 2.0 / 13;
  t = t * z + 2.0 / 11;
  t = t * z + 2.0 / 9;
  t = t * z + 2.0 / 7;
  t = t * z + 2.0 / 5;
  t = t * z + 2.0 / 3;
  const double high = 6.93147180369123816490e-01, low = 1.90821492927058770002e-10;
  return (s * z * t + k * low) + 2.0 * s + k * high;
}

KULLBACK_TERM_INLINE float widen_bfloat16(uint16_t x) { return bits_as<float>(static_cast<uint32_t>(x) << 16); }

// In integers: 2^112 moves the exponent, also of subnormal numbers.
KULLBACK_TERM_INLINE float widen_float16(uint16_t x) {
  const uint32_t magnitude = x & 0x7fffu;
  const uint32_t moved = magnitude << 13;
  const uint32_t bits = bits_as<uint32_t>(bits_as<float>(moved) * 5.192296858534828e33f);
  return bits_as<float>((magnitude >= 0x7c00u ? (moved | 0x7f800000u) : bits) |
                        (static_cast<uint32_t>(x & 0x8000u) << 16));
}

KULLBACK_TERM_INLINE uint16_t narrow_bfloat16(float x) {  // to nearest, ties to even
  const uint32_t bits = bits_as<uint32_t>(x);
  return static_cast<uint16_t>(x != x ? 0x7fc0u : (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

KULLBACK_TERM_INLINE uint16_t narrow_float16(float x) { return bits_as<uint16_t>(static_cast<_Float16>(x)); }

}  // namespace KULLBACK_ISA
}  // namespace kullback
