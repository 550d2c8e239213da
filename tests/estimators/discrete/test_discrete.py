"""KL from draws of categories: exact expectations by enumeration, other libraries' values, coverage on known pairs."""

from __future__ import annotations

import functools
import itertools
import math

import numpy as np
import pytest
import scipy.special
import scipy.stats
import torch

from kullback import Samples, kl_estimate
from kullback.errors import ArgumentValueError
from kullback.estimators.discrete import formulas
from kullback.estimators.discrete.categorical_estimators import (
    augmented_plugin,
    coverage_adjusted,
    dirichlet,
    miller_madow,
    plugin,
    plugin as plugin_estimate,
    zhang_grabchak,
)
from kullback.estimators.discrete.count_intervals import kl_interval
from kullback.estimators.discrete.formulas import CategoryCounts
from kullback.estimators.draws import variance_of_sum
from kullback.estimators.registry import CATEGORICAL
from tests.oracles.sample_cases import categorical_case, zipf
from tests.refusals import refused

ESTIMATORS = [coverage_adjusted, zhang_grabchak, plugin_estimate, miller_madow, augmented_plugin, dirichlet]
SHUFFLED = np.random.default_rng(0).permutation(1000)
PAIRS = {
    "zipf": (zipf(1000, 1.1), zipf(1000, 0.8)),
    "zipf_permuted": (zipf(1000, 1.1), zipf(1000, 1.1)[SHUFFLED]),
    "zipf_equal": (zipf(1000, 1.1), zipf(1000, 1.1)),
    "ten_categories": (zipf(10, 1.0), np.full(10, 0.1)),
    "ten_equal": (zipf(10, 1.0), zipf(10, 1.0)),
    "ten_near": (zipf(10, 1.0), zipf(10, 1.05)),
}


def truth(name):
    return categorical_case(name, *PAIRS[name]).truth


@functools.lru_cache(maxsize=2)
def drawn(name, n, repetitions=500, m=None):
    rng = np.random.default_rng([n, len(name)])
    p, q = PAIRS[name]
    a, b = rng.multinomial(n, p, repetitions), rng.multinomial(m or n, q, repetitions)
    return torch.from_numpy(a), torch.from_numpy(b)


def rmse(estimates, name):
    return float((estimates - truth(name)).square().mean().sqrt())


def compositions(n, categories):
    """All counts of n draws, with the multinomial coefficient of each."""
    for bars in itertools.combinations(range(n + categories - 1), categories - 1):
        ends = (-1, *bars, n + categories - 1)
        found = [ends[i + 1] - ends[i] - 1 for i in range(categories)]
        yield found, math.factorial(n) / math.prod(map(math.factorial, found))


def expected_value(estimator, p, q, n, m):
    """The estimator's exact mean, over all tables of counts."""
    of_p, of_q = list(compositions(n, len(p))), list(compositions(m, len(q)))
    a = torch.tensor([x for x, _ in of_p])[:, None]
    b = torch.tensor([x for x, _ in of_q])[None]
    chance_a = torch.tensor(
        [w * math.prod(s**x for s, x in zip(p, counted, strict=True)) for counted, w in of_p]
    )
    chance_b = torch.tensor(
        [w * math.prod(s**x for s, x in zip(q, counted, strict=True)) for counted, w in of_q]
    )
    return float((chance_a[:, None] * chance_b * estimator(a, b)).sum())


@pytest.mark.parametrize(("n", "m"), [(3, 4), (8, 5), (1, 6)])
def test_zhang_grabchak_has_the_bias_that_its_docstring_states(n, m):
    p, q = (0.5, 0.3, 0.2), (0.2, 0.2, 0.6)
    kl = sum(x * math.log(x / y) for x, y in zip(p, q, strict=True))

    def tail(share, first):
        return -math.log(share) - sum((1 - share) ** v / v for v in range(1, first))

    bias = sum(x * (tail(x, n) - tail(y, m + 1)) for x, y in zip(p, q, strict=True))
    assert expected_value(zhang_grabchak.of_counts, p, q, n, m) == pytest.approx(kl + bias, abs=1e-6)


def test_the_plain_estimators_are_their_formulas():
    a, b = np.array([30, 10, 5, 0]), np.array([20, 20, 4, 3])
    p, q = a / a.sum(), b / b.sum()
    first, second = torch.from_numpy(a), torch.from_numpy(b)
    plain = scipy.stats.entropy(p, q)
    assert float(plugin.of_counts(first, second)) == pytest.approx(plain, rel=1e-13)
    assert float(dirichlet.of_counts(first, second, 0.7)) == pytest.approx(
        scipy.stats.entropy(a + 0.7, b + 0.7), rel=1e-13
    )
    one_more = (p * np.log(p / ((b + 1) / b.sum()), where=p > 0, out=np.zeros(4))).sum()
    assert float(augmented_plugin.of_counts(first, second)) == pytest.approx(one_more, rel=1e-13)
    corrected = plain - 2 / (2 * 45) - (p * (1 - q) / (2 * 47 * q)).sum()
    assert float(miller_madow.of_counts(first, second)) == pytest.approx(corrected, rel=1e-13)


def test_coverage_adjusted_is_its_formula():
    a, b = torch.tensor([50, 9, 8, 7, 6, 1, 1, 1, 2, 3]), torch.tensor([70, 0, 0, 0, 1, 0, 0, 1, 2, 8])
    shares = a.double().numpy() / 88

    def predicted(rarest, following):
        mass, after = shares[rarest].sum(), shares[following].sum()
        squares, after_squares = (shares[rarest] ** 2).sum(), (shares[following] ** 2).sum()
        one = (squares + after_squares) / (mass + after)
        rate = (after + one) / (mass + one)
        value = math.exp(rate) * scipy.special.exp1(rate)
        derivative = value - 1 / rate
        return mass * value, (value - rate * derivative) ** 2 * squares + derivative**2 * after_squares

    added, variance_q = predicted((b == 0).numpy(), (b == 1).numpy())
    taken, variance_p = predicted((a == 1).numpy(), (a == 2).numpy())
    shift = added - taken
    shrunken = max(0, 1 - (variance_p + variance_q) / shift**2) * shift
    assert shrunken > 0.01
    got = coverage_adjusted.of_counts(a, b) - zhang_grabchak.of_counts(a, b)
    assert float(got) == pytest.approx(shrunken, rel=1e-10)


def test_the_influences_are_the_derivatives_of_the_divergence():
    p = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64, requires_grad=True)
    q = torch.tensor([0.2, 0.2, 0.6], dtype=torch.float64, requires_grad=True)
    (p / p.sum() * ((p / p.sum()) / (q / q.sum())).log()).sum().backward()
    of_p, of_q = formulas.kl_influence(1e9 * p.detach(), 1e9 * q.detach())
    torch.testing.assert_close(of_p, p.grad, atol=1e-7, rtol=0)
    torch.testing.assert_close(of_q, q.grad, atol=1e-7, rtol=0)


@pytest.mark.parametrize(("name", "off"), [("ten_categories", 0.1), ("ten_equal", 0.4), ("zipf", 0.1)])
def test_the_variance_is_that_of_repeated_draws(name, off):
    a, b = drawn(name, 100_000)
    seen = float(zhang_grabchak.of_counts(a, b).var())
    assert float(CategoryCounts.of(a, b).variance.mean()) == pytest.approx(seen, rel=off)


def test_clusters_of_one_draw_have_the_variance_of_draws():
    rng = np.random.default_rng(0)
    x, y = rng.choice(4, 400, p=[0.4, 0.3, 0.2, 0.1]), rng.choice(4, 300)
    one_hot = [torch.from_numpy(np.eye(4)[draws]) for draws in (x, y)]
    a, b = (rows.sum(0) for rows in one_hot)
    p, q = a / a.sum(), b / b.sum()
    log_ratio = (p / q).log()
    delta = ((p * log_ratio**2).sum() - (p * log_ratio).sum() ** 2) / 400 + ((p**2 / q).sum() - 1) / 300
    of_p, of_q = formulas.kl_influence(a, b)
    each = torch.randperm(400, generator=torch.Generator().manual_seed(0))
    found = variance_of_sum(of_p[x] / 400, each) + variance_of_sum(of_q[y] / 300, each[:300])
    assert float(found) == pytest.approx(float(delta), rel=0.02)
    assert variance_of_sum(of_p[x] / 400, torch.zeros(400, dtype=torch.int64)) == math.inf


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("name", "n", "m", "least"),
    [
        ("ten_categories", 100, 100, 0.93),
        ("ten_categories", 1000, 1000, 0.93),
        ("ten_categories", 1000, 100_000, 0.93),
        ("ten_categories", 100_000, 1000, 0.93),
        ("ten_categories", 10_000, 10_000, 0.93),
        ("ten_equal", 1000, 1000, 0.94),
        ("ten_near", 3000, 3000, 0.93),
        ("zipf", 1000, 1000, 0.95),
        ("zipf", 10_000, 10_000, 0.95),
        ("zipf", 100_000, 100_000, 0.93),
        ("zipf", 3000, 300_000, 0.93),
        ("zipf", 300_000, 3000, 0.95),
        ("zipf_permuted", 1000, 1000, 0.95),
        ("zipf_permuted", 10_000, 10_000, 0.95),
        ("zipf_permuted", 100_000, 100_000, 0.93),
        ("zipf_equal", 1000, 1000, 0.93),
        ("zipf_equal", 10_000, 10_000, 0.93),
        ("zipf_equal", 100_000, 100_000, 0.94),
    ],
)
def test_intervals_hold_the_divergence_as_often_as_they_say(name, n, m, least):
    a, b = drawn(name, n, m=m)
    low, high = kl_interval(CategoryCounts.of(a, b))
    held = (low <= truth(name)) & (truth(name) <= high)
    assert float(held.double().mean()) >= least
    if bool(high.isfinite().all()) and name.startswith("ten"):
        assert float(held.double().mean()) <= 0.975


@pytest.mark.parametrize("n", [50, 100])
@pytest.mark.parametrize(
    ("p", "q"),
    [(0.3, 0.5), (0.5, 0.3), (0.4, 0.5), (0.5, 0.5), (0.05, 0.2), (0.1, 0.5), (0.001, 0.02), (0.01, 0.05)],
)
def test_two_categories_are_covered_by_enumeration(n, p, q):
    """Every outcome of few draws that shows both categories, with its probability: nothing is random."""
    count = torch.arange(n + 1.0, dtype=torch.float64)
    each = torch.stack([count, n - count], 1)
    low, high = kl_interval(CategoryCounts.of(each[:, None], each[None]))
    kl = p * math.log(p / q) + (1 - p) * math.log((1 - p) / (1 - q))
    probability = np.outer(*(scipy.stats.binom.pmf(np.arange(n + 1), n, x) for x in (p, q)))
    probability[0, 0] = probability[n, n] = 0
    probability /= probability.sum()
    held = ((low <= kl) & (kl <= high)).numpy()
    assert probability[held].sum() >= 0.93
    assert probability[(high < kl).numpy()].sum() < 0.025


def binomial_outcomes(n, p):
    """The counts that may well be, and their probabilities."""
    first, last = scipy.stats.binom.ppf([1e-5, 1 - 1e-5], n, p)
    count = torch.arange(first, last + 1, dtype=torch.float64)
    return torch.stack([count, n - count], 1), scipy.stats.binom.pmf(count.numpy(), n, p)


@pytest.mark.sweep
@pytest.mark.parametrize(("n", "m"), [(20, 100), (20, 300), (20, 5000), (50, 1000)])
def test_two_categories_are_covered_where_sizes_differ(n, m):
    """A rare category that either side may show seldom or never, by enumeration."""
    for few, many in itertools.product((0.005, 0.02, 0.05, 0.1, 0.3), repeat=2):
        for sizes, shares in (((n, m), (few, many)), ((m, n), (many, few))):
            if sizes[0] * shares[0] > 30:  # a category that is not rare in P
                continue
            kl = scipy.stats.entropy(*([x, 1 - x] for x in shares))
            (a, of_a), (b, of_b) = (binomial_outcomes(*given) for given in zip(sizes, shares, strict=True))
            table = CategoryCounts.of(a[:, None], b[None])
            low, high = kl_interval(table)
            given = (table.coarser.a + table.coarser.b > 0).sum(-1) >= 2  # otherwise there is no interval
            probability = np.outer(of_a, of_b) * given.numpy()
            if probability.sum() < 0.02:
                continue
            held = ((low <= kl + 1e-12) & (kl <= high + 1e-12)).numpy()
            assert probability[held].sum() >= 0.93 * probability.sum(), (sizes, shares)


def test_what_one_side_showed_never_is_not_taken_for_none():
    rare = coverage_adjusted(Samples([0] * 20), Samples([0] * 4950 + [1] * 50))
    assert rare.interval[1] > 0.1 * math.log(10) + 0.9 * math.log(0.9 / 0.99)  # P may well have 10 % there
    missed = coverage_adjusted(Samples([0] * 980 + [1] * 20), Samples([0] * 100))
    assert missed.interval[0] == 0  # Q shows none of 2 % in 100 draws 13 % of the time


@pytest.mark.parametrize("confidence", [0.5, 0.8, 0.99])
def test_intervals_keep_other_confidences(confidence):
    low, high = kl_interval(CategoryCounts.of(*drawn("ten_categories", 3000)), confidence)
    held = (low <= truth("ten_categories")) & (truth("ten_categories") <= high)
    assert float(held.double().mean()) == pytest.approx(confidence, abs=0.04)


@pytest.mark.sweep
def test_intervals_have_an_upper_end_where_the_draws_show_the_categories_and_none_where_they_do_not():
    # By chance, categories that Q never showed may outnumber those that it showed once: rarely.
    assert (
        float(kl_interval(CategoryCounts.of(*drawn("zipf_permuted", 100_000)))[1].isfinite().double().mean())
        > 0.98
    )
    assert bool(kl_interval(CategoryCounts.of(*drawn("zipf", 100_000)))[1].isfinite().all())
    low, high = kl_interval(CategoryCounts.of(*drawn("zipf_permuted", 1000)))
    assert bool(high.isinf().all())
    assert float(low.mean()) > 1.5


@pytest.mark.sweep
@pytest.mark.parametrize("n", [1000, 10_000, 100_000])
def test_coverage_adjusted_has_the_smallest_error_on_the_zipf_pairs(n):
    for name in ("zipf", "zipf_permuted", "zipf_equal"):
        a, b = drawn(name, n)
        ours = rmse(coverage_adjusted.of_counts(a, b).clamp(min=0), name)
        others = [zhang_grabchak.of_counts(a, b), augmented_plugin.of_counts(a, b), dirichlet.of_counts(a, b)]
        assert ours <= 1.1 * min(rmse(other, name) for other in others)
    assert rmse(coverage_adjusted.of_counts(*drawn("zipf_permuted", 1000)), "zipf_permuted") < 0.6 * rmse(
        zhang_grabchak.of_counts(*drawn("zipf_permuted", 1000)), "zipf_permuted"
    )


def test_the_exponential_integral_at_both_ends():
    # One of P's categories is unseen by Q, a hundred are seen once, and the other way round.
    for unseen, once in ((1, 100), (100, 1)):
        a = torch.tensor([3] * (unseen + once))
        b = torch.tensor([0] * unseen + [1] * once)
        share = 1 / (unseen + once)
        rate = (once * share + share) / (unseen * share + share)
        whole = CategoryCounts.of(a, b).correction.predicted
        assert float(whole) == pytest.approx(
            unseen * share * math.exp(rate) * scipy.special.exp1(rate), rel=1e-10
        )


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_strings_align_by_label_and_integers_by_value(estimator):
    x, y = ["b"] * 30 + ["c"] * 10 + ["a"] * 3, ["c"] * 20 + ["b"] * 20 + ["d"] * 4 + ["a"]
    number = {"a": 7, "b": -2, "c": 40, "d": 0}
    by_name = estimator(Samples(x), Samples(y))
    by_number = estimator(
        Samples(torch.tensor([number[s] for s in x], dtype=torch.int16)), Samples([number[s] for s in y])
    )
    as_rows = estimator(
        Samples(torch.tensor([[number[s], 1] for s in x])), Samples(torch.tensor([[number[s], 1] for s in y]))
    )
    a, b = torch.tensor([3, 30, 10, 0]), torch.tensor([1, 20, 20, 4])
    expected = CATEGORICAL[by_name.method].of_counts(a, b).clamp(min=0)
    for found in (by_name, by_number, as_rows):
        torch.testing.assert_close(found.value, expected)
        torch.testing.assert_close(found.interval[0], kl_interval(CategoryCounts.of(a, b))[0])
        assert found.value.dtype == torch.float64
        assert found.n == (43, 45)
        assert found.method == estimator.__name__


def test_rows_of_integers_are_categories():
    rng = np.random.default_rng(1)
    x, y = rng.integers(0, 3, (500, 3)), rng.integers(0, 3, (400, 3))
    rows = zhang_grabchak(Samples(x), Samples(y))
    words = zhang_grabchak(Samples([str(r.tolist()) for r in x]), Samples([str(r.tolist()) for r in y]))
    torch.testing.assert_close(rows.value, words.value)
    torch.testing.assert_close(rows.interval, words.interval)


def test_booleans_are_categories():
    x, y = torch.tensor([True] * 30 + [False] * 10), torch.tensor([True] * 20 + [False] * 20)
    assert float(plugin_estimate(Samples(x), Samples(y)).value) == pytest.approx(
        scipy.stats.entropy([30, 10], [20, 20]), rel=1e-13
    )


def test_plugin_says_what_q_misses_and_bounds_the_divergence_from_below():
    found = plugin_estimate(Samples([0] * 60 + [1] * 30 + [2] * 6 + [3] * 4), Samples([0] * 60 + [1] * 40))
    assert found.value == math.inf
    assert found.standard_error is None
    assert "2 categories that have 10 % of P's draws" in found.notes[0]
    assert "method='dirichlet'" in found.notes[0]
    low, high = found.interval
    assert 0 < low < scipy.stats.entropy([60, 30, 10], [60, 39, 1])
    assert high == math.inf


def test_disjoint_supports_are_bounded_from_below():
    found = coverage_adjusted(Samples(["a"] * 100), Samples(["b"] * 100))
    # With 97.5 % chance Q's probability of "a" is at most 1 - 0.025^(1/100).
    exact = -math.log(1 - 0.025**0.01)
    assert found.interval[0] <= exact
    assert float(found.interval[0]) == pytest.approx(exact, rel=0.1)
    assert found.interval[1] == math.inf
    assert "upper limit is infinite" in " ".join(found.notes)


@pytest.mark.parametrize(
    ("x", "y", "reason"),
    [
        ([1], [1], "one of the categories"),
        ([1], [2], "none of the 2 categories"),
        (["a"] * 500, ["a"] * 500, "one of the categories"),
        (list(range(50)), list(range(50)), "none of the 50 categories"),
        (list(range(5)) * 3, list(range(100, 130)), "none of the 35 categories"),
    ],
)
def test_no_interval_without_enough_draws_of_any_category(x, y, reason):
    found = coverage_adjusted(Samples(x), Samples(y))
    assert found.interval is None
    assert found.standard_error is None
    assert reason in " ".join(found.notes)
    assert bool(found.value.isfinite())
    assert found.value >= 0


def test_a_negative_estimate_is_answered_with_zero_and_said():
    x, y = torch.tensor([0, 1] * 50), torch.tensor([0, 1] * 50)
    found = zhang_grabchak(Samples(x), Samples(y))
    raw = float(zhang_grabchak.of_counts(torch.tensor([50, 50]), torch.tensor([50, 50])))
    assert raw < 0
    assert found.value == 0
    assert f"{raw:.2g}" in found.notes[0]


def test_bias_beyond_the_interval_is_said():
    a, b = drawn("zipf_equal", 30_000, 1)
    x, y = (torch.repeat_interleave(torch.arange(1000), c[0]) for c in (a, b))
    found = dirichlet(Samples(x), Samples(y))
    assert found.value > found.interval[1]
    assert "outside the interval" in " ".join(found.notes)


def test_equal_weights_change_nothing_and_repeats_in_a_cluster_tell_nothing_new():
    rng = np.random.default_rng(3)
    x, y = rng.choice(10, 600, p=PAIRS["ten_categories"][0]), rng.choice(10, 500)
    plain = coverage_adjusted(Samples(x), Samples(y))
    weighted = coverage_adjusted(Samples(x, weights=np.full(600, 0.3)), Samples(y, weights=np.full(500, 7.0)))
    torch.testing.assert_close(weighted.value, plain.value)
    # Weighted draws have the variance of a mean; the counts of Q that of the logarithm's posterior.
    torch.testing.assert_close(weighted.standard_error, plain.standard_error, rtol=0.02, atol=0)
    repeated = coverage_adjusted(
        Samples(np.repeat(x, 8), cluster=np.repeat(np.arange(600), 8)),
        Samples(np.repeat(y, 8), cluster=np.repeat(np.arange(500), 8)),
    )
    torch.testing.assert_close(repeated.value, plain.value, rtol=0.02, atol=0)
    torch.testing.assert_close(repeated.standard_error, plain.standard_error, rtol=0.05, atol=0)
    torch.testing.assert_close(repeated.interval, plain.interval, rtol=0.05, atol=0)
    assert "P's 600 clusters carry the information of about" in " ".join(repeated.notes)
    ignoring = coverage_adjusted(Samples(np.repeat(x, 8)), Samples(np.repeat(y, 8)))
    assert ignoring.standard_error < 0.5 * repeated.standard_error


@pytest.mark.sweep
def test_weights_that_make_one_distribution_of_another():
    rng = np.random.default_rng(4)
    p, q = PAIRS["ten_categories"]
    held = []
    for _ in range(150):
        x = rng.choice(10, 1000, p=q)
        found = coverage_adjusted(Samples(x, weights=(p / q)[x]), Samples(rng.choice(10, 1000, p=q)))
        held.append(found.interval[0] <= truth("ten_categories") <= found.interval[1])
    assert 0.91 <= np.mean(held) <= 0.99


@pytest.mark.sweep
@pytest.mark.parametrize("edges", [[-1.0, 1.0], scipy.stats.norm.ppf(np.arange(1, 20) / 20)])
def test_weights_that_depend_on_the_category_do_not_make_a_difference(edges):
    """Importance weights from N(1, 1) to N(0, 1): categories of small x have fewer independent draws than others."""
    rng, repetitions, above = np.random.default_rng(6), 250, 0
    for _ in range(repetitions):
        x, y = rng.normal(1, 1, 1000), rng.normal(size=1000)
        p = Samples(np.digitize(x, edges), weights=np.exp(0.5 - x))
        above += bool(coverage_adjusted(p, Samples(np.digitize(y, edges))).interval[0] > 0)
    assert 0.02 <= above / repetitions <= 0.085


@pytest.mark.heavy
@pytest.mark.parametrize("stick", [0.0, 0.5])
def test_intervals_with_clusters_hold_the_divergence(stick):
    rng = np.random.default_rng(5)

    def clustered(shares):
        own, common = rng.choice(10, (50, 20), p=shares), rng.choice(10, (50, 1), p=shares)
        x = np.where(rng.random((50, 20)) < stick, common, own)
        return Samples(x.ravel(), cluster=np.repeat(np.arange(50), 20))

    p, q = PAIRS["ten_categories"]
    held = []
    for _ in range(150):
        found = coverage_adjusted(clustered(p), clustered(q))
        held.append(found.interval[0] <= truth("ten_categories") <= found.interval[1])
    assert 0.92 <= np.mean(held) <= 0.995


def test_one_cluster_gives_no_interval():
    found = coverage_adjusted(Samples([0, 1] * 50, cluster=[5] * 100), Samples([0, 1] * 50))
    assert found.interval is None
    assert "single cluster" in " ".join(found.notes)


def test_a_million_categories():
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randint(10**6, (2, 300_000), generator=generator)
    found = coverage_adjusted(Samples(x), Samples(y))
    assert found.value < 0.2
    assert found.interval is None
    assert bool(zhang_grabchak(Samples(x), Samples(x)).value.isfinite())


def test_the_same_draws_give_the_same_estimate():
    x, y = torch.randint(5, (2, 1000), generator=torch.Generator().manual_seed(1))
    first, second = (
        coverage_adjusted(Samples(x), Samples(y), generator=torch.Generator().manual_seed(seed))
        for seed in (0, 1)
    )
    assert first == second or torch.equal(first.value, second.value)
    assert torch.equal(first.interval[1], second.interval[1])


@pytest.mark.parametrize(
    ("p", "q", "options", "message"),
    [
        (Samples([0.5, 1.0]), Samples([0.5, 1.0]), {}, "draws of categories"),
        (Samples([1, 2]), Samples([0.5, 1.0]), {}, "categories"),
        (Samples([1, 2]), Samples(["a", "b"]), {}, "categories"),
        (Samples([[1, 2]]), Samples([1, 2]), {}, "components"),
        (Samples([1, 2]), Samples([1, 2]), {"confidence": 1.0}, "between 0 and 1"),
        (Samples([1, 2]), Samples([1, 2]), {"prior": 0.0}, "a finite positive number"),
        (Samples([1, 2]), Samples([1, 2]), {"prior": math.nan}, "a finite positive number"),
    ],
)
def test_what_is_no_draw_of_categories_is_refused(p, q, options, message):
    with refused(ArgumentValueError, wanted=message):
        dirichlet(p, q, **options)


@pytest.mark.sweep
def test_open_intervals_of_vectors_name_fewer_components() -> None:
    note = (
        "Each different vector of 12 components is a category. The divergence of some of the components, such as "
        "Samples(x[:, :6]), is at most the divergence of all, and its interval needs fewer draws."
    )
    of_one = 0.5 * math.log(0.5 / 0.4) + 0.5 * math.log(0.5 / 0.6)
    covered = 0
    for n in (300, 400):
        for seed in range(10):
            rng = np.random.default_rng(seed)
            x, y = rng.random((n, 12)) < 0.5, rng.random((n, 12)) < 0.4
            if seed == 0:
                for dtype in (bool, int):
                    whole = kl_estimate(Samples(x.astype(dtype)), Samples(y.astype(dtype)))
                    assert whole.interval is None or float(whole.interval[1]) == math.inf
                    assert note in whole.notes, (n, dtype, whole.notes)
            half = kl_estimate(Samples(x[:, :6]), Samples(y[:, :6]))
            assert half.interval is not None, (n, seed)
            low, high = map(float, half.interval)
            assert high < math.inf, (n, seed, half.notes)
            assert note not in half.notes
            covered += low <= 6 * of_one <= high
    assert covered >= 17, covered


@pytest.mark.parametrize("units", ["draws", "clusters"])
@pytest.mark.parametrize("weight", [50.0, 200.0, 600.0])
def test_one_draw_with_much_of_the_weight_proves_no_difference(units: str, weight: float) -> None:
    """P = Q; the first of P's 200 draws has a fifth to three quarters of the weight."""
    above = 0
    for seed in range(20):
        rng = np.random.default_rng(seed)
        x, y = (rng.choice(5, 200, p=[0.4, 0.3, 0.15, 0.1, 0.05]) for _ in "pq")
        cluster = np.arange(200) if units == "clusters" else None
        found = kl_estimate(Samples(x, weights=np.r_[weight, np.ones(199)], cluster=cluster), Samples(y))
        above += found.interval is not None and bool(found.interval[0] > 0)
    assert above <= 3
