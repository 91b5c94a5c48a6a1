"""Every signal at every state of an agent: what it was asked for happens, and nothing remains (A5,
A6), of workers either that ignore every polite signal and have children that do."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from tests.harness.cluster import is_listening
from tests.harness.one_agent import OneAgent, agent, eventually, free_port
from tests.harness.proc import is_alive
from tests.harness.stubborn import STUBBORN

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGKILL)
# One token, and every event is shown at once.
ENVIRONMENT = {"RALLYPOINT_TOKEN": "5e" * 32, "LOGLEVEL": "DEBUG"}
GRACES = ("--shutdown-timeout=0.4", "--restart-grace=0.4")


class Scene:
    """A place for the agents of one test. The one that is signalled has a home of its own."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self._folder, self._stack = folder, stack
        self.port = free_port()
        self.others: list[OneAgent] = []

    def agent(self, name: str, *options: str, mode: str = "stay") -> OneAgent:
        """Start one, whose worker stays or leaves its children alone."""
        home = self._folder / name
        home.mkdir()
        started = agent(
            home, *GRACES, *options, program=STUBBORN, arguments=[mode], env=ENVIRONMENT
        )
        return self._stack.enter_context(started)

    def member(self, name: str, *, hosts: bool, mode: str = "stay") -> OneAgent:
        """One of two nodes."""
        return self.agent(
            name,
            *("--nnodes=2", "--rdzv-id=job", f"--rdzv-endpoint=127.0.0.1:{self.port}"),
            *(f"--node-id={name}", f"--rdzv-conf=is_host={hosts:d}", "--lease=20"),
            mode=mode,
        )


def launching(scene: Scene) -> OneAgent:
    """Its first helper has just been forked."""
    run = scene.agent("a")
    eventually(lambda: run.named("worker-guard"), "the guard")
    return run


def forming(scene: Scene) -> OneAgent:
    """It waits for another node."""
    run = scene.member("a", hosts=True)
    run.wait_said("waiting for")
    return run


def starting(scene: Scene) -> OneAgent:
    """The worker exists, but its program does not run yet."""
    run = scene.agent("a")
    helpers = {"worker-guard", "rallypoint-rly"}
    eventually(
        lambda: len([pid for pid in run.processes() if pid != run.pid]) > len(helpers),
        "a worker",
    )
    return run


def running(scene: Scene) -> OneAgent:
    """The worker and its children run."""
    run = scene.agent("a")
    run.wait_told("pid", 3)
    return run


def stopping(scene: Scene) -> OneAgent:
    """It got SIGTERM, and its workers have a long grace."""
    run = scene.agent("a", "--shutdown-timeout=600")
    run.wait_told("pid", 3)
    run.send(signal.SIGTERM)
    run.wait_said("got SIGTERM")
    return run


def restarting(scene: Scene) -> OneAgent:
    """Its worker was killed, and what that has started has a long grace."""
    run = scene.agent("a", "--restart-grace=600", "--max-restarts=3")
    pids = run.wait_told("pid", 3)
    leader = next(int(pid) for pid in pids if os.getsid(int(pid)) == int(pid))
    os.kill(leader, signal.SIGKILL)
    run.wait_said("ended")
    return run


def waiting_for_the_verdict(scene: Scene) -> OneAgent:
    """Its own worker has succeeded, the other node's runs on."""
    other = scene.member("b", hosts=True)
    scene.others.append(other)
    run = scene.member("a", hosts=False, mode="leave")
    run.wait_told("pid", 3)
    other.wait_told("pid", 3)
    run.wait_said("exited with code 0")
    return run


STATES: dict[str, Callable[[Scene], OneAgent]] = {
    state.__name__: state
    for state in (
        launching,
        forming,
        starting,
        running,
        stopping,
        restarting,
        waiting_for_the_verdict,
    )
}


@pytest.fixture(scope="module")
def bystander() -> Iterator[int]:
    """An unrelated process of the same user, in the session that agents are started from."""
    with subprocess.Popen(["sleep", "600"]) as process:
        yield process.pid
        process.kill()


@pytest.mark.parametrize("number", SIGNALS, ids=lambda number: number.name)
@pytest.mark.parametrize("state", STATES)
def test_A5_A6_nothing_remains_whatever_the_signal_and_the_state(
    tmp_path: Path, state: str, number: signal.Signals, bystander: int
) -> None:
    with ExitStack() as stack:
        scene = Scene(tmp_path, stack)
        run = STATES[state](scene)
        if state == "stopping":
            run.send_again(number)
        else:
            run.send(number)
        eventually(lambda: run.process.poll() is not None, "the agent's end")
        eventually(lambda: not run.processes(), "an end of all processes of the job")
        assert not os.listdir(tmp_path / "a" / "tmp")
        assert run.process.returncode in expected_codes(state, number), run.err
        ours = [
            line for line in run.err.splitlines() if 'File "' in line and "/rallypoint/" in line
        ]
        assert not ours, "a traceback of the agent"
        assert is_alive(bystander)
        for other in scene.others:
            other.send(signal.SIGINT)
    assert not is_listening(scene.port)


def expected_codes(state: str, number: signal.Signals) -> tuple[int, ...]:
    if number is signal.SIGKILL:
        return (-number,)
    if state == "launching":
        return (128 + number, -number)  # The handlers may not be there yet.
    return (128 + (signal.SIGTERM if state == "stopping" else number),)
