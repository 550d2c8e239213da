"""Rules that compute, for each kind of divergence, the values and gradients of rows from a few numbers of every rank.

A rank has the masses p and q of its classes, normalized over the classes of all ranks. The method `local` of a rule
computes a few numbers per row from these masses. The ranks sum or gather these numbers, and the method `merge` computes
the value of the row and the sums that the gradient needs.

For P or for Q, let m be the mass of a class, b the derivative with respect to log m, and S the sum of b over the row.
The gradient with respect to the logit of the class is b - m S. At the class with the most mass, this difference would
cancel. There, the gradient is computed as -(O - M S), where O and M are the sums of b and of m over the other classes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from kullback.errors import invalid_value, safe_repr
from kullback.generators import KL, Alpha, Divergence, FinitePair, Renyi
from kullback.generators.power import log_affinity, support_of_p
from kullback.parallel.collectives import stacked


class DerivativeSums(NamedTuple):
    """Sums over the classes of a row, for P or for Q. Each tensor has shape (rows,)."""

    others: Tensor  # the sum of the derivatives at all classes except the class with the most mass
    top: Tensor  # the derivative at the class with the most mass
    mass: Tensor  # the mass of all classes except the class with the most mass


class Merged(NamedTuple):
    """Numbers of rows that are equal on all ranks: divergences, sums of P and Q, and extra numbers of some rules."""

    values: Tensor
    sums: tuple[DerivativeSums | None, DerivativeSums | None]
    extra: tuple[Tensor, ...] = ()

    def block(self, rows: slice) -> Merged:
        """Return the merged numbers of only the rows of a slice."""
        sums = [None if x is None else DerivativeSums(*(y[rows] for y in x)) for x in self.sums]
        return Merged(self.values[rows], (sums[0], sums[1]), tuple(x[rows] for x in self.extra))


class CombineRule:
    """The rule for a sum over classes. The ranks gather the results of `local` if `gathers`, else sum them."""

    gathers = False

    def __init__(self, kind: Divergence, classes: int, rank: int = 0) -> None:
        self.kind = kind
        self.classes = classes
        self.rank = rank

    def local(self, pair: FinitePair, tops: Sequence[Tensor | None]) -> Tensor:
        """Return a few numbers for each row, shape (rows, numbers), from this rank's classes. `tops` has each side's
        mask of the class with the most mass; None if no gradient is needed.
        """
        numbers = [self.kind.terms(pair).sum(-1)]
        if any(top is not None for top in tops):
            numbers += _sums_of(self.kind.derivatives(pair), (pair.p, pair.q), tops)
        return stacked(numbers)

    def merge(self, numbers: Tensor, wanted: Sequence[bool]) -> Merged:
        """Return the merged numbers from the results of `local`, summed over the ranks or, if `gathers`, stacked."""
        columns = list(numbers.unbind(-1))
        return Merged(columns[0], _sides(columns[1:], wanted))

    def derivatives(self, pair: FinitePair, merged: Merged) -> tuple[Tensor, Tensor]:
        """Return the derivatives of the divergences with respect to log p and log q, for this rank's classes."""
        return self.kind.derivatives(pair)


class _RenyiRule(CombineRule):
    """The rule for Renyi's divergence of an order alpha that is not 0, 1 or infinity.

    Where the sum of p^alpha q^(1 - alpha) is near 1, the power divergence gives the value. It keeps more digits than
    the logarithm of the sum. Elsewhere, this logarithm gives the value. It neither overflows nor underflows.
    """

    gathers = True

    def __init__(self, kind: Renyi, classes: int) -> None:
        super().__init__(kind, classes)
        self.alpha = kind.alpha
        self.scales = kind.alpha / (kind.alpha - 1), -1.0

    def local(self, pair: FinitePair, tops: Sequence[Tensor | None]) -> Tensor:
        logs = log_affinity(pair, self.alpha)
        numbers = [self.kind.terms(pair).sum(-1), logs.logsumexp(-1)]
        if any(top is not None for top in tops):
            numbers += _sums_of(Alpha(self.alpha).derivatives(pair), (pair.p, pair.q), tops)
            logs = _without_infinite(logs)
            for top in tops:
                if top is not None:
                    numbers += [
                        torch.where(mask, -torch.inf, logs).logsumexp(-1) for mask in (top, ~top)
                    ]  # logarithms: the sum over the other classes, and the class with the most mass
        return stacked(numbers)

    def merge(self, numbers: Tensor, wanted: Sequence[bool]) -> Merged:
        count = sum(wanted)
        change = self.alpha * (self.alpha - 1) * numbers[..., 0].sum(0)
        near = change.abs() < 0.5
        logs = numbers[..., 1].logsumexp(0)
        values = torch.where(near, torch.log1p(torch.where(near, change, 0)), logs) / (self.alpha - 1)
        by_power = _sides(list(numbers[..., 2 : 2 + 3 * count].sum(0).unbind(-1)), wanted)
        factor = self.alpha / (1 + torch.where(near, change, 0))
        rest = iter(numbers[..., 2 + 3 * count :].logsumexp(0).unbind(-1))
        total = torch.full_like(values, -torch.inf)
        sums: list[DerivativeSums | None] = []
        for of_power, scale in zip(by_power, self.scales, strict=True):
            if of_power is None:
                sums.append(None)
                continue
            others, top = next(rest), next(rest)
            total = _finite_peak(torch.logaddexp(others, top))
            sums.append(
                DerivativeSums(
                    torch.where(near, factor * of_power.others, scale * torch.exp(others - total)),
                    torch.where(near, factor * of_power.top, scale * torch.exp(top - total)),
                    of_power.mass,
                )
            )
        return Merged(values, (sums[0], sums[1]), (near, factor, total))

    def derivatives(self, pair: FinitePair, merged: Merged) -> tuple[Tensor, Tensor]:
        near, factor, total = (x.unsqueeze(-1) for x in merged.extra)
        shares = torch.exp(_without_infinite(log_affinity(pair, self.alpha)) - total)
        by_p, by_q = Alpha(self.alpha).derivatives(pair)
        return torch.where(near, factor * by_p, self.scales[0] * shares), torch.where(
            near, factor * by_q, self.scales[1] * shares
        )


class _LargestRatioRule(CombineRule):
    """The rule for Renyi's infinite order: the largest log(p / q). Only its first class has a gradient."""

    gathers = True

    def local(self, pair: FinitePair, tops: Sequence[Tensor | None]) -> Tensor:
        if not pair.p.shape[-1]:
            none = pair.p.new_full(pair.p.shape[:-1], -torch.inf)
            return stacked(
                [none, *(torch.zeros_like(none) for top in tops if top is not None for _ in (0, 1))]
            )
        largest, place = pair.log_ratio.max(-1)
        numbers = [largest]
        for top, mass in zip(tops, (pair.p, pair.q), strict=True):
            if top is not None:
                numbers += [top.gather(-1, place.unsqueeze(-1)).squeeze(-1), (mass * ~top).sum(-1)]
        return stacked(numbers)

    def merge(self, numbers: Tensor, wanted: Sequence[bool]) -> Merged:
        largest = numbers[..., 0].amax(0)
        first = first_rank(numbers[..., 0], largest)
        counts = largest.isfinite() & (largest > 0)
        rest = iter(numbers[..., 1:].unbind(-1))

        def of_side(sign: float) -> DerivativeSums:
            is_top = next(rest).gather(0, first.unsqueeze(0)).squeeze(0).bool()
            return DerivativeSums(sign * (counts & ~is_top), sign * (counts & is_top), next(rest).sum(0))

        sums = _of_wanted(wanted, of_side, (1.0, -1.0))
        return Merged(largest.clamp(min=0), sums, (first, counts))

    def derivatives(self, pair: FinitePair, merged: Merged) -> tuple[Tensor, Tensor]:
        first, counts = (x.unsqueeze(-1) for x in merged.extra)
        chosen = torch.zeros_like(pair.p)
        if pair.p.shape[-1]:
            has_largest = (counts & (first == self.rank)).to(pair.p.dtype)
            chosen.scatter_(-1, pair.log_ratio.argmax(-1, keepdim=True), has_largest)
        return chosen, -chosen


class _SupportRule(CombineRule):
    """The rule for Renyi's divergence of order 0, which is computed from the mass of Q outside the support of P."""

    gathers = True

    def local(self, pair: FinitePair, tops: Sequence[Tensor | None]) -> Tensor:
        uncovered, covered = support_of_p(pair)
        numbers = [uncovered.sum(-1), covered.logsumexp(-1)]
        for top, mass in zip(tops, (pair.p, pair.q), strict=True):
            if top is not None:
                numbers += [
                    (uncovered * top).sum(-1),
                    torch.where(top, covered, -torch.inf).logsumexp(-1),
                    (mass * ~top).sum(-1),
                ]
        return stacked(numbers)

    def merge(self, numbers: Tensor, wanted: Sequence[bool]) -> Merged:
        uncovered, covered = numbers[..., 0].sum(0), numbers[..., 1].logsumexp(0)
        values = torch.where(uncovered < 0.5, -torch.log1p(-uncovered), -covered)
        uniform = covered == -torch.inf
        rest = iter(numbers[..., 2:].unbind(-1))

        def of_side(is_q: float) -> DerivativeSums:
            uncovered_top, covered_top, mass = next(rest).sum(0), next(rest).logsumexp(0), next(rest).sum(0)
            share = torch.where(uniform, 1 / self.classes, torch.exp(covered_top - _finite_peak(covered)))
            top = (uncovered_top - uncovered * share) * is_q
            return DerivativeSums(-top, top, mass)  # a row's derivatives sum to 0

        return Merged(values, _of_wanted(wanted, of_side, (False, True)), (uncovered, covered))

    def derivatives(self, pair: FinitePair, merged: Merged) -> tuple[Tensor, Tensor]:
        total, covered = (x.unsqueeze(-1) for x in merged.extra)
        uncovered, logs = support_of_p(pair)
        shares = torch.where(covered == -torch.inf, 1 / self.classes, torch.exp(logs - _finite_peak(covered)))
        return torch.zeros_like(pair.p), uncovered - total * shares


def rule_of(call: str, kind: Divergence, classes: int, rank: int) -> CombineRule:
    """Return the rule for the divergence `kind`; raise unless that is a sum over classes or `Renyi`."""
    if isinstance(kind, Renyi):
        if kind.alpha == 1:
            return CombineRule(KL(), classes)
        if kind.alpha == 0:
            return _SupportRule(kind, classes)
        if kind.alpha != math.inf:
            return _RenyiRule(kind, classes)
        return _LargestRatioRule(kind, classes, rank)
    if not kind.additive:
        wanted = "for sharded classes, a divergence that is a sum over classes, or Renyi"
        instead = "group=None with the logits of all classes, or another kind"
        raise invalid_value(call, "kind", wanted=wanted, got=safe_repr(kind), instead=instead)
    return CombineRule(kind, classes)


def _sums_of(
    derivatives: Sequence[Tensor], masses: Sequence[Tensor], tops: Sequence[Tensor | None]
) -> list[Tensor]:
    numbers: list[Tensor] = []
    for by, mass, top in zip(derivatives, masses, tops, strict=True):
        if top is not None:
            numbers += [
                torch.where(top, 0, by).sum(-1),
                torch.where(top, by, 0).sum(-1),
                torch.where(top, 0, mass).sum(-1),
            ]
    return numbers


def _sides(
    columns: list[Tensor], wanted: Sequence[bool]
) -> tuple[DerivativeSums | None, DerivativeSums | None]:
    rest = iter(columns)
    return _of_wanted(wanted, lambda _: DerivativeSums(next(rest), next(rest), next(rest)), (0, 1))


def _of_wanted(
    wanted: Sequence[bool], of_side: Callable[[float], DerivativeSums], sides: tuple[float, float]
) -> tuple[DerivativeSums | None, DerivativeSums | None]:
    p, q = (of_side(side) if want else None for side, want in zip(sides, wanted, strict=True))
    return p, q


def _without_infinite(logs: Tensor) -> Tensor:
    return torch.where(logs == torch.inf, -torch.inf, logs)


def _finite_peak(logs: Tensor) -> Tensor:
    """Return `logs` with 0 for -inf, because -inf minus the result, -inf, would be NaN."""
    return torch.where(logs == -torch.inf, 0, logs)


def first_rank(numbers: Tensor, largest: Tensor) -> Tensor:
    """Return, for each row, the first rank whose number is `largest`, the row's largest; 0 if that is NaN."""
    places = torch.arange(numbers.shape[0], device=numbers.device).unsqueeze(-1)
    first = torch.where(numbers == largest, places, numbers.shape[0]).amin(0)
    return torch.where(first == numbers.shape[0], 0, first)
