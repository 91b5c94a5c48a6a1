"""`--preempt-notice cmd:COMMAND`, which is run again and again as long as the job runs."""

from __future__ import annotations

import asyncio

from tests.harness.descriptors import open_descriptors, own_children
from tests.harness.limits import patience

from rallypoint.agent.preempt_notice import PreemptNotice


async def test_A6_a_command_that_has_given_its_notice_leaves_no_descriptor_and_no_process() -> None:
    told: list[str] = []
    is_told = asyncio.Event()

    def on_notice(why: str) -> None:
        told.append(why)
        is_told.set()

    before, children = open_descriptors(), own_children()
    notice = PreemptNotice("cmd:exit 0", None, on_notice, told.append)
    notice.start()
    async with asyncio.timeout(patience(60)):
        await is_told.wait()
    assert open_descriptors() - before == set()
    assert own_children() - children == set()
    await notice.close()
    assert told == ["the notice command exited with code 0: exit 0"]
