"""The checks of `make gpu`: first the most likely faults of GPU code that no GPU has run, then parity with float64.

Each check calls kullback as a user does, on the device of its setting. The truth is a formula in float64 on the CPU.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from functools import partial

import torch
from bench_rows import Layer
from gpu_items import INF, KINDS, Exact, Item, NotHere, Setting, check_near, exact
from torch import Tensor

from kullback.functional import TopK, distillation_loss, linear_distillation_loss
from kullback.generators import KL, Divergence, JensenShannon, TotalVariation

F64, F32, F16, BF16 = torch.float64, torch.float32, torch.float16, torch.bfloat16
VOCABULARIES = (32_000, 50_257, 128_256, 151_936, 262_144)
LAYOUTS = ("contiguous", "transposed", "every second class", "padded rows", "reversed rows' order")
FEW_KINDS = {name: KINDS[name] for name in ("KL", "JS", "total variation")}


def name_of(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def drawn(
    where: Setting, rows: int, classes: int, dtypes: tuple[torch.dtype, torch.dtype], spread: float = 1.0
) -> tuple[Tensor, Tensor]:
    """Logits of P and of Q that differ by `spread`, the same on every device."""
    generator = torch.Generator().manual_seed(classes)
    p = 2 * torch.randn(rows, classes, generator=generator)
    q = p + spread * torch.randn(rows, classes, generator=generator)
    return p.to(dtypes[0]).to(where.device), q.to(dtypes[1]).to(where.device)


def laid_out(x: Tensor, layout: str) -> Tensor:
    """The same numbers with the strides of a layout, in memory of their own."""
    rows, classes = x.shape
    match layout:
        case "transposed":
            result = x.new_empty(classes, rows).T
        case "every second class":
            result = x.new_zeros(rows, 2 * classes)[:, 1::2]
        case "padded rows":
            result = x.new_zeros(rows, classes + 7)[:, 3 : classes + 3]
        case "reversed rows' order":
            result = x.new_empty(2, rows, classes).transpose(0, 1)[:, 1]
        case _:
            result = torch.empty_like(x, memory_format=torch.contiguous_format)
    return result.copy_(x)


def rows_of(
    kind: Divergence, p: Tensor, q: Tensor, weights: Tensor | None = None, temperature: float = 1.0
) -> Exact:
    """The values of kullback's loss, and both gradients of their weighted sum, from the pass for `reduction="none"`."""
    p, q = p.detach().requires_grad_(), q.detach().requires_grad_()
    values = distillation_loss(student=q, teacher=p, kind=kind, temperature=temperature, reduction="none")
    factor = torch.ones_like(values) if weights is None else weights.to(values)
    return Exact(values.detach(), *torch.autograd.grad(values, (p, q), factor))


def total_of(kind: Divergence, p: Tensor, q: Tensor, temperature: float = 1.0) -> Exact:
    """The sum of the values, and both gradients of the sum, from the pass that computes them together."""
    p, q = p.detach().requires_grad_(), q.detach().requires_grad_()
    total = distillation_loss(student=q, teacher=p, kind=kind, temperature=temperature, reduction="sum")
    return Exact(total.detach(), *torch.autograd.grad(total, (p, q)))


def of_student(kind: Divergence, p: Tensor, q: Tensor) -> Tensor:
    """The gradient of the student alone, of the sum of the values."""
    student = q.detach().requires_grad_()
    loss = distillation_loss(student=student, teacher=p, kind=kind, reduction="sum")
    return torch.autograd.grad(loss, student)[0]


def in_place(kind: Divergence, p: Tensor, q: Tensor) -> Tensor:
    """The same gradient, which overwrites `q`."""
    parameter = torch.zeros((), requires_grad=True, device=q.device)
    loss = distillation_loss(
        student=Layer.apply(parameter, q), teacher=p, kind=kind, reduction="sum", inplace_backward=True
    )
    loss.backward()
    return q


def check_rows(kind: Divergence, p: Tensor, q: Tensor, temperature: float = 1.0, what: str = "") -> None:
    """Compare both passes with the formulas, on the logits as their dtypes store them."""
    weights = torch.linspace(-1.5, 2, len(p)).to(p.device)
    dtypes = (p.dtype, q.dtype)
    on_cpu = p.detach().cpu(), q.detach().cpu()
    for factor in (weights, None):
        true, torch_is = (
            exact(kind, *on_cpu, None if factor is None else factor.cpu(), temperature, dtype)
            for dtype in (F64, F32)
        )
        if factor is not None:
            ours = rows_of(kind, p, q, factor, temperature)
        else:
            ours = total_of(kind, p, q, temperature)
            true, torch_is = (x._replace(values=x.values.sum()) for x in (true, torch_is))
        check_near(ours, true, torch_is, dtypes, what)


def check_in_place(kind: Divergence, p: Tensor, q: Tensor, layouts: tuple[str, str]) -> None:
    """The gradient in place is the one in memory of its own, and the teacher keeps its numbers."""
    p, q = (laid_out(x, layout) for x, layout in zip((p, q), layouts, strict=True))
    before, expected = p.clone(), of_student(kind, p, q)
    check_rows(kind, p, q)
    check_equal(in_place(kind, p, q), expected, "in place")
    assert torch.equal(p, before), "the teacher's logits changed"


def is_same(a: Exact, b: Exact) -> bool:
    """Whether two results are equal, bit for bit."""
    return all(torch.equal(x, b.named()[name]) for name, x in a.named().items())


def check_equal(mine: Tensor, other: Tensor, what: str) -> None:
    """Two gradients agree to one rounding of their dtype: other strides may add the sums in another order."""
    error, size = (mine.double() - other.double()).abs(), other.double()
    budget = 2 * torch.finfo(other.dtype).eps * size.abs() + 2e-6 * size.norm(dim=-1, keepdim=True) + 1e-10
    wrong = ~(error <= budget)
    assert not wrong.any(), f"{what}: {int(wrong.sum())} of {wrong.numel()} entries differ"


def likely_faults(where: Setting) -> Iterator[Item]:
    """The faults that are most likely in code that no GPU has run, each as a check."""
    small = where.small
    pairs = [(BF16, F32), (F32, BF16), (F16, BF16), (BF16, BF16)]
    sides = [(LAYOUTS[0], LAYOUTS[1]), (LAYOUTS[2], LAYOUTS[3]), (LAYOUTS[1], LAYOUTS[0])]
    combinations = [(dtypes, sides[0]) for dtypes in pairs] + [(pairs[0], both) for both in sides[1:]]
    for dtypes, both in combinations[:1] if small else combinations:
        for name, kind in FEW_KINDS.items():
            rows, classes = (3, 300) if small else (37, 5000)
            yield Item(
                f"in place: {name}, P {name_of(dtypes[0])} {both[0]}, Q {name_of(dtypes[1])} {both[1]}",
                lambda k=kind, n=rows, v=classes, t=dtypes, s=both: check_in_place(
                    k, *drawn(where, n, v, t), s
                ),
            )
    for classes in (5, 257) if small else (1, 2, 5, 200, 255, 256, 257, 300, 4095, 4096, 4097, 9000):
        yield Item(
            f"total variation stores one class twice: {classes} classes", partial(two_stores, where, classes)
        )
    for name, kind in FEW_KINDS.items() if small else KINDS.items():
        yield Item(f"NaN and infinite logits: {name}", partial(special_rows, where, kind))
        yield Item(f"masked classes: {name}", partial(masked_rows, where, kind))
        yield Item(f"quotients and logarithms at every size: {name}", partial(small_rows, where, kind))
        yield Item(f"nearly equal rows: {name}", partial(near_rows, where, kind))
        yield Item(f"equal rows give exactly 0: {name}", partial(equal_rows, where, kind))
    for name, kind in FEW_KINDS.items():
        yield Item(f"fused products, logits far from 0: {name}", partial(far_rows, where, kind))
    for name, kind in FEW_KINDS.items():
        yield Item(f"torch.compile with Python floats: {name}", partial(compiled, where, kind))
    yield Item("strides above 2^31 elements", partial(far_strides, where))
    yield Item("more than 65,535 rows", partial(many_rows, where))
    for dtype in (F32, BF16):
        yield Item(f"head: {name_of(dtype)}", partial(head, where, dtype, 1.0))
    yield Item("head: nearly equal models in bfloat16", partial(near_heads, where))
    yield Item("results do not depend on the run", partial(repeated, where))
    yield Item("CUDA graph", partial(graph, where))
    yield Item("side stream", partial(side_stream, where))
    yield Item("current device is not the tensors'", partial(other_device, where))


def two_stores(where: Setting, classes: int) -> None:
    """The loop writes the class with the most mass, and the end of the kernel writes it again."""
    rows = 2 if where.small else 64
    for largest in {0, classes - 1} if where.small else {0, classes // 2, classes - 1}:
        p, q = drawn(where, rows, classes, (F32, BF16))
        p[:, largest] = 9
        q[:, (largest + classes // 3) % classes] = 9
        check_rows(TotalVariation(), p, q, what=f"largest at {largest}: ")
        first = total_of(TotalVariation(), p, q)
        for _ in range(1 if where.small else 20):
            assert is_same(total_of(TotalVariation(), p, q), first), "two runs differ"
        for gradient in (first.by_p, first.by_q):
            left = gradient.double().sum(-1).abs()
            budget = 4 * torch.finfo(gradient.dtype).eps * gradient.double().abs().sum(-1) + 1e-12
            assert (left <= budget).all(), f"a row of the gradient sums to {left.max().item():.3g}, not to 0"
        expected = of_student(TotalVariation(), p, q)
        check_equal(in_place(TotalVariation(), p, q.clone()), expected, "in place")


def special_rows(where: Setting, kind: Divergence) -> None:
    """NaN, +inf, and rows without mass show in their own rows only, and their values are those of the CPU."""
    classes, places = (300, (0, 150, 299)) if where.small else (5000, (0, 2500, 4999))
    p, q = drawn(where, 12, classes, (F32, F32))
    for row, at in enumerate(places):
        p[row, at], q[row + 3, at] = float("nan"), float("nan")
    p[6, 1], q[7, 2] = INF, INF
    p[8] = -INF
    ours, on_cpu = rows_of(kind, p, q), rows_of(kind, p.cpu().double(), q.cpu().double())
    assert ours.values[:6].isnan().all(), "a row with NaN has a value"
    assert torch.equal(ours.values.isnan().cpu(), on_cpu.values.isnan()), (
        f"NaN in the rows {ours.values.isnan().tolist()}, on the CPU {on_cpu.values.isnan().tolist()}"
    )
    assert ours.by_p[:3].isnan().all(), "NaN in P, but numbers in the gradient of P"
    assert ours.by_q[3:6].isnan().all(), "NaN in Q, but numbers in the gradient of Q"
    assert all(x[9:].isfinite().all() for x in ours.named().values()), "a clean row is not finite"
    check_rows(kind, p[9:], q[9:])


def masked_rows(where: Setting, kind: Divergence) -> None:
    """Some logits of P, of Q or of both are -inf; the divergence is infinite exactly where the formula's is."""
    classes = 300 if where.small else 9000
    is_one_of_few = kind in FEW_KINDS.values()
    for dtype in (F32, BF16, F16) if is_one_of_few and not where.small else (F32,):
        p, q = drawn(where, 6, classes, (dtype, dtype))
        p[0, ::3], q[0, ::3] = -INF, -INF
        p[1, : classes // 2], q[1, : classes // 2] = -INF, -INF
        p[2, 5], q[3, 7] = -INF, -INF
        p[4, 1:], q[4, 1:] = -INF, -INF
        p[5, : classes // 2], q[5, classes // 2 :] = -INF, -INF
        values = rows_of(kind, p, q)
        for name, gradient in values.named().items():
            assert name == "values" or not gradient.isnan().any(), f"{name} has NaN"
        true = exact(kind, p.cpu(), q.cpu())
        is_finite = true.values.isfinite()
        assert torch.equal(values.values.isinf().cpu(), true.values.isinf()), (
            f"infinite in rows {values.values.isinf().nonzero().flatten().tolist()}, by the formula in rows "
            f"{true.values.isinf().nonzero().flatten().tolist()}"
        )
        at = is_finite.nonzero().flatten().to(p.device)
        check_rows(kind, p[at], q[at])


def small_rows(where: Setting, kind: Divergence) -> None:
    """Rows of three classes whose masses and log-ratios have every size, as `/`, exp and log of a GPU have errors."""
    steps = 2 if where.small else 24
    sizes = torch.linspace(-30, 30, steps)
    signed = torch.logspace(-4, 1.3, steps)
    rows = [
        ([0.0, a, -3.0], [0.0, a + sign * d, -3.0])
        for a, d, sign in itertools.product(sizes.tolist(), signed.tolist(), (-1, 1))
    ]
    p, q = (torch.tensor(side).to(where.device) for side in zip(*rows, strict=True))
    check_rows(kind, p, q)
    check_rows(kind, p, q, temperature=0.7)


def near_rows(where: Setting, kind: Divergence) -> None:
    """Values of about 1e-6 and their gradients keep their digits: torch's own error, the usual budget, has none."""
    p, q = drawn(where, 3, 300 if where.small else 20_000, (F32, F32), spread=1e-3)
    true = exact(kind, p.cpu(), q.cpu())
    ours = rows_of(kind, p, q)
    error = ((ours.values.cpu().double() - true.values) / true.values).abs().max().item()
    assert error < 1e-5, f"a relative error of {error:.2g} in values of about {true.values.mean().item():.2g}"
    if not isinstance(kind, TotalVariation):  # whose derivative jumps where p = q
        check_norm(ours.by_p, true.by_p, 1e-4, "gradient of P")
        check_norm(ours.by_q, true.by_q, 1e-4, "gradient of Q")


def equal_rows(where: Setting, kind: Divergence) -> None:
    p, _ = drawn(where, 3, 700, (BF16, BF16))
    p[1, 3:9] = -INF
    for result in (rows_of(kind, p, p.clone()), total_of(kind, p.float(), p)):
        for name, x in result.named().items():
            assert (x == 0).all(), f"{name} of equal rows is up to {x.abs().max().item():.3g}"


def far_rows(where: Setting, kind: Divergence) -> None:
    """If the compiler fuses products and sums of P in another way than of Q, large logits lose their digits."""
    rows = [
        ([9984.0, 9985.0, 9983.0, 9984.0], [0.5, -1.0, 0.25, 0.0]),
        ([1e16, -1e16, 0.0, 0.0], [0.0, 1.0, 2.0, 0.0]),
        ([3e9, 3e9, 3e9, 3e9], [1e30, 1e30, 1e30, 1e30]),
        ([3e38, 3e38, 3e38, -3e38], [1.0, 2.0, 3.0, 0.5]),
        ([65504.0, 65503.0, 65500.0, 1.0], [65504.0, 65503.0, 65501.0, 3.0]),
    ]
    p, q = (torch.tensor(side).to(where.device) for side in zip(*rows, strict=True))
    for temperature in (1.0, 3.0):
        true = exact(kind, p.cpu(), q.cpu(), temperature=temperature)
        ours = rows_of(kind, p, q, temperature=temperature)
        check_near(ours, true, true, (F32, F32), f"temperature {temperature:g}: ")


def compiled(where: Setting, kind: Divergence) -> None:
    """Python floats, as the temperature is, are float64 scalars under torch.compile before torch 2.15."""

    def loss(student: Tensor, teacher: Tensor, temperature: float) -> Tensor:
        return distillation_loss(
            student=student, teacher=teacher, kind=kind, temperature=temperature, reduction="sum"
        )

    p, q = drawn(where, 3, 300 if where.small else 5000, (BF16, BF16))
    torch.compiler.reset()
    in_graph = torch.compile(loss, fullgraph=True, backend="aot_eager" if where.small else "inductor")
    for temperature in (2.0, 1.3):
        student = q.clone().requires_grad_()
        value = in_graph(student, p, temperature)
        (gradient,) = torch.autograd.grad(value, student)
        true, torch_is = (exact(kind, p.cpu(), q.cpu(), temperature=temperature, dtype=x) for x in (F64, F32))
        ours = Exact(value, true.by_p, gradient)
        true, torch_is = (x._replace(values=x.values.sum()) for x in (true, torch_is))
        check_near(ours, true, torch_is._replace(by_p=true.by_p), (BF16, BF16))


def far_strides(where: Setting) -> None:
    """Rows that begin, or classes that lie, more than 2^31 elements apart."""
    memory = torch.empty(2**31 + 600, dtype=F16, device=where.device)
    p, q = drawn(where, 2, 300, (F16, F16))
    apart = memory.as_strided((2, 300), (2**31, 1))
    apart.copy_(p)
    check_rows(KL(), apart, q)
    check_equal(in_place(KL(), q, apart), of_student(KL(), q, p), "in place")
    columns = memory.as_strided((1, 3), (1, 2**30 + 1))
    columns.copy_(p[:1, :3])
    check_rows(JensenShannon(), columns, q[:1, :3])


def many_rows(where: Setting) -> None:
    where.need_gpu("a grid of 70,000 rows")
    p, q = drawn(where, 70_000, 8, (F32, F32))
    check_rows(KL(), p, q)


def logits_of_heads(where: Setting, dtype: torch.dtype, spread: float) -> tuple[list[Tensor], int]:
    rows, hidden, classes = (6, 8, 40) if where.small else (96, 256, 5003)
    generator = torch.Generator().manual_seed(classes)
    h, w = (torch.randn(n, hidden, generator=generator) for n in (rows, classes))
    w = 2 * hidden**-0.5 * w
    teacher_h = h + spread * torch.randn(h.shape, generator=generator)
    return [x.to(dtype).to(where.device) for x in (h, w, teacher_h, w)], rows


def head_results(arguments: list[Tensor], **options: bool) -> tuple[Tensor, Tensor, Tensor]:
    h, w, teacher_h, teacher_w = arguments
    h, w = h.detach().requires_grad_(), w.detach().requires_grad_()
    loss = linear_distillation_loss(
        student=h,
        student_weight=w,
        teacher=teacher_h,
        teacher_weight=teacher_w,
        chunk_bytes=1 << 16,
        **options,
    )
    return loss.detach(), *torch.autograd.grad(loss, (h, w))


def true_head(arguments: list[Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    h, w, teacher_h, teacher_w = (x.cpu().double() for x in arguments)
    result = exact(KL(), teacher_h @ teacher_w.T, h @ w.T)
    by_logits = result.by_q / len(h)
    return result.values.mean(), by_logits @ w, by_logits.T @ h


def check_norm(mine: Tensor, true: Tensor, relative: float, what: str) -> None:
    error = ((mine.cpu().double() - true).norm() / true.norm()).item()
    assert error <= relative, f"{what}: a relative error of {error:.2g}, at most {relative:g} is right"


def head(where: Setting, dtype: torch.dtype, spread: float) -> None:
    arguments, _ = logits_of_heads(where, dtype, spread)
    names = ("loss", "gradient of the hidden states", "gradient of the head")
    bounds = (1e-5, 1e-4, 1e-4) if dtype == F32 else (1e-5, 1e-2, 1e-2)
    for name, mine, true, bound in zip(
        names, head_results(arguments, float32_logits=True), true_head(arguments), bounds, strict=True
    ):
        check_norm(mine, true, bound, name)


def near_heads(where: Setting) -> str:
    """With `float32_logits` a small divergence has digits. Without it, the value is only reported."""
    arguments, _ = logits_of_heads(where, BF16, 3e-2)
    true, *_ = true_head(arguments)
    check_norm(head_results(arguments, float32_logits=True)[0], true, 1e-3, "loss")
    rounded = head_results(arguments)[0].item()
    return f"KL {true.item():.3g}; from bfloat16 logits {rounded:.3g}"


def repeated(where: Setting) -> None:
    for name, kind in FEW_KINDS.items():
        p, q = drawn(where, 4, 300 if where.small else 50_257, (BF16, BF16))
        first = total_of(kind, p, q)
        for _ in range(1 if where.small else 10):
            assert is_same(first, total_of(kind, p, q)), f"two runs of {name} differ"


def graph(where: Setting) -> None:
    """A graph cannot contain a wait for the device."""
    where.need_gpu("a CUDA graph")
    p, q = drawn(where, 4, 5000, (BF16, BF16))
    p, q = p.requires_grad_(), q.requires_grad_()
    weight = torch.rand(4, device=where.device)

    def step() -> tuple[Tensor, ...]:
        loss = distillation_loss(student=q, teacher=p, weight=weight, reduction="sum", normalizer=4.0)
        return loss.detach(), *torch.autograd.grad(loss, (p, q))

    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        step()
    torch.cuda.current_stream().wait_stream(stream)
    captured = torch.cuda.CUDAGraph()
    with torch.cuda.graph(captured):
        results = step()
    with torch.no_grad():
        p.copy_(torch.randn(p.shape))
    captured.replay()
    torch.cuda.synchronize()
    for mine, expected in zip(results, step(), strict=True):
        torch.testing.assert_close(mine, expected)


def side_stream(where: Setting) -> None:
    """The kernel waits for the work of its own stream, not of another."""
    where.need_gpu("a stream")
    p, q = drawn(where, 512, 50_257, (BF16, BF16))
    expected, stream = total_of(KL(), p, q), torch.cuda.Stream()
    later_p, later_q = torch.zeros_like(p), torch.zeros_like(q)
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        for _ in range(20):
            torch.mm(later_q.float(), later_q.float().T)
        later_p.copy_(p)
        later_q.copy_(q)
        ours = total_of(KL(), later_p, later_q)
    stream.synchronize()
    assert is_same(ours, expected), "the result on a side stream differs"


def other_device(where: Setting) -> None:
    where.need_gpu("a current device")
    if torch.cuda.device_count() < 2:
        raise NotHere("one GPU here, two are needed")
    other = Setting("cuda:1")
    assert torch.cuda.current_device() == 0
    for name, kind in FEW_KINDS.items():
        check_rows(kind, *drawn(other, 4, 5000, (BF16, BF16)), what=f"{name}: ")
    head(other, F32, 1.0)


def parity(where: Setting) -> Iterator[Item]:
    """Values and gradients against float64: every kind, dtype, layout and vocabulary, and what teachers add."""
    small = where.small
    rows = 2 if small else 3
    vocabularies = (300,) if small else VOCABULARIES
    for classes in vocabularies:
        others = {vocabularies[0]: (F16, F64), vocabularies[-1]: (F64,)}.get(classes, ())
        for dtype in (BF16, F32) if small else (BF16, F32, *others):
            for name, kind in KINDS.items():
                yield Item(
                    f"{name}, {classes} classes, {name_of(dtype)}",
                    lambda k=kind, v=classes, t=dtype: check_rows(k, *drawn(where, rows, v, (t, t))),
                )
    for layout in LAYOUTS:
        for name, kind in FEW_KINDS.items():
            yield Item(f"{name}, {layout}", partial(layouts, where, kind, layout))
    for name, kind in FEW_KINDS.items() if small else KINDS.items():
        yield Item(f"{name}, temperature 2.5", partial(warm, where, kind))
    for name, kind in FEW_KINDS.items():
        yield Item(f"{name}, labels, mask and weight", partial(labelled, where, kind))
        yield Item(f"{name}, top classes", partial(top_classes, where, kind))


def layouts(where: Setting, kind: Divergence, layout: str) -> None:
    p, q = drawn(where, 3, 300 if where.small else 5001, (BF16, F32))
    check_in_place(kind, p, q, (layout, layout))
    check_in_place(kind, p, q, ("contiguous", layout))
    check_rows(kind, p[:1].expand_as(p), q, what="one teacher's row for all: ")


def warm(where: Setting, kind: Divergence) -> None:
    check_rows(kind, *drawn(where, 3, 300 if where.small else 5001, (F32, BF16)), temperature=2.5)


def labelled(where: Setting, kind: Divergence) -> None:
    """(1 - share) D + share CE(label), a weighted mean over the positions that count."""
    classes, share = 70 if where.small else 5001, 0.25
    p, q = drawn(where, 5, classes, (BF16, F32))
    q[4] = float("nan")
    labels = torch.tensor([3, classes - 1, 0, 7, 1], device=where.device)
    weight = torch.tensor([0.5, 2.0, 0.0, 1.0, 1.0], device=where.device)
    mask = torch.tensor([True, True, True, True, False], device=where.device)
    student = q.clone().requires_grad_()
    loss = distillation_loss(
        student=student, teacher=p, kind=kind, labels=labels, label_weight=share, weight=weight, mask=mask
    )
    (gradient,) = torch.autograd.grad(loss, student)
    factor = (weight * mask).cpu().double()
    counted = torch.where(mask[:, None], q, 0).cpu()
    chosen = torch.nn.functional.one_hot(labels, classes).cpu().double()

    def mean(dtype: torch.dtype) -> Exact:
        rows = exact(kind, p.cpu(), counted, dtype=dtype)
        log_q = counted.to(dtype).log_softmax(-1)
        values = (1 - share) * rows.values - share * (chosen * log_q).sum(-1)
        by_q = (1 - share) * rows.by_q + share * (log_q.exp() - chosen)
        factors = factor / factor.sum()
        return Exact((factors * values).sum(), rows.by_p, factors[:, None] * by_q, (0.0, log_q.exp()))

    true, torch_is = mean(F64), mean(F32)
    torch_is = torch_is._replace(by_p=true.by_p)
    check_near(Exact(loss, true.by_p, gradient), true, torch_is, (BF16, F32))


def top_classes(where: Setting, kind: Divergence) -> None:
    """Divergence of the k kept classes and one class for all others; autograd differentiates the formula."""
    classes, kept = (70, 5) if where.small else (50_257, 64)
    p, q = drawn(where, 4, classes, (F32, BF16))
    log_probs, indices = p.cpu().double().log_softmax(-1).topk(kept)
    teacher = TopK(indices.to(where.device), log_probs.float().to(where.device))
    student = q.clone().requires_grad_()
    values = distillation_loss(student=student, teacher=teacher, kind=kind, reduction="none")
    (gradient,) = torch.autograd.grad(values.sum(), student)
    stored = teacher.log_probs.cpu()

    def merged(dtype: torch.dtype) -> Exact:
        logits = q.cpu().to(dtype)
        log_q, of_p = logits.log_softmax(-1), stored.to(dtype)
        others = torch.ones_like(log_q, dtype=torch.bool).scatter(-1, indices, value=False)
        rest_q = log_q.where(others, -INF).logsumexp(-1, keepdim=True)
        rest_p = (-torch.expm1(of_p.logsumexp(-1, keepdim=True))).log()
        result = exact(
            kind,
            torch.cat([of_p, rest_p], -1),
            torch.cat([log_q.gather(-1, indices), rest_q], -1),
            dtype=dtype,
        )
        by_rest = result.by_q[:, -1:] * (log_q - rest_q).exp()
        by_q = by_rest.where(others, 0).scatter(-1, indices, result.by_q[:, :-1])
        return result._replace(by_q=by_q, masses=(0.0, log_q.exp()))

    true, torch_is = merged(F64), merged(F32)
    torch_is = torch_is._replace(by_p=true.by_p)
    check_near(Exact(values, true.by_p, gradient), true, torch_is, (F32, BF16))
