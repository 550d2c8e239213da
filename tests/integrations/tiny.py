"""Tiny random language models and batches for the trainers; every draw is seeded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

CLASSES = 48
SHAPE = {
    "vocab_size": CLASSES,
    "hidden_size": 16,
    "intermediate_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}


def language_models(name: str = "Llama", **settings: Any) -> tuple[Any, Any]:
    """A student and a teacher that is surer of what comes next."""
    import transformers

    torch.manual_seed(0)
    config = getattr(transformers, f"{name}Config")
    make = getattr(transformers, f"{name}ForCausalLM")
    student, teacher = (make(config(**{**SHAPE, **settings})) for _ in range(2))
    with torch.no_grad():
        for parameter in teacher.parameters():
            parameter.mul_(3)
    return student, teacher


def examples(n: int = 32, tokens: int = 10) -> list[dict[str, Tensor]]:
    """Rows of tokens; how many of their labels count differs from row to row."""
    generator = torch.Generator().manual_seed(1)
    rows = torch.randint(3, CLASSES, (n, tokens), generator=generator)
    begins = torch.randint(0, tokens - 2, (n, 1), generator=generator)
    labels = torch.where(torch.arange(tokens) < begins, -100, rows)
    return [
        {"input_ids": x, "attention_mask": torch.ones_like(x), "labels": y}
        for x, y in zip(rows, labels, strict=True)
    ]


def batch_of(rows: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    return {name: torch.stack([row[name] for row in rows]) for name in rows[0]}


def arguments(folder: Path, kind: Any = None, **settings: Any) -> Any:
    """Settings that write nothing, ask nobody, and train for a dozen steps."""
    import transformers

    base = {
        "output_dir": str(folder),
        "max_steps": 12,
        "learning_rate": 3e-2,
        "logging_steps": 3,
        "per_device_train_batch_size": 4,
        "report_to": [],
        "disable_tqdm": True,
        "use_cpu": True,
        "save_strategy": "no",
        "seed": 0,
    }
    return (kind or transformers.TrainingArguments)(**{**base, **settings})


def losses(trainer: Any) -> list[float]:
    """What the trainer logged."""
    return [float(entry["loss"]) for entry in trainer.state.log_history if "loss" in entry]


def kl_by_hand(p: Tensor, q: Tensor, labels: Tensor) -> tuple[Tensor, int]:
    """The sum of KL(P || Q) over tokens whose next label counts, in float64, and their number."""
    log_p, log_q = (x[:, :-1].double().log_softmax(-1) for x in (p, q))
    counted = labels[:, 1:] != -100
    return (log_p.exp() * (log_p - log_q)).sum(-1)[counted].sum(), int(counted.sum())
