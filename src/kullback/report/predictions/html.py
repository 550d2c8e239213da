"""A comparison as one self-contained page: numbers, plots and the worst rows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kullback.predictions import Comparison
from kullback.report.predictions.plots import draw_plots
from kullback.report.predictions.wording import (
    KL_PQ,
    QUANTITIES,
    SUMMARY_ROWS,
    confidence_range,
    count,
    infinite_sentences,
    interval_end,
    label_rows,
    missing_library,
    number,
    percent,
    printable,
    probability,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from jinja2 import Environment

__all__ = ["page_environment", "render"]

WRITERS: tuple[Callable[..., str], ...] = (
    confidence_range,
    count,
    interval_end,
    number,
    percent,
    printable,
    probability,
)
# A page can show the sign that plain text writes as two bars.
SYMBOLS = {key: name.replace("||", "‖") for key, name in QUANTITIES.items()}


def render(comparison: Comparison) -> str:
    """Build the page: one HTML document that needs no other file, no network and no script.

    It adapts to the width of a phone, to light and dark, and to paper; the same comparison always gives the
    same text. Divergences are in nats.

    Arguments:
        comparison: what `compare_predictions` found.

    Returns:
        The document; `kullback.report.write` puts it into a file.

    Raises:
        OptionalDependencyError: jinja2 or matplotlib is not installed.

    Example:
        >>> import torch
        >>> from kullback import Probs
        >>> from kullback.predictions import compare_predictions
        >>> p = Probs(torch.tensor([[0.5, 0.5], [0.9, 0.1]]))
        >>> page = render(compare_predictions(p, p))
        >>> page.startswith("<!doctype html>"), "<script" in page
        (True, False)
    """
    template = page_environment().get_template("comparison.html.j2")
    return template.render(
        comparison=comparison,
        kl=comparison.divergences[KL_PQ],
        symbols=SYMBOLS,
        summary_rows=SUMMARY_ROWS,
        labels=label_rows(comparison.labels) if comparison.labels is not None else [],
        infinite=infinite_sentences(comparison),
        plots=draw_plots(comparison),
    )


def page_environment() -> Environment:
    """Templates in which every value is escaped, and a misspelt name is an error."""
    try:
        from jinja2 import Environment, PackageLoader, StrictUndefined
    except ImportError:
        raise missing_library("jinja2", "the HTML page", "report") from None

    environment = Environment(
        loader=PackageLoader("kullback.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update({write.__name__: write for write in WRITERS})
    return environment
