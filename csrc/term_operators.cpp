// The operators on terms and on rows of probabilities; see operators.cpp.
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>
#include <torch/headeronly/core/ScalarType.h>
#include <torch/headeronly/util/Exception.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "processor.h"
#include "term_kernel_api.h"

namespace kullback {
namespace {

using torch::headeronly::ScalarType;
using torch::stable::Tensor;

Number number_of(const Tensor& x) {
  switch (x.scalar_type()) {
    case ScalarType::Float: return Number::kFloat32;
    case ScalarType::Double: return Number::kFloat64;
    case ScalarType::BFloat16: return Number::kBFloat16;
    case ScalarType::Half: return Number::kFloat16;
    default: STD_TORCH_CHECK(false, "kullback: floating-point numbers expected");
  }
}

void check_like(const Tensor& x, const Tensor& like, ScalarType dtype) {
  STD_TORCH_CHECK(x.is_contiguous() && x.numel() == like.numel() && x.scalar_type() == dtype,
                  "kullback: contiguous tensors of the same size and dtype expected");
}

const void* read_like(const std::optional<Tensor>& x, const Tensor& like, ScalarType dtype) {
  if (!x) return nullptr;
  check_like(*x, like, dtype);
  return x->const_data_ptr();
}

void* write_like(const std::optional<Tensor>& x, const Tensor& like) {
  if (!x) return nullptr;
  check_like(*x, like, like.scalar_type());
  return x->mutable_data_ptr();
}

const void* moved(const void* data, int64_t bytes) { return data ? static_cast<const char*>(data) + bytes : nullptr; }
void* moved(void* data, int64_t bytes) { return data ? static_cast<char*>(data) + bytes : nullptr; }

// Writes the terms of kl_div, their sum divided by `divisor`, and the gradients of the sum of all terms times `scale`
// and times `grad`, each where it is wanted. `logs` are the logarithms of a target of probabilities; a result may
// overwrite them.
void kl_terms(const Tensor& log_q, const Tensor& target, const std::optional<Tensor>& logs,
              const std::optional<Tensor>& grad, double divisor, double scale, const std::optional<Tensor>& terms,
              const std::optional<Tensor>& total, const std::optional<Tensor>& by_log_q,
              const std::optional<Tensor>& by_target) {
  static const TermFunction compute = KULLBACK_BEST(compute_terms);
  const ScalarType dtype = log_q.scalar_type();
  const int64_t size = log_q.numel();
  check_like(log_q, log_q, dtype);
  check_like(target, log_q, dtype);
  TermTask task{};
  task.number = number_of(log_q);
  task.log_q = log_q.const_data_ptr();
  task.target = target.const_data_ptr();
  task.logs = read_like(logs, log_q, dtype == ScalarType::Double ? dtype : ScalarType::Float);
  task.grad = read_like(grad, log_q, dtype);
  task.scale = scale;
  task.terms = write_like(terms, log_q);
  task.by_log_q = write_like(by_log_q, log_q);
  task.by_target = write_like(by_target, log_q);
  const int64_t bytes = static_cast<int64_t>(log_q.element_size()), wide_bytes = bytes == 2 ? 4 : bytes;
  // The sum must not depend on how many threads there are: each block has its own, and they are added in order.
  constexpr int64_t block = 1 << 14;
  const int64_t blocks = (size + block - 1) / block;
  std::vector<double> sums(blocks);
  torch::stable::parallel_for(0, blocks, 2, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t start = i * block, offset = start * bytes;
      TermTask mine = task;
      mine.size = start + block < size ? block : size - start;
      mine.log_q = moved(task.log_q, offset);
      mine.target = moved(task.target, offset);
      mine.logs = moved(task.logs, start * wide_bytes);
      mine.grad = moved(task.grad, offset);
      mine.terms = moved(task.terms, offset);
      mine.by_log_q = moved(task.by_log_q, offset);
      mine.by_target = moved(task.by_target, offset);
      sums[i] = compute(mine);
    }
  });
  if (!total) return;
  double sum = 0;
  for (const double part : sums) sum += part;
  if (total->scalar_type() == ScalarType::Float) {
    *static_cast<float*>(total->mutable_data_ptr()) = static_cast<float>(sum / divisor);
    return;
  }
  STD_TORCH_CHECK(total->scalar_type() == ScalarType::Double, "kullback: a total in float32 or float64 expected");
  *static_cast<double*>(total->mutable_data_ptr()) = sum / divisor;
}

// Writes KL of each pair of normalized rows, a negative number for rows that need a closer look.
void kl_of_weights(const Tensor& p, const Tensor& q, double tolerance, const Tensor& values) {
  static const WeightsFunction compute = KULLBACK_BEST(compute_weights);
  STD_TORCH_CHECK(p.dim() == 2, "kullback: two matrices of the same shape expected");
  const int64_t rows = p.size(0), classes = p.size(1);
  check_like(p, p, p.scalar_type());
  check_like(q, p, p.scalar_type());
  STD_TORCH_CHECK(values.scalar_type() == ScalarType::Double && values.is_contiguous() && values.numel() == rows,
                  "kullback: a float64 value for each row expected");
  WeightsTask task{};
  task.number = number_of(p);
  STD_TORCH_CHECK(task.number == Number::kFloat32 || task.number == Number::kFloat64,
                  "kullback: float32 or float64 expected");
  task.classes = classes;
  task.tolerance = tolerance;
  const int64_t bytes = classes * static_cast<int64_t>(p.element_size());
  const void *from_p = p.const_data_ptr(), *from_q = q.const_data_ptr();
  double* to = static_cast<double*>(values.mutable_data_ptr());
  const int64_t grain = classes > 0 ? 1 + 16384 / classes : 1;
  torch::stable::parallel_for(0, rows, grain, [&](int64_t begin, int64_t end) {
    WeightsTask mine = task;
    for (int64_t i = begin; i < end; ++i) {
      mine.p = moved(from_p, i * bytes);
      mine.q = moved(from_q, i * bytes);
      to[i] = compute(mine);
    }
  });
}

}  // namespace
}  // namespace kullback

STABLE_TORCH_LIBRARY_FRAGMENT(kullback, m) {
  m.def(
      "kl_terms(Tensor log_q, Tensor target, Tensor? logs, Tensor? grad, float divisor, float scale, "
      "Tensor(a!)? terms, Tensor(b!)? total, Tensor(c!)? by_log_q, Tensor(d!)? by_target) -> ()");
  m.def("kl_of_weights(Tensor p, Tensor q, float tolerance, Tensor(a!) values) -> ()");
}

STABLE_TORCH_LIBRARY_IMPL(kullback, CPU, m) {
  m.impl("kl_terms", TORCH_BOX(&kullback::kl_terms));
  m.impl("kl_of_weights", TORCH_BOX(&kullback::kl_of_weights));
}
