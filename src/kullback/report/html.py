"""Renders a document as one self-contained page, or its main blocks as a fragment for notebooks."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from importlib.resources import files
from typing import Any

from kullback.common.optional import load
from kullback.errors import printable
from kullback.report.document import main_blocks
from kullback.report.plots.svg import draw_svg
from kullback.report.subjects import document
from kullback.results.verdict import Verdict


def render(result: Any, verdicts: Sequence[Verdict] = (), **options: Any) -> str:
    """Render a result as one HTML document that needs no other file and no network.

    A script sorts tables and filters long lists; without scripts, the page shows everything. The page adapts to narrow
    screens, to dark mode and to paper. The same result always gives the same text. `document` describes the arguments.

    Raises:
        OptionalDependencyError: jinja2 or matplotlib is not installed.

    Example:
        >>> import torch
        >>> from kullback import Probs, compare_predictions
        >>> p = Probs(torch.tensor([[0.5, 0.5], [0.9, 0.1]]))
        >>> page = render(compare_predictions(p, p))
        >>> page.startswith("<!doctype html>"), page.count("<script>")
        (True, 1)
    """
    script = files("kullback.report").joinpath("templates/page.js").read_text(encoding="utf-8")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    page = document(result, verdicts, **options)
    return _rendered("page.html.j2", page=page, script=script, digest=digest)


def render_table(result: Any) -> str:
    """Render the outcome and the main blocks as a fragment of HTML, for notebooks.

    Example:
        >>> import pyarrow as pa
        >>> from kullback.tables import compare_tables
        >>> table = pa.table({"x": [1, 2] * 50})
        >>> "No difference is seen" in render_table(compare_tables(table, table))
        True
    """
    page = document(result)
    return _rendered("fragment.html.j2", page=page, blocks=list(main_blocks(page)))


def _rendered(template: str, **values: Any) -> str:
    """Return the text of a template with the given values; values are escaped, and an undefined name is an error."""
    jinja = load("jinja2", "the HTML page")
    environment = jinja.Environment(
        loader=jinja.PackageLoader("kullback.report"),
        autoescape=True,
        undefined=jinja.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    # A block's kind names the macro that renders it. The ids in an SVG element begin with the name of the plot.
    environment.filters.update(
        kind=lambda block: type(block).__name__.lower(),
        svg=lambda plot, name: draw_svg(name, plot.draw),
        text=_text,
    )
    return environment.get_template(template).render(values)


def _text(words: str) -> str:
    """Return a text with escaped control characters, and with the mathematical sign instead of two bars."""
    return printable(words).replace("||", "‖")
