"""Rows whose order shows dependence: blocks in standard errors and intervals, whatever the size of what is read."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from kullback import Logits, compare_predictions
from kullback.errors import ArgumentValueError
from kullback.predictions.collect import _noticed
from kullback.predictions.mean_intervals import MeanEstimate, MeanEstimator, RatioOfSums, RowBlocks
from kullback.predictions.sources import Clusters
from tests.refusals import refused

Array = np.ndarray[Any, Any]


def autoregression(rng: np.random.Generator, n: int, correlation: float) -> Array:
    x = rng.standard_normal(n) * math.sqrt(1 - correlation**2)
    x[0] = rng.standard_normal()
    for t in range(1, n):
        x[t] += correlation * x[t - 1]
    return x


def estimate(x: Array, *, ordered: bool = True) -> MeanEstimate:
    estimator = MeanEstimator(1, 400, torch.Generator().manual_seed(0), None, (0,) if ordered else ())
    for part in torch.from_numpy(x)[:, None].split(4096):
        estimator.add(part)
    return estimator.estimates([RatioOfSums(0, -1, 0.0)])[0]


def predictions(n: int, correlation: float, seed: int = 0) -> tuple[Logits, Logits]:
    """Two models whose difference in a row resembles that in the row before."""
    rng = np.random.default_rng(seed)
    p = rng.standard_normal((n, 7))
    noise = rng.standard_normal((n, 7)) * np.exp(autoregression(rng, n, correlation))[:, None]
    return Logits(torch.from_numpy(p)), Logits(torch.from_numpy(p + 0.1 * noise))


@pytest.mark.sweep
@pytest.mark.parametrize(("correlation", "n"), [(0.3, 1000), (0.8, 2000), (0.95, 3000)])
def test_the_mean_of_dependent_rows_is_covered(correlation: float, n: int) -> None:
    covered, plain = 0, 0
    for seed in range(25):
        x = np.exp(autoregression(np.random.default_rng([seed, 1]), n, correlation) - 0.5)
        for found, counted in ((estimate(x), True), (estimate(x, ordered=False), False)):
            low, high = found.interval or (0.0, math.inf)
            covered += counted and low <= 1 <= high
            plain += not counted and low <= 1 <= high
    assert covered >= 21  # Binomial(25, 0.93) is below 21 with chance 0.02
    assert correlation == 0.3 or plain < 20


def in_windows(x: Array, *, ordered: bool) -> MeanEstimate:
    """Estimate a mean from four rows of each window."""
    return of_windows(x, ordered=ordered).estimates([RatioOfSums(0, -1, 0.0)])[0]


def of_windows(x: Array, *, ordered: bool = True) -> MeanEstimator:
    windows = torch.arange(len(x)).repeat_interleave(4)
    estimator = MeanEstimator(1, 400, None, windows, (0,) if ordered else ())
    estimator.add(torch.from_numpy(np.repeat(x, 4))[:, None])
    return estimator


def test_the_mean_of_windows_that_depend_on_their_order_is_covered() -> None:
    covered, plain = 0, 0
    for seed in range(25):
        x = np.exp(autoregression(np.random.default_rng([seed, 4]), 400, 0.8) - 0.5)
        for found, ordered in ((in_windows(x, ordered=True), True), (in_windows(x, ordered=False), False)):
            low, high = found.interval or (0.0, math.inf)
            covered += ordered and low <= 1 <= high
            plain += not ordered and low <= 1 <= high
    assert covered >= 21
    assert plain < 19
    x = autoregression(np.random.default_rng(4), 12_000, 0.8)  # more windows than there are groups
    exact = 3 / math.sqrt(12_000)  # the standard error of an autoregression
    assert in_windows(np.exp(x / 10), ordered=True).standard_error == pytest.approx(exact / 10, rel=0.3)


def test_windows_that_are_independent_or_few_are_as_they_were() -> None:
    for seed in range(20):
        x = np.random.default_rng([seed, 5]).exponential(size=300)
        assert in_windows(x, ordered=True) == in_windows(x, ordered=False)
    x = np.exp(np.cumsum(np.random.default_rng(6).standard_normal(60) / 4))
    assert in_windows(x, ordered=True).reason == "few units"


def test_windows_of_sources_that_take_turns_are_in_groups_of_one_source_each() -> None:
    rng = np.random.default_rng(7)
    sources = rng.standard_normal(40)
    x = np.exp(np.tile(sources, 20) + 0.3 * rng.standard_normal(800))
    found, dependence = in_windows(x, ordered=True), of_windows(x).dependence
    # A source's sum counts as one value: the standard error is that of the mean of 40.
    assert found.standard_error == pytest.approx(np.exp(sources).std(ddof=1) / math.sqrt(40), rel=0.1)
    assert dependence is not None
    assert "40 groups, each of windows 40 apart" in _noticed(
        dependence, Clusters(torch.arange(800), [], "windows")
    )


def test_independent_rows_are_as_they_were() -> None:
    for seed in range(20):
        x = np.random.default_rng([seed, 2]).exponential(size=500)
        assert estimate(x) == estimate(x, ordered=False)


def test_dependence_far_beyond_the_first_rows_is_seen() -> None:
    rng = np.random.default_rng(3)
    n, length = 1 << 18, 1 << 11
    x = np.exp(0.1 * np.repeat(rng.standard_normal(n // length), length) + rng.standard_normal(n))
    blocks = RowBlocks(2, (0,))
    for part in torch.from_numpy(np.stack([x, np.ones(n)], 1)).split(4096):
        blocks.add(part)
    found = blocks.dependence()
    assert found is not None
    assert found.kind == "blocks"
    assert found.length > length
    sums = blocks.sums(found)
    assert sums.sum(0) == pytest.approx([x.sum(), n])
    error = np.sqrt(np.square(sums[:, 0] - x.mean() * sums[:, 1]).sum()) / n
    effect = math.exp(0.5) * 0.1 / math.sqrt(n // length)
    assert error == pytest.approx(math.hypot(effect, x.std() / math.sqrt(n)), rel=0.4)


def test_results_do_not_depend_on_the_size_of_blocks_that_are_read() -> None:
    p, q = predictions(9000, 0.8)
    whole, parts = (compare_predictions(p, q, block_bytes=size, bootstrap=100) for size in (1, 1 << 30))
    assert repr(whole) == repr(parts)
    assert (whole.divergences, whole.notes) == (parts.divergences, parts.notes)
    assert "The order of the rows shows dependence" in whole.notes[0]


def test_the_note_says_how_many_independent_rows_there_are_and_its_remedies_work() -> None:
    p, q = predictions(3000, 0.9)
    found = compare_predictions(p, q)
    plain = compare_predictions(p, q, independent=True)
    grouped = compare_predictions(p, q, cluster=np.arange(3000) // 100)
    mean, known = found.divergences["kl_pq"], plain.divergences["kl_pq"]
    assert mean.standard_error > 1.5 * known.standard_error
    assert mean.standard_error == pytest.approx(grouped.divergences["kl_pq"].standard_error, rel=0.35)
    assert "3,000 rows carry the information of about" in found.notes[0]
    assert "independent=True" in found.notes[0]
    for other in (plain, grouped):
        assert not any("dependence" in note for note in other.notes)
    assert found.clusters is None
    with refused(ArgumentValueError, wanted="not both"):
        compare_predictions(p, q, independent=True, cluster=np.arange(3000))


def test_rows_that_wander_have_no_interval() -> None:
    rng = np.random.default_rng(4)
    p = torch.from_numpy(rng.standard_normal((800, 5)))
    drift = torch.from_numpy(np.exp(0.3 * np.cumsum(rng.standard_normal(800))))
    q = p + 0.01 * drift[:, None] * torch.from_numpy(rng.standard_normal((800, 5)))
    found = compare_predictions(Logits(p), Logits(q))
    assert (found.divergences["kl_pq"].interval, found.divergences["kl_pq"].reason) == (None, "few units")
    assert "no intervals" in found.notes[0]
    assert any("fewer than 10 blocks" in note for note in found.notes)


def test_labels_that_depend_on_their_order_are_seen() -> None:
    rng = np.random.default_rng(5)
    p = torch.from_numpy(rng.standard_normal((1500, 4)))
    q = p + 0.1 * torch.from_numpy(rng.standard_normal((1500, 4)))
    likely = p.softmax(-1).argmax(-1)
    labels = torch.where(torch.from_numpy(autoregression(rng, 1500, 0.95) > 0), likely, (likely + 1) % 4)
    plain = compare_predictions(Logits(p), Logits(q), labels=labels, independent=True)
    found = compare_predictions(Logits(p), Logits(q), labels=labels)
    assert plain.labels is not None
    assert found.labels is not None
    assert found.labels.cross_entropy_p.standard_error > 1.5 * plain.labels.cross_entropy_p.standard_error
    assert replace(found.divergences["kl_pq"], standard_error=0, interval=None) == replace(
        plain.divergences["kl_pq"], standard_error=0, interval=None
    )
