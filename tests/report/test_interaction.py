"""Pages in a browser: their script sorts and filters and is the only one; without it, and on paper, nothing is lost."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch

from kullback import Logits, compare_predictions, kl_estimate
from kullback.cli.gates import OF_TABLES, Compared, parse_gate
from kullback.report import html, markdown
from kullback.report.document import Document, Findings, Headline, Passage, Passages, Remark, Table, Token
from kullback.report.plots.ladder import REFERENCES
from kullback.report.subjects import document
from kullback.report.subjects.tables import Batches
from kullback.tables import compare_tables
from tests.report.pages import CONTRAST, boxes

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pd = pytest.importorskip("pandas")

DATA = Path(__file__).parents[2] / "examples" / "data"
VALUES = ["0.5", "<0.001", "n/a", "1,200", "inf", "0", "0.5"]


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of 200 columns, of which every 20th differs; one name is hostile."""
    random = np.random.default_rng(0)
    p, q = (
        pd.DataFrame({f"column_{k}": random.normal(shift * (k % 20 == 0), 1, 300) for k in range(199)})
        for shift in (0.0, 0.8)
    )
    for each in (p, q):
        each["</th><script>document.title = 'run'</script>"] = ["a", "b", "c"] * 100
    path = tmp_path_factory.mktemp("wide") / "page.html"
    path.write_text(html.render(compare_tables(p, q)), encoding="utf-8")
    return path


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """A page of one folded table, one passage of full color, and findings."""
    token = Token("word", 1.0, "2 nats", (("word", "0.5", "0.1"),))
    table = Table("Sizes", ("name", "value"), [(f"row {i}", v) for i, v in enumerate(VALUES)], is_open=False)
    blocks = (
        Passages("The text", "1", [Passage("window 0", "before", (token,))]),
        table,
        Findings("Findings", [Remark("note", f"remark {i}") for i in range(3)]),
    )
    (tmp_path / "page.html").write_text(
        html.render(Document("a page", Headline("an outcome"), blocks)), encoding="utf-8"
    )
    return tmp_path / "page.html"


@pytest.fixture
def scripted(browser: Browser) -> Iterator[Page]:
    page = browser.new_page(viewport={"width": 1400, "height": 800})
    errors: list[str] = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on("console", lambda message: errors.append(message.text))
    yield page
    page.close()
    assert errors == []


def column(page: Page, place: int) -> list[str]:
    return page.locator(f".scroll tbody tr :nth-child({place})").all_inner_texts()


def test_the_policy_allows_the_script_of_the_page_alone(small: Path, browser: Browser) -> None:
    text = small.read_text(encoding="utf-8")
    (script,) = re.findall("<script>(.*?)</script>", text, re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'\"" in text
    injected = text.replace("</main>", "<script>document.title = 'run'</script></main>")
    page = browser.new_page()
    page.set_content(injected)
    assert page.title() == "a page"
    assert page.locator("th button").count() == 2
    page.close()


def test_a_heading_sorts_by_number_and_unknown_values_stay_last(small: Path, scripted: Page) -> None:
    scripted.goto(small.as_uri())
    scripted.locator("details", has_text="Sizes").locator("summary").click()
    heading = scripted.get_by_role("button", name="value")
    heading.click()
    assert column(scripted, 2) == ["inf", "1,200", "0.5", "0.5", "<0.001", "0", "n/a"]
    assert column(scripted, 1)[2:4] == ["row 0", "row 6"]
    assert scripted.locator("th[aria-sort]").get_attribute("aria-sort") == "descending"
    heading.click()
    assert column(scripted, 2) == ["0", "<0.001", "0.5", "0.5", "1,200", "inf", "n/a"]
    scripted.get_by_role("button", name="name").click()
    assert column(scripted, 1) == [f"row {i}" for i in range(len(VALUES))]
    assert scripted.locator("th[aria-sort]").get_attribute("aria-sort") == "ascending"


def test_the_filter_keeps_what_names_a_column(wide: Path, scripted: Page) -> None:
    scripted.goto(wide.as_uri())
    shown = scripted.locator(".scroll tbody tr:visible")
    assert shown.count() == 200
    scripted.get_by_role("searchbox").fill("Column_140")
    assert shown.locator("th").all_inner_texts() == ["column_140"]
    assert scripted.locator("figure:visible").count() == 1
    assert scripted.locator(".findings li:visible").count() == 1
    scripted.get_by_role("searchbox").fill("")
    assert shown.count() == 200
    assert scripted.title() != "run"


def test_the_filter_keeps_a_cluster_or_a_token(scripted: Page, tmp_path: Path) -> None:
    draw = torch.Generator().manual_seed(0)
    x, y = (torch.randn(90, 6, generator=draw, dtype=torch.float64) for _ in "pq")
    comparison = compare_predictions(Logits(x), Logits(y), cluster=torch.arange(90) // 30, bootstrap=0)
    (tmp_path / "page.html").write_text(
        html.render(comparison, tokens=["the", "cat", "sat", "on", "a", "mat"]), encoding="utf-8"
    )
    scripted.goto((tmp_path / "page.html").as_uri())
    shown = scripted.locator("figure.bars:visible")
    assert shown.count() == len(comparison.worst) == 10
    scripted.get_by_role("searchbox").fill("of cluster 2")
    assert shown.count() == sum(row.cluster == "2" for row in comparison.worst) > 0
    scripted.get_by_role("searchbox").fill("cat")
    assert shown.count() == sum(1 in {top.index for top in row.top} for row in comparison.worst) > 0


@pytest.mark.parametrize("width", [1400, 800, 375])
def test_200_columns_keep_their_headings_in_sight_and_nothing_is_clipped(
    wide: Path, scripted: Page, width: int
) -> None:
    scripted.set_viewport_size({"width": width, "height": 800})
    scripted.goto(wide.as_uri())
    assert scripted.evaluate("document.documentElement.scrollWidth") <= width
    box = scripted.locator(".scroll").first
    assert box.bounding_box()["height"] < 600
    last = scripted.locator(".scroll tbody tr").last
    last.scroll_into_view_if_needed()
    head, frame = scripted.locator(".scroll thead").first.bounding_box(), box.bounding_box()
    assert head["y"] == pytest.approx(frame["y"], abs=2)
    assert last.bounding_box()["y"] + last.bounding_box()["height"] <= frame["y"] + frame["height"] + 1
    if width >= 800:
        assert box.evaluate("box => box.scrollWidth <= box.clientWidth")


@pytest.mark.parametrize("colors", ["light", "dark"])
def test_the_hottest_token_can_be_read(small: Path, browser: Browser, colors: str) -> None:
    page = browser.new_page(color_scheme=colors)
    page.goto(small.as_uri())
    # Painted by the browser, so that the transparent color lies on its card.
    ground, ink = page.locator(".t").evaluate("""token => {
      const canvas = new OffscreenCanvas(1, 1).getContext("2d");
      const painted = (...colors) => {
        for (const color of colors) { canvas.fillStyle = color; canvas.fillRect(0, 0, 1, 1); }
        return [...canvas.getImageData(0, 0, 1, 1).data].slice(0, 3);
      };
      const [own, card] = [getComputedStyle(token), getComputedStyle(token.parentElement)];
      return [painted(card.backgroundColor, own.backgroundColor), painted(own.color)];
    }""")
    low, high = sorted(map(luminance, (ground, ink)))
    assert (high + 0.05) / (low + 0.05) >= CONTRAST
    page.close()


def luminance(color: list[int]) -> float:
    """The relative luminance of the Web Content Accessibility Guidelines."""
    shares = (c / 255 for c in color)
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in shares]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_a_finding_has_a_link_that_marks_it(small: Path, scripted: Page) -> None:
    scripted.goto(small.as_uri())
    link = scripted.locator(".findings li").nth(1).locator("a.level")
    link.click()
    assert scripted.url == f"{small.as_uri()}{link.get_attribute('href')}"
    assert scripted.locator("li:target").inner_text().endswith("remark 1")


def test_without_scripts_everything_is_there_and_paper_shows_folded_tables(
    small: Path, browser: Browser
) -> None:
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(small.as_uri())
    assert page.get_by_role("searchbox").count() == 0
    cell = page.locator(".scroll td").first
    assert not cell.is_visible()
    page.emulate_media(media="print")
    assert cell.is_visible()
    page.emulate_media(media="screen")
    page.locator("summary", has_text="Sizes").click()
    assert cell.is_visible()
    context.close()


def test_the_reference_values_are_those_of_the_example_model() -> None:
    x, rounded = (np.load(DATA / f"{name}.npy").astype(np.float64) for name in ("float32", "int8"))

    def log_probs(logits: np.ndarray) -> np.ndarray:
        return logits - np.logaddexp.reduce(logits, axis=-1, keepdims=True)

    log_p = log_probs(x)
    p = np.exp(log_p)
    others = {
        "weights in int8": log_probs(rounded),
        "temperature 0.9": log_probs(x / 0.9),
        "temperature 0.5": log_probs(x / 0.5),
        "no context": np.log(p.mean(0)),
    }
    means = {name: (p * (log_p - log_q)).sum(-1).mean() for name, log_q in others.items()}
    assert pytest.approx(means, rel=1e-4) == REFERENCES


@pytest.mark.parametrize("width", [1400, 800, 375])
def test_the_ladder_orders_the_comparison_among_the_references(
    scripted: Page, tmp_path: Path, width: int
) -> None:
    x = torch.randn(50, 8, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    comparison = compare_predictions(Logits(x), Logits(1.02 * x), bootstrap=0)
    assert REFERENCES["temperature 0.9"] > comparison.divergences["kl_pq"].mean > 0
    (tmp_path / "page.html").write_text(html.render(comparison), encoding="utf-8")
    scripted.set_viewport_size({"width": width, "height": 800})
    scripted.goto((tmp_path / "page.html").as_uri())
    figure = scripted.locator("figure[id$=ladder]")
    names = ["this comparison", *REFERENCES]
    heights = {name: figure.locator("text", has_text=name).bounding_box()["y"] for name in names}
    for tile, value in zip(
        boxes(scripted, ".headlines li"), boxes(scripted, ".headlines strong"), strict=True
    ):
        assert value["height"] < 40  # one line
        assert value["x"] + value["width"] < tile["x"] + tile["width"]
    mean = comparison.divergences["kl_pq"].mean
    means = {"this comparison": mean, **REFERENCES}
    assert sorted(heights, key=heights.__getitem__, reverse=True) == sorted(means, key=means.__getitem__)


@pytest.mark.parametrize(
    ("factor", "place"),
    [
        (1.001, "below weights in int8 (202 µnat)"),
        (1.1, "between weights in int8 (202 µnat) and temperature 0.9 (7.73 mnat)"),
        (9.0, "above no context (2.05 nat)"),
    ],
)
def test_the_first_lines_say_where_on_the_ladder_the_mean_is(factor: float, place: str) -> None:
    x = 2 * torch.randn(50, 8, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    comparison = compare_predictions(Logits(x), Logits(factor * x), bootstrap=0)
    sentence = f"It is {place}, as measured on a small byte model."
    assert f'<p class="reason">{sentence}</p>' in html.render(comparison)
    assert sentence in markdown.render(comparison)


def test_no_place_on_the_ladder_is_given_to_zero_and_infinity() -> None:
    p, q = Logits(torch.tensor([[0.0, 1.0]])), Logits(torch.tensor([[0.0, -torch.inf]]))
    for pair in ((p, p), (p, q)):
        assert 'class="reason"' not in html.render(compare_predictions(*pair, bootstrap=0))


def test_a_small_shift_is_explained_and_is_not_green() -> None:
    random = np.random.default_rng(0)
    p, q = (pd.DataFrame({"x": random.normal(shift, 1, 20_000)}) for shift in (0.0, 0.1))
    page = html.render(compare_tables(p, q))
    outcome, reason = (
        page[page.index("<h1") :].split("</h1>")[0],
        re.findall('class="reason">(.*?)<', page)[0],
    )
    assert 'class="outcome unknown"' in outcome
    assert re.match(r"&#39;x&#39;: PSI 0\.0\d\d \(0\.0\d\d to 0\.0\d\d\), most of it in ", reason)
    assert reason.endswith("a PSI below 0.1 is a small shift, however certain.")
    assert "No column has p &lt; 0.05" in html.render(compare_tables(p, p))


def test_the_page_of_batches_says_which_differs_and_draws_their_history(
    scripted: Page, tmp_path: Path
) -> None:
    values = np.random.default_rng(0).normal(size=3000)
    reference, *weeks = (pd.DataFrame({"x": values + shift, "y": values}) for shift in (0.0, 0.0, 0.0, 1.0))
    compared = tuple(
        replace(compare_tables(reference, week), p_name="p", q_name=f"week {i}")
        for i, week in enumerate(weeks, 1)
    )
    page = document(Batches(compared, ((), (), ())))
    assert page.outcome == "1 of 3 batches differs from p"
    assert page.tone == "bad"
    assert page.headline.reason.startswith(
        "The largest difference is in week 3: 1 of 2 columns differs by a large"
    )
    (tmp_path / "page.html").write_text(html.render(page), encoding="utf-8")
    scripted.goto((tmp_path / "page.html").as_uri())
    figure = scripted.locator("#history")
    assert figure.locator("text", has_text="PSI").count() == 1
    assert {"x", "y"} <= set(figure.locator("text").all_text_contents())
    assert "each batch against p" in figure.inner_text()
    lost = compare_tables(reference, weeks[0][["y"]])
    assert document(Batches((*compared, lost), ((),) * 4)).outcome.endswith(
        "; 1 could not be compared in full"
    )


def test_a_page_without_limits_says_so_and_names_one_that_works() -> None:
    p, table = Logits(torch.tensor([[0.0, 1.0]])), pd.DataFrame({"x": ["a", "b"] * 50})
    predictions, tables = compare_predictions(p, p), compare_tables(table, table)
    limits = [
        re.findall("No limit was set.*--fail-above (.*?)</code>", html.render(each))[0]
        for each in (predictions, tables, document(Batches((tables, tables), ((), ()))))
    ]
    assert parse_gate(limits[0], "above").verdict([Compared(None, predictions)]).passed
    assert parse_gate(limits[1], "above", OF_TABLES).verdict(tables).passed
    assert limits[2] == limits[1]
    assert "No limit" not in html.render(kl_estimate(p, p))
