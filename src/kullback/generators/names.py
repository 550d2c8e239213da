"""Names of divergences, such as ``"kl"`` and ``"js:0.5"``, for configuration files and command lines."""

from __future__ import annotations

import sys
from importlib.metadata import entry_points

from kullback.common.words import nearest
from kullback.errors import KullbackError, invalid_type, invalid_value, printable, safe_repr
from kullback.generators.divergence import NAMED, Divergence
from kullback.generators.of_ratio import with_limits

_LARGEST = sys.float_info.max


def parse(name: str) -> Divergence:
    """Return the divergence with a name such as ``"reverse_kl"`` or ``"js:0.5"``.

    | name | divergence |
    |---|---|
    | ``kl``, ``forward_kl`` | `KL` |
    | ``reverse_kl`` | `ReverseKL` |
    | ``jeffreys`` | `Jeffreys` |
    | ``js``, ``js:BETA`` | `JensenShannon`; ``js:BETA:scaled`` sets `scaled` |
    | ``skew:ALPHA`` | `SkewKL` |
    | ``tv`` | `TotalVariation` |
    | ``hellinger`` | `SquaredHellinger` |
    | ``chi2`` | `ChiSquared` |
    | ``alpha:ALPHA`` | `Alpha` |
    | ``renyi:ALPHA`` | `Renyi` |

    Case does not matter, and a hyphen is read as an underscore. Every argument ``kind=`` also takes such a name, and
    `Divergence.name` is the name of a divergence. The class attribute ``short_name`` names a divergence of your own.

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
    """Return `kind` if it is a divergence. If it is a string, return the divergence with this name. Else raise an error
    that names the function `call`.
    """
    if isinstance(kind, str):
        kind = _parsed(call, "kind", kind)
    if isinstance(kind, Divergence):
        return with_limits(kind)
    got, instead = safe_repr(kind), "kind=KL(), kind='js:0.5' or another of kullback's kinds"
    if isinstance(kind, type) and issubclass(kind, Divergence):
        got = f"the class {kind.__name__} itself"
        if kind.example or not (kind.__match_args__ or kind.__abstractmethods__):
            instead = f"kind={kind.__name__}({kind.example.partition(':')[2]})"
    elif callable(kind):
        instead = "kind=FDivergence(f), if f is a convex function with f(1) = 0"
    raise invalid_type(call, "kind", wanted="a divergence or the name of one", got=got, instead=instead)


def _parsed(call: str, argument: str, text: str) -> Divergence:
    word, *parts = [part.strip() for part in text.lower().split(":")]
    word = word.replace("-", "_")
    if word not in NAMED:
        for point in entry_points(group="kullback.kinds", name=word):
            point.load()  # imports the class, and the import adds the class to NAMED
    kind = NAMED.get(word)
    if kind is None:
        wanted = "one of " + ", ".join(_usage(kind) for kind in dict.fromkeys(NAMED.values()))
        kind = NAMED[nearest(word, NAMED) or "kl"]
    else:
        parameters = _parameters(kind, parts)
        if parameters is not None:
            try:
                return kind(**parameters)
            except KullbackError:  # a parameter is out of range
                pass
        wanted = _usage(kind) if kind.__match_args__ else f"'{kind.short_name}', which has no parameter"
    instead = {argument: kind.example or kind.short_name}
    raise invalid_value(call, argument, wanted=wanted, got=f"'{printable(text, 60)}'", instead=instead)


def _numbers_and_flags(kind: type[Divergence]) -> tuple[list[str], list[str]]:
    """Return the names of the numeric parameters and the names of the boolean parameters of the class `kind`."""
    # torch.compile does not support `dataclasses.fields` of a class, so the names come from `__match_args__`.
    names: tuple[str, ...] = kind.__match_args__
    numbers = [name for name in names if not isinstance(getattr(kind, name, None), bool)]
    return numbers, [name for name in names if name not in numbers]  # pyright: ignore[reportReturnType]


def _usage(kind: type[Divergence]) -> str:
    numbers, flags = _numbers_and_flags(kind)
    plain = ":".join([kind.short_name, *map(str.upper, numbers)])
    usage = " or ".join(f"'{plain}{end}'" for end in ("", *(f":{flag}" for flag in flags)))
    limits = [
        f"{name.upper()} from {low:g} to {high:g}" if low > -_LARGEST else f"a finite number {name.upper()}"
        for name, (low, high) in kind.ranges.items()
    ]
    return f"{usage} with {' and '.join(limits)}" if limits else usage


def _parameters(kind: type[Divergence], parts: list[str]) -> dict[str, float] | None:
    """Return the arguments that parts such as ``["0.1", "scaled"]`` of a name mean for `kind`, or None."""
    numbers, flags = _numbers_and_flags(kind)
    arguments: dict[str, float] = {part: True for part in parts if part in flags}
    texts = [part for part in parts if part not in flags]
    try:
        arguments.update(zip(numbers, map(float, texts), strict=False))
    except ValueError:
        return None
    is_complete = all(name in arguments or hasattr(kind, name) for name in numbers)
    return arguments if is_complete and len(texts) <= len(numbers) else None
