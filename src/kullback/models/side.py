"""A side of a comparison as blocks of rows: a model, a file of predictions, a reference, or lists of top classes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor

from kullback.common.dtypes import dtype_name
from kullback.common.files import file_stamps
from kullback.common.words import NO_LABEL
from kullback.errors import ArgumentValueError, FileError, ModelError, invalid_value, printable
from kullback.io import PartialRows, Reference, RowSource, RowStream, TopKSource
from kullback.io.row_stream import rows_from
from kullback.io.windows import Windows
from kullback.models.language_model import LanguageModel, ModelInfo
from kullback.models.server import ServerModel
from kullback.predictions.reading import DIRECT


class ModelSide(RowStream):
    """A side of a comparison, with a name, an origin, and the windows in its own tokens.

    Reading begins at the first row of a window.
    """

    windows: Windows

    def __init__(self, info: ModelInfo, windows: Windows) -> None:
        self.info = info
        self.windows = windows  # pyright: ignore[reportIncompatibleVariableOverride]
        self.name, self.classes, self.rows = info.name, info.classes, windows.rows

    @property
    def path(self) -> Path:
        """The name of the side, as a path."""
        return Path(self.info.name)

    def identity(self) -> object:
        return [vars(self.info), file_stamps(self.info.name)]

    def in_order(self, order: Tensor) -> ModelSide:
        """Return the side with its windows in another order; refuse a side that cannot be read so."""
        raise _unsure(f"{printable(self.info.name)}, which gives some classes only")

    def _window(self, first: int) -> int:
        """Return the number of the window that begins at a row."""
        return int(self.windows.clusters[first]) if first < self.windows.rows else len(self.windows)


class DenseSide(ModelSide):
    """A model or file that gives the logits of every class."""

    def __init__(self, info: ModelInfo, windows: Windows, model: LanguageModel | RowSource) -> None:
        super().__init__(info, windows)
        self.model = model
        # The places at which a file in another order has the rows of each window.
        self._stored: list[tuple[int, int]] | None = None

    def in_order(self, order: Tensor) -> DenseSide:
        side = DenseSide(self.info, self.windows.in_order(order), self.model)
        if isinstance(self.model, RowSource):
            if self.model.format not in (*DIRECT, "stream"):
                raise _unsure(f"{printable(self.info.name)}, a file that is read from its beginning")
            counts = torch.bincount(self.windows.clusters, minlength=len(self.windows))
            starts = counts.cumsum(0) - counts
            side._stored = list(zip(starts[order].tolist(), counts[order].tolist(), strict=True))
        return side

    def caveats(self) -> list[str]:
        return self.model.caveats() if isinstance(self.model, RowSource) else []

    def identity(self) -> object:
        return self.model.identity() if isinstance(self.model, RowSource) else super().identity()

    def blocks(self, *, rows: int, first: int = 0) -> Iterator[Tensor]:
        start = first
        if isinstance(self.model, RowSource):
            for block in self._of_file(self.model, rows, first):
                yield block.double().log() if self.model.representation in ("probs", "counts") else block
            return
        for block in self.model.logits(self.windows, rows, self._window(first)):
            self._check(block, start)
            start += len(block)
            yield block

    def _of_file(self, source: RowSource, rows: int, first: int) -> Iterator[Tensor]:
        if self._stored is None:
            yield from source.blocks(rows=rows, first=first)
            return
        for start, count in self._stored[self._window(first) :]:
            left = count
            for block in source.blocks(rows=min(rows, count), first=start):
                yield block[:left]
                left -= len(block)
                if left <= 0:
                    break

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
        """Return a file of predictions as a side; refuse a file without one row for each scored token."""
        if source.rows is not None and source.rows != windows.rows:
            raise source.ref.error(
                wanted=f"{windows.rows} rows, one for each scored token",
                got=str(source.rows),
                instead="use the text, the context and the score that the file was written with",
            )
        kind = source.metadata.get("model_kind", source.format)
        dtype = source.metadata.get("dtype", dtype_name(source.dtype))
        return cls(ModelInfo(str(source.path), kind, dtype, source.classes), windows, source)


class ReferenceSide(ModelSide):
    """A reference file."""

    def __init__(self, info: ModelInfo, windows: Windows, reference: Reference) -> None:
        super().__init__(info, windows)
        self.reference = reference

    def blocks(self, *, rows: int, first: int = 0) -> Iterator[PartialRows]:
        for start in range(first, self.reference.rows, rows):
            yield self.reference.read(start, min(start + rows, self.reference.rows))

    @classmethod
    def of(cls, reference: Reference) -> ReferenceSide:
        """Return an open reference as a side, with the name and origin of the model that it records."""
        stored = reference.metadata
        numbers = [stored.get(name, "") for name in ("parameters", "file_bytes")]
        parameters, file_bytes = (int(x) if x.isdecimal() else None for x in numbers)
        path, dtype = str(reference.ref.path), stored.get("dtype")
        info = ModelInfo(path, "reference", dtype, reference.classes, parameters, file_bytes)
        return cls(info, reference.windows, reference)


class ListedSide(ModelSide):
    """A server or file that gives the most probable classes."""

    def __init__(self, info: ModelInfo, windows: Windows, source: ServerModel | TopKSource) -> None:
        super().__init__(info, windows)
        self.source = source

    def blocks(self, *, rows: int, first: int = 0) -> Iterator[PartialRows]:
        if isinstance(self.source, ServerModel):
            blocks = self.source.top_k(self.windows, self._window(first))
        else:
            blocks = rows_from(self._from_file(self.source), first)
        for block in blocks:
            for start in range(0, len(block), rows):
                yield block[start : start + rows]

    def _from_file(self, source: TopKSource) -> Iterator[PartialRows]:
        """Yield the rows of the scored tokens from a file of the scored tokens or of all tokens."""
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
                    instead="use the text, the context and the score that the file was written with",
                )
            done += len(kept)
            yield kept


def _scored(block: PartialRows, windows: Windows) -> Tensor:
    """Return a mask of the rows of scored tokens in a file of all tokens."""
    inside = (block.sequences >= 0) & (block.sequences < len(windows))
    sequences = block.sequences.clamp(0, len(windows) - 1)
    place = windows.offsets[sequences] + block.positions
    inside &= (block.positions >= 0) & (place < windows.offsets[sequences + 1])
    return inside & windows.scored[torch.where(inside, place, 0)]


def _unsure(got: str) -> ArgumentValueError:
    wanted = "models or .npy files, which give the logits of every class in any order of the windows"
    return invalid_value("Run", "until_sure", wanted=wanted, got=got, instead={"until_sure": None})


def _fault(row: Tensor) -> str:
    return "NaN" if bool(row.isnan().any()) else "+inf" if bool((row == torch.inf).any()) else "only -inf"
