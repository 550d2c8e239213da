"""Constraints on arguments of the library that are options of the command line, too: each is declared once, for both.

The help of the command line shows them, so this module imports no torch.
"""

from __future__ import annotations

from typing import Literal, get_args

from kullback.common.constraints import Number, OneOf, Whole
from kullback.common.words import REPRESENTATION_NAMES

Score = Literal["second-half", "all", "assistant"]
# A window has at least one token before the first scored token, in each of its halves.
FEWEST_TOKENS = 3
# The exponential of -100 is below float32, and a step of the codes is then 0.0015 nats.
MOST_FLOOR = 100

REPRESENTATION = OneOf(
    REPRESENTATION_NAMES,
    example="logits",
    instead="representation='logits' for a network's scores",
    optional=True,
)
WORST = Whole(least=0, example=10)
BOOTSTRAP = Whole(least=0, most=100_000, example=1000)
BINS = Whole(least=2, most=1_000_000, example=20, strict=True)

CONTEXT = Whole(least=FEWEST_TOKENS, example=512)
SCORE = OneOf(get_args(Score), example="all")
WINDOWS = Whole(least=1, example=100, optional=True)
DTYPE = OneOf(("auto", "float32", "bfloat16", "float16", "float64"), example="auto")
SERVER_TOP = Whole(least=1, example=20)
# A reference file has so many of the most probable classes of each token, and so many draws of the others.
STORED_TOP, TAIL_DRAWS = Whole(least=1, example=32), Whole(least=0, example=32)
SEED = Whole(least=0, example=32)

CLASSES = Whole(least=1, example=32_000, optional=True)
WINDOW_OF_LLAMA = Whole(least=3, example=512, note=", so that a window has a scored position")
FLOOR = Number(
    above=0,
    most=MOST_FLOOR,
    wanted=f"a positive number of nats, at most {MOST_FLOOR}: the codes are 65535ths of it",
    example=16.0,
    instead="floor=16.0, as llama.cpp",
)
