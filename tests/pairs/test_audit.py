"""Every pair of distributions against mpmath: more than 20,000 cases, values and gradients, in float64 and float32."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch

from tests.oracles.audit import Measured, cases_in, measure, own_divergence
from tests.oracles.pair_truths import differs, load, truth
from tests.oracles.pairs import PAIRS

TRUTHS = load()
DTYPES = (torch.float64, torch.float32)
SAMPLE = 40
REFUSALS = 0.1  # of a pair's cases may end in a ConvergenceError: at extreme parameters an integral may be out of reach


def describe(name: str, dtype: torch.dtype, measured: Measured) -> list[str]:
    """The worst failing cases of a pair, one line each."""
    pair = PAIRS[name]
    parameters, value, gradient = TRUTHS[name]
    worst = np.maximum(measured.value_ratio, measured.gradient_ratio)
    lines = []
    for i in [i for i in np.argsort(-worst) if worst[i] > 1][:5]:
        at = parameters[measured.index[i]].tolist()
        split = len(pair.p.parameters)
        p, q = (
            f"{family.name}({', '.join(f'{k}={x!r}' for k, x in zip(family.parameters, part, strict=True))})"
            for family, part in ((pair.p, at[:split]), (pair.q, at[split:]))
        )
        line = f"{p} | {q} in {dtype}: {measured.value[i]!r}, truth {value[measured.index[i]]!r}"
        if measured.gradient_ratio[i] > 1:
            line += (
                f"; gradient {measured.gradient[i].tolist()}, truth {gradient[measured.index[i]].tolist()}"
            )
        lines.append(line)
    return [f"{int(measured.failing.sum())} of {len(measured.index)} cases fail"] * bool(lines) + lines


@pytest.mark.parametrize("name", PAIRS)
def test_values_and_gradients_are_right(name: str) -> None:
    faults: list[str] = []
    for dtype in DTYPES:
        measured = measure(PAIRS[name], TRUTHS[name], dtype, own_divergence)
        if measured.failing.any():
            faults += describe(name, dtype, measured)
        if measured.refused.sum() > REFUSALS * len(measured.index):
            faults.append(f"{int(measured.refused.sum())} of {len(measured.index)} cases are refused")
    assert not faults, "\n".join([name, *faults])


def test_the_audit_has_all_pairs_and_enough_cases() -> None:
    assert set(TRUTHS) == set(PAIRS)
    cases = [len(cases_in(dtype, TRUTHS[name][0])) for dtype in DTYPES for name in PAIRS]
    assert sum(cases) >= 20_000
    assert all(len(TRUTHS[name][0]) for name in PAIRS)


def test_a_sample_of_the_truths_comes_out_again() -> None:
    rng = random.Random(0)  # noqa: S311
    names = [name for name in PAIRS if not PAIRS[name].integral]
    for name in rng.choices(names, k=SAMPLE):
        parameters, values, gradients = TRUTHS[name]
        i = rng.randrange(len(values))
        assert differs(PAIRS[name], parameters[i].tolist(), float(values[i]), gradients[i]) is None, name


def test_a_derivative_below_what_its_difference_quotient_resolves_counts_as_0() -> None:
    pair, at = PAIRS["ContinuousBernoulli|Uniform"], [0.5, -1.96e-28, 1.0]
    value, gradient = truth(pair, at)
    assert differs(pair, at, value, np.array(gradient)) is None
    assert differs(pair, at, value, np.array([1e-150, *gradient[1:]])) is None
    assert differs(pair, at, value, np.array([1e-50, *gradient[1:]])) is not None
