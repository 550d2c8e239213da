"""The results of a comparison of language models, as frozen dataclasses."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from kullback.common.display import Shown
from kullback.common.extra_arguments import by_name
from kullback.common.short_repr import ShortRepr
from kullback.errors import quoted
from kullback.io.windows import Windows
from kullback.models.language_model import ModelInfo
from kullback.predictions.prediction_results import Comparison, TopClass
from kullback.predictions.reference_rows import DrawnMean
from kullback.results.value import Value


@dataclass(frozen=True, repr=False)
class ReadToken(ShortRepr):
    """A scored token of a passage.

    Attributes:
        index: the class of the token.
        kl: KL(P || Q) at this token.
        p: the probability of the token under the base.
        q: the probability of the token under the candidate.
        top: the top classes under P, then the top classes under Q that are not top classes under P.
    """

    index: int
    kl: float
    p: float
    q: float
    top: list[TopClass]


@dataclass(frozen=True, repr=False)
class Passage(ShortRepr):
    """Consecutive scored tokens of a window.

    Attributes:
        window: the number of the window.
        first: the index in the window of the first token.
        before: at most 24 tokens before the first token, in the order of the text.
        tokens: the scored tokens.
    """

    window: int
    first: int
    before: list[int]
    tokens: list[ReadToken]

    @property
    def kl_mean(self) -> float:
        """The mean KL(P || Q) of the scored tokens."""
        return sum(token.kl for token in self.tokens) / len(self.tokens)


@dataclass(frozen=True, repr=False)
class Candidate(ShortRepr):
    """One candidate compared with the base.

    Attributes:
        model: the candidate's name and origin.
        comparison: the comparison of the base (P) with the candidate (Q), row by row.
        passages: the passages with the largest mean KL(P || Q), in descending order; for a short text, all passages in
            order.
        shared_classes: the number of classes that the candidate shares with the base; None if the vocabularies are the
            same.
        known: the known part of both sides. ``"all classes"`` if all are known. ``"reference"`` if one side is a
            reference, so that divergences are estimated. ``"top classes"`` in other cases, such as two references; the
            divergences in `comparison` are then lower bounds.
        certain: for each divergence, certain bounds of the mean over these tokens; None if all classes are known.
        drawn: for each divergence, the mean over exactly these tokens with the error of the sampling; None unless one
            side is a reference.
        certain_in_groups: `certain` of each group, by name.
        drawn_in_groups: `drawn` of each group, by name.
        weights_sha256: the SHA-256 of the weight files, in the order of their names. It is computed for a folder, a
            ``.gguf`` file or a name on the hub if a card is repeated or its reference is written; otherwise None.
    """

    model: ModelInfo
    comparison: Comparison
    passages: list[Passage]
    shared_classes: int | None
    known: Literal["all classes", "reference", "top classes"] = "all classes"
    certain: dict[str, tuple[float, float]] | None = None
    drawn: dict[str, DrawnMean] | None = None
    certain_in_groups: dict[str, dict[str, tuple[float, float]]] = field(default_factory=dict)
    drawn_in_groups: dict[str, dict[str, DrawnMean]] = field(default_factory=dict)
    weights_sha256: str | None = None

    @property
    def is_lower_bound(self) -> bool:
        """Whether the divergences in `comparison` are lower bounds."""
        return self.known == "top classes"

    @property
    def is_open_above(self) -> bool:
        """Whether neither the known classes nor the draws bound the mean KL(P || Q) of these tokens from above."""
        if self.drawn is not None:
            return self.drawn["kl_pq"].interval[1] == math.inf
        return self.is_lower_bound

    def in_group(self, name: str) -> Candidate:
        """Return the comparison of a group of tokens, `Comparison.groups`, as a candidate without passages."""
        certain, drawn = self.certain_in_groups.get(name), self.drawn_in_groups.get(name)
        comparison = self.comparison.groups[name]
        return replace(
            self,
            comparison=comparison,
            passages=[],
            certain=certain,
            drawn=drawn,
            certain_in_groups={},
            drawn_in_groups={},
        )


@dataclass(frozen=True)
class SureCandidate:
    """How far a candidate was read until the goal of `Run.until_sure` was reached.

    Attributes:
        units: the number of windows or documents that were read.
        outcome: ``"below"`` or ``"above"`` a limit, ``"ordered"``, ``"narrow"``, or ``"undecided"``.
        cap: the upper end of KL(P || Q) assumes that no unread window or document has a mean above this, in nats. It is
            None without this assumption: everything was read, or there is no upper end.
        above: the largest share of windows or documents of the text that may be above the cap. None without a cap.
    """

    units: int
    outcome: Literal["below", "above", "ordered", "narrow", "undecided"]
    cap: float | None
    above: float | None


@dataclass(frozen=True)
class UntilSure:
    """How far a run with `Run.until_sure` read.

    Attributes:
        goal: the goal.
        confidence: the probability that all decisions are right, at all looks together.
        unit: ``"window"`` or ``"document"``, which are read in random order.
        units: the number of windows or documents of the whole text.
        candidates: the results of the candidates, by name.
    """

    goal: str
    confidence: float
    unit: str
    units: int
    candidates: dict[str, SureCandidate]

    @property
    def read(self) -> int:
        """The number of windows or documents that were read for some candidate."""
        return max(each.units for each in self.candidates.values())

    @property
    def is_decided(self) -> bool:
        """Whether the goal was reached for every candidate."""
        return all(each.outcome != "undecided" for each in self.candidates.values())

    def __hash__(self) -> int:
        return hash((self.goal, self.units, *self.candidates.values()))


@dataclass(frozen=True)
class Recorded:
    """The reference file that a comparison wrote of its base, and the arguments of the comparison, for a card.

    Attributes:
        path: the path of the reference file.
        sides: the path or address of the base and of each candidate, in the order of the result; None for an object.
        heads: for each side, the folder of the head if the side is a folder of hidden states, else None.
        text: the path of the text; None if the text was not a file.
        seed: the seed of the intervals; None if a generator had been used before.
        settings: the settings that are not the default, by their names in `compare_models`, `Cut`, `Loading`, `Run`.
        is_command: whether the models and the text have paths, so that the command line can make the same comparison.
    """

    path: Path
    sides: tuple[str | None, ...]
    heads: tuple[str | None, ...]
    text: str | None
    seed: int | None
    settings: Mapping[str, str | float]
    is_command: bool

    def __hash__(self) -> int:
        return hash((self.path, self.sides, self.text))


@dataclass(frozen=True, repr=False)
class ModelComparison(Shown):
    """The result of `compare_models`.

    ``print`` shows the comparison as text, and a notebook shows a table. `to_html`, `to_json`, `to_dict` and
    `to_pandas` convert the comparison, `plot` draws it, and `to_card` writes a folder to publish.

    Attributes:
        base: the base's name and origin.
        candidates: the candidates, in ascending order of the mean KL(base || candidate).
        differences: for each candidate but the last, the mean KL of the next candidate minus the mean KL of this
            candidate, paired by rows. If one of both means has no upper bound, the difference is open on that side. If
            both means have no upper bound, the difference has no interval.
        differences_by_group: `differences` over the tokens of each group, by name; empty without groups.
        noise_floor: the comparison of the base with the base plus rounding noise of its dtype in every layer; None
            without a noise floor.
        text: the windows that were read, in the base's tokens.
        context: the largest number of tokens in a window.
        score: which tokens are scored: ``"second-half"``, ``"all"`` or ``"assistant"``.
        tokens: the text of every class of the base; None if these texts are unknown.
        whole_text: whether the passages of the candidates contain the whole text.
        notes: remarks on the comparison as a whole, as sentences.
        until_sure: how far the run read until the goal of `Run.until_sure` was reached; None if there was no goal. With
            a goal, the windows of `text` are in the order of reading.
        repeats: the sentences of `notes` that compare a candidate with the base's card. Candidates whose interval does
            not overlap the card's are first.
        recorded: the reference file that was written of the base, and the arguments; None without `record`.
    """

    base: ModelInfo
    candidates: list[Candidate]
    differences: list[Value[float]]
    noise_floor: Candidate | None
    text: Windows
    context: int
    score: str
    tokens: list[str] | None
    whole_text: bool
    notes: list[str]
    until_sure: UntilSure | None = None
    recorded: Recorded | None = None
    differences_by_group: dict[str, list[Value[float]]] = field(default_factory=dict)
    repeats: list[str] = field(default_factory=list[str])

    def __hash__(self) -> int:
        # Equal objects have equal hashes. The lists are left out, because a list has no hash.
        return hash((self.base.name, tuple(each.model.name for each in self.candidates), self.context))

    @property
    def windows(self) -> int:
        """The number of windows."""
        return len(self.text)

    def __getitem__(self, name: str) -> Candidate:
        """Return the candidate with a name."""
        for candidate in self.candidates:
            if candidate.model.name == name:
                return candidate
        raise KeyError(name)

    @by_name("result.to_card('folder')")
    def to_card(self, folder: str | os.PathLike[str]) -> None:
        """Write a folder to publish, so others can repeat the comparison without the base and without the text.

        The folder has ``README.md`` (the numbers, how they were measured, and commands), ``card.json``, a badge for
        shields.io, ``report.html``, ``report.json``, and the reference of the base, ``reference.klref``. The reference
        contains the tokens of the text. `compare_models` takes the folder as the base.

        Arguments:
            folder: a new or empty folder, or the folder of an earlier card, whose files are replaced.

        Raises:
            ArgumentValueError: the comparison has no reference, because it was made without `record`.
            FileError: the folder has other files, or cannot be written.
            OptionalDependencyError: jinja2 or matplotlib is not installed.

        Example:
            >>> comparison = compare_models("llama-3-8b", "q4.gguf", text, record="a.klref")  # doctest: +SKIP
            >>> comparison.to_card("card")  # doctest: +SKIP
            >>> compare_models("card", "q4.gguf")  # doctest: +SKIP
        """
        self._report("card").write(self, folder)

    def __repr__(self) -> str:
        means = ", ".join(
            f"{quoted(each.model.name)}: {each.comparison.divergences['kl_pq'].mean:.4g}"
            for each in self.candidates
        )
        return f"ModelComparison(base={quoted(self.base.name)}, mean kl_pq={{{means}}})"
