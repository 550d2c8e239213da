"""Closed forms of the Wishart family and of LKJCholesky, the Cholesky factors of correlation matrices."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.distributions import LKJCholesky, Wishart

from kullback.common.dtypes import upcast
from kullback.common.special import bregman_by_quadrature, itakura_saito, polynomial, stirling_bregman
from kullback.kernels.native.native_closed_forms import Form, Parameters, required_gradients
from kullback.pairs.closed_forms.multivariate_normal import LARGE_MATRIX, form_of_normals
from kullback.pairs.families.gamma import kernel_of_gammas
from kullback.pairs.families.registration import register_family
from kullback.pairs.family import Family, ScipyForm
from kullback.pairs.native_forms import divergence_of, is_ordinary_call
from kullback.pairs.numerics.cholesky import factors_of, relative
from kullback.pairs.numerics.parameters import matrix_of
from kullback.pairs.registry import closed_form

__all__: list[str] = []

# For x > _FAR, lgamma(x) - lgamma(x + 1/2) = -log(x) / 2 + sum_k c_k x^-(2k - 1) with the coefficients c = _HALF_STEP.
# The next two tuples are, up to the sign, the coefficients in the first and the second derivative of this sum.
_FAR = 10
_HALF_STEP = (1 / 8, -1 / 192, 1 / 640, -17 / 14336, 31 / 18432, -691 / 180224)
_HALF_STEP_DERIVATIVE = tuple((2 * k + 1) * c for k, c in enumerate(_HALF_STEP))
_HALF_STEP_CURVATURE = tuple((2 * k + 2) * c for k, c in enumerate(_HALF_STEP_DERIVATIVE))
# The Bregman divergence from a to b is computed by quadrature if |b - a| < _NEAR (a + b).
_NEAR = 0.05
# These are limits for KL from the kernels of `_by_kernels`. KL must be at least the fraction _LEAST_SHARE of the sum of
# the terms that may cancel, so that at most three bits are lost. The derivative with respect to the degrees of freedom
# has canceling terms as large as the degrees of freedom. If this derivative is needed, KL must be at least
# _LEAST_WITH_DERIVATIVE times P's degrees of freedom, so that ten digits of the derivative remain.
_LEAST_SHARE, _LEAST_WITH_DERIVATIVE = 1 / 8, 1e-6
# _FOURFOLD maps each matrix parameter to its factor of change if the covariance is multiplied by 4.
_FOURFOLD = {"scale_tril": 2.0, "covariance_matrix": 4.0, "precision_matrix": 0.25}
_LOG_4 = math.log(4)


def wishart_rounding_error(p: Wishart, q: Wishart, value: Tensor) -> Tensor:
    """Return a bound on the rounding error of KL, from the condition numbers of the scale matrices."""
    relative_error = sum((x.rounding_error() for x in factors_of(p, q)[:2]), torch.zeros_like(value))
    weight = torch.where(value < 0.002, 0, upcast(p.df).detach() * p.event_shape[-1])
    return 4 * (relative_error + 1e-13) * (value + weight) + 1e-15


def _by_kernels(p: Wishart, q: Wishart) -> Tensor | None:
    """Return KL from the KL of normal distributions with the same matrices, or None if terms of the sum cancel.

    P and Q have the scale matrices V and W, the degrees of freedom n and m, and d dimensions. Let
    K(c) = KL(N(0, V) || N(0, c W)). With sums over i from 0 to d - 1,
    KL = n K(1) + (n - m) ((K(1) - 4 K(4)) / 3 + d (2 / 3 log 4 - 1 / 2))
    + sum_i KL(Gamma((n - i) / 2, 1) || Gamma((m - i) / 2, 1)).
    K(1) and K(4) are computed to full precision, unlike the difference of two log-determinants.
    """
    name_p, name_q, size = matrix_of(p), matrix_of(q), p.event_shape[0]
    if name_p is None or name_q is None or size >= LARGE_MATRIX or not is_ordinary_call():
        return None
    if p.batch_shape != q.batch_shape or p.event_shape != q.event_shape:
        return None
    parameters: Parameters = getattr(p, name_p), getattr(q, name_q), p.df, q.df
    if required_gradients(parameters) is None:
        return None
    of_p, of_q, n, m = map(upcast, parameters)
    form = form_of_normals(name_p, name_q)
    mean = torch.zeros(of_p.shape[:-1], dtype=n.dtype, device="cpu")
    lower = torch.arange(0, -size / 2, -0.5, dtype=n.dtype, device="cpu")
    a, b = (torch.add(lower, x.unsqueeze(-1), alpha=0.5) for x in (n, m))
    if parameters[0].dtype is torch.float32 and name_p == name_q != "scale_tril":
        scales = (n, m) if name_p == "covariance_matrix" else (m, n)
        return _by_scaled_normals(form, (mean, of_p, of_q), scales, (n, m), (a, b))
    rate = a.detach()  # KL of two Gamma distributions with equal rates does not depend on the rate
    near = divergence_of(form, (mean, of_p, mean, of_q))
    far = divergence_of(form, (mean, of_p, mean, of_q * _FOURFOLD[name_q]))
    gammas = divergence_of(kernel_of_gammas(), (a, rate, b, rate))
    if near is None or far is None or gammas is None:
        return None
    less = n - m
    change = torch.sub(near, far, alpha=4) * (1 / 3) + size * (2 / 3 * _LOG_4 - 1 / 2)
    value = gammas.sum(-1).addcmul(n, near).addcmul(less, change)
    # The positive and the negative terms of `less` * `change` have sums below 2 |n - m| (K(1) + d), because
    # K(4) <= K(1) + d log 2.
    least = less.detach().abs() * (near.detach() + size) * _LEAST_SHARE
    if n.requires_grad or m.requires_grad:
        least = torch.maximum(least, _LEAST_WITH_DERIVATIVE * n.detach())
    return value.to(p.df.dtype) if bool((value.detach() >= least).all()) else None


def _by_scaled_normals(
    form: Form,
    matrices: Parameters,
    scales: tuple[Tensor, Tensor],
    df: tuple[Tensor, Tensor],
    halves: tuple[Tensor, Tensor],
) -> Tensor | None:
    """Return KL of float32 Wishart distributions from only one KL of normal distributions, which takes less time.

    P and Q have the scale matrices V and W, the degrees of freedom n and m, and d dimensions. No term is negative:
    KL = m KL(N(0, n V) || N(0, m W)) + sum_i KL(Gamma((n - i) / 2, n) || Gamma((m - i) / 2, m))
    + d (d - 1) / 4 (m / n - 1 - log(m / n)) over i from 0 to d - 1.
    The products n V and m W of float32 numbers are exact in float64.
    """
    (mean, of_p, of_q), (n, m), (a, b) = matrices, df, halves
    scale_p, scale_q = (x[..., None, None] for x in scales)
    rate_p, rate_q = (x.unsqueeze(-1).expand_as(a) for x in df)
    normals = divergence_of(form, (mean, of_p * scale_p, mean, of_q * scale_q))
    gammas = divergence_of(kernel_of_gammas(), (a, rate_p, b, rate_q))
    if normals is None or gammas is None:
        return None
    size, growth = a.shape[-1], (m - n) / n
    value = gammas.sum(-1).addcmul(m, normals) + size * (size - 1) / 4 * (growth - growth.log1p())
    return value.to(torch.float32)


@closed_form(Wishart, Wishart, error=wishart_rounding_error, native=_by_kernels)
def kl_wishart_wishart(p: Wishart, q: Wishart) -> Tensor:
    """Return KL of the Cholesky factors in Bartlett's decomposition: d gamma variables, and normals below the diagonal.

    P and Q have the degrees of freedom n and m. L and K are the Cholesky factors of their scale matrices. Let
    M = K^-1 L, x_i = m_ii^2, a_i = (n - i) / 2 and b_i = (m - i) / 2 for i from 0 to d - 1. Then
    KL = sum_i KL(Gamma(a_i, 1 / x_i) || Gamma(b_i, 1)) + i / 2 (x_i - 1 - log x_i)
    + n / 2 times the sum of the squares of M below the diagonal.
    On the theory of statistical regression (Bartlett, 1933)
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
    """Return the sum over i from 0 to d - 2 of (i + 1) B(a + i / 2, b + i / 2), for the concentrations a and b.

    Here d is the dimension of the matrices, and B(x, y) is the Bregman divergence of f(x) = lgamma(x) -
    lgamma(x + 1 / 2) from x to y. The logarithm of the normalizing constant is a sum of values of f.
    Generating Random Correlation Matrices Based on Vines and Extended Onion Method (Lewandowski et al., 2009)
    """
    a, b = (upcast(d.concentration).unsqueeze(-1) for d in (p, q))
    steps = torch.arange(p.dim - 1, dtype=a.dtype, device=a.device)
    return ((steps + 1) * _half_step_bregman(a + steps / 2, b + steps / 2, b - a)).sum(-1)


def _half_step_bregman(a: Tensor, b: Tensor, distance: Tensor) -> Tensor:
    """Return the Bregman divergence of f(x) = lgamma(x) - lgamma(x + 1/2) from a to b, by a series at x + _FAR."""
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


register_family(Family(Wishart, scipy=[ScipyForm("wishart_frozen", Wishart, reads="df scale")]))
