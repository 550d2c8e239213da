"""Exception classes: every exception that kullback raises on purpose is a `KullbackError`.

Each class also inherits from the usual built-in exception (`ValueError`, `TypeError`, ...), so existing ``except``
clauses work.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

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


class KullbackError(Exception):
    """Base class of all errors that kullback raises on purpose.

    Attributes:
        call: the function or class that you called; like the others None, where the message has no such part.
        argument: the argument at fault, or several, separated by commas.
        wanted: the accepted values.
        got: the value.
        instead: what to write.
        remedy: the same as arguments by name, where they are values that you can pass; else empty.

    Example:
        >>> import kullback
        >>> try:
        ...     kullback.Probs([0.2, 0.9])
        ... except kullback.errors.KullbackError as error:
        ...     print(type(error).__name__, error.call, error.argument)
        ArgumentValueError Probs x
    """

    call: str | None = None
    argument: str | None = None
    wanted: str | None = None
    got: str | None = None
    instead: str | None = None
    remedy: Mapping[str, object] = MappingProxyType({})

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        if args and isinstance(args[0], Explanation):
            vars(self).update(vars(args[0]))

    def __reduce__(self) -> tuple[Any, ...]:
        """Unpickle without the constructor: `args` lacks some of its arguments, and a process pool would hang."""
        return _rebuilt, (type(self), self.args), self.__dict__


def _rebuilt(kind: type[KullbackError], args: tuple[Any, ...]) -> KullbackError:
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
    """A drop-in function got a tensor of an invalid dtype, layout, shape or device; also a RuntimeError, as in torch.

    Example:
        >>> import torch, kullback
        >>> kullback.functional.kl_div(torch.zeros(2, 3), torch.zeros(2, 4))
        Traceback (most recent call last):
            ...
        kullback.errors.IncompatibleTensorError: kl_div(target=...): wanted a tensor that broadcasts with input, ...
    """


class NoRuleError(KullbackError, NotImplementedError):
    """No rule exists for this pair of arguments.

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
    """A rule cannot be registered: the pair already has a rule, or it would be ambiguous.

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
    """A sum or an integral did not reach the requested tolerance; `estimate` is the result so far.

    Example:
        >>> issubclass(ConvergenceError, ArithmeticError)
        True
    """

    def __init__(self, message: str, estimate: Any) -> None:  # an Estimate, which imports this module
        super().__init__(message)
        self.estimate = estimate


class FileError(KullbackError, ValueError):
    """A file is missing or truncated, has the wrong format, or does not match the other file.

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
        kullback.errors.ModelError: model = nowhere/model: wanted a folder of a Hugging Face model, ...
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

    __str__ = Exception.__str__  # KeyError.__str__ would return the repr


class OptionalDependencyError(KullbackError, ImportError):
    """A feature needs a package that is not installed.

    Example:
        >>> issubclass(OptionalDependencyError, ImportError)
        True
    """


class Explanation(str):  # noqa: SLOT000 - its parts are attributes
    """An error message of `explain`; its parts are the attributes of `KullbackError`."""


def explain(
    call: str, argument: str, *, wanted: str, got: str, instead: str | Mapping[str, object]
) -> Explanation:
    """Return an error message: the call, its argument (or several), the wanted value, the actual one, and a correction.

    Arguments:
        call: the function or class; empty where a message is about an argument of several.
        argument: the argument, or several, separated by commas.
        wanted: the accepted values.
        got: the value.
        instead: what to write, as text, or as arguments by name.

    Example:
        >>> explain("Counts", "prior", wanted="a number", got="'half'", instead={"prior": 0.5})
        "Counts(prior=...): wanted a number; got 'half'. Write: prior=0.5"
    """
    remedy = {} if isinstance(instead, str) else dict(instead)
    if not isinstance(instead, str):
        shown = {name: printable(safe_repr(value), LONGEST_NAME) for name, value in instead.items()}
        instead = ", ".join(f"{name}={value}" for name, value in shown.items())
    arguments = ", ".join(f"{name}=..." for name in argument.split(", "))
    got = printable(got, LONGEST_GOT)
    where = f"{call}({arguments})" if call else arguments
    message = Explanation(f"{where}: wanted {wanted}; got {got}. Write: {instead}")
    parts = {"call": call, "argument": argument, "wanted": wanted, "got": got, "instead": instead}
    vars(message).update(parts, remedy=remedy)
    return message


def invalid_value(
    call: str, argument: str, *, wanted: str, got: str, instead: str | Mapping[str, object]
) -> ArgumentValueError:
    """Return the error for an argument of the right type with an invalid value; the message is from `explain`."""
    return ArgumentValueError(explain(call, argument, wanted=wanted, got=got, instead=instead))


def invalid_type(
    call: str, argument: str, *, wanted: str, got: str, instead: str | Mapping[str, object]
) -> ArgumentTypeError:
    """Return the error for an argument of the wrong type; the message is from `explain`."""
    return ArgumentTypeError(explain(call, argument, wanted=wanted, got=got, instead=instead))


def no_rule(call: str, argument: str, *, wanted: str, got: str, instead: str) -> NoRuleError:
    """Return a `NoRuleError` with the text of `explain`."""
    return NoRuleError(explain(call, argument, wanted=wanted, got=got, instead=instead))


# The largest numbers of characters: of a name in a message, of the text after "got", and of a whole message.
LONGEST_NAME, LONGEST_GOT, LONGEST_MESSAGE = 200, 240, 2_000


def printable(text: object, longest: int | None = None) -> str:
    r"""Escape control characters and undecodable bytes in a text, and cut a long text in the middle.

    A terminal would execute control characters, and line breaks could forge lines. UTF-8 cannot encode the undecodable
    bytes of file names.

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
    """Return the repr of a user's value, or its type if `repr` fails, as for integers of 4301 or more digits.

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
    r"""Return an untrusted name in quotation marks, escaped and cut if it is very long.

    Example:
        >>> print(quoted("size\n"))
        'size\n'
    """
    return f"'{printable(name, LONGEST_NAME)}'"
