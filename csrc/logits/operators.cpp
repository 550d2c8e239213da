// The operators for rows of logits, for large pages, and for the interface number of this library.
#include <memory>
#include <vector>

#include "matrix.h"

namespace kullback {
namespace {

// The weighted sum of the rows' values, in their order. A row of weight 0 adds 0, even if its value is inf or NaN.
double weighted_sum(const double* values, const double* weights, int64_t rows) {
  double sum = 0;
  for (int64_t i = 0; i < rows; ++i) {
    if (!weights) {
      sum += values[i];
    } else if (weights[i] != 0) {
      sum += weights[i] * values[i];
    }
  }
  return sum;
}

// Writes each requested result: the value of every row to `values`, `scale` times their weighted sum to `total`, and
// the gradients of that sum. The value of a row is its divergence. With `labels` it is `soft` times the divergence plus
// `hard` times the cross-entropy of Q (or of P, if `labels_are_of_p`) with the row's label at temperature 1.
void value_and_gradient(const Tensor& p, const Tensor& q, const Optional& weights, int64_t divergence, double weight_p,
                        double share_p, double weight_q, double share_q, double temperature, double scale,
                        const Optional& labels, bool labels_are_of_p, double soft, double hard,
                        const Optional& values, const Optional& total, const Optional& gradient_p,
                        const Optional& gradient_q) {
  static const auto compute = KULLBACK_BEST(compute_row);
  STD_TORCH_CHECK(divergence >= 0 && divergence <= static_cast<int64_t>(DivergenceCode::kRenyi),
                  "kullback: no such divergence");
  STD_TORCH_CHECK(p.dim() == 2 && has_shape_of(p, q), "kullback: two matrices of the same shape expected");
  const int64_t rows = p.size(0), classes = p.size(1);
  const Matrix from_p = read_only(p), from_q = read_only(q);
  const Matrix to_p = writable(gradient_p, p), to_q = writable(gradient_q, q);
  STD_TORCH_CHECK((to_p.is(from_p) || to_p.is_apart_from(from_p)) && to_p.is_apart_from(from_q) &&
                      (to_q.is(from_q) || to_q.is_apart_from(from_q)) && to_q.is_apart_from(from_p) &&
                      to_p.is_apart_from(to_q),
                  "kullback: a gradient overlaps what it is computed from; it may only be its own logits");
  std::vector<double> own_values(values ? 0 : rows);
  double* to_values = own_values.data();
  if (values) {
    check_numbers_of_rows(*values, rows);
    to_values = static_cast<double*>(values->mutable_data_ptr());
  }
  check_number(total);
  if (weights) check_numbers_of_rows(*weights, rows);
  const double* row_weights = weights ? static_cast<const double*>(weights->const_data_ptr()) : nullptr;
  const int64_t* row_labels = labels ? read_classes(*labels, rows, -1, classes) : nullptr;
  RowTask task{};
  task.label = -1;
  task.label_is_of_p = labels_are_of_p;
  task.soft = soft;
  task.hard = hard;
  task.classes = classes;
  task.inverse_temperature = 1 / temperature;
  task.divergence = static_cast<DivergenceCode>(divergence);
  task.p = {weight_p, share_p, 1 - share_p};
  task.q = {weight_q, share_q, 1 - share_q};
  task.power = {weight_p, share_p, weight_q};
  const size_t scratch_bytes = scratch_bytes_of(task.divergence, classes);
  torch::stable::parallel_for(0, rows, rows_of_a_thread(classes), [&](int64_t begin, int64_t end) {
    // Not a vector, which would initialize memory that only rows of float64 need.
    static thread_local std::unique_ptr<char[]> scratch;
    static thread_local size_t held = 0;
    if (held < scratch_bytes) {
      held = 0;
      scratch.reset();
      scratch.reset(new char[scratch_bytes]);
      held = scratch_bytes;
    }
    RowTask mine = task;
    for (int64_t i = begin; i < end; ++i) {
      mine.weight = row_weights ? scale * row_weights[i] : scale;
      if (row_labels) mine.label = row_labels[i];
      const int64_t next = i + 1 < end ? i + 1 : i;
      compute({from_p.row(i), from_q.row(i), to_p.row(i), to_q.row(i), from_p.row(next).data, from_q.row(next).data},
              mine, scratch.get());
      to_values[i] = mine.value;
    }
  });
  if (total) write_number(*total, scale * weighted_sum(to_values, row_weights, rows));
}

// Requests large pages for memory before it is first written. This is only advice to the kernel.
void ask_for_large_pages(const Tensor& x) {
  if (x.is_cpu() && x.is_contiguous()) {
    prefer_large_pages(x.mutable_data_ptr(), x.numel() * static_cast<int64_t>(x.element_size()));
  }
}

// INTERFACE of kullback/kernels/codes.py at build time.
int64_t interface() { return kInterface; }

}  // namespace
}  // namespace kullback

STABLE_TORCH_LIBRARY(kullback, m) {
  m.def(
      "value_and_gradient(Tensor p, Tensor q, Tensor? weights, int divergence, float weight_p, float share_p, "
      "float weight_q, float share_q, float temperature, float scale, Tensor? labels, bool labels_are_of_p, float soft, "
      "float hard, Tensor(a!)? values, Tensor(b!)? total, Tensor(c!)? gradient_p, Tensor(d!)? gradient_q) -> ()");
  m.def("ask_for_large_pages(Tensor(a!) x) -> ()");
  m.def("interface() -> int");
}

STABLE_TORCH_LIBRARY_IMPL(kullback, CompositeExplicitAutograd, m) {
  m.impl("interface", TORCH_BOX(&kullback::interface));
}

STABLE_TORCH_LIBRARY_IMPL(kullback, CPU, m) {
  m.impl("value_and_gradient", TORCH_BOX(&kullback::value_and_gradient));
  m.impl("ask_for_large_pages", TORCH_BOX(&kullback::ask_for_large_pages));
}
