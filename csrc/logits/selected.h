// Reads a row of logits at selected classes, for teachers that give only some classes: the selected logits and the
// log-sum of exponentials. Also computes the gradient with respect to all logits from the derivatives with respect to
// these results.
#pragma once
#include "rows.h"

namespace kullback {
namespace KULLBACK_ISA {

template <class Real>
static void select(const RowView& v, SelectedTask& t, Real* scratch) {
  const int64_t n = t.classes;
  Real *row = scratch, *e = scratch + n;
  const Real* x = load(v.dtype, v.data, v.stride, n, row);
  const Real inverse_temperature = static_cast<Real>(1 / t.temperature);
  for (int64_t j = 0; j < t.count; ++j) {
    const int64_t index = t.indices[j];
    t.selected[j] = index < 0 ? -kInf<double> : static_cast<double>(x[index]) / t.temperature;
  }
  *t.sums = {};
  if (t.label >= 0) {
    const Statistics all = normalize(x, e, n, Real(1));
    const CrossEntropy hard = cross_entropy_of(e, n, t.label, all.peak - static_cast<double>(x[t.label]));
    *t.sums = {all.peak, std::log(hard.sum), all.peak, std::log(hard.sum), hard.value};
    if (t.temperature == 1 && !t.leaves_out) return;
  }
  if (t.leaves_out) {
    if (x != row) std::memcpy(row, x, n * sizeof(Real));
    for (int64_t j = 0; j < t.count; ++j) {
      if (t.indices[j] >= 0) row[t.indices[j]] = -kInf<Real>;
    }
    x = row;
  }
  const Statistics some = normalize(x, e, n, inverse_temperature);
  t.sums->peak = some.peak;
  t.sums->log_sum = some.peak == -kInf<double> ? some.peak : std::log(some.sum);
}

// Writes factor * e^((x - peak) / T) + label_factor * e^(x - label_peak).
template <bool has_label, class Real>
static void write_exponentials(const Real* x, Real* out, const SelectedTask& t, Real factor, Real label_factor) {
  const Real peak = static_cast<Real>(t.sums->peak), label_peak = static_cast<Real>(t.sums->label_peak);
  const Real inverse_temperature = static_cast<Real>(1 / t.temperature);
#pragma omp simd
  for (int64_t i = 0; i < t.classes; ++i) {
    Real value = factor * exp_of_negative((x[i] - peak) * inverse_temperature);
    if constexpr (has_label) value += label_factor * exp_of_negative(x[i] - label_peak);
    out[i] = value;
  }
}

template <class Real>
static void write_selected_gradient(const RowView& v, const RowView& gradient, const SelectedTask& t, Real* scratch) {
  const int64_t n = t.classes;
  const RowSums& sums = *t.sums;
  Real* out = scratch + n;
  const Real* x = load(v.dtype, v.data, v.stride, n, scratch);
  const bool has_sum = t.by_log_sum != 0 && sums.peak != -kInf<double>;
  const bool has_label = t.label >= 0 && t.by_cross_entropy != 0;
  const Real factor = has_sum ? static_cast<Real>(t.by_log_sum / t.temperature * std::exp(-sums.log_sum)) : Real(0);
  const Real label_factor =
      has_label ? static_cast<Real>(t.by_cross_entropy * std::exp(-sums.label_log_sum)) : Real(0);
  const auto label_term = [&](int64_t i) {
    return has_label ? label_factor * exp_of_negative(x[i] - static_cast<Real>(sums.label_peak)) : Real(0);
  };
  if (has_sum && has_label && t.temperature == 1 && sums.peak == sums.label_peak) {
    write_exponentials<false>(x, out, t, factor + label_factor, Real(0));
  } else if (has_sum && has_label) {
    write_exponentials<true>(x, out, t, factor, label_factor);
  } else if (has_sum) {
    write_exponentials<false>(x, out, t, factor, Real(0));
  } else {
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) out[i] = 0;
    for (int64_t i = 0; has_label && i < n; ++i) out[i] = label_term(i);
  }
  bool label_is_left_out = false;
  for (int64_t j = 0; t.leaves_out && j < t.count; ++j) {
    const int64_t index = t.indices[j];
    if (index < 0) continue;
    out[index] = label_term(index);
    label_is_left_out |= index == t.label;
  }
  if (has_label) {  // the gradient q - 1, computed by expm1 without cancellation
    const Real in_sum = label_is_left_out || !has_sum ? Real(0)
                            : factor * exp_of_negative((x[t.label] - static_cast<Real>(sums.peak)) *
                                                       static_cast<Real>(1 / t.temperature));
    out[t.label] = in_sum + static_cast<Real>(t.by_cross_entropy * std::expm1(-sums.cross_entropy));
  }
  for (int64_t j = 0; j < t.count; ++j) {
    if (t.indices[j] >= 0) out[t.indices[j]] += static_cast<Real>(t.by_selected[j] / t.temperature);
  }
  store(out, n, gradient.dtype, gradient.data);
}

void compute_selected(const RowView& logits, SelectedTask& t, void* scratch) {
  if (logits.dtype == Dtype::kFloat64) {
    select(logits, t, static_cast<double*>(scratch));
  } else {
    select(logits, t, static_cast<float*>(scratch));
  }
}

void compute_selected_gradient(const RowView& logits, const RowView& gradient, const SelectedTask& t, void* scratch) {
  if (logits.dtype == Dtype::kFloat64) {
    write_selected_gradient(logits, gradient, t, static_cast<double*>(scratch));
  } else {
    write_selected_gradient(logits, gradient, t, static_cast<float*>(scratch));
  }
}

}  // namespace KULLBACK_ISA
}  // namespace kullback
