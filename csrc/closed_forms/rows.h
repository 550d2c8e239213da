// The closed forms of families with a vector of parameters, for blocks of rows. Costly functions are computed for all
// numbers of a block at once, because rows are short. This file is included by kernel.cpp.
#pragma once

namespace kullback {
namespace KULLBACK_ISA {

// The number of short rows, or of partial results, that are computed together in one vector.
constexpr int64_t kRowLanes = 8;

// Rows of P and of Q, and their results. The numbers are stored row by row, or class by class if `by_class`, so that
// several short rows are summed at once. With `by_class`, `rows` is padded to a multiple of the vector length.
struct RowBlock {
  int64_t rows, classes;
  bool by_class;
  const double *p, *q;
  double *value, *by_p, *by_q;
};

// Reduces each row by several partial results at once, because each step of a single result depends on the step before.
template <class Combine>
KULLBACK_INLINE void reduce_rows(const RowBlock& block, const double* x, double start, double* to, Combine combine) {
  const int64_t lanes = block.by_class ? block.rows : block.classes, whole = lanes - lanes % kRowLanes;
  double totals[kRowLanes];
  if (block.by_class) {
    for (int64_t first = 0; first < whole; first += kRowLanes) {
      for (double& total : totals) total = start;
      for (int64_t k = 0; k < block.classes; ++k) {
        const double* from = x + k * lanes + first;
#pragma omp simd
        for (int64_t i = 0; i < kRowLanes; ++i) totals[i] = combine(totals[i], from[i]);
      }
      for (int64_t i = 0; i < kRowLanes; ++i) to[first + i] = totals[i];
    }
    return;
  }
  for (int64_t row = 0; row < block.rows; ++row, x += lanes) {
    for (double& total : totals) total = start;
    for (int64_t first = 0; first < whole; first += kRowLanes) {
#pragma omp simd
      for (int64_t i = 0; i < kRowLanes; ++i) totals[i] = combine(totals[i], x[first + i]);
    }
    for (int64_t i = whole; i < lanes; ++i) totals[i - whole] = combine(totals[i - whole], x[i]);
    for (int64_t n = kRowLanes / 2; n > 0; n /= 2) {
      for (int64_t i = 0; i < n; ++i) totals[i] = combine(totals[i], totals[i + n]);
    }
    to[row] = totals[0];
  }
}

static void sum_rows(const RowBlock& block, const double* x, double* sums) {
  reduce_rows(block, x, 0.0, sums, [](double total, double number) { return total + number; });
}

static void repeat_rows(const RowBlock& block, const double* rows, double* to) {
  if (!block.by_class) {
    for (int64_t i = 0; i < block.rows; ++i) {
      for (int64_t k = 0; k < block.classes; ++k) to[i * block.classes + k] = rows[i];
    }
    return;
  }
  for (int64_t k = 0; k < block.classes; ++k) {
    for (int64_t i = 0; i < block.rows; ++i) to[k * block.rows + i] = rows[i];
  }
}

// Sums of P, of Q and of q - p over the classes, one for each row and repeated for each class.
struct RowTotals {
  double difference[kElements], p[kElements], q[kElements], differences[kElements];
  double all_p[kElements], all_q[kElements], all_differences[kElements];

  explicit RowTotals(const RowBlock& block) {
#pragma omp simd
    for (int64_t i = 0; i < block.rows * block.classes; ++i) difference[i] = block.q[i] - block.p[i];
    sum_rows(block, block.p, p);
    sum_rows(block, block.q, q);
    sum_rows(block, difference, differences);
    repeat_rows(block, p, all_p);
    repeat_rows(block, q, all_q);
    repeat_rows(block, differences, all_differences);
  }
};

struct DirichletForm {
  KULLBACK_INLINE bool is_inside(double x) { return is_within(Range::kPositive, x); }

  template <bool with_derivatives>
  static void sweep(const RowBlock& block) {
    const int64_t n = block.rows * block.classes;
    const double *p = block.p, *q = block.q;
    RowTotals totals(block);
    const double* difference = totals.difference;
    double *all_p = totals.all_p, *all_q = totals.all_q, *all_differences = totals.all_differences;
    StirlingBregmans of_parts, of_totals;
    compute_bregman<with_derivatives>(n, p, q, difference, of_parts);
    compute_bregman<with_derivatives>(block.rows, totals.p, totals.q, totals.differences, of_totals);
    double terms[kElements], logs[kElements], determinant[kElements];
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) {
      determinant[i] = determinant_of(p[i], all_p[i], q[i], all_q[i], difference[i], all_differences[i]);
      logs[i] = log_quotient(p[i] * all_q[i], q[i] * all_p[i], determinant[i]).value();
      terms[i] = q[i] * exponential_of(logs[i]).expm1_minus_x + of_parts.value[i];
    }
    sum_rows(block, terms, block.value);
    for (int64_t i = 0; i < block.rows; ++i) block.value[i] -= of_totals.value[i];
    if constexpr (with_derivatives) {
      repeat_rows(block, of_totals.by_a, all_q);
      repeat_rows(block, of_totals.by_b, all_differences);
#pragma omp simd
      for (int64_t i = 0; i < n; ++i) {
        block.by_p[i] = determinant[i] / (p[i] * all_p[i]) + (of_parts.by_a[i] - all_q[i]);
        block.by_q[i] = (of_parts.by_b[i] - all_differences[i]) - logs[i];
      }
    }
  }
};

// The term of a class with probabilities P and Q, and d = log(P / Q), which is passed as 0 where one of them is 0.
struct ClassTerm {
  double value, mass_difference;  // P (e^-d - 1 + d) = Q - P + P d, and Q - P
};

// `mass_p` and `mass_q` are 0 where P or Q has no mass. A probability of 0 may also be an underflow.
KULLBACK_INLINE ClassTerm class_term(double p, double q, double d, double mass_p, double mass_q) {
  const double size = mass_p == 0.0 ? 1.0 : mass_q == 0.0 ? 1.0 : __builtin_fabs(d);
  const double far = q - p, x = size < 0.3 ? -d : 0.0, bracket = small_expm1_minus_x(x);
  const double mass_difference = size < 0.3 ? p * (bracket + x) : far;
  const double value = size < 0.3 ? p * bracket : far + p * d;
  const double outside = mass_p == 0.0 ? value : kInfinity;
  return {mass_q == 0.0 ? outside : value, mass_difference};
}

// Computes derivatives from probabilities p, log-ratios d and factors of the derivatives. The derivative with respect
// to log p is p (d - mean of d), so an error common to all d cancels. Rows with an infinite value get derivatives of 0.
static void finish_rows(const RowBlock& block, const double* p, const double* logs, const double* mass_difference,
                        const double* factor_p, const double* factor_q) {
  const int64_t n = block.rows * block.classes;
  if (n < 1) return;  // no block is empty; without this check the compiler warns of uninitialized arrays
  double *by_p = block.by_p, *by_q = block.by_q;
  double weighted[kElements], means[kElements], all_means[kElements], finite[kElements];
#pragma omp simd
  for (int64_t k = 0; k < n; ++k) weighted[k] = p[k] * logs[k];
  sum_rows(block, weighted, means);
  for (int64_t i = 0; i < block.rows; ++i) weighted[i] = block.value[i] == kInfinity ? 0.0 : 1.0;
  repeat_rows(block, weighted, finite);
  repeat_rows(block, means, all_means);
#pragma omp simd
  for (int64_t k = 0; k < n; ++k) {
    by_p[k] = factor_p[k] * finite[k] * (logs[k] - all_means[k]);
    by_q[k] = factor_q[k] * finite[k] * mass_difference[k];
  }
}

// a - b rounded, and its rounding error (Knuth, 1969).
struct ExactDifference {
  double rounded, rest;
};

KULLBACK_INLINE ExactDifference exact_difference(double a, double b) {
  const double rounded = a - b, taken = a - rounded;
  return {rounded, (a - (rounded + taken)) + (taken - b)};
}

struct CategoricalLogitsForm {
  KULLBACK_INLINE bool is_inside(double x) { return x <= 1e75; }

  // Writes the probabilities e^(x - peak) / sum, and for each row the peak, which is its largest logit, and log(sum).
  static void normalize(const RowBlock& block, const double* x, double* probabilities, double* peaks,
                        double* log_sums) {
    const int64_t n = block.rows * block.classes;
    double shifts[kElements], sums[kElements], inverses[kElements];
    reduce_rows(block, x, -kInfinity, peaks, [](double peak, double logit) { return logit > peak ? logit : peak; });
    repeat_rows(block, peaks, shifts);
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) {
      const double below = x[i] - shifts[i];
      const double e = exponential_of(below > -690.0 ? below : -690.0).value;
      probabilities[i] = below >= -700.0 ? e : below < -700.0 ? 0.0 : kNotANumber;
    }
    sum_rows(block, probabilities, sums);
#pragma omp simd
    for (int64_t i = 0; i < block.rows; ++i) {
      log_sums[i] = log_of(sums[i]);
      sums[i] = 1.0 / sums[i];
    }
    repeat_rows(block, sums, inverses);
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) probabilities[i] *= inverses[i];
  }

  template <bool with_derivatives>
  static void sweep(const RowBlock& block) {
    const int64_t n = block.rows * block.classes;
    double p[kElements], q[kElements], peaks_p[kElements], peaks_q[kElements], log_sums_p[kElements];
    double log_sums_q[kElements], shifts[kElements], rests[kElements], log_quotients[kElements];
    double terms[kElements], mass_difference[kElements], logs[kElements], ones[kElements];
    double mass_p[kElements], mass_q[kElements];
    const double *logits_p = block.p, *logits_q = block.q;
    normalize(block, logits_p, p, peaks_p, log_sums_p);
    normalize(block, logits_q, q, peaks_q, log_sums_q);
#pragma omp simd
    for (int64_t i = 0; i < block.rows; ++i) {
      const ExactDifference peaks = exact_difference(peaks_p[i], peaks_q[i]);
      peaks_p[i] = peaks.rounded;
      peaks_q[i] = peaks.rest;
      log_sums_p[i] -= log_sums_q[i];
    }
    repeat_rows(block, peaks_p, shifts);
    repeat_rows(block, peaks_q, rests);
    repeat_rows(block, log_sums_p, log_quotients);
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) {
      ones[i] = 1.0;
      mass_p[i] = logits_p[i] == -kInfinity ? 0.0 : 1.0;
      mass_q[i] = logits_q[i] == -kInfinity ? 0.0 : 1.0;
      // No digits are lost, neither for a large distance between P's and Q's logits nor for nearly equal logits.
      const ExactDifference difference = exact_difference(logits_p[i], logits_q[i]);
      const double d = ((difference.rounded - shifts[i]) + (difference.rest - rests[i])) - log_quotients[i];
      logs[i] = mass_p[i] * mass_q[i] == 0.0 ? 0.0 : d;
    }
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) {
      const ClassTerm term = class_term(p[i], q[i], logs[i], mass_p[i], mass_q[i]);
      terms[i] = term.value;
      mass_difference[i] = term.mass_difference;
    }
    sum_rows(block, terms, block.value);
    if constexpr (with_derivatives) {
      finish_rows(block, p, logs, mass_difference, p, ones);
    }
  }
};

struct CategoricalProbsForm {
  KULLBACK_INLINE bool is_inside(double x) { return (x <= 1e75) & ((x >= 1e-75) | (x == 0.0)); }

  template <bool with_derivatives>
  static void sweep(const RowBlock& block) {
    const int64_t n = block.rows * block.classes;
    const double *p = block.p, *q = block.q;
    const RowTotals totals(block);
    const double *difference = totals.difference, *all_differences = totals.all_differences;
    const double *all_p = totals.all_p, *all_q = totals.all_q;
    double terms[kElements], mass_difference[kElements], logs[kElements];
    double probabilities[kElements], by_p[kElements], by_q[kElements];
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) {
      const double least = p[i] < q[i] ? p[i] : q[i];
      const double determinant = determinant_of(p[i], all_p[i], q[i], all_q[i], difference[i], all_differences[i]);
      const double left = least == 0.0 ? 1.0 : p[i] * all_q[i], right = least == 0.0 ? 1.0 : q[i] * all_p[i];
      logs[i] = log_quotient(left, right, least == 0.0 ? 0.0 : determinant).value();
      probabilities[i] = p[i] / all_p[i];
      const ClassTerm term = class_term(probabilities[i], q[i] / all_q[i], logs[i], p[i], q[i]);
      terms[i] = term.value;
      mass_difference[i] = term.mass_difference;
      by_p[i] = p[i] == 0.0 ? 0.0 : 1.0 / all_p[i];
      by_q[i] = q[i] == 0.0 ? 0.0 : 1.0 / q[i];
    }
    sum_rows(block, terms, block.value);
    if constexpr (with_derivatives) {
      finish_rows(block, probabilities, logs, mass_difference, by_p, by_q);
    }
  }
};

// Copies rows to the columns of `lanes`, repeating the last row if there are more lanes than rows, and back.
static void gather_rows(int64_t rows, int64_t lanes, int64_t classes, const double* from, double* to) {
  for (int64_t i = 0; i < lanes; ++i) {
    const double* row = from + (i < rows ? i : rows - 1) * classes;
    for (int64_t k = 0; k < classes; ++k) to[k * lanes + i] = row[k];
  }
}

static void scatter_rows(int64_t rows, int64_t lanes, int64_t classes, const double* from, double* to) {
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t k = 0; k < classes; ++k) to[i * classes + k] = from[k * lanes + i];
  }
}

template <class Form, bool with_derivatives>
static bool run_rows(const FormRowTask& task) {
  alignas(64) double buffer_p[kElements], buffer_q[kElements], columns_p[kElements], columns_q[kElements];
  alignas(64) double values[kElements], by_p[kElements], by_q[kElements];
  const bool are_short = task.classes <= 2 * kRowLanes && task.size >= kRowLanes;
  const int64_t fitting = kElements / task.classes, most = are_short ? fitting / kRowLanes * kRowLanes : fitting;
  for (int64_t start = 0; start < task.size; start += most) {
    const int64_t rows = task.size - start < most ? task.size - start : most;
    const int64_t lanes = (rows + kRowLanes - 1) / kRowLanes * kRowLanes;
    const int64_t first = start * task.classes, n = rows * task.classes;
    const int64_t offset = first * size_of(task.dtype);
    const double* p = load(task.dtype, static_cast<const char*>(task.p) + offset, 1, n, buffer_p);
    const double* q = load(task.dtype, static_cast<const char*>(task.q) + offset, 1, n, buffer_q);
    int64_t faults = 0;
#pragma omp simd reduction(+ : faults)
    for (int64_t i = 0; i < n; ++i) {
      const bool of_p = Form::is_inside(p[i]), of_q = Form::is_inside(q[i]);
      faults += (of_p & of_q) ? 0 : 1;
    }
    if (faults) return false;
    if (are_short) {
      gather_rows(rows, lanes, task.classes, p, columns_p);
      gather_rows(rows, lanes, task.classes, q, columns_q);
      Form::template sweep<with_derivatives>(
          {lanes, task.classes, true, columns_p, columns_q, values, buffer_p, buffer_q});
      if (task.by_p) scatter_rows(rows, lanes, task.classes, buffer_p, by_p);
      if (task.by_q) scatter_rows(rows, lanes, task.classes, buffer_q, by_q);
    } else {
      Form::template sweep<with_derivatives>({rows, task.classes, false, p, q, values, by_p, by_q});
    }
    faults += store(task.dtype, true, rows, values, task.values, start);
    if (task.by_p) faults += store(task.dtype, false, n, by_p, task.by_p, first);
    if (task.by_q) faults += store(task.dtype, false, n, by_q, task.by_q, first);
    if (faults) return false;
  }
  return true;
}

template <class Form>
static bool run_rows_of(const FormRowTask& task) {
  return task.by_p || task.by_q ? run_rows<Form, true>(task) : run_rows<Form, false>(task);
}

bool compute_form_rows(const FormRowTask& task) {
  if (task.classes < 1 || task.classes > kElements) return false;
  switch (task.form) {
#define KULLBACK_CASE(name) \
  case RowForm::k##name: return run_rows_of<name##Form>(task);
    KULLBACK_ROWFORMS(KULLBACK_CASE)
#undef KULLBACK_CASE
  }
  return false;
}

}  // namespace KULLBACK_ISA
}  // namespace kullback
