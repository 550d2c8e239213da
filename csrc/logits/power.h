// Divergences from powers of p / q: the power divergence and Renyi's divergence, of orders of at least 1/2. Smaller
// orders are computed with P and Q swapped. Rows of float32 are swept in float32 unless their powers need float64's
// range.
#pragma once
#include "rows.h"
#include "terms.h"

namespace kullback {
namespace KULLBACK_ISA {

template <class Real>
constexpr int kPowerTerms = kIsDouble<Real> ? 13 : 9;

template <class Real>
struct PowerConstants {
  Real order, exponent;            // not 0
  Real by_order, by_exponent;      // their inverses
  Real infinite_from;              // the log-ratio that makes the value infinite: +inf, or NaN for none
  Real series[kPowerTerms<Real>];  // (e^(order d) - 1 - order (e^d - 1)) / (order exponent), from d^2 on

  explicit PowerConstants(const Power& of)
      : order(static_cast<Real>(of.order)),
        exponent(static_cast<Real>(of.exponent)),
        by_order(static_cast<Real>(1 / of.order)),
        by_exponent(static_cast<Real>(1 / of.exponent)),
        infinite_from(of.exponent > 0 ? kInf<Real> : std::numeric_limits<Real>::quiet_NaN()) {
    double sum = 0, power = 1, factorial = 1;
    for (int n = 0; n < kPowerTerms<Real>; ++n, power *= of.order) {
      sum += power;
      factorial *= n + 2;
      series[n] = static_cast<Real>(sum / factorial);
    }
  }
};

// The term of one class, its derivatives with respect to log p and log q, q - p, and the affinity p^order q^-exponent.
// In float64, `affinity` is the affinity's logarithm, because the affinity may overflow or underflow.
template <class Real>
struct PowerTerm {
  Real value, derivative_p, derivative_q, difference, affinity;
};

// `log_ratio` is NaN where neither side has mass.
KULLBACK_INLINE PowerTerm<double> power_term(double p, double q, double log_p, double log_ratio,
                                             const PowerConstants<double>& c) {
  const double d = log_ratio == log_ratio ? log_ratio : 0.0;
  const bool near = std::fabs(d) * c.order < 0.3, is_empty = log_p == -kInf<double>;
  const double x = near ? d : 0.0;
  // p (r^exponent - 1) with r = p / q; r^exponent alone may overflow.
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
  // A class that makes the value infinite has derivatives of 0. Large derivatives are bounded, so that sums stay
  // finite.
  const bool is_infinite = d >= c.infinite_from;
  const double bounded = is_infinite ? 0.0 : (change > 1e290 ? 1e290 : change);
  const double derivative_p = bounded * c.by_exponent;
  const double derivative_q = is_infinite ? 0.0 : (difference - bounded) * c.by_order;
  return {is_infinite ? kInf<double> : value, derivative_p, derivative_q, difference,
          is_infinite ? -kInf<double> : log_affinity};
}

// The float32 version of the function above, for rows that satisfy `fits_float32`.
KULLBACK_INLINE PowerTerm<float> power_term(float p, float q, float, float log_ratio, const PowerConstants<float>& c) {
  const float d = log_ratio == log_ratio ? log_ratio : 0.0f;
  const bool near = std::fabs(d) * c.order < 0.3f;
  const float x = near ? d : 0.0f;
  const float log_power = c.exponent * d < 80.0f ? c.exponent * d : 80.0f;  // +inf where P has no mass
  const bool is_tiny = log_power < Format<float>::least_exp;
  const ReducedExponent<float> e = reduce_exponent(log_power);
  const float small = small_expm1_minus_x(e.r) + e.r;
  const uint32_t bits = bits_as<uint32_t>(small + 1.0f) + (bits_as<uint32_t>(e.rounded) << Format<float>::digits);
  const float power = is_tiny ? 0.0f : bits_as<float>(bits);
  const float change = p * (e.n == 0 ? small : power - 1.0f);
  const float difference = difference_of(p, q, d), box_cox = change * c.by_exponent;
  const float value = near ? q * polynomial_in_pairs(c.series, x) * (x * x) : (box_cox + difference) * c.by_order;
  return {value, box_cox, (difference - change) * c.by_order, difference, p * power};
}

// Returns whether float32 can represent the powers of p / q in a row to its own precision. A class with mass only in P
// or only in Q matters only if it makes the divergence infinite or very large.
static bool fits_float32(const Normalized<float>& r, const RowTask& t) {
  constexpr double widest = 80, widest_power = 16, greatest_order = 1000;
  const double exponent = t.power.exponent, bound = widest_power / std::fabs(exponent);
  const bool is_renyi = t.divergence == DivergenceCode::kRenyi;
  const double above = exponent > 0 || is_renyi ? std::fmin(bound, widest) : widest;
  const double below = exponent < 0 && is_renyi ? std::fmin(bound, widest) : widest;
  const float most = static_cast<float>((r.high + above) / t.inverse_temperature);
  const float least = static_cast<float>((r.high - below) / t.inverse_temperature);
  const float left_out = exponent < -0.2 ? kInf<float> : std::numeric_limits<float>::quiet_NaN();
  const float *a = r.a, *b = r.b;
  uint32_t is_wide = t.power.order > greatest_order;
#pragma omp simd reduction(| : is_wide)
  for (int64_t i = 0; i < t.classes; ++i) {
    const float apart = a[i] - b[i];
    const bool is_above = (apart > most) & (apart != left_out), is_below = (apart < least) & (apart > -kInf<float>);
    is_wide |= (is_above | is_below) ? 1u : 0u;
  }
  return !is_wide;
}

// Sets `needs_float64` and writes no result if float32 is not sufficient.
template <class Real, bool to_p, bool to_q, bool is_renyi>
static void sweep_power(const Row<Real>& row, RowTask& t) {
  const int64_t n = t.classes;
  const PowerConstants<Real> constants(t.power);
  const Normalized<Real> r = normalize_both(row, t);
  if constexpr (!kIsDouble<Real>) {
    t.needs_float64 = r.is_huge || !fits_float32(r, t);
    if (t.needs_float64) return;
  }
  const Real inverse_temperature = static_cast<Real>(t.inverse_temperature);
  const Real scale_p = r.scale_p, scale_q = r.scale_q, high = r.high, low = r.low;
  const Real peak_a = r.peak_a, log_sum = static_cast<Real>(std::log(r.p.sum));
  const Real *exp_p = row.exp_p, *exp_q = row.exp_q, *a = r.a, *b = r.b;
  Real *out_p = row.gradient_p, *out_q = row.gradient_q, *affinities = row.affinities;
  double value = 0, sum_p = 0, sum_q = 0, difference = 0, total = 0;
  typename Format<Real>::Bits infinite = 0;
  for (int64_t start = 0; start < n; start += kBlock) {
    const int64_t stop = start + kBlock < n ? start + kBlock : n;
    Real part = 0, part_p = 0, part_q = 0, part_difference = 0, part_total = 0;
#pragma omp simd reduction(+ : part, part_p, part_q, part_difference, part_total) reduction(| : infinite)
    for (int64_t i = start; i < stop; ++i) {
      const Real log_ratio = ((a[i] - b[i]) * inverse_temperature - high) - low;
      const Real mass_p = exp_p[i] * scale_p, mass_q = exp_q[i] * scale_q;
      const Real log_p = kIsDouble<Real> ? (a[i] - peak_a) * inverse_temperature - log_sum : Real(0);
      const PowerTerm<Real> term = power_term(mass_p, mass_q, log_p, log_ratio, constants);
      if constexpr (kIsDouble<Real>) infinite |= log_ratio == kInf<Real> ? 1 : 0;
      if constexpr (!kIsDouble<Real> && is_renyi) part_total += term.affinity;
      part += term.value;
      part_difference += term.difference;
      if constexpr (to_p) part_p += term.derivative_p;
      if constexpr (to_q) part_q += term.derivative_q;
      if constexpr (to_p) out_p[i] = term.derivative_p;
      if constexpr (to_q) out_q[i] = term.derivative_q;
      if constexpr (is_renyi) affinities[i] = term.affinity;
    }
    value += part;
    sum_p += part_p;
    sum_q += part_q;
    difference += part_difference;
    total += part_total;
  }
  if (t.whole) {  // the kind is a power divergence, because Renyi's divergence is not a sum over classes
    const double factor = t.power.weight, weight = t.weight * t.inverse_temperature;
    t.value = factor * value;
    if (t.sums_only) {
      t.sums_p = sums_of_part(out_p, exp_p, n, scale_p, factor);
      t.sums_q = sums_of_part(out_q, exp_q, n, scale_q, factor);
      return;
    }
    if constexpr (to_p) project_part(out_p, exp_p, n, scale_p, t.whole->p.sums, factor, weight);
    if constexpr (to_q) project_part(out_q, exp_q, n, scale_q, t.whole->q.sums, factor, weight);
    return;
  }
  value -= difference * difference / 2;  // corrects the rounding of the normalization, as for the other kinds
  double factor_p = t.power.weight, factor_q = factor_p;
  t.value = t.power.weight * value;
  if constexpr (is_renyi) {
    const double exponent = t.power.exponent;
    const double change = t.power.order * exponent * value;  // the sum of the affinities minus 1
    if (std::fabs(change) < 0.5) {
      t.value = t.power.weight * std::log1p(change);
      factor_p = factor_q = t.power.weight * t.power.order * exponent / (1 + change);
    } else if (value == value) {
      // The logarithm of the sum of affinities, which may overflow or underflow. Its derivatives are the affinities
      // divided by their sum.
      double reference = 0;
      if constexpr (kIsDouble<Real>) {
        const double greatest = peak_of(affinities, n);
        reference = greatest == -kInf<Real> ? 0.0 : greatest;
#pragma omp simd reduction(+ : total)
        for (int64_t i = 0; i < n; ++i) {
          affinities[i] = exp_of_negative(affinities[i] - reference);
          total += affinities[i];
        }
      }
      const bool is_outside = infinite && exponent > 0;  // P has mass where Q has none
      t.value = is_outside ? kInf<double> : t.power.weight * (reference + std::log(total));
      const Real inverse = total == 0 ? Real(0) : static_cast<Real>(1 / total);
      for (int64_t i = 0; to_p && i < n; ++i) out_p[i] = affinities[i] * inverse;
      for (int64_t i = 0; to_q && i < n; ++i) out_q[i] = affinities[i] * inverse;
      sum_p = sum_q = total * inverse;
      factor_p = t.power.weight * t.power.order;
      factor_q = -t.power.weight * exponent;
    }
  }
  if (t.value < 0) t.value = 0;
  const double weight = t.weight * t.inverse_temperature;
  if constexpr (to_p) project_accurately(out_p, exp_p, n, scale_p * sum_p, weight * factor_p);
  if constexpr (to_q) project_accurately(out_q, exp_q, n, scale_q * sum_q, weight * factor_q);
}

template <class Real>
static void sweep_powers(const Row<Real>& row, RowTask& t) {
  sweep_as_requested(row, [&](auto to_p, auto to_q) {
    if (t.divergence == DivergenceCode::kRenyi) return sweep_power<Real, to_p.value, to_q.value, true>(row, t);
    sweep_power<Real, to_p.value, to_q.value, false>(row, t);
  });
}

}  // namespace KULLBACK_ISA
}  // namespace kullback
