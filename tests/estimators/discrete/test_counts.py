"""Counts are draws: they have the interval, the standard error and the test of a row for each draw."""

from __future__ import annotations

import itertools
import math
import warnings
from collections import Counter

import numpy as np
import pytest
import scipy.stats
import torch
from torch.distributions import Categorical, Normal, OneHotCategorical

from kullback import (
    KL,
    Alpha,
    Counts,
    Divergence,
    FDivergence,
    JensenShannon,
    Logits,
    LogProbs,
    Probs,
    Renyi,
    Samples,
    SkewKL,
    divergence,
    estimate,
    kl_divergence,
    kl_estimate,
    two_sample_test,
)
from kullback.errors import ArgumentValueError, NoRuleError
from kullback.estimators import bias_corrected, coverage_adjusted
from kullback.estimators.registry import CATEGORICAL
from tests.refusals import refused

P, Q = np.array([0.4, 0.3, 0.2, 0.1, 0.0, 0.0]), np.array([0.25, 0.3, 0.3, 0.1, 0.05, 0.0])
RNG = np.random.default_rng(0)
A, B = RNG.multinomial(500, P), RNG.multinomial(300, Q)
KINDS = [
    "kl",
    "reverse_kl",
    "jeffreys",
    "js",
    "js:0.1",
    "tv",
    "hellinger",
    "skew:0.1",
    "renyi:0.5",
    "renyi:2",
    "chi2",
]
KNOWN = np.array([0.3, 0.25, 0.25, 0.1, 0.06, 0.04])


def rows(counts):
    return Samples(np.repeat(np.arange(len(counts)), counts), independent=True)


def assert_same(found, expected, *, values=True):
    """Compare all but the notes; sums over classes may round differently."""
    assert found.n == expected.n
    torch.testing.assert_close(found.interval, expected.interval, rtol=1e-10, atol=1e-12)
    if bool(found.value.isinf()):  # which has no standard error
        assert found.standard_error is None
    else:
        torch.testing.assert_close(found.standard_error, expected.standard_error, rtol=1e-10, atol=1e-12)
    if values:
        torch.testing.assert_close(found.value, expected.value, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("method", sorted(CATEGORICAL))
def test_every_estimator_takes_counts_as_rows(method):
    expected = kl_estimate(rows(A), rows(B), method=method, confidence=0.9)
    for p, q in ((Counts(A * 1.0), Counts(B * 1.0)), (Counts(A), rows(B)), (rows(A), Counts(B))):
        found = kl_estimate(p, q, method=method, confidence=0.9)
        assert_same(found, expected)
        assert found.notes == expected.notes
        assert found.method == expected.method


@pytest.mark.parametrize("base", [None, 2])
@pytest.mark.parametrize("kind", KINDS)
def test_an_estimate_of_counts_has_the_interval_of_rows_and_the_value_of_divergence(kind, base):
    base = base if kind not in ("tv", "hellinger", "chi2") else None
    counts = Counts(A.astype(float)), Counts(B.astype(float))
    found = estimate(*counts, kind=kind, base=base)
    plain = estimate(rows(A), rows(B), kind=kind, base=base)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # the divergence of proportions says nothing, as ever
        value = divergence(*counts, kind, base=base)
    assert_same(found, plain, values=False)
    torch.testing.assert_close(found.value, value, rtol=0, atol=0)
    assert (found.method, found.error, found.kind, found.base) == ("plugin", None, plain.kind, base)


def test_the_value_is_that_of_kl_divergence_and_keeps_its_gradient():
    x = torch.tensor(A[:4], dtype=torch.float64, requires_grad=True)
    found = kl_estimate(Counts(x), Counts(B[:4]))
    assert bool(found.value == kl_divergence(Counts(x), Counts(B[:4])))
    found.value.backward()
    assert bool(x.grad.isfinite().all())
    assert not found.interval[0].requires_grad


def test_labels_are_put_side_by_side():
    p, q = Counter("abracadabra" * 9), Counter("alacazam" * 20 + "brd")
    found = kl_estimate(Counts(p), Counts(q))
    assert_same(
        found, kl_estimate(*(Samples(list(x.elements()), independent=True) for x in (p, q))), values=False
    )
    assert_same(
        kl_estimate(Counts(p), Samples(list(q.elements()), independent=True), method="plugin"),
        found,
        values=False,
    )


@pytest.mark.parametrize("make", [Probs, lambda q: Logits(q.log() + 3), lambda q: LogProbs(q.log())])
def test_counts_beside_known_probabilities_have_the_interval_of_rows(make):
    q = torch.from_numpy(KNOWN)
    expected = kl_estimate(rows(A), Categorical(q))
    assert_same(kl_estimate(Counts(A), make(q)), expected, values=False)
    assert_same(kl_estimate(Counts(A), Categorical(q)), expected, values=False)
    assert_same(kl_estimate(Counts(A), OneHotCategorical(q)), expected, values=False)
    assert_same(
        estimate(make(q), Counts(A), kind="reverse_kl"), estimate(make(q), Counts(A), kind="reverse_kl")
    )
    assert estimate(make(q), Counts(A), kind="reverse_kl").n == (0, 500)
    impossible = kl_estimate(Counts(B), Probs([0.4, 0.4, 0.1, 0.1, 0.0, 0.0]))
    assert impossible.interval[0] == impossible.interval[1] == impossible.value == math.inf


@pytest.mark.sweep
@pytest.mark.parametrize("kind", ["kl", "js", "tv", "hellinger", "chi2", "renyi:0.5"])
@pytest.mark.parametrize("n", [40, 100])
def test_intervals_beside_known_probabilities_hold_by_enumeration(kind, n):
    """Every count of two classes, weighted by its probability, beside a P that is known."""
    counts = np.stack([np.arange(n + 1), n - np.arange(n + 1)], axis=1)
    for p, q in itertools.product((0.1, 0.3, 0.5), (0.2, 0.4, 0.5, 0.7)):
        known = Probs(torch.tensor([p, 1 - p], dtype=torch.float64))
        truth = divergence(known, Probs(torch.tensor([q, 1 - q], dtype=torch.float64)), kind)
        low, high = estimate(known, Counts(counts), kind=kind).interval
        held = (low <= truth + 1e-12) & (truth <= high + 1e-12)
        assert scipy.stats.binom.pmf(np.arange(n + 1), n, q) @ held.numpy() >= 0.93


@pytest.mark.sweep
@pytest.mark.parametrize("kind", KINDS)
def test_a_batch_has_an_interval_for_each_row(kind):
    a, b = RNG.multinomial([400, 90, 7], P), B
    for q in (Counts(b), Probs(torch.from_numpy(KNOWN))):
        found = estimate(Counts(a), q, kind=kind)
        assert found.value.shape == found.interval[0].shape == found.standard_error.shape == (3,)
        for i, row in enumerate(a):
            one = estimate(Counts(row), q, kind=kind)
            assert int(found.n[0][i]) == one.n[0] == row.sum()
            torch.testing.assert_close(found.value[i], one.value)
            if one.interval is None:
                assert float(found.interval[0][i]) == 0
            else:
                torch.testing.assert_close([end[i] for end in found.interval], list(one.interval))
            if one.standard_error is not None:
                torch.testing.assert_close(found.standard_error[i], one.standard_error)


def test_a_batch_says_how_many_rows_a_note_is_about():
    a = np.array([[40, 30, 0], [20, 5, 30], [9, 0, 0]])
    found = kl_estimate(Counts(a), Counts([50, 50, 0]))
    assert found.interval[1].isinf().tolist() == [False, True, True]
    assert any(note.startswith("1 of 3 rows: no interval") for note in found.notes)
    assert any(note.startswith("1 of 3 rows: Q has no draw of a category") for note in found.notes)
    assert kl_estimate(Counts(a[:2]), Counts([50, 50, 0])).n[1] == 100


@pytest.mark.parametrize(
    ("p", "q"),
    [
        (Counts(A, prior=0.5), Counts(B)),
        (Counts(A), Counts(B, prior=1.0)),
        (Counts(A / 7), Counts(B)),
        (Counts(A), Counts(KNOWN)),
    ],
)
def test_weights_and_priors_have_no_interval_and_a_note_says_so(p, q):
    found = kl_estimate(p, q)
    torch.testing.assert_close(found.value, kl_divergence(p, q))
    assert found.interval is found.n is found.standard_error is None
    assert found.method == "summation"
    assert "no interval" in found.notes[0]
    with refused(
        ArgumentValueError, wanted="whole numbers without a prior", instead=r"kl_divergence\(p, q\)"
    ):
        coverage_adjusted(p, q)


def test_counts_with_a_prior_beside_draws_are_known_probabilities():
    q = Counts(B, prior=0.5)
    weights = q.weights().double()
    assert_same(kl_estimate(rows(A), q), kl_estimate(rows(A), Categorical(weights / weights.sum())))


def test_counts_beside_draws_are_no_longer_taken_as_known():
    few = kl_estimate(rows(A), Counts(B // 10))
    assert few.interval[1] - few.interval[0] > 2 * (
        kl_estimate(rows(A), Counts(B)).interval[1] - kl_estimate(rows(A), Counts(B)).interval[0]
    )


def test_the_test_of_counts_is_that_of_rows():
    for a, b in ((A, B), (A, RNG.multinomial(200, P))):
        seeded = [torch.Generator().manual_seed(3) for _ in range(3)]
        expected = two_sample_test(rows(a), rows(b), generator=seeded[0])
        for p, q, generator in ((Counts(a), Counts(b), seeded[1]), (Counts(a), rows(b), seeded[2])):
            found = two_sample_test(p, q, generator=generator)
            assert (found.p_value, found.method) == (expected.p_value, expected.method)
            assert found.statistic == pytest.approx(expected.statistic, rel=1e-12)
            assert_same(found.effect, expected.effect)


def test_the_test_of_many_counts_takes_no_row_for_each():
    assert two_sample_test(Counts(A * 100_000), Counts(A * 200_000), permutations=99).p_value == 1
    with refused(ArgumentValueError, wanted=r"fewer than 1,000,000,000 draws"):
        two_sample_test(Counts(A * 1_000_000), Counts(A * 1_000_000))
    with refused(ArgumentValueError, wanted="one row of counts on each side", instead=r"Counts\(p\[i\]\)"):
        two_sample_test(Counts(np.stack([A, A])), Counts(B))
    with refused(ArgumentValueError, wanted="whole numbers"):
        two_sample_test(Counts(A / 7), Counts(B))


def test_exchanged_sides_keep_their_names_and_numbers():
    there, back = estimate(rows(A), rows(B), kind="reverse_kl"), kl_estimate(rows(B), rows(A))
    assert there.n == (500, 300)
    assert there.interval == back.interval
    found = estimate(Counts([50, 50, 0]), Counts([40, 30, 30]), kind="reverse_kl")
    assert "of Q's samples are in categories where P has no samples" in " ".join(found.notes)


def test_a_kind_that_is_kl_for_its_settings_has_the_interval_of_kl():
    for same in (Alpha(1.0), Renyi(1.0), SkewKL(0.0), JensenShannon(0.0, scaled=True)):
        assert_same(bias_corrected(rows(A), rows(B), same), bias_corrected(rows(A), rows(B), KL()))


def test_kinds_of_ones_own_and_of_unseen_probabilities_are_refused():
    class Own(Divergence):
        """A kind of a user's: twice KL."""

        def terms(self, pair):
            return 2 * KL().terms(pair)

    for kind in (Own(), FDivergence(lambda ratio: (ratio - 1) ** 2), "renyi:0", "renyi:inf"):
        for call in (bias_corrected, lambda p, q, kind: estimate(p, q, kind=kind)):
            for sides in ((rows(A), rows(B)), (Counts(A), Counts(B))):
                with refused(NoRuleError, wanted="draws determine"):
                    call(*sides, kind)
        with refused(NoRuleError, wanted="draws determine"):  # and not a remedy that is refused in turn
            estimate(Samples(torch.linspace(-2, 2, 100)), Normal(0.0, 1.0), kind=kind)
    assert estimate(Counts(A), Probs(torch.from_numpy(KNOWN).float()), kind="renyi:2").interval[1].isfinite()
