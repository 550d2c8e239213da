"""The command ``kullback watch``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from kullback.cli.gates import TABLE_METRICS_IN_WORDS, parse_table_gate
from kullback.cli.outputs import Outputs
from kullback.cli.shared_options import (
    BINS,
    COLUMNS,
    CONFIDENCE,
    FILE,
    HTML,
    INDEPENDENT,
    JSON,
    MARKDOWN,
    NO_PROGRESS,
    SEED,
    WEIGHTS,
    fail_above,
    fail_below,
    finish,
    given_limits,
)


@click.command()
@click.argument("reference", type=FILE)
@click.argument("batches", nargs=-1, metavar="[BATCH]...", type=FILE)
@click.option(
    "--profile", type=FILE, help="The file of the reference's profile; by default REFERENCE.profile.json."
)
@click.option("--rebuild", is_flag=True, help="Count the reference again, even if there is a profile.")
@click.option("--merge", is_flag=True, help="Treat all batches as one: add their counts.")
@click.option(
    "--save-batch", type=FILE, help="Write the profile of the batch to FILE; it can be merged later."
)
@COLUMNS
@WEIGHTS
@INDEPENDENT
@BINS
@CONFIDENCE
@JSON
@HTML
@MARKDOWN
@fail_above("psi=0.1", TABLE_METRICS_IN_WORDS)
@fail_below("p_adjusted=0.01")
@SEED
@NO_PROGRESS
def watch(
    reference: Path,
    batches: tuple[Path, ...],
    json_path: str | None,
    html_path: Path | None,
    markdown_path: Path | None,
    fail_above: tuple[str, ...],
    fail_below: tuple[str, ...],
    no_progress: bool,
    **settings: Any,
) -> None:
    """Check BATCHes, tables or their profiles, against the profile of REFERENCE.

    \b
    kullback watch reference.parquet
    kullback watch reference.parquet monday.csv tuesday.csv
    kullback watch reference.parquet today.csv --bins 10

    The profile is made once and kept: a few KB of counts, no row of the data. Without a BATCH it is only made. One
    BATCH is reported in full, several in one line each; --json, --html and --markdown write all in full.
    Files: parquet, csv or ndjson, or profiles that were saved. The exit status is 1 if a gate fails and 2 on an error.
    """
    gates = [parse_table_gate(text, side) for side, text in given_limits(fail_above, fail_below)]
    from kullback.cli.table_comparison import run_watch

    finish(
        run_watch(
            reference,
            batches,
            Outputs(json_path, html_path, markdown_path),
            gates,
            show_progress=not no_progress,
            **settings,
        )
    )
