"""What the losses do with weights, normalizers, settings and tensors of all sorts: exact, refused, or taken."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch
from torch import Tensor

from kullback import KL, Divergence, JensenShannon, Logits, Renyi, SkewKL, divergence
from kullback.errors import KullbackError
from kullback.functional import TopK, distillation_loss, kl_div, linear_distillation_loss
from kullback.nn import DistillationLoss, KLDivLoss, LinearDistillationLoss
from tests.refusals import refused


def exact_mean(kind: Divergence, student: Tensor, teacher: Tensor, weights: Tensor) -> Tensor:
    rows = divergence(Logits(teacher), Logits(student), kind)
    return (rows * weights).sum() / weights.sum()


@pytest.mark.parametrize(
    "counted",
    [
        {"mask": torch.arange(7) < 6},
        {"weight": torch.arange(1.0, 8.0)},
        {"labels": torch.tensor([1, 2, -100, 4, 5, 6, 7])},
        {"mask": torch.arange(7) != 2, "weight": torch.arange(1.0, 8.0) / 8},
    ],
    ids="+".join,
)
def test_losses_of_float64_logits_keep_float64_whatever_weighs_them(counted: dict[str, Tensor]) -> None:
    generator = torch.Generator().manual_seed(1)
    student, teacher = torch.randn(2, 7, 5, dtype=torch.float64, generator=generator)
    weights = torch.ones(7, dtype=torch.float64)
    if "weight" in counted:
        weights = counted["weight"].double()
    if "mask" in counted:
        weights = weights * counted["mask"]
    if "labels" in counted:
        weights = weights * (counted["labels"] != -100)
    truth = exact_mean(KL(), student, teacher, weights)
    head = torch.eye(5, dtype=torch.float64)
    for found in (
        distillation_loss(student=student, teacher=teacher, **counted),
        distillation_loss(student=student, teacher=teacher, normalizer=weights.sum().float(), **counted),
        distillation_loss(student=student, teacher=teacher, reduction="none", **counted).sum()
        / weights.sum(),
        linear_distillation_loss(
            student=student, student_weight=head, teacher=teacher, teacher_weight=head, **counted
        ),
    ):
        torch.testing.assert_close(found, truth, rtol=1e-13, atol=0)


def test_a_float32_normalizer_of_float64_logits_divides_in_float64() -> None:
    student, teacher = torch.randn(2, 3, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    total = distillation_loss(student=student, teacher=teacher, reduction="sum")
    found = distillation_loss(student=student, teacher=teacher, normalizer=torch.tensor(3.0))
    torch.testing.assert_close(found, total / 3, rtol=1e-14, atol=0)


@pytest.mark.parametrize(
    ("change", "argument", "remedy"),
    [
        (
            {"weight": torch.tensor([1.0, -1.0])},
            "weight",
            "weight=weight.nan_to_num(0.0, 0.0, 0.0).clamp(min=0)",
        ),
        ({"weight": torch.tensor([1.0, math.nan])}, "weight", "mask="),
        (
            {"weight": torch.tensor([1.0, math.inf])},
            "weight",
            "weight=weight.nan_to_num(0.0, 0.0, 0.0).clamp(min=0)",
        ),
        ({"normalizer": 0}, "normalizer", "clamp"),
        ({"normalizer": -3.0}, "normalizer", "clamp"),
        ({"normalizer": math.nan}, "normalizer", "clamp"),
        ({"normalizer": torch.tensor(0)}, "normalizer", "clamp"),
        ({"normalizer": torch.tensor(-1.0)}, "normalizer", "clamp"),
        ({"normalizer": torch.ones(2)}, "normalizer", "clamp"),
        ({"normalizer": "2"}, "normalizer", "clamp"),
        ({"kind": JensenShannon(beta=0)}, "kind", "JensenShannon(beta=0, scaled=True)"),
        ({"kind": JensenShannon(beta=1)}, "kind", "JensenShannon(beta=1, scaled=True)"),
        ({"kind": SkewKL(alpha=1)}, "kind", "SkewKL(alpha=0.9)"),
        ({"temperature": "2"}, "temperature", "temperature=2.0"),
        ({"labels": torch.zeros(3, dtype=torch.int64)}, "labels", "labels=labels[..., 1:]"),
        ({"mask": [True, False]}, "mask", "mask=torch.tensor(mask)"),
        ({"mask": torch.tensor([1, 0])}, "mask", "mask=mask != 0"),
        ({"normalizer": torch.tensor(1j)}, "normalizer", "clamp"),
        ({"normalizer": True}, "normalizer", "clamp"),
        ({"temperature": True}, "temperature", "temperature=2.0"),
        ({"label_weight": True, "labels": torch.zeros(2, dtype=torch.int64)}, "label_weight", "0.5"),
        ({"student": [[0.0, 1.0, 2.0]] * 2}, "student", "student=torch.tensor(student)"),
        ({"student": torch.zeros(2, 3).numpy()}, "student", "student=torch.tensor(student)"),
        ({"teacher": SimpleNamespace(logits=torch.zeros(2, 3))}, "teacher", "teacher=teacher.logits"),
        ({"student": torch.zeros(2, 0), "teacher": torch.zeros(2, 0)}, "student", "last dimension"),
        ({"teacher": torch.zeros(2, 0), "vocabulary": "mask"}, "teacher", "last dimension"),
    ],
    ids=str,
)
def test_what_would_be_a_wrong_loss_is_refused_with_its_remedy(
    change: dict[str, Any], argument: str, remedy: str
) -> None:
    student, teacher = torch.randn(2, 2, 3, generator=torch.Generator().manual_seed(1))
    with refused(KullbackError, argument=argument) as caught:
        distillation_loss(**{"student": student, "teacher": teacher, **change})
    assert remedy in str(caught.value)


@pytest.mark.filterwarnings("ignore:.*the mask is False everywhere")
def test_the_remedies_work() -> None:
    student, teacher = torch.randn(2, 2, 3, generator=torch.Generator().manual_seed(1))
    loss = partial(distillation_loss, student=student, teacher=teacher)
    # Two kernels, which sum in another order.
    torch.testing.assert_close(
        loss(kind=JensenShannon(beta=0, scaled=True)), loss(kind=KL()), rtol=3e-7, atol=0
    )
    assert loss(kind=SkewKL(alpha=0.9)) > 0
    labels = torch.tensor([5, 1, -100])
    assert loss(labels=labels[..., 1:]) == loss(mask=torch.tensor([True, False]))
    weight = torch.tensor([1.0, math.nan])
    assert loss(weight=weight, mask=torch.tensor([True, False])) == loss(mask=torch.tensor([True, False]))
    for wrong in (-2.0, math.nan, math.inf, -math.inf):
        weight = torch.tensor([1.0, wrong]).nan_to_num(0.0, 0.0, 0.0).clamp(min=0)
        assert loss(weight=weight) == loss(mask=torch.tensor([True, False]))
    mask = torch.tensor([1, 0])
    assert loss(mask=mask != 0) == loss(weight=mask)
    lists = {"student": torch.tensor(student.tolist()), "teacher": torch.tensor(teacher.numpy())}
    torch.testing.assert_close(distillation_loss(**lists), loss())
    assert loss(normalizer=(mask * 0).sum().clamp(min=1), mask=mask == 2) == 0


def tensors_of(x: Tensor) -> list[Tensor]:
    return list(x)


@pytest.mark.parametrize(
    "make",
    [
        tensors_of,
        lambda x: tuple(tensors_of(x.int())),
        lambda x: x.tolist(),
        lambda x: x.int().tolist(),
        lambda x: x.numpy(),
        lambda x: x.int().numpy(),
        lambda x: [row.numpy() for row in x],
    ],
    ids=["tensors", "integer tensors", "numbers", "integers", "array", "integer array", "arrays"],
)
@pytest.mark.parametrize("argument", ["student", "teacher", "input", "target"])
@pytest.mark.filterwarnings("ignore:Creating a tensor from a list")
def test_the_remedy_for_data_that_is_no_tensor_works_as_written(
    argument: str, make: Callable[[Tensor], Any]
) -> None:
    x = torch.tensor([[1.0, 0.0, 2.0], [0.0, 3.0, 1.0]])
    is_loss = argument in ("student", "teacher")
    call = distillation_loss if is_loss else partial(kl_div, reduction="sum")
    of: dict[str, Any] = dict.fromkeys(("student", "teacher") if is_loss else ("input", "target"), x)
    given = {**of, argument: make(x)}
    with refused(KullbackError, argument=argument) as caught:
        call(**given)
    remedy = str(caught.value).partition("Write: ")[2]
    names = {"torch": torch, "kl_div": call, **given}
    if is_loss:
        made = eval(remedy.removeprefix(f"{argument}="), names)  # noqa: S307
        found = call(**{**of, argument: made})
    else:
        found = eval(remedy, names)  # noqa: S307
    assert found == call(**of)


@pytest.mark.parametrize("argument", ["student", "teacher"])
@pytest.mark.parametrize("integer", [False, True])
@pytest.mark.parametrize("shape", [(3,), (2, 3), (4, 2, 3)], ids=str)
def test_the_remedy_for_several_tensors_fits_the_other_side(
    shape: tuple[int, ...], integer: bool, argument: str
) -> None:
    """Tensors of some positions each are joined; of all positions, as of two teachers, each has a loss."""
    generator = torch.Generator().manual_seed(0)
    x, *given = (torch.randint(9, shape, generator=generator).float() for _ in range(4))
    whole = {"student": x, "teacher": x} | {argument: given[0]}
    cases = [(given, sum(distillation_loss(**{**whole, argument: each}) for each in given) / 3)]
    if len(shape) > 1:
        cases.append((list(given[0]), distillation_loss(**whole)))
        cases.append((list(given[0].split(1)), distillation_loss(**whole)))
    for parts, want in cases:
        names: dict[str, Any] = {**whole, argument: tuple(each.int() for each in parts) if integer else parts}
        with refused(KullbackError, argument=argument) as caught:
            distillation_loss(**names)
        remedy = str(caught.value).partition("Write: ")[2]
        names = {"torch": torch, "distillation_loss": distillation_loss, **names}
        if remedy.startswith(f"{argument}="):
            made = eval(remedy.removeprefix(f"{argument}="), names)  # noqa: S307
            found = distillation_loss(**{**whole, argument: made})
        else:
            found = eval(remedy, names)  # noqa: S307
        torch.testing.assert_close(found, want)


@pytest.mark.parametrize(
    "given",
    [[torch.zeros(2, 3), torch.zeros(1, 3)], [[torch.zeros(3)]], [[0.0, 1.0], [0.0]], [1j]],
    ids=["ragged tensors", "nested", "ragged", "complex"],
)
def test_no_remedy_is_named_that_would_fail(given: Any) -> None:
    x = torch.zeros(2, 3)
    with refused(KullbackError, instead=r"^student=model\(inputs\)\.logits"):
        distillation_loss(student=given, teacher=x)
    with refused(KullbackError, instead=r"^kl_div\(logits\.log_softmax\(dim=-1\), target\)"):
        kl_div(given, x)


def test_the_remedy_for_a_list_of_weights_works_as_written() -> None:
    student, teacher = torch.randn(2, 2, 3, 5, generator=torch.Generator().manual_seed(1))
    right = torch.tensor([[True, False, True], [False, False, True]])
    for mask in (right.tolist(), list(right), right.numpy()):
        with refused(KullbackError, argument="mask") as caught:
            distillation_loss(student=student, teacher=teacher, mask=cast("Any", mask))
        remedy = str(caught.value).partition("Write: mask=")[2]
        assert torch.equal(eval(remedy, {"torch": torch, "mask": mask}), right)  # noqa: S307
    with refused(KullbackError, instead=r"^mask of shape \(2, 3\)$"):
        distillation_loss(student=student, teacher=teacher, mask=cast("Any", "all"))


def test_labels_in_reverse_order_of_three_dimensions_are_not_told_to_be_transposed() -> None:
    student, teacher = torch.zeros(2, 2, 4, 3, 5)
    labels = torch.zeros(3, 4, 2, dtype=torch.int64)
    with refused(KullbackError, instead=r"^labels of shape \(2, 4, 3\)$"):
        distillation_loss(student=student, teacher=teacher, labels=labels)


@pytest.mark.parametrize(
    "whole", [np.int64, np.int8, np.array, torch.tensor], ids=["int64", "int8", "0-d array", "tensor"]
)
def test_whole_numbers_of_every_type_are_taken(whole: Callable[[int], Any]) -> None:
    student, teacher = torch.randn(2, 4, 6, generator=torch.Generator().manual_seed(1))
    labels = torch.tensor([1, 2, 3, 5])
    head = torch.eye(6)
    of: dict[str, Any] = {"student": student, "teacher": teacher, "labels": labels}
    for arguments in ({"classes": 5}, {"ignore_index": 3}):
        given = {name: whole(value) for name, value in arguments.items()}
        want = distillation_loss(**of, **arguments)
        assert distillation_loss(**of, **given) == want
        assert DistillationLoss(**given)(**of) == want
    heads = {"student_weight": head, "teacher_weight": head}
    for size in (100, 1):
        found = linear_distillation_loss(**of, **heads, classes=whole(5), chunk_bytes=whole(size))
        assert found == linear_distillation_loss(**of, **heads, classes=5, chunk_bytes=size)


@pytest.mark.parametrize("given", [True, np.True_, torch.tensor(True), 5.0, "5", torch.tensor(5.0)], ids=repr)
def test_what_is_no_whole_number_is_refused_and_the_remedy_works(given: Any) -> None:
    x = torch.zeros(2, 6)
    of: dict[str, Any] = {"student": x, "teacher": x, "labels": torch.tensor([1, -100])}
    for argument, remedy in (
        ("classes", "classes=len(tokenizer), or None"),
        ("ignore_index", "ignore_index=-100"),
    ):
        with refused(KullbackError, argument=argument) as caught:
            distillation_loss(**of, **{argument: given})
        assert f"Write: {remedy}" in str(caught.value)
    with refused(
        KullbackError, argument="chunk_bytes", wanted="whole number", instead="^chunk_bytes=64 << 20$"
    ):
        LinearDistillationLoss(chunk_bytes=given)
    assert distillation_loss(**of, classes=len(range(6)), ignore_index=-100) == 0
    assert LinearDistillationLoss(chunk_bytes=64 << 20).chunk_bytes == 1 << 26


@pytest.mark.parametrize("shape", [(3, 2), (6,), (2, 3, 1), (3,), (1, 3), (3, 2, 1)], ids=str)
def test_the_remedy_for_a_mask_of_another_shape_keeps_each_value_at_its_position(
    shape: tuple[int, ...],
) -> None:
    student, teacher = torch.randn(2, 2, 3, 5, generator=torch.Generator().manual_seed(1))
    right = torch.tensor([[True, False, True], [True, False, True]])
    if shape in ((6,), (2, 3, 1), (3, 2)):
        right = torch.tensor([[True, False, True], [False, False, True]])
    mask = (
        right.T if shape[:2] == (3, 2) else right[:1] if right.numel() > math.prod(shape) else right
    ).reshape(shape)
    with refused(KullbackError, argument="mask") as caught:
        distillation_loss(student=student, teacher=teacher, mask=mask)
    remedy = str(caught.value).partition("Write: mask")[2]
    if shape == (3, 2, 1):  # what was meant cannot be told
        assert remedy == " of shape (2, 3)"
        return
    assert torch.equal(eval(remedy.removeprefix("="), {"mask": mask}), right)  # noqa: S307


@pytest.mark.parametrize(
    ("change", "argument"),
    [
        ({"student_weight": torch.zeros(0, 3)}, "student_weight"),
        ({"teacher_weight": torch.zeros(0, 3), "vocabulary": "mask"}, "teacher_weight"),
        ({"softcap": True}, "softcap"),
        ({"logit_scale": (True, 1.0)}, "logit_scale"),
        ({"chunk_bytes": True}, "chunk_bytes"),
    ],
    ids=str,
)
def test_heads_without_classes_and_flags_for_numbers_are_refused(
    change: dict[str, Any], argument: str
) -> None:
    hidden, weight = torch.zeros(2, 3), torch.eye(3)
    arguments = {"student": hidden, "student_weight": weight, "teacher": hidden, "teacher_weight": weight}
    with refused(KullbackError, call="linear_distillation_loss", argument=argument):
        linear_distillation_loss(**{**arguments, **change})


def test_a_teacher_made_in_inference_mode_teaches() -> None:
    generator = torch.Generator().manual_seed(1)
    student = torch.randn(2, 3, generator=generator, requires_grad=True)
    values = torch.randn(2, 3, generator=generator)
    with torch.inference_mode():
        teacher = values * 1.0
        top = TopK(*reversed(values.log_softmax(-1).topk(2)))
        probabilities = values.softmax(-1)
    head = torch.eye(3)

    def losses(x: Tensor, y: TopK, target: Tensor) -> list[Tensor]:
        return [
            distillation_loss(student=student, teacher=x),
            distillation_loss(student=student, teacher=x, reduction="none").sum(),
            distillation_loss(student=student, teacher=x, kind=Renyi(2.0)),
            linear_distillation_loss(student=student, student_weight=head, teacher=x, teacher_weight=head),
            divergence(Logits(x), Logits(student), JensenShannon()).sum(),
            kl_div(student.log_softmax(-1), target, reduction="sum"),
            distillation_loss(student=student, teacher=y),
        ]

    ordinary = TopK(top.indices.clone(), top.log_probs.clone())
    wanted = losses(values, ordinary, values.softmax(-1))
    for found, want in zip(losses(teacher, top, probabilities), wanted, strict=True):
        gradients = [torch.autograd.grad(loss, student)[0] for loss in (found, want)]
        torch.testing.assert_close(*gradients)


@pytest.mark.parametrize(
    ("make", "remedy"),
    [
        (lambda x: x.to_sparse(), "to_dense()"),
        (lambda x: x.to(torch.float8_e4m3fn), "float()"),
        (lambda x: torch.nested.nested_tensor([x[0], x[1]]), "to_padded_tensor"),
        (lambda x: torch.nested.nested_tensor([x[0], x[1]], layout=torch.jagged), "to_padded_tensor"),
        (lambda x: torch.masked.masked_tensor(x, x > 0), "get_data()"),
        (lambda x: torch.quantize_per_tensor(x, 0.1, 0, torch.qint8), "dequantize()"),
    ],
    ids=["sparse", "float8", "nested", "jagged", "masked", "quantized"],
)
@pytest.mark.filterwarnings("ignore")
def test_tensors_that_are_not_dense_are_refused_in_one_line(
    make: Callable[[Tensor], Tensor], remedy: str
) -> None:
    x = torch.randn(2, 3, generator=torch.Generator().manual_seed(1))
    other = make(x)
    for call in (
        lambda: Logits(other),
        lambda: distillation_loss(student=x, teacher=other),
        lambda: distillation_loss(student=other, teacher=x),
    ):
        with pytest.raises(KullbackError) as caught:
            call()
        assert remedy in str(caught.value) or "floating-point" in str(caught.value)


@pytest.mark.parametrize("module", [DistillationLoss, LinearDistillationLoss])
@pytest.mark.parametrize(
    "change",
    [
        {"kind": 0.5},
        {"kind": "kld"},
        {"reduction": "avg"},
        {"temperature": 0},
        {"temperature": "1"},
        {"vocabulary": "cut"},
        {"ignore_index": "x"},
        {"classes": 0},
        {"label_weight": 2},
        {"temperature_squared": 1},
    ],
    ids=str,
)
def test_wrong_settings_fail_where_the_module_is_made(module: type, change: dict[str, Any]) -> None:
    with refused(KullbackError, call=module.__name__, argument=next(iter(change))):
        module(**change)


@pytest.mark.parametrize(
    "change", [{"softcap": -1}, {"logit_scale": 0}, {"chunk_bytes": -1}, {"float32_logits": "no"}], ids=str
)
def test_wrong_settings_of_heads_fail_where_the_module_is_made(change: dict[str, Any]) -> None:
    with refused(KullbackError, call="LinearDistillationLoss", argument=next(iter(change))):
        LinearDistillationLoss(**change)


def test_a_wrong_reduction_fails_where_the_drop_in_is_made() -> None:
    with refused(KullbackError, call="KLDivLoss", argument="reduction"):
        KLDivLoss(reduction="avg")
    assert KLDivLoss(reduction="batchmean").reduction == "batchmean"


def test_words_that_are_arrays_are_refused_in_one_line() -> None:
    x = torch.randn(2, 3, generator=torch.Generator().manual_seed(1))
    for call in (
        lambda: divergence(Logits(x), Logits(x), KL(), method=x.numpy()),
        lambda: distillation_loss(student=x, teacher=x, vocabulary=x.numpy()),
    ):
        with refused(KullbackError, wanted="^(one of|'error')"):
            call()
