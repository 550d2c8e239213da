"""Open a side of a comparison: a folder, a GGUF file, a server, a module, or a file of predictions."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from kullback.common.constraints import FLAG, Arguments, Constraint
from kullback.common.shared_constraints import DTYPE
from kullback.common.words import RepresentationName
from kullback.errors import ModelError, invalid_type, invalid_value, printable
from kullback.io import Reference, RowSource, TopKSource, open_rows, open_top_k
from kullback.models.huggingface_model import HuggingFaceModel, head_classes, open_folder
from kullback.models.language_model import LanguageModel, ModelInfo
from kullback.models.parameters import parameter_count
from kullback.models.server import ServerModel

LISTS = (".json", ".jsonl", ".ndjson")

Progress = Callable[[int, int | None], object]

OPENING: dict[str, Constraint] = {
    "dtype": DTYPE,
    "trust_remote_code": FLAG,
    "hub": FLAG,
}
_ARGUMENTS = Arguments("open_model", **OPENING)


def open_model(
    model: object,
    *,
    tokenizer: Any = None,
    dtype: str = "auto",
    device: str = "cpu",
    trust_remote_code: bool = False,
    hub: bool = False,
    argument: str = "model",
) -> LanguageModel:
    """Open a language model.

    Arguments:
        model: a folder of a Hugging Face model, a ``.gguf`` file, or a module.
        tokenizer: the tokenizer of a module.
        dtype: of the weights of a folder.
        device: where a folder runs.
        trust_remote_code: whether code in the folder may run.
        hub: whether a name may be the name of a model on the Hugging Face hub.
        argument: the argument that it was passed as, for error messages.

    Raises:
        ModelError: there is none, or it cannot be loaded.

    Example:
        >>> open_model("nowhere/model")
        Traceback (most recent call last):
            ...
        kullback.errors.ModelError: model = nowhere/model: wanted a folder of a Hugging Face model, ...
    """
    _ARGUMENTS.check(**locals())
    options = OpenOptions(
        tokenizer=tokenizer, dtype=dtype, device=device, trust_remote_code=trust_remote_code, hub=hub
    )
    return options.model(model, argument)


def _module(model: torch.nn.Module, tokenizer: Any, argument: str) -> HuggingFaceModel:
    if tokenizer is None:
        raise invalid_value(
            "compare_models",
            "tokenizer",
            wanted=f"the tokenizer of the module {argument}",
            got="none",
            instead="tokenizer=AutoTokenizer.from_pretrained(folder)",
        )
    name = str(getattr(getattr(model, "config", None), "_name_or_path", "")) or type(model).__name__
    first = next(model.parameters(), torch.empty(0))
    classes = head_classes(model)
    if classes is None:
        tokens = torch.zeros(1, 1, dtype=torch.int64, device=first.device)
        with torch.inference_mode():
            classes = model(input_ids=tokens).logits.shape[-1]
    dtype = str(first.dtype).removeprefix("torch.")
    info = ModelInfo(name, "module", dtype, classes, parameter_count(model), None)
    return HuggingFaceModel(model, tokenizer, info)


@dataclass(frozen=True)
class OpenOptions:
    """How the sides of a comparison are opened."""

    tokenizer: Any = None
    representation: RepresentationName | None = None
    dtype: str = "auto"
    device: str = "cpu"
    trust_remote_code: bool = False
    hub: bool = False
    api_key_env: str | None = None
    server_top: int = 20

    def model(self, given: object, argument: str = "model") -> LanguageModel:
        """Open a language model; `open_model` with these options."""
        if isinstance(given, LanguageModel):
            return given
        if isinstance(given, torch.nn.Module):
            return _module(given, self.tokenizer, argument)
        if not isinstance(given, str | os.PathLike):
            raise invalid_type(
                "compare_models",
                argument,
                wanted="a path, a module, or an open source of rows",
                got=type(given).__name__,
                instead=f"{argument}='folder/of/model'",
            )
        name = os.fspath(given)
        path = Path(name)
        if name.lower().endswith(".gguf") and path.is_file():
            from kullback.models.gguf import GGUFModel

            return GGUFModel(path, device=self.device)
        if (path.is_dir() and (path / "config.json").is_file()) or (self.hub and not path.exists()):
            weights = {"dtype": self.dtype, "device": self.device}
            return open_folder(name, **weights, trust_remote_code=self.trust_remote_code, hub=self.hub)
        found = (
            ("a folder without config.json" if path.is_dir() else "another file") if path.exists() else None
        )
        raise ModelError.at(
            f"{argument} = {printable(name)}",
            wanted="a folder of a Hugging Face model, a .gguf file or a server",
            got=f"{found or 'nothing there'}",
            instead="check the path, or add --hub (hub=True) for a name on the Hugging Face hub",
        )


Opened = LanguageModel | RowSource | Reference | TopKSource


def is_reference(given: object) -> bool:
    """Whether an argument is a reference file, or its path."""
    if isinstance(given, str | os.PathLike):
        return os.fspath(given).lower().endswith(".klref")
    return isinstance(given, Reference)


def opened_in(stack: ExitStack, given: object, argument: str, options: OpenOptions) -> Opened:
    """Open a side, and close it with the stack, unless it was given open."""
    opened = open_side(given, argument, options)
    if opened is not given:
        stack.callback(opened.close)
    return opened


def open_side(given: object, argument: str, options: OpenOptions) -> Opened:
    """Open a model, a server, a reference, a file of predictions, or one of top classes."""
    if isinstance(given, RowSource | Reference | TopKSource):
        return given
    if isinstance(given, str | os.PathLike):
        name = os.fspath(given)
        path = Path(name)
        if is_reference(name):
            return Reference(path, name=argument)
        if name.startswith(("http://", "https://")):
            return ServerModel(name, top=options.server_top, api_key_env=options.api_key_env)
        if path.is_file() and path.suffix.lower() in LISTS:
            return open_top_k(path, name=argument)
        if path.is_file() and path.suffix.lower() != ".gguf":
            return open_rows(path, representation=options.representation, name=argument)
    return options.model(given, argument)
