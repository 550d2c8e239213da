// Access of operators to their tensors, by libtorch's stable ABI: one binary works with every Python and every torch
// from 2.10 on. An operator checks the device, shape and layout of every tensor that it reads or writes.
#pragma once
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>
#include <torch/headeronly/core/ScalarType.h>
#include <torch/headeronly/util/Exception.h>

#include <memory>
#include <optional>

#include "dtypes.h"

namespace kullback {

using torch::headeronly::ScalarType;
using torch::stable::Tensor;
using Optional = std::optional<Tensor>;

inline Dtype dtype_of(const Tensor& x) {
  switch (x.scalar_type()) {
    case ScalarType::Float: return Dtype::kFloat32;
    case ScalarType::Double: return Dtype::kFloat64;
    case ScalarType::BFloat16: return Dtype::kBFloat16;
    case ScalarType::Half: return Dtype::kFloat16;
    default: STD_TORCH_CHECK(false, "kullback: float64, float32, bfloat16 or float16 expected");
  }
}

inline bool is_single_or_double(const Tensor& x) {
  return x.scalar_type() == ScalarType::Double || x.scalar_type() == ScalarType::Float;
}

// Returns whether the shape of `x` begins with the shape of `like`.
inline bool begins_with_shape_of(const Tensor& x, const Tensor& like) {
  if (x.dim() < like.dim()) return false;
  for (int64_t i = 0; i < like.dim(); ++i) {
    if (x.size(i) != like.size(i)) return false;
  }
  return true;
}

inline bool has_shape_of(const Tensor& x, const Tensor& like) {
  return x.dim() == like.dim() && begins_with_shape_of(x, like);
}

inline void check_like(const Tensor& x, const Tensor& like, ScalarType dtype) {
  STD_TORCH_CHECK(x.is_cpu() && x.is_contiguous() && x.scalar_type() == dtype && has_shape_of(x, like),
                  "kullback: contiguous tensors of one shape and dtype on the CPU expected");
}

inline const void* read_like(const Optional& x, const Tensor& like, ScalarType dtype) {
  if (!x) return nullptr;
  check_like(*x, like, dtype);
  return x->const_data_ptr();
}

inline void* write_like(const Optional& x, const Tensor& like) {
  if (!x) return nullptr;
  check_like(*x, like, like.scalar_type());
  return x->mutable_data_ptr();
}

// Checks a tensor of `count` float64 numbers for each row; of one dimension if there is one number.
inline void check_numbers(const Tensor& x, int64_t rows, int64_t count) {
  STD_TORCH_CHECK(x.is_cpu() && x.scalar_type() == ScalarType::Double && x.is_contiguous() &&
                      x.dim() == (count == 1 ? 1 : 2) && x.size(0) == rows && (count == 1 || x.size(1) == count),
                  "kullback: ", count, " float64 numbers for each row expected");
}

inline const double* read_numbers(const Tensor& x, int64_t rows, int64_t count = 1) {
  check_numbers(x, rows, count);
  return static_cast<const double*>(x.const_data_ptr());
}

inline double* write_numbers(const Tensor& x, int64_t rows, int64_t count = 1) {
  check_numbers(x, rows, count);
  return static_cast<double*>(x.mutable_data_ptr());
}

// Returns a new tensor on the CPU. The dispatcher would take longer than the arithmetic of a small call.
inline Tensor new_vector(int64_t size, ScalarType dtype) {
  const int64_t stride = 1;
  const int32_t code = torch::stable::detail::to<int32_t>(torch::stable::detail::from(dtype));
  AtenTensorHandle handle = nullptr;
  STABLE_TORCH_ERROR_CODE_CHECK(
      aoti_torch_empty_strided(1, &size, &stride, code, aoti_torch_device_type_cpu(), 0, &handle));
  return Tensor(handle);
}

inline void check_number(const Optional& x) {
  STD_TORCH_CHECK(!x || (x->is_cpu() && x->dim() == 0 && is_single_or_double(*x)),
                  "kullback: a total of one number in float32 or float64 expected");
}

inline void write_number(const Tensor& x, double number) {
  if (x.scalar_type() == ScalarType::Double) {
    *static_cast<double*>(x.mutable_data_ptr()) = number;
  } else {
    *static_cast<float*>(x.mutable_data_ptr()) = static_cast<float>(number);
  }
}

// Advances a pointer by `bytes`; null stays null.
inline const void* moved(const void* data, int64_t bytes) {
  return data ? static_cast<const char*>(data) + bytes : nullptr;
}

inline void* moved(void* data, int64_t bytes) { return data ? static_cast<char*>(data) + bytes : nullptr; }

// Memory of this thread, kept for the next call. It is not initialized: some calls need only a part of it.
inline void* scratch_of_thread(size_t bytes) {
  static thread_local std::unique_ptr<char[]> scratch;
  static thread_local size_t size = 0;
  if (size < bytes) {
    size = 0;
    scratch.reset();
    scratch.reset(new char[bytes]);
    size = bytes;
  }
  return scratch.get();
}

// The minimum number of rows per thread: small matrices are not worth waking other threads.
inline int64_t rows_of_a_thread(int64_t classes) { return classes > 0 ? 1 + 16384 / classes : 1; }

}  // namespace kullback
