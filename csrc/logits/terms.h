// The term of one class in a divergence, and the term's derivatives with respect to log p and log q.
//
// With d = log p - log q, every divergence is a sum of non-negative terms (see kullback/generators). Where |d| is
// small, the terms are power series in d. Elsewhere they are computed from p and q.
#pragma once
#include "../common/math.h"
#include "task.h"

namespace kullback {
namespace KULLBACK_ISA {

// The divergences of `DivergenceCode` that are not powers, and two special cases of a mixture: kSkewForm with weight 0
// on Q's side, and kEvenForm with equal weights and shares of 1/2.
enum Form { kKLForm, kReverseKLForm, kJeffreysForm, kTotalVariationForm, kMixtureForm, kSkewForm, kEvenForm };

template <class Real>
struct Side {
  Real weight, share, rest;

  explicit Side(const Mixing& m)
      : weight(static_cast<Real>(m.weight)), share(static_cast<Real>(m.share)), rest(static_cast<Real>(m.rest)) {}
};

template <class Real>
struct Sides {
  Side<Real> p, q;
};

template <class Real>
struct Term {
  Real value;    // the non-negative term
  Real derivative_p;  // its derivative by log p
  Real derivative_q;  // its derivative by log q
  Real difference;    // q - p
};

template <class Real>
KULLBACK_INLINE Real finite_or_zero(Real x) {
  return (x == kInf<Real> || x == -kInf<Real> || x != x) ? Real(0) : x;
}

// p * x, with 0 * inf = 0.
template <class Real>
KULLBACK_INLINE Real times(Real mass, Real x) {
  return mass == 0 ? Real(0) : mass * x;
}

// q - p to full relative precision, even where p and q are close. d is NaN where p = q = 0.
template <class Real>
KULLBACK_INLINE Real difference_of(Real p, Real q, Real d) {
  const bool near = std::fabs(d) < Real(0.3);
  const Real x = near ? -d : Real(0);
  return near ? p * (small_expm1_minus_x(x) + x) : q - p;
}

// p (e^-x - 1 + x), where difference = p (e^-x - 1).
template <class Real>
KULLBACK_INLINE Real relative_entropy(Real p, Real difference, Real x) {
  const bool near = std::fabs(x) < Real(0.7);
  return near ? p * expm1_minus_x(near ? -x : Real(0)) : difference + times(p, x);
}

// p (e^-d - 1 + d). One polynomial gives both the term and its derivative p (e^-d - 1).
template <class Real>
KULLBACK_INLINE Term<Real> kl_term(Real p, Real q, Real d) {
  const bool near = std::fabs(d) < Real(0.7);
  const Real x = near ? -d : Real(0);
  const Real bracket = expm1_minus_x(x);
  const Real difference = near ? p * (bracket + x) : q - p;
  return {near ? p * bracket : difference + times(p, d), times(p, finite_or_zero(d)), difference, difference};
}

// KL(P || share P + rest Q) for 0 < share < 1.
template <class Real>
KULLBACK_INLINE Term<Real> skew_term(Real p, Real q, Real d, const Side<Real>& side) {
  const Real difference = difference_of(p, q, d);
  const Real share = side.share, rest = side.rest;
  // Masses below this bound do not change the sum, and their mixture might be subnormal.
  const bool empty = p < (kIsDouble<Real> ? Real(1e-290) : Real(1e-30f));
  const Real y = rest * difference / (empty ? Real(1) : p);  // the mixture is p (1 + y)
  const bool near = std::fabs(y) < Real(0.4);
  const Real mixture = share * p + rest * q;
  const Real large = log_of_quotient(empty ? Real(1) : p, empty ? Real(1) : mixture);
  const Real x = empty ? -kInf<Real> : (near ? -small_log1p(near ? y : Real(0)) : large);
  const Real ratio_minus_1 = empty ? Real(-1) : -y / (1 + y);  // p / mixture - 1
  return {relative_entropy(empty ? Real(0) : p, rest * difference, x),
          empty ? Real(0) : p * (x - share * ratio_minus_1), -rest * q * ratio_minus_1, difference};
}

// log(1 + a) for 0 <= a <= 1, by a Chebyshev fit of log(1 + a) / a.
KULLBACK_INLINE float log1p_of_fraction(float a) {
  constexpr float series[] = {-0.499998927f, 0.333297104f,   -0.249516159f, 0.196632743f,
                              -0.152696669f, 0.105436236f, -0.0563736111f, 0.0195425265f, -0.00317605701f};
  return polynomial(series, a) * a * a + a;
}

// tanh(x / 2) for 0 <= x <= 1, by a Chebyshev fit of tanh(x / 2) / x in x^2.
KULLBACK_INLINE float tanh_of_half(float x) {
  constexpr float series[] = {-0.0416663103f, 0.0041638324f, -0.000413659232f, 3.33017306e-05f};
  return x * (x * x) * polynomial(series, x * x) + 0.5f * x;
}

// ((1 + a) log(1 + a) + (1 - a) log(1 - a)) / 2 for |a| < 0.47 and z = a^2, by a Chebyshev fit of its quotient by z.
KULLBACK_INLINE float binary_information(float z) {
  constexpr float series[] = {0.5f, 0.0833335221f, 0.0333237574f, 0.018035451f, 0.00964485575f, 0.0128303207f};
  return polynomial(series, z) * z;
}

// (KL(P || M) + KL(Q || M)) / 2 with M = (P + Q) / 2, from a = |p - q| / (p + q) = tanh(|d| / 2).
KULLBACK_INLINE Term<float> even_term(float p, float q, float d) {
  const float size = std::fabs(d) < 1e30f ? std::fabs(d) : 1e30f;  // finite even where d is NaN (p = q = 0)
  const bool near = size < 1.0f;
  const float sum = p + q, least = p < q ? p : q;
  const float a = near ? tanh_of_half(near ? size : 0.0f) : std::fabs(p - q) / (sum + 1e-38f);
  const float log_greater = log1p_of_fraction(a);   // log(max(p, q) / mixture)
  const float log_lesser = log_greater - size;
  const float value = near ? sum * binary_information(near ? a * a : 0.0f) : sum * log_greater - least * size;
  const float log_p = d > 0.0f ? log_greater : log_lesser, log_q = d > 0.0f ? log_lesser : log_greater;
  return {0.5f * value, 0.5f * p * log_p, 0.5f * q * log_q, std::copysign(a * sum, -d)};
}

template <int form, class Real>
KULLBACK_INLINE Term<Real> term_of(Real p, Real q, Real d, const Sides<Real>& sides) {
  if constexpr (form == kKLForm) {
    return kl_term(p, q, d);
  } else if constexpr (form == kReverseKLForm) {
    const Term<Real> swapped = kl_term(q, p, -d);
    return {swapped.value, swapped.derivative_q, swapped.derivative_p, -swapped.difference};
  }
  const Real difference = difference_of(p, q, d);
  if constexpr (form == kJeffreysForm) {
    const Real finite = finite_or_zero(d);
    return {times(-difference, d), times(p, finite) - difference, difference - times(q, finite), difference};
  } else if constexpr (form == kTotalVariationForm) {
    const Real sign = d > 0 ? Real(0.5) : (d < 0 ? Real(-0.5) : Real(0));
    return {Real(0.5) * std::fabs(difference), p * sign, -q * sign, difference};
  } else if constexpr (form == kSkewForm) {
    const Term<Real> one = skew_term(p, q, d, sides.p);
    return {sides.p.weight * one.value, sides.p.weight * one.derivative_p, sides.p.weight * one.derivative_q,
            difference};
  } else if constexpr (form == kEvenForm) {
    const Real weight = sides.p.weight + sides.q.weight;
    const Term<Real> one = even_term(p, q, d);
    return {weight * one.value, weight * one.derivative_p, weight * one.derivative_q, one.difference};
  } else {  // the weighted sum of both sides' skew divergences from a mixture
    const Term<Real> one = skew_term(p, q, d, sides.p);
    const Term<Real> two = skew_term(q, p, -d, sides.q);
    return {sides.p.weight * one.value + sides.q.weight * two.value,
            sides.p.weight * one.derivative_p + sides.q.weight * two.derivative_q,
            sides.p.weight * one.derivative_q + sides.q.weight * two.derivative_p, difference};
  }
}

}  // namespace KULLBACK_ISA
}  // namespace kullback
