"""Closed forms of matrix-variate families: Wishart, and Cholesky factors of correlation matrices (LKJ)."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.distributions import LKJCholesky, Wishart

from kullback.numeric import upcast
from kullback.pairs.numerics.cholesky import factors_of, relative
from kullback.pairs.registry import closed_form
from kullback.special import bregman_by_quadrature, itakura_saito, polynomial, stirling_bregman

__all__: list[str] = []

# lgamma(x) - lgamma(x + 1/2) = -log(x) / 2 + sum_k c_k x^-(2k - 1), for x beyond _FAR
_FAR = 10
_HALF_STEP = (1 / 8, -1 / 192, 1 / 640, -17 / 14336, 31 / 18432, -691 / 180224)
_HALF_STEP_DERIVATIVE = tuple((2 * k + 1) * c for k, c in enumerate(_HALF_STEP))
_HALF_STEP_CURVATURE = tuple((2 * k + 2) * c for k, c in enumerate(_HALF_STEP_DERIVATIVE))
_NEAR = 0.05


def wishart_rounding_error(p: Wishart, q: Wishart, value: Tensor) -> Tensor:
    """Bound the rounding error of KL by the condition numbers of the scale matrices."""
    relative_error = sum((x.rounding_error() for x in factors_of(p, q)[:2]), torch.zeros_like(value))
    weight = torch.where(value < 0.002, 0, upcast(p.df).detach() * p.event_shape[-1])
    return 4 * (relative_error + 1e-13) * (value + weight) + 1e-15


@closed_form(Wishart, Wishart, error=wishart_rounding_error)
def kl_wishart_wishart(p: Wishart, q: Wishart) -> Tensor:
    """Return KL of the factors of Bartlett's decomposition: d gamma distributions, and the part below the diagonal.

    With n and m the degrees of freedom, M = K^-1 L as for normal distributions, x_i = m_ii^2, a_i = (n - i) / 2 and
    b_i = (m - i) / 2 for i = 0 ... d - 1: sum_i KL(Gamma(a_i, 1 / x_i) || Gamma(b_i, 1)) + i / 2 (x_i - 1 - log x_i)
    + n / 2 times the squares of M below the diagonal.
    """
    first, second, _ = factors_of(p, q)
    m = relative(first, second)
    df_p, df_q = (upcast(d.df).unsqueeze(-1) for d in (p, q))
    squares = m.diagonal**2
    order = torch.arange(squares.shape[-1], dtype=squares.dtype, device=squares.device)
    a, b = (df_p - order) / 2, (df_q - order) / 2
    change = (df_p - df_q) / 2 + a * m.squares_minus_one
    gammas = stirling_bregman(a, b) + b * itakura_saito(a * squares, b, change)
    diagonal = (gammas + order / 2 * m.itakura_saito_terms()).sum(-1)
    return diagonal + df_p.squeeze(-1) / 2 * (m.below**2).sum((-2, -1))


@closed_form(LKJCholesky, LKJCholesky)
def kl_lkj_lkj(p: LKJCholesky, q: LKJCholesky) -> Tensor:
    """Return sum_i (i + 1) B(a + i / 2, b + i / 2) over i = 0 ... d - 2 for the concentrations a and b.

    B is Bregman's divergence of lgamma(x) - lgamma(x + 1 / 2), as the log-normalizer telescopes to sums of that.
    Generating Random Correlation Matrices Based on Vines and Extended Onion Method (Lewandowski et al., 2009)
    """
    a, b = (upcast(d.concentration).unsqueeze(-1) for d in (p, q))
    steps = torch.arange(p.dim - 1, dtype=a.dtype, device=a.device)
    return ((steps + 1) * _half_step_bregman(a + steps / 2, b + steps / 2, b - a)).sum(-1)


def _half_step_bregman(a: Tensor, b: Tensor, distance: Tensor) -> Tensor:
    """Return Bregman's divergence, from a to b = a + distance, of f(x) = lgamma(x) - lgamma(x + 1/2).

    f(x) = f(x + 1) - log x + log(x + 1/2) takes it to arguments where the series in 1 / x holds.
    """
    shifts = torch.arange(_FAR, dtype=a.dtype, device=a.device)

    def of_logarithms(more: float) -> Tensor:
        left, right = (x.unsqueeze(-1) + shifts + more for x in (a, b))
        return itakura_saito(right, left, distance.unsqueeze(-1))

    total = (of_logarithms(0.0) - of_logarithms(0.5)).sum(-1)
    left, right = a + _FAR, b + _FAR
    near = distance.abs() < _NEAR * (left + right)
    close = bregman_by_quadrature(_curvature, left, torch.where(near, distance, 0))
    rest = torch.where(near, close, _series(right) - _series(left) - distance * _derivative(left))
    return total + itakura_saito(right, left, distance) / 2 + rest


def _series(x: Tensor) -> Tensor:
    return polynomial(_HALF_STEP, 1 / (x * x)) / x


def _derivative(x: Tensor) -> Tensor:
    return -polynomial(_HALF_STEP_DERIVATIVE, 1 / (x * x)) / (x * x)


def _curvature(x: Tensor) -> Tensor:
    return polynomial(_HALF_STEP_CURVATURE, 1 / (x * x)) / (x * x * x)
