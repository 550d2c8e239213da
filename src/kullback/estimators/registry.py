"""The registry of estimators, the checks of draws that all of them use, and seeds for their random parts.

`register_estimator` makes a function of draws a method of `kl_estimate`.
"""

from __future__ import annotations

import functools
import inspect
import zlib
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Concatenate, NamedTuple, ParamSpec, TypeVar, cast

import numpy as np
import torch

from kullback.common.constraints import CONFIDENCE, FLAG, GENERATOR, Arguments
from kullback.common.extra_arguments import by_name, extra_arguments
from kullback.errors import P, Q, RegistrationError, explain, invalid_type, invalid_value, safe_repr
from kullback.estimators.draws import Draws, in_usual_units, without_noise
from kullback.estimators.evidence import Evidence, estimate_of, interval_from
from kullback.results.estimate import Estimate
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
    """Return the checked draws of both sides; infinite draws raise an error if `finite`, as do weights like counts.

    Draws that differ by rounding errors only become equal, and huge or tiny columns are rescaled.
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
    """Return a random generator; its seed is the same for any order of the rows and any units of the columns."""
    seed = 0
    for side in sides:
        x = np.nan_to_num(side.x[side.order]) / 4  # the division by 4 prevents that a difference overflows
        span = x.max(0) - x.min(0)
        steps = np.rint((x - x.min(0)) / np.where(span > 0, span, 1.0) * _STEPS)
        seed = zlib.crc32(steps.astype(np.int64).tobytes(), seed)
    return np.random.default_rng(seed)


def seed_of(generator: torch.Generator | None) -> int:
    """Return a seed for other random generators, from `generator` or from a copy of torch's global generator."""
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


Options = ParamSpec("Options")
Estimator = Callable[..., Estimate]
_Public = TypeVar("_Public", bound=Estimator)

# `CATEGORICAL` maps the name of a method to the public function for draws of categories, and `CONTINUOUS` to the public
# function for draws of numbers. `METHODS` has the names of all methods.
CATEGORICAL: dict[str, Estimator] = {}
CONTINUOUS: dict[str, Estimator] = {}
METHODS = ["auto"]


class _Parts(NamedTuple):
    """The function that returns `Evidence`, the function that checks the draws, and the name of the method."""

    evidence: Callable[..., Evidence]
    checks: Callable[[str, Any, Any], tuple[Any, Any]]
    method: str


_ARGUMENTS = Arguments("register_estimator", categories=FLAG)


@by_name()
def register_estimator(
    name: str, *, categories: bool = False
) -> Callable[
    [Callable[Concatenate[Any, Any, Options], Evidence]], Callable[Concatenate[Any, Any, Options], Estimate]
]:
    r"""Register an estimator under a name that `kl_estimate` and similar functions accept as ``method=``.

    The decorated function takes the checked draws of P and of Q, `confidence` and `generator`, and returns `Evidence`.
    The decorator returns a function of two `Samples` that returns an `Estimate`.

    Arguments:
        name: the name of the method.
        categories: whether the estimator is for draws of categories; otherwise it is for numbers and vectors.

    Raises:
        RegistrationError: another method has this name.

    Example:
        >>> import numpy as np
        >>> from kullback import Samples, kl_estimate
        >>> from kullback.estimators import Evidence, register_estimator
        >>> @register_estimator("means")
        ... def means(p, q, *, confidence, generator=None):
        ...     "KL between exponential distributions, from the means of draws: r - 1 - log r."
        ...     r = p.x.mean() / q.x.mean()
        ...     influence = [(r - 1) * sign * (s.x[:, 0] / s.x.mean() - 1) / len(s) for s, sign in ((p, 1), (q, -1))]
        ...     return Evidence(r - 1 - np.log(r), influence=influence)
        >>> x, y = np.random.default_rng(0).exponential(size=(2, 1000))
        >>> kl_estimate(Samples(x), Samples(2 * y), method="means").method
        'means'
    """
    _ARGUMENTS.check(categories=categories)

    def register(function: Callable[..., Evidence]) -> Any:
        return enlist(from_draws(function, method=name), categories=categories)

    return register


def enlist(estimator: _Public, *, categories: bool = False) -> _Public:
    """Add a public estimator to the methods of `kl_estimate`, and return the estimator."""
    name = cast("Any", estimator).parts.method
    if name in METHODS:
        raise RegistrationError(
            explain(
                "register_estimator",
                "name",
                wanted="a name that no other estimator has",
                got=safe_repr(name),
                instead={"name": f"my_{name}"},
            )
        )
    METHODS.append(name)
    (CATEGORICAL if categories else CONTINUOUS)[name] = estimator
    return estimator


def from_draws(
    function: Callable[Concatenate[Any, Any, Options], Evidence],
    checks: Callable[[str, Any, Any], tuple[Any, Any]] = checked,
    method: str = "",
) -> Callable[Concatenate[Any, Any, Options], Estimate]:
    """Return the public function of an estimator; it checks the draws, calls `function` and computes the interval."""
    method = method or function.__name__

    @functools.wraps(function)
    def estimator(p: Any, q: Any, *options: Any, confidence: float = 0.95, **named: Any) -> Estimate:
        accepted = inspect.signature(estimator).parameters
        taken = sum(x.kind is x.POSITIONAL_OR_KEYWORD for x in accepted.values())
        if 2 + len(options) > taken or not named.keys() <= accepted.keys():
            unknown = {name: value for name, value in named.items() if name not in accepted}
            raise extra_arguments(estimator, (p, q, *options)[taken:], unknown)
        INTERVAL.check(method, confidence=confidence, generator=named.get("generator"))
        evidence = evidence_by(estimator, p, q, *options, confidence=confidence, **named)
        return estimate_of(evidence, device_of(p))

    public, declared = cast("Any", estimator), inspect.signature(function)
    public.parts = _Parts(function, checks, method)
    taken = [
        x.replace(annotation="Samples")
        if x.annotation in ("Draws", Draws)
        else x.replace(default=0.95)
        if x.name == "confidence"
        else x
        for x in declared.parameters.values()
    ]
    public.__signature__ = declared.replace(parameters=taken, return_annotation="Estimate")
    return public


def evidence_by(
    estimator: Any,
    p: Any,
    q: Any,
    *options: Any,
    confidence: float,
    generator: torch.Generator | None = None,
    **named: Any,
) -> Evidence:
    """Return the evidence of a public estimator, with its interval; `checks` returns checked `Draws` unchanged."""
    function, checks, method = estimator.parts
    p, q = checks(method, p, q)
    evidence: Evidence = function(p, q, *options, confidence=confidence, generator=generator, **named)
    n = (len(p), len(q)) if evidence.n is None else evidence.n
    evidence = replace(evidence, method=evidence.method or method, n=n)
    sides = (p, q) if isinstance(p, Draws) and isinstance(q, Draws) else ()
    return interval_from(evidence, confidence, *sides)


def device_of(side: Any) -> torch.device:
    """Return the device of draws or counts; for a device without float64, return the CPU."""
    device = side.device if isinstance(side, Draws) else side.tensor.device
    return torch.device("cpu") if device.type == "mps" else device
