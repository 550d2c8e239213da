"""How many functions of kullback serve one loss and its gradient, and how they name the tensors of a head."""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import kullback
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


def test_no_tensor_of_a_head_is_found_by_counting() -> None:
    """The tensors of a head have names: no step of a slice, no remainder and no repeated tuple tells them apart."""
    losses = Path(kullback.__file__).parent / "losses"
    counted = []
    for name in ("distillation.py", "head.py", "head_tensors.py"):
        for node in ast.walk(ast.parse((losses / name).read_text(encoding="utf-8"))):
            is_step = isinstance(node, ast.Slice) and node.step is not None
            is_remainder = isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mod)
            is_repeated = (
                isinstance(node, ast.BinOp)
                and isinstance(node.op, ast.Mult)
                and isinstance(node.left, ast.Tuple)
            )
            is_repeated = is_repeated and len(node.left.elts) > 1  # pyright: ignore[reportAttributeAccessIssue]
            if is_step or is_remainder or is_repeated:
                counted.append(f"{name}:{node.lineno}")
    assert counted == []
