"""What a tensor means: accepted forms, refused values with their messages, labeled counts."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pandas as pd
import polars as pl
import pytest
import torch

from kullback import Counts, Logits, LogProbs, Probs, Samples, errors, kl_divergence
from tests.refusals import refused

INF = float("inf")


@pytest.mark.parametrize("wrap", [Logits, LogProbs, Probs, Counts])
@pytest.mark.parametrize("form", [torch.tensor, np.array, list, tuple])
def test_takes_tensors_arrays_and_lists(wrap: type, form: type) -> None:
    numbers = [0.25, 0.75] if wrap is not LogProbs else [float(np.log(0.25)), float(np.log(0.75))]
    value = wrap(form(numbers))
    assert value.classes == 2
    assert value.tensor.is_floating_point()


def test_class_dimension_may_be_any() -> None:
    x = torch.randn(2, 5, 3)
    for dim in (0, 1, 2, -1, -2, -3):
        value = Logits(x, dim=dim)
        assert value.classes == x.shape[dim]
        assert value.dim < 0
        assert value.weights().shape[-1] == x.shape[dim]
        assert value.batch_shape == x.movedim(dim, -1).shape[:-1]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_what_softmax_returns_is_accepted_in_every_dtype(dtype: torch.dtype) -> None:
    x = torch.randn(4, 50_000).to(dtype)
    Probs(x.softmax(-1))
    LogProbs(x.log_softmax(-1))


ROWS_OFF = [[0.2, 0.8], [0.2, 0.9]]


@pytest.mark.parametrize(
    ("make", "error", "parts"),
    [
        (
            lambda: Probs([0.2, 0.9]),
            ValueError,
            ["Probs(x=...)", "sum to 1", "row () sums to 1.1", "Counts(x)"],
        ),
        (lambda: Probs(ROWS_OFF), ValueError, ["1 of 2 rows", "row (1,) sums to 1.1", "dim="]),
        (
            lambda: Probs([-0.1, 1.1]),
            ValueError,
            ["negative", "1 of 2, the first at index (0,)", "Logits(x)"],
        ),
        (lambda: Probs([float("nan"), 1.0]), ValueError, ["NaN", "index (0,)"]),
        (lambda: Probs(torch.tensor([1, 0])), TypeError, ["torch.int64", "Counts(x)"]),
        (lambda: LogProbs([0.2, 0.8]), ValueError, ["LogProbs(x=...)", "sums to 3.44", "Logits(x)"]),
        (lambda: LogProbs([INF, 0.0]), ValueError, ["infinities"]),
        (lambda: Logits([0.0, INF]), ValueError, ["below +inf", "index (1,)", "-inf, never +inf"]),
        (lambda: Logits([-INF, -INF]), ValueError, ["only -inf"]),
        (lambda: Logits([0.0, float("nan")]), ValueError, ["NaN"]),
        (lambda: Logits(torch.tensor([1, 2])), TypeError, ["floating-point", "torch.int64", "x.float()"]),
        (lambda: Logits(torch.tensor(1.0)), ValueError, ["single number"]),
        (lambda: Logits(torch.zeros(3, 0)), ValueError, ["at least one class", "(3, 0)"]),
        (lambda: Logits(torch.zeros(3, 2), dim=2), ValueError, ["Logits(dim=...)", "from -2 to 1", "got 2"]),
        (lambda: Logits("text"), TypeError, ["a tensor, a NumPy array", "str"]),
        (lambda: Counts([3, -1]), ValueError, ["negative", "index (1,)"]),
        (
            lambda: Counts([[1, 2], [0, 0]]),
            ValueError,
            ["no count at all", "1 of 2, the first at index (1,)"],
        ),
        (lambda: Counts([1.0, INF]), ValueError, ["finite"]),
        (lambda: Counts([True, False]), TypeError, ["torch.bool", "x.sum(0)"]),
        (lambda: Counts([1, 2], prior=-1), ValueError, ["Counts(prior=...)", "non-negative"]),
        (lambda: Counts([1, 2], labels=["a"]), ValueError, ["2 different labels", "got 1 labels"]),
        (lambda: Counts([1, 2], labels=["a", "a"]), ValueError, ["1 of them different"]),
        (lambda: Counts(pl.Series(["a", "b"])), TypeError, ["value_counts()"]),
        (lambda: Counts(pl.DataFrame({"a": [1]})), TypeError, ["two columns"]),
        (lambda: Samples(torch.zeros(0)), ValueError, ["at least one draw"]),
        (lambda: Samples(torch.zeros(2, 2, 2)), ValueError, ["(2, 2, 2)"]),
        (lambda: Samples([1.0, float("nan")]), ValueError, ["NaN"]),
        (lambda: Samples(torch.zeros(2, 2), dim=2), ValueError, ["Samples(dim=...)"]),
    ],
)
def test_bad_values_are_refused_with_the_remedy(
    make: object, error: type[Exception], parts: list[str]
) -> None:
    with pytest.raises(errors.KullbackError) as caught:
        make()  # type: ignore[operator]
    assert isinstance(caught.value, error)
    for part in (*parts, "wanted", "got", "Write: "):
        assert part in str(caught.value)


def test_checks_can_be_left_out() -> None:
    assert Probs([0.2, 0.9], validate=False).classes == 2


def test_counts_are_normalized_and_smoothed() -> None:
    counts = torch.tensor([[3, 0, 1], [5, 5, 0]])
    smoothed = (counts + 0.5) / (counts + 0.5).sum(-1, keepdim=True)
    want = kl_divergence(Probs(smoothed), Probs([[0.2, 0.3, 0.5]]))
    torch.testing.assert_close(kl_divergence(Counts(counts, prior=0.5), Probs([[0.2, 0.3, 0.5]])), want)


LABELLED = {
    "counter": (Counter("aab"), Counter("bcc")),
    "dict": ({"a": 2, "b": 1}, {"b": 1, "c": 2}),
    "pandas": (pd.Series(list("aab")).value_counts(), pd.Series(list("bcc")).value_counts()),
    "polars": (pl.Series(list("aab")).value_counts(), pl.Series(list("bcc")).value_counts()),
    "labels=": (Counts([2, 1], labels="ab"), Counts([1, 2], labels="bc")),
    "mixed": (Counter("aab"), pd.Series([1, 2], index=["b", "c"])),
}


@pytest.mark.parametrize("form", LABELLED)
def test_labeled_counts_meet_on_the_union_of_their_labels(form: str) -> None:
    p, q = (x if isinstance(x, Counts) else Counts(x) for x in LABELLED[form])
    assert kl_divergence(p, q) == INF
    values = [dict(zip(c.labels or (), c.tensor.tolist(), strict=True)) for c in p.aligned_with(q)]
    assert values == [{"a": 2, "b": 1, "c": 0}, {"a": 0, "b": 1, "c": 2}]
    smooth = kl_divergence(
        Counts(p.tensor, labels=p.labels, prior=1), Counts(q.tensor, labels=q.labels, prior=1)
    )
    want = kl_divergence(Probs([3 / 6, 2 / 6, 1 / 6]), Probs([1 / 6, 2 / 6, 3 / 6]))
    torch.testing.assert_close(smooth, want)


def test_labels_on_one_side_only_are_refused() -> None:
    with refused(errors.ArgumentValueError, got=r"labels on one side only"):
        kl_divergence(Counts({"a": 1, "b": 2}), Counts([1, 2]))


def test_alignment_keeps_the_gradient() -> None:
    x = torch.tensor([2.0, 1.0], requires_grad=True)
    kl_divergence(Counts(x, labels="ab", prior=1), Counts([1.0, 2.0], labels="bc", prior=1)).backward()
    assert x.grad is not None
    assert (x.grad != 0).all()


@pytest.mark.parametrize("dtype", ["u1", "u2", "u4", "u8", "i2", "i8"])
def test_counts_of_any_integer_type(dtype: str) -> None:
    assert kl_divergence(Counts(np.array([1, 2], dtype)), Counts([1, 2])) == 0


def test_unlabeled_polars_series_is_plain_counts() -> None:
    assert Counts(pl.Series([1, 2, 3])).labels is None


def test_samples_have_draws_and_components() -> None:
    assert repr(Samples(torch.zeros(7))) == "Samples(n=7, d=1, dtype=torch.float32, device=cpu)"
    assert Samples(torch.zeros(7, 3)).tensor.shape == (7, 3)
    assert Samples(torch.zeros(3, 7), dim=0).tensor.shape == (7, 3)
