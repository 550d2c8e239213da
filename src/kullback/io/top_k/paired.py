"""The blocks of two sources of top-k log-probabilities side by side."""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING

from kullback.common.words import NO_LABEL
from kullback.errors import FileError
from kullback.io.top_k.block import TopKBlock

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kullback.io.top_k.source import TopKSource

_INSTEAD = "compare files made from the same tokens"


def paired_top_k_blocks(
    p: TopKSource, q: TopKSource, *, rows: int = 1024
) -> Iterator[tuple[TopKBlock, TopKBlock]]:
    """Iterate over the same positions of two sources, block by block.

    Positions correspond in order, sequence by sequence. The sources may number them differently: a server that returns
    a completion's positions begins with the completion.

    Arguments:
        p: the first source.
        q: the second source, of the same texts.
        rows: the number of positions in a block; the last block may have fewer.

    Returns:
        An iterator over pairs of `TopKBlock` of as many positions.

    Raises:
        FileError: the sources differ in their classes, in the number of positions of a sequence, or in a true token
            that both know.
        ArgumentValueError: `rows` is not positive.

    Example:
        >>> import kullback.io
        >>> first = {"logprobs": [[[-0.1], [-0.2]]], "logprob_token_ids": [[[4], [9]]]}
        >>> second = {"logprobs": [[[-0.3], [-0.4]]], "logprob_token_ids": [[[4], [7]]]}
        >>> with kullback.io.open_top_k(first) as p, kullback.io.open_top_k(second, name="other") as q:
        ...     [(len(a), len(b)) for a, b in kullback.io.paired_top_k_blocks(p, q)]
        [(2, 2)]
    """
    if p.classes is not None and q.classes is not None and p.classes != q.classes:
        raise _different(
            p, q, "as many classes in both", f"{p.classes} and {q.classes}", "use one vocabulary"
        )
    return _in_step(p, q, p.blocks(rows=rows), q.blocks(rows=rows))


def _in_step(
    p: TopKSource, q: TopKSource, p_blocks: Iterator[TopKBlock], q_blocks: Iterator[TopKBlock]
) -> Iterator[tuple[TopKBlock, TopKBlock]]:
    done = 0
    while True:
        a, b = next(p_blocks, None), next(q_blocks, None)
        if a is None and b is None:
            return
        if a is None or b is None or len(a) != len(b):
            counts = [
                done + sum(map(len, chain([] if block is None else [block], others)))
                for block, others in ((a, p_blocks), (b, q_blocks))
            ]
            raise _different(p, q, "as many positions in both", f"{counts[0]} and {counts[1]}", _INSTEAD)
        other = a.sequences != b.sequences
        if bool(other.any()):
            row = int(other.nonzero()[0])
            sequence = min(int(a.sequences[row]), int(b.sequences[row]))
            got = f"others in sequence {sequence}"
            raise _different(p, q, "as many positions in each sequence of both", got, _INSTEAD)
        other = (a.labels != b.labels) & (a.labels != NO_LABEL) & (b.labels != NO_LABEL)
        if bool(other.any()):
            row = int(other.nonzero()[0])
            got = (
                f"{int(a.labels[row])} and {int(b.labels[row])} at sequence {int(a.sequences[row])}, "
                f"positions {int(a.positions[row])} and {int(b.positions[row])}"
            )
            raise _different(p, q, "the same true tokens", got, _INSTEAD)
        yield a, b
        done += len(a)


def _different(p: TopKSource, q: TopKSource, wanted: str, got: str, instead: str) -> FileError:
    names = f"{p.ref.name} = {p.ref.shown} and {q.ref.name} = {q.ref.shown}"
    return FileError(f"{names}: wanted {wanted}; got {got}; {instead}")
