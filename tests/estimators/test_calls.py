"""How many functions of kullback serve one estimate from numbers."""

from __future__ import annotations

import subprocess
import sys

import pytest

# A process of its own counts: earlier tests change which values kullback remembers.
COUNTS = """
import sys
import torch
from kullback import Samples, kl_estimate

generator = torch.Generator().manual_seed(0)
x, y = torch.randn(300, generator=generator), torch.randn(300, generator=generator) + 0.3
kl_estimate(Samples(x), Samples(y))  # the first call loads and remembers what the next one needs
calls = []
def profile(frame, event, _):
    if event == "call" and "/kullback/" in frame.f_code.co_filename.replace("\\\\", "/"):
        calls.append(frame.f_code.co_qualname)
sys.setprofile(profile)
kl_estimate(Samples(x), Samples(y))
sys.setprofile(None)
print(len(calls))
"""


@pytest.mark.sweep
def test_few_calls_serve_an_estimate_from_numbers() -> None:
    done = subprocess.run([sys.executable, "-c", COUNTS], capture_output=True, text=True, check=True)
    assert 0 < int(done.stdout) <= 200
