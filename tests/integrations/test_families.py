"""Families of language models: the adapters' losses and gradients are the formula's and TRL's, up to 1e-5."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from kullback.nn import DistillationLoss, LinearDistillationLoss
from tests.integrations.tiny import arguments, batch_of, examples, kl_by_hand, language_models

pytest.importorskip("transformers")
pytest.importorskip("lightning")
pytest.importorskip("peft")
pytest.importorskip("trl")
from kullback.integrations.huggingface import DistillationTrainer
from kullback.integrations.lightning import DistillationModule
from kullback.losses.head_configuration import head_configuration
from tests.integrations import test_trl_distillation as of_trl

pytestmark = [pytest.mark.heavy, pytest.mark.filterwarnings("ignore")]  # of the trainers' own

# fmt: off
FAMILIES = [
    "Arcee", "BioGpt", "Bloom", "Cohere", "Cohere2", "Ernie4_5", "Exaone4", "Falcon", "GPTBigCode", "GPTNeoX",
    "Gemma", "Gemma2", "Glm", "Granite", "GraniteMoe", "Llama", "Mamba", "Mistral", "Mixtral", "Mpt",
    "Nemotron", "OPT", "Olmo", "Olmo2", "Olmo3", "Persimmon", "Phi", "Phi3", "Qwen2", "Qwen2Moe", "Qwen3",
    "SmolLM3", "StableLm", "Starcoder2", "XGLM",
]
# fmt: on


def models(name: str) -> tuple[Any, Any]:
    return tuple(model.eval() for model in language_models(name))  # type: ignore[return-value] # without dropout


def gradients(loss: Tensor, model: Any) -> list[Tensor | None]:
    return list(torch.autograd.grad(loss, list(model.parameters()), allow_unused=True))


def assert_near(found: Sequence[Tensor | None], wanted: Sequence[Tensor | None]) -> None:
    size = max(float(x.abs().max()) for x in wanted if x is not None)
    for pair in zip(found, wanted, strict=True):
        mine, want = (torch.zeros(()) if x is None else x for x in pair)
        torch.testing.assert_close(*torch.broadcast_tensors(mine, want), rtol=1e-5, atol=1e-5 * size)


@pytest.mark.parametrize("name", FAMILIES)
def test_losses_and_gradients_are_the_formulas(tmp_path: Path, name: str) -> None:
    batch = batch_of(examples(4))
    student, teacher = models(name)
    inputs = {x: batch[x] for x in ("input_ids", "attention_mask")}
    total, count = kl_by_hand(*(m(**inputs).logits for m in (teacher, student)), batch["labels"])
    want = gradients(total / count, student)
    cap, scale = head_configuration(student.config)
    for loss in (DistillationLoss(), LinearDistillationLoss(softcap=cap, logit_scale=scale)):
        trainer = DistillationTrainer(student, arguments(tmp_path), teacher=teacher, loss=loss)
        module = DistillationModule(student, teacher, loss, causal=True)
        for value in (trainer.compute_loss(student, dict(batch)), module.training_step(dict(batch), 0)):
            torch.testing.assert_close(value.double(), total / count, rtol=1e-5, atol=0)
            assert_near(gradients(value, student), want)


@pytest.mark.parametrize("bf16", [False, True])
@pytest.mark.parametrize("name", FAMILIES)
def test_losses_and_gradients_are_trls(tmp_path: Path, name: str, bf16: bool) -> None:
    values, found = of_trl.of_both(tmp_path, of_trl.left_padding(), model=name, beta=0.5, bf16=bf16)
    torch.testing.assert_close(values[1], values[0], rtol=1e-5, atol=1e-7)
    assert_near(found[1], found[0])
