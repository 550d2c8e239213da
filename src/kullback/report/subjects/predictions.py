"""The document of a comparison of predictions."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple

from kullback.common.formats import (
    Unit,
    count,
    counted,
    interval,
    number,
    percent,
    probability,
    shortened,
    visible,
)
from kullback.common.row_statistics import BUILT_IN
from kullback.common.words import DIVERGENCE_NAMES, WARNING
from kullback.predictions import Comparison, LabelStatistics, Summary, TopClass, WorstRow
from kullback.report.document import (
    Bar,
    Bars,
    Block,
    Brief,
    Document,
    Figure,
    Findings,
    Frame,
    Gallery,
    Headline,
    Meaning,
    Measured,
    Plot,
    Remark,
    Table,
    Tone,
)
from kullback.report.plots.ladder import place_on_ladder
from kullback.report.plots.points import Point, draw_points, label_of
from kullback.report.plots.predictions import draw_plots
from kullback.report.schemas import predictions as schema
from kullback.results.value import Value
from kullback.results.verdict import Verdict

LONGEST_TOKEN, LONGEST_IN_BRIEF = 16, 9
WORST_IN_BRIEF, GROUPS_IN_BRIEF = 3, 4
# The text of each class. A class has no text if its entry is None, or if its index is beyond the end.
Tokens = Sequence[str | None]
KL_PQ = "kl_pq"
# The keys of Comparison.divergences, in the order of the reports, with their names in plain text.
QUANTITIES = {each.name: each.title for each in BUILT_IN if each.name in DIVERGENCE_NAMES}
MEASURED = Measured(
    {name: "dimensionless" if name == "tv" else "nats" for name in QUANTITIES}, confidence=0.95
)
# The attributes of `Summary` that are quantiles, with their titles.
QUANTILES = {
    "minimum": "minimum", "p001": "0.1%", "p01": "1%", "p05": "5%", "p10": "10%", "p25": "25%", "median": "median",
    "p75": "75%", "p90": "90%", "p95": "95%", "p99": "99%", "p999": "99.9%", "maximum": "maximum",
}  # fmt: skip


def precisely(value: float) -> str:
    """Format a number that is close to 1."""
    return number(value, 6)


class LabelStatistic(NamedTuple):
    """A statistic at the true classes.

    `title` is the name in the table. `figure` is the name among the main numbers; empty if it is not a main number.
    """

    title: str
    figure: str = ""
    write: Callable[[float], str] = number


# The attributes of LabelStatistics that are values, in the order of the reports.
LABEL_STATISTICS = {
    "cross_entropy_p": LabelStatistic("cross-entropy of P"),
    "cross_entropy_q": LabelStatistic("cross-entropy of Q"),
    "difference": LabelStatistic("cross-entropy, Q - P"),
    "perplexity_p": LabelStatistic("perplexity of P", "perplexity of P"),
    "perplexity_q": LabelStatistic("perplexity of Q", "perplexity of Q"),
    "perplexity_ratio": LabelStatistic("perplexity, Q / P", "perplexity, Q / P", precisely),
    "perplexity_difference": LabelStatistic("perplexity, Q - P"),
    "delta_prob": LabelStatistic("probability, Q - P", "label's probability, Q - P"),
    "delta_prob_rms": LabelStatistic("probability, RMS", "label's probability, RMS"),
}


def document(
    comparison: Comparison, verdicts: Sequence[Verdict] = (), *, tokens: Tokens | None = None
) -> Document:
    """Return the document of a comparison of predictions.

    `tokens` are the texts of the classes, shown next to the class indexes. If `tokens` is None, no texts are shown.
    """
    blocks: list[Block] = [Findings("Findings", remarks)] if (remarks := infinite(comparison)) else []
    if plots := draw_plots(comparison):
        blocks.append(Gallery("KL(P||Q) in pictures", plots))
    if comparison.worst:
        blocks.append(_worst(comparison, tokens))
    first, *others = numbers(comparison)
    groups = [([name], each) for name, each in comparison.groups.items()]
    blocks += [first, *([group_table("group", groups)] if groups else []), *others]
    blocks += Findings.of_notes(comparison.notes)
    return Document(
        f"{comparison.q_name} against {comparison.p_name}: KL divergence",
        Headline(
            summary(comparison),
            " ".join(filter(None, (place_on_ladder(comparison.divergences[KL_PQ].mean), unseen(comparison)))),
            _sizes(comparison),
            {"P": comparison.p_name, "Q": comparison.q_name},
            tone_of(comparison),
            _figures(comparison),
        ),
        tuple(blocks),
        tuple(verdicts),
        MEANINGS,
        partial(schema.fields, comparison),
        partial(_frame, comparison),
        "kullback compare",
        _brief(comparison, tokens),
        "mean=0.01",
        measured=MEASURED,
        plot=_plot(comparison),
    )


def _plot(comparison: Comparison) -> Plot:
    """Return the plot of the means of the divergences in nats."""
    points = [
        Point.of(comparison.divergences[name], title.replace("||", "‖"))
        for name, title in QUANTITIES.items()
        if MEASURED.units[name] == "nats"
    ]
    label = label_of("mean divergence of a row, nats", points, MEASURED.confidence)
    return Plot("means", "Mean divergences", "", partial(draw_points, points, label))


def _brief(comparison: Comparison, tokens: Tokens | None) -> Brief:
    size = _sizes(comparison, "")
    blocks: list[str | Table] = [brief_numbers(comparison), *brief_remarks(comparison)]
    blocks += warnings_of(comparison.notes)
    if comparison.groups:
        blocks.append(brief_groups(comparison))
    elif rows := [row for row in comparison.worst[:WORST_IN_BRIEF] if row.kl]:
        unit = Unit.of(comparison.divergences[KL_PQ].mean)
        cells = [
            [
                count(row.row),
                f"{kl} {unit.name}",
                f"{_class(p.index, tokens)} ({probability(p.p)})",
                f"{_class(q.index, tokens)} ({probability(q.q)})",
                "" if row.label is None else _class(row.label, tokens),
            ]
            for row, kl in zip(rows, unit.write([row.kl for row in rows]), strict=True)
            for p, q in [top_classes(row)]
        ]
        headings = ["worst row", "KL(P||Q)", "top class of P", "of Q"]
        if comparison.labels is not None:
            headings.append("true class")
        blocks.append(Table("", headings, [row[: len(headings)] for row in cells], dropped_first=(4,)))
    return Brief(size, tuple(blocks))


def _class(index: int, tokens: Tokens | None) -> str:
    return token_of(index, tokens, longest=LONGEST_IN_BRIEF) or str(index)


def brief_numbers(comparison: Comparison, *, at_least: str = "") -> Table:
    """Return a table of the mean KL(P||Q), of how often the top class is the same, and of registered statistics."""
    kl, same = comparison.divergences[KL_PQ], comparison.top1_agreement
    unit = Unit.of(kl.mean)
    value, *ends = unit.write([kl.mean, *(kl.interval or ())])
    return Table(
        "",
        ("", "", ""),
        (
            ("mean KL(P||Q)", f"{at_least}{value} {unit.name}", _brief_interval(kl, ends, f" {unit.name}")),
            ("same top class", percent(same.value), _brief_interval(same, map(percent, same.interval or ()))),
            *(
                (each.title, number(each.value), _brief_interval(each, map(number, each.interval or ())))
                for each in comparison.further.values()
            ),
        ),
    )


def _brief_interval(mean: Value[float], ends: Iterable[str], unit: str = "") -> str:
    if mean.interval is not None:
        return f"95% CI {' to '.join(ends)}{unit}"
    return "no interval" if mean.reason is None else f"no interval: {mean.reason}"


def brief_remarks(comparison: Comparison) -> list[str]:
    """Return a sentence about rows with infinite KL(P||Q), or else about kinds of rows that these data may lack."""
    if rows := comparison.infinite.get(KL_PQ, 0):
        return [f"Q gives probability 0 and P does not in {counted(rows, 'row')}."]
    if not comparison.unseen:
        return []
    share = f"{percent(comparison.unseen)} of all {comparison.independent_units}"
    return [f"Up to {share} may be of unseen kinds; the interval excludes them."]


def warnings_of(notes: Iterable[str]) -> list[str]:
    """Return the remarks of sources that their authors made warnings, as in `kullback.io.RowStream.caveats`."""
    return [note for note in notes if f": {WARNING}" in note]


def brief_groups(comparison: Comparison, candidate: str | None = None) -> Table:
    """Return a table of the groups with the largest mean KL(P||Q), in one unit; `candidate` is named."""
    groups = sorted(comparison.groups.items(), key=lambda item: -item[1].divergences[KL_PQ].mean)
    unit = Unit.of(comparison.divergences[KL_PQ].mean)
    rows: list[list[str]] = []
    for name, group in groups[:GROUPS_IN_BRIEF]:
        kl = group.divergences[KL_PQ]
        value, *ends = unit.write([kl.mean, *(kl.interval or ())])
        cells = [shortened(name, LONGEST_TOKEN), f"{value} {unit.name}", " to ".join(ends) or "n/a"]
        rows.append([*cells, percent(group.top1_agreement.value), count(group.rows)])
    first = ("by group" if candidate else "group") if len(rows) == len(groups) else "farthest groups"
    first += f", {candidate}" if candidate else ""
    headings = (first, "mean KL(P||Q)", "95% CI", "same top", "rows")
    return Table("", headings, rows, dropped_first=(4, 3))


def group_table(heading: str, groups: Sequence[tuple[Sequence[str], Comparison]]) -> Table:
    """Return the table of groups: the first cells and the comparison of each line. `heading` is for these cells."""
    rows: list[list[str]] = []
    for first, group in groups:
        kl, labels, minus = group.divergences[KL_PQ], group.labels, group.against_rest.get(KL_PQ)
        cells = [*first, count(group.rows), number(kl.mean), interval(kl.interval)]
        cells += ["", ""] if minus is None else [number(minus.mean), interval(minus.interval)]
        cells += [percent(group.top1_agreement.value)]
        rows.append([*cells, "" if labels is None else precisely(labels.perplexity_ratio.mean)])
    headings = [*heading.split(", "), "rows", "mean KL(P||Q)", "95% CI", "minus the rest", "95% CI"]
    captions = [
        "KL(P||Q) in nats. The rest are all rows outside of the group, paired by the independent units."
    ]
    without = [
        f"{first[0]} ({kl.reason})"
        for first, group in groups
        if (kl := group.divergences[KL_PQ]).interval is None and kl.reason
    ]
    captions += [f"No interval: {', '.join(dict.fromkeys(without))}."] if without else []
    last = len(headings)
    return Table(
        "By group",
        [*headings, "same top", "PPL, Q / P"],
        rows,
        tuple(captions),
        dropped_first=(last + 1, last, last - 5, last - 1, last - 2),
        is_main=True,
        beside_figures=True,
    )


KL = Meaning(
    "KL(P||Q)",
    "the extra nats per row when Q is used to predict data from P: 0 where they agree, infinite where Q gives "
    "probability 0 and P does not. One nat is 1.4427 bits.",
    "Σ p log(p / q)",
)
JS = Meaning(
    "JS",
    "the Jensen-Shannon divergence: symmetric, at most log 2 = 0.6931.",
    "½ KL(P||M) + ½ KL(Q||M), M = ½ (P + Q)",
)
MEANINGS = (
    KL,
    JS,
    Meaning(
        "TV",
        "total variation: the largest difference between P and Q in the probability of an event.",
        "½ Σ |p − q|",
    ),
    Meaning(
        "Standard error and 95% CI",
        "how far the mean may be from the mean over all data of the same kind, if rows (or clusters, where there are "
        "some) are independent; an end of the interval is infinite where these data do not bound it.",
    ),
)


def numbers(comparison: Comparison) -> list[Table]:
    """Return the tables of divergences, top classes, the true class and registered statistics, and by confidence."""
    labels = comparison.labels
    columns = [_summary_cells(comparison.divergences[key]) for key in QUANTITIES]
    accuracy = "; accuracy is how often the true class is among the k" if labels is not None else ""
    tables = [
        Table(
            "Divergence of a row",
            ["", *QUANTITIES.values()],
            [[title, *(cells[title] for cells in columns)] for title in columns[0]],
            ("In nats; TV is a probability, from 0 to 1.",),
            is_main=True,
        ),
        Table(
            "The k top classes",
            ["k", "same in order", "95% CI, from", "to"]
            + ["accuracy of P", "accuracy of Q"] * (labels is not None),
            _top_k_rows(comparison),
            (
                f"How often P and Q have the same k top classes in the same order{accuracy}.",
                f"Same top class: {_rate(comparison.top1_agreement, ' of rows')}.",
                f"Expected acceptance rate of speculative sampling, 1 - TV: {_rate(comparison.acceptance_rate)}.",
            ),
        ),
    ]
    if labels is not None:
        known = f"{count(labels.labeled)} of {counted(comparison.rows, 'row')}"
        tables += [
            Table(
                "The true class",
                ["", "mean", "std. error", "95% CI, from", "to"],
                label_rows(labels),
                (
                    f"Known in {known}.",
                    "Cross-entropies, the means of -log p and of -log q at the true class, are in nats.",
                    "Perplexities are their exponentials.",
                    f"Correlation of log p and log q at the true class: {number(labels.correlation)}.",
                ),
            ),
            Table(
                "The change of the true class's probability, q - p",
                ["lower tail", "q - p", "upper tail", "q - p"],
                _delta_prob_rows(labels.delta_prob),
                (
                    "Quantiles over rows. Alike tails are noise; a longer lower tail is probability that Q has lost.",
                ),
            ),
        ]
    if comparison.further:
        tables.append(
            Table(
                "Statistics of your own",
                ["", "mean", "std. error", "95% CI, from", "to"],
                [
                    [each.title, number(each.mean), number(each.standard_error, 2), *map(number, each.ends)]
                    for each in comparison.further.values()
                ],
            )
        )
    tables.append(
        Table(
            "By P's confidence, the probability of its top class",
            ["confidence", "rows", "mean KL(P||Q)", "99% quantile", "same top class"],
            [
                [
                    f"{part.low:g} to {part.high:g}",
                    count(part.rows),
                    number(part.kl_mean),
                    number(part.kl_p99),
                    percent(part.top1_agreement),
                ]
                for part in comparison.by_confidence
                if part.rows
            ],
        )
    )
    return [tables[0], *(replace(table, is_open=False) for table in tables[1:])]


def _figures(comparison: Comparison) -> tuple[Figure, ...]:
    """Return the main numbers; the first four are tiles on the page."""
    kl, labels = comparison.divergences[KL_PQ], comparison.labels
    titles = {name: f"mean {title}" for name, title in QUANTITIES.items()}
    unit = Unit.of(kl.mean)
    mean, median, p999, p99, *ends = unit.write([kl.mean, kl.median, kl.p999, kl.p99, *(kl.interval or ())])
    figures = [
        Figure(titles.pop(KL_PQ), mean, unit.name, " to ".join(ends) or "n/a"),
        Figure("median KL(P||Q)", median, unit.name),
        Figure("99.9% KL(P||Q)", p999, unit.name),
        _figure("same top class", comparison.top1_agreement, percent),
        *(_figure(title, comparison.divergences[name], number) for name, title in titles.items()),
        Figure("99% KL(P||Q)", p99, unit.name),
        _figure("acceptance rate", comparison.acceptance_rate, percent),
    ]
    if labels is not None:
        figures += [
            _figure(statistic.figure, getattr(labels, name), statistic.write)
            for name, statistic in LABEL_STATISTICS.items()
            if statistic.figure
        ]
    figures += [_figure(each.title, each, number) for each in comparison.further.values()]
    return tuple(figures)


def _figure(title: str, value: Value[float], write: Callable[[float], str]) -> Figure:
    return Figure(title, write(value.value), interval=interval(value.interval, write))


def _worst(comparison: Comparison, tokens: Tokens | None) -> Gallery:
    mark = " A ✓ marks the true class." if comparison.labels is not None else ""
    table = _worst_table(comparison.worst) if tokens is None else _worst_tokens(comparison.worst, tokens)
    return Gallery(
        "The worst rows",
        [_worst_bars(place, row, tokens) for place, row in enumerate(comparison.worst)],
        (f"For each, the top classes under P and under Q.{mark}",),
        table,
    )


def _worst_bars(place: int, row: WorstRow, tokens: Tokens | None) -> Bars:
    where = f"row {count(row.row)}" + ("" if row.cluster is None else f" of cluster {row.cluster}")
    bars = [
        Bar(
            str(top.index),
            top.p,
            top.q,
            probability(top.p),
            probability(top.q),
            token_of(top.index, tokens),
            "the true class" if top.index == row.label else "",
        )
        for top in row.top
    ]
    word = "" if row.label is None else token_of(row.label, tokens)
    caption = f"The true class is {row.label} {word}" if word else ""
    return Bars(f"worst-{place}", f"{where}: {number(row.kl)} nats", tuple(bars), caption, heading="class")


def _worst_table(rows: Sequence[WorstRow]) -> Table:
    """Return the table of worst rows, without empty columns."""
    choices = [top_classes(row) for row in rows]
    columns = {
        "cluster": [row.cluster or "" for row in rows],
        "row": [count(row.row) for row in rows],
        "KL(P||Q)": [number(row.kl) for row in rows],
        "label": ["" if row.label is None else str(row.label) for row in rows],
        "P's top class": [_change(p) for p, _ in choices],
        "Q's top class": ["the same" if q == p else _change(q) for p, q in choices],
    }
    shown = {heading: cells for heading, cells in columns.items() if any(cells)}
    return Table("The worst rows (class: p -> q)", list(shown), list(zip(*shown.values(), strict=True)))


def _change(top: TopClass) -> str:
    return f"{top.index}: {probability(top.p)} -> {probability(top.q)}"


def _worst_tokens(rows: Sequence[WorstRow], tokens: Tokens) -> Table:
    """Return the table of worst rows: a line for each of the top classes and the label."""
    lines: list[list[str]] = []
    for row in rows:
        place = count(row.row) + ("" if row.cluster is None else f" of {row.cluster}")
        classes = [top.index for top in top_classes(row)] + ([] if row.label is None else [row.label])
        probabilities = {top.index: [probability(top.p), probability(top.q)] for top in row.top}
        first = [place, number(row.kl)]
        for index in dict.fromkeys(classes):
            true = "true" if index == row.label else ""
            token = token_of(index, tokens, longest=LONGEST_TOKEN)
            lines.append([*first, str(index), token, *probabilities.get(index, ["", ""]), true])
            first = ["", ""]
    return Table(
        "The worst rows and their classes", ["row", "KL(P||Q)", "class", "token", "p", "q", ""], lines
    )


def _frame(comparison: Comparison) -> Frame:
    """Return a row for each divergence, of all rows and of each group: the mean with its error and interval, and the
    quantiles over rows.
    """
    rows: list[dict[str, float | None]] = []
    groups = [(None, comparison), *comparison.groups.items()]
    for _, group in groups:
        for summary in group.divergences.values():
            low, high = summary.ends
            first = {"mean": summary.mean, "standard_error": summary.standard_error, "low": low, "high": high}
            rows.append(first | {name: getattr(summary, name) for name in QUANTILES})
    index = list(comparison.divergences)
    return Frame.of_numbers(rows, index * len(groups), [name for name, _ in groups for _ in index])


def _rate(rate: Value[float], of: str = "") -> str:
    """Format a rate with its error and its interval."""
    ends = f", 95% CI {interval(rate.interval, percent)}" if rate.interval else ""
    return f"{percent(rate.value)}{of}, std. error {percent(rate.standard_error)}{ends}"


def _summary_cells(summary: Summary) -> dict[str, str]:
    """Return a column of the table of divergences, as a mapping from titles of rows to cells."""
    low, high = map(number, summary.ends)
    quantiles = {
        f"{title} quantile" if "%" in title else title: number(getattr(summary, name))
        for name, title in QUANTILES.items()
        if name not in ("p25", "p75")
    }
    return {
        "mean": number(summary.mean),
        "standard error": number(summary.standard_error, 2),
        "95% CI, from": low,
        "95% CI, to": high,
        **quantiles,
    }


def label_rows(labels: LabelStatistics) -> list[list[str]]:
    """Return the name, mean, standard error and limits of the interval of each statistic at the true classes."""
    rows: list[list[str]] = []
    for name, (title, _, write) in LABEL_STATISTICS.items():
        mean = getattr(labels, name)
        rows.append([title, write(mean.mean), number(mean.standard_error, 2), *map(write, mean.ends)])
    return rows


def _delta_prob_rows(change: Summary) -> list[list[str]]:
    """Return the quantiles of the change in the label's probability: each row has a lower and an upper quantile."""
    cells = [[title, number(getattr(change, name))] for name, title in QUANTILES.items()]
    middle = len(cells) // 2
    pairs = zip(cells[:middle], reversed(cells), strict=False)
    return [*([*lower, *upper] for lower, upper in pairs), [*cells[middle], "", ""]]


def _top_k_rows(comparison: Comparison) -> list[list[str]]:
    """Return k, the agreement of the ordered k top classes with its interval, and the accuracy of P and of Q."""
    labels, rows = comparison.labels, []
    for k, agreement in enumerate(comparison.top_k_agreement, 1):
        row = [str(k), percent(agreement.value), *map(percent, agreement.ends)]
        if labels is not None:
            row += [percent(of[k - 1].value) for of in (labels.top_k_accuracy_p, labels.top_k_accuracy_q)]
        rows.append(row)
    return rows


def _sizes(comparison: Comparison, each: str = "each a distribution over ") -> str:
    """Return the numbers of rows, clusters and classes as text."""
    clusters = "" if comparison.clusters is None else f" in {counted(comparison.clusters, 'cluster')}"
    classes = counted(comparison.classes, "class", "classes")
    return f"{counted(comparison.rows, 'row')}{clusters}, {each}{classes}"


def token_of(index: int, tokens: Tokens | None, *, longest: int = 24) -> str:
    """Return the text of a class with marks for invisible characters, cut to `longest`; empty without a text."""
    text = tokens[index] if tokens is not None and 0 <= index < len(tokens) else None
    return shortened(visible(text or "", space="␣"), longest)


def top_classes(row: WorstRow) -> tuple[TopClass, TopClass]:
    """Return the top class under P and the top class under Q."""
    return max(row.top, key=lambda top: top.p), max(row.top, key=lambda top: top.q)


def summary(comparison: Comparison) -> str:
    """Return the outcome in one sentence: the mean divergence of a row, and how often the top class is the same."""
    mean = comparison.divergences[KL_PQ]
    same = f"both have the same top class in {percent(comparison.top1_agreement.value)} of rows"
    if mean.maximum == 0:
        return "P and Q are equal in every row: KL(P||Q) is 0."
    if math.isinf(mean.mean):
        where = f"in {count(comparison.infinite.get(KL_PQ, 0))} of {counted(comparison.rows, 'row')}"
        return f"Q gives probability 0 and P does not {where}, so the mean KL(P||Q) is infinite; {same}."
    return f"KL(P||Q) of a row is {with_interval(mean)} on average; {same}."


def with_interval(mean: Value[float], unit: str = "") -> str:
    """Format a mean divergence with its interval, in a suitable unit; `unit` is appended, such as " per token"."""
    size = Unit.of(mean.value)
    value, *ends = size.write([mean.value, *(mean.interval or ())])
    return f"{value} {size.name}{unit}" + (f" (95% CI {' to '.join(ends)})" if ends else "")


def unseen(comparison: Comparison) -> str:
    """Return a sentence about unseen kinds of rows, which the interval leaves out; empty if there are none."""
    if not comparison.unseen:
        return ""
    units, share = comparison.independent_units, percent(comparison.unseen)
    kinds = f"Kinds of {units} that these data lack may be up to {share} of all {units}"
    return f"{kinds}; the interval does not include them."


def tone_of(comparison: Comparison) -> Tone:
    """Return "bad" if some KL(P||Q) is infinite, otherwise "", because only your limits judge finite divergences."""
    return "bad" if comparison.infinite.get(KL_PQ, 0) else ""


def infinite(comparison: Comparison) -> list[Remark]:
    """Return a remark on each divergence that is infinite in some rows, with the reason."""
    reasons = {
        KL_PQ: "Q gives probability 0 to a class of positive probability under P",
        "kl_qp": "P gives probability 0 to a class of positive probability under Q",
    }
    return [
        Remark(
            "warning",
            f"{QUANTITIES[key]} is infinite in {count(rows)} of {counted(comparison.rows, 'row')}: {reason}.",
        )
        for key, reason in reasons.items()
        if (rows := comparison.infinite.get(key, 0))
    ]
