"""The results of a comparison of predictions, as frozen dataclasses."""

from __future__ import annotations

from dataclasses import dataclass, field

from kullback.common.display import Shown
from kullback.common.short_repr import ShortRepr
from kullback.errors import quoted
from kullback.results.value import Value


@dataclass(frozen=True)
class Summary(Value[float]):
    """One quantity over all rows: its mean and its quantiles in both tails.

    Attributes:
        minimum: the smallest value.
        p001: the 0.1 % quantile.
        p01: the 1 % quantile.
        p05: the 5 % quantile.
        p10: the 10 % quantile.
        p25: the 25 % quantile.
        median: the 50 % quantile.
        p75: the 75 % quantile.
        p90: the 90 % quantile.
        p95: the 95 % quantile.
        p99: the 99 % quantile.
        p999: the 99.9 % quantile.
        maximum: the largest value.
    """

    minimum: float
    p001: float
    p01: float
    p05: float
    p10: float
    p25: float
    median: float
    p75: float
    p90: float
    p95: float
    p99: float
    p999: float
    maximum: float


@dataclass(frozen=True)
class TitledValue(Value[float]):
    """The mean over rows of a statistic that `register_statistic` added, and its title."""

    title: str = field(default="", kw_only=True)


@dataclass(frozen=True)
class TopClass:
    """One class of a row with its probability under P and under Q."""

    index: int
    p: float
    q: float


@dataclass(frozen=True, repr=False)
class WorstRow(ShortRepr):
    """A row of large KL(P || Q).

    Attributes:
        row: the row's index.
        kl: KL(P || Q) in this row.
        label: the true class, or None.
        cluster: the cluster's id (its number among the sorted ids if they came from a file), or None.
        top: the top classes under P, then the further top classes under Q.
    """

    row: int
    kl: float
    label: int | None
    cluster: str | None
    top: list[TopClass]


@dataclass(frozen=True)
class ConfidenceBin:
    """The rows with largest reference probability max p in [low, high), or in [low, 1] for the last bin.

    Attributes:
        low: the lower edge.
        high: the upper edge.
        rows: how many rows.
        kl_mean: their mean KL(P || Q), NaN if there are none.
        kl_p99: its 99 % quantile.
        top1_agreement: the proportion of these rows where both have the same top class.
    """

    low: float
    high: float
    rows: int
    kl_mean: float
    kl_p99: float
    top1_agreement: float


@dataclass(frozen=True, repr=False)
class LabelStatistics(ShortRepr):
    """Statistics of P and Q at the true classes.

    Attributes:
        labeled: how many rows have a label.
        cross_entropy_p: the mean of -log p(label).
        cross_entropy_q: the mean of -log q(label).
        difference: the mean of log p(label) - log q(label), row by row: cross_entropy_q - cross_entropy_p, with the
            standard error of paired values. A row counts 0 where both probabilities are 0.
        correlation: Pearson's correlation of log p(label) and log q(label) over rows; NaN where one does not vary.
        perplexity_p: exp(cross_entropy_p), its error by the delta method, its interval the exponential of the
            cross-entropy's interval.
        perplexity_q: the same for Q.
        perplexity_ratio: perplexity_q / perplexity_p, which is exp(difference), likewise.
        perplexity_difference: perplexity_q - perplexity_p, error and interval by the delta method on paired values.
        delta_prob: q(label) - p(label): its mean and its quantiles. Symmetric tails are noise; a longer lower tail is
            probability that Q has lost.
        delta_prob_rms: the root of the mean square of q(label) - p(label).
        top_k_accuracy_p: for k = 1 to 5, how often the label is among P's k top classes; of classes of equal
            probability the lower comes first.
        top_k_accuracy_q: the same for Q.
    """

    labeled: int
    cross_entropy_p: Value[float]
    cross_entropy_q: Value[float]
    difference: Value[float]
    correlation: float
    perplexity_p: Value[float]
    perplexity_q: Value[float]
    perplexity_ratio: Value[float]
    perplexity_difference: Value[float]
    delta_prob: Summary
    delta_prob_rms: Value[float]
    top_k_accuracy_p: list[Value[float]]
    top_k_accuracy_q: list[Value[float]]

    def __hash__(self) -> int:
        # Equal ones have equal hashes; lists have none.
        return hash((self.labeled, self.cross_entropy_p, self.cross_entropy_q))


@dataclass(frozen=True)
class LlamaCppFigures:
    """The numbers that llama.cpp's ``llama-perplexity --kl-divergence`` prints for some rows, with their uncertainty.

    The uncertainty is sqrt((mean of squares - square of mean) / (rows - 1)), or follows from it by the delta method. It
    assumes independent rows.

    Attributes:
        count: how many rows.
        perplexity_q: PPL(Q).
        perplexity_p: PPL(base).
        correlation: Cor(ln(PPL(Q)), ln(PPL(base))), without an uncertainty.
        log_ratio: ln(PPL(Q)/PPL(base)).
        ratio: PPL(Q)/PPL(base).
        difference: PPL(Q)-PPL(base).
        kld: the mean KL divergence, in nats.
        delta_p: the mean of q - p at the true token, a fraction.
        delta_p_rms: its root mean square.
        same_top: the proportion of rows with the same top token.
    """

    count: int
    perplexity_q: tuple[float, float]
    perplexity_p: tuple[float, float]
    correlation: float
    log_ratio: tuple[float, float]
    ratio: tuple[float, float]
    difference: tuple[float, float]
    kld: tuple[float, float]
    delta_p: tuple[float, float]
    delta_p_rms: tuple[float, float]
    same_top: tuple[float, float]


@dataclass(frozen=True, repr=False)
class LlamaCppStatistics(ShortRepr):
    """The numbers that ``llama-perplexity --kl-divergence`` prints, by its definitions, for the rows with a label.

    Attributes:
        chunks: the figures of all rows up to the end of each chunk (window); empty where rows are not cut in chunks.
        total: the figures of all rows.
        kld_quantiles: of the KL divergence: maximum, 99.9, 99, 95, 90 %, median, 10, 5, 1, 0.1 %, minimum.
        delta_p_quantiles: of q - p at the true token: maximum, 99.9, 99, 95, 90, 75 %, median, 25, 10, 5, 1, 0.1 %,
            minimum.
    """

    chunks: list[LlamaCppFigures]
    total: LlamaCppFigures
    kld_quantiles: list[float]
    delta_p_quantiles: list[float]

    def __hash__(self) -> int:
        return hash(self.total)


@dataclass(frozen=True)
class Segment:
    """Rows start to stop (not included): their mean and largest KL(P || Q)."""

    start: int
    stop: int
    kl_mean: float
    kl_max: float


@dataclass(frozen=True, repr=False)
class Comparison(Shown):
    """The result of `compare_predictions`.

    ``print`` shows it as text, a notebook as a table; `to_html`, `to_json`, `to_dict`
    and `to_pandas` write it.

    Attributes:
        p_name: the path of P, or the shape of its tensor.
        q_name: the same for Q.
        rows: the number of rows (positions).
        classes: the number of classes.
        clusters: the number of clusters, or None without cluster ids.
        divergences: a `Summary` for each of ``"kl_pq"``, ``"kl_qp"``, ``"js"``, ``"tv"``.
        acceptance_rate: the expected acceptance rate of speculative sampling, P the target and Q the draft or the
            reverse: the mean of sum(min(p, q)) = 1 - TV.
        top1_agreement: the proportion of rows where both have the same top class.
        top_k_agreement: for k = 1 to 5, the proportion of rows in which both have the same k top classes in the same
            order; of classes of equal probability the lower comes first. Of fewer than k classes all are compared.
        labels: the statistics at the true classes, or None without labels.
        worst: the rows of largest KL(P || Q), the largest first.
        by_confidence: the rows by P's largest probability.
        histogram: (low, high, count) of KL(P || Q): a bin (0, 0, count) of zeros, then logarithmic bins, then
            (inf, inf, count) where rows are infinite.
        quantiles: (probability, KL(P || Q)), densely.
        segments: KL(P || Q) of consecutive rows, in at most 400 segments of equal length.
        infinite: for each divergence, in how many rows it is infinite.
        quantiles_exact: whether quantiles come from all values; if not, from a sketch.
        notes: remarks on the numbers, as sentences.
        llama_cpp: what llama.cpp would print, where it was asked for, else None.
        unseen: the largest share of rows, blocks or clusters, at 95 % confidence, that may be of a kind that is absent
            here. The interval of KL(P || Q) leaves such a kind out. 0 where the interval allows for it.
        further: the statistics that `register_statistic` added, by their names.
    """

    p_name: str
    q_name: str
    rows: int
    classes: int
    clusters: int | None
    divergences: dict[str, Summary]
    acceptance_rate: Value[float]
    top1_agreement: Value[float]
    top_k_agreement: list[Value[float]]
    labels: LabelStatistics | None
    worst: list[WorstRow]
    by_confidence: list[ConfidenceBin]
    histogram: list[tuple[float, float, int]]
    quantiles: list[tuple[float, float]]
    segments: list[Segment]
    infinite: dict[str, int]
    quantiles_exact: bool
    notes: list[str]
    llama_cpp: LlamaCppStatistics | None = None
    unseen: float = 0.0
    further: dict[str, TitledValue] = field(default_factory=dict)

    def __hash__(self) -> int:
        return hash((self.p_name, self.q_name, self.rows, self.classes, self.acceptance_rate))

    def __repr__(self) -> str:
        names = ", ".join(quoted(name) for name in (self.p_name, self.q_name))
        mean = self.divergences["kl_pq"].mean
        return f"Comparison({names}, rows={self.rows}, classes={self.classes}, mean kl_pq={mean:.4g})"
