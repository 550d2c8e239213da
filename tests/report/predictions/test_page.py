"""The page of predictions in a browser: bars, tokens, paper; `test_pages.py` has what is asked of every page."""

from __future__ import annotations

import functools
from pathlib import Path

import pytest
import torch

from kullback import Logits
from kullback.predictions import Comparison, compare_predictions
from kullback.report import html
from tests.report.pages import DESK, WIDTHS, boxes, overlap, too_faint


@functools.cache
def infinite_and_identical() -> Comparison:
    """A comparison in which everything happens: infinite rows, identical rows, labels, names of any length."""
    generator = torch.Generator().manual_seed(1)
    teacher = 3 * torch.randn(600, 40, generator=generator)
    student = teacher + 0.2 * torch.randn(600, 40, generator=generator)
    student[:20] = teacher[:20]
    student[77, :5] = -torch.inf
    labels = torch.randint(40, (600,), generator=generator)
    clusters = [f"<b>{i // 100}</b>" + "unbroken" * 20 for i in range(600)]
    return compare_predictions(
        Logits(teacher), Logits(student), labels=labels, cluster=clusters, bootstrap=50
    )


@pytest.fixture(scope="module")
def report(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("report") / "report.html"
    path.write_text(html.render(infinite_and_identical()), encoding="utf-8")
    return path


def test_the_bars_of_a_row_are_as_long_as_its_probabilities(open_page):
    page = open_page(DESK)
    row = page.locator("figure.bars tbody tr").first
    full = row.locator("td.bars").evaluate(
        "cell => cell.clientWidth - 2 * parseFloat(getComputedStyle(cell).paddingLeft)"
    )
    for bar, cell in (("p", 1), ("q", 2)):
        shown = row.locator("td").nth(cell).inner_text()
        expected = 0.0 if shown == "<.001" else float(shown)
        length = row.locator(f".bar.{bar}").bounding_box()["width"]
        assert length == pytest.approx(max(1, full * expected), abs=1)


def test_dark_is_dark_and_paper_is_white(open_page):
    page = open_page(DESK, "dark")
    ground = "getComputedStyle(document.body).backgroundColor"
    assert page.evaluate(ground) == "rgb(20, 23, 26)"
    page.emulate_media(media="print")
    assert page.evaluate(ground) == "rgb(255, 255, 255)"


@pytest.mark.parametrize("width", WIDTHS)
def test_tokens_stay_within_their_cards(browser, tmp_path, width):
    generator = torch.Generator().manual_seed(2)
    p = 3 * torch.randn(60, 200, generator=generator)
    q = p + torch.randn(60, 200, generator=generator)
    labels = torch.randint(200, (60,), generator=generator)
    tokens = [("\n", " the", "W" * 40, "\x1b[31m<b>")[i % 4] for i in range(200)]
    comparison = compare_predictions(Logits(p), Logits(q), labels=labels, bootstrap=0)
    (tmp_path / "report.html").write_text(html.render(comparison, tokens=tokens), encoding="utf-8")
    page = browser.new_page(viewport={"width": width, "height": 900})
    page.goto((tmp_path / "report.html").as_uri())
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    cards, places = boxes(page, "figure.bars"), boxes(page, ".plots:has(.bars)")[0]
    assert len(cards) == 10
    assert all(card["x"] + card["width"] <= places["x"] + places["width"] + 1 for card in cards)
    assert not any(overlap(a, b) for i, a in enumerate(cards) for b in cards[:i])
    assert len(boxes(page, ".bars th .token")) >= 50
    assert too_faint(page, [".bars th .token"]) == {}
    page.close()
