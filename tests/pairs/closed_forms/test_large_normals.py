"""Normals of many dimensions: their covariances repeat a small one in shuffled order, so that mpmath knows KL."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import product
from typing import Any

import mpmath
import pytest
import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.distributions import (
    Distribution,
    Independent,
    LowRankMultivariateNormal,
    MultivariateNormal,
    Normal,
    kl_divergence as of_torch,
)

from kullback import kl_divergence, kl_estimate
from kullback.pairs.closed_forms import large_normals, multivariate_normal

COPIES, SMALL = 32, 5
SIZE = COPIES * SMALL
FULL = ("covariance_matrix", "precision_matrix", "scale_tril")
SPELLINGS = (*FULL, "low rank", "diagonal")
SHUFFLED = torch.randperm(SIZE, generator=torch.Generator().manual_seed(0))


def small_matrices(side: int) -> dict[str, Tensor]:
    """The small mean and matrices of P (0) or Q (1), whose entries are exact in float32."""
    draw = torch.Generator().manual_seed(side)
    mixing = torch.randint(-8, 9, (SMALL, SMALL), generator=draw).double() / 8
    noise = torch.randint(4, 17, (SMALL,), generator=draw).double() / 8
    return {
        "mean": torch.randint(-8, 9, (SMALL,), generator=draw).double() / 16,
        "scale_tril": mixing.tril(-1) + torch.diag(noise),
        "covariance_matrix": mixing @ mixing.mT + torch.diag(noise),
        "precision_matrix": mixing @ mixing.mT + torch.diag(noise),
        "factor": mixing[:, :1],
        "noise": noise,
    }


def repeated(matrix: Tensor) -> Tensor:
    """Copies of a small matrix along the diagonal."""
    return torch.block_diag(*[matrix] * COPIES)


def large(spelling: str, side: int, dtype: torch.dtype) -> tuple[Distribution, list[Tensor]]:
    """A distribution of `SIZE` dimensions and its parameters, which require gradients."""
    small = small_matrices(side)
    mean = small["mean"].repeat(COPIES)
    if spelling in ("low rank", "diagonal"):
        noise = small["noise"].repeat(COPIES)[SHUFFLED]
        matrices = [repeated(small["factor"])[SHUFFLED], noise] if spelling == "low rank" else [noise]
        mean = mean[SHUFFLED]
    elif spelling == "scale_tril":
        matrices = [repeated(small[spelling])]  # shuffled, it is no longer triangular
    else:
        mean, matrices = mean[SHUFFLED], [repeated(small[spelling])[SHUFFLED][:, SHUFFLED]]
    leaves = [x.to(dtype).requires_grad_() for x in (mean, *matrices)]
    if spelling == "low rank":
        return LowRankMultivariateNormal(leaves[0], leaves[1], leaves[2]), leaves
    if spelling == "diagonal":
        return Independent(Normal(leaves[0], leaves[1]), 1), leaves
    return MultivariateNormal(leaves[0], **{spelling: leaves[1]}), leaves  # pyright: ignore[reportArgumentType]


def true_moments(spelling: str, side: int) -> tuple[Any, Any]:
    small = {name: mpmath.matrix(x.tolist()) for name, x in small_matrices(side).items()}
    covariance = {
        "covariance_matrix": lambda: small["covariance_matrix"],
        "precision_matrix": lambda: small["precision_matrix"] ** -1,
        "scale_tril": lambda: small["scale_tril"] * small["scale_tril"].T,
        "low rank": lambda: small["factor"] * small["factor"].T + mpmath.diag(list(small["noise"])),
        "diagonal": lambda: mpmath.diag([x**2 for x in small["noise"]]),
    }[spelling]()
    return small["mean"], covariance


def truth(of_p: str, of_q: str) -> Any:
    with mpmath.workdps(50):
        (mean_p, cov_p), (mean_q, cov_q) = (true_moments(of_p, 0), true_moments(of_q, 1))
        inverse, shift = cov_q**-1, mean_p - mean_q
        share = inverse * cov_p
        trace = mpmath.fsum(share[i, i] for i in range(SMALL))
        log_det = mpmath.log(mpmath.det(cov_q) / mpmath.det(cov_p))
        return COPIES * (trace - SMALL + log_det + (shift.T * inverse * shift)[0]) / 2


def pairs() -> Iterator[tuple[str, str]]:
    """The pairs of spellings in the same order of dimensions."""
    for of_p, of_q in product(SPELLINGS, SPELLINGS):
        if ("scale_tril" in (of_p, of_q)) is not (of_p == of_q == "scale_tril") or of_p == of_q == "diagonal":
            continue
        yield of_p, of_q


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_values_and_errors_are_those_of_mpmath(dtype: torch.dtype) -> None:
    for of_p, of_q in pairs():
        (p, _), (q, _) = large(of_p, 0, dtype), large(of_q, 1, dtype)
        true = truth(of_p, of_q)
        for shape in ((), (3,)):
            left, right = p.expand(torch.Size(shape)), q
            value, estimate = kl_divergence(left, right), kl_estimate(left, right)
            assert value.shape == shape
            assert value.dtype == dtype
            off = max(abs(mpmath.mpf(x) - true) for x in value.flatten().tolist())
            assert off < (1e-13 if dtype == torch.float64 else 1.2e-7) * true, (of_p, of_q, shape)
            assert torch.equal(estimate.value, value)
            assert float(estimate.error.min()) >= off, (of_p, of_q)
            assert float(estimate.error.max()) < 1e-6 * true, (of_p, of_q)


def test_gradients_are_those_of_torch_and_may_be_differentiated_again() -> None:
    for of_p, of_q in pairs():
        (p, leaves_p), (q, leaves_q) = large(of_p, 0, torch.float64), large(of_q, 1, torch.float64)
        leaves = leaves_p + leaves_q
        as_low_rank = [_without_diagonal(d) for d in (p, q)]
        expected = torch.autograd.grad(of_torch(*as_low_rank), leaves, retain_graph=True)
        for again in (False, True):
            ours = torch.autograd.grad(kl_divergence(p, q), leaves, retain_graph=True, create_graph=again)
            for a, b in zip(ours, expected, strict=True):
                change = a - b
                if a.shape == (SIZE, SIZE):  # known up to an antisymmetric part, or below the diagonal
                    change = change.tril() if of_p == "scale_tril" else change + change.mT
                assert float(change.detach().abs().max()) < 1e-9 * float(b.abs().max()), (of_p, of_q)
        second = torch.autograd.grad(kl_divergence(p, q), leaves_p[0], create_graph=True)[0].sum()
        (curvature,) = torch.autograd.grad(second, leaves_p[0])
        expected_curvature = torch.linalg.solve(_covariance(q), torch.ones(SIZE, dtype=torch.float64))
        torch.testing.assert_close(curvature, expected_curvature.detach(), rtol=1e-9, atol=1e-10)


def test_derivatives_in_float32_do_not_depend_on_how_they_are_asked_for() -> None:
    """The parameters are exact in float32, so that those of torch in float64 are the truth."""
    for name in FULL:
        for other in (name, "low rank"):
            if other != name == "scale_tril":
                continue  # not in the same order of dimensions
            _assert_derivatives(name, other)


def _assert_derivatives(of_p: str, of_q: str) -> None:
    wanted: list[Tensor] = []
    for dtype, divergence in ((torch.float64, of_torch), (torch.float32, kl_divergence)):
        (p, leaves), (q, others) = large(of_p, 0, dtype), large(of_q, 1, dtype)
        leaves += others
        value = divergence(p, q)
        gradients = [torch.autograd.grad(value, leaves, retain_graph=True)]
        if not wanted:
            wanted = list(gradients[0])
            direction = [torch.linspace(-1, 1, x.numel()).reshape(x.shape).to(dtype) for x in leaves]
            direction = [
                x + x.mT if x.shape == (SIZE, SIZE) and of_p != "scale_tril" else x for x in direction
            ]
            along = sum(
                float((x * (y.tril() if of_p == "scale_tril" and y.ndim == 2 else y)).sum())
                for x, y in zip(wanted, direction, strict=True)
            )
            continue
        gradients.append(torch.autograd.grad(divergence(p, q), leaves, create_graph=True))
        batched = torch.autograd.grad(value, leaves, torch.tensor([1.0, 2.0]), is_grads_batched=True)
        gradients += [[x[0] for x in batched], [x[1] / 2 for x in batched]]
        for found in gradients:
            for a, b in zip(found, wanted, strict=True):
                change = a.detach().double() - b
                if a.shape == (SIZE, SIZE):
                    change = change.tril() if of_p == "scale_tril" else change + change.mT
                assert float(change.abs().max()) < 1e-6 * float(b.abs().max()), (of_p, of_q)
        with forward_ad.dual_level():
            of_two = zip(leaves, direction, strict=True)
            duals = [forward_ad.make_dual(x.detach(), y.float()) for x, y in of_two]
            sides = _of_leaves(of_p, duals[:2]), _of_leaves(of_q, duals[2:])
            tangent = forward_ad.unpack_dual(divergence(*sides)).tangent
        assert tangent.item() == pytest.approx(along, rel=1e-5), (of_p, of_q)


def _of_leaves(spelling: str, leaves: list[Tensor]) -> Distribution:
    if spelling == "low rank":
        return LowRankMultivariateNormal(leaves[0], leaves[1], leaves[2])
    return MultivariateNormal(leaves[0], **{spelling: leaves[1]})  # pyright: ignore[reportArgumentType]


def _without_diagonal(d: Any) -> Distribution:
    if not isinstance(d, Independent):
        return d
    base: Any = d.base_dist
    return LowRankMultivariateNormal(base.loc, torch.zeros(SIZE, 1, dtype=torch.float64), base.scale**2)


def _covariance(d: Any) -> Tensor:
    return torch.diag(d.base_dist.scale**2) if isinstance(d, Independent) else d.covariance_matrix


def test_no_covariance_is_formed_or_corrected(monkeypatch: pytest.MonkeyPatch) -> None:
    """The exact forms take many times longer."""

    def refuse(*_: object) -> None:
        pytest.fail("an exact form was called")

    for name in ("moments", "factors_of", "of_low_rank"):
        monkeypatch.setattr(multivariate_normal, name, refuse)
    for dtype in (torch.float32, torch.float64):
        for of_p, of_q in pairs():
            (p, _), (q, _) = large(of_p, 0, dtype), large(of_q, 1, dtype)
            assert bool(kl_divergence(p, q) > 0), (of_p, of_q)
            assert bool(kl_estimate(p, q).value > 0), (of_p, of_q)


def test_nearly_equal_covariances_keep_their_digits() -> None:
    """A covariance against itself times 1 + e: KL is d (e - log(1 + e)) / 2 for the inverse ratio."""
    for spelling, e in product(("covariance_matrix", "precision_matrix"), (2.0**-10, 2.0**-20, 2.0**-30)):
        (p, (_, matrix)) = large(spelling, 0, torch.float64)
        q: Any = MultivariateNormal(p.mean, **{spelling: matrix.detach() * (1 + e)})  # pyright: ignore[reportArgumentType]
        with mpmath.workdps(50):
            change = mpmath.mpf(e) if spelling == "precision_matrix" else 1 / (1 + mpmath.mpf(e)) - 1
            true = SIZE * (change - mpmath.log1p(change)) / 2
            assert abs(mpmath.mpf(kl_divergence(p, q).item()) / true - 1) < 1e-9, (spelling, e)
        same = kl_divergence(p, p)
        assert same.item() == 0


def test_ill_conditioned_covariances_keep_their_digits() -> None:
    """Two variables of every five have a correlation of 1 - 2^-k."""
    for k in (10, 24, 40):
        small = torch.eye(SMALL, dtype=torch.float64)
        small[0, 4] = small[4, 0] = 1 - 2.0**-k
        covariance = repeated(small)[SHUFFLED][:, SHUFFLED]
        mean = torch.zeros(SIZE, dtype=torch.float64)
        p, q = MultivariateNormal(mean, torch.eye(SIZE).double()), MultivariateNormal(mean, covariance)
        with mpmath.workdps(50):
            tight = 2 * mpmath.mpf(2) ** -k - mpmath.mpf(2) ** (-2 * k)  # the determinant of the two
            for (left, right), true in (
                ((p, q), COPIES * (2 / tight - 2 + mpmath.log(tight)) / 2),
                ((q, p), -COPIES * mpmath.log(tight) / 2),
            ):
                estimate = kl_estimate(left, right)
                off = abs(mpmath.mpf(estimate.value.item()) - true)
                assert off < 1e-9 * true, k
                assert off <= float(estimate.error), k


def test_a_factor_follows_a_change_of_its_matrix() -> None:
    """The factor in float64 is stored, also for gradients, and computed again after the matrix has changed."""
    computed = []
    rule = large_normals._computed_root
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(large_normals, "_computed_root", lambda *a, **b: computed.append(1) or rule(*a, **b))
        for change in (lambda x: x.mul_(4), lambda x: x.data.mul_(4)):
            mean, matrix = torch.zeros(SIZE), large("covariance_matrix", 0, torch.float32)[1][1].detach()
            p = MultivariateNormal(mean, matrix)
            q = MultivariateNormal(mean, 2 * matrix)
            computed.clear()
            before = [kl_divergence(p, q).item() for _ in range(3)]
            assert len(computed) == 2
            assert before == pytest.approx([SIZE * (0.5 - 1 - math.log(0.5)) / 2] * 3, rel=1e-6)
            change(matrix)  # p reads the same memory
            after = kl_divergence(p, q).item()
            assert after == pytest.approx(SIZE * (2 - 1 - math.log(2)) / 2, rel=1e-6)
        (p, leaves), (q, others) = (large("covariance_matrix", side, torch.float32) for side in (0, 1))
        computed.clear()
        for _ in range(2):
            torch.autograd.grad(kl_divergence(p, q), leaves + others, retain_graph=True)
            with torch.no_grad():
                kl_divergence(p, q)
        assert len(computed) == 2
        off_diagonal = torch.eye(SIZE)
        p, q = MultivariateNormal(mean, off_diagonal), MultivariateNormal(mean, torch.eye(SIZE))
        assert kl_divergence(p, q).item() == 0
        off_diagonal.data[0, 1] = off_diagonal.data[1, 0] = 0.6
        assert kl_divergence(p, q).item() == pytest.approx(-math.log(1 - 0.6**2) / 2, rel=1e-5)


def test_a_user_matrix_is_read_below_its_diagonal() -> None:
    """Nobody checks that the matrix of a user without validation is triangular."""
    root = large("scale_tril", 0, torch.float64)[1][1].detach()
    mean = torch.zeros(SIZE, dtype=torch.float64)
    q = LowRankMultivariateNormal(mean, torch.ones(SIZE, 1).double(), torch.ones(SIZE).double())
    for other in (MultivariateNormal(mean, scale_tril=2 * root), q):
        expected = kl_divergence(MultivariateNormal(mean, scale_tril=root), other)
        full = root + torch.ones_like(root).triu(1)
        value = kl_divergence(MultivariateNormal(mean, scale_tril=full, validate_args=False), other)
        assert value.item() == pytest.approx(expected.item(), rel=1e-13)
