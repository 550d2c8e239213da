"""How the time of every public entry point grows with rows, classes, draws, dimensions and components.

python benchmarks/bench_growth.py [--quick] [--only WORDS]

Each entry runs at three sizes, on one thread. The exponent is the slope of the processor's time between the last two
sizes, both in logarithms: 1 is proportional to the size. Three to five minutes on an idle machine.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import argparse
import gc
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import polars as pl
import torch
from rich.console import Console
from timing import RESULTS, machine
from torch.distributions import Categorical, Cauchy, Dirichlet, MixtureSameFamily, Normal, StudentT

import kullback as kb
from kullback import Counts, Logits, Samples
from kullback.functional import (
    SampledTail,
    distillation_loss,
    kl_from_log_probs,
    linear_distillation_loss,
    sampled_tail_divergence,
)
from kullback.metrics import KLDivergence

SCHEMA = "kullback.growth/1"
# The seconds, or the number of rounds, for which small steps are repeated; the shortest time counts.
SECONDS, ROUNDS = 0.3, 7

Run = Callable[[], object]


class Entry(NamedTuple):
    """A call, the name of its size, and the function that prepares the call at a size."""

    name: str
    along: str
    sizes: tuple[int, int, int]
    build: Callable[[int], Run]


def uniform(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)


# ---- Pairs.


def closed_form(n: int) -> Run:
    p, q = (Normal(uniform(n, seed=2 * k), 0.5 + uniform(n, seed=2 * k + 1)) for k in range(2))
    return lambda: kb.kl_divergence(p, q)


def quadrature(kind: kb.Divergence) -> Callable[[int], Run]:
    def build(n: int) -> Run:
        a, b, c, d, e = uniform(5, n)
        p, q = StudentT(2 + 5 * a, b, 0.5 + c), Cauchy(d, 0.5 + e)
        return lambda: kb.divergence(p, q, kind)

    return build


def mixtures(components: int) -> Run:
    def made(seed: int) -> MixtureSameFamily:
        weights, places, widths = uniform(3, components, seed=seed)
        return MixtureSameFamily(Categorical(weights), Normal(20 * places, 0.2 + widths))

    p, q = made(0), made(1)
    return lambda: kb.kl_divergence(p, q)


def dirichlet(classes: int) -> Run:
    p, q = (Dirichlet(uniform(classes, seed=k) + 0.1, validate_args=False) for k in range(2))
    return lambda: kb.kl_divergence(p, q)


# ---- Losses, with their gradients.


def with_gradient(loss: Callable[[torch.Tensor], torch.Tensor], student: torch.Tensor) -> Run:
    student.requires_grad_()
    return lambda: torch.autograd.grad(loss(student), student)


def distillation(rows: int, classes: int) -> Run:
    teacher = normal(rows, classes, seed=1)
    return with_gradient(lambda x: distillation_loss(student=x, teacher=teacher), normal(rows, classes))


def linear(rows: int, classes: int) -> Run:
    states, head = normal(rows, 128, seed=1), normal(classes, 128, seed=2) / 11
    fixed = {"student_weight": normal(classes, 128, seed=3) / 11, "teacher": states, "teacher_weight": head}
    return with_gradient(lambda x: linear_distillation_loss(student=x, **fixed), normal(rows, 128))


def sampled_tail(rows: int, classes: int) -> Run:
    teacher = SampledTail.draw(normal(rows, classes, seed=1), k=64, draws=32, generator=generator())
    student = normal(rows, classes)
    return with_gradient(lambda x: sampled_tail_divergence(kb.KL(), teacher, x).mean(), student)


def policy(tokens: int) -> Run:
    p, q = -uniform(tokens), -uniform(tokens, seed=1)
    return lambda: kl_from_log_probs(p, q, estimator="k3", reduction="mean")


def metric(rows: int) -> Run:
    p, q = (normal(rows, 100, seed=k).softmax(-1) for k in range(2))

    def run() -> object:
        metric = KLDivergence()
        metric.update(p, q)
        return metric.compute()

    return run


# ---- Draws.


def draws(n: int, d: int, seed: int = 0, **given: Any) -> Samples:
    return Samples(normal(n, d, seed=seed) + 0.2 * seed, **given)


def neighbors(n: int, d: int) -> Run:
    p, q = draws(n, d), draws(n, d, 1)
    return lambda: kb.kl_estimate(p, q, method="nearest_neighbors", generator=generator())


def auto(n: int, d: int) -> Run:
    p, q = draws(n, d), draws(n, d, 1)
    return lambda: kb.kl_estimate(p, q, generator=generator())


def categories(n: int, different: int) -> Run:
    p, q = (Samples((different * uniform(n, seed=k) ** (k + 1)).long()) for k in range(2))
    return lambda: kb.kl_estimate(p, q, generator=generator())


def weighted(n: int) -> Run:
    p, q = (Samples(normal(n, 1, seed=k), weights=0.5 + uniform(n, seed=k + 2)) for k in range(2))
    return lambda: kb.kl_estimate(p, q, generator=generator())


def counts(classes: int) -> Run:
    p, q = (Counts((50 * uniform(classes, seed=k)).floor()) for k in range(2))
    return lambda: kb.kl_estimate(p, q, generator=generator())


def two_samples(n: int, d: int) -> Run:
    p, q = draws(n, d), draws(n, d, 1)
    return lambda: kb.two_sample_test(p, q, generator=generator())


# ---- Files, tables and models.


def predictions(rows: int, classes: int) -> Run:
    p = normal(rows, classes)
    sides = Logits(p), Logits(p + 0.1 * normal(rows, classes, seed=1))
    return lambda: kb.compare_predictions(*sides, independent=True)


def floats(n: int) -> Run:
    p, q = (pl.DataFrame({"x": normal(n, seed=k).numpy()}) for k in range(2))
    return lambda: kb.compare_tables(p, q, independent=True)


def strings(n: int, different: int) -> Run:
    def made(seed: int) -> pl.DataFrame:
        codes = np.random.default_rng(seed).integers(0, different, n)
        return pl.DataFrame({"x": codes.astype(str)})

    p, q = made(0), made(1)
    return lambda: kb.compare_tables(p, q, independent=True)


def models(tokens: int) -> Run:
    sys.path.insert(0, str(Path(__file__).parents[1]))
    from tests.models.tiny import make_model, make_tokenizer, text

    base, near, tokenizer = make_model(), make_model(noise=0.05), make_tokenizer()
    passage = (text() * 40)[: 3 * tokens]
    return lambda: kb.compare_models(
        base, near, passage, loading=kb.models.Loading(tokenizer=tokenizer), cut=kb.models.Cut(context=128)
    )


def fitted(n: int) -> Run:
    x = torch.where(uniform(n, seed=1) < 0.3, -3.0, 3.0) + normal(n)
    start = MixtureSameFamily(
        Categorical(torch.ones(2) / 2), Normal(torch.tensor([-1.0, 1.0]), torch.ones(2))
    )
    return lambda: kb.fit(start, to=Samples(x), show_progress=False)


ENTRIES = [
    Entry("kl_divergence, closed form", "pairs", (10**4, 10**5, 10**6), closed_form),
    Entry("kl_divergence, quadrature", "pairs", (100, 1000, 10_000), quadrature(kb.KL())),
    Entry("divergence, JS, quadrature", "pairs", (100, 1000, 10_000), quadrature(kb.JensenShannon())),
    Entry("divergence, TV, quadrature", "pairs", (100, 1000, 10_000), quadrature(kb.TotalVariation())),
    Entry("kl_divergence of mixtures", "components", (62, 250, 1000), mixtures),
    Entry("kl_divergence of Dirichlets", "classes", (10**5, 10**6, 10**7), dirichlet),
    Entry("distillation_loss, 1000 classes", "rows", (100, 1000, 10_000), lambda n: distillation(n, 1000)),
    Entry("distillation_loss, 10 rows", "classes", (10**4, 10**5, 10**6), lambda n: distillation(10, n)),
    Entry("linear_distillation_loss, 4000 classes", "rows", (64, 256, 1024), lambda n: linear(n, 4000)),
    Entry("linear_distillation_loss, 64 rows", "classes", (4000, 16_000, 64_000), lambda n: linear(64, n)),
    Entry("sampled_tail_divergence", "rows", (64, 256, 1024), lambda n: sampled_tail(n, 4000)),
    Entry("sampled_tail_divergence", "classes", (2000, 20_000, 200_000), lambda n: sampled_tail(64, n)),
    Entry("kl_from_log_probs", "tokens", (10**4, 10**5, 10**6), policy),
    Entry("metrics.KLDivergence", "rows", (1000, 10_000, 100_000), metric),
    Entry("fit of a mixture to draws", "draws", (1000, 10_000, 100_000), fitted),
    Entry("kl_estimate by neighbors, 2-D", "draws", (1000, 10_000, 50_000), lambda n: neighbors(n, 2)),
    Entry("kl_estimate by neighbors, 8-D", "draws", (1000, 4000, 16_000), lambda n: neighbors(n, 8)),
    Entry("kl_estimate by neighbors", "dimensions", (2, 4, 8), lambda d: neighbors(4000, d)),
    Entry("kl_estimate, 20-D", "draws", (500, 2000, 8000), lambda n: auto(n, 20)),
    Entry("kl_estimate of categories", "draws", (10**4, 10**5, 10**6), lambda n: categories(n, 100)),
    Entry("kl_estimate of categories", "categories", (100, 1000, 10_000), lambda k: categories(10**5, k)),
    Entry("kl_estimate with weights", "draws", (1000, 10_000, 50_000), weighted),
    Entry("kl_estimate of counts", "classes", (1000, 10_000, 100_000), counts),
    Entry("two_sample_test, 1-D", "draws", (1000, 10_000, 100_000), lambda n: two_samples(n, 1)),
    Entry("two_sample_test, 10-D", "draws", (2500, 10_000, 40_000), lambda n: two_samples(n, 10)),
    Entry("two_sample_test", "dimensions", (2, 8, 32), lambda d: two_samples(2000, d)),
    Entry("compare_predictions", "rows", (1000, 10_000, 50_000), lambda n: predictions(n, 100)),
    Entry("compare_predictions", "classes", (1000, 10_000, 100_000), lambda n: predictions(100, n)),
    Entry("compare_tables, floats", "rows", (10**4, 10**5, 10**6), floats),
    Entry("compare_tables, 10 strings", "rows", (10**4, 10**5, 10**6), lambda n: strings(n, 10)),
    Entry("compare_tables, unique strings", "rows", (10**4, 10**5, 10**6), lambda n: strings(n, 2**62)),
    Entry("compare_models", "tokens", (2000, 8000, 32_000), models),
]


def measured(run: Run, rounds: int) -> dict[str, float]:
    """The shortest processor time and the shortest wall time of some rounds."""
    gc.collect()
    wall: list[float] = []
    processor: list[float] = []
    while len(wall) < rounds and (sum(wall) < SECONDS or not wall):
        begun = time.perf_counter(), time.process_time()
        run()
        wall.append(time.perf_counter() - begun[0])
        processor.append(time.process_time() - begun[1])
    return {"wall": min(wall), "processor": min(processor)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="the first size alone: only to see that it runs")
    parser.add_argument(
        "--only",
        default="",
        help="measure only the entries whose name has these words; the results file is not written",
    )
    parser.add_argument("--results", type=Path, default=RESULTS, help="where to leave the numbers")
    options = parser.parse_args()
    torch.set_num_threads(1)
    console = Console()
    chosen = [entry for entry in ENTRIES if options.only in entry.name]
    rows: list[dict[str, Any]] = []
    for entry in chosen:
        entry.build(entry.sizes[0])()  # imports and compiles
        sizes = entry.sizes[:1] if options.quick else entry.sizes
        times = [measured(entry.build(size), 1 if options.quick else ROUNDS) for size in sizes]
        rows.append({"name": entry.name, "along": entry.along, "sizes": sizes, "times": times})
        shown = ", ".join(
            f"{size:,}: {x['processor']:.3g} ({x['wall']:.3g})" for size, x in zip(sizes, times, strict=True)
        )
        console.print(f"{entry.name} by {entry.along}: seconds {shown}", highlight=False, soft_wrap=True)
    if not options.quick and not options.only:
        document = {"schema": SCHEMA, "machine": machine(), "rows": rows}
        options.results.mkdir(parents=True, exist_ok=True)
        (options.results / "growth.json").write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
