"""What a kernel may be wrong by: |ours - truth| <= |torch in that dtype - truth| + tolerance, for any backend.

The truth is the textbook formula at 50 digits, of numbers that every dtype holds exactly. Where torch gives NaN, or an
infinity that is not there, the tolerance alone is allowed.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from typing import NamedTuple

import mpmath
import torch
from torch import Tensor

from kullback import (
    KL,
    Alpha,
    ChiSquared,
    Divergence,
    Jeffreys,
    JensenShannon,
    Renyi,
    ReverseKL,
    SkewKL,
    SquaredHellinger,
    TotalVariation,
)
from tests.oracles import truth

KINDS = truth.KINDS
DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
INF = float("inf")

ValueAndGradient = Callable[[Divergence, Tensor, Tensor], tuple[Tensor, Tensor, Tensor]]


class Edge(NamedTuple):
    """A row of logits of P and one of Q, in numbers that bfloat16 and float16 hold."""

    p: tuple[float, ...]
    q: tuple[float, ...]


EDGES = {
    "seven classes": Edge((0.5, -1.25, 2.0, 0.0, 0.75, -3.0, 1.0), (1.0, 0.5, -0.75, 0.125, 2.5, -2.0, 0.0)),
    "-inf in the teacher": Edge((-INF, 1.0, 2.0, 0.0, 0.5), (0.25, 2.0, 2.0, 1.0, -1.0)),
    "-inf in the student": Edge((0.25, 1.0, 2.0, 0.0, 0.5), (-INF, 2.0, 2.0, 1.0, -1.0)),
    "-inf in both": Edge((-INF, 1.0, 2.0, 0.0, 0.5), (-INF, 2.0, 2.0, 1.0, -1.0)),
    "-inf in each": Edge((-INF, 1.0, 2.0, 0.0, 0.5), (0.25, 2.0, -INF, 1.0, -1.0)),
    "no class in common": Edge((-INF, 1.0, -INF), (0.25, -INF, 0.5)),
    "one class": Edge((0.5,), (-3.0,)),
    "far apart": Edge((9984.0, -9984.0, -9984.0), (-9984.0, 9984.0, -9984.0)),
    "far from zero": Edge((9984.0, 9920.0, 9984.0), (-9984.0, -9984.0, -9920.0)),
    "a class that hardly counts": Edge((0.0, -60.0, 1.0), (0.5, -100.0, 0.0)),
    "nearly equal": Edge((1.0, 2.0, 3.0), (1.0, 2.015625, 3.03125)),
}


class Tolerance(NamedTuple):
    """What is allowed on top of torch's error: relative to a value, and to a gradient's largest entry, or 1."""

    relative: float
    absolute: float


# Arithmetic in float64, and in float32.
WIDE, NARROW = Tolerance(1e-11, 1e-11), Tolerance(3e-6, 2e-6)


class Truth(NamedTuple):
    """The value, and the gradients by both rows of logits, where the value is finite and smooth."""

    value: float
    gradients: tuple[list[float], list[float]] | None


@cache
def true_result(kind: Divergence, edge: Edge) -> Truth:
    """Evaluate and differentiate at 50 digits."""
    p, q = truth.softmax(edge.p), truth.softmax(edge.q)
    value = truth.divergence(kind, p, q)
    if value > torch.finfo(torch.float64).max:
        return Truth(INF, None)
    # A class without mass meets the other side's at a corner of these: the limits differ.
    if any(mpmath.isinf(mpmath.mpf(x)) for x in edge.p + edge.q) and _has_corners(kind):
        return Truth(float(value), None)
    return Truth(float(value), truth.logit_gradient(kind, edge.p, edge.q))


def check(of: ValueAndGradient, kind: Divergence, edge: Edge, dtype: torch.dtype, allowed: Tolerance) -> None:
    """Assert that value and gradients of one pair of rows are within the budget."""
    p, q = (torch.tensor([side], dtype=dtype) for side in edge)
    want = true_result(kind, edge)
    value, *gradients = of(kind, p, q)
    eager_value, *eager_gradients = eager(kind, p, q)
    slack = allowed.relative * abs(want.value) + 1e-3 * allowed.absolute
    _assert_within(value, torch.tensor([want.value], dtype=torch.float64), eager_value, slack)
    info = torch.finfo(dtype)
    for side, mine in enumerate(gradients):
        assert mine.dtype == dtype
        assert not mine.isnan().any()
        if want.gradients is not None:
            true = torch.tensor([want.gradients[side]], dtype=torch.float64)
            slack = (
                allowed.absolute * true.abs().max().clamp(min=1)
                + info.eps * true.abs()
                + info.smallest_normal * info.eps
            )
            # Rounded, as an entry may be too large for the dtype.
            _assert_within(mine, true.to(dtype).double(), eager_gradients[side], slack)


def _assert_within(mine: Tensor, true: Tensor, eager_result: Tensor, slack: Tensor | float) -> None:
    budget = torch.nan_to_num((eager_result.double() - true).abs(), nan=0.0, posinf=0.0) + slack
    close = (mine.double() == true) | ((mine.double() - true).abs() <= budget)
    assert close.all(), f"got {mine.tolist()}, truth {true.tolist()}, torch {eager_result.tolist()}"


def _has_corners(kind: Divergence) -> bool:
    return isinstance(kind, Renyi) and kind.alpha in (0, INF)


def eager(kind: Divergence, p: Tensor, q: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return value and gradients as somebody writes them with torch, in the dtype of the logits."""
    p, q = p.clone().requires_grad_(), q.clone().requires_grad_()
    value = _FORMULAS[type(kind)](kind, p.log_softmax(-1), q.log_softmax(-1))
    by_p, by_q = torch.autograd.grad(value.sum(), (p, q), materialize_grads=True)
    return value.detach(), by_p, by_q


def _kl(p: Tensor, q: Tensor) -> Tensor:
    """Evaluate the divergence of rows of log-probabilities, as all below."""
    return (p.exp() * (p - q)).sum(-1)


def _mix(share: float, p: Tensor, q: Tensor) -> Tensor:
    return torch.logaddexp(p + math.log(share), q + math.log1p(-share))


def _skew(kind: SkewKL, p: Tensor, q: Tensor) -> Tensor:
    return _kl(p, _mix(kind.alpha, p, q) if kind.alpha else q)


def _jensen_shannon(kind: JensenShannon, p: Tensor, q: Tensor) -> Tensor:
    beta = kind.beta
    if beta in (0, 1):
        return _kl(q, p) if beta else _kl(p, q)
    mixture = _mix(beta, p, q)
    value = beta * _kl(p, mixture) + (1 - beta) * _kl(q, mixture)
    return value / (beta * (1 - beta)) if kind.scaled else value


def _renyi(kind: Renyi, p: Tensor, q: Tensor) -> Tensor:
    if kind.alpha == 0:
        return -torch.where(p > -INF, q, -INF).logsumexp(-1)
    if kind.alpha == 1:
        return _kl(p, q)
    if kind.alpha == INF:
        return (p - q).amax(-1)
    return (kind.alpha * p + (1 - kind.alpha) * q).logsumexp(-1) / (kind.alpha - 1)


def _alpha(kind: Alpha, p: Tensor, q: Tensor) -> Tensor:
    alpha = kind.alpha
    if alpha in (0, 1):
        return _kl(p, q) if alpha else _kl(q, p)
    return ((alpha * p + (1 - alpha) * q).exp().sum(-1) - 1) / (alpha * (alpha - 1))


_FORMULAS: dict[type[Divergence], Callable[..., Tensor]] = {
    KL: lambda _, p, q: _kl(p, q),
    ReverseKL: lambda _, p, q: _kl(q, p),
    Jeffreys: lambda _, p, q: _kl(p, q) + _kl(q, p),
    JensenShannon: _jensen_shannon,
    SkewKL: _skew,
    Renyi: _renyi,
    Alpha: _alpha,
    TotalVariation: lambda _, p, q: (p.exp() - q.exp()).abs().sum(-1) / 2,
    SquaredHellinger: lambda _, p, q: ((p / 2).exp() - (q / 2).exp()).square().sum(-1) / 2,
    ChiSquared: lambda _, p, q: ((p.exp() - q.exp()).square() / q.exp()).sum(-1),
}
