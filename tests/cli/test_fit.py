"""The command `kullback fit`."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from click.testing import CliRunner, Result

from kullback.cli.commands import kullback
from kullback.errors import ArgumentValueError
from kullback.generators import parse

TWO = "MixtureSameFamily(Categorical([0.4, 0.6]), Normal([-4, 3], [0.8, 1.2]))"


def run(*arguments: str) -> Result:
    return CliRunner(env={"COLUMNS": "100"}).invoke(kullback, list(arguments), prog_name="kullback")


def assert_one_line_error(result: Result, *words: str) -> None:
    assert result.exit_code == 2
    assert result.stdout == ""
    assert result.stderr.startswith("kullback: ")
    assert result.stderr.count("\n") == 1
    for word in words:
        assert word in result.stderr


@pytest.fixture
def table(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    path = tmp_path / "samples.parquet"
    pl.DataFrame({"x": rng.gamma(3, 2, 200), "w": np.ones(200), "k": rng.poisson(4, 200)}).write_parquet(path)
    return path


@pytest.mark.parametrize("target", ["file:{}", "file://{}", "s3://bucket/x.parquet", "missing.parquet"])
def test_a_target_is_a_file_and_never_a_url(table: Path, target: str) -> None:
    assert_one_line_error(
        run("fit", "Normal", "--to", target.format(table)), "cannot be read", "no such file"
    )


def test_a_class_is_fitted_to_a_distribution() -> None:
    result = run("fit", "Normal", "--to", TWO)
    assert result.exit_code == 0
    assert result.stdout.startswith("Normal: KL(to || q) = 0.5854")  # by scipy.integrate.quad
    assert "moment matching" in result.stdout


def test_the_other_direction_as_json() -> None:
    document = json.loads(run("fit", "Normal(3, 1)", "--to", TWO, "--kind", "reverse_kl", "--json").stdout)
    assert document["schema"] == "kullback.fit/1"
    assert document["quantity"] == "KL(q || to)"
    assert document["value"] == pytest.approx(0.5108, abs=1e-3)
    assert document["parameters"]["loc"] == pytest.approx(3, abs=0.01)


def test_draws_of_a_table_and_of_an_array(table: Path) -> None:
    x = pl.read_parquet(table)["x"].to_numpy()
    found = json.loads(
        run("fit", "Normal", "--to", str(table), "--column", "x", "--weights", "w", "--json").stdout
    )
    assert found["parameters"]["loc"] == pytest.approx(x.mean())
    assert found["method"] == "maximum_likelihood"
    np.save(table.with_suffix(".npy"), x)
    again = json.loads(run("fit", "Normal", "--to", str(table.with_suffix(".npy")), "--json").stdout)
    assert again["parameters"] == pytest.approx(found["parameters"])
    counts = json.loads(run("fit", "Poisson", "--to", str(table), "--column", "k", "--json").stdout)
    assert counts["parameters"]["rate"] == pytest.approx(pl.read_parquet(table)["k"].mean())


def test_fixed_parameters_files_and_a_plot(table: Path) -> None:
    plot, out = table.with_name("fit.svg"), table.with_name("fit.json")
    arguments = ("--fixed", "loc", "--plot", str(plot), "--json", str(out))
    result = run("fit", "Normal(1, 1)", "--to", "Gamma(4, 2)", *arguments)
    assert result.exit_code == 0
    assert json.loads(out.read_text())["parameters"]["loc"] == 1.0
    assert "<svg" in plot.read_text()


def test_errors_are_one_line_and_leave_no_file(table: Path) -> None:
    assert_one_line_error(run("fit", "Gamma", "--to", "Normal(0, 1)"), "finite KL(to || q)")
    assert_one_line_error(run("fit", "Normal", "--to", str(table)), "3 columns", "--column", "'x'")
    assert_one_line_error(run("fit", "Normal", "--to", str(table), "--column", "y"), "no column 'y'")
    assert_one_line_error(run("fit", "Normal", "--to", "nowhere.parquet", "--column", "x"), "nowhere.parquet")
    assert_one_line_error(run("fit", "Normal", "--to", "Gamma(4, 2)", "--column", "x"), "file of draws")
    assert_one_line_error(
        run("fit", "Strange(1)", "--to", "Gamma(4, 2)"), "not a distribution that can be read"
    )
    plot = table.with_name("plot.txt")
    assert_one_line_error(run("fit", "Normal", "--to", "Gamma(4, 2)", "--plot", str(plot)), ".svg")
    assert not plot.exists()
    assert_one_line_error(
        run("fit", "Normal", "--to", str(table), "--column", "x", "--json", str(table)), "cannot write"
    )
    broken = table.with_name("broken.csv")
    broken.write_text("x\n1\n\n3\n")
    assert_one_line_error(run("fit", "Normal", "--to", str(broken)), "missing values")


@pytest.mark.parametrize("full", ["--plot", "--json"])
def test_of_the_files_of_one_fit_all_are_written_or_none(full: str, tmp_path: Path) -> None:
    (tmp_path / "device.svg").symlink_to("/dev/full")
    names = {"--plot": tmp_path / "plot.svg", "--json": tmp_path / "fit.json", full: tmp_path / "device.svg"}
    options = [str(part) for pair in names.items() for part in pair]
    result = CliRunner().invoke(kullback, ["fit", "Normal", "--to", "Gamma(3, 1)", *options])
    assert result.exit_code == 2
    assert result.stderr.startswith(f"kullback: cannot write {tmp_path / 'device.svg'}: No space left")
    assert result.stderr.count("\n") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["device.svg"]


NORMAL = ("fit", "Normal", "--to")


@pytest.mark.parametrize(
    ("text", "options", "words"),
    [
        ("x\n1.5\n2.5\nabc\n100.0\n", (), ("--column 'x' of 'x.csv'", "'abc' in row 2", "Categorical")),
        ("x,x\n1,1\n2,1\n", ("--column", "x"), ("--column 'x'", "the name of one column", "that of 2")),
        (
            "x,w\n1,1\n2,b\n",
            ("--column", "x", "--weights", "w"),
            ("--weights 'w'", "'b' in row 1", "leave --weights out"),
        ),
        ("x\n2020-01-01\n2020-01-03\n", (), ("wanted numbers", "a column of type date32[day]")),
        ("x\n", (), ("at least one draw", "without rows")),
        ("x,w\n1,1\n,2\n", ("--column", "x"), ("missing values", "the first in row 1")),
    ],
    ids=["typo", "two of a name", "text as weights", "dates", "no rows", "missing"],
)
def test_a_column_that_holds_no_draws_is_named(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    text: str,
    options: tuple[str, ...],
    words: tuple[str, ...],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("x.csv").write_text(text)
    assert_one_line_error(run(*NORMAL, "x.csv", *options), *words)


def test_text_in_an_array_and_in_a_column_is_for_classes_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    np.save("x.npy", np.array(["1", "b", "b"]))
    pl.DataFrame({"x": ["1", "b", "b"], "y": ["1", "2", "3"]}).write_parquet("x.parquet")
    for arguments in (("x.npy",), ("x.parquet", "--column", "x")):
        assert_one_line_error(run(*NORMAL, *arguments), "wanted numbers", "'b' in row 1")
        for family in ("Categorical([1, 1])", "Logits([0, 0])"):
            found = json.loads(run("fit", family, "--to", *arguments, "--json").stdout)
            assert found["value"] == pytest.approx(np.log(3) - 2 / 3 * np.log(2))
    assert_one_line_error(run(*NORMAL, "x.parquet", "--column", "y"), "text, each a number")
    np.save("dates.npy", np.array(["2020-01-01"], dtype="M8[D]"))
    assert_one_line_error(run(*NORMAL, "dates.npy"), "wanted numbers", "datetime64[D]")


def test_decimals_vectors_and_a_blank_last_line_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    vectors = [[1.0, 0.0], [0.0, 3.0], [2.0, 0.5]]
    frame = pl.DataFrame({"x": ["1.5", "2.5", "3.5"], "v": vectors}).with_columns(
        pl.col("x").cast(pl.Decimal(4, 1))
    )
    frame.write_parquet("x.parquet")
    found = json.loads(run(*NORMAL, "x.parquet", "--column", "x", "--json").stdout)
    assert found["parameters"]["loc"] == 2.5
    family = "Independent(Normal([0, 0], [1, 1]), 1)"
    found = json.loads(run("fit", family, "--to", "x.parquet", "--column", "v", "--json").stdout)
    assert found["parameters"]["loc"] == pytest.approx([1.0, 7 / 6])
    Path("two.csv").write_text("x,w\n1,1\n2,1\n4,2\n\n")
    found = json.loads(run(*NORMAL, "two.csv", "--column", "x", "--weights", "w", "--json").stdout)
    assert found["parameters"]["loc"] == pytest.approx(2.75)


def test_a_folder_without_tables_is_named(tmp_path: Path) -> None:
    (tmp_path / "dd.parquet").mkdir()
    assert_one_line_error(
        run(*NORMAL, str(tmp_path / "dd.parquet"), "--column", "a"), "got a folder without tables"
    )


def test_a_first_line_of_numbers_is_a_draw(tmp_path: Path) -> None:
    path = tmp_path / "draws.csv"
    path.write_text("1.5\n2.5\n3.5\n4.0\n7\n")
    found = json.loads(run(*NORMAL, str(path), "--json").stdout)
    assert found["parameters"]["loc"] == pytest.approx(3.7)


SPELLINGS = {
    "kl": "kl", "reverse_kl": "reverse_kl", "reverse-kl": "reverse_kl", "Reverse_KL": "reverse_kl",
    "jeffreys": "jeffreys", "js": "js:0.5", "js:0.1": "js:0.1", "skew:0.1": "skew:0.1", "tv": "tv",
    "total-variation": "tv", "hellinger": "hellinger", "chi2": "chi2", "alpha:0.5": "alpha:0.5", "renyi:2": "renyi:2",
}  # fmt: skip


@pytest.mark.parametrize(("spelling", "name"), SPELLINGS.items())
def test_kinds_have_the_same_names_in_every_command_as_in_the_library(
    spelling: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from kullback import dispatch, projection

    taken = []

    def take(*_: object, kind: object, **__: object) -> None:
        taken.append(kind)
        raise ArgumentValueError("taken")

    monkeypatch.setattr(projection, "fit", take)
    monkeypatch.setattr(dispatch, "divergence", lambda p, q, kind, **_: take(kind=kind))
    monkeypatch.setattr(dispatch, "kl_estimate", lambda p, q, **_: take(kind=parse("kl")))
    for command in (("fit", "Normal", "--to", "Normal(0, 1)"), ("calc", "Normal(0, 1)", "Normal(0, 1)")):
        assert_one_line_error(run(*command, "--kind", spelling), "taken")
    assert taken == [parse(name)] * 2


@pytest.mark.parametrize(
    ("wrong", "remedy"), {"reverse": "reverse_kl", "renyi": "renyi:2", "foo": "kl"}.items()
)
def test_a_kind_that_does_not_exist_is_refused_with_a_remedy_that_works(wrong: str, remedy: str) -> None:
    for command in (("fit", "Poisson(1)", "--to"), ("calc", "Poisson(1)")):
        result = run(*command, "Poisson(2)", "--kind", wrong)
        assert_one_line_error(result, "--kind: wanted", f"Write: --kind {remedy}")
    assert run("calc", "Poisson(1)", "Poisson(2)", "--kind", remedy).exit_code == 0
