"""The one way in which the numbers or dates of a column of text are written, or the reason why there is none.

`evidence_of` weighs the texts of one side that each way reads, and those that only one of two ways reads. The evidence
of parts of a table adds up. `way_of` decides from the evidence of all sides.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import permutations
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

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

# With fewer different numbers a text column may hold codes or ratings, which are categories.
FEWEST_NUMBERS = 20
# A column is read as numbers if at least this share of each side's texts are some.
LEAST_SHARE = 0.9
# One of two ways is right if the other one alone reads at most a ninth of the texts that it alone reads. These have to
# be more than a few mistakes.
_RATIO = 9.0
_LEAST_EVIDENCE = 0.005
FEW = f"there are fewer than {FEWEST_NUMBERS} different ones"
_SAMPLE = 1000  # texts that show whether all have to be looked at
_SUSPECTED = 0.3
_MOST_UNITS = 3

# The weights of texts, by what they show: ("all",), ("codes",), ("shape", "numbers"), and of each way ("read", way),
# ("different", way), ("only", way, another), ("contested", way, another, character), ("uses", character) ...
Evidence = dict[tuple[Any, ...], float]


class NotRead(NamedTuple):
    """The reason why a column of text is not read as numbers or dates."""

    reason: str


def evidence_of(texts: Any, weights: Floats) -> Evidence:
    """Return the weights of texts that the ways of writing read.

    Arguments:
        texts: different texts, as an Arrow array of large strings, none missing.
        weights: the weight of each.
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
    # Workers send evidence without classes of this package.
    return {
        tuple(tuple(part) if isinstance(part, Written) else part for part in key): weight
        for key, weight in evidence.items()
        if weight
    }


def evidence_of_categories(column: ColumnProfile, fewest: int = FEWEST_NUMBERS) -> Evidence:
    """Return the evidence of the named categories of a column.

    Arguments:
        column: the column.
        fewest: with fewer categories, and where a part shows that most are neither numbers nor dates, the evidence is
            the weight alone.
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


def have_enough_values(columns: Iterable[ColumnProfile]) -> bool:
    """Return whether a column has enough different values on one side, so that they are no codes or ratings."""
    return any(
        column.column_type == "text" or len(column.categories) + len(column.buckets) >= FEWEST_NUMBERS
        for column in columns
    )


def texts_of(column: ColumnProfile) -> Any:
    """Return the named categories of a column as an Arrow array."""
    import pyarrow as pa

    return pa.array(list(column.categories), pa.large_string())


def shares(evidence: Evidence) -> dict[Literal["numbers", "dates"], float]:
    """Return the shares of the texts that are shaped like numbers and like dates; 0 if they are few different ones."""
    total = evidence.get(("all",), 0.0)
    return {
        what: evidence.get(("shape", what), 0.0) / total
        if total and evidence.get(("shapes", what), 0.0) >= FEWEST_NUMBERS
        else 0.0
        for what in ("numbers", "dates")
    }


def way_of(sides: Sequence[Evidence], column_type: str | None = None) -> Written | NotRead:
    """Return the one way in which a column is written.

    Arguments:
        sides: the evidence of each side that is text and has values.
        column_type: the type of the other side, ``"numeric"`` or ``"datetime"``; None if all sides are text.
    """
    likely = [_likely(side) for side in sides]
    ways = [way for way in likely[0] if all(way in of_side for of_side in likely)] if likely else []
    if column_type is not None:
        of_type = [way for way in ways if way.means_like(None) and way.field("").column_type == column_type]
        if ways and not of_type:
            return NotRead(f"the other side's values are not {ways[0]}")
        ways = of_type
    if not ways:
        differ = bool(likely) and all(likely)
        return NotRead(
            "P and Q write them differently" if differ else "fewer than 90 % are written in one way"
        )
    if ways[0].what == "numbers" and any(side.get(("codes",)) for side in sides):
        return NotRead("some begin with 0 or have more than 15 digits, as codes")
    if column_type is None and max(side["different", way] for side in sides for way in ways) < FEWEST_NUMBERS:
        return NotRead(FEW)
    rivals = {Written(*key[1]) for side in sides for key in side if key[0] == "read"}
    winners = [way for way in ways if all(_beats(way, rival, sides) for rival in rivals - {way})]
    if not winners:
        return NotRead(_doubt(ways[0], sides))
    best = max(winners, key=lambda way: sum(side["read", way] for side in sides))
    return best if best.what != "numbers" else best._replace(separators=_separators(best, sides))


def _of_numbers(evidence: Evidence, texts: Any, weights: Floats) -> Flags:
    """Add the evidence on numbers; return which texts are some."""
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
    """Add the evidence on dates and times of day; return which texts are some."""
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


def _likely(side: Evidence) -> list[Written]:
    """Return the ways that read most texts of a side."""
    least = LEAST_SHARE * side.get(("all",), 0.0)
    return [Written(*key[1]) for key, weight in side.items() if key[0] == "read" and weight >= least]


def _beats(way: Written, rival: Written, sides: Sequence[Evidence]) -> bool:
    """Return whether all texts that both ways read differently are certainly written in the first one."""
    for at, side in enumerate(sides):
        marks = _contested(way, rival, side)
        if not marks:
            continue
        own = _balance(way, rival, side)
        if own < 0 or (own == 0 and _divided(way, rival, side)):
            return False
        others = [
            _balance(way, rival, other)
            for place, other in enumerate(sides)
            if place != at and all(other.get(("uses", way.what, way.unit, mark)) for mark in marks)
        ]
        # Programs write a decimal point, and thousands would leave some numbers without one.
        usual = way.what == "numbers" and way.form == "." and marks == ["."] and not side.get(("plain", way))
        if own == 0 and max(others, default=0) <= 0 and not (usual and min(others, default=0) >= 0):
            return False
    # A side without contested texts may show that the other way is the right one.
    return not (
        any(_contested(way, rival, side) for side in sides)
        and min(_balance(way, rival, side) for side in sides) < 0
    )


def _contested(way: Written, rival: Written, side: Evidence) -> list[str]:
    """Return the characters of the texts that both ways read, with different values."""
    return [key[3] for key in side if key[:3] == ("contested", way, rival)]


def _balance(way: Written, rival: Written, side: Evidence) -> int:
    """Return 1 if texts that only one way reads show that the first one is right, -1 for the second one, else 0."""
    first, second = side.get(("only", way, rival), 0.0), side.get(("only", rival, way), 0.0)
    least = _LEAST_EVIDENCE * side["all",]
    return int(first > max(least, _RATIO * second)) - int(second > max(least, _RATIO * first))


def _divided(way: Written, rival: Written, side: Evidence) -> bool:
    return ("only", way, rival) in side or ("only", rival, way) in side


def _separators(way: Written, sides: Sequence[Evidence]) -> str:
    """Return the separators of thousands; a doubtful one is none where some texts have the other decimal separator."""
    rival = way._replace(form="," if way.form == "." else ".")
    doubtful = any(side.get(("only", rival, way)) for side in sides)
    kind = "separates surely" if doubtful else "separates"
    return "".join(each for each in SEPARATORS if any(side.get((kind, way, each)) for side in sides))


def _doubt(way: Written, sides: Sequence[Evidence]) -> str:
    """Return the reason why no way is certain."""
    if way.what == "dates":
        return "the order of day, month and year is not certain"
    marks = {key[3] for side in sides for key in side if key[0] == "contested"}
    of_marks = " and ".join("commas" if mark == "," else "points" for mark in sorted(marks))
    return f"it is not certain whether {of_marks} are decimal ones or separate thousands"
