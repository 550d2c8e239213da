// What the kernels of kl_div's terms and the operators that call them share.
#pragma once
#include "../common/dtypes.h"
#include "../common/variants.h"

namespace kullback {

// Some terms p (log p - log q), everything contiguous and of one dtype; what is null is not there or not wanted.
// `logs` are those of `target`, in the dtype computed in: float32 for 16 bits. Results may overwrite them.
struct TermTask {
  Dtype dtype;
  int64_t size;
  const void* log_q;
  const void* target;
  const void* logs;  // null if `target` itself holds logarithms
  const void* grad;  // what the gradients of each term are multiplied by, as well as `scale`
  double scale;
  void* terms;
  void* by_log_q;
  void* by_target;
};

// One row of weights of P and one of Q, float32 or float64, contiguous.
struct WeightsTask {
  Dtype dtype;
  int64_t classes;
  const void* p;
  const void* q;
  double tolerance;  // how far a row's sum may be from 1
};

// Returns the sum of the terms.
KULLBACK_DECLARE_VARIANTS(double compute_terms(const TermTask&))

// Returns KL of the two normalized rows, or a negative number for rows it does not take: negative or NaN, without mass,
// off in their sum, or with numbers so large or small that their quotients leave the range of float64.
KULLBACK_DECLARE_VARIANTS(double compute_kl_of_weights(const WeightsTask&))

}  // namespace kullback
