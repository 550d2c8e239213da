"""The function `kullback.fit`, which chooses a method for the family and the target and returns its result."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Generator, Iterable, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any, cast

import torch
from torch import Tensor
from torch.distributions import Categorical, Distribution, MixtureSameFamily, OneHotCategorical

from kullback.common.bijective import check_bijective
from kullback.common.constraints import FLAG, GENERATOR, Arguments, Number, OneOf, Whole
from kullback.common.dtypes import upcast
from kullback.common.extra_arguments import by_name
from kullback.errors import KullbackError, NoRuleError, explain, invalid_type, invalid_value, safe_repr
from kullback.fitting.em import best_start
from kullback.fitting.exact_fit import nearest
from kullback.fitting.fit_result import (
    Fit,
    FitError,
    FitProblem,
    FitSettings,
    MethodAnswer,
    as_answer,
    minimized,
)
from kullback.fitting.modules import fit_module
from kullback.fitting.objective import (
    DivergenceObjective,
    ElboObjective,
    LikelihoodObjective,
    Objective,
    is_categorical,
)
from kullback.fitting.optimize import Minimum, lower_of
from kullback.fitting.starts import other_starts, start_of
from kullback.fitting.stochastic import fit_by_draws
from kullback.fitting.unconstrained import Values, read_family
from kullback.generators import KL, Divergence, ReverseKL, as_divergence
from kullback.pairs.clone import upcast_copy, with_ordinary_tensors, with_tensors, without_empty_wrapper
from kullback.pairs.numerics.parameters import batch_shape_of
from kullback.pairs.registry import plan_for
from kullback.pairs.scipy_adapter import is_frozen, to_torch
from kullback.pairs.support import check_comparable
from kullback.representations import Logits, LogProbs, Probs, Representation
from kullback.results.estimate import Estimate
from kullback.samples import Samples

# A minimization from another start is worthwhile only if the value at the start is low. The start is skipped if its
# value exceeds the lowest value so far by more than `_FAR_ABOVE` times (1 + the lowest value). With this constant, the
# fits to mixtures in `tests/fitting/test_quasi_newton.py` find their lowest minima.
_FAR_ABOVE = 0.1
METHODS = ("auto", "moment_matching", "maximum_likelihood", "em", "quasi_newton", "stochastic")


@by_name("fit(q, to=p)", {"p": "fit(q, to=p)", "target": "fit(q, to=target)"})
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
    r"""Fit a distribution to a target: find the parameters with the smallest divergence.

    .. math:: \min_\theta KL(P \| Q_\theta) \quad \text{or} \quad \min_\theta KL(Q_\theta \| P)

    `KL()` is the divergence KL(to || q), and a fit with `KL()` covers the whole target. `ReverseKL()` is KL(q || to),
    and a fit with `ReverseKL()` covers one mode of the target. Computations are in float64. If the divergence has
    several minima, the result is the lowest minimum that the minimizations from all starts reach.

    Arguments:
        q: the family and the start. A torch distribution such as ``Normal(0.0, 1.0)``, a mixture, `Logits`, `LogProbs`
            or `Probs` is itself the start. A transformed distribution is also possible; the tensors of its transforms
            that require a gradient are free parameters. For a class such as ``Normal``, the start is the member with
            the smallest KL(to || q). For an ``nn.Module`` whose forward takes no arguments and returns a distribution,
            the parameters of the module are changed in place.
        to: the target: a distribution of torch or SciPy (frozen), `Samples`, `Probs`, `Logits`, `LogProbs`, `Counts`,
            or a function that maps points to the logarithm of a density, up to a constant.
        kind: the divergence, or its name; `KL()` by default. If `to` is a log-density, `kind` must be `ReverseKL()`,
            which is then the default.
        fixed: the names of fixed parameters of q, such as ``("loc",)``, or with the full path, such as
            ``("component_distribution.scale",)``.
        method: ``"auto"`` takes the first of ``"moment_matching"``, ``"maximum_likelihood"``, ``"em"`` and
            ``"quasi_newton"`` that is available for q and `to`. If none is available, it takes ``"stochastic"``, which
            uses random draws.
        starts: the largest number of starts; the result with the lowest value is returned. The first start is q. For
            ``"em"``, the other starts are random, and the default is q alone. For the other methods, if the target is a
            mixture, the other starts are near its components, at most eight of them.
        tol: the largest accepted difference between the value and the nearest minimum, relative to 1 + |value|.
            ``"stochastic"`` uses at least 1e-6, and also accepts a mean gradient that is 0 within its standard error.
        max_iterations: the largest number of steps from each start.
        draws: the number of draws in each step of ``"stochastic"``.
        generator: the generator of random draws and starts; by default torch's global generator.
        show_progress: whether to show a progress bar on a terminal after a second.

    Returns:
        a `Fit`, with the fitted distribution, the value, a bound on the error of the value, the method and the
        convergence. For `Samples`, the value is the negative log-likelihood per draw. For a log-density, the value is
        the negative ELBO.

    Raises:
        ArgumentTypeError: q is not a family, the target is not a distribution, or the target has draws of text and q is
            not Categorical.
        ArgumentValueError: the divergence is infinite for every member of the family, no parameter is free, a start is
            outside its constraint, or a log-density is not finite.
        NoRuleError: no method is available for the pair.
        FitError: the fit did not converge; the attribute ``fit`` of the error is the `Fit` at the best point.

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
    with _of_its_own_arguments():
        settings = FitSettings(method, starts, tol, max_iterations, draws, generator, show_progress)
        settings = settings._replace(**_ARGUMENTS.check(**settings._asdict()))  # numbers become int and float
        names = _fixed_names(fixed)
        kind = None if kind is None else as_divergence("fit", kind)
        if isinstance(q, Representation) and isinstance(to, Representation):
            q, to = q.aligned_with(to)
        target = _target(to, q)
        for name, side in (("to", target), ("q", q)):
            if isinstance(side, Distribution):
                check_bijective("fit", name, side)
        is_function = not isinstance(target, Distribution | Samples)
        kind = kind.simplest() if kind is not None else ReverseKL() if is_function else KL()
        objective = _objective(target, kind)
        if isinstance(q, torch.nn.Module):
            result = fit_module(q, objective, settings)
            return _finish(result, kind, objective, to, began)
        is_nearest = None
        if isinstance(q, type):
            q, is_nearest = start_of(q, target)
        form: Any = type(q) if isinstance(q, Representation) else None
        q = _family_of(q)
        if isinstance(target, Distribution):
            check_comparable("fit", target, q)
            shape = batch_shape_of(q, target)
            q = q if q.batch_shape == shape else q.expand(shape)
        family = read_family(q, names)
        q = with_tensors(q, _in_float64)
        problem = FitProblem(q, target, objective, kind, family, names, settings)
        result = _fitted(problem, None if names else is_nearest)
        if form is not None:
            own = getattr(result.distribution, "_categorical", result.distribution)
            result = result._replace(distribution=form(own.probs if form is Probs else own.logits))
        return _finish(result, kind, objective, to, began)


@contextmanager
def _of_its_own_arguments() -> Generator[None]:
    """Return a context that renames the argument p in errors, because `fit` calls P `to`."""
    own = {"p": "to", "p, q": "q, to", "p, q, kind": "q, to, kind"}
    try:
        yield
    except KullbackError as error:
        if error.argument not in own:
            raise
        raise error.replace({"p": "to"}, argument=own[error.argument]) from None


_WITHOUT = "fit(q, to=p) without it"
_ARGUMENTS = Arguments(
    "fit",
    method=OneOf(METHODS, example="auto", instead="method='auto', which takes the most exact method"),
    starts=Whole(least=1, example=3, instead=_WITHOUT, optional=True),
    tol=Number(least=1e-16, below=math.inf, example=1e-10, instead=_WITHOUT),
    max_iterations=Whole(least=1, example=100, instead=_WITHOUT),
    draws=Whole(least=4, example=64, instead=_WITHOUT),
    generator=GENERATOR,
    show_progress=FLAG,
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


# ---- The arguments.


def _target(to: Any, q: Any) -> Any:
    """Return the target: a distribution in float64, draws, or the user's function."""
    if is_frozen(to):
        to = to_torch("fit", "to", to)
    if isinstance(to, Representation):
        to = _as_categorical(to)
        if isinstance(q, OneHotCategorical) or q is OneHotCategorical:
            to = OneHotCategorical(probs=to.probs, validate_args=False)
    if isinstance(to, Distribution):
        return with_tensors(without_empty_wrapper(with_ordinary_tensors("fit", "to", to)), _normalized)
    if isinstance(to, Samples):
        return to
    if callable(to) and not isinstance(to, type | torch.nn.Module):
        return to
    wrap = "Samples(x) for draws, Probs(x), Logits(x) or Counts(x) for classes"
    if isinstance(to, torch.nn.Module):
        wrap = "to=lambda x: module(x) for a module that returns the log-density of a batch of points"
    raise invalid_type(
        "fit",
        "to",
        wanted="a distribution, Samples, finite probabilities or a function that gives a log-density",
        got="a tensor without a wrapper" if isinstance(to, Tensor) else type(to).__name__,
        instead=wrap,
    )


def _in_float64(owner: Any, name: str, x: Tensor) -> Tensor:
    """Return a parameter without gradient, in float64 if it is floating-point."""
    return upcast(x.detach()) if x.is_floating_point() else x.detach()


def _normalized(owner: Any, name: str, x: Tensor) -> Tensor:
    """Return a parameter without gradient, in float64; probabilities of float32 are normalized in float64."""
    x = _in_float64(owner, name, x)
    is_probs = isinstance(owner, Categorical) and name == "probs"
    return x / x.sum(-1, keepdim=True) if is_probs else x


def _as_categorical(x: Representation) -> Categorical:
    if isinstance(x, Logits | LogProbs):
        return Categorical(logits=x.tensor.movedim(x.dim, -1).double(), validate_args=False)
    weights = x.weights().double()
    return Categorical(probs=weights / weights.sum(-1, keepdim=True), validate_args=False)


def _family_of(q: Any) -> Distribution:
    if isinstance(q, Logits | LogProbs):
        return Categorical(logits=q.tensor.detach().movedim(q.dim, -1), validate_args=False)
    if isinstance(q, Probs):
        return Categorical(probs=q.tensor.detach().movedim(q.dim, -1), validate_args=False)
    if isinstance(q, Distribution):
        return with_ordinary_tensors("fit", "q", q)
    got = "a tensor without a wrapper" if isinstance(q, Tensor) else safe_repr(q)
    if is_frozen(q) and hasattr(q, "dist"):
        got = f"a frozen scipy.stats.{cast('Any', q).dist.name}"
    raise invalid_type(
        "fit",
        "q",
        wanted="a distribution to start from, its class, an nn.Module that returns one, or Logits",
        got=got,
        instead="fit(torch.distributions.Normal(0.0, 1.0), to=p), with a distribution of torch",
    )


def _objective(target: Any, kind: Divergence) -> Objective:
    if isinstance(target, Distribution):
        return DivergenceObjective(target, kind)
    is_drawn = isinstance(target, Samples)
    if not isinstance(kind, KL if is_drawn else ReverseKL):
        wanted = "KL() for Samples, whose density is unknown"
        instead = "kind=KL(), which is maximum likelihood"
        if not is_drawn:
            wanted = "ReverseKL() for a log-density, which has no draws"
            instead = "kind=ReverseKL(), which maximizes the ELBO"
        raise invalid_value("fit", "kind", wanted=wanted, got=repr(kind), instead=instead)
    return LikelihoodObjective(target) if is_drawn else ElboObjective(target)


# ---- The methods, in the order of method="auto".


def _fitted(problem: FitProblem, is_nearest: bool | None) -> MethodAnswer:
    """Return the answer of the first method that is available for the problem.

    `is_nearest` is the second result of `start_of`; None without a call, or with fixed parameters, which it ignores.
    """
    q, target, settings = problem.q, problem.target, problem.settings
    method, is_kl = settings.method, isinstance(problem.kind, KL)
    count = None if settings.starts is None else settings.starts - 1
    starts = itertools.islice(other_starts(problem), count)
    by_formula = "maximum_likelihood" if isinstance(target, Samples) else "moment_matching"
    result = None
    if is_kl and method in ("auto", by_formula):
        result = _by_formula(problem, is_nearest, by_formula)
    if result is None and is_kl and method in ("auto", "em") and isinstance(q, MixtureSameFamily):
        result = _by_em(problem)
    if result is not None:
        return result
    before = problem.objective.measure_for(method, q)
    if before is not None:
        return _from_the_best(problem, before, starts)
    if method in ("auto", "stochastic"):
        return _by_draws(problem, starts)
    raise NoRuleError(
        explain(
            "fit",
            "method",
            wanted=f"a method that serves {type(q).__name__} and {problem.kind!r}",
            got=repr(method),
            instead="method='auto'",
        )
    )


def _by_formula(problem: FitProblem, is_nearest: bool | None, method: str) -> MethodAnswer | None:
    """Return the member of the family with the smallest divergence, computed by a formula, as a `MethodAnswer`.

    `is_nearest` is True if the start is this member, False if the formula gives no valid member, and None if this is
    unknown. The result is None if no formula exists, or if the formula failed and another method may find an optimum.
    """
    q, target, generator = problem.q, problem.target, problem.settings.generator
    values: Values | None = {}  # an empty mapping means the start itself
    if is_nearest is None:
        values, is_nearest = nearest(q, target, problem.family, problem.fixed)
    # A formula fails if, for example, the target has no finite mean. Another method then finds the optimum, or reports
    # that no optimum exists.
    if values is None or not (is_nearest or isinstance(target, Samples) or problem.settings.method != "auto"):
        return None
    if not is_nearest:
        _check_finite(problem.objective.measure_or_draw(q, generator).value, q, problem.objective)
        raise invalid_value(
            "fit",
            "q, to",
            wanted="a target with a nearest member of the family",
            got=f"one whose nearest {type(q).__name__} has an infinite or degenerate parameter, as for equal draws",
            instead="a target with some spread, or fixed= for the parameter that has none",
        )
    distribution = problem.family.finished(values) if values else q
    before, after = _at_start_and_end(problem, values, distribution)
    zero = torch.zeros_like(after.value)
    history = torch.stack([before.value, after.value])
    done = torch.ones_like(zero, dtype=torch.bool)
    drawn = "The parameters are exact. The value has no exact rule, so it is a mean over draws."
    notes = (drawn,) if after.method == "monte_carlo" else ()
    return MethodAnswer(distribution, q, before, after, method, done, zero.long(), history, zero, zero, notes)


def _at_start_and_end(problem: FitProblem, values: Values, distribution: Any) -> tuple[Estimate, Estimate]:
    """Return the value at the start, and the value at `distribution`, the nearest member of the family.

    One integral over a batch of both takes half the time of two. Classes, which would be normalized again in another
    dtype, and pairs with a rule of a user, which may not support batches, are not batched.
    """
    q, family, objective, target = problem.q, problem.family, problem.objective, problem.target
    is_integral = isinstance(target, Distribution) and not (q.event_shape or is_categorical(q))
    if values and is_integral:
        plan = plan_for(type(target), type(q))
        is_integral = not plan.user_rules and plan.third_party is None
    if values and is_integral:
        stacked = {name: torch.stack([leaf.value, values[name]]) for name, leaf in family.free.items()}
        with suppress(NoRuleError):
            both = objective.try_measure(family.build(stacked))
            errors = (None, None) if both.error is None else both.error
            return replace(both, value=both.value[0], error=errors[0]), replace(
                both, value=both.value[1], error=errors[1]
            )
    before = objective.measure_or_draw(q, problem.settings.generator)
    if not values:
        return before, before
    return before, objective.measure_or_draw(upcast_copy(distribution), problem.settings.generator)


def _by_em(problem: FitProblem) -> MethodAnswer | None:
    """Return the result of EM from every start, polished by quasi-Newton steps; None if EM is not possible."""
    start = best_start(problem)
    if start is None:
        return None
    before = problem.objective.try_measure(problem.q)
    end = _ended(problem, before, _minimized(problem, problem.family.start(start.values)))
    # EM lowers the negative log-likelihood. If the target P has a density, this is KL(P || Q) plus the entropy of P.
    # The entropy is the last value of EM minus the first value of the quasi-Newton steps. It is subtracted from the
    # values of EM, so that the whole history has values of KL.
    constant = end.history[0] - start.history[-1]
    history = torch.cat(
        [before.value.detach()[None], torch.stack(start.history[:-1])[1:] + constant, end.history]
    )
    steps = end.iterations + len(start.history) - 1
    return end._replace(method="em", history=history, iterations=steps)


def _from_the_best(problem: FitProblem, before: Estimate, others: Iterable[Tensor]) -> MethodAnswer:
    """Return, for each batch element, the lowest result of quasi-Newton steps from q and from the starts `others`."""
    objective, family = problem.objective, problem.family
    _check_finite(before.value, problem.q, objective)
    minimum = _minimized(problem, family.start())
    for start in others:
        value = objective.try_measure(family.at(start)).value.detach().reshape(-1)
        near = value < minimum.value + _FAR_ABOVE * (1 + minimum.value.abs())
        if bool(value.isfinite().all() & near.any()):
            minimum = lower_of(minimum, _minimized(problem, start), problem.settings.tol)
    result = _ended(problem, before, minimum)
    return result._replace(history=torch.cat([before.value.detach()[None], result.history[1:]]))


def _by_draws(problem: FitProblem, others: Iterable[Tensor]) -> MethodAnswer:
    """Return the lowest result of stochastic steps from q and, unless q is a batch, from the starts `others`."""
    family, lowest = problem.family, fit_by_draws(problem)
    for start in others if lowest.after.value.numel() == 1 else ():
        values = family.values(start)
        near = replace(family, free={name: x._replace(value=values[name]) for name, x in family.free.items()})
        other = fit_by_draws(problem._replace(family=near))
        error = 0.0 if other.after.standard_error is None else float(other.after.standard_error)
        if float(other.after.value) < float(lowest.after.value) - 4 * error:
            lowest = other
    return lowest


def _minimized(problem: FitProblem, start: Tensor) -> Minimum:
    objective, family = problem.objective, problem.family
    return minimized(lambda u: objective.try_measure(family.at(u)).value.reshape(-1), start, problem.settings)


def _ended(problem: FitProblem, before: Estimate, minimum: Minimum) -> MethodAnswer:
    with torch.no_grad():
        fitted = problem.family.finished(problem.family.values(minimum.u))
        after = problem.objective.try_measure(upcast_copy(fitted))
    return as_answer(fitted, problem.q, before, after, minimum, problem.q.batch_shape)


def _check_finite(value: Tensor, q: Any, objective: Objective) -> None:
    infinite = ~value.isfinite()
    if bool(infinite.any()):
        where = "" if value.numel() == 1 else f" for {int(infinite.sum())} of {value.numel()} elements"
        raise invalid_value(
            "fit",
            "q, to",
            wanted=f"a family with a finite {objective.quantity}: one side's support must contain the other's, and its "
            "tails must not fall faster",
            got=f"{type(q).__name__}, for which it is infinite{where}",
            instead="a family, or a start, with the support and the tails of the target, or the kind with the sides "
            "exchanged",
        )


def _finish(result: MethodAnswer, kind: Divergence, objective: Objective, to: Any, began: float) -> Fit:
    _check_finite(result.after.value, result.distribution, objective)
    parts = result._asdict()
    before, after, history = parts.pop("before"), parts.pop("after"), parts.pop("history")
    fitted = Fit(
        **parts,
        value=after.value.detach(),
        error=None if after.error is None else after.error.detach(),
        before=before.value.detach(),
        before_error=None if before.error is None else before.error.detach(),
        history=history.detach(),
        kind=kind,
        quantity=objective.quantity,
        standard_error=after.standard_error,
        seconds=time.perf_counter() - began,
        to=to,
    )
    if not bool(fitted.converged.all()):
        count = int((~fitted.converged).sum())
        raise FitError(
            explain(
                "fit",
                "q, to",
                wanted="for every element of the batch, a value within tol of the minimum and with a small "
                "numerical error",
                got=f"{count} of {fitted.converged.numel()} that did not converge in "
                f"{int(fitted.iterations.max())} steps; they are about {float(fitted.above.max()):.2g} above the "
                "minimum, with a gradient of "
                f"{float(fitted.gradient_norm.max()):.2g} (error.fit is the best point found)",
                instead="a larger max_iterations or tol, or another start",
            ),
            fitted,
        )
    return fitted
