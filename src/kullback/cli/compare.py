"""The command ``kullback compare``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from kullback.cli.gates import METRICS_IN_WORDS, TABLE_METRICS_IN_WORDS, parse_gate, parse_table_gate
from kullback.cli.options import (
    BINS,
    COLUMNS,
    CONFIDENCE,
    FILE,
    HTML,
    JSON,
    NO_PROGRESS,
    REPRESENTATIONS,
    SEED,
    WEIGHTS,
    FiniteRange,
    fail_above,
    fail_below,
    finish,
    given_limits,
    split_names,
)
from kullback.cli.outputs import Outputs
from kullback.errors import ArgumentValueError

if TYPE_CHECKING:
    from kullback.words import RepresentationName

__all__ = ["compare"]

TABLE = "table"
# The options of one of the two comparisons, which are refused for the other.
OF_PREDICTIONS = (
    "representation_p", "representation_q", "key", "key_p", "key_q", "labels", "labels_key", "cluster_key", "worst",
    "bootstrap", "block_mb",
)  # fmt: skip
OF_TABLES = ("columns", "weights", "joint", "bins", "confidence")
MEBIBYTE = 1024 * 1024


@click.command()
@click.argument("p", type=FILE)
@click.argument("q", type=FILE)
@click.option(
    "--as",
    "representation",
    type=click.Choice([*REPRESENTATIONS.choices, TABLE]),
    help="What the numbers in both files are; or table, to compare two tables column by column.",
)
@click.option(
    "--as-p",
    "representation_p",
    type=REPRESENTATIONS,
    help="What the numbers in P are, where the files differ.",
)
@click.option("--as-q", "representation_q", type=REPRESENTATIONS, help="What the numbers in Q are.")
@click.option("--key", help="The array to read from files that hold several.")
@click.option("--key-p", help="The array to read from P.")
@click.option("--key-q", help="The array to read from Q.")
@click.option("--labels", type=FILE, help="A file with the true class of each row, -100 for none.")
@click.option("--labels-key", help="The name of the labels in their file.")
@click.option(
    "--cluster",
    "cluster",
    type=FILE,
    metavar="FILE|COLUMN",
    help="A file with the document or window of each row; of tables, the column of it.",
)
@click.option("--cluster-key", "cluster_key", help="The name of the clusters in their file.")
@click.option(
    "--worst", type=click.IntRange(0), default=10, show_default=True, help="The number of worst rows to show."
)
@JSON
@HTML
@fail_above(f"{METRICS_IN_WORDS}. Of tables: {TABLE_METRICS_IN_WORDS}")
@fail_below("top1=0.99")
@click.option(
    "--bootstrap",
    type=click.IntRange(0, 100_000),
    default=1000,
    show_default=True,
    help="Bootstrap draws for the intervals.",
)
@SEED
@COLUMNS
@WEIGHTS
@click.option(
    "--joint",
    callback=split_names,
    multiple=True,
    metavar="A,B",
    help="Tables: columns to compare together; repeatable.",
)
@BINS
@CONFIDENCE
@NO_PROGRESS
@click.option(
    "--block-mb",
    type=FiniteRange(0, 2**20, min_open=True),
    default=40.0,
    show_default=True,
    help="MiB of each file to read at a time.",
)
@click.pass_context
def compare(
    ctx: click.Context,
    p: Path,
    q: Path,
    representation: Any,
    representation_p: RepresentationName | None,
    representation_q: RepresentationName | None,
    key: str | None,
    key_p: str | None,
    key_q: str | None,
    json_path: str | None,
    html_path: Path | None,
    fail_above: tuple[str, ...],
    fail_below: tuple[str, ...],
    no_progress: bool,
    block_mb: float,
    seed: int,
    **settings: Any,
) -> None:
    """Compare two models' predictions of the same positions, or two tables: the files P, the reference, and Q.

    Predictions: npy, npz, safetensors, pt, parquet, csv, or llama.cpp's --kl-divergence-base file, with one
    distribution over the classes in each row. Tables (--as table): parquet, csv or ndjson, rows of columns. Divergences
    are in nats. The exit status is 1 if a gate fails and 2 on an error.
    """
    _refuse_options(
        ctx, OF_PREDICTIONS if representation == TABLE else OF_TABLES, of_tables=representation == TABLE
    )
    of_tables = {name: settings.pop(name) for name in OF_TABLES}
    limits = given_limits(fail_above, fail_below)
    if representation == TABLE:
        cluster = settings["cluster"]
        table_gates = [parse_table_gate(text, side) for side, text in limits]
        from kullback.cli.tables import run_table_comparison

        failures = run_table_comparison(
            p,
            q,
            Outputs(json_path, html_path),
            table_gates,
            cluster=None if cluster is None else str(cluster),
            seed=seed,
            show_progress=not no_progress,
            **of_tables,
        )
    else:
        gates = [parse_gate(text, side) for side, text in limits]
        from kullback.cli.predictions import Inputs, run_prediction_comparison

        representations = representation_p or representation, representation_q or representation
        failures = run_prediction_comparison(
            Inputs(p, q, representations, (key_p or key, key_q or key)),
            Outputs(json_path, html_path),
            gates,
            block_bytes=max(1, int(block_mb * MEBIBYTE)),
            seed=seed,
            show_progress=not no_progress,
            **settings,
        )
    finish(failures)


def _refuse_options(ctx: click.Context, names: tuple[str, ...], *, of_tables: bool) -> None:
    """Refuse options of the other comparison."""
    for parameter in ctx.command.params:
        given = ctx.get_parameter_source(parameter.name or "") is click.core.ParameterSource.COMMANDLINE
        if parameter.name in names and given:
            option = parameter.opts[-1]
            remedy = "leave it out" if of_tables else "--as table, if P and Q are tables"
            what = "predictions" if of_tables else "tables"
            raise ArgumentValueError(f"{option} is for comparing {what}; {remedy}")
