// KL of multivariate normals, of which at least one has a covariance W W^T + D. Formulas and sources are documented in
// pairs/closed_forms/multivariate_normal.py. This file is included by kernel.cpp after normals.h.
#pragma once
#include <new>

namespace kullback {
namespace KULLBACK_ISA {

// From this number of dimensions on, a pair of low-rank covariances is not computed by Cholesky factors.
constexpr int64_t kMostOfRoot = 64;

// Vectors are padded with zeros to a multiple of this length, so that loops have no remainder.
constexpr int64_t kLanes = 8;

// The dot product of padded vectors.
KULLBACK_INLINE double dot_of_lanes(int64_t n, const double* a, const double* b) {
  double sums[kLanes] = {};
  for (int64_t i = 0; i < n; i += kLanes) {
#pragma omp simd
    for (int64_t k = 0; k < kLanes; ++k) sums[k] += a[i + k] * b[i + k];
  }
  double total = 0;
  for (double sum : sums) total += sum;
  return total;
}

// row -= factor * other.
KULLBACK_INLINE void subtract_lanes(int64_t n, double factor, const double* other, double* row) {
  for (int64_t i = 0; i < n; i += kLanes) {
#pragma omp simd
    for (int64_t k = 0; k < kLanes; ++k) row[i + k] -= factor * other[i + k];
  }
}

KULLBACK_INLINE double dot(int64_t n, const double* a, const double* b) {
  double sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t i = 0; i < n; ++i) sum += a[i] * b[i];
  return sum;
}

// A mean, the columns of W, and the variances D, which are padded with ones. If `variances` is null, `columns` has the
// rows of the Cholesky factor of a covariance, and `rank` is the number of dimensions.
struct Gaussian {
  int64_t rank;
  double *mean, *columns, *variances;
};

// Overwrites the columns of [U; 1] by the orthonormal columns Q of [U; 1] = Q R, by the modified Gram-Schmidt method.
// R^T R = 1 + U^T U. Returns log det(R^T R), or NaN if R is ill-conditioned.
static double orthonormalize(int64_t n, int64_t rank, double* columns) {
  double logs = 0, least = kInfinity, most = 0;
  for (int64_t j = 0; j < rank; ++j) {
    double* column = columns + j * n;
    const double size = __builtin_sqrt(dot_of_lanes(n, column, column)), inverse = 1.0 / size;
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) column[i] *= inverse;
    for (int64_t k = j + 1; k < rank; ++k) {
      subtract_lanes(n, dot_of_lanes(n, column, columns + k * n), column, columns + k * n);
    }
    logs += log_of(size);
    least = size < least ? size : least;
    most = size > most ? size : most;
  }
  return most <= 1e4 * least ? 2.0 * logs : kNotANumber;
}

// Writes Q for U = D^(-1/2) W to `columns`, and returns log det(1 + U^T U), or NaN if R is ill-conditioned.
static double orthonormalize(int64_t d, int64_t n, const Gaussian& x, const double* inverse_root, double* columns) {
  for (int64_t j = 0; j < x.rank; ++j) {
    double* column = columns + j * n;
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) column[i] = x.columns[j * n + i] * inverse_root[i];
    column[d + j] = 1.0;
  }
  return orthonormalize(n, x.rank, columns);
}

// Subtracts from v its projection onto the orthonormal columns of q.
KULLBACK_INLINE void subtract_span(int64_t n, int64_t rank, const double* q, double* v) {
  for (int64_t j = 0; j < rank; ++j) subtract_lanes(n, dot_of_lanes(n, q + j * n, v), q + j * n, v);
}

// The minimum over z of |v - U z|^2 + |z|^2, for v = D^(-1/2) x. `rest` is memory for v.
static double distance_to(int64_t n, int64_t rank, const double* q, const double* x, const double* inverse_root,
                          double* rest) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) rest[i] = x[i] * inverse_root[i];
  subtract_span(n, rank, q, rest);
  return dot_of_lanes(n, rest, rest);
}

// If KL divided by the sum of its terms' sizes is below this, too many digits cancel.
constexpr double kLeastOfTerms = 1e-3;

// KL to a low-rank Q. By Woodbury's identity, it needs only matrices of size rank x rank.
struct ValueInFactors {
  double value;
  double distance;  // half the squared Mahalanobis distance of the means
  bool is_exact;
};

static ValueInFactors value_in_factors(int64_t d, int64_t n, const Gaussian& p, const Gaussian& q, double* room) {
  double *root_p = room, *root_q = root_p + n, *ratio = root_q + n, *rest = ratio + n, *column = rest + n;
  double *q_q = column + n, *q_p = q_q + q.rank * n;
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) root_q[i] = 1.0 / __builtin_sqrt(q.variances[i]);
  const double log_q = orthonormalize(d, n, q, root_q, q_q);
  // The logarithms are of numbers >= 1, so their rounding errors are relative to 1.
  double value = log_q, terms = __builtin_fabs(log_q) + static_cast<double>(p.rank + q.rank);
  if (p.variances) {
    double noise = 0, explained = 0, trace = 0;
#pragma omp simd reduction(+ : noise)
    for (int64_t i = 0; i < n; ++i) {
      const double a = p.variances[i], b = q.variances[i], inverse = 1.0 / b, difference = a - b;
      root_p[i] = 1.0 / __builtin_sqrt(a);
      ratio[i] = a * inverse;
      noise += log_quotient(a, b, difference).x_minus_log1p(difference * inverse);
    }
    for (int64_t i = d; i < n; ++i) ratio[i] = 0.0;
    const double log_p = orthonormalize(d, n, p, root_p, q_p);
    for (int64_t j = 0; j < p.rank; ++j) trace += distance_to(n, q.rank, q_q, p.columns + j * n, root_q, rest);
    for (int64_t j = 0; j < q.rank; ++j) {
      const double* b = q_q + j * n;
#pragma omp simd
      for (int64_t i = 0; i < n; ++i) rest[i] = ratio[i] * b[i];
      explained += dot_of_lanes(n, rest, b);
    }
    value += noise + (trace - explained) - log_p;
    terms += noise + trace + explained + __builtin_fabs(log_p);
  } else {
    // |D^(-1/2) L|^2 - |B^T D^(-1/2) L|^2, where B is the upper part of Q.
    double squares = 0, explained = 0, logs = 0;
    for (int64_t i = 0; i < q.rank * n; ++i) q_p[i] = 0.0;
    for (int64_t i = 0; i < d; ++i) {
      const double* row = p.columns + i * d;
      squares += root_q[i] * root_q[i] * dot(i + 1, row, row);
      for (int64_t k = 0; k < q.rank; ++k) subtract(i + 1, q_q[k * n + i] * root_q[i], row, q_p + k * n);
      logs += 2.0 * log_of(row[i] * root_q[i]);
    }
    for (int64_t k = 0; k < q.rank; ++k) explained += dot_of_lanes(n, q_p + k * n, q_p + k * n);
    value += squares - explained - static_cast<double>(d) - logs;
    terms += squares + explained + __builtin_fabs(logs);
  }
  for (int64_t i = 0; i < n; ++i) column[i] = p.mean[i] - q.mean[i];
  const double distance = distance_to(n, q.rank, q_q, column, root_q, rest);
  value += distance;
  return {0.5 * value, 0.5 * distance, value >= kLeastOfTerms * terms};
}

constexpr int64_t rounded_to_lanes(int64_t n) { return (n + kLanes - 1) / kLanes * kLanes; }

// tr((L_t^-1 (L - K))^2) for the covariances L of P and K of Q, with L_t = K + t (L - K). The trace is computed from
// the differences of the factors and of the variances. Returns NaN if that is not accurate enough.
static double square_between(int64_t d, int64_t stride, const Gaussian& p, const Gaussian& q, double t, double* room) {
  const int64_t ranks = p.rank + q.rank, rank = p.rank > q.rank ? p.rank : q.rank, n = rounded_to_lanes(d + ranks);
  double *inverse_root = room, *noise = inverse_root + n, *weighted = noise + n, *b = weighted + n;
  double *x = b + ranks * n, *y = x + rank * n;
  for (int64_t i = 0; i < (3 + ranks + 2 * rank) * n; ++i) room[i] = 0.0;
  for (int64_t i = 0; i < d; ++i) {
    const double difference = p.variances[i] - q.variances[i], variance = q.variances[i] + t * difference;
    inverse_root[i] = 1.0 / __builtin_sqrt(variance);
    noise[i] = difference / variance;
  }
  const double share_p = __builtin_sqrt(t), share_q = __builtin_sqrt(1.0 - t);
  for (int64_t j = 0; j < ranks; ++j) {
    const double *w = j < q.rank ? q.columns + j * stride : p.columns + (j - q.rank) * stride;
    const double share = j < q.rank ? share_q : share_p;
    for (int64_t i = 0; i < d; ++i) b[j * n + i] = share * w[i] * inverse_root[i];
    b[j * n + d + j] = 1.0;
  }
  if (!(orthonormalize(n, ranks, b) >= 0.0)) return kNotANumber;
  for (int64_t j = 0; j < rank; ++j) {
    for (int64_t i = 0; i < d; ++i) {
      const double of_p = j < p.rank ? p.columns[j * stride + i] : 0.0;
      const double of_q = j < q.rank ? q.columns[j * stride + i] : 0.0;
      x[j * n + i] = (of_p - of_q) * inverse_root[i];
      y[j * n + i] = 0.5 * (of_p + of_q) * inverse_root[i];
    }
    subtract_span(n, ranks, b, x + j * n);
    subtract_span(n, ranks, b, y + j * n);
  }
  double of_noise = dot_of_lanes(n, noise, noise), across = 0, of_factors = 0;
  const auto weight = [&](const double* column) {
    for (int64_t i = 0; i < n; ++i) weighted[i] = noise[i] * column[i];
  };
  for (int64_t j = 0; j < ranks; ++j) {
    weight(b + j * n);
    of_noise -= 2.0 * dot_of_lanes(n, weighted, weighted);
    for (int64_t k = 0; k <= j; ++k) {
      const double product = dot_of_lanes(n, weighted, b + k * n);
      of_noise += (k == j ? 1.0 : 2.0) * product * product;
    }
  }
  for (int64_t j = 0; j < rank; ++j) {
    weight(x + j * n);
    across += dot_of_lanes(n, weighted, y + j * n);
    for (int64_t k = 0; k < rank; ++k) {
      of_factors += dot_of_lanes(n, y + j * n, x + k * n) * dot_of_lanes(n, y + k * n, x + j * n) +
                    dot_of_lanes(n, x + j * n, x + k * n) * dot_of_lanes(n, y + j * n, y + k * n);
    }
  }
  return of_noise + 4.0 * across + 2.0 * of_factors;
}

// The number of float64 numbers in the memory that square_between needs.
constexpr int64_t size_between(int64_t d, int64_t rank) { return (3 + 4 * rank) * rounded_to_lanes(d + 2 * rank); }

// Below this, twice the KL of the covariances is computed as the integral of (1 - t) tr((L_t^-1 (L - K))^2) over t from
// 0 to 1. Four nodes give thirteen digits.
constexpr double kNearInFactors = 0.0025;

// Twice the KL of the covariances for a small KL; NaN if the result is not accurate enough.
static double value_of_near_factors(int64_t d, int64_t stride, const Gaussian& p, const Gaussian& q, double* room) {
  double value = 0;
  for (int k = 0; k < 4; ++k) {
    value += kTriangleWeights[k] * square_between(d, stride, p, q, kTriangleNodes[k], room);
  }
  return value;
}

// The Cholesky factor of W W^T + D, by rank-1 updates of the factor of D with each column of W.
static void make_root(int64_t d, int64_t n, const Gaussian& x, double* column, double* root) {
  if (!x.variances) {
    for (int64_t i = 0; i < d * d; ++i) root[i] = x.columns[i];
    return;
  }
  for (int64_t i = 0; i < d * d; ++i) root[i] = 0.0;
  for (int64_t i = 0; i < d; ++i) root[i * d + i] = __builtin_sqrt(x.variances[i]);
  for (int64_t j = 0; j < x.rank; ++j) {
    for (int64_t i = 0; i < d; ++i) column[i] = x.columns[j * n + i];
    for (int64_t k = 0; k < d; ++k) {
      const double diagonal = root[k * d + k], size = __builtin_sqrt(diagonal * diagonal + column[k] * column[k]);
      const double cosine = diagonal / size, sine = column[k] / size;
      root[k * d + k] = size;
      for (int64_t i = k + 1; i < d; ++i) {
        const double below = root[i * d + k];
        root[i * d + k] = cosine * below + sine * column[i];
        column[i] = cosine * column[i] - sine * below;
      }
    }
  }
}

// Solves K X = B in place, where `rows` are the rows of B and then of X.
static void whiten(int64_t d, const double* root, int64_t columns, double* rows) {
  for (int64_t i = 0; i < d; ++i) {
    for (int64_t k = 0; k < i; ++k) subtract(columns, root[i * d + k], rows + k * columns, rows + i * columns);
    const double inverse = 1.0 / root[i * d + i];
    for (int64_t j = 0; j < columns; ++j) rows[i * columns + j] *= inverse;
  }
}

// N = K^-1 (L L^T - K K^T) K^-T is computed from the differences of the user's factors and variances. If the squared
// norm of N is below this, M is computed from N: E = M - 1 is lower triangular, and E + E^T + E E^T = N.
constexpr double kNear = 0.02;

// Twice the KL of the covariances, or NaN if the norm of N is too large. `room` is memory for two matrices of size
// d x d and two of the size of W.
static double value_of_near(int64_t d, int64_t stride, const Gaussian& p, const Gaussian& q, const double* root,
                            double* room) {
  const int64_t r = p.rank > q.rank ? p.rank : q.rank;
  double *n = room, *e = n + d * d, *change = e + d * d, *middle = change + d * r;
  for (int64_t i = 0; i < d; ++i) {
    for (int64_t j = 0; j < r; ++j) {
      const double a = j < p.rank ? p.columns[j * stride + i] : 0.0;
      const double b = j < q.rank ? q.columns[j * stride + i] : 0.0;
      change[i * r + j] = a - b;
      middle[i * r + j] = 0.5 * (a + b);
    }
  }
  whiten(d, root, r, change);
  whiten(d, root, r, middle);
  // K^-1 (D_P - D_Q) K^-T in two steps, with a transpose between them.
  for (int64_t i = 0; i < d * d; ++i) e[i] = 0.0;
  for (int64_t i = 0; i < d; ++i) e[i * d + i] = p.variances[i] - q.variances[i];
  whiten(d, root, d, e);
  for (int64_t i = 0; i < d; ++i) {
    for (int64_t j = 0; j < d; ++j) n[i * d + j] = e[j * d + i];
  }
  whiten(d, root, d, n);
  double squares = 0;
  for (int64_t i = 0; i < d; ++i) {
    for (int64_t j = 0; j < d; ++j) {
      double sum = n[i * d + j];
      for (int64_t k = 0; k < r; ++k) {
        sum += change[i * r + k] * middle[j * r + k] + middle[i * r + k] * change[j * r + k];
      }
      n[i * d + j] = sum;
      squares += sum * sum;
    }
  }
  if (!(squares < kNear)) return kNotANumber;
  double value = 0;
  for (int64_t i = 0; i < d; ++i) {
    double z = n[i * d + i];
    for (int64_t j = 0; j < i; ++j) {
      const double below = (n[i * d + j] - dot(j, e + i * d, e + j * d)) / (1.0 + e[j * d + j]);
      e[i * d + j] = below;
      z -= below * below;
      value += below * below;
    }
    e[i * d + i] = z / (1.0 + __builtin_sqrt(1.0 + z));
    value += log_quotient(1.0 + z, 1.0, z).x_minus_log1p(z);
  }
  return value;
}

static int64_t load_gaussian(Dtype dtype, int64_t d, int64_t n, int64_t i, const GaussianTask& from,
                             const Gaussian& to) {
  const int64_t bytes = size_of(dtype), r = to.rank;
  int64_t faults = 0;
  const auto read = [&](const void* data, int64_t start, int64_t step, Range range, double* numbers) {
    const double* x = load(dtype, static_cast<const char*>(data) + start * bytes, step, d, numbers);
    for (int64_t k = 0; k < d; ++k) {
      numbers[k] = x[k];
      faults += is_within(range, x[k]) ? 0 : 1;
    }
  };
  read(from.mean, i * d, 1, Range::kMild, to.mean);
  if (!to.variances) {
    return faults + load_lower(dtype, static_cast<const char*>(from.matrix) + i * d * d * bytes, d, to.columns);
  }
  for (int64_t j = 0; j < r; ++j) read(from.matrix, i * d * r + j, r, Range::kMild, to.columns + j * n);
  read(from.variances, i * d, 1, Range::kMildPositive, to.variances);
  return faults;
}

static double value_of_gaussians(int64_t d, int64_t n, const Gaussian& p, const Gaussian& q, double* room) {
  if (q.variances) {
    const ValueInFactors far = value_in_factors(d, n, p, q, room);
    if (far.is_exact) return far.value;
    if (p.variances && d >= kMostOfRoot) {
      if (d < 4 * p.rank || d < 4 * q.rank) return kNotANumber;
      const double near = value_of_near_factors(d, n, p, q, room);
      return near >= kNearInFactors ? far.value : 0.5 * near + far.distance;
    }
  }
  NormalsScratch s(room, d);
  double* more = room + NormalsScratch::size_for(d);
  make_root(d, n, p, s.shift, s.root_p);
  make_root(d, n, q, s.shift, s.root_q);
  for (int64_t i = 0; i < d; ++i) s.shift[i] = p.mean[i] - q.mean[i];
  const double far = normals_value(d, s);
  if (!p.variances || !q.variances) return far;
  const double near = value_of_near(d, n, p, q, s.root_q, more);
  return near >= 0.0 ? 0.5 * (near + dot(d, s.shift, s.shift)) : far;
}

bool compute_gaussians(const GaussiansTask& task) {
  const int64_t d = task.dimensions, r = task.p.rank > task.q.rank ? task.p.rank : task.q.rank;
  const bool both = task.p.variances && task.q.variances;
  const int64_t rank = both ? r : task.p.variances ? task.p.rank : task.q.rank;
  const int64_t n = rounded_to_lanes(d + rank);
  const int64_t of_values = (5 + 2 * rank) * n, of_near = both && d >= kMostOfRoot ? size_between(d, rank) : 0;
  const int64_t of_factors = of_values > of_near ? of_values : of_near;
  const int64_t of_roots = both && d >= kMostOfRoot ? 0 : NormalsScratch::size_for(d) + (both ? 2 * d * (d + r) : 0);
  const int64_t of_inputs = (4 + 2 * rank) * n + (both ? 0 : d * d);
  const int64_t size = of_inputs + (of_factors > of_roots ? of_factors : of_roots);
  double* data = new (std::align_val_t(64)) double[size]();
  double* next = data;
  const auto take = [&](int64_t count) {
    double* taken = next;
    next += count;
    return taken;
  };
  const auto side = [&](const GaussianTask& x) {
    double *mean = take(n), *variances = x.variances ? take(n) : nullptr;
    for (int64_t i = 0; variances && i < n; ++i) variances[i] = 1.0;
    return Gaussian{x.rank, mean, take(variances ? x.rank * n : d * d), variances};
  };
  const Gaussian p = side(task.p), q = side(task.q);
  next = data + of_inputs;
  int64_t faults = 0;
  for (int64_t i = 0; i < task.size && !faults; ++i) {
    faults += load_gaussian(task.dtype, d, n, i, task.p, p) + load_gaussian(task.dtype, d, n, i, task.q, q);
    if (faults) break;
    const double value = value_of_gaussians(d, n, p, q, next);
    faults += store(task.dtype, true, 1, &value, task.values, i);
  }
  ::operator delete[](data, std::align_val_t(64));
  return faults == 0;
}

}  // namespace KULLBACK_ISA
}  // namespace kullback
