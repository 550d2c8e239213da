"""The command ``kullback mismatch``."""

from __future__ import annotations

from pathlib import Path

import click

from kullback.cli import options
from kullback.cli.gates import OF_MISMATCH, gates_of
from kullback.cli.option import FILE, Option
from kullback.cli.option_command import command
from kullback.cli.outputs import check_outputs, finish, write_reports
from kullback.cli.settings import Settings, in_options
from kullback.common.constraints import FLAG, Number

OPTIONS = (
    Option(
        "--ratio",
        "Count the tokens with q/p above this number or below its inverse.",
        accepts=Number(above=1, example=2.0),
        into="ratio",
        default=2.0,
    ),
    Option(
        "--untruncated",
        "The engine sampled from all tokens, without top-k, top-p and min-p.",
        accepts=FLAG,
        into="untruncated",
    ),
    options.JSON,
    options.HTML,
    options.MARKDOWN,
    *options.limits("k3=0.001", "effective_share=0.9", OF_MISMATCH.in_words),
    options.SEED,
    options.CONFIG,
)


@command(click.Argument(["runs"], nargs=-1, required=True, metavar="RUN...", type=FILE), options=OPTIONS)
def mismatch(runs: tuple[Path, ...], settings: Settings) -> None:
    """Explain why the ratio of trainer and engine is not 1, from the tokens of RUN.

    \b
    kullback mismatch run/token_exports
    kullback mismatch logs --html mismatch.html
    kullback mismatch tokens.parquet --fail-above k3=0.1

    RUN is a folder of prime-rl with token exports, a folder or file of NeMo-RL's training data, or a .parquet or .jsonl
    file with a row for each token. P is the engine, which sampled the tokens, and Q the trainer. The report has KL per
    token with intervals by prompts, and its causes: truncation, staleness, batch noise, and the rest.
    """
    gates = gates_of(settings, OF_MISMATCH)
    check_outputs(settings, runs)
    from kullback.mismatch import policy_mismatch, read_token_log

    with in_options({"log": "RUN", **settings.flags}):
        result = policy_mismatch(read_token_log(*runs), **settings.arguments_of(policy_mismatch))
    judged = write_reports(result, [gate.verdict(result) for gate in gates], settings)
    finish(judged, allow_unclear=settings["--allow-unclear"])
