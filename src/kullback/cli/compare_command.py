"""The command ``kullback compare``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from kullback.cli import options
from kullback.cli.gates import (
    METRICS_IN_WORDS,
    TABLE_METRICS_IN_WORDS,
    parse_gate,
    parse_limits,
    parse_table_gate,
)
from kullback.cli.grouped_help import GroupedCommand, Section
from kullback.cli.outputs import Outputs, finish
from kullback.errors import BY_EVENT, ArgumentValueError

if TYPE_CHECKING:
    from kullback.comparison import Subject

TABLE = "table"
LLAMA_CPP = "llama.cpp"
MEBIBYTE = 1024 * 1024
ROWS = "predictions and models"

SECTIONS = (
    Section(
        "Predictions",
        click.Option(
            ["--as", "representation"],
            type=click.Choice([*options.REPRESENTATIONS.choices, TABLE]),
            metavar="TYPE",
            help=f"Both hold {', '.join(options.REPRESENTATIONS.choices)} or {TABLE}. "
            "Tables are compared column by column.",
        ),
    ),
    Section(
        "Predictions",
        click.Option(
            ["--as-p", "representation_p"],
            type=options.REPRESENTATIONS,
            help="The type of the numbers in P, if the files differ.",
        ),
        click.Option(
            ["--as-q", "representation_q"],
            type=options.REPRESENTATIONS,
            help="The type of the numbers in Q.",
        ),
        click.Option(["--key"], help="The array to read from files with several."),
        click.Option(["--key-p"], help="The array to read from P."),
        click.Option(["--key-q"], help="The array to read from Q."),
        click.Option(
            ["--labels"],
            type=options.FILE,
            metavar="FILE",
            help="The true class of each row. -100 stands for none.",
        ),
        click.Option(["--labels-key"], help="The name of the labels in their file."),
        click.Option(["--cluster-key"], help="The name of the clusters in their file."),
        click.Option(
            ["--tokens"],
            type=options.FILE,
            metavar="FILE",
            help="The text of each class, for reports. FILE is a JSON list, a token on each line, or a "
            "tokenizer.json.",
        ),
        of="predictions",
    ),
    Section(
        "Predictions",
        click.Option(
            ["--cluster"],
            type=options.FILE,
            metavar="FILE|COLUMN",
            help="The document of each row: a file, or a table's column. "
            "Rows of one document may depend on each other.",
        ),
        of="predictions",
        also="tables",
    ),
    Section("Predictions", options.INDEPENDENT),
    Section("Tables", options.COLUMNS, of="tables", also="predictions"),
    Section(
        "Tables",
        options.EXCLUDE,
        options.WEIGHTS,
        options.JOINT,
        options.BINS,
        options.CONFIDENCE,
        of="tables",
    ),
    Section(
        "Language models",
        click.Option(
            ["--text"],
            type=options.FILE,
            metavar="FILE",
            help="The text on which models are compared. It may be JSONL with text, messages, "
            "or prompt and completion.",
        ),
        *options.MODEL_OPTIONS,
        click.Option(
            ["--noise-floor"],
            is_flag=True,
            default=None,
            help="Compare P with itself plus rounding noise on the whole text. Without it, the first 32nd of the "
            "windows serves, if P is a folder.",
        ),
        click.Option(
            ["--one-at-a-time"],
            is_flag=True,
            help="Hold one model in memory at a time; P's predictions are kept as a reference on disk.",
        ),
        click.Option(
            ["--api-key-env"],
            metavar="NAME",
            help="The environment variable with the key of the servers.",
        ),
        click.Option(
            ["--top", "server_top"],
            type=click.IntRange(1),
            default=20,
            show_default=True,
            help="The number of most probable tokens to ask a server for.",
        ),
        of="models",
    ),
    Section(
        "Language models",
        click.Option(
            ["--resume"],
            type=options.FILE,
            metavar="FILE",
            help="Save finished work in FILE, and continue from it after a stop. Predictions have this option too.",
        ),
        of=ROWS,
    ),
    Section(
        "Limits",
        *options.limits(
            "mean=0.01", "top1=0.99", f"{METRICS_IN_WORDS}. For tables: {TABLE_METRICS_IN_WORDS}"
        ),
    ),
    Section(
        "Computation",
        click.Option(
            ["--bootstrap"],
            type=click.IntRange(0, 100_000),
            default=1000,
            show_default=True,
            help="Bootstrap draws for the intervals.",
        ),
        of=ROWS,
    ),
    Section("Computation", options.SEED),
    Section(
        "Computation",
        click.Option(
            ["--block-mb", "block_bytes"],
            type=options.FiniteRange(0, 2**20, min_open=True),
            default=40.0,
            show_default=True,
            callback=lambda _ctx, _param, value: max(1, int(value * MEBIBYTE)),
            help="MiB of each file to read at a time.",
        ),
        of=ROWS,
    ),
    Section("Computation", options.NO_PROGRESS),
    Section(
        "Output",
        click.Option(
            ["--full"],
            is_flag=True,
            help="Print every table and note. Without it, compare prints the main numbers.",
        ),
    ),
    Section(
        "Output",
        click.Option(
            ["--worst"],
            type=click.IntRange(0),
            default=10,
            metavar="N",
            show_default=True,
            help="The number of worst rows in reports.",
        ),
        of=ROWS,
    ),
    Section("Output", options.HTML, options.JSON, options.MARKDOWN),
    Section(
        "Output",
        click.Option(
            ["--format", "lines"],
            type=click.Choice(["table", LLAMA_CPP]),
            default="table",
            show_default=True,
            help="Print tables, or the lines of llama-perplexity --kl-divergence (for models, and for "
            "predictions with labels).",
        ),
        of="predictions",
        also="models",
    ),
)
# The options of ``--help``, which shows the first sentence of each.
COMMON = (
    "representation", "labels", "cluster", "tokens", "columns", "joint", "weights", "text", "context",
    "most_windows", "device", "noise_floor", "resume", "fail_above", "fail_below", "full",
    "worst", "html_path", "json_path", "markdown_path",
)  # fmt: skip


@click.command(cls=GroupedCommand, sections=SECTIONS, common=COMMON)
@click.argument("p", metavar="P", shell_complete=options.complete_files)
@click.argument("others", metavar="Q...", nargs=-1, required=True, shell_complete=options.complete_files)
@click.pass_context
def compare(
    ctx: click.Context,
    p: str,
    others: tuple[str, ...],
    representation: Any,
    json_path: str | None,
    html_path: Path | None,
    markdown_path: Path | None,
    full: bool,
    fail_above: tuple[str, ...],
    fail_below: tuple[str, ...],
    allow_unclear: bool,
    lines: str,
    **settings: Any,
) -> None:
    """Compare language models on a text, predictions of the same positions, or two tables: P, the reference, and Q.

    \b
    kullback compare llama-8b q8.gguf q4.gguf --text wiki.txt
    kullback compare float32.npy int8.npy --as logits
    kullback compare before.parquet after.parquet

    Models (--text): folders of Hugging Face models, .gguf files, servers, and references (.klref), with which
    --text may be left out; each Q is compared with P. Predictions: npy, npz, safetensors, pt, parquet, csv, or
    llama.cpp's --kl-divergence-base file, with one distribution over the classes in each row. Tables (--as table,
    which two Parquet files without lists do not need): parquet, csv or ndjson, rows of columns. Divergences are in
    nats. The exit status is 1 if a gate fails, 3 if a gate cannot tell, and 2 on a wrong argument. Several
    processes share the rows of predictions by torchrun --nproc-per-node N -m kullback compare ...
    """
    from kullback.comparison import subject_of

    outputs = Outputs(json_path, html_path, markdown_path, full)
    given = _given_options(ctx)
    subject: Subject = (
        "tables"
        if str(representation) == TABLE
        else subject_of(
            (p, *others),
            has_text=settings["text"] is not None,
            has_row_options=representation is not None or any(each.is_of_rows for _, each in given),
            hub=settings["hub"],
        )
    )
    _refuse_options(given, subject)
    if ctx.obj is True and subject != "predictions":
        refuse_workers(f"{subject} are")
    parse = parse_table_gate if subject == "tables" else parse_gate
    gates: list[Any] = parse_limits(parse, fail_above, fail_below)
    names = [each.name for section in SECTIONS if section.takes(subject) for each in section.options]
    taken = {name: value for name, value in settings.items() if name in names}
    if subject == "tables":
        from kullback.cli.table_comparison import run_table_comparison

        verdicts = run_table_comparison(Path(p), Path(_only(others)), outputs, gates, **taken)
    else:
        taken["representation"] = representation
        taken["llama_cpp"] = lines == LLAMA_CPP
        if subject == "models":
            from kullback.cli.model_comparison import run_model_comparison

            verdicts = run_model_comparison(p, others, outputs, gates, **taken)
        else:
            from kullback.cli.prediction_comparison import run_prediction_comparison

            verdicts = run_prediction_comparison(
                Path(p), Path(_only(others)), outputs, gates, is_worker=ctx.obj is True, **taken
            )
    finish(verdicts, allow_unclear=allow_unclear)


def _given_options(ctx: click.Context) -> list[tuple[click.Option, Section]]:
    """Return the options that the command line gives, each with its section."""
    return [
        (option, section)
        for section in SECTIONS
        for option in section.options
        if ctx.get_parameter_source(option.name or "") is click.core.ParameterSource.COMMANDLINE
    ]


def refuse_workers(what: str) -> None:
    """Refuse torchrun's processes for a comparison that they cannot share."""
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
    """Return the one file Q; several are for models."""
    if len(others) != 1:
        raise ArgumentValueError.at(
            "Q",
            "Q",
            wanted="one file",
            got=f"{len(others)}. Several models are compared on a text: --text FILE",
            instead="files with one command each",
        )
    return others[0]


def _refuse_options(given: Sequence[tuple[click.Option, Section]], subject: Subject) -> None:
    """Refuse options of the other comparisons."""
    remedies = {
        "tables": ", or add --as table if P and Q are tables",
        "models": ", or add --text FILE if P and Q are models",
    }
    for option, section in given:
        if not section.takes(subject):
            remedy = "" if subject == "tables" else remedies.get(section.of, "")
            name, instead = option.opts[-1], f"leave it out{remedy}"
            got = f"{name} is for comparing {section.of}"
            wanted = f"options for comparing {subject}"
            raise ArgumentValueError.at("", name, wanted=wanted, got=got, instead=instead, wording=BY_EVENT)
