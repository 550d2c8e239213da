"""Records of servers and tools, from files or from objects in memory, whose positions become partially known rows."""

from __future__ import annotations

import io
import json
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

import torch

from kullback.common.extra_arguments import by_name
from kullback.common.short_repr import ShortRepr
from kullback.common.words import NO_LABEL
from kullback.errors import FileError
from kullback.io.parquet import batches_of, open_parquet
from kullback.io.source_files import FileReference
from kullback.io.top_k.source import LARGEST_INDEX, Piece, TopKReader
from kullback.partial_rows import PartialRows

# JSON is decoded one record at a time, and a decoded record takes about ten times the size of its JSON.
LONGEST_RECORD = 1 << 28
PARQUET_ROWS = 8  # rows that are read at a time; a row is a text with its log-probabilities
# The log-probabilities that servers write for a probability of 0: llama.cpp writes the lowest float32, and vLLM and
# OpenAI write -9999.
LOWEST, CLAMPED = -3.4e38, -9999.0
Tokens = Mapping[str | bytes, int]


@by_name()
@dataclass(slots=True)
class RecordPlace:
    """The place of a value in a file or object. Its methods check values, and errors name the place.

    Attributes:
        ref: the file, and the name of the argument that holds the path.
        where: the place in the file, in words.
        tokens: a mapping from the text or bytes of tokens to ids, the argument of `open_top_k`; None without a mapping.
        key: the field of the log-probabilities, the argument of `open_top_k`; None for the format's own field.

    Example:
        >>> import kullback.io
        >>> with kullback.io.open_top_k({"prompt_logprobs": [{"x": {}}]}) as source:
        ...     list(source.blocks())
        Traceback (most recent call last):
            ...
        kullback.errors.FileError: source = (dict): wanted token ids as keys; got 'x' at record 0, position 0; ...
    """

    ref: FileReference
    where: str = ""
    tokens: Tokens | None = None
    key: str | None = None

    def at(self, what: str | int) -> RecordPlace:
        """Return a place inside this one; an integer is a position."""
        inner = what if isinstance(what, str) else f"position {what}"
        return RecordPlace(self.ref, f"{self.where}, {inner}" if self.where else inner, self.tokens, self.key)

    def error(self, *, wanted: str, got: str, instead: str) -> FileError:
        """Return the error for the value at this place."""
        where = f" at {self.where}" if self.where else ""
        return self.ref.error(wanted=wanted, got=got + where, instead=instead)

    def malformed(self, wanted: str, got: object) -> FileError:
        """Return the error for a part in the wrong format."""
        instead = "store the server's response as it came, or name its format="
        return self.error(wanted=wanted, got=_shown(got), instead=instead)

    def list(self, value: object, wanted: str) -> Sequence[Any]:
        """Return a list unchanged, and refuse any other value."""
        if not isinstance(value, Sequence) or isinstance(value, str | bytes):
            raise self.malformed(wanted, value)
        return cast("Sequence[Any]", value)

    def aligned(
        self, fields: Mapping[str, Any], optional: Mapping[str, Any] | None = None
    ) -> Iterator[tuple[Any, ...]]:
        """Iterate over several lists side by side.

        Arguments:
            fields: a mapping from names to lists, which must have the same length.
            optional: a mapping from names to further lists; a list that is None gives None at every place.
        """
        optional = optional or {}
        stored = dict(fields) | {name: value for name, value in optional.items() if value is not None}
        columns = {name: self.list(value, f"{name}, a list") for name, value in stored.items()}
        count, *others = {len(column) for column in columns.values()}
        if others:
            raise self.error(
                wanted="lists of one length",
                got=", ".join(f"{len(column)} in {name}" for name, column in columns.items()),
                instead="store the response as it came",
            )
        return zip(*(columns.get(name, [None] * count) for name in (*fields, *optional)), strict=True)

    def require(self, record: object, name: str, wanted: str) -> Any:
        """Return a field of a record, and refuse a record without this field."""
        value = get(record, name)
        if value is None:
            raise self.malformed(wanted, record)
        return value

    def token_id(self, text: object, data: object = None) -> int:
        """Return the id of a token from its text or bytes, by the caller's mapping."""
        if isinstance(text, str) and text.startswith("token_id:"):
            number = text.removeprefix("token_id:")
            if number.isascii() and number.isdigit() and len(number) <= 10:
                return int(number)
        if self.tokens is None:
            raise self.error(
                wanted="tokens=, a mapping from the tokens' text or bytes to their ids: this format gives no ids",
                got=f"no tokens=, and {_shown(text)}",
                instead="pass tokens={tokenizer.decode([i]): i for i in range(len(tokenizer))}, or ask the server for "
                "ids (vLLM: return_tokens_as_token_ids)",
            )
        token = None
        if isinstance(data, list):
            try:
                token = self.tokens.get(bytes(cast("list[int]", data)))
            except (TypeError, ValueError):
                raise self.malformed("bytes, a list of integers from 0 to 255", data) from None
        if token is None and isinstance(text, str):
            token = self.tokens.get(text)
        if token is None:
            raise self.error(
                wanted="a token that tokens= has",
                got=_shown(text),
                instead="pass a tokens= of the server's own tokenizer, with special tokens and partial characters as "
                "bytes",
            )
        return token


def _shown(value: object) -> str:
    if value is None or isinstance(value, str | int | float):
        return repr(value)[:80]
    return f"a {type(value).__name__}"


def get(record: object, name: str) -> Any:
    """Return a field of a JSON object, or an attribute of another object; None if there is no such field."""
    if type(record) is dict:  # nearly always true, and a fast check
        return cast("Any", record).get(name)
    return cast("Any", record).get(name) if isinstance(record, Mapping) else getattr(record, name, None)


Records = Callable[[], Iterator[tuple[RecordPlace, Any]]]  # this returns all records from the start


def json_records(ref: FileReference) -> Iterator[tuple[RecordPlace, Any]]:
    """Read the records of a file. In ``.jsonl`` and ``.ndjson`` files each line is a document; other files are one
    document.
    """
    with io.BufferedReader(cast("Any", ref.open())) as file:
        if ref.path.suffix.lower() not in (".jsonl", ".ndjson"):
            yield from _elements(ref, "", _decoded(RecordPlace(ref), file.read(LONGEST_RECORD + 1)))
            return
        line = 0
        while data := file.readline(LONGEST_RECORD + 1):
            line += 1
            if data.strip():
                place = RecordPlace(ref, f"line {line}")
                yield from _elements(ref, place.where, _decoded(place, data))


def objects_as_records(ref: FileReference, objects: Sequence[Any]) -> Iterator[tuple[RecordPlace, Any]]:
    """Yield objects in memory as records."""
    yield from _elements(ref, "", [element for each in objects for element in _as_list(each)])


def parquet_records(ref: FileReference) -> Iterator[tuple[RecordPlace, Any]]:
    """Read the rows of a Parquet file, a few at a time. Each row is the record of a text."""
    with open_parquet(ref) as file:
        batches = batches_of(ref, file, batch_size=PARQUET_ROWS)
        rows = (row for batch in batches for row in batch.to_pylist())
        for number, row in enumerate(rows):
            yield RecordPlace(ref, f"row {number}"), row


def _as_list(document: Any) -> list[Any]:
    return document if isinstance(document, list) else [document]


def _elements(ref: FileReference, where: str, document: Any) -> Iterator[tuple[RecordPlace, Any]]:
    """Yield the elements of a list of records, or a single record."""
    for number, record in enumerate(_as_list(document)):
        yield RecordPlace(ref, where or f"record {number}"), record


def _decoded(place: RecordPlace, data: bytes) -> Any:
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


@dataclass(repr=False)
class TopKSequence(ShortRepr):
    """The positions of one text with their listed tokens, which a `RecordFormat` reads.

    Attributes:
        place: the place of the sequence, for errors.
        notes: remarks that a report should repeat.
        skipped: the number of positions without a distribution.

    Example:
        >>> from kullback.io import RecordFormat, TopKSequence, open_top_k
        >>> def read(record, place):
        ...     sequence = TopKSequence(place)
        ...     for position, row in enumerate(record["rows"]):
        ...         sequence.add(position, row.items())
        ...     yield sequence
        >>> rows = RecordFormat(lambda record: "rows" in record, read)
        >>> with open_top_k({"rows": [{3: -0.25, 5: -2.5}]}, rows) as source:
        ...     next(source.blocks()).top_indices
        tensor([[3, 5]])
    """

    place: RecordPlace
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
        """Add a position.

        Arguments:
            position: the position of the predicted token in the sequence, counted from 0.
            entries: pairs of a token's id and its natural log-probability.
            label: the id of the true token, or None if it is not known.
            label_log_prob: the log-probability of the true token, or None if it is not known.
        """
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

    def piece(self, sequence: int) -> Piece:
        """Return the positions as rows; positions with fewer classes are padded."""
        tokens = self._tokens
        known = bool(self._labels) and NO_LABEL not in self._labels
        if tokens is None and known and self._positions == list(range(len(self._positions))):
            tokens = self._labels
        k = max((len(ids) for ids, _ in self._rows), default=1) or 1
        indices = [ids + [0] * (k - len(ids)) for ids, _ in self._rows]
        log_probs = [values + [-torch.inf] * (k - len(values)) for _, values in self._rows]
        rows = PartialRows(
            torch.tensor(indices, dtype=torch.int64, device="cpu").reshape(-1, k),
            torch.tensor(log_probs, dtype=torch.float32, device="cpu").reshape(-1, k),
            labels=torch.tensor(self._labels, dtype=torch.int64, device="cpu"),
            label_log_probs=torch.tensor(self._label_log_probs, dtype=torch.float32, device="cpu"),
            positions=torch.tensor(self._positions, dtype=torch.int64, device="cpu"),
        )
        whole = None if tokens is None else torch.tensor(tokens, dtype=torch.int64, device="cpu")
        return Piece(sequence, rows, skipped=self.skipped, tokens=whole)

    def _token(self, value: object, position: int) -> int:
        if type(value) is int:
            token = value
        else:
            try:
                token = -1 if isinstance(value, bool) else operator.index(cast("Any", value))
            except TypeError:
                token = -1
        if not 0 <= token <= LARGEST_INDEX:
            raise self.place.at(position).malformed("a token id, an integer of 0 or more", value)
        return token

    def _log_prob(self, value: object, position: int) -> float:
        if type(value) is float:
            number = value
        # NumPy's numbers are accepted, but text with a number is not.
        elif isinstance(value, bool | str | bytes) or not hasattr(value, "__float__"):
            raise self.place.at(position).malformed("a log-probability, a number", value)
        else:
            number = float(cast("Any", value))
        if number != number:  # noqa: PLR0124 - NaN
            raise self.place.at(position).malformed("a log-probability", number)
        return -torch.inf if number <= LOWEST or number == CLAMPED else number


@by_name()
@dataclass(frozen=True)
class RecordFormat:
    """A format of records in JSON, Parquet rows or objects, which recognizes and converts records.

    Add a format to `TOP_K_FORMATS`, or pass the format to `open_top_k`.

    Attributes:
        recognizes: a function that returns whether a record has this format.
        read: a function that returns the sequences of a record. Its arguments are the record and a `RecordPlace`.
        takes_key: whether `read` uses the field that the caller names, which is `RecordPlace.key`.

    Example:
        >>> from kullback.io import TOP_K_FORMATS
        >>> TOP_K_FORMATS["sglang"].recognizes({"meta_info": {}})
        True
    """

    recognizes: Callable[[Any], bool]
    read: Callable[[Any, RecordPlace], Iterable[TopKSequence]]
    takes_key: bool = False


class RecordReader(TopKReader):
    """A reader of records that a format converts to sequences. Servers compute log-probabilities in float32."""

    def __init__(
        self, ref: FileReference, name: str, of: RecordFormat, records: Records, **options: Any
    ) -> None:
        self.ref, self.format = ref, name
        self._records, self._read, self._options = records, of.read, options
        self._notes: set[str] = set()

    def sequences(self) -> Iterator[Piece]:
        number = 0
        for place, record in self._records():
            for sequence in self._read(record, replace(place, **self._options)):
                self._notes |= sequence.notes
                yield sequence.piece(number)
                number += 1

    def caveats(self) -> list[str]:
        return sorted(self._notes)
