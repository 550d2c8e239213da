"""A loss for the knowledge distillation recipe of NeMo Automodel, named in its configuration files."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from kullback.common.extra_arguments import by_name
from kullback.generators import KL, Divergence
from kullback.integrations.batch_loss import at_least_one
from kullback.nn import DistillationLoss

__all__ = ["KDLoss"]

_KL = KL()


@by_name()
class KDLoss(torch.nn.Module):
    r"""Any divergence as the `kd_loss_fn` of NeMo Automodel's recipe: the same arguments and attributes, and `kind`.

    .. math:: L = \frac{T^2}{N} \sum_n D(P_n \| Q_n), \quad P \text{ the teacher},\; Q \text{ the student}

    P and Q are at temperature T. For ``kind="kl"``, values and gradients agree with
    `nemo_automodel.components.loss.kd_loss.KDLoss` up to rounding.

    Arguments:
        ignore_index: the label of positions that do not count.
        temperature: T.
        fp32_upcast: accepted for configuration files; the computation is in float32 or better in any case.
        tp_group: the process group over which the classes are sharded; None for DTensors, which store how they are
            sharded.
        chunk_size: accepted for configuration files; there are no temporaries of the size of the logits.
        kind: the divergence or its name, such as ``"js:0.5"``.

    Returns:
        a scalar, when called with student logits, teacher logits, labels and, optionally, ``num_batch_labels``, the
        number of counted labels of all micro-batches.

    Raises:
        KullbackError: a setting is invalid; at the call, shapes differ.

    Gradient:
        the gradient of `kullback.functional.distillation_loss`.

    Example:
        >>> import torch
        >>> from kullback.integrations.nemo import KDLoss
        >>> loss = KDLoss(temperature=2.0, kind="js:0.5")
        >>> loss(torch.zeros(1, 2, 3), torch.eye(3)[None, :2], torch.tensor([[1, -100]]), num_batch_labels=4)
        tensor(0.0074)

    References:
        Distilling the Knowledge in a Neural Network (Hinton, Vinyals and Dean, 2015)
    """

    def __init__(
        self,
        ignore_index: int = -100,
        temperature: float = 1.0,
        fp32_upcast: bool = True,
        tp_group: Any = None,
        chunk_size: int = 0,
        kind: Divergence | str = _KL,
    ) -> None:
        super().__init__()
        self.ignore_index, self.temperature = ignore_index, temperature
        self.fp32_upcast, self.chunk_size, self.tp_group = fp32_upcast, chunk_size, tp_group
        self.loss = DistillationLoss(
            kind=kind,
            temperature=temperature,
            temperature_squared=True,
            ignore_index=ignore_index,
            group=tp_group,
        )

    def forward(
        self,
        student_logits: Tensor,
        teacher_logits: Tensor,
        labels: Tensor,
        num_batch_labels: Tensor | float | None = None,
    ) -> Tensor:
        """Compute the loss of logits of shape (..., classes) with labels of the leading shape."""
        labels = labels.reshape(student_logits.shape[:-1])
        return self.loss(student_logits, teacher_logits, labels, normalizer=at_least_one(num_batch_labels))
