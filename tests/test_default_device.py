"""Data of the CPU while torch's default device is another one: the meta device shows each tensor that is made there."""

from __future__ import annotations

import ast
import warnings
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, distributions as td

import kullback
from kullback import KL, Counts, JensenShannon, Logits, Renyi, Samples, TotalVariation, divergence, fit
from kullback.functional import Mixture, SampledTail, Scored, TopK, distillation_loss, top_k_divergence
from kullback.io import open_rows, read_labels
from kullback.metrics import KLDivergence, kl_divergence as kl_metric


def normal(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)), device="cpu")


def seeded() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def at(*numbers: float) -> Tensor:
    return torch.tensor(numbers, device="cpu")


SOURCE = Path(kullback.__file__).parent
CONSTRUCTORS = {
    "tensor",
    "zeros",
    "ones",
    "full",
    "arange",
    "linspace",
    "eye",
    "empty",
    "rand",
    "randn",
    "randint",
    "randperm",
}
# Here the default device is the user's choice: numbers that a user writes become tensors, and modules keep tensors.
ON_THE_DEFAULT_DEVICE = {
    "cli/expressions.py",
    "common/inputs.py",
    "losses/regularizer.py",
    "metrics/metric.py",
}
X, Y = normal(40, 9), 2 * normal(40, 9) + 1
DRAWS = normal(120, 2)
WEIGHT = 0.01 * normal(30, 9)
CLASSES = X.argmax(-1)
MIXTURE = td.MixtureSameFamily(td.Categorical(at(0.3, 0.7)), td.Normal(at(-2.0, 1.0), at(0.5, 1.0)))
MULTIVARIATE = td.MultivariateNormal(at(0.0, 1.0), 1.5 * torch.eye(2, device="cpu"))
PAIRS: dict[str, tuple[td.Distribution, td.Distribution]] = {
    "quadrature": (td.Normal(at(0.0, 1.0), at(1.0, 2.0)), td.Laplace(at(0.5), at(1.0))),
    "quadrature on the half-line": (td.Gamma(at(2.0, 3.0), at(1.0)), td.LogNormal(at(0.0), at(1.0))),
    "quadrature of slow tails": (td.StudentT(at(3.0), at(0.0), at(1.0)), td.Cauchy(at(0.1), at(2.0))),
    "quadrature of an interval": (td.Beta(at(2.0, 0.5), at(3.0)), td.Kumaraswamy(at(1.5), at(2.0))),
    "quadrature of mixtures": (MIXTURE, td.Normal(at(0.0), at(2.0))),
    "quadrature of transformed": (
        td.TransformedDistribution(
            td.Normal(at(0.0), at(1.0)), [td.ExpTransform(), td.AffineTransform(at(1.0), 2)]
        ),
        td.TransformedDistribution(td.Gumbel(at(0.0), at(1.0)), [td.SoftplusTransform()]),
    ),
    "infinite and finite": (td.Uniform(at(0.0, 0.5), at(1.0, 0.6)), td.Uniform(at(0.2), at(0.8))),
    "summation": (td.Poisson(at(2.0, 3.0)), td.NegativeBinomial(at(3.0), at(0.4))),
    "closed form": (td.Cauchy(at(0.0, 1.0), at(1.0)), td.Cauchy(at(1.0), at(2.0))),
    "series": (td.Weibull(at(2.0), at(1.0)), td.Gamma(at(2.0), at(1.0))),
    "multivariate": (MULTIVARIATE, td.MultivariateNormal(at(0.5, 0.0), torch.eye(2, device="cpu"))),
    "circle": (td.VonMises(at(0.0, 1.0), at(2.0)), td.VonMises(at(1.0), at(0.5))),
}


def stored(tmp_path: Path) -> Any:
    path = tmp_path / "rows.npz"
    if not path.exists():
        import numpy as np

        np.savez(path, x=X.numpy(), labels=CLASSES.numpy())
    labels = read_labels(path, key="labels")
    with open_rows(path, representation="logits", key="x") as rows:
        return kullback.compare_predictions(rows, Logits(Y), labels=labels, cluster=CLASSES, groups=CLASSES)


def hidden_states(tmp_path: Path) -> Any:
    from safetensors.torch import save_file

    from kullback.models import HiddenStates, OutputHead

    for number, states in enumerate((X, X.bfloat16())):
        (tmp_path / str(number)).mkdir(exist_ok=True)
        save_file(
            {"hidden_states": states[:, None], "token_ids": CLASSES}, tmp_path / str(number) / "0.safetensors"
        )
    head = OutputHead("head", torch.nn.Identity(), WEIGHT)
    return kullback.compare_predictions(*(HiddenStates(tmp_path / name, head) for name in "01"))


def metric(made: KLDivergence) -> list[Tensor]:
    made.reset()
    made.update(X.softmax(-1), Y.softmax(-1))
    return [made.compute(), made.standard_error(), made.quantile([0.5, 1.0])]


def top_classes() -> TopK:
    log_probs, indices = Y.log_softmax(-1).topk(3)
    return TopK(indices, log_probs)


def trained(**options: Any) -> list[Tensor]:
    student = X.clone().requires_grad_()
    loss = distillation_loss(student=student, **options)
    loss.backward()
    assert student.grad is not None
    return [loss.detach(), student.grad]


METRIC, ROWS = KLDivergence(), KLDivergence(reduction="none")
CALLS: dict[str, Callable[[Path], Any]] = {
    **{
        f"kl_estimate by {name}": lambda _, pair=pair: kullback.kl_estimate(*pair)
        for name, pair in PAIRS.items()
    },
    **{
        f"{kind!r} by {name}": lambda _, pair=PAIRS[name], kind=kind: divergence(*pair, kind)
        for name in ("quadrature", "quadrature of mixtures", "summation", "closed form")
        for kind in (JensenShannon(), Renyi(0.5), TotalVariation())
    },
    "by monte carlo": lambda _: kullback.kl_estimate(
        *PAIRS["quadrature of mixtures"], method="monte_carlo", draws=100, generator=seeded()
    ),
    "tensors": lambda _: [
        divergence(Logits(X), Logits(Y), kind) for kind in (KL(), Renyi(2.0), TotalVariation())
    ],
    "tensors with an error": lambda _: [
        kullback.kl_estimate(of(X.softmax(-1)), of(Y.softmax(-1))) for of in (kullback.Probs, Counts)
    ],
    "labeled counts": lambda _: kullback.kl_divergence(
        Counts(at(1.0, 2.0), labels=["a", "b"], prior=1), Counts(at(1.0, 2.0), labels=["b", "c"], prior=1)
    ),
    **{
        f"draws by {method}": lambda _, method=method: kullback.kl_estimate(
            Samples(DRAWS[:, :1] if method == "histogram" else DRAWS),
            Samples(DRAWS[:, 1:] if method == "histogram" else DRAWS.flip(0) + 1),
            method=method,
            generator=seeded(),
        )
        for method in ("histogram", "nearest_neighbors", "density_ratio")
    },
    "categories": lambda _: kullback.kl_estimate(Samples(CLASSES), Samples(CLASSES.flip(0) // 2)),
    "draws against a density": lambda _: kullback.kl_estimate(Samples(DRAWS), MULTIVARIATE),
    "text against text": lambda _: kullback.kl_estimate(
        Samples(list("abracadabra")), Samples(list("alakazamrdbc"))
    ),
    "weights and clusters": lambda _: kullback.kl_estimate(
        Samples(DRAWS[:, 0], weights=[1.0, 2.0] * 60, cluster=list(range(60)) * 2), Samples(DRAWS[:, 1])
    ),
    "two-sample test": lambda _: (
        kullback.two_sample_test(Samples(DRAWS), Samples(DRAWS + 1), generator=seeded()).p_value
    ),
    "compare_predictions": lambda _: kullback.compare_predictions(Logits(X), Logits(Y)),
    "compare_predictions as llama.cpp": lambda _: kullback.compare_predictions(
        Logits(X), Logits(Y), labels=CLASSES, cluster=CLASSES, llama_cpp=True
    ),
    "compare_predictions of a file": stored,
    "hidden states": hidden_states,
    "metric": lambda _: metric(METRIC),
    "metric of rows": lambda _: metric(ROWS),
    "metrics.kl_divergence": lambda _: kl_metric(X.softmax(-1), Y.softmax(-1)),
    "diagnose": lambda _: kullback.diagnose(X, Y.softmax(-1)).to_dict(),
    "fit": lambda _: [
        [found.value, found.above]
        for found in (
            fit(td.Normal(at(0.0), at(1.0)), to=td.Gamma(at(4.0), at(2.0)), show_progress=False),
            fit(td.Normal(at(0.0), at(1.0)), to=MIXTURE, kind=kullback.ReverseKL(), show_progress=False),
            fit(td.Gamma(at(1.0), at(1.0)), to=Samples(DRAWS[:, 0].exp()), show_progress=False),
            fit(
                MIXTURE, to=Samples(DRAWS[:, 0]), starts=2, generator=seeded(), tol=1e-6, show_progress=False
            ),
            fit(td.Categorical(at(0.5, 0.5)), to=Samples(CLASSES % 2), show_progress=False),
        )
    ],
    "distillation": lambda _: [
        trained(teacher=Y),
        trained(teacher=Y, kind=JensenShannon(), labels=CLASSES, label_weight=0.5, temperature=2.0),
        trained(teacher=top_classes()),
        trained(teacher=SampledTail.draw(Y, k=2, draws=3, generator=seeded())),
        trained(teacher=Scored(top_classes().indices, top_classes().log_probs), kind="reverse_kl"),
        trained(teacher=Mixture([X, Y])),
        trained(teacher=Mixture([top_classes(), X])),
    ],
    "top_k_divergence": lambda _: top_k_divergence(KL(), top_classes(), X),
}


def flat(x: Any) -> Any:
    """Return an answer as lists of tensors, numbers and texts."""
    if hasattr(x, "__dataclass_fields__"):
        return flat(asdict(x))
    if isinstance(x, dict):
        return [each for key, value in x.items() for each in [key, flat(value)]]
    return [flat(each) for each in x] if isinstance(x, list | tuple) else x


def assert_same(found: Any, expected: Any) -> None:
    if isinstance(expected, list):
        assert len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            assert_same(one, other)
    elif isinstance(expected, Tensor):
        assert found.device == expected.device
        torch.testing.assert_close(found, expected, rtol=0, atol=0, equal_nan=True)
    else:
        assert found == expected or (found != found and expected != expected)  # noqa: PLR0124


@pytest.mark.parametrize("name", CALLS)
def test_data_are_computed_where_they_are(name: str, tmp_path: Path) -> None:
    # First where tables that are kept may be made: these would be on the default device for good.
    with torch.device("meta"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = CALLS[name](tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected = CALLS[name](tmp_path)
    assert_same(flat(found), flat(expected))


def test_every_new_tensor_names_its_device() -> None:
    unnamed = [
        f"{path.relative_to(SOURCE)}:{call.lineno}: {ast.unparse(call)}"
        for path in SOURCE.rglob("*.py")
        if path.relative_to(SOURCE).as_posix() not in ON_THE_DEFAULT_DEVICE
        for call in ast.walk(ast.parse(path.read_text()))
        if isinstance(call, ast.Call)
        and isinstance(call.func, ast.Attribute)
        and call.func.attr in CONSTRUCTORS
        and ast.unparse(call.func.value) == "torch"
        and not {"device", None} & {keyword.arg for keyword in call.keywords}
    ]
    assert unnamed == []
