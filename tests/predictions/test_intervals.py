"""Intervals of means: against formulas and brute force, their coverage on simulated cases, and where they are open."""

from __future__ import annotations

import io
import json
import math
from pathlib import Path

import numpy as np
import pytest
import scipy.stats
import torch
from benchmarks import coverage_predictions as study
from rich.console import Console

from kullback.cli.gates import Side, judge_comparison, parse_gate
from kullback.common.inference import wilson_interval
from kullback.predictions import Comparison, compare_predictions
from kullback.predictions.mean_intervals import (
    FEWEST_UNITS,
    GROUPS,
    MeanEstimate,
    MeanEstimator,
    RatioOfSums,
)
from kullback.report import html, json as report_json, markdown, terminal
from kullback.representations import Probs
from tests.report.media import brief


def estimate(values, quantity: RatioOfSums, draws: int = 1000, clusters=None, seed: int = 0) -> MeanEstimate:
    table = torch.from_numpy(np.asarray(values, dtype=float).reshape(len(values), -1))
    numbers = None if clusters is None else torch.as_tensor(clusters)
    estimator = MeanEstimator(table.shape[1], draws, torch.Generator().manual_seed(seed), numbers)
    for part in table.split(4096):
        estimator.add(part)
    return estimator.estimates([quantity])[0]


MEANING = (Path(__file__).parents[2] / "docs" / "intervals.md").read_text(encoding="utf-8")
NONNEGATIVE, SIGNED = RatioOfSums(0, low=0.0), RatioOfSums(0)
BINARY = RatioOfSums(0, low=0.0, high=1.0, binary=True)


def test_the_studentized_bootstrap_is_that_of_a_plain_loop():
    """Symmetric draws: the interval is that of the loop, or Student's t where that is wider."""
    random = np.random.default_rng(1)
    values = random.normal(size=60)
    ratios = []
    for _ in range(4000):
        drawn = random.choice(values, 60)
        ratios.append((drawn.mean() - values.mean()) / (drawn.std(ddof=1) / math.sqrt(60)))
    error = values.std(ddof=1) / math.sqrt(60)
    student = scipy.stats.t.ppf(0.975, 59)
    low = values.mean() - max(np.quantile(ratios, 0.975), student) * error
    high = values.mean() + max(-np.quantile(ratios, 0.025), student) * error
    ours = estimate(values, SIGNED, 4000)
    assert ours.standard_error == pytest.approx(error, rel=1e-12)
    assert ours.interval == pytest.approx((low, high), abs=0.05 * (high - low))


def test_an_interval_scales_with_its_values_and_mirrors_with_their_sign():
    values = np.random.default_rng(2).standard_t(5, 50)
    once, scaled, mirrored = (estimate(factor * values, SIGNED).interval for factor in (1, 1e-9, -1))
    assert scaled == pytest.approx(tuple(1e-9 * end for end in once), rel=1e-9)
    assert mirrored == pytest.approx((-once[1], -once[0]), abs=0.1 * (once[1] - once[0]))


def test_more_units_than_groups_give_the_same_interval():
    values = np.random.default_rng(5).exponential(size=3 * GROUPS)
    low, high = estimate(values, NONNEGATIVE).interval
    error = values.std() / math.sqrt(len(values))
    assert (high - low) / 2 == pytest.approx(1.96 * error, rel=0.08)
    assert (high + low) / 2 == pytest.approx(values.mean(), abs=0.3 * error)


CASES = {case.name: case for case in study.CASES}
# The standard deviation of the logarithm of the length, the power of the length, and that of a document's mean.
DOCUMENTS = {
    "documents, equal length, log sd 0.5": (0.0, 0, 0.5),
    "documents, length independent of KL": (0.7, 0, 0.5),
    "documents, length tells KL: log sd 0.7, power 1": (0.7, 1, 0.5),
    "documents, length tells KL: log sd 1, power 1": (1.0, 1, 0.5),
    "documents, length tells KL: log sd 1, power -1": (1.0, -1, 0.5),
}


def mean_of_documents(length: float, power: float, effect: float) -> float:
    """E[S] / E[n] by summing over the lengths, of which each has its exact probability."""
    sizes = np.arange(1, 20_001)
    edges = np.log(np.concatenate([[0], sizes[:-1] + 0.5, [np.inf]]).clip(1e-300) / 20)
    probabilities = np.diff(scipy.stats.norm.cdf(edges / length)) if length else (sizes == 20).astype(float)
    sums = 0.01 * math.exp(effect**2 / 2) * sizes * (sizes / 20) ** power
    return float((probabilities * sums).sum() / (probabilities * sizes).sum())


def test_the_truth_of_the_study_is_the_exact_sum(monkeypatch):
    monkeypatch.setattr(study, "TRUTH_UNITS", 2_000_000)
    for name, parameters in DOCUMENTS.items():
        assert study.true_mean(CASES[name]) == pytest.approx(mean_of_documents(*parameters), rel=0.01)


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("name", "units"),
    [
        ("documents, equal length, log sd 0.5", 20),
        ("documents, length independent of KL", 50),
        ("documents, length tells KL: log sd 0.7, power 1", 20),
        ("documents, length tells KL: log sd 1, power 1", 50),
        ("documents, length tells KL: log sd 1, power 1", 100),
        ("documents, length tells KL: log sd 1, power -1", 20),
        ("rows, lognormal, sd 1", 50),
        ("rows, lognormal, sd 2", 100),
        ("rows, 5 % of them exponential, the rest 0", 20),
        ("differences, minus lognormal of sd 1", 50),
        ("agreement of rows, 99.0%", 100),
        ("agreement of documents, 90 %, correlation 0.1", 20),
    ],
)
def test_an_interval_holds_the_mean_or_says_that_it_cannot_tell(name, units):
    case, repetitions = CASES[name], 150
    truth = case.truth if case.truth is not None else mean_of_documents(*DOCUMENTS[name])
    held = 0
    for seed in range(repetitions):
        found = study.one_interval(case, units, seed, draws=400)
        low, high = found.interval or (-math.inf, math.inf)
        held += low <= truth <= high
    assert held >= 0.95 * repetitions - 3 * math.sqrt(0.95 * 0.05 * repetitions)


def test_the_committed_study_falls_short_nowhere():
    found = json.loads(study.RESULT.read_text())
    assert len(found["results"]) >= 100
    for result in found["results"]:
        slack = 2 * math.sqrt(found["least"] * (100 - found["least"]) / result["repetitions"])
        if CASES[result["case"]].unseen:
            assert f"{result['covers']:g} %" in MEANING  # which says why
            continue
        assert result["covers"] >= found["least"] - slack, result
    page = study.PAGE.read_text(encoding="utf-8")
    assert study.table(found["results"]) in page
    assert sum(case.unseen for case in study.CASES) == 2


# Where an end is open


def test_fewer_units_than_ten_have_no_interval():
    values = np.random.default_rng(0).exponential(size=FEWEST_UNITS)
    assert estimate(values, NONNEGATIVE).interval is not None
    few = estimate(values[1:], NONNEGATIVE)
    assert (few.interval, few.reason) == (None, "few units")
    assert few.standard_error == pytest.approx(values[1:].std(ddof=1) / 3, rel=1e-12)


def test_one_unit_that_carries_the_mean_leaves_the_upper_end_open():
    values = np.random.default_rng(0).exponential(size=200)
    values[:20] *= 200
    found = estimate(values, NONNEGATIVE)
    assert (found.interval[1], found.reason) == (math.inf, "heavy tail")
    assert 0 < found.interval[0] < values.mean()
    both = estimate(values * np.resize([1, -1], 200), SIGNED)
    assert both.interval == (-math.inf, math.inf)


@pytest.mark.sweep
@pytest.mark.parametrize("heavy", [1, 2, 3, 5])
@pytest.mark.parametrize("other", ["alike", "uniform"])
def test_no_end_is_so_far_that_it_says_nothing(heavy: int, other: str) -> None:
    for seed in range(6):
        random = np.random.default_rng([seed, heavy])
        values = np.full(1500, 0.005) if other == "alike" else 0.01 * random.random(1500)
        values[:heavy] = 10
        found = estimate(values, NONNEGATIVE, seed=seed)
        assert found.interval is not None
        assert math.isinf(found.interval[1]) or found.interval[1] < 1000 * values.mean()
        assert math.isinf(found.interval[1]) == (found.reason is not None)


def rare_rows(rows: int, heavy: int) -> tuple[Probs, Probs]:
    """Rows of KL around 0.01, of which some have KL 10."""
    random = torch.Generator().manual_seed(1)
    change = 0.1 * torch.rand(rows, generator=random, dtype=torch.float64)
    q = torch.stack([0.5 + change, 0.5 - change], -1)
    q[:heavy] = torch.tensor([1 - math.exp(-20 - 2 * math.log(2)), math.exp(-20 - 2 * math.log(2))]).double()
    return Probs(torch.full((rows, 2), 0.5, dtype=torch.float64)), Probs(q)


@pytest.mark.parametrize(("rows", "units"), [(500, "rows"), (2000, "rows"), (2000, "clusters")])
def test_rows_too_rare_to_be_seen_are_bounded_in_numbers(rows, units):
    cluster = None if units == "rows" else [i // 20 for i in range(rows)]
    found = compare_predictions(*rare_rows(rows, 0), cluster=cluster)
    count = rows if cluster is None else rows // 20
    (note,) = [note for note in found.notes if "(3/n)" in note]
    assert f"up to {300 / count:.2g} % of {units} (3/n)" in note
    assert f"absent from these {count:,}." in note
    assert (
        f"add up to {3 / count:.2g} nats to the mean for each nat of their own KL: {30 / count:.2g} nats if their "
        "KL is 10" in note
    )
    # With 1 row in 2,000 of KL 10, the mean is beyond the interval of KL, and within the note's numbers.
    p, q = rare_rows(2000, 1)
    whole = compare_predictions(p, q, bootstrap=0).divergences
    mean, (_, high) = found.divergences["kl_pq"].mean, found.divergences["kl_pq"].interval
    assert whole["kl_pq"].mean == pytest.approx(mean + 10 / 2000, rel=0.05)
    assert whole["kl_pq"].mean > high or units == "clusters"
    assert whole["kl_pq"].mean < mean + 30 / count
    for name, bound in (("js", math.log(2)), ("tv", 1.0)):
        end = (1 - 3 / count) * found.divergences[name].interval[1] + 3 / count * bound
        assert f"{end:.2g} ({name.upper()})" in note
        assert whole[name].mean < end


def test_every_report_says_beside_the_interval_what_it_leaves_out() -> None:
    found = compare_predictions(*rare_rows(500, 0))
    console = Console(width=2000, record=True, file=io.StringIO())
    terminal.render(found, console)
    beside = "Kinds of rows that these data lack may be up to 0.60% of all rows; the interval does not include them."
    for report in (console.export_text(), markdown.render(found), html.render(found)):
        first = report[: report.index(beside)]  # before any table
        assert "95% CI" in first
        assert "quantile" not in first
        assert "(3/n)" in report.replace("\xa0", " ")
    assert "\nUp to 0.60% of all rows may be of unseen kinds; the interval excludes them.\n" in brief(found)
    document = json.loads(report_json.dumps(found))
    assert document["unseen"] == 3 / 500
    assert any("(3/n)" in note for note in document["notes"])


def test_the_note_on_rare_rows_stays_away_where_they_could_add_little():
    random = torch.Generator().manual_seed(0)
    p, q = (3 * torch.randn(3000, 20, generator=random) for _ in range(2))
    found = compare_predictions(p, q, representation="logits")
    low, high = found.divergences["kl_pq"].interval
    assert (high - low) / 2 > 30 / 3000
    assert not any("3/n" in note for note in found.notes)
    assert found.unseen == 0
    assert "leaves out" not in markdown.render(found)
    few = compare_predictions(p[:5], p[:5] + 0.01, representation="logits")
    assert not any("3/n" in note for note in few.notes)


def test_few_units_that_differ_bound_only_what_is_bounded():
    values = np.zeros(300)
    values[:3] = 0.5
    unbounded, bounded = (estimate(values, RatioOfSums(0, low=0.0, high=high)) for high in (math.inf, 1.0))
    assert (unbounded.interval[1], unbounded.reason) == (math.inf, "few nonzero units")
    assert bounded.interval[1] == pytest.approx(wilson_interval(0.01, 300, 0.95)[1])
    assert bounded.reason is None
    clustered = estimate(np.zeros(300), BINARY, clusters=np.arange(300) // 10)
    assert clustered.interval == (0.0, pytest.approx(wilson_interval(0.0, 30, 0.95)[1]))


def test_infinite_values_and_single_units_have_no_interval():
    assert estimate([1.0, math.inf], NONNEGATIVE) == MeanEstimate(math.inf)
    alone = estimate([1.0], NONNEGATIVE)
    assert math.isnan(alone.standard_error)
    assert alone.interval is None


def skewed(rows: int = 200) -> tuple[Probs, Probs]:
    """Rows of which a tenth carry all of the divergence but a trace."""
    p = torch.full((rows, 2), 0.5)
    change = torch.where(torch.arange(rows) % 10 == 0, 0.499, 0.001) * torch.linspace(0.5, 1, rows)
    return Probs(p), Probs(torch.stack([0.5 + change, 0.5 - change], -1))


def outcome(limit: str, side: Side, found: Comparison) -> str:
    return judge_comparison(parse_gate(limit, side).limit, found).outcome


def test_a_gate_on_a_mean_whose_interval_has_no_upper_end_is_unclear():
    found = compare_predictions(*skewed(), independent=True)
    assert found.divergences["kl_pq"].reason == "heavy tail"
    low, high = found.divergences["kl_pq"].interval
    assert high == math.inf
    sentence = judge_comparison(parse_gate("mean=100", "above").limit, found).sentence
    assert f"its interval, {low:.6g} to inf, contains the limit 100" in sentence
    # The lower end is known, and so are the estimate and every quantile.
    assert outcome("mean=0", "below", found) == "passed"
    assert outcome("mean.value=100", "above", found) == "passed"
    assert outcome("max.value=100", "above", found) == "passed"
    without = judge_comparison(
        parse_gate("mean=100", "above").limit, compare_predictions(*skewed(), bootstrap=0)
    )
    assert "without an interval (none was asked for)" in without.sentence
    assert without.outcome == "unclear"


def test_a_gate_on_too_few_clusters_is_unclear_on_either_side():
    random = torch.Generator().manual_seed(0)
    p = torch.rand(60, 4, generator=random).softmax(-1)
    q = torch.rand(60, 4, generator=random).softmax(-1)
    few = compare_predictions(Probs(p), Probs(q), cluster=[i // 20 for i in range(60)])
    for gate, side in (("mean=100", "above"), ("top1=0", "below"), ("tv.mean=0", "below")):
        assert judge_comparison(parse_gate(gate, side).limit, few).outcome == "unclear"
        assert "(few units)" in judge_comparison(parse_gate(gate, side).limit, few).sentence
    assert outcome("mean=100", "above", compare_predictions(Probs(p), Probs(q))) == "passed"


def test_equal_predictions_pass_a_gate():
    p, _ = skewed()
    found = compare_predictions(p, p)
    assert outcome("mean=0", "above", found) == "passed"
    assert outcome("top1.value=1", "below", found) == "passed"
    assert outcome("top1=0.97", "below", found) == "passed"
    assert outcome("top1=1", "below", found) == "unclear"


def test_the_page_of_intervals_names_what_an_end_assumes():
    assert "Assumptions of a finite end" in MEANING
    for reason in ("few units", "few nonzero units", "heavy tail"):
        assert reason in MEANING
