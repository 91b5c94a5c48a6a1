"""How much one job, or who has its token, can make a coordinator hold."""

from __future__ import annotations

import pytest
from msgspec.structs import replace
from tests.harness.limits import until
from tests.harness.sessions import rally

from rallypoint.coordinator import hosted_job
from rallypoint.coordinator.connection import FIRST_MESSAGE_MAX_BYTES
from rallypoint.core import job_lives
from rallypoint.core import messages as m
from rallypoint.core.job_lives import ENDED_MAX
from rallypoint.core.model import Outcome, SharedSettings

ONE = SharedSettings("job", 1, 1, reconnect_grace_s=0.05)
FOR_EVER = replace(ONE, lease_s=1e9, reconnect_grace_s=1e9, reset_grace_s=1e9)
AWAY = replace(ONE, reconnect_grace_s=60.0, reset_grace_s=60.0)
MOST = 5


async def test_F8_who_has_not_attached_can_not_send_a_long_message() -> None:
    async with rally(ONE) as place:
        client = await place.dial(ONE, "life")
        client.attach(node_id="n" * FIRST_MESSAGE_MAX_BYTES)
        await client.wait_closed()
        await place.wait_record(f"but at most {FIRST_MESSAGE_MAX_BYTES} are allowed")


async def test_an_agent_that_is_started_again_and_again_does_not_fill_the_coordinator(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(hosted_job, "SPARE_SESSIONS", MOST - 2 * AWAY.max_nodes)

    async with rally() as place:
        clients = [await place.attached(AWAY, f"life{number}") for number in range(MOST)]
        for client in clients:
            client.wire.abort()
        one_more = await place.dial(AWAY, "another")
        one_more.attach()
        assert (await one_more.wait(m.Refused)).text == (
            "job 'job' has 5 agents already, of which at most 1 can take part (--nnodes): "
            "look for what starts agents again and again"
        )
        back = await place.attached(AWAY, "life0", generation=2, opened=1)
        assert back.all(m.Attached)[0].resumed
        await back.leave(1)
        await place.attached(AWAY, "another")


async def test_a_coordinator_that_is_full_forgets_the_jobs_that_everybody_has_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(job_lives, "JOBS_MAX", MOST)
    rules = [replace(AWAY, run_id=f"job{number}") for number in range(MOST + 2)]

    async with rally() as place:
        clients = [await place.attached(job, job.run_id) for job in rules[:MOST]]
        refused = await place.dial(rules[MOST], "life")
        refused.attach()
        assert (await refused.wait(m.Refused)).text == (
            "this coordinator hosts 5 jobs already: start another one for 'job5'"
        )
        await clients[2].leave(1)
        await place.attached(rules[MOST], "life")
        assert "job2" not in place.coordinator.jobs._jobs
        again = await place.attached(rules[0], "job0", generation=2, opened=1)
        assert again.all(m.Attached)[0].resumed


async def test_a_job_that_is_begun_and_left_again_and_again_leaves_room_for_other_jobs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(job_lives, "JOBS_MAX", ENDED_MAX + 3)

    async with rally() as place:
        clients = []
        for number in range(3 * ENDED_MAX):
            client = await place.attached(FOR_EVER, f"life{number}")
            client.join()
            client.report(2, m.Cancel("enough", 2))
            await client.wait(m.Ended)
            client.wire.abort()
            clients.append(client)
        await place.attached(replace(ONE, run_id="another"), "life")
        # Whose life made room hears how it ended when it comes again.
        told = clients[1].all(m.Attached)[0]
        back = await place.attached(FOR_EVER, "life1", generation=2, opened=1, last=told)
        assert (await back.wait(m.Ended)).verdict.outcome is Outcome.CANCELLED


async def test_an_agent_that_tells_of_ever_other_lives_does_not_fill_the_coordinator() -> None:
    async with rally() as place:
        first = await place.attached(FOR_EVER, "first")
        here = first.all(m.Attached)[0]
        for number in range(3 * ENDED_MAX):
            told = replace(here, incarnation=here.incarnation + 1 + number)
            client = await place.attached(FOR_EVER, f"life{number}", last=told)
            assert "did not keep the verdict" in (await client.wait(m.Ended)).verdict.text
            client.wire.abort()
        assert len(place.coordinator.jobs._ended) == ENDED_MAX
        await first.round_trip()


async def test_who_asks_for_a_drain_and_hangs_up_is_forgotten() -> None:
    async with rally(AWAY) as place:
        await place.attached(AWAY, "life", node_id="a")
        waiting = place.coordinator.jobs._jobs["job"]._sessions._drains._waiting
        for _ in range(MOST):
            asking = await place.dial(AWAY, "nobody")
            asking.wire.send(m.DrainNode("a", "it is tired"))
            await asking.wait(m.DrainAnswer)
            assert len(waiting) == 1
            asking.wire.abort()
            await until(lambda: not waiting)
