"""The folder of a card as a side of a comparison: its reference, and its numbers for a candidate."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple, cast

import torch

from kullback.common.files import file_hash, without_folders
from kullback.common.formats import interval, number
from kullback.common.words import CARD, CARD_REFERENCE, WARNING
from kullback.errors import FileError, printable
from kullback.io import Reference, Windows
from kullback.io.source_files import FileReference, closed_on_error
from kullback.models.model_results import Candidate
from kullback.results.value import Interval

SCHEMA = "kullback.card/1"
_LARGEST = 1 << 24  # bytes of a record
_COPY = "get the whole folder again"


class Listed(NamedTuple):
    """The mean KL(P || Q) of a candidate on a card, its interval, and the SHA-256 of its weights if it is known."""

    mean: float
    interval: Interval | None
    weights: str | None


class _Record(NamedTuple):
    """The part of a card's record that a comparison reads: two hashes, and the candidates by name."""

    reference: str
    tokens: str
    candidates: dict[str, Listed]


def open_card(folder: Path, argument: str) -> Reference:
    """Open the reference of a card.

    Raises:
        FileError: a file of the card is missing, damaged, or not the file that the record describes.
    """
    record, path = _read(folder, argument), folder / CARD_REFERENCE
    if not path.is_file():
        raise _error(
            folder, argument, wanted=f"{CARD} and {CARD_REFERENCE}", got=f"no {CARD_REFERENCE}", instead=_COPY
        )
    reference = Reference(path, name=argument)
    with closed_on_error(reference):
        for what, got, wanted in (
            ("SHA-256", file_hash(path), record.reference),
            ("SHA-256 of the tokens", tokens_hash(reference.windows), record.tokens),
        ):
            if got != wanted:
                raise reference.ref.error(
                    wanted=f"the {what} {wanted[:12]}, which {CARD} has",
                    got=got[:12],
                    instead=_or_reference(folder),
                )
    return reference


def tokens_hash(windows: Windows) -> str:
    """Return the SHA-256 of the tokens as a reference file has them: little-endian integers of 32 bits."""
    return hashlib.sha256(windows.tokens.to(torch.int32).numpy().astype("<i4").tobytes()).hexdigest()


def notes_of_card(folder: Path, candidates: Sequence[Candidate]) -> list[str]:
    """Return a sentence for each candidate that a card lists, with the number on the card. The weights or the name
    identify the candidate.

    Candidates whose interval does not overlap the card's, or whose weight files differ, are first.
    """
    listed, notes, others = _read(folder, "base").candidates, list[str](), list[str]()
    for candidate in candidates:
        path = Path(candidate.model.name).absolute().as_posix()
        here, ends = candidate.comparison.divergences["kl_pq"], [x for x in listed if path.endswith(f"/{x}")]
        own = max(ends, key=len, default=without_folders(candidate.model.name))
        weights = candidate.weights_sha256
        same = [each for each in listed if weights is not None and listed[each].weights == weights]
        name = same[0] if same and own not in same else own
        if name not in listed:
            continue
        card = listed[name]
        values = f"{number(card.mean)} (95% CI {interval(card.interval)}), here {number(here.mean)} "
        values += f"(95% CI {interval(here.interval)})"
        kept = others if own in listed and own != name else notes
        if card.interval is None or here.interval is None or math.isnan(sum(card.interval)):
            outcome = "without both intervals, they cannot be compared"
        elif max(card.interval[0], here.interval[0]) <= min(card.interval[1], here.interval[1]):
            outcome = "the intervals overlap"
        else:
            outcome = "the intervals do not overlap, so this is another model, or it ran in another way"
            kept = others
        if card.weights is not None and weights is not None and weights != card.weights:
            hashes = f"SHA-256 {card.weights[:12]} on the card, {weights[:12]} here"
            others.insert(0, f"{name}: {WARNING}its weight files differ from the card's ({hashes}).")
        on_card = name if name == own else f"{name}, whose weight files {own} has,"
        kept.append(f"Mean KL(P||Q) of {on_card} on the card is {values}: {outcome}.")
    return [*others, *notes]


def _read(folder: Path, argument: str) -> _Record:
    path = folder / CARD
    if not path.is_file():
        raise _error(
            folder,
            argument,
            wanted=f"{CARD} and {CARD_REFERENCE}",
            got=f"no {CARD}",
            instead=_or_reference(folder),
        )
    with path.open("rb") as file:
        content = file.read(_LARGEST)
    try:
        fields: Any = json.loads(content)
    except (ValueError, RecursionError):
        fields = None
    schema = cast("Any", fields).get("schema") if isinstance(fields, dict) else None
    if schema != SCHEMA:
        got = "no JSON" if fields is None else f"the schema {schema!r}"
        raise _error(
            path, argument, wanted=f"JSON with the schema {SCHEMA!r}", got=got, instead=_or_reference(folder)
        )
    try:
        hashes = fields["reference"]["sha256"], fields["text"]["tokens_sha256"]
        candidates = {str(each["name"]): _listed(each) for each in fields["candidates"]}
        if not all(
            isinstance(each, str) for each in hashes + tuple(x.weights or "" for x in candidates.values())
        ):
            raise TypeError
    except (LookupError, TypeError, ValueError):
        raise _error(
            path,
            argument,
            wanted="the hashes of the reference and its tokens, and the mean of each candidate",
            got="a record without them",
            instead=_or_reference(folder),
        ) from None
    return _Record(*hashes, candidates)


def _listed(fields: Any) -> Listed:
    """Return a candidate of the record, whose infinite numbers are strings in JSON."""
    mean, ends = fields["kl_pq"]["mean"], fields["kl_pq"]["interval"]
    interval = None if ends is None else (float(ends[0]), float(ends[1]))
    return Listed(float(mean), interval, fields.get("weights_sha256"))


def _or_reference(folder: Path) -> str:
    path = folder / CARD_REFERENCE
    return f"{_COPY}, or compare with {printable(path)}" if path.is_file() else _COPY


def _error(path: Path, argument: str, *, wanted: str, got: str, instead: str) -> FileError:
    return FileReference(path, argument).error(wanted=wanted, got=got, instead=instead)
