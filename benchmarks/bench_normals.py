"""Time of KL between multivariate normals of many dimensions, against torch: full, low-rank and diagonal covariances.

python benchmarks/bench_normals.py [--quick]

Each number is the median of interleaved calls, on one thread. `first` makes new distributions for each call, outside of
the measured time, so that no factor of an earlier call is there. `made` measures the distributions as well.
"""

from __future__ import annotations

import json
import math
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from rich.console import Console
from rich.table import Table
from timing import CPU_TIME, RESULTS, Step, interleave, machine
from torch import Tensor
from torch.distributions import (
    Distribution,
    Independent,
    LowRankMultivariateNormal,
    MultivariateNormal,
    Normal,
    kl_divergence as of_torch,
)

from kullback import kl_divergence, kl_estimate

SCHEMA = "kullback.normals/1"
PAGE = RESULTS / "normals.json"
SIZE, RANK = 2000, 5
NOISE = {"P": 0.01, "Q": 0.02}
RATIOS = ("value", "first", "made", "gradient")

# The shape of a batch is empty, or has one number.
Make = Callable[[str, torch.dtype, int, tuple[int, ...]], tuple[Distribution, list[Tensor]]]


class Case(NamedTuple):
    """The spellings of P and Q, their dtype, and the numbers of dimensions and of pairs in a batch."""

    p: str
    q: str
    dtype: torch.dtype = torch.float32
    size: int = SIZE
    batch: tuple[int, ...] = ()


def kernel(side: str, size: int, batch: tuple[int, ...]) -> Tensor:
    """Return covariances of a smooth process with noise; their condition number is about 100,000."""
    x, width = torch.linspace(0, 10, size), {"P": 1.0, "Q": 1.5}[side]
    noise = NOISE[side] * torch.linspace(1, 2, math.prod(batch)).reshape(*batch, 1, 1)
    return torch.exp(-((x[:, None] - x) ** 2) / (2 * width**2)) + noise * torch.eye(size)


def mean(side: str, dtype: torch.dtype, size: int, batch: tuple[int, ...]) -> Tensor:
    waves = torch.linspace(0, 10, size).sin() * (side == "Q")
    return waves.to(dtype).repeat(*batch, 1).reshape(*batch, size).requires_grad_()


def covariance(
    side: str, dtype: torch.dtype, size: int, batch: tuple[int, ...]
) -> tuple[Distribution, list[Tensor]]:
    leaves = [
        mean(side, dtype, size, batch),
        kernel(side, size, batch).to(dtype).reshape(*batch, size, size).requires_grad_(),
    ]
    return MultivariateNormal(leaves[0], leaves[1]), leaves


def precision(
    side: str, dtype: torch.dtype, size: int, batch: tuple[int, ...]
) -> tuple[Distribution, list[Tensor]]:
    loc, matrix = covariance(side, dtype, size, batch)[1]
    return MultivariateNormal(loc, precision_matrix=matrix), [loc, matrix]


def scale_tril(
    side: str, dtype: torch.dtype, size: int, batch: tuple[int, ...]
) -> tuple[Distribution, list[Tensor]]:
    loc, matrix = covariance(side, torch.float64, size, batch)[1]
    leaves = [x.detach().to(dtype).requires_grad_() for x in (loc, torch.linalg.cholesky(matrix))]
    return MultivariateNormal(leaves[0], scale_tril=leaves[1]), leaves


def low_rank(
    side: str, dtype: torch.dtype, size: int, batch: tuple[int, ...]
) -> tuple[Distribution, list[Tensor]]:
    draw = torch.Generator().manual_seed(ord(side))
    factor = 0.3 * torch.randn(*batch, size, RANK, generator=draw)
    noise = torch.rand(*batch, size, generator=draw) + 0.1
    leaves = [mean(side, dtype, size, batch), *(x.to(dtype).requires_grad_() for x in (factor, noise))]
    return LowRankMultivariateNormal(*leaves), leaves


def diagonal(
    side: str, dtype: torch.dtype, size: int, batch: tuple[int, ...]
) -> tuple[Distribution, list[Tensor]]:
    draw = torch.Generator().manual_seed(ord(side))
    deviations = torch.rand(*batch, size, generator=draw) + 0.5
    leaves = [mean(side, dtype, size, batch), deviations.to(dtype).requires_grad_()]
    return Independent(Normal(leaves[0], leaves[1]), 1), leaves


SPELLINGS: dict[str, Make] = {
    "covariance": covariance, "precision": precision, "scale_tril": scale_tril, "low rank": low_rank,
    "diagonal": diagonal,
}  # fmt: skip

CASES = [
    Case("covariance", "covariance"),
    Case("precision", "precision"),
    Case("scale_tril", "scale_tril"),
    Case("low rank", "covariance"),
    Case("covariance", "low rank"),
    Case("diagonal", "covariance"),
    Case("covariance", "diagonal"),
    Case("low rank", "low rank"),
    Case("low rank", "diagonal"),
    Case("diagonal", "low rank"),
    Case("covariance", "covariance", size=300, batch=(16,)),
    Case("scale_tril", "scale_tril", size=300, batch=(16,)),
    Case("covariance", "covariance", torch.float64, size=1000),
    Case("scale_tril", "scale_tril", torch.float64),
]


Sides = list[tuple[Distribution, list[Tensor]]]


def sides_of(case: Case) -> Sides:
    return [
        SPELLINGS[name](side, case.dtype, case.size, case.batch)
        for name, side in zip((case.p, case.q), "PQ", strict=True)
    ]


def relative_errors(sides: Sides) -> dict[str, float]:
    """Return the largest relative errors of both values in float32, from torch's value in float64."""
    (p, _), (q, _) = sides
    with torch.no_grad():
        exact = of_torch(*(detached(d, torch.float64) for d in (p, q)))
        values = {"kullback": kl_divergence(p, q), "torch": of_torch(p, q)}
    return {name: float((x.double() / exact - 1).abs().max()) for name, x in values.items()}


def steps_of(sides: Sides) -> dict[str, Step]:
    (p, of_p), (q, of_q) = sides
    leaves, renewed = of_p + of_q, [detached(d) for d in (p, q)]

    def renew() -> None:
        renewed[:] = map(detached, (p, q))

    def steps(divergence: Callable[..., Tensor]) -> dict[str, Step]:
        return {
            "value": Step(lambda: without_gradient(divergence, p, q)),
            "first": Step(lambda: divergence(*renewed), renew),
            "made": Step(lambda: divergence(detached(p), detached(q))),
            "gradient": Step(lambda: with_gradient(divergence, p, q, leaves)),
        }

    ours = {**steps(kl_divergence), "estimate": Step(lambda: without_gradient(kl_estimate, p, q))}
    try:
        of_torch(p, q)
    except NotImplementedError:
        return ours
    return {**ours, **{f"torch: {name}": step for name, step in steps(of_torch).items()}}


def measure(case: Case, *, quick: bool) -> dict[str, Any]:
    """Milliseconds of processor time; the value and the estimate reuse factors of earlier calls."""
    sides = sides_of(case)
    steps = steps_of(sides)
    has_error = case.dtype is torch.float32 and "torch: value" in steps
    times = interleave(
        steps, least=1 if quick else 2, most=1 if quick else 5, seconds=5.0, clock=time.process_time
    )
    median = {name: 1e3 * statistics.median(x) for name, x in times.items()}
    return {
        "pair": f"{case.p} ‖ {case.q}",
        "dtype": str(case.dtype).removeprefix("torch."),
        "size": case.size,
        "batch": list(case.batch),
        "milliseconds": {name: round(x, 3) for name, x in median.items()},
        "ratio to torch": {
            name: round(x / median[f"torch: {name}"], 2)
            for name, x in median.items()
            if f"torch: {name}" in median
        },
        "relative error": relative_errors(sides) if has_error else {},
    }


def detached(d: Distribution, dtype: torch.dtype | None = None) -> Distribution:
    """Return a new distribution without gradients or checks, also in another dtype."""

    def fixed(x: Tensor) -> Tensor:
        return x.detach().to(dtype or x.dtype)

    if isinstance(d, Independent):
        return Independent(Normal(fixed(d.base_dist.loc), fixed(d.base_dist.scale)), 1)
    if isinstance(d, LowRankMultivariateNormal):
        return LowRankMultivariateNormal(fixed(d.loc), fixed(d.cov_factor), fixed(d.cov_diag))
    name = next(x for x in ("scale_tril", "covariance_matrix", "precision_matrix") if x in vars(d))
    return MultivariateNormal(fixed(d.loc), **{name: fixed(vars(d)[name])}, validate_args=False)


def without_gradient(divergence: Callable[..., object], p: Distribution, q: Distribution) -> object:
    with torch.no_grad():
        return divergence(p, q)


def with_gradient(
    divergence: Callable[..., Tensor], p: Distribution, q: Distribution, leaves: list[Tensor]
) -> object:
    return torch.autograd.grad(divergence(p, q).sum(), leaves, retain_graph=True)


def show(rows: list[dict[str, Any]]) -> None:
    table = Table("pair", "dtype", "size", "value (ms)", "torch (ms)", "estimate", *RATIOS)
    for row in rows:
        spent, ratio = row["milliseconds"], row["ratio to torch"]
        times = [
            f"{spent[name]:.2f}" if name in spent else "" for name in ("value", "torch: value", "estimate")
        ]
        size = " × ".join(map(str, (*row["batch"], row["size"])))
        table.add_row(row["pair"], row["dtype"], size, *times, *(str(ratio.get(name, "")) for name in RATIOS))
    Console().print(table)


def main(arguments: list[str]) -> None:
    quick = "--quick" in arguments
    here = machine()
    torch.set_num_threads(1)
    here["threads"] = 1
    cases = [case._replace(size=150) if quick else case for case in CASES]
    rows = [measure(case, quick=quick) for case in cases]
    show(rows)
    if not quick:
        document = {"schema": SCHEMA, "machine": here, "note": CPU_TIME, "rows": rows}
        PAGE.write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
