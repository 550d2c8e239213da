"""Labels of classes: matched by label at every entry point, never dropped, and refused where they cannot match."""

from __future__ import annotations

import datetime as dt
import math
import re
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import torch
from scipy import stats
from torch.distributions import Categorical

import kullback
from kullback import (
    Counts,
    Logits,
    LogProbs,
    Probs,
    Samples,
    compare_predictions,
    cross_entropy,
    divergence,
    entropy,
    estimate,
    fit,
    kl_divergence,
    kl_estimate,
    mutual_information,
    two_sample_test,
)
from kullback.errors import ArgumentValueError, KullbackError
from tests.refusals import refused

P = {"a": 2 / 6, "b": 3 / 6, "c": 1 / 6}
Q = {"a": 3 / 6, "b": 1 / 6, "c": 2 / 6}
KL = float(stats.entropy([P[k] for k in "abc"], [Q[k] for k in "abc"]))
FIRST, SECOND = pd.Series(list("aabbbc")), pd.Series(list("aaabcc"))


def logs(shares: Any) -> Any:
    return (
        shares.map(math.log) if isinstance(shares, pd.Series) else {k: math.log(v) for k, v in shares.items()}
    )


def labeled_pairs() -> dict[str, tuple[Any, Any]]:
    v, w = (x.value_counts(normalize=True) for x in (FIRST, SECOND))
    as_polars = [pl.Series(list(x)).value_counts(normalize=True, sort=True) for x in (FIRST, SECOND)]
    reordered = {k: Q[k] for k in "cab"}
    return {
        "Probs": (Probs(v), Probs(w)),
        "LogProbs": (LogProbs(logs(v)), LogProbs(logs(w))),
        "Logits": (Logits(logs(v) + 7), Logits(logs(w))),
        "Counts": (Counts(FIRST.value_counts()), Counts(SECOND.value_counts())),
        "Counts and Probs": (Counts(FIRST.value_counts()), Probs(w)),
        "Probs and Counts": (Probs(v), Counts(SECOND.value_counts())),
        "Logits and Probs": (Logits(logs(v)), Probs(w)),
        "polars": (Probs(as_polars[0]), Probs(as_polars[1])),
        "mappings": (Probs(P), Probs(reordered)),
        "mappings of logits": (Logits(logs(P)), LogProbs(logs(reordered))),
        "labels=": (Probs([*P.values()], labels="abc"), Probs([*reordered.values()], labels=list("cab"))),
        "categories": (
            Probs(FIRST.astype("category").value_counts(normalize=True)),
            Probs(SECOND.astype("category").value_counts(normalize=True)),
        ),
        "Arrow": (Counts(pa.array(FIRST).value_counts()), Counts(pa.array(SECOND[::-1]).value_counts())),
        "frame of value_counts": (Counts(FIRST.value_counts().reset_index()), Probs(w)),
        "a tensor that learns": (
            Probs(torch.tensor([*P.values()], requires_grad=True), labels="abc"),
            Probs({k: torch.tensor(x, requires_grad=True) for k, x in reordered.items()}),
        ),
    }


def test_every_entry_point_matches_classes_by_label() -> None:
    x, y = [P[k] for k in "abc"], [Q[k] for k in "abc"]
    total = -sum(a * math.log(b) for a, b in zip(x, y, strict=True))
    middle = [(a + b) / 2 for a, b in zip(x, y, strict=True)]
    js = float(stats.entropy(x, middle) + stats.entropy(y, middle)) / 2
    for name, (p, q) in labeled_pairs().items():
        found = {
            "kl_divergence": (kl_divergence(p, q), KL),
            "base": (kl_divergence(p, q, base=2), KL / math.log(2)),
            "method": (kl_divergence(p, q, method="summation"), KL),
            "divergence": (divergence(p, q, "js"), js),
            "kl_estimate": (kl_estimate(p, q).value, KL),
            "estimate": (estimate(p, q, "js").value, js),
            "cross_entropy": (cross_entropy(p, q), total),
            "entropy": (entropy(p), float(stats.entropy(x))),
        }
        for call, (value, truth) in found.items():
            assert value.item() == pytest.approx(truth, rel=1e-5), (name, call)


def test_counts_of_both_sides_are_tested_and_compared_by_label() -> None:
    a, b = Counter("aab" * 40), Counter("baa" * 40)
    assert two_sample_test(Counts(a), Counts(b)).p_value > 0.9
    found = kl_estimate(Counts(a), Probs({"b": 1 / 3, "a": 2 / 3}))
    assert float(found.value) == pytest.approx(0, abs=1e-7)
    assert found.interval is not None


def test_the_gradient_goes_to_the_class_of_its_label() -> None:
    x = torch.tensor([0.2, 0.3, 0.5], dtype=torch.float64, requires_grad=True)
    y = {
        k: torch.tensor(v, dtype=torch.float64, requires_grad=True)
        for k, v in {"c": 0.1, "a": 0.6, "b": 0.3}.items()
    }
    kl_divergence(Probs(x, labels="abc"), Probs(y)).backward()
    plain_x, plain_y = (
        torch.tensor(v, dtype=torch.float64, requires_grad=True) for v in ([0.2, 0.3, 0.5], [0.6, 0.3, 0.1])
    )
    kl_divergence(Probs(plain_x), Probs(plain_y)).backward()
    assert x.grad is not None
    assert plain_x.grad is not None
    assert plain_y.grad is not None
    torch.testing.assert_close(x.grad, plain_x.grad)
    torch.testing.assert_close(torch.stack([y[k].grad for k in "abc"]), plain_y.grad)  # pyright: ignore[reportArgumentType]


def test_other_labels_have_no_mass() -> None:
    for cls in (Probs, Counts):
        p, q = (cls(pd.Series([0.5, 0.5], index=list(names))) for names in ("ab", "cd"))
        assert float(kl_divergence(p, q)) == math.inf
    p, q = Logits({"a": 0.0}), Logits({"b": 0.0, "a": 0.0})
    assert float(kl_divergence(p, q)) == pytest.approx(math.log(2))
    assert float(kl_divergence(q, p)) == math.inf


def test_tables_have_a_class_in_each_column() -> None:
    rows = np.array([[0.2, 0.3, 0.5], [0.1, 0.1, 0.8]])
    others = np.array([[0.3, 0.3, 0.4], [0.6, 0.2, 0.2]])
    truth = [float(stats.entropy(a, b)) for a, b in zip(rows, others, strict=True)]
    order = [2, 0, 1]
    names = np.array(list("abc"))
    tables: dict[str, Any] = {
        "pandas": (pd.DataFrame(rows, columns=names), pd.DataFrame(others[:, order], columns=names[order])),
        "polars": (
            pl.DataFrame(rows, schema=list(names), orient="row"),
            pl.DataFrame(others[:, order], schema=list(names[order]), orient="row"),
        ),
        "mappings": tuple(
            {names[j]: x[:, j].tolist() for j in js} for x, js in ((rows, range(3)), (others, order))
        ),
        "mappings of arrays": tuple(
            {names[j]: x[:, j] for j in js} for x, js in ((rows, range(3)), (others, order))
        ),
        "rows of Series": tuple(
            [pd.Series(row[js], index=names[js]) for row in x]
            for x, js in ((rows, [0, 1, 2]), (others, order))
        ),
        "pandas' own dtypes": (
            pd.DataFrame(rows, columns=names).astype("Float64"),
            pd.DataFrame(others[:, order], columns=names[order]).astype("Float64"),
        ),
    }
    for name, (x, y) in tables.items():
        found = kl_divergence(Probs(x), Probs(y))
        assert found.tolist() == pytest.approx(truth, rel=1e-4), name
        assert Counts(x).labels == tuple("abc"), name
    x, y = tables["pandas"]
    assert kl_divergence(Probs(x.T, dim=0), Probs(y.T, dim=0)).tolist() == pytest.approx(truth)
    assert float(compare_predictions(Probs(x), Probs(y)).divergences["kl_pq"].mean) == pytest.approx(
        sum(truth) / 2
    )


def test_a_square_mapping_is_read_by_label() -> None:
    p = Counts({"a": [3, 1], "b": [1, 3]}, prior=0.5)
    q = Counts({"b": [2, 2], "a": [1, 5]}, prior=0.5)
    truth = [float(stats.entropy([3.5, 1.5], [1.5, 2.5])), float(stats.entropy([1.5, 3.5], [5.5, 2.5]))]
    assert kl_divergence(p, q).tolist() == pytest.approx(truth, rel=1e-6)
    assert Counts({"a": [3, 1, 2], "b": [1, 3, 2]}).tensor.tolist() == [[3, 1], [1, 3], [2, 2]]
    x = {"a": torch.tensor([3.0, 1.0], requires_grad=True), "b": torch.tensor([1.0, 3.0])}
    kl_divergence(Counts(x), q).sum().backward()
    assert x["a"].grad is not None


def test_cells_of_cross_tables_are_matched_by_both_labels() -> None:
    a, b = pd.Series([1, 1, 2, 2, 2]), pd.Series(list("xyxxx"))
    table = pd.crosstab(a, b)
    p, q = Counts(table, dim=(-2, -1)), Counts(table.iloc[::-1, ::-1], dim=(-2, -1))
    assert p.labels == ((1, "x"), (1, "y"), (2, "x"), (2, "y"))
    assert float(kl_divergence(p, q)) == 0
    assert float(mutual_information(p)) == pytest.approx(
        float(mutual_information(Counts(table.to_numpy(), dim=(-2, -1))))
    )


MISSING: dict[str, Callable[[], Any]] = {
    "NaN in a mapping": lambda: {float("nan"): 3, "x": 2},
    "NaN in a Counter": lambda: Counter(["x", float("nan"), "y"]),
    "NumPy's NaN": lambda: {np.float32("nan"): 3, 1.5: 2},
    "None": lambda: Counter(["x", None]),
    "objects": lambda: pd.Series(["a", None, "b", None], dtype=object).value_counts(dropna=False),
    "pandas' strings": lambda: pd.Series(["a", None, "b"], dtype="string").value_counts(dropna=False),
    "categories": lambda: pd.Series(["a", None, "b"], dtype="category").value_counts(dropna=False),
    "floats": lambda: pd.Series([1.5, np.nan, 2.0]).value_counts(dropna=False),
    "dates": lambda: pd.Series(pd.to_datetime(["2020-01-01", None])).value_counts(dropna=False),
    "polars' floats": lambda: pl.Series([1.5, float("nan"), 2.0]).value_counts(sort=True),
    "polars' nulls": lambda: pl.Series(["a", None, "b"]).value_counts(sort=True),
    "two levels": lambda: {("a", float("nan")): 1, ("b", 2.0): 3},
}


def test_a_missing_value_is_a_label_that_equals_itself() -> None:
    for name, make in MISSING.items():
        p, q = Counts(make()), Counts(make())
        assert float(kl_divergence(p, q)) == 0, name
        labels = list(p.labels or ())
        fresh = [
            float("nan") if isinstance(label, float) and math.isnan(label) else label for label in labels
        ]
        again = Counts(p.tensor.flip(0), labels=fresh[::-1])
        assert float(kl_divergence(p, again)) == 0, f"{name}, labels="
        shares = p.tensor.double() / p.tensor.sum()
        assert float(kl_divergence(Probs(shares, labels=fresh), p)) == pytest.approx(0, abs=1e-12), name
    for labels in (
        torch.tensor([3, 4]),
        np.array(["NaT", "2020-01-01"], "M8[D]"),
        pa.array(["a", None]),
        pl.Series(["a", None]),
        pd.Index(["a", None]),
    ):
        assert float(kl_divergence(Counts([1, 2], labels=labels), Counts([1, 2], labels=labels))) == 0


def test_labels_of_types_that_cannot_be_equal_are_refused_by_both_types() -> None:
    midnight = dt.datetime(2020, 1, 1)  # noqa: DTZ001 - without a time zone on purpose
    cases: dict[str, tuple[Any, Any, str, str]] = {
        "text and numbers": ({"1": 3, "2": 2}, {1: 3, 2: 2}, "str", "int"),
        "one label only": ({"1": 3, "x": 2}, {1: 3, "x": 2}, "str", "int"),
        "NumPy's numbers": (pd.Series([3, 2], index=["1", "2"]), {np.int64(1): 3, 2: 2}, "str", "int64"),
        "one side missing": ({"1": 3, None: 2}, {1: 3, None: 2}, "str", "int"),
        "text of floats": ({"1.0": 3, "x": 1}, {1: 3, "x": 1}, "str", "int"),
        "bytes": ({b"a": 3}, {"a": 3}, "bytes", "str"),
        "precisions": ({np.float32(0.1): 3}, {0.1: 3}, "float32", "float"),
        "dates and times": ({midnight.date(): 3}, {midnight: 3}, "date", "datetime"),
        "time zones": ({midnight: 3}, {midnight.replace(tzinfo=dt.UTC): 3}, "datetime", "datetime"),
        "pairs": ({("a", 1): 3}, {("a", "1"): 3}, "(str, int)", "(str, str)"),
        "missing values": ({float("nan"): 3, "x": 1}, {None: 3, "x": 1}, "float", "NoneType"),
        "text of a missing value": ({float("nan"): 3, "x": 1}, {"nan": 3, "x": 1}, "float", "str"),
        "truth values": ({True: 3, False: 1}, {"True": 3, "False": 1}, "bool", "str"),
    }
    for name, (x, y, first, second) in cases.items():
        for p, q in ((Counts(x), Counts(y)), (Counts(x), Probs(y, validate=False))):
            with refused(ArgumentValueError, wanted="labels of one type") as caught:
                kl_divergence(p, q)
            got = caught.value.got or ""
            assert f"in p, {first}, and" in got, name
            assert got.endswith(f"in q, {second}"), name
    with refused(ArgumentValueError, wanted="labels of one type"):
        two_sample_test(Counts({"1": 3, "2": 2}), Counts({1: 3, 2: 2}))
    x, y = {"1": 3, "2": 2}, {1: 3, 2: 2}
    p, q = (Counts(list(c.values()), labels=[str(label) for label in c]) for c in (x, y))  # the remedy
    assert float(kl_divergence(p, q)) == 0
    x, y = {float("nan"): 3, "x": 1}, {None: 3, "x": 1}
    names = [
        ["missing" if str(label) in {"None", "nan", "<NA>", "NaT"} else label for label in c] for c in (x, y)
    ]
    assert float(kl_divergence(Counts(x, labels=names[0]), Counts(y, labels=names[1]))) == 0


def test_labels_of_mixed_types_that_match_are_served() -> None:
    assert float(kl_divergence(Counts({"a": 1, 2: 1}), Counts({2.0: 1, "a": 1}))) == 0
    assert float(kl_divergence(Counts({True: 1, False: 3}), Counts({0: 3, 1: 1}))) == 0


def test_indices_of_integers_that_differ_are_refused() -> None:
    x, y = pd.Series([0.5, 0.5], index=[1, 2]), pd.Series([0.25, 0.75], index=[2, 1])
    truth = float(stats.entropy([0.5, 0.5], [0.25, 0.75]))
    for cls, change in ((Probs, lambda a: a), (LogProbs, np.log), (Logits, np.log)):
        p, q = change(x), change(y)
        for pair in ((cls(p), cls(q)), (cls(p), Counts(y)), (Counts(x), cls(q))):
            with refused(ArgumentValueError, instead=r"\.to_numpy\(\)") as caught:
                kl_divergence(*pair)
            assert "labels=x.index" in (caught.value.instead or "")
        assert float(kl_divergence(cls(p.to_numpy()), cls(q.to_numpy()))) == pytest.approx(truth)
        by_label = kl_divergence(cls(p, labels=p.index), cls(q, labels=q.index))
        assert float(by_label) == pytest.approx(float(stats.entropy([0.5, 0.5], [0.75, 0.25])))
        assert float(
            kl_divergence(cls(p), cls(change(pd.Series([0.25, 0.75], index=[1, 2]))))
        ) == pytest.approx(truth)
    assert float(kl_divergence(Counts(x), Counts(y))) == pytest.approx(0.14384103622589)
    plain = pd.Series([0.25, 0.75])  # whose index counts the classes
    assert float(kl_divergence(Probs([0.5, 0.5]), Probs(plain))) == pytest.approx(truth)
    frame = pd.DataFrame([[0.5, 0.5]])
    with refused(ArgumentValueError, instead=r"\.to_numpy\(\)"):
        kl_divergence(Probs(frame), Probs(frame[[1, 0]]))
    twice = pd.Series([0.5, 0.5], index=[3, 3])
    assert float(kl_divergence(Probs(twice), Probs(twice))) == 0


def test_labels_on_one_side_are_refused_unless_they_number_the_classes() -> None:
    series, mapping = pd.Series([0.5, 0.5], index=list("ab")), {"a": 0.5, "b": 0.5}
    for named in (Probs(series), Probs(mapping), Counts(mapping), Logits(mapping)):
        for plain in (Probs([0.5, 0.5]), Counts([1, 1]), Categorical(torch.ones(2))):
            for pair in ((named, plain), (plain, named)):
                with refused(ArgumentValueError, got="labels on one side only"):
                    kl_divergence(*pair)
    assert float(kl_divergence(Probs(series), Probs([0.5, 0.5], labels=["b", "a"]))) == 0
    assert float(kl_divergence(Probs(series.to_numpy()), Probs([0.5, 0.5]))) == 0
    assert float(kl_divergence(Probs(list(mapping.values())), Probs([0.5, 0.5]))) == 0
    assert float(kl_divergence(Counts({0: 1, 1: 1}), Probs([0.5, 0.5]))) == 0
    with refused(ArgumentValueError, got="labels on one side only"):
        kl_divergence(Counts({1: 1, 0: 3}), Probs([0.25, 0.75]))


def test_rows_of_tables_in_another_order_are_refused() -> None:
    x = pd.DataFrame({"a": [0.2, 0.3], "b": [0.8, 0.7]}, index=["u", "v"])
    y = x.iloc[::-1]
    with refused(ArgumentValueError, instead=r"x\.loc\[y\.index\]"):
        kl_divergence(Probs(x), Probs(y))
    assert kl_divergence(Probs(x.loc[y.index]), Probs(y)).tolist() == [0, 0]
    assert kl_divergence(Probs(x.to_numpy()), Probs(y.to_numpy())).shape == (2,)


def test_tables_that_may_be_read_in_two_ways_name_both() -> None:
    x = pd.DataFrame({"spam": [3, 1], "ham": [5, 2]})
    for frame in (x, pl.DataFrame({"spam": [3, 1], "ham": [5.0, 2.0]})):
        with refused(ArgumentValueError, instead="if each column is a class"):
            Logits(frame)
    with refused(ArgumentValueError, instead="if each column is a class") as caught:
        Counts(x)
    both = re.findall(r"Counts\(.*?\)\)?(?= if)", caught.value.instead or "")
    made = [eval(line, {"Counts": Counts, "x": x}) for line in both]  # noqa: S307
    assert made[0].tensor.tolist() == [[3, 5], [1, 2]]
    assert made[1].tensor.tolist() == [5, 2]
    assert made[1].labels == (3, 1)


def test_bad_labels_are_refused() -> None:
    cases: dict[str, Callable[[], Any]] = {
        "too few": lambda: Probs([0.5, 0.5], labels=["a"]),
        "equal": lambda: Logits([0.5, 0.5], labels=["a", "a"]),
        "two NaN": lambda: Counts([1, 2], labels=[float("nan"), float("nan")]),
        "lists": lambda: Counts([1, 2], labels=[["a"], ["b"]]),  # pyright: ignore[reportArgumentType]
        "no sequence": lambda: Counts([1, 2], labels=3),  # pyright: ignore[reportArgumentType]
        "masked": lambda: Counts([1, 2], labels=np.ma.array(["a", "b"], mask=[0, 1])),
        "unequal columns": lambda: Counts({"a": [1, 2], "b": [1]}),
        "unequal tensors": lambda: Counts({"a": torch.ones(2), "b": torch.ones(1)}),
        "other rows": lambda: Counts([{"a": 1}, {"b": 1}]),
        "a name twice": lambda: Probs(pd.Series([0.5, 0.5], index=["a", "a"])),
    }
    for name, make in cases.items():
        with pytest.raises(KullbackError, match="Write: "):
            pytest.fail(f"{name}: {make()}")
    assert Counts(pd.DataFrame([{"a": 1}, {"b": 1}]).fillna(0)).labels == ("a", "b")
    assert Counts([1, 2], labels=np.ma.array(["a", "b"], mask=[0, 1]).filled("missing")).labels == ("a", "m")


def test_draws_and_labeled_probabilities_meet_by_label() -> None:
    x = Samples(["b", "a", "b", "c"] * 50, independent=True)
    codes = Samples(torch.tensor([1, 0, 1, 2] * 50), independent=True)
    truth = kl_estimate(codes, Probs([0.2, 0.5, 0.3]))
    found = kl_estimate(x, Probs({"c": 0.3, "a": 0.2, "b": 0.5}))
    assert float(found.value) == pytest.approx(float(truth.value), rel=1e-6)
    numbers = Samples(torch.tensor([20, 10, 20, 30] * 50), independent=True)
    assert float(kl_estimate(numbers, Probs({30: 0.3, 10: 0.2, 20: 0.5})).value) == pytest.approx(
        float(truth.value), rel=1e-6
    )
    with refused(ArgumentValueError, wanted="labels of one type"):
        kl_estimate(numbers, Probs({"30": 0.3, "10": 0.2, "20": 0.5}))
    for labels in ([("a", 1), ("b", 2)], ["a", None], ["1", 1]):
        with refused(ArgumentValueError, instead="counts on both sides"):
            kl_estimate(Counts([3, 4], labels=labels), x)


def test_a_fit_meets_its_target_by_label() -> None:
    target = {"a": 0.2, "b": 0.8}
    found = fit(Logits(pd.Series([0.0, 0.0], index=["b", "a"])), to=Probs(target)).distribution
    assert found.tensor.softmax(-1).tolist() == pytest.approx([0.8, 0.2], abs=1e-5)
    with refused(ArgumentValueError, got="labels on one side only"):
        fit(Logits(torch.zeros(2)), to=Probs(target))


def test_a_mask_is_refused_with_both_readings() -> None:
    x = np.ma.array([3.0, 4.0, 999.0], mask=[False, False, True])
    table = np.ma.array([[3.0, 4.0, 9.0], [1.0, 1.0, 2.0]], mask=[[0, 0, 1], [0, 0, 0]])
    every = np.ma.array([[3.0, 4.0, 9.0], [1.0, 1.0, 2.0]], mask=[[0, 0, 1], [0, 1, 0]])
    column = np.ma.array([[3.0, 4.0, 9.0], [1.0, 1.0, 2.0]], mask=[[0, 0, 1], [0, 0, 1]])
    row = np.ma.array([[3.0, 4.0, 9.0], [1.0, 1.0, 2.0]], mask=[[0, 0, 0], [1, 1, 1]])
    shares = [3 / 7, 4 / 7]
    for cls in (Counts, Probs, LogProbs, Logits):
        for name, given in {"x": x, "table": table, "every": every, "column": column, "row": row}.items():
            given = given.copy()  # noqa: PLW2901
            if cls is Probs:
                given = given / given.sum(-1, keepdims=True)  # noqa: PLW2901
            elif cls in (LogProbs, Logits):
                given = np.ma.log(given / given.sum(-1, keepdims=True))  # noqa: PLW2901
            with refused(ArgumentValueError, got="masked of") as caught:
                cls(given)
            lines = re.findall(r"\w+\(.+?\)(?= if| to|$)", caught.value.instead or "")
            assert len(lines) == (1 if name == "row" else 2), (cls, name, lines)
            space = {
                "Counts": Counts,
                "Probs": Probs,
                "Logits": Logits,
                "LogProbs": LogProbs,
                "x": given,
                "math": math,
            }
            made = [eval(line, space) for line in lines]  # noqa: S307
            if name == "x":
                chosen = [float(entropy(one)) for one in made]
                assert chosen == pytest.approx([float(stats.entropy(shares))] * 2)
                assert [one.classes for one in made] == [3, 2]
    empty = np.ma.array([3.0, 4.0], mask=False)
    assert float(kl_divergence(Counts(empty), Counts([3.0, 4.0]))) == 0
    for given in ([np.ma.masked, 1.0], [x, x]):
        with refused(ArgumentValueError, instead=r"numpy\.ma\.stack\(x\)"):
            Counts(given)


def test_a_mapping_with_masked_columns_is_refused() -> None:
    with refused(ArgumentValueError, got="masked of"):
        Counts({"a": np.ma.array([1, 2], mask=[0, 1]), "b": np.array([1, 2])})


def test_the_labels_are_public() -> None:
    assert kullback.Probs({"a": 0.5, "b": 0.5}).labels == ("a", "b")
    assert kullback.Logits(torch.zeros(3)).labels is None
