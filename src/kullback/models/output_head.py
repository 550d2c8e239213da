"""The last part of a causal language model, its final norm and its head, without the layers before them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from kullback.common.optional import load
from kullback.common.short_repr import ShortRepr
from kullback.errors import ModelError, printable
from kullback.losses.head_configuration import head_configuration
from kullback.models.huggingface_model import body_of, loading_errors, require_causal, words_of
from kullback.models.open_model import LOADING, Loading
from kullback.models.vocabulary import Words

# Names of the final norm in the classes of transformers.
_NORMS = ("norm", "norm_f", "ln_f", "final_layernorm", "final_layer_norm", "final_norm", "layer_norm")
# Names of weights are compared without these parts, because a model's folder and its class may have them in different
# places.
_CONTAINERS = frozenset(("model", "language_model", "text_model", "transformer", "backbone", "decoder"))
_SCALES = ("weight_scale", "weight_scale_inv")
_PACKED = (torch.int8, torch.float8_e4m3fn, torch.float8_e5m2)
_PROBES = 4  # the head has to give the logits of the model's class for this number of random rows
_ITSELF = "compare the model itself, or its log-probabilities"
_LARGEST_PROBE = 100.0  # beyond the caps of all known models, so that a cap shows


@dataclass(frozen=True, eq=False, repr=False)
class OutputHead(ShortRepr):
    r"""The final norm and the head of a language model, which make logits of the last block's hidden states.

    .. math:: z = c \tanh\bigl(s\,(W\,\mathrm{norm}(h) + b) / c\bigr)

    `open_head` reads it from the folder of a model, without the other weights. The product with W has the dtype of W,
    as in the model. The scale s and the cap c are applied in float32 or better.

    Attributes:
        name: the folder.
        norm: the final norm, a module that takes hidden states of shape (..., width).
        weight: W, of shape (classes, width).
        bias: b, of shape (classes,); None without a bias.
        logit_scale: s; 1 without a scale.
        softcap: c; None without a cap. Then z is s (W norm(h) + b).
        layers: the number of blocks of the model.
        words: the tokens of the tokenizer in the folder; None without a tokenizer.

    Example:
        >>> import torch
        >>> from kullback.models import OutputHead
        >>> head = OutputHead("doubling", torch.nn.Identity(), torch.eye(2), logit_scale=2.0)
        >>> head.logits(torch.tensor([[1.0, 3.0]]))
        tensor([[2., 6.]])
    """

    name: str
    norm: torch.nn.Module
    weight: Tensor
    bias: Tensor | None = None
    logit_scale: float = 1.0
    softcap: float | None = None
    layers: int = 0
    words: Words | None = None

    @property
    def classes(self) -> int:
        """The number of classes of the logits."""
        return self.weight.shape[0]

    @property
    def width(self) -> int:
        """The number of elements of a hidden state."""
        return self.weight.shape[1]

    @torch.no_grad()
    def normed(self, hidden: Tensor) -> Tensor:
        """Return hidden states of the last block, of shape (..., width), after the final norm, in the dtype of W."""
        return self.norm(hidden.to(self.weight)).to(self.weight.dtype)

    @torch.no_grad()
    def logits(self, hidden: Tensor, *, with_norm: bool = True) -> Tensor:
        """Return the logits, of shape (..., classes), for hidden states of the last block.

        Arguments:
            hidden: the hidden states, of shape (..., width).
            with_norm: whether to apply the final norm first; False for hidden states after the norm.
        """
        normed = self.normed(hidden) if with_norm else hidden.to(self.weight)
        product = torch.nn.functional.linear(normed, self.weight, self.bias)
        product = product.to(torch.promote_types(product.dtype, torch.float32))
        if self.logit_scale != 1:
            product *= self.logit_scale
        return product if self.softcap is None else self.softcap * torch.tanh(product / self.softcap)


def open_head(folder: str | Path, loading: Loading = LOADING) -> OutputHead:
    """Read the final norm and the head of a causal language model from its folder, and no other weights.

    The classes of transformers determine how the norm and the head work. A head whose weights alone are quantized, to
    int8 or float8 with scales, gets its effective weight. All other quantized heads are refused.

    Arguments:
        folder: the folder of a Hugging Face model, with weights as safetensors.
        loading: the dtype and the device of the weights, and whether code in the folder may run.

    Returns:
        the head. Its `norm` and `weight`, with `logit_scale` and `softcap`, make a teacher of
        `kullback.functional.linear_distillation_loss` of stored hidden states.

    Raises:
        ModelError: the folder has no such model, the head cannot be read, or the model makes its logits in another way.
        OptionalDependencyError: transformers is not installed.

    Example:
        >>> from kullback.models import open_head
        >>> open_head("llama-3-8b").weight.shape  # doctest: +SKIP
        torch.Size([128256, 4096])
    """
    transformers = load("transformers", "the head of a Hugging Face model")
    shown = printable(folder)
    if not (Path(folder) / "config.json").is_file():
        adapter = (Path(folder) / "adapter_config.json").is_file()
        raise _error(
            shown,
            wanted="the folder of a Hugging Face model, with config.json",
            got="an adapter of PEFT" if adapter else "none there",
            instead="name the folder of its base model, or if the adapter changes the head, save "
            "model.merge_and_unload()"
            if adapter
            else "name the folder of the model that made the hidden states",
        )
    options: dict[str, Any] = {"trust_remote_code": loading.trust_remote_code}
    with loading_errors(shown, "a causal language model's config.json"):
        config = transformers.AutoConfig.from_pretrained(folder, local_files_only=True, **options)
    require_causal(shown, config)
    with loading_errors(shown, "a model whose class transformers has"), torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(config, **options)
    parts = last_parts(model.eval(), shown)
    stored = _Stored.of(Path(folder), shown)
    weight, bias = _head_tensors(model, parts, stored, config)
    dtype = _dtype(config, weight) if loading.dtype == "auto" else getattr(torch, loading.dtype)
    norm = parts.norm.to_empty(device=loading.device).to(dtype)
    for name, parameter in norm.state_dict().items():
        parameter.copy_(stored.tensor(f"{parts.norm_name}.{name}"))
    cap, scale = head_configuration(config)
    weight, bias = (None if x is None else x.to(loading.device, dtype) for x in (weight, bias))
    assert weight is not None  # noqa: S101 - for the type checker
    layers = int(config.get_text_config().num_hidden_layers)
    words = _words(transformers, folder, options)
    head = OutputHead(str(folder), norm.eval(), weight, bias, scale, cap, layers, words)
    _check_forward(model, parts, head)
    return head


class LastParts(NamedTuple):
    """The final norm and the head of a model of transformers, with their names in the model."""

    norm: Any
    norm_name: str
    head: torch.nn.Linear
    head_name: str


def last_parts(model: Any, shown: str) -> LastParts:
    """Return the final norm and the head of a model of transformers.

    The norm and the list of the blocks are parts of one module, which also has the embeddings.

    Raises:
        ModelError: the model has no such norm, or its head is not a plain linear layer.
    """
    names = {module: name for name, module in model.named_modules()}
    head, embeddings = model.get_output_embeddings(), model.get_input_embeddings()
    layers = model.config.get_text_config().num_hidden_layers
    norms = [
        child
        for owner in names
        if any(isinstance(x, torch.nn.ModuleList) and len(x) == layers for x in owner.children())
        and any(x is embeddings for x in owner.modules())
        for name, child in owner.named_children()
        if name in _NORMS
    ]
    if len(norms) != 1 or type(head) is not torch.nn.Linear:
        raise _error(
            shown,
            wanted="a model whose last parts are one norm and a linear head",
            got=f"a {type(model).__name__} with {len(norms)} such norms and a {type(head).__name__} as its head",
            instead=_ITSELF,
        )
    return LastParts(norms[0], names[norms[0]], head, names[head])


@dataclass(frozen=True)
class _Stored:
    """The files of the tensors in a folder, by name; `shown` is the folder, for messages."""

    shown: str
    files: Mapping[str, Path]

    @classmethod
    def of(cls, folder: Path, shown: str) -> _Stored:
        index = folder / "model.safetensors.index.json"
        if index.is_file():
            with loading_errors(shown, "an index of the weights that is JSON"):
                files = {str(k): folder / v for k, v in json.loads(index.read_text())["weight_map"].items()}
            return cls(shown, files)
        files = {}
        for path in sorted(folder.glob("*.safetensors")):
            with loading_errors(shown, f"weights in {path.name}"), _opened(path) as file:
                files |= dict.fromkeys(file.keys(), path)
        if not files:
            raise _error(
                shown,
                wanted="weights as .safetensors",
                got="none",
                instead="save them with model.save_pretrained(folder)",
            )
        return cls(shown, files)

    def find(self, name: str) -> str | None:
        """Return the name of a tensor in the files; None if the files do not have the tensor."""
        if name in self.files:
            return name
        alike = [path for path in self.files if _essential(path) == _essential(name)]
        return alike[0] if len(alike) == 1 else None

    def tensor(self, name: str) -> Tensor:
        stored = self.find(name)
        if stored is None:
            raise _error(
                self.shown, wanted=f"the weight {name}", got="none", instead="name a folder with all weights"
            )
        path = self.files[stored]
        with loading_errors(self.shown, f"{stored} in {path.name}"), _opened(path) as file:
            return file.get_tensor(stored)


def _opened(path: Path) -> Any:
    return load("safetensors", "reading a .safetensors file").safe_open(path, "pt")


def _essential(name: str) -> str:
    """Return the path of a weight without the containers whose places differ."""
    return ".".join(part for part in name.split(".") if part not in _CONTAINERS)


def _dtype(config: Any, weight: Tensor) -> torch.dtype:
    """Return the dtype that a configuration declares, as in transformers; without one, the dtype of the weight."""
    declared = (
        getattr(config, "dtype", None) or getattr(config.get_text_config(), "dtype", None) or weight.dtype
    )
    return getattr(torch, declared) if isinstance(declared, str) else declared


def _head_tensors(model: Any, parts: LastParts, stored: _Stored, config: Any) -> tuple[Tensor, Tensor | None]:
    """Return the effective weight of the head, and its bias."""
    name = parts.head_name
    if stored.find(f"{name}.weight") is None and _is_tied(config):
        embeddings = model.get_input_embeddings()
        name = next(path for path, module in model.named_modules() if module is embeddings)
    prefix, paths = _essential(f"{name}."), map(_essential, stored.files)
    tensors = {path.removeprefix(prefix) for path in paths if path.startswith(prefix)}
    scales, others = tensors & {*_SCALES}, tensors - {*_SCALES, "weight", "bias"}
    weight, shape = torch.empty(0, device="cpu"), parts.head.weight.shape
    if "weight" in tensors and not others:
        weight = stored.tensor(f"{name}.weight")
    has_inputs = bool(scales) and _quantizes_inputs(getattr(config, "quantization_config", None))
    if weight.shape != shape or (weight.dtype in _PACKED) != bool(scales) or has_inputs:
        inputs = ", whose inputs are quantized too" if has_inputs else ""
        raise _error(
            stored.shown,
            wanted=f"a head with a weight of shape {tuple(shape)}, plain or as int8 or float8 with scales",
            got=f"{name} with {', '.join(sorted(tensors)) or 'nothing'}{inputs}",
            instead="name the folder of the model before its quantization, if the head is the same, or quantize "
            "without the head (ignore=['lm_head'])",
        )
    for scale in scales:
        weight = weight.float() * _spread(stored.tensor(f"{name}.{scale}").float(), shape, stored.shown)
    has_bias = cast("Tensor | None", parts.head.bias) is not None
    return weight, stored.tensor(f"{name}.bias") if has_bias else None


def _is_tied(config: Any) -> bool:
    return any(getattr(part, "tie_word_embeddings", False) for part in (config, config.get_text_config()))


def _quantizes_inputs(plan: Any) -> bool:
    """Return whether a quantization also rounds the inputs of the layers, which no weight can express."""
    settings: Any = plan.to_dict() if hasattr(plan, "to_dict") else plan or {}
    groups = (settings.get("config_groups") or {}).values()
    return settings.get("activation_scheme") is not None or any(
        isinstance(group, dict) and group.get("input_activations") for group in groups
    )


def _spread(scale: Tensor, shape: torch.Size, shown: str) -> Tensor:
    """Return the scale of each element of a weight, from one for all elements, for each row, or for each block.

    The length of a block is a power of two, and the last block may be shorter.
    """
    wide = scale.reshape(-1, 1) if scale.ndim < 2 else scale
    for dimension, length in enumerate(shape):
        count = wide.shape[dimension]
        sizes = [2**power for power in range(17) if -(-length // 2**power) == count]
        if wide.ndim != 2 or not (count == 1 or sizes):
            raise _error(
                shown,
                wanted=f"scales of rows or blocks of a weight of shape {tuple(shape)}",
                got=f"shape {tuple(scale.shape)}",
                instead="name the folder of the model before its quantization, if the head is the same",
            )
        if count > 1:
            wide = wide.repeat_interleave(sizes[0], dimension).narrow(dimension, 0, length)
    return wide


class _BodyOutput:
    """The output of a body with given hidden states; all other fields are None."""

    def __init__(self, hidden: Tensor) -> None:
        self.last_hidden_state = hidden

    def __getitem__(self, place: object) -> Any:
        return self.last_hidden_state if place == 0 else None

    def __getattr__(self, name: str) -> None:
        return None


@torch.no_grad()
def _check_forward(model: Any, parts: LastParts, head: OutputHead) -> None:
    """Refuse a model whose class makes other logits from the same hidden states, for example by a scale or a cap."""
    shown, body = printable(head.name), body_of(model)
    parts.head.weight = torch.nn.Parameter(head.weight, requires_grad=False)
    if head.bias is not None:
        parts.head.bias = torch.nn.Parameter(head.bias, requires_grad=False)
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(1, _PROBES, head.width, generator=generator, device="cpu").to(head.weight)
    size = torch.nn.functional.linear(hidden, head.weight).float().abs().amax() * head.logit_scale
    hidden *= (_LARGEST_PROBE / size.clamp(min=1e-6)).to(hidden)
    if body is None:
        got = f"a {type(model).__name__}"
        raise _error(shown, wanted="a model with a named body", got=got, instead=_ITSELF)
    body.forward = lambda *_args, **_kwargs: _BodyOutput(hidden)
    tokens = torch.zeros(1, _PROBES, dtype=torch.int64, device=hidden.device)
    with loading_errors(shown, "a model whose logits follow from its last hidden states", _ITSELF):
        wanted = model(input_ids=tokens, use_cache=False).logits
    settings = f"logit_scale={head.logit_scale:g} and softcap={head.softcap}"
    require_logits(head, head.logits(hidden, with_norm=False), wanted, settings)


def require_logits(head: OutputHead, made: Tensor, wanted: Tensor, parts: str) -> None:
    """Refuse a model whose logits differ from `made`, the logits that its head makes; `parts` names the parts used.

    Raises:
        ModelError: the logits differ by more than rounding.
    """
    near = 0.02 if head.weight.dtype in (torch.bfloat16, torch.float16) else 1e-4
    made, wanted = made.float(), wanted.float()
    # The head's logits are finite, so this bound is too.
    if made.shape != wanted.shape or not bool((made - wanted).abs().amax() <= near * made.abs().amax()):
        raise _error(
            printable(head.name),
            wanted="a model whose logits are logit_scale (W norm(h) + b) with a cap",
            got=f"one with other logits than by {parts}",
            instead=_ITSELF,
        )


def _words(transformers: Any, folder: str | Path, options: dict[str, Any]) -> Words | None:
    """Return the tokens of the tokenizer in a folder; None if there is no tokenizer that can be read."""
    try:
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder, local_files_only=True, **options)
        return words_of(tokenizer) if len(tokenizer) else None
    except Exception:  # noqa: BLE001 - a folder of weights alone is enough
        return None


def _error(shown: str, *, wanted: str, got: str, instead: str) -> ModelError:
    return ModelError.at(f"head = {shown}", "head", wanted=wanted, got=got, instead=instead)
