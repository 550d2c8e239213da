"""The integrands of KL: p log(p / q), and the non-negative p log(p / q) - p + q that has the same sum."""

from __future__ import annotations

import torch
from torch import Tensor

from kullback.generators.base import NEAR, power_series

__all__ = ["kl_terms"]

# e^-d - 1 + d = d^2 (1/2 - d/6 + d^2/24 - ...)
_SERIES = [
    (-1) ** k / torch.exp(torch.lgamma(torch.tensor(k + 3.0, dtype=torch.float64, device="cpu"))).item()
    for k in range(13)
]


def kl_terms(log_p: Tensor, log_q: Tensor, with_q: bool) -> Tensor:
    """Return p log(p / q) from log p and log q, 0 where P has no mass; add - p + q if `with_q` is true."""
    p = torch.exp(log_p)
    empty = p == 0
    d = torch.where(empty, 0, log_p) - log_q
    d = torch.where(empty, 0, d)
    if not with_q:
        return p * d
    near = (d.abs() < NEAR) & ~empty
    far = torch.exp(log_q) - p + p * d
    return torch.where(near, p * power_series(_SERIES, torch.where(near, d, 0)), far)
