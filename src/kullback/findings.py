"""A finding: something that a number does not say, with a code that scripts can rely on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

__all__ = ["Finding", "Level"]

Level: TypeAlias = Literal["error", "warning", "note"]


@dataclass(frozen=True)
class Finding:
    """Something that is wrong, or worth knowing, about a call or about data.

    Attributes:
        code: a stable name for this sort of finding, such as ``"input-is-logits"``.
        message: what was found, in a sentence, with numbers and the first place.
        level: ``"error"``: there is no meaningful result; ``"warning"``: the result is not what it seems to be;
            ``"note"``: nothing is wrong.
        advice: what to do about it; empty where there is nothing to do.
        column: the column of a table that it is about; None for everything else.

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
