"""Options that several commands share."""

from __future__ import annotations

import math
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.shell_completion import CompletionItem

from kullback.cli.gates import Side
from kullback.cli.streams import print_error
from kullback.common.words import REPRESENTATION_NAMES
from kullback.errors import LONGEST_MESSAGE, LONGEST_NAME, ArgumentValueError, printable, quoted

if TYPE_CHECKING:
    from kullback.generators import Divergence


class FiniteRange(click.FloatRange):
    """A range of numbers without infinity and NaN."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Convert a text, or fail with the name of the option."""
        number = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value} is not a finite number.", param, ctx)
        return number


def complete_files(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Let the shell complete an argument as the path of a file, though it may be something else."""
    return [CompletionItem(incomplete, type="file")]


FILE = click.Path(path_type=Path)
REPRESENTATIONS = click.Choice(REPRESENTATION_NAMES)

JSON = click.option(
    "--json",
    "json_path",
    is_flag=False,
    flag_value="-",
    metavar="[FILE]",
    help="Write JSON to FILE, or print it. Without FILE, as the last argument, print JSON and nothing else.",
)
MARKDOWN = click.option(
    "--markdown",
    "markdown_path",
    type=FILE,
    metavar="FILE",
    help="Write a short summary in Markdown. It suits $GITHUB_STEP_SUMMARY.",
)
HTML = click.option(
    "--html", "html_path", type=FILE, metavar="FILE", help="Write a self-contained page with plots."
)


def split_columns(ctx: click.Context, param: click.Parameter, value: str | None) -> list[str] | None:
    """Split the names of columns, of which none may be empty."""
    if value is not None and not all(value.split(",")):
        raise _wrong_names("--columns", value, "names of columns", "an empty name")
    return None if value is None else value.split(",")


def split_groups(ctx: click.Context, param: click.Parameter, value: Sequence[str]) -> list[list[str]]:
    """Split the names of each group of columns, in which there have to be two."""
    groups = [each.split(",") for each in value]
    for text, names in zip(value, groups, strict=True):
        if not all(names) or len(set(names)) < 2:
            got = "an empty name" if not all(names) else f"the single one {quoted(names[0])}"
            raise _wrong_names("--joint", text, "names of two or more columns", got)
    return groups


def _wrong_names(option: str, given: str, wanted: str, got: str) -> ArgumentValueError:
    return ArgumentValueError(
        f"{option} {printable(shlex.quote(given), LONGEST_NAME)}: wanted {wanted}, separated by commas; got {got}. "
        f"Write: {option} A,B"
    )


COLUMNS = click.option(
    "--columns",
    callback=split_columns,
    metavar="A,B,...",
    help="The columns to compare; all by default.",
)
WEIGHTS = click.option("--weights", metavar="COLUMN", help="The column of row weights.")
BINS = click.option(
    "--bins", type=click.IntRange(2), default=20, show_default=True, help="Bins of numbers, at most."
)
INDEPENDENT = click.option(
    "--independent",
    is_flag=True,
    help="Rows (for models, windows or documents) are independent: their order is not examined.",
)
CONFIDENCE = click.option(
    "--confidence",
    type=FiniteRange(0, 1, min_open=True, max_open=True),
    default=0.95,
    show_default=True,
    help="The coverage probability of the intervals.",
)
NO_PROGRESS = click.option(
    "--no-progress", is_flag=True, help="Show no progress (none is shown without a terminal)."
)
SEED = click.option(
    "--seed",
    type=click.IntRange(0, 2**63 - 1),
    default=0,
    show_default=True,
    help="The seed of the random numbers.",
)


KIND = click.option(
    "--kind",
    default="kl",
    show_default=True,
    help="The divergence: kl, reverse_kl, jeffreys, js:0.5, skew:0.1, tv, hellinger, chi2, alpha:0.5, renyi:2, ...",
)


def as_kind(command: str, name: str) -> Divergence:
    """Return the divergence that ``--kind`` names; every command takes the names of `kullback.generators.parse`."""
    from kullback.cli.option_errors import in_options
    from kullback.generators import as_divergence

    with in_options({"kind": "--kind"}):
        return as_divergence(command, name)


def fail_above(example: str, metrics: str) -> Any:
    """Return the option ``--fail-above``, whose help gives an example and lists `metrics`."""
    return _limit("above", example, f"METRIC: {metrics}.")


def fail_below(example: str) -> Any:
    """Return the option ``--fail-below``, whose help gives an example."""
    return _limit("below", example, "METRIC is as for --fail-above.")


def _limit(side: Side, example: str, metrics: str) -> Any:
    text = f"Exit with status 1 {side} a limit: {example}. Repeatable. {metrics}"
    return click.option(f"--fail-{side}", multiple=True, metavar="METRIC=LIMIT", help=text)


def given_limits(fail_above: tuple[str, ...], fail_below: tuple[str, ...]) -> list[tuple[Side, str]]:
    """Return (side, METRIC=LIMIT) for every limit that was given."""
    return [*(("above", text) for text in fail_above), *(("below", text) for text in fail_below)]


def finish(failures: list[str]) -> None:
    """Print the gates that failed, and exit with status 1 if there are any."""
    for failure in failures:
        print_error(f"kullback: gate failed: {printable(failure, LONGEST_MESSAGE)}")
    if failures:
        raise click.exceptions.Exit(1)
