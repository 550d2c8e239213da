"""`compare_predictions` against numpy and scipy, the inequalities between divergences, and refusals."""

from __future__ import annotations

import math
from dataclasses import asdict
from functools import partial

import numpy as np
import pytest
import scipy.spatial.distance
import scipy.special
import scipy.stats
import torch
from hypothesis import given, strategies as st
from hypothesis.extra import numpy as hnp

from kullback.errors import ArgumentTypeError, ArgumentValueError, FileError
from kullback.io import open_rows, write_llama_base
from kullback.predictions import Comparison, collect, compare_predictions
from kullback.predictions.measure import measure
from kullback.predictions.statistics import CONFIDENCE_EDGES, SEGMENTS, Histogram, Quantiles, Segments
from kullback.representations import Counts, Logits, LogProbs, Probs
from kullback.samples import Samples
from tests.refusals import refused

ROWS, CLASSES = 700, 40
NAMES = ("kl_pq", "kl_qp", "js", "tv")


def random_logits(rows: int = ROWS, classes: int = CLASSES, seed: int = 0, noise: float = 0.5):
    random = np.random.default_rng(seed)
    p = random.normal(size=(rows, classes)) * random.gamma(2.0, 2.0, size=(rows, 1))
    return p, p + noise * random.normal(size=p.shape)


def truth(p_logits, q_logits) -> dict[str, np.ndarray]:
    """Each row's divergences by scipy."""
    p, q = scipy.special.softmax(p_logits, -1), scipy.special.softmax(q_logits, -1)
    return {
        "kl_pq": scipy.special.rel_entr(p, q).sum(-1),
        "kl_qp": scipy.special.rel_entr(q, p).sum(-1),
        "js": scipy.spatial.distance.jensenshannon(p, q, axis=-1) ** 2,
        "tv": np.abs(p - q).sum(-1) / 2,
        "confidence": p.max(-1),
        "same_top": (p.argmax(-1) == q.argmax(-1)).astype(float),
    }


@pytest.fixture(scope="module")
def logits():
    return random_logits()


@pytest.fixture(scope="module")
def labels():
    values = np.random.default_rng(1).integers(0, CLASSES, ROWS)
    values[::7] = -100
    return values


CLUSTERS = np.arange(ROWS) // 20
LEVELS = (0, 0.001, 0.01, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99, 0.999, 1)


def quantiles_of(summary) -> list[float]:
    """The quantiles of a summary at `LEVELS`."""
    s = summary
    lower = [s.minimum, s.p001, s.p01, s.p05, s.p10, s.p25, s.median]
    return [*lower, s.p75, s.p90, s.p95, s.p99, s.p999, s.maximum]


def jackknife(values, clusters) -> float:
    """The delete-one-cluster jackknife's standard error of the mean of rows."""
    left_out = np.array([values[clusters != c].mean() for c in np.unique(clusters)])
    count = len(left_out)
    return math.sqrt((count - 1) / count * ((left_out - left_out.mean()) ** 2).sum())


@pytest.fixture(scope="module")
def found(logits, labels) -> Comparison:
    return compare_predictions(*logits, representation="logits", labels=labels, cluster=CLUSTERS, worst=7)


@pytest.mark.parametrize("name", NAMES)
def test_mean_error_and_quantiles_are_numpys(found, logits, name):
    rows, summary = truth(*logits)[name], found.divergences[name]
    assert summary.mean == pytest.approx(rows.mean(), rel=1e-12)
    assert summary.standard_error == pytest.approx(jackknife(rows, CLUSTERS), rel=1e-9)
    by_rows = compare_predictions(*logits, representation="logits", bootstrap=0).divergences[name]
    assert by_rows.standard_error == pytest.approx(rows.std(ddof=1) / math.sqrt(ROWS), rel=1e-10)
    np.testing.assert_allclose(quantiles_of(summary), np.quantile(rows, LEVELS), rtol=1e-11, atol=1e-15)


def test_sizes_and_names(found):
    assert (found.rows, found.classes, found.clusters) == (ROWS, CLASSES, ROWS // 20)
    assert found.p_name == f"a tensor of shape ({ROWS}, {CLASSES})"
    assert found.infinite == dict.fromkeys(NAMES, 0)
    assert found.quantiles_exact


def test_top1_agreement_is_a_proportion(found, logits):
    same = truth(*logits)["same_top"]
    assert found.top1_agreement.value == pytest.approx(same.mean(), rel=1e-12)
    assert found.top1_agreement.standard_error == pytest.approx(jackknife(same, CLUSTERS), rel=1e-9)


def test_ties_go_to_the_lowest_class_on_both_sides():
    p = torch.tensor([[0.4, 0.4, 0.2], [0.3, 0.4, 0.3]])
    q = torch.tensor([[0.4, 0.2, 0.4], [0.2, 0.4, 0.4]])
    assert compare_predictions(Probs(p), Probs(q)).top1_agreement.value == 1


def test_label_statistics_are_numpys(found, logits, labels):
    known = labels != -100
    log_p, log_q = (scipy.special.log_softmax(x, -1)[known, labels[known]] for x in logits)
    change = np.exp(log_q) - np.exp(log_p)
    n, stats, clusters = known.sum(), found.labels, CLUSTERS[known]
    assert stats.labeled == n
    for ours, rows in (
        (stats.cross_entropy_p, -log_p),
        (stats.cross_entropy_q, -log_q),
        (stats.difference, log_p - log_q),
        (stats.delta_prob, change),
    ):
        assert ours.mean == pytest.approx(rows.mean(), rel=1e-11)
        assert ours.standard_error == pytest.approx(jackknife(rows, clusters), rel=1e-9)
        assert ours.interval[0] < ours.mean < ours.interval[1]
    assert stats.delta_prob_rms.mean == pytest.approx(math.sqrt((change**2).mean()), rel=1e-11)
    np.testing.assert_allclose(quantiles_of(stats.delta_prob), np.quantile(change, LEVELS), rtol=1e-9)
    squares = change**2
    by_derivative = jackknife(squares, clusters) / (2 * math.sqrt(squares.mean()))
    assert stats.delta_prob_rms.standard_error == pytest.approx(by_derivative, rel=1e-9)


def test_the_breakdown_by_confidence_is_numpys(found, logits):
    rows = truth(*logits)
    place = np.digitize(rows["confidence"], CONFIDENCE_EDGES[1:-1])
    assert sum(part.rows for part in found.by_confidence) == ROWS
    for i, part in enumerate(found.by_confidence):
        here = rows["kl_pq"][place == i]
        assert (part.low, part.high, part.rows) == (CONFIDENCE_EDGES[i], CONFIDENCE_EDGES[i + 1], len(here))
        if len(here):
            assert part.kl_mean == pytest.approx(here.mean(), rel=1e-11)
            assert part.kl_p99 == pytest.approx(np.quantile(here, 0.99), rel=1e-11)
            assert part.top1_agreement == pytest.approx(rows["same_top"][place == i].mean(), rel=1e-12)


def test_full_confidence_is_in_the_last_bin_and_an_edge_in_the_upper_one():
    p = Probs(torch.tensor([[1.0, 0.0], [0.5, 0.5], [0.75, 0.25]]))
    assert [part.rows for part in compare_predictions(p, p).by_confidence] == [0, 0, 1, 1, 0, 1]


def test_the_worst_rows_are_the_largest_with_their_top_classes(found, logits, labels):
    kl = truth(*logits)["kl_pq"]
    assert [row.row for row in found.worst] == np.argsort(-kl, kind="stable")[:7].tolist()
    p, q = (scipy.special.softmax(x, -1) for x in logits)
    for row in found.worst:
        assert row.kl == pytest.approx(kl[row.row], rel=1e-11)
        assert row.label == (None if labels[row.row] == -100 else labels[row.row])
        assert row.cluster == str(row.row // 20)
        by_p, by_q = (np.argsort(-x[row.row], kind="stable")[:5].tolist() for x in (p, q))
        assert [top.index for top in row.top] == by_p + [i for i in by_q if i not in by_p]
        for top in row.top:
            assert (top.p, top.q) == pytest.approx((p[row.row, top.index], q[row.row, top.index]), rel=1e-11)


def test_equal_worst_rows_come_in_order_and_infinite_ones_first():
    p = torch.tensor([[0.5, 0.5]]).repeat(3000, 1)
    q = torch.tensor([[0.75, 0.25]]).repeat(3000, 1)
    q[[2000, 2900]] = torch.tensor([1.0, 0.0])
    worst = compare_predictions(Probs(p), Probs(q), worst=5).worst
    assert [row.row for row in worst] == [2000, 2900, 0, 1, 2]
    assert [math.isinf(row.kl) for row in worst] == [True, True, False, False, False]


def test_the_histogram_counts_every_row_once(found, logits):
    kl = truth(*logits)["kl_pq"]
    zero, *bins = found.histogram
    assert zero == (0.0, 0.0, 0)
    assert sum(count for *_, count in bins) == ROWS
    for low, high, count in bins:
        assert count == ((kl >= low) & (kl < high)).sum()
    assert bins[0][2] > 0
    assert bins[-1][2] > 0


def test_the_histogram_keeps_zeros_infinities_and_extremes():
    histogram = Histogram()
    histogram.add(torch.tensor([0.0, 0.0, 1e-300, 1e300, math.inf], dtype=torch.float64))
    bins = histogram.bins()
    assert bins[0] == (0.0, 0.0, 2)
    assert bins[-1] == (math.inf, math.inf, 1)
    assert (bins[1][2], bins[-2][2], sum(count for *_, count in bins)) == (1, 1, 5)


def test_the_quantile_curve_is_numpys_and_rises(found, logits):
    levels, values = zip(*found.quantiles, strict=True)
    np.testing.assert_allclose(values, np.quantile(truth(*logits)["kl_pq"], levels), rtol=1e-11, atol=1e-15)
    assert levels[0] == 0
    assert levels[-1] == 1
    assert list(levels) == sorted(set(levels))


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("rows", [1, 399, 400, 401, 1000, 5003])
def test_segments_cover_the_rows_whether_their_number_is_known_or_not(rows, known):
    kl = np.random.default_rng(0).exponential(size=rows)
    found = Segments(rows if known else None)
    for part in torch.from_numpy(kl).split(97):
        found.add(part)
    segments = found.segments()
    assert len(segments) <= SEGMENTS
    assert [s.start for s in segments] == [0, *(s.stop for s in segments[:-1])]
    assert segments[-1].stop == rows
    for segment in segments:
        here = kl[segment.start : segment.stop]
        assert (segment.kl_mean, segment.kl_max) == pytest.approx((here.mean(), here.max()), rel=1e-12)


@pytest.mark.parametrize("kinds", [("logits", "probs"), ("counts", "log-probs"), ("log-probs", "counts")])
def test_every_kind_gives_the_same_answer(logits, kinds):
    random = np.random.default_rng(2)
    forms = {
        "logits": lambda x: x + random.normal(size=(ROWS, 1)),
        "log-probs": lambda x: scipy.special.log_softmax(x, -1),
        "probs": lambda x: scipy.special.softmax(x, -1),
        "counts": lambda x: scipy.special.softmax(x, -1) * random.uniform(1, 9, size=(ROWS, 1)),
    }
    given_p, given_q = (forms[kind](x) for kind, x in zip(kinds, logits, strict=True))
    found = compare_predictions(given_p, given_q, representation=kinds)
    for name in NAMES:
        assert found.divergences[name].mean == pytest.approx(truth(*logits)[name].mean(), rel=1e-10)


def test_a_wrapped_tensor_says_itself_what_it_holds(logits):
    p, q = map(torch.from_numpy, logits)
    plain = compare_predictions(p, q, representation="logits", bootstrap=0)
    assert repr(compare_predictions(Logits(p), Logits(q), bootstrap=0)) == repr(plain)
    wrapped = compare_predictions(LogProbs(p.log_softmax(-1)), Counts(q.T.softmax(0), dim=0), bootstrap=0)
    assert wrapped.divergences["kl_pq"].mean == pytest.approx(plain.divergences["kl_pq"].mean, rel=1e-10)


def test_integer_counts_and_leading_dimensions():
    counts = torch.randint(1, 50, (3, 4, 5))
    found = compare_predictions(counts, counts.flip(-1))
    p = (counts.double() / counts.sum(-1, keepdim=True)).reshape(12, 5).numpy()
    assert found.rows == 12
    expected = scipy.special.rel_entr(p, p[:, ::-1]).sum(-1).mean()
    assert found.divergences["kl_pq"].mean == pytest.approx(expected, rel=1e-12)


@pytest.mark.sweep
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("classes", [7, 300, 40_000])
def test_no_result_depends_on_the_size_of_a_block(tmp_path, dtype, classes):
    rows = 5000 if classes == 7 else 600 if classes == 300 else 5
    for name, x in zip("pq", random_logits(rows, classes), strict=True):
        np.save(tmp_path / f"{name}.npy", x.astype(dtype))
    labels = np.arange(rows) % classes
    results = {
        repr(
            compare_predictions(
                tmp_path / "p.npy",
                tmp_path / "q.npy",
                representation="logits",
                labels=labels,
                block_bytes=block,
            )
        )
        for block in (1, 70_001, 1_000_000, 1 << 30)
    }
    assert len(results) == 1


def test_no_block_is_larger_than_asked(tmp_path, monkeypatch):
    np.save(tmp_path / "p.npy", np.zeros((20_000, 50), "float32"))
    opened = partial(open_rows, tmp_path / "p.npy", representation="logits")
    with opened() as p, opened() as q:
        sizes = []
        read = p.reader.read
        monkeypatch.setattr(p.reader, "read", lambda a, b: sizes.append((b - a) * 50 * 4) or read(a, b))
        compare_predictions(p, q, block_bytes=400_000)
        assert len(sizes) >= 10
        assert max(sizes) <= 400_000


@pytest.mark.parametrize("kind", ["logits", "probs"])
def test_equal_predictions_are_exactly_zero_apart(logits, kind):
    p = logits[0] if kind == "logits" else scipy.special.softmax(logits[0], -1)
    found = compare_predictions(p, p.copy(), representation=kind, labels=np.zeros(ROWS, int))
    for name in NAMES:
        summary = asdict(found.divergences[name])
        low, high = summary.pop("interval")
        reason = summary.pop("reason")
        assert set(summary.values()) == {0.0}
        # That no row differs bounds how many do, and with it a bounded divergence; KL has no bound.
        assert low == 0
        if name.startswith("kl"):
            assert (high, reason) == (math.inf, "few nonzero units")
        else:
            assert 0 < high < 0.01
            assert reason is None
    assert found.top1_agreement.value == 1
    assert found.histogram == [(0.0, 0.0, ROWS)]
    stats = found.labels
    assert (stats.difference.mean, stats.delta_prob.mean, stats.delta_prob_rms.mean) == (0, 0, 0)
    assert (stats.perplexity_ratio.mean, stats.perplexity_difference.mean) == (1, 0)
    assert stats.correlation == pytest.approx(1, rel=1e-15)
    assert [same.value for same in found.top_k_agreement] == [1] * 5
    assert (found.acceptance_rate.mean, found.acceptance_rate.interval[1]) == (1, 1)


def test_infinite_rows_are_counted_and_leave_no_nan():
    p = torch.full((100, 4), 0.25)
    q = p.clone()
    q[90:] = torch.tensor([0.5, 0.5, 0.0, 0.0])
    found = compare_predictions(Probs(p), Probs(q))
    assert found.infinite == {"kl_pq": 10, "kl_qp": 0, "js": 0, "tv": 0}
    kl = found.divergences["kl_pq"]
    assert (kl.mean, kl.standard_error, kl.interval, kl.maximum) == (math.inf, math.inf, None, math.inf)
    assert (kl.median, kl.p90, kl.p95, kl.p99) == (0, math.inf, math.inf, math.inf)
    assert not any(math.isnan(value) for _, value in found.quantiles)
    assert found.histogram[-1] == (math.inf, math.inf, 10)
    assert found.segments[-1].kl_max == math.inf
    assert found.divergences["kl_qp"].interval is not None


def test_a_quantile_between_the_largest_finite_and_the_first_infinite_value_is_infinite():
    quantiles = Quantiles()
    quantiles.add(torch.tensor([1.0, 2.0, math.inf, math.inf], dtype=torch.float64))
    assert quantiles.at([0, 1 / 3, 0.5, 2 / 3, 1]) == [1.0, 2.0, math.inf, math.inf, math.inf]


def test_a_label_too_unlikely_for_a_float64_keeps_its_cross_entropy():
    p = torch.tensor([[0.0, -2000.0]])
    q = torch.tensor([[0.0, -3000.0]])
    found = compare_predictions(Logits(p), Logits(q), labels=[1], bootstrap=0)
    assert found.labels.cross_entropy_p.mean == 2000
    assert found.labels.cross_entropy_q.mean == 3000
    assert found.labels.difference.mean == 1000
    assert found.divergences["kl_qp"].mean < 1e-300


def test_labels_of_probability_zero():
    half, sure = [0.5, 0.5], [1.0, 0.0]
    cases = {"q": (half, sure, math.inf), "p": (sure, half, -math.inf), "both": (sure, sure, 0.0)}
    for p, q, difference in cases.values():
        stats = compare_predictions(Probs([p]), Probs([q]), labels=[1]).labels
        assert stats.difference.mean == difference
        assert stats.difference.interval is None
    mixed = compare_predictions(Probs([half, sure]), Probs([sure, half]), labels=[1, 1])
    assert math.isnan(mixed.labels.difference.mean)
    assert any("cannot be subtracted" in note for note in mixed.notes)


def test_labels_that_are_all_ignored_leave_statistics_of_nothing():
    p = Probs(torch.full((4, 2), 0.5))
    stats = compare_predictions(p, p, labels=[-100] * 4).labels
    assert stats.labeled == 0
    assert math.isnan(stats.cross_entropy_p.mean)
    assert stats.cross_entropy_p.interval is None


def test_more_values_than_are_held_go_to_the_sketch():
    values = np.random.default_rng(0).lognormal(-7, 3, 20_000)
    quantiles, levels = Quantiles(limit=1000), [0.0, 0.5, 0.9, 0.999, 1.0]
    for part in torch.from_numpy(values).split(300):
        quantiles.add(part)
    assert not quantiles.exact
    np.testing.assert_allclose(quantiles.at(levels), np.quantile(values, levels), rtol=0.0051)


def test_a_comparison_beyond_the_limit_says_that_its_quantiles_are_approximate(monkeypatch, logits):
    monkeypatch.setattr(collect, "EXACT_ROWS", 100)
    found = compare_predictions(*logits, representation="logits")
    assert not found.quantiles_exact
    assert any("sketch" in note for note in found.notes)
    assert found.divergences["kl_pq"].median == pytest.approx(np.median(truth(*logits)["kl_pq"]), rel=0.006)


# Intervals


def test_the_generator_decides_the_intervals(logits):
    def interval(seed: int) -> tuple[float, float] | None:
        generator = torch.Generator().manual_seed(seed)
        found = compare_predictions(*logits, representation="logits", generator=generator)
        return found.divergences["js"].interval

    state = torch.get_rng_state()
    assert interval(1) == interval(1) != interval(2)
    assert torch.equal(torch.get_rng_state(), state)


def test_the_standard_error_and_interval_are_those_of_the_clusters(logits):
    rows = truth(*logits)["kl_pq"]
    clusters = np.sort(np.random.default_rng(3).integers(0, 30, ROWS) ** 2)
    found = compare_predictions(*logits, representation="logits", cluster=clusters).divergences["kl_pq"]
    error = jackknife(rows, clusters)
    assert found.standard_error == pytest.approx(error, rel=1e-9)
    student = scipy.stats.t.ppf(0.975, len(np.unique(clusters)) - 1) * error
    assert found.interval[0] <= rows.mean() - 0.999 * student
    assert found.interval[1] >= rows.mean() + 0.999 * student
    assert found.interval[1] - found.interval[0] < 4 * student


@pytest.mark.parametrize("settings", [{"bootstrap": 0}, {"cluster": [7] * ROWS}])
def test_no_interval_without_draws_or_with_a_single_cluster(logits, settings):
    found = compare_predictions(*logits, representation="logits", **settings)
    assert found.divergences["kl_pq"].interval is None
    assert found.top1_agreement.interval is None


def test_the_notes_say_what_the_intervals_assume(logits):
    by_rows = compare_predictions(*logits, representation="logits").notes
    (unseen,) = by_rows
    assert unseen.startswith(
        "At 95 % confidence, up to 0.43 % of rows (3/n) may be of a kind that is absent from these 700."
    )
    few = compare_predictions(*logits, representation="logits", cluster=np.arange(ROWS) % 5)
    assert "assume that the 5 clusters are independent." in few.notes[0]
    assert "No interval for KL(P||Q), KL(Q||P), JS, TV" in few.notes[1]
    assert "fewer than 10 clusters" in few.notes[1]
    assert {summary.reason for summary in few.divergences.values()} == {"few units"}


# Sources


def test_text_clusters_keep_their_names(logits):
    ids = np.array(["b.txt", "a.txt"])[np.arange(ROWS) % 2]
    found = compare_predictions(*logits, representation="logits", cluster=ids, worst=4)
    assert found.clusters == 2
    assert [row.cluster for row in found.worst] == [ids[row.row] for row in found.worst]


def test_a_file_whose_length_only_reading_tells(tmp_path, logits):
    for name, x in zip("pq", logits, strict=True):
        np.savetxt(tmp_path / f"{name}.csv", x, delimiter=",", fmt="%.17g")
    calls = []
    compare = partial(compare_predictions, tmp_path / "p.csv", tmp_path / "q.csv", representation="logits")
    found = compare(
        labels=[0] * ROWS, block_bytes=1, progress=lambda done, total: calls.append((done, total))
    )
    assert found.divergences["kl_pq"].mean == pytest.approx(truth(*logits)["kl_pq"].mean(), rel=1e-12)
    assert calls[-1] == (ROWS, None)
    for vectors in (
        {"labels": [0] * (ROWS - 1)},
        {"labels": [0] * (ROWS + 1)},
        {"cluster": [0] * (ROWS + 1)},
    ):
        with refused(ArgumentValueError, wanted="700 values.*, one for each row$", got="^(699|701)"):
            compare(**vectors)


def test_progress_counts_up_to_all_rows(logits):
    calls = []
    compare_predictions(
        *logits, representation="logits", block_bytes=1, progress=lambda *at: calls.append(at)
    )
    assert [total for _, total in calls] == [ROWS] * len(calls)
    assert [done for done, _ in calls] == sorted({done for done, _ in calls})
    assert calls[-1][0] == ROWS


@pytest.fixture
def base_file(tmp_path):
    tokens = torch.randint(0, 30, (4, 16))
    rows = torch.randn(4 * 7, 30)
    write_llama_base(tmp_path / "base.kld", tokens, rows, n_ctx=16)
    return tmp_path / "base.kld", tokens, rows


def test_a_llama_cpp_base_file_brings_its_labels(base_file):
    path, tokens, rows = base_file
    found = compare_predictions(path, Logits(rows))
    assert found.labels.labeled == 28
    expected = -rows.double().log_softmax(-1).gather(-1, tokens[:, 9:].reshape(-1, 1)).mean()
    assert found.labels.cross_entropy_q.mean == pytest.approx(float(expected), rel=1e-12)
    assert found.divergences["kl_pq"].maximum < 1e-6
    assert any("next tokens that base.kld holds" in note for note in found.notes)
    assert any(note.startswith("P: ") for note in found.notes)
    assert compare_predictions(path, Logits(rows), labels=[-100] * 28).labels.labeled == 0


def test_two_base_files_of_different_text_are_refused(tmp_path, base_file):
    path, tokens, rows = base_file
    write_llama_base(tmp_path / "other.kld", (tokens + 1) % 30, rows, n_ctx=16)
    with refused(FileError, wanted="same tokens"):
        compare_predictions(path, tmp_path / "other.kld")


def test_an_open_source_stays_open_and_a_path_is_closed(tmp_path):
    np.save(tmp_path / "p.npy", np.ones((3, 2), "int64"))
    with open_rows(tmp_path / "p.npy") as source:
        compare_predictions(source, tmp_path / "p.npy")
        assert source.read(0, 1).tolist() == [[1, 1]]


def test_a_bad_row_is_named_though_it_lies_deep_in_the_file(tmp_path):
    p = np.zeros((30_000, 10), "float32")
    np.save(tmp_path / "p.npy", p)
    p[23_456, 3] = np.nan
    np.save(tmp_path / "q.npy", p)
    with pytest.raises(
        FileError, match=r"q = .*q\.npy: wanted logits without NaN; got nan at row 23456, class 3"
    ):
        compare_predictions(
            tmp_path / "p.npy", tmp_path / "q.npy", representation="logits", block_bytes=100_000
        )


ZEROS = torch.zeros(4, 3)


@pytest.mark.parametrize(
    ("arguments", "settings", "error", "message"),
    [
        ((ZEROS, ZEROS), {}, FileError, r"p = a tensor of shape \(4, 3\): wanted representation="),
        (
            (ZEROS, ZEROS),
            {"representation": "logit"},
            ArgumentValueError,
            "representation=.*log-probs.*got 'logit'",
        ),
        (
            (Logits(ZEROS), ZEROS[:, :2]),
            {"representation": (None, "logits")},
            FileError,
            "classes in both; got 3 and 2",
        ),
        ((Logits(ZEROS), Logits(ZEROS[:2])), {}, FileError, "rows in both; got 4 and 2"),
        ((Logits(ZEROS), ZEROS[0]), {"representation": (None, "logits")}, FileError, "q = .*two dimensions"),
        ((Logits(ZEROS), Samples(ZEROS)), {}, ArgumentTypeError, "q=.*Samples"),
        ((Logits(ZEROS), ZEROS > 0), {}, ArgumentTypeError, "q=.*bool"),
        (
            (Logits(ZEROS), Logits(ZEROS)),
            {"representation": "probs"},
            ArgumentValueError,
            "'logits' or none",
        ),
        ((Logits(ZEROS), Logits(ZEROS)), {"key": "x"}, ArgumentValueError, "key=.*none for a tensor"),
        (
            (Logits(ZEROS), Logits(ZEROS)),
            {"labels": [0, 1]},
            ArgumentValueError,
            "4 values, one for each row; got 2",
        ),
        (
            (Logits(ZEROS), Logits(ZEROS)),
            {"labels": [0, 3, 0, 0]},
            ArgumentValueError,
            "0 to 2, .*got 3 in row 1",
        ),
        ((Logits(ZEROS), Logits(ZEROS)), {"labels": [0, -1, 0, 0]}, ArgumentValueError, "got -1 in row 1"),
        ((Logits(ZEROS), Logits(ZEROS)), {"labels": [0.0] * 4}, ArgumentTypeError, "class indices"),
        ((Logits(ZEROS), Logits(ZEROS)), {"cluster": [0.5] * 4}, ArgumentTypeError, "integers or text"),
        ((Logits(ZEROS), Logits(ZEROS)), {"cluster": ["a"]}, ArgumentValueError, "4 values"),
        ((Logits(ZEROS), Logits(ZEROS)), {"worst": -1}, ArgumentValueError, "worst=.*0 or more; got -1"),
        ((Logits(ZEROS), Logits(ZEROS)), {"bootstrap": 2.5}, ArgumentValueError, "bootstrap=.*got 2.5"),
        (
            (Logits(ZEROS), Logits(ZEROS)),
            {"block_bytes": 0},
            ArgumentValueError,
            "block_bytes=.*1 or more; got 0",
        ),
    ],
)
def test_what_cannot_be_compared_is_refused(arguments, settings, error, message):
    with pytest.raises(error, match=message):
        compare_predictions(*arguments, **settings)


# Laws


def tables():
    rows = hnp.arrays("float64", (3, 5), elements=st.floats(-40, 40) | st.just(-math.inf))
    return rows.filter(lambda x: np.isfinite(x.max(-1)).all())


@given(p=tables(), q=tables())
def test_bounds_between_the_divergences(p, q):
    kl_pq, kl_qp, js, tv = measure(
        torch.from_numpy(p), torch.from_numpy(q), ("logits", "logits"), None
    ).table.T[:4]
    assert bool((torch.stack([kl_pq, kl_qp, js, tv]) >= 0).all())
    slack = 1 + 1e-12
    assert bool((tv <= slack).all())
    assert bool((js <= math.log(2) * slack).all())
    for kl in (kl_pq, kl_qp):
        assert bool((tv <= (kl / 2).sqrt() * slack + 1e-150).all())  # Pinsker; KL may underflow
        assert bool((js <= kl / 2 * slack).all() or (kl == math.inf).any())
    assert bool((js <= math.log(2) * tv * slack).all())


@given(p=tables(), q=tables())
def test_exchanging_p_and_q_exchanges_the_results(p, q):
    a, b, kinds = torch.from_numpy(p), torch.from_numpy(q), ("logits", "logits")
    forth, back = measure(a, b, kinds, None).table, measure(b, a, kinds, None).table
    assert torch.equal(forth[:, :2], back[:, :2].flip(-1))
    torch.testing.assert_close(forth[:, 2:4], back[:, 2:4], rtol=1e-12, atol=1e-150)
