"""The adapter to TRL's stable DistillationTrainer, compared with the real one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from kullback.errors import ArgumentTypeError, ArgumentValueError
from kullback.nn import DistillationLoss, LinearDistillationLoss
from tests.integrations.tiny import arguments, kl_by_hand, language_models, losses
from tests.models.tiny import make_tokenizer

pytest.importorskip("transformers")
pytest.importorskip("trl")
from datasets import Dataset
from trl import DistillationConfig, DistillationTrainer as TheirTrainer

from kullback.integrations.trl import DistillationTrainer
from tests.refusals import refused

pytestmark = [pytest.mark.heavy, pytest.mark.filterwarnings("ignore")]  # of TRL's own


def left_padding() -> Any:
    made = make_tokenizer(tokens=300)
    made.padding_side = "left"
    return made


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return left_padding()


def trainer_of(
    kind: type,
    folder: Path,
    tokenizer: Any,
    model: str = "Llama",
    loss: Any = None,
    peft_config: Any = None,
    **settings: Any,
) -> Any:
    of_model = {"Gemma2": {"final_logit_softcapping": 0.3, "head_dim": 8}, "Cohere": {"logit_scale": 0.5}}
    of_model["Cohere2"] = of_model["Cohere"]
    recurrent = {"logits_soft_cap": 0.3, "lru_width": 16, "head_dim": 8, "num_hidden_layers": 3}
    of_model["RecurrentGemma"] = {**recurrent, "intermediate_size": 24, "attention_window_size": 16}
    student, teacher = language_models(model, vocab_size=300, **of_model.get(model, {}))
    rows = Dataset.from_list([{"prompt": "the cat " * (1 + i % 3)} for i in range(16)])
    return kind(
        student,
        teacher,
        args=arguments(folder, DistillationConfig, **{"max_completion_length": 5, "bf16": False} | settings),
        train_dataset=rows,
        processing_class=tokenizer,
        peft_config=peft_config,
        **({} if loss is None else {"loss": loss}),
    )


def batch_for(trainer: Any) -> dict[str, Any]:
    """A batch with prompts padded on the left, completions that end early, and a token made by a tool."""
    generator = torch.Generator().manual_seed(2)
    prompts, completions = (torch.randint(3, 300, (4, n), generator=generator) for n in (4, 5))
    tools = torch.ones(4, 5, dtype=torch.long)
    tools[1, 2] = 0
    return {
        "prompt_ids": prompts,
        "prompt_mask": (torch.arange(4) >= torch.tensor([[0], [1], [3], [0]])).long(),
        "completion_ids": completions,
        "completion_mask": (torch.arange(5) < torch.tensor([[5], [4], [1], [5]])).long(),
        "tool_mask": tools,
        "num_items_in_batch": torch.tensor(31.0),
    }


def of_both(folder: Path, tokenizer: Any, dtype: torch.dtype | None = None, **settings: Any) -> Any:
    """The losses and gradients of TRL's trainer and of ours, of a model that accelerate has prepared."""
    values, gradients = [], []
    for kind in (TheirTrainer, DistillationTrainer):
        trainer = trainer_of(kind, folder, tokenizer, temperature=1.7, **settings)
        for model in (trainer.model, trainer.teacher_model):
            model.to(dtype)
        prepared = trainer.accelerator.prepare_model(trainer.model)
        forwards = [model.forward for model in (trainer.model, trainer.teacher_model)]
        loss = trainer.compute_loss(prepared, batch_for(trainer))
        assert [model.forward for model in (trainer.model, trainer.teacher_model)] == forwards
        values.append(loss.detach())
        gradients.append(torch.autograd.grad(loss, list(trainer.model.parameters()), allow_unused=True))
    return values, gradients


@pytest.mark.parametrize("model", ["Llama", "Gemma2", "Cohere"])
@pytest.mark.parametrize("beta", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("bf16", [False, True])
def test_losses_and_gradients_are_trls(
    tmp_path: Path, tokenizer: Any, beta: float, model: str, bf16: bool
) -> None:
    # With bf16=True, TRL computes models of float32 weights in float32, because it calls only their decoders.
    values, gradients = of_both(tmp_path, tokenizer, model=model, beta=beta, bf16=bf16)
    # TRL's sum of signed terms rounds to about 1e-7.
    torch.testing.assert_close(values[1], values[0], rtol=0, atol=1e-7)
    for theirs, mine in zip(*gradients, strict=True):
        assert (theirs is None) == (mine is None)
        if theirs is not None:
            torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("beta", [0.0, 1.0])
def test_logits_of_bfloat16_weights_are_not_rounded(tmp_path: Path, tokenizer: Any, beta: float) -> None:
    values, gradients = of_both(tmp_path, tokenizer, torch.bfloat16, beta=beta)
    torch.testing.assert_close(values[1], values[0], rtol=1e-5, atol=0)
    for theirs, mine in zip(*gradients, strict=True):  # both round the logits' gradient to bfloat16
        torch.testing.assert_close(mine, theirs, rtol=0.02, atol=1e-2 * float(theirs.abs().max()))


def test_a_head_that_peft_saves_is_the_copy_that_learns(tmp_path: Path, tokenizer: Any) -> None:
    peft = pytest.importorskip("peft")
    of_head: dict[type, tuple[Any, ...]] = {}
    for kind in (TheirTrainer, DistillationTrainer):
        torch.manual_seed(1)
        config = peft.LoraConfig(
            r=2, target_modules=["q_proj"], modules_to_save=["lm_head"], task_type="CAUSAL_LM"
        )
        trainer = trainer_of(
            kind,
            tmp_path,
            tokenizer,
            peft_config=config,
            beta=0.0,
            max_steps=3,
            learning_rate=1e-3,
            bf16=True,
        )
        head = trainer.model.get_base_model().lm_head
        saved, original = head.modules_to_save["default"].weight, head.original_module.weight
        with torch.no_grad():
            saved.add_(0.1 * torch.randn(saved.shape, generator=torch.Generator().manual_seed(4)))
        start, base = saved.detach().clone(), original.detach().clone()
        loss = trainer.compute_loss(trainer.model, batch_for(trainer))
        gradient = torch.autograd.grad(loss, saved)[0]
        trainer.train()
        assert not torch.equal(saved, start)
        assert torch.equal(original, base)
        of_head[kind] = loss.detach(), gradient, saved.detach() - start, losses(trainer)
    (*theirs, their_logs), (*ours, our_logs) = of_head.values()
    for name, mine, want in zip(("loss", "gradient", "steps"), ours, theirs, strict=True):
        torch.testing.assert_close(
            mine, want, rtol=1e-4, atol=1e-6, msg=lambda text, name=name: f"{name}: {text}"
        )
    assert our_logs == pytest.approx(their_logs, rel=1e-5)


def test_the_cap_of_a_recurrent_model_is_read(tmp_path: Path, tokenizer: Any) -> None:
    trainer = trainer_of(DistillationTrainer, tmp_path, tokenizer, "RecurrentGemma", beta=0.0)
    batch = batch_for(trainer)
    assert trainer.batch_loss.loss.softcap == (0.3, 0.3)
    tokens = torch.cat([batch["prompt_ids"], batch["completion_ids"]], 1)
    seen = torch.cat([batch["prompt_mask"], batch["completion_mask"]], 1)
    counted = torch.cat(
        [torch.zeros_like(batch["prompt_mask"]), batch["completion_mask"] * batch["tool_mask"]], 1
    )
    with torch.no_grad():
        p, q = (m(tokens, attention_mask=seen).logits for m in (trainer.teacher_model, trainer.model))
    total, _ = kl_by_hand(p, q, torch.where(counted.bool(), tokens, -100))
    assert trainer.compute_loss(trainer.model, batch).item() == pytest.approx(float(total) / 31, rel=1e-4)


@pytest.mark.parametrize("bf16", [False, True])
def test_it_trains_and_logs_as_trls_trainer_does(tmp_path: Path, tokenizer: Any, bf16: bool) -> None:
    logs = []
    logits = DistillationLoss(kind="js:0.5", temperature=1.2)
    settings = {"max_steps": 4, "logging_steps": 1, "gradient_accumulation_steps": 2, "temperature": 1.2}
    settings["bf16"] = bf16
    for kind, loss in ((TheirTrainer, None), (DistillationTrainer, None), (DistillationTrainer, logits)):
        trainer = trainer_of(kind, tmp_path, tokenizer, loss=loss, beta=0.5, **settings)
        trainer.train()
        logs.append([entry for entry in trainer.state.log_history if "loss" in entry])
    for theirs, *ours in zip(*logs, strict=True):
        for mine in ours:
            assert set(mine) == set(theirs)
            for name in ("loss", "grad_norm", "entropy", "num_tokens", "completions/mean_length"):
                assert mine[name] == pytest.approx(theirs[name], rel=1e-3)


@pytest.mark.parametrize("make", [DistillationLoss, LinearDistillationLoss])
def test_any_divergence(tmp_path: Path, tokenizer: Any, make: Any) -> None:
    trainer = trainer_of(DistillationTrainer, tmp_path, tokenizer, loss=make(kind="kl"), max_steps=30)
    batch = batch_for(trainer)
    tokens = torch.cat([batch["prompt_ids"], batch["completion_ids"]], 1)
    seen = torch.cat([batch["prompt_mask"], batch["completion_mask"]], 1)
    counted = torch.cat(
        [torch.zeros_like(batch["prompt_mask"]), batch["completion_mask"] * batch["tool_mask"]], 1
    )
    with torch.no_grad():
        p, q = (m(tokens, attention_mask=seen).logits for m in (trainer.teacher_model, trainer.model))
    total, _ = kl_by_hand(p, q, torch.where(counted.bool(), tokens, -100))
    found = trainer.compute_loss(trainer.model, batch)
    assert found.item() == pytest.approx(float(total) / 31, rel=1e-5)
    trainer.train()
    logged = losses(trainer)
    assert sum(logged[-3:]) < 0.8 * sum(logged[:3])


def test_wrong_losses(tmp_path: Path, tokenizer: Any) -> None:
    with refused(ArgumentTypeError, wanted="^a DistillationLoss"):
        trainer_of(DistillationTrainer, tmp_path, tokenizer, loss="js:0.5")
    with refused(ArgumentValueError, got="reduction='none'"):
        trainer_of(DistillationTrainer, tmp_path, tokenizer, loss=DistillationLoss(reduction="none"))
    capped = trainer_of(
        DistillationTrainer, tmp_path, tokenizer, "Gemma2", loss=LinearDistillationLoss(softcap=0.4)
    )
    with refused(ArgumentValueError, got=r"softcap=0\.4"):
        capped.compute_loss(capped.model, batch_for(capped))
