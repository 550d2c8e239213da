"""Positions of which none counts: one warning for mask, labels and weight. Labels that were passed as a mask."""

from __future__ import annotations

import math
import re
import warnings
from collections.abc import Callable
from typing import Any, Self

import pytest
import torch
from torch import Tensor
from torch.distributions import Normal

from kullback import metrics
from kullback.errors import ArgumentTypeError, ArgumentValueError, KullbackError
from kullback.functional import (
    SampledTail,
    TopK,
    distillation_loss,
    kl_from_log_probs,
    kl_surrogate,
    linear_distillation_loss,
)
from kullback.integrations.modelopt import LogitsDistillationLoss
from kullback.integrations.nemo import KDLoss
from kullback.nn import DistillationLoss, KLRegularizer, LinearDistillationLoss
from tests.refusals import refused

STUDENT, TEACHER = torch.randn(2, 2, 3, 5, generator=torch.Generator().manual_seed(0))
HEAD = torch.eye(5)
LABELS = torch.tensor([[4, -100, 3], [1, 2, -100]])
NONE = torch.full_like(LABELS, -100)


def divergences() -> Tensor:
    """KL(teacher || student) of each position, by loops."""
    rows = []
    for s, t in zip(STUDENT.flatten(0, 1).tolist(), TEACHER.flatten(0, 1).tolist(), strict=True):
        log_sums = [math.log(math.fsum(map(math.exp, x))) for x in (s, t)]
        rows.append(
            math.fsum(
                math.exp(b - log_sums[1]) * ((b - log_sums[1]) - (a - log_sums[0]))
                for a, b in zip(s, t, strict=True)
            )
        )
    return torch.tensor(rows, dtype=torch.float64).reshape(2, 3)


def of_heads(**positions: Any) -> Tensor:
    sides = {"student": STUDENT, "student_weight": HEAD, "teacher": TEACHER, "teacher_weight": HEAD}
    return linear_distillation_loss(**sides, **positions)  # type: ignore[arg-type]


def stored(**positions: Any) -> Tensor:
    log_probs, indices = TEACHER.log_softmax(-1).topk(2)
    return distillation_loss(student=STUDENT, teacher=TopK(indices, log_probs), **positions)


def with_draws(**positions: Any) -> Tensor:
    log_probs, indices = TEACHER.log_softmax(-1).topk(5)
    rest = log_probs[..., 2:].logsumexp(-1)
    teacher = SampledTail(
        TopK(indices[..., :2], log_probs[..., :2]), indices[..., 2:3], log_probs[..., 2:3], rest
    )
    return distillation_loss(student=STUDENT, teacher=teacher, **positions)


LOSSES: dict[str, Callable[..., Tensor]] = {
    "logits": lambda **x: distillation_loss(student=STUDENT, teacher=TEACHER, **x),
    "values": lambda **x: distillation_loss(student=STUDENT, teacher=TEACHER, reduction="none", **x).sum(),
    "heads": of_heads,
    "top k": stored,
    "sampled tail": with_draws,
    "module": lambda **x: DistillationLoss()(student=STUDENT, teacher=TEACHER, **x),
    "module of heads": lambda **x: LinearDistillationLoss()(
        student=STUDENT, student_weight=HEAD, teacher=TEACHER, teacher_weight=HEAD, **x
    ),
}
ADAPTERS: dict[str, Callable[[Tensor], Tensor]] = {
    "nemo": lambda labels: KDLoss()(STUDENT, TEACHER, labels),
}


def test_a_loss_where_nothing_counts_warns_whichever_argument_excludes_all() -> None:
    some = torch.tensor([[True, False, False], [False, False, False]])
    cases: list[tuple[dict[str, Tensor], str]] = [
        (
            {"labels": NONE},
            r"\(labels=\.\.\.\): every label is -100, the ignore_index, so no position counts",
        ),
        (
            {"mask": torch.zeros_like(some)},
            r"\(mask=\.\.\.\): the mask is False everywhere, so no position counts",
        ),
        ({"weight": torch.zeros(2, 3)}, r"\(weight=\.\.\.\): every weight is 0, so no position counts"),
        (
            {"mask": ~some, "labels": torch.where(some, 1, -100)},
            r"\(mask=\.\.\., labels=\.\.\.\): together they",
        ),
        ({"mask": some, "weight": (~some).float()}, r"\(mask=\.\.\., weight=\.\.\.\): together they"),
        ({"mask": some, "labels": NONE}, r"\(labels=\.\.\.\): every label is -100"),
    ]
    for name, loss in LOSSES.items():
        for given, words in cases:
            with pytest.warns(UserWarning, match=words):
                value = loss(**given)
            assert value == 0, (name, given)
        for given in ({"labels": LABELS}, {"mask": some}, {"weight": some.float()}, {}):
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                assert loss(**given) > 0, (name, given)


def test_the_warning_points_at_the_users_line() -> None:
    for name in ("logits", "heads"):
        with pytest.warns(UserWarning, match="no position counts") as caught:
            LOSSES[name](labels=NONE)
        assert caught[0].filename == __file__, name
    none, log_p, log_q = torch.zeros(4, dtype=torch.bool), torch.zeros(4), torch.ones(4)
    for call in (
        lambda: kl_from_log_probs(log_p, log_q, mask=none),
        lambda: kl_surrogate(log_p, log_q, direction="reverse", mask=none),
    ):
        with pytest.warns(UserWarning, match="no position counts") as caught:
            call()
        assert caught[0].filename == __file__


def test_adapters_warn_once_for_a_batch() -> None:
    of_prompt = torch.tensor([[-100, 1, -100], [-100, 2, -100]])
    rows = divergences()
    for name, loss in ADAPTERS.items():
        with pytest.warns(UserWarning, match="every label is -100") as caught:
            assert loss(NONE) == 0, name
        assert len(caught) == 1, name
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert float(loss(of_prompt)) == pytest.approx(float(rows[:, 1].mean()), rel=1e-5), name


def remedies(message: str) -> list[str]:
    """The expressions that follow `mask=`, `labels=` or `weight=` in the remedy."""
    return re.findall(r"(?:mask|labels|weight)=[^;,)]*?(?=,|;|\)| for|$)", message.split("Write: ")[1])


def test_labels_that_were_passed_as_a_mask() -> None:
    rows = divergences()
    want = float(rows[LABELS != -100].mean())
    for name in ("logits", "heads", "module", "module of heads"):
        with pytest.raises(ArgumentTypeError) as caught:
            LOSSES[name](mask=LABELS)
        made = remedies(str(caught.value))
        assert made == ["labels=mask", "mask=mask != -100"], name
        for code in made:
            argument, expression = code.split("=", 1)
            value = LOSSES[name](**{argument: eval(expression, {"mask": LABELS})})  # noqa: S307
            assert float(value) == pytest.approx(want, rel=1e-5), (name, code)


def test_the_remedy_of_a_mask_counts_the_positions_that_are_meant() -> None:
    rows = divergences()
    counted = torch.tensor([[True, False, True], [True, True, False]])
    additive = torch.where(counted, 0.0, -math.inf)
    others = torch.where(LABELS == -100, -1, LABELS)
    of_classes = torch.where(counted, torch.tensor([1, 0, 1]), -100)  # of two classes
    for given, code, weights in (
        (counted.long(), "mask=mask != 0", counted),
        (counted.double(), "mask=mask != 0", counted),
        (additive, "mask=mask == 0", counted),
        (additive.clamp(min=-1e9), "mask=mask == 0", counted),
        (of_classes, "labels=mask", counted),
        (counted * 0.5, "weight=mask", counted),
    ):
        with pytest.raises(ArgumentTypeError) as caught:
            LOSSES["logits"](mask=given)
        assert remedies(str(caught.value))[0] == code, given
        argument, expression = code.split("=", 1)
        value = LOSSES["logits"](**{argument: eval(expression, {"mask": given})})  # noqa: S307
        assert float(value) == pytest.approx(float(rows[weights].mean()), rel=1e-5), given
    with refused(ArgumentTypeError, instead="mask=mask != padding, with the number at positions"):
        LOSSES["logits"](mask=others)
    ignored = distillation_loss(student=STUDENT, teacher=TEACHER, labels=others, ignore_index=-1)
    with refused(ArgumentTypeError, instead=r"labels=mask, if these are labels; or mask=mask != -1"):
        distillation_loss(student=STUDENT, teacher=TEACHER, mask=others, ignore_index=-1)
    assert float(ignored) == pytest.approx(float(rows[counted].mean()), rel=1e-5)


def test_calls_without_labels_advise_a_comparison() -> None:
    log_p, log_q = (x.log_softmax(-1)[..., 0] for x in (TEACHER, STUDENT))
    metric = metrics.KLDivergence(representation="logits")
    calls: dict[str, Callable[[Any], Any]] = {
        "log-probabilities": lambda mask: kl_from_log_probs(log_p, log_q, mask=mask, reduction="sum"),
        "regularizer": lambda mask: KLRegularizer(batch_dims=2)(
            Normal(log_p, 1.0), Normal(log_q, 1.0), mask=mask
        ),
        "metric": lambda mask: metric.update(TEACHER, STUDENT, mask=mask),
        "function": lambda mask: metrics.kl_divergence(TEACHER, STUDENT, mask=mask, representation="logits"),
    }
    for name, call in calls.items():
        with pytest.raises((ArgumentTypeError, ArgumentValueError)) as caught:
            call(LABELS)
        assert remedies(str(caught.value)) == ["mask=mask != -100"], name
        call(LABELS != -100)
    got = calls["log-probabilities"](LABELS != -100)
    assert float(got) == pytest.approx(float((log_p - log_q)[LABELS != -100].sum()), rel=1e-5)


def test_modelopts_loss_takes_no_labels() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        value = LogitsDistillationLoss()(STUDENT, TEACHER)
    assert float(value) == pytest.approx(float(divergences().mean()), rel=1e-5)


class Quantized(Tensor):
    """A weight of rounded numbers with a scale, which supports few operations, as torchao's."""

    @staticmethod
    def __new__(cls, numbers: Tensor, scale: float) -> Self:
        return Tensor._make_wrapper_subclass(cls, numbers.shape, dtype=torch.float32, device=numbers.device)  # type: ignore[attr-defined]

    def __init__(self, numbers: Tensor, scale: float) -> None:
        self.numbers, self.scale = numbers, scale

    def __tensor_flatten__(self) -> tuple[list[str], float]:
        return ["numbers"], self.scale

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise NotImplementedError(f"{func} of {types}")

    def dequantize(self) -> Tensor:  # type: ignore[override]
        return self.numbers.float() * self.scale


def test_heads_that_are_quantized_or_offloaded_are_described() -> None:
    numbers = torch.randint(-5, 5, (5, 5), generator=torch.Generator().manual_seed(1))
    head = Quantized(numbers, 0.1)
    with refused(
        KullbackError,
        got="of class Quantized, such as a quantized weight",
        instead=r"teacher_weight\.dequantize",
    ):
        linear_distillation_loss(student=STUDENT, student_weight=HEAD, teacher=TEACHER, teacher_weight=head)
    value = linear_distillation_loss(
        student=STUDENT, student_weight=HEAD, teacher=TEACHER, teacher_weight=head.dequantize()
    )
    logits = TEACHER @ (numbers.float() * 0.1).T
    want = distillation_loss(student=STUDENT, teacher=logits)  # the other half of the remedy
    assert float(value) == pytest.approx(float(want), rel=1e-5)
    with refused(
        KullbackError,
        got="one on meta, which has no values",
        instead=r"teacher_weight loaded to student\.device",
    ):
        linear_distillation_loss(
            student=STUDENT, student_weight=HEAD, teacher=TEACHER, teacher_weight=HEAD.to("meta")
        )
