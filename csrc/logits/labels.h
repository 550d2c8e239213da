// The cross-entropy of a row of logits with its true class, which equals KL(one-hot || softmax(logits)).
#pragma once
#include "rows.h"

namespace kullback {
namespace KULLBACK_ISA {

struct CrossEntropy {
  double value;
  double sum;     // of the exponentials
  double others;  // the probability of all classes but the label
};

// Computes it from exponentials relative to the row's peak, where `below` is the peak minus the label's logit. No
// nearly equal numbers are subtracted: if the label is the peak, the other classes are summed without it.
template <class Real>
static CrossEntropy cross_entropy_of(Real* e, int64_t n, int64_t label, double below) {
  const Real own = e[label];
  e[label] = 0;
  double others = 0;
  for (int64_t start = 0; start < n; start += kBlock) {
    const int64_t stop = start + kBlock < n ? start + kBlock : n;
    Real part = 0;
#pragma omp simd reduction(+ : part)
    for (int64_t i = start; i < stop; ++i) part += e[i];
    others += part;
  }
  e[label] = own;
  const double sum = others + own;
  return {below == 0 ? std::log1p(others) : std::log(sum) + below, sum, others / sum};
}

}  // namespace KULLBACK_ISA
}  // namespace kullback
