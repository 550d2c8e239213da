"""Access to torch's registry of rules, and to the rules of third parties such as Pyro or GPyTorch in it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from torch import Tensor
from torch.distributions import kl

TORCH = "torch.distributions."
"""The modules of torch's classes and rules begin with this."""
TorchRule = Callable[[Any, Any], Tensor]
TypePair = tuple[type, type]

# Torch's cache of the rules for pairs of types. Torch clears it when a rule is registered. Kullback keeps its plans in
# it, under its own keys.
PLANS: dict[Any, Any] = kl._KL_MEMOIZE  # noqa: SLF001  # pyright: ignore[reportPrivateUsage, reportAssignmentType]

# The rules in torch's table that kullback has replaced; None for pairs that had no rule.
REPLACED: dict[TypePair, TorchRule | None] = {}
# Kullback's own rules; they never count as a third party's.
OURS: set[TorchRule] = set()


class ThirdPartyRule(NamedTuple):
    """A rule in torch's table that serves a pair of types: from a third party, or torch's own for exponential families.

    Attributes:
        function: the rule.
        pair: the types of its registration.
    """

    function: TorchRule
    pair: TypePair

    @property
    def is_of_torch(self) -> bool:
        """Whether the rule is torch's own."""
        return self.function.__module__ == kl.__name__

    @property
    def for_own_class(self) -> bool:
        """Whether the rule is registered for a class that is not torch's."""
        return not all(map(is_of_torch, self.pair))


def registry() -> dict[TypePair, TorchRule]:
    """Return torch's table of rules, not a copy."""
    return kl._KL_REGISTRY  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]


def forget_plans() -> None:
    """Clear torch's cache of the rules for pairs of types, which contains kullback's plans."""
    PLANS.clear()


def is_ours(rule: object) -> bool:
    """Return whether a rule in torch's table is kullback's own."""
    return rule in OURS


def is_of_torch(thing: type | TorchRule) -> bool:
    """Return whether torch defines a class or a rule."""
    return thing.__module__.startswith(TORCH)


def third_party_rule(types: TypePair) -> ThirdPartyRule | None:
    """Return the rule that torch would call for two types without kullback; None if it is torch's own rule.

    Torch's generic rule for exponential families is returned too, for classes that are not torch's.
    """
    rule = rule_without_kullback(*types)
    if rule is not None and rule.is_of_torch:
        is_generic = rule.function.__name__ == "_kl_expfamily_expfamily"
        return rule if is_generic and not is_of_torch(types[0]) else None
    return rule


def _distances(type_p: type, type_q: type, pair: tuple[type, type]) -> tuple[int, int]:
    """Return the positions of a rule's types among the base classes of two types."""
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
    for match in matches[1:]:  # torch 2.10 cannot compile a `min` of these
        if _distances(type_p, type_q, match) < _distances(type_p, type_q, pair):
            pair = match
    rule = rules[pair]
    return None if rule is None else ThirdPartyRule(rule, pair)
