"""Kullback-Leibler divergences by mpmath from textbook formulas, for as many digits as are asked for.

KL = -H(P) - E_P[log q]: for each family the entropy H and expectations of statistics are written down once, and log q
is a combination of such statistics. Nothing here is kullback's: at hundreds of digits the plain formulas do not cancel.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mpmath import mp, mpf

Number = Any  # mpmath's numbers are not typed
Expectations = dict[str, Callable[..., Number]]
Terms = tuple[Number, list[tuple[Number, str, tuple[Number, ...]]]]


def from_powers(power: Callable[[Number], Number]) -> Expectations:
    return {"pow": power, "x": lambda: power(1), "x2": lambda: power(2)}


def distance(mean: Number, c: Number, below: Callable[[Number], Number], low: Number = -mp.inf) -> Number:
    """E|x - c| from E(c - x)+."""
    return mean - c + (2 * below(c) if c > low else 0)


def only_infinite(condition: bool) -> Number | None:
    """An expectation of which only that is known."""
    return mp.inf if condition else None


def e1(log: Number) -> Number:
    """E1(exp(log)); nothing, at any precision used here, for arguments beyond 1e5."""
    return mp.e1(mp.exp(log)) if log < 11.5 else mpf(0)


def normal(m: Number, s: Number) -> Expectations:
    def absolute(c: Number) -> Number:
        z = (m - c) / s
        return s * mp.sqrt(2 / mp.pi) * mp.exp(-z * z / 2) + (m - c) * mp.erf(z / mp.sqrt(2))

    return {
        "entropy": lambda: mp.log(s) + mp.log(2 * mp.pi * mp.e) / 2,
        "x": lambda: m,
        "x2": lambda: m * m + s * s,
        "abs": absolute,
        "exp": lambda t: mp.exp(t * t * s * s / 2 - t * m),
    }


def laplace(m: Number, b: Number) -> Expectations:
    return {
        "entropy": lambda: 1 + mp.log(2 * b),
        "x": lambda: m,
        "x2": lambda: m * m + 2 * b * b,
        "abs": lambda c: abs(m - c) + b * mp.exp(-abs(m - c) / b),
        "exp": lambda t: mp.exp(-t * m) / (1 - (b * t) ** 2) if abs(b * t) < 1 else mp.inf,
    }


def gumbel(m: Number, b: Number) -> Expectations:
    mean = m + mp.euler * b
    return {
        "entropy": lambda: mp.log(b) + mp.euler + 1,
        "x": lambda: mean,
        "x2": lambda: (mp.pi * b) ** 2 / 6 + mean**2,
        "abs": lambda c: distance(mean, c, lambda c: b * e1(-(c - m) / b)),
        "exp": lambda t: mp.exp(-t * m) * mp.gamma(1 + b * t) if b * t > -1 else mp.inf,
    }


def gamma(a: Number, r: Number) -> Expectations:
    def below(c: Number) -> Number:
        def share(k: Number) -> Number:
            return mp.gammainc(k, 0, r * c, regularized=True)

        return c * share(a) - a / r * share(a + 1)

    log = mp.digamma(a) - mp.log(r)
    return {
        "entropy": lambda: a - mp.log(r) + mp.loggamma(a) + (1 - a) * mp.digamma(a),
        "log": lambda: log,
        "log2": lambda: mp.psi(1, a) + log**2,
        "abs": lambda c: distance(a / r, c, below, 0),
        "exp": lambda t: (1 + t / r) ** -a if t > -r else mp.inf,
        **from_powers(lambda k: mp.exp(mp.loggamma(a + k) - mp.loggamma(a)) / r**k if a + k > 0 else mp.inf),
    }


def exponential(r: Number) -> Expectations:
    return gamma(mpf(1), r)


def chi2(df: Number) -> Expectations:
    return gamma(df / 2, mpf(1) / 2)


def inverse_gamma(a: Number, b: Number) -> Expectations:
    log = mp.log(b) - mp.digamma(a)
    return {
        "entropy": lambda: a + mp.log(b) + mp.loggamma(a) - (1 + a) * mp.digamma(a),
        "log": lambda: log,
        "log2": lambda: mp.psi(1, a) + log**2,
        "abs": lambda c: only_infinite(a <= 1),
        **from_powers(lambda k: b**k * mp.exp(mp.loggamma(a - k) - mp.loggamma(a)) if a > k else mp.inf),
    }


def weibull(scale: Number, k: Number) -> Expectations:
    log = mp.log(scale) - mp.euler / k
    mean = scale * mp.gamma(1 + 1 / k)

    def below(c: Number) -> Number:
        return c - scale / k * mp.gammainc(1 / k, 0, (c / scale) ** k)

    return {
        "entropy": lambda: mp.euler * (1 - 1 / k) + mp.log(scale / k) + 1,
        "log": lambda: log,
        "log2": lambda: mp.pi**2 / (6 * k * k) + log**2,
        "abs": lambda c: distance(mean, c, below, 0),
        **from_powers(lambda j: scale**j * mp.gamma(1 + j / k) if k + j > 0 else mp.inf),
    }


def log_normal(m: Number, s: Number) -> Expectations:
    mean = mp.exp(m + s * s / 2)

    def below(c: Number) -> Number:
        z = (mp.log(c) - m) / s
        return c * mp.ncdf(z) - mean * mp.ncdf(z - s)

    return {
        "entropy": lambda: m + mp.log(2 * mp.pi * mp.e * s * s) / 2,
        "log": lambda: m,
        "log2": lambda: m * m + s * s,
        "abs": lambda c: distance(mean, c, below, 0),
        **from_powers(lambda k: mp.exp(k * m + (k * s) ** 2 / 2)),
    }


def half_normal(s: Number) -> Expectations:
    mean = s * mp.sqrt(2 / mp.pi)
    log = mp.log(s) + (mp.digamma(mpf(1) / 2) + mp.log(2)) / 2

    def below(c: Number) -> Number:
        z = c / s / mp.sqrt(2)
        return c * mp.erf(z) - mean * -mp.expm1(-z * z)

    return {
        "entropy": lambda: mp.log(mp.pi * s * s / 2) / 2 + mpf(1) / 2,
        "log": lambda: log,
        "log2": lambda: mp.pi**2 / 8 + log**2,
        "exp": lambda t: mp.exp((t * s) ** 2 / 2) * mp.erfc(t * s / mp.sqrt(2)),
        "abs": lambda c: distance(mean, c, below, 0),
        **from_powers(
            lambda k: (
                s**k * mpf(2) ** (k / mpf(2)) * mp.gamma((k + mpf(1)) / 2) / mp.sqrt(mp.pi)
                if k > -1
                else mp.inf
            )
        ),
    }


def half_cauchy(s: Number) -> Expectations:
    return {
        "entropy": lambda: mp.log(2 * mp.pi * s),
        "log": lambda: mp.log(s),
        "log2": lambda: mp.log(s) ** 2 + mp.pi**2 / 4,
        "abs": lambda c: mp.inf,
        "quad": lambda m, c: 2 * mp.log(s + c) if m == 0 else None,
        **from_powers(lambda k: s**k / mp.cos(mp.pi * k / 2) if abs(k) < 1 else mp.inf),
    }


def pareto(m: Number, a: Number) -> Expectations:
    log = mp.log(m) + 1 / a

    def below(c: Number) -> Number:  # the integral of the distribution function from m to c
        return c - m - (mp.log(c / m) * m if a == 1 else m * ((c / m) ** (1 - a) - 1) / (1 - a))

    return {
        "entropy": lambda: mp.log(m / a) + 1 + 1 / a,
        "log": lambda: log,
        "log2": lambda: 1 / a**2 + log**2,
        "exp": lambda t: a * (m * t) ** a * mp.gammainc(-a, m * t) if t > 0 else mp.inf,
        "abs": lambda c: distance(a * m / (a - 1), c, below, m) if a > 1 else mp.inf,
        **from_powers(lambda k: a * m**k / (a - k) if a > k else mp.inf),
    }


def beta(a: Number, b: Number) -> Expectations:
    log = mp.digamma(a) - mp.digamma(a + b)
    log1m = mp.digamma(b) - mp.digamma(a + b)
    log_beta = mp.loggamma(a) + mp.loggamma(b) - mp.loggamma(a + b)

    def absolute(c: Number) -> Number:
        mean = a / (a + b)
        if c <= 0 or c >= 1:
            return abs(mean - c)
        share = [mp.betainc(k, b, 0, c, regularized=True) for k in (a, a + 1)]
        return mean - c + 2 * (c * share[0] - mean * share[1])

    def power(k: Number) -> Number:
        if a + k <= 0:
            return mp.inf
        return mp.exp(mp.loggamma(a + k) + mp.loggamma(b) - mp.loggamma(a + b + k) - log_beta)

    return {
        "entropy": lambda: log_beta - (a - 1) * log - (b - 1) * log1m,
        "log": lambda: log,
        "log2": lambda: mp.psi(1, a) - mp.psi(1, a + b) + log**2,
        "log1m": lambda: log1m,
        "exp": lambda t: mp.hyp1f1(a, a + b, -t),
        "abs": absolute,
        **from_powers(power),
    }


def kumaraswamy(a: Number, b: Number) -> Expectations:
    y = beta(mpf(1), b)  # x^a
    return {
        "entropy": lambda: 1 - 1 / b + (1 - 1 / a) * (mp.digamma(b + 1) + mp.euler) - mp.log(a) - mp.log(b),
        "log": lambda: y["log"]() / a,
        "log2": lambda: y["log2"]() / a**2,
        "log1mpow": lambda k: -1 / b if k == a else None,
        **from_powers(lambda k: y["pow"](k / a)),
    }


def uniform(low: Number, high: Number) -> Expectations:
    width = high - low

    def mean(antiderivative: Callable[[Number], Number]) -> Number:
        return (antiderivative(high) - antiderivative(low)) / width

    def power(k: Number) -> Number:
        if k == -1:
            return mp.log(high / low) / width if low > 0 else mp.inf
        if k < -1 and low <= 0:
            return mp.inf
        return mean(lambda x: x ** (k + 1) / (k + 1))

    def quad(m: Number, c: Number) -> Number:
        def antiderivative(x: Number) -> Number:
            y = x - m
            return y * mp.log(y * y + c * c) - 2 * y + 2 * c * mp.atan(y / c)

        return mean(antiderivative)

    return {
        "entropy": lambda: mp.log(width),
        "log": lambda: mean(lambda x: x * mp.log(x) - x if x else 0),
        "log2": lambda: mean(lambda x: x * (mp.log(x) ** 2 - 2 * mp.log(x) + 2) if x else 0),
        "log1m": lambda: mean(lambda x: -((1 - x) * mp.log(1 - x) - (1 - x) if x != 1 else 0)),
        "exp": lambda t: mean(lambda x: -mp.exp(-t * x) / t),
        "abs": lambda c: mean(lambda x: (x - c) * abs(x - c) / 2),
        "quad": quad,
        **from_powers(power),
    }


def continuous_bernoulli(logit: Number) -> Expectations:
    e = logit
    if e == 0:
        return {**uniform(mpf(0), mpf(1)), "entropy": lambda: mpf(0)}
    total = mp.expm1(e)

    def log(e: Number) -> Number:  # -(integral of (e^(ex) - 1) / x) / (e^e - 1)
        series = mp.ei(e) - mp.euler - mp.log(abs(e)) if e > 0 else -mp.e1(-e) - mp.euler - mp.log(-e)
        return -series / mp.expm1(e)

    x = 1 + 1 / total - 1 / e
    x2 = mp.exp(e) / total - 2 * x / e

    def absolute(c: Number) -> Number:
        if c <= 0 or c >= 1:
            return abs(x - c)
        below = (mp.expm1(e * c) / e - c) / total  # the integral of the distribution function
        return x - c + 2 * below

    return {
        "entropy": lambda: mp.log(total / e) - e * x,
        "x": lambda: x,
        "x2": lambda: x2,
        "log": lambda: log(e),
        "log1m": lambda: log(-e),
        "pow": lambda k: only_infinite(k <= -1),
        "exp": lambda t: (mp.expm1(e - t) / (e - t) if e != t else 1) * e / total,
        "abs": absolute,
    }


def fisher(d1: Number, d2: Number) -> Expectations:
    a, b = d1 / 2, d2 / 2
    log = mp.log(b / a) + mp.digamma(a) - mp.digamma(b)
    log_beta = mp.loggamma(a) + mp.loggamma(b) - mp.loggamma(a + b)

    def power(k: Number) -> Number:
        if not -a < k < b:
            return mp.inf
        return (b / a) ** k * mp.exp(
            mp.loggamma(a + k) - mp.loggamma(a) + mp.loggamma(b - k) - mp.loggamma(b)
        )

    return {
        "entropy": lambda: (
            mp.log(b / a)
            + log_beta
            + (1 - a) * mp.digamma(a)
            - (1 + b) * mp.digamma(b)
            + (a + b) * mp.digamma(a + b)
        ),
        "log": lambda: log,
        "log2": lambda: mp.psi(1, a) + mp.psi(1, b) + log**2,
        "abs": lambda c: only_infinite(b <= 1),
        **from_powers(power),
    }


def student(df: Number, m: Number, s: Number) -> Expectations:
    log_beta = mp.loggamma(mpf(1) / 2) + mp.loggamma(df / 2) - mp.loggamma((df + 1) / 2)
    return {
        "entropy": lambda: (
            mp.log(s)
            + mp.log(df) / 2
            + log_beta
            + (df + 1) / 2 * (mp.digamma((df + 1) / 2) - mp.digamma(df / 2))
        ),
        "x": lambda: m if df > 1 else mp.inf,
        "abs": lambda c: only_infinite(df <= 1),
        "exp": lambda t: mp.inf,
        "x2": lambda: m * m + s * s * df / (df - 2) if df > 2 else mp.inf,
    }


def cauchy(m: Number, s: Number) -> Expectations:
    return {
        "entropy": lambda: mp.log(4 * mp.pi * s),
        "x": lambda: mp.inf,
        "x2": lambda: mp.inf,
        "exp": lambda t: mp.inf,
        "abs": lambda c: mp.inf,
        "quad": lambda n, c: mp.log((m - n) ** 2 + (s + c) ** 2),
    }


def generalized_pareto(m: Number, s: Number, k: Number) -> Expectations:
    mean = m + s / (1 - k) if k < 1 else mp.inf

    def log1p(c: Number, other: Number) -> Number:  # E log(1 + c (x - other))
        start = 1 + c * (m - other)
        ratio = c / start * s / k
        return mp.log(start) + k * mp.hyp2f1(1, 1 / k, 1 + 1 / k, 1 - 1 / ratio)

    return {
        "entropy": lambda: mp.log(s) + k + 1,
        "log1p": log1p,
        "x": lambda: mean,
        "abs": lambda c: only_infinite(k >= 1),
        "pow": lambda j: only_infinite(k * j >= 1 or (j <= -1 and m == 0)),
        "x2": lambda: s * s / ((1 - k) ** 2 * (1 - 2 * k)) + mean**2 if 2 * k < 1 else mp.inf,
    }


EXPECTATIONS: dict[str, Callable[..., Expectations]] = {
    "Normal": normal,
    "Laplace": laplace,
    "Gumbel": gumbel,
    "Cauchy": cauchy,
    "StudentT": student,
    "Exponential": exponential,
    "Gamma": gamma,
    "Chi2": chi2,
    "InverseGamma": inverse_gamma,
    "Weibull": weibull,
    "LogNormal": log_normal,
    "HalfNormal": half_normal,
    "HalfCauchy": half_cauchy,
    "FisherSnedecor": fisher,
    "Pareto": pareto,
    "GeneralizedPareto": generalized_pareto,
    "Beta": beta,
    "Kumaraswamy": kumaraswamy,
    "Uniform": uniform,
    "ContinuousBernoulli": continuous_bernoulli,
}
