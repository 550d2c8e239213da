"""Row operations from outside of the package: what they have to define, and what they need not."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import forward_ad

from kullback.errors import ArgumentValueError
from kullback.kernels.row_operation import (
    Gradients,
    RowOperation,
    RowTotal,
    RowValueFunction,
    TotalOperation,
    Wanted,
    transformable,
)

X = torch.tensor([[1.0, 2.0], [3.0, -1.0], [0.5, 0.0]], dtype=torch.float64)
Y = torch.tensor([[2.0, 1.0], [0.0, 4.0], [1.0, 1.0]], dtype=torch.float64)


class Products(RowOperation):
    """The scalar product of two rows, with the members that every operation defines."""

    def compute(self, x: Tensor, y: Tensor) -> tuple[Tensor]:
        return ((x * y).sum(-1),)

    def gradients(self, tensors: Any, kept: Any, grad: Tensor, wanted: Wanted, is_plain: bool) -> Gradients:
        x, y, *_ = tensors
        return [grad.unsqueeze(-1) * y, grad.unsqueeze(-1) * x]


class ForwardProducts(Products):
    """The same, with forward mode."""

    def changes(self, tensors: Any, tangents: Gradients) -> Tensor:
        (x, y, *_), (by_x, by_y, *_) = tensors, tangents
        parts = [a * b for a, b in ((by_x, y), (x, by_y)) if a is not None and b is not None]
        return torch.stack(parts).sum(0).sum(-1)


@dataclass(slots=True, eq=False)
class TotalProducts(Products, TotalOperation):
    """The same, with a total."""

    weights: Tensor | None = None
    scale: float = 1.0

    def total(self, tensors: Any, wanted: Wanted) -> tuple[Tensor, Gradients]:
        x, y = tensors
        weights = torch.ones_like(x[:, 0]) if self.weights is None else self.weights
        return (weights * self.compute(x, y)[0]).sum() * self.scale, [
            weights.unsqueeze(-1) * side * self.scale for side in (y, x)
        ]


def leaves() -> tuple[Tensor, Tensor]:
    return X.clone().requires_grad_(), Y.clone().requires_grad_()


def test_values_and_gradients_need_two_members() -> None:
    x, y = leaves()
    values = RowValueFunction.apply(Products(), x, y)
    assert values.tolist() == [4.0, -4.0, 0.5]
    by_x, by_y = torch.autograd.grad(values.sum(), (x, y))
    assert torch.equal(by_x, Y)
    assert torch.equal(by_y, X)


def test_without_forward_mode_a_tangent_is_refused_and_the_remedy_works() -> None:
    for apply in (RowValueFunction.apply, transformable):
        with forward_ad.dual_level():
            dual = forward_ad.make_dual(X, Y)
            with pytest.raises(ArgumentValueError) as raised:
                apply(Products(), dual, Y)
        assert (raised.value.call, raised.value.argument) == ("forward_ad.make_dual", "tangent")
        x, y = leaves()
        apply(Products(), x, y).sum().backward()
        assert torch.equal(x.grad, Y)  # pyright: ignore[reportArgumentType]


def test_forward_mode_is_one_more_member() -> None:
    for apply in (RowValueFunction.apply, transformable):
        with forward_ad.dual_level():
            change = forward_ad.unpack_dual(apply(ForwardProducts(), forward_ad.make_dual(X, X), Y)).tangent
        assert change.tolist() == [4.0, -4.0, 0.5]


def test_a_total_has_weights_and_a_scale_and_need_not_complete_its_gradients() -> None:
    weights = torch.tensor([1.0, 0.5, 0.0], dtype=torch.float64)
    for is_early in (True, False):
        x, y = leaves()
        total = RowTotal.apply(TotalProducts(weights, 3.0), is_early, x, y)
        assert total.item() == 3 * (4 - 2)
        by_x, by_y = torch.autograd.grad(2 * total, (x, y))
        assert torch.equal(by_x, 6 * weights.unsqueeze(-1) * Y)
        assert torch.equal(by_y, 6 * weights.unsqueeze(-1) * X)


def test_a_total_may_complete_its_gradients_once() -> None:
    completed = []

    class Completed(TotalProducts):
        __slots__ = ()

        def complete(self, gradients: Gradients) -> Gradients:
            completed.append(len(gradients))
            return [None if x is None else -x for x in gradients]

    x, y = leaves()
    by_x, by_y = torch.autograd.grad(RowTotal.apply(Completed(), True, x, y), (x, y))
    assert completed == [2]
    assert torch.equal(by_x, -Y)
    assert torch.equal(by_y, -X)


@dataclass(slots=True, eq=False)
class ProductsAndNorms(TotalProducts):
    """The same, with the squared norms of the first rows as a second result."""

    has_second: bool = True

    def compute(self, x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        return (x * y).sum(-1), (x * x).sum(-1)

    def total(self, tensors: Any, wanted: Wanted) -> tuple[Any, ...]:
        _, norms = self.compute(*tensors)
        return *TotalProducts(self.weights, self.scale).total(tensors, wanted), norms


def test_a_second_result_comes_with_the_first_and_has_no_gradient() -> None:
    for is_early in (True, False):
        x, y = leaves()
        total, norms = RowTotal.apply(ProductsAndNorms(), is_early, x, y)
        assert norms.tolist() == [5.0, 10.0, 0.25]
        assert not norms.requires_grad
        first, second = (torch.autograd.grad(total, x, retain_graph=True)[0] for _ in range(2))
        assert torch.equal(first, Y)
        assert torch.equal(second, Y)
    x, y = leaves()
    values, norms = RowValueFunction.apply(ProductsAndNorms(), x, y)
    assert norms.tolist() == [5.0, 10.0, 0.25]
    assert not norms.requires_grad
    assert torch.equal(torch.autograd.grad(values.sum(), x)[0], Y)
