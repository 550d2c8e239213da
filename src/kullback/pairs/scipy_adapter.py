"""The conversion of SciPy's distributions to torch: frozen distributions, and objects of SciPy's new interface.

The result is a distribution of torch if torch has the family. Otherwise the result is a `Distribution` that calls SciPy
for the density. This module does not import SciPy, because a caller who passes SciPy's objects has imported it.

Other objects of SciPy and of scikit-learn are known by the names of their classes. Error messages contain a line of
code that turns them into a distribution.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from operator import attrgetter
from typing import Any, ClassVar, Protocol, cast

import numpy as np
import torch
from torch import Tensor, distributions as families
from torch.distributions import AffineTransform, Distribution, TransformedDistribution, constraints

from kullback.common.dtypes import tensor_of
from kullback.errors import invalid_type
from kullback.pairs.densities.black_box import UNDERFLOWED, BlackBoxDensity, black_box, interval_between
from kullback.pairs.densities.density import Coordinate, Density, Points, density_of, register_density
from kullback.pairs.densities.transformed import AffineDensity
from kullback.pairs.family import FAMILIES, ScipyForm
from kullback.pairs.numerics.parameters import given_logits

# A list of probabilities has at most _MOST_OUTCOMES outcomes and takes at most 8 MB.
_MOST_OUTCOMES = 1_000_000
# The probabilities of a list may have a sum that differs from 1 by at most _MASS, because SciPy's formulas are rounded.
_MASS = 1e-6

_ONE = torch.Size()


class Frozen(Protocol):
    """A distribution of SciPy with its parameters, such as ``scipy.stats.norm(0, 1)``."""

    def rvs(self, *arguments: Any, **options: Any) -> Any:
        """Draw from the distribution."""
        ...


def is_frozen(thing: object) -> bool:
    """Return whether an object is a distribution of SciPy with its parameters."""
    return any(
        kind.__module__.startswith("scipy.stats.") and kind.__name__.endswith(_FROZEN)
        for kind in type(thing).__mro__
    )


_NEW_INTERFACE = "_ProbabilityDistribution"
# _TABLES are the classes of `rv_discrete(values=...)` and of histograms, which can be used without freezing parameters.
_TABLES = ("rv_sample", "rv_histogram")
_FROZEN = ("_frozen", *_TABLES, _NEW_INTERFACE)


def to_torch(call: str, argument: str, frozen: Any) -> Distribution:
    """Return a torch distribution, in float64, with the density of a SciPy distribution."""
    if any(kind.__name__ in _TABLES for kind in type(frozen).__mro__):
        frozen = frozen()
    distribution, names = None, [kind.__name__ for kind in type(frozen).__mro__]
    kind = type(frozen).__name__
    if _NEW_INTERFACE in names:
        distribution = _of_new_interface(frozen)
    elif "rv_continuous_frozen" in names:
        distribution = _continuous(frozen)
    elif "rv_discrete_frozen" in names:
        distribution = _discrete(frozen)
    elif (form := _form(kind)) is not None:
        distribution = _member(form, frozen)
    if distribution is not None:
        return distribution
    raise invalid_type(
        call,
        argument,
        wanted="a frozen distribution of SciPy: univariate with a density, over finitely many integers, or over "
        "integers in a family of torch; or one of "
        + ", ".join(sorted(form.name for form in _forms() if form.name.endswith("_frozen"))),
        got=_name_of(frozen),
        instead="a torch.distributions object, or Probs([...]) of a histogram",
    )


def with_equal_outcomes(p: Any, q: Any) -> tuple[Any, Any]:
    """Return two Categoricals with equally many classes, by added ones of probability 0; other pairs unchanged.

    SciPy's outcomes are integers, not classes, so the outcomes 0 to 9 and 0 to 19 are comparable.
    """
    bases: list[Any] = [d.base_dist if isinstance(d, ShiftedCounts) else d for d in (p, q)]
    if not all(isinstance(base, families.Categorical) for base in bases):
        return p, q
    sizes = [base.param_shape[-1] for base in bases]
    if sizes[0] == sizes[1]:
        return p, q
    first, second = (_widened(d, max(sizes)) for d in (p, q))
    return first, second


def _widened(d: Any, classes: int) -> Distribution:
    if isinstance(d, ShiftedCounts):
        return ShiftedCounts(_widened(d.base_dist, classes), d.shift)
    missing = classes - d.param_shape[-1]
    if given_logits(d):
        return families.Categorical(
            logits=torch.nn.functional.pad(d.logits, (0, missing), value=-torch.inf), validate_args=False
        )
    return families.Categorical(probs=torch.nn.functional.pad(d.probs, (0, missing)), validate_args=False)


def _name_of(frozen: Any) -> str:
    return getattr(getattr(frozen, "dist", None), "name", None) or type(frozen).__name__


def _upcast(x: Any) -> Tensor:
    return tensor_of(x, torch.float64)


def _parameters(frozen: Any) -> tuple[list[Tensor], Tensor, Tensor]:
    """Return the shape parameters, loc and scale of a frozen univariate distribution."""
    shapes, loc, scale = frozen.dist._parse_args(*frozen.args, **frozen.kwds)  # noqa: SLF001
    return [_upcast(x) for x in shapes], _upcast(loc), _upcast(scale)


# ---- Continuous distributions.


def _form(name: str) -> ScipyForm | None:
    """Return the `ScipyForm` of SciPy's distribution with this name, or None if torch has no such family."""
    return next((form for form in _forms() if form.name == name), None)


def _forms() -> Iterator[ScipyForm]:
    return (form for family in FAMILIES.values() for form in family.scipy)


def _member(form: ScipyForm, thing: Any) -> Distribution | None:
    """Return the torch distribution from the attributes of SciPy's object that the form reads."""
    return form.make(*(_upcast(attrgetter(name)(thing)) for name in form.reads.split()))


def _continuous(frozen: Any) -> Distribution | None:
    shapes, loc, scale = _parameters(frozen)
    name = frozen.dist.name
    *shapes, loc, scale = torch.broadcast_tensors(*shapes, loc, scale)
    form = _form(name)
    if form is not None:
        numbers = {"loc": loc, "scale": scale}
        member = form.make(*shapes, *(numbers.pop(name) for name in form.takes.split()))
        return None if member is None else _moved(member, **numbers)
    if hasattr(frozen.dist, "_hpdf"):
        return _mixture_of_bins(frozen, loc, scale)
    kind = StableDistribution if frozen.dist.name == "levy_stable" else ScipyDensity
    return kind(frozen, [*shapes, loc, scale])


def _moved(d: Distribution, loc: Tensor | None = None, scale: Tensor | None = None) -> Distribution:
    """Return the distribution of loc + scale x, where None means a loc of 0 or a scale of 1."""
    if scale is not None and not bool((scale == 1).all()):
        d = TransformedDistribution(d, [_affine(0.0, scale)])
    return d if loc is None or not bool((loc != 0).any()) else TransformedDistribution(d, [_affine(loc, 1.0)])


def _mixture_of_bins(frozen: Any, loc: Tensor, scale: Tensor) -> Distribution:
    """Return the distribution of a histogram, a mixture of one Uniform for each bin with mass."""
    edges = _upcast(frozen.dist._hbins)  # noqa: SLF001
    shares = _upcast(frozen.dist._hpdf[1:-1]) * edges.diff()  # noqa: SLF001  # `_hpdf` has a 0 at both ends
    has_mass = shares > 0
    low, high = (loc.unsqueeze(-1) + scale.unsqueeze(-1) * end[has_mass] for end in (edges[:-1], edges[1:]))
    return families.MixtureSameFamily(
        families.Categorical(probs=shares[has_mass].expand(low.shape)), families.Uniform(low, high)
    )


def _affine(loc: Tensor | float, scale: Tensor | float) -> AffineTransform:
    return AffineTransform(_upcast(loc), _upcast(scale))


class ScipyDensity(Distribution):
    """A univariate distribution whose density, support and draws come from SciPy."""

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
                got=f"ends that require a gradient, and {_name_of(self.frozen)} of SciPy",
                instead="torch.no_grad() around the call, or detached parameters",
            )
        with np.errstate(all="ignore"):  # some formulas of SciPy overflow in the tails
            log_pdf = _upcast(self._log_pdf(value.numpy()))
        rounded_to_zero = (log_pdf == -torch.inf) & self.support.check(value) & self._takes_logarithm()
        return torch.where(rounded_to_zero, UNDERFLOWED, log_pdf)

    def _log_pdf(self, x: Any) -> Any:
        return self.frozen.dist.logpdf(x, *(parameter.numpy() for parameter in self.parameters))

    def _takes_logarithm(self) -> bool:
        """Return whether SciPy computes logpdf as the logarithm of the density, which may underflow to 0."""
        *kinds, _, _, _ = type(self.frozen.dist).__mro__  # the last classes are SciPy's base classes
        return not any("_logpdf" in vars(kind) for kind in kinds)

    def sample(self, sample_shape: Any = _ONE) -> Tensor:
        """Draw with SciPy, with a seed from torch's generator."""
        seed = int(torch.randint(2**31, (), device="cpu"))
        return _upcast(self._draws((*sample_shape, *self.batch_shape), seed))

    def _draws(self, shape: tuple[int, ...], seed: int) -> Any:
        return self.frozen.rvs(size=shape, random_state=seed)


register_density(ScipyDensity)(black_box)


class StableDistribution(ScipyDensity):
    """A stable distribution. SciPy's density is wrong far out and 0 from about 10^12 on, so the tails are known."""


class StableDensity(BlackBoxDensity):
    """The density of a stable distribution, with tails u^-alpha, continued as a power from e^15 quartile ranges on."""

    reaches: ClassVar[tuple[float, ...]] = (15.0,)

    def _read(self, side: int) -> list[Tensor]:
        alpha, beta = cast("StableDistribution", self.distribution).parameters[:2]
        is_power = (alpha < 2) & (side * beta > -1)
        tail = [torch.ones_like(alpha), torch.ones_like(alpha), alpha]
        if bool(is_power.all()):
            return tail
        read = super()._read(side)
        return [torch.where(is_power, known, other) for known, other in zip(tail, read, strict=True)]


@register_density(StableDistribution)
def _of_stable(d: StableDistribution) -> StableDensity:
    density = black_box(d)
    return StableDensity(density.distribution, density.quartiles)


# ---- SciPy's new interface.


class NewScipyDensity(ScipyDensity):
    """A distribution of SciPy's new interface with batch shape ()."""

    def __init__(self, frozen: Any) -> None:
        super().__init__(frozen, [_upcast(0.0), _upcast(1.0)])

    def _draws(self, shape: tuple[int, ...], seed: int) -> Any:
        return self.frozen.sample(shape, rng=np.random.default_rng(seed))

    def _log_pdf(self, x: Any) -> Any:
        return self.frozen.logpdf(x)

    def _takes_logarithm(self) -> bool:
        return False


def _of_new_interface(d: Any) -> Distribution | None:
    form = _form(type(d).__name__)
    if form is not None:
        return _member(form, d)
    low, high = (_upcast(end) for end in d.support())
    if low.ndim > 0:
        return None
    if any(kind.__name__ == "DiscreteDistribution" for kind in type(d).__mro__):
        return _listed(low, high, d.logpmf)
    return NewScipyDensity(d)


# ---- Distributions on the integers.


class ShiftedCounts(TransformedDistribution):
    """A distribution on the integers, shifted by an integer."""

    arg_constraints: ClassVar[dict[str, constraints.Constraint]] = {}  # pyright: ignore[reportIncompatibleVariableOverride]

    def __init__(self, counts: Distribution, shift: Tensor) -> None:
        self.shift = shift
        super().__init__(counts, [_affine(shift, 1.0)], validate_args=False)

    @property
    def support(self) -> constraints.Constraint:
        """The non-negative integers, as declared to torch; the density determines which integers have mass."""
        return constraints.nonnegative_integer


class ShiftedDensity(AffineDensity):
    """The density of y + loc, where y has the density `part` on the integers."""

    integer: ClassVar[bool] = True

    @property
    def smooth(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Whether the probabilities of `part` are a smooth function of y."""
        return self.part.smooth

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


def _discrete(frozen: Any) -> Distribution | None:
    shapes, loc, _ = _parameters(frozen)
    form = _form(frozen.dist.name)
    if form is None:
        low, high = (_upcast(end) for end in frozen.support())
        return _listed(
            low, high, frozen.logpmf, torch.broadcast_shapes(loc.shape, *(x.shape for x in shapes))
        )
    *shapes, shift = torch.broadcast_tensors(*shapes, loc + form.first)
    counts = form.make(*shapes)
    return None if counts is None else ShiftedCounts(counts, shift) if bool((shift != 0).any()) else counts


def _listed(
    low: Tensor, high: Tensor, log_pmf: Callable[[Any], Any], shape: torch.Size = _ONE
) -> Distribution | None:
    """Return a distribution on the integers low, ..., high; None for a million of them, or a sum other than 1."""
    if not bool((high - low < _MOST_OUTCOMES).all()):
        return None
    steps = torch.arange(int((high - low).max()) + 1, dtype=torch.float64, device="cpu")
    points = low + steps.reshape(-1, *[1] * low.ndim)
    logits = _upcast(log_pmf(points.numpy())).movedim(0, -1)
    if bool(((logits.exp().sum(-1) - 1).abs() > _MASS).any()):
        return None
    counts, shift = families.Categorical(logits=logits), low.expand(shape)
    return ShiftedCounts(counts, shift) if bool((shift != 0).any()) else counts


_MIXTURE = "MixtureSameFamily(Categorical(torch.tensor({weights})), {parts})"


def line_for(x: object, name: str) -> str | None:
    """Return the line of code that turns the argument `name` into a distribution or draws; None for an unknown one."""
    if isinstance(x, type):
        return _of_class(x)
    for kind in type(x).__mro__:
        library = kind.__module__.partition(".")[0]
        line = _LINES.get((library, kind.__name__))
        if line is not None:
            return line(x, name)
    return None


def _of_class(x: type) -> str | None:
    """Return the line of code that makes an instance of the class x, which the user passed, or None if x is unknown."""
    is_scipy = any(kind.__name__ == "_ProbabilityDistribution" for kind in x.__mro__)
    if not (is_scipy or issubclass(x, Distribution)):
        return None
    named = [
        parameter.name
        for parameter in inspect.signature(x).parameters.values()
        if parameter.name not in {"validate_args", "tol", "validation_policy", "cache_policy"}
        and parameter.kind is not inspect.Parameter.VAR_KEYWORD
    ]
    return f"{x.__name__}({', '.join(f'{name}=...' for name in named)}), with its parameters"


def _of_scipy_family(x: Any, name: str) -> str:
    shapes = [f"{shape}=..." for shape in (x.shapes or "").replace(" ", "").split(",") if shape]
    settings = [
        *shapes,
        "loc=0.0" if hasattr(x, "pdf") else "loc=0",
        *(["scale=1.0"] if hasattr(x, "pdf") else []),
    ]
    numbers = ", with numbers in place of the dots" if shapes else ""
    return f"scipy.stats.{x.name}({', '.join(settings)}){numbers}"


def _of_kernel_density(x: Any, name: str) -> str:
    if x.d > 1:
        parts = f"MultivariateNormal(torch.tensor({name}.dataset.T), torch.tensor({name}.covariance))"
        return _vectors(f"Samples({name}.resample(10_000).T)", f"{name}.weights", parts, name)
    parts = f"Normal(torch.tensor({name}.dataset[0]), float({name}.covariance[0, 0]) ** 0.5)"
    return _MIXTURE.format(weights=f"{name}.weights", parts=parts)


def _vectors(draws: str, weights: str, parts: str, name: str) -> str:
    """Return the line for a mixture of vectors: draws if the mixture is P, and a density if the mixture is Q."""
    return draws if name == "p" else _MIXTURE.format(weights=weights, parts=parts)


def _of_gaussian_mixture(x: Any, name: str) -> str:
    if not hasattr(x, "weights_"):
        return f"{name}.fit(x) first, which determines the mixture"
    means, covariances = f"{name}.means_", f"{name}.covariances_"
    if x.means_.shape[1] == 1:
        parts = f"Normal(torch.tensor({means}[:, 0]), torch.tensor({covariances}.reshape(-1) ** 0.5))"
        return _MIXTURE.format(weights=f"{name}.weights_", parts=parts)
    if x.covariance_type in ("full", "tied"):
        parts = f"MultivariateNormal(torch.tensor({means}), torch.tensor({covariances}))"
    else:
        own = covariances if x.covariance_type == "diag" else f"{covariances}[:, None]"
        parts = f"Independent(Normal(torch.tensor({means}), torch.tensor({own} ** 0.5)), 1)"
    return _vectors(f"Samples({name}.sample(10_000)[0])", f"{name}.weights_", parts, name)


def _of_kernel_density_of_sklearn(x: Any, name: str) -> str:
    if not hasattr(x, "tree_"):
        return f"{name}.fit(x) first, which determines the density"
    data = f"torch.tensor(numpy.asarray({name}.tree_.data))"
    n, d = x.tree_.data.shape
    weights = (
        f"numpy.ones({n})" if x.tree_.sample_weight is None else f"numpy.asarray({name}.tree_.sample_weight)"
    )
    width = f"{name}.bandwidth_"
    if d == 1 and x.kernel in ("gaussian", "tophat"):
        parts = f"Normal({data}[:, 0], {width})"
        if x.kernel == "tophat":
            parts = f"Uniform({data}[:, 0] - {width}, {data}[:, 0] + {width})"
        return _MIXTURE.format(weights=weights, parts=parts)
    if x.kernel == "gaussian":
        parts = f"Independent(Normal({data}, {width}), 1)"
        return _vectors(f"Samples({name}.sample(10_000))", weights, parts, name)
    drawn = f"{name}.sample(10_000)" if x.kernel == "tophat" else f"numpy.asarray({name}.tree_.data)"
    return f"Samples({drawn})" if d > 1 else f"Samples({drawn}[:, 0])"


_LINES: dict[tuple[str, str], Any] = {
    ("scipy", "gaussian_kde"): _of_kernel_density,
    ("scipy", "rv_generic"): _of_scipy_family,
    ("scipy", "multi_rv_generic"): lambda x, _: (
        f"scipy.stats.{type(x).__name__.removesuffix('_gen')}(...) with its parameters"
    ),
    ("sklearn", "BaseMixture"): _of_gaussian_mixture,
    ("sklearn", "KernelDensity"): _of_kernel_density_of_sklearn,
}
