"""How a divergence is told to the compiled kernels: its code and, of a mixture, the weights and shares of its sides."""

from __future__ import annotations

from kullback.generators import KL, Divergence, Jeffreys, JensenShannon, ReverseKL, SkewKL, TotalVariation
from kullback.kernels.codes import DivergenceCode

__all__ = ["arguments_of", "has_code"]

# As plain integers, which torch.compile takes.
_SIMPLE: dict[type[Divergence], int] = {
    KL: DivergenceCode.KL.value,
    ReverseKL: DivergenceCode.REVERSE_KL.value,
    Jeffreys: DivergenceCode.JEFFREYS.value,
    TotalVariation: DivergenceCode.TOTAL_VARIATION.value,
}
_MIXTURE = DivergenceCode.MIXTURE.value
# A share nearer to 0 or 1 needs more digits than float32 has.
_SMALLEST_SHARE = 1e-3


def has_code(kind: Divergence) -> bool:
    """Tell whether the compiled kernels have this divergence."""
    return type(kind) in _SIMPLE or bool(_mixture(kind))


def arguments_of(kind: Divergence) -> tuple[int, float, float, float, float]:
    """Return the code of the divergence and, of a mixture, weight and share of P and of Q."""
    if type(kind) in _SIMPLE:
        return _SIMPLE[type(kind)], 0.0, 0.0, 0.0, 0.0
    sides = {swap: (weight, skew.alpha) for weight, skew, swap in _mixture(kind)}
    unused = (0.0, 0.5)
    return _MIXTURE, *sides.get(False, unused), *sides.get(True, unused)


def _mixture(kind: Divergence) -> list[tuple[float, SkewKL, bool]]:
    """Return the skew divergences that make up `kind`; none where it is no such sum or a share is too small."""
    parts = [(1.0, kind, False)] if isinstance(kind, SkewKL) else []
    if isinstance(kind, JensenShannon):
        parts = kind.parts()
    return parts if all(_SMALLEST_SHARE <= skew.alpha <= 1 - _SMALLEST_SHARE for _, skew, _ in parts) else []
