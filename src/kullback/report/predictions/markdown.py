"""A comparison of predictions as Markdown, for the summary of a CI run."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from kullback.predictions import Comparison, Mean, Proportion
from kullback.report.predictions.wording import (
    QUANTITIES,
    infinite_sentences,
    interval_end,
    precisely,
    sizes,
    summary,
)
from kullback.report.shared.formats import number, percent
from kullback.report.shared.markdown import escaped, table
from kullback.report.shared.verdicts import Verdict, in_markdown

__all__ = ["render"]


def render(comparison: Comparison, verdicts: Sequence[Verdict] = ()) -> str:
    """Return the verdict of the gates, the outcome in one sentence, the main numbers with intervals, and the notes.

    Arguments:
        comparison: the result of `compare_predictions`.
        verdicts: the limits that were asked for.

    Example:
        >>> import torch
        >>> from kullback import Probs, compare_predictions
        >>> p = Probs(torch.tensor([[0.5, 0.5], [0.9, 0.1]]))
        >>> print(render(compare_predictions(p, p), [Verdict("mean at most 0.1", ())]))
        **Passed: 1 limit. P and Q are equal in every row: KL(P\\|\\|Q) is 0.**
        <BLANKLINE>
        - ✅ mean at most 0.1
        <BLANKLINE>
        P: a tensor of shape (2, 2), Q: a tensor of shape (2, 2); 2 rows, each a distribution over 2 classes
        <BLANKLINE>
        |  | value | 95% CI |
        ...
    """
    names = f"P: {comparison.p_name}, Q: {comparison.q_name}; {sizes(comparison)}"
    lines = [*in_markdown(summary(comparison), verdicts), escaped(names), ""]
    lines += table(["", "value", "95% CI"], [_row(*each) for each in _numbers(comparison)])
    sentences = [*infinite_sentences(comparison), *comparison.notes]
    lines += ["", *(f"- {escaped(sentence)}" for sentence in sentences)] if sentences else []
    return "\n".join([*lines, ""])


Cell = tuple[str, Mean | Proportion | float, Callable[[float], str]]


def _numbers(comparison: Comparison) -> list[Cell]:
    """Return the name, the estimate and the format of the main numbers."""
    kl, labels = comparison.divergences["kl_pq"], comparison.labels
    found: list[Cell] = [
        *((f"mean {title}", comparison.divergences[name], number) for name, title in QUANTITIES.items()),
        ("median KL(P||Q)", kl.median, number),
        ("99% KL(P||Q)", kl.p99, number),
        ("99.9% KL(P||Q)", kl.p999, number),
        ("same top class", comparison.top1_agreement, percent),
        ("acceptance rate", comparison.acceptance_rate, percent),
    ]
    if labels is not None:
        found += [
            ("perplexity of P", labels.perplexity_p, number),
            ("perplexity of Q", labels.perplexity_q, number),
            ("perplexity, Q / P", labels.perplexity_ratio, precisely),
            ("label's probability, Q - P", labels.delta_prob, number),
            ("label's probability, RMS", labels.delta_prob_rms, number),
        ]
    return found


def _row(title: str, value: Mean | Proportion | float, write: Callable[[float], str]) -> list[str]:
    if isinstance(value, int | float):
        return [title, write(value), ""]
    mean = value.value if isinstance(value, Proportion) else value.mean
    ends = "n/a" if value.interval is None else " to ".join(interval_end(value, end, write) for end in (0, 1))
    return [title, write(mean), ends]
