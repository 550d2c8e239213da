"""Derivatives of compiled losses: a second derivative is right or refused, never that of a constant gradient."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.distributions as d
from torch import Tensor

import kullback
from kullback import Divergence, Jeffreys, JensenShannon, Logits, Probs, ReverseKL, SkewKL
from kullback.functional import SampledTail, TopK, distillation_loss, kl_div, linear_distillation_loss
from kullback.nn import DistillationLoss, KLDivLoss

Loss = Callable[[Tensor, Tensor], Tensor]
pytestmark = pytest.mark.heavy

DRAW = torch.Generator().manual_seed(3)
STUDENT, TEACHER = (torch.randn(3, 5, generator=DRAW, dtype=torch.float64) for _ in range(2))
HEAD_P, HEAD_Q = (torch.randn(4, 5, generator=DRAW, dtype=torch.float64) for _ in range(2))
TOP = torch.tensor([[0, 3], [1, 2], [4, 0]])
LABELS = torch.tensor([0, 3, 1])
MODULE, TWIN = DistillationLoss(), KLDivLoss(reduction="batchmean")


@pytest.fixture(autouse=True)
def _reset() -> Iterator[None]:
    torch.compiler.reset()
    yield
    torch.compiler.reset()


def kl(p: Tensor, q: Tensor) -> Tensor:
    """KL of each row of probabilities, the textbook sum."""
    return (p * (p.log() - q.log())).sum(-1)


def of_probs(formula: Callable[[Tensor, Tensor], Tensor]) -> Loss:
    """The mean over rows of a formula of the teacher's and the student's probabilities."""
    return lambda s, t: formula(t.softmax(-1), s.softmax(-1)).mean()


def kept(x: Tensor) -> Tensor:
    """The probabilities of the top classes, and of all others as one class."""
    top = x.softmax(-1).gather(-1, TOP)
    return torch.cat([top, 1 - top.sum(-1, keepdim=True)], -1)


def of_top(s: Tensor, t: Tensor, **options: Any) -> Tensor:
    teacher = TopK(TOP, t.log_softmax(-1).gather(-1, TOP))
    return distillation_loss(student=s, teacher=teacher, **options)


def of_sampled(s: Tensor, t: Tensor) -> Tensor:
    logs = t.log_softmax(-1)
    others = torch.tensor([[1, 2, 4], [0, 3, 4], [1, 2, 3]])
    tail = logs.gather(-1, others)
    teacher = SampledTail(TopK(TOP, logs.gather(-1, TOP)), others, tail, tail.logsumexp(-1), validate=False)
    return distillation_loss(student=s, teacher=teacher) + (t**3).sum()


def of_head(s: Tensor, t: Tensor, **options: Any) -> Tensor:
    return linear_distillation_loss(
        student=s[:, :4], student_weight=HEAD_Q.T, teacher=t[:, :4], teacher_weight=HEAD_P.T, **options
    )


def mixed(p: Tensor, q: Tensor, share: float) -> Tensor:
    return share * p + (1 - share) * q


def distilled(**options: Any) -> Loss:
    return lambda s, t: distillation_loss(student=s, teacher=t, **options)


FORMULAS: dict[Divergence, Callable[[Tensor, Tensor], Tensor]] = {
    ReverseKL(): lambda p, q: kl(q, p),
    Jeffreys(): lambda p, q: kl(p, q) + kl(q, p),
    JensenShannon(0.3): lambda p, q: 0.3 * kl(p, mixed(p, q, 0.3)) + 0.7 * kl(q, mixed(p, q, 0.3)),
    SkewKL(0.2): lambda p, q: kl(p, mixed(p, q, 0.2)),
}
LOSSES: dict[str, tuple[Loss, Loss]] = {
    "total": (distilled(), of_probs(kl)),
    "temperature": (distilled(temperature=2.0), lambda s, t: of_probs(kl)(s / 2, t / 2)),
    "mask": (
        distilled(mask=torch.tensor([True, False, True])),
        lambda s, t: of_probs(kl)(s[::2], t[::2]),
    ),
    "rows": (lambda s, t: distilled(reduction="none")(s, t).mean(), of_probs(kl)),
    "labels": (
        distilled(labels=LABELS, label_weight=0.3),
        lambda s, t: 0.7 * of_probs(kl)(s, t) + 0.3 * torch.nn.functional.cross_entropy(s, LABELS),
    ),
    "module": (lambda s, t: MODULE(student=s, teacher=t), of_probs(kl)),
    "kl_div": (
        lambda s, t: kl_div(s.log_softmax(-1), t.softmax(-1), reduction="batchmean"),
        of_probs(kl),
    ),
    "KLDivLoss": (lambda s, t: TWIN(s.log_softmax(-1), t.softmax(-1)), of_probs(kl)),
    "head": (of_head, lambda s, t: of_probs(kl)(s[:, :4] @ HEAD_Q, t[:, :4] @ HEAD_P)),
    "TopK": (of_top, lambda s, t: kl(kept(t), kept(s)).mean()),
    "TopK, reverse": (
        lambda s, t: of_top(s, t, kind=ReverseKL()),
        lambda s, t: kl(kept(s), kept(t)).mean(),
    ),
    "Logits": (lambda s, t: kullback.kl_divergence(Logits(t), Logits(s)).mean(), of_probs(kl)),
    "Probs": (
        lambda s, t: kullback.kl_divergence(Probs(t.softmax(-1)), Probs(s.softmax(-1))).mean(),
        of_probs(kl),
    ),
    "Categorical": (
        lambda s, t: kullback.kl_divergence(d.Categorical(logits=t), d.Categorical(logits=s)).mean(),
        of_probs(kl),
    ),
    "JS of Categorical": (
        lambda s, t: kullback.divergence(
            d.Categorical(logits=t), d.Categorical(logits=s), JensenShannon(0.3)
        ).mean(),
        of_probs(FORMULAS[JensenShannon(0.3)]),
    ),
    **{f"total {kind}": (distilled(kind=kind), of_probs(formula)) for kind, formula in FORMULAS.items()},
}


def second_derivatives(loss: Loss, s: Tensor, t: Tensor) -> tuple[Tensor, ...]:
    """The gradient of the squared norm of the gradient."""
    first = torch.autograd.grad(loss(s, t), (s, t), create_graph=True)
    return torch.autograd.grad(torch.stack([(x**2).sum() for x in first]).sum(), (s, t))


def inside(loss: Loss) -> Callable[[Tensor, Tensor], tuple[Tensor, ...]]:
    """`second_derivatives` by torch.func, to be compiled together with the loss."""

    def penalty(s: Tensor, t: Tensor) -> Tensor:
        first = torch.func.grad(loss, argnums=(0, 1))(s, t)
        return torch.stack([(x**2).sum() for x in first]).sum()

    return torch.func.grad(penalty, argnums=(0, 1))


def leaves() -> list[Tensor]:
    return [x.clone().requires_grad_() for x in (STUDENT, TEACHER)]


def assert_same(got: tuple[Tensor, ...], want: tuple[Tensor, ...], name: str) -> None:
    for x, y in zip(got, want, strict=True):
        torch.testing.assert_close(x, y, rtol=1e-8, atol=1e-11, msg=lambda m: f"{name}: {m}")


def test_second_derivatives_taken_inside_of_a_graph_are_right() -> None:
    for name, (loss, formula) in LOSSES.items():
        torch.compiler.reset()
        got = torch.compile(inside(loss), fullgraph=True, backend="eager")(STUDENT, TEACHER)
        assert_same(got, second_derivatives(formula, *leaves()), name)


def test_second_derivatives_of_a_graph_are_right_or_refused() -> None:
    """A total saves its gradient in the forward pass, and its second derivative is refused in a sentence."""
    refused: list[str] = []
    for name, (loss, formula) in LOSSES.items():
        torch.compiler.reset()
        compiled = torch.compile(loss, fullgraph=True, backend="eager")
        try:
            got = second_derivatives(compiled, *leaves())
        except kullback.errors.ArgumentValueError as error:
            assert "wanted only first derivatives of the loss" in str(error), name  # noqa: PT017
            refused.append(name)
        else:
            assert_same(got, second_derivatives(formula, *leaves()), name)
    assert set(refused) <= {
        name for name in LOSSES if name.split()[0] in ("total", "temperature", "mask", "labels", "module")
    }
    # The message names these remedies.
    loss, formula = LOSSES["total"]
    assert_same(second_derivatives(loss, *leaves()), second_derivatives(formula, *leaves()), "outside")
    loss, formula = LOSSES["rows"]
    got = second_derivatives(torch.compile(loss, backend="eager"), *leaves())
    assert_same(got, second_derivatives(formula, *leaves()), "rows")


@pytest.mark.filterwarnings(
    "ignore:The .grad attribute"
)  # torch's, of a graph that reads a tensor in between
def test_second_derivatives_of_a_graph_with_a_compiled_backward_pass_are_refused() -> None:
    """torch compiles no second backward pass. A gradient that it finds no path through is None, without an error."""
    for name in ("total", "labels", "rows", f"total {ReverseKL()}"):
        loss = LOSSES[name][0]
        torch.compiler.reset()
        compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")
        with pytest.raises(RuntimeError, match="does not currently support double backward"):
            second_derivatives(compiled, *leaves())


def test_second_derivatives_of_a_sampled_tail_are_those_of_eager_code() -> None:
    want = second_derivatives(of_sampled, *leaves())
    got = torch.compile(inside(of_sampled), fullgraph=True, backend="eager")(STUDENT, TEACHER)
    assert_same(got, want, "inside")
    got = second_derivatives(torch.compile(of_sampled, fullgraph=True, backend="eager"), *leaves())
    assert_same(got, want, "eager")


def test_first_derivatives_taken_inside_of_a_graph_are_right_at_the_edges() -> None:
    """-inf on one side and on both, an infinite value, and NaN in an excluded row."""
    inf, nan = math.inf, math.nan
    s = torch.tensor(
        [[0.0, 1, -inf, 2], [0, -inf, 1, 0.2], [1, nan, 0, 0], [0, 0, 0, 1]], dtype=torch.float64
    )
    t = torch.tensor(
        [[0.0, 1, -inf, 2.5], [0, 1, 1, 0.2], [1, 2, 0, 0], [-inf, 0, 0, 1]], dtype=torch.float64
    )
    mask = torch.tensor([True, True, False, True])
    for kind in (kullback.KL(), Jeffreys(), JensenShannon(0.3), kullback.Renyi(2.0)):
        for reduction in ("none", "sum"):

            def gradients(s: Tensor, t: Tensor, kind: Any = kind, reduction: Any = reduction) -> Any:
                loss = distilled(kind=kind, mask=mask, reduction=reduction)
                value, pull = torch.func.vjp(loss, s, t)
                return value, *pull(torch.ones_like(value))

            torch.compiler.reset()
            got = torch.compile(gradients, fullgraph=True, backend="eager")(s, t)
            eager = [x.clone().requires_grad_() for x in (s, t)]
            value = distilled(kind=kind, mask=mask, reduction=reduction)(*eager)
            want = (value, *torch.autograd.grad(value.sum(), eager))
            assert_same(got, want, f"{kind}, {reduction}")


def test_a_gradient_of_a_compiled_total_is_unchanged() -> None:
    loss, formula = LOSSES["total"]
    for backend in ("eager", "aot_eager"):
        torch.compiler.reset()
        s, t = leaves()
        got = torch.autograd.grad(torch.compile(loss, fullgraph=True, backend=backend)(s, t), (s, t))
        assert_same(got, torch.autograd.grad(formula(s, t), (s, t)), backend)
