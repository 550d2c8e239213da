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
// sum p^order q^(1 - order), which is Renyi's.
struct Power {
  double weight, order;
};

// What is asked about a row, and the answer.
struct RowTask {
  int64_t classes;
  double inverse_temperature;
  double weight;
  DivergenceCode divergence;
  Mixing p, q;
  Power power;
  double value;
};

// A row in memory: null data is a gradient that is not wanted. Gradients have stride 1.
struct RowView {
  void* data;
  int64_t stride;
  Dtype dtype;
};

// A gradient may be the same memory as the logits it belongs to.
struct RowViews {
  RowView p, q, gradient_p, gradient_q;
};

// Whether the arithmetic is in float64: powers of p / q leave the range of float32. Else it is in float32, with sums in
// float64.
inline bool in_float64(const RowViews& row, DivergenceCode divergence) {
  return row.p.dtype == Dtype::kFloat64 || row.q.dtype == Dtype::kFloat64 ||
         divergence == DivergenceCode::kPower || divergence == DivergenceCode::kRenyi;
}

// Shorter rows are filled up to whole vectors, of at most this many numbers.
constexpr int64_t kShortRow = 256, kMostLanes = 16;

// How many numbers `scratch` holds, in the format that is computed in.
constexpr int64_t scratch_size(DivergenceCode divergence, int64_t classes) {
  return (divergence == DivergenceCode::kRenyi ? 5 : 4) * (classes + kMostLanes);
}

KULLBACK_DECLARE_VARIANTS(void compute_row(const RowViews&, RowTask&, void* scratch))

}  // namespace kullback
