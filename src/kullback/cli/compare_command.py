"""The command ``kullback compare``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from kullback.cli.gates import METRICS_IN_WORDS, TABLE_METRICS_IN_WORDS, parse_gate, parse_table_gate
from kullback.cli.grouped_help import GroupedCommand
from kullback.cli.model_options import MODEL_OPTIONS, model_options
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
    REPRESENTATIONS,
    SEED,
    WEIGHTS,
    FiniteRange,
    complete_files,
    fail_above,
    fail_below,
    finish,
    given_limits,
    split_groups,
)
from kullback.errors import ArgumentValueError

if TYPE_CHECKING:
    from kullback.common.words import RepresentationName

TABLE = "table"
# The options of some comparisons, which are refused for the others.
OF_PREDICTIONS = (
    "representation_p", "representation_q", "key", "key_p", "key_q", "labels", "labels_key", "cluster_key",
    "tokens",
)  # fmt: skip
OF_TABLES = ("columns", "weights", "joint", "bins", "confidence")
OF_MODELS = (
    "text", *MODEL_OPTIONS, "noise_floor", "one_at_a_time", "api_key_env", "server_top",
)  # fmt: skip
OF_ROWS = ("worst", "bootstrap", "block_mb", "resume")
FOR_LABELS = ("lines", "like")
LLAMA_CPP = "llama.cpp"
MEBIBYTE = 1024 * 1024

# The help, by the job that an option does.
JOBS = {
    "Predictions": ("representation", *OF_PREDICTIONS, "cluster", "independent"),
    "Tables": OF_TABLES,
    "Language models": (*OF_MODELS, "resume"),
    "Limits": ("fail_above", "fail_below"),
    "Computation": ("bootstrap", "seed", "block_mb", "no_progress"),
    "Output": ("full", "worst", "html_path", "json_path", "markdown_path", *FOR_LABELS, "help", "help_all"),
}
# The options of ``--help``, which shows the first sentence of each.
COMMON = (
    "representation", "labels", "cluster", "tokens", "columns", "joint", "weights", "text", "context", "windows",
    "device", "noise_floor", "resume", "fail_above", "fail_below", "full", "worst", "html_path", "json_path",
    "markdown_path", "help", "help_all",
)  # fmt: skip


@click.command(cls=GroupedCommand, jobs=JOBS, common=COMMON)
@click.argument("p", metavar="P", shell_complete=complete_files)
@click.argument("others", metavar="Q...", nargs=-1, required=True, shell_complete=complete_files)
@click.option(
    "--as",
    "representation",
    type=click.Choice([*REPRESENTATIONS.choices, TABLE]),
    metavar="TYPE",
    help=f"Both hold {', '.join(REPRESENTATIONS.choices)} or {TABLE}. Tables are compared column by column.",
)
@click.option(
    "--as-p",
    "representation_p",
    type=REPRESENTATIONS,
    help="The type of the numbers in P, if the files differ.",
)
@click.option("--as-q", "representation_q", type=REPRESENTATIONS, help="The type of the numbers in Q.")
@click.option("--key", help="The array to read from files with several.")
@click.option("--key-p", help="The array to read from P.")
@click.option("--key-q", help="The array to read from Q.")
@click.option("--labels", type=FILE, metavar="FILE", help="The true class of each row. -100 stands for none.")
@click.option(
    "--tokens",
    type=FILE,
    metavar="FILE",
    help="The text of each class, for reports. FILE is a JSON list, a token on each line, or a tokenizer.json.",
)
@click.option("--labels-key", help="The name of the labels in their file.")
@click.option(
    "--cluster",
    "cluster",
    type=FILE,
    metavar="FILE|COLUMN",
    help="The document of each row: a file, or a table's column. Rows of one document may depend on each other.",
)
@click.option("--cluster-key", "cluster_key", help="The name of the clusters in their file.")
@INDEPENDENT
@click.option(
    "--full",
    is_flag=True,
    help="Print every table and note. Without it, compare prints the main numbers.",
)
@click.option(
    "--worst",
    type=click.IntRange(0),
    default=10,
    metavar="N",
    show_default=True,
    help="The number of worst rows in reports.",
)
@JSON
@HTML
@MARKDOWN
@click.option(
    "--format",
    "lines",
    type=click.Choice(["table", LLAMA_CPP]),
    default="table",
    show_default=True,
    help="Print tables, or the lines of llama-perplexity --kl-divergence (for models, and for predictions with "
    "labels).",
)
@click.option(
    "--like",
    type=click.Choice([LLAMA_CPP]),
    help="Print those lines with llama.cpp's arithmetic: P as in its base file, not normalized, without classes "
    "below its floor.",
)
@fail_above("mean=0.01", f"{METRICS_IN_WORDS}. For tables: {TABLE_METRICS_IN_WORDS}")
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
    callback=split_groups,
    multiple=True,
    metavar="A,B",
    help="Columns to compare together. Repeatable.",
)
@BINS
@CONFIDENCE
@click.option(
    "--text",
    type=FILE,
    metavar="FILE",
    help="The text on which models are compared. It may be JSONL with text, messages, or prompt and completion.",
)
@model_options
@click.option(
    "--noise-floor",
    is_flag=True,
    default=None,
    help="Compare P with itself plus rounding noise on the whole text. Without it, the first 32nd of the "
    "windows serves, if P is a folder.",
)
@click.option(
    "--one-at-a-time",
    is_flag=True,
    help="Hold one model in memory at a time; P's predictions are kept as a reference on disk.",
)
@click.option("--api-key-env", metavar="NAME", help="The environment variable with the key of the servers.")
@click.option(
    "--top",
    "server_top",
    type=click.IntRange(1),
    default=20,
    show_default=True,
    help="The number of most probable tokens to ask a server for.",
)
@click.option(
    "--resume",
    type=FILE,
    metavar="FILE",
    help="Save finished work in FILE, and continue from it after a stop. Predictions have this option too.",
)
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
    p: str,
    others: tuple[str, ...],
    representation: Any,
    representation_p: RepresentationName | None,
    representation_q: RepresentationName | None,
    key: str | None,
    key_p: str | None,
    key_q: str | None,
    json_path: str | None,
    html_path: Path | None,
    markdown_path: Path | None,
    full: bool,
    fail_above: tuple[str, ...],
    fail_below: tuple[str, ...],
    no_progress: bool,
    block_mb: float,
    seed: int,
    lines: str,
    like: str | None,
    **settings: Any,
) -> None:
    """Compare language models on a text, predictions of the same positions, or two tables: P, the reference, and Q.

    \b
    kullback compare llama-8b q8.gguf q4.gguf --text wiki.txt
    kullback compare float32.npy int8.npy --as logits
    kullback compare before.parquet after.parquet

    Models (--text): folders of Hugging Face models, .gguf files, servers, and references (.klref), with which --text
    may be left out; each Q is compared with P. Predictions: npy, npz, safetensors, pt, parquet, csv, or llama.cpp's
    --kl-divergence-base file, with one distribution over the classes in each row. Tables (--as table, which two Parquet
    files without lists do not need): parquet, csv or ndjson, rows of columns. Divergences are in nats. The exit status
    is 1 if a gate fails and 2 on an error. Several processes share the rows of predictions by torchrun --nproc-per-node
    N -m kullback compare ...
    """
    of_tables = {name: settings.pop(name) for name in OF_TABLES}
    of_models = {name: settings.pop(name) for name in OF_MODELS}
    limits = given_limits(fail_above, fail_below)
    outputs = Outputs(json_path, html_path, markdown_path, full)
    llama_cpp = "like" if like else "format" if lines == LLAMA_CPP else None
    from kullback.comparison import subject_of

    for_rows = any(_is_given(ctx, name) for name in (*OF_PREDICTIONS, *OF_ROWS))
    subject = (
        "tables"
        if str(representation) == TABLE
        else subject_of(
            (p, *others),
            has_text=of_models["text"] is not None,
            has_row_options=representation is not None or for_rows,
            hub=of_models["hub"],
        )
    )
    gates = [] if subject == "tables" else [parse_gate(text, side) for side, text in limits]
    is_worker = ctx.obj is True
    if subject == "tables":
        if is_worker:
            refuse_workers("tables are")
        _refuse_options(ctx, (*OF_PREDICTIONS, *OF_ROWS, *OF_MODELS, *FOR_LABELS), TABLE)
        cluster = settings["cluster"]
        table_gates = [parse_table_gate(text, side) for side, text in limits]
        from kullback.cli.table_comparison import run_table_comparison

        failures = run_table_comparison(
            Path(p),
            Path(_only(others)),
            outputs,
            table_gates,
            cluster=None if cluster is None else str(cluster),
            independent=settings["independent"],
            seed=seed,
            show_progress=not no_progress,
            **of_tables,
        )
    elif subject == "models":
        _refuse_options(ctx, (*OF_PREDICTIONS, *OF_TABLES, "cluster"), "models")
        if is_worker:
            refuse_workers("models are")
        from kullback.cli.model_comparison import run_model_comparison

        failures = run_model_comparison(
            p,
            others,
            outputs,
            gates,
            representation=representation,
            llama_cpp=llama_cpp,
            worst=settings["worst"],
            bootstrap=settings["bootstrap"],
            independent=settings["independent"],
            resume=settings["resume"],
            block_bytes=max(1, int(block_mb * MEBIBYTE)),
            seed=seed,
            show_progress=not no_progress,
            **of_models,
        )
    else:
        _refuse_options(ctx, (*OF_TABLES, *OF_MODELS), "predictions")
        from kullback.cli.prediction_comparison import Inputs, run_prediction_comparison

        representations = representation_p or representation, representation_q or representation
        failures = run_prediction_comparison(
            Inputs(Path(p), Path(_only(others)), representations, (key_p or key, key_q or key)),
            outputs,
            gates,
            block_bytes=max(1, int(block_mb * MEBIBYTE)),
            seed=seed,
            show_progress=not no_progress,
            llama_cpp=llama_cpp,
            is_worker=is_worker,
            **settings,
        )
    finish(failures)


def refuse_workers(what: str) -> None:
    """Refuse torchrun's processes for a comparison that they cannot share."""
    from kullback.parallel.workers import worker_count

    if worker_count() > 1:
        raise ArgumentValueError(
            f"torchrun started {worker_count()} workers, which share the rows of predictions; {what} for one process. "
            "Write: kullback ... without torchrun"
        )


def _only(others: tuple[str, ...]) -> str:
    """Return the one file Q; several are for models."""
    if len(others) != 1:
        raise ArgumentValueError(
            f"Q: wanted one file; got {len(others)}. Several models are compared on a text: --text FILE; files with "
            "one command each"
        )
    return others[0]


def _refuse_options(ctx: click.Context, names: tuple[str, ...], compared: str) -> None:
    """Refuse options of the other comparisons."""
    owners: dict[str, str] = {
        **dict.fromkeys(OF_TABLES, "tables"),
        **dict.fromkeys(OF_MODELS, "models"),
        **dict.fromkeys(OF_ROWS, "predictions and models"),
    }
    remedies = {
        "tables": ", or add --as table if P and Q are tables",
        "models": ", or add --text FILE if P and Q are models",
    }
    for parameter in ctx.command.params:
        name = parameter.name or ""
        if name in names and _is_given(ctx, name):
            owner = owners.get(name, "predictions")
            remedy = "" if compared == TABLE else remedies.get(owner, "")
            raise ArgumentValueError(f"{parameter.opts[-1]} is for comparing {owner}; leave it out{remedy}")


def _is_given(ctx: click.Context, name: str) -> bool:
    """Whether the command line gives an option."""
    return ctx.get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE
