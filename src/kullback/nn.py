"""Losses as modules: the drop-in replacement for `torch.nn.KLDivLoss`, distillation from logits, and KL to a prior."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import wraps
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor

from kullback.common.constraints import FLAG
from kullback.common.display import shown_options
from kullback.common.extra_arguments import by_name
from kullback.errors import invalid_value
from kullback.generators import KL, Divergence
from kullback.losses.argument_descriptions import described
from kullback.losses.controllers import (
    AdaptiveKLController,
    CyclicalSchedule,
    FixedKLController,
    KLController,
    LinearSchedule,
    PIDKLController,
)
from kullback.losses.distillation import distillation_loss, linear_distillation_loss
from kullback.losses.kl_div import kl_div
from kullback.losses.reduction import Reduction, check_reduction
from kullback.losses.regularizer import KLRegularizer, active_units, kl_per_dimension
from kullback.losses.settings import EachSide, HeadSettings, LossSettings, Vocabulary
from kullback.losses.teachers import PartialTeacher

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

__all__ = [
    "AdaptiveKLController",
    "CyclicalSchedule",
    "DistillationLoss",
    "FixedKLController",
    "KLController",
    "KLDivLoss",
    "KLRegularizer",
    "LinearDistillationLoss",
    "LinearSchedule",
    "PIDKLController",
    "active_units",
    "kl_per_dimension",
]

_KL = KL()
_Result = TypeVar("_Result")


def _by_position(*names: str) -> Callable[[Callable[..., _Result]], Callable[..., _Result]]:
    """Return a decorator of `forward` that makes the keyword-only arguments `names` positional too. Trainers pass
    arguments by position.

    The student is the first argument, as in torch's losses. A user may exchange student and teacher by mistake.
    Therefore the call raises an error if the teacher requires a gradient and the student does not.
    """

    def decorate(forward: Callable[..., _Result]) -> Callable[..., _Result]:
        @wraps(forward)
        def wrapped(self: torch.nn.Module, *positional: Any, **named: Any) -> _Result:
            if positional:
                call = f"{type(self).__name__}.forward"
                if len(positional) > len(names):
                    raise TypeError(
                        f"{call}() takes {len(names)} arguments by position, {', '.join(names)}; got {len(positional)}"
                    )
                if torch.is_grad_enabled():
                    _check_order(call, dict(zip(names, positional, strict=False)))
                return forward(self, **dict(zip(names, positional, strict=False)), **named)
            return forward(self, **named)

        return wrapped

    return decorate


def _check_order(call: str, arguments: Mapping[str, object]) -> None:
    learns = {
        side: any(
            isinstance(x, Tensor) and x.requires_grad
            for name, x in arguments.items()
            if name.startswith(side)
        )
        for side in ("student", "teacher")
    }
    if learns["teacher"] and not learns["student"]:
        wanted = "first the student, which is trained, then the teacher"
        got = "a gradient only for the second"
        instead = "loss(student, teacher), or loss(student=..., teacher=...) if the teacher is trained"
        raise invalid_value(call, "student, teacher", wanted=wanted, got=got, instead=instead)


@by_name("KLDivLoss(reduction='batchmean')", {"temperature": "DistillationLoss(temperature=temperature)"})
class KLDivLoss(torch.nn.KLDivLoss):
    r"""KL(target || input) as a module: a drop-in for `torch.nn.KLDivLoss`, and a subclass of it.

    :math:`\mathrm{KL}(P \,\|\, Q) = \sum_i p_i (\log p_i - \log q_i)`, with :math:`P` the target and
    :math:`\log Q` the input. The module calls `kullback.functional.kl_div`, which describes the reductions:
    ``"batchmean"`` is the mean divergence of the rows; the default ``"mean"`` also divides by the number of
    classes.

    Arguments:
        size_average: Deprecated; sets `reduction` and raises a warning.
        reduce: Deprecated; sets `reduction` and raises a warning.
        reduction: ``"none"``, ``"sum"``, ``"mean"`` or ``"batchmean"``; the module reads this attribute at each call.
        log_target: Whether the target holds log-probabilities.

    Returns:
        the result of `kl_div`, when called with ``(input, target)``: the terms, or a scalar.

    Raises:
        ArgumentValueError: `reduction` is not one of the four words. At the call, the errors of `kl_div`.

    Gradient:
        As in `kl_div`. At a class without mass in the target, the gradient is 0, never NaN.

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
        if self.reduction != "elementwise_mean":  # an old name of torch for "mean"
            check_reduction("KLDivLoss", self.reduction)

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        """Compute the loss of log-probabilities `input` against `target`."""
        return kl_div(input, target, reduction=self.reduction, log_target=self.log_target)


class _LossModule(torch.nn.Module):
    """The base class of losses whose checked settings are attributes named like the loss's arguments."""

    kind: Divergence
    temperature: float
    reduction: Reduction
    temperature_squared: bool
    ignore_index: int
    vocabulary: Vocabulary
    label_weight: float
    classes: int | None

    def __init__(self, settings: Mapping[str, Any]) -> None:
        super().__init__()
        for name, value in settings.items():
            setattr(self, name, value)

    def extra_repr(self) -> str:
        owner = next(kind for kind in type(self).__mro__ if _LossModule in kind.__bases__)
        return shown_options(self, owner, always=("kind", "temperature", "reduction"))

    def _settings(self, others: tuple[str, ...]) -> dict[str, Any]:
        """Return the settings by name: the fields of `LossSettings`, and the attributes in `others`."""
        return {name: getattr(self, name) for name in LossSettings._fields + others}


@by_name("DistillationLoss(temperature=2.0)")
@described
class DistillationLoss(_LossModule):
    r"""The divergence of a teacher from a student: `kullback.functional.distillation_loss` as a module.

    .. math:: L = \frac{\sum_n w_n\, D(P_n \| Q_n)}{\sum_n w_n}, \quad
        P_n = \operatorname{softmax}(t_n / T),\; Q_n = \operatorname{softmax}(s_n / T)

    P is the teacher and Q the student, so ``kind=KL()`` is KL(teacher || student).

    Arguments:
        {arguments: kind, temperature, reduction, temperature_squared, ignore_index, vocabulary, label_weight}
        {arguments: inplace_backward, group, classes}

    Returns:
        the result of `distillation_loss`. The arguments of a call are ``student=`` and ``teacher=``, and optionally
        ``mask=``, ``weight=``, ``labels=`` and ``normalizer=``. Trainers may pass student, teacher and labels by
        position, in this order. If the teacher requires a gradient and the student does not, the call raises an error,
        because the two were probably exchanged.

    Raises:
        KullbackError: a setting is invalid; at the call, see `distillation_loss`.

    Gradient:
        As in `distillation_loss`.

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
        settings = LossSettings(
            kind, temperature, reduction, temperature_squared, ignore_index, vocabulary, label_weight, classes
        )
        super().__init__(settings.checked("DistillationLoss")._asdict())
        FLAG.check("DistillationLoss", "inplace_backward", inplace_backward)
        self.inplace_backward = inplace_backward
        self.group = group

    @_by_position("student", "teacher", "labels")
    def forward(
        self,
        *,
        student: Tensor,
        teacher: Tensor | PartialTeacher,
        mask: Tensor | None = None,
        weight: Tensor | None = None,
        labels: Tensor | None = None,
        normalizer: Tensor | float | None = None,
    ) -> Tensor:
        """Compute the loss of logits `student` against logits `teacher`."""
        return distillation_loss(
            student=student,
            teacher=teacher,
            mask=mask,
            weight=weight,
            labels=labels,
            normalizer=normalizer,
            **self._settings(("inplace_backward", "group")),
        )


@by_name("LinearDistillationLoss(temperature=2.0)")
@described
class LinearDistillationLoss(_LossModule):
    r"""`DistillationLoss` from hidden states and heads: `kullback.functional.linear_distillation_loss` as a module.

    .. math:: L = \frac{\sum_n w_n\, D(P_n \| Q_n)}{\sum_n w_n}, \quad
        Q_n = \operatorname{softmax}(s_n / T), \quad s_n = c \tanh\bigl(a\,(W h_n + b) / c\bigr)

    P is the teacher and Q the student, so ``kind=KL()`` is KL(teacher || student). The logits are computed for one
    chunk of positions after the other, and are never stored all at once. The heads are arguments of each call: they
    remain parameters of the models, and a model may share its head with its embedding.

    Arguments:
        {arguments: kind, temperature, reduction, temperature_squared, ignore_index, vocabulary, label_weight}
        {arguments: softcap, logit_scale, chunk_bytes, float32_logits, group, classes, return_entropy}

    Returns:
        the result of `linear_distillation_loss`. The arguments of a call are ``student=``, ``student_weight=``,
        ``teacher=`` and, unless the teacher is stored, ``teacher_weight=``. Optional arguments are ``student_bias=``,
        ``teacher_bias=``, ``mask=``, ``weight=``, ``labels=`` and ``normalizer=``. The positional order is: the
        student, the student's head, the teacher, the teacher's head, the labels, and both biases. With positional
        arguments, the call raises an error if only the teacher's side requires a gradient.

    Raises:
        KullbackError: a setting is invalid; at the call, see `linear_distillation_loss`.

    Gradient:
        As in `linear_distillation_loss`.

    Example:
        >>> from kullback import JensenShannon
        >>> loss = LinearDistillationLoss(kind=JensenShannon())
        >>> head, hidden = torch.eye(2), torch.tensor([[0.0, 1.0]])
        >>> loss(student=hidden, student_weight=head, teacher=hidden.flip(1), teacher_weight=head)
        tensor(0.1109)

    References:
        Distilling the Knowledge in a Neural Network (Hinton, Vinyals and Dean, 2015)
    """

    softcap: EachSide
    logit_scale: EachSide
    chunk_bytes: int | None
    float32_logits: bool
    return_entropy: bool

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
        settings = LossSettings(
            kind, temperature, reduction, temperature_squared, ignore_index, vocabulary, label_weight, classes
        )
        of_heads = HeadSettings(softcap, logit_scale, chunk_bytes, float32_logits, return_entropy)
        of_heads.checked("LinearDistillationLoss")
        super().__init__(settings.checked("LinearDistillationLoss")._asdict() | of_heads._asdict())
        self.group = group

    @_by_position(
        "student", "student_weight", "teacher", "teacher_weight", "labels", "student_bias", "teacher_bias"
    )
    def forward(
        self,
        *,
        student: Tensor,
        student_weight: Tensor,
        teacher: Tensor | PartialTeacher,
        teacher_weight: Tensor | None = None,
        student_bias: Tensor | None = None,
        teacher_bias: Tensor | None = None,
        mask: Tensor | None = None,
        weight: Tensor | None = None,
        labels: Tensor | None = None,
        normalizer: Tensor | float | None = None,
    ) -> Tensor | tuple[Tensor, Tensor]:
        """Compute the loss from the hidden states and heads of student and teacher."""
        return linear_distillation_loss(
            student=student,
            student_weight=student_weight,
            teacher=teacher,
            teacher_weight=teacher_weight,
            student_bias=student_bias,
            teacher_bias=teacher_bias,
            mask=mask,
            weight=weight,
            labels=labels,
            normalizer=normalizer,
            **self._settings((*HeadSettings._fields, "group")),
        )
