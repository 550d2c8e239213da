// The terms of torch's kl_div, their sum and their gradients. This file is compiled once for every instruction set,
// each time into a namespace of its own; plain loops, which the compiler vectorizes.
#include "term_kernel_api.h"
#include "term_math.h"

namespace kullback {
namespace KULLBACK_ISA {

// Terms in a block: they are summed in their own dtype in it, the blocks in float64.
constexpr int64_t kTerms = 1024;

template <typename Real>
struct Summand {
  Real value, by_log_q, by_target;
};

template <typename Real, bool in_logs>
KULLBACK_TERM_INLINE Summand<Real> summand_of(Real log_q, Real p, Real log_p) {
  constexpr Real inf = std::numeric_limits<Real>::infinity();
  // The bound on log_q lets NaN and +inf, which no log-probability is, come through.
  const bool massless = (in_logs ? log_p == -inf : p == Real(0)) & (log_q < inf);
  const Real log_ratio = log_p - log_q;
  // Against q = 0 all mass gives +inf, even one that underflows to 0; its infinite derivative is cut off.
  const bool infinite = log_ratio == inf;
  const Real tiny = std::numeric_limits<Real>::min();
  const Real mass = (infinite & (p < tiny)) ? tiny : p;
  const Real finite = infinite ? Real(0) : log_ratio;
  const Real by_target = in_logs ? p * finite + mass : finite + Real(1);
  return {massless ? Real(0) : mass * log_ratio, massless ? Real(0) : -mass, massless ? Real(0) : by_target};
}

// One block. What is not there is never read or written, so its pointer may be null.
template <typename Real, bool in_logs, bool with_gradient>
static Real block_of(int64_t n, const Real* log_q, const Real* target, const Real* logs, const Real* grad, Real scale,
                     Real* terms, Real* by_log_q, Real* by_target) {
  Real values[kTerms], derivatives_q[kTerms], derivatives_p[kTerms], masses[in_logs ? kTerms : 1];
  const Real* p = in_logs ? masses : target;
  const Real* log_p = in_logs ? target : logs;
  if constexpr (in_logs) {  // on its own, as the compiler would else put it into a branch
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
#pragma omp simd
      for (int64_t i = 0; i < n; ++i) out[i] = derivatives[i] == 0 ? Real(0) : derivatives[i] * grad[i];  // 0 also if grad is inf
    };
    write(by_log_q, derivatives_q);
    write(by_target, derivatives_p);
  }
  return sum;
}

template <typename Real, bool in_logs, bool with_gradient, typename Load, typename Place, typename Store>
static double sweep(const TermTask& t, const Load& load, const Place& place, const Store& store) {
  double sum = 0;
  Real log_q[kTerms], target[kTerms], grad[kTerms], terms[kTerms], by_log_q[kTerms], by_target[kTerms];
  for (int64_t start = 0; start < t.size; start += kTerms) {
    const int64_t n = start + kTerms < t.size ? kTerms : t.size - start;
    const Real* logs = in_logs ? nullptr : static_cast<const Real*>(t.logs) + start;
    Real* to_terms = place(t.terms, start, terms);
    Real* to_log_q = place(t.by_log_q, start, by_log_q);
    Real* to_target = place(t.by_target, start, by_target);
    sum += block_of<Real, in_logs, with_gradient>(n, load(t.log_q, start, n, log_q), load(t.target, start, n, target),
                                                  logs, load(t.grad, start, n, grad), static_cast<Real>(t.scale),
                                                  to_terms, to_log_q, to_target);
    store(to_terms, t.terms, start, n);
    store(to_log_q, t.by_log_q, start, n);
    store(to_target, t.by_target, start, n);
  }
  return sum;
}

// Numbers of 32 or 64 bits are read and written where they are.
template <typename Real, bool in_logs, bool with_gradient>
static double sweep_wide(const TermTask& t) {
  const auto load = [](const void* from, int64_t start, int64_t, Real*) -> const Real* {
    return from ? static_cast<const Real*>(from) + start : nullptr;
  };
  const auto place = [](void* to, int64_t start, Real*) -> Real* {
    return to ? static_cast<Real*>(to) + start : nullptr;
  };
  const auto store = [](Real*, void*, int64_t, int64_t) {};
  return sweep<Real, in_logs, with_gradient>(t, load, place, store);
}

// Numbers of 16 bits go through a buffer of float32.
template <bool is_bfloat16, bool in_logs, bool with_gradient>
static double sweep_narrow(const TermTask& t) {
  const auto load = [](const void* from, int64_t start, int64_t n, float* buffer) -> const float* {
    if (!from) return nullptr;
    const uint16_t* numbers = static_cast<const uint16_t*>(from) + start;
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) buffer[i] = is_bfloat16 ? widen_bfloat16(numbers[i]) : widen_float16(numbers[i]);
    return buffer;
  };
  const auto place = [](void* to, int64_t, float* buffer) -> float* { return to ? buffer : nullptr; };
  const auto store = [](float* buffer, void* to, int64_t start, int64_t n) {
    if (!to) return;
    uint16_t* numbers = static_cast<uint16_t*>(to) + start;
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) numbers[i] = is_bfloat16 ? narrow_bfloat16(buffer[i]) : narrow_float16(buffer[i]);
  };
  return sweep<float, in_logs, with_gradient>(t, load, place, store);
}

template <bool in_logs, bool with_gradient>
static double sweep_of(const TermTask& t) {
  switch (t.number) {
    case Number::kFloat32: return sweep_wide<float, in_logs, with_gradient>(t);
    case Number::kFloat64: return sweep_wide<double, in_logs, with_gradient>(t);
    case Number::kBFloat16: return sweep_narrow<true, in_logs, with_gradient>(t);
    default: return sweep_narrow<false, in_logs, with_gradient>(t);
  }
}

double compute_terms(const TermTask& t) {
  const bool with_gradient = t.by_log_q || t.by_target;
  if (t.logs) return with_gradient ? sweep_of<false, true>(t) : sweep_of<false, false>(t);
  return with_gradient ? sweep_of<true, true>(t) : sweep_of<true, false>(t);
}

struct WeightSums {
  double sum, least;  // of the weights that are not 0
};

template <typename Real>
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

// e^-x - 1 + x for |x| < 0.1.
KULLBACK_TERM_INLINE double wide_bracket(double x) {
  double s = 1.0 / 3628800;
  s = s * x - 1.0 / 362880;
  s = s * x + 1.0 / 40320;
  s = s * x - 1.0 / 5040;
  s = s * x + 1.0 / 720;
  s = s * x - 1.0 / 120;
  s = s * x + 1.0 / 24;
  s = s * x - 1.0 / 6;
  s = s * x + 0.5;
  return s * x * x;
}

// With d = log p - log q the terms p (e^-d - 1 + d) = q - p + p d are not negative.
template <typename Real>
static double kl_of_weights(const WeightsTask& t) {
  constexpr double inf = std::numeric_limits<double>::infinity();
  const Real *p = static_cast<const Real*>(t.p), *q = static_cast<const Real*>(t.q);
  const WeightSums of_p = sums_of(p, t.classes), of_q = sums_of(q, t.classes);
  const auto taken = [&](const WeightSums& x) {
    return x.sum > 0 && x.sum < 1e140 && x.least > 1e-140 && std::fabs(x.sum - 1) <= t.tolerance;
  };
  if (!taken(of_p) || !taken(of_q)) return -1;
  const double shift = log_quotient(of_p.sum, of_q.sum), scale_p = 1 / of_p.sum, scale_q = 1 / of_q.sum;
  double value = 0;
#pragma omp simd reduction(+ : value)
  for (int64_t i = 0; i < t.classes; ++i) {
    const double a = p[i], b = q[i];
    const bool both = (a > 0.0) & (b > 0.0);
    const double log_ratio = log_quotient(both ? a : 1.0, both ? b : 1.0) - shift;
    const double mass_p = a * scale_p, mass_q = b * scale_q;
    const bool near = std::fabs(log_ratio) < 0.1;
    const double term = near ? mass_p * wide_bracket(log_ratio) : (mass_q - mass_p) + mass_p * log_ratio;
    const double at_edge = a > 0.0 ? inf : mass_q;
    value += both ? term : at_edge;
  }
  return value;
}

double compute_weights(const WeightsTask& t) {
  return t.number == Number::kFloat64 ? kl_of_weights<double>(t) : kl_of_weights<float>(t);
}

}  // namespace KULLBACK_ISA
}  // namespace kullback
