"""Random hard pairs of distributions on the line, and their divergences by mpmath, values and directional derivatives.

A distribution is a specification that JSON holds: ``["Normal", loc, scale]``, ``["Mixture", weights, part, part ...]``,
``["Exp", part]``, ``["Affine", loc, scale, part]`` or ``["Sigmoid", part]``. Its density is written here from its
definition, with complex parameters: the derivative along a direction is the imaginary part at a tiny imaginary step.
Integrals run over each piece of the line on which both densities are smooth, in a variable that knows the distance
from its ends, on panels around every location at every scale, bisected until two Gauss rules agree.
"""

from __future__ import annotations

import functools
import gzip
import itertools
import json
import math
import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mpmath
from mpmath import mp, mpc, mpf

Spec = list[Any]
TRUTHS = Path(__file__).parents[1] / "data" / "sweep_truths.json.gz"
DIGITS = 34
STEP = mpf(10) ** -24
AGREE = mpf(10) ** -17
_DEPTH = 12
# The logarithm of a density beyond which nothing is integrated.
_SMALLEST = mpf(20_000)
# Kinds by name; the orders of the powers.
POWERS = {
    "Alpha(.3)": 0.3,
    "ChiSquared": 2.0,
    "SquaredHellinger": 0.5,
    "Renyi(.5)": 0.5,
    "Renyi(2)": 2.0,
    "Alpha(-.5)": -0.5,
}
KINDS = ("KL", "JensenShannon", "SkewKL(.1)", "TotalVariation", *POWERS)
# The largest logarithm of a distance that is integrated.
FARTHEST = mpf(30_000)


# ---- Points and densities.


@dataclass(frozen=True)
class Point:
    """A number, and its distances from the ends of the piece it lies on."""

    x: Any
    low: float | None = None
    above: Any = None
    high: float | None = None
    below: Any = None

    def minus(self, edge: Any) -> Any:
        return self.above if self.low is not None and edge == self.low else self.x - edge

    def until(self, edge: Any) -> Any:
        return self.below if self.high is not None and edge == self.high else edge - self.x


def ends(spec: Spec) -> tuple[float | None, float | None]:
    """Where the support begins and ends."""
    family = spec[0]
    if family in ("Gamma", "LogNormal", "Weibull", "InverseGamma", "HalfNormal", "HalfCauchy"):
        return 0.0, None
    if family in ("Beta", "Kumaraswamy"):
        return 0.0, 1.0
    if family == "Pareto":
        return spec[1], None
    if family == "Uniform":
        return spec[1], spec[2]
    if family == "Mixture":
        low, high = zip(*(ends(part) for part in spec[2:]), strict=True)
        return (None if None in low else min(low)), (None if None in high else max(high))
    if family == "Exp":
        low, high = ends(spec[1])
        return (0.0 if low is None else mpmath.exp(low)), (None if high is None else mpmath.exp(high))
    if family == "Sigmoid":
        return 0.0, 1.0
    if family == "Affine":
        low, high = ends(spec[3])
        found = [None if end is None else mpf(spec[1]) + mpf(spec[2]) * end for end in (low, high)]
        return (found[0], found[1]) if spec[2] > 0 else (found[1], found[0])
    return None, None


def parameters(spec: Spec) -> list[float]:
    """The numbers of a specification, in their order."""
    return [
        x for part in spec[1:] for x in ([part] if isinstance(part, int | float) else parameters_of(part))
    ]


def parameters_of(part: Any) -> list[float]:
    if isinstance(part, list) and part and isinstance(part[0], str):
        return parameters(part)
    return list(part)


def with_parameters(spec: Spec, values: list[Any]) -> Spec:
    """The same specification with other numbers, taken from the front of the list."""
    made: Spec = [spec[0]]
    for part in spec[1:]:
        if isinstance(part, int | float):
            made.append(values.pop(0))
        elif part and isinstance(part[0], str):
            made.append(with_parameters(part, values))
        else:
            made.append([values.pop(0) for _ in part])
    return made


@functools.lru_cache(maxsize=10_000)
def loggamma(x: Any) -> Any:
    return mpmath.loggamma(x)


@functools.lru_cache(maxsize=10_000)
def log_of(x: Any) -> Any:
    """The logarithm of a parameter, remembered."""
    return mpmath.log(x)


def log_sum(logs: list[Any]) -> Any:
    top = max(mpmath.re(x) for x in logs)
    if top == -mpmath.inf:
        return mpc(-mpmath.inf)
    return top + mpmath.log(sum((mpmath.exp(x - top) for x in logs if mpmath.re(x) - top > -200), mpf(0)))


def log_density(spec: Spec, at: Point, plain: Spec) -> Any:
    """The logarithm of the density; `plain` is the specification with real numbers, which tell the ends."""
    family, a = spec[0], spec[1:]
    log = mpmath.log
    if family in ("Normal", "Laplace", "Cauchy", "Gumbel", "StudentT"):
        loc, scale = a[-2], a[-1]
        z = (at.x - loc) / scale
        if family == "Normal":
            return -z * z / 2 - log_of(scale) - log_of(2 * mp.pi) / 2
        if family == "Laplace":
            return (z if mpmath.re(z) < 0 else -z) - log_of(2 * scale)
        if family == "Cauchy":
            return -log(1 + z * z) - log_of(mp.pi * scale)
        if family == "Gumbel":
            return mpc(-mpmath.inf) if mpmath.re(z) < -1e5 else -z - mpmath.exp(-z) - log_of(scale)
        n = a[0]
        constant = loggamma((n + 1) / 2) - loggamma(n / 2) - log_of(n * mp.pi) / 2 - log_of(scale)
        return constant - (n + 1) / 2 * log(1 + z * z / n)
    low, high = ends(plain)
    if (low is not None and at.x <= low and not at.minus(low) > 0) or (
        high is not None and at.x >= high and not at.until(high) > 0
    ):
        return mpc(-mpmath.inf)
    if family in _POSITIVE:
        return _POSITIVE[family](at.minus(0.0), log(at.minus(0.0)), *a)
    if family == "Beta":
        constant = loggamma(a[0] + a[1]) - loggamma(a[0]) - loggamma(a[1])
        return constant + (a[0] - 1) * log(at.minus(0.0)) + (a[1] - 1) * log(at.until(1.0))
    if family == "Kumaraswamy":
        log_x = mpmath.log1p(-at.until(1.0)) if at.x > 0.5 else log(at.minus(0.0))
        inner = log(-mpmath.expm1(a[0] * log_x))
        return log_of(a[0]) + log_of(a[1]) + (a[0] - 1) * log_x + (a[1] - 1) * inner
    if family == "Pareto":
        return log_of(a[1]) + a[1] * log_of(a[0]) - (a[1] + 1) * log(at.x)
    if family == "Uniform":
        return -log(a[1] - a[0])
    if family == "Mixture":
        total = sum(a[0])
        parts = zip(a[0], a[1:], plain[2:], strict=True)
        return log_sum([log_of(w / total) + log_density(part, at, known) for w, part, known in parts])
    if family == "Exp":
        inner_low, inner_high = ends(plain[1])
        y = log(at.minus(0.0)) if low == 0 else log(at.x)
        inner = Point(
            y,
            inner_low,
            None if inner_low is None else mpmath.log1p(at.minus(low) / low),
            inner_high,
            None if inner_high is None else -mpmath.log1p(-at.until(high) / high),
        )
        return log_density(a[0], inner, plain[1]) - y
    if family == "Sigmoid":
        log_x, log_rest = log(at.minus(0.0)), log(at.until(1.0))
        return log_density(a[0], Point(log_x - log_rest), plain[1]) - log_x - log_rest
    loc, scale, part = a
    inner_low, inner_high = ends(plain[3])
    first, last = (low, high) if plain[2] > 0 else (high, low)
    size = scale if plain[2] > 0 else -scale
    above = at.minus if plain[2] > 0 else at.until
    below = at.until if plain[2] > 0 else at.minus
    inner = Point(
        (at.x - loc) / scale,
        inner_low,
        None if inner_low is None else above(first) / size,
        inner_high,
        None if inner_high is None else below(last) / size,
    )
    return log_density(part, inner, plain[3]) - log_of(size)


def _gamma(x: Any, log_x: Any, a: Any, rate: Any) -> Any:
    return a * log_of(rate) - loggamma(a) + (a - 1) * log_x - rate * x


_POSITIVE: dict[str, Callable[..., Any]] = {
    "Gamma": _gamma,
    "InverseGamma": lambda x, log_x, a, rate: _gamma(1 / x, -log_x, a, rate) - 2 * log_x,
    "LogNormal": lambda x, log_x, loc, scale: -(((log_x - loc) / scale) ** 2) / 2
    - log_of(scale)
    - log_of(2 * mp.pi) / 2
    - log_x,
    "Weibull": lambda x, log_x, scale, k: log_of(k)
    + (k - 1) * log_x
    - k * log_of(scale)
    - mpmath.exp(k * (log_x - log_of(scale))),
    "HalfNormal": lambda x, log_x, scale: log_of(2 / mp.pi) / 2 - log_of(scale) - (x / scale) ** 2 / 2,
    "HalfCauchy": lambda x, log_x, scale: log_of(2 / (mp.pi * scale)) - mpmath.log(1 + (x / scale) ** 2),
}  # fmt: skip


# ---- Pieces of the line, and panels on them.


@dataclass(frozen=True)
class Piece:
    """A part of the line between two ends, and the variable t that runs over all reals on it."""

    low: Any
    high: Any

    def point(self, t: Any) -> tuple[Point, Any]:
        """The point at t, and the logarithm of dx/dt."""
        if self.low is None and self.high is None:
            return Point(t), mpf(0)
        if self.high is None:
            d = mpmath.exp(t)
            return Point(self.low + d, self.low, d), t
        if self.low is None:
            d = mpmath.exp(-t)
            return Point(self.high - d, None, None, self.high, d), -t
        width = self.high - self.low
        above, below = width / (1 + mpmath.exp(-t)), width / (1 + mpmath.exp(t))
        x = self.low + above if t < 0 else self.high - below
        return Point(x, self.low, above, self.high, below), mpmath.log(above) + mpmath.log(
            below
        ) - mpmath.log(width)

    def t(self, x: Any) -> Any | None:
        """The variable at x, None outside."""
        if (self.low is not None and x <= self.low) or (self.high is not None and x >= self.high):
            return None
        if self.low is None:
            return mpf(x) if self.high is None else -mpmath.log(self.high - x)
        above = mpmath.log(mpf(x) - self.low)
        return above if self.high is None else above - mpmath.log(self.high - x)


def peaks(spec: Spec) -> list[tuple[Any, Any]]:
    """Where a density has its peaks and bends, as pairs of x and a width in x."""
    family, a = spec[0], spec[1:]
    if family in ("Normal", "Laplace", "Cauchy", "Gumbel", "StudentT"):
        return [(mpf(a[-2]), mpf(a[-1]))]
    if family == "Mixture":
        return [peak for part in a[1:] for peak in peaks(part)]
    if family == "Gamma":
        return [
            (a[0] / mpf(a[1]), mpmath.sqrt(a[0]) / a[1]),
            ((a[0] + 1) / mpf(a[1]), (a[0] + 1) / mpf(a[1]) / 4),
        ]
    if family == "InverseGamma":
        x = a[1] / (mpf(a[0]) + 1)
        return [(x, x / mpmath.sqrt(a[0])), (x, x / 4)]
    if family == "LogNormal":
        x = mpmath.exp(mpf(a[0]))
        return [(x, x * min(a[1], mpf(1) / 2)), (x * mpmath.exp(a[1] ** 2 if a[1] < 5 else 25), x)]
    if family == "Weibull":
        return [(mpf(a[0]), a[0] / mpf(max(a[1], 1)) / 2)]
    if family in ("HalfNormal", "HalfCauchy"):
        return [(mpf(a[0]), mpf(a[0]) / 2)]
    if family in ("Beta", "Kumaraswamy"):
        x = mpf(a[0]) / (a[0] + a[1])
        return [(x, mpmath.sqrt(x * (1 - x) / (a[0] + a[1] + 1)))]
    if family == "Pareto":
        return [(a[0] * mpf(2), mpf(a[0]))]
    if family == "Uniform":
        return [((mpf(a[0]) + a[1]) / 2, (mpf(a[1]) - a[0]) / 8)]
    if family == "Affine":
        return [(a[0] + a[1] * x, abs(a[1]) * w) for x, w in peaks(a[2])]
    if family == "Exp":
        return [(mpmath.exp(x), mpmath.exp(x) * min(w, mpf(1) / 2)) for x, w in peaks(a[0]) if abs(x) < 600]
    return [
        (mpmath.exp(x) / (1 + mpmath.exp(x)), w * mpmath.exp(x) / (1 + mpmath.exp(x)) ** 2)
        for x, w in peaks(a[0])
    ]


_STEPS = [0, 1, 2, 4, 8, 16, 40]


def cuts(piece: Piece, specs: tuple[Spec, Spec]) -> list[Any]:
    """Where panels begin and end: around every peak at every scale up to the next, and geometrically far out."""
    found: set[Any] = {mpf(0)}
    centers: list[Any] = []
    for spec in specs:
        for x, w in peaks(spec):
            t = piece.t(x)
            if t is None:
                continue
            _, log_jacobian = piece.point(t)
            width = w * mpmath.exp(-log_jacobian)
            centers.append((t, width))
            found |= {t + side * step * width for step in _STEPS for side in (-1, 1)}
    on_line = piece.low is None and piece.high is None
    for t, width in centers or [(mpf(0), mpf(1))]:
        size = max(width, mpf(10) ** -12 * (1 + abs(t)))
        reach = mpf(40) * size
        while reach < (mpf(10) ** 60 if on_line else FARTHEST):
            found |= {t - reach, t + reach}
            reach *= 4 if on_line else 2
    limit = mpf(10) ** 60 if on_line else FARTHEST
    return sorted(t for t in found if abs(t) <= limit)


# ---- The divergences.


def integrands(kind_logs: tuple[Any, Any, Any, Any]) -> list[Any]:
    """Value and derivative of the integrand of each kind, from log p, log q and their derivatives."""
    a, b, da, db = kind_logs
    p, q = (mpmath.exp(x) if x > -mpmath.inf else mpf(0) for x in (a, b))
    found: list[Any] = []

    def kl(x: Any, log_x: Any, log_y: Any) -> Any:
        return x * (log_x - log_y) if x else mpf(0)

    found += (
        [kl(p, a, b), p * (da * (1 + a - b) - db) if p and q else mpf(0)]
        if q or not p
        else [mpmath.inf, mpf(0)]
    )
    for beta, js in ((mpf(1) / 2, True), (mpf("0.1"), False)):
        m = beta * p + (1 - beta) * q
        if not m:
            found += [mpf(0), mpf(0)]
            continue
        log_m = mpmath.log(m)
        dm = beta * p * da + (1 - beta) * q * db
        first = kl(p, a, log_m), (p * da * (a - log_m) if p else 0) + p * da - p * dm / m
        second = kl(q, b, log_m), (q * db * (b - log_m) if q else 0) + q * db - q * dm / m
        found += [(first[i] + second[i]) / 2 for i in (0, 1)] if js else list(first)
    found += [abs(p - q) / 2, (p * da - q * db) * (1 if p > q else -1) / 2]
    for alpha in POWERS.values():
        if p and q:
            power = mpmath.exp(mpf(alpha) * a + (1 - mpf(alpha)) * b)
            found += [power, power * (mpf(alpha) * da + (1 - mpf(alpha)) * db)]
        else:
            inside = 0 < alpha < 1 or (alpha < 0 and not q) or (alpha > 1 and not p)
            found += [mpf(0) if inside else mpmath.inf, mpf(0)]
    return found


@dataclass(frozen=True)
class Truth:
    """Each kind's value and its derivative along the direction; None where mpmath cannot tell."""

    values: dict[str, float | None]
    derivatives: dict[str, float | None]


class Integrator:
    """Integrates all kinds at once."""

    def __init__(self, p: Spec, q: Spec, direction: list[float]) -> None:
        self.plain = (p, q)
        step = [
            mpc(x, STEP * d) if d else mpf(x)
            for x, d in zip(parameters(p) + parameters(q), direction, strict=True)
        ]
        self.moved = (with_parameters(p, step), with_parameters(q, step))
        assert not step
        rule = mpmath.calculus.quadrature.GaussLegendre(mp)
        self.rules = [rule.get_nodes(-1, 1, degree, mp.prec) for degree in (3, 4)]

    def at(self, piece: Piece, t: Any) -> list[Any]:
        point, log_jacobian = piece.point(t)
        logs = [log_density(moved, point, plain) for moved, plain in zip(self.moved, self.plain, strict=True)]
        a, b = (mpmath.re(x) + log_jacobian if mpmath.re(x) > -mpmath.inf else -mpmath.inf for x in logs)
        da, db = (mpmath.im(x) / STEP if mpmath.re(x) > -mpmath.inf else mpf(0) for x in logs)
        return integrands((a, b, da, db))

    def on(self, piece: Piece, low: Any, high: Any, degree: int) -> list[Any]:
        half, middle = (high - low) / 2, (high + low) / 2
        total = [mpf(0)] * (2 * len(KINDS))
        for node, weight in self.rules[degree]:
            for i, f in enumerate(self.at(piece, middle + half * node)):
                total[i] += half * weight * f
        return total

    def over(self, piece: Piece) -> list[Any]:
        """The integrals over a piece: infinite where the integrand does not fall, None where it falls slowly."""
        edges = cuts(piece, self.plain)
        edges = sorted({*edges, *self.crossings(piece, edges)})
        sizes = [self.log_size(piece, t) for t in edges]
        least = max(size[0] for size in sizes) - 250
        computed = [
            any(max(size) > least and size[0] > -_SMALLEST for size in near)
            for near in itertools.pairwise(sizes)
        ]
        rough = [
            self.on(piece, *pair, 0) if inside else [mpf(0)] * (2 * len(KINDS))
            for pair, inside in zip(itertools.pairwise(edges), computed, strict=True)
        ]
        scale = [sum(abs(panel[i]) for panel in rough) for i in range(2 * len(KINDS))]
        for i in range(2 * len(KINDS)):  # powers that rise where neither density is looked at any more
            power = {2.0: 1, -0.5: 2}.get(POWERS.get(KINDS[i // 2], 0.0), 0)
            if power and any(size[power] > least and size[0] <= -_SMALLEST for size in sizes):
                scale[i] = mpmath.inf
        total: list[Any] = [mpf(0)] * (2 * len(KINDS))
        for i, size in enumerate(scale):
            # Where panels are left out before the outermost one, the integrand has fallen for good.
            last = [abs(rough[0][i]), abs(rough[-1][i])]
            before = [abs(rough[2][i]), abs(rough[-3][i])]
            if (
                mpmath.isinf(size)
                or mpmath.isnan(size)
                or any(x > AGREE * size and x >= y for x, y in zip(last, before, strict=True))
            ):
                total[i] = mpmath.inf
            elif any(x > AGREE * size for x in last):
                total[i] = None
        alive = [i for i, x in enumerate(total) if x == 0]
        for (low, high), coarse in zip(itertools.pairwise(edges), rough, strict=True):
            if any(abs(coarse[i]) > mpf(10) ** -30 * (scale[i] + mpf(10) ** -300) for i in alive):
                for i, x in enumerate(self.refined(piece, low, high, coarse, (scale, alive), 0)):
                    total[i] = x + total[i] if i in alive else total[i]
        return total

    def refined(
        self,
        piece: Piece,
        low: Any,
        high: Any,
        coarse: list[Any],
        wanted: tuple[list[Any], list[int]],
        depth: int,
    ) -> list[Any]:
        fine = self.on(piece, low, high, 1)
        scale, alive = wanted
        if depth == _DEPTH or all(abs(fine[i] - coarse[i]) <= AGREE * scale[i] for i in alive):
            return [
                x if abs(x - y) <= AGREE * s else mpmath.nan
                for x, y, s in zip(fine, coarse, scale, strict=True)
            ]
        middle = (low + high) / 2
        halves = [(low, middle), (middle, high)]
        parts = [self.refined(piece, a, b, self.on(piece, a, b, 0), wanted, depth + 1) for a, b in halves]
        return [x + y for x, y in zip(*parts, strict=True)]

    def log_size(self, piece: Piece, t: Any) -> tuple[Any, ...]:
        """The logarithms of the larger density times 1 + |log p / q|, of p^2 / q, and of (q^3 / p)^(1 / 2)."""
        point, log_jacobian = piece.point(t)
        a, b = (mpmath.re(log_density(spec, point, spec)) for spec in self.plain)
        finite = a > -mpmath.inf and b > -mpmath.inf
        squared, inverse = (2 * a - b, (3 * b - a) / 2) if finite else (a, b)
        larger = max(a, b) + (mpmath.log1p(abs(a - b)) if finite else 0)
        return tuple(x + log_jacobian for x in (larger, squared, inverse))

    def crossings(self, piece: Piece, edges: list[Any]) -> list[Any]:
        """Where the densities cross: corners of total variation."""

        def difference(t: Any) -> Any:
            point, _ = piece.point(t)
            a, b = (mpmath.re(log_density(spec, point, spec)) for spec in self.plain)
            return a - b if a > -mpmath.inf and b > -mpmath.inf else None

        found: list[Any] = []
        grid = [low + (high - low) * k / 4 for low, high in itertools.pairwise(edges) for k in range(4)]
        values = [difference(t) for t in grid]
        for (a, x), (b, y) in itertools.pairwise(zip(grid, values, strict=True)):
            if x is None or y is None or x * y >= 0:
                continue
            rises = y > 0
            low, high = a, b
            for _ in range(110):
                middle = (low + high) / 2
                low, high = (low, middle) if (difference(middle) > 0) == rises else (middle, high)
            found.append((low + high) / 2)
        return found


def pieces(p: Spec, q: Spec) -> list[Piece]:
    """The parts of the line on which both densities are smooth, from left to right."""
    marks = sorted({end for spec in (p, q) for end in all_ends(spec)})
    infinite = [any(ends(spec)[side] is None for spec in (p, q)) for side in (0, 1)]
    line = [*([None] if infinite[0] else []), *marks, *([None] if infinite[1] else [])]
    return [Piece(low, high) for low, high in itertools.pairwise(line)]


def all_ends(spec: Spec) -> list[Any]:
    """Where a density begins, ends or has a corner."""
    family = spec[0]
    found: list[Any] = [mpf(end) for end in ends(spec) if end is not None]
    if family == "Laplace":
        found.append(mpf(spec[-2]))
    if family == "Mixture":
        found += [end for part in spec[2:] for end in all_ends(part)]
    if family == "Affine":
        found += [mpf(spec[1]) + mpf(spec[2]) * end for end in all_ends(spec[3])]
    if family == "Exp":
        found += [mpmath.exp(end) for end in all_ends(spec[1])]
    if family == "Sigmoid":
        found += [1 / (1 + mpmath.exp(-end)) for end in all_ends(spec[1])]
    return found


def truth(p: Spec, q: Spec, direction: list[float]) -> Truth:
    """The divergences of two specifications, and their derivatives along a direction of all parameters."""
    with mp.workdps(DIGITS):
        integrator = Integrator(p, q, direction)
        total: list[Any] = [mpf(0)] * (2 * len(KINDS))
        for piece in pieces(p, q):
            values = integrator.over(piece)
            total = [None if x is None or y is None else x + y for x, y in zip(total, values, strict=True)]
        values: dict[str, float | None] = {}
        derivatives: dict[str, float | None] = {}
        for k, kind in enumerate(KINDS):
            values[kind], derivatives[kind] = _finished(kind, total[2 * k], total[2 * k + 1])
        return Truth(values, derivatives)


def _finished(kind: str, value: Any, derivative: Any) -> tuple[float | None, float | None]:
    """Turn the integral of p^alpha q^(1 - alpha) into the divergence; None where mpmath could not tell."""
    if value is None or mpmath.isnan(value):
        return None, None
    if mpmath.isinf(value):
        return math.inf, None
    known = derivative is not None and mpmath.isfinite(derivative)
    derivative = derivative if known else mpf(0)
    if kind in POWERS:
        alpha = mpf(POWERS[kind])
        if kind.startswith("Renyi"):
            if not value:
                return math.inf, None
            value, derivative = mpmath.log(value) / (alpha - 1), derivative / value / (alpha - 1)
        else:
            factor = {"ChiSquared": 2, "SquaredHellinger": mpf(1) / 4}.get(kind, 1) / (alpha * (alpha - 1))
            value, derivative = (value - 1) * factor, derivative * factor
    return float(value), (float(derivative) if known else None)


# ---- Random hard pairs.


def _log_uniform(rng: random.Random, low: float, high: float) -> float:
    return 10 ** rng.uniform(low, high)


def _real(rng: random.Random, scale: tuple[float, float] = (-1, 1)) -> Spec:
    family = rng.choice(["Normal", "Normal", "Laplace", "Cauchy", "StudentT", "Gumbel"])
    loc, size = rng.gauss(0, _log_uniform(rng, -1, 1)), _log_uniform(rng, *scale)
    return [family, *([_log_uniform(rng, 0, 1.3)] if family == "StudentT" else []), loc, size]


def _positive(rng: random.Random) -> Spec:
    family = rng.choice(["Gamma", "LogNormal", "Weibull", "InverseGamma", "HalfNormal", "HalfCauchy"])
    size, shape = _log_uniform(rng, -2, 2), _log_uniform(rng, -1.5, 2)
    if family in ("HalfNormal", "HalfCauchy"):
        return [family, size]
    if family == "LogNormal":
        return [family, math.log(size), _log_uniform(rng, -3, 0.7)]
    return [family, size, min(shape, 20.0)] if family == "Weibull" else [family, shape, size]


def _unit(rng: random.Random) -> Spec:
    return [
        rng.choice(["Beta", "Beta", "Kumaraswamy"]),
        _log_uniform(rng, -1.5, 1.5),
        _log_uniform(rng, -1.5, 1.5),
    ]


def _mixture(rng: random.Random, family: str) -> Spec:
    """Two or three parts of one family, of scales from 1e-6 to 1e3."""
    count = rng.choice([2, 2, 3])
    weights = [math.exp(rng.gauss(0, 1.5)) for _ in range(count)]
    parts: list[Spec] = []
    for _ in range(count):
        size = _log_uniform(rng, -6, 3)
        center = rng.gauss(0, _log_uniform(rng, -1, 1.5))
        if family == "LogNormal":
            parts.append([family, center / 10, min(size, 3.0)])
        elif family == "Gamma":
            shape = _log_uniform(rng, -1, 5)
            parts.append([family, shape, shape / _log_uniform(rng, -1, 1.5)])
        elif family == "Beta":
            total, mean = _log_uniform(rng, -0.5, 6), rng.uniform(0.05, 0.95)
            parts.append([family, total * mean, total * (1 - mean)])
        elif family == "StudentT":
            parts.append([family, _log_uniform(rng, 0.1, 1.3), center, size])
        else:
            parts.append([family, center, size])
    return ["Mixture", weights, *parts]


def random_pair(rng: random.Random) -> tuple[str, Spec, Spec]:
    """A pair and the name of its sort."""
    sort = rng.choice(
        ["line", "mixtures", "mixtures", "mixtures", "positive", "unit", "supports", "transforms"]
    )
    if sort == "line":
        return sort, _real(rng), _real(rng)
    if sort == "positive":
        return sort, _positive(rng), _positive(rng)
    if sort == "unit":
        return sort, _unit(rng), _unit(rng)
    if sort == "supports":
        low = rng.uniform(-2, 2)
        narrow = [
            _unit(rng),
            _positive(rng),
            ["Uniform", low, low + _log_uniform(rng, -3, 1)],
            _affine(rng, _unit(rng)),
        ]
        return sort, rng.choice(narrow), rng.choice([_real(rng), _real(rng), _positive(rng)])
    if sort == "transforms":
        made = [
            ["Exp", _real(rng)],
            ["Exp", ["Gamma", 1.0, _log_uniform(rng, -1, 1)]],
            ["Exp", ["Uniform", 0.0, _log_uniform(rng, -1, 0.5)]],
            _affine(rng, _positive(rng)),
        ]
        return (
            sort,
            rng.choice(made),
            rng.choice([_positive(rng), ["Pareto", 1.0, _log_uniform(rng, -1, 1)], _real(rng)]),
        )
    family = rng.choice(
        ["Normal", "Normal", "Normal", "Laplace", "Cauchy", "StudentT", "LogNormal", "Gamma", "Beta"]
    )
    simple = {"LogNormal": _positive, "Gamma": _positive, "Beta": _unit}.get(family, _real)
    sides = [_mixture(rng, family), rng.choice([_mixture(rng, family), simple(rng), simple(rng)])]
    rng.shuffle(sides)
    return sort, sides[0], sides[1]


def _affine(rng: random.Random, part: Spec) -> Spec:
    return ["Affine", rng.uniform(-1, 1), rng.choice([-1, 1]) * _log_uniform(rng, -1, 1), part]


def direction_of(spec: Spec, rng: random.Random, *, moves_ends: bool = True) -> list[float]:
    """A direction for the parameters: scales and shapes relatively, locations by widths; none that moves an end."""
    family, a = spec[0], spec[1:]
    if family == "Mixture":
        return [rng.uniform(-1, 1) * w for w in a[0]] + [x for part in a[1:] for x in direction_of(part, rng)]
    if family == "Affine":
        fixed = ends(spec) != (None, None)
        outer = [0.0, 0.0] if fixed else [rng.uniform(-1, 1) * abs(a[1]), rng.uniform(-1, 1) * a[1]]
        return outer + direction_of(a[2], rng)
    if family in ("Exp", "Sigmoid"):
        return direction_of(a[0], rng)
    if family == "Uniform":
        return [0.0, 0.0]
    if family == "Pareto":
        return [0.0, rng.uniform(-1, 1) * a[1]]
    if family == "LogNormal":
        return [rng.uniform(-1, 1) * a[1], rng.uniform(-1, 1) * a[1]]
    found = [rng.uniform(-1, 1) * x for x in a]
    if family in ("Normal", "Laplace", "Cauchy", "Gumbel", "StudentT"):
        found[-2] = rng.uniform(-1, 1) * a[-1]
    return found


# ---- The stored truths.


def store(entries: list[dict[str, Any]]) -> None:
    TRUTHS.write_bytes(gzip.compress(json.dumps(entries).encode(), mtime=0))


def load() -> list[dict[str, Any]]:
    return json.loads(gzip.decompress(TRUTHS.read_bytes()))
