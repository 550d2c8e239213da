"""Text that is numbers or dates, and identifiers: their findings, in every engine, and what reports say of them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from kullback import compare_tables
from kullback.report.subjects.tables import meaning, summary, tone_of
from kullback.tables import TableComparison, compare_profiles, profile_table
from kullback.tables.table_profile import Profile

ROWS = 1200


def spread(seed: int, first: int, shift: float = 0.1) -> pd.DataFrame:
    """Numbers as text in several forms, categories that look alike, and identifiers."""
    r = np.random.default_rng(seed)
    x = r.normal(shift, 1, ROWS)
    hole = r.random(ROWS) < 0.05
    stamps = pd.Timestamp("2026-01-01 08:30") + pd.to_timedelta((x + 6) * 9000, unit="m")
    return pd.DataFrame(
        {
            "clean": x,
            "with_NA": np.where(hole, "N/A", [f"{v:.3f}" for v in x]),
            "half": np.where(r.random(ROWS) < 0.4, "unknown", [f"{v:.2f}" for v in x]),
            "comma": [f"{v:.3f}".replace(".", ",") for v in x],
            "thousands": [f"{1e5 * v:,.2f} €" for v in x],
            "percent": [f"{v:.2f}%" for v in x],
            "exponent": [f"{v:.3e}" for v in x],
            "ages": [f"{int(40 + 9 * v)}" if not h else "?" for v, h in zip(x, hole, strict=True)],
            "iso": np.where(hole, "never", stamps.strftime("%Y-%m-%d %H:%M:%S")),
            "german": np.where(hole, "nie", stamps.strftime("%d.%m.%Y")),
            "clock": stamps.strftime("%H:%M"),
            "rating": r.choice(["1", "2", "3", "4", "5", "N/A"], ROWS),
            "postal": [f"{v:05d}" for v in r.integers(0, 90, ROWS)],
            "city": r.choice([f"city {v}" for v in range(60)], ROWS),
            "version": r.choice([f"1.{v}.{v + 1}" for v in range(60)], ROWS),
            "amount": r.integers(0, 10**6, ROWS),
            "row": np.arange(first, first + ROWS),
            "customer_id": r.permutation(10**6)[:ROWS],
            "key": [f"k{v:x}" for v in r.integers(0, 1 << 60, ROWS)],
            "number": [str(v) for v in r.integers(10**12, 10**13, ROWS)],
        }
    )


DATES, NUMBERS = {"iso", "german"}, {"with_NA", "comma", "thousands", "percent", "exponent", "ages", "clock"}
AS_CATEGORIES = {"half"}
AS_TEXT = DATES | NUMBERS | AS_CATEGORIES
IDENTIFIERS = {"row", "customer_id", "key", "number"}
P, Q = spread(0, 0), spread(1, ROWS)


def found(comparison: TableComparison, code: str) -> set[str | None]:
    return {each.column for each in comparison.findings if each.code == code}


def check(comparison: TableComparison, case: object, text: set[str] = AS_TEXT) -> None:
    assert found(comparison, "numbers-as-text") == text, case
    assert found(comparison, "identifier") == IDENTIFIERS, case
    assert {each.column for each in comparison.findings[-4:]} == IDENTIFIERS, case
    assert {each.name for each in comparison.columns[-4:]} == IDENTIFIERS, case
    for name in text - AS_CATEGORIES:
        expected = ("datetime" if name in DATES else "numeric", None)
        assert (comparison[name].column_type, comparison[name].content) == expected, (case, name)
    for name in AS_CATEGORIES:
        assert comparison[name].column_type == "categorical", (case, name)
        assert meaning(comparison[name]).tone != "good", (case, name)
        assert meaning(comparison[name]).words != "small shift", (case, name)
    for name in IDENTIFIERS:
        assert meaning(comparison[name]) == ("inconclusive", "unknown"), (case, name)
        assert all(each.level == "note" for each in comparison.findings if each.column == name), (case, name)
    assert all(name not in summary(comparison) for name in IDENTIFIERS), case


@pytest.mark.sweep
def test_numbers_as_text_and_identifiers_are_found_in_every_engine(tmp_path: Path) -> None:
    import duckdb

    p_table, q_table = pa.Table.from_pandas(P), pa.Table.from_pandas(Q)
    # The most that engines differ in is how they read; counting is the same for all (test_engines).
    check(compare_tables(p_table, q_table), "pyarrow")
    check(compare_tables(P, Q), "pandas")
    check(compare_tables(pl.from_pandas(P).lazy(), pl.from_pandas(Q).lazy()), "polars")
    connection = duckdb.connect()
    connection.register("p_table", p_table)
    connection.register("q_table", q_table)
    check(compare_tables(connection.table("p_table"), connection.table("q_table")), "duckdb")
    for suffix in ("parquet", "csv", "ndjson"):
        paths = [tmp_path / f"{name}.{suffix}" for name in "pq"]
        for path, frame in zip(paths, (P, Q), strict=True):
            if suffix == "parquet":
                frame.to_parquet(path)
            elif suffix == "csv":
                frame.to_csv(path, index=False)
            else:
                frame.to_json(path, orient="records", lines=True)
        if suffix == "csv":  # digits, exponents and times of day are read as numbers
            columns = [name for name in P if name not in ("number", "postal", "rating")]
            comparison = compare_tables(*paths, columns=columns)
            assert found(comparison, "numbers-as-text") == AS_TEXT - {"clock", "exponent"}
            assert found(comparison, "identifier") == IDENTIFIERS - {"number"}
        else:
            check(compare_tables(*paths), suffix, AS_TEXT - ({"clock"} if suffix == "ndjson" else set[str]()))


def test_a_saved_profile_has_the_same_findings() -> None:
    p = profile_table(P)
    saved = Profile.from_json(p.to_json())
    check(compare_profiles(saved, profile_table(Q, like=p)), "saved")


@pytest.mark.sweep
def test_the_remedies_show_the_shift() -> None:
    p, q = spread(0, 0), spread(1, 0, shift=1.1)
    (message,) = (
        each.message
        for each in compare_tables(p, q, columns=["half"]).findings
        if each.code == "numbers-as-text"
    )
    assert (
        "because fewer than 90 % are written in one way; convert the column first, as with pandas.to_numeric"
        in message
    )
    numbers = [frame[["half"]].apply(pd.to_numeric, errors="coerce") for frame in (p, q)]
    comparison = compare_tables(*numbers)
    assert comparison.columns[0].psi.value > 0.4
    assert not found(comparison, "numbers-as-text")
    (message, *_) = (each.message for each in compare_tables(p, q).findings if each.code == "identifier")
    assert "leave it out with exclude= (--exclude)" in message
    assert not found(compare_tables(p, q, exclude=sorted(IDENTIFIERS)), "identifier")


def test_identifiers_are_no_shift() -> None:
    names = ["clean", "rating", "row", "key"]
    comparison = compare_tables(P[names], spread(2, 5 * ROWS)[names])
    assert summary(comparison) == "No difference is seen in 2 columns; 2 columns are inconclusive."
    assert tone_of(comparison) == "unknown"
    assert comparison["row"].psi.value > 1


@pytest.mark.sweep
def test_other_columns_are_neither() -> None:
    r = np.random.default_rng(3)
    frame = pd.DataFrame(
        {
            "store_id": r.integers(1, 30, ROWS),  # a few stores
            "count": r.poisson(300, ROWS),
            "name": r.choice([f"name {v}" for v in range(300)], ROWS),
            "hour": r.choice([str(v) for v in range(12)], ROWS),
            "address": [f"10.0.{v % 256}.{v // 5 % 7}" for v in r.integers(0, 500, ROWS)],
        }
    )
    comparison = compare_tables(frame, frame.sample(frac=1, random_state=0))
    assert {each.content for each in comparison.columns} == {None}
    few = compare_tables(P[:15], Q[:15])
    assert not found(few, "identifier")
    weighted = compare_tables(*(x.drop(columns="number").assign(w=1.0) for x in (P, Q)), weights="w")
    assert found(weighted, "numbers-as-text") == AS_TEXT
    assert {name for name in AS_TEXT if weighted[name].column_type == "categorical"} == AS_CATEGORIES
    assert not found(weighted, "identifier")
