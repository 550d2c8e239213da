"""Autocast rounds what enters a head; it does not round the logits that a fused head makes, nor the loss."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from kullback.nn import DistillationLoss, LinearDistillationLoss
from tests.integrations.tiny import arguments, batch_of, examples, kl_by_hand, language_models
from tests.models.tiny import make_tokenizer

pytest.importorskip("transformers")
pytest.importorskip("lightning")
pytest.importorskip("trl")
from kullback.integrations.huggingface import DistillationTrainer
from kullback.integrations.lightning import DistillationModule
from kullback.integrations.trl import GKDTrainer
from tests.integrations.test_trl import trainer_of as gkd_trainer

pytestmark = [pytest.mark.heavy, pytest.mark.filterwarnings("ignore")]  # of the trainers' own
LOSSES = [DistillationLoss, LinearDistillationLoss]


def similar_models() -> tuple[Any, Any]:
    """A student near its teacher, with logits of about 20: bfloat16 rounds these by as much as the two differ."""
    student, teacher = language_models()
    teacher.load_state_dict(student.state_dict())
    with torch.no_grad():
        for model in (student, teacher):
            model.lm_head.weight.mul_(300)
        teacher.lm_head.weight.add_(torch.randn(48, 16, generator=torch.Generator().manual_seed(3)) * 0.01)
    return student, teacher


def of_huggingface(folder: Path, student: Any, teacher: Any, loss: Any, batch: dict[str, Tensor]) -> Tensor:
    trainer = DistillationTrainer(student, arguments(folder, bf16=True), teacher=teacher, loss=loss)
    return trainer.compute_loss(trainer.accelerator.prepare_model(student), batch)


def of_gkd(folder: Path, student: Any, teacher: Any, loss: Any, batch: dict[str, Tensor]) -> Tensor:
    trainer = gkd_trainer(GKDTrainer, folder, make_tokenizer(tokens=300), loss, (student, teacher), bf16=True)
    return trainer.compute_loss(trainer.accelerator.prepare_model(student), batch)


def of_lightning(folder: Path, student: Any, teacher: Any, loss: Any, batch: dict[str, Tensor]) -> Tensor:
    with torch.autocast("cpu", torch.bfloat16):  # as Trainer(precision="bf16-mixed")
        return DistillationModule(student, teacher, loss).training_step(batch, 0)


@pytest.mark.parametrize("compute", [of_huggingface, of_gkd, of_lightning])
@pytest.mark.parametrize("make", LOSSES)
def test_neither_logits_nor_losses_are_rounded(
    tmp_path: Path, compute: Callable[..., Tensor], make: Any
) -> None:
    batch = batch_of(examples(8))
    sides = []
    for model in reversed(similar_models()):
        with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
            outputs = model(batch["input_ids"], output_hidden_states=True)
        hidden, weight = (x.bfloat16().double() for x in (outputs.hidden_states[-1], model.lm_head.weight))
        sides.append({LinearDistillationLoss: hidden @ weight.T, DistillationLoss: outputs.logits})
    values = {}
    for loss in LOSSES:
        total, count = kl_by_hand(*(side[loss] for side in sides), batch["labels"])
        values[loss] = float(total) / count
    # Logits that a model makes under autocast are rounded, and that alone changes the loss.
    assert abs(values[DistillationLoss] / values[LinearDistillationLoss] - 1) > 0.1
    found = compute(tmp_path, *similar_models(), make(kind="kl"), dict(batch))
    assert found.dtype == torch.float32
    assert found.item() == pytest.approx(values[make], rel=1e-3)


@pytest.mark.parametrize("make", LOSSES)
def test_the_loss_that_was_passed_is_not_changed(tmp_path: Path, make: Any) -> None:
    loss = make(kind="kl")
    before = dict(vars(loss))
    student, teacher = similar_models()
    DistillationTrainer(student, arguments(tmp_path), teacher=teacher, loss=loss)
    assert vars(loss) == before
