"""Divergences from a teacher that scored given classes, such as the student's most probable classes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from kullback.common.extra_arguments import by_name
from kullback.generators import Divergence
from kullback.losses.top_k import TopK, TopKRows


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


@dataclass(frozen=True, eq=False)
class ScoredRows(TopKRows):
    """The rows of a `Scored`."""

    def log_rest(self, kept: Tensor, error: Tensor, is_known: Tensor, logits: Tensor) -> Tensor:
        log_q = (logits[:, -1:] - logits.logsumexp(-1, keepdim=True)).detach()
        return torch.where(
            is_known, torch.log1p(-torch.where(is_known, kept, 0)), torch.minimum(log_q, error.log())
        )
