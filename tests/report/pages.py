"""What the tests of pages in a browser measure."""

from __future__ import annotations

from collections.abc import Iterable

from playwright.sync_api import Locator, Page

DESK, TABLET, PHONE = 1400, 800, 375
WIDTHS = [DESK, TABLET, PHONE]
CONTRAST = 4.5  # what the Web Content Accessibility Guidelines, level AA, ask of text


def boxes(place: Page | Locator, selector: str) -> list[dict[str, float]]:
    """Where the elements stand and how large they are, in pixels."""
    return place.locator(selector).evaluate_all(
        "all => all.map(each => each.getBoundingClientRect().toJSON())"
    )


def overlap(a: dict[str, float], b: dict[str, float]) -> bool:
    """Whether two texts run into each other by more than the blank margin of their boxes."""
    return all(
        min(a[start] + a[size], b[start] + b[size]) - max(a[start], b[start]) > 2
        for start, size in (("x", "width"), ("y", "height"))
    )


# The ratio of the luminances of a text and of the nearest painted ground behind it.
MEASURE_CONTRAST = """element => {
  const channels = color => color.match(/[\\d.]+/g).map(Number);
  const luminance = color => {
    const linear = c => c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4;
    const [r, g, b] = channels(color).map(c => linear(c / 255));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const style = getComputedStyle(element);
  const ink = element instanceof SVGElement ? style.fill : style.color;
  let ground = element;
  while (channels(getComputedStyle(ground).backgroundColor)[3] === 0) ground = ground.parentElement;
  const [low, high] = [ink, getComputedStyle(ground).backgroundColor].map(luminance).sort((a, b) => a - b);
  return (high + 0.05) / (low + 0.05);
}"""


def too_faint(page: Page, selectors: Iterable[str]) -> dict[str, float]:
    """The contrast of the texts that have too little of it."""
    contrasts = {
        selector: page.locator(selector).evaluate_all(f"all => all.map({MEASURE_CONTRAST})")
        for selector in selectors
    }
    assert all(contrasts.values()), contrasts
    return {selector: min(ratios) for selector, ratios in contrasts.items() if min(ratios) < CONTRAST}
