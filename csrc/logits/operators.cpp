// The operator on rows of logits, and the one that says what this library was built from.
#include "../common/tensors.h"

#ifdef __linux__
#include <sys/mman.h>
#endif

#include <vector>

#include "task.h"

namespace kullback {
namespace {

// A matrix whose rows are handed out as views.
struct Matrix {
  char* data = nullptr;
  int64_t row_bytes = 0;
  int64_t stride = 1;
  Dtype dtype = Dtype::kFloat32;
  int64_t rows = 0, classes = 0;

  RowView row(int64_t i) const { return {data ? data + i * row_bytes : nullptr, stride, dtype}; }

  int64_t width() const { return ((classes - 1) * stride + 1) * size_of(dtype); }

  // Whether no element is where one of the other's is, also of columns that lie between the other's.
  bool is_apart_from(const Matrix& x) const {
    if (!data || !x.data || rows * classes == 0) return true;
    const uintptr_t start = reinterpret_cast<uintptr_t>(data), start_x = reinterpret_cast<uintptr_t>(x.data);
    if (start + (rows - 1) * row_bytes + width() <= start_x) return true;
    if (start_x + (rows - 1) * x.row_bytes + x.width() <= start) return true;
    if (row_bytes != x.row_bytes || stride != 1 || x.stride != 1 || row_bytes == 0) return false;
    const int64_t difference = static_cast<int64_t>(start_x - start) % row_bytes;
    const int64_t offset = difference < 0 ? difference + row_bytes : difference;
    return offset >= width() && offset + x.width() <= row_bytes;
  }

  bool is(const Matrix& x) const { return data == x.data && (rows <= 1 || row_bytes == x.row_bytes); }
};

Matrix read_only(const Tensor& x) {
  STD_TORCH_CHECK(x.is_cpu(), "kullback: logits on the CPU expected");
  const int64_t size = static_cast<int64_t>(x.element_size());
  void* data = const_cast<void*>(x.const_data_ptr());
  return {static_cast<char*>(data), x.stride(0) * size, x.stride(1), dtype_of(x), x.size(0), x.size(1)};
}

// Half the time of writing a fresh gradient is the kernel handing out its pages; large ones are fewer.
void prefer_large_pages([[maybe_unused]] void* data, [[maybe_unused]] int64_t bytes) {
#ifdef __linux__
  constexpr uintptr_t page = 1 << 21;
  const uintptr_t start = (reinterpret_cast<uintptr_t>(data) + page - 1) & ~(page - 1);
  const uintptr_t stop = (reinterpret_cast<uintptr_t>(data) + static_cast<uintptr_t>(bytes)) & ~(page - 1);
  if (stop > start) madvise(reinterpret_cast<void*>(start), stop - start, MADV_HUGEPAGE);  // advice: it may fail
#endif
}

// A gradient is written row by row by several threads: as large as its logits, in rows that lie apart.
Matrix writable(const Optional& x, const Tensor& logits) {
  if (!x) return {};
  STD_TORCH_CHECK(x->is_cpu() && x->scalar_type() == logits.scalar_type() && has_shape_of(*x, logits),
                  "kullback: a gradient like its logits expected");
  const int64_t rows = x->size(0), classes = x->size(1), size = static_cast<int64_t>(x->element_size());
  STD_TORCH_CHECK((classes <= 1 || x->stride(1) == 1) && (rows <= 1 || x->stride(0) >= classes),
                  "kullback: a gradient of contiguous rows that do not overlap expected");
  if (x->is_contiguous()) prefer_large_pages(x->mutable_data_ptr(), x->numel() * size);
  return {static_cast<char*>(x->mutable_data_ptr()), x->stride(0) * size, 1, dtype_of(*x), rows, classes};
}

// The sum of weighted rows, in their order; a row of weight 0 adds nothing, whatever its value.
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

// Writes the divergence of every row to `values`, `scale` times their weighted sum to `total`, and the gradients of
// that sum, each where it is wanted.
void value_and_gradient(const Tensor& p, const Tensor& q, const Optional& weights, int64_t divergence, double weight_p,
                        double share_p, double weight_q, double share_q, double temperature, double scale,
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
  RowTask task{};
  task.classes = classes;
  task.inverse_temperature = 1 / temperature;
  task.divergence = static_cast<DivergenceCode>(divergence);
  task.p = {weight_p, share_p, 1 - share_p};
  task.q = {weight_q, share_q, 1 - share_q};
  task.power = {weight_p, share_p};
  const RowViews first{from_p.row(0), from_q.row(0), to_p.row(0), to_q.row(0)};
  const size_t bytes = in_float64(first, task.divergence) ? sizeof(double) : sizeof(float);
  const size_t scratch_bytes = scratch_size(task.divergence, classes) * bytes;
  torch::stable::parallel_for(0, rows, rows_of_a_thread(classes), [&](int64_t begin, int64_t end) {
    static thread_local std::vector<char> scratch;
    if (scratch.size() < scratch_bytes) scratch.resize(scratch_bytes);
    RowTask mine = task;
    for (int64_t i = begin; i < end; ++i) {
      mine.weight = row_weights ? scale * row_weights[i] : scale;
      compute({from_p.row(i), from_q.row(i), to_p.row(i), to_q.row(i)}, mine, scratch.data());
      to_values[i] = mine.value;
    }
  });
  if (total) write_number(*total, scale * weighted_sum(to_values, row_weights, rows));
}

// The number in kullback/kernels/codes.py when this was built.
int64_t interface() { return kInterface; }

}  // namespace
}  // namespace kullback

STABLE_TORCH_LIBRARY(kullback, m) {
  m.def(
      "value_and_gradient(Tensor p, Tensor q, Tensor? weights, int divergence, float weight_p, float share_p, "
      "float weight_q, float share_q, float temperature, float scale, Tensor(a!)? values, Tensor(b!)? total, "
      "Tensor(c!)? gradient_p, Tensor(d!)? gradient_q) -> ()");
  m.def("interface() -> int");
}

STABLE_TORCH_LIBRARY_IMPL(kullback, CompositeExplicitAutograd, m) {
  m.impl("interface", TORCH_BOX(&kullback::interface));
}

STABLE_TORCH_LIBRARY_IMPL(kullback, CPU, m) {
  m.impl("value_and_gradient", TORCH_BOX(&kullback::value_and_gradient));
}
