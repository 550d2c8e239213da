"""The numbers of ``llama-perplexity --kl-divergence``, by llama.cpp's definitions, from rows that arrive in blocks."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from kullback.common.arrays import Floats
from kullback.predictions.prediction_results import LlamaCppFigures, LlamaCppStatistics

COLUMNS = ("cross_entropy_q", "cross_entropy_p", "kl_pq", "delta_prob", "top1_agreement")
KLD_FRACTIONS = (0.999, 0.99, 0.95, 0.9, 0.5, 0.1, 0.05, 0.01, 0.001)
DELTA_P_FRACTIONS = (0.999, 0.99, 0.95, 0.9, 0.75, 0.5, 0.25, 0.1, 0.05, 0.01, 0.001)
FEWEST_UNCERTAIN, FEWEST_COVARIANCE = 11, 10

Singles = np.ndarray[tuple[int, ...], np.dtype[np.float32]]


class LlamaCpp:
    """Collects llama.cpp's sums and values from rows that arrive in order; this takes 8 bytes of memory for each row.

    The chunks of the rows start at 0 and increase; None if the rows are not divided into chunks.
    """

    def __init__(self, chunks: Tensor | None) -> None:
        self._chunks, self._taken = chunks, 0
        self._sums = torch.zeros(0, 12, dtype=torch.float64, device="cpu")
        self._kld: list[Tensor] = []
        self._delta_p: list[Tensor] = []

    def add(self, columns: Mapping[str, Tensor], known: Tensor) -> None:
        """Add the next rows that have a label."""
        nll, base, kld, delta_p, same = (columns[name][known] for name in COLUMNS)
        self._kld.append(kld.float())
        self._delta_p.append(delta_p.float())
        square = delta_p * delta_p
        terms = [torch.ones_like(kld), nll, nll * nll, base, base * base, nll * base]
        terms += [kld, kld * kld, delta_p, square, square * square, same]
        stop = self._taken + len(known)
        chunk = torch.zeros(len(known), dtype=torch.int64, device="cpu")
        if self._chunks is not None:
            chunk = self._chunks[self._taken : stop]
        self._taken = stop
        missing = int(chunk.max()) + 1 - len(self._sums) if len(chunk) else 0
        if missing > 0:
            self._sums = torch.cat([self._sums, self._sums.new_zeros(missing, self._sums.shape[1])])
        self._sums.index_add_(0, chunk[known], torch.stack(terms, -1))

    def statistics(self) -> LlamaCppStatistics:
        """Return the statistics up to the end of each chunk, and of all rows."""
        running = _figures(self._sums.cumsum(0).numpy())
        kld, delta_p = (np.sort(torch.cat(each).numpy()) for each in (self._kld, self._delta_p))
        return LlamaCppStatistics(
            chunks=[] if self._chunks is None else running,
            total=running[-1],
            kld_quantiles=_quantiles(kld, KLD_FRACTIONS),
            delta_p_quantiles=_quantiles(delta_p, DELTA_P_FRACTIONS),
        )


def _figures(sums: Floats) -> list[LlamaCppFigures]:
    """Return the figures for each row of sums."""
    n, nll, nll2, base, base2, both, kld, kld2, dp, dp2, dp4, same = sums.T

    def uncertain(total: Floats, squares: Floats) -> tuple[Floats, Floats]:
        mean = total / n
        variance = squares / n - mean * mean
        known = (variance > 0) & (n >= FEWEST_UNCERTAIN)
        return mean, np.sqrt(np.where(known, variance, 0) / (n - 1))

    with np.errstate(all="ignore"):
        (log_q, u_q), (log_p, u_p) = uncertain(nll, nll2), uncertain(base, base2)
        covariance = np.where(n < FEWEST_COVARIANCE, 0, (both / n - (nll / n) * (base / n)) / (n - 1))
        ppl_q, ppl_p, ratio = np.exp(log_q), np.exp(log_p), np.exp(log_q - log_p)
        u_ratio = np.sqrt(u_q * u_q + u_p * u_p - 2 * covariance)
        v_q, v_p = ppl_q * u_q, ppl_p * u_p
        u_difference = np.sqrt(v_q * v_q + v_p * v_p - 2 * (ppl_q * ppl_p * covariance))
        square, u_square = uncertain(dp2, dp4)
        rms, top = np.sqrt(square), same / n
        columns = {
            "count": n,
            "perplexity_q": (ppl_q, v_q),
            "perplexity_p": (ppl_p, v_p),
            "correlation": covariance / (u_q * u_p),
            "log_ratio": (log_q - log_p, u_ratio),
            "ratio": (ratio, ratio * u_ratio),
            "difference": (ppl_q - ppl_p, u_difference),
            "kld": uncertain(kld, kld2),
            "delta_p": uncertain(dp, dp2),
            "delta_p_rms": (rms, 0.5 / rms * u_square),
            "same_top": (top, np.sqrt(top * (1 - top) / (n - 1))),
        }

    def value(column: Floats | tuple[Floats, Floats], i: int) -> float | tuple[float, float]:
        return (float(column[0][i]), float(column[1][i])) if isinstance(column, tuple) else float(column[i])

    all_figures: list[LlamaCppFigures] = []
    for i in range(len(sums)):
        figures = {name: value(column, i) for name, column in columns.items()}
        all_figures.append(LlamaCppFigures(**{**figures, "count": int(n[i])}))  # pyright: ignore[reportArgumentType]
    return all_figures


def _quantiles(ordered: Singles, fractions: tuple[float, ...]) -> list[float]:
    """Return the maximum, the quantiles and the minimum, interpolated in float32; NaN if there are no values."""
    if not len(ordered):
        return [float("nan")] * (len(fractions) + 2)
    with np.errstate(all="ignore"):
        between = [_quantile(ordered, fraction) for fraction in fractions]
    return [float(x) for x in (ordered[-1], *between, ordered[0])]


def _quantile(ordered: Singles, fraction: float) -> np.float32:
    count, half = len(ordered), len(ordered) // 2
    if fraction == 0.5:
        return ordered[half] if count % 2 else np.float32(0.5) * (ordered[half] + ordered[half - 1])
    place = np.float32(fraction) * np.float32(count - 1)
    below = min(int(place), count - 1)
    share = place - np.float32(below)
    return (np.float32(1) - share) * ordered[below] + share * ordered[min(below + 1, count - 1)]
