"""`diagnose` on heat maps, one distribution over several dimensions, and on labels that are independent."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import scipy.special
import torch
from torch import Tensor
from torch.nn import functional as F

from kullback import LogProbs, Probs, diagnose, kl_divergence
from kullback.diagnosis import Diagnosis
from kullback.errors import ArgumentValueError
from tests.diagnosis.test_diagnose import run, scores
from tests.refusals import refused

REDUCTIONS = ("none", "sum", "mean", "batchmean")
SHAPES = {
    "one channel": ((4, 1, 8, 8), (-2, -1)),
    "no channel": ((4, 8, 8), (-2, -1)),
    "channels": ((4, 17, 6, 8), (-2, -1)),
    "channels last": ((4, 6, 8, 3), (-3, -2)),
    "volumes": ((2, 3, 4, 5), (-3, -2, -1)),
    "one map": ((6, 5), (-2, -1)),
}


def normalized(x: Tensor, dims: tuple[int, ...]) -> Tensor:
    return (x - x.logsumexp(dims, keepdim=True)).exp()


def kl_of_maps(p: Tensor, q: Tensor, dims: tuple[int, ...]) -> np.ndarray:
    """KL of each map, by the definition."""
    return scipy.special.rel_entr(p.double().numpy(), q.double().numpy()).sum(dims)


def reduced(values: np.ndarray, reduction: str) -> np.ndarray | float:
    return values if reduction == "none" else values.sum() if reduction == "sum" else values.mean()


def is_right(diagnosis: Diagnosis, right: np.ndarray | float, **tensors: Tensor) -> bool:
    assert diagnosis.suggestion is not None
    codes = diagnosis.suggestion.kullback, diagnosis.suggestion.torch
    return all(np.allclose(run(code, **tensors).double().numpy(), right, rtol=2e-5) for code in codes) and (
        diagnosis.suggestion.value is None
        or math.isclose(diagnosis.suggestion.value, float(right), rel_tol=2e-5)
    )


def test_heat_maps_are_seen_and_the_code_is_right() -> None:
    for name, (shape, dims) in SHAPES.items():
        p, q = normalized(scores(*shape, seed=1), dims), normalized(scores(*shape, seed=2), dims)
        right = kl_of_maps(p, q, dims)
        for reduction, asked in itertools.product(REDUCTIONS, (False, True)):
            arguments = {"reduction": reduction} | ({"dim": dims} if asked else {})
            case = name, reduction, asked
            diagnosis = diagnose(q.log(), p, **arguments)
            errors = [each.code for each in diagnosis.findings if each.level == "error"]
            assert errors == [], case
            assert diagnosis.dim == dims, case
            assert ("classes-along-several-dimensions" in diagnosis.codes) is not asked, case
            assert diagnosis.kl_target_input.mean == pytest.approx(right.mean(), rel=1e-5), case
            assert diagnosis.kl_target_input.rows == right.size, case
            assert is_right(diagnosis, reduced(right, reduction), input=q.log(), target=p), case
            if reduction != "none":
                terms = F.kl_div(q.log(), p, reduction="none").sum()
                divisor = {"sum": 1, "mean": p.numel(), "batchmean": shape[0]}[reduction]
                torch_gives = float(terms) / divisor
                assert diagnosis.values[reduction] == pytest.approx(torch_gives, rel=1e-5), case
        diagnosis = diagnose(q.log(), p, reduction="batchmean")
        per_row = right.size == shape[0]
        assert ("batchmean-is-not-per-row" in diagnosis.codes) is not per_row, name
        assert diagnosis.ok is per_row, name


def test_mistakes_with_heat_maps_are_found() -> None:
    shape, dims = (4, 3, 6, 8), (-2, -1)
    x, p = scores(*shape, seed=3), normalized(scores(*shape, seed=1), dims)
    q = normalized(x, dims)
    right = kl_of_maps(p, q, dims)
    for code, input, target, log_target in (
        ("input-is-logits", x, p, False),
        ("input-is-probabilities", q, p, False),
        ("arguments-reversed", q, p.log(), False),
        ("target-is-logits", q.log(), p.log() + 2, False),
        ("target-is-log-probabilities", q.log(), p.log(), False),
    ):
        diagnosis = diagnose(input, target, reduction="batchmean", log_target=log_target)
        assert code in diagnosis.codes, (code, diagnosis.codes)
        meant = kl_of_maps(q, p, dims).mean() if code == "arguments-reversed" else right.mean()
        assert is_right(diagnosis, meant, input=input, target=target), code
        if code == "input-is-logits":
            advice = next(each.advice for each in diagnosis.findings if each.code == code)
            assert "input.flatten(-2).log_softmax(-1)" in advice
    target = p.clone()
    target[0, 0] = math.nan
    diagnosis = diagnose(q.log(), target, reduction="batchmean", dim=dims)
    assert "target-nan" in diagnosis.codes
    assert is_right(diagnosis, right.reshape(-1)[1:].mean(), input=q.log(), target=target)


def test_a_single_other_dimension_behind_those_that_were_asked_for_is_found() -> None:
    p, q = scores(2, 3, 4, seed=1).softmax(-1), scores(2, 3, 4, seed=2).softmax(-1)
    diagnosis = diagnose(q.log(), p, reduction="batchmean", dim=(-3, -2))
    assert diagnosis.codes[0] == "classes-along-another-dimension"
    assert diagnosis.dim == -1
    assert is_right(diagnosis, kl_of_maps(p, q, (-1,)).mean(), input=q.log(), target=p)


def test_dims_are_accepted_as_in_probs() -> None:
    p, q = (normalized(scores(4, 3, 6, 8, seed=seed), (-2, -1)) for seed in (1, 2))
    right = float(kl_divergence(Probs(p, dim=(-2, -1)), LogProbs(q.log(), dim=(-2, -1))).mean())
    for dim in ((-2, -1), (2, 3), (3, 2), (-1, 2)):
        assert diagnose(q.log(), p, dim=dim).kl_target_input.mean == pytest.approx(right, rel=1e-6), dim
    apart = p.movedim(2, 0), q.log().movedim(2, 0)
    diagnosis = diagnose(apart[1], apart[0], dim=(0, -1), reduction="sum")
    assert diagnosis.kl_target_input.mean == pytest.approx(right, rel=1e-6)
    assert is_right(diagnosis, right * 12, input=apart[1], target=apart[0])
    assert diagnose(q.log(), p[:1], dim=(-2, -1)).kl_target_input.rows == 12
    for dim in ((), (-1, -1), (-1, 3), (-1, 4), (-5, -1), ("a", -1), 4, "a", None, 1.5):
        with refused(ArgumentValueError, argument="dim"):
            diagnose(q.log(), p, dim=dim)
    with refused(ArgumentValueError, wanted="target too"):
        diagnose(q.log(), p[0, 0, 0], dim=(-2, -1))


def bernoulli(p: Tensor, q: Tensor) -> np.ndarray:
    """The sum over labels of KL of Bernoulli distributions, by the definition."""
    a, b = p.double().numpy(), q.double().numpy()
    return (scipy.special.rel_entr(a, b) + scipy.special.rel_entr(1 - a, 1 - b)).sum(-1)


def test_independent_labels_are_a_sum_of_bernoullis() -> None:
    x, y = scores(32, 5, seed=4), scores(32, 5, seed=5)
    p, q = y.sigmoid(), x.sigmoid()
    several = (torch.rand(32, 5, generator=torch.Generator().manual_seed(6)) < 0.4).float()
    for name, input, target, log_target, truth in (
        ("log-sigmoids", F.logsigmoid(x), p, False, p),
        ("sigmoids", q, p, False, p),
        ("log-sigmoids twice", F.logsigmoid(x), F.logsigmoid(y), True, p),
        ("several labels", F.logsigmoid(x), several, False, several),
        ("double", F.logsigmoid(x.double()), p.double(), False, p),
    ):
        right = bernoulli(truth, q)
        for reduction in REDUCTIONS:
            diagnosis = diagnose(input, target, reduction=reduction, log_target=log_target)
            assert "labels-are-independent" in diagnosis.codes, name
            assert not diagnosis.ok, name
            assert "softmax(" not in diagnosis.suggestion.kullback + diagnosis.suggestion.torch, name
            assert is_right(diagnosis, reduced(right, reduction), input=input, target=target), (
                name,
                reduction,
            )
        assert diagnosis.kl_target_input.mean == pytest.approx(right.mean(), rel=1e-5), name


def test_rows_that_sum_to_one_are_not_independent_labels() -> None:
    p, q = scores(8, 5, seed=1).softmax(-1), scores(8, 5, seed=2).log_softmax(-1)
    for input, target in ((q, p), (q, 3 * p), (q + 0.5, p), (2 * scores(8, 5), torch.rand(8, 5))):
        assert "labels-are-independent" not in diagnose(input, target).codes
    diagnosis = diagnose(scores(8, 5), scores(8, 5, seed=7).sigmoid())
    advice = next(each.advice for each in diagnosis.findings if each.code == "target-is-not-normalized")
    assert "a label of its own, compare Bernoulli distributions" in advice
