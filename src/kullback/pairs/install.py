"""`install` and `uninstall`: whether `torch.distributions.kl_divergence` is answered by kullback."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

from torch import Tensor
from torch.distributions import Distribution

from kullback.errors import ConvergenceError, NoRuleError
from kullback.pairs.coverage import WRAPPERS, families, rule_of
from kullback.pairs.options import Options
from kullback.pairs.registry import user_pairs
from kullback.pairs.solve import estimate
from kullback.pairs.torch_registry import find_third_party_rule, forget_found, is_ours, mark_as_ours, registry

__all__ = ["Installation", "install", "uninstall"]

TypePair = tuple[type, type]
Rule = Callable[[Any, Any], Tensor]

_lock = threading.Lock()
# The rules of torch's table that kullback's replaced; None for pairs that had none.
_replaced: dict[TypePair, Rule | None] = {}


@mark_as_ours
def _serve(p: Distribution, q: Distribution) -> Tensor:
    """Answer a call of torch's; a divergence without a rule is a NotImplementedError, on which callers fall back."""
    try:
        return estimate("kl_divergence", p, q, Options()).value
    except ConvergenceError as error:
        raise NoRuleError(str(error)) from error


class Installation:
    """The result of `install`; at the end of a ``with`` block over it, torch is as it was before."""

    def __init__(self, *, was_installed: bool) -> None:
        self._was_installed = was_installed

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self._was_installed:
            uninstall()


def install() -> Installation:
    r"""Let kullback answer `torch.distributions.kl_divergence`, in this process, until `uninstall`.

    .. math:: \text{torch.distributions.kl\_divergence}(p, q) = \text{kullback.kl\_divergence}(p, q)

    It serves every pair of torch's classes and their subclasses, also those that torch has no rule for, and the pairs
    of `register_kl`. Rules that other packages, such as Pyro or GPyTorch, registered with torch stay in force. Draws
    are never used: where no deterministic rule reaches its tolerance, the error is a NotImplementedError, as from torch
    for a pair it does not know. To install twice is to install once.

    Returns:
        an object for ``with``: at the end of the block torch is as it was before.

    Raises:
        nothing.

    Gradient:
        that of `kl_divergence`.

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
    with _lock:
        was_installed = bool(_replaced)
        table = registry()
        forget_found()
        # All are chosen before the first is entered, while torch still finds its own rules and third parties'.
        chosen = [
            pair for pair in _pairs() if not is_ours(table.get(pair)) and find_third_party_rule(*pair) is None
        ]
        for pair in chosen:
            _replaced[pair] = table.get(pair)
            table[pair] = _serve
        forget_found()
    return Installation(was_installed=was_installed)


def uninstall() -> None:
    """Give `torch.distributions.kl_divergence` its own rules back; without an installation, do nothing.

    Rules that other packages registered with torch in the meantime stay.

    Returns:
        nothing.

    Raises:
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
        for pair, before in _replaced.items():
            if not is_ours(table.get(pair)):
                continue
            if before is None:
                del table[pair]
            else:
                table[pair] = before
        _replaced.clear()
        forget_found()


def _pairs() -> list[TypePair]:
    """Return the pairs of types to serve: those of torch's classes with a deterministic rule, and the user's own."""
    of_torch = [(a, b) for a, p in families().items() for b, q in families().items() if _is_served(p, q)]
    return list(dict.fromkeys([*of_torch, *user_pairs()]))


def _is_served(p: Distribution, q: Distribution) -> bool:
    if isinstance(p, WRAPPERS) or isinstance(q, WRAPPERS):  # depends on the distributions they wrap
        return True
    return rule_of(p, q) not in ("monte_carlo", "not_comparable")
