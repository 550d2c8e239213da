"""The flat names of the numbers of a result."""

from __future__ import annotations

import math
from typing import Any

import pytest

from kullback.common.plain_values import flat_numbers

INF = math.inf


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"a": 1, "b": {"c": 2.5, "d": {"e": -INF}}}, {"a": 1, "b/c": 2.5, "b/d/e": -INF}),
        ({"a": None, "b": "Infinity", "c": {}, "d": []}, {}),
        ({"passed": True, "broken": False}, {"passed": 1, "broken": 0}),
        ({"interval": (0.5, INF)}, {"interval/lower": 0.5, "interval/upper": INF}),
        ({"interval": None}, {}),
        ({"value": [0.5]}, {"value": 0.5}),
        ({"value": [None]}, {}),
        ({"value": [0.5, None, 2]}, {"value/0": 0.5, "value/2": 2}),
        ({"columns": [{"name": "x", "psi": 1}, {"name": "y", "psi": 2}]}, {"columns/x/psi": 1, "columns/y/psi": 2}),
        ({"joint": [{"columns": ("x", "y"), "psi": 1}]}, {"joint/x,y/psi": 1}),
        ({"candidates": [{"model": {"name": "q4"}, "kl": 1}]}, {"candidates/q4/kl": 1}),
        ({"batches": [{"q_name": "a", "n": 1}, {"q_name": "a", "n": 2}]}, {"batches/0/n": 1, "batches/1/n": 2}),
        ({"worst": [{"row": 1, "kl": 0.5}], "bins": [{"label": "a", "p": 1.0}]}, {}),
        ({"mixed": [{"name": "x", "n": 1}, {"n": 2}]}, {}),
    ],
)  # fmt: skip
def test_numbers_have_their_paths_as_names(fields: Any, expected: dict[str, float]) -> None:
    numbers = flat_numbers(fields)
    assert numbers == expected
    assert [type(number) for number in numbers.values()] == [type(number) for number in expected.values()]


def test_nan_stays_a_float() -> None:
    assert math.isnan(flat_numbers({"standard_error": math.nan})["standard_error"])
