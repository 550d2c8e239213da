"""Compare `kullback.fit` with SVI of Pyro and NumPyro, SciPy's minimize, scikit-learn's GaussianMixture and plain
torch.

python benchmarks/bench_fit.py [--rounds 3] [--only WORD ...]

Every contender fits the same family to the same target from the same start, as its documentation shows. Stochastic
ones take 2,000 steps of Adam. Independent functions measure the results: SciPy's quadrature on the line, the mean
log-likelihood of the draws, and the ELBO over 200,000 fixed draws for the posterior. Times are CPU times, medians of
interleaved rounds, including compilation. Lines are counted in the contender's function.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import argparse
import importlib
import importlib.util
import inspect
import json
import math
import statistics
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import scipy.integrate
import scipy.optimize
import scipy.special
import scipy.stats
import torch
from fit_peers import numpyro_normal, numpyro_posterior, pyro_gamma, pyro_normal, pyro_posterior
from sklearn.datasets import load_breast_cancer
from sklearn.mixture import GaussianMixture
from timing import RESULTS, machine
from torch.distributions import (
    Categorical,
    Gamma,
    LogNormal,
    MixtureSameFamily,
    MultivariateNormal,
    Normal,
    StudentT,
)

from kullback import ReverseKL, Samples, fit

SCHEMA = "kullback.fit_benchmark/1"
STEPS, RATE = 2_000, 0.02
WEIGHTS, LOCS, SCALES = (0.4, 0.6), (-4.0, 3.0), (0.8, 1.2)
Parameters = Any


def f64(*x: float) -> torch.Tensor:
    return torch.tensor(x if len(x) > 1 else x[0], dtype=torch.float64)


MODES = MixtureSameFamily(Categorical(f64(*WEIGHTS)), Normal(f64(*LOCS), f64(*SCALES)))


def modes_logpdf(x: Any) -> Any:
    parts = [
        math.log(w) + scipy.stats.norm.logpdf(x, m, s) for w, m, s in zip(WEIGHTS, LOCS, SCALES, strict=True)
    ]
    return scipy.special.logsumexp(parts, axis=0)


# ---- KL(to || q) of a Normal to two modes.


def cover_kullback() -> Parameters:
    q = fit(Normal(f64(3.0), f64(1.0)), to=MODES).distribution
    return float(q.loc), float(q.scale)


def cover_scipy() -> Parameters:
    def loss(u: Any) -> float:
        return scipy.integrate.quad(
            lambda x: -math.exp(modes_logpdf(x)) * scipy.stats.norm.logpdf(x, u[0], math.exp(u[1])),
            -12,
            12,
            limit=200,
        )[0]

    u = scipy.optimize.minimize(loss, [3.0, 0.0], method="BFGS").x
    return float(u[0]), math.exp(u[1])


def cover_torch() -> Parameters:
    u = torch.tensor([3.0, 0.0], requires_grad=True)
    optimizer = torch.optim.Adam([u], lr=RATE)
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = -Normal(u[0], u[1].exp()).log_prob(MODES.sample((256,))).mean()
        loss.backward()
        optimizer.step()
    return u[0].item(), u[1].exp().item()


def cover_value(q: Parameters) -> float:
    return integral(modes_logpdf, lambda x: scipy.stats.norm.logpdf(x, *q), -12, 12)


# ---- The same task for KL(q || to).


def seek_kullback() -> Parameters:
    q = fit(Normal(f64(3.0), f64(1.0)), to=MODES, kind=ReverseKL()).distribution
    return float(q.loc), float(q.scale)


def seek_scipy() -> Parameters:
    def loss(u: Any) -> float:
        q = scipy.stats.norm(u[0], math.exp(u[1]))
        low, high = u[0] - 12 * math.exp(u[1]), u[0] + 12 * math.exp(u[1])
        return scipy.integrate.quad(
            lambda x: q.pdf(x) * (q.logpdf(x) - modes_logpdf(x)), low, high, limit=200
        )[0]

    u = scipy.optimize.minimize(loss, [3.0, 0.0], method="BFGS").x
    return float(u[0]), math.exp(u[1])


def seek_torch() -> Parameters:
    u = torch.tensor([3.0, 0.0], requires_grad=True)
    optimizer = torch.optim.Adam([u], lr=RATE)
    for _ in range(STEPS):
        optimizer.zero_grad()
        q = Normal(u[0], u[1].exp())
        x = q.rsample((256,))
        (q.log_prob(x) - MODES.log_prob(x)).mean().backward()
        optimizer.step()
    return u[0].item(), u[1].exp().item()


def seek_value(q: Parameters) -> float:
    return integral(
        lambda x: scipy.stats.norm.logpdf(x, *q), modes_logpdf, q[0] - 12 * q[1], q[0] + 12 * q[1]
    )


# ---- KL(q || to) of a Gamma to a LogNormal.


def gamma_kullback() -> Parameters:
    q = fit(Gamma(f64(1.0), f64(1.0)), to=LogNormal(f64(0.5), f64(0.8)), kind=ReverseKL()).distribution
    return float(q.concentration), float(q.rate)


def gamma_scipy() -> Parameters:
    to = scipy.stats.lognorm(0.8, scale=math.exp(0.5))

    def loss(u: Any) -> float:
        q = scipy.stats.gamma(math.exp(u[0]), scale=math.exp(-u[1]))
        return scipy.integrate.quad(lambda x: q.pdf(x) * (q.logpdf(x) - to.logpdf(x)), 0, np.inf, limit=200)[
            0
        ]

    u = scipy.optimize.minimize(loss, [0.0, 0.0], method="BFGS").x
    return math.exp(u[0]), math.exp(u[1])


def gamma_torch() -> Parameters:
    u = torch.zeros(2, requires_grad=True)
    to = LogNormal(0.5, 0.8)
    optimizer = torch.optim.Adam([u], lr=RATE)
    for _ in range(STEPS):
        optimizer.zero_grad()
        q = Gamma(u[0].exp(), u[1].exp())
        x = q.rsample((256,))
        (q.log_prob(x) - to.log_prob(x)).mean().backward()
        optimizer.step()
    return tuple(u.exp().tolist())


def gamma_value(q: Parameters) -> float:
    p = scipy.stats.gamma(q[0], scale=1 / q[1])
    to = scipy.stats.lognorm(0.8, scale=math.exp(0.5))
    return integral(p.logpdf, to.logpdf, p.ppf(1e-15), p.isf(1e-15))


# ---- 1,000 Normals to 1,000 Student's t.

DOF = torch.linspace(2, 9, 1_000, dtype=torch.float64)


def many_kullback() -> Parameters:
    start = Normal(torch.zeros(1_000, dtype=torch.float64), f64(1.0))
    return fit(start, to=StudentT(DOF), kind=ReverseKL()).distribution.scale.numpy()


def many_scipy() -> Parameters:
    def best(df: float) -> float:
        def loss(log_scale: float) -> float:
            z, w = np.polynomial.hermite_e.hermegauss(64)
            x = math.exp(log_scale) * z
            return -log_scale - float(w @ scipy.stats.t.logpdf(x, df)) / math.sqrt(2 * math.pi)

        return math.exp(scipy.optimize.minimize_scalar(loss, bounds=(-2, 2), method="bounded").x)

    return np.array([best(df) for df in DOF.tolist()])


def many_torch() -> Parameters:
    u = torch.zeros(2, 1_000, requires_grad=True)
    optimizer = torch.optim.Adam([u], lr=RATE)
    to = StudentT(DOF.float())
    for _ in range(STEPS):
        optimizer.zero_grad()
        q = Normal(u[0], u[1].exp())
        x = q.rsample((16,))
        (q.log_prob(x) - to.log_prob(x)).mean(0).sum().backward()
        optimizer.step()
    return u[1].detach().exp().double().numpy()


def many_value(scales: Parameters) -> float:
    values = []
    for df, scale in list(zip(DOF.tolist(), scales, strict=True))[::100]:
        p, to = scipy.stats.norm(0, scale), scipy.stats.t(df)
        values.append(integral(p.logpdf, to.logpdf, -12 * scale, 12 * scale))
    return statistics.fmean(values)


# ---- A mixture of three Normals in two dimensions, from draws.


def groups() -> np.ndarray:
    rng = np.random.default_rng(0)
    parts = (
        (600, [[1, 0.6], [0, 0.5]], (-3, 0)),
        (800, [[0.6, 0], [0, 1.2]], (2, 1)),
        (600, [[1, -0.7], [0, 0.4]], (1, -3)),
    )
    return np.concatenate([rng.normal(size=(n, 2)) @ np.array(a) + m for n, a, m in parts])


GROUPS = groups()
CENTERS = GROUPS[[0, 700, 1500]]


def mixture_kullback() -> Parameters:
    parts = MultivariateNormal(torch.tensor(CENTERS), torch.eye(2, dtype=torch.float64).expand(3, 2, 2))
    q = fit(MixtureSameFamily(Categorical(f64(1, 1, 1)), parts), to=Samples(GROUPS)).distribution
    part = q.component_distribution
    return q.mixture_distribution.probs.numpy(), part.loc.numpy(), part.covariance_matrix.numpy()


def mixture_scikit_learn() -> Parameters:
    start = {
        "weights_init": np.ones(3) / 3,
        "means_init": CENTERS,
        "precisions_init": np.stack([np.eye(2)] * 3),
    }
    found = GaussianMixture(3, **start).fit(GROUPS)
    return found.weights_, found.means_, found.covariances_


def mixture_scikit_learn_tight() -> Parameters:
    start = {
        "weights_init": np.ones(3) / 3,
        "means_init": CENTERS,
        "precisions_init": np.stack([np.eye(2)] * 3),
    }
    found = GaussianMixture(3, tol=1e-12, max_iter=10_000, reg_covar=0, **start).fit(GROUPS)
    return found.weights_, found.means_, found.covariances_


def mixture_torch() -> Parameters:
    x = torch.tensor(GROUPS)
    loc, logits = (
        torch.tensor(CENTERS, requires_grad=True),
        torch.zeros(3, dtype=torch.float64, requires_grad=True),
    )
    raw = torch.zeros(3, 2, 2, dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.Adam([loc, logits, raw], lr=RATE)

    def model() -> Any:
        tril = raw.tril(-1) + torch.diag_embed(raw.diagonal(dim1=-2, dim2=-1).exp())
        return MixtureSameFamily(Categorical(logits=logits), MultivariateNormal(loc, scale_tril=tril))

    for _ in range(STEPS):
        optimizer.zero_grad()
        (-model().log_prob(x).mean()).backward()
        optimizer.step()
    part = model().component_distribution
    return logits.detach().softmax(-1).numpy(), loc.detach().numpy(), part.covariance_matrix.detach().numpy()


def mixture_value(q: Parameters) -> float:
    parts = [
        math.log(w) + scipy.stats.multivariate_normal(m, c).logpdf(GROUPS) for w, m, c in zip(*q, strict=True)
    ]
    return -float(scipy.special.logsumexp(parts, axis=0).mean())


# ---- A posterior: logistic regression with four features, a full covariance.


def regression() -> tuple[torch.Tensor, torch.Tensor]:
    data = load_breast_cancer()
    x = (data.data - data.data.mean(0)) / data.data.std(0)
    return torch.tensor(np.c_[np.ones(len(x)), x[:, :4]]), torch.tensor(data.target, dtype=torch.float64)


X, Y = regression()


def log_posterior(w: torch.Tensor) -> torch.Tensor:
    score = w @ X.T.to(w.dtype)
    likelihood = (Y.to(w.dtype) * score - torch.nn.functional.softplus(score)).sum(-1)
    return likelihood - (w**2).sum(-1) / 2


def posterior_kullback() -> Parameters:
    start = MultivariateNormal(torch.zeros(5, dtype=torch.float64), torch.eye(5, dtype=torch.float64))
    q = fit(
        start, to=log_posterior, generator=torch.Generator().manual_seed(0), draws=32, tol=1e-2
    ).distribution
    return q.loc, q.scale_tril


def posterior_torch() -> Parameters:
    loc, raw = torch.zeros(5, requires_grad=True), torch.zeros(5, 5, requires_grad=True)
    optimizer = torch.optim.Adam([loc, raw], lr=RATE)

    def model() -> Any:
        return MultivariateNormal(loc, scale_tril=raw.tril(-1) + torch.diag_embed(raw.diagonal().exp()))

    for _ in range(STEPS):
        optimizer.zero_grad()
        q = model()
        z = q.rsample((32,))
        (q.log_prob(z) - log_posterior(z)).mean().backward()
        optimizer.step()
    return loc.detach().double(), model().scale_tril.detach().double()


def posterior_value(q: Parameters) -> float:
    """The negative ELBO, with the entropy in closed form."""
    noise = torch.randn(200_000, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    z = q[0] + noise @ q[1].mT
    mean = statistics.fmean(float(log_posterior(part).mean()) for part in z.split(10_000))
    return -mean - float(MultivariateNormal(q[0], scale_tril=q[1]).entropy())


def integral(log_p: Callable[[float], Any], log_q: Callable[[float], Any], low: float, high: float) -> float:
    def term(x: float) -> float:
        log = float(log_p(x))
        return math.exp(log) * (log - float(log_q(x)))

    return scipy.integrate.quad(
        term, low, high, points=[p for p in LOCS if low < p < high], limit=500, epsabs=1e-12
    )[0]


class Case(NamedTuple):
    name: str
    value: Callable[[Parameters], float]
    quantity: str
    contenders: dict[str, Callable[[], Parameters]]


CASES = [
    Case(
        "Normal, to two modes, KL(to ‖ q)",
        cover_value,
        "KL(to ‖ q)",
        {"kullback": cover_kullback, "scipy.optimize": cover_scipy, "torch by hand": cover_torch},
    ),
    Case(
        "Normal, to two modes, KL(q ‖ to)",
        seek_value,
        "KL(q ‖ to)",
        {
            "kullback": seek_kullback,
            "scipy.optimize": seek_scipy,
            "torch by hand": seek_torch,
            "Pyro SVI": pyro_normal,
            "NumPyro SVI": numpyro_normal,
        },
    ),
    Case(
        "Gamma, to a LogNormal, KL(q ‖ to)",
        gamma_value,
        "KL(q ‖ to)",
        {
            "kullback": gamma_kullback,
            "scipy.optimize": gamma_scipy,
            "torch by hand": gamma_torch,
            "Pyro SVI": pyro_gamma,
        },
    ),
    Case(
        "1,000 Normals, to Student's t, KL(q ‖ to)",
        many_value,
        "mean KL(q ‖ to)",
        {"kullback": many_kullback, "scipy.optimize": many_scipy, "torch by hand": many_torch},
    ),
    Case(
        "3 Normals in 2-D, to 2,000 draws",
        mixture_value,
        "negative log-likelihood",
        {
            "kullback": mixture_kullback,
            "scikit-learn": mixture_scikit_learn,
            "scikit-learn, tol=1e-12": mixture_scikit_learn_tight,
            "torch by hand": mixture_torch,
        },
    ),
    Case(
        "full Normal in 5-D, to a posterior",
        posterior_value,
        "negative ELBO",
        {
            "kullback": posterior_kullback,
            "torch by hand": posterior_torch,
            "Pyro SVI": pyro_posterior,
            "NumPyro SVI": numpyro_posterior,
        },
    ),
]


def lines_of(function: Callable[..., Any]) -> int:
    """The number of lines of code of a contender's function, without its first line."""
    source = inspect.getsource(function).splitlines()[1:]
    return sum(bool(line.strip()) and not line.strip().startswith(("#", '"""')) for line in source)


def is_there(name: str) -> bool:
    package = {"Pyro SVI": "pyro", "NumPyro SVI": "numpyro"}.get(name)
    return package is None or importlib.util.find_spec(package) is not None


def measured(case: Case, rounds: int) -> dict[str, Any]:
    contenders = {name: function for name, function in case.contenders.items() if is_there(name)}
    times: dict[str, list[float]] = {name: [] for name in contenders}
    values: dict[str, list[float]] = {name: [] for name in contenders}
    for number in range(rounds):
        for name, function in contenders.items():
            torch.manual_seed(number)
            began = time.process_time()
            found = function()
            times[name].append(time.process_time() - began)
            values[name].append(case.value(found))
    rows = {
        name: {
            "value": statistics.median(values[name]),
            "seconds": statistics.median(times[name]),
            "lines": lines_of(function),
        }
        for name, function in contenders.items()
    }
    return {"case": case.name, "quantity": case.quantity, "rounds": rounds, "contenders": rows}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", nargs="*", help="measure only cases whose names have one of these words")
    arguments = parser.parse_args()
    for package in (
        "pyro",
        "numpyro",
    ):  # imports are not part of a fit, nor are the imports of the first fit
        if importlib.util.find_spec(package):
            importlib.import_module(package)
    seek_kullback()
    path = RESULTS / "fit.json"
    known = json.loads(path.read_text())["rows"] if path.exists() else []
    rows = {row["case"]: row for row in known}
    for case in CASES:
        if arguments.only and not any(word in case.name for word in arguments.only):
            continue
        rows[case.name] = measured(case, arguments.rounds)
        print(json.dumps(rows[case.name], ensure_ascii=False), flush=True)
    document = {
        "schema": SCHEMA,
        "machine": machine(),
        "rows": [rows[case.name] for case in CASES if case.name in rows],
    }
    path.write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
