"""An option of a command, in one entry: click's option, the help, the checks and the refusals follow from it.

A new option is a new entry in the table of its command: `compare_options.py`, or the file of another command. An entry
with `into` reaches the library without further code.
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
# Only newer versions of click have generic classes here.
if TYPE_CHECKING:
    _Choice = click.Choice[str]
    _ParamType = click.ParamType[Any]
else:
    _Choice, _ParamType = click.Choice, click.ParamType
# No constraint of the library has a greater bound than this one; help does not show it.
_MOST = Whole().most


class _Checked(_ParamType):
    """A type of click that accepts what a constraint of the library accepts."""

    constraint: Constraint
    read: Callable[[Any], Any]

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the value that a text stands for, or refuse it in the name of the option."""
        try:
            return self.constraint.check("", "", self.read(value))
        except (ValueError, OverflowError, KullbackError):
            flag = "" if param is None else param.opts[-1]
            refusal = self.constraint.refusal("", flag, value)
            raise refusal.replace(place=flag, instead=f"{flag} {self.constraint.example}") from None


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
    """Names of columns, separated by commas or in a list, of which none may be empty.

    Arguments:
        fewest: the smallest number of different names.
    """

    name = "text"

    def __init__(self, fewest: int = 1) -> None:
        self.fewest = fewest

    def convert(
        self, value: str | Sequence[str], param: click.Parameter | None, ctx: click.Context | None
    ) -> list[str]:
        """Return the names."""
        names = value.split(",") if isinstance(value, str) else list(value)
        if all(names) and len(set(names)) >= self.fewest:
            return names
        flag = "" if param is None else param.opts[-1]
        raise ArgumentValueError.at(
            f"{flag} {printable(shlex.quote(','.join(names)), LONGEST_NAME)}",
            flag,
            wanted=f"names of {'columns' if self.fewest == 1 else 'two or more columns'}, separated by commas",
            got=f"the single one {quoted(names[0])}" if names and all(names) else "an empty name",
            instead=f"{flag} A,B",
            wording=BY_CALL,
        )


FILE = click.Path(path_type=Path)


@dataclass(frozen=True)
class Option:
    """One option of a command.

    Attributes:
        flag: its name on the command line, such as ``--fail-above``.
        help: its description. The short help of a command shows the first sentence.
        accepts: the accepted values: a constraint of the library (a number, a word, or `FLAG`), or a type of click; any
            text if it is None.
        into: the argument of the library that gets the value; empty if the command itself uses the value.
        convert: makes the argument of the library from the value; by default they are equal.
        job: the title of its section in the help.
        subjects: the subjects of a comparison that take the option, the main one first; all of them by default.
        common: whether the short help shows it.
        default: its value if nobody gives one; None leaves the choice to the library.
        metavar: the name of its value in the help.
        short: a second name of one letter, such as ``-o``.
        repeatable: whether it may be given several times.
        required: whether it has to be given.
        alone: its value if it stands without one.
        reads_config: whether its value is the file of the other options.
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
        """Its name in a file of options."""
        return self.flag.removeprefix("--")

    @property
    def name(self) -> str:
        """Its name as click's parameter."""
        return self.key.replace("-", "_")

    @property
    def is_flag(self) -> bool:
        """Whether it stands without a value."""
        return self.accepts is FLAG

    @property
    def means_rows(self) -> bool:
        """Whether it says that the sides of a comparison are predictions or models, not tables."""
        return "predictions" in self.subjects and "tables" not in self.subjects

    def as_click(self) -> click.Option:
        """Return the option of click."""
        # A default of None would be a value of a required option; of a flag, it leaves the choice to the library.
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
        constraint = replace(self.accepts, optional=False)  # an option that is left out is None
        if isinstance(constraint, Whole):
            return _Whole(constraint)
        return _Word(constraint) if isinstance(constraint, OneOf) else _Number(cast("Number", constraint))


def complete_files(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Let the shell complete an argument as the path of a file, though it may be something else."""
    return [CompletionItem(incomplete, type="file")]
