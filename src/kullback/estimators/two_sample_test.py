"""A permutation test of the hypothesis that two samples come from the same distribution."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TypeAlias

import numpy as np
import torch

from kullback.common.constraints import GENERATOR, Arguments, Whole
from kullback.common.extra_arguments import by_name
from kullback.common.inference import chi_square_scores, normal_scores
from kullback.errors import ArgumentValueError, invalid_value
from kullback.estimators.choose_estimator import estimate_from_samples
from kullback.estimators.dependence import grouped_alike
from kullback.estimators.discrete.counts import codes_of, count_categories, drawn_one_by_one
from kullback.estimators.draws import Array, Draws, Integers, checked
from kullback.estimators.knn.search import nearest_among
from kullback.estimators.permutations import (
    BinCounts,
    Labeling,
    PermutationStatistics,
    QuadraticForms,
    p_value,
    permuted,
)
from kullback.estimators.registry import seed_of
from kullback.generators import KL
from kullback.representations import Counts
from kullback.results.estimate import Estimate, TwoSampleTest
from kullback.samples import Samples

Float32s: TypeAlias = np.ndarray[tuple[int, int], np.dtype[np.float32]]

CALL = "two_sample_test"
# The smallest and largest number of neighbors of each draw in the graph: more neighbors detect differences on larger
# scales, but need more memory.
FEWEST_NEIGHBORS, MOST_NEIGHBORS = 5, 30
# The number of draws, chosen at random, whose neighbors are searched: in many dimensions the search takes most of the
# time.
MOST_IN_GRAPH = 5000
# More distinct ranks do not increase the power, but cost time in every shuffle.
MOST_RANKS = 1000
# The numbers of bins of equal probability, and the mean number of draws in a bin of the finest partition.
RANK_BINS, DRAWS_IN_A_BIN = (8, 32, 128), 10
# With this number of permutations, the values of eight statistics fill 640 megabytes.
MOST_PERMUTATIONS = 10_000_000
# NumPy's `multivariate_hypergeometric` accepts fewer than this number of draws.
MOST_COUNTED = 1_000_000_000
# If the p-value is at most this number, but the interval of the effect begins at 0, a note explains the difference.
SIGNIFICANT = 0.05
# With more draws, random features replace the matrix of distances.
MOST_DISTANCES = 2500
FEATURE_NUMBERS, FEWEST_FEATURES, MOST_FEATURES, MOST_PRODUCTS = 3_000_000, 64, 512, 10_000_000
# The width of the narrow kernel, as a multiple of the median distance.
NARROW = 1 / 16
# Larger distances, as multiples of the median distance, count as equal, because float32 would overflow.
FARTHEST = 1e15
# The weight of each statistic; statistics for shifts have the largest weights, because shifts are the most frequent
# differences. Each statistic is needed in a case of benchmarks/bench_two_sample.py. Without the statistic, the power in
# this case decreases. It decreases for energy of numbers from 58 to 43 %, spread_of_ranks 93 to 55 %, chi_squared 96 to
# 4 %, anderson_darling 57 to 50 %, and skewness_of_ranks 65 to 17 %. For vectors, it decreases for shift from 80 to
# 60 %, spread 82 to 25 %, products 96 to 25 %, nearest_neighbors 94 to 88 %, narrow_kernel 100 to 38 %, tails 22 to
# 15 %, and energy or kernel 79 to 75 %. The benchmark had 200 repetitions for the numbers of anderson_darling, 60 of
# skewness_of_ranks and tails, and 40 of narrow_kernel. The others were measured before these four statistics existed.
WEIGHTS = {
    "likelihood_ratio": 1.0,
    "anderson_darling": 3.0,
    "spread_of_ranks": 1.5,
    "skewness_of_ranks": 1.0,
    "chi_squared": 1.0,
    "energy": 3.0,
    "kernel": 3.0,
    "narrow_kernel": 0.5,
    "shift": 2.0,
    "spread": 1.0,
    "products": 1.0,
    "tails": 0.5,
    "nearest_neighbors": 0.5,
}


_MANY_UNITS = 50
_TOO_FEW = (
    "So few draws and permutations allow no p-value below about {:.2g}, however different P and Q are: the test cannot "
    "tell. Use more draws, and permutations=999."
)
_ARGUMENTS = Arguments(
    CALL, permutations=Whole(least=1, most=MOST_PERMUTATIONS, example=999), generator=GENERATOR
)


@by_name()
def two_sample_test(
    p: Samples | Counts,
    q: Samples | Counts,
    *,
    permutations: int = 999,
    generator: torch.Generator | None = None,
) -> TwoSampleTest:
    r"""Test whether two samples can come from the same distribution, by random exchanges of draws between P and Q.

    .. math:: \text{p-value} = \frac{\#\{b : h_b \ge h_0\}}{1 + B}, \quad
        h_b = \sum_j \frac{w_j}{1 - \Phi(z_{jb})}, \quad b = 0, \dots, B

    A labeling states which draws belong to P. Labeling 0 is the observed labeling, and labelings 1 to B are random
    shuffles. :math:`T_{jb}` is the value of statistic j for labeling b. :math:`z_{jb}` is the normal score of
    :math:`T_{jb}`, computed from the mean, the standard deviation and the skewness of statistic j over all labelings.
    The weights :math:`w_j` are given below. The level of the test is exact for any sample size, also with ties, because
    all labelings are equally likely if P = Q.

    For categories the only statistic is the likelihood ratio of the counts. For numbers there are five statistics, with
    weights 3, 3, 1.5, 1 and 1:

    * the energy distance, and the Anderson-Darling distance of the pooled ranks, which detect shifts;
    * the difference of the mean squared normal scores, which detects differences of scale;
    * the difference of the mean third Hermite polynomials of the normal scores, which detects skewness; it is
      left out if most numbers repeat;
    * the largest :math:`\chi^2` of 8, 32 and 128 bins and of bins with about ten draws each.

    For vectors there are eight statistics, with weights 3, 3, 2, 1, 1, 0.5, 0.5 and 0.5:

    * the energy distance, and the maximum mean discrepancy with a Gaussian kernel;
    * the largest difference of a component's mean normal scores, which detects shifts of a few components;
    * the difference of the mean logarithms of the distance from the common center, which detects differences of scale;
    * the differences of the mean products of two components' normal scores, which detect correlations;
    * the differences of the mean products of two absolute normal scores, which detect joint tails;
    * the number of nearest neighbors from the same sample, weighted for unequal sample sizes;
    * the maximum mean discrepancy with a kernel of a sixteenth of the width, which detects differences on small scales.

    Time and memory are bounded. More than 1000 distinct numbers are merged into 1000 groups. For more than 2500
    vectors, random features replace their distances. Neighbors are searched among at most 5000 vectors, chosen at
    random. The products of components are left out if there are more than 10,000,000 of them.

    Arguments:
        p: draws of P, shape (n, d), or the `Counts` of P's categories. The draws of a cluster are exchanged together.
            Without clusters, serially dependent draws are exchanged in blocks that are equally long on both sides, and
            continuous draws with equal values are exchanged together.
        q: draws of Q, shape (m, d), or their `Counts`.
        permutations: the number of shuffles B; the smallest p-value is 1 / (B + 1).
        generator: the generator of the shuffles. By default, the seed is drawn from a copy of torch's global generator,
            whose state does not change.

    Returns:
        a `TwoSampleTest` with the p-value and an effect size, which is the estimate of KL from `kl_estimate`. If the
        p-value is at most 0.05 but the interval of KL begins at 0, a note explains the contradiction.

    Raises:
        ArgumentValueError: the draws of p and q have unequal dimension or type, have weights or infinities, or are too
            few to shuffle.

    Example:
        >>> import torch, kullback
        >>> draw = torch.Generator().manual_seed(0)
        >>> x = torch.randn(300, generator=draw)
        >>> y = torch.randn(300, generator=draw) + 0.5
        >>> test = kullback.two_sample_test(kullback.Samples(x), kullback.Samples(y), generator=draw)
        >>> test.p_value, test.method
        (0.001, 'anderson_darling')

    References:
        Energy statistics: A class of statistics based on distances (Szekely and Rizzo, 2013)
        A Kernel Two-Sample Test (Gretton et al., 2012)
        The harmonic mean p-value for combining dependent tests (Wilson, 2019)
        The distribution of chi-square (Wilson and Hilferty, 1931)
        K-sample Anderson-Darling tests (Scholz and Stephens, 1987)
        A weighted edge-count two-sample test for multivariate and object data (Chen, Chen and Su, 2018)
    """
    group_notes: tuple[str, ...] = ()
    permutations = _ARGUMENTS.check(permutations=permutations, generator=generator)["permutations"]
    if isinstance(p, Counts) and isinstance(q, Counts):
        statistics = _of_counts(p, q)
        rng = np.random.default_rng(seed_of(generator))
        labeling = Labeling(None, np.zeros(0, bool))
        least = _least_p_value(int(p.tensor.sum()), int(q.tensor.sum()), permutations)
        probability, statistic, method = _tested(statistics, labeling, permutations, rng)
        effect, notes = _effect(p, q)
    else:
        first, second = checked(CALL, drawn_one_by_one(CALL, p), drawn_one_by_one(CALL, q))
        _check_weightless(first, second)
        rng = np.random.default_rng(seed_of(generator))
        groups = grouped_alike(first, second)
        probability, statistic, method = permutation_test(
            groups.p, groups.q, permutations, rng, in_pairs=groups.in_pairs
        )
        from_p = Labeling.of(groups.p, groups.q).from_p
        draws = int(from_p.sum()), int((~from_p).sum())
        least = _least_p_value(*draws, permutations, in_pairs=groups.in_pairs)
        probability, group_notes = math.nan if groups.is_open else probability, groups.notes
        effect, notes = _effect(first, second)
    few = [_TOO_FEW.format(least)] if least >= SIGNIFICANT else []
    notes = (*few, *group_notes, *notes, *_note_on_interval(probability, method, effect))
    return TwoSampleTest(
        probability, statistic, effect, permutations, method, tuple(dict.fromkeys(notes)), least
    )


def _least_p_value(first: int, second: int, permutations: int, *, in_pairs: bool = False) -> float:
    """Return the least p-value: the probability that a shuffle is the observed labeling, or 1 / (permutations + 1)."""
    labelings = math.inf
    if first + second <= _MANY_UNITS:
        labelings = 2**first if in_pairs else math.comb(first + second, first)
    return max(1 / (permutations + 1), 1 / labelings)


def permutation_test(
    p: Draws, q: Draws, permutations: int, rng: np.random.Generator, *, in_pairs: bool = False
) -> tuple[float, float, str]:
    """Return the p-value of the test, and the value and the name of the statistic with the largest normal score."""
    return _tested(_statistics(p, q, rng), Labeling.of(p, q, in_pairs=in_pairs), permutations, rng)


def _tested(
    statistics: PermutationStatistics, labeling: Labeling, permutations: int, rng: np.random.Generator
) -> tuple[float, float, str]:
    observed, shuffled = permuted(statistics, labeling, permutations, rng)
    probability, best = p_value(observed, shuffled, [WEIGHTS[name] for name in statistics.names])
    return probability, float(observed[best]), statistics.names[best]


def _of_counts(p: Counts, q: Counts) -> BinCounts:
    """Return the likelihood-ratio statistic of counts; raise an error for a batch of counts, or for too many draws."""
    table = count_categories(CALL, p, q)
    if table.a.ndim > 1 or float(table.a.sum() + table.b.sum()) >= MOST_COUNTED:
        raise invalid_value(
            CALL,
            "p, q",
            wanted=f"one row of counts on each side, with fewer than {MOST_COUNTED:,} draws in total",
            got=f"{p!r} and {q!r}, {float(table.a.sum() + table.b.sum()):,.0f} draws",
            instead="two_sample_test(Counts(p[i]), Counts(q[i])) for each row i",
        )
    first, second = (side.cpu().numpy().astype(np.int64) for side in (table.a, table.b))
    return _likelihood_ratio(first + second, counts=first)


def _check_weightless(p: Draws, q: Draws) -> None:
    for name, side in (("p", p), ("q", q)):
        if side.weights is not None:
            raise invalid_value(
                CALL,
                name,
                wanted="draws of equal weight, which can be exchanged",
                got="draws with weights",
                instead="kl_estimate(p, q), which supports weights",
            )


def _effect(p: Draws | Counts, q: Draws | Counts) -> tuple[Estimate | None, tuple[str, ...]]:
    """Return the estimate of KL and its notes; if no estimator accepts the draws, return None and the reason."""
    try:
        method = "coverage_adjusted" if isinstance(p, Counts) else "auto"
        effect = estimate_from_samples(CALL, p, q, KL(), method)
    except ArgumentValueError as refusal:
        return None, (str(refusal),)
    return effect, effect.notes


def _note_on_interval(probability: float, method: str, effect: Estimate | None) -> list[str]:
    """Return a list with a note if the test shows a difference but the interval of the effect begins at 0."""
    if effect is None or effect.interval is None or not probability <= SIGNIFICANT:
        return []
    if float(effect.interval[0]) > 0:
        return []
    note = (
        f"The test rejects equal distributions (p = {probability:.2g}), but the interval of the effect begins at 0. "
        f"The p-value comes from the statistic {method!r}, and the interval from an estimate of KL with its own error. "
        "The two sides differ, and KL may be as small as the interval allows."
    )
    return [note]


def _statistics(p: Draws, q: Draws, rng: np.random.Generator) -> PermutationStatistics:
    if p.discrete:
        # Some of the categories may have no draws here, because blocks of rows may leave out draws.
        codes = np.unique(torch.cat(codes_of(p, q)[:2]).cpu().numpy(), return_inverse=True)[1]
        return _likelihood_ratio(np.bincount(codes), codes=codes)
    x, y = p.x, q.x
    if x.shape[1] == 1:
        return _of_ranks(np.concatenate([x[:, 0], y[:, 0]]))
    return _of_vectors(np.concatenate([x, y]), rng)


def _likelihood_ratio(totals: Integers, **draws: Integers) -> BinCounts:
    """Return the statistic of P's counts: the mutual information of category and side in nats, times the draws."""
    of_all = _x_log_x(np.array([float(totals.sum())]))[0] - _x_log_x(totals.astype(float)).sum()

    def mutual_information(counts: Array) -> Array:
        rest = totals - counts
        within = _x_log_x(counts).sum(1) + _x_log_x(rest).sum(1)
        return within - _x_log_x(counts.sum(1)) - _x_log_x(rest.sum(1)) + of_all

    return BinCounts(totals, {"likelihood_ratio": mutual_information}, **draws)


def _x_log_x(x: Array) -> Array:
    return x * np.log(np.where(x > 0, x, 1.0))


def _of_ranks(pooled: Array) -> BinCounts:
    """Return the statistics for numbers, from the pooled draws in at most `MOST_RANKS` groups of neighboring values."""
    number = len(pooled)
    distinct, codes, totals = np.unique(pooled, return_inverse=True, return_counts=True)
    values = len(distinct)
    if values > MOST_RANKS:
        coarse = (np.cumsum(totals) - 1) * MOST_RANKS // number
        distinct = distinct[np.flatnonzero(np.diff(coarse, append=MOST_RANKS))]  # the largest of each group
        coarse = np.unique(coarse, return_inverse=True)[1]
        codes, totals = coarse[codes], np.bincount(coarse, weights=totals).astype(int)
    below = np.cumsum(totals)
    halves = distinct / 2  # the range of the halves does not overflow
    steps = np.diff(halves, append=halves[-1]) / max(halves[-1] - halves[0], np.finfo(float).tiny)
    middle = (below - totals / 2) / number
    scores = normal_scores(middle)
    square, third = np.square(scores), scores**3 - 3 * scores
    # Equal values have the middle rank (Scholz and Stephens, 1987). The divisor is 0 if all values are equal.
    divisor = np.maximum(middle * (1 - middle) - totals / (4 * number), np.finfo(float).tiny)
    groups, starts, expected = _bins_of_ranks(middle, totals)

    def distance(pooled: Array, own_share: float, weights: Array) -> Callable[[Array], Array]:
        """Return the weighted sum of squared differences of cumulative shares; a value counts by `own_share`."""

        def of_counts(counts: Array) -> Array:
            n = counts.sum(1, keepdims=True)
            from_p = np.cumsum(counts, axis=1) - (1 - own_share) * counts
            difference = from_p / n - (pooled - from_p) / (number - n)
            return (difference * difference) @ weights

        return of_counts

    def difference_of_means(of_rank: Array) -> Callable[[Array], Array]:
        """Return the absolute difference of the mean scores of P and Q, as a function of P's counts."""

        def of_counts(counts: Array) -> Array:
            n = counts.sum(1)
            return np.abs(counts @ of_rank / n - (totals - counts) @ of_rank / (number - n))

        return of_counts

    def chi_squared(counts: Array) -> Array:
        """Return the largest chi-squared sum, as a normal score."""
        n = counts.sum(1, keepdims=True)
        differences = counts @ groups / n - (totals - counts) @ groups / (number - n)
        terms = np.square(differences) / expected * (n * (number - n) / number)
        dof = np.maximum(np.diff(starts, append=len(expected)) - 1.0, 1.0)
        sums = np.add.reduceat(terms, starts, axis=1)
        return chi_square_scores(sums / dof, dof).max(1)

    statistics: dict[str, Callable[[Array], Array]] = {
        "anderson_darling": distance(number * middle, 0.5, totals / number / divisor),
        "spread_of_ranks": difference_of_means(square),  # Klotz, 1962
        "chi_squared": chi_squared,
        "energy": distance(below.astype(np.float64), 1.0, steps),
    }
    if 2 * values >= number:
        # Where most numbers repeat, the bins of chi_squared hold single values, and also detect skewness.
        statistics["skewness_of_ranks"] = difference_of_means(third)
    return BinCounts(totals, statistics, codes)


def _bins_of_ranks(middle: Array, totals: Integers) -> tuple[Array, Integers, Array]:
    """Return the bins of several partitions of the pooled ranks, from coarse to fine; equal values share a bin.

    The results are an indicator column for each bin, the first column of each partition, and the share of each bin.
    """
    draws = int(totals.sum())
    most = max(draws // DRAWS_IN_A_BIN, RANK_BINS[0])
    columns: list[Array] = []
    starts: list[int] = []
    for bins in sorted({*(number for number in RANK_BINS if number < most), min(most, 2 * RANK_BINS[-1])}):
        place = np.unique(np.minimum((middle * bins).astype(int), bins - 1), return_inverse=True)[1]
        starts.append(sum(column.shape[1] for column in columns))
        columns.append(np.eye(int(place.max()) + 1)[place])
    groups = np.concatenate(columns, axis=1)
    return groups, np.array(starts), totals @ groups / draws


def _of_vectors(points: Array, rng: np.random.Generator) -> QuadraticForms:
    """Return the statistics for vectors, from pooled draws whose components are divided by their interquartile range.

    The graph has draws in random order, so that ties of distances do not favor a side.
    """
    from scipy.sparse import csr_array
    from scipy.spatial.distance import pdist, squareform

    n = len(points)
    scaled = points / _scale(points)
    chosen = rng.permutation(n)[:MOST_IN_GRAPH]
    number = min(len(chosen) - 1, max(FEWEST_NEIGHBORS, min(MOST_NEIGHBORS, int(len(chosen) ** 0.5))))
    neighbors = chosen[nearest_among(scaled[chosen], number)]
    ones = np.ones(neighbors.size, dtype=np.float32)
    edges = np.repeat(chosen, number), neighbors.ravel()
    graph = csr_array((ones, edges), shape=(n, n))
    graph = (graph + graph.T) / 2
    some = scaled[rng.choice(n, min(n, 500), replace=False)]
    scores = _standard_scores(scaled)
    moments = _moments(scaled, scores)
    median = _median_distance(np.asarray(pdist(some), dtype=np.float64))
    if n <= MOST_DISTANCES:
        distances = np.fmin(pdist(scaled) / median, FARTHEST).astype(np.float32)
        all_distances = squareform(distances)
        kernel = np.exp(-np.square(all_distances) / 2)
        matrices = {"energy": -all_distances, "kernel": kernel, "nearest_neighbors": graph}
        narrow = np.exp(-np.square(all_distances / np.float32(NARROW)) / 2)
        # Products with denormal numbers are slow.
        matrices["narrow_kernel"] = np.where(narrow > np.finfo(np.float32).eps, narrow, np.float32(0))
        return QuadraticForms(matrices, moments, {"shift": scores})
    # A Gaussian kernel is the mean of products of random features (Rahimi and Recht, 2007). A kernel of large width has
    # nearly the power of the energy distance.
    count = int(min(max(FEATURE_NUMBERS / n, FEWEST_FEATURES), MOST_FEATURES))
    features: dict[str, Float32s] = {}
    for name, width in (("energy", 3.0), ("kernel", 1.0), ("narrow_kernel", NARROW)):
        directions = rng.standard_normal((points.shape[1], count), dtype=np.float32)
        angles = np.clip(scaled / (width * median), -FARTHEST, FARTHEST).astype(np.float32) @ directions
        features[name] = _centered(np.concatenate([np.cos(angles), np.sin(angles)], axis=1))
    return QuadraticForms({"nearest_neighbors": graph}, features | moments, {"shift": scores})


def _median_distance(distances: Array) -> float:
    """Return the median distance, or the median of the positive distances if most distances are 0."""
    median = float(np.median(distances))
    if median > 0:
        return median
    positive = distances[distances > 0]
    return float(np.median(positive)) if len(positive) else 1.0


def _standard_scores(points: Array) -> Float32s:
    """Return the normal scores of each component's ranks, scaled to standard deviation 1 unless all ranks are equal."""
    from scipy.stats import rankdata

    scores = normal_scores(rankdata(points, axis=0) / (len(points) + 1))
    spread = scores.std(0)
    return _centered(scores / np.where(spread > 0, spread, 1.0))


def _moments(points: Array, scores: Float32s) -> dict[str, Float32s]:
    """Return the log-distances from the center, and products of two components' scores and centered absolute scores."""
    n, d = points.shape
    square = np.square(points - np.median(points, axis=0)).sum(1, keepdims=True)
    moments = {"spread": _centered(np.log(np.maximum(square, np.finfo(np.float32).tiny)))}
    if n * d * (d - 1) <= 2 * MOST_PRODUCTS:
        first, second = np.triu_indices(d, 1)
        moments["products"] = _centered(scores[:, first] * scores[:, second])
        sizes = _centered(np.abs(scores))
        moments["tails"] = _centered(sizes[:, first] * sizes[:, second])
    return moments


def _centered(features: Array | Float32s) -> Float32s:
    return (features - features.mean(0, dtype=float)).astype(np.float32)


def _scale(points: Array) -> Array:
    """Return the interquartile range of each component; if the range is 0, the standard deviation; if both are 0, 1."""
    width = np.subtract(*np.quantile(points, [0.75, 0.25], axis=0))
    spread = points.std(0)
    return np.where(width > 0, width, np.where(spread > 0, spread, 1.0))
