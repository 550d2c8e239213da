"""Moments and quantiles gathered block by block agree with one pass over all values, and with exact arithmetic."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st

from kullback.common.streaming import Moments, QuantileSketch, merge_moments
from kullback.errors import ArgumentValueError

INF = math.inf
on_the_grid = st.floats(1e-15, 1e39)
values_in_blocks = st.lists(st.lists(on_the_grid | st.just(0.0), max_size=8), min_size=1, max_size=6)


def gathered(blocks):
    moments, sketch = Moments(), QuantileSketch()
    for block in blocks:
        values = torch.as_tensor(block, dtype=torch.float64)
        moments.add(values)
        sketch.add(values)
    return moments, sketch


def exact_moments(values):
    numbers = [Fraction(float(v)) for v in values]
    mean = sum(numbers) / len(numbers)
    return mean, sum((x - mean) ** 2 for x in numbers) / (len(numbers) - 1)


# Moments


@given(values_in_blocks)
def test_moments_of_blocks_are_those_of_exact_arithmetic(blocks):
    values = [v for block in blocks for v in block]
    moments, _ = gathered(blocks)
    assert moments.count == len(values)
    if len(values) >= 2:
        mean, variance = exact_moments(values)
        assert float(moments.mean) == pytest.approx(float(mean), rel=1e-14)
        assert float(moments.sum) == pytest.approx(math.fsum(values), rel=1e-14)
        assert float(moments.variance) == pytest.approx(
            float(variance), rel=1e-12, abs=1e-28 * float(mean) ** 2
        )
        assert float(moments.standard_error) == pytest.approx(
            math.sqrt(variance / len(values)), rel=1e-12, abs=1e-14 * float(mean)
        )


def test_the_spread_of_values_that_differ_little_is_kept():
    values = 0.5 + 1e-9 * torch.rand(4000, dtype=torch.float64)
    moments, _ = gathered(values.split(7))
    _, variance = exact_moments(values)
    assert float(moments.variance) == pytest.approx(float(variance), rel=1e-6)


@pytest.mark.sweep
def test_many_small_updates_lose_no_digits():
    value = torch.tensor([0.1], dtype=torch.float32)
    moments = Moments()
    for _ in range(5000):
        moments.add(value)
    assert float(moments.sum) == pytest.approx(5000 * float(value), rel=1e-13)
    assert float(moments.standard_error) < 1e-14


@pytest.mark.sweep
@given(values_in_blocks, values_in_blocks)
def test_merging_moments_is_seeing_all_values(left, right):
    merged = Moments(merge_moments(torch.stack([gathered(side)[0].state for side in (left, right)])))
    whole, _ = gathered(left + right)
    scale = float(whole.sum) ** 2
    torch.testing.assert_close(merged.state[:2], whole.state[:2], rtol=1e-14, atol=0)
    torch.testing.assert_close(merged.state[2], whole.state[2], rtol=1e-12, atol=1e-28 * scale)


def test_moments_of_too_few_values_are_not_numbers():
    moments = Moments()
    assert moments.count == 0
    assert math.isnan(moments.mean)
    assert math.isnan(moments.standard_error)
    moments.add(torch.tensor([2.0]))
    assert float(moments.mean) == 2.0
    assert math.isnan(moments.standard_error)


@pytest.mark.parametrize("blocks", [[[INF, 1.0]], [[1.0, 2.0], [INF]], [[INF], [INF]], [[], [INF], [0.0]]])
def test_an_infinite_value_makes_mean_and_error_infinite(blocks):
    moments, _ = gathered(blocks)
    assert float(moments.mean) == INF
    assert float(moments.standard_error) == INF


def test_the_gradient_flows_through_the_mean_past_an_infinite_value():
    values = torch.tensor([1.0, INF, 3.0], dtype=torch.float64, requires_grad=True)
    moments = Moments()
    moments.add(values)
    moments.mean.backward()
    torch.testing.assert_close(values.grad, torch.full((3,), 1 / 3, dtype=torch.float64))


def test_states_of_several_processes_merge_at_once():
    parts = torch.rand(5, 3, 4, dtype=torch.float64).exp()
    merged = Moments(merge_moments(torch.stack([gathered([part])[0].state for part in parts])))
    assert merged.count == 60
    torch.testing.assert_close(merged.mean, parts.mean())
    torch.testing.assert_close(merged.standard_error, parts.std() / 60**0.5)


def test_half_precision_values_are_added_in_double():
    moments = Moments()
    for _ in range(3):
        moments.add(torch.full((1000,), 0.1, dtype=torch.float16))
    assert float(moments.sum) == pytest.approx(3000 * float(torch.tensor(0.1).half()), rel=1e-13)


# Quantiles

PROBABILITIES = [0.0, 0.001, 0.1, 0.25, 0.5, 0.9, 0.99, 0.999, 1.0]


@given(st.lists(on_the_grid | st.just(0.0), min_size=1, max_size=60))
def test_quantiles_are_within_the_promised_error_of_the_exact_ones(values):
    _, sketch = gathered([values])
    exact = np.quantile(values, PROBABILITIES)
    np.testing.assert_allclose(sketch.quantile(PROBABILITIES), exact, rtol=0.005 * (1 + 1e-9), atol=1e-300)


def test_quantiles_of_many_values_are_within_the_promised_error():
    values = torch.randn(200_000, dtype=torch.float64).mul(3).sub(4).exp()
    _, sketch = gathered(values.split(997))
    exact = np.quantile(values.numpy(), PROBABILITIES)
    np.testing.assert_allclose(sketch.quantile(PROBABILITIES), exact, rtol=0.005 * (1 + 1e-9))


def test_the_promised_error_is_used_to_the_full():
    values = torch.linspace(1.0, 2.0, 5001, dtype=torch.float64)
    _, sketch = gathered([values])
    exact = np.quantile(values.numpy(), PROBABILITIES)
    errors = np.abs(sketch.quantile(PROBABILITIES).numpy() / exact - 1)
    assert 0.003 < errors.max() <= 0.005


@pytest.mark.sweep
@given(values_in_blocks, values_in_blocks)
def test_merging_sketches_is_seeing_all_values(left, right):
    first, second, whole = (gathered(blocks)[1] for blocks in (left, right, left + right))
    assert torch.equal(whole.counts, first.counts + second.counts)
    assert torch.equal(whole.minimum, torch.minimum(first.minimum, second.minimum))
    assert torch.equal(whole.maximum, torch.maximum(first.maximum, second.maximum))


@given(st.lists(on_the_grid, min_size=1, max_size=30))
def test_quantiles_rise_from_the_exact_minimum_to_the_exact_maximum(values):
    _, sketch = gathered([values])
    found = sketch.quantile(torch.linspace(0, 1, 41))
    assert (float(found[0]), float(found[-1])) == (min(values), max(values))
    assert bool((found.diff() >= -1e-15 * found[1:]).all())


@pytest.mark.parametrize(
    ("values", "probabilities", "expected"),
    [
        ([0.0, 0.0, 0.0], [0.0, 0.5, 1.0], [0.0, 0.0, 0.0]),
        ([0.0, 0.0, INF], [0.5, 0.51, 1.0], [0.0, INF, INF]),
        ([INF, INF], [0.0, 0.3, 1.0], [INF, INF, INF]),
        ([1e-20, 1e-20, 1e-20], [0.0, 0.5, 1.0], [1e-20, 1e-20, 1e-20]),  # below the grid
        ([5e40, 6e40, 7e40], [0.0, 0.5, 1.0], [5e40, math.nan, 7e40]),  # above the grid
        ([5e40, 5e40, 5e40], [0.0, 0.5, 1.0], [5e40, 5e40, 5e40]),
        ([1.0, 5e40, 6e40, INF], [0.2, 0.5, 1.0], [math.nan, math.nan, INF]),
        ([3.0], [0.0, 0.2, 1.0], [3.0, 3.0, 3.0]),
        ([], [0.0, 0.5], [math.nan, math.nan]),
        (
            [*[1.0] * 9, INF, INF],
            [0.8, 0.9],
            [1.0, INF],
        ),  # a rank that is whole takes nothing from the next value
    ],
)
def test_quantiles_at_the_edges(values, probabilities, expected):
    _, sketch = gathered([values])
    np.testing.assert_array_equal(sketch.quantile(probabilities), expected)


def test_infinite_values_are_counted():
    _, sketch = gathered([[1.0, INF], [INF, 1e300]])
    assert (sketch.count, int(sketch.counts[-1])) == (4, 2)


def test_the_size_of_a_sketch_does_not_grow():
    sketch = QuantileSketch()
    size = sketch.counts.shape
    sketch.add(torch.rand(100_000))
    assert sketch.counts.shape == size
    assert sketch.counts.dtype == torch.int64


def test_a_single_probability_gives_a_single_quantile():
    _, sketch = gathered([[1.0, 2.0]])
    assert sketch.quantile(1.0).shape == ()
    assert sketch.quantile(torch.zeros(2, 3)).shape == (2, 3)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (
            lambda s: s.add(torch.tensor([1.0, -0.5, math.nan])),
            "2 of 3 that are negative or NaN, first -0.5 at position 1",
        ),
        (lambda s: s.quantile([0.5, 1.5]), r"numbers from 0 to 1; got \[0.5, 1.5\]"),
        (lambda s: s.quantile(math.nan), "numbers from 0 to 1"),
    ],
)
def test_what_cannot_be_is_refused(call, words):
    sketch = QuantileSketch()
    with pytest.raises(ArgumentValueError, match=words):
        call(sketch)
    assert sketch.count == 0
