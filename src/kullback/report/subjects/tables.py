"""The documents of a comparison of tables, and of several batches that are compared with one reference."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from typing import NamedTuple

import numpy as np

from kullback.common.display import Shown
from kullback.common.formats import count, counted, decimal, interval, p_value
from kullback.common.words import TABLE_DIVERGENCE_NAMES
from kullback.errors import quoted
from kullback.report.document import (
    Bar,
    Bars,
    Block,
    Brief,
    Column,
    Document,
    Fields,
    Findings,
    Frame,
    Gallery,
    Headline,
    Meaning,
    Measured,
    Plot,
    Remark,
    Section,
    Table,
    Tone,
)
from kullback.report.plots.points import Point, draw_points, label_of
from kullback.report.plots.tables import draw_column, draw_history, percentage, totals
from kullback.report.schemas import tables as schema
from kullback.results.finding import LEVELS, Level
from kullback.results.value import Value
from kullback.results.verdict import Verdict, worst
from kullback.tables.table_results import Bin, ColumnComparison, JointComparison, TableComparison, least

MOST_DRAWN = 40  # the largest number of columns with a drawing; the page then has some hundred kB
WORST_IN_BRIEF = 3
MOST_BINS = 8  # the largest number of categories shown of a column
MOST_CONTRIBUTORS = 2  # the largest number of a column's bins in a remark
MOST_EXPLAINED, MOST_EXPLAINING = 5, 3  # limits of the table of bins: columns, and bins of a column
HEADINGS = ("found", "PSI", "{} CI", "p", "KL(P||Q)", "KL(Q||P)", "JS", "TV")
DROPPED_FIRST = (7, 6, 5, 8, 3)
SIGNIFICANT = 0.05
# By the rule of thumb of credit scoring, a shift is moderate or large if its PSI is at least this number.
MODERATE, LARGE = 0.1, 0.25
CORRECTED = "The p-values are corrected for all columns of all batches."
Compared = ColumnComparison | JointComparison
MEANINGS = (
    Meaning(
        "KL(P||Q)",
        "the extra nats per row when Q is used to predict data from P: 0 where they agree, infinite "
        "where Q gives probability 0 and P does not. p and q are the proportions of P's and Q's rows in a bin: numbers "
        "between P's quantiles, a category, the missing values. A bin contributes p log(p / q) - p + q.",
        "Σ p log(p / q)",
    ),
    Meaning("PSI", "the population stability index.", "KL(P||Q) + KL(Q||P)"),
    Meaning(
        "JS",
        "the Jensen-Shannon divergence: symmetric, at most log 2 = 0.6931.",
        "½ KL(P||M) + ½ KL(Q||M), M = ½ (P + Q)",
    ),
    Meaning(
        "TV",
        "total variation: the proportion of rows that would have to change for Q to become P.",
        "½ Σ |p − q|",
    ),
    Meaning(
        "Values and intervals",
        "both are corrected for the bias of small counts; a value below 0 is written as 0. An infinite upper limit "
        "means that a bin is empty on one side.",
    ),
    Meaning(
        "p",
        "how often two tables of the same distribution would differ at least as much, after Benjamini and "
        f"Hochberg's correction: at most {100 * SIGNIFICANT:g}% of the columns with p < {SIGNIFICANT:g} are "
        "expected to differ by chance alone.",
    ),
)


def document(comparison: TableComparison, verdicts: Sequence[Verdict] = ()) -> Document:
    """Return the document of the result of `compare_tables`."""
    drawn = [
        _picture(column, f"column-{place}", verdicts)
        for place, column in enumerate(comparison.columns[:MOST_DRAWN], 1)
    ]
    blocks: list[Block] = []
    if comparison.columns:
        caption = (
            "The largest PSI first; in nats; TV is a probability, from 0 to 1. CI is the interval of PSI; p is "
            "corrected for the number of tests. A shift is a statistically significant difference "
            f"(p < {SIGNIFICANT:g}): large from a PSI of {LARGE:g} on, small below {MODERATE:g}."
        )
        links = [each.name for each in drawn]
        blocks.append(
            _table("column", "By column", comparison, comparison.columns, verdicts, (caption,), links)
        )
    if comparison.joint:
        blocks.append(_table("columns", "Columns together", comparison, comparison.joint, verdicts))
    remarks = _remarks(comparison, drawn)
    if remarks:
        blocks.append(Findings("Findings", remarks))
    if drawn:
        few = f"The {len(drawn)} columns of largest PSI are shown; the table above has all of them."
        caption = (few,) if len(comparison.columns) > len(drawn) else ()
        blocks.append(Gallery("The distributions", drawn, caption, _contributors_table(comparison)))
    if comparison.joint:
        together = [
            Bars(f"joint-{place}", name_of(each), _bars(each, _largest(each)))
            for place, each in enumerate(comparison.joint)
        ]
        blocks.append(Gallery("The combinations that contribute most", together))
    return Document(
        f"{comparison.q_name} against {comparison.p_name}: column by column",
        Headline(
            summary(comparison),
            _reason(comparison),
            size(comparison),
            {"P": comparison.p_name, "Q": comparison.q_name},
            tone_of(comparison),
        ),
        tuple(blocks),
        tuple(verdicts),
        MEANINGS,
        partial(schema.fields, comparison),
        partial(_frame, comparison),
        "kullback compare",
        _brief(comparison, remarks),
        f"psi={LARGE:g}",
        measured=measured(comparison),
        plot=_plot(comparison),
    )


def measured(comparison: TableComparison) -> Measured:
    """Return the kinds and units of a comparison of tables, PSI first, and the confidence of its intervals."""
    units = {name: "dimensionless" if name == "tv" else "nats" for name in TABLE_DIVERGENCE_NAMES}
    return Measured(units, comparison.confidence)


def _plot(comparison: TableComparison) -> Plot:
    points = [_psi_point(each) for each in (*comparison.columns, *comparison.joint)]
    label = label_of("PSI, nats", points, comparison.confidence)
    return Plot("psi", "PSI by column", "", partial(draw_points, points, label))


def _psi_point(compared: Compared) -> Point:
    """Return the PSI of a column with its interval or, if it is larger, the PSI of its words, which has none."""
    words = words_psi(compared) or 0.0
    if words > least(compared.psi):
        return Point(words, math.nan, math.nan, f"words of {name_of(compared)}")
    return Point.of(compared.psi, name_of(compared))


def _brief(comparison: TableComparison, remarks: Sequence[Remark]) -> Brief:
    p, q = count(comparison.p_rows), counted(comparison.q_rows, "row")
    blocks: list[str | Table] = [_sentence([part]) for part in _outcome(comparison, with_name=False)]
    blocks += [f"error: {each.message}" for each in remarks if each.level == "error" and not each.link][:1]
    worst = (differing(comparison) or comparison.columns)[:WORST_IN_BRIEF]
    if worst:
        rows = [[each.name, meaning(each).words, *_brief_cells(each)] for each in worst]
        headings = ("column", "", "PSI", f"{100 * comparison.confidence:g}% CI", "p", "most of it in")
        columns = range(5 + any(row[5] for row in rows))
        shown = [[row[place] for place in columns] for row in (headings, *rows)]
        blocks.append(Table("", shown[0], shown[1:], dropped_first=tuple(columns)[:3:-1]))
    return Brief(f"{p} and {q}, {counted(len(comparison.columns), 'column')}", tuple(blocks))


def _brief_cells(column: ColumnComparison) -> list[str]:
    """Return the PSI that decides, its interval, the p-value and the largest contributor to the PSI of values."""
    psi, ends = _deciding_psi(column)
    parts = ", ".join(part.label for part in contributors(column, 1)) if ends else ""
    return [psi, ends, p_value(column.p_adjusted), parts]


def _deciding_psi(compared: Compared) -> tuple[str, str]:
    """Return the PSI that decides the finding, and its interval: the PSI of words if it is larger; it has none."""
    words = words_psi(compared) or 0.0
    if words > least(compared.psi):
        return f"{decimal(words)} of words", ""
    return value_text(compared.psi), interval(compared.psi.interval, decimal)


def _table(
    first: str,
    title: str,
    comparison: TableComparison,
    compared: Sequence[Compared],
    verdicts: Sequence[Verdict],
    caption: tuple[str, ...] = (),
    links: Sequence[str] = (),
) -> Table:
    shifts = [meaning(each, verdicts) for each in compared]
    headings = [heading.format(f"{100 * comparison.confidence:g}%") for heading in HEADINGS]
    rows = [
        [
            name_of(each),
            shift.words,
            *_deciding_psi(each),
            p_value(each.p_adjusted),
            *(value_text(getattr(each, name)) for name in ("kl_pq", "kl_qp", "js", "tv")),
        ]
        for each, shift in zip(compared, shifts, strict=True)
    ]
    tones: list[Tone] = [shift.tone for shift in shifts]
    return Table(title, [first, *headings], rows, caption, tones, links, DROPPED_FIRST, is_main=True)


def _contributors_table(comparison: TableComparison) -> Table | None:
    rows = [
        [
            f"{name_of(column)}: {part.label}",
            percentage(part.p, sums[0]),
            percentage(part.q, sums[1]),
            decimal(part.contribution),
        ]
        for column in differing(comparison)[:MOST_EXPLAINED]
        for sums in [totals(column)]
        for part in contributors(column, MOST_EXPLAINING)
    ]
    return Table("The bins that contribute most to KL(P||Q)", ["", "P", "Q", "nats"], rows) if rows else None


def _remarks(comparison: TableComparison, drawn: Sequence[Plot | Bars]) -> list[Remark]:
    """Return remarks on shifts and findings, most severe first; the column's shift sorts equally severe findings."""
    drift = {column.name: _shift(column) for column in differing(comparison)}
    ranked = sorted(comparison.findings, key=lambda each: -drift.get(each.column or "", 0.0))
    remarks = [Remark(each.level, each.message) for each in ranked]
    links = {column.name: each.name for column, each in zip(comparison.columns, drawn, strict=False)}
    shifts = [_shift_remark(column, links.get(column.name, "")) for column in differing(comparison)]
    errors, others = (
        [each for each in remarks if (each.level == "error") is is_error] for is_error in (True, False)
    )
    return sorted([*errors, *shifts, *others], key=lambda remark: LEVELS.index(remark.level))


def _shift_remark(column: ColumnComparison, link: str) -> Remark:
    words = meaning(column).words
    level = "error" if words == "large shift" else "warning" if words == "shift" else "note"
    sums = totals(column)
    text = f"{quoted(column.name)}: PSI {value_text(column.psi)} ({interval(column.psi.interval, decimal)})"
    if of_words := words_psi(column):
        text += f", PSI of its words {decimal(of_words)}"
    if parts := contributors(column, MOST_CONTRIBUTORS):
        text += ", most of it in " + ", ".join(
            f"{part.label} ({percentage(part.p, sums[0])} → {percentage(part.q, sums[1])})" for part in parts
        )
    return Remark(level, text, words, link)


def _picture(column: ColumnComparison, name: str, verdicts: Sequence[Verdict]) -> Plot | Bars:
    """Return a drawing of a column's distributions: a histogram, or the bars of its largest categories."""
    badge: tuple[str, Tone] = meaning(column, verdicts)
    of_text = " (its length)" if column.column_type == "text" else ""
    about = f"{column.column_type}{of_text}, PSI {value_text(column.psi)} ({interval(column.psi.interval, decimal)}), "
    about += f"p {p_value(column.p_adjusted)}."
    if plot := draw_column(column, name):
        return replace(plot, caption=f"{about} {plot.caption}".rstrip(), badge=badge)
    bins = _largest(column)
    if others := len(column.bins) - len(bins):
        about += f" {counted(others, 'more value', 'more values')} not shown."
    return Bars(name, column.name, _bars(column, bins), about, badge)


def _largest(compared: Compared) -> list[Bin]:
    """Return the bins with the largest contributions, in their original order; ties go to more frequent bins."""
    chosen = sorted(compared.bins, key=lambda part: (-part.contribution, -part.p - part.q))[:MOST_BINS]
    return [part for part in compared.bins if part in chosen]


def _bars(compared: Compared, bins: Sequence[Bin]) -> tuple[Bar, ...]:
    p, q = totals(compared)
    widest = max((max(part.p / p, part.q / q) for part in bins), default=1.0) or 1.0
    return tuple(
        Bar(
            part.label, part.p / p / widest, part.q / q / widest, percentage(part.p, p), percentage(part.q, q)
        )
        for part in bins
    )


def _frame(comparison: TableComparison) -> Frame:
    """Return a row for each column and each group of columns; unknown numbers are NaN."""
    compared = [*comparison.columns, *comparison.joint]
    columns: dict[str, Column] = {
        "column": [each.label for each in compared],
        "column_type": [getattr(each, "column_type", "joint") for each in compared],
    }
    for name in TABLE_DIVERGENCE_NAMES:
        quantities = [getattr(each, name) for each in compared]
        columns[name] = np.array([each.value for each in quantities], dtype=float)
        for place, end in enumerate(("_low", "_high")):
            columns[name + end] = np.array([each.ends[place] for each in quantities], dtype=float)
    for name in ("p_value", "p_adjusted", "missing_p", "missing_q"):
        columns[name] = np.array([getattr(each, name, None) for each in compared], dtype=float)
    return Frame(columns)


class Shift(NamedTuple):
    """The verdict on a column in one or two words, and the tone of this verdict in a medium, such as "bad"."""

    words: str
    tone: Tone


def meaning(compared: Compared, verdicts: Sequence[Verdict] = ()) -> Shift:
    """Return the meaning of a column's numbers, from the verdicts of your limits, the p-value and the PSI.

    Example:
        >>> import pyarrow as pa
        >>> from kullback import compare_tables
        >>> before, after = pa.table({"x": ["a", "b"] * 99}), pa.table({"x": ["a", "b", "b", "b"] * 50})
        >>> meaning(compare_tables(before, after)["x"])
        Shift(words='large shift', tone='bad')
    """
    psi = compared.psi.value
    # Without an interval, there are so few rows that a shift may be hidden.
    hidden = psi is None or (compared.psi.interval is None and len(compared.bins) > 1)
    content = compared.content if isinstance(compared, ColumnComparison) else None
    if any(compared.label in verdict.broken_by for verdict in verdicts):
        return Shift("limit broken", "bad")
    if content == "identifier":
        return Shift("inconclusive", "unknown")
    if psi is not None and compared.p_adjusted < SIGNIFICANT:
        return _significant(max(psi, words_psi(compared) or 0.0), doubtful=content is not None)
    if psi is None or hidden or psi >= MODERATE or content is not None:
        return Shift("inconclusive", "unknown")
    of_text = isinstance(compared, ColumnComparison) and compared.column_type == "text"
    only_lengths = of_text and words_psi(compared) is None
    return Shift("lengths alike", "unknown") if only_lengths else Shift("none seen", "good")


def _significant(psi: float, *, doubtful: bool) -> Shift:
    """Return the meaning of a significant difference.

    `doubtful` is for numbers as text: their division into categories may hide the size of the difference.
    """
    if psi >= LARGE:
        return Shift("large shift", "bad")
    if psi >= MODERATE:
        return Shift("shift", "warning")
    return Shift("inconclusive" if doubtful else "small shift", "unknown")


def words_psi(compared: Compared) -> float | None:
    """Return the PSI of the words of a column of texts; None for other columns, and if words were not compared."""
    return compared.words if isinstance(compared, ColumnComparison) else None


def _shift(column: ColumnComparison) -> float:
    return max(least(column.psi), words_psi(column) or 0.0)


def summary(comparison: TableComparison) -> str:
    """Return the outcome in one sentence: the numbers of different and inconclusive columns, and the largest shift.

    Example:
        >>> import pyarrow as pa
        >>> from kullback import compare_tables
        >>> table = pa.table({"x": [1, 2] * 50, "y": [3] * 100})
        >>> summary(compare_tables(table, table))
        'No difference is seen in 2 columns.'
    """
    return _sentence(_outcome(comparison, with_name=True))


def _reason(comparison: TableComparison) -> str:
    """Return why the column that differs most is a shift: the PSI, its largest contributors, and the rule of thumb."""
    different = differing(comparison)
    if not different:
        if not comparison.columns:
            return "No test was made."
        return f"No column has p < {SIGNIFICANT:g} after the correction for the number of tests."
    rules = {
        "large shift": f"a PSI of {LARGE:g} or more is a large shift",
        "shift": f"a PSI from {MODERATE:g} to {LARGE:g} is a shift",
        "small shift": f"a PSI below {MODERATE:g} is a small shift, however certain",
    }
    remark = _shift_remark(different[0], "")
    return f"{remark.message}. By the rule of thumb of credit scoring, {rules[remark.word]}."


def _sentence(parts: Sequence[str]) -> str:
    text = "; ".join(parts)
    return f"{text[0].upper()}{text[1:]}."


def _outcome(comparison: TableComparison, *, with_name: bool) -> list[str]:
    """Return the parts of the outcome; with `with_name`, the first part names the column that differs most."""
    words = [meaning(column).words for column in comparison.columns]
    unknown, texts = words.count("inconclusive"), words.count("lengths alike")
    outcome = _differences(comparison, unknown + texts, with_name=with_name)
    if unknown:
        outcome.append(f"{counted(unknown, 'column')} {'is' if unknown == 1 else 'are'} inconclusive")
    if texts:
        outcome.append(f"only the lengths were compared of {counted(texts, 'column')} of text")
    if comparison.not_compared:
        outcome.append(f"{counted(len(comparison.not_compared), 'column')} could not be compared")
    return outcome


def _differences(comparison: TableComparison, unknown: int, *, with_name: bool) -> list[str]:
    number = len(comparison.columns)
    if not number:
        return ["nothing was compared"]
    different = differing(comparison)
    if not different:
        return [f"no difference is seen in {counted(number - unknown, 'column')}"] if number > unknown else []
    large = sum(1 for column in different if _shift(column) >= LARGE)
    verb = "differs" if len(different) == 1 else "differ"
    text = f"{count(len(different))} of {counted(number, 'column')} {verb}"
    if large:
        text += f", {count(large)} of them by a large shift" if len(different) > 1 else " by a large shift"
    if not with_name:
        return [text]
    most = different[0]
    which = f"; {quoted(most.name)} differs most" if len(different) > 1 else f": {quoted(most.name)}"
    psi = value_text(most.psi) if _shift(most) == least(most.psi) else f"of words {decimal(_shift(most))}"
    return [f"{text}{which} (PSI {psi})"]


def tone_of(comparison: TableComparison) -> Tone:
    """Return the tone of the worst column; "bad" if some column was not compared."""
    if not comparison.columns or comparison.not_compared:
        return "bad"
    return worst_tone(meaning(column).tone for column in comparison.columns)


def worst_tone(tones: Iterable[Tone]) -> Tone:
    """Return the worst of some tones."""
    order: tuple[Tone, ...] = ("bad", "warning", "unknown", "good")
    return min(tones, key=order.index)


def largest_shift(comparison: TableComparison) -> float:
    """Return the largest PSI, of values or words, among columns whose difference is statistically significant."""
    return max(map(_shift, differing(comparison)), default=0.0)


def value_text(quantity: Value[float | None]) -> str:
    """Return a divergence with three decimals, or n/a if it has no value.

    Example:
        >>> value_text(Value(0.1234, None, None)), value_text(Value(None, None, (0.0, 1.0)))
        ('0.123', 'n/a')
    """
    return "n/a" if quantity.value is None else decimal(quantity.value)


def name_of(compared: Compared) -> str:
    """Return the name of a column, or the joined names of a group of columns."""
    return compared.name if isinstance(compared, ColumnComparison) else " × ".join(compared.columns)


def contributors(compared: Compared, most: int) -> list[Bin]:
    """Return the bins that contribute most to KL(P || Q), the largest first; none without a significant difference."""
    if not compared.p_adjusted < SIGNIFICANT or not compared.psi.value:
        return []
    ranked = sorted(compared.bins, key=lambda part: -part.contribution)
    return [part for part in ranked[:most] if part.contribution > 0]


def differing(comparison: TableComparison) -> list[ColumnComparison]:
    """Return the columns, except identifiers, with a significant difference; the largest PSI is first."""
    different = [
        column
        for column in comparison.columns
        if column.p_adjusted < SIGNIFICANT and column.content != "identifier"
    ]
    return sorted(different, key=_shift, reverse=True)


def size(comparison: TableComparison) -> str:
    """Return a description of the amount of data."""
    text = f"{counted(len(comparison.columns), 'column')} of {counted(comparison.p_rows, 'row')} of P and "
    text += f"{count(comparison.q_rows)} of Q"
    text += _named(", weighted by {}", comparison.weights) + _named(", in groups of {}", comparison.cluster)
    return text + f"; numbers in about {count(comparison.max_bins)} bins"


def _named(form: str, name: str | None) -> str:
    return "" if name is None else form.format(quoted(name))


@dataclass(frozen=True)
class Batches(Shown):
    """Comparisons of several batches, each the ``q_name``, with one reference, and the verdicts for each batch."""

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
        pages = map(document, self.comparisons, self.verdicts)
        return [_of_batch(each.q_name, page) for each, page in zip(self.comparisons, pages, strict=True)]


def _of_batch(name: str, page: Document) -> Document:
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


def of_batches(batches: Batches, verdicts: Sequence[Verdict] = ()) -> Document:
    """Return the document of several batches that are compared with one reference."""
    pages, reference = batches.pages, batches.comparisons[0].p_name
    levels: dict[Tone, Level] = {"bad": "error", "warning": "warning"}
    remarks = [Remark(levels.get(page.tone, "note"), f"{page.title}: {page.outcome}") for page in pages]
    number = counted(len(pages), "batch", "batches")
    different = [each for each in batches.comparisons if differing(each)]
    farthest = max(different, key=largest_shift, default=None)
    verb = "differs" if len(different) == 1 else "differ"
    partial_batches = sum(bool(each.not_compared) for each in batches.comparisons)
    partly = f"; {partial_batches} could not be compared in full" if partial_batches else ""
    return Document(
        f"{number} against {reference}",
        Headline(
            f"{len(different)} of {number} {verb} from {reference}{partly}",
            CORRECTED
            if farthest is None
            else f"The largest difference is in {farthest.q_name}: {summary(farthest)} {CORRECTED}",
            f"PSI in nats, with intervals of {100 * batches.comparisons[0].confidence:g}% confidence",
            tone=worst_tone(page.headline.tone for page in pages),
        ),
        (
            *(Gallery("History", [plot]) for plot in draw_history(batches.comparisons)),
            Findings("Batches", remarks),
            *(Section(page.title, page.blocks, is_open=False) for page in pages),
        ),
        (*verdicts, *chain.from_iterable(page.verdicts for page in pages)),
        pages[0].meanings,
        partial(_fields_of_batches, batches),
        partial(_frame_of_batches, pages),
        "kullback watch",
        limit=pages[0].limit,
        measured=measured(batches.comparisons[0]),
        plot=next(iter(draw_history(batches.comparisons)), None),
    )


def _fields_of_batches(batches: Batches) -> Fields:
    """Return the fields of the JSON; ``batches`` has an object of the schema ``kullback.tables`` for each batch."""
    return {"schema": "kullback.batches/1", "batches": [schema.fields(each) for each in batches.comparisons]}


def _frame_of_batches(pages: Sequence[Document]) -> Frame:
    """Return the rows of all batches; the first column contains the name of the batch."""
    frames = [(page.title, page.frame()) for page in pages if page.frame is not None]
    names = [name for name, frame in frames for _ in frame.columns["column"]]
    columns = {
        name: np.concatenate([np.asarray(frame.columns[name]) for _, frame in frames])
        for name in frames[0][1].columns
    }
    return Frame({"batch": names, **columns})
