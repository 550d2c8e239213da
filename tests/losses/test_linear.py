"""The fused head: values and gradients against whole float64 logits, chunks, reductions, precision, memory, errors."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from kullback import (
    KL,
    Alpha,
    ChiSquared,
    Divergence,
    JensenShannon,
    Renyi,
    ReverseKL,
    TotalVariation,
    errors,
)
from kullback.functional import TopK, distillation_loss, linear_distillation_loss
from kullback.losses import head
from kullback.nn import LinearDistillationLoss
from tests.refusals import refused

NAMES = ("student", "student_weight", "student_bias", "teacher", "teacher_weight", "teacher_bias")
POSITIONS, CLASSES = 11, 37
_KL = KL()
VALUE, TYPE = errors.ArgumentValueError, errors.ArgumentTypeError
CHUNKS = pytest.mark.parametrize("chunk_bytes", [1, 3000, None])
MASK = torch.tensor([True, False, True, True, False, True, True, True, False, True, True])
WEIGHT = torch.linspace(0, 2, POSITIONS, dtype=torch.float64)


def tensors(
    dtype: torch.dtype = torch.float64, positions: int = POSITIONS, classes: int = CLASSES
) -> dict[str, Tensor]:
    """Two heads of different hidden sizes, all of it requiring a gradient."""
    shapes = [(positions, 5), (classes, 5), (classes,), (positions, 8), (classes, 8), (classes,)]
    return {
        name: torch.randn(shape, dtype=torch.float64).to(dtype).requires_grad_()
        for name, shape in zip(NAMES, shapes, strict=True)
    }


def textbook(kind: Divergence, p: Tensor, q: Tensor) -> Tensor:
    """The definition of each divergence, by torch in float64."""
    if isinstance(kind, KL):
        return (p * (p / q).log()).sum(-1)
    if isinstance(kind, ReverseKL):
        return (q * (q / p).log()).sum(-1)
    if isinstance(kind, JensenShannon):
        middle = (p + q) / 2
        return ((p * (p / middle).log()).sum(-1) + (q * (q / middle).log()).sum(-1)) / 2
    if isinstance(kind, TotalVariation):
        return (p - q).abs().sum(-1) / 2
    assert isinstance(kind, Renyi)
    return (p**kind.alpha * q ** (1 - kind.alpha)).sum(-1).log() / (kind.alpha - 1)


def whole(
    of: dict[str, Tensor],
    kind: Divergence = _KL,
    temperature: float = 1.0,
    softcap: tuple[float | None, float | None] = (None, None),
    logit_scale: tuple[float, float] = (1.0, 1.0),
) -> Tensor:
    """The divergence of each position, from whole logits."""
    sides = []
    for side, cap, scale in zip(("student", "teacher"), softcap, logit_scale, strict=True):
        logits = of[side].double() @ of[f"{side}_weight"].double().mT
        if f"{side}_bias" in of:
            logits = logits + of[f"{side}_bias"].double()
        logits = logits * scale
        if cap is not None:
            logits = cap * (logits / cap).tanh()
        sides.append((logits / temperature).softmax(-1))
    return textbook(kind, sides[1], sides[0])


def assert_same(got: Tensor, want: Tensor, of: dict[str, Tensor], **tolerance: float) -> None:
    """Compare values, and the gradients by all that require one."""
    by = [x for x in of.values() if x.requires_grad]
    torch.testing.assert_close(got, want.to(got.dtype), **tolerance)
    pairs = zip(torch.autograd.grad(got, by), torch.autograd.grad(want, by), strict=True)
    for (ours, theirs), name in zip(pairs, of, strict=False):
        torch.testing.assert_close(ours, theirs, **tolerance, msg=lambda text, name=name: f"{name}: {text}")


@CHUNKS
@pytest.mark.parametrize(
    "kind", [KL(), ReverseKL(), JensenShannon(), TotalVariation(), Renyi(alpha=0.5)], ids=repr
)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_values_and_all_six_gradients_are_those_of_whole_logits(
    kind: Divergence, chunk_bytes: int | None, dtype: torch.dtype
) -> None:
    of = tensors(dtype)
    got = linear_distillation_loss(**of, kind=kind, temperature=1.5, chunk_bytes=chunk_bytes)
    tolerance = {"rtol": 1e-9, "atol": 1e-11} if dtype == torch.float64 else {"rtol": 1e-4, "atol": 1e-6}
    assert_same(got, whole(of, kind, 1.5).mean(), of, **tolerance)


@CHUNKS
@pytest.mark.parametrize("softcap", [None, 2.0, (3.0, None), (None, 2.5)], ids=repr)
@pytest.mark.parametrize("logit_scale", [1.0, 0.5, (0.25, 2.0)], ids=repr)
@pytest.mark.parametrize("has_bias", [False, True])
def test_heads_cap_and_scale_their_logits(
    softcap: Any, logit_scale: Any, has_bias: bool, chunk_bytes: int | None
) -> None:
    of = {name: x for name, x in tensors().items() if has_bias or "bias" not in name}
    got = linear_distillation_loss(**of, softcap=softcap, logit_scale=logit_scale, chunk_bytes=chunk_bytes)
    each = [x if isinstance(x, tuple) else (x, x) for x in (softcap, logit_scale)]
    want = whole(of, softcap=each[0], logit_scale=each[1]).mean()
    assert_same(got, want, of, rtol=1e-9, atol=1e-11)


@CHUNKS
@pytest.mark.parametrize("reduction", ["none", "sum", "mean", "batchmean"])
@pytest.mark.parametrize("how", ["all", "mask", "weight", "labels", "mask and weight"])
def test_reductions_and_what_counts(reduction: str, how: str, chunk_bytes: int | None) -> None:
    of = tensors()
    given, counts = {
        "all": ({}, torch.ones(POSITIONS)),
        "mask": ({"mask": MASK}, MASK.double()),
        "weight": ({"weight": WEIGHT}, WEIGHT),
        "labels": ({"labels": torch.where(MASK, 3, -100)}, MASK.double()),
        "mask and weight": ({"mask": MASK, "weight": WEIGHT}, MASK * WEIGHT),
    }[how]
    values = whole(of) * counts * 4
    want = {
        "none": values,
        "sum": values.sum(),
        "mean": values.sum() / counts.sum(),
        "batchmean": values.sum() / POSITIONS,
    }[reduction]
    got = linear_distillation_loss(
        **of, **given, reduction=reduction, chunk_bytes=chunk_bytes, temperature_squared=True, temperature=1.0
    )
    factors = torch.linspace(-1, 3, POSITIONS, dtype=torch.float64) if reduction == "none" else 3.0
    assert_same((got * factors).sum() * 4, (want * factors).sum(), of, rtol=1e-9, atol=1e-11)


def test_temperature_squared_multiplies() -> None:
    of = tensors()
    got = linear_distillation_loss(**of, temperature=3.0, temperature_squared=True)
    torch.testing.assert_close(got, whole(of, temperature=3.0).mean() * 9)


@pytest.mark.parametrize("reduction", ["none", "mean"])
@pytest.mark.parametrize("garbage", [math.nan, math.inf])
def test_positions_that_do_not_count_change_nothing(reduction: str, garbage: float) -> None:
    of = tensors()
    spoilt = {name: x.detach().clone() for name, x in of.items()}
    for name in ("student", "teacher"):
        spoilt[name][~MASK] = garbage
    for x in spoilt.values():
        x.requires_grad_()
    losses = [linear_distillation_loss(**x, mask=MASK, reduction=reduction).sum() for x in (of, spoilt)]
    torch.testing.assert_close(losses[0], losses[1], rtol=0, atol=0)
    for losses_of, graph in ((losses, False), (losses, True)):
        grads = [
            torch.autograd.grad(loss, list(x.values()), retain_graph=True, create_graph=graph)
            for loss, x in zip(losses_of, (of, spoilt), strict=True)
        ]
        torch.testing.assert_close(grads[0], grads[1], rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("reduction", ["none", "sum", "mean", "batchmean"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
@pytest.mark.filterwarnings("ignore:.*the mask is False everywhere")
def test_nothing_counted_gives_zero_with_zero_gradient(reduction: str, dtype: torch.dtype) -> None:
    of = tensors(dtype)
    mask = torch.zeros(POSITIONS, dtype=torch.bool)
    loss = linear_distillation_loss(**of, mask=mask, reduction=reduction)
    assert (loss == 0).all()
    loss.sum().backward()
    assert all(x.grad is not None and (x.grad == 0).all() for x in of.values())


def test_no_positions_at_all() -> None:
    of = tensors(positions=0)
    loss = linear_distillation_loss(**of)
    loss.backward()
    assert loss == 0
    assert all(x.grad is not None and (x.grad == 0).all() for x in of.values())


@pytest.mark.parametrize("as_tensor", [False, True])
def test_accumulated_micro_batches_give_the_gradient_of_the_whole(as_tensor: bool) -> None:
    of = tensors()
    count = MASK.sum().double()
    whole_loss = linear_distillation_loss(**of, mask=MASK)
    want = torch.autograd.grad(whole_loss, list(of.values()))
    total = torch.zeros((), dtype=torch.float64)
    for part in (slice(0, 4), slice(4, None)):
        batch = {name: x[part] if name in ("student", "teacher") else x for name, x in of.items()}
        normalizer = count if as_tensor else count.item()
        loss = linear_distillation_loss(**batch, mask=MASK[part], normalizer=normalizer)
        loss.backward()
        total += loss.detach()
    torch.testing.assert_close(total, whole_loss)
    torch.testing.assert_close([x.grad for x in of.values()], list(want))


@CHUNKS
@pytest.mark.parametrize("learned", [*([name] for name in NAMES), ["student", "teacher_bias"], []], ids=repr)
@pytest.mark.parametrize("reduction", ["none", "mean"])
def test_only_what_requires_a_gradient_gets_one(
    learned: list[str], reduction: str, chunk_bytes: int | None
) -> None:
    of = {name: x.detach().requires_grad_(name in learned) for name, x in tensors().items()}
    loss = linear_distillation_loss(**of, reduction=reduction, softcap=5.0, chunk_bytes=chunk_bytes).mean()
    assert loss.requires_grad == bool(learned)
    if learned:
        assert_same(loss, whole(of, softcap=(5.0, 5.0)).mean(), of, rtol=1e-9, atol=1e-11)


def test_one_head_for_both_sides_gets_both_gradients() -> None:
    of = tensors()
    of["teacher"], of["teacher_weight"] = of["teacher"].detach()[:, :5].requires_grad_(), of["student_weight"]
    shared = {name: x for name, x in of.items() if name != "teacher_weight"}
    loss = linear_distillation_loss(**of)
    assert_same(loss, whole(of).mean(), shared, rtol=1e-9, atol=1e-11)
    twice = torch.autograd.grad(linear_distillation_loss(**of), of["student_weight"], create_graph=True)
    torch.testing.assert_close(twice, torch.autograd.grad(whole(of).mean(), of["student_weight"]))


@pytest.mark.parametrize("float32_logits", [False, True])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("slow", [False, True])
@pytest.mark.parametrize(
    "chunk_bytes", [300, None]
)  # 300 bytes make one row a chunk, more chunks than half adds up
def test_half_precision_is_as_exact_as_its_logits(
    dtype: torch.dtype,
    float32_logits: bool,
    slow: bool,
    chunk_bytes: int | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(head, "_is_slow_to_multiply", lambda weight: slow and weight.dtype.itemsize < 4)
    for name in ("_TILE_BYTES", "_TILE_BYTES_OF_SEVERAL_THREADS"):
        monkeypatch.setattr(head, name, 7 * 5 * 4)
    of = tensors(dtype, positions=40)
    got = linear_distillation_loss(**of, float32_logits=float32_logits, chunk_bytes=chunk_bytes)
    want = whole(of).mean()
    unit = torch.finfo(dtype).eps
    assert got.dtype == torch.float32
    assert abs(got.item() - want.item()) <= (1e-5 if float32_logits else unit) * want.item()
    grads = zip(*(torch.autograd.grad(x, list(of.values())) for x in (got, want)), strict=True)
    for ours, theirs in grads:
        assert ours.dtype == dtype
        assert (ours - theirs).double().norm() <= 3 * unit * theirs.double().norm()


def test_mixed_dtypes_of_the_sides() -> None:
    of = tensors()
    of = {
        name: x.to(torch.bfloat16 if "teacher" in name else torch.float32).detach() for name, x in of.items()
    }
    got = linear_distillation_loss(**of)
    assert got.dtype == torch.float32
    torch.testing.assert_close(got.double(), whole(of).mean(), rtol=1e-2, atol=0)


class Largest(TorchDispatchMode):
    """Watch how many elements any tensor has that an operation gives."""

    def __init__(self) -> None:
        super().__init__()
        self.elements = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = func(*args, **(kwargs or {}))
        for x in torch.utils._pytree.tree_leaves(given):
            if isinstance(x, Tensor):
                self.elements = max(self.elements, x.numel())
        return given


class Products(TorchDispatchMode):
    """Count the matrix products."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += func._schema.name in ("aten::mm", "aten::addmm", "aten::addmm_")
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(("threads", "chunks"), [(1, 4), (2, 2)])
def test_several_threads_share_few_large_products(
    threads: int, chunks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They wait for one another in and after each: a chunk is as large as on an accelerator, and has no tiles."""
    monkeypatch.setattr(head, "_MAX_BYTES", 0)
    monkeypatch.setattr(head, "_TILE_BYTES", 8 * 4 * 10)
    of = {
        name: x.detach() for name, x in tensors(torch.float32, positions=1024).items() if "bias" not in name
    }
    of["student"].requires_grad_()
    of["student_weight"].requires_grad_()
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        with Products() as watch:
            loss = linear_distillation_loss(**of)
        by = torch.autograd.grad(loss, [of["student"], of["student_weight"]])
    finally:
        torch.set_num_threads(before)
    tiles = 3 + 4 if threads == 1 else 2  # of heads with 5 and 8 columns, 10 KiB
    assert watch.count == chunks * (tiles + 2)
    wanted = whole(of).mean()
    torch.testing.assert_close(loss, wanted.float())
    torch.testing.assert_close(by, torch.autograd.grad(wanted, [of["student"], of["student_weight"]]))


@pytest.mark.parametrize("reduction", ["none", "mean"])
@pytest.mark.parametrize("mask", [None, torch.arange(64) % 3 > 0])
def test_logits_are_never_whole(reduction: str, mask: Tensor | None) -> None:
    of = tensors(torch.float32, positions=64, classes=300)
    with Largest() as watch:
        linear_distillation_loss(
            **of, reduction=reduction, mask=mask, softcap=9.0, chunk_bytes=4 * 4 * 300 * 4
        ).mean().backward()
    assert watch.elements == 300 * 8  # the larger head; the chunks are of 4 rows
    with Largest() as watch:
        linear_distillation_loss(**of, chunk_bytes=1 << 30)
    assert watch.elements == 64 * 300  # there is no reason to chunk


def test_frozen_heads_skip_their_products() -> None:
    of = {name: x.detach() for name, x in tensors(torch.float32).items()}
    counts = []
    for learned in ([], ["student"], ["student", "student_weight"]):
        for name, x in of.items():
            x.requires_grad_(name in learned)
        with torch.profiler.profile(acc_events=True) as profile:  # torch 2.11 warns without
            linear_distillation_loss(**of)
        names = [event.name for event in profile.events()]
        counts.append(sum(name in ("aten::mm", "aten::addmm_") for name in names))
    assert counts == [2, 3, 4]


@pytest.mark.parametrize("chunk_bytes", [None, 1])
@pytest.mark.parametrize("route", ["sum", "none", "differentiated", "compiled", "stored"])
@pytest.mark.parametrize("kind", [ChiSquared(), Alpha(4.0), Alpha(-1.5)], ids=repr)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_gradients_beyond_the_range_of_the_logits_are_rounded_and_never_nan(
    dtype: torch.dtype, kind: Divergence, route: str, chunk_bytes: int | None
) -> None:
    """Those of the same numbers in float64, infinite where these are too large."""
    if route == "compiled" and (chunk_bytes, dtype, kind) != (None, torch.float32, ChiSquared()):
        return  # which takes its time, and makes no chunks
    of = tensors(dtype)
    with torch.no_grad():
        for name in ("student", "teacher"):  # some positions far apart, some near
            of[name] *= torch.linspace(0.2, 30, POSITIONS).unsqueeze(-1)

    def gradients(of: dict[str, Tensor]) -> tuple[Tensor, ...]:
        learn, given = list(of.values()), dict(of)
        if route == "stored":
            learn = learn[:3]
            indices = torch.arange(20).expand(POSITIONS, -1)
            log_p = (of["teacher"].double() @ of["teacher_weight"].double().mT).detach().log_softmax(-1)
            given = {name: of[name] for name in NAMES[:3]}
            given["teacher"] = TopK(indices, log_p[:, :20].float().contiguous())  # type: ignore[assignment]
        compute = linear_distillation_loss
        if route == "compiled":
            compute = torch.compile(compute, fullgraph=True, backend="aot_eager")
        reduction = "none" if route == "none" else "sum"
        loss = compute(**given, kind=kind, reduction=reduction, chunk_bytes=chunk_bytes)
        return torch.autograd.grad(loss.sum(), learn, create_graph=route == "differentiated")

    found = gradients(of)
    exact = gradients({name: x.detach().double().requires_grad_() for name, x in of.items()})
    assert any(bool(x.isinf().any()) for x in found)
    for got, want in zip(found, exact, strict=True):
        assert got.dtype == dtype
        assert not got.isnan().any()
        assert (got.isinf() == want.to(dtype).isinf()).all()
        if dtype == torch.float32:
            scale = want.abs().where(got.isfinite(), 0).amax(tuple(range(1, want.ndim)), keepdim=True)
            error = (got.double() - want).abs().where(got.isfinite(), 0)
            assert (error <= 3e-4 * scale + 1e-5).all()


@pytest.mark.parametrize("route", ["chunks", "compiled", "stored", "labels", "beyond float32", "no gradient"])
@pytest.mark.parametrize("reduction", ["none", "mean"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_the_entropy_of_the_student_comes_with_the_loss(
    dtype: torch.dtype, reduction: Any, route: str
) -> None:
    of = tensors(dtype)
    options: dict[str, Any] = {
        "reduction": reduction,
        "temperature": 1.7,
        "softcap": (9.0, None),
        "mask": MASK,
    }
    options["chunk_bytes"] = 2 * CLASSES * 8 * 3
    if route == "labels":
        options |= {"labels": torch.arange(POSITIONS), "label_weight": 0.3}
    elif route == "beyond float32":
        options |= {"kind": ChiSquared(), "logit_scale": (1.0, 90.0)}
    given: dict[str, Any] = dict(of)
    if route == "stored":
        log_probs, indices = torch.randn(POSITIONS, CLASSES).log_softmax(-1).topk(4)
        given = {name: of[name] for name in NAMES[:3]} | {"teacher": TopK(indices, log_probs, "renormalize")}
    with torch.no_grad():
        of["student"][~MASK] = math.nan
    compute = linear_distillation_loss
    if route == "compiled":
        if dtype == torch.float32 or reduction == "none":
            return  # takes its time
        compute = torch.compile(compute, fullgraph=True, backend="aot_eager")
    with torch.set_grad_enabled(route != "no gradient"):
        loss, entropies = compute(**given, **options, return_entropy=True)
        alone = linear_distillation_loss(**given, **options)
    torch.testing.assert_close(loss, alone)
    logits = of["student"].double() @ of["student_weight"].double().T + of["student_bias"].double()
    log_q = (9 * (logits / 9).tanh() / 1.7).log_softmax(-1)
    want = torch.where(MASK, -(log_q.exp() * log_q).sum(-1), 0).detach()
    assert entropies.dtype == loss.dtype
    assert not entropies.requires_grad
    torch.testing.assert_close(
        entropies.double(), want, rtol=0, atol=3e-6 if dtype == torch.float32 else 1e-12
    )
    if route != "no gradient":
        kept = entropies.clone()
        by = [
            torch.autograd.grad(x.sum(), of["student_weight"], retain_graph=True)[0]
            for x in (loss, alone, loss)
        ]
        torch.testing.assert_close(by[0], by[1])
        torch.testing.assert_close(by[0], by[2])
        assert torch.equal(entropies, kept)


def test_a_student_that_is_certain_has_no_entropy_and_the_module_returns_it() -> None:
    student = torch.tensor([[[200.0, 0.0], [0.0, 0.0]]])
    module = LinearDistillationLoss(return_entropy=True)
    loss, entropies = module(
        student=student, student_weight=torch.eye(2), teacher=student, teacher_weight=torch.eye(2)
    )
    assert loss == 0
    torch.testing.assert_close(entropies, torch.tensor([[0.0, math.log(2)]]), rtol=0, atol=1e-6)
    assert "return_entropy=True" in repr(module)
    with refused(TYPE, instead=r"return_entropy="):
        LinearDistillationLoss(return_entropy=1)  # type: ignore[arg-type]


@pytest.mark.parametrize("reduction", ["none", "mean"])
def test_gradcheck(reduction: str) -> None:
    of = tensors(positions=2, classes=3)

    def loss(*values: Tensor) -> Tensor:
        given = dict(zip(NAMES, values, strict=True))
        return linear_distillation_loss(**given, reduction=reduction, softcap=4.0, chunk_bytes=100)

    assert torch.autograd.gradcheck(loss, tuple(of.values()))
    assert torch.autograd.gradgradcheck(loss, tuple(of.values()), check_batched_grad=False, fast_mode=True)


def test_a_second_backward_pass_sweeps_again() -> None:
    of = tensors()
    loss = linear_distillation_loss(**of)
    first, second = (torch.autograd.grad(loss, list(of.values()), retain_graph=True) for _ in range(2))
    torch.testing.assert_close(first, second, rtol=1e-12, atol=1e-14)
    torch.testing.assert_close(torch.autograd.grad(loss * 7, of["student"])[0], first[0] * 7)


@pytest.mark.parametrize("reduction", ["none", "mean"])
def test_a_weight_that_requires_a_gradient_gets_one(reduction: str) -> None:
    of = tensors()
    weight = WEIGHT.clone().requires_grad_()
    got = linear_distillation_loss(**of, weight=weight, reduction=reduction).sum()
    want = (whole(of) * weight).sum() / (weight.sum() if reduction == "mean" else 1)
    ours, theirs = (torch.autograd.grad(x, weight)[0] for x in (got, want))
    torch.testing.assert_close(ours[1:], theirs[1:])  # the first is 0: it does not count


def test_func_and_forward_mode_and_vmap() -> None:
    of = {name: x.detach() for name, x in tensors().items()}

    def ours(student: Tensor) -> Tensor:
        return linear_distillation_loss(**{**of, "student": student})

    def theirs(student: Tensor) -> Tensor:
        return whole({**of, "student": student}).mean()

    x = of["student"]
    torch.testing.assert_close(torch.func.grad(ours)(x), torch.func.grad(theirs)(x))
    stack = torch.stack([x, x + 1])
    torch.testing.assert_close(torch.func.vmap(ours)(stack), torch.func.vmap(theirs)(stack))
    tangent = torch.ones_like(x)
    got, want = (torch.func.jvp(f, (x,), (tangent,)) for f in (ours, theirs))
    torch.testing.assert_close(got, want)


@pytest.mark.heavy
def test_compiles_in_one_graph() -> None:
    of = tensors(torch.float32)
    compiled = torch.compile(linear_distillation_loss, fullgraph=True, backend="aot_eager")
    assert_same(
        compiled(**of, mask=MASK), linear_distillation_loss(**of, mask=MASK), of, rtol=1e-4, atol=1e-6
    )


def test_autocast_makes_the_products_in_its_dtype() -> None:
    of = tensors(torch.float32)
    half = {name: x.detach().bfloat16() for name, x in of.items()}
    with torch.autocast("cpu", torch.bfloat16):
        got = linear_distillation_loss(**of)
    torch.testing.assert_close(got, linear_distillation_loss(**half), rtol=0, atol=0)
    got.backward()
    assert all(x.grad is not None and x.grad.dtype == torch.float32 for x in of.values())


@pytest.mark.parametrize("vocabulary", ["truncate", "mask"])
@pytest.mark.parametrize("more", ["student", "teacher"])
@CHUNKS
def test_vocabularies_of_different_size(vocabulary: Any, more: str, chunk_bytes: int | None) -> None:
    of = tensors()
    for name in NAMES:
        if name.startswith(more) and name != more:
            wider = torch.cat([of[name].detach()] * 2)
            of[name] = wider.requires_grad_()
    logits = [of[s] @ of[f"{s}_weight"].mT + of[f"{s}_bias"] for s in ("student", "teacher")]
    kind = JensenShannon()
    want = distillation_loss(student=logits[0], teacher=logits[1], kind=kind, vocabulary=vocabulary)
    got = linear_distillation_loss(**of, kind=kind, vocabulary=vocabulary, chunk_bytes=chunk_bytes)
    assert_same(got, want, of, rtol=1e-9, atol=1e-11)


def test_leading_dimensions_and_strides_are_kept() -> None:
    of = tensors(torch.float32, positions=12)
    shaped = dict(of)
    for name in ("student", "teacher"):
        shaped[name] = of[name].reshape(4, 3, -1).transpose(0, 1)
    shaped["student_weight"] = of["student_weight"].t().contiguous().t()
    got = linear_distillation_loss(**shaped, reduction="none")
    assert got.shape == (3, 4)
    torch.testing.assert_close(got.t().reshape(-1), whole(of).float(), rtol=1e-4, atol=1e-6)
    assert_same(got.mean(), whole(of).mean(), of, rtol=1e-4, atol=1e-6)


def test_it_is_deterministic() -> None:
    of = tensors(torch.float32)
    runs = []
    for _ in range(2):
        loss = linear_distillation_loss(**of, chunk_bytes=2000)
        runs.append([loss, *torch.autograd.grad(loss, list(of.values()))])
    torch.testing.assert_close(runs[0], runs[1], rtol=0, atol=0)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"student": torch.zeros(POSITIONS, 4)}, VALUE, r"student_weight=\.\.\.\): .*\(classes, 4\)"),
        ({"student": torch.zeros(3, 5)}, VALUE, r"student=.*positions, shape \(11,\); got shape \(3,\)"),
        ({"teacher": [1.0]}, TYPE, r"teacher=.*got list"),
        ({"teacher_weight": torch.zeros(8)}, TYPE, r"teacher_weight=.*shape \(8,\)"),
        ({"student_bias": torch.zeros(3)}, VALUE, r"student_bias=.*\(37,\); got shape \(3,\)"),
        ({"student_weight": torch.zeros(37, 5, dtype=torch.int64)}, TYPE, "student_weight=.*int64"),
        ({"student_weight": torch.zeros(37, 5).half()}, TYPE, "student_weight=.*float32.*float16"),
        ({"teacher_bias": torch.zeros(37).half()}, TYPE, "teacher_bias=.*float32.*float16"),
        ({"teacher_weight": torch.zeros(40, 8), "teacher_bias": None}, VALUE, "student_weight=.*40; got 37"),
        ({"vocabulary": "pad"}, VALUE, "vocabulary=.*'pad'"),
        ({"chunk_bytes": 0}, VALUE, "chunk_bytes=.*got 0"),
        ({"chunk_bytes": 1.5}, VALUE, r"chunk_bytes=.*got 1\.5"),
        ({"softcap": 0.0}, VALUE, r"softcap=.*got 0\.0"),
        ({"logit_scale": (1.0, -1.0)}, VALUE, r"logit_scale=.*-1\.0"),
        ({"logit_scale": (1.0,)}, VALUE, "logit_scale=.*pair"),
        ({"kind": KL}, TYPE, "kind=.*a divergence or the name of one"),
        ({"kind": "kld"}, VALUE, "kind=.*'kld'"),
        ({"temperature": 0.0}, VALUE, "temperature="),
        ({"reduction": "average"}, VALUE, "reduction="),
        ({"reduction": "none", "normalizer": 3.0}, VALUE, "normalizer="),
        ({"mask": torch.ones(3, dtype=torch.bool)}, VALUE, "mask="),
        ({"student": torch.zeros(11, 5, device="meta")}, VALUE, "student_weight=.*on meta.*one on cpu"),
    ],
)  # fmt: skip
def test_bad_arguments_are_named(change: dict[str, Any], error: type[Exception], message: str) -> None:
    of: dict[str, Any] = {name: x.float().detach() for name, x in tensors().items()}
    with pytest.raises(error, match=message) as caught:
        linear_distillation_loss(**{**of, **change})
    assert str(caught.value).startswith("linear_distillation_loss(")


def test_the_remedy_for_several_teachers_is_the_mean_of_their_losses() -> None:
    torch.manual_seed(0)
    student, student_weight = torch.randn(3, 4), torch.randn(5, 4)
    teacher, teacher_weight = [torch.randn(3, 4), torch.randn(3, 6)], [torch.randn(5, 4), torch.randn(5, 6)]
    given: Any = {"student": student, "student_weight": student_weight, "teacher_weight": teacher_weight[0]}
    with refused(TypeError, instead="^sum") as caught:
        linear_distillation_loss(teacher=teacher, **given)
    code = str(caught.value).partition("Write: ")[2].partition(", with a head")[0]
    logits = student @ student_weight.T
    every = [
        distillation_loss(student=logits, teacher=h @ w.T)
        for h, w in zip(teacher, teacher_weight, strict=True)
    ]
    torch.testing.assert_close(eval(code, {**globals(), **locals()}), sum(every) / 2)  # noqa: S307
