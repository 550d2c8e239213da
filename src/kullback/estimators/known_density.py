r"""KL from draws of P to a distribution Q whose density is known: the cross-entropy less the entropy.

.. math:: \mathrm{KL}(P \| Q) = -H(P) - E_P[\log q]

The second term is a mean over the draws. The first takes an estimate of :math:`\log p` at each draw, so that both are
one mean, and what varies in common cancels.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Iterable
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor
from torch.distributions import Binomial, Distribution, constraints
from torch.distributions.constraints import Constraint

from kullback.common.optional import load
from kullback.common.progress import progress_bar
from kullback.common.special import HALF_LOG_2PI
from kullback.errors import NoRuleError, explain, invalid_type, invalid_value
from kullback.estimators.dimension import dimension_of, fewest_dimensions, too_few_dimensions
from kullback.estimators.draws import (
    Array,
    Draws,
    affordable_draws,
    clusters_in,
    few_clusters,
    numpy_of,
    with_weight,
)
from kullback.estimators.knn_entropy import FlatError, category_surprise, local_log_density, neighbor_numbers
from kullback.estimators.known_categories import UnseenByP, below_zero, spread_ties
from kullback.estimators.known_counts import of_categories
from kullback.estimators.normal_interval import (
    half_width,
    infinite_estimate,
    normal_estimate,
    opened,
    standard_normal_quantile,
)
from kullback.estimators.sample_checks import check_confidence, check_finite, check_weights, seed_of, seeded
from kullback.estimators.spans import common_span, rank_of
from kullback.estimators.surfaces import surface_of
from kullback.estimators.tails import tail_allowance
from kullback.estimators.unseen import UpperEndShift
from kullback.results.estimate import Estimate
from kullback.samples import Samples

__all__ = ["from_density"]

_T = TypeVar("_T")

# Draws, and draws for each dimension, below which neighbors say nothing about a density.
_FEWEST = 16
# The k-th distances of draws that have a neighbor in common vary together: by so much of their own variance more.
_SHARED = 0.6
# Neighbors to count where the density changes within more of them.
_FEWEST_NEIGHBORS = 3
# Draws of Q that show whether it is on the surface that P's draws are on.
_DRAWS_OF_Q = 1000
# So many standard deviations from P's change with k, a reference is not like P.
_REFUTED = 3.0


def from_density(
    p: Samples, q: Distribution, *, confidence: float = 0.95, generator: torch.Generator | None = None
) -> Estimate:
    r"""Estimate KL(P || Q) from draws of P and the log-density of Q.

    .. math:: \widehat{KL} = \frac1n \sum_i \big[\widehat{\log p}(x_i) - \log q(x_i)\big] - \hat b

    For numbers, :math:`\widehat{\log p}` is that of the k nearest neighbors, in coordinates that are brought to one
    scale, and :math:`\hat b` its bias, measured on as many draws of Q or of a Gaussian: whichever changes like that of
    P when k is made four times as large; where neither does, the error grows by what is left. For categories,
    :math:`\widehat{\log p}` is that of their counts and :math:`\hat b` stands for the categories unseen.
    The interval's ends are then those of Wilson's for proportions: what P's draws did not show is in it, at the known
    probability of it. Of counting numbers without an end this goes as far as the next value: beyond, log q is taken to
    go on as its tail does over the draws.

    Draws, or their clusters, are taken to be independent: unlike `kl_estimate`, this does not examine their order.

    Arguments:
        p: n draws of P, with their weights and clusters, if any; integers where Q gives integers.
        q: a torch distribution of one event, ``batch_shape`` (), of shape () or (d,).
        confidence: how often the interval shall cover.
        generator: for the reference draws.

    Returns:
        the estimate in nats. It is infinite, with a note, where Q gives no density to a draw, and where P has an atom,
        or is in a plane or on a surface, and Q is not. The density of a Q on the simplex, such as a Dirichlet, is that
        of all components but the last.
        The interval's upper end is infinite, with a note, where the tail of log p / q may have no mean, and where the
        draws put it below 0.

    Raises:
        ArgumentValueError: too few draws, infinite ones, or shapes that do not fit; draws that fill fewer dimensions
            than they have components, so that P has no density.
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
    load("scipy", call)
    _check_sides(call, p, q)
    check_confidence(call, confidence)
    discrete = _is_discrete(call, p, q)
    _check_draws(call, p, discrete=discrete)
    log_q = _log_prob(call, q, numpy_of(p))
    used = np.ones(len(p), dtype=bool) if p.weights is None else p.weights.cpu().numpy() > 0
    outside = (log_q == -np.inf) & used
    if outside.any():
        return _infinite(
            p,
            f"{int(outside.sum())} of {len(p)} draws lie where Q has no density, the first at index "
            f"{int(outside.argmax())}: KL is infinite",
        )
    p, log_q = with_weight(p), log_q[used]
    draws = Draws.of(p)
    if discrete:
        return _from_counts(p, q, draws, log_q, confidence)
    return _from_neighbors(p, q, draws, log_q, confidence, generator)


def _from_counts(p: Samples, q: Distribution, draws: Draws, log_q: Array, confidence: float) -> Estimate:
    """Return the mean of log p - log q over draws of categories."""
    values, first, category, seen = np.unique(
        draws.x, axis=0, return_index=True, return_inverse=True, return_counts=True
    )
    category = category.reshape(-1)
    n = draws.effective
    counts = (
        seen.astype(np.float64)
        if draws.weights is None
        else np.asarray(np.bincount(category, draws.shares) * n, dtype=np.float64)
    )
    elsewhere, listed = _unseen_by_p(q, values, log_q[first])
    found = of_categories(
        counts,
        log_q[first],
        elsewhere,
        lambda influence: draws.variance(draws.shares * influence[category]),
        n=n,
        sizes=(len(p), float(draws.groups)),
        clusters=clusters_in(p),
        confidence=confidence,
        device=p.tensor.device,
    )
    if listed or bool(found.interval is not None and found.interval[1].isinf()):
        return found
    # Where P has no tail of -log q that matters, it has none of log p / q.
    terms = -category_surprise(counts, n)[0][category] - log_q
    return _with_tail(found, [spread_ties(-log_q), spread_ties(terms)], draws)


def _reach(confidence: float, draws: Draws) -> float:
    """Return half the width of an interval in standard errors."""
    quantile = standard_normal_quantile(confidence)
    return quantile if draws.cluster is None else quantile * few_clusters(draws.groups, quantile)


def _with_tail(estimate: Estimate, candidates: list[Array], draws: Draws) -> Estimate:
    """Move the upper end by what draws not seen may add to the mean of terms, the least of several bounds."""
    number = draws.groups * draws.effective / len(draws)
    with np.errstate(divide="ignore", invalid="ignore"):  # half of the largest terms may be the same
        more = min(tail_allowance(terms, draws.shares, number) for terms in candidates)
    note = ""
    if more > half_width(estimate):
        note = (
            "log p / q has so heavy a tail that draws not seen may decide its mean: the interval's upper end is "
            + ("infinite" if math.isinf(more) else "that of a Pareto tail")
        )
    return opened(estimate, UpperEndShift(more, note))


def _unseen_by_p(q: Distribution, seen: Array, log_q: Array) -> tuple[UnseenByP, bool]:
    """Return what Q is at the values that P's draws did not show, and whether Q is a list of categories.

    Of numbers without an end only those next to the ones seen, or between them, count as values that P may have.
    """
    rest = max(-math.expm1(min(float(np.logaddexp.reduce(log_q)), 0.0)), np.finfo(np.float64).tiny)
    values, listed = _values_of(q, seen)
    if values is None:
        return UnseenByP(math.log(rest), min(math.log(rest), float(log_q.min()))), False
    both, counts = np.unique(np.concatenate([values, seen]), axis=0, return_counts=True)
    logs = _log_prob("from_density", q, both[counts == 1])
    logs = logs[logs > -np.inf]
    if not len(logs):
        return UnseenByP(-math.inf, -math.inf), listed
    total = float(np.logaddexp.reduce(logs)) if listed else math.log(rest)
    return UnseenByP(total, float(logs.min())), listed


def _values_of(q: Distribution, seen: Array) -> tuple[Array | None, bool]:
    """Return the values that Q may have, and whether they are categories; None of vectors too many to list."""
    d = seen.shape[1]
    if q.has_enumerate_support and not isinstance(q, Binomial):
        try:
            values = q.enumerate_support(expand=False)
        except NotImplementedError:
            return None, False
        return values.reshape(-1, d).to("cpu", torch.float64).numpy(), True
    if d > 1:
        return None, False
    whole = seen[:, 0]
    around = np.arange(-1.0, 2.0) + whole[:, None]
    return np.unique(around)[:, None], False


def _from_neighbors(
    p: Samples,
    q: Distribution,
    draws: Draws,
    log_q: Array,
    confidence: float,
    generator: torch.Generator | None,
) -> Estimate:
    """Return the mean of log p - log q over continuous draws, less its bias."""
    thinned: list[str] = []
    rng = np.random.default_rng(seed_of(generator))
    if draws.x.shape[1] > 1:
        flat = _on_surface(p, q, rng)
        if flat:
            return _infinite(p, flat)
        x, log_volume = _coordinates(q, draws.x)
        draws, log_q = replace(draws, x=x), log_q + log_volume
        draws, log_q, thinned = _thinned(draws, log_q, rng)
    n = draws.groups
    usual = neighbor_numbers(n * draws.effective / len(draws))
    found = _by_neighbors(draws, log_q, q, usual, rng)
    if isinstance(found, _DensityValue) and found.left > found.error / 2 and usual[0] > _FEWEST_NEIGHBORS:
        # The density changes within so many neighbors: fewer see it better.
        found = _by_neighbors(draws, log_q, q, (_FEWEST_NEIGHBORS, 4 * _FEWEST_NEIGHBORS), rng)
    if not isinstance(found, _DensityValue):
        return _infinite(p, found)
    notes = [*thinned, *_notes(draws, found.left, found.error)]
    estimate = _estimate(p, found.value, found.error, confidence, notes)
    reach = _reach(confidence, draws)
    high = found.value + reach * math.sqrt(found.error**2 + found.above**2)
    if high < 0:
        return opened(estimate, below_zero(high))
    low = max(found.value - reach * found.error, 0.0)
    estimate = replace(estimate, interval=(estimate.value.new_tensor(low), estimate.value.new_tensor(high)))
    return _with_tail(estimate, [found.terms], draws)


def _thinned(draws: Draws, log_q: Array, rng: np.random.Generator) -> tuple[Draws, Array, list[str]]:
    """Return as many draws as neighbors are found for in seconds, among them and among draws of the references."""
    number = (affordable_draws(draws.x.shape[1]) or 2 * len(draws)) // 2
    if len(draws) <= number:
        return draws, log_q, []
    chosen = np.sort(rng.choice(len(draws), number, replace=False))
    note = (
        f"{number:,} of the {len(draws):,} draws were used, chosen at random: in {draws.x.shape[1]} dimensions the "
        "neighbors of all would take too long."
    )
    return draws.taken(chosen), log_q[chosen], [note]


def _coordinates(q: Distribution, x: Array) -> tuple[Array, Array | float]:
    r"""Return draws in coordinates that they can fill, and the logarithm of the volume that Q's density is for there.

    On the simplex the density is that of all components but the last, and the coordinates are
    :math:`\log x_i / x_d`, in which no edge is near; where a component is 0, the first components themselves.
    """
    if not isinstance(_support(q), type(constraints.simplex)):
        return x, 0.0
    if not (x > 0).all():
        return x[:, :-1], 0.0
    logs = np.log(x)
    return logs[:, :-1] - logs[:, -1:], logs.sum(1)


def _on_surface(p: Samples, q: Distribution, rng: np.random.Generator) -> str:
    """Return why KL is infinite where P's draws are in a plane or on a surface and Q's are not; raise where both are.

    The density of a Q on a surface may be that of any coordinates on it.
    """
    points = _coordinates(q, Draws.of(p).x)[0]
    with seeded(int(rng.integers(2**31))):
        try:
            y = _coordinates(q, _draws_of(q, _DRAWS_OF_Q))[0]
        except NotImplementedError:
            y = None
    if y is not None:
        span = common_span(Samples(torch.from_numpy(points)), Samples(torch.from_numpy(y)))
        if span.infinite:
            return span.infinite
    plane = points.shape[1] > 1 and rank_of(points - points.mean(0)) < points.shape[1]
    surface = None if plane else surface_of(points, p.tensor.dtype)
    if not plane and surface is None:
        return ""
    raise invalid_value(
        "from_density",
        "p, q",
        wanted="draws that fill all dimensions of their space, or draws of q that do so while those of p do not",
        got="draws of p and of q in one plane"
        if plane
        else "draws of p on a curved surface, and q on it or unknown",
        instead="kl_estimate(Samples(x), Samples(q.sample((n,)))), draws with draws",
    )


def _draws_of(q: Distribution, n: int) -> Array:
    return q.sample(torch.Size([n])).reshape(n, q.event_shape.numel()).to("cpu", torch.float64).numpy()


@dataclass(frozen=True)
class _DensityValue:
    """A value, its standard error, the bias that it may be left with, and the log-ratio at each draw.

    At the upper end, `above` comes to the error.
    """

    value: float
    error: float
    left: float
    above: float
    terms: Array


def _by_neighbors(
    draws: Draws, log_q: Array, q: Distribution, numbers: tuple[int, int], rng: np.random.Generator
) -> _DensityValue | str:
    """Return the estimate by these numbers of neighbors, or why KL is infinite."""
    n, d = max(int(draws.groups * draws.effective / len(draws)), 2), draws.x.shape[1]
    units = None if draws.cluster is None else draws.units
    try:
        log_p = local_log_density(draws.x, numbers, draws.weights, units, rng)
    except FlatError:
        return (
            "the draws lie in a space of fewer dimensions (a constant component, or one that others determine), where "
            "P has no density and Q has: KL is infinite"
        )
    if np.isinf(log_p).any():
        return (
            f"a draw is repeated more than {numbers[0]} times: an atom of P, where Q has a density, makes KL infinite; "
            "if rounding made it, Q has to be rounded alike"
        )
    _check_dimensions(draws.x, float(np.diff(log_p.mean(0))[0]), numbers, n)
    terms = log_p - log_q[:, None]
    means = draws.shares @ terms
    bias = _bias(q, means, numbers, n, d, rng)
    shared = _SHARED * float(load("scipy.special", "from_density").polygamma(1, numbers[0])) / n
    variance = draws.variance(draws.shares * (terms[:, 0] - means[0])) + shared + bias.error**2 + bias.left**2
    return _DensityValue(
        float(means[0]) - bias.value, math.sqrt(variance), bias.left, bias.above, terms[:, 0]
    )


def _check_dimensions(x: Array, change: float, numbers: tuple[int, int], n: int) -> None:
    """Refuse draws near a set of fewer dimensions, by how much their mean log-density changes with the number k."""
    d = x.shape[1]
    digamma = load("scipy.special", "from_density").digamma
    growth = float(digamma(numbers[1]) - digamma(numbers[0])) - change
    if d == 1 or dimension_of(growth / d, numbers) >= fewest_dimensions(numbers, n, d):
        return
    found = too_few_dimensions(x, x, (1, 4))
    if found is None:
        return
    raise invalid_value(
        "from_density",
        "p",
        wanted="draws that fill all dimensions of their space, so that P has a density as Q has",
        got=f"draws that fill about {found:.1f} of {d} dimensions at the distance of their neighbors",
        instead="kl_estimate(Samples(x), Samples(q.sample((n,)))), draws with draws",
    )


def _notes(draws: Draws, left: float, error: float) -> Generator[str]:
    repeated = len(draws.x) - len(np.unique(draws.x, axis=0))
    if repeated:
        yield (
            f"{repeated} of {len(draws.x)} draws equal another one: if they are rounded, the density of P is known no "
            "finer than that, and the value is too high by an unknown amount"
        )
    if left > error / 2:
        yield f"P is shaped unlike the references: a bias of about {left:.2g} may be left, and widens the interval"


@dataclass(frozen=True)
class _Bias:
    """The bias of references, its standard error, what may be left of P's own, and what more if P is above."""

    value: float
    error: float
    left: float
    above: float


def _bias(
    q: Distribution,
    means: Array,
    numbers: tuple[int, int],
    n: int,
    d: int,
    rng: np.random.Generator,
) -> _Bias:
    """Measure the bias on reference draws, and what may be left of P's own.

    Biases fall with k as k^(2 / d), or slower, so what P's estimate changes beyond the reference's from k to 4 k tells
    the rest. Which reference is nearer, chance decides as well: as far as it does, their difference is an error. Where
    P's estimate falls more than that of either, P has more edges, or sharper peaks, than they; its change then says no
    more than that its bias may be as far beyond.
    """
    times = int(min(max(200_000 // n, 2), 8)) if d <= 10 else 2
    with progress_bar("references") as update:

        def counted(biases: Iterable[_T], done: int) -> Generator[_T]:
            for i, bias in enumerate(biases, done + 1):
                if update:
                    update(i, 2 * times)
                yield bias

        references = [list(counted((_gaussian_bias(rng, n, d, numbers) for _ in range(times)), 0))]
        with seeded(int(rng.integers(2**31))):
            own = list(counted((_own_bias(q, n, numbers) for _ in range(times)), times))
    if all(bias is not None for bias in own):
        references.append([bias for bias in own if bias is not None])
    change = means[1] - means[0]
    fits: list[tuple[float, Array, float]] = []
    for measured in references:
        biases = np.stack(measured)
        changes = biases[:, 1] - biases[:, 0]
        chance = float(changes.var(ddof=1)) * (1 + 1 / times)
        fits.append((float(change - changes.mean()), biases[:, 0], chance))
    nearest = min(fits, key=lambda fit: abs(fit[0]))
    difference, biases, chance = nearest
    value, error = float(biases.mean()), float(biases.std(ddof=1)) / math.sqrt(times)
    largest = max(fit[2] for fit in fits)
    for other in fits:
        if other is not nearest and other[0] ** 2 < _REFUTED**2 * largest:
            error = math.hypot(error, float(other[1].mean()) - value)
    rate = 4 ** min(2 / d, 1) - 1
    left = math.sqrt(max(difference**2 - chance, 0)) / rate
    below = [fit[0] for fit in fits]
    above = 2 / rate * max(-min(below), math.sqrt(largest)) if max(below) < 0 else 0.0
    return _Bias(value, error, left, math.sqrt(max(above**2 - left**2, 0)))


def _gaussian_bias(rng: np.random.Generator, n: int, d: int, numbers: tuple[int, int]) -> Array:
    z = rng.standard_normal((n, d))
    return local_log_density(z, numbers).mean(0) + 0.5 * float((z**2).sum(1).mean()) + d * HALF_LOG_2PI


def _own_bias(q: Distribution, n: int, numbers: tuple[int, int]) -> Array | None:
    """Return what the estimate of KL(Q || Q) = 0 is from draws of Q; None where it cannot be had."""
    try:
        y = _draws_of(q, n)
        x, log_volume = _coordinates(q, y)
        log_q = _log_prob("from_density", q, y) + log_volume
        bias = (local_log_density(x, numbers) - log_q[:, None]).mean(0)
    except (NotImplementedError, FlatError):
        return None
    return bias if np.isfinite(bias).all() else None


def _log_prob(call: str, q: Distribution, x: Array) -> Array:
    """Return Q's log-density at each draw, -inf at those that it cannot give."""
    at = torch.from_numpy(x if q.event_shape else x[:, 0])
    support = _support(q)
    inside: Tensor = (
        torch.ones(len(x), dtype=torch.bool, device="cpu") if support is None else support.check(at)
    )
    found = torch.full((len(x),), -torch.inf, dtype=torch.float64, device="cpu")
    if bool(inside.any()):
        found[inside] = q.log_prob(at[inside]).detach().to("cpu", torch.float64)
    bad = found.isnan() | (found == torch.inf)
    if bool(bad.any()):
        raise invalid_value(
            call,
            "q",
            wanted="a finite log-density at the draws",
            got=f"NaN or +inf at {int(bad.sum())} of {len(x)}, the first at index {int(bad.int().argmax())}",
            instead="kl_estimate(Samples(x), Samples(q.sample((n,)))), draws with draws",
        )
    return found.numpy()


def _support(q: Distribution) -> Constraint | None:
    """Return the values that Q can give, where it states them."""
    try:
        return q.support
    except NotImplementedError:
        return None


def _is_discrete(call: str, p: Samples, q: Distribution) -> bool:
    """Tell whether Q gives integers; refuse draws of the other sort."""
    support = _support(q)
    integers = p.discrete if support is None else support.is_discrete
    if p.labels is not None or (p.discrete and not integers):
        raise invalid_type(
            call,
            "p, q",
            wanted="draws of the sort that q gives",
            got=f"categories, {p!r}, and {type(q).__name__}, which has "
            + ("integers" if integers else "a density"),
            instead="Samples(x.double()) to read integers as numbers, or integer codes in place of strings",
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
        raise invalid_type(
            call,
            "p, q",
            wanted="Samples and a torch.distributions.Distribution",
            got=f"{type(p).__name__} and {type(q).__name__}",
            instead="from_density(Samples(x), Normal(0.0, 1.0))",
        )
    if q.batch_shape or tuple(q.event_shape) not in ((), (p.tensor.shape[1],)):
        _check_shapes(call, p, q)
    if not q.event_shape and p.tensor.shape[1] != 1:
        _check_shapes(call, p, q)


def _check_shapes(call: str, p: Samples, q: Distribution) -> None:
    raise invalid_value(
        call,
        "p, q",
        wanted="a q of one event, with as many components as the draws",
        got=f"{type(q).__name__} of batch_shape {tuple(q.batch_shape)} and event_shape {tuple(q.event_shape)} for "
        f"{p!r}",
        instead="Independent(q, 1) for a product over the components, or q of a single element of the batch",
    )


def _check_draws(call: str, p: Samples, *, discrete: bool) -> None:
    check_finite(call, "p", p)
    check_weights(call, "p", p)
    p = with_weight(p)
    number, d = clusters_in(p) or len(p), p.tensor.shape[1]
    fewest = 2 if discrete else max(_FEWEST, 2 * d + 2)
    if number < fewest:
        raise invalid_value(
            call,
            "p",
            wanted=f"at least {fewest} draws (or clusters) of {'categories' if discrete else f'{d} components'}",
            got=f"{number}",
            instead="more draws",
        )


def _infinite(p: Samples, note: str) -> Estimate:
    return infinite_estimate("from_density", (len(p), 0), note, p.tensor.device)


def _estimate(p: Samples, value: float, error: float, confidence: float, notes: list[str]) -> Estimate:
    return normal_estimate(
        value,
        error,
        confidence,
        method="from_density",
        n=(len(p), 0),
        notes=notes,
        device=p.tensor.device,
        groups=clusters_in(p),
    )
