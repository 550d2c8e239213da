"""Worker processes that run functions on groups of 1, 2, 3 and 4 ranks; one set of them serves all tests."""

from __future__ import annotations

import contextlib
import io
import multiprocessing
import os
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
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


class World:
    """The workers: `world[name, size]` is what a case returns on the ranks of a size; it runs when it is asked for."""

    def __init__(self, folder: Path) -> None:
        context = multiprocessing.get_context("forkserver")  # torch is imported once, not by each worker
        context.set_forkserver_preload([__name__, "tests.parallel.cases"])
        self._answers: dict[tuple[str, int], list[Any]] = {}
        self._pipes: list[Connection] = []
        self._workers: list[BaseProcess] = []
        for rank in range(SIZES[-1]):
            here, there = context.Pipe()
            worker = context.Process(target=_work, args=(rank, folder, there))
            worker.start()
            there.close()
            self._pipes.append(here)
            self._workers.append(worker)

    def __getitem__(self, case: tuple[str, int]) -> list[Any]:
        if case not in self._answers:
            for pipe in self._pipes:
                pipe.send(case)
            deadline = time.monotonic() + TOTAL_SECONDS
            places: dict[int, Any] = {}
            for pipe in self._pipes[: case[1]]:
                if not pipe.poll(max(0.0, deadline - time.monotonic())):
                    raise TimeoutError(f"no answer of all ranks to {case} in {TOTAL_SECONDS} seconds")
                places |= torch.load(io.BytesIO(pipe.recv_bytes()), weights_only=False)
            self._answers[case] = [places[place] for place in range(case[1])]
        return self._answers[case]

    def close(self) -> None:
        """End the workers."""
        for pipe in self._pipes:
            with contextlib.suppress(OSError):  # A worker that died has closed its end.
                pipe.send(None)
        for worker in self._workers:
            worker.join(COLLECTIVE_SECONDS)
            if worker.is_alive():
                worker.kill()
                worker.join()


def _work(rank: int, folder: Path, pipe: Connection) -> None:
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
    while case := pipe.recv():
        name, size = case
        if rank < size:
            place = dist.get_rank(groups[size])
            answer = io.BytesIO()
            torch.save({place: _result(CASES[name], Rank(place, size, groups[size]))}, answer)
            pipe.send_bytes(answer.getvalue())
    dist.barrier()
    dist.destroy_process_group()


def _result(case: Callable[[Rank], Any], place: Rank) -> Any:
    try:
        return case(place)
    except Exception as error:  # noqa: BLE001 - the test that asks for the case shows it
        return f"{type(error).__name__}: {error}"
