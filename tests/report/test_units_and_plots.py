"""Every result says kind, unit and confidence in every export, and draws its numbers with them on the axis."""

from __future__ import annotations

import io
import json
import math
import re
import sys
from collections.abc import Iterator
from dataclasses import replace
from html import unescape
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pandas as pd
import pytest
import torch

import kullback
from kullback import Counts, Estimate, TwoSampleTest, compare_tables, estimate
from kullback.cli.gates import OF_TABLES, parse_gate
from kullback.errors import ArgumentValueError, OptionalDependencyError
from kullback.mismatch import policy_mismatch
from kullback.predictions import Comparison
from kullback.report import document, markdown
from kullback.report.document import drawings
from kullback.report.plots.mismatch import draw_parts, draw_positions
from kullback.report.plots.models import draw_plots as draw_of_models
from kullback.report.subjects.tables import Batches
from kullback.results.value import Value
from kullback.tables import TableComparison
from kullback.tables.compare_two_tables import corrected_together
from tests.mismatch.dumps import tiny_run
from tests.mismatch.test_measure_mismatch import log_of
from tests.refusals import refused
from tests.report.test_document import SUBJECTS as ALL

plt = pytest.importorskip("matplotlib.pyplot")

NATS = dict.fromkeys(("kl_pq", "kl_qp", "js"), "nats") | {"tv": "dimensionless"}


def week(number: int) -> TableComparison:
    """The comparison of a batch, in which more customers have a large plan every week."""
    before, after = ({"plan": ["small", "large"] * 50 + ["large"] * 20 * place} for place in (0, number))
    return compare_tables(pd.DataFrame(before), pd.DataFrame(after))


SUBJECTS = {name: make for name, make in ALL.items() if name != "outside"} | {
    "batches": lambda: Batches(tuple(corrected_together([week(1), week(2)])), ((), ())),
    "mismatch": lambda: policy_mismatch(log_of(tiny_run())),
    "in bits": lambda: estimate(Counts([5, 30, 20]), Counts([50, 3, 20]), "js", base=2, confidence=0.9),
}


class Said(NamedTuple):
    """What the exports of a result say about its numbers, and the words of a plot."""

    units: dict[str, str]
    confidence: float | None
    label: str  # of the axis of the numbers

    @property
    def words(self) -> list[str]:
        """The words of a text: the unit and, with an interval, the level of confidence."""
        level = [] if self.confidence is None else [rf"{100 * self.confidence:g} ?%"]
        return [next(iter(self.units.values())).removesuffix("s"), *level]


SAID = {
    "predictions": Said(NATS, 0.95, "mean divergence of a row, nats (no interval)"),
    "models": Said(NATS, 0.95, "mean KL(P‖Q) of a token, nats (no interval)"),
    "tables": Said({"psi": "nats"} | NATS, 0.95, "PSI, nats (95 % interval)"),
    "fit": Said({"KL(to || q)": "nats"}, None, "density"),
    "estimate": Said({"kl": "nats"}, 0.95, "KL, nats (95 % interval)"),
    "in bits": Said({"js:0.5": "bits"}, 0.9, "JS (0.5), bits (90 % interval)"),
    "test": Said({"kl": "nats"}, 0.95, "KL, nats (95 % interval)"),
    "batches": Said({"psi": "nats"} | NATS, 0.95, "PSI, nats"),
    "mismatch": Said(
        dict.fromkeys(("k1", "k3", "naive_k3"), "nats")
        | dict.fromkeys(
            ("mean_ratio", "effective_share", "sequence_effective_share", "past"), "dimensionless"
        )
        | dict.fromkeys(("log_mass_sampler", "log_mass_trainer"), "nats"),
        0.95,
        "KL(P‖Q) per token, nats (95 % interval)",
    ),
    "diagnosis": Said(
        {"kl_target_input": "nats", "kl_input_target": "nats"},
        None,
        "KL of a row, nats (mean, smallest and largest)",
    ),
}


@pytest.fixture(scope="module", params=SUBJECTS)
def case(request: pytest.FixtureRequest) -> tuple[str, Any, Said]:
    return request.param, SUBJECTS[request.param](), SAID[request.param]


@pytest.fixture(autouse=True)
def _closed() -> Iterator[None]:
    yield
    plt.close("all")


def test_every_type_of_result_is_in_these_tests() -> None:
    room = Path(kullback.__file__).parent
    derived = re.compile(
        r"^class (\w+)\((?:[\w\[\], ]+, )?(?:Shown|ShownNumber)(?:, [\w\[\], ]+)?\):", re.MULTILINE
    )
    types = {
        name for path in room.rglob("*.py") for name in derived.findall(path.read_text(encoding="utf-8"))
    }
    assert len(types) >= 9
    assert types - {"ShownNumber"} == {type(make()).__name__ for make in SUBJECTS.values()}


def test_json_says_kind_unit_and_confidence(case: tuple[str, Any, Said]) -> None:
    _, result, said = case
    fields = json.loads(result.to_json())
    assert fields["unit"] == next(iter(said.units.values()))
    assert fields.get("units", {fields.get("kind"): fields["unit"]}) == said.units
    assert fields["confidence"] == said.confidence
    assert result.to_dict(flat=True).get("confidence") == said.confidence


def test_a_data_frame_says_kind_unit_and_confidence_also_as_csv(case: tuple[str, Any, Said]) -> None:
    name, result, said = case
    frame = result.to_pandas()
    assert (frame.attrs["units"], frame.attrs["confidence"]) == (said.units, said.confidence)
    if name == "diagnosis":  # its frame describes the tensors
        return
    read = pd.read_csv(io.StringIO(frame.to_csv()), index_col=0)
    assert len(read) == len(frame) > 0
    assert [None if math.isnan(x) else x for x in read.confidence] == [said.confidence] * len(read)
    if name in ("predictions", "mismatch"):
        assert dict(zip(read.index, read.unit, strict=True)) == said.units
        return
    assert set(read.unit) == {next(iter(said.units.values()))}
    assert set(read.get("tv_unit", ())) == ({"dimensionless"} if "tv" in read else set())
    if len(said.units) == 1:
        assert set(read.kind) == set(said.units)


def test_texts_say_unit_and_confidence(case: tuple[str, Any, Said]) -> None:
    name, result, said = case
    texts = [str(result), markdown.render(result), result.to_html()]
    texts += [] if name == "batches" else [result._repr_html_()]  # a notebook shows no numbers of batches
    for text in texts:
        shown = unescape(re.sub("<style.*?</style>", "", text, flags=re.DOTALL))
        for words in said.words:
            assert re.search(words, shown), (words, shown[:500])


def test_the_plot_says_kind_unit_and_confidence(case: tuple[str, Any, Said]) -> None:
    name, result, said = case
    figure, axes = result.plot()
    figure.canvas.draw()
    assert figure is axes.figure
    is_vertical = name in ("estimate", "in bits", "test", "batches", "fit")
    assert said.label == (axes.get_ylabel() if is_vertical else axes.get_xlabel())
    if name == "fit":  # KL(Gamma(4, 2) || Normal(2, 1)), from the entropies of both
        entropy = 4 - math.log(2) + math.lgamma(4) - 3 * 1.2561176684318
        kl = 0.5 * math.log(2 * math.pi * math.e) - entropy
        assert all(word in axes.get_title() for word in ("KL(to ‖ q)", "nats", f"{kl:.5f}"))
    outcome = " ".join(document(result).outcome.split()).replace("||", "‖")
    assert " ".join(axes.get_title().split()) == outcome
    assert axes.has_data()


def test_every_drawing_of_the_page_is_a_plot_on_axes_of_the_user(case: tuple[str, Any, Said]) -> None:
    _, result, _ = case
    for drawing in drawings(document(result)):
        figure, axes = plt.subplots()
        name = drawing.title if drawing.name[-1].isdecimal() else drawing.name
        assert result.plot(axes, name=name) == (figure, axes)
        assert axes.get_title()
        assert axes.get_title().split()[0] in drawing.title.replace("||", "‖")
        figure.canvas.draw()
        assert axes.has_data()


def ends(axes: Any) -> list[list[float]]:
    """The ends of the lines: the first line has the values, and those of arrows have one point."""
    return [x for line in axes.lines[1:] if len(x := line.get_xdata().tolist()) == 2]


@pytest.mark.parametrize("subject", ["tables", "predictions"])
def test_the_points_are_the_numbers_of_the_result(subject: str) -> None:
    if subject == "tables":
        before = {"plan": ["a", "b"] * 200, "size": [1, 2, 3, 4] * 100}
        after = {"plan": ["a", "b", "b", "b"] * 100, "size": [1, 2, 3, 3] * 100}
        found = compare_tables(pd.DataFrame(before), pd.DataFrame(after))
        numbers = {column.name: column.psi for column in found.columns}
    else:
        draw = torch.Generator().manual_seed(0)
        p, q = torch.randn(2, 300, 5, generator=draw)
        found = kullback.compare_predictions(kullback.Logits(p), kullback.Logits(q))
        titles = {"KL(P‖Q)": "kl_pq", "KL(Q‖P)": "kl_qp", "JS": "js"}
        numbers = {title: found.divergences[name] for title, name in titles.items()}
    _, axes = found.plot()
    assert [text.get_text() for text in axes.get_yticklabels()] == list(numbers)
    assert axes.lines[0].get_xdata().tolist() == [number.value for number in numbers.values()]
    intervals = [list(number.interval) for number in numbers.values() if number.interval]
    assert len(intervals) == len(numbers)
    assert ends(axes) == [interval for interval in intervals if math.isfinite(interval[1])]
    arrows = [container.lines[0].get_xdata().tolist() for container in axes.containers]
    assert arrows == [[low] for low, high in intervals if math.isinf(high)]
    low, high = axes.get_ylim()
    assert low > high  # the first number is at the top


def test_an_unknown_end_is_an_arrow_beyond_the_value() -> None:
    interval = torch.tensor([0.5, -math.inf]), torch.tensor([math.inf, 3.0])
    _, axes = Estimate(torch.tensor([1.0, 2.0]), None, "knn", interval, confidence=0.95).plot()
    tips = [container[1][0].get_ydata()[0] for container in axes.containers]
    assert tips[0] > 1.0
    assert tips[1] < 2.0


def test_an_open_end_is_an_arrow_in_the_plots_of_a_mismatch_and_of_sizes() -> None:
    from matplotlib.container import ErrorbarContainer
    from matplotlib.figure import Figure

    number = Value(0.2, 0.1, (0.1, math.inf))
    bucket = SimpleNamespace(name="0 to 3", k3=number)
    run: Any = SimpleNamespace(
        by={"position": [bucket] * 2}, parts=[SimpleNamespace(name="rest", value=number)]
    )
    compared = SimpleNamespace(divergences={"kl_pq": number})
    model = SimpleNamespace(
        model=SimpleNamespace(name="q4", file_bytes=10**9), comparison=compared, is_lower_bound=False
    )
    models: Any = SimpleNamespace(candidates=[model] * 2, noise_floor=None, until_sure=None)
    plots = [*draw_parts(run), *draw_positions(run), draw_of_models(models)[-1]]
    assert [each.name for each in plots] == ["causes", "positions", "sizes"]
    for plot in plots:
        axes = Figure().add_subplot()
        plot.draw(axes)
        bars = [each for each in axes.containers if isinstance(each, ErrorbarContainer)]
        tips = [x for bar in bars for cap in bar[1] for x in (*cap.get_xdata(), *cap.get_ydata())]
        assert any(0.2 < x < 0.5 for x in tips), plot.name


def test_a_value_that_is_not_known_is_written_at_the_edge() -> None:
    ids = [pd.DataFrame({"id": [f"{side}{i}" for i in range(500)]}) for side in "pq"]
    _, axes = compare_tables(*ids).plot()
    assert [text.get_text() for text in axes.texts] == ["n/a"]


def test_a_comparison_of_nothing_and_a_test_without_an_effect_are_empty_plots() -> None:
    nothing = compare_tables(pd.DataFrame({"a": [1]}), pd.DataFrame({"b": [1]}))
    _, axes = nothing.plot()
    assert axes.get_title().startswith("Nothing was compared")
    _, axes = TwoSampleTest(0.5, 1.0, None, 99, "energy").plot()
    assert axes.get_ylabel() == "KL, nats"
    assert "p = 0.5" in axes.get_title()


def test_the_psi_of_words_is_drawn_where_it_decides() -> None:
    result = SUBJECTS["tables"]()
    column = replace(result.columns[0], name="review", column_type="text", words=9.0)
    assert column.psi.value < 9.0
    found = replace(result, columns=(column,))
    _, axes = found.plot()
    assert axes.lines[0].get_xdata().tolist() == [column.words]
    assert axes.get_yticklabels()[0].get_text() == "words of review"
    assert axes.get_xlabel() == "PSI, nats (no interval)"


def test_only_the_first_of_many_columns_are_drawn_and_the_axis_says_so() -> None:
    table = pd.DataFrame({f"column {i}": [1, 2] * 30 for i in range(25)})
    _, axes = compare_tables(table, table).plot()
    assert len(axes.get_yticks()) == 20
    assert axes.get_xlabel() == "PSI, nats (95 % interval); the first 20 of 25"


def test_the_plot_has_the_colors_of_the_user_and_changes_no_setting() -> None:
    result = SUBJECTS["tables"]()
    with plt.rc_context({"axes.prop_cycle": plt.cycler(color=["#112233", "#445566"])}):
        before = dict(plt.rcParams)
        figure, axes = result.plot(name="x")
        figure.canvas.draw()
        color = (0x11 / 255, 0x22 / 255, 0x33 / 255)
        assert axes.patches[0].get_facecolor()[:3] == pytest.approx(color)
        result.to_html()
        assert dict(plt.rcParams) == before


def test_a_name_of_a_column_is_text_and_no_formula() -> None:
    table = pd.DataFrame({"a $x_1$ \x1b[31m": [1, 2] * 30})
    figure, axes = compare_tables(table, table).plot()
    figure.canvas.draw()
    assert axes.get_yticklabels()[0].get_text() == r"a \$x_1\$ \x1b[31m"


def test_the_legend_names_columns_that_begin_with_an_underscore() -> None:
    before, after = (pd.DataFrame({"_id": [1 + by, 2] * 30, "b": [1, 2] * 30}) for by in (0, 1))
    legend = (
        Batches((compare_tables(before, before), compare_tables(before, after)), ((), ()))
        .plot()[1]
        .get_legend()
    )
    assert legend is not None
    assert [each.get_text().strip() for each in legend.get_texts()] == ["_id", "b"]


def test_the_frame_of_batches_has_their_gates() -> None:
    compared = tuple(replace(week(n), q_name=name) for n, name in ((0, "monday"), (9, "tuesday")))
    gate = parse_gate("psi.value=0.1", "above", OF_TABLES)
    frame = Batches(compared, tuple((gate.verdict(each),) for each in compared)).to_pandas()
    assert frame.attrs["gates"] == {
        "monday: psi.value at most 0.1": "passed",
        "tuesday: psi.value at most 0.1": "failed",
    }


def test_an_unknown_name_is_refused_with_the_nearest_one() -> None:
    result: Comparison = SUBJECTS["predictions"]()
    with refused(
        ArgumentValueError, call="Comparison.plot", argument="name", wanted="'distribution'", got="'quantile'"
    ) as caught:
        result.plot(name="quantile")
    assert caught.value.instead == "name='quantiles'"
    assert result.plot(name="quantiles")[1].get_title() == "Quantiles"
    with refused(ArgumentValueError, argument="name", got="'xyz'", instead="no name") as caught:
        result.plot(name="xyz")
    assert result.plot()[1].get_title()


def test_without_matplotlib_the_message_names_it(
    case: tuple[str, Any, Said], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, result, _ = case
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)
    monkeypatch.setattr("kullback.common.optional.find_spec", lambda name: None)
    with pytest.raises(OptionalDependencyError) as caught:
        result.plot()
    assert str(caught.value) == (
        f"{type(result).__name__}.plot needs matplotlib, which is not installed. Run: pip install matplotlib"
    )


def test_a_point_without_interval_has_no_ends() -> None:
    from matplotlib.figure import Figure

    from kullback.report.plots.points import Point, plot_points

    points = [Point.of(Value(0.5, None, None), "a"), Point.of(Value(None, None, (0.0, math.inf)), "b")]
    for shown, label in ((points, "KL, nats (90 % interval)"), (points[:1], "KL, nats (no interval)")):
        axes = Figure().add_subplot()
        plot_points("kl", "KL", shown, "KL, nats", 0.9).draw(axes)
        assert axes.get_xlabel() == label
