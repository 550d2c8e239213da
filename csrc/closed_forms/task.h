// What the kernels of closed forms and the operators that call them share.
#pragma once
#include "../common/dtypes.h"
#include "../common/variants.h"
#include "codes.h"

namespace kullback {

constexpr int kMostParameters = 4;

// A parameter of all elements of the batch; with step 0 one number for all of them.
struct Parameter {
  const void* data;
  int64_t step;
};

// What is null among the derivatives, the derivatives of each value by a parameter, is not wanted.
struct FormTask {
  ElementForm form;
  Dtype dtype;  // float32 or float64: parameters, values and derivatives alike
  int parameters;
  int64_t size;
  Parameter parameter[kMostParameters];
  void* values;
  void* derivatives[kMostParameters];
};

// Rows of parameters, contiguous, with a value for each row and a derivative for each number.
struct FormRowTask {
  RowForm form;
  Dtype dtype;
  int64_t rows, classes;
  const void *p, *q;
  void *values, *by_p, *by_q;
};

// Means, and lower triangular factors of covariances, contiguous; derivatives as in the others.
struct NormalsTask {
  Dtype dtype;
  MatrixKind kind_p, kind_q;
  int64_t size, dimensions;
  const void *loc_p, *root_p, *loc_q, *root_q;
  void *values, *by_loc_p, *by_root_p, *by_loc_q, *by_root_q;
};

// Means, and factors W of shape (size, dimensions, rank) with variances D, or the Cholesky factors of covariances where
// `variances` is null; the rank is then the number of dimensions.
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
constexpr int parameters_of(ElementForm form) {
  switch (form) {
    case ElementForm::kExponential:
    case ElementForm::kHalfNormal:
    case ElementForm::kHalfCauchy:
    case ElementForm::kBernoulliLogits:
    case ElementForm::kBernoulliProbs:
    case ElementForm::kGeometricLogits:
    case ElementForm::kGeometricProbs:
    case ElementForm::kPoisson:
    case ElementForm::kBernoulliPoisson:
    case ElementForm::kBernoulliLogitsPoisson:
    case ElementForm::kContinuousBernoulliLogits:
    case ElementForm::kContinuousBernoulliProbs:
    case ElementForm::kContinuousBernoulliLogitsExponential:
    case ElementForm::kContinuousBernoulliProbsExponential: return 2;
    case ElementForm::kUniformExponential:
    case ElementForm::kExponentialGamma:
    case ElementForm::kExponentialNormal:
    case ElementForm::kExponentialGumbel:
    case ElementForm::kGammaExponential:
    case ElementForm::kBetaExponential:
    case ElementForm::kParetoExponential:
    case ElementForm::kContinuousBernoulliLogitsNormal:
    case ElementForm::kContinuousBernoulliProbsNormal:
    case ElementForm::kContinuousBernoulliLogitsUniform:
    case ElementForm::kContinuousBernoulliProbsUniform:
    case ElementForm::kUniformContinuousBernoulliLogits:
    case ElementForm::kUniformContinuousBernoulliProbs:
    case ElementForm::kBetaContinuousBernoulliLogits:
    case ElementForm::kBetaContinuousBernoulliProbs: return 3;
    default: return 4;
  }
}

// All return false where some parameter is so extreme, or no number, that the results are of no use.
KULLBACK_DECLARE_VARIANTS(bool compute_form(const FormTask&))
KULLBACK_DECLARE_VARIANTS(bool compute_form_rows(const FormRowTask&))
KULLBACK_DECLARE_VARIANTS(bool compute_normals(const NormalsTask&))
KULLBACK_DECLARE_VARIANTS(bool compute_gaussians(const GaussiansTask&))

}  // namespace kullback
