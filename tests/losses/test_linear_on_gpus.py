"""Heads on GPUs: which products they ask torch for, and where they wait for the device. No GPU is needed."""

from __future__ import annotations

from typing import Any
from unittest import mock

import pytest
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from kullback import KL, ChiSquared, Divergence, JensenShannon
from kullback.functional import distillation_loss, linear_distillation_loss
from kullback.losses import head


class FloatProducts(TorchFunctionMode):
    """Multiply half-precision matrices into float32 on the CPU, as torch does on GPUs, and record the calls."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[str] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func not in (torch.mm, torch.addmm) or "out_dtype" not in kwargs:
            return func(*args, **kwargs)
        *before, a, b = args
        out = kwargs.get("out")
        self.calls.append(f"{func.__name__}{'' if out is None else ' into out'}")
        assert a.dtype == b.dtype == torch.bfloat16
        assert kwargs["out_dtype"] == torch.float32
        product = (a.double() @ b.double() + sum(x.double() for x in before)).float()
        return product if out is None else out.copy_(product)


class Waits(TorchDispatchMode):
    """Count the operations that read values of tensors, for which a GPU would have to finish."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        self.count += name in {
            "_local_scalar_dense",
            "item",
            "nonzero",
            "equal",
            "is_nonzero",
            "masked_select",
        }
        return func(*args, **(kwargs or {}))


def head_tensors(positions: int = 40, classes: int = 33, size: int = 8) -> dict[str, Tensor]:
    draw = torch.Generator().manual_seed(0)
    shapes = {
        "student": (positions, size),
        "student_weight": (classes, size),
        "teacher": (positions, size),
        "teacher_weight": (classes, size),
    }
    return {name: torch.randn(shape, generator=draw).bfloat16() for name, shape in shapes.items()}


def test_logits_and_the_weights_gradient_are_written_in_float32_without_tiles() -> None:
    tensors = head_tensors()
    trained = [tensors[name].requires_grad_() for name in ("student", "student_weight")]
    row_bytes = 2 * 33 * 4
    with (
        mock.patch.object(head, "_sums_in_float32", lambda x: x.dtype.itemsize < 4),
        mock.patch.object(head, "_is_slow_to_multiply", return_value=False),
        mock.patch.object(head, "_tiles", side_effect=AssertionError("a product in tiles")),
        FloatProducts() as products,
    ):
        loss = linear_distillation_loss(**tensors, kind=KL(), float32_logits=True, chunk_bytes=2 * row_bytes)
        gradients = torch.autograd.grad(loss, trained)
    # Each of twenty chunks writes the logits of both heads, and adds to the weight's gradient, but for the first.
    assert products.calls.count("mm into out") == 2 * 20 + 1
    assert products.calls.count("addmm into out") == 19

    exact = [x.detach().double().requires_grad_() for x in trained]
    wide = distillation_loss(
        student=exact[0] @ exact[1].T,
        teacher=tensors["teacher"].double() @ tensors["teacher_weight"].double().T,
        kind=KL(),
    )
    torch.testing.assert_close(loss.double(), wide.detach(), rtol=1e-6, atol=0)
    for mine, true in zip(gradients, torch.autograd.grad(wide, exact), strict=True):
        # The gradients of the logits are rounded to bfloat16 before their product.
        assert (mine.double() - true).norm() <= 2**-8 * true.norm()


@pytest.mark.parametrize(("kind", "waits"), [(KL(), 0), (JensenShannon(), 0), (ChiSquared(), 1)], ids=repr)
def test_a_head_waits_for_the_device_once_if_its_derivatives_may_overflow_and_else_never(
    kind: Divergence, waits: int
) -> None:
    tensors = head_tensors()
    for x in tensors.values():
        x.requires_grad_()
    plain, counts = head.sweep, []

    def counted(*args: Any) -> Any:
        with Waits() as mode:
            result = plain(*args)
        counts.append(mode.count)
        return result

    with mock.patch.object(head, "sweep", counted):
        linear_distillation_loss(**tensors, kind=kind).backward()
    assert counts == [waits]
