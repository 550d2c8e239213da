"""Random tables of more rows than memory could hold."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
from scipy.stats import hypergeom

from kullback.tables.inference import significance
from kullback.tables.table_profile import Profile

ROWS = 20_000_000


@pytest.mark.parametrize(
    ("n", "total"),
    [
        (ROWS // 3, [40.0, ROWS - 40.0]),
        (90.0, [5_000_000.0, ROWS - 5_000_000.0]),
        (ROWS // 3, [5_000_000.0, ROWS - 5_000_000.0]),
        (ROWS // 2, [3.0, 500_000.0, ROWS - 500_003.0]),
    ],
)
def test_large_tables_are_hypergeometric(n, total):
    random = np.random.default_rng(0)
    drawn = significance._rows_of_p(n, np.array(total), 40_000, random)
    assert (drawn.sum(1) == n).all()
    assert (drawn == drawn.round()).all()
    for index, good in enumerate(total):
        truth = hypergeom(int(sum(total)), int(good), int(n))
        error = truth.std() / np.sqrt(len(drawn))
        assert abs(drawn[:, index].mean() - truth.mean()) < 4 * error
        assert drawn[:, index].std() == pytest.approx(truth.std(), rel=0.02)
        assert ((drawn[:, index] >= 0) & (drawn[:, index] <= good)).all()


@pytest.mark.parametrize("rows", [1e11, 1e13, 1e18])
def test_a_profile_of_any_number_of_rows_is_compared_in_little_memory(rows):
    def profile(count: float, rare: float) -> Profile:
        return Profile.from_json(
            f'{{"schema":"kullback.profile/2","rows":{count},"weight":{count},"weight_squares":{count},'
            f'"weights":null,"skipped":{{}},"columns":{{"s":{{"column_type":"boolean","categories":'
            f'{{"true":{rare},"false":{count - rare}}}}}}}}}'
        )

    from kullback.tables import compare_profiles

    tracemalloc.start()
    found = compare_profiles(profile(rows, 3), profile(50, 2)).columns[0]
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert found.p_value < 0.01
    assert peak < 100 << 20
