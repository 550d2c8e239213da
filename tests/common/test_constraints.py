"""Every declared constraint refuses the values outside of it, and takes those inside and each remedy."""

from __future__ import annotations

import collections
import importlib
import math
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from torch.distributions import Normal

import kullback
from kullback.common.constraints import (
    Arguments,
    Constraint,
    Number,
    OfType,
    OneOf,
    Whole,
)
from kullback.errors import ArgumentTypeError, ArgumentValueError, KullbackError, safe_repr
from kullback.io import ReferenceWriter, Windows, open_rows, paired_blocks, write_llama_base
from kullback.io.top_k import open_top_k, paired_top_k_blocks
from kullback.models import compare_models, open_model, record_reference
from kullback.tables import choose_bins, compare_profiles, profile_table
from kullback.testing import assert_close_distributions
from tests.models.tiny import make_model, make_tokenizer, text

# ---- Every declaration of the package, by call and argument.


PACKAGE = Path(kullback.__file__).parent


def declared() -> Iterator[tuple[str, str, Constraint]]:
    seen: set[int] = set()
    for path in sorted(PACKAGE.rglob("*.py")):
        if " = Arguments(" in path.read_text():
            name = ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__")
            for value in vars(importlib.import_module(name)).values():
                if isinstance(value, Arguments) and id(value) not in seen:
                    seen.add(id(value))
                    for call in value.calls:
                        for argument, constraint in value.constraints.items():
                            yield call, argument, constraint


DECLARED = list(declared())

# ---- A valid call of each function, to which one argument is added.

NUMBERS = torch.tensor([[0.0, 1.0, 2.0], [0.5, -0.5, 0.25]])
P, Q = kullback.Logits(NUMBERS), kullback.Logits(NUMBERS.flip(-1))
TABLE = pa.table({"a": [1.0, 2.0, 3.0, 4.0] * 30})
PROFILE = profile_table(TABLE)
TOKENS = torch.arange(8).repeat(64) % 3
RESPONSE = {"logprobs": [[[-0.1], [-0.2], [-0.3]]], "logprob_token_ids": [[[4], [9], [2]]]}


@pytest.fixture(scope="module")
def calls(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Callable[..., object]]:
    folder = tmp_path_factory.mktemp("constraints")
    rows, counts, reference, base = (folder / name for name in ("p.npy", "n.npy", "p.klref", "p.kld"))
    np.save(rows, NUMBERS.numpy())
    np.save(counts, NUMBERS.long().numpy())
    model = make_model()
    of_text: dict[str, Any] = {"tokenizer": make_tokenizer(), "context": 8}

    def blocks(**given: Any) -> list[Any]:
        with open_rows(rows, representation="logits") as source:
            return list(source.blocks(**given))

    def pairs(**given: Any) -> list[Any]:
        with (
            open_rows(rows, representation="logits") as p,
            open_rows(rows, representation="logits") as q,
        ):
            return list(paired_blocks(p, q, **given))

    def writer(**given: Any) -> object:
        windows = Windows(torch.tensor([0, 2, 1]), torch.tensor([0, 3]), torch.tensor([False, True, True]))
        return ReferenceWriter(reference, windows, **given)

    def llama_base(n_ctx: Any = 8, **given: Any) -> object:
        length = int(n_ctx) if isinstance(n_ctx, int | np.integer | torch.Tensor) and n_ctx >= 3 else 8
        scored = 512 // length * (length - length // 2 - 1)
        return write_llama_base(base, TOKENS, torch.zeros(scored, 3), n_ctx=n_ctx, **given)

    return {
        "compare_tables": lambda **given: kullback.compare_tables(TABLE, TABLE, **given),
        "compare_profiles": lambda **given: compare_profiles(PROFILE, PROFILE, **given),
        "choose_bins": lambda **given: choose_bins(PROFILE.columns["a"], **given),
        "compare_predictions": lambda **given: kullback.compare_predictions(
            *((NUMBERS, NUMBERS) if given.get("representation") else (P, Q)),
            **({"labels": torch.tensor([0, 1])} | given),
        ),
        "open_rows": lambda representation: open_rows(
            counts if representation is None else rows, representation=representation
        ).close(),
        "RowSource.blocks": blocks,
        "paired_blocks": pairs,
        "open_top_k": lambda **given: open_top_k(RESPONSE, **given).close(),
        "TopKSource.blocks": lambda **given: list(open_top_k(RESPONSE).blocks(**given)),
        "paired_top_k_blocks": lambda **given: list(
            paired_top_k_blocks(open_top_k(RESPONSE), open_top_k(RESPONSE), **given)
        ),
        "ReferenceWriter": writer,
        "write_llama_base": llama_base,
        "diagnose": lambda **given: kullback.diagnose(NUMBERS, NUMBERS.softmax(-1), **given),
        "Logits": lambda **given: kullback.Logits(NUMBERS, **given),
        "LogProbs": lambda **given: kullback.LogProbs(NUMBERS.log_softmax(-1), **given),
        "Probs": lambda **given: kullback.Probs(NUMBERS.softmax(-1), **given),
        "Counts": lambda **given: kullback.Counts([1, 2], **given),
        "Samples": lambda **given: kullback.Samples([1.0, 2.0], **given),
        "assert_close_distributions": lambda **given: assert_close_distributions(
            Normal(0.0, 1.0), Normal(0.0, 1.0), **given
        ),
        "open_model": lambda **given: open_model(model, tokenizer=of_text["tokenizer"], **given),
        "compare_models": lambda **given: compare_models(
            model, model, text()[:400], **(of_text | {"bootstrap": 0, "worst": 0} | given)
        ),
        "record_reference": lambda **given: record_reference(
            model, text()[:400], reference, **(of_text | {"top": 2, "tail_draws": 1} | given)
        ),
    }


# ---- The values that a constraint refuses, and some of those that it takes.

NO_NUMBER: tuple[Any, ...] = (math.nan, True, np.True_, "0.5", b"1", 1j, [0.5], object(), 10**400)
NO_WORD: tuple[Any, ...] = ("", "no such word", 3, True, b"mean", ["mean"], torch.tensor(0.5))


def refusals(constraint: Constraint) -> Iterator[Any]:
    if not constraint.optional and not (isinstance(constraint, OfType) and type(None) in constraint.types):
        yield None
    if isinstance(constraint, Number):
        yield from (*NO_NUMBER, torch.tensor(0.5), np.array([0.5]))
        if constraint.low > -math.inf:
            yield from (math.nextafter(constraint.low, -math.inf), -math.inf)
        if constraint.high < math.inf:
            yield from (math.nextafter(constraint.high, math.inf), math.inf)
    elif isinstance(constraint, Whole):
        yield from (*NO_NUMBER, 0.5, 2.0, np.float64(2), torch.tensor(2.0), torch.tensor(True))
        yield from (constraint.least - 1, constraint.most + 1)
    elif isinstance(constraint, OneOf):
        yield from (*NO_WORD, constraint.words[0].upper() + ".")
    elif isinstance(constraint, OfType) and bool in constraint.types:
        yield from (0, 1.0, "True", np.True_, torch.tensor(True), [])
    else:
        yield from (3, "x", ["print"])


def acceptances(constraint: Constraint) -> Iterator[Any]:
    example = constraint.example
    if example is not None:
        yield example
    if constraint.optional:
        yield None
    if isinstance(constraint, Number):
        yield from (np.float64(example), np.float32(example), Fraction(example))
    elif isinstance(constraint, Whole):
        yield from (np.int64(example), torch.tensor(example))
    elif isinstance(constraint, OfType) and bool in constraint.types:
        yield False


NAMES = {"torch": torch, "math": math, "collections": collections, "tokens": ["a", "b"]}


def remedy_in(error: KullbackError) -> dict[str, Any]:
    """The arguments that a remedy names; none, if it says to leave the argument out."""
    if error.remedy:
        return dict(error.remedy)
    text, argument = str(error.instead), str(error.argument)
    if re.search(rf"without it|leave {argument}= out", text):
        return {}
    assert text.startswith(f"{argument}="), text
    value = text.removeprefix(f"{argument}=")
    with suppress(SyntaxError):
        return {argument: eval(value, NAMES)}  # noqa: S307
    return {argument: eval(re.split(r", | for | or ", value)[0], NAMES)}  # noqa: S307


def test_every_value_outside_of_a_constraint_is_refused_with_its_parts(
    calls: Mapping[str, Callable[..., object]],
) -> None:
    assert {call for call, _, _ in DECLARED} == set(calls)
    for call, argument, constraint in DECLARED:
        for value in refusals(constraint):
            with pytest.raises(KullbackError) as caught:
                calls[call](**{argument: value})
            error, where = caught.value, f"{call}({argument}={safe_repr(value)})"
            assert (error.call, error.argument) == (call, argument), f"{where}: {error}"
            if isinstance(value, str | float | bool | None):
                assert error.got == safe_repr(value), where
            assert error.wanted in (constraint.wanted, *derived(constraint)), where
            assert type(error) is kind_of(constraint, value), f"{where}: {error!r}"


def derived(constraint: Constraint) -> list[str]:
    """The text that follows from a declaration."""
    if constraint.wanted:
        return []
    return [constraint.described() + constraint.note + (", or None" if constraint.optional else "")]


def kind_of(constraint: Constraint, value: object) -> type[KullbackError]:
    """The class of the refusal: for a strict constraint, that of another type."""
    if isinstance(constraint, Whole):
        is_other = not isinstance(value, int | np.integer) or isinstance(value, bool)
    elif isinstance(constraint, Number):
        is_other = not isinstance(value, int | float) or isinstance(value, bool)
    else:
        is_other = True
    return ArgumentTypeError if constraint.strict and is_other else ArgumentValueError


def test_every_remedy_and_every_scalar_inside_of_a_constraint_is_taken(
    calls: Mapping[str, Callable[..., object]],
) -> None:
    # A model takes seconds; most constraints of these calls are those of compare_predictions and ReferenceWriter.
    tried = [each for each in DECLARED if each[0] not in ("compare_models", "record_reference")]
    for call, argument, constraint in tried:
        for value in acceptances(constraint):
            calls[call](**{argument: value})
        calls[call](**remedy_in(constraint.refusal(call, argument, object())))
