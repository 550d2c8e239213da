"""What the reports of language models say: outcome, scoreboard, notes."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

from kullback.predictions import Mean
from kullback.report.predictions.wording import KL_PQ, unseen
from kullback.report.shared.formats import count, counted, number, percent, visible

if TYPE_CHECKING:
    from kullback.models import Candidate, ModelComparison, ModelInfo

__all__ = [
    "HEADINGS",
    "Score",
    "bytes_text",
    "certain",
    "differences",
    "interval_text",
    "noise",
    "notes",
    "outcome",
    "scoreboard",
    "size",
    "token_text",
    "visible",
]

HEADINGS = (
    "model", "mean KL(P||Q)", "95% CI", "PPL", "dPPL", "95% CI", "same top", "RMS dp", "size", "bits/weight",
)  # fmt: skip


@dataclass(frozen=True)
class Score:
    """A line of the scoreboard, as text."""

    name: str
    kl: str
    kl_interval: str
    perplexity: str
    change: str
    change_interval: str
    same_top: str
    delta_p: str
    size: str
    bits: str

    @property
    def cells(self) -> tuple[str, ...]:
        """The cells below `HEADINGS`."""
        return tuple(vars(self).values())


def bytes_text(size: int | None) -> str:
    """Format a size in bytes.

    Example:
        >>> bytes_text(4_920_000_000), bytes_text(740_000), bytes_text(None)
        ('4.92 GB', '740 kB', '')
    """
    if size is None:
        return ""
    for unit, name in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if size >= unit:
            return f"{size / unit:.3g} {name}"
    return f"{size} B"


def scoreboard(found: ModelComparison) -> list[Score]:
    """Return the base and the candidates, the best candidate first."""
    first = found.candidates[0].comparison.labels
    base = [] if first is None else [number(first.perplexity_p.mean)]
    lines = [
        Score(f"{found.base.name} (base)", "", "", "".join(base), "", "", "", "", *_size_and_bits(found.base))
    ]
    for candidate in found.candidates:
        comparison, labels = candidate.comparison, candidate.comparison.labels
        kl = comparison.divergences[KL_PQ]
        perplexity = change = ends = delta = ""
        if labels is not None:
            perplexity, change = number(labels.perplexity_q.mean), number(labels.perplexity_difference.mean)
            ends = interval_text(labels.perplexity_difference)
            delta = percent(labels.delta_prob_rms.mean)
        same = percent(comparison.top1_agreement.value)
        lines.append(
            Score(
                candidate.model.name,
                _at_least(candidate) + number(kl.mean),
                interval_text(kl),
                perplexity,
                change,
                ends,
                same,
                delta,
                *_size_and_bits(candidate.model),
            )
        )
    return lines


def _at_least(candidate: Candidate) -> str:
    """Return the sign before a divergence that is a lower bound."""
    return ">= " if candidate.is_lower_bound else ""


def certain(found: ModelComparison) -> list[str]:
    """Say for each candidate that is known in part what is certain, and what the draws tell of these very tokens."""
    sentences: list[str] = []
    for candidate in found.candidates:
        if candidate.certain is None:
            continue
        low, high = candidate.certain[KL_PQ]
        most = "nothing bounds it from above" if math.isinf(high) else f"at most {number(high)}"
        told = f"{candidate.model.name}: on these tokens KL(P||Q) is certainly at least {number(low)}, {most}"
        if candidate.drawn is not None:
            drawn = candidate.drawn[KL_PQ]
            ends = " to ".join(map(number, drawn.interval))
            told += f"; the draws give {number(drawn.mean)} (95% CI of the drawing {ends})"
        sentences.append(f"{told}.")
    return sentences


def _size_and_bits(info: ModelInfo) -> tuple[str, str]:
    bits = info.bits_per_weight
    return bytes_text(info.file_bytes), "" if bits is None else f"{bits:.2f}"


def interval_text(mean: Mean) -> str:
    """Format an interval; n/a where there is none."""
    return "n/a" if mean.interval is None else " to ".join(map(number, mean.interval))


def outcome(found: ModelComparison) -> str:
    """The outcome in one sentence."""
    best = found.candidates[0]
    kl = best.comparison.divergences[KL_PQ]
    same = percent(best.comparison.top1_agreement.value)
    if len(found.candidates) == 1:
        if kl.maximum == 0 and best.known == "all classes":
            return f"{best.model.name} predicts the same as {found.base.name} at every token."
        return (
            f"{best.model.name} is {_least(best)}{number(kl.mean)} nats per token from {found.base.name}"
            f"{_ends(kl)}; both choose the same token in {same} of positions.{unseen(best.comparison)}"
        )
    told = (
        f"{_least(best)}{number(kl.mean)} nats per token{_ends(kl)}, the same top token in {same} of positions."
        f"{unseen(best.comparison)}"
    )
    if best.is_open_above or not _is_clear(found.differences[0]):
        return (
            f"Which of {len(found.candidates)} candidates is closest to {found.base.name} cannot be told; the first is "
            f"{best.model.name}: {told}"
        )
    return f"Of {len(found.candidates)} candidates {best.model.name} is closest to {found.base.name}: {told}"


def _is_clear(difference: Mean) -> bool:
    """Whether the second of two neighbors is certainly farther from the base than the first."""
    return difference.interval is not None and difference.interval[0] > 0


def _least(candidate: Candidate) -> str:
    return "at least " if candidate.is_lower_bound else ""


def _ends(mean: Mean) -> str:
    return "" if mean.interval is None else f" (95% CI {interval_text(mean)})"


def size(found: ModelComparison) -> str:
    """Say how much text was read."""
    rows = found.candidates[0].comparison.rows
    scored = {
        "second-half": "the second half of each",
        "all": "all tokens",
        "assistant": "the assistant's replies",
    }
    return (
        f"{counted(rows, 'token')} scored in {counted(found.windows, 'window')} of at most "
        f"{count(found.context)} tokens "
        f"({scored[found.score]}), {count(found.base.classes)} classes"
    )


def differences(found: ModelComparison) -> list[str]:
    """Say for each two neighbors on the scoreboard how much the mean KL differs, and whether that is certain."""
    sentences: list[str] = []
    for (a, b), mean in zip(pairwise(found.candidates), found.differences, strict=True):
        if a.is_lower_bound:
            sentences.append(
                f"Whether {b.model.name} or {a.model.name} is closer cannot be told: of {a.model.name} only a lower "
                "bound is known."
            )
            continue
        least = _least(b)
        told = f"{b.model.name} has {least}{number(mean.mean)} nats per token more than {a.model.name}"
        if mean.interval is None:
            told += "; its error cannot be told"
        else:
            told += f" (95% CI {interval_text(mean)}): " + (
                "the order is clear" if _is_clear(mean) else "which of the two is closer cannot be told"
            )
        sentences.append(told + ".")
    return sentences


def noise(found: ModelComparison) -> list[str]:
    """Say how large the noise floor is, and which candidates it hides."""
    if found.noise_floor is None:
        return []
    floor = found.noise_floor.comparison.divergences[KL_PQ]
    told = f"Rounding noise of its dtype ({found.base.dtype}) moves the base by {number(floor.mean)} nats per token"
    hidden = [
        each.model.name
        for each in found.candidates
        if not each.is_lower_bound and each.comparison.divergences[KL_PQ].mean <= 2 * floor.mean
    ]
    if hidden:
        return [f"{told}: no measurement can tell {', '.join(hidden)} from it."]
    return [f"{told}."]


def notes(found: ModelComparison) -> list[str]:
    """Return the notes of the whole and of every candidate, each once."""
    every = [note for candidate in found.candidates for note in candidate.comparison.notes]
    return list(dict.fromkeys([*found.notes, *every]))


def token_text(found: ModelComparison, index: int) -> str:
    """Return the text of a class, or its number."""
    words = found.tokens
    return words[index] if words is not None and index < len(words) else f"[{index}]"
