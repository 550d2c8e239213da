// The closed forms of continuous Bernoulli distributions. Formulas and sources are documented in
// pairs/families/uniform.py. A(l) = log((e^l - 1) / l) is the cumulant function, and l is the logit.
#pragma once
#include "elements.h"

namespace kullback {
namespace KULLBACK_ISA {

// B_2n / (2n)! for n = 1, 2, ..., which are the coefficients of the Taylor series of A and its derivatives at 0.
constexpr int kCumulantTerms = 10;
constexpr double kCumulant[kCumulantTerms] = {1.0 / 12,
                                              -1.0 / 720,
                                              1.0 / 30240,
                                              -1.0 / 1209600,
                                              1.0 / 47900160,
                                              -691.0 / 1307674368000,
                                              1.0 / 74724249600,
                                              -3617.0 / 10670622842880000,
                                              43867.0 / 5109094217170944000,
                                              -174611.0 / 802857662698291200000.0};

// The sum over n of B_2n / (2n)! factor(2 n) x^(2 n - 2), where `square` is x^2.
template <class Factor>
KULLBACK_INLINE double cumulant_series(double square, Factor factor) {
  double total = kCumulant[kCumulantTerms - 1] * factor(2.0 * kCumulantTerms);
#pragma GCC unroll 16
  for (int n = kCumulantTerms - 1; n >= 1; --n) total = total * square + kCumulant[n - 1] * factor(2.0 * n);
  return total;
}

// For the distribution with logit `size` >= 0: log((1 - e^-size) / size), 1 - mean, the variance, the third cumulant
// and the negative entropy.
struct Cumulants {
  double log_decay, from_end, variance, third, negative_entropy;
};

// The series is used if |logit| is below this.
constexpr double kSeriesBelow = 1.0;

KULLBACK_INLINE Cumulants cumulants_of(double size) {
  const bool near = size < kSeriesBelow;
  const double square = near ? size * size : 0.0, x = size < 1e-200 ? 1e-200 : size, inverse = 1.0 / x;
  const Exponential e = exponential_of(-x);
  const double odds = -e.value / e.expm1, spread = odds * (1.0 + odds);
  const double log_decay = log_quotient(-e.expm1, x, -e.expm1_minus_x).value();
  const double distance = cumulant_series(square, [](double) { return 1.0; });
  const double variance = cumulant_series(square, [](double n) { return n - 1.0; });
  const double third = cumulant_series(square, [](double n) { return (n - 1.0) * (n - 2.0); });
  const double entropy = cumulant_series(square, [](double n) { return 1.0 - 1.0 / n; });
  const double from_end = near ? 0.5 - size * distance : inverse - odds;
  return {log_decay, from_end, near ? variance : inverse * inverse - spread,
          near ? third * inverse : spread * (1.0 + 2.0 * odds) - 2.0 * inverse * inverse * inverse,
          near ? square * entropy : -log_decay - size * from_end};
}

KULLBACK_INLINE double variance_of(double logit) { return cumulants_of(__builtin_fabs(logit)).variance; }

// The Bregman divergence of A from a to b = a + distance, and its derivatives.
struct CumulantBregman {
  double value, by_a, by_b;
};

KULLBACK_INLINE CumulantBregman cumulant_bregman(double a, double b, double distance) {
  const bool down_a = a < 0.0, down_b = b < 0.0;
  const double size_a = __builtin_fabs(a), size_b = __builtin_fabs(b);
  const Cumulants at_a = cumulants_of(size_a), at_b = cumulants_of(size_b);
  const bool near = __builtin_fabs(distance) < 0.05 * (size_a + size_b + 6.0);
  double mean = 0, derivative = 0;
  for (int i = 0; i < 4; ++i) {
    mean += kTriangleWeights[i] * variance_of(a + kTriangleNodes[i] * distance);
    derivative += kWeights[i] * variance_of(a + kNodes[i] * distance);
  }
  const double crossed = down_a == down_b ? 0.0 : size_b, tangent = down_a ? distance : -distance;
  const double far = crossed + at_b.log_decay - at_a.log_decay - tangent * at_a.from_end;
  const double mean_a = down_a ? at_a.from_end : -at_a.from_end, mean_b = down_b ? at_b.from_end : -at_b.from_end;
  const double turned = down_a == down_b ? 0.0 : down_a ? 1.0 : -1.0;
  return {near ? distance * distance * mean : far, -distance * at_a.variance,
          near ? distance * derivative : mean_b - mean_a + turned};
}

// A(l) - l m for the mean m = `below` = 1 - `above`, and its derivative with respect to l.
struct CrossEntropy {
  double value, by_logit;
};

KULLBACK_INLINE CrossEntropy cross_entropy_of(double logit, double below, double above) {
  const bool down = logit < 0.0;
  const double size = __builtin_fabs(logit), slope = 0.5 * (above - below);
  const bool near = size < kSeriesBelow;
  const Cumulants q = cumulants_of(size);
  const double square = near ? size * size : 0.0;
  const double even = square * cumulant_series(square, [](double n) { return 1.0 / n; });
  const double odd = logit * cumulant_series(square, [](double) { return 1.0; });
  return {near ? even + logit * slope : size * (down ? below : above) + q.log_decay,
          near ? odd + slope : down ? q.from_end - below : above - q.from_end};
}

// The logit and its derivative, from the parameter that the user passed: a logit or a probability.
struct FromLogits {
  static constexpr Range range = Range::kLogit;

  KULLBACK_INLINE double logit(double x) { return x; }
  KULLBACK_INLINE double distance(double from, double to) { return to - from; }
  KULLBACK_INLINE double by_parameter(double) { return 1.0; }
};

// Probabilities 0 and 1 have no logit; torch does not construct such distributions.
struct FromProbs {
  static constexpr Range range = Range::kProbability;

  KULLBACK_INLINE double logit(double x) {
    const double logit = log_quotient(x, 1.0 - x, 2.0 * x - 1.0).value();
    return ((x > 0.0) & (x < 1.0)) ? logit : kNotANumber;
  }

  KULLBACK_INLINE double distance(double from, double to) {
    const double difference = to - from;
    return log_quotient(to, from, difference).value() - log_quotient(1.0 - to, 1.0 - from, -difference).value();
  }

  KULLBACK_INLINE double by_parameter(double x) { return 1.0 / (x * (1.0 - x)); }
};

template <class Source>
struct ContinuousBernoulliForm : Within<Source::range, Source::range> {
  KULLBACK_INLINE Answer at(double p, double q, double, double) {
    const double a = Source::logit(p), b = Source::logit(q);
    const CumulantBregman bregman = cumulant_bregman(a, b, Source::distance(p, q));
    return {bregman.value, {bregman.by_a * Source::by_parameter(p), bregman.by_b * Source::by_parameter(q)}};
  }
};

// The mean, the variance and the negative entropy, and the derivatives of the last two with respect to the logit.
struct ContinuousBernoulli {
  double mean, variance, by_variance, negative_entropy, by_entropy;
};

KULLBACK_INLINE ContinuousBernoulli continuous_bernoulli(double logit) {
  const bool down = logit < 0.0;
  const Cumulants x = cumulants_of(__builtin_fabs(logit));
  return {down ? x.from_end : 1.0 - x.from_end, x.variance, down ? -x.third : x.third, x.negative_entropy,
          logit * x.variance};
}

template <class Source>
struct ContinuousBernoulliExponentialForm : Within<Source::range, Range::kMildPositive> {
  KULLBACK_INLINE Answer at(double p, double rate, double, double) {
    const ContinuousBernoulli x = continuous_bernoulli(Source::logit(p));
    return {rate * x.mean - log_of(rate) + x.negative_entropy,
            {(rate * x.variance + x.by_entropy) * Source::by_parameter(p), x.mean - 1.0 / rate}};
  }
};

template <class Source>
struct ContinuousBernoulliNormalForm : Within<Source::range, Range::kMild, Range::kMildPositive> {
  KULLBACK_INLINE Answer at(double p, double loc, double scale, double) {
    const ContinuousBernoulli x = continuous_bernoulli(Source::logit(p));
    const double inverse = 1.0 / scale, shift = (x.mean - loc) * inverse;
    const double squares = x.variance * inverse * inverse + shift * shift;
    const double by_logit = (0.5 * x.by_variance * inverse + shift * x.variance) * inverse + x.by_entropy;
    return {0.5 * squares + log_of(scale) + kHalfLogTau + x.negative_entropy,
            {by_logit * Source::by_parameter(p), -shift * inverse, (1.0 - squares) * inverse}};
  }
};

template <class Source>
struct ContinuousBernoulliUniformForm : Within<Source::range, Range::kMild, Range::kMild> {
  KULLBACK_INLINE Answer at(double p, double low, double high, double) {
    const ContinuousBernoulli x = continuous_bernoulli(Source::logit(p));
    const bool outside = (low > 0.0) | (high < 1.0);
    const double room = outside ? 0.0 : (high - 1.0) - low, by_high = outside ? 0.0 : 1.0 / (1.0 + room);
    const double value = x.negative_entropy + log1p_of(room).value();
    return {outside ? kInfinity : value,
            {outside ? 0.0 : x.by_entropy * Source::by_parameter(p), -by_high, by_high}};
  }
};

template <class Source>
struct UniformContinuousBernoulliForm : Within<Range::kMild, Range::kMild, Source::range> {
  KULLBACK_INLINE Answer at(double low, double high, double q, double) {
    const bool outside = (low < 0.0) | (high > 1.0);
    const double start = outside ? 0.25 : low, end = outside ? 0.75 : high, width = end - start, half = 0.5 * width;
    const double logit = Source::logit(q), inverse = 1.0 / width;
    const CrossEntropy cross = cross_entropy_of(logit, start + half, (1.0 - end) + half);
    const double value = cross.value - log_of(width);
    return {high - low >= 1e-60 ? (outside ? kInfinity : value) : kNotANumber,
            {outside ? 0.0 : inverse - 0.5 * logit, outside ? 0.0 : -inverse - 0.5 * logit,
             outside ? 0.0 : cross.by_logit * Source::by_parameter(q)}};
  }
};

using ContinuousBernoulliLogitsForm = ContinuousBernoulliForm<FromLogits>;
using ContinuousBernoulliProbsForm = ContinuousBernoulliForm<FromProbs>;
using ContinuousBernoulliLogitsExponentialForm = ContinuousBernoulliExponentialForm<FromLogits>;
using ContinuousBernoulliProbsExponentialForm = ContinuousBernoulliExponentialForm<FromProbs>;
using ContinuousBernoulliLogitsNormalForm = ContinuousBernoulliNormalForm<FromLogits>;
using ContinuousBernoulliProbsNormalForm = ContinuousBernoulliNormalForm<FromProbs>;
using ContinuousBernoulliLogitsUniformForm = ContinuousBernoulliUniformForm<FromLogits>;
using ContinuousBernoulliProbsUniformForm = ContinuousBernoulliUniformForm<FromProbs>;
using UniformContinuousBernoulliLogitsForm = UniformContinuousBernoulliForm<FromLogits>;
using UniformContinuousBernoulliProbsForm = UniformContinuousBernoulliForm<FromProbs>;

}  // namespace KULLBACK_ISA
}  // namespace kullback
