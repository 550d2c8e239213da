// Types shared by the kernels of kl_div's terms and the operators that call them.
#pragma once
#include "../common/dtypes.h"
#include "../common/variants.h"

namespace kullback {

// Terms p (log p - log q) of contiguous arrays of one dtype. Absent inputs and unrequested results are null. `logs` are
// the logarithms of `target` in the dtype of the computation, which is float32 for numbers of 16 bits. Results may
// overwrite `logs`.
struct TermTask {
  Dtype dtype;
  int64_t size;
  const void* log_q;
  const void* target;
  const void* logs;  // null if `target` contains logarithms
  const void* grad;  // a factor of each term's gradients, in addition to `scale`
  double scale;
  void* terms;
  void* by_log_q;
  void* by_target;
};

// One contiguous row of weights of P and one of Q, in float32 or float64.
struct WeightsTask {
  Dtype dtype;
  int64_t classes;
  const void* p;
  const void* q;
  double tolerance;  // the largest distance of a row's sum from 1
};

// Returns the sum of the terms.
KULLBACK_DECLARE_VARIANTS(double compute_terms(const TermTask&))

// Returns KL of the two normalized rows, or a negative number for unsupported rows. Unsupported rows contain negative
// numbers or NaN, have no mass or a wrong sum, or contain numbers with quotients outside the range of float64.
KULLBACK_DECLARE_VARIANTS(double compute_kl_of_weights(const WeightsTask&))

}  // namespace kullback
