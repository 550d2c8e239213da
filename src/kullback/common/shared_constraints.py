"""Constraints that arguments of the library share with options of the command line.

The help of the command line shows these constraints. Help must be quick, so this module does not import torch.
"""

from __future__ import annotations

from typing import Literal, get_args

from kullback.common.constraints import Number, OneOf, Whole
from kullback.common.words import REPRESENTATION_NAMES

Score = Literal["second-half", "all", "assistant"]
# With fewer tokens, the second half of a window would have no scored token.
FEWEST_TOKENS = 3
# With this floor, e^-100 is below the normal numbers of float32, and neighboring codes are 0.0015 nats apart.
MOST_FLOOR = 100

REPRESENTATION = OneOf(
    REPRESENTATION_NAMES,
    example="logits",
    instead="representation='logits' for a network's scores",
    optional=True,
)
WORST = Whole(least=0, example=10)
BOOTSTRAP = Whole(least=0, most=100_000, example=1000)
RUNS = Whole(least=1, most=1_000_000_000, example=1000)
BINS = Whole(least=2, most=1_000_000, example=20, strict=True)

CONTEXT = Whole(least=FEWEST_TOKENS, example=512, optional=True)
SCORE = OneOf(get_args(Score), example="all", optional=True)
WINDOWS = Whole(least=1, example=100, optional=True)
DTYPE = OneOf(("auto", "float32", "bfloat16", "float16", "float64"), example="auto")
SERVER_TOP = Whole(least=1, example=20)
# For each token, a reference file has `STORED_TOP` most probable classes, and `TAIL_DRAWS` draws from other classes.
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
