"""A mixture of teachers: values at 50 digits, gradients of all teachers, what lists have in common, and refusals."""

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
    JensenShannon,
    Logits,
    Renyi,
    ReverseKL,
    TotalVariation,
    divergence as dense_divergence,
)
from kullback.errors import ArgumentTypeError, ArgumentValueError
from kullback.functional import (
    Mixture,
    SampledTail,
    Scored,
    TopK,
    distillation_loss,
    linear_distillation_loss,
)
from tests.oracles import truth
from tests.refusals import refused

INF = math.inf
WEIGHTS = [0.5, 0.3, 0.2]
FORWARD = KL()
SUMS = [kind for kind in truth.KINDS if not isinstance(kind, Renyi)]


def drawn(rows: int, classes: int, dtype: torch.dtype = torch.float64, seed: int = 0) -> list[Tensor]:
    """Logits of a student and of three teachers."""
    generator = torch.Generator().manual_seed(seed)
    logits = 1.5 * torch.randn(4, rows, classes, generator=generator, dtype=torch.float64)
    return list(logits.to(dtype))


def top(logits: Tensor, k: int, tail: Any = "bucket") -> TopK:
    log_probs, indices = logits.log_softmax(-1).topk(k)
    return TopK(indices, log_probs, tail)


def scored_at(ids: Tensor, logits: Tensor, tail: Any = "bucket") -> Scored:
    return Scored(ids, logits.log_softmax(-1).gather(-1, ids), tail)


def true_mixture(teachers: list[list[mpf]]) -> list[mpf]:
    weighted = [[mpf(w) * x for x in p] for w, p in zip(WEIGHTS, teachers, strict=True)]
    return [mpmath.fsum(of_class) for of_class in zip(*weighted, strict=True)]


def cooled(logits: Tensor, temperature: float) -> list[mpf]:
    with mpmath.workdps(50):
        return truth.softmax([mpf(x) / mpf(temperature) for x in logits.tolist()])


def values(student: Tensor, teacher: Mixture, kind: Divergence = FORWARD, **settings: Any) -> Tensor:
    return distillation_loss(student=student, teacher=teacher, kind=kind, reduction="none", **settings)


def of_heads(student: Tensor, teacher: Mixture, kind: Divergence = FORWARD, **settings: Any) -> Tensor:
    head = torch.eye(student.shape[-1], dtype=student.dtype)
    return linear_distillation_loss(
        student=student, student_weight=head, teacher=teacher, kind=kind, reduction="none", **settings
    )


@pytest.mark.parametrize("temperature", [1.0, 2.5])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("kind", truth.KINDS, ids=repr)
def test_a_mixture_of_logits(kind: Divergence, dtype: torch.dtype, temperature: float) -> None:
    student, *teachers = drawn(3, 6, dtype)
    got = values(student, Mixture(teachers, WEIGHTS), kind, temperature=temperature)
    assert got.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    for row, value in enumerate(got.tolist()):
        with mpmath.workdps(50):
            p = true_mixture([cooled(teacher[row], temperature) for teacher in teachers])
            want = float(truth.divergence(kind, p, cooled(student[row], temperature)))
        assert value == pytest.approx(want, rel=1e-9 if dtype == torch.float64 else 1e-5, abs=1e-7)


@pytest.mark.parametrize("kind", SUMS, ids=repr)
@pytest.mark.parametrize("tail", ["bucket", "zero"])
def test_lists_of_the_same_ids_keep_all_of_them(kind: Divergence, tail: Any) -> None:
    """The mixture of lists is the list of the mixture, whatever order the ids are in."""
    student, *teachers = drawn(4, 7)
    ids = student.topk(3).indices
    mixture = Mixture([scored_at(ids.roll(n, -1), t, tail) for n, t in enumerate(teachers)], WEIGHTS)
    mixed = sum(w * t.softmax(-1) for w, t in zip(WEIGHTS, teachers, strict=True))
    assert isinstance(mixed, Tensor)
    want = values(student, scored_at(ids, mixed.log(), tail), kind)  # type: ignore[arg-type]
    torch.testing.assert_close(values(student, mixture, kind), want, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(of_heads(student, mixture, kind), want, rtol=1e-9, atol=1e-12)
    # A teacher that gives all logits knows these ids, too.
    beside = Mixture([mixture.teachers[0], teachers[1], mixture.teachers[2]], WEIGHTS)
    torch.testing.assert_close(values(student, beside, kind), want, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("kind", SUMS, ids=repr)
def test_lists_of_other_ids_keep_what_they_have_in_common(kind: Divergence) -> None:
    """The mixture's probability of a class is known only if each list has the class. The value is a lower bound."""
    student, *teachers = drawn(12, 6)
    lists = [top(t, 4) for t in teachers]
    mixture = Mixture(lists, WEIGHTS)
    common = [set.intersection(*(set(t.indices[row].tolist()) for t in lists)) for row in range(12)]
    counted = torch.tensor([len(ids) > 0 for ids in common])
    assert counted.sum() > 6
    assert len({len(ids) for ids in common}) > 1
    for row in range(12):
        ids = mixture.kept_indices[row]
        assert set(ids[ids >= 0].tolist()) == common[row]
    got = values(student, mixture, kind, mask=counted)
    mixed = torch.stack([w * t.softmax(-1) for w, t in zip(WEIGHTS, teachers, strict=True)]).sum(0)
    for row in counted.nonzero().flatten().tolist():
        ids = torch.tensor(sorted(common[row]))
        want = values(student[row : row + 1], scored_at(ids[None], mixed[row : row + 1].log()), kind)  # type: ignore[arg-type]
        assert got[row].item() == pytest.approx(want.item(), rel=1e-9, abs=1e-12)
    whole = dense_divergence(Logits(mixed.log()), Logits(student), kind)
    assert (got[counted] <= whole[counted] * (1 + 1e-9) + 1e-12).all()


def test_positions_without_a_common_class_are_refused_unless_they_do_not_count() -> None:
    a = TopK(torch.tensor([[0, 1], [0, 1]]), torch.tensor([[0.5, 0.25], [0.5, 0.25]]).log())
    b = TopK(torch.tensor([[1, 2], [2, 3]]), torch.tensor([[0.5, 0.25], [0.5, 0.25]]).log())
    student = torch.zeros(2, 4)
    mixture = Mixture([a, b])
    for loss in (values, of_heads):
        with refused(
            ArgumentValueError,
            argument="teacher",
            got=r"without a common class at 1 of 2.*\(1,\)",
            instead="Scored",
        ):
            loss(student, mixture)
    got = values(student, mixture, mask=torch.tensor([True, False]))
    p, q = torch.tensor([0.375, 0.625]), torch.tensor([0.25, 0.75])
    torch.testing.assert_close(got, torch.tensor([float((p * (p / q).log()).sum()), 0.0]))
    # The remedy: both teachers score the same ids.
    scored = Mixture([Scored(a.indices, a.log_probs), Scored(a.indices, b.log_probs)])
    assert values(student, scored).isfinite().all()


@pytest.mark.parametrize("temperature", [1.0, 0.5])
@pytest.mark.parametrize(
    "kind", [KL(), JensenShannon(), TotalVariation(), ChiSquared(), Renyi(0.5)], ids=repr
)
def test_renormalized_lists_know_every_class_that_one_of_them_lists(
    kind: Divergence, temperature: float
) -> None:
    student, *teachers = drawn(5, 7)
    lists = [top(t, 3, "renormalize") for t in teachers]
    mixed = torch.zeros(5, 7, dtype=torch.float64)
    for weight, of in zip(WEIGHTS, lists, strict=True):
        mixed += weight * torch.zeros_like(mixed).scatter(
            -1, of.indices, (of.log_probs / temperature).softmax(-1)
        )
    want = dense_divergence(Logits(mixed.log()), Logits(student / temperature), kind)
    mixture = Mixture(lists, WEIGHTS)
    for loss in (values, of_heads):
        torch.testing.assert_close(
            loss(student, mixture, kind, temperature=temperature), want, rtol=1e-9, atol=0
        )


def test_a_mixture_of_one_teacher_and_weights_of_zero() -> None:
    student, *teachers = drawn(3, 6)
    alone = distillation_loss(student=student, teacher=teachers[0], kind="js")
    for mixture in (
        Mixture(teachers[:1]),
        Mixture([teachers[0], teachers[1]], [1, 0]),
        Mixture([teachers[0]] * 3),
    ):
        torch.testing.assert_close(distillation_loss(student=student, teacher=mixture, kind="js"), alone)
    listed = Mixture([top(teachers[0], 2), top(teachers[0], 2)], torch.tensor([0.25, 0.75]))  # type: ignore[arg-type]
    want = distillation_loss(student=student, teacher=top(teachers[0], 2), kind="js")
    torch.testing.assert_close(distillation_loss(student=student, teacher=listed, kind="js"), want)


def test_a_class_that_a_teacher_forbids_keeps_the_mass_of_the_others() -> None:
    student = torch.zeros(1, 3, dtype=torch.float64)
    a, b = (torch.tensor([x], dtype=torch.float64).log() for x in ([0.5, 0.0, 0.5], [0.25, 0.75, 0.0]))
    p = torch.tensor([[0.375, 0.375, 0.25]], dtype=torch.float64)
    ids = torch.tensor([[0, 1]])
    for pair in ([a, b], [Scored(ids, a[:, :2]), b], [Scored(ids, a[:, :2]), Scored(ids, b[:, :2])]):
        torch.testing.assert_close(values(student, Mixture(pair)), (p * (3 * p).log()).sum(-1))
    nothing = Mixture([Scored(ids[:, 1:], a[:, 1:2])] * 2)
    assert values(student, nothing, ReverseKL()) == INF


def everything(teachers: list[Tensor], student: Tensor) -> list[Mixture]:
    """Mixtures of all forms of teachers, made of the same logits."""
    ids = student.detach().topk(3).indices
    return [
        Mixture(teachers, WEIGHTS),
        Mixture([scored_at(ids, t) for t in teachers], WEIGHTS),
        Mixture([top(t, 4, "renormalize") for t in teachers], WEIGHTS),
        Mixture([scored_at(ids, teachers[0], "zero"), *teachers[1:]], WEIGHTS),
    ]


@pytest.mark.sweep
@pytest.mark.parametrize("form", range(4))
@pytest.mark.parametrize("loss", [values, of_heads], ids=["logits", "heads"])
def test_gradients_reach_the_student_and_all_teachers(form: int, loss: Any) -> None:
    student, *teachers = (x.requires_grad_() for x in drawn(2, 5))

    def value(student: Tensor, *teachers: Tensor) -> Tensor:
        return loss(student, everything(list(teachers), student)[form], JensenShannon())

    assert torch.autograd.gradcheck(value, (student, *teachers))


@pytest.mark.sweep
@pytest.mark.parametrize("form", range(4))
def test_second_derivatives_reach_the_student_and_all_teachers(form: int) -> None:
    student, *teachers = (x.requires_grad_() for x in drawn(2, 5))

    def value(student: Tensor, *teachers: Tensor) -> Tensor:
        return values(student, everything(list(teachers), student)[form], JensenShannon())

    assert torch.autograd.gradgradcheck(value, (student, *teachers))


@pytest.mark.parametrize("form", range(4))
@pytest.mark.parametrize("loss", [values, of_heads], ids=["logits", "heads"])
def test_what_does_not_count_has_no_effect(form: int, loss: Any) -> None:
    student, *teachers = drawn(4, 6)
    mixture = everything(teachers, student)[form]
    want = loss(student, mixture)
    leaves = [student.clone()]
    spoilt: list[Tensor | TopK] = []
    for teacher in mixture.teachers:
        leaves.append((teacher if isinstance(teacher, Tensor) else teacher.log_probs).clone())
        indices = None if isinstance(teacher, Tensor) else teacher.indices
        leaves[-1][[1, 3]] = math.nan
        leaves[-1].requires_grad_()
        spoilt.append(leaves[-1] if indices is None else type(teacher)(indices, leaves[-1], teacher.tail))
    leaves[0][[1, 3]] = math.nan
    leaves[0].requires_grad_()
    got = loss(leaves[0], Mixture(spoilt, WEIGHTS), mask=torch.tensor([True, False, True, False]))
    torch.testing.assert_close(got[[0, 2]], want[[0, 2]])
    assert (got[[1, 3]] == 0).all()
    for gradient in torch.autograd.grad(got.sum(), leaves):
        assert (gradient[[1, 3]] == 0).all()
        assert gradient.isfinite().all()


def test_derivatives_where_no_teacher_has_mass_are_zero() -> None:
    a, b = (torch.tensor([[0.0, -INF, x]], dtype=torch.float64, requires_grad=True) for x in (1.0, 2.0))
    student = torch.zeros(1, 3, dtype=torch.float64, requires_grad=True)
    loss = distillation_loss(student=student, teacher=Mixture([a, b]))
    for gradient in torch.autograd.grad(loss, (student, a, b)):
        assert gradient.isfinite().all()
        assert (gradient != 0).any()


def test_forward_mode_derivatives_where_no_teacher_has_mass_are_finite() -> None:
    a, b = (torch.tensor([[0.0, -INF, x]], dtype=torch.float64) for x in (1.0, 2.0))
    student = torch.zeros(1, 3, dtype=torch.float64)

    def loss(a: Tensor, b: Tensor) -> Tensor:
        return values(student, Mixture([a, b])).sum()

    tangent = torch.tensor([[0.0, 0.0, 1.0]], dtype=torch.float64)
    _, change = torch.func.jvp(loss, (a, b), (tangent, tangent))
    by_a, by_b = torch.func.grad(loss, argnums=(0, 1))(a, b)
    torch.testing.assert_close(change, by_a[0, 2] + by_b[0, 2])


def test_other_vocabularies() -> None:
    student, *teachers = drawn(2, 6)
    for setting in ({"vocabulary": "truncate"}, {"classes": 5}, {"vocabulary": "mask"}):
        mixed = torch.stack([t[:, :5].softmax(-1) for t in teachers[:2]]).mean(0).log()
        want = distillation_loss(student=student, teacher=mixed, **setting)  # type: ignore[arg-type]
        got = distillation_loss(student=student, teacher=Mixture([t[:, :5] for t in teachers[:2]]), **setting)  # type: ignore[arg-type]
        torch.testing.assert_close(got, want)
    with refused(ArgumentValueError, argument="student", instead="vocabulary='truncate'"):
        distillation_loss(student=student, teacher=Mixture([t[:, :5] for t in teachers]))
    with refused(
        ArgumentValueError, argument="teachers", got="5 classes", instead="the student's vocabulary"
    ):
        of_heads(student, Mixture([t[:, :5] for t in teachers]))
    with refused(ArgumentValueError, argument="teacher", got="an index"):
        values(student[:, :2], Mixture([top(t, 4) for t in teachers]))


@pytest.mark.heavy
@pytest.mark.parametrize("form", range(4))
def test_it_compiles_in_one_graph(form: int) -> None:
    student, *teachers = drawn(3, 6, torch.float32)

    def loss(student: Tensor, *teachers: Tensor) -> Tensor:
        return values(student, everything(list(teachers), student)[form])

    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(student, *teachers), loss(student, *teachers))


ROWS = torch.zeros(1, 3)
LISTED = TopK(torch.tensor([[0, 1]]), torch.tensor([[0.5, 0.25]]).log())


ONE = SampledTail.draw(ROWS, k=1, draws=1)
LEARNED = torch.tensor([0.5, 0.5], requires_grad=True)


def with_tail(tail: Any) -> TopK:
    return TopK(LISTED.indices, LISTED.log_probs, tail)


@pytest.mark.parametrize(
    ("call", "argument", "says"),
    [
        (lambda: Mixture([]), "teachers", "one teacher or more"),
        (lambda: Mixture(ROWS), "teachers", "a list"),  # type: ignore[arg-type]
        (lambda: Mixture([ROWS.long()]), "teachers", "torch.int64"),
        (lambda: Mixture([ROWS, ONE]), "teachers", "SampledTail at index 1"),  # type: ignore[list-item]
        (lambda: Mixture([ROWS, Mixture([ROWS])]), "teachers", "a Mixture"),  # type: ignore[list-item]
        (lambda: Mixture([ROWS, torch.zeros(2, 3)]), "teachers", "same positions"),
        (lambda: Mixture([ROWS, ROWS.to("meta")]), "teachers", "on meta"),
        (lambda: Mixture([ROWS, torch.zeros(1, 4)]), "teachers", "3 and 4"),
        (lambda: Mixture([LISTED, with_tail("zero")]), "teachers", "'bucket' and 'zero'"),
        (lambda: Mixture([with_tail("renormalize"), ROWS]), "teachers", "no logits"),
        (lambda: Mixture([LISTED, ROWS[:, :1]]), "teachers", "an index 1"),
        (lambda: Mixture([ROWS, ROWS], [0.5, 0.6]), "weights", "the sum 1.1"),
        (lambda: Mixture([ROWS, ROWS], [1.0]), "weights", "2 numbers"),
        (lambda: Mixture([ROWS, ROWS], [1.5, -0.5]), "weights", "at least 0"),
        (lambda: Mixture([ROWS, ROWS], [0.5, math.nan]), "weights", "nan"),
        (lambda: Mixture([ROWS, ROWS], 0.5), "weights", "a list of numbers"),  # type: ignore[arg-type]
        (lambda: Mixture([ROWS, ROWS], LEARNED), "weights", "no gradient"),  # type: ignore[arg-type]
    ],
)
def test_errors_name_the_argument_and_the_remedy(call: Any, argument: str, says: str) -> None:
    with refused((ArgumentTypeError, ArgumentValueError), call="Mixture", argument=argument, says=says):
        call()


def test_the_remedies_work() -> None:
    weights = [0.5, 0.6]
    assert Mixture([ROWS, ROWS], weights=[w / sum(weights) for w in weights])
    assert Mixture([LISTED, SampledTail.draw(ROWS, k=2, draws=1).top])
    assert Mixture([ROWS, torch.zeros(1, 4)[..., :3]])
    with refused(ArgumentValueError, argument="temperature", instead="renormalize"):
        values(ROWS, Mixture([LISTED, ROWS]), temperature=2.0)
    with refused(ArgumentValueError, argument="student", wanted=r"shape \(1,\)"):
        values(torch.zeros(2, 3), Mixture([LISTED, ROWS]))
    with refused(ArgumentValueError, argument="student", wanted=r"shape \(1,\)"):
        values(torch.zeros(2, 3), Mixture([ROWS, ROWS]))


@pytest.mark.parametrize("kind", [KL(), ReverseKL(), JensenShannon()], ids=repr)
def test_padding_has_no_mass_in_any_teacher(kind: Divergence) -> None:
    """The mass of the padding differs between the teachers, and would change their weights in the mixture."""
    student, *teachers = drawn(4, 7)
    for n, teacher in enumerate(teachers):
        teacher[:, 5:] += 3 * n
    ids = torch.tensor([[0, 4, 2]]).expand(4, 3)
    for of in (
        lambda x: x,
        lambda x: [scored_at(ids, x[0][:, :5]), *x[1:]],
    ):
        mixture, cut = Mixture(of(teachers), WEIGHTS), Mixture(of([x[:, :5] for x in teachers]), WEIGHTS)
        want = values(student[:, :5], cut, kind, temperature=1.0)
        for loss in (values, of_heads):
            torch.testing.assert_close(loss(student, mixture, kind, classes=5), want)
    if not isinstance(kind, KL):
        return
    truncated = values(
        student[:, :5], Mixture(teachers, WEIGHTS), kind, temperature=2.5, vocabulary="truncate"
    )
    cut = Mixture([x[:, :5] for x in teachers], WEIGHTS)
    torch.testing.assert_close(truncated, values(student[:, :5], cut, kind, temperature=2.5))
