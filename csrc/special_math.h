// Functions of float64 that keep their digits where the textbook's formula subtracts nearly equal numbers: those of
// pairs/special.py. No branches or calls, for loops that the compiler vectorizes. Included once for every instruction
// set, like term_math.h.
#pragma once
#include "term_math.h"

namespace kullback {
namespace KULLBACK_ISA {

#define KULLBACK_SPECIAL_INLINE static inline __attribute__((always_inline))

// Horner's rule; the coefficients stand in the order of the powers.
template <int n>
KULLBACK_SPECIAL_INLINE double polynomial(const double (&coefficients)[n], double x) {
  double total = coefficients[n - 1];
#pragma GCC unroll 32
  for (int i = n - 2; i >= 0; --i) total = total * x + coefficients[i];
  return total;
}

constexpr double kLog2High = 6.93147180369123816490e-01, kLog2Low = 1.90821492927058770002e-10;

// The number of powers of two in a quotient, as term_math.h's log_quotient has it.
KULLBACK_SPECIAL_INLINE double power_of(double a, double b, double* scaled) {
  const uint64_t bits = bits_as<uint64_t>(a) - bits_as<uint64_t>(b) + 0x3ff8000000000000u;
  *scaled = b * bits_as<double>(bits & 0x7ff0000000000000u);
  return bits_as<double>((bits >> 52) | 0x4330000000000000u) - (4503599627370496.0 + 1023.0);
}

// log(a / b), as k log 2 + 2 s + rest: 2 s + rest is the logarithm of a / (2^k b) = (1 + s) / (1 - s), |s| < 0.21.
struct LogQuotient {
  double powers, s, rest;

  double value() const { return (rest + powers * kLog2Low) + 2.0 * s + powers * kLog2High; }
};

// `difference` is a - b, where that is known better than from a and b.
KULLBACK_SPECIAL_INLINE LogQuotient log_quotient_of(double a, double b, double difference) {
  double c;
  const double k = power_of(a, b, &c);
  const double s = (k == 0 ? difference : a - c) / (a + c);
  const double z = s * s;
  // 2 / 3 + 2 z / 5 + 2 z^2 / 7 + ..., economized.
  constexpr double series[] = {0.66666666666666664208, 0.40000000000007856502, 0.28571428567313979073,
                               0.22222223042012851077, 0.18181738124060123135, 0.15388847910642214483,
                               0.13210099752658398458, 0.13606021764231465324};
  return {k, s, s * z * polynomial(series, z)};
}

// z - log(1 + z), from the logarithm of 1 + z = a / b: not negative. For small z, 2 s is z - z s.
KULLBACK_SPECIAL_INLINE double excess_of(const LogQuotient& log, double z) {
  const double far = (z - 2.0 * log.s) - log.powers * kLog2High;
  return (log.powers == 0 ? z * log.s : far) - (log.rest + log.powers * kLog2Low);
}

// x - 1 - log x at x = a / b.
KULLBACK_SPECIAL_INLINE double log_ratio_excess(double a, double b, double difference) {
  return excess_of(log_quotient_of(a, b, difference), difference / b);
}

// a d - b c, from the differences b_more = d - b and a_more = c - a where these are the smaller numbers.
KULLBACK_SPECIAL_INLINE double cross_of(double a, double b, double c, double d, double a_more, double b_more) {
  const double first = a * b_more, second = b * a_more, left = a * d, right = b * c;
  const bool near = __builtin_fabs(first) + __builtin_fabs(second) < left + right;
  return near ? first - second : left - right;
}

// log(1 + z) for z > -1.
KULLBACK_SPECIAL_INLINE LogQuotient log1p_of(double z) { return log_quotient_of(1.0 + z, 1.0, z); }

// e^r - 1 - r for |r| < 0.347.
KULLBACK_SPECIAL_INLINE double small_excess(double r) {
  // 1 / 2 + r / 6 + r^2 / 24 + ..., economized.
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
  return polynomial(series, r) * r * r;
}

// e^d, e^d - 1 and e^d - 1 - d, for |d| < 700, each to full precision.
struct Exponential {
  double value, minus_one, excess;
};

KULLBACK_SPECIAL_INLINE Exponential exponential_of(double d) {
  const double shifted = d * 1.4426950408889634 + 6755399441055744.0;  // 1.5 * 2^52 rounds to the nearest integer
  const double n = shifted - 6755399441055744.0;
  const double r = (d - n * kLog2High) - n * kLog2Low;
  const double near = small_excess(r);
  const uint64_t exponent = (bits_as<uint64_t>(shifted) - 0x4338000000000000u + 1023) << 52;
  const double value = (near + r + 1.0) * bits_as<double>(exponent);
  const double minus_one = n == 0 ? near + r : value - 1.0;
  return {value, minus_one, n == 0 ? near : minus_one - d};
}

// Stirling's series and its derivatives, beyond kFar; nearer, the argument is moved up by kFar.
constexpr double kFar = 10.0, kHalfLogTau = 0.91893853320467274178;
constexpr double kStirling[] = {1.0 / 12, -1.0 / 360, 1.0 / 1260, -1.0 / 1680, 1.0 / 1188, -691.0 / 360360};
constexpr double kStirlingDerivative[] = {1.0 / 12, -3.0 / 360, 5.0 / 1260, -7.0 / 1680, 9.0 / 1188, -11 * 691.0 / 360360};
constexpr double kStirlingCurvature[] = {2.0 / 12,    -12.0 / 360, 30.0 / 1260,
                                         -56.0 / 1680, 90.0 / 1188, -132 * 691.0 / 360360};

// lgamma(x) - x log x + x and its derivative, digamma(x) - log x.
struct LogGammaRest {
  double value, derivative;
};

// Moved up, x (x + 1) ... (x + 9) is one product P, and the sum of 1 / (x + i) a quotient N / P.
KULLBACK_SPECIAL_INLINE LogGammaRest lgamma_rest(double x) {
  const bool low = x < kFar;
  const double y = low ? x + kFar : x, inverse = 1.0 / y, square = inverse * inverse;
  double product = low ? x : 1.0, numerator = 1.0;
  const double start = low ? x : 1.0;
  for (int i = 1; i < static_cast<int>(kFar); ++i) {
    const double factor = start + i;
    numerator = numerator * factor + product;
    product *= factor;
  }
  const double moved = kFar / start;
  const double log_moved = log1p_of(moved).value();
  const double by_shift = log_moved - numerator / product;
  // log(y^10 / P) - log(y) / 2 in one.
  const double y2 = y * y, y4 = y2 * y2;
  const double argument = (low ? y4 * y4 * y / product : inverse) * __builtin_sqrt(y);
  const double log = log_quotient_of(argument, 1.0, argument - 1.0).value();
  const double value = inverse * polynomial(kStirling, square) + (kHalfLogTau + log);
  const double derivative = -0.5 * inverse - square * polynomial(kStirlingDerivative, square);
  return {value + (low ? x * log_moved - kFar : 0.0), derivative + (low ? by_shift : 0.0)};
}

// lgamma(x) and digamma(x), the former without the digits that it loses near its zeros at 1 and 2.
KULLBACK_SPECIAL_INLINE LogGammaRest lgamma_of(double x) {
  const bool low = x < kFar;
  const double y = low ? x + kFar : x, inverse = 1.0 / y, square = inverse * inverse;
  double product = low ? x : 1.0, numerator = 1.0;
  const double start = low ? x : 1.0;
  for (int i = 1; i < static_cast<int>(kFar); ++i) {
    const double factor = start + i;
    numerator = numerator * factor + product;
    product *= factor;
  }
  const double log = log_quotient_of(y, 1.0, y - 1.0).value();
  const double factors = low ? product : 1.0, moved = log_quotient_of(factors, 1.0, factors - 1.0).value();
  const double value = (y - 0.5) * log - y + (kHalfLogTau + inverse * polynomial(kStirling, square)) - moved;
  const double derivative = log - 0.5 * inverse - square * polynomial(kStirlingDerivative, square);
  return {value, derivative - (low ? numerator / product : 0.0)};
}

// trigamma(x) - 1 / x, the second derivative of lgamma_rest.
KULLBACK_SPECIAL_INLINE double trigamma_rest(double x) {
  const bool low = x < kFar;
  const double start = low ? x : 1.0;
  double numerator = 1.0, product = (start + 1) * (start + 1);
  for (int i = 2; i < static_cast<int>(kFar); ++i) {
    const double factor = (start + i) * (start + i);
    numerator = numerator * factor + product;
    product *= factor;
  }
  const double y = low ? x + kFar : x, inverse = 1.0 / y, square = inverse * inverse;
  const double series = 0.5 * square + inverse * square * polynomial(kStirlingCurvature, square);
  const double first = 1.0 / start;
  const double by_shift = numerator / product + first * (first - kFar * inverse);
  return series + (low ? by_shift : 0.0);
}

// Gauss' rules of four nodes on [0, 1]: for the weight 1 - t, and for the weight 1.
constexpr double kTriangleNodes[] = {0.0571041961145176822, 0.276843013638123828, 0.58359043236891682,
                                     0.860240135656219448};
constexpr double kTriangleWeights[] = {0.135506913431488116, 0.203464568010271361, 0.129847547608232441,
                                       0.0311809709500080822};
constexpr double kNodes[] = {0.0694318442029737124, 0.330009478207571868, 0.669990521792428132, 0.930568155797026288};
constexpr double kWeights[] = {0.173927422568726929, 0.326072577431273071, 0.326072577431273071, 0.173927422568726929};

// Bregman's divergence from a to b = a + distance of lgamma(x) - x log x + x, and its derivatives by a and b.
struct Remainder {
  double value, by_a, by_b;
};

constexpr double kRuleNear = 0.05;

KULLBACK_SPECIAL_INLINE bool is_near(double a, double b, double distance) {
  return __builtin_fabs(distance) < kRuleNear * (a + b);
}

KULLBACK_SPECIAL_INLINE Remainder far_remainder(double a, double b, double distance) {
  const LogGammaRest at_a = lgamma_rest(a), at_b = lgamma_rest(b);
  return {at_b.value - at_a.value - distance * at_a.derivative, 0.0, at_b.derivative - at_a.derivative};
}

// Where a and b are near, by Taylor's formula and Gauss' rules.
KULLBACK_SPECIAL_INLINE Remainder near_remainder(double a, double distance) {
  double mean = 0, derivative = 0;
  for (int i = 0; i < 4; ++i) {
    mean += kTriangleWeights[i] * trigamma_rest(a + kTriangleNodes[i] * distance);
    derivative += kWeights[i] * trigamma_rest(a + kNodes[i] * distance);
  }
  return {distance * distance * mean, 0.0, distance * derivative};
}

// S(z) = lgamma(2 + z) - (1 - gamma) z, which begins with z^2, and its derivative, for |z| < 1/2; Chebyshev fits.
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
