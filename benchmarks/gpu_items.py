"""The items that the parts of `make gpu` consist of, and the exact divergences that the checks compare with."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from bench_kinds import KINDS as NAMES
from torch import Tensor

from kullback.generators import (
    KL,
    Alpha,
    ChiSquared,
    Divergence,
    FinitePair,
    Jeffreys,
    JensenShannon,
    Renyi,
    ReverseKL,
    SkewKL,
    SquaredHellinger,
    TotalVariation,
    parse,
)
from kullback.kernels.native import library

INF = float("inf")
Result = dict[str, Any]


class NotHere(Exception):  # noqa: N818  # nothing failed
    """The reason why an item cannot run on this machine."""


class Item(NamedTuple):
    """One check or measurement. `run` raises `AssertionError` if the check fails, and `NotHere` if it cannot run here.

    A measurement returns its case with the times of its steps; a check returns a remark or None.
    """

    name: str
    run: Callable[[], Result | str | None]


@dataclass(frozen=True)
class Setting:
    """The device of a run, and whether sizes are so small that Triton's interpreter on the CPU needs only seconds."""

    device: str
    small: bool = False

    @property
    def has_gpu(self) -> bool:
        return torch.device(self.device).type == "cuda"

    def need_gpu(self, wanted: str) -> None:
        if not self.has_gpu:
            raise NotHere(f"{wanted} needs a GPU")


def use_interpreter() -> None:
    """Let Triton's interpreter compute on the CPU everything that it can, instead of C++."""
    np.seterr(all="ignore")  # the interpreter computes masked entries too
    library.missing = lambda: "left out, so that Triton's interpreter computes"


Part = Callable[[Setting], Iterator[Item]]


@dataclass(frozen=True)
class LeCam(Divergence):
    """A kind of a user: sum (p - q)^2 / (p + q)."""

    logarithmic = False

    def terms(self, pair: FinitePair) -> Tensor:
        return (pair.p - pair.q) ** 2 / (pair.p + pair.q)


KINDS: dict[str, Divergence] = {name: parse(text) for name, text in NAMES.items()} | {"own kind": LeCam()}


class Exact(NamedTuple):
    """Divergences of rows, and the gradients of their weighted sum with respect to the logits of P and of Q."""

    values: Tensor
    by_p: Tensor
    by_q: Tensor
    # The masses behind the two gradients, times the rows' weights. A gradient is a difference of numbers of this size.
    masses: tuple[Tensor | float, Tensor | float] = (0.0, 0.0)

    def named(self) -> dict[str, Tensor]:
        return {"values": self.values, "by_p": self.by_p, "by_q": self.by_q}


def exact(
    kind: Divergence,
    p: Tensor,
    q: Tensor,
    weights: Tensor | None = None,
    temperature: float = 1.0,
    dtype: torch.dtype = torch.float64,
) -> Exact:
    """The textbook formula of a kind and its derivative, written out in torch, for rows of logits that may be -inf.

    In float64 on the CPU it is the truth; in float32 it is the accuracy that torch has in this precision.
    """
    x, y = ((side.to(dtype) / temperature).log_softmax(-1) for side in (p, q))
    p, q = x.exp(), y.exp()
    d = torch.where(p == q, 0, x - y)
    terms, by_log_p = _TERMS[type(kind)](kind, p, q, d)
    by_log_q = terms - by_log_p  # f-divergences are homogeneous in (p, q)
    values = terms.sum(-1)
    if isinstance(kind, Renyi):
        inner, order = values, kind.alpha
        values = inner.log() / (order - 1)
        by_log_p, by_log_q = (
            share * terms / (order - 1) / inner.unsqueeze(-1) for share in (order, 1 - order)
        )
    factor = torch.ones_like(values) if weights is None else weights.to(values)
    gradients = [
        (factor / temperature).unsqueeze(-1) * (by - mass * by.sum(-1, keepdim=True))
        for by, mass in ((by_log_p, p), (by_log_q, q))
    ]
    weight = factor.abs().unsqueeze(-1) / temperature
    return Exact(values, *gradients, (weight * p, weight * q))


def _times(p: Tensor, factor: Tensor) -> Tensor:
    return torch.where(p == 0, 0, p * factor)


def _skew(p: Tensor, q: Tensor, share: float) -> tuple[Tensor, Tensor]:
    """The terms of KL(P || share P + (1 - share) Q), and their derivatives by log p."""
    ratio = torch.where(p == 0, 0, p / (share * p + (1 - share) * q))
    return _times(p, ratio.log()), _times(p, ratio.log() + 1 - share * ratio)


def _jensen_shannon(kind: JensenShannon, p: Tensor, q: Tensor, _: Tensor) -> tuple[Tensor, Tensor]:
    share, rest = kind.beta, 1 - kind.beta
    (forward, by_p), (backward, by_q) = _skew(p, q, share), _skew(q, p, rest)
    return share * forward + rest * backward, share * by_p + rest * (backward - by_q)


def _chi_squared(_: Divergence, p: Tensor, q: Tensor, __: Tensor) -> tuple[Tensor, Tensor]:
    return torch.where(p == q, 0, (p - q) ** 2 / q), 2 * _times(p, p / q - 1)


def _powers(order: float, p: Tensor, q: Tensor) -> Tensor:
    """p^order q^(1 - order), 0 where p is 0."""
    return torch.where(p == 0, 0, p**order * q ** (1 - order))


def _alpha(kind: Alpha, p: Tensor, q: Tensor, _: Tensor) -> tuple[Tensor, Tensor]:
    order, powers = kind.alpha, _powers(kind.alpha, p, q)
    scale = order * (order - 1)
    return (powers - order * p - (1 - order) * q) / scale, (powers - p) * order / scale


def _renyi(kind: Renyi, p: Tensor, q: Tensor, _: Tensor) -> tuple[Tensor, Tensor]:
    powers = _powers(kind.alpha, p, q)
    return powers, kind.alpha * powers


def _le_cam(_: Divergence, p: Tensor, q: Tensor, __: Tensor) -> tuple[Tensor, Tensor]:
    ratio = torch.where(p == q, 0, (p - q) / (p + q))
    return ratio * (p - q), p * ratio * (2 - ratio)


# The terms q f(p / q) from p, q and log(p / q), and their derivatives p f'(p / q) by log p.
_TERMS: dict[type[Divergence], Callable[[Any, Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]] = {
    KL: lambda _, p, q, d: (_times(p, d), _times(p, d + 1)),
    ReverseKL: lambda _, p, q, d: (_times(q, -d), -q),
    Jeffreys: lambda _, p, q, d: (torch.where(d == 0, 0, (p - q) * d), _times(p, d) + p - q),
    SkewKL: lambda kind, p, q, _: _skew(p, q, kind.alpha),
    JensenShannon: _jensen_shannon,
    TotalVariation: lambda _, p, q, d: ((p - q).abs() / 2, p * (p - q).sign() / 2),
    SquaredHellinger: lambda _, p, q, d: ((p.sqrt() - q.sqrt()) ** 2 / 2, (p - (p * q).sqrt()) / 2),
    ChiSquared: _chi_squared,
    Alpha: _alpha,
    Renyi: _renyi,
    LeCam: _le_cam,
}


def check_near(
    ours: Exact, true: Exact, torch_is: Exact, dtypes: tuple[torch.dtype, torch.dtype], what: str = ""
) -> None:
    """Compare values and gradients with the truth. The budget of an error is torch's own error in float32, plus a few
    roundings of float32, or for float64 logits of float64.
    """
    is_wide = torch.float64 in dtypes
    relative, rounding = (1e-9, 1e-14) if is_wide else (4e-6, 1e-6)
    masses = {"values": 0.0, "by_p": true.masses[0], "by_q": true.masses[1]}
    for name, truth in true.named().items():
        mine, peer = ours.named()[name].detach().cpu(), torch_is.named()[name].cpu().double()
        size = truth.abs() if name == "values" else truth.norm(dim=-1, keepdim=True).expand_as(truth)
        unit, error = torch.finfo(mine.dtype), (mine.double() - truth).abs()
        budget = relative * size + rounding * masses[name] + 2 * unit.eps * truth.abs()
        budget = budget + unit.smallest_normal * unit.eps + 1e-13
        if not is_wide:
            budget = budget + torch.nan_to_num((peer - truth).abs(), nan=0.0, posinf=0.0)
        wrong = ~((error <= budget) | (mine.double() == truth))
        if wrong.any():
            at = tuple(wrong.nonzero()[0].tolist())
            raise AssertionError(
                f"{what}{name}{list(at)} is {mine[at].item():.9g}, the truth {truth[at].item():.9g}, the budget "
                f"{budget[at].item():.2g}; {int(wrong.sum())} of {wrong.numel()} are wrong"
            )
