"""What kullback answers for the pairs of the sweep, and what is wrong with it."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import astuple, dataclass
from typing import Any

import torch
from torch import Tensor, distributions as d

import kullback
from kullback.errors import ConvergenceError
from kullback.pairs import SolveOptions, estimate
from tests.oracles.sweep import Spec

KINDS: dict[str, Any] = {
    "KL": kullback.KL(),
    "JensenShannon": kullback.JensenShannon(),
    "SkewKL(.1)": kullback.SkewKL(0.1),
    "TotalVariation": kullback.TotalVariation(),
    "Alpha(.3)": kullback.Alpha(0.3),
    "ChiSquared": kullback.ChiSquared(),
    "SquaredHellinger": kullback.SquaredHellinger(),
    "Renyi(.5)": kullback.Renyi(0.5),
    "Renyi(2)": kullback.Renyi(2.0),
    "Alpha(-.5)": kullback.Alpha(-0.5),
}
RELATIVE, ABSOLUTE, GRADIENT, SECOND = 1e-6, 1e-9, 1e-5, 1e-4
LAST_DIGIT = 4e-16


@dataclass(frozen=True)
class Count:
    """How many cases there were, and how many of them were wrong in what, refused, or unknown."""

    cases: int = 0
    values: int = 0
    bounds: int = 0
    gradients: int = 0
    refused: int = 0
    unknown: int = 0

    def __add__(self, other: Count) -> Count:
        return Count(*(a + b for a, b in zip(astuple(self), astuple(other), strict=True)))


@dataclass(frozen=True)
class SecondCount:
    """How many second derivatives have a known truth, and how many of these were refused, or wrong."""

    known: int = 0
    refused: int = 0
    wrong: int = 0

    def __add__(self, other: SecondCount) -> SecondCount:
        return SecondCount(*(a + b for a, b in zip(astuple(self), astuple(other), strict=True)))


def total(counts: Iterable[Count]) -> Count:
    return sum(counts, Count())


def build(spec: Spec, values: list[Tensor]) -> d.Distribution:
    """The torch distribution of a specification, with parameters from the front of the list."""
    family = spec[0]
    if family == "Mixture":
        weights = torch.stack([values.pop(0) for _ in spec[1]])
        columns: list[list[Tensor]] = [[values.pop(0) for _ in part[1:]] for part in spec[2:]]
        stacked = [torch.stack(column) for column in zip(*columns, strict=True)]
        parts = _family(spec[2][0])(*stacked)
        return d.MixtureSameFamily(d.Categorical(weights), parts)
    if family in ("Exp", "Sigmoid"):
        transform = d.ExpTransform() if family == "Exp" else d.SigmoidTransform()
        return d.TransformedDistribution(build(spec[1], values), [transform])
    if family == "Affine":
        loc, scale = values.pop(0), values.pop(0)
        return d.TransformedDistribution(build(spec[3], values), [d.AffineTransform(loc, scale)])
    return _family(family)(*(values.pop(0) for _ in spec[1:]))


def _family(name: str) -> Any:
    return getattr(d, name)


def numbers(spec: Any) -> list[float]:
    if isinstance(spec, list):
        return [x for part in spec for x in numbers(part)]
    return [] if isinstance(spec, str) else [float(spec)]


def answer(entry: dict[str, Any], kind: str, *, gradients: bool) -> tuple[float, float, Tensor | None]:
    """Value, claimed error, and the products of gradient and direction."""
    given = [
        torch.tensor(x, dtype=torch.float64, requires_grad=gradients)
        for x in numbers(entry["p"]) + numbers(entry["q"])
    ]
    values = list(given)
    p = build(entry["p"], values)
    q = build(entry["q"], values)
    found = estimate("divergence", p, q, SolveOptions(), KINDS[kind])
    assert found.error is not None
    products = None
    if gradients:
        products = torch.zeros(len(given), dtype=torch.float64)
        if found.value.requires_grad:
            by = torch.autograd.grad(found.value, given, materialize_grads=True)
            direction = torch.tensor(entry["direction"], dtype=torch.float64)
            products = torch.where(direction == 0, 0, torch.stack(by) * direction)
    return found.value.item(), found.error.item(), products


def second_derivative(entry: dict[str, Any], kind: str) -> float:
    """The second derivative along the direction, by a second backward pass."""
    direction = torch.tensor(entry["direction"], dtype=torch.float64)
    step = torch.zeros((), dtype=torch.float64, requires_grad=True)
    start = torch.tensor(numbers(entry["p"]) + numbers(entry["q"]), dtype=torch.float64)
    values = list((start + step * direction).unbind())
    p = build(entry["p"], values)
    q = build(entry["q"], values)
    value = estimate("divergence", p, q, SolveOptions(), KINDS[kind]).value
    (first,) = torch.autograd.grad(value, step, create_graph=True)
    (second,) = torch.autograd.grad(first, step, materialize_grads=True)
    return second.item()


def check(entry: dict[str, Any], kinds: Iterable[str] = KINDS) -> tuple[Count, list[dict[str, Any]]]:
    """Count what is right and wrong about a pair, and describe what is wrong."""
    count, faults = Count(), []
    for kind in kinds:
        true = entry["values"][kind]
        derivative = entry["derivatives"][kind]
        off_by = entry.get("errors", {}).get(kind, 0.0)
        values: list[float] = []
        for gradients in (False, True):
            count += Count(cases=1)
            try:
                value, error, products = answer(entry, kind, gradients=gradients)
            except ConvergenceError:
                count += Count(refused=1)
                continue
            values.append(value)
            found = judge(value, error, products, true, derivative, off_by)
            if len(values) == 2 and not _agree(*values):
                found = found + Count(values=1)
            count += found
            if found.values or found.bounds or found.gradients:
                faults.append(
                    {
                        "index": entry["index"],
                        "sort": entry["sort"],
                        "kind": kind,
                        "gradients": gradients,
                        "wrong": [w for w, n in vars(found).items() if n],
                        "value": value,
                        "true": true,
                        "error": error,
                        "derivative": derivative,
                        "products": None if products is None else products.tolist(),
                        "p": entry["p"],
                        "q": entry["q"],
                    }
                )
    return count, faults


def check_second(
    entry: dict[str, Any], truths: dict[str, float | None]
) -> tuple[SecondCount, list[dict[str, Any]]]:
    """Count what is right and wrong about the second derivatives of a pair, and describe what is wrong."""
    count, faults = SecondCount(), []
    for kind, true in truths.items():
        if true is None:
            continue
        count += SecondCount(known=1)
        try:
            found = second_derivative(entry, kind)
        except ConvergenceError:  # a refusal is no wrong number
            count += SecondCount(refused=1)
            continue
        if is_second_wrong(found, true, entry["derivatives"][kind]):
            count += SecondCount(wrong=1)
            faults.append({"index": entry["index"], "kind": kind, "second": found, "true": true})
    return count, faults


def is_second_wrong(found: float, true: float, first: float | None) -> bool:
    """Return whether a second derivative is not the true one, where the first derivative is known."""
    return not abs(found - true) <= SECOND * (abs(true) + abs(first or 0.0)) + ABSOLUTE


def _agree(a: float, b: float) -> bool:
    return a == b or abs(a - b) <= RELATIVE * abs(a) + ABSOLUTE


def judge(
    value: float,
    error: float,
    products: Tensor | None,
    true: float | None,
    derivative: float | None,
    off_by: float = 0.0,
) -> Count:
    """Count what is wrong with one answer, where the truth itself may be off by `off_by`."""
    if math.isnan(value) or value < 0 or math.isnan(error):
        return Count(values=1)
    if products is not None and not bool(products.isfinite().all()):
        return Count(gradients=1)
    if true is None:
        return Count(unknown=1)
    if math.isinf(true) or math.isinf(value):
        return Count(values=int(true != value))
    off = abs(value - true)
    wrong = Count(
        values=int(off > RELATIVE * abs(true) + ABSOLUTE),
        bounds=int(off > error + LAST_DIGIT * abs(true) + off_by + 1e-300),
    )
    if products is not None and derivative is not None:
        size = float(products.abs().sum()) + abs(derivative)
        off = abs(float(products.sum()) - derivative)
        wrong += Count(gradients=int(off > GRADIENT * size + ABSOLUTE))
    return wrong
