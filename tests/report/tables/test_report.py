"""The reports on tables: the schema of the JSON, what the terminal fits, and the page as a browser shows it."""

from __future__ import annotations

import functools
import json
import math
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from kullback.common.formats import interval, p_value
from kullback.report import html as tables_html, json as tables_json
from kullback.report.subjects.tables import MOST_DRAWN, contributors
from kullback.results.verdict import Verdict
from kullback.tables.compare_two_tables import compare_tables
from kullback.tables.table_results import TableComparison
from tests.report.media import Page, printed, strict
from tests.report.pages import DESK, WIDTHS, boxes

HOSTILE = "</style><script>alert(1)</script> $x_1$ &amp; " + "unbroken" * 8
VERDICTS = (
    Verdict("psi at most 0.2", ("psi of 'number' is 0.3, above 0.2 by 0.1",)),
    Verdict("tv at most 0.9", ()),
)


def frame(seed: int, rows: int, shift: float) -> pd.DataFrame:
    random = np.random.default_rng(seed)
    return pd.DataFrame(
        {
            "number": random.normal(shift, 1, rows),
            "kelvin": 273 + random.normal(20 + shift, 2, rows),
            "holes": np.where(random.random(rows) < 0.1 + 0.1 * shift, np.nan, random.exponential(size=rows)),
            "day": pd.Timestamp("2024-01-01") + pd.to_timedelta(random.integers(0, 10**6, rows), unit="s"),
            "flag": random.random(rows) < 0.3 + 0.2 * shift,
            "fruit": random.choice(["apple", "pear", HOSTILE], rows, p=[0.5, 0.4, 0.1]),
            HOSTILE: random.choice([f"c{i}" for i in range(30)], rows),
            "note": ["x" * 40 + str(i) * int(random.integers(1, 9)) for i in range(rows)],
            "constant": 3,
        }
    )


@functools.cache
def everything() -> TableComparison:
    """A comparison in which everything happens: new categories, missing columns and values, groups of columns."""
    before, after = frame(0, 1500, 0), frame(1, 1200, 0.5)
    after.loc[:80, "fruit"] = "new"
    after["fresh"] = 1
    generator = torch.Generator().manual_seed(0)
    return compare_tables(before, after, joint=[("number", "fruit")], generator=generator, independent=True)


@pytest.fixture(scope="module")
def comparison() -> TableComparison:
    return everything()


@pytest.fixture(scope="module")
def nothing() -> TableComparison:
    return compare_tables(pd.DataFrame({"a": [1]}), pd.DataFrame({"b": [1]}))


# JSON

QUANTITY = {"value", "standard_error", "interval"}
DIVERGENCES = {"kl_pq", "kl_qp", "js", "psi", "tv", "p_value", "p_adjusted", "bins", "notes"}
SCHEMA = {
    "": {
        *("schema", "unit", "units", "p_name", "q_name", "p_rows", "q_rows", "columns", "joint", "findings"),
        *("confidence", "max_bins", "weights", "cluster"),
    },
    "columns": {
        "name",
        "column_type",
        "missing_p",
        "missing_q",
        "new",
        "vanished",
        "histogram",
        "ks",
        "words",
        *DIVERGENCES,
    },
    "joint": {"columns", *DIVERGENCES},
    "findings": {"code", "message", "level", "advice", "column"},
    "bins": {"label", "low", "high", "p", "q", "contribution"},
}


def test_the_schema_of_the_json_stays_as_it_is(comparison):
    found = json.loads(tables_json.dumps(comparison))
    assert found["schema"] == "kullback.tables/2"
    assert found["unit"] == "nats"
    assert found.keys() == SCHEMA[""]
    for part in ("columns", "joint", "findings"):
        assert found[part]
        assert all(each.keys() == SCHEMA[part] for each in found[part])
    for each in (*found["columns"], *found["joint"]):
        assert all(each[name].keys() == QUANTITY for name in ("kl_pq", "kl_qp", "js", "psi", "tv"))
        assert all(part.keys() == SCHEMA["bins"] for part in each["bins"])


def test_the_json_is_strict_and_reads_back_as_the_same_numbers(comparison):
    text = tables_json.dumps(comparison)
    found = strict(text)
    assert text.isascii()
    for read, column in zip(found["columns"], comparison.columns, strict=True):
        assert read["name"] == column.name
        assert read["psi"]["value"] == column.psi.value
        ends = column.psi.interval
        assert read["psi"]["interval"] == (
            None if ends is None else [ends[0], "Infinity" if math.isinf(ends[1]) else ends[1]]
        )
    number = next(each for each in found["columns"] if each["name"] == "number")
    assert (number["bins"][0]["low"], number["bins"][-1]["high"]) == ("-Infinity", "Infinity")


def test_a_comparison_of_nothing_has_all_reports(nothing):
    assert json.loads(tables_json.dumps(nothing))["columns"] == []
    assert printed(nothing).startswith(
        "Nothing was compared; 2 columns could not be compared.\nNo test was made.\n"
    )
    assert "Nothing was compared; 2 columns could not be compared." in tables_html.render(nothing)


# The terminal


def test_the_terminal_shows_columns_bins_limits_and_findings(comparison):
    text = printed(comparison, verdicts=VERDICTS)
    assert max(map(len, text.splitlines())) <= 80
    for words in (
        "PSI",
        "95% CI",
        "number",
        "Columns together",
        "fruit: new",
        "FAILED: psi at most 0.2",
        "passed: tv",
    ):
        assert words in text
    assert "'fresh' is in Q only" in " ".join(text.split())
    order = [text.index(f"\n{name}") for name in ("number ", "kelvin ", "constant ")]
    assert order[0] < order[2]


def test_a_terminal_of_ascii_can_show_it(comparison):
    assert printed(comparison, encoding="ascii").isascii()


def test_control_characters_are_spelt_out():
    table = pd.DataFrame({"a\x1b[2J": ["x\x07", "y"] * 30})
    found = compare_tables(table, table[:30])
    for text in (printed(found), tables_html.render(found)):
        assert "\x1b" not in text
        assert "\x07" not in text


def test_words_for_numbers(comparison):
    assert [p_value(p) for p in (0.0004, 0.0123, 0.5)] == ["<0.001", "0.012", "0.500"]
    constant = next(each for each in comparison.columns if each.name == "constant")
    assert interval(constant.psi.interval) == "n/a"
    assert contributors(constant, 3) == []


# The page


def test_the_page_is_the_same_every_time_and_escapes_every_name(comparison):
    page = tables_html.render(comparison, VERDICTS)
    assert page == tables_html.render(comparison, VERDICTS)
    shown = Page(page)
    assert {tag: len(shown.tags(tag)) for tag in ("script", "style")} == {"script": 1, "style": 1}
    assert HOSTILE in shown.text
    assert len(shown.tags("svg")) == 5  # number, kelvin, holes, day, note


def test_the_page_says_what_was_found(comparison):
    text = " ".join(Page(tables_html.render(comparison, VERDICTS)).text.split())
    for words in (
        "Limit broken",
        "psi of 'number' is 0.3",
        "Limit passed",
        "'fresh' is in Q only",
        "number × fruit",
    ):
        assert words in text
    assert "missing: " in text
    assert "of P," in text


def test_many_columns_are_all_in_the_table_and_the_first_are_drawn():
    random = np.random.default_rng(0)
    wide = pd.DataFrame({f"column {i}": random.choice(["a", "b"], 100) for i in range(60)})
    page = tables_html.render(compare_tables(wide, wide[:50]))
    assert page.count("<figure") == MOST_DRAWN
    assert all(f"column {i}<" in page for i in range(60))
    assert "The 40 columns of largest PSI are shown" in page


@pytest.fixture(scope="module")
def report(comparison, tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("report") / "tables.html"
    path.write_text(tables_html.render(comparison, VERDICTS), encoding="utf-8")
    return path


@pytest.mark.parametrize("width", WIDTHS)
def test_both_distributions_are_drawn_across_the_plot(open_page, width):
    page = open_page(width)
    for plot in page.locator("figure svg").all():
        for color in ("--first", "--second"):
            drawn = boxes(plot, f"path[clip-path][style*='{color}']")  # an outline, or bars
            left, right = min(box["x"] for box in drawn), max(box["x"] + box["width"] for box in drawn)
            assert right - left > 0.5 * plot.bounding_box()["width"]


def test_bars_are_as_long_as_shares(open_page):
    page = open_page(DESK)
    figure = page.locator("figure", has=page.get_by_role("heading", name="flag"))
    lengths = [box["width"] for box in boxes(figure, ".bar")]
    proportions = [
        float(text.rstrip("%")) for text in figure.locator("td:not(.bars)").all_inner_texts() if "%" in text
    ]
    assert len(lengths) == len(proportions) == 4
    assert [length / max(lengths) for length in lengths] == pytest.approx(
        [proportion / max(proportions) for proportion in proportions], abs=0.02
    )


def test_a_name_leads_to_its_distribution(open_page):
    page = open_page(DESK)
    links = page.locator("table a").evaluate_all("all => all.map(each => each.getAttribute('href').slice(1))")
    assert len(links) == 9
    assert all(page.locator(f"#{link}").count() == 1 for link in links)
