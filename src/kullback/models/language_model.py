"""The interface of a language model: tokens in, rows of logits out."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from kullback.errors import ModelError, printable
from kullback.io.source_files import Closes
from kullback.io.windows import Windows
from kullback.models.vocabulary import Vocabulary

Message = Mapping[str, Any]


@dataclass(frozen=True)
class ModelInfo:
    """A model's name and origin.

    Attributes:
        name: its path or address.
        kind: ``"Hugging Face"``, ``"GGUF"``, ``"server"``, ``"reference"`` or ``"module"``.
        dtype: of its weights or logits, as in ``"bfloat16"``, or a quantization as in ``"Q4_K"``; None if unknown.
        classes: the number of classes of its logits.
        parameters: how many it has, or None if unknown.
        file_bytes: the size of its weights on disk, or None if unknown.
    """

    name: str
    kind: str
    dtype: str | None = None
    classes: int = 0
    parameters: int | None = None
    file_bytes: int | None = None

    @property
    def bits_per_weight(self) -> float | None:
        """The size on disk in bits for each parameter, or None if unknown."""
        if not self.parameters or self.file_bytes is None:
            return None
        return 8 * self.file_bytes / self.parameters


class LanguageModel(Closes, ABC):
    """A causal language model that gives logits for every scored token of windows.

    Attributes:
        info: its name, kind and size.
        vocabulary: the token of each class.
        bos: the token that begins every window, or None if the model has none or its tokenizer adds none.
    """

    info: ModelInfo
    vocabulary: Vocabulary
    bos: int | None

    @property
    def name(self) -> str:
        """The path or address of the model."""
        return self.info.name

    @property
    def classes(self) -> int:
        """The number of classes of the logits."""
        return self.info.classes

    @abstractmethod
    def encode(self, text: str) -> list[int]:
        """Return the tokens of a text, without special ones at its ends."""

    @abstractmethod
    def logits(self, windows: Windows, rows: int, first: int = 0) -> Iterator[Tensor]:
        """Iterate over the logits of the scored tokens of windows `first` and later, in order.

        Arguments:
            windows: what to read.
            rows: how many rows a block has at most. A block does not go beyond the end of a window, or of a few
                windows that are read together.
            first: the first window.

        Returns:
            an iterator over tensors of shape (at most `rows`, classes), in the dtype and on the device of the model.
        """

    def chat_text(
        self, messages: Sequence[Message], *, tools: Sequence[Any] | None = None, reply_follows: bool
    ) -> str:
        """Return a conversation in the model's chat template.

        Arguments:
            messages: dictionaries with ``"role"`` and ``"content"``.
            tools: descriptions of the tools that the assistant may call.
            reply_follows: whether to add the beginning of an assistant's reply at the end.

        Raises:
            ModelError: it has none, or does not take the conversation.
        """
        raise self._without_template()

    def chat_encode(self, text: str) -> list[int]:
        """Return the tokens of `chat_text`'s text, with special tokens written as text.

        Raises:
            ModelError: it has no template.
        """
        raise self._without_template()

    def _without_template(self) -> ModelError:
        return ModelError.at(
            printable(self.name),
            wanted="a model with a chat template",
            got="one without",
            instead="score the whole text (--score all)",
        )


def refused_conversation(name: str, error: Exception) -> ModelError:
    """Return the error of a chat template that does not take a conversation."""
    return ModelError.at(
        printable(name),
        wanted="a conversation that the chat template takes",
        got=printable(error, 200),
        instead="check the roles and their order",
    )
