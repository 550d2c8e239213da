"""References, servers and stored top classes as sides: what is said must hold of the whole distributions."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from kullback.errors import ArgumentValueError, FileError, ModelError
from kullback.io import Reference, open_top_k
from kullback.models import Cut, Loading, ModelComparison, Run, compare_models, record_reference
from kullback.models.partial import _table
from kullback.partial_rows import PartialRows
from kullback.predictions.checkpoint import KeptState
from kullback.report import html, json as report, terminal
from tests.models import folders
from tests.models.test_server import served
from tests.models.tiny import text
from tests.refusals import refused

pytest.importorskip("transformers")

CONTEXT = 48
NAMES = ("kl_pq", "kl_qp", "js", "tv")


def words(count: int = 6000) -> str:
    return text()[:count]


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("recorded") / "base.klref"
    assert (
        record_reference(folders.base(), words(), path, top=32, tail_draws=16, cut=Cut(context=CONTEXT)) == []
    )
    return path


@pytest.fixture(scope="module")
def whole() -> ModelComparison:
    """The same, from all logits."""
    return compare_models(folders.base(), [folders.int8(), folders.bf16()], words(), cut=Cut(context=CONTEXT))


@pytest.mark.sweep
def test_what_a_reference_says_holds_of_all_classes(recorded: Path, whole: ModelComparison) -> None:
    found = compare_models(recorded, [folders.int8(), folders.bf16()])
    assert (found.context, found.score) == (CONTEXT, "second-half")
    for candidate, exact in zip(found.candidates, whole.candidates, strict=True):
        assert candidate.model.name == exact.model.name
        assert candidate.known == "reference"
        assert candidate.certain is not None
        assert candidate.drawn is not None
        for name in NAMES:
            true = exact.comparison.divergences[name].mean
            low, high = candidate.certain[name]
            assert low <= true * (1 + 1e-6)
            assert true <= high * (1 + 1e-6)
            drawn = candidate.drawn[name]
            # Five standard errors, and the rounding of what is stored.
            assert abs(drawn.mean - true) < 5 * drawn.standard_error + 1e-6 * true
            assert candidate.comparison.divergences[name].mean == drawn.mean
        mine, theirs = candidate.comparison, exact.comparison
        assert mine.rows == theirs.rows
        assert mine.top1_agreement.value == theirs.top1_agreement.value
        assert [each.value for each in mine.top_k_agreement] == [
            each.value for each in theirs.top_k_agreement
        ]
        assert mine.labels is not None
        assert theirs.labels is not None
        assert mine.labels.cross_entropy_q.mean == pytest.approx(theirs.labels.cross_entropy_q.mean, rel=1e-6)
        assert mine.labels.perplexity_difference.mean == pytest.approx(
            theirs.labels.perplexity_difference.mean, rel=1e-3
        )
        accuracy = [
            [each.value for each in side.labels.top_k_accuracy_q] for side in (mine, theirs) if side.labels
        ]
        assert accuracy[0] == accuracy[1]


@pytest.mark.heavy
def test_the_mean_of_many_drawings_is_the_divergence(tmp_path: Path, whole: ModelComparison) -> None:
    true = whole[str(folders.int8())].comparison.divergences["kl_pq"].mean
    means, covered = [], 0
    for seed in range(40):
        path = tmp_path / f"{seed}.klref"
        record_reference(
            folders.base(),
            words(),
            path,
            top=8,
            tail_draws=8,
            cut=Cut(context=CONTEXT, most_windows=20),
            seed=seed,
        )
        drawn = compare_models(path, folders.int8(), run=Run(bootstrap=0)).candidates[0].drawn
        assert drawn is not None
        means.append(drawn["kl_pq"].mean)
        if seed == 0:
            true = (
                compare_models(
                    folders.base(),
                    folders.int8(),
                    words(),
                    cut=Cut(context=CONTEXT, most_windows=20),
                    run=Run(bootstrap=0),
                )
                .candidates[0]
                .comparison.divergences["kl_pq"]
                .mean
            )
        covered += drawn["kl_pq"].interval[0] <= true <= drawn["kl_pq"].interval[1]
    held = torch.tensor(means, dtype=torch.float64)
    assert abs(float(held.mean()) - true) < 4 * float(held.std()) / math.sqrt(len(means))
    assert covered >= 33  # of 40 at 95 %: fewer have probability 1e-4


@pytest.mark.sweep
def test_a_reference_is_of_one_tokenizer_and_one_text(recorded: Path) -> None:
    with refused(ModelError, wanted=r"the tokenizer that .*base.klref was recorded with"):
        compare_models(recorded, folders.other_tokenizer())
    with refused(ModelError, wanted="512 classes"):
        compare_models(recorded, folders.padded())
    with refused(FileError, wanted="a reference of this text"):
        compare_models(recorded, folders.int8(), words(5000), cut=Cut(context=CONTEXT))
    same = compare_models(recorded, folders.int8(), words(), cut=Cut(context=CONTEXT))
    assert same.windows == compare_models(recorded, folders.int8()).windows


@pytest.mark.sweep
def test_one_model_at_a_time_says_the_same(whole: ModelComparison) -> None:
    found = compare_models(
        folders.base(),
        [folders.int8(), folders.bf16()],
        words(),
        cut=Cut(context=CONTEXT),
        one_at_a_time=True,
    )
    assert found.base.name == str(folders.base())
    for candidate, exact in zip(found.candidates, whole.candidates, strict=True):
        true = exact.comparison.divergences["kl_pq"].mean
        assert candidate.comparison.divergences["kl_pq"].mean == pytest.approx(true, rel=0.02)
    assert found.differences[0].mean == pytest.approx(whole.differences[0].mean, rel=0.05)
    for path in ("a.state", KeptState(Path("a.state"))):
        with refused(ArgumentValueError, got=r"^a\.state$", instead="^one_at_a_time=False$"):
            compare_models(folders.base(), folders.int8(), words(), one_at_a_time=True, run=Run(resume=path))


class _StopError(Exception):
    pass


@pytest.mark.sweep
def test_a_stopped_comparison_with_a_reference_goes_on(recorded: Path, tmp_path: Path) -> None:
    def stop(done: int, total: int | None) -> None:
        if total is not None and done > total / 2:
            raise _StopError

    state = tmp_path / "state"
    with pytest.raises(_StopError):
        compare_models(recorded, folders.int8(), run=Run(resume=state, progress=stop))
    again = compare_models(recorded, folders.int8(), run=Run(resume=state))
    assert json.loads(report.dumps(again)) == json.loads(
        report.dumps(compare_models(recorded, folders.int8()))
    )


def test_a_reference_is_altered_and_refused(recorded: Path, tmp_path: Path) -> None:
    cut = tmp_path / "cut.klref"
    cut.write_bytes(recorded.read_bytes()[:-100])
    with pytest.raises(FileError, match=r"base = .*cut.klref"):
        compare_models(cut, folders.int8())


@pytest.mark.heavy
@pytest.mark.parametrize("speaks", ["vllm", "sglang"])
def test_a_server_is_bounded(speaks: str, whole: ModelComparison) -> None:
    with served(folders.int8()) as address:
        found = compare_models(
            folders.base(),
            f"{address}/{speaks}",
            words(),
            cut=Cut(context=CONTEXT, most_windows=12),
            loading=Loading(server_top=20),
        )
    exact = compare_models(folders.base(), folders.int8(), words(), cut=Cut(context=CONTEXT, most_windows=12))
    candidate, true = found.candidates[0], exact.candidates[0].comparison
    assert candidate.known == "top classes"
    assert candidate.certain is not None
    for name in NAMES:
        low, high = candidate.certain[name]
        assert low == candidate.comparison.divergences[name].mean
        assert low <= true.divergences[name].mean * (1 + 1e-6)
        assert true.divergences[name].mean <= high * (1 + 1e-6)
    assert candidate.certain["kl_pq"][1] == math.inf
    assert candidate.certain["kl_pq"][0] > 0.2 * true.divergences["kl_pq"].mean
    assert candidate.comparison.top1_agreement.value == true.top1_agreement.value
    assert candidate.comparison.labels is not None
    assert true.labels is not None
    assert candidate.comparison.labels.cross_entropy_q.mean == pytest.approx(
        true.labels.cross_entropy_q.mean, rel=1e-4
    )
    shown = str(found)
    assert ">= " in shown
    assert "at least" in shown
    assert "certainly at least" in html.render(found)


@pytest.mark.heavy
def test_a_server_can_be_compared_with_a_reference_and_its_text(recorded: Path) -> None:
    with served(folders.int8()) as address:
        with refused(ArgumentValueError, wanted="the text of the reference"):
            compare_models(recorded, f"{address}/vllm")
        found = compare_models(recorded, f"{address}/vllm", words(), cut=Cut(context=CONTEXT))
    exact = (
        compare_models(folders.base(), folders.int8(), words(), cut=Cut(context=CONTEXT))
        .candidates[0]
        .comparison
    )
    assert found.candidates[0].certain is not None
    low, high = found.candidates[0].certain["tv"]
    assert low <= exact.divergences["tv"].mean <= high


@pytest.mark.sweep
def test_stored_top_classes_are_bounded(tmp_path: Path) -> None:
    windows = compare_models(folders.base(), folders.int8(), words(), cut=Cut(context=CONTEXT)).text
    from kullback.models import open_model

    rows = torch.cat(list(open_model(folders.int8()).logits(windows, 64))).log_softmax(-1)
    values, indices = rows.topk(16)
    path = tmp_path / "top.safetensors"
    save_file(
        {"indices": indices.contiguous(), "log_probs": values.contiguous(), "labels": windows.labels}, path
    )
    with open_top_k(path, classes=512) as source:
        found = compare_models(folders.base(), source, words(), cut=Cut(context=CONTEXT))
    exact = (
        compare_models(folders.base(), folders.int8(), words(), cut=Cut(context=CONTEXT))
        .candidates[0]
        .comparison
    )
    assert found.candidates[0].certain is not None
    for name in NAMES:
        low, high = found.candidates[0].certain[name]
        assert low <= exact.divergences[name].mean <= high
    held = load_file(path)
    held["labels"] = held["labels"].flip(0).contiguous()
    save_file(held, path)
    with open_top_k(path, classes=512) as source, refused(FileError, wanted="scored tokens of the text"):
        compare_models(folders.base(), source, words(), cut=Cut(context=CONTEXT))


def test_top_classes_of_unknown_lists_do_not_differ() -> None:
    def rows(*listed: list[int]) -> PartialRows:
        top = torch.tensor(listed)
        log_probs = torch.where(top >= 0, -1.0 - torch.arange(top.shape[1]), -torch.inf).double()
        rest = (1 - log_probs.exp().sum(-1)).log()
        return PartialRows(
            top, log_probs, rest, labels=labels, label_log_probs=torch.full((len(top),), -9.0).double(),
            classes=9, is_ranked=True,
        )  # fmt: skip

    labels = torch.tensor([8, 8, 8, 8])
    p = rows([0, 1, 2], [0, 1, 2], [0, 1, 2], [0, 1, 2])
    q = rows([-1, -1, -1], [0, -1, -1], [1, -1, -1], [0, 1, 2])
    agreement = _table(p, q, labels, [torch.zeros(4, dtype=torch.float64)] * 4)[:, 5:8]
    nan = math.nan
    expected = torch.tensor([[nan, nan, nan], [1, nan, nan], [0, 0, 0], [1, 1, 1]], dtype=torch.float64)
    torch.testing.assert_close(agreement, expected, equal_nan=True)


def test_the_reference_tells_its_model(recorded: Path) -> None:
    with Reference(recorded) as reference:
        held: Any = reference.metadata
    assert held["model"] == str(folders.base())
    assert (held["context"], held["score"], held["dtype"]) == (str(CONTEXT), "second-half", "float32")
    assert len(held["model_hash"]) == len(held["tokenizer"]) == 64


@pytest.mark.sweep
def test_reports_of_references_say_what_is_drawn(recorded: Path) -> None:
    found = compare_models(recorded, folders.int8())
    assert "95% CI of the sampling" in str(found).replace("\n", " ")
    page = html.render(found)
    assert "the sampling noise" in page
    held = json.loads(report.dumps(found))["candidates"][0]
    assert held["known"] == "reference"
    assert held["drawn"]["kl_pq"]["bounds"][1] == "Infinity"
    assert terminal is not None
