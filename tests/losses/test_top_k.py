"""Teachers known by their top classes: values and gradients against dense formulas, bounds, padding, errors."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any
from unittest import mock

import mpmath
import pytest
import torch
from hypothesis import given, strategies as st
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
    SquaredHellinger,
    TotalVariation,
    divergence as dense_divergence,
    errors,
)
from kullback.functional import distillation_loss, linear_distillation_loss
from kullback.kernels import selected_rows
from kullback.losses.top_k import TopK, top_k_divergence
from tests.oracles import truth
from tests.refusals import refused

INF = math.inf
KINDS = pytest.mark.parametrize("kind", truth.KINDS, ids=repr)
SUMS = [kind for kind in truth.KINDS if not isinstance(kind, Renyi)]
TAILS = pytest.mark.parametrize("tail", ["bucket", "renormalize", "zero"])


def top(logits: Tensor, k: int, tail: Any = "bucket") -> TopK:
    log_probs, indices = logits.log_softmax(-1).topk(k)
    return TopK(indices, log_probs, tail)


def pair(*shape: int, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    teacher = torch.randn(*shape, dtype=torch.float64)
    student = teacher + torch.randn(*shape, dtype=torch.float64)
    return student.to(dtype).requires_grad_(), teacher.to(dtype)


def true_sides(teacher: TopK, student: list[float], row: int, temperature: float = 1.0) -> tuple[Any, Any]:
    """The kept classes and the rest of one row, at 50 digits."""
    indices, log_probs = teacher.indices[row].tolist(), teacher.log_probs[row].tolist()
    with mpmath.workdps(50):
        q = truth.softmax([x / temperature for x in student])
        kept = [mpmath.exp(mpf(x) / temperature) for x in log_probs]
        p = (
            [*truth.normalized(kept), mpf(0)]
            if teacher.tail == "renormalize"
            else [*kept, 1 - mpmath.fsum(kept)]
        )
        rest = mpmath.fsum(x for i, x in enumerate(q) if i not in indices)
        return p, [*(q[i] for i in indices), rest]


def dense(teacher: TopK, student: Tensor, kind: Divergence) -> Tensor:
    """The same by plain operations: the divergence of the merged classes, for gradients."""
    log_q = student.log_softmax(-1)
    kept = log_q.gather(-1, teacher.indices)
    others = log_q.scatter(-1, teacher.indices, -INF).logsumexp(-1, keepdim=True)
    left = torch.log1p(-teacher.log_probs.exp().sum(-1, keepdim=True))
    if teacher.tail == "renormalize":
        left = torch.full_like(left, -INF)
    p = torch.cat([teacher.log_probs, left], -1)
    return dense_divergence(Logits(p), Logits(torch.cat([kept, others], -1)), kind)


@KINDS
@pytest.mark.parametrize("tail", ["bucket", "renormalize"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_values_are_those_of_the_merged_classes(kind: Divergence, tail: Any, dtype: torch.dtype) -> None:
    student, logits = pair(3, 8, dtype=dtype)
    teacher = top(logits, 3, tail)
    got = top_k_divergence(kind, teacher, student)
    assert got.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    for row, value in enumerate(got.tolist()):
        want = truth.divergence(kind, *true_sides(teacher, student[row].tolist(), row))
        assert value == pytest.approx(float(want), rel=1e-9 if dtype == torch.float64 else 2e-6)


@KINDS
def test_all_classes_kept_is_the_dense_divergence(kind: Divergence) -> None:
    student, logits = pair(4, 5)
    want = dense_divergence(Logits(logits), Logits(student), kind)
    for tail in ("bucket", "renormalize", "zero"):
        if tail == "zero" and isinstance(kind, Renyi):
            continue
        teacher = top(logits, 5, tail)
        got = top_k_divergence(kind, teacher, student)
        torch.testing.assert_close(got, want, rtol=1e-7, atol=1e-12)


@pytest.mark.parametrize("temperature", [0.5, 2.0])
def test_temperature_divides_both_before_they_are_normalized(temperature: float) -> None:
    student, logits = pair(3, 6)
    teacher = top(logits, 3, "renormalize")
    got = top_k_divergence(KL(), teacher, student, temperature=temperature)
    for row, value in enumerate(got.tolist()):
        p, q = true_sides(teacher, student[row].tolist(), row, temperature)
        assert value == pytest.approx(float(truth.divergence(KL(), p, q)), rel=1e-10)
    cooled = dense(TopK(teacher.indices, teacher.log_probs / temperature, "renormalize", validate=False),
                   student / temperature, KL())  # fmt: skip
    torch.testing.assert_close(
        torch.autograd.grad(got.sum(), student)[0], torch.autograd.grad(cooled.sum(), student)[0]
    )


@pytest.mark.parametrize("tail", ["bucket", "renormalize"])
@pytest.mark.parametrize(
    "kind", [KL(), JensenShannon(), TotalVariation(), ReverseKL(), Jeffreys(), Renyi(0.5)], ids=repr
)
def test_gradients_are_those_of_the_merged_classes(kind: Divergence, tail: Any) -> None:
    student, logits = pair(3, 9)
    teacher = top(logits, 4, tail)
    weights = torch.tensor([1.0, -2.0, 0.5])
    got = torch.autograd.grad((top_k_divergence(kind, teacher, student) * weights).sum(), student)[0]
    want = torch.autograd.grad((dense(teacher, student, kind) * weights).sum(), student)[0]
    torch.testing.assert_close(got, want)


@TAILS
def test_gradients_of_both_sides_and_of_second_order(tail: Any) -> None:
    student, logits = pair(2, 6)
    log_probs, indices = logits.log_softmax(-1).topk(3)
    log_probs = (log_probs - 0.1).requires_grad_()

    def value(s: Tensor, lp: Tensor) -> Tensor:
        return top_k_divergence(KL(), TopK(indices, lp, tail), s)

    assert torch.autograd.gradcheck(value, (student, log_probs))
    assert torch.autograd.gradgradcheck(value, (student, log_probs))


@pytest.mark.parametrize("kind", SUMS, ids=repr)
def test_zero_is_the_sum_of_the_kept_terms(kind: Divergence) -> None:
    student, logits = pair(3, 7)
    teacher, bucket = top(logits, 3, "zero"), top(logits, 3)
    kept = top_k_divergence(kind, teacher, student)
    assert (kept >= 0).all()
    assert (kept <= top_k_divergence(kind, bucket, student) * (1 + 1e-12)).all()
    agreeing = top_k_divergence(kind, teacher, logits)
    torch.testing.assert_close(agreeing, torch.zeros_like(agreeing), rtol=0, atol=1e-12)


def test_zero_for_kl_is_the_generalized_one() -> None:
    student, logits = pair(3, 7)
    teacher = top(logits, 3, "zero")
    p = teacher.log_probs.exp()
    log_q = student.log_softmax(-1).gather(-1, teacher.indices)
    want = (p * (teacher.log_probs - log_q) - p + log_q.exp()).sum(-1)
    got = top_k_divergence(KL(), teacher, student)
    torch.testing.assert_close(got, want)
    torch.testing.assert_close(
        torch.autograd.grad(got.sum(), student)[0], torch.autograd.grad(want.sum(), student)[0]
    )


# The terms q f(p / q) of the docstring, where f(1) = f'(1) = 0.
TERMS: dict[Divergence, Callable[[Tensor, Tensor], Tensor]] = {
    KL(): lambda p, q: p * (p / q).log() - p + q,
    ReverseKL(): lambda p, q: q * (q / p).log() - q + p,
    Jeffreys(): lambda p, q: (p - q) * (p / q).log(),
    JensenShannon(): lambda p, q: (p * (2 * p / (p + q)).log() + q * (2 * q / (p + q)).log()) / 2,
    TotalVariation(): lambda p, q: (p - q).abs() / 2,
    SquaredHellinger(): lambda p, q: (p.sqrt() - q.sqrt()) ** 2 / 2,
    ChiSquared(): lambda p, q: (p - q) ** 2 / q,
}


@pytest.mark.parametrize("off", [0.0, -0.1, 1e-9], ids=["exact", "less", "rounded"])
@pytest.mark.parametrize("k", [1, 3, 5])
@pytest.mark.parametrize("kind", TERMS, ids=repr)
def test_the_gradients_of_zero_are_those_of_its_sum(kind: Divergence, k: int, off: float) -> None:
    """Nothing is normalized, whether some or all classes are kept and whatever they sum to."""
    student, logits = pair(3, 5)
    log_probs, indices = logits.log_softmax(-1).topk(k)
    log_probs = (log_probs + off).requires_grad_()
    weights = torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64)
    log_q = student.log_softmax(-1).gather(-1, indices)
    want = TERMS[kind](log_probs.exp(), log_q.exp()).sum(-1)
    teacher = TopK(indices, log_probs, "zero")
    head = linear_distillation_loss(
        student=student, student_weight=torch.eye(5).double(), teacher=teacher, kind=kind, reduction="none"
    )
    for got in (top_k_divergence(kind, teacher, student), head):
        torch.testing.assert_close(got, want)
        for by in (log_probs, student):
            torch.testing.assert_close(
                torch.autograd.grad((got * weights).sum(), by, retain_graph=True),
                torch.autograd.grad((want * weights).sum(), by, retain_graph=True),
            )


@given(
    teacher=st.lists(st.floats(-20, 20), min_size=6, max_size=6),
    student=st.lists(st.floats(-20, 20), min_size=6, max_size=6),
    k=st.integers(1, 6),
)
def test_keeping_more_classes_never_lowers_the_bucket(
    teacher: list[float], student: list[float], k: int
) -> None:
    p, q = torch.tensor([teacher], dtype=torch.float64), torch.tensor([student], dtype=torch.float64)
    whole = float(dense_divergence(Logits(p), Logits(q), KL()))
    coarse, fine = (float(top_k_divergence(KL(), top(p, n), q)) for n in (max(k - 1, 1), k))
    # A teacher's remaining mass is one minus a sum: known to a unit in the last place of one.
    assert 0 <= coarse <= fine + 1e-12
    assert fine <= whole + 1e-12


@TAILS
@pytest.mark.parametrize("filler", [0, 5])
def test_padding_changes_nothing(tail: Any, filler: int) -> None:
    student, logits = pair(2, 6)
    teacher = top(logits, 2, tail)
    pad = torch.full((2, 2), filler)
    padded = TopK(
        torch.cat([pad, teacher.indices], -1),
        torch.cat([torch.full((2, 2), -INF, dtype=torch.float64), teacher.log_probs], -1).requires_grad_(),
        tail,
    )
    got, want = top_k_divergence(KL(), padded, student), top_k_divergence(KL(), teacher, student)
    torch.testing.assert_close(got, want)
    by_student, by_teacher = torch.autograd.grad(got.sum(), (student, padded.log_probs))
    torch.testing.assert_close(by_student, torch.autograd.grad(want.sum(), student)[0])
    assert (by_teacher[:, :2] == 0).all()


def test_a_row_of_padding_has_all_its_mass_in_the_bucket() -> None:
    student = torch.randn(2, 5, requires_grad=True)
    teacher = TopK(torch.zeros(2, 3, dtype=torch.int32), torch.full((2, 3), -INF))
    got = top_k_divergence(KL(), teacher, student)
    assert got.tolist() == [0.0, 0.0]
    assert (torch.autograd.grad(got.sum(), student)[0] == 0).all()


@pytest.mark.parametrize("native", [True, False], ids=["native", "torch"])
@pytest.mark.parametrize("shift", [2.0**20, 2.0**27, -(2.0**27), 2.0**40])
@pytest.mark.parametrize(
    ("tail", "temperature"),
    [  # the mass outside is unknown at another temperature
        ("bucket", 1.0),
        ("zero", 1.0),
        ("renormalize", 1.0),
        ("renormalize", 2.0),
        ("renormalize", 3.0),
    ],
)
def test_a_student_far_from_0_keeps_its_digits(
    tail: Any, native: bool, shift: float, temperature: float
) -> None:
    """A divergence does not change when all logits do by a number that leaves them exact."""
    if native and not selected_rows.serves(torch.zeros(1)):
        pytest.skip("no native kernels")
    student, logits = pair(4, 9)
    student = torch.round(student.detach() * 2**12) / 2**12
    log_probs, indices = logits.log_softmax(-1).topk(9)
    log_probs[1:, 4:] = -INF  # of the first row all classes are kept
    teacher = TopK(indices, log_probs, tail)
    labels = torch.tensor([0, 3, 8, -100])

    def found(student: Tensor) -> list[Tensor]:
        leaf = student.clone().requires_grad_()
        values = top_k_divergence(JensenShannon(), teacher, leaf, temperature=temperature)
        mixed = distillation_loss(
            student=leaf, teacher=teacher, temperature=temperature, labels=labels, label_weight=0.3
        )
        total = (values * torch.tensor([1.0, -2.0, 0.5, 3.0])).sum() + mixed
        (plain,) = torch.autograd.grad(total, leaf, retain_graph=True)
        (by,) = torch.autograd.grad(total, leaf, create_graph=True)
        (curvature,) = torch.autograd.grad(by.square().sum(), leaf)
        return [values.detach(), mixed.detach(), plain, curvature]

    with nullcontext() if native else mock.patch.object(selected_rows, "serves", return_value=False):
        for got, want in zip(found(student + shift), found(student), strict=True):
            torch.testing.assert_close(got, want, rtol=1e-12, atol=1e-14)


@TAILS
@pytest.mark.parametrize("scale", [1.0, 1e4])
def test_gradients_are_finite_for_extreme_students(tail: Any, scale: float) -> None:
    logits = torch.tensor([[3.0, 2.0, 1.0, 0.0, -1.0]]).repeat(3, 1)
    student = scale * torch.tensor(
        [[-1.0, 0.0, 1.0, 0.5, -0.5], [1.0, 1.0, -1.0, -1.0, -1.0], [0.0, -INF, 1.0, -INF, -INF]]
    )
    student.requires_grad_()
    got = top_k_divergence(KL(), top(logits, 2, tail), student)
    assert not got.isnan().any()
    assert got[2] == INF
    assert torch.autograd.grad(got.sum(), student)[0].isfinite().all()


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
def test_what_rounding_leaves_of_the_mass_is_no_reason_for_infinity(dtype: torch.dtype) -> None:
    logits = torch.randn(50, 4, dtype=dtype)
    student = torch.cat([logits, torch.full_like(logits, -INF)], -1)
    assert (top_k_divergence(KL(), top(logits, 4), logits) < 1e-3).all()
    if dtype != torch.bfloat16:
        assert (top_k_divergence(KL(), top(logits, 4), student) < 1e-12 + torch.finfo(dtype).eps).all()
    lost = TopK(torch.tensor([[0]]), torch.tensor([[-0.01]], dtype=dtype))
    alone = torch.tensor([[0.0, -INF]], dtype=dtype)
    assert top_k_divergence(KL(), lost, alone) == INF


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_a_real_remainder_of_many_classes_is_no_rounding_error(dtype: torch.dtype) -> None:
    """In bfloat16, 128 classes of equal probability may lose 0.09 of their mass to rounding, and not 0.3."""
    teacher = TopK(torch.arange(128)[None], torch.full((1, 128), math.log(0.7 / 128)).to(dtype))
    student = torch.full((1, 256), -INF)
    student[:, :128] = 0.0
    assert top_k_divergence(KL(), teacher, student) == INF


def test_a_student_that_agrees_gives_zero_with_zero_gradient() -> None:
    student = torch.tensor([[0.0, -INF, -INF]], requires_grad=True)
    got = top_k_divergence(KL(), TopK(torch.tensor([[0]]), torch.tensor([[0.0]])), student)
    assert got.tolist() == [0.0]
    assert (torch.autograd.grad(got.sum(), student)[0] == 0).all()


def test_kinds_that_forbid_an_empty_teacher_are_infinite_when_it_is_renormalized() -> None:
    student, logits = pair(2, 5)
    for kind in (ReverseKL(), Jeffreys()):
        assert (top_k_divergence(kind, top(logits, 2, "renormalize"), student) == INF).all()


def test_a_row_that_weighs_nothing_gets_no_gradient_whatever_it_holds() -> None:
    student, logits = pair(3, 5)
    spoilt = student.detach().clone()
    spoilt[1] = math.nan
    spoilt.requires_grad_()
    counted = torch.tensor([True, False, True])
    loss = torch.where(counted, top_k_divergence(KL(), top(logits, 2), spoilt), 0).sum()
    clean = torch.where(counted, top_k_divergence(KL(), top(logits, 2), student), 0).sum()
    torch.testing.assert_close(loss, clean)
    torch.testing.assert_close(torch.autograd.grad(loss, spoilt)[0], torch.autograd.grad(clean, student)[0])


@pytest.mark.parametrize("shape", [(0, 5), (2, 3, 5), (5,)])
def test_any_positions(shape: tuple[int, ...]) -> None:
    student, logits = pair(*shape)
    got = top_k_divergence(KL(), top(logits, 2), student)
    assert got.shape == shape[:-1]
    torch.testing.assert_close(got, dense(top(logits, 2), student, KL()))
    assert torch.autograd.grad(got.sum(), student)[0].shape == shape


def test_rows_beyond_one_block() -> None:
    student, logits = pair(40, 8001, dtype=torch.float32)
    teacher = top(logits.double(), 16)
    got = top_k_divergence(KL(), teacher, student)
    want = dense(teacher, student.double(), KL())
    torch.testing.assert_close(got, want)
    by_student = torch.autograd.grad(got.sum(), student)[0]
    torch.testing.assert_close(by_student, torch.autograd.grad(want.sum(), student)[0])


@pytest.mark.heavy
@TAILS
def test_it_compiles_in_one_graph_and_batches(tail: Any) -> None:
    student, logits = pair(3, 4, 6, dtype=torch.float32)
    teacher = top(logits, 2, tail)

    def loss(indices: Tensor, log_probs: Tensor, s: Tensor) -> Tensor:
        return top_k_divergence(KL(), TopK(indices, log_probs, tail), s)

    arguments = teacher.indices, teacher.log_probs, student
    want = loss(*arguments)
    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")(*arguments)
    torch.testing.assert_close(compiled, want)
    torch.testing.assert_close(torch.vmap(loss)(*arguments), want)
    by_student = torch.autograd.grad(want.sum(), student)[0]
    torch.testing.assert_close(torch.autograd.grad(compiled.sum(), student)[0], by_student)
    batched = torch.vmap(torch.func.grad(lambda *a: loss(*a).sum(), argnums=2))(*arguments)
    torch.testing.assert_close(batched, by_student)


TWO = torch.tensor([[0, 1]])
HALVES = torch.tensor([[0.5, 0.25]]).log()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: TopK(TWO, HALVES[0]), r"TopK\(log_probs=.*shape \(1, 2\); got shape \(2,\)"),
        (lambda: TopK(TWO.float(), HALVES), r"TopK\(indices=.*integer.*got dtype torch.float32"),
        (lambda: TopK([[0, 1]], HALVES), r"TopK\(indices=.*got list"),  # type: ignore[arg-type]
        (lambda: TopK(TWO[:, :0], HALVES[:, :0]), r"k at least 1; got .*\(1, 0\)"),
        (lambda: TopK(TWO, HALVES, "drop"), r"tail=.*got 'drop'"),  # type: ignore[arg-type]
        (lambda: TopK(TWO, -HALVES), r"which are <= 0; got 0.693147 at index \(0, 0\), the first of 2"),
        (lambda: TopK(TWO, HALVES * math.nan), r"log-probabilities.*got nan"),
        (lambda: TopK(TWO, HALVES / 9), r"sum to at most 1 in each row; got 1.78\d* at index \(0,\)"),
        (lambda: TopK(TWO - 1, HALVES), r"0 or more; got -1 at index \(0, 0\)"),
        (lambda: TopK(0 * TWO + 3, HALVES), r"each class once in a row; got 3"),
        (lambda: TopK(TWO, -INF + HALVES, "renormalize"), r"a class with mass in each row"),
        (
            lambda: top_k_divergence(KL(), TopK(TWO, HALVES), torch.zeros(1, 1)),
            r"teacher=.*number of classes, 1; got an index 1",
        ),
        (
            lambda: top_k_divergence(KL(), TopK(TWO, HALVES), torch.zeros(2, 3)),
            r"student=.*shape \(1,\); got shape \(2,\)",
        ),
        (lambda: top_k_divergence(KL(), HALVES, torch.zeros(1, 3)), r"teacher=.*a TopK; got Tensor"),  # type: ignore[arg-type]
        (lambda: top_k_divergence(KL(), TopK(TWO, HALVES), TWO), r"student=.*got dtype torch.int64"),
        (lambda: top_k_divergence("kld", TopK(TWO, HALVES), torch.zeros(1, 3)), r"kind="),
        (
            lambda: top_k_divergence(KL(), TopK(TWO, HALVES), torch.zeros(1, 3), temperature=2.0),
            r"temperature=.*tail='bucket'.*got 2.0. Write: tail='renormalize'",
        ),
        (
            lambda: top_k_divergence(Renyi(0.5), TopK(TWO, HALVES, "zero"), torch.zeros(1, 3)),
            r"kind=.*sum over classes; got Renyi",
        ),
    ],
)
def test_errors_name_the_argument_and_the_remedy(call: Any, message: str) -> None:
    with pytest.raises(errors.KullbackError, match=message):
        call()


def test_unchecked_values_are_not_read() -> None:
    assert TopK(TWO - 9, -HALVES, validate=False).largest_index == -1


@pytest.mark.parametrize("dtype", [torch.uint16, torch.uint32, torch.uint64], ids=str)
def test_indices_may_be_unsigned(dtype):
    student = torch.randn(3, 5, generator=torch.Generator().manual_seed(1))
    log_probs, indices = student.flip(0).log_softmax(-1).topk(2)
    found = top_k_divergence(KL(), TopK(indices.to(dtype), log_probs), student)
    assert torch.equal(found, top_k_divergence(KL(), TopK(indices, log_probs), student))


@pytest.mark.parametrize("dtype", [torch.int64, "float32", torch.float8_e4m3fn], ids=str)
def test_a_result_is_of_a_floating_point_dtype(dtype):
    teacher = TopK(torch.zeros(1, 1, dtype=torch.int64), torch.zeros(1, 1))
    with refused(errors.KullbackError, call="top_k_divergence", argument="dtype"):
        top_k_divergence(KL(), teacher, torch.zeros(1, 2), dtype=dtype)


@pytest.mark.parametrize("label_weight", [0.0, 0.3])
def test_second_derivatives_do_not_depend_on_the_order_of_forward_and_backward(label_weight: float) -> None:
    generator = torch.Generator().manual_seed(0)
    student, teacher = torch.randn(2, 3, 6, generator=generator, dtype=torch.float64)
    top = teacher.log_softmax(-1).topk(3)
    labels = None if label_weight == 0 else torch.tensor([1, 2, -100])

    def loss(student: Tensor) -> Tensor:
        stored = TopK(top.indices, top.values)
        return distillation_loss(student=student, teacher=stored, labels=labels, label_weight=label_weight)

    expected = torch.autograd.functional.hessian(loss, student)
    for outer, inner in itertools.product((torch.func.jacrev, torch.func.jacfwd), repeat=2):
        torch.testing.assert_close(outer(inner(loss))(student), expected, rtol=1e-12, atol=1e-15)
