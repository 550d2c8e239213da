"""Windows of tokens, and the tokens on which a language model is scored."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from kullback.common.extra_arguments import by_name
from kullback.common.short_repr import ShortRepr


@by_name()
@dataclass(frozen=True, eq=False, repr=False)
class Windows(ShortRepr):
    """Windows of tokens that a causal language model reads one by one, and the tokens on which the model is scored.

    Each scored token has one row of predictions, which is the distribution of this token given the earlier tokens of
    the window. The rows are in the order of the tokens.

    Attributes:
        tokens: the token ids of all windows, one after the other, int64 of shape (tokens,).
        offsets: the index in `tokens` at which each window starts, then the number of tokens: int64 of shape
            ``(windows + 1,)``.
        scored: whether a token is scored, bool of shape (tokens,). The first token of a window is never scored.

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
        """The scored tokens, which are the true classes of the rows, int64 of shape (rows,)."""
        return self.tokens[self.scored]

    @property
    def clusters(self) -> Tensor:
        """The number of each row's window, int64 of shape (rows,)."""
        window = torch.repeat_interleave(torch.arange(len(self), device="cpu"), self.offsets.diff())
        return window[self.scored]

    def window(self, index: int) -> tuple[Tensor, Tensor]:
        """Return the tokens of a window, and a mask of the scored tokens."""
        span = slice(int(self.offsets[index]), int(self.offsets[index + 1]))
        return self.tokens[span], self.scored[span]

    def in_order(self, order: Tensor) -> Windows:
        """Return the windows of the given numbers, in this order."""
        lengths = self.offsets.diff()[order]
        offsets = torch.nn.functional.pad(lengths.cumsum(0), (1, 0))
        shifts = torch.repeat_interleave(self.offsets[:-1][order] - offsets[:-1], lengths)
        places = torch.arange(len(shifts), device="cpu") + shifts
        return Windows(self.tokens[places], offsets, self.scored[places])

    def fault(self, classes: int) -> tuple[str, str] | None:
        """Return the expected and the actual values of the first faulty tensor; None if no tensor is faulty."""
        tokens, offsets, scored = self.tokens, self.offsets, self.scored
        if int(offsets[0]) != 0 or int(offsets[-1]) != len(tokens) or bool((offsets.diff() < 1).any()):
            wanted = f"offsets that rise from 0 to {len(tokens)}, the number of tokens"
            return wanted, _first(offsets, offsets.diff() < 1)
        firsts = scored[offsets[:-1]]
        if bool(firsts.any()):
            got = f"window {int(firsts.nonzero()[0])}"
            return "scored tokens with a token before them in their window", got
        wrong = (tokens < 0) | (scored & (tokens >= classes))
        if bool(wrong.any()):
            return f"tokens of 0 or more, and below {classes} where scored", _first(tokens, wrong)
        return None


def _first(values: Tensor, wrong: Tensor) -> str:
    where = int(wrong.nonzero()[0]) if bool(wrong.any()) else 0
    return f"{int(values[where])} at index {where}"
