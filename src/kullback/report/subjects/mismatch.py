"""The report on the mismatch of an engine and a trainer, as a `Document`."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from functools import partial

from kullback.common.formats import Unit, count, counted, interval, number, percent
from kullback.mismatch import Mismatch
from kullback.report.document import (
    Block,
    Document,
    Fields,
    Figure,
    Findings,
    Frame,
    Gallery,
    Headline,
    Meaning,
    Measured,
    Plot,
    Table,
)
from kullback.report.plots.mismatch import draw_parts, draw_positions
from kullback.report.plots.points import Point, draw_points, label_of
from kullback.report.subjects.predictions import with_interval
from kullback.results.value import Value
from kullback.results.verdict import Verdict

MOST_ROWS = 40  # the largest number of rows of a table; the JSON has all rows
MEANINGS = (
    Meaning(
        "k1 and k3",
        "two estimates of KL(P||Q) per token, from the tokens that P sampled. The mean of k1 can be negative; k3 "
        "cannot, and varies less where P and Q are close.",
        "k1 = log p - log q, k3 = q/p - 1 - log(q/p)",
    ),
    Meaning(
        "effective share",
        "the effective sample size of the weights q/p, divided by the number of tokens, or of sequences.",
        "(Σw)² / (n Σw²)",
    ),
    Meaning(
        "95% CI",
        "where the mean over all prompts of this kind may be. Sequences of one prompt are dependent, so prompts count "
        "as the independent units.",
    ),
)
MEANS = {
    "k1": "k1, nats per token",
    "k3": "k3, nats per token",
    "naive_k3": "k3 as it is logged, nats per token",
    "exact": "exact KL, nats per token",
    "mean_ratio": "mean of q/p",
    "effective_share": "effective share of tokens",
    "sequence_effective_share": "effective share of sequences",
    "past": "tokens past the ratio",
    "log_mass_sampler": "log kept mass, P, nats",
    "log_mass_trainer": "log kept mass, Q, nats",
}
DIVERGENCES = ("k1", "k3", "naive_k3", "exact")
CONFIDENCE = 0.95


def document(result: Mismatch, verdicts: Sequence[Verdict] = ()) -> Document:
    """Return the document of the result of `policy_mismatch`."""
    shown = _known(result)
    if result.naive_k3 == result.k3:
        shown.pop("naive_k3")
    means = [
        [_title(name, result), number(value.value), number(value.standard_error), interval(value.interval)]
        for name, value in shown.items()
    ]
    size = f"{counted(result.tokens, 'token')}, {counted(result.sequences, 'sequence')}"
    return Document(
        "Mismatch of engine and trainer",
        Headline(
            f"KL of the engine from the trainer is {with_interval(result.k3, ' per token')}.",
            _reason(result),
            f"{size}, {counted(result.prompts, 'prompt')}",
            {"P": "the engine, which sampled the tokens", "Q": "the trainer"},
            figures=(
                _figure("k3", result.k3),
                _figure("k1", result.k1),
                Figure("effective share", percent(result.effective_share.value), "of the tokens"),
                Figure(f"past {result.ratio:g}", percent(result.past.value), "of the tokens"),
            ),
        ),
        (
            _parts(result),
            *([Gallery("Causes", drawn)] if (drawn := draw_parts(result)) else []),
            Table("Means", ("", "value", "standard error", "95% CI"), means, is_main=True),
            *_by(result),
            *Findings.of_notes(result.notes, is_main=True),
        ),
        tuple(verdicts),
        MEANINGS,
        partial(_fields, result),
        partial(_frame, result),
        "kullback mismatch",
        limit="k3=0.001",
        measured=Measured(
            {name: "nats" if "nats" in MEANS[name] else "dimensionless" for name in _known(result)},
            CONFIDENCE,
        ),
        plot=_plot(result),
    )


def _known(result: Mismatch) -> dict[str, Value[float]]:
    """Return the means that the log determines, by name."""
    return {name: value for name in MEANS if (value := getattr(result, name)) is not None}


def _plot(result: Mismatch) -> Plot:
    """Return the plot of the estimates of KL, in nats per token."""
    points = [Point.of(value, name) for name, value in _known(result).items() if name in DIVERGENCES]
    label = label_of("KL(P‖Q) per token, nats", points, CONFIDENCE)
    return Plot("estimates", "KL per token", "", partial(draw_points, points, label))


def _title(name: str, result: Mismatch) -> str:
    return f"tokens past the ratio {result.ratio:g}" if name == "past" else MEANS[name]


def _reason(result: Mismatch) -> str:
    """Return a sentence about the largest cause that the log separates."""
    known = {part.name: part.value.value for part in result.parts if part.value and part.name != "rest"}
    missing = [part.name for part in result.parts if part.value is None and part.name != "rest"]
    largest = max(known, key=lambda name: abs(known[name]), default="")
    share = known[largest] / result.naive_k3.value if largest and result.naive_k3.value else math.nan
    sentences: list[str] = []
    if math.isfinite(share) and share > 0:
        sentences.append(f"The largest separable cause is {largest}, {percent(share)} of what is logged.")
    if missing:
        sentences.append(f"Not separable: {', '.join(missing)}.")
    return " ".join(sentences)


def _figure(title: str, value: Value[float]) -> Figure:
    size = Unit.of(abs(value.value))
    text, *ends = size.write([value.value, *(value.interval or ())])
    return Figure(title, text, f"{size.name} per token", " to ".join(ends))


def _parts(result: Mismatch) -> Table:
    rows = [
        [
            part.name,
            "not separable" if part.value is None else number(part.value.value),
            "" if part.value is None else interval(part.value.interval),
            part.meaning
            if not part.missing
            else f"{' and '.join(part.missing)} {'is' if len(part.missing) == 1 else 'are'} missing",
        ]
        for part in result.parts
    ]
    return Table(
        "Causes of k3 as it is logged",
        ("cause", "nats per token", "95% CI", "what it is"),
        rows,
        ("The causes are taken out in this order, and add up to k3 as it is logged.",),
        is_main=True,
        ends_in_text=True,
    )


def _by(result: Mismatch) -> Iterator[Block]:
    drawn = draw_positions(result)
    if drawn:
        yield Gallery("Along the sequence", drawn)
    for name, buckets in result.by.items():
        rows = [
            [
                bucket.name,
                count(bucket.tokens),
                number(bucket.k1.value),
                number(bucket.k3.value),
                interval(bucket.k3.interval),
                percent(bucket.past.value),
            ]
            for bucket in buckets[:MOST_ROWS]
        ]
        more = len(buckets) - len(rows)
        yield Table(
            f"By {name}",
            (name, "tokens", "k1", "k3", "95% CI of k3", f"past {result.ratio:g}"),
            rows,
            ("k1 and k3 in nats per token.", *([f"{more} more are in the JSON."] if more else [])),
            dropped_first=(2, 5),
        )


def _fields(result: Mismatch) -> Fields:
    """Return the fields of the JSON: the attributes of the result under their own names."""
    kind = {"kind": "KL(P||Q)", "p": "the engine", "q": "the trainer"}
    return {"schema": "kullback.mismatch/1", **kind, **asdict(result)}


def _frame(result: Mismatch) -> Frame:
    shown = _known(result)
    rows = [
        {"value": x.value, "standard_error": x.standard_error, "lower": low, "upper": high}
        for x in shown.values()
        for low, high in [x.ends]
    ]
    return Frame.of_numbers(rows, list(shown))
