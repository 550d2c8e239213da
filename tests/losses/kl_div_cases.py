"""What the tests of the KL drop-ins share."""

from __future__ import annotations

import math

import pytest
import torch

from kullback.functional import kl_div

INF = math.inf
DOUBLE = torch.float64
DTYPES = [torch.float64, torch.float32, torch.float16, torch.bfloat16]
FORMS = pytest.mark.parametrize("log_target", [False, True], ids=["probabilities", "log-probabilities"])


def rows(*shape, dtype=DOUBLE):
    """Log-probabilities of Q and P over the last dimension."""
    return tuple(torch.randn(*shape, dtype=DOUBLE).log_softmax(-1).to(dtype) for _ in range(2))


def as_target(log_p, log_target):
    return log_p if log_target else log_p.exp()


def value_and_gradients(log_q, target, function=kl_div, **kwargs):
    leaves = [x.detach().clone().requires_grad_() for x in (log_q, target)]
    value = function(*leaves, **kwargs)
    return value.detach(), *torch.autograd.grad(value.sum(), leaves)
