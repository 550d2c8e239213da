// What the kernels of closed forms and the operators that call them share.
#pragma once
#include <cstdint>

namespace kullback {

// The numbers are those of pairs/fused.py.
enum class Form : int64_t {
  kNormal = 0,
  kLaplace = 1,
  kCauchy = 2,
  kGumbel = 3,
  kExponential = 4,
  kGamma = 5,
  kHalfNormal = 6,
  kHalfCauchy = 7,
  kPareto = 8,
  kUniform = 9,
  kBeta = 10,
  kBernoulliLogits = 11,
  kBernoulliProbs = 12,
  kBinomialLogits = 13,
  kBinomialProbs = 14,
  kGeometricLogits = 15,
  kGeometricProbs = 16,
  kPoisson = 17,
};

constexpr int kMostParameters = 4;

// A parameter of all elements of the batch; with step 0 one number for all of them.
struct Parameter {
  const void* data;
  int64_t step;
};

// What is null among the derivatives, the derivatives of each value by a parameter, is not wanted.
struct FormTask {
  Form form;
  bool is_float64;  // or float32: parameters, values and derivatives alike
  int parameters;
  int64_t size;
  Parameter parameter[kMostParameters];
  void* values;
  void* derivatives[kMostParameters];
};

// Rows of parameters, contiguous, with a value for each row and a derivative for each number.
enum class RowForm : int64_t { kDirichlet = 0, kCategoricalLogits = 1, kCategoricalProbs = 2 };

struct FormRowTask {
  RowForm form;
  bool is_float64;
  int64_t rows, classes;
  const void *p, *q;
  void *values, *by_p, *by_q;
};

// Returns false where some parameter is so extreme, or no number, that the results are of no use.
using FormFunction = bool (*)(const FormTask&);
using RowFormFunction = bool (*)(const FormRowTask&);

// The number of parameters of both sides.
constexpr int parameters_of(Form form) {
  switch (form) {
    case Form::kExponential:
    case Form::kHalfNormal:
    case Form::kHalfCauchy:
    case Form::kBernoulliLogits:
    case Form::kBernoulliProbs:
    case Form::kGeometricLogits:
    case Form::kGeometricProbs:
    case Form::kPoisson:
      return 2;
    default:
      return 4;
  }
}

namespace baseline {
bool compute_form(const FormTask&);
bool compute_form_rows(const FormRowTask&);
}
namespace v3 {
bool compute_form(const FormTask&);
bool compute_form_rows(const FormRowTask&);
}
namespace v4 {
bool compute_form(const FormTask&);
bool compute_form_rows(const FormRowTask&);
}

}  // namespace kullback
