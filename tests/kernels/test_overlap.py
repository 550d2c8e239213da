"""Overlapping memory, against the addresses of every element."""

from __future__ import annotations

import itertools

import pytest
import torch

from kullback.kernels.overlap import is_expanded, may_overlap, may_overlap_itself


def addresses(x):
    size = x.element_size()
    return [
        x.data_ptr() + size * sum(i * stride for i, stride in zip(index, x.stride(), strict=True))
        for index in itertools.product(*map(range, x.shape))
    ]


def elements(x):
    return set(addresses(x))


MEMORY = torch.zeros(4, 12)
VIEWS = [
    MEMORY,
    MEMORY.T,
    MEMORY[:, :6],
    MEMORY[:, 6:],
    MEMORY[:, 5:8],
    MEMORY[1:],
    MEMORY[:1],
    MEMORY[:, ::2],
    MEMORY[:0],
    MEMORY.view(-1)[3:40].unfold(0, 5, 2),
    MEMORY[0, :1].expand(3, 4),
    MEMORY.view(2, 2, 12)[..., 7:],
    torch.zeros(4, 12),
]


@pytest.mark.parametrize("x", VIEWS, ids=range(len(VIEWS)))
def test_what_overlaps_itself_is_found(x):
    overlaps = len(elements(x)) < len(addresses(x))
    assert may_overlap_itself(x) == overlaps
    assert is_expanded(x) <= overlaps


@pytest.mark.parametrize("pair", list(itertools.combinations(range(len(VIEWS)), 2)), ids=str)
def test_what_two_share_is_found(pair):
    a, b = (VIEWS[i] for i in pair)
    shared = bool(elements(a) & elements(b))
    assert may_overlap(a, b) == may_overlap(b, a)
    assert may_overlap(a, b) >= shared


def test_columns_of_one_matrix_are_told_apart():
    assert not may_overlap(MEMORY[:, :6], MEMORY[:, 6:])
    assert not may_overlap(MEMORY.view(2, 2, 12)[..., 7:], MEMORY[:, :7])
    assert not may_overlap(MEMORY[:2], MEMORY[2:])
