r"""The member of an exponential family with the smallest KL(P || Q), in closed form.

Under this member, the sufficient statistics T have the same means as under P. The divergence
:math:`KL(P \| Q_\eta) = -H(P) + A(\eta) - \eta \cdot E_P[T] + \dots` is convex in the natural parameters :math:`\eta`.
The derivative :math:`E_{Q_\eta}[T] - E_P[T]` is 0 at the minimum. This module has formulas for families of classes,
vectors and matrices; families of numbers have their formulas in `kullback.pairs.families`.

Information Theory and Statistics (Kullback, 1959), chapter 3; Estimating a Dirichlet distribution (Minka, 2000)
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor
from torch.distributions import (
    Categorical,
    Dirichlet,
    Distribution,
    Independent,
    LowRankMultivariateNormal,
    MixtureSameFamily,
    Multinomial,
    MultivariateNormal,
    Normal,
    OneHotCategorical,
    Wishart,
)

from kullback.common.dtypes import tensor_of, upcast
from kullback.common.roots import bisect
from kullback.common.special import digamma, safe_log
from kullback.estimators.draws import shares_of
from kullback.fitting.targets import DrawsTarget, MeanTarget, target_of
from kullback.fitting.unconstrained import Family
from kullback.pairs.clone import parts_of
from kullback.pairs.densities.composite import log_weights_of
from kullback.pairs.families.beta import dirichlet_from_mean_logs
from kullback.pairs.family import FAMILIES, Means, Parameters, family_of, overrides_density
from kullback.pairs.numerics.parameters import categorical_of, given_logits
from kullback.samples import Samples


def nearest(
    q: Distribution, to: Distribution | Samples, family: Family, fixed: frozenset[str]
) -> tuple[Parameters | None, bool]:
    """Return the free parameters with the smallest KL(to || q), and whether all parameters are in their ranges.

    The parameters are float64 tensors with values rounded to the dtype of the start. Without a formula, the results are
    None and False. `q` is the start, with the batch shape of the fit; `q` and `to` are in float64.
    """
    parameters = _parameters(q, to, fixed)
    if parameters is None or not family.free.keys() <= parameters.keys():
        return None, False
    record = family_of(type(q))
    ends = () if record is None else record.support
    values: Parameters = {}
    for name, leaf in family.free.items():
        x = parameters[name].expand(leaf.value.shape)
        x = _outwards(x, 2 * ends.index(name) - 1, family.dtype) if name in ends else x
        values[name] = upcast(x.to(family.dtype))
    return values, isinstance(q, Categorical | OneHotCategorical) or family.are_inside(values)


def _outwards(x: Tensor, side: int, dtype: torch.dtype) -> Tensor:
    """Return `x`, the lower (`side` -1) or upper (1) end of a support, rounded outwards to `dtype`."""
    rounded = x.to(dtype)
    further = torch.nextafter(rounded, torch.full_like(rounded, side * torch.inf))
    return torch.where(side * (rounded.to(x.dtype) - x) < 0, further, rounded).to(x.dtype)


def _parameters(q: Distribution, to: Distribution | Samples, fixed: frozenset[str]) -> Parameters | None:
    for part in parts_of(to) if isinstance(to, Distribution) else ():
        if part.event_shape and overrides_density(part):
            return None  # the formulas in `_RULES` assume that the density is the density of torch's class
    for families, rule in _RULES:
        if isinstance(q, families):
            return rule(q, to, fixed)
    if q.event_shape or isinstance(q, MixtureSameFamily):
        return None
    target = _draws(to, numbers=True) if isinstance(to, Samples) else target_of(to)
    return None if target is None else matched_like(q, target, fixed)


def matched_like(q: Distribution, target: MeanTarget, fixed: frozenset[str]) -> Parameters | None:
    """Return the parameters of q's family of numbers that give the sufficient statistics the target's means.

    Probabilities are returned as probs or as logits, like the parameters of q. The result is None without a formula.
    """
    start = {
        name: upcast(tensor_of(getattr(q, name))).expand(q.batch_shape)
        for name in q.arg_constraints
        if name != "logits"
    }
    parameters = _matched(type(q), target, start, fixed)
    if parameters is None:
        return None
    if "logits" in parameters and not given_logits(q):
        return {"probs": torch.sigmoid(parameters["logits"])}
    if "probs" in parameters and given_logits(q):
        probs = parameters["probs"]
        return {"logits": torch.log(probs) - torch.log1p(-probs)}
    return parameters


def _matched(
    family: type[Distribution], target: MeanTarget, start: Parameters, fixed: frozenset[str]
) -> Parameters | None:
    """Return the parameters that give the sufficient statistics of a family of numbers the target's means.

    `start` has the parameters of the start, and `fixed` the names of the parameters that keep these values.
    """
    record = FAMILIES.get(family)
    if record is None or record.match is None or (target.has_integers and not record.has_integers):
        return None
    with torch.no_grad():
        return record.match(cast("Means", target), start, fixed)


def normalized_weights(draws: Samples) -> Tensor:
    """Return the weights of draws in float64, normalized to the sum 1."""
    return shares_of(draws, torch.empty(0, dtype=torch.float64, device="cpu"))


def _draws(to: Samples, *, numbers: bool = False) -> Any:
    x = upcast(to.tensor)
    if numbers:
        if x.shape[-1] != 1:
            return None
        x = x[:, 0]
    return DrawsTarget(x, normalized_weights(to))


# ---- Classes.


def _classes(
    q: Categorical | OneHotCategorical, to: Distribution | Samples, fixed: frozenset[str]
) -> Parameters | None:
    count = q.param_shape[-1]
    if isinstance(to, Samples):
        probs = _shares(to, count, one_hot=isinstance(q, OneHotCategorical))
    else:
        probs = _probabilities(to)
    return None if probs is None or probs.shape[-1] != count else _as_given(q, probs)


def _shares(draws: Samples, count: int, *, one_hot: bool) -> Tensor | None:
    """Return the frequency of each of `count` classes in draws, one-hot vectors if `one_hot`; else None."""
    weights, size = normalized_weights(draws), draws.tensor.shape[-1]
    if one_hot:
        return torch.tensordot(weights, upcast(draws.tensor), 1) if size == count else None
    index = draws.tensor[:, 0].long()
    if size != 1 or bool(((index < 0) | (index >= count)).any()):
        return None
    return torch.zeros(count, dtype=torch.float64, device="cpu").index_add(0, index, weights)


def _multinomial(q: Multinomial, to: Distribution | Samples, fixed: frozenset[str]) -> Parameters | None:
    if isinstance(to, Multinomial) and to.total_count == q.total_count:
        return _as_given(q, upcast(to.probs))
    if isinstance(to, Samples) and bool((to.tensor.sum(-1) == q.total_count).all()):
        return _as_given(q, _draws(to).mean() / q.total_count)
    return None


def _probabilities(d: Distribution) -> Tensor | None:
    """Return the probabilities of the classes of `d`; for a mixture, the weighted mean over its components."""
    part = categorical_of(d)
    if part is not None:
        return upcast(part.logits).softmax(-1) if given_logits(part) else upcast(part.probs)
    return _mean_of_components(_probabilities, d)


def _mean_of_components(of: Callable[[Distribution], Tensor | None], d: Distribution) -> Tensor | None:
    """Return the weighted mean of `of(component)` over the components of a mixture `d`; None for others."""
    if not isinstance(d, MixtureSameFamily) or (vectors := of(d.component_distribution)) is None:
        return None
    return (torch.exp(log_weights_of(d)).unsqueeze(-1) * vectors).sum(-2)


def _as_given(q: Any, probs: Tensor) -> Parameters:
    own = getattr(q, "_categorical", q)
    return {"logits": safe_log(probs)} if given_logits(own) else {"probs": probs}


# ---- Vectors.


def _dirichlet(q: Dirichlet, to: Distribution | Samples, fixed: frozenset[str]) -> Parameters | None:
    logs = _mean_logs(to)
    return None if logs is None else {"concentration": dirichlet_from_mean_logs(logs)}


def _mean_logs(to: Distribution | Samples) -> Tensor | None:
    if isinstance(to, Samples):
        return torch.tensordot(normalized_weights(to), torch.log(upcast(to.tensor)), 1)
    if isinstance(to, Dirichlet):
        a = upcast(to.concentration)
        return digamma(a) - digamma(a.sum(-1, keepdim=True))
    return _mean_of_components(_mean_logs, to)


def _mean_and_covariance(
    to: Distribution | Samples, about: Tensor | None = None
) -> tuple[Tensor, Tensor] | None:
    """Return the mean, and the covariance matrix or, if `about` is a point, the second moments about this point."""
    if isinstance(to, Samples):
        x, weights = upcast(to.tensor), normalized_weights(to)
        mean = torch.tensordot(weights, x, 1)
        mean = mean + torch.tensordot(weights, x - mean, 1)
        d = x - (mean if about is None else about.unsqueeze(-2))
        return mean, d.mT @ (weights.unsqueeze(-1) * d)
    moments = _own_mean_and_covariance(to)
    if moments is None or about is None:
        return moments
    d = moments[0] - about
    return moments[0], moments[1] + d.unsqueeze(-1) * d.unsqueeze(-2)


def _own_mean_and_covariance(to: Distribution) -> tuple[Tensor, Tensor] | None:
    moments: tuple[Tensor, Tensor] | None = None
    if isinstance(to, MultivariateNormal):
        moments = upcast(to.loc), upcast(to.scale_tril) @ upcast(to.scale_tril).mT
    elif isinstance(to, LowRankMultivariateNormal):
        moments = upcast(to.loc), upcast(to.covariance_matrix)
    elif isinstance(to, MixtureSameFamily):
        of_parts = _own_mean_and_covariance(to.component_distribution)
        if of_parts is not None:
            means, covariances = of_parts
            weights = torch.exp(log_weights_of(to)).unsqueeze(-1)
            mean = (weights * means).sum(-2)
            d = means - mean.unsqueeze(-2)
            second = covariances + d.unsqueeze(-1) * d.unsqueeze(-2)
            moments = mean, (weights.unsqueeze(-1) * second).sum(-3)
    elif isinstance(to, Independent) and len(to.event_shape) == to.reinterpreted_batch_ndims == 1:
        target = target_of(to)
        of_each = None if target is None else _matched(Normal, target, {}, frozenset())
        if of_each is not None:
            moments = of_each["loc"], torch.diag_embed(of_each["scale"] ** 2)
    return moments


def _normal(q: MultivariateNormal, to: Distribution | Samples, fixed: frozenset[str]) -> Parameters | None:
    about = upcast(q.loc) if "loc" in fixed else None
    moments = _mean_and_covariance(to, about)
    if moments is None or moments[0].shape[-1] != q.event_shape[-1]:
        return None
    root, failed = torch.linalg.cholesky_ex(moments[1])
    root = torch.where((failed != 0)[..., None, None], torch.nan, root)
    return {"loc": moments[0] if about is None else about, "scale_tril": root}


def _independent(q: Any, to: Distribution | Samples, fixed: frozenset[str]) -> Parameters | None:
    base: Any = q.base_dist
    if isinstance(base, Independent) or base.event_shape or q.reinterpreted_batch_ndims != 1:
        if isinstance(to, Independent) and to.event_shape == q.event_shape and not base.event_shape:
            target = target_of(to.base_dist)
            return None if target is None else matched_like(base, target, fixed)
        return None
    if isinstance(to, Samples):
        return matched_like(base, _draws(to), fixed) if to.tensor.shape[-1] == q.event_shape[0] else None
    if isinstance(base, Normal) and not (fixed & {"loc", "scale"}):
        moments = _mean_and_covariance(to)
        if moments is not None and moments[0].shape[-1] == q.event_shape[0]:
            return {"loc": moments[0], "scale": moments[1].diagonal(dim1=-2, dim2=-1).sqrt()}
    target = target_of(to) if isinstance(to, Independent | MixtureSameFamily) else None
    return None if target is None else matched_like(base, target, fixed)


def _wishart(q: Wishart, to: Distribution | Samples, fixed: frozenset[str]) -> Parameters | None:
    """Return the parameters df and V of the Wishart distribution of a d x d matrix X with the means of the target `to`.

    They solve E[X] = df V and E[log det X] = psi_d(df / 2) + d log 2 + log det V, where E is a mean under the target.
    psi_d is the derivative of the logarithm of the d-dimensional gamma function.
    """
    means = _matrix_means(to)
    if means is None:
        return None
    mean, log_det = means
    d = q.event_shape[-1]
    if fixed & {"scale_tril", "covariance_matrix", "precision_matrix"}:
        mean_log = log_det - d * math.log(2) - _log_det(upcast(q.scale_tril))

        def excess(a: Tensor) -> Tensor:
            return _digamma(a, d) - mean_log
    else:
        # The two equations give log det E[X] - E[log det X] = d log(df / 2) - psi_d(df / 2), which determines df.
        rest = torch.logdet(mean) - log_det

        def excess(a: Tensor) -> Tensor:
            return rest - d * torch.log(a) + _digamma(a, d)

    df = upcast(q.df)
    if "df" not in fixed:
        edge = (d - 1) / 2
        low, high = torch.full_like(log_det, -40.0), torch.full_like(log_det, 40.0)
        df = 2 * (edge + torch.exp(bisect(lambda u: excess(edge + torch.exp(u)), low, high)))
    scale_tril = torch.linalg.cholesky(mean / df[..., None, None])
    return {"df": df, "scale_tril": scale_tril}


def _digamma(a: Tensor, d: int) -> Tensor:
    """Return psi_d(a), the derivative of the logarithm of the d-dimensional gamma function."""
    steps = torch.arange(d, dtype=torch.float64, device="cpu") / 2
    return digamma(a.unsqueeze(-1) - steps).sum(-1)


def _log_det(root: Tensor) -> Tensor:
    """Return the log-determinant of the matrix with the Cholesky factor `root`."""
    return 2 * root.diagonal(dim1=-2, dim2=-1).log().sum(-1)


def _matrix_means(to: Distribution | Samples) -> tuple[Tensor, Tensor] | None:
    """Return E[X] and E[log det X] of a matrix X with the distribution `to`, a Wishart or a mixture; otherwise None."""
    if isinstance(to, Wishart):
        df, root, d = upcast(to.df), upcast(to.scale_tril), to.event_shape[-1]
        of_df = _digamma(df / 2, d) + d * math.log(2)
        return df[..., None, None] * (root @ root.mT), of_df + _log_det(root)
    of_parts = _matrix_means(to.component_distribution) if isinstance(to, MixtureSameFamily) else None
    if of_parts is None:
        return None
    (matrices, log_dets), weights = of_parts, torch.exp(log_weights_of(cast("MixtureSameFamily", to)))
    return (weights[..., None, None] * matrices).sum(-3), (weights * log_dets).sum(-1)


# For families of classes, vectors and matrices, this table has the function that returns the nearest parameters.
_RULES: tuple[tuple[Any, Any], ...] = (
    ((Categorical, OneHotCategorical), _classes),
    (Multinomial, _multinomial),
    (Dirichlet, _dirichlet),
    (MultivariateNormal, _normal),
    (Wishart, _wishart),
    (Independent, _independent),
)
