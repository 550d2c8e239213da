"""Every public function that takes a kind takes its name, with the spelling of the command line."""

from __future__ import annotations

import inspect
import re
import typing
from typing import Any

import pytest
import torch
from torch.distributions import Laplace, Normal

import kullback
from kullback import (
    Counts,
    Divergence,
    Logits,
    ReverseKL,
    Samples,
    divergence,
    estimate,
    fit,
    functional,
    nn,
)
from kullback.errors import ArgumentTypeError, ArgumentValueError
from kullback.estimators import bias_corrected
from tests.refusals import refused


def taking() -> dict[str, inspect.Signature]:
    found: dict[str, inspect.Signature] = {}
    for module in (kullback, kullback.estimators, functional, nn, kullback.metrics):
        for name in module.__all__:
            each = getattr(module, name)
            # These are results, a teacher, and the rows that a teacher makes: their kind is not a user's argument.
            if not callable(each) or name in ("Estimate", "Fit", "TopK", "TeacherRows"):
                continue
            try:
                signature = inspect.signature(each)
            except ValueError:
                continue
            if "kind" in signature.parameters:
                found[f"{module.__name__}.{name}"] = signature
    return found


def test_a_kind_may_be_a_name() -> None:
    annotations = {name: str(signature.parameters["kind"].annotation) for name, signature in taking().items()}
    assert {name: annotation for name, annotation in annotations.items() if "str" not in annotation} == {}


def test_the_functions_are_found() -> None:
    wanted = {"kullback.divergence", "kullback.fit", "kullback.estimate", "kullback.nn.DistillationLoss"}
    assert wanted <= set(taking())


X, Y = torch.tensor([[2.0, 0.0, 1.0]]), torch.tensor([[1.0, 0.5, 0.0]])
CALLS = {
    "divergence": lambda kind: divergence(Logits(X), Logits(Y), kind),
    "estimate": lambda kind: estimate(Logits(X), Logits(Y), kind=kind).value,
    "of counts": lambda kind: estimate(Counts([30, 10]), Counts([20, 20]), kind=kind).interval[0],
    "of draws": lambda kind: bias_corrected(Samples([0, 1] * 30), Samples([0, 1, 1] * 20), kind).value,
    "distillation_loss": lambda kind: functional.distillation_loss(student=X, teacher=Y, kind=kind),
    "DistillationLoss": lambda kind: nn.DistillationLoss(kind=kind)(student=X, teacher=Y),
    "fit": lambda kind: fit(Normal(0.0, 1.0), to=Laplace(0.0, 1.0), kind=kind).value,
}


@pytest.mark.parametrize("call", CALLS)
def test_a_name_means_the_kind(call: str) -> None:
    torch.testing.assert_close(CALLS[call]("reverse_kl"), CALLS[call](ReverseKL()), rtol=0, atol=0)
    torch.testing.assert_close(CALLS[call]("Reverse-KL"), CALLS[call](ReverseKL()), rtol=0, atol=0)
    with refused(ArgumentValueError, argument="kind", wanted="^one of ", instead="kind='reverse_kl'"):
        CALLS[call]("reverse_kll")
    with refused(ArgumentTypeError, wanted="^a divergence or the name of one"):
        CALLS[call](ReverseKL)


@pytest.mark.parametrize(
    ("kind", "remedy"),
    [
        (ReverseKL, "ReverseKL()"),
        (kullback.JensenShannon, "JensenShannon(0.5)"),
        (kullback.Renyi, "Renyi(2)"),
        (Divergence, "KL()"),
        (lambda r: (r - 1) ** 2, "FDivergence(f)"),
    ],
)
def test_a_class_or_a_function_is_refused_with_the_value_to_write(kind: Any, remedy: str) -> None:
    with refused(ArgumentTypeError, argument="kind", instead=re.escape(f"kind={remedy}")):
        estimate(Logits(X), Logits(Y), kind=kind)
    written = eval(remedy, {**vars(kullback), "f": kind})  # noqa: S307  the remedy of the error
    assert estimate(Logits(X), Logits(Y), kind=written).value >= 0


def test_an_estimate_says_its_kind_by_that_name() -> None:
    found = estimate(Logits(X), Logits(Y), kind="renyi:2", base=2)
    assert (found.kind, found.base) == ("renyi:2", 2)
    assert isinstance(kullback.generators.parse(found.kind), Divergence)
    assert typing.get_type_hints(estimate)["kind"] == Divergence | str
