"""KL from draws at which both log-densities are known: its variate, its interval, importance weights, bad input."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch.distributions import (
    Categorical,
    Cauchy,
    Independent,
    MixtureSameFamily,
    MultivariateNormal,
    Normal,
    Uniform,
)

from kullback import Samples
from kullback.common.control_variate import coefficient, ratio_minus_one, tail_index
from kullback.errors import ArgumentValueError
from kullback.estimators.importance import log_ratio
from tests.refusals import refused


def double(value):
    return torch.tensor(value, dtype=torch.float64)


P, Q = Normal(double(0.0), double(1.0)), Normal(double(1.0), double(1.5))
TRUTH = math.log(1.5) + 2 / 4.5 - 0.5


def draws(n, seed=0, of=P):
    torch.manual_seed(seed)
    return of.sample((n,))


def covers(estimate, truth):
    return float(estimate.interval[0]) <= truth <= float(estimate.interval[1])


def coverage(p, q, truth, n, repetitions, proposal=None):
    hits, errors, values = 0, [], []
    for seed in range(repetitions):
        x = Samples(draws(n, seed, proposal or p))
        log_r = None if proposal is None else proposal.log_prob
        estimate = log_ratio(x, p.log_prob, q.log_prob, log_r=log_r)
        hits += covers(estimate, truth)
        errors.append(float(estimate.standard_error))
        values.append(float(estimate.value))
    return hits / repetitions, float(np.std(values)), float(np.mean(errors)), float(np.mean(values))


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("p", "q", "truth", "proposal"),
    [
        (P, Q, TRUTH, None),
        (
            P,
            Normal(double(1.0), double(0.9)),
            (1 + 1) / 1.62 - 0.5 + math.log(0.9),
            None,
        ),  # q / p has a heavy tail
        (Cauchy(double(0.0), double(1.0)), Cauchy(double(1.0), double(1.0)), math.log(5 / 4), None),
        (P, Q, TRUTH, Normal(double(0.0), double(1.3))),
    ],
)
def test_the_interval_covers_as_often_as_it_says(p, q, truth, proposal):
    covered, deviation, error, mean = coverage(p, q, truth, 1000, 500, proposal)
    assert 0.92 <= covered <= 0.98
    assert error == pytest.approx(deviation, rel=0.12)
    assert mean == pytest.approx(truth, abs=4 * deviation / math.sqrt(500))


def test_nearly_equal_distributions_are_told_apart_by_a_hundredth_of_the_plain_noise():
    q = Normal(double(0.01), double(1.0))
    x = draws(1000)
    estimate = log_ratio(Samples(x), P.log_prob, q.log_prob)
    plain = float((P.log_prob(x) - q.log_prob(x)).std()) / math.sqrt(1000)
    assert float(estimate.value) == pytest.approx(5e-5, rel=0.2)
    assert float(estimate.standard_error) < plain / 50


def test_equal_distributions_are_exactly_equal():
    estimate = log_ratio(Samples(draws(100)), P.log_prob, P.log_prob)
    assert float(estimate.value) == float(estimate.standard_error) == 0


@pytest.mark.sweep
def test_it_is_never_negative():
    q = Normal(double(0.3), double(1.0))
    values = [float(log_ratio(Samples(draws(5, seed)), P.log_prob, q.log_prob).value) for seed in range(500)]
    assert min(values) >= 0


def test_numbers_serve_as_well_as_functions():
    x = draws(50)
    by_number = log_ratio(Samples(x), P.log_prob(x), Q.log_prob(x))
    by_function = log_ratio(Samples(x), P.log_prob, Q.log_prob)
    by_list = log_ratio(Samples(x), P.log_prob(x).tolist(), Q.log_prob(x).numpy())
    assert torch.equal(by_number.value, by_function.value)
    assert torch.equal(by_number.value, by_list.value)
    assert by_number.method == "log_ratio"
    assert by_number.n == (50, 0)


def test_vectors_and_categories():
    p = MultivariateNormal(torch.zeros(3, dtype=torch.float64), torch.eye(3, dtype=torch.float64))
    q = Independent(Normal(torch.ones(3, dtype=torch.float64), double(1.0)), 1)
    assert covers(log_ratio(Samples(draws(2000, of=p)), p.log_prob, q.log_prob), 1.5)
    a, b = double([0.5, 0.3, 0.2]), double([0.2, 0.3, 0.5])
    x = draws(2000, of=Categorical(a))
    estimate = log_ratio(Samples(x), a.log()[x], b.log()[x])
    assert covers(estimate, float((a * (a / b).log()).sum()))


def test_importance_weights_by_density_and_by_number_agree():
    proposal = Normal(double(0.5), double(1.3))
    x = draws(3000, of=proposal)
    weights = (P.log_prob(x) - proposal.log_prob(x)).exp()
    by_density = log_ratio(Samples(x), P.log_prob, Q.log_prob, log_r=proposal.log_prob)
    by_number = log_ratio(Samples(x, weights=1000 * weights), P.log_prob, Q.log_prob)
    torch.testing.assert_close(by_density.value, by_number.value)
    assert covers(by_density, TRUTH)
    effective = float(weights.sum() ** 2 / (weights**2).sum())
    assert by_density.notes == (f"The weights leave {effective:.4g} of 3000 draws effective.",)


def test_no_interval_where_few_draws_hold_the_weight():
    proposal = Normal(double(6.0), double(1.0))
    estimate = log_ratio(Samples(draws(200, of=proposal)), P.log_prob, Q.log_prob, log_r=proposal.log_prob)
    assert estimate.interval is None
    assert any("no interval" in note for note in estimate.notes)


def test_clusters_count_once():
    x = draws(300)
    groups = torch.arange(300).repeat_interleave(10)
    clustered = log_ratio(Samples(x.repeat_interleave(10), cluster=groups), P.log_prob, Q.log_prob)
    once = log_ratio(Samples(x), P.log_prob, Q.log_prob)
    torch.testing.assert_close(clustered.value, once.value)
    assert float(clustered.standard_error) == pytest.approx(float(once.standard_error), rel=1e-3)


def test_a_draw_that_q_cannot_give_makes_it_infinite():
    estimate = log_ratio(
        Samples(draws(50)), P.log_prob, lambda x: torch.where(x > 0, Q.log_prob(x), -torch.inf)
    )
    assert float(estimate.value) == math.inf
    assert "infinite" in estimate.notes[0]


def test_a_q_with_mass_elsewhere_gets_no_variate():
    """Here E_P[q / p] is 1 / 2, so q / p - 1 would shift the value."""
    p, q = Uniform(double(0.0), double(1.0)), Uniform(double(0.0), double(2.0))
    x = draws(1000, of=p)
    tilt = Normal(double(0.0), double(1.0)).log_prob(x)
    estimate = log_ratio(Samples(x), p.log_prob(x), q.log_prob(x) + tilt - tilt)
    assert float(estimate.value) == pytest.approx(math.log(2))


def test_half_precision_log_densities():
    x = draws(1000)
    estimate = log_ratio(Samples(x), P.log_prob(x).half(), Q.log_prob(x).half())
    assert estimate.value.dtype == torch.float64
    assert covers(estimate, TRUTH)


@pytest.mark.parametrize(
    ("log_p", "log_q", "words"),
    [
        (torch.zeros(4), torch.zeros(5), "one log-density for each of the 5 draws"),
        (torch.zeros(5), torch.full((5,), math.nan), "NaN"),
        (torch.zeros(5), torch.tensor([math.inf, 0, 0, 0, 0]), "index \\(0,\\)"),
        (torch.tensor([0, 0, -math.inf, 0, 0]), torch.zeros(5), "log_r"),
    ],
)
def test_what_is_no_log_density_is_refused(log_p, log_q, words):
    with refused(ArgumentValueError, says=words):
        log_ratio(Samples(torch.zeros(5)), log_p, log_q)


def test_too_few_draws_are_refused():
    with refused(ArgumentValueError, wanted="at least 4 draws"):
        log_ratio(Samples([0.5]), P.log_prob, Q.log_prob)


def test_the_coefficient_is_minus_the_slope():
    d = P.log_prob(draws(5000)) - Q.log_prob(draws(5000))
    s = ratio_minus_one(d)
    np.testing.assert_allclose(s, Q.log_prob(draws(5000)).exp() / P.log_prob(draws(5000)).exp() - 1)
    few = d[s < 1.5], s[s < 1.5]
    slope = np.polyfit(few[1].numpy(), few[0].numpy(), 1)[0]
    centered = few[1] - few[1].mean()  # as the mean of q / p - 1 over these draws is not 0
    assert float(coefficient(few[0], centered)) == pytest.approx(-slope, rel=1e-9)


def test_weights_of_the_coefficient_are_repetitions_of_independent_draws():
    d = torch.stack([P.log_prob(draws(400)) - Normal(double(0.5), double(1.1)).log_prob(draws(400))] * 2, 1)
    equal = coefficient(d, ratio_minus_one(d))
    torch.testing.assert_close(
        coefficient(d, ratio_minus_one(d), torch.full((400,), 7.0, dtype=d.dtype)), equal
    )
    doubled = torch.ones(400, dtype=d.dtype)
    doubled[:200] = 0
    torch.testing.assert_close(
        coefficient(d, ratio_minus_one(d), doubled),
        coefficient(d[200:], ratio_minus_one(d)[200:]),
        rtol=1e-6,
        atol=0,
    )


def test_the_tail_index_of_a_power_law():
    uniform = torch.linspace(1e-4, 1, 10_000, dtype=torch.float64)
    assert float(tail_index(uniform**-0.7 - 1)) == pytest.approx(0.7, abs=0.06)


def rarely_elsewhere(share, mean=0.0):
    return MixtureSameFamily(
        Categorical(double([1 - share, share])), Normal(double([mean, 6.0]), double([1.0, 0.3]))
    )


@pytest.mark.sweep
@pytest.mark.parametrize(("mean", "truth"), [(0.0, 0.1318), (0.01, 0.1319)])
def test_draws_that_contradict_themselves_have_no_upper_end(mean, truth):
    """Without a rare draw of P, log p / q is log 0.99 everywhere or nearly so: KL cannot be below 0."""
    p, q = rarely_elsewhere(0.01, mean), Normal(double(0.0), double(1.0))
    found = [log_ratio(Samples(draws(100, seed, p)), p.log_prob, q.log_prob) for seed in range(100)]
    assert sum(covers(estimate, truth) for estimate in found) >= 97
    missed = [estimate for estimate in found if float(estimate.value) == 0]
    assert len(missed) > 20
    assert all(float(estimate.interval[1]) == math.inf for estimate in missed)
    assert all(any("The draws miss" in note for note in each.notes) for each in missed)


def test_a_mean_of_ratios_above_one_has_no_upper_end():
    """Its own upper end is above 0, but q / p has the mean 1.05 and hardly varies."""
    x = draws(1000)
    wave = 0.1 * torch.sign(x)
    estimate = log_ratio(Samples(x), wave - 0.04, torch.zeros_like(x))
    assert any("mean of q / p" in note or "below 0" in note for note in estimate.notes)
    assert float(estimate.interval[1]) == math.inf


def test_rounding_is_no_contradiction():
    """Log-densities of single precision, of which chance rounds some down."""
    p = Normal(0.0, 1.0)
    for seed in range(20):
        x = draws(50, seed, p)
        estimate = log_ratio(Samples(x), p.log_prob(x) - 1e-7, p.log_prob(x))
        assert not any("miss" in note for note in estimate.notes)


@pytest.mark.sweep
@pytest.mark.parametrize("q", [Q, Normal(double(0.05), double(1.0))])
def test_ordinary_draws_keep_their_upper_end(q):
    found = [log_ratio(Samples(draws(100, seed)), P.log_prob, q.log_prob) for seed in range(100)]
    assert sum(float(estimate.interval[1]) == math.inf for estimate in found) <= 3
