"""The document of several batches that are compared with one reference."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain

import numpy as np

from kullback.common.display import Shown
from kullback.common.formats import counted
from kullback.report.document import (
    Document,
    Fields,
    Findings,
    Frame,
    Gallery,
    Headline,
    Remark,
    Section,
    Tone,
)
from kullback.report.plots.tables import draw_history
from kullback.report.schemas import tables as schema
from kullback.report.subjects import document, tables
from kullback.results.finding import Level
from kullback.results.verdict import Verdict, worst
from kullback.tables.table_results import TableComparison

CORRECTED = "The p-values are corrected for all columns of all batches."


@dataclass(frozen=True)
class Batches(Shown):
    """Comparisons of several batches with one reference, and the verdicts of the gates.

    Attributes:
        comparisons: the comparison of each batch; ``q_name`` is the name of the batch.
        verdicts: the verdicts for each batch.
    """

    comparisons: tuple[TableComparison, ...]
    verdicts: tuple[tuple[Verdict, ...], ...]

    @property
    def lines(self) -> list[str]:
        """A first line, and then the outcome of each batch.

        With gates, the first line has the number of batches that fail or are unclear. Without gates, the first line
        states how p-values are corrected.
        """
        number = counted(len(self.comparisons), "batch", "batches")
        outcomes = [worst(verdicts) for verdicts in self.verdicts]
        whole = f"{number}; p-values are corrected for all of them."
        if "failed" in outcomes:
            whole = f"Failed: {outcomes.count('failed')} of {number}."
        elif "unclear" in outcomes:
            whole = f"Cannot tell: {outcomes.count('unclear')} of {number}."
        elif any(self.verdicts):
            whole = f"Passed: {number}."
        return [whole, *(f"{page.title}: {page.outcome}" for page in self.pages)]

    @property
    def pages(self) -> list[Document]:
        """The document of each batch, with the name of the batch as its title."""
        pages = map(tables.document, self.comparisons, self.verdicts)
        return [_named(each.q_name, page) for each, page in zip(self.comparisons, pages, strict=True)]


def _named(name: str, page: Document) -> Document:
    """Return a document with the name of its batch as title, and at the beginning of each limit and sentence."""
    verdicts = (
        replace(
            each,
            limit=f"{name}: {each.limit}",
            failures=tuple(f"{name}: {failure}" for failure in each.failures),
            unclear=tuple(f"{name}: {sentence}" for sentence in each.unclear),
        )
        for each in page.verdicts
    )
    return replace(page, title=name, verdicts=tuple(verdicts))


@document.register(Batches)
def _(batches: Batches, verdicts: Sequence[Verdict] = ()) -> Document:
    pages, reference = batches.pages, batches.comparisons[0].p_name
    levels: dict[Tone, Level] = {"bad": "error", "warning": "warning"}
    remarks = [Remark(levels.get(page.tone, "note"), f"{page.title}: {page.outcome}") for page in pages]
    number = counted(len(pages), "batch", "batches")
    different = [each for each in batches.comparisons if tables.differing(each)]
    worst = max(different, key=tables.largest_shift, default=None)
    verb = "differs" if len(different) == 1 else "differ"
    partial_batches = sum(bool(each.not_compared) for each in batches.comparisons)
    partly = f"; {partial_batches} could not be compared in full" if partial_batches else ""
    return Document(
        f"{number} against {reference}",
        Headline(
            f"{len(different)} of {number} {verb} from {reference}{partly}",
            CORRECTED
            if worst is None
            else f"The largest difference is in {worst.q_name}: {tables.summary(worst)} {CORRECTED}",
            f"PSI in nats, with intervals of {100 * batches.comparisons[0].confidence:g}% confidence",
            tone=tables.worst_tone(page.headline.tone for page in pages),
        ),
        (
            *(Gallery("History", [plot]) for plot in draw_history(batches.comparisons)),
            Findings("Batches", remarks),
            *(Section(page.title, page.blocks, is_open=False) for page in pages),
        ),
        (*verdicts, *chain.from_iterable(page.verdicts for page in pages)),
        pages[0].meanings,
        partial(_fields, batches),
        partial(_frame, pages),
        "kullback watch",
        limit=pages[0].limit,
        measured=tables.measured(batches.comparisons[0]),
        plot=next(iter(draw_history(batches.comparisons)), None),
    )


def _fields(batches: Batches) -> Fields:
    """Return the fields of the JSON; ``batches`` has an object of the schema ``kullback.tables`` for each batch."""
    return {
        "schema": "kullback.batches/1",
        "batches": [schema.fields(comparison) for comparison in batches.comparisons],
    }


def _frame(pages: Sequence[Document]) -> Frame:
    """Return the rows of all batches; the first column contains the name of the batch."""
    frames = [(page.title, page.frame()) for page in pages if page.frame is not None]
    names = [name for name, frame in frames for _ in frame.columns["column"]]
    columns = {
        name: np.concatenate([np.asarray(frame.columns[name]) for _, frame in frames])
        for name in frames[0][1].columns
    }
    return Frame({"batch": names, **columns})
