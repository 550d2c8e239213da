"""The commands ``kullback compare --as table`` and ``kullback watch``: from tables to reports."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import torch

from kullback.cli.option_errors import in_options
from kullback.cli.outputs import Outputs, check_outputs, write_reports
from kullback.common.files import check_writable, refuse_overwriting
from kullback.common.progress import progress_text
from kullback.errors import ArgumentValueError, printable
from kullback.report.formats import counted
from kullback.report.subjects.batches import Batches
from kullback.tables.compare_two_tables import compare_profiles, compare_tables
from kullback.tables.reference_profile import (
    batch_profile,
    is_profile,
    merge_profiles,
    profile_path,
    reference_profile,
)

if TYPE_CHECKING:
    from kullback.cli.gates import TableGate

# The options for the arguments of the library, and what to write instead of a wrong one.
OPTIONS = {name: f"--{name}" for name in ("columns", "weights", "cluster", "joint", "bins", "confidence")}
REMEDIES = {"joint": "--joint A,B"}


def run_table_comparison(
    p: Path,
    q: Path,
    outputs: Outputs,
    gates: Sequence[TableGate],
    *,
    seed: int,
    show_progress: bool,
    **settings: Any,
) -> list[str]:
    """Compare two tables, write the reports, and say which gates fail.

    Arguments:
        p: the reference's file.
        q: the file that is compared with it.
        outputs: where the reports go.
        gates: the limits to keep.
        seed: of all randomness.
        show_progress: whether to say what is being counted, if there is a terminal.
        settings: further arguments of `compare_tables`.

    Returns:
        a sentence for each gate that fails.

    Raises:
        KullbackError: an input or an output cannot be used; then there is no report.
    """
    check_outputs(outputs, [p, q])
    with in_options(OPTIONS, REMEDIES), progress_text(show=show_progress) as progress:
        generator = torch.Generator().manual_seed(seed)
        found = compare_tables(str(p), str(q), generator=generator, progress=progress, **settings)
    return write_reports(found, [gate.verdict(found) for gate in gates], outputs)


def run_watch(
    reference: Path,
    batches: Sequence[Path],
    outputs: Outputs,
    gates: Sequence[TableGate],
    *,
    profile: Path | None,
    rebuild: bool,
    merge: bool,
    save_batch: Path | None,
    columns: Sequence[str] | None,
    weights: str | None,
    seed: int,
    show_progress: bool,
    **settings: Any,
) -> list[str]:
    """Keep a reference's profile, compare batches with it, write the reports, and say which gates fail.

    Arguments:
        reference: the reference's file, or its profile.
        batches: the files to compare with it, or their profiles.
        outputs: where the reports go.
        gates: the limits to keep.
        profile: the path of the reference's profile; by default next to the reference.
        rebuild: whether to count the reference again.
        merge: whether to take all batches as one.
        save_batch: where to write the batch's profile, or None.
        columns: which columns; None for all.
        weights: the column of weights, or None.
        seed: of all randomness.
        show_progress: whether to say what is being counted, if there is a terminal.
        settings: further arguments of `compare_profiles`.

    Returns:
        a sentence for each gate that fails.

    Raises:
        KullbackError: an input or an output cannot be used.
    """
    if gates and not batches:
        limit = gates[0].limit
        raise ArgumentValueError(
            f"--fail-{limit.side}: wanted a batch to check; got none. Write: kullback watch P Q --fail-{limit.side} "
            f"{limit.metric}={limit.limit:g}"
        )
    _check_watch(reference, batches, outputs, profile, save_batch, merge=merge, rebuild=rebuild)
    with in_options(OPTIONS, REMEDIES), progress_text(show=show_progress) as progress:
        saved = reference_profile(
            reference, profile, rebuild=rebuild, columns=columns, weights=weights, progress=progress
        )
        found = [
            (str(batch), batch_profile(batch, saved, columns=columns, progress=progress)) for batch in batches
        ]
    if merge and len(found) > 1:
        found = [(", ".join(name for name, _ in found), merge_profiles([batch for _, batch in found]))]
    if not found:
        place = reference if is_profile(reference) else profile or profile_path(reference)
        size = f"{counted(saved.rows, 'row')} and {counted(len(saved.columns), 'column')}"
        click.echo(f"{place}: the profile of {size}")
        return []
    compared = [
        compare_profiles(
            saved,
            batch,
            generator=torch.Generator().manual_seed(seed),
            names=(str(reference), name),
            **settings,
        )
        for name, batch in found
    ]
    verdicts = [tuple(gate.verdict(each) for gate in gates) for each in compared]
    if len(found) == 1:
        others = {} if save_batch is None else {save_batch: found[0][1].to_json() + "\n"}
        return write_reports(compared[0], verdicts[0], outputs, others=others)
    batches_compared = Batches(tuple(compared), tuple(verdicts))
    lines = "\n".join(map(printable, batches_compared.lines))
    return write_reports(batches_compared, (), outputs, table=lambda _: click.echo(lines))


def _check_watch(
    reference: Path,
    batches: Sequence[Path],
    outputs: Outputs,
    profile: Path | None,
    save_batch: Path | None,
    *,
    merge: bool,
    rebuild: bool,
) -> None:
    """Refuse before the work what could not be written after it."""
    reports = {
        "--json": outputs.json,
        "--html": outputs.html,
        "--markdown": outputs.markdown,
        "--save-batch": save_batch,
    }
    for option in (option for option, value in reports.items() if value is not None and not batches):
        raise ArgumentValueError(
            f"{option}: wanted a batch to report on; got none. Write: kullback watch P Q"
        )
    if save_batch is not None and len(batches) > 1 and not merge:
        raise ArgumentValueError(
            f"--save-batch: wanted one batch; got {len(batches)}. Write: --merge to take them as one"
        )
    place = profile or profile_path(reference)
    # The profile is read, and written too where it is made; whatever else is written must not be one of these.
    check_outputs(outputs, [reference, *batches, place], [save_batch] if save_batch else [])
    if not is_profile(reference):
        refuse_overwriting([place], [reference, *batches])
        if rebuild or not place.exists():
            check_writable(place)
