"""Expectation-maximization (EM) for mixtures Q, from draws of P or from quadrature nodes of P's density p.

With fixed responsibilities :math:`r_k(x)`, the minimization of KL(P || Q) splits into one fit for each component
:math:`k`, to the density proportional to :math:`p r_k`. These fits have a closed form if the components are an
exponential family. Every EM step lowers the divergence.

Maximum Likelihood from Incomplete Data via the EM Algorithm (Dempster, Laird and Rubin, 1977); k-means++: The
Advantages of Careful Seeding (Arthur and Vassilvitskii, 2007)
"""

from __future__ import annotations

from typing import Any, NamedTuple, cast

import torch
from torch import Tensor
from torch.distributions import Distribution, Independent, MixtureSameFamily, MultivariateNormal

from kullback.common.dtypes import upcast
from kullback.common.progress import progress_bar
from kullback.common.special import safe_log
from kullback.errors import invalid_value
from kullback.fitting.exact_fit import matched_like, normalized_weights
from kullback.fitting.fit_result import FitProblem
from kullback.fitting.objective import log_prob_of_draws
from kullback.fitting.targets import DrawsTarget, nodes_of
from kullback.fitting.unconstrained import Family
from kullback.pairs.densities.composite import log_weights_of
from kullback.pairs.densities.density import density_of
from kullback.samples import Samples

# EM takes at most this number of steps. The number affects only the time, because EM converges linearly, and
# quasi-Newton steps follow.
_MOST_STEPS = 500
# EM stops if a step lowers the value by less than `_GAIN` times (1 + |value|), and quasi-Newton steps follow.
# `benchmarks/bench_fit.py` measures the time of EM and quasi-Newton steps together.
_GAIN = 1e-7
# A component counts as collapsed to one draw if its scale is below this fraction of the data's standard deviation. The
# likelihood is unbounded at a collapsed component, so EM from this start has no result.
_COLLAPSED = 1e-6
_MIXING, _PART = "mixture_distribution.", "component_distribution."


class MixtureStart(NamedTuple):
    """The parameters after EM, and the negative log-likelihood before and after each EM step."""

    values: dict[str, Tensor]
    history: list[Tensor]


def best_start(problem: FitProblem) -> MixtureStart | None:
    """Return the best of EM's results from several starts; None if EM is not possible.

    EM is possible if q is not a batch, the target has weighted points, and the fit of a component has a closed form.
    """
    q, family, settings = cast("MixtureSameFamily", problem.q), problem.family, problem.settings
    data = _data(problem.target)
    if q.batch_shape or data is None or not _serves(q, data, family):
        return None
    results: list[MixtureStart] = []
    starts = settings.starts or 1
    with progress_bar("starts", show=settings.show_progress) as update:
        for number in range(starts):
            start = {name: leaf.value for name, leaf in family.free.items()}
            if number:
                start = _random_start(q, data, family, settings.generator)
            results.append(_run(family, data, start))
            if update:
                update(number + 1, starts)
    good = [start for start in results if bool(start.history[-1].isfinite())]
    if not good:
        raise invalid_value(
            "fit",
            "q, to",
            wanted="a start that does not shrink a component to a single point, where the likelihood has no maximum",
            got=f"components that shrink to a point, from each of {len(results)} starts",
            instead="fixed=('component_distribution.scale',), a q with fewer components, or starts=10",
        )
    return min(good, key=lambda start: float(start.history[-1]))


def _data(target: Any) -> Samples | None:
    """Return weighted points, a target's draws or quadrature nodes; None without draws or a density of one number."""
    if isinstance(target, Samples):
        return target
    if not isinstance(target, Distribution) or target.event_shape or target.batch_shape:
        return None
    density = density_of(target)
    if density is None or density.integer:
        return None
    x, weights = nodes_of(density)
    return Samples(x, weights=weights)


def _serves(q: MixtureSameFamily, data: Samples, family: Family) -> bool:
    n, count = len(data), q.mixture_distribution.param_shape[-1]
    even = torch.full((n, count), 1 / n, dtype=torch.float64, device="cpu")
    size = q.event_shape.numel()
    if data.tensor.shape[-1] != size or len(q.event_shape) > 1:
        return False
    return _maximized(q, data, even, family) is not None


def _maximized(
    q: MixtureSameFamily, data: Samples, weights: Tensor, family: Family
) -> dict[str, Tensor] | None:
    """Return the likeliest free parameters for `weights`, shape (n, components); None without a formula."""
    part: Any = q.component_distribution
    fixed = frozenset(name.rpartition(".")[2] for name in family.constant)
    x = upcast(data.tensor)
    n, count = weights.shape
    if isinstance(part, MultivariateNormal):
        about = upcast(part.loc) if "loc" in fixed else weights.mT @ x
        d = x.unsqueeze(1) - about
        covariance = torch.einsum("nk,nki,nkj->kij", weights, d, d)
        root, failed = torch.linalg.cholesky_ex(covariance)
        root = torch.where((failed != 0)[:, None, None], torch.nan, root)
        parameters: dict[str, Tensor] | None = {"loc": about, "scale_tril": root}
    elif (
        isinstance(part, Independent)
        and part.reinterpreted_batch_ndims == 1
        and not part.base_dist.event_shape
    ):
        draws = x.unsqueeze(1).expand(n, count, x.shape[-1])
        parameters = matched_like(part.base_dist, DrawsTarget(draws, weights.unsqueeze(-1)), fixed)
    elif not part.event_shape:
        parameters = matched_like(part, DrawsTarget(x[:, :1].expand(n, count), weights), fixed)
    else:
        return None
    if parameters is None:
        return None
    named = {_PART + name: value for name, value in parameters.items() if _PART + name in family.free}
    names = {name for name in family.free if name.startswith(_PART)}
    return named if named.keys() == names else None


def _run(family: Family, data: Samples, start: dict[str, Tensor]) -> MixtureStart:
    weights = normalized_weights(data)
    values, history = start, [torch.tensor(torch.inf, dtype=torch.float64, device="cpu")]
    spread = _spread(data).amax()
    for _ in range(_MOST_STEPS):
        q: Any = family.build(values)
        joint = log_prob_of_draws(q.component_distribution, data) + log_weights_of(q)
        log_q = joint.logsumexp(-1)
        history.append(-torch.tensordot(weights, log_q, 1))
        if not bool(history[-1].isfinite()):
            break
        if bool(history[-2] - history[-1] < _GAIN * (1 + history[-1].abs())):
            break
        r = torch.exp(joint - log_q.unsqueeze(-1)) * weights.unsqueeze(-1)
        mass = r.sum(0)
        parts = _maximized(q, data, r / mass.clamp(min=1e-300), family)
        if parts is None or _has_collapsed(parts, mass, spread):
            history.append(torch.tensor(torch.inf, dtype=torch.float64, device="cpu"))
            break
        values = {**values, **parts, **_mixing(mass, family)}
    return MixtureStart(values, history[1:])


def _spread(data: Samples) -> Tensor:
    x, weights = upcast(data.tensor), normalized_weights(data)
    d = x - torch.tensordot(weights, x, 1)
    return torch.tensordot(weights, d * d, 1).sqrt().clamp(min=1e-300)


def _has_collapsed(parts: dict[str, Tensor], mass: Tensor, spread: Tensor) -> bool:
    if not all(bool(x.isfinite().all()) for x in parts.values()) or bool((mass < 1e-12).any()):
        return True
    scales = [
        x if x.ndim < 3 else x.diagonal(dim1=-2, dim2=-1) for name, x in parts.items() if "scale" in name
    ]
    return any(bool((x < _COLLAPSED * spread).any()) for x in scales)


def _random_start(
    q: MixtureSameFamily, data: Samples, family: Family, generator: torch.Generator | None
) -> dict[str, Tensor]:
    """Return the parameters of a random start: one component for each cluster of k-means++.

    k-means++ draws each center with a probability proportional to the squared distance from the earlier centers.
    """
    x, weights = upcast(data.tensor), normalized_weights(data)
    count = q.mixture_distribution.param_shape[-1]
    z = x / _spread(data)
    distance = torch.full((len(data),), torch.inf, dtype=torch.float64, device="cpu")
    owner = torch.zeros(len(data), dtype=torch.int64, device="cpu")
    for k in range(count):
        probabilities = weights if k == 0 else weights * distance
        index = int(torch.multinomial(probabilities.clamp(min=1e-300), 1, generator=generator))
        to_this = ((z - z[index]) ** 2).sum(-1)
        owner = torch.where(to_this < distance, k, owner)
        distance = torch.minimum(distance, to_this)
    r = torch.nn.functional.one_hot(owner, count) * weights.unsqueeze(-1)
    # A tenth of each point's weight is shared equally by all components, so that no component starts at a single point.
    r = 0.9 * r + 0.1 * r.sum(-1, keepdim=True) / count
    mass = r.sum(0)
    parts = _maximized(q, data, r / mass, family) or {}
    values = {name: leaf.value for name, leaf in family.free.items()}
    return {**values, **parts, **_mixing(mass, family)}


def _mixing(mass: Tensor, family: Family) -> dict[str, Tensor]:
    """Return the free parameters (probs or logits) of the mixing distribution for these masses of the components."""
    names = [name for name in family.free if name.startswith(_MIXING)]
    return {name: safe_log(mass) if name.endswith("logits") else mass / mass.sum() for name in names}
