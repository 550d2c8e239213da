"""Counts of the rows that contain a word of each group; words are hashed into groups.

A word is a run of letters; every byte of a character outside ASCII counts as a letter, and case matters. Digits,
punctuation and the order of words do not count. No word is stored, so the counts have a fixed size and add up over the
parts of a table.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from kullback.common.arrays import Floats

WORD_GROUPS = 2048
CHUNK = 1 << 19  # a chunk has at most this many bytes, or a single longer text
BASE = 0x9E3779B97F4A7C15  # odd, so it has an inverse modulo 2^64


def rows_with_words(array: Any, weights: Floats | None) -> Floats:
    """Return the weight of the rows that contain a word of each group, from large strings without missing values."""
    total = np.zeros(WORD_GROUPS)
    _, offsets, data = array.buffers()
    ends = np.frombuffer(offsets, np.int64)[array.offset : array.offset + len(array) + 1]
    text = np.frombuffer(data or b"", np.uint8)
    for first, last in _chunks(ends):
        row, group = _occurring(text[ends[first] : ends[last]], ends[first : last + 1] - ends[first])
        total += np.bincount(group, None if weights is None else weights[first + row], WORD_GROUPS)
    return total


def _chunks(ends: Any) -> Iterator[tuple[int, int]]:
    """Yield the first row of each chunk of texts, and the row after its last row."""
    first = 0
    while first < len(ends) - 1:
        last = max(first + 1, int(np.searchsorted(ends, ends[first] + CHUNK, "right")) - 1)
        yield first, min(last, len(ends) - 1)
        first = last


def _occurring(text: Any, ends: Any) -> tuple[Any, Any]:
    """Return the distinct pairs of a row and a group of words that occurs in the row."""
    values = _VALUES[text]
    letters = values > 0
    begins = letters.copy()
    begins[1:] &= ~letters[:-1]
    filled = ends[:-1][ends[1:] > ends[:-1]]
    begins[filled] = letters[filled]
    starts = np.flatnonzero(begins)
    if not len(starts):
        return starts, starts
    powers = np.full(len(text) + 1, BASE, np.uint64)
    powers[0] = 1
    np.cumprod(powers, out=powers)
    inverse = np.full(len(text) + 1, pow(BASE, -1, 1 << 64), np.uint64)
    inverse[0] = 1
    np.cumprod(inverse, out=inverse)
    # The hash of a word is the sum of value times BASE^position over its bytes, with the first byte at position 0.
    hashes = np.add.reduceat(values * powers[:-1], starts) * inverse[starts]
    hashes ^= hashes >> np.uint64(32)
    hashes *= np.uint64(0xD6E8FEB86659FD93)
    groups = (hashes >> np.uint64(53)).astype(np.int64)  # 11 bits, because WORD_GROUPS is 2^11
    rows = np.searchsorted(ends, starts, "right") - 1
    return np.divmod(np.unique(rows * WORD_GROUPS + groups), WORD_GROUPS)


def _letter_values() -> Any:
    """Return a number for each byte value; it is 0 for bytes that are not part of a letter."""
    values = np.arange(1, 257, dtype=np.uint64) * np.uint64(0xBF58476D1CE4E5B9)
    values[[byte for byte in range(128) if not chr(byte).isalpha()]] = 0
    return values


_VALUES = _letter_values()
