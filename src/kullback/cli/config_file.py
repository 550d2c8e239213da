"""Reads the TOML file of ``--config``, which contains options of a command under their names without dashes."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, cast

import click

from kullback.cli.option import Names, Option, invalid_option
from kullback.common.constraints import Number, OneOf, Whole
from kullback.common.words import nearest
from kullback.errors import (
    LONGEST_NAME,
    ArgumentValueError,
    FileError,
    KullbackError,
    printable,
    safe_repr,
)

# The commands that take ``--config``. The file may contain a table for each command.
TABLES = ("compare", "record", "watch", "mismatch")


def read_config(ctx: click.Context, path: Path, options: Sequence[Option]) -> dict[str, object]:
    """Return the checked values of a file of options, under the names of click's parameters.

    Raises:
        FileError: the file cannot be read, or is not TOML.
        ArgumentValueError: a key is not an option of the command, or the option does not accept the value.
    """
    command = ctx.command.name or ""
    written = _parsed(path)
    own = written.get(command)
    of_all = {key: value for key, value in written.items() if not (key in TABLES and isinstance(value, dict))}
    known = {option.key: option for option in options if not option.reads_config}
    parameters = {parameter.name: parameter for parameter in ctx.command.params}
    values: dict[str, object] = {}
    for key, value in {**of_all, **(own if isinstance(own, dict) else {})}.items():
        if key not in known:
            raise _unknown(path, key, command, known)
        option = known[key]
        values[option.name] = _checked(ctx, path, option, parameters[option.name], value)
    return values


def place_in_file(path: Path, key: str) -> str:
    """Return the path and the key as text for error messages."""
    return f"{printable(path, LONGEST_NAME)}: {printable(key, LONGEST_NAME)}"


def _parsed(path: Path) -> Mapping[str, object]:
    from kullback.common.files import check_input

    check_input(path, "--config")
    place = f"--config {printable(path, LONGEST_NAME)}"
    try:
        return tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except OSError as error:
        got = error.strerror or type(error).__name__
        raise FileError.at(
            place, "--config", wanted="a readable file", got=got, instead="check the path"
        ) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        reason = printable(error, LONGEST_NAME)
        instead = 'write lines such as fail-above = ["mean=0.01"]'
        raise FileError.at(place, "--config", wanted="a file of TOML", got=reason, instead=instead) from None


def _unknown(path: Path, key: str, command: str, known: Mapping[str, Option]) -> ArgumentValueError:
    close, place = nearest(key, known), place_in_file(path, key)
    remedy = f"{close} = {_kind_of(known[close]).example}" if close else f"one of kullback {command} --help"
    wanted, got = f"an option of kullback {command}", "no such option"
    return invalid_option("--config", wanted=wanted, got=got, instead=remedy, place=place)


def _checked(
    ctx: click.Context, path: Path, option: Option, parameter: click.Parameter, value: object
) -> object:
    """Return the value after the conversion that click applies to values from the command line."""
    kind = _kind_of(option)
    place, instead = place_in_file(path, option.key), f"{option.key} = {kind.example}"
    if not kind.has(value):
        got = printable(safe_repr(value), LONGEST_NAME)
        raise invalid_option(option.flag, wanted=kind.wanted, got=got, instead=instead, place=place)
    try:
        return parameter.type_cast_value(ctx, value)
    except KullbackError as error:
        raise error.replace(place=place, instead=instead) from None


class _Kind(NamedTuple):
    """The values that an option accepts in TOML. `has` checks the type of a value; a number may not be a bool."""

    wanted: str
    example: str
    has: Callable[[object], bool]


def _kind_of(option: Option) -> _Kind:
    accepts = option.accepts
    if option.is_flag:
        return _Kind("true or false", "true", lambda value: isinstance(value, bool))
    if isinstance(accepts, Whole | Number):
        types = (int,) if isinstance(accepts, Whole) else (int, float)
        return _Kind(accepts.described(), str(accepts.example), lambda value: type(value) in types)
    if isinstance(accepts, OneOf):
        return _Kind(accepts.described(), f'"{accepts.example}"', _is_string)
    one = _Kind("a string", f'"{option.metavar or "TEXT"}"', _is_string)
    if isinstance(accepts, Names):
        one = _Kind(one.wanted, '"A,B"', lambda value: _is_string(value) or _is_list(value, _is_string))
    if not option.repeatable:
        return one
    return _Kind("an array of strings", f"[{one.example}]", lambda value: _is_list(value, one.has))


def _is_string(value: object) -> bool:
    return isinstance(value, str)


def _is_list(value: object, has: Callable[[object], bool]) -> bool:
    return isinstance(value, list) and all(map(has, cast("list[object]", value)))
