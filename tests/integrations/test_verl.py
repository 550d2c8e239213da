"""verl's distillation losses: the function on logits, and registration, with the package or one of its signature."""

from __future__ import annotations

import importlib
import importlib.util
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from kullback import JensenShannon
from kullback.errors import KullbackError, OptionalDependencyError, RegistrationError
from kullback.functional import Scored, TopK, top_k_divergence
from kullback.integrations.verl import register, top_k_loss
from tests.refusals import refused

pytestmark = pytest.mark.heavy

CLASSES, K = 50, 4


def packed(n: int = 7) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Student's logits of packed tokens, the teacher's, and the teacher's top tokens."""
    torch.manual_seed(2)
    teacher = torch.randn(1, n, CLASSES) * 2
    student = (teacher + torch.randn(1, n, CLASSES) * 0.3).requires_grad_()
    log_probs, ids = teacher.log_softmax(-1).topk(K)
    return student, teacher, log_probs, ids


def nested(x: Tensor) -> Tensor:
    """As verl holds it: two sequences of 3 and n - 3 tokens."""
    return torch.nested.nested_tensor([x[0, :3], x[0, 3:]], layout=torch.jagged)


def config(name: str) -> Any:
    settings = SimpleNamespace(loss_mode=name, log_prob_min_clamp=None, topk=K, use_chunked_topk=False)
    return SimpleNamespace(distillation_loss=settings)


@pytest.mark.parametrize("tail", ["bucket", "renormalize", "zero"])
def test_the_loss_is_that_of_top_classes(tail: Any) -> None:
    student, _, log_probs, ids = packed()
    for given in ((log_probs, ids), (nested(log_probs), nested(ids))):
        found = top_k_loss("js:0.3", tail)(
            student_logits=student,
            teacher_topk_log_probs=given[0],
            teacher_topk_ids=given[1],
            config=config("x"),
            data_format="thd",
        )
        want = top_k_divergence(JensenShannon(0.3), TopK(ids, log_probs, tail=tail), student)
        assert torch.equal(found["distillation_losses"], want)
        assert all(x.shape == (1, 7) for x in found.values())
        found["distillation_losses"].sum().backward()


@pytest.mark.parametrize("tail", ["bucket", "renormalize", "zero"])
def test_tokens_of_the_students_choice(tail: Any) -> None:
    student, teacher, _, _ = packed()
    ids = student.detach().topk(K).indices
    log_probs = teacher.log_softmax(-1).gather(-1, ids)
    losses = top_k_loss("reverse_kl", tail, scored=True)(student, nested(log_probs), nested(ids), None, "thd")
    want = top_k_divergence("reverse_kl", Scored(ids, log_probs, tail=tail), student)
    assert torch.equal(losses["distillation_losses"], want)
    if tail == "bucket":  # what the loss leaves out is the divergence inside the bucket
        log_q, log_p = student.detach().double().log_softmax(-1), teacher.double().log_softmax(-1)
        whole = (log_q.exp() * (log_q - log_p)).sum(-1)
        inside = [
            (side.scatter(-1, ids, -torch.inf)).log_softmax(-1).nan_to_num(neginf=-1e9)
            for side in (log_q, log_p)
        ]
        rest = 1 - log_q.exp().gather(-1, ids).sum(-1)
        missing = rest * (inside[0].exp() * (inside[0] - inside[1])).sum(-1)
        torch.testing.assert_close(want.detach().double(), whole - missing, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("tail", ["bucket", "renormalize", "zero"])
@pytest.mark.parametrize("scored", [False, True])
def test_rows_that_predict_nothing_count_nothing(tail: Any, scored: bool) -> None:
    # verl's servers of vLLM and SGLang end each sequence with the tokens 0 and the log-probabilities 0.
    student, _, log_probs, ids = packed()
    last = torch.tensor([2, 6])  # the last rows of both sequences
    student.data[:, last, :3] = -torch.inf
    others = torch.tensor([0, 1, 3, 4, 5])
    filled = log_probs.index_fill(1, last, 0.0), ids.index_fill(1, last, 0)
    losses = top_k_loss("kl", tail, scored=scored)(student, *map(nested, filled), None, "thd")
    values = losses["distillation_losses"]
    assert not values[:, last].any()
    gradient = torch.autograd.grad(values.sum(), student)[0]
    assert not gradient[:, last].any()
    part = student.detach()[:, others].requires_grad_()
    want = top_k_divergence("kl", TopK(ids[:, others], log_probs[:, others], tail=tail), part)
    torch.testing.assert_close(values[:, others], want, rtol=1e-6, atol=0)
    torch.testing.assert_close(gradient[:, others], torch.autograd.grad(want.sum(), part)[0])


def test_masses_and_overlaps() -> None:
    student, _, log_probs, ids = packed()
    found = top_k_loss()(student, log_probs, ids, None, "thd")
    q = student.detach().double().log_softmax(-1)
    for n in range(7):
        mine = {int(i): float(x) for i, x in zip(ids[0, n], log_probs[0, n], strict=True)}
        top = set(q[0, n].topk(K).indices.tolist())
        shared = top & set(mine)
        assert float(found["student_mass"][0, n]) == pytest.approx(
            sum(float(q[0, n, i].exp()) for i in mine), rel=1e-5
        )
        assert float(found["teacher_mass"][0, n]) == pytest.approx(
            float(log_probs[0, n].exp().sum()), rel=1e-5
        )
        assert int(found["overlap_count"][0, n]) == len(shared)
        terms = [float(torch.tensor(mine[i]).exp()) * (float(q[0, n, i]) - mine[i]) for i in shared]
        assert float(found["overlap_token_advantage"][0, n]) == pytest.approx(
            sum(terms) / max(len(terms), 1), rel=1e-4, abs=1e-6
        )
    assert not found["student_mass"].requires_grad


def test_a_bucket_is_a_bound_where_the_sum_over_top_tokens_is_negative() -> None:
    student, teacher, log_probs, ids = packed(200)
    log_p, log_q = teacher.double().log_softmax(-1), student.detach().double().log_softmax(-1)
    whole = (log_p.exp() * (log_p - log_q)).sum(-1)
    top = log_probs.double()
    partial = (top.exp() * (top - log_q.gather(-1, ids))).sum(-1)
    assert (partial < 0).double().mean() > 0.1
    mine = top_k_loss()(student, log_probs, ids, None, "thd")["distillation_losses"].double()
    assert bool((mine >= 0).all())
    assert bool((mine <= whole * (1 + 1e-5)).all())


def test_training_reaches_the_teacher_where_the_sum_over_top_tokens_passes_it() -> None:
    _, teacher, log_probs, ids = packed()
    for loss, off in (("bucket", 0.01), (None, 0.05)):
        student = torch.zeros_like(teacher).requires_grad_()
        optimizer = torch.optim.Adam([student], lr=0.1)
        for _ in range(300):
            if loss is None:  # verl's own
                q = student.log_softmax(-1).gather(-1, ids)
                value = (log_probs.exp() * (log_probs - q)).sum()
            else:
                value = top_k_loss("kl", loss)(student, log_probs, ids, None, "thd")[
                    "distillation_losses"
                ].sum()
            optimizer.zero_grad()
            value.backward()
            optimizer.step()
        mass = student.detach().softmax(-1).gather(-1, ids).sum(-1)
        distance = (mass - log_probs.exp().sum(-1)).abs().max()
        assert (distance < off) == (loss is not None)


@dataclass
class Settings:
    """verl's DistillationLossSettings."""

    names: Any = field(default_factory=list)
    use_topk: bool = False
    use_estimator: bool = False


def their_loss(**_: Any) -> str:
    return "theirs"


def documented() -> tuple[ModuleType, ModuleType]:
    """Modules of the names and signatures of verl 0.9."""
    losses, logits = ModuleType("losses"), ModuleType("logits")
    registry: dict[str, Any] = {}

    def register_distillation_loss(settings: Settings) -> Any:
        assert settings.use_topk != settings.use_estimator

        def decorate(function: Any) -> Any:
            registry.update(dict.fromkeys(settings.names, function))
            return function

        return decorate

    def compute_forward_kl_topk(config: Any, distillation_config: Any, model_output: Any, data: Any) -> Any:
        return model_output["distillation_losses"].clamp_min(0), {}

    losses.__dict__.update(
        DISTILLATION_LOSS_REGISTRY=registry,
        DistillationLossSettings=Settings,
        register_distillation_loss=register_distillation_loss,
        compute_forward_kl_topk=compute_forward_kl_topk,
    )
    register_distillation_loss(Settings(["forward_kl_topk"], use_topk=True))(compute_forward_kl_topk)
    logits.__dict__["compute_forward_kl_topk"] = their_loss
    return losses, logits


@pytest.fixture(params=["documented", "real"])
def verl(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Any, Any]]:
    """verl's two modules: those installed, or ones of its signature."""
    if request.param == "real":
        if importlib.util.find_spec("verl") is None:
            pytest.skip("verl is not installed")
        losses: Any = pytest.importorskip("verl.trainer.distillation.losses", exc_type=ImportError)
        logits: Any = importlib.import_module("verl.trainer.distillation.fsdp.losses")
    else:
        losses, logits = documented()
        for name in ("verl", "verl.trainer", "verl.trainer.distillation", "verl.trainer.distillation.fsdp"):
            monkeypatch.setitem(sys.modules, name, ModuleType(name))
        monkeypatch.setitem(sys.modules, "verl.trainer.distillation.losses", losses)
        monkeypatch.setitem(sys.modules, "verl.trainer.distillation.fsdp.losses", logits)
    monkeypatch.setattr(logits, "compute_forward_kl_topk", logits.compute_forward_kl_topk)
    before = dict(losses.DISTILLATION_LOSS_REGISTRY)
    yield losses, logits
    for name in losses.DISTILLATION_LOSS_REGISTRY.keys() - before:
        del losses.DISTILLATION_LOSS_REGISTRY[name]


def call(logits: Any, name: str, n: int = 7) -> Any:
    student, _, log_probs, ids = packed(n)
    return logits.compute_forward_kl_topk(
        student_logits=student,
        teacher_topk_log_probs=nested(log_probs),
        teacher_topk_ids=nested(ids),
        config=config(name),
        data_format="thd",
    )


@pytest.mark.filterwarnings("ignore")  # of verl's own
def test_registration(verl: tuple[Any, Any]) -> None:
    losses, logits = verl
    before = call(logits, "forward_kl_topk")
    register("kullback_js", "js:0.5")
    register("kullback_tv", "tv", tail="zero")
    assert {"kullback_js", "kullback_tv"} <= losses.DISTILLATION_LOSS_REGISTRY.keys()
    student, _, log_probs, ids = packed()
    for name, kind, tail in (("kullback_js", "js:0.5", "bucket"), ("kullback_tv", "tv", "zero")):
        want = top_k_divergence(kind, TopK(ids, log_probs, tail=tail), student)  # type: ignore[arg-type]
        assert torch.equal(call(logits, name)["distillation_losses"], want)
    after = call(logits, "forward_kl_topk")  # as it was
    assert str(after) == str(before)
    with refused(RegistrationError, call="register", wanted="a name that is none of .*kullback_js") as caught:
        register("kullback_js")
    register(re.findall(r"Write: name='(\w+)'", str(caught.value))[0])


@pytest.mark.filterwarnings("ignore")  # of verl's own
@pytest.mark.parametrize("scored", [False, True])
def test_steps_of_verls_own_loss(verl: tuple[Any, Any], scored: bool) -> None:
    losses, _ = verl
    if not hasattr(losses, "distillation_ppo_loss"):
        pytest.skip("verl is not installed")
    kind = "reverse_kl" if scored else "js:0.5"
    register("kullback_steps", kind, scored=scored)
    generator = torch.Generator().manual_seed(5)
    tokens = torch.randint(
        CLASSES, (10,), generator=generator
    )  # prompts of 2 and 3, responses of 3 and 2 tokens
    teacher = torch.randn(CLASSES, CLASSES, generator=generator)
    tables = [torch.zeros(CLASSES, CLASSES, requires_grad=True) for _ in range(2)]
    by_verl, by_hand = tables
    counted = torch.tensor([1, 2, 3, 7, 8])  # the rows that predict the responses
    values: list[list[float]] = [[], []]
    ids = (by_verl.detach() if scored else teacher)[tokens].topk(K).indices
    log_probs = teacher[tokens].log_softmax(-1).gather(-1, ids)
    ids[[4, 9]], log_probs[[4, 9]] = 0, 0.0  # as verl's servers end a sequence
    for _ in range(3):
        jagged = {
            "prompts": [tokens[:2], tokens[5:8]],
            "responses": [tokens[2:5], tokens[8:]],
            "response_mask": [torch.ones(3), torch.ones(2)],
            "teacher_ids": [ids[:5].int(), ids[5:].int()],
            "teacher_logprobs": [log_probs[:5], log_probs[5:]],
        }
        batch = {name: torch.nested.nested_tensor(x, layout=torch.jagged) for name, x in jagged.items()}
        data = batch | {"dp_size": 1, "batch_num_tokens": len(counted), "global_batch_size": 2}
        actor = SimpleNamespace(
            strategy="fsdp", loss_agg_mode="token-mean", loss_scale_factor=None, global_batch_info={}
        )
        settings = config("kullback_steps")
        vars(settings.distillation_loss).update(
            use_task_rewards=False, use_policy_gradient=False, loss_max_clamp=None, distillation_loss_coef=1.0
        )
        on_logits = losses.distillation_ppo_loss(
            actor, settings, data=data, student_logits=by_verl[tokens].unsqueeze(0)
        )
        outputs = {
            name: torch.nested.nested_tensor_from_jagged(x[0], torch.tensor([0, 5, 10]))
            for name, x in on_logits.items()
        }
        loss, _ = losses.distillation_ppo_loss(actor, settings, model_output=outputs, data=data)
        rows = (Scored if scored else TopK)(ids[counted], log_probs[counted])
        want = top_k_divergence(kind, rows, by_hand[tokens[counted]]).mean()
        for table, value, logged in zip(tables, (loss, want), values, strict=True):
            gradient = torch.autograd.grad(value, table)[0]
            table.data -= 100 * gradient
            logged.append(float(value))
    assert values[0] == pytest.approx(values[1], rel=1e-5)
    torch.testing.assert_close(by_verl, by_hand, rtol=1e-5, atol=1e-6)
    assert values[0][2] < 0.8 * values[0][0]


def test_verls_own_is_the_sum_that_may_be_negative() -> None:
    if importlib.util.find_spec("verl") is None:
        pytest.skip("verl is not installed")
    logits = pytest.importorskip("verl.trainer.distillation.fsdp.losses", exc_type=ImportError)
    student, _, log_probs, ids = packed(60)
    own = call(logits, "forward_kl_topk", 60)
    mine = top_k_loss()(student, log_probs, ids, None, "thd")
    for name in ("student_mass", "teacher_mass", "overlap_count", "overlap_token_advantage"):
        torch.testing.assert_close(own[name], mine[name], rtol=1e-4, atol=1e-6, check_dtype=False)
    assert bool((own["distillation_losses"] < 0).any())


def test_without_verl(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "verl.trainer.distillation.losses", None)
    with pytest.raises(OptionalDependencyError, match=r"kullback.integrations.verl needs verl"):
        register("kullback_kl")


@pytest.mark.parametrize(("kind", "tail", "words"), [("kld", "bucket", "kind="), ("kl", "rest", "tail=")])
def test_wrong_settings(kind: str, tail: Any, words: str) -> None:
    with refused(KullbackError, instead=words):
        top_k_loss(kind, tail)
