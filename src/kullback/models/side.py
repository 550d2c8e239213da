"""One side of a comparison as blocks of rows: a model, a file of predictions, a reference, or lists of top classes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from kullback.common.words import NO_LABEL
from kullback.errors import FileError, ModelError, printable
from kullback.io import PartialRows, Reference, RowSource, TopKSource
from kullback.io.blocks import rows_from
from kullback.io.windows import Windows
from kullback.models.language_model import LanguageModel, ModelInfo
from kullback.models.server import ServerModel

Block = Tensor | PartialRows


@dataclass
class ModelSide(ABC):
    """A side: its name and origin, and the windows in its own tokens."""

    info: ModelInfo
    windows: Windows

    @property
    def path(self) -> Path:
        """Its name, as a path."""
        return Path(self.info.name)

    @property
    def classes(self) -> int:
        """The number of classes of its logits."""
        return self.info.classes

    def caveats(self) -> list[str]:
        """Return remarks on the contents."""
        return []

    @abstractmethod
    def blocks(self, rows: int, first_window: int) -> Iterator[Block]:
        """Iterate over its rows from a window on, at most `rows` at a time."""

    def _first_row(self, window: int) -> int:
        return int(self.windows.scored[: int(self.windows.offsets[window])].sum())


@dataclass
class DenseSide(ModelSide):
    """A model or file that gives the logits of every class."""

    model: LanguageModel | RowSource

    def caveats(self) -> list[str]:
        return self.model.caveats() if isinstance(self.model, RowSource) else []

    def blocks(self, rows: int, first_window: int) -> Iterator[Tensor]:
        start = self._first_row(first_window)
        if isinstance(self.model, RowSource):
            for block in rows_from(self.model.blocks(rows=rows), start):
                yield block.double().log() if self.model.representation in ("probs", "counts") else block
            return
        for block in self.model.logits(self.windows, rows, first_window):
            self._check(block, start)
            start += len(block)
            yield block

    def _check(self, block: Tensor, start: int) -> None:
        if block.shape[-1] != self.classes:
            raise ModelError.at(
                printable(self.info.name),
                wanted=f"logits of {self.classes} classes",
                got=f"{block.shape[-1]}",
                instead="check the model's config.json",
            )
        bad = ~block.amax(-1).isfinite()
        if bool(bad.any()):
            row = start + int(bad.nonzero()[0])
            place = int(self.windows.scored.nonzero().squeeze(-1)[row])
            window = int(self.windows.clusters[row])
            raise ModelError.at(
                printable(self.info.name),
                wanted="finite logits",
                got=(
                    f"{_fault(block[row - start])} for token {place - int(self.windows.offsets[window])} "
                    f"of window {window} (row {row})"
                ),
                instead="run the model in another --dtype, or repair its weights",
            )

    @classmethod
    def of_file(cls, source: RowSource, windows: Windows) -> DenseSide:
        """Return a file of predictions as a side, with one row for each scored token.

        Raises:
            FileError: it has another number of rows.
        """
        if source.rows is not None and source.rows != windows.rows:
            raise FileError.at(
                f"{source.ref.name} = {source.ref.shown}",
                wanted=f"{windows.rows} rows, one for each scored token",
                got=str(source.rows),
                instead="use the text, --context and --score that the file was written with",
            )
        dtype = str(source.dtype).removeprefix("torch.")
        return cls(ModelInfo(str(source.path), source.format, dtype, source.classes), windows, source)


@dataclass
class ReferenceSide(ModelSide):
    """A reference file."""

    reference: Reference

    def blocks(self, rows: int, first_window: int) -> Iterator[PartialRows]:
        for start in range(self._first_row(first_window), self.reference.rows, rows):
            yield self.reference.read(start, min(start + rows, self.reference.rows))

    @classmethod
    def of(cls, reference: Reference) -> ReferenceSide:
        """Return an open reference as a side, with the description of its model."""
        held = reference.metadata
        numbers = [held.get(name, "") for name in ("parameters", "file_bytes")]
        parameters, file_bytes = (int(x) if x.isdecimal() else None for x in numbers)
        info = ModelInfo(
            str(reference.ref.path), "reference", held.get("dtype"), reference.classes, parameters, file_bytes
        )
        return cls(info, reference.windows, reference)


@dataclass
class ListedSide(ModelSide):
    """A server or file that gives the most probable classes."""

    source: ServerModel | TopKSource

    def blocks(self, rows: int, first_window: int) -> Iterator[PartialRows]:
        if isinstance(self.source, ServerModel):
            found = self.source.top_k(self.windows, first_window)
        else:
            found = rows_from(self._from_file(self.source), self._first_row(first_window))
        for block in found:
            for start in range(0, len(block), rows):
                yield block[start : start + rows]

    def _from_file(self, source: TopKSource) -> Iterator[PartialRows]:
        """Yield the rows of a file, which holds the scored tokens or all tokens."""
        windows, done = self.windows, 0
        labels = windows.labels
        for block in source.blocks():
            kept = block
            if source.rows is None or source.rows != windows.rows:
                kept = block[_scored(block, windows)]
            wanted = labels[done : done + len(kept)]
            known = kept.labels != NO_LABEL
            if len(wanted) < len(kept) or bool((kept.labels != wanted)[known].any()):
                raise FileError.at(
                    printable(self.info.name),
                    wanted=f"the {windows.rows} scored tokens of the text",
                    got=f"others from row {done} on",
                    instead="use the text, --context and --score that the file was written with",
                )
            done += len(kept)
            yield kept


def in_step(sides: list[ModelSide], rows: int, first_window: int) -> Iterator[list[Any]]:
    """Iterate over the same rows of all sides, a list of as many blocks at a time.

    Arguments:
        sides: the base and the candidates.
        rows: the most rows of a block.
        first_window: where to begin.
    """
    streams = [side.blocks(rows, first_window) for side in sides]
    held: list[Any] = [None] * len(sides)
    while True:
        for place, stream in enumerate(streams):
            if held[place] is None or len(held[place]) == 0:
                held[place] = next(stream, None)
        if all(block is None for block in held):
            return
        for side, block in zip(sides, held, strict=True):
            if block is None:
                raise ModelError.at(
                    printable(side.info.name),
                    wanted="predictions for as many tokens as the other sides have",
                    got="fewer",
                    instead="use files and models of the same text, --context and --score",
                )
        count = min(map(len, held))
        blocks = [block[:count] for block in held]
        held = [block[count:] for block in held]
        yield [block.cpu() if isinstance(block, Tensor) else block for block in blocks]


def _scored(block: PartialRows, windows: Windows) -> Tensor:
    """Return which rows of a file with all positions are of scored tokens."""
    inside = (block.sequences >= 0) & (block.sequences < len(windows))
    place = windows.offsets[block.sequences.clamp(0, len(windows) - 1)] + block.positions
    inside &= (block.positions >= 0) & (
        place < windows.offsets[block.sequences.clamp(0, len(windows) - 1) + 1]
    )
    return inside & windows.scored[torch.where(inside, place, 0)]


def _fault(row: Tensor) -> str:
    return "NaN" if bool(row.isnan().any()) else "+inf" if bool((row == torch.inf).any()) else "only -inf"
