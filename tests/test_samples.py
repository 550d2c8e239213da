"""Samples, what the verb makes of them, and the permutation test."""

from __future__ import annotations

import importlib
import math
import re
import warnings
from typing import Any
from unittest import mock

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import scipy.stats
import torch
from torch.distributions import Categorical, MultivariateNormal, Normal, Poisson

import kullback
from kullback import (
    Counts,
    Jeffreys,
    Probs,
    ReverseKL,
    Samples,
    TotalVariation,
    divergence,
    estimate,
    kl_divergence,
    kl_estimate,
    two_sample_test,
)
from kullback.errors import ArgumentTypeError, ArgumentValueError, NoRuleError
from kullback.estimators import EstimateWarning
from kullback.estimators.draws import Draws
from kullback.estimators.permutations import p_value
from tests.refusals import refused

two_sample = importlib.import_module("kullback.estimators.two_sample_test")
N = 2000


def draws(seed: int, *shape: int, shift: float = 0.0, scale: float = 1.0) -> torch.Tensor:
    return shift + scale * torch.randn(
        *shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64
    )


X, Y = draws(0, N), draws(1, N, shift=1.0, scale=1.5)
TRUE = math.log(1.5) + 2 / (2 * 2.25) - 0.5
CATEGORIES = torch.multinomial(
    torch.tensor([0.5, 0.3, 0.2]), N, replacement=True, generator=torch.Generator().manual_seed(2)
)


# --- Samples ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("given", [["b", "a", "b"], np.array(["b", "a", "b"]), pd.Series(["b", "a", "b"])])
def test_strings_become_categories_with_their_names(given: object) -> None:
    found = Samples(given)
    assert found.labels == ("a", "b")
    assert found.discrete
    assert found.tensor[:, 0].tolist() == [1, 0, 1]


@pytest.mark.parametrize(
    "given", [pd.Series([0.5, 1.5]), pl.Series([0.5, 1.5]), np.array([0.5, 1.5]), [0.5, 1.5]]
)
def test_numbers_of_any_library_become_numbers(given: object) -> None:
    found = Samples(given)
    assert found.labels is None
    assert not found.discrete
    assert found.tensor[:, 0].tolist() == [0.5, 1.5]


def test_dim_names_the_components() -> None:
    assert Samples(torch.zeros(3, 7), dim=0).tensor.shape == (7, 3)


@pytest.mark.parametrize(
    ("settings", "parts"),
    [
        ({"weights": [1.0, 2.0]}, ["weights", "3 finite numbers", "(2,)"]),
        ({"weights": [1.0, -1.0, 1.0]}, ["negative", "index (1,)"]),
        ({"weights": [0.0, 0.0, 0.0]}, ["not all zero"]),
        ({"weights": [1.0, math.inf, 1.0]}, ["finite"]),
        ({"cluster": ["a", "b"]}, ["cluster", "3 names"]),
    ],
)
def test_what_does_not_fit_the_draws_is_refused(settings: dict[str, object], parts: list[str]) -> None:
    with pytest.raises(ArgumentValueError) as caught:
        Samples([0.0, 1.0, 2.0], **settings)  # pyright: ignore[reportArgumentType]
    assert all(part in str(caught.value) for part in parts)


def test_complex_draws_are_refused() -> None:
    with refused(ArgumentTypeError, instead="view_as_real"):
        Samples(torch.zeros(3, dtype=torch.complex64))


# --- what draws say about themselves ---------------------------------------------------------------------------------


def calls_in(text: str) -> list[str]:
    """The calls of Samples that a message names, up to the parenthesis that closes them."""
    calls = []
    for start in (match.start() for match in re.finditer(r"Samples\(", text)):
        depth = 0
        for end, character in enumerate(text[start:], start):
            depth += (character == "(") - (character == ")")
            if character == ")" and depth == 0:
                calls.append(text[start : end + 1])
                break
    return calls


def test_masked_rows_are_left_out_of_draws_weights_and_clusters() -> None:
    x, mask = np.arange(6.0), np.array([1, 0, 0, 0, 0, 1], dtype=bool)
    weights, groups = np.arange(1.0, 7.0), np.array(list("aabbcc"))
    of_weights = np.ma.array(weights, mask=[0, 1, 0, 0, 0, 0])
    of_groups = np.ma.array(groups, mask=[0, 0, 0, 1, 0, 0])
    keep = [2, 4]
    others: dict[str, Any] = {
        "arrays": (x, weights, groups),
        "Series": (pd.Series(x), pd.Series(weights), pd.Series(groups)),
        "polars": (pl.Series(x), pl.Series(weights), pl.Series(groups)),
        "lists": (x.tolist(), weights.tolist(), groups.tolist()),
        "tensors": (torch.from_numpy(x), torch.from_numpy(weights), torch.tensor([0, 0, 1, 1, 2, 2])),
    }
    for name, (draw, weight, group) in others.items():
        masked = np.ma.array(x, mask=mask)
        found = Samples(masked, weights=of_weights, cluster=of_groups)
        assert found.tensor[:, 0].tolist() == [x[i] for i in keep]
        for kept, given in (
            ([1, 2, 3, 4], {"x": masked, "weights": weight, "cluster": group}),
            ([0, 2, 3, 4, 5], {"x": draw, "weights": of_weights, "cluster": group}),
            ([0, 1, 2, 4, 5], {"x": draw, "weights": weight, "cluster": of_groups}),
        ):
            found = Samples(**given)
            assert found.tensor[:, 0].tolist() == [x[i] for i in kept], name
            assert found.weights is not None
            assert found.weights.tolist() == [weights[i] for i in kept], name
            want = Samples(x[kept], cluster=groups[kept]).cluster
            assert torch.equal(found.cluster, want), name  # pyright: ignore[reportArgumentType]
    words = Samples(np.ma.array(["a", "b", "c"], mask=[0, 1, 0]))
    assert words.labels == ("a", "c")
    assert Samples(np.ma.array([1, 2, 3], mask=[0, 1, 0])).tensor[:, 0].tolist() == [1, 3]
    with refused(ArgumentValueError, wanted="at least one draw"):
        Samples(np.ma.masked_all(3))


def test_masked_vectors_are_left_out_and_refused_if_masked_in_part() -> None:
    x = np.arange(8.0).reshape(4, 2)
    whole = np.ma.array(x, mask=[[0, 0], [1, 1], [0, 0], [0, 0]])
    for found in (
        Samples(whole, weights=[1, 2, 3, 4]),
        Samples(whole.T, dim=0, weights=[1, 2, 3, 4]),
        Samples(x, weights=np.ma.array([1, 2, 3, 4], mask=[0, 1, 0, 0])),
        Samples(torch.from_numpy(x.T), dim=0, weights=np.ma.array([1, 2, 3, 4], mask=[0, 1, 0, 0])),
        Samples(x.T.tolist(), dim=0, weights=np.ma.array([1, 2, 3, 4], mask=[0, 1, 0, 0])),
    ):
        assert found.tensor.tolist() == x[[0, 2, 3]].tolist()
        assert found.weights is not None
        assert found.weights.tolist() == [1, 3, 4]
    partly = np.ma.array(x, mask=[[0, 1], [1, 1], [0, 0], [0, 0]])
    for given, dim in ((partly, -1), (partly.T, 0)):
        with refused(ArgumentValueError, got="1 of 4 masked in part") as caught:
            Samples(given, dim=dim)
        lines = [line.partition(" to ")[0] for line in (caught.value.instead or "").split("; ")]
        rows, imputed = (eval(line, {"Samples": Samples, "numpy": np, "x": given}) for line in lines)  # noqa: S307
        assert rows.tensor.tolist() == x[2:].tolist()
        assert imputed.tensor[0].tolist() == [0, 6]
        assert len(imputed) == 4


def test_masked_draws_give_the_estimate_of_the_others() -> None:
    g = np.random.default_rng(0)
    x = np.ma.array(np.r_[np.full(200, -999.0), g.normal(size=800)], mask=np.arange(1000) < 200)
    y = Samples(g.normal(size=1000), independent=True)
    masked, others = Samples(x, independent=True), Samples(x.compressed(), independent=True)
    assert str(kl_estimate(masked, y)) == str(kl_estimate(others, y))
    first, second = (
        two_sample_test(side, y, generator=torch.Generator().manual_seed(0), permutations=99).p_value
        for side in (masked, others)
    )
    assert first == second


TEXT = ["a", "b", None] * 3
WITH_MISSING: dict[str, Any] = {
    "list": TEXT,
    "None first": [None, "a", "b"],
    "NaN": ["a", math.nan],
    "array": np.array(TEXT, dtype=object),
    "object": pd.Series(TEXT, dtype=object),
    "string": pd.Series(TEXT, dtype="string"),
    "str": pd.Series(TEXT, dtype="str"),
    "category": pd.Series(TEXT, dtype="category"),
    "Categorical": pd.Categorical(TEXT),
    "boolean": pd.Series([True, None, False], dtype="boolean"),
    "truth values": [True, None],
    "polars": pl.Series(TEXT),
    "polars' categories": pl.Series(TEXT, dtype=pl.Categorical),
    "Arrow": pa.array(TEXT),
    "chunks": pa.chunked_array([TEXT, TEXT]),
    "Arrow's categories": pa.array(TEXT).dictionary_encode(),
    "NA in a list": ["a", pd.NA],
}


def test_missing_text_is_refused_with_remedies_that_work() -> None:
    for name, x in WITH_MISSING.items():
        with refused(ArgumentValueError, instead="drop or impute the missing values first") as caught:
            Samples(x)
        lines = calls_in(caught.value.instead or "")
        made = [eval(line, {"Samples": Samples, "pandas": pd, "x": x}) for line in lines]  # noqa: S307
        assert len(made) == (1 if name in {"boolean", "truth values"} else 2), name
        assert all(one.discrete for one in made), name
        if len(made) > 1:
            assert made[1].labels == (*(made[0].labels or ()), "missing"), name
            assert len(made[1]) == len(x), name


def test_text_of_any_library_is_drawn() -> None:
    for x in (
        pa.array(["a", "b"]),
        pa.chunked_array([["a"], ["b"]]),
        pa.array(["a", "b"]).dictionary_encode(),
        pl.Series(["a", "b"], dtype=pl.Categorical),
        pd.Categorical(["a", "b"]),
        ("a", "b"),
    ):
        assert Samples(x).labels == ("a", "b")
    assert Samples(pa.array([1.5, 2.5])).tensor[:, 0].tolist() == [1.5, 2.5]
    assert Samples(pd.Series([True, False], dtype=object)).tensor.dtype == torch.bool


def test_draws_that_are_no_numbers_are_refused_with_remedies_that_work() -> None:
    times = pd.Series(pd.to_datetime(["2020-01-01", "2020-01-03"]))
    cases: dict[str, Any] = {
        "times": times,
        "times of polars": pl.Series(times),
        "bytes": np.array([b"a", b"b"]),
        "text among numbers": ["a", 1],
        "a table of text": np.array([["a", "b"]]),
        "a table of numbers and text": pd.DataFrame({"a": [0.2, 0.3], "b": ["x", "y"]}),
    }
    for name, x in cases.items():
        with refused(ArgumentTypeError, wanted="numbers, booleans or strings") as caught:
            Samples(x)
        lines = calls_in(caught.value.instead or "")
        if "table" in name:
            lines = lines[1:]  # the first one is for numbers
        assert lines, name
        for line in lines:
            made = eval(line, {"Samples": Samples, "numpy": np, "x": x})  # noqa: S307
            assert len(made) == len(x), name


def test_missing_clusters_are_refused() -> None:
    for cluster in (
        ["a", None],
        ["a", math.nan],
        pd.Series(["a", None], dtype="string"),
        np.array([1.0, math.nan]),
    ):
        with refused(ArgumentTypeError, got="1 of 2 missing"):
            Samples([1.0, 2.0], cluster=cluster)


def test_columns_and_rows_in_another_order_are_refused() -> None:
    g = np.random.default_rng(0)
    x, y = (pd.DataFrame(g.normal(size=(50, 2)), columns=list(names)) for names in ("ab", "ba"))
    for frames in ((x, y), (pl.from_pandas(x), pl.from_pandas(y))):
        for call in (kl_estimate, two_sample_test):
            with refused(ArgumentValueError, wanted="same columns"):
                call(Samples(frames[0]), Samples(frames[1]))
        assert kl_estimate(Samples(frames[0]), Samples(frames[1][list(frames[0].columns)])).n == (50, 50)
        assert kl_estimate(Samples(frames[0].to_numpy()), Samples(frames[1].to_numpy())).n == (50, 50)
    draws_of, weights = pd.Series([1.0, 2.0]), pd.Series([0.25, 0.75], index=[1, 0])
    for argument in ("weights", "cluster"):
        with refused(ArgumentValueError, wanted="the same index"):
            Samples(draws_of, **{argument: weights})
    matched = Samples(draws_of, weights=weights.loc[draws_of.index]).weights
    assert matched is not None
    assert matched.tolist() == [0.75, 0.25]
    assert Samples(draws_of, weights=weights.to_numpy()).weights is not None


@pytest.mark.sweep
def test_huge_and_tiny_draws_are_compared_as_in_usual_units() -> None:
    g = np.random.default_rng(0)
    settings: dict[str, Any] = {"independent": True}

    def answers(x: Any, y: Any) -> list[str]:
        p, q = Samples(x, **settings), Samples(y, **settings)
        seeds = (torch.Generator().manual_seed(0) for _ in range(4))
        methods = ["auto", "nearest_neighbors"] if x.shape[1] < 3 else ["auto"]
        found = [str(kl_estimate(p, q, method=method, generator=next(seeds))) for method in methods]
        test = two_sample_test(p, q, permutations=99, generator=next(seeds))
        return [*found, f"{test.p_value:.4g} by {test.method}"]

    for d in (1, 2, 11):
        x, y = g.normal(size=(120, d)), g.normal(size=(120, d)) + 0.4
        # Powers of two, so that no draw is rounded.
        scales = [np.full(d, 2.0**k) for k in (400, -400, 700, -700, 990)]
        scales += [np.where(np.arange(d) == 0, 2.0**400, 1.0), np.where(np.arange(d) == 0, 2.0**-600, 1.0)]
        want = answers(x, y)
        for scale in scales if d < 11 else scales[-1:]:  # the classifiers take most of the time
            assert answers(scale * x, scale * y) == want, (d, scale)
    for d in (1, 2):
        x, y = 1e120 * g.normal(size=(200, d)), 1e120 * (g.normal(size=(200, d)) + 0.4)
        for kind in ("reverse_kl", "jeffreys"):
            usual = estimate(Samples(x / 1e120, **settings), Samples(y / 1e120, **settings), kind)
            found = estimate(Samples(x, **settings), Samples(y, **settings), kind)
            assert float(found.value) == pytest.approx(float(usual.value), rel=1e-6)
    wide = [Samples(1e200 * g.normal(size=(60, 40))) for _ in range(2)]  # whose order is examined
    assert kl_estimate(*wide, method="density_ratio").n == (60, 60)
    rounded = [Samples(1e120 * g.normal(size=500).round(1), **settings) for _ in range(2)]
    assert any("common step of 1e+119" in note for note in kl_estimate(*rounded).notes)


def test_integers_that_may_be_amounts_get_a_note_with_the_way_out() -> None:
    g = np.random.default_rng(0)
    a, b = (g.normal(mean, 10_000, 1000).astype(int) for mean in (50_000, 52_000))
    note = kl_estimate(Samples(a), Samples(b)).notes[0]
    assert "categories" in note
    for made in (Samples(a.astype(float)), Samples(torch.from_numpy(a).double())):
        found = kl_estimate(made, Samples(b.astype(float)))
        assert found.interval is not None
        assert float(found.interval[0]) <= 0.02 <= float(found.interval[1])
    assert "Samples(x.astype(float))" in note
    assert "Samples(x.double())" in note
    assert note in estimate(Samples(a), Samples(b), "js").notes
    assert note in two_sample_test(Samples(a), Samples(b), permutations=19).notes
    ages = [Samples(g.integers(0, 90, 1000)) for _ in range(2)]
    assert not any("amounts" in text for text in kl_estimate(*ages).notes)
    assert not any("amounts" in text for text in kl_estimate(Samples(a), Poisson(50_000.0)).notes)


# --- the verb --------------------------------------------------------------------------------------------------------


def test_two_data_sets_give_a_value_and_an_interval() -> None:
    found = kl_estimate(Samples(X), Samples(Y))
    assert found.n == (N, N)
    assert found.interval is not None
    assert found.interval[0] < TRUE < found.interval[1]
    assert float(kl_divergence(Samples(X), Samples(Y))) == pytest.approx(float(found.value))


def test_a_base_divides_all_that_is_in_nats() -> None:
    nats, bits = (kl_estimate(Samples(X), Samples(Y), base=base) for base in (None, 2))
    assert nats.interval is not None
    assert bits.interval is not None
    assert nats.standard_error is not None
    assert bits.standard_error is not None
    for one, other in [
        (nats.value, bits.value),
        (nats.standard_error, bits.standard_error),
        *zip(nats.interval, bits.interval, strict=True),
    ]:
        assert float(one) == pytest.approx(math.log(2) * float(other))


@pytest.mark.filterwarnings("ignore::kullback.estimators.EstimateWarning")
def test_reverse_and_jeffreys_follow_from_both_directions() -> None:
    p, q = Samples(X), Samples(Y)
    there, back = kl_divergence(p, q), kl_divergence(q, p)
    assert divergence(p, q, ReverseKL()) == back
    assert float(divergence(p, q, Jeffreys())) == pytest.approx(float(there + back))


@pytest.mark.parametrize("kind", [TotalVariation(), "chi2", "renyi:2", "js"])
@pytest.mark.parametrize(
    ("p", "q", "remedy"),
    [
        (Samples(draws(0, N, 2)), Samples(draws(1, N, 2)), r"divergence\(Counts\(torch.histogramdd\("),
        (Samples(X), Normal(1.0, 1.5), r"divergence\(p, Samples\(q.sample\("),
    ],
)
def test_other_kinds_of_vectors_and_of_a_known_q_name_a_remedy(
    p: Samples, q: object, remedy: str, kind: object
) -> None:
    with pytest.raises(NoRuleError, match=f"Write: {remedy}"):
        divergence(p, q, kind)  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize(
    ("p", "q", "truth"),
    [
        (Samples(X), Normal(1.0, 1.5), TRUE),
        (Samples(CATEGORIES), Categorical(torch.tensor([0.2, 0.3, 0.5])), 0.3 * math.log(2.5)),
        (Samples(CATEGORIES), Probs([0.2, 0.3, 0.5]), 0.3 * math.log(2.5)),
        (Samples(CATEGORIES), Counts([2.0, 3.0, 5.0]), 0.3 * math.log(2.5)),
        (Samples(draws(2, N, 2)), MultivariateNormal(torch.ones(2), torch.eye(2)), 1.0),
    ],
)
def test_a_known_q_needs_no_draws(p: Samples, q: object, truth: float) -> None:
    found = kl_estimate(p, q)  # pyright: ignore[reportArgumentType]
    assert found.standard_error is not None
    assert abs(float(found.value) - truth) < 5 * float(found.standard_error) + 0.02


@pytest.mark.parametrize(
    ("call", "error", "parts"),
    [
        (lambda: kl_divergence(Normal(0.0, 1.0), Samples(X)), NoRuleError, ["draws of P", "p.sample((n,))"]),
        (lambda: kl_divergence(Probs([0.5, 0.5]), Samples([0, 1])), NoRuleError, ["bincount", "prior=0.5"]),
        (
            lambda: kl_divergence(Samples(X), Samples(CATEGORIES)),
            ArgumentValueError,
            ["categories", "x.double()"],
        ),
        (lambda: kl_divergence(Samples(X), Samples(draws(0, N, 2))), ArgumentValueError, ["components"]),
        (
            lambda: kl_divergence(Samples([0, 3]), Probs([0.5, 0.5])),
            ArgumentValueError,
            ["from 0 to 1", "index"],
        ),
        (
            lambda: kl_divergence(Samples(X), Samples(Y), method="plugin"),
            ArgumentValueError,
            ["nearest_neighbors"],
        ),
        (
            lambda: kl_divergence(Samples(X), Samples(Y), method="knn"),
            ArgumentValueError,
            ["'knn'", "histogram"],
        ),
        (
            lambda: kl_estimate(Samples(X), Samples(Y), confidence=1.5),
            ArgumentValueError,
            ["between 0 and 1"],
        ),
        (lambda: kl_divergence(Samples(X), Probs([0.5, 0.5])), NoRuleError, ["Samples(y)"]),
        (
            lambda: kl_divergence(Samples(X), Normal(0.0, 1.0), method="nearest_neighbors"),
            ArgumentValueError,
            ["auto"],
        ),
    ],
)
def test_errors_name_the_remedy(call, error: type[Exception], parts: list[str]) -> None:
    with pytest.raises(error) as caught:
        call()
    assert all(part in str(caught.value) for part in parts), caught.value


def test_a_poisson_is_no_density() -> None:
    found = kl_estimate(Samples(torch.poisson(torch.full((N,), 3.0)).long()), Poisson(4.0))
    assert found.standard_error is not None
    truth = 3 * math.log(3 / 4) + 1
    assert abs(float(found.value) - truth) < 5 * float(found.standard_error) + 0.01


def test_notes_are_warnings_where_only_the_value_is_returned() -> None:
    p, q = Samples(["a", "b"] * 50), Samples(["a", "c"] * 50)
    assert kl_estimate(p, q).notes
    with pytest.warns(EstimateWarning):
        kl_divergence(p, q)


# --- two_sample_test -------------------------------------------------------------------------------------------------


def p_values(make, repetitions: int, permutations: int = 99) -> np.ndarray:
    found = []
    module = importlib.import_module("kullback.estimators.two_sample_test")
    with mock.patch.object(module, "_effect", return_value=(None, ())):  # takes longer, and comes after
        for seed in range(repetitions):
            p, q = make(np.random.default_rng(seed))
            generator = torch.Generator().manual_seed(seed)
            found.append(two_sample_test(p, q, permutations=permutations, generator=generator).p_value)
    return np.array(found)


def clustered(rng: np.random.Generator, clusters: int, size: int) -> Samples:
    values = rng.normal(size=clusters)[:, None] + 0.1 * rng.normal(size=(clusters, size))
    return Samples(values.ravel(), cluster=np.repeat(np.arange(clusters), size))


EQUAL = {
    "numbers": lambda rng: (Samples(rng.normal(size=40)), Samples(rng.normal(size=60))),
    "rounded": lambda rng: (Samples(rng.normal(size=40).round(1)), Samples(rng.normal(size=60).round(1))),
    "vectors": lambda rng: (Samples(rng.normal(size=(30, 3))), Samples(rng.normal(size=(50, 3)))),
    "categories": lambda rng: (Samples(rng.integers(0, 9, 40)), Samples(rng.integers(0, 9, 70))),
    "clusters": lambda rng: (clustered(rng, 20, 5), clustered(rng, 25, 5)),
}
UNEQUAL = {
    "numbers": lambda rng: (Samples(rng.normal(size=100)), Samples(rng.normal(1.0, size=100))),
    "scale": lambda rng: (Samples(rng.normal(size=300)), Samples(rng.normal(0.0, 3.0, size=300))),
    "vectors": lambda rng: (Samples(rng.normal(size=(100, 3))), Samples(rng.normal(1.0, size=(100, 3)))),
    "categories": lambda rng: (Samples(rng.integers(0, 9, 200)), Samples(rng.integers(2, 11, 200))),
    "clusters": lambda rng: (clustered(rng, 40, 5), Samples(2 + rng.normal(size=200))),
}


@pytest.mark.heavy
@pytest.mark.parametrize("name", [name for name in EQUAL if name != "rounded"])
def test_p_values_are_uniform_where_nothing_differs(name: str) -> None:
    found = p_values(EQUAL[name], 200, permutations=39)
    # Binomial(200, 0.05) is below 21 and Binomial(200, 0.5) between 75 and 125, each with chance 0.999.
    assert (found <= 0.05).sum() <= 20
    assert 75 <= (found <= 0.5).sum() <= 125


@pytest.mark.parametrize("name", UNEQUAL)
def test_differences_are_found(name: str) -> None:
    assert (p_values(UNEQUAL[name], 5) <= 0.02).all()


def test_dependent_draws_pass_for_a_difference_only_without_their_clusters() -> None:
    ignored = p_values(
        lambda rng: tuple(Samples(s.tensor, independent=True) for s in EQUAL["clusters"](rng)), 40
    )
    assert (ignored <= 0.05).mean() > 0.3
    assert (p_values(EQUAL["clusters"], 40) <= 0.05).mean() < 0.2


def test_equal_values_have_one_rank() -> None:
    p, q = Samples([0.0, 0.0, 1.0, 1.0] * 10), Samples([0.0, 1.0, 0.0, 1.0] * 10)
    found = two_sample_test(p, q)
    assert found.statistic == 0
    assert found.p_value == 1


def test_the_same_seed_gives_the_same_answer() -> None:
    found = [
        two_sample_test(Samples(X[:50]), Samples(Y[:50]), generator=torch.Generator().manual_seed(3))
        for _ in "ab"
    ]
    assert found[0].p_value == found[1].p_value
    assert found[0].effect.value == found[1].effect.value


@pytest.mark.parametrize(
    ("p", "settings", "parts"),
    [
        (Samples(X, weights=torch.ones(N)), {}, ["exchanged", "weights"]),
        (Samples(X), {"permutations": 0}, ["permutations", "an integer from 1 to 10,000,000"]),
        (Samples(X, cluster=torch.zeros(N)), {}, ["two clusters"]),
        (Samples(draws(0, N, 2)), {}, ["components"]),
    ],
)
def test_the_test_refuses_what_cannot_be_shuffled(
    p: Samples, settings: dict[str, int], parts: list[str]
) -> None:
    with pytest.raises(ArgumentValueError) as caught:
        two_sample_test(p, Samples(Y), **settings)
    assert all(part in str(caught.value) for part in parts)


def test_the_names_are_public() -> None:
    assert kullback.two_sample_test is two_sample_test
    assert kullback.Samples is Samples


@pytest.mark.sweep
def test_rounded_vectors_go_to_the_classifier() -> None:
    p, q = (Samples(side.round(decimals=1)) for side in (draws(3, 300, 2), draws(4, 300, 2, shift=1.0)))
    found = kl_estimate(p, q, generator=torch.Generator().manual_seed(0))
    assert found.method == "density_ratio"
    assert any("nearest neighbors" in note for note in found.notes)
    assert found.interval is not None
    assert found.interval[0] <= 1.0 <= found.interval[1]
    with refused(ArgumentValueError, instead="density_ratio"):
        kl_estimate(p, q, method="nearest_neighbors")


def test_the_effect_is_left_out_where_no_estimator_serves() -> None:
    x = draws(5, 20, 3)
    found = two_sample_test(Samples(x), Samples(x.clone()))
    assert found.effect is None
    assert "also in q" in found.notes[0]


TIED = {
    "zero rows": lambda rng: tuple(
        Samples(rng.standard_normal((120, 2)) * (rng.random((120, 1)) > 0.6)) for _ in "pq"
    ),
    "mostly zero rows": lambda rng: tuple(
        Samples(rng.standard_normal((120, 2)) * (rng.random((120, 1)) > 0.8)) for _ in "pq"
    ),
    "rounded vectors": lambda rng: tuple(Samples(rng.standard_normal((120, 2)).round()) for _ in "pq"),
    "yes or no": lambda rng: tuple(Samples((rng.random((120, 3)) < 0.5).astype(float)) for _ in "pq"),
}


@pytest.mark.heavy
@pytest.mark.parametrize("name", TIED)
def test_equal_vectors_keep_the_level(name: str) -> None:
    found = []
    for seed in range(120):
        rng = np.random.default_rng(seed)
        found.append(two_sample.permutation_test(*map(Draws.of, TIED[name](rng)), 99, rng)[0])
    # Binomial(120, 0.05) is below 15 with probability 0.999.
    assert (np.array(found) <= 0.05).sum() <= 14


@pytest.mark.parametrize(
    ("make", "method"),
    [
        (lambda rng: (rng.normal(size=300), rng.normal(0, 1.5, 300)), "spread_of_ranks"),
        (lambda rng: (rng.normal(size=(150, 5)), rng.normal(size=(150, 5)) + 0.8 * np.eye(5)[0]), None),
        (lambda rng: (rng.normal(size=(150, 2)), rng.normal(size=(150, 2)) @ [[1, 0.7], [0, 0.71]]), None),
        (lambda rng: (rng.normal(size=(100, 5)), rng.normal(size=(2000, 5)) + 0.7 * np.eye(5)[0]), None),
        (lambda rng: (rng.normal(size=(1500, 5)), rng.normal(size=(1500, 5)) + 0.3 * np.eye(5)[0]), None),
    ],
)
def test_each_sort_of_difference_is_found(make, method: str | None) -> None:
    rng = np.random.default_rng(0)
    found, _, best = two_sample.permutation_test(*(Draws.of(Samples(x)) for x in make(rng)), 199, rng)
    assert found <= 0.02
    assert method in (None, best)


def skewed(rng: np.random.Generator, n: int) -> np.ndarray:
    return (rng.gamma(6, size=n) - 6) / 6**0.5


def tails(rng: np.random.Generator, n: int) -> np.ndarray:
    """Normal margins with the copula of Student's t with two degrees of freedom."""
    t = rng.standard_normal((n, 2)) / np.sqrt(rng.chisquare(2, (n, 1)) / 2)
    return scipy.stats.norm.ppf(scipy.stats.t.cdf(t, 2))


def arm(rng: np.random.Generator, n: int, turned: float) -> np.ndarray:
    """An arm of a spiral of four turns, turned by an angle, with normal errors."""
    angle = 8 * np.pi * np.sqrt(rng.random(n))
    place = angle[:, None] * np.stack([np.cos(angle + turned), np.sin(angle + turned)], 1)
    return place / (2 * np.pi) + 0.1 * rng.standard_normal((n, 2))


def test_skewness_joint_tails_and_narrow_differences_are_detected() -> None:
    """Without statistics for them, the test rejected in 5, 7 and 8 of the 15 repetitions."""
    cases = {
        "skewness": lambda rng: (rng.standard_normal(300), skewed(rng, 300)),
        "joint tails": lambda rng: (rng.standard_normal((500, 2)), tails(rng, 500)),
        "two arms of a spiral": lambda rng: (arm(rng, 100, 0), arm(rng, 100, np.pi)),
    }
    for name, make in cases.items():
        rejected = 0
        for seed in range(15):
            rng = np.random.default_rng(seed)
            rejected += (
                two_sample.permutation_test(*(Draws.of(Samples(x)) for x in make(rng)), 99, rng)[0] <= 0.05
            )
        assert rejected >= 11, f"{name}: {rejected}"


def test_the_anderson_darling_statistic_is_that_of_scipy() -> None:
    """SciPy standardizes the statistic, so ratios of differences between labelings are compared."""
    rng = np.random.default_rng(0)
    for pooled in (rng.standard_normal(60), rng.poisson(3, 60).astype(float)):
        from_p = np.stack([rng.permutation(60) < 25 for _ in range(4)])
        statistics = two_sample._of_ranks(pooled)
        ours = statistics.of_labels(from_p)[:, list(statistics.names).index("anderson_darling")]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # p-values outside of SciPy's table
            truth = np.array(
                [scipy.stats.anderson_ksamp([pooled[row], pooled[~row]]).statistic for row in from_p]
            )
        np.testing.assert_allclose(
            (ours - ours[0])[1:] / (ours[1] - ours[0]), (truth - truth[0])[1:] / (truth[1] - truth[0]), 1e-9
        )


@pytest.mark.sweep
def test_p_values_of_vectors_are_valid_for_extreme_distances() -> None:
    """Where most draws were equal, or some of them very far away, statistics were NaN and the p-value was 0."""
    for n in (60, 1300):
        for seed in range(2):
            rng = np.random.default_rng(seed)
            cases = {
                "zeros": lambda: rng.standard_normal((n, 2)) * (rng.random((n, 1)) > 0.8),  # noqa: B023
                "rare events": lambda: (rng.random((n, 3)) < 0.02).astype(float),  # noqa: B023
                "far away": lambda: rng.standard_cauchy((n, 2)) ** 9,  # noqa: B023
                "constant": lambda: np.zeros((n, 2)),  # noqa: B023
            }
            for name, make in cases.items():
                sides = (Draws.of(Samples(make())) for _ in "pq")
                found, statistic, _ = two_sample.permutation_test(*sides, 19, rng)
                assert found >= 0.05, f"{name}: {found}"
                assert math.isfinite(statistic), name


def test_infinite_draws_are_refused() -> None:
    x = np.append(np.inf, np.random.default_rng(0).standard_normal(50))
    for columns in (1, 2):
        p, q = (Samples(np.stack([side] * columns, 1)) for side in (x, x[1:]))
        with refused(ArgumentValueError, argument="p", wanted="finite draws", instead="isfinite"):
            two_sample_test(p, q)
        kept = p.tensor[p.tensor.isfinite().all(-1)]
        assert two_sample_test(Samples(kept), q, permutations=19).p_value > 0.05


def comb(rng: np.random.Generator, n: int) -> np.ndarray:
    """Draws of 1 + 0.9 cos(40 pi x) on the unit interval."""
    x = rng.random(8 * n)
    return x[2 * rng.random(8 * n) < 1 + 0.9 * np.cos(40 * np.pi * x)][:n]


FINE = {
    "a comb": (lambda rng: (rng.random(500), comb(rng, 500)), 18),
    "Poisson and a rounded normal": (
        lambda rng: (rng.poisson(5, 1500).astype(float), (5 + 5**0.5 * rng.standard_normal(1500)).round()),
        12,
    ),
    "uniform, equal": (lambda rng: (rng.random(500), rng.random(500)), None),
    "Poisson, equal": (
        lambda rng: (rng.poisson(5, 500).astype(float), rng.poisson(5, 500).astype(float)),
        None,
    ),
}


@pytest.mark.heavy
@pytest.mark.parametrize("name", FINE)
def test_differences_of_single_values_and_narrow_bins_are_seen(name: str) -> None:
    make, least = FINE[name]
    rejected = 0
    for seed in range(20):
        rng = np.random.default_rng(seed)
        found, _, best = two_sample.permutation_test(*(Draws.of(Samples(x)) for x in make(rng)), 199, rng)
        rejected += found <= 0.05
        assert least is None or found > 0.05 or best == "chi_squared"
    assert rejected <= 4 if least is None else rejected >= least


@pytest.mark.sweep
def test_the_least_of_several_p_values_is_compared_with_the_others() -> None:
    rng = np.random.default_rng(0)
    tables = rng.random((2000, 40, 3))
    found = np.array([p_value(table[0], table[1:])[0] for table in tables])
    for level in (0.05, 0.1, 0.5):
        assert (found <= level).mean() <= level + 3 * math.sqrt(level * (1 - level) / 2000)
    single = rng.random((20, 1))
    assert p_value(single[0], single[1:])[0] == pytest.approx((single >= single[0]).mean())
