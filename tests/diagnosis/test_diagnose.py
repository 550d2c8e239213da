"""Every pitfall of F.kl_div is found, correct calls are left alone, and the code that is suggested is right."""

from __future__ import annotations

import ast
import json
import math
from collections.abc import Callable
from dataclasses import FrozenInstanceError, dataclass, field
from typing import Any

import mpmath
import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings, strategies as st
from torch import Tensor
from torch.nn import functional as F

import kullback
from kullback import Counts, Logits, LogProbs, Probs, diagnose, kl_divergence
from kullback.diagnosis.checks import _GROUPS
from kullback.errors import ArgumentTypeError, ArgumentValueError, KullbackError
from kullback.kernels import row_operation
from tests.refusals import refused

mpmath.mp.dps = 50

Rows = list[list[mpmath.mpf]]


def rows_of(x: Tensor) -> list[list[mpmath.mpf]]:
    return [[mpmath.mpf(v) for v in row] for row in x.double().reshape(-1, x.shape[-1]).tolist()]


def normalized(x: Tensor) -> Rows:
    """Weights as probabilities."""
    return [[v / mpmath.fsum(row) for v in row] for row in rows_of(x)]


def softmax(x: Tensor) -> Rows:
    return normalized_exp(rows_of(x))


def normalized_exp(rows: Rows) -> Rows:
    weights = [[mpmath.exp(v) for v in row] for row in rows]
    return [[w / mpmath.fsum(row) for w in row] for row in weights]


def mean_kl(p: Rows, q: Rows) -> float:
    def term(a: mpmath.mpf, b: mpmath.mpf) -> mpmath.mpf:
        if a == 0:
            return mpmath.mpf(0)
        return a * mpmath.log(a / b) if b else mpmath.inf

    values = [mpmath.fsum(term(a, b) for a, b in zip(*pair, strict=True)) for pair in zip(p, q, strict=True)]
    return float(mpmath.fsum(values) / len(values))


def run(code: str, **tensors: Tensor) -> Tensor:
    """Execute suggested code as a user would, and return the value of its last line."""
    names = {"torch": torch, "F": F, "kl_divergence": kl_divergence}
    names |= {wrapper.__name__: wrapper for wrapper in (Counts, Logits, LogProbs, Probs)} | tensors
    *first, last = ast.parse(code).body
    exec(compile(ast.Module(first, []), "suggestion", "exec"), names)  # noqa: S102 - the code is what is tested
    assert isinstance(last, ast.Expr)
    return eval(compile(ast.Expression(last.value), "suggestion", "eval"), names)  # noqa: S307


def scores(*shape: int, scale: float = 3.0, seed: int = 0) -> Tensor:
    return scale * torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@dataclass
class Call:
    """A call, the codes of its findings, and the mean divergence of the rows that was meant."""

    input: Tensor
    target: Tensor
    codes: set[str]
    meant: float
    arguments: dict[str, Any] = field(default_factory=lambda: {"reduction": "batchmean"})
    others: dict[str, Tensor] = field(default_factory=dict)
    """The tensors that the suggestion needs beyond the two."""

    def diagnose(self) -> kullback.diagnosis.Diagnosis:
        return diagnose(self.input, self.target, **self.arguments)


S, T = scores(8, 10, seed=1), scores(8, 10, seed=2)
LOG_Q, P = S.log_softmax(-1), T.softmax(-1)
MEANT = mean_kl(softmax(T), softmax(S))
LONG_S, LONG_T = scores(2, 5, 10, seed=3), scores(2, 5, 10, seed=4)
LONG_MEANT = mean_kl(softmax(LONG_T), softmax(LONG_S))
COUNTS = torch.randint(1, 20, (8, 10), generator=torch.Generator().manual_seed(5)).float()
LABELS = torch.randint(0, 10, (8,), generator=torch.Generator().manual_seed(6))
NLL = float(mpmath.fsum(-mpmath.log(row[k]) for row, k in zip(softmax(S), LABELS.tolist(), strict=True)) / 8)
MASK = torch.zeros(8, 10, dtype=torch.bool)
MASK[2:4, 3] = True


def with_entry(x: Tensor, index: tuple[int, ...], value: float) -> Tensor:
    x = x.clone()
    x[index] = value
    return x


def masked_rows(x: Tensor) -> Rows:
    return softmax(x.masked_fill(MASK, -math.inf))


def all_but(rows: Rows, *left_out: int) -> Rows:
    return [row for i, row in enumerate(rows) if i not in left_out]


def pitfalls() -> dict[str, Call]:
    half = LOG_Q.bfloat16(), P.bfloat16()
    binary = scores(6, 2, seed=7)
    proportion = torch.rand(6, generator=torch.Generator().manual_seed(8))
    pairs = [[1 - v, v] for v in rows_of(proportion[None])[0]]
    image_s, image_t = scores(2, 5, 3, 4, seed=9), scores(2, 5, 3, 4, seed=10)
    image_meant = mean_kl(softmax(image_t.movedim(1, -1)), softmax(image_s.movedim(1, -1)))
    wider = scores(8, 12, seed=11).softmax(-1)
    other_rows = scores(8, 7, 10, seed=12).softmax(-1)
    batch_s = scores(8, 6, 10, seed=13)
    ignored = LABELS.clone()
    ignored[1] = -100
    zero_both = (S.masked_fill(MASK, -math.inf).log_softmax(-1), T.masked_fill(MASK, -math.inf).softmax(-1))
    return {
        "arguments reversed": Call(P, LOG_Q, {"arguments-reversed"}, mean_kl(normalized(P), softmax(LOG_Q))),
        "arguments reversed, and scores": Call(P, S, {"arguments-reversed"}, MEANT),
        "probabilities as input": Call(S.softmax(-1), P, {"input-is-probabilities"}, MEANT),
        "one-hot input": Call(
            F.one_hot(LABELS, 10).float(), P, {"input-is-probabilities", "infinite-divergence"}, math.inf
        ),
        "log-probabilities as target": Call(LOG_Q, P.log(), {"target-is-log-probabilities"}, MEANT),
        "probabilities as log target": Call(
            LOG_Q, P, {"target-is-probabilities"}, MEANT, {"reduction": "batchmean", "log_target": True}
        ),
        "logits as input": Call(S, P, {"input-is-logits"}, MEANT),
        "logits as both": Call(S, T, {"input-is-logits", "target-is-logits"}, MEANT),
        "logits as log target": Call(
            LOG_Q, T, {"target-is-logits"}, MEANT, {"reduction": "batchmean", "log_target": True}
        ),
        "log_softmax of probabilities": Call(
            S.softmax(-1).log_softmax(-1), P, {"input-softmaxed-twice"}, MEANT, others={"input_logits": S}
        ),
        "softmax of probabilities": Call(
            LOG_Q, P.softmax(-1), {"target-softmaxed-twice"}, MEANT, others={"target_logits": T}
        ),
        "log of a softmax of probabilities": Call(
            S.softmax(-1).softmax(-1).log(), P, {"input-softmaxed-twice"}, MEANT, others={"input_logits": S}
        ),
        "softmax over the batch": Call(
            S.log_softmax(0), P, {"input-wrong-dimension"}, MEANT, others={"input_logits": S}
        ),
        "target's softmax over the batch": Call(
            LOG_Q, T.softmax(0), {"target-wrong-dimension"}, MEANT, others={"target_logits": T}
        ),
        "classes in the middle": Call(
            image_s.log_softmax(1),
            image_t.softmax(1),
            {"classes-along-another-dimension", "batchmean-is-not-per-row"},
            image_meant,
        ),
        "classes in the middle, said so": Call(
            image_s.log_softmax(1),
            image_t.softmax(1),
            {"batchmean-is-not-per-row"},
            image_meant,
            {"reduction": "batchmean", "dim": 1},
        ),
        "reduction mean": Call(LOG_Q, P, {"mean-divides-by-classes"}, MEANT, {"reduction": "mean"}),
        "default reduction": Call(LOG_Q, P, {"mean-divides-by-classes"}, MEANT, {}),
        "batchmean of sequences": Call(
            LONG_S.log_softmax(-1), LONG_T.softmax(-1), {"batchmean-is-not-per-row"}, LONG_MEANT
        ),
        "mean of sequences": Call(
            LONG_S.log_softmax(-1), LONG_T.softmax(-1), {"mean-divides-by-classes"}, LONG_MEANT, {}
        ),
        "batchmean of a single row": Call(
            LOG_Q[0], P[0], {"batchmean-is-not-per-row"}, mean_kl(softmax(T[:1]), softmax(S[:1]))
        ),
        "counts as target": Call(
            LOG_Q, COUNTS, {"target-is-counts"}, mean_kl(normalized(COUNTS), softmax(S))
        ),
        "whole counts as target": Call(
            LOG_Q,
            COUNTS.long(),
            {"target-is-counts", "target-is-integer"},
            mean_kl(normalized(COUNTS), softmax(S)),
        ),
        "counts as input": Call(COUNTS, P, {"input-is-counts"}, mean_kl(softmax(T), normalized(COUNTS))),
        "weights as target": Call(
            LOG_Q, T.sigmoid(), {"target-is-not-normalized"}, mean_kl(normalized(T.sigmoid()), softmax(S))
        ),
        "percent as target": Call(LOG_Q, 100 * P, {"target-is-not-normalized"}, MEANT),
        "whole one-hot target": Call(
            LOG_Q, F.one_hot(LABELS, 10), {"target-is-integer", "target-zeros"}, NLL
        ),
        "one-hot target": Call(LOG_Q, F.one_hot(LABELS, 10).float(), {"target-zeros"}, NLL),
        "zeros in the target": Call(
            LOG_Q,
            T.masked_fill(MASK, -math.inf).softmax(-1),
            {"target-zeros"},
            mean_kl(masked_rows(T), softmax(S)),
        ),
        "zeros in the input": Call(
            S.masked_fill(MASK, -math.inf).log_softmax(-1), P, {"infinite-divergence"}, math.inf
        ),
        "masked on both sides": Call(
            *zero_both, {"masked-on-both-sides"}, mean_kl(masked_rows(T), masked_rows(S))
        ),
        "masked on both sides, summed": Call(
            *zero_both,
            {"masked-on-both-sides"},
            8 * mean_kl(masked_rows(T), masked_rows(S)),
            {"reduction": "sum"},
        ),
        "masked on both sides, in logs": Call(
            zero_both[0],
            zero_both[1].log(),
            {"masked-on-both-sides"},
            mean_kl(masked_rows(T), masked_rows(S)),
            {"reduction": "batchmean", "log_target": True},
        ),
        "masked in a log target": Call(
            LOG_Q,
            zero_both[1].log(),
            {"log-target-of-zero"},
            mean_kl(masked_rows(T), softmax(S)),
            {"reduction": "batchmean", "log_target": True},
        ),
        "mask set after the softmax": Call(
            with_entry(LOG_Q, (2, 3), -math.inf),
            with_entry(P, (2, 3), 0.0),
            {"input-rows-not-normalized", "target-rows-not-normalized", "masked-on-both-sides"},
            mean_kl(normalized(with_entry(P, (2, 3), 0.0)), softmax(with_entry(S, (2, 3), -math.inf))),
        ),
        "NaN in the input": Call(
            with_entry(LOG_Q, (4, 1), math.nan),
            P,
            {"input-nan"},
            mean_kl(all_but(softmax(T), 4), all_but(softmax(S), 4)),
        ),
        "NaN and infinity": Call(
            with_entry(LOG_Q, (4, 1), math.inf),
            with_entry(P, (0, 9), math.nan),
            {"input-plus-infinity", "target-nan"},
            mean_kl(all_but(softmax(T), 0, 4), all_but(softmax(S), 0, 4)),
        ),
        "padding rows": Call(
            LOG_Q,
            torch.cat([P[:6], torch.zeros(2, 10)]),
            {"target-rows-without-mass", "target-zeros"},
            mean_kl(softmax(T[:6]), softmax(S[:6])),
        ),
        "padding rows in a sequence": Call(
            LONG_S.log_softmax(-1).masked_fill(torch.arange(5)[:, None] == 3, -math.inf),
            LONG_T.softmax(-1),
            {"input-rows-without-mass", "infinite-divergence", "batchmean-is-not-per-row"},
            mean_kl(all_but(softmax(LONG_T), 3, 8), all_but(softmax(LONG_S), 3, 8)),
        ),
        "padding against a fixed prior": Call(
            torch.cat([LOG_Q[:6], torch.full((2, 10), -math.inf)]),
            P[0],
            {"silent-broadcast", "input-rows-without-mass", "infinite-divergence"},
            mean_kl(softmax(T[:1]) * 6, softmax(S[:6])),
        ),
        "padding with classes in the middle": Call(
            torch.cat([image_s.log_softmax(1), torch.full((1, 5, 3, 4), -math.inf)]),
            torch.cat([image_t.softmax(1)] * 2)[:3],
            {"input-rows-without-mass", "infinite-divergence", "batchmean-is-not-per-row"},
            image_meant,
            {"reduction": "batchmean", "dim": 1},
        ),
        "slightly negative probabilities": Call(
            LOG_Q,
            with_entry(F.one_hot(LABELS, 10).float(), (0, (int(LABELS[0]) + 1) % 10), -1e-6),
            {"target-negative", "target-zeros"},
            NLL,
        ),
        "flattened input": Call(
            LONG_S.flatten(0, 1).log_softmax(-1), LONG_T.softmax(-1), {"shape-mismatch"}, LONG_MEANT
        ),
        "flattened target": Call(
            LONG_S.log_softmax(-1), LONG_T.flatten(0, 1).softmax(-1), {"shape-mismatch"}, LONG_MEANT
        ),
        "transposed target": Call(LOG_Q, P.T.contiguous(), {"shape-mismatch"}, MEANT),
        "channels last": Call(
            image_s.log_softmax(1),
            image_t.softmax(1).permute(0, 2, 3, 1).contiguous(),
            {"shape-mismatch"},
            image_meant,
            {"reduction": "batchmean", "dim": 1},
        ),
        "another vocabulary": Call(
            LOG_Q, wider, {"shape-mismatch"}, mean_kl(normalized(wider[:, :10]), softmax(S))
        ),
        "another vocabulary, in logs": Call(
            scores(8, 12, seed=11).log_softmax(-1),
            P,
            {"shape-mismatch"},
            mean_kl(softmax(T), softmax(scores(8, 12, seed=11)[:, :10])),
        ),
        "another length": Call(
            batch_s.log_softmax(-1),
            other_rows,
            {"shape-mismatch"},
            mean_kl(normalized(other_rows[:, :6]), softmax(batch_s)),
        ),
        "another number of rows": Call(
            LOG_Q, P[:5], {"shape-mismatch"}, mean_kl(softmax(T[:5]), softmax(S[:5]))
        ),
        "one target for all positions": Call(
            batch_s.log_softmax(-1),
            P,
            {"shape-mismatch"},
            mean_kl([row for row in softmax(T) for _ in range(6)], softmax(batch_s)),
        ),
        "a dimension too many": Call(LOG_Q, P[:, None], {"silent-broadcast"}, MEANT),
        "all against all": Call(
            LOG_Q[:, None],
            P[None, :5],
            {"silent-broadcast", "batchmean-is-not-per-row"},
            mean_kl(softmax(T[:5]) * 8, [row for row in softmax(S) for _ in range(5)]),
        ),
        "a fixed prior as target": Call(
            LOG_Q, P[0], {"silent-broadcast"}, mean_kl(softmax(T[:1]) * 8, softmax(S))
        ),
        "a fixed input": Call(
            LOG_Q[0],
            P,
            {"silent-broadcast", "batchmean-is-not-per-row"},
            mean_kl(softmax(T), softmax(S[:1]) * 8),
        ),
        "one probability for two classes": Call(
            binary.log_softmax(-1), proportion, {"shape-mismatch"}, mean_kl(pairs, softmax(binary))
        ),
        "one probability for two classes, as a column": Call(
            binary.log_softmax(-1), proportion[:, None], {"silent-broadcast"}, mean_kl(pairs, softmax(binary))
        ),
        "class indices": Call(LOG_Q, LABELS, {"target-is-class-indices"}, NLL),
        "class indices as a column": Call(LOG_Q, LABELS[:, None], {"target-is-class-indices"}, NLL),
        "class indices of eight bits": Call(LOG_Q, LABELS.to(torch.uint8), {"target-is-class-indices"}, NLL),
        "class indices as floats": Call(LOG_Q, LABELS.float(), {"target-is-class-indices"}, NLL),
        "class indices and logits": Call(S, LABELS, {"target-is-class-indices", "input-is-logits"}, NLL),
        "class indices and probabilities": Call(
            S.softmax(-1), LABELS, {"target-is-class-indices", "input-is-probabilities"}, NLL
        ),
        "class indices, some ignored": Call(
            LOG_Q,
            ignored,
            {"target-is-class-indices"},
            mean_kl(
                all_but(normalized(F.one_hot(LABELS, 10)), 1),
                all_but(softmax(S), 1),
            ),
        ),
        "class indices of sequences": Call(
            LONG_S.log_softmax(-1),
            LABELS[:5].repeat(2, 1),
            {"target-is-class-indices"},
            mean_kl(normalized(F.one_hot(LABELS[:5].repeat(2), 10)), softmax(LONG_S)),
        ),
        "class indices of images": Call(
            image_s.log_softmax(1),
            torch.ones(2, 3, 4, dtype=torch.long),
            {"target-is-class-indices"},
            mean_kl([[0, 1, 0, 0, 0]] * 24, softmax(image_s.movedim(1, -1))),
            {"reduction": "batchmean", "dim": 1},
        ),
        "another dtype": Call(LOG_Q.double(), P, {"dtype-mismatch"}, mean_kl(normalized(P), softmax(LOG_Q))),
        "bfloat16": Call(*half, {"half-precision"}, mean_kl(normalized(half[1]), softmax(half[0]))),
        "float16 and float32": Call(
            LOG_Q.half(),
            P,
            {"half-precision", "dtype-mismatch"},
            mean_kl(normalized(P), softmax(LOG_Q.half())),
        ),
        "rounded to bfloat16 and back": Call(
            half[0].float(),
            half[1].float(),
            {"input-nearly-normalized", "target-nearly-normalized"},
            mean_kl(normalized(half[1]), softmax(half[0])),
        ),
        "nothing wrong": Call(LOG_Q, P, set(), MEANT),
        "nothing wrong, in logs": Call(
            LOG_Q, T.log_softmax(-1), set(), MEANT, {"reduction": "batchmean", "log_target": True}
        ),
        "nothing wrong, summed": Call(LOG_Q, P, set(), 8 * MEANT, {"reduction": "sum"}),
        "the same twice": Call(LOG_Q, LOG_Q.exp(), set(), 0.0),
    }


PITFALLS = pitfalls()
MAPS = scores(2, 2, 12, seed=14).log_softmax(-1).reshape(2, 2, 3, 4)
HEAT_MAPS, SIGMOIDS = (MAPS[0], MAPS[1].exp()), (F.logsigmoid(S), T.sigmoid())
NOTES = {"target-zeros", "dtype-mismatch", "identical"}


# A prior for all rows may be meant, and half precision is a warning only where it costs digits.
HARMLESS = {"a fixed prior as target", "bfloat16", "float16 and float32"}


@pytest.mark.parametrize("name", PITFALLS)
def test_the_pitfall_is_found_and_no_other_and_the_suggestion_is_right(name):
    call = PITFALLS[name]
    diagnosis = call.diagnose()
    assert set(diagnosis.codes) == call.codes
    if call.codes <= NOTES:
        assert diagnosis.ok
        assert all(finding.level == "note" for finding in diagnosis.findings)
    elif name not in HARMLESS:
        assert not diagnosis.ok
    suggestion = diagnosis.suggestion
    assert {needed.partition(":")[0] for needed in suggestion.needs} == set(call.others)
    for code in (suggestion.kullback, suggestion.torch):
        value = run(code, input=call.input, target=call.target, **call.others)
        assert value.ndim == 0
        assert float(value) == pytest.approx(call.meant, rel=2e-5, abs=1e-7)
    if call.others or "target-is-class-indices" in call.codes:
        assert suggestion.value is None
    else:
        assert suggestion.value == pytest.approx(call.meant, rel=2e-5, abs=1e-7)


def test_each_entry_of_the_table_of_checks_is_found_by_some_call():
    calls = [*(call.diagnose() for call in PITFALLS.values()), *(diagnose(x, y) for x, y, _ in NOTHING_MEANT)]
    calls += [diagnose(LOG_Q.as_subclass(Elsewhere), P), *(diagnose(*pair) for pair in (HEAT_MAPS, SIGMOIDS))]
    calls += [diagnose(LOG_Q, LOG_Q, log_target=True), diagnose(S.half(), P.half())]
    codes = {(finding.code, finding.level) for each in calls for finding in each.findings}
    without_name = {(code.partition("-")[2], level) for code, level in codes}
    for check in (check for _, checks in _GROUPS for check in checks):
        code = check.code.replace("{it.name}-", "")
        assert (code, check.level) in (codes if code == check.code else without_name), check.code


def test_errors_come_first():
    levels = [finding.level for finding in diagnose(S, P.half()).findings]
    assert levels == sorted(levels, key=["error", "warning", "note"].index)
    assert len(set(levels)) > 1


def test_findings_cannot_be_changed():
    finding = diagnose(S, P).findings[0]
    with pytest.raises(FrozenInstanceError):
        finding.code = "fine"


@pytest.mark.parametrize(
    ("x", "y", "named"),
    [
        (with_entry(LOG_Q, (4, 1), math.nan), P, "1 of 80 entries, the first at index (4, 1)"),
        (LOG_Q, with_entry(P, (7, 9), math.inf), "1 of 80 entries, the first at index (7, 9)"),
        (
            LOG_Q,
            with_entry(P, (2, 0), -0.5),
            "negative probabilities, down to -0.5: 1 of 80 entries, the first at index (2, 0)",
        ),
        (
            LOG_Q,
            torch.cat([P[:6], torch.zeros(2, 10)]),
            "rows with only 0: 2 of 8, the first at index (6,)",
        ),
        (LOG_Q, torch.cat([P[:7], 2 * P[7:]]), "1 of 8 do not, the first at row (7,)"),
        (
            LOG_Q,
            torch.where(MASK, 0, P) / torch.where(MASK, 0, P).sum(-1, keepdim=True),
            "the first at index (2, 3)",
        ),
        (LOG_Q, torch.full((8,), 10), "8 of them are not classes, the first at index (0,)"),
        (
            scores(8, 12).log_softmax(-1),
            torch.ones(8, 10) / 10,
            "cut both to the first 10, input[..., :10]",
        ),
    ],
)
def test_a_finding_says_how_many_and_where(x, y, named):
    text = " ".join(f"{f.message} {f.advice}" for f in diagnose(x, y, reduction="batchmean").findings)
    assert named in text


def test_the_place_of_a_finding_is_counted_in_the_tensor_as_it_was_given():
    x = with_entry(scores(2, 5, 3, 4).log_softmax(1), (1, 4, 0, 2), math.nan)
    y = scores(2, 5, 3, 4, seed=1).softmax(1)
    diagnosis = diagnose(x, y, dim=1)
    assert diagnosis.input.nans == (1, (1, 4, 0, 2))
    assert diagnosis.target.nans == (0, None)


def test_the_share_that_a_cut_leaves_out_is_stated():
    target = torch.tensor([[0.5, 0.25, 0.25], [0.5, 0.5, 0.0]])
    finding = diagnose(torch.tensor([[0.5, 0.5]] * 2).log(), target).findings[0]
    assert finding.code == "shape-mismatch"
    assert "leaves out up to 0.25 of a row" in finding.advice


@pytest.mark.parametrize("log_target", [False, True])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize(
    ("shape", "other"),
    [((), ()), ((7,), (7,)), ((5, 7), (5, 7)), ((2, 5, 7), (7,)), ((5, 7), (5, 1, 7)), ((0, 3), (0, 3))],
)
@pytest.mark.filterwarnings("ignore:reduction. 'mean'")
def test_the_values_are_those_that_torch_returns(shape, other, dtype, log_target):
    x, y = scores(*shape, scale=1).to(dtype), scores(*other, scale=1, seed=1).sigmoid().to(dtype)
    diagnosis = diagnose(x, y, log_target=log_target)
    assert diagnosis.values["none"] == tuple(F.kl_div(x, y, reduction="none", log_target=log_target).shape)
    for reduction in ("sum", "mean", "batchmean"):
        expected = F.kl_div(x, y, reduction=reduction, log_target=log_target)
        torch.testing.assert_close(
            torch.tensor(diagnosis.values[reduction], dtype=torch.float64), expected.double(), equal_nan=True,
            rtol=4 * torch.finfo(dtype).eps, atol=0,
        )  # fmt: skip


@pytest.mark.parametrize(
    ("x", "y"), [(LOG_Q, P[:5]), (LOG_Q, LABELS[:, None]), (LOG_Q.long(), P), (P[0].half(), P[0, :7])]
)
def test_where_torch_raises_there_are_no_values_but_its_message(x, y):
    with pytest.raises(RuntimeError) as error:
        F.kl_div(x, y, reduction="batchmean")
    diagnosis = diagnose(x, y)
    assert diagnosis.values == {}
    assert diagnosis.raises == str(error.value)
    assert diagnosis.raises in " ".join(str(diagnosis).split())


def test_both_directions_are_computed():
    diagnosis = diagnose(S, P)
    assert diagnosis.kl_target_input.mean == pytest.approx(MEANT, rel=1e-6)
    assert diagnosis.kl_input_target.mean == pytest.approx(mean_kl(softmax(S), softmax(T)), rel=1e-6)
    by_row = [mean_kl([p], [q]) for p, q in zip(softmax(T), softmax(S), strict=True)]
    assert (diagnosis.kl_target_input.low, diagnosis.kl_target_input.high) == pytest.approx(
        (min(by_row), max(by_row))
    )


def test_each_reduction_is_told_by_its_scale():
    diagnosis = diagnose(LONG_S.log_softmax(-1), LONG_T.softmax(-1), reduction="sum")
    factors = {"sum": 10, "mean": 1 / 10, "batchmean": 5}
    for name, factor in factors.items():
        assert diagnosis.values[name] == pytest.approx(factor * LONG_MEANT, rel=1e-5)
    assert diagnosis.meanings["sum"] == "the KL of all 10 rows together"
    assert diagnosis.meanings["mean"] == "the mean KL of a row, divided by the 10 classes"
    assert diagnosis.meanings["batchmean"].startswith("5 times the mean KL of a row")
    assert diagnosis.ok


SHARES = torch.rand(8, 7, 2, generator=torch.Generator().manual_seed(9))
NOTHING_MEANT = [
    (torch.zeros(0, 4), torch.zeros(0, 4), "empty-tensor"),
    (torch.zeros(3, 0), torch.zeros(3, 0), "empty-tensor"),
    (torch.tensor(-1.0), torch.tensor(0.5), "no-classes"),
    (torch.zeros(3, 4), torch.tensor(0.5), "no-classes"),
    (LOG_Q, SHARES[:3], "shape-mismatch"),
    (LOG_Q, SHARES[:, 0, :1], "silent-broadcast"),
    (torch.zeros(5, 1), SHARES[:5, 0, :1], "single-class"),
    (torch.full((3, 4), math.nan), torch.full((3, 4), 0.25), "input-nan"),
    (LOG_Q, torch.zeros(8, 10), "target-rows-without-mass"),
    (torch.full((3, 4), -math.inf), torch.full((3, 4), 0.25), "input-rows-without-mass"),
    (LOG_Q, torch.full((8,), 10), "target-is-class-indices"),
]


@pytest.mark.parametrize(("x", "y", "code"), NOTHING_MEANT)
def test_where_nothing_can_be_meant_there_is_no_suggestion(x, y, code):
    diagnosis = diagnose(x, y)
    assert code in diagnosis.codes
    assert diagnosis.suggestion is None
    assert code in str(diagnosis)
    json.dumps(diagnosis.to_dict(), allow_nan=False)


class Elsewhere(Tensor):
    """A tensor that says it is on another device."""

    device = property(lambda self: torch.device("cuda", 1))

    def to(self, *args: Any) -> Tensor:
        return self if isinstance(args[0], torch.device) else super().to(*args)


def test_tensors_on_different_devices_are_found():
    diagnosis = diagnose(LOG_Q.as_subclass(Elsewhere), P, reduction="batchmean")
    assert diagnosis.codes == ("device-mismatch",)
    assert diagnosis.raises == "the tensors are on different devices, cuda:1 and cpu"
    assert "input.device" in diagnosis.suggestion.torch
    assert float(run(diagnosis.suggestion.torch, input=LOG_Q, target=P)) == pytest.approx(MEANT)


@pytest.mark.parametrize("reduction", ["none", "sum", "mean", "batchmean"])
def test_suggestions_keep_the_reduction_that_was_asked_for(reduction):
    suggestion = diagnose(LONG_S, LONG_T, reduction=reduction).suggestion
    by_row = [mean_kl([p], [q]) for p, q in zip(softmax(LONG_T), softmax(LONG_S), strict=True)]
    expected = {"none": by_row, "sum": sum(by_row)}.get(reduction, sum(by_row) / 10)
    for code in (suggestion.kullback, suggestion.torch):
        value = run(code, input=LONG_S, target=LONG_T)
        np.testing.assert_allclose(
            value.flatten() if reduction == "none" else float(value), expected, rtol=1e-5
        )


def test_half_precision_is_measured():
    x = torch.linspace(-1, 1, 64).expand(4, 64)
    close = diagnose(
        x.log_softmax(-1).bfloat16(), (x + 0.1 * x.sin()).softmax(-1).bfloat16(), reduction="batchmean"
    )
    far = diagnose((4 * x).log_softmax(-1).half(), (-4 * x).softmax(-1).half(), reduction="batchmean")
    levels = {
        diagnosis.findings[0].level for diagnosis in (close, far) if diagnosis.codes == ("half-precision",)
    }
    assert levels == {"warning", "note"}
    assert not close.ok
    assert far.ok


def test_the_result_does_not_depend_on_the_size_of_the_blocks(monkeypatch):
    x, y = with_entry(scores(3, 4, 5, 6), (2, 3, 4, 5), math.nan).log_softmax(1), scores(5, 6, seed=1).exp()
    whole = [diagnose(x, y, dim=dim).to_dict() for dim in (-1, 1, 0)]
    monkeypatch.setattr(row_operation, "_ELEMENTS_ON_CPU", 7)
    for dim, before in zip((-1, 1, 0), whole, strict=True):
        after = diagnose(x, y, dim=dim).to_dict()
        assert after["codes"] == before["codes"]
        assert after["input"] == before["input"]
        assert json.dumps(rounded(after)) == json.dumps(rounded(before))


def rounded(x: Any) -> Any:
    if isinstance(x, dict):
        return {key: rounded(value) for key, value in x.items()}
    if isinstance(x, list):
        return [rounded(value) for value in x]
    return float(f"{x:.5g}") if isinstance(x, float) else x


@pytest.mark.parametrize("name", PITFALLS)
def test_the_report_fits_a_terminal_the_repr_a_line_and_the_dict_is_strict_json(name):
    diagnosis = PITFALLS[name].diagnose()
    suggestion, lines = diagnosis.suggestion, str(diagnosis).splitlines()
    of_kullback, of_torch = (
        [f"    {line}" for line in code.splitlines()] for code in (suggestion.kullback, suggestion.torch)
    )
    prose = [line for line in lines if line not in of_kullback + of_torch]
    assert max(map(len, prose)) <= 88
    assert all(line == line.rstrip() for line in prose)
    assert diagnosis.call == prose[0]
    assert "KL(target || input)" in prose[1]
    assert set(of_kullback if diagnosis.ok else of_kullback + of_torch) <= set(lines)
    assert "\n" not in repr(diagnosis)
    assert all(code in text for code in diagnosis.codes for text in (str(diagnosis), repr(diagnosis)))
    fields = json.loads(json.dumps(diagnosis.to_dict(), allow_nan=False))
    assert fields == diagnosis.to_dict()
    assert fields["codes"] == list(diagnosis.codes)
    assert fields["suggestion"]["torch"] == suggestion.torch
    assert fields["ok"] == diagnosis.ok


def test_infinities_keep_their_names_in_json():
    diagnosis = diagnose(torch.tensor([[0.0, -math.inf]]), torch.tensor([[0.5, 0.5]])).to_dict()
    assert diagnosis["kl_target_input"]["mean"] == "Infinity"
    assert diagnosis["values"]["sum"] == "Infinity"


def test_the_flat_dict_has_only_numbers():
    diagnosis = diagnose(torch.tensor([[0.0, -math.inf]]), torch.tensor([[0.5, 0.5]])).to_dict(flat=True)
    assert diagnosis["kl_target_input/mean"] == diagnosis["values/sum"] == math.inf
    assert diagnosis["ok"] == 0
    assert {type(number) for number in diagnosis.values()} <= {int, float}


def test_arrays_and_lists_are_read_too():
    assert diagnose(LOG_Q.numpy(), P.tolist(), reduction="batchmean").codes == ()


def test_the_arguments_are_left_alone():
    x, y = LOG_Q.clone().requires_grad_(), P.clone()
    diagnose(x, y)
    assert x.grad is None
    assert torch.equal(x, LOG_Q)
    assert torch.equal(y, P)


@pytest.mark.parametrize(
    ("arguments", "error", "named"),
    [
        ((LOG_Q, "probabilities"), ArgumentTypeError, "diagnose(target=...)"),
        ((None, P), ArgumentTypeError, "diagnose(input=...)"),
        ((LOG_Q, P.to_sparse()), ArgumentTypeError, "sparse"),
        ((LOG_Q, P.to(torch.complex64)), ArgumentTypeError, "complex64"),
        ((LOG_Q.to("meta"), P), ArgumentTypeError, "meta"),
    ],
)
def test_what_is_no_tensor_of_numbers_is_refused(arguments, error, named):
    with pytest.raises(error) as caught:
        diagnose(*arguments)
    assert isinstance(caught.value, KullbackError)
    assert named in str(caught.value)


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"reduction": "median"}, ArgumentValueError),
        ({"reduction": None}, ArgumentValueError),
        ({"log_target": "yes"}, ArgumentTypeError),
        ({"dim": 2}, ArgumentValueError),
        ({"dim": -3}, ArgumentValueError),
    ],
)
def test_options_that_mean_nothing_are_refused(options, error):
    with refused(error, argument=next(iter(options))):
        diagnose(LOG_Q, P, **options)


GOOD = st.tuples(
    st.integers(1, 12),
    st.integers(2, 50),
    st.floats(0.1, 30),
    st.sampled_from([torch.float32, torch.float64]),
    st.integers(0, 10**6),
)


def good_scores(drawn: tuple[int, int, float, torch.dtype, int]) -> tuple[Tensor, Tensor]:
    rows, classes, scale, dtype, seed = drawn
    both = scores(2, rows, classes, scale=scale, seed=seed).to(dtype)
    return both[0], both[1]


@given(GOOD, st.booleans(), st.sampled_from(["none", "sum", "mean", "batchmean"]))
@settings(max_examples=80)
def test_a_correct_call_is_left_alone(drawn, with_zeros, reduction):
    x, y = good_scores(drawn)
    if with_zeros:
        y[:, 0] = -math.inf
    diagnosis = diagnose(x.log_softmax(-1), y.softmax(-1), reduction=reduction)
    serious = {finding.code for finding in diagnosis.findings if finding.level != "note"}
    assert serious <= ({"mean-divides-by-classes"} if reduction == "mean" else set())


@given(GOOD)
@settings(max_examples=30)
def test_a_correct_call_in_logs_is_left_alone(drawn):
    x, y = good_scores(drawn)
    diagnosis = diagnose(x.log_softmax(-1), y.log_softmax(-1), reduction="batchmean", log_target=True)
    assert diagnosis.ok


SEEDED: dict[str, tuple[Callable[[Tensor, Tensor], tuple[Tensor, Tensor]], bool, str]] = {
    "reversed": (lambda x, y: (y.softmax(-1), x.log_softmax(-1)), False, "arguments-reversed"),
    "probabilities": (lambda x, y: (x.softmax(-1), y.softmax(-1)), False, "input-is-probabilities"),
    "log target": (lambda x, y: (x.log_softmax(-1), y.log_softmax(-1)), False, "target-is-log-probabilities"),
    "no log target": (lambda x, y: (x.log_softmax(-1), y.softmax(-1)), True, "target-is-probabilities"),
    "mean": (lambda x, y: (x.log_softmax(-1), y.softmax(-1)), False, "mean-divides-by-classes"),
    "a sequence": (lambda x, y: (x[:, None].log_softmax(-1), y.softmax(-1)[:, None]), False, "mean-divides-by-classes"),
    "sigmoids": (lambda x, y: (x.log_softmax(-1), 3 + y.sigmoid()), False, "target-is-not-normalized"),
    "NaN": (lambda x, y: (x.log_softmax(-1) + math.nan, y.softmax(-1)), False, "input-nan"),
    "row by all": (lambda x, y: (x[:1].log_softmax(-1).expand(2, -1), y[:2, None].softmax(-1).expand(2, 1, -1)), False,
                   "silent-broadcast"),
}  # fmt: skip


@pytest.mark.parametrize("mistake", SEEDED)
@given(GOOD)
@settings(max_examples=12)
def test_a_seeded_mistake_is_found(mistake, drawn):
    seed, log_target, code = SEEDED[mistake]
    x, y = good_scores(drawn)
    assume(len(x) > 1)
    diagnosis = diagnose(*seed(x, y), log_target=log_target)
    assert code in diagnosis.codes


@given(GOOD)
@settings(max_examples=40)
def test_scores_without_softmax_are_found(drawn):
    """Few scores may add up to nearly one by chance; they are then said to be nearly normalized."""
    x, y = good_scores(drawn)
    diagnosis = diagnose(x, y.softmax(-1), reduction="batchmean")
    positive = bool((x > 0).all())
    codes = {"input-is-logits", "input-nearly-normalized", "input-is-not-normalized" if positive else ""}
    assert codes & set(diagnosis.codes)
    value = run(diagnosis.suggestion.torch, input=x, target=y.softmax(-1))
    if not positive:
        expected = mean_kl(softmax(y.softmax(-1).log()), softmax(x))
        assert float(value) == pytest.approx(expected, rel=1e-4, abs=1e-6)


@given(st.integers(16, 40), st.integers(5, 50), st.floats(3, 30), st.integers(0, 10**6))
@settings(max_examples=40)
def test_a_softmax_of_probabilities_is_found_where_the_probabilities_are_peaked(rows, classes, scale, seed):
    x, y = scores(2, rows, classes, scale=scale, seed=seed)
    once, twice = x.log_softmax(-1), x.softmax(-1).log_softmax(-1)
    assert diagnose(twice, y.softmax(-1), reduction="batchmean").codes[0] == "input-softmaxed-twice"
    assert "input-softmaxed-twice" not in diagnose(once, y.softmax(-1)).codes


@given(st.integers(2, 12), st.integers(2, 50), st.floats(0.1, 30), st.integers(0, 10**6))
@settings(max_examples=40)
def test_a_softmax_along_the_batch_is_found(rows, classes, scale, seed):
    x, y = scores(2, rows, classes, scale=scale, seed=seed)
    wrong = x.log_softmax(0)
    assume(bool(((wrong.exp().sum(-1) - 1).abs() > 2e-4).any()))
    assert "input-wrong-dimension" in diagnose(wrong, y.softmax(-1)).codes


@pytest.mark.parametrize("of_target", [0.0, -0.01, 0.2])
@pytest.mark.parametrize("of_input", [0.0, -0.01])
@pytest.mark.parametrize("reduction", ["none", "sum", "mean", "batchmean"])
def test_the_suggestion_takes_negative_probabilities_as_zeros(
    of_target: float, of_input: float, reduction: str
) -> None:
    target, input = (
        torch.tensor([[x, 0.3, 0.5 - x + 0.2], [0.2, 0.3, 0.5]], dtype=torch.float64)
        for x in (of_target, of_input)
    )
    # KL(P || Q) after negative entries become 0, and rows are normalized.
    p, q = ([[max(x, 0.0) for x in row] for row in side.tolist()] for side in (target, input))
    meant = mean_kl(*([[x / sum(row) for x in row] for row in side] for side in (p, q)))
    suggestion = diagnose(input, target, reduction=reduction).suggestion
    assert suggestion is not None
    for code in (suggestion.kullback, suggestion.torch):
        value = run(code, input=input, target=target)
        value = value.mean() if reduction == "none" else value / 2 if reduction == "sum" else value
        assert float(value) == pytest.approx(meant, rel=1e-9), code


def test_independent_labels_that_broadcast() -> None:
    input, target = scores(4, 3, seed=8).double().sigmoid(), scores(3, seed=9).double().sigmoid()
    diagnosis = diagnose(input, target, reduction="batchmean")
    assert "labels-are-independent" in diagnosis.codes
    rows = [[[1 - x, x] for row in side.expand(4, 3).tolist() for x in row] for side in (target, input)]
    assert diagnosis.suggestion is not None
    for code in (diagnosis.suggestion.kullback, diagnosis.suggestion.torch):
        value = run(code, input=input, target=target)
        assert float(value) == pytest.approx(3 * mean_kl(*rows), rel=1e-9), code


@pytest.mark.parametrize("reduction", ["none", "sum", "batchmean"])
def test_labels_that_are_certainly_wrong_are_infinitely_far_in_both_suggestions(reduction: str) -> None:
    input, target = torch.tensor([[0.0, 0.3], [0.9, 0.2]]), torch.tensor([[0.5, 0.4], [0.6, 0.8]])
    diagnosis = diagnose(input, target, reduction=reduction)
    assert "labels-are-independent" in diagnosis.codes
    assert diagnosis.suggestion is not None
    for code in (diagnosis.suggestion.kullback, diagnosis.suggestion.torch):
        value = run(code, input=input, target=target)
        assert value.isinf().any(), code
        assert not value.isnan().any(), code
        if reduction == "none":
            true = mean_kl([[0.4, 0.6], [0.2, 0.8]], [[0.1, 0.9], [0.8, 0.2]]) * 2
            assert float(value[1]) == pytest.approx(true, rel=1e-5)
