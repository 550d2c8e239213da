"""Estimates and tests print one line, and are numbers where one is asked for."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest
import torch
from torch.distributions import Normal

from kullback import Counts, Estimate, Probs, Samples, TwoSampleTest, estimate, kl_estimate, two_sample_test
from kullback.errors import ArgumentTypeError
from kullback.generators import parse
from tests.refusals import refused

END = torch.tensor(0.07), torch.tensor(math.inf)
DRAWN = Estimate(torch.tensor(0.19), None, "nearest_neighbors", END, (1000, 20), confidence=0.9)
X = torch.linspace(-2, 2, 200)


@pytest.mark.parametrize(
    ("found", "line"),
    [
        (DRAWN, "KL = 0.19 nats (90 % 0.07 to inf), nearest neighbors, n = 1000 + 20"),
        (
            dataclasses.replace(DRAWN, interval=None, n=(1000, 0)),
            "KL = 0.19 nats (no interval), nearest neighbors, n = 1000, Q known",
        ),
        (
            Estimate(torch.tensor(0.5), torch.tensor(2e-7), "closed_form"),
            "KL = 0.5 nats (off by 2e-07 at most), closed form",
        ),
        (
            Estimate(
                torch.tensor(0.5),
                None,
                "monte_carlo",
                standard_error=torch.tensor(0.125),
                kind="js:0.5",
                base=2,
            ),
            "JS (0.5) = 0.5 bits (standard error 0.12), monte carlo",
        ),
        (Estimate(torch.tensor(0.5), None, "series", base=3.0), "KL = 0.5 in base 3, series"),
        (
            Estimate(torch.tensor([[0.5], [1.0]]), None, "series"),
            "KL of 2 x 1 rows: 0.5 to 1 nats, mean 0.75, series",
        ),
        (Estimate(torch.zeros(0), None, "series"), "KL of no rows, series"),
        (
            Estimate(torch.tensor(math.inf), None, "plugin", kind="chi2"),
            "chi-squared divergence = inf, plugin",
        ),
    ],
)
def test_an_estimate_prints_one_line(found, line):
    assert str(found) == f"{found}" == line


def test_lines_of_real_estimates():
    assert str(estimate(Counts([30, 10]), Counts([20, 20]), kind="tv", confidence=0.8)).startswith(
        "total variation = 0.25 (80 % "
    )
    assert str(kl_estimate(Probs([0.5, 0.5]), Counts([20, 20]))).endswith("plugin, n = 40, P known")
    assert str(kl_estimate(Counts([[30, 10], [2, 5]]), Counts([20, 20]))).endswith(
        "plugin, n = 7 to 40 + 40; 1 note in .notes"
    )
    assert str(kl_estimate(Samples(X), Samples(X + 1))).startswith("KL = ")


@pytest.mark.parametrize("kind", ["kl", "reverse_kl", "jeffreys", "js", "skew:0.1", "renyi:2"])
def test_every_kind_with_a_logarithm_has_a_unit_and_every_other_has_none(kind):
    p, q = Probs([0.5, 0.5]), Probs([0.25, 0.75])
    assert " nats" in str(estimate(p, q, kind=kind))
    assert " bits" in str(estimate(p, q, kind=kind, base=2))
    for other in ("tv", "hellinger", "chi2", "alpha:0.5"):
        assert not parse(other).logarithmic
        assert " nats" not in str(estimate(p, q, kind=other))


def test_an_estimate_is_a_number():
    found = kl_estimate(Normal(torch.tensor(0.0, requires_grad=True), 1.0), Normal(1.0, 1.0))
    assert float(found) == 0.5
    assert f"{found:.3f}" == "0.500"
    with refused(ArgumentTypeError, got=r"6 values of shape \(2, 3\)", instead=r"estimate.value.tolist\(\)"):
        float(Estimate(torch.zeros(2, 3), None, "series"))


def test_a_test_prints_one_line_and_is_its_p_value():
    found = two_sample_test(Samples(X), Samples(X + 1), permutations=99)
    assert float(found) == found.p_value
    assert f"{found:.2f}" == f"{found.p_value:.2f}"
    assert str(found) == f"{found}"
    assert str(found).startswith(
        f"P and Q differ (p = {found.p_value:.3g}), {found.method.replace('_', ' ')} = "
    )
    assert str(found).endswith(f"99 permutations; {found.effect}")
    html = found._repr_html_()
    assert html.count("<table>") == 2
    assert f'<th scope="row">{found.p_value:.3g}</th>' in html
    alone = TwoSampleTest(0.5, 1.0, None, 99, "energy", ("<why>",))
    assert alone._repr_html_().count("<table>") == 1
    assert "&lt;why&gt;" in alone._repr_html_()
    assert str(alone).startswith("No difference of P and Q is seen (p = 0.5), energy = ")


@pytest.mark.parametrize(
    ("p", "q", "options", "outcome"),
    [
        (
            torch.zeros(3, 500),
            torch.ones(3, 500),
            {"permutations": 99},
            "The test cannot tell whether P and Q differ",
        ),
        ([1.0, 2.0], [8.0, 9.0, 10.0], {}, "The test cannot tell whether P and Q differ"),
        ([1.0, 2.0, 3.0, 4.0], [6.0, 7.0, 8.0, 9.0], {}, "P and Q differ"),
        (torch.arange(40.0), torch.arange(40.0) + 90, {"permutations": 19}, "The test cannot tell"),
        (torch.arange(40.0), torch.arange(40.0) + 0.5, {}, "No difference of P and Q is seen"),
    ],
)
def test_a_test_of_too_few_draws_cannot_tell(p: Any, q: Any, options: Any, outcome: str) -> None:
    noise = 0.01 * torch.randn(3, 500, generator=torch.Generator().manual_seed(0))
    p, q = (x + noise if isinstance(x, torch.Tensor) and x.ndim == 2 else x for x in (p, q))
    x, y = (Samples(side, independent=True) for side in (p, q))
    test = two_sample_test(x, y, generator=torch.Generator().manual_seed(0), **options)
    assert str(test).startswith(f"{outcome}"), test
    few = [note for note in test.notes if "the test cannot tell" in note]
    assert len(few) == ("cannot tell" in outcome)
    n, m = len(p), len(q)
    least = max(1 / math.comb(n + m, n), 1 / (1 + options.get("permutations", 999)))
    assert test.least_p_value == pytest.approx(least)


def test_one_line_counts_the_notes() -> None:
    x = torch.randn(60, generator=torch.Generator().manual_seed(0))
    estimate = kl_estimate(Samples(x + 9), Samples(x))
    assert str(estimate).endswith(f"; {len(estimate.notes)} notes in .notes".replace("1 notes", "1 note"))
    assert estimate.notes
    assert "in .notes" not in str(kl_estimate(Normal(0.0, 1.0), Normal(1.0, 1.0)))


def test_the_numbers_of_draws_of_a_batch_are_in_the_table():
    assert (
        "from 7 to 40 and 40 draws" in kl_estimate(Counts([[30, 10], [2, 5]]), Counts([20, 20]))._repr_html_()
    )
