"""Exception classes: every exception that kullback raises on purpose is a `KullbackError`.

Each class also inherits from the usual built-in exception (`ValueError`, `TypeError`, ...), so existing ``except``
clauses work.
"""

from __future__ import annotations

import copy
from collections.abc import Container, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, Self

__all__ = [
    "ArgumentTypeError",
    "ArgumentValueError",
    "ColumnNotFoundError",
    "ConvergenceError",
    "FileError",
    "IncompatibleTensorError",
    "KullbackError",
    "ModelError",
    "NoRuleError",
    "OptionalDependencyError",
    "RegistrationError",
    "explain",
]


# These templates make the text of a message from its parts. `BY_CALL` is for invalid arguments of a call. `BY_PLACE` is
# for a place such as a file. `BY_EVENT` is for an event in a place, such as a failed write.
BY_CALL = "wanted {wanted}; got {got}. Write: {instead}"
BY_PLACE = "wanted {wanted}; got {got}; {instead}"
BY_EVENT = "{got}; {instead}"


class KullbackError(Exception):
    """Base class of all errors that kullback raises on purpose.

    An error that was raised with a plain string has None in the attributes `call`, `argument`, `wanted`, `got`,
    `instead` and `explanation`.

    Example:
        >>> import kullback
        >>> try:
        ...     kullback.Probs([0.2, 0.9])
        ... except kullback.errors.KullbackError as error:
        ...     print(type(error).__name__, error.call, error.argument)
        ArgumentValueError Probs x
    """

    @property
    def explanation(self) -> Explanation | None:
        """All parts of the message; `str` of this object is the message. None if the message is a plain string."""
        message = self.args[0] if self.args else None
        return message if isinstance(message, Explanation) else None

    @property
    def call(self) -> str | None:
        """The function or class that you called."""
        return None if self.explanation is None else self.explanation.call

    @property
    def argument(self) -> str | None:
        """The argument at fault, or several arguments, separated by commas."""
        return None if self.explanation is None else ", ".join(self.explanation.arguments)

    @property
    def wanted(self) -> str | None:
        """The accepted values."""
        return None if self.explanation is None else _joined(self.explanation.wanted)

    @property
    def got(self) -> str | None:
        """The value that was passed."""
        return None if self.explanation is None else _joined(self.explanation.got)

    @property
    def instead(self) -> str | None:
        """The code to write instead."""
        return None if self.explanation is None else self.explanation.remedy_text

    @property
    def remedy(self) -> Mapping[str, object]:
        """A mapping from argument names to the values to pass instead; empty if `instead` is other code."""
        instead = None if self.explanation is None else self.explanation.instead
        return instead if isinstance(instead, Mapping) else MappingProxyType({})

    @classmethod
    def at(
        cls,
        place: str,
        argument: str = "",
        *,
        wanted: Text,
        got: Text,
        instead: Text,
        wording: str = BY_PLACE,
    ) -> Self:
        """Return an error about `place`: a file, a model or an option that the argument `argument` names.

        The documentation of `explain` describes the other arguments.

        Example:
            >>> print(FileError.at("p = a.npy", "p", wanted="a file", got="a directory", instead="name a file in it"))
            p = a.npy: wanted a file; got a directory; name a file in it
        """
        return cls(Explanation("", _names_of(argument), wanted, got, instead, place, wording))

    def replace(self, names: Mapping[str, str] = MappingProxyType({}), **parts: Any) -> Self:
        """Return a copy of the error with new parts and the message from these parts.

        An error without parts is returned unchanged.

        Arguments:
            names: a mapping from old argument names to new ones; every mention of an argument gets the new name.
            **parts: new values of `call`, `argument`, `wanted`, `got`, `instead` or `place`; see `explain`.

        Example:
            >>> error = invalid_value("Logits", "x", wanted="numbers", got="NaN", instead="x.nan_to_num()")
            >>> print(error.replace(call="compare", argument="base"))
            compare(base=...): wanted numbers; got NaN. Write: x.nan_to_num()
        """
        if self.explanation is None:
            return self
        renamed = copy.copy(self)
        renamed.args = (self.explanation.replace(names, **parts), *self.args[1:])
        return renamed

    def __reduce__(self) -> tuple[Any, ...]:
        """Return the instructions for unpickling, which do not call the constructor.

        The constructor may need arguments that `args` lacks. A worker of a process pool pickles its errors, and the
        pool would hang if unpickling failed.
        """
        return _rebuilt, (type(self), self.args), self.__dict__


def _rebuilt(kind: type[KullbackError], args: tuple[Any, ...]) -> KullbackError:
    """Return an error of class `kind` with the attribute `args`, made without calling the constructor."""
    return kind.__new__(kind, *args)


class ArgumentValueError(KullbackError, ValueError):
    """An argument has the right type but an invalid value, shape, dtype or device.

    Example:
        >>> import kullback
        >>> kullback.Logits([0.0, float("nan")])
        Traceback (most recent call last):
            ...
        kullback.errors.ArgumentValueError: Logits(x=...): wanted numbers; got NaN ...
    """


class ArgumentTypeError(KullbackError, TypeError):
    """An argument has an invalid type.

    Example:
        >>> import torch, kullback
        >>> kullback.kl_divergence(torch.zeros(3), torch.zeros(3))
        Traceback (most recent call last):
            ...
        kullback.errors.ArgumentTypeError: kl_divergence(p=...): a tensor does not say what it holds; wrap it: ...
    """


class IncompatibleTensorError(ArgumentValueError, RuntimeError):
    """A drop-in replacement for a torch function got a tensor of an invalid dtype, layout, shape or device.

    The class inherits from RuntimeError, because torch raises a RuntimeError for such a tensor.

    Example:
        >>> import torch, kullback
        >>> kullback.functional.kl_div(torch.zeros(2, 3), torch.zeros(2, 4))
        Traceback (most recent call last):
            ...
        kullback.errors.IncompatibleTensorError: kl_div(target=...): wanted a tensor that broadcasts with input, ...
    """


class NoRuleError(KullbackError, NotImplementedError):
    """No rule computes the result for the types of these arguments, such as a pair of distributions.

    Example:
        >>> import torch
        >>> from torch.distributions import LKJCholesky
        >>> from kullback import TotalVariation, divergence
        >>> divergence(LKJCholesky(3), LKJCholesky(3, 2.0), TotalVariation())
        Traceback (most recent call last):
            ...
        kullback.errors.NoRuleError: divergence(p=..., q=..., kind=...): wanted univariate or categorical ...
    """


class RegistrationError(KullbackError, ValueError):
    """A rule cannot be registered: the pair already has a rule, or the choice between rules would be ambiguous.

    Example:
        >>> from torch.distributions import Normal
        >>> from kullback import register_kl
        >>> class Gauge(Normal):
        ...     "A Normal with rules of its own."
        >>> rule = register_kl(Gauge, Gauge)(lambda p, q: p.loc - q.loc)
        >>> register_kl(Gauge, Gauge)
        Traceback (most recent call last):
            ...
        kullback.errors.RegistrationError: register_kl(type_p=..., type_q=...): wanted a pair without a rule; ...
    """


class ConvergenceError(KullbackError, ArithmeticError):
    """A sum or an integral did not reach the requested tolerance; the attribute `estimate` has the result so far.

    Example:
        >>> issubclass(ConvergenceError, ArithmeticError)
        True
    """

    # `estimate` is an Estimate, whose module imports this module.
    def __init__(self, message: str | Explanation, estimate: Any) -> None:
        super().__init__(message)
        self.estimate = estimate


class FileError(KullbackError, ValueError):
    """A file is missing or truncated, has the wrong format, or does not match the other file of a comparison.

    Example:
        >>> import kullback.io
        >>> kullback.io.open_rows("nowhere.npy", representation="logits")
        Traceback (most recent call last):
            ...
        kullback.errors.FileError: ...
    """


class ModelError(KullbackError, RuntimeError):
    """A language model cannot be loaded or run, or a server gives an invalid answer.

    Example:
        >>> from kullback.models import open_model
        >>> open_model("nowhere/model")
        Traceback (most recent call last):
            ...
        kullback.errors.ModelError: model = nowhere/model: wanted a folder of a Hugging Face model or ...
    """


class ColumnNotFoundError(KullbackError, KeyError):
    """A comparison of tables does not contain this column.

    Example:
        >>> import pyarrow as pa
        >>> from kullback import compare_tables
        >>> table = pa.table({"x": [1, 2] * 50})
        >>> compare_tables(table, table)["y"]
        Traceback (most recent call last):
            ...
        kullback.errors.ColumnNotFoundError: no comparison of 'y': wanted one of 'x'
    """

    __str__ = Exception.__str__  # KeyError.__str__ would return the repr of the message


class OptionalDependencyError(KullbackError, ImportError):
    """A feature needs a package that is not installed.

    Example:
        >>> issubclass(OptionalDependencyError, ImportError)
        True
    """


class Name(str):
    """The name of an argument, a function or a class in a message, which `KullbackError.replace` can change."""

    __slots__ = ()


# A part of a message is a string, or a tuple of strings; some strings of the tuple may be of class `Name`.
Text = str | tuple[str, ...]
Remedy = str | tuple[str, ...] | Mapping[str, object]
P, Q = Name("p"), Name("q")
# If a function calls another function with P and Q exchanged, an error gets these new names of sides and arguments.
SIDES_EXCHANGED = {"p": "q", "q": "p", "P": "Q", "Q": "P"}


@dataclass(frozen=True, repr=False)
class Explanation:
    """The parts of an error message. The fields are the arguments of `explain`, and `str` returns the message."""

    call: str
    arguments: tuple[str, ...]
    wanted: Text
    got: Text
    instead: Remedy
    place: str | None = None
    wording: str = BY_CALL

    def __str__(self) -> str:
        where = self.where
        return f"{where}: {self.problem}" if where else self.problem

    def __repr__(self) -> str:
        return repr(str(self))

    @property
    def where(self) -> str:
        """The beginning of the message: `place` or, if `place` is None, the call with its arguments."""
        if self.place is not None:
            return self.place
        arguments = ", ".join(f"{name}=..." for name in self.arguments)
        return f"{self.call}({arguments})" if self.call else arguments

    @property
    def problem(self) -> str:
        """The message without its beginning, `where`."""
        return self.wording.format(
            wanted=_joined(self.wanted), got=_joined(self.got), instead=self.remedy_text
        )

    @property
    def remedy_text(self) -> str:
        """The remedy as text; a mapping is written as keyword arguments of a call."""
        if not isinstance(self.instead, Mapping):
            return _joined(self.instead)
        shown = {name: printable(safe_repr(value), LONGEST_NAME) for name, value in self.instead.items()}
        return ", ".join(f"{name}={value}" for name, value in shown.items())

    def replace(self, names: Mapping[str, str], **parts: Any) -> Explanation:
        """Return a copy of the explanation with new names and parts; see `KullbackError.replace`."""
        if "call" in parts:
            names = {self.call: parts["call"], **names}
        if "argument" in parts:
            parts["arguments"] = _names_of(parts.pop("argument"))
        renamed = {name: _renamed(getattr(self, name), names) for name in ("wanted", "got", "instead")}
        arguments = tuple(names.get(name, name) for name in self.arguments)
        return replace(self, **{"arguments": arguments, **renamed, **parts})


def _joined(text: Text) -> str:
    """Return a part of a message as one string."""
    return text if isinstance(text, str) else "".join(text)


def _renamed(text: Remedy, names: Mapping[str, str]) -> Remedy:
    """Return a part of a message with each `Name`, or each key of a mapping, exchanged for the new name in `names`."""
    if isinstance(text, str):
        return text
    if isinstance(text, Mapping):
        return {names.get(name, name): value for name, value in text.items()}
    return tuple(Name(names.get(piece, piece)) if isinstance(piece, Name) else piece for piece in text)


def _cut(got: Text) -> Text:
    """Return `got` with escaped control characters, cut to about `LONGEST_GOT` characters. A `Name` is never cut."""
    if isinstance(got, str):
        return printable(got, LONGEST_GOT)
    longest = None if len(_joined(got)) <= LONGEST_GOT else LONGEST_GOT // len(got)
    return tuple(piece if isinstance(piece, Name) else printable(piece, longest) for piece in got)


def _names_of(argument: str) -> tuple[str, ...]:
    """Return the names of arguments in a text that separates them by commas."""
    return tuple(argument.split(", "))


def explain(
    call: str,
    argument: str,
    *,
    wanted: Text,
    got: Text,
    instead: Remedy,
    place: str | None = None,
    wording: str = BY_CALL,
) -> Explanation:
    """Return an error message: the call and its argument, the accepted values, the passed value, and a remedy.

    Arguments:
        call: the function or class; empty if the argument belongs to several functions.
        argument: the argument at fault, or several arguments, separated by commas.
        wanted: the accepted values.
        got: the value that was passed.
        instead: the code to write instead, as text, or as a mapping from the names of arguments to values.
        place: the beginning of the message, such as a file name; by default, the call with its arguments.
        wording: the template of the message, with ``{wanted}``, ``{got}`` and ``{instead}`` for the parts.

    Example:
        >>> explain("Counts", "prior", wanted="a number", got="'half'", instead={"prior": 0.5})
        "Counts(prior=...): wanted a number; got 'half'. Write: prior=0.5"
    """
    remedy = dict(instead) if isinstance(instead, Mapping) else instead
    return Explanation(call, _names_of(argument), wanted, _cut(got), remedy, place, wording)


@contextmanager
def in_the_name_of(
    call: str, calls: Container[str | None], names: Mapping[str, str] = MappingProxyType({})
) -> Generator[None]:
    """Return a context that turns errors of the functions `calls` into errors of `call`.

    `names` is a mapping from argument names of these functions to argument names of `call`.

    Example:
        >>> with in_the_name_of("compare", {"Logits"}, {"x": "base"}):
        ...     raise invalid_value("Logits", "x", wanted="numbers", got="NaN", instead="x.nan_to_num()")
        Traceback (most recent call last):
            ...
        kullback.errors.ArgumentValueError: compare(base=...): wanted numbers; got NaN. Write: x.nan_to_num()
    """
    try:
        yield
    except KullbackError as error:
        if error.call not in calls:
            raise
        raise error.replace(names, call=call) from None


@contextmanager
def sides_exchanged() -> Generator[None]:
    """Return a context that exchanges the names of P and Q in errors, for code that calls a function with (q, p).

    Example:
        >>> with sides_exchanged():
        ...     raise invalid_value("divergence", "p", wanted=("a wider ", P), got="this", instead=(P, ".expand(3)"))
        Traceback (most recent call last):
            ...
        kullback.errors.ArgumentValueError: divergence(q=...): wanted a wider q; got this. Write: q.expand(3)
    """
    names = SIDES_EXCHANGED
    try:
        yield
    except KullbackError as error:
        raise error.replace(names, argument=names.get(error.argument or "", error.argument)) from None


def invalid_value(
    call: str, argument: str, *, wanted: Text, got: Text, instead: Remedy
) -> ArgumentValueError:
    """Return the error for an argument of the right type with an invalid value; the message is from `explain`."""
    return ArgumentValueError(explain(call, argument, wanted=wanted, got=got, instead=instead))


def invalid_type(
    call: str, argument: str, *, wanted: Text, got: Text, instead: Remedy, wording: str = BY_CALL
) -> ArgumentTypeError:
    """Return the error for an argument of the wrong type; the message is from `explain`."""
    return ArgumentTypeError(
        explain(call, argument, wanted=wanted, got=got, instead=instead, wording=wording)
    )


def no_rule(call: str, argument: str, *, wanted: Text, got: Text, instead: Text) -> NoRuleError:
    """Return the error for arguments without a rule; the message is from `explain`."""
    return NoRuleError(explain(call, argument, wanted=wanted, got=got, instead=instead))


# A name in a message, the text after "got" and a whole message are cut to these numbers of characters.
LONGEST_NAME, LONGEST_GOT, LONGEST_MESSAGE = 200, 240, 2_000


def printable(text: object, longest: int | None = None) -> str:
    r"""Return a text with escaped control characters and undecodable bytes; a long text is cut in the middle.

    A terminal would execute control characters, and a line break in a name could fake a line of output. Python
    represents undecodable bytes of a file name by characters that UTF-8 cannot encode.

    Example:
        >>> print(printable("a\x1b[2Jb\udcff"))
        a\x1b[2Jb\udcff
        >>> printable("abcdefghij", longest=7)
        'abc...j'
    """
    shown = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in str(text))
    if longest is not None and len(shown) > longest:
        end = (longest - 3) // 3
        shown = f"{shown[: longest - 3 - end]}...{shown[len(shown) - end :]}"
    return shown


def safe_repr(value: object) -> str:
    """Return the repr of a user's value. If `repr` raises an error, return the name of the value's type.

    For example, `repr` raises an error for an integer of more than 4300 digits.

    Example:
        >>> safe_repr(0.5), safe_repr(10**5000)
        ('0.5', 'an int')
    """
    try:
        return repr(value)
    except Exception:  # noqa: BLE001 - a user's class may raise any exception
        name = type(value).__name__
        return f"{'an' if name[0].lower() in 'aeiou' else 'a'} {name}"


def quoted(name: object) -> str:
    r"""Return an untrusted name in quotation marks, with control characters escaped, and cut to 200 characters.

    Example:
        >>> print(quoted("size\n"))
        'size\n'
    """
    return f"'{printable(name, LONGEST_NAME)}'"
