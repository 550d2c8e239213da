"""The examples of the README and of the tutorial run, from top to bottom of each page, and print what it says.

A fence of language ``python`` holds a session with ``>>>`` prompts; all those of a page share their names. A fence of
language ``console`` holds calls of the command line after ``$ ``; each has to end with status 0, unless ``$ echo $?``
follows and shows another. Other commands, like ``$ make run``, are for people and not run. A fence after
``<!-- needs: trl -->`` is left out where trl is not installed.
"""

from __future__ import annotations

import doctest
import re
import shlex
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import click
import pytest
import yaml
from click.testing import CliRunner

from kullback.common.optional import is_installed

ROOT = Path(__file__).parents[1]
PAGES = [
    ROOT / "README.md",
    ROOT / "docs" / "tutorial.md",
    *sorted((ROOT / "docs" / "tutorial").glob("*.md")),
    ROOT / "docs" / "index.md",
    ROOT / "docs" / "why.md",
    ROOT / "docs" / "library_reports.md",
    ROOT / "docs" / "cheatsheet.md",
    ROOT / "docs" / "api" / "divergences.md",
    ROOT / "docs" / "gallery.md",
    ROOT / "docs" / "integrations.md",
    *sorted((ROOT / "docs" / "migrate").glob("*.md")),
    ROOT / "docs" / "intervals.md",
    ROOT / "docs" / "exports.md",
    ROOT / "docs" / "tables.md",
    ROOT / "docs" / "cli.md",
    ROOT / "docs" / "reference_files.md",
]
FENCE = re.compile(
    r"^(?P<indent> *)```(?P<language>python|console)\b.*\n(?P<text>(?:.*\n)*?)(?P=indent)```$", re.MULTILINE
)
# Before a fence that is left out where a package is not installed.
NEEDED = re.compile(r"<!-- needs: (?P<packages>[\w., ]+) -->\n\Z")
PROMPT = re.compile(r"^\$ ", re.MULTILINE)
STATUS = "echo $?"
OPTIONS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


@dataclass
class Session:
    """What the examples of one page have in common, and what has gone wrong in them."""

    page: str
    command: click.Command
    names: dict[str, Any] = field(default_factory=lambda: {"__name__": "__main__"})
    status: int = 0
    examples: int = 0
    failures: list[str] = field(default_factory=list)

    def run(self, markdown: str) -> None:
        for fence in FENCE.finditer(markdown):
            needed = NEEDED.search(markdown, 0, fence.start())
            if needed and not is_installed(*needed["packages"].split(", ")):
                continue
            line = markdown.count("\n", 0, fence.start("text"))
            text = textwrap.dedent(fence["text"])
            if fence["language"] == "python":
                self._run_python(text, line)
            else:
                self._run_console(text, line)

    def _run_python(self, text: str, line: int) -> None:
        test = doctest.DocTestParser().get_doctest(text, {}, self.page, self.page, line)
        if not test.examples:
            self.failures.append(f"{self.page}, line {line + 1}: an example without >>> shows no result")
        test.globs = self.names
        self.examples += len(test.examples)
        doctest.DocTestRunner(optionflags=OPTIONS).run(test, out=self.failures.append, clear_globs=False)

    def _run_console(self, text: str, line: int) -> None:
        for (written, expected), (following, _) in pairwise([*_calls(text), ("", "")]):
            if written == STATUS:
                shown = f"{self.status}\n"
            elif written.startswith("kullback "):
                shown = self._call(written)
            else:
                continue
            self.examples += 1
            problem = None
            if self.status != 0 and STATUS not in (written, following):
                problem = f"ended with status {self.status}"
            elif expected and not doctest.OutputChecker().check_output(expected, shown, OPTIONS):
                problem = f"should print:\n{expected}"
            if problem:
                self.failures.append(
                    f"{self.page}, line {line + 1}: $ {written}\n{problem}\nand printed:\n{shown}"
                )

    def _call(self, written: str) -> str:
        runner = CliRunner(env={"COLUMNS": "100"})
        result = runner.invoke(self.command, shlex.split(written)[1:], prog_name="kullback")
        self.status = result.exit_code
        unexpected = result.exception is not None and not isinstance(result.exception, SystemExit)
        return f"{result.output}{result.exception!r}" if unexpected else result.output


def _calls(text: str) -> Iterator[tuple[str, str]]:
    r"""The calls in a console fence, a ``\`` at the end of a line continuing it, each with the output that is shown."""
    for call in PROMPT.split(text.replace("\\\n", " "))[1:]:
        written, _, expected = call.partition("\n")
        yield " ".join(written.split()), expected


@pytest.fixture
def command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> click.Command:
    """The command line, in an empty folder beside the example data."""
    from kullback.cli.commands import kullback

    (tmp_path / "examples").symlink_to(ROOT / "examples", target_is_directory=True)
    monkeypatch.chdir(tmp_path)
    return kullback


# The trainers warn of much, such as of too few workers, and the monitors of their own dependencies.
QUIET = pytest.mark.filterwarnings("ignore")


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, marks=[QUIET] if page.name in ("trainers.md", "integrations.md") else [])
        for page in PAGES
    ],
    ids=[page.relative_to(ROOT).as_posix() for page in PAGES],
)
def test_examples_of_a_page_run_and_print_what_it_says(page: Path, command: click.Command) -> None:
    session = Session(page.name, command)
    session.run(page.read_text(encoding="utf-8"))
    if session.failures:
        pytest.fail("\n".join(session.failures), pytrace=False)
    assert session.examples, f"{page.name} has no executed example"


def pages_of(part: Any) -> Iterator[str]:
    """The pages of a part of the navigation: a page, or a list of pages and of titles with their pages."""
    if isinstance(part, str):
        yield part
    else:
        for each in part.values() if isinstance(part, dict) else part:
            yield from pages_of(each)


def test_every_page_to_learn_from_is_run() -> None:
    nav = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))["nav"]
    start, guides = (
        part[name] for part in nav if isinstance(part, dict) for name in part if name in ("Start", "Guides")
    )
    pages = {ROOT / "docs" / page for page in pages_of([start, guides])}
    assert len(pages) > 25
    assert pages - set(PAGES) == {ROOT / "docs" / "glossary.md"}


TASK = re.compile(r"^\| ([^|]+) \| (`[^|]+`) \| \[[^]]+\]\(([\w/.]+)(?:#[\w-]+)?\)", re.MULTILINE)
# A function, a command with its name, a keyword argument, and an option.
WRITTEN = re.compile(r"`[@.]?(\w+(?: (?:compare|watch))?)|(\w+=)|(--[a-z-]+)")


def test_each_task_of_the_index_is_on_the_page_that_it_names() -> None:
    tasks = TASK.findall(
        (ROOT / "docs" / "index.md").read_text(encoding="utf-8").partition("## I want to\n")[2]
    )
    assert len(tasks) >= 20
    for task, code, page in tasks:
        assert ROOT / "docs" / page in PAGES, task
        text = (ROOT / "docs" / page).read_text(encoding="utf-8")
        words = {word for match in WRITTEN.findall(code) for word in match if word}
        assert words, task
        assert {word for word in words if word not in text} == set(), task


LIMIT = re.compile(r"--fail-(above|below)[= ]([\w.]+(?:\[\w+\])?=[\d.]+\d)")
CALL = re.compile(r"\bkullback (\w+)((?:[^`\n]|\\\n)*)")


def all_pages() -> dict[str, str]:
    return {
        path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8")
        for path in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    }


def test_every_limit_of_a_page_is_a_gate() -> None:
    """Also in prose and in calls that need a large model: a limit with a wrong name would be refused."""
    from kullback.cli.gates import OF_MISMATCH, OF_ROWS, OF_TABLES, parse_gate
    from kullback.errors import ArgumentValueError

    def is_gate(side: Any, text: str) -> bool:
        for metrics in (OF_ROWS, OF_TABLES, OF_MISMATCH):
            try:
                parse_gate(text, side, metrics)
            except ArgumentValueError:
                continue
            return True
        return False

    limits = [(page, *limit) for page, text in all_pages().items() for limit in LIMIT.findall(text)]
    assert len(limits) > 20
    assert [limit for limit in limits if not is_gate(*limit[1:])] == []
    assert not is_gate("below", "p_adjusted=0.002")


def test_every_option_of_a_call_on_a_page_exists() -> None:
    from kullback.cli.commands import kullback

    written = [
        (page, name, option)
        for page, text in all_pages().items()
        for name, rest in CALL.findall(text)
        if name in kullback.commands
        for option in re.findall(r"(?<=\s)--[a-z][a-z-]+", rest)
    ]
    assert len(written) > 50
    options = {
        name: {flag for parameter in command.params for flag in parameter.opts}
        for name, command in kullback.commands.items()
    }
    assert [each for each in written if each[2] not in options[each[1]] | {"--help", "--help-all"}] == []


@pytest.mark.parametrize("language", ["python", "console"])
def test_readme_and_tutorial_show_both_python_and_the_command_line(language: str) -> None:
    first, *tutorial = [
        {fence["language"] for fence in FENCE.finditer(page.read_text(encoding="utf-8"))} for page in PAGES
    ]
    assert language in first
    assert language in set().union(*tutorial)


WORDS = """
import torch
from torch.distributions import *
from torch.distributions.transforms import TanhTransform
import kullback
from kullback import *
from kullback.functional import kl_surrogate
from kullback.nn import KLRegularizer

x, y, T = torch.tensor([[2.0, 0.0], [1.0, 3.0]]), torch.tensor([[1.0, 0.5], [2.0, 1.0]]), 2.0
base, transforms, q = Normal(0.0, 1.0), [TanhTransform()], Normal(0.0, 1.0)
posterior, prior, weights = Normal(0.5, 1.0), Normal(0.0, 1.0), Normal(x, 1.0)
mixture = MixtureSameFamily(Categorical(torch.ones(2)), Normal(x[0], 1.0))
m, n, k = x[0], y[0], torch.eye(2)
log_p, log_q = x.log_softmax(-1), y.log_softmax(-1)
"""
WORDS_OF_USERS = {
    "normalizing flow", "VampPrior", "bounds for mixtures", "Gaussian process", "Bayesian layer", "PPO, GRPO",
    "temperature", "heat maps", "multi-label classification", "JAX arrays", "free bits", "bits",
}  # fmt: skip


def test_the_code_beside_each_word_of_the_readme_runs() -> None:
    table = (
        (ROOT / "README.md")
        .read_text(encoding="utf-8")
        .partition("## Find your word\n")[2]
        .partition("\n## ")[0]
    )
    rows = dict(re.findall(r"^\| (.+?) \| (`.+) \| \[.+\]\(.+\) \|$", table, re.MULTILINE))
    assert rows.keys() == WORDS_OF_USERS
    for word, cell in rows.items():
        names: dict[str, Any] = {}
        exec(WORDS, names)  # noqa: S102  the example's own names
        for code in re.findall(r"`([^`]+)`", cell):
            value = eval(code, names)  # noqa: S307  a line of README
            if code == "kullback.install()":
                names["kullback"].uninstall()
                continue
            for number in value if isinstance(value, tuple) else [value]:
                assert bool(names["torch"].isfinite(number).all()), (word, code)


@click.command()
@click.argument("status", type=int)
def ending_with(status: int) -> None:
    """Say a word and end with a status."""
    click.echo("over")
    raise SystemExit(status)


@pytest.mark.parametrize(
    ("markdown", "examples", "failures"),
    [
        ("Prose alone.\n", 0, 0),
        ("```python\n>>> 1 + 1\n2\n```\n", 1, 0),
        ("```python\n>>> 1 + 1\n3\n```\n", 1, 1),
        ("```python\n1 + 1\n```\n", 0, 1),
        ("```python\n>>> x = 1\n```\nand then\n\n    ```python\n    >>> x\n    1\n    ```\n", 2, 0),
        ("```python\n>>> x\n```\n", 1, 1),
        ("```console\n$ kullback 0\n```\n", 1, 0),
        ("```console\n$ kullback 0\nov...\n```\n", 1, 0),
        ("```console\n$ kullback 0\nunder\n```\n", 1, 1),
        ("```console\n$ kullback 1\n```\n", 1, 1),
        ("```console\n$ kullback \\\n    1\nover\n$ echo $?\n1\n```\n", 2, 0),
        ("```console\n$ kullback 1\n$ echo $?\n2\n```\n", 2, 1),
        ("```console\n$ make run\n```\n", 0, 0),
        ("<!-- needs: torch, no_such_package -->\n```python\n>>> 1 + 1\n3\n```\n", 0, 0),
        ("<!-- needs: torch, click -->\n```python\n>>> 1 + 1\n3\n```\n", 1, 1),
        ("<!-- needs: no_such_package -->\n\n```python\n>>> 1 + 1\n3\n```\n", 1, 1),
    ],
)
def test_a_page_fails_where_an_example_does_not_hold(markdown: str, examples: int, failures: int) -> None:
    session = Session("page", ending_with)
    session.run(markdown)
    assert (session.examples, len(session.failures)) == (examples, failures)
