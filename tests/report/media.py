"""What the tests of reports read: a terminal's text, a page's elements, and JSON that is strict."""

from __future__ import annotations

import io
import json
from html.parser import HTMLParser
from typing import Any

from rich.console import Console

from kullback.report import document, terminal


def printed(
    result: Any, width: int = 80, encoding: str = "utf-8", *, console: Any = (), **settings: Any
) -> str:
    """The text of a terminal; `console` are settings of the console, and `settings` those of the report."""
    stream = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    terminal.render(result, Console(file=stream, width=width, **dict(console)), **settings)
    stream.flush()
    return stream.buffer.getvalue().decode(encoding)


def brief(result: Any) -> str:
    """The text of the short form of a report on a wide terminal."""
    stream = io.StringIO()
    terminal.render_brief(document(result), Console(file=stream, width=200))
    return stream.getvalue()


def strict(text: str) -> dict[str, Any]:
    """What a JSON document holds, which has no constant such as NaN."""

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is no JSON")

    return json.loads(text, parse_constant=refuse)


class Page(HTMLParser):
    """The elements of a page with their attributes, the cells of its tables row by row, and its texts.

    Every tag has to be closed.
    """

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.rows: list[list[str]] = []
        self.texts: list[str] = []  # outside of cells
        self.text = ""
        self.open: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in {"br", "link", "meta"}:
            self.open.append(tag)
        if tag == "tr":
            self.rows.append([])
        if tag in {"td", "th"}:
            self.rows[-1].append("")

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data
        if {"td", "th"} & set(self.open):
            self.rows[-1][-1] += data
        elif data.strip():
            self.texts.append(data.strip())

    def tags(self, *names: str) -> list[dict[str, str | None]]:
        return [attributes for tag, attributes in self.elements if tag in names]
