"""Torch's registry of rules: access to it, and the rules that third parties such as Pyro or GPyTorch put there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from torch import Tensor
from torch.distributions import Distribution, kl

__all__ = [
    "PLANS",
    "REPLACED",
    "Rule",
    "ThirdPartyRule",
    "TypePair",
    "forget_plans",
    "is_of_torch",
    "is_ours",
    "mark_as_ours",
    "registry",
    "rule_without_kullback",
    "third_party_rule",
]

Rule = Callable[[Any, Any], Tensor]
TypePair = tuple[type, type]

# Torch's cache of the rules for pairs of types, which it clears with every rule that is registered. Kullback keeps its
# plans there, under keys of its own.
PLANS: dict[Any, Any] = kl._KL_MEMOIZE  # noqa: SLF001  # pyright: ignore[reportPrivateUsage, reportAssignmentType]

# The rules of torch's table that kullback's replaced; None for pairs that had none.
REPLACED: dict[TypePair, Rule | None] = {}
_OURS: set[Rule] = set()


class ThirdPartyRule(NamedTuple):
    """A rule of torch's table that serves a pair of types: a third party's, or torch's for exponential families.

    Attributes:
        function: the rule.
        pair: the types that it is registered for.
    """

    function: Rule
    pair: TypePair

    @property
    def is_of_torch(self) -> bool:
        """Whether torch wrote it."""
        return self.function.__module__ == kl.__name__

    @property
    def for_own_class(self) -> bool:
        """Whether it is registered for a class that is not torch's."""
        return not all(map(is_of_torch, self.pair))


def registry() -> dict[TypePair, Rule]:
    """Return torch's table of rules, not a copy."""
    return kl._KL_REGISTRY  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]


def forget_plans() -> None:
    """Clear torch's cache of the rules for pairs of types, with kullback's plans."""
    PLANS.clear()


def mark_as_ours(rule: Rule) -> Rule:
    """Mark a rule as kullback's own, so that kullback does not take it for a third party's."""
    _OURS.add(rule)
    return rule


def is_ours(rule: object) -> bool:
    """Tell whether kullback put a rule into torch's table."""
    return rule in _OURS


def is_of_torch(thing: type | Rule) -> bool:
    """Tell whether torch defines a class or a rule."""
    return thing.__module__.startswith(Distribution.__module__.rpartition(".")[0] + ".")


def third_party_rule(types: TypePair) -> ThirdPartyRule | None:
    """Return the rule that torch would call for two types without kullback; None if it is one of torch's own.

    Torch's generic rule for exponential families counts for classes that are not torch's.
    """
    found = rule_without_kullback(*types)
    if found is not None and found.is_of_torch:
        is_generic = found.function.__name__ == "_kl_expfamily_expfamily"
        return found if is_generic and not is_of_torch(types[0]) else None
    return found


def _distances(type_p: type, type_q: type, pair: tuple[type, type]) -> tuple[int, int]:
    """Return how far up the base classes of two types those of a rule are."""
    return type_p.__mro__.index(pair[0]), type_q.__mro__.index(pair[1])


def rule_without_kullback(type_p: type, type_q: type) -> ThirdPartyRule | None:
    """Return the rule that torch would call for two types if kullback were not installed."""
    rules = {pair: REPLACED.get(pair) if is_ours(rule) else rule for pair, rule in registry().items()}
    matches = [
        (a, b) for (a, b), rule in rules.items() if rule and issubclass(type_p, a) and issubclass(type_q, b)
    ]
    if not matches:
        return None
    # Torch's order: the closest type of P decides, then that of Q.
    pair = matches[0]
    for match in matches[1:]:  # the compiler of torch 2.10 takes no `min` of these
        if _distances(type_p, type_q, match) < _distances(type_p, type_q, pair):
            pair = match
    rule = rules[pair]
    return None if rule is None else ThirdPartyRule(rule, pair)
