"""Log-probabilities of the most probable tokens, which inference servers return and distillation tools store."""

from kullback.io.top_k.records import RecordFormat, RecordPlace, TopKSequence
from kullback.io.top_k.scored_ids import scored_text
from kullback.io.top_k.source import TopKSource, paired_top_k_blocks
from kullback.io.top_k.top_k_arrays import ArrayFormat
from kullback.io.top_k.top_k_formats import TOP_K_FORMATS, open_top_k

__all__ = [
    "TOP_K_FORMATS",
    "ArrayFormat",
    "RecordFormat",
    "RecordPlace",
    "TopKSequence",
    "TopKSource",
    "open_top_k",
    "paired_top_k_blocks",
    "scored_text",
]
