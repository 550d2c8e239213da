"""Cross-entropy with true classes for sharded classes, and its mixture with the divergences of the same rows."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from kullback.common.dtypes import upcast
from kullback.kernels.label_terms import HardLabels


def places_of(classes: Tensor, start: int, own: int) -> Tensor:
    """Return `classes` - `start`, which are indices into the `own` classes of this rank. The index of a class of
    another rank is `own`.
    """
    places = classes - start
    return torch.where((places >= 0) & (places < own), places, own)


def logits_at(logits: Tensor, places: Tensor) -> Tensor:
    """Return the logits of each row at the indices `places`, in float64. The result is 0 for a class of another
    rank.
    """
    own = logits.shape[-1]
    if not own:
        return upcast(logits.new_zeros(places.shape))
    return upcast(torch.where(places < own, logits.gather(-1, places.clamp(max=own - 1)), 0))


class LabelSums(NamedTuple):
    """Numbers that compare the label of each row with the other classes at temperature 1. The numbers are equal on all
    ranks.
    """

    peak: Tensor  # the largest logit of the other classes
    total: Tensor  # the sum of the exponentials of the other classes' logits minus `peak`
    margin: Tensor  # the logsumexp of the other classes minus the label's logit

    @classmethod
    def of(cls, peak: Tensor, total: Tensor, logits: Tensor) -> LabelSums:
        """Return the numbers for labels with the logits `logits`. `peak` and `total` are the fields of the same
        names.
        """
        return cls(peak, total, (peak - logits) + torch.log(total))

    def cross_entropies(self) -> Tensor:
        """Return -log softmax at the label of each row, shape (rows,)."""
        return torch.logaddexp(torch.zeros_like(self.margin), self.margin)

    def gradient(self, rows: slice, logits: Tensor, places: Tensor, grad: Tensor) -> Tensor:
        """Return the gradient of the sum of `grad` times the cross-entropies with respect to this rank's logits, for
        the rows of a slice.

        `places` has the results of `places_of` for the labels of these rows. The gradient of a row whose `grad` is 0 is
        0, even if the row contains inf or NaN.
        """
        peak, total, margin = (x[rows].unsqueeze(-1) for x in self)
        mass = torch.sigmoid(margin)  # the mass of all other classes; the gradient at the label is -mass
        share = torch.where(total == 0, 0, mass / torch.where(total == 0, 1, total))
        by = torch.nn.functional.pad(torch.exp(upcast(logits) - peak) * share, (0, 1))
        by = by.scatter(-1, places.unsqueeze(-1), -mass)[:, :-1]
        grad = grad.unsqueeze(-1)
        return torch.where(grad == 0, 0, grad * by)


class MixedLabels(NamedTuple):
    """The labels of rows, with the numbers that mix their cross-entropies with the divergences of the rows."""

    hard: HardLabels
    places: Tensor  # the results of `places_of` for the labels
    sums: LabelSums

    def values(self, divergences: Tensor) -> Tensor:
        """Return the mixed value of each row. `divergences` has the divergences of the rows."""
        return self.hard.mixed_with(divergences, self.sums.cross_entropies())

    def gradient(self, rows: slice, gradient: Tensor, logits: Tensor | None) -> Tensor:
        """Return the gradient of the mixed values of the rows of a slice. `gradient` has the gradient of the rows'
        divergences.

        Both gradients are with respect to Q's logits if `logits` has these logits. If `logits` is None, both are with
        respect to P's logits, on which the cross-entropies do not depend.
        """
        soft = gradient * self.hard.soft if self.hard.soft else torch.zeros_like(gradient)
        if logits is None:
            return soft
        ones = torch.ones_like(self.sums.margin[rows])
        return soft + self.hard.hard * self.sums.gradient(rows, logits, self.places[rows], ones)
