// What the kernels and the operators that call them share.
#pragma once
#include <cstdint>

namespace kullback {

enum Kind : int64_t { kKL = 0, kReverseKL = 1, kJeffreys = 2, kTotalVariation = 3, kMixture = 4 };

// One side of kMixture: weight KL(P || share P + rest Q), where share + rest = 1 before they are rounded.
struct Mixing {
  float weight, share, rest;
};

struct KindParameters {
  Kind kind;
  Mixing p, q;
};

struct RowStatistics {
  float peak;
  double sum;
};

// One row; a gradient that is not wanted is null, and may be the same memory as the logits it belongs to.
struct RowTask {
  const float* p;
  const float* q;
  float* exp_p;
  float* exp_q;
  float* gradient_p;
  float* gradient_q;
  int64_t classes;
  float inverse_temperature;
  float weight;
  KindParameters kind;
  double value;
};

enum Dtype { kFloat32, kBFloat16, kFloat16 };

// A row in memory: null data is a gradient that is not wanted. Gradients have stride 1.
struct RowView {
  void* data;
  int64_t stride;
  Dtype dtype;
};

struct RowViews {
  RowView p, q, gradient_p, gradient_q;
};

// The scratch holds 4 * classes numbers.
using RowFunction = void (*)(const RowViews&, RowTask&, float* scratch);

namespace baseline {
void compute_row(const RowViews&, RowTask&, float*);
}
namespace v3 {
void compute_row(const RowViews&, RowTask&, float*);
}
namespace v4 {
void compute_row(const RowViews&, RowTask&, float*);
}

}  // namespace kullback
