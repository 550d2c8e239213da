"""Distil the byte-level language model of this folder into a smaller one, and compare with training on the text alone.

The teacher is the transformer of train_byte_models.py. The student has a seventh of its parameters and sees
only the last eight bytes. It is trained in three ways, each with the same initial weights and the same batches:

    hard labels      cross-entropy with the true next byte
    distilled        KL(teacher || student) at temperature 1, without the true bytes
    half and half    the mean of both losses

on a short part of the text and on all of it. The teacher has always read all of it. So it has extra information on the
short part, and none on the whole text. The measure is the cross-entropy of a test text. Run it with `python
examples/distil_byte_model.py`; it takes some minutes.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import torch
from distil_report import BASELINE, outcomes, parameters, write
from torch import Tensor, nn
from torch.nn import functional as F
from train_byte_models import CLASSES, CONTEXT, ByteModel, split_text, train

from kullback.functional import distillation_loss

BATCH = 16  # windows
SHORT = 160  # windows, of 128 bytes each
WAYS = {
    BASELINE: "the text",
    "distilled": "the teacher's predictions for the text",
    "half and half": "the text, and the teacher's predictions for it",
}


class SmallByteModel(nn.Module):
    """Bytes of shape (B, T) to next-byte logits of shape (B, T, 256), each from the last eight bytes."""

    SEEN, EMBEDDING, HIDDEN = 8, 24, 128

    def __init__(self) -> None:
        super().__init__()
        self.byte = nn.Embedding(CLASSES, self.EMBEDDING)
        self.mix = nn.Linear(self.EMBEDDING * self.SEEN, self.HIDDEN)
        self.head = nn.Linear(self.HIDDEN, CLASSES)

    def forward(self, text: Tensor) -> Tensor:
        x = F.pad(self.byte(text), (0, 0, self.SEEN - 1, 0)).unfold(1, self.SEEN, 1)
        return self.head(F.gelu(self.mix(x.flatten(2))))


def loss(way: str, student: Tensor, teacher: Tensor, following: Tensor) -> Tensor:
    """The loss of logits (N, 256) in one of the three ways."""
    if way == BASELINE:
        return F.cross_entropy(student, following)
    divergence = distillation_loss(student=student, teacher=teacher)
    if way == "distilled":
        return divergence
    return (F.cross_entropy(student, following) + divergence) / 2


def train_student(way: str, windows: Tensor, teacher: Tensor, steps: int, seed: int) -> SmallByteModel:
    """Train on windows (W, 129) of bytes and the teacher's logits (W, 128, 256) for them."""
    torch.manual_seed(seed)
    student = SmallByteModel()
    optimizer = torch.optim.AdamW(student.parameters(), lr=4e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    generator = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        batch = torch.randint(len(windows), (BATCH,), generator=generator)
        text = windows[batch]
        logits = student(text[:, :-1]).flatten(0, 1)
        optimizer.zero_grad()
        loss(way, logits, teacher[batch].flatten(0, 1), text[:, 1:].flatten()).backward()
        optimizer.step()
        schedule.step()
    return student


def in_windows(text: Tensor) -> Tensor:
    """Consecutive windows of CONTEXT bytes, each with the byte that follows: shape (windows, CONTEXT + 1)."""
    return text.unfold(0, CONTEXT + 1, CONTEXT)


@torch.no_grad()
def predict(model: nn.Module, windows: Tensor) -> Tensor:
    """Logits (windows, CONTEXT, 256), stored as float16."""
    return torch.cat([model(part[:, :-1]).half() for part in windows.split(BATCH)])


@torch.no_grad()
def cross_entropy(model: nn.Module, windows: Tensor) -> float:
    return F.cross_entropy(model(windows[:, :-1]).flatten(0, 1), windows[:, 1:].flatten()).item()


def main() -> None:
    parser = argparse.ArgumentParser(description="Distil a byte-level language model into a smaller one.")
    parser.add_argument("--quick", action="store_true", help="a few steps, to see that it runs")
    parser.add_argument(
        "--out", type=Path, default=Path(__file__).parent / "results", help="folder to write to"
    )
    arguments = parser.parse_args()
    seeds, teacher_steps, steps = (2, 40, 5) if arguments.quick else (3, 1200, 400)

    started = time.perf_counter()
    text, held_out = split_text()
    torch.manual_seed(0)
    teacher = ByteModel()
    train(teacher, text, teacher_steps, torch.Generator().manual_seed(0))
    teacher.eval()
    windows, unseen = in_windows(text), in_windows(held_out)
    if arguments.quick:
        windows, unseen = windows[: 2 * SHORT], unseen[:BATCH]
    predictions = predict(teacher, windows)
    values: dict[tuple[int, str], list[float]] = {}
    for amount in (SHORT, len(windows)):
        for way in WAYS:
            for seed in range(seeds):
                student = train_student(way, windows[:amount], predictions[:amount], steps, seed)
                values.setdefault((amount * CONTEXT, way), []).append(cross_entropy(student, unseen))
            print(f"{amount * CONTEXT:,} bytes, {way}: {time.perf_counter() - started:.0f} s", flush=True)
    about = {
        "measure": "test cross-entropy, nats per byte (lower is better)",
        "unit": "bytes of text",
        "seeds": seeds,
        "ways": WAYS,
        "settings": {"teacher_steps": teacher_steps, "steps": steps, "windows": BATCH, "temperature": 1.0},
        "parameters": {"teacher": parameters(teacher), "student": parameters(SmallByteModel())},
        "teacher": cross_entropy(teacher, unseen),
    }
    write(arguments.out, "byte_model", about, outcomes(values))


if __name__ == "__main__":
    main()
