"""Options that several commands share."""

from __future__ import annotations

import math
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
from click.shell_completion import CompletionItem

from kullback.common.words import REPRESENTATION_NAMES
from kullback.errors import BY_CALL, LONGEST_NAME, ArgumentValueError, printable, quoted


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


def _split_columns(ctx: click.Context, param: click.Parameter, value: str | None) -> list[str] | None:
    """Split the names of columns, of which none may be empty."""
    if value is not None and not all(value.split(",")):
        raise _wrong_names(param.opts[0], value, "names of columns", "an empty name")
    return None if value is None else value.split(",")


def _split_groups(ctx: click.Context, param: click.Parameter, value: Sequence[str]) -> list[list[str]]:
    """Split the names of each group of columns, in which there have to be two."""
    groups = [each.split(",") for each in value]
    for text, names in zip(value, groups, strict=True):
        if not all(names) or len(set(names)) < 2:
            got = "an empty name" if not all(names) else f"the single one {quoted(names[0])}"
            raise _wrong_names("--joint", text, "names of two or more columns", got)
    return groups


def _wrong_names(option: str, given: str, wanted: str, got: str) -> ArgumentValueError:
    return ArgumentValueError.at(
        f"{option} {printable(shlex.quote(given), LONGEST_NAME)}",
        wanted=f"{wanted}, separated by commas",
        got=got,
        instead=f"{option} A,B",
        wording=BY_CALL,
    )


FILE = click.Path(path_type=Path)
REPRESENTATIONS = click.Choice(REPRESENTATION_NAMES)

# The reports.
JSON = click.Option(
    ["--json", "json_path"],
    is_flag=False,
    flag_value="-",
    metavar="[FILE]",
    help="Write JSON to FILE, or print it. Without FILE, as the last argument, print JSON and nothing else.",
)
MARKDOWN = click.Option(
    ["--markdown", "markdown_path"],
    type=FILE,
    metavar="FILE",
    help="Write a short summary in Markdown. It suits $GITHUB_STEP_SUMMARY.",
)
HTML = click.Option(
    ["--html", "html_path"], type=FILE, metavar="FILE", help="Write a self-contained page with plots."
)

# Of tables.
COLUMNS = click.Option(
    ["--columns"],
    callback=_split_columns,
    metavar="A,B,...",
    help="The columns to compare; all by default. Of predictions, the columns that are classes.",
)
EXCLUDE = click.Option(
    ["--exclude"],
    callback=_split_columns,
    metavar="A,B,...",
    help="Columns to leave out, instead of --columns.",
)
WEIGHTS = click.Option(["--weights"], metavar="COLUMN", help="The column of row weights.")
JOINT = click.Option(
    ["--joint"],
    callback=_split_groups,
    multiple=True,
    metavar="A,B",
    help="Columns to compare together. Repeatable.",
)
BINS = click.Option(
    ["--bins"], type=click.IntRange(2), default=20, show_default=True, help="Bins of numbers, at most."
)
CONFIDENCE = click.Option(
    ["--confidence"],
    type=FiniteRange(0, 1, min_open=True, max_open=True),
    default=0.95,
    show_default=True,
    help="The coverage probability of the intervals.",
)

# Of language models.
MODEL_OPTIONS = (
    click.Option(
        ["--context"],
        type=click.IntRange(3),
        default=512,
        metavar="N",
        show_default=True,
        help="The tokens in a window.",
    ),
    click.Option(
        ["--score"],
        type=click.Choice(["second-half", "all", "assistant"]),
        default="second-half",
        show_default=True,
        help="The tokens that count: each window's second half (as in llama.cpp), all, or the assistant's replies "
        "in JSONL conversations.",
    ),
    click.Option(
        ["--windows", "most_windows"],
        type=click.IntRange(1),
        metavar="N",
        help="How many windows to read; all by default.",
    ),
    click.Option(
        ["--dtype"],
        type=click.Choice(["auto", "float32", "bfloat16", "float16"]),
        default="auto",
        show_default=True,
        help="The dtype of the weights of models in folders.",
    ),
    click.Option(
        ["--device"],
        default="cpu",
        metavar="NAME",
        show_default=True,
        help="Where models in folders run, such as cuda.",
    ),
    click.Option(["--trust-remote-code"], is_flag=True, help="Allow code in the folder of a model to run."),
    click.Option(["--hub"], is_flag=True, help="Allow names of models on the Hugging Face hub."),
)

INDEPENDENT = click.Option(
    ["--independent"],
    is_flag=True,
    help="Rows (for models, windows or documents) are independent: their order is not examined.",
)
NO_PROGRESS = click.Option(
    ["--no-progress"], is_flag=True, help="Show no progress (none is shown without a terminal)."
)
SEED = click.Option(
    ["--seed"],
    type=click.IntRange(0, 2**63 - 1),
    default=0,
    show_default=True,
    help="The seed of the random numbers.",
)


ALLOW_UNCLEAR = click.Option(
    ["--allow-unclear"],
    is_flag=True,
    help="Exit with status 0, not 3, if no gate fails and the data do not decide a gate.",
)


def limits(example_above: str, example_below: str, metrics: str) -> list[click.Option]:
    """Return ``--fail-above``, ``--fail-below``, with examples and `metrics` in their help, and ``--allow-unclear``."""
    texts = {
        "above": f"{example_above}. Exit with status 3 if the data do not decide. Repeatable. METRIC: {metrics}.",
        "below": f"{example_below}. Exit with status 3 if the data do not decide. Repeatable. METRIC is as for "
        "--fail-above.",
    }
    sides = [
        click.Option(
            [f"--fail-{side}"],
            multiple=True,
            metavar="METRIC=LIMIT",
            help=f"Exit with status 1 {side} a limit: {text}",
        )
        for side, text in texts.items()
    ]
    return [*sides, ALLOW_UNCLEAR]
