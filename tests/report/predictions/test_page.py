"""The page as a browser shows it: its plots are there, on a desk and on a phone, and nothing complains."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from kullback import Logits
from kullback.predictions import compare_predictions
from kullback.report import html, write
from tests.report.pages import DESK, PHONE, WIDTHS, boxes, overlap, too_faint


@pytest.fixture(scope="module")
def report(tmp_path_factory) -> Path:
    """A report in which everything happens: infinite rows, identical rows, labels, names of any length."""
    generator = torch.Generator().manual_seed(1)
    teacher = 3 * torch.randn(600, 40, generator=generator)
    student = teacher + 0.2 * torch.randn(600, 40, generator=generator)
    student[:20] = teacher[:20]
    student[77, :5] = -torch.inf
    labels = torch.randint(40, (600,), generator=generator)
    clusters = [f"<b>{i // 100}</b>" + "unbroken" * 20 for i in range(600)]
    comparison = compare_predictions(
        Logits(teacher), Logits(student), labels=labels, cluster=clusters, bootstrap=50
    )
    path = tmp_path_factory.mktemp("report") / "report.html"
    write(path, html.render(comparison))
    return path


@pytest.mark.parametrize("width", WIDTHS)
def test_every_plot_is_shown_within_the_page(open_page, width):
    page = open_page(width)
    plots = boxes(page, "figure svg")
    assert len(plots) == 4  # no mean is finite, so there is no ladder
    for plot in plots:
        assert plot["width"] >= min(width, 480) * 0.8
        assert plot["height"] >= 150
        assert 0 <= plot["x"] <= plot["x"] + plot["width"] <= width


@pytest.mark.parametrize("width", WIDTHS)
def test_every_plot_has_ink(open_page, width):
    page = open_page(width)
    for plot in page.locator("figure svg").all():
        lines = boxes(plot, "path[style*='var(--first)']")
        assert sum(max(line["width"], line["height"]) for line in lines) > 0.3 * plot.bounding_box()["width"]


@pytest.mark.parametrize("width", WIDTHS)
def test_the_text_of_a_plot_is_legible(open_page, width):
    page = open_page(width)
    for plot in page.locator("figure svg").all():
        frame = plot.bounding_box()
        texts = boxes(plot, "text")
        assert min(min(text["width"], text["height"]) for text in texts) >= 6
        assert min(max(text["width"], text["height"]) for text in texts) >= 9
        assert [text for text in texts if not contains(frame, text)] == []
        assert [(a, b) for i, a in enumerate(texts) for b in texts[:i] if overlap(a, b)] == []


def contains(frame: dict[str, float], box: dict[str, float]) -> bool:
    return all(
        frame[start] - 1 <= box[start] and box[start] + box[size] <= frame[start] + frame[size] + 1
        for start, size in (("x", "width"), ("y", "height"))
    )


def test_a_phone_scrolls_in_one_direction_only(open_page):
    page = open_page(PHONE)
    assert page.evaluate("document.documentElement.scrollWidth") <= PHONE
    for selector in ("h1", ".headlines li", "figure.bars", "figcaption", "footer"):
        assert all(box["x"] >= 0 and box["x"] + box["width"] <= PHONE for box in boxes(page, selector))


@pytest.mark.parametrize("width", WIDTHS)
def test_a_wide_table_can_be_reached_by_keyboard_and_scrolls_in_its_box(open_page, width):
    page = open_page(width)
    for summary in page.locator("summary").all():
        summary.click()
    for table in page.locator(".scroll").all():
        assert table.bounding_box()["width"] <= width
        table.focus()
        assert table.evaluate("box => document.activeElement === box")
        assert table.evaluate(
            "box => box.scrollWidth === box.clientWidth || getComputedStyle(box).overflowX === 'auto'"
        )


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


@pytest.mark.parametrize("colors", ["light", "dark"])
def test_text_stands_out_in_light_and_dark(open_page, colors):
    page = open_page(DESK, colors)
    selectors = (
        "h1",
        "header p",
        ".title",
        ".unit",
        "td",
        "figcaption",
        "figure text",
        "dt.p",
        "dt.q",
        "th.p",
        "th.q",
    )
    assert too_faint(page, selectors) == {}


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
    write(tmp_path / "report.html", html.render(comparison, tokens=tokens))
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
