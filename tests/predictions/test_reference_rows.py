"""A reference file against a candidate's logits: certain bounds, unbiased estimates, and means with intervals."""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
from typing import Any

import mpmath
import pytest
import torch
from benchmarks import coverage_reference
from torch import Tensor

from kullback.errors import ArgumentTypeError, ArgumentValueError
from kullback.io import PartialRows
from kullback.partial_rows import summarize_rows
from kullback.predictions.mean_intervals import MeanEstimator
from kullback.predictions.reference_rows import (
    ReferenceRows,
    drawn_mean,
    join_rows,
    measure_reference,
    population_mean,
    row_estimates,
)

INF = math.inf
NAMES = ("kl_pq", "kl_qp", "js", "tv")


def logits_of(rows: int, classes: int, seed: int = 0, scale: float = 2.0) -> Tensor:
    return (
        torch.randn(rows, classes, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) * scale
    )


def block_of(
    logits: Tensor, top: int, draws: int, seed: int = 1, labels: Tensor | None = None
) -> PartialRows:
    uniforms = torch.rand(
        len(logits), draws, generator=torch.Generator().manual_seed(seed), dtype=torch.float64
    )
    labels = torch.zeros(len(logits), dtype=torch.int64) if labels is None else labels
    return exactly(summarize_rows(logits.double().clone(), labels, top=top, uniforms=uniforms), logits)


def exactly(block: PartialRows, logits: Tensor) -> PartialRows:
    """The same block without the rounding to float32."""
    log_probs = logits.double().log_softmax(-1)
    outside = log_probs.scatter(-1, block.top_indices.long(), -INF)
    drawn = log_probs.gather(-1, block.tail_indices.long())
    return dataclasses.replace(
        block,
        top_log_probs=log_probs.gather(-1, block.top_indices.long()),
        tail_log_probs=torch.where(block.tail_log_probs == -INF, -INF, drawn),
        tail_log_mass=outside.logsumexp(-1),
        label_log_probs=log_probs.gather(-1, block.labels[:, None])[:, 0],
    )


def true_values(base: Tensor, candidate: Tensor) -> dict[str, float]:
    """The four divergences of one row, at 50 digits."""
    with mpmath.workdps(50):
        sides = []
        for row in (base, candidate):
            weights = [mpmath.exp(x) for x in row.tolist()]
            total = mpmath.fsum(weights)
            sides.append([w / total for w in weights])

        def kl(p: list[Any], q: list[Any]) -> Any:
            return (
                mpmath.fsum(a * mpmath.log(a / b) for a, b in zip(p, q, strict=True) if a > 0)
                if all(b > 0 for a, b in zip(p, q, strict=True) if a > 0)
                else mpmath.inf
            )

        p, q = sides
        middle = [(a + b) / 2 for a, b in zip(p, q, strict=True)]
        return {
            "kl_pq": float(kl(p, q)),
            "kl_qp": float(kl(q, p)),
            "js": float((kl(p, middle) + kl(q, middle)) / 2),
            "tv": float(mpmath.fsum(abs(a - b) for a, b in zip(p, q, strict=True)) / 2),
        }


def estimator(clusters: Tensor | None = None) -> MeanEstimator:
    return MeanEstimator(1, 1000, None, clusters)


# --- rows


@pytest.mark.parametrize("top", [1, 3, 6])
def test_bounds_hold_in_every_row(top: int) -> None:
    base, candidate = logits_of(40, 8), logits_of(40, 8, 1)
    base[5, 2:4], candidate[6, 1], candidate[5, 2] = -INF, -INF, -INF
    rows = measure_reference(block_of(base, top, 4), candidate)
    for row in range(40):
        for name, value in true_values(base[row], candidate[row]).items():
            drawn = rows.divergences[name]
            assert float(drawn.bound[row]) <= value * (1 + 1e-12)
            assert value <= float(drawn.upper[row]) * (1 + 1e-12)


def enumerated(base: Tensor, candidate: Tensor, top: int, draws: int) -> tuple[ReferenceRows, Tensor]:
    """Every outcome of the draws of one row as a row, and its probability."""
    block = block_of(base[None], top, draws)
    log_probs = base.log_softmax(-1)
    tail = [i for i in range(len(base)) if i not in block.top_indices[0] and log_probs[i] > -INF]
    outcomes = torch.tensor(list(itertools.product(tail, repeat=draws)))
    many = dataclasses.replace(
        block,
        **{
            name: getattr(block, name).expand(len(outcomes), *getattr(block, name).shape[1:])
            for name in (
                "labels",
                "top_indices",
                "top_log_probs",
                "tail_log_mass",
                "label_log_probs",
                "support_sizes",
            )
        },
        tail_indices=outcomes.int(),
        tail_log_probs=log_probs[outcomes],
    )
    probability = (log_probs[outcomes] - block.tail_log_mass).exp().prod(-1)
    assert float(probability.sum()) == pytest.approx(1, abs=1e-12)
    return measure_reference(many, candidate.expand(len(outcomes), -1)), probability


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("draws", [1, 2])
@pytest.mark.parametrize("scale", [1e-4, 0.5, 3.0])
def test_estimates_are_unbiased_over_all_draws(name: str, draws: int, scale: float) -> None:
    base = logits_of(1, 7)[0]
    candidate = base + scale * logits_of(1, 7, 1)[0]
    value = true_values(base, candidate)[name]
    rows, probability = enumerated(base, candidate, 2, draws)
    drawn = rows.divergences[name]
    for factor in (0.0, 0.4, 1.0):
        estimate = drawn.bound + drawn.tail_term + factor * drawn.control
        mean = float((probability * estimate).sum())
        # Two of second order come from terms of first order, whose rounding counts.
        assert mean == pytest.approx(value, rel=1e-9, abs=1e-15)
        if draws == 2:
            variance, covariance, of_control = drawn.variances.unbind(-1)
            drawn_variance = float((probability * (estimate - mean) ** 2).sum())
            stated = float(
                (probability * (variance + 2 * factor * covariance + factor**2 * of_control)).sum()
            )
            assert stated == pytest.approx(
                drawn_variance, rel=1e-6, abs=1e-14 * float(drawn.variances.abs().max())
            )
    assert (drawn.tail_term + drawn.control >= -1e-15).all()
    assert drawn.variances.isnan().all() == (draws == 1)


@pytest.mark.parametrize("name", NAMES)
def test_third_moments_are_unbiased_over_all_draws(name: str) -> None:
    base, candidate = logits_of(1, 6)[0], logits_of(1, 6, 1)[0]
    rows, probability = enumerated(base, candidate, 2, 3)
    drawn = rows.divergences[name]
    for factor in (0.0, 0.4, 1.0):
        estimate = drawn.bound + drawn.tail_term + factor * drawn.control
        mean = (probability * estimate).sum()
        third = drawn.thirds @ torch.tensor([1.0, 3 * factor, 3 * factor**2, factor**3], dtype=torch.float64)
        want = float((probability * (estimate - mean) ** 3).sum())
        assert float((probability * third).sum()) == pytest.approx(want, rel=1e-6, abs=1e-12)


@pytest.mark.parametrize("name", ["kl_pq", "js", "tv"])
def test_classes_without_mass_leave_estimates_unbiased_without_the_control(name: str) -> None:
    base, candidate = logits_of(1, 8)[0], logits_of(1, 8, 1)[0]
    base[base.argsort()[:3]] = -INF
    rows, probability = enumerated(base, candidate, 2, 2)
    drawn = rows.divergences[name]
    assert not rows.has_whole_support.any()
    assert float((probability * (drawn.bound + drawn.tail_term)).sum()) == pytest.approx(
        true_values(base, candidate)[name], rel=1e-9
    )
    values, _, _, _ = row_estimates(rows, name)
    assert torch.equal(values, drawn.bound + drawn.tail_term)


def test_infinities_that_are_certain() -> None:
    base = torch.tensor([[3.0, 2.0, 1.0, 0.0, -1.0]] * 4, dtype=torch.float64)
    candidate = base.clone()
    candidate[0, 0] = -INF  # in the top
    candidate[1, 4] = -INF  # by the number of classes with mass, drawn or not
    base[2, 4] = -INF  # the candidate has mass where the base has none
    candidate[3, 2:] = -INF  # no tail
    rows = measure_reference(block_of(base, 2, 1, seed=3), candidate)
    assert rows.divergences["kl_pq"].bound.isinf().tolist() == [True, True, False, True]
    assert rows.divergences["kl_qp"].bound.isinf().tolist() == [False, False, True, False]
    for name in NAMES:
        for each in rows.divergences[name]:
            assert not each[..., :2].isnan().any() or each.ndim == 2
    unknown = dataclasses.replace(
        block_of(base, 2, 40, seed=3), support_sizes=torch.zeros(4, dtype=torch.int32)
    )
    found = measure_reference(unknown, candidate).divergences
    assert found["kl_pq"].bound.isinf().tolist() == [True, True, False, True]  # class 4 was drawn
    assert found["kl_qp"].bound.isfinite().all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rows_do_not_depend_on_the_blocks(dtype: torch.dtype) -> None:
    base = logits_of(9, 11).to(dtype)
    candidate = (base + logits_of(9, 11, 1)).to(dtype)
    block = block_of(base, 3, 4)
    whole = measure_reference(block, candidate)
    parts = [measure_reference(block[rows], candidate[rows]) for rows in (slice(0, 2), slice(2, 9))]
    joined = join_rows(parts)
    assert len(joined) == 9
    for name in NAMES:
        for a, b in zip(whole.divergences[name], joined.divergences[name], strict=True):
            torch.testing.assert_close(a, b, rtol=1e-13, atol=1e-15)
    assert torch.equal(whole.spread, joined.spread)


def test_logits_that_do_not_fit() -> None:
    block = block_of(logits_of(2, 5), 2, 2)
    for wrong, error, message in (
        (torch.zeros(2, 4), ArgumentValueError, r"shape \(2, 5\); got shape \(2, 4\)"),
        (torch.zeros(2, 5).long(), ArgumentTypeError, r"floating-point.*got torch.int64"),
        ([[0.0]], ArgumentTypeError, r"got list"),
        (torch.tensor([[0.0] * 5, [0.0, math.nan, 0.0, 0.0, 0.0]]), ArgumentValueError, r"got nan in row 1"),
        (torch.tensor([[0.0] * 5, [-INF] * 5]), ArgumentValueError, r"got -inf in row 1"),
    ):
        with pytest.raises(error, match=message):
            measure_reference(block, wrong)  # type: ignore[arg-type]


# --- means


def close_rows(
    rows: int = 128, noise: float = 0.1, draws: int = 8, seed: int = 1
) -> tuple[ReferenceRows, dict[str, float]]:
    base = logits_of(rows, 50)
    candidate = base + noise * logits_of(rows, 50, 1)
    true = coverage_reference.truth(base, candidate)
    return measure_reference(block_of(base, 4, draws, seed), candidate), {
        k: float(v.mean()) for k, v in true.items()
    }


def test_the_factor_of_a_row_does_not_depend_on_its_own_draws() -> None:
    rows, _ = close_rows()
    drawn = rows.divergences["kl_pq"]
    before = row_estimates(rows, "kl_pq")[0] - drawn.bound - drawn.tail_term
    changed_rows = rows.spread.argsort()[::2][:9]
    factor = before / drawn.control
    new = [x.clone() for x in drawn]
    new[3][changed_rows] *= 3
    new[4][changed_rows] *= torch.tensor([1.0, 3.0, 9.0])
    other = dataclasses.replace(rows)
    other.divergences["kl_pq"] = type(drawn)(*new)
    after = (row_estimates(other, "kl_pq")[0] - drawn.bound - drawn.tail_term) / new[3]
    torch.testing.assert_close(after[changed_rows], factor[changed_rows])
    assert not torch.allclose(after, factor)
    assert (factor > 0.9).double().mean() > 0.9


@pytest.mark.heavy
@pytest.mark.parametrize("name", NAMES)
def test_intervals_hold_the_mean_of_all_classes(name: str) -> None:
    held = 0
    for seed in range(40):
        rows, true = close_rows(seed=seed + 10)
        found = drawn_mean(rows, name)
        low, high = found.interval
        assert found.bounds[0] <= low <= found.mean <= high <= found.bounds[1]
        held += low <= true[name] <= high
        # The tail holds a third of the divergence, and the draws tell it to a few percent.
        assert found.standard_error < 0.05 * true[name]
        assert found.bounds[0] < 0.9 * true[name]
    assert held >= 35


def test_the_reverse_direction_is_open_where_the_ratios_are_heavy_tailed() -> None:
    rows, true = close_rows(noise=2.0)
    found = drawn_mean(rows, "kl_qp")
    assert found.interval[1] == INF
    assert found.interval[0] <= true["kl_qp"]
    assert population_mean(rows, "kl_qp", estimator()).interval[1] == INF  # type: ignore[index]
    closed, _ = close_rows(noise=0.01)
    assert drawn_mean(closed, "kl_qp").interval[1] < INF


def test_without_a_tail_means_are_exact_and_without_draws_bounds_remain() -> None:
    base, candidate = logits_of(20, 6), logits_of(20, 6, 1)
    true = {k: float(v.mean()) for k, v in coverage_reference.truth(base, candidate).items()}
    for top in (5, 6):
        rows = measure_reference(block_of(base, top, 3), candidate)
        for name in NAMES:
            found = drawn_mean(rows, name)
            assert found.mean == pytest.approx(true[name], rel=1e-12)
            assert (found.standard_error, found.interval) == (0.0, (found.mean, found.mean))
    for draws in (0, 1):
        rows = measure_reference(block_of(base, 2, draws), candidate)
        for name in NAMES:
            found = drawn_mean(rows, name)
            assert found.interval == found.bounds
            assert math.isnan(found.standard_error)
            assert math.isnan(found.mean) == (draws == 0)
            assert found.bounds[0] <= true[name] <= found.bounds[1]


def test_toward_a_long_tail_of_the_drawing_the_interval_ends_at_the_bound() -> None:
    # One class in a thousand decides the tail of each row: JS is far below what most draws say.
    base = torch.zeros(40, 1002, dtype=torch.float64)
    base[:, 0] = 5.0
    candidate = base.clone()
    candidate[:, 2:] = -20.0
    rows = measure_reference(block_of(base, 1, 16), candidate)
    for name in ("js", "tv"):
        found = drawn_mean(rows, name)
        assert found.interval == found.bounds
        true = float(coverage_reference.truth(base, candidate)[name].mean())
        assert found.interval[0] <= true <= found.interval[1]


def test_draws_that_all_agree_do_not_close_the_interval() -> None:
    base = torch.tensor([[5.0, 1.0, -20.0, -20.0]], dtype=torch.float64)
    candidate = torch.tensor([[5.0, 1.0, -20.0, -9.0]], dtype=torch.float64)
    found = drawn_mean(measure_reference(block_of(base, 1, 8), candidate), "kl_pq")
    assert found.interval == found.bounds
    assert math.isnan(found.standard_error)


def test_an_infinite_row_makes_the_mean_infinite() -> None:
    base, candidate = logits_of(20, 6), logits_of(20, 6, 1)
    candidate[3, base[3].argmax()] = -INF
    rows = measure_reference(block_of(base, 2, 4), candidate)
    assert drawn_mean(rows, "kl_pq").mean == INF
    assert drawn_mean(rows, "kl_pq").interval == (INF, INF)
    assert population_mean(rows, "kl_pq", estimator()).standard_error == INF
    assert math.isfinite(drawn_mean(rows, "js").mean)


def test_a_population_is_less_certain_than_its_rows() -> None:
    rows, true = close_rows()
    drawn, of_all = drawn_mean(rows, "kl_pq"), population_mean(rows, "kl_pq", estimator())
    assert of_all.standard_error > 3 * drawn.standard_error
    assert of_all.interval is not None
    assert of_all.interval[0] < true["kl_pq"] < of_all.interval[1]
    clustered = population_mean(rows, "kl_pq", estimator(torch.arange(128) // 32))
    assert (clustered.interval, clustered.reason) == (None, "few units")


def test_the_study_measures_what_it_says() -> None:
    case = coverage_reference.CASES[1]._replace(classes=300)
    found = coverage_reference.study(case, (8,), rows=48, drawings=40)
    by_name = {each["divergence"]: each for each in found}
    assert by_name["kl_pq"]["covers"] >= 85
    assert abs(by_name["kl_pq"]["bias"]) < 0.05
    assert by_name["kl_pq"]["bound"] < 0.9
    lines = coverage_reference.table(found).split("\n")
    assert lines[2].startswith("| normal | noise 0.3 | 300 | 8 | ")


def test_the_committed_study_of_few_windows_covers_and_is_seldom_open() -> None:
    results = json.loads(coverage_reference.WINDOWS_RESULT.read_text())
    assert {each["windows"] for each in results} == {12, 20, 40}
    for each in results:
        assert each["covers"] >= coverage_reference.LEAST - 2 * math.sqrt(93 * 7 / each["samples"]), each
        assert each["open"] <= 10, each
        line = f"{each['covers']:.1f} | {each['open']:.0f} | {each['half_width']:.2g} |"
        assert line in coverage_reference.PAGE.read_text(encoding="utf-8")
