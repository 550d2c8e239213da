"""What every test shares: threads, hypothesis' profile, and a browser where there is one."""

from __future__ import annotations

import contextlib
import functools
import gc
import importlib
import os
import shutil
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from _pytest.doctest import DoctestModule
from hypothesis import HealthCheck, settings

from tests import parts

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

# Several pytest-xdist workers share the cores, so each computes on one; so do the processes that they start.
# The process that starts the workers does not need torch.
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    import torch

    torch.set_num_threads(1)

# Until the tests are collected, next to nothing becomes garbage.
gc.disable()

# The same examples on every run: a failure seen once is seen again. Timing says nothing on a busy machine.
settings.register_profile(
    "repeatable", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("repeatable")


# What the files of each of these folders share takes seconds: processes to fork from, models, workers.
TOGETHER = ("tests/cli/", "tests/models/", "tests/parallel/")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Keep a file on one worker, which makes what its tests share once; the order is that of collection."""
    from xdist.scheduler import LoadScopeScheduling

    class ByFile(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file = nodeid.partition("::")[0]
            return next((folder for folder in TOGETHER if file.startswith(folder)), file)

    config.option.loadscopereorder = False  # else files of few tests, the longest among them, would come last
    return ByFile(config, log)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--part", choices=[*parts.PARTS, parts.EVERYTHING], default=parts.EVERYTHING, help=parts.__doc__
    )


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Do not import a file that has no test of the part."""
    light = config.getoption("part") in {"quick", "sweeps"}
    return True if light and collection_path.is_file() and parts.is_heavy_file(collection_path) else None


@pytest.hookimpl(wrapper=True)
def pytest_collect_file(file_path: Path) -> Generator[None, list[pytest.Collector], list[pytest.Collector]]:
    """Do not import a file to look for examples that it does not have."""
    collectors = yield
    return [
        collector
        for collector in collectors
        if not isinstance(collector, DoctestModule) or parts.has_example(file_path)
    ]


def pytest_collection(session: pytest.Session) -> None:
    """Let each worker import another share of the test files first: files that one has compiled, the others read."""
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    if worker == 0:
        return  # The collection itself begins with the first share.
    folders = [Path(argument) for argument in session.config.args if Path(argument).is_dir()]
    files = [file for folder in folders for file in sorted(folder.rglob("test_*.py"))]
    for file in parts.share(files, worker, int(os.environ["PYTEST_XDIST_WORKER_COUNT"])):
        if not pytest_ignore_collect(file, session.config):
            name = ".".join(file.resolve().relative_to(session.config.rootpath).with_suffix("").parts)
            with contextlib.suppress(Exception, pytest.skip.Exception):  # The collection reports it.
                importlib.import_module(name)


# Files whose tests take minutes: they start first, so that no worker is left alone with one at the end.
LONGEST_FILES = (
    "tests/test_wheels.py",
    "tests/kernels/triton/",
    "tests/pairs/integration/test_second_derivatives.py",
)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keep the part that was asked for, longest files first, and spare the collected tests further collections."""
    parts.select(config, items)
    items.sort(key=lambda item: not item.nodeid.startswith(LONGEST_FILES))
    gc.collect()
    gc.freeze()
    gc.enable()
    gc.set_threshold(20_000, 10, 10)  # looking for garbage after every 700 objects takes 3 % of the time


@functools.cache
def generators() -> Any:
    """What seeds torch. Without a GPU, `torch.manual_seed` formats the stack and keeps it: 2 ms for every test."""
    import torch

    return torch if torch.cuda.is_available() else torch.default_generator


@pytest.fixture(autouse=True)
def _fixed_seed() -> None:
    generators().manual_seed(0)


@pytest.fixture
def validation() -> Iterator[None]:
    """Torch's checks of parameters, which torch.compile switches off for the rest of a process."""
    import torch

    before = torch.distributions.Distribution._validate_args
    torch.distributions.Distribution.set_default_validate_args(True)
    yield
    torch.distributions.Distribution.set_default_validate_args(before)


@pytest.fixture
def registered_rules() -> Iterator[None]:
    """Remove the rules for pairs of types that a test registers, here or with torch."""
    from torch.distributions.kl import _KL_REGISTRY

    from kullback.pairs import registry, torch_registry

    tables: list[dict[Any, Any]] = [_KL_REGISTRY, vars(registry)["_RULES"]["user"]]
    before = [dict(table) for table in tables]
    tables[1].clear()
    torch_registry.forget_plans()
    yield
    for table, rules in zip(tables, before, strict=True):
        table.clear()
        table.update(rules)
    torch_registry.forget_plans()


@pytest.fixture(scope="session")
def chromium() -> str:
    """The path of a headless-capable Chromium."""
    names = ("chromium", "chromium-browser", "google-chrome")
    found = next(filter(None, map(shutil.which, names)), None)
    if found is None:
        pytest.skip(f"no browser here: none of {', '.join(names)} is on the path")
    return found


@pytest.fixture(scope="module")
def browser(chromium: str) -> Iterator[Browser]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium)
        yield browser
        browser.close()


@pytest.fixture
def open_page(browser: Browser, report: Path):
    """Opens the `report` of the test's module at a width; at the end, nothing must have been said or fetched."""
    pages: list[Page] = []
    complaints: list[str] = []
    requests: list[str] = []

    def opened(width: int, colors: str = "light") -> Page:
        page = browser.new_page(viewport={"width": width, "height": 800}, color_scheme=colors)
        pages.append(page)
        page.on("console", lambda message: complaints.append(message.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("request", lambda request: requests.append(request.url))
        page.goto(report.as_uri())
        return page

    yield opened
    for page in pages:
        page.close()
    assert complaints == []
    assert set(requests) == {report.as_uri()}
