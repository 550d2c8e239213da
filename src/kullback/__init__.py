"""Kullback-Leibler divergences for PyTorch: for tensors, distributions, losses, metrics and files of predictions."""

from kullback import errors, estimators, functional, io, metrics, nn, tables
from kullback.diagnosis import diagnose
from kullback.dispatch import divergence, kl_divergence, kl_estimate
from kullback.estimate import Estimate
from kullback.estimators import TwoSampleTest, two_sample_test
from kullback.generators import (
    KL,
    Alpha,
    ChiSquared,
    Divergence,
    Jeffreys,
    JensenShannon,
    Renyi,
    ReverseKL,
    SkewKL,
    SquaredHellinger,
    TotalVariation,
)
from kullback.kernels.backends import backends
from kullback.pairs import register_kl
from kullback.pairs.bounds import Bounds, kl_bounds
from kullback.pairs.install import install, uninstall
from kullback.predictions import compare_predictions
from kullback.representations import Counts, Logits, LogProbs, Probs
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
    "compare_predictions",
    "compare_tables",
    "diagnose",
    "divergence",
    "errors",
    "estimators",
    "functional",
    "install",
    "io",
    "kl_bounds",
    "kl_divergence",
    "kl_estimate",
    "metrics",
    "nn",
    "register_kl",
    "tables",
    "two_sample_test",
    "uninstall",
]

__version__ = "0.1.0"
