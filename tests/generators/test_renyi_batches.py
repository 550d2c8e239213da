"""Orders of Renyi over batches of rows, near and far: each row is as if it were alone."""

from __future__ import annotations

import math

import pytest
import torch

from kullback import Renyi
from kullback.kernels import RowDivergence, reference


@pytest.mark.parametrize("alpha", [0.0, 0.5, 2.0, 30.0, math.inf])
@pytest.mark.parametrize("apart", [0.1, 10.0])
def test_the_rows_of_a_batch_are_those_alone(alpha: float, apart: float) -> None:
    generator = torch.Generator().manual_seed(3)
    p = torch.randn(3, 5, generator=generator, dtype=torch.float64)
    q = p + apart * torch.randn(3, 5, generator=generator, dtype=torch.float64)
    p[1, 2] = -torch.inf
    whole = reference.value_and_gradient(RowDivergence(Renyi(alpha)), p, q, None, wanted=(True, True))
    for row in range(3):
        one = slice(row, row + 1)
        alone = reference.value_and_gradient(
            RowDivergence(Renyi(alpha)), p[one], q[one], None, wanted=(True, True)
        )
        for ours, true in zip(whole, alone, strict=True):
            torch.testing.assert_close(ours[one], true, rtol=1e-14, atol=0.0)
