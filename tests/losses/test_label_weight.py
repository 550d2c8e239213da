"""Hard labels mixed with a divergence: rows, stored teachers and heads; values, gradients, edges, errors."""

from __future__ import annotations

import math
from typing import Any

import mpmath
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from kullback import KL, Divergence, JensenShannon, Renyi, ReverseKL, errors
from kullback.functional import SampledTail, TopK, distillation_loss, linear_distillation_loss
from kullback.kernels.native import library
from kullback.nn import DistillationLoss, LinearDistillationLoss
from tests.oracles import truth
from tests.refusals import refused

INF = math.inf
N, V, SHARE = 9, 23, 0.3
LABELS = torch.tensor([3, 0, 22, -100, 7, 7, 11, -100, 1])
COUNTED = LABELS != -100
BACKENDS = pytest.mark.parametrize("native", [True, False], ids=["native", "reference"])
DTYPES = pytest.mark.parametrize(
    "dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16], ids=str
)


@pytest.fixture(autouse=True)
def _backend(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the native kernels where a test says so."""
    if not getattr(request.node, "callspec", None) or request.node.callspec.params.get("native", True):
        return
    monkeypatch.setattr(library, "is_available", lambda: False)


def pair(dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    student, teacher = torch.randn(2, N, V, dtype=torch.float64)
    return student.to(dtype).requires_grad_(), teacher.to(dtype)


def mixed(soft: Tensor, student: Tensor, share: float = SHARE) -> Tensor:
    """The definition, from the divergence of each position; 0 where there is no label."""
    hard = F.cross_entropy(student.double(), LABELS, reduction="none")
    return torch.where(COUNTED, (1 - share) * soft.double() + share * hard, 0)


def assert_same(
    got: Tensor, want: Tensor, by: list[Tensor], tolerance: float, grad_tolerance: float = 0
) -> None:
    torch.testing.assert_close(got.double(), want.double(), rtol=tolerance, atol=tolerance)
    for ours, theirs in zip(torch.autograd.grad(got, by), torch.autograd.grad(want, by), strict=True):
        size = float(theirs.double().abs().max())
        error = float((ours.double() - theirs.double()).abs().max())
        assert error <= max(tolerance, grad_tolerance) * size


@BACKENDS
@DTYPES
@pytest.mark.parametrize("temperature", [1.0, 2.5])
@pytest.mark.parametrize("kind", truth.KINDS, ids=repr)
def test_every_kind_mixes_with_the_cross_entropy(
    kind: Divergence, temperature: float, dtype: torch.dtype, native: bool
) -> None:
    student, teacher = pair(dtype)
    exact = student.detach().double().requires_grad_()
    how: dict[str, Any] = {"kind": kind, "temperature": temperature, "temperature_squared": True}
    soft = distillation_loss(student=exact, teacher=teacher.double(), **how, reduction="none")
    want = mixed(soft, exact)
    factors = torch.linspace(-1, 2, N, dtype=torch.float64)
    given = {**how, "labels": LABELS, "label_weight": SHARE}
    tolerance, of_gradient = {
        torch.float64: (1e-12, 1e-12),
        torch.float32: (3e-6, 3e-6),
    }.get(dtype, (3e-6, 1.01 * torch.finfo(dtype).eps))
    for reduction, total in (("none", (want * factors).sum()), ("mean", want.sum() / COUNTED.sum())):
        got = distillation_loss(student=student, teacher=teacher, **given, reduction=reduction)
        got = (got * factors).sum() if reduction == "none" else got
        torch.testing.assert_close(got.double(), total, rtol=tolerance, atol=tolerance)
        ours = torch.autograd.grad(got, student)[0]
        theirs = torch.autograd.grad(total, exact, retain_graph=True)[0]
        assert ours.dtype == dtype
        assert float((ours.double() - theirs).abs().max()) <= of_gradient * float(theirs.abs().max())


@BACKENDS
@pytest.mark.parametrize("teacher_learns", [False, True])
@pytest.mark.parametrize("how", ["mask", "weight", "normalizer", "inplace"])
def test_masks_weights_and_reductions(how: str, teacher_learns: bool, native: bool) -> None:
    student, teacher = pair()
    teacher.requires_grad_(teacher_learns)
    by = [student, teacher] if teacher_learns else [student]
    weights, given = COUNTED.double(), {}
    if how == "mask":
        given, weights = {"mask": torch.arange(N) > 1}, weights * (torch.arange(N) > 1)
    elif how == "weight":
        given = {"weight": torch.linspace(0, 2, N, dtype=torch.float64)}
        weights = weights * given["weight"]
    elif how == "normalizer":
        given = {"normalizer": 4.0}
    elif teacher_learns:
        return
    else:
        given = {"inplace_backward": True}
    soft = distillation_loss(student=student, teacher=teacher, reduction="none", temperature=2.0)
    want = (mixed(soft, student) * weights).sum() / (4.0 if how == "normalizer" else weights.sum())
    got = distillation_loss(
        student=student * 1, teacher=teacher, temperature=2.0, labels=LABELS, label_weight=SHARE, **given
    )
    assert_same(got, want, by, 1e-12)


def stored(teacher: Tensor, which: str) -> Any:
    if which == "sampled":
        return SampledTail.draw(teacher, k=4, draws=3, generator=torch.Generator().manual_seed(0))
    log_probs, indices = teacher.log_softmax(-1).topk(5)
    return TopK(indices, log_probs, which)  # type: ignore[arg-type]


@BACKENDS
@DTYPES
@pytest.mark.parametrize("which", ["bucket", "renormalize", "zero", "sampled"])
@pytest.mark.parametrize("kind", [KL(), ReverseKL(), JensenShannon()], ids=repr)
def test_stored_teachers(kind: Divergence, which: str, dtype: torch.dtype, native: bool) -> None:
    if which == "renormalize" and isinstance(kind, ReverseKL):
        return  # infinite
    student, logits = pair(dtype)
    teacher = stored(logits.double(), which)
    exact = student.detach().double().requires_grad_()
    for temperature in (1.0, 2.0) if which == "renormalize" else (1.0,):
        how: dict[str, Any] = {"teacher": teacher, "kind": kind, "temperature": temperature}
        soft = distillation_loss(student=exact, **how, reduction="none")
        want = mixed(soft, exact).sum() / COUNTED.sum()
        got = distillation_loss(student=student, **how, labels=LABELS, label_weight=SHARE)
        tolerance = 1e-12 if dtype == torch.float64 else 2e-6
        torch.testing.assert_close(got.double(), want, rtol=tolerance, atol=tolerance)
        ours, theirs = torch.autograd.grad(got, student)[0], torch.autograd.grad(want, exact)[0]
        limit = tolerance if dtype.itemsize > 2 else 1.01 * torch.finfo(dtype).eps
        assert float((ours.double() - theirs).abs().max()) <= limit * float(theirs.abs().max())


@pytest.mark.parametrize("chunk_bytes", [1, 3000, None])
@pytest.mark.parametrize("reduction", ["none", "mean"])
@pytest.mark.parametrize("which", ["head", "bucket", "renormalize", "zero", "sampled"])
def test_heads(which: str, reduction: Any, chunk_bytes: int | None) -> None:
    h, weight = torch.randn(N, 4, dtype=torch.float64), torch.randn(V, 4, dtype=torch.float64)
    bias = torch.randn(V, dtype=torch.float64)
    by = [x.requires_grad_() for x in (h, weight, bias)]
    _, logits = pair()
    temperature = 2.0 if which in ("head", "renormalize") else 1.0
    how: dict[str, Any] = {
        "temperature": temperature, "temperature_squared": True, "labels": LABELS, "label_weight": SHARE,
        "weight": torch.linspace(0, 2, N, dtype=torch.float64), "reduction": reduction,
    }  # fmt: skip
    student = 3 * torch.tanh((h @ weight.mT + bias) / 3)
    if which == "head":
        other, other_weight = torch.randn(N, 2, dtype=torch.float64), torch.randn(V, 2, dtype=torch.float64)
        teacher: Any = other @ other_weight.mT
        sides = {"teacher": other, "teacher_weight": other_weight, "softcap": (3.0, None)}
    else:
        teacher = stored(logits, which)
        sides = {"teacher": teacher, "softcap": 3.0}
    want = distillation_loss(student=student, teacher=teacher, **how)
    got = linear_distillation_loss(
        student=h, student_weight=weight, student_bias=bias, **sides, **how, chunk_bytes=chunk_bytes
    )
    factors = torch.linspace(-1, 2, N, dtype=torch.float64) if reduction == "none" else torch.ones(())
    assert_same((got * factors).sum(), (want * factors).sum(), by, 1e-11)


def test_a_head_in_low_precision() -> None:
    h, weight = torch.randn(N, 4).bfloat16().requires_grad_(), torch.randn(V, 4).bfloat16().requires_grad_()
    exact = [x.detach().double().requires_grad_() for x in (h, weight)]
    _, teacher = pair()
    teacher = stored(teacher, "bucket")
    how: dict[str, Any] = {"teacher": teacher, "labels": LABELS, "label_weight": SHARE}
    got = linear_distillation_loss(student=h, student_weight=weight, **how, float32_logits=True)
    want = linear_distillation_loss(student=exact[0], student_weight=exact[1], **how)
    torch.testing.assert_close(got.double(), want, rtol=1e-5, atol=0)
    pairs = zip(torch.autograd.grad(got, [h, weight]), torch.autograd.grad(want, exact), strict=True)
    assert all((a.double() - b).norm() <= 0.02 * b.norm() for a, b in pairs)


@BACKENDS
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("which", ["rows", "bucket", "sampled"])
@pytest.mark.parametrize("temperature", [1.0, 2.0])
def test_a_sure_student_keeps_its_digits(
    which: str, temperature: float, dtype: torch.dtype, native: bool
) -> None:
    """Where nearly all mass is on the label, cross-entropy and gradient are those of the other classes."""
    if which != "rows" and temperature != 1:
        return
    student = torch.tensor([[40.0, 4.0, 3.0, -1.0, 2.0, 0.5], [9.0, 4.0, 3.0, 9.5, 2.0, 0.5]], dtype=dtype)
    student.requires_grad_()
    labels = torch.tensor([0, 3])
    teacher = torch.zeros(2, 6, dtype=dtype)
    given: Any = teacher if which == "rows" else stored(teacher, which)
    values = distillation_loss(
        student=student,
        teacher=given,
        labels=labels,
        label_weight=1.0,
        reduction="none",
        temperature=temperature,
    )
    grads, values = torch.autograd.grad(values.sum(), student)[0], values.detach()
    unit = 1e-13 if dtype == torch.float64 else 1e-6
    with mpmath.workdps(50):
        for row, label in enumerate(labels.tolist()):
            q = truth.softmax(student[row].tolist())
            others = mpmath.fsum(x for i, x in enumerate(q) if i != label)
            assert float(values[row]) == pytest.approx(float(-mpmath.log1p(-others)), rel=unit)
            assert float(grads[row, label]) == pytest.approx(-float(others), rel=unit)
            for i, x in enumerate(q):
                if i != label:
                    assert float(grads[row, i]) == pytest.approx(float(x), rel=unit)


@BACKENDS
@pytest.mark.parametrize("which", ["rows", "bucket", "sampled"])
@pytest.mark.parametrize("temperature", [1.0, 2.0])
def test_edges(which: str, temperature: float, native: bool) -> None:
    if which != "rows" and temperature != 1:
        return
    logits = torch.tensor([[0.0, 1.0, 2.0, 0.5], [1.0, -INF, 0.5, 0.0], [0.0, -INF, -INF, 1.0]])
    student = logits.clone().requires_grad_()
    base = torch.tensor([[0.0, 1.0, 2.0, 0.5]] * 3)
    teacher: Any = base if which == "rows" else stored_of_four(base, which)
    how: dict[str, Any] = {"teacher": teacher, "temperature": temperature, "reduction": "none"}
    # The label's logit is -inf in the second row: +inf, with the gradient softmax less 1 at the label.
    values = distillation_loss(student=student, **how, labels=torch.tensor([1, 1, 3]), label_weight=1.0)
    assert values.isinf().tolist() == [False, True, False]
    got = torch.autograd.grad(values.sum(), student)[0]
    want = logits.softmax(-1) - torch.eye(4)[[1, 1, 3]]
    torch.testing.assert_close(got, want, rtol=1e-6, atol=1e-7)
    # A divergence that is +inf counts nothing at weight 1, and everything below.
    assert float(values[2].detach()) == pytest.approx(math.log1p(math.exp(-1)), rel=1e-6)
    assert distillation_loss(student=student, **how, labels=torch.tensor([1, 0, 3]), label_weight=0.5)[
        1
    ].isinf()
    # Weight 0 is the divergence alone, of the positions with a label.
    labels = torch.tensor([1, -100, 3])
    plain = distillation_loss(student=student, **how, labels=labels)
    assert torch.equal(distillation_loss(student=student, **how, labels=labels, label_weight=0.0), plain)
    # A position that does not count may hold anything.
    spoilt = logits.clone()
    spoilt[1] = math.nan
    spoilt.requires_grad_()
    given = {
        **how,
        "reduction": "sum",
        "labels": torch.tensor([1, -100, 3]),
        "label_weight": 0.5,
        "kind": JensenShannon(),
    }
    loss = distillation_loss(student=spoilt, **given)
    gradient = torch.autograd.grad(loss, spoilt)[0]
    assert bool(loss.isfinite())
    assert gradient[1].tolist() == [0.0] * 4
    assert bool(gradient.isfinite().all())
    nothing = distillation_loss(
        student=student[:0], **{**how, "teacher": base[:0]}, labels=labels[:0], label_weight=0.5
    )
    assert nothing.shape == (0,)


def stored_of_four(base: Tensor, which: str) -> Any:
    if which == "sampled":
        return SampledTail.draw(base, k=2, draws=3, generator=torch.Generator().manual_seed(0))
    log_probs, indices = base.log_softmax(-1).topk(2)
    return TopK(indices, log_probs)


@pytest.mark.sweep
def test_further_derivatives_and_transforms() -> None:
    student, teacher = (2 * torch.randn(2, 3, 5, dtype=torch.float64)).unbind()
    labels = torch.tensor([1, 4, 0])
    student.requires_grad_()
    for given in (teacher, stored(teacher.repeat(1, 2), "bucket")):
        wide = student.repeat(1, 2).detach().requires_grad_() if isinstance(given, TopK) else student
        for reduction in ("none", "mean"):

            def loss(s: Tensor, y: Tensor = labels, given: Any = given, reduction: Any = reduction) -> Tensor:
                return distillation_loss(
                    student=s, teacher=given, labels=y, label_weight=SHARE, reduction=reduction,
                    temperature=1.0 if isinstance(given, TopK) else 2.0,
                )  # fmt: skip

            assert torch.autograd.gradcheck(loss, wide)
            assert torch.autograd.gradgradcheck(loss, wide, check_batched_grad=False)
        whole = torch.autograd.grad(loss(wide), wide)[0]
        torch.testing.assert_close(torch.func.grad(loss)(wide.detach()), whole)
        stack, others = torch.stack([wide.detach(), wide.detach() + 1]), torch.stack([labels, labels.flip(0)])
        want = torch.stack([loss(s, y) for s, y in zip(stack, others, strict=True)])
        torch.testing.assert_close(torch.vmap(loss)(stack, others), want)
    _, change = torch.func.jvp(lambda s: distillation_loss(
        student=s, teacher=teacher, labels=labels, label_weight=SHARE), (student.detach(),), (torch.ones_like(student),)
    )  # fmt: skip
    assert float(change.abs()) < 1e-14  # a shift of all logits changes nothing
    tangent = torch.randn(3, 5, dtype=torch.float64)

    def of_rows(s: Tensor) -> Tensor:
        return distillation_loss(student=s, teacher=teacher, labels=labels, label_weight=SHARE)

    _, change = torch.func.jvp(of_rows, (student.detach(),), (tangent,))
    by_student = torch.autograd.grad(of_rows(student), student)[0]
    torch.testing.assert_close(change, (by_student * tangent).sum())


@pytest.mark.heavy
@pytest.mark.parametrize("which", ["rows", "bucket"])
@pytest.mark.parametrize("reduction", ["none", "mean"])
def test_compiles_in_one_graph(which: str, reduction: Any) -> None:
    student, logits = pair(torch.float32)
    log_probs, indices = logits.log_softmax(-1).topk(5)

    def loss(s: Tensor, t: Tensor, y: Tensor) -> Tensor:
        teacher: Any = t if which == "rows" else TopK(indices, log_probs)
        return distillation_loss(
            student=s, teacher=teacher, labels=y, label_weight=SHARE, reduction=reduction
        ).sum()

    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")
    assert_same(compiled(student, logits, LABELS), loss(student, logits, LABELS), [student], 1e-6)


def test_the_modules_take_it() -> None:
    student, teacher = pair()
    want = distillation_loss(student=student, teacher=teacher, labels=LABELS, label_weight=SHARE)
    got = DistillationLoss(label_weight=SHARE)(student=student, teacher=teacher, labels=LABELS)
    torch.testing.assert_close(got, want, rtol=0, atol=0)
    eye = torch.eye(V, dtype=torch.float64)
    module = LinearDistillationLoss(label_weight=SHARE)
    got = module(student=student, student_weight=eye, teacher=teacher, teacher_weight=eye, labels=LABELS)
    torch.testing.assert_close(got, want, rtol=1e-12, atol=0)


def test_vocabularies_of_different_size() -> None:
    student, teacher = pair()
    labels = LABELS.clamp(max=19)
    how: dict[str, Any] = {"labels": labels, "label_weight": SHARE, "kind": Renyi(0.5)}
    cut = distillation_loss(student=student[:, :20], teacher=teacher[:, :20], **how)
    got = distillation_loss(student=student, teacher=teacher[:, :20], **how, vocabulary="truncate")
    torch.testing.assert_close(got, cut)
    wider = distillation_loss(student=student[:, :20], teacher=teacher, **how, vocabulary="mask")
    assert bool(wider.isfinite())
    for more, known in (("truncate", 20), ("mask", 23)):
        with pytest.raises(errors.ArgumentValueError, match=f"labels=.*from 0 to {known - 1} .*got {known}"):
            distillation_loss(
                student=student,
                teacher=teacher[:, :20],
                labels=torch.full((N,), known),
                label_weight=0.5,
                vocabulary=more,
            )  # type: ignore[call-overload]


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"label_weight": 1.5}, errors.ArgumentValueError, r"label_weight=.*from 0 to 1.*got 1\.5"),
        ({"label_weight": math.nan}, errors.ArgumentValueError, "label_weight=.*got nan"),
        ({"label_weight": "all"}, errors.ArgumentValueError, "label_weight=.*got 'all'"),
        ({"labels": None}, errors.ArgumentValueError, "labels=.*label_weight is not 0; got None"),
        (
            {"labels": LABELS.double()},
            errors.ArgumentTypeError,
            r"labels=.*integers.*got dtype torch.float64",
        ),
        (
            {"labels": LABELS + 1},
            errors.ArgumentValueError,
            r"labels=.*from 0 to 22 .*got 23 \(3 of 9, .*\(2,\)\)",
        ),
        (
            {"ignore_index": -1},
            errors.ArgumentValueError,
            r"labels=.*from 0 to 22 .*got -100 \(2 of 9, .*\(3,\)\)",
        ),
    ],
)
def test_errors_name_the_argument_and_the_remedy(
    change: dict[str, Any], error: type[Exception], message: str
) -> None:
    student, teacher = pair(torch.float32)
    eye = torch.eye(V)
    rows: dict[str, Any] = {"student": student, "teacher": teacher}
    sampled = {"student": student, "teacher": stored(teacher, "sampled")}
    heads = {**rows, "student_weight": eye, "teacher_weight": eye}
    given: dict[str, Any] = {"labels": LABELS, "label_weight": 0.5, **change}
    for call, sides in (
        (distillation_loss, rows),
        (distillation_loss, sampled),
        (linear_distillation_loss, heads),
    ):
        with pytest.raises(error, match=message) as caught:
            call(**sides, **given)
        assert str(caught.value).startswith(f"{call.__name__}(")
    # What the errors say to write.
    for remedy in ({"label_weight": 0.0}, {"labels": LABELS.long()}, {"mask": COUNTED, "ignore_index": -1}):
        assert bool(distillation_loss(**rows, **{"labels": LABELS, "label_weight": 0.5, **remedy}).isfinite())
    with refused(errors.ArgumentValueError, call="DistillationLoss", argument="label_weight"):
        DistillationLoss(label_weight=-0.1)
    with refused(errors.ArgumentValueError, call="LinearDistillationLoss", argument="label_weight"):
        LinearDistillationLoss(label_weight=2)
