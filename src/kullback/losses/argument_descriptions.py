"""The descriptions of the arguments that the distillation losses share, written once for all docstrings.

A docstring may have the line ``{arguments: kind, mask}`` in its section ``Arguments:``. When the module is imported,
`described` replaces this line by the descriptions of the named arguments. `docs/house_style.py` inserts the same
descriptions into the pages of the reference.
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
    "mask": "a boolean tensor of the leading shape, True at positions that count. If no position counts, the function "
    "warns, but only on the CPU.",
    "weight": "w, a non-negative number for each position, of the leading shape.",
    "labels": "the true class of each position, of the leading shape. A position whose label is `ignore_index` does "
    "not count.",
    "label_weight": r"the weight :math:`\lambda`, from 0 to 1, of the cross-entropy with `labels`. The value of a "
    r"position is then :math:`(1 - \lambda)\, D - \lambda \log q_y`, where y is the position's label and q are the "
    "student's probabilities at temperature 1, whatever T is. `temperature_squared` multiplies only D.",
    "ignore_index": "the label of positions that do not count.",
    "reduction": '``"none"`` returns w D for each position, 0 for a position that does not count. ``"sum"`` returns '
    'the sum, ``"mean"`` the weighted mean over counted positions, ``"batchmean"`` the sum divided by '
    "``student.shape[0]``.",
    "temperature_squared": "whether to multiply D by T squared. The size of the gradient then depends little on T.",
    "normalizer": "the divisor of the sum, instead of the divisor that `reduction` implies. If `normalizer` is the "
    "number of counted positions in all micro-batches of a step, the accumulated gradients equal the full batch's "
    "gradient.",
    "vocabulary": 'how to handle different numbers of classes: ``"error"``, ``"truncate"`` or ``"mask"``. ``"error"`` '
    'raises an error. ``"truncate"`` keeps only the first classes, which both sides have, and normalizes their '
    'probabilities again. ``"mask"`` gives no mass to the classes that a side lacks, so KL is +inf if the teacher has '
    "more classes than the student.",
    "inplace_backward": "whether the backward pass overwrites `student` with its gradient, which saves memory. Do "
    "not set the flag if any code reads the logits afterwards, if the logits are a parameter or a view of a parameter, "
    'or if they share memory with `teacher`. The flag is not available with ``reduction="none"``.',
    "softcap": "c, the bound of a logit's absolute value; None for no bound. A pair gives the student's and the "
    "teacher's c. The log-probabilities of a stored teacher do not change.",
    "logit_scale": "a, the factor of W h + b before the cap. A pair gives the student's and the teacher's a.",
    "chunk_bytes": "the number of bytes for both sides' logits of a chunk of positions. The default is 32 MiB or a "
    "quarter of the head's bytes, whichever is larger. Matrix products with few rows are slow, so a default chunk has "
    "at least 512 positions (256 with one thread; twice as many in half precision). The size of a chunk changes the "
    "result only by rounding errors.",
    "float32_logits": "whether to keep the logits of half-precision heads in float32, which doubles their memory. "
    "Without this flag, rounding logits to bfloat16 changes the gradient by some percent.",
    "group": "the process group over which the classes are sharded. Logits, or the weights and biases of heads, then "
    "contain only this rank's classes. The shards of all ranks, joined in rank order, give the full tensors. All other "
    "arguments, including hidden states, are equal on all ranks.",
    "classes": "the number of classes without padding. Logits of later classes count as -inf on both sides. With "
    "`group`, the number is the total over all shards.",
    "return_entropy": "whether to also return the student's entropy at each position, computed in the same pass over "
    "the chunks.",
}


def written_out(docstring: str) -> str:
    """Return the docstring with descriptions in place of each line ``{arguments: ...}``."""

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
    """Return `thing`, a function or class, with the shared descriptions of arguments written into its docstring."""
    documented: Any = thing
    if documented.__doc__ is not None:  # python -OO removes docstrings
        documented.__doc__ = written_out(documented.__doc__)
    return thing
