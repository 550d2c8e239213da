"""Textbook divergences of discrete, circular and multivariate families, by mpmath."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

from mpmath import mp, mpf

from tests.oracles.expectations import Number

Numbers = list[Number]


def x_log_ratio(x: Number, y: Number) -> Number:
    """x log(x / y)"""
    if x == 0:
        return mpf(0)
    return mp.inf if y == 0 else x * mp.log(x / y)


def chance(logit: Number) -> Number:
    return 1 / (1 + mp.exp(-logit))


def from_logit(at: Numbers) -> Numbers:
    """A probability and its complement."""
    return [chance(at[0]), chance(-at[0])]


def from_prob(at: Numbers) -> Numbers:
    return [at[0], 1 - at[0]]


def softmax(at: Numbers) -> Numbers:
    weights = [mp.exp(x) for x in at]
    return [w / sum(weights) for w in weights]


def normalized(at: Numbers) -> Numbers:
    return [x / sum(at) for x in at]


def finite(p: Numbers, q: Numbers) -> Number:
    return sum(x_log_ratio(x, y) for x, y in zip(p, q, strict=True))


def times(n: int) -> Callable[[Numbers, Numbers], Number]:
    return lambda p, q: n * finite(p, q)


def geometric(p: Numbers, q: Numbers) -> Number:
    if p[0] == 0:
        return mp.nan
    return finite(p, q) / p[0]


def negative_binomial(r: Number) -> Callable[[Numbers, Numbers], Number]:
    """With r failures each; [probability of a success, of a failure]."""
    return lambda p, q: r * finite(p, q) / p[1]


def poisson(p: Numbers, q: Numbers) -> Number:
    return x_log_ratio(p[0], q[0]) + q[0] - p[0]


Chances = Iterator[tuple[Number, Number]]  # of 0, 1, 2 ... and their logarithms


def poisson_chances(at: Numbers) -> Chances:
    return recurrence(-at[0], lambda k: at[0] / (k + 1))


def geometric_chances(at: Numbers) -> Chances:
    return recurrence(mp.log(at[0]), lambda k: at[1])


def negative_binomial_chances(at: Numbers) -> Chances:
    r, success = at
    return recurrence(r * mp.log(1 - success), lambda k: success * (r + k) / (k + 1))


def binomial_chances(n: int) -> Callable[[Numbers], Chances]:
    return lambda at: recurrence(n * mp.log(at[1]), lambda k: at[0] / at[1] * (n - k) / (k + 1))


def recurrence(start: Number, ratio: Callable[[int], Number]) -> Chances:
    log, chance = start, mp.exp(start)
    for k in itertools.count():
        yield chance, log
        factor = ratio(k)
        if factor <= 0:
            break
        chance, log = chance * factor, log + mp.log(factor)
    while True:
        yield mpf(0), -mp.inf


def by_sum(
    p: Callable[[Numbers], Chances], q: Callable[[Numbers], Chances]
) -> Callable[[Numbers, Numbers], Number]:
    """The sum over 0, 1, 2 ... until terms beyond P's bulk and all Binomials' counts are below the precision."""

    def kl(at_p: Numbers, at_q: Numbers) -> Number:
        total = mass = mpf(0)
        for k, ((chance, log), (_, other)) in enumerate(zip(p(at_p), q(at_q), strict=False)):
            if chance == 0:
                break
            if mp.isinf(other):
                return mp.inf
            term = chance * (log - other)
            total, mass = total + term, mass + chance
            if mass > 0.9 and k > 30 and max(abs(term), chance) < mpf(10) ** (-mp.dps - 5):
                break
        return total

    return kl


def dirichlet(p: Numbers, q: Numbers) -> Number:
    total = sum(p)
    value = mp.loggamma(total) - mp.loggamma(sum(q))
    for a, b in zip(p, q, strict=True):
        value += mp.loggamma(b) - mp.loggamma(a) + (a - b) * (mp.digamma(a) - mp.digamma(total))
    return value


def von_mises(p: Numbers, q: Numbers) -> Number:
    (m1, k1), (m2, k2) = p, q
    i0 = mp.besseli(0, k1)
    resultant = mp.besseli(1, k1) / i0
    return mp.log(mp.besseli(0, k2) / i0) + resultant * (k1 - k2 * mp.cos(m1 - m2))


def relaxed_bernoulli(p: Numbers, q: Numbers) -> Number:
    """At one temperature."""
    delta = p[0] - q[0]
    return delta * mp.coth(delta / 2) - 2 if delta else mpf(0)


def relaxed_categorical(p: Numbers, q: Numbers) -> Number:
    """At one temperature; d = q's logits - p's: n (integral of (e^-t - prod 1 / (1 + t e^d)) / t - psi(n)) - sum d."""
    factors = [mp.exp(y - x) for x, y in zip(p, q, strict=True)]
    n = len(p)

    def integrand(t: Number) -> Number:
        return (mp.exp(-t) - 1 / mp.fprod(1 + t * f for f in factors)) / t

    cuts = sorted({mpf(0), mpf(1), *(1 / f for f in factors)})
    return n * (mp.quad(integrand, [*cuts, mp.inf]) - mp.digamma(n)) - sum(map(mp.log, factors))


def mixture_and_normal(p: Numbers, q: Numbers) -> Number:
    """A mixture of two Normals (weight of the first, locations, scales) and a Normal, integrated."""
    w, m0, m1, s0, s1 = p
    parts = [(w, m0, s0), (1 - w, m1, s1)]

    def density(x: Number, m: Number, s: Number) -> Number:
        return mp.exp(-(((x - m) / s) ** 2) / 2) / (s * mp.sqrt(2 * mp.pi))

    def integrand(x: Number) -> Number:
        at = sum(weight * density(x, m, s) for weight, m, s in parts)
        log_q = -(((x - q[0]) / q[1]) ** 2) / 2 - mp.log(q[1] * mp.sqrt(2 * mp.pi))
        return at * (mp.log(at) - log_q) if at else mpf(0)

    cuts = sorted({m + k * s for _, m, s in parts for k in (-12, -3, 0, 3, 12)})
    return mp.quad(integrand, cuts)


def lkj(dim: int) -> Callable[[Numbers, Numbers], Number]:
    """N(b) - N(a) - (b - a) N'(a) with the log-normalizer N of torch's LKJCholesky."""

    def normalizer(e: Number, function: Callable[[Number], Number]) -> Number:
        top = e + mpf(dim - 2) / 2
        return sum(function(top - mpf(i) / 2) for i in range(dim - 1)) - (dim - 1) * function(
            e + mpf(dim - 1) / 2
        )

    def kl(p: Numbers, q: Numbers) -> Number:
        (a,), (b,) = p, q
        difference = normalizer(b, mp.loggamma) - normalizer(a, mp.loggamma)
        return difference - (b - a) * normalizer(a, mp.digamma)

    return kl


def normals(p: Numbers, q: Numbers) -> Number:
    """Independent Normals: locations, then scales."""
    n = len(p) // 2
    total = mpf(0)
    for i in range(n):
        s, t = p[n + i], q[n + i]
        total += mp.log(t / s) + (s * s + (p[i] - q[i]) ** 2) / (2 * t * t) - mpf(1) / 2
    return total


def lower(at: Numbers, dim: int) -> mp.matrix:
    matrix = mp.zeros(dim)
    entries = iter(at)
    for i in range(dim):
        for j in range(i + 1):
            matrix[i, j] = next(entries)
    return matrix


def gaussians(mean: mp.matrix, cov: mp.matrix, mean_q: mp.matrix, cov_q: mp.matrix) -> Number:
    inverse = cov_q**-1
    d = mean - mean_q
    trace = sum((inverse * cov)[i, i] for i in range(cov.rows))
    return ((d.T * inverse * d)[0] + trace - cov.rows + mp.log(mp.det(cov_q) / mp.det(cov))) / 2


def multivariate_normal(dim: int) -> Callable[[Numbers, Numbers], Number]:
    """Means, then the lower triangles of the Cholesky factors row by row."""

    def read(at: Numbers) -> tuple[mp.matrix, mp.matrix]:
        factor = lower(at[dim:], dim)
        return mp.matrix(at[:dim]), factor * factor.T

    return lambda p, q: gaussians(*read(p), *read(q))


def low_rank(dim: int) -> Callable[[Numbers, Numbers], Number]:
    """Means, then the one column of the factor, then the diagonal."""

    def read(at: Numbers) -> tuple[mp.matrix, mp.matrix]:
        factor = mp.matrix(at[dim : 2 * dim])
        return mp.matrix(at[:dim]), factor * factor.T + mp.diag(at[2 * dim :])

    return lambda p, q: gaussians(*read(p), *read(q))


def wishart(dim: int) -> Callable[[Numbers, Numbers], Number]:
    """Degrees of freedom, then the lower triangles of the scales' Cholesky factors."""

    def kl(p: Numbers, q: Numbers) -> Number:
        n, m = p[0], q[0]
        v, w = (lower(at[1:], dim) for at in (p, q))
        v, w = v * v.T, w * w.T
        ratio = w**-1 * v
        value = -m * mp.log(mp.det(ratio)) + n * (sum(ratio[i, i] for i in range(dim)) - dim)
        for i in range(dim):
            a, b = (n - i) / 2, (m - i) / 2
            value += 2 * (mp.loggamma(b) - mp.loggamma(a)) + (n - m) * mp.digamma(a)
        return value / 2

    return kl
