"""The growth of a divergence as p / q goes to 0 or to infinity, and the corners of its terms.

The growth decides whether a divergence of two distributions can be infinite. kullback's divergences state their growth.
The growth of a user's divergence is measured from the terms q f(p / q). The measurement assumes that f has a limit as
p / q goes to 0 or to infinity, or grows as a power of p / q or of log(p / q).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from kullback.errors import invalid_value
from kullback.generators.divergence import Corner, Divergence, End, FinitePair, Growth
from kullback.generators.power import Alpha, ChiSquared, Renyi, SquaredHellinger

# `end_of` measures growth up to a value of |log(p / q)|, the reach. The reach is the largest of these numbers at which
# the terms are finite. Growth is measured at the reach, at half the reach and at a quarter of the reach. The largest
# float64 is e^709.
_REACHES = (700.0, 500.0, 350.0, 250.0, 170.0, 120.0, 80.0, 56.0, 40.0, 28.0, 20.0, 14.0, 10.0, 7.0, 5.0)
# If the reach is below this number, the terms overflow so early that they grow faster than every power of p / q.
_NO_POWER = 15.0
# Terms have converged to a limit if they change by less than this fraction between half the reach and the reach.
_CONVERGED = 1e-12
# If terms are measured to grow as (p / q)^c with |c| below this number, c is a measurement error and counts as 0.
_NO_EXCESS = 1e-4
# The step of the difference quotient that measures the slope at the reach, as a fraction of the reach.
_BACK = 1e-3
# The search for corners divides the range |log(p / q)| <= _WIDEST into _INTERVALS intervals, and halves each interval
# _HALVINGS times. The final intervals are about as wide as the rounding errors of float64.
_WIDEST, _INTERVALS, _HALVINGS = 30.0, 3000, 42
# A user's derivatives are compared with difference quotients at the values _CHECKED of log(p / q). The step of the
# difference quotients is _STEP, and the relative tolerance is _DERIVATIVE.
_CHECKED = (-3.1, -1.7, -0.83, -0.37, 0.41, 0.79, 1.3, 2.9)
_STEP, _DERIVATIVE = 1e-5, 1e-4
# A user's terms are evaluated at these pairs (log p, log q). A mass is 0 or underflows in the first four pairs, and
# both masses are 0 in the last pair.
_EMPTY = ((-math.inf, 0.0), (-800.0, 0.0), (0.0, -800.0), (0.0, -math.inf), (-math.inf, -math.inf))
# A user's total is evaluated for these probabilities of P (first row) and Q (second row). Both are 0 in the first
# class, and only P is 0 in the second class.
_PARTIAL = ((0.0, 0.0, 0.5, 0.5), (0.0, 0.2, 0.3, 0.5))
# A number in `_Reading.multiples` is a rounding error and counts as 0 if its absolute value is at most _ROUNDING. If a
# user's term at p = q is above _ZERO, an error is raised, because the terms of a divergence are 0 at p = q.
_ROUNDING, _ZERO = 1e-12, 1e-9


class _Reading(NamedTuple):
    """The properties of a user's divergence, measured from its terms and derivatives."""

    growth: Growth
    multiples: tuple[float, float, float]
    """Three numbers: the slope f'(1), and numbers a and b that describe the method `derivatives`. Its first result is
    the derivative of the terms with respect to log p, plus a p. Its second result is the derivative of the terms with
    respect to log q, plus b q.
    """
    is_normalized: bool
    """Whether all `multiples` are 0, no term is NaN at p = 0 or q = 0, and the derivatives are finite there."""


def order_of(kind: Divergence) -> float | None:
    """Return the order alpha of a power divergence or of Renyi's divergence, and None for other divergences."""
    if isinstance(kind, Alpha | Renyi):
        return kind.alpha
    return kind.order if isinstance(kind, ChiSquared | SquaredHellinger) else None


def power_of(kind: Divergence) -> tuple[float, float] | None:
    """Return (alpha, factor) if the divergence is factor times Alpha(alpha), and None for other divergences."""
    if isinstance(kind, Alpha):
        return kind.alpha, 1.0
    return (kind.order, kind.factor) if isinstance(kind, ChiSquared | SquaredHellinger) else None


def growth_of(kind: Divergence) -> Growth:
    """Return the growth of the terms of `kind`, even if the total of `kind` is not the sum of its terms."""
    return _stated_growth(kind) or _read(kind).growth


def _stated_growth(kind: Divergence) -> Growth | None:
    growth = getattr(kind, "growth", None)
    if isinstance(growth, Growth):
        return growth
    order = order_of(kind)
    return None if order is None else Growth(_of_power(order - 1), _of_power(-order))


def _of_power(rate: float) -> End:
    return End(1.0) if rate < 0 else End(math.inf, rate, 1.0 if rate == 0 else 0.0)


def pair_of_ratio(d: Tensor) -> FinitePair:
    """Return a pair of masses with log(p / q) = d and max(p, q) = 1."""
    log_p, log_q = d.clamp(max=0), -d.clamp(min=0)
    return FinitePair(torch.exp(log_p), torch.exp(log_q), d, lambda: (log_p, log_q))


def is_normalized(kind: Divergence) -> bool:
    """Return whether f'(1) = 0, no term is NaN where p = 0 or q = 0, and the derivatives are finite there.

    kullback's own divergences meet these conditions. A user's may not, and an inconsistent one raises an error.
    """
    return _stated_growth(kind) is not None or _read(kind).is_normalized


def own_terms(kind: Divergence, d: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return a user's terms minus the tangent of f at 1, and their derivatives with respect to log p and to log q.

    The masses have max(p, q) = 1 and log(p / q) = d. The three results have the shape of d.
    """
    return _less_tangent(kind, d, _read(kind).multiples)


def _less_tangent(
    kind: Divergence, d: Tensor, multiples: tuple[float, float, float]
) -> tuple[Tensor, Tensor, Tensor]:
    pair = pair_of_ratio(d)
    terms, (by_p, by_q) = kind.terms(pair), kind.derivatives(pair)
    slope, excess_p, excess_q = multiples
    if any(multiples):
        terms = terms + slope * torch.expm1(-d.abs()) * d.sign()
        by_p, by_q = by_p - (excess_p + slope) * pair.p, by_q - (excess_q - slope) * pair.q
    return terms, by_p, by_q


def _read(kind: Divergence) -> _Reading:
    try:
        # The attributes are part of the cache key, because `==` of a class that is not a dataclass may ignore the
        # attributes.
        return _read_once(kind, *vars(kind).items())
    except TypeError:  # an attribute is not hashable
        return _read_once.__wrapped__(kind)


@functools.lru_cache(maxsize=256)
def _read_once(kind: Divergence, *_: object) -> _Reading:
    with torch.no_grad():
        if not kind.additive:
            _check_total(kind)
            far, near = (end_of(lambda d: kind.terms(pair_of_ratio(d)), sign) for sign in (1, -1))
            return _Reading(Growth(far, near), (0.0, 0.0, 0.0), is_normalized=True)
        _check_derivatives(kind)
        multiples = _multiples(kind)
        _check_sign(kind, multiples)

        def slope(d: Tensor) -> Tensor:  # has the same corners as f'
            return _less_tangent(kind, d, multiples)[1] * torch.exp(-d.clamp(max=0))

        far, near = (end_of(lambda d: _less_tangent(kind, d, multiples)[0], sign) for sign in (1, -1))
        logs = torch.tensor(_EMPTY, dtype=torch.float64, device="cpu").unbind(-1)
        d = torch.where(logs[0] == logs[1], 0, logs[0] - logs[1])
        empty = FinitePair(logs[0].exp(), logs[1].exp(), d, lambda: (logs[0], logs[1]))
        terms, derivatives = kind.terms(empty), kind.derivatives(empty)
        is_number = ~terms.isnan() & derivatives[0].isfinite() & derivatives[1].isfinite()
        complete = not any(multiples) and bool(is_number.all())
        return _Reading(Growth(far, near, corners_of(slope)), multiples, complete)


def _multiples(kind: Divergence) -> tuple[float, float, float]:
    """Return `_Reading.multiples`; the two derivatives sum to the terms plus a p + b q, which gives a and b."""
    pair = pair_of_ratio(torch.tensor([0.0, _CHECKED[2], _CHECKED[5]], dtype=torch.float64, device="cpu"))
    by_p, by_q = kind.derivatives(pair)
    excess = torch.linalg.solve(torch.stack(pair[:2], -1)[1:], (by_p + by_q - kind.terms(pair))[1:])
    read = torch.stack([by_p[0] - excess[0], *excess])
    slope, excess_p, excess_q = torch.where(read.abs() > _ROUNDING, read, 0).tolist()
    return slope, excess_p, excess_q


def _check_sign(kind: Divergence, multiples: tuple[float, float, float]) -> None:
    """Raise if the terms, after the tangent of f at 1 is subtracted, are negative, or are not 0 where p = q."""
    d = torch.tensor([0.0, *_CHECKED], dtype=torch.float64, device="cpu")
    terms = _less_tangent(kind, d, multiples)[0]
    if bool((terms < -_ZERO).any()) or terms[0] > _ZERO:
        raise invalid_value(
            type(kind).__name__,
            "terms",
            wanted="terms q f(p / q) of a convex function f with f(1) = 0",
            got=f"{terms[0].item():.4g} at p = q = 1, and a minimum of {terms.min().item():.4g} after its tangent "
            "is subtracted",
            instead="terms minus f(1) q, or FDivergence(lambda r: f(r) - f(1))",
        )


def _check_total(kind: Divergence) -> None:
    """Raise if a user's `total` is NaN, or has infinite derivatives, for rows with a probability of 0."""
    rows = torch.tensor([_PARTIAL, _PARTIAL[::-1]], dtype=torch.float64, device="cpu")
    p, q = rows.unbind(-2)
    d = torch.where((p == 0) & (q == 0), 0, p.log() - q.log())
    pair = FinitePair(p, q, d)
    if bool(kind.total(pair).isnan().any()) or not all(
        bool(x.isfinite().all()) for x in kind.derivatives(pair)
    ):
        raise invalid_value(
            type(kind).__name__,
            "total",
            wanted="a total that is a number, with finite derivatives, where a probability is 0",
            got="NaN or an infinite derivative for probabilities (0, 0, 0.5, 0.5) and (0, 0.2, 0.3, 0.5)",
            instead="torch.where(pair.log_ratio.isinf(), limit, x) in terms and derivatives, with 0 where both are 0",
        )


def _check_derivatives(kind: Divergence) -> None:
    """Raise if the derivatives of a user's divergence disagree with difference quotients of its terms.

    A constant times p or times q may differ, because the normalization of P and Q removes it.
    """
    d = torch.tensor(_CHECKED, dtype=torch.float64, device="cpu")
    log_p, log_q = d.clamp(max=0), -d.clamp(min=0)
    for side, mass in enumerate((torch.exp(log_p), torch.exp(log_q))):
        step = _STEP * (1 - 2 * side)
        higher, lower = (
            kind.terms(pair_of_ratio(d + move))
            * torch.exp(torch.maximum(log_p + (1 - side) * size, log_q + side * size))
            for move, size in ((step, _STEP), (-step, -_STEP))
        )
        difference, derivative = (higher - lower) / (2 * _STEP), kind.derivatives(pair_of_ratio(d))[side]
        off = (derivative - difference) / mass
        excess = (
            (off - off.median()).abs() * mass > _DERIVATIVE * (1 + derivative.abs() + difference.abs())
        ).sum()
        if int(excess) > 1:  # one of the values of log(p / q) may be at a corner
            at = d[0].exp().item()
            raise invalid_value(
                type(kind).__name__,
                "derivatives",
                wanted="the derivatives of the terms by log p and log q",
                got=f"by log {'pq'[side]} {derivative[0].item():.4g} at p / q = {at:.4g}, where the terms "
                f"change by {difference[0].item():.4g}",
                instead="derivatives that match the terms, or FDivergence(f), which computes both from f",
            )


def end_of(terms: Callable[[Tensor], Tensor], sign: int) -> End:
    """Return the measured growth of `terms(d)`, term / max(p, q) at d = log(p / q), for a growing d of this sign."""
    for reach in _REACHES:
        d = sign * torch.tensor([reach / 4, reach / 2, reach], dtype=torch.float64, device="cpu")
        first, second, third = terms(d).tolist()
        if math.isfinite(first) and math.isfinite(second) and abs(third) < 1e300:
            break
    else:
        return End(math.inf, math.inf, 0.0, 0.0)
    if abs(third - second) <= _CONVERGED * abs(third) or third <= 0:
        return End(max(third, 0.0), reach=reach)
    if third - second < 0.7 * (second - first) or third < second:  # Aitken's limit of a geometric sequence
        bend = (third - second) - (second - first)
        return End(max(third - (third - second) ** 2 / bend if bend else third, 0.0), reach=reach)
    if not first > 0:
        return End(math.inf, reach=reach)
    if reach < _NO_POWER:
        return End(math.inf, math.inf, 0.0, reach)
    near, far = math.log(second / first), math.log(third / second)
    rate = round((far - near) / (reach / 4), 9)
    rate = 0.0 if abs(rate) < _NO_EXCESS else rate
    power = 0.0 if rate else (2 * near - far) / math.log(2)
    power = round(power, 1)
    before = float(terms(torch.tensor([sign * (1 - _BACK) * reach], dtype=torch.float64, device="cpu")))
    scale = power * third * _BACK * reach / (third - before) if power > 0 else 1.0
    return End(math.inf, max(rate, 0.0), power, reach, scale)


def corners_of(slope: Callable[[Tensor], Tensor]) -> tuple[Corner, ...]:
    """Return the corners: the points where `slope` jumps. `slope` is f' as a function of log(p / q).

    The search repeatedly halves each interval, and keeps the half with the larger change of f'.
    """
    edges = torch.linspace(-_WIDEST, _WIDEST, _INTERVALS + 1, dtype=torch.float64, device="cpu") + 1e-3
    low, high = edges[:-1].clone(), edges[1:].clone()
    at_low, at_high = slope(low), slope(high)
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        at_middle = slope(middle)
        left = (at_middle - at_low).abs() > (at_high - at_middle).abs()
        low, at_low = torch.where(left, low, middle), torch.where(left, at_low, at_middle)
        high, at_high = torch.where(left, middle, high), torch.where(left, at_middle, at_high)
    change = (at_high - at_low).abs()
    jumps = change > 1e-7 * (at_low.abs() + at_high.abs() + change)
    return tuple(
        Corner(at if abs(at) > 1e-11 else 0.0, by)
        for at, by in zip(((low + high) / 2)[jumps].tolist(), change[jumps].tolist(), strict=True)
        if math.isfinite(by)
    )
