"""Numbers that the grid does not separate, which are nearer to its center than the smallest normal number."""

from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from kullback.cli.gates import OF_TABLES, parse_gate
from kullback.report.subjects.tables import meaning
from kullback.tables import Profile, TableComparison, compare_profiles, compare_tables, profile_table

ROWS = 400


def table(seed: int, center: float, scale: float = 1e-310, **others: Any) -> pd.DataFrame:
    draws = np.random.default_rng(seed).normal(center, 1, ROWS)
    return pd.DataFrame({"x": scale * draws} | others)


def messages(result: TableComparison) -> list[str]:
    return [finding.message for finding in result.findings if finding.code == "unseparated"]


@pytest.mark.parametrize("scale", [1e-310, 1e-318, 5e-324])
def test_numbers_that_are_not_separated_are_not_compared_and_the_remedy_works(scale: float) -> None:
    p, q = table(0, 0, scale), table(1, 50, scale)
    result = compare_tables(p, q)
    [message] = messages(result)
    assert message.startswith("'x': 100 % of P's and") or scale == 5e-324  # some of P's are 0
    assert message.endswith("; multiply it by 1e300 in both tables")
    assert not result.columns
    assert result.not_compared == ("x",)
    assert parse_gate("psi=0.2", "above", OF_TABLES).verdict(result).outcome == "unclear"
    compared = compare_tables(p * 1e300, q * 1e300)
    assert meaning(compared["x"]).words == "large shift"
    assert compared["x"].tv.value == pytest.approx(0.95, abs=0.1)


def test_a_column_with_large_numbers_has_another_remedy() -> None:
    p, q = table(0, 0), table(1, 50)
    for frame in (p, q):
        frame.loc[: ROWS // 2, "x"] = np.arange(ROWS // 2 + 1) * 1e9
    [message] = messages(compare_tables(p, q))
    assert message.endswith("; set the numbers below 2.3e-308 to 0 in both tables")
    cleared = compare_tables(
        p.where(p.abs() > sys.float_info.min, 0.0), q.where(q.abs() > sys.float_info.min, 0.0)
    )
    assert not messages(cleared)
    assert cleared["x"].psi.value == 0


def test_zeros_equal_numbers_and_rare_numbers_are_compared() -> None:
    zeros = pd.DataFrame({"x": np.repeat([0.0, -0.0, 1.0, 2.0], ROWS // 4)})
    assert profile_table(zeros).columns["x"].unseparated == 0
    # The only number of P is the center of the grid.
    same = pd.DataFrame({"x": np.full(ROWS, 1e-310)})
    result = compare_tables(same, same)
    assert result["x"].psi.value == 0
    assert not messages(result)
    [message] = messages(compare_tables(same, 2 * same))
    assert message.startswith("'x': 100 % of Q's numbers are less than 2.3e-308 away from 1e-310, which")
    rare = zeros.copy()
    rare.loc[:3, "x"] = -1e-310
    assert profile_table(rare).columns["x"].unseparated == 4
    assert not messages(compare_tables(zeros, rare))
    rare.loc[:4, "x"] = 1e-310
    assert len(messages(compare_tables(rare, zeros))) == 1


def test_profiles_keep_the_weight_of_numbers_that_are_not_separated(tmp_path: Path) -> None:
    frame = table(0, 3, w=np.arange(ROWS) / 8)
    profile = profile_table(frame, weights="w")
    weight = float(frame["w"].sum())
    assert profile.columns["x"].unseparated == pytest.approx(weight)
    profile.save(tmp_path / "p.json")
    loaded = Profile.load(tmp_path / "p.json")
    assert math.isclose(loaded.columns["x"].unseparated, weight)
    halves = [profile_table(part, weights="w", like=profile) for part in (frame[:99], frame[99:])]
    assert halves[0].merge(halves[1]).columns["x"].unseparated == pytest.approx(weight)
    assert compare_profiles(loaded, halves[0]).not_compared == ("x",)
