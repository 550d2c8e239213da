"""What torch's registry of rules holds that is not torch's own: the rules of other packages."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from torch import Tensor
from torch.distributions import Distribution, kl

__all__ = ["ForeignRule", "find_foreign_rule", "forget_found", "is_ours", "mark_as_ours", "registry"]

Rule = Callable[[Any, Any], Tensor]
_OURS: set[Rule] = set()


class ForeignRule(NamedTuple):
    """Another package's rule, and whether it is for a class that is not torch's."""

    function: Rule
    for_own_class: bool


def registry() -> dict[tuple[type, type], Rule]:
    """Return torch's table of rules itself."""
    return kl._KL_REGISTRY  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]


def forget_found() -> None:
    """Have torch search its table anew, as it does after every change of its own."""
    kl._KL_MEMOIZE.clear()  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]


def mark_as_ours(rule: Rule) -> Rule:
    """Remember a function that hands torch's calls to kullback, so that kullback does not hand them back."""
    _OURS.add(rule)
    return rule


def is_ours(rule: object) -> bool:
    """Tell whether a rule in torch's table is one that kullback put there."""
    return rule in _OURS


def find_foreign_rule(type_p: type, type_q: type) -> ForeignRule | None:
    """Return what torch would call for two types, if neither torch nor kullback wrote it.

    For classes that are not torch's, its rule for any exponential family counts too.
    """
    rule = _found_by_torch(type_p, type_q)
    if rule is NotImplemented or rule in _OURS:
        return None
    if rule.__module__ == kl.__name__:
        is_generic = rule.__name__ == "_kl_expfamily_expfamily"
        return None if not is_generic or _is_of_torch(type_p) else ForeignRule(rule, for_own_class=False)
    pairs = (pair for pair, known in registry().items() if known is rule)
    matching = [(a, b) for a, b in pairs if issubclass(type_p, a) and issubclass(type_q, b)]
    return ForeignRule(rule, any(not _is_of_torch(kind) for pair in matching for kind in pair))


def _found_by_torch(type_p: type, type_q: type) -> Any:
    found: dict[tuple[type, type], Any] = kl._KL_MEMOIZE  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
    if (type_p, type_q) not in found:
        found[type_p, type_q] = kl._dispatch_kl(type_p, type_q)  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
    return found[type_p, type_q]


def _is_of_torch(kind: type) -> bool:
    return kind.__module__.startswith(Distribution.__module__.rpartition(".")[0] + ".")
