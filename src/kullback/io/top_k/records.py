"""Responses of servers, from JSON files or as objects in memory, and their positions as tensors."""

from __future__ import annotations

import io
import json
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, cast

import torch

from kullback.common.words import NO_LABEL
from kullback.io.parquet import batches_of, open_parquet
from kullback.io.top_k.block import LARGEST_INDEX, Positions
from kullback.io.top_k.source import TopKReader

if TYPE_CHECKING:
    from kullback.errors import FileError
    from kullback.io.source_files import FileReference

# JSON is decoded a record at a time, and takes about ten times its size then.
LONGEST_RECORD = 1 << 28
PARQUET_ROWS = 8  # read at once; each is a text with its log-probabilities
# What servers write for a probability of 0: llama.cpp the lowest float32, vLLM and OpenAI -9999.
LOWEST, CLAMPED = -3.4e38, -9999.0
ENTRY = "an entry with a logprob"
Tokens = Mapping[str | bytes, int]


@dataclass(frozen=True)
class Place:
    """A place in a file or object, for error messages."""

    ref: FileReference
    where: str

    def at(self, what: str) -> Place:
        """Return a place inside this one."""
        return replace(self, where=f"{self.where}, {what}" if self.where else what)

    def error(self, *, wanted: str, got: str, instead: str) -> FileError:
        """Return the error for the value at this place."""
        where = f" at {self.where}" if self.where else ""
        return self.ref.error(wanted=wanted, got=got + where, instead=instead)

    def malformed(self, wanted: str, got: object) -> FileError:
        """Return the error for a part in the wrong format."""
        return self.error(
            wanted=wanted,
            got=_shown(got),
            instead="store the server's response as it came, or name its format=",
        )


def _shown(value: object) -> str:
    if value is None or isinstance(value, str | int | float):
        return repr(value)[:80]
    return f"a {type(value).__name__}"


def get(record: object, name: str) -> Any:
    """Return a field of a JSON object, or an attribute of another object; None if there is none."""
    if type(record) is dict:  # nearly always true, and a fast check
        return cast("dict[str, Any]", record).get(name)
    if isinstance(record, Mapping):
        return cast("Mapping[str, Any]", record).get(name)
    return getattr(record, name, None)


def lists(value: object, wanted: str, place: Place) -> Sequence[Any]:
    """Return a list unchanged, and refuse anything else."""
    if not isinstance(value, Sequence) or isinstance(value, str | bytes):
        raise place.malformed(wanted, value)
    return cast("Sequence[Any]", value)


def require_one_length(place: Place, **fields: Any) -> None:
    """Refuse fields that are not lists of one length."""
    sizes = {name: len(lists(value, f"{name}, a list", place)) for name, value in fields.items()}
    if len(set(sizes.values())) > 1:
        raise place.error(
            wanted="lists of one length",
            got=", ".join(f"{size} in {name}" for name, size in sizes.items()),
            instead="store the response as it came",
        )


def require(record: object, name: str, wanted: str, place: Place) -> Any:
    """Return a field that is there, and refuse a record without it."""
    value = get(record, name)
    if value is None:
        raise place.malformed(wanted, record)
    return value


class Records:
    """The records in a file or in objects: each line of ``.jsonl`` or ``.ndjson``, otherwise the whole document.

    A record that is a list is replaced by its elements.
    """

    def __init__(self, ref: FileReference, objects: Sequence[Any] | None = None) -> None:
        self.ref = ref
        self._objects = objects

    def __iter__(self) -> Iterator[tuple[Place, Any]]:
        number = 0
        for where, document in self._documents():
            records = cast("list[Any]", document) if isinstance(document, list) else [document]
            for record in records:
                yield Place(self.ref, where or f"record {number}"), record
                number += 1

    def close(self) -> None:
        """Do nothing: the file is opened for each pass."""

    def _documents(self) -> Iterator[tuple[str, Any]]:
        if self._objects is not None:
            yield from (("", each) for each in self._objects)
            return
        with io.BufferedReader(cast("Any", self.ref.open())) as file:
            if self.ref.path.suffix.lower() not in (".jsonl", ".ndjson"):
                yield "", self._decoded(file.read(LONGEST_RECORD + 1), "")
                return
            line = 0
            while data := file.readline(LONGEST_RECORD + 1):
                line += 1
                if data.strip():
                    yield f"line {line}", self._decoded(data, f"line {line}")

    def _decoded(self, data: bytes, where: str) -> Any:
        place = Place(self.ref, where)
        if len(data) > LONGEST_RECORD:
            raise place.error(
                wanted=f"JSON records of at most {LONGEST_RECORD >> 20} MiB, which are decoded whole",
                got="a longer one",
                instead="write one response a line into a .jsonl file",
            )
        try:
            return json.loads(data)
        except (ValueError, RecursionError) as error:
            reason = "objects nested too deep" if isinstance(error, RecursionError) else str(error)
            raise place.error(
                wanted="JSON",
                got=reason,
                instead="write the file again, or name it .jsonl if it has a record in each line",
            ) from None


class ParquetRows:
    """The rows of a Parquet file, each a text, read a few at a time."""

    def __init__(self, ref: FileReference) -> None:
        self.ref = ref
        ref.open().close()
        self._file = open_parquet(ref)

    def __iter__(self) -> Iterator[tuple[Place, Any]]:
        number = 0
        for batch in batches_of(self.ref, self._file, batch_size=PARQUET_ROWS):
            for row in batch.to_pylist():
                yield Place(self.ref, f"row {number}"), row
                number += 1

    def close(self) -> None:
        """Close the file."""
        self._file.close()


@dataclass
class Collected:
    """The positions of one sequence, each with its listed classes.

    Attributes:
        place: where the sequence stands, for errors.
        notes: remarks for `TopKReader.caveats`.
    """

    place: Place
    notes: set[str] = field(default_factory=set[str])
    skipped: int = 0
    _tokens: list[int] | None = None
    _positions: list[int] = field(default_factory=list[int])
    _rows: list[tuple[list[int], list[float]]] = field(default_factory=list[tuple[list[int], list[float]]])
    _labels: list[int] = field(default_factory=list[int])
    _label_log_probs: list[float] = field(default_factory=list[float])

    def add(
        self,
        position: int,
        entries: Iterable[tuple[Any, Any]],
        label: object = None,
        label_log_prob: object = None,
    ) -> None:
        """Add a position: pairs of a token's id and its log-probability, and the pair of the true token."""
        ids: list[int] = []
        values: list[float] = []
        for token, value in entries:
            number = self._log_prob(value, position)
            if number != -torch.inf:
                ids.append(self._token(token, position))
                values.append(number)
        self._positions.append(position)
        self._rows.append((ids, values))
        self._labels.append(NO_LABEL if label is None else self._token(label, position))
        unknown = label is None or label_log_prob is None
        self._label_log_probs.append(torch.nan if unknown else self._log_prob(label_log_prob, position))

    def set_tokens(self, tokens: Iterable[Any]) -> None:
        """Set all tokens of the sequence."""
        self._tokens = [self._token(each, position) for position, each in enumerate(tokens)]

    def forget_labels(self) -> None:
        """Mark the true tokens as unknown."""
        self._labels = [NO_LABEL] * len(self._labels)
        self._label_log_probs = [torch.nan] * len(self._labels)

    def positions(self, sequence: int) -> Positions:
        """Return the positions as tensors; positions with fewer classes are padded."""
        tokens = self._tokens
        known = bool(self._labels) and NO_LABEL not in self._labels
        if tokens is None and known and self._positions == list(range(len(self._positions))):
            tokens = self._labels
        k = max((len(ids) for ids, _ in self._rows), default=1) or 1
        indices = [ids + [0] * (k - len(ids)) for ids, _ in self._rows]
        log_probs = [values + [-torch.inf] * (k - len(values)) for _, values in self._rows]
        return Positions(
            sequence,
            torch.tensor(self._positions, dtype=torch.int64, device="cpu"),
            torch.tensor(indices, dtype=torch.int64, device="cpu").reshape(-1, k),
            torch.tensor(log_probs, dtype=torch.float32, device="cpu").reshape(-1, k),
            torch.tensor(self._labels, dtype=torch.int64, device="cpu"),
            torch.tensor(self._label_log_probs, dtype=torch.float32, device="cpu"),
            skipped=self.skipped,
            tokens=None if tokens is None else torch.tensor(tokens, dtype=torch.int64, device="cpu"),
        )

    def _token(self, value: object, position: int) -> int:
        if type(value) is int:
            token = value
        else:
            try:
                token = -1 if isinstance(value, bool) else operator.index(cast("Any", value))
            except TypeError:
                token = -1
        if not 0 <= token <= LARGEST_INDEX:
            raise self.place.at(f"position {position}").malformed(
                "a token id, an integer of 0 or more", value
            )
        return token

    def _log_prob(self, value: object, position: int) -> float:
        if type(value) is float:
            number = value
        # NumPy's numbers count too; text that reads as a number does not.
        elif isinstance(value, bool | str | bytes) or not hasattr(value, "__float__"):
            raise self.place.at(f"position {position}").malformed("a log-probability, a number", value)
        else:
            number = float(cast("Any", value))
        if number != number:  # noqa: PLR0124 - NaN
            raise self.place.at(f"position {position}").malformed("a log-probability", number)
        return -torch.inf if number <= LOWEST or number == CLAMPED else number


ReadRecord = Callable[[Any, Place, Tokens | None], Iterator[Collected]]


class RecordReader(TopKReader):
    """A reader of records that `read` turns into sequences; servers compute their log-probabilities in float32."""

    def __init__(
        self,
        format: str,  # noqa: A002 - the attribute's name
        records: Records | ParquetRows,
        read: ReadRecord,
        tokens: Tokens | None,
    ) -> None:
        self.ref, self.format = records.ref, format
        self._records, self._read, self._tokens = records, read, tokens
        self._notes: set[str] = set()

    def sequences(self) -> Iterator[Positions]:
        sequence = 0
        for place, record in self._records:
            for collected in self._read(record, place, self._tokens):
                self._notes |= collected.notes
                yield collected.positions(sequence)
                sequence += 1

    def caveats(self) -> list[str]:
        return sorted(self._notes)

    def close(self) -> None:
        self._records.close()


def token_id(text: object, data: object, tokens: Tokens | None, place: Place) -> int:
    """Return the id of a token that is given as text, or as bytes, by the caller's mapping."""
    if isinstance(text, str) and text.startswith("token_id:"):
        number = text.removeprefix("token_id:")
        if number.isascii() and number.isdigit() and len(number) <= 10:
            return int(number)
    if tokens is None:
        raise place.error(
            wanted="tokens=, a mapping from the tokens' text or bytes to their ids: this format gives no ids",
            got=f"no tokens=, and {_shown(text)}",
            instead="pass tokens={tokenizer.decode([i]): i for i in range(len(tokenizer))}, or ask the server for ids "
            "(vLLM: return_tokens_as_token_ids)",
        )
    found = None
    if isinstance(data, list):
        try:
            found = tokens.get(bytes(cast("list[int]", data)))
        except (TypeError, ValueError):
            raise place.malformed("bytes, a list of integers from 0 to 255", data) from None
    if found is None and isinstance(text, str):
        found = tokens.get(text)
    if found is None:
        raise place.error(
            wanted="a token that tokens= has",
            got=_shown(text),
            instead="pass a tokens= of the server's own tokenizer, with special tokens and partial characters as bytes",
        )
    return found
