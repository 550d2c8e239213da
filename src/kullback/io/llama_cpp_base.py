"""llama.cpp's base file, which ``llama-perplexity --kl-divergence-base`` writes and reads.

All numbers are little-endian. The file begins with the eight bytes ``_logits_``, then int32 n_ctx, n_vocab and n_chunk,
then n_chunk * n_ctx int32 tokens. A window has n_ctx tokens. Then each window has the n_ctx - 1 - n_ctx // 2
positions of its second half that have a next token in the window. A position has two float32, which are the scale and
the smallest log-probability. A uint16 code for each class follows (with padding if V is odd):
log p = smallest + scale * code. The smallest stored value is `floor` nats below the row's largest value (16; for
ik_llama.cpp 24).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from os import PathLike
from pathlib import Path
from typing import IO

import numpy as np
import torch
from torch import Tensor

from kullback.common.constraints import Arguments
from kullback.common.extra_arguments import by_name
from kullback.common.files import open_output
from kullback.common.shared_constraints import FLOOR, WINDOW_OF_LLAMA
from kullback.errors import invalid_type, invalid_value
from kullback.io.arrays import BIG_ENDIAN, ArrayLayout, BytesReader
from kullback.io.row_checks import PART, check_floating, check_rows
from kullback.io.row_stream import Reader, StoredMass, rows_from
from kullback.io.source_files import LLAMA_MAGIC, FileReference, closed_on_error, refuse_key

CALL = "write_llama_base"
HEADER_BYTES = len(LLAMA_MAGIC) + 3 * 4
PREFIX = 4  # the number of uint16 values that hold a row's two float32
STEPS = 65535


@dataclass(frozen=True)
class Layout:
    """The sizes in a base file, which follow from the three numbers of the header."""

    n_ctx: int
    n_vocab: int
    n_chunk: int

    @property
    def first(self) -> int:
        """The first scored position of a window."""
        return self.n_ctx // 2

    @property
    def rows_per_chunk(self) -> int:
        """The number of scored positions in a window; the last position has no next token."""
        return self.n_ctx - 1 - self.first

    @property
    def rows(self) -> int:
        """The number of scored positions in all windows."""
        return self.n_chunk * self.rows_per_chunk

    @property
    def row_codes(self) -> int:
        """The number of uint16 values in a row, which is even."""
        return 2 * ((self.n_vocab + 1) // 2) + PREFIX

    @property
    def tokens_bytes(self) -> int:
        """The number of bytes of the tokens."""
        return 4 * self.n_chunk * self.n_ctx

    @property
    def file_bytes(self) -> int:
        """The number of bytes of the whole file."""
        return HEADER_BYTES + self.tokens_bytes + 2 * self.rows * self.row_codes

    @property
    def alignment(self) -> str:
        """The remedy that an error suggests if the other predictions have a different number of rows."""
        return (
            f"a llama.cpp base file holds only positions {self.first} to {self.n_ctx - 2} of each window of "
            f"{self.n_ctx} tokens: of predictions x at every token keep {self.slicing}"
        )

    @property
    def slicing(self) -> str:
        """Code that selects the scored positions from predictions at all positions."""
        shape = f"{self.n_chunk}, {self.n_ctx}, {self.n_vocab}"
        return f"x.reshape({shape})[:, {self.first}:{self.n_ctx - 1}].reshape({self.rows}, {self.n_vocab})"

    def wrong_token(self, tokens: Tensor) -> str:
        """Describe the first token that is not a class; return an empty text if every token is a class."""
        wrong = (tokens < 0) | (tokens >= self.n_vocab)
        where = int(wrong.nonzero()[0]) if bool(wrong.any()) else None
        return "" if where is None else f"{int(tokens[where])} at position {where}"

    def labels(self, tokens: Tensor) -> Tensor:
        """Return the next token at every scored position."""
        return tokens.view(self.n_chunk, self.n_ctx)[:, self.first + 1 :].reshape(-1).long()


class LlamaBaseFile(Reader):
    r"""llama.cpp's ``--kl-divergence-base`` file, read as logits.

    The stored log-probabilities are quantized, so the probabilities of a row sum to one only approximately.
    `stored_mass` has statistics of the sums :math:`\sum_i e^{x_i}`. The representation is therefore ``"logits"``: a
    comparison normalizes each row. If a class is more than `floor` nats below the row's largest value, the file stores
    exactly `floor` nats below the largest value. So these entries are upper bounds. (llama.cpp's own numbers differ a
    little, because llama.cpp leaves out classes below :math:`e^{-16}` and does not renormalize.)

    Attributes:
        layout: n_ctx, n_vocab and n_chunk, and the sizes that follow from these numbers.
        tokens: the tokens of all windows, int32 of shape (n_chunk, n_ctx).
        labels: the next token at every scored position, int64 of shape (rows,).
        stored_mass: statistics of the sums of the rows in the latest pass over the file, as a `StoredMass`; None before
            the first pass.

    Raises:
        FileError: the length of the file does not match the header, or the file contains impossible numbers.

    Example:
        >>> import pathlib, tempfile, torch, kullback.io
        >>> path = pathlib.Path(tempfile.mkdtemp()) / "base.kld"
        >>> tokens = torch.tensor([3, 1, 4, 1, 5, 0, 2, 6])
        >>> kullback.io.write_llama_base(path, tokens, torch.zeros(3, 7), n_ctx=8)
        >>> with kullback.io.open_rows(path) as source:
        ...     source.representation, source.rows, source.classes, source.labels
        ('logits', 3, 7, tensor([0, 2, 6]))

    References:
        llama.cpp, tools/perplexity (Gerganov and others, 2023)
    """

    format = "llama.cpp"
    representation = "logits"
    has_classes_only = True
    dtype = torch.float32

    def __init__(self, ref: FileReference, key: str | None = None) -> None:
        refuse_key(ref, key, "one set of predictions")
        self.ref = ref
        with closed_on_error(ref.open()) as file:
            self.layout = self._read_layout(file)
            codes = (self.layout.rows, self.layout.row_codes)
            offset = HEADER_BYTES + self.layout.tokens_bytes
            self._codes = BytesReader(
                ref, file, ArrayLayout(offset, codes, torch.int16, swapped=BIG_ENDIAN), format=self.format
            )
            self.tokens = self._read_tokens(file)
        self.rows, self.classes = self.shape = (self.layout.rows, self.layout.n_vocab)
        self.labels = self.layout.labels(self.tokens)
        self.alignment = self.layout.alignment

    def _read_layout(self, file: IO[bytes]) -> Layout:
        head = file.read(HEADER_BYTES)
        if len(head) < HEADER_BYTES:
            raise self.ref.truncated(wanted=f"a header of {HEADER_BYTES} bytes", got=f"{len(head)} bytes")
        n_ctx, n_vocab, n_chunk = (int(x) for x in np.frombuffer(head, "<i4", offset=len(LLAMA_MAGIC)))
        layout = Layout(n_ctx, n_vocab, n_chunk)
        if n_vocab < 1 or n_chunk < 1 or layout.rows_per_chunk < 1:
            raise self.ref.truncated(
                wanted="a llama.cpp base file with n_ctx of 3 or more, classes and chunks",
                got=f"n_ctx={n_ctx}, n_vocab={n_vocab}, n_chunk={n_chunk}",
            )
        size = self.ref.path.stat().st_size
        if size != layout.file_bytes:
            whole = max(0, size - HEADER_BYTES - layout.tokens_bytes) // (2 * layout.row_codes)
            raise self.ref.error(
                wanted=f"{layout.file_bytes:,} bytes for n_chunk={n_chunk}, n_ctx={n_ctx}, n_vocab={n_vocab}",
                got=f"{size:,} bytes, {min(whole, layout.rows)} of {layout.rows} rows",
                instead="let llama-perplexity --kl-divergence-base run to its end, or copy the file again",
            )
        return layout

    def _read_tokens(self, file: IO[bytes]) -> Tensor:
        raw = file.read(self.layout.tokens_bytes)
        tokens = torch.from_numpy(np.frombuffer(raw, "<i4").astype("int32"))
        if wrong := self.layout.wrong_token(tokens):
            raise self.ref.truncated(wanted=f"tokens from 0 to {self.layout.n_vocab - 1}", got=wrong)
        return tokens.view(self.layout.n_chunk, self.layout.n_ctx)

    def read(self, start: int, stop: int) -> Tensor:
        raw = self._codes.read(start, stop)
        scale, smallest = _scales(raw)
        wrong = ~(scale.isfinite() & smallest.isfinite() & (scale >= 0))
        if bool(wrong.any()):
            where = int(wrong.nonzero()[0])
            raise self.ref.truncated(
                wanted="a finite scale and smallest log-probability in every row",
                got=f"{float(scale[where])} and {float(smallest[where])} in row {start + where}",
            )
        block = torch.empty(stop - start, self.classes, device="cpu")
        step = max(1, PART // self.classes)
        for first in range(0, stop - start, step):
            rows = slice(first, first + step)
            block[rows] = _decode(raw[rows], self.classes)
        return block

    def blocks(self, *, rows: int, first: int = 0) -> Iterator[Tensor]:
        # The whole file is read, because the recorded sums include all rows.
        return rows_from(self._whole(rows), first)

    def _whole(self, rows: int) -> Iterator[Tensor]:
        """Iterate over blocks of all decoded rows, and record statistics of their sums in `stored_mass`."""
        mass = StoredMass()
        for block in super().blocks(rows=rows):
            for part in block.split(max(1, PART // self.classes)):
                mass = mass.joined(part.exp().sum(-1, dtype=torch.float64))
            self.stored_mass = mass
            yield block

    def caveats(self) -> list[str]:
        """Return remarks on the quantization and on the sums of the rows in the latest pass."""
        kept = (
            "llama.cpp keeps 16-bit log-probabilities: classes far below a row's largest (16 nats; ik_llama.cpp: "
            "24) are stored as lying there, and every row is renormalized as it is read"
        )
        mass = self.stored_mass
        if mass is None:
            return [kept]
        summed = (
            f"the stored probabilities of a row sum to {mass.mean:.6f} on average, "
            f"from {mass.lowest:.6f} to {mass.highest:.6f} over {mass.rows} rows"
        )
        return [kept, summed]

    def close(self) -> None:
        self._codes.close()


_ARGUMENTS = Arguments(CALL, n_ctx=WINDOW_OF_LLAMA, floor=FLOOR)


@by_name()
def write_llama_base(
    path: str | PathLike[str],
    tokens: object,
    rows: Tensor | Iterable[Tensor],
    *,
    n_ctx: int,
    floor: float = 16.0,
) -> None:
    r"""Write predictions as llama.cpp's ``--kl-divergence-base`` file, so that a GGUF model can be compared with the
    predictions.

    A row :math:`x` is stored as :math:`\log p = x - \log\sum_i e^{x_i}` in 65535 equal steps from
    :math:`\max(\min x, \max x - \text{floor})` to :math:`\max x`. The smallest value represents a class below this
    range, such as a class with ``-inf``. The file gets its final name only when all rows are written.

    Arguments:
        path: the path of the file to write.
        tokens: the n_chunk * n_ctx token numbers of all windows, integers of any shape.
        rows: logits or log-probabilities of shape (rows, V), or an iterable of such blocks. Each scored position has
            one row. The scored positions of a window are n_ctx // 2 to n_ctx - 2.
        n_ctx: the number of tokens in a window, at least 3.
        floor: the distance of the smallest stored value from the row's largest value, in nats: 16 for llama.cpp, 24 for
            ik_llama.cpp.

    Returns:
        Nothing.

    Raises:
        ArgumentTypeError: `tokens` are not integers, or `rows` are not floating-point tensors.
        ArgumentValueError: a size, a token or `floor` does not fit.
        FileError: a row contains NaN or +inf or only -inf, or the file cannot be written.

    Example:
        >>> import pathlib, tempfile, torch, kullback.io
        >>> path = pathlib.Path(tempfile.mkdtemp()) / "base.kld"
        >>> logits = torch.tensor([[0.0, 1.0, 2.0]])
        >>> kullback.io.write_llama_base(path, torch.tensor([0, 1, 2, 0]), logits, n_ctx=4)
        >>> path.stat().st_size
        52
        >>> with kullback.io.open_rows(path) as source:
        ...     print(source.read(0, 1))
        tensor([[-2.4076, -1.4076, -0.4076]])

    References:
        llama.cpp, tools/perplexity (Gerganov and others, 2023)
    """
    ref = FileReference(Path(path), "path")
    n_ctx, floor = _ARGUMENTS.check(n_ctx=n_ctx, floor=floor).values()
    numbers = _check_tokens(tokens, n_ctx)
    if isinstance(rows, np.ndarray) or not isinstance(rows, Iterable):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise invalid_type(
            CALL,
            "rows",
            wanted="a tensor of logits, or an iterable of such blocks",
            got=type(rows).__name__,
            instead="rows=torch.as_tensor(logits)",
        )
    blocks = iter([rows] if isinstance(rows, Tensor) else rows)
    first = next(blocks, None)
    if first is None:
        raise invalid_value(
            CALL,
            "rows",
            wanted="at least one block",
            got="none",
            instead="rows=logits of shape (rows, classes)",
        )
    _check_block(first, None)
    layout = Layout(n_ctx, first.shape[1], numbers.numel() // n_ctx)
    if wrong := layout.wrong_token(numbers):
        raise invalid_value(
            CALL,
            "tokens",
            wanted=f"numbers from 0 to {layout.n_vocab - 1}, the classes of rows",
            got=wrong,
            instead="tokens= in the numbering of rows' last dimension",
        )
    with ref.writing(), open_output(ref.path) as file:
        file.write(LLAMA_MAGIC)
        file.write(np.array([layout.n_ctx, layout.n_vocab, layout.n_chunk], "<i4").tobytes())
        file.write(numbers.cpu().numpy().astype("<i4").tobytes())
        _write_rows(file, ref, layout, chain([first], blocks), floor)


def _check_tokens(tokens: object, n_ctx: int) -> Tensor:
    try:
        numbers = torch.as_tensor(tokens)
    except (TypeError, ValueError, RuntimeError):
        numbers = None
    if numbers is None or numbers.is_floating_point() or numbers.is_complex() or numbers.dtype is torch.bool:
        got = type(tokens).__name__ if numbers is None else str(numbers.dtype)
        raise invalid_type(CALL, "tokens", wanted="integers", got=got, instead="tokens=ids.long()")
    if numbers.numel() == 0 or numbers.numel() % n_ctx:
        raise invalid_value(
            CALL,
            "tokens",
            wanted=f"whole windows of n_ctx={n_ctx}",
            got=f"{numbers.numel()} tokens",
            instead="tokens=ids[: len(ids) // n_ctx * n_ctx]",
        )
    return numbers.reshape(-1)


def _check_block(block: Tensor, classes: int | None) -> None:
    check_floating(CALL, "rows", block, "rows=torch.as_tensor(logits), or rows=probs.log() for probabilities")
    if block.ndim != 2 or 0 in block.shape or classes not in (None, block.shape[1]):
        raise invalid_value(
            CALL,
            "rows",
            wanted=f"blocks of shape (rows, {'classes' if classes is None else classes})",
            got=f"shape {tuple(block.shape)}",
            instead="rows=logits.reshape(-1, classes)",
        )


def _write_rows(
    file: IO[bytes], ref: FileReference, layout: Layout, blocks: Iterator[Tensor], floor: float
) -> None:
    written = 0
    step = max(1, PART // layout.n_vocab)
    for block in blocks:
        _check_block(block, layout.n_vocab)
        if written + len(block) > layout.rows:  # these rows are counted for the error, but are not written
            written += len(block)
            continue
        for part in block.split(step):
            logits = part.detach().cpu().double()
            check_rows(logits, "logits", written, ref)
            file.write(_encode(logits, layout, floor).tobytes())
            written += len(part)
    if written != layout.rows:
        windows = f"each of {layout.n_chunk} windows of {layout.n_ctx} tokens"
        wanted = f"{layout.rows} rows: {layout.rows_per_chunk} scored positions in {windows}"
        instead = f"rows={layout.slicing} if x has a row for every token"
        raise invalid_value(CALL, "rows", wanted=wanted, got=f"{written} rows", instead=instead)


def _decode(raw: Tensor, classes: int) -> Tensor:
    """Return the log-probabilities of stored rows. The stored uint16 are passed as int16, which has more operations in
    torch.
    """
    scale, smallest = _scales(raw)
    codes = raw[:, PREFIX : PREFIX + classes].view(torch.uint16).float()
    return codes.mul_(scale[:, None]).add_(smallest[:, None])


def _scales(raw: Tensor) -> tuple[Tensor, Tensor]:
    """Return the scale and the smallest log-probability of each row."""
    floats = raw.numpy()[:, :PREFIX].astype("<i2").view("<f4").astype("float32")
    scale, smallest = torch.from_numpy(floats).unbind(-1)
    return scale, smallest


def _encode(logits: Tensor, layout: Layout, floor: float) -> np.ndarray[tuple[int, ...], np.dtype[np.uint16]]:
    """Return rows in the form of the file: the scale, the smallest log-probability and the codes."""
    largest = logits.amax(-1, keepdim=True)
    smallest = torch.maximum(logits.amin(-1, keepdim=True), largest - floor)
    scale = (largest - smallest) / STEPS
    steps = (logits - smallest) / torch.where(scale > 0, scale, 1)
    coded = np.zeros((len(logits), layout.row_codes), "<u2")
    coded[:, PREFIX : PREFIX + layout.n_vocab] = steps.round_().clamp_(0, STEPS).numpy()
    normalized = smallest - torch.logsumexp(logits, -1, keepdim=True)
    coded[:, :PREFIX].view("<f4")[:] = torch.cat([scale, normalized], -1).numpy()
    return coded
