"""Every page in a browser: on a desk, a tablet and a phone, in light and dark, nothing is cut, lost or too faint."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from torch.distributions import Categorical, MixtureSameFamily, Normal

from kullback import ReverseKL, Samples, diagnose, fit, kl_estimate
from kullback.report import html
from kullback.report.subjects.tables import Batches
from tests.report.media import Page
from tests.report.models.test_report import near_and_far
from tests.report.pages import DESK, TABLET, WIDTHS, boxes, overlap, too_faint
from tests.report.predictions.test_page import infinite_and_identical
from tests.report.tables.test_report import VERDICTS, everything

MODES = MixtureSameFamily(Categorical(torch.ones(2)), Normal(torch.tensor([-4.0, 4.0]), 1.0))


class Shown(NamedTuple):
    """A page: how it is made, its plots and cards, texts that have to stand out, and the ink of a plot."""

    make: Callable[[], str]
    plots: int
    cards: int
    texts: str
    ink: float = 0.3  # of the width of the plot
    color: str = "--first"


PLOTTED = "figcaption; figure text; td"
PAGES = {
    # No mean is finite, so there is no ladder.
    "predictions": Shown(
        lambda: html.render(infinite_and_identical()), 4, 14,
        f"{PLOTTED}; header p; .title; .unit; dt.p; dt.q; th.p; th.q; .limit",
    ),
    "tables": Shown(
        lambda: html.render(everything(), VERDICTS), 5, 10,
        f"{PLOTTED}; header p; tr.bad .found + td; tr.good .found + td; .findings .error .level; "
        ".findings .note .level; th a; th.p; th.q; .limit b; .limit li; .findings li",
    ),
    "models": Shown(lambda: html.render(near_and_far()), 2, 2, f"{PLOTTED}; .about; .before; summary", 0.02),
    "batches": Shown(
        lambda: html.render(Batches((everything(), everything()), (VERDICTS, ()))), 11, 21, PLOTTED
    ),
    "fit": Shown(
        lambda: html.render(fit(Normal(3.0, 1.0), to=MODES, kind=ReverseKL())), 2, 2, PLOTTED, color="--second"
    ),
    "estimate": Shown(
        lambda: html.render(kl_estimate(Samples(torch.arange(99.0)), Samples(torch.arange(40.0, 160.0)))), 0, 0,
        "td; .findings li",
    ),
    "diagnosis": Shown(
        lambda: html.render(diagnose(torch.full((2, 3), 1 / 3), torch.eye(3)[:2], reduction="mean")), 0, 0,
        "td; .findings .error .level; pre; header p",
    ),
}  # fmt: skip
LARGEST = (
    "h1, h2, h3, .headlines li, figure, figure table, figcaption, .findings li, pre, summary, footer, .text"
)


@pytest.fixture(scope="module", params=PAGES)
def shown(request: pytest.FixtureRequest) -> Shown:
    return PAGES[request.param]


@pytest.fixture(scope="module")
def report(shown: Shown, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("page") / "report.html"
    path.write_text(shown.make(), encoding="utf-8")
    return path


def opened(open_page, *arguments):
    """The page with everything unfolded."""
    page = open_page(*arguments)
    page.evaluate("document.querySelectorAll('details').forEach(each => { each.open = true })")
    return page


@pytest.mark.parametrize("width", WIDTHS)
def test_everything_is_within_the_window_and_wide_tables_scroll_in_their_boxes(open_page, shown, width):
    page = opened(open_page, width)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert [box for box in boxes(page, LARGEST) if box["x"] < 0 or box["x"] + box["width"] > width] == []
    assert len(boxes(page, "figure")) == shown.cards
    for table in page.locator(".scroll").all():
        table.focus()
        assert table.evaluate("box => document.activeElement === box")
        assert table.evaluate(
            "box => box.scrollWidth === box.clientWidth || getComputedStyle(box).overflowX === 'auto'"
        )
    excess = page.locator("figure tbody :is(td, th)").evaluate_all(
        "all => all.map(each => each.scrollWidth - each.clientWidth)"
    )
    assert max(excess, default=0) <= 1


@pytest.mark.parametrize("width", WIDTHS)
def test_every_plot_is_large_has_ink_and_legible_text(open_page, shown, width):
    page = opened(open_page, width)
    plots = page.locator("figure svg").all()
    assert len(plots) == shown.plots
    for plot in plots:
        frame = plot.bounding_box()
        assert frame["width"] >= (300 if width == TABLET else min(width, 480) * 0.8)
        assert frame["height"] >= 150
        lines = boxes(plot, f":is(path, use)[style*='var({shown.color})']")
        assert sum(max(line["width"], line["height"]) for line in lines) > shown.ink * frame["width"]
        texts = [text for text in boxes(plot, "text") if text["width"]]
        assert min(min(text["width"], text["height"]) for text in texts) >= 6
        assert min(max(text["width"], text["height"]) for text in texts) >= 9
        assert [text for text in texts if not contains(frame, text)] == []
        assert [(a, b) for i, a in enumerate(texts) for b in texts[:i] if overlap(a, b)] == []


def contains(frame: dict[str, float], box: dict[str, float]) -> bool:
    return all(
        frame[start] - 1 <= box[start] and box[start] + box[size] <= frame[start] + frame[size] + 1
        for start, size in (("x", "width"), ("y", "height"))
    )


@pytest.mark.parametrize("width", WIDTHS)
def test_no_word_of_a_heading_is_broken(open_page, width):
    """Words of names may break, those of kullback's own headings may not."""
    page = opened(open_page, width)
    broken = page.locator("thead th").evaluate_all("""all => all.filter(each => {
      const range = document.createRange(), text = each.querySelector("button")?.firstChild ?? each.firstChild;
      return [...(text?.data ?? "").matchAll(/[\\w.]+/g)].some(word => {
        range.setStart(text, word.index); range.setEnd(text, word.index + word[0].length);
        return range.getClientRects().length > 1;
      });
    }).map(each => each.textContent)""")
    assert broken == []
    assert (
        page.locator("th button, td button").evaluate_all("all => all.filter(each => !each.textContent)")
        == []
    )


@pytest.mark.parametrize("colors", ["light", "dark"])
def test_text_stands_out_in_light_and_dark(open_page, shown, colors):
    page = opened(open_page, DESK, colors)
    assert too_faint(page, ["h1", *shown.texts.split("; ")]) == {}


def test_no_id_is_used_twice_and_every_reference_is_met(report):
    text = report.read_text(encoding="utf-8")
    ids = [attributes["id"] for _, attributes in Page(text).elements if "id" in attributes]
    used = re.findall(r'href="#([^"]+)"|url\(#([^)]+)\)', text)
    assert len(ids) == len(set(ids))
    assert {first or second for first, second in used} <= set(ids)


def test_a_page_stands_alone(report):
    text = report.read_text(encoding="utf-8")
    page = Page(text)
    assert page.tags("script", "img", "iframe", "object", "embed") == [{}]  # its own script alone
    assert page.tags("link") == [{"rel": "icon", "href": "data:,"}]
    references = [
        value
        for _, attributes in page.elements
        for name, value in attributes.items()
        if name in {"src", "href", "xlink:href", "srcset", "action"}
    ]
    assert all(value.startswith(("#", "data:")) for value in references)
    assert not re.search(r"@import|url\((?!#)", text)


def test_a_page_says_its_language_and_names_its_parts(report, shown):
    page = Page(report.read_text(encoding="utf-8"))
    ids = [attributes["id"] for _, attributes in page.elements if "id" in attributes]
    assert page.tags("html") == [{"lang": "en"}]
    assert len(page.tags("h1")) == 1
    roles = {role: [a for _, a in page.elements if a.get("role") == role] for role in ("img", "region")}
    assert len([a for a in roles["img"] if "aria-labelledby" in a]) == shown.plots
    assert len(roles["region"]) == sum(each.get("class") == "scroll" for each in page.tags("div")) > 0
    for attributes in (a for each in roles.values() for a in each if a.get("aria-label") != "color scale"):
        assert attributes["aria-labelledby"] in ids
        assert attributes.get("aria-describedby", attributes["aria-labelledby"]) in ids
