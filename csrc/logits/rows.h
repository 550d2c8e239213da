// Functions that convert rows of logits of P and Q to probabilities and log-ratios, and derivatives with respect to
// log-probabilities to gradients. Also the cross-entropy of a row with its label.
#pragma once
#include "../common/convert.h"
#include "task.h"

namespace kullback {
namespace KULLBACK_ISA {

// Within a block, sums are in `Real`. The sums of blocks are added in float64. In float32, a sum of 1024 terms of one
// sign has a relative error of at most 1024 half units in the last place, 6e-5. It is usually 1e-6.
constexpr int64_t kBlock = 1024;

// The memory of the next row to read, or of the next gradient to write. It is prefetched in parts while the
// exponentials are computed, because the following loop would otherwise wait for the memory.
struct Upcoming {
  const char* data;  // null for none
  int64_t element_bytes;
};

constexpr int64_t kPart = 256;  // the number of classes between two prefetches: 16 cache lines of float32

template <bool is_written>
KULLBACK_INLINE void fetch(const Upcoming& x, int64_t start, int64_t stop) {
  if (!x.data) return;
  constexpr int64_t line = 64;
  constexpr int cache = is_written ? 3 : 2;  // the first level, or the second
  const char* end = x.data + stop * x.element_bytes;
  for (const char* at = x.data + start * x.element_bytes; at < end; at += line) __builtin_prefetch(at, is_written, cache);
}

// The memory of a row. A gradient that was not requested is null. A gradient may share memory with the logits of the
// same side.
template <class Real>
struct Row {
  const Real* p;
  const Real* q;
  Real* exp_p;
  Real* exp_q;
  Real *spare_p, *spare_q;  // may share memory with the logits or the gradient of that side
  Real* affinities;         // only for Renyi's divergence
  Real *gradient_p, *gradient_q;
  Upcoming next_p, next_q, target_p, target_q;
};

struct Statistics {
  double peak;
  double sum;
};

template <class Real>
KULLBACK_INLINE Real peak_of(const Real* x, int64_t n) {
  Real peak = -kInf<Real>;
  int64_t start = 0;
#ifdef __clang__  // Clang vectorizes an array of maxima, but not one maximum of numbers that may be NaN
  constexpr int lanes = 256 / sizeof(Real);
  Real peaks[lanes];
  for (Real& lane : peaks) lane = -kInf<Real>;
  for (; start + lanes <= n; start += lanes) {
#pragma clang loop unroll(full)
    for (int j = 0; j < lanes; ++j) peaks[j] = x[start + j] > peaks[j] ? x[start + j] : peaks[j];
  }
  for (Real lane : peaks) peak = lane > peak ? lane : peak;
#endif
#pragma omp simd reduction(max : peak)
  for (int64_t i = start; i < n; ++i) peak = x[i] > peak ? x[i] : peak;
  return peak;
}

// Returns the peak and the sum of exponentials of one row, and writes the exponentials to `e`.
template <class Real>
KULLBACK_INLINE Statistics normalize(const Real* x, Real* e, int64_t n, Real inverse_temperature) {
  const Real peak = peak_of(x, n);
  double sum = 0;
  for (int64_t start = 0; start < n; start += kBlock) {
    const int64_t stop = start + kBlock < n ? start + kBlock : n;
    Real part = 0;
#pragma omp simd reduction(+ : part)
    for (int64_t i = start; i < stop; ++i) {
      const Real value = exp_of_negative((x[i] - peak) * inverse_temperature);
      e[i] = value;
      part += value;
    }
    sum += part;
  }
  return {peak, sum};
}

// Sets the peaks of P and Q in one sweep over the classes.
template <class Real>
KULLBACK_INLINE void find_peaks(const Real* x, const Real* y, int64_t n, Statistics& p, Statistics& q) {
#ifdef __clang__
  const Real peak_p = peak_of(x, n), peak_q = peak_of(y, n);
#else
  Real peak_p = -kInf<Real>, peak_q = -kInf<Real>;
#pragma omp simd reduction(max : peak_p, peak_q)
  for (int64_t i = 0; i < n; ++i) {
    peak_p = x[i] > peak_p ? x[i] : peak_p;
    peak_q = y[i] > peak_q ? y[i] : peak_q;
  }
#endif
  p = {peak_p, 0};
  q = {peak_q, 0};
}

// Writes the exponentials of P's and Q's logits relative to the peaks, and sums them, in one sweep over the classes.
// The computations for P and Q do not depend on each other, so the processor overlaps them. `at_one` means that the
// temperature is 1.
template <bool at_one, class Real>
KULLBACK_INLINE void exponentials_of_both(const Row<Real>& row, int64_t n, Real inverse_temperature, Statistics& p,
                                          Statistics& q) {
  const Real *x = row.p, *y = row.q;
  Real *e = row.exp_p, *f = row.exp_q;
  const Real peak_p = static_cast<Real>(p.peak), peak_q = static_cast<Real>(q.peak);
  for (int64_t start = 0; start < n; start += kPart) {
    const int64_t stop = start + kPart < n ? start + kPart : n;
    Real part_p = 0, part_q = 0;
    fetch<false>(row.next_p, start, stop);
    fetch<false>(row.next_q, start, stop);
    fetch<true>(row.target_p, start, stop);
    fetch<true>(row.target_q, start, stop);
#pragma omp simd reduction(+ : part_p, part_q)
    for (int64_t i = start; i < stop; ++i) {
      const Real below_p = x[i] - peak_p, below_q = y[i] - peak_q;
      const Real a = exp_of_negative(at_one ? below_p : below_p * inverse_temperature);
      const Real b = exp_of_negative(at_one ? below_q : below_q * inverse_temperature);
      e[i] = a;
      f[i] = b;
      part_p += a;
      part_q += b;
    }
    p.sum += part_p;
    q.sum += part_q;
  }
}

// Writes x - offset to `to`. Only where x is -inf is the result -inf, because smaller results are clamped.
template <class Real>
static const Real* shifted(const Real* x, Real offset, Real* to, int64_t n) {
  constexpr Real least = -std::numeric_limits<Real>::max();
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) {
    const Real moved = x[i] - offset;
    to[i] = (moved < least) & (x[i] >= least) ? least : moved;
  }
  return to;
}

// P and Q normalized, with log p - log q = (a - b) / T - high - low. The shift high + low has two parts, because one
// number would round it.
template <class Real>
struct Normalized {
  Statistics p, q;
  const Real *a, *b;
  Real peak_a;
  Real scale_p, scale_q, high, low;
  bool is_huge;  // a - b might overflow float32; then only p and q are set
};

template <class Real>
static Normalized<Real> normalize_both(const Row<Real>& row, const RowTask& t) {
  const int64_t n = t.classes;
  const Real inverse_temperature = static_cast<Real>(t.inverse_temperature);
  Normalized<Real> r;
  if (t.whole) {
    r.p = {t.whole->p.peak, 0};
    r.q = {t.whole->q.peak, 0};
  } else {
    find_peaks(row.p, row.q, n, r.p, r.q);
  }
  if (inverse_temperature == 1) {
    exponentials_of_both<true>(row, n, inverse_temperature, r.p, r.q);
  } else {
    exponentials_of_both<false>(row, n, inverse_temperature, r.p, r.q);
  }
  if (t.whole) {
    r.p.sum = t.whole->p.sum;
    r.q.sum = t.whole->q.sum;
  }
  const Real peak_p = static_cast<Real>(r.p.peak), peak_q = static_cast<Real>(r.q.peak);
  const Real huge = Real(kIsDouble<Real> ? 1e300 : 1e30);
  const bool is_huge = std::fabs(peak_p) > huge || std::fabs(peak_q) > huge;
  r.is_huge = is_huge && !kIsDouble<Real>;
  if (r.is_huge) return r;
  Real from_p = 0, from_q = 0;
  if (is_huge) {  // a - b might overflow
    from_p = peak_p;
    from_q = peak_q;
  } else if (std::fabs(peak_p - peak_q) > 4) {  // a - b would lose digits: shift the side that is farther from 0
    if (std::fabs(peak_p) > std::fabs(peak_q)) {
      from_p = peak_p - peak_q;
    } else {
      from_q = peak_q - peak_p;
    }
    const Real apart = (peak_p - from_p) - (peak_q - from_q);
    if (std::fabs(apart) * inverse_temperature > 1) {  // shifting one side was not enough, because of rounding
      from_p = peak_p;
      from_q = peak_q;
    }
  }
  r.a = from_p == 0 ? row.p : shifted(row.p, from_p, row.spare_p, n);
  r.b = from_q == 0 ? row.q : shifted(row.q, from_q, row.spare_q, n);
  r.peak_a = peak_p - from_p;
  const double rest = (r.p.peak - from_p) - (r.q.peak - from_q);
  const double shift = rest * t.inverse_temperature + std::log(r.p.sum / r.q.sum);
  r.high = static_cast<Real>(shift);
  r.low = static_cast<Real>(shift - r.high);
  r.scale_p = static_cast<Real>(1.0 / r.p.sum);
  r.scale_q = static_cast<Real>(1.0 / r.q.sum);
  return r;
}

// Arguments of `finish`: the sum of the derivatives with respect to log-probabilities, and the sum of their absolute
// values.
struct DerivativeSums {
  double sum = 0, size = 0;
};

template <class Real>
static void project(Real* derivatives, const Real* e, int64_t n, Real factor, Real weight) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) derivatives[i] = weight * (derivatives[i] - e[i] * factor);
}

// Returns the first class at the peak, or a number of at least n if there is no such class, as in a row of NaN.
template <class Real>
static int64_t top_of(const Real* e, int64_t n) {
  int64_t top = 0;
  for (bool is_inside = false; !is_inside && top < n; top += is_inside ? 0 : kBlock) {
    const int64_t stop = top + kBlock < n ? top + kBlock : n;
    typename Format<Real>::Bits has_one = 0;
#pragma omp simd reduction(| : has_one)
    for (int64_t i = top; i < stop; ++i) has_one |= e[i] == 1 ? 1 : 0;
    is_inside = has_one != 0;
    while (is_inside && e[top] != 1) ++top;
  }
  return top;
}

// Returns the sums for P or for Q over the classes of a call, with the derivatives multiplied by `factor`.
template <class Real>
static PartSums sums_of_part(const Real* derivatives, const Real* e, int64_t n, Real scale, double factor) {
  const Real limit = scale > Real(0.5) ? Real(1) : kInf<Real>;  // the class with more than half of the mass has e^0
  double others = 0, top = 0, mass = 0;
#pragma omp simd reduction(+ : others, top, mass)
  for (int64_t i = 0; i < n; ++i) {
    const bool is_other = e[i] < limit;
    others += is_other ? derivatives[i] : Real(0);
    top += is_other ? Real(0) : derivatives[i];
    mass += is_other ? e[i] : Real(0);
  }
  return {factor * others, factor * top, scale * mass};
}

// Converts derivatives with respect to log-probabilities to a gradient with respect to logits, with the sums of the
// whole row. The entry of a class with more than half of the mass would be a difference of nearly equal numbers, so it
// is computed from the sums over the other classes.
template <class Real>
static void project_part(Real* derivatives, const Real* e, int64_t n, Real scale, const PartSums& of_row, double factor,
                         double weight) {
  const double sum = of_row.others + of_row.top;
  project(derivatives, e, n, static_cast<Real>(scale * sum / factor), static_cast<Real>(weight * factor));
  const int64_t top = scale > Real(0.5) ? top_of(e, n) : n;
  if (top < n) derivatives[top] = static_cast<Real>(weight * (of_row.mass * sum - of_row.others));
}

// Returns the sum of a row. The sums of blocks are added in float64.
template <class Real>
static double sum_in_blocks(const Real* x, int64_t n) {
  double sum = 0;
  for (int64_t start = 0; start < n; start += kBlock) {
    const int64_t stop = start + kBlock < n ? start + kBlock : n;
    Real part = 0;
#pragma omp simd reduction(+ : part)
    for (int64_t i = start; i < stop; ++i) part += x[i];
    sum += part;
  }
  return sum;
}

// Like `project`, but the entry of the class with the most mass is minus the sum of the other entries, because a row
// sums to zero. Computed directly, that entry would be a difference of nearly equal numbers.
template <class Real>
static void project_accurately(Real* derivatives, const Real* e, int64_t n, double factor, double weight) {
  const int64_t top = top_of(e, n);
  project(derivatives, e, n, static_cast<Real>(factor), static_cast<Real>(weight));
  if (top >= n) return;  // a row of NaN
  derivatives[top] = 0;
  derivatives[top] = static_cast<Real>(-sum_in_blocks(derivatives, n));
}

// Converts derivatives with respect to log-probabilities to a gradient with respect to logits. Derivatives that sum to
// zero were already written as the gradient. Their computed sum is a rounding error of the normalization, which matters
// where P and Q are close.
template <bool at_once, class Real>
static void finish(Real* derivatives, const Real* e, int64_t n, Real scale, DerivativeSums sums, Real weight) {
  const Real factor = scale * static_cast<Real>(sums.sum);
  if constexpr (!at_once) {
    project(derivatives, e, n, factor, weight);
  } else if (std::fabs(sums.sum) > (kIsDouble<Real> ? 1e-15 : 1e-6) * sums.size) {
    project(derivatives, e, n, weight * factor, Real(1));
  }
}

// The cross-entropy of a row with its true class, which equals KL(one-hot || softmax(logits)).
struct CrossEntropy {
  double value;
  double sum;     // the sum of the exponentials
  double others;  // the probability of all classes except the label
};

// Computes the cross-entropy from exponentials relative to the row's peak, where `below` is the peak minus the label's
// logit. No nearly equal numbers are subtracted, because the other classes are summed without the label.
template <class Real>
static CrossEntropy cross_entropy_of(Real* e, int64_t n, int64_t label, double below) {
  const Real own = e[label];
  e[label] = 0;
  const double others = sum_in_blocks(e, n);
  e[label] = own;
  const double sum = others + own;
  return {below == 0 ? std::log1p(others) : std::log(sum) + below, sum, others / sum};
}

// Calls `sweep` with two constants: whether the gradients with respect to P and to Q are requested.
template <class Real, class Sweep>
static void sweep_as_requested(const Row<Real>& row, const Sweep& sweep) {
  constexpr std::true_type yes;
  constexpr std::false_type no;
  if (row.gradient_p && row.gradient_q) return sweep(yes, yes);
  if (row.gradient_p) return sweep(yes, no);
  if (row.gradient_q) return sweep(no, yes);
  return sweep(no, no);
}

}  // namespace KULLBACK_ISA
}  // namespace kullback
