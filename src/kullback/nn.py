"""Losses as modules: the drop-in for `torch.nn.KLDivLoss`."""

from __future__ import annotations

import torch
from torch import Tensor

from kullback.functional import kl_div

__all__ = ["KLDivLoss"]


class KLDivLoss(torch.nn.KLDivLoss):
    r"""KL(target || input) as a module: a drop-in for `torch.nn.KLDivLoss`, and a subclass of it.

    :math:`\mathrm{KL}(P \,\|\, Q) = \sum_i p_i (\log p_i - \log q_i)`, with :math:`P` the target and
    :math:`\log Q` the input. `kullback.functional.kl_div` does the work and says how the reductions scale:
    ``"batchmean"`` is the mean divergence of the rows, the default ``"mean"`` divides by the classes too.

    Arguments:
        size_average: Deprecated; sets `reduction`, with a warning.
        reduce: Deprecated likewise.
        reduction: ``"none"``, ``"sum"``, ``"mean"`` or ``"batchmean"``; read at each call.
        log_target: Whether the target holds log-probabilities.

    Returns:
        Called with ``(input, target)``, what `kl_div` returns: the terms, or a scalar.

    Raises:
        KullbackError: At the call, as `kl_div` does.

    Gradient:
        That of `kl_div`: 0, never NaN, at a class without mass in the target.

    Example:
        >>> loss = KLDivLoss(reduction="batchmean")
        >>> loss(torch.tensor([[0.5, 0.5, 0.0]]).log(), torch.tensor([[1.0, 0.0, 0.0]]))
        tensor(0.6931)

    References:
        On Information and Sufficiency (Kullback and Leibler, 1951).
    """

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        """Compute the loss of log-probabilities `input` against `target`."""
        return kl_div(input, target, reduction=self.reduction, log_target=self.log_target)
