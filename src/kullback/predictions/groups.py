"""Groups of rows. The statistics of a comparison are also computed in each group."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from kullback.errors import invalid_value, quoted

# More groups are taken for clusters. Each group has statistics of its own, of some megabytes.
MOST_GROUPS = 32
CLUSTERS = "cluster=... (--cluster) for documents whose rows may depend on each other"


class Groups(NamedTuple):
    """The group of each row, as numbers from 0, and the names of the groups."""

    numbers: Tensor
    names: list[str]

    @classmethod
    def of(cls, call: str, argument: str, values: np.ndarray[Any, Any], instead: str = CLUSTERS) -> Groups:
        """Return groups of equal values in the order of the values; `instead` is the remedy for too many.

        Raises:
            ArgumentValueError: there are too many different values.
        """
        unique, numbers = np.unique(values, return_inverse=True)
        names = [str(value) for value in unique[: MOST_GROUPS + 1]]
        require_few(call, argument, len(unique), names, instead)
        return cls(torch.from_numpy(numbers.astype("int64")), names)

    @classmethod
    def named(cls, numbers: Tensor, names: Sequence[str]) -> Groups:
        """Return the groups that have rows, in the order of `names`; a number is a place in `names`."""
        unique, numbers = numbers.unique(return_inverse=True)
        present: list[int] = unique.tolist()
        return cls(numbers, [names[number] for number in present])

    def at(self, rows: Tensor | slice) -> Groups:
        """Return the groups of some rows."""
        return self._replace(numbers=self.numbers[rows])

    def masks(self) -> dict[str, Tensor]:
        """Return which rows are in each group, by name."""
        return {name: self.numbers == number for number, name in enumerate(self.names)}


def require_few(call: str, argument: str, count: int, names: Sequence[str], instead: str) -> None:
    """Refuse more groups than `MOST_GROUPS`; `names` are the first of `count` names, `instead` is the remedy."""
    if count > MOST_GROUPS:
        raise invalid_value(
            call,
            argument,
            wanted=f"at most {MOST_GROUPS} groups",
            got=f"{count:,}, such as {quoted(names[0])} and {quoted(names[1])}",
            instead=instead,
        )
