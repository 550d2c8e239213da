"""An `Estimate` and a `Diagnosis` in a notebook: what the tables say, and what the plot draws."""

from __future__ import annotations

import pytest
import torch

import kullback
from kullback import Estimate, Logits, Probs, Samples, estimate, kl_estimate
from kullback.generators.divergence import NAMED
from tests.report.media import Page

plt = pytest.importorskip("matplotlib.pyplot")
CARETUPBASE = pytest.importorskip("matplotlib.lines").CARETUPBASE


@pytest.fixture(autouse=True)
def _closed_figures():
    yield
    plt.close("all")


def test_a_batch_has_a_row_for_each_element():
    estimate = kl_estimate(Logits(torch.tensor([[2.0, 0.0], [0.0, 0.0]])), Logits(torch.zeros(2)))
    cells = Page(estimate._repr_html_())
    assert cells.rows[0] == ["element", "KL, nats", "bound on the error"]
    assert [row[0] for row in cells.rows[1:]] == ["0", "1"]
    assert float(cells.rows[1][1]) == pytest.approx(estimate.value[0].item(), rel=1e-5)
    assert cells.rows[2][1] == "0"
    assert "by summation" in cells.texts


def test_a_scalar_from_draws_shows_its_interval_and_how_many_there_were():
    draw = torch.Generator().manual_seed(0)
    x, y = torch.randn(2, 500, generator=draw)
    estimate = kl_estimate(Samples(x), Samples(y))
    cells = Page(estimate._repr_html_())
    assert cells.rows[0] == ["KL, nats", "standard error", "95 % interval"]
    low, high = (end.item() for end in estimate.interval)
    assert cells.rows[1][2] == f"{low:.6g} to {high:.6g}"
    assert f"by {estimate.method}, from 500 and 500 draws" in cells.texts


def test_notes_are_shown_and_escaped():
    estimate = Estimate(torch.tensor(1.0), None, "<method>", notes=("p < q & <script>alert(1)</script>",))
    html = estimate._repr_html_()
    assert "<script>" not in html
    assert "<method>" not in html
    assert "p < q & <script>alert(1)</script>" in "".join(Page(html).texts)


@pytest.mark.parametrize(
    ("shape", "last"), [((), None), ((0,), None), ((3, 2), "2, 1"), ((7, 5), "3, 4"), ((100, 100), "0, 19")]
)
def test_twenty_elements_at_most(shape, last):
    value = torch.zeros(shape, requires_grad=True)
    cells = Page(Estimate(value, value, "closed_form")._repr_html_())
    assert len(cells.rows) == 1 + min(value.numel(), 20)
    if last is not None:
        assert cells.rows[-1][0] == last
    told = f"The first 20 of {value.numel():,} elements."
    assert any(told in text for text in cells.texts) == (value.numel() > 20)


def test_infinity_and_nan_are_written():
    value = torch.tensor([float("inf"), float("nan")])
    assert [row[1] for row in Page(Estimate(value, None, "series")._repr_html_()).rows] == [
        "KL, nats",
        "inf",
        "nan",
    ]


def test_the_plot_draws_values_and_intervals():
    value = torch.tensor([1.0, 2.0, float("inf")])
    interval = torch.tensor([0.5, 1.0, 3.0]), torch.tensor([1.5, float("inf"), float("inf")])
    figure, axis = Estimate(value, None, "histogram", interval=interval).plot()
    assert figure is axis.figure
    points, bar = axis.lines[0], axis.lines[1]
    assert points.get_xydata().tolist() == [[0, 1], [1, 2]]
    assert bar.get_xydata().tolist() == [[0, 0.5], [0, 1.5]]
    assert [text.get_text() for text in axis.texts] == ["inf"]
    assert any(
        line.get_marker() == CARETUPBASE for container in axis.containers for line in container[1]
    )  # an arrow up


def test_the_plot_goes_on_the_axis_that_is_given():
    figure, axis = plt.subplots()
    estimate = kl_estimate(Probs([0.5, 0.5]), Probs([0.25, 0.75]))
    assert estimate.plot(axis) == (figure, axis)
    assert axis.lines[0].get_xydata()[0].tolist() == [0, pytest.approx(estimate.value.item())]


def test_standard_errors_are_drawn_where_there_is_no_interval():
    estimate = Estimate(torch.tensor([1.0]), None, "monte_carlo", standard_error=torch.tensor([0.25]))
    _, axis = estimate.plot()
    assert axis.lines[1].get_xydata().tolist() == [[0, 0.75], [0, 1.25]]


def test_a_diagnosis_shows_all_that_its_text_does():
    p = torch.tensor([[0.7, 0.2, 0.1], [0.5, 0.25, 0.25]])
    found = kullback.diagnose(p, p.flip(-1), reduction="mean")
    cells = Page(found._repr_html_())
    held = {row[0]: row[1:] for row in cells.rows}
    assert held["input"][3] == "probabilities"
    assert float(held["sum"][0]) == pytest.approx(found.values["sum"], rel=1e-5)
    assert "> mean" in held
    text = " ".join(cells.texts)
    for finding in found.findings:
        assert f"{finding.level}: {finding.code}" in text
        assert finding.message in text
        assert finding.advice in text
    assert found.suggestion.kullback in text


def test_a_right_call_and_one_that_raises():
    q, p = torch.tensor([[0.25, 0.75]]), torch.tensor([[0.5, 0.5]])
    right = Page(kullback.diagnose(q.log(), p, reduction="batchmean")._repr_html_())
    assert any("No problems found." in text for text in right.texts)
    wrong = kullback.diagnose(q, torch.zeros(3, 7), reduction="sum")
    assert wrong.raises in " ".join(Page(wrong._repr_html_()).texts)


def test_a_kind_of_your_own_has_its_name_and_its_unit():
    """Its terms have no limits where a mass is 0, and their f has a slope at 1."""

    class Neyman(kullback.Divergence):
        short_name, logarithmic = "neyman", False

        def terms(self, pair):
            return pair.q**2 / pair.p - pair.q

        def derivatives(self, pair):
            return -(pair.q**2) / pair.p, 2 * pair.q**2 / pair.p - pair.q

    try:
        result = estimate(Probs([0.5, 0.5]), Probs([0.25, 0.75]), kind=Neyman())
        assert str(result).startswith("neyman = 0.25 (off by")
    finally:
        del NAMED["neyman"]
