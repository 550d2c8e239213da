"""Checks of draws that all estimators use, and seeds for the random parts of estimators."""

from __future__ import annotations

import zlib
from collections.abc import Generator
from contextlib import contextmanager
from typing import cast

import numpy as np
import torch

from kullback.common.constraints import CONFIDENCE, GENERATOR, Arguments
from kullback.errors import P, Q, invalid_type, invalid_value
from kullback.estimators.draws import Draws, in_usual_units, without_noise
from kullback.samples import Samples

# Unequal integer weights with a mean of at least this number are probably counts, because users often scale weights to
# mean 1.
_LARGEST_MEAN_WEIGHT = 2
# Seeds are computed from draws rounded to this number of steps between the smallest and the largest draw. So rounding
# errors do not change a seed.
_STEPS = 2.0**20

# Each function that is named below has the arguments `confidence` and `generator`.
INTERVAL = Arguments(
    "nearest_neighbors",
    "from_density",
    "variational_estimate",
    "density_ratio",
    "histogram",
    "log_ratio",
    "bias_corrected",
    "plugin",
    "miller_madow",
    "coverage_adjusted",
    "augmented_plugin",
    "zhang_grabchak",
    "dirichlet",
    confidence=CONFIDENCE,
    generator=GENERATOR,
)


class EstimateWarning(UserWarning):
    """A warning about an estimate from draws that was returned as a plain number, without its notes.

    Example:
        >>> import warnings, kullback
        >>> with warnings.catch_warnings(record=True) as caught:
        ...     warnings.simplefilter("always")
        ...     value = kullback.kl_divergence(kullback.Samples(["a", "b"]), kullback.Samples(["a", "a"]))
        >>> caught[0].category.__name__
        'EstimateWarning'
    """


def checked(call: str, p: object, q: object, *, finite: bool = True) -> tuple[Draws, Draws]:
    """Return the checked draws of both sides.

    An error is raised for sides with different numbers of components, for categories on one side and numbers on the
    other, and for labels on one side only. An error is also raised for weights that look like counts. If `finite`,
    infinite draws raise an error, too. Draws that differ by rounding errors only become equal, and columns of huge or
    tiny values are rescaled.
    """
    if isinstance(p, Draws) and isinstance(q, Draws):
        return p, q
    for name, draws in (("p", p), ("q", q)):
        if not isinstance(draws, Samples):
            raise invalid_type(
                call,
                name,
                wanted="draws",
                got=type(draws).__name__,
                instead=f"{call}(Samples(x), Samples(y))",
            )
    p, q = cast("Samples", p), cast("Samples", q)
    _check_space(call, p, q)
    first, second = checked_side(call, "p", p, finite=finite), checked_side(call, "q", q, finite=finite)
    return in_usual_units(*without_noise(first, second)) if finite else (first, second)


def checked_side(call: str, name: str, samples: Samples | Draws, *, finite: bool = True) -> Draws:
    """Return the draws of one side; raise for weights that look like counts and, if `finite`, for infinite draws."""
    if isinstance(samples, Draws):
        return samples
    _check_weights(call, name, samples)
    bad = ~samples.tensor.isfinite().all(-1)
    if finite and bool(bad.any()):
        raise invalid_value(
            call,
            name,
            wanted="finite draws",
            got=f"{int(bad.sum())} of {len(samples)} with an infinity or NaN, the first at index "
            f"{int(bad.int().argmax())}",
            instead="Samples(x[x.isfinite()]) for numbers, or Samples(x[x.isfinite().all(-1)]) for vectors",
        )
    return Draws.of(samples)


def _check_space(call: str, p: Samples, q: Samples) -> None:
    if p.tensor.shape[1] != q.tensor.shape[1]:
        raise invalid_value(
            call,
            "p, q",
            wanted="the same number of components in p and q",
            got=(
                *(f"{p.tensor.shape[1]} in ", P, f" of shape {tuple(p.tensor.shape)}, "),
                *(f"{q.tensor.shape[1]} in ", Q, f" of shape {tuple(q.tensor.shape)}"),
            ),
            instead="Samples(x, dim=0) for the side whose draws are columns"
            if p.tensor.shape[1] == len(q) or q.tensor.shape[1] == len(p)
            else "Samples(x[:, columns]) with the columns that both have",
        )
    if p.columns is not None and q.columns is not None and p.columns != q.columns:
        raise invalid_value(
            call,
            "p, q",
            wanted="the same columns in the same order in p and q",
            got=(f"columns {list(p.columns)} in ", P, f" and {list(q.columns)} in ", Q),
            instead="Samples(y[list(x.columns)]) as q, for frames x and y, to match columns by name; or "
            "Samples(x.to_numpy()) and Samples(y.to_numpy()) to match them by position",
        )
    if p.tensor.is_floating_point() != q.tensor.is_floating_point() or (p.labels is None) != (
        q.labels is None
    ):
        raise invalid_value(
            call,
            "p, q",
            wanted="categories (integers, booleans, strings) in both or floating-point numbers in both",
            got=f"{p!r} and {q!r}",
            instead="Samples(x.double()) to read integers as numbers"
            if p.labels is q.labels is None
            else "the same column in p and q; Samples([float(text) for text in x]) to read text as numbers",
        )


def _check_weights(call: str, name: str, samples: Samples) -> None:
    """Raise an error for weights that look like counts, because each value would count as a single weighted draw."""
    if samples.weights is None or samples.cluster is not None:
        return
    positive = samples.weights > 0
    weights = samples.weights[positive]
    is_whole = bool((weights == weights.round()).all()) and bool((weights != weights[0]).any())
    if not is_whole or float(weights.mean()) < _LARGEST_MEAN_WEIGHT:
        return
    draws = samples.tensor[positive.to(samples.tensor.device)]
    if len(torch.unique(draws, dim=0)) < len(draws):
        return
    raise invalid_value(
        call,
        name,
        wanted="a row for each draw, and weights that are not counts",
        got=f"{len(draws)} different values with whole weights of sum {float(weights.sum()):.10g}, like counts",
        instead="Samples(np.repeat(x, counts), independent=True), or Counts(counts, labels=x) for categories; "
        "Samples(x, weights=w / w.sum()) if each value is one draw with this weight",
    )


def rng_of(*sides: Draws) -> np.random.Generator:
    """Return a random generator whose seed is a checksum of the sorted and scaled draws.

    So the same draws give the same estimate, for any order of their rows and any units of measurement of their columns.
    """
    seed = 0
    for side in sides:
        x = np.nan_to_num(side.x[side.order]) / 4  # the division by 4 prevents that a difference overflows
        span = x.max(0) - x.min(0)
        steps = np.rint((x - x.min(0)) / np.where(span > 0, span, 1.0) * _STEPS)
        seed = zlib.crc32(steps.astype(np.int64).tobytes(), seed)
    return np.random.default_rng(seed)


def seed_of(generator: torch.Generator | None) -> int:
    """Return a seed for libraries with their own random generators; the seed is drawn from `generator`.

    Without a generator, the seed is drawn from a copy of torch's global generator, whose state does not change.
    """
    if generator is None:
        generator = torch.Generator()
        generator.set_state(torch.get_rng_state())
    return int(torch.randint(2**31 - 1, (1,), generator=generator, device=generator.device))


@contextmanager
def seeded(seed: int) -> Generator[None]:
    """Return a context that starts torch's and NumPy's global generators from a seed; their states are restored."""
    state = np.random.get_state()  # noqa: NPY002  # a user's distribution may draw from NumPy's global state
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        np.random.seed(seed)  # noqa: NPY002
        try:
            yield
        finally:
            np.random.set_state(state)  # noqa: NPY002
