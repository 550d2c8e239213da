"""Derivatives of divergences whose parameters P and Q share, by every route that torch has, and their truths.

All parameters depend on one number t: each has a step of its own, or is computed from the one before it, or is shared
by P and Q, or they all are t. The truths are differences of the formulas of the audit with 90 digits.

python -m tests.oracles.routes            # makes tests/data/route_truths.json.gz in some minutes
"""

from __future__ import annotations

import gzip
import itertools
import json
import math
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
from mpmath import mp, mpf
from torch import Tensor, distributions as d
from torch.autograd import forward_ad
from torch.autograd.functional import hessian

from tests.oracles import pair_truths
from tests.oracles.pairs import PAIRS, Pair

Function = Callable[[Tensor], Tensor]
Parameters = Callable[[Tensor], list[Tensor]]
Truth = tuple[float, float]
# Steps of a difference quotient, with this many digits.
STEP, DIGITS = mpf(10) ** -20, 90
# The number that all parameters are.
REPEATED = 0.7
# The relative and the absolute error of a first and of a second derivative.
TOLERANCES = {1: (1e-9, 1e-11), 2: (1e-7, 1e-9)}
TRUTHS = Path(__file__).parents[1] / "data" / "route_truths.json.gz"


# ---- How parameters depend on one number.


def apart(at: list[float], split: int) -> Parameters:
    """Each parameter has its own step from t."""
    return lambda t: [x + t for x in at]


def chained(at: list[float], split: int) -> Parameters:
    """Each parameter is computed from the one before it."""

    def parameters(t: Tensor) -> list[Tensor]:
        made = [at[0] + t]
        for before, x in itertools.pairwise(at):
            made.append(made[-1] + (x - before))
        return made

    return parameters


def shared(at: list[float], split: int) -> Parameters:
    """Q has P's own tensors, but for its first parameter, which is a constant."""

    def parameters(t: Tensor) -> list[Tensor]:
        of_p = [x + t for x in at[:split]]
        return [*of_p, torch.as_tensor(at[split], dtype=t.dtype), *of_p[1:]]

    return parameters


def repeated(at: list[float], split: int) -> Parameters:
    """All parameters are one tensor."""
    return lambda t: [t] * len(at)


WAYS: dict[str, Callable[[list[float], int], Parameters]] = {
    "apart": apart,
    "chained": chained,
    "shared": shared,
    "repeated": repeated,
}


# ---- Routes.


def _leaf(start: float) -> Tensor:
    return torch.tensor(start, dtype=torch.float64, requires_grad=True)


def _fixed(start: float) -> Tensor:
    return torch.tensor(start, dtype=torch.float64)


def _grad(y: Tensor, x: Tensor, *, create_graph: bool = False) -> Tensor:
    return torch.autograd.grad(y, x, create_graph=create_graph, materialize_grads=True)[0]


def _backward(f: Function, start: float) -> Tensor:
    t = _leaf(start)
    f(t).backward()
    return torch.zeros(()) if t.grad is None else t.grad


def _batched(f: Function, start: float) -> Tensor:
    t = _leaf(start)
    weights = torch.tensor([1.0, -2.0], dtype=torch.float64)
    (both,) = torch.autograd.grad(f(t), t, weights, is_grads_batched=True)
    assert float((both[1] + 2 * both[0]).abs()) <= 1e-12 * float(both[1].abs())
    return both[0]


def _forward(f: Function, start: float) -> Tensor:
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(_fixed(start), torch.ones((), dtype=torch.float64))
        tangent = forward_ad.unpack_dual(f(dual)).tangent
        return torch.zeros(()) if tangent is None else tangent


def _jvp(f: Function, start: float) -> Tensor:
    return torch.func.jvp(f, (_fixed(start),), (torch.ones((), dtype=torch.float64),))[1]


FIRST: dict[str, Callable[[Function, float], Tensor]] = {
    "backward": _backward,
    "create_graph": lambda f, start: _grad(f(t := _leaf(start)), t, create_graph=True).detach(),
    "is_grads_batched": _batched,
    "forward_ad": _forward,
    "func.grad": lambda f, start: torch.func.grad(f)(_fixed(start)),
    "func.jvp": _jvp,
    "func.jacrev": lambda f, start: torch.func.jacrev(f)(_fixed(start)),
    "func.linearize": lambda f, start: torch.func.linearize(f, _fixed(start))[1](
        torch.ones((), dtype=torch.float64)
    ),
}


def _double_backward(f: Function, start: float) -> Tensor:
    t = _leaf(start)
    first = _grad(f(t), t, create_graph=True)
    return _grad(first, t) if first.requires_grad else torch.zeros(())


def _batched_double(f: Function, start: float) -> Tensor:
    t = _leaf(start)
    weights = torch.tensor([1.0, -2.0], dtype=torch.float64)
    (both,) = torch.autograd.grad(f(t), t, weights, is_grads_batched=True, create_graph=True)
    return _grad(both[0], t) if both.requires_grad else torch.zeros(())


def _forward_of_backward(f: Function, start: float) -> Tensor:
    with forward_ad.dual_level():
        t = _leaf(start)
        dual = forward_ad.make_dual(t, torch.ones((), dtype=torch.float64))
        tangent = forward_ad.unpack_dual(_grad(f(dual), dual, create_graph=True)).tangent
        return torch.zeros(()) if tangent is None else tangent.detach()


SECOND: dict[str, Callable[[Function, float], Tensor]] = {
    "double backward": _double_backward,
    "batched double backward": _batched_double,
    "functional.hessian": lambda f, start: hessian(f, _fixed(start)),  # pyright: ignore[reportReturnType]
    "vectorized hessian": lambda f, start: hessian(f, _fixed(start), vectorize=True),  # pyright: ignore[reportReturnType]
    "forward over backward": _forward_of_backward,
    "func.hessian": lambda f, start: torch.func.hessian(f)(_fixed(start)),
    "grad of grad": lambda f, start: torch.func.grad(torch.func.grad(f))(_fixed(start)),
    "jacfwd of jacfwd": lambda f, start: torch.func.jacfwd(torch.func.jacfwd(f))(_fixed(start)),
    "jacrev of jacfwd": lambda f, start: torch.func.jacrev(torch.func.jacfwd(f))(_fixed(start)),
}
ROUTES = {**FIRST, **SECOND}


# ---- Cases: pairs, ways and truths.


class Case(NamedTuple):
    """P and Q as functions of one number, where it starts, and the first and second derivative of KL(P || Q) there."""

    name: str
    distributions: Callable[[Tensor], tuple[d.Distribution, d.Distribution]]
    start: float
    truth: Truth


def is_ordinary(pair: Pair, at: list[float]) -> bool:
    """Return whether parameters are of ordinary size, away from edges."""
    return all(1e-2 < abs(x) < 30 for x in at) and not pair.fixed(at) and pair.valid(at)


def case_of(name: str, way: str, at: list[float], truth: Truth) -> Case:
    """Return a pair of the audit whose parameters depend on one number."""
    pair = PAIRS[name]
    split, make = len(pair.p.parameters), WAYS[way](at, len(pair.p.parameters))

    def distributions(t: Tensor) -> tuple[d.Distribution, d.Distribution]:
        parameters = make(t)
        return pair.p.build(*parameters[:split]), pair.q.build(*parameters[split:])

    return Case(f"{name} {way}", distributions, start_of(way), truth)


def start_of(way: str) -> float:
    return REPEATED if way == "repeated" else 0.0


def truth_of(name: str, way: str, at: list[float]) -> Truth | None:
    """Return both derivatives of KL; None if it is infinite, has no formula, or the way does not suit the pair."""
    pair = PAIRS[name]
    split = len(pair.p.parameters)
    if way == "shared" and pair.p is not pair.q:
        return None
    make, start = WAYS[way](at, split), start_of(way)
    values, others = ([float(x) for x in make(_fixed(x))] for x in (start, start + 0.5))
    if not pair.valid(values):
        return None
    with mp.workdps(DIGITS):
        points = [
            [mpf(x) + k * STEP if x != other else mpf(x) for x, other in zip(values, others, strict=True)]
            for k in (-1, 0, 1)
        ]
        before, here, after = (pair.kl(point[:split], point[split:]) for point in points)
        if any(x is None or not mp.isfinite(x) for x in (before, here, after)):
            return None
        return float((after - before) / (2 * STEP)), float((after - 2 * here + before) / STEP**2)


def computed() -> Iterator[dict[str, Any]]:
    """Yield the parameters and derivatives of every pair of the audit that has a formula, by every way."""
    for name, (parameters, values, _) in pair_truths.load().items():
        pair = PAIRS[name]
        rows = zip(parameters.tolist(), values.tolist(), strict=True)
        at = next((at for at, value in rows if math.isfinite(value) and is_ordinary(pair, at)), None)
        if at is None or pair.integral:
            continue
        for way in WAYS:
            try:
                with pair_truths.limit(pair_truths.SECONDS):
                    truth = truth_of(name, way, at)
            except pair_truths.FAILURES:
                continue
            if truth is not None:
                yield {"name": name, "way": way, "at": at, "truth": truth}


def load() -> list[dict[str, Any]]:
    return json.loads(gzip.decompress(TRUTHS.read_bytes()))


def is_wrong(found: Tensor, true: float, order: int) -> bool:
    """Return whether a derivative of this order is not the true one."""
    relative, absolute = TOLERANCES[order]
    return not abs(float(found) - true) <= relative * abs(true) + absolute


def wrong_routes(f: Function, start: float, truth: Truth, names: Iterable[str]) -> list[str]:
    """Return the routes whose derivative is not the true one, with both numbers."""
    wrong: list[str] = []
    for name in names:
        order = 1 if name in FIRST else 2
        found = ROUTES[name](f, start)
        if is_wrong(found, truth[order - 1], order):
            wrong.append(f"{name}: {float(found)!r}, truth {truth[order - 1]!r}")
    return wrong


if __name__ == "__main__":
    TRUTHS.write_bytes(gzip.compress(json.dumps(list(computed())).encode(), mtime=0))
