// The operators for the terms of kl_div and for rows of weights.
#include "../common/tensors.h"

#include <vector>

#include "task.h"

namespace kullback {
namespace {

// Writes each requested result: the terms of kl_div, their sum divided by `divisor`, and the gradients of the terms,
// multiplied by `scale` and `grad`. `logs` are the logarithms of a target of probabilities; a result may overwrite
// them.
void kl_terms(const Tensor& log_q, const Tensor& target, const Optional& logs, const Optional& grad, double divisor,
              double scale, const Optional& terms, const Optional& total, const Optional& by_log_q,
              const Optional& by_target) {
  static const auto compute = KULLBACK_BEST(compute_terms);
  const ScalarType dtype = log_q.scalar_type();
  check_like(log_q, log_q, dtype);
  check_like(target, log_q, dtype);
  check_number(total);
  TermTask task{};
  task.dtype = dtype_of(log_q);
  task.log_q = log_q.const_data_ptr();
  task.target = target.const_data_ptr();
  task.logs = read_like(logs, log_q, dtype == ScalarType::Double ? dtype : ScalarType::Float);
  task.grad = read_like(grad, log_q, dtype);
  task.scale = scale;
  task.terms = write_like(terms, log_q);
  task.by_log_q = write_like(by_log_q, log_q);
  task.by_target = write_like(by_target, log_q);
  const int64_t size = log_q.numel(), bytes = size_of(task.dtype), bytes_of_logs = bytes == 2 ? 4 : bytes;
  // The sum must not depend on the number of threads. Therefore each block has a sum, and these sums are added in
  // order.
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
      mine.logs = moved(task.logs, start * bytes_of_logs);
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
  write_number(*total, sum / divisor);
}

// Writes KL of each pair of normalized rows, or a negative number for rows that the kernel does not support.
void kl_of_weights(const Tensor& p, const Tensor& q, double tolerance, const Tensor& values) {
  static const auto compute = KULLBACK_BEST(compute_kl_of_weights);
  STD_TORCH_CHECK(p.dim() == 2 && is_single_or_double(p), "kullback: matrices of float32 or float64 expected");
  const int64_t rows = p.size(0), classes = p.size(1);
  check_like(p, p, p.scalar_type());
  check_like(q, p, p.scalar_type());
  const WeightsTask task{dtype_of(p), classes, p.const_data_ptr(), q.const_data_ptr(), tolerance};
  double* to = write_numbers(values, rows);
  torch::stable::parallel_for(0, rows, rows_of_a_thread(classes), [&](int64_t begin, int64_t end) {
    WeightsTask mine = task;
    for (int64_t i = begin; i < end; ++i) {
      const int64_t offset = i * classes * size_of(task.dtype);
      mine.p = moved(task.p, offset);
      mine.q = moved(task.q, offset);
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
