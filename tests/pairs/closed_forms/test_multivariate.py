"""Normal vectors, Wishart and correlation matrices, and relaxed classes, against mpmath at 60 digits."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable

import mpmath
import pytest
import torch
from mpmath import mpf
from torch import Tensor
from torch.distributions import (
    Distribution,
    Independent,
    LKJCholesky,
    LogisticNormal,
    LowRankMultivariateNormal,
    MultivariateNormal,
    Normal,
    RelaxedBernoulli,
    RelaxedOneHotCategorical,
    Uniform,
    Wishart,
)
from torch.distributions.relaxed_bernoulli import LogitRelaxedBernoulli
from torch.distributions.relaxed_categorical import ExpRelaxedCategorical
from torch.distributions.transforms import SoftmaxTransform, StickBreakingTransform

from kullback import install, kl_divergence, kl_estimate
from kullback.errors import ArgumentValueError
from kullback.kernels.native import library
from kullback.pairs.closed_forms.matrix_variate import kl_lkj_lkj, kl_wishart_wishart
from kullback.pairs.closed_forms.multivariate_normal import (
    FactorModel,
    factor_model_divergence,
    kl_gaussian_gaussian,
    kl_low_rank_low_rank,
    kl_multivariate_normal_multivariate_normal,
)
from kullback.pairs.families.relaxed import kl_exp_relaxed_categorical, kl_logit_relaxed_bernoulli
from kullback.pairs.registry import fused_divergence
from tests.refusals import refused

DOUBLE = torch.float64
CONDITIONS = [1.0, 1e4, 1e8, 1e12]
STEPS = [1.0, 1e-2, 1e-5, 1e-8]
UNIT = torch.tensor(1.0, dtype=DOUBLE)


@pytest.fixture(autouse=True)
def _digits() -> object:
    with mpmath.workdps(60):
        yield


def numbers(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=DOUBLE)


def matrix(x: Tensor) -> mpmath.matrix:
    return mpmath.matrix(x.tolist())


def spread_matrix(seed: int, condition: float, size: int = 4) -> Tensor:
    """A symmetric matrix with eigenvalues from 1 down to 1 / condition."""
    basis = torch.linalg.qr(numbers(seed, size, size))[0]
    eigenvalues = torch.logspace(0, -torch.tensor(condition).log10().item(), size, dtype=DOUBLE)
    product = (basis * eigenvalues) @ basis.mT
    return (product + product.mT) / 2


def moved(x: Tensor, seed: int, step: float) -> Tensor:
    """A positive definite matrix that differs by about a relative step from another."""
    map_ = torch.eye(x.shape[-1], dtype=DOUBLE) + step * numbers(seed, *x.shape)
    product = map_ @ x @ map_.mT
    return (product + product.mT) / 2


def true_normal(mean_p: Tensor, cov_p: mpmath.matrix, mean_q: Tensor, cov_q: mpmath.matrix) -> mpf:
    inverse = cov_q**-1
    product = inverse * cov_p
    trace = mpmath.fsum(product[i, i] for i in range(cov_p.rows))
    shift = matrix(mean_p) - matrix(mean_q)
    log_det = mpmath.log(mpmath.det(cov_q)) - mpmath.log(mpmath.det(cov_p))
    return (trace - cov_p.rows + log_det + (shift.T * inverse * shift)[0]) / 2


def true_gradient(cov_p: mpmath.matrix, cov_q: mpmath.matrix) -> mpmath.matrix:
    """The derivative of KL by P's covariance."""
    return (cov_q**-1 - cov_p**-1) / 2


def relative(value: Tensor, truth: mpf) -> float:
    return float(abs(mpf(value.item()) - truth) / abs(truth))


def distance(value: Tensor, truth: mpmath.matrix) -> float:
    return float(mpmath.norm(matrix(value) - truth) / mpmath.norm(truth))


def covariance_pair(condition: float, step: float) -> tuple[Tensor, Tensor]:
    q = spread_matrix(1, condition)
    return (spread_matrix(2, condition) if step == 1 else moved(q, 3, step)), q


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("condition", CONDITIONS)
@pytest.mark.parametrize("kind", ["covariance_matrix", "precision_matrix"])
def test_normal_vectors_are_exact_whatever_the_condition(kind: str, condition: float, step: float) -> None:
    given_p, given_q = covariance_pair(condition, step)
    mean = numbers(4, 4)
    shift = step * condition**-0.5 * numbers(5, 4)
    given_p.requires_grad_()
    p, q = MultivariateNormal(mean + shift, **{kind: given_p}), MultivariateNormal(mean, **{kind: given_q})
    value = kl_divergence(p, q)
    cov_p, cov_q = matrix(given_p), matrix(given_q)
    if kind == "precision_matrix":
        cov_p, cov_q = cov_p**-1, cov_q**-1
    assert relative(value, true_normal(p.loc, cov_p, q.loc, cov_q)) < 1e-10
    (gradient,) = torch.autograd.grad(value, given_p)
    truth = true_gradient(cov_p, cov_q)
    assert distance(gradient, -cov_p * truth * cov_p if kind == "precision_matrix" else truth) < 1e-7


@pytest.mark.parametrize("size", [2, 4, 8])
@pytest.mark.parametrize("condition", [1e2, 1e8, 1e12, 1e14, 1e15])
@pytest.mark.parametrize("kind", ["covariance_matrix", "precision_matrix", "scale_tril"])
def test_the_error_of_normal_vectors_bounds_what_their_condition_costs(
    kind: str, condition: float, size: int
) -> None:
    for seed, step in [(seed, step) for seed in range(3) for step in (1.0, 1e-3, 1e-8)]:
        q = spread_matrix(10 + seed, condition, size)
        p = spread_matrix(20 + seed, condition, size) if step == 1 else moved(q, 30 + seed, step)
        given = [torch.linalg.cholesky(x) if kind == "scale_tril" else x for x in (p, q)]
        shift = step * condition**-0.5 * numbers(5, size)
        left, right = (
            MultivariateNormal(mean, **{kind: x})
            for mean, x in zip((shift, torch.zeros_like(shift)), given, strict=True)
        )
        covariances = [matrix(x) for x in given]
        if kind == "precision_matrix":
            covariances = [x**-1 for x in covariances]
        if kind == "scale_tril":
            covariances = [x * x.T for x in covariances]
        found = kl_estimate(left, right)
        truth = true_normal(left.loc, covariances[0], right.loc, covariances[1])
        assert abs(mpf(found.value.item()) - truth) <= mpf(found.error.item()), (seed, step)
        if condition <= 1e8:
            assert found.error < 1e-6 * found.value + 2e-15


@pytest.mark.parametrize("of_diagonal", [(2,), (5, 2), (3, 1, 2)])
def test_a_low_rank_diagonal_that_broadcasts_is_that_of_every_batch(of_diagonal: tuple[int, ...]) -> None:
    diagonal = torch.tensor([2.0, 0.25], dtype=DOUBLE).expand(of_diagonal)
    factor = numbers(7, 5, 2, 1)
    p = LowRankMultivariateNormal(torch.zeros(5, 2, dtype=DOUBLE), factor, diagonal)
    dense = MultivariateNormal(torch.zeros(2, dtype=DOUBLE), p.covariance_matrix)
    others = [
        MultivariateNormal(torch.ones(2, dtype=DOUBLE), torch.eye(2, dtype=DOUBLE)),
        Independent(Normal(torch.ones(2, dtype=DOUBLE), 2.0), 1),
        LowRankMultivariateNormal(
            torch.ones(2, dtype=DOUBLE), numbers(8, 2, 1), diagonal[..., :].reshape(-1, 2)[0]
        ),
    ]
    assert kl_divergence(p, p).eq(0).all()
    for q in others:
        torch.testing.assert_close(kl_divergence(p, q), kl_divergence(dense, q), rtol=1e-12, atol=0)
        torch.testing.assert_close(kl_divergence(q, p), kl_divergence(q, dense), rtol=1e-12, atol=0)
        with install():
            torch.testing.assert_close(
                torch.distributions.kl_divergence(p, q), kl_divergence(p, q), rtol=0, atol=0
            )


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("condition", CONDITIONS)
def test_normal_vectors_from_cholesky_factors_are_exact(condition: float, step: float) -> None:
    root_q = torch.linalg.cholesky(spread_matrix(1, condition))
    root_p = root_q * (1 + step * numbers(2, 4, 4).tanh() / 2)
    mean = numbers(4, 4)
    p, q = MultivariateNormal(mean, scale_tril=root_p), MultivariateNormal(mean, scale_tril=root_q)
    left, right = matrix(root_p), matrix(root_q)
    truth = true_normal(mean, left * left.T, mean, right * right.T)
    assert relative(kl_divergence(p, q), truth) < 1e-10


def low_rank_covariance(factor: Tensor, diagonal: Tensor) -> mpmath.matrix:
    w = matrix(factor)
    return w * w.T + mpmath.diag(diagonal.tolist())


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize(("size", "noise"), [(1.0, 1.0), (3.6, 1.4e-10), (1e4, 1.0), (1e-3, 1e3)])
def test_low_rank_normal_vectors_are_exact(size: float, noise: float, step: float) -> None:
    factor_q, diagonal_q = size * numbers(1, 5, 2), noise * (0.2 + numbers(2, 5) ** 2)
    factor_p = factor_q * (1 + step * numbers(3, 5, 2))
    diagonal_p = diagonal_q * (1 + step * numbers(4, 5) ** 2)
    factor_p.requires_grad_()
    mean = torch.zeros(5, dtype=DOUBLE)
    p = LowRankMultivariateNormal(mean, factor_p, diagonal_p)
    q = LowRankMultivariateNormal(mean, factor_q, diagonal_q)
    value = kl_divergence(p, q)
    cov_p, cov_q = low_rank_covariance(factor_p, diagonal_p), low_rank_covariance(factor_q, diagonal_q)
    assert relative(value, true_normal(mean, cov_p, mean, cov_q)) < 1e-10
    (gradient,) = torch.autograd.grad(value, factor_p)
    assert distance(gradient, 2 * true_gradient(cov_p, cov_q) * matrix(factor_p)) < 1e-7


@pytest.mark.parametrize("step", [1.0, 0.1, 1e-2, 1e-5, 1e-8])
@pytest.mark.parametrize(("size", "noise"), [(1.0, 1.0), (3.0, 1e-2), (1e4, 1.0), (1e-3, 1e3)])
def test_low_rank_in_many_dimensions_is_exact_without_its_covariance(
    size: float, noise: float, step: float
) -> None:
    factors_q, variances_q = size * numbers(1, 9, 2), noise * (0.2 + numbers(2, 9) ** 2)
    factors_p = (factors_q * (1 + step * numbers(3, 9, 2))).requires_grad_()
    variances_p = variances_q * (1 + step * numbers(4, 9) ** 2)
    mean = torch.zeros(9, dtype=DOUBLE)
    p = FactorModel(mean + step * numbers(5, 9), factors_p, variances_p)
    q = FactorModel(mean, factors_q, variances_q)
    value = factor_model_divergence(p, q)
    cov_p, cov_q = low_rank_covariance(factors_p, variances_p), low_rank_covariance(factors_q, variances_q)
    assert relative(value, true_normal(p.mean, cov_p, mean, cov_q)) < 1e-10
    (gradient,) = torch.autograd.grad(value, factors_p)
    assert distance(gradient, 2 * true_gradient(cov_p, cov_q) * matrix(factors_p)) < 1e-7
    assert factor_model_divergence(q, q) == 0


def test_low_rank_in_many_dimensions_is_that_of_the_covariances() -> None:
    def model(seed: int, rank: int, *batch: int) -> LowRankMultivariateNormal:
        return LowRankMultivariateNormal(
            numbers(seed, *batch, 80),
            numbers(seed + 1, *batch, 80, rank),
            numbers(seed + 2, *batch, 80).exp(),
        )

    p, q = model(1, 2, 3, 1), model(4, 5, 2)
    value = kl_divergence(p, q)
    assert value.shape == (3, 2)
    torch.testing.assert_close(value, kl_gaussian_gaussian(p, q), rtol=1e-12, atol=0)


def test_low_rank_against_itself_is_0_where_torch_says_4095_and_minus_65() -> None:
    for factor, noise in ((3.6, 1.4e-10), (1e4, 1.0)):
        p = LowRankMultivariateNormal(
            torch.zeros(5), factor * numbers(1, 5, 2).float(), torch.full((5,), noise)
        )
        assert kl_divergence(p, p).item() == 0


GAUSSIANS: dict[str, Callable[[], Distribution]] = {
    "covariance": lambda: MultivariateNormal(numbers(1, 3), moved(spread_matrix(2, 9, 3), 3, 0.01)),
    "precision": lambda: MultivariateNormal(numbers(4, 3), precision_matrix=spread_matrix(5, 30, 3)),
    "factor": lambda: MultivariateNormal(
        numbers(6, 3), scale_tril=torch.linalg.cholesky(spread_matrix(7, 20, 3))
    ),
    "low rank": lambda: LowRankMultivariateNormal(numbers(8, 3), numbers(9, 3, 1), numbers(10, 3) ** 2),
    "higher rank": lambda: LowRankMultivariateNormal(numbers(8, 3), numbers(9, 3, 2), numbers(10, 3) ** 2),
    "independent": lambda: Independent(Normal(numbers(11, 3), numbers(12, 3).exp()), 1),
}


def covariance(d: Distribution) -> mpmath.matrix:
    if isinstance(d, LowRankMultivariateNormal):
        return low_rank_covariance(d.cov_factor, d.cov_diag)
    if isinstance(d, Independent):
        return mpmath.diag([mpf(x) ** 2 for x in d.base_dist.scale.tolist()])
    given = vars(d)
    if "covariance_matrix" in given:
        return matrix(given["covariance_matrix"])
    if "precision_matrix" in given:
        return matrix(given["precision_matrix"]) ** -1
    root = matrix(given["scale_tril"])
    return root * root.T


@pytest.mark.parametrize("of_q", GAUSSIANS)
@pytest.mark.parametrize("of_p", GAUSSIANS)
def test_every_form_of_covariance_meets_every_other(of_p: str, of_q: str) -> None:
    p, q = GAUSSIANS[of_p](), GAUSSIANS[of_q]()
    mean_p, mean_q = p.mean, q.mean
    estimate = kl_estimate(p, q)
    if of_p == of_q:
        assert estimate.value == 0
        return
    assert relative(estimate.value, true_normal(mean_p, covariance(p), mean_q, covariance(q))) < 1e-13
    assert estimate.method == "closed_form"


def log_gamma(size: int, x: mpf) -> mpf:
    return mpf(size) * (size - 1) / 4 * mpmath.log(mpmath.pi) + mpmath.fsum(
        mpmath.loggamma(x - mpf(i) / 2) for i in range(size)
    )


def true_wishart(n: mpf, scale_p: mpmath.matrix, m: mpf, scale_q: mpmath.matrix) -> mpf:
    size, n, m = scale_p.rows, mpf(n), mpf(m)
    product = scale_q**-1 * scale_p
    trace = mpmath.fsum(product[i, i] for i in range(size))
    digamma = mpmath.fsum(mpmath.digamma((n - i) / 2) for i in range(size))
    constants = log_gamma(size, m / 2) - log_gamma(size, n / 2) + (n - m) / 2 * digamma
    return -m / 2 * mpmath.log(mpmath.det(product)) + n / 2 * (trace - size) + constants


@pytest.mark.parametrize("step", [1.0, 1e-4, 1e-8])
@pytest.mark.parametrize(
    ("n", "m"), [(5.0, 6.0), (1e6, 1000001.0), (2.01, 2.02), (1e8, 1e8 + 1), (2.5, 1e5), (50.0, 50.0000005)]
)
def test_wishart_is_exact(n: float, m: float, step: float) -> None:
    scale_q = spread_matrix(1, 50.0, 3)
    scale_p = moved(scale_q, 2, step / 20)
    df = torch.tensor(n, dtype=DOUBLE, requires_grad=True)
    scale_p.requires_grad_()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # torch warns that draws of few degrees are singular
        value = kl_divergence(Wishart(df, scale_p), Wishart(torch.tensor(m, dtype=DOUBLE), scale_q))
    left, right = matrix(scale_p), matrix(scale_q)
    assert relative(value, true_wishart(n, left, m, right)) < 1e-12
    by_df, by_scale = torch.autograd.grad(value, (df, scale_p))
    derivative = mpmath.diff(lambda x: true_wishart(x, left, m, right), mpf(n), h=mpf(10) ** -20)
    assert relative(by_df, derivative) < 1e-7
    assert distance(by_scale, (mpf(n) * right**-1 - mpf(m) * left**-1) / 2) < 1e-7


def test_wishart_has_the_gradients_that_torch_leaves_out() -> None:
    df = torch.tensor(5.0, dtype=DOUBLE, requires_grad=True)
    root = torch.tensor([[1.0, 0.0], [0.3, 1.2]], dtype=DOUBLE, requires_grad=True)
    two = 2 * torch.eye(2, dtype=DOUBLE)
    value = kl_divergence(
        Wishart(df, scale_tril=root), Wishart(torch.tensor(6.0, dtype=DOUBLE), scale_tril=two)
    )
    by_df, by_root = torch.autograd.grad(value, (df, root))
    assert by_df.item() == pytest.approx(-0.96757296, abs=1e-8)
    assert by_root[0, 0].item() == pytest.approx(-4.75, abs=1e-12)


def test_wishart_with_a_million_degrees_keeps_its_digits_in_float32() -> None:
    p, q = (Wishart(torch.tensor(df), torch.eye(2)) for df in (1e6, 1000001.0))
    one = matrix(torch.eye(2))
    assert relative(kl_divergence(p, q), true_wishart(1e6, one, 1000001, one)) < 1e-6  # torch: -1.2


def log_normalizer(size: int, x: mpf) -> mpf:
    return log_gamma(size - 1, x + mpf(size - 2) / 2) - (size - 1) * mpmath.loggamma(x + mpf(size - 1) / 2)


@pytest.mark.parametrize("size", [2, 3, 4, 9])
@pytest.mark.parametrize(
    ("a", "b"),
    [
        (1.5, 1.0),
        (1e-6, 2e-6),
        (1e6, 1e6 + 1),
        (1e-3, 50.0),
        (2.0, 2.00000002),
        (1e8, 1e3),
        (9.9, 10.2),
        (3.0, 3.0),
    ],
)
def test_correlation_matrices_are_exact(size: int, a: float, b: float) -> None:
    x = torch.tensor(a, dtype=DOUBLE, requires_grad=True)
    value = kl_divergence(LKJCholesky(size, x), LKJCholesky(size, torch.tensor(b, dtype=DOUBLE)))
    (gradient,) = torch.autograd.grad(value, x)
    if a == b:
        assert value == gradient == 0
        return
    step = mpf(10) ** -16 * mpf(a)
    first, second = (mpmath.diff(lambda t: log_normalizer(size, t), mpf(a), n, h=step) for n in (1, 2))
    gap = mpf(b) - mpf(a)
    rise = log_normalizer(size, mpf(b)) - log_normalizer(size, mpf(a))
    assert relative(value, rise - gap * first) < 1e-11
    assert relative(gradient, -gap * second) < 1e-9


@pytest.mark.parametrize("d", [0.0, 1e-9, 1e-3, 0.79, 0.81, -2.0, 50.0, -300.0])
def test_relaxed_trials_are_exact(d: float) -> None:
    logit = torch.tensor(d, dtype=DOUBLE, requires_grad=True)
    p, q = RelaxedBernoulli(0.7 * UNIT, logits=logit), RelaxedBernoulli(0.7 * UNIT, logits=0 * UNIT)
    value = kl_divergence(p, q)
    (gradient,) = torch.autograd.grad(value, logit)
    if d == 0:
        assert value == gradient == 0
        return
    assert relative(value, mpf(d) * mpmath.coth(mpf(d) / 2) - 2) < 1e-13
    assert relative(gradient, mpmath.diff(lambda x: x * mpmath.coth(x / 2), mpf(d))) < 1e-13


def test_relaxed_trials_from_probabilities_keep_the_digits_next_to_1() -> None:
    p, q = 1 - 2.0**-50, 1 - 2.0**-49
    value = kl_divergence(*(LogitRelaxedBernoulli(UNIT, probs=torch.tensor(x, dtype=DOUBLE)) for x in (p, q)))
    d = mpmath.log(mpf(p) / (1 - mpf(p))) - mpmath.log(mpf(q) / (1 - mpf(q)))
    assert relative(value, d * mpmath.coth(d / 2) - 2) < 1e-13


def test_relaxed_trials_of_other_temperatures_go_to_quadrature() -> None:
    p, q = LogitRelaxedBernoulli(UNIT, logits=UNIT), LogitRelaxedBernoulli(0.5 * UNIT, logits=UNIT)
    estimate = kl_estimate(p, q)
    assert estimate.method == "quadrature"

    def log_density(x: mpf, loc: int, scale: int) -> mpf:
        z = (x - loc) / scale
        return -z - mpmath.log(scale) - 2 * mpmath.log1p(mpmath.exp(-z))

    with mpmath.workdps(20):
        truth = mpmath.quad(
            lambda x: mpmath.exp(log_density(x, 1, 1)) * (log_density(x, 1, 1) - log_density(x, 2, 2)),
            [-60, -10, 0, 10, 60],
        )
    assert relative(estimate.value, truth) < 1e-10


def true_relaxed(logits_p: list[float], logits_q: list[mpf]) -> mpf:
    """n E log(sum w_k e^d_k) - sum d_k for w uniform on the simplex, as a divided difference of x^(n - 1) log x."""
    with mpmath.workdps(150):
        d = [mpf(b) - mpf(a) for a, b in zip(logits_p, logits_q, strict=True)]
        n, x = len(d), [mpmath.exp(y) for y in d]
        total = mpmath.fsum(
            d[j] * x[j] ** (n - 1) / mpmath.fprod(x[j] - x[k] for k in range(n) if k != j) for j in range(n)
        )
        return n * (total - mpmath.digamma(n) - mpmath.euler) - mpmath.fsum(d)


@pytest.mark.parametrize("step", [1e-8, 1e-3, 1.0, 10.0, 100.0])
@pytest.mark.parametrize("classes", [2, 3, 8])
def test_relaxed_classes_are_exact(classes: int, step: float) -> None:
    logits_p = numbers(1, classes)
    logits_q = (logits_p + step * numbers(2, classes)).requires_grad_()
    p = RelaxedOneHotCategorical(0.5 * UNIT, logits=logits_p)
    q = RelaxedOneHotCategorical(0.5 * UNIT, logits=logits_q)
    estimate = kl_estimate(p, q)
    left, right = p.logits.tolist(), [mpf(x) for x in q.logits.tolist()]
    assert relative(estimate.value, true_relaxed(left, right)) < 1e-10
    assert estimate.method == "series"
    (gradient,) = torch.autograd.grad(estimate.value, logits_q)
    h = mpf(10) ** -30
    truth = [
        (true_relaxed(left, up) - true_relaxed(left, right)) / h
        for k in range(classes)
        for up in [[x + h * (i == k) for i, x in enumerate(right)]]
    ]
    assert distance(gradient, mpmath.matrix(truth)) < 1e-7


def relaxed(given: str, values: list[float]) -> RelaxedOneHotCategorical:
    return RelaxedOneHotCategorical(
        torch.tensor(0.7, dtype=DOUBLE), **{given: torch.tensor(values, dtype=DOUBLE)}
    )


@pytest.mark.parametrize("given", ["probs", "logits"])
def test_relaxed_classes_without_mass_on_both_sides_do_not_count(given: str) -> None:
    gone = 0.0 if given == "probs" else -math.inf
    p, q = ([0.5, 0.5], [0.2, 0.8]) if given == "probs" else ([0.3, -1.0], [1.0, 2.0])
    value = kl_divergence(relaxed(given, p), relaxed(given, q))
    assert value > 0
    for place in range(3):
        wider = [[*x[:place], gone, *x[place:]] for x in (p, q)]
        assert kl_divergence(*(relaxed(given, x) for x in wider)).item() == pytest.approx(
            value.item(), rel=1e-12
        )
        assert kl_divergence(relaxed(given, wider[0]), relaxed(given, [*q, q[0]])).item() == math.inf
    certain = relaxed(given, [1.0, 0.0] if given == "probs" else [3.0, -math.inf])
    assert kl_divergence(certain, certain) == 0


def test_relaxed_classes_do_not_depend_on_the_temperature_nor_the_log() -> None:
    logits = numbers(1, 2, 5)
    values = [
        kl_divergence(kind(t * UNIT, logits=logits[0]), kind(t * UNIT, logits=logits[1]))
        for kind in (RelaxedOneHotCategorical, ExpRelaxedCategorical)
        for t in (0.1, 3.0)
    ]
    assert len({value.item() for value in values}) == 1
    p = RelaxedOneHotCategorical(UNIT, probs=torch.tensor([0.2, 0.3, 0.5], dtype=DOUBLE))
    assert kl_divergence(p, p) == 0


def test_logistic_normal_is_its_base() -> None:
    p, q = (LogisticNormal(numbers(i, 3), numbers(i + 1, 3).exp()) for i in (1, 3))
    base = [d.base_dist.base_dist for d in (p, q)]
    assert kl_divergence(p, q) == kl_divergence(*base).sum()
    if library.missing() is None:
        assert fused_divergence(p, q) == kl_divergence(p, q)
        q.transforms = [StickBreakingTransform(), SoftmaxTransform()]
        assert fused_divergence(p, q) is None


CLOSED: dict[str, tuple[Callable[..., Tensor], Callable[[Tensor], Distribution], bool]] = {
    "covariance": (
        kl_multivariate_normal_multivariate_normal,
        lambda x: MultivariateNormal(x[..., 0], x @ x.mT + torch.eye(3), validate_args=False),
        True,
    ),
    "precision": (
        kl_multivariate_normal_multivariate_normal,
        lambda x: MultivariateNormal(
            x[..., 0], precision_matrix=x @ x.mT + torch.eye(3), validate_args=False
        ),
        True,
    ),
    "factor": (
        kl_multivariate_normal_multivariate_normal,
        lambda x: MultivariateNormal(
            x[..., 0], scale_tril=x.tril(-1) + torch.diag_embed(x[..., 1].exp()), validate_args=False
        ),
        True,
    ),
    "low rank": (
        kl_gaussian_gaussian,
        lambda x: LowRankMultivariateNormal(x[..., 0], x[..., :2], x[..., 2].exp(), validate_args=False),
        True,
    ),
    "low rank in many dimensions": (
        kl_low_rank_low_rank,
        lambda x: LowRankMultivariateNormal(
            x.flatten(-2).repeat_interleave(8, -1),
            x.flatten(-2).repeat_interleave(8, -1).sin().unsqueeze(-1),
            x.flatten(-2).repeat_interleave(8, -1).exp(),
            validate_args=False,
        ),
        True,
    ),
    "Wishart": (
        kl_wishart_wishart,
        lambda x: Wishart(6 + x[..., 0, 0], x @ x.mT + torch.eye(3), validate_args=False),
        False,  # torch's constructor branches on numbers
    ),
    "LKJ": (kl_lkj_lkj, lambda x: LKJCholesky(3, x[..., 0, 0].exp(), validate_args=False), True),
    "relaxed trial": (
        kl_logit_relaxed_bernoulli,
        lambda x: LogitRelaxedBernoulli(UNIT, logits=x, validate_args=False),
        True,
    ),
    "relaxed classes": (
        kl_exp_relaxed_categorical,
        lambda x: ExpRelaxedCategorical(UNIT, logits=x, validate_args=False),
        True,
    ),
}


@pytest.mark.parametrize("name", CLOSED)
def test_batches_broadcast(name: str) -> None:
    _, make, _ = CLOSED[name]
    x, y = numbers(1, 2, 1, 3, 3), numbers(2, 4, 3, 3)
    value = kl_divergence(make(x), make(y))
    assert value.shape[:2] == (2, 4)
    for i in range(2):
        for j in range(4):
            torch.testing.assert_close(
                value[i, j], kl_divergence(make(x[i, 0]), make(y[j])), rtol=1e-12, atol=0
            )
    wider = make(x).expand((5, *make(x).batch_shape))
    torch.testing.assert_close(kl_divergence(wider, make(y)), value.expand(5, *value.shape))


@pytest.mark.parametrize("name", CLOSED)
def test_equal_distributions_are_at_exactly_0_with_gradient_0(name: str) -> None:
    _, make, _ = CLOSED[name]
    x, y = numbers(1, 2, 3, 3).requires_grad_(), numbers(1, 2, 3, 3).requires_grad_()
    value = kl_divergence(make(x), make(y)).sum()
    assert value == 0
    for gradient in torch.autograd.grad(value, (x, y)):
        assert not gradient.any()


@pytest.mark.heavy
@pytest.mark.parametrize("name", [name for name in CLOSED if CLOSED[name][2]])
def test_closed_forms_vmap_and_compile(name: str) -> None:
    function, make, _ = CLOSED[name]

    def of(x: Tensor, y: Tensor) -> Tensor:
        return function(make(x), make(y))

    def total(x: Tensor, y: Tensor) -> Tensor:
        return of(x, y).sum()

    x, y = numbers(1, 3, 3, 3), numbers(2, 3, 3, 3)
    expected = of(x, y)
    torch.testing.assert_close(torch.func.vmap(of)(x, y), expected)
    derivative = torch.func.vmap(torch.func.grad(total))(x, y)
    torch._dynamo.reset()
    compiled = torch.compile(of, fullgraph=True, backend="aot_eager")
    x.requires_grad_()
    value = compiled(x, y)
    torch.testing.assert_close(value, expected)
    torch.testing.assert_close(torch.autograd.grad(value.sum(), x)[0], derivative)


@pytest.mark.sweep
@pytest.mark.parametrize("name", CLOSED)
def test_second_derivatives_are_right(name: str) -> None:
    _, make, _ = CLOSED[name]
    y = numbers(2, 3, 3)
    x = (y + 0.01 * numbers(1, 3, 3)).requires_grad_()
    assert torch.autograd.gradgradcheck(lambda z: kl_divergence(make(z), make(y)).sum(), x)


def test_a_mean_may_have_more_batches_than_the_covariance() -> None:
    p = MultivariateNormal(numbers(1, 5, 3), spread_matrix(2, 9, 3))
    q = MultivariateNormal(numbers(3, 3), spread_matrix(4, 9, 3))
    singly = [kl_divergence(MultivariateNormal(m, spread_matrix(2, 9, 3)), q) for m in p.loc]
    torch.testing.assert_close(kl_divergence(p, q), torch.stack(singly))
    # torch's own checks fail on an empty batch.
    empty = MultivariateNormal(numbers(1, 0, 3), spread_matrix(2, 9, 3), validate_args=False)
    assert kl_divergence(empty, q).shape == (0,)


@pytest.mark.parametrize("gradient", [False, True])
def test_a_diagonal_and_factors_that_one_batch_shares_are_those_of_each_element(gradient: bool) -> None:
    draw = torch.Generator().manual_seed(0)
    mean = torch.randn(3, 2, generator=draw, dtype=torch.float64).requires_grad_(gradient)
    factors, variances = (
        torch.tensor([[0.5], [-1.0]], dtype=torch.float64),
        torch.ones(2, dtype=torch.float64),
    )
    diagonal = Independent(Normal(mean, torch.tensor([0.5, 2.0], dtype=torch.float64)), 1)
    shared = LowRankMultivariateNormal(torch.zeros(3, 2, dtype=torch.float64), factors, variances)
    expanded = LowRankMultivariateNormal(torch.zeros(2, dtype=torch.float64), factors, variances).expand((3,))
    full = MultivariateNormal(torch.zeros(2, dtype=torch.float64), factors @ factors.mT + torch.eye(2))
    for low_rank in (shared, expanded):
        torch.testing.assert_close(kl_divergence(diagonal, low_rank), kl_divergence(diagonal, full))
        torch.testing.assert_close(kl_divergence(low_rank, diagonal), kl_divergence(full, diagonal))


def test_half_precision_is_computed_in_double() -> None:
    roots = [torch.linalg.cholesky(spread_matrix(i, 20, 3)).half() for i in (1, 2)]
    p, q = (MultivariateNormal(torch.zeros(3).half(), scale_tril=root) for root in roots)
    value = kl_divergence(p, q)
    assert value.dtype == torch.float16
    exact = [MultivariateNormal(torch.zeros(3).double(), scale_tril=root.double()) for root in roots]
    assert value == kl_divergence(*exact).half()


def test_sizes_that_differ_are_an_error() -> None:
    for p, q in (
        (Independent(Normal(torch.zeros(3), 1.0), 1), Independent(Normal(torch.zeros(1), 1.0), 1)),
        (MultivariateNormal(torch.zeros(3), torch.eye(3)), MultivariateNormal(torch.zeros(2), torch.eye(2))),
        (LKJCholesky(3), LKJCholesky(2)),
    ):
        with refused(ArgumentValueError, got="event_shape"):
            kl_divergence(p, q)


def test_independent_uniforms_outside_broadcast_to_the_wider_batch() -> None:
    p = Independent(Normal(torch.zeros(2, 3), 1.0), 1)
    q = Independent(Uniform(torch.zeros(4, 2, 3), 1.0), 1)
    assert torch.equal(kl_divergence(p, q), torch.full((4, 2), torch.inf))
