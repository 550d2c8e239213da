// One row of logits of P and one of Q: their divergence and its gradients. This file is compiled once for every
// instruction set, each time into a namespace of its own; plain loops, which the compiler vectorises.
//
// With d = log p - log q, every divergence is a sum of non-negative terms (see kullback/generators). Where |d| is
// small the terms are power series in d, elsewhere they come from p and q themselves.
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

#include "row_kernel_api.h"

namespace kullback {
namespace KULLBACK_ISA {

#define KULLBACK_INLINE static inline __attribute__((always_inline))

constexpr float kNear = 0.3f;
constexpr float kInf = std::numeric_limits<float>::infinity();
// Lanes are summed in float32 over a block, blocks in float64.
constexpr int64_t kBlock = 1024;

// e^x for x <= 0, to about one unit in the last place; 0 below the smallest normal number.
KULLBACK_INLINE float exp_of_negative(float x) {
  const float clamped = x < -87.0f ? -87.0f : x;
  const float shifted = clamped * 1.44269504f + 12582912.0f;  // 1.5 * 2^23 rounds to the nearest integer
  const float n = shifted - 12582912.0f;
  const float r = (clamped - n * 0.693359375f) + n * 2.12194440e-4f;
  float s = 1.9875691e-4f;
  s = s * r + 1.3981999e-3f;
  s = s * r + 8.3334519e-3f;
  s = s * r + 4.1665796e-2f;
  s = s * r + 1.6666665e-1f;
  s = s * r + 5.0000000e-1f;
  s = (s * r) * r + r + 1.0f;
  int32_t bits;
  std::memcpy(&bits, &shifted, sizeof bits);
  int32_t result;
  std::memcpy(&result, &s, sizeof result);
  result += bits << 23;  // the low bits of `shifted` are n: times 2^n
  float value;
  std::memcpy(&value, &result, sizeof value);
  return x < -87.0f ? 0.0f : value;
}

// log x for normal x > 0, to about one unit in the last place.
KULLBACK_INLINE float log_of(float x) {
  int32_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  int32_t exponent = (bits - 0x3f3504f3) >> 23;  // so that the mantissa lies in [sqrt(1/2), sqrt(2))
  bits -= exponent << 23;
  float m;
  std::memcpy(&m, &bits, sizeof m);
  const float f = m - 1.0f;
  float s = 7.0376836e-2f;
  s = s * f - 1.1514610e-1f;
  s = s * f + 1.1676998e-1f;
  s = s * f - 1.2420141e-1f;
  s = s * f + 1.4249323e-1f;
  s = s * f - 1.6668057e-1f;
  s = s * f + 2.0000714e-1f;
  s = s * f - 2.4999994e-1f;
  s = s * f + 3.3333331e-1f;
  const float z = f * f;
  const float e = static_cast<float>(exponent);
  return (f + (s * f * z - 0.5f * z - 2.12194440e-4f * e)) + 0.693359375f * e;
}

// log(1 + y) for |y| < 0.42, by log((1 + s) / (1 - s)) with s = y / (2 + y).
KULLBACK_INLINE float log1p_near(float y) {
  const float s = y / (2.0f + y);
  const float z = s * s;
  float t = 1.0f / 11;
  t = t * z + 1.0f / 9;
  t = t * z + 1.0f / 7;
  t = t * z + 1.0f / 5;
  t = t * z + 1.0f / 3;
  return 2.0f * s + 2.0f * s * z * t;
}

// e^-x - 1 for |x| < 0.3.
KULLBACK_INLINE float expm1_of_minus(float x) {
  float s = -1.0f / 5040;
  s = s * x + 1.0f / 720;
  s = s * x - 1.0f / 120;
  s = s * x + 1.0f / 24;
  s = s * x - 1.0f / 6;
  s = s * x + 0.5f;
  return (s * x) * x - x;
}

// e^-x - 1 + x for |x| < 0.7.
KULLBACK_INLINE float bracket(float x) {
  float s = 1.0f / 3628800;
  s = s * x - 1.0f / 362880;
  s = s * x + 1.0f / 40320;
  s = s * x - 1.0f / 5040;
  s = s * x + 1.0f / 720;
  s = s * x - 1.0f / 120;
  s = s * x + 1.0f / 24;
  s = s * x - 1.0f / 6;
  s = s * x + 0.5f;
  return s * x * x;
}

struct Term {
  float value;    // the non-negative term
  float slope_p;  // its derivative by log p
  float slope_q;  // its derivative by log q
};

KULLBACK_INLINE float finite_or_zero(float x) { return (x == kInf || x == -kInf || x != x) ? 0.0f : x; }

// p * x with 0 * inf = 0.
KULLBACK_INLINE float times(float mass, float x) { return mass == 0.0f ? 0.0f : mass * x; }

// q - p, to full relative precision also where they agree. d is NaN where both are 0.
KULLBACK_INLINE float excess_q(float p, float q, float d) {
  const float x = std::fabs(d) < kNear ? d : 0.0f;
  return std::fabs(d) < kNear ? p * expm1_of_minus(x) : q - p;
}

// p (e^-x - 1 + x), where gap = p (e^-x - 1).
KULLBACK_INLINE float relative_entropy(float p, float gap, float x) {
  const float near = std::fabs(x) < 0.7f ? x : 0.0f;
  return std::fabs(x) < 0.7f ? p * bracket(near) : gap + times(p, x);
}

// KL(P || share P + rest Q) for 0 < share < 1.
KULLBACK_INLINE Term skew_term(float p, float q, float d, const Mixing& mixing) {
  const float excess = excess_q(p, q, d);
  const float share = mixing.share, rest = mixing.rest;
  const bool empty = p < 1e-30f;  // less than this is lost in the sum, and its mixture might not be a normal number
  const float y = rest * excess / (empty ? 1.0f : p);  // the mixture is p (1 + y)
  const bool near = std::fabs(y) < 0.4f;
  const float mixture = share * p + rest * q;
  const float large = log_of(empty ? 1.0f : p) - log_of(empty ? 1.0f : mixture);
  const float x = empty ? -kInf : (near ? -log1p_near(near ? y : 0.0f) : large);
  const float surplus = empty ? -1.0f : -y / (1.0f + y);  // p / mixture - 1
  return {relative_entropy(empty ? 0.0f : p, rest * excess, x), empty ? 0.0f : p * (x - share * surplus),
          -rest * q * surplus};
}

template <int kind>
KULLBACK_INLINE Term term_of(float p, float q, float d, const KindParameters& c) {
  const float excess = excess_q(p, q, d);
  if constexpr (kind == kKL) {
    return {relative_entropy(p, excess, d), times(p, finite_or_zero(d)), excess};
  } else if constexpr (kind == kReverseKL) {
    return {relative_entropy(q, std::fabs(d) < kNear ? q * expm1_of_minus(-d) : -excess, -d),
            std::fabs(d) < kNear ? q * expm1_of_minus(-d) : -excess, -times(q, finite_or_zero(d))};
  } else if constexpr (kind == kJeffreys) {
    const float finite = finite_or_zero(d);
    return {times(-excess, d), times(p, finite) - excess, excess - times(q, finite)};
  } else if constexpr (kind == kTotalVariation) {
    const float sign = d > 0.0f ? 0.5f : (d < 0.0f ? -0.5f : 0.0f);
    return {0.5f * std::fabs(excess), p * sign, -q * sign};
  } else {  // a weighted sum of the skew divergences both ways
    const Term one = skew_term(p, q, d, c.p);
    const Term two = skew_term(q, p, -d, c.q);
    return {c.p.weight * one.value + c.q.weight * two.value, c.p.weight * one.slope_p + c.q.weight * two.slope_q,
            c.p.weight * one.slope_q + c.q.weight * two.slope_p};
  }
}

// Peak and sum of exponentials of one row; the exponentials themselves stay in `e`.
KULLBACK_INLINE RowStatistics normalise(const float* x, float* e, int64_t n, float inverse_temperature) {
  float peak = -kInf;
#pragma omp simd reduction(max : peak)
  for (int64_t i = 0; i < n; ++i) peak = x[i] > peak ? x[i] : peak;
  double sum = 0;
  for (int64_t start = 0; start < n; start += kBlock) {
    const int64_t stop = start + kBlock < n ? start + kBlock : n;
    float part = 0;
#pragma omp simd reduction(+ : part)
    for (int64_t i = start; i < stop; ++i) {
      const float value = exp_of_negative((x[i] - peak) * inverse_temperature);
      e[i] = value;
      part += value;
    }
    sum += part;
  }
  return {peak, sum};
}

struct Shift {
  float high, low;
};

// The gradients by logits: what the slopes by log p and log q become through the normalisation.
template <int kind, bool to_p, bool to_q>
static void write_gradient(const RowTask& t, float scale_p, float scale_q, Shift shift, float mean_p, float mean_q) {
  const float *p = t.p, *q = t.q, *exp_p = t.exp_p, *exp_q = t.exp_q;
  float *out_p = t.gradient_p, *out_q = t.gradient_q;
  const float inverse_temperature = t.inverse_temperature, weight = t.weight * inverse_temperature;
  const KindParameters parameters = t.kind;
  const int64_t n = t.classes;
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) {
    const float mass_p = exp_p[i] * scale_p, mass_q = exp_q[i] * scale_q;
    const float d = ((p[i] - q[i]) * inverse_temperature - shift.high) - shift.low;
    const Term term = term_of<kind>(mass_p, mass_q, d, parameters);
    if constexpr (to_p) out_p[i] = weight * (term.slope_p - mass_p * mean_p);
    if constexpr (to_q) out_q[i] = weight * (term.slope_q - mass_q * mean_q);
  }
}

template <int kind, bool with_gradient, bool first_sweep>
static void rows_of_kind(RowTask& t) {
  const int64_t n = t.classes;
  const RowStatistics p = normalise(t.p, t.exp_p, n, t.inverse_temperature);
  const RowStatistics q = normalise(t.q, t.exp_q, n, t.inverse_temperature);
  const float scale_p = static_cast<float>(1.0 / p.sum), scale_q = static_cast<float>(1.0 / q.sum);
  // log p - log q = (a - b) / T - shift. The shift is subtracted in two parts, as float32 alone would round it.
  const double shift =
      (static_cast<double>(p.peak) - q.peak) * t.inverse_temperature + (std::log(p.sum) - std::log(q.sum));
  const float high = static_cast<float>(shift), low = static_cast<float>(shift - high);
  // The slopes of KL by log q, and of reverse KL by log p, sum to zero: these are written in the first sweep.
  // Not so when both gradients are wanted, which may overwrite what the second sweep has to read.
  constexpr bool q_is_free = kind == kKL, p_is_free = kind == kReverseKL;
  double value = 0, sum_p = 0, sum_q = 0, gap = 0;
  const float inverse_temperature = t.inverse_temperature, weight = t.weight * inverse_temperature;
  const float *logits_p = t.p, *logits_q = t.q, *exp_p = t.exp_p, *exp_q = t.exp_q;
  const KindParameters parameters = t.kind;
  float* out_p = t.gradient_p;
  float* out_q = t.gradient_q;
  for (int64_t start = 0; start < n; start += kBlock) {
    const int64_t stop = start + kBlock < n ? start + kBlock : n;
    float part = 0, part_p = 0, part_q = 0, part_gap = 0;
#pragma omp simd reduction(+ : part, part_p, part_q, part_gap)
    for (int64_t i = start; i < stop; ++i) {
      const float mass_p = exp_p[i] * scale_p, mass_q = exp_q[i] * scale_q;
      const float d = ((logits_p[i] - logits_q[i]) * inverse_temperature - high) - low;
      const Term term = term_of<kind>(mass_p, mass_q, d, parameters);
      part += term.value;
      part_p += term.slope_p;
      part_q += term.slope_q;
      if constexpr (kind == kTotalVariation) part_gap += excess_q(mass_p, mass_q, d);
      if constexpr (with_gradient) {
        if constexpr (first_sweep && q_is_free) out_q[i] = weight * term.slope_q;
        if constexpr (first_sweep && p_is_free) out_p[i] = weight * term.slope_p;
      }
    }
    value += part;
    sum_p += part_p;
    sum_q += part_q;
    gap += part_gap;
  }
  // The rounding of `shift` shows in that q - p does not sum to zero. Only this kind feels it in first order.
  if constexpr (kind == kTotalVariation) value -= gap * sum_q;
  t.value = value > 0 ? value : (value == value ? 0.0 : value);
  if constexpr (with_gradient) {
    const Shift shift_parts{high, low};
    const float mean_p = static_cast<float>(sum_p), mean_q = static_cast<float>(sum_q);
    if (t.gradient_p && t.gradient_q) {
      write_gradient<kind, true, true>(t, scale_p, scale_q, shift_parts, mean_p, mean_q);
    } else if (t.gradient_p && !(first_sweep && p_is_free)) {
      write_gradient<kind, true, false>(t, scale_p, scale_q, shift_parts, mean_p, mean_q);
    } else if (t.gradient_q && !(first_sweep && q_is_free)) {
      write_gradient<kind, false, true>(t, scale_p, scale_q, shift_parts, mean_p, mean_q);
    }
  }
}

template <int kind>
static void rows_of(RowTask& t) {
  const bool only_q = kind == kKL && t.gradient_q && !t.gradient_p;
  const bool only_p = kind == kReverseKL && t.gradient_p && !t.gradient_q;
  if (only_q || only_p) {
    rows_of_kind<kind, true, true>(t);
  } else if (t.gradient_p || t.gradient_q) {
    rows_of_kind<kind, true, false>(t);
  } else {
    rows_of_kind<kind, false, false>(t);
  }
}

static void compute_floats(RowTask& t) {
  switch (t.kind.kind) {
    case kKL: return rows_of<kKL>(t);
    case kReverseKL: return rows_of<kReverseKL>(t);
    case kJeffreys: return rows_of<kJeffreys>(t);
    case kTotalVariation: return rows_of<kTotalVariation>(t);
    default: return rows_of<kMixture>(t);
  }
}

KULLBACK_INLINE float widen(uint16_t x) {  // bfloat16 is the upper half of float32
  const uint32_t bits = static_cast<uint32_t>(x) << 16;
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

// float16, in integers, which the compiler vectorises: 2^112 moves the exponent, also of subnormal numbers.
KULLBACK_INLINE float widen_half(uint16_t x) {
  const uint32_t magnitude = x & 0x7fffu;
  const uint32_t moved = magnitude << 13;
  float value;
  std::memcpy(&value, &moved, sizeof value);
  value *= 5.192296858534828e33f;
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  bits = (magnitude >= 0x7c00u ? (moved | 0x7f800000u) : bits) | (static_cast<uint32_t>(x & 0x8000u) << 16);
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

KULLBACK_INLINE uint16_t to_bfloat16(float x) {  // to nearest, ties to even
  uint32_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  const uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  return static_cast<uint16_t>(x != x ? 0x7fc0u : rounded);
}

static const float* load(const RowView& x, int64_t n, float* scratch) {
  if (x.dtype == kFloat32) {
    const float* from = static_cast<const float*>(x.data);
    if (x.stride == 1) return from;
    for (int64_t i = 0; i < n; ++i) scratch[i] = from[i * x.stride];
  } else if (x.dtype == kBFloat16) {
    const uint16_t* from = static_cast<const uint16_t*>(x.data);
    if (x.stride == 1) {
#pragma omp simd
      for (int64_t i = 0; i < n; ++i) scratch[i] = widen(from[i]);
    } else {
      for (int64_t i = 0; i < n; ++i) scratch[i] = widen(from[i * x.stride]);
    }
  } else {
    const uint16_t* from = static_cast<const uint16_t*>(x.data);
    if (x.stride == 1) {
#pragma omp simd
      for (int64_t i = 0; i < n; ++i) scratch[i] = widen_half(from[i]);
    } else {
      for (int64_t i = 0; i < n; ++i) scratch[i] = widen_half(from[i * x.stride]);
    }
  }
  return scratch;
}

static void store(const float* row, int64_t n, const RowView& x) {
  if (x.dtype == kBFloat16) {
    uint16_t* to = static_cast<uint16_t*>(x.data);
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) to[i] = to_bfloat16(row[i]);
  } else if (x.dtype == kFloat16) {
    _Float16* to = static_cast<_Float16*>(x.data);
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) to[i] = static_cast<_Float16>(row[i]);
  } else if (x.data != row) {
    std::memcpy(x.data, row, n * sizeof(float));
  }
}

// Logits of half precision are widened into scratch, which then takes the gradient before it is rounded once.
void compute_row(const RowViews& v, RowTask& t, float* scratch) {
  const int64_t n = t.classes;
  t.exp_p = scratch;
  t.exp_q = scratch + n;
  t.p = load(v.p, n, scratch + 2 * n);
  t.q = load(v.q, n, scratch + 3 * n);
  const auto target = [&](const RowView& out, float* buffer) -> float* {
    if (!out.data) return nullptr;
    return out.dtype == kFloat32 ? static_cast<float*>(out.data) : buffer;
  };
  t.gradient_p = target(v.gradient_p, scratch + 2 * n);
  t.gradient_q = target(v.gradient_q, scratch + 3 * n);
  compute_floats(t);
  if (t.weight == 0.0f) {  // such a row gives 0 whatever it holds
    if (t.gradient_p) std::memset(t.gradient_p, 0, n * sizeof(float));
    if (t.gradient_q) std::memset(t.gradient_q, 0, n * sizeof(float));
  }
  if (t.gradient_p) store(t.gradient_p, n, v.gradient_p);
  if (t.gradient_q) store(t.gradient_q, n, v.gradient_q);
}

}  // namespace KULLBACK_ISA
}  // namespace kullback
