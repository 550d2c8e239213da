// Gamma functions and determinants in float64, as in common/special.py. They do not lose digits where textbook formulas
// subtract nearly equal numbers. This file is compiled once for every instruction set.
#pragma once
#include "../common/math.h"

namespace kullback {
namespace KULLBACK_ISA {

// a d - b c. Computed as a (d - b) - b (c - a) if these two terms are smaller than a d and b c.
KULLBACK_INLINE double determinant_of(double a, double b, double c, double d, double c_minus_a, double d_minus_b) {
  const double first = a * d_minus_b, second = b * c_minus_a, left = a * d, right = b * c;
  const bool near = __builtin_fabs(first) + __builtin_fabs(second) < left + right;
  return near ? first - second : left - right;
}

// The coefficients of Stirling's series and of its derivatives, for arguments from kStirlingFrom on. Smaller arguments
// are increased by kStirlingFrom.
constexpr double kStirlingFrom = 10.0, kHalfLogTau = 0.91893853320467274178;
constexpr double kStirling[] = {1.0 / 12, -1.0 / 360, 1.0 / 1260, -1.0 / 1680, 1.0 / 1188, -691.0 / 360360};
constexpr double kStirlingDerivative[] = {1.0 / 12,    -3.0 / 360, 5.0 / 1260,
                                          -7.0 / 1680, 9.0 / 1188, -11 * 691.0 / 360360};
constexpr double kStirlingCurvature[] = {2.0 / 12,    -12.0 / 360, 30.0 / 1260,
                                         -56.0 / 1680, 90.0 / 1188, -132 * 691.0 / 360360};

// lgamma(x) - x log x + x and its derivative, digamma(x) - log x.
struct StirlingRemainder {
  double value, derivative;
};

// For an increased argument, `product` is x (x + 1) ... (x + 9), and the sum of 1 / (x + i) is `numerator` / `product`.
KULLBACK_INLINE StirlingRemainder stirling_remainder(double x) {
  const bool low = x < kStirlingFrom;
  const double y = low ? x + kStirlingFrom : x, inverse = 1.0 / y, square = inverse * inverse;
  double product = low ? x : 1.0, numerator = 1.0;
  const double start = low ? x : 1.0;
  for (int i = 1; i < static_cast<int>(kStirlingFrom); ++i) {
    const double factor = start + i;
    numerator = numerator * factor + product;
    product *= factor;
  }
  const double moved = kStirlingFrom / start;
  const double log_moved = log1p_of(moved).value();
  const double by_shift = log_moved - numerator / product;
  // log(y^10 / product) - log(y) / 2 as a single logarithm.
  const double y2 = y * y, y4 = y2 * y2;
  const double argument = (low ? y4 * y4 * y / product : inverse) * __builtin_sqrt(y);
  const double log = log_of(argument);
  const double value = inverse * polynomial(kStirling, square) + (kHalfLogTau + log);
  const double derivative = -0.5 * inverse - square * polynomial(kStirlingDerivative, square);
  return {value + (low ? x * log_moved - kStirlingFrom : 0.0), derivative + (low ? by_shift : 0.0)};
}

struct LogGamma {
  double value, derivative;
};

// lgamma(x) and digamma(x). lgamma(x) loses digits near its zeros at 1 and 2.
KULLBACK_INLINE LogGamma lgamma_of(double x) {
  const bool low = x < kStirlingFrom;
  const double y = low ? x + kStirlingFrom : x, inverse = 1.0 / y, square = inverse * inverse;
  double product = low ? x : 1.0, numerator = 1.0;
  const double start = low ? x : 1.0;
  for (int i = 1; i < static_cast<int>(kStirlingFrom); ++i) {
    const double factor = start + i;
    numerator = numerator * factor + product;
    product *= factor;
  }
  const double log = log_of(y);
  const double factors = low ? product : 1.0, moved = log_of(factors);
  const double value = (y - 0.5) * log - y + (kHalfLogTau + inverse * polynomial(kStirling, square)) - moved;
  const double derivative = log - 0.5 * inverse - square * polynomial(kStirlingDerivative, square);
  return {value, derivative - (low ? numerator / product : 0.0)};
}

// trigamma(x) - 1 / x, the second derivative of stirling_remainder.
KULLBACK_INLINE double stirling_curvature(double x) {
  const bool low = x < kStirlingFrom;
  const double start = low ? x : 1.0;
  double numerator = 1.0, product = (start + 1) * (start + 1);
  for (int i = 2; i < static_cast<int>(kStirlingFrom); ++i) {
    const double factor = (start + i) * (start + i);
    numerator = numerator * factor + product;
    product *= factor;
  }
  const double y = low ? x + kStirlingFrom : x, inverse = 1.0 / y, square = inverse * inverse;
  const double series = 0.5 * square + inverse * square * polynomial(kStirlingCurvature, square);
  const double first = 1.0 / start;
  const double by_shift = numerator / product + first * (first - kStirlingFrom * inverse);
  return series + (low ? by_shift : 0.0);
}

// Gauss quadrature with four nodes on [0, 1], for the weight 1 - t and for the weight 1.
constexpr double kTriangleNodes[] = {0.0571041961145176822, 0.276843013638123828, 0.58359043236891682,
                                     0.860240135656219448};
constexpr double kTriangleWeights[] = {0.135506913431488116, 0.203464568010271361, 0.129847547608232441,
                                       0.0311809709500080822};
constexpr double kNodes[] = {0.0694318442029737124, 0.330009478207571868, 0.669990521792428132, 0.930568155797026288};
constexpr double kWeights[] = {0.173927422568726929, 0.326072577431273071, 0.326072577431273071, 0.173927422568726929};

// The Bregman divergence of lgamma(x) - x log x + x from a to b = a + distance, and its derivative with respect to b.
struct StirlingBregman {
  double value, by_b;
};

constexpr double kRuleNear = 0.05;

KULLBACK_INLINE bool is_near(double a, double b, double distance) {
  return __builtin_fabs(distance) < kRuleNear * (a + b);
}

KULLBACK_INLINE StirlingBregman far_bregman(double a, double b, double distance) {
  const StirlingRemainder at_a = stirling_remainder(a), at_b = stirling_remainder(b);
  return {at_b.value - at_a.value - distance * at_a.derivative, at_b.derivative - at_a.derivative};
}

// The same for close a and b, by Taylor's formula with its integral computed by Gauss quadrature.
KULLBACK_INLINE StirlingBregman near_bregman(double a, double distance) {
  double mean = 0, derivative = 0;
  for (int i = 0; i < 4; ++i) {
    mean += kTriangleWeights[i] * stirling_curvature(a + kTriangleNodes[i] * distance);
    derivative += kWeights[i] * stirling_curvature(a + kNodes[i] * distance);
  }
  return {distance * distance * mean, distance * derivative};
}

// Chebyshev fits of S(z) / z^2 for S(z) = lgamma(2 + z) - (1 - gamma) z, and of S'(z) / z, for |z| < 1/2.
constexpr double kEuler = 0.57721566490153286061, kLgammaNear = 0.5;
constexpr double kLgammaSeries[] = {0.32246703342411321824,    -0.06735230105319810342,   0.020580808427784551838,
                                    -0.0073855510286719983953, 0.0028905103307405740224,  -0.0011927539118428156859,
                                    0.00050966952480971660508, -0.0002231547540052050773, 0.000099457510656568297117,
                                    -0.000044926313379155697453, 0.000020507249390577881765, -9.4387150992115326607e-6,
                                    4.3744974215557224525e-6,  -2.0439048107029906744e-6, 9.5738118462417141485e-7,
                                    -4.325239344560481638e-7,  2.040840149566362662e-7,   -1.3219945666117874478e-7,
                                    6.2868876003977037119e-8};
constexpr double kDigammaSeries[] = {0.64493406684822643647,    -0.20205690315959446412,    0.082323233711138280872,
                                     -0.036927755143327077548,  0.017343061984427716534,    -0.0083492773849318152576,
                                     0.0040773561994487483838,  -0.0020083927302040032014,  0.00099457507988170110041,
                                     -0.00049419025507889271562, 0.00024608737874073000998, -0.00012269670647989688907,
                                     0.000061239814986139831341, -0.000030689022886552582583,
                                     0.000015332649785467855365,
                                     -7.2785876704114830025e-6, 3.6379988045845536947e-6,   -2.5861773625857025715e-6,
                                     1.2929238313738073389e-6};

}  // namespace KULLBACK_ISA
}  // namespace kullback
