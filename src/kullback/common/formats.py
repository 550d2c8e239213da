"""Formats of numbers and names, which all media share: single lines, the terminal, the page and plots."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

_SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
_BYTE_UNITS = ((1e9, "GB"), (1e6, "MB"), (1e3, "kB"), (1.0, "B"))


def number(value: float, digits: int = 4) -> str:
    """Format a number with `digits` significant digits, without an exponent from 1e-7 to 1e7.

    Example:
        >>> [number(x) for x in (0.0, 0.5, 1.23456e-05, 12.3456, 12345.6, float("inf"), float("nan"))]
        ['0', '0.5000', '0.00001235', '12.35', '12,350', 'inf', 'n/a']
        >>> number(1.5e-12)
        '1.500e-12'
    """
    if math.isnan(value):
        return "n/a"
    if value == 0 or math.isinf(value):
        return f"{value:g}"
    rounded = float(f"{value:.{digits - 1}e}")
    if not 1e-7 <= abs(rounded) < 1e7:
        return f"{value:.{digits - 1}e}"
    decimals = digits - 1 - math.floor(math.log10(abs(rounded)))
    return f"{rounded:,.{max(decimals, 0)}f}"


def significant(value: float, digits: int = 4) -> str:
    """Format a number with at most `digits` significant digits, and with an exponent if that is shorter.

    Example:
        >>> significant(0.25), significant(1.23456e-05), significant(2 / 3, 2), significant(float("nan"))
        ('0.25', '1.235e-05', '0.67', 'nan')
    """
    return f"{value:.{digits}g}"


def plus_minus(mean: float, low: float, high: float) -> str:
    """Return a number with a symmetric margin of two digits; the margin encloses the interval from `low` to `high`.

    Example:
        >>> plus_minus(0.0021345, 0.00189, 0.00241), plus_minus(0.0, 0.0, 0.0)
        ('0.00213 ± 0.00028', '0 ± 0')
    """
    reach = max(high - mean, mean - low)
    if reach <= 0:
        return f"{significant(mean)} ± 0"
    decimals = max(0, 1 - math.floor(math.log10(reach)))
    rounded = round(mean, decimals)
    reach = math.ceil(max(high - rounded, rounded - low) * 10**decimals) / 10**decimals
    return f"{rounded:.{decimals}f} ± {reach:.{decimals}f}"


def decimal(value: float) -> str:
    """Format a number with three decimals; only exactly 0 becomes "0".

    Example:
        >>> [decimal(x) for x in (0.0, 0.0004, 0.1234, 12.3456, 1234.5, float("inf"), float("nan"))]
        ['0', '<0.001', '0.123', '12.346', '1,234', 'inf', 'n/a']
    """
    if math.isnan(value):
        return "n/a"
    if value == 0 or math.isinf(value):
        return f"{value:g}"
    if 0 < value < 0.0005:
        return "<0.001"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3f}"


def p_value(value: float) -> str:
    """Format a p-value with three decimals; a p-value of 0 becomes "<0.001".

    Example:
        >>> [p_value(x) for x in (1.0, 0.8154, 0.0123, 3e-5, 0.0, float("nan"))]
        ['1.000', '0.815', '0.012', '<0.001', '<0.001', 'n/a']
    """
    return decimal(value or 1e-300)


def interval(ends: tuple[float, float] | None, write: Callable[[float], str] = number) -> str:
    """Format the limits of an interval with the function `write`; without an interval, return "n/a".

    Example:
        >>> interval((0.05, float("inf")), decimal), interval(None)
        ('0.050 to inf', 'n/a')
    """
    return "n/a" if ends is None else " to ".join(map(write, ends))


def span(low: float, high: float, write: Callable[[float], str] = number) -> str:
    """Format the smallest and the largest of some numbers, or one number if both texts are equal.

    Example:
        >>> span(1.0, 2.0), span(1.0, 1.0)
        ('1.000 to 2.000', '1.000')
    """
    texts = dict.fromkeys(map(write, (low, high)))
    return " to ".join(texts)


class Unit(NamedTuple):
    """A unit of divergences: the name of the unit, and the number of units in a nat."""

    name: str
    per_nat: float

    @classmethod
    def of(cls, value: float) -> Unit:
        """Return the unit (nat, mnat or µnat) that suits a divergence in nats.

        Example:
            >>> [Unit.of(x).name for x in (2.0, 0.05, 0.0002, 1e-12, float("inf"))]
            ['nat', 'mnat', 'µnat', 'nat', 'nat']
        """
        if 1e-9 <= value < 0.1:
            return cls("mnat", 1e3) if value >= 1e-3 else cls("µnat", 1e6)
        return cls("nat", 1.0)

    def text(self, value: float) -> str:
        """Convert a divergence from nats to this unit, and format it with the name of the unit.

        Example:
            >>> Unit.of(0.0002018).text(0.0002018)
            '202 µnat'
        """
        return f"{self.write([value])[0]} {self.name}"

    def write(self, values: Sequence[float]) -> list[str]:
        """Convert divergences from nats to this unit, and format them with the same number of decimals.

        The smallest number has three significant digits, but at most three decimals. Only exactly 0 becomes "0".

        Example:
            >>> Unit.of(0.0002).write([0.0002018, 0.0001845, 0.0057474, 0.0, float("inf")])
            ['202', '184', '5,747', '0', 'inf']
            >>> Unit.of(0.02).write([0.0123, 0.2, 1e-9]), Unit.of(1e-12).write([1e-12])
            (['12.300', '200.000', '<0.001'], ['1.00e-12'])
        """
        scaled = [value * self.per_nat for value in values]
        sizes = [abs(value) for value in scaled if value and math.isfinite(value)]
        smallest, largest = min(sizes, default=1.0), max(sizes, default=1.0)
        decimals = min(3, max(0, 2 - math.floor(math.log10(smallest))))
        texts: list[str] = []
        for value in scaled:
            if value == 0 or not math.isfinite(value):
                texts.append("n/a" if math.isnan(value) else f"{value:g}")
            elif largest < 1e-3:
                texts.append(f"{value:.2e}")
            else:
                texts.append("<0.001" if 0 < value < 0.0005 else f"{value:,.{decimals}f}")
        return texts


def unit_of_base(base: float | None) -> str:
    """Return the unit of a divergence whose logarithm has the given base; None is the natural logarithm.

    Example:
        >>> [unit_of_base(base) for base in (None, 2, 10, 3)]
        ['nats', 'bits', 'hartleys', 'in base 3']
    """
    units: dict[float | None, str] = {None: "nats", 2: "bits", 10: "hartleys"}
    return units.get(base, f"in base {base:g}" if base else "")


def level_of(confidence: float | None) -> str:
    """Return the meaning of the ends of an interval, for the axis of a plot and the heading of a table.

    Example:
        >>> level_of(0.9), level_of(None)
        ('90 % interval', 'interval')
    """
    return "interval" if confidence is None else f"{100 * confidence:g} % interval"


def percent(proportion: float) -> str:
    """Format a proportion in percent; only exactly 1 becomes "100.00%", and only exactly 0 becomes "0.00%".

    Example:
        >>> [percent(x) for x in (1.0, 0.99999, 0.98765, 1e-6, 0.0)]
        ['100.00%', '>99.99%', '98.77%', '<0.01%', '0.00%']
    """
    if math.isnan(proportion):
        return "n/a"
    if 0.99995 <= proportion < 1:
        return ">99.99%"
    if 0 < proportion < 0.00005:
        return "<0.01%"
    return f"{100 * proportion:.2f}%"


def probability(value: float) -> str:
    """Format a probability with at most five characters; only exactly 0 becomes "0", and only exactly 1 becomes "1".

    Example:
        >>> [probability(x) for x in (1.0, 0.99999, 0.25, 1e-9, 0.0, float("nan"))]
        ['1', '>.999', '0.250', '<.001', '0', 'n/a']
    """
    if math.isnan(value):
        return "n/a"
    if value in (0, 1):
        return f"{value:g}"
    return "<.001" if value < 0.0005 else ">.999" if value > 0.9995 else f"{value:.3f}"


def on_axis(value: float) -> str:
    """Format a number on an axis, with thousands separators below 1e7, and an exponent only for extreme numbers.

    Example:
        >>> [on_axis(x) for x in (1234.0, -0.5, 1e20, 12345678)]
        ['1,234', '−0.5', '1e20', '12345678']
    """
    if isinstance(value, int) and abs(value) >= 1e7:
        text = f"{value}"
    elif isinstance(value, int) or float(value).is_integer():
        exact = f"{value:.17g}" if abs(value) < 1e17 else f"{value:.3g}"
        text = f"{int(value):,}" if abs(value) < 1e7 else exact
    else:
        text = f"{value:,.10g}" if 1e-4 <= abs(value) < 1e7 else f"{value:.10g}"
    return text.replace("-", "−").replace("e+", "e")


def power_of_ten(value: float) -> str:
    """Format a power of ten on a logarithmic axis; return an empty text for other numbers.

    Example:
        >>> [power_of_ten(value) for value in (1e-12, 0.1, 1.0, 1000.0, 20.0)]
        ['10⁻¹²', '10⁻¹', '1', '10³', '']
    """
    exponent = round(math.log10(value)) if value > 0 else 0
    if not math.isclose(value, 10.0**exponent):
        return ""
    return f"10{str(exponent).translate(_SUPERSCRIPTS)}" if exponent else "1"


def byte_unit(size: float) -> tuple[float, str]:
    """Return the unit that suits a size: the number of bytes in the unit, and the name of the unit.

    Example:
        >>> byte_unit(4_920_000_000), byte_unit(12)
        ((1000000000.0, 'GB'), (1.0, 'B'))
    """
    return next((unit for unit in _BYTE_UNITS if size >= unit[0]), _BYTE_UNITS[-1])


def byte_count(size: int | None) -> str:
    """Format a size in bytes; return an empty text if the size is None.

    Example:
        >>> byte_count(4_920_000_000), byte_count(740_000), byte_count(None)
        ('4.92 GB', '740 kB', '')
    """
    if size is None:
        return ""
    unit, name = byte_unit(size)
    return f"{significant(size / unit, 3)} {name}"


def bit_count(value: float) -> str:
    """Format a number of bits with two decimals, such as ``4.85``."""
    return f"{value:.2f}"


def count(value: int) -> str:
    """Format an integer with thousands separators, such as ``12,345``."""
    return f"{value:,}"


def counted(value: int, noun: str, plural: str | None = None) -> str:
    """Format a number with a noun in the singular or plural.

    Example:
        >>> counted(1, "row"), counted(1234, "row"), counted(2, "class", "classes")
        ('1 row', '1,234 rows', '2 classes')
    """
    return f"{count(value)} {noun if value == 1 else plural or noun + 's'}"


def listed(names: Sequence[str], most: int) -> str:
    """Return the first names, and the number of the others.

    Example:
        >>> listed(["a", "b", "c"], 2)
        'a, b and 1 more'
    """
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def visible(text: str, *, space: str = " ") -> str:
    """Return a text with marks for invisible characters: ``⏎`` for a newline, ``⇥`` for a tab, and codes (``\\x1b``).

    Example:
        >>> visible(" a\\n\\x1b"), visible(" a", space="␣")
        (' a⏎\\\\x1b', '␣a')
    """
    marks = {"\n": "⏎", "\t": "⇥", "\r": "␍", " ": space}
    return "".join(marks.get(char, char if char.isprintable() else f"\\x{ord(char):02x}") for char in text)


def shortened(text: str, longest: int) -> str:
    """Return a text with at most `longest` characters; an ellipsis replaces the end of a longer text.

    Example:
        >>> shortened("divergence", 10), shortened("divergence", 5)
        ('divergence', 'dive…')
    """
    return text if len(text) <= longest else f"{text[: longest - 1]}…"


def token_text(tokens: Sequence[str] | None, index: int) -> str:
    """Return the text of a class of a language model, or the class index in brackets if the text is unknown."""
    return tokens[index] if tokens is not None and index < len(tokens) else f"[{index}]"
