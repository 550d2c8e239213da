"""Renders a comparison of predictions as the lines that llama.cpp's ``llama-perplexity --kl-divergence`` prints."""

from __future__ import annotations

from kullback.predictions import Comparison
from kullback.predictions.prediction_results import LlamaCppFigures

FEWEST_ROWS = 100  # for fewer rows, llama.cpp prints only the chunks
CHUNKS = (
    "chunk             PPL               ln(PPL(Q)/PPL(base))          KL Divergence              Δp RMS            "
    "Same top p"
)
KLD = ["Maximum", "99.9%", "99.0%", "95.0%", "90.0%", "Median", "10.0%", "5.0%", "1.0%", "0.1%", "Minimum"]
DELTA_P = [*KLD[:5], "75.0%", "Median", "25.0%", *KLD[6:]]


def render(comparison: Comparison) -> str:
    """Return the lines that llama.cpp (2025 or later) prints; empty if there are too few rows and no chunks.

    Example:
        >>> import torch
        >>> from kullback import Probs, compare_predictions
        >>> p = Probs(torch.tensor([[0.5, 0.5], [0.9, 0.1]]).repeat(60, 1))
        >>> lines = render(compare_predictions(p, p, labels=[0, 1] * 60, llama_cpp=True)).splitlines()
        >>> lines[1]
        'Mean PPL(Q)                   :   4.472136 ±   0.329903'
        >>> lines[8:10]
        ['====== KL divergence statistics ======', 'Mean    KLD:   0.000000 ±   0.000000']
    """
    figures = comparison.llama_cpp
    if figures is None:
        return ""
    lines: list[str] = []
    if figures.chunks:
        lines = [CHUNKS, *(_chunk(i, chunk) for i, chunk in enumerate(figures.chunks, 1)), ""]
    total = figures.total
    if total.count < FEWEST_ROWS:
        return "".join(f"{line}\n" for line in lines)
    lines += [
        "====== Perplexity statistics ======",
        f"Mean PPL(Q)                   : {_pair(total.perplexity_q, 10, 6)}",
        f"Mean PPL(base)                : {_pair(total.perplexity_p, 10, 6)}",
        f"Cor(ln(PPL(Q)), ln(PPL(base))): {100 * total.correlation:6.2f}%",
        f"Mean ln(PPL(Q)/PPL(base))     : {_pair(total.log_ratio, 10, 6)}",
        f"Mean PPL(Q)/PPL(base)         : {_pair(total.ratio, 10, 6)}",
        f"Mean PPL(Q)-PPL(base)         : {_pair(total.difference, 10, 6)}",
        "",
        "====== KL divergence statistics ======",
        f"Mean    KLD: {_pair(total.kld, 10, 6)}",
        *(f"{_level(name)} KLD: {x:10.6f}" for name, x in zip(KLD, figures.kld_quantiles, strict=True)),
        "",
        "====== Token probability statistics ======",
        f"Mean    Δp: {_percents(total.delta_p)}",
        *(
            f"{_level(name)} Δp: {100 * x:6.3f}%"
            for name, x in zip(DELTA_P, figures.delta_p_quantiles, strict=True)
        ),
        f"RMS Δp    : {_percents(total.delta_p_rms)}",
        f"Same top p: {_percents(total.same_top)}",
    ]
    return "".join(f"{line}\n" for line in lines)


def _chunk(number: int, figures: LlamaCppFigures) -> str:
    cells = [
        _pair(figures.perplexity_q, 9, 4),
        _pair(figures.log_ratio, 10, 5),
        _pair(figures.kld, 10, 5),
        f"{_pair(_hundredfold(figures.delta_p_rms), 6, 3)} %",
        f"{_pair(_hundredfold(figures.same_top), 6, 3)} %",
    ]
    return f"{number:4d}" + "".join(f"    {cell}" for cell in cells)


def _pair(pair: tuple[float, float], width: int, decimals: int) -> str:
    return " ± ".join(f"{x:{width}.{decimals}f}" for x in pair)


def _hundredfold(pair: tuple[float, float]) -> tuple[float, float]:
    return 100 * pair[0], 100 * pair[1]


def _percents(pair: tuple[float, float]) -> str:
    value, uncertainty = _hundredfold(pair)
    return f"{value:6.3f} ± {uncertainty:5.3f} %"


def _level(name: str) -> str:
    """Return the name of a quantile, right-justified in five characters and followed by blanks up to seven."""
    return f"{name:>5}".ljust(7)
