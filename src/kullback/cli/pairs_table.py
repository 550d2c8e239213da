"""The output of ``kullback pairs``: the rule for each pair of torch's distributions."""

from __future__ import annotations

import json
from collections import Counter
from typing import TYPE_CHECKING

import click
from rich.table import Table
from rich.text import Text

from kullback.common.display import open_console
from kullback.common.formats import counted
from kullback.errors import BY_CALL, ArgumentValueError
from kullback.pairs.coverage import MEANING, Entry, families, is_univariate, matrix
from kullback.pairs.registry import WRAPPERS

if TYPE_CHECKING:
    from rich.console import Console

SCHEMA = "kullback.pairs/1"
# Each rule has a color and a sign. A sign is one character, so that the whole matrix fits on a screen.
SIGNS = {
    "closed_form": ("C", "bold green"),
    "series": ("S", "bold green"),
    "summation": ("Σ", "cyan"),
    "quadrature": ("∫", "cyan"),
    "infinite": ("∞", "yellow"),
    "monte_carlo": ("?", "magenta"),
    "not_comparable": ("·", "dim"),
}


def show_pairs(names: tuple[str, ...], style: str | None, *, full: bool) -> None:
    """Print the rules of all pairs, of the pairs with one family, or of two families in both directions.

    `style` is ``"json"`` or ``"markdown"``; None prints a matrix, or the rules of `names` in words. With `full`, the
    rules of one family are a table.
    """
    known = [kind.__name__ for kind in families()]
    for name in names:
        if name not in known:
            raise ArgumentValueError.at(
                "kullback pairs FAMILY",
                wanted=f"one of {', '.join(known)}",
                got=f"{name!r}",
                instead="kullback pairs Gamma",
                wording=BY_CALL,
            )
    wanted, is_pair = set(names), len(names) == 2
    entries = [
        entry for entry in matrix() if (wanted == {entry.p, entry.q} if is_pair else wanted <= {*entry[:2]})
    ]
    console = open_console()
    if style == "json":
        click.echo(json.dumps({"schema": SCHEMA, "pairs": [entry._asdict() for entry in entries]}, indent=1))
    elif style == "markdown":
        click.echo(page(entries), nl=False)
    elif not names:
        _print_matrix(entries, console)
    elif is_pair:
        for p, q, rule in sorted(entries, key=lambda entry: entry.p != names[0]):
            console.print(Text.assemble(f"KL({p} ‖ {q}): ", _in_words(rule), f", {MEANING[rule]}."))
    elif full:
        _print_family(names[0], entries, console)
    else:
        _print_summary(names[0], entries, console)


def _print_summary(family: str, entries: list[Entry], console: Console) -> None:
    """Print, for each rule, the types whose pairs with one family use the rule, in both directions."""
    as_p = {entry.q: entry.rule for entry in entries if entry.p == family}
    as_q = {entry.p: entry.rule for entry in entries if entry.q == family}
    for title, rules, is_comparable in (
        (f"KL({family} ‖ X)", as_p, True),
        (f"KL(X ‖ {family})", as_q, True),
        (f"{family} and X, both ways", as_p, False),
    ):
        console.print(title, style="bold", highlight=False)
        for rule, meaning in MEANING.items():
            types = [name for name, its_rule in rules.items() if its_rule == rule]
            if types and is_comparable == (rule != "not_comparable"):
                text = f" ({meaning}) with {counted(len(types), 'type')}: {', '.join(types)}"
                console.print(Text.assemble("- ", _in_words(rule), text))


def _print_family(family: str, entries: list[Entry], console: Console) -> None:
    """Print a table of the rules for pairs of one family with every family, in both directions."""
    rules = {(entry.p, entry.q): entry.rule for entry in entries}
    table = Table("X", f"KL({family} ‖ X)", f"KL(X ‖ {family})")
    for kind in families():
        name = kind.__name__
        table.add_row(name, *(_in_words(rules[pair]) for pair in ((family, name), (name, family))))
    console.print(table)


def _in_words(rule: str) -> Text:
    return Text(_name(rule), style=SIGNS[rule][1])


def _print_matrix(entries: list[Entry], console: Console) -> None:
    """Print a matrix with one sign for each pair, and a legend of the signs."""
    rules = {(entry.p, entry.q): entry.rule for entry in entries}
    names = [kind.__name__ for kind in families()]
    console.print("KL(P ‖ Q): P down, Q across, by number", style="bold")
    for digits in ("tens", "units"):
        numbers = (divmod(i, 10)[digits == "units"] for i in range(1, len(names) + 1))
        console.print(" " * 36 + "".join(map(str, numbers)), style="dim", highlight=False)
    for number, p in enumerate(names, 1):
        line = Text(f"{number:2} {p:<33}")
        for q in names:
            line.append(*SIGNS[rules[p, q]])
        console.print(line)
    console.print()
    counts = Counter(rules.values())
    for rule, (sign, style) in SIGNS.items():
        console.print(
            Text(f"{sign} ", style), Text(f"{_name(rule)}, {counts[rule]} pairs: {MEANING[rule]}"), sep=""
        )


def page(entries: list[Entry]) -> str:
    """Return the page of the documentation in Markdown: the meaning of each rule, and the rules of every P."""
    names = [kind.__name__ for kind in families() if kind.__name__ in {entry.p for entry in entries}]
    counts = Counter(entry.rule for entry in entries)
    lines = [
        "# Pairs of distributions",
        "",
        "Which rule `kullback.kl_divergence(p, q)` takes for each ordered pair of torch's distributions. "
        "The command `kullback pairs` prints the same table, and `kullback pairs --markdown` wrote this page from "
        "the rules themselves. Where the rule depends on the parameters, the table has the rule for typical "
        "parameters. A truncated support, or different counts, can turn a formula into a sum or into +inf. "
        "The rules of "
        + ", ".join(f"`{kind.__name__}`" for kind in WRAPPERS)
        + " depend on their parts; the entries are for `Normal` parts.",
        "",
        "| Rule | Pairs | Description |",
        "| --- | ---: | --- |",
        *(
            f"| {_name(rule)} | {counts[rule]} | {meaning} |"
            for rule, meaning in MEANING.items()
            if counts[rule]
        ),
        "",
    ]
    univariate = {kind.__name__ for kind in families() if is_univariate(kind)}
    for title, chosen in (
        ("Numbers", [name for name in names if name in univariate]),
        ("Vectors, matrices and wrappers", [name for name in names if name not in univariate]),
    ):
        lines += [f"## {title}", "", "| P | " + " | ".join(_name(rule) for rule in _SHOWN) + " |"]
        lines += ["| --- " * (1 + len(_SHOWN)) + "|"]
        lines += [_row(p, entries) for p in chosen]
        lines += [""]
    return "\n".join(lines)


# The page has a column for each of these rules. Pairs that cannot be compared are in no column.
_SHOWN = tuple(rule for rule in MEANING if rule != "not_comparable")


def _row(p: str, entries: list[Entry]) -> str:
    cells = [", ".join(entry.q for entry in entries if (entry.p, entry.rule) == (p, rule)) for rule in _SHOWN]
    return f"| **{p}** | " + " | ".join(cells) + " |"


def _name(rule: str) -> str:
    return {"infinite": "+inf", "monte_carlo": "Monte Carlo"}.get(rule, rule.replace("_", " "))
