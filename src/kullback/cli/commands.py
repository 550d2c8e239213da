"""The command group `kullback`, and the error reports of its commands.

A command imports its computations when the command runs, so help and usage errors do not need torch.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Generator
from contextlib import contextmanager
from typing import IO, Any

import click

from kullback.cli.backends_command import backends
from kullback.cli.calc import calc
from kullback.cli.compare_command import compare, refuse_workers
from kullback.cli.convert import convert
from kullback.cli.mismatch_command import mismatch
from kullback.cli.pairs_command import pairs
from kullback.cli.record_command import record
from kullback.cli.statuses import Status
from kullback.cli.streams import discard_unwritable, print_error
from kullback.cli.watch import watch
from kullback.errors import LONGEST_MESSAGE, KullbackError, printable


class _Failure(click.ClickException):
    """An error message in one line."""

    exit_code = Status.WRONG_INPUT

    def show(self, file: IO[Any] | None = None) -> None:
        print_error(f"kullback: {printable(self.format_message(), LONGEST_MESSAGE)}", file)


class _Unexpected(_Failure):
    """An error message in one line for an unexpected error, which is a bug of this package."""

    exit_code = Status.UNEXPECTED


@contextmanager
def _errors_in_one_line() -> Generator[None, None, None]:
    """Turn every error into a message of one line and an exit status that no gate has."""
    try:
        yield
    except click.UsageError as error:
        command = error.ctx.command_path if error.ctx else "kullback"
        raise _Failure(f"{error.format_message()} See: {command} --help") from error
    except BrokenPipeError:
        # The reader of the output has closed the pipe. At exit, the interpreter must not try to write the rest.
        discard_unwritable()
        raise click.exceptions.Exit(Status.CLOSED_PIPE) from None
    except KeyboardInterrupt:
        raise click.exceptions.Exit(Status.INTERRUPTED) from None
    except (click.ClickException, click.exceptions.Exit, click.exceptions.Abort):
        raise
    except (KullbackError, OSError) as error:
        raise _Failure(str(error)) from error
    except Exception as error:
        if os.environ.get("KULLBACK_DEBUG"):
            raise
        what = " ".join(str(error).split())
        raise _Unexpected(
            f"unexpected {type(error).__name__}: {what}; set KULLBACK_DEBUG=1 to see where, and please report it"
        ) from error


class _Commands(click.Group):
    """A group whose commands report every error in one line."""

    def make_context(self, *args: Any, **extra: Any) -> click.Context:
        with _errors_in_one_line():
            return super().make_context(*args, **extra)

    def invoke(self, ctx: click.Context) -> Any:
        with _errors_in_one_line():
            result = super().invoke(ctx)
            if sys.stdout is not None:
                sys.stdout.flush()  # raises BrokenPipeError here if the pipe is closed
            return result


@click.group(
    cls=_Commands, invoke_without_command=True, context_settings={"help_option_names": ["-h", "--help"]}
)
@click.version_option(package_name="kullback", message="%(prog)s %(version)s")
@click.pass_context
def kullback(ctx: click.Context) -> None:
    """How far is Q from P? Kullback-Leibler divergences of files, distributions and models' predictions.

    \b
    kullback compare p.npy q.npy --as logits
    kullback calc 'Normal(0, 1)' 'Laplace(0, 1)'

    kullback COMMAND --help describes a command. The exit status is 0 for success, 1 if a gate fails, 2 on a wrong
    argument or file, 3 if a gate is unclear, 70 on an unexpected error, 130 after Ctrl-C, and 141 if the reader of
    the output closes the pipe. For a comparison with a closed pipe, the gates determine the status: 0, 1 or 3.
    """
    if ctx.obj is True and ctx.invoked_subcommand not in (None, compare.name):
        refuse_workers(f"kullback {ctx.invoked_subcommand} is")
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())


for command in (compare, record, watch, mismatch, convert, calc, pairs, backends):
    kullback.add_command(command)
