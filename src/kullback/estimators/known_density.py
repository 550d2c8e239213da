r"""KL from draws of P to a distribution Q whose density is known: the cross-entropy less the entropy.

.. math:: \mathrm{KL}(P \| Q) = -H(P) - E_P[\log q]

The second term is a mean over the draws. The first takes an estimate of :math:`\log p` at each draw, so that both are
one mean, and what varies in common cancels.
"""

from __future__ import annotations

import math
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.distributions import Distribution
from torch.distributions.constraints import Constraint

from kullback.errors import (
    ArgumentTypeError,
    ArgumentValueError,
    NoRuleError,
    OptionalDependencyError,
    explain,
)
from kullback.estimate import Estimate
from kullback.estimators.checks import (
    Array,
    check_confidence,
    effective_number,
    normal_estimate,
    numpy_of,
    seed_of,
)
from kullback.estimators.knn_entropy import (
    FlatError,
    Units,
    local_log_density,
    neighbor_numbers,
    symbol_surprise,
)
from kullback.samples import Samples

__all__ = ["from_density"]

# Draws, and draws for each dimension, below which neighbors say nothing about a density.
_FEWEST = 16
# The k-th distances of draws that have a neighbor in common vary together: by so much of their own variance more.
_SHARED = 0.6


def from_density(
    p: Samples, q: Distribution, *, confidence: float = 0.95, generator: torch.Generator | None = None
) -> Estimate:
    r"""Estimate KL(P || Q) from draws of P and the log-density of Q.

    .. math:: \widehat{KL} = \frac1n \sum_i \big[\widehat{\log p}(x_i) - \log q(x_i)\big] - \hat b

    For points, :math:`\widehat{\log p}` is that of the k nearest neighbors, in coordinates that are brought to one
    scale, and :math:`\hat b` its bias, measured on as many draws of Q or of a Gaussian: whichever changes like that of
    P when k is made four times as large; where neither does, the error grows by what is left. For symbols,
    :math:`\widehat{\log p}` is that of their counts and :math:`\hat b` stands for the symbols unseen.

    Arguments:
        p: n draws of P, with weights and clusters if they have such; integers where Q gives integers.
        q: a torch distribution of one event, ``batch_shape`` (), of shape () or (d,).
        confidence: how often the interval shall cover.
        generator: for the reference draws.

    Returns:
        the estimate in nats. It is infinite, with a note, where Q gives no density to a draw, or P has an atom and Q a
        density.

    Raises:
        ArgumentValueError: too few draws, infinite ones, or shapes that do not fit.
        NoRuleError: the draws are those of Q and the density that of P. Where P has mass and Q showed no draw, nothing
            can be known: draw from P instead and compare the draws.
        OptionalDependencyError: SciPy is not installed.

    Gradient:
        none.

    Example:
        >>> import torch
        >>> from torch.distributions import Normal
        >>> from kullback import Samples
        >>> draws = torch.Generator().manual_seed(0)
        >>> x = torch.randn(1000, generator=draws)
        >>> estimate = from_density(Samples(x), Normal(1.0, 1.5), generator=draws)  # true value: 0.3499
        >>> bool(estimate.interval[0] < 0.3499 < estimate.interval[1])
        True

    References:
        Sample estimate of the entropy of a random vector (Kozachenko and Leonenko, 1987)
        Efficient multivariate entropy estimation via k-nearest neighbor distances (Berrett, Samworth and Yuan, 2019)
        Entropy and the species accumulation curve (Chao, Wang and Jost, 2013)
    """
    call = "from_density"
    _require_scipy()
    _check_sides(call, p, q)
    check_confidence(call, confidence)
    symbols = _are_symbols(call, p, q)
    x = numpy_of(p)
    _check_draws(call, p, x, symbols)
    weights = np.ones(len(x)) if p.weights is None else p.weights.cpu().numpy()
    units = np.arange(len(x)) if p.clusters is None else p.clusters.cpu().numpy()
    log_q = _log_prob(call, q, x)
    outside = (log_q == -np.inf) & (weights > 0)
    if outside.any():
        return _infinite(
            p,
            f"{int(outside.sum())} of {len(x)} draws lie where Q has no density, the first at index "
            f"{int(outside.argmax())}: KL is infinite",
        )
    sides = _Draws(x, log_q, weights, units, p.clusters is not None)
    if symbols:
        return _estimate(p, _from_counts(sides), confidence)
    return _from_neighbors(p, q, sides, confidence, generator)


@dataclass(frozen=True)
class _Draws:
    """Draws, Q's log-density at them, what each counts for and the unit that it belongs to."""

    x: Array
    log_q: Array
    weights: Array
    units: Units
    clustered: bool

    @property
    def shares(self) -> Array:
        """The weights, adding up to one."""
        return self.weights / self.weights.sum()

    @property
    def effective(self) -> float:
        """How many draws of equal weight tell as much."""
        return effective_number(torch.from_numpy(self.weights), len(self.weights))

    def variance(self, terms: Array) -> float:
        """The variance of the weighted mean of terms, units taken together."""
        influence = self.shares * (terms - self.shares @ terms)
        sums = np.bincount(self.units, influence)
        used = len(np.unique(self.units[self.weights > 0]))
        return float(np.sum(sums**2)) * used / max(used - 1, 1)


@dataclass(frozen=True)
class _Found:
    value: float
    error: float
    method: str
    notes: tuple[str, ...] = ()


def _from_counts(draws: _Draws) -> _Found:
    """Return the mean of log p - log q over the draws of symbols."""
    _, symbol, seen = np.unique(draws.x, axis=0, return_inverse=True, return_counts=True)
    symbol = symbol.reshape(-1)
    n = draws.effective
    counts = seen.astype(np.float64)
    if np.ptp(draws.weights) > 0:
        counts = np.bincount(symbol, draws.shares) * n
    surprise, unseen = symbol_surprise(np.where(counts > 0, counts, 1), n)
    terms = -surprise[symbol] - draws.log_q
    value = float(draws.shares @ terms) - unseen
    # Where P = Q the terms are all 0, and only their quadratic term varies.
    second_order = (int((counts > 0).sum()) - 1) / (2 * n**2)
    notes = ()
    if unseen > 0.01:
        notes = (
            f"symbols that no draw showed take {unseen:.2g} off, which may be half as much or half as much again",
        )
    return _Found(
        value, math.sqrt(draws.variance(terms) + second_order + (unseen / 2) ** 2), "entropy of counts", notes
    )


def _from_neighbors(
    p: Samples, q: Distribution, draws: _Draws, confidence: float, generator: torch.Generator | None
) -> Estimate:
    from scipy.special import polygamma

    n, d = len(np.unique(draws.units)), draws.x.shape[1]
    numbers = neighbor_numbers(n * draws.effective / len(draws.x))
    rng = np.random.default_rng(seed_of(generator))
    weights = draws.weights if np.ptp(draws.weights) > 0 else None
    try:
        log_p = local_log_density(draws.x, numbers, weights, draws.units if draws.clustered else None, rng)
    except FlatError:
        return _infinite(
            p,
            "the draws lie in a space of fewer dimensions (a constant component, or one that others determine), where "
            "P has no density and Q has: KL is infinite",
        )
    used = draws.weights > 0
    if np.isinf(log_p[used]).any():
        return _infinite(
            p,
            f"a draw is repeated more than {numbers[0]} times: an atom of P, where Q has a density, makes KL infinite; "
            "if rounding made it, Q has to be rounded alike",
        )
    terms = np.where(used[:, None], log_p - draws.log_q[:, None], 0)
    means = draws.shares @ terms
    bias, spread, left = _bias(q, means, numbers, n, d, rng)
    shared = _SHARED * float(polygamma(1, numbers[0])) / n
    error = math.sqrt(draws.variance(terms[:, 0]) + shared + spread**2 + left**2)
    notes = list(_notes(draws, left, error))
    found = _Found(float(means[0]) - bias, error, "entropy by neighbors", tuple(notes))
    return _estimate(p, found, confidence)


def _notes(draws: _Draws, left: float, error: float) -> Generator[str]:
    repeated = len(draws.x) - len(np.unique(draws.x, axis=0))
    if repeated:
        yield (
            f"{repeated} of {len(draws.x)} draws equal another one: if they are rounded, the density of P is known no "
            "finer than that, and the value is too high by an unknown amount"
        )
    if left > error / 2:
        yield f"P is shaped unlike the references: a bias of about {left:.2g} may be left, and widens the interval"


def _bias(
    q: Distribution,
    means: Array,
    numbers: tuple[int, int],
    n: int,
    d: int,
    rng: np.random.Generator,
) -> tuple[float, float, float]:
    """Measure the bias on reference draws; return it, its standard error, and what may be left of P's own.

    Biases fall with k as k^(2 / d), so what P's estimate changes beyond the reference's from k to 4 k tells the rest.
    """
    times = int(min(max(200_000 // n, 2), 8)) if d <= 10 else 2
    references = [[_gaussian_bias(rng, n, d, numbers) for _ in range(times)]]
    with _seeded(int(rng.integers(2**31))):
        own = [_own_bias(q, n, d, numbers) for _ in range(times)]
    if all(bias is not None for bias in own):
        references.append([bias for bias in own if bias is not None])
    change = means[1] - means[0]
    fits: list[tuple[float, Array, float]] = []
    for measured in references:
        biases = np.stack(measured)
        changes = biases[:, 1] - biases[:, 0]
        noise = float(changes.var(ddof=1)) * (1 + 1 / times)
        fits.append((float(change - changes.mean()), biases[:, 0], noise))
    difference, biases, noise = min(fits, key=lambda fit: abs(fit[0]))
    left = math.sqrt(max(difference**2 - noise, 0)) / (4 ** (2 / d) - 1)
    return float(biases.mean()), float(biases.std(ddof=1)) / math.sqrt(times), left


def _gaussian_bias(rng: np.random.Generator, n: int, d: int, numbers: tuple[int, int]) -> Array:
    z = rng.standard_normal((n, d))
    return (
        local_log_density(z, numbers).mean(0)
        + 0.5 * float((z**2).sum(1).mean())
        + d / 2 * math.log(2 * math.pi)
    )


def _own_bias(q: Distribution, n: int, d: int, numbers: tuple[int, int]) -> Array | None:
    """Return what the estimate of KL(Q || Q) = 0 is from draws of Q; None where it cannot be had."""
    try:
        y = q.sample(torch.Size([n])).reshape(n, d).to("cpu", torch.float64).numpy()
        bias = (local_log_density(y, numbers) - _log_prob("from_density", q, y)[:, None]).mean(0)
    except (NotImplementedError, FlatError):
        return None
    return bias if np.isfinite(bias).all() else None


@contextmanager
def _seeded(seed: int) -> Generator[None]:
    """Draw from a seed: the draws of torch's distributions take no generator."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        yield


def _log_prob(call: str, q: Distribution, x: Array) -> Array:
    """Return Q's log-density at each draw, -inf at those that it cannot give."""
    at = torch.from_numpy(x if q.event_shape else x[:, 0])
    support = _support(q)
    inside: Tensor = torch.ones(len(x), dtype=torch.bool) if support is None else support.check(at)
    found = torch.full((len(x),), -torch.inf, dtype=torch.float64)
    if bool(inside.any()):
        found[inside] = q.log_prob(at[inside]).detach().to("cpu", torch.float64)
    bad = found.isnan() | (found == torch.inf)
    if bool(bad.any()):
        raise ArgumentValueError(
            explain(
                call,
                "q",
                wanted="a finite log-density at the draws",
                got=f"NaN or +inf at {int(bad.sum())} of {len(x)}, the first at index {int(bad.int().argmax())}",
                instead="kl_estimate(Samples(x), Samples(q.sample((n,)))), draws with draws",
            )
        )
    return found.numpy()


def _support(q: Distribution) -> Constraint | None:
    """Return the values that Q can give, where it states them."""
    try:
        return q.support
    except NotImplementedError:
        return None


def _are_symbols(call: str, p: Samples, q: Distribution) -> bool:
    """Tell whether Q gives integers; refuse draws of the other kind."""
    support = _support(q)
    integers = p.discrete if support is None else support.is_discrete
    if p.labels is not None or (p.discrete and not integers):
        raise ArgumentTypeError(
            explain(
                call,
                "p, q",
                wanted="draws of the kind that q gives",
                got=f"symbols, {p!r}, and {type(q).__name__}, which has "
                + ("integers" if integers else "a density"),
                instead="Samples(x.double()) to read integers as points, or integer codes in place of strings",
            )
        )
    return integers


def _check_sides(call: str, p: object, q: object) -> None:
    if isinstance(p, Distribution) and isinstance(q, Samples):
        raise NoRuleError(
            explain(
                call,
                "p, q",
                wanted="draws of P and the density of Q",
                got=f"the density of P ({type(p).__name__}) and draws of Q: they say nothing of Q where P has mass and "
                "no draw fell, which is what KL(P || Q) is about",
                instead="kl_estimate(Samples(p.sample((n,))), q), draws with draws, or from_density(q, p) for "
                "KL(Q || P)",
            )
        )
    if not (isinstance(p, Samples) and isinstance(q, Distribution)):
        raise ArgumentTypeError(
            explain(
                call,
                "p, q",
                wanted="Samples and a torch.distributions.Distribution",
                got=f"{type(p).__name__} and {type(q).__name__}",
                instead="from_density(Samples(x), Normal(0.0, 1.0))",
            )
        )
    if q.batch_shape or tuple(q.event_shape) not in ((), (p.tensor.shape[1],)):
        _check_shapes(call, p, q)
    if not q.event_shape and p.tensor.shape[1] != 1:
        _check_shapes(call, p, q)


def _check_shapes(call: str, p: Samples, q: Distribution) -> None:
    raise ArgumentValueError(
        explain(
            call,
            "p, q",
            wanted="a q of one event, with as many components as the draws",
            got=f"{type(q).__name__} of batch_shape {tuple(q.batch_shape)} and event_shape {tuple(q.event_shape)} for "
            f"{p!r}",
            instead="Independent(q, 1) for a product over the components, or q of a single element of the batch",
        )
    )


def _check_draws(call: str, p: Samples, x: Array, symbols: bool) -> None:
    infinite = np.isinf(x).any(axis=1)
    number = len(x) if p.clusters is None else len(p.clusters.unique())
    fewest = 2 if symbols else max(_FEWEST, 2 * x.shape[1] + 2)
    if infinite.any():
        wanted, got = (
            "finite draws",
            f"infinities in {int(infinite.sum())}, the first at index {int(infinite.argmax())}",
        )
    elif number < fewest:
        wanted = f"at least {fewest} draws (or clusters) {'of symbols' if symbols else f'of {x.shape[1]} components'}"
        got = f"{number}"
    else:
        return
    raise ArgumentValueError(
        explain(call, "p", wanted=wanted, got=got, instead="more draws, and those left out that are none")
    )


def _infinite(p: Samples, note: str) -> Estimate:
    infinity = torch.tensor(torch.inf, dtype=torch.float64, device=p.tensor.device)
    error = torch.zeros_like(infinity)
    return Estimate(infinity, error, "support", (infinity, infinity), (len(p), 0), (note,))


def _estimate(p: Samples, found: _Found, confidence: float) -> Estimate:
    return normal_estimate(
        found.value,
        found.error,
        confidence,
        method=found.method,
        n=(len(p), 0),
        notes=found.notes,
        device=p.tensor.device,
    )


def _require_scipy() -> None:
    try:
        __import__("scipy")
    except ImportError:
        raise OptionalDependencyError(
            "from_density needs SciPy. Run: pip install 'kullback[samples]'"
        ) from None
