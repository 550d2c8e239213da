// Types shared by the kernels of closed forms and the operators that call them.
#pragma once
#include "../common/dtypes.h"
#include "../common/variants.h"
#include "codes.h"

namespace kullback {

constexpr int kMostParameters = 4;

// A parameter of all elements of the batch. Step 0 means one number for all elements.
struct Parameter {
  const void* data;
  int64_t step;
};

// Scalar parameters. `derivatives` are the derivatives of each value by a parameter; null if not requested.
struct FormTask {
  ElementForm form;
  Dtype dtype;  // of parameters, values and derivatives: float32 or float64
  int parameters;
  int64_t size;
  Parameter parameter[kMostParameters];
  void* values;
  void* derivatives[kMostParameters];
};

// Contiguous rows of parameters, with a value for each row and a derivative for each parameter.
struct FormRowTask {
  RowForm form;
  Dtype dtype;
  int64_t size, classes;
  const void *p, *q;
  void *values, *by_p, *by_q;
};

// Contiguous means, and matrices of one of the MatrixKinds. Derivatives that were not requested are null.
struct NormalsTask {
  Dtype dtype;
  MatrixKind kind_p, kind_q;
  int64_t size, dimensions;
  const void *loc_p, *root_p, *loc_q, *root_q;
  void *values, *by_loc_p, *by_root_p, *by_loc_q, *by_root_q;
};

// Means, and factors W of shape (size, dimensions, rank) with variances D. If `variances` is null, the matrices are
// Cholesky factors of covariances, and the rank is the number of dimensions.
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

// The number of parameters of both sides.
KULLBACK_DECLARE_VARIANTS(int parameters_of(ElementForm))

// All return false if a parameter is NaN or so extreme that the results are not usable.
KULLBACK_DECLARE_VARIANTS(bool compute_form(const FormTask&))
KULLBACK_DECLARE_VARIANTS(bool compute_form_rows(const FormRowTask&))
KULLBACK_DECLARE_VARIANTS(bool compute_normals(const NormalsTask&))
KULLBACK_DECLARE_VARIANTS(bool compute_gaussians(const GaussiansTask&))

}  // namespace kullback
