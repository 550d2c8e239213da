"""The term of one class in each divergence and its derivatives with respect to log p and log q, for the GPU kernel (as
in csrc/logits/terms.h and csrc/logits/power.h).

With d = log p - log q, every divergence is a sum of non-negative terms (see kullback/generators). Where |d| is small,
the terms are power series in d. Elsewhere the terms are computed from p and q. The log-ratio d is NaN where neither P
nor Q has mass, and infinite where only one of them has mass. The selections below give such classes their limits.

The exponential of base 2 is one instruction of the hardware. A division takes eight instructions. The inverse of a
positive number takes four: the square of its reciprocal square root, and one step of Newton's method.
"""

# Triton's language has no types, so the type checker cannot check a kernel's operators.
# pyright: reportUntypedFunctionDecorator=false, reportMissingParameterType=false, reportUnknownParameterType=false
# pyright: reportOperatorIssue=false, reportArgumentType=false, reportIndexIssue=false, reportCallIssue=false
# pyright: reportGeneralTypeIssues=false, reportAttributeAccessIssue=false

from __future__ import annotations

import triton
import triton.language as tl

from kullback.kernels.triton.forms import Form

KL = tl.constexpr(Form.KL.value)
REVERSE_KL = tl.constexpr(Form.REVERSE_KL.value)
JEFFREYS = tl.constexpr(Form.JEFFREYS.value)
TOTAL_VARIATION = tl.constexpr(Form.TOTAL_VARIATION.value)
MIXTURE = tl.constexpr(Form.MIXTURE.value)
SKEW = tl.constexpr(Form.SKEW.value)
EVEN = tl.constexpr(Form.EVEN.value)
POWER = tl.constexpr(Form.POWER.value)
RENYI = tl.constexpr(Form.RENYI.value)
INF = tl.constexpr(float("inf"))
_LOG2_E = tl.constexpr(1.4426950408889634)
_LOG_2 = tl.constexpr(0.6931471805599453)


@triton.jit
def expm1_minus_x(x):
    """Return e^x - 1 - x for |x| < 0.7, by the Chebyshev fit of csrc/common/math.h."""
    s = tl.fma(x, 2.48799707078e-5, 0.000200780475315)
    s = tl.fma(s, x, 0.00138894721227)
    s = tl.fma(s, x, 0.0083327553582)
    s = tl.fma(s, x, 0.0416666489116)
    s = tl.fma(s, x, 0.166666701773)
    s = tl.fma(s, x, 0.500000000575)
    return s * (x * x)


@triton.jit
def small_expm1(x):
    """Return e^x - 1 for |x| < 0.35, by the Chebyshev fit of csrc/common/math.h."""
    s = tl.fma(x, 0.0013947582254, 0.00836723928958)
    s = tl.fma(s, x, 0.0416662667544)
    s = tl.fma(s, x, 0.166665380717)
    s = tl.fma(s, x, 0.500000006566)
    return tl.fma(s, x * x, x)


@triton.jit
def inverse(x):
    """Return 1 / x for 1e-37 < x < 1e37, after one step of Newton's method."""
    root = tl.math.rsqrt(x)
    y = root * root
    return tl.fma(tl.fma(-x, y, 1.0), y, y)


@triton.jit
def finite(d):
    """Return `d`, or 0 where `d` is infinite or NaN."""
    return tl.where(tl.abs(d) < INF, d, 0.0)


@triton.jit
def difference_of(p, q, d):
    """Return q - p to full relative precision, even where p and q are nearly equal."""
    return tl.where(tl.abs(d) < 0.3, p * small_expm1(-d), q - p)


@triton.jit
def _kl_term(p, q, d):
    """Return the term p (e^-d - 1 + d) and q - p, both from one polynomial. The term is infinite, or NaN if p
    underflows to 0, where P has mass and Q has none.
    """
    near = tl.abs(d) < 0.7
    bracket = expm1_minus_x(-d)
    difference = tl.where(near, p * (bracket - d), q - p)
    far = tl.fma(p, tl.where(d > -INF, d, 0.0), difference)
    return tl.where(near, p * bracket, far), difference


@triton.jit
def _log1p(y, w):
    """Return log(1 + y) from y and w = 1 + y > 0, each to full relative precision."""
    # Let w = 2^n (1 + f) with 2/3 <= 1 + f < 4/3. Then log(1 + f) is log((1 + s) / (1 - s)) with s = f / (2 + f).
    bits = w.to(tl.int32, bitcast=True)
    n = (bits - 0x3F2AAAAB) >> 23
    f = tl.where(n == 0, y, (bits - (n << 23)).to(tl.float32, bitcast=True) - 1.0)
    s = f * inverse(2.0 + f)
    z = s * s
    t = tl.fma(z, 1 / 9, 1 / 7)
    t = tl.fma(t, z, 1 / 5)
    t = tl.fma(t, z, 1 / 3)
    log = tl.fma(2.0 * s * z, t, 2.0 * s)
    return tl.fma(n.to(tl.float32), _LOG_2, log)


@triton.jit
def _mixed(p, q, d, share, rest):
    """Return the term of KL(P || share P + rest Q) for 0 < share < 1, x = log(p / mixture), w = mixture / p, w - 1, and
    q - p.
    """
    bounded = tl.where(d > -80.0, d, -80.0)  # beyond, p is too small to change the sum
    near = tl.abs(d) < 0.7
    power = tl.exp2(bounded * -_LOG2_E)
    expm1 = tl.where(near, expm1_minus_x(-d) - d, power - 1.0)  # q / p - 1
    difference = tl.where(near, p * expm1, q - p)
    y, w = rest * expm1, tl.fma(rest, power, share)
    x = -_log1p(y, w)
    # In both forms, the error of a mass or of the power is negligible.
    far = tl.where(d > -16.0, p * (y + x), tl.fma(p, x, rest * difference))
    term = tl.where(tl.abs(x) < 0.7, p * expm1_minus_x(-x), far)
    return term, x, w, y, difference


@triton.jit
def _even_term(p, q, d):
    """Return the term of (KL(P || M) + KL(Q || M)) / 2 with M = (P + Q) / 2, its derivatives, and q - p.

    Let a = |p - q| / (p + q) = tanh(|d| / 2) = (1 - e^-|d|) / (1 + e^-|d|). The logarithms of the masses divided by the
    mixture are log(1 + a) and log(1 - a) = log(1 + a) - |d|. The polynomials are the Chebyshev fits of
    csrc/logits/terms.h.
    """
    size = tl.where(tl.abs(d) < 1e30, tl.abs(d), 1e30)
    near = size < 1.0
    z = size * size
    t = tl.fma(z, 3.33017306e-05, -0.000413659232)
    t = tl.fma(t, z, 0.0041638324)
    t = tl.fma(t, z, -0.0416663103)
    t = tl.fma(t * z, size, 0.5 * size)
    power = tl.exp2(size * -_LOG2_E)
    rest = inverse(1.0 + power)
    a = tl.where(near, t, (1.0 - power) * rest)
    s = tl.fma(a, -0.00317605701, 0.0195425265)
    s = tl.fma(s, a, -0.0563736111)
    s = tl.fma(s, a, 0.105436236)
    s = tl.fma(s, a, -0.152696669)
    s = tl.fma(s, a, 0.196632743)
    s = tl.fma(s, a, -0.249516159)
    s = tl.fma(s, a, 0.333297104)
    s = tl.fma(s, a, -0.499998927)
    greater = tl.fma(s * a, a, a)
    lesser = greater - size
    z = a * a
    t = tl.fma(z, 0.0128303207, 0.00964485575)
    t = tl.fma(t, z, 0.018035451)
    t = tl.fma(t, z, 0.0333237574)
    t = tl.fma(t, z, 0.0833335221)
    t = tl.fma(t, z, 0.5)
    is_greater = d > 0.0
    by_p = 0.5 * p * tl.where(is_greater, greater, lesser)
    by_q = 0.5 * q * tl.where(is_greater, lesser, greater)
    total = p + q
    term = 0.5 * total * tl.where(near, t * z, tl.fma(-(power * rest), size, greater))
    difference = tl.where(is_greater, -a, a) * total
    return term, by_p, by_q, difference


@triton.jit
def _power_series(x, order):
    """Return (e^(order x) - 1 - order (e^x - 1)) / (order (order - 1) x^2) for |order x| < 0.3 and order >= 1/2."""
    # The coefficient of x^n is (1 + order + ... + order^n) / (n + 2)!.
    c1 = tl.fma(order, 1.0, 1.0)
    c2 = tl.fma(order, c1, 1.0)
    c3 = tl.fma(order, c2, 1.0)
    c4 = tl.fma(order, c3, 1.0)
    c5 = tl.fma(order, c4, 1.0)
    c6 = tl.fma(order, c5, 1.0)
    s = tl.fma(x, c6 * (1 / 40320), c5 * (1 / 5040))
    s = tl.fma(s, x, c4 * (1 / 720))
    s = tl.fma(s, x, c3 * (1 / 120))
    s = tl.fma(s, x, c2 * (1 / 24))
    s = tl.fma(s, x, c1 * (1 / 6))
    return tl.fma(s, x, 0.5)


@triton.jit
def _power_term(p, q, d, order, exponent):
    """Return the term of the power divergence, its derivatives, q - p, the affinity p^order q^-exponent, and a state.
    The state is 1 if the row needs the range of float64, or if the class makes the value infinite. Otherwise, it is 0.
    """
    log_power = exponent * d
    power = tl.exp2(tl.where(log_power < 80.0, log_power, 80.0) * _LOG2_E)
    change = p * tl.where(tl.abs(log_power) < 0.3, small_expm1(log_power), power - 1.0)
    difference = difference_of(p, q, d)
    box_cox = change * (1.0 / exponent)
    near = tl.abs(d) * order < 0.3
    term = tl.where(near, q * _power_series(d, order) * (d * d), (box_cox + difference) * (1.0 / order))
    by_q = (difference - change) * (1.0 / order)
    affinity = p * power
    # The exponential magnifies the rounding error of a large `log_power`, and p may underflow. If the affinity is
    # small, neither matters.
    is_large = (
        ((log_power > 16.0) & (affinity > 1e-3)) | ((log_power > 40.0) & (p < 1e-34)) | (log_power > 80.0)
    )
    state = tl.where((exponent > 0.0) & is_large, 1, 0)
    return term, box_cox, by_q, difference, affinity, state


@triton.jit
def wide_power_term(log_p, log_q, d, order, exponent):
    """Return what `_power_term` returns, in float64, with the logarithm of the affinity in place of the affinity. The
    power of p / q may overflow, and p may underflow. The state is 1 if the class makes the value infinite. Such a class
    has derivatives of 0.
    """
    p, q = tl.exp(log_p), tl.exp(log_q)
    log_power = exponent * d
    log_affinity = tl.where(log_p == -INF, -INF, log_p + log_power)
    is_infinite = (d == INF) & (exponent > 0.0)
    is_large = log_power > 1.0
    argument = tl.where(is_large, log_affinity, log_power)
    power = tl.exp(tl.where(argument < 710.0, argument, tl.where(is_large, 710.0, 0.0)))
    expm1 = tl.where(tl.abs(log_power) < 0.3, small_expm1(log_power), power - 1.0)
    change = tl.where(is_infinite, 0.0, tl.where(is_large, power - p, p * expm1))
    difference = difference_of(p, q, d)
    near = tl.abs(d) * order < 0.3
    term = tl.where(near, q * _power_series(d, order) * (d * d), (change / exponent + difference) / order)
    bounded = tl.where(change > 1e290, 1e290, change)  # so that sums stay finite
    by_q = tl.where(is_infinite, 0.0, (difference - bounded) / order)
    state = tl.where(is_infinite, 1, 0)
    log_affinity = tl.where(is_infinite, -INF, log_affinity)
    return tl.where(is_infinite, INF, term), bounded / exponent, by_q, difference, log_affinity, state


@triton.jit
def term_of(p, q, d, numbers, FORM: tl.constexpr):
    """Return the term of each class, the derivatives of the term with respect to log p and log q, and q - p. For
    powers, also return the affinity and the state of `_power_term`.
    """
    weight_p, share_p, rest_p, weight_q, share_q, rest_q = numbers
    affinity, state = None, None
    if FORM == KL:
        term, difference = _kl_term(p, q, d)
        by_p, by_q = p * finite(d), difference
    elif FORM == REVERSE_KL:
        term, by_p = _kl_term(q, p, -d)
        by_q, difference = -q * finite(d), -by_p
    elif FORM == JEFFREYS:
        difference = difference_of(p, q, d)
        term = -difference * tl.where(d == d, d, 0.0)  # noqa: PLR0124 - only NaN differs from itself
        by_p, by_q = tl.fma(p, finite(d), -difference), tl.fma(-q, finite(d), difference)
    elif FORM == TOTAL_VARIATION:
        difference = difference_of(p, q, d)
        half = tl.where(d > 0.0, 0.5, tl.where(d < 0.0, -0.5, 0.0))
        term, by_p, by_q = tl.abs(difference), p * half, -q * half
    elif FORM == EVEN:
        term, by_p, by_q, difference = _even_term(p, q, d)
        weight = weight_p + weight_q
        term, by_p, by_q = weight * term, weight * by_p, weight * by_q
    elif FORM == SKEW:
        term, x, w, y, difference = _mixed(p, q, d, share_p, rest_p)
        ratio_minus_1 = -y * inverse(w)  # p / mixture - 1
        term, by_p = weight_p * term, weight_p * p * tl.fma(-share_p, ratio_minus_1, x)
        by_q = -weight_p * rest_p * q * ratio_minus_1
    elif FORM == MIXTURE:  # both sides have one mixture, and the derivatives of its logarithm cancel
        term_p, x, _, _, difference = _mixed(p, q, d, share_p, rest_p)
        term_q, y, _, _, _ = _mixed(q, p, -d, share_q, rest_q)
        term, by_p, by_q = tl.fma(weight_p, term_p, weight_q * term_q), weight_p * p * x, weight_q * q * y
    else:
        term, by_p, by_q, difference, affinity, state = _power_term(p, q, d, share_p, weight_q)
    return term, by_p, by_q, difference, affinity, state
