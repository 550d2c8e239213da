"""Losses as modules: the drop-in for `torch.nn.KLDivLoss`, and distillation from logits."""

from __future__ import annotations

import torch
from torch import Tensor

from kullback.functional import distillation_loss, kl_div
from kullback.functional.distillation import Vocabulary
from kullback.generators import KL, Divergence

__all__ = ["DistillationLoss", "KLDivLoss"]

_KL = KL()


class KLDivLoss(torch.nn.KLDivLoss):
    r"""KL(target || input) as a module: a drop-in for `torch.nn.KLDivLoss`, and a subclass of it.

    :math:`\mathrm{KL}(P \,\|\, Q) = \sum_i p_i (\log p_i - \log q_i)`, with :math:`P` the target and
    :math:`\log Q` the input. `kullback.functional.kl_div` does the work and says how the reductions scale:
    ``"batchmean"`` is the mean divergence of the rows, the default ``"mean"`` divides by the classes too.

    Arguments:
        size_average: Deprecated; sets `reduction`, with a warning.
        reduce: Deprecated likewise.
        reduction: ``"none"``, ``"sum"``, ``"mean"`` or ``"batchmean"``; read at each call.
        log_target: Whether the target holds log-probabilities.

    Returns:
        Called with ``(input, target)``, what `kl_div` returns: the terms, or a scalar.

    Raises:
        KullbackError: At the call, as `kl_div` does.

    Gradient:
        That of `kl_div`: 0, never NaN, at a class without mass in the target.

    Example:
        >>> loss = KLDivLoss(reduction="batchmean")
        >>> loss(torch.tensor([[0.5, 0.5, 0.0]]).log(), torch.tensor([[1.0, 0.0, 0.0]]))
        tensor(0.6931)

    References:
        On Information and Sufficiency (Kullback and Leibler, 1951).
    """

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        """Compute the loss of log-probabilities `input` against `target`."""
        return kl_div(input, target, reduction=self.reduction, log_target=self.log_target)


class DistillationLoss(torch.nn.Module):
    r"""The divergence of a student from a teacher as a module; `kullback.functional.distillation_loss` does the work.

    .. math:: L = \frac{\sum_n w_n\, D(P_n \| Q_n)}{\sum_n w_n}, \quad P \text{ the teacher},\; Q \text{ the student}

    Arguments:
        kind: the divergence; ``KL()`` is KL(teacher || student).
        temperature: what both logits are divided by.
        reduction: ``"none"``, ``"sum"``, ``"mean"`` or ``"batchmean"``.
        temperature_squared: multiply by the temperature squared.
        ignore_index: the label of positions that do not count.
        vocabulary: ``"error"``, ``"truncate"`` or ``"mask"``, for vocabularies of different size.
        inplace_backward: let the backward pass overwrite the student's logits with their gradient.

    Returns:
        Called with ``student=`` and ``teacher=``, and optionally ``mask=``, ``weight=``, ``labels=`` and
        ``normalizer=``, what `distillation_loss` returns.

    Raises:
        KullbackError: At the call, as `distillation_loss` does.

    Gradient:
        That of `distillation_loss`.

    Example:
        >>> from kullback import JensenShannon
        >>> loss = DistillationLoss(kind=JensenShannon())
        >>> loss(student=torch.tensor([[0.0, 1.0]]), teacher=torch.tensor([[1.0, 0.0]]))
        tensor(0.1109)

    References:
        Distilling the Knowledge in a Neural Network (Hinton, Vinyals and Dean, 2015)
    """

    def __init__(
        self,
        *,
        kind: Divergence = _KL,
        temperature: float = 1.0,
        reduction: str = "mean",
        temperature_squared: bool = False,
        ignore_index: int = -100,
        vocabulary: Vocabulary = "error",
        inplace_backward: bool = False,
    ) -> None:
        super().__init__()
        self.kind = kind
        self.temperature = temperature
        self.reduction = reduction
        self.temperature_squared = temperature_squared
        self.ignore_index = ignore_index
        self.vocabulary: Vocabulary = vocabulary
        self.inplace_backward = inplace_backward

    def extra_repr(self) -> str:
        """Show what the loss was made with."""
        return f"kind={self.kind!r}, temperature={self.temperature}, reduction={self.reduction!r}"

    def forward(
        self,
        *,
        student: Tensor,
        teacher: Tensor,
        mask: Tensor | None = None,
        weight: Tensor | None = None,
        labels: Tensor | None = None,
        normalizer: Tensor | float | None = None,
    ) -> Tensor:
        """Compute the loss of logits `student` against logits `teacher`."""
        return distillation_loss(
            student=student,
            teacher=teacher,
            kind=self.kind,
            temperature=self.temperature,
            mask=mask,
            weight=weight,
            labels=labels,
            ignore_index=self.ignore_index,
            reduction=self.reduction,
            temperature_squared=self.temperature_squared,
            normalizer=normalizer,
            vocabulary=self.vocabulary,
            inplace_backward=self.inplace_backward,
        )
