"""Cross-entropy with true classes, and its mixture with the divergences of the same rows of logits."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from kullback.common.dtypes import upcast
from kullback.kernels.row_operation import (
    Gradients,
    RowOperation,
    Wanted,
    row_blocks,
    transformable,
    weighted_rows,
    without_spoilt_rows,
)


class HardLabels(NamedTuple):
    """The true classes of rows, and the two factors that mix divergence and cross-entropy.

    The mixed value of a row is `soft` times the divergence plus `hard` times the cross-entropy of Q's logits with the
    true class. The cross-entropy is computed at temperature 1.
    """

    classes: Tensor  # the true class of each row, int64
    soft: float
    hard: float

    def of_rows(self, rows: slice | Tensor) -> HardLabels:
        """Return the labels of only the rows that `rows`, a slice or an index, selects."""
        return self._replace(classes=self.classes[rows])

    def mixed_derivatives(self, derivatives: tuple[Tensor, Tensor], logits: Tensor) -> tuple[Tensor, Tensor]:
        """Return the derivatives of the mixed values by P's and Q's logits, given the divergences' derivatives."""
        by_p, by_q = (torch.zeros_like(x) if self.soft == 0 else self.soft * x for x in derivatives)
        grad = torch.full_like(logits[..., 0], self.hard, dtype=by_q.dtype)
        return by_p, by_q + cross_entropy_gradient(logits, self.classes, grad)

    def mixed(self, values: Tensor, logits: Tensor) -> Tensor:
        """Return the mixed values. `logits` are Q's; if `soft` is 0, even an infinite divergence has no effect."""
        return self.mixed_with(values, cross_entropy(logits, self.classes))

    def mixed_with(self, values: Tensor, cross_entropies: Tensor) -> Tensor:
        """Return the mixed value of each row. `values` has the divergences of the rows."""
        hard = self.hard * cross_entropies.to(values.dtype)
        return hard if self.soft == 0 else self.soft * values + hard


class LabelSums(NamedTuple):
    """Comparison of each row's label with the other classes, of all ranks, at temperature 1."""

    peak: Tensor  # the largest logit of the other classes
    total: Tensor  # the sum of the exponentials of the other classes' logits minus `peak`
    margin: Tensor  # the logsumexp of the other classes minus the label's logit

    @classmethod
    def of(cls, peak: Tensor, total: Tensor, logits: Tensor) -> LabelSums:
        """Return the numbers for labels with the logits `logits`."""
        return cls(peak, total, (peak - logits) + torch.log(total))

    def cross_entropies(self) -> Tensor:
        """Return -log softmax at the label of each row, shape (rows,)."""
        return torch.logaddexp(torch.zeros_like(self.margin), self.margin)

    def shares(self) -> tuple[Tensor, Tensor]:
        """Return the other classes' mass, which is minus the gradient at the label, and this mass over `total`."""
        mass = torch.sigmoid(self.margin)
        return mass, torch.where(self.total == 0, 0, mass / torch.where(self.total == 0, 1, self.total))

    def gradient(self, rows: slice, logits: Tensor, places: Tensor, grad: Tensor) -> Tensor:
        """Return the gradient of the sum of `grad` times the cross-entropies by this rank's logits, for the rows of a
        slice. `places` has the index of each label here, or the number of classes for another rank's. Where `grad` is
        0, so is the gradient, even for inf or NaN.
        """
        part = LabelSums(*(x[rows].unsqueeze(-1) for x in self))
        mass, share = part.shares()
        by = torch.nn.functional.pad(torch.exp(upcast(logits) - part.peak) * share, (0, 1))
        by = by.scatter(-1, places.unsqueeze(-1), -mass)[:, :-1]
        grad = grad.unsqueeze(-1)
        return torch.where(grad == 0, 0, grad * by)


def subtractable(peak: Tensor) -> Tensor:
    """Return the largest logits of rows, or 0 where this logit is infinite or NaN."""
    return torch.where(peak.isfinite(), peak, 0)


def cross_entropy(logits: Tensor, classes: Tensor) -> Tensor:
    """Return -log softmax(logits) at the class of each row, shape (rows,), in float64: KL(one-hot || softmax). It is
    +inf at a logit of -inf. The gradient is always the softmax minus the one-hot vector.
    """
    return transformable(_CrossEntropy(), logits, classes)


def cross_entropy_of_block(logits: Tensor, classes: Tensor) -> Tensor:
    """Return the same values as `cross_entropy`, by operations on the full tensor, without support for autograd."""
    accurate, index = upcast(logits), classes.unsqueeze(-1)
    peak = accurate.amax(-1, keepdim=True)
    # The peak, the largest logit of the row, is subtracted. For logits far from 0, the logarithm of a sum would lose
    # its digits without this subtraction.
    accurate = accurate - subtractable(peak)
    others = accurate.scatter(-1, index, -torch.inf).logsumexp(-1)
    margin = others - accurate.gather(-1, index).squeeze(-1)
    return torch.logaddexp(torch.zeros_like(margin), margin)


def cross_entropy_gradient(logits: Tensor, classes: Tensor, grad: Tensor) -> Tensor:
    """Return the gradient of the sum of `grad` times the cross-entropies by the logits, differentiably. Where `grad` is
    0, the gradient is 0, even if the row contains inf or NaN.
    """
    index = classes.unsqueeze(-1)
    spoilt, (rows,) = without_spoilt_rows((logits,), (True,))
    probs = torch.softmax(upcast(rows), -1)
    # Each row of the gradient sums to 0. Near softmax = 1, the formula softmax - 1 for the true class would cancel. The
    # entry of the true class is therefore minus the sum of the other entries.
    others = probs.scatter(-1, index, torch.zeros_like(probs[..., :1]))
    by = others.scatter(-1, index, -others.sum(-1, keepdim=True))
    return weighted_rows(by, grad, spoilt)


class _CrossEntropy(RowOperation):
    """The row operation of `cross_entropy`. Its gradient has the dtype of the logits."""

    def compute(self, logits: Tensor, classes: Tensor) -> tuple[Tensor]:
        parts = [cross_entropy_of_block(logits[block], classes[block]) for block in row_blocks(logits)]
        return (torch.cat(parts),)

    def gradients(self, tensors: Any, kept: Any, grad: Tensor, wanted: Wanted, is_plain: bool) -> Gradients:
        logits, classes, *_ = tensors
        if not is_plain:
            return cross_entropy_gradient(logits, classes, grad).to(logits.dtype), None
        gradient = torch.empty_like(logits)
        for block in row_blocks(logits):
            gradient[block] = cross_entropy_gradient(logits[block], classes[block], grad[block])
        return gradient, None

    def changes(self, tensors: Any, tangents: Gradients) -> Tensor:
        logits, classes, *_ = tensors
        ones = torch.ones_like(classes, dtype=upcast(logits[..., :0]).dtype)
        by = cross_entropy_gradient(logits, classes, ones)
        return (by * tangents[0]).sum(-1) if tangents[0] is not None else torch.zeros_like(ones)
