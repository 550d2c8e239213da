"""Times of divergences of pairs of distributions: closed forms against torch's, and quadrature.

python benchmarks/bench_pairs.py [--quick] [--only WORD,...] [--gradients]

With --only, the closed forms whose names contain one of the words are timed again, and missing rows. The other rows
stay. With --gradients, only the values with gradients are timed, for all pairs.
"""

from __future__ import annotations

import inspect
import json
import sys
import time
from collections.abc import Callable
from functools import partial
from itertools import product
from typing import Any

import torch
import torch.distributions as d
from rich.console import Console
from rich.table import Table
from timing import RESULTS, Step, interleave, machine, summarize
from torch import Tensor

from kullback import kl_divergence
from kullback.errors import ConvergenceError

SCHEMA = "kullback.pairs/1"
MANY = 1_000_000
BATCHES = (1, 1_000, MANY)
DTYPES = (torch.float32, torch.float64)
QUADRATURES = 1_000
WANTED_MS = 150
PAGE = RESULTS / "pairs.json"
Make = Callable[[int], d.Distribution]


def spread(low: float, high: float) -> Callable[[int], Tensor]:
    """Numbers between low and high, uniform in the logarithm."""
    logs = torch.tensor([low, high]).log()
    return lambda n: (logs[0] + (logs[1] - logs[0]) * torch.rand(n)).exp().to(torch.get_default_dtype())


def around(scale: float) -> Callable[[int], Tensor]:
    return lambda n: scale * torch.randn(n)


size, share, place = spread(0.2, 5), torch.rand, around(1)


def triangle(n: int, size: int) -> Tensor:
    below = torch.randn(n, size, size).tril(-1) / size**0.5
    return below + torch.diag_embed(torch.rand(n, size) + 0.5)


def matrix(n: int, size: int) -> Tensor:
    root = triangle(n, size)
    return root @ root.mT


# Random arguments for a number of elements, and of dimensions or classes if the family has them.
ALTERNATIVES: dict[str, tuple[str, Callable[[int, int], Tensor]]] = {
    "logits": ("", lambda n, size: torch.randn(n, size) if size else place(n)),
    "probs": (" by probabilities", lambda n, size: 0.1 + (torch.rand(n, size) if size else 0.8 * share(n))),
    "scale_tril": ("", triangle),
    "covariance_matrix": (" from a covariance", matrix),
    "precision_matrix": (" from a precision", matrix),
}
BESIDES: dict[str, Callable[[int, int], Any]] = {
    "loc": torch.randn,
    "df": lambda n, size: size + 1 + torch.rand(n),
    "total_count": lambda n, size: 10,
    "temperature": lambda n, size: torch.tensor(0.5),
}


def constructed(n: int, kind: Any, given: str, size: int) -> d.Distribution:
    besides = {name: BESIDES[name](n, size) for name in inspect.signature(kind).parameters if name in BESIDES}
    return kind(**besides, **{given: ALTERNATIVES[given][1](n, size)})


def constructions() -> dict[str, Make]:
    """Return the families with alternative arguments, once for each argument."""
    found: dict[str, Make] = {}
    for kind in map(partial(getattr, d), d.__all__):
        is_family = isinstance(kind, type) and issubclass(kind, d.Distribution)
        if not is_family or kind is d.RelaxedOneHotCategorical:  # whose KL is a series
            continue
        arguments = inspect.signature(kind).parameters.values()
        for given in [x.name for x in arguments if x.default is None and x.name != "validate_args"]:
            of_rows = kind in {d.Categorical, d.Multinomial} or issubclass(kind, d.OneHotCategorical)
            of_matrices = kind in {d.MultivariateNormal, d.Wishart}
            for size in (10,) if of_rows else (4, 50) if kind is d.MultivariateNormal else (4,):
                ending = f", {size} classes" if of_rows else f", {size} dimensions" if of_matrices else ""
                name = kind.__name__ + ALTERNATIVES[given][0] + ending
                found[name] = partial(constructed, kind=kind, given=given, size=size if ending else 0)
    return found


class Own(d.Normal):
    """A user's subclass, like the ones of Pyro."""


def low_rank(n: int, size: int) -> d.Distribution:
    return d.LowRankMultivariateNormal(
        torch.randn(n, size), torch.randn(n, size, 2), torch.rand(n, size) + 0.5
    )


FAMILIES: dict[str, Make] = {
    **constructions(),
    "Beta": lambda n: d.Beta(size(n), size(n)),
    "Cauchy": lambda n: d.Cauchy(place(n), size(n)),
    "Chi2": lambda n: d.Chi2(size(n)),
    "Dirichlet, 3 dimensions": lambda n: d.Dirichlet(torch.rand(n, 3) + 0.1),
    "Exponential": lambda n: d.Exponential(size(n)),
    "Gamma": lambda n: d.Gamma(size(n), size(n)),
    "Gumbel": lambda n: d.Gumbel(place(n), size(n)),
    "HalfCauchy": lambda n: d.HalfCauchy(size(n)),
    "HalfNormal": lambda n: d.HalfNormal(size(n)),
    "InverseGamma": lambda n: d.InverseGamma(size(n), size(n)),
    "Laplace": lambda n: d.Laplace(place(n), size(n)),
    "LKJCholesky, 4 dimensions": lambda n: d.LKJCholesky(4, size(n)),
    "LogNormal": lambda n: d.LogNormal(place(n), size(n)),
    "LogisticNormal, 4 dimensions": lambda n: d.LogisticNormal(torch.randn(n, 4), torch.rand(n, 4) + 0.5),
    "Independent Normal, 16 dimensions": lambda n: d.Independent(
        d.Normal(torch.randn(n, 16), torch.rand(n, 16) + 0.5), 1
    ),
    "LowRankMultivariateNormal, 4 dimensions": lambda n: low_rank(n, 4),
    "LowRankMultivariateNormal, 50 dimensions": lambda n: low_rank(n, 50),
    "subclass of Normal": lambda n: Own(place(n), size(n)),
    "Normal": lambda n: d.Normal(place(n), size(n)),
    "Pareto": lambda n: d.Pareto(torch.ones(n), size(n) + 1),
    "Poisson": lambda n: d.Poisson(size(n)),
    "Uniform": lambda n: d.Uniform(-torch.ones(n), torch.ones(n)),
    "VonMises": lambda n: d.VonMises(place(n), size(n)),
    "Weibull": lambda n: d.Weibull(size(n), size(n)),
}
# Pairs of two families for which torch has a rule, and some of the many pairs that are always infinite.
MIXED = {
    "Bernoulli": ["Poisson"],
    "Beta": ["ContinuousBernoulli", "Exponential", "Gamma", "Normal", "Wide Uniform"],
    "ContinuousBernoulli": ["Exponential", "Normal", "Wide Uniform"],
    "Exponential": ["Gamma", "Gumbel", "Normal", "Pareto"],
    "Gamma": ["Exponential", "Gumbel", "Normal"],
    "Gumbel": ["Normal"],
    "Laplace": ["Normal"],
    "LowRankMultivariateNormal, 4 dimensions": ["MultivariateNormal, 4 dimensions"],
    "LowRankMultivariateNormal, 50 dimensions": ["MultivariateNormal, 50 dimensions"],
    "MultivariateNormal, 4 dimensions": ["LowRankMultivariateNormal, 4 dimensions"],
    "MultivariateNormal, 50 dimensions": ["LowRankMultivariateNormal, 50 dimensions"],
    "Normal": ["Gumbel", "Laplace", "Uniform", "Gamma"],
    "Poisson": ["Bernoulli"],
    "Light Pareto": ["Exponential", "Gamma", "Normal"],
    "Narrow Uniform": [
        "Beta",
        "ContinuousBernoulli",
        "Exponential",
        "Gamma",
        "Gumbel",
        "Normal",
        "Low Pareto",
    ],
}
OTHERS: dict[str, Make] = {
    "Narrow Uniform": lambda n: d.Uniform(torch.zeros(n) + 0.1, torch.ones(n) - 0.1),
    "Wide Uniform": lambda n: d.Uniform(torch.zeros(n) - 0.1, torch.ones(n) + 0.1),
    "Light Pareto": lambda n: d.Pareto(torch.ones(n), size(n) + 2.5),
    "Low Pareto": lambda n: d.Pareto(torch.full((n,), 0.05), size(n) + 1),
}
MEMBERS = {**FAMILIES, **OTHERS}
CLOSED_FORMS: dict[str, tuple[Make, Make]] = {
    **{name: (make, make) for name, make in FAMILIES.items()},
    **{f"{p} ‖ {q}": (MEMBERS[p], MEMBERS[q]) for p, others in MIXED.items() for q in others},
}


def mixture(n: int) -> d.Distribution:
    means = torch.stack([torch.zeros(n), torch.rand(n) * 200], -1)
    return d.MixtureSameFamily(d.Categorical(torch.rand(n, 2) + 0.1), d.Normal(means, torch.ones(n, 2)))


QUADRATURE: dict[str, tuple[Make, Make]] = {
    "StudentT(1.2..2) ‖ StudentT(1..5)": (
        lambda n: d.StudentT(spread(1.2, 2)(n), place(n), size(n)),
        lambda n: d.StudentT(spread(1, 5)(n), place(n), size(n)),
    ),
    "Cauchy ‖ Cauchy": CLOSED_FORMS["Cauchy"],
    "Pareto(.3..3) ‖ Pareto(.2..2)": (
        lambda n: d.Pareto(torch.ones(n), spread(0.3, 3)(n)),
        lambda n: d.Pareto(torch.ones(n), spread(0.2, 2)(n)),
    ),
    "Beta(.01, .01) ‖ Beta(.5..3)": (
        lambda n: d.Beta(torch.full((n,), 0.01), torch.full((n,), 0.01)),
        lambda n: d.Beta(spread(0.5, 3)(n), spread(0.5, 3)(n)),
    ),
    "Gamma(.01..) ‖ LogNormal": (
        lambda n: d.Gamma(spread(0.01, 5)(n), size(n)),
        lambda n: d.LogNormal(place(n), size(n)),
    ),
    "Weibull(.3..4) ‖ Gamma": (
        lambda n: d.Weibull(size(n), spread(0.3, 4)(n)),
        lambda n: d.Gamma(size(n), size(n)),
    ),
    "2-Normal mixture, gaps to 200 σ ‖ Normal": (
        mixture,
        lambda n: d.Normal(torch.full((n,), 50.0), torch.full((n,), 60.0)),
    ),
    "Kumaraswamy ‖ Beta": (
        lambda n: d.Kumaraswamy(size(n), size(n)),
        lambda n: d.Beta(size(n), size(n)),
    ),
    "FisherSnedecor ‖ Gamma": (
        lambda n: d.FisherSnedecor(spread(1, 10)(n), spread(3, 20)(n)),
        lambda n: d.Gamma(size(n), size(n)),
    ),
    "Gumbel ‖ Normal": CLOSED_FORMS["Gumbel ‖ Normal"],
    "Normal ‖ Laplace": CLOSED_FORMS["Normal ‖ Laplace"],
    "HalfCauchy ‖ HalfCauchy": (lambda n: d.HalfCauchy(size(n)), lambda n: d.HalfCauchy(size(n))),
    "Normal ‖ Normal differing by 1e-5": (
        lambda n: d.Normal(torch.zeros(n), torch.ones(n)),
        lambda n: d.Normal(1e-5 * place(n), 1 + 1e-5 * share(n)),
    ),
}


def made(make: Make, n: int, dtype: torch.dtype) -> d.Distribution:
    torch.set_default_dtype(dtype)
    try:
        return make(n)
    finally:
        torch.set_default_dtype(torch.float32)


def repeated(run: Callable[[], object], calls: int) -> Callable[[], None]:
    def several() -> None:
        for _ in range(calls):
            run()

    return several


def has_rule(p: d.Distribution, q: d.Distribution) -> bool:
    """Whether torch has a rule for the two."""
    try:
        d.kl_divergence(p, q)
    except NotImplementedError:
        return False
    return True


def closed_form(name: str, n: int, dtype: torch.dtype, *, quick: bool) -> dict[str, Any]:
    """Microseconds of CPU time of one call on one thread, for kullback and torch in turns; None if torch has no
    rule."""
    p, q = (made(make, n, dtype) for make in CLOSED_FORMS[name])
    large = n >= MANY or (n > 1 and "50 dimensions" in name)
    calls = 1 if large else 20
    steps = {"kullback": Step(repeated(lambda: kl_divergence(p, q), calls))}
    if has_rule(p, q):
        steps["torch"] = Step(repeated(lambda: d.kl_divergence(p, q), calls))
    rounds = (2, 3) if quick else (3, 7) if large else (7, 30)
    times = interleave(
        steps, least=rounds[0], most=rounds[1], seconds=0.4, warm_up=not large, clock=time.process_time
    )
    micros = {step: 1e6 * summarize(x)["median"] / calls for step, x in times.items()}
    return {"pair": name, "batch": n, "dtype": str(dtype).removeprefix("torch."), "torch": None, **micros}


def with_leaves(x: d.Distribution) -> tuple[d.Distribution, list[Tensor]]:
    """Make a distribution again from parameters that require a gradient, and return these too."""
    if isinstance(x, d.Independent):
        base, leaves = with_leaves(x.base_dist)
        return d.Independent(base, x.reinterpreted_batch_ndims), leaves
    if isinstance(x, d.Uniform):
        names = ["low", "high"]
    else:
        source = vars(getattr(x, "_categorical", x))
        unused = {"total_count"}
        for group in ({"probs", "logits"}, {"covariance_matrix", "precision_matrix", "scale_tril"}):
            unused |= group - {next((name for name in source if name in group), "")}
        names = [name for name in x.arg_constraints if name not in unused]
    given = {name: getattr(x, name).detach().clone().requires_grad_() for name in names}
    counts = {"total_count": x.total_count} if isinstance(x, d.Binomial) else {}
    return type(x)(**given, **counts), list(given.values())


def gradient(name: str, n: int, *, quick: bool) -> dict[str, Any] | None:
    """Microseconds for values and gradients by all parameters, in float64; None where torch has no gradient."""
    (p, of_p), (q, of_q) = (with_leaves(made(make, n, torch.float64)) for make in CLOSED_FORMS[name])
    leaves, calls = of_p + of_q, 1 if n > 1 and "50 dimensions" in name else 20
    if not has_rule(p, q) or not d.kl_divergence(p, q).requires_grad:
        return None

    def run(of: Callable[[d.Distribution, d.Distribution], Tensor]) -> None:
        torch.autograd.grad(of(p, q).sum(), leaves, retain_graph=True, allow_unused=True)

    steps = {
        "kullback": Step(repeated(lambda: run(kl_divergence), calls)),
        "torch": Step(repeated(lambda: run(d.kl_divergence), calls)),
    }
    times = interleave(steps, least=3 if quick else 7, most=30, seconds=0.4, clock=time.process_time)
    micros = {step: 1e6 * summarize(x)["median"] / calls for step, x in times.items()}
    return {"pair": name, "batch": n, **micros}


def quadrature(name: str, *, quick: bool) -> dict[str, Any]:
    """Milliseconds of CPU time for a batch on one thread: the minimum of a few runs, because other programs use the
    machine."""
    p, q = (made(make, QUADRATURES, torch.float64) for make in QUADRATURE[name])
    spent = []
    refused = 0
    for _ in range(2 if quick else 7):
        start = time.process_time()
        try:
            with torch.no_grad():
                kl_divergence(p, q, method="quadrature")
        except ConvergenceError as error:
            value, bound = error.estimate.value, error.estimate.error
            refused = int((~(bound <= 1e-6 * value.abs())).sum())
        spent.append(1e3 * (time.process_time() - start))
    return {"pair": name, "batch": QUADRATURES, "cpu_ms": min(spent[1:]), "refused": refused}


def show(console: Console, closed: list[dict[str, Any]], integrals: list[dict[str, Any]]) -> None:
    table = Table(
        "pair", "dtype", "batch", "kullback µs", "torch µs", "ratio", title="Closed forms, one call"
    )
    for x in closed:
        theirs = x["torch"]
        table.add_row(
            x["pair"],
            x["dtype"],
            f"{x['batch']:,}",
            f"{x['kullback']:.0f}",
            f"{theirs:.0f}" if theirs else "-",
            f"{x['kullback'] / theirs:.2f}" if theirs else "-",
        )
    console.print(table)
    table = Table(
        "pair", "CPU ms", "met", title=f"Quadrature of {QUADRATURES} pairs, at most {WANTED_MS} ms wanted"
    )
    for x in integrals:
        table.add_row(x["pair"], f"{x['cpu_ms']:.0f}", "yes" if x["cpu_ms"] <= WANTED_MS else "no")
    console.print(table)


def main(arguments: list[str]) -> None:
    quick = "--quick" in arguments
    words = arguments[arguments.index("--only") + 1].split(",") if "--only" in arguments else None
    alone = "--gradients" in arguments
    before = json.loads(PAGE.read_text()) if words or alone else {"closed_forms": [], "gradients": []}
    known: dict[tuple[str, str | None, int], dict[str, Any]] = {
        (x["pair"], x.get("dtype"), x["batch"]): x for x in before["closed_forms"] + before["gradients"]
    }
    torch.manual_seed(0)
    here = machine()
    torch.set_num_threads(1)
    integrals = (
        before["quadrature"] if words or alone else [quadrature(name, quick=quick) for name in QUADRATURE]
    )
    batches = BATCHES[:2] if quick else BATCHES
    closed: list[dict[str, Any]] = []

    def is_chosen(pair: str) -> bool:
        return not alone and (words is None or any(word in pair for word in words))

    for pair, dtype, n in product(CLOSED_FORMS, DTYPES, batches):
        if n == MANY and "dimensions" in pair:
            continue
        old = known.get((pair, str(dtype).removeprefix("torch."), n))
        closed.append(old if old and not is_chosen(pair) else closed_form(pair, n, dtype, quick=quick))
    gradients = [
        known.get((pair, None, n)) if words and not is_chosen(pair) else gradient(pair, n, quick=quick)
        for pair, n in product(CLOSED_FORMS, BATCHES[:2])
    ]
    show(Console(), closed, integrals)
    if not quick:
        document = {
            "schema": SCHEMA,
            "machine": here,
            "closed_forms": closed,
            "gradients": [x for x in gradients if x],
            "quadrature": integrals,
        }
        PAGE.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
