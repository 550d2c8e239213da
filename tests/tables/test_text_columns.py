"""Text that is compared as the numbers or dates that it holds: the truth is the same data as real numbers."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from click.testing import CliRunner

from kullback import compare_tables
from kullback.cli.commands import kullback
from kullback.errors import ArgumentTypeError, ArgumentValueError, FileError
from kullback.tables import ColumnProfile, choose_bins, compare_profiles, contingency_tables, profile_table
from kullback.tables.columns.written_numbers import Written, parse
from kullback.tables.reference_profile import batch_profile, reference_profile
from kullback.tables.table_profile import Profile
from tests.refusals import refused

ROWS = 600


def draws(seed: int, shift: float) -> tuple[np.ndarray, np.ndarray]:
    r = np.random.default_rng(seed)
    return r.normal(shift, 1, ROWS).round(3), r.random(ROWS) < 0.05


def swapped(text: str) -> str:
    return text.translate(str.maketrans(".,", ",."))


# How a number is written, by name, and the number that is meant.
NUMBERS: dict[str, tuple[Callable[[float], str], Callable[[float], float]]] = {
    "point": (lambda v: f"{v:.3f}", float),
    "comma": (lambda v: swapped(f"{v:.3f}"), float),
    "three decimals": (lambda v: f"{v + 100:.3f}", lambda v: float(f"{v + 100:.3f}")),
    "thousands": (lambda v: f"{1e5 * v:,.2f}", lambda v: round(1e5 * v, 2)),
    "German thousands": (lambda v: swapped(f"{1e5 * v:,.2f}"), lambda v: round(1e5 * v, 2)),
    "millions": (lambda v: f"{round(1e6 * v):,}", lambda v: float(round(1e6 * v))),
    "Swiss": (lambda v: f"{1e5 * v:,.2f}".replace(",", "\u2019"), lambda v: round(1e5 * v, 2)),
    "French": (
        lambda v: f"{1e5 * v:,.2f}".replace(",", "\u202f").replace(".", ","),
        lambda v: round(1e5 * v, 2),
    ),
    "euros": (lambda v: f"{1e5 * v:,.2f} €", lambda v: round(1e5 * v, 2)),
    "dollars": (lambda v: f"{'-' if v < 0 else ''}${abs(v):.3f}", float),
    "percent": (lambda v: f"{v:.3f} %", float),
    "accounts": (lambda v: f"({-v:.3f})" if v < 0 else f"{v:.3f}", float),
    "minus behind": (lambda v: f"{-v:.3f}-" if v < 0 else f"{v:.3f}", float),
    "minus sign": (lambda v: f"{v:+.3f}".replace("-", "\u2212"), float),
    "exponent": (lambda v: f"{v:.3e}", float),
    "blanks": (lambda v: f"  {v:.3f}\u00a0", float),
    "whole": (lambda v: str(round(100 * v)), lambda v: float(round(100 * v))),
    "infinite": (lambda v: "-inf" if v < -1.5 else f"{v:.3f}", lambda v: -np.inf if v < -1.5 else v),
}
DATES = {
    "%Y-%m-%d": "%Y-%m-%d",
    "%Y/%m/%d %H:%M": "%Y/%m/%d %H:%M",
    "%Y-%m-%dT%H:%M:%S.%fZ": "%Y-%m-%dT%H:%M:%S.%fZ",
    "%Y-%m-%d %H:%M:%S.%f+02:00": "%Y-%m-%d %H:%M:%S.%f%z",  # 32 characters, as long texts have
    "%d.%m.%Y": "%d.%m.%Y",
    "%m/%d/%Y %I:%M %p": "%m/%d/%Y %I:%M %p",
    "%d-%b-%y": "%d-%b-%y",
    "%B %d, %Y": "%B %d, %Y",
}  # fmt: skip


def moments(values: np.ndarray) -> list[datetime]:
    return [datetime.fromtimestamp(1.77e9 + 1e6 * v, UTC) for v in values.tolist()]


@functools.cache
def both(shift: float = 0.4) -> tuple[tuple[pd.DataFrame, pd.DataFrame], tuple[pd.DataFrame, pd.DataFrame]]:
    """Return P and Q with text, and P and Q with the numbers that are meant, missing where the text is N/A."""
    pairs: list[tuple[pd.DataFrame, pd.DataFrame]] = []
    for seed, by in ((1, 0.0), (2, shift)):
        values, hole = draws(seed, by)
        text: dict[str, Any] = {}
        real: dict[str, Any] = {}
        for name, (write, meant) in NUMBERS.items():
            text[name] = np.where(hole, "N/A", [write(v) for v in values.tolist()]).astype(object)
            real[name] = np.where(hole, np.nan, [meant(v) for v in values.tolist()])
        for name, read in DATES.items():
            written = [each.strftime(name) for each in moments(values)]
            meant_ones = [datetime.strptime(each, read) for each in written]  # noqa: DTZ007 - some have no zone
            utc = [m.astimezone(UTC).replace(tzinfo=None) if m.tzinfo else m for m in meant_ones]
            text[name] = np.where(hole, "N/A", written).astype(object)
            real[name] = pd.Series(utc).astype("datetime64[us]").where(~hole)
        clocks = [each.strftime("%H:%M") for each in moments(values)]
        text["clock"] = np.where(hole, "N/A", clocks).astype(object)
        real["clock"] = np.where(hole, np.nan, [60.0 * (60 * int(c[:2]) + int(c[3:])) for c in clocks])
        pairs.append((pd.DataFrame(text), pd.DataFrame(real)))
    (p, p_real), (q, q_real) = pairs
    return (p, q), (p_real, q_real)


def assert_equal(found: Any, truth: Any, case: object) -> None:
    assert [each.name for each in found.columns] == [each.name for each in truth.columns], case
    for mine, real in zip(found.columns, truth.columns, strict=True):
        assert mine == real, (case, mine.name)
    assert found.joint == truth.joint, case


def of_text(comparison: Any) -> dict[str | None, Any]:
    return {each.column: each for each in comparison.findings if each.code == "numbers-as-text"}


def test_every_way_of_writing_gives_the_comparison_of_the_numbers() -> None:
    texts, reals = both()
    found = compare_tables(*texts)
    assert_equal(found, compare_tables(*reals), "all ways")
    findings = of_text(found)
    assert set(findings) == set(texts[0])
    share = 100 * (texts[0]["point"] == "N/A").mean()
    assert all(
        f"{share:.3g} % of P's values (most often 'N/A')" in each.message for each in findings.values()
    )
    assert {each.level for each in findings.values()} == {"warning"}
    whole = [frame.replace("N/A", frame["point"].iloc[0])[["point"]] for frame in texts]
    assert of_text(compare_tables(*whole))["point"].level == "note"


def test_weights_clusters_and_groups_of_columns_see_the_numbers() -> None:
    texts, reals = both()
    names = ["thousands", "comma", "%d.%m.%Y"]
    more = {"w": np.linspace(0.5, 2, ROWS), "user": np.arange(ROWS) // 4}
    texts, reals = ([frame[names].assign(**more) for frame in sides] for sides in (texts, reals))
    for options in (
        {"weights": "w"},
        {"cluster": "user", "joint": [("comma", "%d.%m.%Y")]},
        {"weights": "w", "joint": [("comma", "thousands")], "independent": True},
    ):
        found = compare_tables(*texts, columns=names, **options)
        assert_equal(found, compare_tables(*reals, columns=names, **options), options)


def test_one_side_of_numbers_decides_the_type() -> None:
    texts, reals = both()
    names = ["comma", "thousands", "%Y-%m-%d", "dollars"]
    for at in (0, 1):
        mixed = [reals[side][names] if side == at else texts[side][names] for side in (0, 1)]
        found = compare_tables(*mixed)
        assert_equal(found, compare_tables(*(real[names] for real in reals)), at)
        assert f"holds text in {'QP'[at]}, " in of_text(found)["comma"].message
    # 5 % and .05 are the same proportion and not the same number; few different values may be codes.
    rating = pd.DataFrame({"x": ["1", "2", "3"] * 50})
    for p, q, reason in (
        (
            reals[0][["percent"]],
            texts[1][["percent"]],
            "the other side's values are not numbers (decimal point, in %)",
        ),
        (rating.astype(int), rating, "there are fewer than 20 different ones"),
        (
            reals[0][["point"]],
            texts[1][["point"]].replace("^-.*", "low", regex=True),
            "fewer than 90 % are written in one way",
        ),
    ):
        (changed,) = (each for each in compare_tables(p, q).findings if each.code == "type-changed")
        assert f"not compared; the text is not read, because {reason}" in changed.message


REFUSED: dict[str, tuple[Sequence[str], Sequence[str], str]] = {}


def refuse(name: str, p: Sequence[str], q: Sequence[str], reason: str) -> None:
    REFUSED[name] = (p, q, reason)


X, Y = draws(1, 0)[0], draws(2, 0)[0]
REAL_P, REAL_Q = [f"{v:.3f}" for v in X], [f"{v:.3f}" for v in Y]
THOUSANDS_P, THOUSANDS_Q = ([f"{1e4 + 2e3 * v:,.0f}" for v in values] for values in (X, Y))
refuse("commas", THOUSANDS_P, THOUSANDS_Q, "commas are decimal ones or separate")
refuse("commas and wholes", [*THOUSANDS_P, "512"], THOUSANDS_Q, "commas are decimal ones or")
refuse("commas in Q", REAL_P, THOUSANDS_Q, "commas and points are decimal ones or separate")
refuse(
    "points and wholes",
    [swapped(v) for v in THOUSANDS_P] + ["512"] * 9,
    [*map(swapped, THOUSANDS_Q)],
    "points",
)
refuse("other decimals", REAL_P, [swapped(v) for v in REAL_Q], "P and Q write them differently")
refuse("other unit", [f"{v}%" for v in REAL_P], REAL_Q, "P and Q write them differently")
refuse(
    "other currency", [f"${v}" for v in REAL_P], [f"€{v}" for v in REAL_Q], "P and Q write them differently"
)
MISTAKE = [*(f"{v + 100:.3f}" for v in X), "1,5"]
refuse("a single mistake", MISTAKE, MISTAKE, "points are decimal ones or separate")
DAYS = [f"{d:02d}/{m:02d}/{y}" for d in range(1, 13) for m in range(1, 13) for y in (2024, 2025)]
refuse("day or month", DAYS, DAYS[::-1], "the order of day, month and year is not certain")
refuse(
    "day or month in Q", [f"{d}.{d % 12 + 1}.2025" for d in range(1, 29)] * 9, DAYS, "the order of day, month"
)
refuse(
    "short years", [f"{d:02d}-{d % 12 + 1:02d}-24" for d in range(1, 29)] * 9, DAYS, "the order of day, month"
)
refuse("postal codes", [f"{v:05d}" for v in range(5000, 50000, 900)] * 9, THOUSANDS_P, "some begin with 0")
refuse("account numbers", [str(10**16 + v % 50) for v in range(600)], [str(10**16)] * 600, "15 digits")
refuse("too few", REAL_P + ["?"] * 100, REAL_Q, "fewer than 90 % are written in one way")
refuse("too few in Q", REAL_P, REAL_Q + ["?"] * 100, "fewer than 90 % are written in one way")


def test_what_is_not_certain_stays_categories_with_the_reason() -> None:
    for name, (p, q, reason) in REFUSED.items():
        for first, second in ((p, q), (q, p)):
            found = compare_tables(pa.table({"x": first}), pa.table({"x": second}))
            assert found["x"].column_type == "categorical", name
            if "x" in of_text(found):
                assert reason in of_text(found)["x"].message, name
            else:
                assert name == "account numbers", name


def test_the_other_table_settles_a_doubtful_way() -> None:
    millions = [f"{5e5 + 8e5 * abs(v):,.0f}" for v in X]
    found = compare_tables(pa.table({"x": millions}), pa.table({"x": THOUSANDS_Q}))
    assert found["x"].column_type == "numeric"
    assert min(each.low for each in found["x"].histogram if each.low is not None) > 1000
    dates = [f"{d:02d}/{m:02d}/2025" for d in range(1, 29) for m in range(1, 13)]
    found = compare_tables(pa.table({"x": DAYS}), pa.table({"x": dates}))
    assert found["x"].column_type == "datetime"


def test_codes_ratings_and_identifiers_stay_categories_and_amounts_do_not() -> None:
    r = np.random.default_rng(5)
    columns = {
        "rating": r.choice(["1", "2", "3", "4", "5", "N/A"], ROWS).tolist(),
        "postal": [f"{v:05d}" for v in r.integers(0, 90, ROWS)],
        "version": r.choice([f"1.{v}.{v + 1}" for v in range(60)], ROWS).tolist(),
        "customer_id": [str(v) for v in r.permutation(10**6)[:ROWS]],
        "row": [str(v) for v in range(ROWS)],
        "card": [str(v) for v in r.integers(10**11, 10**12, ROWS)],
        "income": [str(v) for v in r.normal(50_000, 9_000, ROWS).astype(int)],
    }
    frame = pa.table(columns)
    found = compare_tables(frame, frame)
    types = {each.name: each.column_type for each in found.columns}
    assert types == dict.fromkeys(columns, "categorical") | {"income": "numeric"}
    assert {each.name for each in found.columns if each.content == "identifier"} == {
        "customer_id",
        "row",
        "card",
    }
    # A declared category is one.
    declared = pd.DataFrame({"x": pd.Categorical(REAL_P)})
    found = compare_tables(declared, declared)
    assert found["x"].column_type == "categorical"
    assert "its type or its profile says that they are categories" in of_text(found)["x"].message


def test_paths_and_data_frames_agree(tmp_path: Path) -> None:
    import duckdb

    texts, _ = both()
    names = ["point", "comma", "thousands", "euros", "percent", "accounts", "%d.%m.%Y", "clock"]
    p, q = (frame[names] for frame in texts)
    truth = compare_tables(p, q)
    connection = duckdb.connect()
    connection.register("p", pa.Table.from_pandas(p))
    connection.register("q", pa.Table.from_pandas(q))
    sides: dict[str, tuple[Any, Any]] = {
        "polars": (pl.from_pandas(p), pl.from_pandas(q).lazy()),
        "pyarrow": (pa.Table.from_pandas(p), pa.Table.from_pandas(q)),
        "duckdb": (connection.table("p"), connection.table("q")),
    }
    for suffix, write in (
        ("csv", lambda frame, path: frame.to_csv(path, index=False)),
        ("parquet", lambda frame, path: frame.to_parquet(path)),
        ("ndjson", lambda frame, path: frame.to_json(path, orient="records", lines=True)),
    ):
        paths = tmp_path / f"p.{suffix}", tmp_path / f"q.{suffix}"
        for frame, path in zip((p, q), paths, strict=True):
            write(frame, path)
        sides[suffix] = paths
    for name, (first, second) in sides.items():
        assert_equal(compare_tables(first, second), truth, name)


def test_a_saved_profile_keeps_how_text_is_read(tmp_path: Path) -> None:
    texts, reals = both()
    p, q = texts
    saved = Profile.from_json(profile_table(p).to_json())
    assert {column.column_type for column in saved.columns.values()} == {"numeric", "datetime"}
    assert saved.columns["comma"].written == Written("numbers", ",")
    assert saved.columns["comma"].unparsed_texts == {"N/A": float((p["comma"] == "N/A").sum())}
    assert saved.columns["euros"].written == Written("numbers", ".", "€", ",")
    parts = [
        profile_table(part, like=saved) for part in (q[:7], q[7:50], q[50:])
    ]  # 7 rows alone would decide nothing
    whole = parts[0].merge(parts[1]).merge(parts[2])
    found, compared = (
        compare_profiles(saved, whole, independent=True),
        compare_tables(*reals, independent=True),
    )
    assert_equal(found, compared, "like=")
    unparsed = float((q["comma"] == "N/A").sum())
    assert whole.columns["comma"].unparsed == whole.columns["comma"].unparsed_texts["N/A"] == unparsed
    # A batch of real numbers is counted likewise, and one of text where the reference has numbers is read.
    of_numbers = profile_table(reals[0])
    real = compare_profiles(of_numbers, profile_table(q, like=of_numbers))
    percent = {"percent", "clock"}  # 5 % is not the number 5; a time of day is not a number of seconds
    assert {each.column for each in real.findings if each.code == "type-changed"} == percent
    assert {each.name for each in real.columns} == {each.name for each in compared.columns} - percent
    # A separator that the reference does not have is not guessed.
    batch = profile_table(pd.DataFrame({"point": ["1,234"] * 9 + ["0.5"]}), like=saved)
    assert (batch.columns["point"].missing, batch.columns["point"].unparsed_texts) == (9, {"1,234": 9})
    reference_profile(*[_csv(tmp_path / "p.csv", p)])
    watched = batch_profile(_csv(tmp_path / "q.csv", q), reference_profile(tmp_path / "p.csv"))
    assert_equal(compare_profiles(saved, watched, independent=True), compared, "watch")


def _csv(path: Path, frame: pd.DataFrame) -> Path:
    frame.to_csv(path, index=False)
    return path


def test_profiles_that_read_text_differently_are_not_compared() -> None:
    texts, _ = both()
    p, q = (frame[["comma", "percent", "point"]] for frame in texts)
    parsed, swapped_q = (
        profile_table(p),
        q.rename(columns={"comma": "point", "percent": "comma", "point": "percent"}),
    )
    other = profile_table(swapped_q)
    found = compare_profiles(parsed, other)
    assert {each.column for each in found.findings if each.code == "type-changed"} == set(p)
    assert not found.columns
    with refused(ArgumentValueError, wanted="columns counted alike"):
        parsed.merge(other)
    # A profile of the time before text was read has categories, and a batch is counted likewise.
    old = json.loads(profile_table(p).to_json())
    plain = {"column_type": "categorical", "categories": dict(p["comma"].value_counts())}
    old["columns"] = {"comma": {key: _plain(value) for key, value in plain.items()}}
    old = Profile.from_json(json.dumps(old))
    batch = profile_table(q[["comma"]], like=old)
    assert batch.columns["comma"].column_type == "categorical"
    assert of_text(compare_profiles(old, batch))["comma"].level == "warning"
    changed = compare_profiles(profile_table(p[["comma"]]), batch)
    assert {each.code for each in changed.findings} >= {"type-changed"}


def _plain(value: Any) -> Any:
    return {name: int(count) for name, count in value.items()} if isinstance(value, dict) else value


def test_a_damaged_way_of_writing_is_refused() -> None:
    good = {"column_type": "numeric", "missing": 2, "written": {"what": "numbers", "form": "."}}
    assert ColumnProfile.from_object(good).written == Written("numbers", ".")
    for damage in (
        {"written": {"what": "numbers", "form": "x"}},
        {"written": {"what": "poems"}},
        {"written": {"what": "numbers", "form": ".", "separators": "0"}},
        {"written": {"what": "numbers", "form": ".", "unit": "%%"}},
        {"written": {"what": "numbers", "form": ".", "more": 1}},
        {"written": {"what": "dates", "form": "ymd"}},
        {"unparsed": 3},
        {"unparsed": -1},
    ):
        with refused(FileError, wanted="a column's profile"):
            ColumnProfile.from_object(good | damage)


def test_single_texts_have_the_values_that_they_say() -> None:
    cases: list[tuple[Written, dict[str, Any]]] = [
        (
            Written("numbers", ".", "", ","),
            {"1,234.5": 1234.5, "1,234": 1234.0, "12,34": None, "1,2345": None, "0,123": None, ".5": 0.5, "5.": 5.0}
            | {"1,234e3": None, "1.5E-3": 0.0015, "-1e999": -np.inf, "(5)": -5.0, "(-5)": None, "5-": -5.0, "--5": None}
            | {"": None, " ": None, "N/A": None, "nan": None, "Infinity": np.inf}
            | {"5 %": None, "5 6": None, "0x1F": None},
        ),
        (Written("numbers", ",", "€"), {"€ 5,5": 5.5, "-€5": -5.0, "€-5": -5.0, "5 €": 5.0, "5": None, "€5€": None}),
        (
            Written("dates", "dmy"),
            {"29.02.2024": pd.Timestamp(2024, 2, 29), "29.02.2023": None, "31/4/2024": None, "1-2.2024": None}
            | {"01.02.69": pd.Timestamp(1969, 2, 1), "01.02.68": pd.Timestamp(2068, 2, 1), "1.2.24": None}
            | {"1.2.2024 23:59:59.5": pd.Timestamp(2024, 2, 1, 23, 59, 59, 500000), "1.2.2024 24:00": None}
            | {"1.2.2024 12:05 AM": pd.Timestamp(2024, 2, 1, 0, 5), "1.2.2024 10:00Z": None},
        ),
        (Written("dates", "bdy"), {"Sept. 3, 2025": pd.Timestamp(2025, 9, 3), "Dez 3, 2025": None}),
        (
            Written("dates", "ymd", zoned=True),
            {"2024-01-01T00:30:00-05:30": pd.Timestamp(2024, 1, 1, 6)}
            | {"2024-01-01 00:30 UTC": pd.Timestamp("2024-01-01 00:30")},
        ),
        (Written("times"), {"0:30": 1800.0, "12:00:00.25 pm": 43200.25, "25:00": None, "13:00 PM": None}),
    ]  # fmt: skip
    for way, texts in cases:
        array = pa.array([*texts, None], pa.large_string())
        assert parse(array, way).to_pylist() == [*texts.values(), None], way


def test_bins_know_how_text_is_read() -> None:
    (p, _), (real, _) = both()
    names = ["comma", "%d.%m.%Y"]
    counted: list[Any] = []
    for frame in (p[names], real[names]):
        columns = profile_table(frame).columns
        bins = {name: choose_bins(columns[name], columns[name], 5) for name in names}
        counted.append(contingency_tables(frame, bins, [tuple(names)]))
    assert counted[0] == counted[1]


def test_excluded_columns_are_left_out() -> None:
    frame = pd.DataFrame({"a": [1.0, 2.0] * 30, "b": ["x", "y"] * 30, "w": 1.0, "nested": [[1]] * 60})
    assert [each.name for each in compare_tables(frame, frame, exclude=["a", "nested"]).columns] == ["b", "w"]
    codes = {each.code for each in compare_tables(frame, frame, exclude=["nested"]).findings}
    assert "column-skipped" not in codes
    profile = profile_table(frame, exclude=["a"])
    assert (list(profile.columns), list(profile.skipped)) == (["b", "w"], ["nested"])
    assert (
        compare_tables(frame, frame.drop(columns="b"), exclude=["b", "nested"], weights="w").columns[0].name
        == "a"
    )
    for call in (
        lambda **options: compare_tables(frame, frame, **options),
        lambda **o: profile_table(frame, **o),
    ):
        with refused(ArgumentValueError, argument="exclude", got="'no'; there are 'a', 'b', 'w', 'nested'"):
            call(exclude=["a", "no"])
        with refused(ArgumentValueError, argument="exclude", wanted="not both"):
            call(exclude=["a"], columns=["b"])
        with refused(ArgumentValueError, argument="exclude", wanted="a column that is left"):
            call(exclude=list(frame))
        with refused(ArgumentTypeError, argument="exclude", wanted="a list of names"):
            call(exclude="a")
    with refused(ArgumentValueError, argument="joint", got="'a'"):
        compare_tables(frame, frame, exclude=["a"], joint=[("a", "b")])


def test_the_command_leaves_columns_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("p.csv", "q.csv"):
        pd.DataFrame({"id": range(60), "x": [1.5, 2.5] * 30, "y": [3, 4] * 30}).to_csv(name, index=False)

    def run(*arguments: str) -> tuple[int, str]:
        done = CliRunner().invoke(kullback, arguments)
        return done.exit_code, done.output

    compared = ("compare", "p.csv", "q.csv", "--as", "table")
    assert "'id' holds identifiers" in run(*compared, "--full")[1]
    status, printed = run(*compared, "--full", "--exclude", "id")
    assert (status, "id" in printed.split(), "--exclude" in printed) == (0, False, False)
    assert "--exclude: wanted columns of the tables; got 'no'" in run(*compared, "--exclude", "no")[1]
    # The profile keeps the excluded name, so that the same command runs again, and a later one says why it is absent.
    watched = ("watch", "p.csv", "q.csv")
    for _ in range(2):
        assert run(*watched, "--exclude", "id")[0] == 0
    assert '"id":{' not in Path("p.csv.profile.json").read_text()
    assert "in P left out when the profile was made" in run(*watched, "--full")[1]
    assert "got 'no'" in run(*watched, "--exclude", "no", "--rebuild")[1]
    assert "wanted a profile of column 'no'" in run(*watched, "--exclude", "no")[1]
