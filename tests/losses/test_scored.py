"""A teacher scored on given classes: values and gradients of the merged classes, known zeros, padding, rounding."""

from __future__ import annotations

import math
from typing import Any

import mpmath
import pytest
import torch
from mpmath import mpf
from torch import Tensor

from kullback import (
    KL,
    ChiSquared,
    Divergence,
    Jeffreys,
    JensenShannon,
    Logits,
    Renyi,
    ReverseKL,
    TotalVariation,
    divergence as dense_divergence,
)
from kullback.errors import ArgumentTypeError, ArgumentValueError
from kullback.functional import (
    Scored,
    TopK,
    distillation_loss,
    linear_distillation_loss,
    top_k_divergence,
    top_k_divergence_bounds,
)
from tests.oracles import truth
from tests.refusals import refused

INF = math.inf
SUMS = [kind for kind in truth.KINDS if not isinstance(kind, Renyi)]


def sides(
    rows: int, classes: int, dtype: torch.dtype = torch.float64, seed: int = 0
) -> tuple[Tensor, Tensor]:
    """Logits of a student and of a teacher."""
    drawn = 1.5 * torch.randn(
        2, rows, classes, generator=torch.Generator().manual_seed(seed), dtype=torch.float64
    )
    return drawn[0].to(dtype).requires_grad_(), drawn[1].to(dtype)


def scored_at(ids: Tensor, logits: Tensor, tail: Any = "bucket") -> Scored:
    log_probs = logits.log_softmax(-1).gather(-1, ids.clamp(min=0))
    return Scored(ids, torch.where(ids < 0, -INF, log_probs), tail)


def true_value(kind: Divergence, teacher: Scored, student: list[float], row: int) -> float:
    """The divergence of the listed classes and of all others as one, at 50 digits."""
    ids, log_probs = teacher.indices[row].tolist(), teacher.log_probs[row].tolist()
    listed = [(i, x) for i, x in zip(ids, log_probs, strict=True) if i >= 0]
    with mpmath.workdps(50):
        q = truth.softmax(student)
        p = [mpmath.exp(mpf(x)) if x > -INF else mpf(0) for _, x in listed]
        rest = mpmath.fsum(x for i, x in enumerate(q) if i not in ids)
        p_all = [*truth.normalized(p), mpf(0)] if teacher.tail == "renormalize" else [*p, 1 - mpmath.fsum(p)]
        return float(truth.divergence(kind, p_all, [*(q[i] for i, _ in listed), rest]))


def dense(teacher: Scored, student: Tensor, kind: Divergence) -> Tensor:
    """The same by plain operations on lists without padding, for gradients."""
    log_q = student.log_softmax(-1)
    others = log_q.scatter(-1, teacher.indices, -INF).logsumexp(-1, keepdim=True)
    left = torch.log1p(-teacher.log_probs.exp().sum(-1, keepdim=True))
    merged = torch.cat([log_q.gather(-1, teacher.indices), others], -1)
    return dense_divergence(Logits(torch.cat([teacher.log_probs, left], -1)), Logits(merged), kind)


@pytest.mark.parametrize("kind", truth.KINDS, ids=repr)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_values_are_those_of_the_merged_classes(kind: Divergence, dtype: torch.dtype) -> None:
    """The student's most probable classes are scored, and the rest holds the teacher's most probable ones."""
    student, logits = sides(4, 9, dtype)
    teacher = scored_at(student.detach().topk(3).indices, logits)
    assert (teacher.log_probs.max(-1).values < logits.log_softmax(-1).max(-1).values).any()
    got = top_k_divergence(kind, teacher, student)
    for row, value in enumerate(got.tolist()):
        want = true_value(kind, teacher, student[row].tolist(), row)
        assert value == pytest.approx(want, rel=1e-9 if dtype == torch.float64 else 3e-6)


@pytest.mark.parametrize("kind", SUMS, ids=repr)
@pytest.mark.parametrize("k", [1, 3, 7])
def test_the_loss_never_exceeds_the_divergence_from_the_whole_teacher(kind: Divergence, k: int) -> None:
    student, logits = sides(40, 7)
    ids = torch.rand(40, 7, generator=torch.Generator().manual_seed(k)).topk(k).indices
    whole = dense_divergence(Logits(logits), Logits(student), kind)
    for tail in ("bucket", "zero"):
        value = top_k_divergence(kind, scored_at(ids, logits, tail), student)
        assert (value <= whole * (1 + 1e-9) + 1e-12).all()
        if k == 7:  # all classes are listed
            torch.testing.assert_close(value, whole, rtol=1e-9, atol=1e-12)


def test_the_chain_rule_says_what_the_reverse_kl_leaves_out() -> None:
    student, logits = sides(5, 8)
    ids = student.detach().topk(3).indices
    got = top_k_divergence(ReverseKL(), scored_at(ids, logits), student.detach())
    log_q, log_p = student.detach().log_softmax(-1), logits.log_softmax(-1)
    for row in range(5):
        rest = [i for i in range(8) if i not in ids[row].tolist()]
        p, q = log_p[row, rest].exp(), log_q[row, rest].exp()
        inner = (q / q.sum() * ((q / q.sum()) / (p / p.sum())).log()).sum()
        whole = (log_q[row].exp() * (log_q[row] - log_p[row])).sum()
        assert float(got[row] + q.sum() * inner) == pytest.approx(float(whole), rel=1e-12)


@pytest.mark.parametrize(
    "kind", [KL(), ReverseKL(), Jeffreys(), JensenShannon(), TotalVariation(), ChiSquared(), Renyi(0.5)], ids=repr
)  # fmt: skip
def test_gradients_are_those_of_the_merged_classes(kind: Divergence) -> None:
    student, logits = sides(3, 9)
    listed = scored_at(student.detach().topk(4).indices, logits)
    log_probs = listed.log_probs.clone().requires_grad_()
    teacher = Scored(listed.indices, log_probs)
    weights = torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64)
    got = torch.autograd.grad(
        (top_k_divergence(kind, teacher, student) * weights).sum(), (student, log_probs)
    )
    want = torch.autograd.grad((dense(teacher, student, kind) * weights).sum(), (student, log_probs))
    torch.testing.assert_close(got, want)


@pytest.mark.parametrize("tail", ["bucket", "renormalize", "zero"])
def test_derivatives_of_both_sides_and_of_second_order(tail: Any) -> None:
    student, logits = sides(2, 6)
    listed = scored_at(student.detach().topk(3).indices, logits)
    log_probs = (listed.log_probs - 0.1).requires_grad_()

    def value(s: Tensor, lp: Tensor) -> Tensor:
        return top_k_divergence(JensenShannon(), Scored(listed.indices, lp, tail), s)

    assert torch.autograd.gradcheck(value, (student, log_probs))
    assert torch.autograd.gradgradcheck(value, (student, log_probs))


@pytest.mark.parametrize("kind", SUMS, ids=repr)
def test_a_probability_of_zero_is_known_and_padding_is_not(kind: Divergence) -> None:
    student, _ = sides(1, 5)
    log_probs = torch.tensor([[0.5, 0.0, 0.25]], dtype=torch.float64).log()
    zero = Scored(torch.tensor([[3, 1, 0]]), log_probs)
    padded = Scored(torch.tensor([[3, -1, 0]]), log_probs)
    for teacher in (zero, padded):
        value = top_k_divergence(kind, teacher, student).item()
        want = true_value(kind, teacher, student[0].tolist(), 0)
        assert value == pytest.approx(want, rel=1e-9)
    listed = Scored(torch.tensor([[3, 0]]), log_probs[:, ::2])
    torch.testing.assert_close(
        top_k_divergence(kind, padded, student), top_k_divergence(kind, listed, student)
    )
    top = TopK(torch.tensor([[3, -1, 0]]), log_probs)  # -1 is padding there, too
    torch.testing.assert_close(top_k_divergence(kind, top, student), top_k_divergence(kind, listed, student))


def test_a_known_zero_makes_the_reverse_kl_infinite_and_padding_does_not() -> None:
    student, _ = sides(1, 5)
    log_probs = torch.tensor([[0.5, 0.0]], dtype=torch.float64).log()
    assert top_k_divergence(ReverseKL(), Scored(torch.tensor([[3, 1]]), log_probs), student) == INF
    assert top_k_divergence(ReverseKL(), Scored(torch.tensor([[3, -1]]), log_probs), student) < 1


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("kind", [ReverseKL(), Jeffreys(), ChiSquared(), KL()], ids=repr)
def test_a_mass_lost_to_rounding_makes_nothing_infinite(kind: Divergence, dtype: torch.dtype) -> None:
    """The whole teacher has 1e-9 outside the list; its rounded probabilities sum to 1 or a little more."""
    student = torch.tensor([[0.0, -3.0, -18.0, -19.0]], dtype=torch.float64, requires_grad=True)
    kept = torch.tensor([[0.95, 0.05 - 1e-9]], dtype=torch.float64)
    log_probs = torch.log(kept).to(dtype)
    if dtype == torch.float32:
        log_probs = torch.nextafter(log_probs, torch.zeros(()))
    teacher = Scored(torch.tensor([[0, 1]]), log_probs)
    exact = torch.cat([kept, torch.tensor([[0.5e-9, 0.5e-9]], dtype=torch.float64)], -1).log()
    value = top_k_divergence(kind, teacher, student)
    # The error of the value is of the order of the rounding errors of the listed probabilities.
    want = top_k_divergence(kind, Scored(torch.arange(4)[None], exact), student)
    assert (value - want).item() == pytest.approx(0, abs=torch.finfo(dtype).eps)
    (gradient,) = torch.autograd.grad(value.sum(), student)
    assert gradient.isfinite().all()
    if kind == ReverseKL():  # what `Scored` is for: such a list is useless to a `TopK`
        if dtype == torch.float32:
            assert top_k_divergence(kind, TopK(teacher.indices, log_probs), student) == INF
        agreeing = torch.cat([log_probs.double(), torch.full((1, 2), -30.0, dtype=torch.float64)], -1)
        assert float(top_k_divergence(kind, teacher, agreeing)) < torch.finfo(dtype).eps


def test_a_student_past_the_rounding_error_pays_the_least_that_the_list_allows() -> None:
    """The teacher's remaining mass is at most the error e, so that the term of the rest is q log(q / e) at least."""
    student = torch.tensor([[0.0, -5.0]], dtype=torch.float64)
    p = torch.tensor([1.0, torch.finfo(torch.float32).eps], dtype=torch.float64)
    q = student.softmax(-1)[0]
    got = top_k_divergence(ReverseKL(), Scored(torch.tensor([[0]]), torch.tensor([[0.0]])), student)
    assert float(got) == pytest.approx(float((q * (q / (p / p.sum())).log()).sum()), rel=1e-9)


def test_padding_and_excluded_positions_count_nowhere() -> None:
    student, logits = sides(4, 6)
    ids = student.detach().topk(3).indices
    full = scored_at(ids, logits)
    ids = ids.clone()
    ids[1:, 2] = -1
    ids[3] = -1
    log_probs = full.log_probs.clone()
    log_probs[ids < 0] = -INF
    log_probs[2] = math.nan
    counted = torch.tensor([True, True, False, False])
    teacher = Scored(ids, log_probs.requires_grad_())
    with refused(ArgumentValueError, argument="teacher", got="NaN at 1 of 4", instead="mask="):
        distillation_loss(student=student, teacher=teacher, kind="reverse_kl")
    loss = distillation_loss(student=student, teacher=teacher, mask=counted, kind="reverse_kl")
    values = [true_value(ReverseKL(), teacher, student[row].tolist(), row) for row in range(2)]
    assert loss.item() == pytest.approx(sum(values) / 2, rel=1e-12)
    head = linear_distillation_loss(
        student=student,
        student_weight=torch.eye(6, dtype=torch.float64),
        teacher=teacher,
        mask=counted,
        kind="reverse_kl",
    )
    torch.testing.assert_close(head, loss)
    for value in (loss, head):
        by_student, by_teacher = torch.autograd.grad(value, (student, log_probs))
        assert (by_student[2:] == 0).all()
        assert (by_teacher[2:] == 0).all()
        assert (by_teacher[1, 2] == 0).all()
        assert by_teacher[:2].isfinite().all()


def test_a_position_without_ids_has_the_value_zero_and_the_gradient_zero() -> None:
    student, _ = sides(2, 5)
    teacher = Scored(torch.full((2, 3), -1), torch.full((2, 3), -INF))
    for kind in SUMS:
        got = top_k_divergence(kind, teacher, student)
        assert got.tolist() == [0.0, 0.0]
        assert (torch.autograd.grad(got.sum(), student)[0] == 0).all()
    assert top_k_divergence(KL(), Scored(torch.zeros(0, 2).long(), torch.zeros(0, 2)), student[:0]).shape == (
        0,
    )


@pytest.mark.heavy
def test_it_compiles_in_one_graph_and_batches() -> None:
    student, logits = sides(6, 7, torch.float32)
    listed = scored_at(student.detach().topk(3).indices, logits)

    def loss(indices: Tensor, log_probs: Tensor, s: Tensor) -> Tensor:
        return top_k_divergence(ReverseKL(), Scored(indices, log_probs), s)

    arguments = listed.indices, listed.log_probs, student
    want = loss(*arguments)
    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")(*arguments)
    torch.testing.assert_close(compiled, want)
    by_student = torch.autograd.grad(want.sum(), student)[0]
    torch.testing.assert_close(torch.autograd.grad(compiled.sum(), student)[0], by_student)
    parts = tuple(x.unflatten(0, (2, 3)) for x in arguments)
    torch.testing.assert_close(torch.vmap(loss)(*parts).flatten(), want)


def test_two_scored_lists_have_bounds_that_contain_the_divergence() -> None:
    student, logits = sides(30, 6)
    draw = torch.Generator().manual_seed(3)
    p, q = (
        scored_at(torch.rand(30, 6, generator=draw).topk(3).indices, x) for x in (logits, student.detach())
    )
    for kind in (JensenShannon(), TotalVariation()):
        bounds = top_k_divergence_bounds(p, q, kind)
        whole = dense_divergence(Logits(logits), Logits(student.detach()), kind)
        assert ((bounds.lower <= whole) & (whole <= bounds.upper)).all()


TWO, HALVES = torch.tensor([[0, 1]]), torch.tensor([[0.5, 0.25]]).log()


@pytest.mark.parametrize(
    ("call", "parts"),
    [
        (lambda: Scored(TWO - 1, HALVES), {"argument": "indices", "instead": "-inf at padding"}),
        (lambda: Scored(0 * TWO, HALVES), {"argument": "indices", "wanted": "each class once"}),
        (lambda: Scored(0 * TWO, -INF + HALVES), {"argument": "indices", "instead": "index -1 with"}),
        (lambda: Scored(TWO, HALVES / 9), {"argument": "log_probs", "wanted": "sum to at most 1"}),
        (lambda: Scored(TWO, -HALVES), {"argument": "log_probs", "wanted": "<= 0"}),
        (lambda: Scored(TWO, HALVES * math.nan), {"argument": "log_probs", "got": "nan"}),
        (lambda: Scored(TWO, HALVES[0]), {"argument": "log_probs", "instead": "Scored"}),
        (lambda: Scored(TWO.float(), HALVES), {"argument": "indices", "instead": "Scored"}),
        (lambda: Scored(TWO, HALVES, "drop"), {"argument": "tail", "got": "'drop'"}),  # type: ignore[arg-type]
        (lambda: Scored(0 * TWO - 1, -INF + HALVES, "renormalize"), {"wanted": "a class with mass"}),
    ],
)
def test_errors_name_the_argument_and_the_remedy(call: Any, parts: dict[str, str]) -> None:
    with refused((ArgumentTypeError, ArgumentValueError), call="Scored", **parts):
        call()


def test_the_remedies_of_padding_work() -> None:
    student = torch.zeros(1, 3)
    ids, log_probs = torch.tensor([[0, -1]]), torch.tensor([[0.5, 0.0]]).log()
    got = top_k_divergence(KL(), Scored(ids, log_probs), student)
    assert float(got) == pytest.approx(0.5 * math.log(0.5 * 3) + 0.5 * math.log(0.5 * 1.5), rel=1e-6)
    with refused(ArgumentValueError, call="top_k_divergence", argument="temperature", instead="renormalize"):
        top_k_divergence(KL(), Scored(ids, log_probs), student, temperature=2.0)
