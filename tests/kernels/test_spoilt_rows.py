"""A row that is no distribution (with NaN, with +inf, or without mass) has the value NaN, and gradients of NaN, for
every kind of divergence, wherever the row is computed.
"""

from __future__ import annotations

import math
from typing import Any
from unittest import mock

import pytest
import torch
from torch import Tensor

from kullback import Divergence, FDivergence, Renyi
from kullback.functional import TopK, distillation_loss
from kullback.kernels import reference
from kullback.kernels.native import native_rows
from kullback.kernels.reference import RowDivergence
from kullback.parallel import rows as sharded_rows
from kullback.parallel.rows import ShardedRows
from tests.oracles import truth

INF, NAN, GOOD = math.inf, math.nan, [0.0, 1.0, 2.0]
SPOILT = [[0.0, NAN, 1.0], [0.0, INF, 1.0], [-INF, -INF, -INF]]
P = torch.tensor([*SPOILT, *[GOOD] * 3, *SPOILT, [INF, 0.0, 0.0], GOOD])
Q = torch.tensor([*[GOOD] * 3, *SPOILT, *SPOILT, [-INF, -INF, -INF], [1.0, 1.0, 0.0]])
IS_SPOILT = torch.tensor([True] * 10 + [False])
KINDS = [*truth.KINDS, Renyi(alpha=0.0), Renyi(alpha=INF), FDivergence(lambda r: r * r.log())]


class OneRank:
    """The collectives of a group of one rank."""

    call, group, size, rank = "test", None, 1, 0

    def gather(self, x: Tensor) -> Tensor:
        return x.unsqueeze(0)

    def sum(self, x: Tensor) -> Tensor:
        return x


def sharded(rows: RowDivergence, p: Tensor, q: Tensor, uses_kernels: bool) -> Any:
    whole: Any = ShardedRows(OneRank(), rows.kind, 2.0, 3, (True, True), 0)  # pyright: ignore[reportArgumentType]
    with mock.patch.object(sharded_rows, "kernels_for", sharded_rows.kernels_for if uses_kernels else none):
        return whole.value_and_gradient(rows, p, q, None, (True, True))


def none(*_: object) -> None:
    """Return None: no module of kernels."""


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_value_and_gradients_are_nan_for_every_kind(dtype: torch.dtype) -> None:
    p, q, both = P.to(dtype), Q.to(dtype), (True, True)
    for kind in KINDS:
        rows = RowDivergence(kind, 2.0)
        results = [reference.value_and_gradient(rows, p, q, None, both)]
        if native_rows.serves(kind, p, q):
            results.append(native_rows.value_and_gradient(rows, p, q, None, both))
        if kind.additive or isinstance(kind, Renyi):
            results += [sharded(rows, p, q, uses_kernels) for uses_kernels in (False, True)]
        for value, *gradients in results:
            assert torch.equal(value.isnan(), IS_SPOILT), kind
            for gradient in gradients:
                assert torch.equal(gradient.isnan(), IS_SPOILT.unsqueeze(-1).expand(-1, 3)), kind


@pytest.mark.parametrize("kind", [Renyi(2.0), Renyi(0.3), Renyi(0.0)], ids=repr)
def test_a_loss_of_such_a_student_is_no_number(kind: Divergence) -> None:
    for row in SPOILT:
        student, good = torch.tensor([row]), torch.tensor([GOOD])
        assert distillation_loss(student=student, teacher=good, kind=kind).isnan()
        assert distillation_loss(student=good, teacher=student, kind=kind).isnan()
        top = TopK(torch.tensor([[1]]), torch.tensor([[-0.5]]))
        assert distillation_loss(student=student, teacher=top, kind=kind).isnan()


def test_a_row_of_weight_0_may_be_spoilt() -> None:
    weights = (~IS_SPOILT).double()
    for kind in KINDS:
        for backend in (native_rows, reference):
            if backend.serves(kind, P, Q):
                _, *gradients = backend.value_and_gradient(RowDivergence(kind), P, Q, weights, (True, True))
                assert all((x[IS_SPOILT] == 0).all() for x in gradients if x is not None), kind
