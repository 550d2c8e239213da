"""Worker processes that run functions on groups of 1, 2, 3 and 4 ranks; one set of them serves all tests."""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

SIZES = (1, 2, 3, 4)
# Nobody waits longer for a rank that is gone than this, nor the tests for all ranks.
COLLECTIVE_SECONDS, TOTAL_SECONDS = 60, 240


class Rank(NamedTuple):
    """One member of a group: what a case gets."""

    rank: int
    size: int
    group: Any

    def cut(self, x: torch.Tensor, sizes: Sequence[int], dim: int = -1) -> torch.Tensor:
        """This rank's shard of a tensor, with memory and a gradient of its own."""
        shard = x.detach().split(list(sizes), dim)[self.rank]
        return shard.clone().requires_grad_(x.requires_grad)


def run(cases: Mapping[str, Callable[[Rank], Any]], folder: Path) -> dict[tuple[str, int], list[Any]]:
    """What each case returns on the ranks of each size, by name and size; an error is returned as its text."""
    context = multiprocessing.get_context("forkserver")  # torch is imported once, not by each worker
    context.set_forkserver_preload([__name__, "tests.parallel.cases"])
    workers = [context.Process(target=_work, args=(rank, sorted(cases), folder)) for rank in range(SIZES[-1])]
    for worker in workers:
        worker.start()
    deadline = time.monotonic() + TOTAL_SECONDS
    for worker in workers:
        worker.join(max(0.0, deadline - time.monotonic()))
    for worker in workers:
        if worker.is_alive():
            worker.kill()
            worker.join()
    found: dict[tuple[str, int, int], Any] = {}
    for rank in range(SIZES[-1]):
        found |= torch.load(folder / f"{rank}.pt", weights_only=False)
    return {
        (name, size): [found[name, size, rank] for rank in range(size)] for name in cases for size in SIZES
    }


def _work(rank: int, names: list[str], folder: Path) -> None:
    from tests.parallel.cases import CASES

    torch.set_num_threads(1)
    os.environ["KULLBACK_TEST_FOLDER"] = str(folder)  # where cases may write
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder / 'rendezvous'}",
        rank=rank,
        world_size=SIZES[-1],
        timeout=timedelta(seconds=COLLECTIVE_SECONDS),
    )
    # Rank numbers in the group are not those in the world.
    orders = {size: list(reversed(range(size))) for size in SIZES}
    groups = {size: dist.new_group(order, sort_ranks=False) for size, order in orders.items()}
    results: dict[tuple[str, int, int], Any] = {}
    for name in names:
        for size, group in groups.items():
            if rank < size:
                place = dist.get_rank(group)
                results[name, size, place] = _result(CASES[name], Rank(place, size, group))
    torch.save(results, folder / f"{rank}.pt")
    dist.barrier()
    dist.destroy_process_group()


def _result(case: Callable[[Rank], Any], place: Rank) -> Any:
    try:
        return case(place)
    except Exception as error:  # noqa: BLE001 - the test that asks for the case shows it
        return f"{type(error).__name__}: {error}"
