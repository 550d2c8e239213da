"""Access to torch's table of rules, including the rules of third parties such as Pyro or GPyTorch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from torch import Tensor
from torch.distributions import kl

TORCH = "torch.distributions."
"""The prefix of the module names of torch's classes and rules."""
TorchRule = Callable[[Any, Any], Tensor]
TypePair = tuple[type, type]

# PLANS is torch's cache of the rules for pairs of types. Torch clears this cache when a rule is registered. Kullback
# also stores its plans in the cache, under different keys.
PLANS: dict[Any, Any] = kl._KL_MEMOIZE  # noqa: SLF001  # pyright: ignore[reportPrivateUsage, reportAssignmentType]

# REPLACED maps a pair of types to the rule in torch's table that kullback has replaced, or to None if there was no
# rule.
REPLACED: dict[TypePair, TorchRule | None] = {}
# OURS are the functions of kullback in torch's table, which never count as rules of a third party.
OURS: set[TorchRule] = set()


class ThirdPartyRule(NamedTuple):
    """A rule in torch's table for a pair of types: a third party's, or torch's rule for exponential families."""

    function: TorchRule
    pair: TypePair

    @property
    def is_of_torch(self) -> bool:
        """Whether torch defines the rule."""
        return self.function.__module__ == kl.__name__

    @property
    def for_own_class(self) -> bool:
        """Whether the rule is registered for a class that torch does not define."""
        return not all(map(is_of_torch, self.pair))


def registry() -> dict[TypePair, TorchRule]:
    """Return torch's table of rules itself, not a copy."""
    return kl._KL_REGISTRY  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]


def forget_plans() -> None:
    """Clear torch's cache of the rules for pairs of types, which contains kullback's plans."""
    PLANS.clear()


def is_ours(rule: object) -> bool:
    """Return whether a rule in torch's table is a function of kullback."""
    return rule in OURS


def is_of_torch(thing: type | TorchRule) -> bool:
    """Return whether torch defines a class or a rule."""
    return thing.__module__.startswith(TORCH)


def third_party_rule(types: TypePair) -> ThirdPartyRule | None:
    """Return the third-party rule that torch would call if kullback were not installed; None if the rule is torch's
    own.

    Torch's generic rule for exponential families is also returned if torch does not define P's class.
    """
    rule = rule_without_kullback(*types)
    if rule is not None and rule.is_of_torch:
        is_generic = rule.function.__name__ == "_kl_expfamily_expfamily"
        return rule if is_generic and not is_of_torch(types[0]) else None
    return rule


def _distances(type_p: type, type_q: type, pair: tuple[type, type]) -> tuple[int, int]:
    """Return the position of each type of a rule in the list of base classes of P's and of Q's type."""
    return type_p.__mro__.index(pair[0]), type_q.__mro__.index(pair[1])


def rule_without_kullback(type_p: type, type_q: type) -> ThirdPartyRule | None:
    """Return the rule that torch would call for two types if kullback were not installed."""
    rules = {pair: REPLACED.get(pair) if is_ours(rule) else rule for pair, rule in registry().items()}
    matches = [
        (a, b) for (a, b), rule in rules.items() if rule and issubclass(type_p, a) and issubclass(type_q, b)
    ]
    if not matches:
        return None
    # Torch's order: the closest type of P decides first, then the closest type of Q.
    pair = matches[0]
    for match in matches[1:]:  # torch 2.10 cannot compile `min` with a key
        if _distances(type_p, type_q, match) < _distances(type_p, type_q, pair):
            pair = match
    rule = rules[pair]
    return None if rule is None else ThirdPartyRule(rule, pair)
