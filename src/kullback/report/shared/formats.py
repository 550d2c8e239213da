"""Formats of numbers and names, the same in the terminal and on the page."""

from __future__ import annotations

import math

from kullback.errors import printable

__all__ = ["count", "number", "percent", "printable", "probability"]


def number(value: float, digits: int = 4) -> str:
    """Format a number to so many significant digits.

    Example:
        >>> [number(x) for x in (0.0, 0.5, 1.23456e-05, 12.3456, float("inf"), float("nan"))]
        ['0', '0.5000', '1.235e-05', '12.35', 'inf', 'n/a']
    """
    if math.isnan(value):
        return "n/a"
    if value == 0 or math.isinf(value):
        return f"{value:g}"
    if 1e-4 <= abs(value) < 10**digits:
        return f"{value:#.{digits}g}".removesuffix(".")
    return f"{value:.{digits - 1}e}"


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
        >>> [probability(x) for x in (1.0, 0.99999, 0.25, 1e-9, 0.0)]
        ['1', '>.999', '0.250', '<.001', '0']
    """
    if value in (0, 1):
        return f"{value:g}"
    return "<.001" if value < 0.0005 else ">.999" if value > 0.9995 else f"{value:.3f}"


def count(value: int) -> str:
    """Format an integer with thousands separators: ``12,345``."""
    return f"{value:,}"
