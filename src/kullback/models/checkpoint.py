"""The state of a comparison of models on disk, so that a run that was stopped goes on where it was."""

from __future__ import annotations

import base64
import hashlib
import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, BinaryIO

import torch
from torch import Tensor

from kullback.errors import FileError, printable
from kullback.models.result import Passage, ReadToken
from kullback.predictions.result import TopClass, WorstRow

__all__ = ["Checkpoint", "Part", "fingerprint", "weights_stamp"]

SCHEMA = "kullback.checkpoint/1"
# Measured rows of one candidate: their table, the worst among them, and passages with the row each begins at.
Part = tuple[Tensor, list[WorstRow], list[tuple[int, Passage]]]


def fingerprint(**settings: Any) -> str:
    """Return a digest of what a comparison is of: tensors by their bytes, everything else as JSON."""
    digest = hashlib.sha256()
    for name, value in sorted(settings.items()):
        digest.update(name.encode() + b"\0")
        if isinstance(value, Tensor):
            digest.update(value.contiguous().numpy().tobytes())
        else:
            digest.update(json.dumps(value, sort_keys=True, default=str).encode())
    return digest.hexdigest()


def weights_stamp(name: str) -> list[tuple[str, int, int]]:
    """Return the name, size and time of change of every file of a model, so that other weights are noticed."""
    path = Path(name)
    files = [path] if path.is_file() else sorted(path.iterdir()) if path.is_dir() else []
    return [(each.name, each.stat().st_size, each.stat().st_mtime_ns) for each in files if each.is_file()]


class Checkpoint:
    """A file with one line for each finished window, after a line that says what is compared.

    Arguments:
        path: the file; it is begun if it is not there.
        identity: the `fingerprint` of the comparison.

    Raises:
        FileError: it is no such file, belongs to another comparison, or cannot be written.
    """

    def __init__(self, path: Path, identity: str) -> None:
        self._path = path
        self._whole = 0
        try:
            if path.exists() and path.stat().st_size:
                self._check(identity)
            self._file: BinaryIO = path.open("ab")
            if not self._whole:
                self._file.truncate(0)
                self._write({"schema": SCHEMA, "comparison": identity})
                self._whole = self._file.tell()
        except OSError as error:
            raise FileError(
                f"cannot write {printable(path)}: {error.strerror or error}; name a file in an existing directory that "
                "you may write to"
            ) from None

    def _check(self, identity: str) -> None:
        with self._path.open("rb") as file:
            line = file.readline(1 << 16)
            held: Any = None
            if line.endswith(b"\n"):
                try:
                    held = json.loads(line)
                except (ValueError, RecursionError):
                    held = None
            if not isinstance(held, dict) or held.get("schema") != SCHEMA:
                raise FileError(
                    f"resume = {printable(self._path)}: wanted a file that an earlier run wrote; got another file; "
                    "name that one, or one that does not exist yet"
                )
            if held.get("comparison") != identity:
                raise FileError(
                    f"resume = {printable(self._path)}: wanted the same models, text and options as when it was begun; "
                    "got others; repeat that command, or name another file"
                )
            self._whole = file.tell()

    def windows(self, candidates: int, rows: Sequence[int]) -> Iterator[list[Part]]:
        """Iterate over the finished windows, and drop a last one that is not whole.

        Arguments:
            candidates: how many parts the record of a window has.
            rows: the number of rows of each window.
        """
        with self._path.open("rb") as file:
            file.seek(self._whole)
            for window, line in enumerate(file):
                if not line.endswith(b"\n"):
                    break
                try:
                    record = [_decoded(each) for each in json.loads(line)]
                    if [len(table) for table, _, _ in record] != [rows[window]] * candidates:
                        raise ValueError
                except (ValueError, LookupError, TypeError, AttributeError, RuntimeError):
                    raise FileError(
                        f"resume = {printable(self._path)}: wanted a line for each window; got a damaged one; begin "
                        "again with another file"
                    ) from None
                self._whole = file.tell()
                yield record
        self._file.truncate(self._whole)

    def add(self, record: list[Part]) -> None:
        """Add a finished window."""
        self._write([_encoded(*each) for each in record])

    def _write(self, value: Any) -> None:
        self._file.write(json.dumps(value).encode() + b"\n")
        self._file.flush()
        os.fsync(self._file.fileno())

    def close(self, *, remove: bool) -> None:
        """Close the file; remove it when the comparison is complete."""
        self._file.close()
        if remove:
            self._path.unlink(missing_ok=True)


def _encoded(table: Tensor, worst: list[WorstRow], passages: list[tuple[int, Passage]]) -> Any:
    held = base64.b64encode(table.contiguous().numpy().astype("<f8").tobytes()).decode()
    return {
        "shape": list(table.shape),
        "table": held,
        "worst": [asdict(row) for row in worst],
        "passages": [[first, asdict(passage)] for first, passage in passages],
    }


def _decoded(held: Any) -> Part:
    raw = bytearray(base64.b64decode(held["table"], validate=True))
    table = torch.frombuffer(raw, dtype=torch.float64).reshape(held["shape"])
    worst = [WorstRow(**each, top=_tops(top)) for each in held["worst"] for top in [each.pop("top")]]
    return table, worst, [(int(first), _passage(each)) for first, each in held["passages"]]


def _passage(held: Any) -> Passage:
    tokens = [ReadToken(**each, top=_tops(top)) for each in held.pop("tokens") for top in [each.pop("top")]]
    return Passage(**held, tokens=tokens)


def _tops(held: Any) -> list[TopClass]:
    return [TopClass(**each) for each in held]
