"""The group of each scored token: the role of its message, a match of a pattern, or a value of its record."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate, chain
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from torch import Tensor

from kullback.common.formats import listed
from kullback.common.words import nearest
from kullback.errors import ArgumentValueError, invalid_value, printable, quoted, safe_repr
from kullback.io.windows import Windows
from kullback.models.conversations import TEMPLATE, Document, document_tokens, token_roles
from kullback.models.language_model import LanguageModel
from kullback.models.vocabulary import Words
from kullback.predictions.groups import Groups, require_few

ROLE, BY_PATTERN = "role", "re:"
# The groups of a pattern without named groups: the tokens that overlap a match, and all others.
MATCH, REST = "match", "rest"
_FEWER = "a key with fewer values, or groups='re:[0-9]+' (--group re:PATTERN)"
_MOST_KEYS = 8  # the largest number of a record's keys that an error names


class Origins(NamedTuple):
    """The documents of a text, the records that they come from (None without a record), and each window's document."""

    documents: Sequence[Document]
    records: Sequence[Mapping[str, Any] | None]
    of_window: Tensor


def pattern_of(rule: str) -> re.Pattern[str] | None:
    """Return the pattern of a rule such as ``"re:[0-9]+"``; None for other rules."""
    if not rule.startswith(BY_PATTERN):
        return None
    try:
        pattern = re.compile(rule.removeprefix(BY_PATTERN))
    except (re.error, RecursionError, OverflowError) as error:
        wanted, got = "a regular expression of Python after re:", f"{quoted(rule)}, where {error}"
        raise _wrong(wanted, got, {"groups": "re:[0-9]+"}) from None
    if REST in pattern.groupindex:
        wanted, got = "other names of groups", f"{REST!r}, the group of all tokens outside of the matches"
        renamed = rule.replace(f"(?P<{REST}>", "(?P<other>").replace(f"(?P={REST})", "(?P=other)")
        raise _wrong(wanted, got, {"groups": renamed.replace(f"(?({REST})", "(?(other)")})
    return pattern


def groups_of(
    rule: str,
    model: LanguageModel | Words,
    windows: Windows,
    origins: Origins | None,
    *,
    are_stored: bool = False,
) -> tuple[Groups, list[str]]:
    """Return the group of each scored token by the rule of `Cut.groups`, and remarks on groups without tokens.

    The windows have the tokens of the model. If `origins` are unknown, only a pattern is allowed. `are_stored` is
    whether a file determines the scored tokens.
    """
    pattern, scored = pattern_of(rule), windows.scored.tolist()
    if pattern is not None:
        names = chain.from_iterable(
            _matched(pattern, model, windows.window(i)[0].tolist()) for i in range(len(windows))
        )
        expected = [*(pattern.groupindex or [MATCH])]
    elif origins is None:
        wanted, got = (
            "a text, whose messages or records give the groups",
            f"groups {quoted(rule)} without a text",
        )
        instead = "texts=pathlib.Path('chat.jsonl')"
        raise invalid_value("compare_models", "texts", wanted=wanted, got=got, instead=instead)
    elif rule == ROLE:
        names, expected = chain.from_iterable(_roles(cast("LanguageModel", model), origins)), []
    else:
        values = list(chain.from_iterable(_values(rule, cast("LanguageModel", model), windows, origins)))
        kept = [value for value, is_scored in zip(values, scored, strict=True) if is_scored]
        same = len({type(value) for value in kept}) == 1
        values_of_rows = np.array(kept if same else [str(value) for value in kept])
        return Groups.of("Cut", "groups", values_of_rows, _FEWER), []
    kept = [name for name, is_scored in zip(names, scored, strict=True) if is_scored]
    present = dict.fromkeys(kept)
    if pattern is not None and present.keys() == {REST}:
        wanted, got = "a pattern that matches some scored token", f"{quoted(rule)}, which matches none"
        raise _wrong(wanted, got, {"groups": "re:[0-9]+"})
    if rule == ROLE and len(present) == 1:
        got = f"those of {quoted(kept[0])} alone"
        of_reference = "record the text again with --score all (Cut(score='all'))"
        raise _wrong("scored tokens of several roles", got, of_reference if are_stored else {"score": "all"})
    require_few("Cut", "groups", len(present), [*present], _FEWER)
    order = sorted(dict.fromkeys([*expected, *present]), key=lambda name: name in (REST, TEMPLATE))
    places = {name: place for place, name in enumerate(order)}
    groups = Groups.named(torch.tensor([places[name] for name in kept], device="cpu"), order)
    return groups, [
        f"No scored token is in group {quoted(name)}." for name in order if name not in groups.names
    ]


def _matched(pattern: re.Pattern[str], model: LanguageModel | Words, tokens: Sequence[int]) -> list[str]:
    """Return the group of each token of a window: the first group with a match that overlaps the token."""
    contents = [b"" if (token := model.vocabulary.get(index)) is None else token.content for index in tokens]
    if tokens and tokens[0] == model.bos:
        contents[0] = b""  # this token begins the window, but is not in the text
    # A byte that is not part of a character becomes a character of its own, so every character has its bytes.
    text = b"".join(contents).decode("utf-8", "surrogateescape")
    ends = np.cumsum([len(content) for content in contents])
    starts = np.concatenate([[0], ends[:-1]])
    byte_of = [0, *accumulate(len(character.encode("utf-8", "surrogateescape")) for character in text)]
    names = [REST] * len(tokens)
    for match in pattern.finditer(text):
        for name in pattern.groupindex or [MATCH]:
            low, high = match.span(0 if name == MATCH and not pattern.groupindex else name)
            if low < high:
                # The tokens that end after the first byte of the span, and begin before its last.
                first = int(np.searchsorted(ends, byte_of[low], side="right"))
                last = int(np.searchsorted(starts, byte_of[high], side="left"))
                for place in range(first, last):
                    names[place] = name if names[place] == REST else names[place]
    return names


def _roles(model: LanguageModel, origins: Origins) -> Iterator[list[str]]:
    for number in origins.of_window.tolist():
        document = origins.documents[number]
        if isinstance(document, str):
            wanted = "conversations, or prompts with completions"
            raise _wrong(wanted, f"{ROLE!r} for plain text", {"groups": "re:[0-9]+"})
        yield token_roles(model, document, number + 1)


def _values(
    key: str, model: LanguageModel, windows: Windows, origins: Origins
) -> Iterator[Sequence[str | int]]:
    """Yield the values of the tokens of each window: one value of the record, or one for each token of it."""
    place, last = 0, -1  # of the window in its document
    for length, number in zip(windows.offsets.diff().tolist(), origins.of_window.tolist(), strict=True):
        value = _value(key, origins.records[number], number)
        if number != last and isinstance(value, list):
            tokens = document_tokens(model, origins.documents[number], number + 1)
            if len(value) != len(tokens):
                wanted = f"a value for each of the {len(tokens)} tokens of record {number + 1}"
                got, instead = f"{len(value)} in {quoted(key)}", "one value for the record, or for each token"
                raise _wrong(wanted, got, instead)
        place = place if number == last else 0
        yield value[place : place + length] if isinstance(value, list) else [value] * length
        place, last = place + length, number


def _value(key: str, record: Mapping[str, Any] | None, number: int) -> str | int | list[str | int]:
    value = None if record is None else record.get(key)
    values = cast("list[Any]", value) if isinstance(value, list) else [value]
    if values and all(isinstance(each, str | int) for each in values):
        return cast("str | int | list[str | int]", value)
    wanted = f"text, integers or Booleans in {quoted(key)} of every record of the text"
    if record is None:
        raise _wrong(wanted, "plain text, which has no records", {"groups": "re:[0-9]+"})
    if key in record:
        raise _wrong(
            wanted, f"{printable(safe_repr(value), 40)} in record {number + 1}", {"groups": "re:[0-9]+"}
        )
    keys = [str(name) for name in record]
    names = listed([*map(quoted, keys)], _MOST_KEYS)
    close, got = nearest(key, keys), f"record {number + 1} with the keys {names}"
    raise _wrong(wanted, got, {"groups": "re:[0-9]+" if close is None else close})


def _wrong(wanted: str, got: str, instead: str | dict[str, object]) -> ArgumentValueError:
    return invalid_value("Cut", "groups", wanted=wanted, got=got, instead=instead)
