"""Divergences made of powers of p/q: alpha, chi-squared, squared Hellinger and Renyi."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from kullback.common.extra_arguments import by_name
from kullback.generators.divergence import (
    NEAR,
    SERIES_TERMS,
    BuiltIn,
    Divergence,
    FinitePair,
    WeightedSum,
    finite,
    power_series,
)
from kullback.generators.entropic import KL, ReverseKL

_LARGEST = torch.finfo(torch.float64).max
# Derivatives are clamped to this number, so that the sum of 1e18 derivatives is still finite.
_LARGEST_DERIVATIVE = 1e290
_SMALLEST = torch.finfo(torch.float64).tiny
# If p is below this number, products with p are computed from logarithms, because subnormal numbers have fewer digits.
_UNDERFLOW = 1e-290


@by_name()
@dataclass(frozen=True)
class Alpha(BuiltIn):
    r"""The power divergence of order alpha (the family of Cressie, Read and Amari), which contains KL and reverse KL.

    .. math:: D_\alpha(P \| Q) = \frac{\sum_i p_i^\alpha q_i^{1-\alpha} - 1}{\alpha (\alpha - 1)}

    The divergence is `KL` at alpha = 1, `ReverseKL` at alpha = 0, 4 times `SquaredHellinger` at alpha = 1/2, and half
    of `ChiSquared` at alpha = 2. At p = 0 a term is q / alpha (+inf if alpha <= 0). At q = 0 a term is p / (1 - alpha)
    (+inf if alpha >= 1).

    Arguments:
        alpha: the order, any real number.

    Raises:
        ArgumentValueError: `alpha` is not a finite number.

    Gradient:
        let r = p/q. The gradient with respect to the logits of Q is the projection of b = -q (r^alpha - 1)/alpha, which
        is b - q sum(b). The gradient with respect to the logits of P is the projection of p (r^(alpha-1) - 1)/(alpha -
        1). A class that makes the value infinite contributes 0 to the gradient with respect to the side whose mass is
        not 0.

    Example:
        >>> import torch
        >>> from kullback import Alpha, Probs, divergence
        >>> p, q = torch.tensor([0.36, 0.48, 0.16]), torch.full((3,), 1 / 3)
        >>> divergence(Probs(p), Probs(q), Alpha(alpha=0.5))
        tensor(0.0906)

    References:
        Multinomial goodness-of-fit tests (Cressie and Read, 1984)
    """

    alpha: float

    short_name = "alpha"
    example = "alpha:0.5"
    ranges: ClassVar = {"alpha": (-_LARGEST, _LARGEST)}
    logarithmic = False

    def simplest(self) -> Divergence:
        return KL() if self.alpha == 1 else ReverseKL() if self.alpha == 0 else self

    def terms(self, pair: FinitePair) -> Tensor:
        alpha = self.alpha
        if alpha < 0.5:  # the order 1 - alpha, which is not small, gives the same value for (Q, P)
            return Alpha(1 - alpha).terms(pair.swapped())
        near = pair.log_ratio.abs() * alpha < NEAR
        power = alpha * torch.where(near, pair.log_ratio, 0)
        far = (_box_cox(pair, alpha - 1) + pair.q_minus_p()) / alpha
        return torch.where(near, pair.q * power_series(_alpha_series(alpha), power) / (alpha * alpha), far)

    def derivatives(self, pair: FinitePair) -> tuple[Tensor, Tensor]:
        alpha = self.alpha
        if alpha < 0.5:
            by_q, by_p = Alpha(1 - alpha).derivatives(pair.swapped())
            return by_p, by_q
        if alpha == 1:
            return KL().derivatives(pair)
        if alpha > 1:  # classes that make the value infinite contribute 0
            pair = pair._replace(log_ratio=torch.where(pair.log_ratio == torch.inf, 0, pair.log_ratio))
        by_p = _box_cox(pair, alpha - 1, largest=_LARGEST_DERIVATIVE)
        return by_p, (pair.q_minus_p() - (alpha - 1) * by_p) / alpha


def _alpha_series(alpha: float) -> list[float]:
    """Return the coefficients of x^2, x^3, ... of (e^x - 1 - alpha (e^(x / alpha) - 1)) alpha / (alpha - 1)."""
    inverse = 1 / alpha  # powers of a large alpha would overflow
    return [sum([inverse**k for k in range(n - 1)]) / math.factorial(n) for n in range(2, 2 + SERIES_TERMS)]


def _box_cox(pair: FinitePair, c: float, largest: float = math.inf) -> Tensor:
    """Return p (r^c - 1) / c, where r = p/q. For c = 0, return the limit, p log r.

    The result is p times the Box-Cox transform of r. r^c may overflow, so p r^c is clamped to about `largest`.
    """
    if c == 0:
        return pair.p_log_ratio()
    exponent = c * pair.log_ratio
    in_logs = (exponent > 500) | (pair.p < _UNDERFLOW)
    direct = pair.p * torch.expm1(torch.where(in_logs, 0, exponent))
    power = torch.exp(log_affinity(pair, c + 1).clamp(max=math.log(largest)))
    return torch.where(in_logs, power - pair.p, direct) / c


def log_affinity(pair: FinitePair, alpha: float) -> Tensor:
    """Return log(p^alpha q^(1 - alpha)) for alpha > 0. The result is accurate even where p and q underflow, and -inf
    where p = 0.
    """
    log_p = pair.log_p()
    return torch.where(log_p == -torch.inf, -torch.inf, log_p + (alpha - 1) * pair.log_ratio)


@by_name()
@dataclass(frozen=True)
class ChiSquared(WeightedSum):
    r"""Pearson's chi-squared divergence.

    .. math:: \chi^2(P \| Q) = \sum_i \frac{(p_i - q_i)^2}{q_i}

    At p = 0 a term is q, and at q = 0 < p a term is +inf. The divergence is twice `Alpha` of order 2.

    Gradient:
        twice the gradient of `Alpha` of order 2.

    Example:
        >>> import torch
        >>> from kullback import ChiSquared, Probs, divergence
        >>> p, q = torch.tensor([0.25, 0.75]), torch.tensor([0.5, 0.5])
        >>> divergence(Probs(p), Probs(q), ChiSquared())
        tensor(0.2500)

    References:
        On the criterion that a given system of deviations is such that it can be reasonably supposed to have arisen
        from random sampling (Pearson, 1900)
    """

    short_name = "chi2"
    aliases = ("chi_squared",)
    order, factor = 2.0, 2.0
    logarithmic = False

    def parts(self) -> list[tuple[float, Alpha, bool]]:
        return [(2.0, Alpha(2.0), False)]


@by_name()
@dataclass(frozen=True)
class SquaredHellinger(WeightedSum):
    r"""The squared Hellinger distance, between 0 and 1.

    .. math:: H^2(P, Q) = \tfrac12 \sum_i (\sqrt{p_i} - \sqrt{q_i})^2 = 1 - \sum_i \sqrt{p_i q_i}

    At p = 0 a term is q/2, and at q = 0 a term is p/2. The divergence is a quarter of `Alpha` of order 1/2.

    Gradient:
        finite everywhere with respect to logits.

    Example:
        >>> import torch
        >>> from kullback import Probs, SquaredHellinger, divergence
        >>> p, q = torch.tensor([1.0, 0.0]), torch.tensor([0.36, 0.64])
        >>> divergence(Probs(p), Probs(q), SquaredHellinger())
        tensor(0.4000)

    References:
        Neue Begruendung der Theorie quadratischer Formen von unendlichvielen Veraenderlichen (Hellinger, 1909)
    """

    short_name = "hellinger"
    aliases = ("squared_hellinger",)
    order, factor = 0.5, 0.25
    logarithmic = False

    def parts(self) -> list[tuple[float, Alpha, bool]]:
        return [(0.25, Alpha(0.5), False)]


@by_name()
@dataclass(frozen=True)
class Renyi(BuiltIn):
    r"""The Renyi divergence of order alpha, which does not decrease as alpha grows.

    .. math:: R_\alpha(P \| Q) = \frac{1}{\alpha - 1} \log \sum_i p_i^\alpha q_i^{1-\alpha}

    The divergence is -log Q(p > 0) at alpha = 0, `KL` at alpha = 1, and the largest log(p/q) at alpha = inf. A class
    with q = 0 < p makes the value +inf if alpha >= 1, and has no term in the sum if alpha < 1. A class with p = 0 < q
    has no term if alpha > 0. If P and Q share no class, the value is +inf.

    The divergence is a function of the power divergence D: R = log(1 + alpha (alpha - 1) D) / (alpha - 1). `terms` are
    the terms of D.

    Arguments:
        alpha: the order, from 0 to `math.inf`.

    Raises:
        ArgumentValueError: `alpha` is negative or NaN.

    Gradient:
        finite everywhere with respect to logits; classes that make the value infinite contribute 0. At alpha = inf, the
        gradient is the gradient of log(p/q) at the first class that attains the maximum, and 0 for P = Q.

    Example:
        >>> import torch
        >>> from kullback import Probs, Renyi, divergence
        >>> p, q = torch.tensor([0.5, 0.5, 0.0]), torch.tensor([0.25, 0.25, 0.5])
        >>> [round(float(divergence(Probs(p), Probs(q), Renyi(a), base=2)), 6) for a in (0, 0.5, 1, float("inf"))]
        [1.0, 1.0, 1.0, 1.0]

    References:
        Renyi Divergence and Kullback-Leibler Divergence (van Erven and Harremoes, 2014)
    """

    alpha: float

    short_name = "renyi"
    example = "renyi:2"
    ranges: ClassVar = {"alpha": (0, math.inf)}

    def simplest(self) -> Divergence:
        return KL() if self.alpha == 1 else self

    def terms(self, pair: FinitePair) -> Tensor:
        return Alpha(min(self.alpha, _LARGEST)).terms(pair)

    def total(self, pair: FinitePair) -> Tensor:
        alpha = self.alpha
        if alpha == 0:
            outside, covered = support_of_p(pair)
            outside = outside.sum(-1)
            return torch.where(outside < 0.5, -torch.log1p(-outside), -covered.logsumexp(-1))
        if alpha == 1:
            return KL().total(pair)
        if alpha == math.inf:
            return pair.log_ratio.amax(-1).clamp(min=0)
        relative = self._affinity_change(pair)
        near = relative.abs() < 0.5
        far = torch.logsumexp(log_affinity(pair, alpha), -1)
        return torch.where(near, torch.log1p(torch.where(near, relative, 0)), far) / (alpha - 1)

    def derivatives(self, pair: FinitePair) -> tuple[Tensor, Tensor]:
        alpha = self.alpha
        if alpha == 0:
            outside, covered = support_of_p(pair)
            shares = torch.softmax(torch.where(covered.isinf().all(-1, keepdim=True), 0, covered), -1)
            # These derivatives are correct except for a multiple of q, which the normalization of Q removes.
            return torch.zeros_like(pair.p), outside - outside.sum(-1, keepdim=True) * shares
        if alpha == 1:
            return KL().derivatives(pair)
        if alpha == math.inf:
            top = pair.log_ratio.argmax(-1, keepdim=True)
            chosen = torch.zeros_like(pair.p).scatter(-1, top, 1.0)
            chosen = torch.where(pair.log_ratio.isinf() | (pair.log_ratio <= 0), 0, chosen)
            return chosen, -chosen
        relative = self._affinity_change(pair).unsqueeze(-1)
        near = relative.abs() < 0.5
        by_p, by_q = Alpha(alpha).derivatives(pair)
        factor = alpha / (1 + torch.where(near, relative, 0))
        logs = log_affinity(pair, alpha)
        logs = torch.where(logs == torch.inf, -torch.inf, logs)
        peak = finite(logs.amax(-1, keepdim=True))
        shares = torch.exp(logs - peak)
        shares = shares / shares.sum(-1, keepdim=True).clamp(min=_SMALLEST)
        return torch.where(near, factor * by_p, shares * (alpha / (alpha - 1))), torch.where(
            near, factor * by_q, -shares
        )

    def _affinity_change(self, pair: FinitePair) -> Tensor:
        """Return sum(p^alpha q^(1 - alpha)) - 1, accurate even if the result is near 0."""
        # `self.alpha * (self.alpha - 1)` may overflow to infinity, and infinity times a total of 0 would be NaN.
        # Therefore the total is first multiplied by `self.alpha - 1`.
        return self.alpha * ((self.alpha - 1) * Alpha(min(self.alpha, _LARGEST)).total(pair))


def support_of_p(pair: FinitePair) -> tuple[Tensor, Tensor]:
    """Return two tensors: q outside the support of P and 0 inside, and log q inside the support and -inf outside.

    Classes where p underflows to 0 belong to the support.
    """
    outside = pair.log_ratio == -torch.inf
    return torch.where(outside, pair.q, 0), torch.where(outside, -torch.inf, pair.log_q())
