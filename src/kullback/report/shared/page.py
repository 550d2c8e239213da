"""The templates of the pages."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kullback.optional import load
from kullback.report.shared.formats import count, counted, number, percent, printable, probability
from kullback.report.shared.verdicts import headline

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from kullback.report.shared.verdicts import Verdict

__all__ = ["on_top", "render_page"]

FILTERS: tuple[Callable[..., str], ...] = (count, counted, number, percent, printable, probability)


def render_page(template: str, filters: tuple[Callable[..., str], ...], /, **values: Any) -> str:
    """Render a template; every value is escaped, and an undefined name is an error.

    Arguments:
        template: the name of the template.
        filters: functions that format values, as filters of their own names.
        values: the variables of the template.
    """
    jinja = load("jinja2", "the HTML page")
    environment = jinja.Environment(
        loader=jinja.PackageLoader("kullback.report"),
        autoescape=True,
        undefined=jinja.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update({write.__name__: write for write in (*FILTERS, *filters)})
    return environment.get_template(template).render(values)


def on_top(outcome: str, verdicts: Sequence[Verdict]) -> dict[str, Any]:
    """Return the values that the head of a page shows: the verdict of the limits, and the outcome."""
    verdict = headline(verdicts)
    failed = any(each.failures for each in verdicts)
    return {
        "outcome": f"{verdict}. {outcome}" if verdict else outcome,
        "tone": ("bad" if failed else "good") if verdicts else "",
        "verdicts": verdicts,
    }
