"""Kullback-Leibler divergences for PyTorch: of tensors, distributions, data, models and losses.

P comes first, and values are in nats, one for each row or element of the batch::

    kl_divergence(Logits(p), Logits(q))            tensors; also Probs, LogProbs and Counts
    kl_divergence(Normal(0.0, 1.0), q)             distributions of torch or SciPy
    kl_estimate(Samples(x), Samples(y))            draws: a value with an interval
    divergence(p, q, JensenShannon())              other divergences
    compare(a, b)                                  two tables, files of predictions or language models
    fit(Normal(0.0, 1.0), to=target)               the nearest member of a family
    functional.distillation_loss(student=, teacher=), nn.KLRegularizer
    diagnose(input, target)                        explains a call of torch.nn.functional.kl_div

Each public name is imported at its first use, so that ``import kullback`` is fast.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kullback import (
        errors,
        estimators,
        functional,
        generators,
        integrations,
        io,
        metrics,
        models,
        nn,
        policy,
        tables,
        testing,
    )
    from kullback.comparison import compare
    from kullback.diagnosis import diagnose
    from kullback.dispatch import divergence, estimate, kl_divergence, kl_estimate
    from kullback.estimators import TwoSampleTest, two_sample_test
    from kullback.fitting import Fit, FitError, fit
    from kullback.generators import (
        KL,
        Alpha,
        ChiSquared,
        Divergence,
        FDivergence,
        Jeffreys,
        JensenShannon,
        Renyi,
        ReverseKL,
        SkewKL,
        SquaredHellinger,
        TotalVariation,
    )
    from kullback.information import cross_entropy, entropy, mutual_information
    from kullback.kernels.backends import backends
    from kullback.models import compare_models, record_reference
    from kullback.pairs import register_kl
    from kullback.pairs.bounds import Bounds, kl_bounds
    from kullback.pairs.install import install, uninstall
    from kullback.predictions import compare_predictions
    from kullback.representations import Counts, Logits, LogProbs, Probs
    from kullback.results.estimate import Estimate
    from kullback.samples import Samples
    from kullback.tables import compare_tables

__all__ = [
    "KL",
    "Alpha",
    "Bounds",
    "ChiSquared",
    "Counts",
    "Divergence",
    "Estimate",
    "Fit",
    "FDivergence",
    "FitError",
    "JensenShannon",
    "Jeffreys",
    "LogProbs",
    "Logits",
    "Probs",
    "Renyi",
    "ReverseKL",
    "TwoSampleTest",
    "Samples",
    "SkewKL",
    "SquaredHellinger",
    "TotalVariation",
    "__version__",
    "backends",
    "compare",
    "compare_models",
    "compare_predictions",
    "compare_tables",
    "cross_entropy",
    "diagnose",
    "divergence",
    "entropy",
    "errors",
    "estimate",
    "estimators",
    "fit",
    "functional",
    "generators",
    "install",
    "integrations",
    "io",
    "kl_bounds",
    "kl_divergence",
    "kl_estimate",
    "metrics",
    "models",
    "mutual_information",
    "nn",
    "policy",
    "record_reference",
    "register_kl",
    "tables",
    "testing",
    "two_sample_test",
    "uninstall",
]

__version__ = "0.1.0"

# For each module, the dict has the public names that the module defines.
_NAMES = {
    "kullback.comparison": ("compare",),
    "kullback.diagnosis": ("diagnose",),
    "kullback.dispatch": ("divergence", "estimate", "kl_divergence", "kl_estimate"),
    "kullback.results.estimate": ("Estimate",),
    "kullback.estimators": ("TwoSampleTest", "two_sample_test"),
    "kullback.generators": (
        "KL",
        "Alpha",
        "ChiSquared",
        "Divergence",
        "FDivergence",
        "Jeffreys",
        "JensenShannon",
        "Renyi",
        "ReverseKL",
        "SkewKL",
        "SquaredHellinger",
        "TotalVariation",
    ),
    "kullback.information": ("cross_entropy", "entropy", "mutual_information"),
    "kullback.kernels.backends": ("backends",),
    "kullback.models": ("compare_models", "record_reference"),
    "kullback.pairs": ("register_kl",),
    "kullback.pairs.bounds": ("Bounds", "kl_bounds"),
    "kullback.pairs.install": ("install", "uninstall"),
    "kullback.predictions": ("compare_predictions",),
    "kullback.fitting": ("Fit", "FitError", "fit"),
    "kullback.representations": ("Counts", "Logits", "LogProbs", "Probs"),
    "kullback.samples": ("Samples",),
    "kullback.tables": ("compare_tables",),
}
_MODULE_OF = {name: module for module, names in _NAMES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name in _MODULE_OF:
        value = getattr(import_module(_MODULE_OF[name]), name)
    elif name in __all__:
        value = import_module(f"{__name__}.{name}")
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
