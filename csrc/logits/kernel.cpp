// One row of logits of P and one of Q: their divergence and its gradients. Plain loops, which the compiler vectorizes.
#include "../common/convert.h"
#include "task.h"
#include "terms.h"

namespace kullback {
namespace KULLBACK_ISA {

// Lanes are summed in their own precision over a block, blocks in float64.
constexpr int64_t kBlock = 1024;

// Where a row is; a gradient that is not wanted is null, and may be the same memory as the logits it belongs to.
template <class Real>
struct Row {
  const Real* p;
  const Real* q;
  Real* exp_p;
  Real* exp_q;
  Real* spare;  // may be that of p's logits, or of its gradient
  Real* gradient_p;
  Real* gradient_q;
};

struct Statistics {
  double peak;
  double sum;
};

// Peak and sum of exponentials of one row; the exponentials themselves stay in `e`.
template <class Real>
KULLBACK_INLINE Statistics normalize(const Real* x, Real* e, int64_t n, Real inverse_temperature) {
  Real peak = -kInf<Real>;
#pragma omp simd reduction(max : peak)
  for (int64_t i = 0; i < n; ++i) peak = x[i] > peak ? x[i] : peak;
  double sum = 0;
  for (int64_t start = 0; start < n; start += kBlock) {
    const int64_t stop = start + kBlock < n ? start + kBlock : n;
    Real part = 0;
#pragma omp simd reduction(+ : part)
    for (int64_t i = start; i < stop; ++i) {
      const Real value = exp_of_negative((x[i] - peak) * inverse_temperature);
      e[i] = value;
      part += value;
    }
    sum += part;
  }
  return {peak, sum};
}

// Whether differences of logits would be rounded to more than a few units of the last place of small logits.
KULLBACK_INLINE bool far_apart(double peak_p, double peak_q) {
  const double distance = std::fabs(peak_p - peak_q);
  return distance > 4 && distance < 1e30;
}

template <class Real>
static const Real* shifted(const Real* x, Real offset, Real* to, int64_t n) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) to[i] = x[i] - offset;
  return to;
}

// What a gradient is finished with: the sum of the derivatives by log-probabilities, and the sum of their sizes.
struct DerivativeSums {
  double sum = 0, size = 0;
};

template <class Real>
static void project(Real* derivatives, const Real* e, int64_t n, Real factor, Real weight) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) derivatives[i] = weight * (derivatives[i] - e[i] * factor);
}

// Derivatives by log-probabilities become a gradient by logits. Those that sum to zero were written as the gradient at
// once; their sum shows the rounding of the normalization, which matters where P and Q nearly agree.
template <bool at_once, class Real>
static void finish(Real* derivatives, const Real* e, int64_t n, Real scale, DerivativeSums sums, Real weight) {
  const Real factor = scale * static_cast<Real>(sums.sum);
  if constexpr (!at_once) {
    project(derivatives, e, n, factor, weight);
  } else if (std::fabs(sums.sum) > (kIsDouble<Real> ? 1e-15 : 1e-6) * sums.size) {
    project(derivatives, e, n, weight * factor, Real(1));
  }
}

template <class Real, int form, bool to_p, bool to_q>
static void sweep(const Row<Real>& row, RowTask& t) {
  const int64_t n = t.classes;
  const Real inverse_temperature = static_cast<Real>(t.inverse_temperature);
  const Statistics p = normalize(row.p, row.exp_p, n, inverse_temperature);
  const Statistics q = normalize(row.q, row.exp_q, n, inverse_temperature);
  const Real scale_p = static_cast<Real>(1.0 / p.sum), scale_q = static_cast<Real>(1.0 / q.sum);
  // log p - log q = (a - b) / T - shift. The shift is subtracted in two parts, as one alone would round it. Sides far
  // apart are brought together first, as a - b would be rounded.
  const Real offset = far_apart(p.peak, q.peak) ? static_cast<Real>(p.peak - q.peak) : Real(0);
  const Real* logits_p = offset == 0 ? row.p : shifted(row.p, offset, row.spare, n);
  const Real* logits_q = row.q;
  const double shift = (p.peak - q.peak - offset) * t.inverse_temperature + std::log(p.sum / q.sum);
  const Real high = static_cast<Real>(shift), low = static_cast<Real>(shift - high);
  // The derivatives of KL by log q, and of reverse KL by log p, sum to zero, so that they are the gradient at once.
  constexpr bool q_at_once = form == kKLForm, p_at_once = form == kReverseKLForm;
  constexpr bool is_variation = form == kTotalVariationForm;
  const Real weight = static_cast<Real>(t.weight) * inverse_temperature;
  const Real *exp_p = row.exp_p, *exp_q = row.exp_q;
  Real *out_p = row.gradient_p, *out_q = row.gradient_q;
  const Sides<Real> sides{Side<Real>(t.p), Side<Real>(t.q)};
  double value = 0, sum_p = 0, sum_q = 0, size = 0, difference = 0;
  for (int64_t start = 0; start < n; start += kBlock) {
    const int64_t stop = start + kBlock < n ? start + kBlock : n;
    Real part = 0, part_p = 0, part_q = 0, part_size = 0, part_difference = 0;
#pragma omp simd reduction(+ : part, part_p, part_q, part_size, part_difference)
    for (int64_t i = start; i < stop; ++i) {
      const Real mass_p = exp_p[i] * scale_p, mass_q = exp_q[i] * scale_q;
      const Real d = ((logits_p[i] - logits_q[i]) * inverse_temperature - high) - low;
      const Term<Real> term = term_of<form>(mass_p, mass_q, d, sides);
      part += term.value;
      if constexpr (to_p) part_p += term.derivative_p;
      if constexpr (is_variation || to_q) part_q += term.derivative_q;
      if constexpr (to_p && p_at_once) part_size += std::fabs(term.derivative_p);
      if constexpr (to_q && q_at_once) part_size += std::fabs(term.derivative_q);
      if constexpr (is_variation) part_difference += difference_of(mass_p, mass_q, d);
      if constexpr (to_p) out_p[i] = p_at_once ? weight * term.derivative_p : term.derivative_p;
      if constexpr (to_q) out_q[i] = q_at_once ? weight * term.derivative_q : term.derivative_q;
    }
    value += part;
    sum_p += part_p;
    sum_q += part_q;
    size += part_size;
    difference += part_difference;
  }
  // Only this kind feels the rounding of `shift`, which shows in that q - p does not sum to zero, in first order.
  if constexpr (is_variation) value -= difference * sum_q;
  t.value = value > 0 ? value : (value == value ? 0.0 : value);
  if constexpr (to_p) finish<p_at_once>(out_p, exp_p, n, scale_p, {sum_p, size}, weight);
  if constexpr (to_q) finish<q_at_once>(out_q, exp_q, n, scale_q, {sum_q, size}, weight);
}

template <class Real, int form>
static void sweep_as_wanted(const Row<Real>& row, RowTask& t) {
  if (row.gradient_p && row.gradient_q) return sweep<Real, form, true, true>(row, t);
  if (row.gradient_p) return sweep<Real, form, true, false>(row, t);
  if (row.gradient_q) return sweep<Real, form, false, true>(row, t);
  return sweep<Real, form, false, false>(row, t);
}

template <class Real>
static void sweep_of_divergence(const Row<Real>& row, RowTask& t) {
  switch (t.divergence) {
    case DivergenceCode::kKL: return sweep_as_wanted<Real, kKLForm>(row, t);
    case DivergenceCode::kReverseKL: return sweep_as_wanted<Real, kReverseKLForm>(row, t);
    case DivergenceCode::kJeffreys: return sweep_as_wanted<Real, kJeffreysForm>(row, t);
    case DivergenceCode::kTotalVariation: return sweep_as_wanted<Real, kTotalVariationForm>(row, t);
    default: break;
  }
  if constexpr (!kIsDouble<Real>) {
    const bool even = t.p.share == 0.5 && t.q.share == 0.5 && t.p.weight == t.q.weight;
    if (even) return sweep_as_wanted<Real, kEvenForm>(row, t);
  }
  if (t.q.weight == 0) return sweep_as_wanted<Real, kSkewForm>(row, t);
  return sweep_as_wanted<Real, kMixtureForm>(row, t);
}

// Logits of another dtype are converted into scratch, which then takes the gradient before it is rounded once.
template <class Real>
static void compute(const RowViews& v, RowTask& t, Real* scratch) {
  const int64_t n = t.classes;
  const auto target = [](const RowView& out, Real* buffer) -> Real* {
    if (!out.data) return nullptr;
    return out.dtype == kDtypeOf<Real> ? static_cast<Real*>(out.data) : buffer;
  };
  Row<Real> row;
  row.exp_p = scratch;
  row.exp_q = scratch + n;
  row.spare = scratch + 2 * n;
  row.p = load(v.p.dtype, v.p.data, v.p.stride, n, scratch + 2 * n);
  row.q = load(v.q.dtype, v.q.data, v.q.stride, n, scratch + 3 * n);
  row.gradient_p = target(v.gradient_p, scratch + 2 * n);
  row.gradient_q = target(v.gradient_q, scratch + 3 * n);
  sweep_of_divergence(row, t);
  if (t.weight == 0) {  // such a row gives 0 whatever it holds
    if (row.gradient_p) std::memset(row.gradient_p, 0, n * sizeof(Real));
    if (row.gradient_q) std::memset(row.gradient_q, 0, n * sizeof(Real));
  }
  if (row.gradient_p) store(row.gradient_p, n, v.gradient_p.dtype, v.gradient_p.data);
  if (row.gradient_q) store(row.gradient_q, n, v.gradient_q.dtype, v.gradient_q.data);
}

void compute_row(const RowViews& v, RowTask& t, void* scratch) {
  if (v.in_float64()) {
    compute(v, t, static_cast<double*>(scratch));
  } else {
    compute(v, t, static_cast<float*>(scratch));
  }
}

}  // namespace KULLBACK_ISA
}  // namespace kullback
