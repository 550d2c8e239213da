// Conversions between the stored formats and the formats that kernels compute in. Compiled once for every instruction
// set.
#pragma once
#include "dtypes.h"
#include "math.h"

namespace kullback {
namespace KULLBACK_ISA {

template <class Real>
constexpr Dtype kDtypeOf = kIsDouble<Real> ? Dtype::kFloat64 : Dtype::kFloat32;

struct BFloat16 {
  uint16_t bits;
};

struct Float16 {
  uint16_t bits;
};

KULLBACK_INLINE float upcast(float x) { return x; }

KULLBACK_INLINE double upcast(double x) { return x; }

KULLBACK_INLINE float upcast(BFloat16 x) {  // the upper half of float32
  return bits_as<float>(static_cast<uint32_t>(x.bits) << 16);
}

// The conversion uses integer arithmetic, which the compiler vectorizes. Multiplying by 2^112 corrects the exponent,
// even of subnormal numbers.
KULLBACK_INLINE float upcast(Float16 x) {
  const uint32_t magnitude = x.bits & 0x7fffu, moved = magnitude << 13;
  const uint32_t finite = bits_as<uint32_t>(bits_as<float>(moved) * 5.192296858534828e33f);
  const uint32_t bits = magnitude >= 0x7c00u ? (moved | 0x7f800000u) : finite;
  return bits_as<float>(bits | (static_cast<uint32_t>(x.bits & 0x8000u) << 16));
}

template <class Stored, class Real>
KULLBACK_INLINE Stored round_to(Real x) {
  if constexpr (std::is_same_v<Stored, BFloat16>) {  // to nearest, ties to even
    const uint32_t bits = bits_as<uint32_t>(static_cast<float>(x));
    const uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
    return {static_cast<uint16_t>(x != x ? 0x7fc0u : rounded)};
  } else if constexpr (std::is_same_v<Stored, Float16>) {
    return {bits_as<uint16_t>(static_cast<_Float16>(x))};
  } else {
    return static_cast<Stored>(x);
  }
}

template <class Stored, class Real>
static const Real* convert(const Stored* from, int64_t stride, int64_t n, Real* buffer) {
  if (stride == 1) {
    if constexpr (std::is_same_v<Stored, Real>) return from;
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) buffer[i] = static_cast<Real>(upcast(from[i]));
  } else {
    for (int64_t i = 0; i < n; ++i) buffer[i] = static_cast<Real>(upcast(from[i * stride]));
  }
  return buffer;
}

// Returns a pointer to the original numbers if no conversion is needed, else to the buffer with the converted numbers.
template <class Real>
static const Real* load(Dtype dtype, const void* data, int64_t stride, int64_t n, Real* buffer) {
  switch (dtype) {
    case Dtype::kFloat64: return convert(static_cast<const double*>(data), stride, n, buffer);
    case Dtype::kBFloat16: return convert(static_cast<const BFloat16*>(data), stride, n, buffer);
    case Dtype::kFloat16: return convert(static_cast<const Float16*>(data), stride, n, buffer);
    default: return convert(static_cast<const float*>(data), stride, n, buffer);
  }
}

template <class Stored, class Real>
static void round_all(const Real* from, int64_t n, Stored* to) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) to[i] = round_to<Stored>(from[i]);
}

// Writes computed numbers to contiguous memory, unless they are already there.
template <class Real>
static void store(const Real* from, int64_t n, Dtype dtype, void* data) {
  if (data == from) return;
  switch (dtype) {
    case Dtype::kFloat64: std::memcpy(data, from, n * sizeof(Real)); return;  // float64 tensors are computed in float64
    case Dtype::kBFloat16: return round_all(from, n, static_cast<BFloat16*>(data));
    case Dtype::kFloat16: return round_all(from, n, static_cast<Float16*>(data));
    default: return round_all(from, n, static_cast<float*>(data));
  }
}

}  // namespace KULLBACK_ISA
}  // namespace kullback
