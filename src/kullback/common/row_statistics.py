"""The statistics of a comparison of predictions: a record for each number of a row, from which all else follows.

The name, the bounds and the rows that count are stated here alone. The measured columns, the intervals, the notes,
every report and the gates read them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from kullback.common.constraints import FLAG, Arguments, Number
from kullback.errors import invalid_value, safe_repr

if TYPE_CHECKING:
    from torch import Tensor

TOP_CLASSES = 5
_Function = TypeVar("_Function", bound=Callable[..., Any])


@dataclass(frozen=True)
class RowStatistic:
    """A number of each row, whose mean over rows is reported.

    Attributes:
        name: the key in results, in JSON and of gates.
        title: what reports and notes call it.
        low: the least value of a row.
        high: the largest value of a row.
        of_labels: whether only rows with a label count.
        binary: whether every value is 0 or 1.
        examined: whether its order shows that rows depend on each other; other numbers vary with these.
        is_mean: whether the mean over rows is reported.
        rows: for a statistic of your own: the function of (p, q, labels) that returns the values of some rows.
    """

    name: str
    title: str
    low: float = -math.inf
    high: float = math.inf
    of_labels: bool = False
    binary: bool = False
    examined: bool = False
    is_mean: bool = True
    rows: Callable[[Tensor, Tensor, Tensor | None], Tensor] | None = None


def _top_k(of: str, title: str, *, of_labels: bool = False) -> tuple[RowStatistic, ...]:
    return tuple(
        RowStatistic(
            f"top{k}_{of}", title, 0.0, 1.0, of_labels, binary=True, examined=k == 1 and not of_labels
        )
        for k in range(1, TOP_CLASSES + 1)
    )


_DIVERGENCES = (
    RowStatistic("kl_pq", "KL(P||Q)", low=0.0, examined=True),
    RowStatistic("kl_qp", "KL(Q||P)", low=0.0),
    RowStatistic("js", "JS", 0.0, math.log(2)),
    RowStatistic("tv", "TV", 0.0, 1.0, examined=True),
)
# In the order of the columns of a measured row.
BUILT_IN = (
    *_DIVERGENCES,
    RowStatistic("confidence", "P's confidence", 0.0, 1.0, is_mean=False),
    *_top_k("agreement", "the top-k agreement"),
    RowStatistic("labeled", "whether a row has a label", 0.0, 1.0, of_labels=True, is_mean=False),
    RowStatistic("cross_entropy_p", "P's cross-entropy", low=0.0, of_labels=True, examined=True),
    RowStatistic("cross_entropy_q", "Q's cross-entropy", low=0.0, of_labels=True),
    RowStatistic("difference", "their difference", of_labels=True, examined=True),
    RowStatistic("delta_prob", "the change in probability", -1.0, 1.0, of_labels=True, examined=True),
    RowStatistic("delta_prob_squared", "its mean square", 0.0, 1.0, of_labels=True),
    *_top_k("accuracy_p", "the top-k accuracy", of_labels=True),
    *_top_k("accuracy_q", "the top-k accuracy", of_labels=True),
)
# The names of gates that stand for other statistics, so that a statistic of the user cannot have them.
GATES = {
    "mean", "top1", "acceptance", "ppl_ratio", "ppl_difference", "min", "median", "max", "p1", "p5", "p10", "p90",
    "p95", "p99",
}  # fmt: skip
_ARGUMENTS = Arguments(
    "register_statistic",
    low=Number(example=0.0),
    high=Number(example=1.0),
    of_labels=FLAG,
)
# The statistics of the user, by their names.
FURTHER: dict[str, RowStatistic] = {}


def register_statistic(
    name: str, title: str, *, low: float = -math.inf, high: float = math.inf, of_labels: bool = False
) -> Callable[[_Function], _Function]:
    r"""Make a function a statistic of every comparison of predictions: its mean over rows, with error and interval.

    The mean stands in `Comparison.further` under its name, in every report, and is a gate: ``--fail-above NAME=LIMIT``
    and ``NAME.value=LIMIT``. Comparisons that know only some classes, as of a reference file, leave it out.

    Arguments:
        name: its name: a Python identifier that no other number has.
        title: what reports call it.
        low: the least value that a row can have.
        high: the largest value that a row can have.
        of_labels: whether only rows with a label count.

    Returns:
        a decorator of a function of (p, q, labels): the probabilities under P and Q, float64 of shape (rows, classes),
        and the true classes, int64 of shape (rows,), -100 for none, or None without labels. It returns the values of
        the rows, of shape (rows,). It is called in several threads, with some rows at a time.

    Raises:
        ArgumentValueError: the name is taken or no identifier.

    Example:
        >>> import torch
        >>> from kullback import Probs, compare_predictions
        >>> from kullback.predictions import register_statistic, unregister_statistic
        >>> @register_statistic("hellinger", "squared Hellinger distance", low=0, high=1)
        ... def hellinger(p, q, labels):
        ...     return 1 - (p * q).sqrt().sum(-1)
        >>> p, q = torch.tensor([[0.36, 0.64]] * 20), torch.tensor([[0.64, 0.36]] * 20)
        >>> round(compare_predictions(Probs(p), Probs(q)).further["hellinger"].value, 4)
        0.04
        >>> unregister_statistic("hellinger")
    """
    _ARGUMENTS.check(low=low, high=high, of_labels=of_labels)
    if not name.isidentifier() or name in {*FURTHER, *GATES, *(each.name for each in BUILT_IN)}:
        raise invalid_value(
            "register_statistic",
            "name",
            wanted="an identifier that no other statistic has",
            got=safe_repr(name),
            instead=f"name='my_{name}'" if name.isidentifier() else "name='my_statistic'",
        )

    def register(function: _Function) -> _Function:
        FURTHER[name] = RowStatistic(name, title, float(low), float(high), of_labels, rows=function)
        return function

    return register


def unregister_statistic(name: str) -> None:
    """Remove a statistic that `register_statistic` added."""
    FURTHER.pop(name, None)
