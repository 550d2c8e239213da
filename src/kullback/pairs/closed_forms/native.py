"""Pairs of families whose closed form the C++ kernels compute.

The plain torch functions compute the other cases: other devices, tensors of torch.func, second derivatives, and
parameters so extreme that the arithmetic would leave the range of float64.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from itertools import product
from operator import attrgetter
from types import SimpleNamespace
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor
from torch._C import (
    _functorch,  # pyright: ignore[reportPrivateUsage, reportAttributeAccessIssue]
    _len_torch_dispatch_stack,  # pyright: ignore[reportPrivateUsage]
)
from torch.autograd import forward_ad
from torch.distributions import (
    Bernoulli,
    Beta,
    Binomial,
    Categorical,
    Cauchy,
    Chi2,
    ContinuousBernoulli,
    Dirichlet,
    Distribution,
    Exponential,
    Gamma,
    Geometric,
    Gumbel,
    HalfCauchy,
    HalfNormal,
    Independent,
    InverseGamma,
    Laplace,
    LogisticNormal,
    LogNormal,
    LowRankMultivariateNormal,
    MultivariateNormal,
    Normal,
    OneHotCategorical,
    Pareto,
    Poisson,
    Uniform,
    Wishart,
)

from kullback.inputs import recordable
from kullback.kernels.codes import ElementForm, RowForm
from kullback.kernels.native import library
from kullback.kernels.native.closed_forms import Form, Parameters, divergence, required_gradients
from kullback.numeric import upcast
from kullback.pairs.closed_forms.dirichlet import dirichlet_divergence
from kullback.pairs.closed_forms.infinite import ALWAYS_INFINITE, infinite_divergence
from kullback.pairs.closed_forms.multivariate_normal import (
    full_to_low_rank_divergence,
    full_to_low_rank_gradients,
    low_rank_divergence,
    low_rank_gradients,
    low_rank_to_full_divergence,
    low_rank_to_full_gradients,
    root_of_matrix,
    roots_suffice,
)
from kullback.pairs.numerics.parameters import first_given, given_logits
from kullback.pairs.overrides import overrides_density
from kullback.pairs.registry import ClosedForm, plan_for
from kullback.pairs.torch_registry import TypePair

__all__ = ["fused_divergence", "fused_divergence_of_logits"]

_is_available = cache(library.is_available)


class _Pair(NamedTuple):
    """The kernel's form for a pair of families, and the readers of their parameters."""

    types: TypePair
    read_p: Callable[[Any], Parameters]
    read_q: Callable[[Any], Parameters]
    form: Form


# The parameters of each family, in the order of the kernels.
_PARAMETERS: dict[type, str] = {
    Normal: "loc scale",
    LogNormal: "base_dist.loc base_dist.scale",
    Laplace: "loc scale",
    Cauchy: "loc scale",
    Gumbel: "loc scale",
    Exponential: "rate",
    Gamma: "concentration rate",
    Chi2: "concentration rate",
    InverseGamma: "base_dist.concentration base_dist.rate",
    HalfNormal: "base_dist.scale",
    HalfCauchy: "base_dist.scale",
    Pareto: "scale alpha",
    Uniform: "low high",
    Beta: "concentration1 concentration0",
    Poisson: "rate",
    Dirichlet: "concentration",
}


def _pair(
    family: type,
    code: ElementForm | RowForm,
    *,
    other: type | None = None,
    p: str = "",
    q: str = "",
    may_be_infinite: bool = False,
) -> _Pair:
    """Return the pair of a family with itself or with `other`; `p` and `q` override the names of the parameters."""
    types = family, family if other is None else other
    q = p if other is None else q
    names = [(given or _PARAMETERS[kind]).split() for given, kind in ((p, types[0]), (q, types[1]))]

    def reference(parameters: Parameters) -> Tensor:
        sides = parameters[: len(names[0])], parameters[len(names[0]) :]
        p, q = (
            SimpleNamespace(**{name.rpartition(".")[2]: x for name, x in zip(words, side, strict=True)})
            for words, side in zip(names, sides, strict=True)
        )
        return cast(ClosedForm, plan_for(*types).closed_form).function(p, q)  # pyright: ignore[reportReturnType]

    operator = "closed_form_of_rows" if isinstance(code, RowForm) else "closed_form"
    form = Form(operator, code.value, reference, may_be_infinite)
    return _Pair(types, _reader(names[0]), _reader(names[1]), form)


def _reader(names: list[str]) -> Callable[[Any], Parameters]:
    if len(names) == 1:
        get: Callable[[Any], Tensor] = attrgetter(names[0])
        return lambda distribution: (get(distribution),)
    return attrgetter(*names)


_PAIRS: dict[TypePair, _Pair] = {
    pair.types: pair
    for pair in (
        _pair(Normal, ElementForm.NORMAL),
        _pair(LogNormal, ElementForm.NORMAL),
        _pair(Laplace, ElementForm.LAPLACE),
        _pair(Cauchy, ElementForm.CAUCHY),
        _pair(Gumbel, ElementForm.GUMBEL),
        _pair(Exponential, ElementForm.EXPONENTIAL),
        _pair(Gamma, ElementForm.GAMMA),
        _pair(Chi2, ElementForm.GAMMA),
        _pair(Gamma, ElementForm.GAMMA_EXPONENTIAL, other=Exponential),
        _pair(Exponential, ElementForm.EXPONENTIAL_GAMMA, other=Gamma),
        _pair(InverseGamma, ElementForm.GAMMA),
        _pair(HalfNormal, ElementForm.HALF_NORMAL),
        _pair(HalfCauchy, ElementForm.HALF_CAUCHY),
        _pair(Pareto, ElementForm.PARETO, may_be_infinite=True),
        _pair(Uniform, ElementForm.UNIFORM, may_be_infinite=True),
        _pair(Beta, ElementForm.BETA),
        _pair(Poisson, ElementForm.POISSON),
        _pair(Dirichlet, RowForm.DIRICHLET),
        _pair(Normal, ElementForm.NORMAL_LAPLACE, other=Laplace),
        _pair(Laplace, ElementForm.LAPLACE_NORMAL, other=Normal),
        _pair(Normal, ElementForm.NORMAL_GUMBEL, other=Gumbel),
        _pair(Gumbel, ElementForm.GUMBEL_NORMAL, other=Normal),
        _pair(Uniform, ElementForm.UNIFORM_NORMAL, other=Normal),
        _pair(Uniform, ElementForm.UNIFORM_EXPONENTIAL, other=Exponential, may_be_infinite=True),
        _pair(Uniform, ElementForm.UNIFORM_GUMBEL, other=Gumbel),
        _pair(Uniform, ElementForm.UNIFORM_PARETO, other=Pareto, may_be_infinite=True),
        _pair(Uniform, ElementForm.UNIFORM_GAMMA, other=Gamma, may_be_infinite=True),
        _pair(Uniform, ElementForm.UNIFORM_BETA, other=Beta, may_be_infinite=True),
        _pair(Exponential, ElementForm.EXPONENTIAL_NORMAL, other=Normal),
        _pair(Exponential, ElementForm.EXPONENTIAL_GUMBEL, other=Gumbel),
        _pair(Gamma, ElementForm.GAMMA_NORMAL, other=Normal),
        _pair(Gamma, ElementForm.GAMMA_GUMBEL, other=Gumbel),
        _pair(Beta, ElementForm.BETA_GAMMA, other=Gamma),
        _pair(Beta, ElementForm.BETA_EXPONENTIAL, other=Exponential),
        _pair(Beta, ElementForm.BETA_NORMAL, other=Normal),
        _pair(Beta, ElementForm.BETA_UNIFORM, other=Uniform, may_be_infinite=True),
        _pair(Pareto, ElementForm.PARETO_GAMMA, other=Gamma, may_be_infinite=True),
        _pair(Pareto, ElementForm.PARETO_EXPONENTIAL, other=Exponential, may_be_infinite=True),
        _pair(Pareto, ElementForm.PARETO_NORMAL, other=Normal, may_be_infinite=True),
    )
}
# The pairs of families with two parametrizations: from logits, and from probabilities.
_LOGITS_AND_PROBS: dict[TypePair, tuple[_Pair, _Pair]] = {
    (Bernoulli, Bernoulli): (
        _pair(Bernoulli, ElementForm.BERNOULLI_LOGITS, p="logits"),
        _pair(Bernoulli, ElementForm.BERNOULLI_PROBS, p="probs", may_be_infinite=True),
    ),
    (Bernoulli, Poisson): (
        _pair(Bernoulli, ElementForm.BERNOULLI_LOGITS_POISSON, other=Poisson, p="logits"),
        _pair(Bernoulli, ElementForm.BERNOULLI_POISSON, other=Poisson, p="probs"),
    ),
    (Binomial, Binomial): (
        _pair(Binomial, ElementForm.BINOMIAL_LOGITS, p="total_count logits"),
        _pair(Binomial, ElementForm.BINOMIAL_PROBS, p="total_count probs", may_be_infinite=True),
    ),
    (Geometric, Geometric): (
        _pair(Geometric, ElementForm.GEOMETRIC_LOGITS, p="logits"),
        _pair(Geometric, ElementForm.GEOMETRIC_PROBS, p="probs", may_be_infinite=True),
    ),
    (Categorical, Categorical): (
        _pair(Categorical, RowForm.CATEGORICAL_LOGITS, p="logits", may_be_infinite=True),
        _pair(Categorical, RowForm.CATEGORICAL_PROBS, p="probs", may_be_infinite=True),
    ),
    (OneHotCategorical, OneHotCategorical): (
        _pair(OneHotCategorical, RowForm.CATEGORICAL_LOGITS, p="_categorical.logits", may_be_infinite=True),
        _pair(OneHotCategorical, RowForm.CATEGORICAL_PROBS, p="_categorical.probs", may_be_infinite=True),
    ),
    **{
        (p, q): (
            _pair(p, logits, other=q, **{side: "logits"}, may_be_infinite=Uniform in (p, q)),
            _pair(p, probs, other=q, **{side: "probs"}, may_be_infinite=Uniform in (p, q)),
        )
        for p, q, side, logits, probs in (
            (
                ContinuousBernoulli,
                Exponential,
                "p",
                ElementForm.CONTINUOUS_BERNOULLI_LOGITS_EXPONENTIAL,
                ElementForm.CONTINUOUS_BERNOULLI_PROBS_EXPONENTIAL,
            ),
            (
                ContinuousBernoulli,
                Normal,
                "p",
                ElementForm.CONTINUOUS_BERNOULLI_LOGITS_NORMAL,
                ElementForm.CONTINUOUS_BERNOULLI_PROBS_NORMAL,
            ),
            (
                ContinuousBernoulli,
                Uniform,
                "p",
                ElementForm.CONTINUOUS_BERNOULLI_LOGITS_UNIFORM,
                ElementForm.CONTINUOUS_BERNOULLI_PROBS_UNIFORM,
            ),
            (
                Uniform,
                ContinuousBernoulli,
                "q",
                ElementForm.UNIFORM_CONTINUOUS_BERNOULLI_LOGITS,
                ElementForm.UNIFORM_CONTINUOUS_BERNOULLI_PROBS,
            ),
            (
                Beta,
                ContinuousBernoulli,
                "q",
                ElementForm.BETA_CONTINUOUS_BERNOULLI_LOGITS,
                ElementForm.BETA_CONTINUOUS_BERNOULLI_PROBS,
            ),
        )
    },
    (ContinuousBernoulli, ContinuousBernoulli): (
        _pair(ContinuousBernoulli, ElementForm.CONTINUOUS_BERNOULLI_LOGITS, p="logits"),
        _pair(ContinuousBernoulli, ElementForm.CONTINUOUS_BERNOULLI_PROBS, p="probs"),
    ),
}


# The matrix parameters of a multivariate normal, in the order of the MatrixKinds.
_MATRICES = ("scale_tril", "covariance_matrix", "precision_matrix")


def _pair_of_normals(code: int, *names: str) -> _Pair:
    def reference(parameters: Parameters) -> Tensor:
        p, q = (
            MultivariateNormal(loc, **{name: matrix}, validate_args=False)  # pyright: ignore[reportArgumentType]
            for name, loc, matrix in zip(names, parameters[::2], parameters[1::2], strict=True)
        )
        return cast(ClosedForm, plan_for(*types).closed_form).function(p, q)  # pyright: ignore[reportReturnType]

    types = MultivariateNormal, MultivariateNormal
    read_p, read_q = (attrgetter("loc", name) for name in names)
    return _Pair(types, read_p, read_q, Form("closed_form_of_normals", code, reference, False))


_NORMALS: dict[tuple[str, ...], _Pair] = {
    names: _pair_of_normals(code, *names) for code, names in enumerate(product(_MATRICES, repeat=2))
}
_OF_FACTORS = _NORMALS["scale_tril", "scale_tril"]
# The factor of each matrix if the covariance is multiplied by 4.
_FOURFOLD = {"scale_tril": 2.0, "covariance_matrix": 4.0, "precision_matrix": 0.25}
_LOG_4 = math.log(4)
# The kernels serve Wishart distributions if KL is at least this share of the terms that may cancel. A derivative by the
# degrees of freedom is a difference of such terms. Then KL must also be at least this multiple of P's degrees.
_LEAST_SHARE, _LEAST_WITH_DERIVATIVE = 1 / 8, 1e-6
_LOW_RANK, _FULL = attrgetter("loc", "cov_factor", "cov_diag"), attrgetter("loc", "scale_tril")


# The code is 1 if P has a low-rank covariance, plus 2 if Q has one; see `kullback.kernels.native.closed_forms`.
_FACTORS: dict[TypePair, _Pair] = {
    types: _Pair(
        types,
        _LOW_RANK if low_rank & 1 else _FULL,
        _LOW_RANK if low_rank & 2 else _FULL,
        Form("closed_form_of_factors", low_rank, reference, False, gradients),
    )
    for types, low_rank, reference, gradients in (
        (
            (LowRankMultivariateNormal, LowRankMultivariateNormal),
            3,
            low_rank_divergence,
            low_rank_gradients,
        ),
        (
            (LowRankMultivariateNormal, MultivariateNormal),
            1,
            low_rank_to_full_divergence,
            low_rank_to_full_gradients,
        ),
        (
            (MultivariateNormal, LowRankMultivariateNormal),
            2,
            full_to_low_rank_divergence,
            full_to_low_rank_gradients,
        ),
    )
}
_LOGITS = _LOGITS_AND_PROBS[Categorical, Categorical][0]
_DIRICHLETS = (Dirichlet, Dirichlet)
_SHORT = 32
# The largest number of classes of a Dirichlet distribution in one row of the kernel.
_LONGEST_ROW = 256
# The rounded differences of totals may be at most this many times as large as KL.
_DIGITS_OF_TOTALS = 1e3
# From these numbers of dimensions on, torch's own libraries are faster than the kernel: for Cholesky factors, and for
# other matrices.
_LARGE_ROOT, _LARGE_MATRIX = 512, 128
# The pairs whose parametrization decides whether the kernels serve them.
_MANY = dict.fromkeys((*_LOGITS_AND_PROBS, *_FACTORS, _OF_FACTORS.types))


def fused_divergence(p: object, q: object) -> Tensor | None:
    """Return KL(P || Q) in the dtype of the parameters; None if the kernels do not serve this pair.

    Pairs with an infinite divergence for all parameters need no kernel.
    """
    if torch.compiler.is_compiling():
        return None
    types = type(p), type(q)
    pair = _PAIRS.get(types)
    if pair is None:
        if types in ALWAYS_INFINITE:
            is_own = "log_prob" in vars(p) or "log_prob" in vars(q)
            return None if is_own else infinite_divergence(types, p, q)
        pair = _other_pair(types, p, q)
    if pair is None:
        return _without_pair(types, p, q)
    if not _is_ordinary_call(types) or "log_prob" in vars(p) or "log_prob" in vars(q):
        return None
    parameters = pair.read_p(p) + pair.read_q(q)
    required = required_gradients(parameters)
    if required is None and any(isinstance(x, Tensor) and x.is_inference() for x in parameters):
        parameters = tuple(map(recordable, parameters))  # autograd saves no tensor of inference mode
        required = required_gradients(parameters)
    if required is None or not _is_comparable(pair.form, parameters):
        return None
    is_long = pair.types == _DIRICHLETS and parameters[0].shape[-1] > _LONGEST_ROW
    compute = _in_groups if is_long else divergence
    return compute(pair.form, parameters, required)


def fused_divergence_of_logits(p: Tensor, q: Tensor) -> Tensor | None:
    """Return KL between short rows of logits; the kernels of rows serve long ones."""
    if torch.compiler.is_compiling() or not _is_ordinary_call(_LOGITS.types):
        return None
    if not 0 < p.shape[-1] == q.shape[-1] <= _SHORT:
        return None
    required = required_gradients((p, q))
    return None if required is None else divergence(_LOGITS.form, (p, q), required)


def _in_groups(form: Form, parameters: Parameters, _required: list[bool]) -> Tensor | None:
    """Return KL of Dirichlet distributions with more classes than a row of the kernel; None if the kernel declines.

    The totals of groups of classes have a Dirichlet distribution. Independently, so do the shares inside each group. KL
    is the sum of their divergences, which are non-negative.
    """
    a, b = torch.broadcast_tensors(*map(upcast, parameters))
    whole = a.shape[-1] // _LONGEST_ROW * _LONGEST_ROW
    sides = [[x[..., :whole].unflatten(-1, (-1, _LONGEST_ROW)), x[..., whole:].unsqueeze(-2)] for x in (a, b)]
    value: Tensor | None = torch.zeros(a.shape[:-1], dtype=a.dtype, device="cpu")
    totals: list[tuple[Tensor, Tensor, Tensor]] = []
    for part_p, part_q in zip(*sides, strict=True):
        if part_p.shape[-1] == 0:
            continue
        totals.append((part_p.sum(-1), part_q.sum(-1), (part_q - part_p).sum(-1)))
        if part_p.shape[-1] > 1:
            inside = _of(form, part_p.contiguous(), part_q.contiguous())
            if inside is None:
                return None
            value = value + inside.sum(-1)
    total_p, total_q, distance = (torch.cat(x, -1) for x in zip(*totals, strict=True))
    is_short = total_p.shape[-1] <= _LONGEST_ROW
    # The kernel takes the difference of rounded totals.
    if is_short and bool((distance.detach().abs().sum(-1) < _DIGITS_OF_TOTALS * value.detach()).all()):
        of_totals = _of(form, total_p.contiguous(), total_q.contiguous())
    else:
        of_totals = dirichlet_divergence(total_p, total_q, distance)
    return None if of_totals is None else (value + of_totals).clamp(min=0).to(parameters[0].dtype)


def _is_comparable(form: Form, parameters: Parameters) -> bool:
    if form.operator == "closed_form":
        return True
    if form.operator == "closed_form_of_rows":
        return parameters[0].shape[-1] == parameters[1].shape[-1]
    is_low_rank = form.operator == "closed_form_of_factors" and form.code & 1
    return parameters[0].shape == parameters[3 if is_low_rank else 2].shape


def _without_pair(types: TypePair, p: object, q: object) -> Tensor | None:
    """Return KL of a pair that the kernels serve after a conversion; None for other pairs."""
    if types == (Independent, Independent):
        return _of_dimensions(p, q)
    if types == (LogisticNormal, LogisticNormal):
        return _of_bases(types, p, q)
    if types == (Wishart, Wishart):
        return _of_wisharts(types, p, q)
    if isinstance(p, MultivariateNormal) and isinstance(q, MultivariateNormal):
        return _of_matrices(types, p, q)
    return None


def _of_matrices(types: TypePair, p: MultivariateNormal, q: MultivariateNormal) -> Tensor | None:
    """Return KL in many dimensions from the Cholesky factors that torch computed from covariances or precisions.

    The result is None if the factors are less accurate than the matrices: if these are nearly equal or ill-conditioned.
    """
    families = types if types == _OF_FACTORS.types else plan_for(*types).families
    if families != _OF_FACTORS.types or not _is_ordinary_call(types) or any(map(overrides_density, (p, q))):
        return None
    if p.loc.shape != q.loc.shape or p.loc.dtype is not q.loc.dtype or p.event_shape[0] < _LARGE_MATRIX:
        return None
    of_p, of_q = root_of_matrix(p), root_of_matrix(q)
    if of_p is None or of_q is None:
        return None
    mean_p, mean_q = (upcast(d.loc) for d in (p, q))
    root_p, root_q = (x.root.expand(*p.batch_shape, -1, -1) for x in (of_p, of_q))
    parameters = tuple(map(recordable, (mean_p, root_p, mean_q, root_q)))
    required, form = required_gradients(parameters), _OF_FACTORS.form
    value = None
    if required is not None:
        is_large = p.event_shape[0] >= _LARGE_ROOT
        value = form.reference(parameters) if is_large else divergence(form, parameters, required)
    if value is None or not roots_suffice(of_p, of_q, (mean_p - mean_q).detach(), value.detach()):
        return None
    return value.to(p.loc.dtype)


def _of_wisharts(types: TypePair, p: Any, q: Any) -> Tensor | None:
    """Return KL from KL of normal distributions with the same matrices; None where terms of the sum cancel.

    With K(c) = KL(N(0, V) || N(0, c W)) for the scale matrices V and W, and with n and m the degrees of freedom:
    n K(1) + (n - m) ((K(1) - 4 K(4)) / 3 + d (2 / 3 log 4 - 1 / 2)) + sum_i KL(Gamma((n - i) / 2, 1) ||
    Gamma((m - i) / 2, 1)) over i = 0 ... d - 1.
    Both K are as accurate as the matrices, unlike a log-determinant.
    """
    name_p, name_q = (str(first_given(d, _MATRICES)) for d in (p, q))
    pair, size = _NORMALS.get((name_p, name_q)), p.event_shape[0]
    if (
        pair is None
        or size >= _LARGE_MATRIX
        or p.batch_shape != q.batch_shape
        or p.event_shape != q.event_shape
    ):
        return None
    if not _is_ordinary_call(types) or overrides_density(p) or overrides_density(q):
        return None
    parameters: Parameters = getattr(p, name_p), getattr(q, name_q), p.df, q.df
    if required_gradients(parameters) is None:
        return None
    of_p, of_q, n, m = map(upcast, parameters)
    mean = torch.zeros(of_p.shape[:-1], dtype=n.dtype, device="cpu")
    lower = torch.arange(0, -size / 2, -0.5, dtype=n.dtype, device="cpu")
    a, b = (torch.add(lower, x.unsqueeze(-1), alpha=0.5) for x in (n, m))
    if parameters[0].dtype is torch.float32 and name_p == name_q != "scale_tril":
        return _of_scaled_wisharts(pair, (mean, of_p, of_q), (n, m), (a, b))
    rate = a.detach()  # any rate serves, if both have it
    near = _of(pair.form, mean, of_p, mean, of_q)
    far = _of(pair.form, mean, of_p, mean, of_q * _FOURFOLD[name_q])
    of_gammas = _of(_PAIRS[Gamma, Gamma].form, a, rate, b, rate)
    if near is None or far is None or of_gammas is None:
        return None
    less = n - m
    change = torch.sub(near, far, alpha=4) * (1 / 3) + size * (2 / 3 * _LOG_4 - 1 / 2)
    value = of_gammas.sum(-1).addcmul(n, near).addcmul(less, change)
    # Terms of either sign are below 2 |n - m| (K(1) + d), as K(4) is not above K(1) + d log 2.
    least = less.detach().abs() * (near.detach() + size) * _LEAST_SHARE
    if n.requires_grad or m.requires_grad:
        least = torch.maximum(least, _LEAST_WITH_DERIVATIVE * n.detach())
    return value.to(p.df.dtype) if bool((value.detach() >= least).all()) else None


def _of_scaled_wisharts(
    pair: _Pair, matrices: Parameters, df: tuple[Tensor, Tensor], halves: tuple[Tensor, Tensor]
) -> Tensor | None:
    """Return KL of Wishart distributions in float32, faster, from KL of normal distributions.

    m KL(N(0, n V) || N(0, m W)) + sum_i KL(Gamma((n - i) / 2, n) || Gamma((m - i) / 2, m)) + d (d - 1) / 4 (m / n - 1 -
    log(m / n)), where no term is negative. In float64 the products are exact.
    """
    (mean, of_p, of_q), (n, m), (a, b) = matrices, df, halves
    scales = [
        x[..., None, None]
        for x in (df if pair is _NORMALS["covariance_matrix", "covariance_matrix"] else df[::-1])
    ]
    rates = [x.unsqueeze(-1).expand_as(a) for x in df]
    normals = _of(pair.form, mean, of_p * scales[0], mean, of_q * scales[1])
    gammas = _of(_PAIRS[Gamma, Gamma].form, a, rates[0], b, rates[1])
    if normals is None or gammas is None:
        return None
    size, growth = a.shape[-1], (m - n) / n
    value = gammas.sum(-1).addcmul(m, normals) + size * (size - 1) / 4 * (growth - growth.log1p())
    return value.to(torch.float32)


def _of(form: Form, *parameters: Tensor) -> Tensor | None:
    required = required_gradients(parameters)
    return None if required is None else divergence(form, parameters, required)


def _of_bases(types: TypePair, p: Any, q: Any) -> Tensor | None:
    """Return KL of the base distributions if P and Q apply the same map without parameters."""
    if p.transforms != q.transforms or not _is_ordinary_call(types) or any(map(overrides_density, (p, q))):
        return None
    return fused_divergence(p.base_dist, q.base_dist)


def _of_dimensions(p: Any, q: Any) -> Tensor | None:
    """Return the sum over the event dimensions of two `Independent` distributions."""
    dimensions: int = p.reinterpreted_batch_ndims
    if (
        not dimensions
        or overrides_density(p)
        or overrides_density(q)
        or p.event_shape != q.event_shape
        or dimensions != q.reinterpreted_batch_ndims
        or plan_for(Independent, Independent).user_rules
    ):
        return None
    value = fused_divergence(p.base_dist, q.base_dist)
    return None if value is None else value.sum(tuple(range(-dimensions, 0)))


def _other_pair(types: TypePair, p: Any, q: Any) -> _Pair | None:
    """Return the pair for families made from logits or probabilities, or for subclasses."""
    families: TypePair | None = types
    if types not in _MANY:
        if not (isinstance(p, Distribution) and isinstance(q, Distribution)):
            return None
        families = plan_for(*types).families
        if families is None or overrides_density(p) or overrides_density(q):
            return None
        if families not in _MANY:
            return _PAIRS.get(families)
    return _pair_of_parameters(families, p, q)


def _pair_of_parameters(types: TypePair, p: Any, q: Any) -> _Pair | None:
    """Return the pair for the parametrizations of two distributions; None if the kernel does not serve them."""
    if types not in _LOGITS_AND_PROBS:
        names = [first_given(d, _MATRICES) for d in (p, q) if isinstance(d, MultivariateNormal)]
        of_factors = all(name == "scale_tril" for name in names)
        if types in _FACTORS:
            return _FACTORS[types] if of_factors else None
        is_large = p.event_shape[0] >= (_LARGE_ROOT if of_factors else _LARGE_MATRIX)
        return None if is_large else _NORMALS.get(tuple(names))  # pyright: ignore[reportArgumentType, reportCallIssue]
    in_logits = given_logits(q if types[0] in _PARAMETERS else getattr(p, "_categorical", p))
    if types[0] is types[1] and in_logits is not given_logits(getattr(q, "_categorical", q)):
        return None
    return _LOGITS_AND_PROBS[types][0 if in_logits else 1]


def _is_ordinary_call(types: TypePair) -> bool:
    """Return whether no mode such as torch.func intercepts operators, and the user has no rule for the pair."""
    return (
        _is_available()
        and _functorch.peek_interpreter_stack() is None
        and not _len_torch_dispatch_stack()
        and forward_ad._current_level < 0  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
        and not plan_for(*types).user_rules
    )
