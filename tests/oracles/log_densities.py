"""Log densities as combinations of the statistics whose expectations pair_oracles.py knows; divergences from both."""

from __future__ import annotations

from collections.abc import Callable

from mpmath import mp, mpf

from tests.oracles.expectations import EXPECTATIONS, Number, Terms
from tests.oracles.families import REAL_LINE, UNIT_INTERVAL


def normal(m: Number, s: Number) -> Terms:
    w = 1 / (2 * s * s)
    return -mp.log(2 * mp.pi) / 2 - mp.log(s) - m * m * w, [(-w, "x2", ()), (2 * m * w, "x", ())]


def laplace(m: Number, b: Number) -> Terms:
    return -mp.log(2 * b), [(-1 / b, "abs", (m,))]


def gumbel(m: Number, b: Number) -> Terms:
    return m / b - mp.log(b), [(-1 / b, "x", ()), (-mp.exp(m / b), "exp", (1 / b,))]


def cauchy(m: Number, s: Number) -> Terms:
    return mp.log(s / mp.pi), [(mpf(-1), "quad", (m, s))]


def student(df: Number, m: Number, s: Number) -> Terms:
    log_beta = mp.loggamma(mpf(1) / 2) + mp.loggamma(df / 2) - mp.loggamma((df + 1) / 2)
    constant = -mp.log(s) - mp.log(df) / 2 - log_beta + (df + 1) / 2 * mp.log(df * s * s)
    return constant, [(-(df + 1) / 2, "quad", (m, s * mp.sqrt(df)))]


def gamma(a: Number, r: Number) -> Terms:
    return a * mp.log(r) - mp.loggamma(a), [(a - 1, "log", ()), (-r, "x", ())]


def inverse_gamma(a: Number, b: Number) -> Terms:
    return a * mp.log(b) - mp.loggamma(a), [(-(a + 1), "log", ()), (-b, "pow", (mpf(-1),))]


def weibull(scale: Number, k: Number) -> Terms:
    return mp.log(k) - k * mp.log(scale), [(k - 1, "log", ()), (-(scale**-k), "pow", (k,))]


def log_normal(m: Number, s: Number) -> Terms:
    w = 1 / (2 * s * s)
    constant = -mp.log(s) - mp.log(2 * mp.pi) / 2 - m * m * w
    return constant, [(2 * m * w - 1, "log", ()), (-w, "log2", ())]


def half_normal(s: Number) -> Terms:
    return mp.log(2 / mp.pi) / 2 - mp.log(s), [(-1 / (2 * s * s), "x2", ())]


def half_cauchy(s: Number) -> Terms:
    return mp.log(2 * s / mp.pi), [(mpf(-1), "quad", (mpf(0), s))]


def pareto(m: Number, a: Number) -> Terms:
    return mp.log(a) + a * mp.log(m), [(-(a + 1), "log", ())]


def beta(a: Number, b: Number) -> Terms:
    constant = mp.loggamma(a + b) - mp.loggamma(a) - mp.loggamma(b)
    return constant, [(a - 1, "log", ()), (b - 1, "log1m", ())]


def kumaraswamy(a: Number, b: Number) -> Terms:
    return mp.log(a * b), [(a - 1, "log", ()), (b - 1, "log1mpow", (a,))]


def uniform(low: Number, high: Number) -> Terms:
    return -mp.log(high - low), []


def continuous_bernoulli(logit: Number) -> Terms:
    return mp.log(logit / mp.expm1(logit)) if logit else mpf(0), [(logit, "x", ())]


def fisher(d1: Number, d2: Number) -> Terms:
    a, b = d1 / 2, d2 / 2
    constant = a * mp.log(d1 / d2) + mp.loggamma(a + b) - mp.loggamma(a) - mp.loggamma(b)
    return constant, [(a - 1, "log", ()), (-(a + b), "log1p", (d1 / d2, mpf(0)))]


def generalized_pareto(m: Number, s: Number, k: Number) -> Terms:
    if k == 0:
        return m / s - mp.log(s), [(-1 / s, "x", ())]
    return -mp.log(s), [(-(1 + 1 / k), "log1p", (k / s, m))]


LOG_DENSITIES: dict[str, Callable[..., Terms]] = {
    "Normal": normal,
    "Laplace": laplace,
    "Gumbel": gumbel,
    "Cauchy": cauchy,
    "StudentT": student,
    "Exponential": lambda r: gamma(mpf(1), r),
    "Gamma": gamma,
    "Chi2": lambda df: gamma(df / 2, mpf(1) / 2),
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

# The statistics themselves, for where an expectation has to be integrated: of x, and of y = 1 - x known as exactly.
STATISTICS: dict[str, Callable[..., Number]] = {
    "x": lambda x, y: x,
    "x2": lambda x, y: x * x,
    "log": lambda x, y: mp.log(x),
    "log2": lambda x, y: mp.log(x) ** 2,
    "log1m": lambda x, y: mp.log(y),
    "log1mpow": lambda x, y, k: mp.log(-mp.expm1(k * (mp.log1p(-y) if y < x else mp.log(x)))),
    "log1p": lambda x, y, c, m: mp.log1p(c * (x - m)),
    "pow": lambda x, y, k: x**k,
    "exp": lambda x, y, t: mp.exp(-t * x),
    "abs": lambda x, y, c: abs(x - c),
    "quad": lambda x, y, m, c: mp.log((x - m) ** 2 + c * c),
}


def support(family: str, parameters: list[Number]) -> tuple[Number, Number]:
    if family in REAL_LINE:
        return -mp.inf, mp.inf
    if family in UNIT_INTERVAL:
        return mpf(0), mpf(1)
    if family == "Uniform":
        return parameters[0], parameters[1]
    if family in ("Pareto", "GeneralizedPareto"):
        end = mp.inf
        if family == "GeneralizedPareto" and parameters[2] < 0:
            end = parameters[0] - parameters[1] / parameters[2]
        return parameters[0], end
    return mpf(0), mp.inf


def by_table(p: str, q: str) -> Callable[[list[Number], list[Number]], Number | None]:
    """KL(P || Q) of two univariate continuous families; None where an expectation has no entry."""

    def kl(at_p: list[Number], at_q: list[Number]) -> Number | None:
        constant, terms = expected_terms(p, q, at_p, at_q)
        if any(expectation is not None and mp.isinf(expectation) for _, expectation in terms):
            return mp.inf
        if any(expectation is None for _, expectation in terms):
            return None
        return constant - sum(factor * expectation for factor, expectation in terms)

    return kl


def expected_terms(
    p: str, q: str, at_p: list[Number], at_q: list[Number]
) -> tuple[Number, list[tuple[Number, Number | None]]]:
    """What E log q consists of, taken from -H(P); an expectation is None where it has no formula."""
    (low, high), (low_q, high_q) = support(p, at_p), support(q, at_q)
    if low < low_q or high > high_q:
        return mp.inf, [(mpf(1), mp.inf)]
    known = EXPECTATIONS[p](*at_p)
    constant, terms = LOG_DENSITIES[q](*at_q)
    found = [
        (factor, known[statistic](*arguments) if statistic in known else None)
        for factor, statistic, arguments in terms
        if factor != 0
    ]
    return -known["entropy"]() - constant, found


def log_density(family: str, at: list[Number]) -> Callable[[Number, Number], Number]:
    constant, terms = LOG_DENSITIES[family](*at)
    return lambda x, y: constant + sum(f * STATISTICS[name](x, y, *arguments) for f, name, arguments in terms)


def by_integral(p: str, q: str) -> Callable[[list[Number], list[Number]], Number | None]:
    """KL(P || Q) by mpmath's tanh-sinh quadrature in a coordinate without ends, cut at what both families have."""

    def kl(at_p: list[Number], at_q: list[Number]) -> Number | None:
        low, high = support(p, at_p)
        _, terms = expected_terms(p, q, at_p, at_q)
        if any(expectation is not None and mp.isinf(expectation) for _, expectation in terms):
            return mp.inf
        log_p, log_q = log_density(p, at_p), log_density(q, at_q)

        def integrand(x: Number, y: Number, derivative: Number) -> Number:
            d = log_p(x, y)
            return mp.exp(d) * (d - log_q(x, y)) * derivative if d > -1000 else mpf(0)

        cuts = sorted({c for c in landmarks(p, at_p) + landmarks(q, at_q) if low < c < high})
        line, at = coordinate(low, high, cuts)
        found, error = mp.quad(lambda t: integrand(*line(t)), [-mp.inf, *at, mp.inf], error=True)
        return found if mp.isfinite(found) and error < mpf(10) ** -18 * abs(found) else None

    return kl


Line = Callable[[Number], tuple[Number, Number, Number]]


def coordinate(low: Number, high: Number, cuts: list[Number]) -> tuple[Line, list[Number]]:
    """From t on the real line to x, 1 - x and dx/dt; and the cuts as t."""
    if mp.isinf(low):
        return lambda t: (t, 1 - t, mpf(1)), cuts
    if mp.isinf(high):
        return lambda t: (low + mp.exp(t), 1 - low - mp.exp(t), mp.exp(t)), [mp.log(c - low) for c in cuts]

    def inside(t: Number) -> tuple[Number, Number, Number]:
        share, rest = 1 / (1 + mp.exp(-t)), 1 / (1 + mp.exp(t))
        return low + (high - low) * share, 1 - high + (high - low) * rest, (high - low) * share * rest

    return inside, [mp.log((c - low) / (high - c)) for c in cuts]


def landmarks(family: str, at: list[Number]) -> list[Number]:
    if family in REAL_LINE:
        m, s = at[-2:]
        return [m - 5 * s, m - s, m, m + s, m + 5 * s]
    if family in UNIT_INTERVAL:
        return [mpf(1) / 4, mpf(3) / 4]
    if family == "Uniform":
        return [(at[0] + at[1]) / 2]
    if family in ("Pareto", "GeneralizedPareto"):
        return [at[0] * 2, at[0] * 10] if family == "Pareto" else [at[0] + at[1], at[0] + 10 * at[1]]
    return [mpf(1) / 10, mpf(1), mpf(10)]
