"""Damaged and forged states of `--resume`: each must end in the right report or in one of kullback's own errors."""

from __future__ import annotations

import base64
import hashlib
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from kullback import compare_predictions, report
from kullback.errors import FileError, KullbackError

ROWS, CLASSES = 14, 8191  # four rows in a part
NUMBERS = (0.0, -1.0, 1.0, 0.5, 1e300, -1e300, 1e-320, np.nan, np.inf, -np.inf)


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


def records_of(held: bytes) -> tuple[bytes, list[Any]]:
    """The first line of a state, and its records."""
    header, *lines = held.splitlines(keepends=True)
    return header, [json.loads(line[65:]) for line in lines]


def forged(header: bytes, records: list[Any]) -> bytes:
    """A state with digests as an attacker would compute them."""
    found, digest = header, hashlib.sha256(header).hexdigest()
    for record in records:
        text = json.dumps(record).encode()
        digest = hashlib.sha256(digest.encode() + text).hexdigest()
        found += digest.encode() + b" " + text + b"\n"
    return found


def with_value(record: Any, row: int, column: int, value: float) -> Any:
    """A record with another number in its table."""
    table = np.frombuffer(base64.b64decode(record["table"])).reshape(record["shape"]).copy()
    table[row, column] = value
    return {**record, "table": base64.b64encode(table.tobytes()).decode()}


def fuzz_one(
    seed: int,
    sound: list[Path],
    folder: Path,
    damage: Callable[[bytes, random.Random], bytes],
    changed: Callable[[Any, random.Random], Any],
) -> None:
    """Damage or forge one state and go on from it."""
    rng = random.Random(seed)  # noqa: S311 - not for secrets
    origin = rng.choice(sound)
    held = origin.read_bytes()
    header, records = records_of(held)
    case, at = rng.randrange(3), rng.randrange(len(records))
    if case == 0:
        held = damage(held, rng)
    elif case == 1:
        records[at] = changed(records[at], rng)
        held = forged(header, records)
    else:
        rows, columns = records[at]["shape"]
        place = rng.randrange(rows), rng.randrange(columns)
        records[at] = with_value(records[at], *place, rng.choice(NUMBERS))
        held = forged(header, records)
    state = folder / "state"
    state.write_bytes(held)
    try:
        found = compared(origin.name == "labeled", state)
    except KullbackError as error:
        text = str(error)
        if not isinstance(error, FileError) or not text.isprintable() or len(text) > 5000:
            raise AssertionError(f"{type(error).__name__}: {text[:200]!r}") from None
        return
    # What an attacker has computed may be taken; what an accident has changed may not.
    if case == 0 and found != origin.with_suffix(".json").read_text():
        raise AssertionError("another report than that of the whole run")
