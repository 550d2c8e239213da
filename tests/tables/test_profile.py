"""Profiles: the grid against its definition, counts by hand, merging, types of columns, files of profiles."""

from __future__ import annotations

import datetime as dt
import json
import math
from collections import Counter

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings, strategies as st

from kullback.errors import ArgumentValueError, FileError
from kullback.tables import (
    ColumnProfile,
    Profile,
    bin_counts,
    choose_bins,
    compare_profiles,
    profile_table,
)
from kullback.tables.columns.log_grid import PER_OCTAVE, bucket_ends, buckets_of
from tests.refusals import refused
from tests.tables.frames import mixed_table

finite = st.floats(allow_nan=False, allow_infinity=False)


def bucket_by_hand(x: float) -> int:
    """The bucket by the definition, with the standard load's exact mantissa and exponent."""
    if abs(x) < 2.0**-1022:
        return 0
    mantissa, exponent = math.frexp(abs(x))  # in [0.5, 1)
    step = 32 * (exponent - 1 + 1022) + math.floor(32 * (2 * mantissa - 1)) + 1
    return step if x > 0 else -step


@given(finite)
def test_a_bucket_is_the_one_of_the_definition_and_holds_its_number(x):
    (bucket,) = buckets_of(np.array([x]))
    assert bucket == bucket_by_hand(x)
    low, high = bucket_ends(int(bucket))
    if bucket > 0:
        assert low <= x < high
    elif bucket < 0:
        assert low < x <= high


@given(finite, finite)
def test_buckets_grow_with_the_number(x, y):
    first, second = buckets_of(np.array(sorted([x, y])))
    assert first <= second


def test_buckets_are_narrow_and_follow_one_another():
    for bucket in (1, 40, 32_705, 65_471):
        assert bucket_ends(bucket)[1] == bucket_ends(bucket + 1)[0]
        low, high = bucket_ends(bucket)
        assert 1 / 64 <= (high - low) / low <= 1 / 32
    assert bucket_ends(65_472)[1] == math.inf


def test_every_count_is_the_one_by_hand():
    values = [3.0, 3.0, -0.5, 0.0, -0.0, 1e-320, float("nan"), None, float("inf"), -float("inf"), None]
    column = profile_table(pa.table({"x": values})).columns["x"]
    numbers = [x for x in values if x is not None and math.isfinite(x)]
    assert column.buckets == Counter(map(bucket_by_hand, numbers))
    assert (column.missing, column.not_a_number, column.plus_infinity, column.minus_infinity) == (2, 1, 1, 1)
    assert (column.minimum, column.maximum) == (-0.5, 3.0)


def test_weights_take_the_place_of_counts():
    table = pa.table({"x": [1.0, 2.0, None], "s": ["a", None, "a"], "w": [0.5, 2.0, 0.25]})
    profile = profile_table(table, weights="w")
    assert list(profile.columns) == ["x", "s"]
    assert list(profile.columns["x"].buckets.values()) == [0.5, 2.0]
    assert profile.columns["x"].missing == 0.25
    assert profile.columns["s"].categories == {"a": 0.75}
    assert (profile.rows, profile.weight, profile.weight_squares) == (3, 2.75, 4.3125)


bins = st.one_of(st.none(), st.just(float("nan")), st.just(float("inf")), finite)
words = st.one_of(st.none(), st.sampled_from(["", "a", "b", "ü"]))
rows = st.lists(st.tuples(bins, words, st.booleans(), st.integers(-5, 5), st.integers(0, 8)), max_size=30)


def as_table(given_rows: list) -> pa.Table:
    types = [pa.float64(), pa.string(), pa.bool_(), pa.int64(), pa.int64()]
    columns = list(zip(*given_rows, strict=True)) or [[]] * 5
    return pa.table([pa.array(c, k) for c, k in zip(columns, types, strict=True)], list("xsbiw"))


@pytest.mark.sweep
@given(rows, rows, rows, st.sampled_from([None, "w"]))
@settings(deadline=None, max_examples=60)
def test_the_profile_of_a_whole_is_the_sum_of_its_parts(reference, first, second, weights):
    like = profile_table(as_table(reference), weights=weights)
    profile = {
        name: profile_table(as_table(part), weights=weights, like=like)
        for name, part in {"a": first, "b": second, "whole": first + second}.items()
    }
    assert profile["a"].merge(profile["b"]) == profile["whole"]
    assert profile["b"].merge(profile["a"]) == profile["whole"]


def test_a_profile_merges_with_batches_counted_like_it():
    table = mixed_table(900)
    whole = profile_table(table)
    parts = [profile_table(table.slice(start, 300), like=whole) for start in (0, 300, 600)]
    assert parts[0].merge(parts[1]).merge(parts[2]) == whole


def test_profiles_counted_differently_do_not_merge():
    near, far = pa.table({"x": np.arange(500.0)}), pa.table({"x": np.arange(500.0) / 1e6 + 1e6})
    with refused(ArgumentValueError, got=r"column 'x': numeric around 0 and numeric around 1e\+06"):
        profile_table(near).merge(profile_table(far))
    with refused(ArgumentValueError, got="columns that only one of them has: 'x', 'y'"):
        profile_table(near).merge(profile_table(pa.table({"y": [1]})))
    with refused(ArgumentValueError, got="weights from None and from 'x'"):
        profile_table(pa.table({"y": [1]})).merge(profile_table(pa.table({"y": [1], "x": [1]}), weights="x"))


@pytest.mark.parametrize("values", [293.15 + np.linspace(-1, 1, 999), 1e12 + np.linspace(0, 1, 999)])
def test_numbers_far_from_zero_are_resolved(values):
    column = profile_table(pa.table({"x": values})).columns["x"]
    low, high = column.quantile_bucket(0.25), column.quantile_bucket(0.75)
    assert low is not None
    assert high is not None
    assert high - low >= PER_OCTAVE
    counts = bin_counts(column, choose_bins(column, column, 20))
    np.testing.assert_allclose(counts, 999 / 20, atol=12)


def test_a_repeated_value_far_from_zero_becomes_the_center():
    values = np.where(np.arange(1000) % 3 == 0, 20.3 + np.linspace(-1e-3, 1e-3, 1000), 20.3)
    column = profile_table(pa.table({"x": values})).columns["x"]
    assert column.center == 20.3
    assert column.buckets[0] == sum(values == 20.3)


@pytest.mark.parametrize("value", [0.0, 0.1, -7e300, 12345.678])
def test_a_constant_column_is_read_once(value):
    told = []
    column = profile_table(pa.table({"x": [value] * 50}), progress=told.append).columns["x"]
    assert told == ["counting 1 columns"]
    assert (column.minimum, column.maximum, list(column.buckets.values())) == (value, value, [50])


def test_timestamps_are_microseconds_whatever_their_unit():
    timestamp = dt.datetime(1969, 7, 20, 20, 17, 40, 123_000, tzinfo=dt.UTC)
    columns = {u: pa.array([timestamp], pa.timestamp(u, "UTC")) for u in ("s", "ms", "us", "ns")}
    columns["date"] = pa.array([timestamp.date()], pa.date32())
    profile = profile_table(pa.table(columns))
    expected = (timestamp - dt.datetime(1970, 1, 1, tzinfo=dt.UTC)) / dt.timedelta(microseconds=1)
    assert {profile.columns[u].minimum for u in ("ms", "us", "ns")} == {expected}
    assert profile.columns["s"].minimum == expected - 123_000
    assert profile.columns["date"].minimum == -165 * 86_400e6


def test_durations_and_times_of_day_are_seconds():
    table = pa.table(
        {
            "duration": pa.array([dt.timedelta(seconds=-1.5)], pa.duration("ms")),
            "seconds": pa.array([dt.time(1, 0, 1)], pa.time32("s")),
            "microseconds": pa.array([dt.time(0, 0, 0, 500)], pa.time64("us")),
        }
    )
    columns = profile_table(table).columns
    assert [column.minimum for column in columns.values()] == [-1.5, 3601.0, 0.0005]
    assert {column.column_type for column in columns.values()} == {"numeric"}


def test_many_long_strings_are_text_and_identifiers_are_not():
    long = [f"{number:040d}" for number in range(257)]
    table = pa.table({"text": long, "short": [text[-31:] for text in long], "few": long[:256] + long[:1]})
    profile = profile_table(table)
    assert {name: column.column_type for name, column in profile.columns.items()} == {
        "text": "text",
        "short": "categorical",
        "few": "categorical",
    }
    assert (profile.columns["text"].center, profile.columns["text"].buckets) == (40, {0: 257})


def test_a_column_is_text_or_categories_like_the_one_before():
    long = [f"{number:040d}" for number in range(300)]
    texts, few = pa.table({"s": long}), pa.table({"s": pa.array(["a", "bc"]).dictionary_encode()})
    as_text = profile_table(few, like=profile_table(texts)).columns["s"]
    assert (as_text.column_type, as_text.minimum, as_text.maximum) == ("text", 1, 2)
    assert profile_table(texts, like=profile_table(few)).columns["s"].categories == Counter(long)


def test_strings_that_were_dropped_as_text_are_read_again_as_categories(monkeypatch):
    monkeypatch.setattr("kullback.tables.engines.counters.MOST_BYTES", 0)
    monkeypatch.setattr("kullback.tables.engines.counters.PENDING", 100)
    monkeypatch.setattr("kullback.tables.engines.data_frames.BATCH_ROWS", 300)
    values = [f"{number:050d}" for number in range(600)] + ["a"] * 5000
    column = profile_table(pa.table({"s": values})).columns["s"]
    assert column.column_type == "categorical"
    assert column.categories == Counter(values)


@pytest.mark.parametrize("short", [5000, 50])
def test_the_whole_column_decides_although_one_part_is_text(short):
    """Counters of parts are merged: with 5,000 short strings the column has categories, with 50 it is text."""
    import dask.dataframe as dd
    import pandas as pd

    values = [f"{number:050d}" for number in range(600)] + ["a"] * short
    frame = pd.DataFrame({"s": pd.Series(values, dtype="string[pyarrow]")})
    parts = dd.concat([dd.from_pandas(part, npartitions=1) for part in (frame[:600], frame[600:])])
    assert parts.npartitions == 2
    whole = profile_table(frame)
    assert whole.columns["s"].column_type == ("categorical" if short == 5000 else "text")
    assert profile_table(parts) == whole


def test_more_categories_than_any_column_may_have_are_text(monkeypatch):
    for module in ("columns.text_types", "engines.counters"):
        monkeypatch.setattr(f"kullback.tables.{module}.MAX_CATEGORIES", 2000)
    monkeypatch.setattr("kullback.tables.engines.counters.PENDING", 100)
    monkeypatch.setattr("kullback.tables.engines.data_frames.BATCH_ROWS", 300)
    short = profile_table(pa.table({"s": [str(number) for number in range(2001)]})).columns["s"]
    assert (short.column_type, short.present, short.maximum) == ("text", 2001, 4)
    # Long ones come first, so that they are dropped as text, which the short ones then gainsay.
    monkeypatch.setattr("kullback.tables.engines.counters.MOST_BYTES", 0)
    mixed = [f"{number:050d}" for number in range(900)] + [str(number) for number in range(3000)]
    assert profile_table(pa.table({"s": mixed})).columns["s"].column_type == "text"


@pytest.mark.sweep
def test_a_million_categories(tmp_path):
    names = np.char.add("user ", np.arange(1_000_000).astype(str))
    profile = profile_table(pa.table({"user": names}))
    column = profile.columns["user"]
    assert (column.column_type, len(column.categories), column.present) == (
        "categorical",
        1_000_000,
        1_000_000,
    )
    profile.save(tmp_path / "profile.json")
    assert (tmp_path / "profile.json").stat().st_size < 30_000
    short = Profile.load(tmp_path / "profile.json").columns["user"]
    assert len(short.categories) == 1000
    assert short.other_categories == 999_000
    bins = choose_bins(short, column)
    assert bins.labels[-1] == "other categories"
    np.testing.assert_array_equal(bin_counts(short, bins), bin_counts(column, bins))


def test_a_profile_on_disk_is_small_and_reads_back_exactly(tmp_path):
    profile = profile_table(mixed_table(), weights="a weight")
    profile.save(tmp_path / "profile.json", categories=10_000)
    assert Profile.load(tmp_path / "profile.json") == profile
    assert json.loads((tmp_path / "profile.json").read_text())["schema"] == "kullback.profile/2"
    assert (tmp_path / "profile.json").stat().st_size < 8_000 * len(profile.columns)
    assert [path.name for path in tmp_path.iterdir()] == ["profile.json"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "no JSON"),
        ("[1]", "schema None"),
        (
            '{"schema":"kullback.profile/1","columns":{}}',
            "/2'; got schema 'kullback.profile/1'; write",
        ),
        ('{"schema":"kullback.profile/2"}', "a damaged profile"),
    ],
)
def test_what_is_no_profile_is_refused(text, message, tmp_path):
    (tmp_path / "p.json").write_text(text)
    with pytest.raises(FileError, match=rf"p\.json: .*{message}"):
        Profile.load(tmp_path / "p.json")


GOOD = profile_table(
    pa.table({"x": [1.5, 2.5, None], "s": ["a", "b", "a"], "t": [True, False, True]})
).to_json()


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"missing":1', '"missing":1e400'),
        ('"missing":1', '"missing":NaN'),
        ('"missing":1', '"missing":-1'),
        ('"missing":1', '"missing":7'),
        ('"missing":1', '"missing":"1"'),
        ('"rows":3', '"rows":-3'),
        ('"rows":3', '"rows":1e400'),
        ('"weight":3', '"weight":0'),
        ('"weight_squares":3', '"weight_squares":[3]'),
        ('"a":2', '"a":0'),
        ('"true":2}', '"true":2},"buckets":{"steps":[1],"weights":[1]}'),
        ('"minimum":1.5', '"minimum":9'),
        ('"minimum":1.5', '"minimal":1.5'),
        ('"steps":[', '"steps":[99999999,'),
        ('"columns":{', '"columns":' + "[" * 100_000),
        ('"columns":{', '"columns":7,"more":{'),
        ('"column_type":"numeric"', '"column_type":["numeric"]'),
        ('"numeric"', '"number"'),
        ('"weights":[1,', '"weights":['),
        ('"steps"', '"stops"'),
        ('"skipped":{}', '"skipped":3'),
        ('"weights":null', '"weights":[]'),
    ],
)
def test_a_profile_of_impossible_counts_is_refused_in_a_sentence(old, new):
    assert old in GOOD
    with refused(FileError, instead="profile"):
        Profile.from_json(GOOD.replace(old, new, 1))


@pytest.mark.sweep
def test_a_profile_with_one_character_changed_is_read_or_refused():
    random = np.random.default_rng(0)
    alphabet = list('0123456789{}[]",:.-eE+ntf\\ ')
    refused = 0
    for _ in range(2000):
        text = list(GOOD)
        for place in random.integers(0, len(text), random.integers(1, 4)):
            text[place] = str(random.choice(alphabet))
        try:
            profile = Profile.from_json("".join(text))
        except FileError:
            refused += 1
        else:
            compare_profiles(profile, profile)
    assert refused > 500


def test_a_profile_that_is_written_through_a_link_keeps_the_link(tmp_path):
    profile = Profile.from_json(GOOD)
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(FileError, match="loop"):
        profile.save(tmp_path / "loop")
    (tmp_path / "file.json").write_text("old")
    (tmp_path / "link.json").symlink_to("file.json")
    profile.save(tmp_path / "link.json")
    assert (tmp_path / "link.json").is_symlink()
    assert Profile.load(tmp_path / "file.json") == profile


def test_an_unwritable_place_is_an_error(tmp_path):
    with pytest.raises(FileError, match=r"cannot write .*nowhere"):
        profile_table(pa.table({"x": [1]})).save(tmp_path / "nowhere" / "p.json")


def test_an_empty_part_takes_the_others_type():
    empty = ColumnProfile("categorical", missing=2.0)
    full = ColumnProfile("numeric", 5.0, {1: 3.0}, minimum=6.0, maximum=6.0)
    assert empty.merged(full) == full.merged(empty) == ColumnProfile(**vars(full) | {"missing": 2.0})
