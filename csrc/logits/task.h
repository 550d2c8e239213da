// Types shared by the kernels of rows of logits and the operators that call them.
#pragma once
#include "../common/dtypes.h"
#include "../common/variants.h"
#include "codes.h"

namespace kullback {

// One term of a mixture divergence: weight KL(P || share P + rest Q), with share + rest = 1 before rounding.
struct Mixing {
  double weight, share, rest;
};

// A weight times the power divergence of an order of at least 1/2, other than 1; or, for Renyi's divergence, a weight
// times log sum p^order q^(1 - order). `exponent` is order - 1, stored separately because a difference from the rounded
// `order` would lose digits.
struct Power {
  double weight, order, exponent;
};

// Sums over classes of P or of Q. `top` is the derivative with respect to the log-probability of the class with more
// than half of the mass, or 0 without such a class. `others` and `mass` are the sums of the other classes' derivatives
// and probabilities.
struct PartSums {
  double others, top, mass;
};

// P or Q over all classes of a row, for a call that has only some of the classes: the peak, and the sum of exponentials
// relative to the peak. Only a gradient needs `sums`.
struct WholeSide {
  double peak, sum;
  PartSums sums;
};

struct WholeRow {
  WholeSide p, q;
};

// The settings and the results of a row.
struct RowTask {
  int64_t classes;
  double inverse_temperature;
  double weight;
  DivergenceCode divergence;
  Mixing p, q;
  Power power;
  int64_t label;  // the true class, or negative; with a class, the value is soft * divergence + hard * cross-entropy
  bool label_is_of_p;
  double soft, hard;
  const WholeRow* whole;  // null if the call has all classes; else the arithmetic is in float64
  double value;
  bool sums_only;  // with `whole`: no gradient is requested
  PartSums sums_p, sums_q;  // with `sums_only`: over the classes of the call
  bool needs_float64;  // set by a sweep in float32 that is not accurate enough and wrote no result
};

// Sums of a row's exponentials. `peak` and `log_sum` are at the given temperature, over all classes or over the classes
// that are not selected. The other fields are at temperature 1 over all classes, for the cross-entropy with the label.
// Logarithms of sums are relative to the peak.
struct RowSums {
  double peak, log_sum;
  double label_peak, label_log_sum, cross_entropy;
};

// The settings and results of a row at selected classes. A negative index is padding.
struct SelectedTask {
  int64_t classes, count;
  const int64_t* indices;
  double temperature;
  bool leaves_out;  // whether the sum excludes the selected classes
  int64_t label;    // negative for none
  double* selected;
  RowSums* sums;
  // For the gradient: the derivatives with respect to the selected logits / temperature, the log-sum and the
  // cross-entropy.
  const double* by_selected;
  double by_log_sum, by_cross_entropy;
};

// A row in memory. `data` is null for a gradient that was not requested. Gradients have stride 1.
struct RowView {
  void* data;
  int64_t stride;
  Dtype dtype;
};

// The gradients may overwrite the logits: gradient_p those of p, and gradient_q those of q. `next_p` and `next_q` are
// the logits of the next row, or null.
struct RowViews {
  RowView p, q, gradient_p, gradient_q;
  const void *next_p, *next_q;
};

// Rows shorter than kShortRow, and converted rows, are padded to whole vectors of at most kMostLanes numbers.
constexpr int64_t kShortRow = 256, kMostLanes = 16;

// The size of `scratch` in bytes, sufficient for float64.
constexpr int64_t scratch_bytes_of(DivergenceCode divergence, int64_t classes) {
  return (divergence == DivergenceCode::kRenyi ? 6 : 5) * (classes + kMostLanes) * static_cast<int64_t>(sizeof(double));
}

// The size of `scratch` in numbers, for selected classes.
constexpr int64_t scratch_size_of_selected(int64_t classes) { return 2 * classes; }

KULLBACK_DECLARE_VARIANTS(void compute_row(const RowViews&, RowTask&, void* scratch))
KULLBACK_DECLARE_VARIANTS(void compute_selected(const RowView& logits, SelectedTask&, void* scratch))
KULLBACK_DECLARE_VARIANTS(void compute_selected_gradient(const RowView& logits, const RowView& gradient,
                                                         const SelectedTask&, void* scratch))

}  // namespace kullback
