// The operators for closed forms between distributions.
#include "../common/tensors.h"

#include <atomic>

#include "task.h"

namespace kullback {
namespace {

// The minimum number of elements per thread.
constexpr int64_t kGrain = 4096;

bool is_one_number(const Tensor& x) {
  if (x.numel() == 1) return true;
  for (int64_t i = 0; i < x.dim(); ++i) {
    if (x.size(i) > 1 && x.stride(i) != 0) return false;
  }
  return true;
}

// Reads a parameter's memory layout. Returns false if the parameter must first be broadcast to the shape of the values.
bool read_parameter(const Tensor& x, const Tensor& values, Parameter& to) {
  if (!x.is_cpu() || x.scalar_type() != values.scalar_type() || x.dim() > values.dim()) return false;
  to = {x.const_data_ptr(), 0};
  if (x.numel() == 1) return true;
  if (!has_shape_of(x, values)) return false;
  to.step = x.is_contiguous() ? 1 : 0;
  return to.step == 1 || is_one_number(x);
}

void check_values(const Tensor& values) {
  STD_TORCH_CHECK(is_single_or_double(values), "kullback: values in float32 or float64 expected");
  check_like(values, values, values.scalar_type());
}

int64_t number_of(Outcome outcome) { return static_cast<int64_t>(outcome); }

template <class... Pointer>
void move_all(int64_t bytes, Pointer&... pointers) {
  ((pointers = moved(pointers, bytes)), ...);
}

// Computes a batch in parallel, in parts of at least `grain` elements. `compute_part` takes a copy of the task.
template <class Task, class ComputePart>
int64_t compute_in_parts(const Task& task, int64_t grain, ComputePart compute_part) {
  std::atomic<bool> done = true;
  const auto run = [&](int64_t begin, int64_t end) {
    Task part = task;
    part.size = end - begin;
    if (!compute_part(part, begin)) done = false;
  };
  if (task.size <= grain) {
    run(0, task.size);
  } else {
    torch::stable::parallel_for(0, task.size, grain, run);
  }
  return number_of(done ? Outcome::kDone : Outcome::kTooExtreme);
}

// Writes the divergence of each element, and the requested derivatives with respect to the parameters. Returns an
// Outcome; the results are valid only for kDone.
int64_t closed_form(int64_t form, const Tensor& values, const Tensor& a, const Tensor& b, const Optional& c,
                    const Optional& d, const Optional& by_a, const Optional& by_b, const Optional& by_c,
                    const Optional& by_d) {
  static const auto compute = KULLBACK_BEST(compute_form);
  static const auto count_parameters = KULLBACK_BEST(parameters_of);
  STD_TORCH_CHECK(form >= 0 && form < kElementForms, "kullback: no such closed form");
  FormTask task{};
  task.form = static_cast<ElementForm>(form);
  task.parameters = count_parameters(task.form);
  STD_TORCH_CHECK((task.parameters < 3 || c) && (task.parameters < 4 || d), "kullback: more parameters expected");
  check_values(values);
  task.dtype = dtype_of(values);
  task.size = values.numel();
  const Tensor* parameters[] = {&a, &b, c ? &*c : nullptr, d ? &*d : nullptr};
  const Optional* derivatives[] = {&by_a, &by_b, &by_c, &by_d};
  for (int i = 0; i < task.parameters; ++i) {
    if (!read_parameter(*parameters[i], values, task.parameter[i])) return number_of(Outcome::kOtherLayout);
    task.derivatives[i] = write_like(*derivatives[i], values);
  }
  const int64_t bytes = size_of(task.dtype);
  task.values = values.mutable_data_ptr();
  return compute_in_parts(task, kGrain, [&](FormTask& part, int64_t begin) {
    for (int i = 0; i < part.parameters; ++i) {
      move_all(begin * part.parameter[i].step * bytes, part.parameter[i].data);
      move_all(begin * bytes, part.derivatives[i]);
    }
    move_all(begin * bytes, part.values);
    return compute(part);
  });
}

// Writes the divergence of each row of parameters, and the requested derivatives. Returns an Outcome; the results are
// valid only for kDone.
int64_t closed_form_of_rows(int64_t form, const Tensor& values, const Tensor& p, const Tensor& q, const Optional& by_p,
                            const Optional& by_q) {
  static const auto compute = KULLBACK_BEST(compute_form_rows);
  STD_TORCH_CHECK(form >= 0 && form < kRowForms, "kullback: no such closed form");
  check_values(values);
  STD_TORCH_CHECK(p.is_cpu() && q.is_cpu() && p.dim() > 0, "kullback: rows of parameters on the CPU expected");
  const ScalarType dtype = values.scalar_type();
  if (p.scalar_type() != dtype || q.scalar_type() != dtype || !p.is_contiguous() || !q.is_contiguous() ||
      !has_shape_of(q, p)) {
    return number_of(Outcome::kOtherLayout);
  }
  FormRowTask task{};
  task.form = static_cast<RowForm>(form);
  task.dtype = dtype_of(values);
  task.size = values.numel();
  task.classes = p.size(p.dim() - 1);
  STD_TORCH_CHECK(p.dim() == values.dim() + 1 && begins_with_shape_of(p, values),
                  "kullback: a value for each row expected");
  task.p = p.const_data_ptr();
  task.q = q.const_data_ptr();
  task.values = values.mutable_data_ptr();
  task.by_p = write_like(by_p, p);
  task.by_q = write_like(by_q, q);
  const int64_t bytes = size_of(task.dtype);
  return compute_in_parts(task, 1 + kGrain / (task.classes + 1), [&](FormRowTask& part, int64_t begin) {
    move_all(begin * task.classes * bytes, part.p, part.q, part.by_p, part.by_q);
    move_all(begin * bytes, part.values);
    return compute(part);
  });
}

// Reads one side of a pair. `matrix` is W of a covariance W W^T + D with `variances` D, or a Cholesky factor without.
bool read_gaussian(const Tensor& values, const Tensor& mean, const Tensor& matrix, const Optional& variances,
                   GaussianTask& to) {
  STD_TORCH_CHECK(mean.dim() == values.dim() + 1 && begins_with_shape_of(mean, values) &&
                      matrix.dim() == mean.dim() + 1 && begins_with_shape_of(matrix, mean) &&
                      (variances ? has_shape_of(*variances, mean)
                                 : matrix.size(mean.dim()) == mean.size(values.dim())),
                  "kullback: a mean and a matrix for each value expected");
  for (const Tensor* x : {&mean, &matrix, variances ? &*variances : &mean}) {
    STD_TORCH_CHECK(x->is_cpu() && x->scalar_type() == values.scalar_type(),
                    "kullback: parameters of one dtype on the CPU expected");
    if (!x->is_contiguous()) return false;
  }
  to = {matrix.size(mean.dim()), mean.const_data_ptr(), matrix.const_data_ptr(),
        variances ? variances->const_data_ptr() : nullptr};
  return true;
}

// Writes the divergence of each pair of multivariate normals, from means and matrices of the MatrixKinds, and the
// requested derivatives. Returns an Outcome; the results are valid only for kDone.
int64_t closed_form_of_normals(int64_t kind_p, int64_t kind_q, const Tensor& values, const Tensor& loc_p,
                               const Tensor& root_p, const Tensor& loc_q, const Tensor& root_q,
                               const Optional& by_loc_p, const Optional& by_root_p, const Optional& by_loc_q,
                               const Optional& by_root_q) {
  static const auto compute = KULLBACK_BEST(compute_normals);
  for (int64_t kind : {kind_p, kind_q}) {
    STD_TORCH_CHECK(kind >= 0 && kind < kMatrixKinds, "kullback: no such kind of matrix");
  }
  check_values(values);
  GaussianTask p, q;
  if (!read_gaussian(values, loc_p, root_p, Optional(), p) || !read_gaussian(values, loc_q, root_q, Optional(), q)) {
    return number_of(Outcome::kOtherLayout);
  }
  STD_TORCH_CHECK(has_shape_of(loc_q, loc_p), "kullback: means of one shape expected");
  NormalsTask task{};
  task.dtype = dtype_of(values);
  task.kind_p = static_cast<MatrixKind>(kind_p);
  task.kind_q = static_cast<MatrixKind>(kind_q);
  task.size = values.numel();
  task.dimensions = loc_p.size(values.dim());
  task.loc_p = p.mean;
  task.root_p = p.matrix;
  task.loc_q = q.mean;
  task.root_q = q.matrix;
  task.values = values.mutable_data_ptr();
  task.by_loc_p = write_like(by_loc_p, loc_p);
  task.by_root_p = write_like(by_root_p, root_p);
  task.by_loc_q = write_like(by_loc_q, loc_p);
  task.by_root_q = write_like(by_root_q, root_p);
  const int64_t d = task.dimensions, bytes = size_of(task.dtype);
  return compute_in_parts(task, 1 + 8 * kGrain / (d * d * d + 1), [&](NormalsTask& part, int64_t begin) {
    move_all(begin * d * bytes, part.loc_p, part.loc_q, part.by_loc_p, part.by_loc_q);
    move_all(begin * d * d * bytes, part.root_p, part.root_q, part.by_root_p, part.by_root_q);
    move_all(begin * bytes, part.values);
    return compute(part);
  });
}

// Writes the divergence of each pair of multivariate normals, of which at least one has a low-rank covariance.
int64_t closed_form_of_factors(const Tensor& values, const Tensor& loc_p, const Tensor& matrix_p,
                               const Optional& variances_p, const Tensor& loc_q, const Tensor& matrix_q,
                               const Optional& variances_q) {
  static const auto compute = KULLBACK_BEST(compute_gaussians);
  check_values(values);
  GaussiansTask task{};
  if (!read_gaussian(values, loc_p, matrix_p, variances_p, task.p) ||
      !read_gaussian(values, loc_q, matrix_q, variances_q, task.q)) {
    return number_of(Outcome::kOtherLayout);
  }
  STD_TORCH_CHECK(has_shape_of(loc_q, loc_p), "kullback: means of one shape expected");
  task.dtype = dtype_of(values);
  task.size = values.numel();
  task.dimensions = loc_p.size(values.dim());
  task.values = values.mutable_data_ptr();
  const int64_t d = task.dimensions, bytes = size_of(task.dtype);
  const int64_t columns = task.p.rank + task.q.rank + 1;
  return compute_in_parts(task, 1 + 8 * kGrain / (d * columns * columns + 1), [&](GaussiansTask& part, int64_t begin) {
    for (GaussianTask* x : {&part.p, &part.q}) {
      move_all(begin * d * bytes, x->mean, x->variances);
      move_all(begin * d * x->rank * bytes, x->matrix);
    }
    move_all(begin * bytes, part.values);
    return compute(part);
  });
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

// Multiplies derivatives by `grad`, which has one number for each derivative or for each row of derivatives.
template <typename Real>
void scale_all(const Tensor& grad, int64_t step, const Tensor& derivatives) {
  const Real* from = static_cast<const Real*>(grad.const_data_ptr());
  Real* to = static_cast<Real*>(derivatives.mutable_data_ptr());
  const int64_t size = derivatives.numel(), count = grad.numel(), each = size / count;
  const auto run = [&](int64_t begin, int64_t end) {
    if (each == 1) return scale(end - begin, from + begin * step, step, to + begin);
    for (int64_t i = begin; i < end; ++i) scale(each, from + i * step, 0, to + i * each);
  };
  if (size <= kGrain) return run(0, count);
  torch::stable::parallel_for(0, count, 1 + 8 * kGrain / (each + 1), run);
}

// Multiplies derivatives by `grad`; 0 times an infinite derivative is 0. Returns false, and changes no derivative, if
// the memory layout of `grad` is not supported.
bool scale_derivatives(const Tensor& grad, const Optional& by_a, const Optional& by_b, const Optional& by_c,
                       const Optional& by_d) {
  STD_TORCH_CHECK(grad.is_cpu() && is_single_or_double(grad), "kullback: float32 or float64 on the CPU expected");
  const bool is_double = grad.scalar_type() == ScalarType::Double;
  const int64_t step = is_one_number(grad) ? 0 : 1;
  if (grad.numel() == 0) return true;
  if (step && !grad.is_contiguous()) return false;
  for (const Optional* by : {&by_a, &by_b, &by_c, &by_d}) {
    if (!*by) continue;
    check_like(**by, **by, grad.scalar_type());
    STD_TORCH_CHECK(begins_with_shape_of(**by, grad), "kullback: derivatives of each value expected");
  }
  const void* data = grad.const_data_ptr();
  if (!step && (is_double ? *static_cast<const double*>(data) : *static_cast<const float*>(data)) == 1) return true;
  for (const Optional* by : {&by_a, &by_b, &by_c, &by_d}) {
    if (*by) is_double ? scale_all<double>(grad, step, **by) : scale_all<float>(grad, step, **by);
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
      "closed_form_of_normals(int kind_p, int kind_q, Tensor(a!) values, Tensor loc_p, Tensor root_p, Tensor loc_q, "
      "Tensor root_q, "
      "Tensor(b!)? by_loc_p=None, Tensor(c!)? by_root_p=None, Tensor(d!)? by_loc_q=None, "
      "Tensor(e!)? by_root_q=None) -> int");
  m.def(
      "closed_form_of_factors(Tensor(a!) values, Tensor loc_p, Tensor matrix_p, Tensor? variances_p, Tensor loc_q, "
      "Tensor matrix_q, Tensor? variances_q) -> int");
  m.def(
      "scale_derivatives(Tensor grad, Tensor(a!)? by_a, Tensor(b!)? by_b, Tensor(c!)? by_c=None, "
      "Tensor(d!)? by_d=None) -> bool");
}

STABLE_TORCH_LIBRARY_IMPL(kullback, CPU, m) {
  m.impl("closed_form", TORCH_BOX(&kullback::closed_form));
  m.impl("closed_form_of_rows", TORCH_BOX(&kullback::closed_form_of_rows));
  m.impl("closed_form_of_normals", TORCH_BOX(&kullback::closed_form_of_normals));
  m.impl("closed_form_of_factors", TORCH_BOX(&kullback::closed_form_of_factors));
  m.impl("scale_derivatives", TORCH_BOX(&kullback::scale_derivatives));
}
