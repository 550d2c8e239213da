"""The run of a base and its candidates over all windows, and its result."""

from __future__ import annotations

import math
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from functools import partial
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from kullback.common.streaming import Moments
from kullback.errors import ModelError
from kullback.models.model_results import Candidate, Passage, ReadToken
from kullback.models.pairing import Pairing, PairingSettings, Part
from kullback.models.passages import LENGTH
from kullback.models.side import ModelSide, in_step
from kullback.predictions.checkpoint import (
    Checkpoint,
    decoded_rows,
    decoded_tops,
    encoded_rows,
)
from kullback.predictions.mean_intervals import RatioOfSums
from kullback.predictions.run import Progress
from kullback.results.value import Value


class Reading:
    """Reads all sides in step, window by window.

    Arguments:
        base: the base.
        pairings: the base with each candidate.
        settings: the settings of the comparison.
    """

    def __init__(self, base: ModelSide, pairings: Sequence[Pairing], settings: PairingSettings) -> None:
        self._sides = [base, *(pairing.candidate for pairing in pairings)]
        self._pairings, self._settings = pairings, settings
        self._rows = 0

    def all_windows(
        self, block_bytes: int, progress: Progress | None, checkpoint: Checkpoint | None = None
    ) -> None:
        """Read all windows; finished ones come from the checkpoint."""
        windows = self._settings.windows
        ends = windows.clusters.bincount(minlength=len(windows)).cumsum(0).tolist()
        if checkpoint is not None:
            for record in checkpoint.records():
                parts = [_decoded_part(each) for each in record]
                for pairing, part in zip(self._pairings, parts, strict=True):
                    pairing.add(part)
                self._rows += len(parts[0][0])
        first = ends.index(self._rows) + 1 if self._rows else 0
        self._read(first, block_bytes, progress, checkpoint)
        if self._rows != windows.rows:
            wanted, instead = f"predictions for {windows.rows} tokens", "a model or file ended early"
            raise ModelError.at("", wanted=wanted, got=str(self._rows), instead=instead)

    def _read(
        self, first: int, block_bytes: int, progress: Progress | None, checkpoint: Checkpoint | None
    ) -> None:
        windows = self._settings.windows
        rows = max(1, block_bytes // (4 * max(1, *(side.classes for side in self._sides))))
        rows = rows // LENGTH * LENGTH or rows  # whole passages
        ends_of_windows = set((windows.clusters.diff() != 0).nonzero().squeeze(-1).add(1).tolist())
        record: list[list[Part]] = [[] for _ in self._pairings]
        with ThreadPoolExecutor(torch.get_num_threads()) as pool:
            for base, *others in in_step(self._sides, rows, first):
                ends = self._pairings[0].passages.ends(self._rows, self._rows + len(base))
                spans = list(zip([0, *ends[:-1]], ends, strict=True))
                for pairing, other, kept in zip(self._pairings, others, record, strict=True):
                    p, q = pairing.prepared(base, other)
                    for part in pool.map(partial(pairing.measured, self._rows, p, q), spans):
                        pairing.add(part)
                        if checkpoint is not None:
                            kept.append(part)
                self._rows += len(base)
                if progress is not None:
                    progress(self._rows, windows.rows)
                if checkpoint is not None and self._rows in (*ends_of_windows, windows.rows):
                    checkpoint.add([_encoded_part(_joined(kept)) for kept in record])
                    record = [[] for _ in self._pairings]


def differences(found: Sequence[tuple[Candidate, Tensor]], settings: PairingSettings) -> list[Value[float]]:
    """Return the mean KL of each candidate minus the mean KL of the one before it, paired by rows."""
    means: list[Value[float]] = []
    for (candidate, before), (following, after) in pairwise(found):
        mean = _difference(after - before, settings)
        open_ends = candidate.is_open_above, following.is_open_above
        if any(open_ends) and mean.interval is not None:
            low, high = mean.interval
            ends = -math.inf if open_ends[0] else low, math.inf if open_ends[1] else high
            mean = replace(mean, interval=None if all(open_ends) else ends, reason="not bounded")
        means.append(mean)
    return means


def _difference(values: Tensor, settings: PairingSettings) -> Value[float]:
    moments = Moments()
    moments.add(values)
    estimator = settings.estimator()
    estimator.add(values[:, None])
    found = estimator.estimates([RatioOfSums(0)])[0]
    return Value(float(moments.mean), found.standard_error, found.interval, reason=found.reason)


def _joined(parts: list[Part]) -> Part:
    tables, worst, passages = zip(*parts, strict=True)
    return (
        torch.cat(tables),
        [row for each in worst for row in each],
        [each for held in passages for each in held],
    )


def _encoded_part(part: Part) -> dict[str, Any]:
    """Return measured rows as values that JSON can represent."""
    table, worst, passages = part
    held = [[first, asdict(passage)] for first, passage in passages]
    return {**encoded_rows(table, worst), "passages": held}


def _decoded_part(record: Any) -> Part:
    """Return the rows that `_encoded_part` encoded."""
    table, worst = decoded_rows(record)
    return table, worst, [(first, _passage(each)) for first, each in record["passages"]]


def _passage(record: Any) -> Passage:
    tokens = [ReadToken(**token | {"top": decoded_tops(token["top"])}) for token in record["tokens"]]
    return Passage(**record | {"tokens": tokens})
