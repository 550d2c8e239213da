"""Lines of code, for error messages, that turn an object of SciPy or scikit-learn into a distribution.

The libraries are not imported: the names of the classes identify their objects.
"""

from __future__ import annotations

import inspect
from typing import Any

from torch.distributions import Distribution

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
