"""The checked values of a command's options, and errors about the library's arguments rewritten for these options."""

from __future__ import annotations

import inspect
import shlex
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import click
from click.core import ParameterSource

from kullback.cli.config_file import place_in_file
from kullback.cli.option import Option, Subject
from kullback.errors import BY_EVENT, BY_PLACE, ArgumentValueError


@dataclass(frozen=True)
class Settings:
    """The checked values of a command's options.

    Attributes:
        values: the value of each option.
        places: the place of each given option: its flag, or the path of a file and a key. Other options are absent.
    """

    values: Mapping[Option, Any]
    places: Mapping[Option, str]

    def __getitem__(self, flag: str) -> Any:
        """Return the value of an option, such as ``settings["--seed"]``."""
        return {option.flag: value for option, value in self.values.items()}[flag]

    def place_of(self, flag: str) -> str:
        """Return the place of an option: the path of a file and a key if a file gives the option, else its flag."""
        return {option.flag: place for option, place in self.places.items()}.get(flag, flag)

    def arguments(self, subject: Subject | None = None) -> dict[str, Any]:
        """Return the library's arguments from the options of a subject; arguments without a value are left out."""
        arguments = {
            option.into: value if option.convert is None or value is None else option.convert(value)
            for option, value in self.values.items()
            if option.into and subject in (None, *option.subjects)
        }
        return {name: value for name, value in arguments.items() if value is not None}

    def arguments_of(self, function: Callable[..., object]) -> dict[str, Any]:
        """Return only the library's arguments that are parameters of `function`."""
        names = inspect.signature(function).parameters
        return {name: value for name, value in self.arguments().items() if name in names}

    @property
    def flags(self) -> dict[str, str]:
        """The flag of each argument of the library."""
        return {option.into: option.flag for option in self.values if option.into}

    @property
    def mean_rows(self) -> bool:
        """Whether some given option shows that the sides are not tables."""
        return any("predictions" in each.subjects and "tables" not in each.subjects for each in self.places)

    def refuse_other_subjects(self, subject: Subject) -> None:
        """Raise an error if an option was given that a comparison of this subject does not take."""
        remedies = {
            "tables": ", or add --as table if P and Q are tables",
            "models": ", or add --text FILE if P and Q are models",
        }
        for option, place in self.places.items():
            if subject not in option.subjects:
                remedy = "" if subject == "tables" else remedies.get(option.subjects[0], "")
                raise ArgumentValueError.at(
                    "",
                    option.flag,
                    wanted=f"options for comparing {subject}",
                    got=f"{place} is for comparing {' and '.join(option.subjects)}",
                    instead=f"leave it out{remedy}",
                    wording=BY_EVENT,
                )


def settings_of(ctx: click.Context, options: Sequence[Option]) -> Settings:
    """Return the settings of a command from the context of click."""
    places: dict[Option, str] = {}
    for option in options:
        source = ctx.get_parameter_source(option.name)
        if source is ParameterSource.COMMANDLINE:
            places[option] = option.flag
        elif source is ParameterSource.DEFAULT_MAP:
            places[option] = place_in_file(ctx.params["config"], option.key)
    return Settings({option: ctx.params[option.name] for option in options}, places)


@contextmanager
def in_options(
    options: Mapping[str, str], remedies: Mapping[str, str] = MappingProxyType({})
) -> Generator[None]:
    """Convert errors about arguments of the library, raised in the context, to errors about options of the command.

    `options` has the option or argument of the command for each argument of the library; errors about others stay
    unchanged. By the library's argument, `remedies` has remedies in place of those that are not values of options.

    Example:
        >>> from kullback.errors import invalid_value
        >>> with in_options({"bins": "--bins"}):
        ...     raise invalid_value("f", "bins", wanted="few", got="many", instead={"bins": 20})
        Traceback (most recent call last):
            ...
        kullback.errors.ArgumentValueError: --bins: wanted few; got many. Write: --bins 20
    """
    try:
        yield
    except ArgumentValueError as error:
        arguments = () if error.explanation is None else error.explanation.arguments
        if not arguments or any(name not in options for name in arguments):
            raise
        place = ", ".join(options[name] for name in arguments)
        parts = {
            "call": "",
            "place": place,
            "instead": _remedy(error, options) or remedies.get(arguments[0], error.instead),
        }
        if _is_without(error, options):
            parts["wording"] = BY_PLACE  # the remedy is a sentence, and nothing to write
        raise error.replace(options, **parts) from None


def _is_without(error: ArgumentValueError, options: Mapping[str, str]) -> bool:
    """Return whether the remedy is a call without an option: a value of None or False for it."""
    return bool(error.remedy) and all(
        name in options and (value is None or value is False) for name, value in error.remedy.items()
    )


def _remedy(error: ArgumentValueError, options: Mapping[str, str]) -> str | None:
    if not error.remedy or any(each not in options for each in error.remedy):
        return None
    if _is_without(error, options):
        return f"leave {' and '.join(options[each] for each in error.remedy)} out"
    return " ".join(f"{options[each]} {_word(value)}" for each, value in error.remedy.items())


def _word(value: object) -> str:
    """Return a value as one shell word; list items are joined by commas, and only the first of nested lists is used."""
    while isinstance(value, list | tuple) and value and isinstance(value[0], list | tuple):
        value = value[0]
    return shlex.quote(",".join(map(str, value)) if isinstance(value, list | tuple) else str(value))
