"""The links of a launch to its hosts, with other programs in place of ssh."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from msgspec.structs import replace
from tests.harness.launch_scenario import asked_for
from tests.harness.limits import patience, until

from rallypoint.cli.launch.job import LaunchedJob
from rallypoint.cli.launch.link import HostLink
from rallypoint.cli.launch.machine import LinkEnded
from rallypoint.cli.launch.output import OutputWriter
from rallypoint.cli.launch.plan import Asked
from rallypoint.errors import ExitClass, InvariantError
from rallypoint.wire.launch_link import FromHost, Look


def by(ssh: Path, text: str) -> Asked:
    """What a person asks for whose ssh client, in this file, is this script."""
    ssh.write_text(f"#!/bin/sh\n{text}\n")
    ssh.chmod(0o755)
    asked = asked_for("a,b", "2")
    remote = replace(asked.plan.remote, ssh=(str(ssh),))
    return replace(asked, plan=replace(asked.plan, remote=remote))


class NoWords(OutputWriter):
    """An output with a bug: what this command says itself ends in an error."""

    def say(self, text: str) -> None:
        raise KeyError(text[:1])


class NoSettling(OutputWriter):
    """An output with a bug that only the regular work comes upon."""

    def settle(self) -> None:
        raise KeyError("stream")


async def test_three_signals_before_the_start_wait_for_no_ssh_client_and_no_console(
    tmp_path: Path,
) -> None:
    asked = by(tmp_path / "silent-ssh", "exec sleep 600")
    output = OutputWriter(("a", "b"), "prefix")
    writing = asyncio.get_running_loop().create_task(output.run())
    launched = LaunchedJob(asked, output)
    running = asyncio.get_running_loop().create_task(launched.run())
    await asyncio.sleep(0)  # It takes signals from now on.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        os.kill(os.getpid(), number)
    async with asyncio.timeout(patience(60)):
        assert await running == 128 + signal.SIGINT
        output.close()
        await asyncio.wait((writing,))
    assert writing.cancelled()


@contextmanager
def stopped_console() -> Iterator[None]:
    """Stderr is a console on which nothing can be shown, as after Ctrl-S."""
    reads, writes = os.pipe()
    os.set_blocking(writes, False)
    with suppress(BlockingIOError):
        while True:
            os.write(writes, bytes(4096))
    os.set_blocking(writes, True)
    before = os.dup(2)
    os.dup2(writes, 2)
    try:
        yield
    finally:
        os.dup2(before, 2)
        for fd in (before, reads, writes):
            os.close(fd)


async def test_three_signals_after_the_end_wait_for_no_console(tmp_path: Path) -> None:
    output = OutputWriter(("a", "b"), "prefix")
    writing = asyncio.get_running_loop().create_task(output.run())
    with stopped_console():
        async with asyncio.timeout(patience(60)):
            assert await LaunchedJob(by(tmp_path / "ssh", "exit 255"), output).run() == 75
            output.close()
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                os.kill(os.getpid(), number)
            await asyncio.wait((writing,))
    assert writing.cancelled()


async def test_nobody_waits_for_a_stopped_console_when_the_person_waits_no_more() -> None:
    output = OutputWriter(("a", "b"), "prefix")
    writing = asyncio.get_running_loop().create_task(output.run())
    much = b"x\n" * 1024 * 1024
    with stopped_console():
        taking = asyncio.get_running_loop().create_task(output.take("a", 2, much))
        await asyncio.sleep(0)
        assert not taking.done(), "the console takes nothing"
        output.give_up()
        async with asyncio.timeout(patience(60)):
            await taking
            await output.take("a", 2, much)
            output.close()
            await asyncio.wait((writing,))


async def test_an_ssh_client_that_is_being_started_when_a_launch_ends_is_killed() -> None:
    """After Ctrl-C in the first moment of a launch nobody would end that client."""
    ends: list[LinkEnded] = []

    async def heard(name: str, message: FromHost) -> None:
        raise AssertionError(message)

    link = HostLink("a", ("sleep", "600"), Look("/", ""), heard, ends.append)
    running = asyncio.get_running_loop().create_task(link.run())
    await asyncio.sleep(0)  # It has begun to start the client.
    link.kill()
    async with asyncio.timeout(patience(60)):
        await running
    assert ends == [LinkEnded("a", "ssh was killed by signal 9")]


async def test_a_bug_of_the_launch_ends_it_with_one_line_and_the_hosts_are_hung_up_on(
    tmp_path: Path,
) -> None:
    """Host a can't be reached once b is there, and saying so fails. Nothing would end the launch:
    what follows from the lost host is not done."""
    there, told = tmp_path / "there", tmp_path / "told"
    fails = f"until [ -e {there} ]; do sleep 0.05; done; exit 255"
    listens = f"touch {there}; cat > /dev/null; touch {told}"
    script = f'case "$*" in *a.example*) {fails};; *) {listens};; esac'
    launched = LaunchedJob(by(tmp_path / "ssh", script), NoWords(("a", "b"), "prefix"))
    async with asyncio.timeout(patience(60)):
        with pytest.raises(InvariantError) as raised:
            await launched.run()
    line = str(raised.value)
    assert line.startswith("the launch has a bug (unexpected KeyError ('a') at ")
    assert line.endswith("): please report it")
    assert raised.value.exit_class is ExitClass.FAILED
    assert "\n" not in line
    assert told.exists(), "b was told"


async def test_a_bug_in_the_regular_work_of_a_launch_ends_it(tmp_path: Path) -> None:
    """Without that work hosts would take this side for gone."""
    asked = by(tmp_path / "ssh", "exec sleep 600")
    launched = LaunchedJob(asked, NoSettling(("a", "b"), "prefix"))
    async with asyncio.timeout(patience(60)):
        with pytest.raises(InvariantError, match="KeyError"):
            await launched.run()


async def test_a_script_in_place_of_the_ssh_client_is_killed_with_what_it_has_started(
    tmp_path: Path,
) -> None:
    """`--ssh` may name a script that runs ssh: after the third Ctrl-C nobody waits for that."""
    ready = tmp_path / "ready"
    ends: list[LinkEnded] = []

    async def heard(name: str, message: FromHost) -> None:
        raise AssertionError(message)

    script = f"sleep 600 & touch {ready}; wait"
    link = HostLink("a", ("sh", "-c", script), Look("/", ""), heard, ends.append)
    running = asyncio.get_running_loop().create_task(link.run())
    async with asyncio.timeout(patience(60)):
        await until(ready.exists)
        link.kill()
        await running
    assert ends == [LinkEnded("a", "ssh was killed by signal 9")]
