"""Fits by the stochastic variational inference of Pyro and of NumPyro, written like their tutorials."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

STEPS, RATE = 2_000, 0.02


def pyro_normal() -> Any:
    import pyro
    import pyro.distributions as dist

    pyro.clear_param_store()

    def model() -> None:
        weights = dist.Categorical(torch.tensor([0.4, 0.6]))
        pyro.sample(
            "x",
            dist.MixtureSameFamily(weights, dist.Normal(torch.tensor([-4.0, 3.0]), torch.tensor([0.8, 1.2]))),
        )

    def guide() -> None:
        loc = pyro.param("loc", torch.tensor(3.0))
        scale = pyro.param("scale", torch.tensor(1.0), constraint=dist.constraints.positive)
        pyro.sample("x", dist.Normal(loc, scale))

    elbo = pyro.infer.Trace_ELBO(num_particles=256, vectorize_particles=True)
    svi = pyro.infer.SVI(model, guide, pyro.optim.Adam({"lr": RATE}), elbo)
    for _ in range(STEPS):
        svi.step()
    return pyro.param("loc").item(), pyro.param("scale").item()


def pyro_gamma() -> Any:
    import pyro
    import pyro.distributions as dist

    pyro.clear_param_store()

    def model() -> None:
        pyro.sample("x", dist.LogNormal(0.5, 0.8))

    def guide() -> None:
        a = pyro.param("a", torch.tensor(1.0), constraint=dist.constraints.positive)
        b = pyro.param("b", torch.tensor(1.0), constraint=dist.constraints.positive)
        pyro.sample("x", dist.Gamma(a, b))

    elbo = pyro.infer.Trace_ELBO(num_particles=256, vectorize_particles=True)
    svi = pyro.infer.SVI(model, guide, pyro.optim.Adam({"lr": RATE}), elbo)
    for _ in range(STEPS):
        svi.step()
    return pyro.param("a").item(), pyro.param("b").item()


def pyro_posterior() -> Any:
    import pyro
    import pyro.distributions as dist
    from bench_fit import X, Y

    pyro.clear_param_store()
    x, y = X.float(), Y.float()

    def model() -> None:
        w = pyro.sample("w", dist.Normal(torch.zeros(5), 1.0).to_event(1))
        with pyro.plate("rows", len(x)):
            pyro.sample("y", dist.Bernoulli(logits=(x @ w.unsqueeze(-1)).squeeze(-1)), obs=y)

    guide = pyro.infer.autoguide.AutoMultivariateNormal(
        model, init_loc_fn=pyro.infer.autoguide.init_to_median
    )
    elbo = pyro.infer.Trace_ELBO(num_particles=32, vectorize_particles=True)
    svi = pyro.infer.SVI(model, guide, pyro.optim.Adam({"lr": RATE}), elbo)
    for _ in range(STEPS):
        svi.step()
    q = guide.get_posterior()
    return q.loc.detach().double(), q.scale_tril.detach().double()


def numpyro_normal() -> Any:
    import jax
    import jax.numpy as jnp
    import numpyro
    import numpyro.distributions as dist

    def model() -> None:
        parts = dist.Normal(jnp.array([-4.0, 3.0]), jnp.array([0.8, 1.2]))
        numpyro.sample("x", dist.MixtureSameFamily(dist.Categorical(jnp.array([0.4, 0.6])), parts))

    def guide() -> None:
        loc = numpyro.param("loc", 3.0)
        scale = numpyro.param("scale", 1.0, constraint=dist.constraints.positive)
        numpyro.sample("x", dist.Normal(loc, scale))

    elbo = numpyro.infer.Trace_ELBO(num_particles=256)
    svi = numpyro.infer.SVI(model, guide, numpyro.optim.Adam(RATE), elbo)
    found = svi.run(jax.random.PRNGKey(0), STEPS, progress_bar=False).params
    return float(found["loc"]), float(found["scale"])


def numpyro_posterior() -> Any:
    import jax
    import jax.numpy as jnp
    import numpyro
    import numpyro.distributions as dist
    from bench_fit import X, Y

    x, y = jnp.array(X.numpy()), jnp.array(Y.numpy())

    def model() -> None:
        w = numpyro.sample("w", dist.Normal(jnp.zeros(5), 1.0).to_event(1))
        numpyro.sample("y", dist.Bernoulli(logits=x @ w).to_event(1), obs=y)

    guide = numpyro.infer.autoguide.AutoMultivariateNormal(model)
    elbo = numpyro.infer.Trace_ELBO(num_particles=32)
    svi = numpyro.infer.SVI(model, guide, numpyro.optim.Adam(RATE), elbo)
    q = guide.get_posterior(svi.run(jax.random.PRNGKey(0), STEPS, progress_bar=False).params)
    return torch.tensor(np.array(q.loc)).double(), torch.tensor(np.array(q.scale_tril)).double()
