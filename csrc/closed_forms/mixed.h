// The closed forms between two families, in the form of elements.h. Formulas and sources are documented in the Python
// versions in pairs/families.
#pragma once
#include "elements.h"

namespace kullback {
namespace KULLBACK_ISA {

constexpr double kLog2 = 0.69314718055994530942, kVarianceOfGumbel = 1.6449340668482264365;  // pi^2 / 6

// e^x, or NaN where it might overflow.
KULLBACK_INLINE double exp_or_none(double x) { return x < 600.0 ? exp_of(x) : kNotANumber; }

// e^x - 1 - x and e^x - 1, with x clamped to +-690.
KULLBACK_INLINE Exponential exponential_of_log_means(double x) {
  return exponential_of(x < -690.0 ? -690.0 : x > 690.0 ? 690.0 : x);
}

// erf(x) for any x, with `density` = e^(-x^2), by Chebyshev fits: x P(x^2) for |x| < 1/2, else 1 - e^(-x^2) P(t) with
// t = (|x| - 2) / (|x| + 2), and the sign of x.
KULLBACK_INLINE double erf_of(double x, double density) {
  constexpr double near[] = {1.1283791670955125696, -0.3761263890318347478, 0.11283791670925456841,
                             -0.026866170632921086134, 0.0052239773735421825919, -0.00085482977980861919936,
                             0.00012053337222877717966, -0.000014845900896375834493, 1.4726381680017031358e-6};
  constexpr double far[] = {0.25539567631050574185, -0.42718584741395834468, 0.2416581942424673459,
                            -0.078978581015741759552, 0.0037328924042669293199, 0.0069974617397625573577,
                            -0.00084714324969483836795, -0.00098197704225128686994, 0.000043555604187321812103,
                            0.00017436140690347230099, 0.00002752508438890242806, -0.000027581964168358880139,
                            -0.000013962056910082782851, 1.4019873643767661111e-6, 3.7474252461508334543e-6,
                            1.1651020836875061794e-6, -3.9086073426909412513e-7, -4.4823746768121573954e-7,
                            -2.0950625535943528923e-7, 1.9963364693493907339e-8, 1.8318550464607062083e-7,
                            1.2790401803248937822e-8, -7.7188118465593127765e-8, 2.1288852804258778368e-8};
  const double size = __builtin_fabs(x), t = (size - 2.0) / (size + 2.0);
  const double above = 1.0 - density * polynomial(far, t);
  return size < 0.5 ? x * polynomial(near, x * x) : x < 0.0 ? -above : above;
}

struct NormalLaplaceForm : Within<Range::kMild, Range::kMildPositive, Range::kMild, Range::kMildPositive> {
  KULLBACK_INLINE Answer at(double loc_p, double scale_p, double loc_q, double scale_q) {
    constexpr double root = 0.79788456080286535588;  // sqrt(2 / pi)
    const double shift = (loc_p - loc_q) / scale_p, ratio = scale_p / scale_q, decay = exp_of(-0.5 * shift * shift);
    const double erf = erf_of(shift * 0.70710678118654752440, decay), density = root * decay;
    const double folded = density + shift * erf, by_loc = erf / scale_q;
    return {ratio * folded - log_of(ratio) + (kLog2 - kHalfLogTau - 0.5),
            {by_loc, density / scale_q - 1.0 / scale_p, -by_loc, (1.0 - ratio * folded) / scale_q}};
  }
};

struct LaplaceNormalForm : Within<Range::kMild, Range::kMildPositive, Range::kMild, Range::kMildPositive> {
  KULLBACK_INLINE Answer at(double loc_p, double scale_p, double loc_q, double scale_q) {
    const double inverse = 1.0 / scale_q, ratio = scale_p * inverse, shift = (loc_p - loc_q) * inverse;
    const double square = shift * shift, by_loc = shift * inverse;
    return {ratio * ratio - log_of(ratio) + 0.5 * square + (kHalfLogTau - 1.0 - kLog2),
            {by_loc, 2.0 * ratio * inverse - 1.0 / scale_p, -by_loc, -(2.0 * ratio * ratio - 1.0 + square) * inverse}};
  }
};

struct NormalGumbelForm : Within<Range::kMild, Range::kMildPositive, Range::kMild, Range::kMildPositive> {
  KULLBACK_INLINE Answer at(double loc_p, double scale_p, double loc_q, double scale_q) {
    const double inverse = 1.0 / scale_q, ratio = scale_p * inverse, shift = (loc_p - loc_q) * inverse;
    const double e = exp_or_none(0.5 * ratio * ratio - shift), by_loc = (1.0 - e) * inverse;
    return {shift + e - log_of(ratio) - (kHalfLogTau + 0.5),
            {by_loc, ratio * e * inverse - 1.0 / scale_p, -by_loc,
             (1.0 - shift * (1.0 - e) - ratio * ratio * e) * inverse}};
  }
};

struct GumbelNormalForm : Within<Range::kMild, Range::kMildPositive, Range::kMild, Range::kMildPositive> {
  KULLBACK_INLINE Answer at(double loc_p, double scale_p, double loc_q, double scale_q) {
    const double inverse = 1.0 / scale_q, ratio = scale_p * inverse;
    const double shift = (loc_p - loc_q) * inverse + kEuler * ratio, spread = kVarianceOfGumbel * ratio;
    const double squares = spread * ratio + shift * shift, by_loc = shift * inverse;
    return {0.5 * squares - log_of(ratio) + (kHalfLogTau - kEuler - 1.0),
            {by_loc, (spread + kEuler * shift) * inverse - 1.0 / scale_p, -by_loc, (1.0 - squares) * inverse}};
  }
};

struct UniformNormalForm : Within<Range::kMild, Range::kMild, Range::kMild, Range::kMildPositive> {
  KULLBACK_INLINE Answer at(double low, double high, double loc, double scale) {
    const double inverse = 1.0 / scale, width = (high - low) * inverse, shift = (low - loc) * inverse + 0.5 * width;
    const double squares = width * width * (1.0 / 12) + shift * shift;
    const double by_width = (width * (1.0 / 12) - 1.0 / width) * inverse, by_loc = shift * inverse;
    return {width >= 1e-60 ? 0.5 * squares - log_of(width) + kHalfLogTau : kNotANumber,
            {0.5 * by_loc - by_width, 0.5 * by_loc + by_width, -by_loc, (1.0 - squares) * inverse}};
  }
};

struct UniformExponentialForm : Within<Range::kMild, Range::kMild, Range::kMildPositive> {
  KULLBACK_INLINE Answer at(double low, double high, double rate, double) {
    const double width = (high - low) * rate, by_width = 1.0 / (high - low), mean = low * rate + 0.5 * width;
    const bool outside = low < 0.0;
    const double value = outside ? kInfinity : mean - log_of(width);
    return {width >= 1e-60 ? value : kNotANumber,
            {outside ? 0.0 : 0.5 * rate + by_width, outside ? 0.0 : 0.5 * rate - by_width,
             outside ? 0.0 : (mean - 1.0) / rate}};
  }
};

// The mean of e^(-w u) over u in [0, 1], and the negative derivative of its logarithm, 1 / w - 1 / (e^w - 1).
struct MeanDecay {
  double value, decrease;
};

KULLBACK_INLINE MeanDecay mean_decay(double w) {
  constexpr double series[] = {1.0 / 12, -1.0 / 720, 1.0 / 30240, -1.0 / 1209600, 1.0 / 47900160,
                               -691.0 / 1307674368000};
  const Exponential e = exponential_of(w < 690.0 ? -w : -690.0);
  const double inverse = 1.0 / w, near = 0.5 - w * polynomial(series, w * w);
  return {-e.expm1 * inverse, w < 0.5 ? near : inverse + e.value / e.expm1};
}

struct UniformGumbelForm : Within<Range::kMild, Range::kMild, Range::kMild, Range::kMildPositive> {
  KULLBACK_INLINE Answer at(double low, double high, double loc, double scale) {
    const double inverse = 1.0 / scale, start = (low - loc) * inverse, width = (high - low) * inverse;
    const MeanDecay decay = mean_decay(width);
    const double e = exp_or_none(-start) * decay.value;
    const double by_start = 1.0 - e, by_width = 0.5 - e * decay.decrease - 1.0 / width;
    return {width >= 1e-60 ? start + 0.5 * width + e - log_of(width) : kNotANumber,
            {(by_start - by_width) * inverse, by_width * inverse, -by_start * inverse,
             -(start * by_start + width * by_width) * inverse}};
  }
};

// E log(X / E X) for X / E X uniform on the interval from 1 - t = `start` to 1 + t. `by_t` is the derivative with
// respect to t, or the finite part of this derivative if the interval begins at 0.
struct LogDeficit {
  double value, by_t;
};

KULLBACK_INLINE LogDeficit log_deficit(double t, double start) {
  constexpr double series[] = {-1.0 / 6, -1.0 / 20, -1.0 / 42, -1.0 / 72, -1.0 / 110};
  constexpr double derivatives[] = {-2.0 / 6, -4.0 / 20, -6.0 / 42, -8.0 / 72, -10.0 / 110};
  const double square = t * t, below = start > 0.0 ? start : 1.0;
  const double log_above = log1p_of(t).value(), log_below = log_of(below);
  const double far = ((1.0 + t) * log_above - below * log_below) / (2.0 * t) - 1.0;
  const double far_by_t = start > 0.0 ? (0.5 * (log_above + log_below) - far) / t : 0.5 * (1.0 - kLog2);
  const bool near = t < 0.05;
  return {near ? square * polynomial(series, square) : far, near ? t * polynomial(derivatives, square) : far_by_t};
}

// For X uniform on an interval of positive numbers: the middle m, E log(X / m), and the derivatives of E log X with
// respect to both ends.
struct Interval {
  double width, middle, t;
  double deficit, by_low, by_high;
};

KULLBACK_INLINE Interval interval_of(double low, double high, double width) {
  const double middle = low + 0.5 * width, inverse = 1.0 / middle, t = 0.5 * width * inverse;
  const LogDeficit deficit = log_deficit(t, low * inverse);
  const double step = 0.5 * inverse, by_t = deficit.by_t * inverse;
  return {width, middle, t, deficit.value, step * (1.0 - by_t * high), step * (1.0 + by_t * low)};
}

struct UniformParetoForm : Within<Range::kMild, Range::kMild, Range::kMildPositive, Range::kMildPositive> {
  KULLBACK_INLINE Answer at(double low, double high, double scale, double alpha) {
    const bool outside = low < scale;
    const double start = outside ? scale : low, width = outside ? scale : high - low;
    const Interval x = interval_of(start, start + width, width);
    const double inverse = 1.0 / width, power = alpha + 1.0;
    const double log_mean = log_quotient(x.middle, scale, (start - scale) + 0.5 * width).value();
    const double value = power * x.deficit + alpha * log_mean - log_of(2.0 * x.t * alpha);
    return {high - low >= 1e-60 * x.middle ? (outside ? kInfinity : value) : kNotANumber,
            {outside ? 0.0 : power * x.by_low + inverse, outside ? 0.0 : power * x.by_high - inverse,
             outside ? 0.0 : -alpha / scale, outside ? 0.0 : x.deficit + log_mean - 1.0 / alpha}};
  }
};

struct UniformGammaForm : Within<Range::kMild, Range::kMild, Range::kMildPositive, Range::kMildPositive> {
  KULLBACK_INLINE Answer at(double low, double high, double a, double rate) {
    const bool outside = low < 0.0;
    const double start = outside ? 0.0 : low, width = outside ? 1.0 : high - low;
    const Interval x = interval_of(start, start + width, width);
    const StirlingRemainder remainder = stirling_remainder(a);
    const double mean = x.middle * rate, log_means = log_quotient(mean, a, mean - a).value();
    const Exponential e = exponential_of_log_means(log_means);
    const double value = a * e.expm1_minus_x - (a - 1.0) * x.deficit + remainder.value - log_of(2.0 * x.t);
    const double inverse = 1.0 / width, power = a - 1.0;
    return {high - low >= 1e-60 * x.middle ? (outside ? kInfinity : value) : kNotANumber,
            {outside ? 0.0 : 0.5 * rate - power * x.by_low + inverse,
             outside ? 0.0 : 0.5 * rate - power * x.by_high - inverse,
             outside ? 0.0 : remainder.derivative - log_means - x.deficit, outside ? 0.0 : a * e.expm1 / rate}};
  }
};

struct UniformBetaForm : Within<Range::kMild, Range::kMild, Range::kMildPositive, Range::kMildPositive> {
  // The terms of one concentration of Q, for X or for 1 - X, which is uniform on [low, high].
  struct Side {
    double value, by_c, by_low, by_high;
  };

  KULLBACK_INLINE Side side(double c, double total, double low, double high, double width) {
    const Interval x = interval_of(low, high, width);
    const StirlingRemainder remainder = stirling_remainder(c);
    const double mean = x.middle * total, log_means = log_quotient(mean, c, mean - c).value(), power = c - 1.0;
    const double value = c * exponential_of_log_means(log_means).expm1_minus_x - power * x.deficit;
    return {value + log_of(x.middle) + remainder.value, remainder.derivative - log_means - x.deficit,
            -power * x.by_low, -power * x.by_high};
  }

  KULLBACK_INLINE Answer at(double low, double high, double a, double b) {
    const bool outside = (low < 0.0) | (high > 1.0);
    const double start = outside ? 0.25 : low, end = outside ? 0.75 : high, width = end - start;
    const StirlingRemainder total = stirling_remainder(a + b);
    const Side of_a = side(a, a + b, start, end, width), of_b = side(b, a + b, 1.0 - end, 1.0 - start, width);
    const double value = of_a.value + of_b.value - total.value - log_of(width), inverse = 1.0 / width;
    return {high - low >= 1e-60 ? (outside ? kInfinity : value) : kNotANumber,
            {outside ? 0.0 : of_a.by_low - of_b.by_high + inverse,
             outside ? 0.0 : of_a.by_high - of_b.by_low - inverse,
             outside ? 0.0 : of_a.by_c - total.derivative, outside ? 0.0 : of_b.by_c - total.derivative}};
  }
};

// The negative entropy of X / E X for a Gamma variable X, and its derivative with respect to the concentration.
struct GammaEntropy {
  double negative, by_a;
};

KULLBACK_INLINE GammaEntropy gamma_entropy(double a) {
  const StirlingRemainder remainder = stirling_remainder(a);
  return {(a - 1.0) * remainder.derivative - remainder.value, (a - 1.0) * stirling_curvature(a)};
}

struct GammaNormalForm : Within<Range::kMildPositive, Range::kMildPositive, Range::kMild, Range::kMildPositive> {
  KULLBACK_INLINE Answer at(double a, double rate, double loc, double scale) {
    const GammaEntropy entropy = gamma_entropy(a);
    const double inverse = 1.0 / scale, mean = a / (rate * scale), shift = (a / rate - loc) * inverse;
    const double each = mean / a, squares = mean * each + shift * shift;
    return {0.5 * squares - log_of(mean) + entropy.negative + kHalfLogTau,
            {0.5 * each * each + shift * each - 1.0 / a + entropy.by_a, (1.0 - mean * (each + shift)) / rate,
             -shift * inverse, (1.0 - squares) * inverse}};
  }
};

struct GammaGumbelForm : Within<Range::kMildPositive, Range::kMildPositive, Range::kMild, Range::kMildPositive> {
  KULLBACK_INLINE Answer at(double a, double rate, double loc, double scale) {
    const GammaEntropy entropy = gamma_entropy(a);
    const double inverse = 1.0 / scale, unit = 1.0 / (rate * scale), start = loc * inverse, mean = a * unit;
    const double log_decay = log1p_of(unit).value(), e = exp_or_none(start - a * log_decay);
    const double decayed = e * mean / (1.0 + unit);
    return {mean - start + e - log_of(mean) + entropy.negative,
            {unit - e * log_decay - 1.0 / a + entropy.by_a, (1.0 - mean + decayed) / rate, (e - 1.0) * inverse,
             (1.0 - mean + start - e * start + decayed) * inverse}};
  }
};

struct BetaGammaForm : Within<Range::kMildPositive, Range::kMildPositive, Range::kMildPositive, Range::kMildPositive> {
  KULLBACK_INLINE Answer at(double a, double b, double c, double rate) {
    const double total = a + b;
    const StirlingRemainder of_a = stirling_remainder(a), of_b = stirling_remainder(b);
    const StirlingRemainder of_total = stirling_remainder(total), of_c = stirling_remainder(c);
    const double mean = a / total * rate, log_means = log_quotient(mean, c, mean - c).value();
    const Exponential e = exponential_of_log_means(log_means);
    const double jensen_gap = of_total.derivative - of_a.derivative;  // log E X - E log X
    // The entropy of log X. digamma(b) - digamma(total) is the difference of the Stirling remainders' derivatives plus
    // log(b / total).
    const double entropy = (of_a.value - a * of_a.derivative) + (of_b.value - (b - 1.0) * of_b.derivative) -
                           (of_total.value - (total - 1.0) * of_total.derivative) + log_of(b / total);
    const double curvature = (total - 1.0 - c) * stirling_curvature(total), by_mean = c / total * e.expm1;
    return {c * e.expm1_minus_x + c * jensen_gap + of_c.value - entropy,
            {by_mean * b / a + 1.0 / total + (a - c) * stirling_curvature(a) - curvature,
             1.0 / total - 1.0 / b - by_mean + (b - 1.0) * stirling_curvature(b) - curvature,
             of_c.derivative - log_means + jensen_gap, c * e.expm1 / rate}};
  }
};

struct BetaNormalForm : Within<Range::kMildPositive, Range::kMildPositive, Range::kMild, Range::kMildPositive> {
  KULLBACK_INLINE Answer at(double a, double b, double loc, double scale) {
    const double total = a + b, inverse = 1.0 / scale, first = a / total, second = b / total;
    const StirlingRemainder of_a = stirling_remainder(a), of_b = stirling_remainder(b);
    const StirlingRemainder of_total = stirling_remainder(total);
    // The negative entropy of X: (a - 1) E log X + (b - 1) E log(1 - X) - log B(a, b).
    const double negative_entropy = ((a - 1.0) * of_a.derivative - of_a.value) +
                                    ((b - 1.0) * of_b.derivative - of_b.value) -
                                    ((total - 2.0) * of_total.derivative - of_total.value);
    const double deviation = inverse / __builtin_sqrt(total + 1.0);
    const double variance = first * second * deviation * deviation, shift = (first - loc) * inverse;
    const double squares = variance + shift * shift, step = shift * inverse / total;
    const double curvature = 2.0 / total - (total - 2.0) * stirling_curvature(total);
    const double common = curvature - 0.5 * variance * (2.0 / total + 1.0 / (total + 1.0));
    return {0.5 * squares + kHalfLogTau - log_of(first * second * inverse) + negative_entropy,
            {common + (a - 1.0) * stirling_curvature(a) - (1.0 - 0.5 * variance) / a + step * second,
             common + (b - 1.0) * stirling_curvature(b) - (1.0 - 0.5 * variance) / b - step * first,
             -shift * inverse, (1.0 - squares) * inverse}};
  }
};

struct ParetoGammaForm
    : Within<Range::kMildPositive, Range::kMildPositive, Range::kMildPositive, Range::kMildPositive> {
  KULLBACK_INLINE Answer at(double scale, double alpha, double c, double rate) {
    const bool infinite = alpha <= 1.0;
    const double tail = infinite ? 2.0 : alpha, inverse = 1.0 / (tail - 1.0), reciprocal = 1.0 / tail;
    const StirlingRemainder of_c = stirling_remainder(c);
    const double mean = scale * tail * inverse * rate, log_means = log_quotient(mean, c, mean - c).value();
    const Exponential e = exponential_of_log_means(log_means);
    const double jensen_gap = log1p_of(-reciprocal).x_minus_log1p(-reciprocal);  // log E X - E log X
    const double by_mean = c * e.expm1;
    const double value = c * e.expm1_minus_x + c * jensen_gap + of_c.value - 1.0 + log_of(tail);
    return {infinite ? kInfinity : value,
            {infinite ? 0.0 : by_mean / scale, infinite ? 0.0 : reciprocal - (by_mean + c * reciprocal) * reciprocal * inverse,
             infinite ? 0.0 : of_c.derivative - log_means + jensen_gap, infinite ? 0.0 : by_mean / rate}};
  }
};

struct ParetoNormalForm : Within<Range::kMildPositive, Range::kMildPositive, Range::kMild, Range::kMildPositive> {
  KULLBACK_INLINE Answer at(double scale_p, double alpha, double loc, double scale_q) {
    const bool infinite = alpha <= 2.0;
    const double tail = infinite ? 3.0 : alpha, inverse = 1.0 / scale_q, reciprocal = 1.0 / tail;
    const double ratio = scale_p * inverse, mean = ratio * tail / (tail - 1.0);
    const double shift = (scale_p * tail / (tail - 1.0) - loc) * inverse;
    const double variance = mean * mean * reciprocal / (tail - 2.0), squares = variance + shift * shift;
    const double by_log_mean = variance + shift * mean;
    const double by_tail = reciprocal * (reciprocal + 1.0) - by_log_mean * reciprocal / (tail - 1.0) -
                           0.5 * variance * (reciprocal + 1.0 / (tail - 2.0));
    const double value = 0.5 * squares - log_of(ratio) - reciprocal - 1.0 + log_of(tail) + kHalfLogTau;
    return {infinite ? kInfinity : value,
            {infinite ? 0.0 : (by_log_mean - 1.0) / scale_p, infinite ? 0.0 : by_tail,
             infinite ? 0.0 : -shift * inverse, infinite ? 0.0 : (1.0 - squares) * inverse}};
  }
};

// The sum of p log(p / rate) - p + rate and (1 - p) log(1 - p) + p, from p, 1 - p and log(1 - p).
KULLBACK_INLINE Answer bernoulli_to_poisson(double p, double failure, double log_failure, double rate) {
  const double difference = rate - p;
  const LogQuotient log = log_quotient(rate, p, difference);
  const double near = -log1p_of(-p).x_minus_log1p(-p) - p * log_failure, far = failure * log_failure + p;
  return {p * log.x_minus_log1p(difference / p) + (p < 0.5 ? near : far),
          {-log.value() - log_failure, difference / rate}};
}

// Probabilities 0 and 1 are left to the reference in torch.
struct BernoulliProbsPoissonForm : Within<Range::kProbability, Range::kMildPositive> {
  KULLBACK_INLINE Answer at(double p, double rate, double, double) {
    const bool certain = (p == 0.0) | (p == 1.0);
    const double safe = certain ? 0.5 : p;
    const Answer answer = bernoulli_to_poisson(safe, 1.0 - safe, log1p_of(-safe).value(), rate);
    return {certain ? kNotANumber : answer.value, {answer.derivative[0], answer.derivative[1]}};
  }
};

struct BernoulliLogitsPoissonForm : Within<Range::kLogit, Range::kMildPositive> {
  KULLBACK_INLINE Answer at(double logit, double rate, double, double) {
    const double exp = exp_of_negative(-__builtin_fabs(logit)), likelier = 1.0 / (1.0 + exp), rarer = exp * likelier;
    const bool up = logit > 0.0;
    const double p = up ? likelier : rarer, failure = up ? rarer : likelier;
    const double log_failure = -(up ? logit : 0.0) - log1p_of(exp).value();
    const Answer answer = bernoulli_to_poisson(p, failure, log_failure, rate);
    return {answer.value, {answer.derivative[0] * likelier * rarer, answer.derivative[1]}};
  }
};

// A form of four parameters with parameter `which` fixed to 1.
template <class Form, int which>
struct WithOne : Within<Form::ranges[which == 0], Form::ranges[which <= 1 ? 2 : 1], Form::ranges[which <= 2 ? 3 : 2]> {
  KULLBACK_INLINE Answer at(double a, double b, double c, double) {
    if constexpr (which == 0) {
      const Answer answer = Form::at(1.0, a, b, c);
      return {answer.value, {answer.derivative[1], answer.derivative[2], answer.derivative[3]}};
    } else {
      static_assert(which == 2);
      const Answer answer = Form::at(a, b, 1.0, c);
      return {answer.value, {answer.derivative[0], answer.derivative[1], answer.derivative[3]}};
    }
  }
};

using ExponentialNormalForm = WithOne<GammaNormalForm, 0>;
using ExponentialGumbelForm = WithOne<GammaGumbelForm, 0>;
using BetaExponentialForm = WithOne<BetaGammaForm, 2>;

// The Bregman divergences of lgamma(x) - x log x + x from 1 to a = 1 + z and from a to 1, and the derivative of the
// first with respect to a. For a near 1 the first divergence is S(z) + 2 z - (2 + z) log(1 + z), with S as in math.h.
// The sum of both divergences is z times the derivative.
struct BregmanAtOne {
  double from_one, to_one, by_a;
};

KULLBACK_INLINE BregmanAtOne bregman_at_one(double a) {
  const double z = a - 1.0;
  const bool near = __builtin_fabs(z) < kLgammaNear;
  const double small = near ? z : 0.0;
  const LogQuotient log = log1p_of(small);
  const double log_value = log.value(), series = small * small * polynomial(kLgammaSeries, small);
  const double close = series + 2.0 * log.x_minus_log1p(small) - small * log_value;
  const double close_by_a = small * polynomial(kDigammaSeries, small) + small / (1.0 + small) - log_value;
  const StirlingRemainder far = stirling_remainder(a);
  return {near ? close : far.value - 1.0 + z * kEuler,
          near ? small * close_by_a - close : 1.0 - far.value + z * far.derivative,
          near ? close_by_a : far.derivative + kEuler};
}

struct ExponentialGammaForm : Within<Range::kPositive, Range::kPositive, Range::kPositive> {
  KULLBACK_INLINE Answer at(double rate_p, double a, double rate_q, double) {
    const BregmanAtOne remainder = bregman_at_one(a);
    const double determinant = determinant_of(1.0, rate_p, a, rate_q, a - 1.0, rate_q - rate_p);
    const double log_means = log_quotient(rate_q, a * rate_p, determinant).value();
    const Exponential e = exponential_of(log_means);
    const double by_log_rate = a * e.expm1;
    return {a * e.expm1_minus_x + remainder.from_one,
            {-by_log_rate / rate_p, remainder.by_a - log_means, by_log_rate / rate_q}};
  }
};

struct GammaExponentialForm : Within<Range::kPositive, Range::kPositive, Range::kPositive> {
  KULLBACK_INLINE Answer at(double a, double rate_p, double rate_q, double) {
    const BregmanAtOne remainder = bregman_at_one(a);
    const double z = a - 1.0, determinant = determinant_of(a, rate_p, 1.0, rate_q, -z, rate_q - rate_p);
    const Exponential e = exponential_of(log_quotient(a * rate_q, rate_p, determinant).value());
    return {e.expm1_minus_x + remainder.to_one,
            {e.expm1 / a + z * stirling_curvature(a), -e.expm1 / rate_p, e.expm1 / rate_q}};
  }
};

struct ParetoExponentialForm : Within<Range::kMildPositive, Range::kMildPositive, Range::kMildPositive> {
  KULLBACK_INLINE Answer at(double scale, double alpha, double rate, double) {
    const bool infinite = alpha <= 1.0;
    const double tail = infinite ? 2.0 : alpha, inverse = 1.0 / (tail - 1.0), reciprocal = 1.0 / tail;
    const double least = scale * rate, mean = least * tail * inverse;
    const double by_tail = reciprocal + reciprocal * reciprocal - least * inverse * inverse;
    return {infinite ? kInfinity : log_of(tail / least) - 1.0 - reciprocal + mean,
            {infinite ? 0.0 : (mean - 1.0) / scale, infinite ? 0.0 : by_tail, infinite ? 0.0 : (mean - 1.0) / rate}};
  }
};

}  // namespace KULLBACK_ISA
}  // namespace kullback
