"""The state of a comparison on disk, so that a run that was stopped goes on where it was."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import os
import stat
from collections.abc import Callable, Generator, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor

from kullback.errors import FileError, invalid_type, printable, safe_repr
from kullback.files import write_errors
from kullback.kernels.native.library import is_available
from kullback.predictions.result import TopClass, WorstRow

try:
    import fcntl
except ImportError:  # not on Windows
    fcntl = None

__all__ = [
    "Checkpoint",
    "KeptState",
    "checkpoint_of",
    "decoded_number",
    "decoded_rows",
    "decoded_tops",
    "decoded_whole",
    "encoded_rows",
    "file_stamp",
    "fingerprint",
    "kept_state",
    "require_state",
    "tensor_bytes",
]

SCHEMA = "kullback.checkpoint/2"
DIGEST = 64
# What a line may take, so that a file that is no state of ours cannot fill the memory: more than any row needs.
MOST_BYTES, MOST_BYTES_OF_ROW = 1 << 16, 1 << 13
SAMPLES, SAMPLE_BYTES = 16, 1 << 16
# What decoding a forged record may raise.
UNDECODABLE = (
    ValueError,
    LookupError,
    TypeError,
    AttributeError,
    RuntimeError,
    OverflowError,
    RecursionError,
)
_T = TypeVar("_T")


def fingerprint(**settings: Any) -> str:
    """Return a digest of what measured rows are of: tensors by their bytes, everything else as JSON.

    The versions of kullback and torch, and whether the native kernels run, are part of it: others round otherwise.
    """
    try:
        own = version("kullback")
    except PackageNotFoundError:  # the source alone
        own = None
    digest = hashlib.sha256()
    for name, value in sorted({**settings, "by": [own, torch.__version__, is_available()]}.items()):
        digest.update(name.encode() + b"\0")
        if isinstance(value, Tensor):
            digest.update(tensor_bytes(value))
        else:
            digest.update(json.dumps(value, sort_keys=True, default=str).encode())
    return digest.hexdigest()


def tensor_bytes(x: Tensor) -> Any:
    """Return the memory of a tensor as what a digest takes."""
    return x.detach().cpu().reshape(-1).view(torch.uint8).numpy()


def file_stamp(path: Path) -> tuple[int, int, str]:
    """Return the size and time of change of a file, and a digest of its beginning, its end and places between."""
    found = path.stat()
    digest = hashlib.sha256()
    with path.open("rb", buffering=0) as file:
        last = max(0, found.st_size - SAMPLE_BYTES)
        for place in range(SAMPLES):
            file.seek(last * place // (SAMPLES - 1))
            digest.update(file.read(SAMPLE_BYTES))
    return found.st_size, found.st_mtime_ns, digest.hexdigest()


def require_state(call: str, resume: object) -> None:
    """Refuse what is no path of a state, nor None."""
    if resume is None or (isinstance(resume, str | os.PathLike) and isinstance(os.fspath(resume), str)):
        return
    wanted, instead = "the path of a file, or None", "resume='report.state'"
    raise invalid_type(call, "resume", wanted=wanted, got=safe_repr(resume), instead=instead)


class KeptState:
    """The path of a state that stays when the comparison is complete; `kept_state` removes it.

    Arguments:
        path: the file.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def __fspath__(self) -> str:
        return str(self._path)


@contextmanager
def kept_state(path: Path | None, *, removes: bool = True) -> Generator[KeptState | None]:
    """Keep the state of a comparison until its reports are written, which ends the block; after an error it stays.

    Arguments:
        path: the file; None for no state.
        removes: whether this process removes it, one of several workers.
    """
    yield None if path is None else KeptState(path)
    if path is not None and removes:
        _remove(path)


class Checkpoint:
    """A file with a line for each finished record of rows, after a line that says what is compared.

    A line is a digest and JSON: of all lines up to it, so that none can be damaged, missing or in another order.

    Arguments:
        path: the file; it is begun if it is not there, or empty.
        identity: the `fingerprint` of the comparison.

    Raises:
        FileError: it is no such file, belongs to another comparison, is in use, or cannot be written.
    """

    def __init__(self, path: str | os.PathLike[str], identity: str) -> None:
        self._path = Path(path)
        self._header = json.dumps({"schema": SCHEMA, "comparison": identity}).encode() + b"\n"
        self._digest = hashlib.sha256(self._header).hexdigest()
        self._whole = 0
        with self._writing():
            flags = os.O_RDWR | os.O_CREAT | getattr(os, "O_BINARY", 0) | getattr(os, "O_CLOEXEC", 0)
            number = os.open(self._path, flags, 0o666)
        self._file = os.fdopen(number, "r+b", buffering=0)
        try:
            self._check()
        except BaseException:
            self._file.close()
            raise

    def _check(self) -> None:
        if not stat.S_ISREG(os.fstat(self._file.fileno()).st_mode):
            raise self._error("wanted a file", "a pipe or a device", "name a file")
        if fcntl is not None:
            try:
                fcntl.flock(self._file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise self._error(
                    "wanted a file of one run",
                    "one that another run is writing",
                    "wait for it, or name another file",
                ) from None
            except OSError:  # a file system without locks
                pass
        line = self._reader().readline(MOST_BYTES)
        if self._header.startswith(line):
            # Empty, or stopped while this line was written: nothing was finished.
            self._whole = len(line) if line.endswith(b"\n") else 0
            return
        held: Any = None
        with suppress(*UNDECODABLE):
            held = json.loads(line)
        if not isinstance(held, dict) or not str(held.get("schema")).startswith("kullback.checkpoint/"):
            raise self._error(
                "wanted a file that an earlier run wrote",
                "another file",
                "name that one, or one that does not exist yet",
            )
        raise self._error(
            "wanted the state of a comparison of the same inputs and options, by the same version",
            "that of another",
            "repeat the command that began it, or name another file",
        )

    def records(self, decode: Callable[[Any], _T], most_rows: int) -> Iterator[_T]:
        """Iterate over the finished records, and drop a last one that is not whole.

        Arguments:
            decode: takes the JSON of one; what it raises makes the record a damaged one.
            most_rows: the most rows that one may have.
        """
        if not self._whole:
            return
        longest = MOST_BYTES + most_rows * MOST_BYTES_OF_ROW
        reader = self._reader()
        reader.seek(self._whole)
        while line := reader.readline(longest):
            if not line.endswith(b"\n") and len(line) < longest:
                break
            digest = _chained(self._digest, line[DIGEST + 1 : -1])
            try:
                if line[: DIGEST + 1] != digest.encode() + b" ":
                    raise ValueError
                record = decode(json.loads(line[DIGEST + 1 :]))
            except UNDECODABLE:
                raise self._error(
                    "wanted the records of an earlier run", "a damaged one", "begin again with another file"
                ) from None
            self._digest = digest
            self._whole += len(line)
            yield record

    def add(self, record: Any) -> None:
        """Add a finished record, given as what JSON holds, and wait until it is on the disk."""
        text = json.dumps(record).encode()
        digest = _chained(self._digest, text)
        line = digest.encode() + b" " + text + b"\n"
        if not self._whole:
            line = self._header + line
        with self._writing():
            self._file.truncate(self._whole)
            self._file.seek(self._whole)
            rest = memoryview(line)
            while rest:
                rest = rest[self._file.write(rest) :]
            os.fsync(self._file.fileno())
        self._digest = digest
        self._whole += len(line)

    def close(self, *, remove: bool) -> None:
        """Close the file; remove it when the comparison is complete, or where nothing was finished."""
        if remove or not self._whole:
            _remove(self._path)
        self._file.close()

    def _reader(self) -> io.BufferedReader:
        self._file.seek(0)
        return io.BufferedReader(io.FileIO(self._file.fileno(), "rb", closefd=False))

    def _error(self, wanted: str, got: str, instead: str) -> FileError:
        return FileError(f"resume = {printable(self._path)}: {wanted}; got {got}; {instead}")

    def _writing(self) -> AbstractContextManager[None]:
        return write_errors(self._path, ", on a disk with room")


@contextmanager
def checkpoint_of(path: str | os.PathLike[str], identity: str) -> Generator[Checkpoint]:
    """Open a `Checkpoint` that is removed at the end, unless there was an error or it is a `KeptState`."""
    checkpoint = Checkpoint(path, identity)
    try:
        yield checkpoint
    except BaseException:
        checkpoint.close(remove=False)
        raise
    checkpoint.close(remove=not isinstance(path, KeptState))


def encoded_rows(table: Tensor, worst: list[WorstRow]) -> dict[str, Any]:
    """Return measured rows as what JSON holds: their table, float64, and the worst among them."""
    held = base64.b64encode(table.contiguous().numpy().astype("<f8").tobytes()).decode()
    return {"shape": list(table.shape), "table": held, "worst": [asdict(row) for row in worst]}


def decoded_rows(held: Any, first: int) -> tuple[Tensor, list[WorstRow]]:
    """Return what `encoded_rows` made of rows that begin at row `first`; ValueError and the like if it did not."""
    raw = bytearray(base64.b64decode(held["table"], validate=True))
    rows, columns = map(decoded_whole, held["shape"])
    if len(raw) != rows * columns * 8 or not rows:
        raise ValueError
    table = torch.frombuffer(raw, dtype=torch.float64).reshape(rows, columns)
    worst: list[WorstRow] = []
    for each in held["worst"]:
        row = decoded_whole(each["row"])
        if not first <= row < first + rows or each["label"] is not None or each["cluster"] is not None:
            raise ValueError
        worst.append(WorstRow(row, decoded_number(each["kl"]), None, None, decoded_tops(each["top"])))
    return table, worst


def decoded_tops(held: Any) -> list[TopClass]:
    """Return the top classes in a record."""
    return [
        TopClass(decoded_whole(each["index"]), decoded_number(each["p"]), decoded_number(each["q"]))
        for each in held
    ]


def decoded_whole(held: Any) -> int:
    """Return a whole number of 0 or more in a record."""
    if type(held) is not int or not 0 <= held < 1 << 62:
        raise ValueError
    return held


def decoded_number(held: Any) -> float:
    """Return a number in a record."""
    if type(held) not in (float, int):
        raise ValueError
    return float(held)


def _remove(path: Path) -> None:
    """Remove the file that a path, maybe a link, leads to."""
    with suppress(OSError):
        Path(os.path.realpath(path)).unlink()


def _chained(before: str, text: bytes) -> str:
    return hashlib.sha256(before.encode() + text).hexdigest()
