"""Powers of p / q: rows swept in float32, rows that need the range of float64, and both in one matrix."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from kullback import Alpha, ChiSquared, Divergence, Renyi, SquaredHellinger
from kullback.kernels import RowDivergence, reference, value_and_gradient
from kullback.kernels.label_terms import HardLabels
from kullback.kernels.native import library

if library.missing() is not None:
    pytest.skip(f"no native kernels here: {library.missing()}", allow_module_level=True)

INF = float("inf")
EACH_KIND = pytest.mark.parametrize(
    "kind",
    [
        Alpha(0.501),
        Alpha(0.7),
        Alpha(0.81),
        Alpha(1 - 1e-9),
        Alpha(1 + 1e-9),
        Alpha(2.5),
        Alpha(40),
        Alpha(1e4),
        Alpha(-0.5),
        ChiSquared(),
        SquaredHellinger(),
        Renyi(0.5),
        Renyi(0.99),
        Renyi(2),
        Renyi(900),
    ],
    ids=repr,
)


def rows_of_all_widths(dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Log-ratios from 1e-3 to 1e4, up to the bounds of float32 and past them; classes without mass."""
    draw = torch.Generator().manual_seed(2)
    widths = torch.tensor([1e-3, 0.05, 1, 4, 7, 9, 15, 17, 30, 33, 60, 79, 81, 200, 1e3, 1e4]).repeat(3)
    p = 2 * torch.randn(48, 37, generator=draw)
    q = p + widths[:, None] * (2 * torch.rand(48, 37, generator=draw) - 1)
    q[16:32, 3] = p[32:, 5] = -INF
    p[::2, 7] = q[::2, 7] = -INF
    return p.to(dtype), q.to(dtype)


@EACH_KIND
@pytest.mark.parametrize("labeled", [False, True])
@pytest.mark.parametrize("inplace", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rows_of_all_widths_are_those_of_the_reference(
    kind: Divergence, dtype: torch.dtype, inplace: bool, labeled: bool
) -> None:
    p, q = rows_of_all_widths(dtype)
    labels = HardLabels(torch.arange(48) % 2, 0.75, 0.25) if labeled else None
    want = reference.value_and_gradient(
        RowDivergence(kind, 1.5, labels=labels), p.double(), q.double(), None, wanted=(True, True)
    )
    wanted = (not inplace, True)
    got = value_and_gradient(
        RowDivergence(kind, 1.5, labels=labels), p, q.clone(), None, wanted=wanted, inplace=inplace
    )
    order = getattr(kind, "alpha", 2.0)  # the rounding of the normalization counts so many times
    torch.testing.assert_close(got[0], want[0], rtol=max(3e-6, 3e-7 * order), atol=1e-9)
    for mine, true in zip(got[1:], want[1:], strict=True):
        if mine is None:
            continue
        assert true is not None
        # A gradient may be a small difference of what its classes add.
        size = true.abs().amax(-1, keepdim=True).clamp(max=torch.finfo(dtype).max)
        allowed = torch.finfo(dtype).eps * true.abs() + 6e-6 * size + 1e-7
        error = (mine.double() - true.to(dtype).double()).abs()
        assert ((error <= allowed) | (mine == true.to(dtype))).all(), (error / allowed).amax(-1)
