"""Results show themselves: printed, in one line, in a notebook, as a page, as JSON and as a data frame."""

from __future__ import annotations

import json
import math
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest
import torch
from torch.distributions import Normal

from kullback import Estimate, Logits, compare_predictions, compare_tables, kl_estimate


@pytest.fixture(scope="module")
def tables():
    random = np.random.default_rng(0)
    p = pd.DataFrame(
        {f"column {i}": random.normal(size=300) for i in range(40)} | {"plan": ["a", "b", "b"] * 100}
    )
    q = p.assign(plan=["a", "a", "b"] * 100)
    return compare_tables(p, q, joint=[("plan", "column 0")])


@pytest.fixture(scope="module")
def predictions():
    generator = torch.Generator().manual_seed(0)
    p, q = torch.randn(2, 200, 7, generator=generator)
    return compare_predictions(Logits(p), Logits(q))


@pytest.fixture(params=["tables", "predictions"])
def result(request):
    return request.getfixturevalue(request.param)


def test_print_gives_the_table_of_the_terminal(result, monkeypatch):
    for width in (60, 80, 120):
        monkeypatch.setenv("COLUMNS", str(width))
        lines = str(result).splitlines()
        assert max(map(len, lines)) <= width
        assert len(lines) > 20
        assert "\x1b" not in "".join(lines)


def test_the_repr_is_one_short_line(result):
    assert len(repr(result).splitlines()) == 1
    assert len(repr(result)) < 250


def test_parts_of_a_comparison_of_tables_have_short_reprs(tables):
    for part in (*tables.columns, *tables.joint):
        assert len(repr(part)) < 120
    assert repr(tables["plan"]).startswith("ColumnComparison('plan', psi=0.")


def test_a_notebook_shows_the_table_of_the_page(result):
    shown = result._repr_html_()
    is_of_tables = hasattr(result, "columns")
    assert shown.count("<table>") == 1 + is_of_tables  # the columns together
    assert "KL(P‖Q)" in shown
    assert "<script" not in shown
    rows = shown.count('<th scope="row">')
    assert rows == (42 if is_of_tables else 15)
    assert f'<th scope="row">{"plan" if is_of_tables else "mean"}</th>' in shown
    first = shown.split('<th scope="row">')[1].split("</tr>")[0]
    assert is_of_tables or first in result.to_html()  # the page has links to the distributions


def test_a_comparison_of_tables_is_a_data_frame_of_columns(tables):
    frame = tables.to_pandas().set_index("column")
    assert len(frame) == 42
    for column in (*tables.columns, *tables.joint):
        row = frame.loc[column.label]
        for name in ("psi", "kl_pq", "kl_qp", "js", "tv"):
            quantity = getattr(column, name)
            expected = [quantity.value, *(quantity.interval or (math.nan, math.nan))]
            found = [row[name + end] for end in ("", "_low", "_high")]
            assert found == pytest.approx([math.nan if x is None else x for x in expected], nan_ok=True)
        assert row["p_adjusted"] == column.p_adjusted
    assert frame.loc["plan", "column_type"] == "categorical"
    assert frame.loc["plan,column 0", "column_type"] == "joint"


def test_a_comparison_of_nothing_is_an_empty_data_frame():
    frame = compare_tables(pd.DataFrame({"a": [1]}), pd.DataFrame({"b": [1]})).to_pandas()
    assert (len(frame), frame.psi.dtype) == (0, np.float64)


def test_what_is_not_known_is_nan_in_a_data_frame():
    ids = [pd.DataFrame({"id": [f"{side}{i}" for i in range(500)]}) for side in "pq"]
    (row,) = compare_tables(*ids).to_pandas().to_dict("records")
    assert math.isnan(row["psi"])
    assert (row["psi_low"], row["psi_high"]) == (0, math.inf)


def test_a_comparison_of_predictions_is_a_data_frame_of_divergences(predictions):
    frame = predictions.to_pandas()
    assert frame.index.tolist() == ["kl_pq", "kl_qp", "js", "tv"]
    for name, summary in predictions.divergences.items():
        assert frame.loc[name, "mean"] == summary.mean
        assert (frame.loc[name, "low"], frame.loc[name, "high"]) == summary.interval
        assert frame.loc[name, "p999"] == summary.p999


def test_columns_are_found_by_name(tables):
    assert tables["plan"].name == "plan"
    assert tables["plan", "column 0"] is tables.joint[0]


@pytest.mark.sweep
def test_the_outcome_stands_first(tables, predictions):
    assert str(tables).startswith("1 of 41 columns differs by a large shift: 'plan' (PSI 0.4")
    kl = predictions.divergences["kl_pq"].mean
    assert 0.1 < kl < 1
    assert str(predictions).startswith(f"KL(P||Q) of a row is {kl:.3f} nat (95% CI ")
    for result in (tables, predictions):
        page = result.to_html()
        body = page[page.index("<body>") :]
        assert " ".join(str(result).split())[:30].replace("||", "‖").replace("'", "&#39;") in body[:250]


@pytest.mark.heavy
def test_results_need_no_package_of_the_reports_until_they_are_shown():
    script = """
import sys
sys.modules.update(dict.fromkeys(("rich", "jinja2", "matplotlib")))
import kullback.common.optional
kullback.common.optional.find_spec = lambda name: None
import pyarrow as pa
from kullback import compare_tables
found = compare_tables(pa.table({"x": [1, 2] * 30}), pa.table({"x": [1, 2] * 30}))
said = str(found).splitlines()
assert said[0] == "No difference is seen in 1 column.", said
assert [line.split()[:3] for line in said if line.startswith("x ")] == [["x", "none", "seen"]], said
assert found._repr_html_() is None
print(len(found.to_json()))
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 500


def test_json_holds_the_histogram(tables):
    written = json.loads(tables.to_json())["columns"]
    for read, column in zip(written, tables.columns, strict=True):
        assert len(read["histogram"]) == len(column.histogram)
        assert all(each.keys() == {"low", "high", "p", "q"} for each in read["histogram"])


def test_the_axis_of_an_estimate_has_kind_unit_and_meaning_of_the_ends_and_no_offset() -> None:
    far = kl_estimate(Normal(torch.zeros(2), 1.0), Normal(torch.tensor([1000.0, 1000.0001]), 1.0))
    in_bits = Estimate(
        torch.tensor(0.2), None, "knn", (torch.tensor(0.1), torch.tensor(0.3)), base=2, confidence=0.9
    )
    labels = {"KL, nats (± bound on the error)": far, "KL, bits (90 % interval)": in_bits}
    for label, estimate in labels.items():
        figure, axis = estimate.plot()
        figure.canvas.draw()
        assert axis.get_ylabel() == label
        assert axis.yaxis.get_offset_text().get_text() == ""
