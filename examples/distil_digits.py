"""Distil a convolutional classifier of handwritten digits into a tiny perceptron, and compare with training on labels.

scikit-learn's digits are 1797 images of 8 by 8 pixels; each seed chooses 500 of them for testing. The student is
trained on n images in four ways, each with the same initial weights and number of steps. Ways with the same images
also have the same batches:

    hard labels                  cross-entropy with the n labels
    teacher of all labels        distilled on the same n images, from a teacher that saw all 1297 labels
    teacher of the same labels   distilled on the same n images, from a teacher that saw these n labels alone
    ... on all images            the same teacher, on all 1297 images; n of them have labels

The second student gets the information of more than n labels, through its teacher. The third gets no more than the
first, and the fourth also gets unlabeled images. No setting was tuned: one temperature, one learning rate. Run it with
`python examples/distil_digits.py`; it takes a few minutes.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import torch
from distil_report import BASELINE, Mean, outcomes, parameters, write
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional as F

from kullback.nn import DistillationLoss

HELD_OUT = 500
BATCH = 64
TEMPERATURE = 4.0
ALL_LABELS, SAME_LABELS, MORE_IMAGES = (
    "teacher of all labels",
    "teacher of the same labels",
    "the same teacher, on all images",
)
WAYS = {
    BASELINE: "n labels",
    ALL_LABELS: "n images, and a teacher that saw all labels",
    SAME_LABELS: "n images, and a teacher that saw their n labels",
    MORE_IMAGES: "all images, and a teacher that saw n labels",
}


def new_teacher() -> nn.Module:
    return nn.Sequential(
        nn.Unflatten(1, (1, 8, 8)),
        nn.Conv2d(1, 16, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Dropout(0.25),
        nn.Linear(512, 10),
    )


def new_student() -> nn.Module:
    return nn.Sequential(nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 10))


def train(new: Callable[[], nn.Module], images: Tensor, targets: Tensor, steps: int, seed: int) -> nn.Module:
    """Train on labels (N,) with cross-entropy, or on a teacher's logits (N, 10) with KL(teacher || student)."""
    torch.manual_seed(seed)
    model = new().train()
    distil = DistillationLoss(temperature=TEMPERATURE, temperature_squared=True)
    generator = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for _ in range(steps):
        batch = torch.randint(len(images), (BATCH,), generator=generator)
        logits = model(images[batch])
        if targets.is_floating_point():
            loss = distil(student=logits, teacher=targets[batch])
        else:
            loss = F.cross_entropy(logits, targets[batch])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model.eval()


@torch.no_grad()
def accuracy(model: nn.Module, images: Tensor, labels: Tensor) -> float:
    """Percent of the images whose largest logit is the label's."""
    return 100 * (model(images).argmax(-1) == labels).double().mean().item()


@torch.no_grad()
def predict(model: nn.Module, images: Tensor) -> Tensor:
    return model(images)


def split(seed: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Training images (1297, 64) and labels, test images (500, 64) and labels, shuffled by the seed."""
    digits = load_digits()
    images = torch.from_numpy(digits.data).float() / 16
    labels = torch.from_numpy(digits.target)
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(seed))
    test, rest = order[:HELD_OUT], order[HELD_OUT:]
    return images[rest], labels[rest], images[test], labels[test]


def one_seed(seed: int, amounts: tuple[int, ...], steps: int) -> tuple[dict[tuple[int, str], float], float]:
    """The test accuracy of every student by (labels, way), and of the teacher of all labels."""
    images, labels, *test = split(seed)

    def teacher_of(n: int) -> nn.Module:
        return train(new_teacher, images[:n], labels[:n], steps // 2, seed)

    def student_of(targets: Tensor, n: int) -> float:
        return accuracy(train(new_student, images[:n], targets[:n], steps, seed), *test)

    best = teacher_of(len(images))
    best_logits = predict(best, images)
    reached = {}
    for n in amounts:
        logits = predict(teacher_of(n), images)
        reached[n, BASELINE] = student_of(labels, n)
        reached[n, ALL_LABELS] = student_of(best_logits, n)
        reached[n, SAME_LABELS] = student_of(logits, n)
        reached[n, MORE_IMAGES] = student_of(logits, len(images))
    return reached, accuracy(best, *test)


def main() -> None:
    parser = argparse.ArgumentParser(description="Distil a classifier of digits into a tiny one.")
    parser.add_argument("--quick", action="store_true", help="a few steps, to see that it runs")
    parser.add_argument(
        "--out", type=Path, default=Path(__file__).parent / "results", help="folder to write to"
    )
    arguments = parser.parse_args()
    seeds, steps = (2, 40) if arguments.quick else (8, 600)
    amounts = (50, 300) if arguments.quick else (50, 100, 300, 1000)

    torch.set_num_threads(1)  # models as small as these lose time on more
    started = time.perf_counter()
    values: dict[tuple[int, str], list[float]] = {}
    teachers = []
    for seed in range(seeds):
        reached, teacher = one_seed(seed, amounts, steps)
        teachers.append(teacher)
        for key, value in reached.items():
            values.setdefault(key, []).append(value)
        print(f"seed {seed}: teacher {teacher:.1f} %, {time.perf_counter() - started:.0f} s", flush=True)
    about = {
        "measure": "test accuracy, percent (higher is better)",
        "unit": "labels",
        "seeds": seeds,
        "ways": WAYS,
        "settings": {
            "steps": steps,
            "images": BATCH,
            "temperature": TEMPERATURE,
            "temperature_squared": True,
        },
        "parameters": {"teacher": parameters(new_teacher()), "student": parameters(new_student())},
        "teacher": asdict(Mean.of(teachers)),
    }
    write(arguments.out, "digits", about, outcomes(values))


if __name__ == "__main__":
    main()
