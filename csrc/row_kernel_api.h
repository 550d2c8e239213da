// What the kernels and the operators that call them share.
#pragma once
#include <cstdint>

namespace kullback {

enum Kind : int64_t { kKL = 0, kReverseKL = 1, kJeffreys = 2, kTotalVariation = 3, kMixture = 4 };

// One side of kMixture: weight KL(P || share P + rest Q), where share + rest = 1 before they are rounded.
struct Mixing {
  double weight, share, rest;
};

struct KindParameters {
  Kind kind;
  Mixing p, q;
};

// What is asked about a row, and the answer.
struct RowTask {
  int64_t classes;
  double inverse_temperature;
  double weight;
  KindParameters kind;
  double value;
};

enum Dtype { kFloat32, kBFloat16, kFloat16, kFloat64 };

// A row in memory: null data is a gradient that is not wanted. Gradients have stride 1.
struct RowView {
  void* data;
  int64_t stride;
  Dtype dtype;
};

// A gradient may be the same memory as the logits it belongs to.
struct RowViews {
  RowView p, q, gradient_p, gradient_q;

  // Whether the arithmetic is in float64; else it is in float32, with sums in float64.
  bool are_wide() const { return p.dtype == kFloat64 || q.dtype == kFloat64; }
};

constexpr int64_t kScratchPerClass = 4;  // numbers of float32, or of float64 for wide rows

using RowFunction = void (*)(const RowViews&, RowTask&, void* scratch);

namespace baseline {
void compute_row(const RowViews&, RowTask&, void*);
}
namespace v3 {
void compute_row(const RowViews&, RowTask&, void*);
}
namespace v4 {
void compute_row(const RowViews&, RowTask&, void*);
}

}  // namespace kullback
