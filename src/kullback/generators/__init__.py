r"""The divergences: each is a small frozen object that you pass as ``kind=``.

A divergence is built from a convex function :math:`f` with :math:`f(1) = 0` as

.. math:: D_f(P \| Q) = \sum_i q_i\, f(p_i / q_i).

Adding a multiple of :math:`r - 1` to :math:`f` does not change the sum, because the :math:`p_i` and the :math:`q_i` sum
to one. The multiple is chosen such that :math:`f'(1) = 0`. Then no term is negative, and no term is a difference of
nearly equal numbers. An error in the normalization of p and q changes the sum only to second order. With
:math:`d = \log(p/q)`:

* ``terms`` are :math:`q f(e^d)`.
* ``derivatives`` are the partial derivatives of a term with respect to :math:`\log p` and :math:`\log q`, namely
  :math:`p f'` and :math:`q f - p f'`.

At p = 0 a term is :math:`q f(0)`, and at q = 0 a term is :math:`p \lim_{r \to \infty} f(r)/r`. At p = q = 0 a term is
0.

`FDivergence` makes a divergence from your own function f, and computes the derivatives and limits of f.

`parse` converts a name such as ``"js:0.5"`` into a divergence.
"""

from kullback.generators.divergence import BuiltIn, Divergence, FinitePair
from kullback.generators.entropic import KL, Jeffreys, JensenShannon, ReverseKL, SkewKL, TotalVariation
from kullback.generators.names import as_divergence, parse
from kullback.generators.of_ratio import FDivergence
from kullback.generators.power import Alpha, ChiSquared, Renyi, SquaredHellinger

__all__ = [
    "KL",
    "Alpha",
    "BuiltIn",
    "ChiSquared",
    "Divergence",
    "FDivergence",
    "FinitePair",
    "JensenShannon",
    "Jeffreys",
    "Renyi",
    "ReverseKL",
    "SkewKL",
    "SquaredHellinger",
    "TotalVariation",
    "as_divergence",
    "parse",
]
