"""One side of a comparison: a language model with its windows, or a file of predictions, as blocks of logits."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import torch
from torch import Tensor

from kullback.errors import FileError, ModelError, printable
from kullback.io import RowSource
from kullback.io.windows import Windows
from kullback.models.language_model import LanguageModel, ModelInfo
from kullback.models.vocabulary import SharedClasses

__all__ = ["DenseSide", "in_step", "side_of_file"]


@dataclass
class DenseSide:
    """A model or file that gives the logits of every class.

    Attributes:
        model: the model, or the open file.
        info: what is known of it.
        windows: the windows in its own tokens.
        noise: the relative size of the noise that is added to every layer, 0 for none.
    """

    model: LanguageModel | RowSource
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
        return self.model.caveats() if isinstance(self.model, RowSource) else []

    def blocks(self, rows: int, first_window: int) -> Iterator[Tensor]:
        """Iterate over its rows from a window on, at most `rows` at a time, none beyond the end of a window."""
        start = int(self.windows.scored[: int(self.windows.offsets[first_window])].sum())
        if isinstance(self.model, RowSource):
            yield from self._stored(self.model, rows, start)
            return
        for block in self.model.logits(self.windows, rows, first_window):
            self._check(block, start)
            start += len(block)
            yield block

    def _stored(self, source: RowSource, rows: int, start: int) -> Iterator[Tensor]:
        skip = start
        for block in source.blocks(rows=rows):
            kept = block[skip:]
            skip = max(0, skip - len(block))
            if len(kept):
                logs = kept.double().log() if source.representation in ("probs", "counts") else kept
                yield logs

    def _check(self, block: Tensor, start: int) -> None:
        if block.shape[-1] != self.classes:
            raise ModelError(
                f"{printable(self.info.name)}: wanted logits of {self.classes} classes; got {block.shape[-1]}; check "
                "the model's config.json"
            )
        bad = ~block.amax(-1).isfinite()
        if bool(bad.any()):
            row = start + int(bad.nonzero()[0])
            place = int(self.windows.scored.nonzero().squeeze(-1)[row])
            window = int(self.windows.clusters[row])
            raise ModelError(
                f"{printable(self.info.name)}: wanted finite logits; got {_fault(block[row - start])} for token "
                f"{place - int(self.windows.offsets[window])} of window {window} (row {row}); run the model in another "
                "--dtype, or mend its weights"
            )


def _fault(row: Tensor) -> str:
    return "NaN" if bool(row.isnan().any()) else "+inf" if bool((row == torch.inf).any()) else "only -inf"


def side_of_file(source: RowSource, windows: Windows) -> DenseSide:
    """Return a file of predictions as a side; its rows are those of the scored tokens.

    Raises:
        FileError: it has another number of rows.
    """
    if source.rows is not None and source.rows != windows.rows:
        raise FileError(
            f"{source.ref.name} = {source.ref.shown}: wanted {windows.rows} rows, one for each scored token; got "
            f"{source.rows}; use the text, --context and --score that the file was written with"
        )

    info = ModelInfo(
        str(source.path), source.format, str(source.dtype).removeprefix("torch."), source.classes
    )

    return DenseSide(source, info, windows)


def in_step(
    sides: list[DenseSide], maps: list[SharedClasses | None], rows: int, first_window: int
) -> Iterator[list[tuple[Tensor, Tensor]]]:
    """Iterate over the same rows of the base, the first side, and every candidate, as pairs in their shared classes.

    Arguments:
        sides: the base and the candidates.
        maps: the shared classes of the base and each candidate, or None where all are.
        rows: the most rows of a block.
        first_window: where to begin.
    """
    streams = [side.blocks(rows, first_window) for side in sides]
    held: list[Tensor | None] = [None] * len(sides)
    while True:
        for place, stream in enumerate(streams):
            block = held[place]
            if block is None or len(block) == 0:
                held[place] = next(stream, None)
        if any(block is None for block in held):
            return
        blocks = cast("list[Tensor]", held)
        count = min(map(len, blocks))
        base, *others = (block[:count].cpu() for block in blocks)
        pairs = [
            (base, other)
            if shared is None
            else (shared.rows(base, of_p=True), shared.rows(other, of_p=False))
            for other, shared in zip(others, maps, strict=True)
        ]
        del base, others
        held = [block[count:] for block in blocks]
        yield pairs
