"""Divergences whose terms are functions of p / q times the larger mass, computed without overflow or underflow."""

from __future__ import annotations

import functools
import math
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from kullback.common.extra_arguments import by_name
from kullback.common.inputs import number_from
from kullback.errors import invalid_type, invalid_value, safe_repr
from kullback.generators.divergence import Divergence, FinitePair, Growth
from kullback.generators.growth import corners_of, end_of, growth_of, is_normalized, own_terms

# The logarithm of the largest derivative; larger derivatives are clamped. The largest float64 is e^709, so the sum of
# the derivatives of a row stays finite.
_LARGEST_LOG = 690.0
# For |log(p / q)| below this number, the terms of a smooth f are computed as integrals of f'', which avoids
# cancellation. Elsewhere, the terms are computed from f.
_NEAR = 0.3
# Each row has a node and its weight of Gaussian quadrature on [0, 1]. The seven nodes integrate polynomials of degree
# 13 exactly.
_RULE = (
    (0.02544604382862074, 0.06474248308443485),
    (0.12923440720030278, 0.13985269574463833),
    (0.2970774243113014, 0.19091502525255946),
    (0.5, 0.2089795918367347),
    (0.7029225756886985, 0.19091502525255946),
    (0.8707655927996972, 0.13985269574463833),
    (0.9745539561713793, 0.06474248308443485),
)
# If a mass is below this number, its products are computed from logarithms, because such products may underflow.
_SMALLEST_MASS = 1e-290
# A user's f must be finite and convex for |log(p / q)| up to this number, and is checked there.
_CHECKED = 6.0
_EXAMPLE = "FDivergence(lambda r: (r - 1) ** 2 / (r + 1))"
# The relative tolerance for a limit that the user passes, compared with the measured limit of f.
_AGREE = 1e-6


class OfRatio(Divergence):
    """The base class of divergences whose quotient term / max(p, q) is a function of d = log(p / q)."""

    @property
    @abstractmethod
    def growth(self) -> Growth:
        """The limits or the growth of the terms as d goes to infinity and to -infinity, and the corners of f."""

    @abstractmethod
    def per_mass(self, d: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return a term and its derivatives with respect to log p and log q, all three divided by max(p, q).

        The argument d = log(p / q) is at least -`growth.near.reach` and at most `growth.far.reach`.
        """

    def terms(self, pair: FinitePair) -> Tensor:
        return self._evaluated(pair)[0]

    def derivatives(self, pair: FinitePair) -> tuple[Tensor, Tensor]:
        by_p, by_q = self._evaluated(pair)[1:]
        return by_p, by_q

    def _evaluated(self, pair: FinitePair) -> tuple[Tensor, Tensor, Tensor]:
        """Return the terms, and their derivatives with respect to log p and with respect to log q."""
        far, near, _ = self.growth
        d = pair.log_ratio
        term, by_p, by_q = self.per_mass(torch.where(d.isinf(), 0, d).clamp(-near.reach, far.reach))
        larger = torch.where(d > 0, pair.p, pair.q)
        grown = torch.where(larger > 0, 0, torch.where(d > 0, pair.log_p(), pair.log_q()))
        for end, sign in ((far, 1), (near, -1)):
            only = d == sign * math.inf
            term = torch.where(only, end.limit, term)
            limit = end.limit if end.limit < math.inf else 0.0
            larger_side, other = (by_p, by_q) if sign > 0 else (by_q, by_p)
            larger_side, other = torch.where(only, limit, larger_side), torch.where(only, 0.0, other)
            out = (sign * d > end.reach) & ~only
            if end.rate == math.inf:
                term = torch.where(out, math.inf, term)
            elif end.limit == math.inf:
                beyond = torch.where(out, sign * d - end.reach, 0)
                grown = grown + end.rate * beyond + end.power * torch.log1p(beyond / end.scale)
                slope = term * (end.rate + end.power / (end.scale + beyond))
                larger_side, other = (
                    torch.where(out, term + slope, larger_side),
                    torch.where(out, -slope, other),
                )
            else:  # term / max(p, q) is constant
                larger_side, other = torch.where(out, term, larger_side), torch.where(out, 0.0, other)
            by_p, by_q = (larger_side, other) if sign > 0 else (other, larger_side)
        log_larger = torch.where(d > 0, pair.log_p(), pair.log_q())
        factors = larger, log_larger + torch.where(larger > 0, grown, 0), grown == 0
        return (
            _times(term, *factors, math.inf),
            _times(by_p, *factors, _LARGEST_LOG),
            _times(by_q, *factors, _LARGEST_LOG),
        )


def _times(x: Tensor, mass: Tensor, log_mass: Tensor, is_plain: Tensor, largest: float) -> Tensor:
    """Return x times a mass, and limit the logarithm of the product to `largest`.

    Where `is_plain`, the mass is `mass`; elsewhere, the mass is e^`log_mass`. The product is computed from logarithms
    where a factor or the product may underflow or overflow.
    """
    direct = is_plain & (mass > _SMALLEST_MASS) & (x.abs() < 1e290)
    product = torch.where(direct, x, 0) * torch.where(direct, mass, 0)
    by_logs = ~direct & (x != 0) & (log_mass > -math.inf)
    size = torch.where(by_logs, x, 1).abs()
    logs = torch.log(size) + torch.where(by_logs, log_mass, 0)
    return torch.where(by_logs, x.sign() * torch.exp(logs.clamp(max=largest)), product)


@dataclass(frozen=True, repr=False)
class OwnTerms(OfRatio):
    """A user's own additive divergence. Its `terms` are called only for masses of at least e^-700. For smaller masses,
    limits or extrapolations replace the terms.
    """

    kind: Divergence

    def __repr__(self) -> str:
        return repr(self.kind)

    @property
    def name(self) -> str:
        return self.kind.name

    @property
    def logarithmic(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.kind.logarithmic

    @property
    def instead_of_zero(self) -> Divergence | None:
        return self.kind.instead_of_zero

    @property
    def growth(self) -> Growth:
        return growth_of(self.kind)

    def per_mass(self, d: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return own_terms(self.kind, d)


def with_limits(kind: Divergence) -> Divergence:
    """Return `kind`, or `OwnTerms(kind)` unless f'(1) = 0 and no term is NaN where a mass is 0."""
    return kind if is_normalized(kind) else OwnTerms(kind)


@by_name()
@dataclass(frozen=True, repr=False)
class FDivergence(OfRatio):
    r"""The divergence that your own convex function f defines.

    .. math:: D_f(P \| Q) = \sum_i q_i\, f(p_i / q_i)

    The tangent of f at 1 is subtracted from f. This subtraction does not change the divergence, and makes every term
    non-negative. Autograd computes the derivatives of f. At p = 0 a term is q f(0). At q = 0 a term is p times the
    limit of f(r) / r as r goes to infinity. The limits and the growth of f decide which divergences of distributions
    are infinite.

    Arguments:
        f: a convex function with f(1) = 0. The function takes a tensor of positive ratios p / q and returns f of each
            element, computed with torch functions.
        f_at_zero: f(0), which may be `math.inf`. By default, the limit of f at 0 is measured in float64.
        slope_at_infinity: the limit of f(r) / r as r goes to infinity. By default, the limit is measured in float64.

    Raises:
        ArgumentTypeError: `f` is not a function, or does not return a tensor of the same shape as its argument.
        ArgumentValueError: f(1) is not 0, f is not convex, or a limit that you pass is not the limit of f.

    Gradient:
        autograd computes f'. Classes that make the value infinite contribute 0 to the gradient.

    Example:
        >>> import torch
        >>> from kullback import FDivergence, Probs, divergence
        >>> triangular = FDivergence(lambda r: (r - 1) ** 2 / (r + 1))
        >>> p, q = torch.tensor([0.36, 0.48, 0.16]), torch.full((3,), 1 / 3)
        >>> divergence(Probs(p), Probs(q), triangular)
        tensor(0.0884)

    References:
        A General Class of Coefficients of Divergence of One Distribution from Another (Ali and Silvey, 1966)
    """

    f: Callable[[Tensor], Tensor]
    f_at_zero: float | None = None
    slope_at_infinity: float | None = None

    def __post_init__(self) -> None:
        if not callable(self.f):
            raise invalid_type(
                "FDivergence", "f", wanted="a function of a tensor", got=safe_repr(self.f), instead=_EXAMPLE
            )
        ratios = torch.exp(torch.linspace(-_CHECKED, _CHECKED, 401, dtype=torch.float64, device="cpu"))
        try:
            value: object = self.f(ratios)
        except Exception as error:
            got = f"{getattr(self.f, '__name__', safe_repr(self.f))}, which raises {type(error).__name__}: {error}"
            wanted = "a function of a tensor, computed with torch functions"
            raise invalid_type("FDivergence", "f", wanted=wanted, got=got, instead=_EXAMPLE) from error
        if not isinstance(value, Tensor) or value.shape != ratios.shape:  # pyright: ignore[reportUnnecessaryIsInstance]
            raise invalid_type(
                "FDivergence",
                "f",
                wanted="a function that returns a tensor of the shape it gets",
                got=safe_repr(value),
                instead=_EXAMPLE,
            )
        at_one = float(self.f(torch.ones(1, dtype=torch.float64, device="cpu")))
        if not abs(at_one) <= 1e-9:
            raise invalid_value(
                "FDivergence",
                "f",
                wanted="f(1) = 0",
                got=f"f(1) = {at_one:g}",
                instead="lambda r: f(r) - f(1)",
            )
        with torch.no_grad():
            slope = self._slope(ratios)
        if not bool(value.isfinite().all()) or bool((slope.diff() < -1e-9 * (1 + slope[1:].abs())).any()):
            raise invalid_value(
                "FDivergence",
                "f",
                wanted="a convex function that is finite at positive numbers",
                got="a function with a decreasing slope or infinite values",
                instead=_EXAMPLE,
            )
        self._check_limit("f_at_zero", self.f_at_zero, self.growth.near.limit, self._tangent)
        self._check_limit("slope_at_infinity", self.slope_at_infinity, self.growth.far.limit, -self._tangent)

    def __repr__(self) -> str:
        limits = [
            f"{name}={limit!r}"
            for name in ("f_at_zero", "slope_at_infinity")
            if (limit := getattr(self, name)) is not None
        ]
        return f"FDivergence({', '.join([getattr(self.f, '__qualname__', safe_repr(self.f)), *limits])})"

    def _check_limit(self, name: str, claimed: float | None, limit: float, tangent: float) -> None:
        if claimed is None:
            return
        measured = limit - tangent  # the limit of f, without the subtraction of f's tangent
        is_near = math.isfinite(measured) and abs(number_from(claimed) - measured) <= _AGREE * (
            1 + abs(measured)
        )
        if not (is_near or claimed == measured):
            raise invalid_value(
                "FDivergence",
                name,
                wanted=f"the limit of f, which is {measured:g} in float64",
                got=safe_repr(claimed),
                instead=f"FDivergence(f) without {name}, or another f",
            )

    @functools.cached_property
    def _tangent(self) -> float:
        """The slope of f at 1. If f has a corner at 1, the slope is between the slopes of f on both sides."""
        return float(self._slope(torch.ones(1, dtype=torch.float64, device="cpu")))

    def _slope(self, r: Tensor) -> Tensor:
        return torch.func.grad(lambda x: self.f(x).sum())(r)

    @functools.cached_property
    def growth(self) -> Growth:  # pyright: ignore[reportIncompatibleMethodOverride]
        with torch.no_grad():
            far, near = (end_of(lambda d: self._direct(d)[0], sign) for sign in (1, -1))
            return Growth(far, near, corners_of(lambda d: self._slope(torch.exp(d))))

    @functools.cached_property
    def _is_smooth(self) -> bool:
        """Whether f is smooth near 1, so that `_close` agrees with `_direct` where |d| <= _NEAR."""
        d = torch.linspace(-_NEAR, _NEAR, 60, dtype=torch.float64, device="cpu")
        with torch.no_grad():
            pairs = zip(self._direct(d), self._close(d), strict=True)
            return all(bool(((a - b).abs() <= 1e-9 * b.abs() + 1e-13).all()) for a, b in pairs)

    def per_mass(self, d: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        term, by_p = self._direct(d)
        if self._is_smooth:
            near = d.abs() < _NEAR
            close = self._close(torch.where(near, d, 0))
            term, by_p = torch.where(near, close[0], term), torch.where(near, close[1], by_p)
        return term, by_p, term - by_p

    def _direct(self, d: Tensor) -> tuple[Tensor, Tensor]:
        """Return g(r) and r g'(r) for g(r) = f(r) - f'(1) (r - 1) and r = e^d, each divided by max(r, 1)."""
        r = torch.exp(d)
        scale, steps = torch.exp(-d.clamp(min=0)), torch.expm1(-d.abs()).abs() * d.sign()
        term = self.f(r) * scale - self._tangent * steps
        return term.clamp(min=0), (self._slope(r) - self._tangent) * torch.exp(d.clamp(max=0))

    def _close(self, d: Tensor) -> tuple[Tensor, Tensor]:
        """Return the results of `_direct` for r near 1, computed by quadrature over s from 0 to 1.

        With g as in `_direct`, g(r) is (r - 1)^2 int (1 - s) f''(1 + s (r - 1)) ds, and g'(r) is (r - 1) int f''(1 + s
        (r - 1)) ds.
        """
        step = torch.expm1(d)
        value, slope = torch.zeros_like(d), torch.zeros_like(d)
        for s, weight in _RULE:
            bend = weight * torch.func.grad(lambda r: self._slope(r).sum())(1 + s * step)
            value, slope = value + (1 - s) * bend, slope + bend
        scale = torch.exp(-d.clamp(min=0))
        return (value * step * step * scale).clamp(min=0), slope * step * torch.exp(d.clamp(max=0))
