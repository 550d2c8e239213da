"""What the trainers share: a student and a teacher run on one batch, and a loss of what they predict."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from kullback.errors import invalid_type, invalid_value, safe_repr
from kullback.functional import TopK
from kullback.inputs import check_flag
from kullback.nn import DistillationLoss, LinearDistillationLoss

__all__ = ["STORED", "BatchLoss", "at_least_one", "logits_of", "next_tokens", "of_tokens"]

# What a batch holds in place of a teacher: its most probable tokens, shape (..., tokens, k).
STORED = ("teacher_indices", "teacher_log_probs")


def next_tokens(labels: Tensor, ignore_index: int = -100) -> Tensor:
    """Return the label of each position's logits, the token after it; the last position has none.

    Example:
        >>> next_tokens(torch.tensor([[5, 6, 7]]))
        tensor([[   6,    7, -100]])
    """
    return torch.nn.functional.pad(labels[..., 1:], (0, 1), value=ignore_index)


def at_least_one(count: Tensor | float | None) -> Tensor | float | None:
    """Return the number of counted tokens, 1 where there is none: the loss is then 0, and not 0/0."""
    return count.clamp(min=1) if isinstance(count, Tensor) else None if count is None else max(count, 1)


def of_tokens(
    call: str, logits: Tensor, labels: Tensor | None, ignore_index: int, causal: bool
) -> Tensor | None:
    """Return the labels of the logits' positions: shifted by one in causal models."""
    if labels is None or not causal:
        return labels
    if logits.ndim < 3:
        raise invalid_value(
            call,
            "causal",
            wanted="False for a model with one prediction for each example",
            got=f"logits of shape {tuple(logits.shape)}",
            instead="causal=False",
        )
    return next_tokens(labels, ignore_index)


class BatchLoss:
    """The loss of a batch that a student and a teacher are run on.

    Arguments:
        call: the trainer, for messages.
        loss: a `DistillationLoss`, or a `LinearDistillationLoss`, with which the logits are never whole.
        teacher: the teacher, or None where the batches hold its most probable tokens, as ``teacher_indices`` and
            ``teacher_log_probs``.
        causal: whether the label of a position's logits is the token after it.
    """

    def __init__(self, call: str, loss: object, teacher: torch.nn.Module | None, *, causal: bool) -> None:
        if not isinstance(loss, DistillationLoss | LinearDistillationLoss):
            raise invalid_type(
                call,
                "loss",
                wanted="a DistillationLoss or a LinearDistillationLoss",
                got=safe_repr(loss),
                instead="loss=kullback.nn.DistillationLoss(kind='js:0.5')",
            )
        if loss.reduction not in ("mean", "sum"):
            raise invalid_value(
                call,
                "loss",
                wanted="a loss that is a number, the mean over counted tokens",
                got=f"one with reduction={loss.reduction!r}",
                instead="loss=kullback.nn.DistillationLoss(reduction='mean')",
            )
        if teacher is not None and not isinstance(teacher, torch.nn.Module):
            raise invalid_type(
                call,
                "teacher",
                wanted="a module, or None where the batches hold the teacher's most probable tokens",
                got=safe_repr(teacher),
                instead="teacher=AutoModelForCausalLM.from_pretrained(...)",
            )
        check_flag(call, "causal", causal)
        self.call, self.loss, self.teacher, self.causal = call, loss, teacher, causal
        self._checked = False
        if teacher is not None:
            teacher.requires_grad_(False).eval()

    def __call__(
        self,
        model: torch.nn.Module,
        inputs: Mapping[str, Any],
        *,
        normalizer: Tensor | float | None = None,
        unwrapped: torch.nn.Module | None = None,
        keep_logits: bool = True,
    ) -> tuple[Tensor, Any]:
        """Return the loss and the student's outputs.

        Arguments:
            model: the student, as it has to be called.
            inputs: the batch. Positions whose label is the loss's `ignore_index` do not count; without labels, those
                that the attention mask leaves out.
            normalizer: what the sum over tokens is divided by, such as their number in all micro-batches.
            unwrapped: the student without what wraps it, whose head it is.
            keep_logits: whether the outputs have to hold the logits.
        """
        features = {name: x for name, x in inputs.items() if name not in ("labels", "shift_labels", *STORED)}
        normalizer = at_least_one(normalizer)
        if isinstance(self.loss, LinearDistillationLoss):
            return self._of_heads(model, unwrapped or model, features, inputs, normalizer, keep_logits)
        outputs = model(**features)
        teacher = self._stored(inputs) if self.teacher is None else logits_of(self._teach(**features))
        student = logits_of(outputs)
        counted = self._counted(student, inputs)
        return self.loss(student=student, teacher=teacher, **counted, normalizer=normalizer), outputs

    def _counted(self, logits: Tensor, inputs: Mapping[str, Any]) -> dict[str, Tensor | None]:
        """Return the labels that say which positions count, or without any the mask that does."""
        if inputs.get("shift_labels") is not None:  # of collators that pack sequences
            return {"labels": inputs["shift_labels"]}
        labels, mask = inputs.get("labels"), inputs.get("attention_mask")
        if labels is None and isinstance(mask, Tensor) and mask.shape == logits.shape[:-1]:
            return {"mask": mask.bool()}
        return {"labels": of_tokens(self.call, logits, labels, self.loss.ignore_index, self.causal)}

    def _stored(self, inputs: Mapping[str, Any]) -> TopK:
        indices, log_probs = (inputs.get(name) for name in STORED)
        if not isinstance(indices, Tensor) or not isinstance(log_probs, Tensor):
            raise invalid_value(
                self.call,
                "teacher",
                wanted="a teacher, or batches with teacher_indices and teacher_log_probs",
                got=f"None, and a batch of {', '.join(inputs)}",
                instead="teacher=AutoModelForCausalLM.from_pretrained(...)",
            )
        return TopK(indices, log_probs)

    @torch.no_grad()
    def _teach(self, **features: Any) -> Any:
        assert self.teacher is not None  # noqa: S101 - for the type checker
        return self.teacher(**features)

    def _of_heads(
        self,
        model: torch.nn.Module,
        unwrapped: torch.nn.Module,
        features: dict[str, Any],
        inputs: Mapping[str, Any],
        normalizer: Tensor | float | None,
        keep_logits: bool,
    ) -> tuple[Tensor, Any]:
        teacher: dict[str, Any] = {"teacher": self._stored(inputs)} if self.teacher is None else {}
        sides, outputs = self._side("student", model, unwrapped, features, keep_logits)
        if self.teacher is not None:
            teacher, _ = self._side("teacher", self._teach, self.teacher, features, False)
        self._checked = True
        counted = self._counted(sides["student"], inputs)
        loss = self.loss(**sides, **teacher, **counted, normalizer=normalizer)
        rest = {name: x for name, x in outputs.items() if name != "hidden_states"}
        return loss, type(outputs)(**rest)

    def _side(
        self, side: str, run: Callable[..., Any], module: Any, features: dict[str, Any], keep_logits: bool
    ) -> tuple[dict[str, Any], Any]:
        """Return the hidden states and the head of a side, by the names of the loss's arguments, and its outputs."""
        module = _without_adapters(module)
        # Only the last logits are made: they tell whether the head is what makes them.
        few = {} if keep_logits else self._few_logits(side, module)
        found = run(**features, output_hidden_states=True, **few)
        head = module.get_output_embeddings()
        hidden, bias = found.hidden_states[-1], getattr(head, "bias", None)
        if not self._checked:
            self._check_head(side, hidden[:, -1:], head.weight, bias, found.logits[:, -1:])
        return {side: hidden, f"{side}_weight": head.weight, f"{side}_bias": bias}, found

    def _few_logits(self, side: str, module: torch.nn.Module) -> dict[str, int]:
        if "logits_to_keep" not in inspect.signature(module.forward).parameters:
            raise invalid_value(
                self.call,
                "loss",
                wanted=f"a DistillationLoss for a {side} that always makes all its logits",
                got=f"a LinearDistillationLoss with a {type(module).__name__}, which has no logits_to_keep",
                instead="loss=kullback.nn.DistillationLoss()",
            )
        return {"logits_to_keep": 1}

    @torch.no_grad()
    def _check_head(
        self, side: str, hidden: Tensor, weight: Tensor, bias: Tensor | None, logits: Tensor
    ) -> None:
        """Raise unless the logits are those of the head, capped and scaled as the loss was told."""
        loss = self.loss
        assert isinstance(loss, LinearDistillationLoss)  # noqa: S101 - for the type checker
        place = int(side == "teacher")
        scale, cap = (x[place] if isinstance(x, tuple) else x for x in (loss.logit_scale, loss.softcap))
        products = torch.nn.functional.linear(hidden, weight, bias)
        made = products.float() * (1.0 if scale is None else scale)
        made = made if cap is None else cap * torch.tanh(made / cap)
        near = 0.05 if {products.dtype, logits.dtype} & {torch.bfloat16, torch.float16} else 1e-3
        size = logits.float().abs().amax().clamp(min=1e-6)
        if not bool((made - logits.float()).abs().amax() <= near * size):
            raise invalid_value(
                self.call,
                "loss",
                wanted=f"a LinearDistillationLoss that makes the logits of the {side} as its model does",
                got=f"softcap={cap}, logit_scale={scale}, by which they differ",
                instead="LinearDistillationLoss(softcap=..., logit_scale=...) as in the models' configurations, or "
                "loss=kullback.nn.DistillationLoss()",
            )


def logits_of(outputs: Any) -> Tensor:
    """Return the logits of a model's outputs: of an attribute, an entry, the first of a tuple, or the outputs."""
    if isinstance(outputs, Tensor):
        return outputs
    if isinstance(outputs, Mapping):
        return outputs["logits"]
    return outputs.logits if hasattr(outputs, "logits") else outputs[0]


def _without_adapters(model: Any) -> Any:
    """Return the model that PEFT's adapters are in."""
    return model.get_base_model() if hasattr(model, "get_base_model") else model
