"""Torch's own `kl_divergence` answered by kullback, for as long as the user wants."""

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
from kullback.pairs.registry import _USER_RULES
from kullback.pairs.solve import estimate
from kullback.pairs.torch_registry import find_foreign_rule, forget_found, is_ours, mark_as_ours, registry

__all__ = ["Installation", "install", "uninstall"]

TypePair = tuple[type, type]
Rule = Callable[[Any, Any], Tensor]

_lock = threading.Lock()
# What stood in torch's table where kullback now stands; None where nothing did.
_replaced: dict[TypePair, Rule | None] = {}


@mark_as_ours
def _serve(p: Distribution, q: Distribution) -> Tensor:
    """Answer for torch; callers of torch fall back on draws where they see NotImplementedError, so give them that."""
    try:
        return estimate("kl_divergence", p, q, Options()).value
    except ConvergenceError as error:
        raise NoRuleError(str(error)) from error


class Installation:
    """What `install` returns: leaving a ``with`` block over it puts torch back as it was before that `install`."""

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
        # All are chosen before any is entered: what torch finds for a pair must not yet be kullback's.
        chosen = [
            pair for pair in _pairs() if not is_ours(table.get(pair)) and find_foreign_rule(*pair) is None
        ]
        for pair in chosen:
            _replaced[pair] = table.get(pair)
            table[pair] = _serve
        forget_found()
    return Installation(was_installed=was_installed)


def uninstall() -> None:
    """Give `torch.distributions.kl_divergence` its own rules back; nothing happens where kullback is not installed.

    What other packages registered with torch in the meantime stays.

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
    """Return the pairs to answer for: those of torch's classes with a deterministic rule, and the user's own."""
    of_torch = [(a, b) for a, p in families().items() for b, q in families().items() if _is_served(p, q)]
    return list(dict.fromkeys([*of_torch, *_USER_RULES]))


def _is_served(p: Distribution, q: Distribution) -> bool:
    if isinstance(p, WRAPPERS) or isinstance(q, WRAPPERS):  # it depends on what they wrap
        return True
    return rule_of(p, q) not in ("monte_carlo", "not_comparable")
