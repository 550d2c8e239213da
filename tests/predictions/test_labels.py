"""Perplexities, top-k statistics and the tails of the label's probability, against numpy, scipy and mpmath."""

from __future__ import annotations

import math

import mpmath
import numpy as np
import pytest
import scipy.special
import torch

from kullback.predictions import collect, compare_predictions
from kullback.predictions.mean_intervals import MeanEstimator, RatioOfSums
from kullback.predictions.statistics import Quantiles
from kullback.report.subjects.predictions import label_rows
from kullback.representations import Logits, Probs
from tests.predictions.test_compare import jackknife

ROWS, CLASSES = 600, 30
CLUSTERS = np.arange(ROWS) // 15


def draw(noise: float = 0.4, seed: int = 0):
    """Logits of P and Q, labels drawn from P (none in every eighth row), and the labels' log-probabilities."""
    random = np.random.default_rng(seed)
    p = random.normal(size=(ROWS, CLASSES)) * random.gamma(2.0, 1.0, size=(ROWS, 1))
    q = p + noise * random.normal(size=p.shape)
    labels = (p + random.gumbel(size=p.shape)).argmax(-1)
    labels[::8] = -100
    known = labels >= 0
    logs = [scipy.special.log_softmax(x, -1)[known, labels[known]] for x in (p, q)]
    return p, q, labels, known, *logs


@pytest.mark.parametrize("clusters", [None, CLUSTERS])
def test_perplexities_are_exponentials_of_mean_cross_entropies(clusters):
    p, q, labels, known, log_p, log_q = draw()
    compared = compare_predictions(p, q, representation="logits", labels=labels, cluster=clusters)
    found = compared.labels
    unit = np.arange(len(log_p)) if clusters is None else clusters[known]
    ppl_p, ppl_q = np.exp(-log_p.mean()), np.exp(-log_q.mean())
    for ours, value, rows in (
        (found.perplexity_p, ppl_p, -ppl_p * log_p),
        (found.perplexity_q, ppl_q, -ppl_q * log_q),
        (found.perplexity_ratio, ppl_q / ppl_p, ppl_q / ppl_p * (log_p - log_q)),
        (found.perplexity_difference, ppl_q - ppl_p, ppl_p * log_p - ppl_q * log_q),
    ):
        assert ours.mean == pytest.approx(value, rel=1e-11)
        assert ours.standard_error == pytest.approx(jackknife(rows, unit), rel=1e-9)
        assert ours.interval[0] < ours.mean < ours.interval[1]
    for ours, mean in (
        (found.perplexity_p, found.cross_entropy_p),
        (found.perplexity_q, found.cross_entropy_q),
        (found.perplexity_ratio, found.difference),
    ):
        assert ours.interval == pytest.approx(np.exp(mean.interval), rel=1e-14)
        assert ours.reason == mean.reason


def test_the_error_of_the_perplexity_difference_is_near_that_of_leaving_clusters_out():
    p, q, labels, known, log_p, log_q = draw()
    unit = CLUSTERS[known]
    left_out = np.array(
        [
            np.exp(-log_q[unit != c].mean()) - np.exp(-log_p[unit != c].mean())
            for c in np.unique(unit)
        ]
    )  # fmt: skip
    error = math.sqrt((len(left_out) - 1) / len(left_out) * ((left_out - left_out.mean()) ** 2).sum())
    found = compare_predictions(p, q, representation="logits", labels=labels, cluster=CLUSTERS, bootstrap=0)
    assert found.labels.perplexity_difference.standard_error == pytest.approx(error, rel=0.05)


def test_the_interval_of_the_perplexity_difference_is_that_of_its_linear_part():
    p, q, labels, known, log_p, log_q = draw()
    found = compare_predictions(p, q, representation="logits", labels=labels).labels
    ppl_p, ppl_q = np.exp(-log_p.mean()), np.exp(-log_q.mean())
    linear = np.zeros(ROWS)
    linear[known] = ppl_p * log_p - ppl_q * log_q
    table = torch.from_numpy(np.stack([linear, known], -1))
    estimator = MeanEstimator(2, 1000, None, None)
    estimator.add(table)
    (estimate,) = estimator.estimates([RatioOfSums(0, 1)])
    shift = ppl_q - ppl_p - linear[known].mean()
    # The bootstrap's draws differ, as there are other quantities.
    width = estimate.interval[1] - estimate.interval[0]
    ends = np.array(estimate.interval) + shift
    np.testing.assert_allclose(found.perplexity_difference.interval, ends, atol=0.1 * width)


@pytest.mark.sweep
@pytest.mark.parametrize("noise", [1e-3, 1e-6, 1e-9])
def test_the_perplexity_difference_of_close_predictions_keeps_its_digits(noise):
    p, q, labels, *_ = draw(noise)
    found = compare_predictions(p, q, representation="logits", labels=labels, bootstrap=0).labels
    with mpmath.workdps(50):
        losses = [[], []]
        for x, mine in zip((p, q), losses, strict=True):
            for row, label in zip(x, labels, strict=True):
                if label >= 0:
                    total = mpmath.fsum(mpmath.exp(mpmath.mpf(float(v))) for v in row)
                    mine.append(mpmath.log(total) - mpmath.mpf(float(row[label])))
        of_p, of_q = (mpmath.exp(mpmath.fsum(mine) / len(mine)) for mine in losses)
        assert found.perplexity_difference.mean == pytest.approx(float(of_q - of_p), rel=1e-15 / noise * 20)
        assert found.perplexity_ratio.mean == pytest.approx(float(of_q / of_p), rel=1e-14)


def test_the_correlation_is_pearsons_of_the_log_probabilities():
    for noise in (1e-4, 0.4, 5.0):
        p, q, labels, _, log_p, log_q = draw(noise)
        found = compare_predictions(p, q, representation="logits", labels=labels, bootstrap=0).labels
        assert found.correlation == pytest.approx(np.corrcoef(log_p, log_q)[0, 1], rel=1e-9)


def test_a_correlation_with_what_does_not_vary_is_not_known():
    p = torch.full((20, 4), 0.25)
    q = torch.softmax(torch.randn(20, 4, generator=torch.Generator().manual_seed(0)), -1)
    assert math.isnan(compare_predictions(Probs(p), Probs(q), labels=[0] * 20).labels.correlation)


def top_k(x: np.ndarray, k: int) -> np.ndarray:
    return np.argsort(-x, axis=-1, kind="stable")[:, :k]


@pytest.mark.parametrize("classes", [2, 3, 5, 40])
@pytest.mark.parametrize("levels", [3, 1000])
def test_top_k_statistics_are_numpys_with_ties_and_few_classes(classes, levels):
    random = np.random.default_rng(classes)
    p = random.integers(0, levels, size=(300, classes)).astype(float)
    q = np.where(random.uniform(size=p.shape) < 0.9, p, random.integers(0, levels, size=p.shape))
    p[:, 0] = q[:, 0] = 1
    labels = random.integers(0, classes, 300)
    labels[::5] = -100
    known = labels >= 0
    found = compare_predictions(p, q, representation="counts", labels=labels, bootstrap=100)
    for k in range(1, 6):
        tops = top_k(p, k), top_k(q, k)
        agreement = found.top_k_agreement[k - 1]
        assert agreement.value == pytest.approx((tops[0] == tops[1]).all(-1).mean(), rel=1e-12)
        accuracies = found.labels.top_k_accuracy_p[k - 1], found.labels.top_k_accuracy_q[k - 1]
        for top, accuracy in zip(tops, accuracies, strict=True):
            rows = (top == labels[:, None]).any(-1)[known]
            assert accuracy.value == pytest.approx(rows.mean(), rel=1e-12)
            error = rows.std(ddof=1) / math.sqrt(len(rows))
            assert accuracy.standard_error == pytest.approx(error, rel=1e-9, abs=1e-15)
            assert accuracy.interval[0] <= accuracy.value <= accuracy.interval[1]
    assert found.top1_agreement == found.top_k_agreement[0]


def test_masked_classes_tie_and_do_not_hide_the_others():
    p = torch.full((1, 7), -torch.inf)
    p[0, [6, 2]] = torch.tensor([1.0, 0.0])
    found = compare_predictions(Logits(p), Logits(p), labels=[1], bootstrap=0).labels
    # 6 and 2, and of the masked ones 0, 1 and 3.
    assert [accuracy.value for accuracy in found.top_k_accuracy_p] == [0, 0, 0, 1, 1]


def test_the_acceptance_rate_is_the_mass_that_both_have():
    p, q, *_ = draw()
    found = compare_predictions(p, q, representation="logits")
    both = np.minimum(scipy.special.softmax(p, -1), scipy.special.softmax(q, -1)).sum(-1)
    rate, tv = found.acceptance_rate, found.divergences["tv"]
    assert rate.mean == pytest.approx(both.mean(), rel=1e-12)
    assert rate.standard_error == pytest.approx(both.std(ddof=1) / math.sqrt(ROWS), rel=1e-9)
    assert rate.interval == (1 - tv.interval[1], 1 - tv.interval[0])


def test_labels_of_probability_zero_have_infinite_perplexity():
    half, sure = [0.5, 0.5], [1.0, 0.0]
    q_rules_out = compare_predictions(Probs([half]), Probs([sure]), labels=[1]).labels
    assert (q_rules_out.perplexity_q.mean, q_rules_out.perplexity_ratio.mean) == (math.inf, math.inf)
    assert q_rules_out.perplexity_difference.mean == math.inf
    assert q_rules_out.perplexity_p.mean == pytest.approx(2, rel=1e-15)
    p_rules_out = compare_predictions(Probs([sure]), Probs([half]), labels=[1]).labels
    assert (p_rules_out.perplexity_ratio.mean, p_rules_out.perplexity_difference.mean) == (0, -math.inf)
    mixed = compare_predictions(Probs([half, sure]), Probs([sure, half]), labels=[1, 1]).labels
    unknown = (mixed.correlation, mixed.perplexity_ratio.mean, mixed.perplexity_difference.mean)
    assert all(map(math.isnan, unknown))
    assert mixed.perplexity_difference.interval is None


def test_a_perplexity_too_large_for_a_float64_is_infinite():
    found = compare_predictions(Logits([[0.0, -2000.0]]), Logits([[0.0, -3000.0]]), labels=[1]).labels
    assert (found.perplexity_p.mean, found.perplexity_q.mean) == (math.inf, math.inf)
    assert found.perplexity_ratio.mean == math.inf
    assert math.isnan(found.perplexity_difference.mean)


def test_nothing_labeled_leaves_nothing_known():
    p = Probs(torch.full((4, 2), 0.5))
    found = compare_predictions(p, p, labels=[-100] * 4).labels
    unknown = (found.perplexity_p, found.perplexity_ratio, found.perplexity_difference, found.delta_prob)
    assert all(math.isnan(mean.mean) and mean.interval is None for mean in unknown)
    assert all(math.isnan(mean.standard_error) for mean in unknown)
    assert not {"inf", "0"} & {cell for row in label_rows(found) for cell in row}
    assert math.isnan(found.top_k_accuracy_q[0].value)
    assert math.isnan(found.delta_prob.median)


@pytest.mark.parametrize("negative", [0.0, 0.3, 0.999, 1.0])
def test_the_sketch_of_signed_values_is_within_its_error(negative):
    random = np.random.default_rng(0)
    values = random.lognormal(-7, 3, 20_000) * np.where(random.uniform(size=20_000) < negative, -1, 1)
    values[:50] = 0
    quantiles, levels = (
        Quantiles(limit=1000, signed=True),
        [0.0, 0.001, 0.01, 0.29, 0.5, 0.7, 0.99, 0.999, 1.0],
    )
    for part in torch.from_numpy(values).split(300):
        quantiles.add(part)
    assert not quantiles.exact
    expected = np.quantile(values, levels)
    np.testing.assert_allclose(quantiles.at(levels), expected, rtol=0.0051)
    assert quantiles.at([0.0, 1.0]) == [values.min(), values.max()]


def test_changes_of_probability_beyond_the_limit_come_from_a_sketch(monkeypatch):
    p, q, labels, _, log_p, log_q = draw()
    monkeypatch.setattr(collect, "EXACT_ROWS", 100)
    found = compare_predictions(p, q, representation="logits", labels=labels, bootstrap=0).labels.delta_prob
    change = np.exp(log_q) - np.exp(log_p)
    ours = [found.p001, found.p10, found.p90, found.p999]
    np.testing.assert_allclose(ours, np.quantile(change, [0.001, 0.1, 0.9, 0.999]), rtol=0.006)
    assert (found.minimum, found.maximum) == pytest.approx((change.min(), change.max()), rel=1e-9)
