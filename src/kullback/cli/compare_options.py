"""The options of ``kullback compare``, one entry for each option, in the order of the help."""

from __future__ import annotations

from dataclasses import replace

from kullback.cli import options
from kullback.cli.gates import OF_ROWS, OF_TABLES
from kullback.cli.option import FILE, Option, Subject
from kullback.cli.options import of_models, of_predictions
from kullback.common.constraints import FLAG, Number, OneOf
from kullback.common.shared_constraints import BOOTSTRAP, REPRESENTATION, RUNS, SERVER_TOP, WORST

TABLE, LLAMA_CPP = "table", "llama.cpp"
MEBIBYTE = 1024 * 1024
ROWS: tuple[Subject, ...] = ("predictions", "models")

OPTIONS: tuple[Option, ...] = (
    Option(
        "--as",
        f"Both hold {', '.join(REPRESENTATION.words)} or {TABLE}. Tables are compared column by column.",
        accepts=replace(REPRESENTATION, words=(*REPRESENTATION.words, TABLE)),
        into="representation",
        convert=lambda word: None if word == TABLE else word,
        job="Predictions",
        common=True,
        metavar="TYPE",
    ),
    of_predictions("--as-p", "The type of the numbers in P, if the files differ.", accepts=REPRESENTATION),
    of_predictions("--as-q", "The type of the numbers in Q.", accepts=REPRESENTATION),
    of_predictions("--key", "The array to read from files with several.", into="key"),
    of_predictions("--key-p", "The array to read from P."),
    of_predictions("--key-q", "The array to read from Q."),
    of_predictions(
        "--labels",
        "The true class of each row. -100 means that it is unknown.",
        accepts=FILE,
        into="labels",
        common=True,
        metavar="FILE",
    ),
    of_predictions("--labels-key", "The name of the labels in their file.", into="labels_key"),
    of_predictions("--cluster-key", "The name of the clusters in their file.", into="cluster_key"),
    of_predictions(
        "--tokens",
        "The text of each class, for reports. FILE is a JSON list, a token on each line, or a tokenizer.json.",
        accepts=FILE,
        common=True,
        metavar="FILE",
    ),
    Option(
        "--cluster",
        "The document of each row: a file, or a table's column. Rows of one document may depend on each other.",
        accepts=FILE,
        into="cluster",
        job="Predictions",
        subjects=("predictions", "tables"),
        common=True,
        metavar="FILE|COLUMN",
    ),
    Option(
        "--group",
        "Every number by group too. Of predictions: a file with the group of each row, or a column of P. Of models: "
        "role, re:PATTERN (a regular expression), or a key of the JSONL, with a value for each record or token.",
        into="groups",
        job="Predictions",
        subjects=("predictions", "models"),
        metavar="FILE|RULE",
    ),
    of_predictions("--group-key", "The name of the groups in their file.", into="group_key"),
    options.INDEPENDENT,
    options.COLUMNS,
    options.EXCLUDE,
    options.WEIGHTS,
    options.JOINT,
    options.BINS,
    options.CONFIDENCE,
    of_models(
        "--text",
        "The text on which models are compared. It may be JSONL with text, messages, or prompt and completion.",
        accepts=FILE,
        common=True,
        metavar="FILE",
    ),
    *options.MODEL_OPTIONS,
    of_models(
        "--noise-floor",
        "Compare P with itself plus rounding noise on the whole text. Without it, the first 32nd of the windows "
        "serves, if P is a folder.",
        accepts=FLAG,
        into="noise_floor",
        common=True,
    ),
    of_models(
        "--until-sure",
        "Stop when GOAL is sure. Windows are read in random order, until mean=0.01 (or js.mean, tv.mean, top1) is "
        "decided, the order of several Q is clear (order), or the interval is narrow (width=10%). Its intervals hold "
        "at every look. --windows limits the number of windows.",
        into="until_sure",
        metavar="GOAL",
    ),
    of_models(
        "--one-at-a-time",
        "Hold one model in memory at a time; P's predictions are kept as a reference on disk.",
        accepts=FLAG,
        into="one_at_a_time",
    ),
    of_models(
        "--api-key-env",
        "The environment variable with the key of the servers.",
        into="api_key_env",
        metavar="NAME",
    ),
    of_models(
        "--top",
        "The number of most probable tokens to ask a server for.",
        accepts=SERVER_TOP,
        into="server_top",
        default=20,
    ),
    Option(
        "--resume",
        "Save finished work in FILE, and continue from it after a stop. Predictions have this option too.",
        accepts=FILE,
        job="Language models",
        subjects=ROWS,
        common=True,
        metavar="FILE",
    ),
    *options.limits("mean=0.01", "top1=0.99", f"{OF_ROWS.in_words}. For tables: {OF_TABLES.in_words}"),
    Option(
        "--runs",
        "How often the gates will run: the error rate of the intervals of --until-sure is divided by it.",
        accepts=RUNS,
        into="runs",
        job="Limits",
        subjects=("models",),
        default=1,
        metavar="N",
    ),
    Option(
        "--bootstrap",
        "Bootstrap draws for the intervals.",
        accepts=BOOTSTRAP,
        into="bootstrap",
        job="Computation",
        subjects=ROWS,
        default=1000,
    ),
    options.SEED,
    Option(
        "--block-mb",
        "MiB of each file to read at a time.",
        accepts=Number(above=0, most=2**20, example=40),
        into="block_bytes",
        convert=lambda mebibytes: max(1, int(mebibytes * MEBIBYTE)),
        job="Computation",
        subjects=ROWS,
        default=40.0,
    ),
    options.NO_PROGRESS,
    options.CONFIG,
    options.FULL,
    Option(
        "--worst",
        "The number of worst rows in reports.",
        accepts=WORST,
        into="worst",
        job="Output",
        subjects=ROWS,
        common=True,
        default=10,
        metavar="N",
    ),
    Option(
        "--card",
        "Write a folder to publish: README.md, the page, JSON, badges, and a reference of P with the tokens of the "
        "text. kullback compare FOLDER Q repeats the comparison. FOLDER is new or empty, or an earlier card, which is "
        "replaced.",
        accepts=FILE,
        job="Output",
        subjects=("models",),
        metavar="FOLDER",
    ),
    options.HTML,
    options.JSON,
    options.MARKDOWN,
    Option(
        "--format",
        "Print tables, or the lines of llama-perplexity --kl-divergence (for models, and for predictions with "
        "labels).",
        accepts=OneOf(("table", LLAMA_CPP), example=LLAMA_CPP),
        into="llama_cpp",
        convert=lambda lines: lines == LLAMA_CPP,
        job="Output",
        subjects=ROWS,
        default="table",
    ),
)
