// The operators that Python calls, on libtorch's stable ABI: one binary for every Python and every torch from 2.10 on.
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>
#include <torch/headeronly/core/ScalarType.h>
#include <torch/headeronly/util/Exception.h>

#ifdef __linux__
#include <sys/mman.h>
#endif

#include <cstdint>
#include <optional>
#include <vector>

#include "processor.h"
#include "row_kernel_api.h"

namespace kullback {
namespace {

using torch::headeronly::ScalarType;
using torch::stable::Tensor;

Dtype dtype_of(const Tensor& x) {
  switch (x.scalar_type()) {
    case ScalarType::Float: return kFloat32;
    case ScalarType::BFloat16: return kBFloat16;
    case ScalarType::Half: return kFloat16;
    case ScalarType::Double: return kFloat64;
    default: STD_TORCH_CHECK(false, "kullback: float64, float32, bfloat16 or float16 expected");
  }
}

// A matrix whose rows are handed out as views.
struct Matrix {
  char* data = nullptr;
  int64_t row_bytes = 0;
  int64_t stride = 1;
  Dtype dtype = kFloat32;

  RowView row(int64_t i) const { return {data ? data + i * row_bytes : nullptr, stride, dtype}; }
};

Matrix read_only(const Tensor& x) {
  const int64_t size = static_cast<int64_t>(x.element_size());
  return {static_cast<char*>(const_cast<void*>(x.const_data_ptr())), x.stride(0) * size, x.stride(1), dtype_of(x)};
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

Matrix writable(const std::optional<Tensor>& x) {
  if (!x) return {};
  STD_TORCH_CHECK(x->size(1) == 1 || x->stride(1) == 1, "kullback: gradients need contiguous rows");
  const int64_t size = static_cast<int64_t>(x->element_size());
  if (x->is_contiguous()) prefer_large_pages(x->mutable_data_ptr(), x->numel() * size);
  return {static_cast<char*>(x->mutable_data_ptr()), x->stride(0) * size, 1, dtype_of(*x)};
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

void write_number(const Tensor& x, double number) {
  STD_TORCH_CHECK(x.numel() == 1, "kullback: a total of one number expected");
  if (x.scalar_type() == ScalarType::Double) {
    *static_cast<double*>(x.mutable_data_ptr()) = number;
  } else {
    STD_TORCH_CHECK(x.scalar_type() == ScalarType::Float, "kullback: a total in float32 or float64 expected");
    *static_cast<float*>(x.mutable_data_ptr()) = static_cast<float>(number);
  }
}

// Writes the divergence of every row to `values`, `scale` times their weighted sum to `total`, and the gradients of
// that sum, each where it is wanted.
void value_and_gradient(const Tensor& p, const Tensor& q, const std::optional<Tensor>& weights, int64_t kind,
                        double weight_p, double share_p, double weight_q, double share_q, double temperature,
                        double scale, const std::optional<Tensor>& values, const std::optional<Tensor>& total,
                        const std::optional<Tensor>& gradient_p, const std::optional<Tensor>& gradient_q) {
  static const RowFunction compute = KULLBACK_BEST(compute_row);
  STD_TORCH_CHECK(p.dim() == 2 && q.dim() == 2 && p.size(0) == q.size(0) && p.size(1) == q.size(1),
                  "kullback: two matrices of the same shape expected");
  const int64_t rows = p.size(0), classes = p.size(1);
  const Matrix from_p = read_only(p), from_q = read_only(q);
  const Matrix to_p = writable(gradient_p), to_q = writable(gradient_q);
  std::vector<double> own_values(values ? 0 : rows);
  double* to_values = own_values.data();
  if (values) {
    STD_TORCH_CHECK(values->scalar_type() == ScalarType::Double && values->is_contiguous() && values->numel() == rows,
                    "kullback: a float64 value for each row expected");
    to_values = static_cast<double*>(values->mutable_data_ptr());
  }
  const double* row_weights = nullptr;
  if (weights) {
    STD_TORCH_CHECK(weights->scalar_type() == ScalarType::Double && weights->is_contiguous() && weights->numel() == rows,
                    "kullback: a float64 weight for each row expected");
    row_weights = static_cast<const double*>(weights->const_data_ptr());
  }
  RowTask task{};
  task.classes = classes;
  task.inverse_temperature = 1 / temperature;
  task.kind = {static_cast<Kind>(kind), {weight_p, share_p, 1 - share_p}, {weight_q, share_q, 1 - share_q}};
  const bool wide = p.scalar_type() == ScalarType::Double || q.scalar_type() == ScalarType::Double;
  const size_t scratch_bytes = kScratchPerClass * classes * (wide ? sizeof(double) : sizeof(float));
  // Small matrices are not worth waking other threads for.
  const int64_t grain = classes > 0 ? 1 + 16384 / classes : 1;
  torch::stable::parallel_for(0, rows, grain, [&](int64_t begin, int64_t end) {
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

}  // namespace
}  // namespace kullback

STABLE_TORCH_LIBRARY(kullback, m) {
  m.def(
      "value_and_gradient(Tensor p, Tensor q, Tensor? weights, int kind, float weight_p, float share_p, "
      "float weight_q, float share_q, float temperature, float scale, Tensor(a!)? values, Tensor(b!)? total, "
      "Tensor(c!)? gradient_p, Tensor(d!)? gradient_q) -> ()");
}

STABLE_TORCH_LIBRARY_IMPL(kullback, CPU, m) {
  m.impl("value_and_gradient", TORCH_BOX(&kullback::value_and_gradient));
}
