"""The descriptions of the arguments that the distillation losses have in common, written once for all docstrings.

A docstring may have the line ``{arguments: kind, mask}`` in its section ``Arguments:``. `described` replaces this line
by the descriptions of these arguments when the module is imported. `docs/house_style.py` inserts them into the pages of
the reference.
"""

from __future__ import annotations

import re
import textwrap
from typing import Any, TypeVar

_Described = TypeVar("_Described")
_LINE = re.compile(r"^( *)\{arguments: ([\w, ]+)\}$", re.MULTILINE)
_WIDTH = 120

DESCRIPTIONS = {
    "kind": 'the divergence D, or its name such as ``"js:0.5"`` (`kullback.generators.parse`).',
    "temperature": "T, which divides the logits of student and teacher.",
    "mask": "which positions count, boolean, the leading shape. If no position counts, a warning says "
    "so, on the CPU only.",
    "weight": "w, a non-negative number for each position, the leading shape.",
    "labels": "true classes, the leading shape. A position whose label is `ignore_index` does not count.",
    "label_weight": r"the share of the cross-entropy with `labels`, :math:`\lambda` from 0 to 1. The value of a "
    r"position is then :math:`(1 - \lambda)\, D - \lambda \log q_y`, where y is its label and q are the student's "
    "probabilities at temperature 1, whatever T is. `temperature_squared` multiplies only D.",
    "ignore_index": "the label of positions that do not count.",
    "reduction": '``"none"``, ``"sum"``, ``"mean"`` or ``"batchmean"``: w D for each position, 0 where it does not '
    "count; the sum; the weighted mean over counted positions; or the sum divided by ``student.shape[0]``.",
    "temperature_squared": "multiply D by T squared, so that the size of the gradient depends little on T.",
    "normalizer": "the number that divides the sum, in place of the divisor of `reduction`. If it is the number of "
    "counted positions of all micro-batches of a step, the accumulated gradients equal the full batch's gradient.",
    "vocabulary": 'how to handle different numbers of classes: ``"error"``, ``"truncate"`` or ``"mask"``. ``"error"`` '
    'raises. ``"truncate"`` keeps only the first classes, which both have, and normalizes again. ``"mask"`` gives no '
    "mass to the classes that a side lacks: KL is +inf wherever the teacher has more classes than the student.",
    "inplace_backward": "let the backward pass overwrite `student` with its gradient, which saves memory. Use it only "
    "for logits that are not read afterwards, are not a parameter or a view of one, and share no memory with "
    '`teacher`. Not available with ``reduction="none"``.',
    "softcap": "c, the largest absolute value of a logit; None for no cap. A pair is (student's, teacher's). Stored "
    "log-probabilities are not changed.",
    "logit_scale": "a, the factor of W h + b before the cap. A pair is (student's, teacher's).",
    "chunk_bytes": "the memory for the logits of a chunk of positions, both sides together. By default, 32 MiB or a "
    "quarter of the head's bytes, whichever is more. Products with few rows are slow, so the default is at least 512 "
    "positions (256 on a single thread; twice as many in half precision). The size of a chunk changes the result only "
    "by rounding.",
    "float32_logits": "keep the logits of half-precision heads in float32. This doubles the size of a chunk. "
    "Otherwise, rounding logits to bfloat16 changes the gradient by some percent.",
    "group": "the process group over which the classes are sharded. Logits, or the weights and biases of heads, then "
    "contain only this rank's classes. The shards of all ranks, joined in rank order, give the full tensors. All other "
    "arguments, including hidden states, are equal on all ranks.",
    "classes": "the number of classes without padding. Logits of later classes count as -inf on both sides. With "
    "several shards, the number for all shards together.",
    "return_entropy": "also return the student's entropy at each position, computed in the same pass over the chunks.",
}


def written_out(docstring: str) -> str:
    """Return the docstring with the descriptions in place of the lines that name their arguments."""

    def descriptions(line: re.Match[str]) -> str:
        indent, names = line[1], line[2].split(", ")
        return "\n".join(
            textwrap.fill(
                f"{name}: {DESCRIPTIONS[name]}",
                _WIDTH,
                initial_indent=indent,
                subsequent_indent=indent + "    ",
                break_long_words=False,
                break_on_hyphens=False,
            )
            for name in names
        )

    return _LINE.sub(descriptions, docstring)


def described(thing: _Described) -> _Described:
    """Write the shared descriptions into the docstring of a function or class."""
    documented: Any = thing
    if documented.__doc__ is not None:  # python -OO removes docstrings
        documented.__doc__ = written_out(documented.__doc__)
    return thing
