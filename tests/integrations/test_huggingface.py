"""The adapters to Hugging Face's Trainer, with the real one on tiny models: values, gradients, training, errors."""

from __future__ import annotations

import copy
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from kullback.errors import ArgumentTypeError, ArgumentValueError
from kullback.nn import DistillationLoss, LinearDistillationLoss
from tests.integrations.tiny import (
    CLASSES,
    arguments,
    batch_of,
    examples,
    kl_by_hand,
    language_models,
    losses,
)

transformers = pytest.importorskip("transformers")
pytest.importorskip("accelerate")
from kullback.integrations.huggingface import DistillationTrainer, compute_loss_func  # noqa: E402
from tests.refusals import refused  # noqa: E402

pytestmark = [pytest.mark.heavy, pytest.mark.filterwarnings("ignore")]  # of the Trainer's own
LOSSES = [DistillationLoss, LinearDistillationLoss]
EACH_LOSS = pytest.mark.parametrize("make", LOSSES)


def trained(folder: Path, loss: Any, **settings: Any) -> Any:
    student, teacher = language_models()
    trainer = DistillationTrainer(
        student, arguments(folder, **settings), teacher=teacher, loss=loss, train_dataset=examples()
    )
    trainer.train()
    return trainer


@EACH_LOSS
def test_the_loss_is_the_formula(tmp_path: Path, make: Any) -> None:
    student, teacher = language_models()
    trainer = DistillationTrainer(student, arguments(tmp_path), teacher=teacher, loss=make())
    batch = batch_of(examples(6))
    loss = trainer.compute_loss(student, dict(batch))
    p, q = (model(batch["input_ids"]).logits for model in (teacher, student))
    total, count = kl_by_hand(p, q, batch["labels"])
    torch.testing.assert_close(loss.double(), total / count, rtol=1e-5, atol=0)
    torch.testing.assert_close(
        trainer.compute_loss(student, dict(batch), num_items_in_batch=torch.tensor(100)).double(),
        total / 100,
        rtol=1e-5,
        atol=0,
    )
    parameters = list(student.parameters())
    for mine, true in zip(
        torch.autograd.grad(loss, parameters), torch.autograd.grad(total / count, parameters), strict=True
    ):
        torch.testing.assert_close(mine, true, rtol=1e-4, atol=1e-7)
    assert all(x.grad is None and not x.requires_grad for x in teacher.parameters())


class SureTeacher(torch.nn.Module):
    """One that is certain of the token that comes next."""

    def forward(self, input_ids: Tensor, **_: Any) -> dict[str, Tensor]:
        following = torch.nn.functional.one_hot(input_ids.roll(-1, -1), CLASSES)
        return {"logits": torch.where(following.bool(), 0.0, -math.inf)}


def test_with_a_teacher_that_is_certain_it_is_the_trainers_own_loss(tmp_path: Path) -> None:
    student, _ = language_models()
    batch = batch_of(examples(6))
    mine = DistillationTrainer(student, arguments(tmp_path), teacher=SureTeacher())
    theirs = transformers.Trainer(student, arguments(tmp_path))
    for count in (None, torch.tensor(77)):
        found = [
            trainer.compute_loss(student, dict(batch), num_items_in_batch=count) for trainer in (mine, theirs)
        ]
        torch.testing.assert_close(found[0], found[1], rtol=1e-5, atol=0)
        gradients = [torch.autograd.grad(x, list(student.parameters())) for x in found]
        for a, b in zip(*gradients, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-7)


def test_it_learns_with_logits_as_with_heads(tmp_path: Path) -> None:
    dense, fused = (trained(tmp_path, make(kind="js:0.5"), max_steps=30) for make in LOSSES)
    found = losses(dense)
    assert found[-1] < 0.7 * found[0]
    assert losses(fused) == pytest.approx(found, rel=1e-3)


@EACH_LOSS
def test_micro_batches_add_up_to_the_whole_batch(tmp_path: Path, make: Any) -> None:
    # The numbers of counted tokens differ, so a mean of means would be another step.
    settings = {"max_steps": 1, "optim": "sgd", "learning_rate": 1.0, "max_grad_norm": 0.0}
    settings |= {"train_sampling_strategy": "sequential"}
    whole = trained(tmp_path, make(), per_device_train_batch_size=8, **settings)
    parts = trained(
        tmp_path, make(), per_device_train_batch_size=2, gradient_accumulation_steps=4, **settings
    )
    before, _ = language_models()
    for a, b, start in zip(
        whole.model.parameters(), parts.model.parameters(), before.parameters(), strict=True
    ):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6)
        assert not torch.equal(a, start)


def test_micro_batches_add_up_for_a_model_whose_own_loss_takes_no_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The Trainer itself passes no number of labels for such a model, such as Gemma 3 or Qwen 3 with images.
    monkeypatch.setattr(transformers.LlamaForCausalLM, "accepts_loss_kwargs", False, raising=False)
    test_micro_batches_add_up_to_the_whole_batch(tmp_path, DistillationLoss)


def test_only_labels_that_the_trainer_does_not_count_are_ignored(tmp_path: Path) -> None:
    student, teacher = language_models()
    for make in LOSSES:
        with refused(ArgumentValueError, wanted="ignore_index=-100", got="^one with ignore_index=0$"):
            DistillationTrainer(student, arguments(tmp_path), teacher=teacher, loss=make(ignore_index=0))
    with refused(
        ArgumentValueError, got="^one with ignore_index=0$", instead=r"masked_fill\(labels == 0, -100"
    ):
        compute_loss_func(DistillationLoss(ignore_index=0))


def test_processes_average_a_loss_divided_by_the_tokens_of_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    student, teacher = language_models()
    trainer = DistillationTrainer(student, arguments(tmp_path), teacher=teacher)
    batch = batch_of(examples(4))
    alone = trainer.compute_loss(student, dict(batch), num_items_in_batch=torch.tensor(50))
    monkeypatch.setattr(type(trainer.accelerator), "num_processes", property(lambda _: 3))
    torch.testing.assert_close(
        trainer.compute_loss(student, dict(batch), num_items_in_batch=torch.tensor(50)), 3 * alone
    )
    mean = trainer.compute_loss(student, dict(batch))
    monkeypatch.undo()
    assert torch.equal(trainer.compute_loss(student, dict(batch)), mean)


@EACH_LOSS
def test_evaluation_gives_logits_to_metrics(tmp_path: Path, make: Any) -> None:
    student, teacher = language_models()
    seen: list[Any] = []

    def metrics(predictions: Any) -> dict[str, float]:
        seen.append(predictions.predictions)
        return {"count": float(len(predictions.predictions))}

    trainer = DistillationTrainer(
        student,
        arguments(tmp_path, per_device_eval_batch_size=3),
        teacher=teacher,
        loss=make(),
        eval_dataset=examples(6),
        compute_metrics=metrics,
    )
    found = trainer.evaluate()
    batch = batch_of(examples(6))
    p, q = (model(batch["input_ids"]).logits for model in (teacher, student))
    halves = [kl_by_hand(p[i : i + 3], q[i : i + 3], batch["labels"][i : i + 3]) for i in (0, 3)]
    assert found["eval_loss"] == pytest.approx(sum(float(t) / n for t, n in halves) / 2, rel=1e-4)
    logits = seen[0][0] if isinstance(seen[0], tuple) else seen[0]
    torch.testing.assert_close(torch.as_tensor(logits), q.detach(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("make", LOSSES)
def test_a_teacher_that_was_stored_by_its_top_tokens(make: Any, tmp_path: Path) -> None:
    student, teacher = language_models()
    rows = examples()
    with torch.no_grad():
        for row in rows:
            log_probs, indices = teacher(row["input_ids"][None]).logits.log_softmax(-1)[0].topk(CLASSES)
            row["teacher_indices"], row["teacher_log_probs"] = indices, log_probs
    stored = DistillationTrainer(student, arguments(tmp_path), loss=make(), train_dataset=rows)
    batch = batch_of(rows[:4])
    live = DistillationTrainer(student, arguments(tmp_path), teacher=teacher)
    torch.testing.assert_close(  # of all classes, so the same
        stored.compute_loss(student, dict(batch)), live.compute_loss(student, dict(batch)), rtol=1e-4, atol=0
    )
    stored.train()  # the columns reach the loss
    found = losses(stored)
    assert found[-1] < 0.8 * found[0]
    with refused(
        ArgumentValueError, wanted="batches with teacher_indices and teacher_log_probs$", got="^None"
    ):
        stored.compute_loss(student, batch_of(examples(2)))


def test_heads_that_cap_or_scale_their_logits(tmp_path: Path) -> None:
    settings = {"final_logit_softcapping": 0.5, "head_dim": 8}
    student, teacher = language_models("Gemma2", **settings)
    batch = batch_of(examples(4))
    dense = DistillationTrainer(student, arguments(tmp_path), teacher=teacher)
    want = dense.compute_loss(student, dict(batch))
    wrong = DistillationTrainer(student, arguments(tmp_path), teacher=teacher, loss=LinearDistillationLoss())
    with refused(
        ArgumentValueError, wanted="the logits of the student as its model does$", got="^softcap=None"
    ):
        wrong.compute_loss(student, dict(batch))
    loss = LinearDistillationLoss(softcap=0.5)
    right = DistillationTrainer(student, arguments(tmp_path), teacher=teacher, loss=loss)
    torch.testing.assert_close(right.compute_loss(student, dict(batch)), want, rtol=1e-4, atol=0)


def test_only_the_last_logits_of_a_fused_head_are_made(tmp_path: Path) -> None:
    student, teacher = language_models()
    trainer = DistillationTrainer(
        student, arguments(tmp_path), teacher=teacher, loss=LinearDistillationLoss()
    )
    sizes: list[int] = []
    for model in (student, teacher):
        model.lm_head.register_forward_hook(lambda _m, _x, out: sizes.append(out.shape[1]))
    trainer.compute_loss(student, batch_of(examples(4)))
    assert sizes == [1, 1]


def test_a_batch_where_nothing_counts(tmp_path: Path) -> None:
    student, teacher = language_models()
    batch = batch_of(examples(2))
    batch["labels"] = torch.full_like(batch["labels"], -100)
    for loss in (DistillationLoss(), LinearDistillationLoss()):
        trainer = DistillationTrainer(student, arguments(tmp_path), teacher=teacher, loss=loss)
        found = trainer.compute_loss(student, dict(batch), num_items_in_batch=torch.tensor(0))
        found.backward()
        assert found.item() == 0
        assert all(not x.grad.any() for x in student.parameters() if x.grad is not None)


@EACH_LOSS
def test_without_labels_padding_does_not_count(tmp_path: Path, make: Any) -> None:
    student, teacher = language_models()
    trainer = DistillationTrainer(student, arguments(tmp_path), teacher=teacher, loss=make())
    batch = batch_of(examples(4))
    del batch["labels"]
    batch["attention_mask"][2:, 6:] = 0
    p, q = (
        model(batch["input_ids"], attention_mask=batch["attention_mask"]).logits.double().log_softmax(-1)
        for model in (teacher, student)
    )
    want = (p.exp() * (p - q)).sum(-1)[batch["attention_mask"].bool()].mean()
    torch.testing.assert_close(trainer.compute_loss(student, batch).double(), want, rtol=1e-5, atol=0)


def test_adapters_of_peft(tmp_path: Path) -> None:
    peft = pytest.importorskip("peft")
    found = []
    for make in LOSSES:
        student, teacher = language_models()
        torch.manual_seed(1)
        config = peft.LoraConfig(
            r=4, target_modules=["q_proj", "up_proj", "down_proj"], task_type="CAUSAL_LM"
        )
        trainer = DistillationTrainer(
            peft.get_peft_model(student, config),
            arguments(tmp_path),
            teacher=teacher,
            loss=make(),
            train_dataset=examples(),
        )
        trainer.train()
        found.append(losses(trainer))
    assert found[1] == pytest.approx(found[0], rel=1e-3)


def test_an_adapter_on_the_head_is_refused_by_fused_heads_and_trained_by_logits(tmp_path: Path) -> None:
    # The weight of such a head is its base's alone: the adapter would get no gradient.
    peft = pytest.importorskip("peft")
    student, teacher = language_models()
    torch.manual_seed(1)
    config = peft.LoraConfig(r=4, target_modules=["q_proj", "lm_head"], task_type="CAUSAL_LM")
    model = peft.get_peft_model(student, config)
    batch = batch_of(examples(4))
    fused = DistillationTrainer(model, arguments(tmp_path), teacher=teacher, loss=LinearDistillationLoss())
    with refused(ArgumentValueError, wanted=r"a student whose head is not a plain torch\.nn\.Linear"):
        fused.compute_loss(model, dict(batch))
    dense = DistillationTrainer(model, arguments(tmp_path), teacher=teacher, loss=DistillationLoss())
    dense.compute_loss(model, dict(batch)).backward()
    assert model.get_base_model().lm_head.lora_B["default"].weight.grad.any()
    other, _ = language_models()
    taught = DistillationTrainer(other, arguments(tmp_path), teacher=model, loss=LinearDistillationLoss())
    with refused(ArgumentValueError, wanted="a teacher whose head is not a plain"):
        taught.batch_loss(other, dict(batch))


class HalvedHead(torch.nn.Linear):
    """A head with more to it than its weight."""

    def forward(self, input: Tensor) -> Tensor:
        return super().forward(input) / 2


def test_heads_that_are_more_than_their_weight(tmp_path: Path) -> None:
    student, teacher = language_models()
    head = HalvedHead(16, CLASSES, bias=False)
    student.lm_head = head
    trainer = DistillationTrainer(
        student, arguments(tmp_path), teacher=teacher, loss=LinearDistillationLoss()
    )
    with refused(ArgumentValueError, got="HalvedHead, whose weight alone"):
        trainer.compute_loss(student, batch_of(examples(4)))


def repeat(compute: Any, times: int, student: Any, batch: dict[str, Tensor]) -> None:
    for _ in range(times):
        compute(student, dict(batch))


def test_a_head_that_changes_during_training_is_noticed(tmp_path: Path) -> None:
    student, teacher = language_models()
    trainer = DistillationTrainer(
        student, arguments(tmp_path), teacher=teacher, loss=LinearDistillationLoss()
    )
    batch = batch_of(examples(4))
    trainer.compute_loss(student, dict(batch))
    student.lm_head.register_forward_hook(lambda _m, _x, logits: logits * 1.5)
    with refused(ArgumentValueError, wanted="the logits of the student as its model does"):
        repeat(trainer.compute_loss, 5, student, batch)


def test_a_cap_of_the_configuration_is_noticed_while_logits_are_small(tmp_path: Path) -> None:
    student, teacher = language_models("Gemma2", final_logit_softcapping=1e4, head_dim=8)
    wrong = DistillationTrainer(student, arguments(tmp_path), teacher=teacher, loss=LinearDistillationLoss())
    with refused(ArgumentValueError, got="^softcap=None"):
        wrong.compute_loss(student, batch_of(examples(4)))
    loss = LinearDistillationLoss(softcap=1e4)
    right = DistillationTrainer(student, arguments(tmp_path), teacher=teacher, loss=loss)
    assert right.compute_loss(student, batch_of(examples(4))).isfinite()


def packed(rows: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    """The rows one after the other in one, as padding-free training has them."""
    plain = [{name: x.tolist() for name, x in row.items() if name != "attention_mask"} for row in rows]
    return transformers.DataCollatorWithFlattening()(plain)


@EACH_LOSS
def test_packed_rows_do_not_see_each_other(tmp_path: Path, make: Any) -> None:
    # With a cache, transformers ignores where sequences begin.
    student, teacher = language_models()
    rows = examples(6)
    trainer = DistillationTrainer(student, arguments(tmp_path), teacher=teacher, loss=make())
    alone = [
        kl_by_hand(*(m(row["input_ids"][None]).logits for m in (teacher, student)), row["labels"][None])
        for row in rows
    ]
    want = sum(total for total, _ in alone) / sum(count for _, count in alone)
    for training in (True, False):
        student.train(training)
        found = trainer.compute_loss(student, packed(rows))
        torch.testing.assert_close(found.double(), want, rtol=1e-5, atol=0)


@EACH_LOSS
def test_neither_side_makes_a_cache(tmp_path: Path, make: Any) -> None:
    student, teacher = language_models()
    trainer = DistillationTrainer(student, arguments(tmp_path), teacher=teacher, loss=make())
    made: list[Any] = []
    for model in (student, teacher):
        model.register_forward_hook(lambda _m, _x, outputs: made.append(outputs.past_key_values))
    trainer.compute_loss(student, batch_of(examples(2)))
    assert made == [None, None]


@EACH_LOSS
def test_router_losses_of_mixtures_of_experts_count_as_in_the_trainers_own_loss(
    tmp_path: Path, make: Any
) -> None:
    settings = {"output_router_logits": True, "router_aux_loss_coef": 3.0, "num_local_experts": 4}
    student, teacher = language_models("Mixtral", **settings)
    batch = batch_of(examples(4))
    trainer = DistillationTrainer(student, arguments(tmp_path), teacher=teacher, loss=make())
    outputs = student(**batch, use_cache=False)
    bare = outputs.logits
    total, count = kl_by_hand(teacher(batch["input_ids"]).logits, bare, batch["labels"])
    router = 3.0 * outputs.aux_loss  # of which the model's own loss is made
    assert router > 1
    loss = trainer.compute_loss(student, dict(batch))
    torch.testing.assert_close(loss.double(), total / count + router.double(), rtol=1e-5, atol=0)
    gate = student.model.layers[0].mlp.gate.weight
    want = torch.autograd.grad(total / count + router, gate)[0]
    torch.testing.assert_close(torch.autograd.grad(loss, gate)[0], want, rtol=1e-4, atol=1e-7)
    # A micro-batch has the weight of its tokens.
    part = trainer.compute_loss(student, dict(batch), num_items_in_batch=torch.tensor(4 * count))
    torch.testing.assert_close(4 * part, loss, rtol=1e-5, atol=0)
    summed = DistillationTrainer(student, arguments(tmp_path), teacher=teacher, loss=make(reduction="sum"))
    items = torch.tensor(4 * count)  # divide a sum too
    torch.testing.assert_close(summed.compute_loss(student, dict(batch), num_items_in_batch=items), part)


class Router(torch.nn.Module):
    """A student with a router loss of 20."""

    def forward(self, input_ids: Tensor, **_: Any) -> dict[str, Tensor]:
        return {"logits": torch.zeros(*input_ids.shape, CLASSES), "aux_loss": torch.tensor(20.0)}


def test_a_router_loss_without_its_coefficient(tmp_path: Path) -> None:
    student = Router()
    trainer = DistillationTrainer(student, arguments(tmp_path), teacher=SureTeacher())
    batch = batch_of(examples(4))
    with refused(ArgumentValueError, instead=r"^model\.router_aux_loss_coef = 0\.01"):
        trainer.compute_loss(student, dict(batch))
    student.router_aux_loss_coef = 0.01  # type: ignore[assignment]
    found = trainer.compute_loss(student, dict(batch))
    assert found.item() == pytest.approx(math.log(CLASSES) + 0.2, rel=1e-5)


@EACH_LOSS
def test_compiled_students(tmp_path: Path, make: Any) -> None:
    compiled = trained(tmp_path, make(), torch_compile=True, torch_compile_backend="eager", max_steps=3)
    plain = trained(tmp_path, make(), max_steps=3)
    assert losses(compiled) == pytest.approx(losses(plain), rel=1e-4)


class Pair(torch.nn.Module):
    """A classifier whose outputs hold a teacher's predictions."""

    def __init__(self) -> None:
        super().__init__()
        self.student, self.teacher = torch.nn.Linear(4, 3), torch.nn.Linear(4, 3)
        self.teacher.weight.data.mul_(4)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        return {"logits": self.student(x), "teacher_logits": self.teacher(x)}


def test_compute_loss_func_of_a_classifier(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = Pair()
    before = copy.deepcopy(model)
    rows = [{"x": x, "labels": i % 3} for i, x in enumerate(torch.randn(32, 4))]
    loss = compute_loss_func(DistillationLoss(kind="reverse_kl"), causal=False)
    trainer = transformers.Trainer(model, arguments(tmp_path), train_dataset=rows, compute_loss_func=loss)
    trainer.train()
    found = losses(trainer)
    assert found[-1] < 0.7 * found[0]
    assert torch.equal(model.teacher.weight, before.teacher.weight)
    x = torch.stack([row["x"] for row in rows[:5]])
    p, q = (f(x).double().log_softmax(-1) for f in (before.teacher, before.student))
    want = (q.exp() * (q - p)).sum() / 40
    got = loss(before(x), torch.zeros(5, dtype=torch.long), num_items_in_batch=40)
    torch.testing.assert_close(got.double(), want, rtol=1e-5, atol=0)
    found_by = compute_loss_func(
        DistillationLoss(kind="reverse_kl"), teacher=lambda outputs: outputs["teacher_logits"], causal=False
    )
    assert torch.equal(found_by(before(x), None, 40), got)


def test_compute_loss_func_of_a_causal_model() -> None:
    torch.manual_seed(0)
    p, q = torch.randn(2, 3, 5, 7)
    labels = torch.where(torch.rand(3, 5) < 0.3, -100, 1)
    total, count = kl_by_hand(p, q, labels)
    loss = compute_loss_func()
    outputs = {"logits": q, "teacher_logits": p}
    torch.testing.assert_close(loss(outputs, labels).double(), total / count, rtol=1e-5, atol=0)
    torch.testing.assert_close(loss(outputs, labels, torch.tensor(9)).double(), total / 9, rtol=1e-5, atol=0)


@pytest.mark.parametrize(
    ("given", "error", "words"),
    [
        (
            {"loss": "kl"},
            ArgumentTypeError,
            "wanted a DistillationLoss or a LinearDistillationLoss; got 'kl'",
        ),
        ({"loss": DistillationLoss(reduction="none")}, ArgumentValueError, "got one with reduction='none'"),
        ({"loss": DistillationLoss(reduction="batchmean")}, ArgumentValueError, "reduction='batchmean'"),
        ({"teacher": "gpt2"}, ArgumentTypeError, "wanted a module, or None"),
        ({"causal": 1}, ArgumentTypeError, "wanted True, False or None"),
    ],
)
def test_wrong_settings(given: dict[str, Any], error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        DistillationTrainer(torch.nn.Linear(2, 2), **given)


def test_another_loss_beside_it_is_refused(tmp_path: Path) -> None:
    student, teacher = language_models()
    with refused(ArgumentValueError, argument="compute_loss_func", wanted="^none, because loss= is the loss"):
        DistillationTrainer(
            student, arguments(tmp_path), teacher=teacher, compute_loss_func=compute_loss_func()
        )
    with refused(ArgumentValueError, argument="label_smoothing_factor"):
        DistillationTrainer(student, arguments(tmp_path, label_smoothing_factor=0.1), teacher=teacher)


def test_wrong_settings_of_compute_loss_func() -> None:
    with refused(ArgumentValueError, wanted="as the outputs hold logits"):
        compute_loss_func(LinearDistillationLoss())  # type: ignore[arg-type]
    with refused(ArgumentValueError, wanted="the name of the teacher's logits", got="outputs with logits"):
        compute_loss_func(causal=False)({"logits": torch.zeros(2, 3)}, None)
    with refused(ArgumentValueError, wanted="one prediction for each example", instead="^causal=False"):
        compute_loss_func()(
            {"logits": torch.zeros(2, 3), "teacher_logits": torch.zeros(2, 3)}, torch.zeros(2)
        )
    compute_loss_func(causal=False)(
        {"logits": torch.zeros(2, 3), "teacher_logits": torch.zeros(2, 3)}, torch.zeros(2)
    )
