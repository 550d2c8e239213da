"""A criterion for the knowledge distillation of NVIDIA's ModelOpt."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.nn.modules.loss import _Loss  # ModelOpt requires it  # pyright: ignore[reportPrivateUsage]

from kullback.common.extra_arguments import by_name
from kullback.generators import KL, Divergence
from kullback.integrations.models import logits_of
from kullback.nn import DistillationLoss

__all__ = ["LogitsDistillationLoss"]

_KL = KL()


@by_name()
class LogitsDistillationLoss(_Loss):
    r"""Any divergence as the criterion of `modelopt.torch.distill.convert`.

    .. math:: L = \frac{T^2}{N} \sum_n D(P_n \| Q_n), \quad P \text{ the teacher},\; Q \text{ the student}

    The class replaces `modelopt.torch.distill.LogitsDistillationLoss`. With ModelOpt's default, ``reduction="mean"``,
    the loss is also divided by the number of classes, so a larger vocabulary has a smaller loss. Here ``"mean"`` is the
    mean over positions, like ModelOpt's ``"batchmean"`` of matrices.

    Arguments:
        temperature: T, which divides both logits.
        reduction: ``"mean"``, ``"sum"``, ``"batchmean"``, or ``"none"`` for the value of each position.
        kind: the divergence or its name, such as ``"js:0.5"``.

    Returns:
        the loss, when called with the outputs of student and teacher: logits, or outputs with an attribute or entry
        ``logits``.

    Raises:
        KullbackError: a setting is invalid; at the call, shapes differ.

    Gradient: the gradient of `kullback.functional.distillation_loss`, to the student.

    Example:
        >>> import torch
        >>> from kullback.integrations.modelopt import LogitsDistillationLoss
        >>> criterion = LogitsDistillationLoss(temperature=2.0, kind="reverse_kl")
        >>> criterion(torch.zeros(2, 3), torch.eye(3)[:2])
        tensor(0.1164)

    References:
        Distilling the Knowledge in a Neural Network (Hinton, Vinyals and Dean, 2015)
    """

    def __init__(
        self, temperature: float = 1.0, reduction: str = "mean", kind: Divergence | str = _KL
    ) -> None:
        self_reduction: Any = reduction
        loss = DistillationLoss(
            kind=kind, temperature=temperature, temperature_squared=True, reduction=self_reduction
        )
        super().__init__(reduction=reduction)
        self.loss = loss

    def forward(self, logits_s: Any, logits_t: Any) -> Tensor:
        """Compute the loss of the student's outputs against the teacher's."""
        return self.loss(logits_of(logits_s), logits_of(logits_t).detach())
