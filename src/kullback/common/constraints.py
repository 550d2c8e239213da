"""Constraints on arguments (numbers, words, flags, functions, generators), and the errors for invalid arguments.

A function declares the constraints of its arguments once, above its definition, and checks them in one call:

    _ARGUMENTS = Arguments("two_sample_test", permutations=Whole(least=1, example=999), generator=GENERATOR)

    permutations, generator = _ARGUMENTS.check(permutations=permutations, generator=generator).values()

`tests/common/test_constraints.py` tries all values that a declaration refuses, and all remedies.

This module does not import torch, because the command line reads constraints for its help, which must be quick.
"""

from __future__ import annotations

import difflib
import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from numbers import Real
from types import ModuleType
from typing import Any, TypeVar, cast

from kullback.errors import KullbackError, Name, Text, invalid_type, invalid_value, safe_repr

# `_MOST` is the largest integer that fits into a tensor of int64.
_MOST = 2**63 - 1
_Settings = TypeVar("_Settings", bound=Any)


@dataclass(frozen=True, kw_only=True)
class Constraint(ABC):
    """The accepted values of an argument.

    Attributes:
        example: an accepted value, which the error message suggests.
        instead: the text of the remedy, if the example is not enough; ``{call}`` is replaced by the name of the call.
        wanted: a description of the accepted values; if `wanted` is empty, `described` derives it.
        note: text appended to the derived description, such as the meaning of the number.
        optional: whether `Arguments.check` also accepts None.
        strict: if True, the error for a value of the wrong type (`has_type` is False) is an `ArgumentTypeError`;
            otherwise every error is an `ArgumentValueError`.
    """

    example: Any = None
    instead: str = ""
    wanted: str = ""
    note: str = ""
    optional: bool = False
    strict: bool = False

    @abstractmethod
    def check(self, call: str, argument: str, value: Any) -> Any:
        """Return the value, converted to the type of the constraint; raise `refusal` if the value is not accepted."""

    def described(self) -> str:
        """Return a description of the accepted values, such as "a number between 0 and 1"."""
        return self.wanted

    def has_type(self, value: object) -> bool:
        """Return whether the value has the type that the constraint accepts."""
        del value
        return False

    def refusal(self, call: str, argument: str, value: object) -> KullbackError:
        """Return the error (the refusal) for a value that is not accepted."""
        error = invalid_type if self.strict and not self.has_type(value) else invalid_value
        wanted = self.wanted or self.described() + self.note + (", or None" if self.optional else "")
        before, named, after = self.instead.partition("{call}")
        remedy: Text = (before, Name(call), after) if named else self.instead
        instead = remedy or {argument: self.example_for(value)}
        return error(call, argument, wanted=wanted, got=safe_repr(value), instead=instead)

    def example_for(self, value: object) -> Any:
        """Return the accepted value that the error for another value names."""
        del value
        return self.example


@dataclass(frozen=True, kw_only=True)
class Number(Constraint):
    """A real number within bounds: `least` and `most` are inclusive bounds, `above` and `below` exclusive bounds.

    Example:
        >>> Number(above=0, below=1, example=0.5).check("f", "share", 1)
        Traceback (most recent call last):
            ...
        kullback.errors.ArgumentValueError: f(share=...): wanted a number between 0 and 1; got 1. Write: share=0.5
    """

    noun: str = "number"
    least: float = -math.inf
    above: float | None = None
    most: float = math.inf
    below: float | None = None
    # `low` and `high` are the smallest and the largest accepted float.
    low: float = field(init=False)
    high: float = field(init=False)

    def __post_init__(self) -> None:
        low = self.least if self.above is None else math.nextafter(self.above, math.inf)
        high = self.most if self.below is None else math.nextafter(self.below, -math.inf)
        object.__setattr__(self, "low", low)
        object.__setattr__(self, "high", high)

    def check(self, call: str, argument: str, value: Any) -> Any:
        number = value if type(value) is float else _inputs().number_from(value)
        if self.low <= number <= self.high:
            return number
        raise self.refusal(call, argument, value)

    def described(self) -> str:
        lower = f"of {self.least:g} or more" if self.above is None else f"above {self.above:g}"
        if self.most == math.inf and self.below in (None, math.inf):
            finite = "" if self.below is None else "finite "
            if 0 in (self.above, self.least):
                return f"a {finite}{'positive' if self.above == 0 else 'non-negative'} {self.noun}"
            return f"a {finite}{self.noun} {lower}"
        if self.least == -math.inf and self.above is None:
            end = f"of at most {self.most:g}" if self.below is None else f"below {self.below:g}"
            return f"a {self.noun} {end}"
        if self.above is None and self.below is None:
            return f"a {self.noun} from {self.least:g} to {self.most:g}"
        if self.above is not None and self.below is not None:
            return f"a {self.noun} between {self.above:g} and {self.below:g}"
        upper = f"at most {self.most:g}" if self.below is None else f"below {self.below:g}"
        return f"a {self.noun} {lower}, {upper}"

    def has_type(self, value: object) -> bool:
        return isinstance(value, Real)


@dataclass(frozen=True, kw_only=True)
class Whole(Constraint):
    """An integer from `least` to `most`; the default bounds are 0 and the largest int64.

    Example:
        >>> Whole(least=1, example=999).check("f", "draws", 0.5)
        Traceback (most recent call last):
            ...
        kullback.errors.ArgumentValueError: f(draws=...): wanted an integer of 1 or more; got 0.5. Write: draws=999
    """

    least: int = 0
    most: int = _MOST

    def check(self, call: str, argument: str, value: Any) -> Any:
        number = value if type(value) is int else _inputs().whole_from(value)
        if number is not None and self.least <= number <= self.most:
            return number
        raise self.refusal(call, argument, value)

    def described(self) -> str:
        if self.most == _MOST:
            return f"an integer of {self.least} or more"
        return f"an integer from {self.least} to {self.most:,}"

    def has_type(self, value: object) -> bool:
        return _inputs().whole_from(value) is not None

    def refusal(self, call: str, argument: str, value: Any) -> KullbackError:
        try:
            is_too_large = int(value) > _MOST == self.most
        except (TypeError, ValueError, OverflowError, RuntimeError):
            is_too_large = False
        if is_too_large and not self.wanted:  # the usual description does not contain the upper bound
            return replace(self, wanted=f"an integer from {self.least} to {_MOST:,}").refusal(
                call, argument, value
            )
        return super().refusal(call, argument, value)


@dataclass(frozen=True)
class OneOf(Constraint):
    """A string that is one of `words`.

    Example:
        >>> OneOf(("mean", "sum"), example="sum").check("f", "reduction", "all")
        Traceback (most recent call last):
            ...
        kullback.errors.ArgumentValueError: f(reduction=...): wanted one of 'mean', 'sum'; got 'all'. Write: ...
    """

    words: tuple[str, ...]

    def check(self, call: str, argument: str, value: Any) -> Any:
        if isinstance(value, str) and value in self.words:
            return value
        raise self.refusal(call, argument, value)

    def described(self) -> str:
        return f"one of {', '.join(map(repr, self.words))}"

    def example_for(self, value: object) -> Any:
        near = difflib.get_close_matches(value, self.words, n=1) if isinstance(value, str) else []
        return near[0] if near else self.example

    def has_type(self, value: object) -> bool:
        return isinstance(value, str)


@dataclass(frozen=True)
class OfType(Constraint):
    """An object of one of several types.

    Example:
        >>> FLAG.check("f", "verbose", "False")
        Traceback (most recent call last):
            ...
        kullback.errors.ArgumentTypeError: f(verbose=...): wanted True or False; got 'False'. Write: verbose=True
    """

    types: tuple[type, ...]
    wanted: str = field(kw_only=True)
    strict: bool = field(default=True, kw_only=True)

    def check(self, call: str, argument: str, value: Any) -> Any:
        if isinstance(value, self.types):
            return value
        raise self.refusal(call, argument, value)


@dataclass(frozen=True, kw_only=True)
class _Generator(Constraint):
    """A random generator of torch."""

    strict: bool = True

    def check(self, call: str, argument: str, value: Any) -> Any:
        import torch

        if isinstance(value, torch.Generator):
            return value
        raise self.refusal(call, argument, value)


def _inputs() -> ModuleType:
    from kullback.common import inputs

    return inputs


# A flag must be a bool: an array has no truth value, and the text 'False' would count as true.
FLAG = OfType((bool,), wanted="True or False", example=True)
GENERATOR = _Generator(
    wanted="a torch.Generator or None", instead="generator=torch.Generator().manual_seed(0)", optional=True
)
CONFIDENCE = Number(above=0, below=1, example=0.95)


def function(instead: str) -> OfType:
    """Return the constraint on an argument that is a function or None; `instead` is the text of the remedy."""
    types = cast("tuple[type, ...]", (Callable,))
    return OfType(types, wanted="a function or None", instead=instead, optional=True)


class Arguments:
    """The constraints on the arguments of one or several functions (the calls), as a mapping from argument names.

    Example:
        >>> arguments = Arguments("f", share=Number(least=0, most=1, example=0.5), verbose=FLAG)
        >>> arguments.check(share=0, verbose=True)
        {'share': 0.0, 'verbose': True}
    """

    def __init__(self, *calls: str, **constraints: Constraint) -> None:
        self.calls, self.constraints = calls, constraints

    def check(self, call: str = "", /, **values: Any) -> dict[str, Any]:
        """Return the checked values, in the order of the declaration; raise an error for the first invalid value.

        A function can begin with ``check(**locals())``, because its local variables are then its arguments.

        Arguments:
            call: the name of the call in the error message; by default the first of `calls`.
            **values: the values, each under the name of its argument; values without a constraint are ignored.
        """
        checked: dict[str, Any] = {}
        for name, constraint in self.constraints.items():
            if name in values:
                value = values[name]
                if constraint is FLAG and type(value) is bool:
                    pass  # most values of flags; their check would take longer than the call of some functions
                elif value is not None or not constraint.optional:
                    value = constraint.check(call or self.calls[0], name, value)
                checked[name] = value
        return checked

    def settle(self, settings: object) -> None:
        """Check the attributes of a frozen dataclass, and replace each attribute by its checked value."""
        for name, value in self.check(**vars(settings)).items():
            object.__setattr__(settings, name, value)


def taken(kind: type[_Settings], options: dict[str, Any]) -> _Settings:
    """Make a dataclass `kind` from the options that are its fields, and remove these from `options`.

    Example:
        >>> from kullback.models import Cut
        >>> options = {"context": 64, "seed": 3}
        >>> taken(Cut, options), options
        (Cut(context=64, score=None, most_windows=None, groups=None), {'seed': 3})
    """
    return kind(**{each.name: options.pop(each.name) for each in fields(kind) if each.name in options})


def refuse_both(call: str, independent: object, cluster: object) -> None:
    """Raise if both `independent` and `cluster` are given, because rows in one cluster are not independent."""
    if independent and cluster is not None:
        wanted = "independent=True or cluster=, not both"
        instead = "cluster= alone; rows of different clusters count as independent"
        raise invalid_value(call, "independent", wanted=wanted, got="both", instead=instead)
