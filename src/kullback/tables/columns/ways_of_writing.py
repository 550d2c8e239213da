"""The evidence on how the numbers or dates of a column of text are written.

`evidence_of` returns the weight of one side's texts that each way reads, and of the texts that only one of two ways
reads. The evidence of parts of a table adds up. `kullback.tables.columns.text_types` decides from the evidence of all
sides.
"""

from __future__ import annotations

from itertools import permutations
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from kullback.common.arrays import Flags, Floats
from kullback.tables.columns.written_numbers import (
    DATE_FORMS,
    DECIMALS,
    SEPARATORS,
    Written,
    are_codes,
    are_digits,
    are_numbers,
    contain,
    dates_of,
    may_be_values,
    times_of,
    units_of,
)

if TYPE_CHECKING:
    from kullback.tables.columns.column_profile import ColumnProfile

# A column of text with fewer different numbers may hold codes or ratings, which are categories.
FEWEST_NUMBERS = 20
_SAMPLE = 1000  # a sample has this many of the most frequent texts, and this many others
_SUSPECTED = 0.3  # all texts are examined if at least this share of the sample may be numbers or dates
_MOST_UNITS = 3  # only this many of the most frequent units are examined

# The weight of the texts with each property. Properties of texts are ("all",), ("codes",), ("shape", "numbers") ...
# Properties of a way are ("read", way), ("only", way, another), ("contested", way, another, character) ...
Evidence = dict[tuple[Any, ...], float]


def evidence_of(texts: Any, weights: Floats) -> Evidence:
    """Return the evidence of texts: the weights of the texts that each way of writing reads.

    `texts` are different texts, as an Arrow array of large strings without missing values.
    """
    evidence: Evidence = {("all",): float(weights.sum())}
    if not len(texts):
        return evidence
    codes = are_codes(texts)
    numbers = _of_numbers(evidence, texts, weights)
    mostly = weights[numbers].sum() > 0.5 * weights.sum()
    dates = np.zeros_like(numbers) if mostly else _of_dates(evidence, texts, weights)
    evidence["codes",] = float(weights[codes].sum())
    evidence["digits",] = float(weights[are_digits(texts)].sum())
    for what, which in (("numbers", numbers & ~codes), ("dates", dates)):
        evidence["shape", what] = float(weights[which].sum())
        evidence["shapes", what] = float(which.sum())
    # The result has plain tuples, so that workers can send evidence without classes of this package.
    return {
        tuple(tuple(part) if isinstance(part, Written) else part for part in key): weight
        for key, weight in evidence.items()
        if weight
    }


def evidence_of_categories(column: ColumnProfile, fewest: int = FEWEST_NUMBERS) -> Evidence:
    """Return the evidence of the named categories of a column.

    With fewer than `fewest` categories, or if a sample shows that most are neither numbers nor dates, the evidence is
    only the weight of all texts.
    """
    import pyarrow as pa

    number = len(column.categories)
    weights = np.fromiter(column.categories.values(), np.float64, number)
    all_alone = {("all",): float(weights.sum())}
    if number < max(fewest, 1):
        return all_alone
    texts = texts_of(column)
    if weights[may_be_values(texts)].sum() < _SUSPECTED * weights.sum():
        return all_alone
    if number > 2 * _SAMPLE:
        heaviest = np.argpartition(weights, -_SAMPLE)[-_SAMPLE:]
        rest = np.setdiff1d(np.arange(number), heaviest)
        spaced = rest[:: len(rest) // _SAMPLE]
        scale = weights[rest].sum() / weights[spaced].sum()
        sample = pa.array(np.concatenate([heaviest, spaced]))
        sampled = np.concatenate([weights[heaviest], scale * weights[spaced]])
        if max(shares(evidence_of(texts.take(sample), sampled)).values()) < _SUSPECTED:
            return all_alone
    return evidence_of(texts, weights)


def texts_of(column: ColumnProfile) -> Any:
    """Return the named categories of a column as an Arrow array."""
    import pyarrow as pa

    return pa.array(list(column.categories), pa.large_string())


def shares(evidence: Evidence) -> dict[Literal["numbers", "dates"], float]:
    """Return the share of texts that look like numbers, and like dates; 0 for fewer than 20 such texts."""
    total = evidence.get(("all",), 0.0)
    return {
        what: evidence.get(("shape", what), 0.0) / total
        if total and evidence.get(("shapes", what), 0.0) >= FEWEST_NUMBERS
        else 0.0
        for what in ("numbers", "dates")
    }


def _of_numbers(evidence: Evidence, texts: Any, weights: Floats) -> Flags:
    """Add the evidence on numbers; return which texts are numbers."""
    units = units_of(texts).fill_null("").dictionary_encode()
    codes, names = units.indices.to_numpy(), units.dictionary.to_pylist()
    heaviest = np.argsort(-np.bincount(codes, weights), kind="stable")[:_MOST_UNITS]
    marked = {mark: contain(texts, mark) for mark in SEPARATORS}
    numbers = np.zeros(len(weights), np.bool_)
    for at in heaviest.tolist():
        ways = [Written("numbers", form, names[at], SEPARATORS.replace(form, "")) for form in DECIMALS]
        reads = {way._replace(separators=""): are_numbers(texts, way) & (codes == at) for way in ways}
        _add_ways(evidence, reads, weights)
        either, both = np.any(list(reads.values()), axis=0), np.all(list(reads.values()), axis=0)
        numbers |= either
        for mark in DECIMALS:
            evidence["uses", "numbers", names[at], mark] = float(weights[either & marked[mark]].sum())
        for (way, read), (other, read_too) in permutations(reads.items()):
            evidence["only", way, other] = float(weights[read & ~read_too].sum())
            for mark in DECIMALS:
                evidence["contested", way, other, mark] = float(weights[both & marked[mark]].sum())
            evidence["plain", way] = float(weights[both & ~marked["."] & ~marked[","]].sum())
            for separator in SEPARATORS.replace(way.form, ""):
                if not marked[separator].any():
                    continue
                grouped = read & marked[separator] & ~are_numbers(texts, way)
                grouped &= are_numbers(texts, way._replace(separators=separator))
                evidence["separates", way, separator] = float(weights[grouped].sum())
                evidence["separates surely", way, separator] = float(weights[grouped & ~read_too].sum())
    return numbers


def _of_dates(evidence: Evidence, texts: Any, weights: Floats) -> Flags:
    """Add the evidence on dates and times of day; return which texts have the shape of one of these."""
    _, shaped = times_of(texts)
    _add_ways(evidence, {Written("times"): shaped}, weights)
    read = {form: dates_of(texts, form) for form in DATE_FORMS}
    shaped = np.any([shaped, *(dates.shaped for dates in read.values())], axis=0)
    for zoned in (False, True):
        right = {form: dates.right & (dates.zoned == zoned) for form, dates in read.items()}
        ways = {form: Written("dates", form, zoned=zoned) for form in DATE_FORMS if right[form].any()}
        _add_ways(evidence, {way: right[form] for form, way in ways.items()}, weights)
        for form, way in ways.items():
            marks = read[form].marks.fill_null("").dictionary_encode()
            codes = marks.indices.to_numpy()
            for at, mark in enumerate(marks.dictionary.to_pylist()):
                marked = right[form] & (codes == at)
                use = "uses", "dates", "", mark
                evidence[use] = max(evidence.get(use, 0.0), float(weights[marked].sum()))
                for other, another in ways.items():
                    differ = marked & right[other] & (read[form].microseconds != read[other].microseconds)
                    evidence["contested", way, another, mark] = float(weights[differ].sum())
            for other, another in ways.items():
                evidence["only", way, another] = float(weights[right[form] & ~right[other]].sum())
    return shaped


def _add_ways(evidence: Evidence, ways: dict[Written, Flags], weights: Floats) -> None:
    for way, right in ways.items():
        evidence["read", way] = float(weights[right].sum())
        evidence["different", way] = float(right.sum())
