// The closed forms: the value of one element, and its derivatives with respect to P's parameters and then Q's. Formulas
// and sources are documented in the Python versions in pairs/families. A value of NaN requests the Python version.
#pragma once
#include "math.h"
#include "task.h"

namespace kullback {
namespace KULLBACK_ISA {

constexpr double kInfinity = kInf<double>;
constexpr double kNotANumber = std::numeric_limits<double>::quiet_NaN();

// The parameter ranges in which the arithmetic does not overflow or underflow float64. Forms between two families
// contain squares of quotients, and need the smaller ranges kMild and kMildPositive.
enum class Range { kReal, kPositive, kLogit, kProbability, kCount, kMild, kMildPositive };

KULLBACK_INLINE bool is_within(Range range, double x) {
  switch (range) {
    case Range::kPositive: return (x >= 1e-75) & (x <= 1e75);
    case Range::kLogit: return (x >= -340.0) & (x <= 340.0);
    case Range::kProbability: return (x <= 1.0) & ((x >= 1e-75) | (x == 0.0));
    case Range::kCount: return (x >= 0.0) & (x <= 1e75);
    case Range::kMild: return (x >= -1e30) & (x <= 1e30);
    case Range::kMildPositive: return (x >= 1e-30) & (x <= 1e30);
    default: return (x >= -1e75) & (x <= 1e75);
  }
}

// The base class of the forms, with the range of each parameter of P and then of Q.
template <Range... of>
struct Within {
  static constexpr Range ranges[] = {of...};
};

struct Answer {
  double value;
  double derivative[kMostParameters];
};

struct NormalForm : Within<Range::kReal, Range::kPositive, Range::kReal, Range::kPositive> {
  KULLBACK_INLINE Answer at(double loc_p, double scale_p, double loc_q, double scale_q) {
    const double inverse = 1.0 / scale_q, difference = scale_p - scale_q;
    const double shift = (loc_p - loc_q) * inverse, relative = difference * inverse;
    const LogQuotient log = log_quotient(scale_p, scale_q, difference);
    const double value = 0.5 * (shift * shift + relative * relative) + log.x_minus_log1p(relative);
    const double by_loc = shift * inverse;
    return {value,
            {by_loc, relative * (scale_p + scale_q) / (scale_p * scale_q), -by_loc,
             -inverse * (relative * (relative + 2.0) + shift * shift)}};
  }
};

struct HalfNormalForm : Within<Range::kPositive, Range::kPositive> {
  KULLBACK_INLINE Answer at(double scale_p, double scale_q, double, double) {
    const Answer answer = NormalForm::at(0.0, scale_p, 0.0, scale_q);
    return {answer.value, {answer.derivative[1], answer.derivative[3]}};
  }
};

struct LaplaceForm : Within<Range::kReal, Range::kPositive, Range::kReal, Range::kPositive> {
  KULLBACK_INLINE Answer at(double loc_p, double scale_p, double loc_q, double scale_q) {
    const double inverse = 1.0 / scale_q, difference = scale_p - scale_q, relative = difference * inverse;
    const double shift = loc_p - loc_q, y = __builtin_fabs(shift) / scale_p;
    const bool far = y > 690.0;
    const Exponential e = exponential_of(far ? -690.0 : -y);
    const double bracket = far ? y - 1.0 : e.expm1_minus_x, ratio = scale_p * inverse;
    const double value = log_quotient(scale_p, scale_q, difference).x_minus_log1p(relative) + ratio * bracket;
    const double by_loc = (shift < 0.0 ? e.expm1 : -e.expm1) * inverse;
    // 1 - (1 + y) e^-y, the lower incomplete gamma function of order 2
    const double gamma_2 = y * y - e.expm1_minus_x * (1.0 + y);
    // For y > 1, the terms 1 / s_q in the derivative with respect to s_p cancel and are left out.
    const double by_scale_p =
        y > 1.0 ? (1.0 + y) * e.value * inverse - 1.0 / scale_p : relative / scale_p - gamma_2 * inverse;
    const double by_scale_q = -inverse * (relative + ratio * bracket);
    return {value, {by_loc, by_scale_p, -by_loc, by_scale_q}};
  }
};

struct CauchyForm : Within<Range::kReal, Range::kPositive, Range::kReal, Range::kPositive> {
  KULLBACK_INLINE Answer at(double loc_p, double scale_p, double loc_q, double scale_q) {
    const double shift = loc_p - loc_q, difference = scale_p - scale_q, sum = scale_p + scale_q;
    const double square = shift * shift;
    const double z = 0.25 * (difference * difference + square) / (scale_p * scale_q);
    const double inverse = 1.0 / (sum * sum + square), product = difference * sum;
    const double by_loc = 2.0 * shift * inverse;
    return {log1p_of(z).value(),
            {by_loc, (product - square) * inverse / scale_p, -by_loc, -(product + square) * inverse / scale_q}};
  }
};

struct HalfCauchyForm : Within<Range::kPositive, Range::kPositive> {
  KULLBACK_INLINE Answer at(double scale_p, double scale_q, double, double) {
    const Answer answer = CauchyForm::at(0.0, scale_p, 0.0, scale_q);
    return {answer.value, {answer.derivative[1], answer.derivative[3]}};
  }
};

// With D = t + lgamma(1 + r): e^D - 1 - D + B, where B is the Bregman divergence of lgamma from 1 to r = 1 + z.
struct GumbelForm : Within<Range::kReal, Range::kPositive, Range::kReal, Range::kPositive> {
  KULLBACK_INLINE Answer at(double loc_p, double scale_p, double loc_q, double scale_q) {
    const double inverse = 1.0 / scale_q, difference = scale_p - scale_q;
    const double shift = (loc_q - loc_p) * inverse, ratio = scale_p * inverse, z = difference * inverse;
    const LogQuotient log = log_quotient(scale_p, scale_q, difference);
    const double log_ratio = log.value();
    const bool near = __builtin_fabs(z) < kLgammaNear;
    const double small = near ? z : 0.0, series = small * small * polynomial(kLgammaSeries, small);
    const double series_derivative = small * polynomial(kDigammaSeries, small);
    const LogGamma far = lgamma_of(near ? 3.0 : ratio);
    const double beyond = near ? (1.0 - kEuler) * small + series : far.value + log_ratio;  // lgamma(1 + r)
    const double bregman = near ? log.x_minus_log1p(z) + series : far.value + kEuler * z;
    const double inverse_ratio = scale_q / scale_p;
    const double beyond_derivative = near ? 1.0 - kEuler + series_derivative : far.derivative + inverse_ratio;
    const double bregman_derivative = near ? z * inverse_ratio + series_derivative : far.derivative + kEuler;
    const double d = shift + beyond;
    const Exponential e = exponential_of(d < -690.0 ? -690.0 : d > 690.0 ? 690.0 : d);
    const double bracket = d < -690.0 ? -1.0 - d : e.expm1_minus_x;
    const double by_ratio = e.expm1 * beyond_derivative + bregman_derivative;
    const double by_loc = e.expm1 * inverse;
    return {d > 690.0 ? kNotANumber : bracket + bregman,
            {-by_loc, by_ratio * inverse, by_loc, -inverse * (e.expm1 * shift + ratio * by_ratio)}};
  }
};

struct ExponentialForm : Within<Range::kPositive, Range::kPositive> {
  KULLBACK_INLINE Answer at(double rate_p, double rate_q, double, double) {
    const double difference = rate_q - rate_p, z = difference / rate_p;
    return {log_quotient(rate_q, rate_p, difference).x_minus_log1p(z), {-z / rate_p, z / rate_q}};
  }
};

struct ParetoForm : Within<Range::kPositive, Range::kPositive, Range::kPositive, Range::kPositive> {
  KULLBACK_INLINE Answer at(double scale_p, double alpha_p, double scale_q, double alpha_q) {
    const double difference = alpha_q - alpha_p, z = difference / alpha_p;
    const bool outside = scale_p < scale_q, equal = (scale_p == scale_q) & (difference == 0.0);
    const double logs = log_quotient(scale_p, scale_q, scale_p - scale_q).value();
    const double value = log_quotient(alpha_q, alpha_p, difference).x_minus_log1p(z) + alpha_q * logs;
    const double by_log_scale = (outside | equal) ? 0.0 : alpha_q;
    return {outside ? kInfinity : value,
            {by_log_scale / scale_p, outside ? 0.0 : -z / alpha_p, -by_log_scale / scale_q,
             outside ? 0.0 : z / alpha_q + logs}};
  }
};

struct UniformForm : Within<Range::kReal, Range::kReal, Range::kReal, Range::kReal> {
  KULLBACK_INLINE Answer at(double low_p, double high_p, double low_q, double high_q) {
    const double width = high_p - low_p, margin = (low_p - low_q) + (high_q - high_p);
    const bool outside = (low_p < low_q) | (high_p > high_q), moves = (margin > 0.0) & !outside;
    const double inverse = 1.0 / width, z = moves ? margin * inverse : 0.0;
    const double by_p = moves ? inverse : 0.0, by_q = moves ? 1.0 / (width + margin) : 0.0;
    const double value = outside ? kInfinity : log1p_of(z).value();
    return {((width >= 1e-75) & (z <= 1e150)) ? value : kNotANumber, {by_p, -by_p, -by_q, by_q}};
  }
};

struct PoissonForm : Within<Range::kPositive, Range::kPositive> {
  KULLBACK_INLINE Answer at(double rate_p, double rate_q, double, double) {
    const double difference = rate_q - rate_p;
    const LogQuotient log = log_quotient(rate_q, rate_p, difference);
    return {rate_p * log.x_minus_log1p(difference / rate_p), {-log.value(), difference / rate_q}};
  }
};

// KL of one trial with the probabilities of success p and q. If p > 1/2, success and failure are swapped.
struct TrialOfLogits {
  double value, by_q;
  double probability, difference, exp;  // P's rarer outcome: its probability, logit_p - logit_q, and e^-|logit_p|
  double log_likelier;                  // log(P / Q) of P's likelier outcome
  bool flipped;
};

KULLBACK_INLINE TrialOfLogits trial_of_logits(double logit_p, double logit_q) {
  const bool flipped = logit_p > 0.0;
  const double d = flipped ? logit_q - logit_p : logit_p - logit_q;
  const double exp = exponential_of(flipped ? -logit_p : logit_p).value, probability = exp / (1.0 + exp);
  const Exponential e = exponential_of(-d);
  const double w = probability * e.expm1;
  const LogQuotient log = log1p_of(w);
  const double near = probability * e.expm1_minus_x - log.x_minus_log1p(w), log_likelier = log.value();
  const double value = __builtin_fabs(d) < 1.0 ? near : log_likelier + d * probability;
  return {value, w * (1.0 - probability) / (1.0 + w), probability, d, exp, log_likelier, flipped};
}

struct BernoulliLogitsForm : Within<Range::kLogit, Range::kLogit> {
  KULLBACK_INLINE Answer at(double logit_p, double logit_q, double, double) {
    const TrialOfLogits t = trial_of_logits(logit_p, logit_q);
    const double by_p = t.difference * t.probability * (1.0 - t.probability);
    return {t.value, {t.flipped ? -by_p : by_p, t.flipped ? -t.by_q : t.by_q}};
  }
};

struct GeometricLogitsForm : Within<Range::kLogit, Range::kLogit> {
  KULLBACK_INLINE Answer at(double logit_p, double logit_q, double, double) {
    const TrialOfLogits t = trial_of_logits(logit_p, logit_q);
    const double odds = t.flipped ? t.exp : 1.0 / t.exp;  // odds of failure
    const double log_failure = t.flipped ? t.difference + t.log_likelier : t.log_likelier;
    const double trials = 1.0 + odds;
    return {t.value * trials, {-odds * log_failure, (t.flipped ? -t.by_q : t.by_q) * trials}};
  }
};

struct TrialOfProbs {
  double value, by_p, by_q, log_failure;  // log(Q / P) of failure
};

struct OutcomeTerm {
  double value, log;  // p (x - 1 - log x) and log x at x = q / p
};

KULLBACK_INLINE OutcomeTerm outcome_term(double p, double q, double difference) {
  const double least = p < q ? p : q;
  const double safe_p = least == 0.0 ? 1.0 : p, safe = least == 0.0 ? 0.0 : difference;
  const LogQuotient log = log_quotient(least == 0.0 ? 1.0 : q, safe_p, safe);
  const double at_edge = p == 0.0 ? q : kInfinity;
  return {least == 0.0 ? at_edge : p * log.x_minus_log1p(safe / safe_p), log.value()};
}

KULLBACK_INLINE TrialOfProbs trial_of_probs(double p, double q) {
  const double difference = q - p;
  const OutcomeTerm success = outcome_term(p, q, difference), failure = outcome_term(1.0 - p, 1.0 - q, -difference);
  const double spread_p = p * (1.0 - p), spread_q = q * (1.0 - q), both = spread_p * spread_q;
  return {success.value + failure.value, both == 0.0 ? 0.0 : failure.log - success.log,
          spread_q == 0.0 ? 0.0 : difference / spread_q, both == 0.0 ? 0.0 : failure.log};
}

struct BernoulliProbsForm : Within<Range::kProbability, Range::kProbability> {
  KULLBACK_INLINE Answer at(double p, double q, double, double) {
    const TrialOfProbs t = trial_of_probs(p, q);
    return {t.value, {t.by_p, t.by_q}};
  }
};

struct GeometricProbsForm : Within<Range::kPositive, Range::kPositive> {
  KULLBACK_INLINE Answer at(double p, double q, double, double) {
    const TrialOfProbs t = trial_of_probs(p, q);
    const double trials = 1.0 / p;
    return {((p <= 1.0) & (q <= 1.0)) ? t.value * trials : kNotANumber,
            {t.log_failure * trials * trials, t.by_q * trials}};
  }
};

// Different counts have no closed form. The derivatives with respect to the counts are 0.
template <class Trial, Range range>
struct BinomialForm : Within<Range::kCount, range, Range::kCount, range> {
  KULLBACK_INLINE Answer at(double count_p, double p, double count_q, double q) {
    const Answer trial = Trial::at(p, q, 0.0, 0.0);
    const double value = count_p == 0.0 ? 0.0 : count_p * trial.value;
    return {count_p == count_q ? value : kNotANumber,
            {0.0, count_p * trial.derivative[0], 0.0, count_p * trial.derivative[1]}};
  }
};

using BinomialLogitsForm = BinomialForm<BernoulliLogitsForm, Range::kLogit>;
using BinomialProbsForm = BinomialForm<BernoulliProbsForm, Range::kProbability>;

}  // namespace KULLBACK_ISA
}  // namespace kullback
