"""Distillation losses for verl, from the teacher's most probable tokens."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from kullback.common.constraints import FLAG, Arguments
from kullback.common.extra_arguments import by_name
from kullback.common.optional import load
from kullback.errors import RegistrationError, explain
from kullback.generators import KL, Divergence
from kullback.losses.settings import check_kind
from kullback.losses.top_k import Scored, Tail, TopK, top_k_divergence

__all__ = ["register", "top_k_loss"]

_KL = KL()
_ARGUMENTS = Arguments("top_k_loss", scored=FLAG)


@by_name()
def top_k_loss(
    kind: Divergence | str = _KL, tail: Tail = "bucket", *, scored: bool = False
) -> Callable[..., dict[str, Tensor]]:
    r"""Make the function that verl calls on the student's logits, for any divergence.

    .. math:: \ell_n = D(P_n \| Q_n)

    The function computes this loss at every position, like `top_k_divergence`. The function replaces
    `verl.trainer.distillation.fsdp.losses.compute_forward_kl_topk`, the sum of :math:`p \log(p/q)` over the top tokens.
    If that sum is negative, verl sets the sum and its gradient to 0. The minimum of the sum is at the teacher's
    renormalized probabilities. With ``tail="bucket"``, the loss is 0 only if the student agrees with the teacher. It is
    never negative, and at most the divergence from the full teacher.

    verl's servers end each sequence with a row that predicts nothing, with the log-probability 0 for each token. The
    loss and the gradient of such a row are 0.

    Arguments:
        kind: the divergence or its name.
        tail: ``"bucket"``, ``"renormalize"`` or ``"zero"``, as in `TopK`.
        scored: whether the teacher scored tokens of another choice, such as the student's most probable tokens. The
            rows then mean a `Scored` instead of a `TopK`.

    Returns:
        a function of ``(student_logits, teacher_topk_log_probs, teacher_topk_ids, config, data_format)``: logits of
        shape (1, tokens, classes), and nested or padded tensors of the teacher's top tokens. The function returns a
        dict of tensors of shape (1, tokens). ``distillation_losses`` are the losses, and ``student_mass`` and
        ``teacher_mass`` are the probabilities of the top tokens. ``overlap_count`` and ``overlap_token_advantage`` are
        for the tokens that are also among the student's top tokens.

    Raises:
        KullbackError: `kind` or `tail` is unknown; at the call, shapes differ.

    Gradient: the gradient of `top_k_divergence`, to the student.

    Example:
        >>> import torch
        >>> from kullback.integrations.verl import top_k_loss
        >>> log_probs, ids = torch.tensor([[[2.0, 0.0, 1.0, -1.0]]]).log_softmax(-1).topk(2)
        >>> results = top_k_loss("js:0.5")(torch.zeros(1, 1, 4), log_probs, ids, None, "thd")
        >>> {name: x.item() for name, x in results.items() if name in ("distillation_losses", "overlap_count")}
        {'distillation_losses': 0.1079..., 'overlap_count': 1}

    References:
        On-Policy Distillation of Language Models: Learning from Self-Generated Mistakes (Agarwal and others, 2024)
    """
    kind = check_kind("top_k_loss", kind)
    _ARGUMENTS.check(scored=scored)
    teacher = Scored if scored else TopK
    teacher(
        torch.zeros(0, 1, dtype=torch.long, device="cpu"), torch.zeros(0, 1, device="cpu"), tail=tail
    )  # checks `tail`

    def compute(
        student_logits: Tensor,
        teacher_topk_log_probs: Tensor,
        teacher_topk_ids: Tensor,
        config: Any,
        data_format: str,
    ) -> dict[str, Tensor]:
        log_probs, ids = (_of_ranks(x, student_logits) for x in (teacher_topk_log_probs, teacher_topk_ids))
        masses = _masses(student_logits.detach(), log_probs.detach(), ids.long())
        # A row that gives the probability 1 to several tokens predicts nothing.
        is_empty = (log_probs == 0).all(-1) & (log_probs.shape[-1] > 1)
        rows = teacher(*_without_empty(is_empty, ids.long(), log_probs), tail=tail)
        losses = top_k_divergence(kind, rows, student_logits)
        return {"distillation_losses": torch.where(is_empty, 0, losses), **masses}

    return compute


def _without_empty(is_empty: Tensor, ids: Tensor, log_probs: Tensor) -> tuple[Tensor, Tensor]:
    """Return the rows, with equal probabilities in place of empty rows."""
    k, empty = ids.shape[-1], is_empty.unsqueeze(-1)
    places = torch.arange(k, device=ids.device)
    return torch.where(empty, places, ids), torch.where(empty, -math.log(k), log_probs)


def _of_ranks(x: Tensor, logits: Tensor) -> Tensor:
    """Return the rows of `x` that belong to `logits`: flattened if nested, and only this rank's rows."""
    x = x.values().unsqueeze(0) if x.is_nested else x
    if x.shape[1] != logits.shape[1]:  # with sequence parallelism, verl slices the rows
        x = load("verl.utils.ulysses", "kullback.integrations.verl").slice_input_tensor(x, dim=1)
    return x


def _masses(logits: Tensor, log_probs: Tensor, ids: Tensor) -> dict[str, Tensor]:
    """Return the metrics that verl logs with the loss."""
    student = logits.gather(-1, ids).float() - logits.float().logsumexp(-1, keepdim=True)
    top = logits.topk(ids.shape[-1], -1).indices
    shared = (ids.unsqueeze(-1) == top.unsqueeze(-2)).any(-1)
    count = shared.sum(-1)
    terms = torch.where(shared & (log_probs > -torch.inf), log_probs.exp() * (student - log_probs), 0)
    return {
        "student_mass": student.exp().sum(-1),
        "teacher_mass": log_probs.exp().sum(-1),
        "overlap_count": count,
        "overlap_token_advantage": terms.sum(-1) / count.clamp(min=1),
    }


@by_name()
def register(name: str, kind: Divergence | str = _KL, *, tail: Tail = "bucket", scored: bool = False) -> None:
    """Register a distillation loss with verl, to be chosen as ``distillation.distillation_loss.loss_mode=NAME``.

    verl combines the losses of tokens by the registered loss, but verl always calls its own `compute_forward_kl_topk`
    on the logits. `register` registers the loss, and replaces `compute_forward_kl_topk` for this name only, with the
    FSDP strategies. Call `register` in the workers, for example from the module that verl's ``external_lib`` names.

    Arguments:
        name: the name.
        kind: the divergence or its name.
        tail: ``"bucket"``, ``"renormalize"`` or ``"zero"``, as in `TopK`.
        scored: whether the teacher scored tokens of another choice, as in `top_k_loss`.

    Raises:
        OptionalDependencyError: verl is not installed.
        RegistrationError: verl has a loss of that name.
        KullbackError: `kind` or `tail` is unknown.

    Example:
        >>> from kullback.integrations.verl import register
        >>> register("kullback_js", kind="js:0.5")  # doctest: +SKIP

    References:
        On-Policy Distillation of Language Models: Learning from Self-Generated Mistakes (Agarwal and others, 2024)
    """
    mine = top_k_loss(kind, tail, scored=scored)
    losses = load("verl.trainer.distillation.losses", "kullback.integrations.verl")
    on_logits = load("verl.trainer.distillation.fsdp.losses", "kullback.integrations.verl")
    if name in losses.DISTILLATION_LOSS_REGISTRY:
        taken = ", ".join(losses.DISTILLATION_LOSS_REGISTRY)
        wanted, instead = f"a name that is none of {taken}", f"name='kullback_{name}'"
        raise RegistrationError(explain("register", "name", wanted=wanted, got=repr(name), instead=instead))
    theirs, of_tokens = on_logits.compute_forward_kl_topk, losses.compute_forward_kl_topk

    def compute_on_logits(*args: Any, **kwargs: Any) -> Any:
        config = kwargs["config"] if "config" in kwargs else args[3]
        return (mine if config.distillation_loss.loss_mode == name else theirs)(*args, **kwargs)

    settings = losses.DistillationLossSettings(names=[name], use_topk=True)
    losses.register_distillation_loss(settings)(of_tokens)
    on_logits.compute_forward_kl_topk = compute_on_logits
