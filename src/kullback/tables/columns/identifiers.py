"""Recognition of identifiers: columns where nearly every row has its own value, but no amounts and no dates."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from kullback.common.words import is_name_of_ids
from kullback.tables.columns.ways_of_writing import evidence_of, texts_of
from kullback.tables.columns.written_numbers import are_codes, are_digits

if TYPE_CHECKING:
    from kullback.tables.columns.column_profile import ColumnProfile

_FEWEST_ROWS = 20
_DIFFERENT = 0.9  # identifiers have at least this ratio of different values to rows
# Integers identify rows if their range is at least this share of the number of rows. A column of text holds amounts if
# more than this share of its texts are amounts.
_MOST = 0.5
_MOST_READ = 20_000  # at most this many texts are examined
_DIGITS_OF_CODE = 8  # numbers of one length with at least this many digits are codes


def identifies(name: str, column: ColumnProfile) -> bool:
    """Return whether nearly every row has its own value, which is neither an amount nor a date.

    Arguments:
        name: the name of the column.
        column: the profile of the column, counted without weights.
    """
    rows = column.present
    if rows < _FEWEST_ROWS:
        return False
    if column.column_type == "categorical":
        # A saved profile names the most frequent values. If each of these occurs once, so does every other value.
        single = column.other_categories > 0 and max(column.categories.values(), default=2) == 1
        different = len(column.categories) + (column.other_categories if single else 0)
        return different >= _DIFFERENT * rows and not _are_amounts(name, column, different)
    if (
        column.column_type != "numeric"
        or not column.integer
        or column.minimum is None
        or column.maximum is None
    ):
        return False
    values = column.maximum - column.minimum + 1
    is_consecutive = values == sum(column.buckets.values())
    return is_consecutive or (is_name_of_ids(name) and values >= _MOST * rows)


def _are_amounts(name: str, column: ColumnProfile, different: float) -> bool:
    """Return whether most texts are dates or amounts, and not codes or row numbers."""
    texts = texts_of(column)
    texts = texts.take(np.arange(0, len(texts), 1 + len(texts) // _MOST_READ))
    evidence = evidence_of(texts, np.ones(len(texts)))
    digits = are_digits(texts)
    of_codes = digits & are_codes(texts)
    of_dates, of_numbers = (evidence.get(("shape", what), 0.0) for what in ("dates", "numbers"))
    with_more = of_numbers - (digits & ~of_codes).sum()
    if of_dates + with_more > _MOST * len(texts):
        return True
    if of_dates + of_numbers <= _MOST * len(texts) or is_name_of_ids(name):
        return False
    numbers = [text.strip() for text in texts.filter(digits & ~of_codes).to_pylist()]
    lengths = set(map(len, numbers))
    is_code = lengths == {max(lengths)} and max(lengths) >= _DIGITS_OF_CODE
    values = [int(number) for number in numbers]
    is_consecutive = max(values) - min(values) < different / _DIFFERENT
    return not (is_code or is_consecutive)
