"""Open a side of a comparison: a folder, a GGUF file, a server, a module, or a file of predictions."""

from __future__ import annotations

import os
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from kullback.common.constraints import FLAG, Arguments
from kullback.common.dtypes import dtype_name
from kullback.common.extra_arguments import by_name
from kullback.common.shared_constraints import DTYPE, REPRESENTATION, SERVER_TOP
from kullback.common.words import RepresentationName, is_address, is_card, is_hidden_states
from kullback.errors import ModelError, invalid_type, invalid_value, printable
from kullback.io import Reference, RowSource, RowStream, TopKSource, open_rows, open_top_k
from kullback.io.row_sources import checked
from kullback.models.card import open_card
from kullback.models.huggingface_model import HuggingFaceModel, head_classes, open_folder, parameter_count
from kullback.models.language_model import LanguageModel, ModelInfo
from kullback.models.server import ServerModel

LISTS = (".json", ".jsonl", ".ndjson")

_LOADING = Arguments(
    "Loading",
    representation=REPRESENTATION,
    dtype=DTYPE,
    trust_remote_code=FLAG,
    hub=FLAG,
    server_top=SERVER_TOP,
)


@by_name()
@dataclass(frozen=True)
class Loading:
    """How the sides of a comparison are opened.

    Attributes:
        tokenizer: the tokenizer of models that are modules; None if no model is a module.
        representation: the kind of numbers in files of predictions, as for `compare_predictions`.
        dtype: the dtype of the weights of models in folders: ``"float32"``, ``"bfloat16"``, ``"float16"``, or
            ``"auto"`` for the dtype that the folder declares.
        device: the device of models in folders and GGUF files, such as ``"cuda"``.
        trust_remote_code: whether code in the folder of a model may run.
        hub: whether a name may be the name of a model on the Hugging Face hub.
        api_key_env: the name of the environment variable that holds the key for servers; None if no key is needed.
        server_top: the number of most probable tokens that a server is asked for.

    Raises:
        ArgumentTypeError, ArgumentValueError: an attribute has a wrong type or value.

    Example:
        >>> Loading(dtype="int3")
        Traceback (most recent call last):
            ...
        kullback.errors.ArgumentValueError: Loading(dtype=...): wanted one of 'auto', ... Write: dtype='auto'
    """

    tokenizer: Any = None
    representation: RepresentationName | None = None
    dtype: str = "auto"
    device: str = "cpu"
    trust_remote_code: bool = False
    hub: bool = False
    api_key_env: str | None = None
    server_top: int = 20

    def __post_init__(self) -> None:
        _LOADING.settle(self)


LOADING = Loading()


@by_name()
def open_model(model: object, loading: Loading = LOADING, *, argument: str = "model") -> LanguageModel:
    """Open a language model.

    Arguments:
        model: a folder of a Hugging Face model, a ``.gguf`` file, or a module.
        loading: how the model is opened.
        argument: the name of the argument that holds the model, for error messages.

    Raises:
        ModelError: there is no such model, or the model cannot be loaded.

    Example:
        >>> open_model("nowhere/model")
        Traceback (most recent call last):
            ...
        kullback.errors.ModelError: model = nowhere/model: wanted a folder of a Hugging Face model or ...
    """
    if isinstance(model, LanguageModel):
        return model
    if isinstance(model, torch.nn.Module):
        return _module(model, loading.tokenizer, argument)
    if not isinstance(model, str | os.PathLike):
        raise invalid_type(
            "compare_models",
            argument,
            wanted="a path, a module, or an open source of rows",
            got=type(model).__name__,
            instead=f"{argument}='folder/of/model'",
        )
    name = os.fspath(model)
    path = Path(name)
    if name.lower().endswith(".gguf") and path.is_file():
        from kullback.models.gguf import GGUFModel

        return GGUFModel(path, device=loading.device)
    if (path.is_dir() and (path / "config.json").is_file()) or (loading.hub and not path.exists()):
        weights = {"dtype": loading.dtype, "device": loading.device}
        return open_folder(name, **weights, trust_remote_code=loading.trust_remote_code, hub=loading.hub)
    if is_hidden_states(path):
        raise ModelError.at(
            f"{argument} = {printable(name)}",
            wanted="a folder of a Hugging Face model, or hidden states with the head of their model",
            got="a folder of safetensors files alone",
            instead=f"HiddenStates({name!r}, head='folder/of/model') (--head MODEL)",
        )
    sort = ("a folder without config.json" if path.is_dir() else "another file") if path.exists() else None
    sort = "a server, which gives only its most probable classes" if is_address(name) else sort
    raise ModelError.at(
        f"{argument} = {printable(name)}",
        wanted="a folder of a Hugging Face model"
        + (" or a .gguf file" if argument == "model" else ", a .gguf file or a server"),
        got=f"{sort or 'nothing there'}",
        instead="name a folder with its config.json, or a .gguf file"
        if sort
        else "check the path, or add --hub (Loading(hub=True)) for a name on the Hugging Face hub",
    )


def _module(model: torch.nn.Module, tokenizer: Any, argument: str) -> HuggingFaceModel:
    if tokenizer is None:
        raise invalid_value(
            "Loading",
            "tokenizer",
            wanted=f"the tokenizer of the module {argument}",
            got="none",
            instead="tokenizer=AutoTokenizer.from_pretrained(folder)",
        )
    name = str(getattr(getattr(model, "config", None), "_name_or_path", "")) or type(model).__name__
    first = next(model.parameters(), torch.empty(0, device="cpu"))
    classes = head_classes(model)
    if classes is None:
        tokens = torch.zeros(1, 1, dtype=torch.int64, device=first.device)
        with torch.inference_mode():
            classes = model(input_ids=tokens).logits.shape[-1]
    dtype = dtype_name(first.dtype)
    info = ModelInfo(name, "module", dtype, classes, parameter_count(model), None)
    return HuggingFaceModel(model, tokenizer, info)


Opened = LanguageModel | RowSource | Reference | TopKSource


@by_name()
def is_reference(side: object) -> bool:
    """Whether an argument is an open reference file, or the path of a reference file or of the folder of a card."""
    if isinstance(side, str | os.PathLike):
        return os.fspath(side).lower().endswith(".klref") or is_card(side)
    return isinstance(side, Reference)


def opened_in(stack: ExitStack, side: object, argument: str, loading: Loading) -> Opened:
    """Open a side, and let the stack close the side, unless the caller passed an open side."""
    opened = open_side(side, argument, loading)
    if opened is not side:
        stack.callback(opened.close)
    return opened


def open_side(side: object, argument: str, loading: Loading) -> Opened:
    """Open a model, a server, a reference, a file of predictions, or a file of top classes."""
    if isinstance(side, RowStream):
        return checked(side, argument)
    if isinstance(side, Reference | TopKSource):
        return side
    if isinstance(side, str | os.PathLike):
        name = os.fspath(side)
        path = Path(name)
        if is_reference(name):
            return open_card(path, argument) if is_card(path) else Reference(path, name=argument)
        if is_address(name):
            return ServerModel(name, top=loading.server_top, api_key_env=loading.api_key_env)
        if path.is_file() and path.suffix.lower() != ".gguf":
            return (
                open_top_k(path, name=argument)
                if path.suffix.lower() in LISTS
                else open_rows(path, representation=loading.representation, name=argument)
            )
    return open_model(side, loading, argument=argument)
