"""The code in CONTRIBUTING adds a kind, a pair, a C++ form, a backend, a teacher, a format, an estimator, a report."""

from __future__ import annotations

import ctypes
import importlib
import json as json_text
import math
import os
import re
import shutil
import subprocess
import sys
import textwrap
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import mpmath
import numpy as np
import pytest
import torch
from click.testing import CliRunner
from torch import Tensor
from torch.distributions import Normal, kl_divergence as torch_kl_divergence

import kullback
from kullback import Counts, Logits, Probs, Samples, divergence, kl_divergence, kl_estimate
from kullback.cli.commands import kullback as kullback_command
from kullback.errors import ArgumentValueError, FileError, NoRuleError, RegistrationError
from kullback.estimators import Evidence, register_estimator, registry
from kullback.estimators.evidence import interval_from
from kullback.functional import TopK, distillation_loss, linear_distillation_loss
from kullback.generators import parse
from kullback.io import TOP_K_FORMATS, Reference, open_top_k
from kullback.kernels import BACKENDS
from kullback.kernels.backends import Backend
from kullback.models import Cut, compare_models, record_reference
from kullback.nn import DistillationLoss, LinearDistillationLoss
from kullback.report import html, json, markdown
from kullback.results.verdict import Verdict
from tests.models.bytes_model import BYTES, BytesModel
from tests.refusals import refused

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")


def example(title: str, language: str = "python") -> str:
    """Return the code that the page shows in this language under a heading."""
    section = PAGE.partition(f"\n### {title}\n")[2].partition("\n#")[0]
    (code,) = re.findall(rf"^ *```{language}\n(.*?)^ *```$", section, re.MULTILINE | re.DOTALL)
    return textwrap.dedent(code)


ModuleMaker = Callable[[str, str], Any]


@pytest.fixture
def page_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleMaker]:
    """Return a function that writes the code under a heading to a file and imports it."""
    monkeypatch.syspath_prepend(tmp_path)
    names: list[str] = []

    def made(title: str, name: str) -> Any:
        (tmp_path / f"{name}.py").write_text(example(title))
        names.append(name)
        return importlib.import_module(name)

    yield made
    for name in names:
        sys.modules.pop(name)


# ---- A kind: one class, in a module of another package.
ROWS = torch.tensor([[0.2, -1.0, 0.7], [3.0, 0.0, -2.0]], dtype=torch.float64)
OTHERS = torch.tensor([[-0.3, 0.4, 0.0], [2.0, 0.5, -1.0]], dtype=torch.float64)


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An installed package that declares the divergence, as pip would leave it."""
    folder = tmp_path_factory.mktemp("site")
    (folder / "lecam.py").write_text(example("A kind"))
    (folder / "lecam-1.0.dist-info").mkdir()
    (folder / "lecam-1.0.dist-info" / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: lecam\nVersion: 1.0\n"
    )
    declared = tomllib.loads(example("A kind", "toml"))["project"]["entry-points"]
    lines = [
        f"[{group}]\n{name} = {path}\n" for group, named in declared.items() for name, path in named.items()
    ]
    (folder / "lecam-1.0.dist-info" / "entry_points.txt").write_text("".join(lines))
    return folder


@pytest.fixture
def installed(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(package)


def le_cam(p: Tensor, q: Tensor, share: float) -> Tensor:
    return ((p - q) ** 2 / (share * p + (1 - share) * q)).sum(-1)


@pytest.mark.usefixtures("installed")
def test_a_divergence_of_a_package_has_a_name() -> None:
    kind = parse("lecam:0.3")
    assert (type(kind).__name__, kind.name, parse(kind.name)) == ("LeCam", "lecam:0.3", kind)
    assert parse("lecam").name == "lecam:0.5"
    with refused(ArgumentValueError, wanted="'lecam:SHARE' with SHARE from 0 to 1", got="'lecam:2'"):
        parse("lecam:2")
    with refused(ArgumentValueError, wanted=r"one of 'kl'.*'lecam:SHARE'"):
        parse("wasserstein")


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize("share", [0.0, 0.3, 0.5])
def test_its_rows_and_losses_are_those_of_the_formula(share: float) -> None:
    kind = f"lecam:{share}"
    p, q = (x.clone().requires_grad_() for x in (ROWS, OTHERS))
    true = le_cam(p.softmax(-1), q.softmax(-1), share)
    for value in (
        divergence(Logits(p), Logits(q), kind),
        distillation_loss(student=q, teacher=p, kind=kind, reduction="none"),
    ):
        torch.testing.assert_close(value, true, rtol=1e-13, atol=0)
        found, wanted = (torch.autograd.grad(x.sum(), (p, q), retain_graph=True) for x in (value, true))
        torch.testing.assert_close(found, wanted, rtol=1e-12, atol=1e-15)
    edges = divergence(Probs([1.0, 0.0, 0.0]), Counts([1, 1, 0]), kind)
    assert edges.item() == pytest.approx(0.25 / (0.5 + share / 2) + 0.5 / (1 - share), rel=1e-6)


@pytest.mark.usefixtures("installed")
def test_its_distributions_are_integrated() -> None:
    x = torch.linspace(-12, 12, 24_001, dtype=torch.float64)
    p, q = (
        Normal(torch.tensor(0.3, dtype=torch.float64), 1.0),
        Normal(torch.tensor(0.0, dtype=torch.float64), 1.5),
    )
    true = le_cam(p.log_prob(x).exp(), q.log_prob(x).exp(), 0.3) * 0.001
    assert divergence(p, q, "lecam:0.3").item() == pytest.approx(true.item(), rel=1e-9)


@pytest.mark.sweep
def test_the_command_line_takes_its_name(package: Path) -> None:
    paths = os.pathsep.join([str(package), *sys.path])
    done = subprocess.run(
        [sys.executable, "-m", "kullback", "calc", "Normal(0.3, 1)", "Normal(0, 1.5)", "--kind", "lecam:0.3"],
        env={**os.environ, "PYTHONPATH": paths},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    p, q = (
        Normal(torch.tensor(0.3, dtype=torch.float64), 1.0),
        Normal(torch.tensor(0.0, dtype=torch.float64), 1.5),
    )
    x = torch.linspace(-12, 12, 24_001, dtype=torch.float64)
    true = le_cam(p.log_prob(x).exp(), q.log_prob(x).exp(), 0.3).item() * 0.001
    assert float(done.stdout.split(" = ")[1].split()[0]) == pytest.approx(true, rel=1e-9)


def test_a_name_is_given_once() -> None:
    with pytest.raises(ArgumentValueError, match=r"got 'kl', a name of KL. Write: short_name = 'my_kl'"):
        type("Mine", (kullback.Divergence,), {"short_name": "kl"})


# ---- A pair: one decorated function.
def test_a_pair_is_one_decorated_function() -> None:
    family, decorator, pair = example("A pair").partition("@register_kl")
    names: dict[str, Any] = {"__name__": "power_law"}
    exec(family, names)  # noqa: S102
    p, q = (names["PowerLaw"](torch.tensor(x, dtype=torch.float64, requires_grad=True)) for x in (3.0, 2.5))
    with refused(NoRuleError, instead=r"@register_kl\(PowerLaw, PowerLaw\)"):
        kl_divergence(p, q)
    with pytest.raises(NotImplementedError):
        torch_kl_divergence(p, q)
    exec(decorator + pair, names)  # noqa: S102
    estimate = kl_estimate(p, q)
    assert estimate.method == "closed_form"
    x = (torch.arange(100_000, dtype=torch.float64) + 0.5) / 100_000
    true = (p.log_prob(x).exp() * (p.log_prob(x) - q.log_prob(x))).mean()
    torch.testing.assert_close(estimate.value, true, rtol=1e-7, atol=0)
    powers = p.power, q.power
    found, wanted = (torch.autograd.grad(value, powers) for value in (estimate.value, true))
    torch.testing.assert_close(found, wanted, rtol=1e-7, atol=0)
    assert kl_divergence(p, q) == estimate.value
    kullback.install()
    try:
        assert torch_kl_divergence(p, q) == estimate.value
    finally:
        kullback.uninstall()


# ---- A closed form in C++: one class and its name.
DRIVER = """
#include "closed_forms/kernel.cpp"
extern "C" bool power_law(int64_t n, const double* p, const double* q, double* value, double* by_p, double* by_q) {
  using namespace kullback;
  return baseline::compute_form({ElementForm::kPowerLaw, Dtype::kFloat64, 2, n, {{p, 1}, {q, 1}}, value, {by_p, by_q}});
}
"""


@pytest.mark.sweep
def test_a_closed_form_in_c_is_a_class_and_a_name(tmp_path: Path) -> None:
    compiler = shutil.which(os.environ.get("CXX", "c++"))
    if compiler is None:
        pytest.skip("no C++ compiler")
    shutil.copytree(ROOT / "csrc", tmp_path / "csrc")
    header, end = tmp_path / "csrc" / "closed_forms" / "elements.h", "}  // namespace KULLBACK_ISA"
    text = header.read_text()
    assert text.count(end) == 1
    header.write_text(text.replace(end, f"{example('A closed form in C++', 'cpp')}\n{end}"))
    codes = (ROOT / "src" / "kullback" / "kernels" / "codes.py").read_text()
    codes, changes = re.subn(
        r",\n    \) = range\((\d+)\)", lambda m: f", POWER_LAW,\n    ) = range({int(m[1]) + 1})", codes
    )
    assert changes == 1
    (tmp_path / "codes.py").write_text(codes)
    write = tmp_path / "csrc" / "common" / "write_codes.py"
    subprocess.run([sys.executable, write, tmp_path / "codes.py", tmp_path / "codes.h"], check=True)
    (tmp_path / "driver.cpp").write_text(DRIVER)
    flags = ["-std=c++20", "-O0", "-fPIC", "-shared", "-DKULLBACK_ISA=baseline", "-I.", "-Icsrc"]
    subprocess.run([compiler, *flags, "driver.cpp", "-o", "form.so"], cwd=tmp_path, check=True)
    powers = torch.tensor([3.0, 2.5, 1e-3, 7e4, 2.0, 0.5], dtype=torch.float64)
    others = torch.tensor([2.5, 3.0, 2e3, 7.000001e4, 2.0, 1e-70], dtype=torch.float64)
    results = torch.zeros(3, len(powers), dtype=torch.float64)
    compute = ctypes.CDLL(str(tmp_path / "form.so")).power_law
    pointers = [ctypes.c_void_p(x.data_ptr()) for x in (powers, others, *results)]
    assert compute(ctypes.c_int64(len(powers)), *pointers) & 1
    with mpmath.workdps(50):
        for a, b, *computed in zip(powers.tolist(), others.tolist(), *results.tolist(), strict=True):
            ratio = mpmath.mpf(b) / a
            true = ratio - 1 - mpmath.log(ratio), (1 - ratio) / a, (1 - 1 / ratio) / a
            assert computed == pytest.approx([float(x) for x in true], rel=1e-14, abs=0)


# ---- A backend: one module.
def test_a_backend_is_one_file(page_module: ModuleMaker) -> None:
    student, teacher = OTHERS.float().requires_grad_(), ROWS.float()
    settings = {"student": student, "teacher": teacher, "kind": "js:0.3"}
    hidden = torch.eye(2, dtype=torch.float32)
    head = {
        "student": hidden,
        "student_weight": OTHERS.float().T.clone().requires_grad_(),
        "teacher": hidden,
        "teacher_weight": ROWS.float().T,
    }
    before = distillation_loss(**settings)
    (gradient,) = torch.autograd.grad(before, student)
    backend = page_module("A backend", "counting")
    BACKENDS.insert(0, backend)
    try:
        loss = distillation_loss(**settings)
        torch.testing.assert_close(loss, before)
        torch.testing.assert_close(torch.autograd.grad(loss, student)[0], gradient)
        assert backend.calls == [("total", "js:0.3", 2)]
        divergence(Logits(teacher), Logits(student), "tv").sum().backward()
        assert backend.calls[1:] == [("values", "tv", 2), ("values", "tv", 2)]  # forward and backward
        linear_distillation_loss(**head, kind="kl").backward()
        assert backend.calls[3:] == [("values", "kl", 2)]
        divergence(Logits(teacher), Logits(student), "renyi:2")
        divergence(Logits(ROWS), Logits(OTHERS), "tv")
        assert len(backend.calls) == 4
        assert kullback.backends()[0] == Backend(
            "counting", True, "counts rows", ("cpu",), ("float32",), ("every divergence",)
        )
        backend.missing = lambda: "no licence"
        assert kullback.backends()[0].reason == "no licence"
    finally:
        BACKENDS.remove(backend)


# ---- A teacher: one file.
CLASSES = 7


@pytest.fixture
def ensemble(page_module: ModuleMaker) -> Any:
    return page_module("A teacher", "ensemble").Ensemble


def random_rows(*shape: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64).requires_grad_()


def formula(kind: str, p: Tensor, log_q: Tensor) -> Tensor:
    """Return a divergence of each row from the definition; the entries of p may be 0."""

    def kl(a: Tensor, log_b: Tensor) -> Tensor:
        return (torch.xlogy(a, a) - a * log_b).sum(-1)

    q = log_q.exp()
    if kind == "js:0.3":
        log_mean = (0.3 * p + 0.7 * q).log()
        return 0.3 * kl(p, log_mean) + 0.7 * kl(q, log_mean)
    return (p - q).abs().sum(-1) / 2 if kind == "tv" else kl(p, log_q)


@pytest.mark.parametrize("reduction", ["none", "sum", "mean", "batchmean"])
@pytest.mark.parametrize("temperature", [1.0, 2.5])
@pytest.mark.parametrize("kind", ["kl", "js:0.3", "tv"])
@pytest.mark.parametrize("label_weight", [0.0, 0.25])
def test_a_teacher_is_one_file(
    ensemble: Any, kind: str, temperature: float, reduction: Any, label_weight: float
) -> None:
    """Values and gradients of every loss are those of the averaged probabilities of all classes."""
    members, hidden, head = (
        random_rows(2, 3, 2, 4, seed=1),
        random_rows(2, 3, 5, seed=2),
        random_rows(CLASSES, 5, seed=3),
    )
    indices = torch.rand(2, 3, CLASSES, generator=torch.Generator().manual_seed(4)).argsort(-1)[..., :4]
    weight = random_rows(2, 3, seed=5).detach().exp()
    mask, labels = torch.tensor([[True, False, True], [True, True, True]]), indices[..., 0]
    counted = {"mask": mask, "weight": weight} | ({"labels": labels} if label_weight else {})
    teacher = ensemble(indices, members)
    settings = {
        "kind": kind,
        "temperature": temperature,
        "reduction": reduction,
        "label_weight": label_weight,
    }
    logits = hidden @ head.T
    losses = (
        distillation_loss(student=logits, teacher=teacher, **counted, **settings),
        DistillationLoss(**settings)(student=logits, teacher=teacher, **counted),
        # Two positions in each chunk.
        linear_distillation_loss(
            student=hidden, student_weight=head, teacher=teacher, chunk_bytes=112, **counted, **settings
        ),
        LinearDistillationLoss(**settings)(student=hidden, student_weight=head, teacher=teacher, **counted),
    )
    averaged = (members / temperature).softmax(-1).mean(-2)
    p = torch.zeros(2, 3, CLASSES, dtype=torch.float64).scatter(-1, indices, averaged)
    values = (1 - label_weight) * formula(kind, p, (logits / temperature).log_softmax(-1))
    at_labels = logits.log_softmax(-1).gather(-1, labels.unsqueeze(-1)).squeeze(-1)
    values = (values - label_weight * at_labels) * weight * mask
    divisor = {"mean": (weight * mask).sum(), "batchmean": 2}.get(reduction, 1)
    true = values if reduction == "none" else values.sum() / divisor
    gradients = torch.autograd.grad(true.sum(), (hidden, head, members), retain_graph=True)
    for loss in losses:
        torch.testing.assert_close(loss, true, rtol=1e-12, atol=1e-15)
        by = torch.autograd.grad(loss.sum(), (hidden, head, members), retain_graph=True)
        torch.testing.assert_close(by, gradients, rtol=1e-10, atol=1e-14)


def test_a_teacher_keeps_the_promises_of_the_losses(ensemble: Any) -> None:
    """It may be computed in inference mode, may lack positions, and has to fit the student."""
    student = random_rows(3, CLASSES, seed=1)
    indices, members = torch.arange(4).expand(3, 4), random_rows(3, 2, 4, seed=2).detach()
    with torch.inference_mode():
        frozen = ensemble(indices.clone(), members.clone())
    teacher = ensemble(indices, members)
    by = [
        torch.autograd.grad(distillation_loss(student=student, teacher=x), student) for x in (frozen, teacher)
    ]
    torch.testing.assert_close(*by, rtol=0, atol=0)
    empty = ensemble(indices[:0], members[:0])
    assert distillation_loss(student=student[:0], teacher=empty).item() == 0
    loss = distillation_loss(student=student.float(), teacher=ensemble(indices, members.float()))
    assert loss.dtype == torch.float32
    with refused(ArgumentValueError, wanted="indices below .* 3", got="an index 3"):
        distillation_loss(student=student[:, :3], teacher=teacher)
    with refused(ArgumentValueError, wanted=r"the teacher's positions, shape \(3,\)"):
        distillation_loss(student=student[:2], teacher=teacher)
    with pytest.raises(ArgumentValueError, match=r"teacher_weight.*Ensemble, which has no head"):
        linear_distillation_loss(
            student=student, student_weight=student, teacher=teacher, teacher_weight=student
        )


# ---- A format of top tokens: a converter.
WINDOW, LISTED = 8, 12
TEXT = "how far is one distribution from another? " * 4


@pytest.fixture
def steps(
    page_module: ModuleMaker, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> tuple[Path, BytesModel, BytesModel]:
    """A file in the format of the page, of a model over the text of a reference; the model, and another."""
    monkeypatch.setitem(TOP_K_FORMATS, "steps", TOP_K_FORMATS["vllm"])  # and removed afterwards
    page_module("A format of top tokens", "steps")
    assert len(example("A format of top tokens").splitlines()) <= 40
    draw = torch.Generator().manual_seed(0)
    table, noise = 2.5 * torch.randn(2, BYTES, BYTES, generator=draw, dtype=torch.float64)
    base, other = BytesModel("base", table), BytesModel("other", table + noise / 10)
    record_reference(other, TEXT, tmp_path / "other.klref", cut=Cut(context=WINDOW))
    with Reference(tmp_path / "other.klref") as reference:
        windows = reference.windows
    lines = []
    for number in range(len(windows)):
        prompt, *tokens = windows.window(number)[0].tolist()
        places = list(zip([prompt, *tokens], tokens, strict=False))
        rows = [(base.table[last].log_softmax(-1), token) for last, token in places]
        lines.append(
            {
                "prompt": prompt,
                "steps": [
                    {
                        "token": token,
                        "log_prob": float(row[token]),
                        "best": {int(i): float(row[i]) for i in row.topk(LISTED).indices},
                    }
                    for row, token in rows
                ],
            }
        )
    path = tmp_path / "served.jsonl"
    path.write_text("\n".join(map(json_text.dumps, lines)))
    return path, base, other


def test_a_format_of_the_page_is_a_side_a_reference_and_a_teacher(
    steps: tuple[Path, BytesModel, BytesModel],
) -> None:
    path, base, other = steps
    reference = path.with_name("other.klref")
    true = compare_models(base, other, TEXT, cut=Cut(context=WINDOW))
    exact = true.candidates[0].comparison.divergences
    with open_top_k(path, classes=BYTES) as source:
        assert source.format == "steps"
        sides = compare_models(reference, source)
        rows = next(source.blocks(rows=50))
    assert sides.candidates[0].certain is not None
    assert sides.candidates[0].certain["tv"][0] <= exact["tv"].mean <= sides.candidates[0].certain["tv"][1]
    converted = path.with_name("served.klref")
    run = CliRunner().invoke
    shown = run(kullback_command, ["convert", str(path), str(converted), "--classes", str(BYTES)])
    assert shown.exit_code == 0, shown.output
    with Reference(converted) as written:
        assert (written.top, written.classes) == (LISTED, BYTES)
    shown = run(kullback_command, ["compare", str(reference), str(path)])
    assert shown.exit_code == 0, shown.output
    teacher = TopK(rows.top_indices, rows.top_log_probs)
    student = torch.zeros(50, BYTES, requires_grad=True)
    loss = distillation_loss(student=student, teacher=teacher)
    loss.backward()
    assert student.grad is not None
    assert 0 < loss.item() < math.log(BYTES)


def test_a_format_of_the_page_refuses_in_one_line(steps: tuple[Path, BytesModel, BytesModel]) -> None:
    for record, words in (
        ({"prompt": 1, "steps": 3}, "steps, a list; got 3 at record 0"),
        (
            {"prompt": 1, "steps": [{"token": 2}]},
            "a step with its best tokens; got a dict at record 0, position 1",
        ),
        ({"prompt": 1, "steps": [{"token": 2, "best": {"x": 0}}]}, "top-k log-probabilities"),
        (
            {"prompt": 1, "steps": [{"token": 2, "log_prob": 1.5, "best": {"2": 1.5}}]},
            "got 1.5 at sequence 0, position 1",
        ),
    ):
        with pytest.raises(FileError, match=words) as caught, open_top_k(record) as source:
            list(source.blocks())
        assert "\n" not in str(caught.value)


# ---- An estimator: one function of the draws.
@pytest.fixture
def exponential(page_module: ModuleMaker) -> Iterator[Any]:
    yield page_module("An estimator", "exponential_estimator").exponential
    registry.METHODS.remove("exponential")
    del registry.CONTINUOUS["exponential"]


@pytest.mark.sweep
@pytest.mark.parametrize("kind", ["plain", "clusters", "weights"])
def test_an_estimator_of_one_function_has_intervals_that_cover(exponential: Any, kind: str) -> None:
    """KL of exponentials with means 1 and 2, from draws: plain, in clusters of 4 with a common part, weighted."""
    truth, covered = math.log(2) - 0.5, 0
    for seed in range(150):
        rng = np.random.default_rng(seed)
        x, y = rng.exponential(1.0, 400), rng.exponential(2.0, 400)
        group = np.repeat(np.arange(100), 4)
        # The exponential of unit mean as a sum of two gamma variables of shape 1 / 2, of which a cluster shares one.
        shared = rng.gamma(0.5, size=100)[group] + rng.gamma(0.5, size=400)
        # Draws of an exponential with mean 2 / 3, weighted to mean 1.
        third = rng.exponential(2 / 3, 400)
        sides = {
            "plain": (Samples(x), Samples(y)),
            "clusters": (Samples(shared, cluster=group), Samples(y)),
            "weights": (Samples(third, weights=np.exp(third / 2)), Samples(y)),
        }
        low, high = kl_estimate(*sides[kind], method="exponential").interval or (torch.nan, torch.nan)
        covered += bool(low <= truth <= high)
    assert covered >= 135, covered  # of 150: three standard errors below 95 %


def test_the_estimator_takes_the_other_direction_its_own_name_and_refusals(exponential: Any) -> None:
    rng = np.random.default_rng(0)
    p, q = Samples(rng.exponential(1.0, 500)), Samples(rng.exponential(3.0, 500))
    plain = exponential(p, q, confidence=0.9)
    assert plain.method == "exponential"
    assert plain.n == (500, 500)
    ratio = float(p.tensor.mean() / q.tensor.mean())
    assert float(plain.value) == pytest.approx(ratio - 1 - math.log(ratio), rel=1e-12)
    by_name = kl_estimate(p, q, method="exponential", confidence=0.9)
    assert (by_name.value, by_name.interval) == (plain.value, plain.interval)
    back = kullback.estimate(q, p, "reverse_kl", method="exponential", confidence=0.9)
    assert (back.value, back.interval) == (plain.value, plain.interval)
    both = kullback.estimate(p, q, "jeffreys", method="exponential")
    assert float(both.value) == pytest.approx(float(plain.value) + 1 / ratio - 1 + math.log(ratio), rel=1e-12)
    with refused(ArgumentValueError, call="kl_estimate", argument="q", wanted="finite draws"):
        kl_estimate(p, Samples([1.0, math.inf]), method="exponential")
    with refused(
        ArgumentValueError, call="kl_estimate", argument="method", wanted=".*for categories, one of.*"
    ):
        kl_estimate(Samples([0, 1]), Samples([0, 1]), method="exponential")
    with refused(RegistrationError, call="register_estimator", argument="name", got="'histogram'"):
        register_estimator("histogram")(lambda p, q, **_: Evidence(0.0))


def test_other_evidence_gives_an_interval_too() -> None:
    """Resampled values give quantiles, a standard error a normal interval; biases move the limits."""
    values = np.linspace(0.1, 0.9, 1001)
    given = {
        (0.12, 0.88): Evidence(0.5, resampled=values),
        (0.3, 0.7): Evidence(0.5, ends=(0.3, 0.7)),
        (0.2, 0.9): Evidence(0.5, ends=(0.3, 0.7), bias_low=0.1, bias_high=0.2),
        (0.5 - 0.196, 0.5 + 0.196): Evidence(0.5, error=0.1),
        (0.0, math.inf): Evidence(0.1, error=0.1, bias_high=math.inf),
    }
    for wanted, evidence in given.items():
        assert interval_from(evidence, 0.95).ends == pytest.approx(wanted, abs=1e-4), evidence
    assert interval_from(Evidence(0.5, resampled=values), 0.95).error == pytest.approx(values.std(), rel=1e-3)
    assert interval_from(Evidence(0.5), 0.95).ends is None
    below = interval_from(Evidence(-0.2, error=0.01, notes=["A note."]), 0.95)
    assert (below.value, below.ends) == (0.0, (0.0, 0.0))
    assert [note[:21] for note in below.notes] == ["The estimate is -0.2:", "A note."]


# ---- The page.
def test_the_paths_of_the_page_exist() -> None:
    paths = re.findall(r"`((?:src|csrc|tests|benchmarks|docs|packaging|\.ci|\.github)(?:/[\w./-]*)?)`", PAGE)
    inner = re.findall(r"`((?:kernels|pairs|estimators|tables)/[\w./]*)`", PAGE)
    assert len(paths) > 20
    assert len(inner) > 5
    places = [ROOT / path for path in paths] + [ROOT / "src" / "kullback" / path for path in inner]
    assert [place for place in places if not place.exists()] == []


def test_the_report_of_the_page_is_a_subject_and_a_medium(page_module: ModuleMaker) -> None:
    module = page_module("A report", "coin_report")
    verdicts = [Verdict("heads at most 2", ("heads is 3, above 2 by 1",))]
    coin = module.Coin(3, 7)
    assert "3 of 7 tosses are heads" in html.render(coin, verdicts)
    assert "- ❌ heads at most 2: heads is 3, above 2 by 1" in markdown.render(coin, verdicts)
    assert json.to_dict(coin, verdicts)["gates"]["passed"] is False
    assert module.to_tabs(coin, verdicts).splitlines() == [
        "Failed: 1 of 1 limit broken. 3 of 7 tosses are heads",
        "side\tcount",
        "heads\t3",
        "tails\t4",
    ]
    p = Probs(torch.tensor([[0.5, 0.5], [0.9, 0.1]]))
    assert module.to_tabs(kullback.compare_predictions(p, p)).startswith("P and Q are equal in every row")
