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

// What is asked about a row, and the answer.
struct RowTask {
  int64_t classes;
  double inverse_temperature;
  double weight;
  DivergenceCode divergence;
  Mixing p, q;
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

  // Else the arithmetic is in float32, with sums in float64.
  bool in_float64() const { return p.dtype == Dtype::kFloat64 || q.dtype == Dtype::kFloat64; }
};

constexpr int64_t kScratchPerClass = 4;  // numbers of the format that is computed in

KULLBACK_DECLARE_VARIANTS(void compute_row(const RowViews&, RowTask&, void* scratch))

}  // namespace kullback
