"""The families of distributions. Each file has the record, the density and the closed forms of one family or a few.

Other packages register their own families with `register_family` too.
"""

from kullback.pairs.densities.density import (
    Density,
    HalfLineDensity,
    LocationScaleDensity,
    Points,
    PositiveAtEnds,
    Tail,
)
from kullback.pairs.densities.integer import IntegerDensity
from kullback.pairs.families import (
    beta as beta,
    categorical as categorical,
    cauchy as cauchy,
    continuous_bernoulli as continuous_bernoulli,
    dirichlet as dirichlet,
    fisher_snedecor as fisher_snedecor,
    gamma as gamma,
    generalized_pareto as generalized_pareto,
    gumbel as gumbel,
    kumaraswamy as kumaraswamy,
    laplace as laplace,
    normal as normal,
    pareto as pareto,
    poisson as poisson,
    relaxed as relaxed,
    student_t as student_t,
    trials as trials,
    uniform as uniform,
    von_mises as von_mises,
    weibull as weibull,
)
from kullback.pairs.families.registration import register_family
from kullback.pairs.family import CHOICE, POSITIVE, REAL, UNIT, Family, Means, ScipyForm
from kullback.pairs.numerics.log_moments import Factor, GammaProduct, LogMoments

__all__ = [
    "CHOICE",
    "POSITIVE",
    "REAL",
    "UNIT",
    "Density",
    "Factor",
    "Family",
    "GammaProduct",
    "HalfLineDensity",
    "IntegerDensity",
    "LocationScaleDensity",
    "LogMoments",
    "Means",
    "Points",
    "PositiveAtEnds",
    "ScipyForm",
    "Tail",
    "register_family",
]
