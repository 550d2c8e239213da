"""Entropy, cross-entropy and mutual information against mpmath and SciPy: values, gradients, edges and refusals."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import mpmath
import numpy as np
import pytest
import scipy.stats
import torch
from torch import Tensor, distributions as td

from kullback import (
    KL,
    Counts,
    JensenShannon,
    Logits,
    LogProbs,
    Probs,
    Samples,
    cross_entropy,
    divergence,
    entropy,
    errors,
    kl_divergence,
    mutual_information,
)
from tests.refusals import refused

INF = math.inf
WEIGHTS = {
    "uneven": [0.36, 0.48, 0.16],
    "uniform": [0.25, 0.25, 0.25, 0.25],
    "nearly sure": [1.0, 1e-18, 3e-17],
    "sure": [0.0, 1.0, 0.0],
    "ties and zeros": [0.5, 0.0, 0.5, 0.0],
    "one class": [1.0],
    "tiny": [1.0, 1e-300, 0.5],
}


def normalized(weights: Sequence[float]) -> list[Any]:
    exact = [mpmath.mpf(w) for w in weights]
    return [w / mpmath.fsum(exact) for w in exact]


def true_cross_entropy(p: Sequence[float], q: Sequence[float]) -> float:
    with mpmath.workdps(60):
        pairs = list(zip(normalized(p), normalized(q), strict=True))
        if any(a > 0 and b == 0 for a, b in pairs):
            return INF
        return float(-mpmath.fsum(a * mpmath.log(b) for a, b in pairs if a > 0))


def double(x: Any) -> Tensor:
    return torch.tensor(x, dtype=torch.float64)


@pytest.mark.parametrize("name", WEIGHTS)
@pytest.mark.parametrize("base", [None, 2])
def test_entropy_of_classes_is_the_sum(name: str, base: float | None) -> None:
    weights = double(WEIGHTS[name])
    unit = 1 if base is None else math.log(base)
    expected = true_cross_entropy(WEIGHTS[name], WEIGHTS[name]) / unit
    for p in (
        Counts(weights),
        Counts(weights * 2**40),
        Logits(weights.log() + 3.0),
        LogProbs(weights.log().log_softmax(-1)),
    ):
        assert float(entropy(p, base=base)) == pytest.approx(expected, rel=4e-14, abs=0)
    if abs(weights.sum() - 1) < 1e-9:
        assert float(entropy(Probs(weights), base=base)) == pytest.approx(expected, rel=4e-14, abs=0)


@pytest.mark.parametrize(
    ("p", "q"),
    [
        ([0.2, 0.3, 0.5], [0.5, 0.25, 0.25]),
        ([1.0, 1e-18, 0.0], [1.0, 1e-17, 1e-18]),
        ([0.0, 1.0], [0.5, 0.5]),
        ([0.0, 1.0], [0.0, 1.0]),
        ([0.5, 0.5], [0.0, 1.0]),
        ([1.0, 1e-200], [1e-250, 1.0]),
    ],
)
def test_cross_entropy_of_classes_is_the_sum(p: list[float], q: list[float]) -> None:
    expected = true_cross_entropy(p, q)
    inputs = [double(x).requires_grad_() for x in (p, q)]
    for first in (Counts, lambda x: Logits(x.log())):
        for second in (Counts, lambda x: Logits(x.log())):
            value = cross_entropy(first(inputs[0]), second(inputs[1]))
            assert value.item() == pytest.approx(expected, rel=1e-13, abs=0)
    weights = cross_entropy(*map(Counts, inputs))
    assert all(bool(x.isfinite().all()) for x in torch.autograd.grad(weights, inputs))
    logits = [double(x).log().requires_grad_() for x in (p, q)]
    by_p, by_q = torch.autograd.grad(cross_entropy(*map(Logits, logits)), logits)
    if expected == INF:
        assert by_p.tolist() == by_q.tolist() == [0.0, 0.0]
        return
    with mpmath.workdps(60):
        a, b = normalized(p), normalized(q)
        codes = [0 if y == 0 else -mpmath.log(y) for y in b]
        true_p = [float(x * (code - expected)) if x > 0 else 0.0 for x, code in zip(a, codes, strict=True)]
        true_q = [float(y - x) for x, y in zip(a, b, strict=True)]
    torch.testing.assert_close(by_p, double(true_p), rtol=1e-12, atol=1e-15)
    torch.testing.assert_close(by_q, double(true_q), rtol=1e-12, atol=1e-15)


def test_cross_entropy_is_entropy_plus_kl_and_torchs_loss() -> None:
    p, q = torch.randn(2, 5, 7, dtype=torch.float64)
    value = cross_entropy(Logits(p), Logits(q))
    torch.testing.assert_close(value, entropy(Logits(p)) + kl_divergence(Logits(p), Logits(q)))
    torch.testing.assert_close(value, torch.nn.functional.cross_entropy(q, p.softmax(-1), reduction="none"))


def test_gradients_are_those_of_the_values() -> None:
    p, q = torch.randn(2, 3, 4, dtype=torch.float64, requires_grad=True)
    table = torch.rand(2, 3, 4, dtype=torch.float64, requires_grad=True)
    for call, inputs in (
        (lambda x: entropy(Logits(x)), (p,)),
        (lambda x: entropy(Counts(x.exp())), (p,)),
        (lambda x, y: cross_entropy(Logits(x), Logits(y)), (p, q)),
        (lambda x: mutual_information(Counts(x, dim=(-2, -1))), (table,)),
        (lambda x: mutual_information(Logits(x, dim=(-2, -1))), (table,)),
    ):
        assert torch.autograd.gradcheck(call, inputs)
        assert torch.autograd.gradgradcheck(call, inputs)


def test_gradients_at_the_edges_are_numbers() -> None:
    x = double([0.5, 0.0, 0.5]).requires_grad_()
    (by_probs,) = torch.autograd.grad(entropy(Probs(x)), x)
    assert by_probs.tolist() == [0.0, 0.0, 0.0]
    masked = double([1.0, -INF, 1.0]).requires_grad_()
    (by_logits,) = torch.autograd.grad(entropy(Logits(masked)), masked)
    assert by_logits.tolist() == [0.0, 0.0, 0.0]
    weights = double([[0.25, 0.0, 0.25], [0.0, 0.0, 0.0], [0.5, 0.0, 0.0]])
    for make, values in ((Counts, weights), (Probs, weights), (Logits, weights.log())):
        table = values.clone().requires_grad_()
        (by_table,) = torch.autograd.grad(mutual_information(make(table, dim=(0, 1))), table)
        assert bool(by_table.isfinite().all())
        assert (by_table[weights == 0] == 0).all()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=str)
def test_low_precision_is_computed_in_float64_and_rounded_once(dtype: torch.dtype) -> None:
    x, y = torch.randn(2, 6, 9).to(dtype)
    for value, exact in (
        (entropy(Logits(x)), entropy(Logits(x.double()))),
        (cross_entropy(Logits(x), Logits(y)), cross_entropy(Logits(x.double()), Logits(y.double()))),
        (
            mutual_information(Logits(x, dim=(-2, -1))),
            mutual_information(Logits(x.double(), dim=(-2, -1))),
        ),
    ):
        assert value.dtype == dtype
        torch.testing.assert_close(value, exact.to(dtype), rtol=0, atol=0)


@pytest.mark.heavy
def test_they_compile_in_one_graph_and_batch() -> None:
    x, y = torch.randn(2, 4, 6, dtype=torch.float64)
    for call in (
        lambda a, b: entropy(Logits(a)) + cross_entropy(Logits(a), Logits(b)),
        lambda a, b: mutual_information(Logits(torch.stack([a, b], -1), dim=(-2, -1))),
    ):
        torch.testing.assert_close(torch.compile(call, fullgraph=True, backend="aot_eager")(x, y), call(x, y))
        torch.testing.assert_close(torch.vmap(call)(x, y), call(x, y))


def test_shapes_dims_and_empty_batches() -> None:
    x, y = torch.randn(2, 4, 3), torch.randn(4, 3)
    torch.testing.assert_close(entropy(Logits(x.movedim(-1, 0), dim=0)), entropy(Logits(x)))
    assert cross_entropy(Logits(x), Logits(y)).shape == (2, 4)
    assert entropy(Logits(torch.zeros(0, 3))).shape == (0,)
    assert cross_entropy(Logits(torch.zeros(0, 3)), Logits(y[:1])).shape == (0,)
    assert mutual_information(Logits(torch.zeros(0, 3, 2), dim=(-2, -1))).shape == (0,)
    assert entropy(Counts([3, 3])).dtype == torch.get_default_dtype()
    many = torch.randn(3000, 100)
    torch.testing.assert_close(entropy(Logits(many))[2500], entropy(Logits(many[2500])))


DISTRIBUTIONS = {
    "Normal": (td.Normal(double([0.0, 1.0]), double([1e-3, 4.0])), [scipy.stats.norm(0, 1e-3), scipy.stats.norm(1, 4)]),
    "Gamma": (td.Gamma(double(2.5), double(0.5)), [scipy.stats.gamma(2.5, scale=2)]),
    "Beta": (td.Beta(double(0.5), double(3.0)), [scipy.stats.beta(0.5, 3)]),
    "Laplace": (td.Laplace(double(0.0), double(2.0)), [scipy.stats.laplace(0, 2)]),
    "StudentT": (td.StudentT(double(3.0)), [scipy.stats.t(3)]),
    "Gumbel": (td.Gumbel(double(1.0), double(2.0)), [scipy.stats.gumbel_r(1, 2)]),
    "Weibull": (td.Weibull(double(2.0), double(1.5)), [scipy.stats.weibull_min(1.5, scale=2)]),
    "Uniform": (td.Uniform(double(-1.0), double(3.0)), [scipy.stats.uniform(-1, 4)]),
    "LogNormal": (td.LogNormal(double(0.3), double(0.7)), [scipy.stats.lognorm(0.7, scale=math.exp(0.3))]),
    "Dirichlet": (td.Dirichlet(double([0.5, 1.5, 3.0])), [scipy.stats.dirichlet([0.5, 1.5, 3.0])]),
    "Categorical": (td.Categorical(double([0.2, 0.8])), [scipy.stats.rv_discrete(values=(range(2), [0.2, 0.8]))]),
    "Bernoulli": (td.Bernoulli(double([0.2, 0.9])), [scipy.stats.bernoulli(0.2), scipy.stats.bernoulli(0.9)]),
    "logits": (td.Bernoulli(logits=double(math.log(0.25))), [scipy.stats.bernoulli(0.2)]),
    "Geometric": (td.Geometric(double(0.3)), [scipy.stats.geom(0.3, loc=-1)]),
    "HalfCauchy": (td.HalfCauchy(double(2.0)), [scipy.stats.halfcauchy(scale=2)]),
    "HalfNormal": (td.HalfNormal(double(2.0)), [scipy.stats.halfnorm(scale=2)]),
    "Pareto": (td.Pareto(double(1.5), double(2.5)), [scipy.stats.pareto(2.5, scale=1.5)]),
    "InverseGamma": (td.InverseGamma(double(2.5), double(1.5)), [scipy.stats.invgamma(2.5, scale=1.5)]),
    "Exponential": (td.Exponential(double(2.0)), [scipy.stats.expon(scale=0.5)]),
    "Cauchy": (td.Cauchy(double(0.0), double(2.0)), [scipy.stats.cauchy(0, 2)]),
    "Wishart": (td.Wishart(double(4.0), torch.eye(2).double() + 0.5), [scipy.stats.wishart(4, np.eye(2) + 0.5)]),
    "Binomial": (td.Binomial(7, double(0.3)), [scipy.stats.binom(7, 0.3)]),
}  # fmt: skip


@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_entropy_of_a_distribution_is_scipys(name: str) -> None:
    d, theirs = DISTRIBUTIONS[name]
    expected = double([float(x.entropy()) for x in theirs])
    torch.testing.assert_close(entropy(d).reshape(-1), expected, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(cross_entropy(d, d), entropy(d))


def test_a_sure_bernoulli_has_no_entropy_and_a_nearly_sure_one_keeps_its_digits() -> None:
    probs = torch.tensor([0.0, 1.0, 1e-12, 0.5])
    expected = [0.0, 0.0, true_cross_entropy(*[[1 - float(probs[2]), float(probs[2])]] * 2), math.log(2)]
    torch.testing.assert_close(entropy(td.Bernoulli(probs)), torch.tensor(expected), rtol=1e-6, atol=0)
    with mpmath.workdps(60):
        tail = mpmath.exp(-60) / (1 + mpmath.exp(-60))
        small = float(-tail * mpmath.log(tail) - (1 - tail) * mpmath.log(1 - tail))
    assert float(entropy(td.Bernoulli(logits=double(-60.0)))) == pytest.approx(small, rel=1e-13)
    independent = td.Independent(td.Bernoulli(probs), 1)
    torch.testing.assert_close(entropy(independent), torch.tensor(sum(expected)))


def test_cross_entropy_of_distributions() -> None:
    p, q = td.Normal(double(0.0), double(1.0)), td.Normal(double(1.0), double(2.0))
    expected = math.log(2 * math.sqrt(2 * math.pi)) + (1 + 1) / 8
    assert float(cross_entropy(p, q)) == pytest.approx(expected, rel=1e-14)
    assert float(cross_entropy(p, q, base=2)) == pytest.approx(expected / math.log(2), rel=1e-14)
    assert cross_entropy(td.Uniform(0.0, 2.0), td.Uniform(0.0, 1.0)) == INF
    assert entropy(td.Normal(torch.zeros(3), 1.0)).dtype == torch.float32
    scale = double(2.0).requires_grad_()
    (by_scale,) = torch.autograd.grad(entropy(td.Normal(0.0, scale)), scale)
    assert float(by_scale) == pytest.approx(0.5)


TABLES = {
    "dependent": [[30.0, 10.0], [10.0, 30.0]],
    "one to one": [[1.0, 0.0, 0.0], [0.0, 2.0, 0.0]],
    "rare": [[1.0, 1e-200], [1e-200, 1e-220]],
    "nearly independent": [[0.25 + 1e-6, 0.25 - 1e-6], [0.25 - 1e-6, 0.25 + 1e-6]],
    "an empty row": [[1.0, 3.0], [0.0, 0.0], [5.0, 2.0]],
}


@pytest.mark.parametrize("name", TABLES)
def test_mutual_information_is_the_sum_over_the_table(name: str) -> None:
    table = double(TABLES[name])
    with mpmath.workdps(60):
        total = mpmath.fsum(mpmath.mpf(float(x)) for x in table.flatten())
        cells = [[mpmath.mpf(float(x)) / total for x in row] for row in table]
        rows, columns = (
            [mpmath.fsum(row) for row in cells],
            [mpmath.fsum(c) for c in zip(*cells, strict=True)],
        )
        expected = float(
            mpmath.fsum(
                x * mpmath.log(x / (a * b))
                for row, a in zip(cells, rows, strict=True)
                for x, b in zip(row, columns, strict=True)
                if x > 0
            )
        )
    for joint in (
        Counts(table, dim=(-2, -1)),
        Counts(table.tolist(), dim=(0, 1)) if name != "rare" else Counts(table, dim=(0, 1)),
        Probs(table / table.sum(), dim=(-2, -1)),
        Logits(table.log() - 5, dim=(-1, -2)),
    ):
        got = float(mutual_information(joint))
        tolerance = 1e-6 if joint.tensor.dtype == torch.float32 else 1e-9
        assert got == pytest.approx(expected, rel=tolerance, abs=1e-6 if tolerance == 1e-6 else 1e-17)
        assert got >= 0


def test_mutual_information_of_a_batch_is_entropies_and_zero_for_independent_variables() -> None:
    joint = torch.rand(4, 3, 5, dtype=torch.float64)
    joint = joint / joint.sum((-2, -1), keepdim=True)
    expected = (
        entropy(Probs(joint.sum(-1))) + entropy(Probs(joint.sum(-2))) - entropy(Probs(joint, dim=(-2, -1)))
    )
    torch.testing.assert_close(mutual_information(Probs(joint, dim=(-2, -1))), expected)
    moved = joint.movedim(-1, 0)
    torch.testing.assert_close(mutual_information(Probs(moved, dim=(-1, 0))), expected)
    assert mutual_information(Counts([[2, 2], [2, 2]], dim=(-2, -1))) == 0
    product = double([0.3, 0.7])[:, None] * double([0.2, 0.5, 0.3])
    assert float(mutual_information(Probs(product, dim=(0, 1)))) < 1e-30


def test_a_table_is_one_distribution_in_every_call() -> None:
    p, q = torch.randn(2, 3, 4, 5, dtype=torch.float64)
    flat = kl_divergence(Logits(p.flatten(1)), Logits(q.flatten(1)))
    joined = kl_divergence(Logits(p, dim=(1, 2)), Logits(q, dim=(-2, -1)))
    torch.testing.assert_close(joined, flat, rtol=0, atol=0)
    assert Logits(p, dim=(1, 2)).class_shape == (4, 5)
    assert Logits(p, dim=1).class_shape == (4,)
    for dims in ((0, 0), (0, 5), (), (0.5, 1)):
        with pytest.raises(
            errors.ArgumentValueError, match=r"^Logits\(dim=\.\.\.\): .*Write: Logits\(x, dim=\(-2, -1\)\)"
        ):
            Logits(p[0], dim=dims)  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", [KL(), JensenShannon()], ids=str)
def test_a_pairwise_matrix_is_broadcasting(kind: Any) -> None:
    x, y = torch.randn(4, 6, dtype=torch.float64), torch.randn(3, 6, dtype=torch.float64)
    matrix = divergence(Logits(x[:, None]), Logits(y), kind)
    assert matrix.shape == (4, 3)
    for i, row in enumerate(x):
        for j, column in enumerate(y):
            torch.testing.assert_close(matrix[i, j], divergence(Logits(row), Logits(column), kind))


class Shifted(td.Normal):
    """A subclass with its own density, which the entropy of its base class does not describe."""

    def log_prob(self, value: Tensor) -> Tensor:
        return super().log_prob(value - 1)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: entropy(torch.rand(3)), r"^entropy\(p=\.\.\.\): a tensor does not say"),  # type: ignore[arg-type]
        (lambda: entropy(td.Poisson(3.0)), r"^entropy\(p=.*got Poisson. Write: -p.log_prob"),
        (lambda: entropy(td.Multinomial(5, double([0.2, 0.8]))), r"^entropy\(p=.*got Multinomial"),
        (lambda: entropy(Shifted(0.0, 1.0)), r"^entropy\(p=.*got Shifted"),
        (lambda: entropy(Samples([1, 2, 3])), r"^entropy\(p=.*got Samples. Write: Counts"),
        (lambda: entropy(Probs([1.0]), base=1), r"^entropy\(base="),
        (lambda: cross_entropy(Probs([1.0]), Probs([0.5, 0.5])), r"^cross_entropy\(p=\.\.\., q=\.\.\.\)"),
        (lambda: cross_entropy(Probs([1.0]), td.Normal(0.0, 1.0)), r"got Probs and Normal. Write: cross_entropy"),
        (lambda: cross_entropy(td.Normal(0.0, 1.0), td.Poisson(1.0)), r"^cross_entropy\(p"),
        (lambda: mutual_information(Probs([0.5, 0.5])), r"^mutual_information\(joint=.*Write: Probs\(table, dim="),
        (lambda: mutual_information(td.Normal(0.0, 1.0)), r"^mutual_information\(joint="),  # type: ignore[arg-type]
    ],
)  # fmt: skip
def test_refusals_name_the_call_and_the_remedy(call: Any, message: str) -> None:
    with pytest.raises(errors.KullbackError, match=message):
        call()


def test_the_remedies_work() -> None:
    p = td.Poisson(double(3.0))
    with torch.random.fork_rng():
        torch.manual_seed(0)
        estimate = -p.log_prob(p.sample((100_000,))).mean(0)
    assert float(estimate) == pytest.approx(float(scipy.stats.poisson(3).entropy()), abs=0.01)
    assert float(entropy(Counts(torch.tensor([1, 2, 2]).bincount()))) == pytest.approx(
        math.log(3) - 2 / 3 * math.log(2)
    )


def test_mutual_information_of_draws_names_the_table_to_write() -> None:
    draw = torch.Generator().manual_seed(0)
    numbers = torch.randn(500, 2, generator=draw)
    integers = torch.randint(3, 7, (500, 2), generator=draw)
    apart = torch.stack([integers[:, 0], integers[:, 0] * 5 - 7], 1)
    for x in (numbers, integers, apart, numbers.numpy()):
        with refused(errors.ArgumentValueError, wanted="joint table") as caught:
            mutual_information(Samples(x))
        line = (caught.value.instead or "").partition(", the table")[0]
        table = eval(line, {"Counts": Counts, "torch": torch, "x": x})  # noqa: S307
        assert float(table.tensor.sum()) == 500
        value = float(mutual_information(table))
        if x is apart:
            counts = torch.bincount(integers[:, 0])[3:] / 500
            assert value == pytest.approx(float(-(counts * counts.log()).sum()), rel=1e-6)
        else:
            assert value < 0.05
    with refused(errors.ArgumentValueError, instead=r"pandas\.crosstab\(a, b\)"):
        mutual_information(Samples(torch.randn(500, 3, generator=draw)))
