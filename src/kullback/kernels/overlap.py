"""Functions that detect tensors that overlap in memory, so that writing to one element may change another."""

from __future__ import annotations

from torch import Tensor


def is_expanded(x: Tensor) -> bool:
    """Return whether the elements along a dimension of `x` share the same memory, as after `torch.expand`."""
    return any(stride == 0 and size > 1 for stride, size in zip(x.stride(), x.shape, strict=True))


def may_overlap_itself(x: Tensor) -> bool:
    """Return whether two elements of `x` may share memory. The result False is certain; the result True is not."""
    last = 0  # the largest offset of an element along the dimensions so far
    for stride, size in sorted(zip(x.stride(), x.shape, strict=True)):
        if size > 1:
            if stride <= last:
                return True
            last += stride * (size - 1)
    return False


def may_overlap(a: Tensor, b: Tensor) -> bool:
    """Return whether elements of `a` and `b` may share memory. The result False is certain; the result True is not."""
    if a.device != b.device or a.numel() == 0 or b.numel() == 0:
        return False
    (start_a, stop_a), (start_b, stop_b) = _bytes_of(a), _bytes_of(b)
    if stop_a <= start_b or stop_b <= start_a:
        return False
    # Two column ranges of one matrix may span overlapping addresses although they share no element. The ranges of the
    # columns are therefore compared too.
    step_a, step_b = _row_step(a), _row_step(b)
    if step_a is None or step_a != step_b:
        return True
    offset = (start_b - start_a) % step_a
    width_a, width_b = (x.shape[-1] * x.element_size() for x in (a, b))
    return offset < width_a or offset + width_b > step_a


def _bytes_of(x: Tensor) -> tuple[int, int]:
    """Return the address of the first byte of `x`, and the address after the last byte."""
    last = sum(stride * (size - 1) for stride, size in zip(x.stride(), x.shape, strict=True))
    return x.data_ptr(), x.data_ptr() + (last + 1) * x.element_size()


def _row_step(x: Tensor) -> int | None:
    """Return the bytes between consecutive rows, or None unless rows are contiguous and equally spaced."""
    if x.ndim < 2 or (x.shape[-1] > 1 and x.stride(-1) != 1) or x.stride(-2) < x.shape[-1]:
        return None
    for i in range(x.ndim - 2):
        if x.stride(i) != x.stride(i + 1) * x.shape[i + 1]:
            return None
    return x.stride(-2) * x.element_size()
