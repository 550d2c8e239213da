"""The part that all trainers share: run student and teacher on a batch, and compute the loss of their predictions."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping
from typing import Any, cast

import torch
from torch import Tensor

from kullback.common.constraints import Arguments, OfType
from kullback.common.words import NO_LABEL as _NO_LABEL, STORED
from kullback.errors import ArgumentValueError, invalid_type, invalid_value, safe_repr
from kullback.integrations.models import (
    Features,
    ModelHead,
    check_apart,
    check_statistics,
    evaluating,
    freeze,
    is_encoder_decoder,
    logits_of,
    no_cache,
    of_given_tokens,
    router_coefficient,
    shifts_labels,
    with_decoder_inputs,
    without_wrappers,
)
from kullback.kernels import RowDivergence, logit_divergence
from kullback.losses.top_k import TopK
from kullback.nn import DistillationLoss, LinearDistillationLoss

__all__ = ["BatchLoss", "at_least_one", "next_tokens", "of_tokens"]

# Stored rows count as shifted by one token if the evidence for the shift has less than this probability by chance.
_CHANCE = 1e-4


def next_tokens(labels: Tensor, ignore_index: int = -100) -> Tensor:
    """Return the label of each position's logits, which is the next token; the last position gets `ignore_index`.

    Example:
        >>> next_tokens(torch.tensor([[5, 6, 7]]))
        tensor([[   6,    7, -100]])
    """
    return torch.nn.functional.pad(labels[..., 1:], (0, 1), value=ignore_index)


def at_least_one(count: Tensor | float | None) -> Tensor | float | None:
    """Return the number of counted tokens; 1 if there are none, so that the loss is 0 instead of 0/0."""
    return count.clamp(min=1) if isinstance(count, Tensor) else None if count is None else max(count, 1)


def of_tokens(
    call: str, logits: Tensor, labels: Tensor | None, ignore_index: int, causal: bool
) -> Tensor | None:
    """Return the label of each position's logits: `labels`, shifted by one token if the model is causal."""
    if labels is None or not causal:
        return labels
    if logits.ndim < 3:
        wanted = "False for a model with one prediction for each example"
        got = f"logits of shape {tuple(logits.shape)}"
        raise invalid_value(call, "causal", wanted=wanted, got=got, instead="causal=False")
    return next_tokens(labels, ignore_index)


def is_causal(call: str, causal: bool | None, shifted: bool | None, *, otherwise: bool) -> bool:
    """Return whether labels are shifted by one: `causal`, else `shifted` (by the model), else `otherwise`."""
    if causal and shifted is False:
        raise invalid_value(
            call,
            "causal",
            wanted="False for a model whose label of a position belongs to that position's logits, such as one with an "
            "encoder and a decoder",
            got="True",
            instead="causal=None, which follows the model, or a model that is only a decoder",
        )
    if causal is None:
        return otherwise if shifted is None else shifted
    return causal


_ARGUMENTS = Arguments(
    "BatchLoss", causal=OfType((bool,), wanted="True, False or None", example=True, optional=True)
)


class BatchLoss:
    """The loss of a student's predictions on a batch, with a teacher's predictions on the same batch.

    A `LinearDistillationLoss` never has all logits in memory, and its logits are in float32 also under autocast.
    Without a `teacher`, the batches contain the teacher's most probable tokens, as ``teacher_indices`` and
    ``teacher_log_probs``. `causal` says whether the label of a position's logits is the next token. None follows the
    student's class, or `otherwise` if the class leaves it open. `has_counts` says whether the trainer counts the labels
    that are not -100, and passes their number as `normalizer`.
    """

    def __init__(
        self,
        call: str,
        loss: object,
        teacher: torch.nn.Module | None,
        *,
        causal: bool | None,
        otherwise: bool = True,
        has_counts: bool = True,
    ) -> None:
        if not isinstance(loss, DistillationLoss | LinearDistillationLoss):
            wanted = "a DistillationLoss or a LinearDistillationLoss"
            instead = "loss=kullback.nn.DistillationLoss(kind='js:0.5')"
            raise invalid_type(call, "loss", wanted=wanted, got=safe_repr(loss), instead=instead)
        if loss.reduction not in ("mean", "sum"):
            wanted = "a loss that is a number, the mean over counted tokens"
            got = f"one with reduction={loss.reduction!r}"
            instead = "loss=kullback.nn.DistillationLoss(reduction='mean')"
            raise invalid_value(call, "loss", wanted=wanted, got=got, instead=instead)
        if has_counts and loss.ignore_index != _NO_LABEL:
            raise invalid_value(
                call,
                "loss",
                wanted="a loss with ignore_index=-100, because the trainer counts the labels that are not -100",
                got=f"one with ignore_index={loss.ignore_index}",
                instead=f"ignore_index=-100, and batches with labels.masked_fill(labels == {loss.ignore_index}, -100)",
            )
        if teacher is not None and not isinstance(teacher, torch.nn.Module):
            wanted = "a module, or None if the batches hold the teacher's most probable tokens"
            instead = "teacher=AutoModelForCausalLM.from_pretrained(...)"
            raise invalid_type(call, "teacher", wanted=wanted, got=safe_repr(teacher), instead=instead)
        _ARGUMENTS.check(call, causal=causal)
        self.call, self.loss, self.teacher = call, copy.copy(loss), teacher
        if isinstance(self.loss, LinearDistillationLoss):
            self.loss.float32_logits = True  # neither autocast nor half-precision weights round the logits
        self.causal, self._otherwise = causal, otherwise
        self._batches = 0
        # The student's entropy at each position of the last batch is stored here, if the loss returns entropies.
        self.entropy: Tensor | None = None
        # The number of positions of the last batch that count.
        self.tokens: Tensor | None = None

    def freeze_teacher(self, student: torch.nn.Module | None) -> None:
        """Freeze the teacher; raise if the teacher shares trainable parameters with the student."""
        freeze(self.call, student, self.teacher)

    def is_causal(self, student: Any) -> bool:
        """Return whether the label of a position of the student's logits is the next token."""
        shifted = shifts_labels(without_wrappers(student))
        return is_causal(self.call, self.causal, shifted, otherwise=self._otherwise)

    def __call__(
        self,
        model: torch.nn.Module,
        inputs: Mapping[str, Any],
        *,
        normalizer: Tensor | float | None = None,
        unwrapped: Any = None,
        keep_logits: bool = True,
    ) -> tuple[Tensor, Any]:
        """Return the loss and the student's outputs for a batch; without labels, the attention mask counts. `model` is
        the student as the trainer calls it, and `unwrapped` contains its head. `normalizer` divides the sum over
        tokens. `keep_logits` says whether the outputs must have the logits.
        """
        unwrapped = model if unwrapped is None else unwrapped
        base = without_wrappers(unwrapped)
        ignored, labels = self.loss.ignore_index, inputs.get("labels")
        self.check_apart(unwrapped)
        features = {name: x for name, x in inputs.items() if name not in ("labels", "shift_labels", *STORED)}
        features = with_decoder_inputs(base, features, labels, ignored)
        normalizer = at_least_one(normalizer)
        sides: dict[str, Tensor | TopK]
        if isinstance(self.loss, LinearDistillationLoss):
            sides, outputs = self._of_heads(model, unwrapped, features, inputs, keep_logits)
            student = cast("Tensor", sides["student"])
        else:
            outputs = model(**{**no_cache(base), **features})
            student = of_given_tokens(unwrapped, features, logits_of(outputs))
            if self.teacher is None:
                taught: Any = self._stored(base, inputs)
            else:
                answer = self.teach(**{**no_cache(without_wrappers(self.teacher)), **features})
                taught = of_given_tokens(self.teacher, features, logits_of(answer))
            sides = {"student": student, "teacher": taught}
        counted = self._counted(base, student, inputs)
        loss = self.of_sides(sides, normalizer=normalizer, **counted)
        return loss + self._router_loss(base, outputs, counted, normalizer), outputs

    def of_sides(self, sides: Mapping[str, Any], **positions: Any) -> Tensor:
        """Return the loss of the two sides' logits, or of their hidden states and heads."""
        if self.loss.label_weight and positions.get("labels") is None:
            raise invalid_value(
                self.call,
                "loss",
                wanted="batches with 'labels', because the loss has a label_weight",
                got=f"label_weight={self.loss.label_weight:g}, and a batch without 'labels'",
                instead="batches such as {'input': x, 'labels': y}, with the names of the student's arguments and "
                "'labels'; or label_weight=0.0",
            )
        loss = self.loss(**sides, **positions)
        loss, self.entropy = loss if isinstance(loss, tuple) else (loss, None)
        self.tokens = self._number(sides["student"], positions)
        if self._is_checked():
            self._check_finite(sides, loss)
        self._batches += 1
        return loss

    def check_apart(self, student: torch.nn.Module) -> None:
        """Raise if the student trains parameters or running averages that it shares with the teacher."""
        if self._is_checked():
            check_apart(self.call, student, self.teacher)
            check_statistics(self.call, student, self.teacher)

    def _number(self, student: Tensor, positions: Mapping[str, Any]) -> Tensor:
        """Return the number of positions that count."""
        labels, mask = positions.get("labels"), positions.get("mask")
        if labels is not None:
            return (labels != self.loss.ignore_index).sum()
        return torch.tensor(student[..., 0].numel(), device=student.device) if mask is None else mask.sum()

    @torch.no_grad()
    def teach(self, *inputs: Any, **features: Any) -> Any:
        """Return the teacher's outputs."""
        assert self.teacher is not None  # noqa: S101 - for the type checker
        with evaluating(self.teacher):
            return self.teacher(*inputs, **features)

    def _is_checked(self) -> bool:
        """Return whether to check this batch: the batches 1, 2, 4, 8 and so on, because an error can begin late."""
        return self._batches & (self._batches + 1) == 0

    def _check_finite(self, sides: Mapping[str, Any], loss: Tensor) -> None:
        """Raise if the loss is +inf because one side lacks classes. A trainer may log such a loss as 0."""
        student, teacher = (
            sides[name].shape[0] if isinstance(sides.get(name), Tensor) else None
            for name in ("student_weight", "teacher_weight")
        )
        if student is None and isinstance(sides["teacher"], Tensor):
            student, teacher = (sides[name].shape[-1] for name in ("student", "teacher"))
        if self.loss.vocabulary != "mask" or student is None or teacher is None or student == teacher:
            return
        both, one = torch.tensor([[0.0, 0.0], [0.0, -math.inf]], device="cpu")
        p, q = (both, one) if teacher > student else (one, both)
        needs_all = bool(logit_divergence(RowDivergence(self.loss.kind), p[None], q[None]).isinf())
        if needs_all and bool(loss.detach().isinf()):
            raise invalid_value(
                self.call,
                "loss",
                wanted="a finite loss: with vocabulary='mask', this kind is +inf if the "
                f"{'teacher' if teacher > student else 'student'} has more classes",
                got=f"{self.loss.kind!r}, {teacher} classes of the teacher and {student} of the student",
                instead="vocabulary='truncate' if the first classes of both mean the same, or kind='js:0.5', which is "
                "finite",
            )

    def _router_loss(
        self, model: Any, outputs: Any, counted: dict[str, Tensor | None], normalizer: Tensor | float | None
    ) -> Tensor | float:
        """Return the load-balancing loss of a mixture of experts, times the model's coefficient; 0 for other models. A
        normalizer divides the number of tokens, so that the losses of micro-batches add up.
        """
        auxiliary = outputs.get("aux_loss") if isinstance(outputs, Mapping) else None
        if not isinstance(auxiliary, Tensor):
            return 0.0
        coefficient = router_coefficient(model)
        if coefficient is None:
            wanted = "a model with the coefficient of its router loss, as router_aux_loss_coef"
            got = f"a {type(model).__name__} that returns aux_loss and has none"
            instead = "model.router_aux_loss_coef = 0.01, or output_router_logits=False in its configuration"
            raise invalid_value(self.call, "model", wanted=wanted, got=got, instead=instead)
        is_counted = any(x is not None for x in counted.values())
        if normalizer is None or self.tokens is None or not is_counted:
            return coefficient * auxiliary
        return coefficient * auxiliary * (self.tokens / normalizer)

    def _counted(self, model: Any, logits: Tensor, inputs: Mapping[str, Any]) -> dict[str, Tensor | None]:
        """Return the argument of the loss that decides which positions count: the labels, else the mask."""
        if inputs.get("shift_labels") is not None:  # collators that pack sequences make this field
            return {"labels": inputs["shift_labels"]}
        labels = inputs.get("labels")
        mask = inputs.get("decoder_attention_mask" if is_encoder_decoder(model) else "attention_mask")
        if labels is None and isinstance(mask, Tensor) and mask.shape == logits.shape[:-1]:
            return {"mask": mask.bool()}
        causal = self.is_causal(model)
        return {"labels": of_tokens(self.call, logits, labels, self.loss.ignore_index, causal)}

    def _stored(self, student: Any, inputs: Mapping[str, Any]) -> TopK:
        indices, log_probs, labels = (inputs.get(name) for name in STORED)
        if not isinstance(indices, Tensor) or not isinstance(log_probs, Tensor):
            wanted = "a teacher, or batches with teacher_indices and teacher_log_probs"
            got = f"None, and a batch of {', '.join(inputs)}"
            instead = "teacher=AutoModelForCausalLM.from_pretrained(...)"
            raise invalid_value(self.call, "teacher", wanted=wanted, got=got, instead=instead)
        tokens = inputs.get("input_ids")
        if isinstance(tokens, Tensor) and tokens.shape == indices.shape[:-1] and self.is_causal(student):
            listed = log_probs > -torch.inf
            if isinstance(labels, Tensor):
                self._require_aligned(labels, tokens)
            elif self._is_checked():
                self._refuse_shifted(torch.where(listed, indices, -1), tokens, inputs.get("attention_mask"))
        return TopK(indices, log_probs)

    def _require_aligned(self, labels: Tensor, tokens: Tensor) -> None:
        """Raise if a stored prediction has another label than the next token."""
        following = next_tokens(tokens, _NO_LABEL)
        wrong = (labels != _NO_LABEL) & (following != _NO_LABEL) & (labels != following)
        if bool(wrong.any()):
            place = tuple(int(i) for i in wrong.nonzero()[0])
            got = f"a prediction of token {int(labels[place])} at index {place}, where {int(following[place])} follows"
            raise self._shifted("teacher_labels", got)

    def _refuse_shifted(self, indices: Tensor, tokens: Tensor, mask: object) -> None:
        """Raise if stored predictions list their own token significantly more often than the next token. Servers list
        the true token too, so such rows predict their own token.
        """
        counted = (indices >= 0).any(-1)
        counted[..., -1:] = False
        if isinstance(mask, Tensor) and mask.shape == tokens.shape:
            counted &= next_tokens(mask, 0).bool() & mask.bool()
        own = (indices == tokens.unsqueeze(-1)).any(-1)
        following = (indices == next_tokens(tokens, _NO_LABEL).unsqueeze(-1)).any(-1)
        more, fewer = (int((x & ~y & counted).sum()) for x, y in ((own, following), (following, own)))
        if more > fewer and _sign_test(more, fewer) < _CHANCE:
            rows, *listing = (int((x & counted).sum()) for x in (counted, own, following))
            got = f"{rows} rows, of which {listing[0]} list the token at their position and {listing[1]} the next one"
            raise self._shifted("teacher_indices", got)

    def _shifted(self, argument: str, got: str) -> ArgumentValueError:
        return invalid_value(
            self.call,
            argument,
            wanted="in row i the prediction of the token after position i",
            got=got,
            instead="StoredTeacherCollator(collator, rows_predict='own') if row i predicts the token at i, as vLLM "
            "and SGLang number them, or x.roll(-1, 1) of each field teacher_*",
        )

    def _of_heads(
        self,
        model: torch.nn.Module,
        unwrapped: Any,
        features: Features,
        inputs: Mapping[str, Any],
        keep_logits: bool,
    ) -> tuple[dict[str, Tensor | TopK], Any]:
        """Return the hidden states and heads of both sides as arguments of the loss, and the student's outputs."""
        sides, outputs = self._side("student", model, unwrapped, features, keep_logits)
        if self.teacher is None:
            sides["teacher"] = self._stored(unwrapped, inputs)
        else:
            sides |= self._side("teacher", self.teach, self.teacher, features, keep_logits=False)[0]
        kept = {name: x for name, x in outputs.items() if not name.endswith("hidden_states")}
        return sides, type(outputs)(**kept)

    def _side(
        self, side: str, run: Callable[..., Any], module: Any, features: Features, keep_logits: bool
    ) -> tuple[dict[str, Tensor | TopK], Any]:
        """Return a side's hidden states and head by the names of the loss's arguments, and the model's outputs."""
        assert isinstance(self.loss, LinearDistillationLoss)  # noqa: S101 - for the type checker
        head = ModelHead.of(self.call, side, without_wrappers(module))
        # The logits of the last position suffice to check that the head makes the model's logits.
        few = {} if keep_logits else head.few_logits()
        outputs = run(**{**no_cache(head.module), **features, "output_hidden_states": True, **few})
        head.gather()
        hidden = outputs["decoder_hidden_states" if is_encoder_decoder(head.module) else "hidden_states"][-1]
        if self._is_checked():
            head.check_logits(self.loss, hidden[:, -1:], outputs.logits[:, -1:])
        tensors = of_given_tokens(module, features, hidden), head.linear.weight, head.linear.bias
        return dict(zip((side, f"{side}_weight", f"{side}_bias"), tensors, strict=True)), outputs


def _sign_test(more: int, fewer: int) -> float:
    """Return an upper bound of the probability of this number of heads in tosses of a fair coin (Chernoff, 1952)."""
    n = more + fewer
    return math.exp(-sum(x * math.log(2 * x / n) for x in (more, fewer) if x))
