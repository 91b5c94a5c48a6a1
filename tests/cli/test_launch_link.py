"""The link of a launch to one host, with other programs in place of ssh."""

from __future__ import annotations

import asyncio

from tests.harness.limits import patience

from rallypoint.cli.launch.link import HostLink
from rallypoint.cli.launch.machine import LinkEnded
from rallypoint.wire.launch_link import FromHost, Look


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
