"""Integer codes of divergences, closed forms and outcomes, shared by Python and the compiled kernels.

The build writes a C++ header from these classes (csrc/common/write_codes.py), so the codes are defined only here.
"""

from __future__ import annotations

from enum import IntEnum

__all__ = ["INTERFACE", "DivergenceCode", "ElementForm", "MatrixKind", "Outcome", "RowForm"]

# The version of the interface of the compiled library. Increase the version whenever an operator's arguments or a code
# below changes. Python does not use a library of another version.
INTERFACE = 7


class DivergenceCode(IntEnum):
    """The codes of the divergences of rows of logits."""

    KL = 0
    REVERSE_KL = 1
    JEFFREYS = 2
    TOTAL_VARIATION = 3
    MIXTURE = 4
    POWER = 5
    RENYI = 6


class ElementForm(IntEnum):
    """The codes of the closed forms for families with scalar parameters, and for pairs of such families.

    The C++ class of a form is named after the form: `NormalLaplaceForm` computes `NORMAL_LAPLACE`.
    """

    # fmt: off
    (
        NORMAL, LAPLACE, CAUCHY, GUMBEL, EXPONENTIAL, GAMMA, HALF_NORMAL, HALF_CAUCHY, PARETO, UNIFORM, BETA,
        BERNOULLI_LOGITS, BERNOULLI_PROBS, BINOMIAL_LOGITS, BINOMIAL_PROBS, GEOMETRIC_LOGITS, GEOMETRIC_PROBS,
        POISSON, NORMAL_LAPLACE, LAPLACE_NORMAL, NORMAL_GUMBEL, GUMBEL_NORMAL, UNIFORM_NORMAL,
        UNIFORM_EXPONENTIAL, UNIFORM_GUMBEL, UNIFORM_PARETO, UNIFORM_GAMMA, UNIFORM_BETA, GAMMA_NORMAL,
        GAMMA_GUMBEL, BETA_GAMMA, BETA_NORMAL, BETA_UNIFORM, PARETO_GAMMA, PARETO_NORMAL,
        BERNOULLI_PROBS_POISSON, BERNOULLI_LOGITS_POISSON, EXPONENTIAL_GAMMA, EXPONENTIAL_NORMAL,
        EXPONENTIAL_GUMBEL, GAMMA_EXPONENTIAL, BETA_EXPONENTIAL, PARETO_EXPONENTIAL,
        CONTINUOUS_BERNOULLI_LOGITS, CONTINUOUS_BERNOULLI_PROBS, CONTINUOUS_BERNOULLI_LOGITS_EXPONENTIAL,
        CONTINUOUS_BERNOULLI_PROBS_EXPONENTIAL, CONTINUOUS_BERNOULLI_LOGITS_NORMAL,
        CONTINUOUS_BERNOULLI_PROBS_NORMAL, CONTINUOUS_BERNOULLI_LOGITS_UNIFORM,
        CONTINUOUS_BERNOULLI_PROBS_UNIFORM, UNIFORM_CONTINUOUS_BERNOULLI_LOGITS,
        UNIFORM_CONTINUOUS_BERNOULLI_PROBS, BETA_CONTINUOUS_BERNOULLI_LOGITS, BETA_CONTINUOUS_BERNOULLI_PROBS,
    ) = range(55)
    # fmt: on


class RowForm(IntEnum):
    """The codes of the closed forms for families with a vector of parameters."""

    DIRICHLET = 0
    CATEGORICAL_LOGITS = 1
    CATEGORICAL_PROBS = 2


class MatrixKind(IntEnum):
    """The codes of the matrices that may parametrize a multivariate normal distribution."""

    FACTOR = 0
    COVARIANCE = 1
    PRECISION = 2


class Outcome(IntEnum):
    """The outcome of a closed form: computed; or not, for extreme values or an unsupported memory layout."""

    DONE = 0
    TOO_EXTREME = 1
    OTHER_LAYOUT = 2
