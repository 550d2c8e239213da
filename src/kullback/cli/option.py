"""`Option`: one entry that determines the click option, its help, its checks and its error messages.

To add an option, add an entry to the table of its command, in `compare_options.py` or in the module of another command.
If the entry has `into`, the value is passed to the library without further code.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

import click
from click.shell_completion import CompletionItem

from kullback.common.constraints import FLAG, Constraint, Number, OneOf, Whole
from kullback.errors import BY_CALL, LONGEST_NAME, ArgumentValueError, KullbackError, printable, quoted

Subject = Literal["predictions", "tables", "models"]
Job = Literal["Predictions", "Tables", "Language models", "Limits", "Computation", "Output", ""]
# In older versions of click, these classes are not generic.
if TYPE_CHECKING:
    _Choice = click.Choice[str]
    _ParamType = click.ParamType[Any]
else:
    _Choice, _ParamType = click.Choice, click.ParamType
# The default upper bound of `Whole`, which the help does not show.
_MOST = Whole().most


class _Checked(_ParamType):
    """A click type that accepts the same values as a constraint of the library."""

    constraint: Constraint
    read: Callable[[Any], Any]

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the text converted to a checked value, or raise an error that names the option."""
        try:
            return self.constraint.check("", "", self.read(value))
        except (ValueError, OverflowError, KullbackError):
            flag = "" if param is None else param.opts[-1]
            refusal = self.constraint.refusal("", flag, value)
            raise refusal.replace(
                place=flag, instead=f"{flag} {self.constraint.example_for(value)}"
            ) from None


class _Whole(_Checked, click.IntRange):
    read = int

    def __init__(self, constraint: Whole) -> None:
        super().__init__(constraint.least, None if constraint.most == _MOST else constraint.most)
        self.constraint = constraint


class _Number(_Checked, click.FloatRange):
    read = float

    def __init__(self, constraint: Number) -> None:
        least = constraint.least if constraint.above is None else constraint.above
        most = constraint.most if constraint.below is None else constraint.below
        super().__init__(
            least,
            None if most == float("inf") else most,
            min_open=constraint.above is not None,
            max_open=constraint.below is not None,
        )
        self.constraint = constraint


class _Word(_Checked, _Choice):
    read = str

    def __init__(self, constraint: OneOf) -> None:
        super().__init__(constraint.words)
        self.constraint = constraint


class Names(_ParamType):
    """A click type for at least `fewest` different, nonempty names of columns, separated by commas or in a list."""

    name = "text"

    def __init__(self, fewest: int = 1) -> None:
        self.fewest = fewest

    def convert(
        self, value: str | Sequence[str], param: click.Parameter | None, ctx: click.Context | None
    ) -> list[str]:
        """Return the list of names."""
        names = value.split(",") if isinstance(value, str) else list(value)
        if all(names) and len(set(names)) >= self.fewest:
            return names
        flag = "" if param is None else param.opts[-1]
        raise invalid_option(
            flag,
            wanted=f"names of {'columns' if self.fewest == 1 else 'two or more columns'}, separated by commas",
            got=f"the single one {quoted(names[0])}" if names and all(names) else "an empty name",
            instead=f"{flag} A,B",
            place=f"{flag} {printable(shlex.quote(','.join(names)), LONGEST_NAME)}",
        )


def invalid_option(
    flag: str, *, wanted: str, got: str, instead: str, place: str | None = None
) -> ArgumentValueError:
    """Return the error for the value of an option. `place` is the beginning of the message, by default the flag."""
    place = flag if place is None else place
    return ArgumentValueError.at(place, flag, wanted=wanted, got=got, instead=instead, wording=BY_CALL)


FILE = click.Path(path_type=Path)


@dataclass(frozen=True)
class Option:
    """One option of a command.

    Attributes:
        flag: the name of the option on the command line, such as ``--fail-above``.
        help: the description of the option. The short help of a command shows the first sentence.
        accepts: the accepted values: a constraint of the library (a number, a word, or `FLAG`), or a click type. None
            accepts any text.
        into: the argument of the library that gets the value; empty if the command itself uses the value.
        convert: the function that converts the value to the argument of the library; None if they are equal.
        job: the title of the section in the help that contains the option.
        subjects: the subjects of a comparison that take the option, the main subject first; by default all subjects.
        common: whether the short help shows the option.
        default: the value if the option is not given; with None, the library chooses the value.
        metavar: the name of the value in the help; None for click's default name.
        short: a second name with one letter, such as ``-o``; None if there is none.
        alone: the value if the option is given without a value; None if the option needs a value.
        reads_config: whether the value is the path of a file with other options.
    """

    flag: str
    help: str
    _: KW_ONLY
    accepts: Constraint | _ParamType | None = None
    into: str = ""
    convert: Callable[[Any], object] | None = None
    job: Job = ""
    subjects: tuple[Subject, ...] = ("predictions", "tables", "models")
    common: bool = False
    default: object = None
    metavar: str | None = None
    short: str | None = None
    repeatable: bool = False
    required: bool = False
    alone: str | None = None
    reads_config: bool = False

    @property
    def key(self) -> str:
        """The name of the option in a file of options."""
        return self.flag.removeprefix("--")

    @property
    def name(self) -> str:
        """The name of the click parameter of the option."""
        return self.key.replace("-", "_")

    @property
    def is_flag(self) -> bool:
        """Whether the option takes no value."""
        return self.accepts is FLAG

    def as_click(self) -> click.Option:
        """Return the click option."""
        # Click would take a default of None as the value of a required option. For a flag, with a default of None, the
        # library chooses the value.
        further: Any = {} if self.default is None else {"default": self.default}
        if self.is_flag:
            further = {"is_flag": True, "default": None}
        elif self.alone is not None:
            further |= {"is_flag": False, "flag_value": self.alone}
        return click.Option(
            [*([self.short] if self.short else []), self.flag, self.name],
            **further,
            type=None if self.is_flag else self._type,
            show_default=self.default is not None,
            metavar=self.metavar,
            multiple=self.repeatable,
            required=self.required,
            help=self.help,
        )

    @property
    def _type(self) -> _ParamType | None:
        if not isinstance(self.accepts, Constraint):
            return self.accepts
        constraint = replace(self.accepts, optional=False)  # an absent option has the value None
        if isinstance(constraint, Whole):
            return _Whole(constraint)
        return _Word(constraint) if isinstance(constraint, OneOf) else _Number(cast("Number", constraint))


def complete_files(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Let the shell complete an argument as the path of a file, although the argument may be something else."""
    return [CompletionItem(incomplete, type="file")]
