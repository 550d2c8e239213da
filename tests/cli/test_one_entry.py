"""An option is one entry: from outside, one `Option` gives help, parsing, a key of a file, refusals and an argument."""

from __future__ import annotations

import inspect
import math
from pathlib import Path
from typing import Any

import click
import numpy as np
import pytest
from click.testing import CliRunner, Result

from kullback import compare_models, compare_predictions, compare_tables, record_reference
from kullback.cli import model_comparison
from kullback.cli.commands import kullback
from kullback.cli.option import Option
from kullback.cli.option_command import OptionCommand, command
from kullback.common.constraints import Number, OneOf, Whole
from kullback.errors import KullbackError
from kullback.models import Cut, Loading, Run
from kullback.tables import compare_profiles
from tests.test_contributing import example

NAMES: dict[str, Any] = {}
exec(example("An option"), NAMES)  # noqa: S102 - the code of CONTRIBUTING.md
ENTRY: Option = NAMES["MAX_BEAMS"]


@pytest.fixture
def extended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> click.Group:
    """The command `kullback` whose `compare` has one more option, in a folder with two files of predictions."""
    monkeypatch.chdir(tmp_path)
    for name in ("p.npy", "q.npy"):
        np.save(name, np.zeros((4, 3)))
    Path("text.txt").write_text("hello\n")
    compare = kullback.commands["compare"]
    assert isinstance(compare, OptionCommand)
    arguments = [each for each in compare.params if isinstance(each, click.Argument)]
    more = command(*arguments, options=(*compare.options, ENTRY), by_job=True)(compare.callback)
    group = type(kullback)("kullback", commands={"compare": more})
    group.context_settings = kullback.context_settings
    return group


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """The arguments with which the library is called, which then does nothing."""
    calls: list[dict[str, Any]] = []

    def take(*_: object, **arguments: Any) -> None:
        calls.append(arguments)
        raise KeyboardInterrupt

    monkeypatch.setattr(model_comparison, "compare_models", take)
    return calls


MODELS = ("compare", "a.gguf", "b.gguf", "--text", "text.txt")


def run(group: click.Group, *arguments: str) -> Result:
    return CliRunner().invoke(group, arguments)


def test_help_shows_it_under_its_job(extended: click.Group) -> None:
    short = run(extended, "compare", "--help").stdout
    section = short.partition("Language models:")[2].partition("\n\n")[0]
    assert section.endswith("The beams of the decoder")
    whole = " ".join(run(extended, "compare", "--help-all").stdout.split())
    assert "More of them take longer. [default: 2; 1<=x<=64]" in whole


@pytest.mark.parametrize(("arguments", "beams"), [((), 2), (("--max-beams", "7"), 7)])
def test_its_value_reaches_the_run(
    extended: click.Group, taken: list[dict[str, Any]], arguments: tuple[str, ...], beams: int
) -> None:
    run(extended, *MODELS, *arguments)
    assert [call["beams"] for call in taken] == [beams]


@pytest.mark.parametrize(
    ("text", "arguments", "beams"),
    [
        ("max-beams = 9", (), 9),
        ("[compare]\nmax-beams = 9", (), 9),
        ("max-beams = 8\n[compare]\nmax-beams = 9", (), 9),
        ("max-beams = 9\n[record]\nmax-beams = 5", (), 9),
        ("max-beams = 9", ("--max-beams", "3"), 3),
    ],
)
def test_a_file_has_it(
    extended: click.Group, taken: list[dict[str, Any]], text: str, arguments: tuple[str, ...], beams: int
) -> None:
    Path("run.toml").write_text(text)
    run(extended, *MODELS, "--config", "run.toml", *arguments)
    assert [call["beams"] for call in taken] == [beams]


@pytest.mark.parametrize(
    ("line", "text", "said"),
    [
        ("--max-beams 65", "", "--max-beams: wanted an integer from 1 to 64; got '65'. Write: --max-beams 4"),
        ("--max-beams few", "", "--max-beams: wanted an integer from 1 to 64; got 'few'. Write: --max-beams 4"),
        ("", "max-beams = 65", "run.toml: max-beams: wanted an integer from 1 to 64; got 65. Write: max-beams = 4"),
        ("", 'max-beams = "3"', "run.toml: max-beams: wanted an integer from 1 to 64; got '3'. Write: max-beams = 4"),
        ("", "max-beam = 3", "run.toml: max-beam: wanted an option of kullback compare; got no such option. Write"),
        ("--as logits --max-beams 3", "", "--max-beams is for comparing models; leave it out, or add --text FILE"),
        ("--as logits", "max-beams = 3", "run.toml: max-beams is for comparing models; leave it out, or add --text"),
    ],
)  # fmt: skip
def test_it_is_refused_in_one_line(extended: click.Group, line: str, text: str, said: str) -> None:
    Path("run.toml").write_text(text)
    sides = ("p.npy", "q.npy") if "--as" in line else MODELS[1:]
    result = run(extended, "compare", *sides, *line.split(), "--config", "run.toml")
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith(f"kullback: {said}")
    assert result.stderr.count("\n") == 1


# The tables of all commands


COMMANDS: dict[str, OptionCommand] = {
    name: each for name, each in kullback.commands.items() if isinstance(each, OptionCommand)
}
ENTRIES = {(name, each.flag): each for name, command in COMMANDS.items() for each in command.options}


def test_every_command_is_made_from_its_table() -> None:
    assert COMMANDS.keys() == kullback.commands.keys()
    for name, of_command in COMMANDS.items():
        options = [each.name for each in of_command.params if isinstance(each, click.Option)]
        further = ["help_all"] if name == "compare" else []
        assert options == [each.name for each in of_command.options] + further
        assert len(set(options)) == len(options)


CALLS: dict[str, tuple[Any, ...]] = {
    "predictions": (compare_predictions,),
    "tables": (compare_tables,),
    "models": (compare_models, Cut, Loading, Run),
    "record": (record_reference, Cut, Loading),
    "watch": (compare_profiles,),
}


@pytest.mark.parametrize(("name", "flag"), [key for key, each in ENTRIES.items() if each.into])
def test_an_argument_exists_and_has_the_same_default_in_the_library(name: str, flag: str) -> None:
    entry = ENTRIES[name, flag]
    for subject in entry.subjects if name == "compare" else [name]:
        # Of models, the settings objects have most of the arguments.
        every = [inspect.signature(function).parameters for function in CALLS.get(subject, ())]
        parameters = [each[entry.into] for each in every if entry.into in each]
        # A table has no representation, and the profile of a reference is counted by another function.
        is_absent = (subject, flag) == ("tables", "--as") or name == "watch" or not every
        assert len(parameters) == 1 or is_absent, (name, flag, subject)
        if entry.default is None or entry.into in ("generator", "block_bytes"):
            continue
        converted = entry.default if entry.convert is None else entry.convert(entry.default)
        assert [each.default for each in parameters] == [converted] * len(parameters)


@pytest.mark.parametrize(("name", "flag"), ENTRIES)
def test_a_number_and_a_word_have_the_bounds_of_their_constraint(name: str, flag: str) -> None:
    entry = ENTRIES[name, flag]
    kind = entry.as_click().type
    if isinstance(entry.accepts, Whole | Number):
        assert isinstance(kind, click.IntRange | click.FloatRange)
        for wrong in (entry.accepts.least - 1, math.nan, "x"):
            with pytest.raises(KullbackError, match=f"^{flag}: wanted "):
                kind.convert(str(wrong), entry.as_click(), None)
        assert kind.convert(str(entry.accepts.example), None, None) == entry.accepts.example
    elif isinstance(entry.accepts, OneOf):
        assert [kind.convert(word, None, None) for word in entry.accepts.words] == list(entry.accepts.words)
        with pytest.raises(KullbackError, match=f"^{flag}: wanted one of '"):
            kind.convert("no such word", entry.as_click(), None)


DOCUMENTED = (Path(__file__).parents[2] / "docs" / "cli.md").read_text(encoding="utf-8")


def test_the_page_has_a_row_for_each_option_of_compare() -> None:
    rows = [
        f"| `{each.flag}` | {'all' if len(each.subjects) == 3 else ', '.join(each.subjects)} "
        f"| {'' if each.default is None else f'`{each.default}`'} | {f'`{each.into}`' if each.into else ''} |"
        for each in COMMANDS["compare"].options
    ]
    table = ["| option | for comparing | default | argument |", "|---|---|---|---|", *rows]
    assert "\n".join(table) in DOCUMENTED, "\n".join(["docs/cli.md wants this table:", *table])
