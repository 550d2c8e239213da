"""Distillation with Lightning. Importing this module imports lightning."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from kullback.common.extra_arguments import by_name
from kullback.common.optional import load
from kullback.errors import invalid_type
from kullback.integrations.batch_loss import BatchLoss
from kullback.integrations.models import is_dispatched, logits_of
from kullback.nn import DistillationLoss, LinearDistillationLoss

__all__ = ["DistillationModule"]

_LightningModule: Any = load("lightning.pytorch", "kullback.integrations.lightning").LightningModule


@by_name()
class DistillationModule(_LightningModule):  # pyright: ignore[reportUntypedBaseClass]
    r"""A `LightningModule` that trains a student to make the predictions of a teacher.

    .. math:: L = \frac1N \sum_n D(P_n \| Q_n), \quad P \text{ the teacher},\; Q \text{ the student}

    A batch is a dict of the models' arguments, a tensor of inputs, or a tuple with such a tensor as its first entry.
    The other entries of a tuple are not used. In a dict, ``labels`` determine the positions that count, and are the
    labels of ``label_weight``. The teacher is not a part of the module: it is neither trained nor saved, and follows
    the student to its device.

    The loss is logged as ``train_loss``, ``val_loss`` and ``test_loss``. The last two are the mean over all positions
    of the epoch that count, in all processes. With ``reduction="sum"``, they are the sum.

    Arguments:
        student: the model to be trained.
        teacher: the teacher. The teacher is frozen, so it must not share trainable parameters with the student.
        loss: the loss; by default, ``DistillationLoss()``. A `LinearDistillationLoss` needs Hugging Face models, and
            batches that are dicts.
        optimizer: a function that makes the optimizer from the student's parameters; by default, AdamW.
        causal: whether the label of a position's logits is the next token, as in causal language models. By default,
            True if the student is a causal language model of Hugging Face.

    Raises:
        ArgumentTypeError: `loss` or `teacher` is of the wrong type, or `optimizer` is not a function.
        ArgumentValueError: the reduction of `loss` is neither ``"mean"`` nor ``"sum"``, or the teacher shares trainable
            parameters with the student. At a batch, `causal` does not fit the student, or the labels of
            ``label_weight`` are missing. A loss with ``vocabulary="mask"`` is +inf because a side lacks classes.
        OptionalDependencyError: lightning is not installed.

    Gradient:
        the gradient of `kullback.functional.distillation_loss`.

    Example:
        >>> import torch
        >>> from kullback.integrations.lightning import DistillationModule
        >>> module = DistillationModule(torch.nn.Linear(4, 3), torch.nn.Linear(4, 3))
        >>> sorted(module.state_dict())
        ['student.bias', 'student.weight']
        >>> module.training_step((torch.zeros(2, 4), torch.tensor([0, 1])), 0).requires_grad
        True

    References:
        Distilling the Knowledge in a Neural Network (Hinton, Vinyals and Dean, 2015)
    """

    def __init__(
        self,
        student: torch.nn.Module,
        teacher: torch.nn.Module,
        loss: DistillationLoss | LinearDistillationLoss | None = None,
        *,
        optimizer: Callable[[Iterable[torch.nn.Parameter]], torch.optim.Optimizer] = torch.optim.AdamW,
        causal: bool | None = None,
    ) -> None:
        if not callable(optimizer):
            wanted = "a function that makes the optimizer from the student's parameters"
            got = type(optimizer).__name__
            instead = "optimizer=lambda parameters: torch.optim.Adam(parameters, lr=1e-3)"
            raise invalid_type("DistillationModule", "optimizer", wanted=wanted, got=got, instead=instead)
        super().__init__()
        self.student, self.optimizer = student, optimizer
        loss = DistillationLoss() if loss is None else loss
        self.batch_loss = BatchLoss(
            "DistillationModule", loss, teacher, causal=causal, otherwise=False, has_counts=False
        )
        self.batch_loss.freeze_teacher(student)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Return the student's output."""
        return self.student(*args, **kwargs)

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        return self._logged("train_loss", batch)

    def validation_step(self, batch: Any, batch_idx: int) -> Tensor:
        return self._logged("val_loss", batch)

    def test_step(self, batch: Any, batch_idx: int) -> Tensor:
        return self._logged("test_loss", batch)

    def setup(self, stage: str) -> None:
        """Convert the teacher to the dtype that Lightning's "true" precisions give the student."""
        if self.trainer.precision in ("64-true", "bf16-true", "16-true"):
            self.trainer.precision_plugin.convert_module(self.batch_loss.teacher)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return self.optimizer(self.student.parameters())

    def _logged(self, name: str, batch: Any) -> Tensor:
        teacher = self.batch_loss.teacher
        assert teacher is not None  # noqa: S101 - for the type checker
        if not is_dispatched(teacher):
            teacher.to(self.device)
        if isinstance(batch, Mapping):
            loss, _ = self.batch_loss(self.student, batch, keep_logits=False)
        else:
            x = batch[0] if isinstance(batch, tuple | list) else batch
            self.batch_loss.check_apart(self.student)
            sides = {"student": logits_of(self.student(x)), "teacher": logits_of(self.batch_loss.teach(x))}
            loss = self.batch_loss.of_sides(sides)
        if self._trainer is not None:
            self._log_loss(name, loss.detach())
        return loss

    def _log_loss(self, name: str, loss: Tensor) -> None:
        tokens = self.batch_loss.tokens
        assert tokens is not None  # noqa: S101 - for the type checker
        if name == "train_loss":
            self.log(name, loss, prog_bar=True)
        elif self.batch_loss.loss.reduction == "sum":
            self.log(name, loss, prog_bar=True, sync_dist=True, reduce_fx="sum")
        else:
            # Lightning divides the weights by the number of processes, which would truncate integers.
            weight: Any = tokens.to(torch.float32 if tokens.device.type == "mps" else torch.float64)
            # The mean of a batch without counted positions may be NaN, which no weight of 0 would remove.
            loss = torch.where(tokens > 0, loss, 0.0)
            self.log(name, loss, prog_bar=True, sync_dist=True, batch_size=weight)
