// The operators of closed forms between distributions; see operators.cpp.
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>
#include <torch/headeronly/core/ScalarType.h>
#include <torch/headeronly/util/Exception.h>

#include <atomic>
#include <cstdint>
#include <optional>

#include "processor.h"
#include "special_kernel_api.h"

namespace kullback {
namespace {

using torch::headeronly::ScalarType;
using torch::stable::Tensor;

// Elements that are worth a thread.
constexpr int64_t kGrain = 4096;

bool is_one_number(const Tensor& x) {
  if (x.numel() == 1) return true;
  for (int64_t i = 0; i < x.dim(); ++i) {
    if (x.size(i) > 1 && x.stride(i) != 0) return false;
  }
  return true;
}

// Finds out how a parameter lies in memory; returns false if it has to be brought to the shape of the values first.
bool read_parameter(const Tensor& x, const Tensor& values, Parameter& to) {
  if (x.scalar_type() != values.scalar_type() || x.dim() > values.dim()) return false;
  to = {x.const_data_ptr(), 1};
  if (x.numel() == 1) {
    to.step = 0;
    return true;
  }
  if (x.dim() != values.dim()) return false;
  for (int64_t i = 0; i < x.dim(); ++i) {
    if (x.size(i) != values.size(i)) return false;
  }
  if (x.is_contiguous()) return true;
  to.step = 0;
  return is_one_number(x);
}

constexpr int64_t kDone = 0, kTooExtreme = 1, kOtherLayout = 2;

using Optional = std::optional<Tensor>;

// Writes the divergence of each element, and its derivatives by the parameters, each where it is wanted. Returns one
// of the numbers above; nothing of use is written if that is not the first.
int64_t closed_form(int64_t form, const Tensor& values, const Tensor& a, const Tensor& b, const Optional& c,
                    const Optional& d, const Optional& by_a, const Optional& by_b, const Optional& by_c,
                    const Optional& by_d) {
  static const FormFunction compute = KULLBACK_BEST(compute_form);
  STD_TORCH_CHECK(form >= 0 && form <= static_cast<int64_t>(Form::kPoisson), "kullback: no such closed form");
  FormTask task{};
  task.form = static_cast<Form>(form);
  task.parameters = parameters_of(task.form);
  STD_TORCH_CHECK(task.parameters == 2 || (c && d), "kullback: four parameters expected");
  const ScalarType dtype = values.scalar_type();
  STD_TORCH_CHECK(dtype == ScalarType::Double || dtype == ScalarType::Float, "kullback: float32 or float64 expected");
  STD_TORCH_CHECK(values.is_contiguous(), "kullback: contiguous values expected");
  task.is_float64 = dtype == ScalarType::Double;
  task.size = values.numel();
  const Tensor* given[] = {&a, &b, c ? &*c : nullptr, d ? &*d : nullptr};
  const Optional* wanted[] = {&by_a, &by_b, &by_c, &by_d};
  for (int i = 0; i < task.parameters; ++i) {
    if (!read_parameter(*given[i], values, task.parameter[i])) return kOtherLayout;
    if (!*wanted[i]) continue;
    const Tensor& derivatives = **wanted[i];
    STD_TORCH_CHECK(derivatives.is_contiguous() && derivatives.scalar_type() == dtype && derivatives.numel() == task.size,
                    "kullback: a derivative for each value expected");
    task.derivatives[i] = derivatives.mutable_data_ptr();
  }
  const int64_t bytes = task.is_float64 ? 8 : 4;
  task.values = values.mutable_data_ptr();
  if (task.size <= kGrain) return compute(task) ? kDone : kTooExtreme;
  std::atomic<bool> done = true;
  torch::stable::parallel_for(0, task.size, kGrain, [&](int64_t begin, int64_t end) {
    FormTask mine = task;
    mine.size = end - begin;
    for (int i = 0; i < task.parameters; ++i) {
      const int64_t skipped = begin * task.parameter[i].step * bytes;
      mine.parameter[i].data = static_cast<const char*>(task.parameter[i].data) + skipped;
      if (task.derivatives[i]) mine.derivatives[i] = static_cast<char*>(task.derivatives[i]) + begin * bytes;
    }
    mine.values = static_cast<char*>(task.values) + begin * bytes;
    if (!compute(mine)) done = false;
  });
  return done ? kDone : kTooExtreme;
}

bool is_like(const Tensor& x, const Tensor& like) {
  if (x.scalar_type() != like.scalar_type() || x.dim() != like.dim() || !x.is_contiguous()) return false;
  for (int64_t i = 0; i < x.dim(); ++i) {
    if (x.size(i) != like.size(i)) return false;
  }
  return true;
}

// Writes the divergence of each row of parameters, and its derivatives where they are wanted; returns as above.
int64_t closed_form_of_rows(int64_t form, const Tensor& values, const Tensor& p, const Tensor& q, const Optional& by_p,
                            const Optional& by_q) {
  static const RowFormFunction compute = KULLBACK_BEST(compute_form_rows);
  STD_TORCH_CHECK(form >= 0 && form <= static_cast<int64_t>(RowForm::kCategoricalProbs),
                  "kullback: no such closed form");
  const ScalarType dtype = values.scalar_type();
  STD_TORCH_CHECK(dtype == ScalarType::Double || dtype == ScalarType::Float, "kullback: float32 or float64 expected");
  STD_TORCH_CHECK(values.is_contiguous() && p.dim() > 0, "kullback: contiguous values and rows expected");
  if (p.scalar_type() != dtype || !p.is_contiguous() || !is_like(q, p)) return kOtherLayout;
  FormRowTask task{};
  task.form = static_cast<RowForm>(form);
  task.is_float64 = dtype == ScalarType::Double;
  task.rows = values.numel();
  task.classes = p.size(p.dim() - 1);
  STD_TORCH_CHECK(p.numel() == task.rows * task.classes, "kullback: a value for each row expected");
  task.p = p.const_data_ptr();
  task.q = q.const_data_ptr();
  task.values = values.mutable_data_ptr();
  for (const Optional* by : {&by_p, &by_q}) {
    if (!*by) continue;
    STD_TORCH_CHECK(is_like(**by, p), "kullback: a derivative for each parameter expected");
    (by == &by_p ? task.by_p : task.by_q) = (*by)->mutable_data_ptr();
  }
  const int64_t bytes = task.is_float64 ? 8 : 4, grain = 1 + kGrain / (task.classes + 1);
  const auto moved = [&](void* data, int64_t count) {
    return data ? static_cast<char*>(data) + count * bytes : nullptr;
  };
  std::atomic<bool> done = true;
  const auto run = [&](int64_t begin, int64_t end) {
    FormRowTask mine = task;
    const int64_t skipped = begin * task.classes;
    mine.rows = end - begin;
    mine.p = moved(const_cast<void*>(task.p), skipped);
    mine.q = moved(const_cast<void*>(task.q), skipped);
    mine.values = moved(task.values, begin);
    mine.by_p = moved(task.by_p, skipped);
    mine.by_q = moved(task.by_q, skipped);
    if (!compute(mine)) done = false;
  };
  if (task.rows <= grain) {
    run(0, task.rows);
  } else {
    torch::stable::parallel_for(0, task.rows, grain, run);
  }
  return done ? kDone : kTooExtreme;
}

template <typename Real>
void scale(int64_t n, const Real* grad, int64_t step, Real* derivatives) {
  if (step == 0) {
    const Real factor = grad[0];
    for (int64_t i = 0; i < n; ++i) derivatives[i] = factor == 0 ? Real(0) : factor * derivatives[i];
  } else {
    for (int64_t i = 0; i < n; ++i) derivatives[i] = grad[i] == 0 ? Real(0) : grad[i] * derivatives[i];
  }
}

// Rows of derivatives, with a number of `grad` for each row.
template <typename Real>
void scale_rows_of(const Tensor& grad, int64_t step, const Tensor& derivatives) {
  const Real* from = static_cast<const Real*>(grad.const_data_ptr());
  Real* to = static_cast<Real*>(derivatives.mutable_data_ptr());
  const int64_t rows = grad.numel(), classes = rows ? derivatives.numel() / rows : 0;
  torch::stable::parallel_for(0, rows, 1 + 8 * kGrain / (classes + 1), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) scale(classes, from + i * step, 0, to + i * classes);
  });
}

template <typename Real>
void scale_derivatives_of(const Tensor& grad, int64_t step, const Tensor& derivatives) {
  const Real* from = static_cast<const Real*>(grad.const_data_ptr());
  Real* to = static_cast<Real*>(derivatives.mutable_data_ptr());
  const int64_t size = derivatives.numel();
  if (size <= kGrain) return scale(size, from, step, to);
  torch::stable::parallel_for(0, size, 8 * kGrain, [&](int64_t begin, int64_t end) {
    scale(end - begin, from + begin * step, step, to + begin);
  });
}

// Multiplies derivatives by `grad`, where nothing times an infinite derivative is nothing. Returns false, with nothing done,
// where `grad` has another layout.
bool scale_derivatives(const Tensor& grad, const Optional& by_a, const Optional& by_b, const Optional& by_c,
                  const Optional& by_d) {
  const ScalarType dtype = grad.scalar_type();
  STD_TORCH_CHECK(dtype == ScalarType::Double || dtype == ScalarType::Float, "kullback: float32 or float64 expected");
  const bool wide = dtype == ScalarType::Double;
  const int64_t step = is_one_number(grad) ? 0 : 1;
  if (grad.numel() == 0) return true;
  if (step && !grad.is_contiguous()) return false;
  const void* data = grad.const_data_ptr();
  if (!step && (wide ? *static_cast<const double*>(data) : *static_cast<const float*>(data)) == 1) return true;
  for (const Optional* by : {&by_a, &by_b, &by_c, &by_d}) {
    if (!*by) continue;
    const Tensor& derivatives = **by;
    STD_TORCH_CHECK(derivatives.is_contiguous() && derivatives.scalar_type() == dtype && derivatives.numel() % grad.numel() == 0,
                    "kullback: derivatives of each value expected");
    if (derivatives.numel() != grad.numel()) {
      wide ? scale_rows_of<double>(grad, step, derivatives) : scale_rows_of<float>(grad, step, derivatives);
      continue;
    }
    wide ? scale_derivatives_of<double>(grad, step, derivatives) : scale_derivatives_of<float>(grad, step, derivatives);
  }
  return true;
}

}  // namespace
}  // namespace kullback

STABLE_TORCH_LIBRARY_FRAGMENT(kullback, m) {
  m.def(
      "closed_form(int form, Tensor(a!) values, Tensor a, Tensor b, Tensor? c=None, Tensor? d=None, "
      "Tensor(b!)? by_a=None, Tensor(c!)? by_b=None, Tensor(d!)? by_c=None, Tensor(e!)? by_d=None) -> int");
  m.def(
      "closed_form_of_rows(int form, Tensor(a!) values, Tensor p, Tensor q, Tensor(b!)? by_p=None, "
      "Tensor(c!)? by_q=None) -> int");
  m.def(
      "scale_derivatives(Tensor grad, Tensor(a!)? by_a, Tensor(b!)? by_b, Tensor(c!)? by_c=None, Tensor(d!)? by_d=None) "
      "-> bool");
}

STABLE_TORCH_LIBRARY_IMPL(kullback, CPU, m) {
  m.impl("closed_form", TORCH_BOX(&kullback::closed_form));
  m.impl("closed_form_of_rows", TORCH_BOX(&kullback::closed_form_of_rows));
  m.impl("scale_derivatives", TORCH_BOX(&kullback::scale_derivatives));
}
