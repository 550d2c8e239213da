"""How a divergence behaves where p / q goes to 0 or to infinity, and where its terms have corners.

That decides where a divergence of distributions is infinite. Kullback's own kinds say it. Of any other kind that is a
sum of terms it is read from the terms, which are q f(p / q) for some function f: far out, as f grows as a power of the
ratio, as a power of its logarithm, or to a limit.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import fields
from typing import NamedTuple

import torch
from torch import Tensor

from kullback.errors import invalid_value
from kullback.generators.base import Divergence, FinitePair, behaves_as
from kullback.generators.entropic import KL, Jeffreys, JensenShannon, ReverseKL, SkewKL, TotalVariation
from kullback.generators.power import Alpha, ChiSquared, Renyi, SquaredHellinger

__all__ = [
    "Corner",
    "End",
    "Growth",
    "check_own",
    "corners_of",
    "end_of",
    "growth_of",
    "is_own",
    "pair_of_ratio",
    "power_of",
    "without_subclass",
]

_BUILT_IN = (
    *(KL, ReverseKL, Jeffreys, SkewKL, JensenShannon, TotalVariation),
    *(Alpha, ChiSquared, SquaredHellinger, Renyi),
)
# Logarithms of ratios at which an end is read, the farthest first: at each, its half and its quarter.
_REACHES = (700.0, 500.0, 350.0, 250.0, 170.0, 120.0, 80.0, 56.0, 40.0, 28.0, 20.0, 14.0, 10.0, 7.0, 5.0)
# What grows faster than a power would leave float64 within so little.
_NO_POWER = 15.0
_CONVERGED = 1e-12
_NO_EXCESS = 1e-4
# By what part of the reach the slope is taken there.
_BACK = 1e-3
# Between these logarithms of ratios corners are looked for.
_WIDEST, _INTERVALS, _HALVINGS = 30.0, 3000, 42


# Where derivatives are compared with differences, of this step, and how well they have to agree.
_CHECKED = (-3.1, -1.7, -0.83, -0.37, 0.41, 0.79, 1.3, 2.9)
_STEP, _DERIVATIVE = 1e-5, 1e-4


class End(NamedTuple):
    """The terms per unit of the larger mass as |d| grows, for d = log(p / q): a limit, or growth.

    From |d| = reach on they grow as e^(rate (|d| - reach)) (1 + (|d| - reach) / scale)^power.
    """

    limit: float
    """Infinite where they grow."""
    rate: float = 0.0
    """Infinite for what grows faster than every power of the ratio."""
    power: float = 0.0
    reach: float = math.inf
    """The largest |d| at which the terms themselves are numbers."""
    scale: float = 1.0


class Corner(NamedTuple):
    """A value of log(p / q) at which f has a corner, and by how much f' changes there."""

    at: float
    change: float


class Growth(NamedTuple):
    """Both ends, where q is the smaller mass and where p is, and the corners between."""

    far: End
    near: End
    corners: tuple[Corner, ...] = ()

    @property
    def is_bounded(self) -> bool:
        """Whether the divergence is finite for all pairs."""
        return max(self.far.limit, self.near.limit) < math.inf


def is_own(kind: Divergence) -> bool:
    """Tell whether a kind is not one of kullback's, nor a subclass that changes nothing of one."""
    return type(kind) not in _BUILT_IN and not any(behaves_as(kind, family) for family in _BUILT_IN)


def without_subclass(kind: Divergence) -> Divergence:
    """Return one of kullback's kinds in place of a subclass that changes nothing of what it computes."""
    if type(kind) in _BUILT_IN:  # small calls pay for each question
        return kind
    for family in _BUILT_IN:
        if behaves_as(kind, family):
            return family(**{field.name: getattr(kind, field.name) for field in fields(family)})
    return kind


def power_of(kind: Divergence) -> tuple[float, float] | None:
    """Return the order alpha of a power divergence, and how many times Alpha(alpha) it is; None for other kinds."""
    if behaves_as(kind, Alpha):
        return kind.alpha, 1.0  # pyright: ignore[reportAttributeAccessIssue]
    if behaves_as(kind, ChiSquared):
        return 2.0, 2.0
    return (0.5, 0.25) if behaves_as(kind, SquaredHellinger) else None


def growth_of(kind: Divergence) -> Growth:
    """Return how a divergence grows; for one that is no sum of terms, how its terms do."""
    if isinstance(own := getattr(kind, "growth", None), Growth):
        return own
    if is_own(kind):
        return _read(kind)
    power = power_of(kind)
    order = power[0] if power else kind.alpha if behaves_as(kind, Renyi) else None  # pyright: ignore[reportAttributeAccessIssue]
    far, near = End(1.0), End(1.0)
    if order is not None:
        far, near = _of_power(order - 1), _of_power(-order)
    if behaves_as(kind, KL) or behaves_as(kind, Jeffreys):
        far = End(math.inf, power=1.0)
    if behaves_as(kind, ReverseKL) or behaves_as(kind, Jeffreys):
        near = End(math.inf, power=1.0)
    corners = (Corner(0.0, 1.0),) if behaves_as(kind, TotalVariation) else ()
    return Growth(far, near, corners)


def _of_power(rate: float) -> End:
    return End(1.0) if rate < 0 else End(math.inf, rate, 1.0 if rate == 0 else 0.0)


def pair_of_ratio(d: Tensor) -> FinitePair:
    """Return masses of which the larger one is 1, with the logarithm d of their ratio."""
    log_p, log_q = d.clamp(max=0), -d.clamp(min=0)
    return FinitePair(torch.exp(log_p), torch.exp(log_q), d, lambda: (log_p, log_q))


def check_own(kind: Divergence) -> None:
    """Raise if a user's own sum of terms has `derivatives` that are not those of its `terms`."""
    is_made = isinstance(getattr(kind, "growth", None), Growth)
    if not is_made and is_own(kind) and type(kind).total is Divergence.total:
        _read(kind)


@functools.lru_cache(maxsize=256)
def _read(kind: Divergence) -> Growth:
    def terms(d: Tensor) -> Tensor:
        return kind.terms(pair_of_ratio(d))

    def slope(d: Tensor) -> Tensor:  # f' up to factors that have no corner
        return kind.derivatives(pair_of_ratio(d))[0] * torch.exp(-d.clamp(max=0))

    with torch.no_grad():
        is_additive = type(kind).total is Divergence.total
        if is_additive:
            _check_derivatives(kind)
        return Growth(end_of(terms, 1), end_of(terms, -1), corners_of(slope) if is_additive else ())


def _check_derivatives(kind: Divergence) -> None:
    """Compare derivatives with differences of terms, up to multiples of the mass, which normalization removes."""
    d = torch.tensor(_CHECKED, dtype=torch.float64, device="cpu")
    log_p, log_q = d.clamp(max=0), -d.clamp(min=0)
    for side, mass in enumerate((torch.exp(log_p), torch.exp(log_q))):
        step = _STEP * (1 - 2 * side)
        higher, lower = (
            kind.terms(pair_of_ratio(d + move)) * _larger(log_p + (1 - side) * size, log_q + side * size)
            for move, size in ((step, _STEP), (-step, -_STEP))
        )
        difference, given = (higher - lower) / (2 * _STEP), kind.derivatives(pair_of_ratio(d))[side]
        off = (given - difference) / mass
        excess = (
            (off - off.median()).abs() * mass > _DERIVATIVE * (1 + given.abs() + difference.abs())
        ).sum()
        if int(excess) > 1:  # one may be at a corner
            raise invalid_value(
                type(kind).__name__,
                "derivatives",
                wanted="the derivatives of the terms by log p and log q",
                got=f"by log {'pq'[side]} {given[0].item():.4g} at p / q = {d[0].exp().item():.4g}, where the terms "
                f"change by {difference[0].item():.4g}",
                instead="derivatives beside the terms of the same class, or FDivergence(f), which makes both from f",
            )


def _larger(log_p: Tensor, log_q: Tensor) -> Tensor:
    return torch.exp(torch.maximum(log_p, log_q))


def end_of(terms: Callable[[Tensor], Tensor], sign: int) -> End:
    """Read one end from the terms per unit of the larger mass, a function of log(p / q)."""
    for reach in _REACHES:
        d = sign * torch.tensor([reach / 4, reach / 2, reach], dtype=torch.float64, device="cpu")
        first, second, third = terms(d).tolist()
        if math.isfinite(first) and math.isfinite(second) and abs(third) < 1e300:
            break
    else:
        return End(math.inf, math.inf, 0.0, 0.0)
    if abs(third - second) <= _CONVERGED * abs(third) or third <= 0:
        return End(max(third, 0.0), reach=reach)
    if third - second < 0.7 * (second - first) or third < second:  # Aitken's limit of a geometric approach
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
    """Return where f' jumps, a function of log(p / q): where halving an interval leaves what it changes by."""
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
