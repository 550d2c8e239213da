"""Logits may lie anywhere: adding a constant to a row of one side changes nothing, however far it is from the other."""

from __future__ import annotations

import math

import mpmath
import pytest
import torch

from kullback import KL, Alpha, ChiSquared, Jeffreys, JensenShannon, Renyi, SkewKL, TotalVariation
from kullback.kernels import RowDivergence, reference
from kullback.kernels.label_terms import HardLabels, cross_entropy
from kullback.kernels.native import native_rows as native

KINDS = [
    KL(),
    Jeffreys(),
    JensenShannon(),
    SkewKL(0.3),
    ChiSquared(),
    Alpha(3.0),
    Renyi(0.5),
    TotalVariation(),
]
FAR = [0.0, 3.0, 5.0, 2.0**20, -(2.0**20), 2.0**60, 1e30, -1e30, 1e300, 1e307]


def found(kind, p, q):
    return reference.value_and_gradient(RowDivergence(kind), p, q, None, wanted=(True, True))


@pytest.mark.parametrize("far", FAR)
@pytest.mark.parametrize("kind", KINDS, ids=repr)
def test_a_constant_on_one_side_changes_neither_value_nor_gradient(kind, far):
    near = torch.tensor([[0.5, -1.0, 2.0, 0.0]], dtype=torch.float64)
    equal = torch.zeros_like(near)  # a constant added to it is exact
    for pair, moved in (((equal, near), (equal + far, near)), ((near, equal), (near, equal + far))):
        for ours, true in zip(found(kind, *moved), found(kind, *pair), strict=True):
            torch.testing.assert_close(ours, true, rtol=1e-13, atol=1e-15)


def test_the_value_between_far_sides_is_the_true_one():
    p, q = [0.0, 0.0, 0.0], [0.5, -1.0, 2.0]
    with mpmath.workdps(50):
        total = mpmath.fsum(mpmath.exp(x) for x in q)
        true = mpmath.fsum(-mpmath.log(3) / 3 - (mpmath.mpf(x) - mpmath.log(total)) / 3 for x in q)
    moved = torch.tensor([p], dtype=torch.float64) + 1e30
    value = found(KL(), moved, torch.tensor([q], dtype=torch.float64))[0]
    assert value.item() == pytest.approx(float(true), rel=1e-14)


@pytest.mark.parametrize("far", FAR)
@pytest.mark.parametrize("label", [0, 1])
def test_the_cross_entropy_of_logits_far_from_zero_keeps_its_digits(far, label):
    logits = torch.full((1, 5), far, dtype=torch.float64)
    logits[0, 1] = -math.inf
    value = cross_entropy(logits, torch.tensor([label]))
    assert value.item() == (math.inf if label == 1 else pytest.approx(math.log(4), rel=1e-14))
    mixed = HardLabels(torch.tensor([label]), soft=0.5, hard=0.5).mixed(torch.tensor([0.25]), logits)
    assert mixed.item() == pytest.approx(0.125 + value.item() / 2, rel=1e-6)


@pytest.mark.parametrize("far", [10.0, 1e3, 1e5, 1e7, -1e7, 1e29])
@pytest.mark.parametrize("kind", KINDS, ids=repr)
def test_the_native_kernels_take_far_float32_logits_on_either_side(kind, far):
    generator = torch.Generator().manual_seed(1)
    near = torch.randn(3, 50, generator=generator)
    moved = (near + torch.randn(3, 50, generator=generator) + far).float()
    for p, q in ((near, moved), (moved, near)):
        if not native.serves(kind, p, q):
            pytest.skip("the native kernels are not built")
        ours = native.value_and_gradient(RowDivergence(kind), p, q, None, wanted=(True, True))
        for number, true in zip(ours, found(kind, p.double(), q.double()), strict=True):
            torch.testing.assert_close(number.double(), true, rtol=2e-5, atol=2e-6)
