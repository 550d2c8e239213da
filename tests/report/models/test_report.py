"""The reports of language models: what a model's tokens hold stays text, and the page works without a script."""

from __future__ import annotations

import dataclasses
import functools
import io
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
import torch
from rich.console import Console

from kullback.io.windows import Windows
from kullback.models import (
    Cut,
    LanguageModel,
    ModelComparison,
    ModelInfo,
    Run,
    Token,
    Vocabulary,
    compare_models,
)
from kullback.report import frame, html, json as report, markdown, terminal
from tests.report.media import brief, strict

if TYPE_CHECKING:
    from playwright.sync_api import Browser

HOSTILE = [b"<script>alert(1)</script>", b"\x1b[31m", b"a|b`c`", b"</span>", b"\n", b"\xff", "ﬁ é".encode()]


class Table(LanguageModel):
    """Fixed logits for each last token."""

    def __init__(self, name: str, seed: int, noise: float) -> None:
        tokens = [*HOSTILE, *(bytes([65 + i]) for i in range(26))]
        self.vocabulary, self.bos = Vocabulary([Token(each) for each in tokens]), None
        self.info = ModelInfo(name, "table", "float64", len(tokens), 10_000, 40_000 - 1000 * seed)
        generator = torch.Generator().manual_seed(0)
        logits = torch.randn(len(tokens), len(tokens), generator=generator, dtype=torch.float64)
        generator.manual_seed(seed)
        self.table = logits + noise * torch.randn(logits.shape, generator=generator, dtype=torch.float64)

    def encode(self, text: str) -> list[int]:
        return [ord(char) % self.classes for char in text]

    def logits(self, windows: Windows, rows: int, first: int = 0) -> Iterator[torch.Tensor]:
        for number in range(first, len(windows)):
            tokens, scored = windows.window(number)
            yield from self.table[tokens[scored.nonzero().squeeze(-1) - 1]].split(rows)


@functools.cache
def near_and_far() -> ModelComparison:
    text = "".join(chr(40 + (7 * i * i + 3 * i) % 80) for i in range(900))
    near, far = Table("near<b>", 1, 0.1), Table("far|x", 2, 0.8)
    return compare_models(Table("base\x1b[0m", 0, 0.0), [far, near], text, cut=Cut(context=40))


@pytest.fixture(scope="module")
def found() -> ModelComparison:
    return near_and_far()


def test_nothing_of_a_token_is_markup(found: ModelComparison) -> None:
    page = html.render(found)
    assert page.count("<script") == 1
    assert "alert(1)&lt;/script&gt;" in page
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f]", page)
    assert "\x1b" not in str(found)
    assert "near<b>" not in page
    assert "far\\|x" in markdown.render(found)


def test_the_json_is_strict_and_whole(found: ModelComparison) -> None:
    held = strict(report.dumps(found))
    names = [each["model"]["name"] for each in held["candidates"]]
    assert names == ["near<b>", "far|x"]
    assert held["differences"][0]["mean"] > 0
    passage = held["candidates"][0]["passages"][0]
    assert {"index", "text", "kl", "p", "q", "top"} <= set(passage["tokens"][0])
    assert held["base"]["bits_per_weight"] == 32.0


def test_the_frame_is_the_scoreboard(found: ModelComparison) -> None:
    pytest.importorskip("pandas")
    table = frame.to_pandas(found)
    assert table.index.tolist() == ["near<b>", "far|x"]
    assert (table.kl_low < table.kl).all()
    assert (table.kl < table.kl_high).all()


def test_the_notebook_shows_the_scoreboard(found: ModelComparison) -> None:
    shown = found._repr_html_()
    assert shown is not None
    assert "mean KL" in shown
    assert len(repr(found)) < 200


def test_the_outcome_is_a_multiple_of_the_noise_floor(found: ModelComparison) -> None:
    near, far = found.candidates
    noisy = dataclasses.replace(found, candidates=[far], differences=[], noise_floor=near)
    ratio = far.comparison.divergences["kl_pq"].mean / near.comparison.divergences["kl_pq"].mean
    assert 60 < ratio < 75
    noise = 1e3 * near.comparison.divergences["kl_pq"].mean
    assert f"It is {ratio:.0f} times the rounding noise of float64 ({noise:.2f} mnat)." in html.render(noisy)
    assert "rounding noise" not in html.render(found)


def test_all_candidates_have_one_color_scale(found: ModelComparison) -> None:
    scales = re.findall(r"from 0 to\s+([\d.]+) nats or more", html.render(found))
    far = found["far|x"].comparison.divergences["kl_pq"].p99
    assert len(scales) == 2
    assert [float(scale) for scale in scales] == pytest.approx([far, far], rel=1e-3)


@pytest.mark.parametrize("width", [375, 1400])
def test_a_token_shows_its_top_classes(found: ModelComparison, browser: Browser, width: int) -> None:
    page = browser.new_page(viewport={"width": width, "height": 800})
    page.set_content(html.render(found))
    token = page.locator(".t").nth(5)
    tip = token.locator(".tip")
    assert not tip.is_visible()
    token.focus()
    assert tip.is_visible()
    box = tip.bounding_box()
    assert box is not None
    assert box["x"] >= 0
    assert box["x"] + box["width"] <= width
    page.close()


@pytest.mark.sweep
@pytest.mark.parametrize(("runs", "level"), [(1, "95%"), (1000, "99.995%")])
def test_every_report_of_a_run_until_sure_says_the_level_of_its_intervals(runs: int, level: str) -> None:
    words = "the quick brown fox jumps over the lazy dog " * 60
    base, near = Table("base", 0, 0.0), Table("near", 1, 0.1)
    result = compare_models(
        base, [near], words, cut=Cut(context=16), run=Run(until_sure="mean=0.5", runs=runs)
    )
    console = Console(file=io.StringIO(), width=200)
    terminal.render(result, console)
    texts = [markdown.render(result), html.render(result), str(result), brief(result)]
    texts.append(console.file.getvalue())  # pyright: ignore[reportAttributeAccessIssue]
    for text in texts:
        levels = re.findall(r"([\d.]+%) CI", text)
        assert levels
        assert set(levels) == {level}
    assert result.to_dict()["confidence"] == pytest.approx(float(level[:-1]) / 100)
