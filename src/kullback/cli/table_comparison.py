"""The part of the command ``kullback compare`` that compares two tables."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from kullback.cli.outputs import check_outputs, write_reports
from kullback.cli.settings import Settings, in_options
from kullback.common.progress import progress_text
from kullback.tables.compare_two_tables import compare_tables

if TYPE_CHECKING:
    from kullback.cli.gates import Gate
    from kullback.results.verdict import Verdict


def run_table_comparison(p: Path, q: Path, settings: Settings, gates: Sequence[Gate]) -> Sequence[Verdict]:
    """Compare two tables, write the reports, and return the verdicts of the gates."""
    check_outputs(settings, [p, q])
    arguments = settings.arguments("tables")
    if "cluster" in arguments:  # for tables, `cluster` is the name of a column
        arguments["cluster"] = str(arguments["cluster"])
    with in_options(settings.flags), progress_text(show=not settings["--no-progress"]) as progress:
        result = compare_tables(str(p), str(q), progress=progress, **arguments)
    return write_reports(result, [gate.verdict(result) for gate in gates], settings)
