"""The words of texts: the groups against a tokenizer of Python's own, the test's level and its power."""

from __future__ import annotations

import re
from collections import Counter

import numpy as np
import pyarrow as pa
import pytest

from kullback import compare_tables
from kullback.cli.gates import OF_TABLES, parse_gate
from kullback.report import document
from kullback.report.document import Table
from kullback.tables import ColumnProfile, Profile, compare_profiles, profile_table
from kullback.tables.columns.word_groups import rows_with_words
from kullback.tables.inference.significance import word_test
from tests.tables.test_compare import codes

TEXTS = [
    "good food, good mood",
    "",
    "x",
    "don't; l'été à Ürümqi",
    "日本 の 食",
    " good",
    "123 4.5 -",
    "a" * 70,
    "G g",
]


def group_by_hand(word: str) -> int:
    """The group of the definition: the highest 11 bits of a mixed polynomial, in Python's integers."""
    value = sum(
        ((byte + 1) * 0xBF58476D1CE4E5B9 % 2**64) * pow(0x9E3779B97F4A7C15, i, 2**64)
        for i, byte in enumerate(word.encode())
    )
    value %= 2**64
    value ^= value >> 32
    return (value * 0xD6E8FEB86659FD93 % 2**64) >> 53


def by_hand(texts: list[str], weights: list[float]) -> dict[int, float]:
    found: Counter[int] = Counter()
    for text, weight in zip(texts, weights, strict=True):
        for group in {group_by_hand(word) for word in re.findall(r"[^\x00-@\[-`{-\x7f]+", text)}:
            found[group] += weight
    return dict(found)


@pytest.mark.parametrize("chunk", [1, 7, 1 << 19])
def test_each_row_counts_once_for_each_group_of_its_words(monkeypatch, chunk):
    monkeypatch.setattr("kullback.tables.columns.word_groups.CHUNK", chunk)
    texts = TEXTS * 3
    weights = np.arange(len(texts)) / 4
    array = pa.array(["left out", *texts], pa.large_string()).slice(1)
    for given, by_row in ((None, [1.0] * len(texts)), (weights, weights.tolist())):
        found = rows_with_words(array, given)
        assert {i: found[i] for i in np.flatnonzero(found).tolist()} == {
            group: weight for group, weight in by_hand(texts, by_row).items() if weight
        }


def reviews(random: np.random.Generator, rows: int, word: str = "good", part: float = 0.3) -> list[str]:
    """Reviews with a number each, of which a part has a certain word in place of another one of its length."""
    chosen = random.choice(["okay", word], rows, p=[1 - part, part])
    names = random.choice(["soup", "fish", "cake", "rice"], rows)
    numbers = random.integers(10**8, 10**9, rows)
    return [f"the {a} was {b}, order number {c}" for a, b, c in zip(names, chosen, numbers, strict=True)]


def test_words_of_texts_that_change_are_seen_where_lengths_are_equal():
    random = np.random.default_rng(0)
    p, q = (pa.table({"text": reviews(random, 1000, word)}) for word in ("good", "evil"))
    found = compare_tables(p, q)
    assert found["text"].psi.value == 0
    assert found["text"].p_value < 1e-9
    # Every row of "evil" in Q and none in P: the index of proportions of 0.3 and 0, each with half a row more.
    x, y = (0.3 * 1000 + 0.5) / 1001, 0.5 / 1001
    assert found["text"].words == pytest.approx((x - y) * np.log(x * (1 - y) / (y * (1 - x))), rel=0.2)
    assert "words-differ" in codes(found, "text")
    assert "PSI of words" in " ".join(str(found).split())
    # The colored cell of the page and of the terminal has the PSI that decides, which is not the PSI of the lengths.
    (table,) = (block for block in document(found).blocks if isinstance(block, Table))
    assert table.tones == ["bad"]
    assert list(table.rows[0][1:4]) == ["large shift", f"{found['text'].words:.3f} of words", ""]
    for limit, outcome in (
        ("psi=0.2", "failed"),
        ("psi.value=0.2", "failed"),
        ("tv=0.2", "unclear"),
        ("psi=50", "passed"),
    ):
        assert parse_gate(limit, "above", OF_TABLES).verdict(found).outcome == outcome
    same = compare_tables(p, pa.table({"text": reviews(random, 1000)}))
    assert same["text"].words == 0
    assert same["text"].p_value > 0.01
    assert "texts" in codes(same, "text")
    assert "No difference is seen in 1 column." in " ".join(str(same).split())


def test_gates_of_other_divergences_take_their_bound_by_the_psi_of_words():
    random = np.random.default_rng(4)
    p, q = (pa.table({"text": reviews(random, 4000, part=part)}) for part in (0.3, 0.4))
    found = compare_tables(p, q)
    assert found["text"].words > 0
    # The divergences between rows with and without the word, 0.3 and 0.4 of them.
    x, y = np.array([0.3, 0.7]), np.array([0.4, 0.6])
    exact = {
        "tv": np.abs(x - y).sum() / 2,
        "kl_pq": (x * np.log(x / y)).sum(),
        "js": (x * np.log(2 * x / (x + y)) + y * np.log(2 * y / (x + y))).sum() / 2,
    }
    for name, value in exact.items():
        for factor, outcome in ((0.6, "unclear"), (3.5, "passed")):
            verdict = parse_gate(f"{name}={factor * value}", "above", OF_TABLES).verdict(found)
            assert verdict.outcome == outcome, (name, factor, verdict)


def test_a_saved_profile_keeps_words_and_adds_them_up():
    random = np.random.default_rng(1)
    texts = [reviews(random, 600), reviews(random, 500, "evil")]
    tables = [pa.table({"text": each}) for each in (texts[0], texts[1], texts[0] + texts[1])]
    first = profile_table(tables[0])
    second, whole = (profile_table(table, like=first) for table in tables[1:])
    assert first.merge(second) == whole
    assert Profile.from_json(first.to_json()) == first
    assert "good" not in first.to_json()
    without = Profile.from_json(first.to_json())
    without.columns["text"].words = None
    found = compare_profiles(without, second)
    assert found["text"].words is None
    assert "lengths-only" in codes(found, "text")


def column(random: np.random.Generator, rows: int, kinds: int = 4) -> ColumnProfile:
    """Rows of 8 words of 400, of frequencies like Zipf's, that occur together by the kind of row."""
    frequency = 1 / np.arange(1, 401) * np.exp(np.random.default_rng(0).normal(size=(kinds, 400)))
    frequency /= frequency.sum(1, keepdims=True)
    kind = random.integers(0, kinds, rows)
    below = np.cumsum(frequency, 1)[kind]
    words = (random.random((rows, 8, 1)) > below[:, None]).sum(2)
    held = np.bincount(np.unique(np.arange(rows)[:, None] * 400 + words) % 400, minlength=400)
    occurring = {group * 5: float(weight) for group, weight in enumerate(held.tolist()) if weight}
    return ColumnProfile("text", buckets={1: float(rows)}, words=occurring)


@pytest.mark.sweep
@pytest.mark.parametrize("rows", [(200, 200), (600, 100)])
def test_equal_texts_are_rejected_as_often_as_the_level_says(rows):
    random = np.random.default_rng(2)
    found = [word_test(*(column(random, n) for n in rows), rows) for _ in range(100)]
    rejected = np.mean([each is not None and each.p_value < 0.05 for each in found])
    assert rejected <= 0.05 + 3 * np.sqrt(0.05 * 0.95 / 100)


def test_clusters_of_alike_texts_are_no_more_evidence_than_one_each():
    random = np.random.default_rng(3)

    def table(first: int) -> pa.Table:
        texts = np.repeat(reviews(random, 30), 20)
        users = np.repeat(np.arange(first, first + 30), 20)
        return pa.table({"text": [f"{text} {i:04d}" for i, text in enumerate(texts)], "user": users})

    p_values = [compare_tables(table(0), table(100), cluster="user")["text"].p_value for _ in range(20)]
    assert min(p_values) > 0.05 / 20
