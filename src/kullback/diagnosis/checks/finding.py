"""What a check finds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from kullback.diagnosis.scan import Spots

__all__ = ["Finding", "Level", "at"]

Level: TypeAlias = Literal["error", "warning", "note"]


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong with a call, or worth knowing about it.

    Attributes:
        level: ``"error"``: the call raises, or returns no divergence; ``"warning"``: it returns something other than
            the mean divergence of the rows, or digits are lost; ``"note"``: nothing is wrong.
        code: a stable name for this sort of finding, such as ``"input-is-logits"``.
        message: what was found, with numbers and the first place.
        advice: what to do about it.
    """

    level: Level
    code: str
    message: str
    advice: str


def at(spots: Spots) -> str:
    """Say where the first of some entries is."""
    return f"the first at index {spots.first}"
