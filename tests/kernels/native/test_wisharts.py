"""Wishart distributions in C++, by the kernel of multivariate normals: values and gradients against mpmath."""

from __future__ import annotations

from itertools import product

import mpmath
import pytest
import torch
from mpmath import mpf
from torch import Tensor
from torch.distributions import Wishart

from kullback import kl_divergence
from kullback.kernels.native import library
from kullback.pairs.numerics.parameters import MATRICES
from kullback.pairs.registry import fused_divergence
from tests.pairs.closed_forms.test_multivariate import (
    covariance_pair,
    distance,
    matrix,
    numbers,
    relative,
    true_wishart,
)

if library.missing() is not None:
    pytest.skip(f"no native kernels here: {library.missing()}", allow_module_level=True)

DOUBLE = torch.float64


@pytest.fixture(autouse=True)
def _digits() -> object:
    with mpmath.workdps(60):
        yield


def of_scale(name: str, scale: Tensor) -> tuple[Tensor, mpmath.matrix]:
    """Return the argument of this name for a scale matrix, and the scale matrix of that as it was rounded."""
    if name == "scale_tril":
        root = torch.linalg.cholesky(scale)
        return root.requires_grad_(), matrix(root) * matrix(root).T
    if name == "covariance_matrix":
        return scale.requires_grad_(), matrix(scale)
    inverse = torch.linalg.inv(scale)
    inverse = (inverse + inverse.mT) / 2
    return inverse.requires_grad_(), matrix(inverse) ** -1


@pytest.mark.parametrize(
    ("n", "m", "step"),
    [(5.0, 6.5, 1.0), (30.0, 4.5, 1.0), (5.0, 4.0, 0.1), (7.0, 7.0, 1e-6), (50.0, 51.0, 1e-4)],
)
@pytest.mark.parametrize("condition", [10.0, 1e8])
@pytest.mark.parametrize("names", list(product(MATRICES, repeat=2)), ids="-".join)
def test_wishart_of_every_construction_is_exact_in_the_kernel(
    names: tuple[str, str], condition: float, n: float, m: float, step: float
) -> None:
    (x, scale_p), (y, scale_q) = map(of_scale, names, covariance_pair(condition, step))
    df_p, df_q = (torch.tensor(df, dtype=DOUBLE, requires_grad=n == m + 1) for df in (n, m))
    p, q = Wishart(df_p, **{names[0]: x}), Wishart(df_q, **{names[1]: y})  # pyright: ignore[reportArgumentType]
    truth = true_wishart(n, scale_p, m, scale_q)
    value, bound = fused_divergence(p, q), 1e-14
    if value is None:  # where terms cancel
        assert truth < abs(n - m)
        value, bound = kl_divergence(p, q), 1e-13
    assert relative(value, truth) < bound
    leaves = {"x": x, "y": y, **({"n": df_p} if df_p.requires_grad else {})}
    gradients = dict(zip(leaves, torch.autograd.grad(value, list(leaves.values())), strict=True))
    if names[0] == "covariance_matrix":
        assert distance(gradients["x"], (n * scale_q**-1 - m * scale_p**-1) / 2) < 1e-12
    if "n" in gradients:
        derivative = mpmath.diff(lambda df: true_wishart(df, scale_p, m, scale_q), mpf(n), h=mpf(10) ** -20)
        assert relative(gradients["n"], derivative) < 1e-13


def test_equal_wisharts_in_a_batch_have_zero_divergence_and_gradient() -> None:
    root = (numbers(1, 5, 3, 3).tril(-1) + 2 * torch.eye(3, dtype=DOUBLE)).requires_grad_()
    df = torch.linspace(3.5, 900, 5, dtype=DOUBLE)
    p, q = Wishart(df, scale_tril=root), Wishart(df.clone(), scale_tril=root.detach())
    value = fused_divergence(p, q)
    assert value is not None
    assert (value == 0).all()
    assert (torch.autograd.grad(value.sum(), root)[0] == 0).all()
    df.requires_grad_()
    value = kl_divergence(Wishart(df, scale_tril=root), q)
    assert (value == 0).all()
    assert all((x == 0).all() for x in torch.autograd.grad(value.sum(), (df, root)))


@pytest.mark.parametrize(
    ("n", "m", "step"), [(5.1, 6.5, 1.0), (30.0, 4.5, 1.0), (50.0, 51.0, 1e-4), (7.3, 7.3, 1e-6)]
)
@pytest.mark.parametrize("name", MATRICES)
def test_wishart_in_float32_is_rounded_once(name: str, n: float, m: float, step: float) -> None:
    pairs = [of_scale(name, x.clone())[0] for x in covariance_pair(100.0, step)]
    x, y = (each.detach().float().requires_grad_() for each in pairs)
    df_p, df_q = (torch.tensor(df).requires_grad_() for df in (n, m))
    value = kl_divergence(Wishart(df_p, **{name: x}), Wishart(df_q, **{name: y}))  # pyright: ignore[reportArgumentType]
    left, right = (matrix(each) for each in (x, y))
    if name == "scale_tril":
        left, right = left * left.T, right * right.T
    elif name == "precision_matrix":
        left, right = left**-1, right**-1
    assert relative(value, true_wishart(df_p.item(), left, df_q.item(), right)) < 1e-7
    by_p, by_q, *by_matrices = torch.autograd.grad(value, (df_p, df_q, x, y))
    for i, by in ((0, by_p), (1, by_q)):
        derivative = mpmath.diff(
            lambda a, b: true_wishart(a, left, b, right),
            (df_p.item(), df_q.item()),
            (1 - i, i),
            h=mpf(10) ** -20,
        )
        assert relative(by, derivative) < 2e-7
    if name == "covariance_matrix":
        truths = (
            (df_p.item() * right**-1 - df_q.item() * left**-1) / 2,
            (df_q.item() * right**-1 - df_p.item() * right**-1 * left * right**-1) / 2,
        )
        assert all(distance(by, truth) < 2e-7 for by, truth in zip(by_matrices, truths, strict=True))
