"""Large batches of Dirichlet distributions are computed block by block, in little memory."""

from __future__ import annotations

import subprocess
import sys

import mpmath
import pytest
import torch
from torch import Tensor
from torch.distributions import Beta, Dirichlet

from kullback import kl_divergence
from kullback.pairs.families import dirichlet

PEAK = """
import resource
import torch
from torch.distributions import Dirichlet
from kullback import kl_divergence

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

torch.set_num_threads(1)
small = torch.ones(10, dtype=torch.float64, requires_grad=True)
kl_divergence(Dirichlet(small), Dirichlet(2 * small)).backward()
p = torch.linspace(0.1, 9, 600_000, dtype=torch.float64).reshape(-1, 10).requires_grad_()
before = peak()
kl_divergence(Dirichlet(p, validate_args=False), Dirichlet(1.1 * p, validate_args=False)).sum().backward()
print((peak() - before) / (p.numel() * 8))
"""


def divergence(p: Tensor, q: Tensor) -> Tensor:
    return kl_divergence(Dirichlet(p), Dirichlet(q))


@pytest.mark.parametrize("shape_p", [(7, 5), (5,), (1, 3, 5)], ids=str)
@pytest.mark.parametrize("shape_q", [(7, 5), (5,), (2, 1, 5)], ids=str)
def test_blocks_of_dirichlets_give_what_the_whole_gives(
    monkeypatch: pytest.MonkeyPatch, shape_p: tuple[int, ...], shape_q: tuple[int, ...]
) -> None:
    if (shape_p, shape_q) in (((7, 5), (2, 1, 5)), ((1, 3, 5), (7, 5))):
        shape_p, shape_q = (4, 1, 5), (2, 5)
    generator = torch.Generator().manual_seed(2)
    at = [
        (0.1 + 5 * torch.rand(shape, generator=generator, dtype=torch.float64)).requires_grad_()
        for shape in (shape_p, shape_q)
    ]
    whole = divergence(*at)
    derivatives = torch.autograd.grad(whole.sum(), at)
    monkeypatch.setattr(dirichlet, "_BLOCK", 12)
    blocks = divergence(*at)
    assert blocks.shape == whole.shape
    torch.testing.assert_close(blocks, whole, rtol=1e-14, atol=0)
    torch.testing.assert_close(torch.autograd.grad(blocks.sum(), at), derivatives, rtol=1e-12, atol=1e-14)


@pytest.mark.heavy
def test_blocks_have_gradients_of_all_orders_and_for_one_side_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dirichlet, "_BLOCK", 6)
    generator = torch.Generator().manual_seed(3)
    p, q = (0.5 + torch.rand(2, 4, 3, generator=generator, dtype=torch.float64)).requires_grad_().unbind()
    assert torch.autograd.gradcheck(divergence, (p, q))
    assert torch.autograd.gradgradcheck(divergence, (p, q))
    assert torch.autograd.gradgradcheck(lambda x: divergence(x, q.detach()), (p,))
    assert torch.autograd.gradgradcheck(lambda x: divergence(p.detach(), x), (q,))
    assert divergence(p.detach(), q.detach()).shape == (4,)


def test_vmap_and_func_grad_serve_large_ones_too(monkeypatch: pytest.MonkeyPatch) -> None:
    generator = torch.Generator().manual_seed(4)
    p, q = (0.5 + torch.rand(2, 4, 3, generator=generator, dtype=torch.float64)).unbind()
    whole = kl_divergence(Beta(p, q), Beta(q, p))
    monkeypatch.setattr(dirichlet, "_BLOCK", 2)

    def beta(p: Tensor, q: Tensor) -> Tensor:
        return kl_divergence(Beta(p, q, validate_args=False), Beta(q, p, validate_args=False))

    torch.testing.assert_close(torch.func.vmap(beta)(p, q), whole)
    assert torch.func.grad(lambda x: beta(x, q).sum())(p).shape == p.shape


@pytest.mark.sweep
def test_a_large_batch_of_dirichlets_takes_a_few_times_its_own_memory() -> None:
    run = subprocess.run([sys.executable, "-c", PEAK], capture_output=True, text=True, check=True)
    assert float(run.stdout) < 100  # beside 400 and more where all is kept for the gradient


TINY = [
    ((1e-320, 1.0), (1e-320, 1.0)),
    ((1e-320, 1e-320), (1e-320, 1e-320)),
    ((1e-160, 1.0), (2e-160, 1.0)),
    ((1e-160, 1.0), (1e-100, 1.0)),
    ((1e-80, 1e-80), (3e-80, 1e-80)),
    ((1e-300, 2.0), (1e-290, 2.0)),
    ((1e-50, 1.0), (1e-90, 1.0)),
]


@pytest.mark.sweep
@pytest.mark.parametrize(("p", "q"), TINY)
def test_concentrations_whose_trigamma_overflows(p: tuple[float, float], q: tuple[float, float]) -> None:
    with mpmath.workdps(400):
        a, b = ([mpmath.mpf(x) for x in side] for side in (p, q))
        true = mpmath.loggamma(sum(a)) - mpmath.loggamma(sum(b))
        for x, y in zip(a, b, strict=True):
            true += mpmath.loggamma(y) - mpmath.loggamma(x)
            true += (x - y) * (mpmath.digamma(x) - mpmath.digamma(sum(a)))
        true = float(true)
    left, right = (torch.tensor(side, dtype=torch.float64) for side in (p, q))
    assert kl_divergence(Dirichlet(left), Dirichlet(right)).item() == pytest.approx(true, rel=1e-12)
    assert kl_divergence(Beta(*left), Beta(*right)).item() == pytest.approx(true, rel=1e-12)


@pytest.mark.parametrize("classes", [257, 1000])
@pytest.mark.parametrize("nearness", [1.0, 1e-3, 1e-7])
@pytest.mark.parametrize("size", [0.05, 1.0, 1e4])
def test_many_classes_have_all_digits_with_their_gradient(classes: int, nearness: float, size: float) -> None:
    """Beside the formula of Penny (2001) in 60 digits; rows of so many classes are computed in groups."""
    generator = torch.Generator().manual_seed(classes)
    a, more = torch.rand(2, 2, classes, generator=generator, dtype=torch.float64)
    p = (size * (a + 0.1)).requires_grad_()
    q = (p * (1 + nearness * (more + 0.1))).detach().requires_grad_()
    value = kl_divergence(Dirichlet(p), Dirichlet(q))
    by_p, by_q = torch.autograd.grad(value.sum(), (p, q))
    with mpmath.workdps(60):
        x, y = ([mpmath.mpf(c) for c in side[0].tolist()] for side in (p, q))
        total_x, total_y = mpmath.fsum(x), mpmath.fsum(y)
        means = [mpmath.digamma(c) - mpmath.digamma(total_x) for c in x]
        truth = (
            mpmath.loggamma(total_x)
            - mpmath.loggamma(total_y)
            + mpmath.fsum(
                mpmath.loggamma(d) - mpmath.loggamma(c) + (c - d) * m
                for c, d, m in zip(x, y, means, strict=True)
            )
        )
        assert abs(mpmath.mpf(value[0].item()) - truth) <= 2e-12 * truth
        by_first_q = mpmath.digamma(y[0]) - mpmath.digamma(total_y) - means[0]
        distances = mpmath.fsum(c - d for c, d in zip(x, y, strict=True))
        by_first_p = (x[0] - y[0]) * mpmath.psi(1, x[0]) - distances * mpmath.psi(1, total_x)
        for found, expected in ((by_q[0, 0], by_first_q), (by_p[0, 0], by_first_p)):
            assert abs(mpmath.mpf(found.item()) - expected) <= 1e-8 * abs(expected)


def test_many_classes_of_float32_and_of_one_side() -> None:
    p = torch.rand(3, 1, 600, generator=torch.Generator().manual_seed(2)) + 0.1
    q = torch.rand(2, 600, generator=torch.Generator().manual_seed(3)) + 0.1
    found = kl_divergence(Dirichlet(p), Dirichlet(q))
    assert found.dtype == torch.float32
    assert torch.allclose(
        found.double(), kl_divergence(Dirichlet(p.double()), Dirichlet(q.double())), rtol=1e-6
    )
    assert kl_divergence(Dirichlet(p), Dirichlet(p)).tolist() == [[0.0]] * 3
