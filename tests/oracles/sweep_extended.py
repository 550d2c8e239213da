"""The divergences of the sweep's random pairs in extended precision: for thousands of pairs, where mpmath is too slow.

The densities are written again from their definitions, for arrays of numpy's `longdouble` (64 bits of mantissa on
x86); derivatives along a direction are central differences of the logarithms. Panels begin where those of
`sweep.py` begin and are halved until two Gauss rules agree. Every truth has an error of its own.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import mpmath
import numpy as np
from mpmath import mpf

from tests.oracles.sweep import (
    KINDS,
    POWERS,
    Piece,
    Spec,
    cuts,
    ends,
    parameters,
    pieces,
    with_parameters,
)

Array = Any
Real = np.longdouble
EPS = float(np.finfo(Real).eps)
# numpy's longdouble is float64 on some machines, which is no truth.
IS_EXTENDED = EPS < 2e-19
_STEP = Real(10) ** -5
# Of second derivatives, in units of the direction.
_SECOND_STEP = 1e-3
# The largest logarithm of a distance: beyond, a longdouble overflows.
_FARTHEST = 11_000.0
_DEPTH = 60
_MOST_PANELS = 60_000
# Of the derivatives whose differences are second derivatives: where more are needed, these stay unknown.
SECOND_PANELS = 2_000
# What of the sum of sizes two rules may differ by on a panel: of values, of derivatives.
_AGREE = (1e-17, 1e-12)
# What of the sum of sizes may lie on the outermost panels.
_LEFT = 1e-17
# What part of the sum of sizes a panel has on which no corner matters.
_SMALL = 1e-18


@dataclass(frozen=True)
class Truth:
    """Values, what each may be off by, and derivatives along a direction; None where they are not known."""

    values: dict[str, float | None]
    errors: dict[str, float]
    derivatives: dict[str, float | None]


@dataclass(frozen=True)
class At:
    """Points of a piece, and the logarithms of their distances from its ends."""

    x: Array
    low: float | None = None
    log_above: Array = None
    high: float | None = None
    log_below: Array = None

    def log_minus(self, edge: float) -> Array:
        return self.log_above if self.low is not None and edge == self.low else np.log(self.x - edge)

    def log_until(self, edge: float) -> Array:
        return self.log_below if self.high is not None and edge == self.high else np.log(edge - self.x)


def real(x: Any) -> Any:
    """Return a number of mpmath as a longdouble."""
    high = float(x)
    return Real(high) + Real(float(x - mpf(high))) if math.isfinite(high) else Real(high)


def log_gamma(x: Any) -> Any:
    high = float(x)
    with mpmath.workdps(30):
        return real(mpmath.loggamma(mpf(high) + mpf(float(x - Real(high)))))


# ---- Densities.


def log_density(spec: Spec, at: At, plain: Spec) -> Array:
    """The logarithm of the density; `plain` is the specification that is not moved, which tells the ends."""
    family, a = spec[0], spec[1:]
    if family in _ON_LINE:
        return _ON_LINE[family]((at.x - a[-2]) / a[-1], *a[:-2]) - np.log(a[-1])
    if family == "Mixture":
        logs = [
            np.log(w / sum(a[0])) + log_density(part, at, known)
            for w, part, known in zip(a[0], a[1:], plain[2:], strict=True)
        ]
        return np.logaddexp.reduce(np.stack(logs), axis=0)
    low, high = (None if end is None else real(mpf(end)) for end in ends(plain))
    found = _inside(family, a, at, plain, low, high)
    outside = np.zeros(at.x.shape, dtype=bool)
    if low is not None and at.low != low:
        outside |= at.x <= low
    if high is not None and at.high != high:
        outside |= at.x >= high
    return np.where(outside, -np.inf, found)


def _inside(family: str, a: list[Any], at: At, plain: Spec, low: Any, high: Any) -> Array:
    if family in _POSITIVE:
        return _POSITIVE[family](at.log_minus(0.0), *a)
    if family == "Beta":
        constant = log_gamma(a[0] + a[1]) - log_gamma(a[0]) - log_gamma(a[1])
        return constant + (a[0] - 1) * at.log_minus(0.0) + (a[1] - 1) * at.log_until(1.0)
    if family == "Kumaraswamy":
        log_rest = at.log_until(1.0)
        log_x = np.where(at.x > 0.5, np.log1p(-np.exp(np.minimum(log_rest, -0.1))), at.log_minus(0.0))
        tiny = a[0] * log_x > -1e-4900
        inner = np.where(
            tiny, np.log(a[0]) + log_rest, np.log(-np.expm1(np.where(tiny, Real(-1), a[0] * log_x)))
        )
        return np.log(a[0]) + np.log(a[1]) + (a[0] - 1) * log_x + (a[1] - 1) * inner
    if family == "Pareto":
        return np.log(a[1]) + a[1] * np.log(a[0]) - (a[1] + 1) * np.log(at.x)
    if family == "Uniform":
        return -np.log(a[1] - a[0]) + 0 * at.x
    if family == "Exp":
        y = at.log_minus(0.0) if low == 0 else np.log(at.x)
        first, last = (None if end is None else real(mpf(end)) for end in ends(plain[1]))
        above = None if first is None else np.log(np.log1p(np.exp(at.log_minus(low)) / low))
        below = None if last is None else np.log(-np.log1p(-np.exp(at.log_until(high)) / high))
        return log_density(a[0], At(y, first, above, last, below), plain[1]) - y
    loc, scale, part = a
    first, last = (None if end is None else real(mpf(end)) for end in ends(plain[3]))
    rises, log_size = plain[2] > 0, np.log(abs(scale))
    x = (at.x - loc) / scale
    above = below = None
    if first is not None:
        above = (at.log_minus(low) if rises else at.log_until(high)) - log_size
        x = np.where(above < 0, first + np.exp(above), x)
    if last is not None:
        below = (at.log_until(high) if rises else at.log_minus(low)) - log_size
        x = np.where(below < -1, last - np.exp(below), x)
    return log_density(part, At(x, first, above, last, below), plain[3]) - log_size


def _student_t(z: Array, n: Any) -> Array:
    constant = log_gamma((n + 1) / 2) - log_gamma(n / 2) - np.log(n * _PI) / 2
    return constant - (n + 1) / 2 * np.logaddexp(0, 2 * np.log(abs(z)) - np.log(n))


def _gamma(log_x: Array, a: Any, rate: Any) -> Array:
    return a * np.log(rate) - log_gamma(a) + (a - 1) * log_x - rate * np.exp(log_x)


_PI = real(mpmath.mp.pi)
_LOG_ROOT_2_PI = np.log(2 * _PI) / 2
_ON_LINE: dict[str, Callable[..., Array]] = {
    "Normal": lambda z: -z * z / 2 - _LOG_ROOT_2_PI,
    "Laplace": lambda z: -abs(z) - np.log(Real(2)),
    "Cauchy": lambda z: -np.logaddexp(0, 2 * np.log(abs(z))) - np.log(_PI),
    "Gumbel": lambda z: -z - np.exp(-z),
    "StudentT": _student_t,
}
_POSITIVE: dict[str, Callable[..., Array]] = {
    "Gamma": _gamma,
    "InverseGamma": lambda log_x, a, rate: _gamma(-log_x, a, rate) - 2 * log_x,
    "LogNormal": lambda log_x, loc, scale: (
        -(((log_x - loc) / scale) ** 2) / 2 - np.log(scale) - _LOG_ROOT_2_PI - log_x
    ),
    "Weibull": lambda log_x, scale, k: (
        np.log(k) + (k - 1) * log_x - k * np.log(scale) - np.exp(k * (log_x - np.log(scale)))
    ),
    "HalfNormal": lambda log_x, scale: (
        np.log(Real(2)) / 2 - np.log(_PI) / 2 - np.log(scale) - np.exp(2 * (log_x - np.log(scale))) / 2
    ),
    "HalfCauchy": lambda log_x, scale: (
        np.log(2 / (_PI * scale)) - np.logaddexp(0, 2 * (log_x - np.log(scale)))
    ),
}


def points_of(piece: Piece, t: Array) -> tuple[At, Array]:
    """The points at t, and the logarithm of dx/dt, as `Piece.point` has them."""
    low, high = (None if end is None else real(mpf(end)) for end in (piece.low, piece.high))
    if low is None and high is None:
        return At(t), np.zeros_like(t)
    if high is None:
        return At(low + np.exp(t), low, t), t
    if low is None:
        return At(high - np.exp(-t), None, None, high, -t), -t
    log_width = np.log(high - low)
    log_above, log_below = log_width - np.logaddexp(0, -t), log_width - np.logaddexp(0, t)
    x = np.where(t < 0, low + np.exp(log_above), high - np.exp(log_below))
    return At(x, low, log_above, high, log_below), log_above + log_below - log_width


# ---- Integrands and integrals.


def integrands(a: Array, b: Array, da: Array, db: Array) -> Array:
    """Value and derivative of each kind's integrand, in turn, from log p, log q and their derivatives."""
    there_p, there_q = a > -np.inf, b > -np.inf
    p, q = np.exp(a), np.exp(b)
    a, b = np.where(there_p, a, 0), np.where(there_q, b, 0)
    da, db = np.where(there_p, da, 0), np.where(there_q, db, 0)
    both = there_p & there_q
    found = [
        np.where(there_p & ~there_q, np.where(p > 0, np.inf, 0), p * (a - b)),
        np.where(both & (p > 0), p * (da * (1 + a - b) - db), 0),
    ]
    slope_p, slope_q = np.where(p > 0, da, 0), np.where(q > 0, db, 0)
    for beta, is_js in ((Real("0.5"), True), (Real("0.1"), False)):
        log_m = np.logaddexp(
            np.where(there_p, a + np.log(beta), -np.inf), np.where(there_q, b + np.log1p(-beta), -np.inf)
        )
        m = np.exp(log_m)
        log_m = np.where(m > 0, log_m, 0)
        dm = np.where(m > 0, (beta * p * slope_p + (1 - beta) * q * slope_q) / np.where(m > 0, m, 1), 0)
        first = p * (a - log_m), p * (slope_p * (1 + a - log_m) - dm)
        second = q * (b - log_m), q * (slope_q * (1 + b - log_m) - dm)
        found += [(first[i] + second[i]) / 2 for i in (0, 1)] if is_js else list(first)
    found += [abs(p - q) / 2, (p * slope_p - q * slope_q) * np.where(p > q, 1, -1) / 2]
    for alpha in POWERS.values():
        order = Real(str(alpha))
        inside = np.full(a.shape, 0 < alpha < 1) | ((alpha < 0) & ~there_q) | ((alpha > 1) & ~there_p)
        power = np.where(both, np.exp(order * a + (1 - order) * b), np.where(inside, 0, np.inf))
        power = np.where(there_p | there_q, power, 0)
        slope = order * da + (1 - order) * db
        found += [power, np.where(both & (power > 0), power * slope, 0)]
    return np.stack(found)


_COUNT = 2 * len(KINDS)
_HAS_CORNERS = np.arange(_COUNT) // 2 == KINDS.index("TotalVariation")
_TOLERANCES = np.array([_AGREE[i % 2] for i in range(_COUNT)])


class Integrator:
    """Integrates all kinds of a pair at once."""

    def __init__(self, p: Spec, q: Spec, direction: list[float], most_panels: int = _MOST_PANELS) -> None:
        self.plain, self.most_panels = (p, q), most_panels
        known, size = [Real(x) for x in parameters(p) + parameters(q)], len(parameters(p))
        # Logarithms of densities have terms of the size of the largest shape, and change by that in a relative step.
        self.largest = max([1.0, *(abs(x) for x in _shapes(p) + _shapes(q))])
        self.step = _STEP / Real(max(1.0, self.largest / 100))
        self.sides: list[tuple[Spec, Spec]] = []
        for sign in (0, 1, -1, 2, -2):
            moved = [x + sign * self.step * Real(d) for x, d in zip(known, direction, strict=True)]
            self.sides.append((with_parameters(p, moved[:size]), with_parameters(q, moved[size:])))

    def rule(self, piece: Piece, low: Array, high: Array, rule: tuple[Array, Array]) -> tuple[Array, ...]:
        """Integrals, integrals of sizes, and what rounding may change, of all integrands on each panel."""
        nodes, weights = rule
        half = ((high - low) / 2)[:, None]
        t = ((high + low) / 2)[
            :, None
        ] + half * nodes  # the ends have no weight, but show where densities cross
        at, log_jacobian = points_of(piece, t)
        logs = [
            [log_density(s, at, plain) for s, plain in zip(side, self.plain, strict=True)]
            for side in self.sides
        ]
        near, far = ([logs[k][i] - logs[k + 1][i] for i in (0, 1)] for k in (1, 3))
        slopes = [(8 * x - y) / (12 * self.step) for x, y in zip(near, far, strict=True)]
        a, b = (x + log_jacobian for x in logs[0])
        f = integrands(a, b, *slopes)
        sizes = (abs(f) * weights * half).sum(-1)
        rounding = (self.changes(f, a, b) * weights * half).sum(-1)
        rounding[1::2] = rounding[::2] / self.step  # a difference of logarithms is divided by the step
        rounding += abs(np.diff(f, axis=-1)).sum(-1) * abs(t).max(-1)
        above = a > b
        crosses = (above.any(-1) & ~above.all(-1) & np.isfinite(a).all(-1))[None] & _HAS_CORNERS[:, None]
        return (f * weights * half).sum(-1), sizes, 4 * EPS * rounding, crosses

    def changes(self, f: Array, a: Array, b: Array) -> Array:
        """How much of each integrand changes with a relative change of log p and of log q."""
        p, q = np.exp(a), np.exp(b)
        a, b = (np.where(np.isfinite(x), x, 0) for x in (a, b))
        of_p, of_q = (3 + 10 * self.largest + abs(x) for x in (a, b))
        found = abs(f) * (of_p + of_q)
        found[: 2 * len(KINDS) - 2 * len(POWERS)] = p * of_p + q * of_q + abs(f[: -2 * len(POWERS)])
        found[0] = p * (1 + abs(a - b)) * of_p + p * of_q
        return found

    def over(self, piece: Piece) -> tuple[Array, Array, Array]:
        """Integrals over a piece, their errors, and what of them is not known."""
        edges = cuts(piece, self.plain)
        limit = mpf(10) ** 60 if piece.low is None and piece.high is None else mpf(_FARTHEST)
        at = np.array([real(t) for t in edges if abs(t) <= limit])
        at = np.unique(at)
        low, high = at[:-1], at[1:]
        coarse, *_ = self.rule(piece, low, high, _RULES[0])
        fine, sizes, rounding, crosses = self.rule(piece, low, high, _RULES[1])
        scale = sizes.sum(-1)
        unknown = ~np.isfinite(scale)
        total, error = np.zeros(_COUNT, Real), np.zeros(_COUNT, Real)
        for first, before in ((0, 2), (-1, -3)):
            last = sizes[:, first]
            left = last > _LEFT * scale
            diverges = left & (last >= sizes[:, before])
            total = np.where(diverges & (np.arange(_COUNT) % 2 == 0), np.inf, total)
            unknown |= left & ~diverges
        total = np.where(np.isposinf(scale), np.inf, total)
        error += np.where(np.isfinite(scale), 10 * _LEFT * scale, 0)
        wanted = ~unknown & np.isfinite(total)
        for depth in range(_DEPTH + 1):
            off = abs(fine - coarse)
            tolerance = (_TOLERANCES * scale)[:, None]
            bad = off > np.maximum(tolerance, rounding)
            bad = (bad | crosses & (sizes > _SMALL * scale[:, None])) & wanted[:, None]
            again = bad.any(0) if depth < _DEPTH and low.size < self.most_panels else np.zeros(low.size, bool)
            total += fine[:, ~again].sum(-1)
            error += (np.where(bad, off, np.minimum(off, tolerance)) + rounding)[:, ~again].sum(-1)
            if not again.any():
                break
            middle = (low[again] + high[again]) / 2
            low, high = np.concatenate([low[again], middle]), np.concatenate([middle, high[again]])
            coarse, *_ = self.rule(piece, low, high, _RULES[0])
            fine, sizes, rounding, crosses = self.rule(piece, low, high, _RULES[1])
        return total, error, unknown


def _shapes(spec: Spec) -> list[float]:
    """The shapes of a specification."""
    if spec[0] in ("Gamma", "InverseGamma"):
        return spec[1:2]
    if spec[0] in ("Beta", "Kumaraswamy"):
        return spec[1:]
    return [
        x for part in spec[1:] if isinstance(part, list) and isinstance(part[0], str) for x in _shapes(part)
    ]


def _gauss(count: int) -> tuple[Array, Array]:
    with mpmath.workdps(30):
        nodes: list[Any] = []
        weights: list[Any] = []
        for start in np.polynomial.legendre.leggauss(count)[0]:
            x = mpf(float(start))
            for _ in range(4):
                x -= mpmath.legendre(count, x) / _slope(count, x)
            nodes.append(real(x))
            weights.append(real(2 / ((1 - x * x) * _slope(count, x) ** 2)))
    return np.array([Real(-1), *nodes, Real(1)]), np.array([Real(0), *weights, Real(0)])


def _slope(count: int, x: Any) -> Any:
    return count * (x * mpmath.legendre(count, x) - mpmath.legendre(count - 1, x)) / (x * x - 1)


_RULES = [_gauss(14), _gauss(21)]


def truth(p: Spec, q: Spec, direction: list[float], most_panels: int = _MOST_PANELS) -> Truth:
    """The divergences of two specifications, and their derivatives along a direction of all parameters."""
    with np.errstate(all="ignore"), mpmath.workdps(30):
        integrator = Integrator(p, q, direction, most_panels)
        parts: list[Any] = [integrator.over(piece) for piece in pieces(p, q)]
        total, error = (np.sum([part[i] for part in parts], axis=0) for i in (0, 1))
        unknown = np.logical_or.reduce([part[2] for part in parts])
        values: dict[str, float | None] = {}
        errors: dict[str, float] = {}
        derivatives: dict[str, float | None] = {}
        for k, kind in enumerate(KINDS):
            i = 2 * k
            value, slope = (None if unknown[j] else total[j] for j in (i, i + 1))
            found = _finished(kind, value, slope, error[i], error[i + 1])
            values[kind], errors[kind], derivatives[kind] = found
    return Truth(values, errors, derivatives)


def second_derivatives(p: Spec, q: Spec, direction: list[float]) -> dict[str, float | None]:
    """Central differences of the derivatives along a direction; None where two steps do not agree."""
    count = len(parameters(p))

    def slopes(step: float) -> dict[str, float | None]:
        sides: list[Spec] = []
        for spec, along in ((p, direction[:count]), (q, direction[count:])):
            pairs = zip(parameters(spec), along, strict=True)
            sides.append(with_parameters(spec, [x + step * by for x, by in pairs]))
        return truth(sides[0], sides[1], direction, SECOND_PANELS).derivatives

    found: dict[str, float | None] = {}
    near, far = ([slopes(side * step) for side in (1, -1)] for step in (_SECOND_STEP, 2 * _SECOND_STEP))
    for kind in KINDS:
        ends = [each[kind] for pair in (near, far) for each in pair]
        found[kind] = None
        if None not in ends:
            above, below, further, lower = (float(x) for x in ends if x is not None)
            one, two = (above - below) / (2 * _SECOND_STEP), (further - lower) / (4 * _SECOND_STEP)
            if abs(one - two) <= 1e-3 * abs(one) + 1e-9:
                found[kind] = (4 * one - two) / 3
    return found


def _finished(kind: str, value: Any, slope: Any, error: Any, slope_error: Any) -> tuple[Any, float, Any]:
    """Turn the integral of p^alpha q^(1 - alpha) into the divergence."""
    if value is None or np.isnan(value):
        return None, math.inf, None
    if np.isinf(value):
        return math.inf, 0.0, None
    if slope is not None and not slope_error <= 1e-7 * abs(slope) + 1e-10:
        slope = None
    if kind in POWERS:
        alpha = Real(str(POWERS[kind]))
        if kind.startswith("Renyi"):
            if not value > 0:
                return None, math.inf, None
            factor = 1 / (alpha - 1) / value
            value = np.log(value) / (alpha - 1)
        else:
            factor = {"ChiSquared": 2, "SquaredHellinger": Real("0.25")}.get(kind, 1) / (alpha * (alpha - 1))
            value = (value - 1) * factor
        error, slope = abs(factor) * error, None if slope is None else slope * factor
    if not error <= 1e-9 * abs(value) + 1e-11:
        return None, math.inf, None
    value = float(value)
    return value, float(error), None if slope is None or math.isinf(value) else float(slope)
