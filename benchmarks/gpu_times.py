"""The measurements of `make gpu`: times and peak memory of losses, forward and backward, beside those of others.

kullback's contender has to work; the error of another one becomes a note. On the CPU these only show that they run.
"""

from __future__ import annotations

import importlib.util
import multiprocessing
import tempfile
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist
from bench_kinds import KINDS as NAMES
from bench_rows import ours, stepper
from gpu_checks import of_student
from gpu_items import KINDS, Item, NotHere, Result, Setting, use_interpreter
from peers import (
    EAGER,
    GPU_ROW_LOSSES,
    HEAD_LOSSES,
    ROW_LOSSES,
    TOP_K,
    HeadLoss,
    RowLoss,
    in_float32,
    mean_kl,
    products,
    short_formulas,
    trl_kernel,
)
from timing import Case, Step, interleave, summarize, timed
from torch import Tensor

from kullback.functional import TopK, distillation_loss, linear_distillation_loss
from kullback.generators import Divergence
from kullback.kernels.backends import backend_for

OURS = "kullback"


def is_installed(package: str) -> bool:
    return importlib.util.find_spec(package) is not None


def measured(
    where: Setting,
    case: Case,
    steps: Mapping[str, Step],
    *,
    notes: list[str] | None = None,
    least: int = 10,
    most: int = 50,
    seconds: float = 3.0,
) -> Result:
    """Times in interleaved rounds, and on a GPU the peak of the memory during one step beyond that before it."""
    notes, memory, values, working = list(notes or ()), {}, {}, {}
    for name, step in steps.items():
        try:
            timed(step)  # compiles
            memory[name], values[name] = peak_and_value(where, step)
            working[name] = step
        except Exception as error:
            if OURS in name:
                raise
            first = (str(error).splitlines() or [""])[0]
            notes.append(f"{name} failed: {type(error).__name__}: {first}"[:300])
            if where.has_gpu:
                torch.cuda.synchronize()
                torch.cuda.empty_cache()
    notes += other_values(values)
    least, most, seconds = (2, 2, 0.0) if where.small else (least, most, seconds)
    times = interleave(working, least=least, most=most, seconds=seconds)
    results = {name: {**summarize(x), "extra_bytes": memory[name]} for name, x in times.items()}
    return {"case": case, "steps": results, "notes": notes}


def peak_and_value(where: Setting, step: Step) -> tuple[int | None, float | None]:
    """The peak of the GPU's memory during a step beyond that before it, and the loss if the step returns one."""
    step.prepare()
    before = 0
    if where.has_gpu:
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
    result = step.run()
    value = result.item() if isinstance(result, Tensor) and not result.dim() else None
    return torch.cuda.max_memory_allocated() - before if where.has_gpu else None, value


def other_values(values: Mapping[str, float | None]) -> list[str]:
    """A note for each loss that differs by more than 2 % from kullback's: it is rounded, or another loss."""
    mine = next((x for name, x in values.items() if OURS in name and x is not None), None)
    return [
        f"{name} computes {x:.4g}, {OURS} {mine:.4g}"
        for name, x in values.items()
        if mine is not None and x is not None and not abs(x - mine) <= 0.02 * abs(mine)
    ]


def logits(where: Setting, case: Case) -> tuple[Tensor, Tensor]:
    """A student's and a teacher's logits, drawn where they are used."""
    shape, dtype = (case["rows"], case["classes"]), getattr(torch, case["dtype"])
    generator = torch.Generator(where.device).manual_seed(0)
    teacher = 3 * torch.randn(shape, generator=generator, device=where.device)
    difference = torch.randn(shape, generator=generator, device=where.device)
    return teacher.add(difference, alpha=0.5).to(dtype), teacher.to(dtype)


def case(rows: int, classes: int, dtype: str = "bfloat16", **others: object) -> Case:
    return {"rows": rows, "classes": classes, "dtype": dtype, **others}


def row_steps(where: Setting, of_case: Case, losses: Mapping[str, RowLoss]) -> dict[str, Step]:
    original, teacher = logits(where, of_case)
    student, target = original.clone(), torch.empty_like(original)
    steps = {name: stepper(loss, student, teacher, original) for name, loss in losses.items()}
    return {"copy": Step(lambda: target.copy_(original)), **steps}


def backend_note(where: Setting, kind: Divergence, of_case: Case) -> str:
    x = torch.empty(1, of_case["classes"], dtype=getattr(torch, of_case["dtype"]), device=where.device)
    return f"kullback's backend: {backend_for(kind, x, x).NAME}"


def every_kind(where: Setting) -> Iterator[Item]:
    """Every kind, forward and backward, beside its definition in eager torch. A kind without a kernel shows at once."""
    shape = (4, 300) if where.small else (1024, 128_256)

    def run(name: str, dtype: str) -> Result:
        of_case = case(*shape, dtype)
        losses: dict[str, RowLoss] = {f"{name}: {OURS}": ours(KINDS[name])}
        if name in NAMES:
            losses[f"{name}: eager"] = in_float32(EAGER[name]) if name in EAGER else short_formulas(name)
        notes = [backend_note(where, KINDS[name], of_case)]
        return measured(
            where, of_case, row_steps(where, of_case, losses), notes=notes, least=3, most=20, seconds=1
        )

    for name in KINDS:
        yield Item(name, partial(run, name, "bfloat16"))
    yield Item("KL, float64", partial(run, "KL", "float64"))


def row_kernel(where: Setting) -> Iterator[Item]:
    """Losses from logits against a copy, eager and compiled torch, and the kernels of others that are installed."""
    shapes = (
        [("KL", case(4, 300))]
        if where.small
        else [
            ("KL", case(8192, 128_256)),
            ("JS", case(8192, 128_256)),
            ("reverse KL", case(8192, 128_256)),
            ("KL", case(8192, 32_000)),
            ("KL", case(8192, 50_257)),
            ("KL", case(2048, 151_936)),
            ("KL", case(2048, 262_144)),
            ("KL", case(8192, 128_256, "float32")),
        ]
    )

    def run(kind: str, of_case: Case) -> Result:
        losses = {f"{kind}: {OURS}": ours(KINDS[kind])}
        losses[f"{kind}: {OURS} in place"] = ours(KINDS[kind], inplace=True)
        others = dict(ROW_LOSSES)
        notes = [backend_note(where, KINDS[kind], of_case)]
        for package, kernels in GPU_ROW_LOSSES.items():
            if where.has_gpu and is_installed(package):
                others |= kernels
            else:
                notes.append(
                    f"{package} was not measured: {'no GPU' if is_installed(package) else 'not installed'}."
                )
        peers = {name: loss for name, loss in others.items() if name.startswith(f"{kind}:")}
        if where.small:
            peers.pop(f"{kind}: torch.compile", None)
        return measured(where, of_case, row_steps(where, of_case, losses | peers), notes=notes)

    for kind, of_case in shapes:
        shape = f"{of_case['rows']} × {of_case['classes']}, {of_case['dtype']}"
        yield Item(f"{kind}, {shape}", partial(run, kind, of_case))


def eager_top_k(student: Tensor, indices: Tensor, log_probs: Tensor) -> Tensor:
    log_q = student.float().log_softmax(-1).gather(-1, indices)
    left, others = (torch.log1p(-x.exp().sum(-1, keepdim=True)) for x in (log_probs, log_q))
    return mean_kl(torch.cat([log_probs, left], -1), torch.cat([log_q, others], -1))


def top_k(where: Setting) -> Iterator[Item]:
    """KL of a stored teacher's top classes from the student's logits, beside a copy of the logits and eager torch."""
    of_case = case(4, 300) if where.small else case(4096, 151_936)

    def run(kind: str) -> Result:
        _, teacher = logits(where, of_case)
        parts = [x.float().log_softmax(-1).topk(TOP_K) for x in teacher.split(256)]
        indices, log_probs = (torch.cat([x[i] for x in parts]) for i in (1, 0))
        known = TopK(indices, log_probs)

        def ours_(student: Tensor, _: Tensor) -> Tensor:
            return distillation_loss(student=student, teacher=known, kind=KINDS[kind], reduction="batchmean")

        losses: dict[str, RowLoss] = {f"{kind}, top {TOP_K}: {OURS}": ours_}
        if kind == "KL":
            losses[f"KL, top {TOP_K}: eager"] = lambda student, _: eager_top_k(student, indices, log_probs)
        return measured(where, of_case, row_steps(where, of_case, losses))

    for kind in ("KL", "JS"):
        yield Item(f"{kind}, top {TOP_K}", partial(run, kind))


def heads(where: Setting) -> Iterator[Item]:
    """Losses from hidden states and heads with their peak memory, beside the matrix products alone."""
    sizes = (
        [(6, 40, 8)]
        if where.small
        else [(4096, 128_256, 4096), (1024, 128_256, 4096), (16_384, 128_256, 2048)]
    )

    def run(of_case: Case) -> Result:
        dtype, hidden = getattr(torch, of_case["dtype"]), of_case["hidden"]
        generator = torch.Generator(where.device).manual_seed(0)
        arguments = [
            torch.randn(n, hidden, generator=generator, device=where.device)
            .mul_(1.0 if i % 2 == 0 else 2 * hidden**-0.5)
            .to(dtype)
            .requires_grad_(i < 2)
            for i, n in enumerate((of_case["rows"], of_case["classes"]) * 2)
        ]

        def loss(precise: bool) -> HeadLoss:
            return lambda h, w, teacher_h, teacher_w: linear_distillation_loss(
                student=h,
                student_weight=w,
                teacher=teacher_h,
                teacher_weight=teacher_w,
                float32_logits=precise,
            )

        def forget() -> None:
            for x in arguments:
                x.grad = None

        def step(loss: HeadLoss) -> Step:
            def forward_and_backward() -> Tensor:
                value = loss(*arguments)
                value.backward()
                return value.detach()

            return Step(forward_and_backward, forget)

        losses = {OURS: loss(False), f"{OURS}, float32 logits": loss(True), **HEAD_LOSSES}
        if where.has_gpu and is_installed("trl"):
            losses["TRL, Triton"] = trl_kernel
        steps = {name: step(f) for name, f in losses.items()}
        steps["products"] = Step(lambda: products(*arguments), forget)
        return measured(where, of_case, steps, least=3, most=10, seconds=3)

    for rows, classes, hidden in sizes:
        of_case = case(rows, classes, hidden=hidden)
        yield Item(f"{rows} × {classes}, hidden {hidden}", partial(run, of_case))


def several_gpus(where: Setting) -> Iterator[Item]:
    """The classes sharded over two GPUs: the loss and the gradient are those of one GPU, and their time."""
    sizes = (4, 300) if where.small else (2048, 128_256)
    for name in ("KL",) if where.small else ("KL", "total variation", "JS", "Renyi 2"):
        yield Item(f"{name} on two ranks", partial(sharded, where, name, sizes))


def sharded(where: Setting, kind: str, sizes: tuple[int, int]) -> Result:
    if where.has_gpu and torch.cuda.device_count() < 2:
        raise NotHere("one GPU here, two are needed")
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        workers = [
            context.Process(target=shard, args=(rank, where, kind, sizes, folder)) for rank in range(2)
        ]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        if any(worker.exitcode for worker in workers):
            reports = [path.read_text() for path in sorted(Path(folder).glob("*.txt"))]
            raise AssertionError("; ".join(reports) or "a rank ended without a report")
        times = torch.load(Path(folder, "times.pt"))
    return {
        "case": case(*sizes, ranks=2),
        "steps": {f"{kind}: {OURS}, two ranks": {**summarize(times), "extra_bytes": None}},
        "notes": [],
    }


def shard(rank: int, where: Setting, kind: str, sizes: tuple[int, int], folder: str) -> None:
    """One rank: compare its columns of the gradient with those of all classes on one device."""
    torch.set_num_threads(1)
    device = f"cuda:{rank}" if where.has_gpu else "cpu"
    if where.has_gpu:
        torch.cuda.set_device(rank)
    else:
        use_interpreter()
    dist.init_process_group(
        "nccl" if where.has_gpu else "gloo", init_method=f"file://{folder}/ranks", rank=rank, world_size=2
    )
    try:
        # The same numbers on both ranks: they are drawn on the CPU.
        generator = torch.Generator().manual_seed(0)
        teacher, difference = (torch.randn(sizes, generator=generator) for _ in range(2))
        sides = [x.to(torch.bfloat16).to(device) for x in (3 * teacher, 3 * teacher + 0.5 * difference)]
        expected = of_student(KINDS[kind], *sides).tensor_split(2, -1)[rank]
        teacher, student = (x.tensor_split(2, -1)[rank].contiguous() for x in sides)
        student.requires_grad_()

        def run() -> Tensor:
            student.grad = None
            loss = distillation_loss(
                student=student, teacher=teacher, kind=KINDS[kind], reduction="sum", group=dist.group.WORLD
            )
            loss.backward()
            return loss

        run()
        assert student.grad is not None
        error = ((student.grad - expected).double().norm() / expected.double().norm()).item()
        if not error <= 1e-2:  # a rounding of bfloat16 is 0.4 %
            raise AssertionError(f"rank {rank}: the gradient differs by {error:.2g} from that of one device")
        times = [timed(Step(run)) for _ in range(3 if where.small else 20)]
        if rank == 0:
            torch.save(times, Path(folder, "times.pt"))
    except Exception as error:
        Path(folder, f"{rank}.txt").write_text(f"{type(error).__name__}: {error}")
        raise
    finally:
        dist.destroy_process_group()
