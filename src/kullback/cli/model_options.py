"""Options of the commands that run language models."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

# The names of the arguments that the options become.
MODEL_OPTIONS = ("context", "score", "windows", "dtype", "device", "trust_remote_code", "hub")
_OPTIONS = (
    click.option(
        "--context",
        type=click.IntRange(3),
        default=512,
        metavar="N",
        show_default=True,
        help="The tokens in a window.",
    ),
    click.option(
        "--score",
        type=click.Choice(["second-half", "all", "assistant"]),
        default="second-half",
        show_default=True,
        help="The tokens that count: each window's second half (as in llama.cpp), all, or the assistant's replies "
        "in JSONL conversations.",
    ),
    click.option(
        "--windows",
        type=click.IntRange(1),
        metavar="N",
        help="How many windows to read; all by default.",
    ),
    click.option(
        "--dtype",
        type=click.Choice(["auto", "float32", "bfloat16", "float16"]),
        default="auto",
        show_default=True,
        help="The dtype of the weights of models in folders.",
    ),
    click.option(
        "--device",
        default="cpu",
        metavar="NAME",
        show_default=True,
        help="Where models in folders run, such as cuda.",
    ),
    click.option("--trust-remote-code", is_flag=True, help="Allow code in the folder of a model to run."),
    click.option("--hub", is_flag=True, help="Allow names of models on the Hugging Face hub."),
)


def model_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options to a command."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command
