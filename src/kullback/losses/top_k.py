"""Divergences from a teacher's most probable classes, or classes that someone else chose, with their probabilities."""

from __future__ import annotations

import math
from dataclasses import InitVar, dataclass, field
from typing import ClassVar, Literal, get_args

import torch
from torch import Tensor

from kullback.common.constraints import Arguments, OneOf
from kullback.common.dtypes import upcast
from kullback.common.extra_arguments import by_name
from kullback.common.inputs import (
    all_recordable,
    can_inspect_all,
    check_dense,
    described,
    first_of,
    first_value,
    is_integer,
)
from kullback.errors import invalid_type, invalid_value, safe_repr
from kullback.generators import Divergence
from kullback.kernels import RowDivergence, logit_divergence
from kullback.kernels.row_operation import transformable
from kullback.losses.teachers import PartialTeacher, TeacherRows, WeightedTerms, partial_divergence
from kullback.partial_rows import without_padding
from kullback.representations import SUM_TOLERANCE

Tail = Literal["bucket", "renormalize", "zero"]

_CALL = "top_k_divergence"


@dataclass(frozen=True, eq=False, repr=False)
class TopK(PartialTeacher):
    r"""A teacher's most probable classes at each position, with their log-probabilities among all classes.

    An entry with log-probability -inf is padding, for positions that keep fewer than k classes. The class of a padding
    entry counts as not kept. The index of a padding entry may be a negative number or any valid class index, even a
    repeated index.

    A class that is not kept may be more probable than the kept classes. `Scored`
    is for classes that someone else chose, such as the student's most probable classes.

    Arguments:
        indices: the kept classes, integer, shape (..., k), in any order.
        log_probs: the natural log-probabilities of the kept classes, shape (..., k).
        tail: how to treat the other classes, whose probabilities are unknown. ``"bucket"`` merges the other classes
            into one class with the remaining mass. ``"renormalize"`` gives the other classes no mass and scales the
            kept probabilities to sum to one. ``"zero"`` leaves the other classes out. `top_k_divergence` gives the
            formulas.
        validate: whether to check the values.

    Raises:
        ArgumentTypeError: an argument is of the wrong type.
        ArgumentValueError: the shapes differ, `tail` is unknown, or every row contains NaN. A row raises this error for
            a negative or repeated index, a positive log-probability, or probabilities that sum to more than one. With
            ``"renormalize"``, a row without mass raises it, too. If only some rows contain NaN, the losses raise this
            error unless `mask`, `weight` or `labels` exclude these positions.

    Example:
        >>> import torch
        >>> from kullback.functional import TopK
        >>> logits = torch.tensor([[2.0, 0.0, -1.0, 1.0]])
        >>> log_probs, indices = logits.log_softmax(-1).topk(2)
        >>> TopK(indices, log_probs)
        TopK(indices=tensor([[0, 3]]), log_probs=tensor([[-0.4402, -1.4402]]), tail='bucket')
    """

    indices: Tensor
    log_probs: Tensor
    tail: Tail = "bucket"
    validate: InitVar[bool] = True
    _largest: int = field(init=False, repr=False, default=-1)
    _unknown: Tensor | None = field(init=False, repr=False, default=None)
    """A mask of the positions that contain NaN, or None if no position contains NaN or the values were not checked."""

    def __post_init__(self, validate: bool) -> None:
        _check_form(self)
        if validate and can_inspect_all((self.indices, self.log_probs)):
            unknown = self.log_probs.detach().isnan().any(-1)
            some_unknown = bool(unknown.any()) and not bool(unknown.all())
            if some_unknown:
                object.__setattr__(self, "_unknown", unknown)
            _check_values(self, unknown if some_unknown else None)
            if self.indices.numel():
                indices = self.indices[~unknown] if some_unknown else self.indices
                object.__setattr__(self, "_largest", int(indices.long().max()))

    lists_zeros: ClassVar[bool] = False
    """Whether a class with the log-probability -inf is listed, so that only a negative index is padding."""
    remedy_of_device: ClassVar[str] = "TopK(indices.to(student.device), log_probs.to(student.device))"

    @property
    def kept_indices(self) -> Tensor:
        return self.indices

    @property
    def kept_log_probs(self) -> Tensor:
        return self.log_probs

    @property
    def largest_index(self) -> int:
        return self._largest

    def check_counted(self, call: str, weights: Tensor | None) -> None:
        if self._unknown is None:
            return
        wrong = self._unknown if weights is None else self._unknown & (weights != 0)
        if bool(wrong.any()):
            wanted = "log-probabilities that are numbers at the positions that count"
            got, instead = f"NaN at {first_of(wrong)} positions", "mask= without these positions"
            raise invalid_value(call, "teacher", wanted=wanted, got=got, instead=instead)

    def check_settings(self, call: str, kind: Divergence, temperature: float) -> None:
        if temperature != 1 and self.tail != "renormalize":
            raise invalid_value(
                call,
                "temperature",
                wanted=f"1 with tail={self.tail!r}, because the mass outside at another temperature is unknown",
                got=safe_repr(temperature),
                instead="tail='renormalize', or log-probabilities that the teacher made at that temperature, "
                "with student / temperature",
            )
        if self.tail == "zero" and not kind.additive:
            wanted = "with tail='zero' a divergence that is a sum over classes"
            instead = "tail='bucket', or another kind"
            raise invalid_value(call, "kind", wanted=wanted, got=safe_repr(kind), instead=instead)

    def rows(self, kind: Divergence, classes: int, temperature: float, dtype: torch.dtype) -> TopKRows:
        own = self.log_probs.dtype
        # In float32, the results of `log_softmax` sum to 1 up to twice the error of their own rounding (2,000 rows of 2
        # to 1,000 classes), because many exponentials are added. So the factor is 4.
        rounding = torch.finfo(own).eps + 4 * torch.finfo(torch.promote_types(own, torch.float32)).eps
        return TopKRows(kind, *self.flat_rows(), temperature, dtype, self.tail, rounding, classes)

    def flat_rows(self) -> tuple[Tensor, Tensor]:
        """Return the indices, which are -1 for padding, and the log-probabilities, both of shape (rows, k)."""
        k = self.indices.shape[-1]
        indices, log_probs = all_recordable((self.indices, self.log_probs))
        indices, log_probs = indices.reshape(-1, k).long(), upcast(log_probs.reshape(-1, k))
        if self._unknown is not None:
            log_probs = torch.where(self._unknown.reshape(-1, 1), -torch.inf, log_probs)
        is_padding = indices < 0 if self.lists_zeros else log_probs == -torch.inf
        return torch.where(is_padding, -1, indices), log_probs


@by_name()
@dataclass(frozen=True, eq=False, repr=False)
class Scored(TopK):
    r"""A teacher's log-probabilities of given classes at each position, which need not be its most probable classes.

    Servers score given tokens: vLLM returns ``prompt_token_id_logprobs``, and SGLang ``input_token_ids_logprobs``. If
    the given classes are the student's most probable classes, the listed terms are the largest terms of the reverse KL.
    Let K be the given classes, and :math:`q_0` the student's mass outside K. With ``tail="bucket"``, the chain rule
    gives the part of the reverse KL that the loss leaves out:

    .. math:: \mathrm{KL}(Q \| P) = \text{loss} + q_0\,
        \mathrm{KL}\bigl(Q(\cdot \mid \text{not } K) \,\|\, P(\cdot \mid \text{not } K)\bigr)

    The loss never exceeds the divergence from the whole teacher, for every kind and for every choice of K. The
    teacher's most probable class may be outside K.

    `Scored` is a `TopK` with two other rules:

    - a negative index is padding, and its log-probability is -inf, as in vLLM. A class with the log-probability -inf is
      known to have probability 0, and stays a class of its own. For `TopK`, such an entry is padding.
    - 1 minus the sum of rounded probabilities is known up to :math:`\varepsilon \sum_K p_i (1 + |\log p_i|)`, with
      :math:`\varepsilon` the epsilon of the dtype. If the teacher's remaining mass is not larger than this error, the
      remaining mass counts as :math:`q_0`, but at most as this error. Therefore the reverse KL stays finite if the
      listed probabilities sum to 1 by rounding. This mass is a constant in derivatives.

    A position without any given class has the value 0. It still counts in a mean, unless `mask` excludes it.

    Arguments:
        indices: the given classes, integer, shape (..., k), in any order; negative for padding.
        log_probs: the natural log-probabilities of these classes among all classes, shape (..., k).
        tail: how to treat the other classes, as in `TopK`. The other classes may contain most of the mass, so
            ``"renormalize"`` may be a very different teacher.
        validate: whether to check the values.

    Raises:
        ArgumentTypeError: an argument is of the wrong type.
        ArgumentValueError: the shapes differ, `tail` is unknown, or a row has impossible values. A row may not have a
            class twice, a negative index with a log-probability other than -inf, or probabilities that sum to more than
            one. `TopK` lists the other errors.

    Example:
        >>> import torch
        >>> from kullback import ReverseKL
        >>> from kullback.functional import Scored, distillation_loss
        >>> student = torch.tensor([[2.0, 1.0, 0.0, -1.0]])
        >>> teacher = torch.tensor([[0.0, 1.0, 3.0, 0.0]])
        >>> ids = student.topk(2).indices
        >>> scored = Scored(ids, teacher.log_softmax(-1).gather(-1, ids))
        >>> scored
        Scored(indices=tensor([[0, 1]]), log_probs=tensor([[-3.2110, -2.2110]]), tail='bucket')
        >>> distillation_loss(student=student, teacher=scored, kind="reverse_kl")
        tensor(1.7326)
        >>> distillation_loss(student=student, teacher=teacher, kind="reverse_kl")
        tensor(1.7651)

    References:
        Elements of Information Theory, section 2.5 (Cover and Thomas, 2006)
    """

    lists_zeros: ClassVar[bool] = True
    remedy_of_device: ClassVar[str] = "Scored(indices.to(student.device), log_probs.to(student.device))"

    def rows(self, kind: Divergence, classes: int, temperature: float, dtype: torch.dtype) -> ScoredRows:
        eps = torch.finfo(self.log_probs.dtype).eps
        return ScoredRows(kind, *self.flat_rows(), temperature, dtype, self.tail, eps, classes)


@by_name()
def top_k_divergence(
    kind: Divergence | str,
    teacher: TopK,
    student: Tensor,
    *,
    temperature: float = 1.0,
    dtype: torch.dtype | None = None,
) -> Tensor:
    r"""Compute the divergence of a teacher, known only at its top classes, from a student.

    Let K be the kept classes, p the teacher's probabilities as given, q the student's probabilities among all classes,
    and :math:`q_0 = 1 - \sum_{i \in K} q_i` the student's mass outside K. Let f be the generator of D. The value
    depends on the tail:

    .. math::
        \begin{array}{ll}
        \text{bucket:} & D\bigl((p_K,\; 1 - \textstyle\sum_K p_i) \,\|\, (q_K,\; q_0)\bigr) \\
        \text{renormalize:} & D\bigl((p_K / \textstyle\sum_K p_i,\; 0) \,\|\, (q_K,\; q_0)\bigr) \\
        \text{zero:} & \textstyle\sum_{i \in K} q_i\, f(p_i / q_i)
        \end{array}

    ``"bucket"`` never exceeds the divergence from the whole teacher, because merging classes loses information.
    ``"renormalize"`` is the divergence from another teacher, which gives the other classes probability 0. If the
    student equals the whole teacher, the true KL is 0, but this KL is :math:`-\log \sum_K p_i`. Kinds with a term of
    +inf at p = 0 (`ReverseKL`, `Jeffreys`) are +inf unless the student also has no mass outside K.

    ``"zero"`` sums the non-negative terms of `kullback.generators`, which for KL are
    :math:`p_i \log(p_i/q_i) - p_i + q_i`. The value is at most the value of ``"bucket"``, and is 0 if and only if
    student and teacher agree on K. However, ``"zero"`` ignores classes outside K and is not a divergence between
    distributions. Some libraries use only the sum of :math:`p_i \log(p_i/q_i)`, without :math:`\sum_K (q_i - p_i)`.
    That sum can be negative, and has its minimum at the renormalized probabilities instead of the teacher's
    probabilities.

    The teacher's remaining mass may be only a rounding error. If the student has no mass outside K, for example because
    K is all classes, such a remainder counts as 0 and does not cause +inf.

    Arguments:
        kind: the divergence or its name; with ``"zero"`` not `Renyi`, which is not a sum over classes.
        teacher: P, a `TopK` or a `Scored`, shape (..., k).
        student: logits of Q, shape (..., classes).
        temperature: the divisor of the student's logits and the teacher's log-probabilities before normalization. The
            temperature must be 1 unless the tail is ``"renormalize"``, because the mass outside K at another
            temperature is unknown.
        dtype: the dtype of the result. By default float64 if the student or the teacher is float64, else float32.

    Returns:
        one value for each position, computed in float64 (float32 on devices without float64). The kernels for CPUs and
        GPUs compute exponentials of float32 and half-precision logits in float32, and add blocks of them in float64.

    Raises:
        ArgumentTypeError: an argument is of the wrong type.
        ArgumentValueError: positions or devices differ, an index is not below the number of classes, or the tail does
            not support `temperature` or `kind`.

    Gradient:
        to the student, and to the teacher's log-probabilities if they require a gradient. Derivatives of any order
        exist. The docstring of the kind's class states the first derivatives, with respect to the probabilities in the
        formulas above. The first derivative needs no extra memory. A padding entry gets 0. If the teacher has no mass
        outside K, ``"bucket"`` scales the teacher's probabilities to sum to one, and the gradient includes this
        scaling.

    Example:
        >>> import torch
        >>> from kullback import KL
        >>> from kullback.functional import TopK, top_k_divergence
        >>> logits = torch.tensor([[2.0, 0.0, -1.0, 1.0]])
        >>> log_probs, indices = logits.log_softmax(-1).topk(2)
        >>> top_k_divergence(KL(), TopK(indices, log_probs), torch.zeros(1, 4))
        tensor([0.4255])
        >>> top_k_divergence(KL(), TopK(indices, log_probs, tail="renormalize"), torch.zeros(1, 4))
        tensor([0.8041])

    References:
        Distilling the Knowledge in a Neural Network (Hinton, Vinyals and Dean, 2015)
    """
    return partial_divergence(_CALL, TopK, kind, teacher, student, temperature, dtype)


@dataclass(frozen=True, eq=False)
class TopKRows(TeacherRows):
    """The rows of a `TopK`: the kept classes of each row, and the handling of the other classes."""

    tail: Tail
    rounding: float  # the relative rounding error of a log-probability
    vocabulary: int  # the number of all classes

    def divergence(self, log_probs: Tensor, logits: Tensor) -> Tensor:
        if self.tail == "zero":
            log_q = logits[:, :-1] - logits.logsumexp(-1, keepdim=True)
            return transformable(WeightedTerms(self.kind), log_probs, log_q, torch.ones_like(log_q)).to(
                self.dtype
            )
        left = torch.full_like(logits[:, -1:], -torch.inf)
        if self.tail == "bucket":
            probs = log_probs.exp()
            kept = probs.sum(-1, keepdim=True)
            magnitudes = probs * (1 + torch.where(probs > 0, log_probs, 0).abs())
            error = self.rounding * magnitudes.sum(-1, keepdim=True).detach()
            # If a row keeps all classes, 1 minus the kept mass is a rounding error.
            whole = (self.indices >= 0).sum(-1, keepdim=True) == self.vocabulary
            left = self.log_rest(kept, error, (1 - kept > error) & ~whole, logits)
        p = torch.cat([log_probs / self.temperature, left], -1)
        return logit_divergence(RowDivergence(self.kind, dtype=self.dtype), p, logits)

    def log_rest(self, kept: Tensor, error: Tensor, is_known: Tensor, logits: Tensor) -> Tensor:
        """Return the logarithm of the teacher's mass outside the kept classes of mass `kept`, shape (rows, 1). `error`
        is the rounding error of `kept`. If `is_known`, the mass outside exceeds this error.
        """
        # If the student has no mass outside the kept classes, a rounding error of the teacher counts as 0.
        some_left = (kept < 1) & ((logits[:, -1:] > -torch.inf) | is_known)
        return torch.where(some_left, torch.log1p(-torch.where(some_left, kept, 0)), -torch.inf)


@dataclass(frozen=True, eq=False)
class ScoredRows(TopKRows):
    """The rows of a `Scored`."""

    def log_rest(self, kept: Tensor, error: Tensor, is_known: Tensor, logits: Tensor) -> Tensor:
        log_q = (logits[:, -1:] - logits.logsumexp(-1, keepdim=True)).detach()
        return torch.where(
            is_known, torch.log1p(-torch.where(is_known, kept, 0)), torch.minimum(log_q, error.log())
        )


_ARGUMENTS = Arguments(
    "TopK",
    "Scored",
    tail=OneOf(
        get_args(Tail), example="bucket", instead="tail='bucket' to compare the remaining mass as one class"
    ),
)


def _check_form(teacher: TopK) -> None:
    indices, log_probs, call = teacher.indices, teacher.log_probs, type(teacher).__name__
    for name, x, kind in (
        ("indices", indices, "an integer tensor of class indices"),
        ("log_probs", log_probs, "a floating-point tensor of log-probabilities"),
    ):
        is_tensor = isinstance(x, Tensor)  # pyright: ignore[reportUnnecessaryIsInstance]
        if is_tensor:
            check_dense(call, name, x)
        has_dtype = is_tensor and (x.is_floating_point() if x is log_probs else is_integer(x))
        if not has_dtype or x.ndim == 0 or x.shape[-1] == 0:
            wanted = f"{kind}, shape (..., k) with k at least 1"
            instead = f"log_probs, indices = logits.log_softmax(-1).topk(k), then {call}(indices, log_probs)"
            raise invalid_type(call, name, wanted=wanted, got=described(x), instead=instead)
    if indices.shape != log_probs.shape:
        wanted, got = f"one for each index, shape {tuple(indices.shape)}", f"shape {tuple(log_probs.shape)}"
        instead = f"{call}(indices, log_probs) of the same positions and the same k"
        raise invalid_value(call, "log_probs", wanted=wanted, got=got, instead=instead)
    if indices.device != log_probs.device:
        wanted, got = f"a tensor on {indices.device}, where the indices are", f"one on {log_probs.device}"
        instead = "log_probs.to(indices.device)"
        raise invalid_value(call, "log_probs", wanted=wanted, got=got, instead=instead)
    if not (isinstance(teacher.tail, str) and teacher.tail in get_args(Tail)):
        _ARGUMENTS.check(call, tail=teacher.tail)


def _check_values(teacher: TopK, unknown: Tensor | None) -> None:
    """Raise if a row has impossible values. Rows where `unknown` is True are not checked."""
    indices, log_probs = teacher.indices.long(), teacher.log_probs.detach()
    if unknown is not None:  # a valid row replaces each unknown row
        k = indices.shape[-1]
        indices = torch.where(unknown.unsqueeze(-1), torch.arange(k, device=indices.device), indices)
        log_probs = torch.where(unknown.unsqueeze(-1), -math.log(k), log_probs)
    tolerance = SUM_TOLERANCE.get(log_probs.dtype, 4e-2)
    accurate = upcast(log_probs)
    kept, is_padding = accurate.exp().sum(-1), indices < 0 if teacher.lists_zeros else accurate == -math.inf
    ordered = without_padding(indices, torch.where(is_padding, -math.inf, 0.0)).sort(-1).values
    is_empty = (accurate == -math.inf).all(-1) & (teacher.tail == "renormalize")
    wanted_and_instead = {
        "log-probabilities, which are <= 0": "logits.log_softmax(-1).topk(k), which normalizes over all classes first",
        "natural log-probabilities whose probabilities sum to at most 1 in each row": "log-probabilities normalized "
        "over all classes, each class once",
        "a class with mass in each row, for tail='renormalize' to scale": "tail='bucket', or leave these positions out",
        "indices of classes, 0 or more": "log-probability -inf at padding, whose index may be -1",
        "each class once in a row": "one entry for each class, and index -1 with log-probability -inf for padding",
    }
    faults = (
        ("log_probs", accurate.isnan() | (accurate > tolerance), accurate),
        ("log_probs", kept > 1 + tolerance, kept),
        ("log_probs", is_empty, kept),
        ("indices", (indices < 0) & (accurate != -math.inf), indices),
        ("indices", ordered[..., 1:] == ordered[..., :-1], ordered[..., 1:]),
    )
    for (name, wrong, values), (wanted, instead) in zip(faults, wanted_and_instead.items(), strict=True):
        if bool(wrong.any()):
            place = " in sorted order" if values.shape != indices.shape and name == "indices" else ""
            got = first_value(wrong, values, place)
            raise invalid_value(type(teacher).__name__, name, wanted=wanted, got=got, instead=instead)
