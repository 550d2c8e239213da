"""One set of worker processes for all tests of this folder."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.parallel.world import World


@pytest.fixture(scope="session")
def results(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """By name and size: what each case returns on each rank of groups of 1, 2, 3 and 4."""
    world = World(tmp_path_factory.mktemp("parallel"))
    yield world
    world.close()
