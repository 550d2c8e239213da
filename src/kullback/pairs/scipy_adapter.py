"""SciPy's frozen distributions as torch distributions.

The result is torch's own family if there is one; otherwise it calls SciPy for the density. This module does not import
SciPy, because a caller who passes its objects has imported it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, ClassVar, Protocol, cast

import numpy as np
import torch
from torch import Tensor, distributions as families
from torch.distributions import AffineTransform, Distribution, TransformedDistribution, constraints

from kullback.common.dtypes import tensor_of
from kullback.errors import invalid_type
from kullback.pairs.densities.black_box import UNDERFLOWED, black_box
from kullback.pairs.densities.density import Coordinate, Density, Points, density_of, register_density
from kullback.pairs.densities.image import interval_between
from kullback.pairs.densities.integer import IntegerDensity
from kullback.pairs.densities.transformed import AffineDensity

# The maximum number of outcomes in a list of probabilities.
_MOST_OUTCOMES = 1_000_000

_ONE = torch.Size()


class Frozen(Protocol):
    """A distribution of SciPy with its parameters, such as ``scipy.stats.norm(0, 1)``."""

    def rvs(self, *arguments: Any, **options: Any) -> Any:
        """Draw from the distribution."""
        ...


def is_frozen(thing: object) -> bool:
    """Return whether an object is a frozen distribution of SciPy."""
    return any(
        kind.__module__.startswith("scipy.stats.") and kind.__name__.endswith(("_frozen", "rv_sample"))
        for kind in type(thing).__mro__
    )


def to_torch(call: str, argument: str, frozen: Any) -> Distribution:
    """Return a torch distribution, in float64, with the density of a SciPy distribution.

    Arguments:
        call: the name of the function that the user called, for messages.
        argument: the name of its argument.
        frozen: the argument.
    """
    kind = type(frozen).__name__
    distribution = None
    if kind == "rv_continuous_frozen":
        distribution = _continuous(frozen)
    elif kind == "rv_discrete_frozen":
        distribution = _discrete(frozen)
    elif kind in _MULTIVARIATE:
        distribution = _MULTIVARIATE[kind](frozen)
    if distribution is not None:
        return distribution
    raise invalid_type(
        call,
        argument,
        wanted="a frozen distribution of SciPy: univariate with a density, over finitely many integers, or over "
        "integers in a family of torch; or one of " + ", ".join(sorted(_MULTIVARIATE)),
        got=getattr(getattr(frozen, "dist", None), "name", None) or kind,
        instead="a torch.distributions object, or Probs([...]) of a histogram",
    )


def _upcast(x: Any) -> Tensor:
    return tensor_of(x, torch.float64)


def _parameters(frozen: Any) -> tuple[list[Tensor], Tensor, Tensor]:
    """Return the shape parameters, loc and scale of a univariate distribution, from positional or keyword arguments."""
    shapes, loc, scale = frozen.dist._parse_args(*frozen.args, **frozen.kwds)  # noqa: SLF001
    return [_upcast(x) for x in shapes], _upcast(loc), _upcast(scale)


# ---- On the line: families from shape parameters and the scale, with loc 0.

_SCALED: dict[str, Callable[..., Distribution]] = {
    "beta": lambda a, b, scale: _stretched(families.Beta(a, b), scale),
    "chi2": lambda k, scale: families.Gamma(k / 2, 0.5 / scale),
    "erlang": lambda a, scale: families.Gamma(a, 1 / scale),
    "expon": lambda scale: families.Exponential(1 / scale),
    "f": lambda a, b, scale: _stretched(families.FisherSnedecor(a, b), scale),
    "gamma": lambda a, scale: families.Gamma(a, 1 / scale),
    "halfcauchy": families.HalfCauchy,
    "halfnorm": families.HalfNormal,
    "invgamma": families.InverseGamma,
    "levy": lambda scale: families.InverseGamma(torch.full_like(scale, 0.5), scale / 2),
    "lognorm": lambda s, scale: families.LogNormal(torch.log(scale), s),
    "pareto": lambda b, scale: families.Pareto(scale, b),
    "rayleigh": lambda scale: families.Weibull(scale * math.sqrt(2), torch.full_like(scale, 2.0)),
    "weibull_min": lambda c, scale: families.Weibull(scale, c),
}
# ---- Families that have a loc in torch too.
_LOCATED: dict[str, Callable[..., Distribution]] = {
    "cauchy": families.Cauchy,
    "genpareto": lambda c, loc, scale: families.GeneralizedPareto(loc, scale, c),
    "gumbel_l": lambda loc, scale: TransformedDistribution(
        families.Gumbel(-loc, scale), [_affine(0.0, -1.0)]
    ),
    "gumbel_r": families.Gumbel,
    "laplace": families.Laplace,
    "norm": families.Normal,
    "t": families.StudentT,
    "uniform": lambda loc, scale: families.Uniform(loc, loc + scale),
}


def _continuous(frozen: Any) -> Distribution | None:
    shapes, loc, scale = _parameters(frozen)
    name = frozen.dist.name
    *shapes, loc, scale = torch.broadcast_tensors(*shapes, loc, scale)
    if name in _LOCATED:
        return _LOCATED[name](*shapes, loc, scale)
    if name in _SCALED:
        scaled = _SCALED[name](*shapes, scale)
        return TransformedDistribution(scaled, [_affine(loc, 1.0)]) if bool((loc != 0).any()) else scaled
    if name == "vonmises":  # a circle of another length has no density in torch, nor on the line
        return families.VonMises(loc, shapes[0]) if bool((scale == 1).all()) else None
    return ScipyDensity(frozen, [*shapes, loc, scale])


def _affine(loc: Tensor | float, scale: Tensor | float) -> AffineTransform:
    return AffineTransform(_upcast(loc), _upcast(scale))


def _stretched(d: Distribution, scale: Tensor) -> Distribution:
    return d if bool((scale == 1).all()) else TransformedDistribution(d, [_affine(0.0, scale)])


class ScipyDensity(Distribution):
    """A distribution on the line whose density, support and draws come from SciPy."""

    arg_constraints: ClassVar[dict[str, constraints.Constraint]] = {}  # pyright: ignore[reportIncompatibleMethodOverride]

    def __init__(self, frozen: Any, parameters: list[Tensor]) -> None:
        self.frozen = frozen
        self.parameters = parameters
        self.loc = parameters[-2]
        super().__init__(self.loc.shape, validate_args=False)

    @property
    def support(self) -> constraints.Constraint:
        """The support, from SciPy."""
        low, high = (_upcast(end).expand(self.batch_shape) for end in self.frozen.support())
        return interval_between(*(None if bool(end.isinf().all()) else end for end in (low, high)))

    def log_prob(self, value: Tensor) -> Tensor:
        """Return SciPy's logpdf, without a gradient."""
        if value.requires_grad:
            raise invalid_type(
                "kl_divergence",
                "p, q",
                wanted="a support of p without gradient, where SciPy gives the density of q",
                got=f"ends that require a gradient, and {self.frozen.dist.name} of SciPy",
                instead="torch.no_grad() around the call, or detached parameters",
            )
        with np.errstate(all="ignore"):  # far out, some of SciPy's formulas overflow, which the result shows
            log_pdf = _upcast(self.frozen.dist.logpdf(value.numpy(), *(x.numpy() for x in self.parameters)))
        # SciPy computes most logpdf from pdf, which may round to 0; a histogram may be exactly 0.
        *kinds, _, _, _ = type(self.frozen.dist).__mro__  # the last classes are SciPy's own base classes
        has_formula = any("_logpdf" in vars(kind) for kind in kinds)
        takes_logarithm = not has_formula and not hasattr(self.frozen.dist, "_hpdf")
        rounded_to_zero = (log_pdf == -torch.inf) & self.support.check(value) & takes_logarithm
        return torch.where(rounded_to_zero, UNDERFLOWED, log_pdf)

    def sample(self, sample_shape: Any = _ONE) -> Tensor:
        """Draw with SciPy, with a seed from torch's generator."""
        seed = int(torch.randint(2**31, (), device="cpu"))
        return _upcast(self.frozen.rvs(size=tuple(sample_shape) + tuple(self.batch_shape), random_state=seed))


register_density(ScipyDensity)(black_box)


# ---- On the integers.


class ShiftedCounts(TransformedDistribution):
    """A distribution on the integers, shifted by an integer."""

    arg_constraints: ClassVar[dict[str, constraints.Constraint]] = {}  # pyright: ignore[reportIncompatibleVariableOverride]

    def __init__(self, counts: Distribution, shift: Tensor) -> None:
        self.shift = shift
        super().__init__(counts, [_affine(shift, 1.0)], validate_args=False)

    @property
    def support(self) -> constraints.Constraint:
        """The integers; the density determines which of them have mass."""
        return constraints.nonnegative_integer


class ShiftedDensity(AffineDensity):
    """The density of y + loc, where y has another density on the integers."""

    integer: ClassVar[bool] = True

    @property
    def smooth(self) -> bool:
        """Whether the density before the shift is smooth."""
        return cast(IntegerDensity, self.part).smooth

    def coordinate(self) -> Coordinate:
        return self.part.coordinate()

    def log_density(self, at: Points) -> Tensor:
        y = at.x - self.loc
        within = self.part.log_density(Points(y.clamp(min=0)))
        return torch.where(y < 0, -torch.inf, within)


@register_density(ShiftedCounts)
def _shifted_counts(d: ShiftedCounts) -> Density | None:
    part = density_of(d.base_dist)
    return None if part is None else ShiftedDensity(part, d.shift, torch.ones_like(d.shift), falls=False)


_COUNTS: dict[str, Callable[..., Distribution]] = {
    "bernoulli": families.Bernoulli,
    "binom": families.Binomial,
    "geom": families.Geometric,
    # SciPy counts failures, and p is the probability of success. torch counts successes, so p becomes 1 - p.
    "nbinom": lambda n, p: families.NegativeBinomial(n, logits=torch.log1p(-p) - torch.log(p)),
    "poisson": families.Poisson,
}
_FIRST = {"geom": 1.0}


def _discrete(frozen: Any) -> Distribution | None:
    shapes, loc, _ = _parameters(frozen)
    *shapes, shift = torch.broadcast_tensors(*shapes, loc + _FIRST.get(frozen.dist.name, 0.0))
    if frozen.dist.name in _COUNTS:
        counts = _COUNTS[frozen.dist.name](*shapes)
    else:
        low, high = (_upcast(end) for end in frozen.support())
        if not bool((high - low < _MOST_OUTCOMES).all()):
            return None
        steps = torch.arange(int((high - low).max()) + 1, dtype=torch.float64, device="cpu")
        points = low + steps.reshape(-1, *[1] * low.ndim)
        counts = families.Categorical(logits=_upcast(frozen.logpmf(points.numpy())).movedim(0, -1))
        shift = low.expand(shift.shape)
    return ShiftedCounts(counts, shift) if bool((shift != 0).any()) else counts


# ---- Vectors and matrices.

_MULTIVARIATE: dict[str, Callable[[Any], Distribution]] = {
    "dirichlet_frozen": lambda d: families.Dirichlet(_upcast(d.alpha)),
    "multinomial_frozen": lambda d: families.Multinomial(int(d.n), _upcast(d.p)),
    "multivariate_normal_frozen": lambda d: families.MultivariateNormal(
        _upcast(d.mean), _upcast(d.cov_object.covariance)
    ),
    "wishart_frozen": lambda d: families.Wishart(_upcast(d.df), _upcast(d.scale)),
}
