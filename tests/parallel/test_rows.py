"""`distillation_loss` with sharded classes: value and gradient are those of whole rows, on every number of ranks."""

from __future__ import annotations

import math
from functools import partial
from typing import Any
from unittest import mock

import mpmath
import pytest
import torch

from kullback import KL, Jeffreys, JensenShannon, Renyi, ReverseKL, SquaredHellinger, TotalVariation
from kullback.errors import ArgumentValueError
from kullback.functional import Mixture, SampledTail, Scored, distillation_loss, linear_distillation_loss
from kullback.nn import DistillationLoss
from kullback.parallel import rows as sharded_rows
from tests.parallel.losses import (
    CLASSES,
    KINDS,
    Loss,
    chunked,
    even,
    late,
    of_kind,
    plain,
    ragged,
    rows,
    top_k,
)
from tests.parallel.world import SIZES, Rank
from tests.refusals import refused
from tests.test_contributing import example

CUTS = [even, chunked, ragged, late]
MASK = torch.tensor([True, False, True, True, False, True])
WEIGHT = torch.tensor([0.5, 2.0, 0.0, 1.0, 3.0, 0.25], dtype=torch.float64)
LABELS = torch.tensor([1, -100, 3, 0, -100, 2])
LABELED: dict[str, Any] = {"labels": LABELS, "label_weight": 0.3}


def with_options(cut: Any = ragged, teacher_cut: Any = None, **options: Any) -> Loss:
    return Loss(*plain(), options, cut, teacher_cut)


def excluded_nan() -> Loss:
    student, teacher = plain()
    student[1], teacher[4] = math.nan, math.inf
    return Loss(student, teacher, {"mask": MASK}, even)


def padded(**options: Any) -> Loss:
    """Two classes of padding at the end, which hold anything."""
    student, teacher = plain()
    student[:, -2:], teacher[:, -2:] = 50.0, math.nan
    return Loss(student, teacher, {"classes": CLASSES - 2, **options}, chunked)


def other_vocabulary(vocabulary: str, student: int, teacher: int, **options: Any) -> Loss:
    kind = JensenShannon() if vocabulary == "mask" else KL()
    options = {"vocabulary": vocabulary, "kind": kind, **options}
    return Loss(plain(3, (6,), student)[0], plain(4, (6,), teacher)[1], options, even, late)


def top_k_loss(tail: str, kind: Any, **options: Any) -> Loss:
    student, teacher = plain()
    student[2, 5:] = -math.inf
    return Loss(student, top_k(tail, teacher.log_softmax(-1)), {"kind": kind, **options}, late)


def sampled_loss(kind: Any, **options: Any) -> Loss:
    student, teacher = plain()
    drawn = SampledTail.draw(teacher, k=3, draws=5, generator=torch.Generator().manual_seed(1))
    return Loss(student, drawn, {"kind": kind, **options}, ragged)


def scored_loss(*, mixed: bool, **options: Any) -> Loss:
    """A teacher scored on the student's most probable classes, alone or mixed with logits."""
    student, teacher = plain()
    ids = student.topk(3).indices
    scored = Scored(ids, teacher.log_softmax(-1).gather(-1, ids))
    given = Mixture([scored, teacher.flip(-1)], [0.75, 0.25]) if mixed else scored
    return Loss(student, given, {"kind": ReverseKL(), **options}, late)


def mixture_loss(**options: Any) -> Loss:
    student, teacher = plain()
    return Loss(student, Mixture([teacher, teacher.flip(-1)], [0.75, 0.25]), options, ragged)


def loss_of_ensemble(**options: Any) -> Loss:
    """The teacher of CONTRIBUTING: the mean of two models' probabilities of four classes."""
    names: dict[str, Any] = {"__name__": "ensemble"}
    page = compile(example("A teacher"), "CONTRIBUTING.md", "exec", dont_inherit=True)
    exec(page, names)  # noqa: S102 - the code of the page
    student, teacher = plain()
    indices = teacher.argsort(-1)[:, :4]
    members = torch.stack([x.gather(-1, indices) for x in (student, teacher)], -2)
    return Loss(student, names["Ensemble"](indices, members), options, late)


def labeled_rows(kind: Any, share: float, dtype: torch.dtype = torch.float64, **options: Any) -> Loss:
    """Every edge; the labels have nearly all mass, none, and lie in each shard."""
    labels = torch.tensor([0, 10, 5, 3, -100, 8, 1, 4, 7, 2, 2, 9, 0, 6])
    options = {"kind": kind, "labels": labels, "label_weight": share, "reduction": "none", **options}
    return Loss(*rows(dtype), options, late)


LOSSES: dict[str, Loss] = {
    **{f"{kind!r} {cut.__name__}": of_kind(kind, cut) for kind in KINDS for cut in CUTS},
    **{f"reduction {word}": with_options(reduction=word) for word in ("none", "sum", "mean", "batchmean")},
    "scored": scored_loss(mixed=False, mask=MASK),
    "scored, mixed with logits": scored_loss(mixed=True, labels=LABELS, label_weight=0.3),
    "mixture of logits": mixture_loss(temperature=2.0, kind=JensenShannon()),
    "mask": with_options(mask=MASK),
    "weight": with_options(weight=WEIGHT, labels=LABELS, kind=ReverseKL()),
    "labels": with_options(labels=LABELS, reduction="batchmean"),
    "nothing counts": with_options(mask=torch.zeros(6, dtype=torch.bool)),
    "normalizer": with_options(mask=MASK, normalizer=17.0),
    "normalizer tensor": with_options(mask=MASK, normalizer=torch.tensor(17.0), reduction="sum"),
    "temperature": with_options(temperature=2.5, temperature_squared=True, kind=JensenShannon()),
    "cold": with_options(temperature=0.3, kind=Renyi(0.7)),
    "excluded rows hold anything": excluded_nan(),
    "padding": padded(),
    "cut in other places": with_options(even, late, kind=ReverseKL()),
    "cut in other places, the other way": with_options(ragged, chunked),
    "truncate": other_vocabulary("truncate", 9, 13),
    "truncate the student": other_vocabulary("truncate", 13, 9),
    "mask vocabulary": other_vocabulary("mask", 9, 13),
    "mask vocabulary of the teacher": other_vocabulary("mask", 13, 9),
    "padding of both": other_vocabulary("error", 9, 13, classes=8),
    "several leading dimensions": Loss(*plain(5, (2, 3)), {"reduction": "none"}, even),
    "no leading dimension": Loss(*plain(5, ()), {}, chunked),
    "no rows": Loss(*plain(5, (0,)), {}, even),
    "fewer classes than ranks": Loss(*plain(5, (4,), 2), {"kind": TotalVariation()}, even),
    **{
        f"top-k {tail} {kind!r}": top_k_loss(tail, kind)
        for tail in ("bucket", "renormalize", "zero")
        for kind in (KL(), JensenShannon())
    },
    "top-k renyi": top_k_loss("bucket", Renyi(2.0), mask=MASK),
    "top-k temperature": top_k_loss("renormalize", KL(), temperature=2.0, reduction="none"),
    "sampled tail": sampled_loss(KL()),
    "sampled tail tv": sampled_loss(TotalVariation()),
    "teacher from outside": loss_of_ensemble(kind=JensenShannon(0.3), temperature=2.0, mask=MASK, **LABELED),
    **{f"labels and {kind!r}": labeled_rows(kind, 0.3) for kind in (KL(), JensenShannon(), Renyi(2.0))},
    "labels alone": labeled_rows(KL(), 1.0),
    "labels at temperature 1": with_options(**LABELED, temperature=2.5, temperature_squared=True),
    "labels and weights": with_options(weight=WEIGHT, **LABELED, kind=ReverseKL(), temperature=0.5),
    "labels and padding": padded(**LABELED),
    "labels and truncate": other_vocabulary("truncate", 9, 13, **LABELED),
    "labels and mask vocabulary": other_vocabulary("mask", 9, 13, **LABELED),
    "labels, fewer classes than ranks": Loss(
        *plain(5, (3,), 2), {"labels": torch.tensor([1, 0, -100]), "label_weight": 0.5}, even
    ),
    "labels and top-k": top_k_loss("bucket", JensenShannon(), **LABELED, mask=MASK),
    "labels and top-k temperature": top_k_loss(
        "renormalize", KL(), **LABELED, temperature=2.0, temperature_squared=True, reduction="none"
    ),
    "labels and top-k zero": top_k_loss("zero", KL(), labels=LABELS, label_weight=1.0),
    "labels and sampled tail": sampled_loss(KL(), **LABELED, reduction="none"),
}
LOW = {
    f"{dtype} {kind!r}": Loss(*rows(dtype), {"kind": kind, "reduction": "none"}, cut)
    for dtype, kinds, cut in (
        (torch.float32, KINDS, ragged),
        (torch.bfloat16, (KL(), JensenShannon(), Renyi(2.0)), late),
        (torch.float16, (KL(), ReverseKL(), Jeffreys()), chunked),
    )
    for kind in kinds
} | {
    "cold float32": Loss(*rows(torch.float32), {"kind": JensenShannon(), "temperature": 0.5}, even),
    "float32 in other places": Loss(
        *(x.float() for x in plain()), {"kind": TotalVariation(), "mask": MASK}, even, late
    ),
    **{
        f"labels {dtype} {kind!r}": labeled_rows(kind, 0.4, dtype, temperature=2.0)
        for dtype in (torch.float32, torch.bfloat16)
        for kind in (KL(), JensenShannon(), Renyi(2.0))
    },
}


def on_grid(of_student: float, of_teacher: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits that stay exact when the offsets are added."""
    student, teacher = (torch.round(x * 2**20) / 2**20 for x in plain())
    student[1, 3] = -math.inf
    return student + of_student, teacher + of_teacher


def far_top_k(offset: float, tail: str, **options: Any) -> Loss:
    """A student far from 0, and a teacher of which the top classes are known; of one row all classes."""
    student, teacher = on_grid(offset, 0.0)
    kept = top_k(tail, teacher.log_softmax(-1), CLASSES)
    kept.log_probs[1:, 4:] = -math.inf
    return Loss(student, kept, {"reduction": "none", **options}, late)


# Of the logits near 2^20 alone: those they are compared with are near 0, in one process.
FAR: dict[str, tuple[Loss, Loss]] = {
    f"far from 0 {kind!r} {temperature:g}": (
        Loss(*on_grid(2.0**20, 2.0**20), options, late),
        Loss(*on_grid(0.0, 0.0), options, late),
    )
    for kind in (KL(), ReverseKL(), JensenShannon(), TotalVariation(), Renyi(2.0))
    for temperature in (3.0, 0.7)
    for options in [{"kind": kind, "temperature": temperature, "reduction": "none"}]
}
# One side far from the other, whose peaks then lie apart.
FAR |= {
    f"far apart {offsets} {kind!r} {temperature:g}": (
        Loss(*on_grid(*offsets), options, late),
        Loss(*on_grid(0.0, 0.0), options, late),
    )
    for offsets in ((2.0**27, 0.0), (0.0, 2.0**27), (-(2.0**27), 2.0**27))
    for kind in (KL(), JensenShannon(), SquaredHellinger(), Renyi(2.0))
    for temperature in (1.0, 3.0)
    for options in [{"kind": kind, "temperature": temperature, "reduction": "none"}]
}
FAR |= {
    f"far top-k {tail} {kind!r} {options}": (
        far_top_k(2.0**27, tail, kind=kind, **options),
        far_top_k(0.0, tail, kind=kind, **options),
    )
    for tail, options in (
        ("bucket", {}),
        ("bucket", LABELED),
        ("zero", {}),
        ("renormalize", {}),
        ("renormalize", {"temperature": 3.0}),
    )
    for kind in (KL(), JensenShannon())
}
FAR["far sampled tail"] = (
    Loss(on_grid(2.0**27, 0.0)[0], sampled_loss(KL()).teacher, {"reduction": "none"}, ragged),
    Loss(on_grid(0.0, 0.0)[0], sampled_loss(KL()).teacher, {"reduction": "none"}, ragged),
)


def tied() -> tuple[torch.Tensor, torch.Tensor]:
    """Rows whose two classes with the most mass, the first and the last, are on different ranks."""
    sides = rows(torch.float32)
    for side in sides:
        side[:, [0, -1]] = 12.0
    return sides


MIXED = {
    name: Loss(*sides, {"kind": JensenShannon(0.3), "reduction": "none"}, even)
    for name, sides in (("mixed", rows(torch.float32)), ("mixed ties", tied()))
}


def some_without_kernels(place: Rank, name: str) -> dict[str, torch.Tensor]:
    """Every second rank has no native kernels."""
    kernels_for = sharded_rows.kernels_for
    with mock.patch.object(
        sharded_rows, "kernels_for", lambda *given: None if place.rank % 2 else kernels_for(*given)
    ):
        return MIXED[name].sharded(place)


CASES: dict[str, Any] = {name: loss.sharded for name, loss in {**LOSSES, **LOW}.items()}
CASES |= {name: far.sharded for name, (far, _) in FAR.items()}
CASES |= {name: partial(some_without_kernels, name=name) for name in MIXED}
EACH_SIZE = pytest.mark.parametrize("size", SIZES)


def joined(found: list[Any], name: str) -> torch.Tensor:
    """The gradient of all ranks; a value, the same on each."""
    assert all(isinstance(x, dict) for x in found), found
    if name == "value":
        assert all(torch.equal(x[name], found[0][name]) or x[name].isnan().any() for x in found)
        return found[0][name]
    return torch.cat([x[name] for x in found], -1)


@pytest.mark.filterwarnings("ignore:.*the mask is False everywhere")
@EACH_SIZE
@pytest.mark.parametrize("name", LOSSES)
def test_value_and_gradients_are_those_of_all_classes_in_one_process(results, name, size):
    expected = LOSSES[name].whole()
    found = results[name, size]
    for what, wanted in expected.items():
        got = joined(found, what)
        # Of the size of the row: gradients of a row cancel.
        scale = wanted.abs().where(wanted.isfinite(), 0).amax() if wanted.numel() else 0
        torch.testing.assert_close(got, wanted, rtol=1e-11, atol=float(1e-14 * scale), equal_nan=True)


@EACH_SIZE
@pytest.mark.parametrize("name", FAR)
def test_logits_far_from_0_keep_their_digits_at_any_temperature(results, name, size):
    for what, wanted in FAR[name][1].whole().items():
        scale = float(wanted.abs().where(wanted.isfinite(), 0).amax())
        torch.testing.assert_close(joined(results[name, size], what), wanted, rtol=1e-13, atol=1e-14 * scale)


@pytest.mark.parametrize("size", SIZES[1:])  # one rank alone takes the kernels of whole rows
@pytest.mark.parametrize("name", [*LOW, *MIXED])
def test_low_precision_is_float64_rounded(results, name, size):
    for what, wanted in {**LOW, **MIXED}[name].whole(torch.float64).items():
        got = joined(results[name, size], what)
        unit = torch.finfo(
            got.dtype
        ).eps  # float32's values, and the factors of its rows, are rounded themselves
        smallest = torch.finfo(got.dtype).smallest_normal * unit  # or float64's rounding where that is more
        rounded = wanted.to(got.dtype).double()  # infinite beyond the range of the dtype
        torch.testing.assert_close(got.double(), rounded, rtol=1.5 * unit, atol=max(smallest, 1e-15))


@EACH_SIZE
def test_kl_is_that_of_fifty_digits(results, size):
    name = f"{KL()!r} late"
    student, teacher = rows()
    values = joined(results[name, size], "value")
    gradient = joined(results[name, size], "student")
    upstream = torch.linspace(0.5, 2.0, len(student), dtype=torch.float64)
    with mpmath.workdps(50):
        for row in (0, 2, 3, 4, 5, 6, 8):
            p, q = ([mpmath.exp(mpmath.mpf(float(x))) for x in side[row]] for side in (teacher, student))
            total_p, total_q = mpmath.fsum(p), mpmath.fsum(q)
            p, q = [x / total_p for x in p], [x / total_q for x in q]
            truth = mpmath.fsum(x * mpmath.log(x / y) for x, y in zip(p, q, strict=True) if x)
            assert abs(values[row].item() / truth - 1) < 1e-9, row
            for i in range(CLASSES):
                wanted = float((q[i] - p[i]) * float(upstream[row]))
                assert abs(gradient[row, i].item() - wanted) <= 1e-9 * abs(wanted) + 1e-30, (row, i)


def test_padding_needs_no_group():
    """`classes` cuts both sides, and the gradient of padding is 0."""
    student, teacher = padded().student, padded().teacher
    found = []
    for options, last in (({"classes": CLASSES - 2}, CLASSES), ({}, CLASSES - 2)):
        leaf = student.clone().requires_grad_()
        loss = DistillationLoss(**options)(student=leaf[:, :last], teacher=teacher[:, :last])
        loss.backward()
        found.append((loss, leaf.grad))
    assert torch.equal(*(loss for loss, _ in found))
    assert torch.equal(*(gradient for _, gradient in found))
    assert (found[0][1][:, -2:] == 0).all()


@pytest.mark.parametrize("classes", [0, CLASSES + 1, 2.0, True])
def test_a_number_of_classes_that_cannot_be_is_refused(classes):
    student, teacher = plain()
    with refused(ArgumentValueError, argument="classes", wanted="^the number of classes without padding"):
        distillation_loss(student=student, teacher=teacher, classes=classes)
    hidden, head = torch.ones(2, 3), torch.ones(CLASSES, 3)
    with refused(ArgumentValueError, wanted="number of classes without padding"):
        linear_distillation_loss(
            student=hidden, student_weight=head, teacher=hidden, teacher_weight=head, classes=classes
        )


@EACH_SIZE
@pytest.mark.parametrize("name", ["labels and top-k zero", "labels alone"])
def test_cross_entropy_is_that_of_torch(results, name, size):
    loss = LOSSES[name]
    labels, student = loss.options["labels"], loss.student.detach().requires_grad_()
    values = torch.nn.functional.cross_entropy(student, labels, reduction="none")
    if name == "labels alone":
        want = values.detach()
        values.backward(torch.linspace(0.5, 2.0, len(values), dtype=torch.float64))
    else:
        want = values.sum() / (labels >= 0).sum()
        (0.5 * want).backward()
    torch.testing.assert_close(joined(results[name, size], "value"), want.detach(), rtol=1e-9, atol=1e-13)
    torch.testing.assert_close(joined(results[name, size], "student"), student.grad, rtol=1e-9, atol=1e-13)
