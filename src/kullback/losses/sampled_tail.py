"""Divergences from a teacher's top classes, the mass of the other classes, and a few draws from the other classes."""

from __future__ import annotations

import math
from dataclasses import InitVar, dataclass
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from kullback.common.constraints import Arguments, OfType, Whole
from kullback.common.dtypes import float64_copy, upcast
from kullback.common.extra_arguments import by_name
from kullback.common.inputs import can_inspect, check_numbers, first_of, first_value
from kullback.errors import invalid_type, invalid_value
from kullback.generators import KL, Divergence, FinitePair
from kullback.kernels.row_operation import transformable
from kullback.losses.settings import check_additive
from kullback.losses.teachers import (
    PartialTeacher,
    TeacherRows,
    WeightedTerms,
    check_any_class,
    check_logits,
    partial_divergence,
)
from kullback.losses.top_k import TopK
from kullback.partial_rows import PartialRows, summarize_rows
from kullback.representations import SUM_TOLERANCE

_CALL = "sampled_tail_divergence"
# If the squared relative distance of student and teacher is at least this number, the student counts as far from the
# teacher. At this distance, the ratios q/p are about 1/2 or 3/2.
_FAR = 0.25
# The largest value of q/p - 1 of a draw in the squared distance; larger values are clipped. The number is far above
# sqrt(_FAR). The estimate is unbiased for any values of _FAR and _LARGEST_CHANGE. `tests/losses/test_sampled_tail.py`
# bounds the error of the estimate for these values.
_LARGEST_CHANGE = 3.0
_LEAST = torch.finfo(torch.float32).tiny
_LEAST_LOG = torch.finfo(torch.float32).min


@by_name()
@dataclass(frozen=True, eq=False, repr=False)
class SampledTail(PartialTeacher):
    r"""A teacher's most probable classes at each position, the mass of all other classes, and draws from the other
    classes.

    A reference file (`kullback.io.Reference`) stores these tensors in less than a kilobyte a position. The mean of the
    loss over the random draws equals the loss with the full teacher. For a `TopK`, the two losses differ.

    Arguments:
        top: the most probable classes and their log-probabilities, shape (..., k).
        tail_indices: classes drawn from the other classes, integer, shape (..., m). The draws are independent and with
            replacement, and class i has probability :math:`p_i / M`.
        tail_log_probs: the natural log-probabilities of the drawn classes among all classes, shape (..., m). Padding is
            -inf, and is allowed only at positions where the other classes have no mass.
        tail_log_mass: :math:`\log M`, the log of the mass of all classes that are not in `top`, shape (...).
        validate: whether to check the values.

    Raises:
        ArgumentTypeError: an argument is of the wrong type.
        ArgumentValueError: shapes or devices differ, a position's masses do not sum to one, or values are impossible.

    Example:
        >>> import torch
        >>> from kullback.functional import SampledTail
        >>> logits = torch.tensor([[2.0, 0.0, -1.0, 1.0]])
        >>> teacher = SampledTail.draw(logits, k=2, draws=3, generator=torch.Generator().manual_seed(0))
        >>> teacher.top.indices, teacher.tail_indices, teacher.tail_log_mass.exp()
        (tensor([[0, 3]]), tensor([[2, 1, 1]]), tensor([0.1192]))

    References:
        Sparse Logit Sampling: Accelerating Knowledge Distillation in LLMs (Anshumann and others, 2025)
    """

    top: TopK
    tail_indices: Tensor
    tail_log_probs: Tensor
    tail_log_mass: Tensor
    validate: InitVar[bool] = True

    def __post_init__(self, validate: bool) -> None:
        _check_form(self)
        tensors = self.tail_indices, self.tail_log_probs, self.tail_log_mass, self.top.log_probs
        if validate and all(can_inspect(x) for x in tensors):
            _check_values(self)

    @classmethod
    def draw(
        cls, logits: Tensor, *, k: int = 64, draws: int = 32, generator: torch.Generator | None = None
    ) -> Self:
        """Make a teacher from logits: keep the top classes and draw from the other classes.

        Arguments:
            logits: a teacher's logits, shape (..., classes).
            k: the number of most probable classes to keep.
            draws: the number of draws from the other classes.
            generator: the random generator of the draws, on the CPU.

        Returns:
            a `SampledTail` on the device of the logits, float32.

        Raises:
            ArgumentTypeError: `logits` is not a floating-point tensor with values, or `generator` is not on the CPU.
            ArgumentValueError: `k` or `draws` is too small, or a position has NaN, +inf or only -inf.
        """
        k, draws = _check_drawing(logits, k, draws, generator)
        rows = logits.detach().reshape(-1, logits.shape[-1])
        uniforms = torch.rand(len(rows), draws, generator=generator, dtype=torch.float64, device="cpu")
        labels = torch.zeros(len(rows), dtype=torch.int64, device="cpu")
        block = summarize_rows(float64_copy(rows), labels, top=k, uniforms=uniforms)
        flat, shape = cls.from_reference(block, device=logits.device), logits.shape[:-1]
        rows = flat.top.indices, flat.top.log_probs, flat.tail_indices, flat.tail_log_probs
        indices, log_probs, *drawn = (x.reshape(*shape, x.shape[-1]) for x in rows)
        top = TopK(indices, log_probs, validate=False)
        return cls(top, drawn[0], drawn[1], flat.tail_log_mass.reshape(shape), validate=False)

    @classmethod
    def from_reference(cls, block: PartialRows, *, device: torch.device | str | None = None) -> Self:
        """Make a teacher from rows of a reference file. The rows are not checked again, because `read` has checked
        them.

        Arguments:
            block: the rows, from `kullback.io.Reference.read`.
            device: the device of the student; the CPU by default.

        Returns:
            a `SampledTail` with top classes of shape (rows, k) and draws of shape (rows, m).
        """
        top = TopK(block.top_indices.long().to(device), block.top_log_probs.to(device), validate=False)
        tail = block.tail_indices.long(), block.tail_log_probs, block.tail_log_mass
        return cls(top, *(x.to(device) for x in tail), validate=False)

    remedy_of_device: ClassVar[str] = "SampledTail.from_reference(block, device=student.device)"

    @property
    def kept_indices(self) -> Tensor:
        return self.top.indices

    @property
    def kept_log_probs(self) -> Tensor:
        return self.top.log_probs

    @property
    def index_tensors(self) -> tuple[Tensor, ...]:
        return self.top.indices, self.tail_indices

    def check_settings(self, call: str, kind: Divergence, temperature: float) -> None:
        if temperature != 1:
            wanted = "1: the classes were drawn at temperature 1, and the tail's mass at another is unknown"
            instead = "a teacher made by SampledTail.draw(logits / temperature), with student / temperature"
            raise invalid_value(call, "temperature", wanted=wanted, got=repr(temperature), instead=instead)
        check_additive(call, kind, instead="kind=KL(), or Alpha of the same order")

    def result_dtype(self, student: torch.dtype) -> torch.dtype:
        return torch.float64 if student == torch.float64 else torch.float32

    def rows(self, kind: Divergence, classes: int, temperature: float, dtype: torch.dtype) -> SampledRows:
        """Return the teacher's rows. The rows need no gradient."""
        top, draws = (x.shape[-1] for x in self.index_tensors)
        both = self.top.log_probs, self.tail_log_probs
        log_probs = upcast(torch.cat([self.flat(x.detach()) for x in both], -1))
        is_padding = log_probs == -torch.inf
        indices = torch.cat([self.flat(x) for x in self.index_tensors], -1).long()
        indices = torch.where(is_padding, -1, indices)
        mass = upcast(self.flat(self.tail_log_mass.detach()))
        log_weights = torch.nn.functional.pad(mass - log_probs[:, top:] - math.log(max(draws, 1)), (top, 0))
        weights = torch.where(is_padding, 0, log_weights.exp())
        return SampledRows(kind, indices, log_probs, temperature, dtype, weights, mass.exp(), draws)


@by_name()
def sampled_tail_divergence(
    kind: Divergence | str,
    teacher: SampledTail,
    student: Tensor,
    *,
    temperature: float = 1.0,
    dtype: torch.dtype | None = None,
) -> Tensor:
    r"""Estimate without bias the divergence of a teacher from a student, given the teacher's top classes and draws.

    Let K be the top classes, M the teacher's mass outside K, and :math:`j_1, \dots, j_m` the drawn classes. Let
    :math:`t(p, q) = q f(p/q)` be the non-negative terms of `kullback.generators`, which for KL are
    :math:`p \log(p/q) - p + q`. The estimate is

    .. math:: \hat D = \sum_{i \in K} t(p_i, q_i) + \frac{M}{m} \sum_{l=1}^m \left(\frac{t(p_{j_l}, q_{j_l})}{p_{j_l}}
        - s_l \Bigl(\frac{q_{j_l}}{p_{j_l}} - 1\Bigr)\right) + \Bigl(1 - \sum_{i \in K} q_i - M\Bigr)
        \frac1m \sum_{l=1}^m s_l

    The student's probabilities q are normalized over all classes. The expectation over the draws is the divergence
    :math:`\sum_i t(p_i, q_i)`, and the expectation of the gradient is the gradient of the divergence. :math:`s_l`
    depends only on the other draws, K, M and q, so it is independent of :math:`j_l`. :math:`s_l` is 0 if teacher and
    student agree on the top classes, the tail's mass and the other draws. The more teacher and student differ, the
    closer is :math:`s_l` to its maximum, the limit of t(p, q)/q at p = 0 (1 for KL). Derivatives treat :math:`s_l` as a
    constant, and stay unbiased.

    If student and teacher agree, the estimate and its gradient are 0, whatever was drawn. The closer student and
    teacher are, the less the estimate varies. If student and teacher differ greatly, a rarely drawn class that the
    student prefers causes no spike of size q/p. However, the estimate may then be negative by chance. For kinds whose
    terms grow faster than q, such as `ReverseKL` and `Jeffreys`, :math:`s_l` is 0 and spikes remain possible.

    Classes whose probability under the teacher is exactly 0 are never drawn. The estimate includes the terms of these
    classes, q for KL and q/2 for TV, in proportion to :math:`s_l`. The terms count fully if :math:`s_l` is at its
    maximum or M = 0. Without any draws (m = 0), a tail with mass contributes 0.

    Arguments:
        kind: the divergence or its name; not `Renyi`, which is not a sum over classes.
        teacher: P, shape (..., k) and (..., m); it gets no gradient.
        student: logits of Q, shape (..., classes).
        temperature: must be 1. The classes were drawn at temperature 1, and the tail's mass at another temperature is
            unknown.
        dtype: the dtype of the result. By default float64 if the student is float64, else float32.

    Returns:
        one value for each position, computed in float64 (float32 on devices without float64). The kernels for CPUs and
        GPUs compute exponentials of float32 and half-precision logits in float32, and add blocks of them in float64.

    Raises:
        ArgumentTypeError: an argument is of the wrong type.
        ArgumentValueError: positions or devices differ, an index is not below the number of classes, `temperature` is
            not 1, or `kind` is not a sum over classes.

    Gradient:
        to the student. Derivatives of any order exist, and the docstring of the kind's class states the first
        derivatives. The first derivative needs no extra memory.

    Example:
        >>> import torch
        >>> from kullback import KL
        >>> from kullback.functional import SampledTail, sampled_tail_divergence
        >>> logits = torch.tensor([[2.0, 0.0, -1.0, 1.0]])
        >>> teacher = SampledTail.draw(logits, k=2, draws=8, generator=torch.Generator().manual_seed(0))
        >>> sampled_tail_divergence(KL(), teacher, torch.zeros(1, 4))
        tensor([0.4261])
        >>> sampled_tail_divergence(KL(), teacher, logits).abs() < 1e-9
        tensor([True])

    References:
        Sparse Logit Sampling: Accelerating Knowledge Distillation in LLMs (Anshumann and others, 2025)
    """
    return partial_divergence(_CALL, SampledTail, kind, teacher, student, temperature, dtype)


@dataclass(frozen=True, eq=False)
class SampledRows(TeacherRows):
    """The rows of a `SampledTail`: top and drawn classes, with the weights of their terms."""

    weights: Tensor  # the weight of each class's term: 1 for a top class, M / (m p) for a drawn class
    tail_mass: Tensor  # M, the teacher's mass outside the top classes
    draws: int  # m, the number of drawn classes, which are the last columns of `indices`

    per_row: ClassVar[tuple[str, ...]] = ("indices", "log_probs", "weights", "tail_mass")
    leaves_out: ClassVar[bool] = False

    def divergence(self, log_probs: Tensor, logits: Tensor) -> Tensor:
        log_q = logits[:, :-1] - logits[:, -1:]
        values = transformable(WeightedTerms(self.kind), log_probs, log_q, self.weights)
        return (values + _slope_without_p(self.kind) * self._linear_part(log_probs, log_q)).to(self.dtype)

    def _linear_part(self, log_probs: Tensor, log_q: Tensor) -> Tensor:
        """Return the mean over the draws of s * (excess - M (q/p - 1)), shape (rows,). p and q are the probabilities of
        a draw, and the number s of a draw is the result of `_share`.

        M is the mass of the tail under the teacher, and excess is the mass of the tail under Q, minus M. The
        expectation of excess - M (q/p - 1) over a draw is 0.
        """
        mass, parts = self.tail_mass, (log_q.shape[-1] - self.draws, self.draws)
        # Where log q is NaN, the sum of the weighted terms is NaN already, so here 0 can replace NaN.
        log_q = log_q.nan_to_num(nan=0.0, posinf=math.inf, neginf=-math.inf)
        (top_q, drawn_q), (top_p, drawn_p) = log_q.split(parts, -1), log_probs.split(parts, -1)
        excess = (1 - mass - top_q.exp().sum(-1, keepdim=True)).clamp(min=-mass)
        if not self.draws:
            return torch.where(mass == 0, excess, 0).squeeze(-1)
        # A padded draw has log-probability -inf under P and Q. Such draws occur only in rows whose tail has mass 0,
        # where the factor `mass` is 0.
        change = torch.expm1(drawn_q - drawn_p.clamp(min=_LEAST_LOG))
        with torch.no_grad():
            apart = (top_q / 2).exp() - (top_p / 2).exp()
            share = self._share(4 * apart.square().sum(-1, keepdim=True), excess, change)
        return (share * (excess - mass * change)).mean(-1)

    def _share(self, top: Tensor, excess: Tensor, change: Tensor) -> Tensor:
        """Return a number s for each draw, shape (rows, m). It is 0 if Q equals the teacher, and up to 1 if Q is far
        from the teacher. s is the factor s_l in the docstring of `sampled_tail_divergence`, divided by the maximum of
        s_l.

        The number s of a draw does not depend on this draw. s depends on the top classes, on the tail's mass, and on
        the variation of q/p over the other draws. s also depends on the part of the tail's mass under Q that the other
        draws do not explain.
        `top` is the squared distance over the top classes, `excess` the tail's mass under Q minus its mass under P, and
        `change` is q/p - 1 of the draws.
        """
        change = change.clamp(max=_LARGEST_CHANGE)
        expected = (excess / self.tail_mass.clamp(min=_LEAST)).clamp(max=_LARGEST_CHANGE)
        others = self.draws - 1
        unseen = others * expected - _sum_of_others(change)
        distance = (_sum_of_others(change.square()) + unseen.square()) / max(others, 1)
        distance = torch.where(self.tail_mass == 0, _FAR, distance + (top + expected.square()))
        return 1 - (1 - distance / _FAR).clamp(min=0).square()


def _sum_of_others(x: Tensor) -> Tensor:
    """Return, for each entry of `x`, the sum of the other entries in the same row."""
    return x.sum(-1, keepdim=True) - x


def _slope_without_p(kind: Divergence) -> Tensor | float:
    """Return the limit of t(p, q) / q at p = 0, where t is the divergence's term of a class. Return 0 if the limit is
    infinite or the convergence is too slow.

    The convergence is too slow if t(p, q) / q at q / p = 10,000 is below half of the limit.
    """
    if type(kind) is KL:
        return 1.0
    log_p = torch.tensor([-math.inf, -math.log(1e4)], dtype=torch.float64, device="cpu")
    limit, nearby = kind.terms(FinitePair(log_p.exp(), torch.ones_like(log_p), log_p))
    return torch.where(limit.isfinite() & (nearby >= limit / 2), limit, 0)


def _check_form(teacher: SampledTail) -> None:
    if not isinstance(teacher.top, TopK):  # pyright: ignore[reportUnnecessaryIsInstance]
        got, instead = type(teacher.top).__name__, "top=TopK(indices, log_probs)"
        raise invalid_type("SampledTail", "top", wanted="a TopK", got=got, instead=instead)
    positions = teacher.top.indices.shape[:-1]
    instead = "SampledTail.draw(logits), or SampledTail.from_reference(reference.read(start, stop))"
    for name, kind, whole, dims in (
        ("tail_indices", "an integer tensor of shape (..., m)", True, 1),
        ("tail_log_probs", "a floating-point tensor of shape (..., m)", False, 1),
        ("tail_log_mass", "a floating-point tensor of shape (...)", False, 0),
    ):
        x: Any = getattr(teacher, name)
        check_numbers("SampledTail", name, x, wanted=kind, instead=instead, whole=whole)
        shape = positions + (teacher.tail_indices.shape[-1:] if dims else torch.Size())
        if x.shape != shape or x.device != teacher.top.indices.device:
            wanted = f"shape {tuple(shape)} on {teacher.top.indices.device}"
            got = f"shape {tuple(x.shape)} on {x.device}"
            same = "all tensors of the same positions, on one device"
            raise invalid_value("SampledTail", name, wanted=wanted, got=got, instead=same)


_GENERATOR = OfType(
    (torch.Generator,),
    wanted="a torch.Generator on the CPU, or None",
    instead="generator=torch.Generator().manual_seed(0)",
    optional=True,
)
_DRAWING = Arguments(
    "SampledTail.draw", k=Whole(least=1, example=32), draws=Whole(least=0, example=32), generator=_GENERATOR
)


def _check_drawing(logits: Tensor, k: int, draws: int, generator: torch.Generator | None) -> tuple[int, int]:
    """Return `k` and `draws` as Python integers; raise if an argument of `SampledTail.draw` is invalid."""
    call = "SampledTail.draw"
    check_logits(call, "logits", logits)
    check_any_class(call, "logits", logits.shape[-1])
    k, draws, _ = _DRAWING.check(k=k, draws=draws, generator=generator).values()
    if generator is not None and generator.device.type != "cpu":
        raise _GENERATOR.refusal(call, "generator", generator)
    if not can_inspect(logits):
        wanted = "a tensor with values, outside torch.compile and torch.func"
        got = f"one on {logits.device}" if logits.is_meta else "another"
        instead = "the call outside the compiled or transformed function"
        raise invalid_type(call, "logits", wanted=wanted, got=got, instead=instead)
    wrong = ~logits.detach().amax(-1).isfinite()
    if bool(wrong.any()):
        wanted = "numbers, or -inf for some of a position's classes"
        got = f"positions with NaN, +inf or only -inf, {first_of(wrong)}"
        instead = "SampledTail.draw(logits[mask]), with only the positions that have a distribution"
        raise invalid_value(call, "logits", wanted=wanted, got=got, instead=instead)
    return k, draws


def _check_values(teacher: SampledTail) -> None:
    log_probs, mass = upcast(teacher.tail_log_probs.detach()), upcast(teacher.tail_log_mass.detach())
    tolerance = SUM_TOLERANCE.get(teacher.top.log_probs.dtype, 4e-2)
    total = upcast(teacher.top.log_probs.detach()).exp().sum(-1) + mass.exp()
    padding = log_probs == -math.inf
    in_top = (teacher.tail_indices.unsqueeze(-1) == teacher.top.indices.unsqueeze(-2)) & ~padding.unsqueeze(
        -1
    )
    has_draws = ~(padding & (mass > -math.inf).unsqueeze(-1))
    for name, wanted, right in (
        ("tail_log_mass", "a total of 1 with the top's probabilities", (total - 1).abs() <= tolerance),
        (
            "tail_log_probs",
            "log-probabilities of at most the tail's mass",
            log_probs <= mass.unsqueeze(-1) + tolerance,
        ),
        ("tail_log_probs", "-inf only where the tail has no mass", has_draws),
        ("tail_indices", "indices of classes, 0 or more", teacher.tail_indices >= 0),
        ("tail_indices", "classes that are not in the top", ~in_top.any(-1)),
    ):
        if not bool(right.all()):
            values = total if name == "tail_log_mass" else getattr(teacher, name)
            instead = "SampledTail.draw(logits), which draws from the classes that are not in the top"
            got = first_value(~right, values)
            raise invalid_value("SampledTail", name, wanted=wanted, got=got, instead=instead)
