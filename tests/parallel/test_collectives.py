"""What travels, what is refused, and DTensors."""

from __future__ import annotations

import re
from typing import Any, Self
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor, Replicate, Shard

from kullback import KL, Divergence, JensenShannon, Renyi
from kullback.functional import TopK, distillation_loss, linear_distillation_loss
from kullback.generators import FinitePair
from kullback.nn import DistillationLoss, LinearDistillationLoss
from tests.parallel.losses import CLASSES, chunked, even, late, plain, ragged, top_k
from tests.parallel.test_heads import INDICES, LABELS, LOG_PROBS, tensors
from tests.parallel.world import SIZES, Rank

ROWS = 6


class Counter:
    """Which collectives run, with the numbers each rank sends, in order."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, int]] = []
        self.patches = [
            mock.patch.object(dist, name, self._counting(name, getattr(dist, name), place))
            for name, place in (("all_gather", 1), ("all_reduce", 0), ("all_to_all_single", 1))
        ]

    def _counting(self, name: str, original: Any, place: int) -> Any:
        def counted(*args: Any, **options: Any) -> Any:
            self.seen.append((name, args[place].numel()))
            return original(*args, **options)

        return counted

    def __enter__(self) -> Self:
        for patch in self.patches:
            patch.start()
        return self

    def __exit__(self, *_: object) -> None:
        for patch in self.patches:
            patch.stop()


def traffic(place: Rank, **options: Any) -> dict[str, list[tuple[str, int]]]:
    """The collectives of a forward and of a backward pass of `distillation_loss`, the header apart."""
    teacher_cut = options.pop("teacher_cut", even)
    to_teacher = options.pop("to_teacher", False)
    student, teacher = plain()
    q = place.cut(student.requires_grad_(), even(CLASSES, place.size))
    if "top_k" in options:
        p: Any = top_k(options.pop("top_k"), teacher.log_softmax(-1))
    else:
        p = place.cut(teacher.requires_grad_(to_teacher), teacher_cut(CLASSES, place.size))
    with Counter() as forward:
        loss = distillation_loss(student=q, teacher=p, group=place.group, **options)
    with Counter() as backward:
        loss.backward()
    return {"forward": forward.seen, "backward": backward.seen}


def head_traffic(place: Rank, **options: Any) -> dict[str, list[tuple[str, int]]]:
    made = tensors()
    for name in ("student_weight", "student_bias", "teacher_weight", "teacher_bias"):
        made[name] = place.cut(made[name], even(CLASSES, place.size), 0)
    made["student"].requires_grad_()
    made["student_weight"].requires_grad_()
    with Counter() as forward:
        loss = linear_distillation_loss(**made, group=place.group, **options)  # pyright: ignore[reportArgumentType]
    with Counter() as backward:
        loss.backward()
    return {"forward": forward.seen, "backward": backward.seen}


def whole_or_dtensor(place: Rank) -> dict[str, Any]:
    """Losses of DTensors, cut as torch cuts them; teachers sharded, replicated and plain."""
    mesh = dist.DeviceMesh.from_group(place.group, "cpu") if place.size > 1 else None
    if mesh is None:
        return {}
    student, teacher = plain()
    found: dict[str, Any] = {}
    for name in ("sharded", "replicated", "plain"):
        leaf = place.cut(student.requires_grad_(), chunked(CLASSES, place.size))
        q = DTensor.from_local(leaf, mesh, [Shard(1)], shape=student.shape, stride=student.stride())
        p: Any = teacher.clone().requires_grad_()
        given = p
        if name != "plain":
            given = DTensor.from_local(p, mesh, [Replicate()])
        if name == "sharded":
            given = given.redistribute(placements=[Shard(-1)])
        loss = DistillationLoss(kind=JensenShannon())(student=q, teacher=given)
        assert type(loss) is Tensor
        loss.backward()
        found[name] = {"value": loss.detach(), "student": leaf.grad, "teacher": p.grad}
    return found


def dtensor_heads(place: Rank) -> dict[str, Any]:
    if place.size == 1:
        return {}
    mesh = dist.DeviceMesh.from_group(place.group, "cpu")
    made = tensors()
    leaves = {name: x.clone().requires_grad_() for name, x in made.items()}
    given: dict[str, Any] = dict(leaves)
    for name in ("student_weight", "student_bias", "teacher_weight"):
        given[name] = DTensor.from_local(leaves[name], mesh, [Replicate()]).redistribute(
            placements=[Shard(0)]
        )
    given["student"] = DTensor.from_local(leaves["student"], mesh, [Replicate()])
    loss = LinearDistillationLoss(chunk_bytes=300)(**given)
    loss.backward()
    return {"value": loss.detach(), **{name: x.grad for name, x in leaves.items()}}


def refused_dtensors(place: Rank) -> dict[str, Any]:
    """Errors where DTensors do not say which classes a rank has, and what their remedies give."""
    if place.size == 1:
        return {}
    mesh = dist.DeviceMesh.from_group(place.group, "cpu")
    student, teacher = plain()
    by_row, p_by_row = (
        DTensor.from_local(x.tensor_split(place.size)[place.rank].clone(), mesh, [Shard(0)], run_check=False)
        for x in (student, teacher)
    )
    by_class = DTensor.from_local(student, mesh, [Replicate()]).redistribute(placements=[Shard(1)])
    found: dict[str, Any] = {
        "rows": error_of({"student": by_row, "teacher": p_by_row}),
        "group too": error_of({"student": by_class, "teacher": teacher, "group": place.group}),
        "one is whole": error_of(
            {"student": DTensor.from_local(student, mesh, [Replicate()]), "teacher": teacher}
        ),
        "not in it": error_of(
            {"student": student, "teacher": teacher, "group": dist.GroupMember.NON_GROUP_MEMBER}
        ),
        "local with group": distillation_loss(
            student=by_class.to_local(),
            teacher=teacher[..., slice(*_own(place))],
            group=place.group,
        ),
    }
    made: dict[str, Any] = dict(tensors())
    made["student_weight"] = DTensor.from_local(made["student_weight"], mesh, [Shard(0)], run_check=False)
    try:
        linear_distillation_loss(**made, group=place.group)
    except Exception as error:  # noqa: BLE001 - the test looks at it
        found["head and group"] = f"{type(error).__name__}: {error}"
    # A mean over all rows from the rows of each rank, as the error says.
    part = distillation_loss(student=by_row.to_local(), teacher=p_by_row.to_local(), normalizer=float(ROWS))
    dist.all_reduce(part, group=place.group)
    found["mean"] = part
    return found


def _own(place: Rank) -> tuple[int, int]:
    """The classes of this rank as DTensors cut them."""
    sizes = chunked(CLASSES, place.size)
    start = sum(sizes[: place.rank])
    return start, start + sizes[place.rank]


def forward_mode(place: Rank) -> str:
    """The error where a head is differentiated in forward mode."""
    made = tensors()
    for name in ("student_weight", "student_bias", "teacher_weight", "teacher_bias"):
        made[name] = place.cut(made[name], even(CLASSES, place.size), 0)
    with torch.autograd.forward_ad.dual_level():
        made["student"] = torch.autograd.forward_ad.make_dual(
            made["student"], torch.ones_like(made["student"])
        )
        try:
            linear_distillation_loss(**made, group=place.group)  # pyright: ignore[reportArgumentType]
        except Exception as error:  # noqa: BLE001 - the test looks at it
            return f"{type(error).__name__}: {error}"
    return "none"


def dtensor_student(place: Rank) -> dict[str, Any]:
    """A head that is a DTensor, against stored classes and labels."""
    if place.size == 1:
        return {}
    mesh = dist.DeviceMesh.from_group(place.group, "cpu")
    leaves = {name: x.requires_grad_() for name, x in tensors().items() if name.startswith("student")}
    given: dict[str, Any] = dict(leaves)
    for name in ("student_weight", "student_bias"):
        replicated = DTensor.from_local(leaves[name], mesh, [Replicate()])
        given[name] = replicated.redistribute(placements=[Shard(0)])
    known = TopK(INDICES, LOG_PROBS)
    loss = LinearDistillationLoss(label_weight=0.3)(**given, teacher=known, labels=LABELS)
    loss.backward()
    return {"value": loss.detach(), **{name: x.grad for name, x in leaves.items()}}


def in_place(place: Rank) -> dict[str, Any]:
    student, teacher = plain()
    leaf = place.cut(student.requires_grad_(), ragged(CLASSES, place.size))
    logits = leaf * 1.0
    p = place.cut(teacher, ragged(CLASSES, place.size))
    labeled: dict[str, Any] = {"labels": torch.arange(ROWS) + 5}
    loss = DistillationLoss(group=place.group, inplace_backward=True, label_weight=0.3)
    loss(student=logits, teacher=p, **labeled).backward()
    return {"student": leaf.grad, "logits": logits.detach()}


def different(place: Rank, **of_last: Any) -> str:
    """The error where the last rank passes other arguments than the others."""
    student, teacher = plain()
    options: dict[str, Any] = {
        "student": place.cut(student, even(CLASSES, place.size)),
        "teacher": place.cut(teacher, even(CLASSES, place.size)),
        "group": place.group,
    }
    if any(name.startswith("label") for name in of_last):
        options |= {"labels": torch.tensor([1, 2, 3, 4, 5, 6]), "label_weight": 0.5}
    if place.rank == place.size - 1:
        change = {name: value(options) if callable(value) else value for name, value in of_last.items()}
        options |= change
    return error_of(options)


def error_of(options: dict[str, Any]) -> str:
    try:
        distillation_loss(**options)
    except Exception as error:  # noqa: BLE001 - the test looks at it
        return f"{type(error).__name__}: {error}"
    return "none"


DIFFERENT: dict[str, tuple[dict[str, Any], str]] = {
    "rows": (
        {"student": lambda o: o["student"][:4], "teacher": lambda o: o["teacher"][:4]},
        r"student=\.\.\.\): wanted the same number of positions on every rank of the group; got 6, .*4 on ranks 0 to",
    ),
    "shape": (
        {name: lambda o, name=name: o[name].reshape(2, 3, -1) for name in ("student", "teacher")},
        "wanted the same leading shape",
    ),
    "kind": (
        {"kind": JensenShannon()},
        "kind=...\\): wanted the same kind on every rank.*a different one on rank",
    ),
    "temperature": ({"temperature": 2.0}, "wanted the same temperature"),
    "reduction": ({"reduction": "sum"}, "wanted the same reduction"),
    "dtype": ({"student": lambda o: o["student"].float()}, "wanted the same dtypes of student and teacher"),
    "mask": ({"mask": torch.tensor([True] * 5 + [False])}, "wanted the same positions that count"),
    "labels": (
        {"labels": torch.tensor([1, 2, 3, 4, 5, 7])},
        "labels=...\\): wanted the same classes at the positions that count on every rank",
    ),
    "label weight": ({"label_weight": 0.25}, "wanted the same label_weight on every rank"),
    "no labels": ({"labels": None}, "wanted (the true class of each position|arguments that every rank)"),
    "invalid": ({"temperature": -1.0}, "wanted (a positive number|arguments that every rank)"),
    "not a tensor": ({"student": None}, "ArgumentTypeError|wanted arguments that every rank"),
    "classes": (
        {"teacher": lambda o: torch.zeros(ROWS, 9, dtype=torch.float64)},
        "teacher=...\\): wanted shards with as many classes in total as student, 11",
    ),
}


def unlike_all(place: Rank, **options: Any) -> str:
    """The error where all ranks pass something that cannot be."""
    student, teacher = plain()
    q = place.cut(student, even(CLASSES, place.size))
    return error_of({"student": q, "teacher": teacher, "group": place.group, **options})


def other_call(place: Rank) -> str:
    """The error where the last rank calls another loss."""
    if place.rank < place.size - 1:
        return unlike_all(place)
    made = tensors()
    try:
        linear_distillation_loss(**made, group=place.group)  # pyright: ignore[reportArgumentType]
    except Exception as error:  # noqa: BLE001 - the test looks at it
        return f"{type(error).__name__}: {error}"
    return "none"


def second_derivatives(place: Rank) -> list[str]:
    """The errors where a gradient is asked for that can itself be differentiated: of rows, a top-k and heads."""
    student, teacher = plain()
    q = place.cut(student.requires_grad_(), even(CLASSES, place.size))
    p = place.cut(teacher.requires_grad_(), late(CLASSES, place.size))
    made = {name: x.requires_grad_() for name, x in tensors().items()}
    for name in ("student_weight", "student_bias", "teacher_weight", "teacher_bias"):
        made[name] = place.cut(made[name], even(CLASSES, place.size), 0)
    group = place.group
    known = top_k("zero", teacher.detach().log_softmax(-1))
    found: list[str] = []
    for loss, leaf in (
        (distillation_loss(student=q, teacher=p, group=group), q),
        (distillation_loss(student=q.detach(), teacher=p, group=group), p),
        (distillation_loss(student=q, teacher=known, group=group), q),
        (linear_distillation_loss(**made, group=group), made["student"]),  # pyright: ignore[reportArgumentType]
    ):
        try:
            torch.autograd.grad(loss, leaf, create_graph=True)
        except Exception as error:  # noqa: BLE001 - the test looks at it
            found.append(f"{type(error).__name__}: {error}")
    return found


class Odd(Divergence):
    """A divergence that is no sum over classes."""

    def terms(self, pair: FinitePair) -> Tensor:
        return KL().terms(pair)

    def derivatives(self, pair: FinitePair) -> tuple[Tensor, Tensor]:
        return KL().derivatives(pair)

    def total(self, pair: FinitePair) -> Tensor:
        return KL().total(pair).sqrt()


CASES: dict[str, Any] = {
    "traffic": traffic,
    "traffic both": lambda place: traffic(place, to_teacher=True, kind=JensenShannon()),
    "traffic renyi": lambda place: traffic(place, kind=Renyi(2.0)),
    "traffic other cut": lambda place: traffic(place, teacher_cut=late, to_teacher=True),
    "traffic top-k": lambda place: traffic(place, top_k="bucket"),
    "traffic head": head_traffic,
    "traffic head chunks": lambda place: head_traffic(place, chunk_bytes=200),
    "dtensors": whole_or_dtensor,
    "dtensor heads": dtensor_heads,
    "in place": in_place,
    "second derivatives": second_derivatives,
    "whole teacher": unlike_all,
    "other call": other_call,
    "refused dtensors": refused_dtensors,
    "forward mode": forward_mode,
    "no class": lambda place: unlike_all(
        place,
        teacher=plain()[1].tensor_split(place.size, -1)[place.rank],
        labels=torch.tensor([0, -100, 11, 1, 1, 1]),
        label_weight=0.5,
    ),
    "dtensor student": dtensor_student,
    "traffic labels": lambda place: traffic(
        place, labels=LABELS[:ROWS], label_weight=0.5, kind=JensenShannon()
    ),
    "traffic top-k labels": lambda place: traffic(
        place, top_k="bucket", labels=LABELS[:ROWS], label_weight=0.5
    ),
    "too many classes": lambda place: unlike_all(place, classes=12),
    "no sum": lambda place: unlike_all(
        place, kind=Odd(), teacher=plain()[1].tensor_split(place.size, -1)[place.rank]
    ),
    "group of wrong type": lambda place: unlike_all(place, group="tp"),
    **{
        f"different {name}": lambda place, changes=changes: different(place, **changes)
        for name, (changes, _) in DIFFERENT.items()
    },
}
SHARED = pytest.mark.parametrize("size", SIZES[1:])


@pytest.mark.sweep
@SHARED
@pytest.mark.parametrize(
    ("name", "forward"),
    [
        ("traffic", [("all_gather", 4 * ROWS), ("all_reduce", 4 * ROWS)]),
        ("traffic both", [("all_gather", 4 * ROWS), ("all_reduce", 7 * ROWS)]),
        ("traffic renyi", [("all_gather", 4 * ROWS), ("all_gather", 7 * ROWS)]),
        ("traffic labels", [("all_gather", 7 * ROWS), ("all_reduce", 4 * ROWS)]),
        ("traffic top-k labels", [("all_reduce", 5 * ROWS), ("all_gather", 4 * ROWS)]),
        ("traffic top-k", [("all_reduce", 4 * ROWS), ("all_gather", 2 * ROWS)]),
    ],
)
def test_two_collectives_forward_and_none_backward(results, name, forward, size):
    for found in results[name, size]:
        assert found["forward"][1:] == forward
        assert found["forward"][0] == ("all_gather", 32)  # the header
        assert found["backward"] == []


@SHARED
def test_logits_travel_only_where_the_sides_are_cut_in_different_places(results, size):
    lost, back = 0, 0
    for found in results["traffic other cut", size]:
        assert [name for name, _ in found["forward"]] == [
            "all_gather",
            "all_to_all_single",
            "all_gather",
            "all_reduce",
        ]
        assert [name for name, _ in found["backward"]] == ["all_to_all_single"]
        lost, back = lost + found["forward"][1][1], back + found["backward"][0][1]
    assert (
        lost == back == ROWS * CLASSES
    )  # each class of the teacher's goes to one rank, and its gradient back


@SHARED
@pytest.mark.parametrize("name", ["traffic head", "traffic head chunks"])
def test_a_head_takes_two_collectives_a_chunk_and_one_backward(results, name, size):
    seen = [found["forward"][1:] for found in results[name, size]]
    assert all(x == seen[0] for x in seen)  # also where shards are of different size
    chunks = len(seen[0]) // 2
    assert chunks == 1 if name == "traffic head" else chunks > 1
    assert [kind for kind, _ in seen[0]] == ["all_gather", "all_reduce"] * chunks
    assert sum(count for _, count in seen[0]) == (4 + 4) * 7
    assert all(found["backward"] == [("all_reduce", 7 * 5)] for found in results[name, size])


def test_one_rank_alone_sends_nothing(results):
    for name in ("traffic", "traffic top-k", "traffic head"):
        assert results[name, 1] == [{"forward": [], "backward": []}]


@pytest.mark.sweep
@SHARED
@pytest.mark.parametrize("name", ["sharded", "replicated", "plain"])
def test_dtensors_need_no_group(results, name, size):
    student, teacher = (x.requires_grad_() for x in plain())
    distillation_loss(student=student, teacher=teacher, kind=JensenShannon()).backward()
    found = [x[name] for x in results["dtensors", size]]
    torch.testing.assert_close(torch.cat([x["student"] for x in found], -1), student.grad)
    for x in found:
        torch.testing.assert_close(x["teacher"], teacher.grad)


@SHARED
def test_dtensors_of_heads_need_no_group(results, size):
    made = {name: x.requires_grad_() for name, x in tensors().items()}
    loss = linear_distillation_loss(**made)  # pyright: ignore[reportArgumentType]
    loss.backward()
    for found in results["dtensor heads", size]:
        torch.testing.assert_close(found["value"], loss.detach())
        for name, x in made.items():
            torch.testing.assert_close(found[name], x.grad)


@SHARED
def test_a_dtensor_of_a_head_goes_with_stored_classes(results, size):
    made = {name: x.requires_grad_() for name, x in tensors().items() if name.startswith("student")}
    teacher = TopK(INDICES, LOG_PROBS)
    loss = linear_distillation_loss(**made, teacher=teacher, labels=LABELS, label_weight=0.3)  # pyright: ignore[reportArgumentType]
    loss.backward()
    for found in results["dtensor student", size]:
        torch.testing.assert_close(found["value"], loss.detach())
        for name, x in made.items():
            torch.testing.assert_close(found[name], x.grad)


@pytest.mark.parametrize("size", SIZES)
def test_the_gradient_may_overwrite_the_shard(results, size):
    student, teacher = (x.requires_grad_() for x in plain())
    labels = torch.arange(ROWS) + 5
    distillation_loss(student=student, teacher=teacher, labels=labels, label_weight=0.3).backward()
    found = results["in place", size]
    for name in ("student", "logits"):
        torch.testing.assert_close(torch.cat([x[name] for x in found], -1), student.grad)


@SHARED
@pytest.mark.parametrize("name", DIFFERENT)
def test_ranks_that_disagree_all_raise(results, name, size):
    found = results[f"different {name}", size]
    for text in found:
        assert re.search(DIFFERENT[name][1], text), text
    if name not in ("invalid", "not a tensor", "no labels"):
        assert len({re.sub(r"Write: .*", "", text) for text in found}) == 1  # in the same words


@SHARED
def test_other_errors_say_what_to_write(results, size):
    texts = results["whole teacher", size]
    student, teacher = plain()
    parts = student.tensor_split(size, -1)
    for rank, text in enumerate(texts):
        start, stop = map(int, re.findall(r"teacher=teacher\[\.\.\., (\d+):(\d+)\]", text)[0])
        assert torch.equal(teacher[..., start:stop], teacher.tensor_split(size, -1)[rank])
        assert parts[rank].shape[-1] == stop - start
    assert all(
        "labels=...): wanted classes from 0 to 10 at the positions that count; got 11 (1 of 6" in text
        for text in results["no class", size]
    )
    assert all("classes=11" in text for text in results["too many classes", size])
    assert all("wanted for sharded classes, a divergence that is a sum" in x for x in results["no sum", size])
    for texts in results["second derivatives", size]:
        assert len(texts) == 4
        assert all("wanted first derivatives only" in text for text in texts)


@SHARED
def test_ranks_that_make_different_calls_all_raise(results, size):
    for text in results["other call", size]:
        assert "wanted the same call on every rank of the group" in text


@pytest.mark.parametrize("size", SIZES)
def test_what_is_no_group_is_refused(results, size):
    assert all(
        "ArgumentTypeError: distillation_loss(group=...)" in x for x in results["group of wrong type", size]
    )


@SHARED
def test_dtensors_that_do_not_say_which_classes_a_rank_has_are_refused(results, size):
    student, teacher = plain()
    for found in results["refused dtensors", size]:
        assert "student=...): wanted a DTensor with Shard(-1) in one dimension" in found["rows"]
        assert "wanted a DTensor with Shard(-1)" in found["one is whole"]
        assert "group=...): wanted None with DTensors" in found["group too"]
        assert "group=...): wanted None with DTensors" in found["head and group"]
        assert "got one without this process" in found["not in it"]
        whole = distillation_loss(student=student, teacher=teacher)
        torch.testing.assert_close(found["local with group"], whole)
        torch.testing.assert_close(found["mean"], whole)


@SHARED
def test_forward_mode_is_refused_and_not_wrong(results, size):
    for text in results["forward mode", size]:
        assert "outside torch.compile, torch.func and forward-mode differentiation" in text
