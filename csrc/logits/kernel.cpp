// The divergence of a row of logits of P and of Q, and its gradients, in plain loops that the compiler vectorizes.
#include <algorithm>

#include "power.h"
#include "rows.h"
#include "selected.h"
#include "terms.h"

namespace kullback {
namespace KULLBACK_ISA {

// The second derivative of a divergence at P = Q with respect to a common shift of the log-ratios of all classes.
template <int form>
static double curvature(const RowTask& t) {
  if constexpr (form == kKLForm || form == kReverseKLForm) return 1;
  if constexpr (form == kJeffreysForm) return 2;
  return t.p.weight * t.p.rest * t.p.rest + t.q.weight * t.q.rest * t.q.rest;
}

// The sum of q - p, or 0 if it is negligible compared to the sum of |q - p|. It is a rounding error of the
// normalization, which can change the sign of q - p in the largest classes. To first order, only total variation
// depends on this sum.
template <class Real>
static Real imbalance(const Row<Real>& row, const Normalized<Real>& r, const RowTask& t) {
  const Real inverse_temperature = static_cast<Real>(t.inverse_temperature);
  const Real scale_p = r.scale_p, scale_q = r.scale_q, high = r.high, low = r.low;
  const Real *a = r.a, *b = r.b, *exp_p = row.exp_p, *exp_q = row.exp_q;
  double sum = 0, size = 0;
  for (int64_t start = 0; start < t.classes; start += kBlock) {
    const int64_t stop = start + kBlock < t.classes ? start + kBlock : t.classes;
    Real part = 0, part_size = 0;
#pragma omp simd reduction(+ : part, part_size)
    for (int64_t i = start; i < stop; ++i) {
      const Real d = ((a[i] - b[i]) * inverse_temperature - high) - low;
      const Real difference = difference_of(exp_p[i] * scale_p, exp_q[i] * scale_q, d);
      part += difference;
      part_size += std::fabs(difference);
    }
    sum += part;
    size += part_size;
  }
  return std::fabs(sum) > (kIsDouble<Real> ? 1e-9 : 1e-5) * size ? static_cast<Real>(sum) : Real(0);
}

template <class Real, int form, bool to_p, bool to_q>
static void sweep(const Row<Real>& row, RowTask& t) {
  const int64_t n = t.classes;
  const Real inverse_temperature = static_cast<Real>(t.inverse_temperature);
  const Normalized<Real> r = normalize_both(row, t);
  t.needs_float64 = r.is_huge;
  if (t.needs_float64) return;
  constexpr bool is_variation = form == kTotalVariationForm;
  const Real scale_p = r.scale_p, scale_q = r.scale_q, high = r.high;
  const Real low = is_variation ? r.low - imbalance(row, r, t) : r.low;
  const Real *logits_p = r.a, *logits_q = r.b;
  // The derivatives of KL with respect to log q, and of reverse KL with respect to log p, sum to zero, so they are the
  // gradient already.
  constexpr bool q_at_once = form == kKLForm, p_at_once = form == kReverseKLForm;
  constexpr bool is_summed = (to_q && q_at_once) || (to_p && p_at_once);  // if so, sum_q or sum_p is a sum of q - p
  // These divergences are infinite if only one side's logit is -inf, even if the other side's mass underflows to 0.
  constexpr bool p_needs_q = form == kKLForm || form == kJeffreysForm;
  constexpr bool q_needs_p = form == kReverseKLForm || form == kJeffreysForm;
  const Real weight = t.sums_only ? Real(1) : static_cast<Real>(t.weight) * inverse_temperature;
  const Real *exp_p = row.exp_p, *exp_q = row.exp_q;
  Real *out_p = row.gradient_p, *out_q = row.gradient_q;
  const Sides<Real> sides{Side<Real>(t.p), Side<Real>(t.q)};
  double value = 0, sum_p = 0, sum_q = 0, size = 0, difference = 0;
  typename Format<Real>::Bits infinite = 0;  // a flag, because Clang would not vectorize a maximum of a - b
  for (int64_t start = 0; start < n; start += kBlock) {
    const int64_t stop = start + kBlock < n ? start + kBlock : n;
    Real part = 0, part_p = 0, part_q = 0, part_size = 0, part_difference = 0;
#pragma omp simd reduction(+ : part, part_p, part_q, part_size, part_difference) reduction(| : infinite)
    for (int64_t i = start; i < stop; ++i) {
      const Real mass_p = exp_p[i] * scale_p, mass_q = exp_q[i] * scale_q;
      const Real apart = logits_p[i] - logits_q[i];
      const Real d = (apart * inverse_temperature - high) - low;
      const Term<Real> term = term_of<form>(mass_p, mass_q, d, sides);
      part += term.value;
      if constexpr (to_p) part_p += term.derivative_p;
      if constexpr (is_variation || to_q) part_q += term.derivative_q;
      if constexpr (to_p && p_at_once) part_size += std::fabs(term.derivative_p);
      if constexpr (to_q && q_at_once) part_size += std::fabs(term.derivative_q);
      if constexpr (p_needs_q) infinite |= apart == kInf<Real> ? 1 : 0;
      if constexpr (q_needs_p) infinite |= apart == -kInf<Real> ? 1 : 0;
      if constexpr (!is_summed) part_difference += term.difference;
      if constexpr (to_p) out_p[i] = p_at_once ? weight * term.derivative_p : term.derivative_p;
      if constexpr (to_q) out_q[i] = q_at_once ? weight * term.derivative_q : term.derivative_q;
    }
    value += part;
    sum_p += part_p;
    sum_q += part_q;
    size += part_size;
    difference += part_difference;
  }
  if (t.whole) {
    if (infinite) value += kInf<double>;
    t.value = value;
    if (t.sums_only) {
      t.sums_p = sums_of_part(out_p, exp_p, n, scale_p, 1);
      t.sums_q = sums_of_part(out_q, exp_q, n, scale_q, 1);
      return;
    }
    if constexpr (to_p && !p_at_once) project_part(out_p, exp_p, n, scale_p, t.whole->p.sums, 1, weight);
    if constexpr (to_q && !q_at_once) project_part(out_q, exp_q, n, scale_q, t.whole->q.sums, 1, weight);
    return;
  }
  // The sum of q - p is the rounding error of the normalization.
  if constexpr (is_summed) difference = to_q && q_at_once ? sum_q : -sum_p;
  value -= is_variation ? difference * sum_q : curvature<form>(t) / 2 * difference * difference;
  if (infinite) value += kInf<double>;
  t.value = value > 0 ? value : (value == value ? 0.0 : value);
  if constexpr (is_variation) {  // the largest class's derivative may nearly equal the sum: the difference cancels
    if constexpr (to_p) project_accurately(out_p, exp_p, n, scale_p * sum_p, weight);
    if constexpr (to_q) project_accurately(out_q, exp_q, n, scale_q * sum_q, weight);
    return;
  }
  if constexpr (to_p) finish<p_at_once>(out_p, exp_p, n, scale_p, {sum_p, size}, weight);
  if constexpr (to_q) finish<q_at_once>(out_q, exp_q, n, scale_q, {sum_q, size}, weight);
}

template <int form, class Real>
static void sweep_form(const Row<Real>& row, RowTask& t) {
  sweep_as_requested(row, [&](auto to_p, auto to_q) { sweep<Real, form, to_p.value, to_q.value>(row, t); });
}

template <class Real>
static void sweep_of_kind(const Row<Real>& row, RowTask& t) {
  switch (t.divergence) {
    case DivergenceCode::kKL: return sweep_form<kKLForm>(row, t);
    case DivergenceCode::kReverseKL: return sweep_form<kReverseKLForm>(row, t);
    case DivergenceCode::kJeffreys: return sweep_form<kJeffreysForm>(row, t);
    case DivergenceCode::kTotalVariation: return sweep_form<kTotalVariationForm>(row, t);
    case DivergenceCode::kPower:
    case DivergenceCode::kRenyi: return sweep_powers(row, t);
    case DivergenceCode::kMixture: break;
  }
  if constexpr (!kIsDouble<Real>) {
    const bool even = t.p.share == 0.5 && t.q.share == 0.5 && t.p.weight == t.q.weight;
    if (even) return sweep_form<kEvenForm>(row, t);
  }
  if (t.q.weight == 0) return sweep_form<kSkewForm>(row, t);
  return sweep_form<kMixtureForm>(row, t);
}

// Computes a row. If P or Q is no distribution, because it has NaN, +inf or no mass, the value and both gradients are
// NaN.
template <class Real>
static void sweep_of_divergence(const Row<Real>& row, RowTask& t) {
  sweep_of_kind(row, t);
  if (t.needs_float64 || t.whole || t.value == t.value) return;
  for (Real* out : {row.gradient_p, row.gradient_q}) {
    if (out) std::fill_n(out, t.classes, std::numeric_limits<Real>::quiet_NaN());
  }
}

// Rows of more classes are not prefetched, because the second-level cache has no room: two such rows of float32 take
// 256 KiB.
constexpr int64_t kMostFetched = 32768;

// The number of classes after padding. Short rows, and rows that are converted anyway, are padded to full SIMD vectors
// with classes without mass, because the remainder of a loop is computed number by number.
template <class Real>
KULLBACK_INLINE int64_t padded(int64_t classes, const RowViews& v) {
  constexpr int64_t lanes = 64 / sizeof(Real);
  const bool converts = v.p.dtype != kDtypeOf<Real> || v.q.dtype != kDtypeOf<Real>;
  return converts || classes < kShortRow ? (classes + lanes - 1) / lanes * lanes : classes;
}

template <class Real>
static const Real* load_padded(const RowView& x, int64_t classes, int64_t n, Real* buffer) {
  const Real* row = load(x.dtype, x.data, x.stride, classes, buffer);
  if (n == classes) return row;
  if (row != buffer) std::memcpy(buffer, row, classes * sizeof(Real));
  for (int64_t i = classes; i < n; ++i) buffer[i] = -kInf<Real>;
  return buffer;
}

// Computes a row whose value is soft * divergence + hard * cross-entropy. The exponentials at temperature 1 come from
// the sweep of the divergence if it has this temperature. Otherwise they are computed before that sweep, because the
// gradient may overwrite the logits.
template <class Real>
static void sweep_with_label(const Row<Real>& row, RowTask& t, Real* exponentials) {
  const int64_t n = t.classes;
  const double weight = t.weight;
  const Real* x = t.label_is_of_p ? row.p : row.q;
  const double below = static_cast<double>(peak_of(x, n)) - static_cast<double>(x[t.label]);
  const bool shares = t.inverse_temperature == 1 && t.soft != 0;
  Real* e = shares ? (t.label_is_of_p ? row.exp_p : row.exp_q) : exponentials;
  if (!shares) normalize(x, e, n, Real(1));
  t.weight = weight * t.soft;
  if (t.soft != 0) {
    sweep_of_divergence(row, t);
    if (t.needs_float64) {
      t.weight = weight;
      return;
    }
  } else {  // with soft = 0 even an infinite divergence contributes 0
    t.value = 0;
    if (row.gradient_p) std::memset(row.gradient_p, 0, n * sizeof(Real));
    if (row.gradient_q) std::memset(row.gradient_q, 0, n * sizeof(Real));
  }
  t.weight = weight;
  const CrossEntropy entropy = cross_entropy_of(e, n, t.label, below);
  t.value = t.soft * t.value + t.hard * entropy.value;
  Real* out = t.label_is_of_p ? row.gradient_p : row.gradient_q;
  if (!out) return;
  const double hard = weight * t.hard;
  const Real factor = static_cast<Real>(hard / entropy.sum), own = out[t.label];
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) out[i] += factor * e[i];
  out[t.label] = own - static_cast<Real>(hard * entropy.others);
}

// Logits of a dtype other than `Real` are converted into scratch memory. Their gradient is also written there, and
// rounded once at the end.
template <class Real>
static void compute(const RowViews& v, RowTask& t, Real* scratch) {
  const int64_t classes = t.classes, n = padded<Real>(classes, v);
  t.sums_only = t.whole && !v.gradient_p.data && !v.gradient_q.data;
  const auto target = [&](const RowView& out, Real* buffer) -> Real* {
    if (!out.data) return t.sums_only ? buffer : nullptr;
    return out.dtype == kDtypeOf<Real> && n == classes ? static_cast<Real*>(out.data) : buffer;
  };
  Row<Real> row;
  row.exp_p = scratch;
  row.exp_q = scratch + n;
  row.spare_p = scratch + 2 * n;
  row.spare_q = scratch + 3 * n;
  row.affinities = scratch + 4 * n;
  row.p = load_padded(v.p, classes, n, row.spare_p);
  row.q = load_padded(v.q, classes, n, row.spare_q);
  row.gradient_p = target(v.gradient_p, row.spare_p);
  row.gradient_q = target(v.gradient_q, row.spare_q);
  const auto upcoming = [&](const void* data, const RowView& x) -> Upcoming {
    const bool fits = classes <= kMostFetched && x.stride == 1;
    return {fits ? static_cast<const char*>(data) : nullptr, size_of(x.dtype)};
  };
  row.next_p = upcoming(v.next_p, v.p);
  row.next_q = upcoming(v.next_q, v.q);
  row.target_p = upcoming(v.gradient_p.data, v.gradient_p);
  row.target_q = upcoming(v.gradient_q.data, v.gradient_q);
  t.classes = n;
  t.needs_float64 = false;
  if (t.label >= 0) {
    sweep_with_label(row, t, scratch + (t.divergence == DivergenceCode::kRenyi ? 5 : 4) * n);
  } else {
    sweep_of_divergence(row, t);
  }
  t.classes = classes;
  if (t.needs_float64) return;
  if (t.weight == 0) {  // such a row gives 0, even if it contains inf or NaN
    if (row.gradient_p) std::memset(row.gradient_p, 0, n * sizeof(Real));
    if (row.gradient_q) std::memset(row.gradient_q, 0, n * sizeof(Real));
  }
  if (v.gradient_p.data) store(row.gradient_p, classes, v.gradient_p.dtype, v.gradient_p.data);
  if (v.gradient_q.data) store(row.gradient_q, classes, v.gradient_q.dtype, v.gradient_q.data);
}

// The arithmetic is in float32 with sums in float64. It is in float64 if P or Q is float64, or if float32 is not
// accurate enough.
void compute_row(const RowViews& v, RowTask& t, void* scratch) {
  t.needs_float64 = v.p.dtype == Dtype::kFloat64 || v.q.dtype == Dtype::kFloat64 || t.whole;
  if (!t.needs_float64) compute(v, t, static_cast<float*>(scratch));
  if (t.needs_float64) compute(v, t, static_cast<double*>(scratch));
}

}  // namespace KULLBACK_ISA
}  // namespace kullback
