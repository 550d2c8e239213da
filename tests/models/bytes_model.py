"""A language model of bytes whose logits depend on the last byte alone."""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor

from kullback.io import Windows
from kullback.models import LanguageModel, ModelInfo, Token, Vocabulary

BYTES = 256


class BytesModel(LanguageModel):
    """The model, whose `table` has the logits of the next byte after each byte, shape (256, 256)."""

    vocabulary = Vocabulary([Token(bytes([byte])) for byte in range(BYTES)])
    bos = None

    def __init__(self, name: str, table: Tensor) -> None:
        self.info = ModelInfo(name, "bytes", "float64", classes=BYTES)
        self.table = table

    def encode(self, text: str) -> list[int]:
        return list(text.encode())

    def logits(self, windows: Windows, rows: int, first: int = 0) -> Iterator[Tensor]:
        for number in range(first, len(windows)):
            tokens, scored = windows.window(number)
            yield from self.table[tokens[scored.nonzero().squeeze(-1) - 1]].split(rows)
