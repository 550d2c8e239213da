"""The part that all trainers share: run student and teacher on a batch, and compute the loss of their predictions."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from kullback.common.inputs import check_flag
from kullback.common.words import NO_LABEL as _NO_LABEL
from kullback.errors import ArgumentValueError, invalid_type, invalid_value, safe_repr
from kullback.losses.top_k import TopK
from kullback.nn import DistillationLoss, LinearDistillationLoss

__all__ = ["STORED", "BatchLoss", "at_least_one", "logits_of", "next_tokens", "of_tokens"]

# The fields of a batch that replace a teacher: its most probable tokens, shape (..., tokens, k), and, if known, the
# true token that each row is a prediction of, shape (..., tokens).
STORED = ("teacher_indices", "teacher_log_probs", "teacher_labels")
# The largest probability by chance at which stored rows are taken to be those of the tokens before.
_CHANCE = 1e-4


def next_tokens(labels: Tensor, ignore_index: int = -100) -> Tensor:
    """Return the label of each position's logits, the token after it; the last position has none.

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
    """The loss of a student's predictions on a batch, with a teacher's predictions on the same batch.

    Arguments:
        call: the trainer, for messages.
        loss: a `DistillationLoss`, or a `LinearDistillationLoss`, which never has all logits in memory.
        teacher: the teacher; None if the batches have its most probable tokens, as ``teacher_indices`` and
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
                wanted="a module, or None if the batches hold the teacher's most probable tokens",
                got=safe_repr(teacher),
                instead="teacher=AutoModelForCausalLM.from_pretrained(...)",
            )
        check_flag(call, "causal", causal)
        self.call, self.loss, self.teacher, self.causal = call, loss, teacher, causal
        self._batches = 0
        # Of the student at each position of the last batch, if the loss returns it.
        self.entropy: Tensor | None = None
        if teacher is not None:
            teacher.requires_grad_(False).eval()

    def __call__(
        self,
        model: torch.nn.Module,
        inputs: Mapping[str, Any],
        *,
        normalizer: Tensor | float | None = None,
        unwrapped: Any = None,
        keep_logits: bool = True,
    ) -> tuple[Tensor, Any]:
        """Return the loss and the student's outputs.

        Arguments:
            model: the student, possibly wrapped, as the trainer calls it.
            inputs: the batch. Positions with the label `ignore_index` of the loss do not count. Without labels,
                positions outside of the attention mask do not count.
            normalizer: the divisor of the sum over tokens, such as the number of tokens in all micro-batches.
            unwrapped: the student without its wrappers; it has the head.
            keep_logits: whether the outputs must contain the logits.
        """
        features = {name: x for name, x in inputs.items() if name not in ("labels", "shift_labels", *STORED)}
        normalizer = at_least_one(normalizer)
        unwrapped = _without_wrappers(model if unwrapped is None else unwrapped)
        sides: dict[str, Any]
        if isinstance(self.loss, LinearDistillationLoss):
            sides, outputs = self._of_heads(model, unwrapped, features, inputs, keep_logits)
        else:
            outputs = model(**{**_no_cache(unwrapped), **features})
            taught = self._stored(inputs) if self.teacher is None else logits_of(self._teach(**features))
            self._batches += 1
            sides = {"student": logits_of(outputs), "teacher": taught}
        counted = self._counted(sides["student"], inputs)
        loss = self.loss(**sides, **counted, normalizer=normalizer)
        loss, self.entropy = loss if isinstance(loss, tuple) else (loss, None)
        return loss + self._router_loss(unwrapped, outputs, counted, normalizer), outputs

    def _router_loss(
        self,
        model: Any,
        outputs: Any,
        counted: dict[str, Tensor | None],
        normalizer: Tensor | float | None,
    ) -> Tensor | float:
        """Return the load-balancing loss of a mixture of experts, with the model's own weight; 0 for other models.

        With a normalizer, the batch has the weight of its own tokens, so that the losses of micro-batches add up.
        """
        auxiliary = outputs.get("aux_loss") if isinstance(outputs, Mapping) else None
        if not isinstance(auxiliary, Tensor):
            return 0.0
        coefficient = _router_coefficient(model)
        if coefficient is None:
            raise invalid_value(
                self.call,
                "model",
                wanted="a model with the coefficient of its router loss, as router_aux_loss_coef",
                got=f"a {type(model).__name__} that returns aux_loss and has none",
                instead="model.router_aux_loss_coef = 0.01, or output_router_logits=False in its configuration",
            )
        share: Tensor | float = 1.0
        if normalizer is not None and self.loss.reduction == "mean":
            labels, mask = counted.get("labels"), counted.get("mask")
            if labels is not None:
                share = (labels != self.loss.ignore_index).sum() / normalizer
            elif mask is not None:
                share = mask.sum() / normalizer
        return coefficient * auxiliary * share

    def _counted(self, logits: Tensor, inputs: Mapping[str, Any]) -> dict[str, Tensor | None]:
        """Return the labels, which decide which positions count; without labels, the mask."""
        if inputs.get("shift_labels") is not None:  # of collators that pack sequences
            return {"labels": inputs["shift_labels"]}
        labels, mask = inputs.get("labels"), inputs.get("attention_mask")
        if labels is None and isinstance(mask, Tensor) and mask.shape == logits.shape[:-1]:
            return {"mask": mask.bool()}
        return {"labels": of_tokens(self.call, logits, labels, self.loss.ignore_index, self.causal)}

    def _stored(self, inputs: Mapping[str, Any]) -> TopK:
        indices, log_probs, labels = (inputs.get(name) for name in STORED)
        if not isinstance(indices, Tensor) or not isinstance(log_probs, Tensor):
            raise invalid_value(
                self.call,
                "teacher",
                wanted="a teacher, or batches with teacher_indices and teacher_log_probs",
                got=f"None, and a batch of {', '.join(inputs)}",
                instead="teacher=AutoModelForCausalLM.from_pretrained(...)",
            )
        tokens = inputs.get("input_ids")
        # A batch is read by chance as well as by mistake, so the check is repeated at batches 1, 2, 4, 8 ...
        if isinstance(tokens, Tensor) and tokens.shape == indices.shape[:-1] and self.causal:
            listed = log_probs > -torch.inf
            if isinstance(labels, Tensor):
                self._require_aligned(labels, tokens)
            elif self._batches & (self._batches + 1) == 0:
                self._refuse_shifted(torch.where(listed, indices, -1), tokens, inputs.get("attention_mask"))
        return TopK(indices, log_probs)

    def _require_aligned(self, labels: Tensor, tokens: Tensor) -> None:
        """Refuse stored predictions of other tokens than the next ones."""
        following = next_tokens(tokens, _NO_LABEL)
        wrong = (labels != _NO_LABEL) & (following != _NO_LABEL) & (labels != following)
        if bool(wrong.any()):
            place = tuple(int(i) for i in wrong.nonzero()[0])
            got = f"a prediction of token {int(labels[place])} at index {place}, where {int(following[place])} follows"
            raise self._shifted("teacher_labels", got)

    def _refuse_shifted(self, indices: Tensor, tokens: Tensor, mask: object) -> None:
        """Refuse stored predictions that list the token of their own position, and not the next one.

        Servers list the true token with the most probable ones. Rows that list their own token more often than the
        next, beyond chance, are predictions of their own token.
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

    @torch.no_grad()
    def _teach(self, **features: Any) -> Any:
        assert self.teacher is not None  # noqa: S101 - for the type checker
        return self.teacher(**{**_no_cache(_without_wrappers(self.teacher)), **features})

    def _of_heads(
        self,
        model: torch.nn.Module,
        unwrapped: Any,
        features: dict[str, Any],
        inputs: Mapping[str, Any],
        keep_logits: bool,
    ) -> tuple[dict[str, Any], Any]:
        """Return the hidden states and heads of both sides as arguments of the loss, and the student's outputs."""

        def run(**given: Any) -> Any:
            return model(**{**_no_cache(unwrapped), **given})

        sides, outputs = self._side("student", run, unwrapped, features, keep_logits)
        if self.teacher is None:
            sides["teacher"] = self._stored(inputs)
        else:
            teacher = _without_wrappers(self.teacher)
            sides |= self._side("teacher", self._teach, teacher, features, keep_logits=False)[0]
        self._batches += 1
        return sides, type(outputs)(**{name: x for name, x in outputs.items() if name != "hidden_states"})

    def _side(
        self, side: str, run: Callable[..., Any], module: Any, features: dict[str, Any], keep_logits: bool
    ) -> tuple[dict[str, Any], Any]:
        """Return the hidden states and the head of a side, by the names of the loss's arguments, and its outputs."""
        head = module.get_output_embeddings()
        self._check_plain(side, head)
        # The last logits alone suffice to check that the head makes them.
        few = {} if keep_logits else self._few_logits(side, module)
        outputs = run(**features, output_hidden_states=True, **few)
        hidden, bias = outputs.hidden_states[-1], head.bias
        # An error of the head can begin during training, so the check is repeated at batches 1, 2, 4, 8 ...
        if self._batches & (self._batches + 1) == 0:
            self._check_head(side, module, hidden[:, -1:], head.weight, bias, outputs.logits[:, -1:])
        return {side: hidden, f"{side}_weight": head.weight, f"{side}_bias": bias}, outputs

    def _check_plain(self, side: str, head: Any) -> None:
        """Raise if the head uses more than its weight and its bias."""
        if getattr(type(head), "forward", None) is not torch.nn.Linear.forward:
            raise invalid_value(
                self.call,
                "loss",
                wanted=f"a DistillationLoss for a {side} whose head is not a plain torch.nn.Linear",
                got=f"a LinearDistillationLoss and a {type(head).__module__}.{type(head).__name__}, "
                "whose weight alone does not make its logits",
                instead="loss=kullback.nn.DistillationLoss(), or no adapter on the head "
                "(LoraConfig(target_modules=...) without 'lm_head')",
            )

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
        self, side: str, module: Any, hidden: Tensor, weight: Tensor, bias: Tensor | None, logits: Tensor
    ) -> None:
        """Raise unless the head, with the cap and scale of the loss, gives the model's logits."""
        loss = self.loss
        assert isinstance(loss, LinearDistillationLoss)  # noqa: S101 - for the type checker
        place = int(side == "teacher")
        scale, cap = (x[place] if isinstance(x, tuple) else x for x in (loss.logit_scale, loss.softcap))
        products = torch.nn.functional.linear(hidden, weight, bias)
        made = products.float() * (1.0 if scale is None else scale)
        made = made if cap is None else cap * torch.tanh(made / cap)
        near = 0.05 if {products.dtype, logits.dtype} & {torch.bfloat16, torch.float16} else 1e-3
        size = logits.float().abs().amax().clamp(min=1e-6)
        # A cap changes small logits too little to be seen, so the configuration is read too.
        wanted = head_settings(module)["softcap"]
        if (wanted is not None and wanted != cap) or not bool(
            (made - logits.float()).abs().amax() <= near * size
        ):
            raise invalid_value(
                self.call,
                "loss",
                wanted=f"a LinearDistillationLoss that makes the logits of the {side} as its model does",
                got=f"softcap={cap}, logit_scale={scale}, which give other logits",
                instead="LinearDistillationLoss(softcap=..., logit_scale=...) as in the models' configurations, or "
                "loss=kullback.nn.DistillationLoss()",
            )


def _sign_test(more: int, fewer: int) -> float:
    """Return a bound of the probability that at least `more` of so many fair coins show heads (Chernoff, 1952)."""
    n = more + fewer
    return math.exp(-sum(x * math.log(2 * x / n) for x in (more, fewer) if x))


def head_settings(model: Any) -> dict[str, float | None]:
    """Return the cap and the scale of a Hugging Face model's logits, from its configuration."""
    config: Any = getattr(_without_wrappers(model), "config", None)
    config = config.get_text_config() if hasattr(config, "get_text_config") else config
    names = ("logit_scale", "output_multiplier", "lm_head_multiplier")  # of Cohere, Glimmer, Falcon
    scale = next((x for name in names if (x := getattr(config, name, None)) is not None), None)
    divisor = getattr(config, "logits_scaling", None)  # of Granite; HyperCLOVA X multiplies by it
    if scale is None and divisor is not None:
        scale = divisor if config.model_type == "hyperclovax" else 1 / divisor
    return {
        "softcap": getattr(config, "final_logit_softcapping", None),
        "logit_scale": 1.0 if scale is None else scale,
    }


def logits_of(outputs: Any) -> Tensor:
    """Return the logits in a model's outputs: an attribute, an entry, the first element of a tuple, or all of it."""
    if isinstance(outputs, Tensor):
        return outputs
    if isinstance(outputs, Mapping):
        return outputs["logits"]
    return outputs.logits if hasattr(outputs, "logits") else outputs[0]


def _without_wrappers(model: Any) -> Any:
    """Return the model inside of `torch.compile`'s and PEFT's wrappers."""
    model = getattr(model, "_orig_mod", model)
    return model.get_base_model() if hasattr(model, "get_base_model") else model


def _no_cache(model: Any) -> dict[str, bool]:
    """Return the argument that turns off a model's cache of keys and values, for models that have one.

    Training does not need the cache, and transformers ignores the boundaries of packed sequences if there is one.
    """
    return {"use_cache": False} if "use_cache" in inspect.signature(model.forward).parameters else {}


def _router_coefficient(model: Any) -> float | None:
    """Return the weight that a mixture of experts gives to its router loss."""
    places = (model, "router_aux_loss_coef"), (model, "aux_loss_coef")
    for holder, name in (*places, (getattr(model, "config", None), "router_aux_loss_coef")):
        if (coefficient := getattr(holder, name, None)) is not None:
            return float(coefficient)
    return None
