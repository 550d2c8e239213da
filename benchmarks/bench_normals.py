"""Time of KL between multivariate normals of many dimensions, against torch: full, low-rank and diagonal covariances.

python benchmarks/bench_normals.py [--quick]

Each number is the median of interleaved calls, on one thread. `first` makes new distributions for each call, outside of
the measured time, so that no factor of an earlier call is there.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from typing import Any

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

Make = Callable[[str, torch.dtype, int], tuple[Distribution, list[Tensor]]]


def kernel(side: str, size: int) -> Tensor:
    """Return the covariance of a smooth process with noise; its condition number is about 100,000."""
    x, width = torch.linspace(0, 10, size), {"P": 1.0, "Q": 1.5}[side]
    return torch.exp(-((x[:, None] - x) ** 2) / (2 * width**2)) + NOISE[side] * torch.eye(size)


def mean(side: str, dtype: torch.dtype, size: int) -> Tensor:
    return (torch.linspace(0, 10, size).sin() * (side == "Q")).to(dtype).requires_grad_()


def covariance(side: str, dtype: torch.dtype, size: int) -> tuple[Distribution, list[Tensor]]:
    leaves = [mean(side, dtype, size), kernel(side, size).to(dtype).requires_grad_()]
    return MultivariateNormal(leaves[0], leaves[1]), leaves


def scale_tril(side: str, dtype: torch.dtype, size: int) -> tuple[Distribution, list[Tensor]]:
    root = torch.linalg.cholesky(kernel(side, size).double()).to(dtype)
    leaves = [mean(side, dtype, size), root.requires_grad_()]
    return MultivariateNormal(leaves[0], scale_tril=leaves[1]), leaves


def low_rank(side: str, dtype: torch.dtype, size: int) -> tuple[Distribution, list[Tensor]]:
    draw = torch.Generator().manual_seed(ord(side))
    factor, noise = 0.3 * torch.randn(size, RANK, generator=draw), torch.rand(size, generator=draw) + 0.1
    leaves = [mean(side, dtype, size), *(x.to(dtype).requires_grad_() for x in (factor, noise))]
    return LowRankMultivariateNormal(*leaves), leaves


def diagonal(side: str, dtype: torch.dtype, size: int) -> tuple[Distribution, list[Tensor]]:
    draw = torch.Generator().manual_seed(ord(side))
    leaves = [mean(side, dtype, size), (torch.rand(size, generator=draw) + 0.5).to(dtype).requires_grad_()]
    return Independent(Normal(leaves[0], leaves[1]), 1), leaves


SPELLINGS: dict[str, Make] = {
    "covariance": covariance, "scale_tril": scale_tril, "low rank": low_rank, "diagonal": diagonal,
}  # fmt: skip

# The pairs that torch has, and those of a diagonal covariance.
PAIRS = [
    ("covariance", "covariance"), ("scale_tril", "scale_tril"), ("low rank", "covariance"), ("covariance", "low rank"),
    ("low rank", "low rank"), ("low rank", "diagonal"), ("diagonal", "low rank"), ("diagonal", "covariance"),
    ("covariance", "diagonal"),
]  # fmt: skip


def measure(names: tuple[str, str], dtype: torch.dtype, size: int, *, quick: bool) -> dict[str, Any]:
    """Milliseconds of processor time of a value, an estimate, and a value with all gradients."""
    sides = [SPELLINGS[name](side, dtype, size) for name, side in zip(names, "PQ", strict=True)]
    (p, of_p), (q, of_q) = sides
    fresh: list[Distribution] = []

    def renewed() -> None:
        with torch.no_grad():
            fresh[:] = (SPELLINGS[name](side, dtype, size)[0] for name, side in zip(names, "PQ", strict=True))
            fresh[:] = map(detached, fresh)

    steps = {"value": Step(lambda: without_gradient(kl_divergence, p, q))}
    steps["first"] = Step(lambda: kl_divergence(*fresh), renewed)
    steps["estimate"] = Step(lambda: without_gradient(kl_estimate, p, q))
    steps["gradient"] = Step(lambda: with_gradient(kl_divergence, p, q, of_p + of_q))
    try:
        of_torch(p, q)
    except NotImplementedError:
        pass
    else:
        steps["torch: value"] = Step(lambda: without_gradient(of_torch, p, q))
        steps["torch: gradient"] = Step(lambda: with_gradient(of_torch, p, q, of_p + of_q))
    least, most = (1, 1) if quick else (5, 5)
    times = interleave(steps, least=least, most=most, seconds=8.0, clock=time.process_time)
    median = {name: 1e3 * sorted(each)[len(each) // 2] for name, each in times.items()}
    row: dict[str, Any] = {
        "pair": " || ".join(names),
        "dtype": str(dtype).removeprefix("torch."),
        "size": size,
    }
    row["milliseconds"] = {name: round(x, 3) for name, x in median.items()}
    row["ratio to torch"] = {
        name: round(median[name] / median[f"torch: {name.replace('first', 'value')}"], 2)
        for name in ("value", "first", "gradient")
        if "torch: value" in median
    }
    return row


def detached(d: Distribution) -> Distribution:
    """Return a distribution without gradients."""
    if isinstance(d, Independent):
        return Independent(Normal(d.base_dist.loc.detach(), d.base_dist.scale.detach()), 1)
    if isinstance(d, LowRankMultivariateNormal):
        return LowRankMultivariateNormal(d.loc.detach(), d.cov_factor.detach(), d.cov_diag.detach())
    name = "scale_tril" if "scale_tril" in vars(d) else "covariance_matrix"
    return MultivariateNormal(d.loc.detach(), **{name: vars(d)[name].detach()})


def without_gradient(divergence: Callable[..., object], p: Distribution, q: Distribution) -> object:
    with torch.no_grad():
        return divergence(p, q)


def with_gradient(
    divergence: Callable[..., Tensor], p: Distribution, q: Distribution, leaves: list[Tensor]
) -> object:
    return torch.autograd.grad(divergence(p, q), leaves, retain_graph=True)


def show(rows: list[dict[str, Any]]) -> None:
    table = Table("pair", "dtype", "value (ms)", "torch (ms)", "ratio", "first", "with gradient")
    for row in rows:
        spent, ratio = row["milliseconds"], row["ratio to torch"]
        cells = [f"{ratio[name]:.2f}" if ratio else "" for name in ("value", "first", "gradient")]
        theirs = f"{spent['torch: value']:.2f}" if ratio else ""
        table.add_row(row["pair"], row["dtype"], f"{spent['value']:.2f}", theirs, *cells)
    Console().print(table)


def main(arguments: list[str]) -> None:
    quick = "--quick" in arguments
    here = machine()
    torch.set_num_threads(1)
    rows = [
        measure((of_p, of_q), dtype, 200 if quick else SIZE, quick=quick)
        for dtype in (torch.float32, torch.float64)
        for of_p, of_q in PAIRS
    ]
    show(rows)
    if not quick:
        document = {"schema": SCHEMA, "machine": here, "note": CPU_TIME, "rows": rows}
        PAGE.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
