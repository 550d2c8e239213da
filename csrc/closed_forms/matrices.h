// KL of multivariate normals from covariances or precisions, by their Cholesky factors. The factors are computed in
// float64 if that is accurate enough, otherwise with twice its precision. The formulas are those in normals.h. This
// file is included by kernel.cpp after normals.h.
#pragma once
#include "wide.h"

namespace kullback {
namespace KULLBACK_ISA {

// kErrorOfDouble and kErrorOfSingle bound the relative error of KL from rounding of the factors.
constexpr double kRounding = 2.220446049250313e-16, kErrorOfDouble = 1e-12, kErrorOfSingle = 1e-9;

// Overwrites a matrix by its Cholesky factor. Only the upper triangle is read. Returns false if there is no factor.
template <class Real>
static bool factorize(int64_t d, Real* a) {
  for (int64_t i = 0; i < d; ++i) {
    Real* row = a + i * d + i;
    subtract_rows<false>(d - i, i, a + i, d, a + i, d, row);
    if (!(static_cast<double>(row[0]) > 0.0)) return false;
    const Real inverse = Real(1.0) / root_of(row[0]);
    for (int64_t j = 0; j < d - i; ++j) row[j] = row[j] * inverse;
  }
  for (int64_t i = 0; i < d; ++i) {
    for (int64_t j = i + 1; j < d; ++j) {
      a[j * d + i] = a[i * d + j];
      a[i * d + j] = Real(0.0);
    }
  }
  return true;
}

// One side of a pair: the matrix that the user passed, the Cholesky factor of the covariance, and the inverse of the
// Cholesky factor of the matrix. A precision has its rows and columns in reverse order. If the user passed a Cholesky
// factor, the inverse is not used.
template <class Real>
struct Root {
  MatrixKind kind;
  const double* matrix;
  Real *root, *inverse;

  bool compute(int64_t d) {
    for (int64_t i = 0; i < d * d; ++i) root[i] = Real(matrix[i]);
    if (kind == MatrixKind::kFactor) return true;
    if (!factorize(d, root)) return false;
    for (int64_t i = 0; i < d * d; ++i) inverse[i] = Real(0.0);
    for (int64_t i = 0; i < d; ++i) inverse[i * d + i] = Real(1.0);
    solve(d, root, inverse);
    if (kind == MatrixKind::kCovariance) return true;
    for (int64_t i = 0; i < d; ++i) {
      for (int64_t j = 0; j <= i; ++j) root[i * d + j] = inverse[(d - 1 - j) * d + (d - 1 - i)];
    }
    return true;
  }

  // The sum of variance times precision over the dimensions, which bounds the effect of rounding the matrix.
  double condition(int64_t d) const {
    double sum = 0;
    for (int64_t i = 0; i < d && kind != MatrixKind::kFactor; ++i) {
#pragma omp simd reduction(+ : sum)
      for (int64_t j = 0; j <= i; ++j) {
        const double x = static_cast<double>(inverse[i * d + j]);
        sum += x * x * matrix[j * d + j];
      }
    }
    return sum;
  }
};

// Computes K^-1 (L - K) and K^-1 (m_P - m_Q). Returns false if a matrix has no Cholesky factor.
template <class Real>
static bool compare(int64_t d, const double* mean_p, const double* mean_q, Root<Real>& p, Root<Real>& q, Real* step,
                    Real* shift) {
  if (!p.compute(d) || !q.compute(d)) return false;
  for (int64_t i = 0; i < d * d; ++i) step[i] = p.root[i] - q.root[i];
  solve(d, q.root, step);
  for (int64_t i = 0; i < d; ++i) {
    const Real* row = q.root + i * d;
    Real x = Real(mean_p[i]) - Real(mean_q[i]);
    for (int64_t k = 0; k < i; ++k) x = x - row[k] * shift[k];
    shift[i] = x / row[i];
  }
  return true;
}

// out = sign / 2 A (N + N^T + N^T N + v v^T) A^T for triangular N, with A_ij at a[i * row + j * column].
static void congruence(int64_t d, double sign, const double* n, const double* v, const double* a, int64_t row,
                       int64_t column, double* room, double* out) {
  for (int64_t i = 0; i < d; ++i) {
    double* to = out + i * d;
    for (int64_t j = 0; j < d; ++j) to[j] = -(n[i * d + j] + n[j * d + i]) - (v ? v[i] * v[j] : 0.0);
    subtract_rows<false>(d, d, n + i, d, n, d, to);
  }
  for (int64_t i = 0; i < d; ++i) {
    double* to = room + i * d;
    for (int64_t j = 0; j < d; ++j) to[j] = 0.0;
    subtract_rows<false>(d, d, a + i * row, column, out, d, to);
  }
  for (int64_t i = 0; i < d; ++i) {  // transposes `room`; `out` is symmetric
    for (int64_t j = 0; j < i; ++j) std::swap(room[i * d + j], room[j * d + i]);
  }
  for (int64_t i = 0; i < d; ++i) {
    double* to = out + i * d;
    for (int64_t j = 0; j < d; ++j) to[j] = 0.0;
    subtract_rows<false>(d, d, a + i * row, column, room, d, to);
    for (int64_t j = 0; j < d; ++j) to[j] *= -0.5 * sign;
  }
}

// Reads (A + A^T) / 2 for a matrix A. The rows and columns of a precision are read in reverse order.
static int64_t load_matrix(Dtype dtype, MatrixKind kind, const void* from, int64_t d, double* room, double* to) {
  const double* x = load(dtype, from, 1, d * d, room);
  int64_t faults = 0;
  for (int64_t i = 0; i < d; ++i) {
    for (int64_t j = 0; j <= i; ++j) {
      const double number = 0.5 * (x[i * d + j] + x[j * d + i]);
      faults += is_within(j == i ? Range::kMildPositive : Range::kMild, number) ? 0 : 1;
      const bool is_reversed = kind == MatrixKind::kPrecision;
      const int64_t row = is_reversed ? d - 1 - i : i, column = is_reversed ? d - 1 - j : j;
      to[row * d + column] = to[column * d + row] = number;
    }
  }
  return faults;
}

// Memory for the matrices that covariances and precisions need in addition to NormalsScratch.
struct MatricesScratch {
  double *matrix_p, *matrix_q, *inverse_p, *inverse_q, *room;
  Wide* wide = nullptr;

  static int64_t size_for(int64_t d) { return 6 * d * d; }

  MatricesScratch(double* data, int64_t d)
      : matrix_p(data),
        matrix_q(data + d * d),
        inverse_p(data + 2 * d * d),
        inverse_q(data + 3 * d * d),
        room(data + 4 * d * d) {}
  ~MatricesScratch() { delete[] wide; }
};

// Returns KL, or NaN if a matrix has no Cholesky factor.
static double matrices_value(const NormalsTask& task, const double* mean_p, const double* mean_q, NormalsScratch& s,
                             MatricesScratch& more) {
  const int64_t d = task.dimensions, size = d * d;
  Root<double> p{task.kind_p, more.matrix_p, s.root_p, more.inverse_p};
  Root<double> q{task.kind_q, more.matrix_q, s.root_q, more.inverse_q};
  if (compare(d, mean_p, mean_q, p, q, s.step, s.shift)) {
    const double value = sum_of_normals(d, s), limit = task.dtype == Dtype::kFloat64 ? kErrorOfDouble : kErrorOfSingle;
    double squares = 0, distance = 0;
    for (int64_t i = 0; i < d; ++i) {
      distance += s.shift[i] * s.shift[i];
#pragma omp simd reduction(+ : squares)
      for (int64_t j = 0; j <= i; ++j) squares += s.step[i * d + j] * s.step[i * d + j];
    }
    const double of_p = kRounding * p.condition(d), of_q = kRounding * q.condition(d);
    const double change = 2.0 * __builtin_sqrt(squares) + squares;  // an upper bound of |M M^T - 1|
    const bool is_exact = (of_p + of_q) * change <= limit * (value - 0.5 * distance) && of_q <= limit;
    if (is_exact || (squares == 0.0 && of_q <= limit)) return value;
  }
  if (!more.wide) more.wide = new Wide[5 * size + d];
  Wide *root_p = more.wide, *root_q = root_p + size, *inverse_p = root_q + size, *inverse_q = inverse_p + size;
  Wide *step = inverse_q + size, *shift = step + size;
  Root<Wide> wide_p{task.kind_p, more.matrix_p, root_p, inverse_p};
  Root<Wide> wide_q{task.kind_q, more.matrix_q, root_q, inverse_q};
  if (!compare(d, mean_p, mean_q, wide_p, wide_q, step, shift)) return kNotANumber;
  for (int64_t i = 0; i < size; ++i) {
    s.root_p[i] = static_cast<double>(root_p[i]);
    s.root_q[i] = static_cast<double>(root_q[i]);
    more.inverse_p[i] = static_cast<double>(inverse_p[i]);
    more.inverse_q[i] = static_cast<double>(inverse_q[i]);
    s.step[i] = static_cast<double>(step[i]);
  }
  for (int64_t i = 0; i < d; ++i) s.shift[i] = static_cast<double>(shift[i]);
  return sum_of_normals(d, s);
}

// Writes the derivative with respect to the covariance or the precision of P or Q to `out`.
static void derivative_of_matrix(int64_t d, bool is_p, MatrixKind kind, const NormalsScratch& s, const double* root,
                                 const double* inverse, double* room, double* out) {
  const bool is_covariance = kind == MatrixKind::kCovariance;
  double* n = room + d * d;
  for (int64_t i = 0; i < d; ++i) {
    for (int64_t j = 0; j < d; ++j) n[i * d + j] = is_p ? s.step[i * d + j] : s.step[j * d + i];
  }
  congruence(d, is_p == is_covariance ? 1.0 : -1.0, n, is_p ? nullptr : s.shift, is_covariance ? inverse : root,
             is_covariance ? 1 : d, is_covariance ? d : 1, room, out);
}

bool compute_normals(const NormalsTask& task) {
  const int64_t d = task.dimensions, size = d * d, bytes = size_of(task.dtype);
  const bool of_factors = task.kind_p == MatrixKind::kFactor && task.kind_q == MatrixKind::kFactor;
  const int64_t of_normals = NormalsScratch::size_for(d);
  double* data = new double[of_normals + 2 * d + (of_factors ? 0 : MatricesScratch::size_for(d))];
  NormalsScratch s(data, d);
  double *loc_p = data + of_normals, *loc_q = loc_p + d;
  MatricesScratch more(loc_q + d, d);
  const auto load_side = [&](MatrixKind kind, const void* matrices, int64_t i, double* root, double* matrix) {
    const char* from = static_cast<const char*>(matrices) + i * size * bytes;
    if (of_factors) return load_lower(task.dtype, from, d, root);
    if (kind != MatrixKind::kFactor) return load_matrix(task.dtype, kind, from, d, more.room, matrix);
    for (int64_t j = 0; j < size; ++j) matrix[j] = 0.0;
    return load_lower(task.dtype, from, d, matrix);
  };
  int64_t faults = 0;
  for (int64_t i = 0; i < task.size && !faults; ++i) {
    const double* p = load(task.dtype, static_cast<const char*>(task.loc_p) + i * d * bytes, 1, d, loc_p);
    const double* q = load(task.dtype, static_cast<const char*>(task.loc_q) + i * d * bytes, 1, d, loc_q);
    for (int64_t j = 0; j < d; ++j) {
      s.shift[j] = p[j] - q[j];
      const bool of_p = is_within(Range::kMild, p[j]), of_q = is_within(Range::kMild, q[j]);
      faults += (of_p & of_q) ? 0 : 1;
    }
    faults += load_side(task.kind_p, task.root_p, i, s.root_p, more.matrix_p);
    faults += load_side(task.kind_q, task.root_q, i, s.root_q, more.matrix_q);
    if (faults) break;
    const double value = of_factors ? normals_value(d, s) : matrices_value(task, p, q, s, more);
    faults += store(task.dtype, true, 1, &value, task.values, i);
    if (!(task.by_loc_p || task.by_root_p || task.by_loc_q || task.by_root_q)) continue;
    if (task.by_root_p && task.kind_p != MatrixKind::kFactor) {
      derivative_of_matrix(d, true, task.kind_p, s, s.root_p, more.inverse_p, more.room, s.by_step);
      faults += store(task.dtype, false, size, s.by_step, task.by_root_p, i * size);
    }
    if (task.by_root_q && task.kind_q != MatrixKind::kFactor) {
      derivative_of_matrix(d, false, task.kind_q, s, s.root_q, more.inverse_q, more.room, s.by_step);
      faults += store(task.dtype, false, size, s.by_step, task.by_root_q, i * size);
    }
    normals_derivatives(d, s);
    const bool by_p = task.by_root_p && task.kind_p == MatrixKind::kFactor;
    const bool by_q = task.by_root_q && task.kind_q == MatrixKind::kFactor;
    if (by_p) faults += store_lower(task.dtype, d, s.by_step, task.by_root_p, i * size);
    if (by_q) faults += store_lower(task.dtype, d, s.root_q, task.by_root_q, i * size);
    if (task.by_loc_p) faults += store(task.dtype, false, d, s.by_shift, task.by_loc_p, i * d);
    for (int64_t j = 0; j < d; ++j) s.by_shift[j] = -s.by_shift[j];
    if (task.by_loc_q) faults += store(task.dtype, false, d, s.by_shift, task.by_loc_q, i * d);
  }
  delete[] data;
  return faults == 0;
}

}  // namespace KULLBACK_ISA
}  // namespace kullback
