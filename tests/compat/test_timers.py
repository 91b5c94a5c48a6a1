"""Timers: torch's clients against our agent and server, ours against torch's, and `expires` of both
side by side."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from tests.compat.recordings import Recordings
from tests.harness.one_agent import agent

from rallypoint.elastic import timer as ours

THEIRS = "torch.distributed.elastic.timer"

WORKER = """
import os, time
from torch.distributed.elastic import timer
timer.configure(timer.FileTimerClient(os.environ["TORCHELASTIC_TIMER_FILE"]))
rank, again = os.environ["RANK"], os.environ["TORCHELASTIC_RESTART_COUNT"]
with timer.expires(after=60, scope="in time"):
    pass
tell("round", again)
if rank == "1" and again == "0":
    with timer.expires(after=2, scope="all reduce"):
        time.sleep(600)
if again == "0":
    time.sleep(600)
"""


@pytest.mark.frameworks
def test_W6_torchs_client_in_a_worker_of_ours(tmp_path: Path) -> None:
    env = {"TORCHELASTIC_ENABLE_FILE_TIMER": "1"}
    # Imported once: a timer names its process, which has to be the one that the agent started.
    options = ("--nproc-per-node=2", "--max-restarts=1", f"--preload={THEIRS}")
    with agent(tmp_path, *options, program=WORKER, env=env) as run:
        run.wait_told("round", 2)
        run.wait_said("restart 1 of 1")
        run.wait_told("round", 4)
        assert run.wait() == 0, run.err
        assert sorted(run.told("round")) == ["0", "0", "1", "1"]
        assert "rank 1: timer 'all reduce' expired after " in run.err


CLIENT = """
import sys, time
if sys.argv[1] == "torch":
    from torch.distributed.elastic.timer import FileTimerClient, configure, expires
else:
    from rallypoint.elastic.timer import FileTimerClient, configure, expires
configure(FileTimerClient(sys.argv[2]))
with expires(after=60, scope="in time"):
    pass
with expires(after=1, scope="step"):
    time.sleep(600)
"""


@pytest.mark.parametrize(("server", "client"), [("ours", "torch"), ("torch", "ours")])
def test_either_side_of_a_named_pipe_may_be_torchs(
    tmp_path: Path, server: str, client: str, torch_python: str
) -> None:
    path = str(tmp_path / "pipe")
    if server == "ours":
        words = [torch_python, "-c", CLIENT, client, path]
        mine = ours.FileTimerServer(path, "job", max_interval=1)
        mine.start()
        try:
            done = subprocess.run(words, timeout=60, check=False)
        finally:
            mine.stop()
        assert done.returncode == -signal.SIGKILL
        return
    # Torch's server ends its own process too, so that it needs one.
    script = (
        "import subprocess, sys\n"
        "from torch.distributed.elastic.timer import FileTimerServer\n"
        "server = FileTimerServer(sys.argv[4], 'job', max_interval=1)\n"
        "server.start()\n"
        "process = subprocess.Popen([sys.executable, *sys.argv[1:]], start_new_session=True)\n"
        "print(process.pid, flush=True)\n"
        "process.wait()\n"
        "print('ended', process.returncode, flush=True)\n"
    )
    words = [torch_python, "-c", script, "-c", CLIENT, client, path]
    done_ = subprocess.run(words, timeout=60, check=False, capture_output=True, text=True)
    pid = int(done_.stdout.split()[0])
    deadline = time.monotonic() + 30
    while os.path.exists(f"/proc/{pid}") and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not os.path.exists(f"/proc/{pid}")


def requests(module: Any) -> list[str]:
    """The texts of some."""
    some = ((7, "s", 2.0, 9), (7, "a\n\"b'", -1, 0), (1, "é", 1700000000.123, 15))
    return [module.FileTimerRequest(*arguments).to_json() for arguments in some]


def test_requests_of_both_are_equal_texts(torch_said: Recordings) -> None:
    assert requests(ours) == torch_said(
        "timers", "requests", lambda: requests(import_module(THEIRS))
    )
    assert ours.FileTimerRequest(1, "s", 2.0) == ours.FileTimerRequest(1, "s", 2.0)
    assert ours.FileTimerRequest(1, "s", 2.0) != ours.FileTimerRequest(1, "s", 2.0, 9)


def uses(module: Any) -> list[object]:
    """What a client is told by blocks that end well, by an error, and around a function."""
    told: list[object] = []

    class Client(module.TimerClient):  # type: ignore[misc]
        def acquire(self, scope_id: str, expiration_time: float) -> None:
            told.append(["acquire", scope_id, round(expiration_time - time.time())])

        def release(self, scope_id: str) -> None:
            told.append(["release", scope_id])

    with module.expires(after=100, scope="well", client=Client()):
        told.append("in")
    with pytest.raises(KeyError), module.expires(200, "error", Client()):
        raise KeyError

    @module.expires(after=300, scope="function", client=Client())  # type: ignore[untyped-decorator]
    def function(value: int) -> int:
        return value

    told += [function(1), function(2)]
    module.configure(Client())
    with module.expires(after=-100, scope="configured"), module.expires(400, "nested"):
        pass
    with module.expires(after=500, scope="", client=None) as given:
        told.append(given)
    module.configure(None)
    with pytest.raises(RuntimeError), module.expires(after=1):
        told.append("never")
    return told


def test_blocks_tell_their_clients_the_same(torch_said: Recordings) -> None:
    assert uses(ours) == torch_said("timers", "blocks", lambda: uses(import_module(THEIRS)))


def test_a_scope_without_a_name_is_the_callers_place() -> None:
    scopes = []

    class Client(ours.TimerClient):
        def acquire(self, scope_id: str, _expiration_time: float) -> None:
            scopes.append(scope_id)

        def release(self, scope_id: str) -> None:
            scopes.append(scope_id)

    with ours.expires(after=10, client=Client()):
        pass
    # (torch says where its context manager was entered: in contextlib.py.)
    assert len(set(scopes)) == 1
    assert scopes[0].startswith(f"{__file__}#")
