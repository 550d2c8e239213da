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

#include "row_kernel_api.h"

namespace kullback {
namespace {

using torch::headeronly::ScalarType;
using torch::stable::Tensor;

RowFunction best_function() {
#ifdef KULLBACK_X86_LEVELS
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
      __builtin_cpu_supports("avx512vl")) {
    return v4::compute_row;
  }
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c")) {
    return v3::compute_row;
  }
#endif
  return baseline::compute_row;
}

Dtype dtype_of(const Tensor& x) {
  switch (x.scalar_type()) {
    case ScalarType::Float: return kFloat32;
    case ScalarType::BFloat16: return kBFloat16;
    case ScalarType::Half: return kFloat16;
    default: STD_TORCH_CHECK(false, "kullback: float32, bfloat16 or float16 expected");
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

// Writes the divergence of every row to `values`, and the gradients of their weighted sum where they are wanted.
void value_and_gradient(const Tensor& p, const Tensor& q, const std::optional<Tensor>& weights, int64_t kind,
                        double weight_p, double share_p, double weight_q, double share_q, double temperature,
                        const Tensor& values, const std::optional<Tensor>& gradient_p,
                        const std::optional<Tensor>& gradient_q) {
  static const RowFunction compute = best_function();
  STD_TORCH_CHECK(p.dim() == 2 && q.dim() == 2 && p.size(0) == q.size(0) && p.size(1) == q.size(1),
                  "kullback: two matrices of the same shape expected");
  STD_TORCH_CHECK(values.scalar_type() == ScalarType::Double && values.is_contiguous() && values.numel() == p.size(0),
                  "kullback: a float64 value for each row expected");
  const int64_t rows = p.size(0), classes = p.size(1);
  const Matrix from_p = read_only(p), from_q = read_only(q);
  const Matrix to_p = writable(gradient_p), to_q = writable(gradient_q);
  double* to_values = static_cast<double*>(values.mutable_data_ptr());
  const float* row_weights = nullptr;
  if (weights) {
    STD_TORCH_CHECK(weights->scalar_type() == ScalarType::Float && weights->is_contiguous() && weights->numel() == rows,
                    "kullback: a float32 weight for each row expected");
    row_weights = static_cast<const float*>(weights->const_data_ptr());
  }
  RowTask task{};
  task.classes = classes;
  task.inverse_temperature = static_cast<float>(1 / temperature);
  const auto mixing = [](double weight, double share) -> Mixing {
    return {static_cast<float>(weight), static_cast<float>(share), static_cast<float>(1 - share)};
  };
  task.kind = {static_cast<Kind>(kind), mixing(weight_p, share_p), mixing(weight_q, share_q)};
  // Small matrices are not worth waking other threads for.
  const int64_t grain = classes > 0 ? 1 + 16384 / classes : 1;
  torch::stable::parallel_for(0, rows, grain, [&](int64_t begin, int64_t end) {
    static thread_local std::vector<float> scratch;
    if (scratch.size() < static_cast<size_t>(4 * classes)) scratch.resize(4 * classes);
    RowTask mine = task;
    for (int64_t i = begin; i < end; ++i) {
      mine.weight = row_weights ? row_weights[i] : 1.0f;
      compute({from_p.row(i), from_q.row(i), to_p.row(i), to_q.row(i)}, mine, scratch.data());
      to_values[i] = mine.value;
    }
  });
}

}  // namespace
}  // namespace kullback

STABLE_TORCH_LIBRARY(kullback, m) {
  m.def(
      "value_and_gradient(Tensor p, Tensor q, Tensor? weights, int kind, float weight_p, float share_p, "
      "float weight_q, float share_q, float temperature, Tensor(a!) values, Tensor(b!)? gradient_p, "
      "Tensor(c!)? gradient_q) -> ()");
}

STABLE_TORCH_LIBRARY_IMPL(kullback, CPU, m) {
  m.impl("value_and_gradient", TORCH_BOX(&kullback::value_and_gradient));
}
