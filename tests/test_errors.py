"""An error has its parts as attributes, so that a front end words them without reading the message."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch
from torch.distributions import LKJCholesky, Normal

import kullback
import kullback.io
from kullback.errors import (
    ArgumentValueError,
    KullbackError,
    Name,
    NoRuleError,
    explain,
    invalid_type,
    invalid_value,
)
from kullback.tables import Profile

PARTS = ("call", "argument", "wanted", "got", "instead", "remedy")


def parts(error: KullbackError) -> tuple[object, ...]:
    return tuple(getattr(error, name) for name in PARTS)


def raised(call: Callable[[], object]) -> KullbackError:
    with pytest.raises(KullbackError) as caught:
        call()
    return caught.value


def test_the_parts_of_a_message_are_attributes():
    error = invalid_value("f", "bins", wanted="few", got="many", instead="bins=20")
    assert parts(error) == ("f", "bins", "few", "many", "bins=20", {})
    assert str(error) == "f(bins=...): wanted few; got many. Write: bins=20"
    assert type(str(error)) is str


@pytest.mark.parametrize(
    ("remedy", "text"),
    [
        ({"bins": 20}, "bins=20"),
        ({"columns": ["a"], "weights": "w"}, "columns=['a'], weights='w'"),
        ({"columns": ["a\n\x1b"]}, r"columns=['a\n\x1b']"),
    ],
)
def test_a_correction_of_arguments_is_written_and_kept(remedy, text):
    error = invalid_type("f", "bins", wanted="few", got="many", instead=remedy)
    assert (error.instead, error.remedy) == (text, remedy)
    assert str(error).endswith(f". Write: {text}")
    assert str(error).isprintable()


def test_a_message_without_a_call_begins_with_its_argument():
    assert str(explain("", "w", wanted="a", got="b", instead="c")) == "w=...: wanted a; got b. Write: c"


@pytest.mark.parametrize("again", [copy.copy, copy.deepcopy, lambda error: pickle.loads(pickle.dumps(error))])  # noqa: S301 - our own
def test_a_copy_has_the_parts(again):
    error = invalid_value("f", "a, b", wanted="w", got="g", instead={"a": 1})
    assert parts(again(error)) == parts(error)
    assert str(again(error)) == str(error)


def test_other_messages_have_no_parts():
    assert parts(NoRuleError("there is no rule")) == (None, None, None, None, None, {})
    assert parts(ArgumentValueError()) == (None, None, None, None, None, {})


def test_errors_of_the_library_have_their_parts():
    assert parts(raised(lambda: kullback.Logits([0.0, float("nan")])))[:2] == ("Logits", "x")
    table = pa.table({"a": [1, 2] * 50})
    unknown = raised(lambda: kullback.compare_tables(table, table, ["b"]))
    assert (unknown.argument, unknown.remedy) == ("columns", {"columns": ["a"]})
    kind = raised(
        lambda: kullback.divergence(kullback.Probs(torch.ones(1)), kullback.Probs(torch.ones(1)), "kll")
    )
    assert (kind.call, kind.argument, kind.remedy) == ("divergence", "kind", {"kind": "kl"})


def unserved() -> torch.Tensor:
    with kullback.install():
        return torch.distributions.kl_divergence(LKJCholesky(3), Normal(0.0, 1.0))


def test_the_wording_of_each_kind_of_message(tmp_path: Path) -> None:
    """The one place that pins whole messages; other tests pin their parts."""
    name, other = tmp_path / "a.npy", tmp_path / "b.npy"
    for path, rows in ((name, 5), (other, 6)):
        np.save(path, np.zeros((rows, 3)))
    wrap = "wrap it: Logits(x), LogProbs(x), Probs(x), Counts(x) or Samples(x)"
    messages: dict[str, Callable[[], object]] = {
        "Logits(x=...): wanted numbers; got NaN (1 of 1, the first at index (0,)). Write: find where the NaN arises": (
            lambda: kullback.Logits([float("nan")])
        ),
        "kl_divergence(p=..., q=...): wanted batch shapes that broadcast; got (3,) in p and (2,) in q. Write: "
        "p.expand(...) or parameters with a dimension of size 1": (
            lambda: kullback.kl_divergence(Normal(torch.zeros(3), 1.0), Normal(torch.zeros(2), 1.0))
        ),
        f"kl_divergence(p=...): a tensor does not say what it holds; {wrap}": (
            lambda: kullback.kl_divergence(torch.zeros(3), torch.zeros(3))
        ),
        "kl_divergence(q=...): wanted a distribution; got int. Numbers do not say what they hold; "
        f"{wrap.replace('it', 'them', 1)}, or pass a torch.distributions object": (
            lambda: kullback.kl_divergence(Normal(0.0, 1.0), 3)
        ),
        "divergence(kind=...): wanted a divergence or the name of one; got 3. Write: kind=KL(), kind='js:0.5' or "
        "another of kullback's kinds": lambda: kullback.divergence(Normal(0.0, 1.0), Normal(0.0, 1.0), 3),
        f"p = {tmp_path / 'c.npy'}: wanted a file; got no such file; check the path": (
            lambda: kullback.io.open_rows(tmp_path / "c.npy", representation="logits")
        ),
        f"p = {name} and q = {other}: wanted as many rows in both; got 5 and 6; compare files written "
        "from the same positions": (
            lambda: kullback.compare_predictions(name, other, representation="logits")
        ),
        "wanted a profile with schema 'kullback.profile/2'; got schema None; write the profile again": (
            lambda: Profile.from_json("{}")
        ),
        "No KL(p || q) is known for p type LKJCholesky and q type Normal": unserved,
    }
    for text, call in messages.items():
        assert str(raised(call)) == text


def test_what_came_is_escaped_and_cut_also_between_names() -> None:
    columns = [f"column\x1b {i}" for i in range(1_000)]
    for got in (f"{columns} in p", (f"{columns} in ", Name("p"), f" and {columns} in ", Name("q"))):
        text = str(invalid_value("f", "p, q", wanted="equal columns", got=got, instead="x"))
        assert len(text) < 400
        assert text.isprintable()
    frame = pd.DataFrame({f"c{i}": [0.5] for i in range(1_000)})
    other = frame[frame.columns[::-1]]
    error = raised(lambda: kullback.kl_estimate(kullback.Samples(frame), kullback.Samples(other)))
    assert error.got is not None
    assert len(error.got) < 300
    assert error.got.endswith(" in q")
