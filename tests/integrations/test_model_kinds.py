"""Models beside the plain decoder: encoders with decoders, masks, prompts, other heads; and infinite losses."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, Self

import pytest
import torch
from torch import Tensor

from kullback.errors import ArgumentValueError
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
accelerate = pytest.importorskip("accelerate")
peft = pytest.importorskip("peft")
pytest.importorskip("lightning")
from kullback.integrations.huggingface import DistillationTrainer, compute_loss_func  # noqa: E402
from kullback.integrations.lightning import DistillationModule  # noqa: E402
from kullback.losses.head_configuration import head_configuration  # noqa: E402
from tests.refusals import refused  # noqa: E402

pytestmark = [pytest.mark.heavy, pytest.mark.filterwarnings("ignore")]  # of the trainers' own
T5 = {"d_model": 16, "d_kv": 8, "d_ff": 16, "num_layers": 1, "num_heads": 2}
BART = {"d_model": 16, "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 2}
BART |= {"decoder_attention_heads": 2, "encoder_ffn_dim": 16, "decoder_ffn_dim": 16}
WHISPER = BART | {"num_mel_bins": 4, "max_source_positions": 8, "max_target_positions": 16}
BERT = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
GEMMA = {
    "hidden_size": 16,
    "lru_width": 16,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 8,
}
GEMMA |= {"intermediate_size": 24, "num_hidden_layers": 3, "attention_window_size": 16}
XLSTM = {"hidden_size": 16, "num_heads": 2, "num_blocks": 1, "num_hidden_layers": 1}


def models(name: str, config: dict[str, Any], **others: Any) -> tuple[Any, Any]:
    """A student and a teacher that is surer, of a class of transformers."""
    torch.manual_seed(0)
    kind = getattr(transformers, name)
    tokens = {"vocab_size": CLASSES, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
    settings = kind.config_class(**{**tokens, "decoder_start_token_id": 1, **config, **others})
    student, teacher = (kind(settings).eval() for _ in range(2))
    with torch.no_grad():
        for parameter in teacher.parameters():
            parameter.mul_(1.5)
    return student, teacher


def divergence(p: Tensor, q: Tensor, labels: Tensor) -> float:
    """The mean KL(P || Q) of the positions whose own label counts, by loops."""
    rows: list[float] = []
    for a, b, label in zip(p.flatten(0, -2), q.flatten(0, -2), labels.flatten().tolist(), strict=True):
        if label != -100:
            log_p, log_q = (
                [x - y for y in [math.log(math.fsum(map(math.exp, s)))] for x in s]
                for s in (a.tolist(), b.tolist())
            )
            rows.append(math.fsum(math.exp(x) * (x - y) for x, y in zip(log_p, log_q, strict=True)))
    return math.fsum(rows) / len(rows)


def trainer_of(folder: Path, student: Any, teacher: Any, loss: Any = None, **others: Any) -> Any:
    others = {"train_dataset": examples(8)} | others
    return DistillationTrainer(student, arguments(folder), teacher=teacher, loss=loss, **others)


def shifted_right(labels: Tensor, start: int) -> Tensor:
    """The tokens that a decoder reads before each label."""
    rows = [[start, *[0 if x == -100 else x for x in row[:-1]]] for row in labels.tolist()]
    return torch.tensor(rows)


def test_encoders_with_decoders_take_labels_as_they_are(tmp_path: Path) -> None:
    # Labels after padding count too, so that a shift changes the value.
    for name, config in (
        ("T5ForConditionalGeneration", T5),
        ("BartForConditionalGeneration", BART),
        ("WhisperForConditionalGeneration", WHISPER),
    ):
        student, teacher = models(name, config)
        batch = batch_of(examples(4))
        labels = batch["labels"] = batch["labels"][:, :7]
        if name.startswith("Whisper"):
            batch = {"labels": labels, "input_features": torch.randn(4, 4, 16)}
        decoder = {"decoder_input_ids": shifted_right(labels, student.config.decoder_start_token_id)}
        bare = {key: x for key, x in batch.items() if key != "labels"}
        p, q = (m(**bare, **decoder, use_cache=False).logits for m in (teacher, student))
        want, shifted = (
            divergence(p, q, labels),
            float(kl_by_hand(p, q, labels)[0] / kl_by_hand(p, q, labels)[1]),
        )
        assert abs(want - shifted) > 1e-3 * want, name
        trainer = trainer_of(tmp_path, student, teacher)
        for given in (batch, batch | decoder):  # as HF's Trainer takes, and as its collator makes
            found = trainer.compute_loss(student, dict(given))
            assert float(found) == pytest.approx(want, rel=1e-5), name
        module = DistillationModule(student, teacher)
        assert float(module.training_step(dict(batch), 0)) == pytest.approx(want, rel=1e-5), name
        with refused(
            ArgumentValueError,
            argument="causal",
            wanted="such as one with an encoder and a decoder",
            instead="causal=None",
        ):
            trainer_of(tmp_path, student, teacher, causal=True)
        aligned = trainer_of(tmp_path, student, teacher, causal=False).compute_loss(student, dict(batch))
        assert float(aligned) == pytest.approx(want, rel=1e-5), name


def test_an_encoder_with_a_decoder_trains_with_labels_only(tmp_path: Path) -> None:
    student, teacher = models("T5ForConditionalGeneration", T5)
    trainer = trainer_of(tmp_path, student, teacher, train_dataset=examples())
    trainer.train()
    assert losses(trainer)[-1] < 0.9 * losses(trainer)[0]
    assert not trainer._loss_shifts_labels


def test_padding_of_a_decoder_is_its_own_mask(tmp_path: Path) -> None:
    student, teacher = models("T5ForConditionalGeneration", T5)
    tokens = batch_of(examples(3))["input_ids"]
    seen = torch.arange(10) < torch.tensor([[10], [10], [10]])
    decoded = torch.arange(10) < torch.tensor([[2], [5], [9]])
    batch = {"input_ids": tokens, "attention_mask": seen.long(), "decoder_input_ids": tokens}
    batch["decoder_attention_mask"] = decoded.long()
    p, q = (m(**batch).logits for m in (teacher, student))
    want = divergence(p, q, torch.where(decoded, 1, -100))
    assert float(trainer_of(tmp_path, student, teacher).compute_loss(student, batch)) == pytest.approx(
        want, rel=1e-5
    )


def test_outputs_of_an_encoder_and_a_decoder_are_not_shifted() -> None:
    student, teacher = models("T5ForConditionalGeneration", T5)
    batch = batch_of(examples(4))
    outputs = student(**batch)
    outputs["teacher_logits"] = teacher(**batch).logits
    want = divergence(outputs["teacher_logits"], outputs.logits, batch["labels"])
    assert float(compute_loss_func()(outputs, batch["labels"])) == pytest.approx(want, rel=1e-5)
    with refused(ArgumentValueError, instead="causal=None, which follows the model"):
        compute_loss_func(causal=True)(outputs, batch["labels"])


def test_models_that_fill_masks_or_classify_are_not_shifted(tmp_path: Path) -> None:
    batch = batch_of(examples(4))
    for name in ("BertForMaskedLM", "BertForTokenClassification"):
        student, teacher = models(name, BERT, num_labels=CLASSES)
        p, q = (m(**batch).logits for m in (teacher, student))
        want = divergence(p, q, batch["labels"])
        for trainer in (
            trainer_of(tmp_path, student, teacher),
            trainer_of(tmp_path, student, teacher, causal=False),
        ):
            assert float(trainer.compute_loss(student, dict(batch))) == pytest.approx(want, rel=1e-5), name
        with refused(ArgumentValueError, instead="causal="):
            trainer_of(tmp_path, student, teacher, causal=True)
    student, teacher = models("BertForSequenceClassification", BERT, num_labels=3)
    rows = batch | {"labels": torch.tensor([0, 2, 1, 0])}
    p, q = (m(**rows).logits for m in (teacher, student))
    found = trainer_of(tmp_path, student, teacher).compute_loss(student, dict(rows))
    assert float(found) == pytest.approx(divergence(p, q, rows["labels"]), rel=1e-5)


class Own(transformers.LlamaForCausalLM):
    """A user's class of a causal model."""


def test_causal_models_are_shifted_in_every_trainer(tmp_path: Path) -> None:
    plain = language_models()
    own = tuple(Own(model.config) for model in plain)
    gpt = models("GPT2LMHeadModel", {"n_embd": 16, "n_layer": 1, "n_head": 2})
    batch = batch_of(examples(4))
    for student, teacher in (plain, own, gpt):
        p, q = (m(batch["input_ids"]).logits for m in (teacher.eval(), student.eval()))
        total, count = kl_by_hand(p, q, batch["labels"])
        for value in (
            trainer_of(tmp_path, student, teacher).compute_loss(student, dict(batch)),
            DistillationModule(student, teacher).training_step(dict(batch), 0),
        ):
            torch.testing.assert_close(value.double(), total / count, rtol=1e-5, atol=1e-12)
    student, teacher = plain  # labels that were shifted beforehand
    p, q = (m(batch["input_ids"]).logits for m in (teacher, student))
    found = DistillationModule(student, teacher, causal=False).training_step(dict(batch), 0)
    assert float(found) == pytest.approx(divergence(p, q, batch["labels"]), rel=1e-5)


def test_the_trainer_counts_labels_as_the_loss_does(tmp_path: Path) -> None:
    gpt = models("GPT2LMHeadModel", {"n_embd": 16, "n_layer": 1, "n_head": 2})
    batch = batch_of(examples(4))
    batch["labels"] = batch["input_ids"]
    for causal, count in ((None, 4 * 9), (True, 4 * 9), (False, 4 * 10)):
        trainer = trainer_of(tmp_path, *gpt, causal=causal)
        assert int(trainer._get_num_items_in_batch([batch], torch.device("cpu"))) == count, causal


@pytest.mark.parametrize("make", [DistillationLoss, LinearDistillationLoss])
def test_prompts_of_peft_do_not_count(tmp_path: Path, make: Any) -> None:
    batch = batch_of(examples(4))
    for config in (
        peft.PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=3),
        peft.PromptEncoderConfig(task_type="CAUSAL_LM", num_virtual_tokens=2, encoder_hidden_size=8),
        peft.PrefixTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=3),
    ):
        student, teacher = language_models()
        torch.manual_seed(1)
        model = peft.get_peft_model(student, config)
        bare = {name: x for name, x in batch.items() if name != "labels"}
        q = model(**bare).logits[:, -10:]
        p = teacher(**bare).logits
        total, count = kl_by_hand(p, q, batch["labels"])
        trainer = trainer_of(tmp_path, model, teacher, make())
        loss = trainer.compute_loss(model, dict(batch))
        torch.testing.assert_close(loss.double(), total / count, rtol=1e-5, atol=0)
        prompt = [x for x in model.parameters() if x.requires_grad]
        for mine, true in zip(
            torch.autograd.grad(loss, prompt), torch.autograd.grad(total / count, prompt), strict=True
        ):
            torch.testing.assert_close(mine, true, rtol=1e-4, atol=1e-6)
        taught = trainer_of(tmp_path, language_models()[0], model, make())  # the prompt is the teacher's
        other = taught.model
        total, count = kl_by_hand(q, other(**bare).logits, batch["labels"])
        torch.testing.assert_close(
            taught.compute_loss(other, dict(batch)).double(), total / count, rtol=1e-5, atol=0
        )


def test_a_head_that_peft_trains_whole_is_served(tmp_path: Path) -> None:
    student, teacher = language_models()
    torch.manual_seed(1)
    config = peft.LoraConfig(
        r=4, target_modules=["q_proj"], modules_to_save=["lm_head"], task_type="CAUSAL_LM"
    )
    model = peft.get_peft_model(student, config)
    saved = model.get_base_model().lm_head.modules_to_save["default"].weight
    with torch.no_grad():
        saved.add_(0.1)  # as after some training
    batch = batch_of(examples(4))
    total, count = kl_by_hand(*(m(batch["input_ids"]).logits for m in (teacher, model)), batch["labels"])
    loss = trainer_of(tmp_path, model, teacher, LinearDistillationLoss()).compute_loss(model, dict(batch))
    torch.testing.assert_close(loss.double(), total / count, rtol=1e-5, atol=0)
    mine, true = (torch.autograd.grad(x, saved)[0] for x in (loss, total / count))
    torch.testing.assert_close(mine, true, rtol=1e-4, atol=1e-7)
    with model.disable_adapter():
        total, count = kl_by_hand(*(m(batch["input_ids"]).logits for m in (teacher, model)), batch["labels"])
        loss = trainer_of(tmp_path, model, teacher, LinearDistillationLoss()).compute_loss(model, dict(batch))
        torch.testing.assert_close(loss.double(), total / count, rtol=1e-5, atol=0)


def test_caps_of_other_names_are_read(tmp_path: Path) -> None:
    batch = batch_of(examples(4))
    for name, config, setting in (
        ("RecurrentGemmaForCausalLM", GEMMA, "logits_soft_cap"),
        ("xLSTMForCausalLM", XLSTM, "output_logit_soft_cap"),
        ("Gemma2ForCausalLM", {**GEMMA, "lru_width": None}, "final_logit_softcapping"),
    ):
        kind = getattr(transformers, name).config_class
        assert head_configuration(None).softcap is None
        made = kind(
            **{key: x for key, x in config.items() if x is not None}, vocab_size=CLASSES, **{setting: 7.5}
        )
        assert head_configuration(made) == (7.5, 1.0), name
    student, teacher = models(
        "RecurrentGemmaForCausalLM", GEMMA, logits_soft_cap=1e4
    )  # changes no logit visibly
    wrong = trainer_of(tmp_path, student, teacher, LinearDistillationLoss())
    with refused(ArgumentValueError, got="^softcap=None", instead=r"softcap=\.\.\."):
        wrong.compute_loss(student, dict(batch))
    right = trainer_of(tmp_path, student, teacher, LinearDistillationLoss(softcap=1e4))
    total, count = kl_by_hand(*(m(batch["input_ids"]).logits for m in (teacher, student)), batch["labels"])
    torch.testing.assert_close(
        right.compute_loss(student, dict(batch)).double(), total / count, rtol=1e-4, atol=0
    )


class Quantized(Tensor):
    """A weight that supports a linear layer and little else, as torchao's."""

    @staticmethod
    def __new__(cls, numbers: Tensor, scale: float) -> Self:
        return Tensor._make_wrapper_subclass(cls, numbers.shape, dtype=torch.float32)  # type: ignore[attr-defined]

    def __init__(self, numbers: Tensor, scale: float) -> None:
        self.numbers, self.scale = numbers, scale

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.nn.functional.linear:
            x, weight, *others = args
            return func(x, weight.numbers.float() * weight.scale, *others)
        return super().__torch_function__(func, types, args, kwargs or {})

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten.detach.default:
            return cls(args[0].numbers, args[0].scale)
        raise NotImplementedError(f"{func} of {types}")


class Remote(torch.nn.Module):
    """A teacher without a head to read."""

    def forward(self, input_ids: Tensor, **_: Any) -> dict[str, Tensor]:
        return {"logits": torch.zeros(*input_ids.shape, CLASSES)}


def quantized() -> Any:
    teacher = language_models()[1]
    numbers = (teacher.lm_head.weight * 100).round().to(torch.int8)
    teacher.lm_head.weight = torch.nn.Parameter(Quantized(numbers, 0.01), requires_grad=False)
    return teacher


def released() -> Any:
    """A teacher whose head has its weight during the forward pass alone, as with DeepSpeed's stage 3."""
    teacher = language_models()[1]
    weight = teacher.lm_head.weight.data

    def give(*_: Any) -> None:
        teacher.lm_head.weight.data = weight

    def take(*_: Any) -> None:
        teacher.lm_head.weight.data = weight.new_empty(0)

    teacher.register_forward_pre_hook(give)
    teacher.register_forward_hook(take)
    return teacher


def offloaded(folder: Path) -> Any:
    return accelerate.disk_offload(language_models()[1], folder / "offloaded", torch.device("cpu"))


def test_heads_that_cannot_be_read_are_described_and_their_logits_are_served(tmp_path: Path) -> None:
    batch = batch_of(examples(4))
    for make, words in (
        (
            quantized,
            r"a teacher whose head has a plain weight.*of class Quantized, such as a quantized weight",
        ),
        (lambda: offloaded(tmp_path), "one on the meta device, because accelerate keeps its numbers on disk"),
        (released, "a part of it, as the first FSDP or DeepSpeed's stage 3 has sharded it again"),
        (Remote, "a teacher without get_output_embeddings.*a LinearDistillationLoss and a Remote"),
    ):
        student, teacher = language_models()[0], make()
        fused = trainer_of(tmp_path, student, teacher, LinearDistillationLoss())
        with pytest.raises(ArgumentValueError, match=words + r".*loss=kullback\.nn\.DistillationLoss\(\)"):
            fused.compute_loss(student, dict(batch))
        bare = {name: x for name, x in batch.items() if name != "labels"}
        with torch.no_grad():
            p, q = (m(**bare)["logits"] for m in (teacher, student))
        total, count = kl_by_hand(p, q, batch["labels"])
        dense = trainer_of(tmp_path, student, teacher, DistillationLoss()).compute_loss(student, dict(batch))
        torch.testing.assert_close(dense.double(), total / count, rtol=1e-5, atol=0)
        dense = DistillationModule(student, teacher, causal=True).training_step(dict(batch), 0)
        torch.testing.assert_close(dense.double(), total / count, rtol=1e-5, atol=0)


def test_a_head_that_is_sharded_again_is_gathered(tmp_path: Path) -> None:
    from torch.distributed.fsdp import fully_shard

    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        mesh = torch.distributed.device_mesh.init_device_mesh("cpu", (1,))
        batch = batch_of(examples(4))
        for side in ("student", "teacher"):
            for of_its_own in (False, True):
                plain = language_models()
                total, count = kl_by_hand(
                    *(m(batch["input_ids"]).logits for m in reversed(plain)), batch["labels"]
                )
                want = torch.autograd.grad(total / count, plain[0].lm_head.weight)[0]
                student, teacher = language_models()
                model = student if side == "student" else teacher
                if of_its_own:
                    fully_shard(model.lm_head, mesh=mesh)
                fully_shard(model, mesh=mesh, reshard_after_forward=True)
                trainer = trainer_of(tmp_path, student, teacher, LinearDistillationLoss())
                for _ in range(2):
                    student.zero_grad()
                    loss = trainer.compute_loss(student, dict(batch))
                    loss.backward()
                torch.testing.assert_close(loss.double(), total / count, rtol=1e-5, atol=0)
                gradient = student.lm_head.weight.grad
                gradient = gradient.full_tensor() if side == "student" else gradient
                torch.testing.assert_close(gradient, want, rtol=1e-4, atol=1e-7)
    finally:
        torch.distributed.destroy_process_group()


def test_a_wrapped_student_has_the_head_of_its_model() -> None:
    batch = batch_of(examples(4))
    for make in (DistillationLoss, LinearDistillationLoss):
        student, teacher = language_models()
        module = DistillationModule(torch.nn.DataParallel(student), torch.nn.DataParallel(teacher), make())
        total, count = kl_by_hand(
            *(m(batch["input_ids"]).logits for m in (teacher, student)), batch["labels"]
        )
        loss = module.training_step(dict(batch), 0)
        torch.testing.assert_close(loss.double(), total / count, rtol=1e-5, atol=0)


@pytest.mark.parametrize("make", [DistillationLoss, LinearDistillationLoss])
def test_an_infinite_loss_of_masked_vocabularies_is_refused_at_the_first_batch(
    tmp_path: Path, make: Any
) -> None:
    batch, big = batch_of(examples(4)), CLASSES + 12
    for kind, sizes, which in (
        ("kl", (CLASSES, big), "teacher"),
        ("jeffreys", (CLASSES, big), "teacher"),
        ("jeffreys", (big, CLASSES), "student"),
        ("reverse_kl", (big, CLASSES), "student"),
        ("chi2", (CLASSES, big), "teacher"),
    ):
        student, teacher = (language_models(vocab_size=size)[i] for i, size in enumerate(sizes))
        trainer = trainer_of(tmp_path, student, teacher, make(kind=kind, vocabulary="mask"))
        with refused(ArgumentValueError, wanted=f"is .inf if the {which} has more classes") as caught:
            trainer.compute_loss(student, dict(batch))
        assert "vocabulary='truncate'" in str(caught.value)
        for remedy in ({"vocabulary": "truncate", "kind": kind}, {"vocabulary": "mask", "kind": "js:0.5"}):
            served = trainer_of(tmp_path, student, teacher, make(**remedy)).compute_loss(student, dict(batch))
            assert 0 < float(served) < math.inf, (kind, remedy)
    for kind, sizes in (("kl", (big, CLASSES)), ("reverse_kl", (CLASSES, big)), ("tv", (CLASSES, big))):
        student, teacher = (language_models(vocab_size=size)[i] for i, size in enumerate(sizes))
        trainer = trainer_of(tmp_path, student, teacher, make(kind=kind, vocabulary="mask"))
        assert 0 < float(trainer.compute_loss(student, dict(batch))) < math.inf, (kind, sizes)


def test_an_infinite_loss_is_refused_in_training_by_every_door(tmp_path: Path) -> None:
    student, teacher = language_models()[0], language_models(vocab_size=CLASSES + 1)[1]
    loss = DistillationLoss(vocabulary="mask")
    with refused(ArgumentValueError, wanted="a finite loss"):
        trainer_of(tmp_path, student, teacher, loss).train()
    with refused(ArgumentValueError, wanted="a finite loss"):
        DistillationModule(torch.nn.Linear(4, 3), torch.nn.Linear(4, 5), loss).training_step(
            torch.zeros(2, 4), 0
        )
    outputs = {"logits": torch.zeros(2, 3), "teacher_logits": torch.zeros(2, 5)}
    with refused(ArgumentValueError, wanted="a finite loss"):
        compute_loss_func(loss, causal=False)(outputs, None)
    # The first batch has no label, so the second one shows it.
    trainer, batch = trainer_of(tmp_path, student, teacher, loss), batch_of(examples(4))
    ignored = batch | {"labels": torch.full_like(batch["labels"], -100)}
    assert trainer.compute_loss(student, ignored) == 0
    with refused(ArgumentValueError, wanted="a finite loss"):
        trainer.compute_loss(student, dict(batch))


@pytest.mark.filterwarnings("default")
def test_trainers_warn_of_a_batch_without_labels(tmp_path: Path) -> None:
    student, teacher = language_models()
    batch = batch_of(examples(4))
    first_alone = torch.full_like(batch["labels"], -100)
    first_alone[:, 0] = 5  # which no position predicts
    for labels in (torch.full_like(batch["labels"], -100), first_alone):
        given = batch | {"labels": labels}
        for compute in (
            lambda x: trainer_of(tmp_path, student, teacher).compute_loss(student, x),
            lambda x: DistillationModule(student, teacher).training_step(x, 0),
            lambda x: compute_loss_func()(
                {"logits": student(x["input_ids"]).logits, "teacher_logits": teacher(x["input_ids"]).logits},
                x["labels"],
            ),
        ):
            with pytest.warns(UserWarning, match=r"labels=\.\.\.\): every label is -100"):
                assert compute(dict(given)) == 0
