"""The commands and their options; the work is done in the library."""

from __future__ import annotations

import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, Literal, get_args

import click
from rich.console import Console

from kullback.cli.compare import Inputs, run_comparison
from kullback.cli.convert import run_conversion
from kullback.cli.gates import METRICS_IN_WORDS, parse_gate
from kullback.cli.outputs import Outputs
from kullback.cli.pairs import print_pairs
from kullback.cli.quick import print_backends, print_divergences
from kullback.cli.tables import TABLE_METRICS_IN_WORDS, parse_table_gate, run_table_comparison, run_watch
from kullback.errors import ArgumentValueError, KullbackError
from kullback.io import Kind
from kullback.predictions.compare import BLOCK_BYTES

__all__ = ["kullback"]

KINDS = click.Choice(get_args(Kind))
TABLE = "table"
# What only one of the two comparisons takes: an option of the other one is a misunderstanding, not to be passed over.
OF_PREDICTIONS = (
    "kind_p", "kind_q", "key", "key_p", "key_q", "labels", "labels_key", "clusters_key", "worst", "bootstrap",
    "block_mb",
)  # fmt: skip
OF_TABLES = ("columns", "weights", "joint", "bins", "confidence")
FILE = click.Path(path_type=Path)
MEBIBYTE = 1024 * 1024


JSON = click.option(
    "--json",
    "json_path",
    is_flag=False,
    flag_value="-",
    metavar="[FILE]",
    help="Write JSON to FILE; without FILE, last on the line, print JSON and nothing else.",
)
HTML = click.option(
    "--html", "html_path", type=FILE, help="Write one self-contained page with plots to FILE."
)


def _split(ctx: click.Context, param: click.Parameter, value: Any) -> Any:
    """Read names apart by commas, once or for every time that the option was given."""
    if not value:
        return None if value is None else ()
    return value.split(",") if isinstance(value, str) else [each.split(",") for each in value]


# What `compare --as table` and `watch` share.
COLUMNS = click.option(
    "--columns", callback=_split, metavar="A,B,...", help="Tables: which columns to compare; without it, all."
)
WEIGHTS = click.option("--weights", metavar="COLUMN", help="Tables: what each row counts for.")
BINS = click.option(
    "--bins", type=click.IntRange(2), default=20, show_default=True, help="Tables: bins of numbers, at most."
)
CONFIDENCE = click.option(
    "--confidence",
    type=click.FloatRange(0, 1, min_open=True, max_open=True),
    default=0.95,
    show_default=True,
    help="Tables: what share of the intervals is to cover.",
)


class _Failure(click.ClickException):
    """An error in one line, and exit status 2."""

    exit_code = 2

    def show(self, file: IO[Any] | None = None) -> None:
        click.echo(f"kullback: {' '.join(self.format_message().split())}", file=file or sys.stderr)


@contextmanager
def _errors_in_one_line() -> Generator[None, None, None]:
    try:
        yield
    except click.UsageError as error:
        command = error.ctx.command_path if error.ctx else "kullback"
        raise _Failure(f"{error.format_message()} See: {command} --help") from error
    except (KullbackError, OSError) as error:
        raise _Failure(str(error)) from error


class _Commands(click.Group):
    """A group whose commands report every error in one line."""

    def make_context(self, *args: Any, **extra: Any) -> click.Context:
        with _errors_in_one_line():
            return super().make_context(*args, **extra)

    def invoke(self, ctx: click.Context) -> Any:
        with _errors_in_one_line():
            return super().invoke(ctx)


@click.group(
    cls=_Commands, invoke_without_command=True, context_settings={"help_option_names": ["-h", "--help"]}
)
@click.version_option(package_name="kullback", message="%(prog)s %(version)s")
@click.pass_context
def kullback(ctx: click.Context) -> None:
    """How far is Q from P? Kullback-Leibler divergences of files, distributions and models' predictions."""
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())


@kullback.command()
@click.argument("p", type=FILE)
@click.argument("q", type=FILE)
@click.option(
    "--as",
    "kind",
    type=click.Choice([*KINDS.choices, TABLE]),
    help="What the numbers in both files are; or table, to compare two tables column by column.",
)
@click.option("--as-p", "kind_p", type=KINDS, help="What those of P are, where the files differ.")
@click.option("--as-q", "kind_q", type=KINDS, help="Likewise for Q.")
@click.option("--key", help="The array to read from files that hold several.")
@click.option("--key-p", help="The array to read from P.")
@click.option("--key-q", help="The array to read from Q.")
@click.option("--labels", type=FILE, help="A file with the true class of each row, -100 for none.")
@click.option("--labels-key", help="The labels' name in their file.")
@click.option(
    "--cluster",
    "clusters",
    type=FILE,
    metavar="FILE|COLUMN",
    help="A file with the document or window that each row belongs to; of tables, the column that says it.",
)
@click.option("--cluster-key", "clusters_key", help="The clusters' name in their file.")
@click.option(
    "--worst", type=click.IntRange(0), default=10, show_default=True, help="How many worst rows to show."
)
@JSON
@HTML
@click.option(
    "--fail-above",
    multiple=True,
    metavar="METRIC=LIMIT",
    help=f"End with status 1 where METRIC is above LIMIT; may be repeated. METRIC: {METRICS_IN_WORDS}. "
    f"Of tables: {TABLE_METRICS_IN_WORDS}.",
)
@click.option(
    "--fail-below", multiple=True, metavar="METRIC=LIMIT", help="Likewise where it is below, as top1=0.99."
)
@click.option(
    "--bootstrap", type=click.IntRange(0), default=1000, show_default=True, help="Draws for the intervals."
)
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="The seed of these draws.")
@COLUMNS
@WEIGHTS
@click.option(
    "--joint",
    callback=_split,
    multiple=True,
    metavar="A,B",
    help="Tables: columns to compare together; repeatable.",
)
@BINS
@CONFIDENCE
@click.option("--no-progress", is_flag=True, help="Show no progress bar (there is none without a terminal).")
@click.option(
    "--block-mb",
    type=click.FloatRange(0, min_open=True),
    default=BLOCK_BYTES / MEBIBYTE,
    show_default=True,
    help="How many MiB of each file to hold at a time.",
)
@click.pass_context
def compare(
    ctx: click.Context,
    p: Path,
    q: Path,
    kind: Any,
    kind_p: Kind | None,
    kind_q: Kind | None,
    key: str | None,
    key_p: str | None,
    key_q: str | None,
    json_path: str | None,
    html_path: Path | None,
    fail_above: tuple[str, ...],
    fail_below: tuple[str, ...],
    no_progress: bool,
    block_mb: float,
    **settings: Any,
) -> None:
    """Compare two models' predictions of the same positions, or two tables: the files P, the reference, and Q.

    Predictions: npy, npz, safetensors, pt, parquet, csv, or llama.cpp's --kl-divergence-base file, with one
    distribution over the classes in each row. Tables (--as table): parquet, csv or ndjson, rows of columns. Divergences
    are in nats. Ends with status 1 where a gate fails, 2 on an error.
    """
    _refuse_options(ctx, OF_PREDICTIONS if kind == TABLE else OF_TABLES, of_tables=kind == TABLE)
    of_tables = {name: settings.pop(name) for name in OF_TABLES}
    outputs = Outputs(json_path, html_path)
    if kind == TABLE:
        cluster = settings["clusters"]
        failures = run_table_comparison(
            p,
            q,
            outputs,
            [parse_table_gate(text, side) for side, text in _limits(fail_above, fail_below)],
            cluster=None if cluster is None else str(cluster),
            seed=settings["seed"],
            show_progress=not no_progress,
            **of_tables,
        )
    else:
        gates = [parse_gate(text, side) for side, text in _limits(fail_above, fail_below)]
        inputs = Inputs(p, q, (kind_p or kind, kind_q or kind), (key_p or key, key_q or key))
        settings |= {"block_bytes": max(1, int(block_mb * MEBIBYTE))}
        failures = run_comparison(inputs, outputs, gates, settings, show_progress=not no_progress)
    _end(failures)


def _limits(
    fail_above: tuple[str, ...], fail_below: tuple[str, ...]
) -> list[tuple[Literal["above", "below"], str]]:
    return [*(("above", text) for text in fail_above), *(("below", text) for text in fail_below)]


def _refuse_options(ctx: click.Context, names: tuple[str, ...], *, of_tables: bool) -> None:
    """Refuse what was given on the command line but makes no sense for this comparison."""
    for parameter in ctx.command.params:
        given = ctx.get_parameter_source(parameter.name or "") is click.core.ParameterSource.COMMANDLINE
        if parameter.name in names and given:
            option = parameter.opts[-1]
            remedy = (
                "leave it out: tables have no such thing"
                if of_tables
                else "--as table, if P and Q are tables"
            )
            kind = "predictions" if of_tables else "tables"
            raise ArgumentValueError(f"{option} is for comparing {kind}; {remedy}")


def _end(failures: list[str]) -> None:
    """Name the gates that failed, and end with status 1 where there is one."""
    for failure in failures:
        click.echo(f"kullback: gate failed: {failure}", err=True)
    if failures:
        raise click.exceptions.Exit(1)


@kullback.command()
@click.argument("reference", type=FILE)
@click.argument("batches", nargs=-1, metavar="[BATCH]...", type=FILE)
@click.option(
    "--profile", type=FILE, help="Where the reference's profile is; without it, REFERENCE.profile.json."
)
@click.option("--rebuild", is_flag=True, help="Count the reference anew, whatever profile there is.")
@click.option("--merge", is_flag=True, help="Take all batches as one: their counts are added.")
@click.option("--save-batch", type=FILE, help="Write the batch's profile, to be merged with others later.")
@COLUMNS
@WEIGHTS
@BINS
@CONFIDENCE
@JSON
@HTML
@click.option(
    "--fail-above",
    multiple=True,
    metavar="METRIC=LIMIT",
    help=f"End with status 1 where METRIC is above LIMIT; may be repeated. METRIC: {TABLE_METRICS_IN_WORDS}.",
)
@click.option("--fail-below", multiple=True, metavar="METRIC=LIMIT", help="Likewise, as p_adjusted=0.01.")
@click.option(
    "--seed", type=click.IntRange(0), default=0, show_default=True, help="The seed of all randomness."
)
@click.option("--no-progress", is_flag=True, help="Do not say what is being counted.")
def watch(
    reference: Path,
    batches: tuple[Path, ...],
    json_path: str | None,
    html_path: Path | None,
    fail_above: tuple[str, ...],
    fail_below: tuple[str, ...],
    no_progress: bool,
    **settings: Any,
) -> None:
    """Check BATCHes, tables or their profiles, against the profile of REFERENCE.

    The profile is made once and kept: counts alone, a few KB, no row of the data. Without a BATCH it is only made.
    Files: parquet, csv or ndjson, or profiles that were saved. Ends with status 1 where a gate fails, 2 on an error.
    """
    _end(
        run_watch(
            reference,
            batches,
            Outputs(json_path, html_path),
            [parse_table_gate(text, side) for side, text in _limits(fail_above, fail_below)],
            show_progress=not no_progress,
            **settings,
        )
    )


@kullback.command()
@click.argument("source", metavar="SRC", type=FILE)
@click.argument("target", metavar="DST.kld", type=FILE)
@click.option("--as", "kind", type=KINDS, help="What the numbers in SRC are.")
@click.option("--key", help="The array to read where SRC holds several.")
@click.option(
    "--tokens", required=True, type=FILE, help="A file with the tokens of all windows, one after the other."
)
@click.option("--tokens-key", help="The tokens' name in their file.")
@click.option("--n-ctx", required=True, type=click.IntRange(3), help="The number of tokens in a window.")
@click.option(
    "--all-positions",
    is_flag=True,
    help="SRC has a row for every token; keep those that llama.cpp scores, the second half of each window.",
)
@click.option(
    "--floor",
    type=click.FloatRange(0, min_open=True),
    default=16.0,
    show_default=True,
    help="Nats below a row's largest that are kept: 16 for llama.cpp, 24 for ik_llama.cpp.",
)
@click.option("--no-progress", is_flag=True, help="Show no progress bar (there is none without a terminal).")
def convert(source: Path, target: Path, *, no_progress: bool, **settings: Any) -> None:
    """Write the predictions in SRC as a base file for llama-perplexity --kl-divergence, so that a GGUF model can be
    compared with them.
    """
    run_conversion(source, target, show_progress=not no_progress, **settings)


@kullback.command()
@click.argument("p")
@click.argument("q")
@click.option("--base", type=float, help="The base of the logarithm: 2 gives bits. Without it: nats.")
def calc(p: str, q: str, base: float | None) -> None:
    """Print KL(P || Q) and KL(Q || P) of two distributions, such as 'Normal(0, 1)' and 'Laplace(0, 1)'.

    Any distribution of torch.distributions, with numbers, lists and keyword arguments; or Probs([...]), Logits([...]),
    LogProbs([...]), Counts([...]). Numbers are taken in float64.
    """
    print_divergences(p, q, base)


@kullback.command()
@click.argument("family", required=False)
@click.option("--json", "style", flag_value="json", help="Print JSON and nothing else.")
@click.option("--markdown", "style", flag_value="markdown", help="Print the page of the documentation.")
def pairs(family: str | None, style: str | None) -> None:
    """Show which rule serves each pair of torch's distributions, or only those of one FAMILY, such as Gamma."""
    print_pairs(family, style, Console())


@kullback.command()
def backends() -> None:
    """Show which implementation runs for which device and dtype, and why others do not."""
    print_backends(Console())
