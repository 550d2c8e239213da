"""Formats of numbers and names, the same in the terminal and on the page."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple


def number(value: float, digits: int = 4) -> str:
    """Format a number to so many significant digits, without an exponent from 1e-7 to 1e7.

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


def decimal(value: float) -> str:
    """Format a number to three decimals; "0" stands for exactly 0 alone.

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


class Unit(NamedTuple):
    """A unit of divergences that suits their size: its name, and how many of it make a nat."""

    name: str
    per_nat: float

    @classmethod
    def of(cls, value: float) -> Unit:
        """Return nat, mnat or µnat for a divergence in nats.

        Example:
            >>> [Unit.of(x).name for x in (2.0, 0.05, 0.0002, 1e-12, float("inf"))]
            ['nat', 'mnat', 'µnat', 'nat', 'nat']
        """
        if 1e-9 <= value < 0.1:
            return cls("mnat", 1e3) if value >= 1e-3 else cls("µnat", 1e6)
        return cls("nat", 1.0)

    def text(self, value: float) -> str:
        """Format a divergence in nats with this unit.

        Example:
            >>> Unit.of(0.0002018).text(0.0002018)
            '202 µnat'
        """
        return f"{self.write([value])[0]} {self.name}"

    def write(self, values: Sequence[float]) -> list[str]:
        """Format divergences in nats as numbers of this unit, all with as many decimals.

        The smallest has three significant digits, or three decimals. "0" stands for exactly 0 alone.

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


def percent(proportion: float) -> str:
    """Format a proportion in percent; "100.00%" and "0.00%" stand for exactly 1 and 0 alone.

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
    """Format a probability in five characters; "0" and "1" stand for exact values alone.

    Example:
        >>> [probability(x) for x in (1.0, 0.99999, 0.25, 1e-9, 0.0, float("nan"))]
        ['1', '>.999', '0.250', '<.001', '0', 'n/a']
    """
    if math.isnan(value):
        return "n/a"
    if value in (0, 1):
        return f"{value:g}"
    return "<.001" if value < 0.0005 else ">.999" if value > 0.9995 else f"{value:.3f}"


def count(value: int) -> str:
    """Format an integer with thousands separators: ``12,345``."""
    return f"{value:,}"


def counted(value: int, noun: str, plural: str | None = None) -> str:
    """Format a number of things.

    Example:
        >>> counted(1, "row"), counted(1234, "row"), counted(2, "class", "classes")
        ('1 row', '1,234 rows', '2 classes')
    """
    return f"{count(value)} {noun if value == 1 else plural or noun + 's'}"


def visible(text: str, *, space: str = " ") -> str:
    """Return a text with marks for what cannot be seen: ``⏎`` for a line's end, ``⇥`` for a tab, ``\\x1b`` for others.

    Arguments:
        text: any text.
        space: what stands for a blank.

    Example:
        >>> visible(" a\\n\\x1b"), visible(" a", space="␣")
        (' a⏎\\\\x1b', '␣a')
    """
    marks = {"\n": "⏎", "\t": "⇥", "\r": "␍", " ": space}
    return "".join(marks.get(char, char if char.isprintable() else f"\\x{ord(char):02x}") for char in text)


def token_text(tokens: Sequence[str] | None, index: int) -> str:
    """Return the text of a class of a language model, or its number."""
    return tokens[index] if tokens is not None and index < len(tokens) else f"[{index}]"
