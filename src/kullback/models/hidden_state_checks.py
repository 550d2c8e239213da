"""Checks of stored hidden states: their layer and their norm, and the effect of the rounding in the files."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from kullback.common.dtypes import dtype_name
from kullback.common.formats import significant
from kullback.common.words import WARNING
from kullback.errors import FileError, ModelError, printable
from kullback.generators import KL
from kullback.io.source_files import FileReference
from kullback.kernels import RowDivergence, logit_divergence
from kullback.models.huggingface_model import open_folder
from kullback.models.open_model import Loading
from kullback.models.output_head import OutputHead, last_parts, require_logits

_MEMORY_SHARE = 4  # a model is opened for a check if its weights take at most this part of the memory
_OTHER_LAYERS = 8  # the layers next to the last one whose likelihood is compared
_FEWEST_ROWS = 16  # for a check by the likelihood
# A relative distance. The rounding of bfloat16, float8 and other kernels changes hidden states by a few percent.
_ROUNDING = 0.05
_MIXED = 4.0  # the distances of one recording's files differ by less than this factor
_NEARER = 0.5  # another layer is named if the hidden states are nearer to it by this factor
_CLEARLY_BETTER = 1.0  # nats a token: no earlier layer predicts that much better than the last one
_ERRORS = 3.0  # standard errors
_KL = RowDivergence(KL())


class Sample(NamedTuple):
    """The beginning of a prompt, with the name of the file and the dtype in it.

    Attributes:
        states: the hidden states of all stored layers, of shape (tokens, layers, width).
        steps: the distance between neighboring stored numbers, for the last layer, of shape (tokens, width).
    """

    file: str
    tokens: Tensor
    states: Tensor
    steps: Tensor
    dtype: torch.dtype


class _Difference(NamedTuple):
    """The difference of one file's hidden states from the model's: the median relative distance of the file's tokens,
    and the mean KL between the predictions of both, in nats.
    """

    file: str
    tokens: int
    distance: float
    kl: float

    @classmethod
    def of(cls, sample: Sample, own: Tensor, logits: Tensor, head: OutputHead) -> _Difference:
        stored = sample.states[:, -1]
        kl = logit_divergence(_KL, logits.float(), head.logits(stored).cpu().float()).mean()
        return cls(sample.file, len(stored), _distance(stored.float(), own), float(kl))


def examined(
    ref: FileReference,
    samples: Sequence[Sample],
    others: Iterable[Sample],
    head: OutputHead,
    *,
    loading: Loading,
    check: bool | None,
) -> list[str]:
    """Return remarks on hidden states for a report, as sentences without a period.

    Arguments:
        ref: the folder, for messages.
        samples: the beginnings of the first prompts.
        others: short beginnings of other prompts, which are read only if the model is opened.
        head, loading: the head that makes logits of the hidden states, and how the model in its folder is opened.
        check: whether to open that model; None if its weights are small enough. False makes no check.

    Raises:
        FileError: the hidden states seem to be of another layer, scale or normalization, or predict the text worse than
            equal probabilities. The error is also raised if only some files are of the model.
    """
    notes: list[str] = []
    if check is not False:
        model = _opened(head, loading, required=check is True)
        if model is None:
            notes.append(_likelihood(ref, samples, head))
        else:
            with model:
                checked = [_against(ref, samples[0], head, model.model)]
                checked += [_difference(sample, head, model.model) for sample in others]
                notes += _agreement(ref, head, checked)
    return notes + _on_storage(samples, head)


def _on_storage(samples: Sequence[Sample], head: OutputHead) -> list[str]:
    """Return a remark on the rounding of the stored numbers; none for float32."""
    dtype, name = samples[0].dtype, dtype_name(samples[0].dtype)
    if dtype in (torch.float32, torch.float64):
        return []
    if dtype == head.weight.dtype:
        return [f"the files store {name}, the dtype of the model, so they add no rounding"]
    noise = torch.cat([_storage_noise(sample, head) for sample in samples]).mean()
    added = f"adds about {significant(float(noise), 2)} nats to the mean KL"
    return [f"the files store {name}, whose rounding {added}; smaller divergences cannot be seen"]


def _storage_noise(sample: Sample, head: OutputHead) -> Tensor:
    """Return KL between the predictions of the stored hidden states and of states that the dtype rounds to them."""
    generator = torch.Generator().manual_seed(0)
    states = sample.states[:, -1].float()
    noise = torch.rand(states.shape, generator=generator, dtype=states.dtype, device="cpu") - 0.5
    stored, other = (head.logits(x).float() for x in (states, states + sample.steps * noise))
    return logit_divergence(_KL, stored, other)


def _opened(head: OutputHead, loading: Loading, *, required: bool) -> Any:
    """Return the open model in the folder of a head; None if it is too large or cannot be opened."""
    if not required and not _fits(Path(head.name)):
        return None
    weights: dict[str, Any] = {"dtype": loading.dtype, "device": loading.device}
    try:
        return open_folder(head.name, **weights, trust_remote_code=loading.trust_remote_code)
    except ModelError:
        if required:
            raise
        return None


def _fits(folder: Path) -> bool:
    """Return whether a folder has weights that take at most a part of the machine's memory."""
    if not hasattr(os, "sysconf"):
        return False
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    size = sum(path.stat().st_size for path in folder.glob("*.safetensors"))
    return 0 < size <= memory // _MEMORY_SHARE


def _against(ref: FileReference, sample: Sample, head: OutputHead, model: Any) -> _Difference:
    """Compare the beginning of the first prompt with the layers of the model, and refuse all but the last layer."""
    layers, normed, logits = _layers(model, sample.tokens, head)
    stored = sample.states[:, -1].float()
    own = layers.pop(head.layers)
    require_logits(head, head.logits(own).cpu(), logits, "its norm and its head alone")
    scale = float((stored * own).sum() / (own * own).sum().clamp(min=1e-30))
    others = {f"the input of block {layer} (id {layer})": x for layer, x in layers.items()}
    others["the states after the final norm"] = normed
    shifted = {
        "the states of the tokens before": own.roll(1, 0),
        "the states of the tokens after": own.roll(-1, 0),
    }
    others |= shifted
    others[f"its states times {significant(scale, 3)}, a wrong scale"] = scale * own
    distance, distances = _distance(stored, own), {name: _distance(stored, x) for name, x in others.items()}
    nearest = min(distances, key=lambda name: distances[name])
    if distances[nearest] < _NEARER * distance:
        raise _wrong(
            ref, head, nearest, instead="store in row i the state of token i" if nearest in shifted else ""
        )
    if distance > 1:
        other = "name the model that made these files (--head), or in Python check=False"
        got = f"states that differ from it by {100 * distance:.3g} %, more than zeros do"
        raise _wrong(ref, head, got, instead=other)
    return _Difference.of(sample, own, logits, head)


def _difference(sample: Sample, head: OutputHead, model: Any) -> _Difference:
    layers, _, logits = _layers(model, sample.tokens, head)
    return _Difference.of(sample, layers[head.layers], logits, head)


def _agreement(ref: FileReference, head: OutputHead, checked: Sequence[_Difference]) -> list[str]:
    """Return remarks on the largest difference from the model; refuse files if only some of them are of the model."""
    order = sorted(checked, key=lambda each: each.distance)
    least, most = order[0], order[-1]
    alien = [each for each in order if each.distance > max(_ROUNDING, _MIXED * least.distance)]
    if alien and least.distance <= _ROUNDING:
        named = ", ".join(f"{each.file} by {_percent(each)}" for each in alien)
        raise ref.error(
            wanted=f"files of one recording of the model {printable(head.name)}",
            got=f"{least.file}, whose states differ from the model's by {_percent(least)}, and those of {named}",
            instead="keep the files of one recording in a folder of their own, and name its model (--head)",
        )
    model, kl = printable(head.name), significant(max(each.kl for each in checked), 2)
    tokens = sum(each.tokens for each in checked)
    where = "first" if len(checked) == 1 else f"first of each of {len(checked)} files, together"
    remark = (
        f"the {where} {tokens} tokens were checked against the model {model}: the hidden states differ by "
    )
    end = "" if len(checked) == 1 else " at most"
    notes = [f"{remark}{_percent(most)}, the predictions by {kl} nats of KL{end}"]
    if most.distance <= _ROUNDING:
        notes[0] += f"; another model that differs by less than {100 * _ROUNDING:g} % would not be noticed"
    else:
        notes.append(
            f"{WARNING}the hidden states differ from the states of {model} by {_percent(most)} ({kl} nats of KL), "
            "more than rounding does; another model may have made them (--head)"
        )
    return notes


def _percent(difference: _Difference) -> str:
    return f"{100 * difference.distance:.2g} %"


@torch.inference_mode()
def _layers(model: Any, tokens: Tensor, head: OutputHead) -> tuple[dict[int, Tensor], Tensor, Tensor]:
    """Return the hidden states of a model by vLLM's ids of the layers, the states after the norm, and the logits."""
    ends: list[tuple[Tensor, Tensor]] = []
    parts = last_parts(model, printable(head.name))
    hook = parts.norm.register_forward_hook(lambda _, inputs, output: ends.append((inputs[0], output)))
    try:
        inputs = tokens[None].to(next(model.parameters()).device)
        output = model(input_ids=inputs, output_hidden_states=True, use_cache=False)
    finally:
        hook.remove()
    before, after = ends[-1]
    layers = dict(enumerate(output.hidden_states[: head.layers])) | {head.layers: before}
    states = {layer: x[0].float().cpu() for layer, x in layers.items()}
    return states, after[0].float().cpu(), output.logits[0].cpu()


def _distance(stored: Tensor, own: Tensor) -> float:
    """Return the median over tokens of the relative distance, as the first token often has enormous states."""
    return float(((stored - own).norm(dim=-1) / own.norm(dim=-1).clamp(min=1e-30)).median())


def _likelihood(ref: FileReference, samples: Sequence[Sample], head: OutputHead) -> str:
    """Refuse hidden states that predict their text worse than other layers do, or than nothing does."""
    layers = samples[0].states.shape[1]
    losses = _losses(samples, head, layers - 1)
    if len(losses) < _FEWEST_ROWS:
        return f"the layer and the norm could not be checked on {len(losses)} tokens"
    others = {
        f"layer {layer + 1} of {layers}, which predicts the text better": _losses(samples, head, layer)
        for layer in range(max(0, layers - 1 - _OTHER_LAYERS), layers - 1)
    }
    others["states after the final norm"] = _losses(samples, head, layers - 1, with_norm=False)
    for name, other in others.items():
        gain = losses - other
        if float(gain.mean()) > _CLEARLY_BETTER + _ERRORS * _error(gain):
            got = f"{significant(float(losses.mean()), 3)} nats a token, and {significant(float(other.mean()), 3)} as"
            raise _wrong(ref, head, f"{got} {name}")
    if float(losses.mean()) > math.log(head.classes) + _ERRORS * _error(losses):
        got = f"{significant(float(losses.mean()), 3)} nats a token, worse than equal probabilities"
        raise _wrong(ref, head, f"{got} ({significant(math.log(head.classes), 3)})")
    return (
        f"the model {printable(head.name)} was not opened to check the layer and the norm. The text's likelihood, "
        f"{significant(float(losses.mean()), 3)} nats a token, does not contradict them"
    )


def _losses(samples: Sequence[Sample], head: OutputHead, layer: int, *, with_norm: bool = True) -> Tensor:
    """Return the negative log-likelihood of each token but the first of each sample."""
    losses: list[Tensor] = []
    for sample in samples:
        logits = head.logits(sample.states[:-1, layer], with_norm=with_norm).double()
        targets = sample.tokens[1:].to(logits.device)
        losses.append(torch.nn.functional.cross_entropy(logits, targets, reduction="none").cpu())
    return torch.cat(losses)


def _error(values: Tensor) -> float:
    return float(values.std() / math.sqrt(len(values)))


def _wrong(ref: FileReference, head: OutputHead, got: str, *, instead: str = "") -> FileError:
    layers = f"id {head.layers}" if head.layers else "the id num_hidden_layers"
    return ref.error(
        wanted=f"as the last layer the output of the last block of {printable(head.name)}, before the norm ({layers})",
        got=got,
        instead=instead
        or f"record {layers} in eagle_aux_hidden_state_layer_ids, or name the model of these files (--head)",
    )
