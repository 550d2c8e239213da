"""The interface of a language model, which takes tokens and returns rows of logits."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from kullback.errors import BY_PLACE, ModelError, printable
from kullback.io.source_files import Closes
from kullback.io.windows import Windows
from kullback.models.vocabulary import Vocabulary

Message = Mapping[str, Any]


@dataclass(frozen=True)
class ModelInfo:
    """A model's name and origin.

    Attributes:
        name: the path or address of the model.
        kind: ``"Hugging Face"``, ``"GGUF"``, ``"server"``, ``"reference"``, ``"module"``, ``"hidden states"``, or the
            format of a file.
        dtype: the dtype of the weights or logits, such as ``"bfloat16"``, or a quantization, such as ``"Q4_K"``; None
            if unknown.
        classes: the number of classes of the logits.
        parameters: the number of parameters; None if unknown.
        file_bytes: the size of the weights on disk, in bytes; None if unknown.
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
        info: the model's name, kind and size.
        vocabulary: the token of each class.
        bos: the token that begins every window, or None if the tokenizer adds no such token.
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
        """Return the tokens of a text, without special tokens at the ends."""

    @abstractmethod
    def logits(self, windows: Windows, rows: int, first: int = 0) -> Iterator[Tensor]:
        """Iterate over the logits of the scored tokens of windows `first` and later, in order.

        Arguments:
            windows: the windows to read.
            rows: the largest number of rows in a block. A block does not go beyond the end of a window, or of a few
                windows that are read together.
            first: the number of the first window.

        Returns:
            an iterator over tensors of shape (at most `rows`, classes), in the dtype and on the device of the model.
        """

    def chat_text(
        self, messages: Sequence[Message], *, tools: Sequence[Any] | None = None, reply_follows: bool
    ) -> str:
        """Return a conversation in the model's chat template.

        Arguments:
            messages: dictionaries with ``"role"`` and ``"content"``.
            tools: descriptions of the tools that the assistant may call; None without tools.
            reply_follows: whether to add the beginning of an assistant's reply at the end.

        Raises:
            ModelError: the model has no chat template, or the template refuses the conversation.
        """
        raise self._without_template()

    def chat_encode(self, text: str) -> list[int]:
        """Return the tokens of a text from `chat_text`, which writes special tokens as text.

        Raises:
            ModelError: the model has no chat template.
        """
        raise self._without_template()

    def error(self, *, wanted: str, got: str, instead: str, wording: str = BY_PLACE) -> ModelError:
        """Return an error about this model."""
        return ModelError.at(printable(self.name), wanted=wanted, got=got, instead=instead, wording=wording)

    def refused(self, error: Exception) -> ModelError:
        """Return the error for a conversation that the chat template refuses."""
        return self.error(
            wanted="a conversation that the chat template takes",
            got=printable(error, 200),
            instead="check the roles and their order",
        )

    def _without_template(self) -> ModelError:
        return self.error(
            wanted="a model with a chat template",
            got="one without",
            instead="score the whole text (--score all)",
        )


def not_opened(shown: str, *, wanted: str, got: str, instead: str) -> ModelError:
    """Return the error for a model, called `shown`, that cannot be opened."""
    return ModelError.at(f"model = {shown}", "model", wanted=wanted, got=got, instead=instead)


def not_causal(shown: str, got: str) -> ModelError:
    """Return the error for a model, called `shown`, that does not predict the next token."""
    instead = "only models that predict the next token can be compared on a text"
    return not_opened(shown, wanted="a causal language model", got=got, instead=instead)
