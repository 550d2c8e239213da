// What the kernels of rows of logits and the operator that calls them share.
#pragma once
#include "../common/dtypes.h"
#include "../common/variants.h"
#include "codes.h"

namespace kullback {

// One side of a mixture: weight KL(P || share P + rest Q), where share + rest = 1 before they are rounded.
struct Mixing {
  double weight, share, rest;
};

// The power divergence of an order of at least 1/2, other than 1, times a weight; or the weight times the logarithm of
// sum p^order q^(1 - order), which is Renyi's. The exponent is order - 1, to digits that the order may not have.
struct Power {
  double weight, order, exponent;
};

// What is asked about a row, and the answer.
struct RowTask {
  int64_t classes;
  double inverse_temperature;
  double weight;
  DivergenceCode divergence;
  Mixing p, q;
  Power power;
  int64_t label;  // the true class, negative for none; with one, the row counts soft * divergence + hard * cross-entropy
  bool label_is_of_p;
  double soft, hard;
  double value;
  bool needs_float64;  // found while the row was swept in float32, which wrote nothing then
};

// The sums of a row's exponentials: over its classes at the temperature, which may leave out the selected ones, and
// over all at temperature 1, for the cross-entropy with its label. A logarithm is relative to the peak.
struct RowSums {
  double peak, log_sum;
  double label_peak, label_log_sum, cross_entropy;
};

// What is asked about a row at some of its classes, and the answers. A negative index is padding.
struct SelectedTask {
  int64_t classes, count;
  const int64_t* indices;
  double temperature;
  bool leaves_out;  // the selected classes out of the sum
  int64_t label;    // negative for none
  double* selected;
  RowSums* sums;
  // For the gradient: derivatives by logits / temperature of the selected classes, log-sum and cross-entropy.
  const double* by_selected;
  double by_log_sum, by_cross_entropy;
};

// A row in memory: null data is a gradient that is not wanted. Gradients have stride 1.
struct RowView {
  void* data;
  int64_t stride;
  Dtype dtype;
};

// A gradient may be the same memory as the logits it belongs to. `next_p` and `next_q` are the logits that are read
// after these, null if none are.
struct RowViews {
  RowView p, q, gradient_p, gradient_q;
  const void *next_p, *next_q;
};

// Whether the arithmetic is in float64. Else it is in float32, with sums in float64, unless a row turns out to need more.
inline bool in_float64(const RowViews& row) {
  return row.p.dtype == Dtype::kFloat64 || row.q.dtype == Dtype::kFloat64;
}

// Shorter rows, and those that are converted, are filled up to whole vectors, of at most this many numbers.
constexpr int64_t kShortRow = 256, kMostLanes = 16;

// How many bytes `scratch` holds: also for rows that float32 does not hold.
constexpr int64_t scratch_bytes_of(DivergenceCode divergence, int64_t classes) {
  return (divergence == DivergenceCode::kRenyi ? 6 : 5) * (classes + kMostLanes) * static_cast<int64_t>(sizeof(double));
}

// How many numbers it holds for selected classes.
constexpr int64_t scratch_size_of_selected(int64_t classes) { return 2 * classes; }

KULLBACK_DECLARE_VARIANTS(void compute_row(const RowViews&, RowTask&, void* scratch))
KULLBACK_DECLARE_VARIANTS(void compute_selected(const RowView& logits, SelectedTask&, void* scratch))
KULLBACK_DECLARE_VARIANTS(void compute_selected_gradient(const RowView& logits, const RowView& gradient,
                                                         const SelectedTask&, void* scratch))

}  // namespace kullback
