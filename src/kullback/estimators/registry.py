"""The registry of estimators, and seeds for their random parts.

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
from kullback.errors import RegistrationError, explain, safe_repr
from kullback.estimators.draws import Draws, checked
from kullback.estimators.evidence import Evidence, estimate_of, interval_from
from kullback.results.estimate import Estimate

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


def rng_of(*sides: Draws) -> np.random.Generator:
    """Return a random generator whose seed is a checksum of the sorted and scaled draws.

    So the same draws give the same estimate, for any order of their rows and any units of measurement of their columns.
    """
    seed = 0
    for side in sides:
        x = np.nan_to_num(side.x[side.order]) / 4  # without the division, a difference may overflow
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
    """Return the public function of an estimator; it checks the draws, calls `function` and computes the interval.

    `method` is the name of the method, by default the name of `function`.
    """
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
