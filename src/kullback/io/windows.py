"""Windows of tokens, and which of their tokens a language model is scored on."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from kullback.common.short_repr import ShortRepr


@dataclass(frozen=True, eq=False, repr=False)
class Windows(ShortRepr):
    """Windows of tokens that a causal language model reads one by one, and the tokens it is scored on.

    Each scored token is one row of predictions: the distribution over the vocabulary given the tokens before it in its
    window. The rows are in the order of the tokens.

    Attributes:
        tokens: the token ids of all windows, one after the other, int64 of shape (tokens,).
        offsets: where each window starts in `tokens`, and their number at the end, int64 of shape (windows + 1,).
        scored: whether a token is scored, bool of shape (tokens,); never the first of a window.

    Example:
        >>> import torch
        >>> from kullback.io import Windows
        >>> scored = torch.tensor([False, True, True, False, True])
        >>> windows = Windows(torch.tensor([0, 4, 2, 0, 3]), torch.tensor([0, 3, 5]), scored)
        >>> len(windows), windows.rows, windows.labels, windows.clusters
        (2, 3, tensor([4, 2, 3]), tensor([0, 0, 1]))
    """

    tokens: Tensor
    offsets: Tensor
    scored: Tensor

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def rows(self) -> int:
        """The number of scored tokens."""
        return int(self.scored.sum())

    @property
    def labels(self) -> Tensor:
        """The scored tokens: the true class of each row, int64 of shape (rows,)."""
        return self.tokens[self.scored]

    @property
    def clusters(self) -> Tensor:
        """The window of each row, int64 of shape (rows,)."""
        window = torch.repeat_interleave(torch.arange(len(self), device="cpu"), self.offsets.diff())
        return window[self.scored]

    def window(self, index: int) -> tuple[Tensor, Tensor]:
        """Return the tokens of a window and which of them are scored."""
        span = slice(int(self.offsets[index]), int(self.offsets[index + 1]))
        return self.tokens[span], self.scored[span]
