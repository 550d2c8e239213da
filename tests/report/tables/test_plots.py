"""The drawings of the page on tables: true scale, sensible ticks, bars for few values."""

from __future__ import annotations

import dataclasses
import re
from itertools import pairwise

import numpy as np
import pandas as pd
import pytest
from matplotlib import style
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from kullback import compare_tables
from kullback.report.plots.svg import SIZE, STYLE, draw_svg
from kullback.report.plots.tables import draw_column
from kullback.tables.table_results import HistogramBin

DAYS = pd.DataFrame({"x": pd.date_range("2024-01-01", periods=60)})
DATES = compare_tables(DAYS, DAYS)["x"]


def labels_of(p, q=None) -> list[str]:
    """The texts of the drawing of a column, from left to right and from bottom to top."""
    found = compare_tables(pd.DataFrame({"x": p}), pd.DataFrame({"x": p if q is None else q}))
    plot = draw_column(found["x"], "name")
    assert plot is not None
    svg = draw_svg(plot.name, plot.draw)
    assert "nan" not in svg
    return re.findall(r"<text[^>]*>([^<]*)</text>", svg)


def ticks(texts: list[str]) -> list[str]:
    """The labels of the axis of values: what comes before the percentages."""
    first = next(place for place, text in enumerate(texts) if "%" in text)
    return [text for text in texts[:first] if not re.match("[a-z]+( |$)", text)]


RANDOM = np.random.default_rng(0)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([0, 1, 1] * 40, ["0", "1"]),
        ([0.0, 1.0, 1.0] * 40, ["0", "1"]),
        ([1, 2, 3, 4, 5] * 40, ["1", "2", "3", "4", "5"]),
        ([-1, 1] * 60, ["−1", "1"]),
        ([10**6, 10**6 + 1] * 60, ["1,000,000", "1,000,001"]),
        ([2**53, 2**53 + 1] * 60, [str(2**53), str(2**53 + 1)]),
        ([1, 2, 60] * 40, ["1", "2", "60"]),
        ([0, 100, 200] * 40, ["0", "100–101", "200"]),
        ([200, 301, 404, 500] * 40, ["200–203", "296–303", "400–407", "496–500"]),
    ],
)
def test_few_values_have_a_tick_each(values, expected):
    assert ticks(labels_of(values)) == expected


def test_a_few_values_are_drawn_as_two_bars_each():
    found = compare_tables(pd.DataFrame({"x": [0, 1, 1] * 40}), pd.DataFrame({"x": [0, 0, 1] * 40}))
    svg = draw_svg("name", draw_column(found["x"], "name").draw)
    for color in ("--first", "--second"):
        bars = [path for path in re.findall(r"<path[^>]*>", svg) if f"fill: var({color})" in path]
        assert len(bars) == 3  # two values, and the legend
    assert "<path" in svg


@pytest.mark.parametrize(
    "values",
    [
        RANDOM.normal(300, 5, 1000),
        RANDOM.integers(18, 90, 1000),
        np.where(RANDOM.random(1000) < 0.5, 0, RANDOM.exponential(size=1000)),
        np.exp(RANDOM.normal(10, 1, 1000)),
        np.exp(RANDOM.normal(0, 4, 1000)),
        RANDOM.standard_cauchy(1000),
        1e-9 * RANDOM.normal(size=1000),
        1e12 + RANDOM.integers(0, 10**9, 1000),
        RANDOM.normal(size=1000) * 1e200,
        pd.Timestamp("2024-01-01") + pd.to_timedelta(RANDOM.integers(0, 10**7, 1000), unit="s"),
        pd.Timestamp("2024-01-01") + pd.to_timedelta(RANDOM.integers(0, 5000, 1000), unit="s"),
    ],
)
def test_ticks_are_few_different_and_short(values):
    found = ticks(labels_of(values))
    assert 2 <= len(found) <= 9
    assert len(set(found)) == len(found)
    assert max(map(len, found)) <= 14
    assert not [label for label in found if "308" in label]


SPANS = np.geomspace(1e3, 6e16, 60)  # from a millisecond to 1,900 years, in microseconds


@pytest.mark.heavy
@pytest.mark.parametrize("start", [-80_000.25, 0.0, 20_500.9])
@style.context(["default", STYLE])
def test_labels_of_dates_are_two_or_more_and_do_not_overlap(start):
    for span in SPANS:
        edges = (86_400_000_000 * start + span * np.linspace(0, 1, 21)).astype(int).tolist()
        bins = tuple(HistogramBin(low, high, 1.0, 2.0) for low, high in pairwise(edges))
        column = dataclasses.replace(DATES, histogram=bins)
        figure = Figure(figsize=SIZE)
        FigureCanvasAgg(figure)
        axes = figure.add_subplot()
        draw_column(column, "name").draw(axes)
        figure.draw_without_rendering()
        texts = [label.get_text() for label in axes.get_xticklabels()]
        boxes = [label.get_window_extent() for label in axes.get_xticklabels()]
        assert len(set(texts)) == len(texts) >= 2, span
        assert min(right.x0 - left.x1 for left, right in pairwise(boxes)) > 4, (span, texts)
        assert boxes[0].x0 >= 0
        assert boxes[-1].x1 <= figure.bbox.x1
        if span > 1.5e7:  # the ticks are at multiples of five seconds
            assert not any(re.search(r"[1-46-9]$", text) for text in texts if text.count(":") == 2), texts
        # Ticks without a year have it in the label of the axis.
        assert len(texts[0]) in (4, 7, 10) or re.match(r"since [12]\d{3}", axes.get_xlabel()), texts


def test_integers_have_integer_ticks():
    assert all(label.isdigit() for label in ticks(labels_of(RANDOM.integers(18, 90, 1000))))


def test_a_normal_distribution_is_drawn_as_a_bell_and_not_flat():
    column = compare_tables(*(pd.DataFrame({"x": RANDOM.normal(size=4000)}) for _ in "pq"))["x"]
    heights = np.array([each.p for each in column.histogram if np.isfinite(each.low)])
    assert heights.argmax() in range(len(heights) // 3, 2 * len(heights) // 3)
    assert heights.max() > 10 * max(heights[0], heights[-1])
    quantiles = np.array([part.p for part in column.bins])
    assert quantiles.max() < 1.3 * quantiles.min()  # what is compared


def test_a_column_of_one_value_is_not_drawn():
    table = pd.DataFrame({"x": [3] * 60})
    assert draw_column(compare_tables(table, table)["x"], "name") is None
