"""Assertions about distributions for the tests of your code."""

from __future__ import annotations

import copy
import math
import os
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np
import torch
from torch import Tensor

from kullback.common.constraints import CONFIDENCE, Arguments, Number
from kullback.common.formats import significant
from kullback.common.shared_constraints import RUNS
from kullback.comparison import compare, subject_of_call
from kullback.dispatch import estimate
from kullback.errors import invalid_value, quoted
from kullback.representations import Counts
from kullback.results.estimate import Estimate
from kullback.results.verdict import rows_to_decide
from kullback.samples import Samples

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from kullback.models import ModelComparison
    from kullback.predictions import Comparison
    from kullback.results.value import Interval
    from kullback.tables import TableComparison

__all__ = ["assert_close_distributions"]

_ARGUMENTS = Arguments(
    "assert_close_distributions",
    below=Number(
        above=0,
        below=math.inf,
        example=0.01,
        instead="below=0.01, the largest divergence in nats that you accept",
    ),
    runs=RUNS,
    confidence=CONFIDENCE,
)

# NumPy draws from the hypergeometric distribution only for fewer draws.
_MOST_HYPERGEOMETRIC = 10**9


def assert_close_distributions(p: Any, q: Any, *, below: float, runs: int = 1, **options: Any) -> None:
    r"""Assert that the divergence of P from Q is below a limit, and print the verdict.

    .. math:: KL(P \| Q) = E_P[\log p - \log q] < \text{below}

    The verdict is "below" if the upper bound of the divergence is below the limit. For draws and counts, the upper
    bound is the upper limit of the confidence interval. Otherwise, it is the value plus the bound on its numerical
    error. The verdict is "not below" if the lower bound is at least the limit, and otherwise "cannot tell".
    The assertion passes only if the verdict is "below", so a small sample rarely passes by chance. A rule without an
    error, such as one from `register_kl`, counts as exact.

    For two tables, KL(P || Q) of every column has to be below the limit. For language models, with ``texts``, the mean
    KL(P || Q) of every candidate has to be below it.

    Arguments:
        p: P, as in `estimate`: a distribution, `Logits`, `Probs` or another wrapper, `Counts`, or `Samples`. A table, a
            path, or with ``texts`` a model is taken as in `compare`.
        q: Q, as P. Every element of a batch has to be below the limit.
        below: the limit, in nats unless you pass ``base``.
        runs: how often the assertion will run. The error rate of the interval, 5 %, is divided by `runs`. So the
            verdicts "below" and "not below" of all runs are right with a probability of 95 %. Draws and counts are
            divided into k parts, and the interval contains the intervals of all parts. All parts are wrong on one side
            with a probability of 0.025^k. Tables are compared at the confidence 1 - 0.05 / `runs`. Language
            models are read in random order, as with ``run=Run(until_sure=...)``.
        options: options of `estimate`, such as ``kind="js:0.5"``, ``base=2``, ``confidence=0.99`` or ``generator``; or
            options of `compare`, such as ``columns`` or ``texts``.

    Raises:
        AssertionError: the verdict is "not below" or "cannot tell".
        ArgumentValueError: `below` is not a finite positive number, or `runs` is above 1 for files of predictions.
        ArgumentTypeError, ArgumentValueError, NoRuleError: as `estimate` or `compare`.

    Gradient:
        none.

    Example:
        >>> from torch.distributions import Laplace, Normal
        >>> from kullback.testing import assert_close_distributions
        >>> assert_close_distributions(Normal(0.0, 1.0), Laplace(0.0, 1.0), below=0.1)
        below 0.1: KL = 0.07209 nats (off by ... at most), closed form
        >>> assert_close_distributions(Normal(0.0, 1.0), Laplace(0.0, 1.0), below=0.05)
        Traceback (most recent call last):
            ...
        AssertionError: not below 0.05: KL = 0.07209 nats (off by ... at most), closed form

    References:
        Testing Statistical Hypotheses of Equivalence and Noninferiority (Wellek, 2010)
    """
    __tracebackhide__ = True  # pytest shows the line of the test
    limit, runs = _ARGUMENTS.check(below=below, runs=runs).values()
    if "confidence" in options:
        options |= _ARGUMENTS.check(confidence=options["confidence"])
    if "texts" in options or any(
        isinstance(x, str | os.PathLike) or hasattr(type(x), "columns") for x in (p, q)
    ):
        _assert_compared(p, q, limit, runs, options)
        return
    result = estimate(p, q, **options)
    if runs > 1 and result.interval is not None:
        result = _for_runs(result, p, q, runs, options)
    lower, upper = _bounds(result)
    is_above, is_below = lower >= limit, upper < limit
    if is_below.numel() > 0 and bool(is_below.all()):
        print(f"below {limit:g}: {result}")  # noqa: T201 - the verdict, which pytest shows with -s
        return
    outcome = f"not below {limit:g}" if bool(is_above.any()) else f"cannot tell whether below {limit:g}"
    # The end of the message has the notes, so the line does not count them.
    sentences = [f"{outcome}: {replace(result, notes=())}", *_elements(result, is_above, is_below)]
    if not bool(is_above.any()):
        sentences.append(_advice(result, upper, limit))
    raise AssertionError(". ".join([*sentences, *(note.removesuffix(".") for note in result.notes)]))


def _for_runs(result: Estimate, p: Any, q: Any, runs: int, options: dict[str, Any]) -> Estimate:
    """Return an estimate with an interval whose error rate is divided by the number of runs.

    Quantiles far in the tails of an estimator are not known. So independent parts of the draws are estimated at the
    usual level. That no part's interval reaches the divergence is as unlikely as the product of its probabilities.
    """
    confidence = options.get("confidence", 0.95)
    error = (1 - confidence) / 2
    parts = math.ceil(math.log(error / runs) / math.log(error))
    generator = np.random.default_rng(0)
    sides = zip(*(_parts_of_draws(side, parts, generator) for side in (p, q)), strict=True)
    intervals = [estimate(*side, **options).interval for side in sides]
    known = [each for each in intervals if each is not None]
    interval = None
    if len(known) == parts:
        lower, upper = (torch.stack(ends) for ends in zip(*known, strict=True))
        interval = lower.amin(0), upper.amax(0)
    return replace(result, interval=interval, confidence=1 - (1 - confidence) / runs)


def _parts_of_draws(side: Any, parts: int, generator: np.random.Generator) -> list[Any]:
    """Return independent parts of draws or counts, of about equal size; a known distribution is every part."""
    if isinstance(side, Samples):
        # Neighbors stay together, so the parts still show the dependence between neighbors. Clusters stay whole.
        places = torch.arange(len(side), device=side.tensor.device) if side.cluster is None else side.cluster
        of_draw = places * parts // (int(places.max()) + 1)
        return [_selected(side, of_draw == part) for part in range(parts)]
    if isinstance(side, Counts):
        counts = side.tensor.detach().movedim(side.dim, -1)
        rows = counts.reshape(-1, counts.shape[-1]).cpu().numpy().astype(np.int64)
        divided: list[Counts] = []
        for left in range(parts, 0, -1):
            drawn = np.stack([_drawn(row, left, generator) for row in rows])
            rows = rows - drawn
            part = copy.copy(side)
            tensor = torch.from_numpy(drawn).reshape(counts.shape).to(counts).movedim(-1, side.dim)
            # `in_dtype` would read the source, which has the counts before the division.
            vars(part).update(tensor=tensor, _source=None)
            divided.append(part)
        return divided
    return [side] * parts


def _drawn(counts: NDArray[np.int64], parts: int, generator: np.random.Generator) -> NDArray[np.int64]:
    """Return the counts of one of several random parts of draws, whose sizes are equal, or nearly so for many draws."""
    size = int(counts.sum())
    if size < _MOST_HYPERGEOMETRIC:
        return generator.multivariate_hypergeometric(counts, size // parts, method="marginals")
    return generator.binomial(counts, 1 / parts)


def _selected(side: Samples, mask: Tensor) -> Samples:
    part = copy.copy(side)
    part.tensor = side.tensor[mask]
    part.weights, part.cluster = (None if x is None else x[mask.cpu()] for x in (side.weights, side.cluster))
    return part


class _Part(NamedTuple):
    """KL(P || Q) of a column or a candidate; NaN if it is unknown, and None without an interval."""

    name: str
    value: float
    interval: Interval | None


def _assert_compared(p: Any, q: Any, limit: float, runs: int, options: dict[str, Any]) -> None:
    """Compare two tables, predictions or models, and raise an `AssertionError` unless every part is below the limit."""
    __tracebackhide__ = True
    subject = subject_of_call(p, q, options)
    if subject == "models" and runs > 1:
        from kullback.models import Run

        run = options.get("run", Run())
        options = options | {"run": replace(run, until_sure=run.until_sure or f"mean={limit!r}", runs=runs)}
    elif subject == "tables":
        confidence = options.get("confidence", 0.95)
        options = options | {"confidence": 1 - (1 - confidence) / runs}
    elif runs > 1:
        raise invalid_value(
            "assert_close_distributions",
            "runs",
            wanted=f"1 for {subject}, whose intervals have a fixed error rate",
            got=str(runs),
            instead={"runs": 1},
        )
    result = compare(p, q, **options)
    parts, rows = list(_parts(result, limit)), _rows(result)
    sure = getattr(result, "until_sure", None)
    level = options.get("confidence", 0.95) if sure is None else sure.confidence
    words = partial(_words, level=f"{significant(100 * level, 10)} %")
    above = [each for each in parts if each.interval is not None and each.interval[0] >= limit]
    unclear = [each for each in parts if each.interval is None or not each.interval[1] < limit]
    if parts and not unclear:
        print(f"below {limit:g}: " + "; ".join(map(words, parts)))  # noqa: T201 - the verdict
        return
    outcome = f"not below {limit:g}" if above else f"cannot tell whether below {limit:g}"
    shown = "; ".join(map(words, above or unclear)) or "nothing was compared"
    needed = [
        count
        for each in unclear
        if each.interval is not None and (count := rows_to_decide(each.value, each.interval, limit, rows))
    ]
    more = f". About {max(needed):,} rows would decide" if needed and not above else ""
    raise AssertionError(f"{outcome}: {shown}{more}")


def _words(part: _Part, level: str) -> str:
    ends = "no interval"
    if part.interval is not None:
        ends = f"{level} {part.interval[0]:.4g} to {part.interval[1]:.4g}"
    return f"KL of {part.name} = {part.value:.4g} nats ({ends})"


def _parts(result: TableComparison | Comparison | ModelComparison, limit: float) -> Iterator[_Part]:
    """Iterate over the columns of tables, the candidates of models, or the one comparison of predictions."""
    if hasattr(result, "p_rows"):
        tables = cast("TableComparison", result)
        for column in (*tables.columns, *tables.joint):
            value = column.kl_pq
            # The divergences of a column of texts compare the lengths. The PSI of the words bounds their KL.
            is_hidden = (getattr(column, "words", None) or 0.0) >= limit
            number = math.nan if value.value is None else value.value
            yield _Part(quoted(column.label), number, None if is_hidden else value.interval)
        for name in tables.not_compared:
            yield _Part(quoted(name), math.nan, None)
        return
    named = [(each.model.name, each) for each in getattr(result, "candidates", [])] or [("the rows", None)]
    for name, candidate in named:
        comparison = cast("Comparison", result) if candidate is None else candidate.comparison
        kl = comparison.divergences["kl_pq"]
        # No interval is needed if no row differs, as for a gate.
        yield _Part(name, kl.mean, (0.0, 0.0) if kl.maximum == 0 else kl.interval)


def _rows(result: TableComparison | Comparison | ModelComparison) -> int:
    """Return the number of rows; of both tables together."""
    if hasattr(result, "p_rows"):
        tables = cast("TableComparison", result)
        return tables.p_rows + tables.q_rows
    if hasattr(result, "candidates"):
        return cast("ModelComparison", result).candidates[0].comparison.rows
    return cast("Comparison", result).rows


def _bounds(estimate: Estimate) -> tuple[Tensor, Tensor]:
    """Return lower and upper bounds on the divergence of each batch element; NaN if no bound is known."""
    value = estimate.value.detach()
    if estimate.interval is not None:
        return estimate.interval
    if estimate.error is not None:
        return value - estimate.error, value + estimate.error
    if estimate.n is None and estimate.standard_error is None:
        return value, value
    unknown = torch.full_like(value, math.nan)
    return unknown, unknown


def _elements(estimate: Estimate, is_above: Tensor, is_below: Tensor) -> list[str]:
    """Return a sentence with the number of failing batch elements and the first of them, or no sentence."""
    failing = is_above if bool(is_above.any()) else ~is_below
    if failing.numel() <= 1:
        return []
    index = tuple(int(i) for i in failing.nonzero()[0])
    count = int(failing.sum())
    return [
        f"{count} of {failing.numel()} elements, first [{', '.join(map(str, index))}] = {estimate.value[index]:.4g}"
    ]


def _advice(estimate: Estimate, upper: Tensor, limit: float) -> str:
    if upper.numel() == 0:
        return "There are no rows"
    if bool(upper.isnan().any()):
        advice = "There is no interval"
        if estimate.method == "monte_carlo":
            advice += ". Write: Samples(p.sample((n,))) for P, which has one"
        return advice
    advice = "The limit is inside the interval. More draws make it narrower"
    counts = estimate.n or ()
    if upper.numel() == 1 and estimate.interval is not None and all(isinstance(n, int) for n in counts):
        ends = float(estimate.interval[0]), float(estimate.interval[1])
        if needed := rows_to_decide(float(estimate), ends, limit, sum(map(int, counts))):
            advice += f", and about {needed:,} would decide"
    return advice
