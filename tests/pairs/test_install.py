"""`kullback.install` hands torch's own kl_divergence to kullback, and to nobody's harm."""

from __future__ import annotations

import itertools
import math
import warnings
from collections.abc import Iterator
from typing import ClassVar

import pytest
import torch
from torch.distributions import (
    Beta,
    Cauchy,
    Distribution,
    ExponentialFamily,
    Gumbel,
    Independent,
    Kumaraswamy,
    Normal,
    Poisson,
    StudentT,
    Uniform,
    kl_divergence,
    register_kl as register_with_torch,
)

import kullback
from kullback.pairs import torch_registry
from kullback.pairs.coverage import families
from kullback.pairs.install import _is_served

with warnings.catch_warnings():  # their own imports use what torch and Python call out of date
    warnings.simplefilter("ignore")
    import gpytorch
    import pyro
    from gpytorch.distributions import MultivariateNormal as MultivariateNormalOfGPyTorch
    from pyro.infer import SVI, TraceMeanField_ELBO


@pytest.fixture(autouse=True)
def _nothing_left() -> Iterator[None]:
    table = torch_registry.registry()
    before = list(table.items())
    yield
    kullback.uninstall()
    table.clear()
    table.update(before)
    torch_registry.forget_plans()


def value(x: torch.Tensor) -> float:
    return float(x.detach())


def test_torch_gives_kullbacks_value_where_it_had_no_rule() -> None:
    p, q = StudentT(torch.tensor(5.0).double()), Normal(torch.zeros((), dtype=torch.float64), 1.0)
    with pytest.raises(NotImplementedError):
        kl_divergence(p, q)
    with kullback.install():
        assert value(kl_divergence(p, q)) == value(kullback.kl_divergence(p, q)) > 0


def test_torch_gives_kullbacks_value_where_its_own_is_wrong() -> None:
    p, q = Beta(torch.tensor(1.0).double(), 1.0), Uniform(torch.tensor(0.0).double(), 0.5)
    narrow = Uniform(torch.tensor(0.0).double(), torch.tensor(0.5).double())
    wide = Uniform(torch.tensor(-1.0).double(), torch.tensor(1.0).double())
    with kullback.install():
        assert value(kl_divergence(p, q)) == math.inf
        assert value(kl_divergence(narrow, wide)) == pytest.approx(math.log(4), abs=1e-14)


def test_gradients_reach_the_parameters_of_both() -> None:
    loc, scale = (torch.tensor(x, dtype=torch.float64, requires_grad=True) for x in (0.3, 1.5))
    with kullback.install():
        kl_divergence(Cauchy(loc, 1.0), Cauchy(0.0, scale)).backward()
    # log(((1 + s)^2 + l^2) / 4 s)
    denominator = (1 + 1.5) ** 2 + 0.3**2
    assert value(loc.grad) == pytest.approx(2 * 0.3 / denominator, rel=1e-9)
    assert value(scale.grad) == pytest.approx(2 * 2.5 / denominator - 1 / 1.5, rel=1e-9)


def test_installing_twice_is_installing_once_and_taking_back_restores_every_entry_in_order() -> None:
    before = list(torch_registry.registry().items())
    kullback.install()
    once = list(torch_registry.registry().items())
    kullback.install()
    assert list(torch_registry.registry().items()) == once
    served = [(a, b) for a in families() for b in families() if _is_served(a, b)]
    assert len(served) > 10 * len(before)
    for pair in served:
        rule = torch.distributions.kl._dispatch_kl(*pair)
        assert torch_registry.is_ours(rule) or rule.__module__ == "pyro.distributions.kl"
    kullback.uninstall()
    assert list(torch_registry.registry().items()) == before
    kullback.uninstall()
    assert list(torch_registry.registry().items()) == before


def test_what_torch_remembers_is_forgotten_both_ways() -> None:
    p, q = Normal(0.0, 1.0), Normal(1.0, 2.0)
    kl_divergence(p, q)
    with kullback.install():
        kl_divergence(p, q)
        assert torch_registry.is_ours(torch.distributions.kl._KL_MEMOIZE[Normal, Normal])
    kl_divergence(p, q)
    assert not torch_registry.is_ours(torch.distributions.kl._KL_MEMOIZE[Normal, Normal])


def test_a_block_inside_an_installation_leaves_it_installed() -> None:
    kullback.install()
    with kullback.install():
        pass
    assert value(kl_divergence(Cauchy(0.0, 1.0), Cauchy(0.0, 1.0))) == 0


def test_a_block_that_ends_with_an_error_takes_everything_back() -> None:
    before = list(torch_registry.registry().items())
    with pytest.raises(RuntimeError, match="of the block"), kullback.install():
        raise RuntimeError("of the block")
    assert list(torch_registry.registry().items()) == before


class Gauge(Normal):
    """Another package's class, with a rule of its own in torch's table."""


class Waiting(ExponentialFamily):
    """Another package's exponential family, an exponential distribution, for which torch has a rule."""

    arg_constraints: ClassVar = {"rate": torch.distributions.constraints.positive}
    support = torch.distributions.constraints.nonnegative
    _mean_carrier_measure = 0

    def __init__(self, rate: torch.Tensor) -> None:
        self.rate = rate
        super().__init__(rate.shape, validate_args=False)

    @property
    def _natural_params(self) -> tuple[torch.Tensor, ...]:
        return (-self.rate,)

    def _log_normalizer(self, x: torch.Tensor) -> torch.Tensor:
        return -torch.log(-x)


def test_rules_of_others_for_their_classes_come_first_before_during_and_after() -> None:
    register_with_torch(Gauge, Gauge)(lambda p, q: p.loc - q.loc + 7)
    p, q = Gauge(3.0, 1.0), Gauge(1.0, 1.0)
    assert value(kl_divergence(p, q)) == value(kullback.kl_divergence(p, q)) == 9
    with kullback.install():
        assert value(kl_divergence(p, q)) == value(kullback.kl_divergence(p, q)) == 9
        assert value(kl_divergence(p, Normal(1.0, 1.0))) == 2
    assert value(kl_divergence(p, q)) == 9


def test_a_rule_registered_with_torch_during_an_installation_stays() -> None:
    def rule(p: Distribution, q: Distribution) -> torch.Tensor:
        return torch.tensor(5.0)

    with kullback.install():
        register_with_torch(Gumbel, Gumbel)(rule)
        assert value(kl_divergence(Gumbel(0.0, 1.0), Gumbel(0.0, 1.0))) == 5
    assert torch_registry.registry()[Gumbel, Gumbel] is rule


def test_torchs_rule_for_exponential_families_still_serves_those_of_others() -> None:
    p, q = Waiting(torch.tensor(2.0)), Waiting(torch.tensor(1.0))
    truth = pytest.approx(math.log(2) + 0.5 - 1, rel=1e-6)
    assert value(kullback.kl_divergence(p, q)) == truth
    with kullback.install():
        assert value(kl_divergence(p, q)) == truth
        assert (
            value(
                kl_divergence(Independent(Waiting(torch.ones(2)), 1), Independent(Waiting(torch.ones(2)), 1))
            )
            == 0
        )


def test_a_subclass_without_a_rule_is_served_as_its_parent() -> None:
    class Skewed(Kumaraswamy):
        """No rule of its own."""

    with kullback.install():
        found = kl_divergence(Skewed(2.0, 3.0), Kumaraswamy(2.0, 3.0))
    assert value(found) == pytest.approx(0, abs=1e-6)


def test_user_rules_are_handed_over_too() -> None:
    class Mark(Distribution):
        """A class that torch knows nothing about."""

        arg_constraints: ClassVar = {}

    kullback.register_kl(Mark, Mark)(lambda p, q: torch.tensor(4.0))
    p = Mark(validate_args=False)
    with kullback.install():
        assert value(kl_divergence(p, p)) == 4
    with pytest.raises(NotImplementedError):
        kl_divergence(p, p)


WHO_AND_WHEN = list(itertools.product(("torch", "kullback"), ("before", "during")))


def _register(who: str, kind: type, answer: float) -> None:
    register = register_with_torch if who == "torch" else kullback.register_kl
    register(kind, kind)(lambda p, q: torch.tensor(answer))


@pytest.mark.parametrize("parent", [Distribution, Normal, Gauge])
@pytest.mark.parametrize("general", WHO_AND_WHEN, ids="-".join)
@pytest.mark.parametrize("special", WHO_AND_WHEN, ids="-".join)
def test_the_most_specific_rule_answers_whoever_registered_it_and_whenever(parent, general, special) -> None:
    class General(parent):
        arg_constraints: ClassVar = {}

    class Special(General):
        pass

    def member(kind: type) -> Distribution:
        return kind(0.0, 1.0) if issubclass(kind, Normal) else kind(validate_args=False)

    register_with_torch(Gauge, Gauge)(lambda p, q: torch.tensor(7.0))
    rules = {General: (*general, 1.0), Special: (*special, 2.0)}
    for kind, (who, when, answer) in rules.items():
        if when == "before":
            _register(who, kind, answer)
    before = list(torch_registry.registry().items())
    with kullback.install():
        for kind, (who, when, answer) in rules.items():
            if when == "during":
                _register(who, kind, answer)
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # torch warns of what is ambiguous
            for p, q, answer in (
                (General, General, 1.0),
                (Special, General, 1.0),
                (General, Special, 1.0),
                (Special, Special, 2.0),
            ):
                assert value(kl_divergence(member(p), member(q))) == answer
                assert value(kullback.kl_divergence(member(p), member(q))) == answer
    after = list(torch_registry.registry().items())
    assert after[: len(before)] == before
    assert {pair for pair, _ in after[len(before) :]} == {
        (kind, kind) for kind, (who, when, _) in rules.items() if (who, when) == ("torch", "during")
    }
    assert not [pair for pair, rule in after if torch_registry.is_ours(rule)]


@pytest.mark.parametrize("when", ["before", "during"])
def test_of_two_rules_for_the_same_types_that_of_kullback_answers_until_torch_has_its_table_back(
    when,
) -> None:
    class Twice(Normal):
        """A class with a rule in either table."""

    register_with_torch(Twice, Twice)(lambda p, q: torch.tensor(3.0))
    p = Twice(0.0, 1.0)
    if when == "before":
        kullback.register_kl(Twice, Twice)(lambda p, q: torch.tensor(4.0))
    with kullback.install():
        if when == "during":
            kullback.register_kl(Twice, Twice)(lambda p, q: torch.tensor(4.0))
        assert value(kl_divergence(p, p)) == value(kullback.kl_divergence(p, p)) == 4
    assert value(kl_divergence(p, p)) == 3


def test_a_third_partys_rule_for_any_p_and_its_own_q_stays_in_force() -> None:
    class Prior(Normal):
        """Another package's class."""

    register_with_torch(Distribution, Prior)(lambda p, q: torch.tensor(6.0))
    with kullback.install(), warnings.catch_warnings():
        warnings.simplefilter("error")
        for p in (StudentT(5.0), Cauchy(0.0, 1.0)):
            assert value(kl_divergence(p, Prior(0.0, 1.0))) == 6
            assert value(kullback.kl_divergence(p, Prior(0.0, 1.0))) == 6


def test_what_cannot_be_compared_stays_torchs_not_implemented() -> None:
    with kullback.install(), pytest.raises(NotImplementedError):
        kl_divergence(Normal(0.0, 1.0), Poisson(1.0))


# ---- Pyro: TraceMeanField_ELBO takes kl_divergence where there is one, and draws where it sees NotImplementedError.


def _elbo(
    guide_family: type, prior: Distribution, *parameters: float, particles: int = 1
) -> tuple[float, list[float]]:
    """The negative ELBO without data, which is KL(guide || prior), and its gradient by the guide's parameters."""
    pyro.clear_param_store()
    store = [torch.tensor(x, dtype=torch.float64, requires_grad=True) for x in parameters]

    def model() -> None:
        pyro.sample("z", prior)

    def guide() -> None:
        pyro.sample("z", guide_family(*store))

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        loss = TraceMeanField_ELBO(num_particles=particles).differentiable_loss(model, guide)
    loss = torch.as_tensor(loss)
    return value(loss), [value(g) for g in torch.autograd.grad(loss, store)]


def test_pyros_mean_field_elbo_becomes_exact_where_torch_had_no_rule() -> None:
    prior = pyro.distributions.StudentT(torch.tensor(5.0).double(), 0.0, 1.0)
    drawn = {_elbo(pyro.distributions.Normal, prior, 0.4, 0.7)[0] for _ in range(3)}
    assert len(drawn) == 3
    with kullback.install():
        exact = {_elbo(pyro.distributions.Normal, prior, 0.4, 0.7)[0] for _ in range(3)}
        loss, gradient = _elbo(pyro.distributions.Normal, prior, 0.4, 0.7)
    loc, scale = (torch.tensor(x, dtype=torch.float64, requires_grad=True) for x in (0.4, 0.7))
    truth = kullback.kl_divergence(
        Normal(loc, scale), StudentT(torch.tensor(5.0).double(), 0.0, 1.0), method="quadrature"
    )
    assert exact == {loss}
    assert loss == pytest.approx(value(truth), rel=1e-8)
    assert gradient == pytest.approx([value(g) for g in torch.autograd.grad(truth, (loc, scale))], rel=1e-6)


def test_pyro_fits_as_before_where_torch_was_right() -> None:
    prior = pyro.distributions.Normal(torch.tensor(1.0).double(), 2.0)
    before = _elbo(pyro.distributions.Normal, prior, 0.4, 0.7)
    with kullback.install():
        during = _elbo(pyro.distributions.Normal, prior, 0.4, 0.7)
    assert during[0] == pytest.approx(before[0], rel=1e-12)
    assert during[1] == pytest.approx(before[1], rel=1e-12)


def test_pyros_svi_finds_the_prior_when_kl_is_all_there_is() -> None:
    pyro.clear_param_store()
    prior = pyro.distributions.Laplace(torch.tensor(1.0).double(), 1.0).expand([3]).to_event(1)

    def guide() -> None:
        loc = pyro.param("loc", torch.zeros(3, dtype=torch.float64))
        pyro.sample("z", pyro.distributions.Laplace(loc, 1.0).to_event(1))

    with kullback.install():
        svi = SVI(lambda: pyro.sample("z", prior), guide, pyro.optim.Adam({"lr": 0.1}), TraceMeanField_ELBO())
        losses = [svi.step() for _ in range(150)]
    assert losses[-1] < 1e-3 < losses[0]
    assert pyro.param("loc").detach().numpy() == pytest.approx([1, 1, 1], abs=0.05)


def test_pyros_own_rules_stay() -> None:
    delta = pyro.distributions.Delta(torch.tensor(0.5))
    with kullback.install():
        found = kl_divergence(delta, pyro.distributions.Normal(0.0, 1.0))
    assert value(found) == pytest.approx(-value(Normal(0.0, 1.0).log_prob(torch.tensor(0.5))))


# ---- GPyTorch: variational strategies take kl_divergence of its MultivariateNormal, with a rule of its own.


class _Process(gpytorch.models.ApproximateGP):
    def __init__(self) -> None:
        inducing = torch.linspace(0, 1, 5).unsqueeze(-1)
        variational = gpytorch.variational.CholeskyVariationalDistribution(5)
        super().__init__(gpytorch.variational.VariationalStrategy(self, inducing, variational))
        self.mean_module = gpytorch.means.ConstantMean()
        self.covar_module = gpytorch.kernels.RBFKernel()

    def forward(self, x: torch.Tensor) -> MultivariateNormalOfGPyTorch:
        return MultivariateNormalOfGPyTorch(self.mean_module(x), self.covar_module(x))


def _variational_kl() -> tuple[float, list[float]]:
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        process = _Process()
        process(torch.linspace(0, 1, 7).unsqueeze(-1))
        with torch.no_grad():
            process.variational_strategy._variational_distribution.variational_mean.add_(0.3)
        divergence = process.variational_strategy.kl_divergence()
        divergence.backward()
    mean = process.variational_strategy._variational_distribution.variational_mean
    return value(divergence), mean.grad.tolist()


def test_gpytorchs_variational_kl_is_the_same_before_during_and_after() -> None:
    before = _variational_kl()
    with kullback.install():
        during = _variational_kl()
    assert before == during == _variational_kl()
    assert before[0] > 0


def test_gpytorchs_own_rules_serve_kullbacks_verb_too() -> None:
    p, q = (MultivariateNormalOfGPyTorch(torch.full((2,), m), torch.eye(2)) for m in (0.0, 1.0))
    with warnings.catch_warnings(), kullback.install():
        warnings.simplefilter("ignore")
        assert value(kl_divergence(p, q)) == pytest.approx(1.0, rel=1e-5)
        assert value(kullback.kl_divergence(p, q)) == pytest.approx(1.0, rel=1e-5)


def test_pyros_mask_gives_0_where_either_side_is_masked() -> None:
    loc, scale = torch.tensor([0.0, 0.0, 1.0]).double(), torch.tensor([1.0, 1.0, 2.0]).double()
    p = pyro.distributions.Normal(loc, scale)
    q = pyro.distributions.Laplace(torch.tensor([1.0, 2.0, 0.0]).double(), torch.ones(3).double())
    full, mask = kullback.kl_divergence(p, q), torch.tensor([True, False, True])
    assert bool((full > 0).all())
    expected = torch.where(mask, full, 0)
    with kullback.install():
        assert torch.equal(kl_divergence(p.mask(mask), q.mask(mask)), expected)
    for a, b in ((p.mask(mask), q.mask(mask)), (p.mask(mask), q), (p, q.mask(mask))):
        # Two masked ones are served by Pyro's own rule, which takes torch's formula.
        torch.testing.assert_close(kullback.kl_divergence(a, b), expected, rtol=1e-14, atol=0)
        for kind in (kullback.JensenShannon(), kullback.Renyi(0.5), kullback.TotalVariation()):
            each = kullback.divergence(p, q, kind)
            assert torch.equal(kullback.divergence(a, b, kind), torch.where(mask, each, 0))
        generator = torch.Generator().manual_seed(1)
        drawn = kullback.kl_divergence(a, b, method="monte_carlo", draws=400, generator=generator)
        assert drawn[1] == 0
        assert torch.allclose(drawn, expected, atol=0.2)
