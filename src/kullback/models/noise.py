"""A model with rounding noise of its dtype in every layer. Divergences from the original model show the effect of
rounding.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from kullback.errors import ModelError, printable
from kullback.io.windows import Windows
from kullback.models.huggingface_model import HuggingFaceModel
from kullback.models.language_model import LanguageModel

SEED = 20_260_101


class NoisyModel(LanguageModel):
    r"""A Hugging Face model whose layers return :math:`x (1 + \epsilon u)` instead of :math:`x`.

    u is uniform on [-1/2, 1/2], independent for every element. :math:`\epsilon` is the distance of adjacent numbers of
    the model's dtype near 1. The noise is the error of an additional rounding in every layer. The draws of a window
    depend only on the number of the window.

    Raises:
        ModelError: the model is not a Hugging Face model, or its layers cannot be found.
    """

    def __init__(self, model: LanguageModel) -> None:
        layers = _layers(model.model) if isinstance(model, HuggingFaceModel) else []
        if not isinstance(model, HuggingFaceModel) or not layers:
            raise ModelError.at(
                printable(model.name),
                wanted="a Hugging Face model whose layers are a list, for the noise floor",
                got=model.info.kind,
                instead="leave the noise floor out (--noise-floor)",
            )
        self._model, self._layers = model, layers
        dtype = next(model.model.parameters()).dtype
        self._size = torch.finfo(dtype).eps
        self.info = replace(
            model.info, name=f"{model.name} with noise of {str(dtype).removeprefix('torch.')}"
        )
        self.vocabulary, self.bos = model.vocabulary, model.bos

    def encode(self, text: str) -> list[int]:
        return self._model.encode(text)

    def logits(self, windows: Windows, rows: int, first: int = 0) -> Iterator[Tensor]:
        for number in range(first, len(windows)):
            tokens, scored = windows.window(number)
            one = Windows(tokens, torch.tensor([0, len(tokens)], device="cpu"), scored)
            generator = torch.Generator().manual_seed(SEED + number)
            blocks = self._model.logits(one, rows)
            while True:
                # The noise is on only while this model runs, because the base shares the module.
                with self._noise(generator):
                    block = next(blocks, None)
                if block is None:
                    break
                yield block

    @contextmanager
    def _noise(self, generator: torch.Generator) -> Generator[None]:
        def disturbed(_module: torch.nn.Module, _inputs: Any, output: Any) -> Any:
            x = output[0] if isinstance(output, tuple) else output
            if not isinstance(x, Tensor):
                raise self.error(
                    wanted="layers that return a tensor or a tuple of one",
                    got=type(x).__name__,
                    instead="leave the noise floor out (--noise-floor)",
                )
            noise = torch.rand(x.shape, generator=generator, device="cpu").to(x.device) - 0.5
            x = (x.float() * (1 + self._size * noise)).to(x.dtype)
            return (x, *output[1:]) if isinstance(output, tuple) else x

        with ExitStack() as stack:
            for layer in self._layers:
                stack.callback(layer.register_forward_hook(disturbed).remove)
            yield


def _layers(model: torch.nn.Module) -> list[torch.nn.Module]:
    """Return the layers of a model, which are the longest `ModuleList` of modules of one type."""
    lists = [
        list(each)
        for each in model.modules()
        if isinstance(each, torch.nn.ModuleList) and len({type(m) for m in each}) == 1
    ]
    return max(lists, key=len, default=[])
