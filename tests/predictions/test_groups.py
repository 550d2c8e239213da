"""Statistics by group of rows: those of the rows alone, and their paired differences from all other rows."""

from __future__ import annotations

import json
import math
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from click.testing import CliRunner
from hypothesis import given, settings, strategies as st
from torch import Tensor

from kullback import Logits, compare_predictions
from kullback.cli.commands import kullback
from kullback.cli.gates import parse_gate
from kullback.errors import ArgumentTypeError, ArgumentValueError, FileError
from kullback.io import open_rows
from kullback.predictions import Comparison
from kullback.predictions.mean_intervals import MeanEstimator
from tests.refusals import refused

ROWS, CLASSES = 360, 12
NAMES = ("code", "prose", "table")
PAIRED = ("kl_pq", "js", "top1_agreement", "cross_entropy_q", "difference")


def random_of(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def sides(rows: int = ROWS, seed: int = 0) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Logits of P and Q, labels, and the number of the window of each row."""
    random = random_of(seed)
    p = torch.randn(rows, CLASSES, generator=random, dtype=torch.float64)
    noise = torch.randn(rows, CLASSES, generator=random, dtype=torch.float64)
    windows = torch.arange(rows) // 9
    level = 0.2 + torch.rand(int(windows.max()) + 1, generator=random, dtype=torch.float64)
    labels = torch.randint(CLASSES, (rows,), generator=random)
    labels[::7] = -100
    return p, p + level[windows][:, None] * noise, labels, windows


def names_of(rows: int = ROWS, seed: int = 1) -> np.ndarray[Any, Any]:
    return np.array(NAMES)[torch.randint(3, (rows,), generator=random_of(seed)).numpy()]


def compared(
    chosen: Tensor | slice = slice(None), groups: object = None, *, clusters: bool = True, **options: Any
) -> Comparison:
    p, q, labels, windows = (x[chosen] for x in sides())
    cluster = windows if clusters else None
    return compare_predictions(
        Logits(p), Logits(q), labels=labels, cluster=cluster, groups=groups, bootstrap=200, **options
    )


def same(a: object, b: object) -> bool:
    """Whether two values are equal to the last bit; NaN equals NaN."""
    return repr(a) == repr(b)


def require_equal(a: Comparison, b: Comparison, *, but: tuple[str, ...] = ()) -> None:
    """Require the same figures, apart from names and the fields `but`."""
    left_out = ("p_name", "q_name", "groups", "against_rest", "worst", *but)
    for name in (each.name for each in fields(Comparison) if each.name not in left_out):
        assert same(getattr(a, name), getattr(b, name)), name


@pytest.mark.parametrize("clusters", [True, False])
def test_the_figures_of_a_group_are_those_of_its_rows_alone(clusters: bool) -> None:
    groups = names_of()
    whole = compared(groups=groups, clusters=clusters)
    assert list(whole.groups) == list(NAMES)
    for name, group in whole.groups.items():
        require_equal(group, compared(torch.from_numpy(groups == name), clusters=clusters))
        assert group.worst == []
    require_equal(whole, compared(clusters=clusters))


def test_the_order_of_rows_is_examined_in_each_group() -> None:
    """Rows of one group depend on their neighbors there; those of the other do not."""
    random, rows = random_of(0), torch.arange(1200)
    p, noise = torch.randn(2, 1200, CLASSES, generator=random, dtype=torch.float64)
    level = torch.where(rows % 2 == 1, 0.3 + 0.2 * torch.sin(rows / 30), 0.3)
    groups = np.where(rows % 2 == 1, "alike", "alone")
    whole = compare_predictions(Logits(p), Logits(p + level[:, None] * noise), groups=groups, bootstrap=100)
    assert any("dependence" in note for note in whole.groups["alike"].notes)
    assert not any("dependence" in note for note in whole.groups["alone"].notes)


@settings(max_examples=6, deadline=None)
@given(st.integers(0, 10**6), st.booleans())
def test_one_group_has_the_figures_of_all_rows(seed: int, clusters: bool) -> None:
    generator = random_of(seed)
    whole = compared(groups=["all"] * ROWS, clusters=clusters, generator=generator)
    require_equal(whole.groups["all"], whole)
    assert whole.groups["all"].against_rest == {}


@settings(max_examples=6, deadline=None)
@given(st.integers(0, 10**6), st.permutations(range(4)))
def test_groups_sum_to_all_rows_and_keep_their_figures_under_other_names(seed: int, names: list[int]) -> None:
    numbers = torch.randint(4, (ROWS,), generator=random_of(seed))
    whole, renamed = compared(groups=numbers), compared(groups=torch.tensor(names)[numbers])
    for number, name in enumerate(names):
        group, other = whole.groups[str(number)], renamed.groups[str(name)]
        require_equal(group, other)
        for statistic, value in group.against_rest.items():
            there = other.against_rest[statistic]
            assert (there.value, there.standard_error, *there.ends) == pytest.approx(
                (value.value, value.standard_error, *value.ends), rel=1e-9, abs=1e-12
            )
    groups = whole.groups.values()
    assert sum(each.rows for each in groups) == whole.rows
    for statistic, summary in whole.divergences.items():
        total = sum(each.rows * each.divergences[statistic].mean for each in groups)
        assert total / whole.rows == pytest.approx(summary.mean, rel=1e-12)
    assert whole.labels is not None
    labeled = [each.labels for each in groups if each.labels is not None]
    total = sum(each.labeled * each.cross_entropy_q.mean for each in labeled)
    assert total / whole.labels.labeled == pytest.approx(whole.labels.cross_entropy_q.mean, rel=1e-12)


def row_values() -> dict[str, Tensor]:
    """The statistics of each row, by their definitions; NaN without a label."""
    p, q, labels, _ = sides()
    log_p, log_q = p.log_softmax(-1), q.log_softmax(-1)
    mix = torch.logaddexp(log_p, log_q) - math.log(2)
    at = labels.clamp(min=0)[:, None]
    of_p, of_q = (-x.gather(-1, at)[:, 0].where(labels >= 0, torch.nan) for x in (log_p, log_q))
    return {
        "kl_pq": (log_p.exp() * (log_p - log_q)).sum(-1),
        "js": ((log_p.exp() * (log_p - mix)).sum(-1) + (log_q.exp() * (log_q - mix)).sum(-1)) / 2,
        "top1_agreement": (p.argmax(-1) == q.argmax(-1)).double(),
        "cross_entropy_q": of_q,
        "difference": of_q - of_p,
    }


@pytest.mark.parametrize("clusters", [True, False])
def test_a_difference_from_the_rest_is_that_of_the_means_and_its_error_that_of_the_jackknife(
    clusters: bool,
) -> None:
    groups, windows = names_of(), sides()[3].numpy() if clusters else np.arange(ROWS)
    whole = compared(groups=groups, clusters=clusters, independent=not clusters)
    for statistic in PAIRED:
        values = row_values()[statistic].numpy()
        known = ~np.isnan(values)

        def difference(rows: Any, name: str, values: Any = values) -> float:
            here = groups == name
            return float(values[rows & here].mean() - values[rows & ~here].mean())

        for name in NAMES:
            found = whole.groups[name].against_rest[statistic]
            assert found.value == pytest.approx(difference(known, name), rel=1e-9, abs=1e-12)
            units = np.unique(windows[known])
            left_out = [difference(known & (windows != unit), name) for unit in units]
            error = math.sqrt((len(units) - 1) * np.var(left_out))
            assert found.standard_error == pytest.approx(error, rel=0.02)
            low, high = found.ends
            assert low < found.value - 1.7 * error
            assert high > found.value + 1.7 * error


def test_a_difference_is_as_open_as_the_means() -> None:
    p, q, _, windows = sides()
    equal = np.where(windows.numpy() % 2, "equal", "other")
    q = torch.where(torch.from_numpy(equal == "equal")[:, None], p, q)
    whole = compare_predictions(Logits(p), Logits(q), cluster=windows, groups=equal)
    found = whole.groups["equal"].against_rest["kl_pq"]
    assert whole.groups["equal"].divergences["kl_pq"].interval == (0.0, math.inf)
    assert (found.ends[1], found.reason) == (math.inf, "few nonzero units")
    assert -math.inf < found.ends[0] < found.value
    assert whole.groups["other"].against_rest["kl_pq"].ends == (-math.inf, -found.ends[0])
    # Equal top classes in all rows do not make the agreement certain.
    same_top = whole.groups["equal"].against_rest["top1_agreement"]
    assert same_top.ends[0] < same_top.value < same_top.ends[1]


def test_few_units_infinite_rows_and_one_row() -> None:
    p, q, labels, windows = sides()
    groups = np.where(np.arange(ROWS) < 20, "few", "many")
    groups[100] = "one"
    q[200, 3] = -torch.inf
    whole = compare_predictions(Logits(p), Logits(q), labels=labels, cluster=windows, groups=groups)
    few, one, many = (whole.groups[name] for name in ("few", "one", "many"))
    assert (few.divergences["kl_pq"].interval, few.divergences["kl_pq"].reason) == (None, "few units")
    assert few.against_rest["js"].interval is None
    assert few.against_rest["js"].reason == "few units"
    assert one.rows == 1
    assert math.isnan(one.divergences["kl_pq"].standard_error)
    assert math.isnan(one.against_rest["js"].standard_error)
    assert one.against_rest["js"].interval is None
    assert one.divergences["kl_pq"].mean == pytest.approx(float(row_values()["kl_pq"][100]), rel=1e-9)
    assert many.divergences["kl_pq"].mean == math.inf
    assert many.infinite["kl_pq"] == 1
    assert few.infinite["kl_pq"] == 0
    assert few.against_rest["kl_pq"].value == -math.inf
    assert few.against_rest["kl_pq"].interval is None
    assert math.isfinite(few.divergences["kl_pq"].mean)
    unlabeled = compare_predictions(
        Logits(p),
        Logits(q),
        labels=torch.where(torch.from_numpy(groups == "few"), -100, labels),
        groups=groups,
    )
    assert "difference" not in unlabeled.groups["few"].against_rest
    assert "js" in unlabeled.groups["few"].against_rest


@pytest.mark.sweep
@pytest.mark.parametrize(("windows", "least"), [(25, 0.93), (60, 0.93), (200, 0.93)])
def test_intervals_of_differences_cover_where_groups_share_windows(windows: int, least: float) -> None:
    """The level of a window is in both groups, and decides how many of its rows are in which."""
    from kullback.common.row_statistics import BUILT_IN
    from kullback.predictions.groups import AgainstRest, Groups

    kl = [each for each in BUILT_IN if each.name == "kl_pq"]

    def draw(seed: int, units: int) -> tuple[Tensor, Tensor, Tensor]:
        random = random_of(seed)
        sizes = torch.randint(5, 30, (units,), generator=random)
        unit = torch.repeat_interleave(torch.arange(units), sizes)
        level, effect, lean = torch.randn(3, units, generator=random, dtype=torch.float64)
        inside = torch.rand(len(unit), generator=random) < torch.sigmoid(lean + level - 1)[unit]
        noise = torch.randn(len(unit), generator=random, dtype=torch.float64)
        log = 0.6 * level[unit] + inside * (0.3 + 0.24 * effect[unit]) + 0.5 * noise
        return unit, inside, log.exp()

    _, inside, values = draw(10**6, 200_000)
    true = float(values[inside].mean() - values[~inside].mean())
    covered, below, above = 0, 0, 0
    for seed in range(400):
        unit, inside, values = draw(seed, windows)
        groups = Groups(inside.long(), ["out", "in"])
        against_rest = AgainstRest(groups, ["kl_pq"], kl)
        estimator = MeanEstimator(against_rest.columns, 300, None, unit)
        estimator.add(against_rest.table(values[:, None], groups))
        low, high = against_rest.values(estimator)["in"]["kl_pq"].ends
        covered += low <= true <= high
        below, above = below + (high < true), above + (low > true)
    assert covered / 400 >= least
    assert max(below, above) / 400 <= 0.055


@pytest.mark.parametrize("kind", ["list", "array", "tensor", "Booleans", "numbers", "npy", "txt", "series"])
def test_groups_come_in_many_forms(kind: str, tmp_path: Path) -> None:
    pd = pytest.importorskip("pandas")
    names = names_of()
    expected = compared(groups=names)
    if kind in ("tensor", "numbers"):
        numbers = np.searchsorted(NAMES, names)
        found = compared(groups=torch.from_numpy(numbers) if kind == "tensor" else numbers.tolist())
        for number, name in enumerate(NAMES):
            require_equal(found.groups[str(number)], expected.groups[name])
        return
    if kind == "Booleans":
        found = compared(groups=names == "code")
        require_equal(found.groups["True"], expected.groups["code"])
        return
    np.save(tmp_path / "groups.npy", names)
    (tmp_path / "groups.txt").write_text("\n".join(names))
    forms = {"list": names.tolist(), "array": names.reshape(-1, 1), "series": pd.Series(names, dtype=object)}
    forms |= {"npy": tmp_path / "groups.npy", "txt": str(tmp_path / "groups.txt")}
    found = compared(groups=forms[kind])
    assert same(found.groups, expected.groups)


def test_groups_are_a_column_of_p(tmp_path: Path) -> None:
    p, q, _, _ = sides()
    names = names_of()
    columns = {f"class_{number}": p[:, number].numpy() for number in range(CLASSES)}
    pq.write_table(pa.table({**columns, "kind": names}), tmp_path / "p.parquet")
    pq.write_table(
        pa.table({name: q[:, number].numpy() for number, name in enumerate(columns)}), tmp_path / "q.parquet"
    )
    expected = compare_predictions(Logits(p), Logits(q), groups=names)
    options: Any = {"representation": "logits", "columns": list(columns)}
    paths = tmp_path / "p.parquet", tmp_path / "q.parquet"
    for more in ({"groups": "kind"}, {"groups": paths[0], "group_key": "kind"}):
        found = compare_predictions(*paths, **options, **more)
        for name in NAMES:
            require_equal(found.groups[name], expected.groups[name])
    with refused(FileError, wanted="'kinds'", instead="--group-key"):
        compare_predictions(*paths, **options, groups="kinds")


def test_groups_that_are_refused_and_their_remedies(tmp_path: Path) -> None:
    with refused(ArgumentValueError, argument="groups", wanted="at most 32", instead=r"cluster=.*--cluster"):
        compared(groups=torch.arange(ROWS))
    assert compared(groups=torch.arange(ROWS) % 32).groups
    with refused(ArgumentValueError, argument="groups", wanted="360 values", got="359"):
        compared(groups=["a"] * (ROWS - 1))
    for wrong in (torch.rand(ROWS), [None] * ROWS, ["a", None] * (ROWS // 2), [1.5] * ROWS):
        with refused(
            ArgumentTypeError, argument="groups", wanted="without missing", instead="'code', 'prose'"
        ):
            compared(groups=wrong)
    with refused(ArgumentValueError, argument="group_key", instead="without group_key"):
        compared(group_key="kind")
    with refused(FileError):
        compared(groups=tmp_path / "nowhere.npy")
    np.save(tmp_path / "floats.npy", np.zeros(ROWS))
    with refused(FileError, wanted="integers, Booleans or text", instead="write names"):
        compared(groups=tmp_path / "floats.npy")


def test_groups_of_a_stream_of_unknown_length(tmp_path: Path) -> None:
    p, q, _, _ = sides()
    for name, x in (("p", p), ("q", q)):
        np.savetxt(tmp_path / f"{name}.csv", x.numpy(), delimiter=",")
    paths = tmp_path / "p.csv", tmp_path / "q.csv"
    with open_rows(paths[0], representation="logits") as source:
        assert source.rows is None
    found = compare_predictions(*paths, representation="logits", groups=names_of(), block_bytes=1)
    assert [each.rows for each in found.groups.values()] == [
        int((names_of() == name).sum()) for name in NAMES
    ]
    for wrong, wanted in ((ROWS - 1, f"{ROWS} values"), (ROWS + 1, f"{ROWS} values")):
        with refused(ArgumentValueError, argument="groups", wanted=wanted, got=str(wrong)):
            compare_predictions(*paths, representation="logits", groups=names_of(wrong))


def test_a_resumed_run_takes_other_groups(tmp_path: Path) -> None:
    class StopError(Exception):
        pass

    def stop(done: int, _: int | None) -> None:
        if done >= ROWS // 2:
            raise StopError

    state = tmp_path / "state"
    with pytest.raises(StopError):
        compared(groups=names_of(), resume=state, progress=stop, block_bytes=1)
    for seed in (1, 2):  # the groups are not part of the finished rows
        found = compared(groups=names_of(seed=seed), resume=state, block_bytes=1)
        assert same(found.groups, compared(groups=names_of(seed=seed)).groups)


def test_more_rows_than_units_that_are_kept() -> None:
    random = random_of(3)
    p = torch.randn(12_000, 3, generator=random)
    q = p + 0.3 * torch.randn(12_000, 3, generator=random)
    groups = torch.rand(12_000, generator=random) < 0.3
    found = compare_predictions(Logits(p), Logits(q), groups=groups, independent=True, bootstrap=100)
    kl = (p.double().softmax(-1) * (p.double().log_softmax(-1) - q.double().log_softmax(-1))).sum(-1)
    means = [float(kl[rows].mean()) for rows in (groups, ~groups)]
    value = found.groups["True"].against_rest["kl_pq"]
    assert value.value == pytest.approx(means[0] - means[1], rel=1e-5)
    error = math.sqrt(sum(float(kl[rows].var()) / int(rows.sum()) for rows in (groups, ~groups)))
    assert value.standard_error == pytest.approx(error, rel=0.1)


def test_reports_have_the_groups() -> None:
    groups = names_of()
    whole = compared(groups=groups)
    record = json.loads(whole.to_json())
    assert list(record["groups"]) == list(NAMES)
    for name in NAMES:
        group, found = whole.groups[name], record["groups"][name]
        assert found["divergences"]["kl_pq"]["mean"] == group.divergences["kl_pq"].mean
        assert found["against_rest"]["kl_pq"]["interval"] == list(group.against_rest["kl_pq"].ends)
        assert found["rows"] == group.rows
        assert "worst" not in found
    assert "groups" not in json.loads(compared().to_json())
    frame = whole.to_pandas()
    assert frame.group.isna().tolist() == [True] * 4 + [False] * 12
    assert frame.group[4:].tolist() == [each for name in NAMES for each in [name] * 4]
    assert frame[frame.group == "code"].loc["kl_pq", "mean"] == whole.groups["code"].divergences["kl_pq"].mean
    assert "group" not in compared().to_pandas()
    kl = whole.groups["code"].divergences["kl_pq"].mean
    for text in (str(whole), whole.to_markdown(), whole.to_html()):
        assert all(part in text for part in (*NAMES, "By group", f"{kl:.4g}"))
    assert "minus the rest" in whole.to_markdown()
    assert "By group" not in str(compared())
    assert "groups" not in str(whole.groups["code"])


def test_a_gate_on_a_group() -> None:
    whole = compared(groups=names_of())
    kl = {name: each.divergences["kl_pq"] for name, each in whole.groups.items()}

    def outcome(text: str) -> tuple[str, tuple[str, ...]]:
        verdict = parse_gate(text, "above").verdict([(None, whole)])  # pyright: ignore[reportArgumentType]
        return verdict.outcome, verdict.sentences

    for name in NAMES:
        low, high = kl[name].ends
        assert outcome(f"mean[{name}]={1.01 * high}")[0] == "passed"
        assert outcome(f"mean[{name}]={kl[name].mean}")[0] == "unclear"
        verdict, sentences = outcome(f"mean[{name}]={0.9 * low}")
        assert verdict == "failed"
        assert f"in group {name!r}" in sentences[0]
        assert outcome(f"p99.value[{name}]={1.01 * kl[name].p99}")[0] == "passed"
    verdict, sentences = outcome("mean[cod]=100")
    assert verdict == "unclear"
    assert "'code', 'prose', 'table'" in sentences[0]
    none = parse_gate("mean[code]=1", "above").verdict([(None, compared())])  # pyright: ignore[reportArgumentType]
    assert none.outcome == "unclear"
    assert "--group" in none.sentences[0]


def test_the_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    p, q, _, _ = sides()
    np.save("p.npy", p.numpy())
    np.save("q.npy", q.numpy())
    Path("groups.txt").write_text("\n".join(names_of()))

    def run(*more: str) -> Any:
        return CliRunner().invoke(kullback, ["compare", "p.npy", "q.npy", "--as", "logits", *more])

    brief = run("--group", "groups.txt")
    assert brief.exit_code == 0
    assert len(brief.stdout.splitlines()) <= 12
    assert all(name in brief.stdout for name in NAMES)
    gated = "--group", "groups.txt", "--independent", "--fail-above"
    assert run(*gated, "mean[code]=100").exit_code == 0
    assert run(*gated, "mean[code]=0.0001").exit_code == 1
    Path("many.txt").write_text("\n".join(map(str, range(ROWS))))
    for wrong, part in (("many.txt", "--cluster"), ("nowhere", "nowhere"), ("p.npy", "wanted")):
        refusal = run("--group", wrong)
        assert refusal.exit_code == 2
        assert part in refusal.stderr
        assert len(refusal.stderr.strip().splitlines()) == 1
    tables = CliRunner().invoke(kullback, ["compare", "a.csv", "b.csv", "--as", "table", "--group", "x"])
    assert tables.exit_code == 2
    assert "--group" in tables.stderr
