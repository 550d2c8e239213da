"""The settings of a run: how rows are read, which statistics are computed, and the goal at which reading stops."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch

from kullback.common.constraints import FLAG, GENERATOR, Arguments, Whole, function
from kullback.common.extra_arguments import by_name
from kullback.common.row_statistics import BUILT_IN
from kullback.common.shared_constraints import BOOTSTRAP, RUNS as RUNS_SHARING_ERRORS, WORST
from kullback.errors import Name, invalid_type, invalid_value, safe_repr

# The names of means in gates, with the names of the statistics.
LIMITED = {"mean": "kl_pq", "kl_qp.mean": "kl_qp", "js.mean": "js", "tv.mean": "tv", "top1": "top1_agreement"}
_HIGHEST = {each.name: each.high for each in BUILT_IN}
WANTED = f"a limit such as 'mean=0.01' (of {', '.join(LIMITED)}), 'order', or a width such as 'width=10%'"


@dataclass(frozen=True)
class Goal:
    """A question that a run answers with as few windows as possible.

    Attributes:
        text: the goal as the user wrote it.
        kind: ``"limit"``: a mean is above or below a limit. ``"order"``: each candidate is farther from the base than
            another one, or nearer. ``"width"``: the interval of the mean KL(P || Q) is narrow.
        statistic: the name of the statistic whose mean the goal is about.
        number: the limit or the width; 0 for an order.
        is_share: whether the width is a share of the mean.
    """

    text: str
    kind: Literal["limit", "order", "width"]
    statistic: str = "kl_pq"
    number: float = 0.0
    is_share: bool = False

    @classmethod
    def read(cls, text: object) -> Goal:
        """Return the goal that a text describes.

        Example:
            >>> Goal.read("width=10%").number, Goal.read("top1=0.99").statistic, Goal.read("order").kind
            (0.1, 'top1_agreement', 'order')
        """
        if isinstance(text, Goal):
            return text
        if text == "order":
            return cls("order", "order")
        name, _, amount = text.partition("=") if isinstance(text, str) else ("", "", "")
        is_share = name == "width" and amount.endswith("%")
        try:
            number = float(amount.removesuffix("%") if is_share else amount) / (100 if is_share else 1)
        except ValueError:
            number = math.nan
        if name == "width" and not is_share and number >= 1:
            wanted = "a width in nats below 1, or a share of the mean with %"
            instead = {"until_sure": f"width={amount}%"}
            raise invalid_value("Run", "until_sure", wanted=wanted, got=safe_repr(text), instead=instead)
        statistic = LIMITED.get(name, "kl_pq")
        highest = _HIGHEST[statistic]
        if (name != "width" and name not in LIMITED) or not 0 < number < highest:
            wanted, instead = WANTED, {"until_sure": "mean=0.01"}
            if name in LIMITED and not math.isnan(number):
                wanted = f"a limit of {name} above 0" + f" and below {highest:.6g}" * (highest < math.inf)
            raise invalid_value("Run", "until_sure", wanted=wanted, got=safe_repr(text), instead=instead)
        return cls(str(text), "width" if name == "width" else "limit", statistic, number, is_share)


# glibc returns freed blocks above 32 MiB to the system at once; smaller blocks would fragment its heap.
BLOCK_BYTES = 40 * 1024 * 1024

Progress = Callable[[int, int | None], object]

ARGUMENTS = Arguments(
    "Run",
    worst=WORST,
    bootstrap=BOOTSTRAP,
    block_bytes=Whole(least=1, example=BLOCK_BYTES),
    independent=FLAG,
    generator=GENERATOR,
    progress=function("progress=print, which takes the numbers of finished rows and of all rows"),
    llama_cpp=FLAG,
)
RUNS = Arguments("Run", runs=RUNS_SHARING_ERRORS)


@by_name()
@dataclass(frozen=True)
class Run:
    """The settings of a comparison's run.

    Attributes:
        worst: the number of rows with the largest KL(P || Q) to return.
        bootstrap: the number of bootstrap draws for the intervals, at most 100,000; 0 for no intervals.
        generator: the random generator of the bootstrap; None for a generator with a fixed seed.
        independent: whether rows are known to be independent. If so, their order is not examined. For language models,
            this refers to windows or documents instead of rows.
        llama_cpp: whether to compute also the numbers that ``llama-perplexity --kl-divergence`` prints. All logits of
            both sides must be known. The numbers take 8 bytes of memory for each row.
        block_bytes: the memory of a block of rows of one side, in bytes.
        progress: a function that is called with the number of finished rows and the number of all rows (None if that is
            unknown before the end). None for no calls.
        resume: a file that keeps the finished rows. A run that was stopped continues from this file and gives the same
            result as an uninterrupted run. The file is removed at the end, even if it was there before and empty. None
            for no file.
        until_sure: for language models, the goal at which reading stops; None to read the whole text. ``"mean=0.01"``
            reads until the mean KL(P || Q) is above or below 0.01. ``"order"`` reads until the order of the candidates
            is clear. ``"width=10%"`` reads until the interval of the mean is at most 10 % of the mean wide.
            Limits of ``"js.mean"``, ``"tv.mean"``, ``"kl_qp.mean"`` and ``"top1"`` are goals too. Windows, or documents
            if there are ten or more, are read in random order. The intervals hold at every look, for this text.
        runs: for a run with a goal, the number of runs that share the error rate of 5 %. If a check is repeated this
            often, all its decisions are right with a probability of 95 %.

    Raises:
        ArgumentTypeError, ArgumentValueError: an attribute has a wrong type or value.

    Example:
        >>> Run(worst=-1)
        Traceback (most recent call last):
            ...
        kullback.errors.ArgumentValueError: Run(worst=...): wanted an integer of 0 or more; got -1. Write: worst=10
    """

    worst: int = 10
    bootstrap: int = 1000
    generator: torch.Generator | None = None
    independent: bool = False
    llama_cpp: bool = False
    block_bytes: int = BLOCK_BYTES
    progress: Progress | None = None
    resume: str | os.PathLike[str] | None = None
    until_sure: str | Goal | None = None
    runs: int = 1

    def __post_init__(self) -> None:
        ARGUMENTS.settle(self)
        RUNS.settle(self)
        require_state("Run", self.resume)
        if self.until_sure is not None:
            object.__setattr__(self, "until_sure", Goal.read(self.until_sure))
        elif self.runs > 1:
            wanted = "a goal, whose intervals hold at every error rate"
            got = f"{self.runs} without ", Name("until_sure")
            raise invalid_value("Run", "runs", wanted=wanted, got=got, instead={"until_sure": "mean=0.01"})

    @property
    def goal(self) -> Goal | None:
        """The goal at which reading stops; None to read everything."""
        return None if self.until_sure is None else Goal.read(self.until_sure)


def require_state(call: str, resume: object) -> None:
    """Refuse a value that is neither a path nor None."""
    if resume is None or (isinstance(resume, str | os.PathLike) and isinstance(os.fspath(resume), str)):
        return
    wanted, instead = "the path of a file, or None", "resume='report.state'"
    raise invalid_type(call, "resume", wanted=wanted, got=safe_repr(resume), instead=instead)


RUN = Run()
