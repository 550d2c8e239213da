"""The command ``kullback compare``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from kullback.cli.compare_options import OPTIONS, TABLE
from kullback.cli.gates import OF_ROWS, OF_TABLES, gates_of
from kullback.cli.option import complete_files
from kullback.cli.option_command import command
from kullback.cli.outputs import finish
from kullback.cli.settings import Settings
from kullback.errors import ArgumentValueError

if TYPE_CHECKING:
    from kullback.comparison import Subject


@command(
    click.Argument(["p"], metavar="P", shell_complete=complete_files),
    click.Argument(["others"], metavar="Q...", nargs=-1, required=True, shell_complete=complete_files),
    options=OPTIONS,
    by_job=True,
)
def compare(p: str, others: tuple[str, ...], settings: Settings) -> None:
    """Compare language models on a text, predictions of the same positions, or two tables: P, the reference, and Q.

    \b
    kullback compare llama-8b q8.gguf q4.gguf --text wiki.txt
    kullback compare float32.npy int8.npy --as logits
    kullback compare before.parquet after.parquet

    Models (with --text) are folders of Hugging Face models, .gguf files, servers, references (.klref), folders of
    --card, or folders of hidden states (with --head). The last three do not need --text. Each Q is compared with P.
    Predictions are npy, npz, safetensors, pt, parquet or csv files, or llama.cpp's --kl-divergence-base file. Each
    row is one distribution over the classes. Tables are parquet, csv or ndjson files. They need --as table, except
    two Parquet files without lists.
    Divergences are in nats. The exit status is 1 if a gate fails, 3 if a gate is unclear, and 2 on a wrong argument.
    Several processes share the rows of predictions with torchrun --nproc-per-node N -m kullback compare ...
    """
    from kullback.comparison import subject_of

    subject: Subject = (
        "tables"
        if settings["--as"] == TABLE
        else subject_of(
            (p, *others),
            has_text=settings["--text"] is not None,
            has_row_options=settings["--as"] is not None or settings.mean_rows,
            hub=bool(settings["--hub"]),
        )
    )
    settings.refuse_other_subjects(subject)
    is_worker = click.get_current_context().obj is True
    if is_worker and subject != "predictions":
        refuse_workers(f"{subject} are")
    gates = gates_of(settings, OF_TABLES if subject == "tables" else OF_ROWS)
    if subject == "models":
        from kullback.cli.model_comparison import run_model_comparison

        verdicts = run_model_comparison(p, others, settings, gates)
    elif subject == "tables":
        from kullback.cli.table_comparison import run_table_comparison

        verdicts = run_table_comparison(Path(p), Path(_only(others)), settings, gates)
    else:
        from kullback.cli.prediction_comparison import run_prediction_comparison

        verdicts = run_prediction_comparison(
            Path(p), Path(_only(others)), settings, gates, is_worker=is_worker
        )
    finish(verdicts, allow_unclear=settings["--allow-unclear"])


def refuse_workers(what: str) -> None:
    """Raise an error if torchrun started several workers, for a command whose work several workers cannot share."""
    from kullback.parallel.workers import worker_count

    if worker_count() > 1:
        raise ArgumentValueError.at(
            "",
            wanted=f"{what} for one process",
            got=f"torchrun started {worker_count()} workers, which share the rows of predictions",
            instead="kullback ... without torchrun",
            wording="{got}; {wanted}. Write: {instead}",
        )


def _only(others: tuple[str, ...]) -> str:
    """Return the only file Q, or raise an error if there are several; only models may have several Q."""
    if len(others) != 1:
        wanted, got = "one file", f"{len(others)}. Several models are compared on a text: --text FILE"
        raise ArgumentValueError.at("Q", "Q", wanted=wanted, got=got, instead="files with one command each")
    return others[0]
