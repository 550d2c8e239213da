// The operators for rows of logits, for large pages, and for the interface number of this library.
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

// The rows of a call, and the memory for their results. Pointers of absent arguments are null.
struct Rows {
  Matrix p, q, gradient_p = {}, gradient_q = {};
  double* values;
  const double* weights = nullptr;
  double scale = 1;
  const int64_t* labels = nullptr;
  const WholeRow* whole = nullptr;
  PartSums* sums = nullptr;  // two for each row
};

RowTask task_of(int64_t divergence, double weight_p, double share_p, double weight_q, double share_q,
                double temperature) {
  STD_TORCH_CHECK(divergence >= 0 && divergence <= static_cast<int64_t>(DivergenceCode::kRenyi),
                  "kullback: no such divergence");
  RowTask task{};
  task.label = -1;
  task.inverse_temperature = 1 / temperature;
  task.divergence = static_cast<DivergenceCode>(divergence);
  task.p = {weight_p, share_p, 1 - share_p};
  task.q = {weight_q, share_q, 1 - share_q};
  task.power = {weight_p, share_p, weight_q};
  return task;
}

void check_logits(const Tensor& p, const Tensor& q) {
  STD_TORCH_CHECK(p.dim() == 2 && has_shape_of(p, q), "kullback: two matrices of the same shape expected");
}

void compute_rows(const Rows& x, RowTask task) {
  static const auto compute = KULLBACK_BEST(compute_row);
  task.classes = x.p.classes;
  const size_t bytes = scratch_bytes_of(task.divergence, task.classes);
  torch::stable::parallel_for(0, x.p.rows, rows_of_a_thread(task.classes), [&](int64_t begin, int64_t end) {
    void* scratch = scratch_of_thread(bytes);
    RowTask mine = task;
    for (int64_t i = begin; i < end; ++i) {
      mine.weight = x.weights ? x.scale * x.weights[i] : x.scale;
      if (x.labels) mine.label = x.labels[i];
      if (x.whole) mine.whole = x.whole + i;
      const int64_t next = i + 1 < end ? i + 1 : i;
      compute({x.p.row(i), x.q.row(i), x.gradient_p.row(i), x.gradient_q.row(i), x.p.row(next).data,
               x.q.row(next).data},
              mine, scratch);
      x.values[i] = mine.value;
      if (x.sums) x.sums[2 * i] = mine.sums_p;
      if (x.sums) x.sums[2 * i + 1] = mine.sums_q;
    }
  });
}

// Returns the value of each row, in float32 or float64. The settings are the divergence, its four numbers and the
// temperature; without settings, the value is KL at temperature 1. They are one argument, because each argument costs
// time in small calls.
Tensor row_values(const Tensor& p, const Tensor& q, ScalarType dtype,
                  const std::optional<std::vector<double>>& settings) {
  check_logits(p, q);
  const int64_t rows = p.size(0);
  const Tensor result = new_vector(rows, dtype);
  STD_TORCH_CHECK(is_single_or_double(result), "kullback: values in float32 or float64 expected");
  const bool is_double = dtype == ScalarType::Double;
  std::vector<double> own_values(is_double ? 0 : rows);
  double* values = is_double ? static_cast<double*>(result.mutable_data_ptr()) : own_values.data();
  const double of_kl[] = {0, 0, 0, 0, 0, 1};
  STD_TORCH_CHECK(!settings || settings->size() == 6, "kullback: six settings expected");
  const double* s = settings ? settings->data() : of_kl;
  compute_rows({.p = read_only(p), .q = read_only(q), .values = values},
               task_of(s[0] >= 0 ? static_cast<int64_t>(s[0]) : -1, s[1], s[2], s[3], s[4], s[5]));
  if (!is_double) {
    float* to = static_cast<float*>(result.mutable_data_ptr());
    for (int64_t i = 0; i < rows; ++i) to[i] = static_cast<float>(values[i]);
  }
  return result;
}

// Writes each requested result: the value of every row to `values`, `scale` times their weighted sum to `total`, and
// the gradients of that sum. The value of a row is its divergence. With `labels` it is `soft` times the divergence plus
// `hard` times the cross-entropy of Q (or of P, if `labels_are_of_p`) with the row's label at temperature 1.
//
// If the matrices contain only some classes of their rows, `whole_rows` has the ten numbers of each row's WholeRow. The
// values, and `sums` (the PartSums of P and Q), are then sums over these classes. A gradient may be in float64.
void value_and_gradient(const Tensor& p, const Tensor& q, const Optional& weights, int64_t divergence, double weight_p,
                        double share_p, double weight_q, double share_q, double temperature, double scale,
                        const Optional& labels, bool labels_are_of_p, double soft, double hard,
                        const Optional& values, const Optional& total, const Optional& gradient_p,
                        const Optional& gradient_q, const Optional& whole_rows, const Optional& sums) {
  check_logits(p, q);
  const int64_t rows = p.size(0), classes = p.size(1);
  RowTask task = task_of(divergence, weight_p, share_p, weight_q, share_q, temperature);
  task.label_is_of_p = labels_are_of_p;
  task.soft = soft;
  task.hard = hard;
  const bool is_part = whole_rows.has_value();
  STD_TORCH_CHECK(!is_part || !(labels || task.divergence == DivergenceCode::kTotalVariation ||
                                task.divergence == DivergenceCode::kRenyi),
                  "kullback: this divergence of some classes is not supported");
  const Matrix from_p = read_only(p), from_q = read_only(q);
  const Matrix to_p = writable(gradient_p, p, is_part), to_q = writable(gradient_q, q, is_part);
  STD_TORCH_CHECK((to_p.is(from_p) || to_p.is_apart_from(from_p)) && to_p.is_apart_from(from_q) &&
                      (to_q.is(from_q) || to_q.is_apart_from(from_q)) && to_q.is_apart_from(from_p) &&
                      to_p.is_apart_from(to_q),
                  "kullback: a gradient overlaps what it is computed from; it may only be its own logits");
  std::vector<double> own_values(values ? 0 : rows);
  double* to_values = values ? write_numbers(*values, rows) : own_values.data();
  check_number(total);
  STD_TORCH_CHECK(!sums || (is_part && !gradient_p && !gradient_q),
                  "kullback: sums over some classes expected without gradients");
  const Rows call{
      .p = from_p,
      .q = from_q,
      .gradient_p = to_p,
      .gradient_q = to_q,
      .values = to_values,
      .weights = weights ? read_numbers(*weights, rows) : nullptr,
      .scale = scale,
      .labels = labels ? read_classes(*labels, rows, -1, classes) : nullptr,
      .whole = is_part ? reinterpret_cast<const WholeRow*>(read_numbers(*whole_rows, rows, 10)) : nullptr,
      .sums = sums ? reinterpret_cast<PartSums*>(write_numbers(*sums, rows, 6)) : nullptr,
  };
  compute_rows(call, task);
  if (total) write_number(*total, scale * weighted_sum(to_values, call.weights, rows));
}

// Requests large pages for memory before it is first written. This is only advice to the operating system.
void ask_for_large_pages(const Tensor& x) {
  if (x.is_cpu() && x.is_contiguous()) {
    prefer_large_pages(x.mutable_data_ptr(), x.numel() * static_cast<int64_t>(x.element_size()));
  }
}

// Returns the INTERFACE of kullback/kernels/codes.py at build time.
int64_t interface() { return kInterface; }

}  // namespace
}  // namespace kullback

STABLE_TORCH_LIBRARY(kullback, m) {
  m.def(
      "value_and_gradient(Tensor p, Tensor q, Tensor? weights, int divergence, float weight_p, float share_p, "
      "float weight_q, float share_q, float temperature, float scale, Tensor? labels, bool labels_are_of_p, float soft, "
      "float hard, Tensor(a!)? values, Tensor(b!)? total, Tensor(c!)? gradient_p, Tensor(d!)? gradient_q, "
      "Tensor? whole_rows=None, Tensor(e!)? sums=None) -> ()");
  m.def(
      "row_values(Tensor p, Tensor q, ScalarType dtype, float[]? settings=None) -> Tensor");
  m.def("ask_for_large_pages(Tensor(a!) x) -> ()");
  m.def("interface() -> int");
}

STABLE_TORCH_LIBRARY_IMPL(kullback, CompositeExplicitAutograd, m) {
  m.impl("interface", TORCH_BOX(&kullback::interface));
}

STABLE_TORCH_LIBRARY_IMPL(kullback, CPU, m) {
  m.impl("value_and_gradient", TORCH_BOX(&kullback::value_and_gradient));
  m.impl("row_values", TORCH_BOX(&kullback::row_values));
  m.impl("ask_for_large_pages", TORCH_BOX(&kullback::ask_for_large_pages));
}
