// What the kernels of single terms and the operators that call them share.
#pragma once
#include <cstdint>

namespace kullback {

enum class Number { kFloat32, kFloat64, kBFloat16, kFloat16 };

// Some terms p (log p - log q), everything contiguous and of one dtype; what is null is not there or not wanted.
// `logs` are those of `target`, in the dtype computed in: float32 for 16 bits. Results may overwrite them.
struct TermTask {
  Number number;
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
  Number number;
  int64_t classes;
  const void* p;
  const void* q;
  double tolerance;  // how far a row's sum may be from 1
};

// Returns the sum of the terms.
using TermFunction = double (*)(const TermTask&);

// Returns KL of the two normalized rows, or a negative number for rows it does not take: negative or NaN, without mass,
// off in their sum, or with numbers so large or small that their quotients leave the range of float64.
using WeightsFunction = double (*)(const WeightsTask&);

namespace baseline {
double compute_terms(const TermTask&);
double compute_weights(const WeightsTask&);
}
namespace v3 {
double compute_terms(const TermTask&);
double compute_weights(const WeightsTask&);
}
namespace v4 {
double compute_terms(const TermTask&);
double compute_weights(const WeightsTask&);
}

}  // namespace kullback
