"""Assertions about distributions for the tests of your code."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from kullback.common.constraints import Arguments, Number
from kullback.dispatch import estimate
from kullback.results.estimate import Estimate

__all__ = ["assert_close_distributions"]

_ARGUMENTS = Arguments(
    "assert_close_distributions",
    below=Number(above=0, example=0.01, instead="below=0.01, the largest divergence in nats that you accept"),
)


def assert_close_distributions(p: Any, q: Any, *, below: float, **options: Any) -> None:
    r"""Assert that the divergence of P from Q is below a limit, and print the verdict.

    .. math:: KL(P \| Q) = E_P[\log p - \log q] < \text{below}

    The verdict is "below" if the upper bound of the divergence is below the limit. For draws and counts, the upper
    bound is the upper limit of the confidence interval; otherwise the upper bound is the value plus the bound on its
    numerical error. The verdict is "not below" if the lower bound is at least the limit, and otherwise "cannot tell".
    The assertion passes only if the verdict is "below", so a small sample rarely passes by chance. A rule without an
    error, such as one from `register_kl`, counts as exact.

    Arguments:
        p: P, as in `estimate`: a distribution, `Logits`, `Probs` or another wrapper, `Counts`, or `Samples`.
        q: Q, as in `estimate`. Every element of a batch has to be below the limit.
        below: the limit, in nats unless you pass ``base``.
        options: options of `estimate`, such as ``kind="js:0.5"``, ``base=2``, ``confidence=0.99`` or ``generator``.

    Raises:
        AssertionError: the verdict is "not below" or "cannot tell".
        ArgumentValueError: `below` is not a positive number.
        ArgumentTypeError, ArgumentValueError, NoRuleError: as `estimate`.

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
    limit = _ARGUMENTS.check(below=below)["below"]
    result = estimate(p, q, **options)
    lower, upper = _bounds(result)
    is_above, is_below = lower >= limit, upper < limit
    if is_below.numel() > 0 and bool(is_below.all()):
        print(f"below {limit:g}: {result}")  # noqa: T201 - the verdict, which pytest shows with -s
        return
    outcome = f"not below {limit:g}" if bool(is_above.any()) else f"cannot tell whether below {limit:g}"
    # The notes stand at the end of the message, so the line does not count them.
    sentences = [f"{outcome}: {replace(result, notes=())}", *_elements(result, is_above, is_below)]
    if not bool(is_above.any()):
        sentences.append(_advice(result, upper))
    raise AssertionError(". ".join([*sentences, *(note.removesuffix(".") for note in result.notes)]))


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


def _advice(estimate: Estimate, upper: Tensor) -> str:
    if upper.numel() == 0:
        return "There are no rows"
    if bool(upper.isnan().any()):
        advice = "There is no interval"
        if estimate.method == "monte_carlo":
            advice += ". Write: Samples(p.sample((n,))) for P, which has one"
        return advice
    return "The limit is inside the interval. More draws make it narrower"
