// Matrices of logits and their gradients, for reading and writing by operators.
#pragma once
#include "../common/tensors.h"

#ifdef __linux__
#include <sys/mman.h>
#endif

#include "task.h"

namespace kullback {

// A matrix in memory, which returns views of its rows.
struct Matrix {
  char* data = nullptr;
  int64_t row_bytes = 0;
  int64_t stride = 1;
  Dtype dtype = Dtype::kFloat32;
  int64_t rows = 0, classes = 0;

  RowView row(int64_t i) const { return {data ? data + i * row_bytes : nullptr, stride, dtype}; }

  int64_t width() const { return ((classes - 1) * stride + 1) * size_of(dtype); }

  // Returns whether the two matrices share no element. The answer is also right for two column ranges of one matrix.
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

inline Matrix read_only(const Tensor& x) {
  STD_TORCH_CHECK(x.is_cpu(), "kullback: logits on the CPU expected");
  const int64_t size = static_cast<int64_t>(x.element_size());
  void* data = const_cast<void*>(x.const_data_ptr());
  return {static_cast<char*>(data), x.stride(0) * size, x.stride(1), dtype_of(x), x.size(0), x.size(1)};
}

// Page allocation by the operating system takes half the time of writing a new gradient, and large pages mean fewer
// allocations. For very large memory, however, the system must first assemble large pages, which takes longer than
// small pages.
inline void prefer_large_pages([[maybe_unused]] void* data, [[maybe_unused]] int64_t bytes) {
#ifdef __linux__
  constexpr uintptr_t page = 1 << 21;
  constexpr int64_t most = 1 << 27;
  if (bytes > most) return;
  const uintptr_t start = (reinterpret_cast<uintptr_t>(data) + page - 1) & ~(page - 1);
  const uintptr_t stop = (reinterpret_cast<uintptr_t>(data) + static_cast<uintptr_t>(bytes)) & ~(page - 1);
  if (stop > start) madvise(reinterpret_cast<void*>(start), stop - start, MADV_HUGEPAGE);  // advice: it may fail
#endif
}

// Returns a gradient that several threads can write row by row. It must have the shape of its logits, and its rows must
// not overlap.
inline Matrix writable(const Optional& x, const Tensor& logits, bool may_be_double = false) {
  if (!x) return {};
  const bool has_dtype =
      x->scalar_type() == logits.scalar_type() || (may_be_double && x->scalar_type() == ScalarType::Double);
  STD_TORCH_CHECK(x->is_cpu() && has_dtype && has_shape_of(*x, logits),
                  "kullback: a gradient like its logits expected");
  const int64_t rows = x->size(0), classes = x->size(1), size = static_cast<int64_t>(x->element_size());
  STD_TORCH_CHECK((classes <= 1 || x->stride(1) == 1) && (rows <= 1 || x->stride(0) >= classes),
                  "kullback: a gradient of contiguous rows that do not overlap expected");
  if (x->is_contiguous()) prefer_large_pages(x->mutable_data_ptr(), x->numel() * size);
  return {static_cast<char*>(x->mutable_data_ptr()), x->stride(0) * size, 1, dtype_of(*x), rows, classes};
}

// Returns checked indices of classes: `count` indices for each row, or one for each row if `count` is negative. A
// negative index means no class. All indices are checked to be less than `classes`.
inline const int64_t* read_classes(const Tensor& x, int64_t rows, int64_t count, int64_t classes) {
  STD_TORCH_CHECK(x.is_cpu() && x.scalar_type() == ScalarType::Long && x.is_contiguous() &&
                      x.dim() == (count < 0 ? 1 : 2) && x.size(0) == rows && (count < 0 || x.size(1) == count),
                  "kullback: contiguous int64 indices of classes for each row expected");
  const int64_t* data = static_cast<const int64_t*>(x.const_data_ptr());
  for (int64_t i = 0; i < x.numel(); ++i) STD_TORCH_CHECK(data[i] < classes, "kullback: no such class");
  return data;
}

}  // namespace kullback
