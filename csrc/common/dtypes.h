// The formats of numbers in memory.
#pragma once
#include <cstdint>

namespace kullback {

enum class Dtype { kFloat32, kFloat64, kBFloat16, kFloat16 };

constexpr int64_t size_of(Dtype dtype) {
  return dtype == Dtype::kFloat64 ? 8 : dtype == Dtype::kFloat32 ? 4 : 2;
}

}  // namespace kullback
