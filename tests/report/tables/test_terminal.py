"""The report on tables in a terminal: what comes first, what goes when it is narrow, and what the colors say."""

from __future__ import annotations

import re

import numpy as np
import pandas as pd
import pytest
from rich.cells import cell_len

from kullback import compare_tables
from kullback.cli.gates import OF_TABLES, parse_gate
from kullback.report import document, html, terminal
from kullback.report.subjects.tables import MODERATE, meaning, summary
from tests.report.media import printed

LONG = "a column with a name that is longer than any table has room for"


def frame(seed: int, rows: int, shift: float) -> pd.DataFrame:
    random = np.random.default_rng(seed)
    return pd.DataFrame(
        {
            "number": random.normal(shift, 1, rows),
            "flag": random.random(rows) < 0.3 + 0.2 * shift,
            "still": random.normal(size=rows),
            LONG: random.integers(0, 3, rows),
            "id": [f"{seed}-{i}" for i in range(rows)],
            "constant": 3,
            "zero": np.where(random.random(rows) < 0.5, 0.0, random.exponential(size=rows)),
        }
    )


@pytest.fixture(scope="module")
def found():
    after = frame(1, 2000, 0.6).assign(fresh=1)
    return compare_tables(frame(0, 2000, 0), after)


@pytest.mark.parametrize("width", [40, 60, 80, 100, 140])
def test_names_stay_whole_and_divergences_go_where_it_is_narrow(found, width):
    text = printed(found, width)
    assert max(map(cell_len, text.splitlines())) <= width
    table = text[text.index("By column") : text.index("The bins that contribute")]
    for name in ("number", "flag", "still", "id", "constant", "zero"):
        assert re.search(rf"^{name} ", table, re.MULTILINE)
    assert all(word in table for word in LONG.split())
    kept = {40: "PSI", 60: "PSI", 80: "95% CI", 100: "KL(P||Q)", 140: "KL(Q||P)"}
    assert kept[width] in table
    assert ("KL(" in table) == (width >= 80)


def test_the_sentence_on_top_says_what_was_found(found):
    assert summary(found) == (
        "2 of 7 columns differ, 1 of them by a large shift; 'number' differs most "
        f"(PSI {found['number'].psi.value:.3f}); 1 column is inconclusive; 1 column could not be compared."
    )
    passed = parse_gate("psi[still]=0.2", "above", OF_TABLES).verdict(found)
    failed = parse_gate("psi=0.2", "above", OF_TABLES).verdict(found)
    good, bad = document(found, [passed]), document(found, [passed, failed])
    assert good.outcome.startswith("Passed: 1 limit. 2 of 7 columns differ")
    assert bad.outcome.startswith("Failed: 1 of 2 limits broken. 2 of 7 columns differ")
    assert (good.tone, bad.tone) == ("good", "bad")


def test_columns_mean_what_their_numbers_and_limits_say(found):
    means = {column.name: meaning(column) for column in found.columns}
    assert means["number"] == ("large shift", "bad")
    assert found["flag"].psi.value < MODERATE
    assert means["flag"] == ("small shift", "unknown")
    assert means["still"] == means["constant"] == ("none seen", "good")
    assert means["id"] == ("inconclusive", "unknown")
    strict = parse_gate("psi.value=0.01", "above", OF_TABLES).verdict(found)
    assert strict.broken_by == ("number", "flag")
    assert "'id' is unknown: most values are too rare" in strict.unclear[0]
    assert meaning(found["flag"], [strict]) == ("limit broken", "bad")
    assert meaning(found["id"], [strict]) == ("inconclusive", "unknown")
    few = compare_tables(frame(0, 12, 0), frame(1, 12, 0))
    assert meaning(few["number"]).words == "inconclusive"


def test_colors_are_for_terminals_that_have_them(found):
    colored = printed(found, console={"force_terminal": True, "color_system": "standard"})
    assert re.search(r"\x1b\[1;31mlarge shift", colored)
    assert re.search(r"\x1b\[32mnone seen", colored)
    assert "\x1b" not in printed(found)


def test_findings_come_by_severity_and_drift_before_remarks_about_ids(found):
    text = printed(found)
    levels = re.findall(r"^(error|warning|note): ", text, re.MULTILINE)
    assert levels == sorted(levels, key=("error", "warning", "note").index)
    assert text.index("large shift") < text.index("note: 'id'")
    (first, *_), page = re.findall(r"^error: (.*)", text, re.MULTILINE), html.render(found)
    assert first == "'fresh' is in Q only"
    assert (
        page.index("&#39;number&#39;: PSI")
        < page.index("&#39;flag&#39;: PSI")
        < page.index("&#39;id&#39; has")
    )


def test_numbers_have_one_notation(found):
    for text in (printed(found, 140), html.render(found)):
        cells = re.findall(r"(?<![\w.#-])\d[\d.,]*(?:e[+-]?\d+)?(?![\w%])", text)
        assert not [cell for cell in cells if "e" in cell]
        assert "e-308" not in text


def test_no_bins_are_blamed_where_no_difference_is_seen(found):
    table = printed(found)
    bins = table[table.index("The bins that contribute") :]
    assert "number: " in bins
    assert "still: " not in bins
    assert "constant: " not in bins


def test_a_bin_just_above_zero_begins_at_zero():
    half = pd.DataFrame({"x": [0.0] * 50 + list(np.linspace(0.5, 20, 50))})
    labels = [part.label for part in compare_tables(half, half)["x"].bins]
    assert labels[0] == "0"
    assert labels[1].startswith("0 to ")


def test_edges_of_bins_have_no_exponent_where_none_is_needed():
    random = np.random.default_rng(0)
    incomes = pd.DataFrame({"x": np.exp(random.normal(10, 1, 1000))})
    labels = [part.label for part in compare_tables(incomes, incomes)["x"].bins]
    assert not [label for label in labels if "e" in label]


def test_hundreds_of_findings_do_not_bury_the_outcome():
    many = pd.DataFrame({f"c{i}": [1, 2] * 30 for i in range(60)})
    found = compare_tables(many, many[["c0"]])
    text = printed(found)
    assert text.startswith("No difference is seen in 1 column; 59 columns could not be compared.")
    assert text.count("error: ") == terminal.MOST_REMARKS
    rest = len(found.findings) - terminal.MOST_REMARKS
    assert f"{rest} more findings are in the JSON and on the page" in text
