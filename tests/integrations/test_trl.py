"""The adapter to TRL's GKDTrainer, beside the real one: equality where TRL is right, the right value where not."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from kullback.errors import ArgumentTypeError, ArgumentValueError
from kullback.nn import DistillationLoss, LinearDistillationLoss
from tests.integrations.tiny import arguments, batch_of, examples, kl_by_hand, language_models, losses
from tests.models.tiny import make_tokenizer

pytest.importorskip("transformers")
pytest.importorskip("trl")
from datasets import Dataset
from trl.experimental.gkd import GKDConfig, GKDTrainer as TheirTrainer

from kullback.integrations.trl import GKDTrainer, generalized_jsd_loss
from tests.refusals import refused

pytestmark = [pytest.mark.heavy, pytest.mark.filterwarnings("ignore")]  # of TRL's own
theirs = TheirTrainer.generalized_jsd_loss


def collate(rows: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    batch = batch_of(rows)
    return batch | {
        "prompts": batch["input_ids"][:, :3],
        "prompt_attention_mask": batch["attention_mask"][:, :3],
    }


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return make_tokenizer(tokens=300)


def trainer_of(
    kind: type, folder: Path, tokenizer: Any, loss: Any = None, models: Any = None, **settings: Any
) -> Any:
    student, teacher = models or language_models()
    rows = Dataset.from_list([{name: x.tolist() for name, x in row.items()} for row in examples()])
    settings = {"lmbda": 0.0, "remove_unused_columns": False, "max_new_tokens": 4} | settings
    return kind(
        model=student,
        teacher_model=teacher,
        args=arguments(folder, GKDConfig, **settings),
        data_collator=collate,
        train_dataset=rows.with_format("torch"),
        processing_class=tokenizer,
        **({} if loss is None else {"loss": loss}),
    )


def logits(dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor, Tensor]:
    torch.manual_seed(3)
    student, teacher = torch.randn(2, 4, 6, 11).mul(2).to(dtype)
    return student.requires_grad_(), teacher, torch.where(torch.rand(4, 6) < 0.3, -100, 1)


@pytest.mark.parametrize("beta", [0, 0.0, 0.1, 0.5, 0.9, 1])
@pytest.mark.parametrize("temperature", [1.0, 2.0])
@pytest.mark.parametrize("with_labels", [False, True])
@pytest.mark.parametrize(
    "reduced",
    [{}, {"reduction": "sum"}, {"reduction": "mean"}, {"num_items_in_batch": torch.tensor(31)}],
    ids=str,
)
def test_it_is_trls_loss(beta: float, temperature: float, with_labels: bool, reduced: dict[str, Any]) -> None:
    student, teacher, labels = logits()
    given = {"labels": labels if with_labels else None, "beta": beta, "temperature": temperature, **reduced}
    found = [f(student, teacher, **given) for f in (generalized_jsd_loss, theirs)]
    torch.testing.assert_close(found[0], found[1], rtol=2e-5, atol=1e-7)
    gradients = [torch.autograd.grad(x, student)[0] for x in found]
    torch.testing.assert_close(gradients[0], gradients[1], rtol=1e-4, atol=1e-7)


def test_a_masked_token_counts_nothing_where_trls_loss_is_nan() -> None:
    student, teacher, labels = logits()
    masked = [x.detach().index_fill(-1, torch.tensor(4), -math.inf) for x in (student, teacher)]
    dropped = [x.detach()[..., [0, 1, 2, 3, 5, 6, 7, 8, 9, 10]] for x in (student, teacher)]
    for beta in (0.0, 0.5, 1.0):
        assert theirs(*masked, labels, beta).isnan()
        torch.testing.assert_close(
            generalized_jsd_loss(*masked, labels, beta), theirs(*dropped, labels, beta)
        )


def test_bfloat16_logits_are_computed_in_float32() -> None:
    student, teacher, _ = logits(torch.bfloat16)
    teacher = (student.detach() + teacher * 0.02).to(torch.bfloat16)  # close, as after some training
    p, q = (x.detach().double().log_softmax(-1) for x in (teacher, student))
    true = float((p.exp() * (p - q)).sum() / 4)
    mine, trls = (float(f(student, teacher, beta=0.0)) for f in (generalized_jsd_loss, theirs))
    assert mine == pytest.approx(true, rel=1e-5)
    assert abs(trls - true) > 0.05 * true


def test_no_token_counts() -> None:
    student, teacher, labels = logits()
    loss = generalized_jsd_loss(
        student, teacher, torch.full_like(labels, -100), num_items_in_batch=torch.tensor(0)
    )
    assert loss.item() == 0
    assert not torch.autograd.grad(loss, student)[0].any()


@pytest.mark.parametrize("reduction", ["none", "max", None])
def test_reductions_that_it_lacks(reduction: Any) -> None:
    student, teacher, _ = logits()
    with refused(ArgumentValueError, wanted="^one of 'batchmean', 'sum', 'mean'"):
        generalized_jsd_loss(student, teacher, reduction=reduction)


@pytest.mark.parametrize("bf16", [False, True])
@pytest.mark.parametrize("beta", [0.0, 0.5])
def test_it_trains_as_trls_trainer_does(tmp_path: Path, tokenizer: Any, beta: float, bf16: bool) -> None:
    settings = {
        "beta": beta,
        "gradient_accumulation_steps": 2,
        "max_steps": 6,
        "logging_steps": 2,
        "bf16": bf16,
    }
    heads = LinearDistillationLoss(kind="kl" if beta == 0 else "js:0.5")
    found = []
    for kind, loss in ((TheirTrainer, None), (GKDTrainer, None), (GKDTrainer, heads)):
        trainer = trainer_of(kind, tmp_path, tokenizer, loss, **settings)
        trainer.train()
        found.append(losses(trainer))
    for mine in found[1:]:
        assert mine == pytest.approx(found[0], rel=0.03 if bf16 else 1e-3)


@pytest.mark.parametrize("make", [DistillationLoss, LinearDistillationLoss])
def test_any_divergence_falls(tmp_path: Path, tokenizer: Any, make: Any) -> None:
    trainer = trainer_of(GKDTrainer, tmp_path, tokenizer, make(kind="skew:0.1"), max_steps=30)
    trainer.train()
    found = losses(trainer)
    assert found[-1] < 0.7 * found[0]


def generated_loss(trainer: Any, monkeypatch: pytest.MonkeyPatch) -> tuple[float, Tensor, int]:
    """The loss of an on-policy step that stands for one of two micro-batches, the sum over its tokens, their number."""
    seen: list[dict[str, Tensor]] = []
    compute = trainer.compute_loss

    def noting(model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        seen.append(dict(inputs))
        return compute(model, inputs, *args, **kwargs)

    monkeypatch.setattr(trainer, "compute_loss", noting)
    monkeypatch.setattr(trainer, "current_gradient_accumulation_steps", 2, raising=False)
    torch.manual_seed(5)
    # 500 tokens were counted in the batches that the dataset held.
    loss = trainer.training_step(trainer.model, collate(examples(4)), num_items_in_batch=torch.tensor(500))
    batch = seen[0]
    with torch.no_grad():
        p, q = (
            model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).logits
            for model in (trainer.teacher_model, trainer.model)
        )
    total, count = kl_by_hand(p, q, batch["labels"])
    return float(loss), total, count


def test_generated_batches_are_divided_by_their_own_tokens_and_trls_by_others(
    tmp_path: Path, tokenizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {"lmbda": 1.0, "beta": 0.0, "temperature": 0.9}
    loss, total, count = generated_loss(trainer_of(GKDTrainer, tmp_path, tokenizer, **settings), monkeypatch)
    assert 4 <= count <= 16
    assert loss == pytest.approx(float(total) / count / 2, rel=1e-4)
    loss, total, count = generated_loss(
        trainer_of(TheirTrainer, tmp_path, tokenizer, **settings), monkeypatch
    )
    assert loss == pytest.approx(float(total) / 500, rel=1e-4)  # wrong by 500 / count


def test_a_sum_is_divided_by_tokens_whether_they_were_generated_or_not(
    tmp_path: Path, tokenizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = trainer_of(
        GKDTrainer,
        tmp_path,
        tokenizer,
        DistillationLoss(kind="kl", reduction="sum"),
        lmbda=1.0,
        temperature=0.9,
    )
    for lmbda, own in ((1.0, True), (-1.0, False)):
        trainer.lmbda = lmbda
        loss, total, count = generated_loss(trainer, monkeypatch)
        assert loss == pytest.approx(float(total) / (2 * count if own else 500), rel=1e-4)


def test_what_was_not_generated_after_what_was_is_counted_as_given(
    tmp_path: Path, tokenizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = trainer_of(GKDTrainer, tmp_path, tokenizer, lmbda=1.0, beta=0.0, temperature=0.9)
    generated_loss(trainer, monkeypatch)
    trainer.lmbda = -1.0
    loss, total, _ = generated_loss(trainer, monkeypatch)
    assert loss == pytest.approx(float(total) / 500, rel=1e-4)


def test_the_loss_of_several_processes(
    tmp_path: Path, tokenizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    # They average gradients of a loss divided by the tokens of all, so each has to take it times their number.
    batch = collate(examples(4))
    found = []
    for kind in (GKDTrainer, TheirTrainer):
        trainer = trainer_of(kind, tmp_path, tokenizer)
        alone = trainer.compute_loss(trainer.model, dict(batch), num_items_in_batch=torch.tensor(50))
        with monkeypatch.context() as patch:
            patch.setattr(type(trainer.accelerator), "num_processes", property(lambda _: 2))
            both = trainer.compute_loss(trainer.model, dict(batch), num_items_in_batch=torch.tensor(50))
        found.append(float(both / alone))
    assert found == pytest.approx([2.0, 1.0])


@pytest.mark.parametrize("make", [DistillationLoss, LinearDistillationLoss])
def test_packed_rows_do_not_see_each_other(tmp_path: Path, tokenizer: Any, make: Any) -> None:
    import transformers

    trainer = trainer_of(GKDTrainer, tmp_path, tokenizer, make(), bf16=False)
    rows = examples(5)
    alone = [
        kl_by_hand(
            *(m(row["input_ids"][None]).logits for m in (trainer.teacher_model, trainer.model)),
            row["labels"][None],
        )
        for row in rows
    ]
    want = sum(total for total, _ in alone) / sum(count for _, count in alone)
    plain = [{name: x.tolist() for name, x in row.items() if name != "attention_mask"} for row in rows]
    batch = dict(transformers.DataCollatorWithFlattening()(plain))
    torch.testing.assert_close(trainer.compute_loss(trainer.model, batch).double(), want, rtol=1e-5, atol=0)


def test_wrong_losses(tmp_path: Path, tokenizer: Any) -> None:
    with refused(ArgumentTypeError, wanted="^a DistillationLoss"):
        trainer_of(GKDTrainer, tmp_path, tokenizer, "js:0.5")
    with refused(ArgumentValueError, got="reduction='none'"):
        trainer_of(GKDTrainer, tmp_path, tokenizer, DistillationLoss(reduction="none"))
