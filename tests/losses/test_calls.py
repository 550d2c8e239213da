"""How many functions of kullback serve one loss and its gradient: a measure of orchestration."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch

from kullback.functional import TopK, distillation_loss, linear_distillation_loss


def calls_of(compute: Callable[[], Any]) -> int:
    """Count the calls inside kullback, after a first call has loaded and remembered what it needs."""
    compute()
    count = 0

    def profile(frame: Any, event: str, _: Any) -> None:
        nonlocal count
        count += event == "call" and "/kullback/" in frame.f_code.co_filename.replace("\\", "/")

    before = sys.getprofile()
    sys.setprofile(profile)
    try:
        compute()
    finally:
        sys.setprofile(before)
    return count


def test_few_calls_serve_a_loss_of_logits_and_one_of_hidden_states() -> None:
    teacher = torch.linspace(-1, 2, 400).view(8, 50).sin()
    student = teacher.flip(0).requires_grad_()
    assert 0 < calls_of(lambda: distillation_loss(student=student, teacher=teacher).backward()) <= 28
    log_probs, indices = teacher.log_softmax(-1).topk(5)
    hidden, head = (torch.linspace(-1, 1, n * 6).view(n, 6).requires_grad_() for n in (8, 50))

    def linear() -> None:
        stored = TopK(indices, log_probs)
        linear_distillation_loss(student=hidden, student_weight=head, teacher=stored).backward()

    assert 0 < calls_of(linear) <= 110
