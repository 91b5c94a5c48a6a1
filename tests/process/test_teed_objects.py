"""Teed lines of agents in a program that has replaced `sys.stdout` and `sys.stderr`."""

from __future__ import annotations

import asyncio
import os
import pty
import signal
import subprocess
import sys
import threading
import time
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import pytest
from tests.harness.limits import patience
from tests.harness.one_agent import LIMIT_S, ended, eventually
from tests.harness.own_program import program

from rallypoint.process.logs.plan import ConsoleRoute, Std, ToRelay
from rallypoint.process.relay import client
from rallypoint.process.relay.client import Relay

HEAD = """
import asyncio, io
from contextlib import redirect_stderr, redirect_stdout
from rallypoint.elastic.agent.server import LocalElasticAgent, WorkerSpec
from rallypoint.elastic.launcher import launch, launch_agent
from rallypoint.elastic.multiprocessing import DefaultLogsSpecs, Std

class Notebook:
    def __init__(self):
        self.text = ""
    def write(self, text):
        self.text += text
    def flush(self):
        pass

class Around:
    def __getattr__(self, name):
        return getattr(sys.__stderr__, name)
    def write(self, text):
        tell("around", text.strip())

def config(**more):
    return LaunchConfig(1, 1, 1, logs_specs=DefaultLogsSpecs("logs", tee=Std.ALL), **more)

def work(text):
    os.write(1, text.encode() + b"\\n")
    return text
"""
COMMAND = "'sh', '-c', 'echo sn\u00f6; echo complaint >&2'"
WAYS = {
    "elastic_launch": f"elastic_launch(config(), 'sh')({COMMAND[6:]})",
    "launch_agent": f"launch_agent(config(), 'sh', [{COMMAND[6:]}])",
    "LocalElasticAgent": (
        f"LocalElasticAgent(WorkerSpec('default_role', 1, entrypoint=({COMMAND})), "
        "DefaultLogsSpecs('logs', tee=Std.ALL)).run()"
    ),
    "launch": f"asyncio.run(launch(config(), 'sh', {COMMAND[6:]}))",
    "within a running loop": (
        f"async def cell(): elastic_launch(config(), 'sh')({COMMAND[6:]})\n    asyncio.run(cell())"
    ),
}


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_P6_teed_lines_of_an_agent_reach_the_stream_objects(tmp_path: Path, way: str) -> None:
    main = f"""---
notebook = Notebook()
with redirect_stdout(notebook), redirect_stderr(Around()):
    {way}
tell("notebook", notebook.text.strip())
"""
    run = ended(program(tmp_path, HEAD + main), 0)
    expected = {"around [default_role0]:complaint", "notebook [default_role0]:sn\u00f6"}
    assert set(run.out.splitlines()) == expected
    assert run.err == ""


REPLACED = """
class Tells:
    def write(self, text):
        tell("object", text.strip())
    def flush(self):
        pass
---
command = "echo round $RALLYPOINT_ROUND; test $RALLYPOINT_ROUND = 1 || sleep 600"
with redirect_stdout(Tells()):
    elastic_launch(config(), "sh")("-c", command)
"""


def test_P6_a_relay_that_replaces_a_killed_one_has_the_same_objects(tmp_path: Path) -> None:
    with program(tmp_path, HEAD + REPLACED) as run:
        run.wait_told("object")
        [relay] = run.named("rallypoint-rly")
        os.kill(relay, signal.SIGKILL)
        assert run.wait() == 0, run.err
    lines = ["object [default_role0]:round 0", "object [default_role0]:round 1"]
    assert run.out.splitlines() == lines


BLOCKS = """
class Blocks:
    def __init__(self):
        self.pid, self.free, self.text = os.getpid(), threading.Event(), ""
    def write(self, text):
        self.flush()
        self.text += text
    def flush(self):
        if os.getpid() == self.pid:
            tell("blocked")
            self.free.wait()
"""


@pytest.mark.parametrize("method", ["forkserver", "fork"])
def test_P6_an_object_that_blocks_does_not_hold_the_job_up(tmp_path: Path, method: str) -> None:
    main = f"""---
blocks = Blocks()
with redirect_stdout(blocks):
    settings = config(start_method={method!r}, shutdown_timeout=1)
    got = elastic_launch(settings, work)("hello")
tell("got", got, repr(blocks.text))
blocks.free.set()
while not blocks.text:
    time.sleep(0.01)
tell("then", blocks.text.strip())
"""
    run = ended(program(tmp_path, HEAD + BLOCKS + main), 0)
    assert run.told("got") == ["{0: 'hello'} ''"]
    assert run.told("then") == ["[default_role0]:hello"]
    assert run.err == ""


CANCELLED = """---
async def main():
    settings = config(shutdown_timeout=1)
    launched = asyncio.create_task(launch(settings, "yes"))
    while not os.path.exists("cancel"):
        await asyncio.sleep(0.01)
    launched.cancel()
    try:
        await launched
    except asyncio.CancelledError:
        tell("cancelled", repr(blocks.text))
blocks = Blocks()
with redirect_stdout(blocks):
    asyncio.run(main())
"""


def test_P6_a_job_that_waits_for_an_object_can_be_cancelled(tmp_path: Path) -> None:
    with program(tmp_path, HEAD + BLOCKS + CANCELLED) as run:
        run.wait_told("blocked")
        (tmp_path / "cancel").touch()
        assert run.wait() == 0, run.err
    assert run.told("cancelled") == ["''"]


RAISES = """
class Raises:
    def __init__(self):
        self.pid = os.getpid()
    def write(self, text):
        self.flush()
    def flush(self):
        if os.getpid() == self.pid:
            raise RuntimeError("no")
---
with redirect_stdout(Raises()):
    got = elastic_launch(config(start_method="fork"), work)("hello")
tell("got", got)
"""


def test_P6_an_object_that_raises_costs_its_own_lines_only(tmp_path: Path) -> None:
    run = ended(program(tmp_path, HEAD + RAISES), 0)
    assert run.out == "got {0: 'hello'}\n"
    assert run.err == ""
    [kept] = (tmp_path / "logs").rglob("stdout.log")
    assert kept.read_text() == "hello\n"


async def tee(stream: Any) -> None:
    """Run a relay, from its start to its end, for one line."""
    with redirect_stdout(stream):
        relay = Relay.start()
    stream.relay = relay.process.pid
    writer = relay.add((0, 0), Std.OUT, ToRelay(ConsoleRoute.TEE, "", keep_tail=False), b"> ")
    os.write(writer, b"hello\n")
    os.close(writer)
    await asyncio.wait_for(relay.stop(LIMIT_S), patience(LIMIT_S))


class Late:
    """Takes a line once the relay has gone, and when it may."""

    def __init__(self) -> None:
        self.relay, self.text, self.free = 0, "", threading.Event()

    def write(self, text: str) -> None:
        while not self.relay or os.path.exists(f"/proc/{self.relay}"):
            time.sleep(0.01)
        self.free.wait()
        self.text += text

    def flush(self) -> None:
        pass


def test_P6_the_end_waits_until_an_object_has_every_line() -> None:
    late = Late()
    late.free.set()
    asyncio.run(tee(late))
    assert late.text == "> hello\n"


def test_P6_the_end_does_not_wait_for_an_object_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "STALL_S", 0.05)
    late = Late()
    asyncio.run(tee(late))
    assert late.text == ""
    late.free.set()
    eventually(lambda: late.text == "> hello\n", "the line")


def test_P6_a_plain_stream_whose_write_was_replaced_is_an_object() -> None:
    lines: list[str] = []
    with open(1, "w", closefd=False) as stream:
        stream.write = lines.append  # type: ignore[assignment,method-assign]
        asyncio.run(tee(stream))
    assert lines == ["> hello\n"]


AT_A_TERMINAL = """
import contextlib, io, os
from rallypoint.elastic.launcher import LaunchConfig, elastic_launch
from rallypoint.elastic.multiprocessing import DefaultLogsSpecs, Std

if __name__ == "__main__":
    specs = DefaultLogsSpecs("logs", tee=Std.OUT)
    command = r"printf 'bar 1\\rbar 2\\n'; test -t 2 && touch terminal; true"
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        elastic_launch(LaunchConfig(1, 1, 1, logs_specs=specs), "sh")("-c", command)
    open("out", "w").write(repr(out.getvalue() + err.getvalue()))
"""


def test_P6_an_object_is_no_terminal_and_what_is_inherited_still_is(tmp_path: Path) -> None:
    """A bar is drawn where rows can be redrawn only; the colours and drawing of what is not teed go
    by the descriptor that it goes to."""
    (tmp_path / "job.py").write_text(AT_A_TERMINAL)
    master, slave = pty.openpty()
    try:
        ended = subprocess.run(
            [sys.executable, "job.py"],
            cwd=tmp_path,
            stdin=slave,
            stdout=slave,
            stderr=slave,
            timeout=patience(LIMIT_S),
        )
        os.write(slave, b"|")
        shown = os.read(master, 65536)
    finally:
        os.close(master)
        os.close(slave)
    assert (ended.returncode, shown) == (0, b"|")
    assert (tmp_path / "out").read_text() == repr("[default_role0]:bar 2\n")
    assert (tmp_path / "terminal").exists()
