"""The end of `rallypoint launch` on a host, with pipes in place of ssh: how it takes a link that
breaks, falls silent, or is full."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.harness.cluster import wait_until
from tests.harness.limits import patience
from tests.harness.proc import descendants
from tests.harness.unprivileged import become_somebody

from rallypoint import __version__
from rallypoint.wire.launch_link import (
    AgentEnded,
    AgentOutput,
    AgentRefused,
    Beat,
    Deliver,
    FromHost,
    Hello,
    Here,
    Look,
    Start,
    Started,
    frame,
    reader_of_host,
)

STEPS = """
import os, sys, time
from pathlib import Path
from rallypoint import worker
worker.drain_requested()
Path("runs").touch()
step = 0
while not Path("finish").exists():
    time.sleep(0.001)
    print("x" * int(sys.argv[1]), flush=True)
    step += 1
    Path("step").write_text(str(step))
    if worker.drain_requested():
        print("saving", flush=True)
        Path("saved").touch()
        worker.checkpoint_saved(1)
        print("saved", flush=True)
"""


class Host:
    """A host's end that runs in `folder`."""

    def __init__(self, folder: Path, env: dict[str, str], prefix: Sequence[str] = ()) -> None:
        self._reader, self.said = reader_of_host(), list[FromHost]()
        self.folder = folder
        self.process = subprocess.Popen(
            [*prefix, sys.executable, "-P", "-m", "rallypoint.cli.launch.host"],
            env={"PATH": os.environ["PATH"], "HOME": str(folder), "TMPDIR": str(folder)} | env,
            cwd="/",
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
        )

    def tell(self, *messages: Look | Start | Beat | Deliver) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(b"".join(map(frame, messages)))

    def hear(self, kind: type[FromHost]) -> FromHost:
        """The next of that kind; what comes before it is in `said`."""
        assert self.process.stdout is not None
        while True:
            for number, message in enumerate(self.said):
                if isinstance(message, kind):
                    del self.said[number]
                    return message
            data = self.process.stdout.read(65536)
            assert data, f"it has ended without {kind}: {self.said}"
            self.said += self._reader.feed(data)

    def start(self, *words: str, silence_s: float = 600.0, summary: str = "") -> int:
        """The pid of the agent of a job of one node."""
        (self.folder / "train.py").write_text(STEPS)
        self.tell(Look(str(self.folder), "train.py"))
        assert self.hear(Here) == Here(__version__)
        assert isinstance(self.hear(Hello), Hello)
        argv = ("--output=prefix", *words, "--", "train.py", "10")
        self.tell(Start(argv, {}, "00" * 32, "a", summary, "", silence_s))
        started = self.hear(Started)
        assert isinstance(started, Started)
        return started.pid

    def wait_runs(self) -> None:
        wait_until((self.folder / "runs").exists, "the worker to run")

    def wait(self) -> int:
        return self.process.wait(patience(60))


@pytest.fixture
def prefix() -> Sequence[str]:
    """What stands before the command."""
    return ()


@pytest.fixture
def host(tmp_path: Path, prefix: Sequence[str]) -> Iterator[Host]:
    # What a login shell says of jobs is none of this one's.
    env = {"PET_NNODES": "7", "RALLYPOINT_TOKEN_FILE": "/no/file"}
    with ended(Host(tmp_path, env, prefix)) as made:
        yield made


@contextmanager
def ended(host: Host) -> Iterator[Host]:
    """End it afterwards, if it has not ended, and close its pipes."""
    yield host
    host.process.kill()
    host.process.wait()
    for pipe in (host.process.stdin, host.process.stdout):
        assert pipe is not None
        pipe.close()


def left(folder: Path) -> list[str]:
    return [path.name for path in folder.glob("rallypoint*")]


def test_it_tells_how_the_agent_ended(host: Host, tmp_path: Path) -> None:
    host.start()
    host.wait_runs()
    (tmp_path / "finish").touch()
    ended = host.hear(AgentEnded)
    assert isinstance(ended, AgentEnded)
    assert (ended.code, b'"succeeded"' in ended.summary) == (0, True)
    written = b"".join(each.data for each in host.said if isinstance(each, AgentOutput))
    assert b"[default 0] xxxxxxxxxx\n" in written
    assert host.wait() == 0
    assert left(tmp_path) == []


def test_A6_what_a_killed_host_has_left_is_removed_by_the_next_agent_there(
    host: Host, tmp_path: Path
) -> None:
    host.start()
    host.wait_runs()
    pids = [host.process.pid, *descendants(host.process.pid)]
    for number in (signal.SIGSTOP, signal.SIGKILL):
        for pid in pids:
            os.kill(pid, number)
    killed = left(tmp_path)
    assert sorted(name.split("-")[1] for name in killed) == ["agent", "host"]
    (folder := tmp_path / "next").mkdir()
    with ended(Host(folder, {"TMPDIR": str(tmp_path)})) as other:
        other.start()
        other.wait_runs()
        wait_until(lambda: not set(killed) & set(left(tmp_path)), "what the killed ones left to go")
        assert sorted(name.split("-")[1] for name in left(tmp_path)) == ["agent", "host"]
        (folder / "finish").touch()
        other.hear(AgentEnded)
        assert other.wait() == 0
    assert left(tmp_path) == []


def test_an_old_summary_is_none_of_an_agent_that_was_killed(host: Host, tmp_path: Path) -> None:
    (tmp_path / "old.json").write_text('{"outcome": "succeeded"}')
    path = str(tmp_path / "old.json")
    pid = host.start("--json-summary=old.json", summary=path)
    host.wait_runs()
    os.kill(pid, 9)
    assert host.hear(AgentEnded) == AgentEnded(-9, b"")


class TestOfAnotherUser:
    @pytest.fixture
    def prefix(self) -> Sequence[str]:
        return become_somebody()

    def test_no_other_process_of_the_user_sees_what_it_knows(
        self, host: Host, prefix: Sequence[str]
    ) -> None:
        host.start()
        host.wait_runs()
        looker = [*prefix, sys.executable, "-c", LOOK, str(host.process.pid)]
        said = subprocess.run(looker, capture_output=True, text=True, check=True).stdout
        assert said.splitlines() == ["hidden"]


LOOK = """
import sys
try:
    open(f"/proc/{sys.argv[1]}/mem", "rb").close()
except PermissionError:
    print("hidden")
"""


def test_signals_are_passed_on(host: Host) -> None:
    host.start()
    host.wait_runs()
    host.tell(Deliver(2))
    ended = host.hear(AgentEnded)
    assert isinstance(ended, AgentEnded)
    assert (ended.code, b'"cancelled"' in ended.summary) == (130, True)


@pytest.mark.parametrize("how", ["end", "nonsense", "silence"])
def test_a_link_that_breaks_has_the_agent_drain(host: Host, tmp_path: Path, how: str) -> None:
    """And what the workers write then keeps nobody from saving a checkpoint."""
    assert host.process.stdin is not None
    assert host.process.stdout is not None
    host.start(silence_s=1.0 if how == "silence" else 600.0)
    if how != "silence":
        host.wait_runs()
    if how == "end":
        host.process.stdin.close()
        host.process.stdout.close()
    elif how == "nonsense":
        host.process.stdin.write(b"\xff" * 8)
    assert host.wait() == 0
    assert how == "silence" or (tmp_path / "saved").exists()
    assert left(tmp_path) == []


def test_a_link_that_is_full_and_then_breaks_holds_nobody_up(host: Host, tmp_path: Path) -> None:
    """A terminal that takes nothing slows the workers; when it is gone they go on."""
    (tmp_path / "train.py").write_text(STEPS)
    host.tell(Look(str(tmp_path), "train.py"))
    host.hear(Hello)
    host.tell(Start(("--", "train.py", "10000"), {}, "00" * 32, "a", "", "", 600.0))
    host.hear(Started)
    seen = [""]

    def is_held_up() -> bool:
        step = tmp_path / "step"
        seen.append(step.read_text() if step.exists() else "")
        return bool(seen[-1]) and seen[-50:] == [seen[-1]] * 50

    wait_until(is_held_up, "the worker to wait")
    assert int(seen[-1]) > 20, "pipes take so much"
    assert host.process.stdin is not None
    host.process.stdin.close()
    wait_until((tmp_path / "saved").exists, "a checkpoint")
    assert host.wait() == 0


@pytest.mark.parametrize(
    ("look", "why"),
    [
        (Look("/no/where", ""), "the directory /no/where can't be entered: No such file"),
        (Look("/", "no.py"), "no.py: no such file in /: copy it there, or give --chdir"),
        (Look("/", "sh"), "sh: a program, not a Python script: add --no-python"),
    ],
)
def test_what_is_missing_is_told_before_anything_is_started(
    host: Host, look: Look, why: str
) -> None:
    host.tell(look)
    refused = host.hear(AgentRefused)
    assert isinstance(refused, AgentRefused)
    assert refused.why.startswith(why)
    assert host.wait() == 0


def test_nothing_is_started_for_a_launch_that_is_gone(host: Host, tmp_path: Path) -> None:
    host.tell(Look(str(tmp_path), ""))
    host.hear(Hello)
    assert host.process.stdin is not None
    host.process.stdin.close()
    assert host.wait() == 0
