"""Reports: a result is converted to a `Document`, which each medium renders.

| call | gives | needs |
|---|---|---|
| `document(result, verdicts)` | the `Document` of a result | |
| `terminal.render(result, console, verdicts)` | tables on a rich console | rich |
| `html.render(result, verdicts)` | one self-contained page | jinja2, matplotlib |
| `html.render_table(result)` | the main blocks of the page, for notebooks | jinja2 |
| `markdown.render(result, verdicts)` | a short summary | |
| `json.dumps(result, verdicts)`, `json.to_dict(result, verdicts)` | strict JSON of a fixed schema | |
| `json.to_dict(result, verdicts, flat=True)` | the numbers under names such as ``divergences/kl_pq/mean`` | |
| `frame.to_pandas(result, verdicts)` | the exact numbers | pandas |
| `figure.draw(result, axes, name)` | a plot on matplotlib axes | matplotlib |

Every medium renders every type of result: comparisons of predictions, models and tables, fits, estimates, tests and
diagnoses. To add a medium, write one function that renders a `Document`. To add a type of result, decorate the function
that makes its `Document` with ``@document.register(Type)``.
"""

from __future__ import annotations

from kullback.report import figure, frame, html, json, markdown, terminal
from kullback.report.subjects import document

__all__ = ["document", "figure", "frame", "html", "json", "markdown", "terminal"]
