"""How many functions of kullback serve one loss and its gradient, and how they name the tensors of a head."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import kullback

# A process of its own counts: earlier tests change which values kullback and torch remember.
COUNTS = """
import sys
import torch
from kullback.functional import TopK, distillation_loss, linear_distillation_loss

teacher = torch.linspace(-1, 2, 400).view(8, 50).sin()
student = teacher.flip(0).requires_grad_()
log_probs, indices = teacher.log_softmax(-1).topk(5)
hidden, head = (torch.linspace(-1, 1, n * 6).view(n, 6).requires_grad_() for n in (8, 50))

def of_logits():
    distillation_loss(student=student, teacher=teacher).backward()

def of_a_head():
    teacher = TopK(indices, log_probs)
    linear_distillation_loss(student=hidden, student_weight=head, teacher=teacher).backward()

for compute in (of_logits, of_a_head):
    compute()  # the first call loads and remembers what the next one needs
    files = []
    def profile(frame, event, _):
        if event == "call" and "/kullback/" in frame.f_code.co_filename.replace("\\\\", "/"):
            files.append(frame.f_code.co_filename)
    sys.setprofile(profile)
    compute()
    sys.setprofile(None)
    print(len(files), 1 + sum(one != other for one, other in zip(files, files[1:])))
"""


@pytest.mark.sweep
def test_few_calls_serve_a_loss_of_logits_and_one_of_hidden_states() -> None:
    done = subprocess.run([sys.executable, "-c", COUNTS], capture_output=True, text=True, check=True)
    of_logits, _, of_a_head, moves_of_a_head = map(int, done.stdout.split())
    assert 0 < of_logits <= 28
    assert 0 < of_a_head <= 110
    assert 0 < moves_of_a_head <= 60  # from one file to another


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
