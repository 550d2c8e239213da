"""Lower bounds from a critic: exact values, gradients, huge critics, and what training and judging one gives."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, strategies as st
from torch.distributions import Normal

from kullback import Samples
from kullback.errors import ArgumentTypeError, ArgumentValueError
from kullback.estimators import plugin
from kullback.estimators.variational import variational_bound, variational_estimate
from tests.refusals import refused

BOUNDS = ("donsker_varadhan", "nwj")
P = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64)
Q = torch.tensor([0.2, 0.3, 0.5], dtype=torch.float64)
STATES = torch.tensor([0.0, 1.0, 2.0], dtype=torch.float64)
EXACT = float((P * (P / Q).log()).sum())


def population():
    """All states with their probabilities as weights: means over these draws are expectations, exactly."""
    return Samples(STATES, weights=P), Samples(STATES, weights=Q)


def table(values):
    return lambda z: values[z[:, 0].long()]


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def shifted_gaussians(n, seed=0):
    """N(0, 1) and N(1, 1), whose KL is 0.5 with log p / q = 0.5 - z."""
    draws = seeded(seed)
    x = torch.randn(n, generator=draws, dtype=torch.float64)
    return Samples(x), Samples(torch.randn(n, generator=draws, dtype=torch.float64) + 1)


@pytest.mark.parametrize("bound", BOUNDS)
def test_the_log_ratio_reaches_kl(bound):
    assert float(variational_bound(*population(), table((P / Q).log()), bound=bound)) == pytest.approx(EXACT)


def test_donsker_varadhan_forgives_a_constant_and_nwj_does_not():
    shifted = table((P / Q).log() + 3)
    assert float(variational_bound(*population(), shifted)) == pytest.approx(EXACT)
    expected = EXACT + 3 - math.exp(3) + 1
    assert float(variational_bound(*population(), shifted, bound="nwj")) == pytest.approx(expected)


@given(st.lists(st.floats(-50, 50), min_size=3, max_size=3))
def test_every_critic_is_below_kl_and_nwj_below_donsker_varadhan(values):
    critic = table(torch.tensor(values, dtype=torch.float64))
    dv, nwj = (float(variational_bound(*population(), critic, bound=bound)) for bound in BOUNDS)
    assert dv <= EXACT + 1e-12
    assert nwj <= dv + 1e-9 * abs(dv)


@pytest.mark.parametrize("bound", BOUNDS)
def test_a_fixed_critic_is_below_kl_on_average(bound):
    """NWJ's mean over draws is exact; that of Donsker and Varadhan's is a little above, as m is finite."""
    values = [
        float(variational_bound(*shifted_gaussians(500, seed), lambda z: 0.5 - z, bound=bound))
        for seed in range(300)
    ]
    deviation = torch.tensor(values).std().item() / math.sqrt(300)
    # Var_Q(p / q) / 2 m, as E_Q[p / q] = 1
    expected = 0.5 + ((math.e - 1) / 1000 if bound == "donsker_varadhan" else 0)
    assert sum(values) / 300 == pytest.approx(expected, abs=4 * deviation)


@pytest.mark.parametrize("bound", BOUNDS)
def test_the_gradient_is_that_of_finite_differences(bound):
    p, q = shifted_gaussians(20)

    def of(derivative, curve):
        return variational_bound(p, q, lambda z: derivative * z[:, 0] + curve * z[:, 0] ** 2, bound=bound)

    at = [torch.tensor(a, dtype=torch.float64, requires_grad=True) for a in (0.3, -0.2)]
    assert torch.autograd.gradcheck(of, at)
    assert torch.autograd.gradgradcheck(of, at)


@pytest.mark.parametrize("bound", BOUNDS)
def test_the_gradient_vanishes_at_the_log_ratio_alone(bound):
    critic = (P / Q).log().requires_grad_()
    variational_bound(*population(), table(critic), bound=bound).backward()
    torch.testing.assert_close(critic.grad, torch.zeros_like(P), atol=1e-12, rtol=0)
    other = torch.zeros(3, dtype=torch.float64, requires_grad=True)
    variational_bound(*population(), table(other), bound=bound).backward()
    torch.testing.assert_close(other.grad, P - Q)  # towards more where P has more


def test_gradients_flow_to_the_draws():
    x, y = torch.randn(5, 2, requires_grad=True), torch.randn(6, 2, requires_grad=True)
    variational_bound(Samples(x), Samples(y), lambda z: z.square().sum(-1)).backward()
    torch.testing.assert_close(x.grad, 2 * x.detach() / 5)
    weights = y.detach().square().sum(-1).softmax(0)
    torch.testing.assert_close(y.grad, -2 * y.detach() * weights[:, None])


def test_huge_critics_stay_finite():
    critic = torch.tensor([1e4, -1e4, 1e4], dtype=torch.float64, requires_grad=True)
    value = variational_bound(*population(), table(critic))
    value.backward()
    exact = 1e4 * 0.4 - 1e4 - math.log(0.7)
    assert float(value.detach()) == pytest.approx(exact)
    assert bool(critic.grad.isfinite().all())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_summed_in_float32(dtype):
    x, y = shifted_gaussians(5000)
    critic = lambda z: 0.5 - z  # noqa: E731
    exact = variational_bound(x, y, critic)
    half = variational_bound(Samples(x.tensor.to(dtype)), Samples(y.tensor.to(dtype)), critic)
    assert half.dtype == torch.float32
    assert float(half) == pytest.approx(float(exact), abs=0.01)


@pytest.mark.parametrize("bound", BOUNDS)
def test_training_a_network_raises_the_bound_to_kl(bound):
    torch.manual_seed(0)
    network = torch.nn.Sequential(torch.nn.Linear(1, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1)).double()
    optimizer = torch.optim.Adam(network.parameters(), lr=0.02)
    p, q = shifted_gaussians(4000)
    before = float(variational_bound(p, q, network, bound=bound).detach())
    for _ in range(150):
        optimizer.zero_grad()
        (-variational_bound(p, q, network, bound=bound)).backward()
        optimizer.step()
    judged = variational_estimate(*shifted_gaussians(20_000, seed=1), network, bound=bound)
    assert before < 0.2
    assert float(judged.value) == pytest.approx(0.5, abs=0.05)
    assert float(judged.interval[0]) < 0.5


@pytest.mark.sweep
@pytest.mark.parametrize("bound", BOUNDS)
def test_the_standard_error_is_the_deviation_over_repetitions(bound):
    found = [
        variational_estimate(*shifted_gaussians(1000, seed), lambda z: 0.3 - 0.6 * z, bound=bound)
        for seed in range(300)
    ]
    values = torch.stack([each.value for each in found])
    assert float(torch.stack([each.standard_error for each in found]).mean()) == pytest.approx(
        float(values.std()), rel=0.12
    )


@pytest.mark.sweep
@pytest.mark.parametrize("bound", BOUNDS)
def test_the_lower_end_is_below_kl_as_often_as_it_says(bound):
    """With the best critic, where the bound is tight."""
    lows = torch.stack(
        [
            variational_estimate(*shifted_gaussians(1000, seed), lambda z: 0.5 - z, bound=bound).interval[0]
            for seed in range(500)
        ]
    )
    # Either mean has half of the error probability, so that it holds more often than 95 %; it is no idle 0 for that.
    assert float((lows < 0.5).double().mean()) >= 0.95
    assert float(lows.median()) > 0.3


def test_the_estimate_is_the_bound():
    p, q = shifted_gaussians(100)
    for bound in BOUNDS:
        estimate = variational_estimate(p, q, torch.sin, bound=bound)
        assert float(estimate.value) == pytest.approx(float(variational_bound(p, q, torch.sin, bound=bound)))
        assert estimate.method == bound
        assert estimate.n == (100, 100)
        assert any("lower bound" in note for note in estimate.notes)


def test_the_estimate_has_no_gradient():
    network = torch.nn.Linear(1, 1).double()
    assert not variational_estimate(*shifted_gaussians(50), network).value.requires_grad


def test_where_few_draws_hold_the_mean_the_interval_proves_nothing_and_a_note_says_so():
    estimate = variational_estimate(*shifted_gaussians(1000), lambda z: -20 * z)
    assert tuple(map(float, estimate.interval)) == (0.0, math.inf)
    assert any("effective draws of Q, too few" in note for note in estimate.notes)


def test_few_draws_of_q_give_no_interval():
    p, q = shifted_gaussians(1000)
    few = Samples(q.tensor[:20])
    estimate = variational_estimate(p, few, lambda z: 0.5 - z)
    assert estimate.interval is None
    assert any("no interval" in note for note in estimate.notes)


def test_weights_are_those_of_importance():
    """Draws of N(0.5, 1) weighted to N(0, 1)."""
    proposal, target = Normal(0.5, 1.0), Normal(0.0, 1.0)
    x = torch.randn(20_000, generator=seeded(), dtype=torch.float64) + 0.5
    weights = (target.log_prob(x) - proposal.log_prob(x)).exp()
    _, q = shifted_gaussians(20_000)
    estimate = variational_estimate(Samples(x, weights=weights), q, lambda z: 0.5 - z)
    assert float(estimate.value) == pytest.approx(0.5, abs=4 * float(estimate.standard_error))
    assert float(estimate.standard_error) < 0.03


def test_a_draw_of_no_weight_is_of_no_account():
    p, q = Samples([0.0, 1.0, 99.0], weights=[1, 1, 0]), Samples([0.0, 2.0, 99.0], weights=[1, 1, 0])
    critic = lambda z: torch.where(z > 50, -torch.inf, z)  # noqa: E731
    expected = variational_bound(Samples([0.0, 1.0]), Samples([0.0, 2.0]), critic)
    assert float(variational_bound(p, q, critic)) == pytest.approx(float(expected))


def test_clusters_count_once():
    p, q = shifted_gaussians(200)
    groups = torch.arange(200).repeat_interleave(10)
    copies = [side.tensor.repeat_interleave(10, 0) for side in (p, q)]
    clustered = variational_estimate(*(Samples(x, cluster=groups) for x in copies), lambda z: 0.5 - z)
    once = variational_estimate(p, q, lambda z: 0.5 - z)
    assert float(clustered.standard_error) == pytest.approx(float(once.standard_error), rel=1e-6)


@pytest.mark.parametrize(
    ("critic", "options", "words"),
    [
        (lambda z: z.sum(), {}, "one value for each draw"),
        (lambda z: z.expand(-1, 3), {}, "one value for each draw"),
        (lambda z: z * math.nan, {}, "NaN"),
        (lambda z: z + math.inf, {}, "inf"),
        (lambda z: z, {"bound": "mine"}, "donsker_varadhan"),
    ],
)
def test_what_is_no_critic_is_refused(critic, options, words):
    with refused(ArgumentValueError, says=words):
        variational_bound(*shifted_gaussians(10), critic, **options)


def test_a_critic_of_no_tensor_is_refused():
    with refused(ArgumentTypeError, wanted="returns a tensor"):
        variational_bound(*shifted_gaussians(10), lambda z: [0.0] * len(z))


def test_other_dimensions_and_single_draws_are_refused():
    p, q = Samples(torch.zeros(5, 2)), Samples(torch.zeros(5, 3))
    with refused(ArgumentValueError, wanted="same number of components"):
        variational_bound(p, q, lambda z: z[:, 0])
    with refused(ArgumentValueError, wanted="at least two draws"):
        variational_estimate(Samples([0.5]), Samples([0.5, 1.0]), lambda z: z)
    with refused(ArgumentValueError, wanted="between 0 and 1"):
        variational_estimate(Samples([0.5, 2.0]), Samples([0.5, 1.0]), lambda z: z, confidence=1)


def test_text_is_refused_as_its_codes_may_differ_between_p_and_q():
    p, q = Samples(["a", "b", "b"]), Samples(["b", "c", "c"])
    for call in (variational_bound, variational_estimate):
        with refused(ArgumentTypeError, got="text such as 'a'", instead=r"plugin\(p, q\)"):
            call(p, q, lambda z: z[:, 0])
    assert math.isfinite(plugin(Samples(["a", "b"]), Samples(["b", "a"])).value)
