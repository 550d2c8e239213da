"""Closed forms at the ends of the range of floats: scales of 1e-300 to 1e300, subnormal ones, tiny and huge shapes.

A value or derivative that the dtype can hold comes out right, one beyond its range infinite with the right sign, and
none NaN.
"""

from __future__ import annotations

import math
import random

import numpy as np
import pytest
import torch
from torch.distributions import Cauchy, Distribution, Geometric, StudentT

from kullback import KL, TotalVariation, divergence as divergence_of, kl_divergence
from tests.oracles import end_truths
from tests.oracles.audit import GRADIENT, INPUT, Divergence, evaluate, largest, tiny
from tests.oracles.families import log_uniform
from tests.oracles.pairs import PAIRS

TRUTHS = end_truths.load()
DTYPES = {"float64": torch.float64, "float32": torch.float32}
VALUE = {torch.float64: 1e-10, torch.float32: 1e-5}
# Logarithms of up to 1400 in a sum that may be small.
LOGARITHMS = 1e-13
# A formula may say +inf from here on.
OVERFLOW = 8e307


def divergence(p: Distribution, q: Distribution) -> tuple[torch.Tensor, None]:
    return kl_divergence(p, q), None


def faults(
    name: str, dtype: torch.dtype, truth: end_truths.Truth, divergence: Divergence = divergence
) -> list[str]:
    parameters, values, gradients, changes = truth
    ours, derivatives, _ = evaluate(PAIRS[name], parameters, dtype, divergence)
    found: list[str] = []
    columns = (parameters, values, gradients, changes, ours, derivatives)
    for at, value, gradient, change, our, our_gradient in zip(*(x.tolist() for x in columns), strict=True):
        units = PAIRS[name].units(at)
        wrong = (
            []
            if is_right(our, value, VALUE[dtype], INPUT * min(change, 1e308) + LOGARITHMS, dtype)
            else ["value"]
        )
        for i, (ours_i, true, unit) in enumerate(zip(our_gradient, gradient, units, strict=True)):
            known = not math.isnan(true) and abs(value) < min(largest(dtype), OVERFLOW)
            if math.isnan(ours_i) and not math.isnan(true):
                wrong.append(f"derivative {i} is NaN")
            elif known and not is_right(
                ours_i, true, GRADIENT[dtype], INPUT * min(change, 1e308) / unit, dtype
            ):
                wrong.append(f"derivative {i}")
        if wrong:
            found.append(f"{at}: {our}, truth {value}; {our_gradient}, truth {gradient}: {', '.join(wrong)}")
    return found


def is_right(ours: float, true: float, relative: float, absolute: float, dtype: torch.dtype) -> bool:
    """Tell whether a number is right, or infinite with the right sign where the dtype does not hold the true one."""
    if not abs(true) < min(largest(dtype), OVERFLOW):
        return ours == true or (math.isinf(ours) and (ours > 0) == (true > 0))
    return abs(ours - true) <= relative * abs(true) + absolute + tiny(dtype)


@pytest.mark.parametrize(("name", "dtype"), TRUTHS)
def test_ends_of_the_range(name: str, dtype: str) -> None:
    wrong = faults(name, DTYPES[dtype], TRUTHS[name, dtype])
    assert not wrong, "\n".join([f"{len(wrong)} of {len(TRUTHS[name, dtype][1])} cases", *wrong[:5]])


def single(x: float) -> torch.Tensor:
    return torch.tensor(x, dtype=torch.float64, requires_grad=True)


@pytest.mark.sweep
@pytest.mark.parametrize("unit", [1e-320, 1e-300, 1e-120, 1e120, 1e300])
def test_numbers_and_integrals_have_no_unit(unit: float) -> None:
    for kind in (KL(), TotalVariation()):
        for family, shapes in ((StudentT, (3.0, 4.0)), (Cauchy, None)):
            found: list[list[float]] = []
            for scale in (unit, 1.0):
                scales = [single(scale), single(float(f"{2 * scale:.3g}"))]
                given = [()] * 2 if shapes is None else [(single(shape),) for shape in shapes]
                p, q = (family(*x, single(0.0), s) for x, s in zip(given, scales, strict=True))
                value = kl_divergence(p, q) if isinstance(kind, KL) else divergence_of(p, q, kind)
                by = torch.autograd.grad(value, scales)
                found.append([value.item(), *(x.item() for x in by)])
            assert found[0][0] == pytest.approx(found[1][0], rel=1e-3 if unit < 1e-307 else 1e-9)
            for ours, true in zip(found[0][1:], found[1][1:], strict=True):
                if unit < 1e-307:
                    assert ours == math.copysign(math.inf, true)
                else:
                    assert ours * unit == pytest.approx(true, rel=1e-7)


def test_geometric_with_subnormal_probabilities() -> None:
    p, q = single(5e-324), single(1.5e-323)
    value = kl_divergence(Geometric(p), Geometric(q))
    assert value.item() == pytest.approx(2 - math.log(3), rel=1e-12)
    assert torch.autograd.grad(value, (p, q)) == (-math.inf, math.inf)


def test_there_are_enough_cases_of_every_kind() -> None:
    assert sum(len(values) for _, values, _, _ in TRUTHS.values()) >= 6000
    assert {name for name, _ in TRUTHS} == set(end_truths.closed_forms())


def test_a_sample_of_the_truths_comes_out_again() -> None:
    rng = random.Random(0)  # noqa: S311
    names = [key for key in TRUTHS if not any(word in key[0] for word in ("Gamma", "Beta", "Chi2", "Fisher"))]
    for name, dtype in rng.choices(names, k=12):
        parameters, values, gradients, _ = TRUTHS[name, dtype]
        i = rng.randrange(len(values))
        found = end_truths.truth(PAIRS[name], parameters[i].tolist())
        assert found is not None, name
        assert found[0] == pytest.approx(values[i], rel=1e-13), (name, parameters[i])
        known = [
            (x, y)
            for x, y in zip(found[1], gradients[i], strict=True)
            if not (math.isnan(x) or math.isnan(y))
        ]
        assert [x for x, _ in known] == pytest.approx([y for _, y in known], rel=1e-12, abs=1e-300)


KUMARASWAMY = [name for name, pair in PAIRS.items() if name.startswith("Kumaraswamy|") and not pair.integral]


@pytest.mark.sweep
@pytest.mark.parametrize("name", KUMARASWAMY)
def test_shapes_of_kumaraswamy_down_to_1e_25(name: str) -> None:
    """X^a is Beta(1, b): with 1 / a of 1e25, what 1 + b rounds away would be wrong by percents."""
    pair, rng = PAIRS[name], random.Random(name)  # noqa: S311
    rows: list[tuple[list[float], float, list[float], float]] = []
    for _ in range(8):
        shapes = [log_uniform(1e-25, 10, rng), log_uniform(1e-25, 10, rng)]
        q = [0.0, 1.0] if pair.q.name == "Uniform" else pair.q.draw(rng, False)
        if pair.valid([*shapes, *q]) and (found := end_truths.truth(pair, [*shapes, *q])) is not None:
            rows.append(([*shapes, *q], *found))
    parameters, values, gradients, changes = (np.array(column) for column in zip(*rows, strict=True))
    assert not faults(name, torch.float64, (parameters, values, gradients, changes))
