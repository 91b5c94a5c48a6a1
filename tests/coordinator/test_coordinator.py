"""The coordinator over real sockets: sessions, strangers, and two thousand nodes at once."""

from __future__ import annotations

import asyncio
import sys
from contextlib import AbstractAsyncContextManager

import pytest
from msgspec.structs import replace
from tests.harness.narrowed import known, only
from tests.harness.sessions import LIMIT_S, TOKEN, Client, Rally, rally

from rallypoint.coordinator.listen import raise_open_files_limit
from rallypoint.core import messages as m
from rallypoint.core.model import EndKind, Outcome, SharedSettings, Stamp
from rallypoint.core.worker_exits import WorkerExit
from rallypoint.wire.codec import MAX_MESSAGE_BYTES
from rallypoint.wire.death_notice import commitment
from rallypoint.wire.handshake import ClientHandshake

ONE = SharedSettings("job", 1, 1, reconnect_grace_s=0.05)
TWO = replace(ONE, min_nodes=2, max_nodes=2)
SECRET = bytes(reversed(range(32)))
DNS = ("socket.getnameinfo", "socket.gethostbyaddr", "socket.gethostbyname")
asked: list[str] = []


def note_lookup(event: str, _: object, dns: tuple[str, ...] = DNS, to: list[str] = asked) -> None:
    """It has by itself what it needs: it is called also when the module is gone."""
    if event in dns:
        to.append(event)


sys.addaudithook(note_lookup)


def failed(stamp: Stamp) -> m.Failed:
    return m.Failed(stamp, (WorkerExit(1, None, role="default", pid=1),))


@pytest.fixture
def place() -> AbstractAsyncContextManager[Rally]:
    """A coordinator of a job of one node."""
    return rally(ONE)


async def test_each_node_is_pushed_its_own_assignment() -> None:
    async with rally(TWO) as place:
        a = await place.attached(TWO, "life-a", node_id="a")
        b = await place.attached(TWO, "life-b", node_id="b")
        b.join()
        await b.wait(m.Ack, 2)
        assert b.all(m.Assigned) == []
        first, second = await a.joins(), await b.wait(m.Assigned)
        assert (first.assignment.group_rank, second.assignment.group_rank) == (0, 1)
        assert (first.assignment.base_rank, second.assignment.base_rank) == (0, 1)
        a.report(2, m.Enrolled(first.stamp))
        b.report(2, m.Enrolled(second.stamp))
        assert (await a.wait(m.StartNow)).stamp == (await b.wait(m.StartNow)).stamp
        a.report(3, m.Succeeded(first.stamp))
        b.report(3, m.Succeeded(second.stamp))
        for client in (a, b):
            assert (await client.wait(m.Ended)).verdict.outcome is Outcome.SUCCEEDED
            client.report(4, m.Leave())
        await place.coordinator.jobs.wait_empty()
        for client in (a, b):
            await client.wait_closed()
            assert client.all(m.Ack)[-1].number == 4


async def test_F1_a_session_is_resumed_and_told_the_truth_by_a_newer_connection_only(
    place: Rally,
) -> None:
    first = await place.attached(ONE, "life", generation=3)
    assert not first.all(m.Attached)[0].resumed
    assigned = await first.joins()
    second = await place.attached(ONE, "life", generation=4, opened=3)
    assert second.all(m.Attached)[0].resumed
    assert await second.wait(m.Assigned) == assigned
    assert (await second.wait(m.StartNow)).stamp == assigned.stamp
    await first.wait_closed()
    older = await place.dial(ONE, "life")
    older.attach(generation=4, opened=3)
    await older.wait_closed()
    assert older.heard == []
    await second.round_trip()


async def test_F1_an_agent_that_never_heard_of_its_session_opens_it_anew(place: Rally) -> None:
    await place.attached(ONE, "life", generation=1)
    again = await place.attached(ONE, "life", generation=2, opened=0)
    assert not again.all(m.Attached)[0].resumed
    third = await place.attached(ONE, "life", generation=3, opened=2)
    assert third.all(m.Attached)[0].resumed


async def test_a_report_that_is_sent_again_is_applied_once() -> None:
    rules = replace(ONE, max_restarts=5)
    async with rally(rules) as place:
        a = await place.attached(rules, "life")
        stamp = (await a.joins()).stamp
        a.report(2, failed(stamp))
        a.join(3, seq=2)
        await a.wait(m.Assigned, 2)
        again = await place.attached(rules, "life", generation=2, opened=1)
        again.report(2, failed(stamp))
        again.join(3, seq=2)
        await again.round_trip()
        assert [ack.number for ack in again.all(m.Ack)] == [3, 3, 3]
        status = (await again.wait(m.HeartbeatAck)).status
        assert (status.round, status.phase, status.restarts_used) == (1, "active", 1)


async def test_F1_a_report_about_another_coordinator_s_round_is_answered_with_the_truth(
    place: Rally,
) -> None:
    a = await place.attached(ONE, "life")
    stamp = (await a.joins()).stamp
    a.report(2, m.Succeeded(replace(stamp, incarnation=stamp.incarnation + 1)))
    assert (await a.wait(m.Assigned, 2)).stamp == stamp
    assert a.all(m.Ended) == []


async def test_F2_a_connection_that_does_not_come_back_is_a_loss() -> None:
    rules = replace(TWO, min_nodes=1)
    async with rally(rules) as place:
        a = await place.attached(rules, "life-a", node_id="a")
        b = await place.attached(rules, "life-b", node_id="b")
        for client in (a, b):
            client.join()
            await client.wait(m.Ack, 2)
        await a.wait(m.Assigned)
        b.wire.abort()
        stop = await a.wait(m.StopNow)
        assert stop.reason.kind is EndKind.LOSS
        assert "node b was lost: its connection broke" in stop.reason.text


async def two_of_which_one_may_die(place: Rally, rules: SharedSettings) -> tuple[Client, Client]:
    a, b = [await place.dial(rules, f"life-{name}") for name in "ab"]
    for client in (a, b):
        client.attach(node_id=client.incarnation[-1], death_commitment=commitment(SECRET))
        client.join()
        await client.wait(m.Ack, 2)
    await a.wait(m.Assigned)
    return a, b


async def tell_of_death(
    place: Rally, rules: SharedSettings, incarnation: str, generation: int, secret: bytes
) -> None:
    guard = await place.dial(rules, "of no agent")
    guard.wire.send(m.AgentDied(incarnation, generation, secret))
    await guard.wait_closed()
    assert guard.heard == []


async def test_F2_a_guard_that_says_that_its_agent_died_is_believed_at_once() -> None:
    rules = replace(TWO, min_nodes=1, reconnect_grace_s=LIMIT_S)
    async with rally(rules) as place:
        a, b = await two_of_which_one_may_die(place, rules)
        b.wire.abort()
        await tell_of_death(place, rules, "life-b", 1, SECRET)
        stop = await a.wait(m.StopNow)
        assert stop.reason.kind is EndKind.LOSS
        assert "node b was lost: its agent died, and its workers with it" in stop.reason.text
        await tell_of_death(place, rules, "life-b", 1, SECRET)
        await a.round_trip()
        assert len(a.all(m.StopNow)) == 1


async def test_F2_who_can_not_prove_that_an_agent_died_is_ignored_and_told_of_once() -> None:
    rules = replace(TWO, min_nodes=1)
    async with rally(rules) as place:
        a, b = await two_of_which_one_may_die(place, rules)
        for generation, secret in ((1, b"guessed"), (2, SECRET), (0, SECRET), (1, b"")):
            await tell_of_death(place, rules, "life-b", generation, secret)
        await tell_of_death(place, rules, "nobody", 1, SECRET)
        told = [record.text for _, record in place.records if "died" in record.text]
        assert len(told) == 1
        assert "it reports without proof that the agent of node b died" in told[0]
        again = await place.dial(rules, "life-b")
        again.attach(generation=2, opened=1)  # and now it commits itself to nothing
        await again.wait(m.Attached)
        for secret in (SECRET, b""):
            await tell_of_death(place, rules, "life-b", 2, secret)
        await again.round_trip()
        assert a.all(m.StopNow) == b.all(m.StopNow) == []


async def test_A3_what_an_agent_said_before_it_died_counts_though_its_guard_is_faster() -> None:
    rules = replace(TWO, min_nodes=1, reconnect_grace_s=LIMIT_S)
    async with rally(rules) as place:
        a, b = await two_of_which_one_may_die(place, rules)
        stamp = (await b.wait(m.Assigned)).stamp
        await tell_of_death(place, rules, "life-b", 1, SECRET)
        await b.round_trip()
        assert a.all(m.StopNow) == []
        b.report(2, failed(stamp))
        await b.wait(m.Ack, 3)
        b.wire.abort()
        assert (await a.wait(m.StopNow)).reason.kind is EndKind.FAILURE
        await place.wait_record("node b was lost: its agent died")


async def test_R5_who_joins_when_all_is_over_hears_how(place: Rally) -> None:
    late = await place.attached(ONE, "life-b")
    a = await place.attached(ONE, "life-a")
    a.report(1, m.Cancel("got SIGINT", 2))
    await a.wait(m.Ack, 2)
    late.join()
    assert (await late.wait(m.Ended)).verdict.outcome is Outcome.CANCELLED
    fresh = await place.attached(ONE, "life-c")
    assert (await fresh.wait(m.Ended)).verdict.outcome is Outcome.CANCELLED


async def test_R5_a_failed_job_begins_anew_when_its_last_agents_have_left() -> None:
    async with rally() as place:
        old = await place.attached(ONE, "life-a")
        old.report(1, m.Cancel("got SIGINT", 2))
        await old.wait(m.Ack, 2)
        fresh = await place.attached(ONE, "life-b")
        first, second = old.all(m.Attached)[0], fresh.all(m.Attached)[0]
        assert second.incarnation > first.incarnation
        fresh.join()
        again = await place.attached(ONE, "life-a", generation=2, opened=1, last=first)
        assert again.all(m.Attached)[0].incarnation == first.incarnation
        assert (await again.wait(m.Ended)).verdict.outcome is Outcome.CANCELLED
        await fresh.round_trip()
        assert not fresh.all(m.Assigned)
        await again.leave(2)
        assert (await fresh.wait(m.Assigned)).stamp.incarnation == second.incarnation


@pytest.mark.parametrize("only", [None, TWO], ids=["serve", "embedded"])
async def test_F4_a_job_gets_a_higher_number_when_an_agent_knows_of_one(
    only: SharedSettings | None,
) -> None:
    async with rally(only) as place:
        one = await place.attached(TWO, "life-a")
        known = m.Attached("", one.all(m.Attached)[0].incarnation + 10**9, 1, resumed=False)
        other = await place.attached(TWO, "life-b", generation=9, opened=3, last=known)
        assert (await one.wait(m.Attached, 2)).resumed
        for client in (one, other):
            client.join()
        for client in (one, other):
            assert (await client.wait(m.Assigned)).stamp.incarnation == known.incarnation + 1
        late = await place.attached(TWO, "life-c", generation=9, opened=3, last=known)
        assert late.all(m.Attached)[0].incarnation == known.incarnation + 1
        later = replace(known, incarnation=known.incarnation + 10)
        late = await place.attached(TWO, "life-d", generation=9, opened=3, last=later)
        assert late.all(m.Attached)[0].incarnation == known.incarnation + 1


async def test_F4_a_coordinator_that_was_started_anew_begins_above_the_one_before() -> None:
    numbers = []
    for hosted in (None, ONE, None):
        async with rally(hosted) as place:
            a = await place.attached(ONE, "life-a")
            numbers.append(a.all(m.Attached)[0].incarnation)
    assert numbers == sorted(set(numbers))


async def test_R4_a_made_up_node_id_is_kept_unless_another_node_has_it_by_now() -> None:
    rules = replace(ONE, reconnect_grace_s=0.01)
    async with rally(rules) as place:
        names = []
        for life in "abc":
            client = await place.attached(rules, life)
            names.append(client.all(m.Attached)[0].node_id)
        assert names == ["host-0", "host-1", "host-2"]
        for client in place.clients[:2]:
            await client.leave(1)
        back = await place.attached(rules, "b", generation=2, former_id="host-1")
        assert back.all(m.Attached)[0].node_id == "host-1"
        late = await place.attached(rules, "a", generation=2, former_id="host-2")
        assert late.all(m.Attached)[0].node_id == "host-0"


async def test_an_embedded_coordinator_serves_its_own_job_only(place: Rally) -> None:
    client = await place.dial(replace(ONE, run_id="other"), "life")
    client.attach()
    text = (await client.wait(m.Refused)).text
    assert text.startswith("this port is used by job 'job', not job 'other': give --rdzv-id")
    await client.wait_closed()


async def test_an_agent_can_not_attach_to_another_job_than_it_proved_to_belong_to() -> None:
    async with rally() as place:
        client = await place.dial(ONE, "life")
        client.attach(settings=replace(ONE, run_id="other"))
        await client.wait_closed()
        refused = only(m.Refused, client.heard)
        assert "attached to 'other'" in refused.text
        await place.wait_record("attached to 'other'")


HELLO = ClientHandshake("job", TOKEN, bytes(32)).hello()
STRANGERS = {
    "garbage": b"\x16\x03\x01\x02\x00\x01\x00",
    "http": b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "half a handshake": HELLO[:20],
    "silence": b"",
    "no proof": HELLO,
}


@pytest.mark.parametrize("opening", STRANGERS.values(), ids=list(STRANGERS))
async def test_F8_strangers_are_closed(opening: bytes) -> None:
    async with rally(ONE, handshake_time_s=0.2) as place:
        reader, writer = await asyncio.open_connection("127.0.0.1", place.port)
        writer.write(opening)
        await reader.read()  # until it is closed
        writer.close()
        await writer.wait_closed()
        record = await place.wait_record("closed the connection from 127.0.0.1")
        assert "\n" not in record.text


async def test_F8_who_shook_hands_and_then_says_nothing_is_closed_too() -> None:
    async with rally(ONE, handshake_time_s=0.2) as place:
        client = await place.dial(ONE, "life")
        await client.wait_closed()
        await place.wait_record("it did not finish the handshake")


async def test_F8_who_has_attached_is_not_closed_for_being_slow_to_open() -> None:
    async with rally(ONE, handshake_time_s=0.1) as place:
        client = await place.attached(ONE, "life")
        silent = await place.dial(ONE, "other")
        await silent.wait_closed()
        await client.round_trip()


async def test_a_frame_that_is_too_large_closes_the_connection(place: Rally) -> None:
    client = await place.attached(ONE, "life")
    client.report(1, m.Cancel("x" * MAX_MESSAGE_BYTES, 2))
    await client.wait_closed()
    await place.wait_record("are allowed")


async def test_a_peer_that_does_not_read_is_cut_off() -> None:
    async with rally(ONE, send_buffer=4096) as place:
        client = await place.attached(ONE, "life")
        transport = known(client.wire._transport)
        transport.pause_reading()
        number = 0
        while not any("does not read" in record.text for _, record in place.records):
            for _ in range(500 if transport.get_write_buffer_size() < 65536 else 0):
                number += 1
                client.wire.send(m.Heartbeat(number))
            await asyncio.sleep(0.0005)
        again = await place.attached(ONE, "life", generation=2, opened=1)
        assert again.all(m.Attached)[0].resumed


async def test_many_jobs_side_by_side_know_nothing_of_each_other() -> None:
    async with rally() as place:
        jobs = [replace(TWO, run_id=f"job{number}", min_nodes=1) for number in range(40)]
        clients = [
            await place.attached(job, f"{job.run_id}-{name}", node_id=name)
            for name in "ab"
            for job in jobs
        ]
        for client in clients:
            client.join()
        for client in clients:
            assert (await client.wait(m.Assigned)).assignment.group_world_size == 2
        clients[0].report(2, m.Cancel("got SIGINT", 2))
        await clients[40].wait(m.Ended)
        for client in clients[1:40] + clients[41:]:
            await client.round_trip()
            assert client.all(m.Ended) == []
            assert (await client.wait(m.HeartbeatAck)).status.phase == "active"


async def one_round(place: Rally, nodes: int) -> list[Client]:
    """So many nodes join and get their assignments."""
    rules = SharedSettings("job", nodes, nodes)
    clients: list[Client] = []
    for start in range(0, nodes, 100):
        numbers = range(start, min(start + 100, nodes))
        clients += await asyncio.gather(
            *(place.attached(rules, f"life{n}", node_id=f"n{n:04}") for n in numbers)
        )
    for client in clients:
        client.join()
    for client in clients:
        await client.wait(m.Assigned)
    return clients


async def test_R6_two_thousand_sessions_cost_each_no_more_than_fifty() -> None:
    sizes: dict[int, list[int]] = {}

    async def body(nodes: int) -> None:
        async with rally(SharedSettings("job", nodes, nodes)) as place:
            clients = await one_round(place, nodes)
            for client in clients:
                await client.round_trip()
                assert len(client.all(m.Assigned)) == 1
            ranks = [client.all(m.Assigned)[0].assignment.group_rank for client in clients]
            assert ranks == list(range(nodes))
            sizes[nodes] = [client.wire.received_bytes for client in clients]
            assert len(asyncio.all_tasks()) <= 3, "no task for each session"
            timers = [t for t in asyncio.get_running_loop()._scheduled if not t.cancelled()]  # type: ignore[attr-defined]
            assert len(timers) <= 8, "no timer for each session"

    if raise_open_files_limit() < 4500:
        pytest.skip("this machine allows too few open files")
    asked.clear()
    await body(50)
    await body(2000)
    assert max(sizes[2000]) <= max(sizes[50]) + 24, "the numbers grow, the messages do not"
    assert asked == [], "nobody asked a name server"
