"""Teachers that share parameters with the student: refused before anything is frozen; and the remedies."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from datasets import Dataset
from torch import Tensor

from kullback.errors import ArgumentValueError
from kullback.integrations.batch_loss import BatchLoss
from kullback.nn import DistillationLoss
from tests.integrations.tiny import arguments, batch_of, examples, kl_by_hand, language_models
from tests.models.tiny import make_tokenizer

pytest.importorskip("transformers")
pytest.importorskip("accelerate")
pytest.importorskip("lightning")
pytest.importorskip("peft")
pytest.importorskip("trl")
import peft
from trl import DistillationConfig
from trl.experimental.gkd import GKDConfig

from kullback.integrations.huggingface import DistillationTrainer
from kullback.integrations.lightning import DistillationModule
from kullback.integrations.trl import DistillationTrainer as TRLTrainer, GKDTrainer
from tests.refusals import refused

pytestmark = [pytest.mark.heavy, pytest.mark.filterwarnings("ignore")]  # of the trainers' own


def trained_numbers(model: torch.nn.Module) -> int:
    return sum(x.numel() for x in model.parameters() if x.requires_grad)


def pair() -> tuple[Any, Any]:
    return language_models(num_hidden_layers=3, vocab_size=300)


def pruned() -> tuple[Any, Any]:
    """A student of the teacher's first layer and its embedding."""
    student, teacher = pair()
    student.model.layers = torch.nn.ModuleList([teacher.model.layers[0]])
    student.model.embed_tokens = teacher.model.embed_tokens
    return student, teacher


def shared_by_memory() -> tuple[Any, Any]:
    """A student whose embedding is another parameter in the memory of the teacher's."""
    student, teacher = pair()
    student.model.embed_tokens.weight = torch.nn.Parameter(teacher.model.embed_tokens.weight.data)
    return student, teacher


def part_of_memory() -> tuple[Any, Any]:
    """A student whose head is made of the first rows of a larger teacher's."""
    student, teacher = pair()
    big = torch.randn(400, 16)
    teacher.register_buffer("all_rows", big)
    student.lm_head.weight = torch.nn.Parameter(big[:300])
    return student, teacher


def tied_across() -> tuple[Any, Any]:
    """A student whose tied head and embedding are the teacher's head."""
    student, teacher = pair()
    student.lm_head.weight = student.model.embed_tokens.weight = teacher.lm_head.weight
    return student, teacher


class Plus(torch.nn.Module):
    """A parametrization: another module's weight and a learned difference."""

    def __init__(self, other: torch.nn.Linear) -> None:
        super().__init__()
        self.other = other

    def forward(self, weight: Tensor) -> Tensor:
        return self.other.weight + weight


def parametrized() -> tuple[Any, Any]:
    """A student whose head is the teacher's plus a difference."""
    student, teacher = pair()
    torch.nn.utils.parametrize.register_parametrization(student.lm_head, "weight", Plus(teacher.lm_head))
    return student, teacher


def shallow() -> tuple[Any, Any]:
    """A shallow copy, whose parameters are the teacher's."""
    teacher = pair()[1]
    return copy.copy(teacher), teacher


def wrapped() -> tuple[Any, Any]:
    student, teacher = pruned()
    return torch.nn.DataParallel(student), teacher


def under_lora() -> tuple[Any, Any]:
    """The base as the teacher of itself with an adapter."""
    base = pair()[0]
    config = peft.LoraConfig(r=4, target_modules=["q_proj"], task_type="CAUSAL_LM")
    return peft.get_peft_model(base, config), base


def itself() -> tuple[Any, Any]:
    student = pair()[0]
    return student, student


SHARING = [
    (pruned, "model.embed_tokens.weight, model.layers.0.self_attn.q_proj.weight"),
    (shared_by_memory, "1 of the student's 30: model.embed_tokens.weight"),
    (part_of_memory, "1 of the student's 30: lm_head.weight"),
    (tied_across, "1 of the student's 29: model.embed_tokens.weight"),
    (parametrized, "1 of the student's 31: lm_head.parametrizations.weight.0.other.weight"),
    (shallow, "shares 30 of the student's 30"),
    (wrapped, "module.model.embed_tokens.weight"),
    (under_lora, "model.disable_adapter()"),
    (itself, "the student itself"),
]


def huggingface(folder: Path, student: Any, teacher: Any) -> Any:
    return DistillationTrainer(student, arguments(folder), teacher=teacher, train_dataset=examples())


def lightning(folder: Path, student: Any, teacher: Any) -> Any:
    return DistillationModule(student, teacher)


def gkd(folder: Path, student: Any, teacher: Any) -> Any:
    rows = [{name: x.tolist() for name, x in row.items()} for row in examples()]
    return GKDTrainer(
        model=student,
        teacher_model=teacher,
        args=arguments(folder, GKDConfig, lmbda=0.0, remove_unused_columns=False),
        data_collator=batch_of,
        train_dataset=Dataset.from_list(rows),
        processing_class=make_tokenizer(tokens=300),
    )


def trl(folder: Path, student: Any, teacher: Any) -> Any:
    tokenizer = make_tokenizer(tokens=300)
    tokenizer.padding_side = "left"
    return TRLTrainer(
        student,
        teacher,
        args=arguments(folder, DistillationConfig, max_completion_length=5, bf16=False),
        train_dataset=Dataset.from_list([{"prompt": "the cat"}] * 4),
        processing_class=tokenizer,
    )


def test_a_student_that_shares_what_it_learns_is_refused_and_stays_as_it_is(tmp_path: Path) -> None:
    for make, words in SHARING:
        for trainer in (huggingface, lightning):
            student, teacher = make()
            before = trained_numbers(student)
            with pytest.raises(ArgumentValueError) as caught:
                trainer(tmp_path, student, teacher)
            assert words in str(caught.value), (make, trainer)
            assert caught.value.argument == "teacher", (make, trainer)
            assert trained_numbers(student) == before > 0, (make, trainer)


def test_trls_trainers_refuse_it_too(tmp_path: Path) -> None:
    for make in (pruned, under_lora):
        for trainer in (gkd, trl):
            student, teacher = make()
            before = trained_numbers(student)
            with refused(ArgumentValueError, wanted="shares no parameter that learns"):
                trainer(tmp_path, student, teacher)
            assert trained_numbers(student) == before, (make, trainer)


def test_shared_parameters_that_do_not_learn_are_right(tmp_path: Path) -> None:
    for trainer in (huggingface, lightning):
        student, teacher = pruned()
        for name in ("model.embed_tokens", "model.layers.0"):
            student.get_submodule(name).requires_grad_(False)
        learning = [x for x in student.parameters() if x.requires_grad]
        trainer(tmp_path, student, teacher)
        assert [x for x in student.parameters() if x.requires_grad] == learning
        assert not any(x.requires_grad for x in teacher.parameters())


def test_the_remedies_of_a_pruned_student(tmp_path: Path) -> None:
    student, teacher = pruned()
    frozen = copy.deepcopy(teacher.state_dict())
    student.model.layers = copy.deepcopy(student.model.layers)
    for name in ("model.embed_tokens.weight",):
        student.get_parameter(name).requires_grad_(False)
    before = copy.deepcopy(student.state_dict())
    trainer = huggingface(tmp_path, student, teacher)
    trainer.train()
    after = student.state_dict()
    moved = {name for name, x in before.items() if not torch.equal(x, after[name])}
    assert moved == set(before) - {"model.embed_tokens.weight"}
    assert all(torch.equal(x, teacher.state_dict()[name]) for name, x in frozen.items())


def test_parameters_that_begin_to_learn_later_are_refused_at_a_batch(tmp_path: Path) -> None:
    student, teacher = pruned()
    student.model.embed_tokens.requires_grad_(False)
    student.model.layers.requires_grad_(False)
    trainer = huggingface(tmp_path, student, teacher)
    batch = batch_of(examples(2))
    trainer.compute_loss(student, dict(batch))
    student.requires_grad_(True)  # the teacher too would be trained
    with refused(ArgumentValueError, got="shares 10 of the student's 12"):
        trainer.compute_loss(student, dict(batch))
    classifier = torch.nn.Linear(4, 3)
    module = DistillationModule(classifier, torch.nn.Linear(4, 3))
    assert module.batch_loss.teacher is not None
    module.batch_loss.teacher.weight = classifier.weight
    with refused(ArgumentValueError, got="1 of the student's 2: weight"):
        module.training_step(torch.zeros(2, 4), 0)


def test_the_base_under_a_frozen_adapter_has_nothing_to_learn(tmp_path: Path) -> None:
    for make in (under_lora, itself):
        student, teacher = make()
        student.requires_grad_(False)
        with refused(ArgumentValueError, got="so that none learns"):
            huggingface(tmp_path, student, teacher)


class Base(torch.nn.Module):
    """The student without its adapter, as the message describes it."""

    def __init__(self, run: Callable[..., Any]) -> None:
        super().__init__()
        self.run = run

    def forward(self, **inputs: Any) -> Any:
        return self.run(**inputs)


def test_the_remedies_of_a_base_under_its_adapter(tmp_path: Path) -> None:
    model, _ = under_lora()
    with torch.no_grad():
        for name, x in model.named_parameters():
            if "lora_B" in name:
                x.normal_(generator=torch.Generator().manual_seed(0))
    original = pair()[0]  # before the adapter

    def without_adapter(**inputs: Any) -> Any:
        with model.disable_adapter():
            return model(**inputs, use_cache=False)

    batch = batch_of(examples(4))
    p, q = (m(batch["input_ids"]).logits for m in (original, model))
    total, count = kl_by_hand(p, q, batch["labels"])
    assert total > 0
    for teacher in (Base(without_adapter), original):
        trainer = huggingface(tmp_path, model, teacher)
        loss = trainer.compute_loss(model, dict(batch))
        torch.testing.assert_close(loss.double(), total / count, rtol=1e-5, atol=0)
        learning = [x for x in model.parameters() if x.requires_grad]
        assert len(learning) == 6
        for mine, true in zip(
            torch.autograd.grad(loss, learning, retain_graph=True),
            torch.autograd.grad(total / count, learning, retain_graph=True),
            strict=True,
        ):
            torch.testing.assert_close(mine, true, rtol=1e-4, atol=1e-7)


def test_the_remedy_of_a_student_that_is_its_own_teacher(tmp_path: Path) -> None:
    student, _ = itself()
    trainer = huggingface(tmp_path, student, copy.deepcopy(student))
    before = copy.deepcopy(student.lm_head.weight)
    loss = trainer.compute_loss(student, batch_of(examples(2)))
    assert loss.item() == 0
    loss.backward()
    assert trained_numbers(student) == trained_numbers(pair()[0])
    assert torch.equal(student.lm_head.weight, before)


class Noisy(torch.nn.Module):
    """A part with dropout, which the student and the teacher both have, and a head."""

    def __init__(self, part: torch.nn.Module) -> None:
        super().__init__()
        self.part, self.head = part, torch.nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.part(x))


def test_a_shared_frozen_module_trains_in_the_student_and_evaluates_in_the_teacher() -> None:
    torch.manual_seed(0)
    part = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Dropout(0.5)).requires_grad_(False)
    student, teacher = Noisy(part), Noisy(part)
    x = torch.randn(64, 4)
    teacher.eval()
    log_p = teacher(x).double().log_softmax(-1)
    module = DistillationModule(student, teacher)
    student.train()
    torch.manual_seed(1)
    log_q = student(x).double().log_softmax(-1)
    torch.manual_seed(1)
    loss = module.training_step(x, 0)
    want = sum(
        float(a.exp() * (a - b)) for p, q in zip(log_p, log_q, strict=True) for a, b in zip(p, q, strict=True)
    )
    assert loss.item() == pytest.approx(want / 64, rel=1e-5)
    assert all(each.training for each in part.modules())


def test_shared_running_averages_are_refused_while_the_student_trains() -> None:
    torch.manual_seed(0)
    part = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4)).requires_grad_(False)
    student, teacher = Noisy(part), Noisy(part)
    before = part.state_dict()["1.running_mean"].clone()
    module, x = DistillationModule(student, teacher), torch.randn(8, 4)
    student.train()
    with pytest.raises(ArgumentValueError, match=r"shares those of part\.1\. Write: copy\.deepcopy"):
        module.training_step(x, 0)
    assert torch.equal(part.state_dict()["1.running_mean"], before)
    student.eval()
    assert module.validation_step(x, 0) > 0
    student.part = copy.deepcopy(part)
    student.train()
    assert module.training_step(x, 0) > 0
    assert torch.equal(part.state_dict()["1.running_mean"], before)
    assert not torch.equal(student.get_buffer("part.1.running_mean"), before)


def test_frozen_teachers_of_a_batch_loss_need_no_student() -> None:
    student, teacher = language_models()
    loss = BatchLoss("Trainer", DistillationLoss(), teacher, causal=None)
    loss.freeze_teacher(None)
    assert not any(x.requires_grad for x in teacher.parameters())
    assert trained_numbers(student) > 0
