// The closed form of multivariate normals from the Cholesky factors L of P's covariance and K of Q's, as in
// pairs/closed_forms/multivariate_normal.py. With M = K^-1 L and v = K^-1 (m_P - m_Q) it is
// (|v|^2 + sum over i of (m_ii^2 - 1 - log m_ii^2) + sum over i > j of m_ij^2) / 2. Included by kernel.cpp.
#pragma once

namespace kullback {
namespace KULLBACK_ISA {

// Memory for the d x d matrices of one batch element. The entries above the diagonal of triangular matrices are unused.
struct NormalsScratch {
  double *root_p, *root_q;  // L and K
  double* step;             // K^-1 (L - K), which is M - 1
  double* by_step;          // dKL/dM, and later dKL/dL = K^-T dKL/dM
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

// row -= the sum of `count` rows times their factors. The zeros of lower triangular rows are skipped.
template <bool is_lower, class Real>
static void subtract_rows(int64_t n, int64_t count, const Real* factors, int64_t step, const Real* rows, int64_t stride,
                          Real* row) {
  int64_t k = 0;
  for (; k + 4 <= count; k += 4, factors += 4 * step, rows += 4 * stride) {
    const Real a = factors[0], b = factors[step], c = factors[2 * step], d = factors[3 * step];
    const int64_t length = is_lower ? k + 4 : n;
#pragma omp simd
    for (int64_t j = 0; j < length; ++j) {
      row[j] = row[j] - (a * rows[j] + b * rows[stride + j]) - (c * rows[2 * stride + j] + d * rows[3 * stride + j]);
    }
  }
  for (; k < count; ++k, factors += step, rows += stride) {
    const Real factor = *factors;
    const int64_t length = is_lower ? k + 1 : n;
#pragma omp simd
    for (int64_t j = 0; j < length; ++j) row[j] = row[j] - factor * rows[j];
  }
}

// Overwrites x with root^-1 x. Both are lower triangular, with zeros above the diagonal of x.
template <class Real>
static void solve(int64_t d, const Real* root, Real* x) {
  for (int64_t i = 0; i < d; ++i) {
    Real* row = x + i * d;
    subtract_rows<true>(i, i, root + i * d, int64_t{1}, x, d, row);
    const Real inverse = Real(1.0) / root[i * d + i];
    for (int64_t j = 0; j <= i; ++j) row[j] = row[j] * inverse;
  }
}

// Returns KL from K^-1 (L - K), v, and the diagonals of L and K.
static double sum_of_normals(int64_t d, NormalsScratch& s) {
  double squares = 0, terms = 0;
  for (int64_t i = 0; i < d; ++i) {
    const double* step = s.step + i * d;
    squares += s.shift[i] * s.shift[i];
#pragma omp simd reduction(+ : squares)
    for (int64_t j = 0; j < i; ++j) squares += step[j] * step[j];
    const double z = step[i] * (2.0 + step[i]);
    s.diagonal[i] = s.root_p[i * d + i] / s.root_q[i * d + i];
    terms += log_quotient(s.diagonal[i] * s.diagonal[i], 1.0, z).x_minus_log1p(z);
  }
  return 0.5 * (squares + terms);
}

static double normals_value(int64_t d, NormalsScratch& s) {
  for (int64_t i = 0; i < d; ++i) {
    const double *p = s.root_p + i * d, *q = s.root_q + i * d;
    double* step = s.step + i * d;
    double shift = s.shift[i];
    for (int64_t j = 0; j < d; ++j) step[j] = j <= i ? p[j] - q[j] : 0.0;
    for (int64_t k = 0; k < i; ++k) shift -= q[k] * s.shift[k];
    s.shift[i] = shift / q[i];
  }
  solve(d, s.root_q, s.step);
  return sum_of_normals(d, s);
}

// Writes dKL/dL to by_step, dKL/dK to root_q, and dKL/dm_P to by_shift.
static void normals_derivatives(int64_t d, NormalsScratch& s) {
  for (int64_t i = 0; i < d; ++i) {
    s.by_shift[i] = s.shift[i];
    double *by = s.by_step + i * d, *step = s.step + i * d;
    for (int64_t j = 0; j < i; ++j) by[j] = step[j];
    by[i] = step[i] * (2.0 + step[i]) / s.diagonal[i];
    step[i] = s.diagonal[i];  // from here on `step` is M
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
  // dKL/dK is minus the lower triangle of dKL/dL M^T + (K^-T v) v^T. It overwrites K, which is not needed any more.
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

// Reads the lower triangle of a matrix. Returns how many of its numbers are out of range.
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

}  // namespace KULLBACK_ISA
}  // namespace kullback
