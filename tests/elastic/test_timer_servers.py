"""The timer servers of the library, with real processes as workers."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.harness.one_agent import eventually
from tests.harness.programs import run_python

from rallypoint.elastic.timer import (
    FileTimerClient,
    FileTimerRequest,
    FileTimerServer,
    LocalTimerClient,
    LocalTimerServer,
    TimerRequest,
    expires,
)

SPAWN = multiprocessing.get_context("spawn")


def hang(mp_queue: Any, after_s: float, told: Any) -> None:
    client = LocalTimerClient(mp_queue)
    with expires(60, "outer", client), expires(after_s, "inner", client):
        told.set()
        time.sleep(600)


def pass_by(mp_queue: Any, told: Any) -> None:
    with expires(after=1, scope="short", client=LocalTimerClient(mp_queue)):
        told.set()
    time.sleep(600)


def test_a_local_server_ends_who_hangs_and_nobody_else() -> None:
    mp_queue = SPAWN.Queue()
    server = LocalTimerServer(mp_queue, max_interval=60)
    told = SPAWN.Event(), SPAWN.Event()
    stuck = SPAWN.Process(target=hang, args=(mp_queue, 1.0, told[0]))
    good = SPAWN.Process(target=pass_by, args=(mp_queue, told[1]))
    server.start()
    try:
        threads = set(threading.enumerate())
        server.start()
        assert set(threading.enumerate()) - threads == set()
        for process in (stuck, good):
            process.start()
        stuck.join(30)
        assert stuck.exitcode == -signal.SIGKILL
        assert told[1].wait(30)
        eventually(lambda: not server.get_expired_timers(time.time() + 1000), "no timer is left")
        assert good.is_alive()
    finally:
        server.stop()
        server.stop()
        for process in (stuck, good):
            process.kill()
            process.join()
        mp_queue.close()


def test_timers_of_a_local_server_by_hand() -> None:
    server = LocalTimerServer(SPAWN.Queue())
    server.register_timers([TimerRequest(1, "a", 5.0), TimerRequest(1, "b", 6.0)])
    server.register_timers([TimerRequest(2, "a", 7.0), TimerRequest(1, "a", -1)])
    assert server.get_expired_timers(5.5) == {}
    assert server.get_expired_timers(6.0) == {1: [TimerRequest(1, "b", 6.0)]}
    assert set(server.get_expired_timers(9.0)) == {1, 2}
    server.clear_timers({1})
    assert set(server.get_expired_timers(9.0)) == {2}


CLIENT = """
import sys, time
from rallypoint.elastic.timer import FileTimerClient, configure, expires
configure(FileTimerClient(sys.argv[1], signal=int(sys.argv[3])))
with expires(after=float(sys.argv[2]), scope="step"):
    print("in", flush=True)
    time.sleep(600)
"""


@contextmanager
def client(path: Path, after_s: float, signum: int = 9) -> Iterator[subprocess.Popen[str]]:
    words = [sys.executable, "-c", CLIENT, str(path), str(after_s), str(signum)]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def test_W6_a_file_server_ends_the_worker_and_not_itself(tmp_path: Path) -> None:
    path, events = tmp_path / "pipe", list[tuple[str, str]]()
    server = FileTimerServer(
        str(path),
        "job",
        log_event=lambda name, request: events.append((name, request.scope_id if request else "")),
    )
    server.start()
    try:
        own = FileTimerClient(str(path))
        own.acquire("of the server's own process", time.time())
        with client(path, 1) as stuck, client(path, 1000) as good, client(path, 1, 0) as spared:
            assert stuck.wait(30) == -signal.SIGKILL
            eventually(lambda: ("kill worker process", "step") in events, "it is told")
            eventually(lambda: events.count(("timer expired", "step")) == 2, "the other is told")
            assert good.poll() is None
            assert spared.poll() is None
        assert server.get_last_progress_time() > 0
    finally:
        server.stop()
        server.stop()
    assert not path.exists()
    assert events[0] == ("watchdog started", "")
    assert events[-1] == ("watchdog stopped", "")
    assert events.count(("kill worker process", "step")) == 1


def test_a_callback_that_raises_and_garbage_stop_no_timer(tmp_path: Path) -> None:
    path = tmp_path / "pipe"

    def fails(_name: str, request: FileTimerRequest | None) -> None:
        if request is not None and request.worker_pid == os.getpid():
            raise KeyError(request.scope_id)

    server = FileTimerServer(str(path), "job", max_interval=0.1, log_event=fails)
    server.start()
    try:
        own = FileTimerClient(str(path), signal=0)
        own.acquire("raises", time.time())
        fd = os.open(path, os.O_WRONLY)
        os.write(fd, b"\xff\x00{[\n" * 100)
        os.close(fd)
        own.release("raises")
        with client(path, 0.5) as stuck:
            assert stuck.wait(30) == -signal.SIGKILL
    finally:
        server.stop()


def test_without_a_server_a_client_says_so(tmp_path: Path) -> None:
    with pytest.raises(BrokenPipeError, match=str(tmp_path)):
        FileTimerClient(str(tmp_path / "missing")).acquire("a", 1.0)
    os.mkfifo(tmp_path / "unread")
    with pytest.raises(BrokenPipeError, match="unread"):
        FileTimerClient(str(tmp_path / "unread")).release("a")


@pytest.mark.parametrize(
    ("after", "scope", "says"),
    [(float("nan"), "s", "after=nan"), (float("inf"), "s", "after=inf"), (5, 7, "scope=7")],
)
def test_what_would_set_no_timer_is_refused(after: float, scope: Any, says: str) -> None:
    with pytest.raises((ValueError, TypeError), match=says):
        expires(after, scope)


def test_without_any_client_a_block_does_not_begin() -> None:
    script = "from rallypoint.elastic.timer import expires\nwith expires(after=1): print('began')"
    done = run_python(script, env={"PATH": os.environ["PATH"]})
    assert done.stdout == ""
    assert "RuntimeError: there is no timer client" in done.stderr
