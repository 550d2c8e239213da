"""The losses that NeMo Automodel and ModelOpt name in configurations: called as they call, beside theirs.

The real classes are read from the packages' files where these are installed, as NeMo needs much else to be
imported. What is expected without them is written out in float64.
"""

from __future__ import annotations

import importlib.util
import inspect
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor

from kullback.errors import KullbackError
from kullback.functional import distillation_loss
from kullback.integrations.modelopt import LogitsDistillationLoss
from kullback.integrations.nemo import KDLoss
from tests.refusals import refused

pytestmark = pytest.mark.heavy

LABELS = torch.tensor([[3, -100, 1, 0, 2, -100], [1, 2, -100, 4, 0, 0]])


def logits(shape: tuple[int, ...] = (2, 6, 9)) -> tuple[Tensor, Tensor]:
    torch.manual_seed(5)
    student, teacher = torch.randn(2, *shape).mul(2)
    return student.requires_grad_(), teacher


def kl(p: Tensor, q: Tensor, temperature: float = 1.0) -> Tensor:
    log_p, log_q = ((x.double() / temperature).log_softmax(-1) for x in (p, q))
    return (log_p.exp() * (log_p - log_q)).sum(-1)


def file_of(package: str, path: str) -> ModuleType:
    """A file of an installed package, without the package."""
    found = importlib.util.find_spec(package)
    if found is None or found.origin is None:
        pytest.skip(f"{package} is not installed")
    spec = importlib.util.spec_from_file_location(f"{package}_file", Path(found.origin).parent / path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def assert_same(mine: Tensor, theirs: Tensor, student: Tensor, shift: float | Tensor = 0.0) -> None:
    """The same value, up to a constant, and the same gradient."""
    torch.testing.assert_close(mine.double(), theirs.double() - shift, rtol=2e-5, atol=1e-6)
    a, b = (torch.autograd.grad(x, student, retain_graph=True)[0] for x in (mine, theirs))
    torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-7)


# NeMo Automodel


@pytest.mark.parametrize("temperature", [1.0, 2.5])
@pytest.mark.parametrize("count", [None, 20, torch.tensor(20)])
def test_nemo_calls_by_position_with_the_number_of_labels(temperature: float, count: Any) -> None:
    student, teacher = logits()
    loss = KDLoss(-100, temperature, True, None, 0)
    rows = kl(teacher, student, temperature)[LABELS != -100] * temperature**2
    want = rows.mean() if count is None else rows.sum() / 20
    assert_same(loss(student, teacher, LABELS, num_batch_labels=count), want, student)
    flat = loss(student.flatten(0, 1), teacher.flatten(0, 1), LABELS, num_batch_labels=count)
    assert_same(flat, want, student)
    assert loss.temperature == temperature


@pytest.mark.filterwarnings("ignore:.*no position counts")
@pytest.mark.parametrize("count", [0, torch.tensor(0)])
def test_the_loss_of_a_nemo_step_without_labels_is_zero(count: Any) -> None:
    student, teacher = logits()
    loss = KDLoss()(student, teacher, torch.full_like(LABELS, -100), count)
    assert loss.item() == 0
    assert not torch.autograd.grad(loss, student)[0].any()


def test_nemos_own() -> None:
    own = file_of("nemo_automodel", "components/loss/kd_loss.py").KDLoss
    mine, theirs = (list(inspect.signature(x).parameters) for x in (KDLoss, own))
    assert mine == [*theirs, "kind"]
    mine, theirs = (list(inspect.signature(x.forward).parameters) for x in (KDLoss, own))
    assert mine == theirs
    student, teacher = logits()
    for settings in ({}, {"temperature": 3.0}, {"chunk_size": 2}):
        for count in (None, 17):
            given = student, teacher, LABELS, count
            assert_same(KDLoss(**settings)(*given), own(**settings)(*given), student)
    nothing = torch.full_like(LABELS, -100)
    assert KDLoss()(student, teacher, nothing) == own()(student, teacher, nothing) == 0


def test_nemo_takes_a_kind_from_a_configuration_file() -> None:
    student, teacher = logits()
    want = distillation_loss(
        student=student,
        teacher=teacher,
        kind="js:0.3",
        labels=LABELS,
        temperature=2.0,
        temperature_squared=True,
    )
    assert_same(KDLoss(temperature=2.0, kind="js:0.3")(student, teacher, LABELS), want, student)
    with refused(KullbackError, wanted="one of 'kl', 'reverse_kl'"):
        KDLoss(kind="ce")


@pytest.mark.skipif(
    "group" not in inspect.signature(distillation_loss).parameters, reason="the losses take no process group"
)
def test_nemo_names_a_process_group(tmp_path: Path) -> None:
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        student, teacher = logits()
        loss = KDLoss(tp_group=torch.distributed.group.WORLD)
        assert_same(loss(student, teacher, LABELS), kl(teacher, student)[LABELS != -100].mean(), student)
    finally:
        torch.distributed.destroy_process_group()


# ModelOpt


class Outputs:
    """What a language model returns."""

    def __init__(self, logits: Tensor) -> None:
        self.logits = logits


@pytest.mark.parametrize("temperature", [1.0, 2.0])
@pytest.mark.parametrize("wrap", [lambda x: x, Outputs, lambda x: {"logits": x}, lambda x: (x,)])
def test_modelopt_calls_with_outputs(temperature: float, wrap: Any) -> None:
    student, teacher = logits()
    teacher.requires_grad_()
    rows = kl(teacher.detach(), student, temperature) * temperature**2
    for reduction, want in (("mean", rows.mean()), ("sum", rows.sum()), ("batchmean", rows.sum() / 2)):
        loss = LogitsDistillationLoss(temperature, reduction)(wrap(student), wrap(teacher))
        assert_same(loss, want, student)
        assert teacher.grad is None
    none = LogitsDistillationLoss(temperature, "none")(wrap(student), wrap(teacher))
    torch.testing.assert_close(none.double(), rows, rtol=1e-5, atol=1e-7)


@pytest.mark.filterwarnings("ignore")  # of torch's, on the mean over classes
def test_modelopts_own() -> None:
    own = file_of("modelopt", "torch/distill/losses.py").LogitsDistillationLoss
    student, teacher = logits((12, 9))
    for temperature in (1.0, 2.0):
        mine = LogitsDistillationLoss(temperature)(student, teacher)
        assert_same(mine, own(temperature, "batchmean")(student, teacher), student)
        # Its default divides by the 9 classes too.
        assert_same(mine, own(temperature)(student, teacher) * 9, student)


@pytest.mark.filterwarnings("ignore")  # of ModelOpt's own
def test_modelopt_trains_with_it() -> None:
    if importlib.util.find_spec("modelopt") is None:
        pytest.skip("modelopt is not installed")
    distill = pytest.importorskip("modelopt.torch.distill", exc_type=ImportError)
    torch.manual_seed(0)
    student, teacher = torch.nn.Linear(4, 3), torch.nn.Linear(4, 3)
    before = teacher.weight.clone()
    config = {"teacher_model": teacher, "criterion": LogitsDistillationLoss(kind="js:0.5")}
    model = distill.convert(student, mode=[("kd_loss", config)])
    optimizer = torch.optim.SGD([x for x in model.parameters() if x.requires_grad], lr=0.5)
    x, found = torch.randn(16, 4), []
    for _ in range(20):
        model(x)
        loss = model.compute_kd_loss()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        found.append(float(loss.detach()))
    assert found[-1] < 0.5 * found[0]
    assert torch.equal(teacher.weight, before)


@pytest.mark.parametrize(
    "loss",
    [
        KDLoss(temperature=2.0, kind="reverse_kl"),
        lambda student, teacher, labels: LogitsDistillationLoss(kind="js:0.5")(student, teacher),
    ],
    ids=["nemo", "modelopt"],
)
def test_a_tiny_model_learns(loss: Any) -> None:
    torch.manual_seed(0)
    tokens = torch.randint(0, 9, LABELS.shape)
    student, teacher = (
        torch.nn.Sequential(torch.nn.Embedding(9, 4), torch.nn.Linear(4, 9)) for _ in range(2)
    )
    optimizer, found = torch.optim.Adam(student.parameters(), lr=0.05), []
    for _ in range(60):
        with torch.no_grad():
            target = 3 * teacher(tokens)
        value = loss(student(tokens), target, LABELS)
        optimizer.zero_grad()
        value.backward()
        optimizer.step()
        found.append(value.item())
    assert found[-1] < 0.3 * found[0]


def test_these_adapters_import_no_trainer() -> None:
    names = ("nemo_automodel", "modelopt", "verl", "trl", "lightning")
    probe = (
        "import sys; import kullback.integrations.nemo, "
        "kullback.integrations.modelopt, kullback.integrations.verl; "
        f"print([x for x in {names} if x in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
