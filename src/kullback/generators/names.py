"""Names of divergences, such as ``"kl"`` and ``"js:0.5"``, for configuration files and command lines."""

from __future__ import annotations

from difflib import get_close_matches
from typing import Any

from kullback.errors import KullbackError, invalid_type, invalid_value, printable, safe_repr
from kullback.generators.base import Divergence
from kullback.generators.entropic import KL, Jeffreys, JensenShannon, ReverseKL, SkewKL, TotalVariation
from kullback.generators.growth import without_subclass
from kullback.generators.of_ratio import with_limits
from kullback.generators.power import Alpha, ChiSquared, Renyi, SquaredHellinger

__all__ = ["as_divergence", "parse"]

_KINDS: dict[str, type[Divergence]] = {
    str(kind.short_name): kind
    for kind in (
        KL,
        ReverseKL,
        Jeffreys,
        JensenShannon,
        SkewKL,
        TotalVariation,
        SquaredHellinger,
        ChiSquared,
        Alpha,
        Renyi,
    )
}
# For each name with a parameter: its usage and an example.
_PARAMETERS = {
    "js": ("'js:BETA' or 'js:BETA:scaled' with BETA from 0 to 1", "js:0.5"),
    "skew": ("'skew:ALPHA' with ALPHA from 0 to 1", "skew:0.1"),
    "alpha": ("'alpha:ALPHA' with a finite number ALPHA", "alpha:0.5"),
    "renyi": ("'renyi:ALPHA' with ALPHA from 0 to inf", "renyi:2"),
}
# Other common names.
_ALIASES = {
    "chi_squared": "chi2",
    "forward_kl": "kl",
    "jensen_shannon": "js",
    "jsd": "js",
    "skew_kl": "skew",
    "squared_hellinger": "hellinger",
    "total_variation": "tv",
}


def parse(name: str) -> Divergence:
    """Return the divergence with a name such as ``"reverse_kl"`` or ``"js:0.5"``.

    | name | divergence |
    |---|---|
    | ``kl``, ``forward_kl`` | `KL` |
    | ``reverse_kl`` | `ReverseKL` |
    | ``jeffreys`` | `Jeffreys` |
    | ``js``, ``js:BETA`` | `JensenShannon`, with ``js:BETA:scaled`` the scaled one |
    | ``skew:ALPHA`` | `SkewKL` |
    | ``tv`` | `TotalVariation` |
    | ``hellinger`` | `SquaredHellinger` |
    | ``chi2`` | `ChiSquared` |
    | ``alpha:ALPHA`` | `Alpha` |
    | ``renyi:ALPHA`` | `Renyi` |

    Case does not matter, and a hyphen is read as an underscore. Every argument ``kind=`` also takes such a name.
    `Divergence.name` returns it.

    Arguments:
        name: the name.

    Returns:
        the divergence.

    Raises:
        ArgumentTypeError: `name` is not a string.
        ArgumentValueError: the name is unknown, or its parameter is missing, not a number or out of range.

    Example:
        >>> from kullback.generators import parse
        >>> parse("js:0.1"), parse("Reverse-KL")
        (JensenShannon(beta=0.1, scaled=False), ReverseKL())
        >>> parse("renyi:inf").name
        'renyi:inf'
    """
    if not isinstance(name, str):
        raise invalid_type("parse", "name", wanted="a string", got=safe_repr(name), instead="name='js:0.5'")
    return _parsed("parse", "name", name)


def as_divergence(call: str, kind: object) -> Divergence:
    """Return `kind` if it is a divergence, or the divergence with that name if it is a string; else raise."""
    if isinstance(kind, Divergence):
        return with_limits(without_subclass(kind))
    if isinstance(kind, str):
        return _parsed(call, "kind", kind)
    wanted = "a divergence or the name of one"
    instead = "kind=KL(), kind='js:0.5' or another of kullback's kinds"
    raise invalid_type(call, "kind", wanted=wanted, got=safe_repr(kind), instead=instead)


def _parsed(call: str, argument: str, text: str) -> Divergence:
    word, *parts = [part.strip() for part in text.lower().split(":")]
    word = word.replace("-", "_")
    word = _ALIASES.get(word, word)
    kind = _KINDS.get(word)
    if kind is None:
        close = get_close_matches(word, [*_KINDS, *_ALIASES], n=1)
        word = _ALIASES.get(close[0], close[0]) if close else "kl"
        wanted = "one of " + ", ".join(_usage(name) for name in _KINDS)
    else:
        parameters = _parameters(word, parts)
        if parameters is not None:
            try:
                return kind(**parameters)
            except KullbackError:  # out of range
                pass
        wanted = _usage(word) if word in _PARAMETERS else f"'{word}', which has no parameter"
    instead = f"{argument}='{_PARAMETERS.get(word, ('', word))[1]}'"
    raise invalid_value(call, argument, wanted=wanted, got=f"'{printable(text, 60)}'", instead=instead)


def _usage(name: str) -> str:
    return _PARAMETERS[name][0] if name in _PARAMETERS else f"'{name}'"


def _parameters(name: str, parts: list[str]) -> dict[str, Any] | None:
    """Convert the parts after the name into keyword arguments; return None if they do not fit the divergence."""
    if name not in _PARAMETERS:
        return None if parts else {}
    parameter = "beta" if name == "js" else "alpha"
    arguments: dict[str, Any] = {}
    for part in parts:
        if part == "scaled" and name == "js":
            arguments[part] = True
        elif parameter in arguments:
            return None
        else:
            try:
                arguments[parameter] = float(part)
            except ValueError:
                return None
    return arguments if parameter in arguments or name == "js" else None
