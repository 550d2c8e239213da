"""The command `kullback fit`."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from click.testing import CliRunner, Result

from kullback.cli.commands import kullback

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


def test_a_class_is_fitted_to_a_distribution() -> None:
    result = run("fit", "Normal", "--to", TWO)
    assert result.exit_code == 0
    assert result.stdout.startswith("Normal: KL(to || q) = 0.5854")  # by scipy.integrate.quad
    assert "moment matching" in result.stdout


def test_the_other_direction_as_json() -> None:
    document = json.loads(run("fit", "Normal(3, 1)", "--to", TWO, "--kind", "reverse-kl", "--json").stdout)
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
