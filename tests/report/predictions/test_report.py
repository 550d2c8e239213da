"""The reports say what the comparison holds, on every medium, whatever the numbers and the names are."""

from __future__ import annotations

import dataclasses
import math
import os
import re
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree as ET

import matplotlib as mpl
import pytest
import torch
from hypothesis import given, strategies as st
from rich.cells import cell_len

from kullback import Logits, Probs
from kullback.common.formats import number, percent, probability
from kullback.errors import OptionalDependencyError, printable
from kullback.predictions import (
    Comparison,
    ConfidenceBin,
    LabelStatistics,
    Segment,
    Summary,
    TopClass,
    WorstRow,
    compare_predictions,
)
from kullback.report import html, json as report_json
from kullback.report.subjects import document
from kullback.results.value import Value
from tests.report.media import Page, printed, strict

NASTY = 'a<script>alert("x")</script>&[bold]\x1b[31m\udcff${7*7}{{ 7*7 }}.npy'

COMPARISON = Comparison(
    p_name="teacher.npy",
    q_name="student.npy",
    rows=12345,
    classes=128256,
    clusters=17,
    divergences={
        "kl_pq": Summary(
            *(0.012345, 0.00067, (0.01111, 0.01355)),
            *(1.111e-6, 2.2111e-5, 3.3111e-5, 4.4111e-5, 5.5111e-5, 6.6111e-5),
            *(0.002222, 0.003131, 0.03333, 0.04444, 0.05555, 0.06666, 7.777),
        ),
        "kl_qp": Summary(
            *(math.inf, math.nan, None, *[0.0] * 6),
            *(0.002323, 0.003, 0.03434, 0.04545, 0.05656, 0.06767, math.inf),
        ),
        "js": Summary(
            *(1.2345e-05, 1.5e-06, (1.1e-05, 1.3e-05), *[0.0] * 6),
            *(1e-06, 1e-5, 2e-05, 3e-05, 4e-05, 5e-05, 0.6931),
        ),
        "tv": Summary(
            *(0.08765, 0.0021, (0.0871, 0.0881), *[0.0] * 6),
            *(0.0321, 0.1, 0.1234, 0.2345, 0.3456, 0.4567, 1.0),
        ),
    },
    acceptance_rate=Value(0.91236, 0.0021, (0.9119, 0.9129)),
    top1_agreement=Value(0.98765, 0.00123, (0.9811, 0.9922)),
    top_k_agreement=[
        Value(0.98765, 0.00123, (0.9811, 0.9922)),
        *(Value(0.9777 - k / 100, 0.0013, (0.9611 - k / 100, 0.9788 - k / 100)) for k in range(4)),
    ],
    labels=LabelStatistics(
        12000,
        Value(2.3456, 0.0101, (2.3211, 2.3655)),
        Value(2.4567, 0.0102, (2.4322, 2.4766)),
        Value(0.1111, 0.0033, None),
        0.98761,
        Value(10.4396, 0.10544, (10.18, 10.65)),
        Value(11.6662, 0.119, (11.38, 11.9)),
        Value(1.11751, 0.00369, None),
        Value(1.22661, 0.0388, (1.151, 1.303)),
        Summary(
            *(-0.00404, 0.00055, (-0.0051, -0.003)),
            *(-0.9191, -0.8282, -0.7373, -0.6464, -0.5151, -0.4242, -0.0313),
            *(0.1414, 0.2525, 0.3636, 0.4747, 0.5858, 0.6969),
        ),
        Value(0.0606, 0.0077, (0.0505, 0.0707)),
        [Value(0.41 + k / 10, 0.01, None) for k in range(5)],
        [Value(0.402 + k / 10, 0.01, None) for k in range(5)],
    ),
    worst=[
        WorstRow(
            12344, 7.777, 128001, "chapter-17", [TopClass(128000, 0.9321, 0.0003), TopClass(7, 1e-9, 0.8765)]
        ),
        WorstRow(42, 5.5, None, None, [TopClass(3, 0.75, 0.25), TopClass(4, 0.25, 0.2)]),
    ],
    by_confidence=[
        ConfidenceBin(0.0, 0.5, 2345, 0.02468, 0.1357, 0.9012),
        ConfidenceBin(0.5, 0.9, 0, math.nan, math.nan, math.nan),
        ConfidenceBin(0.9, 1.0, 10000, 0.0008642, 0.009753, 1.0),
    ],
    histogram=[(0.0, 0.0, 45), (1e-4, 1e-3, 2300), (1e-3, 1e-2, 9000), (1e-2, 10.0, 1000)],
    quantiles=[(0.0, 0.0), (0.5, 0.002222), (0.9, 0.03333), (0.99, 0.05555), (0.999, 0.06666), (1.0, 7.777)],
    segments=[
        Segment(0, 6000, 0.01, 7.777),
        Segment(6000, 12000, 0.015, math.inf),
        Segment(12000, 12345, 0.0, 0.0),
    ],
    infinite={"kl_pq": 0, "kl_qp": 3, "js": 0, "tv": 0},
    quantiles_exact=True,
    notes=["Intervals come from whole clusters."],
)
# What every medium must show of it.
SHOWN = (
    *("teacher.npy", "student.npy", "12,345", "128,256", "17"),
    *(
        "0.01235",
        "0.00067",
        "0.01111",
        "0.01355",
        "0.002222",
        "0.03333",
        "0.04444",
        "0.05555",
        "0.06666",
        "7.777",
    ),
    *("inf", "n/a", "0.00001234", "0.0000015", "0.6931", "0.08765"),
    *("98.77%", "98.11%", "99.22%"),
    *("0.000001111", "0.00002211", "0.00003311", "0.00004411", "0.00005511"),
    *("97.77%", "96.11%", "97.88%", "94.77%", "91.24%", "91.19%", "91.29%"),
    *("12,000", "2.346", "2.457", "0.1111", "-0.004040", "0.00055", "0.06060"),
    *("10.44", "10.18", "11.67", "1.11751", "0.0037", "1.227", "0.039", "1.151", "0.9876"),
    *("-0.9191", "-0.8282", "-0.7373", "-0.6464", "-0.5151", "-0.4242", "-0.0313"),
    *("0.1414", "0.2525", "0.3636", "0.4747", "0.5858", "0.6969"),
    *("41.00%", "81.00%", "40.20%", "80.20%"),
    *("0.02468", "0.1357", "90.12%", "0.0008642", "0.009753", "100.00%"),
    *("12,344", "chapter-17", "128000", "0.932", "<.001", "0.876"),
    *("infinite in 3 of 12,345 rows", "Intervals come from whole clusters."),
)


def changed(**fields: object) -> Comparison:
    return dataclasses.replace(COMPARISON, **fields)


# Numbers


@given(st.floats(allow_nan=False, allow_infinity=False), st.integers(1, 8))
def test_a_number_is_the_value_to_its_digits(value, digits):
    assert float(number(value, digits).replace(",", "")) == float(f"{value:.{digits - 1}e}")


@given(st.floats(0, 1))
def test_a_share_and_a_probability_are_said_to_be_all_or_none_only_when_they_are(share):
    assert (percent(share) == "100.00%") == (probability(share) == "1") == (share == 1)
    assert (percent(share) == "0.00%") == (probability(share) == "0") == (share == 0)
    assert len(probability(share)) <= 5


@given(st.text(st.characters()))
def test_a_printable_text_has_one_line_and_can_be_encoded(text):
    shown = printable(text)
    assert shown.isprintable()
    assert shown.encode().decode() == shown
    assert printable(shown) == shown


# Terminal


@pytest.mark.parametrize("width", [80, 120])
def test_the_terminal_shows_every_number_within_its_width(width):
    text = printed(COMPARISON, width)
    assert [line for line in text.splitlines() if cell_len(line.rstrip()) > width] == []
    unwrapped = " ".join(text.split())
    assert [shown for shown in SHOWN if shown not in unwrapped] == []


def test_no_line_of_a_table_is_broken_at_80_columns_even_for_long_numbers():
    def row(i: int) -> WorstRow:
        top = [TopClass(128000 + i, 0.9, 0.0001), TopClass(127000 + i, 0.0001, 0.9)]
        return WorstRow(98765432 - i, 12.345678, 128255, "a cluster of long name", top)

    worst = [row(i) for i in range(3)]
    text = printed(changed(worst=worst, rows=98765433))
    for i in range(3):
        assert re.search(
            rf"{98765432 - i:,} +12.35 +128255 +{128000 + i}: .* {127000 + i}: <.001 -> 0.900", text
        )


def test_the_terminal_leaves_out_what_is_unknown():
    text = printed(changed(labels=None, clusters=None, worst=[], infinite={}))
    assert "cross-entropy" not in text
    assert " in 17 clusters" not in text
    assert "worst rows" not in text
    assert "is infinite in" not in text


def test_empty_confidence_bins_are_left_out():
    text = printed(COMPARISON)
    assert "0.9 to 1" in text
    assert "0.5 to 0.9" not in text


def test_the_terminal_prints_names_and_obeys_nothing_in_them():
    text = printed(
        changed(p_name=NASTY, notes=[NASTY], worst=[dataclasses.replace(COMPARISON.worst[0], cluster=NASTY)])
    )
    assert "\x1b" not in text
    assert r"[bold]\x1b[31m\udcff" in text.replace("\n", "")


def test_an_ascii_terminal_gets_ascii():
    text = printed(changed(p_name="Möbius.npy", notes=["Σ ≤ 1"]), encoding="ascii")
    assert r"M\xf6bius.npy" in text


# JSON


def same(found: object, expected: object) -> bool:
    """Whether a value read from JSON is the dataclass, list or number that was written."""
    if dataclasses.is_dataclass(expected):
        values = {field.name: getattr(expected, field.name) for field in dataclasses.fields(expected)}
        if isinstance(expected, Value) and "mean" in found:  # as the schema names the value of a mean
            values["mean"] = values.pop("value")
        return same(found, values)
    if isinstance(expected, dict):
        return found.keys() == expected.keys() and all(same(found[key], expected[key]) for key in expected)
    if isinstance(expected, list | tuple):
        values = list(found.values()) if isinstance(found, dict) else found
        return len(values) == len(expected) and all(map(same, values, expected))
    if isinstance(expected, float):
        return float(found) == expected or (math.isnan(float(found)) and math.isnan(expected))
    return found == expected and type(found) is type(expected)


def test_json_holds_every_field_of_the_comparison():
    found = strict(report_json.dumps(COMPARISON))
    assert found.pop("schema") == "kullback.predictions/3"
    assert found.pop("unit") == "nats"
    nats = dict.fromkeys(("kl_pq", "kl_qp", "js"), "nats")
    assert (found.pop("units"), found.pop("confidence")) == ({**nats, "tv": "dimensionless"}, 0.95)
    fields = {field.name: getattr(COMPARISON, field.name) for field in dataclasses.fields(COMPARISON)}
    for name in ("further", "groups", "against_rest"):
        assert fields.pop(name) == {}  # without statistics of the user, or groups, JSON has no such field
    assert [name for name in fields if not same(found[name], fields[name])] == []
    assert found.keys() == fields.keys()


@given(st.floats())
def test_any_float_survives_json(value):
    segment = Segment(0, 1, value, -value)
    found = strict(report_json.dumps(changed(segments=[segment])))["segments"]
    assert same(found, [segment])


def shape(value: object) -> object:
    """The names in a document, with lists reduced to their first item."""
    if isinstance(value, dict):
        return {key: shape(item) for key, item in value.items()}
    return [shape(value[0])] if isinstance(value, list) and value else None


def test_the_names_in_version_3_of_the_schema_stay():
    interval = [None]
    mean = {"mean": None, "standard_error": None, "interval": interval, "reason": None}
    lower = ("minimum", "p001", "p01", "p05", "p10", "p25")
    summary = {
        **mean,
        **dict.fromkeys((*lower, "median", "p75", "p90", "p95", "p99", "p999", "maximum")),
    }
    proportion = {"value": None, "standard_error": None, "interval": interval, "reason": None}
    divergences = dict.fromkeys(("kl_pq", "kl_qp", "js", "tv"))
    means = dict.fromkeys(
        (
            *("cross_entropy_p", "cross_entropy_q", "difference", "delta_prob_rms"),
            *("perplexity_p", "perplexity_q", "perplexity_ratio", "perplexity_difference"),
        ),
        mean,
    )
    finite = dict.fromkeys(divergences, COMPARISON.divergences["kl_pq"])
    top_k = dict.fromkeys(("top_k_accuracy_p", "top_k_accuracy_q"), COMPARISON.top_k_agreement)
    ends = dict.fromkeys(("difference", "perplexity_ratio"), COMPARISON.labels.cross_entropy_p)
    labels = dataclasses.replace(COMPARISON.labels, **ends, **top_k)
    assert shape(strict(report_json.dumps(changed(divergences=finite, labels=labels)))) == {
        **dict.fromkeys(("schema", "unit", "confidence", "p_name", "q_name", "rows", "classes", "clusters")),
        "units": divergences,
        "divergences": dict.fromkeys(divergences, summary),
        "acceptance_rate": mean,
        "top1_agreement": proportion,
        "top_k_agreement": [proportion],
        "labels": {
            **dict.fromkeys(("labeled", "correlation")),
            **means,
            "delta_prob": summary,
            **{key: [proportion] for key in top_k},
        },
        "worst": [
            {**dict.fromkeys(("row", "kl", "label", "cluster")), "top": [dict.fromkeys(("index", "p", "q"))]}
        ],
        "by_confidence": [dict.fromkeys(("low", "high", "rows", "kl_mean", "kl_p99", "top1_agreement"))],
        "histogram": [dict.fromkeys(("low", "high", "rows"))],
        "quantiles": [dict.fromkeys(("probability", "kl"))],
        "segments": [dict.fromkeys(("start", "stop", "kl_mean", "kl_max"))],
        "infinite": divergences,
        "quantiles_exact": None,
        "notes": [None],
        "llama_cpp": None,
        "unseen": None,
        "independent_units": None,
    }


def test_json_is_ascii_whatever_the_names():
    text = report_json.dumps(changed(p_name=NASTY, q_name="Möbius"))
    assert text.isascii()
    assert strict(text)["p_name"] == NASTY


# HTML


def test_the_page_shows_every_number():
    text = " ".join(Page(html.render(COMPARISON)).text.split())
    assert [shown for shown in SHOWN if shown not in text] == []


def test_names_are_escaped():
    worst = [dataclasses.replace(COMPARISON.worst[0], cluster=NASTY)]
    text = html.render(changed(p_name=NASTY, q_name=NASTY, notes=[NASTY], worst=worst))
    page = Page(text)
    assert page.tags("script") == [{}]
    assert page.text.count(printable(NASTY)) == 6  # twice in the title, and once for each place
    text.encode("utf-8")


SVG = "{http://www.w3.org/2000/svg}"


def svgs(text: str) -> list[str]:
    return re.findall(r"<svg.*?</svg>", text, flags=re.DOTALL)


def parsed(svg: str) -> ET.Element:
    return ET.fromstring(svg)  # noqa: S314  # our own drawing


def test_the_plots_take_their_colors_from_the_page():
    drawings = svgs(html.render(COMPARISON))
    assert len(drawings) == 5
    for svg in drawings:
        parsed(svg)
        assert re.findall(r"#[0-9a-fA-F]{6}\b", svg) == []
        assert "var(--first)" in svg
        assert "var(--ink)" in svg
        assert "<style" not in svg


def test_the_histogram_draws_a_bar_for_each_bin_as_high_as_its_rows():
    svg = parsed(svgs(html.render(COMPARISON))[1])  # after the ladder
    bars = [
        [float(value) for value in re.findall(r"[-\d.]+", path.get("d"))]
        for path in svg.iter(f"{SVG}path")
        if "fill: var(--first)" in path.get("style", "")
    ]
    heights = [max(bar[1::2]) - min(bar[1::2]) for bar in bars]
    widths = [max(bar[::2]) - min(bar[::2]) for bar in bars]
    assert heights == pytest.approx([heights[1] * rows / 9000 for rows in (2300, 9000, 1000)], rel=1e-4)
    assert widths == pytest.approx([widths[0], widths[0], 3 * widths[0]], rel=1e-4)


def test_what_a_logarithmic_axis_cannot_hold_is_said():
    text = Page(html.render(changed(infinite={"kl_pq": 6}))).text
    assert "Not drawn: 45 rows at exactly 0 and 6 at infinity." in text
    assert "Triangles mark infinite rows." in text


def test_the_same_comparison_gives_the_same_page_whatever_the_users_style():
    first = html.render(COMPARISON)
    with mpl.rc_context({"font.size": 30, "axes.facecolor": "red", "svg.fonttype": "path"}):
        before = dict(mpl.rcParams)
        assert html.render(COMPARISON) == first
        assert dict(mpl.rcParams) == before


@pytest.mark.sweep
def test_rendering_leaves_pyplot_alone():
    program = (
        "import sys; from tests.report.predictions import test_report as t; from kullback.report import html; "
        "html.render(t.COMPARISON); sys.exit('matplotlib.pyplot' in sys.modules)"
    )
    path = os.pathsep.join([str(Path(__file__).parents[3]), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": path}
    assert subprocess.run([sys.executable, "-c", program], env=environment, check=False).returncode == 0


def test_identical_predictions_make_a_page_without_plots():
    p = Logits(torch.randn(50, 6))
    comparison = compare_predictions(p, p)
    text = html.render(comparison)
    assert svgs(text) == []
    assert "100.00%" in text
    assert "maximum" in printed(comparison)


@pytest.mark.parametrize("rows", [1, 2])
def test_the_smallest_comparisons_can_be_reported(rows):
    p = Probs(torch.tensor([[0.5, 0.5], [1.0, 0.0]])[:rows])
    q = Probs(torch.tensor([[0.25, 0.75], [0.0, 1.0]])[:rows])
    comparison = compare_predictions(p, q)
    assert "0.1438" in html.render(comparison)
    assert "0.1438" in printed(comparison)
    assert strict(report_json.dumps(comparison))["infinite"]["kl_pq"] == rows - 1


@pytest.mark.sweep
@pytest.mark.parametrize("scale", [1e-3, 1.0, 30.0])
@pytest.mark.parametrize("infinite", [0, 60, 150])
def test_every_axis_is_labeled_however_narrow_the_range(scale, infinite):
    p = torch.randn(100, 8).repeat_interleave(2, 0)
    q = p + scale * (1 + torch.arange(200)[:, None] / 1000) * torch.randn(8)
    q[:infinite, 0] = -torch.inf
    drawings = svgs(html.render(compare_predictions(Logits(p), Logits(q), bootstrap=0)))
    assert len(drawings) >= 3
    for svg in drawings:
        for axis in "xy":
            ticks = [group for group in parsed(svg).iter(f"{SVG}g") if f"-{axis}tick_" in group.get("id", "")]
            labels = [label.text for tick in ticks for label in tick.iter(f"{SVG}text")]
            assert len(set(labels)) >= 2


@pytest.mark.parametrize(("module", "library"), [("jinja2", "jinja2"), ("matplotlib.style", "matplotlib")])
def test_a_missing_library_is_named_with_its_remedy(monkeypatch, module, library):
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(OptionalDependencyError, match=rf"needs {library}.*pip install {library}$"):
        html.render(COMPARISON)


@pytest.mark.parametrize(("q", "tone"), [([0.5, 0.5], ""), ([0.5, 0.4999999], ""), ([1.0, 0.0], "bad")])
def test_an_infinite_divergence_has_the_color_of_a_failure(q: list[float], tone: str) -> None:
    p = Probs(torch.tensor([[0.5, 0.5]] * 4, dtype=torch.float64))
    weights = torch.tensor([q] * 4, dtype=torch.float64)
    comparison = compare_predictions(p, Probs(weights / weights.sum(-1, keepdim=True)))
    assert document(comparison).tone == tone
    assert f'class="outcome {tone}"' in html.render(comparison) or not tone
