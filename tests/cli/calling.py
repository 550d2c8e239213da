"""Calls of the command line in this process, and what an error has to look like."""

from __future__ import annotations

import shlex

from click.testing import CliRunner, Result

from kullback.cli.commands import kullback
from kullback.errors import LONGEST_MESSAGE


def run(*arguments: object) -> Result:
    """Call `kullback` with arguments."""
    return CliRunner().invoke(kullback, [str(argument) for argument in arguments])


def run_line(line: str, **environment: str) -> Result:
    """Call `kullback` with the words of a line."""
    return CliRunner(env=environment).invoke(kullback, shlex.split(line))


def one_line(result: Result, *words: str, status: int = 2) -> str:
    """Return the error, which has to be one printable line that has the words, and nothing else may be printed."""
    assert (result.exit_code, result.stdout) == (status, ""), result.output
    line = result.stderr
    assert line.startswith("kullback: ")
    assert line.endswith("\n")
    assert line[:-1].isprintable()
    assert len(line) < LONGEST_MESSAGE + 50
    for word in words:
        assert word in line
    return line
