"""Every public error and result survives pickling and copying; all are found by introspection."""

from __future__ import annotations

import copy
import dataclasses
import importlib
import inspect
import math
import pickle
import pkgutil
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.distributions import Laplace, Normal

import kullback
from kullback import (
    KL,
    Counts,
    Estimate,
    Logits,
    ReverseKL,
    Samples,
    estimate,
    kl_bounds,
    kl_estimate,
    two_sample_test,
)
from kullback.errors import ConvergenceError, KullbackError

COPIES: dict[str, Callable[[Any], Any]] = {
    "pickle": lambda x: pickle.loads(pickle.dumps(x)),  # noqa: S301
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
}
# Packages whose modules import what may be missing, or that have nothing but adapters.
SKIPPED = ("kullback.integrations", "kullback.__main__")


def modules() -> Iterator[Any]:
    for found in pkgutil.walk_packages(kullback.__path__, "kullback."):
        if not found.name.startswith(SKIPPED):
            try:
                yield importlib.import_module(found.name)
            except ImportError:  # an optional package
                continue


MODULES = list(modules())
ERRORS = sorted(
    {
        each
        for module in MODULES
        for each in vars(module).values()
        if inspect.isclass(each) and issubclass(each, KullbackError)
    },
    key=str,
)
RESULTS = sorted(
    {
        each
        for module in (kullback, *MODULES)
        for name, each in vars(module).items()
        if not name.startswith("_") and inspect.isclass(each)
        if each.__module__.startswith("kullback")
        and (dataclasses.is_dataclass(each) or hasattr(each, "_fields"))
        if not inspect.isabstract(each)
    },
    key=str,
)


def test_there_are_errors_and_results() -> None:
    assert {"ConvergenceError", "FitError", "UnreachableError"} <= {each.__name__ for each in ERRORS}
    assert {
        "Estimate",
        "TwoSampleTest",
        "Fit",
        "Bounds",
        "Comparison",
        "TableComparison",
        "ModelComparison",
    } <= {each.__name__ for each in RESULTS}


def made(error: type[KullbackError]) -> KullbackError:
    """Return an error with a different text for each argument that its constructor takes."""
    options = inspect.signature(error.__init__).parameters.values()
    named = [each for each in options if each.name != "self" and each.kind is each.POSITIONAL_OR_KEYWORD]
    if not named:  # Exception's own
        return error("what happened")
    return_value = Estimate(torch.tensor(0.5), None, "quadrature")
    values = {"message": "what happened", "estimate": return_value, "fit": return_value}
    return error(*(values.get(each.name, f"its {each.name}") for each in named))


@pytest.mark.parametrize("way", COPIES)
@pytest.mark.parametrize("error", ERRORS, ids=lambda each: each.__name__)
def test_errors(error: type[KullbackError], way: str) -> None:
    given = made(error)
    given.add_note("where it was")
    found = COPIES[way](given)
    assert type(found) is error
    assert (str(found), found.args, found.__notes__) == (str(given), given.args, ["where it was"])
    assert {name: repr(value) for name, value in vars(found).items()} == {
        name: repr(value) for name, value in vars(given).items()
    }
    with pytest.raises(error, match="what happened"):
        raise found


@pytest.mark.parametrize("way", COPIES)
@pytest.mark.parametrize("result", RESULTS, ids=lambda each: f"{each.__module__}.{each.__name__}")
def test_results_of_any_content(result: Any, way: str) -> None:
    """A result made of texts, one for each field: its class neither refuses nor loses any of them."""
    names = (
        result._fields if hasattr(result, "_fields") else [field.name for field in dataclasses.fields(result)]
    )
    if hasattr(result, "_fields"):
        given = result._make(names)
    else:
        given = object.__new__(result)
        for name in names:
            object.__setattr__(given, name, name)
    found = COPIES[way](given)
    assert type(found) is result
    assert [getattr(found, name) for name in names] == list(names)


X = torch.linspace(0, 1, 40, dtype=torch.float64)


def not_converged() -> ConvergenceError:
    with pytest.raises(ConvergenceError) as caught:
        kullback.fit(Normal(5.0, 1.0), to=Laplace(0.0, 1.0), kind=ReverseKL(), max_iterations=1)
    return caught.value


REAL: dict[str, Callable[[], Any]] = {
    "estimate": lambda: kl_estimate(Logits(X[None]), Logits(X.flip(0)), base=2),
    "estimate from counts": lambda: estimate(Counts([[30, 10], [4, 9]]), Counts([20, 20]), kind="js"),
    "estimate with a gradient": lambda: kl_estimate(
        Normal(torch.tensor(0.0, requires_grad=True), 1.0), Normal(1.0, 2.0)
    ),
    "test": lambda: two_sample_test(Samples(X), Samples(X**2), permutations=19),
    "bounds": lambda: kl_bounds(Normal(0.0, 1.0), Normal(1.0, 2.0)),
    "fit": lambda: kullback.fit(Normal(0.0, 1.0), to=Laplace(0.0, 1.0), kind=KL()),
    "fit that did not converge": not_converged,
    "diagnosis": lambda: kullback.diagnose(X[None], X[None], reduction="mean"),
}


@pytest.mark.parametrize("way", COPIES)
@pytest.mark.parametrize("name", REAL)
def test_results_as_they_come(name: str, way: str) -> None:
    given = REAL[name]()
    assert type(COPIES[way](given)) is type(given)
    found, expected = (getattr(each, "estimate", each) for each in (COPIES[way](given), given))
    for value in ("value", "p_value", "lower", "statistic"):
        if hasattr(expected, value):
            torch.testing.assert_close(getattr(found, value), getattr(expected, value))
    assert math.isfinite(float(torch.as_tensor(getattr(found, "value", 0.0)).sum()))
