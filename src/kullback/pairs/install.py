"""`install` and `uninstall`: make `torch.distributions.kl_divergence` use kullback's rules, or restore torch's."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from contextlib import AbstractContextManager, ExitStack

from torch import Tensor
from torch.distributions import Distribution

from kullback.common.extra_arguments import by_name
from kullback.errors import ConvergenceError, NoRuleError, explain
from kullback.pairs.clone import with_ordinary_tensors
from kullback.pairs.coverage import families, rule_of
from kullback.pairs.registry import WRAPPERS, fused_divergence, on_registration, plan_for, user_pairs
from kullback.pairs.solve import estimate_by_rules
from kullback.pairs.solve_options import SolveOptions
from kullback.pairs.torch_registry import (
    OURS,
    PLANS,
    REPLACED,
    TypePair,
    forget_plans,
    is_of_torch,
    is_ours,
    registry,
    rule_without_kullback,
)

_lock = threading.Lock()
_ANYTHING: TypePair = (Distribution, Distribution)
_OPTIONS = SolveOptions(wants_error=False)


def _serve(p: Distribution, q: Distribution) -> Tensor:
    """Return KL for a call of torch's function; raise a NotImplementedError without a rule, as torch does."""
    value = fused_divergence(p, q)
    if value is not None:
        return value
    types = type(p), type(q)
    if not _is_served(*types) and plan_for(*types).user_rule("kl_divergence") is None:
        rule = rule_without_kullback(*types)
        if rule is None:
            raise NoRuleError(
                explain(
                    "kl_divergence",
                    "p, q",
                    wanted="a pair of distributions with a known divergence",
                    got=f"p type {types[0].__name__} and q type {types[1].__name__}",
                    instead="@register_kl above a function of p and q, if you know the formula",
                    place="",
                    wording="No KL(p || q) is known for {got}",
                )
            )
        return rule.function(p, q)
    try:
        p, q = (with_ordinary_tensors("kl_divergence", name, d) for name, d in (("p", p), ("q", q)))
        return estimate_by_rules("kl_divergence", p, q, _OPTIONS).value
    except ConvergenceError as error:
        raise NoRuleError(*error.args) from error


OURS.add(_serve)


@by_name()
def install() -> AbstractContextManager[object]:
    r"""Let kullback answer `torch.distributions.kl_divergence`, in this process, until `uninstall`.

    .. math:: \text{torch.distributions.kl\_divergence}(p, q) = \text{kullback.kl\_divergence}(p, q)

    Kullback then computes KL for every pair of torch's classes and their subclasses, also for pairs without a rule in
    torch. Kullback also computes KL for the pairs of `register_kl`, registered before or after the call of `install`.
    Rules of other packages, such as Pyro or GPyTorch, stay in force: the most specific rule for two types is used,
    whoever registered it. Random draws are never used. If no deterministic rule reaches its tolerance, the error is a
    NotImplementedError, like torch's error for an unknown pair. A second call of `install` has no effect.

    Returns:
        a context manager that restores torch's previous rules at the end of the block.

    Gradient:
        the gradient of `kl_divergence`.

    Example:
        >>> import kullback, torch
        >>> from torch.distributions import Cauchy, Laplace
        >>> with kullback.install():
        ...     torch.distributions.kl_divergence(Laplace(0.0, 1.0), Cauchy(0.0, 1.0))
        tensor(0.1383)
        >>> torch.distributions.kl_divergence(Laplace(0.0, 1.0), Cauchy(0.0, 1.0))
        Traceback (most recent call last):
            ...
        NotImplementedError: No KL(p || q) is implemented for p type Laplace and q type Cauchy

    References:
        TensorFlow Distributions (Dillon et al., 2017)
    """
    at_exit = ExitStack()
    with _lock:
        if not REPLACED:
            at_exit.callback(uninstall)
            # The entry for the least specific pair is used for all pairs without a rule in torch. This entry never
            # precedes a rule of a third party.
            of_torch = [pair for pair, rule in registry().items() if is_of_torch(rule)]
            anything = [_ANYTHING] if _ANYTHING not in registry() else []
            _enter(dict.fromkeys([*of_torch, *anything, *user_pairs()]))
    return at_exit


@by_name()
def uninstall() -> None:
    """Restore the rules of `torch.distributions.kl_divergence`; do nothing if kullback is not installed there.

    Rules that other packages have registered with torch since `install` stay.

    Returns:
        nothing.

    Example:
        >>> import kullback, torch
        >>> from torch.distributions import Normal
        >>> installed = kullback.install()
        >>> kullback.uninstall()
        >>> torch.distributions.kl_divergence(Normal(0.0, 1.0), Normal(1.0, 1.0))
        tensor(0.5000)

    References:
        TensorFlow Distributions (Dillon et al., 2017)
    """
    with _lock:
        table = registry()
        for pair, before in REPLACED.items():
            if not is_ours(table.get(pair)):
                continue
            if before is None:
                del table[pair]
            else:
                table[pair] = before
        REPLACED.clear()
        forget_plans()


def _enter(pairs: Iterable[TypePair]) -> None:
    """Replace the rules in torch's table for these pairs of types by `_serve`."""
    table = registry()
    for pair in pairs:
        if not is_ours(table.get(pair)):
            REPLACED[pair] = table.get(pair)
            table[pair] = _serve
    forget_plans()


@on_registration
def _enter_while_installed(pair: TypePair) -> None:
    with _lock:
        if REPLACED:
            _enter([pair])


def _is_served(type_p: type, type_q: type) -> bool:
    """Return whether kullback has a deterministic rule for two types, which are torch's classes or subclasses."""
    key = ("served", type_p, type_q)
    if key not in PLANS:
        p, q = (
            next((families()[kind] for kind in own.__mro__ if kind in families()), None)
            for own in (type_p, type_q)
        )
        # The rule for wrappers depends on the wrapped distributions.
        PLANS[key] = (p is not None and q is not None) and (
            isinstance(p, WRAPPERS)
            or isinstance(q, WRAPPERS)
            or rule_of(p, q) not in ("monte_carlo", "not_comparable")
        )
    return PLANS[key]
