"""The command ``kullback pairs``."""

from __future__ import annotations

import click

from kullback.cli.option import Option
from kullback.cli.option_command import command
from kullback.cli.settings import Settings
from kullback.common.constraints import FLAG

OPTIONS = (
    Option("--full", "Print one family's rules as a table.", accepts=FLAG),
    Option("--json", "Print only JSON.", accepts=FLAG),
    Option("--markdown", "Print the page of the documentation.", accepts=FLAG),
)


@command(
    click.Argument(["p"], metavar="[FAMILY]", required=False),
    click.Argument(["q"], metavar="[FAMILY]", required=False),
    options=OPTIONS,
)
def pairs(p: str | None, q: str | None, settings: Settings) -> None:
    """Show the rule for each pair of torch's distributions, for the pairs of one FAMILY, or for two families.

    \b
    kullback pairs
    kullback pairs Gamma
    kullback pairs Normal Gamma
    kullback pairs Normal --json

    If the rule depends on the parameters, the rule for typical parameters is shown.
    """
    from kullback.cli.pairs_table import show_pairs

    style = "json" if settings["--json"] else "markdown" if settings["--markdown"] else None
    names = tuple(name for name in (p, q) if name is not None)
    show_pairs(names, style, full=bool(settings["--full"]))
