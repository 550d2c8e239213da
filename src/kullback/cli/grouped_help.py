"""The help of a command with many options, by job: the common options' first sentences, or every option."""

from __future__ import annotations

import inspect
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import click

_ALL = "kullback.cli.help_all"


class GroupedCommand(click.Command):
    """A command whose ``--help`` lists the common options, and whose ``--help-all`` lists every option.

    Arguments:
        jobs: the names of all parameters, by the job that they do.
        common: the names of the common parameters, whose first sentence fits on a line.
    """

    def __init__(
        self,
        *args: Any,
        jobs: Mapping[str, Sequence[str]],
        common: Collection[str],
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        self.jobs, self.common = jobs, common
        self.params.append(
            click.Option(
                ["--help-all"],
                is_flag=True,
                is_eager=True,
                expose_value=False,
                callback=_show_all,
                help="Show every option and the whole description, and exit.",
            )
        )

    def format_help_text(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the description: its first two paragraphs, or all of it."""
        paragraphs = inspect.cleandoc(self.help or "").split("\n\n")
        formatter.write_paragraph()
        with formatter.indentation():
            formatter.write_text("\n\n".join(paragraphs if _ALL in ctx.meta else paragraphs[:2]))

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options of each job."""
        shown: dict[str | None, tuple[str, str]] = {}
        for each in self.get_params(ctx):
            name = "help" if "--help" in each.opts else each.name  # versions of click name it differently
            if isinstance(each, click.Option) and (record := each.get_help_record(ctx)):
                if _ALL in ctx.meta:
                    shown[name] = record
                elif name in self.common:
                    shown[name] = record[0], (each.help or "").partition(". ")[0].removesuffix(".")
        for job, names in self.jobs.items():
            if rows := [shown[name] for name in names if name in shown]:
                with formatter.section(job):
                    formatter.write_dl(rows)


def _show_all(ctx: click.Context, param: click.Parameter, value: bool) -> None:
    if value and not ctx.resilient_parsing:
        ctx.meta[_ALL] = True
        click.echo(ctx.get_help(), color=ctx.color)
        ctx.exit()
