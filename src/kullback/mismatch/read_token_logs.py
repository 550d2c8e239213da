"""Readers of token logs: prime-rl's token exports, NeMo-RL's training data, and rows of a Parquet or JSONL file.

A format is one function in `TOKEN_LOG_FORMATS`, which turns the records of a JSONL file into a `TokenLog`.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields
from functools import partial
from hashlib import blake2b
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from kullback.common.arrays import Floats
from kullback.common.files import by_numbers, check_input
from kullback.common.optional import load
from kullback.errors import ArgumentValueError, FileError
from kullback.mismatch.token_log import WHOLE, TokenLog, in_order, joined

Record = Mapping[str, Any]
_STEP = re.compile(r"step_?(\d+)")
_NEEDED = ("sequence", "position", "sampler_log_prob", "trainer_log_prob")
COLUMNS = tuple(field.name for field in fields(TokenLog) if field.name != "groups")


class Sequences(NamedTuple):
    """The names of the fields of a JSONL file with one record for each sequence.

    Attributes:
        sampler: the engine's log-probability of each token.
        trainer: the trainer's log-probability of each token.
        mask: 1 for each token that was sampled and counts.
        step: the number of the training step; empty if only the path has it.
        group: the name of the sequence's group; empty without groups.
        counts: 0 for a sequence that does not count; empty without such a field.
    """

    sampler: str
    trainer: str
    mask: str
    step: str = ""
    group: str = ""
    counts: str = ""


PRIME_RL = Sequences("inference_logprobs", "trainer_logprobs", "loss_mask", step="step", group="env_name")
NEMO_RL = Sequences("generation_logprobs", "prev_logprobs", "token_loss_mask", counts="sample_loss_mask")


def read_token_log(*paths: str | Path) -> TokenLog:
    """Read the sampled tokens of a run, with their log-probabilities in the engine and in the trainer.

    | path | format |
    |---|---|
    | a run of prime-rl with ``enable_token_export``, or its folder ``token_exports`` | ``step_*/rank_*.jsonl`` |
    | a folder of NeMo-RL's training data | ``train_data_step*.jsonl`` |
    | ``.jsonl``, ``.parquet`` | one row for each token, with the fields of `TokenLog` as columns and ``mask`` |

    Sequences with the same tokens before the first sampled token are of one prompt.

    Arguments:
        paths: files and folders; their tokens are joined.

    Returns:
        the sampled tokens.

    Raises:
        FileError: a file is missing, is in none of the formats, or contains a record of the wrong form.

    Example:
        >>> import pathlib, tempfile
        >>> from kullback.mismatch import read_token_log
        >>> row = '{"sequence": 0, "position": 0, "sampler_log_prob": -1.0, "trainer_log_prob": -1.1}'
        >>> path = pathlib.Path(tempfile.mkdtemp(), "tokens.jsonl")
        >>> _ = path.write_text(row)
        >>> len(read_token_log(path))
        1
    """
    files = [file for path in paths for file in _files(Path(path))]
    for file, times in Counter(file.resolve() for file in files).items():
        if times > 1:
            raise _wrong(file, "this file twice, whose tokens would count twice", "name each file once")
    return joined([_read(file) for file in files])


def _files(path: Path) -> list[Path]:
    if not path.is_dir():
        check_input(path, "run")
        if not path.exists():
            raise _wrong(path, "no such file or folder", "check the path")
        return [path]
    files = [
        *path.glob("**/step_*/rank_*.jsonl"),
        *path.glob("rank_*.jsonl"),
        *path.glob("**/train_data_step*.jsonl"),
    ]
    if not files:
        raise FileError.at(
            f"run = {path}",
            "run",
            wanted="a folder with step_*/rank_*.jsonl (prime-rl) or train_data_step*.jsonl (NeMo-RL)",
            got="a folder without such files",
            instead="name a .parquet or .jsonl file with one row for each token",
        )
    return sorted(set(files), key=lambda file: by_numbers(file.as_posix()))


def _read(path: Path) -> TokenLog:
    try:
        return _read_format(path)
    except ArgumentValueError as error:  # of `TokenLog`
        if error.explanation is None:
            raise
        got = f"{error.explanation.got} in {error.argument}"
        raise _wrong(path, got, str(error.explanation.instead)) from None


def _read_format(path: Path) -> TokenLog:
    if path.suffix.lower() == ".parquet":
        return _of_columns(path, _parquet(path))
    records = _records(path)
    first = next(records, None)
    if first is None:
        raise _wrong(path, "no record", "name a file with tokens")
    for is_of_format, reader in TOKEN_LOG_FORMATS.values():
        if is_of_format(first[1]):
            return reader(path, [first, *records])
    known = ", ".join(TOKEN_LOG_FORMATS)
    raise _wrong(
        path, f"a first record with {', '.join(first[1]) or 'no fields'}", f"write one of the formats {known}"
    )


def _wrong(path: Path, got: str, instead: str) -> FileError:
    return FileError.at(
        f"run = {path}",
        "run",
        wanted="records of sampled tokens with the log-probabilities of engine and trainer",
        got=got,
        instead=instead,
    )


def _records(path: Path) -> Iterator[tuple[int, Record]]:
    """Yield the number and the record of each line."""
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            try:
                record = json.loads(line)
            except (ValueError, RecursionError):
                remedy = "correct that line"
                if path.suffix.lower() not in (".json", ".jsonl", ".ndjson"):
                    remedy = "name a .parquet or .jsonl file with one row for each token"
                raise _wrong(path, f"no JSON in line {number}", remedy) from None
            if not isinstance(record, dict):
                raise _wrong(path, f"no JSON object in line {number}", "write one JSON object in each line")
            yield number, record


def _of_sequences(names: Sequences, path: Path, records: Sequence[tuple[int, Record]]) -> TokenLog:
    of_path = _STEP.findall(path.as_posix())
    step = int(of_path[-1]) if of_path else None
    numbers: list[tuple[int, int, int | None, str]] = []  # tokens, prompt, step and group of each sequence
    sides: list[Floats] = []
    for line, record in records:
        if names.counts and not np.any(record.get(names.counts, 1)):
            continue
        ids, counts = (_numbers(path, line, record, name) for name in ("token_ids", names.mask))
        mask = counts != 0
        both = [_numbers(path, line, record, name) for name in (names.sampler, names.trainer)]
        lengths = {len(ids), len(mask), *map(len, both)}
        if len(lengths) > 1:
            got = f"lists of {' and '.join(map(str, sorted(lengths)))} numbers in line {line}"
            raise _wrong(path, got, "write one number for each token in every list")
        if np.isnan(ids).any() or np.isnan(counts).any():
            got = f"null in token_ids or {names.mask} in line {line}"
            raise _wrong(path, got, f"write a number for each token, and {names.mask} as 0 or 1")
        if not mask.any():
            continue
        sampled = np.stack(both)[:, mask]
        if np.isnan(sampled).any():
            raise _wrong(path, f"null for a sampled token in line {line}", f"set its {names.mask} to 0")
        own = record.get(names.step) if names.step else None
        if own is not None and not (isinstance(own, int | float) and own % 1 == 0):
            raise _wrong(path, f"no integer in {names.step} in line {line}", f"write {names.step}: 0")
        prompt = _number_of(ids[: int(mask.argmax())].tobytes())
        group = record.get(names.group) if names.group else None
        number = step if own is None else int(own)
        numbers.append((sampled.shape[1], prompt, number, "" if group is None else str(group)))
        sides.append(sampled)
    if not numbers:
        raise _wrong(path, "no sampled token", f"write {names.mask} with 1 for the sampled tokens")
    counts = torch.tensor([number for number, *_ in numbers], device="cpu")
    sampler, trainer = torch.from_numpy(np.concatenate(sides, -1))
    groups = tuple(dict.fromkeys(group for *_, group in numbers))
    steps = [number for _, _, number, _ in numbers]

    def repeated(of_sequences: Sequence[int]) -> torch.Tensor:
        return torch.tensor(of_sequences, device="cpu").repeat_interleave(counts)

    return TokenLog(
        repeated(range(len(numbers))),
        torch.cat([torch.arange(int(number), device="cpu") for number in counts]),
        sampler,
        trainer,
        prompt=repeated([prompt for _, prompt, *_ in numbers]),
        step=None if None in steps else repeated([number for number in steps if number is not None]),
        group=repeated([groups.index(group) for *_, group in numbers]) if any(groups) else None,
        groups=groups if any(groups) else (),
    )


def _number_of(content: bytes) -> int:
    """Return a number that no other content has, for all that can be counted on."""
    return int.from_bytes(blake2b(content, digest_size=8).digest(), "little", signed=True)


def _numbers(path: Path, line: int, record: Record, name: str) -> Floats:
    """Return a list of a record as numbers; null becomes NaN."""
    try:
        numbers = np.asarray(record[name], dtype=np.float64)
    except (KeyError, ValueError, TypeError):
        got = f"{'no ' if name not in record else 'other values in '}{name} in line {line}"
        raise _wrong(path, got, f"write {name} as a list with one number for each token") from None
    if numbers.ndim == 2 and 1 in numbers.shape:  # one sequence as a batch of one
        numbers = numbers.reshape(-1)
    if numbers.ndim != 1:
        got = f"{name} with {numbers.ndim} dimensions in line {line}"
        raise _wrong(path, got, f"write {name} as a list with one number for each token")
    return numbers


def _of_tokens(path: Path, records: Sequence[tuple[int, Record]]) -> TokenLog:
    names = {name for _, record in records for name in record}
    return _of_columns(path, {name: [record.get(name) for _, record in records] for name in sorted(names)})


def _parquet(path: Path) -> dict[str, list[Any]]:
    parquet = load("pyarrow.parquet", f"read_token_log({path.name!r})")
    try:
        table = parquet.read_table(path)
    except (OSError, ValueError) as error:
        raise _wrong(path, f"{type(error).__name__} of pyarrow", "write the file again") from error
    return {name: table.column(name).to_pylist() for name in table.column_names}


def _of_columns(path: Path, columns: Mapping[str, Sequence[Any]]) -> TokenLog:
    missing = [name for name in _NEEDED if name not in columns]
    if missing:
        raise _wrong(path, f"no column {missing[0]}", f"write the columns {', '.join(_NEEDED)}")
    unknown = [name for name in columns if name not in (*COLUMNS, "mask")]
    if unknown:
        known = f"leave it out, or name it as one of {', '.join((*COLUMNS, 'mask'))}"
        raise _wrong(path, f"the column {unknown[0]}", known)
    mask = columns.get("mask", ())
    if any(value not in (None, 0, 1) for value in mask):
        raise _wrong(
            path, "a value other than 0 and 1 in mask", "write 1 for sampled tokens and 0 for others"
        )
    tensors: dict[str, torch.Tensor] = {}
    groups: tuple[str, ...] = ()
    for name, values in columns.items():
        kept = [x for x, counts in zip(values, mask, strict=True) if counts != 0] if mask else values
        if name == "mask" or all(x is None for x in kept):
            continue
        if name == "group":
            groups = tuple(dict.fromkeys(map(str, kept)))
            places = {group: place for place, group in enumerate(groups)}
            numbers = [places[str(x)] for x in kept]
        elif name == "prompt":  # prompts of several files are the same if their names are
            missing = any(x is None or x != x for x in kept)  # noqa: PLR0124 - NaN is not itself
            numbers = None if missing else [_number_of(str(x).encode("utf-8", "surrogatepass")) for x in kept]
        else:
            numbers = _column(kept, whole=name in WHOLE)
        if numbers is None:
            wanted = {"prompt": "a prompt"}.get(name, "an integer" if name in WHOLE else "a number")
            raise _wrong(
                path, f"not {wanted} for each token in {name}", f"write {wanted} for each, or mask=0"
            )
        tensors[name] = torch.from_numpy(np.asarray(numbers))
    lacking = [name for name in _NEEDED if name not in tensors]
    if lacking:
        raise _wrong(path, f"no value in {lacking[0]}", "write values for the sampled tokens")
    return in_order(TokenLog(**tensors, groups=groups))


def _column(values: Sequence[Any], *, whole: bool) -> Any:
    """Return numbers as an array of int64 or float64; None if a value is not such a number."""
    try:
        numbers = np.asarray(values)
        with np.errstate(invalid="ignore"):
            exact = numbers.astype(np.int64 if whole else np.float64)
    except (ValueError, TypeError, OverflowError):
        return None
    is_right = numbers.ndim == 1 and (exact == numbers if whole else ~np.isnan(exact)).all()
    return exact if is_right else None


class TokenLogFormat(NamedTuple):
    """A format of JSONL files: whether a record is of the format, and the reader of the numbered records."""

    is_of_format: Callable[[Record], bool]
    read: Callable[[Path, Sequence[tuple[int, Record]]], TokenLog]


TOKEN_LOG_FORMATS: dict[str, TokenLogFormat] = {
    "prime-rl": TokenLogFormat(lambda record: PRIME_RL.sampler in record, partial(_of_sequences, PRIME_RL)),
    "nemo-rl": TokenLogFormat(lambda record: NEMO_RL.sampler in record, partial(_of_sequences, NEMO_RL)),
    "tokens": TokenLogFormat(lambda record: "sampler_log_prob" in record, _of_tokens),
}
