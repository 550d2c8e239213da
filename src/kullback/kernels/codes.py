"""Integer codes of divergences, closed forms and outcomes, shared by Python and the compiled kernels.

The build writes a C++ header from these classes (csrc/common/write_codes.py), so the codes are defined only here.
"""

from __future__ import annotations

from enum import IntEnum

__all__ = ["INTERFACE", "DivergenceCode", "ElementForm", "MatrixKind", "Outcome", "RowForm"]

# Increase it whenever an operator's arguments or a code below change. A library with another number is not used.
INTERFACE = 6


class DivergenceCode(IntEnum):
    """The divergences of rows of logits."""

    KL = 0
    REVERSE_KL = 1
    JEFFREYS = 2
    TOTAL_VARIATION = 3
    MIXTURE = 4
    POWER = 5
    RENYI = 6


class ElementForm(IntEnum):
    """The closed forms of families with scalar parameters, and of pairs of such families."""

    NORMAL = 0
    LAPLACE = 1
    CAUCHY = 2
    GUMBEL = 3
    EXPONENTIAL = 4
    GAMMA = 5
    HALF_NORMAL = 6
    HALF_CAUCHY = 7
    PARETO = 8
    UNIFORM = 9
    BETA = 10
    BERNOULLI_LOGITS = 11
    BERNOULLI_PROBS = 12
    BINOMIAL_LOGITS = 13
    BINOMIAL_PROBS = 14
    GEOMETRIC_LOGITS = 15
    GEOMETRIC_PROBS = 16
    POISSON = 17
    NORMAL_LAPLACE = 18
    LAPLACE_NORMAL = 19
    NORMAL_GUMBEL = 20
    GUMBEL_NORMAL = 21
    UNIFORM_NORMAL = 22
    UNIFORM_EXPONENTIAL = 23
    UNIFORM_GUMBEL = 24
    UNIFORM_PARETO = 25
    UNIFORM_GAMMA = 26
    UNIFORM_BETA = 27
    GAMMA_NORMAL = 28
    GAMMA_GUMBEL = 29
    BETA_GAMMA = 30
    BETA_NORMAL = 31
    BETA_UNIFORM = 32
    PARETO_GAMMA = 33
    PARETO_NORMAL = 34
    BERNOULLI_POISSON = 35
    BERNOULLI_LOGITS_POISSON = 36
    EXPONENTIAL_GAMMA = 37
    EXPONENTIAL_NORMAL = 38
    EXPONENTIAL_GUMBEL = 39
    GAMMA_EXPONENTIAL = 40
    BETA_EXPONENTIAL = 41
    PARETO_EXPONENTIAL = 42
    CONTINUOUS_BERNOULLI_LOGITS = 43
    CONTINUOUS_BERNOULLI_PROBS = 44
    CONTINUOUS_BERNOULLI_LOGITS_EXPONENTIAL = 45
    CONTINUOUS_BERNOULLI_PROBS_EXPONENTIAL = 46
    CONTINUOUS_BERNOULLI_LOGITS_NORMAL = 47
    CONTINUOUS_BERNOULLI_PROBS_NORMAL = 48
    CONTINUOUS_BERNOULLI_LOGITS_UNIFORM = 49
    CONTINUOUS_BERNOULLI_PROBS_UNIFORM = 50
    UNIFORM_CONTINUOUS_BERNOULLI_LOGITS = 51
    UNIFORM_CONTINUOUS_BERNOULLI_PROBS = 52
    BETA_CONTINUOUS_BERNOULLI_LOGITS = 53
    BETA_CONTINUOUS_BERNOULLI_PROBS = 54


class RowForm(IntEnum):
    """The closed forms of families with a vector of parameters."""

    DIRICHLET = 0
    CATEGORICAL_LOGITS = 1
    CATEGORICAL_PROBS = 2


class MatrixKind(IntEnum):
    """The matrix that parametrizes a multivariate normal."""

    FACTOR = 0
    COVARIANCE = 1
    PRECISION = 2


class Outcome(IntEnum):
    """The outcome of a closed form: done, or declined because of extreme parameters or their memory layout."""

    DONE = 0
    TOO_EXTREME = 1
    OTHER_LAYOUT = 2
