// The operators for rows of logits at selected classes.
#include "matrix.h"

namespace kullback {
namespace {

constexpr int64_t kSums = sizeof(RowSums) / sizeof(double);

// The checked arguments that the two operators have in common.
struct SelectedRows {
  Matrix logits;
  const int64_t *indices, *labels;
  SelectedTask task{};
  size_t scratch_bytes;

  SelectedRows(const Tensor& x, const Tensor& classes, const Optional& of_labels, double temperature, bool leaves_out,
               const Tensor& selected, const Tensor& sums) {
    STD_TORCH_CHECK(x.dim() == 2 && classes.dim() == 2, "kullback: a matrix of logits and one of classes expected");
    logits = read_only(x);
    task.classes = x.size(1);
    task.count = classes.size(1);
    task.temperature = temperature;
    task.leaves_out = leaves_out;
    indices = read_classes(classes, x.size(0), task.count, task.classes);
    labels = of_labels ? read_classes(*of_labels, x.size(0), -1, task.classes) : nullptr;
    check_like(selected, classes, ScalarType::Double);
    check_numbers(sums, x.size(0), kSums);
    scratch_bytes = scratch_size_of_selected(task.classes) *
                    (logits.dtype == Dtype::kFloat64 ? sizeof(double) : sizeof(float));
  }

  template <class Visit>
  void visit(double* sums, const Visit& of_row) const {
    torch::stable::parallel_for(0, logits.rows, rows_of_a_thread(logits.classes), [&](int64_t begin, int64_t end) {
      void* scratch = scratch_of_thread(scratch_bytes);
      SelectedTask mine = task;
      for (int64_t i = begin; i < end; ++i) {
        mine.indices = indices + i * task.count;
        mine.label = labels ? labels[i] : -1;
        mine.sums = reinterpret_cast<RowSums*>(sums + i * kSums);
        of_row(i, mine, scratch);
      }
    });
  }
};

// Writes the selected logits divided by the temperature, -inf for padding, and the sums of each row.
void selected_statistics(const Tensor& logits, const Tensor& indices, const Optional& labels, double temperature,
                         bool leaves_out, const Tensor& selected, const Tensor& sums) {
  static const auto compute = KULLBACK_BEST(compute_selected);
  const SelectedRows rows(logits, indices, labels, temperature, leaves_out, selected, sums);
  double* to = static_cast<double*>(selected.mutable_data_ptr());
  rows.visit(static_cast<double*>(sums.mutable_data_ptr()), [&](int64_t i, SelectedTask& task, void* scratch) {
    task.selected = to + i * task.count;
    compute(rows.logits.row(i), task, scratch);
  });
}

// Writes the gradient with respect to the logits, from the derivatives with respect to the results of
// selected_statistics. The gradient may overwrite the logits.
void selected_gradient(const Tensor& logits, const Tensor& indices, const Optional& labels, double temperature,
                       bool leaves_out, const Tensor& sums, const Tensor& by_selected, const Tensor& by_log_sum,
                       const Optional& by_cross_entropy, const Tensor& gradient) {
  static const auto compute = KULLBACK_BEST(compute_selected_gradient);
  const SelectedRows rows(logits, indices, labels, temperature, leaves_out, by_selected, sums);
  const Matrix to = writable(gradient, logits);
  STD_TORCH_CHECK((to.is(rows.logits) && rows.logits.stride == 1) || to.is_apart_from(rows.logits),
                  "kullback: a gradient overlaps what it is computed from; it may only be its own logits");
  const double* from = static_cast<const double*>(by_selected.const_data_ptr());
  const double* of_sums = read_numbers(by_log_sum, rows.logits.rows);
  const double* of_labels = by_cross_entropy ? read_numbers(*by_cross_entropy, rows.logits.rows) : nullptr;
  double* read_sums = const_cast<double*>(static_cast<const double*>(sums.const_data_ptr()));
  rows.visit(read_sums, [&](int64_t i, SelectedTask& task, void* scratch) {
    task.by_selected = from + i * task.count;
    task.by_log_sum = of_sums[i];
    task.by_cross_entropy = of_labels ? of_labels[i] : 0;
    compute(rows.logits.row(i), to.row(i), task, scratch);
  });
}

}  // namespace
}  // namespace kullback

STABLE_TORCH_LIBRARY_FRAGMENT(kullback, m) {
  m.def(
      "selected_statistics(Tensor logits, Tensor indices, Tensor? labels, float temperature, bool leaves_out, "
      "Tensor(a!) selected, Tensor(b!) sums) -> ()");
  m.def(
      "selected_gradient(Tensor logits, Tensor indices, Tensor? labels, float temperature, bool leaves_out, Tensor sums, "
      "Tensor by_selected, Tensor by_log_sum, Tensor? by_cross_entropy, Tensor(a!) gradient) -> ()");
}

STABLE_TORCH_LIBRARY_IMPL(kullback, CPU, m) {
  m.impl("selected_statistics", TORCH_BOX(&kullback::selected_statistics));
  m.impl("selected_gradient", TORCH_BOX(&kullback::selected_gradient));
}
