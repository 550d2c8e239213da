"""The command ``kullback watch``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from kullback.cli import options
from kullback.cli.gates import TABLE_METRICS_IN_WORDS, TableGate, parse_limits, parse_table_gate
from kullback.cli.option_errors import in_options
from kullback.cli.outputs import Outputs, check_outputs, finish, write_reports
from kullback.common.files import check_writable, refuse_overwriting
from kullback.common.progress import progress_text
from kullback.errors import BY_CALL, ArgumentValueError, printable


@click.command(
    params=[
        click.Argument(["reference"], type=options.FILE),
        click.Argument(["batches"], nargs=-1, metavar="[BATCH]...", type=options.FILE),
        click.Option(
            ["--profile"],
            type=options.FILE,
            help="The file of the reference's profile; by default REFERENCE.profile.json.",
        ),
        click.Option(
            ["--rebuild"], is_flag=True, help="Count the reference again, even if there is a profile."
        ),
        click.Option(["--merge"], is_flag=True, help="Treat all batches as one: add their counts."),
        click.Option(
            ["--save-batch"],
            type=options.FILE,
            help="Write the profile of the batch to FILE; it can be merged later.",
        ),
        options.COLUMNS,
        options.EXCLUDE,
        options.WEIGHTS,
        options.INDEPENDENT,
        options.BINS,
        options.CONFIDENCE,
        options.JSON,
        options.HTML,
        options.MARKDOWN,
        *options.limits("psi=0.1", "p_adjusted.value=0.01", TABLE_METRICS_IN_WORDS),
        options.SEED,
        options.NO_PROGRESS,
    ]
)
def watch(
    reference: Path,
    batches: tuple[Path, ...],
    *,
    profile: Path | None,
    rebuild: bool,
    merge: bool,
    save_batch: Path | None,
    columns: list[str] | None,
    exclude: list[str] | None,
    weights: str | None,
    json_path: str | None,
    html_path: Path | None,
    markdown_path: Path | None,
    fail_above: tuple[str, ...],
    fail_below: tuple[str, ...],
    allow_unclear: bool,
    seed: int,
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
    p-values are corrected for all columns of all batches of one command. In separate commands, each batch shows a false
    difference with a probability of about 5%, so most months of 22 daily batches have one.
    Files: parquet, csv or ndjson, or profiles that were saved. The exit status is 1 if a gate fails, 3 if a gate cannot
    tell, and 2 on a wrong argument.
    """
    gates = parse_limits(parse_table_gate, fail_above, fail_below)
    outputs = Outputs(json_path, html_path, markdown_path)
    if not batches:
        _refuse_reports(outputs, gates, save_batch)
    elif len(batches) > 1 and save_batch is not None and not merge:
        raise ArgumentValueError.at(
            "--save-batch",
            "--save-batch",
            wanted="one batch",
            got=str(len(batches)),
            instead="--merge to take them as one",
            wording=BY_CALL,
        )
    import torch

    from kullback.cli.table_comparison import OPTIONS, REMEDIES
    from kullback.common.formats import counted
    from kullback.report.subjects.batches import Batches
    from kullback.tables import reference_profile as profiles
    from kullback.tables.compare_two_tables import compare_profiles, corrected_together

    place = profile or profiles.profile_path(reference)
    # The profile is read, and written too where it is made; whatever else is written must not be one of these.
    check_outputs(outputs, [reference, *batches, place], [save_batch] if save_batch else [])
    if not profiles.is_profile(reference):
        refuse_overwriting([place], [reference, *batches])
        if rebuild or not place.exists():
            check_writable(place)
    with in_options(OPTIONS, REMEDIES), progress_text(show=not no_progress) as progress:
        saved = profiles.reference_profile(
            reference,
            profile,
            rebuild=rebuild,
            columns=columns,
            exclude=exclude,
            weights=weights,
            progress=progress,
        )
        found = [
            (
                str(batch),
                profiles.batch_profile(batch, saved, columns=columns, exclude=exclude, progress=progress),
            )
            for batch in batches
        ]
    if not found:
        made = reference if profiles.is_profile(reference) else place
        size = f"{counted(saved.rows, 'row')} and {counted(len(saved.columns), 'column')}"
        click.echo(f"{made}: the profile of {size}")
        return
    if merge and len(found) > 1:
        names, counts = zip(*found, strict=True)
        found = [(", ".join(names), profiles.merge_profiles(counts))]
    compared = corrected_together(
        [
            compare_profiles(
                saved,
                batch,
                generator=torch.Generator().manual_seed(seed),
                names=(str(reference), name),
                **settings,
            )
            for name, batch in found
        ]
    )
    verdicts = [tuple(gate.verdict(each) for gate in gates) for each in compared]
    if len(found) == 1:
        others = {} if save_batch is None else {save_batch: found[0][1].to_json() + "\n"}
        finish(write_reports(compared[0], verdicts[0], outputs, others=others), allow_unclear=allow_unclear)
    else:
        whole = Batches(tuple(compared), tuple(verdicts))
        lines = "\n".join(map(printable, whole.lines))
        finish(
            write_reports(whole, (), outputs, table=lambda _: click.echo(lines)), allow_unclear=allow_unclear
        )


def _refuse_reports(outputs: Outputs, gates: Sequence[TableGate], save_batch: Path | None) -> None:
    """Refuse limits on a batch, and reports on it, where there is none."""
    if gates:
        limit = gates[0].limit
        raise ArgumentValueError.at(
            f"--fail-{limit.side}",
            f"--fail-{limit.side}",
            wanted="a batch to check",
            got="none",
            instead=f"kullback watch P Q --fail-{limit.side} {limit.metric}={limit.limit:g}",
            wording=BY_CALL,
        )
    reports = {
        "--json": outputs.json,
        "--html": outputs.html,
        "--markdown": outputs.markdown,
        "--save-batch": save_batch,
    }
    for option in (option for option, value in reports.items() if value is not None):
        raise ArgumentValueError.at(
            option, wanted="a batch to report on", got="none", instead="kullback watch P Q", wording=BY_CALL
        )
