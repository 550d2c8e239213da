// Loops over the elements of a batch, which the compiler vectorizes.
#include <iterator>
#include <utility>

#include "../common/convert.h"
#include "continuous_bernoulli.h"
#include "elements.h"
#include "mixed.h"
#include "task.h"

namespace kullback {
namespace KULLBACK_ISA {

// The number of elements in a block: the float64 numbers of a block fit in the L1 cache.
constexpr int64_t kElements = 256;

struct Block {
  int64_t size;
  const double* parameter[kMostParameters];
  double* value;
  double* derivative[kMostParameters];
};

// The total number of parameters of P and Q.
template <class Form>
constexpr int kParameters = std::size(Form::ranges);

// Computes a form with the same arithmetic for every element.
template <class Form, bool with_derivatives>
static void sweep_elements(const Block& block) {
  constexpr int count = kParameters<Form>;
  const double *a = block.parameter[0], *b = block.parameter[1];
  const double *c = block.parameter[count > 2 ? 2 : 0], *d = block.parameter[count > 3 ? 3 : 0];
  double *value = block.value, *by_a = block.derivative[0], *by_b = block.derivative[1];
  double *by_c = block.derivative[2], *by_d = block.derivative[3];
#pragma omp simd
  for (int64_t i = 0; i < block.size; ++i) {
    const Answer answer = Form::at(a[i], b[i], c[i], d[i]);
    value[i] = answer.value;
    if constexpr (with_derivatives) {
      by_a[i] = answer.derivative[0];
      by_b[i] = answer.derivative[1];
      if constexpr (count > 2) by_c[i] = answer.derivative[2];
      if constexpr (count > 3) by_d[i] = answer.derivative[3];
    }
  }
}

// Bregman divergences of lgamma(x) - x log x + x from a to b = a + distance. Pairs of close a and b are usually few, so
// they are collected and computed in a second loop.
struct StirlingBregmans {
  double value[kElements], by_a[kElements], by_b[kElements];
};

template <bool with_derivatives>
static void compute_bregman(int64_t n, const double* a, const double* b, const double* distance, StirlingBregmans& to) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) {
    const StirlingBregman far = far_bregman(a[i], b[i], distance[i]);
    to.value[i] = far.value;
    if constexpr (with_derivatives) {
      to.by_a[i] = -distance[i] * stirling_curvature(a[i]);
      to.by_b[i] = far.by_b;
    }
  }
  int64_t index[kElements], count = 0;
  double near_a[kElements], near_distance[kElements];
  for (int64_t i = 0; i < n; ++i) {
    near_a[count] = a[i];
    near_distance[count] = distance[i];
    index[count] = i;
    count += is_near(a[i], b[i], distance[i]);
  }
  double value[kElements], by_b[kElements];
#pragma omp simd
  for (int64_t i = 0; i < count; ++i) {
    const StirlingBregman near = near_bregman(near_a[i], near_distance[i]);
    value[i] = near.value;
    if constexpr (with_derivatives) by_b[i] = near.by_b;
  }
  for (int64_t i = 0; i < count; ++i) {
    to.value[index[i]] = value[i];
    if constexpr (with_derivatives) to.by_b[index[i]] = by_b[i];
  }
}

struct GammaForm : Within<Range::kPositive, Range::kPositive, Range::kPositive, Range::kPositive> {
  template <bool with_derivatives>
  static void sweep(const Block& block) {
    const double *a_p = block.parameter[0], *rate_p = block.parameter[1];
    const double *a_q = block.parameter[2], *rate_q = block.parameter[3];
    double distance[kElements];
#pragma omp simd
    for (int64_t i = 0; i < block.size; ++i) distance[i] = a_q[i] - a_p[i];
    StirlingBregmans remainders;
    compute_bregman<with_derivatives>(block.size, a_p, a_q, distance, remainders);
    double *value = block.value, *by_a_p = block.derivative[0], *by_rate_p = block.derivative[1];
    double *by_a_q = block.derivative[2], *by_rate_q = block.derivative[3];
#pragma omp simd
    for (int64_t i = 0; i < block.size; ++i) {
      const double rate_difference = rate_q[i] - rate_p[i];
      const double determinant = determinant_of(a_p[i], rate_p[i], a_q[i], rate_q[i], distance[i], rate_difference);
      const double log_means = log_quotient(a_p[i] * rate_q[i], a_q[i] * rate_p[i], determinant).value();
      const Exponential e = exponential_of(log_means);
      value[i] = a_q[i] * e.expm1_minus_x + remainders.value[i];
      if constexpr (with_derivatives) {
        const double by_log_rate = a_q[i] * e.expm1;
        by_a_p[i] = by_log_rate / a_p[i] + remainders.by_a[i];
        by_rate_p[i] = -by_log_rate / rate_p[i];
        by_a_q[i] = remainders.by_b[i] - log_means;
        by_rate_q[i] = by_log_rate / rate_q[i];
      }
    }
  }
};

struct BetaForm : Within<Range::kPositive, Range::kPositive, Range::kPositive, Range::kPositive> {
  template <bool with_derivatives>
  static void sweep(const Block& block) {
    if (block.size < 1) return;  // no block is empty; without this check the compiler warns of uninitialized arrays
    const double *a_p = block.parameter[0], *b_p = block.parameter[1];
    const double *a_q = block.parameter[2], *b_q = block.parameter[3];
    double a_difference[kElements], b_difference[kElements];
    double total_p[kElements], total_q[kElements], total_difference[kElements];
#pragma omp simd
    for (int64_t i = 0; i < block.size; ++i) {
      a_difference[i] = a_q[i] - a_p[i];
      b_difference[i] = b_q[i] - b_p[i];
      total_difference[i] = a_difference[i] + b_difference[i];
      total_p[i] = a_p[i] + b_p[i];
      total_q[i] = a_q[i] + b_q[i];
    }
    StirlingBregmans of_a, of_b, of_total;
    compute_bregman<with_derivatives>(block.size, a_p, a_q, a_difference, of_a);
    compute_bregman<with_derivatives>(block.size, b_p, b_q, b_difference, of_b);
    compute_bregman<with_derivatives>(block.size, total_p, total_q, total_difference, of_total);
    double *value = block.value, *by_a_p = block.derivative[0], *by_b_p = block.derivative[1];
    double *by_a_q = block.derivative[2], *by_b_q = block.derivative[3];
#pragma omp simd
    for (int64_t i = 0; i < block.size; ++i) {
      const double determinant = determinant_of(a_p[i], b_p[i], a_q[i], b_q[i], a_difference[i], b_difference[i]);
      const double log_a = log_quotient(a_p[i] * total_q[i], a_q[i] * total_p[i], determinant).value();
      const double log_b = log_quotient(b_p[i] * total_q[i], b_q[i] * total_p[i], -determinant).value();
      const double of_means = a_q[i] * exponential_of(log_a).expm1_minus_x + b_q[i] * exponential_of(log_b).expm1_minus_x;
      value[i] = of_means + (of_a.value[i] + of_b.value[i]) - of_total.value[i];
      if constexpr (with_derivatives) {
        const double by_log_a = determinant / total_p[i];
        by_a_p[i] = by_log_a / a_p[i] + (of_a.by_a[i] - of_total.by_a[i]);
        by_b_p[i] = -by_log_a / b_p[i] + (of_b.by_a[i] - of_total.by_a[i]);
        by_a_q[i] = (of_a.by_b[i] - of_total.by_b[i]) - log_a;
        by_b_q[i] = (of_b.by_b[i] - of_total.by_b[i]) - log_b;
      }
    }
  }
};

// KL(P || Beta(1, 1)).
template <bool with_derivatives>
static void sweep_beta_to_unit(Block block) {
  double one[kElements];
  for (int64_t i = 0; i < block.size; ++i) one[i] = 1.0;
  block.parameter[2] = block.parameter[3] = one;
  BetaForm::sweep<with_derivatives>(block);
}

// KL(P || Beta(1, 1)) + log(high - low).
struct BetaUniformForm : Within<Range::kMildPositive, Range::kMildPositive, Range::kMild, Range::kMild> {
  template <bool with_derivatives>
  static void sweep(const Block& block) {
    const double *low = block.parameter[2], *high = block.parameter[3];
    sweep_beta_to_unit<with_derivatives>(block);
    for (int64_t i = 0; i < block.size; ++i) {
      const double margin = (high[i] - 1.0) - low[i];
      const bool outside = (low[i] > 0.0) | (high[i] < 1.0);
      block.value[i] = outside ? kInfinity : block.value[i] + log1p_of(margin).value();
      if constexpr (with_derivatives) {
        const double by_high = outside ? 0.0 : 1.0 / (1.0 + margin);
        for (int j = 0; j < 2; ++j) block.derivative[j][i] = outside ? 0.0 : block.derivative[j][i];
        block.derivative[2][i] = -by_high;
        block.derivative[3][i] = by_high;
      }
    }
  }
};

// KL(P || Beta(1, 1)) + A(l) - l E X, with A(l) = log((e^l - 1) / l).
template <class Source>
struct BetaContinuousBernoulliForm : Within<Range::kMildPositive, Range::kMildPositive, Source::range> {
  template <bool with_derivatives>
  static void sweep(const Block& block) {
    const double *a = block.parameter[0], *b = block.parameter[1], *q = block.parameter[2];
    sweep_beta_to_unit<with_derivatives>(block);
    double *value = block.value, *by_a = block.derivative[0], *by_b = block.derivative[1], *by_q = block.derivative[2];
#pragma omp simd
    for (int64_t i = 0; i < block.size; ++i) {
      const double inverse = 1.0 / (a[i] + b[i]), below = a[i] * inverse, above = b[i] * inverse;
      const double logit = Source::logit(q[i]);
      const CrossEntropy cross = cross_entropy_of(logit, below, above);
      value[i] += cross.value;
      if constexpr (with_derivatives) {
        by_a[i] -= logit * above * inverse;
        by_b[i] += logit * below * inverse;
        by_q[i] = cross.by_logit * Source::by_parameter(q[i]);
      }
    }
  }
};

using BetaContinuousBernoulliLogitsForm = BetaContinuousBernoulliForm<FromLogits>;
using BetaContinuousBernoulliProbsForm = BetaContinuousBernoulliForm<FromProbs>;

template <class Form, bool with_derivatives>
static void sweep(const Block& block) {
  if constexpr (requires { Form::template sweep<with_derivatives>(block); }) {
    Form::template sweep<with_derivatives>(block);
  } else {
    sweep_elements<Form, with_derivatives>(block);
  }
}

template <Range range>
static int64_t count_outside(int64_t n, const double* x) {
  int64_t outside = 0;
#pragma omp simd reduction(+ : outside)
  for (int64_t i = 0; i < n; ++i) outside += is_within(range, x[i]) ? 0 : 1;
  return outside;
}

template <class Form, size_t... i>
static bool is_inside(const Block& block, const bool* constant, std::index_sequence<i...>) {
  return (... && !count_outside<Form::ranges[i]>(constant[i] ? 1 : block.size, block.parameter[i]));
}

// A divergence is non-negative: negative rounding errors are stored as 0.
template <bool are_values, typename Real>
static int64_t store_as(int64_t n, const double* from, Real* to) {
  int64_t faults = 0;
#pragma omp simd reduction(+ : faults)
  for (int64_t i = 0; i < n; ++i) {
    const double x = are_values && from[i] < 0.0 ? 0.0 : from[i];
    faults += (are_values ? x >= 0.0 : __builtin_fabs(x) <= 1e300) ? 0 : 1;
    to[i] = static_cast<Real>(x);
  }
  return faults;
}

// Returns the number of values that are NaN, or of derivatives that are NaN or larger than 1e300.
static int64_t store(Dtype dtype, bool are_values, int64_t n, const double* from, void* to, int64_t start) {
  const auto store_to = [&](auto* numbers) {
    return are_values ? store_as<true>(n, from, numbers + start) : store_as<false>(n, from, numbers + start);
  };
  return dtype == Dtype::kFloat64 ? store_to(static_cast<double*>(to)) : store_to(static_cast<float*>(to));
}

template <class Form, bool with_derivatives>
static bool run(const FormTask& task) {
  constexpr int count = kParameters<Form>;
  alignas(64) double parameters[count][kElements], values[kElements], derivatives[kMostParameters][kElements];
  Block block{};
  block.value = values;
  bool constant[count];
  for (int j = 0; j < count; ++j) {
    constant[j] = task.parameter[j].step == 0;
    if (!constant[j] || task.size == 0) continue;
    const double* number = load(task.dtype, task.parameter[j].data, 1, 1, parameters[j]);
    for (int64_t i = kElements - 1; i >= 0; --i) parameters[j][i] = *number;
    block.parameter[j] = parameters[j];
  }
  for (int j = 0; j < kMostParameters; ++j) block.derivative[j] = derivatives[j];
  for (int64_t start = 0; start < task.size; start += kElements) {
    block.size = task.size - start < kElements ? task.size - start : kElements;
    for (int j = 0; j < count; ++j) {
      if (constant[j]) continue;
      const char* data = static_cast<const char*>(task.parameter[j].data) + start * size_of(task.dtype);
      block.parameter[j] = load(task.dtype, data, 1, block.size, parameters[j]);
    }
    if (!is_inside<Form>(block, constant, std::make_index_sequence<count>())) return false;
    sweep<Form, with_derivatives>(block);
    int64_t faults = store(task.dtype, true, block.size, values, task.values, start);
    for (int j = 0; with_derivatives && j < count; ++j) {
      void* to = task.derivatives[j];
      if (to) faults += store(task.dtype, false, block.size, derivatives[j], to, start);
    }
    if (faults) return false;
  }
  return true;
}

template <class Form>
static bool run_form(const FormTask& task) {
  bool with_derivatives = false;
  for (const void* derivatives : task.derivatives) with_derivatives |= derivatives != nullptr;
  return with_derivatives ? run<Form, true>(task) : run<Form, false>(task);
}

// Calls `use` with the class of a form.
template <class Use>
static auto with_form(ElementForm form, Use use) {
  switch (form) {
#define KULLBACK_CASE(name) \
  case ElementForm::k##name: return use(name##Form{});
    KULLBACK_ELEMENTFORMS(KULLBACK_CASE)
#undef KULLBACK_CASE
  }
  __builtin_unreachable();
}

int parameters_of(ElementForm form) {
  return with_form(form, [](auto of) { return kParameters<decltype(of)>; });
}

bool compute_form(const FormTask& task) {
  return with_form(task.form, [&](auto of) { return run_form<decltype(of)>(task); });
}

}  // namespace KULLBACK_ISA
}  // namespace kullback

#include "normals.h"
#include "matrices.h"
#include "rows.h"

#include "factor_models.h"
