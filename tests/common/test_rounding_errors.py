"""Numbers that differ by rounding errors only become equal, in every unit; continuous draws stay as they are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from kullback.common.rounding_errors import without_rounding_errors

Array = np.ndarray[Any, np.dtype[Any]]

RECORDS: dict[str, Callable[[np.random.Generator], Array]] = {
    "normal": lambda rng: rng.standard_normal(400),
    "far from 0": lambda rng: 1e6 + 50 * rng.standard_normal(400),
    "tiny": lambda rng: 1e-200 * rng.standard_normal(400),
    "huge": lambda rng: 1e300 * rng.standard_normal(400),
    "lognormal": lambda rng: np.exp(3 * rng.standard_normal(400)),
    "Cauchy": lambda rng: rng.standard_cauchy(400),
}


def test_copies_with_noise_become_equal() -> None:
    for name, draw in RECORDS.items():
        rng = np.random.default_rng(1)
        records = draw(rng)
        for noise in (0.0, 1e-15, 1e-12):
            copies = np.repeat(records, 3) * (1 + noise * rng.standard_normal(1200))
            order = rng.permutation(1200)
            equal = without_rounding_errors(copies[order])
            codes = np.empty(1200, dtype=int)
            codes[order] = np.unique(equal, return_inverse=True)[1]
            assert (codes.reshape(-1, 3) == codes[::3, None]).all(), (name, noise)
            assert len(np.unique(codes)) == len(np.unique(records)), (name, noise)
            assert np.isin(equal, copies).all(), (name, noise)


def test_copies_in_single_precision_become_equal_up_to_its_last_places() -> None:
    rng = np.random.default_rng(2)
    copies = (np.repeat(rng.standard_normal(300), 3) * (1 + 6e-8 * rng.standard_normal(900))).astype(
        np.float32
    )
    assert len(np.unique(copies)) > 500
    assert abs(len(np.unique(without_rounding_errors(copies.astype(float)))) - 300) < 10


CONTINUOUS: dict[str, Callable[[np.random.Generator, int], Array]] = {
    "normal": lambda rng, n: rng.standard_normal(n),
    "single precision": lambda rng, n: rng.standard_normal(n).astype(np.float32).astype(float),
    "half precision": lambda rng, n: rng.standard_normal(n).astype(np.float16).astype(float),
    "lognormal": lambda rng, n: np.exp(10 * rng.standard_normal(n)),
    "Cauchy": lambda rng, n: rng.standard_cauchy(n),
    "a pole at 0": lambda rng, n: rng.standard_normal(n) ** 5,
    "rounded": lambda rng, n: rng.standard_normal(n).round(2),
    "zero or more": lambda rng, n: np.maximum(rng.standard_normal(n), 0),
    "an infinite one": lambda rng, n: np.append(rng.standard_normal(n - 1), np.inf),
    "constant": lambda rng, n: np.full(n, rng.random()),
}


def test_other_numbers_are_unchanged() -> None:
    for name, draw in CONTINUOUS.items():
        for n in (1, 2, 100, 30_000):
            x = draw(np.random.default_rng(3), n)
            assert without_rounding_errors(x) is x, (name, n)
