"""`compare_models` with a goal: what is read, the intervals, resumed runs, files, and refusals with their remedies."""

from __future__ import annotations

import dataclasses
import functools
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from kullback.errors import ArgumentValueError
from kullback.io import RowStream, Windows
from kullback.models import Cut, Loading, ModelComparison, Run, compare_models, record_reference
from kullback.report import json as report
from kullback.report.document import Table
from kullback.report.subjects import document
from kullback.report.subjects.models import until_sure
from tests.models.bytes_model import BYTES, BytesModel
from tests.models.tiny import text
from tests.refusals import refused
from tests.report.media import brief

CUT = Cut(context=16)
WORDS = text().encode("ascii", "ignore").decode()[:3200]  # 200 windows


class Counted(BytesModel):
    """A model that notes the first token of each window that it reads, and stops at the `most`-th window."""

    def __init__(self, name: str, table: Tensor, most: int = 10**6) -> None:
        super().__init__(name, table)
        self.read: list[bytes] = []
        self.most = most

    def logits(self, windows: Windows, rows: int, first: int = 0) -> Iterator[Tensor]:
        for number in range(first, len(windows)):
            if len(self.read) == self.most:
                raise KeyboardInterrupt
            self.read.append(bytes(windows.window(number)[0].tolist()))
            yield from super().logits(windows.in_order(torch.tensor([number])), rows)


def table(noise: float, seed: int = 1) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    base = torch.randn(BYTES, BYTES, generator=generator, dtype=torch.float64)
    return base + noise * torch.randn(
        BYTES, BYTES, generator=generator.manual_seed(seed), dtype=torch.float64
    )


def models(*noises: float, most: int = 10**6) -> list[Counted]:
    return [
        Counted(f"noise {noise}", table(noise, place), most) for place, noise in enumerate((0.0, *noises))
    ]


def compared(sides: list[Counted], goal: str | None, **settings: Any) -> ModelComparison:
    base, *others = sides
    cut, words = settings.pop("cut", CUT), settings.pop("words", WORDS)
    return compare_models(base, others, words, cut=cut, run=Run(until_sure=goal, **settings))


@functools.cache
def whole_run() -> tuple[list[Counted], ModelComparison]:
    """The models of a run that is not stopped, which have noted their windows, and its result."""
    sides = models(0.02, 0.3)
    return sides, compared(sides, "width=60%")


def exact(noises: tuple[float, ...]) -> dict[str, float]:
    """The mean KL of each candidate over the whole text."""
    result = compared(models(*noises), None)
    return {each.model.name: each.comparison.divergences["kl_pq"].mean for each in result.candidates}


def test_a_decided_candidate_is_read_no_further_and_its_interval_holds_the_exact_mean() -> None:
    noises = (0.02, 0.3)
    sides, truth = models(*noises), exact(noises)
    result = compared(sides, "mean=0.001")
    run = result.until_sure
    assert run is not None
    assert run.is_decided
    assert [each.outcome for each in run.candidates.values()] == ["below", "above"]
    units = [run.candidates[f"noise {noise}"].units for noise in noises]
    assert units[1] < units[0] < 100
    assert [len(side.read) for side in sides] == [units[0], *units]
    assert run.read == units[0] == result.windows
    assert run.units == 200
    for candidate, count in zip(result.candidates, units, strict=True):
        kl = candidate.comparison.divergences["kl_pq"]
        assert candidate.comparison.rows == 7 * count
        assert kl.interval is not None
        assert kl.interval[0] < truth[candidate.model.name] < kl.interval[1]
    # All read the same windows, no window twice, and not the first ones.
    assert sides[0].read == sides[1].read
    assert sides[2].read == sides[0].read[: units[1]]
    assert len({*sides[0].read}) == units[0]
    in_order = [WORDS[first : first + 16].encode() for first in range(0, 3200, 16)]
    places = [in_order.index(window) for window in sides[0].read]
    assert places != sorted(places)
    assert max(places) > 150
    # The candidates were read to different windows, over which the base has different perplexities.
    scoreboard = document(result).blocks[0]
    assert isinstance(scoreboard, Table)
    assert [bool(row[3]) for row in scoreboard.rows] == [False, True, True]
    # The windows of the result are those that were read, in this order.
    assert [bytes(result.text.window(place)[0].tolist()) for place in range(units[0])] == sides[0].read


def test_a_goal_that_is_never_reached_gives_the_numbers_of_a_plain_run() -> None:
    few = WORDS[: 50 * 16]
    result, plain = (compared(models(0.02, 0.02001), goal, words=few) for goal in ("width=1e-12", None))
    assert result.until_sure is not None
    assert result.until_sure.read == result.windows == 50
    for mine, other in zip(result.candidates, plain.candidates, strict=True):
        assert mine.model.name == other.model.name
        for name, summary in mine.comparison.divergences.items():
            value = other.comparison.divergences[name]
            assert summary.mean == pytest.approx(value.mean, rel=1e-12)
            assert summary.interval == pytest.approx((value.mean, value.mean), rel=1e-12)
        assert mine.comparison.top1_agreement.value == other.comparison.top1_agreement.value
        assert mine.comparison.labels is not None
        assert other.comparison.labels is not None
        mine_p, other_p = (each.comparison.labels.cross_entropy_p for each in (mine, other))
        assert mine_p.mean == pytest.approx(other_p.mean, rel=1e-12)
        assert mine_p.interval is None  # an interval for one look
    assert result.differences[0].mean == pytest.approx(plain.differences[0].mean, rel=1e-9)


def test_an_order_is_found_and_the_seed_chooses_the_windows() -> None:
    sides = models(0.1, 0.02, 0.03)
    result = compared(sides, "order")
    assert result.until_sure is not None
    assert result.until_sure.is_decided
    assert [each.model.name for each in result.candidates] == ["noise 0.02", "noise 0.03", "noise 0.1"]
    for difference in result.differences:
        assert difference.interval is not None
        assert difference.interval[0] > 0
    assert len(sides[1].read) < len(sides[2].read) == len(sides[3].read) == result.windows < 150
    again, other = models(0.1, 0.02, 0.03), models(0.1, 0.02, 0.03)
    compared(again, "order")
    few = Cut(context=16, most_windows=10)
    compared(other, "order", generator=torch.Generator().manual_seed(5), cut=few)
    assert again[0].read == sides[0].read
    assert other[0].read[:5] != sides[0].read[:5]


@pytest.mark.parametrize("goal", ["mean=0.001", "width=10%", "js.mean=0.05", "top1=0.2"])
def test_an_infinite_window_is_infinite_for_every_goal(goal: str) -> None:
    infinite = table(0.02)
    infinite[:, ord(" ")] = -torch.inf  # every window may have a space
    result = compared([models()[0], Counted("infinite", infinite)], goal)
    assert result.until_sure is not None
    assert result.until_sure.is_decided
    [candidate] = result.candidates
    assert candidate.comparison.divergences["kl_pq"].interval == (torch.inf, torch.inf)
    first, sentence = until_sure(result)
    assert "(100 %)" not in first
    assert sentence.endswith("1 window." if goal.startswith(("mean", "width")) else "windows.")


def test_documents_are_read_whole_in_random_order() -> None:
    documents = [WORDS[first : first + 50] for first in range(0, 3000, 50)]
    sides = models(0.02)
    result = compared(sides, "mean=0.001", words=documents)
    assert result.until_sure is not None
    assert result.until_sure.unit == "document"
    assert result.until_sure.units == 60
    read, count = sides[0].read, result.until_sure.read
    assert count < 60
    assert len(read) == 3 * count  # of 50 tokens, three windows of 16; two tokens are too few for another
    text_read = b"".join(read).decode()
    assert {text_read[first : first + 48] for first in range(0, len(text_read), 48)} <= {
        each[:48] for each in documents
    }
    limited = models(0.02)
    compared(limited, "width=1e-12", words=documents, cut=Cut(context=16, most_windows=7))
    assert len(limited[0].read) == 9  # the third document is read to its end


def test_a_resumed_run_reads_more_windows_and_none_twice(tmp_path: Path) -> None:
    state = tmp_path / "run.state"
    whole, expected = whole_run()
    total = len(whole[0].read)
    assert 30 < total < 200
    read: list[bytes] = []
    for most in (15, 30, None):
        sides = models(0.02, 0.3)
        cut = Cut(context=16, most_windows=most)
        result = compared(sides, "width=60%", resume=state, cut=cut)
        read += sides[0].read
        assert result.until_sure is not None
        assert result.until_sure.is_decided is (most is None)
        assert result.until_sure.read == (most or total)
        assert state.exists() is (most is not None)
    assert read == whole[0].read
    assert report.dumps(result) == report.dumps(expected)


def test_a_run_that_was_stopped_continues_and_less_text_than_before_is_read_from_the_file(
    tmp_path: Path,
) -> None:
    state = tmp_path / "run.state"
    _, expected = whole_run()
    with pytest.raises(KeyboardInterrupt):
        compared(models(0.02, 0.3, most=20), "width=60%", resume=state)
    fewer = models(0.02, 0.3)
    short = compared(fewer, "width=60%", resume=state, cut=Cut(context=16, most_windows=12))
    assert short.windows == 12
    assert fewer[0].read == []
    rest = models(0.02, 0.3)
    assert report.dumps(compared(rest, "width=60%", resume=state)) == report.dumps(expected)
    assert len(rest[0].read) == expected.windows - 20


def test_another_goal_is_another_run(tmp_path: Path) -> None:
    state = tmp_path / "run.state"
    few = Cut(context=16, most_windows=10)
    compared(models(0.02), "width=1%", resume=state, cut=few)
    with refused(argument="resume", got="another comparison"):
        compared(models(0.02), "width=2%", resume=state, cut=few)


def test_a_file_of_predictions_is_read_in_the_same_random_order(tmp_path: Path) -> None:
    sides = models(0.02)
    expected = compared(sides, "mean=0.001")
    tokens = torch.tensor(list(WORDS.encode())).view(200, 16)
    rows = table(0.02, 1)[tokens[:, 8:15]].reshape(-1, BYTES)
    np.save(tmp_path / "q.npy", rows.numpy())
    result = compare_models(
        BytesModel("base", table(0.0, 0)),
        tmp_path / "q.npy",
        WORDS,
        cut=CUT,
        loading=Loading(representation="logits"),
        run=Run(until_sure="mean=0.001"),
    )
    mine, other = (each.candidates[0].comparison.divergences["kl_pq"] for each in (result, expected))
    assert mine == other
    assert result.windows == expected.windows < 200


class Stream(RowStream):
    """Rows of 30 windows of five tokens, of which window 3 has no scored token."""

    classes, rows = BYTES, 29 * 4

    def __init__(self, name: str, table: Tensor) -> None:
        scored = torch.tensor([False, True, True, True, True]).repeat(30)
        scored[15:20] = False
        tokens = torch.tensor(list(WORDS[:150].encode()))
        self.name, self.windows = name, Windows(tokens, torch.arange(31) * 5, scored)
        self.table, self.firsts = table, list[int]()

    def blocks(self, *, rows: int, first: int = 0) -> Iterator[Tensor]:
        self.firsts.append(first)
        assert self.windows is not None
        before = self.windows.tokens[self.windows.scored.nonzero().squeeze(-1) - 1]
        yield from self.table[before[first:]].split(rows)


def test_streams_are_read_window_by_window_and_windows_without_a_row_are_left_out() -> None:
    sides = [Stream(f"noise {noise}", table(noise)) for noise in (0.0, 0.02)]
    result, plain = (compare_models(*sides, run=Run(until_sure=goal)) for goal in ("width=1e-12", None))
    mine, other = (each.candidates[0].comparison for each in (result, plain))
    assert mine.rows == other.rows == 116
    assert mine.divergences["kl_pq"].mean == pytest.approx(other.divergences["kl_pq"].mean, rel=1e-12)
    assert result.windows == 29
    assert sorted(sides[1].firsts[:29]) == list(range(0, 116, 4))
    assert sides[0].firsts[:29] == sides[1].firsts[:29] != sorted(sides[0].firsts[:29])


def test_the_json_has_what_was_read() -> None:
    held = json.loads(report.dumps(compared(models(0.02, 0.3), "mean=0.001")))["until_sure"]
    assert held["confidence"] == 0.95
    assert held["goal"] == "mean=0.001"
    assert held["decided"] is True
    assert held["read"] == held["candidates"]["noise 0.02"]["units"] < held["units"] == 200
    assert held["candidates"]["noise 0.02"]["cap"] == pytest.approx(0.01)
    assert 0 < held["candidates"]["noise 0.02"]["above"] < 0.2
    often = json.loads(report.dumps(compared(models(0.02), "mean=0.001", runs=1000)))
    assert often["confidence"] == often["until_sure"]["confidence"] == pytest.approx(1 - 5e-5, abs=1e-12)
    assert often["until_sure"]["read"] > held["read"]
    assert json.loads(report.dumps(compared(models(0.02), None, words=WORDS[:320])))["until_sure"] is None


def test_disjoint_intervals_of_a_run_until_a_limit_make_the_order_clear() -> None:
    result = compared(models(0.02, 0.3), "mean=0.01")
    near, far = (each.comparison.divergences["kl_pq"] for each in result.candidates)
    assert near.ends[1] < far.ends[0]
    assert result.differences[0].ends[0] < 0
    text = " ".join(str(result).split())
    assert "noise 0.02 is the closest of 2 candidates" in text
    assert "the order is clear, because their intervals are disjoint." in text
    assert "unclear" not in brief(result)
    assert "closest first" in brief(result)
    near_limit = compared(
        models(0.02, 0.1), "mean=0.01"
    )  # both are below the limit, and their intervals overlap
    near, far = (each.comparison.divergences["kl_pq"] for each in near_limit.candidates)
    assert near.ends[1] > far.ends[0]
    assert "the order is unclear" in " ".join(str(near_limit).split())
    assert "first two unclear" in brief(near_limit)
    plain = dataclasses.replace(result, until_sure=None)  # intervals of other runs do not hold together
    assert "first two unclear" in brief(plain)


def test_the_page_says_what_was_spared_and_what_the_upper_end_assumes() -> None:
    words = " ".join(str(compared(models(0.02, 0.3), "mean=0.001")).split())
    assert "mean=0.001: decided after" in words
    assert "were spared" in words
    assert "noise 0.3: above the limit after" in words
    assert (
        "assumes that no unread window has a mean above 0.01000. No window that was read has such a mean"
        in words
    )
    assert re.search(r"; at most [\d.]+ % of all windows may have one\.", words)
    assert "holds at every look" in words
    assert "its windows are independent" not in words
    unsure = " ".join(str(compared(models(0.02), "width=1%", cut=Cut(context=16, most_windows=9))).split())
    assert "width=1%: not decided after 9 of 200 windows" in unsure
    assert "--windows" in unsure


def test_settings_that_do_not_fit_a_goal_are_refused_with_a_remedy(tmp_path: Path) -> None:
    base, candidate = models(0.02)
    words = WORDS[: 30 * 16]
    unfit = {"call": "Run", "argument": "until_sure"}
    with refused(ArgumentValueError, **unfit, got="one candidate", instead="'mean=0.01'"):
        compare_models(base, candidate, words, cut=CUT, run=Run(until_sure="order"))
    with refused(ArgumentValueError, **unfit, got="one_at_a_time", instead="one_at_a_time=False"):
        compare_models(base, candidate, words, cut=CUT, run=Run(until_sure="mean=0.01"), one_at_a_time=True)
    with refused(ArgumentValueError, **unfit, got="noise_floor", instead="noise_floor=None"):
        compare_models(base, candidate, words, cut=CUT, run=Run(until_sure="mean=0.01"), noise_floor=True)
    with refused(ArgumentValueError, **unfit, got="llama_cpp", instead="llama_cpp=False"):
        compare_models(base, candidate, words, cut=CUT, run=Run(until_sure="mean=0.01", llama_cpp=True))
    reference = tmp_path / "base.klref"
    record_reference(base, words, reference, cut=CUT)
    with refused(ArgumentValueError, **unfit, got="some classes only", instead="until_sure=None"):
        compare_models(reference, candidate, words, cut=CUT, run=Run(until_sure="mean=0.01"))
    compare_models(reference, candidate, words, cut=CUT)
    np.savetxt(tmp_path / "q.csv", np.zeros((30 * 7, BYTES)), delimiter=",")
    with refused(ArgumentValueError, **unfit, got="from its beginning", wanted=r"\.npy"):
        compare_models(base, tmp_path / "q.csv", words, cut=CUT, loading=Loading(representation="logits"),
                       run=Run(until_sure="mean=0.01"))  # fmt: skip
    compare_models(base, candidate, words, cut=CUT, run=Run(until_sure="mean=0.01"), noise_floor=None)
