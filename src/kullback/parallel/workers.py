"""Processes that divide the rows of a task. Every process gets all results, and if a process fails, all processes raise
its error.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Generator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, TypeVar

import torch.distributed as dist

from kullback.errors import (
    ArgumentTypeError,
    ArgumentValueError,
    FileError,
    KullbackError,
    OptionalDependencyError,
)
from kullback.parallel.collectives import Ranks

# The timeout in seconds for a worker that neither answers nor exits. A worker that exits closes its connections, so it
# needs no timeout.
_SECONDS = 300
_ENVIRONMENT = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
_SAME_CLASS = {
    x.__name__: x for x in (FileError, ArgumentValueError, ArgumentTypeError, OptionalDependencyError)
}
_T = TypeVar("_T")


class Workers:
    """The processes of a group for CPU tensors, such as gloo's, or only this process. All make the same calls."""

    def __init__(self, call: str, group: Any = None) -> None:
        ranks = None if group is None else Ranks(call, group)
        self.call, self.group = call, group
        self.rank, self.size = (0, 1) if ranks is None else (ranks.rank, ranks.size)

    def gather(self, compute: Callable[[], _T]) -> list[_T]:
        """Return the results of `compute` of all workers, in rank order, sent by pickle. If some fail, every worker
        raises the error of the lowest rank.
        """
        if self.size == 1:
            return [compute()]
        result = error = failure = None
        try:
            result = compute()
        except Exception as caught:  # noqa: BLE001  every failure is sent to the other workers
            error = caught
            message = caught.explanation if isinstance(caught, KullbackError) else None
            failure = type(caught).__name__, message or str(caught), isinstance(caught, KullbackError)
        answers: list[Any] = [None] * self.size
        try:
            dist.all_gather_object(answers, (result, failure), group=self.group)
        except (RuntimeError, EOFError) as lost:
            raise KullbackError.at(
                self.call,
                wanted=f"an answer from all {self.size} workers",
                got=f"worker {self.rank} has none from some: a worker exited or lost its connection",
                instead="Start all workers again",
                wording="wanted {wanted}; {got}. {instead}",
            ) from lost
        for rank, (_, problem) in enumerate(answers):
            if problem is None:
                continue
            if rank == self.rank and error is not None:
                raise error
            name, message, is_ours = problem
            raise _SAME_CLASS.get(name, KullbackError)(
                message if is_ours else f"worker {rank}: {name}: {message}"
            )
        return [answer for answer, _ in answers]

    def each(self, compute: Callable[[], _T]) -> _T:
        """Return this worker's result of `compute` after all workers have finished without an error."""
        results: list[_T] = []
        self.gather(lambda: results.append(compute()))
        return results[0]


def worker_count() -> int:
    """Return the number of workers that torchrun started, from its environment variables; else 1."""
    is_complete = all(name in os.environ for name in _ENVIRONMENT)
    count = os.environ["WORLD_SIZE"] if is_complete else "1"
    return int(count) if count.isdigit() else 1


@contextmanager
def torchrun_workers(call: str) -> Generator[Workers]:
    """Connect and yield the workers that torchrun started, or this process alone; raise if they cannot connect."""
    if worker_count() <= 1:
        yield Workers(call)
        return
    try:
        dist.init_process_group("gloo", timeout=timedelta(seconds=_SECONDS))
    except (RuntimeError, ValueError) as error:
        raise KullbackError.at(
            call,
            wanted=f"{os.environ['WORLD_SIZE']} workers started by torchrun to connect within {_SECONDS} s",
            got=f"worker {os.environ['RANK']} could not ({' '.join(str(error).split())[:200]})",
            instead="torchrun --nproc-per-node N -m kullback compare ..., or kullback compare ... for one process",
            wording="wanted {wanted}; {got}. Write: {instead}",
        ) from error
    try:
        yield Workers(call, dist.group.WORLD)
    finally:
        dist.destroy_process_group()
