"""Special functions with full precision, even where the plain formula subtracts nearly equal numbers.

The Bregman divergence of a convex f from a to b is f(b) - f(a) - (b - a) f'(a). KL within an exponential family is such
a divergence. The functions of this module compute Bregman divergences as sums of non-negative terms.

Most functions have two branches: a short series or quadrature rule for nearly equal arguments, and the plain formula
for other arguments. `torch.where` computes both branches and selects one. The branch that is not selected must not
overflow, because its gradient would be 0 * inf = NaN. Therefore each branch gets arguments clamped to its range.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

EULER_GAMMA = 0.57721566490153286061
HALF_LOG_2PI = math.log(2 * math.pi) / 2

LARGEST_EXPONENT = 709.0
"""The logarithm of the largest float64, rounded down."""
# `expm1mx` uses the series e^d - 1 - d = d^2 (1/2 + d/6 + d^2/24 + ...) for |d| up to 0.004. At this bound, the omitted
# terms of the series and the cancellation in the plain formula both cost about three of sixteen digits.
_EXPM1MX_NEAR = 0.004
_EXPM1MX = (1 / 2, 1 / 6, 1 / 24, 1 / 120)
# `itakura_saito` uses the series 2 atanh(u) - 2u = u^3 (2/3 + 2 u^2/5 + 2 u^4/7 + ...) for |u| up to 0.02. The omitted
# terms are then below 1e-13 times the result.
_ATANH_NEAR = 0.02
_ATANH = (2 / 3, 2 / 5, 2 / 7)
# Stirling's series is lgamma(x) = (x - 1/2) log x - x + log(2 pi) / 2 + sum_k c_k x^-(2k - 1). For x above `_FAR`, the
# terms after the coefficients c_k in `_STIRLING` are below float64's last digit. The other two tuples are the
# coefficients of the first and the second derivative of the sum, up to the sign.
_FAR = 10.0
_STIRLING = (1 / 12, -1 / 360, 1 / 1260, -1 / 1680, 1 / 1188, -691 / 360360)
_STIRLING_DERIVATIVE = tuple((2 * k + 1) * c for k, c in enumerate(_STIRLING))
_STIRLING_CURVATURE = tuple((2 * k + 2) * c for k, c in enumerate(_STIRLING_DERIVATIVE))
# `_NODES` and `_WEIGHTS` are for Gaussian quadrature with four nodes on [0, 1] and the weight function 1 - t.
_NODES = (0.0571041961145176822, 0.276843013638123828, 0.58359043236891682, 0.860240135656219448)
_WEIGHTS = (0.135506913431488116, 0.203464568010271361, 0.129847547608232441, 0.0311809709500080822)
# `_EVEN_NODES` and `_EVEN_WEIGHTS` are for Gaussian quadrature with four nodes on [0, 1] and the weight function 1.
_EVEN_NODES = (0.0694318442029737124, 0.330009478207571868, 0.669990521792428132, 0.930568155797026288)
_EVEN_WEIGHTS = (0.173927422568726929, 0.326072577431273071, 0.326072577431273071, 0.173927422568726929)
# If |b - a| / (a + b) is below this bound, `stirling_bregman` uses quadrature with four nodes, which gives thirteen
# correct digits.
_RULE_NEAR = 0.05
# With these coefficients, -trigamma'(x) = (1 + y (1 + y (1/2 + ...))) y^2 at y = 1 / x. For x above `_FAR`, the omitted
# terms are below float64's last digits.
_TETRAGAMMA = (1, 1, 1 / 2, 0, -1 / 6, 0, 1 / 6, 0, -3 / 10, 0, 5 / 6)
# For x below this bound, x log x is negligible compared to log x, and 1 / x^2 may overflow.
_TINY = 1e-75
# `_EIN` has the coefficients of Ein(y) / y, where Ein(y) = y - y^2 / (2 2!) + y^3 / (3 3!) - ... For y up to 2, the
# omitted terms are below float64's last digit.
_EIN = tuple((-1) ** k / ((k + 1) * math.factorial(k + 1)) for k in range(26))
# A continued fraction of this depth gives E1(y) to float64's last digit for y >= 2.
_E1_DEPTH = 50


def polynomial(coefficients: Sequence[float], x: Tensor) -> Tensor:
    """Return c_0 + c_1 x + c_2 x^2 + ... by Horner's rule, for at least two coefficients."""
    total = x * coefficients[-1] + coefficients[-2]
    for c in reversed(coefficients[:-2]):
        total = total * x + c
    return total


def expm1mx(d: Tensor) -> Tensor:
    """Return e^d - 1 - d, which is x - 1 - log x at x = e^d.

    The result is non-negative, and 0 at d = 0. For d above 709, the result is +inf with derivative 0.
    """
    small = d.clamp(-_EXPM1MX_NEAR, _EXPM1MX_NEAR)
    large = d.clamp(max=LARGEST_EXPONENT)
    far = torch.where(d > LARGEST_EXPONENT, torch.inf, torch.expm1(large) - large)
    return torch.where(small == d, small * small * polynomial(_EXPM1MX, small), far)


def scaled_expm1mx(c: Tensor, d: Tensor, log_scaled: Tensor | None = None) -> Tensor:
    """Return c (e^d - 1 - d) for c > 0; a result above e^709 becomes +inf with derivative 0.

    `log_scaled` is log(c e^d), for a caller that computes this logarithm more accurately than log(c) + d.
    """
    if log_scaled is None:
        large = d > LARGEST_EXPONENT
        beyond = bounded_exp(torch.where(large, d + torch.log(c), 0))
    else:  # for large d, the derivatives of the two terms below with respect to c do not cancel each other
        large = d > _FAR
        beyond = bounded_exp(torch.where(large, log_scaled, 0)) - c * (1 + torch.where(large, d, 0))
    return torch.where(large, beyond, c * expm1mx(torch.where(large, 0, d)))


def expm1_ratio(k: Tensor, x: Tensor) -> Tensor:
    """Return (e^(k x) - 1) / k, which is x at k = 0."""
    y = k * x
    small = y.abs() < 1e-3
    series = x * (1 + y / 2 * (1 + y / 3 * (1 + y / 4 * (1 + y / 5))))
    return torch.where(small, series, torch.expm1(torch.where(small, 1, y)) / torch.where(k == 0, 1, k))


def bounded_exp(x: Tensor) -> Tensor:
    """Return e^x; for x above 709, return +inf with derivative 0."""
    return torch.where(x > LARGEST_EXPONENT, torch.inf, torch.exp(x.clamp(max=LARGEST_EXPONENT)))


def within_floats(x: Tensor) -> Tensor:
    """Clamp x to the range from -1e308 to 1e308, so that infinite terms of a sum do not give NaN."""
    return x.clamp(-1e308, 1e308)


def clamped_quotient(a: Tensor, b: Tensor, limit: float) -> Tensor:
    """Return a / b for positive b, clamped to [-limit, limit]; a clamped quotient has derivative 0."""
    inside = a.abs() <= limit * b
    return torch.where(inside, torch.where(inside, a, 0) / b, limit * torch.sign(a))


def with_derivatives_of(formula: Tensor, value: Tensor) -> Tensor:
    """Return a tensor with the values of `value` and the derivatives, of any order, of `formula`.

    Both compute the same quantity, but `value` has smaller rounding errors than `formula`. If `formula` is not finite,
    the derivative is 0.
    """
    formula = torch.where(formula.isfinite(), formula, 0)
    return value.detach() + (formula - formula.detach())


def log_ratio(a: Tensor, b: Tensor, difference: Tensor | None = None) -> Tensor:
    """Return log(a / b) for positive a and b, with full precision even if a and b are nearly equal.

    `difference` is a - b, for a caller that computes a - b more precisely than by subtraction. If a / b is out of the
    range of floats, the result is computed as log a - log b. The derivatives are always the derivatives of log a - log
    b.
    """
    logs = torch.log(a) - torch.log(b)
    with torch.no_grad():
        z = (a - b if difference is None else difference) / b
        near, ratio = z.abs() <= 0.5, a / b
        far = torch.where((ratio > 1e-290) & (ratio < 1e290), torch.log(ratio), logs)
        value = torch.where(near, torch.log1p(torch.where(near, z, 0)), far)
    return with_derivatives_of(logs, value)


def log1p_quotient(a: Tensor, b: Tensor) -> Tensor:
    """Return log(1 + a / b) for positive numbers, even if the quotient is out of the range of floats."""
    small = a <= b
    near = torch.log1p(torch.where(small, a, 0) / torch.where(small, b, 1))
    far = log_ratio(torch.where(small, 1, a) + torch.where(small, 0, b), torch.where(small, 1, b))
    return torch.where(small, near, far)


def log_product(a: Tensor, b: Tensor, divisor: Tensor | None = None) -> Tensor:
    """Return log(a b / divisor) for positive numbers, even if the product a b is out of the range of floats."""
    c = torch.ones_like(a) if divisor is None else divisor
    logs = torch.log(a) + torch.log(b) - torch.log(c)
    with torch.no_grad():
        product = a * b
        inside = (product > 1e-290) & (product < 1e290)
        value = torch.where(inside, log_ratio(torch.where(inside, product, 1), c), logs)
    return with_derivatives_of(logs, value)


def itakura_saito(a: Tensor, b: Tensor, difference: Tensor | None = None) -> Tensor:
    """Return x - 1 - log x at x = a / b, a term of the Itakura-Saito divergence.

    `difference` is a - b, for a caller that computes a - b more precisely than by subtraction.

    With z = x - 1 and u = z / (z + 2), log x = 2 atanh(u) and z - 2u = z u. So the value is z u - (2 atanh(u) - 2u).
    The derivatives are the derivatives of e^d - 1 - d at d = log x.
    """
    log = log_ratio(a, b, difference)
    with torch.no_grad():
        difference = a - b if difference is None else difference
        z = difference / b
        u = torch.where(z.isinf(), 1, z / (z + 2))
        square = u * u
        series = u * square * polynomial(_ATANH, square)
        beyond = torch.where(u.abs() < _ATANH_NEAR, series, log - 2 * u)
        value = z * u - beyond
    return with_derivatives_of(expm1mx(log), value)


def log1pmx(z: Tensor) -> Tensor:
    """Return log(1 + z) - z, which is 0 at z = 0 and negative elsewhere."""
    return -itakura_saito(1 + z, torch.ones_like(z), z)


def logit_difference(p: Tensor, q: Tensor) -> Tensor:
    """Return logit(p) - logit(q) for two probabilities, with full precision even if p and q are nearly equal."""
    return log_ratio(p, q) - log_ratio(1 - p, 1 - q, q - p)


def bregman_by_quadrature(second: Callable[[Tensor], Tensor], a: Tensor, distance: Tensor) -> Tensor:
    """Return the Bregman divergence, from a to a + distance, of the function f with second derivative `second`.

    By Taylor's formula, the divergence is distance^2 times the integral of (1 - t) f''(a + t distance) over t in [0,
    1]. The quadrature is accurate if all singularities of f are much farther than `distance` from the point `a`.
    """
    values = second(torch.stack([a + t * distance for t in _NODES]))
    mean = sum((values[i] * w for i, w in enumerate(_WEIGHTS)), torch.zeros_like(a))
    return distance * distance * mean


def stirling_remainder(x: Tensor) -> Tensor:
    """Return lgamma(x) - x log x + x, the remainder of Stirling's formula.

    For large x, the result is close to (log(2 pi) - log x) / 2.
    """
    tiny, low, inverse = x < _TINY, x.clamp(_TINY, _FAR), 1 / x.clamp(min=_FAR)
    series = HALF_LOG_2PI + torch.log(inverse) / 2 + inverse * polynomial(_STIRLING, inverse * inverse)
    near = torch.where(x < _FAR, torch.lgamma(low) - low * torch.log(low) + low, series)
    return torch.where(tiny, -torch.log(torch.where(tiny, x, 1)), near)


def _shifted(x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the numbers for the recurrence that adds `_FAR` to small x, to reach the range of Stirling's series.

    The derivatives of lgamma use Stirling's series, because torch's trigamma has only nine correct digits, and the
    derivative of torch's trigamma is slow.

    Returns:
        whether x is below `_FAR`; x clamped to [`_TINY`, `_FAR`]; x plus 0 to 9 (last dimension); and 1 / x after the
        shift.
    """
    is_low, low = x < _FAR, x.clamp(_TINY, _FAR)
    steps = low.unsqueeze(-1) + torch.arange(int(_FAR), dtype=x.dtype, device=x.device)
    return is_low, low, steps, 1 / torch.where(is_low, low + _FAR, x)


def digamma_minus_log(x: Tensor) -> Tensor:
    """Return digamma(x) - log x, the derivative of `stirling_remainder`."""
    is_low, low, steps, inverse = _shifted(x)
    series = -inverse / 2 - inverse * inverse * polynomial(_STIRLING_DERIVATIVE, inverse * inverse)
    near = series + torch.where(
        is_low, log1p_quotient(torch.full_like(low, _FAR), low) - (1 / steps).sum(-1), 0
    )
    tiny = x < _TINY
    y = torch.where(tiny, x, 1)
    return torch.where(tiny, -torch.ones_like(y) / y - EULER_GAMMA - torch.log(y), near)


def digamma(x: Tensor) -> Tensor:
    """Return digamma(x), the derivative of lgamma. Unlike torch's digamma, this function has a precise derivative."""
    tiny = x < _TINY
    y, z = torch.where(tiny, x, 1), torch.where(tiny, 1, x)
    return torch.where(tiny, -torch.ones_like(y) / y - EULER_GAMMA, torch.log(z) + digamma_minus_log(z))


def trigamma(x: Tensor) -> Tensor:
    """Return trigamma(x), the derivative of digamma."""
    return 1 / x + trigamma_minus_inverse(x)


def trigamma_minus_inverse(x: Tensor) -> Tensor:
    """Return trigamma(x) - 1 / x, the second derivative of `stirling_remainder`."""
    is_low, low, steps, inverse = _shifted(x)
    square = inverse * inverse
    series = square / 2 + inverse * square * polynomial(_STIRLING_CURVATURE, square)
    moved = (1 / (steps * steps)).sum(-1) + 1 / (low + _FAR) - 1 / low
    return series + torch.where(is_low, moved, 0)


def harmonic_number(b: Tensor) -> Tensor:
    """Return digamma(1 + b) - digamma(1) for b >= 0, with full precision even if b is tiny."""
    return _since_one(b, lambda k, c: c / (k * (k + c)), trigamma, digamma(1 + b) + EULER_GAMMA)


def trigamma_decrease(b: Tensor) -> Tensor:
    """Return trigamma(1) - trigamma(1 + b) for b >= 0, with full precision even if b is tiny."""

    def term(k: Tensor, c: Tensor) -> Tensor:
        return c * (2 * k + c) / (k * (k + c)) ** 2

    def negative_derivative(x: Tensor) -> Tensor:
        return polynomial(_TETRAGAMMA, 1 / x) / (x * x)

    return _since_one(b, term, negative_derivative, math.pi**2 / 6 - trigamma(1 + b))


def _since_one(
    b: Tensor, term: Callable[[Tensor, Tensor], Tensor], derivative: Callable[[Tensor], Tensor], far: Tensor
) -> Tensor:
    """Return f(1 + b) - f(1) for a function f, with full precision for small b; for b of 0.5 or more, return `far`.

    For smaller b >= 0, the result is the sum of ten terms of a recurrence for f(1 + b) - f(1), plus the integral of the
    `derivative` f' from 11 to 11 + b. `term` is a function of the number of the term and b.
    """
    near = b < 0.5
    c = torch.where(near, b, 0)
    start = int(_FAR) + 1
    k = torch.arange(1, start, dtype=b.dtype, device=b.device)
    total = term(k, c.unsqueeze(-1)).sum(-1)
    for t, weight in zip(_EVEN_NODES, _EVEN_WEIGHTS, strict=True):
        total = total + weight * c * derivative(start + t * c)
    return torch.where(near, total, far)


def stirling_bregman(a: Tensor, b: Tensor, distance: Tensor | None = None) -> Tensor:
    """Return the Bregman divergence of lgamma(x) - x log x + x from a to b, which is non-negative.

    `distance` is b - a, for a caller that computes b - a more precisely than by subtraction.
    """
    distance = b - a if distance is None else distance
    # For tiny x, lgamma(x) - x log x + x is nearly -log x, and its second derivative may overflow.
    tiny = (a < _TINY) & (b < _TINY)
    of_logs = itakura_saito(torch.where(tiny, b, 1), torch.where(tiny, a, 1), torch.where(tiny, distance, 0))
    a, b, distance = torch.where(tiny, 1, a), torch.where(tiny, 1, b), torch.where(tiny, 0, distance)
    near = distance.abs() < _RULE_NEAR * (a + b)
    close = bregman_by_quadrature(
        trigamma_minus_inverse, torch.where(near, a, 1), torch.where(near, distance, 0)
    )
    far = stirling_remainder(b) - stirling_remainder(a) - distance * digamma_minus_log(a)
    return torch.where(tiny, of_logs, torch.where(near, close, far))


def lgamma_bregman(a: Tensor, b: Tensor, distance: Tensor | None = None) -> Tensor:
    """Return lgamma(b) - lgamma(a) - (b - a) digamma(a); `distance` is b - a, as in `stirling_bregman`."""
    distance = b - a if distance is None else distance
    return stirling_bregman(a, b, distance) + b * itakura_saito(a, b, -distance)


def safe_log(x: Tensor) -> Tensor:
    """Return log x, with derivative 0 instead of infinity at x = 0."""
    empty = x == 0
    return torch.where(empty, -torch.inf, torch.log(torch.where(empty, 1, x)))


def safe_logsumexp(x: Tensor, dim: int) -> Tensor:
    """Return log sum e^x along a dimension; if all x are -inf, the result is -inf with derivative 0."""
    empty = (x == -torch.inf).all(dim, keepdim=True)
    return torch.where(empty.squeeze(dim), -torch.inf, torch.where(empty, 0, x).logsumexp(dim))


def ein(y: Tensor) -> Tensor:
    """Return Ein(y), the integral of (1 - e^-t) / t from 0 to y, for y from 0 to 2."""
    return y * polynomial(_EIN, y)


def scaled_e1(y: Tensor) -> Tensor:
    """Return e^y E1(y) for y > 0, where the exponential integral E1 is the integral of e^-t / t from y to infinity."""
    small = y.clamp(max=2)
    near = torch.exp(small) * (ein(small) - torch.log(small) - EULER_GAMMA)
    if bool((y < 2).all()):
        return near
    return torch.where(y < 2, near, scaled_e1_from_2(y.clamp(min=2)))


def scaled_e1_from_2(y: Tensor) -> Tensor:
    """Return e^y E1(y) = 1 / (y + 1 - 1 / (y + 3 - 4 / (y + 5 - ...))) for y >= 2."""
    tail = y + (2 * _E1_DEPTH + 1)
    for k in range(_E1_DEPTH, 0, -1):
        tail = y + (2 * k - 1) - k * k / tail
    return 1 / tail


def log_mean_decay(x: Tensor) -> Tensor:
    """Return log((1 - e^-x) / x) for x >= 0, the logarithm of the mean of e^(-x t) over t in [0, 1]."""
    tiny = x < 1e-4
    safe = torch.where(tiny, 1, x)
    small = torch.where(tiny, x, 0)
    return torch.where(tiny, small * (small / 24 - 0.5), torch.log(-torch.expm1(-safe) / safe))
