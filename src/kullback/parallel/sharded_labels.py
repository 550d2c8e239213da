"""Cross-entropy with true classes for sharded classes, and its mixture with the divergences of the same rows."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from kullback.common.dtypes import upcast
from kullback.kernels.label_terms import HardLabels, LabelSums


def places_of(classes: Tensor, start: int, own: int) -> Tensor:
    """Return indices into this rank's `own` classes from `start` on; `own` for a class of another rank."""
    places = classes - start
    return torch.where((places >= 0) & (places < own), places, own)


def logits_at(logits: Tensor, places: Tensor) -> Tensor:
    """Return the logits of each row at the indices `places`, in float64; 0 for a class of another rank."""
    own = logits.shape[-1]
    if not own:
        return upcast(logits.new_zeros(places.shape))
    return upcast(torch.where(places < own, logits.gather(-1, places.clamp(max=own - 1)), 0))


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
