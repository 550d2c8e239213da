"""Reports: a comparison as a table in the terminal, as JSON and as a page with plots; and the writer of their files.

| call | gives | needs |
|---|---|---|
| `terminal.render(comparison, console)` | tables on a rich console | rich |
| `json.dumps(comparison)`, `json.to_dict(comparison)` | strict JSON of a fixed schema | nothing |
| `html.render(comparison)` | one self-contained page | jinja2, matplotlib |
| `html.render_table(comparison)` | its main table, for notebooks | jinja2 |
| `check_writable(path)`, `write(path, text)` | a complete file or none | nothing |
"""

from __future__ import annotations

from kullback.files import check_writable, write
from kullback.report.predictions import html, json, terminal

__all__ = ["check_writable", "html", "json", "terminal", "write"]
