"""`kullback.fit`: which method serves the family and the target, and what is made of its answer."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, cast

import torch
from torch import Tensor
from torch.distributions import (
    Categorical,
    Distribution,
    MixtureSameFamily,
    OneHotCategorical,
)

from kullback.common.dtypes import upcast
from kullback.common.inputs import check_flag, check_generator, number_from, whole_from
from kullback.common.progress import progress_bar
from kullback.errors import (
    ArgumentValueError,
    NoRuleError,
    explain,
    invalid_type,
    invalid_value,
    safe_repr,
)
from kullback.fitting.default_start import start_of
from kullback.fitting.em import best_start
from kullback.fitting.exact_fit import nearest
from kullback.fitting.fit_result import Fit, FitError
from kullback.fitting.method_answer import FitSettings, Found, as_found, value_and_gradient
from kullback.fitting.modules import fit_module
from kullback.fitting.objective import DivergenceObjective, ElboObjective, LikelihoodObjective, Objective
from kullback.fitting.optimize import Minimum, lower_of, minimize
from kullback.fitting.starts import other_starts
from kullback.fitting.stochastic import fit_by_draws
from kullback.fitting.unconstrained import Family, has_numbers, read_family
from kullback.generators import KL, Divergence, ReverseKL, as_divergence, behaves_as
from kullback.generators.growth import as_kl
from kullback.pairs.clone import upcast_copy, usable, with_tensors
from kullback.pairs.scipy_adapter import is_frozen, to_torch
from kullback.pairs.support import check_comparable
from kullback.representations import Logits, LogProbs, Probs, Representation
from kullback.results.estimate import Estimate
from kullback.samples import Samples

__all__ = ["METHODS", "fit"]

# A start near a component is left out if its value is this much above the lowest end, relative to 1 + the end's size.
_FAR_ABOVE = 0.1
METHODS = ("auto", "moment_matching", "maximum_likelihood", "em", "quasi_newton", "stochastic")


def fit(
    q: Any,
    *,
    to: Any,
    kind: Divergence | str | None = None,
    fixed: Sequence[str] = (),
    method: str = "auto",
    starts: int | None = None,
    tol: float = 1e-10,
    max_iterations: int = 1_000,
    draws: int = 256,
    generator: torch.Generator | None = None,
    show_progress: bool = True,
) -> Fit:
    r"""Fit a distribution: change its parameters until its divergence from a target is least.

    .. math:: \min_\theta KL(P \| Q_\theta) \quad \text{or} \quad \min_\theta KL(Q_\theta \| P)

    `KL()`, from the target to the fit, covers all of the target; `ReverseKL()` seeks a mode of it. Computed in float64.
    Where the divergence has several minima, the result is the lowest that the starts lead to.

    Arguments:
        q: the family with its start: a torch distribution such as ``Normal(0.0, 1.0)``, a mixture, a transformed
            distribution, whose transforms' tensors are free where they require a gradient, or `Logits`, `LogProbs` or
            `Probs`; or a class such as ``Normal``, which starts where KL(to || q) is least; or an ``nn.Module`` whose
            forward takes no arguments and returns the distribution: its parameters are changed in place.
        to: the target: a distribution of torch or a frozen one of SciPy; `Samples`; `Probs`, `Logits`, `LogProbs` or
            `Counts`; or a function from points to the logarithm of a density known up to a constant factor.
        kind: which divergence, or its name; left out, `KL()`, and for a log-density `ReverseKL()`, which there is the
            only one.
        fixed: the names of q's parameters that stay as they are, such as ``("loc",)``, or
            ``("component_distribution.scale",)`` in full.
        method: ``"auto"`` takes the most exact there is of ``"moment_matching"``, ``"maximum_likelihood"``, ``"em"``
            and ``"quasi_newton"``; ``"stochastic"`` draws at random, and is the one for what has no other.
        starts: the largest number of starts; the best end is kept. The first is yours. EM takes the others at random,
            and none if this is left out. Other fits to a mixture start near each component, eight at most.
        tol: how far the value may be above the nearest minimum, relative to 1 + its size; for ``"stochastic"``, whose
            gradient may otherwise be 0 within its standard error, 1e-6 at least.
        max_iterations: how many steps may be taken.
        draws: how many draws each step of ``"stochastic"`` takes.
        generator: where its randomness, and that of the starts, comes from; left out, torch's own.
        show_progress: show a bar on a terminal after a second.

    Returns:
        a `Fit`: the distribution, the value, a bound on its error, how it was obtained and whether it converged. From
        `Samples` the value is the negative log-likelihood per draw, from a log-density the negative ELBO.

    Raises:
        ArgumentTypeError: q is no family, or the target no distribution; or draws of text, which only a Categorical
            can be fitted to.
        ArgumentValueError: the divergence is infinite for every member of the family, nothing is free, a start lies
            outside of its constraint, or a log-density is not finite.
        NoRuleError: no method serves the pair.
        FitError: the criterion was not met: its ``fit`` is the best point that was found.

    Example:
        >>> import torch
        >>> from torch.distributions import Categorical, MixtureSameFamily, Normal
        >>> from kullback import ReverseKL, fit
        >>> modes = MixtureSameFamily(Categorical(torch.ones(2)), Normal(torch.tensor([-5.0, 5.0]), torch.ones(2)))
        >>> fit(Normal(4.0, 1.0), to=modes).distribution.scale
        tensor(5.0990)
        >>> fit(Normal(4.0, 1.0), to=modes, kind=ReverseKL()).distribution.scale
        tensor(1.0000)

    References:
        Divergence measures and message passing (Minka, 2005)
    """
    began = time.perf_counter()
    settings = _settings(method, starts, tol, max_iterations, draws, generator, show_progress)
    names = _fixed_names(fixed)
    kind = None if kind is None else as_divergence("fit", kind)
    target = _target(to, q)
    is_function = not isinstance(target, Distribution | Samples)
    kind = as_kl(kind) if kind is not None else ReverseKL() if is_function else KL()
    objective = _objective(target, kind)
    if isinstance(q, torch.nn.Module):
        found = fit_module(q, objective, settings)
        return _finish(found, kind, objective, to, began)
    if isinstance(q, type):
        q = start_of(q, target, kind)
    form = type(q) if isinstance(q, Representation) else None
    q = _family_of(q)
    shape = q.batch_shape if not isinstance(target, Distribution) else _common_shape(q, target)
    q = q if q.batch_shape == shape else q.expand(shape)
    if isinstance(target, Distribution):
        _check_comparable(q, target)
    family = read_family(q, names)
    q = with_tensors(q, _in_float64)
    found = _fitted(q, target, objective, kind, family, names, settings)
    if form is not None:
        own = getattr(found.distribution, "_categorical", found.distribution)
        found = found._replace(distribution=_as_representation(form, own))
    return _finish(found, kind, objective, to, began)


def _settings(
    method: Any, starts: Any, tol: Any, max_iterations: Any, draws: Any, generator: Any, show_progress: Any
) -> FitSettings:
    if method not in METHODS:
        raise invalid_value(
            "fit",
            "method",
            wanted="one of " + ", ".join(map(repr, METHODS)),
            got=safe_repr(method),
            instead="method='auto', which takes the most exact one",
        )
    for name, number, least in (
        ("starts", 1 if starts is None else starts, 1),
        ("tol", tol, 1e-16),
        ("max_iterations", max_iterations, 1),
        ("draws", draws, 4),
    ):
        found = number_from(number) if name == "tol" else whole_from(number)
        if found is None or not least <= found < 2**63:
            raise invalid_value(
                "fit",
                name,
                wanted=f"a {'number' if name == 'tol' else 'whole number'} from {least:g} on",
                got=safe_repr(number),
                instead="fit(q, to=p) without it",
            )
    check_generator("fit", generator)
    check_flag("fit", "show_progress", show_progress)
    return FitSettings(
        method,
        None if starts is None else int(starts),
        float(tol),
        int(max_iterations),
        int(draws),
        generator,
        show_progress,
    )


def _fixed_names(fixed: Any) -> frozenset[str]:
    names: tuple[Any, ...] | None = None
    if isinstance(fixed, Iterable):
        names = (fixed,) if isinstance(fixed, str) else tuple(cast("Iterable[Any]", fixed))
    if names is None or not all(isinstance(name, str) for name in names):
        raise invalid_type(
            "fit",
            "fixed",
            wanted="names of q's parameters",
            got=safe_repr(fixed),
            instead="fixed=('loc',), or fixed=() to change them all",
        )
    return frozenset(names)


# ---- What was given.


def _target(to: Any, q: Any) -> Any:
    """Return the target in float64: a distribution or draws; or the function that was given."""
    if is_frozen(to):
        to = to_torch("fit", "to", to)
    if isinstance(to, Representation):
        to = _as_categorical(to)
        if isinstance(q, OneHotCategorical) or q is OneHotCategorical:
            to = OneHotCategorical(probs=to.probs, validate_args=False)
    if isinstance(to, Distribution):
        return with_tensors(usable("fit", "to", to), _normalized)
    if isinstance(to, Samples):
        return to
    if callable(to) and not isinstance(to, type | torch.nn.Module):
        return to
    wrap = "Samples(x) for draws, Probs(x), Logits(x) or Counts(x) for classes"
    raise invalid_type(
        "fit",
        "to",
        wanted="a distribution, Samples, finite probabilities or a function that gives a log-density",
        got="a tensor, which does not say what it holds" if isinstance(to, Tensor) else type(to).__name__,
        instead=wrap,
    )


def _in_float64(owner: Any, name: str, x: Tensor) -> Tensor:
    """Detach a parameter and convert it to float64."""
    return upcast(x.detach()) if x.is_floating_point() else x.detach()


def _normalized(owner: Any, name: str, x: Tensor) -> Tensor:
    """Detach a parameter and convert it to float64; normalize probabilities, whose sum in float32 is inexact."""
    x = _in_float64(owner, name, x)
    is_probs = isinstance(owner, Categorical) and name == "probs"
    return x / x.sum(-1, keepdim=True) if is_probs else x


def _as_categorical(x: Representation) -> Categorical:
    if isinstance(x, Logits | LogProbs):
        return Categorical(logits=x.tensor.movedim(x.dim, -1).double(), validate_args=False)
    weights = x.weights().double()
    return Categorical(probs=weights / weights.sum(-1, keepdim=True), validate_args=False)


def _as_representation(form: type[Representation], d: Categorical) -> Representation:
    if form is Logits:
        return Logits(d.logits)
    return LogProbs(d.logits) if form is LogProbs else Probs(d.probs)


def _family_of(q: Any) -> Distribution:
    """Return the distribution that is the start."""
    if isinstance(q, Logits | LogProbs):
        return Categorical(logits=q.tensor.detach().movedim(q.dim, -1), validate_args=False)
    if isinstance(q, Probs):
        return Categorical(probs=q.tensor.detach().movedim(q.dim, -1), validate_args=False)
    if isinstance(q, Distribution):
        return usable("fit", "q", q)
    raise invalid_type(
        "fit",
        "q",
        wanted="a distribution with the start, its class, an nn.Module that returns one, or Logits",
        got="a tensor, which does not say what it holds" if isinstance(q, Tensor) else safe_repr(q),
        instead="fit(Normal(0.0, 1.0), to=p)",
    )


def _common_shape(q: Distribution, to: Distribution) -> torch.Size:
    try:
        return torch.broadcast_shapes(q.batch_shape, to.batch_shape)
    except RuntimeError:
        raise invalid_value(
            "fit",
            "q, to",
            wanted="batch shapes that broadcast",
            got=f"{tuple(q.batch_shape)} in q and {tuple(to.batch_shape)} in to",
            instead="q with one start for each target, such as Normal(torch.zeros(n), torch.ones(n))",
        ) from None


def _check_comparable(q: Distribution, to: Distribution) -> None:
    try:
        check_comparable("fit", to, q)
    except ArgumentValueError as error:
        raise ArgumentValueError(str(error).replace("fit(p=..., q=...)", "fit(q=..., to=...)")) from None


def _objective(target: Any, kind: Divergence) -> Objective:
    if isinstance(target, Distribution):
        return DivergenceObjective(target, kind)
    if isinstance(target, Samples):
        if not behaves_as(kind, KL):
            raise invalid_value(
                "fit",
                "kind",
                wanted="KL() for Samples, whose density is not known",
                got=repr(kind),
                instead="kind=KL(), which is maximum likelihood",
            )
        return LikelihoodObjective(target)
    if not behaves_as(kind, ReverseKL):
        raise invalid_value(
            "fit",
            "kind",
            wanted="ReverseKL() for a log-density, of which there are no draws",
            got=repr(kind),
            instead="kind=ReverseKL(), which maximizes the ELBO",
        )
    return ElboObjective(target)


# ---- The methods, the most exact first.


def _fitted(
    q: Distribution,
    target: Any,
    objective: Objective,
    kind: Divergence,
    family: Family,
    fixed: frozenset[str],
    settings: FitSettings,
) -> Found:
    method = settings.method
    count = None if settings.starts is None else settings.starts - 1
    starts = itertools.islice(other_starts(q, target, family, fixed), count)
    by_formula = "maximum_likelihood" if isinstance(target, Samples) else "moment_matching"
    if behaves_as(kind, KL) and method in ("auto", by_formula):
        distribution = nearest(q, target, family, fixed)
        is_finite = distribution is not None and has_numbers(distribution)
        # Without finite means, in float64 or at all, the other methods find the optimum or say that there is none.
        others = method == "auto" and isinstance(target, Distribution)
        if is_finite or not (distribution is None or others):
            return _by_formula(q, distribution if is_finite else None, objective, by_formula, settings)
    if method in ("auto", "em") and behaves_as(kind, KL) and isinstance(q, MixtureSameFamily):
        found = _by_em(q, target, objective, family, settings)
        if found is not None:
            return found
    if method in ("auto", "quasi_newton"):
        try:
            before = objective.measure(q)
        except NoRuleError:
            if method != "auto":
                raise
            before = None
        if before is not None:
            return _from_the_best(q, before, objective, family, settings, starts)
    if method in ("auto", "stochastic"):
        return _by_draws(q, objective, family, settings, starts)
    raise NoRuleError(
        explain(
            "fit",
            "method",
            wanted=f"a method that serves {type(q).__name__} and {kind!r}",
            got=repr(method),
            instead="method='auto'",
        )
    )


def _by_formula(
    q: Distribution, distribution: Any, objective: Objective, method: str, settings: FitSettings
) -> Found:
    before = objective.measure_or_draw(q, settings.generator)
    if distribution is None:
        _check_finite(before.value, q, objective)
        raise invalid_value(
            "fit",
            "q, to",
            wanted="a target to which one member of the family is nearest",
            got=f"one for which the parameters of {type(q).__name__} have no finite values inside their range, as for "
            "draws that are all alike",
            instead="a target with some spread, or fixed= for the parameter that has none",
        )
    after = objective.measure_or_draw(upcast_copy(distribution), settings.generator)
    zero = torch.zeros_like(after.value)
    history = torch.stack([before.value, after.value])
    done = torch.ones_like(zero, dtype=torch.bool)
    drawn = "The parameters are exact; the value, for which there is no rule, is a mean over draws."
    notes = (drawn,) if after.method == "monte_carlo" else ()
    return Found(distribution, q, before, after, method, done, zero.long(), history, zero, zero, notes)


def _by_em(
    q: MixtureSameFamily, target: Any, objective: Objective, family: Family, settings: FitSettings
) -> Found | None:
    """Take EM's steps from every start, and from the best of them quasi-Newton steps to the minimum."""
    with progress_bar("starts", show=settings.show_progress) as update:
        start = best_start(q, target, family, settings, update)
    if start is None:
        return None
    before = objective.try_measure(q)
    found = _by_quasi_newton(q, before, objective, family, settings, start.values)
    constant = found.history[0] - start.history[-1]  # the entropy of the target, where there is one
    history = torch.cat([torch.stack(start.history[:-1]) + constant, found.history])
    steps = found.iterations + len(start.history) - 1
    return found._replace(method="em", history=history, iterations=steps)


def _by_quasi_newton(
    q: Distribution,
    before: Estimate,
    objective: Objective,
    family: Family,
    settings: FitSettings,
    values: dict[str, Tensor] | None = None,
) -> Found:
    if values is None:
        _check_finite(before.value, q, objective)
    found = _minimized(objective, family, settings, family.start(values))
    return _ended(q, before, objective, family, settings, found)


def _from_the_best(
    q: Distribution,
    before: Estimate,
    objective: Objective,
    family: Family,
    settings: FitSettings,
    others: Iterable[Tensor],
) -> Found:
    """Take quasi-Newton steps from the given start and from others; return the lowest end of each element."""
    _check_finite(before.value, q, objective)
    found = _minimized(objective, family, settings, family.start())
    for start in others:
        value = objective.try_measure(family.at(start)).value.detach().reshape(-1)
        near = value < found.value + _FAR_ABOVE * (1 + found.value.abs())
        if bool(value.isfinite().all() & near.any()):
            found = lower_of(found, _minimized(objective, family, settings, start), settings.tol)
    result = _ended(q, before, objective, family, settings, found)
    return result._replace(history=torch.cat([before.value.detach()[None], result.history[1:]]))


def _by_draws(
    q: Distribution, objective: Objective, family: Family, settings: FitSettings, others: Iterable[Tensor]
) -> Found:
    """Take stochastic steps from the given start and, but for batches, from others; return the lowest end."""
    found = fit_by_draws(q, objective, family, settings)
    for start in others if found.after.value.numel() == 1 else ():
        values = family.values(start)
        near = replace(family, free={name: x._replace(value=values[name]) for name, x in family.free.items()})
        other = fit_by_draws(q, objective, near, settings)
        error = other.after.standard_error
        if float(other.after.value) < float(found.after.value) - 4 * (0.0 if error is None else float(error)):
            found = other
    return found


def _minimized(objective: Objective, family: Family, settings: FitSettings, start: Tensor) -> Minimum:
    with progress_bar("steps", show=settings.show_progress) as update:
        return minimize(
            value_and_gradient(lambda u: objective.try_measure(family.at(u)).value.reshape(-1)),
            start,
            tol=settings.tol,
            max_iterations=settings.max_iterations,
            update=update,
        )


def _ended(
    q: Distribution,
    before: Estimate,
    objective: Objective,
    family: Family,
    settings: FitSettings,
    found: Minimum,
) -> Found:
    with torch.no_grad():
        fitted = family.finished(family.values(found.u))
        after = objective.try_measure(upcast_copy(fitted))
    return as_found(fitted, q, before, after, found, q.batch_shape, settings)


def _check_finite(value: Tensor, q: Any, objective: Objective) -> None:
    endless = ~value.isfinite()
    if bool(endless.any()):
        where = "" if value.numel() == 1 else f" for {int(endless.sum())} of {value.numel()} elements"
        raise invalid_value(
            "fit",
            "q, to",
            wanted=f"a family with a finite {objective.quantity}: one side's support has to hold the other's, and "
            "its tails must not fall faster",
            got=f"{type(q).__name__}, where it is infinite{where}",
            instead="a family, or a start, with the support and the tails of the target, or the kind with the sides "
            "exchanged",
        )


def _finish(found: Found, kind: Divergence, objective: Objective, to: Any, began: float) -> Fit:
    _check_finite(found.after.value, found.distribution, objective)
    result = Fit(
        distribution=found.distribution,
        value=found.after.value.detach(),
        error=None if found.after.error is None else found.after.error.detach(),
        before=found.before.value.detach(),
        before_error=None if found.before.error is None else found.before.error.detach(),
        method=found.method,
        converged=found.converged,
        iterations=found.iterations,
        history=found.history.detach(),
        above=found.above,
        gradient_norm=found.gradient_norm,
        kind=kind,
        quantity=objective.quantity,
        standard_error=found.after.standard_error,
        notes=found.notes,
        seconds=time.perf_counter() - began,
        start=found.start,
        to=to,
    )
    if not bool(result.converged.all()):
        count = int((~result.converged).sum())
        raise FitError(
            explain(
                "fit",
                "q, to",
                wanted="every element of the batch at a minimum, within tol and with a small error",
                got=f"{count} of {result.converged.numel()} that are not after {int(result.iterations.max())} steps; "
                f"they are about {float(result.above.max()):.2g} above it, with a gradient of "
                f"{float(result.gradient_norm.max()):.2g} (error.fit is the best point found)",
                instead="a larger max_iterations or tol, or another start",
            ),
            result,
        )
    return result
