// What one class adds to a divergence, and the derivatives of that by log p and log q.
//
// With d = log p - log q, every divergence is a sum of non-negative terms (see kullback/generators). Where |d| is
// small the terms are power series in d, elsewhere they come from p and q themselves.
#pragma once
#include "row_kernel_api.h"
#include "row_math.h"

namespace kullback {
namespace KULLBACK_ISA {

// The kinds of the interface, and special cases of kMixture: one side only, and Jensen-Shannon with equal shares.
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
};

template <class Real>
KULLBACK_INLINE Real finite_or_zero(Real x) {
  return (x == kInf<Real> || x == -kInf<Real> || x != x) ? Real(0) : x;
}

// p * x with 0 * inf = 0.
template <class Real>
KULLBACK_INLINE Real times(Real mass, Real x) {
  return mass == 0 ? Real(0) : mass * x;
}

template <class Real>
KULLBACK_INLINE bool is_near(Real d) {
  return std::fabs(d) < Real(0.3);
}

// q - p, to full relative precision also where they agree. d is NaN where both are 0.
template <class Real>
KULLBACK_INLINE Real excess_q(Real p, Real q, Real d) {
  return is_near(d) ? p * expm1_of_minus(is_near(d) ? d : Real(0)) : q - p;
}

// p (e^-x - 1 + x), where gap = p (e^-x - 1).
template <class Real>
KULLBACK_INLINE Real relative_entropy(Real p, Real gap, Real x) {
  const bool near = std::fabs(x) < Real(0.7);
  return near ? p * bracket(near ? x : Real(0)) : gap + times(p, x);
}

// p (e^-d - 1 + d), one polynomial for it and for its derivative p (e^-d - 1).
template <class Real>
KULLBACK_INLINE Term<Real> kl_term(Real p, Real q, Real d) {
  const bool near = std::fabs(d) < Real(0.7);
  const Real x = near ? d : Real(0);
  const Real b = bracket(x);
  const Real excess = near ? p * (b - x) : q - p;
  return {near ? p * b : excess + times(p, d), times(p, finite_or_zero(d)), excess};
}

// KL(P || share P + rest Q) for 0 < share < 1.
template <class Real>
KULLBACK_INLINE Term<Real> skew_term(Real p, Real q, Real d, const Side<Real>& side) {
  const Real excess = excess_q(p, q, d);
  const Real share = side.share, rest = side.rest;
  // Less than this is lost in the sum, and its mixture might not be a normal number.
  const bool empty = p < (kIsWide<Real> ? Real(1e-290) : Real(1e-30f));
  const Real y = rest * excess / (empty ? Real(1) : p);  // the mixture is p (1 + y)
  const bool near = std::fabs(y) < Real(0.4);
  const Real mixture = share * p + rest * q;
  const Real large = log_of(empty ? Real(1) : p) - log_of(empty ? Real(1) : mixture);
  const Real x = empty ? -kInf<Real> : (near ? -log1p_near(near ? y : Real(0)) : large);
  const Real surplus = empty ? Real(-1) : -y / (1 + y);  // p / mixture - 1
  return {relative_entropy(empty ? Real(0) : p, rest * excess, x), empty ? Real(0) : p * (x - share * surplus),
          -rest * q * surplus};
}

// (KL(P || M) + KL(Q || M)) / 2 with M = (P + Q) / 2, from a = |p - q| / (p + q) = tanh(|d| / 2).
KULLBACK_INLINE Term<float> even_term(float p, float q, float d) {
  const float size = std::fabs(d) < 1e30f ? std::fabs(d) : 1e30f;  // finite, also where d is NaN: 0 masses times it
  const bool near = size < 1.0f;
  const float sum = p + q, least = p < q ? p : q;
  const float a = near ? tanh_of_half(near ? size : 0.0f) : std::fabs(p - q) / (sum + 1e-38f);
  const float log_greater = log1p_of_fraction(a);   // log of the greater of p and q, by the mixture
  const float log_lesser = log_greater - size;
  const float value = near ? sum * binary_information(near ? a * a : 0.0f) : sum * log_greater - least * size;
  const float log_p = d > 0.0f ? log_greater : log_lesser, log_q = d > 0.0f ? log_lesser : log_greater;
  return {0.5f * value, 0.5f * p * log_p, 0.5f * q * log_q};
}

template <int form, class Real>
KULLBACK_INLINE Term<Real> term_of(Real p, Real q, Real d, const Sides<Real>& sides) {
  if constexpr (form == kKLForm) {
    return kl_term(p, q, d);
  } else if constexpr (form == kReverseKLForm) {
    const Term<Real> swapped = kl_term(q, p, -d);
    return {swapped.value, swapped.derivative_q, swapped.derivative_p};
  }
  const Real excess = excess_q(p, q, d);
  if constexpr (form == kJeffreysForm) {
    const Real finite = finite_or_zero(d);
    return {times(-excess, d), times(p, finite) - excess, excess - times(q, finite)};
  } else if constexpr (form == kTotalVariationForm) {
    const Real sign = d > 0 ? Real(0.5) : (d < 0 ? Real(-0.5) : Real(0));
    return {Real(0.5) * std::fabs(excess), p * sign, -q * sign};
  } else if constexpr (form == kSkewForm) {
    const Term<Real> one = skew_term(p, q, d, sides.p);
    return {sides.p.weight * one.value, sides.p.weight * one.derivative_p, sides.p.weight * one.derivative_q};
  } else if constexpr (form == kEvenForm) {
    const Real weight = sides.p.weight + sides.q.weight;
    const Term<Real> one = even_term(p, q, d);
    return {weight * one.value, weight * one.derivative_p, weight * one.derivative_q};
  } else {  // a weighted sum of the skew divergences both ways
    const Term<Real> one = skew_term(p, q, d, sides.p);
    const Term<Real> two = skew_term(q, p, -d, sides.q);
    return {sides.p.weight * one.value + sides.q.weight * two.value,
            sides.p.weight * one.derivative_p + sides.q.weight * two.derivative_q,
            sides.p.weight * one.derivative_q + sides.q.weight * two.derivative_p};
  }
}

}  // namespace KULLBACK_ISA
}  // namespace kullback
