"""Open files of top-k log-probabilities, as iterators over blocks of positions, which are checked."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from itertools import groupby
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from kullback.common.constraints import Arguments, Whole
from kullback.common.dtypes import dtype_name
from kullback.common.extra_arguments import by_name
from kullback.common.words import NO_LABEL, STORED
from kullback.errors import FileError
from kullback.io.row_checks import tolerance
from kullback.io.row_stream import in_step, regroup
from kullback.io.source_files import Closes, FileReference
from kullback.partial_rows import PartialRows, first_other_label, log_tail_mass, without_padding

LARGEST_INDEX = 2**31 - 1
_NOT_LOG_PROBS = (
    "these may be logits or processed scores: store the raw ones (vLLM: --logprobs-mode raw_logprobs)"
)
SAME = 1e-2  # the largest relative difference between two computations of one token's log-probability


class Piece(NamedTuple):
    """Positions of one sequence from a reader, before they are checked.

    Attributes:
        sequence: the number of the sequence in the file.
        rows: the positions with their lists of classes. A list may lack the true token.
        stores_tail: whether the file stores the mass outside the lists. If not, this mass follows from the lists.
        skipped: the number of positions without a distribution.
        tokens: all tokens of the sequence, so that `positions` are indices of this tensor. None if the file does not
            store the tokens, and in all pieces of a sequence but the first.
    """

    sequence: int
    rows: PartialRows
    stores_tail: bool = False
    skipped: int = 0
    tokens: Tensor | None = None


def rows_of(piece: Piece, classes: int | None, start: int) -> PartialRows:
    """Return the rows of a piece. A true token with a known log-probability becomes a listed class."""
    rows = piece.rows
    indices, log_probs, tail = rows.top_indices, rows.top_log_probs, rows.tail_log_mass
    label_log_probs = rows.label_log_probs.to(log_probs.dtype)
    listed = (indices == rows.labels.unsqueeze(-1)) & (log_probs != -torch.inf)
    from_list = torch.where(listed, log_probs, -torch.inf).amax(-1)
    # If the tail is unknown, the listed values are log-probabilities among the listed classes, so the true token's
    # log-probability stays unknown.
    is_listed = listed.any(-1) & ~tail.isnan()
    label_log_probs = torch.where(is_listed & label_log_probs.isnan(), from_list, label_log_probs)
    extra = ~is_listed & (rows.labels >= 0) & label_log_probs.isfinite()
    if bool(extra.any()):
        inside = torch.where(extra, label_log_probs, -torch.inf)
        indices = torch.cat([indices, torch.where(extra, rows.labels, 0).unsqueeze(-1)], -1)
        log_probs = torch.cat([log_probs, inside.unsqueeze(-1)], -1)
        left = (tail.exp() - inside.double().exp()).clamp(min=0).log()
        tail = left if piece.stores_tail else log_tail_mass(log_probs)
    if classes is not None:
        whole = (log_probs != -torch.inf).sum(-1) >= classes
        tail = torch.where(whole & ~tail.isnan(), -torch.inf, tail)
    return replace(
        rows,
        top_indices=indices,
        top_log_probs=log_probs,
        tail_log_mass=tail,
        label_log_probs=label_log_probs,
        sequences=torch.full_like(rows.positions, piece.sequence),
        classes=classes,
        start=start,
    )


def check(rows: PartialRows, ref: FileReference, rounding: torch.dtype) -> None:
    """Raise `FileError` for the first invalid value, with a tolerance for probabilities of dtype `rounding`."""
    for bad, values, wanted, instead in _faults(rows, rounding):
        if bool(bad.any()):
            index = tuple(int(i) for i in bad.nonzero()[0])
            where = f"sequence {int(rows.sequences[index[0]])}, position {int(rows.positions[index[0]])}"
            value = values[index].item()
            shown = str(value) if isinstance(value, int) else f"{value:.6g}"
            raise ref.error(wanted=wanted, got=f"{shown} at {where}", instead=instead)


def _faults(rows: PartialRows, rounding: torch.dtype) -> Iterator[tuple[Tensor, Tensor, str, str]]:
    """Yield for each check a mask of invalid values, the values, a description of valid values, and the remedy."""
    limit = tolerance(rounding)
    within = f"{limit:g} ({dtype_name(rounding)})"
    log_probs, kept = rows.top_log_probs, rows.top_log_probs != -torch.inf
    bad = log_probs.isnan() | (log_probs > limit)
    yield bad, log_probs, "natural log-probabilities, at most 0", _NOT_LOG_PROBS
    largest = LARGEST_INDEX if rows.classes is None else rows.classes - 1
    bad = kept & ((rows.top_indices < 0) | (rows.top_indices > largest))
    yield bad, rows.top_indices, f"token ids from 0 to {largest}", "use the files of one vocabulary"
    masses = log_probs.double().exp().sum(-1)
    wanted = f"probabilities that sum to at most 1 within {within}"
    yield ~(masses <= 1 + limit), masses, wanted, _NOT_LOG_PROBS
    totals = rows.masses  # NaN if the mass outside the list is not known
    wanted = f"probabilities, with the mass outside the list, that sum to 1 within {within}"
    instead = "store log-probabilities among all classes, and no other number of classes than there are"
    yield (totals - 1).abs() > limit, totals, wanted, instead
    ordered = without_padding(rows.top_indices, log_probs).sort(-1).values
    bad = ordered[:, 1:] == ordered[:, :-1]
    yield bad, ordered[:, 1:], "each token once at a position", "write the file again"
    bad = (rows.labels != NO_LABEL) & ((rows.labels < 0) | (rows.labels > largest))
    wanted = f"a true token from 0 to {largest}, or {NO_LABEL} for none"
    yield bad, rows.labels, wanted, "use the files of one vocabulary"
    wanted = "a log-probability of the true token, at most 0"
    yield rows.label_log_probs > limit, rows.label_log_probs, wanted, _NOT_LOG_PROBS
    # If the listed and the separate log-probability of a true token differ, the true tokens belong to other positions.
    listed = ((rows.top_indices == rows.labels.unsqueeze(-1)) & kept).nonzero(as_tuple=True)
    apart = torch.zeros(len(rows), dtype=torch.float64, device="cpu")
    difference = (rows.label_log_probs[listed[0]] - log_probs[listed]).double().abs()
    apart[listed[0]] = difference / (1 + log_probs[listed].double().abs())
    wanted = "one log-probability of the true token, where it is listed too"
    instead = "store the true tokens of the same positions as the lists, neither shifted nor cut"
    yield apart > max(limit, SAME), rows.label_log_probs, wanted, instead


def text_of_rows(rows: PartialRows, tokens: Tensor) -> dict[str, Tensor]:
    """Return one text's tokens, and rows of its tokens shifted to the positions before them; the other rows are
    padding. The `positions` of `rows` are at least 1 and at most the number of tokens.
    """
    length, k = len(tokens), rows.top_indices.shape[-1]
    is_padding = rows.top_log_probs == -torch.inf
    indices = torch.full((length, k), -1, dtype=torch.int64, device="cpu")
    log_probs = torch.full((length, k), -torch.inf, dtype=rows.top_log_probs.dtype, device="cpu")
    labels = torch.full((length,), NO_LABEL, device="cpu")
    places = rows.positions - 1
    indices[places] = torch.where(is_padding, -1, rows.top_indices.long())
    log_probs[places] = rows.top_log_probs
    labels[places] = rows.labels
    return {"input_ids": tokens, **dict(zip(STORED, (indices, log_probs, labels), strict=True))}


BLOCK_BYTES = 64 * 1024 * 1024
# The rows of a block if the number of listed classes is unknown before reading.
BLOCK_ROWS = 1024


class TopKReader(Closes, ABC):
    """A reader of one format of top-k log-probabilities; `TopKSource` checks the positions and joins them to blocks.

    `TopKSource` describes the attributes. `rounding` is the dtype that the log-probabilities were computed or stored
    in.
    """

    ref: FileReference
    format: str
    rows: int | None = None
    k: int | None = None
    classes: int | None = None
    tail: Literal["bucket", "renormalize"] = "bucket"
    rounding: torch.dtype = torch.float32

    @abstractmethod
    def sequences(self) -> Iterator[Piece]:
        """Iterate over the positions from the beginning, in pieces of one sequence each."""

    def caveats(self) -> list[str]:
        """Return remarks on the contents that a report should repeat, as sentences."""
        return []


_ARGUMENTS = Arguments(
    "TopKSource.blocks", "paired_top_k_blocks", rows=Whole(least=1, example=1024, optional=True)
)


@by_name()
class TopKSource(Closes):
    """Open top-k log-probabilities, which `open_top_k` opens and ``with`` or ``close()`` closes.

    Attributes:
        format: the name of the format, as in `TOP_K_FORMATS`.
        rows: the number of positions; None if unknown before reading (JSON).
        k: the largest number of classes that a position lists, without an added true token; None if it is unknown
            before reading.
        classes: the number of all classes, or None if neither the file nor the caller gives it.
        tail: ``"bucket"`` if the mass of the other classes is known. ``"renormalize"`` if the file has only logits of
            the listed classes, so that log-probabilities are among the listed classes. `TopK` uses the same words.
        skipped: the number of positions without a distribution (such as the first token of a prompt) in the latest
            pass.

    Example:
        >>> import kullback.io
        >>> meta = {"input_token_logprobs": [[None, 3, None], [-0.5, 7, None]]}
        >>> meta["input_top_logprobs"] = [None, [[-0.5, 7, None], [-1.5, 2, None]]]
        >>> with kullback.io.open_top_k({"text": "", "meta_info": meta}) as source:
        ...     blocks = list(source.blocks(rows=100))
        >>> source.format, source.skipped, blocks
        ('sglang', 1, [PartialRows(rows=1, top=2, draws=0, classes=None, dtype=float32)])
    """

    def __init__(self, reader: TopKReader, classes: int | None = None) -> None:
        self._reader = reader
        self.format = reader.format
        self.rows = reader.rows
        self.k = reader.k
        self.tail = reader.tail
        self.skipped = 0
        if classes is not None and reader.classes is not None and classes != reader.classes:
            raise reader.ref.error(
                wanted=f"classes={reader.classes}, as the file says",
                got=f"classes={classes}",
                instead="leave classes= out",
            )
        self.classes = reader.classes if classes is None else classes

    @property
    def name(self) -> str:
        """The path of the file, or a description of the source."""
        return self._reader.ref.shown

    def __repr__(self) -> str:
        return f"TopKSource({self.ref.shown!r}, {self.describe()})"

    def close(self) -> None:
        """Close the file."""
        self._reader.close()

    @property
    def ref(self) -> FileReference:
        """The path and the name of the argument that holds the path, for error messages."""
        return self._reader.ref

    def describe(self) -> str:
        """Return the format and the sizes that are known, in one line.

        Example:
            >>> import kullback.io
            >>> record = {"target_logprobs": [[-0.1, -2.5]], "target_token_ids": [[4, 9]]}
            >>> kullback.io.open_top_k(record, classes=10).describe()
            'axolotl, 10 classes'
        """
        sizes = ((self.rows, "positions"), (self.k, "listed"), (self.classes, "classes"))
        known = [f"{size} {what}" for size, what in sizes if size is not None]
        unknown = ["mass outside the list not known"] if self.tail == "renormalize" else []
        return ", ".join([self.format, *known, *unknown])

    def caveats(self) -> list[str]:
        """Return remarks on the contents that a report should repeat, as sentences. The list is complete after a pass.

        Example:
            >>> import kullback.io
            >>> entry = {"id": 4, "prob": 0.9, "top_probs": [{"id": 4, "prob": 0.9}]}
            >>> with kullback.io.open_top_k({"completion_probabilities": [entry]}) as source:
            ...     blocks = list(source.blocks())
            ...     source.caveats()
            ["the probabilities are those after the samplers ..."]
        """
        return self._reader.caveats()

    def blocks(self, rows: int | None = None) -> Iterator[PartialRows]:
        """Iterate over all positions in order, in blocks; each call begins anew.

        Arguments:
            rows: the number of positions in a block; the last block may have fewer. None for as many as fit 64 MiB.

        Returns:
            an iterator over `PartialRows`. The number of columns may differ between blocks, because positions may list
            different numbers of classes.

        Raises:
            FileError: the file is damaged, or has values that are not log-probabilities; the error names the position.
            ArgumentValueError: `rows` is not positive.

        Example:
            >>> import kullback.io
            >>> record = {"target_logprobs": [[-0.1], [-0.2], [-0.3]], "target_token_ids": [[4], [9], [2]]}
            >>> [len(block) for block in kullback.io.open_top_k(record).blocks(rows=2)]
            [2, 1]
        """
        rows = _ARGUMENTS.check(rows=rows)["rows"]
        if rows is None:
            rows = BLOCK_ROWS if self.k is None else max(1, BLOCK_BYTES // (16 * self.k))
        return regroup(self._checked(), rows, PartialRows.join)

    def token_ids(self) -> Iterator[Tensor | None]:
        """Iterate over the tokens of each sequence; this reads the source from the beginning.

        Returns:
            an iterator over one int64 tensor for each sequence. ``tokens[position]`` is the true token at a position of
            the blocks. A sequence with unknown tokens gives None.

        Raises:
            FileError: the file is damaged.

        Example:
            >>> import kullback.io
            >>> rows = [None, {"8": {"logprob": -0.5, "rank": 1}}]
            >>> with kullback.io.open_top_k({"prompt_logprobs": rows, "prompt_token_ids": [3, 8]}) as source:
            ...     list(source.token_ids())
            [tensor([3, 8])]
        """
        last = -1
        for piece in self._pieces():
            if piece.sequence != last:
                last = piece.sequence
                yield piece.tokens

    def texts(self) -> Iterator[dict[str, Tensor]]:
        """Iterate over whole texts with their rows, as a model and a trainer take them: row i predicts the token after
        position i. This reads the source from the beginning.

        Files number a row by the token that it predicts. The rows of a text are shifted to the positions before these
        tokens. `kullback.integrations.stored_teachers.StoredTeacherCollator` makes a batch of several texts.

        Returns:
            an iterator over a dict for each text: ``input_ids`` and ``teacher_labels``, shape (tokens,);
            ``teacher_indices`` and ``teacher_log_probs``, shape (tokens, k). Positions without a list, such as the last
            one, have indices of -1 and log-probabilities of -inf.

        Raises:
            FileError: the file is damaged, the tokens of a text are not known, or a text is a completion whose prompt
                is not stored.

        Example:
            >>> import kullback.io
            >>> rows = [None, {"8": {"logprob": -0.5, "rank": 1}}]
            >>> with kullback.io.open_top_k({"prompt_logprobs": rows, "prompt_token_ids": [3, 8]}) as source:
            ...     next(source.texts())
            {'input_ids': tensor([3, 8]), 'teacher_indices': tensor([[ 8],
                    [-1]]), 'teacher_log_probs': tensor([[-0.5000],
                    [   -inf]]), 'teacher_labels': tensor([   8, -100])}
        """
        for number, pieces in groupby(self._pieces(), key=lambda piece: piece.sequence):
            parts = list(pieces)
            tokens = parts[0].tokens
            if tokens is None:
                raise self.ref.error(
                    wanted="all tokens of each text",
                    got=f"text {number} without them",
                    instead="store the prompt's token ids too (vLLM: return_token_ids=true)",
                )
            rows = PartialRows.join([self._rows(piece, 0) for piece in parts])
            if bool((rows.positions < 1).any()):
                raise self.ref.error(
                    wanted="texts with their prompts, whose first token has no prediction",
                    got=f"a prediction of the first token of text {number}",
                    instead="ask for log-probabilities of the prompt, which is then the whole text",
                )
            yield text_of_rows(rows[rows.positions <= len(tokens)], tokens)

    def _pieces(self) -> Iterator[Piece]:
        return self.ref.decoded(self._reader.sequences(), f"top-k log-probabilities ({self.format})")

    def _checked(self) -> Iterator[PartialRows]:
        self.skipped = start = 0
        for piece in self._pieces():
            self.skipped += piece.skipped
            if len(piece.rows):
                yield self._rows(piece, start)
                start += len(piece.rows)

    def _rows(self, piece: Piece, start: int) -> PartialRows:
        """Return the checked rows of a piece."""
        with self.ref.decoding(f"top-k log-probabilities ({self.format})"):
            rows = rows_of(piece, self.classes, start)
            check(rows, self.ref, self._reader.rounding)
        return rows


@by_name()
def paired_top_k_blocks(
    p: TopKSource, q: TopKSource, *, rows: int = 1024
) -> Iterator[tuple[PartialRows, PartialRows]]:
    """Iterate over the same positions of two sources, block by block.

    Positions correspond in order, sequence by sequence. The sources may number positions differently. For example, a
    server may count from the beginning of the completion.

    Arguments:
        p: the first source.
        q: the second source, of the same texts.
        rows: the number of positions in a block; the last block may have fewer.

    Returns:
        an iterator over pairs of `PartialRows` with the same number of positions.

    Raises:
        FileError: the sources differ in the number of classes, in the number of positions of a sequence, or in a true
            token that is known in both.
        ArgumentValueError: `rows` is not positive.

    Example:
        >>> import kullback.io
        >>> first = {"target_logprobs": [[-0.1], [-0.2]], "target_token_ids": [[4], [9]]}
        >>> second = {"target_logprobs": [[-0.3], [-0.4]], "target_token_ids": [[4], [7]]}
        >>> with kullback.io.open_top_k(first) as p, kullback.io.open_top_k(second, name="other") as q:
        ...     [(len(a), len(b)) for a, b in kullback.io.paired_top_k_blocks(p, q)]
        [(2, 2)]
    """

    _ARGUMENTS.check("paired_top_k_blocks", rows=rows)

    def different(
        wanted: str, got: str, instead: str = "compare files made from the same tokens"
    ) -> FileError:
        return p.ref.differs(q.ref, wanted=wanted, got=got, instead=instead)

    if p.classes is not None and q.classes is not None and p.classes != q.classes:
        raise different("as many classes in both", f"{p.classes} and {q.classes}", "use one vocabulary")

    def different_rows(_: int, counts: Callable[[], list[int]]) -> FileError:
        return different("as many positions in both", " and ".join(map(str, counts())))

    pairs = in_step([p.blocks(rows=rows), q.blocks(rows=rows)], different_rows)
    return _same_positions(pairs, different)


def _same_positions(
    pairs: Iterable[tuple[int, list[PartialRows]]], different: Callable[[str, str], FileError]
) -> Iterator[tuple[PartialRows, PartialRows]]:
    """Iterate over pairs of blocks; refuse a pair with different sequences or different true tokens."""
    for _, (a, b) in pairs:
        other = a.sequences != b.sequences
        if bool(other.any()):
            row = int(other.nonzero()[0])
            sequence = min(int(a.sequences[row]), int(b.sequences[row]))
            raise different("as many positions in each sequence of both", f"others in sequence {sequence}")
        row = first_other_label(a, b)
        if row is not None:
            raise different(
                "the same true tokens",
                f"{int(a.labels[row])} and {int(b.labels[row])} at sequence {int(a.sequences[row])}, "
                f"positions {int(a.positions[row])} and {int(b.positions[row])}",
            )
        yield a, b
