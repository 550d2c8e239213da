"""Reports: a result as a document, which each medium renders; and the writer of their files.

| call | gives | needs |
|---|---|---|
| `document(result, verdicts)` | the `Document` of a result | |
| `terminal.render(result, console, verdicts)` | tables on a rich console | rich |
| `html.render(result, verdicts)` | one self-contained page | jinja2, matplotlib |
| `html.render_table(result)` | its main blocks, for notebooks | jinja2 |
| `markdown.render(result, verdicts)` | a short summary | |
| `json.dumps(result, verdicts)`, `json.to_dict(result, verdicts)` | strict JSON of a fixed schema | |
| `json.to_dict(result, verdicts, flat=True)` | its numbers under names such as ``divergences/kl_pq/mean`` | |
| `frame.to_pandas(result, verdicts)` | the exact numbers | pandas |
| `check_writable(path)`, `write(path, text)` | a complete file or none | |

Every medium takes every result: comparisons of predictions, models and tables, fits, estimates,
tests and diagnoses. A new medium
is one function of a `Document`; ``@document.register(Type)`` adds a new type of result.
"""

from __future__ import annotations

from kullback.common.files import check_writable, write
from kullback.report import frame, html, json, markdown, terminal
from kullback.report.subjects import document

__all__ = ["check_writable", "document", "frame", "html", "json", "markdown", "terminal", "write"]
