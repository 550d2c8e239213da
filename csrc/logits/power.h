// Divergences made of powers of p / q: the power divergence of an order of at least 1/2, and Renyi's. Smaller orders are
// those with P and Q exchanged. All in float64.
#pragma once
#include "rows.h"
#include "terms.h"

namespace kullback {
namespace KULLBACK_ISA {

constexpr int kPowerTerms = 13;

struct PowerConstants {
  double order, exponent;        // exponent = order - 1, not 0
  double by_order, by_exponent;  // their inverses
  double infinite_from;          // the log-ratio that makes the value infinite: +inf, or none
  double series[kPowerTerms];    // of (e^(order d) - 1 - order (e^d - 1)) / (order exponent), from d^2 upwards

  explicit PowerConstants(double of_order)
      : order(of_order), exponent(of_order - 1), by_order(1 / order), by_exponent(1 / exponent) {
    infinite_from = exponent > 0 ? kInf<double> : std::numeric_limits<double>::quiet_NaN();
    double sum = 0, power = 1, factorial = 1;
    for (int n = 0; n < kPowerTerms; ++n, power *= order) {
      sum += power;
      factorial *= n + 2;
      series[n] = sum / factorial;
    }
  }
};

// What one class adds, the derivatives of that by log p and log q, and log(p^order q^exponent).
struct PowerTerm {
  double value, derivative_p, derivative_q, log_affinity;
};

// `log_ratio` is NaN where neither side has mass.
KULLBACK_INLINE PowerTerm power_term(double p, double q, double log_p, double log_ratio, const PowerConstants& c) {
  const double d = log_ratio == log_ratio ? log_ratio : 0.0;
  const bool near = std::fabs(d) * c.order < 0.3, is_empty = log_p == -kInf<double>;
  const double x = near ? d : 0.0;
  // p (r^exponent - 1) with r = p / q, where r^exponent alone may overflow.
  const double log_power = c.exponent * d, log_affinity = is_empty ? -kInf<double> : log_p + log_power;
  const bool is_large = log_power > 1.0;
  double argument = is_large ? log_affinity : log_power;
  argument = argument < -746.0 ? -746.0 : argument;
  argument = argument > 710.0 ? 710.0 : argument;
  const ReducedExponent<double> e = reduce_exponent(argument);
  const double small = small_expm1_minus_x(e.r) + e.r, power = scale_by_power(small + 1.0, e);
  const double change = is_large ? power - p : p * (e.n == 0 ? small : power - 1.0);
  const double difference = difference_of(p, q, d), box_cox = change * c.by_exponent;
  const double value = near ? q * polynomial_in_pairs(c.series, x) * (x * x) : (box_cox + difference) * c.by_order;
  // A class that makes the value infinite has no derivatives; sums of large ones stay finite.
  const bool is_infinite = d >= c.infinite_from;
  const double bounded = is_infinite ? 0.0 : (change > 1e290 ? 1e290 : change);
  const double derivative_p = bounded * c.by_exponent;
  const double derivative_q = is_infinite ? 0.0 : (difference - bounded) * c.by_order;
  return {is_infinite ? kInf<double> : value, derivative_p, derivative_q, is_infinite ? -kInf<double> : log_affinity};
}

// As `project`; the entry of the class with most mass is what the others, which sum to zero with it, leave for it, since
// it would be a difference of nearly equal numbers.
static void project_accurately(double* derivatives, const double* e, int64_t n, double factor, double weight) {
  int64_t top = 0;  // the first with e^0
  for (bool found = false; !found && top < n; top += found ? 0 : kBlock) {
    const int64_t stop = top + kBlock < n ? top + kBlock : n;
    double most = 0;
#pragma omp simd reduction(max : most)
    for (int64_t i = top; i < stop; ++i) most = e[i] > most ? e[i] : most;
    found = most == 1;
    while (found && e[top] != 1) ++top;
  }
  if (top >= n) return project(derivatives, e, n, factor, weight);  // a row of NaN
  project(derivatives, e, n, factor, weight);
  double sum = 0;
  derivatives[top] = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t i = 0; i < n; ++i) sum += derivatives[i];
  derivatives[top] = -sum;
}

template <bool to_p, bool to_q, bool is_renyi>
static void sweep_power(const Row<double>& row, RowTask& t) {
  const int64_t n = t.classes;
  const PowerConstants constants(t.power.order);
  const Normalized<double> r = normalize_both(row, t);
  const double log_sum = std::log(r.p.sum), inverse_temperature = t.inverse_temperature;
  const double *exp_p = row.exp_p, *exp_q = row.exp_q, *a = r.a, *b = r.b;
  double *out_p = row.gradient_p, *out_q = row.gradient_q, *affinities = row.affinities;
  double value = 0, sum_p = 0, sum_q = 0, greatest = -kInf<double>, most = 0;
#pragma omp simd reduction(+ : value, sum_p, sum_q) reduction(max : greatest, most)
  for (int64_t i = 0; i < n; ++i) {
    const double log_ratio = ((a[i] - b[i]) * inverse_temperature - r.high) - r.low;
    const double log_p = (a[i] - r.peak_a) * inverse_temperature - log_sum;
    const PowerTerm term = power_term(exp_p[i] * r.scale_p, exp_q[i] * r.scale_q, log_p, log_ratio, constants);
    value += term.value;
    most = log_ratio > most ? log_ratio : most;
    if constexpr (to_p) sum_p += term.derivative_p;
    if constexpr (to_q) sum_q += term.derivative_q;
    if constexpr (to_p) out_p[i] = term.derivative_p;
    if constexpr (to_q) out_q[i] = term.derivative_q;
    if constexpr (is_renyi) {
      affinities[i] = term.log_affinity;
      greatest = term.log_affinity > greatest ? term.log_affinity : greatest;
    }
  }
  const bool is_outside = most == kInf<double> && constants.exponent > 0;  // P has mass where Q has none
  double factor_p = t.power.weight, factor_q = factor_p;
  t.value = t.power.weight * value;
  if constexpr (is_renyi) {
    const double change = constants.order * constants.exponent * value;  // the sum of the affinities, less 1
    if (std::fabs(change) < 0.5) {
      t.value = t.power.weight * std::log1p(change);
      factor_p = factor_q = t.power.weight * constants.order * constants.exponent / (1 + change);
    } else {  // the sum itself, which may over- or underflow; its derivatives are the shares of its terms
      const double reference = greatest == -kInf<double> ? 0.0 : greatest;
      double total = 0;
#pragma omp simd reduction(+ : total)
      for (int64_t i = 0; i < n; ++i) {
        affinities[i] = exp_of_negative(affinities[i] - reference);
        total += affinities[i];
      }
      t.value = is_outside ? kInf<double> : t.power.weight * (reference + std::log(total));
      const double inverse = total == 0 ? 0.0 : 1 / total;
      for (int64_t i = 0; to_p && i < n; ++i) out_p[i] = affinities[i] * inverse;
      for (int64_t i = 0; to_q && i < n; ++i) out_q[i] = affinities[i] * inverse;
      sum_p = sum_q = total * inverse;
      factor_p = t.power.weight * constants.order;
      factor_q = -t.power.weight * constants.exponent;
    }
  }
  if (t.value < 0) t.value = 0;
  const double weight = t.weight * inverse_temperature;
  if constexpr (to_p) project_accurately(out_p, exp_p, n, r.scale_p * sum_p, weight * factor_p);
  if constexpr (to_q) project_accurately(out_q, exp_q, n, r.scale_q * sum_q, weight * factor_q);
}

template <bool is_renyi>
static void sweep_powers_of(const Row<double>& row, RowTask& t) {
  if (row.gradient_p && row.gradient_q) return sweep_power<true, true, is_renyi>(row, t);
  if (row.gradient_p) return sweep_power<true, false, is_renyi>(row, t);
  if (row.gradient_q) return sweep_power<false, true, is_renyi>(row, t);
  return sweep_power<false, false, is_renyi>(row, t);
}

static void sweep_powers(const Row<double>& row, RowTask& t) {
  t.divergence == DivergenceCode::kRenyi ? sweep_powers_of<true>(row, t) : sweep_powers_of<false>(row, t);
}

}  // namespace KULLBACK_ISA
}  // namespace kullback
