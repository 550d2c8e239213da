"""The command ``kullback pairs``."""

from __future__ import annotations

import click


@click.command()
@click.argument("p", metavar="[FAMILY]", required=False)
@click.argument("q", metavar="[FAMILY]", required=False)
@click.option("--full", is_flag=True, help="Print one family's rules as a table.")
@click.option("--json", "style", flag_value="json", help="Print JSON and nothing else.")
@click.option("--markdown", "style", flag_value="markdown", help="Print the page of the documentation.")
def pairs(p: str | None, q: str | None, style: str | None, *, full: bool) -> None:
    """Show the rule for each pair of torch's distributions, for the pairs of one FAMILY, or for two families.

    \b
    kullback pairs
    kullback pairs Gamma
    kullback pairs Normal Gamma
    kullback pairs Normal --json

    Where the rule depends on the parameters, the rule for typical parameters is shown.
    """
    from kullback.cli.pairs_table import show_pairs

    show_pairs(tuple(name for name in (p, q) if name is not None), style, full=full)
