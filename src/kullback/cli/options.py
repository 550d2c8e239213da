"""The options that several commands share, one entry for each option."""

from __future__ import annotations

from functools import partial

from kullback.cli.option import FILE, Names, Option
from kullback.common.constraints import CONFIDENCE as PROBABILITY, FLAG
from kullback.common.shared_constraints import (
    BINS as NUMBER_OF_BINS,
    CONTEXT,
    DTYPE,
    SCORE,
    SEED as SEEDS,
    WINDOWS,
)

of_predictions = partial(Option, job="Predictions", subjects=("predictions",))
of_tables = partial(Option, job="Tables", subjects=("tables",))
of_models = partial(Option, job="Language models", subjects=("models",))
_report = partial(Option, job="Output", common=True)


def _generator_of(seed: int) -> object:
    """Return a random generator with the given seed."""
    import torch

    return torch.Generator().manual_seed(seed)


CONFIG = Option(
    "--config",
    "Read options from a TOML file, by their names without dashes. The command line wins over the file.",
    accepts=FILE,
    job="Computation",
    metavar="FILE",
    reads_config=True,
)

# Options for reports.
FULL = _report("--full", "Print every table and note, not only the main numbers.", accepts=FLAG)
JSON = _report(
    "--json",
    "Write JSON to FILE, or print it. Without FILE, as the last argument, print only JSON.",
    metavar="[FILE]",
    alone="-",
)
MARKDOWN = _report(
    "--markdown",
    "Write a short summary in Markdown. It suits $GITHUB_STEP_SUMMARY.",
    accepts=FILE,
    metavar="FILE",
)
HTML = _report("--html", "Write a self-contained page with plots.", accepts=FILE, metavar="FILE")

# Options for tables.
COLUMNS = Option(
    "--columns",
    "The columns to compare; all by default. Of predictions, the columns that are classes.",
    accepts=Names(),
    into="columns",
    job="Tables",
    subjects=("tables", "predictions"),
    common=True,
    metavar="A,B,...",
)
EXCLUDE = of_tables(
    "--exclude",
    "Columns to leave out, instead of --columns.",
    accepts=Names(),
    into="exclude",
    metavar="A,B,...",
)
WEIGHTS = of_tables("--weights", "The column of row weights.", into="weights", common=True, metavar="COLUMN")
JOINT = of_tables(
    "--joint",
    "Columns to compare together. Repeatable.",
    accepts=Names(fewest=2),
    into="joint",
    common=True,
    metavar="A,B",
    repeatable=True,
)
BINS = of_tables(
    "--bins", "About how many bins numbers get.", accepts=NUMBER_OF_BINS, into="bins", default=20
)
CONFIDENCE = of_tables(
    "--confidence",
    "The coverage probability of the intervals.",
    accepts=PROBABILITY,
    into="confidence",
    default=0.95,
)

# Options for language models.
MODEL_OPTIONS = (
    of_models(
        "--context",
        "The tokens in a window. Without it, 512, or as in the reference.",
        accepts=CONTEXT,
        into="context",
        common=True,
        metavar="N",
    ),
    of_models(
        "--score",
        "The tokens that count: each window's second half (as in llama.cpp), all, or the assistant's replies "
        "in JSONL conversations. Without it, second-half, or as in the reference.",
        accepts=SCORE,
        into="score",
    ),
    of_models(
        "--windows",
        "How many windows to read; all by default.",
        accepts=WINDOWS,
        into="most_windows",
        common=True,
        metavar="N",
    ),
    of_models(
        "--dtype",
        "The dtype of the weights of models in folders.",
        accepts=DTYPE,
        into="dtype",
        default="auto",
    ),
    of_models(
        "--device",
        "Where models in folders run, such as cuda.",
        into="device",
        common=True,
        default="cpu",
        metavar="NAME",
    ),
    of_models(
        "--trust-remote-code",
        "Allow code in the folder of a model to run.",
        accepts=FLAG,
        into="trust_remote_code",
    ),
    of_models(
        "--head",
        "The folder of the model whose norm and head make predictions of a folder of hidden states. Repeat it to give "
        "each such folder its own.",
        accepts=FILE,
        metavar="MODEL",
        repeatable=True,
    ),
    of_models("--hub", "Allow names of models on the Hugging Face hub.", accepts=FLAG, into="hub"),
)

INDEPENDENT = Option(
    "--independent",
    "Rows (for models, windows or documents) are independent: their order is not examined.",
    accepts=FLAG,
    into="independent",
    job="Predictions",
)
NO_PROGRESS = Option(
    "--no-progress", "Show no progress (none is shown without a terminal).", accepts=FLAG, job="Computation"
)
SEED = Option(
    "--seed",
    "The seed of the random numbers.",
    accepts=SEEDS,
    into="generator",
    convert=_generator_of,
    job="Computation",
    default=0,
)


def limits(above: str, below: str, metrics: str) -> tuple[Option, Option, Option]:
    """Return the options for gates; their help contains the examples `above` and `below`, and `metrics`."""
    of_limits = partial(Option, job="Limits", common=True, metavar="METRIC=LIMIT", repeatable=True)
    decide = "Exit with status 3 if the data do not decide. Repeatable."
    return (
        of_limits("--fail-above", f"Exit with status 1 above a limit: {above}. {decide} METRIC: {metrics}."),
        of_limits(
            "--fail-below",
            f"Exit with status 1 below a limit: {below}. {decide} METRIC is as for --fail-above.",
        ),
        Option(
            "--allow-unclear",
            "Exit with status 0, not 3, if no gate fails and the data do not decide a gate.",
            accepts=FLAG,
            job="Limits",
        ),
    )
