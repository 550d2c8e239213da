"""The document of a comparison of language models."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import fields, is_dataclass, replace
from functools import partial
from itertools import pairwise
from typing import Any, cast

from kullback.common.formats import (
    Unit,
    bit_count,
    byte_count,
    count,
    counted,
    interval,
    number,
    percent,
    probability,
    shortened,
    significant,
    token_text,
    visible,
)
from kullback.models import Candidate, ModelComparison, ModelInfo, Passage, ReadToken
from kullback.models.model_results import SureCandidate, UntilSure
from kullback.report.document import (
    Block,
    Brief,
    Document,
    Findings,
    Frame,
    Gallery,
    Headline,
    Meaning,
    Measured,
    Passage as ShownPassage,
    Passages,
    Plot,
    Section,
    Table,
    Token,
)
from kullback.report.plots.ladder import place_on_ladder
from kullback.report.plots.models import draw_plots, name_of
from kullback.report.plots.points import Point, draw_points, label_of
from kullback.report.schemas import models as schema
from kullback.report.subjects.predictions import (
    KL,
    KL_PQ,
    LONGEST_TOKEN,
    MEASURED,
    WORST_IN_BRIEF,
    brief_groups,
    brief_numbers,
    brief_remarks,
    group_table,
    infinite,
    numbers,
    tone_of,
    top_classes,
    unseen,
    warnings_of,
    with_interval,
)
from kullback.results.value import Value
from kullback.results.verdict import Verdict

WORST = 5  # the largest number of rows in the table of a candidate's worst tokens
DROPPED_FIRST = (9, 8, 7, 5, 4, 2, 3, 6)
MEANINGS = (
    KL,
    Meaning(
        "JS and TV",
        "the Jensen-Shannon divergence, at most log 2, and total variation: 1 - TV is the share of tokens that "
        "speculative sampling would accept.",
    ),
    Meaning(
        "Standard error and 95% CI",
        "how far the mean may be from the mean over all text of this kind, if its windows are independent; an end of "
        "the interval is infinite where this text does not bound it.",
    ),
)
AT_EVERY_LOOK = Meaning(
    "95% CI",
    "holds at every look of the run, for the mean over the whole of this text, without an assumption on how its values "
    "are distributed.",
)
HEADINGS = (
    "model", "mean KL(P||Q)", "95% CI", "PPL", "ΔPPL", "95% CI", "same top", "RMS Δp", "size", "bits/weight",
)  # fmt: skip
_OUTCOMES = {
    "below": "below the limit",
    "above": "above the limit",
    "ordered": "its place is clear",
    "narrow": "its interval is narrow enough",
    "undecided": "undecided",
}


def document(result: ModelComparison, verdicts: Sequence[Verdict] = ()) -> Document:
    """Return the document of the result of `compare_models`."""
    blocks: list[Block] = [_scoreboard(result), *_groups(result)]
    if plots := draw_plots(result):
        blocks.append(Gallery("KL(P||Q) in pictures", plots))
    scale = max(map(_scale, result.candidates))
    blocks += [_section(result, place, candidate, scale) for place, candidate in enumerate(result.candidates)]
    blocks += Findings.of_notes(_notes(result))
    page = Document(
        f"{result.candidates[0].model.name} against {result.base.name}: KL divergence of language models",
        Headline(
            _outcome(result), _reason(result), _size(result), tone=tone_of(result.candidates[0].comparison)
        ),
        tuple(blocks),
        tuple(verdicts),
        MEANINGS if result.until_sure is None else (*MEANINGS[:2], AT_EVERY_LOOK),
        partial(schema.fields, result),
        partial(_frame, result),
        "kullback compare",
        _brief(result),
        "mean=0.01",
        measured=_measured(result),
        plot=_plot(result),
    )
    if result.until_sure is None:
        return page
    return _with_level(page, f"{significant(100 * result.until_sure.confidence, 10)}% CI")


def _with_level(part: Any, level: str) -> Any:
    """Return a part of a report with another level than 95 % of all intervals, except the interval of the sampling."""
    if isinstance(part, str):
        return re.sub("95% CI(?! of the sampling)", level, part)
    if isinstance(part, tuple | list):
        return type(part)(_with_level(each, level) for each in cast("list[Any]", part))
    if is_dataclass(part) and not isinstance(part, type):
        return replace(
            part, **{each.name: _with_level(getattr(part, each.name), level) for each in fields(part)}
        )
    return part


def _measured(result: ModelComparison) -> Measured:
    return (
        MEASURED if result.until_sure is None else replace(MEASURED, confidence=result.until_sure.confidence)
    )


def _plot(result: ModelComparison) -> Plot:
    """Return the plot of the mean divergence of each candidate, the closest first."""
    points = [
        Point.of(each.comparison.divergences[KL_PQ], f"{'≥ ' * each.is_lower_bound}{name_of(each, result)}")
        for each in result.candidates
    ]
    label = label_of("mean KL(P‖Q) of a token, nats", points, _measured(result).confidence)
    return Plot("means", "Mean divergences", "", partial(draw_points, points, label))


def _brief(result: ModelComparison) -> Brief:
    best = result.candidates[0]
    tokens = f"{counted(best.comparison.rows, 'token')} in {counted(result.windows, 'window')}"
    if len(result.candidates) == 1:
        size = f"{best.model.name} against {result.base.name}: {tokens}"
        blocks: list[str | Table] = [brief_numbers(best.comparison, at_least=">= " * best.is_lower_bound)]
    else:
        size = f"{counted(len(result.candidates), 'candidate')} against {result.base.name}: {tokens}"
        blocks = [_brief_scoreboard(result)]
    warnings = warnings_of(_notes(result))
    blocks += [each for each in result.repeats if each not in warnings][:1]
    blocks += brief_remarks(best.comparison)
    blocks += warnings
    blocks += until_sure(result)
    if hidden := _hidden(result):
        blocks.append(f"Not above rounding noise: {', '.join(hidden)}")
    if best.comparison.groups:
        blocks.append(brief_groups(best.comparison, best.model.name if len(result.candidates) > 1 else None))
    elif (worst := _worst(result, best, several=False)) is not None:
        unit = Unit.of(best.comparison.divergences[KL_PQ].mean)
        kl = unit.write([row.kl for row in best.comparison.worst[:WORST_IN_BRIEF]])
        rows = [
            [text, f"{value} {unit.name}", *tops]
            for (text, _, *tops, _), value in zip(worst.rows, kl, strict=False)
        ]
        title = "text [token] of the first" if len(result.candidates) > 1 else "text [token]"
        blocks.append(Table("", (title, *worst.headings[1:-1]), rows))
    return Brief(size, tuple(blocks))


def _brief_scoreboard(result: ModelComparison) -> Table:
    """Return a table of the closest candidates, with all divergences in one unit."""
    candidates = result.candidates[:WORST_IN_BRIEF]
    divergences = [each.comparison.divergences[KL_PQ] for each in candidates]
    unit = Unit.of(next((kl.mean for kl in divergences if kl.mean), 0.0))
    means = unit.write([kl.mean for kl in divergences])
    ends = unit.write([end for kl in divergences for end in kl.ends])
    rows = [
        [
            each.model.name,
            ">= " * each.is_lower_bound + f"{mean} {unit.name}",
            "n/a" if kl.interval is None else f"{low} to {high}",
            percent(each.comparison.top1_agreement.value),
            *_size_and_bits(each.model)[:1],
        ]
        for each, kl, mean, low, high in zip(
            candidates, divergences, means, ends[::2], ends[1::2], strict=True
        )
    ]
    more = len(result.candidates) - len(candidates)
    clear = _is_first_clear(result)
    heading = ("closest first" if clear else "first two unclear") + f", {more} more" * bool(more)
    return Table("", (heading, "mean KL(P||Q)", "95% CI", "same top", "size"), rows, dropped_first=(4,))


def _scale(candidate: Candidate) -> float:
    """Return the divergence of the full color: the 99 % quantile, or else the largest finite divergence of a token."""
    p99 = candidate.comparison.divergences[KL_PQ].p99
    tokens = [token.kl for passage in candidate.passages for token in passage.tokens if token.kl < math.inf]
    return p99 if 0 < p99 < math.inf else max(tokens, default=0.0)


def _section(result: ModelComparison, place: int, candidate: Candidate, scale: float) -> Section:
    """Return the blocks of one candidate: the text, colored by token up to `scale`, and the numbers."""
    several = len(result.candidates) > 1
    remarks = infinite(candidate.comparison)
    blocks: list[Block] = [Findings("Infinite divergences", remarks)] if remarks else []
    blocks.append(
        Passages(
            "The text, worst passages first" if result.whole_text else "The passages where it differs most",
            number(scale),
            [
                _passage(result, passage, scale)
                for passage in sorted(candidate.passages, key=lambda each: -each.kl_mean)
            ],
            place == 0,
            _worst(result, candidate, several=several),
        )
    )
    blocks.append(Section("The numbers", tuple(numbers(candidate.comparison)), is_open=not several))
    return Section(candidate.model.name, tuple(blocks))


def _passage(result: ModelComparison, passage: Passage, scale: float) -> ShownPassage:
    return ShownPassage(
        f"window {count(passage.window)}, from token {count(passage.first)}: {number(passage.kl_mean)} nats per token",
        "".join(visible(token_text(result.tokens, index)) for index in passage.before),
        tuple(_token(result, token, scale) for token in passage.tokens),
    )


def _token(result: ModelComparison, token: ReadToken, scale: float) -> Token:
    top = (
        (
            visible(token_text(result.tokens, each.index)) + " ✓" * (each.index == token.index),
            probability(each.p),
            probability(each.q),
        )
        for each in token.top
    )
    return Token(
        visible(token_text(result.tokens, token.index)),
        min(1.0, math.sqrt(token.kl / scale)) if scale else 0.0,
        f"{number(token.kl)} nats, probability {probability(token.p)} under P, {probability(token.q)} under Q",
        tuple(top),
    )


def _worst(result: ModelComparison, candidate: Candidate, *, several: bool) -> Table | None:
    """Return a table of the tokens at which a candidate differs most, with the text before each token."""
    if not candidate.comparison.worst:
        return None
    windows = result.text
    places, of_row = windows.scored.nonzero().squeeze(-1), windows.clusters
    lines: list[list[str]] = []
    for row in candidate.comparison.worst[:WORST]:
        window, place = int(of_row[row.row]), int(places[row.row])
        start = max(int(windows.offsets[window]), place - 6)
        before = "".join(token_text(result.tokens, index) for index in windows.tokens[start:place].tolist())
        token = visible(token_text(result.tokens, int(windows.tokens[place])))
        tops = (visible(token_text(result.tokens, top.index)) for top in top_classes(row))
        text = f"…{visible(before)[-24:]}[{shortened(token, LONGEST_TOKEN)}]"
        lines.append([text, number(row.kl), *(shortened(top, LONGEST_TOKEN) for top in tops), count(window)])
    title = f"{candidate.model.name}: where it differs most" if several else "Where they differ most"
    return Table(
        title, ["text [token]", "KL(P||Q)", "P's top", "Q's top", "window"], lines, dropped_first=(4,)
    )


def _frame(result: ModelComparison) -> Frame:
    """Return a row for each candidate, and for each of its groups, with the scoreboard's numbers; unknown numbers are
    NaN.
    """
    rows: list[dict[str, float | None]] = []
    every = [
        (candidate, name, comparison)
        for candidate in result.candidates
        for name, comparison in [(None, candidate.comparison), *candidate.comparison.groups.items()]
    ]
    for candidate, _, comparison in every:
        labels = comparison.labels
        kl = comparison.divergences[KL_PQ]
        low, high = kl.ends
        rows.append(
            {
                "kl": kl.mean,
                "kl_low": low,
                "kl_high": high,
                "kl_reverse": comparison.divergences["kl_qp"].mean,
                "perplexity": math.nan if labels is None else math.exp(labels.cross_entropy_q.mean),
                "perplexity_base": math.nan if labels is None else math.exp(labels.cross_entropy_p.mean),
                "same_top": comparison.top1_agreement.value,
                "delta_prob_rms": math.nan if labels is None else labels.delta_prob_rms.mean,
                "file_bytes": candidate.model.file_bytes,
                "bits_per_weight": candidate.model.bits_per_weight,
            }
        )
    index = [candidate.model.name for candidate, _, _ in every]
    return Frame.of_numbers(rows, index, [name for _, name, _ in every])


def _scoreboard(result: ModelComparison) -> Table:
    """Return the table of the base and the candidates, the best candidate first."""
    labels_of = [each.comparison.labels for each in result.candidates]
    bases = {"" if labels is None else number(labels.perplexity_p.mean) for labels in labels_of}
    # The base's perplexity depends on the candidate if candidates share other classes with it, or were read less far.
    base = bases.pop() if len(bases) == 1 else ""
    rows = [[f"{result.base.name} (base)", "", "", base, "", "", "", "", *_size_and_bits(result.base)]]
    for candidate in result.candidates:
        comparison, labels = candidate.comparison, candidate.comparison.labels
        kl = comparison.divergences[KL_PQ]
        perplexity = change = ends = delta = ""
        if labels is not None:
            perplexity, change = number(labels.perplexity_q.mean), number(labels.perplexity_difference.mean)
            ends = interval(labels.perplexity_difference.interval)
            delta = percent(labels.delta_prob_rms.mean)
        same = percent(comparison.top1_agreement.value)
        at_least = ">= " if candidate.is_lower_bound else ""
        cells = [candidate.model.name, at_least + number(kl.mean), interval(kl.interval)]
        rows.append([*cells, perplexity, change, ends, same, delta, *_size_and_bits(candidate.model)])
    return Table(
        "Models",
        HEADINGS,
        rows,
        (
            "KL(P||Q) in nats per token, P being the base.",
            "PPL is the perplexity at the text's own tokens, ΔPPL the candidate's minus the base's.",
            "Δp is the change in the probability of the true token.",
            *until_sure(result),
            *_differences(result.candidates, result.differences, _are_apart(result)),
            *_certain(result),
            *_noise(result),
        ),
        dropped_first=DROPPED_FIRST,
        is_main=True,
    )


def _groups(result: ModelComparison) -> list[Table]:
    """Return the table of the groups of every candidate, with the order of the candidates in each group."""
    names = list(result.candidates[0].comparison.groups)
    several = len(result.candidates) > 1
    lines = [
        ([name, each.model.name][: 1 + several], each.comparison.groups[name])
        for name in names
        for each in result.candidates
        if name in each.comparison.groups
    ]
    orders = [
        f"Group {name}: {sentence}"
        for name, means in result.differences_by_group.items()
        for sentence in _differences(
            [each.in_group(name) for each in result.candidates], means, [False] * len(means)
        )
    ]
    if not lines:
        return []
    table = group_table("group, model" if several else "group", lines)
    bounds = ("Divergences are lower bounds.",) if result.candidates[0].is_lower_bound else ()
    return [replace(table, caption=(*table.caption, *bounds, *orders))]


def _certain(result: ModelComparison) -> list[str]:
    """Return a sentence for each partly known candidate, with the bounds and the estimate from the draws."""
    sentences: list[str] = []
    for candidate in result.candidates:
        if candidate.certain is None:
            continue
        low, high = candidate.certain[KL_PQ]
        most = "without an upper bound" if math.isinf(high) else f"at most {number(high)}"
        sentence = (
            f"{candidate.model.name}: on these tokens KL(P||Q) is certainly at least {number(low)}, {most}"
        )
        if candidate.drawn is not None:
            drawn = candidate.drawn[KL_PQ]
            sentence += (
                f"; the draws give {number(drawn.mean)} (95% CI of the sampling {interval(drawn.interval)})"
            )
        sentences.append(f"{sentence}.")
    return sentences


def _size_and_bits(info: ModelInfo) -> tuple[str, str]:
    bits = info.bits_per_weight
    return byte_count(info.file_bytes), "" if bits is None else bit_count(bits)


def _outcome(result: ModelComparison) -> str:
    """Return the outcome in one sentence."""
    best = result.candidates[0]
    kl = best.comparison.divergences[KL_PQ]
    share, distance = best.comparison.top1_agreement.value, _least(best) + with_interval(kl, " per token")
    same = "an unknown share" if math.isnan(share) else percent(share)
    if len(result.candidates) == 1:
        if kl.maximum == 0 and best.known == "all classes":
            return f"{best.model.name} predicts the same as {result.base.name} at every token."
        return (
            f"{best.model.name} is {distance} from {result.base.name}; both choose the same token in {same} of "
            "positions."
        )
    sentence = f"{distance}, the same top token in {same} of positions."
    if not _is_first_clear(result):
        return (
            f"It is unclear which of {len(result.candidates)} candidates is closest to {result.base.name}; the first "
            f"is {best.model.name}: {sentence}"
        )
    return f"{best.model.name} is the closest of {len(result.candidates)} candidates to {result.base.name}: {sentence}"


def _is_first_clear(result: ModelComparison) -> bool:
    """Return whether the second candidate is significantly farther from the base than the first."""
    if result.candidates[0].is_open_above:
        return False
    return _is_clear(result.differences[0]) or _are_apart(result)[0]


def _are_apart(result: ModelComparison) -> list[bool]:
    """Return whether the intervals of each two adjacent candidates are disjoint, and hold together.

    The intervals of a run until a limit or a width hold together, with the intervals of all candidates. For an order,
    the pairs share the error rate instead. Other runs have an interval of the difference alone, which is about the same
    rows.
    """
    if result.until_sure is None or result.until_sure.goal == "order":
        return [False] * len(result.differences)
    ends = [each.comparison.divergences[KL_PQ].ends for each in result.candidates]
    return [nearer[1] < farther[0] for nearer, farther in pairwise(ends)]


def _is_clear(difference: Value[float]) -> bool:
    """Return whether the second of two adjacent candidates is significantly farther from the base than the first."""
    return difference.interval is not None and difference.interval[0] > 0


def _least(candidate: Candidate) -> str:
    return "at least " if candidate.is_lower_bound else ""


def _size(result: ModelComparison) -> str:
    """Return a description of the amount of text that was read."""
    rows = result.candidates[0].comparison.rows
    scored = {
        "second-half": "the second half of each",
        "all": "all tokens",
        "assistant": "the assistant's replies",
    }
    return (
        f"{counted(rows, 'token')} scored in {counted(result.windows, 'window')} of at most "
        f"{count(result.context)} tokens "
        f"({scored[result.score]}), {count(result.base.classes)} classes"
    )


def _differences(
    candidates: Sequence[Candidate], means: Sequence[Value[float]], apart: Sequence[bool]
) -> list[str]:
    """Return a sentence on the mean KL of each two adjacent candidates: the difference, and whether it is clear.

    `apart` is True for two candidates if their own intervals show the order.
    """
    sentences: list[str] = []
    for (a, b), mean, is_apart in zip(pairwise(candidates), means, apart, strict=True):
        if a.is_lower_bound:
            sentences.append(
                f"It is unclear whether {b.model.name} or {a.model.name} is closer: only a lower bound of "
                f"{a.model.name} is known."
            )
            continue
        least = _least(b)
        sentence = f"{b.model.name} has {least}{number(mean.mean)} nats per token more than {a.model.name}"
        if mean.interval is None:
            sentence += "; there is no interval"
        else:
            sentence += f" (95% CI {interval(mean.interval)}): "
            sentence += "the order is clear" if is_apart or _is_clear(mean) else "the order is unclear"
            sentence += ", because their intervals are disjoint" * (is_apart and not _is_clear(mean))
        sentences.append(sentence + ".")
    return sentences


def _noise(result: ModelComparison) -> list[str]:
    """Return a sentence with the size of the noise floor, and the candidates that are not above it."""
    if result.noise_floor is None:
        return []
    floor = number(result.noise_floor.comparison.divergences[KL_PQ].mean)
    sentence = f"Rounding noise of its dtype ({result.base.dtype}) moves the base by {floor} nats per token"
    if (rows := result.noise_floor.comparison.rows) < result.candidates[0].comparison.rows:
        sentence += f" in the first {counted(rows, 'token')} scored (--noise-floor takes all)"
    if hidden := _hidden(result):
        return [f"{sentence}: {', '.join(hidden)} cannot be distinguished from it."]
    return [f"{sentence}."]


def _hidden(result: ModelComparison) -> list[str]:
    """Return the names of candidates whose mean KL is at most twice the mean KL of rounding noise."""
    if result.noise_floor is None:
        return []
    floor = result.noise_floor.comparison.divergences[KL_PQ]
    return [
        each.model.name
        for each in result.candidates
        if not each.is_lower_bound and each.comparison.divergences[KL_PQ].mean <= 2 * floor.mean
    ]


def _reason(result: ModelComparison) -> str:
    """Return a comparison of the best candidate's mean KL with the ladder and, if it is known, the noise floor."""
    best = result.candidates[0]
    kl = best.comparison.divergences[KL_PQ].mean
    floor = 0.0 if result.noise_floor is None else result.noise_floor.comparison.divergences[KL_PQ].mean
    reason = place_on_ladder(kl)
    if reason and 0 < floor < math.inf:
        times = f"{_least(best)}{number(kl / floor, 2)} times"
        reason += f" It is {times} the rounding noise of {result.base.dtype} ({Unit.of(floor).text(floor)})."
    return " ".join(filter(None, (reason, unseen(best.comparison))))


def _notes(result: ModelComparison) -> list[str]:
    """Return the notes of the comparison and of every candidate, without duplicates.

    A note that does not hold for every candidate begins with the names of its candidates.
    """
    names_of: dict[str, list[str]] = {}
    for candidate in result.candidates:
        for note in dict.fromkeys(candidate.comparison.notes):
            names_of.setdefault(note, []).append(candidate.model.name)
    every = (
        note if len(names) == len(result.candidates) else f"{', '.join(names)}: {note.removeprefix('Q: ')}"
        for note, names in names_of.items()
    )
    return list(dict.fromkeys([*result.notes, *every]))


def until_sure(result: ModelComparison) -> list[str]:
    """Return the sentences on a run with a goal; an empty list for other runs."""
    run = result.until_sure
    if run is None:
        return []
    units = f"{run.unit}s"
    spared = run.units - run.read
    decided = "decided" if run.is_decided else "not decided"
    first = (
        f"{run.goal}: {decided} after {count(run.read)} of {counted(run.units, run.unit)} in random order, at "
        f"{significant(100 * run.confidence, 10)} % confidence over all looks."
    )
    if spared:
        first += " Windows are numbered in this order."
    if run.is_decided and spared:
        were = "was" if spared == 1 else "were"
        first += f" {counted(spared, run.unit)} ({min(99, round(100 * spared / run.units))} %) {were} spared."
    elif spared:
        first += f" A run with more {units} (--windows) may decide it; with --resume, it continues this one."
    infinite = {
        each.model.name for each in result.candidates if math.isinf(each.comparison.divergences["kl_pq"].mean)
    }
    return [
        first,
        *(_sure_candidate(run, name, each, name in infinite) for name, each in run.candidates.items()),
    ]


def _sure_candidate(run: UntilSure, name: str, candidate: SureCandidate, is_infinite: bool) -> str:
    sentence = f"{name}: {_OUTCOMES[candidate.outcome]} after {counted(candidate.units, run.unit)}."
    if candidate.outcome == "above" or is_infinite:
        return sentence  # the lower end assumes nothing
    if candidate.cap is not None and candidate.above is not None:
        sentence += (
            f" The upper end of KL(P||Q) assumes that no unread {run.unit} has a mean above {number(candidate.cap)}. "
            f"No {run.unit} that was read has such a mean; at most {significant(100 * candidate.above, 2)} % of all "
            f"{run.unit}s may have one."
        )
    elif candidate.units < run.units:
        sentence += " There is no upper end of KL(P||Q) yet."
    return sentence
