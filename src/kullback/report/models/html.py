"""A comparison of language models as one self-contained page: scoreboard, text colored by divergence, numbers."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from kullback.report.models.plots import draw_plots
from kullback.report.models.wording import (
    HEADINGS,
    certain,
    differences,
    interval_text,
    noise,
    notes,
    outcome,
    scoreboard,
    size,
    token_text,
    visible,
)
from kullback.report.predictions.html import SYMBOLS
from kullback.report.predictions.wording import (
    KL_PQ,
    SUMMARY_ROWS,
    acceptance,
    delta_prob_rows,
    infinite_sentences,
    label_rows,
    top_k_rows,
)
from kullback.report.shared.page import on_top, render_page

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kullback.models import Candidate, ModelComparison, ReadToken
    from kullback.report.shared.verdicts import Verdict

__all__ = ["render", "render_table"]


def render(found: ModelComparison, verdicts: Sequence[Verdict] = ()) -> str:
    """Build the page: one HTML document that needs no other file, no network and no script.

    Each token of the passages is colored by its KL, and shows the top classes of both models when it is pointed at,
    tapped, or reached by the keyboard.

    Arguments:
        found: the result of `compare_models`.
        verdicts: the limits that were asked for.

    Raises:
        OptionalDependencyError: jinja2 or matplotlib is not installed.
    """
    return render_page(
        "models.html.j2",
        (visible, interval_text),
        **_values(found, verdicts),
        plots=draw_plots(found),
        parts=_parts(found),
    )


def render_table(found: ModelComparison) -> str:
    """Build the outcome and the scoreboard as a fragment of HTML, for notebooks."""
    return render_page("models_table.html.j2", (visible, interval_text), **_values(found))


def _values(found: ModelComparison, verdicts: Sequence[Verdict] = ()) -> dict[str, Any]:
    return {
        "found": found,
        **on_top(outcome(found), verdicts),
        "size": size(found),
        "headings": [
            heading.replace("||", "‖").replace(" dp", " Δp").replace("dPPL", "ΔPPL") for heading in HEADINGS
        ],
        "scores": scoreboard(found),
        "differences": [*differences(found), *certain(found), *noise(found)],
        "notes": notes(found),
    }


def _parts(found: ModelComparison) -> list[dict[str, Any]]:
    return [_part(found, number, candidate) for number, candidate in enumerate(found.candidates)]


def _part(found: ModelComparison, place: int, candidate: Candidate) -> dict[str, Any]:
    comparison = candidate.comparison
    scale = _scale(candidate)

    def word(index: int) -> str:
        return token_text(found, index)

    def strength(token: ReadToken) -> str:
        return f"{min(1.0, math.sqrt(token.kl / scale)) if scale else 0.0:.2f}"

    return {
        "anchor": f"model-{place}",
        "name": candidate.model.name,
        "comparison": comparison,
        "symbols": SYMBOLS,
        "summary_rows": SUMMARY_ROWS,
        "labels": [] if comparison.labels is None else label_rows(comparison.labels),
        "delta_prob": [] if comparison.labels is None else delta_prob_rows(comparison.labels.delta_prob),
        "top_k": top_k_rows(comparison),
        "acceptance": acceptance(comparison),
        "infinite": infinite_sentences(comparison),
        "passages": candidate.passages,
        "scale": scale,
        "word": word,
        "strength": strength,
    }


def _scale(candidate: Candidate) -> float:
    """Return the divergence of the full color: the 99 % quantile, or the largest that is finite."""
    kl = candidate.comparison.divergences[KL_PQ]
    shown = [token.kl for passage in candidate.passages for token in passage.tokens if token.kl < math.inf]
    return kl.p99 if 0 < kl.p99 < math.inf else max(shown, default=0.0)
