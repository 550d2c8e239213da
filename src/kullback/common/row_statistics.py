"""The statistics of a comparison of predictions, with one `RowStatistic` for each number of a row.

Only this module states the names and bounds of statistics, and which rows count. The code for measured columns,
intervals, notes, reports and gates reads these facts from this module.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from kullback.common.constraints import FLAG, Arguments, Number
from kullback.common.extra_arguments import by_name
from kullback.errors import invalid_value, safe_repr

if TYPE_CHECKING:
    from torch import Tensor

TOP_CLASSES = 5
_Function = TypeVar("_Function", bound=Callable[..., Any])


@dataclass(frozen=True)
class RowStatistic:
    """A number of each row, whose mean over rows is reported.

    Attributes:
        name: the key in results and in JSON, and the name in gates.
        title: the name in reports and notes.
        low: the smallest possible value of a row.
        high: the largest possible value of a row.
        of_labels: whether rows without a label are left out.
        binary: whether every value is 0 or 1.
        examined: whether the dependence of rows is measured on this statistic. Other statistics vary in step with the
            examined statistics.
        is_mean: whether the mean over rows is reported.
        rows: for a registered statistic, the function of (p, q, labels) that returns the values of rows; otherwise
            None.
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
# The built-in statistics, in the order of the columns of a measured row.
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
# Names that gates use for built-in statistics. A registered statistic must not have one of these names.
GATES = {
    "mean", "top1", "acceptance", "ppl_ratio", "ppl_difference", "min", "median", "max", "p1", "p5", "p10", "p90",
    "p95", "p99",
}  # fmt: skip
_ARGUMENTS = Arguments(
    "register_statistic", low=Number(example=0.0), high=Number(example=1.0), of_labels=FLAG
)
# The registered statistics, by name.
FURTHER: dict[str, RowStatistic] = {}


@by_name()
def register_statistic(
    name: str, title: str, *, low: float = -math.inf, high: float = math.inf, of_labels: bool = False
) -> Callable[[_Function], _Function]:
    r"""Register a function as a statistic, whose mean over rows every comparison of predictions computes.

    The mean, with standard error and interval, is in `Comparison.further` under `name`, and in every report. Gates can
    limit the mean: ``--fail-above NAME=LIMIT`` and ``NAME.value=LIMIT``. Comparisons with only some classes, such as
    comparisons with a reference file, do not compute the statistic.

    Arguments:
        name: the name of the statistic, a Python identifier that no other statistic has.
        title: the name of the statistic in reports.
        low: the smallest value that a row can have.
        high: the largest value that a row can have.
        of_labels: whether rows without a label are left out.

    Returns:
        a decorator for a function of (p, q, labels). `p` and `q` are the probabilities, float64 of shape (rows,
        classes). `labels` contains the true classes, int64 of shape (rows,), with -100 for unknown classes; it is None
        without labels. The function returns the values of the rows, shape (rows,). Several threads call the function,
        each with some of the rows.

    Raises:
        ArgumentValueError: `name` is in use, or is not an identifier.

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
        wanted = "an identifier that no other statistic has"
        instead = f"name='my_{name}'" if name.isidentifier() else "name='my_statistic'"
        raise invalid_value("register_statistic", "name", wanted=wanted, got=safe_repr(name), instead=instead)

    def register(function: _Function) -> _Function:
        FURTHER[name] = RowStatistic(name, title, float(low), float(high), of_labels, rows=function)
        return function

    return register


@by_name()
def unregister_statistic(name: str) -> None:
    """Remove a statistic that `register_statistic` added."""
    FURTHER.pop(name, None)
