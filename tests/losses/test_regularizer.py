"""KL to a prior as a term of a loss, against formulas written out here."""

from __future__ import annotations

import copy
import math

import mpmath
import pytest
import torch
from torch import Tensor
from torch.distributions import (
    Bernoulli,
    Categorical,
    Independent,
    Laplace,
    LowRankMultivariateNormal,
    MixtureSameFamily,
    MultivariateNormal,
    Normal,
    OneHotCategorical,
)
from torch.torch_version import TorchVersion

from kullback import nn, policy
from kullback.errors import ArgumentTypeError, ArgumentValueError, NoRuleError
from kullback.nn import (
    AdaptiveKLController,
    CyclicalSchedule,
    KLRegularizer,
    LinearSchedule,
    PIDKLController,
    active_units,
    kl_per_dimension,
)
from kullback.pairs.torch_registry import forget_plans
from tests.refusals import refused

LOC = torch.tensor([[1.0, 0.1, 0.0], [-2.0, 0.0, 0.0]], dtype=torch.float64)
SCALE = torch.tensor([[0.5, 1.0, 1.0], [1.5, 0.9, 1.0]], dtype=torch.float64)


def normal_kl(m: Tensor, s: Tensor, n: Tensor | float = 0.0, t: Tensor | float = 1.0) -> Tensor:
    """KL(N(m, s²) ‖ N(n, t²)) by mpmath at 50 digits, element by element."""
    shape = torch.broadcast_tensors(m, s)[0].shape

    def one(m: float, s: float, n: float, t: float) -> float:
        with mpmath.workdps(50):
            m, s, n, t = map(mpmath.mpf, (m, s, n, t))
            return float(mpmath.log(t / s) + (s**2 + (m - n) ** 2) / (2 * t**2) - mpmath.mpf(1) / 2)

    sides = [torch.as_tensor(x, dtype=torch.float64).expand(shape).flatten().tolist() for x in (m, s, n, t)]
    return torch.tensor([one(*each) for each in zip(*sides, strict=True)], dtype=torch.float64).reshape(shape)


TRUTH = normal_kl(LOC, SCALE)


def close(found: Tensor, wanted: Tensor | float, rtol: float = 1e-12) -> None:
    wanted = torch.as_tensor(wanted, dtype=found.dtype)
    torch.testing.assert_close(found, wanted, rtol=rtol, atol=1e-15, equal_nan=True)


def posterior() -> tuple[Normal, tuple[Tensor, Tensor]]:
    leaves = LOC.clone().requires_grad_(), SCALE.clone().requires_grad_()
    return Normal(*leaves), leaves


# ---- Values and gradients.


def test_the_plain_term_is_the_mean_over_examples_of_the_sum_over_dimensions():
    close(KLRegularizer(coefficient=0.25)(Normal(LOC, SCALE)), 0.25 * TRUTH.sum(-1).mean(), rtol=1e-7)


def test_gradient_is_the_derivative_of_the_closed_form():
    p, (loc, scale) = posterior()
    KLRegularizer()(p).backward()
    close(loc.grad, LOC / 2)
    close(scale.grad, (SCALE - 1 / SCALE) / 2)


@pytest.mark.parametrize("prior", [None, Normal(0.0, 1.0)], ids=["default", "given"])
def test_independent_distributions_are_taken_apart(prior):
    if prior is not None:
        prior = Independent(Normal(torch.zeros(3).double(), torch.ones(3).double()), 1)
    close(kl_per_dimension(Independent(Normal(LOC, SCALE), 1), prior), TRUTH.mean(0))


def test_a_learned_prior_gets_its_gradient():
    loc = torch.tensor([0.3, 0.0, 0.0], dtype=torch.float64, requires_grad=True)
    KLRegularizer()(Normal(LOC, SCALE), Normal(loc, 2.0)).backward()
    close(loc.grad, -(LOC - loc.detach()).mean(0) / 4)


def test_free_nats_of_each_dimension_hold_a_group_at_their_value_without_gradient():
    p, (loc, _) = posterior()
    assert TRUTH.mean(0)[0] > 0.1 > TRUTH.mean(0)[1]
    value = KLRegularizer(free_nats=0.1)(p)
    close(value, TRUTH.mean(0)[0] + 0.2)
    value.backward()
    assert (loc.grad[:, 1:] == 0).all()
    close(loc.grad[:, 0], LOC[:, 0] / 2)


@pytest.mark.parametrize("free", [0.0, 0.1, 1.0, 10.0])
def test_free_nats_of_each_example(free):
    value = KLRegularizer(free_nats=free, per_example=True)(Normal(LOC, SCALE))
    close(value, TRUTH.clamp(min=free).sum(-1).mean())


@pytest.mark.parametrize(
    ("group_dims", "summed"), [(None, ()), (0, (2, 3)), ((0,), (2, 3)), ((0, 2), (2,)), ((), (1, 2, 3))]
)
def test_groups_of_a_posterior_with_channels(group_dims, summed):
    loc = torch.randn(5, 3, 2, 2, dtype=torch.float64) * torch.tensor([0.1, 0.5, 2.0])[:, None, None]
    each = loc**2 / 2
    groups = (each.sum(summed) if summed else each).mean(0)
    free = groups.median().item()
    value = KLRegularizer(free_nats=free, group_dims=group_dims)(Normal(loc, torch.ones_like(loc)))
    close(value, groups.clamp(min=free).sum())


@pytest.mark.parametrize(("capacity", "sign"), [(0.0, 1.0), (0.5, 1.0), (100.0, -1.0)])
def test_capacity_pulls_the_kl_from_either_side(capacity, sign):
    p, (loc, _) = posterior()
    value = KLRegularizer(coefficient=3.0, capacity=capacity)(p)
    close(value, 3 * abs(TRUTH.sum(-1).mean().item() - capacity))
    value.backward()
    close(loc.grad, sign * 3 * LOC / 2)


def test_at_the_capacity_there_is_no_pull():
    loc = torch.ones(4, 1, requires_grad=True)
    value = KLRegularizer(capacity=0.5)(Normal(loc, torch.ones_like(loc)))
    value.backward()
    assert value == 0
    assert (loc.grad == 0).all()


def test_balance_weighs_the_gradients_of_the_two_sides():
    p, (loc, _) = posterior()
    prior_loc = torch.zeros(3, dtype=torch.float64, requires_grad=True)
    value = KLRegularizer(balance=(0.8, 0.2))(p, Normal(prior_loc, 1.0))
    close(value, TRUTH.sum(-1).mean())
    value.backward()
    close(loc.grad, 0.2 * LOC / 2)
    close(prior_loc.grad, -0.8 * LOC.mean(0))


def test_balance_of_one_side_leaves_the_other_alone():
    p, (loc, _) = posterior()
    prior_loc = torch.zeros(3, dtype=torch.float64, requires_grad=True)
    KLRegularizer(balance=(0.0, 1.0), free_nats=0.05)(p, Normal(prior_loc, 1.0)).backward()
    assert (prior_loc.grad == 0).all()
    close(loc.grad[:, 0], LOC[:, 0] / 2)


def test_a_policy_with_padding():
    logits, reference = torch.randn(2, 4, 5, 7, dtype=torch.float64)
    mask = torch.tensor([[1, 1, 1, 0, 0], [1, 1, 0, 0, 0], [1, 1, 1, 1, 1], [0, 0, 0, 0, 0]]).bool()
    logits[~mask] = -torch.inf  # whatever stands in the padding: a policy that allows nothing
    logits[~mask, 0] = 0
    reference[~mask, 0] = -torch.inf  # so that the KL there is infinite
    logits.requires_grad_()
    value = KLRegularizer(batch_dims=2)(Categorical(logits=logits), Categorical(logits=reference), mask=mask)
    log_p, log_q = logits.detach().log_softmax(-1), reference.log_softmax(-1)
    kl = (log_p.exp() * (log_p - log_q))[mask].sum(-1)
    close(value, kl.mean(), rtol=1e-10)
    value.backward()
    assert logits.grad.isfinite().all()
    assert (logits.grad[~mask] == 0).all()
    assert (logits.grad[mask] != 0).any()


def test_weights_are_those_of_the_examples():
    weight = torch.tensor([3.0, 1.0])
    expected = (0.75 * TRUTH[0] + 0.25 * TRUTH[1]).double()
    close(kl_per_dimension(Normal(LOC, SCALE), weight=weight), expected)
    close(kl_per_dimension(Normal(LOC, SCALE), mask=torch.tensor([False, True])), TRUTH[1].double())
    close(KLRegularizer()(Normal(LOC, SCALE), weight=weight), expected.sum())


@pytest.mark.parametrize(
    "options", [{}, {"free_nats": 1.0}, {"free_nats": 1.0, "per_example": True}, {"capacity": 2.0}]
)
@pytest.mark.parametrize("empty", [True, False], ids=["no example", "all masked"])
@pytest.mark.filterwarnings("ignore:.*the mask is False everywhere")
def test_where_no_example_counts_the_term_and_its_gradient_are_0(options, empty):
    loc = torch.ones(0 if empty else 3, 2, requires_grad=True)
    regularizer = KLRegularizer(**options)
    mask = None if empty else torch.zeros(3, dtype=torch.bool)
    value = regularizer(Normal(loc, torch.ones_like(loc)), mask=mask)
    value.backward()
    assert value == 0
    assert (loc.grad == 0).all()
    regularizer.step()
    assert regularizer.kl.isnan()


@pytest.mark.parametrize(
    "options", [{}, {"free_nats": 0.5}, {"free_nats": 0.5, "per_example": True}, {"balance": (0.5, 0.5)}]
)
def test_equal_distributions_have_no_gradient(options):
    loc = torch.zeros(3, 2, requires_grad=True)
    log_scale = torch.zeros(3, 2, requires_grad=True)
    value = KLRegularizer(**options)(Normal(loc, log_scale.exp()))
    value.backward()
    assert value == (1.0 if "free_nats" in options else 0.0)
    assert (loc.grad == 0).all()
    assert (log_scale.grad == 0).all()


def test_an_infinite_kl_is_infinite_and_a_coefficient_of_0_silences_it():
    logits = torch.tensor([[0.0, 0.0]], requires_grad=True)
    q = Categorical(logits=torch.tensor([[0.0, -torch.inf]]))
    for options in ({}, {"free_nats": 0.5}, {"capacity": 1.0}):
        p = Categorical(logits=logits)
        assert KLRegularizer(**options)(p, q) == torch.inf
        silent = KLRegularizer(coefficient=LinearSchedule(0.0, 1.0, steps=5), **options)(p, q)
        (gradient,) = torch.autograd.grad(silent, logits)
        assert silent == 0
        assert (gradient == 0).all()


def test_nan_parameters_are_not_hidden_by_free_nats():
    p = Normal(torch.tensor([[math.nan, 0.0]]), torch.ones(1, 2), validate_args=False)
    for options in ({"free_nats": 1.0}, {"free_nats": 1.0, "per_example": True}, {"capacity": 1.0}):
        assert KLRegularizer(**options)(p).isnan()


@pytest.mark.parametrize("scale", [1e-30, 1e-3, 1e3, 1e15])
def test_tiny_and_huge_scales(scale):
    scales = torch.full((2, 1), scale)
    scales.requires_grad_()
    value = KLRegularizer()(Normal(torch.zeros(2, 1), scales))
    value.backward()
    close(value, normal_kl(torch.zeros(1), scales.detach()[0].double())[0], rtol=1e-6)
    s = float(scales.detach()[0])
    close(scales.grad, torch.full((2, 1), (s - 1 / s) / 2), rtol=1e-6)


@pytest.mark.parametrize(
    ("p", "q"),
    [
        (Bernoulli(torch.tensor([[0.2], [0.7]])), Bernoulli(0.5)),
        (Independent(OneHotCategorical(torch.tensor([[[0.2, 0.8]], [[0.5, 0.5]]])), 1),) * 2,
        (
            MultivariateNormal(torch.ones(2, 3), torch.eye(3)),
            MultivariateNormal(torch.zeros(3), torch.eye(3)),
        ),
        (Normal(torch.ones(2, 1), 1.0), Laplace(0.0, 1.0)),
    ],
    ids=["Bernoulli", "one-hot", "multivariate", "by quadrature"],
)
def test_other_families_and_broadcast_priors(p, q):
    wanted = {"Independent": 0.0, "MultivariateNormal": 1.5}
    value = KLRegularizer()(p, q)
    if type(p) is Bernoulli:
        wanted = sum(a * math.log(a / 0.5) for a in (0.2, 0.8, 0.7, 0.3)) / 2
    elif type(p) is Normal:  # E|z| of N(1, 1), and the entropy
        mean_abs = math.sqrt(2 / math.pi) * math.exp(-0.5) + math.erf(1 / math.sqrt(2))
        wanted = math.log(2) + mean_abs - 0.5 * math.log(2 * math.pi * math.e)
    else:
        wanted = wanted[type(p).__name__]
    close(value, wanted, rtol=1e-6)


# ---- Weights of a Bayesian layer, priors without an exact rule, and the standard normal prior.


def test_the_weights_of_a_layer_are_one_example():
    weight = Normal(LOC, SCALE)
    close(KLRegularizer(batch_dims=0)(weight), TRUTH.sum())
    close(KLRegularizer()(weight), TRUTH.sum() / 2)  # the default: the first dimension has examples


def test_a_distribution_without_batch_shape_is_never_averaged():
    covariance = torch.diag_embed(SCALE**2)
    whole = (
        Independent(Normal(LOC, SCALE), 2),
        Independent(Independent(Normal(LOC, SCALE), 1), 1),
        Independent(MultivariateNormal(LOC, covariance), 1),
    )
    for posterior in whole:
        for batch_dims in (0, 1, 2):
            close(KLRegularizer(batch_dims=batch_dims)(posterior), TRUTH.sum())
    close(kl_per_dimension(whole[0]), TRUTH)
    close(KLRegularizer()(whole[0], Independent(Normal(torch.zeros(2, 3).double(), 1.0), 2)), TRUTH.sum())
    close(KLRegularizer()(MultivariateNormal(LOC[0], covariance[0])), TRUTH[0].sum())


def test_a_multivariate_posterior_has_a_standard_normal_prior():
    full = MultivariateNormal(LOC, torch.diag_embed(SCALE**2))
    low_rank = LowRankMultivariateNormal(LOC, torch.zeros(2, 3, 1).double(), SCALE**2)
    for posterior in (full, low_rank):
        close(KLRegularizer()(posterior), TRUTH.sum(-1).mean())
        close(kl_per_dimension(posterior), TRUTH.sum(-1).mean())
    with refused(
        ArgumentValueError,
        wanted="a prior for a posterior of type Laplace",
        instead=r"regularizer\(posterior, p",
    ):
        KLRegularizer()(Laplace(LOC, SCALE))


def mixture_prior() -> MixtureSameFamily:
    """A mixture of one component twice, which is N(0, 4), so that KL has a closed form."""
    parts = Independent(Normal(torch.zeros(2, 3).double(), 2.0), 1)
    return MixtureSameFamily(Categorical(torch.ones(2).double()), parts)


def test_a_mixture_prior_takes_random_draws():
    posterior, prior = Independent(Normal(LOC, SCALE), 1), mixture_prior()
    true = normal_kl(LOC, SCALE, 0.0, 2.0).sum(-1).mean()
    with refused(NoRuleError, instead=r"kl_bounds\(posterior, prior\).*method='monte_carlo'"):
        KLRegularizer()(posterior, prior)
    for call in (
        KLRegularizer(method="monte_carlo", draws=2000, generator=torch.Generator().manual_seed(0)),
        lambda p, q: kl_per_dimension(
            p, q, method="monte_carlo", draws=2000, generator=torch.Generator().manual_seed(0)
        ),
    ):
        close(call(posterior, prior), true, rtol=0.02)
    first, second = (
        KLRegularizer(method="monte_carlo", generator=torch.Generator().manual_seed(3))(posterior, prior)
        for _ in range(2)
    )
    assert torch.equal(first, second)
    free = KLRegularizer(method="monte_carlo", free_nats=50.0)(posterior, prior)
    close(free, 50.0)


def test_gradients_from_random_draws_are_those_of_the_closed_form():
    loc = LOC.clone().requires_grad_()
    regularizer = KLRegularizer(method="monte_carlo", draws=4000, generator=torch.Generator().manual_seed(0))
    regularizer(Independent(Normal(loc, SCALE), 1), mixture_prior()).backward()
    assert torch.allclose(loc.grad, LOC / 8, rtol=0.05, atol=0.005), loc.grad


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ({"method": "draws"}, "method"),
        ({"method": "nearest_neighbors"}, "method"),
        ({"draws": 3}, "draws"),
        ({"draws": 2.5}, "draws"),
        ({"generator": 0}, "generator"),
    ],
)
def test_options_of_random_draws_are_checked(option, message):
    for call in (lambda: KLRegularizer(**option), lambda: kl_per_dimension(Normal(LOC, SCALE), **option)):
        with refused((ArgumentValueError, ArgumentTypeError), argument=message):
            call()


# ---- Schedules and the adaptive coefficient.


def test_schedules_follow_the_papers():
    cyclical = CyclicalSchedule(0.1, 0.9, period=10, ramp=0.4, cycles=3)
    for t in range(60):
        tau = (t % 10) / 10
        wanted = 0.9 if t >= 30 else 0.1 + 0.8 * min(tau / 0.4, 1)
        assert cyclical(t) == pytest.approx(wanted, abs=1e-15)
        assert LinearSchedule(2.0, 1.0, steps=30)(t) == pytest.approx(2 - min(t / 30, 1), abs=1e-15)
    assert CyclicalSchedule(0.0, 1.0, period=4)(10**6 + 1) == 0.5


def test_only_step_moves_the_schedule_and_the_capacity():
    regularizer = KLRegularizer(
        coefficient=lambda step: 1.0 + step, capacity=LinearSchedule(0.0, 1.0, steps=2)
    )
    p = Normal(torch.full((1, 1), 2.0), 1.0)  # KL 2
    for step, wanted in enumerate([2.0, 2 * 1.5, 3 * 1.0, 4 * 1.0]):
        for _ in range(3):
            assert regularizer(p) == wanted
        assert int(regularizer.steps_taken) == step
        regularizer.step()


def test_the_coefficient_finds_the_value_that_holds_the_target():
    """The posterior N(m, 1) that minimizes (m - 3)² / 2 + β m² / 2 has m = 3 / (1 + β), KL m² / 2: 0.5 at β = 2."""
    regularizer = KLRegularizer(coefficient=AdaptiveKLController(0.1, target=0.5, horizon=5))
    for _ in range(600):
        m = 3 / (1 + regularizer.coefficient)
        regularizer(Normal(m.expand(2, 1), 1.0))
        regularizer.step()
    assert float(regularizer.coefficient) == pytest.approx(2.0, rel=1e-3)
    assert float(regularizer.kl) == pytest.approx(0.5, rel=1e-3)


@pytest.mark.parametrize(
    ("kl", "factor"),
    [(0.0, 0.96), (0.9, 0.98), (1.0, 1.0), (1.1, 1.02), (5.0, 1.04), (math.inf, 1.04), (math.nan, 1.0)],
)
def test_one_step_of_the_adaptive_coefficient(kl, factor):
    found = AdaptiveKLController(target=1.0, horizon=5).after(torch.tensor(2.0), torch.tensor(kl))
    close(found, 2 * factor, rtol=1e-6)


def test_an_adaptive_controller_is_not_changed_and_moves_as_its_own_update_says():
    controller, alone = (AdaptiveKLController(0.3, target=0.4, horizon=7, clip=0.5) for _ in range(2))
    regularizer = KLRegularizer(coefficient=controller)
    for scale in (0.2, 0.9, 3.0):
        regularizer(Normal(LOC, scale))
        regularizer.step()
        close(regularizer.coefficient, alone.update(regularizer.kl), rtol=1e-6)
    assert controller.coefficient == 0.3


def test_another_controller_is_a_schedule_that_the_loop_updates():
    controller = PIDKLController(0.1, target=0.5)
    with refused(
        ArgumentTypeError, instead=r"coefficient=lambda step: controller\.coefficient, and controller\.up"
    ):
        KLRegularizer(coefficient=controller)
    regularizer = KLRegularizer(coefficient=lambda step: controller.coefficient)
    for _ in range(3):
        before = controller.coefficient
        regularizer(Normal(LOC, SCALE))
        regularizer.step()
        close(regularizer.coefficient, before, rtol=1e-6)
        assert controller.update(regularizer.kl) != before


def test_the_family_is_the_same_in_nn_and_policy():
    for name in policy.__all__:
        assert getattr(nn, name) is getattr(policy, name)
    assert set(policy.__all__) <= set(nn.__all__)


def test_gradient_accumulation_counts_examples_not_calls():
    one = KLRegularizer(coefficient=AdaptiveKLController(1.0, target=0.3, horizon=20))
    parts = copy.deepcopy(one)
    one(Normal(LOC, SCALE))
    parts(Normal(LOC[:1], SCALE[:1]), weight=torch.tensor([1.0]))
    parts(Normal(LOC[1:], SCALE[1:]))
    one.step()
    parts.step()
    close(one.kl, TRUTH.sum(-1).mean(), rtol=1e-6)
    close(parts.kl, one.kl, rtol=1e-6)
    close(parts.coefficient, one.coefficient, rtol=1e-6)


def test_evaluation_leaves_no_trace():
    regularizer = KLRegularizer(coefficient=AdaptiveKLController(1.0, target=0.3, horizon=20)).eval()
    regularizer(Normal(LOC, SCALE))
    regularizer.train().step()
    assert regularizer.kl.isnan()
    assert regularizer.coefficient == 1


@pytest.mark.parametrize(
    "coefficient",
    [
        LinearSchedule(0.0, 1.0, steps=20),
        CyclicalSchedule(0.0, 1.0, period=6),
        AdaptiveKLController(1.0, target=0.4, horizon=20),
    ],
    ids=lambda c: type(c).__name__,
)
def test_state_dict_resumes_where_training_stopped(coefficient, tmp_path):
    options = {"coefficient": coefficient, "capacity": LinearSchedule(0.0, 4.0, steps=8)}
    whole = KLRegularizer(**options)
    for _ in range(4):
        whole(Normal(LOC, SCALE))
        whole.step()
    torch.save(whole.state_dict(), tmp_path / "state.pt")
    resumed = KLRegularizer(**options)
    resumed.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
    assert set(whole.state_dict()) == {"coefficient", "kl", "steps_taken"}
    for _ in range(4):
        assert resumed(Normal(LOC, SCALE)) == whole(Normal(LOC, SCALE))
        whole.step()
        resumed.step()
        assert resumed.coefficient == whole.coefficient


def test_resuming_with_another_schedule_follows_that_one_at_once():
    first = KLRegularizer(coefficient=LinearSchedule(0.0, 1.0, steps=10))
    first.step()
    other = KLRegularizer(coefficient=LinearSchedule(0.0, 5.0, steps=10))
    other.load_state_dict(first.state_dict())
    close(other.coefficient, 0.5, rtol=1e-6)


# ---- Precision, compilers, processes.


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_summed_in_float32(dtype):
    loc = torch.randn(64, 33).to(dtype).requires_grad_()
    scale = (torch.rand(64, 33) + 0.5).to(dtype)
    value = KLRegularizer()(Normal(loc, scale))
    assert value.dtype == torch.float32
    close(value, normal_kl(loc.detach().double(), scale.double()).sum(-1).mean(), rtol=3e-7)
    value.backward()
    assert loc.grad.dtype == dtype
    close(loc.grad, loc.detach() / 64, rtol=1e-2)


@pytest.mark.parametrize("change", [torch.nn.Module.half, torch.nn.Module.bfloat16, torch.nn.Module.double])
def test_the_state_keeps_its_digits_whatever_the_model_is_cast_to(change):
    regularizer = KLRegularizer(coefficient=0.1)
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), regularizer)
    change(model)
    assert regularizer.coefficient.dtype == torch.float32
    assert regularizer.coefficient == torch.tensor(0.1)
    assert regularizer.steps_taken.dtype == torch.int64


def test_a_module_made_on_the_meta_device_is_whole_after_loading():
    trained = KLRegularizer(
        coefficient=LinearSchedule(0.0, 1.0, steps=4), capacity=LinearSchedule(0.0, 1.0, steps=4)
    )
    trained.step()
    with torch.device("meta"):
        empty = KLRegularizer(
            coefficient=LinearSchedule(0.0, 1.0, steps=4), capacity=LinearSchedule(0.0, 1.0, steps=4)
        )
    empty.to_empty(device="cpu").load_state_dict(trained.state_dict())
    assert empty(Normal(LOC, SCALE)) == trained(Normal(LOC, SCALE))
    for regularizer in (empty, trained):
        regularizer.step()
    assert empty.kl == trained.kl
    assert empty.coefficient == 0.5


def test_autocast_changes_what_the_encoder_gives_and_nothing_after_it():
    encoder = torch.nn.Linear(4, 6)
    x = torch.randn(8, 4)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loc, log_scale = encoder(x).chunk(2, -1)
        factor = torch.eye(3).expand(8, 3, 3) + 0.1 * torch.ones(3, 3).tril(-1)
        prior = MultivariateNormal(torch.zeros(3), 2 * torch.eye(3))
        inside = [
            KLRegularizer()(Normal(loc, log_scale.exp())),
            KLRegularizer()(MultivariateNormal(loc.float(), scale_tril=factor), prior),
        ]
    assert loc.dtype == torch.bfloat16
    outside = [
        KLRegularizer()(Normal(loc, log_scale.exp())),
        KLRegularizer()(MultivariateNormal(loc.float(), scale_tril=factor), prior),
    ]
    assert inside == outside
    assert all(value.dtype == torch.float32 for value in inside)


OPTIONS = {
    "plain": {},
    "free nats and balance": {"free_nats": 0.05, "balance": (0.8, 0.2)},
    "free nats of examples": {"free_nats": 0.5, "per_example": True, "group_dims": ()},
    "capacity": {"capacity": LinearSchedule(0.0, 2.0, steps=3)},
    "adaptive": {"coefficient": AdaptiveKLController(1.0, target=0.2, horizon=20)},
}


def compile_batches() -> list[tuple[Tensor, Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(0)
    draws = torch.rand(4, 2, 5, 3, generator=generator)
    mask = torch.tensor([True, True, False, True, True])
    return [((2 * loc).requires_grad_(), scale + 0.5, mask) for loc, scale in draws]


def run(loss, regularizer: KLRegularizer) -> list[Tensor]:
    """Every step's value, gradient, mean KL and coefficient."""
    seen: list[Tensor] = []
    for loc, scale, mask in compile_batches():
        value = loss(loc, scale, mask)
        seen += [value.detach(), *torch.autograd.grad(value, loc)]
        regularizer.step()
        seen += [regularizer.kl.clone(), regularizer.coefficient.clone()]
    return seen


@pytest.mark.heavy
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_compiled_as_one_graph_once_for_all_steps(options):
    if "balance" in options and TorchVersion(torch.__version__) < (2, 13):
        pytest.skip("balance= copies distributions, which torch 2.11 does not compile")
    torch.compiler.reset()
    forget_plans()
    graphs: list[object] = []

    def backend(graph, inputs):
        graphs.append(graph)
        return graph

    def term_of(regularizer):
        def term(loc, scale, mask):
            return regularizer(Independent(Normal(loc, scale, validate_args=False), 1), mask=mask)

        return term

    eager, compiled = KLRegularizer(**options), KLRegularizer(**options)
    wanted = run(term_of(eager), eager)
    found = run(torch.compile(term_of(compiled), fullgraph=True, backend=backend), compiled)
    for one, other in zip(found, wanted, strict=True):
        close(one, other, rtol=1e-5)
    assert len(graphs) == 1


@pytest.mark.heavy
def test_two_terms_of_a_pair_never_seen_before_compile_as_one_graph():
    """What kullback remembers of a pair of types must not change while a graph is traced that asks for it."""
    torch.compiler.reset()
    forget_plans()

    def loss(a, b):
        sides = [Categorical(logits=x, validate_args=False) for x in (a, b)]
        return KLRegularizer()(*sides) + KLRegularizer()(*reversed(sides))

    a, b = torch.zeros(1, 2), torch.tensor([[0.0, math.log(3.0)]])
    compiled = torch.compile(loss, fullgraph=True, backend="eager")
    close(compiled(a, b), (0.5 - 0.25) * math.log(3.0), rtol=1e-6)  # Jeffreys: Σ (p - q) log(p / q)


PROCESSES = 2
ROWS = 8
DDP_CASES = {
    "free nats": {"free_nats": 0.3},
    "capacity": {"capacity": 1.4},
    "adaptive": {"coefficient": AdaptiveKLController(1.0, target=0.4, horizon=1)},
}


class Encoder(torch.nn.Module):
    """A posterior from one weight each, and its term, so that DistributedDataParallel holds the buffers."""

    def __init__(self, options):
        super().__init__()
        self.loc = torch.nn.Parameter(torch.tensor([1.0, 0.5, 0.2], dtype=torch.float64))
        self.regularizer = KLRegularizer(**options)

    def forward(self, x):
        loc = self.loc * x
        return self.regularizer(Normal(loc, torch.ones_like(loc)))


def ddp_batches() -> Tensor:
    """Batches in which the processes, on their own, would decide differently from both together."""
    x = torch.randn(3, ROWS, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    x[:, ::PROCESSES] *= 2
    return x


def train(model: torch.nn.Module, regularizer: KLRegularizer, batches: Tensor, weight: Tensor):
    """Gradients, and coefficient and KL after every step."""
    seen = []
    for batch in batches:
        model.zero_grad()
        model(batch).backward()
        regularizer.step()
        seen.append((weight.grad.clone(), regularizer.coefficient.clone(), regularizer.kl.clone()))
    return seen


def _run_process(rank, address):
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", init_method=address, rank=rank, world_size=PROCESSES)
    _train_together(rank)
    torch.distributed.barrier()  # a process that ends while the other still talks to it may abort
    torch.distributed.destroy_process_group()


def _train_together(rank):
    for options in DDP_CASES.values():
        alone = Encoder(options | {"sync": False})
        wanted = train(alone, alone.regularizer, ddp_batches(), alone.loc)
        ours = Encoder(options)
        model = torch.nn.parallel.DistributedDataParallel(ours)
        found = train(model, ours.regularizer, ddp_batches()[:, rank::PROCESSES], ours.loc)
        for one, other in zip(found, wanted, strict=True):
            for x, y in zip(one, other, strict=True):
                close(x, y, rtol=1e-6)
        ours.eval()  # no collective: only one process calls
        if rank == 0:
            ours(ddp_batches()[0])
    accumulated = Encoder(DDP_CASES["adaptive"])
    model = torch.nn.parallel.DistributedDataParallel(accumulated)
    for part in ddp_batches()[:2, rank::PROCESSES]:
        model(part).backward()
    accumulated.regularizer.step()
    whole = (ddp_batches()[:2].flatten(0, 1) * accumulated.loc.detach()) ** 2 / 2
    close(accumulated.regularizer.kl, whole.sum(-1).mean(), rtol=1e-6)


def test_the_cases_of_the_processes_tell_shared_decisions_from_their_own():
    for name, level in (("free nats", 0.3), ("capacity", 1.4)):
        apart = []
        for rows in (slice(0, None, 2), slice(1, None, 2), slice(None)):
            kl = ((ddp_batches()[:, rows] * Encoder({}).loc.detach()) ** 2 / 2).mean(1)
            apart.append((kl if name == "free nats" else kl.sum(-1)) > level)
        assert any((own != apart[2]).any() for own in apart[:2]), name


@pytest.mark.heavy
def test_two_processes_train_as_one_with_the_whole_batch(tmp_path):
    address = f"file://{tmp_path}/rendezvous"
    torch.multiprocessing.spawn(_run_process, args=(address,), nprocs=PROCESSES)


# ---- Posterior collapse.


def test_kl_per_dimension_and_active_units_show_a_collapsed_dimension():
    data = torch.randn(200, 1)
    p = Normal(torch.cat([data, torch.zeros(200, 1), 0.05 * data], -1), torch.tensor([0.1, 1.0, 1.0]))
    kl = kl_per_dimension(p)
    assert kl[0] > 1
    assert kl[1] == 0
    assert 0 < kl[2] < 0.01
    assert active_units(p).tolist() == [True, False, False]
    assert active_units(p.mean, threshold=0.001).tolist() == [True, False, True]


def test_active_units_is_the_variance_of_the_means():
    mean = torch.tensor([[0.0, 0.0], [2.0, 0.199]])  # variances 2 and 0.0198
    assert active_units(mean, threshold=0.0199).tolist() == [True, False]
    assert active_units(mean, threshold=0.0197).tolist() == [True, True]


# ---- Errors, and the remedies they name.


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"coefficient": -1.0}, "coefficient=1.0"),
        ({"coefficient": lambda step: math.nan}, "coefficient=1.0"),
        ({"coefficient": "linear"}, "coefficient=1.0"),
        ({"free_nats": math.inf}, "free_nats=0.5"),
        ({"capacity": -0.1}, "capacity=1.0"),
        ({"capacity": 2.0, "free_nats": 1.0}, "KLRegularizer(capacity=2.0)"),
        ({"balance": 0.8}, "balance=(0.8, 0.2)"),
        ({"balance": (0.8, -0.2)}, "balance=(0.8, 0.2)"),
        ({"batch_dims": 1.0}, "batch_dims=1"),
        ({"group_dims": -1}, "group_dims=0"),
        ({"group_dims": (True,)}, "group_dims=0"),
    ],
)
def test_invalid_options_name_a_remedy_that_works(options, said):
    with refused(ArgumentValueError, call="KLRegularizer") as caught:
        KLRegularizer(**options)
    assert str(caught.value).endswith(f"Write: {said}")
    remedy = said if said.startswith("KLRegularizer") else f"KLRegularizer({said})"
    assert isinstance(eval(remedy), KLRegularizer)  # noqa: S307


@pytest.mark.parametrize(
    ("make", "remedy"),
    [
        (lambda: LinearSchedule(0.0, 1.0, steps=0), "LinearSchedule(0.0, 1.0, steps=1000)"),
        (lambda: LinearSchedule(-1.0, 1.0, steps=5), "LinearSchedule(start=0.5, stop=1.0, steps=5)"),
        (lambda: CyclicalSchedule(0.0, 1.0, period=2.5), "CyclicalSchedule(0.0, 1.0, period=1000)"),
        (
            lambda: CyclicalSchedule(0.0, 1.0, period=5, ramp=0),
            "CyclicalSchedule(0.0, 1.0, period=5, ramp=0.5)",
        ),
        (
            lambda: CyclicalSchedule(0.0, 1.0, period=5, cycles=0),
            "CyclicalSchedule(0.0, 1.0, period=5, cycles=1000)",
        ),
        (lambda: AdaptiveKLController(target=0.0), "AdaptiveKLController(target=0.5)"),
        (
            lambda: KLRegularizer(coefficient=AdaptiveKLController(1.0, target=1.0, horizon=0.2)),
            "KLRegularizer(coefficient=AdaptiveKLController(1.0, target=1.0, horizon=20))",
        ),
    ],
)
def test_invalid_schedules_name_a_remedy_that_works(make, remedy):
    with pytest.raises(ArgumentValueError) as caught:
        make()
    assert str(caught.value).partition("Write: ")[2].replace("...", "1.0, target=1.0") in remedy
    eval(remedy)  # noqa: S307


def test_invalid_calls_name_a_remedy_that_works():
    p = Normal(LOC, SCALE)
    with refused(ArgumentTypeError, instead=r"posterior=torch\.distributions\.Normal"):
        KLRegularizer()(LOC)
    with refused(ArgumentTypeError, instead=r"prior=torch\.distributions\.Normal"):
        kl_per_dimension(p, LOC)
    with refused(ArgumentTypeError, wanted="torch distribution"):
        active_units([1.0, 2.0])
    with refused(ArgumentValueError, instead=r"^regularizer\(posterior, prior\)"):
        KLRegularizer()(Bernoulli(torch.tensor([0.5])))
    with refused(ArgumentValueError, instead=r"^kl_per_dimension\(posterior, prior\)"):
        kl_per_dimension(Bernoulli(torch.tensor([0.5])))
    with refused(ArgumentValueError, instead="^batch_dims=1"):
        KLRegularizer(batch_dims=2)(Normal(torch.zeros(3), 1.0))
    with refused(ArgumentValueError, instead="^group_dims=None"):
        KLRegularizer(group_dims=1)(p)
    with refused(ArgumentValueError, instead=r"^weight=weight.expand\(\(2,\)\)"):
        KLRegularizer()(p, weight=torch.ones(1))
    with refused(ArgumentValueError, wanted="none negative"):
        kl_per_dimension(p, weight=torch.tensor([1.0, -1.0]))
    with refused(ArgumentValueError, instead=r"torch.cat\(means\)"):
        active_units(p.mean[:1])
    with refused(ArgumentValueError, instead=r"posterior\.probs"):
        active_units(Categorical(logits=torch.zeros(3, 4)))
    with refused(ArgumentValueError, instead=r"threshold=0\.01"):
        active_units(p, threshold=-1)
    vectors = MultivariateNormal(torch.zeros(2, 3), torch.eye(3))
    with pytest.raises(NoRuleError):
        KLRegularizer()(vectors, MixtureSameFamily(Categorical(logits=torch.zeros(2)), vectors))
