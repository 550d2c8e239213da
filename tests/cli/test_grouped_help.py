"""The help of `kullback compare`: the common options in one screen, and every option with --help-all."""

from __future__ import annotations

import re

import click
import pytest
from click.testing import CliRunner

from kullback.cli.commands import kullback
from kullback.cli.compare_command import COMMON, JOBS, compare

FLAGS = {flag for each in compare.params if isinstance(each, click.Option) for flag in each.opts}


def printed(option: str, width: int) -> str:
    result = CliRunner().invoke(
        kullback, ["compare", option], env={"COLUMNS": str(width)}, terminal_width=width
    )
    assert result.exit_code == 0, result.output
    return result.output


def test_the_common_options_fit_on_one_screen() -> None:
    lines = printed("--help", 80).splitlines()
    assert len(lines) <= 40
    assert max(map(len, lines)) <= 80
    assert lines[-1].split()[0] == "--help-all"


def test_each_common_option_is_one_line() -> None:
    lines = printed("--help", 80).splitlines()
    for written, text in COMMON.values():
        assert [line for line in lines if line.split("  ")[1:2] == [written] and line.endswith(text)], written


@pytest.mark.parametrize("width", [60, 80])
def test_all_options_are_listed_once_and_nothing_is_cut(width: int) -> None:
    text = printed("--help-all", width)
    assert max(map(len, text.splitlines())) <= width
    listed = re.findall(r"^  (?:-h, )?(--[a-z-]+)", text.partition("Predictions:\n")[2], re.MULTILINE)
    assert sorted(listed) == sorted(FLAGS | {"--help"})
    assert "..." not in re.sub(r"Q\.\.\.|A,B,\.\.\.|compare \.\.\.", "", text)


def test_each_option_has_one_job() -> None:
    names = [name for job in JOBS.values() for name in job]
    assert len(set(names)) == len(names)
    options = {each.name for each in compare.params if isinstance(each, click.Option)}
    assert set(names) == options | {"help"}
    assert COMMON.keys() <= set(names)


def test_the_short_form_of_an_option_is_the_option() -> None:
    by_name = {each.name: each.opts for each in compare.params} | {"help": ["-h", "--help"]}
    for name, (written, _) in COMMON.items():
        assert set(re.findall(r"(?<!\S)--?[a-z-]+", written)) <= set(by_name[name])
