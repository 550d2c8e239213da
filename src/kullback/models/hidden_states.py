"""Hidden states of a served model, in files as vLLM writes them, as rows of logits through the model's head."""

from __future__ import annotations

import copy
import os
from collections.abc import Generator, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from kullback.common.dtypes import dtype_name, stored_step
from kullback.common.files import by_numbers, file_stamp, file_stamps
from kullback.common.formats import counted
from kullback.common.words import is_card, is_hidden_states
from kullback.errors import ArgumentValueError, FileError, invalid_value, printable
from kullback.io import RowStream, Windows
from kullback.io.arrays import ArrayLayout, BytesReader
from kullback.io.safetensors_file import FLOAT8_DTYPES, SAFETENSORS_DTYPES, safetensors_header, tensor_layout
from kullback.io.source_files import FileReference
from kullback.models.hidden_state_checks import Sample, examined
from kullback.models.open_model import LOADING, Loading
from kullback.models.output_head import OutputHead, open_head
from kullback.models.text import CUT, Cut

STATES, TOKENS, SCALES = "hidden_states", "token_ids", "hidden_states_scales"
_DTYPES = {
    name: dtype for name, dtype in SAFETENSORS_DTYPES.items() if dtype.is_floating_point
} | FLOAT8_DTYPES
_INTEGERS = {name: dtype for name, dtype in SAFETENSORS_DTYPES.items() if not dtype.is_floating_point}
_SAMPLED_TOKENS = 256  # of the first prompts, for the checks
_OTHER_FILES, _TOKENS_OF_OTHERS = 8, 32  # the checked files after the first, and their checked tokens
_IDENTIFYING_ROWS = 64
# A folder with such a file has hidden states, a model or an adapter.
_OF_MODELS = ("*.safetensors", "*.gguf", "*config.json")


class Prompt(NamedTuple):
    """The file of one prompt.

    Attributes:
        states: the hidden states in the file, of shape (tokens, layers, width).
        scales: the factors of the hidden states, of shape (tokens, 1 or layers, 1); None without factors.
    """

    ref: FileReference
    tokens: Tensor
    states: ArrayLayout
    scales: ArrayLayout | None

    def read(self, array: ArrayLayout, start: int, stop: int) -> Tensor:
        """Return the part of an array that belongs to the tokens from `start` to `stop` (not included)."""
        with _unlocked(self.ref), self.ref.decoding(STATES), self.ref.open() as file:
            reader = BytesReader(self.ref, file, array, format="safetensors")
            rows = array.shape[1]
            return reader.read(start * rows, stop * rows).view(stop - start, rows, -1)

    def hidden(self, start: int, stop: int) -> Tensor:
        """Return the hidden states of all layers, of shape (stop - start, layers, width)."""
        states = self.read(self.states, start, stop)
        return states if self.scales is None else states.float() * self.read(self.scales, start, stop).float()

    def steps(self, start: int, stop: int) -> Tensor:
        """Return the distance between neighboring numbers of the file's dtype around each hidden state."""
        steps = stored_step(self.read(self.states, start, stop))
        return steps if self.scales is None else steps * self.read(self.scales, start, stop).float()

    def beginning(self, most: int) -> Sample:
        """Return at most `most` tokens of the beginning, for the checks."""
        count = min(most, len(self.tokens))
        states, steps = self.hidden(0, count), self.steps(0, count)[:, -1]
        return Sample(self.ref.path.name, self.tokens[:count], states, steps, self.states.dtype)


class HiddenStates(RowStream):
    """The predictions of a model from its stored hidden states, through its final norm and head.

    The folder has a ``.safetensors`` file for each prompt, as the ``ExampleHiddenStatesConnector`` of vLLM and
    hs-connectors write them: ``hidden_states`` of shape (tokens, layers, width) and ``token_ids`` of shape (tokens,).
    The last layer must be the output of the last block, before the final norm. Hidden states are float16, bfloat16,
    float32, or float8 with ``hidden_states_scales``. Only one block of logits is in memory at a time.

    Each prompt is a window. In a comparison with another side, the files are found by the tokens of that side's
    windows. Before the first row, the layer and the norm are compared with the model of `head`. If this model cannot be
    opened, the likelihood of the tokens checks them. `caveats` names the check, and the change of a prediction by the
    rounding of the stored numbers.

    Arguments:
        folder: the folder of the hidden states.
        head: the folder of the model that made them, or an `OutputHead`.
        cut: which tokens of a prompt are scored, and the largest number of prompts; `context` is not used.
        loading: the dtype and device of the head.
        check: whether to check the layer and the norm against the model in the folder `head`. None checks if the
            weights take at most a quarter of the memory. False makes no check at all.
        name: the name of the argument that holds the folder, for messages.

    Raises:
        FileError: a file is damaged, is being written, or does not fit the others or the head; the layer or the norm
            is wrong.
        ModelError: the head cannot be read.
        ArgumentValueError: `cut` scores replies of conversations.

    Example:
        >>> import pathlib, tempfile, torch
        >>> from safetensors.torch import save_file
        >>> from kullback import compare
        >>> from kullback.models import HiddenStates, OutputHead
        >>> folder = pathlib.Path(tempfile.mkdtemp())
        >>> states = torch.randn(8, 1, 4, generator=torch.Generator().manual_seed(0))
        >>> save_file({"hidden_states": states, "token_ids": torch.arange(8)}, folder / "0.safetensors")
        >>> head = OutputHead("head", torch.nn.Identity(), torch.eye(10, 4))
        >>> served = HiddenStates(folder, head, check=False)
        >>> served.rows, served.classes, served.windows.labels
        (3, 10, tensor([5, 6, 7]))
    """

    finds_windows = True

    def __init__(
        self,
        folder: str | os.PathLike[str],
        head: str | os.PathLike[str] | OutputHead,
        *,
        cut: Cut = CUT,
        loading: Loading = LOADING,
        check: bool | None = None,
        name: str = "folder",
    ) -> None:
        if cut.score == "assistant":
            raise invalid_value(
                "Cut",
                "score",
                wanted="'second-half' or 'all' for hidden states, whose files do not mark replies",
                got="'assistant'",
                instead={"score": "all"},
            )
        self.name = str(Path(folder))
        self._ref = FileReference(Path(folder), name)
        self._score, self._most_windows = cut.chosen[1], cut.most_windows
        self._loading, self._check = loading, check
        self._prompts = _prompts(self._ref)
        self.head = head if isinstance(head, OutputHead) else open_head(Path(head), loading)
        self.classes = self.head.classes
        for prompt in self._prompts:
            self._require_fit(prompt)
        self.metadata = self._described()
        # Copies for other windows share this list, so that the checks are made once.
        self._notes: list[list[str]] = []
        self._set_windows(*self._own_windows())

    def _require_fit(self, prompt: Prompt) -> None:
        """Refuse a prompt that does not fit the head, or the first prompt."""
        first, width = self._prompts[0], prompt.states.shape[2]
        instead = "name the folder of the model that made the hidden states (--head)"
        if width != self.head.width:
            raise prompt.ref.error(
                wanted=f"hidden states of width {self.head.width}, as the head {printable(self.head.name)} takes",
                got=f"width {width}",
                instead=instead,
            )
        if _layout(prompt) != _layout(first):
            raise prompt.ref.differs(
                first.ref,
                wanted="as many layers, the same dtype and scales in all files",
                got=f"{_layout(prompt)} and {_layout(first)}",
                instead="keep the files of one recording in a folder of their own",
            )
        highest = int(prompt.tokens.max())
        if int(prompt.tokens.min()) < 0 or highest >= self.classes:
            raise prompt.ref.error(
                wanted=f"tokens from 0 to {self.classes - 1}, the classes of the head",
                got=f"tokens from {int(prompt.tokens.min())} to {highest}",
                instead=instead,
            )

    def _described(self) -> dict[str, str]:
        known = {
            "context": max(len(prompt.tokens) for prompt in self._prompts),
            "score": self._score,
            "model_kind": "hidden states",
            "dtype": dtype_name(self._prompts[0].states.dtype),
            "tokenizer": None if self.head.words is None else self.head.words.vocabulary.fingerprint,
        }
        return {key: str(value) for key, value in known.items() if value is not None}

    def _own_windows(self) -> tuple[Windows, list[int]]:
        scored = [
            torch.arange(len(prompt.tokens), device="cpu")
            > (len(prompt.tokens) // 2 if self._score == "second-half" else 0)
            for prompt in self._prompts
        ]
        order = [number for number, tokens in enumerate(scored) if bool(tokens.any())][: self._most_windows]
        if not order:
            raise self._ref.error(
                wanted="a prompt with a scored token",
                got="prompts of one or two tokens",
                instead="record longer prompts, or score all tokens (--score all)",
            )
        tokens = [self._prompts[number].tokens for number in order]
        offsets = torch.tensor([0, *map(len, tokens)], device="cpu").cumsum(0)
        return Windows(torch.cat(tokens), offsets, torch.cat([scored[number] for number in order])), order

    def _set_windows(self, windows: Windows, order: list[int]) -> None:
        self.windows, self._order = windows, order  # pyright: ignore[reportIncompatibleVariableOverride]
        self.rows = windows.rows

    def over(self, windows: Windows) -> HiddenStates:
        """Return the predictions for other windows. Each window has to have the tokens of a file.

        Raises:
            FileError: no file has the tokens of a window; the message has the first difference from the nearest file.
        """
        places = {prompt.tokens.numpy().tobytes(): place for place, prompt in enumerate(self._prompts)}
        order: list[int] = []
        for number in range(len(windows)):
            tokens = windows.window(number)[0].long().contiguous()
            place = places.get(tokens.numpy().tobytes())
            if place is None:
                raise self._without(number, tokens)
            order.append(place)
        arranged = copy.copy(self)
        arranged._set_windows(windows, order)  # noqa: SLF001 - a copy of this object
        return arranged

    def _without(self, number: int, tokens: Tensor) -> FileError:
        nearest = max(self._prompts, key=lambda prompt: _common(prompt.tokens, tokens))
        place = _common(nearest.tokens, tokens)
        own, others = (
            f"token {int(x[place])}" if place < len(x) else "the end" for x in (nearest.tokens, tokens)
        )
        return self._ref.error(
            wanted=f"a file with the tokens of window {number} of the other side",
            got=f"none: at index {place}, the nearest file {nearest.ref.path.name} has {own} for {others}",
            instead="record the prompts of the other side, or leave the text out to compare the recorded prompts",
        )

    def blocks(self, *, rows: int, first: int = 0) -> Iterator[Tensor]:
        self.caveats()
        windows = cast("Windows", self.windows)
        before = torch.bincount(windows.clusters, minlength=len(windows)).cumsum(0)
        for number in range(len(windows)):
            _, scored = windows.window(number)
            # The hidden state of a token predicts the next token.
            places = scored.nonzero().squeeze(-1) - 1
            skipped = first - (int(before[number]) - len(places))
            for part in places[max(0, skipped) :].split(rows):
                if len(part):
                    yield self.head.logits(self._states(self._order[number], part))

    def _states(self, place: int, tokens: Tensor) -> Tensor:
        start = int(tokens[0])
        return self._prompts[place].hidden(start, int(tokens[-1]) + 1)[tokens - start, -1]

    def caveats(self) -> list[str]:
        """Check the layer and the norm at the first call; return remarks on the check and on the storage.

        Raises:
            FileError: the layer or the norm is wrong.
        """
        if not self._notes:
            samples = list(self._samples())
            seen = self._ref, samples, self._others(), self.head
            self._notes.append(examined(*seen, loading=self._loading, check=self._check))
        return self._notes[0]

    def _samples(self) -> Iterator[Sample]:
        left = _SAMPLED_TOKENS
        for place in self._order:
            if min(left, len(self._prompts[place].tokens)) < 2:
                return
            sample = self._prompts[place].beginning(left)
            yield sample
            left -= len(sample.tokens)

    def _others(self) -> Iterator[Sample]:
        """Yield short beginnings of prompts after the first, one at random from each of equal parts of the order."""
        left, generator = len(self._order) - 1, torch.Generator().manual_seed(0)
        parts = min(_OTHER_FILES, left)
        for part in range(parts):
            low, high = (1 + left * each // parts for each in (part, part + 1))
            number = int(torch.randint(low, high, (), generator=generator, device="cpu"))
            yield self._prompts[self._order[number]].beginning(_TOKENS_OF_OTHERS)

    def identity(self) -> object:
        stamps = [file_stamp(self._prompts[place].ref.path) for place in self._order]
        # A head in memory has no file, so a part of its weight identifies the head.
        part = self.head.weight[:: max(1, self.classes // _IDENTIFYING_ROWS)].float().sum(-1).tolist()
        head = [self.head.name, str(self.head.weight.dtype), file_stamps(self.head.name), part]
        return [type(self).__qualname__, self.name, self.classes, self.rows, head, stamps]


def require_states(sides: Sequence[str], heads: Sequence[str | Path]) -> None:
    """Refuse a folder without hidden states and without a model, if heads were passed."""
    for name in sides if heads else ():
        folder = Path(name)
        files = (path for pattern in _OF_MODELS for path in folder.glob(pattern))
        if folder.is_dir() and not is_card(folder) and next(files, None) is None:
            raise _without_states(FileReference(folder, name), f"no .safetensors in {printable(name)}")


def with_heads(
    sides: Sequence[str], heads: Sequence[str | Path], *, cut: Cut = CUT, loading: Loading = LOADING
) -> list[Any]:
    """Return sides of a comparison, with the folders of hidden states opened by one head for all, or one for each."""
    stored = [name for name in sides if is_hidden_states(name)]
    if len(heads) not in (len(stored), min(1, len(stored))):
        missing = "".join(f"check the path {printable(x)}, or " for x in sides if not Path(x).exists())
        raise ArgumentValueError.at(
            "--head",
            "--head",
            wanted=_number_of_heads(len(stored)) if stored else "a side that is a folder of hidden states",
            got=counted(len(heads), "head") if heads and stored else "none",
            instead="--head MODEL" if stored else missing + "leave --head out",
        )
    folders = iter(heads if len(heads) == len(stored) else [*heads] * len(stored))
    head_of = cache(lambda folder: open_head(folder, loading))

    def opened(folder: str) -> HiddenStates:
        return HiddenStates(folder, head_of(next(folders)), cut=cut, loading=loading, name="hidden states")

    return [opened(x) if x in stored else x for x in sides]


def _without_states(folder: FileReference, got: str) -> FileError:
    instead = "name the shared_storage_path of vLLM's ExampleHiddenStatesConnector"
    return folder.error(wanted="a folder of hidden states as .safetensors", got=got, instead=instead)


def _number_of_heads(folders: int) -> str:
    if folders == 1:
        return "one head: the head of the model whose hidden states are in the folder"
    return f"one head for all {folders} folders of hidden states, or {folders} heads, one for each"


def _prompts(folder: FileReference) -> list[Prompt]:
    """Return the prompts of a folder, in the order of the numbers in the names of the files."""
    paths = sorted(folder.path.glob("*.safetensors"), key=lambda path: by_numbers(path.stem))
    if not paths:
        raise _without_states(folder, "no such file in it" if folder.path.is_dir() else "no folder")
    return [_prompt(FileReference(path, folder.name)) for path in paths]


def _prompt(ref: FileReference) -> Prompt:
    with _unlocked(ref), ref.decoding("hidden states in a safetensors file"):
        data, header = safetensors_header(ref)
        if STATES not in header or TOKENS not in header:
            raise ref.error(
                wanted=f"the tensors {STATES} and {TOKENS}",
                got=f"{', '.join(name for name in header if name != '__metadata__') or 'no tensor'}",
                instead="keep other files out of the folder",
            )
        states = tensor_layout(ref, STATES, header[STATES], data, _DTYPES)
        ids = tensor_layout(ref, TOKENS, header[TOKENS], data, _INTEGERS)
        scales = tensor_layout(ref, SCALES, header[SCALES], data) if SCALES in header else None
        if len(states.shape) != 3 or 0 in states.shape or len(ids.shape) != 1:
            raise ref.error(
                wanted=f"{STATES} of shape (tokens, layers, width) and {TOKENS} of shape (tokens,)",
                got=f"{states.shape} and {ids.shape}",
                instead="record them with vLLM's ExampleHiddenStatesConnector",
            )
        tokens, layers, _ = states.shape
        if ids.shape[0] != tokens:
            got, instead = f"{tokens}", f"keep only the hidden states of the tokens in {TOKENS}"
            if tokens < ids.shape[0]:
                got += ": vLLM's prefix cache leaves the others out"
                instead = "record again with enable_prefix_caching=False (--no-enable-prefix-caching)"
            wanted = f"a hidden state for each of {ids.shape[0]} tokens"
            raise ref.error(wanted=wanted, got=got, instead=instead)
        is_float8 = states.dtype in FLOAT8_DTYPES.values()
        fitting = scales is not None and scales.shape in ((tokens, 1, 1), (tokens, layers, 1))
        if fitting != is_float8 or (scales is not None and not is_float8):
            raise ref.error(
                wanted=f"float8 with {SCALES} of shape {(tokens, 1, 1)}, or another dtype without them",
                got=f"{dtype_name(states.dtype)} with " + ("none" if scales is None else f"{scales.shape}"),
                instead="record the hidden states again, or store them as bfloat16",
            )
        with ref.open() as file:
            reader = BytesReader(ref, file, replace(ids, shape=(tokens, 1)), format="safetensors")
            return Prompt(ref, reader.read(0, tokens).view(-1).long(), states, scales)


@contextmanager
def _unlocked(ref: FileReference) -> Generator[None]:
    """Hold the lock of the file's writer, if any, while the file is read; refuse a file that is being written."""
    try:
        import fcntl
    except ImportError:  # on Windows, where vLLM does not run
        yield
        return
    with ExitStack() as stack:
        with suppress(OSError):  # without a lock, or without the permission to open it
            lock = stack.enter_context(Path(f"{ref.path}.lock").open("rb"))
            try:
                fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                raise ref.error(
                    wanted="a file that no process writes",
                    got=f"one whose lock {ref.path.name}.lock is held",
                    instead="wait until the server has written it",
                ) from None
        yield


def _layout(prompt: Prompt) -> str:
    scales = "" if prompt.scales is None else " with scales"
    layers = prompt.states.shape[1]
    return f"{layers} layer{'' if layers == 1 else 's'} of {dtype_name(prompt.states.dtype)}{scales}"


def _common(a: Tensor, b: Tensor) -> int:
    """Return the number of tokens at the beginning that are the same in both."""
    length = min(len(a), len(b))
    differs = (a[:length] != b[:length]).nonzero()
    return int(differs[0]) if len(differs) else length
