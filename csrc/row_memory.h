// Rows of any dtype and stride become rows to compute with, and gradients become rows of any dtype.
#pragma once
#include <type_traits>

#include "row_kernel_api.h"
#include "row_math.h"

namespace kullback {
namespace KULLBACK_ISA {

template <class Real>
constexpr Dtype kDtypeOf = kIsWide<Real> ? kFloat64 : kFloat32;

struct BFloat16 {
  uint16_t bits;
};

struct Float16 {
  uint16_t bits;
};

KULLBACK_INLINE float widen(float x) { return x; }

KULLBACK_INLINE double widen(double x) { return x; }

KULLBACK_INLINE float widen(BFloat16 x) {  // the upper half of float32
  return bits_of<float>(static_cast<uint32_t>(x.bits) << 16);
}

// In integers, which the compiler vectorizes: 2^112 moves the exponent, also of subnormal numbers.
KULLBACK_INLINE float widen(Float16 x) {
  const uint32_t magnitude = x.bits & 0x7fffu;
  const uint32_t moved = magnitude << 13;
  const uint32_t finite = bits_of<uint32_t>(bits_of<float>(moved) * 5.192296858534828e33f);
  const uint32_t bits = magnitude >= 0x7c00u ? (moved | 0x7f800000u) : finite;
  return bits_of<float>(bits | (static_cast<uint32_t>(x.bits & 0x8000u) << 16));
}

KULLBACK_INLINE uint16_t to_bfloat16(float x) {  // to nearest, ties to even
  const uint32_t bits = bits_of<uint32_t>(x);
  const uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  return static_cast<uint16_t>(x != x ? 0x7fc0u : rounded);
}

template <class Stored, class Real>
static const Real* convert(const RowView& x, int64_t n, Real* scratch) {
  const Stored* from = static_cast<const Stored*>(x.data);
  const int64_t stride = x.stride;
  if (stride == 1) {
    if constexpr (std::is_same_v<Stored, Real>) return from;
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) scratch[i] = static_cast<Real>(widen(from[i]));
  } else {
    for (int64_t i = 0; i < n; ++i) scratch[i] = static_cast<Real>(widen(from[i * stride]));
  }
  return scratch;
}

template <class Real>
static const Real* load(const RowView& x, int64_t n, Real* scratch) {
  switch (x.dtype) {
    case kFloat64: return convert<double>(x, n, scratch);
    case kBFloat16: return convert<BFloat16>(x, n, scratch);
    case kFloat16: return convert<Float16>(x, n, scratch);
    default: return convert<float>(x, n, scratch);
  }
}

template <class Real>
static void store(const Real* row, int64_t n, const RowView& x) {
  if (x.data == row) return;
  if (x.dtype == kBFloat16) {
    uint16_t* to = static_cast<uint16_t*>(x.data);
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) to[i] = to_bfloat16(static_cast<float>(row[i]));
  } else if (x.dtype == kFloat16) {
    _Float16* to = static_cast<_Float16*>(x.data);
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) to[i] = static_cast<_Float16>(row[i]);
  } else {  // float32, of a row computed in float64
    float* to = static_cast<float*>(x.data);
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) to[i] = static_cast<float>(row[i]);
  }
}

}  // namespace KULLBACK_ISA
}  // namespace kullback
