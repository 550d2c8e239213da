"""`OptionCommand`: a click command with a table of options, a file of options, and a help with sections by job."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any, cast

import click

from kullback.cli.config_file import read_config
from kullback.cli.option import Option
from kullback.cli.settings import settings_of

_ALL = "kullback.cli.help_all"


class OptionCommand(click.Command):
    """A command that calls its function with the command's arguments and `Settings`.

    Arguments:
        options: the options, in the order of the help.
        by_job: whether ``--help`` lists the common options under their jobs, each with the first sentence of its
            description, and ``--help-all`` lists every option.
    """

    def __init__(self, *args: Any, options: Sequence[Option], by_job: bool, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.options = tuple(options)
        for option in self.options:
            parameter = option.as_click()
            if option.reads_config:
                parameter.is_eager, parameter.callback = True, self._read_config
            self.params.append(parameter)
        self.help_all: click.Option | None = None
        if by_job:
            self.help_all = click.Option(
                ["--help-all"],
                is_flag=True,
                is_eager=True,
                expose_value=False,
                callback=_show_all,
                help="Show every option and the whole description, and exit.",
            )
            self.params.append(self.help_all)

    def invoke(self, ctx: click.Context) -> Any:
        """Call the function with the values of the arguments, and with the settings."""
        arguments = [ctx.params[each.name or ""] for each in self.params if isinstance(each, click.Argument)]
        function = cast("Callable[..., None]", self.callback)
        return ctx.invoke(function, *arguments, settings_of(ctx, self.options))

    def _read_config(self, ctx: click.Context, param: click.Parameter, value: Any) -> Any:
        if value is not None and not ctx.resilient_parsing:
            ctx.default_map = read_config(ctx, value, self.options)
        return value

    def format_help_text(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the first two paragraphs of the description, or the whole description for ``--help-all``."""
        if self.help_all is None:
            super().format_help_text(ctx, formatter)
            return
        paragraphs = inspect.cleandoc(self.help or "").split("\n\n")
        formatter.write_paragraph()
        with formatter.indentation():
            formatter.write_text("\n\n".join(paragraphs if _ALL in ctx.meta else paragraphs[:2]))

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write a section for each job with the options of the job."""
        if self.help_all is None:
            super().format_options(ctx, formatter)
            return
        parameters = {each.name: each for each in self.params}
        rows = [(option.job, parameters[option.name], option.common) for option in self.options]
        rows += [("Output", each, True) for each in (self.get_help_option(ctx), self.help_all) if each]
        jobs: dict[str, list[tuple[str, str]]] = {}
        for job, parameter, common in rows:
            flags, text = parameter.get_help_record(ctx) or ("", "")
            if _ALL in ctx.meta:
                jobs.setdefault(job, []).append((flags, text))
            elif common:
                first = (getattr(parameter, "help", None) or "").partition(". ")[0].removesuffix(".")
                jobs.setdefault(job, []).append((flags, first))
        for job, entries in jobs.items():
            with formatter.section(job):
                formatter.write_dl(entries)


def command(
    *arguments: click.Argument, options: Sequence[Option] = (), by_job: bool = False
) -> Callable[[Callable[..., None]], OptionCommand]:
    """Return a decorator that converts a function to a command with the name and the docstring of the function. The
    function takes the values of the `arguments` in this order, and then the `Settings`.
    """

    def made(function: Callable[..., None]) -> OptionCommand:
        decorate = click.command(cls=OptionCommand, params=list(arguments), options=options, by_job=by_job)
        return decorate(function)

    return made


def _show_all(ctx: click.Context, param: click.Parameter, value: bool) -> None:
    if value and not ctx.resilient_parsing:
        ctx.meta[_ALL] = True
        click.echo(ctx.get_help(), color=ctx.color)
        ctx.exit()
