"""The command ``kullback watch``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from kullback.cli import options
from kullback.cli.gates import OF_TABLES, Gate, gates_of
from kullback.cli.option import FILE, Option, invalid_option
from kullback.cli.option_command import command
from kullback.cli.outputs import check_outputs, files_of, finish, write_reports
from kullback.cli.settings import Settings, in_options
from kullback.common.constraints import FLAG
from kullback.common.files import check_writable, refuse_overwriting
from kullback.common.progress import progress_text
from kullback.errors import printable

if TYPE_CHECKING:
    from rich.console import Console

OPTIONS = (
    Option(
        "--profile", "The file of the reference's profile; by default REFERENCE.profile.json.", accepts=FILE
    ),
    Option("--rebuild", "Count the reference again, even if there is a profile.", accepts=FLAG),
    Option("--merge", "Treat all batches as one: add their counts.", accepts=FLAG),
    Option("--save-batch", "Write the profile of the batch to PATH; it can be merged later.", accepts=FILE),
    options.COLUMNS,
    options.EXCLUDE,
    options.WEIGHTS,
    options.INDEPENDENT,
    options.BINS,
    options.CONFIDENCE,
    options.FULL,
    options.JSON,
    options.HTML,
    options.MARKDOWN,
    *options.limits("psi=0.1", "p_adjusted.value=0.01", OF_TABLES.in_words),
    options.SEED,
    options.NO_PROGRESS,
    options.CONFIG,
)


@command(
    click.Argument(["reference"], type=FILE),
    click.Argument(["batches"], nargs=-1, metavar="[BATCH]...", type=FILE),
    options=OPTIONS,
)
def watch(reference: Path, batches: tuple[Path, ...], settings: Settings) -> None:
    """Check BATCHes, tables or their profiles, against the profile of REFERENCE.

    \b
    kullback watch reference.parquet
    kullback watch reference.parquet monday.csv tuesday.csv
    kullback watch reference.parquet today.csv --bins 10

    The profile is made once and saved. It has a few KB of counts, but no row of the data. Without a BATCH, the command
    only makes the profile. One BATCH is reported as by `kullback compare`, and several BATCHes in one line each.
    --full, --json, --html and --markdown give full reports of all batches.
    p-values are corrected for all columns of all batches of one command. In separate commands, each batch shows a false
    difference with a probability of about 5%, so most months with 22 daily batches have a false difference.
    Files are parquet, csv or ndjson, or saved profiles. The exit status is 1 if a gate fails, 3 if a gate is unclear,
    and 2 on a wrong argument.
    """
    gates = gates_of(settings, OF_TABLES)
    save_batch, place = settings["--save-batch"], settings["--profile"]
    if not batches:
        _refuse_reports(settings, gates)
    elif len(batches) > 1 and save_batch is not None and not settings["--merge"]:
        got, instead = str(len(batches)), "--merge to take them as one"
        raise invalid_option("--save-batch", wanted="one batch", got=got, instead=instead)
    from kullback.common.formats import counted
    from kullback.report import terminal
    from kullback.report.subjects.tables import Batches
    from kullback.tables import reference_profile as profiles
    from kullback.tables.compare_two_tables import compare_profiles, corrected_together

    place = place or profiles.profile_path(reference)
    # The profile is read, or made and written. No other output may overwrite the profile or an input.
    check_outputs(settings, [reference, *batches, place], [save_batch] if save_batch else [])
    if not profiles.is_profile(reference):
        refuse_overwriting([place], [reference, *batches, settings["--config"]])
        if settings["--rebuild"] or not place.exists():
            check_writable(place)
    with in_options(settings.flags), progress_text(show=not settings["--no-progress"]) as progress:
        saved = profiles.reference_profile(
            reference,
            settings["--profile"],
            rebuild=bool(settings["--rebuild"]),
            progress=progress,
            **settings.arguments_of(profiles.reference_profile),
        )
        of_batches = settings.arguments_of(profiles.batch_profile)
        counted_batches = [
            (str(batch), profiles.batch_profile(batch, saved, progress=progress, **of_batches))
            for batch in batches
        ]
    if not counted_batches:
        made = reference if profiles.is_profile(reference) else place
        size = f"{counted(saved.rows, 'row')} and {counted(len(saved.columns), 'column')}"
        click.echo(f"{made}: the profile of {size}")
        return
    if settings["--merge"] and len(counted_batches) > 1:
        names, counts = zip(*counted_batches, strict=True)
        counted_batches = [(", ".join(names), profiles.merge_profiles(counts))]
    compared = corrected_together(
        [
            compare_profiles(
                saved, batch, names=(str(reference), name), **settings.arguments_of(compare_profiles)
            )
            for name, batch in counted_batches
        ]
    )
    verdicts = [tuple(gate.verdict(each) for gate in gates) for each in compared]
    if len(counted_batches) == 1:
        others = {} if save_batch is None else {save_batch: counted_batches[0][1].to_json() + "\n"}
        judged = write_reports(compared[0], verdicts[0], settings, others=others)
    else:
        whole = Batches(tuple(compared), tuple(verdicts))
        files = ", ".join(map(printable, files_of(settings).values()))
        lines = "\n".join([*map(printable, whole.lines), *[f"Written: {files}"] * bool(files)])

        def show(console: Console) -> None:
            click.echo(lines)
            for page in whole.pages if settings["--full"] else ():
                terminal.render(page, console)

        judged = write_reports(whole, (), settings, table=show)
    finish(judged, allow_unclear=settings["--allow-unclear"])


def _refuse_reports(settings: Settings, gates: Sequence[Gate]) -> None:
    """Raise an error if limits or reports were requested, because there is no batch."""
    if gates:
        limit = gates[0].limit
        flag = f"--fail-{limit.side}"
        instead = f"kullback watch P Q {flag} {limit.metric}={limit.number}"
        place = settings.place_of(flag)
        raise invalid_option(flag, wanted="a batch to check", got="none", instead=instead, place=place)
    for flag in ("--json", "--html", "--markdown", "--save-batch"):
        if settings[flag] is not None:
            wanted, instead = "a batch to report on", "kullback watch P Q"
            raise invalid_option(flag, wanted=wanted, got="none", instead=instead)
