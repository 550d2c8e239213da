r"""DistillKit's packed datasets: Parquet files beside a ``compression_config.yaml``.

A row is a text: `input_ids`, and for each of its tokens but the first a list of bytes in `compressed_logprobs` and in
`bytepacked_indices`. The k tokens, the most probable first, are numbers of :math:`\lceil \log_2 d \rceil` bits, the
highest first, one after the other. Of their log-probabilities, or with `delta_encoding` of the differences from the one
before, the first `exact_k` are stored as they are (`exact_dtype`); then come the coefficients (`term_dtype`) of the
`polynomial_terms` of t = 0, 1, ... (from 0 to 1 with `normalize_t`), which the others follow; then for each of
`residual_bins` what that misses: a scale s (`scale_dtype`) and `num_elements` numbers u of `element_bits` = b bits, for
:math:`(u - 2^{b-1}) s`, or for one bit :math:`\pm s`. All floats are little-endian.

Rows may also hold `token_ids` and `top_values` without packing. DistillKit appends a padding token to each text, so the
token after the last distribution is not taken as true.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch
from torch import Tensor

from kullback.io.files import FileReference
from kullback.io.top_k.block import LARGEST_INDEX, Positions
from kullback.io.top_k.parquet import ParquetRows
from kullback.io.top_k.source import TopKReader
from kullback.optional import load
from kullback.words import NO_LABEL

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

__all__ = ["CONFIG", "PACKED", "RAW", "DistillKitReader"]

CONFIG = "compression_config.yaml"
PACKED, RAW = ("compressed_logprobs", "bytepacked_indices"), ("top_values", "token_ids")
DTYPES = {
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "float32": torch.float32,
    "float64": torch.float64,
}
MOST = 1 << 20  # classes listed at a position, elements in a bin
PIECE = 512  # positions that are unpacked at once


@dataclass(frozen=True)
class Bin:
    """A group of residuals with one scale."""

    scale_dtype: torch.dtype
    bits: int
    count: int

    @property
    def bytes(self) -> int:
        return -(-self.bits * self.count // 8)


@dataclass(frozen=True)
class Packing:
    """What ``compression_config.yaml`` says, by its names."""

    d: int
    k: int
    exact_k: int
    exact_dtype: torch.dtype
    terms: tuple[int | str, ...]
    term_dtype: torch.dtype
    bins: tuple[Bin, ...]
    delta_encoding: bool
    normalize_t: bool

    @classmethod
    def of(cls, ref: FileReference) -> Packing:
        """Read the configuration in this file."""
        yaml = load("yaml", f"reading {CONFIG}")
        with ref.open() as file:
            data = file.read(1 << 20)
        try:
            held = yaml.safe_load(data)
        except (yaml.YAMLError, ValueError, RecursionError) as error:
            raise ref.truncated(wanted="YAML", got=str(error)) from None
        fields = _Fields(ref, held)
        k = fields.integer("k", 1, MOST)
        exact_k = fields.integer("exact_k", 0, k)
        terms = fields.sequence("polynomial_terms")
        if not all((type(term) is int and -64 <= term <= 64) or term in ("sqrt", "exp") for term in terms):
            raise fields.refused("polynomial_terms", "powers, 'sqrt' or 'exp'")
        bins = tuple(
            Bin(
                each.dtype("scale_dtype"),
                each.integer("element_bits", 1, 64),
                each.integer("num_elements", 1, k),
            )
            for each in (_Fields(ref, item) for item in fields.sequence("residual_bins"))
        )
        if sum(each.count for each in bins) > k - exact_k:
            raise fields.refused("residual_bins", f"at most k - exact_k = {k - exact_k} elements")
        return cls(
            fields.integer("d", 2, LARGEST_INDEX),
            k,
            exact_k,
            fields.dtype("exact_dtype"),
            tuple(terms),
            fields.dtype("term_dtype"),
            bins,
            fields.flag("delta_encoding", default=True),
            fields.flag("normalize_t", default=False),
        )

    @property
    def index_bits(self) -> int:
        """The bits of a token: the logarithm is rounded to float32, as DistillKit does."""
        return int(torch.log2(torch.tensor(self.d, dtype=torch.float32, device="cpu")).ceil())

    @property
    def value_bytes(self) -> int:
        exact = self.exact_k * self.exact_dtype.itemsize + len(self.terms) * self.term_dtype.itemsize
        return exact + sum(each.scale_dtype.itemsize + each.bytes for each in self.bins)

    @property
    def index_bytes(self) -> int:
        return -(-self.k * self.index_bits // 8)

    def indices(self, data: Tensor) -> Tensor:
        """Unpack the tokens of positions from bytes, shape (n, index_bytes)."""
        return unpacked(data, self.k, self.index_bits).long()

    def log_probs(self, data: Tensor) -> Tensor:
        """Unpack the log-probabilities of positions from bytes, shape (n, value_bytes)."""
        at = 0

        def take(dtype: torch.dtype, count: int) -> Tensor:
            nonlocal at
            part = data[:, at : at + count * dtype.itemsize].contiguous()
            at += count * dtype.itemsize
            return part.view(dtype)

        exact = take(self.exact_dtype, self.exact_k).double()
        others = torch.zeros(len(data), self.k - self.exact_k, dtype=torch.float64, device="cpu")
        if self.terms:
            # In the dtype of the coefficients: the residuals make up for its rounding.
            fit = (self._powers() * take(self.term_dtype, len(self.terms)).unsqueeze(-2)).sum(-1)
            others += fit.double()
        first = 0
        for each in self.bins:
            scale = take(each.scale_dtype, 1).double()
            codes = unpacked(data[:, at : at + each.bytes], each.count, each.bits)
            at += each.bytes
            centered = 2 * codes - 1 if each.bits == 1 else codes - 2.0 ** (each.bits - 1)
            others[:, first : first + each.count] += centered * scale
            first += each.count
        values = torch.cat([exact, others], -1)
        return (values.cumsum(-1) if self.delta_encoding else values).to(self.exact_dtype)

    def _powers(self) -> Tensor:
        count = self.k - self.exact_k
        t = (
            torch.linspace(0, 1, count, dtype=self.term_dtype, device="cpu")
            if self.normalize_t
            else torch.arange(count, dtype=self.term_dtype, device="cpu")
        )
        functions = {"sqrt": torch.sqrt, "exp": torch.exp}
        return torch.stack(
            [t**term if isinstance(term, int) else functions[term](t) for term in self.terms], -1
        )


def unpacked(data: Tensor, count: int, bits: int) -> Tensor:
    """Return `count` numbers of so many bits, the highest first, from each row of bytes; as float64."""
    stream = np.unpackbits(data.numpy(), axis=-1, count=count * bits).reshape(len(data), count, bits)
    numbers = np.zeros((len(data), count))
    for bit in range(bits):
        numbers = 2 * numbers + stream[:, :, bit]
    return torch.from_numpy(numbers)


class _Fields:
    """The fields of a mapping in the configuration, checked."""

    def __init__(self, ref: FileReference, held: object) -> None:
        self._ref = ref
        self._held = cast("dict[str, Any]", held) if isinstance(held, dict) else {}

    def refused(self, name: str, wanted: str) -> Exception:
        """Return the error for a field."""
        return self._ref.error(
            wanted=f"{name}: {wanted}",
            got=repr(self._held.get(name))[:80],
            instead=f"use the {CONFIG} that DistillKit wrote with the data",
        )

    def integer(self, name: str, least: int, most: int) -> int:
        value = self._held.get(name)
        if type(value) is not int or not least <= value <= most:
            raise self.refused(name, f"an integer from {least} to {most}")
        return value

    def dtype(self, name: str) -> torch.dtype:
        value = self._held.get(name, "float32")
        if not isinstance(value, str) or value not in DTYPES:
            raise self.refused(name, f"one of {', '.join(DTYPES)}")
        return DTYPES[value]

    def sequence(self, name: str) -> list[Any]:
        value = self._held.get(name) or []
        if not isinstance(value, list):
            raise self.refused(name, "a list")
        return cast("list[Any]", value)

    def flag(self, name: str, *, default: bool) -> bool:
        value = self._held.get(name, default)
        if not isinstance(value, bool):
            raise self.refused(name, "true or false")
        return value


class DistillKitReader(TopKReader):
    """A reader of one Parquet file or of those of a folder."""

    format = "distillkit"

    def __init__(self, ref: FileReference, paths: list[Path]) -> None:
        self.ref = ref
        self._paths = sorted(paths, key=lambda path: _natural(path.name))
        first = self._open(self._paths[0])
        names = first.names
        first.close()
        self._columns = next((each for each in (PACKED, RAW) if {*each} <= {*names}), None)
        if self._columns is None:
            raise ref.error(
                wanted=f"columns {' and '.join(PACKED)}, or {' and '.join(RAW)}",
                got=f"columns {', '.join(names[:12])}",
                instead="pack the dataset again with a current DistillKit",
            )
        self._packing: Packing | None = None
        if self._columns == PACKED:
            folder = paths[0].parent
            beside = folder if (folder / CONFIG).exists() else folder.parent
            if not (beside / CONFIG).exists():
                raise ref.error(
                    wanted=f"{CONFIG} beside the Parquet files, which says how they are packed",
                    got="none",
                    instead="copy it there from the dataset",
                )
            self._packing = Packing.of(FileReference(beside / CONFIG, ref.name))
            self.classes, self.k = self._packing.d, self._packing.k
            # What is fitted is known to about the digits of bfloat16.
            whole = self._packing.exact_k == self.k
            self.rounding = self._packing.exact_dtype if whole else torch.bfloat16

    def caveats(self) -> list[str]:
        packing = self._packing
        if packing is None or packing.exact_k == packing.k:
            return []
        kept = f"{packing.exact_k} of {packing.k} log-probabilities at a position are stored, the others approximated"
        return [f"{kept}: the mass outside the list is approximate too"]

    def _open(self, path: Path) -> ParquetRows:
        return ParquetRows(FileReference(path, self.ref.name))

    def sequences(self) -> Iterator[Positions]:
        sequence = 0
        values, ids = cast("tuple[str, str]", self._columns)
        for path in self._paths:
            rows = self._open(path)
            try:
                for where, row in rows.batches((values, ids), optional=("input_ids",)):
                    yield from self._sequence(sequence, rows.ref, where, row)
                    sequence += 1
            finally:
                rows.close()

    def _sequence(
        self, sequence: int, ref: FileReference, where: str, row: dict[str, Any]
    ) -> Iterator[Positions]:
        values, ids = cast("tuple[str, str]", self._columns)
        packing = self._packing
        widths = (None, None) if packing is None else (packing.value_bytes, packing.index_bytes)
        packed = [
            _matrix(ref, where, name, row[name], width)
            for name, width in zip((values, ids), widths, strict=True)
        ]
        if packed[0].shape[0] != packed[1].shape[0] or (
            packing is None and packed[0].shape != packed[1].shape
        ):
            raise ref.error(
                wanted=f"as many positions in {values} as in {ids}",
                got=f"{tuple(packed[0].shape)} and {tuple(packed[1].shape)} in {where}",
                instead="write the file again",
            )
        n = len(packed[0])
        ids_column = row.get("input_ids")
        tokens = None if ids_column is None else _tokens(ids_column)[:n]
        labels = torch.full((n,), NO_LABEL, device="cpu")
        if tokens is not None:
            labels[: max(len(tokens) - 1, 0)] = tokens[1:]
        for start in range(0, n, PIECE):
            part = slice(start, min(start + PIECE, n))
            if packing is None:
                indices, log_probs = packed[1][part].long(), packed[0][part]
            else:
                data = [_bytes(ref, where, each[part]) for each in packed]
                indices, log_probs = packing.indices(data[1]), packing.log_probs(data[0])
            positions = torch.arange(part.start, part.stop, device="cpu") + 1
            yield Positions(
                sequence, positions, indices, log_probs, labels[part], tokens=tokens if start == 0 else None
            )


def _natural(name: str) -> list[tuple[bool, int, str]]:
    """Return a key by which ``data_10`` comes after ``data_9``."""
    return [
        (part.isdigit(), int(part) if part.isdigit() else 0, part) for part in re.split(r"(\d{1,18})", name)
    ]


def _matrix(ref: FileReference, where: str, name: str, column: Any, width: int | None) -> Tensor:
    """Return a list of lists of one length as a matrix."""
    lengths = column.value_lengths()
    if column.null_count or lengths.null_count or column.flatten().null_count:
        raise ref.error(wanted=f"numbers in {name}", got=f"null in {where}", instead="write the file again")
    sizes = np.unique(lengths.to_numpy(zero_copy_only=False))
    wanted = width if width is not None else (int(sizes[0]) if len(sizes) else 1)
    if len(sizes) and sizes.tolist() != [wanted]:
        raise ref.error(
            wanted=f"lists of {wanted} numbers in {name}"
            + (f", as {CONFIG} says" if width is not None else ""),
            got=f"lists of {', '.join(map(str, sizes[:4]))} in {where}",
            instead="use the configuration and the data of one dataset",
        )
    values = column.flatten().to_numpy(zero_copy_only=False)
    if values.dtype.kind == "u" and values.dtype.itemsize > 1:
        values = values.astype(np.int64)
    return torch.from_numpy(np.array(values)).view(-1, wanted)


def _bytes(ref: FileReference, where: str, numbers: Tensor) -> Tensor:
    """Return numbers from 0 to 255 as bytes, whatever their dtype in the file."""
    if numbers.dtype != torch.uint8 and (
        numbers.is_floating_point() or bool(((numbers < 0) | (numbers > 255)).any())
    ):
        raise ref.error(
            wanted="bytes, integers from 0 to 255", got=f"others in {where}", instead="write the file again"
        )
    return numbers.to(torch.uint8).contiguous()


def _tokens(column: Any) -> Tensor:
    return torch.tensor(column.to_numpy(zero_copy_only=False).astype(np.int64), device="cpu")
