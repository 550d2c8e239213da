"""A loss for torchtune's knowledge distillation recipes, named in their configuration files."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

import torch
from torch import Tensor

from kullback.errors import invalid_value
from kullback.generators import KL, Divergence
from kullback.losses.positions import warn_if_nothing_counts
from kullback.nn import DistillationLoss

__all__ = ["ChunkedDistillationLoss"]

_KL = KL()


class ChunkedDistillationLoss(torch.nn.Module):
    r"""Any divergence as the `kd_loss` of torchtune's recipes, which call it with lists of chunks of logits.

    .. math:: L = \frac1N \sum_n D(P_n \| Q_n), \quad P \text{ the teacher},\; Q \text{ the student}

    The class replaces `torchtune.modules.loss.ForwardKLWithChunkedOutputLoss` (``kind="kl"``),
    `ReverseKLWithChunkedOutputLoss` (``"reverse_kl"``) and `SymmetricKLWithChunkedOutputLoss`. For the first two, the
    gradients are equal. torchtune's forward KL is a cross-entropy: it exceeds KL by the entropy of the teacher, so a
    perfect student does not reach 0. The values of this class are divergences. A batch without a token that counts
    gives 0 with a gradient of 0; torchtune's loss of such a batch has no gradient.

    Arguments:
        num_output_chunks: the number of chunks, as in the recipe's `loss`.
        ignore_index: the label of positions that do not count.
        kind: the divergence D, or its name such as ``"js:0.5"`` (`kullback.generators.parse`).
        temperature: T, which divides the logits of student and teacher.
        temperature_squared: whether to multiply D by T squared. The size of the gradient then depends little on T.

    Returns:
        a scalar, when called with student logits, teacher logits (tensors or lists of chunks along the second
        dimension) and labels of shape (batch, tokens).

    Raises:
        KullbackError: a setting is invalid; at the call, the numbers of chunks or the shapes differ.

    Gradient:
        the gradient of `kullback.functional.distillation_loss`.

    Example:
        >>> import torch
        >>> from kullback.integrations.torchtune import ChunkedDistillationLoss
        >>> loss = ChunkedDistillationLoss(num_output_chunks=2, kind="reverse_kl")
        >>> student, teacher = torch.zeros(1, 4, 3), torch.eye(4)[None, :, :3]
        >>> loss(student.chunk(2, dim=1), teacher.chunk(2, dim=1), torch.tensor([[1, 2, 0, -100]]))
        tensor(0.1195)

    References:
        Distilling the Knowledge in a Neural Network (Hinton, Vinyals and Dean, 2015)
    """

    def __init__(
        self,
        num_output_chunks: int = 8,
        ignore_index: int = -100,
        kind: Divergence | str = _KL,
        temperature: float = 1.0,
        temperature_squared: bool = False,
    ) -> None:
        super().__init__()
        self.num_output_chunks, self.ignore_index = num_output_chunks, ignore_index
        self.loss = DistillationLoss(
            kind=kind,
            temperature=temperature,
            temperature_squared=temperature_squared,
            ignore_index=ignore_index,
            reduction="sum",
        )

    def forward(
        self,
        student_logits: Tensor | Sequence[Tensor],
        teacher_logits: Tensor | Sequence[Tensor],
        labels: Tensor,
    ) -> Tensor:
        """Compute the mean divergence over the tokens that count."""
        students, teachers = (
            [x] if isinstance(x, Tensor) else list(x) for x in (student_logits, teacher_logits)
        )
        sizes = [x.shape[1] for x in students] if students and students[0].ndim == 3 else [labels.shape[-1]]
        if not 0 < len(students) == len(teachers) or sum(sizes) != labels.shape[-1]:
            raise invalid_value(
                "ChunkedDistillationLoss",
                "student_logits, teacher_logits, labels",
                wanted="as many chunks of both, which together are as long as the labels",
                got=f"{len(students)} of {sum(sizes)} and {len(teachers)}, and {labels.shape[-1]} labels",
                instead="the chunks that model.set_num_output_chunks(loss.num_output_chunks) makes, of both models",
            )
        counts = labels != self.ignore_index
        call = "ChunkedDistillationLoss"
        warn_if_nothing_counts(call, {"labels": labels}, counts, self.ignore_index, stacklevel=6)
        counted = counts.sum().clamp(min=1)
        parts = zip(students, teachers, labels.split(sizes, -1), strict=True)
        with warnings.catch_warnings():  # a chunk with only prompt tokens has no position that counts
            warnings.filterwarnings("ignore", message=".*so no position counts")
            losses = [
                self.loss(student, teacher, part, normalizer=counted) for student, teacher, part in parts
            ]
        return torch.stack(losses).sum()
