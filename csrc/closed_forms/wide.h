// Numbers of about 32 digits: unevaluated sums of two float64 numbers, by the error-free sums and products of "A
// floating-point technique for extending the available precision" (Dekker, 1971).
#pragma once
#include "../common/math.h"

namespace kullback {
namespace KULLBACK_ISA {

struct Wide {
  double high, low;

  Wide() = default;
  Wide(double x) : high(x), low(0.0) {}
  Wide(double x, double y) : high(x), low(y) {}
  explicit operator double() const { return high + low; }
};

// high + low, for |high| >= |low|.
KULLBACK_INLINE Wide sum_in_order(double high, double low) {
  const double sum = high + low;
  return {sum, low - (sum - high)};
}

KULLBACK_INLINE Wide operator+(Wide a, Wide b) {
  const double sum = a.high + b.high, part = sum - a.high;
  const double rest = (a.high - (sum - part)) + (b.high - part);
  return sum_in_order(sum, rest + (a.low + b.low));
}

KULLBACK_INLINE Wide operator-(Wide a, Wide b) { return a + Wide(-b.high, -b.low); }

// a * b, rounded. The compiler cannot fuse this product with a later addition, which would change the rounding.
KULLBACK_INLINE double product_of(double a, double b) { return __builtin_fma(a, b, 0.0); }

KULLBACK_INLINE Wide operator*(Wide a, Wide b) {
  const double product = product_of(a.high, b.high), rest = __builtin_fma(a.high, b.high, -product);
  return sum_in_order(product, __builtin_fma(a.low, b.high, __builtin_fma(a.high, b.low, rest)));
}

KULLBACK_INLINE Wide operator/(Wide a, Wide b) {
  const double first = a.high / b.high;
  return sum_in_order(first, (a - b * first).high / b.high);
}

KULLBACK_INLINE Wide root_of(Wide x) {
  const double first = __builtin_sqrt(x.high);
  return sum_in_order(first, 0.5 * (x - Wide(first) * first).high / first);
}

KULLBACK_INLINE double root_of(double x) { return __builtin_sqrt(x); }

}  // namespace KULLBACK_ISA
}  // namespace kullback
