"""The state of a comparison on disk, so a stopped run can continue."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import sqlite3
import stat
from collections.abc import Generator, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from kullback.common.files import write_errors
from kullback.common.inputs import tensor_bytes
from kullback.common.plain_values import JsonObject
from kullback.errors import FileError, printable
from kullback.io.reference_writer import own_version
from kullback.kernels.native.library import is_available
from kullback.predictions.prediction_results import TopClass, WorstRow

SCHEMA = "kullback.checkpoint/4"
APPLICATION = 0x4B554C4C  # "KULL"
BEGINNING = (
    f"PRAGMA application_id = {APPLICATION}",
    "CREATE TABLE comparison (schema TEXT, identity TEXT)",
    "CREATE TABLE record (number INTEGER PRIMARY KEY, digest BLOB, content BLOB)",
)


def fingerprint(**settings: Any) -> str:
    """Return a digest of everything that measured rows depend on: tensors as bytes, and everything else as JSON.

    The digest includes the versions of kullback and torch, and whether the native kernels run, because these affect
    rounding.
    """
    by = [own_version(), torch.__version__, is_available()]
    digest = hashlib.sha256()
    for name, value in sorted({**settings, "by": by}.items()):
        digest.update(name.encode() + b"\0")
        if isinstance(value, Tensor):
            digest.update(tensor_bytes(value))
        else:
            digest.update(json.dumps(value, sort_keys=True, default=str).encode())
    return digest.hexdigest()


class KeptState:
    """The path of a state file that stays when the comparison is complete, until `kept_state` removes it.

    If a longer run could continue from the file, `is_unfinished` is true, and the file is not removed.
    """

    def __init__(self, path: Path) -> None:
        self._path, self.is_unfinished = path, False

    def __fspath__(self) -> str:
        return str(self._path)


@contextmanager
def kept_state(path: Path | None, *, removes: bool = True) -> Generator[KeptState | None]:
    """Keep the state file of a comparison until the block ends, when the reports are written. After an error, the file
    stays. Only one of several workers `removes` the file.
    """
    state = None if path is None else KeptState(path)
    yield state
    if path is not None and state is not None and removes and not state.is_unfinished:
        _remove(path)


class Checkpoint:
    """A SQLite file with one row for each finished record; each record is written in one transaction.

    The digest of a record also covers the record's number and the comparison. So a damaged record, or a record of
    another comparison, is refused. The measured values in a record with a valid digest are not checked.

    If the file does not exist or is empty, a new state begins. `identity` is the `fingerprint` of the comparison. If
    `is_unfinished`, a longer run could continue from the file, although this run is complete.

    Raises:
        FileError: the file is not a state file, belongs to another comparison, is in use, or cannot be written.
    """

    def __init__(self, path: str | os.PathLike[str], identity: str) -> None:
        self._path, self._identity, self._records = Path(path), identity, 0
        self.is_unfinished = False
        with write_errors(self._path):
            number = os.open(self._path, os.O_RDWR | os.O_CREAT | getattr(os, "O_BINARY", 0), 0o666)
        try:
            is_file = stat.S_ISREG(os.fstat(number).st_mode)
            head = os.read(number, 100) if is_file else b""
        finally:
            os.close(number)
        if not is_file:
            raise self._error("a file", "a pipe or a device", "name a file")
        # Opening another program's database can change its journal. So this code reads SQLite's header without SQLite:
        # the name of the format, two bytes for the kind of journal, and the id of the application.
        parts = head[:16], head[18:20], head[68:72]
        if head and parts != (b"SQLite format 3\0", b"\1\1", APPLICATION.to_bytes(4, "big")):
            raise self._error(
                "a file that an earlier run wrote",
                "another file",
                "name that one, or one that does not exist yet",
            )
        self._database = sqlite3.connect(
            self._path.absolute(), timeout=0, isolation_level=None, check_same_thread=False
        )
        try:
            self._is_new = not head
            self._lock()
        except BaseException:
            self._database.close()
            raise

    def _lock(self) -> None:
        """Lock the file until it is closed, and refuse the state of another comparison."""
        stored = [(SCHEMA, self._identity)]
        try:
            self._database.execute("PRAGMA locking_mode = EXCLUSIVE")
            self._database.execute("BEGIN EXCLUSIVE")
            self._database.execute("ROLLBACK")  # the lock stays
            if not self._is_new:
                stored = self._database.execute("SELECT schema, identity FROM comparison").fetchall()
        except sqlite3.DatabaseError as error:
            if error.sqlite_errorcode & 0xFF == sqlite3.SQLITE_BUSY:
                raise self._error(
                    "a file of one run",
                    "one that another run is writing",
                    "wait for it, or name another file",
                ) from None
            raise self._damaged() from None
        if stored != [(SCHEMA, self._identity)]:
            raise self._error(
                "the state of a comparison of the same inputs and options, by the same version",
                "the state of another comparison",
                "repeat the command that began it, or name another file",
            )

    def records(self) -> Iterator[Any]:
        """Iterate over the finished records in the form that was passed to `add`."""
        if self._is_new:
            return
        try:
            rows = self._database.execute(
                "SELECT number, digest, CAST(content AS BLOB) FROM record ORDER BY number"
            )
            for number, digest, content in rows:
                if (number, digest) != (self._records, self._digest(self._records, content or b"")):
                    raise self._damaged()
                self._records += 1
                yield json.loads(content)
        except sqlite3.Error:
            raise self._damaged() from None

    def add(self, record: Any) -> None:
        """Add a finished record, which is a value that JSON can represent, and wait until the record is on the disk."""
        content = json.dumps(record).encode()
        try:
            self._database.execute("BEGIN")
            if self._is_new and not self._records:
                for statement in BEGINNING:
                    self._database.execute(statement)
                self._database.execute("INSERT INTO comparison VALUES (?, ?)", (SCHEMA, self._identity))
            row = self._records, self._digest(self._records, content), content
            self._database.execute("INSERT INTO record VALUES (?, ?, ?)", row)
            self._database.execute("COMMIT")
        except sqlite3.Error as error:
            with write_errors(self._path, ", on a disk with room"):
                raise OSError(str(error)) from None
        self._records += 1

    def close(self, *, remove: bool) -> None:
        """Close the file. Remove the file if `remove` is true, or if the file is new and no record was finished."""
        self._database.close()
        if remove or (self._is_new and not self._records):
            _remove(self._path)

    def _digest(self, number: int, content: bytes) -> bytes:
        return hashlib.sha256(f"{self._identity} {number} ".encode() + content).digest()

    def _error(self, wanted: str, got: str, instead: str) -> FileError:
        place = f"resume = {printable(self._path)}"
        return FileError.at(place, "resume", wanted=wanted, got=got, instead=instead)

    def _damaged(self) -> FileError:
        return self._error("the records of an earlier run", "a damaged one", "begin again with another file")


@contextmanager
def checkpoint_of(path: str | os.PathLike[str], identity: str) -> Generator[Checkpoint]:
    """Open a `Checkpoint` that is removed at the end. It stays after an error, if a longer run could continue from it,
    and if `path` is a `KeptState`.
    """
    checkpoint = Checkpoint(path, identity)
    try:
        yield checkpoint
    except BaseException:
        checkpoint.close(remove=False)
        raise
    if isinstance(path, KeptState):
        path.is_unfinished = checkpoint.is_unfinished
    checkpoint.close(remove=not (isinstance(path, KeptState) or checkpoint.is_unfinished))


def encoded_rows(table: Tensor, worst: list[WorstRow]) -> JsonObject:
    """Return measured rows as values that JSON can represent: the table (float64), and the worst of these rows."""
    content = base64.b64encode(table.contiguous().numpy().astype("<f8").tobytes()).decode()
    return {"shape": list(table.shape), "table": content, "worst": [asdict(row) for row in worst]}


def decoded_rows(record: Any) -> tuple[Tensor, list[WorstRow]]:
    """Return the rows that `encoded_rows` encoded."""
    table = torch.frombuffer(bytearray(base64.b64decode(record["table"])), dtype=torch.float64)
    worst = [WorstRow(**row | {"top": decoded_tops(row["top"])}) for row in record["worst"]]
    return table.reshape(record["shape"]), worst


def decoded_tops(record: Any) -> list[TopClass]:
    """Return the top classes that a record stores."""
    return [TopClass(**each) for each in record]


def _remove(path: Path) -> None:
    """Remove the file at a path; if the path is a link, remove the file that the link leads to."""
    with suppress(OSError):
        Path(os.path.realpath(path)).unlink()
