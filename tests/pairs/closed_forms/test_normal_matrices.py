"""Normal vectors from covariances and precisions: by torch's factors where these have the digits, else without."""

from __future__ import annotations

from typing import Any

import mpmath
import pytest
import torch
from mpmath import mpf
from torch.distributions import MultivariateNormal

from kullback import kl_divergence
from kullback.pairs.closed_forms import multivariate_normal


def true_normal(mean_p: torch.Tensor, cov_p: Any, mean_q: torch.Tensor, cov_q: Any) -> mpf:
    inverse = cov_q**-1
    product = inverse * cov_p
    trace = mpmath.fsum(product[i, i] for i in range(cov_p.rows))
    shift = mpmath.matrix(mean_p.tolist()) - mpmath.matrix(mean_q.tolist())
    log_det = mpmath.log(mpmath.det(cov_q)) - mpmath.log(mpmath.det(cov_p))
    return (trace - cov_p.rows + log_det + (shift.T * inverse * shift)[0]) / 2


def relative(value: torch.Tensor, truth: mpf) -> float:
    return float(abs(mpf(value.item()) - truth) / truth)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("name", ["covariance_matrix", "precision_matrix"])
def test_matrices_are_as_exact_as_the_factors_that_torch_makes_of_them_allow_or_more(
    name: str, dtype: torch.dtype
) -> None:
    """Nearly equal, highly correlated and ordinary covariances, each beside mpmath, with gradients."""
    generator = torch.Generator().manual_seed(5)

    def drawn(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    mixing = drawn(3, 5, 5)
    near = mixing[0] @ mixing[0].mT
    twins = torch.eye(5, dtype=torch.float64)
    twins[0, 4] = twins[4, 0] = 1 - 2.0**-20  # whose difference no vector of signs need see
    first = torch.stack([near, twins, mixing[1] @ mixing[1].mT, torch.eye(5).double()]).to(dtype)
    second = torch.stack(
        [near * (1 + 2.0**-12), twins.mT, mixing[2] @ mixing[2].mT, torch.eye(5).double() * 2]
    ).to(dtype)
    loc_p, loc_q = drawn(4, 5).to(dtype), drawn(4, 5).to(dtype)
    loc_q[0] = loc_p[0]
    made: Any = MultivariateNormal
    together = kl_divergence(made(loc_p, **{name: first}), made(loc_q, **{name: second}))
    for i in range(4):
        matrix = first[i].clone().requires_grad_()
        p, q = made(loc_p[i], **{name: matrix}), made(loc_q[i], **{name: second[i]})
        covariances = []
        with mpmath.workdps(50):
            for m in (first[i], second[i]):
                exact = mpmath.matrix(m.double().tolist())
                covariances.append(exact if name == "covariance_matrix" else exact**-1)
            truth = true_normal(loc_p[i].double(), covariances[0], loc_q[i].double(), covariances[1])
        value = kl_divergence(p, q)
        if dtype == torch.float32:
            assert relative(value, truth) < 2e-7, i
        else:
            assert relative(value, truth) < (1e-9 if i == 1 else 1e-12), i
        assert torch.allclose(together[i], value, rtol=1e-12, atol=0)
        (ours,) = torch.autograd.grad(value, matrix)
        assert ours.isfinite().all()
        if i == 3:  # (K^-1 - L^-1) / 2 by a covariance L, and L^-1 (1 - K^-1 L) L^-1 / 2 with a precision
            step = -0.25 if name == "covariance_matrix" else -0.5
            assert torch.allclose(ours, step * torch.eye(5, dtype=dtype), atol=1e-6)


def test_torchs_factors_serve_where_they_have_the_digits(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the kernels compute is not computed again from the matrices, which takes many times longer."""
    calls = []
    rule = multivariate_normal.factors_of
    monkeypatch.setattr(multivariate_normal, "factors_of", lambda *pair: calls.append(pair) or rule(*pair))
    generator = torch.Generator().manual_seed(1)
    for size in (8, 130):
        x = torch.randn(2, 3, size, 2 * size, generator=generator, dtype=torch.float64)
        covariances = x @ x.mT
        for name in ("covariance_matrix", "precision_matrix"):
            made: Any = MultivariateNormal
            p, q = (made(x[0, :, :, 0], **{name: c}) for c in covariances)
            assert float(kl_divergence(p, q).min()) > 0.1
            assert not calls
            near = made(x[0, :, :, 0], **{name: covariances[0] * (1 + 1e-6)})
            assert float(kl_divergence(p, near).max()) < 1e-10
            assert bool(calls) is (size == 130)  # the kernel's own digits suffice for the small
            calls.clear()
