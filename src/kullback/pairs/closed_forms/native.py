"""Pairs of one family whose closed form the C++ kernels compute from the parameters as they lie.

What these do not take goes to the functions in plain torch: other devices, tensors of torch.func, second derivatives,
and parameters so extreme that the arithmetic would leave float64.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
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
    Dirichlet,
    Exponential,
    Gamma,
    Geometric,
    Gumbel,
    HalfCauchy,
    HalfNormal,
    InverseGamma,
    Laplace,
    LogNormal,
    Normal,
    OneHotCategorical,
    Pareto,
    Poisson,
    Uniform,
)

from kullback.kernels.codes import ElementForm, RowForm
from kullback.kernels.native import library
from kullback.kernels.native.closed_forms import Form, Parameters, divergence, required_gradients
from kullback.pairs.numerics.parameters import given_logits
from kullback.pairs.registry import ClosedForm, find_closed_form, find_user_rule, has_user_rules

__all__ = ["fused_divergence"]

_is_available = cache(library.is_available)


class _Pair(NamedTuple):
    """How the kernel is called for two members of a family, and how their parameters are read."""

    types: tuple[type, type]
    read: Callable[[Any], Parameters]
    form: Form


def _pair(
    family: type, code: ElementForm | RowForm, names: str, where: str = "", *, may_be_infinite: bool = False
) -> _Pair:
    words = tuple(names.split())

    def reference(parameters: Parameters) -> Tensor:
        p, q = (
            SimpleNamespace(**dict(zip(words, side, strict=True)))
            for side in (parameters[: len(words)], parameters[len(words) :])
        )
        return cast(ClosedForm, find_closed_form(family, family)).function(p, q)  # pyright: ignore[reportReturnType]

    form = Form(code.value, isinstance(code, RowForm), reference, may_be_infinite)
    return _Pair((family, family), _reader([where + word for word in words]), form)


def _reader(names: list[str]) -> Callable[[Any], Parameters]:
    if len(names) > 1:
        return attrgetter(*names)
    get: Callable[[Any], Tensor] = attrgetter(names[0])

    def read_one(distribution: Any) -> Parameters:
        return (get(distribution),)

    return read_one


_PAIRS: dict[type, _Pair] = {
    Normal: _pair(Normal, ElementForm.NORMAL, "loc scale"),
    LogNormal: _pair(LogNormal, ElementForm.NORMAL, "loc scale", "base_dist."),
    Laplace: _pair(Laplace, ElementForm.LAPLACE, "loc scale"),
    Cauchy: _pair(Cauchy, ElementForm.CAUCHY, "loc scale"),
    Gumbel: _pair(Gumbel, ElementForm.GUMBEL, "loc scale"),
    Exponential: _pair(Exponential, ElementForm.EXPONENTIAL, "rate"),
    Gamma: _pair(Gamma, ElementForm.GAMMA, "concentration rate"),
    Chi2: _pair(Chi2, ElementForm.GAMMA, "concentration rate"),
    InverseGamma: _pair(InverseGamma, ElementForm.GAMMA, "concentration rate", "base_dist."),
    HalfNormal: _pair(HalfNormal, ElementForm.HALF_NORMAL, "scale", "base_dist."),
    HalfCauchy: _pair(HalfCauchy, ElementForm.HALF_CAUCHY, "scale", "base_dist."),
    Pareto: _pair(Pareto, ElementForm.PARETO, "scale alpha", may_be_infinite=True),
    Uniform: _pair(Uniform, ElementForm.UNIFORM, "low high", may_be_infinite=True),
    Beta: _pair(Beta, ElementForm.BETA, "concentration1 concentration0"),
    Poisson: _pair(Poisson, ElementForm.POISSON, "rate"),
    Dirichlet: _pair(Dirichlet, RowForm.DIRICHLET, "concentration"),
}
# Families that are made from logits or from probabilities: how either is computed.
_LOGITS_AND_PROBS: dict[type, tuple[_Pair, _Pair]] = {
    Bernoulli: (
        _pair(Bernoulli, ElementForm.BERNOULLI_LOGITS, "logits"),
        _pair(Bernoulli, ElementForm.BERNOULLI_PROBS, "probs", may_be_infinite=True),
    ),
    Binomial: (
        _pair(Binomial, ElementForm.BINOMIAL_LOGITS, "total_count logits"),
        _pair(Binomial, ElementForm.BINOMIAL_PROBS, "total_count probs", may_be_infinite=True),
    ),
    Geometric: (
        _pair(Geometric, ElementForm.GEOMETRIC_LOGITS, "logits"),
        _pair(Geometric, ElementForm.GEOMETRIC_PROBS, "probs", may_be_infinite=True),
    ),
    Categorical: (
        _pair(Categorical, RowForm.CATEGORICAL_LOGITS, "logits", may_be_infinite=True),
        _pair(Categorical, RowForm.CATEGORICAL_PROBS, "probs", may_be_infinite=True),
    ),
    OneHotCategorical: (
        _pair(OneHotCategorical, RowForm.CATEGORICAL_LOGITS, "logits", "_categorical.", may_be_infinite=True),
        _pair(OneHotCategorical, RowForm.CATEGORICAL_PROBS, "probs", "_categorical.", may_be_infinite=True),
    ),
}


def fused_divergence(p: object, q: object) -> Tensor | None:
    """Return KL(P || Q) in the dtype of the parameters; None if the kernels do not take these two."""
    if torch.compiler.is_compiling() or type(p) is not type(q):
        return None
    pair = _PAIRS.get(type(p)) or _pair_of_logits_or_probs(p, q)
    if pair is None or not _is_ordinary_call(pair):
        return None
    parameters = pair.read(p) + pair.read(q)
    required = required_gradients(parameters)
    if required is None or (pair.form.of_rows and parameters[0].shape[-1] != parameters[1].shape[-1]):
        return None
    return divergence(pair.form, parameters, required)


def _pair_of_logits_or_probs(p: Any, q: Any) -> _Pair | None:
    pairs = _LOGITS_AND_PROBS.get(type(p))
    if pairs is None:
        return None
    in_logits, also_q = (given_logits(getattr(d, "_categorical", d)) for d in (p, q))
    if in_logits is not also_q:
        return None
    return pairs[0] if in_logits else pairs[1]


def _is_ordinary_call(pair: _Pair) -> bool:
    """Tell whether operators run as they are, without torch.func and its like, and no user has a rule for the pair."""
    return (
        _is_available()
        and _functorch.peek_interpreter_stack() is None
        and not _len_torch_dispatch_stack()
        and forward_ad._current_level < 0  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
        and (not has_user_rules() or find_user_rule("kl_divergence", *pair.types) is None)
    )
