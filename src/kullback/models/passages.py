"""The passages of a text where two models differ most, with the top classes of each token."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from torch import Tensor

from kullback.io.windows import Windows
from kullback.models.model_results import Passage, ReadToken
from kullback.predictions.checkpoint import decoded_tops
from kullback.predictions.measure import MeasuredRows

LENGTH = 32  # scored tokens in a passage
MOST = 8
BEFORE = 24
SHORT_TEXT = 1024  # rows; of a text with at most this many rows, every passage is kept


def read_tokens(part: MeasuredRows, labels: Tensor) -> list[ReadToken]:
    """Return the tokens of measured rows, which have the first of the labels."""
    return [
        ReadToken(label, kl, *part.at_label(i), part.top_classes(i))
        for i, (kl, label) in enumerate(zip(part.table[:, 0].tolist(), labels.tolist(), strict=False))
    ]


def decoded_passage(record: Any) -> Passage:
    """Return the passage that `asdict` turned into a record."""
    tokens = [ReadToken(**token | {"top": decoded_tops(token["top"])}) for token in record["tokens"]]
    return Passage(**record | {"tokens": tokens})


class Passages:
    """Collects the passages of rows that arrive in order.

    Arguments:
        windows: the windows of the text. If the text is short, every passage is kept.
    """

    def __init__(self, windows: Windows) -> None:
        self._windows = windows
        self.whole_text = windows.rows <= SHORT_TEXT
        self._places = windows.scored.nonzero().squeeze(-1)
        self._window = windows.clusters
        self._kept: list[tuple[float, int, Passage]] = []

    def ends(self, first: int, stop: int) -> list[int]:
        """Return the ends of the passages in rows `first` to `stop`, counted from `first`."""
        window = self._window[first:stop]
        breaks = (window.diff() != 0).nonzero().squeeze(-1) + 1
        ends: list[int] = []
        edges = [0, *breaks.tolist(), stop - first]
        for low, high in pairwise(edges):
            ends += [*range(low + LENGTH, high, LENGTH), high]
        return ends

    def is_wanted(self, kl_mean: float) -> bool:
        """Whether a passage with this mean KL would be kept."""
        return self.whole_text or len(self._kept) < MOST or kl_mean > self._kept[-1][0]

    def passage(self, first: int, tokens: list[ReadToken]) -> Passage:
        """Return the passage of tokens that begins at row `first`."""
        place, window = int(self._places[first]), int(self._window[first])
        start = int(self._windows.offsets[window])
        before = self._windows.tokens[max(start, place - BEFORE) : place].tolist()
        return Passage(window, place - start, before, tokens)

    def add(self, first: int, passage: Passage) -> None:
        """Add a passage that begins at row `first`; a passage that is not wanted is dropped."""
        self._kept.append((passage.kl_mean, first, passage))
        if not self.whole_text:
            self._kept.sort(key=lambda each: (-each[0], each[1]))
            del self._kept[MOST:]

    def passages(self) -> list[Passage]:
        """Return the passages: the whole text in order, or the passages with the largest means in descending order."""
        return [passage for _, _, passage in self._kept]
