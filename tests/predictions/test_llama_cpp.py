# ruff: noqa: UP031 - the formats are printf's, as llama.cpp has them
"""llama.cpp's lines against its documented definitions, worked out here in NumPy from the bytes of a base file."""

from __future__ import annotations

import math
import re

import numpy as np
import pytest
import scipy.special
import torch
from numpy import float32

from kullback.errors import ArgumentTypeError, ArgumentValueError
from kullback.io import write_llama_base
from kullback.predictions import collect, compare_predictions
from kullback.report import llama_cpp
from kullback.representations import Logits, Probs
from tests.refusals import refused

HEADER = (
    "chunk             PPL               ln(PPL(Q)/PPL(base))          KL Divergence              Δp RMS            "
    "Same top p"
)


def exp32(x):
    """The exponential of float32, rounded to float32."""
    return np.exp(x.astype("float64")).astype("float32")


def read_base(path):
    """A base file's stored log-probabilities, float32, its next tokens, and the rows of a chunk."""
    raw = path.read_bytes()
    assert raw[:8] == b"_logits_"
    n_ctx, n_vocab, n_chunk = np.frombuffer(raw, "<i4", 3, 8)
    tokens = np.frombuffer(raw, "<i4", n_ctx * n_chunk, 20).reshape(n_chunk, n_ctx)
    width = 2 * ((n_vocab + 1) // 2) + 4
    scored = n_ctx - 1 - n_ctx // 2
    rows = np.frombuffer(raw, "<u2", offset=20 + tokens.nbytes).reshape(n_chunk * scored, width)
    scale, lowest = rows[:, :4].copy().view("<f4").T
    stored = scale[:, None] * rows[:, 4 : 4 + n_vocab].astype("float32") + lowest[:, None]
    assert stored.dtype == np.float32
    return stored, tokens[:, n_ctx // 2 + 1 :].reshape(-1), scored


def renormalized(stored, logits, token):
    """Each row's nll, base nll, KL, delta p and agreement, of normalized rows, in float64."""
    p, q = (scipy.special.log_softmax(x.astype("float64"), -1) for x in (stored, logits))
    at = np.arange(len(token)), token
    kld = scipy.special.rel_entr(np.exp(p), np.exp(q)).sum(-1)
    return -q[at], -p[at], kld, np.exp(q[at]) - np.exp(p[at]), p.argmax(-1) == q.argmax(-1)


class Sums:
    """llama.cpp's mean and uncertainty of the first n rows."""

    def __init__(self, rows, n):
        self.nll, self.base, self.kld, self.delta, self.same = (x[:n] for x in rows)
        self.n = n

    def uncertain(self, x, squares):
        mean = x.astype("float64").sum() / self.n
        variance = squares.astype("float64").sum() / self.n - mean**2
        return mean, math.sqrt(variance / (self.n - 1)) if variance > 0 and self.n > 10 else 0.0

    def figures(self):
        q, u_q = self.uncertain(self.nll, self.nll * self.nll)
        p, u_p = self.uncertain(self.base, self.base * self.base)
        both = (self.nll * self.base).astype("float64").sum() / self.n
        cov = (both - q * p) / (self.n - 1) if self.n >= 10 else 0.0
        squares = (self.delta * self.delta).astype("float64")
        ms, u_ms = self.uncertain(squares, squares * squares)
        top = self.same.mean()
        v_q, v_p = math.exp(q) * u_q, math.exp(p) * u_p
        return {
            "ppl_q": (math.exp(q), v_q),
            "ppl_p": (math.exp(p), v_p),
            "cor": cov / (u_q * u_p) if u_q * u_p else math.nan,
            "log": (q - p, math.sqrt(u_q**2 + u_p**2 - 2 * cov)),
            "difference": (
                math.exp(q) - math.exp(p),
                math.sqrt(v_q**2 + v_p**2 - 2 * math.exp(q) * math.exp(p) * cov),
            ),
            "kld": self.uncertain(self.kld, self.kld * self.kld),
            "delta": self.uncertain(self.delta, self.delta * self.delta),
            "rms": (math.sqrt(ms), 0.5 / math.sqrt(ms) * u_ms),
            "top": (top, math.sqrt(top * (1 - top) / (self.n - 1))),
        }


def percentile(values, fraction):
    place = float32(fraction) * float32(len(values) - 1)
    i = int(place)
    share = place - float32(i)
    return (float32(1) - share) * values[i] + share * values[min(i + 1, len(values) - 1)]


def median(values):
    n = len(values)
    return values[n // 2] if n % 2 else float32(0.5) * (values[n // 2] + values[n // 2 - 1])


def expected(rows, scored):
    """The lines that llama-perplexity prints, formatted as printf does."""
    n = len(rows[0])
    lines = []
    if scored:
        lines.append(HEADER)
        for i, stop in enumerate(range(scored, n + 1, scored)):
            f = Sums(rows, stop).figures()
            lines.append(
                "%4d    %9.4f ± %9.4f    %10.5f ± %10.5f    %10.5f ± %10.5f    %6.3f ± %6.3f %%    %6.3f ± %6.3f %%"
                % (
                    i + 1,
                    *(*f["ppl_q"], *f["log"], *f["kld"]),
                    *(100 * x for x in f["rms"]),
                    *(100 * x for x in f["top"]),
                )
            )
        lines.append("")
    if n < 100:
        return lines
    f = Sums(rows, n).figures()
    kld, delta = np.sort(rows[2].astype("float32")), np.sort(rows[3].astype("float32"))
    log, u_log = f["log"]
    lines += [
        "====== Perplexity statistics ======",
        "Mean PPL(Q)                   : %10.6f ± %10.6f" % f["ppl_q"],
        "Mean PPL(base)                : %10.6f ± %10.6f" % f["ppl_p"],
        "Cor(ln(PPL(Q)), ln(PPL(base))): %6.2f%%" % (100 * f["cor"]),
        "Mean ln(PPL(Q)/PPL(base))     : %10.6f ± %10.6f" % f["log"],
        "Mean PPL(Q)/PPL(base)         : %10.6f ± %10.6f" % (math.exp(log), math.exp(log) * u_log),
        "Mean PPL(Q)-PPL(base)         : %10.6f ± %10.6f" % f["difference"],
        "",
        "====== KL divergence statistics ======",
        "Mean    KLD: %10.6f ± %10.6f" % f["kld"],
        "Maximum KLD: %10.6f" % kld[-1],
        "99.9%%   KLD: %10.6f" % percentile(kld, 0.999),
        "99.0%%   KLD: %10.6f" % percentile(kld, 0.99),
        "95.0%%   KLD: %10.6f" % percentile(kld, 0.95),
        "90.0%%   KLD: %10.6f" % percentile(kld, 0.9),
        "Median  KLD: %10.6f" % median(kld),
        "10.0%%   KLD: %10.6f" % percentile(kld, 0.1),
        " 5.0%%   KLD: %10.6f" % percentile(kld, 0.05),
        " 1.0%%   KLD: %10.6f" % percentile(kld, 0.01),
        " 0.1%%   KLD: %10.6f" % percentile(kld, 0.001),
        "Minimum KLD: %10.6f" % kld[0],
        "",
        "====== Token probability statistics ======",
        "Mean    Δp: %6.3f ± %5.3f %%" % tuple(100 * x for x in f["delta"]),
        "Maximum Δp: %6.3f%%" % (100 * float(delta[-1])),
        *(
            f"{name:>5}   Δp: " + "%6.3f%%" % (100 * float(percentile(delta, float(name[:-1]) / 100)))
            for name in ("99.9%", "99.0%", "95.0%", "90.0%", "75.0%")
        ),
        "Median  Δp: %6.3f%%" % (100 * float(median(delta))),
        *(
            f"{name:>5}   Δp: " + "%6.3f%%" % (100 * float(percentile(delta, float(name[:-1]) / 100)))
            for name in ("25.0%", "10.0%", "5.0%", "1.0%", "0.1%")
        ),
        "Minimum Δp: %6.3f%%" % (100 * float(delta[0])),
        "RMS Δp    : %6.3f ± %5.3f %%" % tuple(100 * x for x in f["rms"]),
        "Same top p: %6.3f ± %5.3f %%" % tuple(100 * x for x in f["top"]),
    ]
    return lines


def write(path, n_ctx, n_chunk, classes, noise=0.3, seed=0):
    """Write a base file whose tokens its predictions fit, and return Q's logits."""
    random = np.random.default_rng(seed)
    first, scored = n_ctx // 2, n_ctx - 1 - n_ctx // 2
    p = (random.normal(size=(n_chunk * scored, classes)) * 4).astype("float32")
    tokens = random.integers(0, classes, (n_chunk, n_ctx))
    tokens[:, first + 1 :] = (p + random.gumbel(size=p.shape)).argmax(-1).reshape(n_chunk, scored)
    write_llama_base(path, tokens, torch.from_numpy(p), n_ctx=n_ctx)
    return p + noise * random.normal(size=p.shape).astype("float32")


@pytest.mark.parametrize(
    ("n_ctx", "n_chunk", "classes"),
    [(8, 4, 5), (32, 3, 40), (64, 8, 101), (128, 5, 1000), (512, 2, 33)],
)
def test_every_line_is_that_of_the_definitions(tmp_path, n_ctx, n_chunk, classes):
    q = write(tmp_path / "base.kld", n_ctx, n_chunk, classes)
    stored, token, scored = read_base(tmp_path / "base.kld")
    found = compare_predictions(
        tmp_path / "base.kld", Logits(torch.from_numpy(q)), llama_cpp=True, bootstrap=0
    )
    assert llama_cpp.render(found).split("\n") == [*expected(renormalized(stored, q, token), scored), ""]


def test_rows_without_a_label_are_not_scored():
    random = np.random.default_rng(3)
    p, q = random.normal(size=(2, 400, 9))
    labels = random.integers(0, 9, 400)
    labels[::3] = -100
    known = labels >= 0
    found = compare_predictions(p, q, representation="logits", labels=labels, llama_cpp=True, bootstrap=0)
    kept = compare_predictions(
        p[known], q[known], representation="logits", labels=labels[known], llama_cpp=True, bootstrap=0
    )
    assert llama_cpp.render(found) == llama_cpp.render(kept)
    assert found.llama_cpp.total.count == known.sum()


def test_the_lines_do_not_depend_on_the_blocks(tmp_path, monkeypatch):
    q = write(tmp_path / "base.kld", 64, 6, 50)
    monkeypatch.setattr(collect, "TABLE_ROWS", 17)
    texts = {
        llama_cpp.render(
            compare_predictions(
                tmp_path / "base.kld",
                Logits(torch.from_numpy(q)),
                llama_cpp=True,
                bootstrap=0,
                block_bytes=block,
            )
        )
        for block in (1, 20_000, 1 << 30)
    }
    assert len(texts) == 1


def test_infinite_rows_print_as_c_prints_them():
    p = torch.full((200, 4), 0.25)
    q = p.clone()
    q[7] = torch.tensor([0.5, 0.5, 0.0, 0.0])
    found = compare_predictions(Probs(p), Probs(q), labels=[0] * 200, llama_cpp=True, bootstrap=0)
    lines = llama_cpp.render(found).splitlines()
    assert "Maximum KLD:        inf" in lines
    assert "Mean    KLD:        inf ±   0.000000" in lines or "Mean    KLD:        inf ±        nan" in lines
    assert "Median  KLD:   0.000000" in lines


def test_without_asking_there_are_none():
    p = Probs(torch.full((3, 2), 0.5))
    found = compare_predictions(p, p, labels=[0, 1, 0])
    assert found.llama_cpp is None
    assert llama_cpp.render(found) == ""


@pytest.mark.parametrize("labels", [None, [-100] * 3])
def test_labels_are_needed(labels):
    p = Probs(torch.full((3, 2), 0.5))
    with refused(ArgumentValueError, instead=re.escape("labels=tokens (--labels FILE)")):
        compare_predictions(p, p, labels=labels, llama_cpp=True)
    with refused(ArgumentTypeError, wanted="True or False"):
        compare_predictions(p, p, labels=[0] * 3, llama_cpp="format")
    assert compare_predictions(p, p, labels=[0, 1, 0], llama_cpp=True).llama_cpp.total.count == 3
