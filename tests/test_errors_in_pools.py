"""Errors come through a pool of processes as they were raised: pickled and copied, each keeps its
class, its text and its fields."""

from __future__ import annotations

import copy
import errno
import multiprocessing
import pickle
import re
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from importlib import import_module
from pathlib import Path
from signal import SIGTERM
from typing import Any

import pytest

from rallypoint.cli.parser import UnknownOptionError
from rallypoint.cli.watch.asking.reach import JobEndedError, NotHostedError, UnreachedHereError
from rallypoint.core.json_reader import UnreadableJsonError
from rallypoint.elastic.multiprocessing import ProcessFailure
from rallypoint.elastic.stores.c10d_operations import MissingError
from rallypoint.elastic.stores.tcp_connection import ConnectionLostError
from rallypoint.errors import (
    ChildFailedError,
    CommandLineError,
    ExitClass,
    PeerHungUpError,
    RallypointError,
    SettingsConflictError,
    Shortage,
    SignalException,
    StoreConnectionError,
    StoreCorruptError,
    StoreQueueEmptyError,
    StoreTimeoutError,
    UnfitRecordError,
    UnguardedLaunchError,
    UsageError,
    VersionMismatchError,
    during,
)
from rallypoint.process.spawn import Stage, WorkerCommand, WorkerForkError, WorkerStartError
from rallypoint.register.http import HttpError

SOURCE = Path(__file__).parents[1] / "src"
DERIVED = re.compile(r"^class \w+\([^)]*(?:Error|Exception)\b[^)]*\):", re.MULTILINE)
FAILURES = {
    3: ProcessFailure(1, 22, -9, "", seen_at=12.5, node="b"),
    4: ProcessFailure(0, 21, 3, "", seen_at=12.0, node="a", detail="ValueError: bad"),
}


def no_body() -> None: ...


MADE: dict[type[BaseException], Callable[[], BaseException]] = {
    ChildFailedError: lambda: ChildFailedError("train.py", FAILURES, first_rank=3, followed=7),
    CommandLineError: lambda: CommandLineError("needs a number", ExitClass.INFRASTRUCTURE),
    ConnectionLostError: lambda: ConnectionLostError("gone", is_timeout=True),
    JobEndedError: lambda: JobEndedError("it has failed", "failed", "rank 1 exited"),
    HttpError: lambda: HttpError("no", is_lasting=True).when_sent(False),
    MissingError: lambda: MissingError([b"a", b"b"]),
    PeerHungUpError: PeerHungUpError,
    SettingsConflictError: lambda: SettingsConflictError([("a", 1, ExitClass.USAGE)], {"a": "--a"}),
    SignalException: lambda: SignalException("got it", SIGTERM),
    StoreConnectionError: lambda: StoreConnectionError("h:1", "get", "refused"),
    StoreCorruptError: lambda: StoreCorruptError("f", 3, "bad"),
    StoreQueueEmptyError: lambda: StoreQueueEmptyError("q"),
    StoreTimeoutError: lambda: StoreTimeoutError("get", ["k"], 1.0),
    UnfitRecordError: lambda: UnfitRecordError("term -1"),
    UnguardedLaunchError: UnguardedLaunchError,
    UnknownOptionError: lambda: UnknownOptionError("--nods", "; did you mean --nnodes?"),
    UnreadableJsonError: lambda: UnreadableJsonError("is not JSON", is_text=True),
    NotHostedError: lambda: NotHostedError("not yet", recovers=True),
    UnreachedHereError: lambda: UnreachedHereError("no answer: refused", "refused"),
    VersionMismatchError: lambda: VersionMismatchError("version 1", "version 2"),
    WorkerForkError: lambda: WorkerForkError(2, OSError(errno.EAGAIN, "no more")),
    WorkerStartError: lambda: WorkerStartError(
        WorkerCommand(["prog"], {}, body=lambda: no_body()), Stage.EXEC, errno.ENOMEM, 1
    ),
}
"""Those whose constructor takes more than a text, or nothing."""


def kinds_of_the_package() -> list[type[BaseException]]:
    for path in SOURCE.rglob("*.py"):
        if DERIVED.search(path.read_text()) and path.name != "program.py":
            import_module(".".join(path.relative_to(SOURCE).with_suffix("").parts))
    return sorted(set(_below(BaseException)), key=lambda kind: (kind.__module__, kind.__name__))


def _below(kind: type[BaseException]) -> Iterator[type[BaseException]]:
    for each in type.__subclasses__(kind):
        if each.__module__.startswith("rallypoint."):
            yield each
        yield from _below(each)


KINDS = kinds_of_the_package()
COPIES: dict[str, Callable[[Any], Any]] = {
    "pickled": lambda error: pickle.loads(pickle.dumps(error)),
    "pickled as of old": lambda error: pickle.loads(pickle.dumps(error, protocol=0)),
    "copied": copy.copy,
    "copied with its fields": copy.deepcopy,
}


def test_all_classes_are_looked_at() -> None:
    assert len(KINDS) >= 60
    own = {kind for kind in KINDS if "__init__" in vars(kind)}
    assert own == set(MADE), "a class with a constructor of its own needs its arguments above"


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_an_error_is_the_same_after_a_pool(kind: type[BaseException]) -> None:
    error = MADE.get(kind, lambda: kind("what was wrong, and the fix"))()
    error.add_note("seen in a test")
    for how, remade in COPIES.items():
        other = remade(error)
        assert type(other) is kind, how
        assert (str(other), other.args) == (str(error), error.args), how
        assert vars(other) == vars(error), how


def test_an_error_keeps_its_exit_code_and_what_the_machine_lacked() -> None:
    error = during("fork", errno.ENOMEM, UsageError("no memory"))
    other = pickle.loads(pickle.dumps(error))
    assert other.exit_class is ExitClass.INFRASTRUCTURE
    assert other.shortage == Shortage("fork", errno.ENOMEM)


def fail() -> None:
    raise ChildFailedError("train.py", FAILURES, first_rank=4)


def test_a_launch_in_a_pool_tells_which_worker_failed() -> None:
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        error = pool.submit(fail).exception(timeout=60)
        assert isinstance(error, ChildFailedError), error
        assert isinstance(error, RallypointError)
        assert error.get_first_failure() == (4, FAILURES[4])
        assert "ValueError: bad" in str(error)
        assert pool.submit(len, "abc").result(timeout=60) == 3
