"""`assert_close_distributions` has three verdicts, and only an upper limit below the limit passes."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
import torch
from torch.distributions import Laplace, Normal, StudentT

from kullback import Counts, Logits, Probs, Samples, compare_tables, estimate, register_kl
from kullback.errors import ArgumentTypeError, ArgumentValueError
from kullback.models import Cut
from kullback.testing import _parts_of_draws, assert_close_distributions
from tests.models.bytes_model import BytesModel
from tests.models.tiny import text
from tests.refusals import refused

NORMAL = Normal(0.0, 1.0)
ROWS = torch.tensor([[0.5, 0.5], [0.9, 0.1]])


def draws(seed: int, n: int, shift: float = 0.0) -> Samples:
    return Samples(torch.randn(n, generator=torch.Generator().manual_seed(seed)) + shift)


class Step(Normal):
    """A Normal whose rule states no error."""


@register_kl(Step, Step)
def kl_of_steps(p: Step, q: Step) -> torch.Tensor:
    return (p.loc - q.loc) ** 2 / 2


# KL of N(0, 1) and N(m, 1) is m^2 / 2; of (1/2, 1/2) and (9/10, 1/10), it is (log(5/9) + log(5)) / 2 = 0.5108.
@pytest.mark.parametrize(
    ("p", "q", "below"),
    [
        (NORMAL, Normal(1.0, 1.0), 0.501),
        (Step(0.0, 1.0), Step(1.0, 1.0), 0.501),
        (Probs([0.5, 0.5]), Probs([0.9, 0.1]), 0.511),
        (Logits(torch.zeros(3, 2)), Probs([0.5, 0.5]), 1e-6),
        (Counts([300, 400]), Counts([310, 390]), 0.05),
        (draws(0, 2000), draws(1, 2000), 0.05),
        (draws(0, 2000), NORMAL, 0.05),
    ],
)
def test_close_distributions_pass_and_the_verdict_is_printed(
    p: Any, q: Any, below: float, capsys: pytest.CaptureFixture[str]
) -> None:
    assert_close_distributions(p, q, below=below)
    assert re.match(rf"below {below:g}: KL .*\n\Z", capsys.readouterr().out)


@pytest.mark.parametrize(
    ("p", "q", "below", "words"),
    [
        (NORMAL, Normal(1.0, 1.0), 0.499, r"not below 0\.499: KL = 0\.5 nats"),
        (Step(0.0, 1.0), Step(1.0, 1.0), 0.5, r"not below 0\.5: KL = 0\.5 nats"),
        (StudentT(2.0), NORMAL, 1e300, r"not below 1e\+300: KL = inf nats"),
        (Probs([0.5, 0.5]), Probs([0.9, 0.1]), 0.510, r"not below 0\.51: KL = 0\.5108 nats"),
        (Probs(ROWS), Probs([0.9, 0.1]), 0.5, r"not below .* 1 of 2 elements, first \[0\] = 0\.5108\Z"),
        (draws(0, 500), draws(1, 500, 2.0), 0.5, r"below 0\.5: .*\(95 % 1\.2.* to inf\).* upper limit is infinite"),
        (Counts([80, 20]), Counts([20, 80]), 0.1, r"not below 0\.1: KL = .* nats \(95 %"),
    ],
)  # fmt: skip
def test_distributions_that_differ_fail(p: Any, q: Any, below: float, words: str) -> None:
    with pytest.raises(AssertionError, match=words):
        assert_close_distributions(p, q, below=below)


@pytest.mark.parametrize(
    ("p", "q", "below", "words"),
    [
        (draws(0, 50), draws(1, 50), 0.05, r"The limit is inside the interval\. More draws make it narrower"),
        (draws(0, 500), draws(1, 500, 2.0), 3.0, r"inside the interval.*so KL could be arbitrarily large"),
        (Counts([[9, 9], [900, 900]]), Counts([[9, 9], [900, 900]]), 0.05, r"1 of 2 elements, first \[0\] = 0\. The"),
        (Probs(torch.zeros(0, 2)), Probs([0.5, 0.5]), 0.05, r"of no rows, summation\. There are no rows\Z"),
    ],
)  # fmt: skip
def test_too_few_draws_fail(p: Any, q: Any, below: float, words: str) -> None:
    with pytest.raises(AssertionError, match=rf"\Acannot tell whether below {below:g}: KL .*{words}"):
        assert_close_distributions(p, q, below=below)


def test_more_draws_decide() -> None:
    assert_close_distributions(draws(0, 20_000), draws(1, 20_000), below=0.05)


@pytest.mark.sweep
def test_monte_carlo_has_no_interval_and_the_remedy_has_one(capsys: pytest.CaptureFixture[str]) -> None:
    generator = torch.Generator().manual_seed(0)
    q = Laplace(0.0, 1.0)
    with pytest.raises(
        AssertionError, match=r"There is no interval\. Write: Samples\(p\.sample\(\(n,\)\)\) for P"
    ):
        assert_close_distributions(NORMAL, q, below=0.1, method="monte_carlo", generator=generator)
    torch.manual_seed(0)
    p, n = NORMAL, 10_000
    assert_close_distributions(Samples(p.sample((n,))), q, below=0.1)
    assert capsys.readouterr().out.startswith("below 0.1: ")


@pytest.mark.sweep
def test_a_divergence_at_the_limit_seldom_passes() -> None:
    """KL is 0.045. The upper limit is below it in at most 2.5 % of samples: 5 of 200, with standard deviation 2.2."""
    passed = 0
    for seed in range(200):
        try:
            assert_close_distributions(draws(2 * seed, 400), draws(2 * seed + 1, 400, 0.3), below=0.045)
            passed += 1
        except AssertionError:
            pass
    assert passed <= 11


@pytest.mark.parametrize("below", [0, -0.1, float("nan"), float("inf"), None, torch.tensor(0.1), True])
def test_the_limit_is_a_positive_number(below: Any) -> None:
    with refused(
        ArgumentValueError, call="assert_close_distributions", argument="below", wanted="^a finite positive"
    ):
        assert_close_distributions(NORMAL, NORMAL, below=below)


def test_a_bare_tensor_and_an_unknown_option_are_refused() -> None:
    with refused(ArgumentTypeError, instead="wrap it: Logits"):
        assert_close_distributions(ROWS, ROWS, below=0.1)
    with refused(ArgumentValueError, argument="kind"):
        assert_close_distributions(NORMAL, NORMAL, below=0.1, kind="no such kind")


def test_options_reach_the_estimate(capsys: pytest.CaptureFixture[str]) -> None:
    assert_close_distributions(Probs([1.0, 0.0]), Probs([0.0, 1.0]), below=1.01, kind="js:0.5", base=2)
    assert capsys.readouterr().out.startswith("below 1.01: JS (0.5) = 1 bits")


def plans(free: int, paid: int) -> Any:
    import pyarrow as pa

    return pa.table({"plan": ["free"] * free + ["paid"] * paid, "size": [1, 2, 3, 4] * ((free + paid) // 4)})


def test_every_column_of_two_tables_has_to_be_below(capsys: pytest.CaptureFixture[str]) -> None:
    near, far = plans(2960, 1040), plans(1000, 3000)
    assert_close_distributions(plans(3000, 1000), near, below=0.02)
    assert re.match(
        r"below 0\.02: KL of 'plan' = .* nats \(.* to .*\); KL of 'size' = 0 ", capsys.readouterr().out
    )
    with pytest.raises(AssertionError, match=r"\Anot below 0\.02: KL of 'plan' = [^;]*\Z"):
        assert_close_distributions(plans(3000, 1000), far, below=0.02)
    assert_close_distributions(plans(3000, 1000), far, below=0.02, columns=["size"])
    with pytest.raises(AssertionError, match=r"tell whether below 0\.02: KL of 'plan' .* About") as few:
        assert_close_distributions(plans(60, 20), plans(56, 24), below=0.02)
    needed = int("".join(re.findall(r"\d", str(few.value).partition("About ")[2])))
    assert needed > 160
    with pytest.raises(AssertionError, match=r"cannot tell .* KL of 'absent' = nan nats \(no interval\)"):
        assert_close_distributions(near.append_column("absent", near["plan"]), near, below=0.02)


@pytest.mark.sweep
def test_the_error_rate_of_tables_is_divided_by_the_number_of_runs(
    capsys: pytest.CaptureFixture[str],
) -> None:
    near, far, options = plans(2960, 1040), plans(1000, 3000), {"columns": ["plan"], "below": 0.02}
    uppers: list[float] = []
    for runs, confidence in ((1, 0.95), (20, 0.9975), (1000, 0.99995)):
        assert_close_distributions(plans(3000, 1000), near, runs=runs, **options)
        uppers.append(float(capsys.readouterr().out.split(" to ")[1].rstrip(")\n")))
        interval = compare_tables(plans(3000, 1000), near, confidence=confidence)["plan"].kl_pq.interval
        assert interval is not None
        assert uppers[-1] == pytest.approx(interval[1], rel=1e-3)
        with pytest.raises(AssertionError, match=r"\Anot below 0\.02: KL of 'plan'"):
            assert_close_distributions(plans(3000, 1000), far, runs=runs, **options)
    assert uppers == sorted(uppers)
    with refused(ArgumentValueError, argument="confidence"):
        assert_close_distributions(near, near, below=0.02, runs=20, confidence=2)


def test_two_files_of_predictions_are_compared_row_by_row(
    tmp_path: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    paths = [str(tmp_path / name) for name in ("p.npy", "q.npy")]
    logits = torch.randn(400, 5, generator=torch.Generator().manual_seed(0))
    noise = torch.randn(400, 5, generator=torch.Generator().manual_seed(1))
    for path, rows in zip(paths, (logits, logits + 0.05 * noise), strict=True):
        np.save(path, rows.numpy())
    assert_close_distributions(*paths, below=0.01, representation="logits")
    assert capsys.readouterr().out.startswith("below 0.01: KL of the rows = 0.0008")
    with pytest.raises(AssertionError, match=r"not below 0\.0001: KL of the rows"):
        assert_close_distributions(*paths, below=0.0001, representation="logits")
    assert_close_distributions(paths[0], paths[0], below=1e-9, representation="logits")
    with refused(ArgumentValueError, argument="runs", wanted="predictions", instead="runs=1"):
        assert_close_distributions(*paths, below=0.01, representation="logits", runs=10)
    assert_close_distributions(*paths, below=0.01, representation="logits", runs=1)


def test_models_are_compared_on_a_text(capsys: pytest.CaptureFixture[str]) -> None:
    generator = torch.Generator().manual_seed(0)
    table, noise = torch.randn(2, 256, 256, generator=generator, dtype=torch.float64)
    base = BytesModel("base", table)
    near, far = BytesModel("near", table + 0.02 * noise), BytesModel("far", table + 0.5 * noise)
    options: dict[str, Any] = {"texts": text()[:4000], "cut": Cut(context=16)}
    for runs, level in ((1, "95 %"), (1000, "99.995 %")):
        assert_close_distributions(base, near, below=0.002, runs=runs, **options)
        assert re.match(
            rf"below 0\.002: KL of near = 0\.000\d+ nats \({level} 0\.\S+ to 0\.", capsys.readouterr().out
        )
        with pytest.raises(AssertionError, match=r"not below 0\.002: KL of far = [^;]*\Z"):
            assert_close_distributions(base, [near, far], below=0.002, runs=runs, **options)


@pytest.mark.sweep
def test_an_assertion_that_runs_often_is_seldom_wrong_in_all_its_runs() -> None:
    """KL is 0.045, just below the limit, so some of 20 runs find "not below" by chance. With runs=20, few series do."""
    series, runs = 25, 20
    wrong = {1: 0, runs: 0}
    for first in range(0, series * runs, runs):
        for level in wrong:
            outcomes: list[str] = []
            for seed in range(first, first + runs):
                try:
                    assert_close_distributions(
                        draws(2 * seed, 100), draws(2 * seed + 1, 100, 0.3), below=0.0451, runs=level
                    )
                except AssertionError as error:
                    outcomes.append(str(error))
            wrong[level] += any(each.startswith("not below") for each in outcomes)
    # 5 % of 25 series, with a standard deviation of 1.1; and the control, without the division.
    assert wrong[runs] <= 4
    assert wrong[1] > wrong[runs]


def test_the_error_rate_is_divided_by_the_number_of_runs(capsys: pytest.CaptureFixture[str]) -> None:
    for runs, level in ((1, "95 %"), (50, "99.9 %"), (1000, "99.995 %")):
        assert_close_distributions(Counts([3000, 4000]), Counts([3010, 3990]), below=0.05, runs=runs)
        assert f"({level} " in capsys.readouterr().out
    assert_close_distributions(
        Counts([3000, 4000]), Counts([3010, 3990]), below=0.05, runs=10, confidence=0.9
    )
    assert "(99 % " in capsys.readouterr().out
    assert_close_distributions(NORMAL, Normal(1.0, 1.0), below=0.501, runs=1000)


def test_too_few_draws_say_about_how_many_would_decide() -> None:
    def needed(n: int) -> int:
        with pytest.raises(AssertionError, match=r"narrower, and about ([\d,]+) would decide") as few:
            assert_close_distributions(Counts([n, n]), Counts([n + n // 10, n - n // 10]), below=0.05)
        return int(re.findall(r"about ([\d,]+)", str(few.value))[0].replace(",", ""))

    total = needed(20)
    assert total > 80
    n = total // 4  # in each of four cells
    assert_close_distributions(Counts([n, n]), Counts([n + n // 10, n - n // 10]), below=0.05)


@pytest.mark.parametrize("runs", [20, 1000])
def test_parts_for_runs_are_whole_clusters_and_all_counts(runs: int) -> None:
    parts, generator = 2 if runs == 20 else 3, np.random.default_rng(0)
    clusters = torch.arange(300) // 10
    side = Samples(torch.arange(300.0), cluster=clusters, weights=torch.arange(300.0) + 1)
    divided = _parts_of_draws(side, parts, generator)
    assert sorted(x for each in divided for x in each.tensor[:, 0].tolist()) == list(range(300))
    for each in divided:
        assert len(each) == 300 // parts
        assert {int(x) // 10 for x in each.tensor[:, 0]} == {int(x) // 10 for x in each.tensor[::10, 0]}
        assert each.weights is not None
        assert each.cluster is not None
        assert len(each.weights) == len(each.cluster) == len(each)
    counts = torch.tensor([[5, 0, 70], [1, 2, 3]])
    of_counts = _parts_of_draws(Counts(counts), parts, generator)
    assert torch.equal(sum(each.tensor for each in of_counts), counts)
    assert all((each.tensor >= 0).all() for each in of_counts)
    assert (of_counts[0].tensor.sum(-1) - counts.sum(-1) // parts).abs().max() <= 1
    named = _parts_of_draws(Counts({"a": 4, "b": 40}), parts, generator)
    assert [each.labels is not None and list(each.labels) for each in named] == [["a", "b"]] * parts
    assert _parts_of_draws(NORMAL, parts, generator) == [NORMAL] * parts


def test_counts_of_any_size_are_divided_for_runs(capsys: pytest.CaptureFixture[str]) -> None:
    # NumPy's hypergeometric draws end at a billion.
    many = Counts([600_000_000, 700_000_000])
    assert_close_distributions(many, many, below=1e-6, runs=1000)
    assert capsys.readouterr().out.startswith("below 1e-06: KL = 0 nats (99.995 % ")
    divided = _parts_of_draws(many, 3, np.random.default_rng(0))
    assert torch.equal(sum(each.tensor for each in divided), many.tensor)
    for each in divided:  # within ten standard deviations of a binomial
        assert (each.tensor.double() - many.tensor.double() / 3).abs().max() < 10 * (7e8 * 2 / 9) ** 0.5


def test_parts_of_equal_counts_are_independent_on_both_sides(capsys: pytest.CaptureFixture[str]) -> None:
    counts = torch.tensor([500.0, 300.0, 200.0])
    assert_close_distributions(Counts(counts), Counts(counts), below=0.1, runs=10)
    upper = float(capsys.readouterr().out.partition(" to ")[2].partition(")")[0])
    # Equal parts of 500 draws have the divergence 0, whose upper end is half as far from 0 as that of 1000 draws.
    of_equal_parts = estimate(Counts(counts // 2), Counts(counts // 2)).interval
    assert of_equal_parts is not None
    assert upper > float(of_equal_parts[1]) * 1.001


def test_runs_pair_named_counts_by_their_names(capsys: pytest.CaptureFixture[str]) -> None:
    assert_close_distributions(
        Counts({"a": 3000, "b": 4000}), Counts({"b": 3990, "a": 3010}), below=0.05, runs=1000
    )
    assert "(99.995 % " in capsys.readouterr().out
