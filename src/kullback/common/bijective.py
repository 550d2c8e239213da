"""A check that the maps inside a distribution are one-to-one.

For any other map, torch's `log_prob` is not the log-density of the mapped variable.
"""

from __future__ import annotations

from torch.distributions import Distribution, TransformedDistribution
from torch.distributions.transforms import ComposeTransform, Transform

from kullback.errors import NoRuleError, no_rule


def check_bijective(call: str, argument: str, d: Distribution) -> None:
    """Raise if the density of `d`, or of a distribution inside `d`, comes from a map that is not one-to-one."""
    waiting = [d]
    for part in waiting:  # the loop body appends the distributions inside `part` to this list
        for inner in vars(part).values():
            if isinstance(inner, Distribution):
                waiting.append(inner)  # noqa: PERF401 - a comprehension would cost another call
        if (
            isinstance(part, TransformedDistribution)
            and type(part).log_prob is TransformedDistribution.log_prob
            and "log_prob" not in vars(part)
        ):
            for step in part.transforms:
                if not step.bijective:
                    raise not_bijective(call, argument, d, step)


def not_bijective(call: str, argument: str, d: Distribution, step: Transform) -> NoRuleError:
    """Return the error for a distribution `d` with a map `step` that is not one-to-one."""
    while isinstance(step, ComposeTransform):
        step = next((part for part in step.parts if not part.bijective), step.parts[0])
    own = argument if argument in ("p", "q") else "p"
    other = "q" if own == "p" else "p"
    remedies = {"to": "to=Samples(to.sample((n,)))", "q": "a family whose maps are one-to-one"}
    sides = (f"Samples({side}.sample((n,))) for {side}" for side in (own, other))
    by_draws = f"estimate with {' and '.join(sides)}"
    remedy = remedies.get(argument, by_draws) if call == "fit" else by_draws
    is_of_torch = type(step).__module__.startswith("torch.")
    return no_rule(
        call,
        argument,
        wanted="maps that are one-to-one",
        got=f"{type(d).__name__} with {type(step).__name__}, which is not bijective, so torch's log_prob misses mass",
        instead=remedy
        + ("" if is_of_torch else ", or bijective = True in the class of a map that is one-to-one"),
    )
