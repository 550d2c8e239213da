"""Functions that keep their digits where the textbook's formula subtracts nearly equal numbers.

Bregman's divergence of a convex f from a to b is f(b) - f(a) - (b - a) f'(a). Closed forms of KL between members of an
exponential family are such differences, and are written here as sums of terms that are not negative.

Each function has two branches: a short series or rule for near arguments, the plain formula for others. Neither branch
may overflow where the other is taken, or the gradient would be 0 times infinity: hence the clamped arguments.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

__all__ = [
    "bounded_exp",
    "bregman_near",
    "digamma",
    "digamma_rest",
    "excess",
    "lgamma_bregman",
    "lgamma_remainder",
    "lgamma_rest",
    "log1p_excess",
    "log_ratio",
    "log_ratio_excess",
    "log_total",
    "logit_difference",
    "polynomial",
    "trigamma",
    "trigamma_rest",
]

_LARGEST = 709.0
_HALF_LOG_TAU = math.log(2 * math.pi) / 2
# e^d - 1 - d = d^2 (1/2 + d/6 + d^2/24 + ...)
_EXCESS_NEAR = 0.004
_EXCESS = (1 / 2, 1 / 6, 1 / 24, 1 / 120)
# 2 atanh(u) - 2u = u^3 (2/3 + 2 u^2/5 + 2 u^4/7 + ...)
_ATANH_NEAR = 0.02
_ATANH = (2 / 3, 2 / 5, 2 / 7)
# Stirling: lgamma(x) = (x - 1/2) log x - x + log(2 pi) / 2 + sum_k c_k x^-(2k - 1), for x beyond _FAR
_FAR = 10.0
_STIRLING = (1 / 12, -1 / 360, 1 / 1260, -1 / 1680, 1 / 1188, -691 / 360360)
_STIRLING_SLOPE = tuple((2 * k + 1) * c for k, c in enumerate(_STIRLING))
_STIRLING_CURVATURE = tuple((2 * k + 2) * c for k, c in enumerate(_STIRLING_SLOPE))
# Gauss' rule of four nodes on [0, 1] for the weight 1 - t.
_NODES = (0.0571041961145176822, 0.276843013638123828, 0.58359043236891682, 0.860240135656219448)
_WEIGHTS = (0.135506913431488116, 0.203464568010271361, 0.129847547608232441, 0.0311809709500080822)
# How near a and b are, in |b - a| / (a + b), for that rule to have thirteen digits.
_RULE_NEAR = 0.05


def polynomial(coefficients: Sequence[float], x: Tensor) -> Tensor:
    """Return c_0 + c_1 x + c_2 x^2 + ... by Horner's rule; at least two coefficients."""
    total = x * coefficients[-1] + coefficients[-2]
    for c in reversed(coefficients[:-2]):
        total = total * x + c
    return total


def excess(d: Tensor) -> Tensor:
    """Return e^d - 1 - d, which is x - 1 - log x at x = e^d; not negative, and 0 at 0; at most about e^709."""
    small = d.clamp(-_EXCESS_NEAR, _EXCESS_NEAR)
    large = d.clamp(max=_LARGEST)
    return torch.where(small == d, small * small * polynomial(_EXCESS, small), torch.expm1(large) - large)


def bounded_exp(x: Tensor) -> Tensor:
    """Return e^x, at most e^709: finite, so that its gradient is 0 where the value is not taken."""
    return torch.exp(x.clamp(max=_LARGEST))


def log_ratio(a: Tensor, b: Tensor, difference: Tensor | None = None) -> Tensor:
    """Return log(a / b) for positive a and b, to full precision also where they are nearly equal.

    `difference` is a - b where that is known better than from a and b.
    """
    z = (a - b if difference is None else difference) / b
    return torch.where(z > -0.5, torch.log1p(z.clamp(min=-0.5)), torch.log(a / b))


def log_ratio_excess(a: Tensor, b: Tensor, difference: Tensor | None = None) -> Tensor:
    """Return x - 1 - log x at x = a / b; `difference` is a - b where that is known better than from a and b.

    With z = x - 1 and u = z / (z + 2), log x = 2 atanh(u) and z - 2u = z u: the value is z u - (2 atanh(u) - 2u).
    """
    difference = a - b if difference is None else difference
    u = difference / (a + b)
    square = u * u
    series = u * square * polynomial(_ATANH, square)
    beyond = torch.where(u.abs() < _ATANH_NEAR, series, torch.log(a / b) - 2 * u)
    return difference / b * u - beyond


def log1p_excess(z: Tensor) -> Tensor:
    """Return z - log(1 + z); not negative, and 0 at 0."""
    return log_ratio_excess(1 + z, torch.ones_like(z), z)


def logit_difference(p: Tensor, q: Tensor) -> Tensor:
    """Return logit(p) - logit(q) of two probabilities, to full precision also where they are nearly equal."""
    return log_ratio(p, q) - log_ratio(1 - p, 1 - q, q - p)


def bregman_near(second: Callable[[Tensor], Tensor], a: Tensor, distance: Tensor) -> Tensor:
    """Return Bregman's divergence from a to a + distance of the function with this second derivative.

    By Taylor's formula it is distance^2 times the integral of (1 - t) f''(a + t distance), a smooth one where the
    distance is small beside that to f's singularities.
    """
    values = second(torch.stack([a + t * distance for t in _NODES]))
    mean = sum((values[i] * w for i, w in enumerate(_WEIGHTS)), torch.zeros_like(a))
    return distance * distance * mean


def lgamma_rest(x: Tensor) -> Tensor:
    """Return lgamma(x) - x log x + x, which for large x is near -log(x) / 2."""
    low, inverse = x.clamp(max=_FAR), 1 / x.clamp(min=_FAR)
    series = _HALF_LOG_TAU + torch.log(inverse) / 2 + inverse * polynomial(_STIRLING, inverse * inverse)
    return torch.where(x < _FAR, torch.lgamma(low) - low * torch.log(low) + low, series)


def _shifted(x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return where x is small, x there, the numbers x, x + 1 ... by which it is moved up, and 1 / x after that move.

    torch's trigamma has nine digits, and its derivative is slow: those of lgamma are made of Stirling's series here.
    """
    is_low, low = x < _FAR, x.clamp(max=_FAR)
    steps = low.unsqueeze(-1) + torch.arange(int(_FAR), dtype=x.dtype, device=x.device)
    return is_low, low, steps, 1 / torch.where(is_low, low + _FAR, x)


def digamma_rest(x: Tensor) -> Tensor:
    """Return digamma(x) - log x, the derivative of `lgamma_rest`."""
    is_low, low, steps, inverse = _shifted(x)
    series = -inverse / 2 - inverse * inverse * polynomial(_STIRLING_SLOPE, inverse * inverse)
    return series + torch.where(is_low, torch.log1p(_FAR / low) - (1 / steps).sum(-1), 0)


def digamma(x: Tensor) -> Tensor:
    """Return the derivative of lgamma, which has all its digits in its own derivative too."""
    return torch.log(x) + digamma_rest(x)


def trigamma(x: Tensor) -> Tensor:
    """Return the derivative of digamma."""
    return 1 / x + trigamma_rest(x)


def trigamma_rest(x: Tensor) -> Tensor:
    """Return trigamma(x) - 1 / x, the second derivative of `lgamma_rest`."""
    is_low, low, steps, inverse = _shifted(x)
    square = inverse * inverse
    series = square / 2 + inverse * square * polynomial(_STIRLING_CURVATURE, square)
    moved = (1 / (steps * steps)).sum(-1) + 1 / (low + _FAR) - 1 / low
    return series + torch.where(is_low, moved, 0)


def lgamma_remainder(a: Tensor, b: Tensor, distance: Tensor | None = None) -> Tensor:
    """Return Bregman's divergence, from a to b, of lgamma(x) - x log x + x: not negative.

    `distance` is b - a where that is known better than from a and b.
    """
    distance = b - a if distance is None else distance
    near = distance.abs() < _RULE_NEAR * (a + b)
    close = bregman_near(trigamma_rest, a, torch.where(near, distance, 0))
    return torch.where(near, close, lgamma_rest(b) - lgamma_rest(a) - distance * digamma_rest(a))


def lgamma_bregman(a: Tensor, b: Tensor, distance: Tensor | None = None) -> Tensor:
    """Return lgamma(b) - lgamma(a) - (b - a) digamma(a); `distance` as in `lgamma_remainder`."""
    distance = b - a if distance is None else distance
    return lgamma_remainder(a, b, distance) + b * log_ratio_excess(a, b, -distance)


def log_total(x: Tensor, dim: int) -> Tensor:
    """Return log sum e^x along a dimension: -inf, without derivative, where there are only -inf."""
    empty = (x == -torch.inf).all(dim, keepdim=True)
    return torch.where(empty.squeeze(dim), -torch.inf, torch.where(empty, 0, x).logsumexp(dim))
