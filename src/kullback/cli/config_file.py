"""The file of ``--config``: options of a command, in TOML, by their names without dashes."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path

import click

from kullback.cli.option import Names, Option
from kullback.common.constraints import Constraint, Number, Whole
from kullback.common.words import nearest
from kullback.errors import (
    BY_CALL,
    LONGEST_NAME,
    ArgumentValueError,
    FileError,
    KullbackError,
    printable,
    safe_repr,
)

# The commands that take ``--config``, each of which may have a table of its own in the file.
TABLES = ("compare", "record", "watch")


def read_config(ctx: click.Context, path: Path, options: Sequence[Option]) -> dict[str, object]:
    """Return the values of a file, checked, by the names of click's parameters.

    Arguments:
        ctx: click's context of the command.
        path: the file.
        options: the options of the command.

    Raises:
        FileError: the file cannot be read, or is not TOML.
        ArgumentValueError: a key is not an option of the command, or a value is not one that the option accepts.
    """
    command = ctx.command.name or ""
    written = _parsed(path)
    own = written.get(command, {})
    given = {key: value for key, value in written.items() if not (key in TABLES and isinstance(value, dict))}
    known = {option.key: option for option in options if not option.reads_config}
    parameters = {parameter.name: parameter for parameter in ctx.command.params}
    values: dict[str, object] = {}
    for key, value in {**given, **(own if isinstance(own, dict) else {})}.items():
        if key not in known:
            raise _unknown(path, key, command, known)
        option = known[key]
        values[option.name] = _checked(ctx, path, option, parameters[option.name], value)
    return values


def place_in_file(path: Path, key: str) -> str:
    """Return the place of a key in a file, as errors name it."""
    return f"{printable(path, LONGEST_NAME)}: {printable(key, LONGEST_NAME)}"


def _parsed(path: Path) -> Mapping[str, object]:
    from kullback.common.files import check_input

    check_input(path, "--config")
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        reason = printable(error, LONGEST_NAME)
        instead = 'write lines such as fail-above = ["mean=0.01"]'
        place = f"--config {printable(path, LONGEST_NAME)}"
        raise FileError.at(place, "--config", wanted="a file of TOML", got=reason, instead=instead) from None


def _unknown(path: Path, key: str, command: str, known: Mapping[str, Option]) -> ArgumentValueError:
    close = nearest(key, known)
    return ArgumentValueError.at(
        place_in_file(path, key),
        "--config",
        wanted=f"an option of kullback {command}",
        got="no such option",
        instead=f"{close} = {_example(known[close])}" if close else f"one of kullback {command} --help",
        wording=BY_CALL,
    )


def _checked(
    ctx: click.Context, path: Path, option: Option, parameter: click.Parameter, value: object
) -> object:
    """Return the value as click's parameter returns one of the command line."""
    place, instead = place_in_file(path, option.key), f"{option.key} = {_example(option)}"
    if not _has_type(option, value):
        raise ArgumentValueError.at(
            place,
            option.flag,
            wanted=_wanted(option),
            got=printable(safe_repr(value), LONGEST_NAME),
            instead=instead,
            wording=BY_CALL,
        )
    try:
        return parameter.type_cast_value(ctx, value)
    except KullbackError as error:
        raise error.replace(place=place, instead=instead) from None


def _has_type(option: Option, value: object) -> bool:
    if option.repeatable:
        return isinstance(value, list) and all(_is_one(option, each) for each in value)
    return _is_one(option, value)


def _is_one(option: Option, value: object) -> bool:
    """Return whether a value has the type of one value of the option; true is not a number."""
    if option.is_flag:
        return isinstance(value, bool)
    if isinstance(option.accepts, Whole):
        return type(value) is int
    if isinstance(option.accepts, Number):
        return type(value) in (int, float)
    if isinstance(option.accepts, Names) and isinstance(value, list):
        return all(isinstance(name, str) for name in value)
    return isinstance(value, str)


def _wanted(option: Option) -> str:
    if option.is_flag:
        return "true or false"
    if isinstance(option.accepts, Constraint):
        return option.accepts.described()
    return "an array of strings" if option.repeatable else "a string"


def _example(option: Option) -> str:
    """Return a value of the option in TOML."""
    if option.is_flag:
        return "true"
    if isinstance(option.accepts, Whole | Number):
        return str(option.accepts.example)
    example = option.metavar or "TEXT"
    if isinstance(option.accepts, Constraint):
        example = option.accepts.example
    elif isinstance(option.accepts, Names):
        example = "A,B"
    return f'["{example}"]' if option.repeatable else f'"{example}"'
