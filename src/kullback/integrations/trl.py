"""Distillation with the trainers of TRL. Importing this module imports TRL."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.distributions import Categorical

from kullback.common.constraints import Arguments, OneOf
from kullback.common.extra_arguments import by_name
from kullback.common.optional import load
from kullback.generators import KL, Divergence, JensenShannon, ReverseKL
from kullback.integrations.batch_loss import BatchLoss, at_least_one, next_tokens
from kullback.integrations.huggingface import loss_of_batch, scale_of_processes
from kullback.integrations.models import Features, logits_of, without_containers, without_wrappers
from kullback.losses.distillation import distillation_loss
from kullback.losses.head_configuration import head_configuration
from kullback.nn import DistillationLoss, LinearDistillationLoss

__all__ = ["DistillationTrainer", "GKDTrainer", "generalized_jsd_loss"]

_GKDTrainer: Any = load("trl.experimental.gkd", "kullback.integrations.trl").GKDTrainer
_DistillationTrainer: Any = load("trl", "kullback.integrations.trl").DistillationTrainer

# These are inputs of both models in addition to the tokens, if the data contain images.
_OF_IMAGES = (
    "pixel_values",
    "image_grid_thw",
    "pixel_attention_mask",
    "spatial_shapes",
    "image_sizes",
    "token_type_ids",
    "mm_token_type_ids",
    "image_position_ids",
)


_ARGUMENTS = Arguments(
    "generalized_jsd_loss",
    reduction=OneOf(
        ("batchmean", "sum", "mean"),
        example="mean",
        instead="kullback.functional.distillation_loss(..., reduction='none') for the value of each position",
    ),
)


@by_name()
def generalized_jsd_loss(
    student_logits: Tensor,
    teacher_logits: Tensor,
    labels: Tensor | None = None,
    beta: float = 0.5,
    temperature: float = 1.0,
    reduction: str = "batchmean",
    num_items_in_batch: Tensor | float | None = None,
) -> Tensor:
    r"""Compute the generalized Jensen-Shannon loss: a drop-in for TRL's `GKDTrainer.generalized_jsd_loss`.

    .. math:: L = \frac1N \sum_n \beta\, KL(P_n \| M_n) + (1 - \beta)\, KL(Q_n \| M_n), \quad
        M_n = \beta P_n + (1 - \beta) Q_n

    P is the teacher and Q the student. The divergence is `JensenShannon`, except `KL` at beta = 0 and `ReverseKL` at
    beta = 1, as in TRL. Values and gradients equal TRL's up to rounding, with two exceptions. Logits of -inf on both
    sides, such as masked tokens, contribute 0 instead of NaN. Logits in half precision are computed in float32.

    Arguments:
        student_logits: shape (..., classes).
        teacher_logits: the same shape.
        labels: the label of each position's logits, already shifted. Positions with label -100 do not count.
        beta: from 0 to 1.
        temperature: the divisor of both logits.
        reduction: ``"batchmean"``, the mean over the positions that count (without labels, over the first dimension),
            ``"sum"``, or ``"mean"``, which also divides by the number of classes.
        num_items_in_batch: the divisor of the sum, instead of the divisor that `reduction` implies.

    Returns:
        a scalar, in float32 or better.

    Raises:
        ArgumentValueError: `reduction` or `beta` is invalid. ``"none"``, which in TRL returns the terms of classes, is
            invalid too.
        ArgumentTypeError: an argument is of the wrong type.

    Gradient: to both logits, the gradient of `kullback.functional.distillation_loss`.

    Example:
        >>> import torch
        >>> from kullback.integrations.trl import generalized_jsd_loss
        >>> generalized_jsd_loss(torch.zeros(1, 2, 2), torch.tensor([[[0.0, 1.0], [0.0, 2.0]]]), beta=0.0)
        tensor(0.4388)

    References:
        On-Policy Distillation of Language Models: Learning from Self-Generated Mistakes (Agarwal and others, 2024)
    """
    _ARGUMENTS.check(reduction=reduction)
    total = distillation_loss(
        student=student_logits,
        teacher=teacher_logits,
        kind=of_beta(beta),
        temperature=temperature,
        labels=labels,
        reduction="sum",
    )
    if num_items_in_batch is not None:
        return total / at_least_one(num_items_in_batch)  # pyright: ignore[reportOperatorIssue]
    if reduction == "sum":
        return total
    if labels is not None:
        counted = (labels != -100).sum().clamp(min=1)
    else:
        counted = student_logits.shape[0] if reduction == "batchmean" else student_logits[..., 0].numel()
    return total / counted / (student_logits.shape[-1] if reduction == "mean" else 1)


def of_beta(beta: float) -> Divergence:
    """Return the divergence that `beta` selects in TRL."""
    return KL() if beta == 0 else ReverseKL() if beta == 1 else JensenShannon(beta)


@by_name()
class GKDTrainer(_GKDTrainer):  # pyright: ignore[reportUntypedBaseClass]
    r"""TRL's `GKDTrainer` with any divergence, or with fused heads.

    .. math:: L = \frac1N \sum_n D(P_n \| Q_n)

    P is the teacher and Q the model. Data, on-policy generation and arguments are the same as in TRL. In addition to
    the loss, three things differ from TRL. The loss of a batch that was generated on-policy is divided by its number of
    tokens. TRL divides by the number of tokens in the replaced batch. With several processes, the loss is
    multiplied by the number of processes, as in `transformers.Trainer`. The reason is that the loss was divided by the
    number of tokens of all processes, and the mean of the gradients over the processes is taken afterwards. Logits of
    -inf on both sides contribute 0 instead of NaN.

    Arguments:
        args: positional arguments of TRL's trainer.
        loss: the loss. By default, `GKDConfig.beta` selects the divergence: `JensenShannon`, `KL` at 0 and `ReverseKL`
            at 1, as in TRL. A `LinearDistillationLoss` never stores all logits of either side.
        kwargs: keyword arguments of TRL's trainer.

    Raises:
        ArgumentTypeError: `loss` is of the wrong type.
        ArgumentValueError: `loss` has a reduction other than ``"mean"`` and ``"sum"``, or an `ignore_index` other than
            -100, or does not fit the models. The teacher shares trainable parameters with the model; they would be
            frozen.
        OptionalDependencyError: TRL is not installed.

    Gradient:
        the gradient of `kullback.functional.distillation_loss`.

    Example:
        >>> from kullback.integrations.trl import GKDTrainer, generalized_jsd_loss
        >>> GKDTrainer.generalized_jsd_loss is generalized_jsd_loss
        True

    References:
        On-Policy Distillation of Language Models: Learning from Self-Generated Mistakes (Agarwal and others, 2024)
    """

    generalized_jsd_loss = staticmethod(generalized_jsd_loss)

    def __init__(
        self, *args: Any, loss: DistillationLoss | LinearDistillationLoss | None = None, **kwargs: Any
    ) -> None:
        if loss is not None:
            BatchLoss("GKDTrainer", loss, None, causal=True)  # checks the loss
        super().__init__(*args, **kwargs)
        loss = DistillationLoss(kind=of_beta(self.beta)) if loss is None else loss
        self.batch_loss = BatchLoss("GKDTrainer", loss, self.teacher_model, causal=True)
        self.batch_loss.freeze_teacher(self.model)
        self._was_generated = False

    def compute_loss(
        self,
        model: torch.nn.Module,
        inputs: Features,
        return_outputs: bool = False,
        num_items_in_batch: Any = None,
    ) -> Any:
        """Return the loss of a batch and, if `return_outputs`, the model's outputs."""
        generated, self._was_generated = self._was_generated, False
        names = ("input_ids", "attention_mask", "position_ids", "labels")
        batch = {name: inputs[name] for name in names if name in inputs}
        normalizer = num_items_in_batch
        if generated and normalizer is not None:  # the items were counted before the batch was replaced
            normalizer = (batch["labels"][:, 1:] != -100).sum()
        loss, outputs = loss_of_batch(self, model, batch, normalizer, keep_logits=return_outputs)
        if generated and num_items_in_batch is not None:
            loss = loss / self.current_gradient_accumulation_steps
        else:
            loss = loss * scale_of_processes(self, num_items_in_batch)
        return (loss, outputs) if return_outputs else loss

    def generate_on_policy_outputs(self, *args: Any, **kwargs: Any) -> Any:
        """Generate as TRL does, and record that the counted tokens belong to the replaced batch."""
        self._was_generated = True
        return super().generate_on_policy_outputs(*args, **kwargs)


@contextmanager
def _past_autocast(*models: Any) -> Generator[None]:
    """Run the models without the autocast that accelerate adds to their forward methods.

    TRL's `DistillationTrainer` calls the models' decoders, not the models, so it runs them without autocast too.
    """
    parts = [model for model in map(without_containers, models) if "_original_forward" in vars(model)]
    forwards = [part.forward for part in parts]
    for part in parts:
        part.forward = vars(part)["_original_forward"]
    try:
        yield
    finally:
        for part, forward in zip(parts, forwards, strict=True):
            part.forward = forward


@by_name()
class DistillationTrainer(_DistillationTrainer):  # pyright: ignore[reportUntypedBaseClass]
    r"""TRL's `DistillationTrainer` with any divergence.

    .. math:: L = \frac1N \sum_n D(P_n \| Q_n)

    The sum is over the N tokens that the student generated. P is the teacher and Q the student. Data, generation,
    arguments and logged metrics are the same as in TRL. Without `loss`, values and gradients equal TRL's up to
    rounding. The loss is then a `LinearDistillationLoss` with each model's cap and scale, and `beta` and `temperature`
    of `DistillationConfig` select the divergence. As in TRL, the models are computed in the dtype of their weights, and
    the logits in float32. Therefore ``bf16=True`` does not change the loss of models in float32.

    Arguments:
        args: positional arguments of TRL's trainer.
        loss: the loss. A `LinearDistillationLoss` never stores all logits. The `softcap` and `logit_scale` of this loss
            must equal the models' settings; the default loss reads them from the models' configurations.
        kwargs: keyword arguments of TRL's trainer.

    Raises:
        ArgumentTypeError: `loss` is of the wrong type.
        ArgumentValueError: `loss` has a reduction other than ``"mean"`` and ``"sum"``, or an `ignore_index` other than
            -100, or does not fit the models. The teacher shares trainable parameters with the model; they would be
            frozen.
        OptionalDependencyError: TRL is not installed.

    Gradient:
        the gradient of `kullback.functional.linear_distillation_loss`, to the student.

    Example:
        >>> from kullback.integrations.trl import DistillationTrainer
        >>> import trl
        >>> issubclass(DistillationTrainer, trl.DistillationTrainer)
        True

    References:
        On-Policy Distillation of Language Models: Learning from Self-Generated Mistakes (Agarwal and others, 2024)
    """

    def __init__(
        self, *args: Any, loss: DistillationLoss | LinearDistillationLoss | None = None, **kwargs: Any
    ) -> None:
        if loss is not None:
            BatchLoss("DistillationTrainer", loss, None, causal=True)  # checks the loss
        super().__init__(*args, **kwargs)
        loss = self._default_loss() if loss is None else loss
        self.batch_loss = BatchLoss("DistillationTrainer", loss, self.teacher_model, causal=True)
        if isinstance(self.batch_loss.loss, LinearDistillationLoss):
            self.batch_loss.loss.return_entropy = True  # the trainer logs the entropy
        self.batch_loss.freeze_teacher(self.model)

    def _default_loss(self) -> DistillationLoss | LinearDistillationLoss:
        """Return the loss that TRL uses for these settings and models."""
        kind, temperature = of_beta(self.beta), self.temperature
        if "logits_to_keep" not in self.model_kwarg_keys:  # the model makes all its logits in any case
            return DistillationLoss(kind=kind, temperature=temperature)
        student, teacher = (
            head_configuration(getattr(without_wrappers(model), "config", None))
            for model in (self.model, self.teacher_model)
        )
        return LinearDistillationLoss(
            kind=kind,
            temperature=temperature,
            softcap=(student.softcap, teacher.softcap),
            logit_scale=(student.logit_scale, teacher.logit_scale),
        )

    def compute_loss(
        self,
        model: torch.nn.Module,
        inputs: Features,
        return_outputs: bool = False,
        num_items_in_batch: Any = None,
    ) -> Any:
        """Return the loss of a batch of prompts and completions."""
        if self.model.training and inputs.get("num_items_in_batch") is not None:
            # These are the generated tokens of all processes. The processes average their gradients, so the number is
            # divided by the number of processes.
            num_items_in_batch = inputs["num_items_in_batch"].clamp(min=1) / self.accelerator.num_processes
        counted = inputs["completion_mask"] * inputs.get("tool_mask", 1) != 0
        ignored = self.batch_loss.loss.ignore_index
        prompts, completions = inputs["prompt_ids"], inputs["completion_ids"]
        batch = {name: inputs[name] for name in _OF_IMAGES if name in inputs} | {
            "input_ids": torch.cat([prompts, completions], 1),
            "attention_mask": torch.cat([inputs["prompt_mask"], inputs["completion_mask"]], 1),
            "labels": torch.cat(
                [torch.full_like(prompts, ignored), completions.masked_fill(~counted, ignored)], 1
            ),
        }
        student, teacher = (self.accelerator.unwrap_model(x) for x in (model, self.teacher_model))
        with _past_autocast(student, teacher):
            loss, outputs = self.batch_loss(
                model, batch, normalizer=num_items_in_batch, unwrapped=student, keep_logits=False
            )
        self._log_entropy(outputs, next_tokens(batch["labels"], ignored) != ignored)
        return (loss, None) if return_outputs else loss

    @torch.no_grad()
    def _log_entropy(self, outputs: Any, counted: Tensor) -> None:
        """Log the mean entropy of the student over the counted positions of all processes, as TRL does."""
        if self.batch_loss.entropy is not None:
            entropy = self.batch_loss.entropy[counted]
        else:
            logits = logits_of(outputs)[counted].float() / self.batch_loss.loss.temperature
            entropy = Categorical(logits=logits, validate_args=False).entropy()
        total, number = (self.accelerator.gather_for_metrics(x).sum() for x in (entropy.sum(), counted.sum()))
        mode = "train" if self.model.training else "eval"
        self._metrics[mode]["entropy"].append((total / number).item() if number > 0 else 0.0)
