"""A comparison of predictions as one self-contained HTML page."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from kullback.predictions import Comparison
from kullback.report.predictions.plots import draw_plots
from kullback.report.predictions.wording import (
    KL_PQ,
    QUANTITIES,
    SUMMARY_ROWS,
    Tokens,
    acceptance,
    confidence_range,
    delta_prob_rows,
    infinite_sentences,
    label_rows,
    summary,
    token_of,
    top_k_rows,
)
from kullback.report.shared.page import on_top, render_page

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kullback.report.shared.verdicts import Verdict

__all__ = ["render", "render_table"]

# The page has the sign that plain text writes as two bars.
SYMBOLS = {key: name.replace("||", "‖") for key, name in QUANTITIES.items()}


def render(comparison: Comparison, verdicts: Sequence[Verdict] = (), *, tokens: Tokens | None = None) -> str:
    """Render a comparison as one HTML document that needs no other file, no network and no script.

    It adapts to the width of a phone, to light and dark, and to paper. The output is deterministic. Divergences are in
    nats.

    Arguments:
        comparison: the result of `compare_predictions`.
        verdicts: the limits that were asked for.
        tokens: the text of each class, to be shown beside its number; None, or a class beyond the end, has none.

    Returns:
        The document; `kullback.report.write` writes it to a file.

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
    return render_page(
        "predictions.html.j2",
        (confidence_range,),
        comparison=comparison,
        **on_top(summary(comparison), verdicts),
        kl=comparison.divergences[KL_PQ],
        symbols=SYMBOLS,
        summary_rows=SUMMARY_ROWS,
        labels=label_rows(comparison.labels) if comparison.labels is not None else [],
        delta_prob=delta_prob_rows(comparison.labels.delta_prob) if comparison.labels is not None else [],
        top_k=top_k_rows(comparison),
        acceptance=acceptance(comparison),
        infinite=infinite_sentences(comparison),
        plots=draw_plots(comparison),
        token=partial(token_of, tokens=tokens),
    )


def render_table(comparison: Comparison) -> str:
    """Render the outcome and the table of divergences as a fragment of HTML, for notebooks.

    Arguments:
        comparison: the result of `compare_predictions`.

    Example:
        >>> import torch
        >>> from kullback import Probs
        >>> from kullback.predictions import compare_predictions
        >>> p = Probs(torch.tensor([[0.5, 0.5], [0.9, 0.1]]))
        >>> "P and Q are equal in every row" in render_table(compare_predictions(p, p))
        True
    """
    return render_page(
        "predictions_table.html.j2",
        (confidence_range,),
        comparison=comparison,
        outcome=summary(comparison),
        symbols=SYMBOLS,
        summary_rows=SUMMARY_ROWS,
    )
