"""Parses a distribution that is written as text, such as ``Normal(0, 1)``, and does not run the text as code."""

from __future__ import annotations

import ast
import inspect
import math
import operator
import re
from collections.abc import Callable, Iterable
from typing import Any, cast

import torch
from torch import distributions as torch_distributions
from torch.distributions import Distribution, Transform

from kullback.common.words import nearest
from kullback.errors import BY_EVENT, ArgumentValueError, KullbackError
from kullback.representations import Counts, Logits, LogProbs, Probs

OPERATORS: dict[type[ast.AST], Callable[..., Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.USub: operator.neg,
    ast.UAdd: operator.pos,
}
# Parameters whose numbers are not converted to tensors.
PLAIN = ("total_count", "dim", "reinterpreted_batch_ndims", "event_dim", "prior", "labels")
# Parameters that a text may not set: they turn checks off, or do not change the distribution.
SETTINGS = ("validate_args", "validate", "cache_size")
HINT = (
    "write a torch distribution of numbers, lists and keyword arguments, such as Normal(0, 1), Gamma(2, rate=3), "
    "Categorical([0.2, 0.8]), or Probs([...]), Logits([...]), LogProbs([...]), Counts([...])"
)
# Distributions whose first parameter is a list with one number for each class.
OF_CLASSES = ("Probs", "Logits", "LogProbs", "Counts", "Categorical", "OneHotCategorical", "Dirichlet")
# Base classes of torch.distributions, which cannot be used as distributions.
ABSTRACT = ("Distribution", "ExponentialFamily", "Transform")
LONGEST = 10_000
SHOWN = 60

Operand = Distribution | Probs | Logits | LogProbs | Counts


def _constructors() -> dict[str, type]:
    """Return the classes that an expression may call, by name."""
    public = {name: getattr(torch_distributions, name) for name in torch_distributions.__all__}
    of_torch: dict[str, type] = {
        name: value
        for name, value in public.items()
        if isinstance(value, type) and issubclass(value, Distribution | Transform) and name not in ABSTRACT
    }
    return of_torch | {kind.__name__: kind for kind in (Counts, LogProbs, Logits, Probs)}


def parse_distribution(text: str) -> Operand:
    """Return the distribution that a text describes.

    The text may contain only constructors of torch.distributions and of kullback, numbers, lists and + - * /.
    Numbers are converted to float64.

    Raises:
        ArgumentValueError: the text contains something else, or the constructor does not accept its parameters.

    Example:
        >>> parse_distribution("Laplace(0, scale=1/2)")
        Laplace(loc: 0.0, scale: 0.5)
    """
    try:
        value = _evaluate(_syntax(text))
    except KullbackError as error:  # from the constructor of a representation; the message contains a remedy
        if error.explanation is None:
            raise
        place = f"{_shown(text)}: {error.explanation.where}"
        raise ArgumentValueError(*error.replace(place=place).args) from None
    except Exception as error:  # noqa: BLE001 - the parser and torch's constructors raise many types of errors
        raise _refusal(text, " ".join(str(error).split()) or type(error).__name__) from None
    if not isinstance(value, Operand):
        raise _refusal(text, f"it is of type {type(value).__name__}")
    return value


def _refusal(text: str, reason: str) -> ArgumentValueError:
    place = f"{_shown(text)} is not a distribution that can be read"
    return ArgumentValueError.at(place, wanted="a distribution", got=reason, instead=HINT, wording=BY_EVENT)


def _shown(text: str) -> str:
    return repr(text if len(text) <= SHOWN else f"{text[: SHOWN - 3]}...")


def _syntax(text: str) -> ast.AST:
    if len(text) > LONGEST:
        raise ValueError(f"it has {len(text)} characters, more than {LONGEST}")
    if re.search(r",\s*[)\]]", text):
        raise ValueError("a value is missing after its last comma")
    return ast.parse(text.strip(), mode="eval").body


def _evaluate(node: ast.AST) -> Any:
    match node:
        case ast.Constant(value=int() | float() as value) if not isinstance(value, bool):
            if math.isinf(value):
                raise ValueError("a number is beyond the range of float64; inf is written inf")
            return value
        case ast.Name(id="inf"):
            return torch.inf
        case ast.Name(id=name) if close := _did_you_mean(name, _constructors()):
            raise ValueError(f"{name!r} has no parameters{close}(...)?")
        case ast.UnaryOp(op=sign, operand=operand) if type(sign) in OPERATORS:
            return OPERATORS[type(sign)](_number(operand))
        case ast.BinOp(left=left, op=sign, right=right) if type(sign) in OPERATORS:
            return OPERATORS[type(sign)](_number(left), _number(right))
        case ast.List(elts=items) | ast.Tuple(elts=items):
            return [_evaluate(item) for item in items]
        case ast.Call(func=ast.Name(id=name), args=args, keywords=keywords):
            return _construct(name, args, keywords)
        case _:
            raise ValueError(f"{ast.unparse(node)!r} is not allowed in it")


def _number(node: ast.AST) -> int | float:
    value = _evaluate(node)
    if not isinstance(value, int | float):
        raise ValueError(f"{ast.unparse(node)!r} is not a number to calculate with")  # noqa: TRY004 - the text is wrong
    return value


def _construct(name: str, args: list[ast.expr], keywords: list[ast.keyword]) -> Any:
    constructor = _constructors().get(name)
    if constructor is None:
        close = _did_you_mean(name, _constructors())
        raise ValueError(
            f"{name!r} is neither a distribution of torch's nor one of kullback's representations"
            + (f"{close}?" if close else "")
        )
    if name in OF_CLASSES and args and all(isinstance(arg, ast.Constant) for arg in args):
        numbers = ", ".join(map(ast.unparse, args))
        raise ValueError(f"{name} takes a list with a number for each class: {name}([{numbers}])")
    signature = inspect.signature(constructor)
    named = [x.name for x in signature.parameters.values() if x.kind is not x.VAR_KEYWORD]
    bound = signature.bind(*args, **_named(name, keywords, named))
    if settings := [each for each in SETTINGS if each in bound.arguments]:
        raise ValueError(f"{settings[0]!r} of {name} cannot be set here: parameters are always checked")
    return constructor(
        **{
            parameter: _as_parameter(parameter, _evaluate(node))
            for parameter, node in cast("dict[str, ast.expr]", bound.arguments).items()
        }
    )


def _named(name: str, keywords: list[ast.keyword], parameters: Iterable[str]) -> dict[str, ast.expr]:
    values: dict[str, ast.expr] = {}
    for keyword in keywords:
        if keyword.arg is None:
            raise ValueError("'**' is not allowed in it")
        if keyword.arg not in parameters:
            close = _did_you_mean(keyword.arg, parameters)
            raise ValueError(f"{name} has no parameter {keyword.arg!r}{f'{close}?' if close else ''}")
        if keyword.arg in values:
            raise ValueError(f"{name} is given {keyword.arg!r} twice")
        values[keyword.arg] = keyword.value
    return values


def _did_you_mean(name: str, names: Iterable[str]) -> str:
    """Return a hint at the name that is nearest to `name`, ignoring case, or "" if no name is near."""
    close = nearest(name, names)
    return "" if close is None else f"; did you mean {close}"


def _as_parameter(name: str, value: Any) -> Any:
    """Convert numbers and lists of numbers to float64 tensors; return other values and the parameters of `PLAIN`."""
    if name in PLAIN or not isinstance(value, int | float | list):
        return value
    return value if _holds_objects(value) else torch.tensor(value, dtype=torch.float64)


def _holds_objects(value: Any) -> bool:
    return isinstance(value, list) and any(
        _holds_objects(item) or not isinstance(item, int | float | list) for item in cast("list[Any]", value)
    )
