// The terms of torch's kl_div, their sum and their gradients; and KL of rows of weights. The compiler vectorizes the
// plain loops.
#include "../common/convert.h"
#include "task.h"

namespace kullback {
namespace KULLBACK_ISA {

// The number of terms in a block. Terms of a block are summed in `Real`, and the sums of blocks in float64.
constexpr int64_t kTerms = 1024;

template <class Real>
struct Summand {
  Real value, by_log_q, by_target;
};

template <class Real, bool in_logs>
KULLBACK_INLINE Summand<Real> summand_of(Real log_q, Real p, Real log_p) {
  // NaN and +inf in log_q are not log-probabilities. The condition log_q < inf leaves such terms to the formula.
  const bool massless = (in_logs ? log_p == -kInf<Real> : p == Real(0)) & (log_q < kInf<Real>);
  const Real log_ratio = log_p - log_q;
  // Where q = 0, any mass gives the term +inf, even a mass that underflowed to 0. The term's infinite derivative is
  // dropped.
  const bool infinite = log_ratio == kInf<Real>;
  const Real tiny = std::numeric_limits<Real>::min();
  const Real mass = (infinite & (p < tiny)) ? tiny : p;
  const Real finite = infinite ? Real(0) : log_ratio;
  const Real by_target = in_logs ? p * finite + mass : finite + Real(1);
  return {massless ? Real(0) : mass * log_ratio, massless ? Real(0) : -mass, massless ? Real(0) : by_target};
}

// Writes the requested results of one block and returns the sum of its terms. Pointers of absent inputs and unrequested
// results may be null.
template <class Real, bool in_logs, bool with_gradient>
static Real block_of(int64_t n, const Real* log_q, const Real* target, const Real* logs, const Real* grad, Real scale,
                     Real* terms, Real* by_log_q, Real* by_target) {
  Real values[kTerms], derivatives_q[kTerms], derivatives_p[kTerms], masses[in_logs ? kTerms : 1];
  const Real* p = in_logs ? masses : target;
  const Real* log_p = in_logs ? target : logs;
  if constexpr (in_logs) {  // a separate loop, because the compiler would otherwise put it into a branch
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) masses[i] = exp_of(target[i]);
  }
  Real sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t i = 0; i < n; ++i) {
    const Summand<Real> s = summand_of<Real, in_logs>(log_q[i], p[i], log_p[i]);
    values[i] = s.value;
    sum += s.value;
    if constexpr (with_gradient) {
      derivatives_q[i] = s.by_log_q * scale;
      derivatives_p[i] = s.by_target * scale;
    }
  }
  if (terms) std::memcpy(terms, values, n * sizeof(Real));
  if constexpr (with_gradient) {
    const auto write = [&](Real* out, const Real* derivatives) {
      if (!out) return;
      if (!grad) {
        std::memcpy(out, derivatives, n * sizeof(Real));
        return;
      }
      // A derivative of 0 gives 0, even if grad is inf or NaN.
#pragma omp simd
      for (int64_t i = 0; i < n; ++i) out[i] = derivatives[i] == 0 ? Real(0) : derivatives[i] * grad[i];
    };
    write(by_log_q, derivatives_q);
    write(by_target, derivatives_p);
  }
  return sum;
}

// Numbers of 32 or 64 bits are read and written in place. Numbers of 16 bits go through a buffer.
template <class Real, bool in_logs, bool with_gradient>
static double sweep(const TermTask& t) {
  const int64_t bytes = size_of(t.dtype);
  double sum = 0;
  Real log_q[kTerms], target[kTerms], grad[kTerms], terms[kTerms], by_log_q[kTerms], by_target[kTerms];
  for (int64_t start = 0; start < t.size; start += kTerms) {
    const int64_t n = start + kTerms < t.size ? kTerms : t.size - start;
    const auto from = [&](const void* data, Real* buffer) -> const Real* {
      return data ? load(t.dtype, static_cast<const char*>(data) + start * bytes, 1, n, buffer) : nullptr;
    };
    const auto to = [&](void* data, Real* buffer) -> Real* {
      return data && t.dtype == kDtypeOf<Real> ? static_cast<Real*>(data) + start : data ? buffer : nullptr;
    };
    const auto finish = [&](void* data, const Real* buffer) {
      if (data && t.dtype != kDtypeOf<Real>) store(buffer, n, t.dtype, static_cast<char*>(data) + start * bytes);
    };
    const Real* logs = in_logs ? nullptr : static_cast<const Real*>(t.logs) + start;
    sum += block_of<Real, in_logs, with_gradient>(n, from(t.log_q, log_q), from(t.target, target), logs,
                                                  from(t.grad, grad), static_cast<Real>(t.scale), to(t.terms, terms),
                                                  to(t.by_log_q, by_log_q), to(t.by_target, by_target));
    finish(t.terms, terms);
    finish(t.by_log_q, by_log_q);
    finish(t.by_target, by_target);
  }
  return sum;
}

template <class Real>
static double sweep_as_requested(const TermTask& t) {
  const bool with_gradient = t.by_log_q || t.by_target;
  if (t.logs) return with_gradient ? sweep<Real, false, true>(t) : sweep<Real, false, false>(t);
  return with_gradient ? sweep<Real, true, true>(t) : sweep<Real, true, false>(t);
}

double compute_terms(const TermTask& t) {
  return t.dtype == Dtype::kFloat64 ? sweep_as_requested<double>(t) : sweep_as_requested<float>(t);
}

struct WeightSums {
  double sum, least;  // `least` is the smallest of the nonzero weights
};

template <class Real>
static WeightSums sums_of(const Real* x, int64_t n) {
  double sum = 0, least = 1;
#pragma omp simd reduction(+ : sum) reduction(min : least)
  for (int64_t i = 0; i < n; ++i) {
    const double value = x[i];
    sum += value;
    const double positive = value == 0.0 ? 1.0 : value;
    least = positive < least ? positive : least;
  }
  return {sum, least};
}

// With d = log p - log q, the terms p (e^-d - 1 + d) = q - p + p d are non-negative.
template <class Real>
static double kl_of_weights(const WeightsTask& t) {
  const Real *p = static_cast<const Real*>(t.p), *q = static_cast<const Real*>(t.q);
  const WeightSums of_p = sums_of(p, t.classes), of_q = sums_of(q, t.classes);
  const auto is_supported = [&](const WeightSums& x) {
    return x.sum > 0 && x.sum < 1e140 && x.least > 1e-140 && std::fabs(x.sum - 1) <= t.tolerance;
  };
  if (!is_supported(of_p) || !is_supported(of_q)) return -1;
  const double shift = log_of_quotient(of_p.sum, of_q.sum), scale_p = 1 / of_p.sum, scale_q = 1 / of_q.sum;
  double value = 0;
#pragma omp simd reduction(+ : value)
  for (int64_t i = 0; i < t.classes; ++i) {
    const double a = p[i], b = q[i];
    const bool both = (a > 0.0) & (b > 0.0);
    const double log_ratio = log_of_quotient(both ? a : 1.0, both ? b : 1.0) - shift;
    const double mass_p = a * scale_p, mass_q = b * scale_q;
    const bool near = std::fabs(log_ratio) < 0.3;
    const double term =
        near ? mass_p * small_expm1_minus_x(near ? -log_ratio : 0.0) : (mass_q - mass_p) + mass_p * log_ratio;
    const double at_edge = a > 0.0 ? kInf<double> : mass_q;
    value += both ? term : at_edge;
  }
  return value;
}

double compute_kl_of_weights(const WeightsTask& t) {
  return t.dtype == Dtype::kFloat64 ? kl_of_weights<double>(t) : kl_of_weights<float>(t);
}

}  // namespace KULLBACK_ISA
}  // namespace kullback
