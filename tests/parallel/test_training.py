"""The examples of training in parallel give the gradients of one process; and the metric its values."""

from __future__ import annotations

import importlib
import inspect
import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from examples.parallel_training import (
    counted_by_rank,
    data,
    data_parallel,
    fully_sharded,
    sharded_head,
    tensor_parallel,
)
from torch import Tensor

from kullback import KL, JensenShannon
from kullback.functional import distillation_loss
from kullback.metrics import KLDivergence
from tests.parallel.world import SIZES, Rank

LEVELS = [0.0, 0.01, 0.25, 0.5, 0.9, 1.0]


def whole(x: Any) -> Tensor:
    return x.full_tensor() if hasattr(x, "full_tensor") else x


def trained(step: Any, place: Rank, *, by_sequence: bool, dim: int = 0) -> dict[str, Any]:
    model, teacher, tokens, mask = data()
    if by_sequence:
        tokens, mask = (x.tensor_split(place.size, dim)[place.rank] for x in (tokens, mask))
    loss = step(model, teacher, tokens, mask, place.group)
    return {"loss": loss.detach(), **{name: whole(x.grad).clone() for name, x in model.named_parameters()}}


def rows() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(2)
    return torch.rand(203, 7, generator=generator), torch.rand(203, 7, generator=generator)


def measured(place: Rank) -> dict[str, Any]:
    """What the metric says on this rank: the states are synchronized as torchmetrics does it."""
    metric = KLDivergence(process_group=place.group)
    kept = KLDivergence(reduction="none", process_group=place.group)
    p, q = (x.tensor_split(place.size)[place.rank] for x in rows())
    # As many batches on every rank, of different size.
    for part in torch.arange(len(p)).tensor_split(3):
        metric.update(p[part], q[part])
        kept.update(p[part], q[part])
    return {
        "mean": metric.compute(),
        "error": metric.standard_error(),
        "quantile": metric.quantile(LEVELS),
        "kept quantile": kept.quantile(LEVELS),
        "rows": kept.compute(),
    }


CASES: dict[str, Any] = {
    "ddp": lambda place: trained(data_parallel, place, by_sequence=True),
    "context parallel": lambda place: trained(data_parallel, place, by_sequence=True, dim=1),
    "fsdp": lambda place: trained(fully_sharded, place, by_sequence=True),
    "tensor parallel": lambda place: trained(tensor_parallel, place, by_sequence=False),
    "sharded head": lambda place: trained(sharded_head, place, by_sequence=False),
    "metric": measured,
}


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", ["ddp", "context parallel", "fsdp", "tensor parallel", "sharded head"])
def test_a_step_has_the_gradient_of_one_process(results, name, size):
    model, teacher, tokens, mask = data()
    shares = name in ("tensor parallel", "sharded head")  # of the classes, not of the positions
    kind = JensenShannon() if shares else KL()
    expected = distillation_loss(
        student=model(tokens), teacher=teacher(tokens).detach(), mask=mask, kind=kind
    )
    expected.backward()
    found = results[name, size]
    losses = torch.stack([x["loss"] for x in found])
    torch.testing.assert_close(losses[0] if shares else losses.mean(), expected.detach())
    for parameter, x in model.named_parameters():
        parts = [part[parameter] for part in found]
        if name == "sharded head" and parameter == "head.weight":  # each rank has that of its classes
            got = torch.stack(parts).sum(0)
        else:
            assert all(torch.equal(part, parts[0]) for part in parts)
            got = parts[0]
        torch.testing.assert_close(got, x.grad)


@pytest.mark.parametrize("size", SIZES)
def test_the_metric_does_not_depend_on_the_number_of_processes(results, size):
    one, *_ = results["metric", 1]
    for found in results["metric", size]:
        assert torch.equal(found["quantile"], one["quantile"])
        assert torch.equal(found["kept quantile"], one["kept quantile"])
        assert torch.equal(found["rows"].sort().values, one["rows"].sort().values)
        torch.testing.assert_close(found["mean"], one["mean"], rtol=1e-7, atol=0)
        torch.testing.assert_close(found["error"], one["error"], rtol=1e-6, atol=0)


def test_the_page_of_costs_is_made_of_the_committed_numbers(monkeypatch):
    root = Path(__file__).parents[2]
    monkeypatch.syspath_prepend(root / "benchmarks")
    bench = importlib.import_module("bench_parallel")
    document = json.loads((root / "benchmarks/results/parallel.json").read_text())
    assert bench.PAGE.read_text() == bench.page_of(document)
    assert [result["case"] for result in document["cases"]] == bench.CASES
    for result in document["cases"]:
        for ranks, found in result["ranks"].items():
            counted = [size for _, size in found["sharded"]["sent"]]
            rows = result["case"]["rows"]
            assert counted == ([] if ranks == "1" else [32 * 8, 4 * rows * 8, 4 * rows * 8])


def test_what_a_ring_brings(monkeypatch):
    """A gather brings the parts of all others; a sum twice all but one part."""
    monkeypatch.syspath_prepend(Path(__file__).parents[2] / "benchmarks")
    bench = importlib.import_module("bench_parallel")
    assert bench.received([("all_gather", 100)], 4) == 300
    assert bench.received([("all_reduce", 100)], 4) == 150


def test_the_page_shows_the_functions_as_they_are() -> None:
    page = Path(__file__).parents[2] / "docs" / "tutorial" / "parallel.md"
    shown = re.findall(r"^```py\n(.*?)^```$", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    steps = (counted_by_rank, data_parallel, fully_sharded, tensor_parallel, sharded_head)
    assert shown == [inspect.getsource(step) for step in steps]
