"""The command ``kullback compare``."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import click
import torch

from kullback import report
from kullback.cli.gates import METRICS_IN_WORDS, Gate, parse_gate
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
    fail_above,
    fail_below,
    finish,
    given_limits,
    split_names,
)
from kullback.cli.outputs import Outputs, check_outputs, write_reports
from kullback.cli.tables import TABLE_METRICS_IN_WORDS, parse_table_gate, run_table_comparison
from kullback.errors import ArgumentValueError
from kullback.io import RepresentationName
from kullback.predictions import compare_predictions
from kullback.predictions.compare import BLOCK_BYTES
from kullback.progress import progress_bar

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
    type=click.IntRange(0),
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
    type=click.FloatRange(0, min_open=True),
    default=BLOCK_BYTES / MEBIBYTE,
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
    outputs = Outputs(json_path, html_path)
    if representation == TABLE:
        cluster = settings["cluster"]
        failures = run_table_comparison(
            p,
            q,
            outputs,
            [parse_table_gate(text, side) for side, text in given_limits(fail_above, fail_below)],
            cluster=None if cluster is None else str(cluster),
            seed=seed,
            show_progress=not no_progress,
            **of_tables,
        )
    else:
        gates = [parse_gate(text, side) for side, text in given_limits(fail_above, fail_below)]
        representations = representation_p or representation, representation_q or representation
        inputs = _Inputs(p, q, representations, (key_p or key, key_q or key))
        settings |= {
            "block_bytes": max(1, int(block_mb * MEBIBYTE)),
            "generator": torch.Generator().manual_seed(seed),
        }
        failures = _compare_predictions(inputs, outputs, gates, settings, show_progress=not no_progress)
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


class _Inputs(NamedTuple):
    """The two files and how to read them, P's first."""

    p: Path
    q: Path
    representations: tuple[RepresentationName | None, RepresentationName | None]
    keys: tuple[str | None, str | None]


def _compare_predictions(
    inputs: _Inputs, outputs: Outputs, gates: list[Gate], settings: dict[str, Any], *, show_progress: bool
) -> list[str]:
    """Compare two files, write the reports, and say which gates fail.

    Arguments:
        inputs: the files to compare.
        outputs: where the reports go.
        gates: the limits to keep.
        settings: further arguments of `compare_predictions`.
        show_progress: whether to show a progress bar, if there is a terminal.

    Returns:
        a sentence for each gate that fails.
    """
    check_outputs(outputs, [inputs.p, inputs.q, settings["labels"], settings["cluster"]])
    with progress_bar("rows", show=show_progress, patience=0) as progress:
        found = compare_predictions(
            inputs.p,
            inputs.q,
            representation=inputs.representations,
            key=inputs.keys,
            progress=progress,
            **settings,
        )
    failures = [failure for gate in gates if (failure := gate.failure(found))]
    write_reports(
        outputs,
        json=lambda: report.json.dumps(found),
        html=lambda: report.html.render(found),
        table=lambda console: report.terminal.render(found, console),
    )
    return failures
