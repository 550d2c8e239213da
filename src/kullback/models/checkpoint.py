"""The finished windows of a comparison of models as records of a `Checkpoint`."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

from torch import Tensor

from kullback.models.result import Passage, ReadToken
from kullback.predictions.checkpoint import (
    decoded_number,
    decoded_rows,
    decoded_tops,
    decoded_whole,
    encoded_rows,
    file_stamp,
)
from kullback.predictions.result import WorstRow

__all__ = ["Part", "decoded_part", "encoded_part", "weights_stamp"]

# Measured rows of one candidate: their table, the worst among them, and passages with the row each begins at.
Part = tuple[Tensor, list[WorstRow], list[tuple[int, Passage]]]


def weights_stamp(name: str) -> list[tuple[str, tuple[int, int, str]]]:
    """Return the name and the `file_stamp` of every file of a model, so that other weights are noticed."""
    path = Path(name)
    files = [path] if path.is_file() else sorted(path.iterdir()) if path.is_dir() else []
    return [(each.name, file_stamp(each)) for each in files if each.is_file()]


def encoded_part(part: Part) -> dict[str, Any]:
    """Return measured rows as what JSON holds."""
    table, worst, passages = part
    held = [[first, asdict(passage)] for first, passage in passages]
    return {**encoded_rows(table, worst), "passages": held}


def decoded_part(held: Any, first: int) -> Part:
    """Return what `encoded_part` made of rows that begin at row `first`; ValueError and the like if it did not."""
    table, worst = decoded_rows(held, first)
    passages: list[tuple[int, Passage]] = []
    for start, each in held["passages"]:
        passage = _passage(each)
        if not first <= decoded_whole(start) <= first + len(table) - len(passage.tokens):
            raise ValueError
        passages.append((start, passage))
    return table, worst, passages


def _passage(held: Any) -> Passage:
    tokens = [
        ReadToken(
            decoded_whole(each["index"]),
            decoded_number(each["kl"]),
            decoded_number(each["p"]),
            decoded_number(each["q"]),
            decoded_tops(each["top"]),
        )
        for each in held["tokens"]
    ]
    if not tokens:
        raise ValueError
    before = [decoded_whole(token) for token in held["before"]]
    return Passage(decoded_whole(held["window"]), decoded_whole(held["first"]), before, tokens)
