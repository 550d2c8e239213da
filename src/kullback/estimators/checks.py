"""What every estimator asks of its draws first."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from kullback.errors import ArgumentValueError, explain
from kullback.estimate import Estimate
from kullback.samples import Samples

__all__ = [
    "EstimateWarning",
    "about_sign",
    "check_confidence",
    "check_samples",
    "effective_number",
    "normal_estimate",
    "numpy_of",
    "seed_of",
    "standard_normal_quantile",
]

Array = np.ndarray[Any, np.dtype[np.float64]]


class EstimateWarning(UserWarning):
    """What a reader has to know about a number from draws that was returned without its notes.

    Example:
        >>> import warnings, kullback
        >>> with warnings.catch_warnings(record=True) as caught:
        ...     warnings.simplefilter("always")
        ...     value = kullback.kl_divergence(kullback.Samples(["a", "b"]), kullback.Samples(["a", "a"]))
        >>> caught[0].category.__name__
        'EstimateWarning'
    """


def check_samples(call: str, p: Samples, q: Samples) -> None:
    """Refuse draws that do not lie in one space: other dimensions, symbols against points, labels on one side."""
    if p.tensor.shape[1] != q.tensor.shape[1]:
        raise _mismatch(
            call,
            wanted="draws of as many components in q as in p",
            got=f"{p.tensor.shape[1]} in p of shape {tuple(p.tensor.shape)}, {q.tensor.shape[1]} in q of shape "
            f"{tuple(q.tensor.shape)}",
            instead="Samples(x[:, columns]) with the columns that both have",
        )
    if p.discrete != q.discrete or (p.labels is None) != (q.labels is None):
        raise _mismatch(
            call,
            wanted="symbols (integers, booleans, strings) in both or floating-point numbers in both",
            got=f"{p!r} and {q!r}",
            instead="Samples(x.double()) to read integers as points of a line",
        )


def check_confidence(call: str, confidence: float) -> None:
    """Refuse a confidence that is no probability strictly between 0 and 1."""
    if not 0 < confidence < 1:
        raise ArgumentValueError(
            explain(
                call,
                "confidence",
                wanted="a number between 0 and 1",
                got=repr(confidence),
                instead="confidence=0.95",
            )
        )


def standard_normal_quantile(confidence: float) -> float:
    """Half the width, in standard errors, of a two-sided normal interval."""
    return math.sqrt(2) * float(torch.erfinv(torch.tensor(confidence, dtype=torch.float64)))


def about_sign(raw: float) -> list[str]:
    """Say what an estimate was that is answered with 0."""
    if raw >= 0:
        return []
    return [f"The estimate is {raw:.2g}, as chance may make it where there is next to no divergence."]


def normal_estimate(
    raw: float,
    error: float,
    confidence: float,
    *,
    method: str,
    n: tuple[int, int],
    notes: Sequence[str],
    device: torch.device,
) -> Estimate:
    """Put a normal interval around a value, and take both off below 0, where no divergence is."""
    reach = standard_normal_quantile(confidence) * error
    numbers = (max(raw, 0.0), error, max(raw - reach, 0.0), max(raw + reach, 0.0))
    value, of_value, low, high = (torch.tensor(x, dtype=torch.float64, device=device) for x in numbers)
    return Estimate(value, of_value, method, (low, high), n, (*about_sign(raw), *notes))


def numpy_of(samples: Samples) -> Array:
    """The draws as a float64 array of shape (n, d) on the CPU."""
    return samples.tensor.detach().to("cpu", torch.float64).numpy()


def effective_number(weights: Tensor | None, n: int) -> float:
    r"""How many draws of equal weight tell as much, :math:`(\sum w)^2 / \sum w^2` (Survey Sampling, Kish, 1965)."""
    if weights is None:
        return float(n)
    return float(weights.sum() ** 2 / weights.square().sum())


def seed_of(generator: torch.Generator | None) -> int:
    """Draw a seed for libraries with generators of their own: the same generator gives the same seed."""
    return int(torch.randint(2**31 - 1, (1,), generator=generator))


def _mismatch(call: str, *, wanted: str, got: str, instead: str) -> ArgumentValueError:
    return ArgumentValueError(explain(call, "p, q", wanted=wanted, got=got, instead=instead))
