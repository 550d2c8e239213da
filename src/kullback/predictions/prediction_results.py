"""The results of a comparison of predictions, as frozen dataclasses."""

from __future__ import annotations

from dataclasses import dataclass, field

from kullback.common.display import Shown
from kullback.common.short_repr import ShortRepr
from kullback.errors import quoted
from kullback.results.value import Value


@dataclass(frozen=True)
class Summary(Value[float]):
    """The mean of one quantity over all rows, and the quantiles of its values.

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
    """The mean over rows of a statistic that `register_statistic` added, with the title of the statistic."""

    title: str = field(default="", kw_only=True)


@dataclass(frozen=True)
class TopClass:
    """One class of a row with its probability under P and under Q."""

    index: int
    p: float
    q: float


@dataclass(frozen=True, repr=False)
class WorstRow(ShortRepr):
    """A row with a large KL(P || Q).

    Attributes:
        row: the row's index.
        kl: KL(P || Q) in this row.
        label: the true class, or None if the row has no label.
        cluster: the id of the row's cluster, or None without clusters. If the clusters come from a file, the id is the
            cluster's number among the sorted ids.
        top: the top classes under P, then the top classes under Q that are not top classes under P.
    """

    row: int
    kl: float
    label: int | None
    cluster: str | None
    top: list[TopClass]


@dataclass(frozen=True)
class ConfidenceBin:
    """Statistics of the rows whose largest probability under P is in [low, high), or in [low, 1] for the last bin.

    Attributes:
        low: the lower edge.
        high: the upper edge.
        rows: the number of rows in the bin.
        kl_mean: the mean KL(P || Q) of these rows; NaN if there are no rows.
        kl_p99: the 99 % quantile of KL(P || Q) in these rows.
        top1_agreement: the proportion of these rows with the same top class in P and Q.
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
        labeled: the number of rows with a label.
        cross_entropy_p: the mean of -log p(label).
        cross_entropy_q: the mean of -log q(label).
        difference: the mean of log p(label) - log q(label) over rows, which is cross_entropy_q - cross_entropy_p. The
            standard error is for paired values. A row counts as 0 if both probabilities are 0.
        correlation: Pearson's correlation of log p(label) and log q(label) over rows; NaN if one of the two does not
            vary.
        perplexity_p: exp(cross_entropy_p). The error comes from the delta method. The interval is the exponential of
            the cross-entropy's interval.
        perplexity_q: exp(cross_entropy_q), with error and interval as for `perplexity_p`.
        perplexity_ratio: perplexity_q / perplexity_p, which is exp(difference), with error and interval as for
            `perplexity_p`.
        perplexity_difference: perplexity_q - perplexity_p. The error and the interval come from the delta method on
            paired values.
        delta_prob: the mean and the quantiles of q(label) - p(label). Symmetric tails mean noise. A longer lower tail
            means that Q has lost probability at the labels.
        delta_prob_rms: the root mean square of q(label) - p(label).
        top_k_accuracy_p: for k = 1 to 5, the proportion of rows whose label is among the k top classes of P. Ties are
            in order of class number.
        top_k_accuracy_q: the same proportions for the top classes of Q.
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
        # Equal objects have equal hashes. The lists are left out, because a list has no hash.
        return hash((self.labeled, self.cross_entropy_p, self.cross_entropy_q))


@dataclass(frozen=True)
class LlamaCppFigures:
    """The numbers that llama.cpp's ``llama-perplexity --kl-divergence`` prints for some rows, each with an uncertainty.

    The uncertainty of a mean is sqrt((mean of squares - square of mean) / (rows - 1)). The uncertainty of a function of
    means follows by the delta method. Both uncertainties assume independent rows.

    Attributes:
        count: the number of rows.
        perplexity_q: PPL(Q).
        perplexity_p: PPL(base).
        correlation: Cor(ln(PPL(Q)), ln(PPL(base))), without an uncertainty.
        log_ratio: ln(PPL(Q)/PPL(base)).
        ratio: PPL(Q)/PPL(base).
        difference: PPL(Q)-PPL(base).
        kld: the mean KL divergence, in nats.
        delta_p: the mean of q - p at the true token, as a fraction.
        delta_p_rms: the root mean square of q - p at the true token.
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
    """The numbers that ``llama-perplexity --kl-divergence`` prints, by llama.cpp's definitions, for the rows with a
    label.

    Attributes:
        chunks: the figures of all rows up to the end of each chunk (window); empty if the rows are not divided into
            chunks.
        total: the figures of all rows.
        kld_quantiles: values of the KL divergence, in this order: maximum, 99.9, 99, 95, 90 % quantile, median, 10, 5,
            1, 0.1 % quantile, minimum.
        delta_p_quantiles: values of q - p at the true token, in this order: maximum, 99.9, 99, 95, 90, 75 % quantile,
            median, 25, 10, 5, 1, 0.1 % quantile, minimum.
    """

    chunks: list[LlamaCppFigures]
    total: LlamaCppFigures
    kld_quantiles: list[float]
    delta_p_quantiles: list[float]

    def __hash__(self) -> int:
        return hash(self.total)


@dataclass(frozen=True)
class Segment:
    """The mean and the largest KL(P || Q) of the rows from `start` to `stop` - 1."""

    start: int
    stop: int
    kl_mean: float
    kl_max: float


@dataclass(frozen=True, repr=False)
class Comparison(Shown):
    """The result of `compare_predictions`.

    ``print`` shows the comparison as text, and a notebook shows a table. `to_html`, `to_json`, `to_dict` and
    `to_pandas` convert the comparison, and `plot` draws it.

    Attributes:
        p_name: the path of P, or the shape of its tensor.
        q_name: the path of Q, or the shape of its tensor.
        rows: the number of rows (positions).
        classes: the number of classes.
        clusters: the number of clusters, or None without cluster ids.
        divergences: a `Summary` for each of ``"kl_pq"``, ``"kl_qp"``, ``"js"``, ``"tv"``.
        acceptance_rate: the expected acceptance rate of speculative sampling, which is the mean of sum(min(p, q)) = 1 -
            TV. The rate is the same if P is the target and Q the draft, or the reverse.
        top1_agreement: the proportion of rows with the same top class in P and Q.
        top_k_agreement: for k = 1 to 5, the proportion of rows with the same k top classes in P and Q, in the same
            order. Ties are in order of class number. If there are fewer than k classes, all classes are compared.
        labels: the statistics at the true classes, or None without labels.
        worst: the rows with the largest KL(P || Q), in descending order.
        by_confidence: statistics of the rows, in bins of P's largest probability.
        histogram: (low, high, count) for each bin of KL(P || Q). The first bin is (0, 0, count) for zeros. Logarithmic
            bins follow, and a bin (inf, inf, count) if KL is infinite in some rows.
        quantiles: pairs (probability, quantile of KL(P || Q)), for many probabilities from 0 to 1.
        segments: the mean and the largest KL(P || Q) of consecutive rows, in at most 400 segments of equal length.
        infinite: for each divergence, the number of infinite rows.
        quantiles_exact: whether the quantiles are exact; if not, they come from a sketch.
        notes: remarks on the results, as sentences.
        llama_cpp: the numbers that llama.cpp would print, or None if they were not requested.
        unseen: the largest share of `independent_units`, at 95 % confidence, that may be of a kind that is absent from
            the data. The interval of KL(P || Q) does not allow for such a kind. The share is 0 if the interval is wide
            enough for such a kind.
        independent_units: what intervals assume to be independent: ``"rows"``, ``"blocks"`` of dependent rows,
            ``"clusters"``, or for language models ``"windows"`` or ``"documents"``.
        further: the results of the statistics that `register_statistic` added, by name.
        groups: the comparison of the rows of each group, by name; empty without groups. A comparison of a group has no
            worst rows, and its segments contain only rows of the group.
        against_rest: for the comparison of a group, its means minus the means of all other rows, by the names of
            statistics. The differences are paired by independent units, because one unit may have rows in both.
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
    independent_units: str = "rows"
    further: dict[str, TitledValue] = field(default_factory=dict)
    groups: dict[str, Comparison] = field(default_factory=dict)
    against_rest: dict[str, Value[float]] = field(default_factory=dict)

    def __hash__(self) -> int:
        return hash((self.p_name, self.q_name, self.rows, self.classes, self.acceptance_rate))

    def __repr__(self) -> str:
        names = ", ".join(quoted(name) for name in (self.p_name, self.q_name))
        mean = self.divergences["kl_pq"].mean
        return f"Comparison({names}, rows={self.rows}, classes={self.classes}, mean kl_pq={mean:.4g})"
