"""References as candidates: what is said must hold of the whole distributions, and open where it cannot be known."""

from __future__ import annotations

import itertools
import json
import math
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import mpmath
import pytest
import torch
from click.testing import CliRunner
from torch import Tensor

from kullback.cli.commands import kullback
from kullback.errors import ArgumentValueError, FileError, ModelError
from kullback.io import PartialRows, Reference, ReferenceWriter, RowSource, open_rows
from kullback.io.windows import Windows
from kullback.models import (
    Cut,
    LanguageModel,
    Loading,
    ModelComparison,
    ModelInfo,
    Run,
    Token,
    Vocabulary,
    compare_models,
    record_reference,
)
from kullback.models.pairing import PairingSettings
from kullback.models.partial import ListedPairing, ReferencePairing
from kullback.models.side import DenseSide, ReferenceSide
from kullback.partial_rows import summarize_rows
from kullback.predictions.measure import COLUMNS, LABEL_COLUMNS, measure
from kullback.predictions.sources import Clusters
from kullback.report import html, json as report, markdown
from tests.models import folders
from tests.models.bytes_model import BytesModel
from tests.models.tiny import text
from tests.refusals import refused

CONTEXT = 48
NAMES = ("kl_pq", "kl_qp", "js", "tv")
INF = math.inf


WORDS = "how far is one distribution from another, and how sure can anybody be of that? " * 12


def tables(noise: float = 0.3) -> tuple[Tensor, Tensor]:
    draw = torch.Generator().manual_seed(3)
    p = 2.5 * torch.randn(256, 256, generator=draw, dtype=torch.float64)
    return p, p + noise * torch.randn(256, 256, generator=draw, dtype=torch.float64)


def recorded(path: Path, model: LanguageModel, **options: Any) -> Path:
    sizes: dict[str, Any] = {"top": 16, "tail_draws": 16, "cut": Cut(context=CONTEXT)}
    record_reference(model, options.pop("words", WORDS), path, **(sizes | options))
    return path


def means(found: ModelComparison, place: int = 0) -> dict[str, float]:
    return {name: each.mean for name, each in found.candidates[place].comparison.divergences.items()}


# --- a model and the reference of another


@pytest.mark.sweep
@pytest.mark.parametrize("noise", [0.02, 0.3])
def test_a_reference_as_candidate_says_what_holds_of_all_classes(tmp_path: Path, noise: float) -> None:
    p, q = tables(noise)
    base, other = BytesModel("base", p), BytesModel("other", q)
    exact = compare_models(base, other, WORDS, cut=Cut(context=CONTEXT))
    true, all_of = means(exact), exact.candidates[0].comparison
    path = recorded(tmp_path / "q.klref", other)
    found = compare_models(base, path, WORDS, cut=Cut(context=CONTEXT))
    candidate = found.candidates[0]
    assert candidate.known == "reference"
    assert candidate.comparison.rows == all_of.rows
    assert candidate.certain is not None
    assert candidate.drawn is not None
    for name in NAMES:
        low, high = candidate.certain[name]
        assert 0.05 * true[name] < low <= true[name] * (1 + 1e-5) <= high * (1 + 2e-5)
        drawn = candidate.drawn[name]
        assert abs(drawn.mean - true[name]) < 5 * drawn.standard_error + 1e-5 * true[name]
        assert candidate.comparison.divergences[name].mean == drawn.mean
    assert candidate.comparison.acceptance_rate.mean == 1 - candidate.drawn["tv"].mean
    mine = candidate.comparison
    assert mine.top1_agreement.value == all_of.top1_agreement.value
    assert mine.labels is not None
    assert all_of.labels is not None
    for name in ("cross_entropy_p", "cross_entropy_q", "difference", "perplexity_ratio"):
        assert getattr(mine.labels, name).mean == pytest.approx(
            getattr(all_of.labels, name).mean, rel=1e-5, abs=1e-6
        )
    # Without the text it is the reference's.
    again = compare_models(base, path)
    assert (again.context, again.score) == (CONTEXT, "second-half")
    assert json.loads(report.dumps(again)) == json.loads(report.dumps(found))
    # Both directions are those of the reference as base, exchanged.
    swapped = means(compare_models(path, base))
    assert means(found)["kl_qp"] == swapped["kl_pq"]
    assert means(found)["kl_pq"] == swapped["kl_qp"]
    assert means(found)["js"] == swapped["js"]


def kl_of(p: Tensor, q: Tensor) -> dict[str, float]:
    """The four divergences of two rows of logits, at 50 digits."""
    with mpmath.workdps(50):
        sides = []
        for row in (p, q):
            weights = [mpmath.exp(x) for x in row.tolist()]
            sides.append([w / mpmath.fsum(weights) for w in weights])

        def kl(a: list[Any], b: list[Any]) -> Any:
            return mpmath.fsum(x * mpmath.log(x / y) for x, y in zip(a, b, strict=True))

        middle = [(x + y) / 2 for x, y in zip(*sides, strict=True)]
        of_p, of_q = sides
        return {
            "kl_pq": float(kl(of_p, of_q)),
            "kl_qp": float(kl(of_q, of_p)),
            "js": float((kl(of_p, middle) + kl(of_q, middle)) / 2),
            "tv": float(mpmath.fsum(abs(x - y) for x, y in zip(of_p, of_q, strict=True)) / 2),
        }


def paired(blocks: list[Any], pairing: Any, draws: int) -> Tensor:
    """What a pairing says of each divergence in each row, by itself, shape (rows, 4)."""
    windows = Windows(torch.tensor([0, 1]), torch.tensor([0, 2]), torch.tensor([False, True]))
    settings = PairingSettings(
        windows, Clusters(windows.clusters, ["window 0"]), Run(worst=1, bootstrap=0), seed=0
    )
    sides = [
        ReferenceSide(ModelInfo("r", "reference"), windows, SimpleNamespace(tail_draws=draws))  # type: ignore[arg-type]
        if isinstance(block, PartialRows)
        else DenseSide(ModelInfo("d", "rows"), windows, None)  # type: ignore[arg-type]
        for block in blocks
    ]
    found: list[list[float]] = []
    for row in range(len(blocks[0])):
        made = pairing(*sides, settings)
        made.add(made.measured(0, *(block[row : row + 1] for block in blocks)))
        divergences = made.result()[0].comparison.divergences
        found.append([divergences[name].maximum for name in NAMES])
    return torch.tensor(found, dtype=torch.float64)


def test_labels_and_top_classes_are_those_of_the_whole_rows() -> None:
    generator = torch.Generator().manual_seed(7)
    base, noise = 2 * torch.randn(2, 31, 12, generator=generator, dtype=torch.float64)
    candidate, labels = base + noise / 6, torch.arange(31) % 12
    base[30, 6] = candidate[30, 6] = -INF  # the label of the last row has no mass
    windows = Windows(torch.cat([labels[:1], labels]), torch.tensor([0, 32]), torch.arange(32) > 0)
    settings = PairingSettings(
        windows, Clusters(windows.clusters, ["window 0"]), Run(worst=0, bootstrap=0), seed=0
    )
    reference = ReferenceSide(ModelInfo("r", "reference"), windows, SimpleNamespace(tail_draws=3))  # type: ignore[arg-type]
    dense = DenseSide(ModelInfo("d", "rows"), windows, None)  # type: ignore[arg-type]
    uniforms = torch.rand(31, 3, generator=generator, dtype=torch.float64)
    log_p = base.log_softmax(-1)
    block = summarize_rows(base.clone(), labels, top=5, uniforms=uniforms)
    block = replace(  # without the rounding to float32
        block,
        top_log_probs=log_p.gather(-1, block.top_indices.long()),
        label_log_probs=log_p.gather(-1, labels[:, None])[:, 0],
    )
    table = ReferencePairing(reference, dense, settings).measured(0, block, candidate).table
    names = (*COLUMNS, *LABEL_COLUMNS)
    expected = measure(base, candidate, ("logits", "logits"), labels).table
    columns = names.index("confidence"), len(names)
    torch.testing.assert_close(
        table[:, slice(*columns)], expected[:, slice(*columns)], rtol=1e-12, atol=1e-14, equal_nan=True
    )
    assert table[30, names.index("cross_entropy_p")] == INF
    assert table[30, names.index("difference")] == 0


@pytest.mark.sweep
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("scale", [0.1, 1.5])
def test_estimates_of_a_candidate_are_unbiased_over_all_draws(name: str, scale: float) -> None:
    draw = torch.Generator().manual_seed(5)
    q = 1.5 * torch.randn(7, generator=draw, dtype=torch.float64)
    p = q + scale * torch.randn(7, generator=draw, dtype=torch.float64)
    log_q = q.log_softmax(-1)
    top = log_q.argsort(descending=True)[:2]
    tail = [each for each in range(7) if each not in top]
    mass = log_q[tail].logsumexp(0)
    outcomes = torch.tensor(list(itertools.product(tail, repeat=2)))  # 25: too few for a control variate
    probability = (log_q[outcomes] - mass).exp().prod(-1)
    count = len(outcomes)
    block = PartialRows(
        start=0,
        classes=7,
        labels=torch.ones(count, dtype=torch.int64),
        top_indices=top.int().expand(count, 2),
        top_log_probs=log_q[top].expand(count, 2),
        tail_indices=outcomes.int(),
        tail_log_probs=log_q[outcomes],
        tail_log_mass=mass.expand(count),
        label_log_probs=log_q[1].expand(count),
        support_sizes=torch.full((count,), 7, dtype=torch.int32),
    )
    values = paired([p.expand(count, -1), block], ReferencePairing, 2)[:, NAMES.index(name)]
    assert float(values.std()) > 0
    assert float(probability.sum()) == pytest.approx(1, abs=1e-12)
    assert float(probability @ values) == pytest.approx(kl_of(p, q)[name], rel=1e-9)


@pytest.mark.sweep
def test_the_mean_of_many_drawings_of_a_candidate_is_the_divergence(tmp_path: Path) -> None:
    p, q = tables(0.3)
    base, other = BytesModel("base", p), BytesModel("other", q)
    true = means(compare_models(base, other, WORDS, cut=Cut(context=CONTEXT), run=Run(bootstrap=0)))
    held: dict[str, list[float]] = {name: [] for name in NAMES}
    covered = dict.fromkeys(NAMES, 0)
    for seed in range(60):
        path = recorded(tmp_path / f"{seed}.klref", other, top=8, tail_draws=8, seed=seed)
        drawn = compare_models(base, path, run=Run(bootstrap=0)).candidates[0].drawn
        assert drawn is not None
        for name in NAMES:
            held[name].append(drawn[name].mean)
            low, high = drawn[name].interval
            covered[name] += low <= true[name] <= high
    for name, values in held.items():
        found = torch.tensor(values, dtype=torch.float64)
        assert abs(float(found.mean()) - true[name]) < 4 * float(found.std()) / math.sqrt(len(values))
        assert covered[name] >= 51  # of 60 at 95 %: fewer have probability 1e-4


def test_the_interval_is_open_where_draws_from_the_candidate_cannot_show_it(tmp_path: Path) -> None:
    _, q = tables()
    p = q.clone()
    # 2 % of P on a class to which Q gives 1e-9: it is nearly all of KL(P||Q), and never drawn.
    p[:, 255] = p.logsumexp(-1) + math.log(0.02)
    q[:, 255] = q.logsumexp(-1) + math.log(1e-9)
    base, other = BytesModel("base", p), BytesModel("other", q)
    true = means(compare_models(base, other, WORDS, cut=Cut(context=CONTEXT)))["kl_pq"]
    path = recorded(tmp_path / "q.klref", other)
    found = compare_models(base, path)
    candidate = found.candidates[0]
    assert candidate.drawn is not None
    kl = candidate.comparison.divergences["kl_pq"]
    assert kl.mean < 0.3 * true
    assert candidate.drawn["kl_pq"].interval[1] == INF
    assert kl.interval is not None
    assert kl.interval[1] == INF
    assert kl.reason == "heavy tail"
    assert candidate.is_open_above
    reverse = means(compare_models(base, other, WORDS, cut=Cut(context=CONTEXT)))["kl_qp"]
    assert candidate.comparison.divergences["kl_qp"].mean == pytest.approx(reverse, rel=0.1)
    # Next to a model that is known whole, its place on the scoreboard is unclear.
    worse = BytesModel("worse", p + 0.9 * torch.randn(256, 256, generator=torch.Generator().manual_seed(0)))
    both = compare_models(base, [path, worse])
    assert both.candidates[0].model.name == str(path)
    assert both.differences[0].interval is not None
    assert both.differences[0].interval[0] == -INF
    assert both.differences[0].reason == "not bounded"
    shown = " ".join(str(both).split())
    assert "; the first is" in shown
    assert "the order is clear" not in shown
    assert "a finite upper limit only if p/q has light tails" in shown


# --- two references


@pytest.mark.sweep
def test_two_references_bound_the_divergence(tmp_path: Path) -> None:
    p, q = tables(0.3)
    base, other = BytesModel("base", p), BytesModel("other", q)
    exact = compare_models(base, other, WORDS, cut=Cut(context=CONTEXT)).candidates[0].comparison
    paths = [
        recorded(tmp_path / "p.klref", base), recorded(tmp_path / "q.klref", other, top=24, seed=1)
    ]  # fmt: skip
    found = compare_models(*paths)
    candidate = found.candidates[0]
    assert candidate.known == "top classes"
    assert candidate.is_lower_bound
    assert candidate.certain is not None
    for name in NAMES:
        low, high = candidate.certain[name]
        true = exact.divergences[name].mean
        assert 0.2 * true < low <= true <= high
        mean = candidate.comparison.divergences[name]
        assert mean.mean == low
        assert mean.interval is not None
        assert mean.interval[0] <= low
        assert mean.interval[1] >= high
    assert candidate.certain["kl_pq"][1] == INF
    assert candidate.certain["tv"][1] < 0.9
    rate = candidate.comparison.acceptance_rate
    assert rate.interval is not None
    assert rate.interval[0] <= 1 - exact.divergences["tv"].mean <= rate.mean
    assert candidate.comparison.top1_agreement.value == exact.top1_agreement.value
    assert candidate.comparison.labels is not None
    assert exact.labels is not None
    assert candidate.comparison.labels.difference.mean == pytest.approx(
        exact.labels.difference.mean, abs=1e-6
    )
    shown = " ".join(str(found).split())
    assert "at least" in shown
    assert ">= " in shown
    assert "P and Q are references" in shown
    assert "is certainly at least" in html.render(found)
    assert "at least" in markdown.render(found)
    assert json.loads(report.dumps(found))["candidates"][0]["known"] == "top classes"


@pytest.mark.sweep
def test_the_order_is_told_only_where_it_is_certain(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # short names, which no line is broken in
    p, near = tables(0.1)
    far = tables(0.9)[1]
    of_p = recorded(Path("p.klref"), BytesModel("base", p))
    of_near = recorded(Path("near.klref"), BytesModel("near", near))
    of_far = recorded(Path("far.klref"), BytesModel("far", far), seed=1)
    found = compare_models(of_p, [BytesModel("near", near), of_far])
    assert found.differences[0].interval is not None
    assert found.differences[0].interval[0] > 0
    assert found.differences[0].interval[1] == INF
    shown = " ".join(str(found).split())
    assert "near is the closest of" in shown
    assert "far.klref has at least" in shown
    assert "the order is clear" in shown
    found = compare_models(of_p, [of_near, BytesModel("far", far)])
    shown = " ".join(str(found).split())
    assert "; the first is" in shown
    assert "near.klref is closer: only a lower bound of" in shown
    assert "the order is clear" not in shown
    found = compare_models(
        BytesModel("base", p), [BytesModel("near", near), of_near], WORDS, cut=Cut(context=CONTEXT)
    )
    shown = " ".join(str(found).split())
    assert shown.startswith("It is unclear which of 2 candidates is closest to base")
    assert "the order is unclear" in shown
    found = compare_models(of_p, [of_near, of_far])
    assert found.differences[0].interval is None
    assert found.differences[0].reason == "not bounded"


@pytest.mark.sweep
def test_two_references_know_more_than_their_top_classes() -> None:
    draw = torch.Generator().manual_seed(0)
    logits = [2 * torch.randn(30, 40, generator=draw, dtype=torch.float64) for _ in range(2)]
    labels = torch.arange(30) % 40
    uniforms = torch.rand(30, 12, generator=draw, dtype=torch.float64)

    def block(x: Tensor, draws: int) -> PartialRows:
        return summarize_rows(x.clone(), labels, top=3, uniforms=uniforms[:, :draws])

    few, many = (paired([block(x, draws) for x in logits], ListedPairing, draws)[:, 0] for draws in (0, 12))
    true = torch.tensor([kl_of(p, q)["kl_pq"] for p, q in zip(*logits, strict=True)])
    assert (few <= true).all()
    assert (many <= true).all()
    assert (many >= few - 1e-4).all()
    assert float(many.mean()) > 1.2 * float(few.mean())


def test_classes_that_only_one_of_two_references_can_have_make_the_divergence_infinite() -> None:
    p = torch.zeros(4, 7, dtype=torch.float64)
    q = p.clone()
    q[1:3, 5:] = -INF
    p[2, 6] = -INF
    uniforms = torch.full((4, 1), 0.1, dtype=torch.float64)
    blocks = [
        summarize_rows(x.clone(), torch.zeros(4, dtype=torch.int64), top=2, uniforms=uniforms) for x in (p, q)
    ]
    found = paired(blocks, ListedPairing, 1)
    assert found[:, 0].isinf().tolist() == [False, True, True, False]
    assert found[:, 1].isfinite().all()
    assert paired(blocks[::-1], ListedPairing, 1)[:, 1].isinf().tolist() == [False, True, True, False]


def test_a_reference_beside_itself_is_not_said_to_be_the_same(tmp_path: Path) -> None:
    path = recorded(tmp_path / "p.klref", BytesModel("base", tables()[0]))
    found = compare_models(path, path)
    assert means(found)["kl_pq"] == 0
    assert "at least 0" in str(found)
    assert "predicts the same" not in str(found)


@pytest.mark.sweep
def test_a_reference_without_draws_is_a_list(tmp_path: Path) -> None:
    p, q = tables(0.3)
    base, other = BytesModel("base", p), BytesModel("other", q)
    exact = means(compare_models(base, other, WORDS, cut=Cut(context=CONTEXT)))
    of_q = recorded(tmp_path / "q.klref", other, tail_draws=0)
    of_p = recorded(tmp_path / "p.klref", base, tail_draws=0)
    for found in (compare_models(base, of_q), compare_models(of_p, other), compare_models(of_p, of_q)):
        assert found.candidates[0].known == "top classes"
        for name, mean in means(found).items():
            assert 0.1 * exact[name] < mean <= exact[name]


# --- gates


def gated(*arguments: object) -> tuple[int, str]:
    found = CliRunner().invoke(kullback, [str(each) for each in ("compare", *arguments)])
    return found.exit_code, " ".join(found.output.split())


@pytest.mark.heavy
def test_no_gate_passes_on_a_lower_bound(tmp_path: Path) -> None:
    p, q = tables(0.3)
    paths = [recorded(tmp_path / f"{x}.klref", BytesModel(x, y)) for x, y in (("p", p), ("q", q))]
    candidate = compare_models(*paths).candidates[0]
    assert candidate.certain is not None
    low, high = candidate.certain["tv"]
    of_tv = candidate.comparison.divergences["tv"].interval
    rate = candidate.comparison.acceptance_rate.interval
    assert of_tv is not None
    assert rate is not None
    assert 0.02 < rate[0] < 1 - high
    for above, status in (
        ("mean=1000", 3),
        ("mean.value=1000", 3),
        ("kl_qp.p99.value=1000", 3),
        (f"mean={low * 0.01}", 1),
        (f"tv.mean.value={high * 1.001}", 0),  # the remedy
        (f"tv.mean.value={(low + high) / 2}", 3),
        (f"tv.mean.value={low * 0.99}", 1),
        (f"tv.mean={of_tv[1] + 0.01}", 0),
        (f"tv.mean={of_tv[1] - 0.01}", 3),
        (f"tv.mean={of_tv[0] - 0.01}", 1),
        ("ppl_ratio=1000", 0),
    ):
        assert gated(*paths, "--fail-above", above)[0] == status, above
    for below, status in (
        (f"tv.mean.value={low * 0.99}", 0),
        (f"tv.mean.value={high * 1.01}", 1),
        (f"acceptance.value={1 - low - 0.01}", 3),
        (f"acceptance.value={1 - high - 0.01}", 0),
        (f"acceptance={rate[0] - 0.01}", 0),
        (f"acceptance={rate[0] + 0.01}", 3),
        (f"acceptance={rate[1] + 0.01}", 1),
        ("top1=0.01", 0),
    ):
        assert gated(*paths, "--fail-below", below)[0] == status, below
    said = gated(*paths, "--fail-above", "mean.value=1000")[1]
    assert "its bounds, " in said
    assert "to inf, contains the limit 1000" in said


# --- what does not go together


def test_references_of_other_texts_tokens_and_classes_are_refused(tmp_path: Path) -> None:
    p, q = tables()
    base, other = BytesModel("base", p), BytesModel("other", q)
    path = recorded(tmp_path / "q.klref", other)
    of_base = recorded(tmp_path / "p.klref", base)
    shorter = recorded(tmp_path / "short.klref", base, words=WORDS[:300])
    with pytest.raises(
        FileError, match=r"candidate = .*q.klref: wanted a reference of this text; .*leave the text out"
    ):
        compare_models(base, path, WORDS[1:], cut=Cut(context=CONTEXT))
    with refused(FileError, wanted="a reference of this text$", got=r"^one of other tokens \(context 48"):
        compare_models(base, path, WORDS, cut=Cut(context=32))
    assert compare_models(base, path).windows  # the remedy
    with pytest.raises(FileError, match=r"candidate = .*short.klref.*record both of one text"):
        compare_models(of_base, shorter)
    with pytest.raises(FileError, match=r"candidate = .*short.klref.*record both of one text"):
        compare_models(base, [path, shorter])
    with refused(ArgumentValueError, instead="^texts=None$"):
        compare_models(of_base, path, WORDS)
    with refused(ArgumentValueError, instead="llama_cpp=False"):
        compare_models(base, path, run=Run(llama_cpp=True))

    class Reversed(BytesModel):
        vocabulary = Vocabulary([Token(bytes([255 - byte])) for byte in range(256)])

    with refused(ModelError, wanted="the tokenizer that .*q.klref was recorded with"):
        compare_models(Reversed("reversed", p), path)
    with refused(ModelError, wanted="the tokenizer that .*q.klref was recorded with"):
        compare_models(Reversed("reversed", p), path, WORDS, cut=Cut(context=CONTEXT))
    reversed_ = recorded(tmp_path / "reversed.klref", Reversed("reversed", p))
    with pytest.raises(
        ModelError, match=r"reversed.klref: wanted the tokenizer that .*p.klref was recorded with"
    ):
        compare_models(of_base, reversed_)
    with Reference(path) as reference:
        windows = reference.windows
    with ReferenceWriter(tmp_path / "wide.klref", windows, top=4, tail_draws=2) as writer:
        writer.add(torch.zeros(windows.rows, 300))
    with pytest.raises(ModelError, match=r"wide.klref: wanted 256 classes, as base has; got 300"):
        compare_models(base, tmp_path / "wide.klref")


def test_a_file_of_logits_is_compared_with_a_reference(tmp_path: Path) -> None:
    p, q = tables(0.3)
    base, other = BytesModel("base", p), BytesModel("other", q)
    path = recorded(tmp_path / "q.klref", other)
    with Reference(path) as reference:
        rows = torch.cat(list(base.logits(reference.windows, 64)))
    import numpy as np

    np.save(tmp_path / "p.npy", rows.numpy())
    found = compare_models(tmp_path / "p.npy", path, loading=Loading(representation="logits"))
    assert means(found) == pytest.approx(means(compare_models(base, path)), rel=1e-9)
    source: RowSource
    with open_rows(tmp_path / "p.npy", representation="logits") as source:
        assert means(compare_models(source, path)) == means(found)


class _StopError(Exception):
    pass


def test_a_stopped_comparison_with_a_candidate_reference_goes_on(tmp_path: Path) -> None:
    p, q = tables()
    base = BytesModel("base", p)
    path = recorded(tmp_path / "q.klref", BytesModel("other", q))

    def stop(done: int, total: int | None) -> None:
        if total is not None and done > total / 2:
            raise _StopError

    state = tmp_path / "state"
    with pytest.raises(_StopError):
        compare_models(base, path, run=Run(resume=state, progress=stop))
    again = compare_models(base, path, run=Run(resume=state))
    assert report.dumps(again) == report.dumps(compare_models(base, path))


@pytest.mark.sweep
def test_the_command_needs_no_text_beside_a_reference(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    path = tmp_path / "int8.klref"
    record_reference(folders.int8(), text()[:3000], path, cut=Cut(context=CONTEXT))
    page = tmp_path / "report.json"
    code, said = gated(folders.base(), path, folders.bf16(), "--json", page, "--noise-floor")
    assert code == 0, said
    held = {Path(each["model"]["name"]).name: each for each in json.loads(page.read_text())["candidates"]}
    assert held["int8.klref"]["known"] == "reference"
    assert held["bf16"]["known"] == "all classes"
    exact = means(compare_models(folders.base(), folders.int8(), text()[:3000], cut=Cut(context=CONTEXT)))
    assert held["int8.klref"]["drawn"]["kl_pq"]["mean"] == pytest.approx(exact["kl_pq"], rel=0.05)
    one = compare_models(folders.base(), path, text()[:3000], cut=Cut(context=CONTEXT), one_at_a_time=True)
    assert one.candidates[0].known == "top classes"
    assert means(one)["kl_pq"] <= exact["kl_pq"]
