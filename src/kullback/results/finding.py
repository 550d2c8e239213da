"""The class `Finding`: a message about a call or about data, with a stable code for scripts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

Level: TypeAlias = Literal["error", "warning", "note"]
LEVELS: tuple[Level, ...] = get_args(Level)  # the most severe first


@dataclass(frozen=True)
class Finding:
    """A problem, or a useful fact, about a call or about data.

    Attributes:
        code: a stable name for this type of finding, such as ``"input-is-logits"``.
        message: one sentence that describes the finding, with numbers and the first affected position.
        level: ``"error"`` if the result is meaningless, ``"warning"`` if the result is misleading, and ``"note"`` if
            there is no problem.
        advice: an action for the user; empty if no action is necessary.
        column: the affected column of a table; None for other findings.

    Example:
        >>> import torch, kullback
        >>> p = torch.tensor([[0.7, 0.2, 0.1]])
        >>> finding = kullback.diagnose(p, p.flip(-1), reduction="sum").findings[0]
        >>> finding.code, finding.level
        ('input-is-probabilities', 'error')
    """

    code: str
    message: str
    level: Level = "note"
    advice: str = ""
    column: str | None = None
