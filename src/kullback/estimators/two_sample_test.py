"""Could two data sets come from one distribution? A permutation test: `two_sample_test`."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from kullback.errors import ArgumentValueError, invalid_value
from kullback.estimate import Estimate
from kullback.estimators.checks import check_samples, seed_of
from kullback.estimators.dispatch import estimate_from_samples
from kullback.estimators.draws import Array, Integers, numpy_of
from kullback.estimators.knn.search import nearest_among
from kullback.estimators.permutations import Cells, Graph, Labeling, Statistic, permuted
from kullback.generators import KL
from kullback.samples import Samples

__all__ = ["TwoSampleTest", "two_sample_test"]


CALL = "two_sample_test"
# Neighbors of each point in the graph that the statistic counts: more see wider differences, at more memory.
FEWEST_NEIGHBORS, MOST_NEIGHBORS, MOST_EDGES = 5, 30, 2_000_000
# Ranks finer than this tell nothing more, and each of them costs in every shuffle.
MOST_RANKS = 1000


@dataclass(frozen=True)
class TwoSampleTest:
    """What `two_sample_test` found.

    Attributes:
        p_value: how often draws with shuffled origins differ at least as much, if both data sets have one distribution.
        statistic: the difference found, named by `method`.
        effect: KL(P || Q) of the two, estimated by the method that suits them: how much they differ. None where no
            estimator serves these draws; `notes` say why.
        permutations: how many shuffles there were.
        method: the statistic: ``"likelihood_ratio"`` of categories, ``"energy_of_ranks"`` in one dimension,
            ``"nearest_neighbors"`` beyond.
        notes: what a reader has to know about the effect.

    Example:
        >>> from kullback import Samples, two_sample_test
        >>> found = two_sample_test(Samples(["a"] * 50), Samples(["a"] * 25 + ["b"] * 25))
        >>> found.p_value, found.method
        (0.001, 'likelihood_ratio')
    """

    p_value: float
    statistic: float
    effect: Estimate | None
    permutations: int
    method: str
    notes: tuple[str, ...] = ()


def two_sample_test(
    p: Samples,
    q: Samples,
    *,
    permutations: int = 999,
    generator: torch.Generator | None = None,
) -> TwoSampleTest:
    r"""Test whether two data sets can come from one distribution, by shuffling which draw came from which.

    .. math:: \text{p-value} = \frac{1 + \#\{b : T_b \ge T\}}{1 + B}

    The level is exact at any size: under the hypothesis every shuffle is as likely as what was seen. T is the
    likelihood ratio of the counts for categories; the energy distance of the pooled ranks for numbers; for vectors, the
    share of nearest neighbors that come from the same data set.

    Arguments:
        p: draws of P, shape (n, d); its clusters are shuffled as wholes.
        q: draws of Q, shape (m, d).
        permutations: how many shuffles, B; the smallest p-value is 1 / (B + 1).
        generator: where the shuffles come from; left out, torch's own.

    Returns:
        a `TwoSampleTest` with the p-value and the estimated divergence as effect.

    Raises:
        ArgumentValueError: the draws lie in different spaces, have weights, or are too few to shuffle.

    Example:
        >>> import torch, kullback
        >>> draw = torch.Generator().manual_seed(0)
        >>> x = torch.randn(300, generator=draw)
        >>> y = torch.randn(300, generator=draw) + 0.5
        >>> found = kullback.two_sample_test(kullback.Samples(x), kullback.Samples(y), generator=draw)
        >>> found.p_value, found.method
        (0.001, 'energy_of_ranks')

    References:
        Multivariate Two-Sample Tests Based on Nearest Neighbors (Schilling, 1986)
        Energy statistics: A class of statistics based on distances (Szekely and Rizzo, 2013)
    """
    check_samples(CALL, p, q)
    _check(p, q, permutations)
    seed = seed_of(generator)
    method, statistic = _statistic(p, q)
    labeling = Labeling.of(p, q)
    observed, shuffled = permuted(statistic, labeling, permutations, np.random.default_rng(seed))
    # Equal in exact arithmetic counts as equal: the sums of a shuffle may round differently.
    as_large = int((shuffled >= observed - 1e-9 * abs(observed)).sum())
    effect, notes = _effect(p, q, generator)
    p_value = (1 + as_large) / (1 + permutations)
    return TwoSampleTest(p_value, float(observed), effect, permutations, method, notes)


two_sample_test.__test__ = False  # pyright: ignore[reportFunctionMemberAccess]  # pytest takes the name for a test of its own


def _check(p: Samples, q: Samples, permutations: int) -> None:
    for name, side in (("p", p), ("q", q)):
        if side.weights is not None:
            raise invalid_value(
                CALL,
                name,
                wanted="draws that count the same, so that they can be exchanged",
                got="draws with weights",
                instead="kl_estimate(p, q), whose interval knows weights",
            )
    if permutations < 1:
        raise invalid_value(
            CALL, "permutations", wanted="at least 1", got=repr(permutations), instead="permutations=999"
        )


def _effect(
    p: Samples, q: Samples, generator: torch.Generator | None
) -> tuple[Estimate | None, tuple[str, ...]]:
    """Estimate how much the two differ; what an estimator cannot use may still be shuffled."""
    try:
        effect = estimate_from_samples(CALL, p, q, KL(), generator=generator)
    except ArgumentValueError as refusal:
        return None, (str(refusal),)
    return effect, effect.notes


def _statistic(p: Samples, q: Samples) -> tuple[str, Statistic]:
    if p.discrete:
        return "likelihood_ratio", _likelihood_ratio(p, q)
    x, y = numpy_of(p), numpy_of(q)
    if x.shape[1] == 1:
        return "energy_of_ranks", _energy_of_ranks(np.concatenate([x[:, 0], y[:, 0]]))
    return "nearest_neighbors", _same_neighbors(np.concatenate([x, y]))


def _likelihood_ratio(p: Samples, q: Samples) -> Statistic:
    """Return the mutual information of category and origin, in nats, times the number of draws."""
    codes = _pooled_codes(p, q)
    totals = np.bincount(codes)
    of_all = _x_log_x(np.array([totals.sum()]))[0] - _x_log_x(totals.astype(float)).sum()

    def of_counts(counts: Array) -> Array:
        rest = totals - counts
        within = _x_log_x(counts).sum(1) + _x_log_x(rest).sum(1)
        return within - _x_log_x(counts.sum(1)) - _x_log_x(rest.sum(1)) + of_all

    return Cells(codes, totals, of_counts)


def _pooled_codes(p: Samples, q: Samples) -> Integers:
    if p.labels is not None and q.labels is not None:
        names = [np.asarray(side.labels)[side.tensor[:, 0].numpy()] for side in (p, q)]
        return np.unique(np.concatenate(names), return_inverse=True)[1]
    return torch.unique(torch.cat([p.tensor, q.tensor]).cpu(), dim=0, return_inverse=True)[1].numpy()


def _x_log_x(x: Array) -> Array:
    return x * np.log(np.where(x > 0, x, 1.0))


def _energy_of_ranks(pooled: Array) -> Statistic:
    """Return the mean of (F_n - G_m)^2 over the pooled ranks, at most so many of them; equal values have one rank."""
    distinct, codes, totals = np.unique(pooled, return_inverse=True, return_counts=True)
    if len(distinct) > MOST_RANKS:
        cell = (np.cumsum(totals) - 1) * MOST_RANKS // len(pooled)
        cell = np.unique(cell, return_inverse=True)[1]
        codes, totals = cell[codes], np.bincount(cell, weights=totals).astype(int)
    below = np.cumsum(totals)

    def of_counts(counts: Array) -> Array:
        n = counts.sum(1, keepdims=True)
        from_p = np.cumsum(counts, axis=1)
        gap = from_p / n - (below - from_p) / (len(pooled) - n)
        return (gap * gap) @ totals / len(pooled)

    return Cells(codes, totals, of_counts)


def _same_neighbors(points: Array) -> Statistic:
    """Return the share of nearest neighbors that come from the same data set, all components brought to one scale."""
    from scipy.sparse import csr_array

    n = len(points)
    number = min(n - 1, max(FEWEST_NEIGHBORS, min(MOST_NEIGHBORS, int(n**0.5), MOST_EDGES // n)))
    neighbors = nearest_among(points / _scale(points), number)
    ones = np.ones(neighbors.size, dtype=np.float32)
    return Graph(csr_array((ones, neighbors.ravel(), np.arange(0, neighbors.size + 1, number)), shape=(n, n)))


def _scale(points: Array) -> Array:
    """Return the width of the middle half of each component, which no outlier moves; 1 where that has none."""
    width = np.subtract(*np.quantile(points, [0.75, 0.25], axis=0))
    return np.where(width > 0, width, 1.0)
