"""The help of `kullback compare`: the common options in one screen, and every option with --help-all."""

from __future__ import annotations

import re

import click
import pytest
from click.testing import CliRunner

from kullback.cli.commands import kullback
from kullback.cli.compare_command import compare
from kullback.cli.compare_options import OPTIONS

FLAGS = {flag for each in compare.params if isinstance(each, click.Option) for flag in each.opts}


def printed(option: str, width: int) -> str:
    result = CliRunner().invoke(
        kullback, ["compare", option], env={"COLUMNS": str(width)}, terminal_width=width
    )
    assert result.exit_code == 0, result.output
    return result.output


def entries(option: str, width: int) -> dict[str, str]:
    """The text of each option, by its flag, without line breaks."""
    part = printed(option, width).partition("\nPredictions:\n")[2]
    found: dict[str, str] = {}
    for entry in re.split(r"\n(?=  -)|\n\n[A-Z][a-z ]+:\n(?=  -)", "\n" + part)[1:]:
        flag = re.findall(r"--[a-z-]+", entry)[0]
        found[flag] = " ".join(re.split(r"\s{2,}", entry.strip(), maxsplit=1)[1].split())
    return found


def test_the_common_options_fit_on_one_screen() -> None:
    lines = printed("--help", 80).splitlines()
    assert len(lines) <= 40
    assert max(map(len, lines)) <= 80
    assert lines[-1].split()[0] == "--help-all"
    options = lines[lines.index("Predictions:") :]
    assert all(line.startswith("  -") or line.endswith(":") or not line for line in options)


def test_sixty_columns_show_the_same_words() -> None:
    lines = printed("--help", 60).splitlines()
    assert len(lines) <= 50
    assert max(map(len, lines)) <= 60
    assert entries("--help", 60) == entries("--help", 80)


def test_each_short_text_is_the_first_sentence_of_the_long_one() -> None:
    short, full = entries("--help", 80), entries("--help-all", 80)
    assert len(short) == sum(option.common for option in OPTIONS) + 2
    for flag, text in short.items():
        assert full[flag].startswith(f"{text}."), flag
    assert short["--cluster"].endswith("a file, or a table's column")


def test_texts_begin_with_a_capital_and_do_not_repeat_their_section() -> None:
    for flag, text in entries("--help-all", 80).items():
        assert text[0].isupper() or text.startswith("-100"), flag
        assert not text.startswith(
            tuple(f"{word}:" for word in ("Tables", "Models", *(option.job for option in OPTIONS)))
        ), flag


@pytest.mark.parametrize("width", [60, 80])
def test_all_options_are_listed_once_and_nothing_is_cut(width: int) -> None:
    text = printed("--help-all", width)
    assert max(map(len, text.splitlines())) <= width
    listed = re.findall(r"^  (?:-h, )?(--[a-z-]+)", text.partition("\nPredictions:\n")[2], re.MULTILINE)
    assert sorted(listed) == sorted(FLAGS | {"--help"})
    assert "..." not in re.sub(r"Q\.\.\.|A,B,\.\.\.|compare \.\.\.", "", text)
