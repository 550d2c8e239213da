"""The help of a command with many options, by job: the common options' first sentences, or every option."""

from __future__ import annotations

import inspect
from collections.abc import Collection, Sequence
from typing import Any

import click

_ALL = "kullback.cli.help_all"


class Section:
    """Options that do one job.

    Arguments:
        job: the title of the options in the help; several sections may have one.
        options: the options.
        of: the subjects whose comparison takes the options, in words; every comparison does if it is empty.
        also: a further subject whose comparison takes them.
    """

    def __init__(self, job: str, *options: click.Option, of: str = "", also: str = "") -> None:
        self.job, self.options, self.of, self.also = job, options, of, also

    @property
    def is_of_rows(self) -> bool:
        """Whether the options say that the sides are not tables."""
        return "predictions" in self.of and not self.also

    def takes(self, subject: str) -> bool:
        """Return whether the comparison of a subject takes the options."""
        return not self.of or subject in self.of or subject == self.also


class GroupedCommand(click.Command):
    """A command whose ``--help`` lists the common options, and whose ``--help-all`` lists every option.

    Arguments:
        sections: all options of the command; the options for help follow the last one.
        common: the names of the common options, whose first sentence fits on a line.
    """

    def __init__(
        self, *args: Any, sections: Sequence[Section], common: Collection[str], **kwargs: Any
    ) -> None:
        super().__init__(*args, **kwargs)
        self.sections, self.common = sections, common
        self.help_all = click.Option(
            ["--help-all"],
            is_flag=True,
            is_eager=True,
            expose_value=False,
            callback=_show_all,
            help="Show every option and the whole description, and exit.",
        )
        self.params += [*(option for section in sections for option in section.options), self.help_all]

    def format_help_text(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the description: its first two paragraphs, or all of it."""
        paragraphs = inspect.cleandoc(self.help or "").split("\n\n")
        formatter.write_paragraph()
        with formatter.indentation():
            formatter.write_text("\n\n".join(paragraphs if _ALL in ctx.meta else paragraphs[:2]))

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options of each job."""
        helps = [each for each in (self.get_help_option(ctx), self.help_all) if each]
        jobs: dict[str, list[tuple[str, str]]] = {}
        for section in (*self.sections, Section(self.sections[-1].job, *helps)):
            for option in section.options:
                record = option.get_help_record(ctx) or ("", "")
                short = record[0], (option.help or "").partition(". ")[0].removesuffix(".")
                if _ALL in ctx.meta or option.name in self.common or option in helps:
                    jobs.setdefault(section.job, []).append(record if _ALL in ctx.meta else short)
        for job, rows in jobs.items():
            with formatter.section(job):
                formatter.write_dl(rows)


def _show_all(ctx: click.Context, param: click.Parameter, value: bool) -> None:
    if value and not ctx.resilient_parsing:
        ctx.meta[_ALL] = True
        click.echo(ctx.get_help(), color=ctx.color)
        ctx.exit()
