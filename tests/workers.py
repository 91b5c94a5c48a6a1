"""Tests in several processes that share one collection: `pytest --workers 10`.

To import and collect all tests takes seconds of a processor, as much as running several hundreds of
them. So it is done once, by the process that was started; each worker is a fork of it, which runs
one file after the other and sends what it found. Which file is next the parent says.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import traceback
import warnings
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import groupby
from multiprocessing.connection import Connection, Pipe, wait
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import pytest

PR_SET_PDEATHSIG = 1
OF_THE_PARENT = ("terminalreporter", "terminalprogress")
"""Plugins that print; a worker has none of them."""


class NextFile(NamedTuple):
    """A worker asks for its next file: the numbers of its tests; none if there is nothing left."""


class Begun(NamedTuple):
    """A test: its number."""

    item: int


class Ended(NamedTuple):
    """The test that was begun last; its reports, serialized."""

    reports: list[dict[str, Any]]


class Warned(NamedTuple):
    """What `pytest_warning_recorded` is called with."""

    warning: dict[str, Any]


class Broken(NamedTuple):
    """The worker ends by a fault of the tests' machinery: a traceback."""

    text: str


@dataclass
class Worker:
    """A forked process, as its parent knows it."""

    pid: int
    item: int | None = None
    """The test that it runs now."""
    left: list[int] = field(default_factory=list)
    """Those of its file that it will run after it."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--workers", type=int, default=0, help="run files in so many processes at once"
    )


def pytest_runtestloop(session: pytest.Session) -> bool | None:
    count = session.config.getoption("--workers")
    if not count or session.testsfailed or session.config.option.collectonly:
        return None  # Pytest's own loop knows what to do.
    parent = Parent(session)
    try:
        for _ in range(min(count, len(parent.files))):
            parent.start_worker()
        parent.run()
    finally:
        parent.close()
    return True


class Parent:
    """Gives files to workers and their reports to pytest."""

    def __init__(self, session: pytest.Session) -> None:
        self._session = session
        numbered = groupby(enumerate(session.items), key=lambda pair: pair[1].path)
        self.files = deque([number for number, _ in pairs] for _, pairs in numbered)
        self._started = 0
        session.config._tmp_path_factory.getbasetemp()  # type: ignore[attr-defined]
        self._workers: dict[Connection, Worker] = {}

    def start_worker(self) -> None:
        ours, theirs = Pipe()
        self._started += 1
        sys.stdout.flush()
        sys.stderr.flush()
        with warnings.catch_warnings():
            # Numpy has threads; it sees to it that they need not survive a fork.
            warnings.simplefilter("ignore", DeprecationWarning)
            pid = os.fork()
        if pid == 0:
            for other in (ours, *self._workers):
                other.close()
            run_files(self._session, self._started, theirs)
        theirs.close()
        self._workers[ours] = Worker(pid)

    def run(self) -> None:
        """Until every worker has ended."""
        while self._workers:
            for ready in wait(list(self._workers)):
                assert isinstance(ready, Connection)
                try:
                    message = ready.recv()
                except (EOFError, ConnectionResetError):
                    self._ended(ready)
                else:
                    self._received(ready, message)

    def close(self) -> None:
        """Interrupts the workers that have not ended, and waits for them."""
        for connection, worker in self._workers.items():
            connection.close()
            os.kill(worker.pid, signal.SIGINT)
        for worker in self._workers.values():
            os.waitpid(worker.pid, 0)

    def _received(self, connection: Connection, message: object) -> None:
        hook, worker = self._session.config.hook, self._workers[connection]
        match message:
            case NextFile():
                found = self.files.popleft() if self.files else []
                worker.left = found.copy()
                connection.send(found)
            case Begun(number):
                worker.left.remove(number)
                worker.item = number
            case Ended(reports):
                begun, worker.item = worker.item, None
                assert begun is not None
                restored = hook.pytest_report_from_serializable
                config = self._session.config
                self._report(begun, [restored(config=config, data=data) for data in reports])
            case Warned(warning):
                hook.pytest_warning_recorded.call_historic(kwargs=warning)
            case Broken(text):
                raise RuntimeError(f"a worker of the tests failed:\n{text}")

    def _report(self, number: int, reports: Sequence[pytest.TestReport]) -> None:
        item, hook = self._session.items[number], self._session.config.hook
        hook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
        for report in reports:
            hook.pytest_runtest_logreport(report=report)
        hook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
        if self._session.shouldfail:
            raise self._session.Failed(self._session.shouldfail)
        if self._session.shouldstop:
            raise self._session.Interrupted(self._session.shouldstop)

    def _ended(self, connection: Connection) -> None:
        """All is well if there was nothing left; else a test has ended it, and fails."""
        worker = self._workers.pop(connection)
        connection.close()
        code = os.waitstatus_to_exitcode(os.waitpid(worker.pid, 0)[1])
        if worker.item is None:
            if code:
                raise RuntimeError(f"a worker of the tests ended with {code} between two tests")
            return
        if worker.left:
            self.files.appendleft(worker.left)
        self.start_worker()
        item = self._session.items[worker.item]
        told = f"its process ended with {code}"
        report = pytest.TestReport(item.nodeid, item.location, {}, "failed", told, "call")
        self._report(worker.item, [report])


def run_files(session: pytest.Session, number: int, parent: Connection) -> NoReturn:
    """A worker, from its beginning to its end."""
    code = 1
    try:
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        with as_worker(session, number, parent) as reports:
            while file := next_file(parent):
                items = [session.items[test] for test in file]
                # After the last one nothing stays but the fixtures of the session.
                for test, item, after in zip(file, items, [*items[1:], session], strict=True):
                    parent.send(Begun(test))
                    item.config.hook.pytest_runtest_protocol(item=item, nextitem=after)
                    parent.send(Ended(list(reports)))
                    reports.clear()
        code = 0
    except (KeyboardInterrupt, BrokenPipeError, EOFError):
        pass  # The parent needs no more.
    except BaseException:
        parent.send(Broken(traceback.format_exc()))
    finally:
        os._exit(code)


def next_file(parent: Connection) -> list[int]:
    parent.send(NextFile())
    numbers: list[int] = parent.recv()
    return numbers


@contextmanager
def as_worker(
    session: pytest.Session, number: int, parent: Connection
) -> Iterator[list[dict[str, Any]]]:
    """What the parent's process must not share; the list gets the reports of tests."""
    plugins = session.config.pluginmanager
    for name in OF_THE_PARENT:
        plugins.unregister(name=name)
    reports: list[dict[str, Any]] = []
    plugins.register(Reporter(session.config, reports, parent))
    capture = plugins.getplugin("capturemanager")
    capture.stop_global_capturing()  # into files whose offsets all forks share
    capture.start_global_capturing()
    capture.suspend_global_capture()
    temporary = session.config._tmp_path_factory  # type: ignore[attr-defined]
    folder: Path = temporary.getbasetemp() / f"worker{number}"
    folder.mkdir()
    temporary._basetemp = folder
    try:
        yield reports
    finally:
        session._setupstate.teardown_exact(None)


class Reporter:
    """A plugin of a worker."""

    def __init__(
        self, config: pytest.Config, reports: list[dict[str, Any]], parent: Connection
    ) -> None:
        self._config, self._reports, self._parent = config, reports, parent

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        serialize = self._config.hook.pytest_report_to_serializable
        self._reports.append(serialize(config=self._config, report=report))

    def pytest_warning_recorded(
        self,
        warning_message: warnings.WarningMessage,
        when: str,
        nodeid: str,
        location: tuple[str, int, str] | None,
    ) -> None:
        told = {"when": when, "nodeid": nodeid, "location": location}
        shown = warnings.WarningMessage(
            str(warning_message.message),
            warning_message.category,
            warning_message.filename,
            warning_message.lineno,
        )
        self._parent.send(Warned({"warning_message": shown, **told}))
