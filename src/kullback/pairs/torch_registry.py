"""Torch's registry of rules: access to it, and the rules that third parties such as Pyro or GPyTorch put there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from torch import Tensor
from torch.distributions import Distribution, kl

__all__ = ["ThirdPartyRule", "find_third_party_rule", "forget_found", "is_ours", "mark_as_ours", "registry"]

Rule = Callable[[Any, Any], Tensor]
_OURS: set[Rule] = set()


class ThirdPartyRule(NamedTuple):
    """The rule of another package, and whether it is for a class that is not torch's."""

    function: Rule
    for_own_class: bool


def registry() -> dict[tuple[type, type], Rule]:
    """Return torch's table of rules, not a copy."""
    return kl._KL_REGISTRY  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]


def forget_found() -> None:
    """Clear torch's cache of the rules that it found."""
    kl._KL_MEMOIZE.clear()  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]


def mark_as_ours(rule: Rule) -> Rule:
    """Mark a rule as kullback's own, so that kullback does not take it for a third party's."""
    _OURS.add(rule)
    return rule


def is_ours(rule: object) -> bool:
    """Tell whether kullback put a rule into torch's table."""
    return rule in _OURS


def find_third_party_rule(type_p: type, type_q: type) -> ThirdPartyRule | None:
    """Return the rule that torch would call for two types; None if it is torch's own or kullback's.

    Torch's generic rule for exponential families counts for classes that are not torch's.
    """
    rule = _found_by_torch(type_p, type_q)
    if rule is NotImplemented or rule in _OURS:
        return None
    if rule.__module__ == kl.__name__:
        is_generic = rule.__name__ == "_kl_expfamily_expfamily"
        return None if not is_generic or _is_of_torch(type_p) else ThirdPartyRule(rule, for_own_class=False)
    pairs = (pair for pair, known in registry().items() if known is rule)
    matching = [(a, b) for a, b in pairs if issubclass(type_p, a) and issubclass(type_q, b)]
    return ThirdPartyRule(rule, any(not _is_of_torch(kind) for pair in matching for kind in pair))


def _found_by_torch(type_p: type, type_q: type) -> Any:
    found: dict[tuple[type, type], Any] = kl._KL_MEMOIZE  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
    if (type_p, type_q) not in found:
        found[type_p, type_q] = kl._dispatch_kl(type_p, type_q)  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
    return found[type_p, type_q]


def _is_of_torch(kind: type) -> bool:
    return kind.__module__.startswith(Distribution.__module__.rpartition(".")[0] + ".")
