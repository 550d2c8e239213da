"""Lists and arrays follow the dtype of the other side; a mask that leaves nothing warns."""

from __future__ import annotations

import itertools
import warnings

import numpy as np
import pytest
import torch

from kullback import Counts, Logits, LogProbs, Probs, kl_divergence, kl_estimate, metrics, nn
from kullback.errors import ArgumentTypeError, ArgumentValueError
from kullback.functional import distillation_loss, kl_from_log_probs, linear_distillation_loss
from tests.refusals import refused

P, Q = [0.9, 0.1], [0.3, 0.7]
EXACT = 0.9 * np.log(0.9 / 0.3) + 0.1 * np.log(0.1 / 0.7)
MAKE = {
    "list": (0, lambda x: x),
    "tuple": (0, tuple),
    "array of float64": (1, np.array),
    "array of float32": (1, lambda x: np.array(x, dtype=np.float32)),
    "tensor of float64": (2, lambda x: torch.tensor(x, dtype=torch.float64)),
    "tensor of float32": (2, torch.tensor),
}


@pytest.mark.parametrize(("first", "second"), list(itertools.product(MAKE, MAKE)))
def test_the_weaker_side_follows(first: str, second: str) -> None:
    (rank, p), (other, q) = MAKE[first], MAKE[second]
    sides = Probs(p(P)), Probs(q(Q))
    dtypes = [side.tensor.dtype for side in sides]
    if rank == other == 2 and dtypes[0] != dtypes[1]:
        with refused(ArgumentValueError, wanted="^one dtype", instead=r"Probs\(x.to\(torch"):
            kl_divergence(*sides)
        return
    expected = max(dtypes, key=lambda dtype: dtype.itemsize) if rank == other else dtypes[rank < other]
    found = kl_divergence(*sides)
    assert found.dtype == expected
    rounded = any("float32" in name for name in (first, second)) or expected == torch.float32
    assert float(found) == pytest.approx(EXACT, rel=1e-6 if rounded else 1e-14)
    assert kl_estimate(*sides).value.dtype == expected


def test_the_other_representations_follow_too() -> None:
    double = np.log(np.array(Q))
    for p in (
        Logits([0.5, -0.5]),
        LogProbs(np.log(np.array(P, dtype=np.float32)).tolist()),
        Counts([1.5, 2.5]),
    ):
        for q in (Logits(double), LogProbs(double), Probs(np.array(Q))):
            assert kl_divergence(p, q).dtype == kl_divergence(q, p).dtype == torch.float64
    labeled = Counts({"a": 0.5, "b": 1.5}), Counts(np.array([1.5, 2.5]), labels="ab")
    assert kl_divergence(*labeled).dtype == torch.float64


@pytest.mark.parametrize("make", [lambda x: x, tuple, np.array])
def test_whole_numbers_of_lists_and_arrays_are_floating(make) -> None:
    assert float(kl_divergence(Probs(make([1, 0])), Probs([0.5, 0.5]))) == pytest.approx(np.log(2))
    torch.testing.assert_close(
        kl_divergence(Logits(make([3, 2])), Logits(torch.tensor([1.0, 2.0]))),
        kl_divergence(Logits([3.0, 2.0]), Logits([1.0, 2.0])),
    )
    large = 2**24 + 1  # which float32 rounds
    double = Logits(torch.tensor([0.0, 1.0], dtype=torch.float64))
    exact = kl_divergence(Logits(torch.tensor([large, large - 1], dtype=torch.float64)), double)
    torch.testing.assert_close(kl_divergence(Logits(make([large, large - 1])), double), exact)


def test_whole_numbers_of_tensors_are_refused_with_a_remedy_that_works() -> None:
    x = torch.tensor([1, 0])
    with refused(ArgumentTypeError, instead=r"Counts\(x\) if these are counts, or x.float\(\) first"):
        Probs(x)
    assert float(kl_divergence(Probs(x.float()), Counts(x))) == 0
    for answers in ([True, False], np.array([True, False])):
        with refused(ArgumentTypeError, wanted="floating-point"):
            Probs(answers)


ROWS = torch.randn(2, 3, 4, generator=torch.Generator().manual_seed(0))
NOTHING, SOME = torch.zeros(2, 3, dtype=torch.bool), torch.ones(2, 3, dtype=torch.bool)
LOGS = ROWS[..., 0].abs().neg()
MASKED = {
    "distillation_loss": lambda mask: distillation_loss(student=ROWS, teacher=ROWS + 1, mask=mask),
    "DistillationLoss": lambda mask: nn.DistillationLoss()(student=ROWS, teacher=ROWS + 1, mask=mask),
    "linear_distillation_loss": lambda mask: linear_distillation_loss(
        student=ROWS,
        student_weight=torch.ones(5, 4),
        teacher=ROWS,
        teacher_weight=torch.ones(5, 4),
        mask=mask,
    ),
    "kl_from_log_probs": lambda mask: kl_from_log_probs(LOGS, LOGS - 1, mask=mask),
    "metrics.kl_divergence": lambda mask: metrics.kl_divergence(
        ROWS, ROWS, mask=mask, representation="logits", reduction="sum"
    ),
    "KLDivergence": lambda mask: metrics.KLDivergence(representation="logits").update(ROWS, ROWS, mask=mask),
}


@pytest.mark.parametrize("call", MASKED)
def test_a_mask_that_leaves_nothing_warns(call: str) -> None:
    with pytest.warns(UserWarning, match=r"the mask is False everywhere.*mask=attention_mask.bool\(\)"):
        MASKED[call](NOTHING)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        MASKED[call](SOME)
