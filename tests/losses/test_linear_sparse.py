"""The fused head against stored teachers: values and gradients of whole float64 logits, all draws, memory, errors."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
import torch
from torch import Tensor

from kullback import KL, Divergence, Jeffreys, JensenShannon, Renyi, ReverseKL, TotalVariation, errors
from kullback.functional import SampledTail, TopK, linear_distillation_loss
from kullback.kernels.native import library
from kullback.nn import LinearDistillationLoss
from tests.losses.test_linear import MASK, WEIGHT, Largest, textbook

POSITIONS, CLASSES, HIDDEN, K = 11, 37, 5, 6
INF = math.inf
CHUNKS = pytest.mark.parametrize("chunk_bytes", [1, 3000, None])
TAILS = pytest.mark.parametrize("tail", ["bucket", "renormalize", "zero"])
NAMES = ("student", "student_weight", "student_bias")


def head(
    dtype: torch.dtype = torch.float64, positions: int = POSITIONS, classes: int = CLASSES
) -> dict[str, Any]:
    shapes = [(positions, HIDDEN), (classes, HIDDEN), (classes,)]
    return {
        name: torch.randn(shape, dtype=torch.float64).to(dtype).requires_grad_()
        for name, shape in zip(NAMES, shapes, strict=True)
    }


def stored(positions: int = POSITIONS, classes: int = CLASSES, k: int = K) -> tuple[Tensor, Tensor]:
    """Indices and log-probabilities of a teacher's top classes."""
    log_probs, indices = (2 * torch.randn(positions, classes, dtype=torch.float64)).log_softmax(-1).topk(k)
    return indices, log_probs.requires_grad_()


def logits_of(of: dict[str, Any], softcap: float | None = None, scale: float = 1.0) -> Tensor:
    logits = (of["student"].double() @ of["student_weight"].double().mT + of["student_bias"].double()) * scale
    return logits if softcap is None else softcap * (logits / softcap).tanh()


def terms(kind: Divergence, p: Tensor, q: Tensor) -> Tensor:
    """The sum of the terms q f(p/q), where f'(1) = 0: what masses that do not sum to one have."""
    if isinstance(kind, KL):
        return (p * (p / q).log() - p + q).sum(-1)
    if isinstance(kind, ReverseKL):
        return (q * (q / p).log() - q + p).sum(-1)
    if isinstance(kind, Jeffreys):
        return ((p - q) * (p / q).log()).sum(-1)
    return textbook(kind, p, q)  # whose sums have no such rest


def whole(
    kind: Divergence, of: dict[str, Any], teacher: TopK, temperature: float = 1.0, **how: Any
) -> Tensor:
    """The divergence of each position from whole logits, by the formulas of `top_k_divergence`."""
    q = (logits_of(of, **how) / temperature).softmax(-1)
    kept_q = q.gather(-1, teacher.indices)
    kept_p = (teacher.log_probs.double() / temperature).exp()
    if teacher.tail == "zero":
        return terms(kind, kept_p, kept_q)
    rest_q = 1 - kept_q.sum(-1, keepdim=True)
    if teacher.tail == "bucket":
        p = torch.cat([kept_p, 1 - kept_p.sum(-1, keepdim=True)], -1)
        return terms(kind, p, torch.cat([kept_q, rest_q], -1))
    p = kept_p / kept_p.sum(-1, keepdim=True)
    at_0 = {KL: 1.0, TotalVariation: 0.5, JensenShannon: math.log(2) / 2}
    if isinstance(kind, Renyi):  # classes without mass under P add nothing to the sum of powers
        return textbook(kind, p, kept_q)
    return terms(kind, p, kept_q) + at_0[type(kind)] * rest_q.squeeze(-1)


def assert_same(got: Tensor, want: Tensor, by: list[Tensor], **tolerance: float) -> None:
    torch.testing.assert_close(got, want.to(got.dtype), **tolerance)
    for ours, theirs in zip(torch.autograd.grad(got, by), torch.autograd.grad(want, by), strict=True):
        torch.testing.assert_close(ours, theirs, **tolerance)


@CHUNKS
@TAILS
@pytest.mark.parametrize("kind", [KL(), ReverseKL(), JensenShannon(), TotalVariation(), Renyi(0.5)], ids=repr)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_values_and_all_gradients_are_those_of_whole_logits(
    kind: Divergence, tail: Any, dtype: torch.dtype, chunk_bytes: int | None
) -> None:
    if (tail == "renormalize" and isinstance(kind, ReverseKL)) or (
        tail == "zero" and isinstance(kind, Renyi)
    ):
        return  # infinite; no sum
    of, (indices, log_probs) = head(dtype), stored()
    teacher = TopK(indices, log_probs, tail)
    got = linear_distillation_loss(**of, teacher=teacher, kind=kind, chunk_bytes=chunk_bytes)
    assert got.dtype == torch.float64
    tolerance = {"rtol": 1e-9, "atol": 1e-11} if dtype == torch.float64 else {"rtol": 1e-4, "atol": 1e-6}
    assert_same(got, whole(kind, of, teacher).mean(), [*of.values(), log_probs], **tolerance)


@CHUNKS
@pytest.mark.parametrize("tail", ["bucket", "renormalize"])
def test_heads_cap_and_scale_and_temperatures_divide(tail: Any, chunk_bytes: int | None) -> None:
    of, (indices, log_probs) = head(), stored()
    teacher = TopK(indices, log_probs, tail)
    temperature = 2.0 if tail == "renormalize" else 1.0
    got = linear_distillation_loss(
        **of, teacher=teacher, softcap=2.0, logit_scale=(0.5, None), temperature=temperature,
        temperature_squared=True, chunk_bytes=chunk_bytes,
    )  # fmt: skip
    want = whole(KL(), of, teacher, temperature, softcap=2.0, scale=0.5).mean() * temperature**2
    assert_same(got, want, [*of.values(), log_probs], rtol=1e-9, atol=1e-11)


@CHUNKS
@pytest.mark.parametrize("reduction", ["none", "sum", "mean", "batchmean"])
@pytest.mark.parametrize("how", ["mask", "weight", "labels", "normalizer"])
def test_reductions_and_what_counts(reduction: Any, how: str, chunk_bytes: int | None) -> None:
    of, (indices, log_probs) = head(), stored()
    teacher = TopK(indices, log_probs)
    if how == "normalizer" and reduction == "none":
        return
    given, counts = {
        "mask": ({"mask": MASK}, MASK.double()),
        "weight": ({"weight": WEIGHT}, WEIGHT),
        "labels": ({"labels": torch.where(MASK, 3, -100)}, MASK.double()),
        "normalizer": ({"mask": MASK, "normalizer": 3.0}, MASK.double()),
    }[how]
    values = whole(KL(), of, teacher) * counts
    divisor = {"none": 1.0, "sum": 1.0, "mean": counts.sum(), "batchmean": POSITIONS}[reduction]
    want = (values if reduction == "none" else values.sum()) / (3.0 if how == "normalizer" else divisor)
    got = linear_distillation_loss(
        **of, teacher=teacher, **given, reduction=reduction, chunk_bytes=chunk_bytes
    )
    factors = torch.linspace(-1, 3, POSITIONS, dtype=torch.float64) if reduction == "none" else 3.0
    assert_same(
        (got * factors).sum(), (want * factors).sum(), [*of.values(), log_probs], rtol=1e-9, atol=1e-11
    )


@pytest.mark.sweep
@pytest.mark.parametrize("draws", [1, 2])
@pytest.mark.parametrize("kind", [KL(), ReverseKL(), JensenShannon(), TotalVariation()], ids=repr)
def test_sampled_tails_are_unbiased_over_all_draws(kind: Divergence, draws: int) -> None:
    of = head(positions=1, classes=6)
    log_probs = torch.randn(6, dtype=torch.float64).log_softmax(-1)
    kept, indices = log_probs.topk(2)
    tail = [i for i in range(6) if i not in indices]
    mass = log_probs[tail].logsumexp(-1)
    outcomes = torch.tensor(list(itertools.product(tail, repeat=draws)))
    many = len(outcomes)
    top = TopK(indices.expand(many, -1), kept.expand(many, -1))
    teacher = SampledTail(top, outcomes, log_probs[outcomes], mass.expand(many))
    probability = (log_probs[outcomes] - mass).exp().prod(-1)
    repeated = {**of, "student": of["student"].expand(many, -1)}
    for chunk_bytes in (1, None):
        for reduction in ("none", "sum"):
            got = linear_distillation_loss(
                **repeated, teacher=teacher, kind=kind, reduction=reduction, chunk_bytes=chunk_bytes,
                **({"weight": probability} if reduction == "sum" else {}),
            )  # fmt: skip
            mean = got if reduction == "sum" else (got * probability).sum()
            want = textbook(kind, log_probs.exp(), logits_of(of).softmax(-1)).sum()
            assert_same(mean, want, list(of.values()), rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("native", [True, False])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
@pytest.mark.parametrize("sampled", [False, True])
def test_low_precision_is_as_exact_as_its_logits(
    dtype: torch.dtype, sampled: bool, native: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not native:
        monkeypatch.setattr(library, "is_available", lambda: False)
    of = head(dtype, positions=40)
    base = 2 * torch.randn(40, CLASSES)
    teacher: Any = SampledTail.draw(base, k=K, draws=4, generator=torch.Generator().manual_seed(0))
    if not sampled:
        teacher = teacher.top
    got = linear_distillation_loss(**of, teacher=teacher, float32_logits=True)
    assert got.dtype == torch.float32
    log_q = logits_of(of).log_softmax(-1)
    if sampled:
        # The student is far from the teacher at each position: the sums of p and of q are exact.
        mass = teacher.tail_log_mass.double().exp()
        values = 1 - teacher.top.log_probs.double().exp().sum(-1) - mass
        for log_p, at, weight in (
            (teacher.top.log_probs.double(), teacher.top.indices, teacher.top.log_probs.double().exp()),
            (teacher.tail_log_probs.double(), teacher.tail_indices, mass.unsqueeze(-1) / 4),
        ):
            values = values + (weight * (log_p - log_q.gather(-1, at))).sum(-1)
        want = values.mean()
    else:
        want = whole(KL(), of, teacher).mean()
    unit = torch.finfo(dtype).eps
    assert abs(got.item() - want.item()) <= 1e-5 * want.item()
    grads = zip(*(torch.autograd.grad(x, list(of.values())) for x in (got, want)), strict=True)
    for ours, theirs in grads:
        assert ours.dtype == dtype
        assert (ours - theirs).double().norm() <= max(3 * unit, 1e-5) * theirs.double().norm()


@pytest.mark.parametrize("reduction", ["none", "mean"])
def test_logits_are_never_whole(reduction: Any) -> None:
    of, (indices, log_probs) = head(torch.float32, 64, 300), stored(64, 300)
    with Largest() as watch:
        linear_distillation_loss(
            **of,
            teacher=TopK(indices, log_probs),
            reduction=reduction,
            softcap=9.0,
            chunk_bytes=2 * 4 * 300 * 4,
        ).mean().backward()
    assert (
        watch.elements == {"none": 8, "mean": HIDDEN}[reduction] * 300
    )  # eight rows, which no gradient overwrites; the head


def test_only_what_requires_a_gradient_gets_one() -> None:
    for learned in [[name] for name in (*NAMES, "log_probs")] + [[]]:
        of, (indices, log_probs) = head(), stored()
        for name, x in {**of, "log_probs": log_probs}.items():
            x.requires_grad_(name in learned)
        loss = linear_distillation_loss(**of, teacher=TopK(indices, log_probs), chunk_bytes=3000)
        assert loss.requires_grad == bool(learned)
        if learned:
            by = log_probs if learned == ["log_probs"] else of[learned[0]]
            assert_same(loss, whole(KL(), of, TopK(indices, log_probs)).mean(), [by], rtol=1e-9, atol=1e-11)


def test_further_derivatives_a_second_pass_and_vmap() -> None:
    of, (indices, log_probs) = head(positions=2, classes=4), stored(2, 4, 2)
    log_probs = (log_probs.detach() - 0.1).requires_grad_()
    by = [*of.values(), log_probs]

    def loss(h: Tensor, weight: Tensor, bias: Tensor, p: Tensor) -> Tensor:
        return linear_distillation_loss(
            student=h, student_weight=weight, student_bias=bias, teacher=TopK(indices, p), chunk_bytes=1
        )

    assert torch.autograd.gradcheck(loss, tuple(by))
    assert torch.autograd.gradgradcheck(loss, tuple(by), check_batched_grad=False, fast_mode=True)
    value = loss(*by)
    first, second = (torch.autograd.grad(value, by, retain_graph=True) for _ in range(2))
    torch.testing.assert_close(first, second, rtol=1e-12, atol=1e-14)
    stack = torch.stack([of["student"].detach(), of["student"].detach() + 1])
    constant = [x.detach() for x in by[1:]]
    got = torch.func.vmap(lambda h: loss(h, *constant))(stack)
    torch.testing.assert_close(got, torch.stack([loss(h, *constant) for h in stack]))
    grads = torch.func.grad(lambda h: loss(h, *constant))(of["student"].detach())
    torch.testing.assert_close(grads, first[0])


@pytest.mark.heavy
def test_compiles_in_one_graph() -> None:
    of, (indices, log_probs) = head(torch.float32), stored()

    def loss(h: Tensor, weight: Tensor, bias: Tensor, p: Tensor) -> Tensor:
        teacher = TopK(indices, p)
        return linear_distillation_loss(student=h, student_weight=weight, student_bias=bias, teacher=teacher)

    by = [*of.values(), log_probs]
    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")
    assert_same(compiled(*by), loss(*by), by, rtol=1e-4, atol=1e-6)


def test_autocast_makes_the_products_in_its_dtype() -> None:
    of, (indices, log_probs) = head(torch.float32), stored()
    teacher = TopK(indices, log_probs.detach())
    with torch.autocast("cpu", torch.bfloat16):
        got = linear_distillation_loss(**of, teacher=teacher)
    half = {name: x.detach().bfloat16() for name, x in of.items()}
    torch.testing.assert_close(got, linear_distillation_loss(**half, teacher=teacher), rtol=0, atol=0)
    got.backward()
    assert all(x.grad is not None and x.grad.dtype == torch.float32 for x in of.values())


@pytest.mark.filterwarnings("ignore:.*the mask is False everywhere")
def test_edges() -> None:
    of, (indices, log_probs) = head(positions=4), stored(4)
    log_probs = log_probs.detach()
    log_probs[0, 3:] = -INF  # padding
    indices[0, 3:] = 0
    bias = of["student_bias"].detach().clone()
    bias[int(indices[1, 0])] = -INF  # a class that the teacher has and the student lacks
    bias.requires_grad_()
    of["student_bias"] = bias
    for kind, infinite in ((KL(), True), (JensenShannon(), False)):
        values = linear_distillation_loss(
            **of, teacher=TopK(indices, log_probs), kind=kind, reduction="none", chunk_bytes=1
        )
        assert bool(values[1].isinf()) == infinite
        assert not bool(values.isnan().any())
        grads = torch.autograd.grad(values.sum(), [of["student"], bias], retain_graph=True)
        masked = torch.autograd.grad(
            linear_distillation_loss(
                **of, teacher=TopK(indices, log_probs), kind=kind, mask=torch.arange(4) == 2, reduction="sum"
            ),
            bias,
        )[0]
        assert bool(masked.isfinite().all())
        assert bool(grads[1].isfinite().all())
    empty = linear_distillation_loss(
        **{**of, "student": of["student"][:0]}, teacher=TopK(indices[:0], log_probs[:0])
    )
    assert empty.item() == 0
    nothing = linear_distillation_loss(
        **of, teacher=TopK(indices, log_probs), mask=torch.zeros(4, dtype=torch.bool)
    )
    nothing.backward()
    assert nothing.item() == 0
    assert all(x.grad is not None and (x.grad == 0).all() for x in of.values())


def test_excluded_positions_may_hold_anything() -> None:
    of, (indices, log_probs) = head(), stored()
    with torch.no_grad():
        spoilt = log_probs.clone()
        spoilt[~MASK] = math.nan
        bad = {name: x.clone().requires_grad_() for name, x in of.items()}
        bad["student"][~MASK] = math.nan
    spoilt.requires_grad_()
    for create_graph in (False, True):
        pairs = []
        for given, p in ((of, log_probs), (bad, spoilt)):
            teacher = TopK(indices, p, validate=False)
            loss = linear_distillation_loss(**given, teacher=teacher, mask=MASK)
            pairs.append([loss, *torch.autograd.grad(loss, [*given.values(), p], create_graph=create_graph)])
        torch.testing.assert_close(pairs[0], pairs[1], rtol=1e-12, atol=1e-14)


def test_the_module_takes_it() -> None:
    of, (indices, log_probs) = head(), stored()
    teacher = TopK(indices, log_probs)
    loss = LinearDistillationLoss(kind=JensenShannon(), reduction="sum")
    torch.testing.assert_close(loss(**of, teacher=teacher), whole(JensenShannon(), of, teacher).sum())


TEACHER = TopK(torch.zeros(3, 1, dtype=torch.long), torch.full((3, 1), -1.0))
SAMPLED = SampledTail.draw(torch.zeros(3, CLASSES), k=2, draws=2, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"teacher_weight": torch.zeros(4, 5)}, r"teacher_weight=.*none with a TopK, which has no head; got Tensor"),
        ({"teacher": SAMPLED, "teacher_bias": torch.zeros(4)}, r"teacher_bias=.*none with a SampledTail"),
        ({"student": torch.zeros(2, HIDDEN)}, r"student=.*positions, shape \(3,\); got shape \(2,\)"),
        ({"teacher": TopK(TEACHER.indices + 37, TEACHER.log_probs)}, r"teacher=.*below .* 37; got an index 37"),
        ({"temperature": 2.0}, r"temperature=.*tail='bucket'"),
        ({"teacher": SAMPLED, "temperature": 2.0}, r"temperature=.*drawn at temperature 1"),
        ({"teacher": SAMPLED, "kind": Renyi(0.5)}, r"kind=.*sum over classes"),
        ({"student_weight": torch.zeros(37, 3)}, r"student_weight=.*\(classes, 5\)"),
        ({"teacher": torch.zeros(3, 5)}, r"teacher_weight=.*got NoneType"),
        ({"teacher": TopK(TEACHER.indices.to("meta"), TEACHER.log_probs.to("meta"))}, "teacher=.*on cpu.*one on meta"),
    ],
)  # fmt: skip
def test_errors_name_the_argument_and_the_remedy(change: dict[str, Any], message: str) -> None:
    of: dict[str, Any] = {
        "student": torch.zeros(3, HIDDEN), "student_weight": torch.zeros(CLASSES, HIDDEN), "teacher": TEACHER,
    }  # fmt: skip
    linear_distillation_loss(**of)
    with pytest.raises(errors.KullbackError, match=message) as caught:
        linear_distillation_loss(**{**of, **change})
    assert str(caught.value).startswith("linear_distillation_loss(")
