"""The links of a launch to its hosts, with other programs in place of ssh."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

from msgspec.structs import replace
from tests.harness.launch_scenario import asked_for
from tests.harness.limits import patience

from rallypoint.cli.launch.job import LaunchedJob
from rallypoint.cli.launch.link import HostLink
from rallypoint.cli.launch.machine import LinkEnded
from rallypoint.cli.launch.output import OutputWriter
from rallypoint.wire.launch_link import FromHost, Look


async def test_three_signals_before_the_start_wait_for_no_ssh_client_and_no_console(
    tmp_path: Path,
) -> None:
    silent = tmp_path / "silent-ssh"
    silent.write_text("#!/bin/sh\nexec sleep 600\n")
    silent.chmod(0o755)
    asked = asked_for("a,b", "2")
    remote = replace(asked.plan.remote, ssh=(str(silent),))
    asked = replace(asked, plan=replace(asked.plan, remote=remote))
    launched = LaunchedJob(asked, OutputWriter(("a", "b"), "prefix"))
    running = asyncio.get_running_loop().create_task(launched.run())
    await asyncio.sleep(0)  # It takes signals from now on.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        os.kill(os.getpid(), number)
    async with asyncio.timeout(patience(60)):
        assert await running == 128 + signal.SIGINT
    assert launched.is_hurried


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
