"""The results of a comparison of language models, as frozen dataclasses."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from kullback.common.display import Shown
from kullback.common.short_repr import ShortRepr
from kullback.errors import quoted
from kullback.io.windows import Windows
from kullback.models.language_model import ModelInfo
from kullback.predictions.drawn_means import DrawnMean
from kullback.predictions.prediction_results import Comparison, TopClass
from kullback.results.value import Value


@dataclass(frozen=True, repr=False)
class ReadToken(ShortRepr):
    """A scored token of a passage.

    Attributes:
        index: its class.
        kl: KL(P || Q) of the distributions over it.
        p: its probability under the base.
        q: its probability under the candidate.
        top: the top classes under P, then the further top classes under Q.
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
        first: the place of the first token in its window.
        before: the tokens before it, the nearest last, at most 24.
        tokens: the scored tokens.
    """

    window: int
    first: int
    before: list[int]
    tokens: list[ReadToken]

    @property
    def kl_mean(self) -> float:
        """The mean KL(P || Q) of its tokens."""
        return sum(token.kl for token in self.tokens) / len(self.tokens)


@dataclass(frozen=True, repr=False)
class Candidate(ShortRepr):
    """One candidate compared with the base.

    Attributes:
        model: its name and origin.
        comparison: base (P) and candidate (Q), row by row.
        passages: the passages of largest mean KL(P || Q), the largest first; for a short text, all passages in order.
        shared_classes: how many classes it shares with the base, or None if the vocabularies are the same.
        known: the known part of both sides: ``"all classes"``; a ``"reference"`` for one of them, so that divergences
            are estimated; or the ``"top classes"``, as of two references, so that the divergences of `comparison` are
            lower bounds.
        certain: for each divergence, the bounds of its mean over these tokens; None if it is known.
        drawn: for a reference, each divergence's mean over exactly these tokens, with the error of the sampling; or
            None.
    """

    model: ModelInfo
    comparison: Comparison
    passages: list[Passage]
    shared_classes: int | None
    known: Literal["all classes", "reference", "top classes"] = "all classes"
    certain: dict[str, tuple[float, float]] | None = None
    drawn: dict[str, DrawnMean] | None = None

    @property
    def is_lower_bound(self) -> bool:
        """Whether its divergences are lower bounds."""
        return self.known == "top classes"

    @property
    def is_open_above(self) -> bool:
        """Whether KL(P || Q) of these tokens has no upper bound, neither from the known classes nor from the draws."""
        if self.drawn is not None:
            return self.drawn["kl_pq"].interval[1] == math.inf
        return self.is_lower_bound


@dataclass(frozen=True, repr=False)
class ModelComparison(Shown):
    """The result of `compare_models`.

    ``print`` shows it as text, a notebook as a table; `to_html`, `to_json`, `to_dict`
    and `to_pandas` write it.

    Attributes:
        base: the base's name and origin.
        candidates: the candidates, with the smallest mean KL(base || candidate) first.
        differences: for each candidate but the last, the mean KL of the next one minus its own, paired by rows. Where
            one of the two has no upper end, the difference has none on that side; between lower bounds neither end.
        noise_floor: the base against itself with rounding noise of its dtype in every layer, or None.
        text: the windows that were read, in the base's tokens.
        context: the most tokens in a window.
        score: which tokens are scored: ``"second-half"``, ``"all"`` or ``"assistant"``.
        tokens: the text of every class of the base, or None if it is unknown.
        whole_text: whether the passages are the whole text.
        notes: remarks on the comparison as a whole, as sentences.
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

    def __hash__(self) -> int:
        # Equal ones have equal hashes; lists have none.
        return hash((self.base.name, tuple(each.model.name for each in self.candidates), self.context))

    @property
    def windows(self) -> int:
        """The number of windows."""
        return len(self.text)

    def __getitem__(self, name: str) -> Candidate:
        """Return a candidate by its name."""
        for candidate in self.candidates:
            if candidate.model.name == name:
                return candidate
        raise KeyError(name)

    def __repr__(self) -> str:
        means = ", ".join(
            f"{quoted(each.model.name)}: {each.comparison.divergences['kl_pq'].mean:.4g}"
            for each in self.candidates
        )
        return f"ModelComparison(base={quoted(self.base.name)}, mean kl_pq={{{means}}})"
