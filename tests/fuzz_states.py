"""Damaged states of `--resume`: each must end in the right report or in one of kullback's own errors."""

from __future__ import annotations

import hashlib
import json
import random
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import torch

from kullback import compare_predictions, report
from kullback.errors import FileError, KullbackError

ROWS, CLASSES = 14, 8191  # four rows in a part


class _StopError(Exception):
    pass


def compared(labeled: bool, state: Path | None = None, progress: Callable[..., None] | None = None) -> str:
    """The report of a comparison of fixed tensors."""
    generator = torch.Generator().manual_seed(0)
    p = torch.randn(ROWS, CLASSES, generator=generator)
    q = p + torch.randn(ROWS, CLASSES, generator=generator) / 4
    found = compare_predictions(
        p,
        q,
        representation="logits",
        labels=torch.arange(ROWS) if labeled else None,
        bootstrap=10,
        block_bytes=1,
        worst=3,
        resume=state,
        progress=progress,
    )
    return report.json.dumps(found)


def write_seeds(folder: Path) -> list[Path]:
    """Write the states of comparisons that were stopped, with labels and without, and what they give at their end."""

    def stop(done: int, _total: int | None) -> None:
        if done >= ROWS - 2:
            raise _StopError

    for name in ("labeled", "plain"):
        (folder / f"{name}.json").write_text(compared(name == "labeled"))
        try:
            compared(name == "labeled", folder / name, stop)
        except _StopError:
            continue
    return [folder / "labeled", folder / "plain"]


def records_of(state: Path) -> tuple[str, list[Any]]:
    """The comparison that a state is of, and its records."""
    with closing(sqlite3.connect(state)) as database:
        ((identity,),) = database.execute("SELECT identity FROM comparison").fetchall()
        records = database.execute("SELECT content FROM record ORDER BY number").fetchall()
    return identity, [json.loads(content) for (content,) in records]


def forge(state: Path, identity: str, records: list[Any]) -> None:
    """Write other records into a state, with their digests."""
    with closing(sqlite3.connect(state)) as database, database:
        database.execute("DELETE FROM record")
        for number, record in enumerate(records):
            content = json.dumps(record).encode()
            digest = hashlib.sha256(f"{identity} {number} ".encode() + content).digest()
            database.execute("INSERT INTO record VALUES (?, ?, ?)", (number, digest, content))


def fuzz_one(
    seed: int, sound: list[Path], folder: Path, damage: Callable[[bytes, random.Random], bytes]
) -> None:
    """Damage one state and go on from it."""
    rng = random.Random(seed)  # noqa: S311 - not for secrets
    origin = rng.choice(sound)
    state = folder / "state"
    state.write_bytes(damage(origin.read_bytes(), rng))
    try:
        found = compared(origin.name == "labeled", state)
    except KullbackError as error:
        text = str(error)
        if not isinstance(error, FileError) or not text.isprintable() or len(text) > 5000:
            raise AssertionError(f"{type(error).__name__}: {text[:200]!r}") from None
        return
    if found != origin.with_suffix(".json").read_text():
        raise AssertionError("another report than that of the whole run")
