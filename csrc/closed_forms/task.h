// Types shared by the kernels of closed forms and the operators that call them.
#pragma once
#include "../common/dtypes.h"
#include "../common/variants.h"
#include "codes.h"

namespace kullback {

constexpr int kMostParameters = 4;

// The numbers of a parameter, one for each element of the batch. Step 0 means a single number for all elements.
struct Parameter {
  const void* data;
  int64_t step;
};

// A closed form with scalar parameters. `derivatives` has the derivatives of the values with respect to each parameter,
// or null if these are not requested.
struct FormTask {
  ElementForm form;
  Dtype dtype;  // of parameters, values and derivatives: float32 or float64
  int parameters;
  int64_t size;
  Parameter parameter[kMostParameters];
  void* values;
  void* derivatives[kMostParameters];
};

// A closed form with contiguous rows of parameters, one value for each row and one derivative for each parameter.
struct FormRowTask {
  RowForm form;
  Dtype dtype;
  int64_t size, classes;
  const void *p, *q;
  void *values, *by_p, *by_q;
};

// Multivariate normals, as contiguous means and matrices of a MatrixKind. Derivatives that are not requested are null.
struct NormalsTask {
  Dtype dtype;
  MatrixKind kind_p, kind_q;
  int64_t size, dimensions;
  const void *loc_p, *root_p, *loc_q, *root_q;
  void *values, *by_loc_p, *by_root_p, *by_loc_q, *by_root_q;
};

// One side of a pair: means, and covariances W W^T + D as factors W of shape (size, dimensions, rank) and variances D.
// If `variances` is null, the matrices are Cholesky factors of covariances, and the rank is the number of dimensions.
struct GaussianTask {
  int64_t rank;
  const void *mean, *matrix, *variances;
};

struct GaussiansTask {
  Dtype dtype;
  int64_t size, dimensions;
  GaussianTask p, q;
  void* values;
};

// The total number of parameters of P and Q.
KULLBACK_DECLARE_VARIANTS(int parameters_of(ElementForm))

// These functions return false if a parameter is NaN or so extreme that the results are wrong.
KULLBACK_DECLARE_VARIANTS(bool compute_form(const FormTask&))
KULLBACK_DECLARE_VARIANTS(bool compute_form_rows(const FormRowTask&))
KULLBACK_DECLARE_VARIANTS(bool compute_normals(const NormalsTask&))
KULLBACK_DECLARE_VARIANTS(bool compute_gaussians(const GaussiansTask&))

}  // namespace kullback
