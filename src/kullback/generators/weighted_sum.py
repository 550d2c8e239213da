"""The base class of divergences that are weighted sums of other divergences."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence

import torch
from torch import Tensor

from kullback.generators.divergence import BuiltIn, Divergence, FinitePair


class WeightedSum(BuiltIn):
    """The base class of divergences that are weighted sums of other divergences, of (P, Q) or of (Q, P)."""

    @abstractmethod
    def parts(self) -> Sequence[tuple[float, Divergence, bool]]:
        """Return tuples of a positive weight, a divergence, and whether P and Q are exchanged."""

    def terms(self, pair: FinitePair) -> Tensor:
        total = torch.zeros_like(pair.p)
        for weight, kind, swap in self.parts():
            total = total + weight * kind.terms(pair.swapped() if swap else pair)
        return total

    def derivatives(self, pair: FinitePair) -> tuple[Tensor, Tensor]:
        by_p, by_q = torch.zeros_like(pair.p), torch.zeros_like(pair.q)
        for weight, kind, swap in self.parts():
            first, second = kind.derivatives(pair.swapped() if swap else pair)
            by_p = by_p + weight * (second if swap else first)
            by_q = by_q + weight * (first if swap else second)
        return by_p, by_q
