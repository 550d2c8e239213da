"""Counts given as weights are refused, and categories that the two sides do not share are named in a note."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch
from torch.distributions import Categorical

from kullback import Counts, Samples, kl_divergence, kl_estimate
from kullback.errors import ArgumentValueError
from kullback.estimators import (
    EstimateWarning,
    coverage_adjusted,
    density_ratio,
    from_density,
    histogram,
    nearest_neighbors,
    zhang_grabchak,
)
from tests.refusals import refused

P, Q = np.arange(1.0, 11) / 55, np.arange(10.0, 0, -1) / 55
TRUTH = float((P * np.log(P / Q)).sum())
RNG = np.random.default_rng(0)
A, B = RNG.multinomial(5000, P), RNG.multinomial(5000, Q)
VALUES = np.arange(10)


@pytest.mark.parametrize(
    "estimate",
    [
        kl_estimate,
        kl_divergence,
        lambda p, q: kl_estimate(q, p),
        coverage_adjusted,
        zhang_grabchak,
    ],
)
@pytest.mark.parametrize("values", [VALUES, [f"v{i}" for i in VALUES]])
def test_counts_as_weights_of_categories_are_refused(estimate, values):
    with refused(ArgumentValueError, got=r"10 different values .* of sum 5000, like counts"):
        estimate(Samples(values, weights=A), Samples(np.repeat(values, B)))


@pytest.mark.parametrize("estimate", [kl_estimate, from_density])
def test_counts_as_weights_beside_known_probabilities_are_refused(estimate):
    with refused(ArgumentValueError, got=r"10 different values .* of sum 5000, like counts"):
        estimate(Samples(VALUES, weights=A), Categorical(torch.from_numpy(Q)))


@pytest.mark.parametrize("estimate", [kl_estimate, histogram, density_ratio])
def test_counts_as_weights_of_numbers_are_refused(estimate):
    values = np.linspace(0.05, 3.7, 10)
    with refused(ArgumentValueError, got="like counts"):
        estimate(Samples(values, weights=A), Samples(np.repeat(values, B)))


def test_counts_as_weights_of_vectors_are_refused():
    values = RNG.standard_normal((10, 2))
    with refused(ArgumentValueError, got="like counts"):
        nearest_neighbors(Samples(values, weights=A), Samples(np.repeat(values, B, axis=0)))


def test_the_remedies_give_the_estimate():
    with pytest.raises(ArgumentValueError) as refusal:
        kl_estimate(Samples(VALUES, weights=A), Samples(VALUES, weights=B))
    for remedy in (
        "Samples(np.repeat(x, counts), independent=True)",
        "Counts(counts, labels=x)",
        "weights=w / w.sum()",
    ):
        assert remedy in str(refusal.value)
    found = kl_estimate(*(Samples(np.repeat(VALUES, x), independent=True) for x in (A, B)))
    assert found.interval[0] < TRUTH < found.interval[1]
    assert float(kl_divergence(Counts(A, labels=VALUES), Counts(B, labels=VALUES))) == pytest.approx(
        TRUTH, abs=0.05
    )
    x = RNG.standard_normal(50)
    w = RNG.integers(1, 900, 50)
    assert histogram(Samples(x, weights=w / w.sum()), Samples(RNG.standard_normal(300))).value.isfinite()


@pytest.mark.parametrize(
    ("values", "weights"),
    [
        (RNG.choice(10, 400), RNG.integers(1, 900, 400)),  # values come again, as draws do
        (np.arange(400), RNG.random(400) * 1000),  # not whole
        (np.arange(400), np.full(400, 7)),  # all the same
        (np.arange(400), RNG.integers(0, 2, 400)),  # rows left out
    ],
)
def test_weights_are_taken_as_weights(values, weights):
    found = coverage_adjusted(Samples(values, weights=weights), Samples(RNG.choice(400, 900)))
    assert found.n == (int((np.asarray(weights) > 0).sum()), 900)


@pytest.mark.parametrize(
    ("p", "q"),
    [
        (np.arange(500), np.arange(1000, 1500)),  # names of rows
        (RNG.integers(0, 50, 500), RNG.integers(50, 100, 500)),  # codes of their own
        (["a"] * 30 + ["b"] * 20, ["c"] * 30 + ["d"] * 20),
        (["a"] * 30, ["b"] * 30),
        (RNG.integers(0, 5, (100, 2)), RNG.integers(5, 9, (100, 2))),
    ],
)
def test_a_note_says_that_no_category_is_shared(p, q):
    found = kl_estimate(Samples(p), Samples(q))
    assert sum(note.startswith("P and Q have no category in common.") for note in found.notes) == 1
    assert found.interval is None or bool(found.interval[1].isinf())
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        kl_divergence(Samples(p), Samples(q))
    assert {warning.category for warning in caught} == {EstimateWarning}
    assert "no category in common" in " ".join(str(warning.message) for warning in caught)


def test_one_category_in_common_is_enough():
    found = kl_estimate(Samples([*range(500)]), Samples([*range(499, 999)]))
    assert "no category in common" not in " ".join(found.notes)
    apart = histogram(Samples(RNG.standard_normal(200)), Samples(RNG.standard_normal(200) + 100))
    assert "no category in common" not in " ".join(apart.notes)  # bins are no categories
