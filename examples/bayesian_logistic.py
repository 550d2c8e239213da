"""Bayesian logistic regression with a full-rank Gaussian posterior, against a long run of Hamiltonian Monte Carlo.

scikit-learn's breast cancer data: 569 tumors, 30 standardized measurements and an intercept, prior N(0, 1) for each of
the 31 coefficients. The posterior is approximated by the Gaussian Q with the largest evidence lower bound,

    ELBO = sum of E_Q[log p(label | coefficients)] - KL(Q || prior).

The first term needs no draws: under Q each logit is Normal, so it is a sum of integrals in one dimension. The bound is
therefore a smooth function that L-BFGS brings to its maximum. `--reference` runs the Monte Carlo reference again
(64 chains, seed 0, a minute) and writes results/bayesian_logistic_reference.json, which the comparison reads.
Run it with `python examples/bayesian_logistic.py`; without `--reference` it takes some seconds.
"""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.datasets import load_breast_cancer
from torch import Tensor
from torch.distributions import MultivariateNormal, Normal
from torch.nn import functional as F
from written import arguments, write

from kullback import kl_divergence

REFERENCE = "bayesian_logistic_reference"
NODES = torch.linspace(-9, 9, 121, dtype=torch.float64)  # of the trapezoidal rule
WEIGHTS = (-0.5 * NODES**2).softmax(-1)


def load() -> Tensor:
    """The measurements with an intercept, each row times its label +1 or -1: (569, 31)."""
    data = load_breast_cancer()
    x = torch.from_numpy(data.data)
    x = (x - x.mean(0)) / x.std(0, correction=0)
    sign = 2.0 * torch.from_numpy(data.target).double() - 1
    return torch.cat([x, torch.ones(len(x), 1, dtype=x.dtype)], 1) * sign[:, None]


def log_joint(w: Tensor, rows: Tensor) -> Tensor:
    """Log-density of the labels and of coefficients w (..., 31) under the model."""
    return F.logsigmoid(w @ rows.T).sum(-1) - 0.5 * (w**2).sum(-1) - w.shape[-1] / 2 * math.log(2 * math.pi)


def elbo(q: MultivariateNormal, rows: Tensor) -> Tensor:
    mean = rows @ q.loc
    std = (rows @ q.scale_tril).norm(dim=-1)
    expected = (F.logsigmoid(mean[:, None] + std[:, None] * NODES) * WEIGHTS).sum()
    d = len(q.loc)
    prior = MultivariateNormal(torch.zeros(d).double(), torch.eye(d).double(), validate_args=False)
    return expected - kl_divergence(q, prior)


def fit(rows: Tensor, *, full_rank: bool) -> MultivariateNormal:
    """The Gaussian of the largest ELBO, with a full or a diagonal covariance."""
    d = rows.shape[1]
    loc = torch.zeros(d, dtype=torch.float64, requires_grad=True)
    log_diagonal = torch.full((d,), -1.0, dtype=torch.float64, requires_grad=True)
    below = torch.zeros(d, d, dtype=torch.float64, requires_grad=full_rank)
    free = [loc, log_diagonal, below] if full_rank else [loc, log_diagonal]
    optimizer = torch.optim.LBFGS(
        free,
        max_iter=2000,
        history_size=50,
        tolerance_change=0,
        tolerance_grad=1e-6,
        line_search_fn="strong_wolfe",
    )

    def posterior() -> MultivariateNormal:
        # Rows of the factor scale with their diagonal. So one step size suits all rows.
        factor = (torch.eye(d, dtype=torch.float64) + below.tril(-1)) * log_diagonal.exp()[:, None]
        return MultivariateNormal(loc, scale_tril=factor, validate_args=False)

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = -elbo(posterior(), rows)
        loss.backward()
        return loss

    optimizer.step(closure)
    closure()
    steepest = max(x.grad.abs().max().item() for x in free if x.grad is not None)
    if not steepest < 1e-4:
        sys.exit(f"L-BFGS stopped at a gradient of {steepest:.1e}")
    with torch.no_grad():
        q = posterior()
    return MultivariateNormal(q.loc.detach(), scale_tril=q.scale_tril)


def laplace(rows: Tensor) -> MultivariateNormal:
    """The Gaussian at the mode, with the curvature there."""
    w = torch.zeros(rows.shape[1], dtype=torch.float64)
    for _ in range(30):  # Newton's method
        probability = (rows @ w).sigmoid()
        gradient = rows.T @ (1 - probability) - w
        curvature = (rows.T * (probability * (1 - probability))) @ rows + torch.eye(
            len(w), dtype=torch.float64
        )
        w = w + torch.linalg.solve(curvature, gradient)
    return MultivariateNormal(w, precision_matrix=curvature)


def hmc(rows: Tensor, *, chains: int, warm_up: int, draws: int, seed: int) -> Tensor:
    """Draws (draws, chains, 31) of the posterior, in coordinates where it is nearly standard normal around its mode."""
    generator = torch.Generator().manual_seed(seed)
    near = laplace(rows)
    design = rows @ near.scale_tril

    def gradient(u: Tensor) -> Tensor:
        w = near.loc + u @ near.scale_tril.T
        return (-(w @ rows.T)).sigmoid() @ design - w @ near.scale_tril

    def energy(u: Tensor) -> Tensor:
        return -log_joint(near.loc + u @ near.scale_tril.T, rows)

    def normal() -> Tensor:
        return torch.randn(chains, rows.shape[1], generator=generator, dtype=torch.float64)

    u, step, kept = normal(), 0.3, []
    slope, potential = gradient(u), energy(u)
    for iteration in range(warm_up + draws):
        momentum = normal()
        jitter = step * (0.8 + 0.4 * torch.rand((), generator=generator, dtype=torch.float64))
        new, p, new_slope = u, momentum, slope
        for _ in range(8):
            p = p + jitter / 2 * new_slope
            new = new + jitter * p
            new_slope = gradient(new)
            p = p + jitter / 2 * new_slope
        new_potential = energy(new)
        log_ratio = potential - new_potential + 0.5 * (momentum**2 - p**2).sum(-1)
        accepted = torch.rand(chains, generator=generator, dtype=torch.float64).log() < log_ratio
        u = torch.where(accepted[:, None], new, u)
        slope = torch.where(accepted[:, None], new_slope, slope)
        potential = torch.where(accepted, new_potential, potential)
        if iteration < warm_up:
            step *= math.exp(0.1 * (accepted.double().mean().item() - 0.8))
        else:
            kept.append(near.loc + u @ near.scale_tril.T)
    return torch.stack(kept)


def summary(draws: Tensor) -> dict[str, Any]:
    """Moments of the draws, the error of the means from the spread between chains, and how well the chains agree."""
    n, chains, _ = draws.shape
    means = draws.mean(0)
    within = draws.var(0).mean(0)
    r_hat = ((n - 1) / n + means.var(0) / within).sqrt()
    pooled = draws.flatten(0, 1)
    return {
        "chains": chains,
        "draws": n,
        "mean": pooled.mean(0).tolist(),
        "standard_error": (means.std(0) / chains**0.5).tolist(),
        "covariance": pooled.T.cov().tolist(),
        "largest_r_hat": r_hat.max().item(),
    }


def log_evidence(rows: Tensor, proposal: MultivariateNormal, draws: int) -> tuple[float, float]:
    """The logarithm of the evidence by importance sampling, and its standard error."""
    torch.manual_seed(0)
    w = proposal.sample((draws,))
    log_ratio = log_joint(w, rows) - proposal.log_prob(w)
    ratio = (log_ratio - log_ratio.max()).exp()
    error = (ratio.std() / ratio.mean() / draws**0.5).item()
    return (log_ratio.logsumexp(0) - math.log(draws)).item(), error


def compare(q: MultivariateNormal, reference: dict[str, Any], bound: float) -> dict[str, float]:
    mean, covariance = (torch.tensor(reference[x], dtype=torch.float64) for x in ("mean", "covariance"))
    std = covariance.diagonal().sqrt()
    moments = MultivariateNormal(mean, covariance)
    return {
        "elbo": bound,
        "largest_shift_of_a_mean": ((q.loc - mean) / std).abs().max().item(),
        "smallest_ratio_of_std": (q.variance.sqrt() / std).min().item(),
        "largest_ratio_of_std": (q.variance.sqrt() / std).max().item(),
        "kl_of_best_gaussian": kl_divergence(moments, q).item(),
        "widest_kl_of_a_coefficient": kl_divergence(Normal(mean, std), Normal(q.loc, q.variance.sqrt()))
        .max()
        .item(),
    }


def main() -> None:
    is_reference = "--reference" in sys.argv
    if is_reference:
        sys.argv.remove("--reference")
    options = arguments(__doc__ or "")
    rows = load()
    if is_reference:
        size = {"warm_up": 100, "draws": 200} if options.quick else {"warm_up": 500, "draws": 4000}
        content = {"seed": 0, **summary(hmc(rows, chains=64, seed=0, **size))}
        print(f"largest R-hat {content['largest_r_hat']:.4f}")
        return write(options.out, REFERENCE, content)
    stored = Path(__file__).parent / "results" / f"{REFERENCE}.json"
    reference = json.loads(stored.read_text(encoding="utf-8"))
    fits = {
        "Laplace": laplace(rows),
        "diagonal": fit(rows, full_rank=False),
        "full rank": fit(rows, full_rank=True),
    }
    evidence, error = log_evidence(rows, fits["full rank"], 20_000 if options.quick else 200_000)
    comparisons = {}
    for name, q in fits.items():
        comparisons[name] = compare(q, reference, elbo(q, rows).item())
        comparisons[name]["kl_to_posterior"] = evidence - comparisons[name]["elbo"]
        print(name, {key: round(value, 4) for key, value in comparisons[name].items()}, flush=True)
    return write(
        options.out,
        "bayesian_logistic",
        {"log_evidence": evidence, "standard_error": error, "fits": comparisons},
        draw=lambda plt: draw(plt, fits, reference),
    )


def draw(plt: Any, fits: dict[str, MultivariateNormal], reference: dict[str, Any]) -> Any:
    mean = np.array(reference["mean"])
    std = np.sqrt(np.diag(reference["covariance"]))
    figure, axes = plt.subplots(1, 2, figsize=(7.2, 3.4), layout="constrained")
    for i, (name, q) in enumerate(fits.items()):
        axes[0].scatter(mean, q.loc, s=16, color=f"C{i}", label=name)
        axes[1].scatter(std, q.variance.sqrt(), s=16, color=f"C{i}", label=name)
    for ax, what in zip(axes, ("mean", "standard deviation"), strict=True):
        ends = [min(*ax.get_xlim(), *ax.get_ylim()), max(*ax.get_xlim(), *ax.get_ylim())]
        ax.plot(ends, ends, color="0.6", linewidth=1, zorder=0)
        ax.set(xlabel=f"{what}, Monte Carlo", ylabel=f"{what}, Gaussian")
    axes[1].legend()
    return figure


if __name__ == "__main__":
    main()
