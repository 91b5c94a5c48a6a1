"""What holds for all tests.

The examples of property tests are the same at every run, so that a change is judged by itself; new
ones are looked for with `HYPOTHESIS_PROFILE=search pytest`, and `make fuzz`.

Signals that pytest was started to ignore (`nohup`, a background job of a shell) would be ignored by
every program that a test starts. With a handler they are ignored here only: an exec takes it away.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings
from tests.leftovers import kill_when_this_process_ends
from tests.prepared_torch.interpreter import PreparedInterpreter, prepared_interpreter

gc.disable()
"""While tests are collected: nearly all that is made stays."""

SECONDS = Path(__file__).with_name("seconds.txt")
"""How long the longest test files took, one per line; a file that is not there is short."""

settings.register_profile("steady", derandomize=True, deadline=None)
settings.register_profile("search", derandomize=False, print_blob=True, deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "steady"))


def ignore(number: int, _frame: object) -> None:
    """What this process does instead."""


for number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM):
    if signal.getsignal(number) == signal.SIG_IGN:
        signal.signal(number, ignore)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The files that take longest are begun first, so that none is waited for at the end."""
    seconds = dict(line.split() for line in SECONDS.read_text().splitlines())
    items.sort(key=lambda item: -float(seconds.get(item.path.name, 0)))


def pytest_collection_finish(session: pytest.Session) -> None:
    """What has been imported stays, and is not looked through again for garbage."""
    gc.freeze()
    gc.enable()
    if not session.config.getoption("numprocesses", None):
        folder: Path = session.config._tmp_path_factory.getbasetemp()  # type: ignore[attr-defined]
        kill_when_this_process_ends(folder)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--torch",
        choices=("recorded", "real", "record"),
        default="recorded",
        help="compare with what torch said once, or with the real one; or record that anew",
    )


@pytest.fixture(scope="session")
def interpreter(request: pytest.FixtureRequest) -> Iterator[PreparedInterpreter | None]:
    """None with `--torch=real`: every program imports torch itself."""
    if request.config.getoption("--torch") == "real":
        yield None
        return
    with prepared_interpreter() as made:
        yield made


@pytest.fixture(scope="session")
def torch_python(interpreter: PreparedInterpreter | None) -> str:
    """An interpreter for programs that import torch."""
    return interpreter.path if interpreter else sys.executable


@pytest.fixture(scope="session")
def digits_python(interpreter: PreparedInterpreter | None) -> str:
    """An interpreter for the example that learns digits."""
    if interpreter is None:
        return sys.executable
    return interpreter.also("torch.distributed.nn", "sklearn.datasets")
