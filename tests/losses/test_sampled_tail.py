"""Teachers with a sampled tail: unbiased in value and gradient, by enumeration of all draws against 50 digits."""

from __future__ import annotations

import itertools
import math
from typing import Any

import mpmath
import pytest
import torch
from mpmath import mpf
from torch import Tensor

from kullback import KL, Alpha, Divergence, Jeffreys, JensenShannon, Renyi, ReverseKL, TotalVariation, errors
from kullback.errors import KullbackError
from kullback.functional import SampledTail, TopK, distillation_loss, sampled_tail_divergence
from kullback.io import Reference, ReferenceWriter, Windows
from kullback.nn import DistillationLoss
from tests.oracles import truth
from tests.refusals import refused

INF = math.inf
SUMS = [kind for kind in truth.KINDS if not isinstance(kind, Renyi)]
CLASSES, K = 6, 2


def logits_of(*shape: int, seed: int = 0, scale: float = 1.5) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) * scale


def all_draws(logits: Tensor, draws: int) -> tuple[SampledTail, Tensor]:
    """Every outcome of the draws from one row as a position, and its probability."""
    log_probs = logits.log_softmax(-1)
    kept, indices = log_probs.topk(K)
    tail = [i for i in range(len(logits)) if i not in indices and log_probs[i] > -INF]
    mass = log_probs[tail].logsumexp(-1)
    outcomes = torch.tensor(list(itertools.product(tail, repeat=draws)))
    many = len(outcomes)
    top = TopK(indices.expand(many, -1), kept.expand(many, -1))
    teacher = SampledTail(top, outcomes, log_probs[outcomes], mass.expand(many))
    return teacher, (log_probs[outcomes] - mass).exp().prod(-1)


def true_divergence(kind: Divergence, teacher: Tensor, student: list[Any]) -> Any:
    with mpmath.workdps(50):
        return truth.divergence(kind, truth.softmax(teacher.tolist()), truth.softmax(student))


def true_gradient(kind: Divergence, teacher: Tensor, student: Tensor) -> list[float]:
    """Central differences at 50 digits, by steps that floats can take."""
    step, found = mpf(2) ** -17, []
    with mpmath.workdps(50):
        for i in range(len(student)):
            ends = []
            for sign in (1, -1):
                moved = [mpf(x) for x in student.tolist()]
                moved[i] += sign * step
                ends.append(true_divergence(kind, teacher, moved))
            found.append(float((ends[0] - ends[1]) / (2 * step)))
    return found


def student_at(distance: str, base: Tensor) -> Tensor:
    """Logits of a student that is near the teacher, or far, or prefers the tail's least class."""
    noise = {"near": 0.02, "middle": 0.2, "far": 2.0, "on a rare class": 0.2}[distance]
    student = base + noise * logits_of(CLASSES, seed=1, scale=1)
    if distance == "on a rare class":
        student[base.argmin()] += 25
    return student


@pytest.mark.parametrize("draws", [1, 2, 3])
@pytest.mark.parametrize("distance", ["near", "middle", "far", "on a rare class"])
@pytest.mark.parametrize("kind", SUMS, ids=repr)
def test_value_and_gradient_are_unbiased_over_all_draws(kind: Divergence, distance: str, draws: int) -> None:
    base = logits_of(CLASSES)
    base[base.argmin()] = -10
    logits = student_at(distance, base)
    teacher, probability = all_draws(base, draws)
    student = logits.clone().requires_grad_()
    values = sampled_tail_divergence(kind, teacher, student.expand(len(probability), -1))
    mean = (probability * values).sum()
    want = float(true_divergence(kind, base, logits.tolist()))
    assert float(mean.detach()) == pytest.approx(want, rel=1e-9)
    got = torch.autograd.grad(mean, student)[0]
    exact = torch.tensor(true_gradient(kind, base, logits), dtype=torch.float64)
    torch.testing.assert_close(got, exact, rtol=1e-8, atol=1e-9 * max(1.0, float(exact.abs().max())))
    # The draws differ, so what is unbiased is no constant.
    assert values.detach().std() > 1e-6 * want


# Whose terms grow no faster than q where p is small.
TAMED = [kind for kind in SUMS if not isinstance(kind, ReverseKL | Jeffreys)
         and kind not in (Alpha(-1.5), Alpha(0), Alpha(0.001), JensenShannon(1.0, scaled=True))]  # fmt: skip


@pytest.mark.parametrize("kind", TAMED, ids=repr)
def test_a_class_that_is_seldom_drawn_makes_no_spike(kind: Divergence) -> None:
    """The student prefers a class that the teacher gives 4e-8: KL is 7.1, and a draw of it would add 10^6."""
    base = torch.tensor([3.0, 2.0, 1.0, 0.5, 0.0, -13.0], dtype=torch.float64)
    logits = torch.tensor([-5.2, -5.2, -5.2, -5.2, -5.2, 3.0], dtype=torch.float64)
    teacher, probability = all_draws(base, 3)
    student = logits.expand(len(probability), -1).clone().requires_grad_()
    values = sampled_tail_divergence(kind, teacher, student)
    want = float(true_divergence(kind, base, logits.tolist()))
    mass = float(teacher.tail_log_mass[0].exp())
    drawn = float((probability * values.detach()).sum())
    assert drawn == pytest.approx(want, rel=1e-9)
    spread = (values.detach() - want).abs().max()
    # The others' ratios differ by a few units of log p, a rare draw by the root of q/p for the kinds between.
    assert float(spread) < 3 * (want + 1) if kind == KL() else float(spread) < 1e4 * mass * (want + 1)
    gradient = torch.autograd.grad(values.sum(), student)[0]
    if kind == KL():
        assert 7 < want < 7.3
        assert float(gradient.abs().max()) <= 1


@pytest.mark.parametrize("kind", [KL(), TotalVariation(), JensenShannon()], ids=repr)
def test_classes_of_probability_zero_count_where_the_student_is_far(kind: Divergence) -> None:
    """Only where it is near, and the draws show all of the tail's mass, is a part of their terms missing."""
    base = logits_of(CLASSES)
    empty = base.argsort()[:2]
    unseen = {KL(): 1.0, TotalVariation(): 0.5, JensenShannon(): math.log(2) / 2}[kind]
    for noise, missing in ((2.0, 0.0), (0.0, 1.0)):
        logits = base + noise * logits_of(CLASSES, seed=1, scale=1)
        logits[empty] = -4.0 if noise else -30.0
        teacher, probability = all_draws(base.index_fill(0, empty, -INF), 2)
        values = sampled_tail_divergence(kind, teacher, logits.expand(len(probability), -1))
        want = float(true_divergence(kind, base.index_fill(0, empty, -INF), logits.tolist()))
        want -= missing * unseen * float(logits.softmax(-1)[empty].sum())
        assert float((probability * values).sum()) == pytest.approx(want, rel=1e-10, abs=1e-13)


def test_a_student_that_agrees_gives_zero_with_zero_gradient_whatever_was_drawn() -> None:
    base = logits_of(3, 20)
    teacher = SampledTail.draw(base, k=3, draws=4)
    exact = base.log_softmax(-1)
    teacher = SampledTail(
        TopK(teacher.top.indices, exact.gather(-1, teacher.top.indices)),
        teacher.tail_indices,
        exact.gather(-1, teacher.tail_indices),
        teacher.tail_log_mass,
    )
    student = base.clone().requires_grad_()
    for kind in SUMS:
        values = sampled_tail_divergence(kind, teacher, student)
        assert float(values.detach().abs().max()) < 1e-14
        gradient = torch.autograd.grad(values.sum(), student)[0]
        if not isinstance(kind, TotalVariation):  # not smooth there
            assert float(gradient.abs().max()) < 1e-13, kind


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
def test_dtypes_shapes_and_blocks(dtype: torch.dtype) -> None:
    base, student = logits_of(2, 70, 3000), logits_of(2, 70, 3000, seed=1).to(dtype).requires_grad_()
    teacher = SampledTail.draw(base, k=8, draws=5, generator=torch.Generator().manual_seed(2))
    values = sampled_tail_divergence(KL(), teacher, student)
    assert values.shape == (2, 70)
    assert values.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    wide = sampled_tail_divergence(KL(), teacher, student.detach(), dtype=torch.float64)
    assert wide.dtype == torch.float64
    assert torch.equal(wide.to(values.dtype), values.detach())
    q = student.detach().double().log_softmax(-1).requires_grad_()

    def log_ratios(log_p: Tensor, indices: Tensor) -> Tensor:
        return log_p.double() - q.gather(-1, indices)

    # The student is far from the teacher at each position: the sums of p and of q are exact.
    top, mass = teacher.top, teacher.tail_log_mass.double().exp()
    want = (top.log_probs.double().exp() * log_ratios(top.log_probs, top.indices)).sum(-1)
    want = want + mass * log_ratios(teacher.tail_log_probs, teacher.tail_indices).mean(-1)
    want = want + 1 - top.log_probs.double().exp().sum(-1) - mass
    torch.testing.assert_close(values.double(), want, rtol=1e-6, atol=1e-9)
    by_log_q = torch.autograd.grad(want.sum(), q)[0]
    by_logits = by_log_q - q.detach().exp() * by_log_q.sum(-1, keepdim=True)
    got = torch.autograd.grad(values.sum(), student)[0]
    assert got.dtype == dtype
    scale = float(by_logits.abs().max())
    torch.testing.assert_close(
        got.double(),
        by_logits,
        rtol=0,
        atol={torch.float64: 1e-12, torch.float32: 1e-6}.get(dtype, 8e-3) * scale,
    )


def test_second_derivatives() -> None:
    base, student = logits_of(1, 7), logits_of(1, 7, seed=1).requires_grad_()
    teacher = SampledTail.draw(base, k=2, draws=3, generator=torch.Generator().manual_seed(0))
    assert torch.autograd.gradcheck(lambda s: sampled_tail_divergence(KL(), teacher, s), student)
    assert torch.autograd.gradgradcheck(lambda s: sampled_tail_divergence(KL(), teacher, s), student)


@pytest.mark.heavy
def test_it_compiles_in_one_graph_and_batches() -> None:
    base, student = logits_of(3, 4, 6), logits_of(3, 4, 6, seed=1).float().requires_grad_()
    teacher = SampledTail.draw(base, k=2, draws=3, generator=torch.Generator().manual_seed(0))

    def loss(i: Tensor, p: Tensor, j: Tensor, r: Tensor, m: Tensor, s: Tensor) -> Tensor:
        return sampled_tail_divergence(KL(), SampledTail(TopK(i, p), j, r, m), s)

    top = teacher.top
    arguments = (
        *(top.indices, top.log_probs, teacher.tail_indices, teacher.tail_log_probs, teacher.tail_log_mass),
        student,
    )
    want = loss(*arguments)
    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")(*arguments)
    torch.testing.assert_close(compiled, want)
    torch.testing.assert_close(torch.vmap(loss)(*arguments), want)
    by_student = torch.autograd.grad(want.sum(), student)[0]
    torch.testing.assert_close(torch.autograd.grad(compiled.sum(), student)[0], by_student)


def test_gradients_are_finite_for_extreme_students() -> None:
    base = logits_of(4, 9)
    teacher = SampledTail.draw(base, k=2, draws=4)
    student = (logits_of(4, 9, seed=1) * 500).requires_grad_()
    with torch.no_grad():
        student[0, int(teacher.tail_indices[0, 0])] = -INF
        student[1, int(teacher.top.indices[1, 0])] = -INF
    values = sampled_tail_divergence(KL(), teacher, student)
    assert values.isinf().tolist()[:2] == [True, True]
    finite = sampled_tail_divergence(JensenShannon(), teacher, student)
    assert bool(finite.isfinite().all())
    for each in (values, finite):
        assert bool(torch.autograd.grad(each.sum(), student, retain_graph=True)[0].isfinite().all())


def test_padding_and_no_draws() -> None:
    base = torch.tensor([[1.0, 0.0, -INF, -INF], [3.0, 2.0, 1.0, 0.0]])
    teacher = SampledTail.draw(base, k=3, draws=2, generator=torch.Generator().manual_seed(0))
    assert teacher.tail_log_probs.isinf().tolist() == [[True, True], [False, False]]
    student = torch.zeros(2, 4)
    values = sampled_tail_divergence(KL(), teacher, student)
    assert float(values[0]) == pytest.approx(float(true_divergence(KL(), base[0], [0, 0, 0, 0])), rel=1e-6)
    assert float(values[1]) == pytest.approx(float(true_divergence(KL(), base[1], [0, 0, 0, 0])), rel=1e-6)
    none = SampledTail.draw(base, k=3, draws=0)
    kept = sampled_tail_divergence(KL(), none, student)
    assert kept[0] == values[0]
    assert kept[1] < values[1]


def test_the_loss_and_the_module_take_it(tmp_path: Any) -> None:
    base, student = logits_of(4, 12), logits_of(4, 12, seed=1).float().requires_grad_()
    windows = Windows(torch.arange(5), torch.tensor([0, 5]), torch.arange(5) > 0)
    with ReferenceWriter(tmp_path / "a.klref", windows, top=3, tail_draws=6) as writer:
        writer.add(base)
    with Reference(tmp_path / "a.klref") as reference:
        teacher = SampledTail.from_reference(reference.read(0, 4))
    mask = torch.tensor([True, False, True, True])
    rows = sampled_tail_divergence(JensenShannon(), teacher, student)
    want = rows[mask].mean()
    torch.testing.assert_close(
        distillation_loss(student=student, teacher=teacher, kind=JensenShannon(), mask=mask), want
    )
    module = DistillationLoss(kind=JensenShannon(), reduction="sum")
    torch.testing.assert_close(module(student=student, teacher=teacher), rows.sum())
    with refused(errors.ArgumentValueError, got="^a SampledTail"):
        distillation_loss(student=student * 1, teacher=teacher, inplace_backward=True)


TOP = TopK(torch.tensor([[0, 1]]), torch.tensor([[0.5, 0.25]]).log())
DRAWN, QUARTER = torch.tensor([[2, 3]]), torch.tensor([0.25]).log()
PROBS = torch.tensor([[0.125, 0.0625]]).log()
SOUND = SampledTail(TOP, DRAWN, PROBS, QUARTER)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: SampledTail(TOP.indices, DRAWN, PROBS, QUARTER), r"top=.*a TopK; got Tensor"),  # type: ignore[arg-type]
        (lambda: SampledTail(TOP, DRAWN.float(), PROBS, QUARTER), r"tail_indices=.*got dtype torch.float32"),
        (lambda: SampledTail(TOP, DRAWN, DRAWN, QUARTER), r"tail_log_probs=.*got dtype torch.int64"),
        (lambda: SampledTail(TOP, DRAWN, PROBS, [0.1]), r"tail_log_mass=.*got list"),  # type: ignore[arg-type]
        (
            lambda: SampledTail(TOP, DRAWN, PROBS[:, :1], QUARTER),
            r"tail_log_probs=.*shape \(1, 2\).*got shape \(1, 1\)",
        ),
        (lambda: SampledTail(TOP, DRAWN, PROBS, QUARTER[0]), r"tail_log_mass=.*shape \(1,\).*got shape \(\)"),
        (
            lambda: SampledTail(TOP, DRAWN, PROBS, QUARTER - 1),
            r"the top's probabilities; got 0.84\d+ at index \(0,\)",
        ),
        (
            lambda: SampledTail(TOP, DRAWN, PROBS + 2, QUARTER),
            r"at most the tail's mass; got -0.07\d+ at index \(0, 0\)",
        ),
        (lambda: SampledTail(TOP, DRAWN, PROBS - INF, QUARTER), r"-inf only where the tail has no mass"),
        (lambda: SampledTail(TOP, DRAWN - 3, PROBS, QUARTER), r"0 or more; got -1"),
        (lambda: SampledTail(TOP, DRAWN - 1, PROBS, QUARTER), r"not in the top; got 1 at index \(0, 0\)"),
        (lambda: sampled_tail_divergence(KL(), TOP, torch.zeros(1, 4)), r"teacher=.*a SampledTail; got TopK"),  # type: ignore[arg-type]
        (lambda: sampled_tail_divergence(KL(), SOUND, torch.zeros(1, 3)), r"below .* 3; got an index 3"),
        (lambda: sampled_tail_divergence(KL(), SOUND, torch.zeros(2, 4)), r"shape \(1,\).*got shape \(2,\)"),
        (lambda: sampled_tail_divergence(KL(), SOUND, DRAWN), r"student=.*got dtype torch.int64"),
        (lambda: sampled_tail_divergence("kld", SOUND, torch.zeros(1, 4)), r"kind="),
        (lambda: sampled_tail_divergence(Renyi(0.5), SOUND, torch.zeros(1, 4)), r"kind=.*sum over classes"),
        (
            lambda: sampled_tail_divergence(KL(), SOUND, torch.zeros(1, 4), temperature=2.0),
            r"temperature=.*drawn at temperature 1.*got 2.0. Write: a teacher made by SampledTail.draw\(logits / temp",
        ),
    ],
)
def test_errors_name_the_argument_and_the_remedy(call: Any, message: str) -> None:
    with pytest.raises(errors.KullbackError, match=message):
        call()


def test_the_remedy_for_another_temperature() -> None:
    base, student = logits_of(2, 300), logits_of(2, 300, seed=1)
    teacher = SampledTail.draw(base / 2, k=50, draws=20_000, generator=torch.Generator().manual_seed(0))
    got = sampled_tail_divergence(KL(), teacher, student / 2)
    want = distillation_loss(student=student, teacher=base, temperature=2.0, reduction="none")
    torch.testing.assert_close(got, want, rtol=0.02, atol=0)


@pytest.mark.parametrize(
    "logits",
    [
        torch.zeros(2, 5, device="meta"),
        torch.zeros(2, 0),
        torch.zeros(2, 5, dtype=torch.int64),
        [[0.0, 1.0]],
        *(torch.tensor([[0.0, 1.0], [0.0, wrong]]) for wrong in (math.nan, math.inf)),
        torch.tensor([[0.0, 1.0], [-math.inf, -math.inf]]),
    ],
    ids=str,
)
def test_what_no_teacher_can_be_drawn_from_is_refused(logits):
    with refused(KullbackError, call="SampledTail.draw", argument="logits"):
        SampledTail.draw(logits)


def test_positions_without_a_distribution_are_left_out_as_the_error_says():
    logits = torch.tensor([[0.0, 1.0], [0.0, math.nan]])
    mask = logits.amax(-1).isfinite()
    assert SampledTail.draw(logits[mask], k=1, draws=2).top.indices.tolist() == [[1]]


def test_no_positions_give_a_teacher_of_no_positions():
    teacher = SampledTail.draw(torch.zeros(0, 3, 5), k=2, draws=4)
    assert teacher.top.indices.shape == (0, 3, 2)
    assert sampled_tail_divergence(KL(), teacher, torch.zeros(0, 3, 5)).shape == (0, 3)
