"""How others compute these losses, written from their published formulas, for comparison.

A loss of rows takes (student logits, teacher logits) and gives a scalar, the mean over rows in natural units. A loss of
heads takes (student hidden states, student weight, teacher hidden states, teacher weight).
"""

from __future__ import annotations

import functools
import importlib.util
import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

RowLoss = Callable[[Tensor, Tensor], Tensor]
HeadLoss = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]


def mean_kl(log_p: Tensor, log_q: Tensor) -> Tensor:
    return F.kl_div(log_q, log_p, reduction="batchmean", log_target=True)


def eager_kl(student: Tensor, teacher: Tensor) -> Tensor:
    return mean_kl(teacher.log_softmax(-1), student.log_softmax(-1))


def eager_reverse_kl(student: Tensor, teacher: Tensor) -> Tensor:
    return mean_kl(student.log_softmax(-1), teacher.log_softmax(-1))


def eager_js(student: Tensor, teacher: Tensor) -> Tensor:
    s, t = student.log_softmax(-1), teacher.log_softmax(-1)
    mixture = torch.logaddexp(s, t) - math.log(2)
    return (mean_kl(s, mixture) + mean_kl(t, mixture)) / 2


def in_float32(loss: RowLoss) -> RowLoss:
    """Cast to float32 first: in bfloat16, value and gradient would be wrong by some percent."""

    def upcast(student: Tensor, teacher: Tensor) -> Tensor:
        return loss(student.float(), teacher.float())

    return upcast


def compiled(loss: RowLoss) -> RowLoss:
    """torch.compile of the loss, whose compiler is imported only when the loss is first called."""
    compile_once = functools.cache(lambda: torch.compile(loss, dynamic=False))

    def on_first_call(student: Tensor, teacher: Tensor) -> Tensor:
        return compile_once()(student, teacher)

    return on_first_call


def trl(beta: float) -> RowLoss:
    """TRL's generalized Jensen-Shannon divergence: KL of the teacher at 0, of the student at 1; no upcast."""

    def loss(student: Tensor, teacher: Tensor) -> Tensor:
        s, t = student.log_softmax(-1), teacher.log_softmax(-1)
        return trl_terms(s, t, beta).sum() / student.shape[0]

    return loss


def trl_terms(s: Tensor, t: Tensor, beta: float) -> Tensor:
    if beta == 0:
        return F.kl_div(s, t, reduction="none", log_target=True)
    if beta == 1:
        return F.kl_div(t, s, reduction="none", log_target=True)
    weighted = torch.stack([s + math.log(1 - beta), t + math.log(beta)])
    mixture = torch.logsumexp(weighted, 0)
    from_teacher = F.kl_div(mixture, t, reduction="none", log_target=True)
    from_student = F.kl_div(mixture, s, reduction="none", log_target=True)
    return beta * from_teacher + (1 - beta) * from_student


def torchtune_kl(student: Tensor, teacher: Tensor) -> Tensor:
    """torchtune's forward KL is the cross-entropy: KL plus the teacher's entropy, the same gradient."""
    p = teacher.softmax(-1, dtype=torch.float32)
    log_q = student.log_softmax(-1, dtype=torch.float32)
    terms = (p * log_q).masked_fill(student.isinf(), 0)
    return -terms.sum(-1).mean()


def torchtune_reverse_kl(student: Tensor, teacher: Tensor) -> Tensor:
    q = student.softmax(-1, dtype=torch.float32)
    log_q = student.log_softmax(-1, dtype=torch.float32)
    log_p = teacher.log_softmax(-1, dtype=torch.float32)
    infinite = student.isinf() | teacher.isinf()
    terms = (q * log_p).masked_fill(infinite, 0) - (q * log_q).masked_fill(infinite, 0)
    return -terms.sum(-1).mean()


EAGER: dict[str, RowLoss] = {"KL": eager_kl, "reverse KL": eager_reverse_kl, "JS": eager_js}

ROW_LOSSES: dict[str, RowLoss] = {
    **{f"{kind}: eager": in_float32(loss) for kind, loss in EAGER.items()},
    **{f"{kind}: torch.compile": compiled(in_float32(EAGER[kind])) for kind in ("KL", "JS")},
    "KL: TRL": trl(0),
    "reverse KL: TRL": trl(1),
    "JS: TRL": trl(0.5),
    "KL: torchtune": torchtune_kl,
    "reverse KL: torchtune": torchtune_reverse_kl,
}


def speculators(kind: str) -> RowLoss:
    """The fused Triton kernels of speculators, on rows of one sequence."""

    def loss(student: Tensor, teacher: Tensor) -> Tensor:
        from speculators.losses import fused

        kernel = getattr(fused, f"fused_{kind}_loss")
        return kernel(student.unsqueeze(0), teacher.unsqueeze(0)).mean()

    return loss


def liger_kl(student: Tensor, teacher: Tensor) -> Tensor:
    """Liger's Triton kernel, which starts from log-probabilities."""
    from liger_kernel.transformers import LigerKLDIVLoss

    loss = LigerKLDIVLoss(reduction="batchmean", log_target=True)
    return loss(student.float().log_softmax(-1), teacher.float().log_softmax(-1))


def liger_jsd(beta: float) -> RowLoss:
    """Liger's Triton kernel of the generalized Jensen-Shannon divergence, also from log-probabilities."""

    def loss(student: Tensor, teacher: Tensor) -> Tensor:
        from liger_kernel.transformers import LigerJSD

        return LigerJSD(beta=beta)(student.float().log_softmax(-1), teacher.float().log_softmax(-1))

    return loss


# Kernels that need a GPU, by the package that has to be installed.
GPU_ROW_LOSSES: dict[str, dict[str, RowLoss]] = {
    "speculators": {
        "KL: speculators": speculators("kl_div"),
        "reverse KL: speculators": speculators("reverse_kl_div"),
        "JS: speculators": speculators("js_div"),
    },
    "liger_kernel": {
        "KL: Liger": liger_kl,
        "reverse KL: Liger": liger_jsd(1.0),
        "JS: Liger": liger_jsd(0.5),
    },
}


def short_formulas(kind: str) -> RowLoss:
    """The other kinds in a line or two of torch, from their definitions, as users write them."""

    def loss(student: Tensor, teacher: Tensor) -> Tensor:
        s, t = student.float().log_softmax(-1), teacher.float().log_softmax(-1)
        return SHORT_FORMULAS[kind](t, s).mean()

    return loss


# Functions of the log-probabilities of P, the teacher, and of Q.
SHORT_FORMULAS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "Jeffreys": lambda p, q: ((p.exp() - q.exp()) * (p - q)).sum(-1),
    "skew KL 0.1": lambda p, q: (p.exp() * (p - torch.log(0.1 * p.exp() + 0.9 * q.exp()))).sum(-1),
    "total variation": lambda p, q: (p.exp() - q.exp()).abs().sum(-1) / 2,
    "Hellinger": lambda p, q: 1 - ((p + q) / 2).exp().sum(-1),
    "chi-squared": lambda p, q: (2 * p - q).exp().sum(-1) - 1,
    "alpha 0.7": lambda p, q: ((0.7 * p + 0.3 * q).exp().sum(-1) - 1) / (0.7 * -0.3),
    "Renyi 0.5": lambda p, q: -2 * ((p + q) / 2).logsumexp(-1),
    "Renyi 2": lambda p, q: (2 * p - q).logsumexp(-1),
}


def materialized(h: Tensor, weight: Tensor, teacher_h: Tensor, teacher_weight: Tensor) -> Tensor:
    """KL from whole logits, in float32."""
    return in_float32(eager_kl)(h @ weight.T, teacher_h @ teacher_weight.T)


def trl_chunked(h: Tensor, weight: Tensor, teacher_h: Tensor, teacher_weight: Tensor) -> Tensor:
    """TRL's chunks of 256 rows, whose logits are computed again in the backward pass."""

    def chunk(h: Tensor, teacher_h: Tensor) -> Tensor:
        s = (h @ weight.T).float().log_softmax(-1)
        t = (teacher_h @ teacher_weight.T).float().log_softmax(-1)
        return trl_terms(s, t, 0).sum()

    total = h.new_zeros((), dtype=torch.float32)
    for pair in zip(h.split(256), teacher_h.split(256), strict=True):
        total = total + checkpoint(chunk, *pair, use_reentrant=False)
    return total / h.shape[0]


def liger_chunked(h: Tensor, weight: Tensor, teacher_h: Tensor, teacher_weight: Tensor) -> Tensor:
    """Liger's chunked loss in pure torch, uncompiled; it needs labels even if their weight is 0."""
    from liger_kernel.chunked_loss import LigerFusedLinearJSDLoss

    loss = LigerFusedLinearJSDLoss(weight_hard_loss=0.0, weight_soft_loss=1.0, beta=0.0, compiled=False)
    labels = torch.zeros(h.shape[0], dtype=torch.long, device=h.device)
    return loss(h, weight, teacher_h, teacher_weight, labels)


def trl_kernel(h: Tensor, weight: Tensor, teacher_h: Tensor, teacher_weight: Tensor) -> Tensor:
    """TRL's Triton kernels over tiles of rows and classes; KL of the teacher is its beta 0."""
    from trl.kernels.chunked_divergence import ChunkedDivergenceFunction

    rows, _ = ChunkedDivergenceFunction.apply(h, weight, None, teacher_h, teacher_weight, None, 0.0)
    return rows.mean()


def has_liger() -> bool:
    return importlib.util.find_spec("liger_kernel") is not None


HEAD_LOSSES: dict[str, HeadLoss] = {"eager, whole logits": materialized, "TRL, chunked": trl_chunked}
if has_liger():
    HEAD_LOSSES["Liger, chunked"] = liger_chunked


def products(h: Tensor, weight: Tensor, teacher_h: Tensor, teacher_weight: Tensor) -> tuple[Tensor, Tensor]:
    """Only the matrix products that every loss from heads needs: two forward and two backward, in one piece."""
    with torch.no_grad():
        logits = h @ weight.T
        teacher_h @ teacher_weight.T  # dropped at once
        return logits @ weight, logits.T @ h  # the student's logits in place of their gradient


TOP_K = 64


def materialized_top_k(h: Tensor, weight: Tensor, indices: Tensor, log_probs: Tensor) -> Tensor:
    """KL of the top classes and one class for all others, from whole logits, in float32."""
    log_q = (h @ weight.T).float().log_softmax(-1).gather(-1, indices)
    left, others = (torch.log1p(-x.exp().sum(-1, keepdim=True)) for x in (log_probs, log_q))
    return mean_kl(torch.cat([log_probs, left], -1), torch.cat([log_q, others], -1))


def student_products(h: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """The products of a head alone: one forward and two backward, in one piece."""
    with torch.no_grad():
        logits = h @ weight.T
        return logits @ weight, logits.T @ h
