// The closed form of multivariate normals from the Cholesky factors of their covariances, as in
// pairs/closed_forms/multivariate_normal.py: with M = K^-1 L and v = K^-1 (m_P - m_Q) it is
// (|v|^2 + sum over i of (m_ii^2 - 1 - log m_ii^2) + sum over i > j of m_ij^2) / 2. Included by kernel.cpp.
#pragma once

namespace kullback {
namespace KULLBACK_ISA {

// Matrices of one element of the batch, of d x d numbers; of triangular ones the upper half is neither read nor written.
struct NormalsScratch {
  double *root_p, *root_q;  // L and K
  double* step;             // K^-1 (L - K), which is M - 1
  double* by_step;          // of half the sum above the derivative by M, then K^-T times it, which is that by L
  double *shift, *by_shift, *diagonal;  // v, K^-T v and m_ii

  static int64_t size_for(int64_t d) { return 4 * d * d + 3 * d; }

  NormalsScratch(double* data, int64_t d)
      : root_p(data),
        root_q(data + d * d),
        step(data + 2 * d * d),
        by_step(data + 3 * d * d),
        shift(data + 4 * d * d),
        by_shift(shift + d),
        diagonal(shift + 2 * d) {}
};

// row -= factor * other, for the first n numbers.
KULLBACK_INLINE void subtract(int64_t n, double factor, const double* other, double* row) {
#pragma omp simd
  for (int64_t j = 0; j < n; ++j) row[j] -= factor * other[j];
}

static double normals_value(int64_t d, NormalsScratch& s) {
  double squares = 0, terms = 0;
  for (int64_t i = 0; i < d; ++i) {
    const double *p = s.root_p + i * d, *q = s.root_q + i * d;
    double* step = s.step + i * d;
    const double inverse = 1.0 / q[i];
    double shift = s.shift[i];
    for (int64_t j = 0; j <= i; ++j) step[j] = p[j] - q[j];
    for (int64_t k = 0; k < i; ++k) {
      subtract(k + 1, q[k], s.step + k * d, step);
      shift -= q[k] * s.shift[k];
    }
    for (int64_t j = 0; j <= i; ++j) step[j] *= inverse;
    shift *= inverse;
    s.shift[i] = shift;
    squares += shift * shift;
    for (int64_t j = 0; j < i; ++j) squares += step[j] * step[j];
    const double z = step[i] * (2.0 + step[i]);
    s.diagonal[i] = p[i] * inverse;
    terms += log_quotient(s.diagonal[i] * s.diagonal[i], 1.0, z).x_minus_log1p(z);
  }
  return 0.5 * (squares + terms);
}

// The derivatives by L and by K, into by_step and step, and by the mean of P, into by_shift.
static void normals_derivatives(int64_t d, NormalsScratch& s) {
  for (int64_t i = 0; i < d; ++i) {
    s.by_shift[i] = s.shift[i];
    double *by = s.by_step + i * d, *step = s.step + i * d;
    for (int64_t j = 0; j < i; ++j) by[j] = step[j];
    by[i] = step[i] * (2.0 + step[i]) / s.diagonal[i];
    step[i] = s.diagonal[i];  // from here on M itself
  }
  for (int64_t i = d - 1; i >= 0; --i) {
    double* by = s.by_step + i * d;
    for (int64_t k = i + 1; k < d; ++k) {
      const double factor = s.root_q[k * d + i];
      subtract(i + 1, factor, s.by_step + k * d, by);
      s.by_shift[i] -= factor * s.by_shift[k];
    }
    const double inverse = 1.0 / s.root_q[i * d + i];
    for (int64_t j = 0; j <= i; ++j) by[j] *= inverse;
    s.by_shift[i] *= inverse;
  }
  // By K: minus the lower half of (by L) M^T + (K^-T v) v^T. K itself is needed no more and makes room.
  for (int64_t i = 0; i < d; ++i) {
    for (int64_t j = 0; j <= i; ++j) {
      const double *by = s.by_step + i * d, *row = s.step + j * d;
      double sum = s.by_shift[i] * s.shift[j];
#pragma omp simd reduction(+ : sum)
      for (int64_t k = 0; k <= j; ++k) sum += by[k] * row[k];
      s.root_q[i * d + j] = -sum;
    }
  }
}

// Reads the lower half of a matrix; returns how many of its numbers are of no use.
static int64_t load_lower(Dtype dtype, const void* from, int64_t d, double* to) {
  int64_t faults = 0;
  for (int64_t i = 0; i < d; ++i) {
    const char* row = static_cast<const char*>(from) + i * d * size_of(dtype);
    const double* numbers = load(dtype, row, 1, i + 1, to + i * d);
    for (int64_t j = 0; j <= i; ++j) {
      to[i * d + j] = numbers[j];
      faults += is_within(j == i ? Range::kMildPositive : Range::kMild, numbers[j]) ? 0 : 1;
    }
  }
  return faults;
}

static int64_t store_lower(Dtype dtype, int64_t d, double* from, void* to, int64_t start) {
  for (int64_t i = 0; i < d; ++i) {
    for (int64_t j = i + 1; j < d; ++j) from[i * d + j] = 0.0;
  }
  return store(dtype, false, d * d, from, to, start);
}

bool compute_normals(const NormalsTask& task) {
  const int64_t d = task.dimensions, bytes = size_of(task.dtype);
  double* data = new double[NormalsScratch::size_for(d) + 2 * d];
  NormalsScratch s(data, d);
  double *loc_p = data + NormalsScratch::size_for(d), *loc_q = loc_p + d;
  int64_t faults = 0;
  for (int64_t i = 0; i < task.size && !faults; ++i) {
    const double* p = load(task.dtype, static_cast<const char*>(task.loc_p) + i * d * bytes, 1, d, loc_p);
    const double* q = load(task.dtype, static_cast<const char*>(task.loc_q) + i * d * bytes, 1, d, loc_q);
    for (int64_t j = 0; j < d; ++j) {
      s.shift[j] = p[j] - q[j];
      const bool of_p = is_within(Range::kMild, p[j]), of_q = is_within(Range::kMild, q[j]);
      faults += (of_p & of_q) ? 0 : 1;
    }
    faults += load_lower(task.dtype, static_cast<const char*>(task.root_p) + i * d * d * bytes, d, s.root_p);
    faults += load_lower(task.dtype, static_cast<const char*>(task.root_q) + i * d * d * bytes, d, s.root_q);
    if (faults) break;
    const double value = normals_value(d, s);
    faults += store(task.dtype, true, 1, &value, task.values, i);
    if (!(task.by_loc_p || task.by_root_p || task.by_loc_q || task.by_root_q)) continue;
    normals_derivatives(d, s);
    if (task.by_root_p) faults += store_lower(task.dtype, d, s.by_step, task.by_root_p, i * d * d);
    if (task.by_root_q) faults += store_lower(task.dtype, d, s.root_q, task.by_root_q, i * d * d);
    if (task.by_loc_p) faults += store(task.dtype, false, d, s.by_shift, task.by_loc_p, i * d);
    for (int64_t j = 0; j < d; ++j) s.by_shift[j] = -s.by_shift[j];
    if (task.by_loc_q) faults += store(task.dtype, false, d, s.by_shift, task.by_loc_q, i * d);
  }
  delete[] data;
  return faults == 0;
}

}  // namespace KULLBACK_ISA
}  // namespace kullback
