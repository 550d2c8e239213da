"""An error has its parts as attributes, so that a front end words them without reading the message."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable

import pyarrow as pa
import pytest
import torch

import kullback
from kullback.errors import (
    ArgumentValueError,
    KullbackError,
    NoRuleError,
    explain,
    invalid_type,
    invalid_value,
)

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
