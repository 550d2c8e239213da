"""Gradient descent on KL between two Categoricals down to 1e-12 in float32: each library's value, and the true one.

Q starts uniform and descends to P, once in each direction. The divergence is torch's of Categoricals, kullback's of
Categoricals, or kullback's of the logits themselves, which are not rounded by normalization. The truth is the
divergence of the reached logits, in float64. Run it with `python examples/descend_categoricals.py`; it takes some
seconds.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.distributions import Categorical, kl_divergence as torch_kl
from written import arguments, write

import kullback

RATE = 2.0
GOAL = 1e-12
DIRECTIONS = {"KL(P‖Q)": False, "KL(Q‖P)": True}


def of_categoricals(p: Tensor, q: Tensor) -> Tensor:
    return kullback.kl_divergence(Categorical(logits=p), Categorical(logits=q))


def of_logits(p: Tensor, q: Tensor) -> Tensor:
    return kullback.kl_divergence(kullback.Logits(p), kullback.Logits(q))


WAYS = {
    "torch": lambda p, q: torch_kl(Categorical(logits=p), Categorical(logits=q)),
    "kullback, Categorical": of_categoricals,
    "kullback, Logits": of_logits,
}


def start() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(10, generator=generator), torch.zeros(10)


def exact(p: Tensor, q: Tensor) -> float:
    return of_logits(p.detach().double(), q.detach().double()).item()


def descend(divergence: Callable[[Tensor, Tensor], Tensor], steps: int, *, reverse: bool) -> dict[str, Any]:
    """The computed divergence and the true one, before each step."""
    p, q = start()
    q.requires_grad_()
    said, true = [], []
    for _ in range(steps):
        sides = (q, p) if reverse else (p, q)
        loss = divergence(*sides)
        said.append(loss.item())
        true.append(exact(*sides))
        (gradient,) = torch.autograd.grad(loss, q)
        with torch.no_grad():
            q -= RATE * gradient
    reached = [i for i, value in enumerate(true) if value <= GOAL]
    errors = [abs(a - b) / b for a, b in zip(said, true, strict=True) if b > 0]
    return {
        "said": said,
        "true": true,
        "reached_goal_at": reached[0] if reached else None,
        "negative": sum(value < 0 for value in said),
        "median_relative_error": statistics.median(errors),
    }


def draw(plt: Any, results: dict[str, dict[str, dict[str, Any]]]) -> Any:
    figure, axes = plt.subplots(1, 2, figsize=(7.2, 3.2), layout="constrained", sharey=True)
    for ax, (direction, ways) in zip(axes, results.items(), strict=True):
        for i, (name, row) in enumerate(ways.items()):
            steps = range(0, len(row["said"]), 5)
            said = [row["said"][step] if row["said"][step] > 0 else float("nan") for step in steps]
            ax.plot(steps, said, ".", markersize=2, color=f"C{i}", label=f"{name} says")
            ax.plot(steps, [row["true"][step] for step in steps], color=f"C{i}", linewidth=3, alpha=0.3)
        ax.axhline(GOAL, color="0.5", linewidth=1, linestyle="--")
        ax.set(yscale="log", xlabel="step", title=direction)
    axes[0].set_ylabel("divergence, nats")
    axes[1].legend(fontsize="small", markerscale=4)
    return figure


def main() -> None:
    options = arguments(__doc__ or "")
    steps = 40 if options.quick else 1200
    results = {}
    for direction, reverse in DIRECTIONS.items():
        results[direction] = {}
        for name, divergence in WAYS.items():
            row = results[direction][name] = descend(divergence, steps, reverse=reverse)
            told = {key: value for key, value in row.items() if not isinstance(value, list)}
            print(f"{direction} {name:22} {told}", flush=True)
    content = {"steps": steps, "rate": RATE, "goal": GOAL}
    table = {
        direction: {
            name: {k: v for k, v in row.items() if not isinstance(v, list)} for name, row in ways.items()
        }
        for direction, ways in results.items()
    }
    write(
        options.out,
        "descend_categoricals",
        {**content, "directions": table},
        draw=lambda plt: draw(plt, results),
    )


if __name__ == "__main__":
    main()
