"""Numbers, dates and times of day that are written as text: the evidence on the way of writing, and the values.

`evidence_of` returns the weight of one side's texts that each way reads, and of the texts that only one of two ways
reads. The evidence of parts of a table adds up. `kullback.tables.columns.text_types` decides from the evidence of all
sides. `parse` returns the values of texts that are written in a known way.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import permutations
from typing import Any, Literal, NamedTuple

import numpy as np

from kullback.common.arrays import Flags, Floats, Integers
from kullback.common.plain_values import JsonObject
from kullback.tables.columns.types import ArrowArray, Field, call, is_missing

What = Literal["numbers", "dates", "times"]
# Each letter is a part of a date: y is the year, m the month, d the day, and b the name of a month.
DATE_FORMS = ("ymd", "dmy", "mdy", "dby", "bdy")
DECIMALS = ".,"
SEPARATORS = ",.'\u2019 \u00a0\u202f"  # the characters that may separate thousands


class Written(NamedTuple):
    """A way of writing numbers, dates or times of day.

    Attributes:
        what: ``"numbers"``, ``"dates"`` or ``"times"``.
        form: the decimal separator of numbers, or the order of a date's parts (`DATE_FORMS`); empty for times of day.
        unit: the sign of a percentage or a currency before or after each number; empty if there is none.
        separators: the characters that separate thousands.
        zoned: whether each date has a time zone.
    """

    what: What
    form: str = ""
    unit: str = ""
    separators: str = ""
    zoned: bool = False

    def to_object(self) -> JsonObject:
        """Return an object of JSON; empty fields are left out."""
        return {name: value for name, value in self._asdict().items() if value}

    @staticmethod
    def from_object(written: JsonObject) -> Written:
        """Return the way of writing from the result of `to_object`; refuse an unknown way."""
        way = Written(**written)
        forms: dict[Any, tuple[str, ...]] = {"numbers": (".", ","), "dates": DATE_FORMS, "times": ("",)}
        if way.form not in forms.get(way.what, ()) or not all(isinstance(part, str) for part in way[:4]):
            raise ValueError("an unknown way of writing numbers")
        separators = set(way.separators)
        if (
            len(way.unit) > 1
            or not separators <= set(SEPARATORS) - {way.form}
            or not isinstance(way.zoned, bool)
        ):
            raise ValueError("an unknown way of writing numbers")
        return way

    def means_like(self, other: Written | None) -> bool:
        """Return whether values in two ways of writing have the same meaning; None means values that are not text."""
        if other is None:
            return self.what != "times" and self.unit not in _PARTS_OF_WHOLE
        return (self.what, self.form, self.unit) == (other.what, other.form, other.unit)

    def field(self, name: str) -> Field:
        """Return the field of a column with values in this way; times of day are numeric, in seconds."""
        if self.what == "dates":
            return Field(name, "datetime", zoned=self.zoned)
        return Field(name, "numeric")

    def __str__(self) -> str:
        """The description of the way of writing."""
        if self.what == "times":
            return "times of day, in seconds"
        if self.what == "dates":
            names = {"y": "year", "m": "month", "d": "day", "b": "name of the month"}
            return f"dates ({', '.join(names[part] for part in self.form)})"
        unit = f", in {self.unit}" if self.unit else ""
        return f"numbers (decimal {'point' if self.form == '.' else 'comma'}{unit})"


_PARTS_OF_WHOLE = ("%", "\u2030")
_BLANKS = r"[ \t\x{a0}\x{202f}]*"
_SIGN = r"[-+\x{2212}]?"
_UNIT = r"[%\x{2030}\p{Sc}]"
_INFINITY = "[iI][nN][fF](?:[iI][nN][iI][tT][yY])?"
# Codes are digits that begin with 0, such as postal codes, or more than 15 digits, which float64 cannot hold exactly.
_CODE = rf"^{_BLANKS}(?:0[0-9]+|[0-9]{{16,}}){_BLANKS}$"
_MAY_BE = (
    r"^[^A-Za-z]*[0-9][^A-Za-z]*(?:[eE][-+]?[0-9]+)?[^A-Za-z]*$|[0-9][-/.:][0-9]"
    r"|[0-9][- .]+[A-Za-z]{3,9}\.?[- ,]+[0-9]|^[ \t]*[A-Za-z]{3,9}\.? +[0-9]{1,2},? +[0-9]{2}"
)
_TIME = (
    r"(?P<hour>[0-9]{1,2}):(?P<minute>[0-9]{2})(?::(?P<second>[0-9]{2})(?:[.,](?P<part>[0-9]{1,9}))?)?"
    r"(?: ?(?P<half>[AaPp][Mm]))?"
)
_ZONE = r"(?: ?(?P<zone>Z|UTC|GMT|[-+][0-9]{2}(?::?[0-9]{2})?))?"
_YEAR, _MONTH, _NAME = "(?P<year>[0-9]{4}|[0-9]{2})", "(?P<month>[0-9]{1,2})", r"(?P<name>[A-Za-z]{3,9})\.?"
_DAY, _FIRST, _SECOND = "(?P<day>[0-9]{1,2})", "(?P<mark>[-/.])", "(?P<again>[-/.])"
_DATES = {
    "ymd": f"{_YEAR}{_FIRST}{_MONTH}{_SECOND}{_DAY}",
    "dmy": f"{_DAY}{_FIRST}{_MONTH}{_SECOND}{_YEAR}",
    "mdy": f"{_MONTH}{_FIRST}{_DAY}{_SECOND}{_YEAR}",
    "dby": rf"{_DAY}(?P<mark>[- .]+){_NAME}[- ,]+{_YEAR}",
    "bdy": rf"{_NAME}(?P<mark> +){_DAY},? +{_YEAR}",
}
_MONTHS = (
    "january", "february", "march", "april", "may", "june", "july", "august", "september", "october", "november",
    "december",
)  # fmt: skip
_PIVOT = 69  # two-digit years from 69 on are in the 20th century, as in POSIX
_MICROSECONDS = 1_000_000
_DAY_OF_MICROSECONDS = 86_400 * _MICROSECONDS


def are_numbers(texts: Any, way: Written) -> Flags:
    """Return which texts are numbers in this way of writing; a number has only one kind of thousands separator."""
    point = f"[{way.form}]"
    wholes = "".join(rf"|[1-9][0-9]{{0,2}}(?:[{each}][0-9]{{3}})+" for each in way.separators)
    plain = f"(?:[0-9]+(?:{point}[0-9]*)?|{point}[0-9]+)"
    body = f"(?:{plain}(?:[eE][-+]?[0-9]+)?|(?:[0-9]+{wholes})(?:{point}[0-9]*)?|{_INFINITY})"
    unsigned, signed = body, _SIGN + _BLANKS + body
    if way.unit:
        unit = f"[{way.unit}]"
        unsigned = f"(?:{unit}{_BLANKS}{body}|{body}{_BLANKS}{unit})"
        signed = f"(?:{_SIGN}{_BLANKS}{unsigned}|{unit}{_BLANKS}{_SIGN}{body})"
    accounts = rf"{unsigned}{_BLANKS}-|\({_BLANKS}{unsigned}{_BLANKS}\)"
    return _matches(texts, f"^{_BLANKS}(?:{signed}|{accounts}){_BLANKS}$")


def units_of(texts: Any) -> Any:
    """Return the first sign of a percentage or a currency in each text; the sign is missing for texts without one."""
    return _extracted(texts, f"(?P<unit>{_UNIT})")["unit"]


def are_codes(texts: Any) -> Flags:
    """Return which texts are digits that begin with 0, or more than 15 digits."""
    return _matches(texts, _CODE)


def are_digits(texts: Any) -> Flags:
    """Return which texts are digits."""
    return _matches(texts, rf"^{_BLANKS}[0-9]+{_BLANKS}$")


def may_be_values(texts: Any) -> Flags:
    """Return which texts may be numbers, dates or times of day, by a quick test that excludes most names."""
    return _matches(texts, _MAY_BE)


def contain(texts: Any, part: str) -> Flags:
    """Return which texts contain a given string."""
    import pyarrow.compute as pc

    return _flags(call("match_substring", texts, options=pc.MatchSubstringOptions(part)))


def _numbers(texts: Any, way: Written) -> Floats:
    import pyarrow as pa
    import pyarrow.compute as pc

    negative = _matches(texts, r"^[^0-9.,iI]*[-\x{2212}(]|-\s*$")
    for each in way.separators:
        texts = call("replace_substring", texts, options=pc.ReplaceSubstringOptions(each, ""))
    strip = pc.ReplaceSubstringOptions(rf"^[^0-9iI{way.form}]+|[^0-9a-zA-Z{way.form}]+$", "")
    texts = call("replace_substring_regex", texts, options=strip)
    texts = call("replace_substring", texts, options=pc.ReplaceSubstringOptions(way.form, "."))
    absolute = texts.cast(pa.float64()).to_numpy(zero_copy_only=False)
    return np.where(negative, -absolute, absolute)


class Dates(NamedTuple):
    """The microseconds since 1970 of the dates that texts contain, in UTC if a text has a time zone.

    `right` masks the dates, and `shaped` also impossible dates and unknown months. `marks` has the separators.
    """

    microseconds: Integers
    right: Flags
    zoned: Flags
    marks: Any
    shaped: Flags


def dates_of(texts: Any, form: str) -> Dates:
    """Return the dates that texts contain, with the parts of each date in one order."""
    import pyarrow as pa

    parts = _extracted(texts, rf"^{_BLANKS}{_DATES[form]}(?:[T ,]+{_TIME}{_ZONE})?{_BLANKS}$")
    shaped = ~is_missing(parts["day"])
    if not shaped.any():
        return Dates(np.zeros(len(shaped), np.int64), shaped, shaped, parts["mark"], shaped)
    lengths = {name: _lengths(parts[name]) for name in ("year", "month", "day", "zone") if name in parts}
    if "b" not in form:
        # A version number such as 1.10.11 is not a date.
        shaped &= (lengths["year"] == 4) | ((lengths["month"] == 2) & (lengths["day"] == 2))
        shaped &= _flags(call("equal", parts["mark"], parts["again"]))
    year, day = _whole(parts["year"]), _whole(parts["day"])
    year = year + np.where(lengths["year"] == 4, 0, np.where(year < _PIVOT, 2000, 1900))
    month = _named_month(parts["name"]) if "b" in form else _whole(parts["month"])
    of_day, right = _times(parts)
    right &= shaped & (month >= 1) & (month <= 12) & (day >= 1) & (year >= 1)
    months = np.where(right, (year - 1970) * 12 + month - 1, 0).astype("datetime64[M]")
    days = months.astype("datetime64[D]") + np.where(right, day - 1, 0)
    right &= days.astype("datetime64[M]") == months  # February has no 30th day
    moments = days.astype(np.int64) * _DAY_OF_MICROSECONDS + of_day
    zoned = lengths["zone"] > 0
    if zoned.any():
        moments = moments - _ahead(parts["zone"])
    return Dates(moments, right, zoned, parts["mark"].cast(pa.large_string()), shaped)


def times_of(texts: Any) -> tuple[Floats, Flags]:
    """Return each text as seconds since midnight, and whether the text is a time of day."""
    parts = _extracted(texts, rf"^{_BLANKS}{_TIME}{_BLANKS}$")
    shaped = ~is_missing(parts["hour"])
    if not shaped.any():
        return np.zeros(len(shaped)), shaped
    of_day, right = _times(parts)
    return of_day / _MICROSECONDS, right & shaped


def parse(array: Any, way: Written) -> Any:
    """Return the values of large strings: float64, or timestamps in microseconds; missing if not in this way."""
    import pyarrow as pa

    encoded = array.dictionary_encode()
    texts = encoded.dictionary
    if way.what == "dates":
        dates = dates_of(texts, way.form)
        right = dates.right & (dates.zoned == way.zoned)
        values = pa.array(dates.microseconds, pa.int64(), mask=~right).cast(pa.timestamp("us"))
    elif way.what == "times":
        seconds, right = times_of(texts)
        values = pa.array(seconds, pa.float64(), mask=~right)
    else:
        right = are_numbers(texts, way)
        numbers = np.full(len(texts), np.nan)
        numbers[right] = _numbers(texts.filter(pa.array(right)), way)
        values = pa.array(numbers, pa.float64(), mask=~right)
    return values.take(encoded.indices)


def _times(parts: dict[str, ArrowArray]) -> tuple[Integers, Flags]:
    """Return the microseconds since midnight, 0 for texts without a time, and whether the time of day exists."""
    hour, minute, second = (_whole(parts[name]) for name in ("hour", "minute", "second"))
    right = (hour < 24) & (minute < 60) & (second < 60)
    if (halves := _lengths(parts["half"]) > 0).any():
        right &= ~halves | ((hour >= 1) & (hour <= 12))
        afternoon = _matches(parts["half"], "[pP]")
        hour = np.where(halves, hour % 12 + np.where(afternoon, 12, 0), hour)
    of_day = ((hour * 60 + minute) * 60 + second) * _MICROSECONDS
    if (digits := _lengths(parts["part"])).any():
        of_day += _whole(parts["part"]) * 10 ** np.maximum(6 - digits, 0) // 10 ** np.maximum(digits - 6, 0)
    return of_day, right


def _ahead(zones: Any) -> Integers:
    """Return by how many microseconds each time zone is ahead of UTC."""

    def minutes(zone: str) -> int:
        digits = zone[1:].replace(":", "") if zone[:1] in ("+", "-") else ""
        ahead = 60 * int(digits[:2] or 0) + int(digits[2:] or 0)
        return -ahead if zone[:1] == "-" else ahead

    return _looked_up(zones, minutes) * 60 * _MICROSECONDS


def _named_month(names: Any) -> Integers:
    """Return the month for each English name or its first three letters; 0 for any other text."""
    numbers = {name: at for at, name in enumerate(_MONTHS, 1)} | {"sept": 9}
    numbers |= {name[:3]: at for at, name in enumerate(_MONTHS, 1)}
    return _looked_up(names, lambda name: numbers.get(name.lower(), 0))


def _looked_up(texts: Any, number_of: Callable[[str], int]) -> Integers:
    """Return the result of `number_of` for each text; a missing text counts as an empty text."""
    encoded = texts.fill_null("").dictionary_encode()
    numbers = np.array([number_of(text) for text in encoded.dictionary.to_pylist()], np.int64)
    return numbers[encoded.indices.to_numpy()]


def _whole(digits: Any) -> Integers:
    """Return each text of digits as an integer; 0 for an empty or missing text."""
    import pyarrow as pa

    if not _lengths(digits).any():
        return np.zeros(len(digits), np.int64)
    zero, nothing = pa.scalar("0", digits.type), pa.scalar("", digits.type)
    padded = call("binary_join_element_wise", zero, digits, nothing)
    return padded.fill_null("0").cast(pa.int64()).to_numpy(zero_copy_only=False)


def _lengths(texts: Any) -> Integers:
    """Return the number of characters of each text; 0 for a missing text."""
    lengths = call("utf8_length", texts).fill_null(0)
    return lengths.to_numpy(zero_copy_only=False).astype(np.int64)


def _extracted(texts: Any, pattern: str) -> dict[str, ArrowArray]:
    """Return the part of each text that matches each named group of a pattern; missing if the text does not match."""
    import pyarrow.compute as pc

    parts = call("extract_regex", texts, options=pc.ExtractRegexOptions(pattern))
    return {field.name: column for field, column in zip(parts.type, parts.flatten(), strict=True)}


def _matches(texts: Any, pattern: str) -> Flags:
    import pyarrow.compute as pc

    return _flags(call("match_substring_regex", texts, options=pc.MatchSubstringOptions(pattern)))


def _flags(answers: Any) -> Flags:
    """Return an Arrow array of booleans as a NumPy array; a missing value becomes False."""
    return answers.fill_null(False).to_numpy(zero_copy_only=False)


# A column of text with fewer different numbers may hold codes or ratings, which are categories.
FEWEST_NUMBERS = 20
_MOST_UNITS = 3  # only this many of the most frequent units are examined

# The weight of the texts with each property. Properties of texts are ("all",), ("codes",), ("shape", "numbers") ...
# Properties of a way are ("read", way), ("only", way, another), ("contested", way, another, character) ...
Evidence = dict[tuple[Any, ...], float]


def evidence_of(texts: Any, weights: Floats) -> Evidence:
    """Return the weights of the texts that each way of writing reads; `texts` are different large strings."""
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
