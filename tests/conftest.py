"""What holds for all tests.

The examples of property tests are the same at every run, so that a change is judged by itself; new
ones are looked for with `HYPOTHESIS_PROFILE=search pytest`, and `make fuzz`.

Signals that pytest was started to ignore (`nohup`, a background job of a shell) would be ignored by
every program that a test starts. With a handler they are ignored here only: an exec takes it away.
"""

from __future__ import annotations

import gc
import logging
import os
import re
import signal
import sys
from collections.abc import Generator, Iterator
from contextlib import ExitStack
from importlib.util import find_spec
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import settings
from tests.harness.leftovers import kill_when_this_process_ends
from tests.harness.prepared import processes
from tests.harness.prepared.interpreter import prepared_interpreter

pytest_plugins = ["tests.workers", "tests.harness.fixtures", "tests.harness.coroutines"]

gc.disable()
"""While tests are collected: nearly all that is made stays."""


class TorchPythons(NamedTuple):
    """Paths of interpreters."""

    torch: str
    digits: str


TORCH_PYTHONS = pytest.StashKey[TorchPythons]()
HAS_FAILED = pytest.StashKey[bool]()
"""Set where the test itself has failed."""
SECONDS = Path(__file__).resolve().with_name("seconds.txt")
"""How long the longest test files took, one per line; a file that is not there is short."""
MORE_PACKAGES = frozenset({"hostlist", "kubernetes_validate", "sklearn", "torch"})
"""Of the extra `test`: what the extra `unit` does not have, and test files import."""
NOT_FOUND = re.compile(r"ModuleNotFoundError: No module named '(\w+)")
MARKS = {
    "fault": "fault",
    "frameworks": "frameworks",
    "pods": "clusters",
    "slurm": "clusters",
    "ssh": "clusters",
}
"""Of each folder with tests of one kind."""

settings.register_profile("steady", derandomize=True, deadline=None)
settings.register_profile("search", derandomize=False, print_blob=True, deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "steady"))

for name in ("PYTHONDONTWRITEBYTECODE", "PYTHONUNBUFFERED"):
    os.environ.pop(name, None)  # What a test starts is not what the one who runs tests has chosen.


def ignore(number: int, _frame: object) -> None:
    """What this process does instead."""


for number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM):
    if signal.getsignal(number) == signal.SIG_IGN:
        signal.signal(number, ignore)


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """With the extra `unit` alone, files that need more packages are skipped, with the reason."""
    report = yield
    if report.failed:
        missing = NOT_FOUND.search(str(report.longrepr))
        if missing and missing[1] in MORE_PACKAGES and find_spec(missing[1]) is None:
            report.outcome = "skipped"
            report.longrepr = (str(collector.path), 0, f"Skipped: needs the package {missing[1]}")
    return report


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The files that take longest are begun first, so that none is waited for at the end. What
    needs a network or a cluster is marked by its folder."""
    for path, of_file in groupby(items, key=lambda item: item.path):
        folder = path.relative_to(SECONDS.parent).parts[0] if SECONDS.parent in path.parents else ""
        if mark := MARKS.get(folder):
            for item in of_file:
                item.add_marker(mark)
    seconds = dict(line.split() for line in SECONDS.read_text().splitlines())
    items.sort(key=lambda item: -float(seconds.get(item.path.name, 0)))


def pytest_collection_finish(session: pytest.Session) -> None:
    """What has been imported stays, and is not looked through again for garbage."""
    folder: Path = session.config._tmp_path_factory.getbasetemp()  # type: ignore[attr-defined]
    kill_when_this_process_ends(folder)
    os.environ["RALLYPOINT_STATE_DIR"] = str(folder / "state")  # Nothing is kept in the real home.
    session.config.add_cleanup(processes.close)
    prepare_torch(session)
    if session.config.getoption("--workers") and not session.config.option.collectonly:
        # One for all workers, which would import the same, each for itself.
        processes.forks = session.config.getoption("--agents") == "forked"
        processes.prepare()
    # Pytest adds its handlers to each logger that stands alone, three times for every test, and
    # torch has 42 of them.
    for name, logger in logging.root.manager.loggerDict.items():
        if name.startswith("torch") and isinstance(logger, logging.Logger):
            logger.propagate = True
    gc.freeze()
    gc.enable()


ASKING = ("real", "other")
"""With these every program imports torch itself."""


def prepare_torch(session: pytest.Session) -> None:
    """One interpreter that has torch for all processes that run these tests."""
    wanted = any("torch_pythons" in getattr(item, "fixturenames", ()) for item in session.items)
    config = session.config
    if wanted and config.getoption("--torch") not in ASKING and not config.option.collectonly:
        prepared = ExitStack()
        config.add_cleanup(prepared.close)
        made = prepared.enter_context(prepared_interpreter())
        digits = made.also("torch.distributed.nn", "sklearn.datasets")
        config.stash[TORCH_PYTHONS] = TorchPythons(made.path, digits)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--torch",
        choices=("recorded", "real", "record", "other"),
        default="recorded",
        help="compare with what torch said once, or with the real one; or record that anew",
    )
    parser.addoption(
        "--agents",
        choices=("forked", "executed"),
        default="forked",
        help="start agents as forks of an interpreter that is prepared, or each with its own",
    )


def pytest_runtest_setup(item: pytest.Item) -> None:
    forked = item.config.getoption("--agents") == "forked"
    processes.forks = forked and item.get_closest_marker("executed") is None


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """Notes what the test itself starts, not its fixtures, and whether it fails."""
    processes.started.clear()
    try:
        yield
    except BaseException:
        item.stash[HAS_FAILED] = True
        raise


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item) -> Iterator[None]:
    """Ends what a failed test has left running. Its traceback holds the processes, so they would be
    collected in a later test, which would fail by their ResourceWarning."""
    try:
        yield
    finally:
        if item.stash.get(HAS_FAILED, False):
            processes.end_started()
        processes.started.clear()


@pytest.fixture(scope="session")
def torch_pythons(request: pytest.FixtureRequest) -> TorchPythons:
    """By `--torch`: one that has imported torch, or none that has."""
    return request.config.stash.get(TORCH_PYTHONS, TorchPythons(sys.executable, sys.executable))


@pytest.fixture(scope="session")
def torch_python(torch_pythons: TorchPythons) -> str:
    """An interpreter for programs that import torch."""
    return torch_pythons.torch


@pytest.fixture(scope="session")
def digits_python(torch_pythons: TorchPythons) -> str:
    """An interpreter for the example that learns digits."""
    return torch_pythons.digits
