"""Two processes, with DDP or FSDP2, take the steps of one process."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

for needed in ("accelerate", "lightning", "peft", "transformers", "trl"):
    pytest.importorskip(needed)

pytestmark = pytest.mark.heavy

SECONDS = 500  # on a busy machine; alone it takes about 50
ADAPTERS = ("huggingface", "saved_head", "distillation", "gkd", "lightning")


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Any]]:
    """By case: the results of two processes that share the batches, then those of one process."""
    folder = tmp_path_factory.mktemp("processes")
    command = [sys.executable, "-W", "ignore", "-m", "tests.integrations.processes", str(folder)]
    of_one = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2]), "OMP_NUM_THREADS": "1"}
    of_two = [
        of_one | {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
        for rank in range(2)
    ]
    names = ["0 of 2", "1 of 2", "0 of 1"]
    logs = [folder / f"{name}.log" for name in names]
    workers = []
    for log, environment in zip(logs, [*of_two, of_one], strict=True):
        with log.open("w") as file:
            workers.append(subprocess.Popen(command, env=environment, stdout=file, stderr=file))
    try:
        codes = [worker.wait(SECONDS) for worker in workers]
    finally:
        for worker in workers:
            worker.kill()
    assert codes == [0, 0, 0], "\n".join(log.read_text()[-2000:] for log in logs)
    of_names = [torch.load(folder / name, weights_only=False) for name in names]
    return {case: [result[case] for result in of_names] for case in of_names[0]}


@pytest.mark.parametrize("sharded", [False, True], ids=["ddp", "fsdp2"])
@pytest.mark.parametrize("loss", ["DistillationLoss", "LinearDistillationLoss"])
@pytest.mark.parametrize("adapter", ADAPTERS)
def test_two_processes_take_the_steps_of_one(
    results: dict[str, list[Any]], adapter: str, loss: str, sharded: bool
) -> None:
    first, second, alone = results[f"{adapter} {loss} {'fsdp2' if sharded else 'ddp'}"]
    for result in (first, second, alone):
        assert not isinstance(result, str), result
    strategy = ("FSDP", "ModelParallel") if sharded else ("DistributedDataParallel", "DDP")
    assert first["parallel"].startswith(strategy)
    assert not alone["parallel"].startswith(strategy)
    # The sum over two processes rounds differently from the sum in one, so the last digit differs.
    for name, weight in alone["weights"].items():
        assert torch.equal(first["weights"][name], second["weights"][name])
        torch.testing.assert_close(first["weights"][name], weight, rtol=1e-5, atol=1e-7)
    means = [(x + y) / 2 for x, y in zip(first["losses"], second["losses"], strict=True)]
    assert means == pytest.approx(alone["losses"], rel=1e-5)
    assert alone["losses"][0] != alone["losses"][-1]


@pytest.mark.parametrize("adapter", ADAPTERS)
def test_fused_heads_take_the_steps_of_logits(results: dict[str, list[Any]], adapter: str) -> None:
    dense, fused = (
        results[f"{adapter} {loss} ddp"][2] for loss in ("DistillationLoss", "LinearDistillationLoss")
    )
    for name, weight in dense["weights"].items():
        torch.testing.assert_close(fused["weights"][name], weight, rtol=1e-4, atol=1e-6)
