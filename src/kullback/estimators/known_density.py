r"""KL(P || Q) from draws of P and the known density of Q: the cross-entropy minus the entropy of P.

.. math:: \mathrm{KL}(P \| Q) = -H(P) - E_P[\log q]

The second term is estimated by a mean over the draws. For the first term, :math:`\log p` is estimated at each draw. So
the estimate is a single mean of the differences :math:`\log p - \log q`, and their common variation cancels.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Iterable
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor
from torch.distributions import Binomial, Distribution, constraints
from torch.distributions.constraints import Constraint

from kullback.common.bijective import check_bijective
from kullback.common.progress import progress_bar
from kullback.common.special import HALF_LOG_2PI
from kullback.errors import P, Q, invalid_type, invalid_value, no_rule
from kullback.estimators.draws import Array, Draws, affordable_draws, checked_side
from kullback.estimators.evidence import SIDE_P, SIDE_Q, Evidence, Shift, infinite, noted
from kullback.estimators.knn.pilot import FlatError, LocalDensity, local_log_density
from kullback.estimators.known_categories import (
    UnseenByP,
    below_zero,
    category_surprise,
    of_categories,
    spread_ties,
)
from kullback.estimators.registry import from_draws, rng_of, seeded
from kullback.estimators.surfaces import (
    common_span,
    dimension_of,
    fewest_dimensions,
    rank_of,
    surface_of,
    too_few_dimensions,
)
from kullback.estimators.tails import beyond_tail, tail_allowance
from kullback.samples import Samples

_T = TypeVar("_T")

# `benchmarks/coverage.py` checks these constants: on hard pairs, 95 % intervals must have a coverage of 93 % or more.

# A density from neighbors needs at least this number of draws.
_FEWEST = 16
# Draws with common neighbors have correlated log-distances to their k-th neighbors. The sum of these covariances is
# `_SHARED` times the variance of a log-distance.
_SHARED = 0.6
# If the density changes too much within the balls of the usual number of neighbors, this smaller number is used
# instead.
_FEWEST_NEIGHBORS = 3
# This number of draws of Q shows whether Q is on the same surface as P's draws.
_DRAWS_OF_Q = 1000
_DRAWS_OF_BOTH = ("kl_estimate(Samples(x), Samples(", Q, ".sample((n,)))), which compares draws with draws")
# When k increases to 4 k, the estimates for P and for a reference change. If the two changes differ by this number of
# standard deviations or more, the shape of the reference is too unlike the shape of P. Unless it is the nearest, this
# reference is then ignored.
_REFUTED = 3.0


def _checked(call: str, p: object, q: object) -> tuple[Draws, Distribution]:
    """Return P as `Draws` and the distribution Q; raise an error if `p` and `q` are not draws and a distribution."""
    draws, q = _check_sides(call, p, q)
    discrete = _is_discrete(call, draws, q)
    draws = checked_side(call, "p", draws)
    number, d = draws.groups, draws.tensor.shape[1]
    fewest = 2 if discrete else max(_FEWEST, 2 * d + 2)
    if number < fewest:
        raise invalid_value(
            call,
            "p",
            wanted=f"at least {fewest} draws (or clusters) of {'categories' if discrete else f'{d} components'}",
            got=f"{number}",
            instead="more draws",
        )
    return draws, q


@partial(from_draws, checks=_checked)
def from_density(
    p: Draws, q: Distribution, *, confidence: float = 0.95, generator: torch.Generator | None = None
) -> Evidence:
    r"""Estimate KL(P || Q) from draws of P and the log-density of Q.

    .. math:: \widehat{KL} = \frac1n \sum_i \big[\widehat{\log p}(x_i) - \log q(x_i)\big] - \hat b

    For numbers, :math:`\widehat{\log p}(x_i)` comes from the distance of :math:`x_i` to its k-th nearest neighbor, in
    standardized coordinates. The bias :math:`\hat b` is measured on the same number of draws from two reference
    distributions, Q and a Gaussian. When k increases to 4 k, the estimates for P and for a reference change. The
    reference whose change is closest to the change for P is used, and the difference of these changes enters the
    standard error.

    For categories, :math:`\widehat{\log p}(x_i)` comes from the count of the category, and :math:`\hat b` is the
    contribution of categories without draws. For categories, the limits are like Wilson's limits for proportions, and
    allow for the categories without draws. If Q is a distribution on unbounded integers, the categories without draws
    are the neighbors of observed integers. For other integers, the tail of log q is extrapolated.

    Draws, or their clusters, must be independent. Unlike `kl_estimate`, this function does not test the draws for
    serial dependence.

    Arguments:
        p: n draws of P, with their weights and clusters, if any. If Q is a distribution of integers, the draws must be
            integers.
        q: a torch distribution with ``batch_shape`` () and ``event_shape`` () or (d,).
        confidence: the probability that the interval contains the divergence.
        generator: not used, because the seed of the references depends on the draws alone.

    Returns:
        the estimate in nats. The estimate is infinite, with a note, if Q has density 0 at a draw or P has an atom. It
        is also infinite if all draws of P are in a plane or on a surface, and Q is not. If Q is on the simplex, such as
        a Dirichlet, densities are with respect to all components except the last. The upper limit is infinite, with a
        note, if the tail of log(p / q) may have an infinite mean, or if the limit from the draws alone is below 0.

    Raises:
        ArgumentValueError: there are too few draws, a draw is infinite, or the shapes of `p` and `q` do not fit. The
            error is also raised if draws with d components fill fewer than d dimensions, so that P has no density.
        NoRuleError: `p` is a distribution and `q` is draws. Draws of Q do not show the density of Q in every region
            where P has mass. Draw from P, and pass both sides as draws.
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
    log_q = _log_prob("from_density", q, p.x)
    outside = log_q == -np.inf
    if outside.any():
        first = int(outside.argmax()) if p.rows is None else int(p.rows[outside.argmax()])
        note = (
            f"{SIDE_Q} has density 0 at {int(outside.sum())} of {p.number} draws, the first at index {first}: KL is "
            "infinite."
        )
        return infinite(note, (p.number, 0))
    evidence = (
        _from_counts(p, q, log_q, confidence)
        if _is_discrete("from_density", p, q)
        else _from_neighbors(p, q, log_q)
    )
    return replace(evidence, n=(len(p), 0))


def _from_counts(p: Draws, q: Distribution, log_q: Array, confidence: float) -> Evidence:
    """Return the evidence of KL(P || Q) from draws of categories; `log_q` has Q's log-probability of each draw."""
    values, first, category, number = np.unique(
        p.x, axis=0, return_index=True, return_inverse=True, return_counts=True
    )
    category = category.reshape(-1)
    n = p.effective
    counts = (
        number.astype(np.float64)
        if p.weights is None
        else np.asarray(np.bincount(category, p.shares) * n, dtype=np.float64)
    )
    elsewhere, listed = _unseen_by_p(q, values, log_q[first])
    evidence = of_categories(
        counts,
        log_q[first],
        elsewhere,
        lambda influence: p.variance(p.shares * influence[category]),
        n=n,
        groups=float(p.groups),
        clusters=p.clusters,
        confidence=confidence,
    )
    if listed:
        return evidence
    # The tail of log(p / q) is at most as heavy as the tail of -log q. So the allowances for both tails are valid, and
    # the smaller allowance is used.
    terms = -category_surprise(counts, n)[0][category] - log_q
    return replace(evidence, beyond=_tail([spread_ties(-log_q), spread_ties(terms)], p))


def _tail(candidates: list[Array], draws: Draws) -> Callable[[float], Shift]:
    """Return the function for `Evidence.beyond` with the smallest `tail_allowance` of the arrays in `candidates`."""
    number = draws.groups * draws.effective / len(draws)
    # If half of the largest terms are equal, their median excess is 0. The fit of the tail then divides by 0, which is
    # harmless.
    with np.errstate(divide="ignore", invalid="ignore"):
        return partial(beyond_tail, min(tail_allowance(terms, draws.shares, number) for terms in candidates))


def _unseen_by_p(q: Distribution, observed: Array, log_q: Array) -> tuple[UnseenByP, bool]:
    """Return Q's log-probabilities of values without draws of P, and whether Q has finitely many values.

    `observed` has P's distinct values, and `log_q` Q's log-probabilities of these values. If Q is on unbounded
    integers, only x - 1 and x + 1, for observed integers x, count as values without draws.
    """
    rest = max(-math.expm1(min(float(np.logaddexp.reduce(log_q)), 0.0)), np.finfo(np.float64).tiny)
    values, listed = _values_of(q, observed)
    if values is None:
        return UnseenByP(math.log(rest), min(math.log(rest), float(log_q.min()))), False
    both, counts = np.unique(np.concatenate([values, observed]), axis=0, return_counts=True)
    logs = _log_prob("from_density", q, both[counts == 1])
    logs = logs[logs > -np.inf]
    if not len(logs):
        return UnseenByP(-math.inf, -math.inf), listed
    total = float(np.logaddexp.reduce(logs)) if listed else math.log(rest)
    return UnseenByP(total, float(logs.min())), listed


def _values_of(q: Distribution, observed: Array) -> tuple[Array | None, bool]:
    """Return values of Q, shape (number, d), and whether these are all possible values of Q.

    For unbounded integers, the values are the observed integers and their neighbors. For vectors that torch cannot
    enumerate, the values are None.
    """
    d = observed.shape[1]
    if q.has_enumerate_support and not isinstance(q, Binomial):
        try:
            values = q.enumerate_support(expand=False)
        except NotImplementedError:
            return None, False
        return values.reshape(-1, d).to("cpu", torch.float64).numpy(), True
    if d > 1:
        return None, False
    whole = observed[:, 0]
    around = np.arange(-1.0, 2.0) + whole[:, None]
    return np.unique(around)[:, None], False


def _from_neighbors(p: Draws, q: Distribution, log_q: Array) -> Evidence:
    """Return the evidence of KL from continuous draws by nearest neighbors; `log_q` is Q's log-density at each draw."""
    thinned: list[str] = []
    rng, draws = rng_of(p), p
    if draws.x.shape[1] > 1:
        flat = _on_surface(p, q, rng)
        if flat:
            return infinite(flat)
        x, log_volume = _coordinates(q, draws.x)
        draws, log_q = draws.at(x), log_q + log_volume
        draws, log_q, thinned = _thinned(draws, log_q, rng)
    usual = _neighbor_numbers(draws.groups * draws.effective / len(draws))
    evidence, is_coarse = _by_neighbors(draws, log_q, q, usual, rng)
    if is_coarse and usual[0] > _FEWEST_NEIGHBORS:
        # The density varies too much within the balls of the usual number of neighbors, so fewer neighbors are used.
        few = _FEWEST_NEIGHBORS, 4 * _FEWEST_NEIGHBORS
        evidence, _ = _by_neighbors(draws, log_q, q, few, rng)
    return evidence if evidence.value == math.inf else noted(evidence, thinned)


def _thinned(draws: Draws, log_q: Array, rng: np.random.Generator) -> tuple[Draws, Array, list[str]]:
    """Return at most as many draws as a neighbor search handles in seconds, their `log_q`, and a list of notes."""
    number = (affordable_draws(draws.x.shape[1]) or 2 * len(draws)) // 2
    if len(draws) <= number:
        return draws, log_q, []
    chosen = draws.chosen(number, rng)
    note = (
        f"{number:,} of the {len(draws):,} draws were used, chosen at random, because the search for neighbors is slow "
        f"in {draws.x.shape[1]} dimensions."
    )
    return draws.taken(chosen), log_q[chosen], [note]


def _coordinates(q: Distribution, x: Array) -> tuple[Array, Array | float]:
    r"""Return the draws x in coordinates without constraints, and the number to add to Q's log-density at each draw.

    If Q is not on the simplex, the coordinates are x. On the simplex, the coordinates are :math:`\log(x_i / x_d)`,
    which have no boundary. If a component is 0, the coordinates are the first d - 1 components. The number to add is
    the logarithm of the Jacobian determinant, because Q's density on the simplex is with respect to the first d - 1
    components.
    """
    if not isinstance(_support(q), type(constraints.simplex)):
        return x, 0.0
    if not (x > 0).all():
        return x[:, :-1], 0.0
    logs = np.log(x)
    return logs[:, :-1] - logs[:, -1:], logs.sum(1)


def _on_surface(p: Draws, q: Distribution, rng: np.random.Generator) -> str:
    """Return a note on an infinite KL if P is in a plane or on a surface and Q is not; otherwise an empty string.

    An error is raised if P and Q are in the same plane or on the same surface, because Q's density may refer to any
    coordinates there.
    """
    points = _coordinates(q, p.x)[0]
    with seeded(int(rng.integers(2**31))):
        try:
            y = _coordinates(q, _draws_of(q, _DRAWS_OF_Q))[0]
        except NotImplementedError:
            y = None
    if y is not None:
        span = common_span(Draws(torch.from_numpy(points)), Draws(torch.from_numpy(y)))
        if span.infinite:
            return span.infinite
    plane = points.shape[1] > 1 and rank_of(points - points.mean(0)) < points.shape[1]
    surface = None if plane else surface_of(points, p.tensor.dtype)
    if not plane and surface is None:
        return ""
    raise invalid_value(
        "from_density",
        "p, q",
        wanted="draws of p or of q that fill all dimensions of their space",
        got="draws of p and of q in one plane"
        if plane
        else ("draws of ", P, " on a curved surface, and ", Q, " on it or unknown"),
        instead=_DRAWS_OF_BOTH,
    )


def _draws_of(q: Distribution, n: int) -> Array:
    return q.sample(torch.Size([n])).reshape(n, q.event_shape.numel()).to("cpu", torch.float64).numpy()


def _by_neighbors(
    draws: Draws, log_q: Array, q: Distribution, numbers: tuple[int, int], rng: np.random.Generator
) -> tuple[Evidence, bool]:
    """Return the evidence of KL, and whether the number of neighbors k may be too large; `numbers` is (k, 4 k).

    If the density varies much within the balls of k neighbors, k is too large, and the remaining bias is large.
    """
    from scipy.special import polygamma

    n, d = max(int(draws.groups * draws.effective / len(draws)), 2), draws.x.shape[1]
    units = None if draws.cluster is None else draws.units
    try:
        density = local_log_density(draws.x, numbers, draws.weights, units, rng)
    except FlatError:
        flat = (
            "The draws fill fewer dimensions than they have components, because a component is constant or depends on "
            f"others. {SIDE_P} has no density there, but {SIDE_Q} has: KL is infinite."
        )
        return infinite(flat), False
    log_p = density.logs
    if np.isinf(log_p).any():
        atom = (
            f"A draw is repeated more than {numbers[0]} times. If this is an atom of {SIDE_P}, KL is infinite, because "
            f"{SIDE_Q} has a density. If it comes from rounding, round {SIDE_Q} in the same way."
        )
        return infinite(atom), False
    _check_dimensions(draws.x, float(np.diff(log_p.mean(0))[0]), numbers, n)
    terms = log_p - log_q[:, None]
    means = draws.shares @ terms
    bias = _bias(q, means, numbers, _reference(draws, density, numbers), d, rng)
    shared = _SHARED * float(polygamma(1, numbers[0])) / n
    variance = draws.variance(draws.shares * (terms[:, 0] - means[0])) + shared + bias.error**2 + bias.left**2
    error = math.sqrt(variance)
    evidence = Evidence(
        float(means[0]) - bias.value,
        error=error,
        error_above=bias.above,
        groups=draws.clusters,
        notes=list(_notes(draws, bias.left, error)),
        contradicted=below_zero,
        beyond=_tail([terms[:, 0]], draws),
    )
    return evidence, bias.left > error / 2


def _neighbor_numbers(n: float) -> tuple[int, int]:
    """Return the number of neighbors k for the value, and the number 4 k for the estimate of the value's bias."""
    k = int(min(max(round(n ** (1 / 3)), 3), 10))
    return k, 4 * k


def _check_dimensions(x: Array, change: float, numbers: tuple[int, int], n: int) -> None:
    """Raise an error if draws with d components fill fewer than d dimensions.

    The dimension is computed from `change`, the change of the mean log-density from the first to the second of the
    `numbers` of neighbors. n is the effective number of draws.
    """
    from scipy.special import digamma

    d = x.shape[1]
    growth = float(digamma(numbers[1]) - digamma(numbers[0])) - change
    if d == 1 or dimension_of(growth / d, numbers) >= fewest_dimensions(numbers, n, d):
        return
    dimension = too_few_dimensions(x, x, (1, 4))
    if dimension is None:
        return
    raise invalid_value(
        "from_density",
        "p",
        wanted=(
            *(
                "draws that fill all dimensions of their space, so that ",
                SIDE_P,
                " has a density as ",
                SIDE_Q,
            ),
            " has",
        ),
        got=f"draws that fill about {dimension:.1f} of {d} dimensions at the distance of their neighbors",
        instead=_DRAWS_OF_BOTH,
    )


def _notes(draws: Draws, left: float, error: float) -> Generator[str]:
    repeated = len(draws.x) - len(np.unique(draws.x, axis=0))
    if repeated:
        yield (
            f"{repeated} of {len(draws.x)} draws equal another one. If they are rounded, the value is too high by an "
            "unknown amount."
        )
    if left > error / 2:
        shape = f"{SIDE_P} differs in shape from the reference distributions"
        yield f"{shape}: the interval allows for a bias of {left:.2g}."


@dataclass(frozen=True)
class _Bias:
    """The mean bias of the estimate for a reference, with its standard error.

    `left` is the bias that may remain for P after `value` is subtracted. In the upper limit, the remaining bias is
    sqrt(`left`^2 + `above`^2).
    """

    value: float
    error: float
    left: float
    above: float


def _bias(
    q: Distribution,
    means: Array,
    numbers: tuple[int, int],
    like: _Reference,
    d: int,
    rng: np.random.Generator,
) -> _Bias:
    """Return the bias measured on draws of the references, and the bias that may remain for P.

    The bias is proportional to k^(2 / d), or to a smaller power of k. So the remaining bias follows from a difference
    of two changes from k to 4 k neighbors: the change for P and the change for the reference. The choice between the
    references is partly random, so the difference between their biases may enter the standard error. If this change is
    a larger decrease for P than for both references, P has more edges or sharper peaks than the references. The upper
    limit then allows for a larger bias. `means` has the estimates for P with k and with 4 k neighbors.
    """
    times = int(min(max(200_000 // like.n, 2), 8)) if d <= 10 else 2
    with progress_bar("references") as update:

        def counted(biases: Iterable[_T], done: int) -> Generator[_T]:
            for i, bias in enumerate(biases, done + 1):
                if update:
                    update(i, 2 * times)
                yield bias

        references = [list(counted((_gaussian_bias(rng, like, d, numbers) for _ in range(times)), 0))]
        with seeded(int(rng.integers(2**31))):
            of_q = list(counted((_own_bias(q, like, numbers, rng) for _ in range(times)), times))
    if all(bias is not None for bias in of_q):
        references.append([bias for bias in of_q if bias is not None])
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


class _Reference(NamedTuple):
    """The number and the weights of draws from a reference, chosen so that log p is estimated as well as for P's draws.

    The weights of the n draws are chosen at random from `weights`, which is None if all weights are equal.
    """

    n: int
    weights: Array | None
    weights_vary: bool

    def mean_bias(
        self, x: Array, log_density: Array, numbers: tuple[int, int], rng: np.random.Generator
    ) -> Array:
        """Return the mean of (estimate of log p) - log p over the draws x of a known density, shape (2,)."""
        if self.weights is None:
            return (local_log_density(x, numbers).logs - log_density[:, None]).mean(0)
        weights = rng.choice(self.weights, self.n, replace=False)
        logs = local_log_density(x, numbers, weights, weights_vary=self.weights_vary).logs
        return weights / weights.sum() @ (logs - log_density[:, None])


def _reference(draws: Draws, density: LocalDensity, numbers: tuple[int, int]) -> _Reference:
    """Return the number and the weights of the draws from a reference for these draws of P.

    The weights of the reference do not depend on position. A cluster of P's draws corresponds to one draw with a large
    weight. If P's weights depend on position, only the ratio of each weight to the mean weight of its neighbors is
    used. Where P's weights are large, P has fewer draws than a sample with equal weights would have. So the reference
    then has fewer draws than P.
    """
    own = np.ones(len(draws)) if draws.weights is None else draws.weights / draws.weights.mean()
    rest = np.bincount(draws.units, own * np.exp(-density.log_weights)).astype(np.float64)
    if not np.ptp(rest) > 0:
        return _Reference(draws.groups, None, False)
    denser = float(draws.shares @ np.exp(density.log_weights))
    n = int(min(max(draws.groups / denser, numbers[1] + 2), draws.groups))
    return _Reference(n, rest, density.weights_vary)


def _gaussian_bias(rng: np.random.Generator, like: _Reference, d: int, numbers: tuple[int, int]) -> Array:
    z = rng.standard_normal((like.n, d))
    return like.mean_bias(z, -0.5 * (z**2).sum(1) - d * HALF_LOG_2PI, numbers, rng)


def _own_bias(
    q: Distribution, like: _Reference, numbers: tuple[int, int], rng: np.random.Generator
) -> Array | None:
    """Return estimates of KL(Q || Q) = 0 from draws of Q, for k and 4 k neighbors, shape (2,).

    Return None if Q has no sampler, if its draws fill too few dimensions, or if an estimate is infinite.
    """
    try:
        y = _draws_of(q, like.n)
        x, log_volume = _coordinates(q, y)
        log_q = _log_prob("from_density", q, y) + log_volume
        bias = like.mean_bias(x, log_q, numbers, rng)
    except (NotImplementedError, FlatError):
        return None
    return bias if np.isfinite(bias).all() else None


def _log_prob(call: str, q: Distribution, x: Array) -> Array:
    """Return Q's log-density at each draw, shape (n,), which is -inf outside the support of Q."""
    at = torch.from_numpy(x if q.event_shape else x[:, 0])
    support = _support(q)
    inside: Tensor = (
        torch.ones(len(x), dtype=torch.bool, device="cpu") if support is None else support.check(at)
    )
    log_q = torch.full((len(x),), -torch.inf, dtype=torch.float64, device="cpu")
    if bool(inside.any()):
        log_q[inside] = q.log_prob(at[inside]).detach().to("cpu", torch.float64)
    bad = log_q.isnan() | (log_q == torch.inf)
    if bool(bad.any()):
        raise invalid_value(
            call,
            "q",
            wanted="a finite log-density at the draws",
            got=f"NaN or +inf at {int(bad.sum())} of {len(x)}, the first at index {int(bad.int().argmax())}",
            instead=_DRAWS_OF_BOTH,
        )
    return log_q.numpy()


def _support(q: Distribution) -> Constraint | None:
    try:
        return q.support
    except NotImplementedError:
        return None


def _is_discrete(call: str, p: Samples | Draws, q: Distribution) -> bool:
    """Return whether Q is a distribution of integers; raise an error if `p` is categories and Q is continuous."""
    support = _support(q)
    integers = p.discrete if support is None else support.is_discrete
    if p.labels is not None or (p.discrete and not integers):
        raise invalid_type(
            call,
            "p, q",
            wanted="draws of the same sort as q",
            got=f"categories, {p!r}, and {type(q).__name__}, which has "
            + ("integers" if integers else "a density"),
            instead="Samples(x.double()) to read integers as numbers, or integer codes in place of strings",
        )
    return integers


def _check_sides(call: str, p: object, q: object) -> tuple[Samples | Draws, Distribution]:
    if isinstance(p, Distribution) and isinstance(q, Samples | Draws):
        raise no_rule(
            call,
            "p, q",
            wanted="draws of P and the density of Q",
            got=f"the density of P ({type(p).__name__}) and draws of Q, which do not show how small Q is "
            "between and beyond them",
            instead="kl_estimate(Samples(p.sample((n,))), q), which compares draws with draws, or "
            "from_density(q, p) for "
            "KL(Q || P)",
        )
    if not (isinstance(p, Samples | Draws) and isinstance(q, Distribution)):
        raise invalid_type(
            call,
            "p, q",
            wanted="Samples and a torch.distributions.Distribution",
            got=f"{type(p).__name__} and {type(q).__name__}",
            instead="from_density(Samples(x), Normal(0.0, 1.0))",
        )
    check_bijective(call, "q", q)
    if q.batch_shape or (tuple(q.event_shape) or (1,)) != (p.tensor.shape[1],):
        raise invalid_value(
            call,
            "p, q",
            wanted="a q of one event, with as many components as the draws",
            got=f"{type(q).__name__} of batch_shape {tuple(q.batch_shape)} and event_shape {tuple(q.event_shape)} for "
            f"{p!r}",
            instead="Independent(q, 1) for a product of components, or a q without a batch, such as Normal(0.0, 1.0)",
        )
    return p, q
