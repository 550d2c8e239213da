"""The command ``kullback pairs``."""

from __future__ import annotations

import click


@click.command()
@click.argument("family", required=False)
@click.option("--json", "style", flag_value="json", help="Print JSON and nothing else.")
@click.option("--markdown", "style", flag_value="markdown", help="Print the page of the documentation.")
def pairs(family: str | None, style: str | None) -> None:
    """Show which rule serves each pair of torch's distributions, or only those of one FAMILY, such as Gamma.

    \b
    kullback pairs
    kullback pairs Gamma
    kullback pairs Normal --json
    """
    from kullback.cli.pairs_table import show_pairs

    show_pairs(family, style)
