"""One set of worker processes for all tests of this folder."""

from __future__ import annotations

from typing import Any

import pytest

from tests.parallel.cases import CASES
from tests.parallel.world import run


@pytest.fixture(scope="session")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, int], list[Any]]:
    """What each case returned on each rank of groups of 1, 2, 3 and 4."""
    return run(CASES, tmp_path_factory.mktemp("parallel"))
