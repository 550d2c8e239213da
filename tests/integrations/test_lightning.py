"""The Lightning module, trained by the real Trainer: losses, logs, checkpoints, and a teacher that stays as it is."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader

from kullback.errors import ArgumentTypeError, ArgumentValueError
from kullback.nn import DistillationLoss, LinearDistillationLoss
from tests.integrations.tiny import batch_of, examples, kl_by_hand, language_models

pytest.importorskip("lightning")
from lightning.pytorch import Trainer

from kullback.integrations.lightning import DistillationModule
from tests.refusals import refused

pytestmark = [pytest.mark.heavy, pytest.mark.filterwarnings("ignore")]  # of Lightning's own


def trainer(folder: Path, **settings: Any) -> Any:
    return Trainer(
        default_root_dir=folder,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        **({"max_epochs": 8} | settings),
    )


def loader(batches: list[Any]) -> DataLoader[Any]:
    return DataLoader(batches, batch_size=None)  # type: ignore[arg-type]


def sgd(rate: float) -> Any:
    return lambda parameters: torch.optim.SGD(parameters, lr=rate)


def classifiers() -> tuple[torch.nn.Linear, torch.nn.Linear, list[tuple[Tensor, Tensor]]]:
    torch.manual_seed(0)
    student, teacher = torch.nn.Linear(4, 3), torch.nn.Linear(4, 3)
    x = torch.randn(16, 4)
    return student, teacher, [(x[:8], torch.zeros(8)), (x[8:], torch.zeros(8))]


def test_a_classifier_learns_and_the_teacher_stays(tmp_path: Path) -> None:
    student, teacher, batches = classifiers()
    before = copy.deepcopy(teacher)
    module = DistillationModule(student, teacher, DistillationLoss(kind="js:0.5"), optimizer=sgd(0.5))
    with torch.no_grad():
        first = module.training_step(batches[0], 0)
    runner = trainer(tmp_path)
    runner.fit(module, loader(batches), loader(batches))
    assert runner.callback_metrics["val_loss"] < 0.5 * first
    assert runner.callback_metrics["train_loss"] < 0.5 * first
    assert torch.equal(teacher.weight, before.weight)
    assert sorted(module.state_dict()) == ["student.bias", "student.weight"]
    runner.save_checkpoint(tmp_path / "last.ckpt")
    loaded = DistillationModule.load_from_checkpoint(
        tmp_path / "last.ckpt", student=torch.nn.Linear(4, 3), teacher=teacher
    )
    assert torch.equal(loaded.student.weight, student.weight)
    assert torch.equal(loaded(batches[0][0]), student(batches[0][0]))
    assert runner.test(module, loader(batches), verbose=False)[0]["test_loss"] < 0.5 * first


@pytest.mark.parametrize("batch", [0, 1, 2], ids=["tensor", "tuple", "list"])
def test_the_loss_of_a_batch_is_the_formula(batch: int) -> None:
    student, teacher, batches = classifiers()
    x, y = batches[0]
    module = DistillationModule(student, teacher)
    p, q = (model(x).double().log_softmax(-1) for model in (teacher, student))
    want = (p.exp() * (p - q)).sum(-1).mean()
    torch.testing.assert_close(
        module.training_step([x, (x, y), [x, y]][batch], 0).double(), want, rtol=1e-5, atol=0
    )


@pytest.mark.parametrize("make", [DistillationLoss, LinearDistillationLoss])
def test_a_language_model(tmp_path: Path, make: Any) -> None:
    pytest.importorskip("transformers")
    student, teacher = language_models()
    batch = batch_of(examples(6))
    module = DistillationModule(student, teacher, make(), optimizer=sgd(1.0), causal=True)
    total, count = kl_by_hand(*(m(batch["input_ids"]).logits for m in (teacher, student)), batch["labels"])
    torch.testing.assert_close(module.training_step(batch, 0).double(), total / count, rtol=1e-5, atol=0)
    runner = trainer(tmp_path, max_epochs=10)
    runner.fit(module, loader([batch]))
    assert runner.callback_metrics["train_loss"] < 0.9 * total / count


@pytest.mark.parametrize("make", [DistillationLoss, LinearDistillationLoss])
@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_the_loss_of_an_epoch_is_that_of_all_its_tokens(tmp_path: Path, make: Any, reduction: str) -> None:
    pytest.importorskip("transformers")
    student, teacher = language_models()
    rows = examples(9)
    for row in rows[:2]:
        row["labels"] = row["labels"].where(torch.arange(len(row["labels"])) > 8, -100)
    none = [row | {"labels": torch.full_like(row["labels"], -100)} for row in rows[:1]]
    batches = [batch_of(rows[:2]), batch_of(rows[2:]), batch_of(none)]
    with torch.no_grad():
        sums = [
            kl_by_hand(*(m(batch["input_ids"]).logits for m in (teacher, student)), batch["labels"])
            for batch in batches
        ]
    total, count = sum(total for total, _ in sums), sum(count for _, count in sums)
    means = [total / count for total, count in sums[:2]]
    assert abs(2 / 9 * means[0] + 7 / 9 * means[1] - total / count) > 1e-3 * total / count  # by sequences
    module = DistillationModule(student, teacher, make(reduction=reduction), causal=True)
    runner = trainer(tmp_path)
    want = float(total / count if reduction == "mean" else total)
    assert runner.validate(module, loader(batches), verbose=False)[0]["val_loss"] == pytest.approx(
        want, rel=1e-5
    )
    assert runner.test(module, loader(batches), verbose=False)[0]["test_loss"] == pytest.approx(
        want, rel=1e-5
    )


def test_the_loss_of_an_epoch_of_unequal_tensors_is_that_of_all_rows(tmp_path: Path) -> None:
    student, teacher, [(x, _), (y, _)] = classifiers()
    module = DistillationModule(student, teacher)
    p, q = (model(torch.cat([x[:3], y])).double().log_softmax(-1) for model in (teacher, student))
    want = float((p.exp() * (p - q)).sum(-1).mean())
    for batches in ([x[:3], y], [(x[:3],), (y,)], [{"input": x[:3]}, {"input": y}]):
        result = trainer(tmp_path).validate(module, loader(batches), verbose=False)
        assert result[0]["val_loss"] == pytest.approx(want, rel=1e-5)


@pytest.mark.parametrize("make", [DistillationLoss, LinearDistillationLoss])
def test_packed_rows_do_not_see_each_other(make: Any) -> None:
    transformers = pytest.importorskip("transformers")
    student, teacher = language_models()
    rows = examples(5)
    alone = [
        kl_by_hand(*(m(row["input_ids"][None]).logits for m in (teacher, student)), row["labels"][None])
        for row in rows
    ]
    want = sum(total for total, _ in alone) / sum(count for _, count in alone)
    plain = [{name: x.tolist() for name, x in row.items() if name != "attention_mask"} for row in rows]
    batch = dict(transformers.DataCollatorWithFlattening()(plain))
    module = DistillationModule(student, teacher, make(), causal=True)
    torch.testing.assert_close(module.training_step(batch, 0).double(), want, rtol=1e-5, atol=0)


@pytest.mark.parametrize(
    ("precision", "dtype"), [("64-true", torch.float64), ("bf16-true", torch.bfloat16), ("32-true", None)]
)
def test_the_teacher_has_the_precision_of_the_student(
    tmp_path: Path, precision: Any, dtype: torch.dtype | None
) -> None:
    student, teacher, batches = classifiers()
    module = DistillationModule(student, teacher, optimizer=sgd(0.5))
    runner = trainer(tmp_path, precision=precision, max_epochs=1)
    runner.fit(module, loader(batches))
    assert runner.callback_metrics["train_loss"].isfinite()
    assert student.weight.dtype == teacher.weight.dtype == (dtype or torch.float32)


def test_wrong_settings() -> None:
    with refused(ArgumentTypeError, call="DistillationModule", argument="teacher"):
        DistillationModule(torch.nn.Linear(2, 2), "teacher")  # type: ignore[arg-type]


def test_an_optimizer_is_a_function_of_the_parameters() -> None:
    student, teacher, _ = classifiers()
    remedy = r"optimizer=lambda parameters: torch\.optim\.Adam\(parameters, lr=1e-3\)"
    with refused(ArgumentTypeError, call="DistillationModule", argument="optimizer", instead=remedy):
        DistillationModule(student, teacher, optimizer=torch.optim.Adam(student.parameters()))  # type: ignore[arg-type]
    module = DistillationModule(
        student, teacher, optimizer=lambda parameters: torch.optim.Adam(parameters, lr=1e-3)
    )
    assert isinstance(module.configure_optimizers(), torch.optim.Adam)


def test_labels_come_from_a_dict_alone() -> None:
    student, teacher, batches = classifiers()
    x, y = batches[0]
    module = DistillationModule(student, teacher, DistillationLoss(label_weight=0.25))
    for batch in (x, (x, y), {"input": x}):
        with refused(
            ArgumentValueError,
            call="DistillationModule",
            argument="loss",
            instead="{'input': x, 'labels': y}",
        ):
            module.training_step(batch, 0)
    p, q = (model(x).double().log_softmax(-1) for model in (teacher, student))
    want = 0.75 * (p.exp() * (p - q)).sum(-1).mean() - 0.25 * q[:, 0].mean()
    loss = module.training_step({"input": x, "labels": y.long()}, 0).double()
    torch.testing.assert_close(loss, want, rtol=1e-5, atol=0)
