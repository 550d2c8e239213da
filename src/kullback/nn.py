"""Losses as modules: the drop-in for `torch.nn.KLDivLoss`, distillation from logits, and KL to a prior."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING, Any, TypeVar, cast

import torch
from torch import Tensor

from kullback.errors import invalid_value
from kullback.functional import distillation_loss, kl_div, linear_distillation_loss
from kullback.functional.linear import EachSide, check_head_settings
from kullback.functional.positions import (
    Vocabulary,
    check_classes,
    check_ignore_index,
    check_kind,
    check_label_weight,
    check_temperature,
    check_vocabulary,
)
from kullback.functional.sampled_tail import SampledTail
from kullback.functional.top_k import TopK
from kullback.generators import KL, Divergence
from kullback.inputs import check_flag
from kullback.reduction import Reduction, check_reduction
from kullback.regularizer import KLRegularizer, active_units, kl_per_dimension
from kullback.schedules import AdaptiveCoefficient, CyclicalSchedule, LinearSchedule
from kullback.shown import shown_options

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

__all__ = [
    "AdaptiveCoefficient",
    "CyclicalSchedule",
    "DistillationLoss",
    "KLDivLoss",
    "KLRegularizer",
    "LinearDistillationLoss",
    "LinearSchedule",
    "active_units",
    "kl_per_dimension",
]

_KL = KL()
_Result = TypeVar("_Result")


def _by_position(*names: str) -> Callable[[Callable[..., _Result]], Callable[..., _Result]]:
    """Let trainers give keyword-only arguments by position too: the student's first, as torch's losses have it.

    Names cannot be mistaken and positions can. If a gradient is recorded for the teacher and none for the student, they
    were exchanged.
    """

    def decorate(forward: Callable[..., _Result]) -> Callable[..., _Result]:
        @wraps(forward)
        def wrapped(self: torch.nn.Module, *given: Any, **named: Any) -> _Result:
            if given:
                call = f"{type(self).__name__}.forward"
                if len(given) > len(names):
                    raise TypeError(
                        f"{call}() takes {len(names)} arguments by position, {', '.join(names)}; got {len(given)}"
                    )
                if torch.is_grad_enabled():
                    _check_order(call, dict(zip(names, given, strict=False)))
                return forward(self, **dict(zip(names, given, strict=False)), **named)
            return forward(self, **named)

        return wrapped

    return decorate


def _check_order(call: str, given: dict[str, Any]) -> None:
    learns = {
        side: any(
            isinstance(x, Tensor) and x.requires_grad for name, x in given.items() if name.startswith(side)
        )
        for side in ("student", "teacher")
    }
    if learns["teacher"] and not learns["student"]:
        raise invalid_value(
            call,
            "student, teacher",
            wanted="first the student, which learns, then the teacher",
            got="a gradient for the second alone",
            instead="loss(student, teacher), or loss(student=..., teacher=...) if the teacher is what learns",
        )


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
        ArgumentValueError: `reduction` is not one of the four words; and what `kl_div` raises, at the call.

    Gradient:
        That of `kl_div`: 0, never NaN, at a class without mass in the target.

    Example:
        >>> loss = KLDivLoss(reduction="batchmean")
        >>> loss(torch.tensor([[0.5, 0.5, 0.0]]).log(), torch.tensor([[1.0, 0.0, 0.0]]))
        tensor(0.6931)

    References:
        On Information and Sufficiency (Kullback and Leibler, 1951).
    """

    def __init__(
        self,
        size_average: bool | None = None,
        reduce: bool | None = None,
        reduction: str = "mean",
        log_target: bool = False,
    ) -> None:
        super().__init__(size_average, reduce, reduction, log_target)
        if self.reduction != "elementwise_mean":  # torch's old name for "mean"
            check_reduction("KLDivLoss", self.reduction)

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        """Compute the loss of log-probabilities `input` against `target`."""
        return kl_div(input, target, reduction=self.reduction, log_target=self.log_target)


class DistillationLoss(torch.nn.Module):
    r"""The divergence of a student from a teacher as a module; `kullback.functional.distillation_loss` does the work.

    .. math:: L = \frac{\sum_n w_n\, D(P_n \| Q_n)}{\sum_n w_n}, \quad P \text{ the teacher},\; Q \text{ the student}

    Arguments:
        kind: the divergence, or its name such as ``"js:0.5"``; ``KL()`` is KL(teacher || student).
        temperature: what both logits are divided by.
        reduction: ``"none"``, ``"sum"``, ``"mean"`` or ``"batchmean"``.
        temperature_squared: multiply by the temperature squared.
        ignore_index: the label of positions that do not count.
        vocabulary: ``"error"``, ``"truncate"`` or ``"mask"``, for vocabularies of different size.
        label_weight: the share of the cross-entropy with the labels, from 0 to 1.
        inplace_backward: let the backward pass overwrite the student's logits with their gradient.
        group: the process group over which the classes are sharded.
        classes: the number of classes, if those beyond are padding.

    Returns:
        Called with ``student=`` and ``teacher=``, and optionally ``mask=``, ``weight=``, ``labels=`` and
        ``normalizer=``, what `distillation_loss` returns. Trainers may give student, teacher and labels by position, in
        this order; a gradient for the second alone says that they were exchanged, and is refused.

    Raises:
        KullbackError: a setting is invalid; at the call, see `distillation_loss`.

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
        kind: Divergence | str = _KL,
        temperature: float = 1.0,
        reduction: Reduction = "mean",
        temperature_squared: bool = False,
        ignore_index: int = -100,
        vocabulary: Vocabulary = "error",
        label_weight: float = 0.0,
        inplace_backward: bool = False,
        group: ProcessGroup | None = None,
        classes: int | None = None,
    ) -> None:
        super().__init__()
        self.kind = check_kind("DistillationLoss", kind)
        check_temperature("DistillationLoss", temperature)
        check_reduction("DistillationLoss", reduction)
        check_vocabulary("DistillationLoss", vocabulary)
        classes = check_classes("DistillationLoss", classes)
        check_label_weight("DistillationLoss", label_weight)
        check_flag("DistillationLoss", "temperature_squared", temperature_squared)
        check_flag("DistillationLoss", "inplace_backward", inplace_backward)
        ignore_index = check_ignore_index("DistillationLoss", ignore_index)
        self.temperature = temperature
        self.reduction: Reduction = reduction
        self.temperature_squared = temperature_squared
        self.ignore_index = ignore_index
        self.vocabulary: Vocabulary = vocabulary
        self.label_weight = label_weight
        self.inplace_backward = inplace_backward
        self.group = group
        self.classes = classes

    def extra_repr(self) -> str:
        """Show what the loss was made with."""
        return shown_options(self, DistillationLoss, always=("kind", "temperature", "reduction"))

    @_by_position("student", "teacher", "labels")
    def forward(
        self,
        *,
        student: Tensor,
        teacher: Tensor | TopK | SampledTail,
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
            label_weight=self.label_weight,
            ignore_index=self.ignore_index,
            reduction=self.reduction,
            temperature_squared=self.temperature_squared,
            normalizer=normalizer,
            vocabulary=self.vocabulary,
            inplace_backward=self.inplace_backward,
            group=self.group,
            classes=self.classes,
        )


class LinearDistillationLoss(torch.nn.Module):
    r"""`DistillationLoss` from hidden states and heads; `kullback.functional.linear_distillation_loss` does the work.

    .. math:: L = \frac{\sum_n w_n\, D(P_n \| Q_n)}{\sum_n w_n}, \quad
        Q_n = \operatorname{softmax}(W h_n + b), \quad P \text{ the teacher},\; Q \text{ the student}

    The logits are made for some positions at a time and never held all. The heads come with each call, so that a head
    which the model owns, or shares with its embedding, stays where it is.

    Arguments:
        kind: the divergence, or its name such as ``"js:0.5"``; ``KL()`` is KL(teacher || student).
        temperature: what both logits are divided by.
        reduction: ``"none"``, ``"sum"``, ``"mean"`` or ``"batchmean"``.
        temperature_squared: multiply by the temperature squared.
        ignore_index: the label of positions that do not count.
        vocabulary: ``"error"``, ``"truncate"`` or ``"mask"``, for vocabularies of different size.
        label_weight: the share of the cross-entropy with the labels, from 0 to 1.
        softcap: beyond which no logit goes, or None; a pair is (student's, teacher's).
        logit_scale: what the products are multiplied by before the cap; a pair is (student's, teacher's).
        chunk_bytes: what the logits of a chunk of positions may take; left out, it is chosen.
        float32_logits: keep the logits of half-precision heads in float32.
        group: the process group over which the classes are sharded.
        classes: the number of classes, if those beyond are padding.
        return_entropy: return the student's entropy at each position too.

    Returns:
        Called with ``student=``, ``student_weight=``, ``teacher=`` and, where that has a head, ``teacher_weight=``, and
        optionally ``student_bias=``, ``teacher_bias=``, ``mask=``, ``weight=``, ``labels=`` and ``normalizer=``,
        what `linear_distillation_loss` returns. By position they are the student's, its head, the teacher's, its head,
        labels and the biases; a gradient for the teacher's side alone is then refused.

    Raises:
        KullbackError: a setting is invalid; at the call, see `linear_distillation_loss`.

    Gradient:
        That of `linear_distillation_loss`.

    Example:
        >>> from kullback import JensenShannon
        >>> loss = LinearDistillationLoss(kind=JensenShannon())
        >>> head, hidden = torch.eye(2), torch.tensor([[0.0, 1.0]])
        >>> loss(student=hidden, student_weight=head, teacher=hidden.flip(1), teacher_weight=head)
        tensor(0.1109)

    References:
        Distilling the Knowledge in a Neural Network (Hinton, Vinyals and Dean, 2015)
    """

    def __init__(
        self,
        *,
        kind: Divergence | str = _KL,
        temperature: float = 1.0,
        reduction: Reduction = "mean",
        temperature_squared: bool = False,
        ignore_index: int = -100,
        vocabulary: Vocabulary = "error",
        label_weight: float = 0.0,
        softcap: EachSide = None,
        logit_scale: EachSide = 1.0,
        chunk_bytes: int | None = None,
        float32_logits: bool = False,
        group: ProcessGroup | None = None,
        classes: int | None = None,
        return_entropy: bool = False,
    ) -> None:
        super().__init__()
        self.kind = check_kind("LinearDistillationLoss", kind)
        check_temperature("LinearDistillationLoss", temperature)
        check_reduction("LinearDistillationLoss", reduction)
        check_vocabulary("LinearDistillationLoss", vocabulary)
        classes = check_classes("LinearDistillationLoss", classes)
        check_label_weight("LinearDistillationLoss", label_weight)
        check_flag("LinearDistillationLoss", "temperature_squared", temperature_squared)
        check_flag("LinearDistillationLoss", "float32_logits", float32_logits)
        check_flag("LinearDistillationLoss", "return_entropy", return_entropy)
        ignore_index = check_ignore_index("LinearDistillationLoss", ignore_index)
        check_head_settings("LinearDistillationLoss", softcap, logit_scale, chunk_bytes)
        self.temperature = temperature
        self.reduction: Reduction = reduction
        self.temperature_squared = temperature_squared
        self.ignore_index = ignore_index
        self.vocabulary: Vocabulary = vocabulary
        self.label_weight = label_weight
        self.softcap: EachSide = softcap
        self.logit_scale: EachSide = logit_scale
        self.chunk_bytes = chunk_bytes
        self.float32_logits = float32_logits
        self.group = group
        self.classes = classes
        self.return_entropy = return_entropy

    def extra_repr(self) -> str:
        """Show what the loss was made with."""
        return shown_options(self, LinearDistillationLoss, always=("kind", "temperature", "reduction"))

    @_by_position(
        "student", "student_weight", "teacher", "teacher_weight", "labels", "student_bias", "teacher_bias"
    )
    def forward(
        self,
        *,
        student: Tensor,
        student_weight: Tensor,
        teacher: Tensor | TopK | SampledTail,
        teacher_weight: Tensor | None = None,
        student_bias: Tensor | None = None,
        teacher_bias: Tensor | None = None,
        mask: Tensor | None = None,
        weight: Tensor | None = None,
        labels: Tensor | None = None,
        normalizer: Tensor | float | None = None,
    ) -> Tensor | tuple[Tensor, Tensor]:
        """Compute the loss of the student's head on `student` against the teacher's on `teacher`."""
        compute = cast("Callable[..., Tensor | tuple[Tensor, Tensor]]", linear_distillation_loss)
        return compute(
            student=student,
            student_weight=student_weight,
            teacher=teacher,
            teacher_weight=teacher_weight,
            student_bias=student_bias,
            teacher_bias=teacher_bias,
            softcap=self.softcap,
            logit_scale=self.logit_scale,
            kind=self.kind,
            temperature=self.temperature,
            mask=mask,
            weight=weight,
            labels=labels,
            label_weight=self.label_weight,
            ignore_index=self.ignore_index,
            reduction=self.reduction,
            temperature_squared=self.temperature_squared,
            normalizer=normalizer,
            vocabulary=self.vocabulary,
            chunk_bytes=self.chunk_bytes,
            float32_logits=self.float32_logits,
            group=self.group,
            classes=self.classes,
            return_entropy=self.return_entropy,
        )
