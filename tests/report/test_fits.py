"""A fit shows itself: printed, as JSON, as a page, as a data frame and as plots."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from matplotlib import pyplot as plt
from torch.distributions import (
    Categorical,
    Gamma,
    Independent,
    MixtureSameFamily,
    MultivariateNormal,
    NegativeBinomial,
    Normal,
    Poisson,
)

from kullback import (
    KL,
    Alpha,
    ChiSquared,
    Fit,
    JensenShannon,
    Logits,
    Probs,
    ReverseKL,
    Samples,
    SquaredHellinger,
    TotalVariation,
    fit,
)
from kullback.report import document
from kullback.report.document import drawings
from kullback.report.html import render
from kullback.report.json import to_dict

MODES = MixtureSameFamily(Categorical(torch.ones(2)), Normal(torch.tensor([-4.0, 4.0]), 1.0))
NORMAL = Normal(0.0, 1.0)
POINTS = torch.tensor([[0.0, 0.0], [1.0, 0.0], [0.0, 2.0], [3.0, 1.0]])


@pytest.fixture(scope="module")
def found() -> Fit:
    return fit(Normal(3.0, 1.0), to=MODES, kind=ReverseKL())


def test_one_line_and_a_table(found: Fit) -> None:
    assert repr(found).startswith("Fit(Normal, KL(q || to)=0.693, by quasi_newton in ")
    text = str(found)
    assert text.startswith("The fitted Normal is 0.69")
    assert text.splitlines()[0].endswith(" nats from the target: KL(q || to)")
    for word in ("error at most", "at the start", "quasi newton", "1 of 1", "loc", "scale"):
        assert word in text


def test_a_notebook_shows_a_table_and_the_page_stands_alone(found: Fit) -> None:
    fragment = found._repr_html_()
    assert fragment is not None
    assert "KL(q ‖ to)" in fragment
    page = found.to_html()
    assert page.startswith("<!doctype html>")
    assert "kullback.fit" in page
    assert page.count("<svg") == 2
    assert page.count("<script") == 1
    assert "--fail-above" not in page
    assert render(found) == page


def test_json_has_the_numbers(found: Fit) -> None:
    written = json.loads(found.to_json())
    assert written["schema"] == "kullback.document/1"
    assert written["numbers"]["value"] == [float(found.value)]
    assert written["numbers"]["converged"] == [True]
    rows = dict(written["tables"][0]["rows"])
    assert float(rows["loc"]) == pytest.approx(float(found.distribution.loc), abs=0.001)
    assert rows["method"] == "quasi newton"
    logits = to_dict(fit(Logits(torch.zeros(2)), to=Probs([0.5, 0.5])))
    assert dict(logits["tables"][0]["rows"])["Logits"].count(",") == 1


def test_a_batch_is_a_frame_of_rows() -> None:
    batch = fit(Normal(torch.zeros(3), 1.0), to=Gamma(torch.tensor([1.0, 4.0, 9.0]), 1.0))
    frame = batch.to_pandas()
    assert len(frame) == 3
    assert frame.value.tolist() == batch.value.tolist()
    assert str(batch).startswith("3 fits of Normal are ")
    failed = replace(batch, converged=torch.tensor([True, False, False]))
    assert "; 2 of 3 did not converge" in " ".join(str(failed).split())
    assert repr(batch) == "Fit(Normal, KL(to || q)=3 values, by moment_matching)"


def test_a_quantity_that_is_no_divergence_is_no_distance() -> None:
    elbo = fit(Normal(0.0, 1.0), to=lambda x: -(x**2))
    assert (
        str(elbo).splitlines()[0] == f"The negative ELBO of the fitted Normal is {float(elbo.value):.4g} nats"
    )
    assert float(elbo.value) == pytest.approx(-0.5 * math.log(math.pi), abs=1e-4)
    likelihood = fit(Normal(0.0, 1.0), to=Samples([0.0, 2.0]))
    first = str(likelihood).splitlines()[0]
    assert first.startswith("The negative log-likelihood per draw of ")
    assert "target" not in first


def drawn(x: Fit, name: str | None = None) -> Any:
    figure, axes = x.plot(name=name)
    figure.canvas.draw()
    plt.close(figure)
    return axes


def test_curves_in_one_dimension(found: Fit) -> None:
    target, history = drawn(found), drawn(found, "history")
    labels = [line.get_label() for line in target.get_lines()]
    assert labels == ["to, the target", "q, the fit"]
    assert target.get_title().splitlines()[-1].endswith("KL(q ‖ to)")
    peak = max(target.get_lines()[1].get_ydata())
    assert peak == pytest.approx(0.3989, abs=0.01)
    assert history.get_xlabel() == "step"


@pytest.mark.sweep
@pytest.mark.parametrize(
    "make",
    [
        lambda: fit(Poisson(torch.tensor([1.0, 2.0])), to=NegativeBinomial(torch.tensor([3.0, 4.0]), 0.4)),
        lambda: fit(NORMAL, to=Samples([1.0, 2.0, 3.0], weights=[1, 2, 1])),
        lambda: fit(Poisson(1.0), to=Samples([1, 2, 2])),
        lambda: fit(NORMAL, to=lambda x: -((x - 2) ** 2) / 8),
        lambda: fit(MultivariateNormal(torch.zeros(2), torch.eye(2)), to=Samples(POINTS)),
        lambda: fit(
            Independent(Normal(torch.zeros(2), torch.ones(2)), 1),
            to=MultivariateNormal(torch.zeros(2), torch.eye(2)),
        ),
        lambda: fit(Logits(torch.zeros(3)), to=Probs([0.2, 0.3, 0.5])),
        lambda: fit(Gamma(torch.ones(2, 2), 1.0), to=Gamma(torch.full((2, 2), 3.0), 1.0)),
    ],
)
def test_everything_of_one_or_two_dimensions_is_drawn_and_has_a_history(make: Any) -> None:
    found = make()
    assert drawn(found).get_legend() is not None
    assert drawn(found, "fit").get_title() == "Target and fit"
    assert drawn(found, "history").get_xlabel() == "step"


@pytest.mark.sweep
@pytest.mark.parametrize("of_samples", [False, True])
def test_the_bars_of_a_wide_range_are_of_the_whole_range(of_samples: bool) -> None:
    target = Poisson(torch.tensor(1e6))
    if of_samples:
        torch.manual_seed(0)
        target = Samples(target.sample((3000,)))
    bars = drawn(fit(Poisson(9e5), to=target), "fit").patches
    half = len(bars) // 2
    assert 200 <= half <= 401
    for of in (bars[:half], bars[half:]):
        step = of[1].get_x() - of[0].get_x()
        # All but 0.2 % beyond each end, within the error of the quantiles of draws.
        assert sum(bar.get_height() for bar in of) * step == pytest.approx(0.996, abs=0.01)
        mean = sum(bar.get_x() * bar.get_height() for bar in of) * step
        assert mean == pytest.approx(1e6, abs=0.012 * 1e6)


def test_more_dimensions_have_their_history_alone() -> None:
    three = fit(
        MultivariateNormal(torch.zeros(3), torch.eye(3)), to=MultivariateNormal(torch.ones(3), torch.eye(3))
    )
    assert drawn(three).get_xlabel() == "step"
    assert [plot.name for plot in drawings(document(three))] == ["history"]


@pytest.mark.parametrize(
    "kind", [TotalVariation(), SquaredHellinger(), ChiSquared(), Alpha(0.5), KL(), JensenShannon()]
)
def test_nats_are_of_logarithms_alone(kind: Any) -> None:
    found = replace(fit(NORMAL, to=Gamma(4.0, 2.0)), kind=kind)
    has = kind.logarithmic
    assert has == (type(kind) in (KL, JensenShannon))
    assert ("nats" in str(found)) == has
    assert ("nats" in found.to_json()) == has
    assert ("nats" in found.to_html()) == has
    assert drawn(found, "history").get_ylabel() == "KL(to ‖ q)\nabove the least" + ", nats" * has
    assert found.to_dict()["unit"] == ("nats" if has else "dimensionless")


@pytest.mark.parametrize("columns", ["0", "none"])
def test_a_width_that_is_none_prints_as_without_it(
    found: Fit, monkeypatch: pytest.MonkeyPatch, columns: str
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    plain = str(found)
    monkeypatch.setenv("COLUMNS", columns)
    assert str(found) == plain != ""
