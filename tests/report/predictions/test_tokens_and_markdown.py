"""Tokens beside the numbers of classes, and the summary in Markdown, in the reports and on the command line."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
from rich.cells import cell_len

from kullback.common.formats import number, percent, visible
from kullback.report import html, markdown
from kullback.report.subjects.predictions import token_of
from kullback.results.verdict import Verdict
from tests.cli.calling import one_line, run
from tests.cli.test_commands import compare, files  # noqa: F401 - a fixture
from tests.report.media import Page, printed
from tests.report.predictions.test_report import COMPARISON, NASTY, changed

TOKENS = {3: " the", 4: "\n\t", 7: "<b>x</b>&", 128000: NASTY, 128001: "e\u202etxt.exe"}
WORDS = [TOKENS.get(index) for index in range(128002)]


def test_a_token_shows_what_cannot_be_seen():
    assert token_of(3, WORDS) == "␣the"
    assert token_of(4, WORDS) == "⏎⇥"
    assert token_of(128001, WORDS) == "e\\x202etxt.exe"
    assert token_of(5, WORDS) == token_of(200_000, WORDS) == token_of(-1, WORDS) == token_of(3, None) == ""
    assert token_of(0, ["x" * 100]) == "x" * 23 + "…"
    assert visible("a b\udcff") == "a b\\xdcff"


@pytest.mark.parametrize("width", [80, 120])
def test_the_terminal_names_the_tokens_within_its_width(width):
    text = printed(COMPARISON, width, tokens=WORDS)
    assert [line for line in text.splitlines() if cell_len(line.rstrip()) > width] == []
    assert "\x1b" not in text
    assert re.search(r"12,344 of chapter-17 +7.777 +128000 +a<script>alert\(… +0.932 +<.001", text)
    assert re.search(r"^ +7 +<b>x</b>& +<.001 +0.876", text, re.MULTILINE)
    assert re.search(r"^ +128001 +e\\x202etxt.exe +true", text, re.MULTILINE)
    assert re.search(r"^42 +5.500 +3 +␣the +0.750 +0.250", text, re.MULTILINE)


@pytest.mark.sweep
def test_the_page_names_the_tokens_and_obeys_nothing_in_them():
    text = html.render(COMPARISON, tokens=WORDS)
    page = Page(text)
    assert page.tags("script") == [{}]
    assert len(page.tags("b")) == len(Page(html.render(COMPARISON)).tags("b"))
    assert {"␣the", "⏎⇥", "<b>x</b>&"} <= set(re.findall(r"\S+", page.text))
    shown = " ".join(page.text.split())
    assert "The true class is 128001 e\\x202etxt.exe" in shown
    assert "\u202e" not in text
    named = [each for each in page.tags("span") if each.get("class") == "token"]
    titles = [each.get("title") for each in named]
    assert titles == [token_of(128000, WORDS), "<b>x</b>&", "␣the", "⏎⇥"]
    assert "token" not in [each.get("class") for each in Page(html.render(COMPARISON)).tags("span")]


def cells(text: str) -> dict[str, list[str]]:
    """The lines of the table in a summary, by their first cell."""
    rows = [
        [cell.strip().replace("\\", "") for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
        for line in text.splitlines()
        if line.startswith("|")
    ]
    assert all(len(row) == 3 for row in rows)
    return {title: rest for title, *rest in rows}


def test_markdown_has_the_main_numbers_with_their_intervals():
    found = cells(markdown.render(COMPARISON))
    kl, labels = COMPARISON.divergences["kl_pq"], COMPARISON.labels
    assert 1e-3 < kl.mean < 0.1
    low, high = (f"{1000 * end:.2f}" for end in kl.interval)
    assert found["mean KL(P||Q)"] == [f"{1000 * kl.mean:.2f} mnat", f"{low} to {high}"]
    assert found["mean KL(Q||P)"] == ["inf", "n/a"]
    assert found["99.9% KL(P||Q)"] == [f"{1000 * kl.p999:.2f} mnat", ""]
    assert found["same top class"] == ["98.77%", "98.11% to 99.22%"]
    assert found["acceptance rate"] == [percent(0.91236), "91.19% to 91.29%"]
    assert found["perplexity of Q"] == [number(labels.perplexity_q.mean), "11.38 to 11.90"]
    assert found["perplexity, Q / P"] == ["1.11751", "n/a"]
    assert "perplexity of Q" not in cells(markdown.render(changed(labels=None)))


def test_markdown_says_which_gates_hold_and_which_fail():
    text = markdown.render(
        COMPARISON, [Verdict("mean at most 0.02", ()), Verdict("max at most 1", ("max is 7.777, above 1",))]
    )
    lines = text.splitlines()
    assert lines[0].startswith("**Failed: 1 of 2 limits broken. KL")
    assert "- ✅ mean at most 0.02" in lines
    assert "- ❌ max at most 1: max is 7.777, above 1" in lines
    assert "infinite in 3 of 12,345 rows" in text


def test_names_are_no_markdown():
    text = markdown.render(changed(p_name="a|b\n# c", q_name="<img src=x> *d* [e](f) `g`"))
    assert "\n#" not in text
    assert r"a\|b" in text
    assert r"\<img src=x\> \*d\* \[e\](f) \`g\`" in text


def test_the_command_writes_the_summary_with_the_other_files(files):  # noqa: F811
    gates = ("--fail-above", "mean=1", "--fail-above", "max.value=0.0001")
    result = compare("--labels", "labels.npy", *gates, "--json", "x.json", "--markdown", "x.md")
    assert result.exit_code == 1
    text, found = Path("x.md").read_text(), json.loads(Path("x.json").read_text())
    assert cells(text)["perplexity of P"][0] == number(found["labels"]["perplexity_p"]["mean"])
    assert "- ✅ mean at most 1" in text
    assert re.search(r"- ❌ max.value at most 0.0001: max.value is 0.\d+, above 0.0001 by", text)


def test_a_file_that_cannot_be_written_is_refused_before_any_is(files):  # noqa: F811
    Path("x.md").mkdir()
    one_line(compare("--json", "x.json", "--markdown", "x.md"), "x.md")
    assert not Path("x.json").exists()
    one_line(compare("--markdown", "p.npy"), "p.npy", "one of the other files")
    one_line(compare("--json", "y", "--markdown", "y"), "one of the other files")
    Path("t.csv").write_text("a\n1\n")
    Path("y.json").mkdir()
    tables = ("compare", "t.csv", "t.csv", "--as", "table", "--markdown", "y.md")
    one_line(run(*tables, "--json", "y.json"), "y.json")
    assert not Path("y.md").exists()
    assert run(*tables).exit_code == 0
    assert Path("y.md").read_text().startswith("**No difference is seen in 1 column.**")


def test_the_command_shows_the_tokens(files):  # noqa: F811
    Path("tokens.json").write_text(json.dumps([f" w{i}" for i in range(11)]))
    result = compare("--tokens", "tokens.json", "--html", "x.html", "--worst", "3", "--full")
    assert result.exit_code == 0
    worst = result.stdout[result.stdout.index("The worst rows") :]
    assert len(re.findall(r" (\d+) +␣w\1 ", worst)) >= 3
    assert (
        len(re.findall(r'(\d+) <span class="token" title="␣w\1">␣w\1</span>', Path("x.html").read_text()))
        >= 9
    )


def test_more_tokens_than_classes_are_refused_before_the_work(files, monkeypatch):  # noqa: F811
    Path("tokens.txt").write_text("\n".join(map(str, range(13))))

    def worked(*_: object, **__: object) -> None:
        raise AssertionError

    monkeypatch.setattr("kullback.cli.prediction_comparison.compare_predictions", worked)
    result = compare("--tokens", "tokens.txt", "--json", "x.json")
    one_line(result, "tokens.txt", "at most 12 tokens", "got 13")
    assert not Path("x.json").exists()


def test_fewer_tokens_than_classes_leave_numbers(files):  # noqa: F811
    np.savetxt("tokens.txt", ["only"], fmt="%s")
    result = compare("--tokens", "tokens.txt", "--worst", "20", "--full")
    assert result.exit_code == 0
    assert re.search(r" 0 +only ", result.stdout)
