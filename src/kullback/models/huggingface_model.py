"""Causal language models of Hugging Face's transformers, from folders or as modules, also with rounding noise."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from inspect import signature
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from kullback.common.dtypes import dtype_name
from kullback.common.optional import load
from kullback.errors import BY_EVENT, ModelError, printable
from kullback.io.tokens import byte_level_bytes, is_byte_level, sentencepiece_bytes
from kullback.io.windows import Windows
from kullback.models.language_model import LanguageModel, Message, ModelInfo, not_causal, not_opened
from kullback.models.vocabulary import Token, Vocabulary, Words

WEIGHTS = ("*.safetensors", "*.bin", "*.pt", "*.gguf")
# The names that models use for a learned table of position embeddings.
_TABLES_OF_POSITIONS = ("wpe", "embed_positions", "position_embeddings", "position_embedding", "pos_emb")


class HuggingFaceModel(LanguageModel):
    """A causal language model of transformers.

    Each window is read once, in one call of the model's body. A plain head is then applied to a block of scored
    positions at a time. So the logits of a whole window are never in memory. In another head, such as a
    dynamically quantized head, a row may depend on all rows. Such a head gets the whole window, so that the result does
    not depend on the blocks.

    The model is a module that is called with ``input_ids`` and returns an object with ``logits``.
    """

    def __init__(self, model: torch.nn.Module, tokenizer: Any, info: ModelInfo) -> None:
        self._was_training = model.training
        self.model, self.tokenizer = model.eval(), tokenizer
        self.info = info
        self.vocabulary, self.bos = words_of(tokenizer)
        self._by_rows = "logits_to_keep" in signature(model.forward).parameters and _has_plain_head(model)

    def encode(self, text: str) -> list[int]:
        # The names of control tokens in a text are read as plain text, as in llama.cpp.
        options = {"add_special_tokens": False, "split_special_tokens": True, "verbose": False}
        return list(self.tokenizer(text, **options)["input_ids"])

    def chat_text(
        self, messages: Sequence[Message], *, tools: Sequence[Any] | None = None, reply_follows: bool
    ) -> str:
        if not getattr(self.tokenizer, "chat_template", None):
            raise self.error(
                wanted="a tokenizer with a chat template",
                got="none",
                instead="score the whole text (--score all), or save the template with the tokenizer",
            )
        try:
            text = self.tokenizer.apply_chat_template(
                [dict(message) for message in messages],
                tools=None if tools is None else list(tools),
                add_generation_prompt=reply_follows,
                tokenize=False,
            )
        except Exception as error:  # the template is a program and may raise any error
            raise self.refused(error) from error
        return str(text)

    def chat_encode(self, text: str) -> list[int]:
        return list(self.tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"])

    @torch.inference_mode()
    def logits(self, windows: Windows, rows: int, first: int = 0) -> Iterator[Tensor]:
        self._require_positions(int(windows.offsets.diff().max()) if len(windows) else 0)
        for number in range(first, len(windows)):
            tokens, scored = windows.window(number)
            # The model gives the distribution of a token at the previous token.
            places = scored.nonzero().squeeze(-1) - 1
            yield from self._window(tokens, places, rows)

    def _window(self, tokens: Tensor, places: Tensor, rows: int) -> Iterator[Tensor]:
        device = next(self.model.parameters()).device
        inputs = tokens[None].to(device)
        if not self._by_rows:
            yield from self._call(inputs)[places.to(device)].split(rows)
            return
        with _once(body_of(self.model)) as once:
            for part in places.split(rows):
                with once():
                    logits = self._call(inputs, logits_to_keep=part.to(device))
                yield logits

    def _call(self, inputs: Tensor, **options: Any) -> Tensor:
        try:
            return self.model(input_ids=inputs, use_cache=False, **options).logits[0]
        except (RuntimeError, IndexError, ValueError) as error:
            is_allocation = "alloc" in str(error) and "memory" in str(error)
            if is_allocation or isinstance(error, torch.OutOfMemoryError):
                raise self.error(
                    wanted="memory for the model and a window",
                    got=f"out of memory ({' '.join(str(error).split())[:200]})",
                    instead="run the models one after the other (--one-at-a-time), in --dtype bfloat16, with a "
                    "smaller --context, or on another --device",
                    wording=BY_EVENT,
                ) from error
            positions = _positions(self.model)
            if positions is not None and inputs.shape[-1] > positions:
                raise self._too_long(inputs.shape[-1], positions) from error
            raise

    def _require_positions(self, tokens: int) -> None:
        """Refuse a window that is longer than the model's table of positions; on a GPU, it would end the process."""
        rows = [
            weight.shape[0]
            for name, module in self.model.named_modules()
            if name.rpartition(".")[2] in _TABLES_OF_POSITIONS
            and isinstance(weight := getattr(module, "weight", None), Tensor)
        ]
        limit = min([*rows, *filter(None, [_positions(self.model)])]) if rows else None
        if limit is not None and tokens > limit:
            raise self._too_long(tokens, limit)

    def _too_long(self, tokens: int, positions: int) -> ModelError:
        return self.error(
            wanted=f"windows of at most {positions:,} tokens, as many as the model has positions",
            got=f"{tokens:,}",
            instead=f"use a smaller context (--context {positions})",
        )

    def close(self) -> None:
        self.model.train(self._was_training)
        del self.model
        if torch.cuda.is_available():
            torch.cuda.empty_cache()


def _positions(model: Any) -> int | None:
    """Return the largest number of tokens that a model's configuration allows; None if it has no limit."""
    config: Any = getattr(model, "config", None)
    config = config.get_text_config() if hasattr(config, "get_text_config") else config
    named = (
        getattr(config, name, None) for name in ("max_position_embeddings", "n_positions", "max_seq_len")
    )
    return next((size for size in named if isinstance(size, int) and size > 0), None)


def _head_of(model: Any) -> Any:
    return model.get_output_embeddings() if hasattr(model, "get_output_embeddings") else None


def _has_plain_head(model: Any) -> bool:
    """Return whether each row of a model's logits depends on one hidden state alone, as in a plain linear layer."""
    head = _head_of(model)
    if type(head) is not torch.nn.Linear or "forward" in vars(head):
        return False
    plain = (Tensor, torch.nn.Parameter)
    hooks = vars(head).get("_forward_hooks") or vars(head).get("_forward_pre_hooks")  # hooks may use all rows
    return type(head.weight) in plain and head.weight.is_floating_point() and not hooks


def body_of(model: torch.nn.Module) -> torch.nn.Module | None:
    """Return the part of a causal language model before the head; None if the model does not name this part."""
    body = getattr(model, getattr(model, "base_model_prefix", "") or "-", None)
    return body if isinstance(body, torch.nn.Module) and body is not model else None


@contextmanager
def _once(body: torch.nn.Module | None) -> Generator[Callable[[], Any]]:
    """Make a module compute its output in the first call, and return the same output in later calls."""
    outputs: list[Any] = []

    @contextmanager
    def once() -> Generator[None]:
        if body is None:
            yield
            return
        forward, own = body.forward, vars(body).get("forward")

        def remembered(*args: Any, **kwargs: Any) -> Any:
            if not outputs:
                outputs.append(forward(*args, **kwargs))
            return outputs[0]

        body.forward = remembered
        try:
            yield
        finally:
            if own is None:
                del body.forward
            else:  # another library, such as accelerate, has set this method
                body.forward = own

    yield once


def _first_token(tokenizer: Any) -> int | None:
    """Return the token that the tokenizer puts before every text; None if there is no such token."""
    bos = getattr(tokenizer, "bos_token_id", None)
    begins = list(tokenizer("a", verbose=False)["input_ids"])
    return bos if bos is not None and begins[:1] == [bos] else None


def open_folder(
    name: str, *, dtype: str = "auto", device: str = "cpu", trust_remote_code: bool = False, hub: bool = False
) -> HuggingFaceModel:
    """Load a causal language model from a folder, or from the hub; the arguments are as for `Loading`."""
    transformers = load("transformers", "a Hugging Face model")
    shown = printable(name)
    options: dict[str, Any] = {"trust_remote_code": trust_remote_code, "local_files_only": not hub}
    require_device(shown, device)
    with loading_errors(shown, "a causal language model's config.json"):
        config = transformers.AutoConfig.from_pretrained(name, **options)
    require_causal(shown, config)
    wanted = "a tokenizer in the same folder"
    instead = "save it there (tokenizer.save_pretrained(folder))"
    with loading_errors(shown, wanted, instead):
        tokenizer = transformers.AutoTokenizer.from_pretrained(name, **options)
        vocabulary = len(tokenizer)
    if not vocabulary:
        raise not_opened(shown, wanted=wanted, got="one without tokens", instead=instead)
    with loading_errors(shown, "weights that fit the model"), _without_bars(transformers):
        options |= {"dtype": dtype if dtype == "auto" else getattr(torch, dtype)}
        model, report = transformers.AutoModelForCausalLM.from_pretrained(
            name, config=config, output_loading_info=True, **options
        )
        model = model.to(device) if getattr(model, "hf_device_map", None) is None else model
    missing = sorted(report.get("missing_keys", ()))
    if missing:
        raise not_opened(
            shown,
            wanted=f"all weights of a {type(model).__name__}",
            got=(f"none for {missing[0]}{(f' and {len(missing) - 1} others' if len(missing) > 1 else '')}"),
            instead="name a folder of a causal language model",
        )
    return HuggingFaceModel(model, tokenizer, _info(name, model, config))


@contextmanager
def _without_bars(transformers: Any) -> Generator[None]:
    logs = transformers.utils.logging
    shown = logs.is_progress_bar_enabled()
    logs.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logs.enable_progress_bar()


def require_device(shown: str, device: str) -> None:
    """Refuse a device that torch cannot use on this machine."""
    try:
        torch.empty(1, device=device).tolist()
    except Exception as error:
        wanted, got = "a device that torch can use on this machine", f"{device!r}: {type(error).__name__}"
        instead = "--device cpu (Loading(device='cpu'))"
        raise not_opened(shown, wanted=wanted, got=got, instead=instead) from error


@contextmanager
def loading_errors(
    shown: str, wanted: str, instead: str = "check the folder, or load it in Python and pass the module"
) -> Generator[None]:
    """Turn any error of transformers into a `ModelError` for the model `shown`."""
    try:
        yield
    except Exception as error:
        got = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
        raise not_opened(shown, wanted=wanted, got=got, instead=instead) from error


def require_causal(shown: str, config: Any) -> None:
    """Refuse the configuration of a model that does not predict the next token."""
    names = list(getattr(config, "architectures", None) or ())
    causal = "ForCausalLM", "LMHeadModel", "ForConditionalGeneration"
    is_other = bool(names) and not any(name.endswith(causal) for name in names)
    if is_other or getattr(config, "is_encoder_decoder", False):
        raise not_causal(shown, printable(names[0] if names else config.model_type))


def folder_of(name: str) -> Path:
    """Return the folder of a model: for a name on the hub, the folder in the cache where the model was loaded from."""
    path = Path(name)
    if "transformers" in sys.modules and not path.exists():
        from huggingface_hub import try_to_load_from_cache
        from huggingface_hub.errors import HFValidationError

        with suppress(HFValidationError):
            if isinstance(config := try_to_load_from_cache(name, "config.json"), str):
                return Path(config).parent
    return path


def _info(name: str, model: torch.nn.Module, config: Any) -> ModelInfo:
    quantization = getattr(config, "quantization_config", None)
    if quantization is None:
        dtype = dtype_name(next(model.parameters()).dtype)
        parameters = parameter_count(model)
    else:
        settings = quantization if isinstance(quantization, dict) else quantization.to_dict()
        dtype, parameters = str(settings.get("quant_method", "quantized")), None
    folder = folder_of(name)
    files = [path for pattern in WEIGHTS for path in folder.glob(pattern)] if folder.is_dir() else []
    size = sum(path.stat().st_size for path in files) or None
    classes = head_classes(model) or int(config.get_text_config().vocab_size)
    return ModelInfo(name, "Hugging Face", dtype, classes, parameters, size)


def head_classes(model: torch.nn.Module) -> int | None:
    """Return the number of classes of a model's logits, from the model's head; None if the head does not tell."""
    classes = getattr(_head_of(model), "out_features", None)
    return classes if isinstance(classes, int) else None


def words_of(tokenizer: Any) -> Words:
    """Return the tokens of a tokenizer, and the first token of its texts."""
    return Words(read_vocabulary(tokenizer), _first_token(tokenizer))


def read_vocabulary(tokenizer: Any) -> Vocabulary:
    """Return the tokens of a tokenizer as bytes, in the order of their numbers."""
    added = {int(number): token for number, token in getattr(tokenizer, "added_tokens_decoder", {}).items()}
    named = {int(number): name for name, number in tokenizer.get_vocab().items()}
    names = [named.get(number) for number in range(1 + max([*named, *added]))]
    to_bytes = _token_bytes(tokenizer)
    tokens: list[Token | None] = []
    for number, name in enumerate(names):
        if name is None:
            tokens.append(None)
        elif number in added:
            tokens.append(Token(str(added[number]).encode(), bool(added[number].special)))
        else:
            tokens.append(Token(to_bytes(name)))
    return Vocabulary(tokens)


def _token_bytes(tokenizer: Any) -> Callable[[str], bytes]:
    """Return the function that turns the tokenizer's names of tokens into bytes, as for GPT-2 or for SentencePiece."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    # Only the decoder's part of the tokenizer's JSON is read, because the whole JSON has megabytes.
    decoder = getattr(backend, "decoder", None)
    part = None if decoder is None else json.loads(decoder.__getstate__())
    is_like_gpt2 = is_byte_level(part) or (backend is None and hasattr(tokenizer, "byte_decoder"))
    return byte_level_bytes if is_like_gpt2 else sentencepiece_bytes


# Pairs of a layer's attributes that hold the sizes of the layer's matrix.
_SIZES = (("in_features", "out_features"), ("infeatures", "outfeatures"), ("num_embeddings", "embedding_dim"))
# The largest number of weights in one stored number. An int32 holds 16 weights of 2 bits; the rest is room for padding.
_MOST_PACKED = 32


def parameter_count(model: torch.nn.Module) -> int | None:
    """Return the number of a model's parameters; None if weights are packed in an unknown way.

    For a packed matrix (4-bit weights of bitsandbytes, GPTQ, AWQ or HQQ, or torch's own quantized layers), the sizes of
    the layer give the number.
    """
    counted: set[int] = set()
    total = 0
    for module in model.modules():
        matrix = _packed_matrix(module)
        if matrix is not None:
            tensors = [x for x in _own_tensors(module) if id(x) not in counted]
            counted |= {id(x) for x in tensors}
            total += matrix + _bias_size(module) if tensors or hasattr(module, "_packed_params") else 0
            continue
        for parameter in module.parameters(recurse=False):
            if id(parameter) not in counted:
                counted.add(id(parameter))
                size = _size(parameter)
                if size is None:
                    return None
                total += size
    return total


def _packed_matrix(module: torch.nn.Module) -> int | None:
    """Return the number of entries of a layer's matrix if the matrix is packed; None for other modules."""
    named: Iterator[list[Any]] = ([getattr(module, name, None) for name in names] for names in _SIZES)
    sizes = next((pair for pair in named if all(isinstance(size, int) for size in pair)), None)
    if sizes is None:
        return None
    entries = math.prod(sizes)
    if hasattr(module, "_packed_params"):  # torch's own quantized layers
        return entries
    tensors = list(_own_tensors(module))
    if any(x.numel() == entries and x.is_floating_point() and _shape(x) is None for x in tensors):
        return None
    stored = (
        _shape(x) is not None or (not x.is_floating_point() and _MOST_PACKED * x.numel() >= entries)
        for x in tensors
    )
    return entries if any(stored) else None


def _own_tensors(module: torch.nn.Module) -> Iterator[Tensor]:
    yield from module.parameters(recurse=False)
    yield from module.buffers(recurse=False)


def _bias_size(module: Any) -> int:
    bias = getattr(module, "bias", None)
    if isinstance(bias, Tensor):
        return bias.numel()
    # In torch's quantized layers, `bias` is a method, and the bias is zeros if the original layer had no bias.
    bias = bias() if callable(bias) else None
    return bias.numel() if isinstance(bias, Tensor) and bool(bias.any()) else 0


def _shape(x: Any) -> Any:
    """Return the original shape that bitsandbytes stores with a packed weight; None for other tensors."""
    return getattr(getattr(x, "quant_state", None), "shape", None)


def _size(parameter: Tensor) -> int | None:
    """Return the number of weights in a parameter; None if the parameter is packed in an unknown way."""
    shape = _shape(parameter)
    if shape is not None:
        return math.prod(shape)
    if parameter.dtype is getattr(torch, "float4_e2m1fn_x2", None):  # two weights in each byte
        return 2 * parameter.numel()
    if parameter.is_floating_point() or parameter.is_complex() or parameter.dtype in (torch.int8, torch.bool):
        return parameter.numel()
    return None


SEED = 20_260_101


class NoisyModel(LanguageModel):
    r"""A Hugging Face model whose layers return :math:`x (1 + \epsilon u)` instead of :math:`x`.

    u is uniform on [-1/2, 1/2], independent for every element. :math:`\epsilon` is the distance of adjacent numbers of
    the model's dtype near 1. The noise is the error of an additional rounding in every layer. The draws of a window
    depend only on the number of the window.
    """

    def __init__(self, model: LanguageModel) -> None:
        layers = _layers(model.model) if isinstance(model, HuggingFaceModel) else []
        if not isinstance(model, HuggingFaceModel) or not layers:
            raise model.error(
                wanted="a Hugging Face model whose layers are a list, for the noise floor",
                got=model.info.kind,
                instead="leave the noise floor out (--noise-floor)",
            )
        self._model, self._layers = model, layers
        dtype = next(model.model.parameters()).dtype
        self._size = torch.finfo(dtype).eps
        self.info = replace(model.info, name=f"{model.name} with noise of {dtype_name(dtype)}")
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
