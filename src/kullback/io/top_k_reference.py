"""Writing top-k log-probabilities, such as servers return, as a reference file."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from os import PathLike

import torch
from torch import Tensor

from kullback.common.extra_arguments import by_name
from kullback.io.reference_file import MASS_TOLERANCE
from kullback.io.reference_writer import ReferenceWriter
from kullback.io.top_k import TopKSource
from kullback.io.windows import Windows
from kullback.partial_rows import PartialRows


@by_name()
def write_top_k_reference(
    source: TopKSource,
    path: str | PathLike[str],
    *,
    metadata: Mapping[str, str] | None = None,
    progress: Callable[[int, int | None], None] | None = None,
) -> list[str]:
    """Write top-k log-probabilities as a reference file.

    Each sequence becomes a window. A position is scored if the log-probability of the true token is known. Each row
    keeps the mass of the other classes and the k most probable classes. k is the largest number that every row lists.
    No classes are drawn, so the file gives bounds of a divergence but no estimate.

    Arguments:
        source: the open file. The tokens of all sequences and the number of classes must be known.
        path: the path of the file to write, by convention with the extension ``.klref``.
        metadata: a mapping from names to further texts to store, such as ``{"model": "llama-3-8b"}``; None for no
            texts.
        progress: a function that is called with the number of written rows and the number of all rows; None for no
            calls.

    Returns:
        remarks on the file, as sentences.

    Raises:
        FileError: the tokens, the number of classes, or the mass outside the list are unknown. The probabilities of a
            row do not sum to 1, or the file cannot be written.

    Example:
        >>> import pathlib, tempfile, kullback.io
        >>> entries = {"8": {"logprob": -0.5}, "3": {"logprob": -1.5}}
        >>> response = {"prompt_logprobs": [None, entries], "prompt_token_ids": [3, 8]}
        >>> path = pathlib.Path(tempfile.mkdtemp()) / "base.klref"
        >>> with kullback.io.open_top_k(response, classes=10) as source:
        ...     notes = kullback.io.write_top_k_reference(source, path)
        >>> with kullback.io.Reference(path) as reference:
        ...     reference.read(0, 1).top_indices
        tensor([[8, 3]], dtype=torch.int32)
    """
    if source.classes is None:
        raise source.ref.error(
            wanted="the number of all classes",
            got="a file without it",
            instead="classes=128256 (--classes 128256)",
        )
    if source.tail != "bucket":
        raise source.ref.error(
            wanted="the mass outside the listed classes",
            got="logits of the listed classes alone",
            instead="store log-probabilities among all classes",
        )
    columns: list[tuple[Tensor, ...]] = []
    unscored = 0
    for rows, scored in _scored_rows(source):
        unscored += len(scored) - len(rows)
        least = torch.where(rows.top_log_probs == -torch.inf, torch.inf, rows.top_log_probs).amin(-1)
        columns.append((rows.counts, rows.label_log_probs <= least, rows.sequences, rows.positions))
    if not any(len(counts) for counts, *_ in columns):
        raise source.ref.error(
            wanted="positions with a known token and log-probability",
            got="none",
            instead="store the log-probabilities of the prompt's own tokens too",
        )
    counts, label_is_least, *places = (torch.cat(x) for x in zip(*columns, strict=True))
    windows = _windows(source, *places)
    top = _known_top(counts, label_is_least)
    notes = list(source.caveats())
    if unscored:
        notes.append(
            f"{unscored:,} of {unscored + windows.rows:,} positions are not scored: the log-probability of their "
            "token is not known."
        )
    writer = ReferenceWriter(path, windows, top=top, tail_draws=0, metadata=metadata)
    with writer:
        for rows, _ in _scored_rows(source):
            if len(rows):
                writer.add_block(_most_probable(rows, top, writer.written, source))
            if progress is not None:
                progress(writer.written, windows.rows)
    return notes + writer.notes


def _known_top(counts: Tensor, label_is_least: Tensor) -> int:
    """Return the number of most probable classes that every row lists.

    If the true token is not among the most probable classes, a server adds it to the list.
    """
    others = counts[~label_is_least]
    listed = int(others.max()) if len(others) else int(counts.min()) - 1
    return max(1, int((counts - (label_is_least & (counts > listed)).long()).min()))


def _scored_rows(source: TopKSource) -> Iterator[tuple[PartialRows, Tensor]]:
    """Yield the rows of each block whose true token has a log-probability and is not a first token, and their mask."""
    for block in source.blocks():
        scored = (block.labels >= 0) & ~block.label_log_probs.isnan() & (block.positions > 0)
        yield block[scored], scored


def _windows(source: TopKSource, sequences: Tensor, positions: Tensor) -> Windows:
    """Return the sequences as windows; the scored tokens are at these positions."""
    tokens: list[Tensor] = []
    scored: list[Tensor] = []
    for number, sequence in enumerate(source.token_ids()):
        if sequence is None:
            raise source.ref.error(
                wanted="all tokens of each sequence",
                got=f"sequence {number} without them",
                instead="store the prompt's token ids too",
            )
        mask = torch.zeros(len(sequence), dtype=torch.bool, device="cpu")
        mask[positions[sequences == number]] = True
        tokens.append(sequence)
        scored.append(mask)
    lengths = torch.tensor([0, *(len(x) for x in tokens)], device="cpu")
    return Windows(torch.cat(tokens), lengths.cumsum(0), torch.cat(scored))


def _most_probable(rows: PartialRows, top: int, start: int, source: TopKSource) -> PartialRows:
    """Return rows in the form of a reference file; `start` is the number of the first row in the reference file."""
    ranked = rows.in_order(equal_by_class=True).most_probable(top)
    wrong = ~((ranked.masses - 1).abs() <= MASS_TOLERANCE)
    if bool(wrong.any()):
        row = int(wrong.nonzero()[0])
        raise source.ref.error(
            wanted=f"probabilities that sum to 1 within {MASS_TOLERANCE:g}",
            got=f"{float(ranked.masses[row]):.6g} in scored row {start + row}",
            instead="store log-probabilities in float32",
        )
    return replace(
        ranked,
        tail_log_mass=ranked.tail_log_mass.clamp(max=0),
        label_log_probs=ranked.label_log_probs.clamp(max=0),
    )
