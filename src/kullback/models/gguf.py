"""Language models in GGUF files, which llama.cpp runs through llama-cpp-python."""

from __future__ import annotations

import ctypes
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from kullback.common.optional import load
from kullback.errors import BY_EVENT, printable
from kullback.io.windows import Windows
from kullback.models.language_model import (
    LanguageModel,
    Message,
    ModelInfo,
    not_causal,
    not_opened,
    refused_conversation,
)
from kullback.models.vocabulary import Token, Vocabulary

_FLOAT32 = 0  # ggml's number for float32
_WITHOUT_FLASH_ATTENTION = 0
_WARNING, _ERROR = 3, 4  # levels of ggml's log
_LARGEST_BATCH = 512  # tokens that llama.cpp evaluates at a time; this is llama.cpp's default
_SMALLEST_BATCH = 32
_LARGEST_ATTENTION = 2**20  # attention scores of one head: tokens in a batch times tokens in a window
_NO_TOKENIZER = 0  # LLAMA_VOCAB_TYPE_NONE


class GGUFModel(LanguageModel):
    """A causal language model in a GGUF file, which llama.cpp runs.

    Keys, values and attention are in float32, not in llama.cpp's default of float16 with flash attention. That default
    alone moves the logits of a small model by 0.02. llama.cpp holds the logits of one block at a time, and a block is a
    copy of these logits.

    Arguments:
        path: the path of the file; for a split model, the first file.
        device: ``"cpu"``. Any other device puts all layers on the GPU that llama.cpp was built for, if any.

    Raises:
        ModelError: the file is not a GGUF file of a causal language model with a tokenizer, or llama.cpp cannot load
            the file.
        OptionalDependencyError: llama-cpp-python is not installed.
    """

    def __init__(self, path: Path, *, device: str = "cpu") -> None:
        self._llama = llama = load("llama_cpp", "a GGUF model")
        self.device = device if llama.llama_supports_gpu_offload() else "cpu"
        self._on_cpu = self.device == "cpu"
        shown = printable(path)
        _check_header(path, shown)
        llama.llama_backend_init()
        settings = llama.llama_model_default_params()
        settings.n_gpu_layers = 0 if self._on_cpu else -1
        # This setting avoids a second, repacked copy of the weights, which also crashes on CPUs with AMX
        # (ggml-org/llama.cpp#20824).
        settings.use_extra_bufts = False
        with _log_of(llama) as log:
            self._model = llama.llama_model_load_from_file(str(path).encode(), settings)
        if not self._model:
            raise not_opened(
                shown,
                wanted="a GGUF file of a language model that llama.cpp knows",
                got=_last(log),
                instead="fetch or convert the file again, or install a newer llama-cpp-python",
            )
        try:
            self._require_causal(shown)
            self._vocab = llama.llama_model_get_vocab(self._model)
            if llama.llama_vocab_type(self._vocab) == _NO_TOKENIZER:
                raise not_opened(
                    shown,
                    wanted="a GGUF file with a tokenizer",
                    got="none in it",
                    instead="convert the model again, together with its tokenizer",
                )
            self.info = ModelInfo(
                str(path),
                "GGUF",
                _file_type(llama, self._model),
                int(llama.llama_vocab_n_tokens(self._vocab)),
                int(llama.llama_model_n_params(self._model)) or None,
                int(llama.llama_model_size(self._model)) or None,
            )
            self.vocabulary = Vocabulary([self._token(number) for number in range(self.classes)])
            first = int(llama.llama_vocab_bos(self._vocab))
            self.bos = first if llama.llama_vocab_get_add_bos(self._vocab) and first >= 0 else None
        except BaseException:
            self.close()
            raise

    def encode(self, text: str) -> list[int]:
        return self._tokenize(text, special=False)

    def chat_text(
        self, messages: Sequence[Message], *, tools: Sequence[Any] | None = None, reply_follows: bool
    ) -> str:
        if tools or any(message.get("tool_calls") for message in messages):
            raise self.error(
                wanted="the folder of a Hugging Face model, whose template writes tools as in its training",
                got="a GGUF file; llama-cpp-python writes the JSON of tools in another way",
                instead="name the folder as P, or leave the tools out",
            )
        template = self._llama.llama_model_chat_template(self._model, None)
        if not template:
            raise self.error(
                wanted="a GGUF file with a chat template",
                got="none in it",
                instead="score the whole text (--score all), or convert the model again with its template",
            )
        formats = load("llama_cpp.llama_chat_format", "a GGUF model")
        special = {
            name: self._piece(number, special=True).decode("utf-8", "replace") if number >= 0 else ""
            for name, number in (
                ("bos_token", self._llama.llama_vocab_bos(self._vocab)),
                ("eos_token", self._llama.llama_vocab_eos(self._vocab)),
            )
        }
        try:
            formatter = formats.Jinja2ChatFormatter(
                template=template.decode(), add_generation_prompt=reply_follows, **special
            )
            return str(formatter(messages=[dict(message) for message in messages]).prompt)
        except Exception as error:
            raise refused_conversation(self.name, error) from error

    def chat_encode(self, text: str) -> list[int]:
        return self._tokenize(text, special=True)

    def logits(self, windows: Windows, rows: int, first: int = 0) -> Iterator[Tensor]:
        if first >= len(windows):
            return
        self._check_tokens(windows.tokens)
        context = self._context(int(windows.offsets.diff().max()), rows)
        size = int(self._llama.llama_n_batch(context))
        batch = self._llama.llama_batch_init(size, 0, 1)
        try:
            for number in range(first, len(windows)):
                self._llama.llama_memory_clear(self._llama.llama_get_memory(context), True)
                tokens, scored = windows.window(number)
                # The model gives the distribution of a token at the previous token.
                wanted = scored[1:].tolist()
                for places in _batches(wanted, size, rows):
                    outputs = self._decode(context, batch, tokens.tolist(), wanted, places)
                    if outputs:
                        yield self._rows(context, outputs)
        finally:
            self._llama.llama_batch_free(batch)
            with _log_of(self._llama):
                self._llama.llama_free(context)

    def close(self) -> None:
        if self._model:
            with _log_of(self._llama):
                self._llama.llama_model_free(self._model)
            self._model = None

    def _rows(self, context: Any, outputs: int) -> Tensor:
        address = ctypes.addressof(self._llama.llama_get_logits(context).contents)
        array = (ctypes.c_float * (outputs * self.classes)).from_address(address)
        return torch.frombuffer(array, dtype=torch.float32).view(outputs, self.classes).clone()

    def _decode(self, context: Any, batch: Any, ids: list[int], wanted: list[bool], places: range) -> int:
        """Evaluate the tokens at some places of a window, and return the number of rows of logits."""
        batch.n_tokens = len(places)
        for index, place in enumerate(places):
            batch.token[index] = ids[place]
            batch.pos[index] = place
            batch.n_seq_id[index] = 1
            batch.seq_id[index][0] = 0
            batch.logits[index] = wanted[place]
        with _log_of(self._llama) as log:
            code = self._llama.llama_decode(context, batch)
        if code:
            raise self.error(
                wanted="a window that llama.cpp can evaluate",
                got=f"llama.cpp could not evaluate a window ({_last(log)}, code {code})",
                instead="take a smaller context (--context), or run the models one after the other "
                "(--one-at-a-time)",
                wording=BY_EVENT,
            )
        return sum(wanted[place] for place in places)

    def _context(self, tokens: int, rows: int) -> Any:
        llama = self._llama
        settings = llama.llama_context_default_params()
        settings.n_ctx = tokens
        batch = max(_SMALLEST_BATCH, min(_LARGEST_BATCH, _LARGEST_ATTENTION // tokens))
        settings.n_batch = settings.n_ubatch = min(tokens, batch)
        settings.n_outputs_max = min(rows, settings.n_batch)
        settings.n_seq_max = 1
        settings.n_threads = settings.n_threads_batch = torch.get_num_threads()
        settings.type_k = settings.type_v = _FLOAT32
        settings.flash_attn_type = _WITHOUT_FLASH_ATTENTION
        settings.no_perf = True
        if self._on_cpu:
            settings.offload_kqv = settings.op_offload = False
        with _log_of(llama) as log:
            context = llama.llama_init_from_model(self._model, settings)
        if not context:
            raise self.error(
                wanted="windows that llama.cpp can read",
                got=f"llama.cpp cannot read windows of {tokens:,} tokens ({_last(log)})",
                instead="if memory ran out, take a smaller context (--context), or run the models one after the "
                "other (--one-at-a-time)",
                wording=BY_EVENT,
            )
        return context

    def _check_tokens(self, tokens: Tensor) -> None:
        low, high = (int(bound) for bound in tokens.aminmax())
        if low < 0 or high >= self.classes:
            raise self.error(
                wanted=f"tokens from 0 to {self.classes - 1}",
                got=f"{(low if low < 0 else high)}",
                instead="cut the windows with a tokenizer of the same vocabulary",
            )

    def _require_causal(self, shown: str) -> None:
        architecture = self._metadata("general.architecture")
        encoder = self._llama.llama_model_has_encoder(self._model)
        if encoder or self._metadata(f"{architecture}.attention.causal") == "false":
            raise not_causal(shown, f"one of kind {printable(architecture)!r}")

    def _metadata(self, key: str) -> str:
        buffer = ctypes.create_string_buffer(256)
        length = self._llama.llama_model_meta_val_str(self._model, key.encode(), buffer, len(buffer))
        return buffer.value.decode("utf-8", "replace") if length >= 0 else ""

    def _tokenize(self, text: str, *, special: bool) -> list[int]:
        content = text.encode("utf-8", "replace")
        size = len(content) + 8  # no token is empty; a tokenizer may add a space
        for _ in range(2):
            buffer = (self._llama.llama_token * size)()
            count = self._llama.llama_tokenize(
                self._vocab, content, len(content), buffer, size, False, special
            )
            if count >= 0:
                return list(buffer[:count])
            size = -count
        raise self.error(
            wanted="a text that llama.cpp can cut into tokens",
            got=f"llama.cpp cannot cut a text of {len(content):,} bytes into tokens",
            instead="give a shorter one",
            wording=BY_EVENT,
        )

    def _token(self, number: int) -> Token | None:
        llama = self._llama
        kind = int(llama.llama_vocab_get_attr(self._vocab, number))
        if kind & (llama.LLAMA_TOKEN_ATTR_CONTROL | llama.LLAMA_TOKEN_ATTR_UNKNOWN):
            return Token(self._piece(number, special=True), special=True)
        if kind == llama.LLAMA_TOKEN_ATTR_UNDEFINED or kind & llama.LLAMA_TOKEN_ATTR_UNUSED:
            return None
        return Token(self._piece(number, special=False))

    def _piece(self, number: int, *, special: bool) -> bytes:
        size = 64
        for _ in range(2):
            buffer = ctypes.create_string_buffer(size)
            length = self._llama.llama_token_to_piece(self._vocab, number, buffer, size, 0, special)
            if length >= 0:
                return buffer.raw[:length]
            size = -length
        return b""


def _batches(wanted: list[bool], size: int, rows: int) -> Iterator[range]:
    """Iterate over batches of at most `size` places of a window; at most `rows` places of a batch have logits."""
    end = len(wanted) - wanted[::-1].index(True) if any(wanted) else 0  # the end of the evaluated places
    start = 0
    while start < end:
        stop = outputs = 0
        for stop in range(start + 1, min(end, start + size) + 1):
            outputs += wanted[stop - 1]
            if outputs == rows:
                break
        yield range(start, stop)
        start = stop


def _check_header(path: Path, shown: str) -> None:
    try:
        with path.open("rb") as file:
            magic = file.read(4)
    except OSError as error:
        raise not_opened(
            shown, wanted="a readable GGUF file", got=f"{error.strerror or error}", instead="check the path"
        ) from None
    if magic != b"GGUF":
        raise not_opened(
            shown,
            wanted="a GGUF file, which begins with 'GGUF'",
            got=f"one that begins with {magic!r}",
            instead="convert the model with llama.cpp's convert_hf_to_gguf.py",
        )


def _file_type(llama: Any, model: Any) -> str | None:
    """Return the name of a file's quantization, such as ``Q4_K_M``; None for an unknown quantization."""
    number = int(llama.llama_model_ftype(model)) & ~llama.LLAMA_FTYPE_GUESSED
    for name in dir(llama):
        for start in ("LLAMA_FTYPE_MOSTLY_", "LLAMA_FTYPE_ALL_"):
            if name.startswith(start) and getattr(llama, name) == number:
                return name.removeprefix(start)
    return None


@contextmanager
def _log_of(llama: Any) -> Generator[list[str]]:
    """Collect the warnings and errors that llama.cpp would otherwise print."""
    lines: list[str] = []

    def collect(level: int, text: bytes, _: object) -> None:
        if level in (_WARNING, _ERROR):
            lines.append(text.decode("utf-8", "replace").strip())

    callback = llama.llama_log_callback(collect)
    before, data = llama.llama_log_callback(), ctypes.c_void_p()
    llama.llama_log_get(ctypes.byref(before), ctypes.byref(data))
    llama.llama_log_set(callback, None)
    try:
        yield lines
    finally:
        llama.llama_log_set(before, data)


def _last(log: list[str]) -> str:
    """Return the first message of a log in one line, or "no reason" without a message."""
    said = [line.partition(": ")[2] or line for line in log if line]
    return printable(said[0] if said else "no reason", 200)
