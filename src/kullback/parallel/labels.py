"""Cross-entropy with true classes where classes are sharded, as it is mixed with the divergence of the same rows."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from kullback.kernels.labels import HardLabels
from kullback.numeric import upcast

__all__ = ["LabelSums", "MixedLabels", "logits_at", "places_of"]


def places_of(classes: Tensor, start: int, own: int) -> Tensor:
    """Return where classes are among the `own` ones that this rank has from `start`; `own` if another has them."""
    places = classes - start
    return torch.where((places >= 0) & (places < own), places, own)


def logits_at(logits: Tensor, places: Tensor) -> Tensor:
    """Return the logits of each row at `places`, in float64; 0 where another rank has the class."""
    own = logits.shape[-1]
    if not own:
        return upcast(logits.new_zeros(places.shape))
    return upcast(torch.where(places < own, logits.gather(-1, places.clamp(max=own - 1)), 0))


class LabelSums(NamedTuple):
    """What all ranks know of each row's label and of the other classes, at temperature 1."""

    peak: Tensor  # the largest logit of the others
    total: Tensor  # the sum of their exponentials relative to it
    behind: Tensor  # how far the label's logit is below the log of that sum

    @classmethod
    def of(cls, peak: Tensor, total: Tensor, logits: Tensor) -> LabelSums:
        """Compare the labels' logits with the sums over the other classes."""
        return cls(peak, total, (peak - logits) + torch.log(total))

    def cross_entropies(self) -> Tensor:
        """Return -log softmax(logits) of each label."""
        return torch.logaddexp(torch.zeros_like(self.behind), self.behind)

    def gradient(self, rows: slice, logits: Tensor, places: Tensor, grad: Tensor) -> Tensor:
        """Return the gradient, by this rank's logits, of the sum of `grad` times the cross-entropies of some rows.

        Arguments:
            rows: which of the rows.
            logits: theirs, shape (rows, classes of this rank).
            places: of their labels among these classes, shape (rows,), as of `places_of`.
            grad: shape (rows,); where it is 0 the row gets 0, whatever it holds.
        """
        peak, total, behind = (x[rows].unsqueeze(-1) for x in self)
        mass = torch.sigmoid(behind)  # of the other classes together; less that is the label's entry
        share = torch.where(total == 0, 0, mass / torch.where(total == 0, 1, total))
        by = torch.nn.functional.pad(torch.exp(upcast(logits) - peak) * share, (0, 1))
        by = by.scatter(-1, places.unsqueeze(-1), -mass)[:, :-1]
        grad = grad.unsqueeze(-1)
        return torch.where(grad == 0, 0, grad * by)


class MixedLabels(NamedTuple):
    """The labels of rows: what is known of them, and what they weigh beside the divergences."""

    hard: HardLabels
    places: Tensor  # of the labels among this rank's classes
    sums: LabelSums

    def values(self, divergences: Tensor) -> Tensor:
        """Return the values of the rows."""
        return self.hard.mixed_with(divergences, self.sums.cross_entropies())

    def gradient(self, rows: slice, gradient: Tensor, logits: Tensor | None) -> Tensor:
        """Return the gradient of some rows' values from that of their divergences, by one side's logits.

        Arguments:
            rows: which of the rows.
            gradient: of their divergences.
            logits: Q's of these rows; None for the gradient by P's, on which cross-entropies do not depend.
        """
        soft = gradient * self.hard.soft if self.hard.soft else torch.zeros_like(gradient)
        if logits is None:
            return soft
        ones = torch.ones_like(self.sums.behind[rows])
        return soft + self.hard.hard * self.sums.gradient(rows, logits, self.places[rows], ones)
