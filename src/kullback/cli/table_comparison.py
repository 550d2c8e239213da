"""The command ``kullback compare`` for tables: from two files to reports."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from kullback.cli.option_errors import in_options
from kullback.cli.outputs import Outputs, check_outputs, write_reports
from kullback.common.progress import progress_text
from kullback.tables.compare_two_tables import compare_tables

if TYPE_CHECKING:
    from kullback.cli.gates import TableGate
    from kullback.results.verdict import Verdict

# The options for the arguments of the library, and what to write instead of a wrong one.
OPTIONS = {
    name: f"--{name}" for name in ("columns", "exclude", "weights", "cluster", "joint", "bins", "confidence")
}
REMEDIES = {"joint": "--joint A,B"}


def run_table_comparison(
    p: Path,
    q: Path,
    outputs: Outputs,
    gates: Sequence[TableGate],
    *,
    cluster: Path | None,
    seed: int,
    no_progress: bool,
    **settings: Any,
) -> Sequence[Verdict]:
    """Compare two tables, write the reports, and return the verdicts of the gates.

    Keyword arguments are the options of the command; `compare_tables` takes `settings`.
    """
    check_outputs(outputs, [p, q])
    with in_options(OPTIONS, REMEDIES), progress_text(show=not no_progress) as progress:
        found = compare_tables(
            str(p),
            str(q),
            cluster=None if cluster is None else str(cluster),
            generator=torch.Generator().manual_seed(seed),
            progress=progress,
            **settings,
        )
    return write_reports(found, [gate.verdict(found) for gate in gates], outputs)
