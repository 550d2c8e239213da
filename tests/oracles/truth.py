"""Truth at 50 digits: the textbook formulas, evaluated by mpmath on the numbers as they are stored."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import mpmath
from mpmath import mpf

from kullback import (
    KL,
    Alpha,
    ChiSquared,
    Divergence,
    Jeffreys,
    JensenShannon,
    Renyi,
    ReverseKL,
    SkewKL,
    SquaredHellinger,
    TotalVariation,
)

Row = Sequence[mpf]

KINDS: list[Divergence] = [
    KL(),
    ReverseKL(),
    Jeffreys(),
    JensenShannon(),
    JensenShannon(beta=0.1),
    JensenShannon(beta=0.9, scaled=True),
    JensenShannon(beta=0.0, scaled=True),
    JensenShannon(beta=1.0, scaled=True),
    SkewKL(alpha=0.0),
    SkewKL(alpha=0.1),
    SkewKL(alpha=0.99),
    Renyi(alpha=0),
    Renyi(alpha=0.3),
    Renyi(alpha=0.5),
    Renyi(alpha=1),
    Renyi(alpha=1.001),
    Renyi(alpha=3),
    Renyi(alpha=float("inf")),
    Alpha(alpha=-1.5),
    Alpha(alpha=0),
    Alpha(alpha=0.001),
    Alpha(alpha=0.5),
    Alpha(alpha=1),
    Alpha(alpha=1.001),
    Alpha(alpha=4),
    TotalVariation(),
    SquaredHellinger(),
    ChiSquared(),
]


def exact(values: Sequence[float]) -> list[mpf]:
    """Take floating-point numbers as the rationals they are."""
    return [mpf(float(v)) for v in values]


def normalized(weights: Row) -> list[mpf]:
    """Divide by the sum."""
    with mpmath.workdps(50):
        total = mpmath.fsum(weights)
        return [w / total for w in weights]


def softmax(logits: Sequence[float]) -> list[mpf]:
    """Probabilities of logits."""
    with mpmath.workdps(50):
        return normalized([mpmath.exp(x) for x in exact(logits)])


def divergence(kind: Divergence, p: Row, q: Row) -> mpf:
    """Evaluate the textbook formula of `kind`; infinite where the conventions say so."""
    with mpmath.workdps(60):
        return _FORMULAS[type(kind)](kind, p, q)


def _kl(p: Row, q: Row) -> mpf:
    if any(a > 0 and b == 0 for a, b in zip(p, q, strict=True)):
        return mpmath.inf
    return mpmath.fsum(a * mpmath.log(a / b) for a, b in zip(p, q, strict=True) if a > 0)


def _mix(share: float, p: Row, q: Row) -> list[mpf]:
    return [mpf(share) * a + (1 - mpf(share)) * b for a, b in zip(p, q, strict=True)]


def _affinity(alpha: float, p: Row, q: Row) -> mpf:
    """Return sum p^alpha q^(1-alpha) with 0 to a negative power infinite, unless the other factor is an exact 0^0."""
    total = mpf(0)
    for a, b in zip(p, q, strict=True):
        if a == 0 and b == 0:
            continue
        if (b == 0 and alpha >= 1) or (a == 0 and alpha <= 0):
            return mpmath.inf
        if a > 0 and b > 0:
            total += a ** mpf(alpha) * b ** (1 - mpf(alpha))
    return total


def _alpha(kind: Alpha, p: Row, q: Row) -> mpf:
    if kind.alpha == 1:
        return _kl(p, q)
    if kind.alpha == 0:
        return _kl(q, p)
    return (_affinity(kind.alpha, p, q) - 1) / (mpf(kind.alpha) * (mpf(kind.alpha) - 1))


def _renyi(kind: Renyi, p: Row, q: Row) -> mpf:
    if kind.alpha == 0:
        outside = mpmath.fsum(b for a, b in zip(p, q, strict=True) if a == 0)
        inside = mpmath.fsum(b for a, b in zip(p, q, strict=True) if a > 0)
        return -mpmath.log(inside) if 2 * inside < 1 else -mpmath.log1p(-outside)
    if kind.alpha == 1:
        return _kl(p, q)
    if kind.alpha == float("inf"):
        return max(mpmath.log(a / b) if b else mpmath.inf for a, b in zip(p, q, strict=True) if a > 0)
    affinity = _affinity(kind.alpha, p, q)
    return mpmath.log(affinity) / (mpf(kind.alpha) - 1) if affinity else mpmath.inf


def _jensen_shannon(kind: JensenShannon, p: Row, q: Row) -> mpf:
    beta = mpf(kind.beta)
    if kind.scaled and kind.beta in (0, 1):
        return _kl(p, q) if kind.beta == 0 else _kl(q, p)
    mixture = _mix(kind.beta, p, q)
    value = beta * _kl(p, mixture) + (1 - beta) * _kl(q, mixture)
    return value / (beta * (1 - beta)) if kind.scaled else value


_FORMULAS: dict[type[Divergence], Callable[..., mpf]] = {
    KL: lambda _, p, q: _kl(p, q),
    ReverseKL: lambda _, p, q: _kl(q, p),
    Jeffreys: lambda _, p, q: _kl(p, q) + _kl(q, p),
    JensenShannon: _jensen_shannon,
    SkewKL: lambda kind, p, q: _kl(p, _mix(kind.alpha, p, q)),
    Renyi: _renyi,
    Alpha: _alpha,
    TotalVariation: lambda _, p, q: mpmath.fsum(abs(a - b) for a, b in zip(p, q, strict=True)) / 2,
    SquaredHellinger: lambda _, p, q: (
        mpmath.fsum((mpmath.sqrt(a) - mpmath.sqrt(b)) ** 2 for a, b in zip(p, q, strict=True)) / 2
    ),
    ChiSquared: lambda _, p, q: (
        mpmath.inf
        if any(a > 0 and b == 0 for a, b in zip(p, q, strict=True))
        else mpmath.fsum((a - b) ** 2 / b for a, b in zip(p, q, strict=True) if b > 0)
    ),
}


def logit_gradient(
    kind: Divergence, a: Sequence[float], b: Sequence[float]
) -> tuple[list[float], list[float]]:
    """Differentiate the textbook formula by both rows of finite logits, by central differences at 60 digits."""

    def value(a: Row, b: Row) -> mpf:
        with mpmath.workdps(60):
            p, q = normalized([mpmath.exp(x) for x in a]), normalized([mpmath.exp(x) for x in b])
        return divergence(kind, p, q)

    def derivatives(row: Row, of: Callable[[Row], mpf]) -> list[float]:
        step = mpf(10) ** -20
        result: list[float] = []
        for i in range(len(row)):
            up, down = [list(row) for _ in range(2)]
            up[i], down[i] = up[i] + step, down[i] - step
            result.append(float((of(up) - of(down)) / (2 * step)))
        return result

    with mpmath.workdps(60):
        a_exact, b_exact = exact(a), exact(b)
        return derivatives(a_exact, lambda row: value(row, b_exact)), derivatives(
            b_exact, lambda row: value(a_exact, row)
        )
