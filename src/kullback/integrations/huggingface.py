"""Distillation with the `Trainer` of Hugging Face's transformers. Importing this module imports transformers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from kullback.common.extra_arguments import by_name
from kullback.common.optional import load
from kullback.common.words import STORED
from kullback.errors import invalid_value, safe_repr
from kullback.integrations.batch_loss import BatchLoss, at_least_one, is_causal, of_tokens
from kullback.integrations.models import Features, is_dispatched, logits_of
from kullback.losses.teachers import PartialTeacher
from kullback.nn import DistillationLoss, LinearDistillationLoss

__all__ = ["DistillationTrainer", "compute_loss_func"]

# The Trainer needs accelerate, but transformers does not install accelerate.
load("accelerate", "kullback.integrations.huggingface")
_Trainer: Any = load("transformers", "kullback.integrations.huggingface").Trainer


@by_name()
def compute_loss_func(
    loss: DistillationLoss | None = None,
    *,
    teacher: str | Callable[[Any], Tensor | PartialTeacher] = "teacher_logits",
    causal: bool | None = None,
) -> Callable[..., Tensor]:
    r"""Make the `compute_loss_func` of a `Trainer`, for a model whose outputs also contain the teacher's predictions.

    .. math:: L = \frac{1}{N} \sum_n D(P_n \| Q_n)

    The sum is over the tokens that count. N is the number of these tokens in all micro-batches of the step (the
    Trainer's `num_items_in_batch`). The accumulated gradients therefore equal the gradient of one large batch. If the
    teacher is a separate model, use `DistillationTrainer`.

    Arguments:
        loss: the loss; by default, ``DistillationLoss()``.
        teacher: the name of the teacher's logits in the outputs, or a function that returns these logits.
        causal: whether the label of a position's logits is the next token, as in causal language models. By default,
            True unless the outputs come from an encoder and a decoder.

    Returns:
        a function of ``(outputs, labels, num_items_in_batch=None)``.

    Raises:
        ArgumentTypeError: `loss` is not a `DistillationLoss`.
        ArgumentValueError: the reduction of `loss` is neither ``"mean"`` nor ``"sum"``, or its `ignore_index` is not
            -100, the label that the Trainer does not count. At the call, the outputs contain no logits of the teacher,
            or `causal` does not fit the outputs. A loss with ``vocabulary="mask"`` is +inf because a side lacks
            classes.

    Gradient:
        the gradient of `kullback.functional.distillation_loss`.

    Example:
        >>> import torch
        >>> from kullback.integrations.huggingface import compute_loss_func
        >>> from kullback.nn import DistillationLoss
        >>> loss = compute_loss_func(DistillationLoss(kind="reverse_kl"), causal=False)
        >>> outputs = {"logits": torch.zeros(2, 2), "teacher_logits": torch.tensor([[0.0, 1.0], [0.0, 0.0]])}
        >>> loss(outputs, torch.tensor([1, 0]), num_items_in_batch=4)
        tensor(0.0300)

    References:
        Distilling the Knowledge in a Neural Network (Hinton, Vinyals and Dean, 2015)
    """
    call = "compute_loss_func"
    loss = DistillationLoss() if loss is None else loss
    batch_loss = BatchLoss(call, loss, None, causal=causal)
    if not isinstance(loss, DistillationLoss):
        wanted, got = "a DistillationLoss, as the outputs hold logits", type(loss).__name__
        instead = "loss=kullback.nn.DistillationLoss(), or a DistillationTrainer"
        raise invalid_value(call, "loss", wanted=wanted, got=got, instead=instead)

    def compute(outputs: Any, labels: Tensor | None, num_items_in_batch: Any = None) -> Tensor:
        student = logits_of(outputs)
        taught = _find(outputs, teacher) if isinstance(teacher, str) else teacher(outputs)
        # Only models with an encoder and a decoder have this output.
        shifted = False if _get(outputs, "encoder_last_hidden_state") is not None else None
        shifts = is_causal(call, causal, shifted, otherwise=True)
        labels = of_tokens(call, student, labels, loss.ignore_index, shifts)
        if labels is not None and labels.is_floating_point() and loss.label_weight == 0:
            labels = None  # labels of a regression are not classes, so none is ignored
        sides = {"student": student, "teacher": taught}
        return batch_loss.of_sides(sides, labels=labels, normalizer=at_least_one(num_items_in_batch))

    return compute


def _get(outputs: Any, name: str) -> Any:
    return outputs.get(name) if isinstance(outputs, dict) else getattr(outputs, name, None)


def _find(outputs: Any, name: str) -> Any:
    taught = _get(outputs, name)
    if taught is None:
        raise invalid_value(
            "compute_loss_func",
            "teacher",
            wanted="the name of the teacher's logits in the outputs of the model",
            got=f"{name!r}, and outputs with {', '.join(outputs) if isinstance(outputs, dict) else type(outputs)}",
            instead="teacher=lambda outputs: ..., or a DistillationTrainer, which runs a teacher",
        )
    return taught.detach() if isinstance(taught, Tensor) else taught


@by_name()
class DistillationTrainer(_Trainer):  # pyright: ignore[reportUntypedBaseClass]
    r"""A `transformers.Trainer` that trains a model to make the predictions of a teacher.

    .. math:: L = \frac{1}{N} \sum_n D(P_n \| Q_n)

    The sum is over the tokens that count. P is the teacher and Q the model. N is the number of such tokens in all
    micro-batches of the step and all processes (the Trainer's `num_items_in_batch`). The accumulated gradients
    therefore equal the gradient of one large batch. Tokens with label -100 do not count. Without labels, tokens outside
    of the attention mask do not count. The Trainer does everything else, from checkpoints to evaluation. The teacher is
    neither trained nor saved.

    Arguments:
        args: positional arguments of the Trainer, such as the model and its `TrainingArguments`.
        teacher: the teacher; None if the batches contain the teacher's most probable tokens, as ``teacher_indices`` and
            ``teacher_log_probs`` of shape (batch, tokens, k). Row i predicts the token after position i; rows that
            predict the token at their position raise an error. With ``teacher_labels`` of shape (batch, tokens), the
            tokens that the rows predict, every row is checked. `StoredTeacherCollator` makes such batches. The teacher
            is frozen, so it must not share trainable parameters with the model.
        loss: the loss; by default, ``DistillationLoss()``. A `LinearDistillationLoss` takes hidden states and heads,
            and never stores all logits of either side. The models must support `logits_to_keep`. With the first batch,
            the trainer checks that the head, with the cap and scale of the loss, gives the model's logits.
        causal: whether the label of a position's logits is the next token, as in causal language models. By default,
            True unless the model has an encoder and a decoder, fills masks or classifies.
        kwargs: keyword arguments of the Trainer.

    Raises:
        ArgumentTypeError: `loss` or `teacher` is of the wrong type.
        ArgumentValueError: `loss` has a reduction other than ``"mean"`` and ``"sum"``, or an `ignore_index` other than
            -100. The teacher shares trainable parameters with the model, or `causal` is True for a model that does not
            shift labels. At a batch, the loss does not fit the models, or a loss with ``vocabulary="mask"`` is +inf
            because a side lacks classes. Without a teacher, the batch contains no stored predictions, or predictions of
            other tokens.
        OptionalDependencyError: transformers or accelerate is not installed.

    Gradient:
        the gradient of `kullback.functional.distillation_loss`.

    Example:
        >>> import tempfile, torch
        >>> from transformers import LlamaConfig, LlamaForCausalLM, TrainingArguments
        >>> from kullback.integrations.huggingface import DistillationTrainer
        >>> from kullback.nn import DistillationLoss
        >>> _ = torch.manual_seed(0)
        >>> config = LlamaConfig(vocab_size=32, hidden_size=32, intermediate_size=8, num_hidden_layers=1)
        >>> student, teacher = LlamaForCausalLM(config), LlamaForCausalLM(config)
        >>> tokens = torch.arange(8)
        >>> trainer = DistillationTrainer(
        ...     student,
        ...     TrainingArguments(tempfile.mkdtemp(), max_steps=2, report_to=[], disable_tqdm=True, use_cpu=True),
        ...     teacher=teacher,
        ...     loss=DistillationLoss(kind="js:0.5"),
        ...     train_dataset=[{"input_ids": tokens, "labels": tokens}] * 8,
        ... )
        >>> trainer.train().global_step
        {...}
        2

    References:
        Distilling the Knowledge in a Neural Network (Hinton, Vinyals and Dean, 2015)
    """

    def __init__(
        self,
        *args: Any,
        teacher: torch.nn.Module | None = None,
        loss: DistillationLoss | LinearDistillationLoss | None = None,
        causal: bool | None = None,
        **kwargs: Any,
    ) -> None:
        self.batch_loss = BatchLoss(
            "DistillationTrainer", DistillationLoss() if loss is None else loss, teacher, causal=causal
        )
        super().__init__(*args, **kwargs)
        for name, value in (
            ("compute_loss_func", self.compute_loss_func),
            ("label_smoothing_factor", self.args.label_smoothing_factor),
        ):
            if value:
                wanted, got = "none, because loss= is the loss", safe_repr(value)
                instead = "loss=kullback.nn.DistillationLoss(), or transformers.Trainer"
                raise invalid_value("DistillationTrainer", name, wanted=wanted, got=got, instead=instead)
        # With this setting, the Trainer counts the labels of a step in the same way as the loss.
        self._loss_shifts_labels = self.batch_loss.is_causal(self.model)
        # Otherwise the Trainer counts no labels for models whose own loss takes no count, such as Gemma 3 with images.
        self.model_accepts_loss_kwargs = True
        self.batch_loss.freeze_teacher(self.model)
        if teacher is not None:
            placement = False if is_dispatched(teacher) else None  # None lets accelerate decide
            self.batch_loss.teacher = self.accelerator.prepare_model(teacher, placement, evaluation_mode=True)

    def compute_loss(
        self,
        model: torch.nn.Module,
        inputs: Features,
        return_outputs: bool = False,
        num_items_in_batch: Any = None,
    ) -> Any:
        """Return the loss of a batch and, if `return_outputs`, the model's outputs."""
        loss, outputs = loss_of_batch(self, model, inputs, num_items_in_batch, keep_logits=return_outputs)
        loss = loss * scale_of_processes(self, num_items_in_batch)
        return (loss, outputs) if return_outputs else loss

    def _set_signature_columns_if_needed(self) -> None:
        super()._set_signature_columns_if_needed()
        self._signature_columns = [*dict.fromkeys([*self._signature_columns, *STORED])]


def loss_of_batch(
    trainer: Any, model: torch.nn.Module, inputs: Features, normalizer: Any, *, keep_logits: bool
) -> tuple[Tensor, Any]:
    """Return a trainer's `batch_loss` of a batch, and the student's outputs."""
    unwrapped = trainer.accelerator.unwrap_model(model)
    with trainer.accelerator.autocast():  # for the fused heads; the models' forward passes already use it
        return trainer.batch_loss(
            model, inputs, normalizer=normalizer, unwrapped=unwrapped, keep_logits=keep_logits
        )


def scale_of_processes(trainer: Any, num_items_in_batch: Any) -> int:
    """Return the factor that undoes the average over processes of a loss divided by all processes' tokens."""
    if trainer.args.n_gpu > 1:
        raise invalid_value(
            type(trainer).__name__,
            "args",
            wanted="one process for each GPU, because torch.nn.DataParallel hides the tokens of each GPU's batch",
            got=f"{trainer.args.n_gpu} GPUs in one process",
            instead="accelerate launch, or torchrun --nproc-per-node N",
        )
    if num_items_in_batch is None or not trainer.args.average_tokens_across_devices:
        return 1
    return trainer.accelerator.num_processes // trainer.get_tp_size()
